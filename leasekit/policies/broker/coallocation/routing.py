"""Cheapest paths, one by one and several at once.

One demand by itself takes its cheapest path over the links with enough bandwidth. Several at once may overload a
link that each of them fits on: :func:`route` starts with the cheapest path of each and branches on an overloaded
link, forbidding it to one of its users at a time, the cheapest combination first. A combination without overload
that is taken first is the cheapest of all. Links are shared by both directions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias, final

from leasekit.policies.broker.coallocation.instance import INF, Arc, InstanceDemand, Network

CACHE_MAX: Final = 20_000
"""Rows and paths that are remembered; all are forgotten when there are more."""

Arcs: TypeAlias = Sequence[Sequence[Arc]]
Label: TypeAlias = tuple[int, int]
"""A cost, and the start that it leads to."""


class Path(NamedTuple):
    """A path's cost for one unit of bandwidth, its links as bits, its vertices."""

    cost: int
    links: int
    vertices: tuple[int, ...]


@final
class Oracle:
    """Cheapest paths in one network, remembered. Masks are the bits of links that may not be used."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._rows: dict[tuple[int, int, int, int], Sequence[int]] = {}
        self._paths: dict[tuple[int, int, int, int, int], Path | None] = {}
        self._arcs: dict[int, Arcs] = {0: network.arcs}

    def arcs(self, mask: int) -> Arcs:
        """The arcs whose links are not in the mask."""
        found = self._arcs.get(mask)
        if found is None:
            found = [[arc for arc in leaving if not arc[1] & mask] for leaving in self.network.arcs]
            if len(self._arcs) >= CACHE_MAX // 10:
                self._arcs = {0: self.network.arcs}
            self._arcs[mask] = found
        return found

    def row(self, source: int, mask: int, hops: int, latency: int) -> Sequence[int]:
        """The cheapest cost from a vertex to each other one (0 to itself, INF where no path leads)."""
        key = (source, mask, hops, latency)
        found = self._rows.get(key)
        if found is None:
            if latency < 0:
                row = self._sweep(source, mask, hops)
            else:
                row = [INF] * len(self.network.names)
                for path in self._labels(source, -1, mask, hops, latency):
                    row[path.vertices[-1]] = min(row[path.vertices[-1]], path.cost)
            row[source] = 0
            if len(self._rows) >= CACHE_MAX:
                self._rows = {}
            found = self._rows[key] = row
        return found

    def _sweep(self, source: int, mask: int, hops: int) -> list[int]:
        """The cheapest cost to each vertex, a link further in each round."""
        arcs, transit = self.arcs(mask), self.network.transit
        best = [INF] * len(self.network.names)
        best[source] = 0
        front = {source: 0}
        rounds = hops or len(best)
        while front and rounds:
            rounds -= 1
            reached: dict[int, int] = {}
            for v, cost in front.items():
                if v != source and not transit[v]:
                    continue
                for u, _, value, _ in arcs[v]:
                    there = cost + value
                    if there < best[u]:
                        best[u] = reached[u] = there
            front = reached
        return best

    def nearest(self, starts: Mapping[int, int], weight: int, mask: int, hops: int, keep: int) -> list[list[Label]]:
        """For each vertex the ``keep`` starts that are cheapest from there, in order: a start's own cost plus
        ``weight`` times that of the cheapest path to it. A start is among those of its own vertex, at no distance.

        A label that ``keep`` others beat at some vertex, over no more links, is beaten wherever it leads from there.
        """
        arcs, transit = self.arcs(mask), self.network.transit
        best: list[list[Label]] = [[] for _ in self.network.names]
        front: dict[int, list[Label]] = {}
        for v, cost in starts.items():
            best[v].append((cost, v))
            front[v] = [(cost, v)]
        rounds = hops or len(best)
        first = True
        while front and rounds:
            rounds -= 1
            reached: dict[int, list[Label]] = {}
            for v, labels in front.items():
                if not (first or transit[v]):
                    continue
                for u, _, value, _ in arcs[v]:
                    there, further = best[u], weight * value
                    for cost, origin in labels:
                        after = cost + further
                        if len(there) >= keep and after >= there[-1][0]:
                            continue
                        if _improves(there, after, origin, keep):
                            if u in reached:
                                reached[u].append((after, origin))
                            else:
                                reached[u] = [(after, origin)]
            front, first = reached, False
        return best

    def path(self, source: int, target: int, mask: int, hops: int, latency: int) -> Path | None:
        """The cheapest path; of equal ones that of fewest links, then the first in the order of vertices."""
        key = (source, target, mask, hops, latency)
        if key not in self._paths:
            if len(self._paths) >= CACHE_MAX:
                self._paths = {}
            if source == target:
                found: Path | None = Path(0, 0, (source,))
            else:
                labels = self._labels(source, target, mask, hops, latency)
                found = labels[-1] if labels and labels[-1].vertices[-1] == target else None
            self._paths[key] = found
        return self._paths[key]

    def _labels(self, source: int, target: int, mask: int, hops: int, latency: int) -> list[Path]:
        """Label setting: the paths from ``source`` in order of cost that no other beats in cost, links and latency.

        Ends with the first path to ``target``, if there is one. Links count only where they are limited, and so does
        latency.
        """
        arcs, transit = self.arcs(mask), self.network.transit
        heap: list[tuple[int, int, tuple[int, ...], int, int]] = [(0, 0, (source,), 0, 0)]
        settled: dict[int, list[tuple[int, int]]] = {}
        found = []
        while heap:
            cost, length, vertices, links, late = heappop(heap)
            v = vertices[-1]
            others = settled.setdefault(v, [])
            needs = (length if hops else 0, late if latency >= 0 else 0)
            if any(other[0] <= needs[0] and other[1] <= needs[1] for other in others):
                continue
            others.append(needs)
            if length:
                found.append(Path(cost, links, vertices))
                if v == target:
                    break
            if (hops and length == hops) or (length and not transit[v]):
                continue
            for u, bit, value, delay in arcs[v]:
                after = late + delay
                if u not in vertices and (latency < 0 or after <= latency):
                    heappush(heap, (cost + value, length + 1, (*vertices, u), links | bit, after))
        return found


def _improves(there: list[Label], cost: int, origin: int, keep: int) -> bool:
    """Put a label among those of a vertex, if it is good enough."""
    for place, (other, known) in enumerate(there):
        if known == origin:
            if other <= cost:
                return False
            del there[place]
            break
    insort(there, (cost, origin))
    if len(there) > keep:
        there.pop()
    return True


class Routing(NamedTuple):
    """Paths that fit together, or none with ``cost`` a lower bound of what they would cost (INF: there are none)."""

    cost: int
    paths: tuple[Path, ...] | None
    nodes: int


@final
class Router:
    """Routes demands together over the bandwidth of one frame. ``masks[l]`` are the links too narrow for demand l."""

    def __init__(
        self, oracle: Oracle, demands: Sequence[InstanceDemand], masks: Sequence[int], bw: Sequence[int]
    ) -> None:
        self._oracle = oracle
        self._demands = demands
        self._masks = masks
        self._bw = bw

    def route(self, sites: Sequence[int], below: int, nodes: int) -> Routing:
        """The cheapest paths that fit together, if they cost less than ``below``; ``nodes`` combinations at most."""
        demands = self._demands
        paths = [
            self._oracle.path(sites[d.source], sites[d.target], mask, d.hops, d.latency)
            for d, mask in zip(demands, self._masks, strict=True)
        ]
        if any(path is None for path in paths):
            return Routing(INF, None, 1)
        first = tuple(path for path in paths if path is not None)
        cost = sum(path.cost * demand.bw for path, demand in zip(first, demands, strict=True))
        if cost >= below:
            return Routing(cost, None, 1)
        conflict = self._conflict(first)
        if conflict is None:
            return Routing(cost, first, 1)
        return self._branch(sites, below, nodes, cost, first)

    def _branch(self, sites: Sequence[int], below: int, nodes: int, cost: int, first: tuple[Path, ...]) -> Routing:
        none = tuple(0 for _ in first)
        heap: list[tuple[int, int, tuple[int, ...], tuple[Path, ...]]] = [(cost, 0, none, first)]
        seen = {none}
        taken = made = 0
        while heap:
            cost, _, forbidden, paths = heappop(heap)
            taken += 1
            conflict = self._conflict(paths)
            if conflict is None:
                return Routing(cost, paths, taken)
            if taken >= nodes:
                return Routing(cost, None, taken)
            bit, users = conflict
            for user in users:
                child = (*forbidden[:user], forbidden[user] | bit, *forbidden[user + 1 :])
                if child in seen:
                    continue
                seen.add(child)
                demand = self._demands[user]
                path = self._oracle.path(
                    sites[demand.source],
                    sites[demand.target],
                    self._masks[user] | child[user],
                    demand.hops,
                    demand.latency,
                )
                if path is None:
                    continue
                dearer = cost + (path.cost - paths[user].cost) * demand.bw
                if dearer < below:
                    made += 1
                    heappush(heap, (dearer, made, child, (*paths[:user], path, *paths[user + 1 :])))
        return Routing(INF, None, taken)

    def _conflict(self, paths: Sequence[Path]) -> tuple[int, list[int]] | None:
        """A link that these paths overload, or that twins share, and the demands that use it; None if all fit."""
        together = shared = 0
        for path in paths:
            shared |= together & path.links
            together |= path.links
        worst: tuple[int, list[int]] | None = None
        over = 0
        while shared:
            bit = shared & -shared
            shared ^= bit
            users = [number for number, path in enumerate(paths) if path.links & bit]
            for number in users:
                twin = self._demands[number].twin
                if twin > number and twin in users:
                    return bit, [number, twin]
            excess = sum(self._demands[number].bw for number in users) - self._bw[bit.bit_length() - 1]
            if excess > over:
                over, worst = excess, (bit, users)
        return worst
