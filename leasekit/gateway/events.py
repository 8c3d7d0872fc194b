"""What happens, as it happens: transitions of the actors that somebody may see, as server-sent events.

A follower of each actor reads its log whenever the actor says that there is more, so that each transition is read once
however many listen. Who comes back with ``Last-Event-ID`` goes on in the log where they were; who does not keep up is
hung up on, and can come back.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import trio

from leasekit.client.shapes import Transition
from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError
from leasekit.gateway.actors import ActorAwayError, ActorConnection
from leasekit.gateway.instants import moment, values_of

HEARTBEAT: Final = 15.0
"""After so long without an event a line says that the connection is there, in seconds."""
BACKLOG_MAX: Final = 1_000
"""How many events a listener may be behind, before it is hung up on."""
LOG_PAGE: Final = 1_000
REACHED_WITHIN: Final = 5.0
"""How long a listener waits for it to be known where the logs end, when the gateway begins, in seconds."""
RETRY: Final = 1.0
"""After how long an actor that is away is asked again, in seconds."""
CHANGED: Final = b"event: changed\ndata: {}\n\n"
"""That something has changed, for who may not see what."""

logger = logging.getLogger(__name__)


def transition(actor: str, row: Mapping[str, Any]) -> Transition:
    """A line of an actor's log."""
    values = values_of(row["because"])
    return Transition(
        actor=actor, seq=row["seq"], at=moment(row["at"]), lease=row["lease"], event=row["event"],
        before=row["from_state"], after=row["to_state"], reason=dated(row["why"]), code=values.pop("code", ""),
        values=values,
    )  # fmt: skip


@attrs.define(eq=False)
class Listener:
    """Somebody who listens to some actors, and hears of ``others`` only that something has changed; ``changed``: it is
    to hear that already. ``lost``: it did not keep up.
    """

    actors: frozenset[str]
    others: frozenset[str]
    send: trio.MemorySendChannel[tuple[str, int, bytes]]
    changed: bool = False
    lost: bool = False

    def wants(self, actor: str) -> bytes | None:
        """What it hears of an event of an actor in the place of the event: None for nothing, empty for the event."""
        if actor in self.actors:
            return b""
        if actor not in self.others or self.changed:
            return None
        self.changed = True
        return CHANGED


@attrs.define(eq=False)
class ActorFeed:
    """The log of one actor, followed. ``seq`` is how far it was read."""

    actor: ActorConnection
    publish: Callable[[str, int, bytes], None]
    seq: int = -1
    reached: trio.Event = attrs.field(factory=trio.Event)
    """Set once it is known where the log ends."""

    async def run(self) -> None:
        """Follow the log until cancelled; an actor that is away is asked again."""
        while True:
            try:
                async with self.actor.watching() as changes:
                    await self._catch_up()
                    self.reached.set()
                    async for _ in changes:
                        await self._catch_up()
            except LeasekitError as error:
                logger.debug("events of %s: %s", self.actor.name, error)
            await trio.sleep(RETRY)

    async def _catch_up(self) -> None:
        if self.seq < 0:
            self.seq = await self._end_of_log()
        while True:
            rows = await self.actor.request("log", "", {"after": self.seq, "limit": LOG_PAGE})
            for row in rows:
                self.seq = row["seq"]
                self.publish(self.actor.name, self.seq, event(self.actor.name, row))
            if len(rows) < LOG_PAGE:
                return

    async def _end_of_log(self) -> int:
        return int((await self.actor.request("log_end", "", {}))["seq"])


def event(actor: str, row: Mapping[str, Any]) -> bytes:
    """A transition as the data of an event."""
    return b"event: transition\ndata: " + msgspec.json.encode(transition(actor, row)) + b"\n\n"


@attrs.define(eq=False)
class EventHub:
    """All listeners, and the feeds that they hear."""

    _feeds: dict[str, ActorFeed] = attrs.field(init=False, factory=dict)
    _listeners: dict[int, Listener] = attrs.field(init=False, factory=dict)

    def follow(self, actors: Sequence[ActorConnection], nursery: trio.Nursery) -> None:
        """Follow these actors from now on."""
        for actor in actors:
            feed = self._feeds[actor.name] = ActorFeed(actor, self._publish)
            nursery.start_soon(feed.run)

    @property
    def listeners(self) -> int:
        """How many there are."""
        return len(self._listeners)

    def close(self) -> None:
        """Hang up on all listeners: the gateway ends."""
        for listener in list(self._listeners.values()):
            listener.lost = True
            listener.send.close()

    def _publish(self, actor: str, seq: int, data: bytes) -> None:
        for listener in self._listeners.values():
            if not listener.lost and (instead := listener.wants(actor)) is not None:
                try:
                    listener.send.send_nowait((actor, seq, instead or data))
                except trio.WouldBlock:
                    listener.lost = True
                    listener.send.close()
                except trio.BrokenResourceError:
                    listener.lost = True

    async def listen(self, actors: Sequence[str], last: str, others: Iterable[str] = ()) -> AsyncIterator[bytes]:
        """The events of these actors, after the one with the id ``last`` (empty: from now on), and that something has
        changed at ``others``; until whoever takes them goes, or does not keep up.
        """
        seen = _positions(last)
        send, receive = trio.open_memory_channel[tuple[str, int, bytes]](BACKLOG_MAX)
        listener = Listener(frozenset(actors), frozenset(others), send)
        self._listeners[id(listener)] = listener
        try:
            with trio.move_on_after(REACHED_WITHIN):  # an actor that is away is heard when it is there
                for name in actors:
                    await self._feeds[name].reached.wait()
            # What is heard of no actor yet is heard from here on, also by who comes back before the first event.
            seen = {**{name: self._feeds[name].seq for name in actors if self._feeds[name].seq >= 0}, **seen}
            yield _identified(seen, b": connected\n\n")
            for name in actors:
                async for data in self._missed(name, seen):
                    yield data
            while True:
                # Nothing is given out within the scope: whoever takes it may go while it is open.
                heard: tuple[str, int, bytes] | None = None
                with trio.move_on_after(HEARTBEAT):
                    heard = await receive.receive()
                if heard is None:
                    yield b": heartbeat\n\n"
                elif heard[2] is CHANGED:
                    listener.changed = False
                    yield CHANGED
                elif heard[1] > seen.get(heard[0], -1):
                    seen[heard[0]] = heard[1]
                    yield _identified(seen, heard[2])
        except trio.EndOfChannel:
            return  # it did not keep up
        finally:
            del self._listeners[id(listener)]
            send.close()
            receive.close()

    async def _missed(self, name: str, seen: dict[str, int]) -> AsyncIterator[bytes]:
        """What happened since a listener was here last."""
        feed = self._feeds[name]
        if name not in seen:
            return
        while True:
            try:
                rows = await feed.actor.request("log", "", {"after": seen[name], "limit": LOG_PAGE})
            except ActorAwayError:
                return  # its feed goes on where the log was read, when it is there again
            for row in rows:
                seen[name] = row["seq"]
                yield _identified(seen, event(name, row))
            if len(rows) < LOG_PAGE:
                return


def _identified(seen: Mapping[str, int], data: bytes) -> bytes:
    return b"id: " + ",".join(f"{name}:{seq}" for name, seq in seen.items()).encode() + b"\n" + data


def _positions(last: str) -> dict[str, int]:
    """How far a listener has heard each actor, by the id of its last event."""
    found = {}
    for part in filter(None, last.split(",")):
        name, _, seq = part.rpartition(":")
        if seq.isdecimal():
            found[name] = int(seq)
    return found
