"""Announcements of outages over HTTP: an operator writes them, and everybody sees them or is told."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

from leasekit.client.shapes import Announcement, AnnouncementList, AnnouncementRequest
from leasekit.core.schema import Change
from leasekit.gateway.callers import OPERATOR
from leasekit.gateway.deployment import need_office
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.events import ANNOUNCEMENTS_CHANGED
from leasekit.gateway.instants import instant, moment
from leasekit.gateway.notices import Notification, one_line
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import Call, route, unprocessable

ANNOUNCEMENTS_MAX: Final = 100
"""How many announcements there are at once; the oldest that are over make room."""


@route("GET", "/announcements")
async def list_announcements(call: Call) -> AnnouncementList:
    """List the outages that are announced and not over."""
    return AnnouncementList(items=announced(call.door))


@route("POST", "/announcements", status=HTTPStatus.CREATED)
async def announce(call: Call, body: AnnouncementRequest) -> Announcement:
    """Tell everybody of an outage: pages, calendars, and the rules for what is `announced`."""
    need_office(call, OPERATOR)
    door, now = call.door, moment(call.door.clock())
    start, end = moment(instant(body.start or now) or 0), moment(instant(body.end) or 0)  # in UTC, as calendars have it
    made = Announcement(
        id=secrets.token_hex(8), text=one_line(body.text), start=start, end=end, caller=call.caller.name, created=now
    )  # fmt: skip
    if not made.text:
        raise unprocessable("text: found nothing to be read, expected words")
    if made.end <= max(made.start, now):
        raise unprocessable("end: expected an instant to come, after the start")
    over = [one.id for one in door.announcements.values() if one.end <= now]
    if len(door.announcements) - len(over) >= ANNOUNCEMENTS_MAX:
        text = f"there are {ANNOUNCEMENTS_MAX} announcements already: remove some"
        raise ProblemError(HTTPStatus.CONFLICT, text, code="too_many")
    changes = [door.announcements.put(made), *door.announcements.drop(*over), *_told(door, made)]
    await door.commit(*changes, *call.keep(made))
    door.hub.hint(ANNOUNCEMENTS_CHANGED)
    door.told.set()
    return made


@route("POST", "/announcements/{announcement}/remove")
async def remove_announcement(call: Call, announcement: str) -> Announcement:
    """Have it be announced no more."""
    need_office(call, OPERATOR)
    found = call.door.announcements.get(announcement)
    if found is None:
        raise not_found("announcement", announcement)
    await call.door.commit(*call.door.announcements.drop(announcement), *call.keep(found))
    call.door.hub.hint(ANNOUNCEMENTS_CHANGED)
    return found


def announced(door: GatewayDoor) -> list[Announcement]:
    """What is not over, in order of its start."""
    now = moment(door.clock())
    return sorted((one for one in door.announcements.values() if one.end > now), key=lambda one: (one.start, one.id))


def _told(door: GatewayDoor, one: Announcement) -> list[Change]:
    """What is sent of it, by the rules of all projects: it concerns all types."""
    changes, now = list[Change](), door.clock()
    for rule in [rule for rule in door.notices.rules.values() if "announced" in rule.events]:
        notice = Notification(
            kind="announced", key=one.id, project=rule.project, at=now, reason=one.text, start=instant(one.start) or 0,
            end=instant(one.end) or 0,
        )  # fmt: skip
        changes += door.notices.tell(notice, now, rule)
    return changes
