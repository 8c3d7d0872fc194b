"""Leases as a calendar at a secret address, read by a library that has not made it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import vobject
from gateway_world import GatewayUnderTest

from leasekit.client.shapes import Announcement
from leasekit.gateway.calendars import FeedRecord
from leasekit.gateway.feeds import calendar

Leased = Callable[..., dict[str, Any]]


def fetched(gateway: GatewayUnderTest, path: str) -> httpx.Response:
    """What is at an address, for one who has no token."""
    with gateway.client() as client:
        return client.get(f"http://gateway{path}")


def read(text: str) -> list[Any]:
    """The events of a calendar, as vobject reads it."""
    found = vobject.readOne(text)
    found.validate(raiseException=True)
    return list(found.contents.get("vevent", ()))


def test_a_calendar_has_the_leases_of_a_project(gateway: GatewayUnderTest, user: httpx.Client, leased: Leased) -> None:
    """With their terms; of one type, where it is of one; of one's own, where it is of these."""
    lease = leased(name="demo", units=2)
    made = user.post("/feeds", json={}).json()
    answer = fetched(gateway, made["path"])
    assert answer.headers["content-type"].startswith("text/calendar")
    (event,) = [one for one in read(answer.text) if one.uid.value.startswith(lease["id"])]
    assert event.summary.value == "2 vm: demo"
    start, end = (datetime.fromisoformat(lease[key]).replace(microsecond=0) for key in ("start", "end"))
    assert abs(event.dtstart.value - start) <= timedelta(seconds=1)
    assert abs(event.dtend.value - end) <= timedelta(seconds=1)
    others = user.post("/feeds", json={"type": "gpu"}).json()
    assert read(fetched(gateway, others["path"]).text) == []
    mine = user.post("/feeds", json={"mine": True}).json()
    assert len(read(fetched(gateway, mine["path"]).text)) >= 1
    with gateway.client(gateway.token("ulf", alpha="user")) as ulf:
        his = ulf.post("/feeds", json={"mine": True}).json()
        assert read(fetched(gateway, his["path"]).text) == []
        assert ulf.post(f"/feeds/{mine['id']}/revoke").status_code == 404
        assert [one["id"] for one in ulf.get("/feeds").json()["items"]] == [his["id"]]


def test_an_address_is_a_secret_and_can_be_revoked(
    gateway: GatewayUnderTest, user: httpx.Client, stranger: httpx.Client
) -> None:
    """It is shown once; what is none, or was one, is not there; it opens nothing else."""
    made = user.post("/feeds", json={}).json()
    secret = made["path"].rpartition("/")[2].removesuffix(".ics")
    assert len(secret) == 43
    assert secret not in user.get("/feeds").text
    assert secret.encode() not in (gateway.folder / "web.db").read_bytes()
    with gateway.client(secret) as client:
        assert client.get("/leases").status_code == 401
    assert stranger.post("/feeds?project=alpha", json={}).status_code == 404
    assert stranger.post(f"/feeds/{made['id']}/revoke").status_code == 404
    assert fetched(gateway, made["path"].replace(secret, secret[::-1])).status_code == 404
    assert fetched(gateway, made["path"]).status_code == 200
    assert user.post(f"/feeds/{made['id']}/revoke").status_code == 200
    assert fetched(gateway, made["path"]).status_code == 404


@pytest.mark.parametrize(
    "evil", ["x\r\nEND:VEVENT\r\nBEGIN:VALARM", "a;b,c\\n\nATTACH:http://x", "\u2028\x00\x1b[2J\x85"]
)
def test_no_name_is_a_line_of_a_calendar(evil: str) -> None:
    """There are two events with the usual lines, whatever a lease, its type, its site or an outage is called."""
    feed = FeedRecord(id="f", project=evil, caller="c", digest=b"", created=0)
    lease = {"id": evil, "name": evil, "type": evil, "site": evil, "state": "active", "units": 1, "start": 0, "end": 1}
    at = datetime(2031, 1, 1, tzinfo=UTC)
    outage = Announcement(id="a", text=evil, start=at, end=at, caller="c", created=at)
    text = calendar(feed, [lease], [outage], 5).decode()
    event, other = read(text)
    assert sorted(event.contents) == ["dtend", "dtstamp", "dtstart", "location", "status", "summary", "uid"]
    assert sorted(other.contents) == ["dtend", "dtstamp", "dtstart", "summary", "uid"]
    names = {line.partition(":")[0].partition(";")[0] for line in text.replace("\r\n ", "").splitlines()}
    assert names <= {"BEGIN", "END", "VERSION", "PRODID", "X-WR-CALNAME", *map(str.upper, event.contents)}
