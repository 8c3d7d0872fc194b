"""An independent check of a plan, by names: shares no code with the solvers, and is read more easily than they are.

Numbers are taken as they are written (a tenth is a tenth), so that nothing is accepted or refused by rounding.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import attrs

from leasekit.policies.broker.coallocation.model import CoRequest, LinkRequest, ModelOptions, Resources


@attrs.frozen(kw_only=True)
class NamedPlan:
    """A plan in names. ``paths`` has an entry for each requested link, None for one of bandwidth 0; so has ``backups``,
    None where no backup was asked for.
    """

    sites: Mapping[str, str]
    paths: Sequence[Sequence[str] | None]
    backups: Sequence[Sequence[str] | None] = ()
    objective: float | None = None


@attrs.frozen(kw_only=True)
class Free:
    """What is free: CPUs by site, bandwidth by link (its two ends), the value of a CPU by site; numbers as written."""

    cpus: Mapping[str, int]
    bw: Mapping[frozenset[str], float | Fraction]
    vc: Mapping[str, float | Fraction]


def faults(plan: NamedPlan, resources: Resources, request: CoRequest, options: ModelOptions, free: Free) -> list[str]:
    """What is wrong with a plan, a sentence each; nothing if it is good (it need not be the cheapest)."""
    found = [*_hosting(plan, resources, request, options, free)]
    if not found:
        found += _paths(plan, resources, request, options)
    if not found:
        found += _bandwidth(plan, request, free)
        found += _value(plan, resources, request, free)
    return found


def _hosting(
    plan: NamedPlan, resources: Resources, request: CoRequest, options: ModelOptions, free: Free
) -> Iterator[str]:
    vertices = {vertex.id: vertex for vertex in resources.vertices}
    used: Counter[str] = Counter()
    hosts = [plan.sites.get(site.id) for site in request.sites]
    if set(plan.sites) != {site.id for site in request.sites}:
        yield f"it places {', '.join(plan.sites)}, requested were {', '.join(site.id for site in request.sites)}"
        return
    for site, name in zip(request.sites, hosts, strict=True):
        if name is None or name not in vertices or vertices[name].kind != "site":
            yield f"{site.id} is on {name}, which is no site"
            return
        used[name] += site.cpus
        if not set(site.need) <= set(vertices[name].labels):
            yield f"{site.id} needs {', '.join(site.need)}, which {name} lacks"
        if site.pin not in (None, name):
            yield f"{site.id} is pinned to {site.pin}, not {name}"
        if name in site.exclude or name in request.avoid:
            yield f"{site.id} must not be on {name}"
    if options.distinct_sites and len(set(hosts)) < len(hosts):
        yield "two requested sites are on one site"
    for name, cpus in used.items():
        if cpus > free.cpus.get(name, 0):
            yield f"{name} has {free.cpus.get(name, 0)} CPUs free, {cpus} are used"


def _paths(plan: NamedPlan, resources: Resources, request: CoRequest, options: ModelOptions) -> Iterator[str]:
    if len(plan.paths) != len(request.links):
        yield f"it has {len(plan.paths)} paths for {len(request.links)} requested links"
        return
    for number, link in enumerate(request.links):
        path = plan.paths[number]
        backup = plan.backups[number] if number < len(plan.backups) else None
        if link.bw == 0:
            if path is not None or backup is not None:
                yield f"link {number} asks for no bandwidth and has a path"
            continue
        yield from _path(f"the path of link {number}", path, link, plan, resources, request, options)
        if not link.backup:
            if backup is not None:
                yield f"link {number} has a backup that nobody asked for"
            continue
        yield from _path(f"the backup of link {number}", backup, link, plan, resources, request, options)
        if path is not None and backup is not None and _steps(path) & _steps(backup):
            yield f"path and backup of link {number} share a link"


def _path(
    what: str,
    path: Sequence[str] | None,
    link: LinkRequest,
    plan: NamedPlan,
    resources: Resources,
    request: CoRequest,
    options: ModelOptions,
) -> Iterator[str]:
    if not path:
        yield f"{what} is missing"
        return
    ends = (plan.sites[link.from_], plan.sites[link.to])
    if (path[0], path[-1]) != ends:
        yield f"{what} leads from {path[0]} to {path[-1]}, not from {ends[0]} to {ends[1]}"
    if len(set(path)) < len(path):
        yield f"{what} passes a vertex twice"
    links = {frozenset((one.a, one.b)): one for one in resources.links}
    for step in _steps(path):
        if step not in links:
            yield f"{what} takes a link that does not exist: {'-'.join(sorted(step))}"
            return
    for name in path[1:-1]:
        if not next(vertex.transit for vertex in resources.vertices if vertex.id == name):
            yield f"{what} passes through {name}, which allows no transit"
    for name in path:
        if name in request.avoid:
            yield f"{what} touches {name}, which is to be avoided"
    most = options.pmax if link.pmax is None else link.pmax
    if most is not None and len(path) - 1 > most:
        yield f"{what} has {len(path) - 1} links, at most {most} are allowed"
    latency = sum((_exact(links[step].latency) for step in _steps(path)), Fraction(0))
    if link.max_latency is not None and latency > _exact(link.max_latency):
        yield f"{what} takes {float(latency):g}, at most {link.max_latency:g} is allowed"


def _bandwidth(plan: NamedPlan, request: CoRequest, free: Free) -> Iterator[str]:
    loads: Counter[frozenset[str]] = Counter()
    for path, width in _routes(plan, request):
        for step in _steps(path):
            loads[step] += width  # type: ignore[assignment]
    for step, load in loads.items():
        if load > _exact(free.bw[step]):
            yield f"link {'-'.join(sorted(step))} has {float(free.bw[step]):g} free, {float(load):g} is used"


def _value(plan: NamedPlan, resources: Resources, request: CoRequest, free: Free) -> Iterator[str]:
    if plan.objective is None:
        return
    total = sum((_exact(free.vc[plan.sites[site.id]]) * site.cpus for site in request.sites), Fraction(0))
    unit = {frozenset((link.a, link.b)): _exact(link.vb) for link in resources.links}
    for path, width in _routes(plan, request):
        total += sum((unit[step] * width for step in _steps(path)), Fraction(0))
    if abs(float(total) - plan.objective) > 1e-9 * max(1.0, abs(plan.objective)):
        yield f"its value is {float(total):g}, not {plan.objective:g}"


def _routes(plan: NamedPlan, request: CoRequest) -> Iterator[tuple[Sequence[str], Fraction]]:
    for paths in (plan.paths, plan.backups):
        for path, link in zip(paths, request.links, strict=False):
            if path is not None:
                yield path, _exact(link.bw)


def _steps(path: Sequence[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in itertools.pairwise(path)}


@lru_cache(maxsize=1024)
def _exact(number: float | Fraction) -> Fraction:
    return number if isinstance(number, Fraction) else Fraction(str(number))
