"""GR, SG, GB and SGB: each item goes to the first host, in the order of CPU load, that has room for it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final

from leasekit.policies.authority.placing.instance import Mapped, Rooms, YieldInstance

PLACEMENTS_MAX: Final = 500_000
"""How often a backtracking search puts an item on a host before it gives up."""


def greedy(
    instance: YieldInstance, pinned: Sequence[int], *, largest_first: bool = False, backtrack: bool = False
) -> Mapped | None:
    """The first mapping that is found; None if none was. Items are tried in their order, or those with the most memory
    first (SG, SGB); with ``backtrack`` the next host is tried where another choice has led nowhere (GB, SGB).
    """
    rooms, mapping = Rooms(instance, pinned), list(pinned)
    items = [item for item, host in enumerate(pinned) if host < 0]
    if largest_first and instance.resources:
        items.sort(key=lambda item: -instance.rigid[0][item])
    order = sorted((load / of, host) for host, (load, of) in enumerate(zip(rooms.load, instance.capacity, strict=True)))
    trail: list[tuple[int, tuple[float, int]]] = []  # place in the order, and load as it was
    left = PLACEMENTS_MAX if backtrack else len(items)
    place = 0
    while len(trail) < len(items):
        item = items[len(trail)]
        for at in range(place, len(order)):
            if rooms.fits(item, order[at][1]):
                break
        else:
            if not backtrack or not trail:
                return None
            place, entry = trail.pop()
            item = items[len(trail)]
            rooms.put(item, entry[1], -1)
            order.remove((_after(entry, instance, item), entry[1]))
            order.insert(place, entry)
            place += 1
            continue
        if not left:
            return None
        left -= 1
        entry = order.pop(at)
        trail.append((at, entry))
        rooms.put(item, entry[1])
        insort(order, (_after(entry, instance, item), entry[1]))
        place = 0
    for item, (_, (_, host)) in zip(items, trail, strict=True):
        mapping[item] = host
    return mapping


def _after(entry: tuple[float, int], instance: YieldInstance, item: int) -> float:
    load, host = entry
    return load + instance.need[item] / instance.capacity[host]
