"""Which units are held, by whom, and over which terms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from leasekit.core.time import Instant, Term

K = TypeVar("K")
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
