"""Who waits for something to fit is told once it does: over HTTP, with real daemons, and what a gateway keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
from gateway_world import until

from leasekit.client.shapes import SlotSearch, Wait
from leasekit.config.gateway import GatewayTable
from leasekit.core.schema import Change
from leasekit.core.time import Instant
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.instants import instant
from leasekit.gateway.waits import WAITS_MAX, look
from leasekit.stores.memory import MemoryStore

Leased = Callable[..., dict[str, Any]]
DAY = datetime(2031, 1, 1, tzinfo=UTC)


def at(hours: float) -> str:
    """An instant of a day to come."""
    return (DAY + timedelta(hours=hours)).isoformat()


def waited(client: httpx.Client, **search: Any) -> dict[str, Any]:
    """A new wait."""
    answer = client.post("/waits", json={"type": "vm", "length": "1h", **search})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def settled(client: httpx.Client, wait: str) -> dict[str, Any]:
    """The wait, once it waits no more. Each hint that is heard is a reason to look again."""
    with client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        while True:
            waits = client.get("/waits?project=alpha").json()["items"]
            (found,) = (one for one in waits if one["id"] == wait)
            if found["state"] != "waiting":
                return dict(found)
            next(line for line in lines if line == "event: waits")


def test_who_waits_is_told_when_a_lease_ends(
    user: httpx.Client, viewer: httpx.Client, stranger: httpx.Client, operator: httpx.Client, leased: Leased
) -> None:
    """Of the window that there is then, which is granted when it is asked for; others do not see it."""
    lease = leased(units=6, start=at(2), length="3h")["id"]
    until(user, lease, "ticketed")
    wait = waited(user, units=2, start=at(2), end=at(4))
    assert (wait["caller"], wait["project"], wait["state"]) == ("ursula", "alpha", "waiting")
    assert [one["id"] for one in operator.get("/waits?project=alpha").json()["items"]] == [wait["id"]]
    assert viewer.get("/waits").json() == stranger.get("/waits").json() == {"items": []}
    assert viewer.post("/waits", json={"type": "vm", "length": "1h"}).status_code == 403
    for other in (viewer, stranger):
        assert other.post(f"/waits/{wait['id']}/remove").status_code == 404
    user.post(f"/leases/{lease}/close", json={})
    found = settled(user, wait["id"])
    assert (found["state"], found["slot"]["site"]) == ("free", "site")
    assert found["slot"]["start"] == at(2).replace("+00:00", "Z")
    taken = leased(units=2, start=found["slot"]["start"], length="1h")
    assert until(user, taken["id"], "ticketed")["start"] == found["slot"]["start"]
    assert user.post(f"/waits/{wait['id']}/remove").json()["id"] == wait["id"]
    assert user.get("/waits").json() == {"items": []}
    assert user.post(f"/waits/{wait['id']}/remove").status_code == 404


def test_what_fits_already_is_told_at_once(user: httpx.Client) -> None:
    """And what is wrong with a wait is told as of a search, and nothing is kept of it."""
    wait = waited(user, start=at(8), end=at(10))
    assert (wait["state"], wait["slot"]["start"]) == ("free", at(8).replace("+00:00", "Z"))
    user.post(f"/waits/{wait['id']}/remove")
    assert user.post("/waits", json={"type": "gpu", "length": "1h"}).json()["code"] == "unknown_type"
    short = user.post("/waits", json={"type": "vm", "length": "2h", "start": at(1), "end": at(2)})
    assert (short.status_code, short.json()["detail"]) == (422, "end: expected at least the length after the start")
    assert user.get("/waits").json() == {"items": []}


def test_what_is_waited_for_is_within_the_policy_by_then(
    user: httpx.Client, operator: httpx.Client, leased: Leased
) -> None:
    """One that was made stricter since: who waits is not told of what would be refused. Operators are."""
    lease = leased(units=6, start=at(20), length="3h")["id"]
    until(user, lease, "ticketed")
    search = {"start": at(20), "end": at(22)}
    large, small = waited(user, units=4, **search), waited(user, units=1, **search)
    last = operator.post("/waits?project=alpha", json={"type": "vm", "length": "1h", "units": 5, **search}).json()
    try:
        operator.put("/policies/alpha", json={"most_units": 2})
        user.post(f"/leases/{lease}/close", json={})
        assert settled(operator, last["id"])["state"] == "free"  # it is looked at last
        states = {one["id"]: one["state"] for one in operator.get("/waits?project=alpha").json()["items"]}
        assert (states[large["id"]], states[small["id"]]) == ("waiting", "free")
    finally:
        operator.put("/policies/alpha", json={})
    leased(units=1, start=at(30))
    assert settled(user, large["id"])["state"] == "free"
    for one in (large, small, last):
        operator.post(f"/waits/{one['id']}/remove")


def test_a_project_waits_for_so_many_things(user: httpx.Client, stranger: httpx.Client) -> None:
    """What is over makes room; what somebody waits for does not."""
    over = waited(user, start=at(8), end=at(10))
    waiting = [waited(user, units=7)["id"] for _ in range(WAITS_MAX)]
    assert over["id"] not in [one["id"] for one in user.get("/waits").json()["items"]]
    more = user.post("/waits", json={"type": "vm", "length": "1h", "units": 7})
    assert (more.status_code, more.json()["code"]) == (409, "too_many")
    waited(stranger, units=7)
    for id_ in waiting:
        user.post(f"/waits/{id_}/remove")


async def test_a_wait_is_kept_and_ends_with_its_time() -> None:
    """What was waited for before the gateway ended is waited for after it; then nobody is asked any more."""
    asked = SlotSearch(type="vm", length="1h", start=DAY, end=DAY + timedelta(hours=3), limit=1)
    wait = Wait(id="w1", project="alpha", caller="ada", asked=asked, created=DAY)
    store, now, last = MemoryStore(), instant(DAY), instant(DAY + timedelta(hours=2))
    assert now is not None and last is not None
    store.commit([Change("waits", "w1", ("w1", "alpha", msgspec.json.encode(wait)))])
    door = opened(store, {"alpha": ActorConnection("alpha", "guest", Path("none"))}, last)
    await look(door, door.waits["w1"])  # no broker has it
    assert door.waits["w1"] == wait
    door = opened(store, door.actors, last + 1)
    await look(door, door.waits["w1"])
    assert door.waits["w1"].state == "over"
    assert opened(store, {}, now).waits == door.waits


async def test_a_project_that_there_is_no_more_waits_for_nothing() -> None:
    """Its guest is not in the deploy file any more."""
    asked = SlotSearch(type="vm", length="1h", start=DAY, end=DAY + timedelta(hours=3), limit=1)
    door = opened(MemoryStore(), {}, instant(DAY) or 0)
    wait = door.waits["w1"] = Wait(id="w1", project="gone", caller="ada", asked=asked, created=DAY)
    await look(door, wait)
    assert door.waits["w1"].state == "over"


def opened(store: MemoryStore, actors: Mapping[str, ActorConnection], now: Instant) -> GatewayDoor:
    """A door at an instant."""
    return GatewayDoor("web", actors, GatewayTable(role="gateway"), store, clock=lambda: now)
