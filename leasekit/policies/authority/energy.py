"""A site's energy manager: leases get the units that waste least, and units that nobody needs are switched off.

Which units a lease gets, the weighers say (:mod:`.weighers`). When units are switched, the rule says
(:mod:`.energy_plan`); :mod:`.energy_holds` keeps for each reservation the units that it is to get.

The free units of one type are ordered once in a turn, best first, however many leases are to get some. Which unit is
best depends on the lease in one way only: by when the unit's next reservation begins. So units are kept in heaps, one
for each such instant; in a heap their order is the same for all leases, and a lease looks at the tops.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import attrs

from leasekit.core.efficiency import efficiency
from leasekit.core.filters import FilterError
from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    AuthorityDecision,
    Demand,
    Place,
    Power,
    Refuse,
    UnitView,
    Wake,
)
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.energy_holds import WEIGHERS, EnergyHolds, Weigher
from leasekit.policies.authority.energy_plan import EnergyPowerSettings, Fleet, Forecast, PowerManager, Switching
from leasekit.policies.authority.first_fit import FILTER, FirstFitTurn
from leasekit.policies.registry import make_part


class Rank(NamedTuple):
    """What makes a unit better than another whatever the lease, lowest first: how soon it is ready, what it wastes
    (less the more it computes with a watt), and its place in the site's order, which no other unit has.
    """

    ready: int
    waste: float
    place: int


Key: TypeAlias = Callable[[Instant | None, Rank], tuple[float, ...]]
"""A lease's order: of units with the same next reservation (None: there is none) as their ranks are."""


class EnergyOffer:
    """The units of ``ranks`` that will do for one filter; ``due`` says when the next reservation of one begins. What is
    in ``gone``, or gets there, is not offered; what is taken gets there.
    """

    def __init__(
        self,
        units: Iterable[str],
        ranks: Mapping[str, Rank],
        due: Callable[[str], Instant | None],
        gone: set[str],
    ) -> None:
        self._ranks = ranks
        self._gone = gone
        self._due = {unit: due(unit) for unit in units if unit not in gone}
        self._heaps: dict[Instant | None, list[tuple[Rank, str]]] = {}
        for unit, at in self._due.items():
            self._heaps.setdefault(at, []).append((ranks[unit], unit))
        for heap in self._heaps.values():
            heapify(heap)

    def moved(self, unit: str, due: Instant | None) -> None:
        """The next reservation of a unit begins at another instant now."""
        if unit in self._due and unit not in self._gone and self._due[unit] != due:
            self._due[unit] = due
            heappush(self._heaps.setdefault(due, []), (self._ranks[unit], unit))

    def pick(self, units: Iterable[str], count: int, key: Key) -> list[str]:
        """Take up to ``count`` of these ``units``, as far as they are offered, the best first."""
        able = [unit for unit in units if unit in self._due and unit not in self._gone]
        able.sort(key=lambda unit: key(self._due[unit], self._ranks[unit]))
        self._gone.update(able[:count])
        return able[:count]

    def take(self, count: int, key: Key) -> list[str]:
        """Take up to ``count`` units, the best first."""
        taken: list[str] = []
        if count <= 0:
            return taken
        for due in [due for due, heap in self._heaps.items() if not self._fresh(due, heap)]:
            del self._heaps[due]
        tops = [(key(due, heap[0][0]), due) for due, heap in self._heaps.items()]
        heapify(tops)
        while tops and len(taken) < count:
            _, due = tops[0]
            heap = self._heaps[due]
            _, unit = heappop(heap)
            self._gone.add(unit)
            taken.append(unit)
            if self._fresh(due, heap):
                heapreplace(tops, (key(due, heap[0][0]), due))
            else:
                heappop(tops)
        return taken

    def _fresh(self, due: Instant | None, heap: list[tuple[Rank, str]]) -> bool:
        """Whether there is a unit left in a heap; the best is at its top once those that went elsewhere are off it."""
        while heap and (heap[0][1] in self._gone or self._due[heap[0][1]] != due):
            heappop(heap)
        return bool(heap)


def _weighers(_: object, __: object, value: tuple[str, ...]) -> None:
    wrong = [name for name in value if name not in WEIGHERS]
    if wrong or len(set(value)) != len(value):
        raise ValueError(f"found {', '.join(value)}, expected some of {', '.join(WEIGHERS)}, each once")


@attrs.frozen(kw_only=True)
class EnergySettings(EnergyPowerSettings):
    """Settings of :class:`EnergyManager`."""

    types: tuple[str, ...] = ()
    """The resource types whose units it switches; a driver must name them in its `powers`. The others are only
    assigned."""
    forecast: str = "last"
    """How many units will be needed in the next interval: `"last"` (as many as now), `"ewma"`, a name that a package
    brings, `module:Class` or `path/to/file.py:Class`."""
    forecast_settings: Mapping[str, Any] = attrs.Factory(dict)
    """Settings of the forecast."""
    weighers: tuple[Weigher, ...] = attrs.field(default=WEIGHERS, validator=_weighers)
    """What makes a unit better than another one that will do as well, in this order: that it is free for longest until
    its next reservation, that it computes more with a watt."""


class EnergyManager:
    """An authority's mapper that switches units off when they are idle, and on when they are needed.

    What it counts and has learnt is lost at a restart; which units are on is not, as the authority keeps that.
    """

    Settings: ClassVar[type[EnergySettings]] = EnergySettings
    inline: ClassVar[bool] = True
    filtered_by: ClassVar[str] = FILTER
    watches: ClassVar[bool] = True

    def __init__(self, settings: EnergySettings | None = None) -> None:
        self.settings = settings or EnergySettings()
        self._types = {type_: _Type(type_, self.settings) for type_ in self.settings.types}

    @property
    def parts(self) -> Sequence[object]:
        """What is plugged into it: the forecasts."""
        return [of_type.forecast for of_type in self._types.values()]

    @property
    def switches(self) -> Sequence[str]:
        """The types whose power it decides of."""
        return self.settings.types

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Fill every demand, then see to the power of what is left."""
        now = cycle.now
        for of_type in self._types.values():
            of_type.look(cycle)
        decisions: list[AuthorityDecision] = []
        taken: set[str] = set()
        turn = _Weighed(cycle, self.settings.weighers, {name: of_type.holds for name, of_type in self._types.items()})
        for demand in cycle.demands:
            decision = turn.shrink(demand) if demand.units < 0 else turn.fill(demand)
            if isinstance(decision, Assign):
                taken.update(decision.units)
            decisions.append(decision)
        for of_type in self._types.values():
            decisions += of_type.switch(now, taken)
        return [*decisions, Wake(self._again_at(now))] if self._types else decisions

    def _again_at(self, now: Instant) -> Instant:
        """The next check, or decision, or when a reservation comes so near that it must be seen to."""
        regular = (self.settings.check, self.settings.decide)
        soon = now + self.settings.lookahead
        due = [of_type.holds.first_after(soon) for of_type in self._types.values()]
        near = [start - soon + now + 1 for start in due if start is not None]
        return min([(now // interval + 1) * interval for interval in regular] + near)


class _Weighed(FirstFitTurn):
    """A turn in which the best units go first."""

    def __init__(self, cycle: AuthorityCycle, weighers: Sequence[Weigher], holds: Mapping[str, EnergyHolds]) -> None:
        super().__init__(cycle)
        self._now = cycle.now
        self._weighers = weighers
        self._holds = holds
        self._demand: Demand | None = None
        self._free: dict[str, list[UnitView]] = {}
        self._ranks: dict[str, dict[str, Rank]] = {}
        self._best: dict[str, dict[tuple[str, bytes | None], EnergyOffer]] = {}

    def fill(self, demand: Demand) -> Assign | Place | Refuse:
        """As first fit's, for this demand."""
        self._demand = demand
        return super().fill(demand)

    def _next(self, type_: str, count: int, filter_: str, class_: bytes | None) -> list[str]:
        demand, holds = self._demand, self._holds.get(type_)
        assert demand is not None, "only called to fill a demand"
        if count <= 0:
            return []
        offer = self._offer_of(type_, filter_, class_)
        term = Term(self._now, max(demand.term.end, self._now + 1))
        mine = () if holds is None else holds.of(demand.lease)
        key = self._key(term.end, reserved=bool(mine))
        chosen = offer.pick(mine, count, key)
        chosen += offer.take(count - len(chosen), key)
        if holds is not None:
            for unit in holds.give(demand.lease, chosen, term, reserved=bool(mine)):
                due = holds.next_due(unit, self._now)
                for each in self._best[type_].values():
                    each.moved(unit, due)
        return chosen

    def _offer_of(self, type_: str, filter_: str, class_: bytes | None) -> EnergyOffer:
        offers = self._best.setdefault(type_, {})
        if (filter_, class_) not in offers:
            holds, listed = self._holds.get(type_), self._listed(type_)
            able = {unit.id for unit in self._cycle.free(type_, filter_)} if filter_ else None
            usable = (unit for unit in listed if class_ is None or class_ in unit.classes)
            offers[filter_, class_] = EnergyOffer(
                (unit.id for unit in usable if able is None or unit.id in able),
                self._ranks[type_],
                lambda unit: None if holds is None else holds.next_due(unit, self._now),
                self._gone,
            )
        return offers[filter_, class_]

    def _listed(self, type_: str) -> list[UnitView]:
        """The units that can be chosen, with their ranks taken down."""
        if type_ not in self._free:
            holds, weighs = self._holds.get(type_), "efficiency" in self._weighers
            free = [unit for unit in self._cycle.free(type_) if unit.id not in self._named]
            self._free[type_] = [unit for unit in free if holds is None or holds.is_known(unit.id)]
            self._ranks[type_] = {
                unit.id: Rank(_readiness(unit), -efficiency(unit.properties) if weighs else 0.0, place)
                for place, unit in enumerate(self._free[type_])
            }
        return self._free[type_]

    def _key(self, end: Instant, *, reserved: bool) -> Key:
        """Lowest is best: what no reservation holds before ``end``, what is ready soonest, then what weighers say; when
        it is needed again is no concern of a lease that has ``reserved``.
        """
        now = self._now
        order = [name for name in self._weighers if not (reserved and name == "free_time")]
        first = order[:1] == ["free_time"]

        def key(due: Instant | None, rank: Rank) -> tuple[float, ...]:
            needed = 0.0 if due is None or "free_time" not in order else 1 / (1 + max(0, due - now))
            weighed = (needed, rank.waste) if first else (rank.waste, needed)
            return (due is not None and due < end, rank.ready, *weighed, rank.place)

        return key


def _readiness(unit: UnitView) -> int:
    if unit.power == "on":
        return int(unit.state != "free")
    return 2 if unit.power in _COMING else 3


_COMING = ("starting", "resuming")
_DARK = ("suspended", "off", "suspending", "stopping", "unknown")
"""Powers from which a unit can be switched on, best first. One whose power is unknown may well be on: it is not counted
as such, as a lease would wait for it, and is switched off once more."""
_AGAIN_MAX: Final = 16
"""The most intervals from one attempt to switch off a unit whose power is unknown to the next."""


class _Type:
    """The units of one type."""

    def __init__(self, type_: str, settings: EnergySettings) -> None:
        self._type = type_
        self._settings = settings
        self.forecast: Forecast = make_part("forecast", settings.forecast, settings.forecast_settings, "forecast")
        self._manager: PowerManager = PowerManager(settings, self.forecast)
        self.holds = EnergyHolds(settings.weighers)
        self._decided = -1
        self._units: Sequence[UnitView] = ()
        self._seen: dict[str, UnitView] = {}
        self._dark: set[str] = set()
        self._again: dict[str, tuple[int, int]] = {}

    def look(self, cycle: AuthorityCycle) -> None:
        """Take note of how the units are, and of what leases have and will need."""
        now, manager = cycle.now, self._manager
        self._units = [unit for unit in cycle.units(self._type) if unit.state != "out"]
        self.holds.look(now, self._units, cycle.booked(self._type), cycle.demands, partial(self._able, cycle))
        seen = self._seen
        for unit in self._units:
            if seen.get(unit.id) == unit:
                continue
            seen[unit.id] = unit
            if unit.power != "on":
                manager.checks.forget(unit.id)
            elif unit.state == "free" and not unit.lease:
                manager.checks.idle(unit.id, now)
            else:
                manager.checks.busy(unit.id, now)
            if unit.power == "unknown":
                manager.unsure(unit.id)
            if unit.power in _DARK:
                self._dark.add(unit.id)
            elif unit.id in self._dark:
                self._dark.discard(unit.id)
                manager.woken(unit.id, now)

    def _able(self, cycle: AuthorityCycle, filter_: str, classes: frozenset[bytes]) -> set[str]:
        """The units of these classes that a filter accepts; all of them where it can't be read: it is refused when the
        term begins, with what is wrong with it.
        """
        try:
            accepted = cycle.units(self._type, filter_)
        except FilterError:
            accepted = cycle.units(self._type)
        return {unit.id for unit in accepted if not classes or not classes.isdisjoint(unit.classes)}

    def switch(self, now: Instant, taken: set[str]) -> list[AuthorityDecision]:
        """What is to be switched: once in every interval, but what reservations need, as soon as they need it."""
        for name in taken:
            self._manager.checks.busy(name, now)
            self._seen.pop(name, None)
        soon, interval = now + self._settings.lookahead, now // self._settings.decide
        switching: Switching = Switching()
        again: list[str] = []
        if interval > self._decided:
            self._decided = interval
            switching = self._manager.decide(now, self._fleet(now, taken))
            for name in switching.off:  # looked at once more, should the site not do it
                self._seen.pop(name, None)
            again = [] if switching.on else self._once_more(interval, taken.union(self.holds.before(soon)))
        elif (missing := self.holds.peak(now, soon) - self._on(taken)) > 0:
            switching = self._manager.wake(missing, self._fleet(now, taken))
        # Those that a filter has picked for a reservation are needed whatever the number of those that are on; two that
        # follow each other may hold one unit. One that is given comes on with its lease, which may have to wait.
        given = taken.union(unit.id for unit in self._units if unit.lease)
        held = [name for name in self.holds.before(soon) if self._is_dark(name, given)]
        on: list[AuthorityDecision] = [Power(name, "on", "needed") for name in dict.fromkeys((*switching.on, *held))]
        to = "suspend" if switching.suspend else "off"
        off = [Power(name, to, "idle") for name in switching.off]
        return [*on, *off, *(Power(name, "off", "may still be on") for name in again)]

    def _once_more(self, interval: int, needed: set[str]) -> list[str]:
        """Units that could not be switched off, which may be on for all that is known: they are to go off in this
        interval, the next one, and then after twice as many each time: a BMC that does not answer now may do so later.
        """
        before, due = self._again, []
        self._again = {}
        for unit in self._units:
            if unit.power in ("unknown", "stopping"):
                at, wait = self._again[unit.id] = before.get(unit.id, (interval, 1))
                spare = unit.state == "free" and not unit.lease and unit.id not in needed
                if unit.power == "unknown" and spare and interval >= at:
                    due.append(unit.id)
                    self._again[unit.id] = interval + wait, min(2 * wait, _AGAIN_MAX)
        return due

    def _is_dark(self, name: str, taken: set[str]) -> bool:
        return name in self._dark and name not in taken

    def _on(self, taken: set[str]) -> int:
        return sum(unit.power not in _DARK or unit.id in taken for unit in self._units)

    def _fleet(self, now: Instant, taken: set[str]) -> Fleet:
        soon = now + self._settings.lookahead
        held = set(self.holds.before(soon))
        free = [unit for unit in self._units if unit.state == "free" and not unit.lease and unit.id not in taken]
        return Fleet(
            in_use=len(self._units) - len(free),
            reserved=self.holds.peak(now, soon),
            on=self._on(taken),
            idle=_idle(free, held),
            dark=_dark(free, held),
            next_due=self.holds.first_after(soon),
        )


def _idle(free: Iterable[UnitView], held: Container[str]) -> Iterator[str]:
    """Those that can be switched off, ordered only when somebody asks."""
    on = [unit for unit in free if unit.power == "on" and unit.id not in held]
    yield from (unit.id for unit in reversed(_best(on)))


def _dark(free: Iterable[UnitView], held: Container[str]) -> Iterator[str]:
    """Those that can be switched on, ordered only when somebody asks."""
    dark = _best(unit for unit in free if unit.power in _DARK)
    dark.sort(key=lambda unit: (unit.id not in held, _DARK.index(unit.power)))
    yield from (unit.id for unit in dark)


def _best(units: Iterable[UnitView]) -> list[UnitView]:
    return sorted(units, key=lambda unit: -efficiency(unit.properties))
