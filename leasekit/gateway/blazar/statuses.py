"""Statuses of leases, reservations and events, from the states of a guest's leases: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leasekit.core.leases import service_manager as sm
from leasekit.core.time import Instant

Member = Mapping[str, Any]
"""A lease of the slice, as a guest's list shows it."""
CREATING, PENDING, STARTING, ACTIVE = "CREATING", "PENDING", "STARTING", "ACTIVE"
UPDATING, TERMINATING, TERMINATED = "UPDATING", "TERMINATING", "TERMINATED"
DELETING, ERROR = "DELETING", "ERROR"
UNDONE, IN_PROGRESS, DONE = "UNDONE", "IN_PROGRESS", "DONE"
ENDS: Final = (sm.CLOSING, sm.CLOSE_WAIT)
CHANGES: Final = (sm.EXTENDING_TICKET, sm.EXTENDING_FURTHER, sm.MODIFYING, sm.WITHDRAWING, sm.UNDOING)


def lease_status(members: Sequence[Member], now: Instant, *, deleted: bool) -> str:
    """The status of a lease with these reservations; ``deleted``: somebody has asked for its end."""
    states = {member["state"] for member in members}
    if deleted:
        return DELETING
    if sm.NASCENT in states:
        return CREATING
    if sm.FAILED in states:
        return ERROR
    if states <= {sm.CLOSED}:
        return TERMINATED
    if any(member["pending"] in ENDS for member in members) or sm.CLOSED in states:
        return TERMINATING
    if any(member["pending"] in CHANGES for member in members):
        return UPDATING
    if states <= {*sm.RUNNING}:
        return ACTIVE
    return STARTING if any(member["start"] <= now for member in members) else PENDING


def reservation_status(member: Member) -> str:
    """The status of one reservation."""
    if member["state"] == sm.FAILED:
        return "error"
    if member["state"] == sm.CLOSED:
        return "deleted"
    return "active" if member["state"] in sm.RUNNING else "pending"


def event_statuses(status: str, members: Sequence[Member], now: Instant, before_end: Instant | None) -> dict[str, str]:
    """The status of each event of a lease that has a ``status``, by the event's type; without an event before its end
    (None) there are two.
    """
    running = any(member["state"] in sm.RUNNING for member in members)
    begun = running or status in (TERMINATED, TERMINATING)
    failed = status == ERROR and not begun
    found = {"start_lease": ERROR if failed else DONE if begun else IN_PROGRESS if status == STARTING else UNDONE}
    if before_end is not None:
        found["before_end_lease"] = DONE if begun and before_end <= now else UNDONE
    ended = {TERMINATED: DONE, TERMINATING: IN_PROGRESS, ERROR: ERROR if begun else UNDONE}
    found["end_lease"] = ended.get(status, IN_PROGRESS if status == DELETING and begun else UNDONE)
    return found
