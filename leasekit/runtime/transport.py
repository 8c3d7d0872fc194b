"""Connections to peers: listening, dialling, one envelope for all that is queued, hanging up on whoever misbehaves.

A :class:`Transport` keeps at most one live connection per peer. Sending never waits: messages are queued, and dropped
(and counted) when there is no connection or the queue is full, because the actors send again what is due. Receiving
waits while the actor's inbox is too long, and so, through the socket, does the peer.

On TCP both sides prove their keys by TLS 1.3 first (:mod:`.sockets`), unless an address says ``tls = false``; in any
case they do so in the channel's handshake after it. What others may take of this actor is in :mod:`.limits`.

Where two connections to one peer meet, both sides must keep the same one. If they were dialled by different sides at
about the same time, the one whose dialler has the smaller key stays; otherwise the newer, since a peer that dials again
has lost the older.

A peer whose clock differs by more than ``clock_skew`` is reported and not obeyed. A message that is *early* by that
much proves it at once. One that is *late* may only have waited here, in the socket or for a process that was stalled:
so its age counts from the last instant before its first byte at which the socket was seen empty
(:class:`.sockets.Stalls`).

A peer is read a little at a time, and each peer by a task of its own, which waits while the actor has no room for that
peer or the peer is ahead of what it may send. So what a busy peer sends without end stays, through its socket, with
the peer, and the others are served as before.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import attrs
import trio

from leasekit.config.tables import TransportSettings
from leasekit.core.answers import LinkDetails
from leasekit.core.buckets import Bucket
from leasekit.core.claims.signed import Scheme, Signer, fingerprint
from leasekit.core.errors import WireError
from leasekit.core.protocol import codec
from leasekit.core.protocol.channel import NONCE_BYTES, Channel, Closed, Established, Event, ReceivedBatch, State
from leasekit.core.protocol.codec import UnknownKind
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.time import SECOND, Duration, Instant, format_duration
from leasekit.runtime.limits import CERTIFIED, GREETED, SPEAKS, UnauthenticatedPeer, UnauthenticatedPeers
from leasekit.runtime.logs import Seldom
from leasekit.runtime.peers import PeerAddress, PeerLink, RemotePeer
from leasekit.runtime.sockets import (
    Endpoint,
    PacedListener,
    Sockets,
    Stalls,
    Tls,
    TlsError,
    Wire,
    bound,
    broken,
    connect,
    explain,
)

LOG: Final = logging.getLogger("leasekit.transport")
READ_SOME: Final = 16_384
"""How many bytes are read at once where nothing is known of what comes. A peer may have put an envelope into every
hundred of them, each of which has a signature to be checked, while the other peers wait."""
READ_MAX: Final = 262_144
"""The most bytes that are read at once, in the middle of a long frame."""
PROGRESS: Final = 65_536
"""So many bytes of a long frame count as a sign of life."""
GOODBYE: Final = SECOND
"""How long the last words to a peer may take."""


@attrs.define(eq=False)
class Traffic:
    """Serves links. All that it is made with is as in :class:`~leasekit.runtime.transport.Transport`; ``send`` is the
    transport's.
    """

    _settings: TransportSettings
    _clock_skew: Duration
    _clock: Callable[[], Instant]
    _send: Callable[[str, Sequence[Message]], None]
    _on_receive: Callable[[str, list[Message], int], Awaitable[None]]
    _on_cost: Callable[[str, float], None]
    _complaints: Seldom = attrs.field(init=False, factory=partial(Seldom, trio.current_time))
    off: dict[str, Duration] = attrs.field(init=False, factory=dict)
    """By how much the clocks of peers are ahead (negative: behind), of those that are connected and not obeyed."""

    async def serve(self, link: PeerLink, events: list[Event]) -> None:
        """Send and receive until the link ends; ``events`` have come already."""
        try:
            with link.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, link)
                    nursery.start_soon(self._read, link, events)
        finally:
            self.off.pop(link.peer.name, None)

    async def say_goodbye(self, link: PeerLink) -> None:
        """Send what is left to be said, if the peer takes it soon."""
        if link.cut:
            return
        with trio.move_on_after(GOODBYE / SECOND, shield=True):
            with suppress(trio.BrokenResourceError):  # it is gone already
                await link.wire.send(link.channel.bytes_to_send())

    # What goes out.

    async def _write(self, link: PeerLink) -> None:
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

    async def _flush(self, link: PeerLink) -> bool:
        link.cut = True
        try:
            with trio.fail_after(self._settings.silence / SECOND):
                await link.wire.send(link.channel.bytes_to_send())
        except trio.TooSlowError:
            link.fail(f"it took nothing for {self._settings.silence} ms")
            return False
        except trio.BrokenResourceError as error:
            link.fail(broken(error))
            return False
        link.cut = False
        return True

    # What comes in.

    async def _read(self, link: PeerLink, events: list[Event]) -> None:
        """Receive batch after batch, until the connection ends or the peer does what it must not."""
        now = self._clock()
        empty_at = now - round(link.wire.age * SECOND)
        patience, progress = self._settings.silence / SECOND, 0
        while await self._obey(link, events, now, empty_at):
            await self._hold_back(link.peer)
            if events or progress >= PROGRESS:
                patience, progress = self._settings.silence / SECOND, 0
            began = trio.current_time()
            try:
                with trio.fail_after(patience):
                    data, waited = await link.wire.receive(max(READ_SOME, min(link.channel.missing, READ_MAX)))
            except trio.TooSlowError:
                link.stop("silent", f"nothing was heard for {self._settings.silence} ms")
                return
            except trio.BrokenResourceError as error:
                link.fail(broken(error))
                return
            if not data:
                link.fail("the other side closed the connection")
                return
            now = self._clock()
            if waited:
                self._rest(link.peer)
                if not link.channel.missing:
                    empty_at = now - round(link.wire.age * SECOND)
            patience = max(0.0, patience - (trio.current_time() - began))
            progress += len(data)
            link.peer.allowance.read(len(data), trio.current_time())
            with self._charged(link.peer):
                events = link.channel.receive_bytes(data)

    @contextmanager
    def _charged(self, peer: RemotePeer) -> Iterator[None]:
        """What is done here is done for ``peer``, whatever comes of it: it pays for the time that this takes."""
        began = time.thread_time()  # of the processor: a peer does not pay for a process that was stopped
        try:
            yield
        finally:
            seconds = time.thread_time() - began
            peer.allowance.work(seconds, trio.current_time())
            self._on_cost(peer.name, seconds)

    async def _hold_back(self, peer: RemotePeer) -> None:
        """Read nothing of a peer that is ahead of what it may send."""
        now = trio.current_time()
        pause = peer.allowance.pause(now)
        if not pause:
            return
        if peer.allowance.hold(now, pause):
            after = format_duration(self._settings.flood_after)
            text = "%s sends more than it may, and has been held back for %s without a break (transport limits)"
            LOG.warning(text, peer.name, after, extra={"peer": peer.name})
        await trio.sleep(pause)

    def _complain(self, peer: RemotePeer, text: str) -> None:
        if (more := self._complaints.note(peer.name)) is not None:
            LOG.warning("%s%s", text, more, extra={"peer": peer.name})

    def _rest(self, peer: RemotePeer) -> None:
        if peer.allowance.rest():
            LOG.info("%s sends no more than it may again", peer.name, extra={"peer": peer.name})

    async def _obey(self, link: PeerLink, events: list[Event], now: Instant, empty_at: Instant) -> bool:
        """Act on ``events``; whether the connection goes on."""
        for event in events:
            if isinstance(event, Closed):
                link.fail(str(event.error))
                return False
            if isinstance(event, Established):
                raise AssertionError("a channel is established once")
            obeyed = self._in_time(link, event.sent_at, now, empty_at)
            count = await self._deliver(link.peer, event.payload) if obeyed and isinstance(event, ReceivedBatch) else 0
            link.peer.allowance.count(count, trio.current_time())
        return True

    def _in_time(self, link: PeerLink, sent_at: Instant, now: Instant, empty_at: Instant) -> bool:
        """Whether the peer's clock is close enough; if not, it is reported once until it is again."""
        ahead, behind = sent_at - now, empty_at - sent_at
        link.peer.clock_ahead = max(0, ahead) - max(0, behind)
        if max(ahead, behind) <= self._clock_skew:
            self.off.pop(link.peer.name, None)
            return True
        name, offset = link.peer.name, ahead if ahead > 0 else -behind
        known = name in self.off
        self.off[name] = offset
        if not known:
            text = "the clock of %s differs by %d ms, allowed are %d (clock_skew): it is not obeyed"
            LOG.warning(text, name, offset, self._clock_skew, extra={"peer": name})
        return False

    async def _deliver(self, peer: RemotePeer, payload: bytes) -> int:
        """Hand a batch to the actor; how many messages it had."""
        try:
            with self._charged(peer):
                batch = codec.decode_batch(payload)
                if unknown := [message.answer() for message in batch if isinstance(message, UnknownKind)]:
                    self._send(peer.name, unknown)
        except WireError as error:
            self._complain(peer, f"a batch of {peer.name} is malformed: {error}")
            self._send(peer.name, [ErrorReply("", 0, error.reason)])
            return 0
        known = [message for message in batch if not isinstance(message, UnknownKind)]
        peer.received += len(batch)
        if known:
            await self._on_receive(peer.name, known, len(payload))
        return len(batch)


CLOCK_SKEW: Final[Duration] = 2 * SECOND
LOOKS_EVERY: Final[Duration] = 100
"""How often at most the loop is woken to see whether it was stalled."""

GREETED_AT_ONCE: Final = 2
"""How many TLS handshakes are begun at one turn of the loop: each takes a fraction of a millisecond."""
BEGUN_A_SECOND: Final = 250.0
"""How many connections are let in, for long. One costs about a millisecond until the other side must go on with its
handshake, so that those who never do take a quarter of a processor at most, however many they are.
"""
BEGUN_AT_ONCE: Final = 250.0
"""How many are let in after a rest: all peers may come back together."""
KNOCKING_MAX: Final = 64
"""How many wait to be let in, at each address: who is turned away knows soon, and comes again."""
CERTIFIED_COSTS: Final = 3.0
"""As many as so many more costs one that goes on: its certificate is checked, and both sides of the channel's proof."""


class Transport:
    """All connections of one actor.

    ``on_receive(peer, messages, size)`` is awaited for each batch of so many bytes, in order for each peer; while it
    waits, that peer's socket is not read. ``on_cost(peer, seconds)`` says what it took to check and decode. It,
    ``on_connected(peer)`` and ``on_disconnected(peer, reason)`` are plain calls. ``clock`` gives Unix milliseconds,
    ``stalls`` for how long this process was not there to hear. ``key`` is what errors call the setting that holds
    ``listen``.

    Raises ``ValueError`` for two peers of one name, or one that has the actor's own.
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
        on_receive: Callable[[str, list[Message], int], Awaitable[None]],
        on_cost: Callable[[str, float], None] = lambda peer, seconds: None,
        on_connected: Callable[[str], None] = lambda peer: None,
        on_disconnected: Callable[[str, str], None] = lambda peer, reason: None,
        settings: TransportSettings | None = None,
        clock_skew: Duration = CLOCK_SKEW,
        stalls: Stalls | None = None,
        key: str = "listen",
    ) -> None:
        self._name, self._signer, self._scheme = name, signer, scheme
        self._listen, self._key = tuple(listen), key
        self._stalls, self._looks_every = stalls or Stalls(), max(LOOKS_EVERY, clock_skew // 2)
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._settings = settings or TransportSettings()
        self._traffic = Traffic(self._settings, clock_skew, clock, self.send, on_receive, on_cost)
        self._peers: dict[str, RemotePeer] = {}
        self._nursery: trio.Nursery | None = None
        self._tls: Tls | None = None
        self._server_context: ssl.SSLContext | None = None
        self._unauthenticated = UnauthenticatedPeers(self._settings.unauthenticated_max)
        self._gate = trio.Semaphore(GREETED_AT_ONCE)
        self._pace = Bucket(BEGUN_A_SECOND, BEGUN_AT_ONCE, 0.0)
        self._refusals = Seldom(trio.current_time)
        self.bound: list[Endpoint] = []
        """Where this transport listens, with the ports that it got."""
        for peer in peers:
            self.add_peer(peer)

    async def run(self, task_status: trio.TaskStatus[list[Endpoint]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started once it listens, with the addresses it got.

        Raises ``TransportError`` if it can't listen.
        """
        with Sockets() as sockets:
            listeners = [
                (endpoint, listener)
                for endpoint in self._listen
                for listener in await sockets.listen(endpoint, self._key)
            ]
            self.bound = [bound(listener, endpoint.tls) for endpoint, listener in listeners]
            for endpoint in self.bound:
                self._warn_of_plain("listens on", endpoint)
            if any(endpoint.encrypted for endpoint in self.bound):
                self._context_to_listen()  # before anybody waits for it
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._stalls.run, self._looks_every)
                for peer in self._peers.values():
                    self._begin_dialling(peer)
                task_status.started(self.bound)
                for endpoint, listener in listeners:
                    accept = partial(self._accept, encrypted=endpoint.encrypted)
                    door = PacedListener(listener, self._pace, KNOCKING_MAX, self._turn_away)
                    nursery.start_soon(partial(trio.serve_listeners, accept, [door], handler_nursery=nursery))
                await trio.sleep_forever()

    def send(self, peer: str, messages: Sequence[Message]) -> None:
        """Queue ``messages`` for ``peer``. Never waits: what can't be queued is dropped and counted."""
        known = self._peers.get(peer)
        if known is None:
            LOG.warning(
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

    def status(self) -> list[LinkDetails]:
        """Every peer, in the order of the configuration."""
        return [peer.status() for peer in self._peers.values()]

    @property
    def clocks_off(self) -> Mapping[str, Duration]:
        """The connected peers whose clocks are off by more than ``clock_skew``, and by how much they are ahead."""
        return self._traffic.off

    def connected(self, peer: str) -> bool:
        """Whether there is a live connection to ``peer``."""
        return peer in self._peers and self._peers[peer].link is not None

    def _drop(self, peer: RemotePeer, why: str, level: int) -> None:
        peer.dropped += 1
        LOG.log(level, "message for %s dropped: %s", peer.name, why, extra={"peer": peer.name})

    # Who the peers are.

    def add_peer(self, peer: PeerAddress) -> None:
        """Know one more peer, and dial it if it has an address. Raises ``ValueError`` as the class does."""
        if peer.name == self._name or peer.name in self._peers:
            raise ValueError(f"peer {peer.name!r}: the name is taken, each actor needs its own")
        made = self._peers[peer.name] = RemotePeer(peer, self._settings)
        if self._server_context is not None:
            self._own_tls.trust(self._server_context, peer.key)
        self._begin_dialling(made)

    def remove_peer(self, name: str, reason: str = "it is no peer any more") -> None:
        """Know a peer no longer: nothing more is taken from it, its connection ends at once. Raises ``KeyError``."""
        peer = self._peers.pop(name)
        self._server_context = None
        peer.removed = True
        if peer.link is not None:
            peer.link.stop("removed", reason)
        peer.dialling.cancel()

    def change_peer(self, name: str, wanted: PeerAddress | None) -> None:
        """Know the peer ``name`` as it is ``wanted``, or no longer. One that is elsewhere from now on, or will be when
        it is started again, keeps its connection as long as that lasts.
        """
        known = self._peers.get(name)
        if known is not None and wanted is not None and known.key == wanted.key:
            if known.address != wanted.address:
                self._move_peer(known, wanted.address)
            return
        if known is not None:
            self.remove_peer(name)
        if wanted is not None:
            self.add_peer(wanted)

    def _move_peer(self, peer: RemotePeer, address: Endpoint | None) -> None:
        peer.address = address
        if peer.link is None:
            peer.dialling.cancel()
            peer.dialling, peer.is_dialled = trio.CancelScope(), False
            peer.problem = "" if address is None else "not dialled yet"
        self._begin_dialling(peer)

    def _begin_dialling(self, peer: RemotePeer) -> None:
        if self._nursery is not None and peer.address is not None and not peer.is_dialled:
            peer.is_dialled = True
            self._warn_of_plain(f"dials {peer.name} at", peer.address)
            self._nursery.start_soon(self._keep_dialling, peer)

    def _warn_of_plain(self, what: str, endpoint: Endpoint) -> None:
        if not endpoint.encrypted and not endpoint.path:
            text = "%s %s WITHOUT TLS (tls = false): whoever carries what is said there can read all of it"
            LOG.warning(text, what, endpoint)

    # Connections: accepted, dialled, proven, settled.

    @property
    def _own_tls(self) -> Tls:
        if self._tls is None:
            self._tls = Tls(self._signer, self._name)
        return self._tls

    def _context_to_listen(self) -> ssl.SSLContext:
        if self._server_context is None:
            self._server_context = self._own_tls.server(peer.key for peer in self._peers.values())
        return self._server_context

    def _context_to_dial(self, peer: RemotePeer) -> ssl.SSLContext:
        if peer.context is None:
            peer.context = self._own_tls.client(peer.key)
        return peer.context

    def _channel(self, expect: str | None, binding: bytes) -> Channel:
        def pinned(name: str) -> bytes | None:
            peer = self._peers.get(name)
            return peer.key if peer else None

        return Channel(
            me=self._signer, name=self._name, scheme=self._scheme, nonce=os.urandom(NONCE_BYTES), peers=pinned,
            initiator=expect is not None, expect=expect, frame_max=self._settings.frame_max, binding=binding,
        )  # fmt: skip

    async def _accept(self, stream: trio.SocketStream, *, encrypted: bool) -> None:
        wire, scope = Wire(stream, self._stalls), trio.CancelScope()
        peer = UnauthenticatedPeer(wire.source, scope.cancel)
        channel: Channel | None = None
        events: list[Event] = []
        problem = ""
        try:
            self._unauthenticated.admit(peer)
            try:
                with scope:
                    channel, events, problem = await self._meet(wire, peer, encrypted)
                    if problem:
                        self._log_unauthenticated(peer.source, problem)
                        await wire.linger()
            finally:
                self._unauthenticated.leave(peer)
            if scope.cancelled_caught and not problem:
                most = self._settings.unauthenticated_max
                self._log_unauthenticated(
                    peer.source, f"more than {most} connections are not proven yet (unauthenticated_max)"
                )
            elif channel is not None and not problem:
                await self._welcome(channel, wire, events)
        finally:
            await (trio.aclose_forcefully(stream) if scope.cancelled_caught else wire.close())

    async def _meet(
        self, wire: Wire, peer: UnauthenticatedPeer, encrypted: bool
    ) -> tuple[Channel | None, list[Event], str]:
        """The channel of a connection that was accepted, as :meth:`_shake_hands`."""
        try:
            with trio.fail_after(self._settings.handshake / SECOND):
                if encrypted:
                    if not await wire.begins_with_tls():
                        return None, [], await self._refuse_plain(wire)
                    self._unauthenticated.advance(peer, SPEAKS)
                    async with self._gate:
                        pass  # a few of them at each turn of the loop: what the first step costs holds up nobody else
                    self._unauthenticated.advance(peer, GREETED)
                    await wire.secure(self._own_tls, self._context_to_listen(), dialled=False)
                    self._pace.take(CERTIFIED_COSTS, trio.current_time())
                    self._unauthenticated.advance(peer, CERTIFIED)
                channel = self._channel(None, wire.binding)
                events, problem = await self._shake_hands(channel, wire, partial(self._unauthenticated.advance, peer))
                return channel, events, problem
        except trio.TooSlowError:
            return None, [], f"the handshake was not complete within {self._settings.handshake} ms"
        except TlsError as error:
            return None, [], str(error)
        except trio.BrokenResourceError as error:
            return None, [], f"during the handshake {broken(error)}"

    async def _refuse_plain(self, wire: Wire) -> str:
        """Tell one who speaks leasekit without TLS, in its own words, that there is TLS here."""
        data, _ = await wire.receive(READ_SOME)
        if not data:
            return "the other side closed the connection before it said anything"
        channel = self._channel(None, b"")
        channel.close("tls", "TLS 1.3 is spoken at this address: tls must be the same on both sides")
        with suppress(trio.BrokenResourceError):  # it is gone already
            await wire.send(channel.bytes_to_send())
        return "it does not speak TLS, which this address demands: tls must be the same on both sides"

    def _turn_away(self, source: str) -> None:
        self._log_unauthenticated(
            source, f"more connections come than are let in, which is {BEGUN_A_SECOND:g} a second"
        )

    def _log_unauthenticated(self, source: str, problem: str) -> None:
        if (more := self._refusals.note(source)) is not None:
            LOG.warning("connection refused: %s%s", problem, more)

    async def _keep_dialling(self, peer: RemotePeer) -> None:
        wait = self._settings.backoff_min
        with peer.dialling:
            while True:
                if not peer.gone.is_set():
                    await peer.gone.wait()
                    wait = self._settings.backoff_min
                address = peer.address
                if address is None:
                    peer.is_dialled = False
                    return
                problem = await self._dial(peer, address)
                if problem and problem != peer.problem:
                    peer.problem = problem
                    text = "%s can't be reached at %s: %s; it is dialled again and again"
                    LOG.warning(text, peer.name, address, problem, extra={"peer": peer.name})
                await trio.sleep(wait / SECOND)
                wait = min(2 * wait, self._settings.backoff_max)

    async def _dial(self, peer: RemotePeer, address: Endpoint) -> str:
        """Connect and stay connected; why there was no connection, or nothing if there was."""
        try:
            with trio.fail_after(self._settings.handshake / SECOND):
                stream = await connect(address)
        except trio.TooSlowError:
            return f"no connection within {self._settings.handshake} ms"
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        wire = Wire(stream, self._stalls)
        try:
            try:
                with trio.fail_after(self._settings.handshake / SECOND):
                    if address.encrypted:
                        await wire.secure(self._own_tls, self._context_to_dial(peer), dialled=True)
                    channel = self._channel(peer.name, wire.binding)
                    events, problem = await self._shake_hands(channel, wire)
            except trio.TooSlowError:
                return f"the handshake was not complete within {self._settings.handshake} ms"
            except TlsError as error:
                return f"{error} ({peer.name} has key {fingerprint(peer.key)} here)"
            if not problem:
                await self._run_link(PeerLink(peer, channel, wire, True), events)
            return problem
        finally:
            await wire.close()

    async def _shake_hands(
        self, channel: Channel, wire: Wire, advance: Callable[[int], None] = lambda level: None
    ) -> tuple[list[Event], str]:
        """What came after the handshake, and why it failed (empty: it did not)."""
        try:
            while True:
                await wire.send(channel.bytes_to_send())
                data, _ = await wire.receive(READ_SOME)
                if not data:
                    return [], "the other side closed the connection during the handshake"
                events = channel.receive_bytes(data)
                if events and isinstance(events[0], Established):
                    return events[1:], ""
                if events and isinstance(events[0], Closed):
                    await wire.send(channel.bytes_to_send())
                    return [], str(events[0].error)
                if channel.peer:
                    advance(GREETED)
        except trio.BrokenResourceError as error:
            if "ALERT" in (getattr(error.__cause__, "reason", None) or ""):
                return [], explain(error)
            return [], f"during the handshake {broken(error)}"

    async def _welcome(self, channel: Channel, wire: Wire, events: list[Event]) -> None:
        """Serve a connection that a peer has made, if it still is one and does not come too often."""
        peer = self._peers.get(channel.peer)
        if peer is None or peer.key != channel.peer_key:
            self._log_unauthenticated(channel.peer, f"{channel.peer!r} is no peer any more")
            return
        link = PeerLink(peer, channel, wire, False)
        if not peer.allowance.connect(trio.current_time()):
            most = self._settings.connections_per_minute
            link.stop("too_often", f"more than {most} connections a minute (connections_per_minute)")
            self._log_unauthenticated(peer.name, f"{peer.name} has made {link.problem}")
            await self._traffic.say_goodbye(link)
        else:
            await self._run_link(link, events)

    def _settle(self, link: PeerLink) -> bool:
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

    def _preferred(self, link: PeerLink) -> bool:
        """Whether ``link`` was dialled by the side with the smaller key: both sides see it the same way."""
        mine = self._signer.public < link.peer.key
        return mine == link.initiator

    async def _run_link(self, link: PeerLink, events: list[Event]) -> None:
        """Serve a proven connection until it ends."""
        peer = link.peer
        if self._settle(link):
            extra = {"peer": peer.name}
            how = f"version {link.channel.version}, {'TLS' if link.wire.encrypted else 'no TLS'}"
            LOG.info("connected to %s (%s)", peer.name, how, extra=extra)
            self._on_connected(peer.name)
            try:
                await self._traffic.serve(link, events)
            finally:
                if peer.link is link:
                    peer.link = None
                    peer.problem = link.problem
                    peer.drop_all()
                    peer.gone.set()
                    LOG.info("lost %s: %s", peer.name, link.problem or "stopping", extra=extra)
                    self._on_disconnected(peer.name, link.problem)
                link.channel.close("stopping", "the actor stops")
                await self._traffic.say_goodbye(link)
        else:
            await self._traffic.say_goodbye(link)
