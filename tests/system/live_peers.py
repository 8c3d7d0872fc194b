"""A live daemon, and peers of it that a test plays: each does what it is told to, and no more."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from polling import PATIENCE
from system.test_daemons import Up

from leasekit.config.keys import load_public, new_key
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.core.protocol.channel import NONCE_BYTES, VERSIONS, Channel, Closed, Heartbeat, ReceivedBatch, State
from leasekit.core.protocol.channel import Event as ChannelEvent
from leasekit.core.protocol.codec import decode_batch, encode_batch
from leasekit.core.protocol.messages import Message, RequestTicket
from leasekit.core.time import Term
from leasekit.runtime.client import ControlClient
from leasekit.runtime.sockets import Tls

PEER = """
[peer.{name}]
role = "{role}"
key = "keys/{name}.pub"
"""


class LiveDaemon:
    """A daemon of the actor ``name``, and the keys of its ``peers`` (name and role), who are played by the tests."""

    def __init__(self, folder: Path, name: str, text: str, peers: Mapping[str, str]) -> None:
        self.name = name
        self.state = folder / "s"
        self.state.mkdir(mode=0o700)
        self.keys: dict[str, Keypair] = {name: new_key(self.state / "keys" / f"{name}.key") for name in peers}
        new_key(self.state / "keys" / f"{name}.key")
        self.key = load_public(str(self.state / "keys" / f"{name}.pub"))
        file = folder / f"{name}.toml"
        file.write_text(text + "".join(PEER.format(name=peer, role=role) for peer, role in peers.items()))
        self.up = Up(file, self.state)
        self.port = int(self.up.ready.split("listen=", 1)[1].split()[0].rpartition(":")[2])

    def client(self) -> ControlClient:
        """To ask the daemon as its operator does."""
        return ControlClient(self.state / f"{self.name}.control.sock")

    def is_connected(self, name: str) -> bool:
        """Whether the daemon has a connection to a peer."""
        with self.client() as client:
            return any(one["connected"] for one in client.query("status")["peers"] if one["peer"] == name)


class LivePeer:
    """One end of a connection to the daemon, that does what it is told to."""

    def __init__(self, stream: Any, channel: Channel) -> None:
        self.stream, self.channel = stream, channel
        self.heard: list[bytes] = []
        self.events: list[ChannelEvent] = []
        self._messages: list[Any] = []

    @classmethod
    async def begin(cls, daemon: LiveDaemon, name: str, versions: tuple[int, ...] = VERSIONS) -> LivePeer:
        """TLS, and a channel that has said nothing yet."""
        return await cls.over(daemon, name, await trio.open_tcp_stream("127.0.0.1", daemon.port), versions)

    @classmethod
    async def over(
        cls, daemon: LiveDaemon, name: str, tcp: trio.SocketStream, versions: tuple[int, ...] = VERSIONS
    ) -> LivePeer:
        """The same over a connection that is there."""
        tls = Tls(daemon.keys[name], name)
        secured = await tls.handshake(tcp, tls.client(daemon.key), dialled=True)
        return cls(secured, Channel(
            me=daemon.keys[name], name=name, scheme=ED25519, nonce=os.urandom(NONCE_BYTES), initiator=True,
            expect=daemon.name, peers=lambda peer: daemon.key if peer == daemon.name else None, versions=versions,
            binding=tls.binding(secured, dialled=True),
        ))  # fmt: skip

    @classmethod
    async def connect(cls, daemon: LiveDaemon, name: str) -> LivePeer:
        """A proven connection, which the daemon has noticed."""
        peer = await cls.begin(daemon, name)
        await peer.prove()
        return peer

    async def prove(self) -> None:
        """Go through the handshake, until the daemon has noticed."""
        while self.channel.state is not State.OPEN:
            await self.flush()
            assert await self.hear(), "hung up on in the handshake"
        await self.flush()
        while not any(isinstance(event, Heartbeat) for event in self.events) and await self.hear():
            pass

    async def flush(self) -> None:
        """Send what the channel has."""
        await self.stream.send_all(self.channel.bytes_to_send())

    async def hear(self) -> bool:
        """Wait for something; whether the connection goes on."""
        with trio.fail_after(PATIENCE):
            try:
                data = bytes(await self.stream.receive_some(65_536))
            except trio.BrokenResourceError:
                return False
        self.heard.append(data)
        self.events += self.channel.receive_bytes(data)
        return bool(data)

    async def say(self, *messages: Message) -> None:
        """Send them in one envelope."""
        self.channel.send_batch(encode_batch(messages), int(time.time() * 1000))
        await self.flush()

    async def until(self, kind: Any) -> Any:
        """The next message of that kind, or one of these; others are left out."""
        while True:
            batches = [event for event in self.events if isinstance(event, ReceivedBatch)]
            self._messages += [message for batch in batches for message in decode_batch(batch.payload)]
            self.events.clear()
            while self._messages:
                if isinstance(message := self._messages.pop(0), kind):
                    return message
            assert await self.hear(), "hung up on"

    async def ask(self) -> list[Any]:
        """Ask what the broker refuses at once; its answer."""
        if self.channel.state is not State.OPEN:
            return []
        question = RequestTicket("l", 1, "steal", "", "vm", 1, Term(1, 2), "", {}, b"")
        self.channel.send_batch(encode_batch([question]), int(time.time() * 1000))
        with suppress(trio.BrokenResourceError):  # replaced by now: it hears so
            await self.flush()
        while await self.hear():
            if isinstance(self.events[-1], ReceivedBatch):
                return list(decode_batch(self.events[-1].payload))
        return []

    async def ended_by(self) -> str:
        """Wait until the daemon hangs up; what it said of it."""
        while await self.hear():
            pass
        return next((str(event.error) for event in self.events if isinstance(event, Closed)), "")
