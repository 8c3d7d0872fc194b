"""Leases over HTTP: asked for, looked at, changed and closed, each as a project's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import trio
from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict

from leasekit.actors.settings import GuestSettings
from leasekit.client.shapes import (
    At,
    Close,
    DryRunResult,
    KeptLease,
    Lease,
    LeaseExtend,
    LeaseModify,
    LeasePage,
    LeaseRequest,
    LeaseUnit,
    SayAlive,
    TransitionPage,
)
from leasekit.config.instants import dated
from leasekit.core.commands import PAST_PAGE
from leasekit.core.leases import service_manager as sm
from leasekit.core.properties import Vector, read_amount
from leasekit.core.reasons import Code
from leasekit.core.requests import WantedLease, keepalive_of
from leasekit.core.time import format_duration
from leasekit.gateway.actors import ActorAwayError, ActorConnection, RefusedError
from leasekit.gateway.callers import USER, VIEWER
from leasekit.gateway.door import SITE
from leasekit.gateway.events import transition
from leasekit.gateway.instants import instant, moment, span, told, told_reason
from leasekit.gateway.paging import page_of
from leasekit.gateway.policies import admit, had_or_asked
from leasekit.gateway.problems import not_found
from leasekit.gateway.routing import Call, number_of, route, unprocessable

PAGE: Final = 100
PAGE_MAX: Final = 1_000
ANSWER_WITHIN: Final = GuestSettings().request_timeout
PLANNED_WITHIN: Final = 2.0
"""How long a site is waited for that is to say what it plans for a lease, in seconds."""
Page = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


class OfProject(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which project: not needed where somebody has one."""

    project: str = ""


class LeaseList(OfProject, kw_only=True):
    """Which leases of a project; ``all``: those that are over, too; ``since`` and ``until``: those that had, or will
    have, a part of that time. ``cursor`` is a page's ``next``; ``order`` is a field of leases that go on, the largest
    first with ``-`` before it.
    """

    all: bool = False
    since: At | None = None
    until: At | None = None
    state: Literal["", "nascent", "ticketed", "active", "active_ticketed", "closed", "failed"] = ""
    type: str = ""
    slice: str = ""
    site: str = ""
    limit: Page = PAGE
    cursor: str = ""
    order: str = ""


class HistoryPage(OfProject, kw_only=True):
    """Which part of a history."""

    limit: Page = PAGE
    cursor: str = ""


@route("GET", "/leases/{lease}")
async def show_lease(call: Call, lease: str, params: OfProject) -> Lease:
    """Show one lease, by its id, or its name in the project."""
    actor = await holder(call, params.project, lease, VIEWER)
    shown = await actor.query("lease", lease=lease)
    found = _lease(actor.name, shown)
    found.planned = await _planned(call, shown)
    return found


async def _planned(call: Call, shown: Mapping[str, Any]) -> list[str]:
    """What its site plans for a lease that it knows, and whose term is to come."""
    site = call.door.actors.get(shown["site"])
    if site is None or site.role != SITE or (shown["state"], shown["pending"]) != (sm.TICKETED, sm.REDEEMING):
        return []
    with suppress(ActorAwayError, RefusedError), trio.move_on_after(PLANNED_WITHIN):  # away, or has not heard of it yet
        return list((await site.query("lease", lease=shown["id"]))["planned"])
    return []


@route("GET", "/leases")
async def list_leases(call: Call, params: LeaseList) -> LeasePage:
    """List the leases of a project: those that go on, in the order of their ids, and then those that are over.
    One that ends between two pages may come again, as it is by then. With `order` those that go on alone, by a field.
    """
    actor = call.door.project(call.caller, params.project, VIEWER)
    wanted = {name: value for name in ("state", "type", "slice", "site") if (value := getattr(params, name))}
    if params.order:
        return await _in_order(actor, wanted, params)
    part, _, at = params.cursor.partition(":")
    if part not in ("", "live", "past") or (part == "past" and number_of(at.partition(":")[0] or "0") is None):
        raise unprocessable(f"cursor: found {params.cursor!r:.60}, expected what the page before gave as next")
    found: list[dict[str, Any]] = []
    if part != "past":
        live = await actor.query("leases", after=at, limit=params.limit + 1, **wanted)
        found = [dict(one) for one in live[: params.limit] if _is_within(one, params)]
        if len(live) > params.limit:
            next_ = f"live:{live[params.limit - 1]['id']}"
            return LeasePage(items=[_lease(actor.name, one) for one in found], next=next_)
        at = ""
    following = None
    if params.all:
        past, following = await _past(actor, at, wanted, params, params.limit - len(found))
        over = {one["id"] for one in past}
        found = [one for one in found if one["id"] not in over] + past  # one that has ended since it was asked for
    return LeasePage(items=[_lease(actor.name, one) for one in found], next=following)


async def _in_order(actor: ActorConnection, wanted: Mapping[str, str], params: LeaseList) -> LeasePage:
    """Leases that go on, by a field, for which all of them are looked at. Raises :class:`ProblemError`."""
    if params.all:
        raise unprocessable("order: found one with all, leases that are over come in the order of their ends")
    page = page_of(Lease, params.limit, params.cursor, params.order)
    live = await actor.query("leases", **wanted)
    items, cursor = page.of([_lease(actor.name, one) for one in live if _is_within(one, params)])
    return LeasePage(items=items, next=cursor or None)


def _is_within(lease: Mapping[str, Any], params: LeaseList) -> bool:
    """Whether a lease that goes on has a part of the time that is asked for."""
    since, until = instant(params.since), instant(params.until)
    return (since is None or lease["end"] > since) and (until is None or lease["start"] < until)


async def _past(
    actor: ActorConnection, at: str, wanted: Mapping[str, str], params: LeaseList, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Leases that are over, in the order in which they ended, and where the next page begins."""
    ended, _, id_ = at.partition(":")
    found: list[dict[str, Any]] = []
    after: Mapping[str, Any] = {"ended": number_of(ended) or 0, "id": id_}
    term = {"since": instant(params.since), "until": instant(params.until)}
    of = {"state": params.state, **{name: at for name, at in term.items() if at is not None}}
    while limit > len(found):
        most = min(PAST_PAGE, limit - len(found))
        answer = await actor.request("past", "", {"limit": most, **of, **after})
        page, after = answer["leases"], answer["after"]
        if not page:
            return found, None
        found += [one for one in page if all(one[name] == value for name, value in wanted.items())]
    return found, f"past:{after['ended']}:{after['id']}" if after else None


@route("POST", "/leases", status=HTTPStatus.CREATED)
async def request_lease(call: Call, params: OfProject, body: LeaseRequest) -> Lease:
    """Ask for a lease. It is there, and asked for, when this is answered; whether it is granted its state says."""
    actor, arguments = asked_for(call, params.project, body)
    await admit(call, actor, "lease.request", arguments)
    made = await actor.command("lease.request", arguments, **call.signed)
    return _lease(actor.name, await actor.query("lease", lease=made["id"]))


@route("POST", "/leases/dry-run")
async def try_request(call: Call, params: OfProject, body: LeaseRequest) -> DryRunResult:
    """Say what the broker would answer to a request. Nothing is asked for."""
    actor, arguments = asked_for(call, params.project, body)
    return await _tried(call, actor, "lease.dry_run", arguments)


def asked_for(call: Call, project: str, body: LeaseRequest, role: str = USER) -> tuple[ActorConnection, dict[str, Any]]:
    """Who asks, and the arguments of the command: the same whenever the same is asked, as keys have it. Raises
    ``LeasekitError``.
    """
    return call.door.project(call.caller, project, role), wanted_lease(body).arguments(None, ANSWER_WITHIN)


@route("POST", "/leases/{lease}/extend")
async def extend_lease(call: Call, lease: str, params: OfProject, body: LeaseExtend) -> Lease:
    """Renew a lease beyond its end, or that of its last extension."""
    actor = await holder(call, params.project, lease, USER)
    return await _changed(call, actor, "lease.extend", extension(lease, body))


@route("POST", "/leases/{lease}/extend/dry-run")
async def try_extend(call: Call, lease: str, params: OfProject, body: LeaseExtend) -> DryRunResult:
    """Say what the broker would answer to a renewal. Nothing changes."""
    actor = await holder(call, params.project, lease, USER)
    return await _tried(call, actor, "lease.dry_run_extend", extension(lease, body))


def extension(lease: str, body: LeaseExtend) -> dict[str, Any]:
    """The arguments of ``lease.extend``. Raises :class:`ProblemError`."""
    length, end = span(body.length, "length"), instant(body.end)
    if (length is None) == (end is None):
        raise unprocessable("end: either end or length is to be said")
    until = {"end": end} if length is None else {"length": length}
    return {"lease": lease, "units": body.units, "victims": body.victims, "properties": body.properties, **until}


@route("POST", "/leases/{lease}/undo-extend")
async def undo_extend(call: Call, lease: str, params: OfProject) -> Lease:
    """Take the last extension of a lease back, which has not begun."""
    actor = await holder(call, params.project, lease, USER)
    return await _changed(call, actor, "lease.undo_extend", {"lease": lease})


@route("PATCH", "/leases/{lease}")
async def modify_lease(call: Call, lease: str, params: OfProject, body: LeaseModify) -> Lease:
    """Change a lease: its units, its end, its configuration; before it begins its start and its filter as well."""
    actor = await holder(call, params.project, lease, USER)
    return await _changed(call, actor, "lease.modify", modification(lease, body))


@route("POST", "/leases/{lease}/modify/dry-run")
async def try_modify(call: Call, lease: str, params: OfProject, body: LeaseModify) -> DryRunResult:
    """Say what the broker would answer to a change. Nothing changes."""
    actor = await holder(call, params.project, lease, USER)
    return await _tried(call, actor, "lease.dry_run_modify", modification(lease, body))


def modification(lease: str, body: LeaseModify) -> dict[str, Any]:
    """The arguments of ``lease.modify``. Raises :class:`ProblemError` for no change at all."""
    if body == LeaseModify():
        allowed = ", ".join(LeaseModify.__struct_encode_fields__)
        raise unprocessable(f"body: found nothing that changes, expected at least one of {allowed}")
    return {
        "lease": lease, "units": body.units, "start": instant(body.start), "end": instant(body.end),
        "filter": body.filter, "victims": body.victims,
        "configuration": None if body.configuration is UNSET else body.configuration,
    }  # fmt: skip


@route("POST", "/leases/{lease}/close")
async def close_lease(call: Call, lease: str, params: OfProject, body: Close) -> Lease:
    """End a lease early; what is left of its time goes back to the broker."""
    actor = await holder(call, params.project, lease, USER)
    return await _changed(call, actor, "lease.close", {"lease": lease, "reason": body.reason})


@route("POST", "/leases/{lease}/keepalive")
async def keep_alive(call: Call, lease: str, params: OfProject, body: SayAlive) -> KeptLease:
    """Say that the holder of a lease is there; with ``length`` it may be silent for so long from now on."""
    actor = await holder(call, params.project, lease, USER)
    kept = await actor.command(
        "lease.keepalive", {"lease": lease, "length": span(body.length, "length")}, **call.signed
    )
    return told(KeptLease, kept, keepalive=format_duration(kept["length"]))


@route("GET", "/leases/{lease}/history")
async def lease_history(call: Call, lease: str, params: OfProject) -> TransitionPage:
    """What happened to a lease, oldest first: its transitions, and who commanded what."""
    actor = await holder(call, params.project, lease, VIEWER)
    id_ = (await actor.query("lease", lease=lease))["id"]
    return TransitionPage(items=[transition(actor.name, row) for row in await history(actor, id_)])


async def history(guest: ActorConnection, lease: str) -> list[Mapping[str, Any]]:
    """The log's rows of a lease, oldest first; before them, of one that is part of a topology, those of that."""
    rows: list[Mapping[str, Any]] = await guest.request("history", lease, {})
    whole = next((row["because"]["who"] for row in rows if row["event"] == "part"), None)
    return rows if whole is None else [*await guest.request("history", whole, {}), *rows]


async def holder(call: Call, project: str, lease: str, role: str) -> ActorConnection:
    """The guest whose lease that is: of the project that is named, or of those that the caller may look into. Raises
    :class:`ProblemError`, also for a name that leases of several of these have: what is closed is to be the one that
    is meant. One that goes on comes before those that are over.
    """
    names = [project] if project else call.door.projects(call.caller)
    if len(names) == 1:
        return call.door.project(call.caller, names[0], role)
    found: dict[str, bool] = {}
    for name in names:
        actor = call.door.project(call.caller, name, VIEWER)
        try:
            shown = await actor.query("lease", lease=lease)
        except RefusedError as error:
            if (error.because or {}).get("code") == Code.NOT_FOUND:
                continue
            raise  # leases of several slices there have that name
        if shown["id"] == lease:
            return call.door.project(call.caller, name, role)
        found[name] = shown["state"] in (sm.CLOSED, sm.FAILED)
    meant = [name for name, is_over in found.items() if not is_over] or list(found)
    if not meant:
        raise not_found("lease", lease)
    if len(meant) > 1:
        raise unprocessable(f"project: found none, expected one of {', '.join(meant)}: each has a lease {lease!r:.80}")
    return call.door.project(call.caller, meant[0], role)


async def _changed(call: Call, actor: ActorConnection, command: str, arguments: Mapping[str, Any]) -> Lease:
    await admit(call, actor, command, arguments)
    changed = await actor.command(command, arguments, **call.signed)
    return _lease(actor.name, await actor.query("lease", lease=changed["id"]))


def wanted_lease(body: LeaseRequest) -> WantedLease:
    """What a body asks for. Raises ``CommandError`` that names the field."""
    spans = {
        name: span(getattr(body, name), name)
        for name in ("length", "notice", "min_run", "max_run", "timeout", "keepalive")
    }
    instants = {name: instant(getattr(body, name)) for name in ("start", "end", "deferrable_until")}
    said = {**asdict(body), **spans, **instants, "filter": body.filter or None, "needs": read_needs(body.needs)}
    return WantedLease(**said)


def read_needs(needs: Mapping[str, str | int]) -> Vector:
    """How much of each resource somebody asks for. Raises :class:`ProblemError`."""
    try:
        return tuple(sorted((name, read_amount(name, much)) for name, much in needs.items()))
    except ValueError as error:
        raise unprocessable(f"needs: {error}") from None


def _lease(project: str, shown: Mapping[str, Any]) -> Lease:
    """A lease as its guest shows it, in a list or all of it."""
    details = dict[str, Any]()
    units = shown["units"]
    if not isinstance(units, int):
        members = [told(LeaseUnit, one, reason=dated(one["reason"])) for one in units]
        current = had_or_asked(shown)
        units, asked = len(members) or current["units"], shown["requested"]["properties"]
        details = {
            "members": members, "properties": asked,
            "keepalive": format_duration(silence) if (silence := keepalive_of(asked)) else "",
            "undo": any(one["undo"] for one in (shown["renewal"], *shown["continuations"]) if one),
        }  # fmt: skip
    last_end = shown.get("last_end", shown["end"])  # an actor of an older version does not say it in a list
    extended_to = moment(last_end) if last_end > shown["end"] else None
    details |= {"pending": shown["pending"].strip("-"), **told_reason(shown["reason"], shown["because"])}
    return told(Lease, shown, project=project, units=units, extended_to=extended_to, **details)


async def _tried(call: Call, actor: ActorConnection, command: str, arguments: Mapping[str, Any]) -> DryRunResult:
    approval = await admit(call, actor, command, arguments)
    return _verdict(await call.door.unless_away(partial(actor.command, command, arguments)), approval)


def _verdict(answer: Mapping[str, Any], approval: str) -> DryRunResult:
    term = answer["term"] if answer["status"] == "granted" else None
    start, end = map(moment, term) if term else (None, None)
    reason = told_reason(answer["reason"], answer["because"])
    return told(DryRunResult, answer, start=start, end=end, **reason, approval=approval)
