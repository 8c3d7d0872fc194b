"""Leases as a calendar that programs subscribe to (iCalendar, RFC 5545), at an address that is a secret.

Who knows the address sees the feed, and nothing else: calendars can't log in. Of the secret only the hash is kept.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from leasekit.client.shapes import Announcement, CalendarFeed, FeedRequest
from leasekit.core.time import Instant
from leasekit.gateway.announcements import announced
from leasekit.gateway.calendars import FeedRecord
from leasekit.gateway.callers import OPERATOR, VIEWER, digest_of
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.holders import holder_of
from leasekit.gateway.incoming import SAFE, source_of, take_unknown
from leasekit.gateway.instants import moment, told
from leasekit.gateway.leases import OfProject
from leasekit.gateway.notices import one_line
from leasekit.gateway.problems import ProblemError, not_found
from leasekit.gateway.routing import BASE, Call, route

FEEDS_MAX: Final = 1_000
EACH: Final = 50
"""How many feeds one may have who is no operator: all have a part of what the gateway keeps."""
PATH: Final = "/calendars/{secret}"
SHOWN: Final = frozenset({"nascent", "ticketed", "active", "active_ticketed"})
"""States of leases that are in a calendar."""


class FeedList(Struct, kw_only=True):
    """Feeds that somebody may see, without their addresses."""

    items: list[CalendarFeed]


@route("GET", "/feeds")
async def list_feeds(call: Call, params: OfProject) -> FeedList:
    """List one's own calendars of a project; a manager sees everybody's."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    return FeedList(items=[told(CalendarFeed, one) for one in call.door.feeds.seen(call.caller, project)])


@route("POST", "/feeds", status=HTTPStatus.CREATED)
async def create_feed(call: Call, params: OfProject, body: FeedRequest) -> CalendarFeed:
    """Make a calendar of a project's leases. Its address is shown now, and never again: who knows it sees them."""
    project = call.door.project(call.caller, params.project, VIEWER).name
    _library()
    if len(call.door.feeds) >= FEEDS_MAX:
        raise ProblemError(HTTPStatus.CONFLICT, f"there are {FEEDS_MAX} feeds already: revoke some", code="too_many")
    who = call.caller.name
    has = sum(one.caller == who for one in call.door.feeds.values())
    if has >= EACH and OPERATOR not in call.caller.offices:
        raise ProblemError(HTTPStatus.CONFLICT, f"{who} has {EACH} feeds already: revoke some", code="too_many")
    secret = secrets.token_urlsafe(32)
    record = FeedRecord(
        id=secrets.token_hex(8), project=project, caller=who, digest=digest_of(secret),
        created=call.door.clock(), type=body.type, mine=body.mine,
    )  # fmt: skip
    made = told(CalendarFeed, record, path=f"{BASE}{PATH.format(secret=secret)}.ics")
    await call.door.commit(call.door.feeds.put(record), *call.keep(made))
    return made


@route("POST", "/feeds/{feed}/revoke")
async def revoke_feed(call: Call, feed: str) -> CalendarFeed:
    """Have there be nothing at its address any more."""
    record = call.door.feeds.theirs(call.caller, feed, "feed")
    gone = told(CalendarFeed, record)
    await call.door.commit(*call.door.feeds.drop(feed), *call.keep(gone))
    return gone


async def answer_feed(door: GatewayDoor, request: Request) -> Response:
    """The calendar at an address. Raises :class:`ProblemError` for one that there is not."""
    take_unknown(door, source_of(request))
    digest = digest_of(request.path_params["secret"].removesuffix(".ics"))
    record = next((one for one in door.feeds.values() if one.digest == digest), None)
    if record is None or record.project not in door.actors:
        raise not_found("calendar", "")
    guest = door.actors[record.project]
    leases = [one for one in await guest.query("leases") if one["state"] in SHOWN and record.type in ("", one["type"])]
    if record.mine:
        leases = [one for one in leases if await holder_of(door, guest, one["id"]) == record.caller]
    return Response(
        calendar(record, leases, announced(door), door.clock()), media_type="text/calendar; charset=utf-8", headers=SAFE
    )


def calendar(feed: FeedRecord, leases: list[Mapping[str, Any]], outages: Sequence[Announcement], now: Instant) -> bytes:
    """An iCalendar object. What leases are called, and outages say, can't be more than a value in it."""
    library = _library()
    made = library.Calendar()
    made.add("prodid", "-//leasekit//leases//EN")
    made.add("version", "2.0")
    made.add("x-wr-calname", one_line(f"leases of {feed.project}"))

    def add(id_: str, start: datetime, end: datetime, **said: str) -> None:
        event = library.Event()
        event.add("uid", one_line(f"{id_}@{feed.project}.leasekit"))
        for name, at in {"dtstamp": moment(now), "dtstart": start, "dtend": end}.items():
            event.add(name, at.replace(microsecond=0))
        for name, words in said.items():
            event.add(name, one_line(words))
        made.add_component(event)

    for lease in leases:
        add(
            lease["id"], moment(lease["start"]), moment(lease["end"]), location=lease["site"],
            summary=f"{lease['units']} {lease['type']}: {lease['name'] or lease['id']}",
            status="TENTATIVE" if lease["state"] == "nascent" else "CONFIRMED",
        )  # fmt: skip
    for one in outages:
        add(one.id, one.start.astimezone(UTC), one.end.astimezone(UTC), summary=f"Outage: {one.text}")
    text: bytes = made.to_ical()
    return text


def _library() -> Any:
    try:
        found = importlib.import_module("icalendar")
    except ImportError:
        text = "the gateway lacks the package icalendar: pip install 'leasekit[feeds]'"
        raise ProblemError(HTTPStatus.NOT_IMPLEMENTED, text, code="not_installed") from None
    return found
