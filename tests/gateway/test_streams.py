"""What an actor goes on telling who watches it by the command line through a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import attrs
import httpx
import pytest
import trio
from gateway_world import GatewayUnderTest

from leasekit.config.gateway import GatewayTable
from leasekit.core.frames import ANSWER_MAX, LENGTH, MEDIA_TYPE, FrameBuffer, pack, unpack
from leasekit.gateway import tunnel
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.callers import Caller
from leasekit.gateway.door import GatewayDoor
from leasekit.gateway.events import WholeStream
from leasekit.gateway.routing import Call
from leasekit.gateway.tunnel import answer_frame
from leasekit.stores.memory import MemoryStore

Leased = Callable[..., dict[str, Any]]
WATCH = pack({"id": 1, "kind": "watch", "name": ""})


def frames(gateway: GatewayUnderTest, secret: str) -> Generator[dict[str, Any], None, None]:
    """What somebody hears who watches the project alpha."""
    buffer, headers = FrameBuffer(ANSWER_MAX), {"content-type": MEDIA_TYPE}
    with gateway.client(secret) as api, api.stream("POST", "/control/alpha", content=WATCH, headers=headers) as answer:
        for data in answer.iter_raw():
            buffer.feed(data)
            while (frame := buffer.take()) is not None:
                yield frame


def test_a_stream_ends_with_its_token(gateway: GatewayUnderTest, operator: httpx.Client, leased: Leased) -> None:
    """What happens after that is not told."""
    with closing(frames(gateway, gateway.token("vera", alpha="viewer"))) as heard:
        assert next(heard)["ok"]
        first = leased(start="2031-01-01T08:00:00Z")["id"]
        assert next(heard)["event"]["lease"] == first
        theirs = next(one["id"] for one in operator.get("/tokens").json()["items"] if one["name"] == "vera")
        operator.post(f"/tokens/{theirs}/revoke", json={})
        second = leased(start="2031-01-01T08:00:00Z")["id"]
        assert second not in [one["event"]["lease"] for one in heard]


@attrs.define(eq=False)
class TalkingActor(ActorConnection):
    """An actor that goes on telling one thing, and then nothing."""

    @asynccontextmanager
    async def following(self, kind: str, name: str, **arguments: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """As of the class above."""

        async def events() -> AsyncIterator[dict[str, Any]]:
            yield {"lease": name}
            await trio.sleep_forever()

        yield events()


async def test_streams_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """For other callers, and for those at the control socket. One that has ended counts no more."""
    monkeypatch.setattr(tunnel, "EACH", 2)
    monkeypatch.setattr(tunnel, "ALL", 3)
    actor = TalkingActor("alpha", "guest", Path("none"))
    door = GatewayDoor("web", {"alpha": actor}, GatewayTable(role="gateway"), MemoryStore())

    async def asked(name: str) -> AsyncGenerator[bytes]:
        call = Call(door, Caller(name, "token", {"alpha": "viewer"}, frozenset()), {})
        answer = await answer_frame(call, "alpha", WATCH)
        assert isinstance(answer, WholeStream)
        return cast(AsyncGenerator[bytes], answer.body_iterator)

    async def told(stream: AsyncGenerator[bytes]) -> dict[str, Any]:
        return unpack((await anext(stream))[LENGTH.size :])

    first, second, third = await asked("viola"), await asked("viola"), await asked("viola")
    assert [(await told(one))["ok"] for one in (first, second)] == [True, True]
    refused = await told(third)
    assert (refused["ok"], refused["error"].split(":")[0]) == (
        False, "alpha goes on telling 2 to viola, or 3 to all, already"
    )  # fmt: skip
    other = await asked("victor")
    assert (await told(other))["ok"]
    assert not (await told(await asked("vito")))["ok"]
    await first.aclose()
    fourth = await asked("viola")
    assert (await told(fourth))["ok"]
    for one in (second, other, fourth):
        await one.aclose()
    assert not door.streams
