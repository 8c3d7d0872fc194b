"""When is it free: windows of all brokers, each confirmed by a dry run through the broker's own mapper."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from leasekit.client.shapes import Slot, Slots, SlotSearch
from leasekit.core.errors import LeasekitError
from leasekit.core.properties import NEEDS, as_properties
from leasekit.core.time import DAY, Duration, Instant, format_duration
from leasekit.gateway.actors import LOOK, ActorAwayError, ActorConnection, RefusedError
from leasekit.gateway.callers import OPERATOR, USER
from leasekit.gateway.door import BROKER, GatewayDoor
from leasekit.gateway.instants import instant, moment, span, told_reason
from leasekit.gateway.leases import OfProject, read_needs
from leasekit.gateway.policies import TOPOLOGY_PLAN, Wish, beginnings
from leasekit.gateway.routing import Call, route, unprocessable
from leasekit.gateway.topologies import checked_topology

PLANNED: Final = "planned"
AHEAD: Final[Duration] = 30 * DAY
"""How far ahead is looked, unless it is said."""


@route("POST", "/slots")
async def find_slots(call: Call, params: OfProject, body: SlotSearch) -> Slots:
    """Find the first windows in which it fits, over all sites that the project may ask. What is named is granted if it
    is asked for at once and nobody else came first. With `sites` and `links` each window is a plan of the broker's for
    all of them.
    """
    guest = call.door.project(call.caller, params.project, USER)
    limited = OPERATOR not in call.caller.offices
    return await search(call.door, guest, within_policy(call.door, guest.name, body, limited), explain=True)


def within_policy(door: GatewayDoor, project: str, body: SlotSearch, limited: bool) -> SlotSearch:
    """The search, from when to when the policy of a project has leases begin, for those who are ``limited`` by it.
    Raises :class:`ProblemError` for what it never allows.
    """
    policy = door.policies.get(project)
    if policy is None or not limited:
        return body
    length, start, end, now = _period(door, body)
    units = sum(one["units"] if type(one.get("units")) is int else body.units for one in body.sites) or body.units
    wish = Wish(new=True, type=body.type, units=units, start=start, end=start + length)
    first, last = beginnings(policy, wish, end - length, now, project)
    return replace(body, start=moment(first), end=moment(last + length))


def _period(door: GatewayDoor, body: SlotSearch) -> tuple[Duration, Instant, Instant, Instant]:
    """The length, the first instant and the last one, and now. Raises ``LeasekitError``."""
    length, now = span(body.length, "length") or 0, door.clock()
    start = max(now, instant(body.start) or now)
    end = instant(body.end) or start + AHEAD
    if end - start < length:
        if body.end is None:
            text = f"length: found {body.length}, expected at most {format_duration(AHEAD)} where no end is said"
            raise unprocessable(text)
        raise unprocessable("end: expected at least the length after the start")
    return length, start, end, now


async def search(door: GatewayDoor, guest: ActorConnection, body: SlotSearch, *, explain: bool = False) -> Slots:
    """The windows that a project, which is a ``guest``, may have now; ``explain``: if there are none, why. Raises
    ``LeasekitError``.
    """
    length, start, end, _ = _period(door, body)
    if body.sites or body.links:
        return await _topologies(door, guest, body, start, end - length)
    sized = dict(as_properties(read_needs(body.needs), NEEDS))
    asked = {
        "type": body.type, "units": body.units, "length": length, "start": start, "end": end, "filter": body.filter,
        "needs": sized, "site": body.site, "holder": guest.name, "limit": body.limit, "explain": explain,
    }  # fmt: skip
    answers, away = await _answers(door, asked)
    slots = sorted(
        ((slot, name) for name, one in answers for slot in one["slots"]), key=lambda one: int(one[0]["start"])
    )
    why: dict[str, Any] = next((one for _, one in answers if one["reason"]), {"reason": "", "because": None})
    return Slots(
        items=[_shown(slot, broker, length) for slot, broker in slots[: body.limit]],
        short=min((one["short"] for _, one in answers), default=body.units),
        leases=[lease for _, one in answers for lease in one["leases"]],
        away=list(away),
        **({} if slots else told_reason(why["reason"], why["because"])),
    )


async def _topologies(
    door: GatewayDoor, guest: ActorConnection, body: SlotSearch, start: Instant, last: Instant
) -> Slots:
    """Windows for sites and links at once: those that each broker plans, of which none overlap. Raises
    ``LeasekitError``.
    """
    if body.needs or body.site:
        raise unprocessable("needs, site: found one of them beside sites and links, which say their own")
    own = {"type": body.type, "units": body.units, "filter": body.filter}
    asked = {"sites": [{**own, **one} for one in body.sites], "links": body.links, "duration": body.length}

    async def ask(broker: ActorConnection) -> tuple[list[Slot], dict[str, Any] | RefusedError | None]:
        """What it plans, and what it says where it plans no more."""
        items, first = list[Slot](), start
        while len(items) < body.limit and first <= last:
            request = checked_topology({**asked, "est": first, "lst": last})
            plan = partial(guest.command, TOPOLOGY_PLAN, {"request": request, "broker": broker.name})
            try:
                found = await door.unless_away(plan, [broker])
            except RefusedError as error:
                return items, error
            if found["status"] != PLANNED:
                return items, found
            items.append(_planned(found))
            first = found["term"][1]
        return items, None

    told, away = await door.each(door.of_role(BROKER), ask)
    items = sorted((slot for slots, _ in told.values() for slot in slots), key=lambda one: one.start)
    why: dict[str, Any] = {}
    if not items:
        reasons = [reason for _, reason in told.values() if reason is not None]
        why = next((one for one in reasons if isinstance(one, dict)), {})
        for error in reasons:
            if not why and isinstance(error, LeasekitError):
                raise error
    return Slots(
        items=items[: body.limit],
        away=sorted({one.actor for one in away.values()}),
        **(told_reason(why["reason"], why["because"]) if why else {}),
    )


def _planned(plan: dict[str, Any]) -> Slot:
    members: dict[str, list[str]] = {}
    for part in plan["parts"]:
        members.setdefault(part["member"], []).append(part["site"])
    start, end = map(moment, plan["term"])
    return Slot(start=start, end=end, latest=start, site="", broker=plan["broker"], members=members)


async def _answers(
    door: GatewayDoor, asked: dict[str, Any]
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, ActorAwayError]]:
    """What every broker says that offers the type, and who is away. Raises ``LeasekitError`` if none does: that one is
    away, or what the first says.
    """

    async def ask(broker: ActorConnection) -> dict[str, Any] | RefusedError:
        try:
            with broker.within(LOOK):
                found: dict[str, Any] = await broker.command("slots.find", asked)
        except RefusedError as error:
            return error
        return found

    told, away = await door.each(door.of_role(BROKER), ask)
    answers = [(name, one) for name, one in told.items() if not isinstance(one, RefusedError)]
    if not answers:
        for error in (*away.values(), *told.values()):
            if isinstance(error, LeasekitError):
                raise error
    return answers, away


def _shown(slot: dict[str, Any], broker: str, length: Duration) -> Slot:
    start = slot["start"]
    return Slot(
        start=moment(start), end=moment(start + length), latest=moment(slot["end"] - length), site=slot["site"],
        broker=broker,
    )  # fmt: skip
