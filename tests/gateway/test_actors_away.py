"""Actors that are away: every route of the OpenAPI document says which one that is, or does without it, at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest
from trio.testing import MockClock

from leasekit.client.shapes import CalendarView, ProblemDetails, SlotSearch
from leasekit.config.gateway import GatewayTable
from leasekit.config.load import load
from leasekit.core.frames import MEDIA_TYPE, pack
from leasekit.core.reasons import Code
from leasekit.gateway.actors import LOOK, TIMEOUT, ActorAwayError, ActorConnection, RefusedError
from leasekit.gateway.callers import ANYBODY
from leasekit.gateway.deployment import LOOKED_WITHIN, Actors, list_actors
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.problems import of_error
from leasekit.gateway.routing import Call
from leasekit.gateway.slots import search
from leasekit.gateway.timeline import CalendarOf, PricesOf, list_prices, list_types, show_calendar
from leasekit.gateway.usage import UsageOf, UsageReport, usage
from leasekit.stores.memory import MemoryStore

LEASE: Final = {"type": "vm", "length": "1h"}
TOPOLOGY: Final = {
    "request": {"est": "2030-01-01T00:00:00Z", "duration": "1h", "sites": [{"id": "a", "type": "vm", "units": 1}]}
}
SERIES: Final = {
    "request": {"type": "vm", "start": "2030-01-01T00:00:00Z"}, "every": "day", "begin": "9:00", "finish": "10:00",
    "until": "2030-01-02",
}  # fmt: skip
BODIES: Final = {
    "/leases/{lease}": {"units": 2},
    "/leases/{lease}/modify/dry-run": {"units": 2},
    "/approvals": {"request": LEASE}, "/leases": LEASE, "/leases/dry-run": LEASE, "/slots": LEASE, "/waits": LEASE,
    "/leases/{lease}/extend": {"length": "1h"}, "/leases/{lease}/extend/dry-run": {"length": "1h"},
    "/leases/series": SERIES, "/leases/series/dry-run": SERIES,
    "/topologies": TOPOLOGY, "/topologies/dry-run": TOPOLOGY,
}  # fmt: skip
"""What has to be said, by path, so that the actor is asked; elsewhere that is a word for each field that is needed."""
NEEDS: Final = {
    "alpha": ("/leases", "/slices", "/topologies", "/audit"),
    "broker": ("/brokers", "/types", "/prices", "/slots"),
    "site": ("/sites", "/units", "/delegations", "/maintenance", "/claims", "/evidence", "/peers"),
}
"""With which words the paths begin that come to nothing without an actor."""
AT_ONCE: Final = 10.0
"""Within how many seconds each answers: a request waits for an actor that is silent for longer than that."""
STREAM: Final = "/events"
LISTS: Final = {("get", "/sites"), ("get", "/brokers")}
"""What says of each actor whether it is there."""
ASKS_BROKER: Final = {"/leases/dry-run", "/leases/series/dry-run", "/topologies/dry-run", "/slots", "/waits"}
"""Where a project waits for its broker's answer, which may wait for its sites."""


@pytest.mark.parametrize("away", NEEDS)
def test_every_route_says_who_is_away(away: str, tmp_path: Path) -> None:
    """An answer that needs the actor is a 503 that names it; no other is a server error."""
    file = tmp_path / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY, "alpha"))
    with running(file, only=[name for name in ("site", "broker", "alpha", "web") if name != away]):
        gateway = GatewayUnderTest(file, load(file).state)
        with gateway.client(gateway.token("olga", "operator")) as client:
            client.timeout = httpx.Timeout(AT_ONCE)
            document = client.get("/openapi.json").json()
            named = [
                path.removeprefix("/api/v1")
                for path, methods in document["paths"].items()
                for method, operation in methods.items()
                if _names_away(client, away, method, path.removeprefix("/api/v1"), operation, document["components"])
            ]
            if away != "alpha":
                for role in ("site", "broker"):
                    (one,) = client.get(f"/{role}s").json()["items"]
                    state = "away" if role == away else "running"
                    assert (one["name"], one["state"]) == (role, state)
                told = client.get("/usage", params={"all": True}).json()
                assert (told["away"], {one["actor"] for one in told["items"]}) == ([away], {"broker", "site"} - {away})
            if away == "broker":
                wish = {"type": "vm", "units": 1, "term": [2_000_000_000_000, 2_000_000_600_000]}
                frame = pack({"id": 1, "kind": "command", "name": "lease.dry_run", "arguments": wish})
                told = client.post("/control/alpha", content=frame, headers={"content-type": MEDIA_TYPE}).json()
                assert (told["code"], told["values"]) == ("away", {"actor": away})
    assert {path for path in named if not path.startswith(NEEDS[away])} <= ASKS_BROKER
    assert away != "broker" or set(named) >= ASKS_BROKER
    assert {f"/{path.split('/')[1]}" for path in named} >= set(NEEDS[away])


def _names_away(
    client: httpx.Client, away: str, method: str, path: str, operation: dict[str, Any], components: dict[str, Any]
) -> bool:
    """Whether an answer says who is away, and nothing else than that is wrong on this side."""
    if path == STREAM:
        return False
    query = {
        one["name"]: "site"  # an actor
        for one in operation["parameters"]
        if one["in"] == "query" and one["required"]
    }
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        body = BODIES.get(path) or dict.fromkeys(components["schemas"][schema].get("required", ()), "x")
    answer = client.request(method, path.replace("{", "").replace("}", ""), params=query, json=body)
    told = f"{method} {path}: {answer.status_code} {answer.text}"
    if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        problem = answer.json()
        assert (problem["code"], problem["values"]) == ("away", {"actor": away}), told
        assert away in problem["detail"], told
        return True
    assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, told
    if away != "alpha" and (method, path) == ("post", "/leases/series"):
        found = {(day["status"], day["code"], day["values"]["actor"]) for day in answer.json()["days"]}
        assert found == {("waits", "away", away)}, told  # asked for, and answered when the actor is back
    assert not path.startswith(NEEDS[away]) or (method, path) in LISTS, told
    return False


def test_a_broker_that_is_silent() -> None:
    """A project has asked it, and heard nothing: that is told as a broker that is away."""
    error = RefusedError("broker did not answer within 20 s", {"code": Code.SILENT, "who": "broker"})
    status = HTTPStatus.SERVICE_UNAVAILABLE
    assert of_error(error) == ProblemDetails(
        title=status.phrase, status=status, detail=str(error), code="silent", values={"who": "broker"}
    )


def test_an_actor_that_takes_what_is_asked_and_says_nothing(tmp_path: Path) -> None:
    """Nobody waits for it without end."""

    async def ask() -> float:
        async with silent(tmp_path, dumb="guest") as actors:
            began = trio.current_time()
            with pytest.raises(ActorAwayError, match="dumb is away: it gave no answer within 10 s"):
                await actors["dumb"].query("status")
            with pytest.raises(ActorAwayError, match="dumb is away: it gave no answer within 30 s"):
                await actors["dumb"].command("lease.request", {})
            return trio.current_time() - began

    assert trio.run(ask, clock=MockClock(autojump_threshold=0.01)) == pytest.approx(LOOK + TIMEOUT, abs=0.1)


def test_several_that_say_nothing_are_waited_for_at_once(tmp_path: Path) -> None:
    """Where all actors are looked at, each that is silent is named as away, after the time that one of them takes."""

    async def ask() -> tuple[Actors, float, CalendarView, float, UsageReport, float]:
        async with silent(tmp_path, site="authority", broker="broker", alpha="guest") as actors:
            call = call_of(actors)
            began = trio.current_time()
            found = await list_actors(call)
            between = trio.current_time()
            calendar = await show_calendar(call, CalendarOf())
            longest = trio.current_time()
            used = await usage(call, UsageOf(all=True, within="500ms"))
            return found, between - began, calendar, longest - between, used, trio.current_time() - longest

    found, took, calendar, longer, used, shorter = trio.run(ask, clock=MockClock(autojump_threshold=0.01))
    assert [(one.name, one.state, one.problem) for one in found.items] == [
        (name, "away", f"{name} is away: it gave no answer within 1 s") for name in ("site", "broker", "alpha")
    ]
    assert calendar.away == ["alpha", "broker", "site"]
    assert used == UsageReport(items=[], away=["broker", "site"])
    assert [took, longer, shorter] == pytest.approx([LOOKED_WITHIN, LOOK, 0.5], abs=0.1)


def test_brokers_and_sites_that_say_nothing_are_waited_for_at_once(tmp_path: Path) -> None:
    """What several are asked takes as long as one of them does."""
    wish = SlotSearch(type="vm", length="1h")
    asked: list[Callable[[Call], Awaitable[Any]]] = [
        list_types, lambda call: list_prices(call, PricesOf()),
        lambda call: search(call.door, call.door.actors["alpha"], wish),
    ]  # fmt: skip

    async def ask() -> None:
        async with silent(tmp_path, site="authority", broker="broker", other="broker", alpha="guest") as actors:
            for one in asked:
                began = trio.current_time()
                with pytest.raises(ActorAwayError):
                    await one(call_of(actors))
                assert trio.current_time() - began == pytest.approx(LOOK, abs=0.1)

    trio.run(ask, clock=MockClock(autojump_threshold=0.01))


def call_of(actors: dict[str, ActorConnection]) -> Call:
    """A call of anybody at a gateway of theirs."""
    table = GatewayTable(role="gateway", without_login=True)
    return Call(GatewayDoor("web", actors, table, MemoryStore()), ANYBODY, {})


@asynccontextmanager
async def silent(folder: Path, **roles: str) -> AsyncIterator[dict[str, ActorConnection]]:
    """Actors of these roles, which take what is asked and say nothing."""
    async with trio.open_nursery() as nursery:
        with ExitStack() as listening:
            for name in roles:
                at = listening.enter_context(trio.socket.socket(trio.socket.AF_UNIX))
                await at.bind(str(folder / name))
                at.listen()
            yield {name: ActorConnection(name, role, folder / name, nursery) for name, role in roles.items()}
        nursery.cancel_scope.cancel()
