"""Co-allocation problems drawn from a seed: small ones with every feature, rings, and a network of 100 sites."""

from __future__ import annotations

from random import Random
from typing import Final

from leasekit.core.time import Term
from leasekit.core.timetable import Shortfall
from leasekit.policies.broker.coallocation.frames import Books
from leasekit.policies.broker.coallocation.instance import Network, scale_of
from leasekit.policies.broker.coallocation.model import (
    CoRequest,
    LinkRequest,
    ModelLink,
    ModelOptions,
    Problem,
    Resources,
    SiteRequest,
    Vertex,
)

EXCHANGES: Final = 10
"""Exchange points of the large network."""

SHAPES: Final = ((2, ((0, 1),)), (3, ((0, 1), (1, 2))), (3, ((0, 1), (1, 2), (0, 2))), (4, ((0, 1), (0, 2), (0, 3))))
"""The paper's four request types, as sites and links between them."""


def small_problem(seed: int) -> Problem:
    """A problem of up to six sites: feasible or not, with ties, links of no value, links that demands must share,
    fractions of bandwidth, attributes, pins, exclusions, sites without transit, latency bounds, backups.
    """
    random = Random(seed)
    sites = random.randint(2, 6)
    names = [f"N{i}" for i in range(sites)] + [f"X{i}" for i in range(random.randint(0, 2))]
    whole: list[float] = [0, 1, 1, 2, 3, 5]
    widths = random.choice([whole, whole, [0, 0.5, 1, 1, 1.5, 2, 5]])
    vertices = [_vertex(random, name) for name in names]
    random.shuffle(vertices)
    links = [
        ModelLink(
            a=a, b=b, bw=random.choice(widths), vb=random.choice([0, 0, 1, 3, 5]), latency=random.choice([0.5, 1, 2, 5])
        )
        for i, a in enumerate(names)
        for b in names[:i]
        if random.random() < 0.55
    ]
    avoid = (random.choice(names),) if random.random() < 0.1 else ()
    wanted_sites, wanted_links = _small_request(random, sites, fractions=0.5 in widths)
    return Problem(
        resources=Resources(vertices=tuple(vertices), links=tuple(links)),
        request=CoRequest(sites=wanted_sites, links=wanted_links, avoid=avoid),
        options=ModelOptions(pmax=random.choice([2, 2, None, 3]), distinct_sites=random.random() < 0.8),
    )


def _vertex(random: Random, name: str) -> Vertex:
    if name[0] == "X":
        return Vertex(id=name, kind="exchange")
    return Vertex(
        id=name,
        kind="site",
        cpus=random.choice([0, 2, 4, 8, 16]),
        vc=random.choice([0, 1, 1, 1, 2, 0.5]),
        transit=random.random() < 0.8,
        attrs=("linux",) if random.random() < 0.7 else (),
    )


def _small_request(
    random: Random, sites: int, *, fractions: bool
) -> tuple[tuple[SiteRequest, ...], tuple[LinkRequest, ...]]:
    count = random.randint(1, min(4, sites))
    # Requests whose sites are alike have the most ties.
    alike = random.random() < 0.5

    def site(j: int) -> SiteRequest:
        if alike:
            return SiteRequest(id=f"r{j}", cpus=2)
        return SiteRequest(
            id=f"r{j}",
            cpus=random.choice([1, 2, 2, 4, 8]),
            need=("linux",) if random.random() < 0.2 else (),
            pin=f"N{random.randrange(sites)}" if random.random() < 0.1 else None,
            exclude=(f"N{random.randrange(sites)}",) if random.random() < 0.1 else (),
        )

    def link(a: int, b: int) -> LinkRequest:
        return LinkRequest(
            from_=f"r{a}",
            to=f"r{b}",
            bw=1 if alike else random.choice([0, 1, 1, 2, 0.5] if fractions else [0, 1, 1, 2]),
            pmax=random.choice([None, None, None, 1, 3]),
            max_latency=random.choice([3, 6]) if random.random() < 0.25 else None,
            backup=random.random() < 0.1,
        )

    pairs = [random.sample((j, random.randrange(j)), 2) for j in range(1, count)]
    pairs += [random.sample(range(count), 2) for _ in range(random.randint(0, 3)) if count > 1]
    return tuple(site(j) for j in range(count)), tuple(link(a, b) for a, b in pairs)


def ring_request(random: Random, size: int) -> CoRequest:
    """A ring of sites with bandwidth between neighbours."""
    return CoRequest(
        sites=tuple(SiteRequest(id=f"r{j}", cpus=random.choice([1, 2])) for j in range(size)),
        links=tuple(LinkRequest(from_=f"r{j}", to=f"r{(j + 1) % size}", bw=random.choice([1, 2])) for j in range(size)),
    )


def typed_request(random: Random) -> CoRequest:
    """One of the paper's request types, with the paper's numbers of CPUs."""
    count, links = random.choice(SHAPES)
    cpus = random.choice([1, 2, 4, 8])
    return CoRequest(
        sites=tuple(SiteRequest(id=f"r{j}", cpus=cpus) for j in range(count)),
        links=tuple(LinkRequest(from_=f"r{a}", to=f"r{b}", bw=1) for a, b in links),
    )


def large_resources(seed: int, domains: int = 20, sites: int = 5) -> Resources:
    """A network like the paper's testbed, ten times as large: in each domain a mesh of sites (5 of bandwidth, value
    5), from each site a link (10, value 3) to each of the domain's two exchange points, which form a ring (40, 3).
    """
    random = Random(seed)
    exchanges = [f"X{x}" for x in range(EXCHANGES)]
    vertices = [Vertex(id=name, kind="exchange") for name in exchanges]
    links = [ModelLink(a=name, b=exchanges[x - 1], bw=40, vb=3) for x, name in enumerate(exchanges)]
    for d in range(domains):
        names = [f"D{d:02}S{s}" for s in range(sites)]
        near = random.sample(exchanges, 2)
        for s, name in enumerate(names):
            cpus, vc = random.choice([8, 16, 32, 64]), random.choice([1, 1, 2, 3])
            vertices.append(Vertex(id=name, kind="site", cpus=cpus, vc=vc))
            links += [ModelLink(a=other, b=name, bw=5, vb=5) for other in names[:s]]
            links += [ModelLink(a=name, b=exchange, bw=10, vb=3) for exchange in near]
    return Resources(vertices=tuple(vertices), links=tuple(links))


def loaded_books(resources: Resources, seed: int, span: Term, cpus: float, bandwidth: float) -> Books:
    """Books with about those shares of CPU time and of bandwidth over the span reserved, in pieces at random."""
    random = Random(seed)
    books = Books.empty(Network(resources, scale_of(resources)))
    for share, tables, pieces in ((cpus, books.cpus, (1, 2, 4, 8)), (bandwidth, books.links, (1,))):
        for table in tables:
            if table is None:
                continue
            left = share * table.capacity_at(span.start) * span.length
            for key in range(10_000):
                duration = min(random.choice([1800, 3600, 7200]), span.length)
                start = random.randrange(span.start, span.end - duration + 1)
                units = random.choice(pieces)
                if left < units * duration / 2:
                    break
                try:
                    table.reserve(key, units, Term(start, start + duration))
                except Shortfall:
                    continue
                left -= units * duration
    return books
