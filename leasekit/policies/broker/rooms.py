"""What is left of each delegation while a broker's mapper decides: a scratch copy of the books for one turn.

A turn books what it grants, so that the next request sees what is left. Requests come in bursts that want the same
term; a :class:`Room` therefore remembers what is free over the last term that it was asked about, counts down, and
books the burst as one reservation when another term is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from leasekit.core.mappers import BrokerCycle, PendingRequest, Source
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable import Timetable

FLATTEN_FROM = 64
"""From how many different terms of one type on a turn considers working on a flat copy instead of the view.

A view is made in no time but slows down with each thing booked in it: n bookings cost about n * n / 2 steps. A copy
costs one step for each step of the timetable to come."""


class Room:
    """One delegation during one turn."""

    __slots__ = ("_left", "_source", "_table", "_taken", "_term", "id", "site", "span", "units")

    def __init__(self, source: Source, table: Timetable) -> None:
        self.id = source.id
        self.site = source.site
        self.units = source.units
        self.span = source.term
        self._source = source
        self._table = table
        self._term: Term | None = None
        self._left = 0
        self._taken = 0

    def free(self, term: Term) -> int:
        """The units free throughout ``term``; 0 where the delegation doesn't cover it."""
        if term != self._term:
            self._book()
            self._term = term
            self._left = max(0, self._table.available(term)) if self.span.contains(term) else 0
        return self._left

    def take(self, units: int, term: Term) -> None:
        """Book units that :meth:`free` has just shown."""
        assert term == self._term and 0 < units <= self._left, "only what free() has shown is taken"
        self._left -= units
        self._taken += units

    def give(self, units: int, term: Term) -> None:
        """Free units that a lease had booked before this turn."""
        self._settle()
        self._table.add_capacity(term, units)

    def earliest(self, units: int, length: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` with ``units`` free for ``length`` ms, or None."""
        not_before, not_after = max(not_before, self.span.start), min(not_after, self.span.end - length)
        if units > self.units or not_before > not_after:
            return None
        self._book()
        return self._table.earliest(units, length, not_before, not_after)

    def rises(self, window: Term) -> list[Instant]:
        """The instants within ``window``, its start left out, from which on more is free than just before."""
        self._book()
        found: list[Instant] = []
        before: int | None = None
        for term, reserved, capacity in self._table.steps(window):
            free = capacity - reserved
            if before is not None and free > before:
                found.append(term.start)
            before = free
        return found

    def covers(self, length: Duration, not_before: Instant, not_after: Instant) -> bool:
        """Whether the delegation covers a term of that length with a start in ``[not_before, not_after]``."""
        return max(not_before, self.span.start) <= min(not_after, self.span.end - length)

    def _book(self) -> None:
        if self._taken:
            assert self._term is not None, "units are taken over a term"
            # take() has checked that they are there.
            self._table.reserve(object(), self._taken, self._term, force=True)
            self._taken = 0

    def _settle(self) -> None:
        self._book()
        self._term = None


class Rooms:
    """All delegations during one turn, by type."""

    def __init__(self, cycle: BrokerCycle) -> None:
        self._sources = cycle.sources
        self._rooms: dict[str, list[Room]] = {}
        self._terms = _distinct_terms(cycle.requests)

    def of_type(self, type_: str) -> Sequence[Room]:
        """The rooms of a type, in the order of their delegations' ids."""
        rooms = self._rooms.get(type_)
        if rooms is None:
            terms = self._terms.get(type_, ())
            rooms = self._rooms[type_] = [Room(source, _workable(source, terms)) for source in self._sources(type_)]
        return rooms

    def get(self, type_: str, id_: str) -> Room | None:
        """The room of one delegation, or None if it is over."""
        return next((room for room in self.of_type(type_) if room.id == id_), None)


def _distinct_terms(requests: Sequence[PendingRequest]) -> dict[str, set[Term]]:
    found: dict[str, set[Term]] = {}
    if len(requests) >= FLATTEN_FROM:
        for request in requests:
            found.setdefault(request.type, set()).add(request.term)
    return found


def _workable(source: Source, terms: set[Term] | tuple[()]) -> Timetable:
    """The source's view, or a flat copy of what is to come if that will be cheaper for so many different terms."""
    if len(terms) < FLATTEN_FROM:
        return source.free
    begin = min(term.start for term in terms)
    if begin >= source.term.end:
        return source.free
    limit = len(terms) ** 2 // 5
    steps = list(islice(source.free.steps(Term(begin, source.term.end)), limit + 1))
    if len(steps) > limit:
        return source.free
    most = max(0, *(capacity - reserved for _, reserved, capacity in steps))
    flat = Timetable(most)
    for term, reserved, capacity in steps:
        if capacity - reserved < most:
            flat.reserve(term, most - (capacity - reserved), term, force=True)
    return flat
