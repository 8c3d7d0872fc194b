"""Connections to peers: listening, dialling, one envelope for all that is queued, hanging up on whoever misbehaves.

A :class:`Transport` keeps at most one live connection per peer. Sending never waits: messages are queued, and dropped
(and counted) when there is no connection or the queue is full, because the actors send again what is due. Receiving
waits while the actor's inbox is too long, and so, through the socket, does the peer.

Where two connections to one peer meet, both sides must keep the same one. If they were dialled by different sides at
about the same time, the one whose dialler has the smaller key stays; otherwise the newer, since a peer that dials again
has lost the older.

A peer whose clock differs by more than ``clock_skew`` is reported and not obeyed. A message that is *early* by that
much proves it at once. One that is *late* may only have waited here: so its age counts from the last instant at which
the socket was seen empty, before which it can't have come.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import WireError
from leasekit.core.protocol import codec
from leasekit.core.protocol.channel import FRAME_MAX, NONCE_BYTES, Batch, Channel, Closed, Established, Event, State
from leasekit.core.protocol.codec import UnknownKind
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.runtime.frames import Endpoint, Sockets, TransportError, bound, connect, parse_endpoint, readable

__all__ = [
    "Endpoint",
    "PeerAddress",
    "PeerStatus",
    "Transport",
    "TransportError",
    "TransportSettings",
    "parse_endpoint",
]

LOG: Final = logging.getLogger("leasekit.transport")

READ_MAX: Final = 262_144
"""The most bytes read from a socket at once."""
GOODBYE: Final = SECOND
"""How long the last words to a peer may take."""


@attrs.frozen(slots=True)
class PeerAddress:
    """A peer: the ``name`` and ``key`` it must prove, and where to dial it (None: it dials)."""

    name: str
    key: bytes
    address: Endpoint | None = None


@attrs.frozen(slots=True, kw_only=True)
class TransportSettings:
    """Durations are milliseconds, sizes bytes."""

    clock_skew: Duration = 2 * SECOND
    heartbeat: Duration = 10 * SECOND
    silence: Duration = 30 * SECOND
    """A peer that sends nothing, or takes nothing, for so long is hung up on."""
    handshake: Duration = 5 * SECOND
    """By when a connection must have proven whose it is."""
    backoff_min: Duration = SECOND // 10
    backoff_max: Duration = 30 * SECOND
    strangers_max: int = 64
    """The most connections that have not proven whose they are; beyond it the oldest goes."""
    queue_max: int = 8 * 2**20
    """The most that is queued for one peer."""
    frame_max: int = FRAME_MAX


@attrs.frozen(slots=True)
class PeerStatus:
    """How it stands with one peer. Counts are messages since the start; ``problem`` is why there is no connection."""

    name: str
    address: Endpoint | None
    connected: bool
    queued_bytes: int
    sent: int
    received: int
    dropped: int
    problem: str


class _Peer:
    """What is known of a peer, connected or not."""

    def __init__(self, address: PeerAddress, queue_max: int) -> None:
        self.name, self.key, self.address = address.name, address.key, address.address
        self.link: _Link | None = None
        self.gone = trio.Event()
        self.gone.set()
        self.problem = "" if address.address is None else "not dialled yet"
        self.sent = self.received = self.dropped = 0
        self.queue_max = queue_max
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.full = False

    def put(self, encoded: bytes) -> bool:
        """Queue a message; False if there is no room."""
        if self.queue and self.queued_bytes + len(encoded) > self.queue_max:
            return False
        self.queue.append(encoded)
        self.queued_bytes += len(encoded)
        return True

    def take(self) -> list[bytes]:
        """The next messages for one envelope: as many as the codec's direct reader takes, but one at least."""
        taken: list[bytes] = []
        size = 3
        while self.queue and len(taken) < codec.BATCH_MAX:
            size += len(self.queue[0])
            if taken and size > codec.DIRECT_MAX:
                break
            taken.append(self.queue.popleft())
        self.queued_bytes -= sum(map(len, taken))
        self.full = self.full and bool(self.queue)
        return taken

    def drop_all(self) -> None:
        """Forget what is queued."""
        self.dropped += len(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        self.full = False

    def status(self) -> PeerStatus:
        """For people to see."""
        return PeerStatus(
            self.name, self.address, self.link is not None, self.queued_bytes, self.sent, self.received, self.dropped,
            self.problem,
        )  # fmt: skip


class _Link:
    """One connection whose other side has proven to be ``peer``."""

    def __init__(self, peer: _Peer, channel: Channel, stream: trio.SocketStream, initiator: bool) -> None:
        self.peer, self.channel, self.stream, self.initiator = peer, channel, stream, initiator
        self.opened_at = trio.current_time()
        self.scope = trio.CancelScope()
        self.wake = trio.Event()
        self.cut = False
        """Whether the last send was cut off in the middle of a frame, so that nothing can follow it."""
        self.skewed = False
        self.problem = ""

    def stop(self, code: str, text: str) -> None:
        """End the link, telling the peer why."""
        self.channel.close(code, text)
        self.fail(text)

    def fail(self, text: str) -> None:
        """End the link; the first reason counts."""
        self.problem = self.problem or text
        self.scope.cancel()


class Transport:
    """All connections of one actor.

    ``on_receive(peer, messages)`` is awaited for each batch, in order for each peer; while it waits, that peer's socket
    is not read. ``on_connected(peer)``, ``on_disconnected(peer, reason)`` and ``on_skew(peer, offset)`` (milliseconds,
    positive: the peer is ahead) are plain calls. ``clock`` gives Unix milliseconds. ``key`` is what errors call the
    setting that holds ``listen``.

    Raises ``ValueError`` for a peer that can't be dialled, or that has the actor's own name.
    """

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[PeerAddress],
        listen: Sequence[Endpoint],
        *,
        clock: Callable[[], Instant],
        on_receive: Callable[[str, list[Message]], Awaitable[None]],
        on_connected: Callable[[str], None] = lambda peer: None,
        on_disconnected: Callable[[str, str], None] = lambda peer, reason: None,
        on_skew: Callable[[str, Duration], None] = lambda peer, offset: None,
        settings: TransportSettings | None = None,
        nonce: Callable[[int], bytes] = os.urandom,
        log: logging.Logger = LOG,
        key: str = "listen",
    ) -> None:
        self._name, self._signer, self._scheme = name, signer, scheme
        self._listen, self._key = tuple(listen), key
        self._clock, self._nonce, self._log = clock, nonce, log
        self._on_receive, self._on_connected = on_receive, on_connected
        self._on_disconnected, self._on_skew = on_disconnected, on_skew
        self._settings = settings or TransportSettings()
        self._peers: dict[str, _Peer] = {}
        for peer in peers:
            if peer.name == name or peer.name in self._peers:
                raise ValueError(f"peer {peer.name!r}: the name is taken, each actor needs its own")
            if peer.address and not peer.address.path and peer.address.port == 0:
                raise ValueError(f"peer {peer.name!r}: found {peer.address}, a port to dial is 1 to 65535")
            self._peers[peer.name] = _Peer(peer, self._settings.queue_max)
        self._strangers: OrderedDict[trio.CancelScope, None] = OrderedDict()
        self._strangers_logged_at = -float("inf")
        self.bound: list[Endpoint] = []
        """Where this transport listens, with the ports that it got."""

    async def run(self, task_status: trio.TaskStatus[list[Endpoint]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started once it listens, with the addresses it got.

        Raises ``TransportError`` if it can't listen.
        """
        with Sockets() as sockets:
            listeners: list[trio.SocketListener] = []
            for endpoint in self._listen:
                listeners += await sockets.listen(endpoint, self._key)
            self.bound = [bound(listener) for listener in listeners]
            async with trio.open_nursery() as nursery:
                for peer in self._peers.values():
                    if peer.address is not None:
                        nursery.start_soon(self._keep_dialling, peer, peer.address)
                task_status.started(self.bound)
                if listeners:
                    await trio.serve_listeners(self._accept, listeners, handler_nursery=nursery)
                await trio.sleep_forever()

    def send(self, peer: str, messages: Sequence[Message]) -> None:
        """Queue ``messages`` for ``peer``. Never waits: what can't be queued is dropped and counted."""
        known = self._peers.get(peer)
        if known is None:
            self._log.warning(
                "%d messages for %r dropped: no such peer is configured", len(messages), peer, extra={"peer": peer}
            )
            return
        if known.link is None:
            known.dropped += len(messages)
            return
        limit = known.link.channel.payload_max
        for message in messages:
            try:
                encoded = codec.encode_message(message)
            except (UnicodeEncodeError, OverflowError) as error:
                self._drop(known, f"{type(message).__name__} can't be encoded: {error}", logging.ERROR)
                continue
            if len(encoded) + 3 > limit:
                text = f"{type(message).__name__} has {len(encoded)} bytes, at most {limit - 3} fit in a frame"
                self._drop(known, text, logging.ERROR)
            elif not known.put(encoded):
                level = logging.DEBUG if known.full else logging.WARNING
                known.full = True
                self._drop(known, f"its queue is full ({known.queued_bytes} bytes)", level)
        known.link.wake.set()

    def status(self) -> list[PeerStatus]:
        """Every peer, in the order of the configuration."""
        return [peer.status() for peer in self._peers.values()]

    def connected(self, peer: str) -> bool:
        """Whether there is a live connection to ``peer``."""
        return peer in self._peers and self._peers[peer].link is not None

    def _drop(self, peer: _Peer, why: str, level: int) -> None:
        peer.dropped += 1
        self._log.log(level, "message for %s dropped: %s", peer.name, why, extra={"peer": peer.name})

    # Connections: accepted, dialled, proven, settled.

    def _channel(self, expect: str | None) -> Channel:
        def pinned(name: str) -> bytes | None:
            peer = self._peers.get(name)
            return peer.key if peer else None

        return Channel(
            me=self._signer, name=self._name, scheme=self._scheme, nonce=self._nonce(NONCE_BYTES), peers=pinned,
            initiator=expect is not None, expect=expect, frame_max=self._settings.frame_max,
        )  # fmt: skip

    async def _accept(self, stream: trio.SocketStream) -> None:
        async with stream:
            scope = trio.CancelScope()
            while len(self._strangers) >= self._settings.strangers_max:
                # The oldest goes: newcomers would let a flood of silent connections shut out the peers.
                oldest, _ = self._strangers.popitem(last=False)
                oldest.cancel()
            self._strangers[scope] = None
            channel = self._channel(None)
            try:
                with scope:
                    events, problem = await self._shake_hands(channel, stream)
            finally:
                self._strangers.pop(scope, None)
            if scope.cancelled_caught:
                events, problem = [], f"more than {self._settings.strangers_max} connections are not proven yet"
            if problem:
                self._log_stranger(problem)
            else:
                await self._run_link(_Link(self._peers[channel.peer], channel, stream, False), events)

    def _log_stranger(self, problem: str) -> None:
        """Strangers must not be able to fill the log: one line a second is enough to find the reason."""
        if trio.current_time() - self._strangers_logged_at >= 1:
            self._strangers_logged_at = trio.current_time()
            self._log.warning("connection refused: %s", problem)

    async def _keep_dialling(self, peer: _Peer, address: Endpoint) -> None:
        wait = self._settings.backoff_min
        while True:
            if not peer.gone.is_set():
                await peer.gone.wait()
                wait = self._settings.backoff_min
            problem = await self._dial(peer, address)
            if problem and problem != peer.problem:
                peer.problem = problem
                text = "%s can't be reached at %s: %s"
                self._log.warning(text, peer.name, address, problem, extra={"peer": peer.name})
            await trio.sleep(wait / SECOND)
            wait = min(2 * wait, self._settings.backoff_max)

    async def _dial(self, peer: _Peer, address: Endpoint) -> str:
        """Connect and stay connected; why there was no connection, or nothing if there was."""
        try:
            with trio.fail_after(self._settings.handshake / SECOND):
                stream = await connect(address)
        except trio.TooSlowError:
            return f"no connection within {self._settings.handshake} ms"
        except OSError as error:
            return str(error) or type(error).__name__
        async with stream:
            channel = self._channel(peer.name)
            events, problem = await self._shake_hands(channel, stream)
            if not problem:
                await self._run_link(_Link(peer, channel, stream, True), events)
        return problem

    async def _shake_hands(self, channel: Channel, stream: trio.SocketStream) -> tuple[list[Event], str]:
        """What came after the handshake, and why it failed (empty: it did not)."""
        try:
            with trio.fail_after(self._settings.handshake / SECOND):
                while True:
                    await stream.send_all(channel.bytes_to_send())
                    data = await stream.receive_some(READ_MAX)
                    if not data:
                        return [], "the other side closed the connection during the handshake"
                    events = channel.receive_bytes(data)
                    if events and isinstance(events[0], Established):
                        return events[1:], ""
                    if events and isinstance(events[0], Closed):
                        await stream.send_all(channel.bytes_to_send())
                        return [], events[0].error.text
        except trio.TooSlowError:
            return [], f"the handshake was not complete within {self._settings.handshake} ms"
        except trio.BrokenResourceError as error:
            return [], f"the connection broke during the handshake: {error.__cause__ or error}"

    def _settle(self, link: _Link) -> bool:
        """Whether ``link`` is to be the one connection to its peer; the other one, if any, is stopped."""
        peer, old = link.peer, link.peer.link
        if old is not None:
            recent = trio.current_time() - old.opened_at < self._settings.handshake / SECOND
            if recent and old.initiator != link.initiator and self._preferred(old):
                link.stop("duplicate", "another connection between the two was made at the same time")
                return False
            old.stop("replaced", "a newer connection took over")
        else:
            peer.gone = trio.Event()
        peer.link, peer.problem = link, ""
        return True

    def _preferred(self, link: _Link) -> bool:
        """Whether ``link`` was dialled by the side with the smaller key: both sides see it the same way."""
        mine = self._signer.public < link.peer.key
        return mine == link.initiator

    async def _run_link(self, link: _Link, events: list[Event]) -> None:
        """Serve a proven connection until it ends."""
        peer = link.peer
        if self._settle(link):
            extra = {"peer": peer.name}
            self._log.info("connected to %s (version %d)", peer.name, link.channel.version, extra=extra)
            self._on_connected(peer.name)
            try:
                with link.scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._write, link)
                        nursery.start_soon(self._read, link, events)
            finally:
                if peer.link is link:
                    peer.link = None
                    peer.problem = link.problem
                    peer.drop_all()
                    peer.gone.set()
                    self._log.info("lost %s: %s", peer.name, link.problem or "stopping", extra=extra)
                    self._on_disconnected(peer.name, link.problem)
                link.channel.close("stopping", "the actor stops")
                await self._say_goodbye(link)
        else:
            await self._say_goodbye(link)

    async def _say_goodbye(self, link: _Link) -> None:
        if link.cut:
            return
        with trio.move_on_after(GOODBYE / SECOND, shield=True):
            with suppress(trio.BrokenResourceError):  # it is gone already
                await link.stream.send_all(link.channel.bytes_to_send())

    # One live connection.

    async def _write(self, link: _Link) -> None:
        """Send what is queued, all of it in one envelope; a heartbeat at first and whenever there is nothing."""
        peer, channel = link.peer, link.channel
        while channel.state is State.OPEN:
            if taken := peer.take():
                channel.send_batch(codec.join_batch(taken), self._clock())
                peer.sent += len(taken)
            else:
                channel.ping(self._clock())
            if not await self._flush(link):
                return
            if not peer.queue:
                link.wake = trio.Event()
                with trio.move_on_after(self._settings.heartbeat / SECOND):
                    await link.wake.wait()

    async def _flush(self, link: _Link) -> bool:
        link.cut = True
        try:
            with trio.fail_after(self._settings.silence / SECOND):
                await link.stream.send_all(link.channel.bytes_to_send())
        except trio.TooSlowError:
            link.fail(f"it took nothing for {self._settings.silence} ms")
            return False
        except trio.BrokenResourceError as error:
            link.fail(f"the connection broke: {error.__cause__ or error}")
            return False
        link.cut = False
        return True

    async def _read(self, link: _Link, events: list[Event]) -> None:
        """Receive batch after batch, until the connection ends or the peer does what it must not."""
        empty_at = now = self._clock()
        while await self._obey(link, events, now, empty_at):
            waits = not readable(link.stream)
            try:
                with trio.fail_after(self._settings.silence / SECOND):
                    data = await link.stream.receive_some(READ_MAX)
            except trio.TooSlowError:
                link.stop("silent", f"nothing was heard for {self._settings.silence} ms")
                return
            except trio.BrokenResourceError as error:
                link.fail(f"the connection broke: {error.__cause__ or error}")
                return
            if not data:
                link.fail("the other side closed the connection")
                return
            now = self._clock()
            empty_at = now if waits else empty_at
            events = link.channel.receive_bytes(data)

    async def _obey(self, link: _Link, events: list[Event], now: Instant, empty_at: Instant) -> bool:
        """Act on ``events``; whether the connection goes on."""
        for event in events:
            if isinstance(event, Closed):
                link.fail(event.error.text)
                return False
            if isinstance(event, Established):
                raise AssertionError("a channel is established once")
            if not self._in_time(link, event.sent_at, now, empty_at):
                continue
            if isinstance(event, Batch):
                await self._deliver(link.peer, event.payload)
        return True

    def _in_time(self, link: _Link, sent_at: Instant, now: Instant, empty_at: Instant) -> bool:
        """Whether the peer's clock is close enough; if not, it is reported once until it is again."""
        ahead, behind = sent_at - now, empty_at - sent_at
        if max(ahead, behind) <= self._settings.clock_skew:
            link.skewed = False
            return True
        offset = ahead if ahead > 0 else -behind
        if not link.skewed:
            link.skewed = True
            name, allowed = link.peer.name, self._settings.clock_skew
            text = "the clock of %s differs by %d ms, allowed are %d (clock_skew): it is not obeyed"
            self._log.warning(text, name, offset, allowed, extra={"peer": name})
            self._on_skew(name, offset)
        return False

    async def _deliver(self, peer: _Peer, payload: bytes) -> None:
        try:
            batch = codec.decode_batch(payload)
        except WireError as error:
            self._log.warning("a batch of %s is malformed: %s", peer.name, error.text, extra={"peer": peer.name})
            self.send(peer.name, [ErrorReply("", 0, error.code, codec.clip(error.text))])
            return
        known: list[Message] = []
        for message in batch:
            if isinstance(message, UnknownKind):
                self.send(peer.name, [message.answer()])
            else:
                known.append(message)
        peer.received += len(batch)
        if known:
            await self._on_receive(peer.name, known)
