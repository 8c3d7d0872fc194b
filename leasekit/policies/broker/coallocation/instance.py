"""A problem in whole numbers, as the solvers see it: exact, and quick to index.

Bandwidths, values and latencies are scaled so that all are integers (a :class:`Scale`); costs are in units of value
scale x bandwidth scale, so that costs of CPUs and of bandwidth add up. Vertices, links, requested sites ("spots")
and demands are numbers; sets of links are the bits of an integer. A requested link with a backup is two demands
between the same spots, each the other's twin; one with bandwidth 0 is none.

:class:`Network` is made once for a topology, :class:`InstanceShape` once for a request, :class:`Availability` for each
frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from fractions import Fraction
from math import lcm
from typing import Final, Literal, NamedTuple, TypeAlias, final

from leasekit.core.topology import exact
from leasekit.policies.broker.coallocation.model import CoRequest, ModelOptions, Resources, SiteRequest

INF: Final = 1 << 240
"""More than every cost: the largest ones are products of four numbers of at most 40 bits and their scales."""

Status: TypeAlias = Literal["optimal", "infeasible", "bound"]
Arc: TypeAlias = tuple[int, int, int, int]
"""Where it leads, its link's bit, its link's unit value, its latency."""


def denominator(numbers: Iterable[float]) -> int:
    """The least factor that makes all of them whole."""
    found = 1
    for number in numbers:
        if number != int(number):
            found = lcm(found, exact(number).denominator)
    return found


class Scale(NamedTuple):
    """What bandwidths, values and latencies were multiplied with."""

    bandwidth: int = 1
    value: int = 1
    latency: int = 1

    def money(self, cost: int) -> int | float:
        """A cost in the writer's units of value; whole where it is."""
        found = Fraction(cost, self.bandwidth * self.value)
        return found.numerator if found.denominator == 1 else float(found)


def scale_of(
    resources: Resources,
    requests: Iterable[CoRequest] = (),
    *,
    bandwidths: Iterable[float] = (),
    values: Iterable[float] = (),
) -> Scale:
    """The scale for a topology, requests on it, and other bandwidths and values that come up."""
    wanted = [link for request in requests for link in request.links]
    return Scale(
        bandwidth=denominator([*(link.bw for link in resources.links), *(link.bw for link in wanted), *bandwidths]),
        value=denominator([*(v.vc for v in resources.vertices), *(link.vb for link in resources.links), *values]),
        latency=denominator(
            [*(link.latency for link in resources.links), *(link.max_latency or 0.0 for link in wanted)]
        ),
    )


def scaled(number: float, scale: int) -> int:
    """A number in whole scaled units. Raises ``ValueError`` where the scale doesn't make it whole."""
    found = exact(number) * scale
    if found.denominator != 1:
        raise ValueError(f"{number} is no multiple of 1/{scale}")
    return found.numerator


@final
class Network:
    """A topology: ``arcs[v]`` lead away from a vertex, ``ends[e]`` are a link's two vertices.

    ``rank`` is a vertex's place in the order of names, which breaks ties.
    """

    def __init__(self, resources: Resources, scale: Scale) -> None:
        self.scale = scale
        self.names = tuple(vertex.id for vertex in resources.vertices)
        self.index: Mapping[str, int] = {name: number for number, name in enumerate(self.names)}
        self.vertices = resources.vertices
        self.sites = tuple(v for v, vertex in enumerate(resources.vertices) if vertex.kind == "site")
        self.transit = tuple(vertex.transit for vertex in resources.vertices)
        self.cpus = tuple(vertex.cpus or 0 for vertex in resources.vertices)
        self.vc = tuple(scaled(vertex.vc, scale.value) * scale.bandwidth for vertex in resources.vertices)
        self.links = resources.links
        self.ends = tuple((self.index[link.a], self.index[link.b]) for link in resources.links)
        self.bw = tuple(scaled(link.bw, scale.bandwidth) for link in resources.links)
        self.vb = tuple(scaled(link.vb, scale.value) for link in resources.links)
        self.latency = tuple(scaled(link.latency, scale.latency) for link in resources.links)
        self.link_of: Mapping[frozenset[int], int] = {frozenset(ends): e for e, ends in enumerate(self.ends)}
        order = sorted(range(len(self.names)), key=lambda v: self.names[v])
        self.rank = _ranks(order)
        self._arrange()

    def _arrange(self) -> None:
        arcs: list[list[Arc]] = [[] for _ in self.names]
        for e, (a, b) in enumerate(self.ends):
            arcs[a].append((b, 1 << e, self.vb[e], self.latency[e]))
            arcs[b].append((a, 1 << e, self.vb[e], self.latency[e]))
        self.arcs = tuple(tuple(leaving) for leaving in arcs)
        self.touching_bits = tuple(sum(bit for _, bit, _, _ in leaving) for leaving in arcs)
        self.touching = tuple(tuple(bit.bit_length() - 1 for _, bit, _, _ in leaving) for leaving in self.arcs)

    def revalued(self, vb: Sequence[int]) -> Network:
        """The same network with other (scaled) values of bandwidth, by link."""
        twin = copy(self)
        twin.vb = tuple(vb)
        twin._arrange()
        return twin

    def preferred(self, preference: Mapping[str, float]) -> tuple[int, ...]:
        """The values of a CPU at each vertex under the administrator's preference (option B)."""
        values = list(self.vc)
        for v in self.sites:
            for pattern, value in preference.items():
                if fnmatchcase(self.names[v], pattern):
                    values[v] = scaled(value, self.scale.value) * self.scale.bandwidth
                    break
        return tuple(values)


def _ranks(order: Sequence[int]) -> tuple[int, ...]:
    ranks = [0] * len(order)
    for place, v in enumerate(order):
        ranks[v] = place
    return tuple(ranks)


class Spot(NamedTuple):
    """A requested site: its CPUs, and the vertices that may host it at any load, in order of names."""

    name: str
    cpus: int
    candidates: tuple[int, ...]


class InstanceDemand(NamedTuple):
    """One path that is wanted: ``hops`` at most (0: any number), ``latency`` at most (-1: any), ``link`` the number
    of the requested link, ``twin`` the demand that it must share no link with (-1: none).
    """

    link: int
    source: int
    target: int
    bw: int
    hops: int
    latency: int
    twin: int = -1


class Availability(NamedTuple):
    """One frame: free CPUs and the value of a CPU by vertex, free bandwidth by link; scaled."""

    cpus: tuple[int, ...]
    bw: tuple[int, ...]
    vc: tuple[int, ...]


class InstanceOutcome(NamedTuple):
    """What a solver found. ``cost`` is None without a plan; ``bound`` is a cost that no plan is below.

    ``sites`` hosts each spot, ``paths`` are the vertices of each demand's path. ``optimal`` and ``infeasible`` are
    proven; ``bound`` means that a limit was met first.
    """

    status: Status
    cost: int | None
    bound: int
    sites: tuple[int, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    nodes: int = 0


@final
class InstanceShape:
    """A request against a network, without regard to what is free: spots, demands, and the order of the search.

    ``order`` visits the spots along a spanning forest, ``parent`` is the spot that a spot is attached to (-1: none),
    ``tree[j]`` the demands that attach it, ``back[j]`` the other demands to spots that come earlier in the order.
    ``kinds`` are the CPUs and candidates that spots have. ``peers[j]`` are the spots that j could trade places with:
    of those, only placements in the order of names are looked at.
    """

    def __init__(self, network: Network, request: CoRequest, options: ModelOptions) -> None:
        self.distinct = options.distinct_sites
        index = {site.id: number for number, site in enumerate(request.sites)}
        avoided = {network.index[name] for name in request.avoid}
        self.spots = tuple(_spot(network, site, avoided) for site in request.sites)
        self.demands = _demands(network, request, options, index)
        self.avoid = sum(1 << e for e, ends in enumerate(network.ends) if avoided & set(ends))
        self.total_cpus = sum(spot.cpus for spot in self.spots)
        self.kinds = tuple(dict.fromkeys((spot.cpus, spot.candidates) for spot in self.spots))
        self._arrange()

    def with_demands(self, demands: Sequence[InstanceDemand]) -> InstanceShape:
        """The same spots with other demands."""
        twin = copy(self)
        twin.demands = tuple(demands)
        twin._arrange()
        return twin

    def _arrange(self) -> None:
        self.total_bw = sum(demand.bw for demand in self.demands)
        self._plant()
        self.touching = tuple(
            tuple(demand for demand in self.demands if j in (demand.source, demand.target))
            for j in range(len(self.spots))
        )

    def _plant(self) -> None:
        """Order the spots depth first from the first one, neighbours in the order of the request."""
        count = len(self.spots)
        near: list[set[int]] = [set() for _ in range(count)]
        for demand in self.demands:
            near[demand.source].add(demand.target)
            near[demand.target].add(demand.source)
        order: list[int] = []
        parent = [-1] * count
        seen: set[int] = set()
        for root in range(count):
            stack = [(root, -1)]
            while stack:
                j, above = stack.pop()
                if j in seen:
                    continue
                seen.add(j)
                parent[j] = above
                order.append(j)
                stack.extend((other, j) for other in sorted(near[j] - seen, reverse=True))
        place = {j: k for k, j in enumerate(order)}
        tree: list[list[int]] = [[] for _ in range(count)]
        back: list[list[int]] = [[] for _ in range(count)]
        for number, demand in enumerate(self.demands):
            low, high = sorted((demand.source, demand.target), key=place.__getitem__)
            (tree if parent[high] == low else back)[high].append(number)
        self.order, self.parent = tuple(order), tuple(parent)
        self.tree, self.back = tuple(map(tuple, tree)), tuple(map(tuple, back))
        self.children = tuple(tuple(c for c in order if parent[c] == j) for j in range(count))
        self.peers = _peers(self.spots, self.demands)
        self.siblings = tuple(self._grouped(self.children[j]) for j in range(count))
        self.alike = tuple(
            next((group[0] for group in self.siblings[p] if j in group), j) if p >= 0 else j
            for j, p in enumerate(parent)
        )
        hanging = [[c for c in order[k + 1 :] if parent[c] == -1 or place[parent[c]] < k] for k in range(count)]
        self.frontier = tuple(self._grouped(spots) for spots in hanging)

    def _grouped(self, spots: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Spots that hang on the same one and could trade places, together; the others by themselves."""
        groups: list[list[int]] = []
        for j in spots:
            for group in groups:
                if j in self.peers[group[0]] and self.parent[j] == self.parent[group[0]]:
                    group.append(j)
                    break
            else:
                groups.append([j])
        return tuple(map(tuple, groups))


def _spot(network: Network, site: SiteRequest, avoided: set[int]) -> Spot:
    fitting = [
        v
        for v in network.sites
        if v not in avoided
        and network.names[v] not in site.exclude
        and site.pin in (None, network.names[v])
        and set(site.need) <= set(network.vertices[v].labels)
    ]
    return Spot(site.id, site.cpus, tuple(sorted(fitting, key=network.rank.__getitem__)))


def _demands(
    network: Network, request: CoRequest, options: ModelOptions, index: Mapping[str, int]
) -> tuple[InstanceDemand, ...]:
    made: list[InstanceDemand] = []
    for number, link in enumerate(request.links):
        if link.bw == 0:
            continue
        hops = link.pmax if link.pmax is not None else options.pmax or 0
        latency = -1 if link.max_latency is None else scaled(link.max_latency, network.scale.latency)
        bw = scaled(link.bw, network.scale.bandwidth)
        demand = InstanceDemand(number, index[link.from_], index[link.to], bw, hops, latency)
        if link.backup:
            made.append(demand._replace(twin=len(made) + 1))
            made.append(demand._replace(twin=len(made) - 1))
        else:
            made.append(demand)
    return tuple(made)


def _peers(spots: Sequence[Spot], demands: Sequence[InstanceDemand]) -> tuple[tuple[int, ...], ...]:
    """For each spot those that it is interchangeable with: the same wants, and the same demands to all others."""

    def seen_with(trade: Mapping[int, int]) -> list[tuple[int, ...]]:
        return sorted(
            (
                *sorted((trade.get(d.source, d.source), trade.get(d.target, d.target))),
                d.bw,
                d.hops,
                d.latency,
                d.twin >= 0,
            )
            for d in demands
        )

    plain = seen_with({})
    return tuple(
        tuple(
            k
            for k, other in enumerate(spots)
            if k != j
            and (other.cpus, other.candidates) == (spot.cpus, spot.candidates)
            and seen_with({j: k, k: j}) == plain
        )
        for j, spot in enumerate(spots)
    )
