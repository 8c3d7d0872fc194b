"""When is it free: windows of all brokers, each confirmed by a dry run through the broker's own mapper."""

from __future__ import annotations

from typing import Any, Final

from leasekit.client.shapes import Slot, Slots, SlotSearch
from leasekit.core.properties import NEEDS, as_properties, read_amount
from leasekit.core.time import DAY, Duration
from leasekit.gateway.actors import ActorConnection, RefusedError
from leasekit.gateway.callers import USER
from leasekit.gateway.door import BROKER, GatewayDoor
from leasekit.gateway.instants import instant, moment, span
from leasekit.gateway.leases import OfProject
from leasekit.gateway.routing import Call, route, unprocessable

AHEAD: Final[Duration] = 30 * DAY
"""How far ahead is looked, unless it is said."""


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
    asked = {
        "type": body.type, "units": body.units, "length": length, "start": start, "end": end, "filter": body.filter,
        "needs": sized, "site": body.site, "holder": guest.name, "limit": body.limit,
    }  # fmt: skip
    answers = await _answers(door, asked)
    slots = sorted(
        ((slot, name) for name, one in answers for slot in one["slots"]), key=lambda one: int(one[0]["start"])
    )
    return Slots(
        items=[_shown(slot, broker, length) for slot, broker in slots[: body.limit]],
        short=min((one["short"] for _, one in answers), default=body.units),
        leases=[lease for _, one in answers for lease in one["leases"]],
    )


async def _answers(door: GatewayDoor, asked: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What every broker says that offers the type. Raises ``LeasekitError``: what the first says, if none does."""
    answers, refused = list[tuple[str, dict[str, Any]]](), list[RefusedError]()
    for broker in door.of_role(BROKER):
        try:
            answers.append((broker.name, await broker.command("slots.find", asked)))
        except RefusedError as error:
            refused.append(error)
    if refused and not answers:
        raise refused[0]
    return answers


def _shown(slot: dict[str, Any], broker: str, length: Duration) -> Slot:
    start = slot["start"]
    return Slot(
        start=moment(start), end=moment(start + length), latest=moment(slot["end"] - length), site=slot["site"],
        broker=broker,
    )  # fmt: skip
