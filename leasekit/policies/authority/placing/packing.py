"""MCB1 to MCB8: multi-capacity bin packing (Leinberger, Karypis and Kumar) within a search for the greatest yield.

At a level Y the CPU of an item is rigid, too. Items are on a shelf for each resource: the one of which they need most,
in shares of a mean host. Hosts are filled one by one: the next item is the first that fits of the shelf whose resource
the host has most of, else of the one that it has second most of, and so on. Shelves are in order of the sum of needs,
the greatest less the least, the greatest by the least, or the greatest: ascending for MCB1 to MCB4, descending for the
others.

What a host has left only shrinks, so what did not fit needs no second look while it is filled. Shelves are in chunks
with the least needs of their items: chunks of which nothing fits are skipped. With two resources MCB8 has each shelf
in the order of its own resource: what fits in that begins at a place that is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Final

from leasekit.policies.authority.placing.instance import EPSILON, Mapped, Rooms, YieldInstance

WIDTH: Final = 1e-3
"""The search ends when what is left of its range is this share of it."""
AHEAD: Final = (5, 4)
MANY: Final = 100
"""With so many items to place or more MCB8 first probes what would come after so many probes that all fit (1/32, or
1/16, below the ceiling). Where that fits, the search goes on from there, as if it had come there by itself.
"""
CHUNK: Final = 256

Accepts = Callable[[int], bool]
SizedShelf = tuple[list[list[int]], list[list[float]], list[float], list[float], Sequence[float]]
"""By chunk: items, their sizes, the smallest of these, a bound below their other needs; and these by item."""
KEYS: Final[Sequence[Callable[[Sequence[float]], float]]] = (
    sum,
    lambda needs: max(needs) - min(needs),
    lambda needs: max(needs) / min(needs) if min(needs) else inf,
    max,
)


def mcb(instance: YieldInstance, number: int, pinned: Sequence[int]) -> Mapped | None:
    """The mapping of MCB1 to MCB8, by ``number``, whose own level is the greatest of all that the search has seen.

    Items that are ``pinned`` stay; the others have -1 there. None if none was found.
    """
    is_simple = number == 8 and instance.resources == 1 and not instance.limited
    packer = (_LargestFirst if is_simple else _Packer)(instance, pinned, number)
    low, high = 0.0, (top := instance.ceiling(pinned))
    best: Mapped | None = None
    best_level, refused = -1.0, set[float]()
    ahead = [_after(times, top) for times in AHEAD if is_simple and packer.count >= MANY]
    while high - low > WIDTH * high and high > WIDTH * top:
        is_ahead = bool(ahead) and not low
        probe = ahead.pop(0) if is_ahead else (low + high) / 2
        mapping = packer.packed(probe) if probe not in refused else None
        if mapping is None and is_ahead:
            refused.add(probe)
            continue
        if mapping is None:
            high = probe
            continue
        level = instance.level(mapping)
        if level > best_level:
            best, best_level = mapping, level
            if level >= top:
                break
        low = probe
    return best


def _after(times: int, top: float) -> float:
    """Where a search up to ``top`` probes after so many probes that fit."""
    low = 0.0
    for _ in range(times):
        low = (low + top) / 2
    return low


class _Packer:
    """Packs at one level after the other."""

    def __init__(self, instance: YieldInstance, pinned: Sequence[int], number: int) -> None:
        self._of, self._pinned = instance, pinned
        self._key, self._descending = KEYS[(number - 1) % 4], number > 4
        self._free = [item for item, host in enumerate(pinned) if host < 0]
        self.count = len(self._free)
        self._rigid = instance.rigid[: instance.resources] or [[0.0] * len(pinned)]
        room = instance.room[: instance.resources] or [[0.0] * len(instance.capacity)]
        self._space = [[capacity * (1 + EPSILON) for capacity in instance.capacity], *room]
        self._scales = [len(row) / sum(row) if sum(row) else 0.0 for row in self._space]

    def packed(self, level: float) -> Mapped | None:
        """Where all items go at a level; None if they don't fit."""
        rows = [self._of.sizes(level), *self._rigid]
        shelves = self._shelves(rows, level)
        space = [list(row) for row in self._space]
        mapping = list(self._pinned)
        for item, host in enumerate(mapping):
            if host >= 0:
                for row, sizes in zip(space, rows, strict=True):
                    row[host] -= sizes[item]
        rooms = Rooms(self._of, mapping) if self._of.limited else None
        count = len(self._free)
        spare = [
            sum(row) * (1 + EPSILON) - sum(map(sizes.__getitem__, self._free))
            for row, sizes in zip(space, rows, strict=True)
        ]
        for host, rest in enumerate(map(list, zip(*space, strict=True))):
            if not count or min(spare) < 0:
                break  # nothing is left, or more than all other hosts have
            put = self._filled(host, rest, rows, shelves, rooms, level)
            for item in put:
                mapping[item] = host
            count -= len(put)
            for r, room in enumerate(rest):
                spare[r] -= room
        return None if count else mapping

    def _filled(
        self,
        host: int,
        rest: list[float],
        rows: Sequence[Sequence[float]],
        shelves: Sequence[_Shelf],
        rooms: Rooms | None,
        level: float,
    ) -> list[int]:
        """What is taken off the shelves for a host with this ``rest`` of each resource, of which it is deducted."""

        def accepts(item: int) -> bool:
            if any(row[item] > room for row, room in zip(rows, rest, strict=True)):
                return False
            return rooms is None or rooms.accepts(item, host, level)

        check = None if len(rows) == 2 and rooms is None else accepts
        put: list[int] = []
        scales, order = self._scales, list(range(len(rows)))
        for shelf in shelves:
            shelf.chunk = shelf.place = 0
        while True:
            if len(order) == 2:
                order = [0, 1] if rest[0] * scales[0] > rest[1] * scales[1] else [1, 0]
            else:
                order.sort(key=lambda r: (-rest[r] * scales[r], -r))
            for which in order:
                item = shelves[which].take(rest[0], rest[1], check)
                if item >= 0:
                    break
            else:
                return put
            put.append(item)
            for r, row in enumerate(rows):
                rest[r] -= row[item]
            if rooms is not None:
                rooms.put(item, host)

    def _shelves(self, rows: Sequence[Sequence[float]], level: float) -> list[_Shelf]:
        """A shelf for each resource, in the order of the key; on that of the last where needs are equal."""
        lists: list[list[tuple[float, int]]] = [[] for _ in rows]
        scaled = [[size * scale for size in row] for row, scale in zip(rows, self._scales, strict=True)]
        for item in self._free:
            needs = [row[item] for row in scaled]
            which = len(needs) - 1 - needs[::-1].index(max(needs))
            lists[which].append((self._key(needs), item))
        for one in lists:
            one.sort(key=itemgetter(0), reverse=self._descending)
        return [_Shelf([item for _, item in one], rows[0], rows[1]) for one in lists]


class _Shelf:
    """Items in order, and the ``chunk`` and ``place`` where the look for the current host goes on."""

    def __init__(self, items: Sequence[int], cpu: Sequence[float], first: Sequence[float]) -> None:
        self.chunk = self.place = 0
        self._cpu, self._first = cpu, first
        self._chunks = [list(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]
        self._least = [(min(cpu[i] for i in chunk), min(first[i] for i in chunk)) for chunk in self._chunks]

    def take(self, room: float, first: float, accepts: Accepts | None) -> int:
        """Take the first item that fits what is left of CPU and of the first rigid resource; -1 if there is none."""
        cpu, rigid = self._cpu, self._first
        for chunk in range(self.chunk, len(self._chunks)):
            if self._least[chunk][0] <= room and self._least[chunk][1] <= first:
                items = self._chunks[chunk]
                for at in range(self.place, len(items)):
                    item = items[at]
                    if cpu[item] <= room and rigid[item] <= first and (accepts is None or accepts(item)):
                        self.chunk, self.place = chunk, at
                        del items[at]
                        return item
            self.place = 0
        self.chunk = len(self._chunks)
        return -1


class _LargestFirst(_Packer):
    """MCB8 of two resources without limits: each shelf is in the order of its own resource, ascending, and items are
    taken from its end, from where bisection says that they fit.
    """

    def __init__(self, instance: YieldInstance, pinned: Sequence[int], number: int) -> None:
        super().__init__(instance, pinned, number)
        rows = (instance.need, instance.rigid[0])
        backwards = self._free[::-1]
        self._by_size = [sorted(backwards, key=row.__getitem__) for row in rows]

    def _shelves(self, rows: Sequence[Sequence[float]], level: float) -> list[Any]:
        (cpu, memory), (by_cpu, by_memory) = rows, self._scales
        mostly_cpu = [size * by_cpu > other * by_memory for size, other in zip(cpu, memory, strict=True)]
        by_cpu_size, by_memory_size = self._by_size
        if level < self._of.bare:
            by_cpu_size = sorted(by_cpu_size, key=cpu.__getitem__)
        return [
            _sized_shelf([item for item in by_cpu_size if mostly_cpu[item]], cpu, memory),
            _sized_shelf([item for item in by_memory_size if not mostly_cpu[item]], memory, cpu),
        ]

    def _filled(
        self,
        host: int,
        rest: list[float],
        rows: Sequence[Sequence[float]],
        shelves: Sequence[Any],
        rooms: Rooms | None,
        level: float,
    ) -> list[int]:
        """All of it in one loop, as this is where the time goes."""
        (cpu, memory), (by_cpu, by_memory) = rows, self._scales
        cpu_room, memory_room = rest
        places = [len(shelf[0]) - 1 for shelf in shelves]
        put = []
        while True:
            first = 0 if cpu_room * by_cpu > memory_room * by_memory else 1
            for side in (first, 1 - first):
                chunk = places[side]
                if chunk < 0:
                    continue
                chunks, sizes, smallest, least, other = shelves[side]
                large, small = (memory_room, cpu_room) if side else (cpu_room, memory_room)
                if smallest[chunk] > large:
                    chunk = bisect_right(smallest, large) - 1
                while chunk >= 0:
                    if least[chunk] <= small:
                        items = chunks[chunk]
                        at = bisect_right(sizes[chunk], large)
                        while at:
                            at -= 1
                            item = items[at]
                            if other[item] <= small:
                                break
                        else:
                            least[chunk] = min([other[item] for item in items], default=inf)
                            chunk -= 1
                            continue
                        break
                    chunk -= 1
                places[side] = chunk
                if chunk >= 0:
                    del items[at], sizes[chunk][at]
                    put.append(item)
                    cpu_room -= cpu[item]
                    memory_room -= memory[item]
                    break
            else:
                rest[:] = cpu_room, memory_room
                return put


def _sized_shelf(items: Sequence[int], large: Sequence[float], small: Sequence[float]) -> SizedShelf:
    chunks = [list(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]
    sizes = [[large[item] for item in chunk] for chunk in chunks]
    return chunks, sizes, [chunk[0] for chunk in sizes], [min([small[item] for item in one]) for one in chunks], small
