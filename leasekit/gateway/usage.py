"""What was asked for, granted and used, over HTTP; and the last lines of a unit's log."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, convert

from leasekit.client.shapes import At, UnitLog
from leasekit.core.answers import AccountDetails, UsageDetails
from leasekit.core.time import DAY, Duration, Instant
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.callers import AUDITOR, USER, VIEWER
from leasekit.gateway.deployment import OfSite, need_office
from leasekit.gateway.door import BROKER, SITE
from leasekit.gateway.instants import instant, moment
from leasekit.gateway.leases import OfProject
from leasekit.gateway.problems import not_found
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.timeline import check_period, patience_of

PERIOD: Final[Duration] = 30 * DAY
"""How far back is looked, unless it is said."""


class UsageOf(OfProject, kw_only=True):
    """Of which project, over which period; ``all``: of all holders, which operators and auditors may see. Who does not
    answer ``within`` so long (10s at most) is ``away``.
    """

    all: bool = False
    since: At | None = None
    until: At | None = None
    within: str | None = None


class ActorUsage(Struct, kw_only=True):
    """The accounts of a broker or a site: what it granted, or what was used, by holder, type and site; ``since`` when
    it knows them. Times are milliseconds, ``offered_unit_ms`` is how much there was of each type.
    """

    actor: str
    role: str
    since: At
    accounts: list[AccountDetails]
    offered_unit_ms: dict[str, int]


class UsageReport(Struct, kw_only=True):
    """What every broker and site says, but those that are ``away``."""

    items: list[ActorUsage]
    away: list[str]


@route("GET", "/usage")
async def usage(call: Call, params: UsageOf) -> UsageReport:
    """Add up what a project, or everybody, asked for, was granted and used, by broker and by site."""
    holder = "" if params.all else call.door.project(call.caller, params.project, VIEWER).name
    if params.all:
        need_office(call, AUDITOR)
    until = instant(params.until) or call.door.clock()
    since = until - PERIOD if params.since is None else instant(params.since) or 0
    check_period(since, until)
    patience = patience_of(params.within)

    async def ask(actor: ActorConnection) -> ActorUsage:
        with actor.within(patience):
            return await _of_actor(actor, holder, since, until)

    actors = [*call.door.of_role(BROKER), *call.door.of_role(SITE)]
    found, away = await call.door.each(actors, ask, needs_one=False)
    return UsageReport(items=list(found.values()), away=[one.name for one in actors if one.name in away])


async def _of_actor(actor: ActorConnection, holder: str, since: Instant, until: Instant) -> ActorUsage:
    found = convert(await actor.request("usage", "", {"since": since, "until": until}), UsageDetails)
    accounts = [one for one in found.accounts if holder in ("", one.holder)]
    since_then, offered = moment(found.since), found.offered_unit_ms
    return ActorUsage(actor=actor.name, role=actor.role, since=since_then, accounts=accounts, offered_unit_ms=offered)


class UnitLines(OfSite, kw_only=True):
    """How many lines."""

    lines: Annotated[int, Meta(ge=1, le=10_000)] = 200


@route("GET", "/units/{unit}/log")
async def site_log(call: Call, unit: str, params: UnitLines) -> UnitLog:
    """Show what a site's drivers said of a unit."""
    need_office(call, AUDITOR)
    answer = await call.door.actor(params.site, SITE).request("unit_log", unit, {"lines": params.lines})
    return UnitLog(lines=answer["lines"])


class GuestLines(OfProject, kw_only=True):
    """How many lines."""

    lines: Annotated[int, Meta(ge=1, le=10_000)] = 200


@route("GET", "/leases/{lease}/units/{unit}/log")
async def lease_log(call: Call, lease: str, unit: str, params: GuestLines) -> UnitLog:
    """Show what the project's drivers said of a unit of a lease."""
    actor = call.door.project(call.caller, params.project, VIEWER)
    shown = await actor.query("lease", lease=lease)
    if unit not in [one["unit"] for one in shown["units"]]:
        raise unprocessable(f"unit: found {unit!r:.80}, which the lease has not")
    answer = await actor.request("unit_log", unit, {"lines": params.lines})
    return UnitLog(lines=answer["lines"])


@route("GET", "/leases/{lease}/units/{unit}/console")
async def unit_console(call: Call, lease: str, unit: str, params: OfProject) -> UnitLog:
    """Show the last lines of the console of a unit of a lease, where its site is of this deployment."""
    actor = call.door.project(call.caller, params.project, USER)
    shown = await actor.query("lease", lease=lease)
    site = call.door.actors.get(shown["site"])
    if site is None:
        raise not_found("site", shown["site"])
    before = await _whose(site, unit)
    if before is None or before[0] != shown["id"]:
        raise unprocessable(f"unit: found {unit!r:.80}, which is not up for the lease")
    asked = {"unit": unit, "operation": "console", "arguments": {}}
    told = await site.command("unit.operate", asked, **call.signed)
    if await _whose(site, unit) != before:  # what was read meanwhile may be another lease's
        raise unprocessable(f"unit: found {unit!r:.80}, which is not up for the lease any more")
    return UnitLog(lines=str(told.get("console", "")).splitlines())


async def _whose(site: ActorConnection, unit: str) -> tuple[str, int] | None:
    """The lease that a unit is up for, and which setup that is."""
    return next(((one["lease"], one["setup"]) for one in await site.query("watched") if one["unit"] == unit), None)
