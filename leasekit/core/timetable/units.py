"""Per-unit occupancy: which named units, hosts for instance, are held by whom over which terms.

A unit's terms never overlap, so they are one sorted list of bounds, ``[start, end, start, end, ...]``, beside a
list of keys. An instant's place in the bounds says at once whether the unit is held there: behind an odd number of
bounds it is. Units with equal attributes are of one kind. A filter is asked once for each kind, and the units of the
kinds that it accepts are remembered; choosing walks those in order, a stretch at a time, until it has enough.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable.capacity import Shortfall
from leasekit.core.timetable.ends import Ends
from leasekit.core.timetable.profile import BEGIN, FOREVER

Attributes: TypeAlias = Mapping[str, str]
Where: TypeAlias = Callable[[Attributes], bool]
"""A filter over a unit's attributes. It must depend on them alone: it is asked once for equal ones."""

FILTERS_MAX = 64
"""How many filters' sets of units are remembered."""

NO_ATTRIBUTES: Attributes = MappingProxyType({})


class UnitConflict(Exception):
    """A unit is held by another: ``unit``, the ``holder``'s key and the ``term`` that it holds."""

    def __init__(self, unit: str, holder: Hashable, term: Term) -> None:
        super().__init__(unit, holder, term)
        self.unit = unit
        self.holder = holder
        self.term = term

    def __str__(self) -> str:
        return f"unit {self.unit!r} is held by {self.holder!r} over [{self.term.start}, {self.term.end})"


class _Kind:
    """Equal attributes, and how many units have them."""

    __slots__ = ("attributes", "count")

    def __init__(self, attributes: Attributes) -> None:
        self.attributes = MappingProxyType(dict(attributes))
        self.count = 0


class _Unit:
    __slots__ = ("bounds", "keys", "kind", "name")

    def __init__(self, name: str, kind: _Kind) -> None:
        self.name = name
        self.kind = kind
        self.bounds: list[Instant] = []
        self.keys: list[Hashable] = []

    def is_free(self, start: Instant, end: Instant) -> bool:
        """Whether nobody holds the unit in ``[start, end)``."""
        i = bisect_right(self.bounds, start)
        return not i & 1 and (i == len(self.bounds) or self.bounds[i] >= end)

    def take(self, key: Hashable, start: Instant, end: Instant) -> None:
        """Hold the unit over a term in which it is free."""
        i = bisect_right(self.bounds, start)
        self.bounds[i:i] = (start, end)
        self.keys.insert(i >> 1, key)

    def drop(self, start: Instant) -> None:
        """Give up what begins at ``start``."""
        i = bisect_right(self.bounds, start) - 1
        del self.bounds[i : i + 2], self.keys[i >> 1]


class UnitTimetable:
    """Which units are held over which half-open terms. Terms that touch don't collide.

    A reservation holds a set of units over one term. Units keep the order in which they were added, which is the
    order in which they are listed and chosen. Unknown units and keys raise ``KeyError``; empty or reversed terms,
    no units, and units named twice raise ``ValueError``. Nothing changes when a method raises.
    """

    __slots__ = ("_accepted", "_ends", "_held", "_horizon", "_kinds", "_units")

    def __init__(self) -> None:
        self._units: dict[str, _Unit] = {}
        self._kinds: dict[tuple[tuple[str, str], ...], _Kind] = {}
        # The units of sets of kinds that filters have accepted, in order; None stands for no filter.
        self._accepted: dict[tuple[_Kind, ...] | None, list[_Unit]] = {}
        self._held: dict[Hashable, tuple[tuple[str, ...], Term]] = {}
        self._horizon: Instant = BEGIN
        self._ends: Ends | None = None

    # -- units --------------------------------------------------------------------------------------------------

    def add_unit(self, unit: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Add a unit that is free at all times. Raises ``KeyError`` if there is one of that name."""
        if unit in self._units:
            raise KeyError(f"there is a unit {unit!r} already")
        label = tuple(sorted(attributes.items()))
        kind = self._kinds.get(label)
        if kind is None:
            kind = self._kinds[label] = _Kind(attributes)
        kind.count += 1
        self._units[unit] = _Unit(unit, kind)
        self._accepted.clear()

    def remove_unit(self, unit: str) -> None:
        """Take a unit out for good. Raises :class:`UnitConflict` with its first reservation if it has one.

        To take it out for a while, or from an instant on, reserve it.
        """
        found = self._unit(unit)
        if found.keys:
            raise UnitConflict(unit, found.keys[0], Term(found.bounds[0], found.bounds[1]))
        del self._units[unit]
        found.kind.count -= 1
        if not found.kind.count:
            del self._kinds[tuple(sorted(found.kind.attributes.items()))]
        self._accepted.clear()

    @property
    def units(self) -> list[str]:
        """The names of all units, in order."""
        return list(self._units)

    def attributes(self, unit: str) -> Attributes:
        """A unit's attributes, read-only."""
        return self._unit(unit).kind.attributes

    # -- reservations -------------------------------------------------------------------------------------------

    def reserve(self, key: Hashable, units: Collection[str], term: Term) -> None:
        """Hold ``units`` over ``term`` under ``key``.

        Raises :class:`UnitConflict` for the first of them that another holds, ``KeyError`` if the key is in use.
        """
        if key in self._held:
            raise KeyError(f"{key!r} is reserved already: change or release it")
        names, chosen = self._checked(units, term)
        start, end = term
        for unit in chosen:
            if not unit.is_free(start, end):
                raise _conflict(unit, term)
        self._take(key, names, chosen, term)

    def release(self, key: Hashable) -> None:
        """Give up a reservation. Raises ``KeyError`` if there is none of that key."""
        names, (start, _) = self._held.pop(key)
        for name in names:
            self._units[name].drop(start)

    def change(self, key: Hashable, *, units: Collection[str] | None = None, term: Term | None = None) -> None:
        """Change the units or the term of a reservation, or both at once; its own term doesn't stand in its way.

        Raises :class:`UnitConflict` for the first unit that another holds; the reservation stays as it was then.
        """
        had, was = self._held[key]
        names, chosen = self._checked(had if units is None else units, was if term is None else term)
        term = was if term is None else term
        owned = set(had)
        for unit in chosen:
            found = _conflict_beside(unit, term, key) if unit.name in owned else _conflict_or_none(unit, term)
            if found is not None:
                raise found
        for name in had:
            self._units[name].drop(was.start)
        self._take(key, names, chosen, term)

    def get(self, key: Hashable) -> tuple[tuple[str, ...], Term] | None:
        """The units, in the order in which they were given, and the term held under ``key``, or None."""
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

    def is_free(self, unit: str, term: Term) -> bool:
        """Whether nobody holds the unit at any instant of ``term``."""
        start, end = _checked_term(term)
        return self._unit(unit).is_free(start, end)

    def free(self, term: Term) -> list[str]:
        """The units that are free throughout ``term``, in order."""
        start, end = _checked_term(term)
        return [unit.name for unit in self._free(start, end, None)]

    def holder(self, unit: str, instant: Instant) -> Hashable | None:
        """The key that holds the unit at an instant, or None."""
        found = self._unit(unit)
        i = bisect_right(found.bounds, instant)
        return found.keys[i >> 1] if i & 1 else None

    def next_reservation(self, unit: str, after: Instant) -> Instant | None:
        """The first instant at or after ``after`` at which a reservation of the unit starts, or None.

        A reservation that is under way at ``after`` doesn't count.
        """
        bounds = self._unit(unit).bounds
        i = bisect_left(bounds, after)
        # Behind an odd number of bounds the next one is an end; the start after it may be the same instant.
        i += i & 1
        return bounds[i] if i < len(bounds) else None

    def reservations(self, unit: str, window: Term) -> Iterator[tuple[Hashable, Term]]:
        """The reservations of a unit that overlap ``window``, in order of time, with their whole terms."""
        start, end = _checked_term(window)
        found = self._unit(unit)
        first = bisect_right(found.bounds, start) >> 1
        last = (bisect_left(found.bounds, end) + 1) >> 1
        for i in range(first, last):
            yield found.keys[i], Term(found.bounds[2 * i], found.bounds[2 * i + 1])

    def choose(
        self,
        count: int,
        term: Term,
        where: Where | None = None,
        *,
        prefer: Iterable[str] = (),
        order: Callable[[str], Any] | None = None,
    ) -> list[str]:
        """``count`` units that are free throughout ``term`` and whose attributes ``where`` accepts.

        Units named in ``prefer`` come first, in that order, if they qualify: name a lease's units there to extend
        it in place. The rest follow in the order of the timetable, or lowest ``order(unit)`` first. With ``order``
        all free units are looked at, without it no more than needed. Raises :class:`Shortfall` with the number
        found if there are too few. Nothing is reserved.
        """
        start, end = _checked_term(term)
        if count < 1:
            raise ValueError(f"{count} units to choose: 1 or more")
        chosen: dict[str, None] = {}
        for name in prefer:
            unit = self._unit(name)
            if len(chosen) < count and unit.is_free(start, end) and (where is None or where(unit.kind.attributes)):
                chosen[name] = None
        if len(chosen) < count:
            rest: Iterator[str] = (unit.name for unit in self._free(start, end, where) if unit.name not in chosen)
            if order is not None:
                rest = iter(heapq.nsmallest(count - len(chosen), rest, key=order))
            for name in rest:
                chosen[name] = None
                if len(chosen) == count:
                    break
        if len(chosen) < count:
            raise Shortfall(term, len(chosen), count)
        return list(chosen)

    def earliest(
        self,
        count: int,
        duration: Duration,
        not_before: Instant,
        not_after: Instant,
        where: Where | None = None,
    ) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` at which ``count`` units that ``where`` accepts are free
        for ``duration`` ms, the same units throughout; None if there is none.

        O(m log m), where m is the number of gaps between reservations of those units in the window.
        """
        if count < 1 or duration < 1:
            raise ValueError(f"earliest fit of {count} units for {duration} ms: both must be 1 or more")
        opens: list[Instant] = []
        closes: list[Instant] = []
        for unit in self._candidates(where):
            for first, last in _starts(unit.bounds, duration, not_before, not_after):
                opens.append(first)
                closes.append(last)
        opens.sort()
        closes.sort()
        over = 0
        for number, first in enumerate(opens, 1):
            while closes[over] < first:
                over += 1
            if number - over >= count:
                return first
        return None

    # -- history and planning -----------------------------------------------------------------------------------

    def forget_before(self, instant: Instant) -> None:
        """Drop history: reservations that end at or before ``instant`` vanish. O(log n) for each."""
        self._horizon = max(self._horizon, instant)
        if self._ends is None:
            self._ends = self._index()
        for key in self._ends.pop_until(instant, self._end_of):
            self.release(key)

    def copy(self) -> UnitTimetable:
        """An independent copy, in O(n)."""
        twin = UnitTimetable()
        twin._held, twin._horizon = self._held.copy(), self._horizon
        for name, unit in self._units.items():
            twin.add_unit(name, unit.kind.attributes)
            made = twin._units[name]
            made.bounds, made.keys = unit.bounds.copy(), unit.keys.copy()
        return twin

    # -- parts --------------------------------------------------------------------------------------------------

    def _unit(self, name: str) -> _Unit:
        try:
            return self._units[name]
        except KeyError:
            raise KeyError(f"there is no unit {name!r}") from None

    def _checked(self, units: Collection[str], term: Term) -> tuple[tuple[str, ...], list[_Unit]]:
        _checked_term(term)
        if term.end <= self._horizon:
            raise ValueError(
                f"term [{term.start}, {term.end}) lies in forgotten history: it must end after {self._horizon}"
            )
        names = (units,) if isinstance(units, str) else tuple(units)
        if not names:
            raise ValueError("a reservation holds 1 unit or more; none are named")
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ValueError(f"unit {twice!r} is named twice")
        try:
            return names, [self._units[name] for name in names]
        except KeyError as error:
            raise KeyError(f"there is no unit {error.args[0]!r}") from None

    def _take(self, key: Hashable, names: tuple[str, ...], chosen: list[_Unit], term: Term) -> None:
        start, end = term
        for unit in chosen:
            unit.take(key, start, end)
        self._held[key] = (names, term)
        if self._ends is None:
            return
        if len(self._ends) > 2 * len(self._held) + 64:
            self._ends = self._index()
        else:
            self._ends.push(end, key)

    def _index(self) -> Ends:
        return Ends((term.end, key) for key, (_, term) in self._held.items())

    def _end_of(self, key: Hashable) -> Instant | None:
        held = self._held.get(key)
        return None if held is None else held[1].end

    def _candidates(self, where: Where | None) -> list[_Unit]:
        """The units that a filter accepts, in order. Not to be changed."""
        accepted = None if where is None else tuple(kind for kind in self._kinds.values() if where(kind.attributes))
        found = self._accepted.get(accepted)
        if found is None:
            if accepted is None:
                found = list(self._units.values())
            else:
                members = set(accepted)
                found = [unit for unit in self._units.values() if unit.kind in members]
            if len(self._accepted) >= FILTERS_MAX:
                self._accepted.clear()
            self._accepted[accepted] = found
        return found

    def _free(self, start: Instant, end: Instant, where: Where | None) -> Iterator[_Unit]:
        # The hot loop of choosing: _Unit.is_free is written out here.
        candidates, begin, size = self._candidates(where), 0, 32
        while begin < len(candidates):
            yield from [
                unit
                for unit in candidates[begin : begin + size]
                if not (i := bisect_right(bounds := unit.bounds, start)) & 1 and (i == len(bounds) or bounds[i] >= end)
            ]
            begin, size = begin + size, size * 2


def _checked_term(term: Term) -> Term:
    if term.end <= term.start:
        what = "empty" if term.end == term.start else "reversed"
        raise ValueError(f"term [{term.start}, {term.end}) is {what}: its end must be later than its start")
    return term


def _conflict(unit: _Unit, term: Term) -> UnitConflict:
    """With the first reservation of the unit that overlaps ``term``."""
    i = bisect_right(unit.bounds, term.start) >> 1
    return UnitConflict(unit.name, unit.keys[i], Term(unit.bounds[2 * i], unit.bounds[2 * i + 1]))


def _conflict_or_none(unit: _Unit, term: Term) -> UnitConflict | None:
    return None if unit.is_free(term.start, term.end) else _conflict(unit, term)


def _conflict_beside(unit: _Unit, term: Term, key: Hashable) -> UnitConflict | None:
    """The first conflict with another key than ``key``."""
    for i in range(bisect_right(unit.bounds, term.start) >> 1, len(unit.keys)):
        start, end = unit.bounds[2 * i], unit.bounds[2 * i + 1]
        if start >= term.end:
            return None
        if unit.keys[i] != key:
            return UnitConflict(unit.name, unit.keys[i], Term(start, end))
    return None


def _starts(
    bounds: list[Instant], duration: Duration, not_before: Instant, not_after: Instant
) -> Iterator[tuple[Instant, Instant]]:
    """The closed ranges of instants, within the window, from which a unit stays free for ``duration``."""
    i = bisect_right(bounds, not_before)
    i += i & 1
    # Each gap runs from the end before an even place in the bounds to the start at it.
    for k in range(i, len(bounds) + 1, 2):
        gap_start = bounds[k - 1] if k else BEGIN
        if gap_start > not_after:
            return
        gap_end = bounds[k] if k < len(bounds) else FOREVER
        first, last = max(gap_start, not_before), min(gap_end - duration, not_after)
        if first <= last:
            yield first, last
