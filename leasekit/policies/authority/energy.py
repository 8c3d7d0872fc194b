"""A site's energy manager: leases get the units that waste least, and units that nobody needs are switched off.

Which units a lease gets, the weighers say (:mod:`.weighers`). When units are switched, the rule says
(:mod:`.energy_plan`); :mod:`.energy_holds` keeps for each reservation the units that it is to get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from leasekit.core.mappers import Assign, AuthorityCycle, AuthorityDecision, Demand, Power, Refuse, UnitView, Wake
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.energy_holds import Holds
from leasekit.policies.authority.energy_plan import Fleet, PowerManager, PowerSettings, Switching
from leasekit.policies.authority.first_fit import Turn, acceptable
from leasekit.policies.authority.weighers import WEIGHERS, Weigher, efficiency
from leasekit.policies.registry import make_part


def _weighers(_: object, __: object, value: tuple[str, ...]) -> None:
    wrong = [name for name in value if name not in WEIGHERS]
    if wrong or len(set(value)) != len(value):
        raise ValueError(f"found {', '.join(value)}, expected some of {', '.join(WEIGHERS)}, each once")


@attrs.frozen(kw_only=True)
class EnergySettings(PowerSettings):
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
    watches: ClassVar[bool] = True

    def __init__(self, settings: EnergySettings | None = None) -> None:
        self.settings = settings or EnergySettings()
        self._types = {type_: _Type(type_, self.settings) for type_ in self.settings.types}

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Fill every demand, then see to the power of what is left."""
        now, check = cycle.now, self.settings.check
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
        return [*decisions, Wake((now // check + 1) * check)] if self._types else decisions


class _Weighed(Turn):
    """A turn in which the best units go first."""

    def __init__(self, cycle: AuthorityCycle, weighers: Sequence[Weigher], holds: Mapping[str, Holds]) -> None:
        super().__init__(cycle)
        self._now = cycle.now
        self._weighers = weighers
        self._holds = holds
        self._demand: Demand | None = None

    def fill(self, demand: Demand) -> Assign | Refuse:
        """As first fit's, for this demand."""
        self._demand = demand
        return super().fill(demand)

    def _next(self, type_: str, count: int, filter_: Any) -> list[str]:
        demand, holds = self._demand, self._holds.get(type_)
        assert demand is not None, "only called to fill a demand"
        if count <= 0:
            return []
        free = list(self._offered(type_, filter_))
        mine: tuple[str, ...] = ()
        term = Term(self._now, max(demand.term.end, self._now + 1))
        if holds is not None:
            mine = holds.of(demand.lease)
            free = [unit for unit in free if holds.is_known(unit.id)]
        reserved = bool(mine)
        order = {unit.id: self._key(unit, place, holds, term, mine) for place, unit in enumerate(free)}
        chosen = sorted(order, key=order.__getitem__)[:count]
        self._gone.update(chosen)
        if holds is not None:
            holds.give(demand.lease, chosen, term, reserved=reserved)
        return chosen

    def _offered(self, type_: str, filter_: Any) -> Iterator[UnitView]:
        for unit in self._cycle.free(type_):
            if unit.id not in self._gone and unit.id not in self._named and acceptable(unit, filter_):
                yield unit

    def _key(
        self, unit: UnitView, place: int, holds: Holds | None, term: Term, mine: tuple[str, ...]
    ) -> tuple[float, ...]:
        """Lowest is best: what is held for the lease itself, what no reservation holds then, what is ready soonest."""
        key: list[float] = [unit.id not in mine]
        due = None if holds is None else holds.next_due(unit.id, self._now)
        key.append(due is not None and due < term.end)
        key.append(unit.state != "free" if unit.power == "on" else 2 if unit.power in _COMING else 3)
        for weigher in self._weighers:
            if weigher == "efficiency":
                key.append(-efficiency(unit.properties))
            elif not mine:
                key.append(0 if due is None else 1 / (1 + max(0, due - self._now)))
        return (*key, place)


_COMING = ("starting", "resuming")
_DARK = ("suspended", "off", "suspending", "stopping", "unknown")
"""Powers from which a unit can be switched on, best first."""


class _Type:
    """The units of one type."""

    def __init__(self, type_: str, settings: EnergySettings) -> None:
        self._type = type_
        self._settings = settings
        forecast = make_part("forecast", settings.forecast, settings.forecast_settings, "forecast")
        self._manager: PowerManager[str] = PowerManager(settings, forecast)
        self.holds = Holds(settings.weighers)
        self._decided = -1
        self._units: Sequence[UnitView] = ()
        self._efficient: list[UnitView] = []
        self._dark: set[str] = set()

    def look(self, cycle: AuthorityCycle) -> None:
        """Take note of how the units are, and of what leases have and will need."""
        now, manager = cycle.now, self._manager
        self._units = [unit for unit in cycle.units(self._type) if unit.state != "out"]
        self.holds.look(now, self._units, cycle.booked(self._type), cycle.demands)
        for unit in self._units:
            if unit.power != "on":
                manager.checks.forget(unit.id)
            elif unit.state == "free" and not unit.lease:
                manager.checks.idle(unit.id, now)
            else:
                manager.checks.busy(unit.id, now)
            if unit.power in _DARK:
                self._dark.add(unit.id)
            elif unit.id in self._dark:
                self._dark.discard(unit.id)
                manager.woken(unit.id, now)

    def switch(self, now: Instant, taken: set[str]) -> list[AuthorityDecision]:
        """What is to be switched: once in every interval, but what reservations need, as soon as they need it."""
        for name in taken:
            self._manager.checks.busy(name, now)
        fleet, interval = self._fleet(now, taken), now // self._settings.decide
        if interval > self._decided:
            self._decided = interval
            switching = self._manager.decide(now, fleet)
        elif fleet.on < fleet.reserved:
            switching = self._manager.wake(fleet.reserved - fleet.on, fleet)
        else:
            switching = Switching()
        # Those that a filter has picked for a reservation are needed whatever the number of those that are on.
        soon = now + self._settings.lookahead
        held = [name for name in self.holds.before(soon) if name not in switching.on and self._is_dark(name, taken)]
        on: list[AuthorityDecision] = [Power(name, "on", "needed") for name in (*switching.on, *held)]
        to = "suspend" if switching.suspend else "off"
        return [*on, *(Power(name, to, "idle") for name in switching.off)]

    def _is_dark(self, name: str, taken: set[str]) -> bool:
        return name in self._dark and name not in taken

    def _fleet(self, now: Instant, taken: set[str]) -> Fleet[str]:
        soon = now + self._settings.lookahead
        held = set(self.holds.before(soon))
        free = [unit for unit in self._units if unit.state == "free" and not unit.lease and unit.id not in taken]
        best = sorted(free, key=lambda unit: -efficiency(unit.properties))
        dark = [unit for unit in best if unit.power in _DARK]
        dark.sort(key=lambda unit: (unit.id not in held, _DARK.index(unit.power)))
        on = sum(unit.power not in _DARK or unit.id in taken for unit in self._units)
        return Fleet(
            in_use=len(self._units) - len(free),
            reserved=self.holds.peak(now, soon),
            on=on,
            idle=[unit.id for unit in reversed(best) if unit.power == "on" and unit.id not in held],
            dark=[unit.id for unit in dark],
            next_due=self.holds.first_after(soon),
        )
