"""Connections to the control sockets of actors, on trio: many requests share one, and their answers come as they are
ready.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from leasekit.core.errors import LeasekitError
from leasekit.core.frames import ANSWER_MAX, FrameBuffer, FrameError, pack

TIMEOUT: Final = 30.0
"""How long the answer to a command is waited for, in seconds: a broker may ask others first."""
LOOK: Final = 10.0
"""How long any other answer is, which an actor gives by itself."""
READ_MAX: Final = 262_144


class ActorAwayError(LeasekitError):
    """An actor that does not answer: its daemon is down, ends, or takes too long."""

    def __init__(self, actor: str, why: str) -> None:
        super().__init__(f"{actor} is away: {why}")
        self.actor = actor


class RefusedError(LeasekitError):
    """What an actor refuses, in its words; ``because`` is the code and its values, where there is one."""

    def __init__(self, text: str, because: Mapping[str, Any] | None) -> None:
        super().__init__(text)
        self.because = because


K = TypeVar("K")
V = TypeVar("V")


@attrs.define(eq=False)
class Recent(Generic[K, V]):
    """As many answers as ``most``, by what was asked: those that were given last."""

    most: int
    _kept: dict[K, V] = attrs.field(init=False, factory=dict)

    def get(self, key: K) -> V | None:
        """The answer, if it is kept; it is then the one that was given last."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def keep(self, key: K, value: V) -> None:
        """Keep one, and let go of the one that was not given for longest."""
        self._kept.pop(key, None)
        self._kept[key] = value
        if len(self._kept) > self.most:
            del self._kept[next(iter(self._kept))]


@attrs.define(eq=False)
class WaitingAnswer:
    """A request whose answer has not come."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None
    """None with the event set: the connection is gone."""


@attrs.define(eq=False)
class FrameReader:
    """The frames that come on a stream."""

    _stream: trio.SocketStream
    come: FrameBuffer = attrs.field(init=False, factory=lambda: FrameBuffer(ANSWER_MAX))

    async def read(self) -> dict[str, Any] | None:
        """The next frame's map; None at the end. Raises ``FrameError``."""
        while (found := self.come.take()) is None:
            data = await self._stream.receive_some(READ_MAX)
            if not data:
                return None
            self.come.feed(data)
        return found


@attrs.define(eq=False)
class ActorConnection:
    """The way to one actor, by its control socket. It connects when it is asked, and again when that was lost.

    ``nursery`` is where its reader runs, and all else that goes on as long as the deployment has the actor; to be set
    before anything is asked.
    """

    name: str
    role: str
    path: Path
    nursery: trio.Nursery | None = None
    _stream: trio.SocketStream | None = attrs.field(init=False, default=None)
    _waiting: dict[int, WaitingAnswer] = attrs.field(init=False, factory=dict)
    _connecting: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _outgoing: bytearray = attrs.field(init=False, factory=bytearray)
    """Frames that are to be sent: all that wait go at once, whoever they are of."""
    _more: trio.Event = attrs.field(init=False, factory=trio.Event)
    _next_id: int = attrs.field(init=False, default=0)
    _calendars: Recent[tuple[tuple[str, Any], ...], dict[str, Any]] = attrs.field(init=False, factory=lambda: Recent(4))

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._stream is not None

    def leave(self) -> None:
        """Hang up for good: the deployment has the actor no more. Who waits for an answer is told that it is away."""
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()
            self.nursery = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Where it is not waited for longer than that. Raises ``ActorAwayError`` then."""
        try:
            with trio.fail_after(seconds):
                yield
        except trio.TooSlowError:
            raise ActorAwayError(self.name, f"it gave no answer within {seconds:g} s") from None

    async def command(self, name: str, arguments: Mapping[str, Any], **caller: str) -> Any:
        """Have the actor do something; what is returned is durable. ``caller`` is who asks, by which ``way``, with
        which ``key``. Raises ``ActorAwayError`` and ``RefusedError``.
        """
        return await self.request("command", name, arguments, **caller)

    async def query(self, name: str, **arguments: Any) -> Any:
        """Ask the actor something. Raises ``ActorAwayError`` and ``RefusedError``."""
        return await self.request("query", name, arguments)

    async def calendar(self, **asked: Any) -> dict[str, Any]:
        """The actor's calendar. What it told before, and what is still so, it need not tell again: the answer is the
        same object, not to be changed. Raises ``ActorAwayError`` and ``RefusedError``.
        """
        key = tuple(sorted(asked.items()))
        told = self._calendars.get(key) or {"revision": -1}
        found: dict[str, Any] = await self.query("calendar", **asked, known=told["revision"])
        if found["revision"] == told["revision"]:
            return told
        self._calendars.keep(key, found)
        return found

    async def request(self, kind: str, name: str, arguments: Mapping[str, Any], **caller: str) -> Any:
        """One request and its result. Raises ``ActorAwayError`` and ``RefusedError``."""
        self._next_id += 1
        id_, waiting = self._next_id, WaitingAnswer()
        try:
            frame = pack({"id": id_, "kind": kind, "name": name, "arguments": dict(arguments), **caller})
        except FrameError as error:
            raise RefusedError(str(error), None) from error
        self._waiting[id_] = waiting
        try:
            with self.within(TIMEOUT if kind == "command" else LOOK):
                await self._send(frame)
                await waiting.answered.wait()
        finally:
            del self._waiting[id_]
        if waiting.answer is None:
            raise ActorAwayError(self.name, "its daemon hung up")
        if not waiting.answer.get("ok"):
            text = str(waiting.answer.get("error", "it gave no reason"))
            raise RefusedError(text, waiting.answer.get("because"))
        return waiting.answer.get("result")

    async def _send(self, frame: bytes) -> None:
        if self._stream is None:
            async with self._connecting:
                if self._stream is None:
                    stream = await self._connect()
                    nursery = self.nursery
                    if nursery is None:
                        await stream.aclose()
                        raise ActorAwayError(self.name, "the deployment has it no more")
                    self._stream = stream
                    nursery.start_soon(self._read, stream)
                    nursery.start_soon(self._write, stream)
        self._outgoing += frame
        self._more.set()

    async def _write(self, stream: trio.SocketStream) -> None:
        """Send what waits, as a task of its own: a caller that goes away leaves no half of a frame behind."""
        try:
            while True:
                await self._more.wait()
                if self._stream is not stream:
                    return  # the one that took its place has a task of its own
                self._more = trio.Event()
                data, self._outgoing = self._outgoing, bytearray()
                await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reader finds the same

    async def _connect(self) -> trio.SocketStream:
        try:
            return await trio.open_unix_socket(os.fspath(self.path))
        except OSError as error:
            # Where its socket is, is of no use to who has no account on the gateway's machine.
            raise ActorAwayError(self.name, f"no daemon answers at its control socket ({error.strerror})") from None

    async def _read(self, stream: trio.SocketStream) -> None:
        frames = FrameReader(stream)
        try:
            while (answer := await frames.read()) is not None:
                waiting = self._waiting.get(answer.get("id", 0))
                if waiting is not None:
                    waiting.answer = answer
                    waiting.answered.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError, FrameError):
            pass  # whoever waits is told below
        finally:
            if self._stream is stream:
                self._stream = None
                self._outgoing.clear()
                self._more.set()
            for waiting in self._waiting.values():
                waiting.answered.set()
            with trio.CancelScope(shield=True):
                await stream.aclose()

    @asynccontextmanager
    async def following(
        self, kind: str, name: str, **arguments: Any
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """What an actor goes on telling, on a connection of its own. Raises ``ActorAwayError``, ``RefusedError``."""
        async with self._asked(kind, name, arguments) as (frames, first):

            async def events() -> AsyncIterator[Mapping[str, Any]]:
                if first:
                    yield first
                while True:
                    yield (await self._heard(frames)).get("event", {})

            yield events()

    @asynccontextmanager
    async def watching(self, lease: str = "") -> AsyncIterator[AsyncIterator[None]]:
        """Hear when there is more in an actor's log, of a lease or of all: once for all that came meanwhile. Raises
        ``ActorAwayError``, ``RefusedError``.
        """
        async with self._asked("watch", lease, {}) as (frames, _):

            async def changes() -> AsyncIterator[None]:
                while True:
                    await self._heard(frames)
                    frames.come.skip()
                    yield

            yield changes()

    @asynccontextmanager
    async def _asked(
        self, kind: str, name: str, arguments: Mapping[str, Any]
    ) -> AsyncIterator[tuple[FrameReader, Any]]:
        """A connection on which the actor goes on answering, and its first answer."""
        stream = await self._connect()
        async with stream:
            frames = FrameReader(stream)
            await stream.send_all(pack({"id": 1, "kind": kind, "name": name, "arguments": dict(arguments)}))
            first = await frames.read()
            if first is None:
                raise ActorAwayError(self.name, "its daemon hung up")
            if not first.get("ok"):
                raise RefusedError(str(first.get("error")), first.get("because"))
            yield frames, first.get("result")

    async def _heard(self, frames: FrameReader) -> dict[str, Any]:
        """The next frame. Raises ``ActorAwayError``."""
        frame = None
        with suppress(trio.BrokenResourceError, FrameError):
            frame = await frames.read()
        if frame is None:
            raise ActorAwayError(self.name, "its daemon hung up")
        return frame
