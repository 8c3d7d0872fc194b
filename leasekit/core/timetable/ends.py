"""Which reservations end when, so that history can be forgotten without looking at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator

from leasekit.core.time import Instant


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
