"""When is it free: windows of all brokers, each confirmed by a dry run through the broker's own mapper."""

from __future__ import annotations

from typing import Any, Final

import trio

from leasekit.client.shapes import Slot, Slots, SlotSearch
from leasekit.core.time import DAY, Duration
from leasekit.core.vectors import NEEDS, as_properties, read_amount
from leasekit.gateway.actors import ActorConnection, RefusedError
from leasekit.gateway.callers import USER
from leasekit.gateway.door import BROKER, GatewayDoor
from leasekit.gateway.instants import instant, moment, span
from leasekit.gateway.leases import OfProject
from leasekit.gateway.routing import Call, route, unprocessable

AHEAD: Final[Duration] = 30 * DAY
"""How far ahead is looked, unless it is said."""
SPARE: Final = 2
"""So many more windows than were asked for are looked at, as a mapper may not grant each."""


@route("POST", "/slots")
async def find_slots(call: Call, params: OfProject, body: SlotSearch) -> Slots:
    """Find the first windows in which it fits, over all sites that the project may ask. What is named is granted if it
    is asked for at once and nobody else came first.
    """
    return await search(call.door, call.door.project(call.caller, params.project, USER), body)


async def search(door: GatewayDoor, guest: ActorConnection, body: SlotSearch) -> Slots:
    """The windows that a project, which is a ``guest``, may have now. Raises ``LeasekitError``."""
    length, now = span(body.length, "length") or 0, door.clock()
    start = max(now, instant(body.start) or now)
    end = instant(body.end) or start + AHEAD
    if end - start < length:
        raise unprocessable("end: expected at least the length after the start")
    try:
        needs = tuple(sorted((name, read_amount(name, much)) for name, much in body.needs.items()))
    except ValueError as error:
        raise unprocessable(f"needs: {error}") from None
    sized = dict(as_properties(needs, NEEDS))
    properties = {**sized, **({"filter": body.filter} if body.filter else {})}
    asked = {
        "type": body.type, "units": body.units, "length": length, "start": start, "end": end, "filter": body.filter,
        "needs": sized, "site": body.site, "holder": guest.name, "limit": body.limit * SPARE,
    }  # fmt: skip
    found, short, leases = await _candidates(door, asked)
    request = {"type": body.type, "units": body.units, "site": body.site, "properties": properties}
    items: list[Slot] = []
    for at in range(0, len(found), body.limit):
        items += await _confirmed(guest, request, found[at : at + body.limit], length)
        if len(items) >= body.limit:
            break
    return Slots(items=items[: body.limit], short=short, leases=leases)


async def _candidates(door: GatewayDoor, asked: dict[str, Any]) -> tuple[list[dict[str, Any]], int, list[str]]:
    """The windows of every broker that offers the type, in order of their start; what stands in the way."""
    found: list[dict[str, Any]] = []
    short, leases, refused = asked["units"], list[str](), list[RefusedError]()
    brokers = door.of_role(BROKER)
    for broker in brokers:
        try:
            answer = await broker.query("slots", **asked)
        except RefusedError as error:
            refused.append(error)
            continue
        found += [{**slot, "broker": broker.name} for slot in answer["slots"]]
        short = min(short, answer["short"])
        leases += answer["leases"]
    if refused and len(refused) == len(brokers):
        raise refused[0]
    return sorted(found, key=lambda slot: int(slot["start"])), short, leases


async def _confirmed(
    guest: ActorConnection, request: dict[str, Any], windows: list[dict[str, Any]], length: Duration
) -> list[Slot]:
    """Those windows of which the broker's mapper says that it would grant a request for their start."""
    granted: dict[int, Slot] = {}

    async def confirm(number: int, window: dict[str, Any]) -> None:
        term = [window["start"], window["start"] + length]
        wish = {**request, "term": term, "broker": window["broker"], "site": window["site"]}
        answer = await guest.command("lease.dry_run", wish)
        if answer["status"] == "granted":
            granted[number] = Slot(
                start=moment(term[0]), end=moment(term[1]), latest=moment(window["end"] - length),
                site=window["site"], broker=window["broker"],
            )  # fmt: skip

    async with trio.open_nursery() as nursery:
        for number, window in enumerate(windows):
            nursery.start_soon(confirm, number, window)
    return [granted[number] for number in sorted(granted)]
