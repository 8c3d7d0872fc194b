"""That something has changed, for those who may not see what."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.routing import Route

from leasekit.gateway.actors import ActorAwayError, ActorConnection
from leasekit.gateway.events import (
    ALIVE,
    APPROVALS_CHANGED,
    BACKLOG_MAX,
    BEHIND,
    CHANGED,
    CHUNK,
    ENDED,
    HEARTBEAT,
    PATIENCE,
    STALLED,
    ActorFeed,
    EventChunk,
    EventHub,
    WholeStream,
)
from leasekit.gateway.serve import BoundedConfig


def test_who_looks_at_the_calendar_hears_that_others_changed_it(user: httpx.Client, stranger: httpx.Client) -> None:
    """But not what, who or when; a listener who did not ask for it hears nothing of it."""
    with user.stream("GET", "/events?calendar=true") as changes, user.stream("GET", "/events") as own:
        lines, own_lines = changes.iter_lines(), own.iter_lines()
        for each in (lines, own_lines):
            next(line for line in each if line.startswith(": connected"))
        made = stranger.post("/leases", json={"type": "vm", "length": "1h", "name": "secret"}).json()
        assert next(line for line in lines if line.startswith("event:")) == "event: changed"
        assert next(line for line in lines if line) == "data: {}"
        stranger.post(f"/leases/{made['id']}/close", json={})
        mine = user.post("/leases", json={"type": "vm", "length": "1h"}).json()
        user.post(f"/leases/{mine['id']}/close", json={})
        heard = next(line for line in own_lines if line.startswith("data:"))
        assert made["id"] not in heard
        assert mine["id"] in heard


async def test_many_changes_are_heard_once() -> None:
    """Until that was told: who listens is not behind by more than one."""
    hub = EventHub()
    async with aclosing(hub.listen([], "", ["broker"])) as heard:
        await anext(heard)
        for seq in range(100):
            await hub._publish(EventChunk("broker", [(seq, b"secret")]))
        assert await anext(heard) == CHANGED
        await hub._publish(EventChunk("broker", [(100, b"secret")]))
        assert await anext(heard) == CHANGED


async def test_who_hears_of_nothing_hears_that_the_connection_is_there(autojump_clock: trio.testing.MockClock) -> None:
    """At equal times, and once however many were missed; also who has heard of something since."""
    hub = EventHub()
    async with trio.open_nursery() as nursery, aclosing(hub.listen([], "", ["broker"])) as heard:
        nursery.start_soon(hub.beat)
        await anext(heard)
        began = trio.current_time()
        assert await anext(heard) == ALIVE
        assert trio.current_time() - began == pytest.approx(HEARTBEAT)
        await hub._publish(EventChunk("broker", [(1, b"secret")]))
        await trio.sleep(3 * HEARTBEAT)
        assert [await anext(heard), await anext(heard)] == [CHANGED, ALIVE]
        assert await anext(heard) == ALIVE
        assert trio.current_time() - began == pytest.approx(5 * HEARTBEAT)
        nursery.cancel_scope.cancel()


async def test_a_hint_is_heard_by_who_listens_to_the_project() -> None:
    """Once however often it is given before that was told; others hear nothing of it."""
    hub = EventHub()
    for name in ("alpha", "beta"):
        hub._feeds[name] = feed = ActorFeed(ActorConnection(name, "guest", Path("none")), hub._publish)
        feed.reached.set()
    async with aclosing(hub.listen(["alpha"], "")) as heard, aclosing(hub.listen(["beta"], "", ["broker"])) as other:
        for each in (heard, other):
            await anext(each)
        for _ in range(3):
            hub.hint(APPROVALS_CHANGED, "alpha")
        await hub._publish(EventChunk("broker", [(1, b"secret")]))
        assert await anext(heard) == APPROVALS_CHANGED
        hub.hint(APPROVALS_CHANGED, "alpha")
        assert await anext(heard) == APPROVALS_CHANGED
        assert await anext(other) == CHANGED


async def test_who_may_hear_something_else_by_now_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """At once where somebody says that it is so, at the next heartbeat where time alone has made it so; after what
    happened before.
    """
    for is_told in (True, False):
        hub, good = hub_of_a_broker(), [True]
        async with trio.open_nursery() as nursery, aclosing(hub.listen(["broker"], "")) as other:
            nursery.start_soon(hub.beat)
            heard = hub.listen(["broker"], "", still=lambda good=good: good[0])
            await anext(heard)
            await anext(other)
            hub.review()
            await hub._publish(numbered(0, 1))
            good[0], began = False, trio.current_time()
            if is_told:
                hub.review()
                await hub._publish(numbered(1, 1))
            told = [text async for text in heard]
            assert (told[0].count(b"data: "), told[1:]) == (1, [ENDED])
            assert trio.current_time() - began == pytest.approx(0 if is_told else HEARTBEAT)
            assert hub.listeners == 1
            nursery.cancel_scope.cancel()


async def test_nothing_is_heard_by_a_token_that_is_over(autojump_clock: trio.testing.MockClock) -> None:
    """It may hear what comes as long as it is good, not until the next heartbeat."""
    hub, good = hub_of_a_broker(), [True]
    heard = hub.listen(["broker"], "", knows=lambda: good[0])
    await anext(heard)
    await hub._publish(numbered(0, 1))
    assert b"data: 0" in await anext(heard)
    good[0] = False
    await hub._publish(numbered(1, 1))
    assert [text async for text in heard] == [ENDED]
    assert hub.listeners == 0


def numbered(first: int, count: int) -> EventChunk:
    """So many events of the broker."""
    return EventChunk("broker", [(seq, b"data: %d\n\n" % seq) for seq in range(first, first + count)])


@attrs.define(eq=False)
class WrittenLog(ActorConnection):
    """An actor whose log has so many lines."""

    lines: int = 0
    is_away: bool = False
    asked: list[int] = attrs.field(factory=list)

    async def request(self, kind: str, name: str, arguments: Mapping[str, Any], **caller: str) -> Any:
        """A part of the log."""
        assert (kind, name) == ("log", "")
        self.asked.append(arguments["after"])
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise ActorAwayError(self.name, "it is down")
        line = {"at": 0, "lease": "l", "event": "e", "from_state": "", "to_state": "", "why": "", "because": None}
        seqs = range(arguments["after"] + 1, min(self.lines, arguments["after"] + arguments["limit"]) + 1)
        return [{**line, "seq": seq} for seq in seqs]


async def heard_until(heard: AsyncGenerator[bytes], last: int) -> list[int]:
    """The numbers of the events of the broker, up to the ``last``."""
    found: list[int] = []
    while not found or found[-1] < last:
        found += [int(line[11:]) for line in (await anext(heard)).splitlines() if line.startswith(b"id: broker:")]
    return found


async def test_who_keeps_up_and_who_does_not_lose_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """However much comes at once. All wait for the slow one, but not for longer than it is given; then it reads the log
    itself, and nothing is kept for it. It hears what comes next when it has caught up.
    """
    last = 200 * CHUNK - 1
    log = WrittenLog("broker", "broker", Path("none"), lines=last)
    hub, told = hub_of_a_broker(log), list[list[int]]()

    async def listen(heard: AsyncGenerator[bytes]) -> None:
        told.append(await heard_until(heard, last))

    async with aclosing(hub.listen(["broker"], "")) as slow, aclosing(hub.listen(["broker"], "")) as heard:
        await anext(slow)
        await anext(heard)
        (late, _) = hub._listeners.values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, heard)
            began = trio.current_time()
            for first in range(0, last, CHUNK):
                await hub._publish(numbered(first, CHUNK))
                assert all(one.behind <= BACKLOG_MAX + CHUNK for one in hub._listeners.values())
        assert trio.current_time() - began == pytest.approx(PATIENCE)
        assert (late.behind, late.patience, log.asked) == (0, 0, [])
        told.append(await heard_until(slow, last))
        log.lines += 1
        await hub._publish(numbered(last + 1, 1))
        assert await heard_until(slow, last + 1) == [last + 1]
    assert told == 2 * [list(range(last + 1))]


async def test_what_many_have_missed_is_read_once() -> None:
    """All who come back at one place are told all from there on, in the same parts."""
    log = WrittenLog("broker", "broker", Path("none"), lines=3 * CHUNK + 50)
    hub = hub_of_a_broker(log)
    told: list[list[bytes]] = []

    async def come_back() -> None:
        async with aclosing(hub.listen(["broker"], "broker:20")) as heard:
            told.append([await anext(heard) for _ in range(5)])

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(come_back)
    assert told == 50 * [told[0]]
    ids = [int(line[11:]) for text in told[0][1:] for line in text.splitlines() if line.startswith(b"id: broker:")]
    assert ids == list(range(21, log.lines + 1))
    assert all(one is other for several in told for one, other in zip(several[1:4], told[0][1:4], strict=True))
    assert Counter(log.asked) == {20: 1, 120: 1, 220: 1, 320: 50}  # of the last part there may be more by then


def hub_of_a_broker(log: ActorConnection | None = None) -> EventHub:
    """One that has read all of its log up to now."""
    hub = EventHub()
    feed = hub._feeds["broker"] = ActorFeed(log or ActorConnection("broker", "broker", Path("none")), hub._publish)
    feed.reached.set()
    return hub


async def test_nobody_falls_behind_where_all_are_slow(autojump_clock: trio.testing.MockClock) -> None:
    """As on a machine that has much else to do: all wait for each other, for longer than one alone is waited for."""
    hub, count, told = hub_of_a_broker(), 30 * CHUNK, [0, 0]

    async def listen(which: int) -> None:
        async with aclosing(hub.listen(["broker"], "")) as heard:
            await anext(heard)
            while told[which] < count:
                told[which] += (await anext(heard)).count(b"data: ")
                await trio.sleep(PATIENCE / 2)

    async with trio.open_nursery() as nursery:
        for which in (0, 1):
            nursery.start_soon(listen, which)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        for first in range(0, count, CHUNK):
            await hub._publish(numbered(first, CHUNK))
        assert trio.current_time() - began > 2 * PATIENCE
    assert told == [count, count]


async def test_what_was_missed_is_heard_when_its_actor_is_there_again() -> None:
    """An actor that is away when somebody comes back: what it told since, they hear before what it tells next."""
    log = WrittenLog("broker", "broker", Path("none"), lines=8, is_away=True)
    hub = hub_of_a_broker(log)
    async with aclosing(hub.listen(["broker"], "broker:5")) as heard, trio.open_nursery() as nursery:
        await anext(heard)
        told = list[list[int]]()

        async def listen() -> None:
            told.append(await heard_until(heard, 8))

        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        log.is_away = False
        await hub._publish(EventChunk("broker", ()))
        await trio.testing.wait_all_tasks_blocked()
    assert told == [[6, 7, 8]]


async def test_who_takes_nothing_for_long_is_hung_up_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And told why, should it read that; who takes what there is now and then is not."""
    hub = hub_of_a_broker()
    async with trio.open_nursery() as nursery, aclosing(hub.listen(["broker"], "")) as slow:
        dead = hub.listen(["broker"], "")
        await anext(slow)
        await anext(dead)
        nursery.start_soon(hub.beat)
        await trio.sleep(STALLED - HEARTBEAT)
        await anext(slow)
        await hub._publish(numbered(0, 5))
        await trio.sleep(STALLED - HEARTBEAT)
        assert [text async for text in dead] == [ALIVE, BEHIND]
        assert (hub.listeners, [one.getMessage() for one in caplog.records]) == (1, [
            "a listener of broker is hung up on: it has taken nothing for 60 s"
        ])  # fmt: skip
        assert b"id: broker:4" in await anext(slow)
        nursery.cancel_scope.cancel()


async def test_a_connection_whose_stream_has_ended_is_closed(tmp_path: Path) -> None:
    """When nothing more is asked by it: Hypercorn tells Starlette of the end while that is sent."""

    async def two() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    config = Config()
    config.bind, config.keep_alive_timeout, config.errorlog = [f"unix:{tmp_path}/web.sock"], 0.05, None
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve(Starlette(routes=[Route("/", lambda _: WholeStream(two()))]), config,
                                      task_status=task_status)
        )  # fmt: skip
        with trio.fail_after(60):
            async with await trio.open_unix_socket(f"{tmp_path}/web.sock") as client:
                await client.send_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                read = b"".join([chunk async for chunk in client])
        assert read.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_who_takes_nothing_does_not_keep_a_gateway_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system hangs up on them: Hypercorn waits until what it sends is taken."""

    async def much() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)

    monkeypatch.setattr("leasekit.gateway.serve.STALLED", 0.3)
    config, stopping, app = BoundedConfig(), trio.Event(), Starlette(routes=[Route("/", lambda _: WholeStream(much()))])
    config.bind, config.graceful_timeout, config.errorlog = ["127.0.0.1:0"], 0.05, None
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(app, config, shutdown_trigger=stopping.wait, task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(run)
        with socket.create_connection(("127.0.0.1", int(bound[0].rpartition(":")[2]))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            await trio.lowlevel.wait_readable(client)
            stopping.set()
            with trio.move_on_after(20):
                await ended.wait()
            is_over = ended.is_set()
    assert is_over
