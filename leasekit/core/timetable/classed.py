"""The timetable of units of several classes: one for each class, asked and booked together.

How many of a lease's units are of which class is settled when it is booked, for all of its term: so what is free over
a term is the sum of what is free throughout of each class, and not the least of the sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from leasekit.core.classes import NO_UNITS, Counts, count_of, counts
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable.capacity import Shortfall, Timetable


class ClassedTimetable:
    """Timetables by class, in the order in which units are given out that may be of any: of the largest class first.

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

    def sort(self, sizes: Counts) -> None:
        """Put the largest classes first."""
        order = sorted(self.tables, key=lambda class_: (-count_of(sizes, class_), class_))
        self.tables = {class_: self.tables[class_] for class_ in order}

    def close(self, kept: set[bytes]) -> None:
        """Drop the classes of which nothing is held, but for those that are ``kept``."""
        self.tables = {class_: table for class_, table in self.tables.items() if class_ in kept or len(table)}

    # -- booking -----------------------------------------------------------------------------------------------

    def pick(self, units: int, term: Term, *, first: Counts = NO_UNITS, but: Hashable = None) -> Counts:
        """So many units that are free throughout ``term``, by class: as many as can be of ``first``, then of the
        largest classes. What is booked under ``but`` counts as free. Raises :class:`Shortfall`.
        """
        found: dict[bytes, int] = {}
        left = units
        wanted = [*first, *((class_, units) for class_ in self.tables)]
        for class_, most in wanted:
            table = self.tables.get(class_)
            if table is None or not left:
                continue
            free = (_without(table, but) if but is not None and but in table else table).available(term)
            taken = max(0, min(left, most, free - found.get(class_, 0)))
            found[class_] = found.get(class_, 0) + taken
            left -= taken
        if left:
            raise Shortfall(term, units - left, units)
        return counts(found)

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

    def free_periods(self, units: int, window: Term) -> Iterator[Term]:
        """As :meth:`Timetable.free_periods`, of the sum over all classes at each instant."""
        begin = -1
        for term, reserved, capacity in self.steps(window):
            if capacity - reserved >= units:
                begin = term.start if begin < 0 else begin
            elif begin >= 0:
                yield Term(begin, term.start)
                begin = -1
        if begin >= 0:
            yield Term(begin, window.end)

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


def _without(table: Timetable, key: Hashable) -> Timetable:
    """The timetable as it would be without a reservation that it has."""
    view = table.overlay()
    view.release(key)
    return view
