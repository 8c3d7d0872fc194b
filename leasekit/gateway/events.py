"""What happens, as it happens: transitions of the actors that somebody may see, as server-sent events.

A follower of each actor reads its log whenever the actor says that there is more, so that each transition is read once
however many listen. Who comes back with ``Last-Event-ID`` goes on in the log where they were. A log that is read faster
than listeners take it waits for them for a while; who is further behind then reads the log at its own pace, until it
has caught up. So nothing is kept for who is slow, and only who takes nothing at all is hung up on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import trio
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from leasekit.client.shapes import Transition
from leasekit.core.errors import LeasekitError
from leasekit.gateway.actors import ActorAwayError, ActorConnection, Recent
from leasekit.gateway.instants import moment, told_reason
from leasekit.gateway.routing import number_of

HEARTBEAT: Final = 15.0
"""How often a line says that the connection is there, in seconds."""
BACKLOG_MAX: Final = 1_000
"""How many events are kept for a listener that is behind."""
PATIENCE: Final = 2.0
"""How long those who have heard all wait for one that is further behind, in seconds, until it has caught up again; and
how long one may take nothing while it is waited for.
"""
STALLED: Final = 60.0
"""How long one may take nothing of what there is for it, in seconds, before it is hung up on."""
LOG_PAGE: Final = 1_000
CHUNK: Final = 100
"""How many events are told at once at most: as many bytes as a connection may have of its own on their way."""
TEXTS_MAX: Final = 8
READ_MAX: Final = 16
"""How many parts of a log are kept for those who come back."""
REACHED_WITHIN: Final = 5.0
"""How long a listener waits for it to be known where the logs end, when the gateway begins, in seconds."""
RETRY: Final = 1.0
"""After how long an actor that is away is asked again, in seconds."""
CHANGED: Final = b"event: changed\ndata: {}\n\n"
"""That something has changed, for who may not see what."""
APPROVALS_CHANGED: Final = b"event: approvals\ndata: {}\n\n"
"""That something waits to be approved, or was decided."""
WAITS_CHANGED: Final = b"event: waits\ndata: {}\n\n"
"""That somebody waits for something, or waits no more."""
ANNOUNCEMENTS_CHANGED: Final = b"event: announcements\ndata: {}\n\n"
"""That an operator has announced something, or it is announced no more."""
DELIVERIES_CHANGED: Final = b"event: deliveries\ndata: {}\n\n"
"""That something was sent by a rule, or could not be."""
MISSED: Final = b"event: missed\ndata: {}\n\n"
"""That something may have happened since what was said to be heard."""
ALIVE: Final = b": heartbeat\n\n"
ENDED: Final = b": what you may hear has changed: ask anew, with Last-Event-ID\n\n"
BEHIND: Final = b": you have taken nothing for too long: go on with Last-Event-ID\n\n"
WAKE: Final = b""
"""That there is something in a log that it reads by itself."""

logger = logging.getLogger(__name__)


def transition(actor: str, row: Mapping[str, Any]) -> Transition:
    """A line of an actor's log."""
    return Transition(
        actor=actor, seq=row["seq"], at=moment(row["at"]), lease=row["lease"], event=row["event"],
        before=row["from_state"], after=row["to_state"], **told_reason(row["why"], row["because"]),
    )  # fmt: skip


@attrs.define(eq=False)
class EventChunk:
    """Some events of an actor that come after each other, each with its number in the log: all who listen share it."""

    actor: str
    events: Sequence[tuple[int, bytes]]
    _texts: dict[tuple[tuple[str, int], ...], bytes] = attrs.field(init=False, factory=dict)

    def text(self, seen: dict[str, int]) -> bytes:
        """What somebody is told who has ``seen`` so much before, and these now."""
        before = tuple(seen.items())
        found = self._texts.get(before)
        if found is None:
            told, at = [], dict(seen)
            for seq, data in self.events:
                if seq > at.get(self.actor, -1):
                    at[self.actor] = seq
                    told.append(_identified(at, data))
            found = b"".join(told)
            if len(self._texts) < TEXTS_MAX:
                self._texts[before] = found
        if self.events:
            seen[self.actor] = max(seen.get(self.actor, -1), self.events[-1][0])
        return found


@attrs.define(eq=False)
class Listener:
    """Somebody who listens to some actors, and hears of ``others`` only that something has changed; ``hints``: what it
    is to hear already. It has ``seen`` so much of each actor, is ``behind`` by so many events, ``took`` some at that
    time, and is waited for as long as there is ``patience``, in seconds. The logs of those of ``reads`` it reads by
    itself. It is ``lost``, and hears nothing more, once that is not ``still`` what it may hear.
    """

    actors: frozenset[str]
    others: frozenset[str]
    still: Callable[[], bool]
    seen: dict[str, int]
    hints: set[bytes] = attrs.field(factory=set)
    reads: set[str] = attrs.field(factory=set)
    behind: int = 0
    took: float = attrs.field(factory=trio.current_time)
    patience: float = PATIENCE
    lost: bool = False
    last: bytes = b""
    """What it is told at the end."""
    _told: deque[EventChunk | bytes] = attrs.field(init=False, factory=deque)
    _more: trio.Event = attrs.field(init=False, factory=trio.Event)

    def hang_up(self, last: bytes = b"") -> None:
        """Have it hear nothing more than what it is told already, and this."""
        self.lost, self.last = True, last
        self._more.set()

    def hear(self, chunk: EventChunk) -> None:
        """Have it hear what concerns it."""
        if chunk.events and chunk.actor in self.actors:
            self.seen.setdefault(chunk.actor, chunk.events[0][0] - 1)
        if chunk.actor in self.reads:
            self.hear_hint(WAKE)
        elif chunk.events and chunk.actor in self.actors:
            self.behind += len(chunk.events)
            self._tell(chunk)
        elif chunk.events and chunk.actor in self.others:
            self.hear_hint(CHANGED)

    def hear_hint(self, hint: bytes) -> None:
        """Have it hear that something has changed, once however often before it hears that."""
        if hint not in self.hints and not self.lost:
            self.hints.add(hint)
            self._tell(hint)

    def _tell(self, what: EventChunk | bytes) -> None:
        self._told.append(what)
        self._more.set()

    async def take(self) -> EventChunk | bytes | None:
        """The next that it hears; None: it hears nothing more."""
        await trio.lowlevel.checkpoint()
        while not self._told:
            if self.lost:
                return None
            self._more = trio.Event()
            await self._more.wait()
        self.took, taken = trio.current_time(), self._told.popleft()
        if isinstance(taken, bytes):
            self.hints.discard(taken)
        return taken

    def fall_behind(self) -> None:
        """Keep nothing more for it: it reads all logs by itself from where it was."""
        self.reads, self.behind, self.patience = set(self.actors), 0, 0
        self._told = deque(one for one in self._told if isinstance(one, bytes))
        self.hear_hint(WAKE)

    @property
    def is_far_behind(self) -> bool:
        """Whether it is to take something before it hears more."""
        return self.behind > BACKLOG_MAX and not self.lost


@attrs.define(eq=False)
class ActorFeed:
    """The log of one actor, followed. ``seq`` is how far it was read."""

    actor: ActorConnection
    publish: Callable[[EventChunk], Awaitable[None]]
    seq: int = -1
    reached: trio.Event = attrs.field(factory=trio.Event)
    """Set once it is known where the log ends."""
    _reading: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _read: Recent[int, EventChunk] = attrs.field(init=False, factory=lambda: Recent(READ_MAX))
    """What was read of the log for those who come back, by what they had heard before."""

    async def run(self) -> None:
        """Follow the log until cancelled; an actor that is away is asked again."""
        while True:
            try:
                async with self.actor.watching() as changes:
                    await self._catch_up()
                    self.reached.set()
                    await self.publish(EventChunk(self.actor.name, ()))  # it is there: who reads by itself goes on
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
            for at in range(0, len(rows), CHUNK):
                events = [(row["seq"], event(self.actor.name, row)) for row in rows[at : at + CHUNK]]
                self.seq = events[-1][0]
                await self.publish(EventChunk(self.actor.name, events))
            if len(rows) < LOG_PAGE:
                return

    async def after(self, seq: int) -> EventChunk:
        """The events that come after that one, at most as many as are told at once. Many come back at the same place,
        as when all were hung up on: what is asked for again is read, and made into text, once. Raises
        ``LeasekitError``.
        """
        async with self._reading:
            found = self._read.get(seq)
            if found is None:
                rows = await self.actor.request("log", "", {"after": seq, "limit": CHUNK})
                found = EventChunk(self.actor.name, [(row["seq"], event(self.actor.name, row)) for row in rows])
                if len(rows) == CHUNK:  # else there will be more after it
                    self._read.keep(seq, found)
        return found

    async def ends_before(self, seq: int) -> bool:
        """Whether there is no such line in the log, as far as it is known: its store is older than who has heard it."""
        try:
            return seq > self.seq >= 0 and seq > await self._end_of_log()
        except LeasekitError:
            return False

    async def _end_of_log(self) -> int:
        return int((await self.actor.request("log_end", "", {}))["seq"])


class WholeStream(StreamingResponse):
    """A stream whose end is sent whole. Hypercorn tells who listens for the client's going that it has gone while the
    end is sent, by which Starlette cancels the sending: the connection would be open, and idle, for ever.
    """

    async def stream_response(self, send: Send) -> None:
        """As of the class above."""

        async def send_whole(message: Message) -> None:
            is_end = message["type"] == "http.response.body" and not message["more_body"]
            with trio.CancelScope(shield=is_end):
                await send(message)

        await super().stream_response(send_whole)


def event(actor: str, row: Mapping[str, Any]) -> bytes:
    """A transition as the data of an event."""
    return b"event: transition\ndata: " + msgspec.json.encode(transition(actor, row)) + b"\n\n"


@attrs.define(eq=False)
class EventHub:
    """All listeners, and the feeds that they hear."""

    _feeds: dict[str, ActorFeed] = attrs.field(init=False, factory=dict)
    _listeners: dict[int, Listener] = attrs.field(init=False, factory=dict)
    count: int = attrs.field(init=False, factory=time.time_ns)
    """How much there was to hear, of all, on top of when the gateway began."""
    _taken: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when somebody who was far behind has taken something."""

    def follow(self, actor: ActorConnection, nursery: trio.Nursery) -> None:
        """Follow this actor, too, from now on."""
        feed = self._feeds[actor.name] = ActorFeed(actor, self._publish)
        nursery.start_soon(feed.run)

    async def beat(self) -> None:
        """Say that all is well, until cancelled, and hang up on who has taken nothing of what there is for too long.
        One clock for all: a time limit of each listener's own would cost as much as to tell it something.
        """
        while True:
            await trio.sleep(HEARTBEAT)
            self.review()
            for one in self._listeners.values():
                stalled = trio.current_time() - one.took
                if ALIVE in one.hints and stalled >= STALLED and not one.lost:
                    whose = ", ".join(sorted(one.actors | one.others))
                    logger.warning("a listener of %s is hung up on: it has taken nothing for %.0f s", whose, stalled)
                    one.fall_behind()
                    one.hang_up(BEHIND)
            self.hint(ALIVE)

    def review(self) -> None:
        """Hang up on all who may hear less than they hear, or more."""
        for listener in self._listeners.values():
            if not listener.lost and not listener.still():
                listener.hang_up(ENDED)

    @property
    def listeners(self) -> int:
        """How many there are."""
        return len(self._listeners)

    def close(self) -> None:
        """Hang up on all listeners: the gateway ends."""
        for listener in self._listeners.values():
            listener.hang_up()

    async def _publish(self, chunk: EventChunk) -> None:
        """Have all hear it, when those who are far behind have taken what they were told, or were waited for. Where all
        are behind it is not their fault: the machine is slow.
        """
        self.count += bool(chunk.events)
        began = trio.current_time()
        while late := [one for one in self._listeners.values() if one.is_far_behind]:
            since = trio.current_time()
            with trio.move_on_after(max(0.0, min(one.patience for one in late))):
                await self._taken.wait()
            now = trio.current_time()
            others = any(chunk.actor in one.actors and not one.behind for one in self._listeners.values())
            for listener in late:
                if others:
                    listener.patience -= now - since
                is_over = listener.patience <= 0 or now - max(began, listener.took) >= PATIENCE
                if is_over and listener.is_far_behind:
                    listener.fall_behind()
        for listener in self._listeners.values():
            if not listener.lost:
                listener.hear(chunk)

    def hint(self, what: bytes, project: str = "") -> None:
        """Have all who listen, to a project if one is named, hear that something of the gateway's own has changed,
        which has no place in the log of an actor.
        """
        self.count += 1
        for listener in self._listeners.values():
            if not project or project in listener.actors:
                listener.hear_hint(what)

    async def listen(
        self,
        actors: Sequence[str],
        last: str,
        others: Iterable[str] = (),
        still: Callable[[], bool] = lambda: True,
        heard: str = "",
        knows: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes]:
        """The events of these actors, after the one with the id ``last`` (empty: from now on), and that something has
        changed at ``others``; until whoever takes them goes, takes nothing, or that is not ``still`` what they may
        hear, which is looked at now and then; nothing is told once the gateway does not know them (``knows``, which is
        quick). First that something was missed, if :attr:`count` is not what it was when they had ``heard`` all.
        """
        listener = Listener(frozenset(actors), frozenset(others), still, _positions(last))
        feeds = {name: self._feeds[name] for name in actors}
        self._listeners[id(listener)] = listener
        has_missed = heard not in ("", str(self.count))
        try:
            with trio.move_on_after(REACHED_WITHIN):  # an actor that is away is heard when it is there
                for feed in feeds.values():
                    await feed.reached.wait()
            missed = set(feeds).intersection(_positions(last))
            for name in sorted(missed):
                if await feeds[name].ends_before(listener.seen[name]):
                    listener.seen[name], has_missed = feeds[name].seq, True
            # What is heard of no actor yet is heard from here on, also by who comes back before the first event.
            listener.seen = {**{name: feed.seq for name, feed in feeds.items() if feed.seq >= 0}, **listener.seen}
            yield _identified(listener.seen, b": connected\n\n")
            if has_missed:
                yield MISSED
            listener.reads |= missed
            taken: EventChunk | bytes | None = WAKE
            while taken is not None:
                if not knows():
                    listener.hang_up(ENDED)
                    break
                if isinstance(taken, bytes):
                    if taken:
                        yield taken
                else:
                    if taken.actor not in listener.reads and (text := taken.text(listener.seen)):
                        yield text
                    self._note_taken(listener, len(taken.events))
                for name in sorted(listener.reads):
                    async for data in self._missed(feeds[name], listener):
                        yield data
                taken = await listener.take()
            if listener.last:
                yield listener.last
        finally:
            listener.lost = True
            del self._listeners[id(listener)]
            self._note_taken(listener, listener.behind)

    def _note_taken(self, listener: Listener, events: int) -> None:
        was_late = listener.behind > BACKLOG_MAX
        listener.behind = max(0, listener.behind - events)
        if not (listener.behind or listener.reads):
            listener.patience = PATIENCE
        if was_late:  # only these are waited for
            self._taken.set()
            self._taken = trio.Event()

    async def _missed(self, feed: ActorFeed, listener: Listener) -> AsyncIterator[bytes]:
        """What happened at an actor since a listener was here last. While it is away there is nothing to read."""
        name = feed.actor.name
        listener.reads.discard(name)  # what it hears from now on comes after what it reads
        while name in listener.seen and not listener.lost:
            try:
                chunk = await feed.after(listener.seen[name])
            except ActorAwayError:
                listener.reads.add(name)
                return
            if text := chunk.text(listener.seen):
                yield text
                listener.took = trio.current_time()
            if len(chunk.events) < CHUNK:
                return


def _identified(seen: Mapping[str, int], data: bytes) -> bytes:
    return b"id: " + ",".join(f"{name}:{seq}" for name, seq in seen.items()).encode() + b"\n" + data


def _positions(last: str) -> dict[str, int]:
    """How far a listener has heard each actor, by the id of its last event."""
    found = {}
    for part in filter(None, last.split(",")):
        name, _, seq = part.rpartition(":")
        if (heard := number_of(seq)) is not None:
            found[name] = heard
    return found
