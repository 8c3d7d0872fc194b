"""One proven connection: what goes out on it, what comes in, and when it has to end.

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
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import attrs
import trio

from leasekit.config.shell import TransportSettings
from leasekit.core.errors import WireError
from leasekit.core.protocol import codec
from leasekit.core.protocol.channel import Closed, Established, Event, ReceivedBatch, State
from leasekit.core.protocol.codec import UnknownKind
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.time import SECOND, Duration, Instant, format_duration
from leasekit.runtime.logs import Seldom
from leasekit.runtime.peers import PeerLink, RemotePeer
from leasekit.runtime.sockets import broken

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
        except WireError as error:
            self._complain(peer, f"a batch of {peer.name} is malformed: {error}")
            self._send(peer.name, [ErrorReply("", 0, error.reason)])
            return 0
        known: list[Message] = []
        for message in batch:
            if isinstance(message, UnknownKind):
                self._send(peer.name, [message.answer()])
            else:
                known.append(message)
        peer.received += len(batch)
        if known:
            await self._on_receive(peer.name, known, len(payload))
        return len(batch)
