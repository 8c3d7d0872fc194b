"""What guests will ask for and can never get: told before a run, for it is not worth hours of work to find out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from leasekit.config.build import BuiltActor
from leasekit.config.deployment import Deployment
from leasekit.config.sense import capacities
from leasekit.core.requests import TRUE
from leasekit.core.settings import structure
from leasekit.core.signals import whole_units
from leasekit.core.time import HOUR
from leasekit.policies.guest.load_following import LoadFollowing, LoadFollowingSettings
from leasekit.policies.guest.replaying import Replay, ReplaySettings, ThinkingUsers, UsersSettings
from leasekit.policies.guest.static import StaticDemand, StaticSettings
from leasekit.policies.registry import find_mapper


def unservable(deployment: Deployment, actors: Mapping[str, BuiltActor]) -> Iterator[str]:
    """A line for each guest whose requests, of a list, of jobs or of users, ask for more units of a type than any site
    has, or than the one has that they are for; or whose load has a peak above that. A line for each type of which the
    jobs of all guests come to more work than all sites can do in the time.
    """
    has: dict[tuple[str, str], int] = {}
    most: dict[str, int] = {}
    together: dict[str, int] = {}
    for site in deployment.of_role("authority"):
        for kind, units in capacities(deployment, site.name).items():
            has[kind, site.name] = units
            has[kind, ""] = most[kind] = max(most.get(kind, 0), units)
            together[kind] = together.get(kind, 0) + units
    for name, built in actors.items():
        asked = list(_asked(built))
        vain = [one for one in asked if one.units > has.get((one.type, one.site), 0)]
        if vain:
            widest = max(vain, key=lambda one: one.units)
            where = f"site {widest.site!r}" if widest.site else "the largest site"
            which = "widths" if built.spec.mapper.target == "users" else "requests"
            yield (
                f"{name}: {len(vain)} of {len(asked)} {which} ask for more units than any site has that they may be "
                f"at, the widest for {widest.units} of {widest.type!r}, where {where} has "
                f"{has.get((widest.type, widest.site), 0)}: they can't be granted"
            )
        if (followed := _followed(built)) is not None:
            kind, peak = followed
            if peak > together.get(kind, 0):
                yield (
                    f"{name}: its load has a peak of {peak} of {kind!r}, where all sites together have "
                    f"{together.get(kind, 0)}: the peak can't be served"
                )
            elif peak > most.get(kind, 0):
                yield (
                    f"{name}: its load has a peak of {peak} of {kind!r}, where the largest site has {most[kind]}: it "
                    "needs leases of several sites, which it asks for one after the other"
                )

    yield from _overload(deployment, actors, together)


def _overload(deployment: Deployment, actors: Mapping[str, BuiltActor], together: Mapping[str, int]) -> Iterator[str]:
    assert deployment.emulation is not None, "an emulation is run"
    horizon = deployment.emulation.horizon
    work: Counter[str] = Counter()
    for built in actors.values():
        if (settings := _replays(built)) is not None:
            for job in built.jobs or ():
                work[job.type or settings.type] += job.units * job.run
    for kind, amount in work.items():
        units = together.get(kind, 0)
        if amount > units * horizon > 0:
            yield (
                f"jobs are {amount / HOUR:,.0f} unit-hours of {kind!r}, of which all sites together have "
                f"{units * horizon / HOUR:,.0f} in the time: what waits grows, or is refused"
            )


class _Asked(NamedTuple):
    type: str
    units: int
    site: str


def _asked(built: BuiltActor) -> Iterator[_Asked]:
    """Each request that is known beforehand and takes no fewer; of users each width."""
    spec = built.spec.mapper
    kind = find_mapper(spec.target, built.spec.role, spec.where)
    if issubclass(kind, StaticDemand):
        for demand in structure(StaticSettings, spec.settings, spec.where).demands:
            if demand.properties.get("elastic") != TRUE:
                yield from [_Asked(demand.type, demand.units, demand.site)] * demand.count
    if issubclass(kind, ThinkingUsers):
        users = structure(UsersSettings, spec.settings, spec.where)
        if users.properties.get("elastic") != TRUE:
            yield from (_Asked(users.type, units, "") for units in users.units)
    if (settings := _replays(built)) is not None:
        for job in built.jobs or ():
            if {**settings.properties, **job.properties}.get("elastic") != TRUE:
                yield _Asked(job.type or settings.type, job.units, job.site or settings.site)


def _replays(built: BuiltActor) -> ReplaySettings | None:
    """The settings of a guest that replays jobs."""
    spec = built.spec.mapper
    if not issubclass(find_mapper(spec.target, built.spec.role, spec.where), Replay):
        return None
    return structure(ReplaySettings, spec.settings, spec.where)


def _followed(built: BuiltActor) -> tuple[str, int] | None:
    """The type that a guest follows a load with, and the most units that it can come to want."""
    spec = built.spec.mapper
    if built.signal is None or not issubclass(find_mapper(spec.target, built.spec.role, spec.where), LoadFollowing):
        return None
    settings = structure(LoadFollowingSettings, spec.settings, spec.where)
    peak = max(settings.minimum, int(whole_units(built.signal.peak() * settings.scale)))
    return settings.type, peak if settings.maximum is None else min(peak, settings.maximum)
