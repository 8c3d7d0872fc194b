"""Policies of projects over HTTP, and what they want approved: asked for, approved, refused or withdrawn."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import attrs
import msgspec
from msgspec import Struct

from leasekit.client.shapes import Approval, ApprovalDecision, ApprovalRequest, LeasePolicy, ProjectPolicy
from leasekit.core.schema import Change
from leasekit.core.time import parse_duration
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.callers import MANAGER, OPERATOR, USER, VIEWER
from leasekit.gateway.door import forbidden
from leasekit.gateway.events import APPROVALS_CHANGED
from leasekit.gateway.instants import moment
from leasekit.gateway.leases import OfProject, asked_for, extension, holder, modification
from leasekit.gateway.notices import Notification, one_line
from leasekit.gateway.policies import APPROVALS, PENDING, POLICIES, ApprovalRecord, admit, check_policy
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable

KEPT: Final = 10_000
"""How many approvals are kept; the oldest that are decided go first."""


class PolicyList(Struct, kw_only=True):
    """The policies that somebody may see."""

    items: list[ProjectPolicy]


class WhichApprovals(OfProject, kw_only=True):
    """Those of a project, in a state; not said: all that one may see."""

    state: str = ""


class ApprovalList(Struct, kw_only=True):
    """Approvals, oldest first."""

    items: list[Approval]


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
    await call.door.commit(Change(POLICIES, name, (name, msgspec.json.encode(body))))
    call.door.policies[name] = body
    return ProjectPolicy(project=name, policy=body)


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
    """Ask that a request, or a change, be approved. It is sent on when it is, as its asker's."""
    actor, command, arguments = await _command(call, params.project, body, USER)
    await admit(call, actor, command, arguments, approved=True)
    policy, now = call.door.policies.get(actor.name, LeasePolicy()), call.door.clock()
    record = ApprovalRecord(
        id=secrets.token_hex(8), project=actor.name, caller=call.caller.name, asked=body, created=now,
        until=now + parse_duration(policy.approve_within),
    )  # fmt: skip
    await _keep(call, record)
    notice = Notification(
        kind="approval_wanted", key=record.id, project=actor.name, at=now, name=f"approval {record.id}",
        type="" if body.request is None else body.request.type, lease=body.lease,
        reason=one_line(f"asked for by {record.caller}"),
    )  # fmt: skip
    await call.door.commit(*call.door.notices.tell(notice, now))
    call.door.told.set()
    return _shown(call, record)


@route("POST", "/approvals/{approval}/approve")
async def approve(call: Call, approval: str, body: ApprovalDecision) -> Approval:
    """Have it done: the request is sent on, with who asked for it and who approved it in the actor's history."""
    record = _pending(call, approval)
    _must_decide(call, record)
    actor, command, arguments = await _command(call, record.project, record.asked, VIEWER)
    theirs = attrs.evolve(call, caller=attrs.evolve(call.caller, name=record.caller))
    await admit(theirs, actor, command, arguments, approved=True)
    # By its own key it is done once, whatever becomes of this gateway before it has kept that.
    key, way = f"approval-{record.id}", f"approved by {call.caller.name}"
    made = await actor.command(command, arguments, caller=record.caller, way=way, key=key)
    return await _decided(call, record, "approved", body, lease=made["id"])


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


async def _command(
    call: Call, project: str, asked: ApprovalRequest, role: str
) -> tuple[ActorConnection, str, Mapping[str, Any]]:
    """The command that is asked for, by somebody with a ``role`` in the project. Raises :class:`ProblemError`."""
    kinds = [name for name in ("request", "extend", "modify") if getattr(asked, name) is not None]
    if len(kinds) != 1 or (kinds == ["request"]) == bool(asked.lease):
        raise unprocessable("request: expected either a request, or a lease and extend or modify")
    if asked.request is not None:
        actor, arguments = asked_for(call, project, asked.request, role)
        return actor, "lease.request", arguments
    actor = await holder(call, project, asked.lease, role)
    if asked.extend is not None:
        return actor, "lease.extend", extension(asked.lease, asked.extend)
    assert asked.modify is not None, "one of the three is"
    return actor, "lease.modify", modification(asked.lease, asked.modify)


def _visible(call: Call, approval: str) -> ApprovalRecord:
    record = call.door.approvals.get(approval)
    if record is None or not call.caller.may(record.project, VIEWER):
        raise not_found("approval", approval)
    return record


def _pending(call: Call, approval: str) -> ApprovalRecord:
    record = _visible(call, approval)
    state = record.state(call.door.clock())
    if state != PENDING:
        raise ProblemError(HTTPStatus.CONFLICT, f"approval {record.id} is {state} already", code="decided")
    return record


def _must_decide(call: Call, record: ApprovalRecord) -> None:
    policy = call.door.policies.get(record.project, LeasePolicy())
    if not call.caller.may(record.project, MANAGER) and call.caller.name not in policy.approvers:
        raise forbidden(f"{call.caller.name} is no {MANAGER} of {record.project}, and none of its approvers")
    if call.caller.name == record.caller and not call.caller.may(record.project, MANAGER):
        raise forbidden("what one asks for oneself somebody else approves")


async def _decided(
    call: Call, record: ApprovalRecord, decided: str, body: ApprovalDecision, *, lease: str = ""
) -> Approval:
    record = attrs.evolve(record, decided=decided, by=call.caller.name, reason=body.reason, lease=lease)
    await _keep(call, record)
    return _shown(call, record)


async def _keep(call: Call, record: ApprovalRecord) -> None:
    """Commit it; the oldest that nobody waits for make room."""
    kept, now = call.door.approvals, call.door.clock()
    gone = [one.id for one in kept.values() if one.state(now) != PENDING][: max(0, len(kept) + 1 - KEPT)]
    if len(kept) - len(gone) >= KEPT and record.id not in kept:
        raise ProblemError(HTTPStatus.CONFLICT, f"{KEPT} requests wait to be approved already", code="too_many")
    await call.door.commit(Change(APPROVALS, record.id, record.row()), *(Change(APPROVALS, id_, None) for id_ in gone))
    for id_ in gone:
        del kept[id_]
    kept[record.id] = record
    call.door.hub.hint(APPROVALS_CHANGED, record.project)


def _shown(call: Call, record: ApprovalRecord) -> Approval:
    return Approval(
        id=record.id, project=record.project, caller=record.caller, asked=record.asked,
        state=record.state(call.door.clock()), created=moment(record.created), until=moment(record.until),
        decided_by=record.by, reason=record.reason, lease=record.lease,
    )  # fmt: skip
