"""Requests for several sites and the bandwidth between them, and how a link describes itself.

A :class:`TopologyRequest` is what a guest asks a broker to plan: a graph of sites (units of a type each) and of links
(bandwidth), which are all to be leased over one term of ``duration`` that starts in ``[est, lst]``. It becomes one
request group. It travels as JSON, so that its keys are the same in files, messages and commands.

A link is leased like everything else: a network authority has one resource type for each link, whose units are
granules of bandwidth and whose resource properties say where it leads:

==================  ================================================================================================
resource property   meaning
==================  ================================================================================================
link.a, link.b      its two ends: the names of sites, or of exchange points (which are where no site has that name)
link.granule_mbps   the bandwidth of one unit, in Mbit/s (1)
link.latency_ms     its latency, in milliseconds (0)
link.value          the value of one Mbit/s, which plans keep low (1)
site.value          of computers: the value of one unit (1)
site.transit        of computers: ``no`` if paths must not pass through the site (yes)
==================  ================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from leasekit.core.claims.claim import UNITS_MAX
from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.properties import EMPTY, Properties, check_properties
from leasekit.core.reasons import mark
from leasekit.core.settings import DurationSetting, SettingsError, expect_one_of, repeated_ids, structure
from leasekit.core.time import INSTANT_MAX, Instant, Term

SITES_MAX: Final = 16
"""The most sites of one request."""
LINKS_MAX: Final = 32
"""The most links of one request."""
NAMES_MAX: Final = 64
"""The most names in one list of exclusions."""
ID_LENGTH_MAX: Final = 20
"""The longest id of a member, in characters: ids of leases are made of them."""
BANDWIDTH_MAX: Final = 1e9
"""The most bandwidth of a link, in Mbit/s."""
REQUEST_BYTES_MAX: Final = 16_384
"""The longest request as it travels."""

Sort: TypeAlias = Literal["start", "value"]
Mode: TypeAlias = Literal["equidistant", "breakpoints", "both"]


@attrs.frozen(kw_only=True)
class RequestedSite:
    """A site that is wanted: ``units`` of ``type``, where ``filter`` (over resource properties; empty: any) holds.

    ``pin`` is the only site that will do (empty: any), ``exclude`` are those that won't. ``properties`` are request
    properties, ``configuration`` goes to the site with the redeem. Predecessors are ids of other members.
    """

    id: str
    type: str
    units: int
    filter: str = ""
    pin: str = ""
    exclude: tuple[str, ...] = ()
    properties: Mapping[str, str] = EMPTY
    configuration: Mapping[str, str] = EMPTY
    redeem_predecessor: str = ""
    join_predecessor: str = ""


@attrs.frozen(kw_only=True)
class RequestedLink:
    """Bandwidth of ``bw`` Mbit/s that is wanted between two requested sites (``from`` and ``to`` in a file).

    ``pmax`` is the most links of its path (None: the options'), ``max_latency`` the most latency of the path in ms;
    ``backup`` asks for a second path of the same bandwidth that shares no link with the first.
    """

    id: str
    from_: str
    to: str
    bw: float
    max_latency: float | None = None
    pmax: int | None = None
    backup: bool = False
    properties: Mapping[str, str] = EMPTY
    configuration: Mapping[str, str] = EMPTY
    redeem_predecessor: str = ""
    join_predecessor: str = ""


@attrs.frozen(kw_only=True)
class Frames:
    """The starts that are looked at: ``count`` equidistant ones, each at which anything changes, or both.

    Equidistant ones lie whole multiples of ``unit`` ms after the first.
    """

    count: int = 10
    mode: Mode = "both"
    unit: DurationSetting = 1


@attrs.frozen(kw_only=True)
class PlanOptions:
    """What the user wants of planning: ``pmax`` links of a path at most (0: any), whether requested sites must differ,
    the earliest plan first or the one of least value.
    """

    pmax: int = 2
    distinct_sites: bool = True
    sort: Sort = "start"
    frames: Frames = attrs.field(factory=Frames)


@attrs.frozen(kw_only=True)
class TopologyRequest:
    """A graph to be leased at once. Instants in ms. ``avoid`` are sites and exchange points that no path may touch."""

    sites: tuple[RequestedSite, ...]
    links: tuple[RequestedLink, ...] = ()
    est: Instant
    lst: Instant
    duration: DurationSetting
    slice: str = "main"
    avoid: tuple[str, ...] = ()
    options: PlanOptions = attrs.field(factory=PlanOptions)

    @property
    def members(self) -> tuple[RequestedSite | RequestedLink, ...]:
        """Sites, then links."""
        return (*self.sites, *self.links)

    def term(self, start: Instant) -> Term:
        """The term that begins at ``start``."""
        return Term(start, start + self.duration)

    def check(self) -> list[str]:
        """All that is wrong with it by itself, a line each: the key, what was found, what is allowed."""
        return [*_window_faults(self), *_site_faults(self), *_link_faults(self), *_graph_faults(self)]

    def for_broker(self) -> TopologyRequest:
        """What a broker needs to see of it: without what goes to sites."""
        return attrs.evolve(
            self,
            sites=tuple(attrs.evolve(site, configuration=EMPTY) for site in self.sites),
            links=tuple(attrs.evolve(link, configuration=EMPTY) for link in self.links),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, in the keys of a file; :func:`read_topology` reads it back to an equal request."""
        made: dict[str, Any] = attrs.asdict(self, value_serializer=_plain)
        for link in made["links"]:
            link["from"] = link.pop("from_")
        return made

    def to_bytes(self) -> bytes:
        """As JSON: equal requests are equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def read_topology(content: Mapping[str, Any]) -> TopologyRequest:
    """A request of plain data, as a file or a command has it; ``start`` may stand in place of ``est`` and ``lst``.

    Raises ``SettingsError`` with a line for each fault.
    """
    if not isinstance(content, Mapping):
        raise SettingsError([f"found {type(content).__name__}, expected a table with sites, links and duration"])
    found = dict(content)
    if "start" in found:
        twice = [key for key in ("est", "lst") if key in found]
        if twice:
            raise SettingsError([f"{twice[0]}: found it beside start, expected either start, or est and lst"])
        found["est"] = found["lst"] = found.pop("start")
    links = found.get("links")
    if isinstance(links, list | tuple):
        found["links"] = [_with_names(link, number) for number, link in enumerate(links)]
    try:
        request = structure(TopologyRequest, found, "")
    except SettingsError as error:
        raise SettingsError(map(_written, error.errors)) from None
    faults = request.check()
    if faults:
        raise SettingsError(faults)
    return request


def decode_topology(data: bytes, most: int = REQUEST_BYTES_MAX) -> TopologyRequest:
    """A request from :meth:`TopologyRequest.to_bytes`. Raises ``SettingsError`` for anything else, and for more than
    ``most`` bytes.
    """
    if len(data) > most:
        raise SettingsError([f"request: found {len(data)} bytes, at most {most} are allowed"])
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"request: found no JSON: {error}"]) from None
    return read_topology(content)


def _with_names(link: Any, number: int) -> Any:
    """Python keeps ``from`` for itself; a link without an id is called by its number."""
    if not isinstance(link, Mapping):
        return link
    return {"id": f"link{number}"} | {_INNER.get(key, key): value for key, value in link.items()}


_INNER: Final[Mapping[str, str]] = {"from": "from_", "from_": "from_ "}


def _written(line: str) -> str:
    return line.replace("from_ ", "from\0").replace("from_", "from").replace("from\0", "from_")


def _plain(_: object, field: attrs.Attribute[Any] | None, value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


# -- what can be wrong ------------------------------------------------------------------------------------------------


def _window_faults(request: TopologyRequest) -> Iterator[str]:
    for key, at in (("est", request.est), ("lst", request.lst)):
        if not 0 <= at <= INSTANT_MAX:
            yield f"{key}: found {at}, expected an instant of 0 to {INSTANT_MAX} ms"
    if request.duration < 1 or request.duration > INSTANT_MAX - max(0, request.lst):
        yield f"duration: found {request.duration}, expected at least 1 ms, and an end before {INSTANT_MAX}"
    if request.lst < request.est:
        yield (
            f"lst: found {mark(request.lst)}, before est ({mark(request.est)}): the window is shorter than the "
            f"duration, "
            f"expected a latest start of at least {mark(request.est)}"
        )
    options = request.options
    if not 0 <= options.pmax <= NAMES_MAX:
        yield f"options.pmax: found {options.pmax}, expected 0 (any) to {NAMES_MAX}"
    if not 1 <= options.frames.count <= 1000:
        yield f"options.frames.count: found {options.frames.count}, expected 1 to 1000"
    if not 1 <= options.frames.unit <= INSTANT_MAX:
        yield f"options.frames.unit: found {options.frames.unit}, expected at least 1 ms"
    if not _is_id(request.slice, NAMES_MAX):
        yield f"slice: found {request.slice!r:.80}, expected a name without a slash"
    if len(request.avoid) > NAMES_MAX:
        yield f"avoid: found {len(request.avoid)} names, at most {NAMES_MAX} are allowed"


def _site_faults(request: TopologyRequest) -> Iterator[str]:
    if not 1 <= len(request.sites) <= SITES_MAX:
        yield f"sites: found {len(request.sites)}, expected 1 to {SITES_MAX} requested sites"
    for number, site in enumerate(request.sites):
        where = f"sites[{number}]"
        yield from _member_faults(where, site)
        if not site.type:
            yield f"{where}.type: found nothing, expected the name of a resource type"
        if not 1 <= site.units <= UNITS_MAX:
            yield f"{where}.units: found {site.units}, expected 1 to {UNITS_MAX}"
        if site.filter:
            try:
                parse_filter(site.filter)
            except FilterError as error:
                yield f"{where}.{error}"
        if len(site.exclude) > NAMES_MAX:
            yield f"{where}.exclude: found {len(site.exclude)} names, at most {NAMES_MAX} are allowed"
        if site.pin and site.pin in (*site.exclude, *request.avoid):
            yield f"{where}.pin: found {site.pin!r}, which is excluded"


def _link_faults(request: TopologyRequest) -> Iterator[str]:
    ids = [site.id for site in request.sites]
    if len(request.links) > LINKS_MAX:
        yield f"links: found {len(request.links)}, at most {LINKS_MAX} are allowed"
    for number, link in enumerate(request.links):
        where = f"links[{number}]"
        yield from _member_faults(where, link)
        for key, end in (("from", link.from_), ("to", link.to)):
            if end not in ids:
                yield f"{where}.{key}: found {end!r:.80}, {expect_one_of(end, ids)}"
        if link.from_ == link.to:
            yield f"{where}.to: found {link.to!r:.80} again, expected another requested site than from"
        if not 0 < link.bw <= BANDWIDTH_MAX or link.bw < 1e-6:
            yield f"{where}.bw: found {link.bw:g}, expected more than 0 Mbit/s (at least 0.000001), at most 1e9"
        if link.max_latency is not None and not 0 <= link.max_latency <= INSTANT_MAX:
            yield f"{where}.max_latency: found {link.max_latency:g}, expected milliseconds, at least 0"
        if link.pmax is not None and not 1 <= link.pmax <= NAMES_MAX:
            yield f"{where}.pmax: found {link.pmax}, expected 1 to {NAMES_MAX}"


def _member_faults(where: str, member: RequestedSite | RequestedLink) -> Iterator[str]:
    if not _is_id(member.id, ID_LENGTH_MAX):
        yield (
            f"{where}.id: found {member.id!r:.80}, expected 1 to {ID_LENGTH_MAX} printable characters without a slash, "
            "comma or colon"
        )
    for key, properties in (("properties", member.properties), ("configuration", member.configuration)):
        try:
            check_properties(properties, f"{where}.{key}")
        except ValueError as error:
            yield str(error)


def _is_id(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isprintable() and text.isascii() and not set(text) & set("/,: ")


def _graph_faults(request: TopologyRequest) -> Iterator[str]:
    ids = [member.id for member in request.members]
    yield from repeated_ids("sites, links", ids)
    for kind, members in (("sites", request.sites), ("links", request.links)):
        for number, member in enumerate(members):
            for key in ("redeem_predecessor", "join_predecessor"):
                named = getattr(member, key)
                if named and named not in ids:
                    yield f"{kind}[{number}].{key}: found {named!r:.80}, {expect_one_of(named, ids)}"
    cycle = _cycle(request)
    if cycle:
        yield f"sites, links: found a cycle of predecessors: {' after '.join(cycle)}"
    apart = unconnected([site.id for site in request.sites], [(link.from_, link.to) for link in request.links])
    if apart and all({link.from_, link.to} <= set(ids) for link in request.links):
        first = request.sites[0].id
        yield f"links: found none that connect {', '.join(apart)} with {first}, expected a connected request"


def _predecessors(member: RequestedSite | RequestedLink) -> list[str]:
    return [name for name in (member.redeem_predecessor, member.join_predecessor) if name]


def _cycle(request: TopologyRequest) -> list[str]:
    """The ids of a cycle, each after the next and the first one twice; empty where there is none."""
    try:
        TopologicalSorter({member.id: _predecessors(member) for member in request.members}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def in_order(request: TopologyRequest) -> list[RequestedSite | RequestedLink]:
    """The members, each after its predecessors; those that may go first in the order of the request."""
    left = {member.id: member for member in request.members}
    made: list[RequestedSite | RequestedLink] = []
    while left:
        ready = next(one for one in left.values() if not any(name in left for name in _predecessors(one)))
        made.append(left.pop(ready.id))
    return made


def unconnected(sites: Sequence[str], links: Iterable[tuple[str, str]]) -> list[str]:
    """Those of some sites that no chain of links, each between two sites, connects with the first."""
    reached, grown = set(sites[:1]), True
    every = [set(ends) for ends in links]
    while grown:
        grown = False
        for ends in every:
            if ends & reached and not ends <= reached:
                reached |= ends
                grown = True
    return [site for site in sites if site not in reached]


# -- whether a plan is what was asked for -----------------------------------------------------------------------------


class Leased(NamedTuple):
    """A part of a plan, with what its delegation says: enough to check the plan against its request."""

    part: str
    member: str
    path: int
    site: str
    type: str
    units: int
    properties: Properties


def plan_faults(request: TopologyRequest, parts: Sequence[Leased]) -> list[str]:
    """What a plan lacks of its request, a sentence each; whether it fits what is free is for its book to say."""
    by_member: dict[str, list[Leased]] = {member.id: [] for member in request.members}
    for part in parts:
        if part.member not in by_member:
            return [f"part {part.part} is for {part.member!r}, which was not requested"]
        by_member[part.member].append(part)
    if len({part.part for part in parts}) < len(parts):
        return ["two of its parts have one name"]
    found: list[str] = []
    hosts: dict[str, str] = {}
    for site in request.sites:
        found += _hosted(site, by_member[site.id], request)
        hosts[site.id] = by_member[site.id][0].site if by_member[site.id] else ""
    if request.options.distinct_sites and len(set(hosts.values())) < len(hosts):
        found.append("two requested sites are at one site")
    for link in request.links:
        if not found:
            found += _linked(link, by_member[link.id], (hosts[link.from_], hosts[link.to]), request)
    return found


def _hosted(site: RequestedSite, parts: Sequence[Leased], request: TopologyRequest) -> Iterator[str]:
    if len(parts) != 1:
        yield f"{site.id} has {len(parts)} parts, expected one"
        return
    (part,) = parts
    if (part.type, part.units) != (site.type, site.units):
        yield f"{site.id} gets {part.units} {part.type!r}, not {site.units} {site.type!r}"
    if site.pin not in ("", part.site) or part.site in (*site.exclude, *request.avoid):
        yield f"{site.id} must not be at {part.site}"
    seen = {**part.properties, "site": part.site, "type": part.type}
    if site.filter and not parse_filter(site.filter)(seen):
        yield f"{site.id} must not be at {part.site}: {parse_filter(site.filter).misses(seen)}"


def _linked(
    link: RequestedLink, parts: Sequence[Leased], ends: tuple[str, str], request: TopologyRequest
) -> Iterator[str]:
    if ends[0] == ends[1]:
        if parts:
            yield f"{link.id} has a path within {ends[0]}"
        return
    paths = [[part for part in parts if part.path == number] for number in range(2 if link.backup else 1)]
    if sum(len(path) for path in paths) < len(parts):
        yield f"{link.id} has more paths than were asked for"
    seen: set[frozenset[str]] = set()
    most = link.pmax if link.pmax is not None else request.options.pmax or len(parts)
    for path in paths:
        here, latency, passed = ends[0], Fraction(0), [ends[0]]
        for part in path:
            wire = read_link(part.properties)
            if wire is None or here not in (wire.a, wire.b):
                yield f"{link.id}: {part.type} of {part.site} is no link that goes on from {here}"
                return
            if part.units < wire.units(link.bw):
                yield f"{link.id}: {part.units} units of {part.type} are less than {link.bw:g} Mbit/s"
            if frozenset((wire.a, wire.b)) in seen:
                yield f"{link.id} passes {part.type} twice"
            seen.add(frozenset((wire.a, wire.b)))
            here, latency = wire.b if here == wire.a else wire.a, latency + wire.latency
            passed.append(here)
        if here != ends[1]:
            yield f"{link.id} leads to {here}, not to {ends[1]}"
        if len(path) > most or set(passed) & set(request.avoid):
            yield f"{link.id} takes {' - '.join(passed)}, which is too long or avoided"
        if link.max_latency is not None and latency > exact(link.max_latency):
            yield f"{link.id} takes {float(latency):g} ms, at most {link.max_latency:g} is allowed"


# -- links as resources -----------------------------------------------------------------------------------------------


class LinkEnds(NamedTuple):
    """What a link's resource properties say. ``granule`` in Mbit/s, ``latency`` in ms, ``value`` of one Mbit/s."""

    a: str
    b: str
    granule: Fraction
    latency: Fraction
    value: Fraction

    def units(self, bw: float | Fraction) -> int:
        """How many units a bandwidth takes: as many granules as it needs, counted exactly."""
        return -(-exact(bw) // self.granule)


def read_link(properties: Properties) -> LinkEnds | None:
    """The link that resource properties describe; None where they describe none. Raises ``ValueError`` that names the
    property where they try to.
    """
    if "link.a" not in properties and "link.b" not in properties:
        return None
    a, b = properties.get("link.a", ""), properties.get("link.b", "")
    if not a or not b or a == b:
        raise ValueError(f"link.a, link.b: found {a!r:.80} and {b!r:.80}, expected the names of two different ends")
    granule = number_of(properties, "link.granule_mbps", "1")
    if granule <= 0:
        raise ValueError(f"link.granule_mbps: found {properties['link.granule_mbps']!r:.80}, expected more than 0")
    return LinkEnds(
        a, b, granule, number_of(properties, "link.latency_ms", "0"), number_of(properties, "link.value", "1")
    )


def number_of(properties: Properties, name: str, default: str) -> Fraction:
    """A number of at least 0 from a property, exactly as it is written. Raises ``ValueError`` that names it."""
    text = properties.get(name, default)
    try:
        number = Fraction(text) if len(text) <= 30 and "/" not in text else None
    except (ValueError, ZeroDivisionError):
        number = None
    if number is None or number < 0 or number > 10**12 or number.denominator > 10**12:
        raise ValueError(f"{name}: found {text!r:.80}, expected a number of at least 0, such as 2.5")
    return number


@lru_cache(maxsize=1024, typed=True)
def exact(number: float | Fraction) -> Fraction:
    """The number that was written, not the double nearest to it: 0.1 is a tenth."""
    return number if isinstance(number, Fraction) else Fraction(repr(number))


def known_names(offers: Iterable[tuple[str, LinkEnds | None]]) -> tuple[list[str], list[str]]:
    """The names of sites and of exchange points, sorted, of what is offered: (site, link or None) for each offer.

    A site is where something other than a link is offered; an exchange point is where a link leads to and no site is.
    """
    offered = list(offers)
    sites = {site for site, link in offered if link is None}
    ends = {end for _, link in offered if link is not None for end in (link.a, link.b)}
    return sorted(sites), sorted(ends - sites)
