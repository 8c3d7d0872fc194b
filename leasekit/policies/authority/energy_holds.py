"""Which units reservations are to get: kept from turn to turn, so that they are switched on in time.

A site counts the units of a reservation, and only chooses them when its term begins. Here they are chosen beforehand,
as far as can be: units that are free throughout the term and that its filter accepts. A choice stands until one of its
units is not to be had any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from leasekit.core.filters import Filter, FilterError, parse_filter
from leasekit.core.mappers import Demand, UnitView
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import UnitTimetable
from leasekit.policies.authority.first_fit import FILTER, acceptable
from leasekit.policies.authority.weighers import Weigher, efficiency

_NOW: Final = "now"


class Holds:
    """The reservations of one type of units, and who holds which unit when."""

    def __init__(self, weighers: Sequence[Weigher]) -> None:
        self._by_efficiency = "efficiency" in weighers
        self._chosen: dict[tuple[str, Instant], tuple[str, ...]] = {}
        self._table = UnitTimetable()
        self._known: set[str] = set()
        self._bookings: list[Demand] = []
        self._now: list[Demand] = []
        self._given = 0
        self._by_lease: dict[str, list[tuple[str, Instant]]] = {}
        self._by_unit: dict[str, set[tuple[str, Instant]]] = {}

    # -- what there is -----------------------------------------------------------------------------------------

    def look(
        self, now: Instant, units: Sequence[UnitView], booked: Sequence[Demand], demands: Sequence[Demand]
    ) -> None:
        """Make the timetable anew from what leases have and will need, keeping what was chosen."""
        table = self._table = UnitTimetable()
        for unit in units:
            table.add_unit(unit.id)
        self._known = {unit.id for unit in units}
        self._now = [demand for demand in booked if demand.held and demand.op == "held"]
        for number, demand in enumerate(self._now):
            mine = [
                name for name in demand.held if name in self._known and table.is_free(name, _from(now, demand.term))
            ]
            if mine:
                table.reserve((_NOW, number), mine, _from(now, demand.term))
        self._bookings = [demand for demand in booked if demand.op != "held"]
        waiting = [demand for demand in demands if demand.units > 0]
        keys = {(demand.lease, demand.term.start): demand for demand in (*waiting, *self._bookings)}
        # A demand that was booked begins now: what was chosen for it is still its own, until it is given.
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if key in keys}
        ranked = sorted(units, key=lambda unit: -efficiency(unit.properties)) if self._by_efficiency else units
        for demand in waiting:
            key = (demand.lease, demand.term.start)
            if key in self._chosen:
                self._hold(key, demand, now, ranked)
        for demand in self._bookings:
            self._hold((demand.lease, demand.term.start), demand, now, ranked)
        self._by_lease, self._by_unit = {}, {}
        for key, chosen in self._chosen.items():
            self._by_lease.setdefault(key[0], []).append(key)
            for name in chosen:
                self._by_unit.setdefault(name, set()).add(key)

    def _hold(self, key: tuple[str, Instant], demand: Demand, now: Instant, units: Sequence[UnitView]) -> None:
        term, table = _from(now, demand.term), self._table
        before = [name for name in self._chosen.pop(key, ()) if name in self._known and table.is_free(name, term)]
        chosen = before[: demand.units]
        if len(chosen) < demand.units:
            free = set(table.free(term)).difference(chosen)
            filter_ = _filter(demand)
            for unit in units:
                if len(chosen) == demand.units:
                    break
                if unit.id in free and acceptable(unit, filter_):
                    chosen.append(unit.id)
        if chosen:
            table.reserve(key, chosen, term)
            self._chosen[key] = tuple(chosen)

    # -- asking ------------------------------------------------------------------------------------------------

    def is_known(self, unit: str) -> bool:
        """Whether it is a unit of the type that is in service."""
        return unit in self._known

    def of(self, lease: str) -> tuple[str, ...]:
        """The units that are held for a lease's next term."""
        return next((self._chosen[key] for key in self._by_lease.get(lease, ())), ())

    def next_due(self, unit: str, now: Instant) -> Instant | None:
        """When the next reservation of the unit begins."""
        return self._table.next_reservation(unit, now)

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
        given = dict.fromkeys(units)
        losers = set(self._by_lease.get(lease, ())) if reserved else set()
        losers.update(key for name in given for key in self._by_unit.get(name, ()) if key[1] < term.end)
        freed = [name for key in sorted(losers) for name in self._let_go(key)]
        free = [name for name in given if self._table.is_free(name, term)]
        if free:
            self._given += 1
            self._table.reserve((_NOW, -self._given), free, term)
            self._now.append(Demand(lease, "", "held", "", 0, tuple(free), (), term, {}))
        return freed

    def _let_go(self, key: tuple[str, Instant]) -> tuple[str, ...]:
        chosen = self._chosen.pop(key)
        self._by_lease[key[0]].remove(key)
        for name in chosen:
            self._by_unit[name].discard(key)
        if key in self._table:
            self._table.release(key)
        return chosen


def _from(now: Instant, term: Term) -> Term:
    start = max(now, term.start)
    return Term(start, max(term.end, start + 1))


def _filter(demand: Demand) -> Filter | None:
    text = demand.properties.get(FILTER, "")
    try:
        return parse_filter(text) if text else None
    except FilterError:
        return None  # it is refused when its term begins, with what is wrong
