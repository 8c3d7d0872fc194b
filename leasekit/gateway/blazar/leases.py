"""Leases: slices of a guest, whose leases are the reservations. What was asked for is a note of the slice."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import msgspec
import trio
from msgspec import Struct

from leasekit.config.gateway import BlazarTable
from leasekit.core.commands import PAST_PAGE
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.service_manager import NASCENT, OVER, REDEEMING, RUNNING, TICKETED
from leasekit.core.reasons import Code
from leasekit.core.requests import WantedLease
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.gateway.actors import ActorAwayError, ActorConnection
from leasekit.gateway.blazar.statuses import CHANGES, Member, event_statuses, lease_status, reservation_status
from leasekit.gateway.blazar.wire import (
    LeaseBody,
    LeaseChange,
    bad,
    conflict,
    count,
    read_date,
    read_reservation,
    refusal,
    told_date,
    told_stamp,
    unknown,
)
from leasekit.gateway.callers import USER, VIEWER
from leasekit.gateway.policies import admit
from leasekit.gateway.routing import Call

NOTE: Final = "blazar"
"""The note of a slice that is a lease of Blazar's."""
LEASE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LEAD: Final[Duration] = SECOND
"""How long after the request a lease begins that is to begin now: its term is to be ahead when the broker sees it."""
USUAL_BEFORE_END: Final[Duration] = 60 * MINUTE
"""How long before the end of a lease its event is that says so, unless it is said: Blazar's own setting."""
ENDED_WITHIN: Final = 10.0
"""How long it is waited for that a deleted lease has left its hosts, in seconds."""


class LeaseNote(Struct, kw_only=True):
    """What is kept with a slice: the lease's name, when and by whom it was made, its term as it was asked for last,
    how long ``before_end`` its event is, and of each reservation what was asked for.
    """

    name: str
    user: str
    created: Instant
    updated: Instant | None = None
    start: Instant
    end: Instant
    before_end: Duration
    deleted: bool = False
    reservations: list[dict[str, Any]]


@attrs.define
class BlazarLease:
    """A lease: its note, and its reservations as the guest shows them."""

    id: str
    note: LeaseNote
    members: list[Member] = attrs.field(factory=list)

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted, and has left its hosts."""
        return self.note.deleted and all(one["state"] in OVER for one in self.members)

    def told(self, project: str, now: Instant) -> dict[str, Any]:
        """What is told of it."""
        note = self.note
        status = lease_status(self.members, now, deleted=note.deleted)
        before = max(note.start, note.end - note.before_end) if note.before_end else None
        stamps = {"created_at": told_stamp(note.created), "updated_at": note.updated and told_stamp(note.updated)}
        events = event_statuses(status, self.members, now, before)
        at = {"start_lease": note.start, "before_end_lease": before or 0, "end_lease": note.end}
        return {
            "id": self.id, "name": note.name, "user_id": note.user, "project_id": project, "trust_id": None,
            "start_date": told_date(note.start), "end_date": told_date(note.end), "status": status, **stamps,
            "degraded": any(_is_short(one, asked) for one, asked in self._asked()),
            "reservations": [
                {
                    "id": one["id"], "lease_id": self.id, "resource_id": one["id"], "status": reservation_status(one),
                    "missing_resources": _is_short(one, asked), "resources_changed": False, **stamps, **asked,
                }
                for one, asked in self._asked()
            ],
            "events": [
                {
                    "id": str(uuid.uuid5(uuid.UUID(self.id), kind)), "lease_id": self.id, "event_type": kind,
                    "time": told_date(at[kind]), "status": found, **stamps,
                }
                for kind, found in events.items()
            ],
        }  # fmt: skip

    def _asked(self) -> Iterable[tuple[Member, dict[str, Any]]]:
        return zip(self.members, self.note.reservations, strict=False)


def _is_short(member: Member, asked: Mapping[str, Any]) -> bool:
    least = asked["min"] if "min" in asked else asked["amount"]
    return member["state"] in RUNNING and bool(member["units"] < least)


async def list_leases(call: Call, project: str) -> list[dict[str, Any]]:
    """All leases of a project, those that have ended too, in the order in which they were made."""
    guest = call.door.project(call.caller, project, VIEWER)
    now = await _now(guest)
    found = [one for one in await _leases(guest) if not one.is_gone]
    return [one.told(guest.name, now) for one in sorted(found, key=lambda one: (one.note.created, one.id))]


async def show_lease(call: Call, project: str, id_: str) -> dict[str, Any]:
    """One lease. Raises :class:`ProblemError`."""
    guest = call.door.project(call.caller, project, VIEWER)
    return (await _lease(guest, id_)).told(guest.name, await _now(guest))


async def create_lease(call: Call, project: str, body: LeaseBody) -> dict[str, Any]:
    """Ask for a lease, and wait for the answers to all of its reservations. Raises ``LeasekitError``."""
    guest = call.door.project(call.caller, project, USER)
    now = await _now(guest)
    start, end = _term(body, now)
    if body.events:
        raise bad("events: found some, a lease has those of its start, its end and before its end")
    if not body.reservations:
        raise bad("reservations: found none, expected at least one")
    asked = [read_reservation(one, f"reservations[{at}]") for at, one in enumerate(body.reservations)]
    wanted = [one.wanted() for one in asked]
    note = LeaseNote(
        name=body.name, user=call.caller.name, created=now, start=start, end=end,
        before_end=_before_end(body.before_end_date, start, end, now),
        reservations=[{"resource_type": one.resource_type, **one.told()} for one in asked],
    )  # fmt: skip
    id_ = str(uuid.uuid4())
    requests = _requests(call, id_, wanted, start, end)
    for one in requests:
        await admit(call, guest, "lease.request", one)
    await guest.command("slice.create", {"name": id_, "notes": _noted(note)}, **call.signed)
    try:
        made = [(await guest.command("lease.request", one, **call.signed))["id"] for one in requests]
        answered = [partial(_settled, guest, one, lambda shown: shown["state"] != NASCENT) for one in made]
        members = [await call.door.unless_away(one) for one in answered]
    except LeasekitError:
        await _give_up(call, guest, id_, note)
        raise
    refused = next((one for one in members if one["state"] in OVER), None)
    if refused is not None:
        await _give_up(call, guest, id_, note)
        if (refused["because"] or {}).get("code") == Code.NO_TICKET:
            raise ActorAwayError(refused["broker"], refused["reason"])
        raise refusal(refused["reason"])
    return await show_lease(call, project, id_)


def hosts_of(call: Call) -> BlazarTable:
    """Which units are hosts."""
    assert call.door.table.blazar is not None, "its routes are there only where it is served"
    return call.door.table.blazar


def _requests(
    call: Call, id_: str, wanted: Sequence[dict[str, Any]], start: Instant, end: Instant
) -> list[dict[str, Any]]:
    """The arguments of the command ``lease.request`` for each reservation."""
    made, hosts = [], hosts_of(call)
    for at, wish in enumerate(wanted):
        lease = WantedLease(type=hosts.type, site=hosts.site, slice=id_, name=str(at), start=start, end=end, **wish)
        if len(wanted) > 1:
            # A request of a group may begin later than it says, unless it says how late.
            lease = attrs.evolve(lease, group=id_, group_size=None if at else len(wanted), deferrable_until=start)
        made.append(lease.arguments(start, 0))
    return made


async def update_lease(call: Call, project: str, id_: str, body: LeaseChange) -> dict[str, Any]:
    """Change a lease: its name, its term, how many hosts it has. Raises ``LeasekitError``."""
    guest = call.door.project(call.caller, project, USER)
    lease, now = await _lease(guest, id_), await _now(guest)
    note = msgspec.structs.replace(lease.note, updated=now)
    if body.name is not None:
        note.name = body.name
    start = note.start if body.start_date is None else read_date(body.start_date, now)
    end = note.end if body.end_date is None else read_date(body.end_date, now)
    if (start, end) != (note.start, note.end):
        _check_term(note, start, end, now)
        await _move(call, guest, lease, start, end)
        note.start, note.end = start, end
    if body.before_end_date is not None:
        note.before_end = _before_end(body.before_end_date, start, end, now)
    for one in body.reservations:
        await _resize(call, guest, lease, note, one)
    await guest.command("slice.note", {"name": id_, "notes": _noted(note)}, **call.signed)
    return await show_lease(call, project, id_)


def _check_term(note: LeaseNote, start: Instant, end: Instant, now: Instant) -> None:
    if note.end <= now:
        raise bad("Terminated leases can only be renamed")
    if note.start <= now and start != note.start:
        raise bad("Cannot modify the start date of already started leases")
    if start != note.start and start < now:
        raise bad("Start date must be later than current date")
    if end <= max(now, start):
        raise bad("End date must be later than current and start date")


async def _move(call: Call, guest: ActorConnection, lease: BlazarLease, start: Instant, end: Instant) -> None:
    """Have all reservations have another term. Raises ``LeasekitError``."""
    if any(one["state"] == TICKETED and one["pending"] == REDEEMING for one in lease.members):
        raise conflict(
            "The lease has its hosts and has not begun: its dates can't be changed before its start. Delete it,"
            " and create another one"
        )
    longer = all(one["state"] in RUNNING for one in lease.members) and end > lease.note.end
    for name in [one["id"] for one in lease.members]:
        if not longer:
            await _undo_extends(call, guest, name, end)
        asked: dict[str, Any] = {"lease": name, "end": end}
        if start != lease.note.start:
            asked["start"] = start
        await _changed(call, guest, "lease.extend" if longer else "lease.modify", asked)


async def _undo_extends(call: Call, guest: ActorConnection, name: str, end: Instant) -> None:
    """Take back what a lease was extended by beyond an ``end``, and ask for what of it remains. Raises
    ``LeasekitError``.
    """
    while True:
        shown = await guest.query("lease", lease=name)
        further = [one["term"] for one in (shown["renewal"], *shown["continuations"]) if one]
        if not further or further[-1][1] <= end:
            return
        await guest.command("lease.undo_extend", {"lease": name}, **call.signed)
        await _settled(guest, name, lambda shown: shown["pending"] not in CHANGES)
        await _returned(guest, name)
        if further[-1][0] < end:
            await _changed(call, guest, "lease.extend", {"lease": name, "end": end})


async def _resize(
    call: Call, guest: ActorConnection, lease: BlazarLease, note: LeaseNote, given: Mapping[str, Any]
) -> None:
    """Have a reservation have another number of hosts, or machines. Raises ``LeasekitError``."""
    at = next((at for at, one in enumerate(lease.members) if one["id"] == given.get("id")), None)
    if at is None:
        raise bad(f"reservations: found the id {given.get('id')!r:.60}, expected one of the lease's")
    asked = dict(note.reservations[at])
    for field, value in given.items():
        if field in ("min", "max", "amount") and field in asked:
            asked[field] = count(value, field)
        elif field not in ("id", "resource_type") and value != asked.get(field):
            raise conflict(f"{field} cannot be updated: delete the lease, and create one with other reservations")
    if asked.get("max", 1) < asked.get("min", 1):
        raise bad("Invalid values for min/max of hosts. Max must be equal to or larger than min.")
    if asked != note.reservations[at]:
        units = asked.get("max", asked.get("amount"))
        await _changed(call, guest, "lease.modify", {"lease": lease.members[at]["id"], "units": units})
        note.reservations[at] = asked


async def _changed(call: Call, guest: ActorConnection, command: str, asked: Mapping[str, Any]) -> None:
    """Carry a change out, and wait for the answer to it. Raises ``LeasekitError``, for one that is refused too."""
    shown: Mapping[str, Any] = await guest.query("lease", lease=asked["lease"])
    if asked.keys() == {"lease", "end"} and _end(shown) == asked["end"]:
        return
    await admit(call, guest, command, asked)
    trial = await call.door.unless_away(partial(guest.command, command.replace(".", ".dry_run_"), asked))
    if trial["status"] != "granted":
        raise refusal(trial["reason"])
    await guest.command(command, asked, **call.signed)
    shown = await _settled(guest, str(asked["lease"]), lambda shown: shown["pending"] not in CHANGES)
    units = len(shown["units"]) or shown["approved"]["units"]
    if shown["state"] in OVER or _end(shown) != asked.get("end", _end(shown)) or units != asked.get("units", units):
        raise refusal(shown["reason"])


def _end(shown: Mapping[str, Any]) -> Instant:
    """When a lease ends by all that it was granted."""
    granted = [one["term"][1] for one in (shown["approved"], shown["renewal"], *shown["continuations"]) if one]
    found: Instant = max(granted, default=shown["end"])
    return found


async def delete_lease(call: Call, project: str, id_: str) -> None:
    """End a lease, and forget it; it has left its hosts when this returns, if that takes no longer than some seconds.
    Raises ``LeasekitError``.
    """
    guest = call.door.project(call.caller, project, USER)
    lease = await _lease(guest, id_)
    await _give_up(call, guest, id_, lease.note)
    with trio.move_on_after(ENDED_WITHIN):
        for one in lease.members:
            if one["state"] not in OVER:
                await _settled(guest, one["id"], lambda shown: shown["state"] in OVER)


async def _give_up(call: Call, guest: ActorConnection, id_: str, note: LeaseNote) -> None:
    gone = msgspec.structs.replace(note, deleted=True)
    await guest.command("slice.note", {"name": id_, "notes": _noted(gone)}, **call.signed)
    await guest.command("slice.close", {"name": id_, "reason": "deleted"}, **call.signed)


async def _settled(
    guest: ActorConnection, lease: str, is_settled: Callable[[Mapping[str, Any]], bool]
) -> Mapping[str, Any]:
    """The lease as its guest shows it, once it is as is waited for. Raises ``LeasekitError``."""
    async with guest.watching(lease) as changes:
        shown: Mapping[str, Any] = await guest.query("lease", lease=lease)
        while not is_settled(shown):
            await anext(changes)
            shown = await guest.query("lease", lease=lease)
        return shown


async def _returned(guest: ActorConnection, lease: str) -> None:
    """Wait until the broker has what a lease gives back, if that takes no longer than some seconds."""
    with trio.move_on_after(ENDED_WITHIN):
        async with guest.watching() as changes:
            while any(one["lease"] == lease for one in await guest.query("returns")):
                await anext(changes)


async def _now(guest: ActorConnection) -> Instant:
    return int((await guest.query("clock"))["now"])


async def _lease(guest: ActorConnection, id_: str) -> BlazarLease:
    found = [one for one in await _leases(guest, id_) if not one.is_gone] if LEASE_ID.fullmatch(id_) else []
    if not found:
        raise unknown(lease_id=id_)
    return found[0]


async def _leases(guest: ActorConnection, id_: str = "") -> list[BlazarLease]:
    """The lease with an id, or all of them."""
    found = {}
    for one in await guest.query("slices", slice=id_):
        if NOTE in one["notes"]:
            found[one["slice"]] = BlazarLease(one["slice"], msgspec.json.decode(one["notes"][NOTE], type=LeaseNote))
    members = defaultdict[str, list[Member]](list)
    for member in await guest.query("leases", slice=id_, all=True):
        members[member["slice"]].append(member)
    forgotten = [one.note.created for one in found.values() if one.id not in members and not one.note.deleted]
    if forgotten:
        async for member in _past(guest, min(forgotten)):
            if member["slice"] in found and all(member["id"] != one["id"] for one in members[member["slice"]]):
                members[member["slice"]].append(member)
    for lease in found.values():
        lease.members = sorted(members[lease.id], key=lambda one: int(one["name"] or 0))
    return [one for one in found.values() if one.members]


async def _past(guest: ActorConnection, since: Instant) -> Any:
    """Leases that the guest has forgotten, and its store has kept."""
    after: Mapping[str, Any] = {"since": since}
    while True:
        answer = await guest.request("past", "", {"limit": PAST_PAGE, **after})
        for one in answer["leases"]:
            yield {**one, "units": len(one["units"])}
        if not answer["after"]:
            return
        after = {"since": since, **answer["after"]}


def _noted(note: LeaseNote) -> dict[str, str]:
    return {NOTE: json.dumps(msgspec.to_builtins(note))}


def _term(body: LeaseBody, now: Instant) -> tuple[Instant, Instant]:
    """The term that is asked for. Raises :class:`ProblemError`."""
    start, end = read_date(body.start_date, now), read_date(body.end_date, now)
    if start < now - now % MINUTE:
        raise bad("Start date must be later than current date")
    start = max(start, now + LEAD)
    if end <= start:
        raise bad("End date must be later than start date.")
    return start, end


def _before_end(date: str | None, start: Instant, end: Instant, now: Instant) -> Duration:
    """How long before the end the event is. Raises :class:`ProblemError`."""
    if not date:
        return USUAL_BEFORE_END
    at = read_date(date, now)
    if not start < at < end:
        raise bad("Datetime is out of lease limits")
    return end - at
