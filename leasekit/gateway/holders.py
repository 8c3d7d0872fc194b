"""Whose a lease is: who asked for it, or to whom of the same project it was handed since."""

from __future__ import annotations

from typing import Final

from leasekit.client.shapes import Lease, LeaseHanding, LeasePolicy
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.callers import MANAGER, OPERATOR, USER, Caller
from leasekit.gateway.door import GatewayDoor, forbidden
from leasekit.gateway.leases import OfProject, history, holder, show_lease
from leasekit.gateway.policies import refused
from leasekit.gateway.routing import Call, route, unprocessable

HAND: Final = "lease.hand"
ASKED: Final = ("lease.request", "topology.request")
HOLDERS_MAX: Final = 100_000
"""Of how many leases it is remembered whose they are."""


@route("POST", "/leases/{lease}/hand")
async def hand_lease(call: Call, lease: str, params: OfProject, body: LeaseHanding) -> Lease:
    """Have a lease be a colleague's, who is a user of the project: in calendars of one's own, and to hand it on."""
    guest = await holder(call, params.project, lease, USER)
    found: Lease = await show_lease(call, lease, OfProject(project=guest.name))
    await _must_hand(call, guest, found.id)
    if not _is_user(call.door, guest.name, body.to):
        raise unprocessable(f"to: found {body.to!r:.80}, who is no {USER} of {guest.name} that this gateway knows")
    asked = {"lease": found.id, "to": body.to, "reason": body.reason}
    await guest.command(HAND, asked, **call.signed)
    call.door.holders.pop(found.id, None)
    return found


async def _must_hand(call: Call, guest: ActorConnection, lease: str) -> None:
    """Raises :class:`ProblemError` for who may not hand a lease on, by the policy of its project."""
    hands = call.door.policies.get(guest.name, LeasePolicy()).hands
    if OPERATOR in call.caller.offices:
        return
    if hands == "nobody":
        raise refused(f"no lease of {guest.name} is handed on")
    if call.caller.may(guest.name, MANAGER):
        return
    if hands == "manager":
        raise refused(f"managers of {guest.name} hand its leases on, {call.caller.name} is none")
    whose = await holder_of(call.door, guest, lease)
    if whose != call.caller.name:
        of = f"{whose}'s, who hands it on, or" if whose else "no user's: handed on by"
        raise forbidden(f"lease {lease} is {of} a manager of {guest.name}")


def _is_user(door: GatewayDoor, project: str, name: str) -> bool:
    """Whether somebody of that name may use a project: a local user, or whose token is good."""
    now = door.clock()
    local = [Caller(one.name, "", one.projects, frozenset(one.offices)) for one in door.users.values()]
    shown = [one.caller for one in door.tokens.all() if one.expires is None or one.expires > now]
    return any(one.name == name and one.may(project, USER) for one in (*local, *shown))


async def holder_of(door: GatewayDoor, guest: ActorConnection, lease: str) -> str:
    """Whose a lease is, by its history; empty: nobody asked for it by name."""
    if lease not in door.holders:
        if len(door.holders) >= HOLDERS_MAX:
            door.holders.clear()
        rows = await history(guest, lease)
        says = [row["because"]["who"] for row in rows if row["event"] in (*ASKED, "handed")]
        door.holders[lease] = says[-1] if says else ""
    return door.holders[lease]
