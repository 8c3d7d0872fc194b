"""Policies of projects over HTTP, and what they want approved: asked for, approved, refused or withdrawn."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import attrs
import msgspec
import trio
from msgspec import Struct

from leasekit.client.shapes import Approval, ApprovalDecision, ApprovalList, ApprovalRequest, LeasePolicy, ProjectPolicy
from leasekit.core.errors import LeasekitError
from leasekit.core.schema import Change
from leasekit.core.time import DAY, HOUR, Duration, Instant, parse_duration
from leasekit.gateway.actors import ActorAwayError, ActorConnection
from leasekit.gateway.callers import MANAGER, OPERATOR, USER, VIEWER, Caller
from leasekit.gateway.door import GatewayDoor, forbidden
from leasekit.gateway.events import APPROVALS_CHANGED
from leasekit.gateway.instants import told
from leasekit.gateway.leases import OfProject, asked_for, extension, holder, modification
from leasekit.gateway.notices import Notification, one_line
from leasekit.gateway.policies import (
    APPROVING,
    PENDING,
    POLICIES,
    STOPPED,
    ApprovalRecord,
    admit,
    check_policy,
)
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.series import WantedSeries, lease_series, wanted_series

KEPT: Final = 10_000
"""How many approvals are kept; the oldest that are decided go first."""
EACH: Final = 100
"""How many may wait that one has asked for: all have a part of what is kept."""
GONE_ON_WITH: Final[Duration] = DAY - HOUR
"""For how long what was begun is gone on with: actors know for a day what they did by the key of an approval, and would
do it twice after that.
"""
AGAIN: Final = 2.0
"""After how many seconds what was begun is gone on with again."""

logger = logging.getLogger(__name__)


class PolicyList(Struct, kw_only=True):
    """The policies that somebody may see."""

    items: list[ProjectPolicy]


class WhichApprovals(OfProject, kw_only=True):
    """Those of a project, in a state; not said: all that one may see."""

    state: Literal["", "pending", "approving", "approved", "refused", "withdrawn", "expired", "stopped"] = ""


@route("GET", "/policies")
async def list_policies(call: Call) -> PolicyList:
    """List the policies of one's projects."""
    seen = call.door.projects(call.caller)
    return PolicyList(
        items=[ProjectPolicy(project=name, policy=call.door.policies.get(name, LeasePolicy())) for name in seen]
    )


@route("PUT", "/policies/{project}")
async def set_policy(call: Call, project: str, body: LeasePolicy) -> ProjectPolicy:
    """Say what the leases of a project may be, in the place of what was said before."""
    name = _operated(call, project)
    check_policy(body)
    said = ProjectPolicy(project=name, policy=body)
    await call.door.commit(Change(POLICIES, name, (name, msgspec.json.encode(body))), *call.keep(said))
    call.door.policies[name] = body
    return said


def _operated(call: Call, project: str) -> str:
    """The project, of which an operator calls."""
    actor = call.door.project(call.caller, project, VIEWER)
    if OPERATOR not in call.caller.offices:
        raise forbidden("only an operator sets the policy of a project")
    return actor.name


@route("GET", "/approvals")
async def list_approvals(call: Call, params: WhichApprovals) -> ApprovalList:
    """List what waits to be approved, and what was decided."""
    seen = {call.door.project(call.caller, params.project, VIEWER).name} if params.project else None
    seen = seen or set(call.door.projects(call.caller))
    found = [_shown(call, one) for one in call.door.approvals.values() if one.project in seen]
    return ApprovalList(items=[one for one in found if params.state in ("", one.state)])


@route("GET", "/approvals/{approval}")
async def show_approval(call: Call, approval: str) -> Approval:
    """Show one approval."""
    return _shown(call, _visible(call, approval))


@route("POST", "/approvals", status=HTTPStatus.CREATED)
async def ask_approval(call: Call, params: OfProject, body: ApprovalRequest) -> Approval:
    """Ask that a request, a series of them, or a change, be approved. It is sent on when it is, as its asker's."""
    wanted = await _wanted(call, params.project, body, USER)
    await wanted.admit(call)
    project, now = wanted.actor.name, call.door.clock()
    policy = call.door.policies.get(project, LeasePolicy())
    request = body.series.request if body.series else body.request
    record = ApprovalRecord(
        id=secrets.token_hex(8), project=project, caller=call.caller.name, asked=body, created=now,
        until=now + parse_duration(policy.approve_within),
    )  # fmt: skip
    notice = Notification(
        kind="approval_wanted", key=record.id, project=project, at=now, name=f"approval {record.id}",
        type="" if request is None else request.type, lease=body.lease,
        reason=one_line(f"asked for by {record.caller}"),
    )  # fmt: skip
    made = _shown(call, record)
    if sum(one.caller == record.caller and one.state(now) == PENDING for one in call.door.approvals.values()) >= EACH:
        detail = f"{EACH} requests of {record.caller} wait to be approved already: withdraw some"
        raise ProblemError(HTTPStatus.CONFLICT, detail, code="too_many")
    _room_for(call.door, record)  # before anybody is told
    await _keep(call, record, *call.door.notices.tell(notice, now), *call.keep(made))
    call.door.told.set()
    return made


@route("POST", "/approvals/{approval}/approve")
async def approve(call: Call, approval: str, body: ApprovalDecision) -> Approval:
    """Have it done: the request is sent on, with who asked for it and who approved it in the actor's history. A series
    is answered once its broker has answered: each of its days says what became of it.
    """
    door, record = call.door, _pending(call, approval)
    _must_decide(call, record)
    door.approving.add(record.id)
    try:
        theirs = _as_asker(call, record)
        wanted = await _wanted(theirs, record.project, record.asked, VIEWER, record.created)
        await wanted.admit(theirs)
        begun = attrs.evolve(
            record, decided=APPROVING, by=call.caller.name, reason=body.reason, begun=call.door.clock()
        )
        await _keep(call, begun)
        return _shown(call, await _carry_out(theirs, begun))
    finally:
        door.approving.discard(record.id)


def _as_asker(call: Call, record: ApprovalRecord) -> Call:
    """What an approver does for who asked. By its own key it is done once, whatever becomes of this gateway."""
    asker = attrs.evolve(call.caller, name=record.caller, way=f"approved by {call.caller.name}")
    return attrs.evolve(call, caller=asker, key=f"approval-{record.id}")


async def _carry_out(theirs: Call, begun: ApprovalRecord) -> ApprovalRecord:
    """Do what was approved: it is kept that it was, or waits again where it can't be done. Raises ``LeasekitError``."""
    try:
        wanted = await _wanted(theirs, begun.project, begun.asked, VIEWER, begun.created)
        if wanted.series is not None:
            came: dict[str, Any] = {"series": await lease_series(theirs, wanted.series)}
        else:
            (arguments,) = wanted.each
            came = {"lease": (await wanted.actor.command(wanted.command, arguments, **theirs.signed))["id"]}
    except ActorAwayError:
        raise  # what it has done is not known: it is gone on with when it is there
    except LeasekitError:
        await _keep(theirs, attrs.evolve(begun, decided=PENDING, by="", reason=""))
        raise
    done = attrs.evolve(begun, decided="approved", **came)
    await _keep(theirs, done)
    return done


async def carry_on(door: GatewayDoor) -> None:
    """Go on with what was being approved when the gateway was killed, or an actor went away, until cancelled. What was
    begun too long ago is stopped.
    """
    while True:
        left = [one for one in door.approvals.values() if one.decided == APPROVING and one.id not in door.approving]
        for record in left:
            call = Call(door, Caller(record.by, "", {record.project: MANAGER}), {})
            try:
                if door.clock() - record.begun > GONE_ON_WITH:
                    await _keep(call, attrs.evolve(record, decided=STOPPED))
                else:
                    await _carry_out(_as_asker(call, record), record)
            except LeasekitError as error:
                logger.info("approval %s of %s, which was begun: %s", record.id, record.project, error)
        await trio.sleep(AGAIN)


@route("POST", "/approvals/{approval}/refuse")
async def refuse(call: Call, approval: str, body: ApprovalDecision) -> Approval:
    """Refuse it."""
    record = _pending(call, approval)
    _must_decide(call, record)
    return await _decided(call, record, "refused", body)


@route("POST", "/approvals/{approval}/withdraw")
async def withdraw(call: Call, approval: str, body: ApprovalDecision) -> Approval:
    """Withdraw what one has asked for."""
    record = _pending(call, approval)
    if record.caller != call.caller.name and OPERATOR not in call.caller.offices:
        raise forbidden(f"{record.caller} has asked for it")
    return await _decided(call, record, "withdrawn", body)


@attrs.frozen(kw_only=True)
class _Wanted:
    """The commands that are asked for: one, or those of all days of a ``series``."""

    actor: ActorConnection
    command: str
    each: Sequence[Mapping[str, Any]]
    series: WantedSeries | None = None

    async def admit(self, call: Call) -> None:
        """Raises :class:`ProblemError` for what the policy of the project does not allow."""
        for arguments in self.each:
            await admit(call, self.actor, self.command, arguments, approved=True)


async def _wanted(call: Call, project: str, asked: ApprovalRequest, role: str, since: Instant | None = None) -> _Wanted:
    """What is asked for, by somebody with a ``role`` in the project, since an instant. Raises :class:`ProblemError`."""
    kinds = [name for name in ("request", "series", "extend", "modify") if getattr(asked, name) is not None]
    if len(kinds) != 1 or (kinds[0] in ("request", "series")) == bool(asked.lease):
        raise unprocessable("request: expected either a request, or a series, or a lease and extend or modify")
    if asked.series is not None:
        series = await wanted_series(call, project, asked.series, role, since)
        return _Wanted(actor=series.guest, command="lease.request", each=series.days, series=series)
    if asked.request is not None:
        actor, arguments = asked_for(call, project, asked.request, role)
        return _Wanted(actor=actor, command="lease.request", each=[arguments])
    actor = await holder(call, project, asked.lease, role)
    if asked.extend is not None:
        return _Wanted(actor=actor, command="lease.extend", each=[extension(asked.lease, asked.extend)])
    assert asked.modify is not None, "one of the four is"
    return _Wanted(actor=actor, command="lease.modify", each=[modification(asked.lease, asked.modify)])


def _visible(call: Call, approval: str) -> ApprovalRecord:
    record = call.door.approvals.get(approval)
    if record is None or not call.caller.may(record.project, VIEWER):
        raise not_found("approval", approval)
    return record


def _pending(call: Call, approval: str) -> ApprovalRecord:
    record = _visible(call, approval)
    state = APPROVING if approval in call.door.approving else record.state(call.door.clock())
    if state != PENDING:
        words = "being approved" if state == APPROVING else state
        raise ProblemError(HTTPStatus.CONFLICT, f"approval {record.id} is {words} already", code="decided")
    return record


def _must_decide(call: Call, record: ApprovalRecord) -> None:
    policy = call.door.policies.get(record.project, LeasePolicy())
    if not call.caller.may(record.project, MANAGER) and call.caller.name not in policy.approvers:
        raise forbidden(f"{call.caller.name} is no {MANAGER} of {record.project}, and none of its approvers")
    if call.caller.name == record.caller and not call.caller.may(record.project, MANAGER):
        raise forbidden("what one asks for oneself somebody else approves")


async def _decided(call: Call, record: ApprovalRecord, decided: str, body: ApprovalDecision, **came: Any) -> Approval:
    record = attrs.evolve(record, decided=decided, by=call.caller.name, reason=body.reason, **came)
    shown = _shown(call, record)
    await _keep(call, record, *call.keep(shown))
    return shown


async def _keep(call: Call, record: ApprovalRecord, *more: Change) -> None:
    """Commit it, and more; the oldest that nobody waits for make room."""
    kept = call.door.approvals
    await call.door.commit(kept.put(record), *kept.drop(*_room_for(call.door, record)), *more)
    call.door.hub.hint(APPROVALS_CHANGED, record.project)


def _room_for(door: GatewayDoor, record: ApprovalRecord) -> list[str]:
    """What makes room for a record that is not kept yet. Raises :class:`ProblemError` if nothing can."""
    kept, now = door.approvals, door.clock()
    gone = [one.id for one in kept.values() if one.state(now) not in (PENDING, APPROVING)][
        : max(0, len(kept) + 1 - KEPT)
    ]
    if len(kept) - len(gone) >= KEPT and record.id not in kept:
        raise ProblemError(HTTPStatus.CONFLICT, f"{KEPT} requests wait to be approved already", code="too_many")
    return gone


def _shown(call: Call, record: ApprovalRecord) -> Approval:
    return told(Approval, record, state=record.state(call.door.clock()), decided_by=record.by)
