"""The control socket: how an operator talks to one actor's daemon.

A Unix socket of mode 0600, in a folder that is made with mode 0700; beyond that the kernel is asked whose process
is at the other end, and only the daemon's own user and root are heard. Whatever is sent, the daemon answers it, or
hangs up, and lives on.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import attrs
import trio
from msgspec import UNSET

from leasekit.core.answers import (
    DaemonStatus,
    LastLines,
    LogEnd,
    LoggedTransition,
    PastPage,
    PastPosition,
    Stopping,
    UsageDetails,
    plain,
)
from leasekit.core.commands import ReadArchive, ReadLog, ReadPast, ReadUnitLog, ReadUsage, read_arguments
from leasekit.core.errors import ArgumentError, CommandError, LeasekitError
from leasekit.core.frames import REQUEST_MAX, FrameBuffer, FrameError, pack
from leasekit.core.reasons import Reason, read, words
from leasekit.core.schema import TABLES, LogRow
from leasekit.runtime.queues import WATCH_MAX, Feed, Watcher
from leasekit.runtime.shell import ActorShell

CONNECTIONS_MAX: Final = 256
"""How many clients are served at once; further ones are told so."""
IN_FLIGHT_MAX: Final = 1_000
"""How many requests of one connection are worked on at once; then it is not read."""
SEND_TIMEOUT: Final = 30.0
"""How long a client may take to take its answer, in seconds, before it is hung up on."""
READ_MAX: Final = 65_536
CONTROL: Final = "control socket"
"""The way of a command that names none."""

_CREDENTIALS: Final = struct.Struct("3i")

logger = logging.getLogger(__name__)


class ControlRequest(NamedTuple):
    """A request: its ``kind``, what of that kind, and with which ``arguments``. ``caller``, ``way`` and ``key`` are as
    :class:`~leasekit.core.steps.Command` has them.
    """

    id: int
    kind: str
    name: str
    arguments: Mapping[str, Any]
    caller: str = ""
    way: str = ""
    key: str = ""


Answering: TypeAlias = Callable[[ControlRequest], Awaitable[Any]]
"""Answers requests of a kind. Raises ``LeasekitError`` for one that is refused."""


class Streaming(Protocol):
    """Answers a request by ``answer`` and then goes on sending, until the client hangs up."""

    async def __call__(self, connection: Connection, asked: ControlRequest) -> None: ...


@attrs.define(eq=False)
class Control:
    """Serves requests of ``kinds`` on the listening socket that :func:`~leasekit.runtime.sockets.listen_unix` made;
    those that ``streams`` has are followed by events. ``warnings`` go with every answer, whatever was asked.
    """

    _kinds: Mapping[str, Answering]
    _streams: Mapping[str, Streaming] = attrs.field(factory=dict, kw_only=True)
    _warnings: Callable[[], list[str]] = attrs.field(default=list, kw_only=True)
    _connections: int = attrs.field(init=False, default=0)

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve until cancelled."""
        await trio.serve_listeners(self._accept, [listener])

    async def _accept(self, stream: trio.SocketStream) -> None:
        async with stream:
            connection = Connection(stream, self._warnings)
            user = _user(stream)
            if user is None:
                logger.warning("a process of another user has connected to the control socket: refused")
            elif self._connections >= CONNECTIONS_MAX:
                await connection.refuse(0, f"the daemon serves {CONNECTIONS_MAX} clients already")
            else:
                self._connections += 1
                try:
                    await self._converse(connection, user)
                except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                    return  # it has gone away; what it had asked for is done all the same
                except BaseExceptionGroup as group:
                    _, rest = group.split((trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError))
                    if rest is not None:
                        raise rest from None
                finally:
                    self._connections -= 1

    async def _converse(self, connection: Connection, user: str) -> None:
        limit = trio.Semaphore(IN_FLIGHT_MAX)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    request = await connection.receive()
                    if request is None:
                        # It may have shut down its sending side only, and still wait for answers.
                        return
                    asked = _check(request, user)
                except FrameError as error:
                    await connection.refuse(0, str(error))
                    nursery.cancel_scope.cancel()
                    return
                streaming = self._streams.get(asked.kind)
                if streaming is not None and (asked.kind not in self._kinds or asked.arguments.get("follow")):
                    try:
                        await streaming(connection, asked)
                    except LeasekitError as error:
                        await connection.refuse(asked.id, str(error))
                    nursery.cancel_scope.cancel()
                    return
                await limit.acquire()
                nursery.start_soon(self._handle, connection, limit, asked)

    async def _handle(self, connection: Connection, limit: trio.Semaphore, asked: ControlRequest) -> None:
        try:
            handler = self._kinds.get(asked.kind)
            if handler is None:
                allowed = ", ".join(dict.fromkeys([*self._kinds, *self._streams]))
                raise ArgumentError(f"kind: found {asked.kind!r:.60}, allowed are {allowed}")
            result = await handler(asked)
            await connection.answer(asked.id, result)
        except LeasekitError as error:
            await connection.refuse(asked.id, str(error), getattr(error, "reason", None))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            raise
        except Exception as error:
            # A bug in one request's handler must not end the daemon.
            logger.critical("bug: in the answer to %s %s", asked.kind, asked.name, exc_info=error)
            await connection.refuse(asked.id, f"internal error: {type(error).__name__}: {error}")
        finally:
            limit.release()


@attrs.define(eq=False)
class ActorDoor:
    """What the daemon of an actor answers on its control socket.

    ``describe`` adds to the answer of the query ``status``; ``stop`` ends the daemon. ``more`` are commands beside
    the actor's, by name.
    """

    _shell: ActorShell
    _describe: Callable[[], DaemonStatus] = attrs.field(default=DaemonStatus, kw_only=True)
    _stop: Callable[[], None] = attrs.field(kw_only=True)
    _more: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = attrs.field(factory=dict, kw_only=True)

    @property
    def kinds(self) -> dict[str, Answering]:
        """What is answered, by kind."""
        return {
            "command": self._command,
            "query": self._query,
            "history": self._history,
            "log": self._log,
            "log_end": self._log_end,
            "archived": self._archived,
            "past": self._past,
            "usage": self._usage,
            "unit_log": self._unit_log,
            "stop": self._end,
        }

    @property
    def streams(self) -> dict[str, Streaming]:
        """What is answered and then followed."""
        return {"watch": self._watch, "unit_log": self._follow}

    async def _command(self, asked: ControlRequest) -> Any:
        if asked.name in self._more:
            return await self._more[asked.name](asked.arguments)
        return await self._shell.command(asked.name, asked.arguments, caller=asked.caller, way=asked.way, key=asked.key)

    async def _query(self, asked: ControlRequest) -> Any:
        result = await self._shell.query(asked.name, asked.arguments)
        return {**result, **plain(self._describe())} if asked.name == "status" else result

    async def _history(self, asked: ControlRequest) -> list[LoggedTransition]:
        return [_transition(row) for row in await self._shell.history(asked.name)]

    async def _log(self, asked: ControlRequest) -> list[LoggedTransition]:
        wanted = read_arguments(ReadLog, asked.arguments)
        return [
            _transition(row) for row in await self._shell.log(wanted.after, wanted.limit, asked.name, wanted.before)
        ]

    async def _log_end(self, asked: ControlRequest) -> LogEnd:
        return LogEnd(await self._shell.log_end())

    async def _archived(self, asked: ControlRequest) -> list[dict[str, Any]]:
        """Rows as their table has them."""
        table = asked.name
        columns = list(TABLES[table].columns) if table in TABLES else []
        rows = await self._shell.archived(table, read_arguments(ReadArchive, asked.arguments).limit)
        return [dict(item for item in zip(columns, row, strict=True) if item[0] != "body") for row in rows]

    async def _past(self, asked: ControlRequest) -> PastPage:
        wanted = read_arguments(ReadPast, asked.arguments)
        found = await self._shell.past(wanted.period, (wanted.ended, wanted.id), wanted.limit, wanted.state)
        after = PastPosition(found[-1][0], found[-1][1]["id"]) if found else None
        return PastPage([lease for _, lease in found], after)

    async def _usage(self, asked: ControlRequest) -> UsageDetails:
        wanted = read_arguments(ReadUsage, asked.arguments)
        return await self._shell.usage(wanted.period, wanted.by)

    async def _end(self, asked: ControlRequest) -> Stopping:
        logger.info("stop: asked for on the control socket by %s", asked.caller)
        self._stop()
        return Stopping()

    async def _watch(self, connection: Connection, asked: ControlRequest) -> None:
        with self._shell.transitions.watch(lambda row: not asked.name or row.lease == asked.name) as watcher:
            await connection.answer(asked.id, None)
            await connection.stream(asked.id, watcher, lambda rows: plain([_transition(row) for row in rows]))

    async def _unit_log(self, asked: ControlRequest) -> LastLines:
        lines = read_arguments(ReadUnitLog, asked.arguments).lines
        try:
            return LastLines(self._shell.unit_logs.tail(asked.name, lines))
        except OSError as error:
            raise CommandError(f"the log of {asked.name!r:.80} can't be read: {error.strerror}") from error

    async def _follow(self, connection: Connection, asked: ControlRequest) -> None:
        feed: Feed[str] = Feed()
        with feed.watch(limit=WATCH_MAX) as watcher:
            end = self._shell.unit_logs.follow(asked.name, lambda line: feed.publish([line]))
            try:
                # The file is read on the loop's own thread: no line gets lost between its end and what follows.
                await connection.answer(asked.id, await self._unit_log(asked))
                await connection.stream(asked.id, watcher, lambda items: [plain(LastLines(items))])
            finally:
                end()


@attrs.define(eq=False)
class Connection:
    """Frames on one stream; answers of several tasks don't mix."""

    _stream: trio.SocketStream
    _warnings: Callable[[], list[str]]
    _come: FrameBuffer = attrs.field(init=False, factory=lambda: FrameBuffer(REQUEST_MAX))
    _sending: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _outgoing: bytearray = attrs.field(init=False, factory=bytearray)

    async def receive(self) -> dict[str, Any] | None:
        """The next request, None at the end. Raises ``FrameError``."""
        while (found := self._come.take()) is None:
            data = await self._stream.receive_some(READ_MAX)
            if not data:
                return None
            self._come.feed(data)
        return found

    async def answer(self, id_: int, result: Any) -> None:
        """Send a result. Raises ``FrameError`` if it can't be packed."""
        await self._send(pack({"id": id_, "ok": True, "result": result, **self._warned()}, plain))

    async def refuse(self, id_: int, error: str, reason: Reason | None = None) -> None:
        """Send an error, with the code and values of its reason where it has one."""
        text = error.encode("utf-8", "backslashreplace").decode()
        because = {} if reason is None else {"because": plain(reason)}
        await self._send(pack({"id": id_, "ok": False, "error": text, **because, **self._warned()}))

    def _warned(self) -> dict[str, list[str]]:
        warnings = self._warnings()
        return {"warnings": warnings} if warnings else {}

    async def _send(self, frame: bytes) -> None:
        self._outgoing += frame
        async with self._sending:
            if self._outgoing:  # else it went with another one
                data, self._outgoing = self._outgoing, bytearray()
                with trio.fail_after(SEND_TIMEOUT):
                    await self._stream.send_all(data)

    async def stream(
        self, id_: int, watcher: Watcher[Any], to_events: Callable[[list[Any]], list[dict[str, Any]]]
    ) -> None:
        """Send what the watcher sees until the client hangs up."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, nursery.cancel_scope)
            while True:
                items, missed = await watcher.take()
                events = to_events(items)
                if missed:
                    events.append({"missed": missed})
                await self._send(b"".join(pack({"id": id_, "event": event}) for event in events))

    async def _until_gone(self, scope: trio.CancelScope) -> None:
        while await self._stream.receive_some(READ_MAX):
            pass  # a client that watches has nothing to say
        scope.cancel()


def _transition(row: LogRow) -> LoggedTransition:
    """Those that are told as they come have no number yet."""
    why = read(row.why)
    return LoggedTransition(row.seq or UNSET, *row[1:-1], why=words(why), because=why)


def _check(request: Mapping[str, Any], user: str) -> ControlRequest:
    """A request as it came; where it names no caller, that is the ``user`` whose process is at the other end."""
    id_, kind = request.get("id"), request.get("kind")
    name, arguments = request.get("name", ""), request.get("arguments") or {}
    caller = request.get("caller") or user, request.get("way") or CONTROL, request.get("key") or ""
    if type(id_) is not int or not isinstance(kind, str) or not isinstance(name, str):
        raise FrameError("a request has an id (a whole number), a kind and a name (text)")
    if not isinstance(arguments, dict):
        raise FrameError(f"arguments: found {type(arguments).__name__}, expected a map")
    if not all(isinstance(one, str) for one in caller):
        raise FrameError("caller, way and key: expected text")
    return ControlRequest(id_, kind, name, arguments, *caller)


def _user(stream: trio.SocketStream) -> str | None:
    """Who is at the other end; None for one who is not heard."""
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid not in (0, os.geteuid()):
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
