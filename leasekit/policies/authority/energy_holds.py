"""Which units reservations are to get: kept from turn to turn, so that they are switched on in time.

A site counts the units of a reservation, and only chooses them when its term begins. Here they are chosen beforehand,
as far as can be: units that are free throughout the term and that its filter accepts. A choice stands until one of its
units is not to be had any more, or a reservation whose filter accepts that unit finds no other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from operator import itemgetter
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from leasekit.core.efficiency import efficiency
from leasekit.core.mappers import Demand, UnitView
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.first_fit import FILTER

K = TypeVar("K")
Weigher: TypeAlias = Literal["free_time", "efficiency"]
WEIGHERS: Final[tuple[Weigher, ...]] = ("free_time", "efficiency")
"""Which unit is better than others that will do as well: the one that is free for longest until its next reservation,
so that it need not be vacated for that (of no concern to leases that are reservations themselves); the one that
computes most with a watt.
"""
_END = itemgetter(1)


class Occupancy(Generic[K]):
    """Units held under keys over half-open terms; a unit that is not known is free.

    What holds a unit never overlaps: look first, with :meth:`is_free`. Terms that touch don't overlap.
    """

    __slots__ = ("_by_unit", "_held")

    def __init__(self) -> None:
        self._held: dict[K, tuple[Sequence[str], Instant]] = {}
        self._by_unit: dict[str, list[tuple[Instant, Instant, K]]] = {}

    def hold(self, key: K, units: Sequence[str], term: Term) -> None:
        """Hold units that are free over ``term`` under a key that is not in use."""
        assert key not in self._held, f"{key!r} holds units already"
        self._held[key] = (units, term.start)
        for unit in units:
            assert self.is_free(unit, term), f"unit {unit!r} is held"
            insort(self._by_unit.setdefault(unit, []), (*term, key))

    def release(self, key: K) -> None:
        """Give up what is held under a key, if anything is."""
        units, start = self._held.pop(key, ((), 0))
        for unit in units:
            held = self._by_unit[unit]
            del held[bisect_left(held, (start,))]

    def __len__(self) -> int:
        """The number of keys that hold units."""
        return len(self._held)

    def holders(self, unit: str, term: Term) -> Iterator[K]:
        """Who holds the unit at some instant of ``term``, in order of time."""
        held = self._by_unit.get(unit, ())
        for i in range(bisect_right(held, term.start, key=_END), len(held)):
            start, _, key = held[i]
            if start >= term.end:
                return
            yield key

    def is_free(self, unit: str, term: Term) -> bool:
        """Whether nobody holds the unit at any instant of ``term``."""
        held = self._by_unit.get(unit)
        if not held:
            return True
        i = bisect_right(held, term.start, key=_END)
        return i == len(held) or held[i][0] >= term.end

    def next_start(self, unit: str, instant: Instant) -> Instant | None:
        """The first instant from ``instant`` on at which somebody begins to hold the unit, or None."""
        held = self._by_unit.get(unit, ())
        i = bisect_left(held, (instant,))
        return held[i][0] if i < len(held) else None


_NOW: Final = "now"
_Key: TypeAlias = tuple[str, Instant]
"""A reservation: whose it is, and when it begins."""


class EnergyHolds:
    """The reservations of one type of units, and who holds which unit when."""

    def __init__(self, weighers: Sequence[Weigher]) -> None:
        self._by_efficiency = "efficiency" in weighers
        self._chosen: dict[_Key, tuple[str, ...]] = {}
        self._table: Occupancy[_Key] = Occupancy()
        self._units: list[str] = []
        self._known: set[str] = set()
        self._booked: Sequence[Demand] = ()
        self._settled = False
        """Whether every reservation has its units, and nothing was asked for or given since."""
        self._bookings: list[Demand] = []
        self._now: list[Demand] = []
        self._given = 0
        self._by_lease: dict[str, list[_Key]] = {}
        self._by_unit: dict[str, set[_Key]] = {}

    # -- what there is -----------------------------------------------------------------------------------------

    def look(
        self,
        now: Instant,
        units: Sequence[UnitView],
        booked: Sequence[Demand],
        demands: Sequence[Demand],
        accepted: Callable[[str, frozenset[bytes]], Set[str]],
    ) -> None:
        """Make the timetable anew from what leases have and will need, keeping what was chosen. ``accepted`` are the
        units of some classes that a filter accepts.
        """
        names = [unit.id for unit in units]
        same = self._settled and names == self._units and booked == self._booked
        if same and not demands and all(demand.term.end > now for demand in booked):
            return  # as mostly at a quiet site: nobody has or wants anything else than before
        table = self._table = Occupancy()
        self._units, self._known, self._booked = names, set(names), booked
        self._now = [demand for demand in booked if demand.held and demand.op == "held"]
        for number, demand in enumerate(self._now):
            mine = [
                name for name in demand.held if name in self._known and table.is_free(name, _from(now, demand.term))
            ]
            if mine:
                table.hold((_NOW, number), mine, _from(now, demand.term))
        self._bookings = [demand for demand in booked if demand.op != "held"]
        # A demand that was booked begins now: what was chosen for it is still its own, until it is given.
        begun = {self._key(demand, now): demand for demand in demands if demand.units > 0}
        reserved = {key: demand for key, demand in begun.items() if key in self._chosen}
        reserved.update((self._key(demand, now), demand) for demand in self._bookings)
        self._choose(reserved, now, units, lru_cache(accepted))
        self._by_lease, self._by_unit = {}, {}
        self._settled = not demands and all(
            len(self._chosen.get(key, ())) == demand.units for key, demand in reserved.items()
        )
        for key, chosen in self._chosen.items():
            self._by_lease.setdefault(key[0], []).append(key)
            for name in chosen:
                self._by_unit.setdefault(name, set()).add(key)

    def _key(self, demand: Demand, now: Instant) -> _Key:
        """Under what a demand's choice is kept: its lease, and when it begins. One that waits to grow says when its
        lease began, and not when its time had come.
        """
        own = (demand.lease, demand.term.start)
        if demand.op == "new" or demand.term.start > now:
            return own
        return next((key for key in self._by_lease.get(demand.lease, ()) if key[1] <= now), own)

    def _choose(
        self,
        reserved: Mapping[_Key, Demand],
        now: Instant,
        units: Sequence[UnitView],
        accepted: Callable[[str, frozenset[bytes]], Set[str]],
    ) -> None:
        """Keep what is still to be had of what was chosen, then choose what is missing: first for those that are
        particular about it.
        """
        before, self._chosen = self._chosen, {}
        terms = {key: _from(now, demand.term) for key, demand in reserved.items()}
        for key, demand in reserved.items():
            kept = [
                name for name in before.get(key, ()) if name in self._known and self._table.is_free(name, terms[key])
            ]
            self._hold(key, tuple(kept[: demand.units]), terms[key])
        if all(len(self._chosen.get(key, ())) == demand.units for key, demand in reserved.items()):
            return
        ranked = sorted(units, key=lambda unit: -efficiency(unit.properties)) if self._by_efficiency else units
        there = {class_ for unit in units for class_ in unit.classes}
        wanted = {key: frozenset(class_ for class_, _ in demand.classes) for key, demand in reserved.items()}
        content = {
            key
            for key, demand in reserved.items()
            if not demand.properties.get(FILTER) and (not wanted[key] or wanted[key] >= there)
        }
        for key in sorted(reserved, key=content.__contains__):
            missing = reserved[key].units - len(self._chosen.get(key, ()))
            if missing > 0:
                filter_ = reserved[key].properties.get(FILTER, "")
                mine = None if key in content else accepted(filter_, wanted[key])
                if mine is not None and not mine:
                    continue
                usable = (unit.id for unit in ranked if mine is None or unit.id in mine)
                self._add(key, missing, terms, usable, set() if mine is None else content)

    def _add(
        self, key: _Key, missing: int, terms: Mapping[_Key, Term], able: Iterable[str], content: Set[_Key]
    ) -> None:
        """Choose so many more of ``able``: of those that are free, then of those of reservations that are ``content``
        with any unit.
        """
        term = terms[key]
        holders: dict[str, list[_Key]] = {}
        more: list[str] = []
        for name in able:
            holders[name] = list(self._table.holders(name, term))
            if not holders[name]:
                more.append(name)
            if len(more) == missing:
                break
        else:
            taken = [name for name, others in holders.items() if others and all(other in content for other in others)]
            more += taken[: missing - len(more)]
        for name in more:
            for other in holders[name]:
                self._hold(other, tuple(one for one in self._chosen[other] if one != name), terms[other])
        self._hold(key, (*self._chosen.get(key, ()), *more), term)

    def _hold(self, key: _Key, names: tuple[str, ...], term: Term) -> None:
        """These are a reservation's units now, instead of those that it had."""
        self._table.release(key)
        self._chosen.pop(key, None)
        if names:
            self._table.hold(key, names, term)
            self._chosen[key] = names

    # -- asking ------------------------------------------------------------------------------------------------

    def is_known(self, unit: str) -> bool:
        """Whether it is a unit of the type that is in service."""
        return unit in self._known

    def of(self, lease: str) -> tuple[str, ...]:
        """The units that are held for a lease's next term."""
        return next((self._chosen[key] for key in self._by_lease.get(lease, ())), ())

    def next_due(self, unit: str, now: Instant) -> Instant | None:
        """When the next reservation of the unit begins."""
        return self._table.next_start(unit, now)

    def before(self, until: Instant) -> Iterator[str]:
        """The units that reservations hold from before ``until`` on."""
        for (_, start), chosen in self._chosen.items():
            if start < until:
                yield from chosen

    def first_after(self, instant: Instant) -> Instant | None:
        """When the first reservation begins that does so at ``instant`` or later."""
        return min((demand.term.start for demand in self._bookings if demand.term.start >= instant), default=None)

    def peak(self, now: Instant, until: Instant) -> int:
        """How many units leases have at once, at most, from ``now`` to ``until``, by their terms as they stand."""
        changes: list[tuple[Instant, int]] = []
        for demand in self._now:
            changes += [(now, len(demand.held)), (demand.term.end, -len(demand.held))]
        for demand in self._bookings:
            if demand.term.start < until:
                changes += [(max(now, demand.term.start), demand.units), (demand.term.end, -demand.units)]
        most = count = 0
        for at, change in sorted(changes):
            if at >= until:
                break
            count += change
            most = max(most, count)
        return most

    # -- giving ------------------------------------------------------------------------------------------------

    def give(self, lease: str, units: Iterable[str], term: Term, *, reserved: bool) -> list[str]:
        """A lease gets units over a term. A reservation that loses one of them to it is chosen another at the next
        turn; until then it holds none. Returns the units that reservations have let go of.
        """
        self._settled = False
        given = dict.fromkeys(units)
        losers = set(self._by_lease.get(lease, ())) if reserved else set()
        losers.update(key for name in given for key in self._by_unit.get(name, ()) if key[1] < term.end)
        freed = [name for key in sorted(losers) for name in self._let_go(key)]
        free = [name for name in given if self._table.is_free(name, term)]
        if free:
            self._given += 1
            self._table.hold((_NOW, -self._given), free, term)
            self._now.append(Demand(lease, "", "held", "", 0, tuple(free), (), term, {}))
        return freed

    def _let_go(self, key: _Key) -> tuple[str, ...]:
        chosen = self._chosen.pop(key)
        self._by_lease[key[0]].remove(key)
        for name in chosen:
            self._by_unit[name].discard(key)
        self._table.release(key)
        return chosen


def _from(now: Instant, term: Term) -> Term:
    start = max(now, term.start)
    return Term(start, max(term.end, start + 1))
