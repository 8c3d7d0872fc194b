"""The timetable that every broker and authority decides with: how many units of a type are free when.

Two step functions say everything: what is free and what there is. What is reserved is the difference. A
reservation is taken from the first over its term; putting units in or out of service adds to both.

Units of several classes have one timetable for each class, asked and booked together. How many of a lease's units are
of which class is settled when it is booked, for all of its term: so what is free over a term is the sum of what is
free throughout of each class, and not the least of the sums.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import TypeAlias

from leasekit.core.profile import BEGIN, FOREVER, Layer, Profile, Segment, StepFunction, coalesced
from leasekit.core.properties import Counts, count_of, counts
from leasekit.core.time import Duration, Instant, Term


class Ends:
    """A heap of (end, key). Released and changed reservations leave stale entries, which cost nothing to leave.

    Each entry carries a number that grows, so that equal ends never compare keys, which need not be comparable.
    """

    __slots__ = ("_heap", "_number")

    def __init__(self, ends: Iterable[tuple[Instant, Hashable]]) -> None:
        self._heap = [(end, number, key) for number, (end, key) in enumerate(ends)]
        self._number = len(self._heap)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Entries, stale ones included: the owner makes a new index when most of them are."""
        return len(self._heap)

    def push(self, end: Instant, key: Hashable) -> None:
        """Note that ``key`` ends at ``end``."""
        heapq.heappush(self._heap, (end, self._number, key))
        self._number += 1

    def pop_until(self, instant: Instant, end_of: Callable[[Hashable], Instant | None]) -> Iterator[Hashable]:
        """The keys that end at or before ``instant``, first ends first; ``end_of`` says what is true of a key now."""
        heap = self._heap
        while heap and heap[0][0] <= instant:
            end, _, key = heapq.heappop(heap)
            if end_of(key) == end:
                yield key


Held: TypeAlias = tuple[int, Term]
"""A reservation: units and term."""


class Shortfall(Exception):
    """A reservation doesn't fit.

    ``term`` is the first stretch of the wanted term that is short, from its first short instant until enough is
    free again or the wanted term ends; ``free`` is the least number of units that could be had there (negative
    where it is overcommitted); ``wanted`` is what was asked for.
    """

    def __init__(self, term: Term, free: int, wanted: int) -> None:
        super().__init__(term, free, wanted)
        self.term = term
        self.free = free
        self.wanted = wanted

    def __str__(self) -> str:
        return f"{self.wanted} units wanted, {self.free} free in [{self.term.start}, {self.term.end})"


class Timetable:
    """Units of one type over half-open terms: what is reserved, what is free, and when something fits.

    Terms that touch don't collide. Reserving, releasing, changing and asking about a point or a term cost
    O(log n) in the number of reservations stored. Keys are the caller's and must be hashable.

    Methods raise ``ValueError`` for empty or reversed terms and for units below 1.
    """

    __slots__ = ("_capacity", "_ends", "_free", "_held")

    def __init__(self, capacity: int = 0) -> None:
        """A timetable with ``capacity`` units in service at all times; more is added with :meth:`add_capacity`."""
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}: it must be 0 or more")
        self._free: StepFunction = Profile(capacity)
        self._capacity: StepFunction = Profile(capacity)
        self._held: MutableMapping[Hashable, Held] = {}
        # Made when history is first forgotten: who never does that doesn't pay for it.
        self._ends: Ends | None = None

    @classmethod
    def _of(cls, free: StepFunction, capacity: StepFunction, held: MutableMapping[Hashable, Held]) -> Timetable:
        made = cls.__new__(cls)
        made._free, made._capacity, made._held, made._ends = free, capacity, held, None
        return made

    @classmethod
    def holding(cls, capacity: int, pieces: Iterable[tuple[int, Term]]) -> Timetable:
        """As if pieces of units and term, in order of time and apart, were reserved under 0, 1 and so on; in O(n)."""
        made = cls(capacity)
        made._held = dict(enumerate(pieces))
        steps = [(BEGIN, capacity)]
        for units, (start, end) in made._held.values():
            if steps[-1][0] == start:
                steps.pop()  # it touches the piece before
            if not steps or steps[-1][1] != capacity - units:
                steps.append((start, capacity - units))
            steps.append((end, capacity))
        made._free = Profile.of(steps)
        return made

    # -- changing it --------------------------------------------------------------------------------------------

    def add_capacity(self, term: Term, units: int) -> None:
        """Put ``units`` more in service over ``term``, or out of service if negative.

        Never refused: that a site has less than was promised is a fact; :meth:`overcommitted` says where.
        """
        start, end = _checked(term)
        self._free.add(start, end, units)
        self._capacity.add(start, end, units)

    def reserve(self, key: Hashable, units: int, term: Term, *, force: bool = False) -> None:
        """Hold ``units`` over ``term`` under ``key``, even beyond what is free if ``force`` is set.

        Raises :class:`Shortfall` if it doesn't fit and ``KeyError`` if the key is in use; nothing changes then.
        ``ValueError`` also for a term that ends before the history that was forgotten.
        """
        if key in self._held:
            raise KeyError(f"{key!r} is reserved already: change or release it")
        start, end = term
        if end <= start or units < 1 or end <= self._free.horizon:
            self._refuse(units, term)
        if not force and self._free.min(start, end) < units:
            raise self._shortfall(units, [(start, end, units, 0)])
        self._free.add(start, end, -units)
        self._held[key] = (units, term)
        if self._ends is not None:
            self._note_end(key, end)

    def release(self, key: Hashable) -> None:
        """Give up a reservation. Raises ``KeyError`` if there is none of that key."""
        units, (start, end) = self._held.pop(key)
        self._free.add(start, end, units)

    def change(self, key: Hashable, *, units: int | None = None, term: Term | None = None, force: bool = False) -> None:
        """Change the units or the term of a reservation, or both at once; it may use what it holds itself.

        Only what it would hold in addition must be free: to shrink or shorten is always possible, also where capacity
        was lost. Raises :class:`Shortfall`, whose ``free`` counts the reservation's own units, or ``KeyError``;
        nothing changes then.
        """
        had, was = self._held[key]
        units = had if units is None else units
        term = was if term is None else term
        start, end = term
        if end <= start or units < 1 or end <= self._free.horizon:
            self._refuse(units, term)
        if not force:
            pieces = _increments(had, was, units, term)
            if any(self._free.min(lo, hi) < more for lo, hi, more, _ in pieces):
                raise self._shortfall(units, pieces)
        self._free.add(was.start, was.end, had)
        self._free.add(start, end, -units)
        self._held[key] = (units, term)
        if self._ends is not None:
            self._note_end(key, end)

    def replace(self, old: Hashable, key: Hashable, units: int, term: Term) -> None:
        """Hold ``units`` over ``term`` under ``key`` in place of what ``old`` holds from the start of ``term`` on.

        As with :meth:`change`, only what it takes in addition must be free: less, or for less long, is always possible.
        Where ``old`` holds nothing (any more), it is as :meth:`reserve`. Raises :class:`Shortfall`, whose ``free``
        counts what ``old`` holds, or ``KeyError`` if ``key`` is in use; nothing changes then.
        """
        start, end = term
        had, was = self._held.get(old, (0, Term(start, start)))
        allowed = key not in self._held and end > max(start, self._free.horizon)  # else it is refused below
        pieces = _increments(had, was, units, term) if allowed else []
        if any(self._free.min(lo, hi) < more for lo, hi, more, _ in pieces):
            raise self._shortfall(units, pieces)
        self.reserve(key, units, term, force=True)
        self.end(old, start)

    def end(self, key: Hashable, at: Instant) -> None:
        """End a reservation at ``at``, if there is one of that key that goes on for longer.

        One of which nothing is left then vanishes: it had not begun, or what is left is forgotten history.
        """
        held = self._held.get(key)
        if held is None or at >= held[1].end:
            return
        if at <= max(held[1].start, self._free.horizon):
            self.release(key)
        else:
            self.change(key, term=Term(held[1].start, at))

    @property
    def horizon(self) -> Instant:
        """History before this instant is forgotten."""
        return self._free.horizon

    def forget_before(self, instant: Instant) -> None:
        """Drop history, so that a long run doesn't grow: reservations that end at or before ``instant`` vanish.

        Time before ``instant`` reads as ``instant`` does from now on. Raises ``TypeError`` on an overlay.
        """
        self._free.forget_before(instant)
        self._capacity.forget_before(instant)
        if self._ends is None:
            self._ends = self._index()
        for key in self._ends.pop_until(instant, self._end_of):
            del self._held[key]

    # -- reservations -------------------------------------------------------------------------------------------

    def get(self, key: Hashable) -> Held | None:
        """The units and the term held under ``key``, or None."""
        return self._held.get(key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def __len__(self) -> int:
        """The number of reservations."""
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, in the order in which they were reserved."""
        return iter(self._held)

    # -- asking -------------------------------------------------------------------------------------------------

    def available(self, term: Term) -> int:
        """The units free throughout ``term``: negative where it is overcommitted."""
        start, end = term
        if end <= start:
            _checked(term)
        return self._free.min(start, end)

    def free_at(self, instant: Instant) -> int:
        """The units free at an instant: negative where it is overcommitted."""
        return self._free.value(instant)

    def reserved_at(self, instant: Instant) -> int:
        """The units reserved at an instant."""
        return self._capacity.value(instant) - self._free.value(instant)

    def capacity_at(self, instant: Instant) -> int:
        """The units in service at an instant."""
        return self._capacity.value(instant)

    def earliest(self, units: int, duration: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` with ``units`` free for ``duration`` ms; None if none is.

        After a failed start the last obstacle in its term is looked for, not the first, so that each two
        attempts get on by at least ``duration``: O(window / duration * log n) at worst, whatever the load.
        """
        if units < 1 or duration < 1:
            raise ValueError(f"earliest fit of {units} units for {duration} ms: both must be 1 or more")
        free = self._free
        start, misses = free.first_at_least(not_before, units), 0
        while start <= not_after:
            end = start + duration
            clear = free.last_below(start, end, units)
            if clear <= start:
                return start
            start, misses = clear, misses + 1
            # What follows the obstacle may be short too. The next attempt finds that out by itself, mostly, for half
            # of what it costs to ask; asking now and then leaps over long stretches that are short throughout.
            if clear >= end and misses % 16 == 0:
                start = free.first_at_least(clear, units)
        return None

    def short_at(self, units: int, begin: Instant) -> Instant:
        """The first instant from ``begin`` on at which fewer than ``units`` are free."""
        return self._free.first_below(begin, units)

    def overcommitted(self) -> list[Term]:
        """The maximal periods in which more is reserved than is in service, in order."""
        found, start = [], self._free.first_below(self._free.horizon, 0)
        while start < FOREVER:
            stop = self._free.first_at_least(start, 0)
            found.append(Term(start, stop))
            start = self._free.first_below(stop, 0)
        return found

    def steps(self, window: Term) -> Iterator[tuple[Term, int, int]]:
        """Maximal stretches of constant figures within ``window``: term, units reserved, units in service.

        Don't change the timetable while the iterator is in use.
        """
        start, end = _checked(window)
        for lo, hi, capacity in self._capacity.segments(start, end):
            for a, b, reserved in coalesced((a, b, capacity - free) for a, b, free in self._free.segments(lo, hi)):
                yield Term(a, b), reserved, capacity

    def frees(self, window: Term) -> Iterator[Segment]:
        """Stretches of ``window`` in which equally many units are free: start, end and units, as :meth:`steps`."""
        return self._free.segments(*_checked(window))

    def utilisation(self, window: Term) -> float:
        """Unit-milliseconds reserved over unit-milliseconds in service; 0 where nothing is in service.

        Above 1 if overcommitted. O(steps in the window).
        """
        start, end = _checked(window)
        free = sum((hi - lo) * value for lo, hi, value in self._free.segments(start, end))
        capacity = sum((hi - lo) * value for lo, hi, value in self._capacity.segments(start, end))
        return (capacity - free) / capacity if capacity > 0 else 0.0

    # -- planning -----------------------------------------------------------------------------------------------

    def overlay(self) -> Timetable:
        """A what-if view in O(1): reads this timetable through, keeps its own changes, and never changes this one.

        It sees later changes of this timetable too, so a plan is good until then. Reservations of this
        timetable can be released and changed in the view. It is fast as long as its own changes are few.
        """
        return Timetable._of(Layer(self._free), Layer(self._capacity), _LayeredMap(self._held))

    def copy(self) -> Timetable:
        """An independent copy, in O(n). The copy of an overlay is another overlay of the same timetable."""
        held = self._held
        copied = held.copy() if isinstance(held, (_LayeredMap, dict)) else dict(held)
        return Timetable._of(self._free.copy(), self._capacity.copy(), copied)

    # -- parts --------------------------------------------------------------------------------------------------

    def _refuse(self, units: int, term: Term) -> None:
        """Raise what is wrong with a reservation."""
        _checked(term)
        if units < 1:
            raise ValueError(f"{units} units over [{term.start}, {term.end}): a reservation holds 1 or more")
        raise ValueError(
            f"term [{term.start}, {term.end}) lies in forgotten history: it must end after {self._free.horizon}"
        )

    def _index(self) -> Ends:
        return Ends((term.end, key) for key, (_, term) in self._held.items())

    def _end_of(self, key: Hashable) -> Instant | None:
        held = self._held.get(key)
        return None if held is None else held[1].end

    def _note_end(self, key: Hashable, end: Instant) -> None:
        assert self._ends is not None
        if len(self._ends) > 2 * len(self._held) + 64:
            # Most entries are stale: begin afresh, which the changes that made them stale have paid for.
            self._ends = self._index()
        else:
            self._ends.push(end, key)

    def _shortfall(self, units: int, pieces: list[tuple[Instant, Instant, int, int]]) -> Shortfall:
        """What to raise when one of the pieces (start, end, units wanted in addition, units held already) is short."""
        begin, stop, least = FOREVER, FOREVER, FOREVER
        for lo, hi, more, own in pieces:
            if begin == FOREVER:
                at = self._free.first_below(lo, more)
                if at >= hi:
                    continue
                begin = at
            elif lo == stop and self._free.value(lo) < more:
                at = lo
            else:
                break
            stop = min(self._free.first_at_least(at, more), hi)
            least = min(least, self._free.min(at, stop) + own)
            if stop < hi:
                break
        return Shortfall(Term(begin, stop), least, units)


class _LayeredMap(MutableMapping[Hashable, Held]):
    """A mapping read through, with own entries over it and removals of its entries hidden."""

    __slots__ = ("_base", "_hidden", "_own")

    def __init__(self, base: MutableMapping[Hashable, Held]) -> None:
        self._base = base
        self._own: dict[Hashable, Held] = {}
        # Keys of the base that are gone or replaced here; a dict for its order.
        self._hidden: dict[Hashable, None] = {}

    def __getitem__(self, key: Hashable) -> Held:
        if key in self._own:
            return self._own[key]
        if key in self._hidden:
            raise KeyError(key)
        return self._base[key]

    def __setitem__(self, key: Hashable, held: Held) -> None:
        if key in self._base:
            self._hidden[key] = None
        self._own[key] = held

    def __delitem__(self, key: Hashable) -> None:
        if key in self._own:
            del self._own[key]
        elif key in self._hidden:
            raise KeyError(key)
        else:
            if key not in self._base:
                raise KeyError(key)
            self._hidden[key] = None

    def __len__(self) -> int:
        return len(self._base) - sum(key in self._base for key in self._hidden.keys() | self._own) + len(self._own)

    def __iter__(self) -> Iterator[Hashable]:
        yield from (key for key in self._base if key not in self._hidden and key not in self._own)
        yield from self._own

    def copy(self) -> _LayeredMap:
        """An independent layer over the same base."""
        twin = _LayeredMap(self._base)
        twin._own, twin._hidden = self._own.copy(), self._hidden.copy()
        return twin


def _checked(term: Term) -> Term:
    if term.end <= term.start:
        what = "empty" if term.end == term.start else "reversed"
        raise ValueError(f"term [{term.start}, {term.end}) is {what}: its end must be later than its start")
    return term


def _increments(had: int, was: Term, units: int, term: Term) -> list[tuple[Instant, Instant, int, int]]:
    """Where a changed reservation needs more than it has: start, end, units more, units it has, in order of time."""
    pieces = [
        (term.start, min(term.end, was.start), units, 0),
        (max(term.start, was.start), min(term.end, was.end), units - had, had),
        (max(term.start, was.end), term.end, units, 0),
    ]
    return [piece for piece in pieces if piece[0] < piece[1] and piece[2] > 0]


class ClassedTimetable:
    """Timetables by class, in the order in which units are given out that may be of any (:meth:`sort`).

    It is asked as a :class:`Timetable`, and says of all classes together. Units that are booked by number are chosen
    (:meth:`pick`); those that are booked by class are these.
    """

    __slots__ = ("tables",)

    def __init__(self, tables: Mapping[bytes, Timetable]) -> None:
        self.tables = dict(tables)

    def of(self, classes: frozenset[bytes]) -> ClassedTimetable:
        """The same timetables, of some classes only: what is booked in one is booked in the other."""
        return ClassedTimetable({class_: table for class_, table in self.tables.items() if class_ in classes})

    def open(self, class_: bytes) -> Timetable:
        """The timetable of a class, which is new if there was none."""
        table = self.tables.get(class_)
        if table is None:
            table = self.tables[class_] = Timetable(0)
            if len(self.tables) > 1:
                table.forget_before(self.horizon)
        return table

    def sort(self, rank: Callable[[bytes], tuple[float, int, bytes]]) -> None:
        """Put the classes with the least ranks first."""
        self.tables = {class_: self.tables[class_] for class_ in sorted(self.tables, key=rank)}

    def close(self, kept: set[bytes]) -> None:
        """Drop the classes of which nothing is held, but for those that are ``kept``."""
        self.tables = {class_: table for class_, table in self.tables.items() if class_ in kept or len(table)}

    # -- booking -----------------------------------------------------------------------------------------------

    def pick(self, units: int, term: Term) -> Counts:
        """So many units that are free throughout ``term``, by class: of the first classes. Raises ``Shortfall``."""
        free: dict[bytes, int] = {}
        left = units
        for class_, table in self.tables.items():
            free[class_] = max(0, min(left, table.available(term)))
            left -= free[class_]
            if not left:
                return counts(free)
        raise Shortfall(term, units - left, units)

    def goes_on(self, kept: Counts, until: Instant, term: Term, accepted: Container[bytes]) -> dict[bytes, int]:
        """How many units of each class a lease can have over ``term`` that goes on with those that it has, ``kept``,
        which are booked for it up to ``until``; more than these of the classes that are ``accepted``. Those that it
        has stay its own also where more is booked than there is.
        """
        start, end = term
        inside = Term(start, min(until, end)) if until > start else None
        beyond = Term(max(start, until), end) if until < end else None
        found: dict[bytes, int] = {}
        for class_ in (*self.tables, *(class_ for class_, _ in kept if class_ not in self.tables)):
            own, table = count_of(kept, class_), self.tables.get(class_)
            free = [max(0, table.available(part)) if table is not None else 0 for part in (inside, beyond) if part]
            if inside:
                free[0] += own
            found[class_] = min(free) if class_ in accepted else min(own, *free)
        return found

    def reserve(self, key: Hashable, units: int | Counts, term: Term, *, force: bool = False) -> None:
        """As :meth:`Timetable.reserve`. A number that does not fit is forced on the largest class."""
        chosen = self._chosen(units, term, force)
        if not force:
            for class_, number in chosen:
                free = self.open(class_).available(term)
                if free < number:
                    raise Shortfall(term, free, number)
        for class_, number in chosen:
            self.open(class_).reserve(key, number, term, force=True)

    def _chosen(self, units: int | Counts, term: Term, force: bool) -> Counts:
        if not isinstance(units, int):
            return units
        try:
            return self.pick(units, term)
        except Shortfall:
            if not force or not self.tables:
                raise
            return ((next(iter(self.tables)), units),)

    def replace(self, old: Hashable, key: Hashable, units: Counts, term: Term) -> None:
        """As :meth:`Timetable.replace`, class by class."""
        for class_, number in units:  # all of them fit, or nothing is changed
            self.open(class_).overlay().replace(old, key, number, term)
        for class_, number in units:
            self.tables[class_].replace(old, key, number, term)
        self.end(old, term.start)

    def change(self, key: Hashable, *, term: Term, force: bool = False) -> None:
        """Change the term of a reservation: as :meth:`Timetable.change`."""
        held = [table for table in self.tables.values() if key in table]
        for table in held if not force else ():
            table.overlay().change(key, term=term)
        for table in held:
            table.change(key, term=term, force=True)

    def release(self, key: Hashable) -> None:
        """Give up a reservation. Raises ``KeyError`` if there is none of that key."""
        held = [table for table in self.tables.values() if key in table]
        if not held:
            raise KeyError(key)
        for table in held:
            table.release(key)

    def end(self, key: Hashable, at: Instant) -> None:
        """As :meth:`Timetable.end`."""
        for table in self.tables.values():
            table.end(key, at)

    def add_capacity(self, term: Term, units: int | Counts, sign: int = 1) -> None:
        """Put units in service over a term, or take them out (``sign`` -1)."""
        one_class = units if not isinstance(units, int) else ((next(iter(self.tables)), units),)
        for class_, number in one_class:
            self.open(class_).add_capacity(term, sign * number)

    def forget_before(self, instant: Instant) -> None:
        """As :meth:`Timetable.forget_before`."""
        for table in self.tables.values():
            table.forget_before(instant)

    # -- reservations ------------------------------------------------------------------------------------------

    def booked(self, key: Hashable) -> Counts:
        """How many units of each class are booked under ``key``."""
        held = ((class_, table.get(key)) for class_, table in self.tables.items())
        return counts((class_, one[0]) for class_, one in held if one is not None)

    def get(self, key: Hashable) -> tuple[int, Term] | None:
        """The units and the term held under ``key``, or None."""
        held = [one for table in self.tables.values() if (one := table.get(key)) is not None]
        return (sum(units for units, _ in held), held[0][1]) if held else None

    def __contains__(self, key: Hashable) -> bool:
        return any(key in table for table in self.tables.values())

    def __iter__(self) -> Iterator[Hashable]:
        return iter(dict.fromkeys(key for table in self.tables.values() for key in table))

    def __len__(self) -> int:
        """The number of reservations."""
        return sum(1 for _ in self) if len(self.tables) > 1 else sum(map(len, self.tables.values()))

    # -- asking ------------------------------------------------------------------------------------------------

    @property
    def horizon(self) -> Instant:
        """History before this instant is forgotten."""
        return max((table.horizon for table in self.tables.values()), default=0)

    def available(self, term: Term) -> int:
        """The units free throughout ``term``. A class that is overcommitted takes nothing from the others; where none
        has any left, by how many they are overcommitted in all, as a negative number.
        """
        return _sum([table.available(term) for table in self.tables.values()])

    def lacking(self, term: Term) -> Counts:
        """By how many units each class is overcommitted somewhere in ``term``."""
        return counts((class_, max(0, -table.available(term))) for class_, table in self.tables.items())

    def free_at(self, instant: Instant) -> int:
        """The units free at an instant, as in :meth:`available`."""
        return _sum([table.free_at(instant) for table in self.tables.values()])

    def reserved_at(self, instant: Instant) -> int:
        """The units reserved at an instant."""
        return sum(table.reserved_at(instant) for table in self.tables.values())

    def capacity_at(self, instant: Instant) -> int:
        """The units in service at an instant."""
        return sum(table.capacity_at(instant) for table in self.tables.values())

    def earliest(self, units: int, duration: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """As :meth:`Timetable.earliest`. From a start that fails the next one is tried at which any class can have more
        than it had.
        """
        tables, start = list(self.tables.values()), not_before
        if len(tables) == 1:
            return tables[0].earliest(units, duration, not_before, not_after)
        while start <= not_after:
            term = Term(start, start + duration)
            free = [max(0, table.available(term)) for table in tables]
            if sum(free) >= units:
                return start
            more = (
                found
                for table, has in zip(tables, free, strict=True)
                if (found := table.earliest(has + 1, duration, start + 1, not_after)) is not None
            )
            following = min(more, default=None)
            if following is None:
                return None
            start = following
        return None

    def fits(self, units: int, length: Duration, window: Term) -> Iterator[Term]:
        """The windows within ``window`` in which so many units are free for ``length``, in order: it may begin at any
        instant of one, up to its end less the length. Don't change the timetable while the iterator is in use.
        """
        begin = start = self.earliest(units, length, window.start, window.end - length)
        while begin is not None and start is not None:
            after = self._lasts(units, Term(start, start + length), window.end) - length + 1
            start = self.earliest(units, length, after, window.end - length)
            if start != after:  # else others go on to be free where some are not any more
                yield Term(begin, after - 1 + length)
                begin = start

    def _lasts(self, units: int, term: Term, most: Instant) -> Instant:
        """Until when so many of the units that are free throughout a term are free, ``most`` at most. A stretch over
        which they are is leapt over; what follows is looked at drop by drop.
        """
        tables, at = list(self.tables.values()), most
        free = [max(0, table.available(Term(term.start, at))) for table in tables]
        while sum(free) < units and at > term.end:
            at = max(term.end, term.start + (at - term.start) // 4)
            free = [max(0, table.available(Term(term.start, at))) for table in tables]
        pairs = zip(tables, free, strict=True)
        drops = [(table.short_at(has, at), number) for number, (table, has) in enumerate(pairs) if has]
        heapq.heapify(drops)
        left = sum(free)
        while drops and drops[0][0] < most:
            at, number = heapq.heappop(drops)
            has = max(0, tables[number].free_at(at))
            left -= free[number] - has
            if left < units:
                return at
            free[number] = has
            if has:
                heapq.heappush(drops, (tables[number].short_at(has, at), number))
        return most

    def overcommitted(self) -> list[Term]:
        """The periods in which more of a class is reserved than is in service, in order of their ends."""
        found = [term for table in self.tables.values() for term in table.overcommitted()]
        return sorted(found, key=lambda term: term.end)

    def steps(self, window: Term) -> Iterator[tuple[Term, int, int]]:
        """As :meth:`Timetable.steps`: units reserved, and in service, of all classes."""
        changes: dict[Instant, list[int]] = {}
        for table in self.tables.values():
            before = (0, 0)
            for term, reserved, capacity in table.steps(window):
                change = changes.setdefault(term.start, [0, 0])
                change[0] += reserved - before[0]
                change[1] += capacity - before[1]
                before = (reserved, capacity)
        at, reserved, capacity = window.start, 0, 0
        for instant in sorted(changes):
            if instant > at and changes[instant] != [0, 0]:
                yield Term(at, instant), reserved, capacity
                at = instant
            reserved, capacity = reserved + changes[instant][0], capacity + changes[instant][1]
        yield Term(at, window.end), reserved, capacity

    def frees(self, window: Term) -> Iterator[Segment]:
        """As :meth:`Timetable.frees`: of all classes, what is overcommitted of one taken from the others."""
        return ((start, end, capacity - reserved) for (start, end), reserved, capacity in self.steps(window))

    def utilisation(self, window: Term) -> float:
        """As :meth:`Timetable.utilisation`."""
        there = used = 0
        for term, reserved, capacity in self.steps(window):
            used, there = used + reserved * term.length, there + capacity * term.length
        return used / there if there > 0 else 0.0

    # -- planning ----------------------------------------------------------------------------------------------

    def overlay(self) -> ClassedTimetable:
        """As :meth:`Timetable.overlay`."""
        return ClassedTimetable({class_: table.overlay() for class_, table in self.tables.items()})

    def copy(self) -> ClassedTimetable:
        """As :meth:`Timetable.copy`."""
        return ClassedTimetable({class_: table.copy() for class_, table in self.tables.items()})


def _sum(frees: list[int]) -> int:
    """What there is of all classes, where one may have less than nothing."""
    more = sum(free for free in frees if free > 0)
    return more or sum(frees)
