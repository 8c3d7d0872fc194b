"""What a peer, or a stranger, may try on the connections of a live daemon. Another peer is served all the while."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from polling import PATIENCE, poll
from system.live_peers import LiveDaemon, LivePeer
from system.packages import require_root

from leasekit.core.protocol.channel import HANDSHAKE_FRAME_MAX, Closed
from leasekit.core.protocol.messages import RequestTicket
from leasekit.core.time import Term

BROKER = """
[deployment]
name = "door"
[actor.broker]
role = "broker"
listen = ["tcp://127.0.0.1:0"]
transport.handshake = "2s"
transport.connections_per_minute = 1000
"""
PEERS = {"alice": "guest", "mallory": "guest"}
SLOW = 40
"""How many connections drip at once."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """A daemon that all these tests try in turn, and that has no bug to show for it in the end."""
    broker = LiveDaemon(tmp_path_factory.mktemp("door"), "broker", BROKER, PEERS)
    try:
        yield broker
        with broker.client() as client:
            assert client.query("status")["shell"]["bugs"] == 0
    finally:
        assert broker.up.end() == 0


@pytest.fixture
async def alice(broker: LiveDaemon) -> Any:
    """Another peer, which is connected before, and served after."""
    peer = await LivePeer.connect(broker, "alice")
    assert len(await peer.ask()) == 1
    yield peer
    assert len(await peer.ask()) == 1


async def test_two_connections_of_one_key_at_once(broker: LiveDaemon, alice: LivePeer) -> None:
    """However many are made at the same time one of them stays, and is served; the others hear why they end."""
    found: list[LivePeer] = []

    async def connect() -> None:
        found.append(await LivePeer.connect(broker, "mallory"))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(connect)
    ended: dict[int, str] = {}
    async with trio.open_nursery() as nursery:

        async def wait(number: int) -> None:
            ended[number] = await found[number].ended_by()
            if len(ended) == len(found) - 1:
                nursery.cancel_scope.cancel()

        for number in range(len(found)):
            nursery.start_soon(wait, number)
    reset = ""  # which overtakes the words where something that was sent is not read any more
    assert set(ended.values()) - {reset} == {"the other side hung up: 'replaced': 'a newer connection took over'"}
    (stays,) = set(range(len(found))) - set(ended)
    assert len(await found[stays].ask()) == 1
    await found[stays].stream.aclose()  # else others here wait until it is hung up on as silent


async def test_a_live_downgrade_fails(broker: LiveDaemon, alice: LivePeer) -> None:
    """A list of versions that is changed on its way, or has none that the daemon speaks, makes no connection."""
    old = await LivePeer.begin(broker, "mallory", versions=(0,))
    await old.flush()
    assert "'version'" in await old.ended_by()
    changed = await LivePeer.begin(broker, "mallory", versions=(1, 2))
    hello = changed.channel.bytes_to_send()
    assert hello.count(b"\x92\x01\x02") == 1
    await changed.stream.send_all(hello.replace(b"\x92\x01\x02", b"\x92\x01\x00"))
    await changed.hear()
    assert any(isinstance(event, Closed) and event.error.code == "bad_proof" for event in changed.events)
    await changed.stream.aclose()
    await poll(lambda: not broker.is_connected("mallory"))


async def test_live_reflection_fails(broker: LiveDaemon, alice: LivePeer) -> None:
    """What the daemon itself has said is not taken from another."""
    peer = await LivePeer.connect(broker, "mallory")
    said, frames = b"".join(peer.heard), list[bytes]()
    while said:
        end = 4 + int.from_bytes(said[:4], "big")
        frames.append(said[:end])
        said = said[end:]
    await peer.stream.send_all(frames[-1])  # its heartbeat, the first that would be due from here as well
    assert "'bad_signature'" in await peer.ended_by()


async def test_live_envelopes_of_another_session_fail(broker: LiveDaemon, alice: LivePeer) -> None:
    """An envelope that was signed for one connection is worth nothing on another of the same two actors."""
    first = await LivePeer.connect(broker, "mallory")
    first.channel.send_batch(b"\x90", int(time.time() * 1000))
    envelope = first.channel.bytes_to_send()
    second = await LivePeer.connect(broker, "mallory")
    await second.stream.send_all(envelope)
    assert "'bad_signature'" in await second.ended_by()


async def drip(broker: LiveDaemon, hello: bytes) -> float:
    """Say ``hello`` byte by byte until hung up on; after how many seconds that was."""
    began = trio.current_time()
    stream = await trio.open_tcp_stream("127.0.0.1", broker.port)
    try:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                while await stream.receive_some(4096):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(listen)
            for number in range(len(hello)):
                await stream.send_all(hello[number : number + 1])
                await trio.sleep(0.2)
    except* trio.BrokenResourceError:
        pass  # hung up on
    await trio.aclose_forcefully(stream)
    return trio.current_time() - began


async def test_live_slowloris_holds_nothing(broker: LiveDaemon, alice: LivePeer) -> None:
    """Who drips is hung up on when the time for a handshake is over, and a peer gets in meanwhile."""
    spent: list[float] = []

    async def one() -> None:
        spent.append(await drip(broker, b"\x16\x03\x01\x02\x00" + b"\x01" * 500))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(SLOW):
                nursery.start_soon(one)
            await trio.sleep(0.3)
            assert len(await (await LivePeer.connect(broker, "mallory")).ask()) == 1
            assert spent == []
    assert len(spent) == SLOW and min(spent) > 0.5


@pytest.mark.parametrize("length", [5 * 2**20, 2**31, 2**32 - 1])
async def test_live_oversize_frames_are_refused(broker: LiveDaemon, alice: LivePeer, length: int) -> None:
    """A frame that is too long is refused by its length, of a peer and of one who has proven nothing."""
    peer = await LivePeer.connect(broker, "mallory")
    await peer.stream.send_all(struct.pack(">I", length) + b"x")
    assert "'too_large'" in await peer.ended_by()
    unproven = await LivePeer.begin(broker, "mallory")
    await unproven.stream.send_all(struct.pack(">I", HANDSHAKE_FRAME_MAX + 1) + b"x")
    assert await unproven.ended_by() == ""


OTHERS = {
    "site": (
        'role = "authority"\ninventory = [{ type = "vm", units = 1, driver = "null" }]\ndriver.null.kind = "null"',
        "guest",
    ),
    "guest": ('role = "guest"\nmapper.name = "manual"', "broker"),
}
"""The other actors that a peer may flood, each with the role of such a peer."""


@pytest.mark.parametrize("name", OTHERS)
async def test_a_flood_of_a_live_site_or_guest_keeps_nobody_out(tmp_path: Path, name: str) -> None:
    """While one peer sends what is refused, as fast as it is taken, another's questions are all answered."""
    text, role = OTHERS[name]
    head = f'[deployment]\nname = "door"\n[actor.{name}]\nlisten = ["tcp://127.0.0.1:0"]\n{text}\n'
    daemon = LiveDaemon(tmp_path, name, head, {"alice": role, "mallory": role})
    try:
        alice, mallory = await LivePeer.connect(daemon, "alice"), await LivePeer.connect(daemon, "mallory")
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await mallory.say(*[RequestTicket("l", 1, "steal", "", "vm", 1, Term(1, 2), "", {}, b"")] * 256)
                sent += 256

        async def hear() -> None:
            while await mallory.hear():
                mallory.heard.clear()
                mallory.events.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            nursery.start_soon(hear)
            while sent < 20_000:
                assert len(await alice.ask()) == 1
            nursery.cancel_scope.cancel()
        with daemon.client() as client:
            assert client.query("status")["shell"]["bugs"] == 0
    finally:
        assert daemon.up.end() == 0


@pytest.fixture
def prefixes() -> Iterator[tuple[str, str]]:
    """Two /64 networks of this machine's own, of each of which addresses 1 to 30 are there."""
    require_root()
    found = (f"fd00:214:{os.getpid():x}:1", f"fd00:214:{os.getpid():x}:2")
    addresses = [f"{prefix}::{number:x}/128" for prefix in found for number in range(1, 31)]

    def change(what: str) -> None:
        lines = "".join(f"addr {what} {address} dev lo\n" for address in addresses)
        subprocess.run(["ip", "-6", "-batch", "-"], input=lines, text=True, check=True)

    change("add")
    try:
        yield found
    finally:
        change("del")


async def test_addresses_of_one_ipv6_prefix_share_its_places(tmp_path: Path, prefixes: tuple[str, str]) -> None:
    """A flood from many addresses of a /64 takes its places from itself: who is of another one, and slower than all of
    them, keeps its place and gets in.
    """
    text = BROKER.replace("127.0.0.1", "[::]") + "transport.unauthenticated_max = 16\n"
    daemon = LiveDaemon(tmp_path, "broker", text.replace("2s", "20s"), PEERS)

    async def knock(prefix: str, number: int) -> trio.SocketStream:
        return await trio.open_tcp_stream("::1", daemon.port, local_address=f"{prefix}::{number:x}")

    try:
        quiet, first = await knock(prefixes[1], 1), await knock(prefixes[0], 1)
        flood = [await knock(prefixes[0], number) for number in range(2, 31)]
        with trio.fail_after(PATIENCE):
            assert await first.receive_some(1) == b""
        mallory = await LivePeer.over(daemon, "mallory", quiet)
        await mallory.prove()
        assert len(await mallory.ask()) == 1
        for stream in flood:
            await stream.aclose()
    finally:
        assert daemon.up.end() == 0
