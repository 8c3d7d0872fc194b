"""The free units of one type, best first, ordered once in a turn however many leases are to get some.

Which unit is best depends on the lease in one way only: by when the unit's next reservation begins. So units are kept
in heaps, one for each such instant; in a heap their order is the same for all leases, and a lease looks at the tops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias

from leasekit.core.time import Instant


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
