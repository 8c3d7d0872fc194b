"""What each spot costs at least on each vertex, with all that hangs on it.

For each spot and vertex, ``attach`` bounds from below the paths and CPUs of everything below the spot in its tree,
its own CPUs left out: for each child the least, over all vertices, of the child's own bound plus the cheapest path to
it; children that are alike get different sites, and a link outside the tree counts as much as the cheapest path to any
host of its other end. Left out is that paths share links, and that sites differ across the tree.

Bounds of a frame that has at least as much of everything, and nothing dearer, hold for a frame too: frames of one
request share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from leasekit.policies.broker.coallocation.instance import Availability, InstanceShape, Network
from leasekit.policies.broker.coallocation.routing import Oracle


@final
class Ground:
    """What can be had in a frame: ``masks`` are the links too narrow for each demand, ``candidates`` the vertices with
    enough CPUs, and enough bandwidth around them, for each spot.
    """

    def __init__(self, network: Network, shape: InstanceShape, free: Availability) -> None:
        self.network = network
        self.shape = shape
        self.free = free
        narrow = {bw: _narrow(free.bw, bw) | shape.avoid for bw in {demand.bw for demand in shape.demands}}
        self.masks = tuple([narrow[demand.bw] for demand in shape.demands])
        self._wides: dict[int, int] = {}
        found: dict[tuple[object, ...], tuple[int, ...]] = {}
        candidates = []
        for spot, demands in zip(shape.spots, shape.touching, strict=True):
            widths = tuple(sorted(demand.bw for demand in demands))
            key = (spot.cpus, spot.candidates, widths)
            if key not in found:
                found[key] = self._fitting(spot.cpus, spot.candidates, widths)
            candidates.append(found[key])
        self.candidates = tuple(candidates)

    def _fitting(self, needed: int, candidates: Sequence[int], widths: Sequence[int]) -> tuple[int, ...]:
        cpus = self.free.cpus
        fitting = [v for v in candidates if cpus[v] >= needed]
        if widths and self.shape.distinct:
            most = sum(widths)
            wide, touching = self._wide(most), self.network.touching_bits
            fitting = [v for v in fitting if wide & touching[v] or self._room(v, widths[0], most, len(widths))]
        return tuple(fitting)

    def _wide(self, most: int) -> int:
        """The links that could carry all demands of a spot by themselves, as bits."""
        if most not in self._wides:
            bits = (1 << len(self.free.bw)) - 1
            self._wides[most] = bits & ~_narrow(self.free.bw, most) & ~self.shape.avoid
        return self._wides[most]

    def _room(self, v: int, least: int, most: int, count: int) -> bool:
        """Whether the links of a vertex could together carry all demands of a spot there."""
        bw, avoid = self.free.bw, self.shape.avoid
        if least * count == most:
            return sum([bw[e] // least for e in self.network.touching[v] if not avoid >> e & 1]) >= count
        return sum([bw[e] for e in self.network.touching[v] if bw[e] >= least and not avoid >> e & 1]) >= most


@final
class Bounds:
    """Lower bounds by spot and vertex: ``attach`` (see above; vertices without a way on are left out), and ``back``,
    the part of it for a spot's own links outside the tree.
    """

    def __init__(self, ground: Ground, oracle: Oracle) -> None:
        shape, vc = ground.shape, ground.free.vc
        self._ground = ground
        self._oracle = oracle
        self.attach: list[dict[int, int]] = [{} for _ in shape.spots]
        self.back: list[dict[int, int]] = [{} for _ in shape.spots]
        whole: list[dict[int, int]] = [{} for _ in shape.spots]
        for j in reversed(shape.order):
            here = dict.fromkeys(ground.candidates[j], 0)
            for number in shape.back[j]:
                demand = shape.demands[number]
                other = demand.target if demand.source == j else demand.source
                free_of_charge = dict.fromkeys(ground.candidates[other], 0)
                here = self._attached(here, free_of_charge, 1, demand.bw, ground.masks[number], demand.hops)
            self.back[j] = here
            for group in shape.siblings[j]:
                here = self._attached(here, whole[group[0]], len(group), *self._weakest(group[0]))
            self.attach[j] = here
            cpus = shape.spots[j].cpus
            whole[j] = {v: cost + vc[v] * cpus for v, cost in here.items()}

    def _attached(
        self, here: dict[int, int], there: dict[int, int], count: int, weight: int, mask: int, hops: int
    ) -> dict[int, int]:
        """``here`` with the least cost of ``count`` spots attached that cost ``there``, all on different sites."""
        nearest = self._oracle.nearest(there, weight, mask, hops, count + 1)
        found = {}
        for v, cost in here.items():
            labels = nearest[v]
            if not self._ground.shape.distinct:
                if labels:
                    found[v] = cost + count * labels[0][0]
                continue
            least = [label[0] for label in labels if label[1] != v][:count]
            if len(least) == count:
                found[v] = cost + sum(least)
        return found

    def _weakest(self, child: int) -> tuple[int, int, int]:
        """Of the demands between a spot and its parent: bandwidth in all, links too narrow for all, most links."""
        shape, masks = self._ground.shape, self._ground.masks
        numbers = shape.tree[child]
        mask = masks[numbers[0]]
        for number in numbers[1:]:
            mask &= masks[number]
        demands = [shape.demands[number] for number in numbers]
        hops = 0 if any(demand.hops == 0 for demand in demands) else max(demand.hops for demand in demands)
        return sum(demand.bw for demand in demands), mask, hops


def best_of(frames: Sequence[Availability]) -> Availability:
    """A frame that has as much of everything as any of these, at the least value."""
    return Availability(
        tuple(map(max, zip(*(free.cpus for free in frames), strict=True))),
        tuple(map(max, zip(*(free.bw for free in frames), strict=True))),
        tuple(map(min, zip(*(free.vc for free in frames), strict=True))),
    )


def _narrow(bw: Sequence[int], wanted: int) -> int:
    """The links that have less than is wanted, as bits."""
    if min(bw, default=wanted) >= wanted:
        return 0
    mask = 0
    for e, free in enumerate(bw):
        if free < wanted:
            mask |= 1 << e
    return mask
