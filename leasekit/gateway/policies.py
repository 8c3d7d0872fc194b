"""What a project's leases may be, beside what its broker gives: how long, how far ahead, how many units, and what has
to be approved first. Kept by the gateway, and heeded by it alone: who has the guest's control socket is an operator.

Limits hold for everybody but operators; managers of a project approve, so they need no approval.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import attrs
import httpx
import msgspec
import trio

from leasekit.client.asking import trusted
from leasekit.client.shapes import ApprovalRequest, LeasePolicy, SeriesAnswer
from leasekit.config.instants import dated
from leasekit.core.leases.records import KeptRecord
from leasekit.core.reasons import counted, mark
from leasekit.core.requests import SERIES, with_term
from leasekit.core.time import MINUTE, SECOND, Duration, Instant, format_duration, parse_duration
from leasekit.core.topology import read_topology
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.callers import MANAGER, OPERATOR, Caller
from leasekit.gateway.instants import iso
from leasekit.gateway.notices import one_line
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import NO_JSON, Call, unprocessable
from leasekit.gateway.sending import has_port

logger = logging.getLogger(__name__)
POLICIES: Final = "policies"
PENDING: Final = "pending"
APPROVING: Final = "approving"
"""It is being done."""
STOPPED: Final = "stopped"
"""It was begun, and is not gone on with: what was done of it is not known any more."""
REQUESTS: Final = frozenset({"lease.request", "lease.dry_run"})
CHANGES: Final = frozenset({"lease.extend", "lease.modify", "lease.dry_run_extend", "lease.dry_run_modify"})
TOPOLOGY: Final = "topology.request"
TOPOLOGY_PLAN: Final = "topology.plan"
DRY_RUNS: Final = frozenset({"lease.dry_run", "lease.dry_run_extend", "lease.dry_run_modify", TOPOLOGY_PLAN})
SLACK: Final[Duration] = MINUTE
"""How much later than at the first instant that a policy allows a lease is proposed: it is yet to be asked for."""
SPANS: Final = ("longest", "ahead", "lead", "approve_length", "approve_within", "ask_within")
ASK_MAX: Final[Duration] = MINUTE
"""How long a service is waited for at most."""
SAID_MAX: Final = 65_536
"""How many bytes of a refusal are read."""
PLAIN: Final = {"accept-encoding": "identity"}
"""A refusal that is packed might be longer than it seems."""


@attrs.frozen(kw_only=True)
class ApprovalRecord(KeptRecord):
    """Something that is to be approved, as it is kept. ``decided`` is pending, approving, approved, stopped,
    refused or withdrawn; ``begun``: when it was first tried to do it.
    """

    id: str
    project: str
    caller: str
    asked: ApprovalRequest
    created: Instant
    until: Instant
    decided: str = PENDING
    by: str = ""
    reason: str = ""
    lease: str = ""
    series: SeriesAnswer | None = None
    begun: Instant = 0

    table = "approvals"

    def state(self, now: Instant) -> str:
        """Its state at an instant."""
        return "expired" if self.decided == PENDING and now >= self.until else self.decided


def read_policy(body: bytes) -> LeasePolicy:
    """A policy as it is kept."""
    return msgspec.json.decode(body, type=LeasePolicy)


@attrs.frozen(kw_only=True)
class Wish:
    """A lease as it would be: ``new``, or changed; ``moves``: its start is asked for, or one up to ``latest``.
    ``series``: it is one of those of ``--every``.
    """

    new: bool
    type: str
    units: int
    start: Instant
    end: Instant
    latest: Instant = 0
    moves: bool = True
    series: bool = False
    shown: Mapping[str, Any] | None = None
    """The lease as it is, of one that is to be changed."""


def check_policy(policy: LeasePolicy) -> None:
    """Raises :class:`ProblemError` that names the field."""
    for name in SPANS:
        text = getattr(policy, name)
        try:
            length = None if text is None else parse_duration(text)
        except (ValueError, OverflowError) as error:
            raise unprocessable(f"{name}: {error}") from None
        if name == "ask_within" and length is not None and not 0 < length <= ASK_MAX:
            raise unprocessable(f"ask_within: found {text}, expected more than 0s and at most 1m")
    with suppress(httpx.InvalidURL):
        asked = httpx.URL(policy.ask)
        if not policy.ask or (asked.scheme in ("http", "https") and asked.host and has_port(asked)):
            return
    raise unprocessable(f"ask: found {policy.ask!r:.100}, expected the URL of a service, http:// or https://")


async def admit(
    call: Call, actor: ActorConnection, command: str, arguments: Mapping[str, Any], *, approved: bool = False
) -> str:
    """Why what a dry run asks has to be approved first, in words; empty where it has not. Raises
    :class:`ProblemError` for a command of a guest that the policy of its project does not allow, or that has to be
    ``approved`` first.
    """
    policy = call.door.policies.get(actor.name)
    if policy is None or OPERATOR in call.caller.offices:
        return ""
    now = (await actor.query("clock"))["now"]
    wish = await wished(actor, command, arguments, now)
    if wish is None:
        return ""
    for found in limits(policy, wish, now):
        raise refused(f"{found} in project {actor.name}")
    found = "" if approved or call.caller.may(actor.name, MANAGER) else "; ".join(to_be_approved(policy, wish))
    if command in DRY_RUNS:
        return found
    if found:
        all_ = " for all days at once" if wish.series else ""
        ways = "with POST /approvals (--ask-approval)"
        how = "a manager asks for it" if command == TOPOLOGY else f"ask for it{all_} {ways}"
        raise ProblemError(HTTPStatus.FORBIDDEN, f"{found} in project {actor.name}: {how}", code="approval_needed")
    if policy.ask:
        await ask_service(policy, call.caller, actor.name, wish)
    return ""


async def wished(actor: ActorConnection, command: str, arguments: Mapping[str, Any], now: Instant) -> Wish | None:
    """The lease that a command would make, or change; None: it is about something else. Raises ``LeasekitError``."""
    if command in REQUESTS:
        return _new(with_term(arguments, now))
    if command in (TOPOLOGY, TOPOLOGY_PLAN):
        asked = read_topology(arguments.get("request", {}))
        units = sum(site.units for site in asked.sites)
        end = asked.est + asked.duration
        return Wish(new=True, type="topology", units=units, start=asked.est, end=end, latest=asked.lst)
    if command in CHANGES:
        shown = await actor.query("lease", lease=str(arguments.get("lease", "")))
        start = arguments.get("start") or shown["start"]
        # A start that moves takes the end with it, if that is not said.
        end = arguments.get("end") or shown["last_end"] + (arguments.get("length") or start - shown["start"])
        units, moves = arguments.get("units") or had_or_asked(shown)["units"], start != shown["start"]
        return Wish(new=False, type=shown["type"], units=units, start=start, end=end, moves=moves, shown=shown)
    return None


def had_or_asked(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a lease has by what was granted, or will have; else what is asked for."""
    found: Mapping[str, Any] = shown["granted"] or shown["approved"] or shown["requested"]
    return found


def _new(arguments: Mapping[str, Any]) -> Wish | None:
    term, units, properties = arguments.get("term"), arguments.get("units"), arguments.get("properties") or {}
    if not (isinstance(term, list) and len(term) == 2 and all(type(at) is int for at in term) and type(units) is int):
        return None  # the guest says what is wrong with it
    properties = properties if isinstance(properties, Mapping) else {}
    latest = str(properties.get("latest_start", ""))
    return Wish(
        new=True, type=str(arguments.get("type", "")), units=units, start=term[0], end=term[1],
        latest=int(latest) if latest.isdecimal() else 0, series=SERIES in properties,
    )  # fmt: skip


def limits(policy: LeasePolicy, wish: Wish, now: Instant) -> list[str]:
    """What of a policy a lease would be beyond, in words."""
    found, length, wait = [], wish.end - wish.start, wish.start - now
    longest, ahead, lead = (_span(getattr(policy, name)) for name in ("longest", "ahead", "lead"))
    if longest is not None and length > longest:
        found.append(f"length: found {format_duration(length)}, a lease lasts {policy.longest} at most")
    if policy.most_units is not None and wish.units > policy.most_units:
        found.append(f"units: found {wish.units}, a lease has {counted(policy.most_units)} at most")
    last = max(wish.start, wish.latest)
    if wish.moves and ahead is not None and last - now > ahead:
        found.append(f"start: found {dated(mark(last))}, a lease begins {policy.ahead} from now at the latest")
    if wish.moves and lead is not None and wait < lead:
        found.append(f"start: found {dated(mark(wish.start))}, a lease is asked for {policy.lead} before its start")
    if wish.series and not policy.recurring:
        found.append("every: found a lease that recurs, none may")
    return found


def beginnings(policy: LeasePolicy, wish: Wish, last: Instant, now: Instant, project: str) -> tuple[Instant, Instant]:
    """From when to when, of the time from the start of a ``wish`` to ``last``, such a lease may begin. Raises
    :class:`ProblemError` if never.
    """
    lead, ahead = _span(policy.lead), _span(policy.ahead)
    first = wish.start if lead is None else max(wish.start, now + lead + SLACK)
    until = last if ahead is None else min(last, now + ahead)
    start = first if first <= until else wish.start
    for found in limits(policy, attrs.evolve(wish, start=start, end=start + wish.end - wish.start), now):
        raise refused(f"{found} in project {project}")
    return start, max(start, until)


def to_be_approved(policy: LeasePolicy, wish: Wish) -> list[str]:
    """Why somebody has to approve a lease first, in words."""
    found, above, length = [], policy.approve_units, _span(policy.approve_length)
    before = wish.shown and (wish.shown["granted"] or wish.shown["approved"])
    if above is not None and wish.units > max(above, before["units"] if before else 0):
        found.append(f"units: found {wish.units}, more than {above} are approved first")
    if length is not None and wish.end - wish.start > length:
        took = format_duration(wish.end - wish.start)
        found.append(f"length: found {took}, more than {policy.approve_length} is approved first")
    return found


async def ask_service(policy: LeasePolicy, caller: Caller, project: str, wish: Wish) -> None:
    """Ask the service of a policy. Raises :class:`ProblemError` if it refuses, or doesn't answer and that counts as a
    refusal.
    """
    path, body = (_as_blazar if policy.asked_as == "blazar" else _as_leasekit)(caller, project, wish)
    try:
        status, said = await _answered(policy, path, body)
    except httpx.HTTPError as error:
        if policy.fails == "open":
            return
        text = f"the service that is asked first does not answer: {type(error).__name__}"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, text, code="policy_away") from None
    if 200 <= status < 300 or (status >= 500 and policy.fails == "open"):
        return
    if status == HTTPStatus.FORBIDDEN:
        raise refused(_message(said) or "the service that is asked first refuses it")
    text = f"the service that is asked first answers {status}"
    raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, text, code="policy_away")


async def tell_end(policy: LeasePolicy, project: str, shown: Mapping[str, Any]) -> None:
    """A lease is over, which the service of a policy hears by Blazar's protocol. Nothing depends on its answer: it is
    told once.
    """
    lease = _blazar_lease(shown["type"], had_or_asked(shown)["units"], shown["start"], shown["end"])
    body = {"context": _context("", project), "lease": lease}
    try:
        await _answered(policy, "/v1/on-end", body)
    except httpx.HTTPError as error:
        logger.info("the end of lease %s of %s is not told: %s", shown["id"], project, type(error).__name__)


async def _answered(policy: LeasePolicy, path: str, body: Any) -> tuple[int, bytes]:
    """The status with which the service of a policy answers, and what it says of a refusal, as far as that is there in
    time and not too long. Raises ``httpx.HTTPError`` for no answer.
    """
    verify = await trio.to_thread.run_sync(trusted, policy.ask)
    status, said = 0, bytearray()
    with trio.move_on_after((_span(policy.ask_within) or 0) / SECOND):  # httpx bounds each wait, not all of them
        async with (
            httpx.AsyncClient(timeout=None, follow_redirects=False, verify=verify) as client,
            client.stream("POST", policy.ask.rstrip("/") + path, json=body, headers=PLAIN) as answer,
        ):
            status = answer.status_code
            if status == HTTPStatus.FORBIDDEN:
                with suppress(httpx.HTTPError):
                    async for data in answer.aiter_raw():
                        said += data
                        if len(said) > SAID_MAX:
                            break
    if not status:
        raise httpx.ReadTimeout("it gave no answer in time")
    return status, bytes(said)


def _message(said: bytes) -> str:
    """What a service says for people."""
    try:
        found = msgspec.json.decode(said)
    except NO_JSON:
        return ""
    return one_line(str(found.get("message", "")))[:1_000] if isinstance(found, dict) else ""


def _as_leasekit(caller: Caller, project: str, wish: Wish) -> tuple[str, dict[str, Any]]:
    return "", {
        "project": project, "caller": caller.name, "new": wish.new, "lease": wish.shown["id"] if wish.shown else "",
        "type": wish.type, "units": wish.units, "start": iso(wish.start), "end": iso(wish.end),
    }  # fmt: skip


def _as_blazar(caller: Caller, project: str, wish: Wish) -> tuple[str, dict[str, Any]]:
    """The calls of Blazar's external service filter: check-create and check-update."""
    context = _context(caller.name, project)
    lease = _blazar_lease(wish.type, wish.units, wish.start, wish.end)
    if wish.shown is None:
        return "/v1/check-create", {"context": context, "lease": lease}
    before = _blazar_lease(wish.type, had_or_asked(wish.shown)["units"], wish.shown["start"], wish.shown["end"])
    return "/v1/check-update", {"context": context, "current_lease": before, "lease": lease}


def _context(caller: str, project: str) -> dict[str, str]:
    return {"user_id": caller, "project_id": project, "auth_url": "", "region_name": ""}


def _blazar_lease(type_: str, units: int, start: Instant, end: Instant) -> dict[str, Any]:
    reservation = {
        "resource_type": type_, "min": units, "max": units, "hypervisor_properties": "", "resource_properties": "",
        "allocations": [],
    }  # fmt: skip
    return {"start_date": _plain(start), "end_date": _plain(end), "reservations": [reservation]}


def _plain(at: Instant) -> str:
    """As Blazar has dates: in UTC, without saying so."""
    return (iso(at) or "")[:19].replace("T", " ")


def _span(text: str | None) -> Duration | None:
    return None if text is None else parse_duration(text)


def refused(text: str) -> ProblemError:
    """The policy of a project does not allow it."""
    return ProblemError(HTTPStatus.FORBIDDEN, text, code="policy")
