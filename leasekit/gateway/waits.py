"""Waiting lists over HTTP: who is told when something fits that does not now, and who looks whether it does."""

from __future__ import annotations

import logging
import secrets
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

import msgspec
import trio

from leasekit.client.shapes import Slot, SlotSearch, Wait, WaitList
from leasekit.core.errors import LeasekitError
from leasekit.core.schema import Change
from leasekit.core.time import parse_duration
from leasekit.gateway.callers import OPERATOR, USER, VIEWER
from leasekit.gateway.door import BROKER, GatewayDoor
from leasekit.gateway.events import WAITS_CHANGED
from leasekit.gateway.instants import instant, moment
from leasekit.gateway.leases import OfProject
from leasekit.gateway.notices import Notification
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import Call, route
from leasekit.gateway.slots import AHEAD, search, within_policy

WAITING: Final = "waiting"
WAITS_MAX: Final = 100
"""How many waits a project has; the oldest that are over make room."""
PAUSE: Final = 1.0
"""How long a broker that changes all the time is left alone between two looks, in seconds."""

logger = logging.getLogger(__name__)


@route("GET", "/waits")
async def list_waits(call: Call, params: OfProject) -> WaitList:
    """List for what one waits in a project; a manager sees everybody's."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    return WaitList(items=call.door.waits.seen(call.caller, project))


@route("POST", "/waits", status=HTTPStatus.CREATED)
async def wait(call: Call, params: OfProject, body: SlotSearch) -> Wait:
    """Wait until something fits between two instants: one is told once, by one's rules for `free`. What is found is not
    held for anybody: it is granted if it is asked for at once and nobody else came first.
    """
    door, now = call.door, call.door.clock()
    guest = door.project(call.caller, params.project, USER)
    asked = msgspec.structs.replace(
        body, start=body.start or moment(now), end=body.end or moment((instant(body.start) or now) + AHEAD), limit=1
    )
    made = Wait(
        id=secrets.token_hex(8), project=guest.name, caller=call.caller.name, asked=asked, created=moment(now),
        limited=OPERATOR not in call.caller.offices,
    )  # fmt: skip
    found = await search(door, guest, within_policy(door, guest.name, asked, made.limited))
    theirs = door.waits.of(guest.name)
    gone = [one.id for one in theirs if one.state != WAITING][: max(0, len(theirs) + 1 - WAITS_MAX)]
    if len(theirs) - len(gone) >= WAITS_MAX:
        raise ProblemError(HTTPStatus.CONFLICT, f"{guest.name} waits for {WAITS_MAX} things already", code="too_many")
    await _keep(door, made, *door.waits.drop(*gone), *call.keep(made))
    if found.items:
        await _settle(door, made, found.items[0])
    return door.waits.get(made.id, made)


@route("POST", "/waits/{wait}/remove")
async def remove_wait(call: Call, wait: str) -> Wait:
    """Wait for it no more."""
    found = call.door.waits.theirs(call.caller, wait, "wait")
    await call.door.commit(*call.door.waits.drop(wait), *call.keep(found))
    call.door.hub.hint(WAITS_CHANGED, found.project)
    return found


async def watch(door: GatewayDoor) -> None:
    """Look for all who wait, whenever something has changed at a broker, and now and then as time goes on; until the
    gateway ends.
    """
    while True:
        await _watch(door, [one.name for one in door.of_role(BROKER)])


async def _watch(door: GatewayDoor, brokers: list[str]) -> None:
    """Until there are other brokers."""

    def still() -> bool:
        return brokers == [one.name for one in door.of_role(BROKER)]

    async with aclosing(door.hub.listen((), "", brokers, still)) as heard:
        async for _ in heard:
            for one in [one for one in door.waits.values() if one.state == WAITING]:
                try:
                    await look(door, one)
                except LeasekitError as error:
                    logger.debug("whether wait %s of %s is over is not known: %s", one.id, one.project, error)
            await trio.sleep(PAUSE)


async def look(door: GatewayDoor, one: Wait) -> None:
    """Whether what somebody waits for fits now, within the policy that the project has by now, or can't any more: then
    it is kept, and told. Raises ``LeasekitError`` where that is not known, or the policy does not allow it.
    """
    guest = door.actors.get(one.project)
    last_start = (instant(one.asked.end) or 0) - parse_duration(one.asked.length)
    if guest is None or last_start < door.clock():
        await _settle(door, one, None)
    elif found := (await search(door, guest, within_policy(door, one.project, one.asked, one.limited))).items:
        await _settle(door, one, found[0])


async def _settle(door: GatewayDoor, one: Wait, slot: Slot | None) -> None:
    """Keep what was found, and tell of it."""
    if door.waits.get(one.id) is not one:
        return  # it was removed, or found, meanwhile
    changed = msgspec.structs.replace(one, state="free" if slot else "over", slot=slot)
    told, now = list[Change](), door.clock()
    rules = [each for each in door.notices.rules.of(one.project) if each.caller == one.caller]
    rules = [each for each in rules if "free" in each.events and each.type in ("", one.asked.type)]
    if slot and rules:
        notice = Notification(
            kind="free", key=one.id, project=one.project, at=now, name=f"{one.asked.units} {one.asked.type}",
            type=one.asked.type, units=one.asked.units, start=instant(slot.start) or 0, end=instant(slot.end) or 0,
        )  # fmt: skip
        told = door.notices.tell(notice, now, *rules)
    await _keep(door, changed, *told)
    door.told.set()


async def _keep(door: GatewayDoor, one: Wait, *more: Change) -> None:
    await door.commit(door.waits.put(one), *more)
    door.hub.hint(WAITS_CHANGED, one.project)
