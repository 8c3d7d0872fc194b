"""Local search: the best move or swap off the fullest host, as long as that makes it less full."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from math import inf
from typing import Final, NamedTuple

from leasekit.policies.authority.placing.instance import EPSILON, Mapped, Rooms, YieldInstance

PARTNERS: Final = 64
"""How many of the emptiest hosts a move or a swap is tried with."""
STEPS_MAX: Final = 10_000


class Step(NamedTuple):
    """``item`` goes to ``host``, and ``other`` (-1: none) from there to where the item was."""

    item: int
    other: int
    host: int


def improved(instance: YieldInstance, mapping: Sequence[int], budget: float = inf) -> Mapped:
    """The mapping after all steps that make the fullest host less full, and none so full again.

    Items that come to run elsewhere than now have at most ``budget`` of memory in all.
    """
    found, rooms = list(mapping), Rooms(instance, mapping)
    here: list[set[int]] = [set() for _ in instance.capacity]
    for item, host in enumerate(found):
        here[host].add(item)
    loads = [load / capacity for load, capacity in zip(rooms.load, instance.capacity, strict=True)]
    budget -= instance.moved(found)
    for _ in range(STEPS_MAX):
        fullest = max(range(len(loads)), key=loads.__getitem__)
        found_step = _best(instance, rooms, here, loads, fullest, budget) if loads[fullest] > 1 else None
        if found_step is None:
            break
        step, cost = found_step
        budget -= cost
        for item, source, target in ((step.item, fullest, step.host), (step.other, step.host, fullest)):
            if item >= 0:
                rooms.put(item, source, -1)
                rooms.put(item, target)
                here[source].remove(item)
                here[target].add(item)
                found[item] = target
        for host in (fullest, step.host):
            loads[host] = rooms.load[host] / instance.capacity[host]
    return found


def _best(
    instance: YieldInstance,
    rooms: Rooms,
    here: Sequence[set[int]],
    loads: Sequence[float],
    fullest: int,
    budget: float,
) -> tuple[Step, float] | None:
    """The move or swap after which the fuller of its two hosts is least full, and the memory it moves."""
    need, capacity, load = instance.need, instance.capacity, rooms.load
    best: tuple[Step, float] | None = None
    least = (loads[fullest] * (1 - EPSILON), inf)
    leaving = sorted(here[fullest])
    for host in nsmallest(PARTNERS, (one for one in range(len(loads)) if one != fullest), key=loads.__getitem__):
        coming = (-1, *sorted(here[host]))
        for item in leaving:
            for other in coming:
                change = need[item] - need[other] if other >= 0 else need[item]
                if change <= 0:
                    continue
                after = max((load[host] + change) / capacity[host], (load[fullest] - change) / capacity[fullest])
                if after > least[0]:
                    continue
                cost = instance.moving(item, host) - instance.moving(item, fullest)
                if other >= 0:
                    cost += instance.moving(other, fullest) - instance.moving(other, host)
                step = Step(item, other, host)
                if (after, cost) < least and cost <= budget and _fits(rooms, step, fullest, 1 / loads[fullest]):
                    least, best = (after, cost), (step, cost)
    return best


def _fits(rooms: Rooms, step: Step, fullest: int, level: float) -> bool:
    """Whether there is room for a step, once what moves has left."""
    leaving = [(step.item, fullest), (step.other, step.host)][: 1 if step.other < 0 else 2]
    for item, host in leaving:
        rooms.put(item, host, -1)
    fits = rooms.fits(step.item, step.host, level) and (step.other < 0 or rooms.fits(step.other, fullest, level))
    for item, host in leaving:
        rooms.put(item, host)
    return fits
