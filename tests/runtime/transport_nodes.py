"""Transports for tests, and peers without one: what the tests of connections share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from polling import PATIENCE

from leasekit.config.tables import TransportSettings
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.core.protocol.channel import Channel, Closed, Event, State
from leasekit.core.protocol.messages import Message
from leasekit.runtime.peers import PeerAddress
from leasekit.runtime.sockets import Endpoint, Stalls, Tls
from leasekit.runtime.transport import Transport

KEYS = {
    name: Keypair(bytes([number]) * 32) for number, name in enumerate(("alice", "bob", "carol", "mallory"), start=1)
}
NOW = 1_700_000_000_000
FAST = {"backoff_min": 5, "backoff_max": 20}
TCP = Endpoint(host="127.0.0.1")
PLAIN = Endpoint(host="127.0.0.1", tls=False)


class Node:
    """A transport with an actor's ears: all that it hears is kept, and can be waited for. Its process is never stalled,
    unless :attr:`seconds` is moved.
    """

    def __init__(self, name: str, peers: dict[str, Endpoint | None], listen: list[Endpoint], **settings: Any) -> None:
        self.name = name
        self.now = NOW
        self.seconds = 0.0
        self.batches: list[tuple[str, list[Message]]] = []
        self.connects: list[str] = []
        self.losses: list[tuple[str, str]] = []
        self.costs: list[float] = []
        self.gate = trio.Event()
        self.gate.set()
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        self._pulse = trio.Event()
        self.transport = Transport(
            name, KEYS[name], ED25519, [PeerAddress(peer, KEYS[peer].public, where) for peer, where in peers.items()],
            listen, clock=lambda: self.now, on_receive=self._hear, settings=TransportSettings(**(FAST | settings)),
            on_connected=lambda peer: self._note(self.connects.append, peer),
            on_disconnected=lambda peer, why: self._note(self.losses.append, (peer, why)),
            stalls=Stalls(lambda: self.seconds), on_cost=lambda peer, seconds: self.costs.append(seconds),
        )  # fmt: skip

    def _note(self, add: Callable[[Any], None], value: Any) -> None:
        add(value)
        self._pulse.set()
        self._pulse = trio.Event()

    async def _hear(self, peer: str, messages: list[Message], size: int) -> None:
        self._note(self.batches.append, (peer, messages))
        await self.gate.wait()

    async def start(self, nursery: trio.Nursery) -> Node:
        """Run in the background; returns when it listens."""

        async def run(task_status: trio.TaskStatus[Any]) -> None:
            with self.scope:
                await self.transport.run(task_status)
            self.over.set()

        await nursery.start(run)
        return self

    def pass_time(self, seconds: int) -> None:
        """Let time pass at once, as if nothing ran meanwhile."""
        self.now += seconds * 1000
        self.seconds += seconds

    async def stop(self) -> None:
        """Stop, and wait until it has."""
        self.scope.cancel()
        await self.over.wait()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until ``true``, looked at whenever something was heard."""
        with trio.fail_after(PATIENCE):
            while not true():
                await self._pulse.wait()

    @property
    def heard(self) -> list[Message]:
        """Every message so far."""
        return [message for _, batch in self.batches for message in batch]


class Raw:
    """A peer without a transport: a channel and a stream, to do what no transport does."""

    def __init__(self, stream: Any, name: str, to: str, binding: bytes = b"") -> None:
        keys = {peer: key.public for peer, key in KEYS.items()}
        self.stream = stream
        self.events: list[Event] = []
        self.channel = Channel(
            me=KEYS[name], name=name, scheme=ED25519, nonce=b"n" * 32, peers=keys.get, initiator=True, expect=to,
            binding=binding,
        )  # fmt: skip

    @classmethod
    async def dial(cls, node: Node, name: str) -> Raw:
        """A proven connection to ``node``, which has noticed."""
        before = len(node.connects)
        where = node.transport.bound[0]
        if where.path:
            raw = cls(await trio.open_unix_socket(where.path), name, node.name)
        else:
            stream, tls = await trio.open_tcp_stream(where.host, where.port), Tls(KEYS[name], name)
            secured = await tls.handshake(stream, tls.client(KEYS[node.name].public), dialled=True)
            raw = cls(secured, name, node.name, tls.binding(secured, dialled=True))
        await raw.flush()
        while raw.channel.state is not State.OPEN:
            await raw.receive()
        await raw.flush()
        await node.until(lambda: len(node.connects) > before)
        return raw

    async def flush(self) -> None:
        """Send what the channel has."""
        await self.stream.send_all(self.channel.bytes_to_send())

    async def receive(self) -> None:
        """Wait for something to come."""
        with trio.fail_after(PATIENCE):
            data = await self.stream.receive_some(65_536)
        assert data, "the connection was closed"
        self.events += self.channel.receive_bytes(data)

    def write(self, payload: bytes, sent_at: int = NOW) -> None:
        """Send one envelope before any other task runs."""
        self.channel.send_batch(payload, sent_at)
        data = self.channel.bytes_to_send()
        assert os.write(self.stream.socket.fileno(), data) == len(data)

    async def send(self, payload: bytes, sent_at: int = NOW) -> None:
        """Send one envelope."""
        self.channel.send_batch(payload, sent_at)
        await self.flush()

    async def closing(self) -> str:
        """Wait until the other side hangs up; what it said."""
        with trio.fail_after(PATIENCE):
            while not any(isinstance(event, Closed) for event in self.events):
                data = await self.stream.receive_some(65_536)
                if not data:
                    return ""
                self.events += self.channel.receive_bytes(data)
        last = self.events[-1]
        assert isinstance(last, Closed)
        return str(last.error)


def unix(path: Path) -> Endpoint:
    """The endpoint of a socket at ``path``."""
    return Endpoint(path=str(path))


async def couple(nursery: trio.Nursery, path: Path, **settings: Any) -> tuple[Node, Node]:
    """Alice, who dials bob, connected."""
    bob = await Node("bob", {"alice": None}, [unix(path / "bob.sock")], **settings).start(nursery)
    alice = await Node("alice", {"bob": unix(path / "bob.sock")}, [], **settings).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    await bob.until(lambda: bob.connects == ["alice"])
    return alice, bob
