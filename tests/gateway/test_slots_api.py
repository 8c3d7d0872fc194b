"""Windows over HTTP: what is named is granted if it is asked for, and what stands in the way is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from gateway_world import until

Leased = Callable[..., dict[str, Any]]
DAY = datetime(2030, 1, 1, tzinfo=UTC)


def at(hours: float) -> str:
    """An instant of a day to come."""
    return (DAY + timedelta(hours=hours)).isoformat()


def test_windows_are_those_that_are_granted(user: httpx.Client, stranger: httpx.Client, leased: Leased) -> None:
    """Between bookings, after them; each is granted when it is asked for, an earlier start is not."""
    for start, units in ((2, 4), (5, 6)):
        until(user, leased(units=units, start=at(start), length="1h")["id"], "ticketed")
    search = {"type": "vm", "units": 3, "length": "90m", "start": at(1.75), "end": at(24)}
    found = user.post("/slots", json=search).json()
    assert [slot["start"] for slot in found["items"]] == [at(3).replace("+00:00", "Z"), at(6).replace("+00:00", "Z")]
    assert found["items"][0]["latest"] == at(3.5).replace("+00:00", "Z")
    assert found["short"] == 1
    assert len(found["leases"]) == 1
    assert stranger.post("/slots", json=search).json()["leases"] == []
    for slot in found["items"]:
        lease = leased(units=3, start=slot["start"], length="90m")
        assert until(user, lease["id"], "ticketed")["start"] == slot["start"]
    again = user.post("/slots", json={**search, "units": 4}).json()
    assert [slot["start"] for slot in again["items"]] == [at(7.5).replace("+00:00", "Z")]


def test_what_never_fits_has_no_window(user: httpx.Client, viewer: httpx.Client) -> None:
    """More units than there are, filters that nothing fits, types of nobody, terms that are too short."""
    for asked in ({"units": 7}, {"filter": "rack == b"}):
        found = user.post("/slots", json={"type": "vm", "length": "1h", **asked}).json()
        refused = user.post("/leases/dry-run", json={"type": "vm", "length": "1h", **asked}).json()
        assert (found["items"], found["short"]) == ([], 1)
        assert refused["status"] == "refused"
        assert {name: found[name] for name in ("reason", "code")} == {
            name: refused[name] for name in ("reason", "code")
        }
        assert found["reason"]
        assert found["values"].keys() == refused["values"].keys()
    unknown = user.post("/slots", json={"type": "gpu", "length": "1h"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_type")
    assert "type: found 'gpu', there is vm" in unknown.json()["detail"]
    short = user.post("/slots", json={"type": "vm", "length": "2h", "start": at(1), "end": at(2)})
    assert (short.status_code, short.json()["detail"]) == (422, "end: expected at least the length after the start")
    long = user.post("/slots", json={"type": "vm", "length": "31d"}).json()["detail"]
    assert long == "length: found 31d, expected at most 30d where no end is said"
    assert user.post("/slots", json={"type": "vm", "length": "1h", "limit": 0}).status_code == 422
    assert viewer.post("/slots", json={"type": "vm", "length": "1h"}).status_code == 403
