"""The delegations that a broker holds, as the planner's network; and the planner's outcome, as parts to be leased.

A site is a vertex, a link's ends are vertices, and what is free of each over time is copied from the timetables of the
delegations. Where a request asks for units of several types, a site is an inner vertex, to which a vertex for each of
the types hangs by a link that costs nothing: two more links for every path.

Bandwidth is leased in granules. Where all links have the same granule, what is requested is rounded up to it
beforehand and the plan is exact; otherwise a plan whose granules don't fit on some link is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias, final

from leasekit.core.filters import parse_filter
from leasekit.core.mappers import PlannedPart, Source
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.core.topology import LinkEnds, RequestedSite, TopologyRequest, exact, number_of, read_link
from leasekit.policies.broker.coallocation.checker import NamedPlan
from leasekit.policies.broker.coallocation.frames import Books
from leasekit.policies.broker.coallocation.instance import Network, Scale, denominator
from leasekit.policies.broker.coallocation.model import (
    CoRequest,
    LinkRequest,
    ModelLink,
    ModelOptions,
    Resources,
    SiteRequest,
    Vertex,
)

WIDE: Final = 1e9
"""The bandwidth of a link within a site."""


class OfferedWire(NamedTuple):
    """A link with the delegations that it can be leased from."""

    ends: LinkEnds
    sources: tuple[Source, ...]


@final
class Offers:
    """What is offered to one request. ``faults`` are the links whose properties can't be read."""

    def __init__(self, request: TopologyRequest, sources: Iterable[Source]) -> None:
        self.request = request
        self.faults: list[str] = []
        self.types = tuple(dict.fromkeys(site.type for site in request.sites))
        self.inner = len(self.types) > 1
        self.hosts: dict[tuple[str, str], list[Source]] = {}
        self.wires: dict[frozenset[str], OfferedWire] = {}
        wires: dict[frozenset[str], list[tuple[LinkEnds, Source]]] = {}
        for source in sources:
            try:
                ends = read_link(source.properties)
            except ValueError as error:
                self.faults.append(f"link {source.type} of {source.site}: {error}")
                continue
            if ends is not None:
                wires.setdefault(frozenset((ends.a, ends.b)), []).append((ends, source))
            elif source.type in self.types:
                self.hosts.setdefault((source.site, source.type), []).append(source)
        for pair, found in wires.items():
            # Between two ends one link is used: that of least latency, then of least value.
            best = min(found, key=lambda one: (one[0].latency, one[0].value, one[1].type, one[1].site))
            alike = [s for ends, s in found if (s.type, s.site) == (best[1].type, best[1].site)]
            self.wires[pair] = OfferedWire(best[0], tuple(alike))
        self.vertices, self.links = self._vertices(), self._links()

    # -- the network -----------------------------------------------------------------------------------------------

    def host(self, site: str, type_: str) -> str:
        """The vertex that hosts units of a type at a site."""
        return f"{site}/{type_}" if self.inner else site

    def _vertices(self) -> list[Vertex]:
        made: dict[str, Vertex] = {}
        for (site, type_), sources in sorted(self.hosts.items()):
            name = self.host(site, type_)
            transit = all(source.properties.get("site.transit", "yes") != "no" for source in sources)
            made[name] = Vertex(
                id=name,
                kind="site",
                cpus=max(source.units for source in sources),
                vc=float(min(_value(source) for source in sources)),
                transit=transit,
                attrs=tuple(self._labels(type_, sources)),
            )
            if self.inner:
                known = made.get(site)
                made[site] = Vertex(id=site, kind="exchange", transit=transit and (known is None or known.transit))
        for wire in self.wires.values():
            for end in (wire.ends.a, wire.ends.b):
                made.setdefault(end, Vertex(id=end, kind="exchange"))
        return list(made.values())

    def _labels(self, type_: str, sources: Sequence[Source]) -> Iterator[str]:
        """Which of the requested sites some of these sources can be, by their ids."""
        for wanted in self.request.sites:
            if wanted.type == type_ and any(fits(wanted, source) for source in sources):
                yield wanted.id

    def _links(self) -> list[ModelLink]:
        made = [
            ModelLink(
                a=wire.ends.a,
                b=wire.ends.b,
                bw=float(wire.ends.granule * max(source.units for source in wire.sources)),
                vb=float(wire.ends.value),
                latency=float(wire.ends.latency),
            )
            for _, wire in sorted(self.wires.items(), key=lambda one: sorted(one[0]))
        ]
        if self.inner:
            made += [ModelLink(a=self.host(*key), b=key[0], bw=WIDE, vb=0.0) for key in sorted(self.hosts)]
        return made

    @property
    def resources(self) -> Resources:
        """The topology."""
        return Resources(vertices=tuple(self.vertices), links=tuple(self.links))

    # -- the request -----------------------------------------------------------------------------------------------

    def wanted(self) -> CoRequest:
        """The request, on this topology."""
        granules = {wire.ends.granule for wire in self.wires.values()}
        common = granules.pop() if len(granules) == 1 else None
        hosts = {self.host(*key) for key in self.hosts}
        sites = tuple(
            SiteRequest(
                id=wanted.id,
                cpus=wanted.units,
                need=(wanted.id,),
                pin=self.host(wanted.pin, wanted.type) if wanted.pin else None,
                exclude=tuple(
                    name for name in (self.host(site, wanted.type) for site in wanted.exclude) if name in hosts
                ),
            )
            for wanted in self.request.sites
        )
        links = tuple(
            LinkRequest(
                from_=wanted.from_,
                to=wanted.to,
                bw=wanted.bw if common is None else float(-(-exact(wanted.bw) // common) * common),
                pmax=None if wanted.pmax is None else wanted.pmax + 2 * self.inner,
                max_latency=wanted.max_latency,
                backup=wanted.backup,
            )
            for wanted in self.request.links
        )
        known = {vertex.id for vertex in self.vertices}
        avoid = [name for name in self.request.avoid if name in known]
        if self.inner:
            avoid += [self.host(*key) for key in sorted(self.hosts) if key[0] in self.request.avoid]
        return CoRequest(sites=sites, links=links, avoid=tuple(avoid))

    def options(self) -> ModelOptions:
        """The user's options."""
        wanted = self.request.options
        pmax = wanted.pmax + 2 * self.inner if wanted.pmax else None
        return ModelOptions(pmax=pmax, distinct_sites=wanted.distinct_sites)

    def unknown(self) -> list[str]:
        """What the request names and nobody offers."""
        sites = sorted({site for site, _ in self.hosts})
        vertices = sorted({end for wire in self.wires.values() for end in (wire.ends.a, wire.ends.b)} | set(sites))
        found = []
        for number, wanted in enumerate(self.request.sites):
            here = sorted(site for site, type_ in self.hosts if type_ == wanted.type)
            if not here:
                found.append(f"sites[{number}].type: found {wanted.type!r}, no site here offers it")
            elif wanted.pin and wanted.pin not in here:
                found.append(
                    f"sites[{number}].pin: found {wanted.pin!r}, sites with {wanted.type!r} are {', '.join(here)}"
                )
            found += [
                f"sites[{number}].exclude: found {name!r}, sites here are {', '.join(sites)}"
                for name in wanted.exclude
                if name not in sites
            ]
        found += [
            f"avoid: found {name!r}, sites and exchange points here are {', '.join(vertices)}"
            for name in self.request.avoid
            if name not in vertices
        ]
        if self.request.options.distinct_sites and len(self.request.sites) > len(sites) and not found:
            found.append(f"sites: found {len(self.request.sites)} requested sites, there are {len(sites)}")
        return found

    # -- what is free ----------------------------------------------------------------------------------------------

    def scale(self, wanted: CoRequest, values: Iterable[float]) -> Scale:
        """What makes all numbers whole."""
        widths = [link.bw for link in self.links] + [link.bw for link in wanted.links]
        widths += [float(wire.ends.granule) for wire in self.wires.values()]
        worths = [v.vc for v in self.vertices] + [link.vb for link in self.links] + list(values)
        delays = [link.latency for link in self.links] + [link.max_latency or 0.0 for link in wanted.links]
        return Scale(denominator(widths), denominator(worths), denominator(delays))

    def books(self, network: Network, since: Instant) -> Books:
        """What is free of everything from ``since`` on."""
        cpus: list[Timetable | None] = [None] * len(network.names)
        for key, sources in self.hosts.items():
            v = network.index[self.host(*key)]
            cpus[v] = _table(sources, network.cpus[v], 1, since)
        tables = []
        for e, link in enumerate(network.links):
            wire = self.wires.get(frozenset((link.a, link.b)))
            if wire is None:
                tables.append(Timetable(network.bw[e]))
            else:
                grain = wire.ends.granule * network.scale.bandwidth
                tables.append(_table(wire.sources, network.bw[e], int(grain), since))
        return Books(network, cpus, tables)

    # -- a plan's parts --------------------------------------------------------------------------------------------

    def parts(self, plan: NamedPlan, frame: Term) -> list[PlannedPart] | str:
        """What is to be leased for a plan, or why that can't be: what is leased of one delegation must fit in it."""
        made: list[PlannedPart] = []
        used: dict[str, int] = {}
        for wanted in self.request.sites:
            site = self._site(plan.sites[wanted.id])
            sources = [source for source in self.hosts[site, wanted.type] if fits(wanted, source)]
            source = _room(sources, wanted.units, frame, used)
            if source is None:
                return f"{site} has no {wanted.units} {wanted.type!r} free in one delegation"
            made.append(PlannedPart(wanted.id, wanted.id, 0, source.id, wanted.units))
        hosts = [self._site(plan.sites[wanted.id]) for wanted in self.request.sites]
        if self.request.options.distinct_sites and len(set(hosts)) < len(hosts):
            return f"two requested sites are both at {next(host for host in hosts if hosts.count(host) > 1)}"
        for wish_, path, backup in zip(self.request.links, plan.paths, plan.backups, strict=True):
            for number, steps in enumerate((path, backup)):
                for hop, pair in enumerate(pairwise(self._outer(steps))):
                    wire = self.wires[frozenset(pair)]
                    units = wire.ends.units(wish_.bw)
                    source = _room(wire.sources, units, frame, used)
                    if source is None:
                        return f"link {'-'.join(pair)} has no {units} granules free in one delegation"
                    made.append(PlannedPart(f"{wish_.id}.{number}.{hop}", wish_.id, number, source.id, units))
        return made

    def _outer(self, path: Sequence[str] | None) -> Sequence[str]:
        """A path without its steps inside of sites."""
        if path is None:
            return ()
        return path[1:-1] if self.inner else path

    def _site(self, vertex: str) -> str:
        return vertex.rpartition("/")[0] if self.inner else vertex


def fits(wanted: RequestedSite, source: Source) -> bool:
    """Whether the filter of a requested site takes a source."""
    if not wanted.filter:
        return True
    return parse_filter(wanted.filter)({**source.properties, "site": source.site, "type": source.type})


def _value(source: Source) -> Fraction:
    try:
        return number_of(source.properties, "site.value", "1")
    except ValueError:
        return Fraction(1)


def _room(sources: Sequence[Source], units: int, frame: Term, used: dict[str, int]) -> Source | None:
    """The first source that has so many units free over the frame, beside those that are ``used`` already."""
    for source in sources:
        if source.term.contains(frame):
            taken = used.get(source.id, 0)
            if source.free.available(frame) - taken >= units:
                used[source.id] = taken + units
                return source
    return None


def _table(sources: Sequence[Source], total: int, grain: int, since: Instant) -> Timetable:
    """The most that any one of the sources has free, from ``since`` on, in grains."""
    taken = [(at, total - min(total, units * grain)) for at, units in _most(sources, since)]
    ends = [*(at for at, _ in taken[1:]), INSTANT_MAX]
    return Timetable.holding(
        total, ((units, Term(at, end)) for (at, units), end in zip(taken, ends, strict=True) if units and at < end)
    )


Steps: TypeAlias = list[tuple[Instant, int]]
"""Instants, and the units free from each on, in order."""


def _most(sources: Sequence[Source], since: Instant) -> Steps:
    """Nothing is free beyond the delegations' terms."""
    each = [_steps(source, since) for source in sources if source.term.end > since]
    return _merged(each) if len(each) > 1 else each[0] if each else [(since, 0)]


def _steps(source: Source, since: Instant) -> Steps:
    term = Term(max(since, source.term.start), source.term.end)
    made = [(since, 0)] if since < term.start else []
    made += [(start, max(0, units)) for start, _, units in source.free.frees(term)]
    return [*made, (term.end, 0)]


def _merged(functions: Sequence[Steps]) -> Steps:
    """The largest of several step functions."""
    now = [0] * len(functions)
    made: Steps = []
    for at, number, units in sorted((at, number, units) for number, one in enumerate(functions) for at, units in one):
        now[number] = units
        if made and made[-1][0] == at:
            made.pop()
        made.append((at, max(now)))
    return made
