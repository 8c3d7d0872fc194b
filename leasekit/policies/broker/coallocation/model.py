"""A co-allocation problem as a person or a mapper writes it down: resources, request, options, frames.

Bandwidths, values and times are numbers in units of the writer's choosing; CPUs are whole numbers. Nothing here knows
actors: a broker builds the same objects from the delegations that it holds. :func:`read_problem` makes a
:class:`Problem` of what a file holds, and :func:`check_problem` says what is wrong with one, by key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from leasekit.core.settings import SettingsError, expect_one_of, is_name, repeated_ids, structure
from leasekit.core.topology import Mode, Sort, unconnected

Solver: TypeAlias = Literal["auto", "highs", "search"]

NUMBER_MAX: Final = 1e12
"""The largest bandwidth, value or time, in the writer's units; the least above zero is its inverse."""

_KEYS: Final[Mapping[str, str]] = {"from": "from_", "from_": "from_ "}
_FROM: Final = re.compile(r"\bfrom_(?! )")
_FRAMES_ONLY: Final = ("reserved", "fraction", "sort")


def _amount(least: float = 0.0, *, above: bool = False) -> Any:
    """A validator for a number of at least (or above) ``least``, neither huge nor tiny: they are scaled to integers."""

    def check(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is None:
            return
        if value < least or (above and value == least):
            raise ValueError(f"'{attribute.name}' must be {'>' if above else '>='} {least:g}: {value}")
        if value != 0 and not 1 / NUMBER_MAX <= abs(value) <= NUMBER_MAX:
            raise ValueError(f"'{attribute.name}' must be 0, or from {1 / NUMBER_MAX:g} to {NUMBER_MAX:g}: {value}")

    return check


_COUNT: Final[Any] = attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(int(NUMBER_MAX)))
_HOPS: Final[Any] = attrs.validators.optional(attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class Vertex:
    """A site, which hosts and may be passed through, or an exchange point, which never hosts.

    ``vc`` is the value of one CPU; ``transit`` whether paths may pass; ``labels`` (``attrs`` in a file) what it offers.
    """

    id: str = attrs.field(validator=is_name)
    kind: Literal["site", "exchange"]
    cpus: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))
    vc: float = attrs.field(default=1.0, validator=_amount())
    transit: bool = True
    labels: tuple[str, ...] = attrs.field(default=(), alias="attrs")


@attrs.frozen(kw_only=True)
class ModelLink:
    """An undirected link: both directions share ``bw``; ``vb`` is the value of one unit of bandwidth."""

    a: str
    b: str
    bw: float = attrs.field(validator=_amount())
    vb: float = attrs.field(default=1.0, validator=_amount())
    latency: float = attrs.field(default=0.0, validator=_amount())

    @property
    def name(self) -> str:
        """How reasons call it."""
        return f"{self.a}-{self.b}"


@attrs.frozen(kw_only=True)
class Resources:
    """The topology: vertices with unique ids, at most one link between two of them."""

    vertices: tuple[Vertex, ...]
    links: tuple[ModelLink, ...] = ()


@attrs.frozen(kw_only=True)
class SiteRequest:
    """A requested site: ``need`` are attributes it must have, ``pin`` is the only site allowed, ``exclude`` are not."""

    id: str = attrs.field(validator=is_name)
    cpus: int = attrs.field(validator=_COUNT)
    need: tuple[str, ...] = ()
    pin: str | None = None
    exclude: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class LinkRequest:
    """A requested link between two requested sites; with bandwidth 0 it only says that they belong together.

    ``pmax`` is the most links of its path, in place of the options'; ``max_latency`` the most latency of a path in
    all; ``backup`` asks for a second path of the same bandwidth that shares no link with the first.
    """

    from_: str
    to: str
    bw: float = attrs.field(validator=_amount())
    pmax: int | None = attrs.field(default=None, validator=_HOPS)
    max_latency: float | None = attrs.field(default=None, validator=_amount())
    backup: bool = False


@attrs.frozen(kw_only=True)
class CoRequest:
    """The requested graph, which must be connected. ``avoid`` are vertices to neither host on nor pass through."""

    sites: tuple[SiteRequest, ...]
    links: tuple[LinkRequest, ...] = ()
    avoid: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ModelOptions:
    """How to solve it. ``pmax`` (None: any) and ``distinct_sites`` are constraints (11) and (5) of the model.

    ``load_balancing`` is the administrator's option A: a CPU's value becomes 1 + floor(99 x reserved / capacity);
    ``preference`` is option B: values of a CPU by patterns of site names (``{"N*": 1, "S*": 10}``), the first that
    fits counts. Seconds for ``time_limit_s``.
    """

    pmax: int | None = attrs.field(default=2, validator=_HOPS)
    distinct_sites: bool = True
    solver: Solver = "auto"
    time_limit_s: float = attrs.field(default=10.0, validator=_amount(above=True))
    load_balancing: bool = False
    preference: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ModelFrames:
    """Start anywhere in ``[est, lst]`` for ``duration``; ``count`` equidistant starts, breakpoints, or both."""

    est: float = attrs.field(validator=_amount(-NUMBER_MAX))
    lst: float = attrs.field(validator=_amount(-NUMBER_MAX))
    duration: float = attrs.field(validator=_amount(above=True))
    count: int = attrs.field(default=10, validator=[attrs.validators.ge(1), attrs.validators.le(10_000)])
    mode: Mode = "equidistant"


@attrs.frozen(kw_only=True)
class ModelReservation:
    """What is taken already over ``[from, to)``: CPUs of a site, or bandwidth of a link."""

    from_: float = attrs.field(validator=_amount(-NUMBER_MAX))
    to: float = attrs.field(validator=_amount(-NUMBER_MAX))
    site: str | None = None
    link: tuple[str, str] | None = None
    cpus: int | None = attrs.field(default=None, validator=attrs.validators.optional(_COUNT))
    bw: float | None = attrs.field(default=None, validator=_amount())


@attrs.frozen(kw_only=True)
class Problem:
    """A whole problem. Without ``frames`` it is one instant, at which all resources are free.

    ``fraction`` is the share of what is free that is shown, rounded down to whole units: what a site discloses, or
    what this class of users may have (option C).
    """

    resources: Resources
    request: CoRequest
    options: ModelOptions = attrs.field(factory=ModelOptions)
    frames: ModelFrames | None = None
    reserved: tuple[ModelReservation, ...] = ()
    fraction: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    sort: Sort = "start"


def read_problem(content: Mapping[str, Any]) -> Problem:
    """A problem of what a JSON file holds. Raises ``SettingsError``: each of its lines names a key, what was found
    and what is allowed.
    """
    try:
        problem = structure(Problem, _renamed(content), "")
    except SettingsError as error:
        raise SettingsError(_FROM.sub("from", line) for line in error.errors) from None
    faults = list(check_problem(problem))
    if problem.frames is None:
        faults += [
            f"{key}: found it without frames, expected frames beside it" for key in _FRAMES_ONLY if key in content
        ]
    if faults:
        raise SettingsError(faults)
    return problem


def _renamed(content: Any) -> Any:
    """Python keeps ``from`` for itself: everywhere that key becomes ``from_``, and that one a key that nobody knows."""
    if isinstance(content, Mapping):
        return {_KEYS.get(key, key): _renamed(value) for key, value in content.items()}
    return [_renamed(item) for item in content] if isinstance(content, list | tuple) else content


def check_problem(problem: Problem) -> Iterator[str]:
    """What is wrong with a problem beyond each value by itself; a line for each fault."""
    yield from check_resources(problem.resources)
    yield from check_request(problem.request, problem.resources, problem.options)
    for pattern, value in problem.options.preference.items():
        if not 0 <= value <= NUMBER_MAX:
            yield f"options.preference.{pattern}: found {value:g}, expected 0 to {NUMBER_MAX:g}"
    frames = problem.frames
    if frames is not None and frames.lst < frames.est:
        yield (
            f"frames.lst: found {frames.lst:g}, before frames.est ({frames.est:g}): the window would be shorter than "
            f"the duration, expected a latest start of at least {frames.est:g}"
        )
    for index, reservation in enumerate(problem.reserved):
        yield from _check_reservation(f"reserved[{index}]", reservation, problem.resources)


def check_resources(resources: Resources) -> Iterator[str]:
    """What is wrong with a topology."""
    ids = [vertex.id for vertex in resources.vertices]
    yield from repeated_ids("resources.vertices", ids)
    for index, vertex in enumerate(resources.vertices):
        if vertex.kind == "site" and vertex.cpus is None:
            yield f"resources.vertices[{index}].cpus: found nothing, expected a whole number: {vertex.id} is a site"
        if vertex.kind == "exchange" and vertex.cpus:
            yield f"resources.vertices[{index}].cpus: found {vertex.cpus}, expected 0: {vertex.id} is an exchange point"
    seen: set[frozenset[str]] = set()
    known = set(ids)
    for index, link in enumerate(resources.links):
        for key, end in (("a", link.a), ("b", link.b)):
            if end not in known:
                yield f"resources.links[{index}].{key}: found {end!r}, {expect_one_of(end, ids)}"
        ends = frozenset((link.a, link.b))
        if len(ends) == 1:
            yield f"resources.links[{index}].b: found {link.b!r} again, expected another vertex than a"
        elif ends in seen:
            yield f"resources.links[{index}]: found a second link {link.name}, expected one between two vertices"
        seen.add(ends)


def check_request(request: CoRequest, resources: Resources, options: ModelOptions) -> Iterator[str]:
    """What is wrong with a request for this topology."""
    ids = [site.id for site in request.sites]
    if not ids:
        yield "request.sites: found an empty list, expected at least one requested site"
        return
    yield from repeated_ids("request.sites", ids)
    kinds = {vertex.id: vertex.kind for vertex in resources.vertices}
    sites = [name for name, kind in kinds.items() if kind == "site"]
    for index, site in enumerate(request.sites):
        named = [("pin", site.pin)] if site.pin is not None else []
        for key, name in [*named, *(("exclude", name) for name in site.exclude)]:
            if kinds.get(name) != "site":
                what = " (an exchange point)" if name in kinds else ""
                yield f"request.sites[{index}].{key}: found {name!r}{what}, {expect_one_of(name, sites)}"
    known = True
    for index, link in enumerate(request.links):
        for key, end in (("from", link.from_), ("to", link.to)):
            if end not in ids:
                known = False
                yield f"request.links[{index}].{key}: found {end!r}, {expect_one_of(end, ids)}"
        if link.from_ == link.to:
            known = False
            yield f"request.links[{index}].to: found {link.to!r} again, expected another requested site than from"
    for name in request.avoid:
        if name not in kinds:
            yield f"request.avoid: found {name!r}, {expect_one_of(name, kinds)}"
    if options.distinct_sites and len(ids) > len(sites):
        yield f"request.sites: found {len(ids)} requested sites, expected at most {len(sites)}: no more sites exist"
    apart = unconnected(ids, [(link.from_, link.to) for link in request.links])
    if known and apart:
        yield (
            f"request.links: found no links that connect {', '.join(apart)} with {ids[0]}, expected a connected "
            "request (a link with bw 0 connects, too)"
        )


def _check_reservation(where: str, reservation: ModelReservation, resources: Resources) -> Iterator[str]:
    if reservation.to <= reservation.from_:
        yield f"{where}.to: found {reservation.to:g}, expected more than from ({reservation.from_:g})"
    if (reservation.site is None) == (reservation.link is None):
        yield f"{where}: found {'both' if reservation.site else 'neither'} of site and link, expected one of them"
        return
    if reservation.site is not None:
        sites = [vertex.id for vertex in resources.vertices if vertex.kind == "site"]
        if reservation.site not in sites:
            yield f"{where}.site: found {reservation.site!r}, {expect_one_of(reservation.site, sites)}"
        wanted, other = "cpus", "bw"
    else:
        assert reservation.link is not None
        links = {frozenset((link.a, link.b)): link.name for link in resources.links}
        if frozenset(reservation.link) not in links:
            found = "-".join(reservation.link)
            yield f"{where}.link: found {found!r}, {expect_one_of(found, links.values())}"
        wanted, other = "bw", "cpus"
    if getattr(reservation, wanted) is None:
        yield f"{where}.{wanted}: found nothing, expected a number"
    if getattr(reservation, other) is not None:
        kind = "site" if wanted == "cpus" else "link"
        yield f"{where}.{other}: found a number, but a reservation of a {kind} has {wanted}"
