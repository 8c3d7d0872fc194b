"""Outages that an operator announces: everybody sees them, until they are over."""

from __future__ import annotations

import errno
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest
from test_feeds import fetched, read

from leasekit.client.shapes import Announcement
from leasekit.config.gateway import GatewayTable
from leasekit.config.load import load
from leasekit.core.schema import Change
from leasekit.gateway.announcements import ANNOUNCEMENTS_MAX, announced
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.instants import instant
from leasekit.stores.memory import MemoryStore

OUTAGE = {"text": "no power\nat the lab", "start": "2031-01-01T08:00:00Z", "end": "2031-01-01T12:00:00Z"}


def test_everybody_sees_what_an_operator_announces(
    gateway: GatewayUnderTest, operator: httpx.Client, user: httpx.Client, stranger: httpx.Client
) -> None:
    """And hears that there is something, in calendars too; others may not announce, nor remove it."""
    path = user.post("/feeds", json={}).json()["path"]
    with stranger.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        made = operator.post("/announcements", json=OUTAGE).json()
        next(line for line in lines if line == "event: announcements")
    assert (made["text"], made["start"], made["caller"]) == ("no power at the lab", OUTAGE["start"], "olga")
    soon = operator.post("/announcements", json={"text": "now", "end": "2031-01-01T00:00:00Z"}).json()
    for client in (user, stranger, operator):
        assert client.get("/announcements").json()["items"] == [soon, made]
    (event,) = (one for one in read(fetched(gateway, path).text) if "no power" in one.summary.value)
    assert (event.summary.value, event.dtstart.value) == (
        "Outage: no power at the lab",
        datetime(2031, 1, 1, 8, tzinfo=UTC),
    )
    assert user.post("/announcements", json=OUTAGE).status_code == 403
    assert user.post(f"/announcements/{made['id']}/remove").status_code == 403
    for one in (made, soon):
        assert operator.post(f"/announcements/{one['id']}/remove").json() == one
        assert operator.post(f"/announcements/{one['id']}/remove").status_code == 404
    assert user.get("/announcements").json() == {"items": []}


def test_what_has_begun_long_ago_is_in_calendars(
    gateway: GatewayUnderTest, operator: httpx.Client, user: httpx.Client
) -> None:
    """From the first instant on that a calendar has, whatever the zone."""
    path = user.post("/feeds", json={}).json()["path"]
    made = operator.post("/announcements", json={**OUTAGE, "start": "0001-01-01T00:00:00+14:00"}).json()
    assert made["start"] == "1970-01-01T00:00:00Z"
    assert "Outage: no power" in fetched(gateway, path).text
    operator.post(f"/announcements/{made['id']}/remove")


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"text": ""}, "text: found ''"),
        ({"text": "\x00\n"}, "text: found nothing to be read"),
        ({"end": "2031-01-01T08:00:00Z"}, "end: expected an instant to come, after the start"),
        ({"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}, "end: expected an instant to come"),
    ],
)
def test_what_is_wrong_with_it_is_told(operator: httpx.Client, more: dict[str, str], detail: str) -> None:
    """By its field; nothing is announced then."""
    answer = operator.post("/announcements", json={**OUTAGE, **more})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)
    assert operator.get("/announcements").json() == {"items": []}


def test_there_are_so_many_at_once(operator: httpx.Client) -> None:
    """Who announces more is told to remove some."""
    made = [operator.post("/announcements", json=OUTAGE).json()["id"] for _ in range(ANNOUNCEMENTS_MAX)]
    more = operator.post("/announcements", json=OUTAGE)
    for id_ in made:
        operator.post(f"/announcements/{id_}/remove")
    assert (more.status_code, more.json()["code"]) == (409, "too_many")


def test_an_announcement_is_kept_until_it_is_over() -> None:
    """By the next gateway too."""
    at = datetime(2031, 1, 1, tzinfo=UTC)
    one = Announcement(id="a", text="words", start=at, end=at + timedelta(hours=1), caller="olga", created=at)
    store, last = MemoryStore(), instant(one.end) or 0
    store.commit([Change("announcements", "a", ("a", msgspec.json.encode(one)))])
    for now, seen in ((last - 1, [one]), (last, [])):
        door = GatewayDoor("web", {}, GatewayTable(role="gateway"), store, clock=lambda now=now: now)
        assert announced(door) == seen


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_what_a_full_disk_does_not_keep_is_not_there(tmp_path: Path) -> None:
    """Who asks is told so; all that was acknowledged is there, and with room it goes on."""
    file, small = tmp_path / "leasekit.toml", tmp_path / "small"
    file.write_text(site_and_broker(INVENTORY + f'store = "sqlite:{small}/web.db"\n', "alpha"))
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(small)], check=True)
    try:
        with running(file, only=["web"]):
            gateway = GatewayUnderTest(file, load(file).state)
            with gateway.client(gateway.token("olga", "operator")) as client:
                with (small / "ballast").open("wb", buffering=0) as out, pytest.raises(OSError) as full:
                    while True:
                        out.write(b"x" * 4096)
                assert full.value.errno == errno.ENOSPC
                answers = [client.post("/announcements", json=OUTAGE) for _ in range(5)]
                assert (answers[-1].status_code, answers[-1].json()["code"]) == (503, "store"), answers[-1].text
                assert "web.db" in answers[-1].json()["detail"]
                made = [one.json()["id"] for one in answers if one.status_code == 200]
                assert [one["id"] for one in client.get("/announcements").json()["items"]] == made
                (small / "ballast").unlink()
                made.append(client.post("/announcements", json=OUTAGE).json()["id"])
                assert {one["id"] for one in client.get("/announcements").json()["items"]} == {*made}
    finally:
        subprocess.run(["umount", str(small)], check=True)
