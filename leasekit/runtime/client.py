"""A control socket: its format, and the end that the command line uses, on plain blocking sockets.

Both ends send frames (:mod:`leasekit.core.frames`). A request is ``{"id": int, "kind": str, "name": str, "arguments":
{...}}``; ``caller``, ``way`` and ``key`` are a command's, if its caller is not the user who connects. Its answer is
``{"id", "ok": true, "result"}`` or ``{"id", "ok": false, "error": str}``, with ``because`` where the error has a code;
an answer may hold ``"warnings": [str, ...]`` as well, of what an operator has to know whatever was asked. Requests on
one connection may be sent without waiting; their answers come in the order in which they are ready. ``watch`` and
``unit_log`` with ``follow`` are answered when nothing can be missed any more, and then followed by ``{"id", "event":
{...}}`` until the client hangs up; nothing else can be asked on that connection.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError
from leasekit.core.frames import ANSWER_MAX, FrameBuffer, FrameError, pack
from leasekit.core.time import Instant

if TYPE_CHECKING:
    from leasekit.config.sockets import ControlAddress, RemoteDoor
    from leasekit.runtime.remote import GatewayTunnel

TIMEOUT: Final = 30.0
"""How long an answer is waited for by default, in seconds."""
WINDOW: Final = 500
"""How many requests of a batch are on their way at once."""


class ControlError(LeasekitError):
    """The daemon can't be talked to; the text names the socket and says what to do."""


class RequestError(LeasekitError):
    """The daemon has refused a request; the text is its reason, ``because`` the code and values of that (or None)."""

    def __init__(self, text: str, because: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.because = because


_warned: Final[set[str]] = set()


def warn(text: str) -> None:
    """Say a daemon's warning on standard error, once in this process."""
    if text not in _warned:
        _warned.add(text)
        print(f"leasekit: warning: {dated(text)}", file=sys.stderr)


class ControlClient:
    """A connection to the daemon whose control socket is at ``path``, or behind a gateway. ``timeout`` is in seconds;
    ``warn`` is called with what the daemon has its operator warned of.

    Raises :class:`ControlError` where no daemon answers, where the socket is another user's, and when an answer
    takes too long. Every request raises that, and :class:`RequestError` if it is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ControlAddress,
        *,
        timeout: float = TIMEOUT,
        warn: Callable[[str], None] = warn,
    ) -> None:
        self.path = path if isinstance(path, tuple) else Path(path)
        self.timeout = timeout
        self._warn = warn
        self._next_id = 0
        self._come = FrameBuffer(ANSWER_MAX)
        self._early: dict[int, Any] = {}
        self._socket = self._connect() if isinstance(self.path, Path) else self._tunnel(self.path)

    def _tunnel(self, door: RemoteDoor) -> GatewayTunnel:
        from leasekit.runtime.remote import GatewayTunnel

        return GatewayTunnel(door, self.timeout)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout)
        try:
            sock.connect(str(self.path))
        except OSError as error:
            sock.close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
                why = f"no daemon answers at {self.path}: start it with leasekit up FILE"
            elif isinstance(error, PermissionError):
                why = f"permission denied at {self.path}: a daemon takes commands from the user it runs as only"
            else:
                why = f"can't connect to {self.path}: {error.strerror or error}"
            raise ControlError(why) from None
        return sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def command(self, name: str, /, **arguments: Any) -> Any:
        """Have the actor do something; what is returned is durable. ``name`` is an actor's command:
        ``lease.request``.
        """
        return self.request("command", name, arguments)

    def query(self, name: str, /, **arguments: Any) -> Any:
        """Ask the actor something, such as ``leases`` or ``status``."""
        return self.request("query", name, arguments)

    def history(self, lease: str) -> list[dict[str, Any]]:
        """The transitions of one lease, oldest first: ``seq, at, lease, event, from_state, to_state, why``."""
        answer: list[dict[str, Any]] = self.request("history", lease)
        return answer

    def log(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Up to ``limit`` transitions of all leases with a ``seq`` above ``after``."""
        answer: list[dict[str, Any]] = self.request("log", "", {"after": after, "limit": limit})
        return answer

    def archived(self, table: str = "leases", limit: int = 1000) -> list[dict[str, Any]]:
        """Up to ``limit`` rows of the past, newest first: leases that are over and that the actor has forgotten."""
        answer: list[dict[str, Any]] = self.request("archived", table, {"limit": limit})
        return answer

    def past(self, since: Instant, until: Instant) -> Iterator[dict[str, Any]]:
        """The leases that ended at ``since`` or later, and began before ``until``, as queries show them, in order of
        when they ended.
        """
        after: Mapping[str, Any] | None = {}
        while after is not None:
            page = self.request("past", "", {"since": since, "until": until, **after})
            yield from page["leases"]
            after = page["after"]

    def usage(self, since: Instant, until: Instant, by: Sequence[str]) -> dict[str, Any]:
        """The accounts of a broker or a site over a period: ``accounts`` by the keys in ``by``, ``offered_unit_ms`` by
        type, and ``since`` when the log goes back to.
        """
        answer: dict[str, Any] = self.request("usage", "", {"since": since, "until": until, "by": list(by)})
        return answer

    def watch(self, lease: str = "", *, patience: float | None = None) -> Iterator[dict[str, Any]]:
        """Transitions (of one lease) from the call on, as they are committed; endless.

        An item ``{"missed": n}`` tells of a gap. With ``patience`` (seconds) the iterator raises :class:`ControlError`
        if nothing comes for so long. The connection serves nothing else afterwards.
        """
        return self._follow(self.send("watch", lease), patience)

    def unit_log(
        self, unit: str, lines: int = 200, *, follow: bool = False, patience: float | None = None
    ) -> Iterator[str]:
        """The last ``lines`` of a unit's log and, with ``follow``, those to come; see :meth:`watch`."""
        id_ = self.send("unit_log", unit, {"lines": lines, "follow": follow})
        events = self._follow(id_, patience) if follow else iter(())
        first = next(events) if follow else {"lines": self.receive(id_)["lines"]}

        def lines_() -> Iterator[str]:
            yield from first.get("lines", ())
            for event in events:
                yield from event.get("lines", (f"... {event.get('missed')} lines are left out here",))

        return lines_()

    def stop(self) -> None:
        """Have the daemon end; it does so within its grace time."""
        self.request("stop", "")

    def batch(self, requests: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Iterator[Any]:
        """Many requests (kind, name, arguments), many on their way at once; yields results, or
        :class:`RequestError`, in order.
        """
        waiting: list[int] = []
        for kind, name, arguments in requests:
            waiting.append(self.send(kind, name, arguments))
            if len(waiting) >= WINDOW:
                yield self._answer(waiting.pop(0))
        for id_ in waiting:
            yield self._answer(id_)

    def _answer(self, id_: int) -> Any:
        """The result of request ``id_``, or the error that refuses it; answers to others are kept until they are
        asked for.
        """
        while id_ not in self._early:
            answer = self._read(self.timeout)
            for text in answer.get("warnings", ()):
                self._warn(text)
            # 0: the daemon could not make out which request it was, or hangs up.
            self._early[answer.get("id") or id_] = _result(answer)
        return self._early.pop(id_)

    def request(self, kind: str, name: str, arguments: Mapping[str, Any] | None = None, **caller: str) -> Any:
        """One request and its result. ``kind`` is one that :mod:`leasekit.runtime.control` serves; ``caller``, ``way``
        and ``key`` are a command's, as :class:`~leasekit.core.steps.Command` has them.
        """
        return self.receive(self.send(kind, name, arguments, **caller))

    def send(self, kind: str, name: str, arguments: Mapping[str, Any] | None = None, **caller: str) -> int:
        """Send a request without waiting for its answer; returns its id."""
        self._next_id += 1
        asked = {"kind": kind, "name": name, "arguments": dict(arguments or {}), **caller}
        try:
            frame = pack({"id": self._next_id, **asked})
        except FrameError as error:
            raise RequestError(str(error)) from None
        # A daemon that has hung up may have said why: who waits for the answer reads it.
        with self._explained(self.timeout), suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(frame)
        return self._next_id

    def receive(self, id_: int) -> Any:
        """The result of request ``id_``, which was sent and whose answer was not received yet."""
        result = self._answer(id_)
        if isinstance(result, RequestError):
            raise result
        return result

    def _follow(self, id_: int, patience: float | None = None) -> Iterator[dict[str, Any]]:
        first = self.receive(id_)

        def events() -> Iterator[dict[str, Any]]:
            if first:
                yield first
            while True:
                event = self._read(patience).get("event")
                if isinstance(event, dict):
                    yield event

        return events()

    def _read(self, timeout: float | None) -> dict[str, Any]:
        with self._explained(timeout):
            while (found := self._come.take()) is None:
                data = self._socket.recv(262_144)
                if not data:
                    raise ControlError(f"{self.path}: the daemon hung up; it is stopping, or has stopped")
                self._come.feed(data)
            return found

    @contextmanager
    def _explained(self, timeout: float | None) -> Iterator[None]:
        self._socket.settimeout(timeout)
        try:
            yield
        except TimeoutError:
            raise ControlError(f"{self.path}: the daemon gave no answer within {timeout:g} s") from None
        except (BrokenPipeError, ConnectionResetError):
            raise ControlError(f"{self.path}: the daemon hung up; it is stopping, or has stopped") from None
        except OSError as error:
            raise ControlError(f"{self.path}: {error.strerror or error}") from None
        except FrameError as error:
            raise ControlError(f"{self.path}: {error}") from None


def _result(answer: Mapping[str, Any]) -> Any:
    if answer.get("ok"):
        return answer.get("result")
    return RequestError(str(answer.get("error", "the daemon gave no reason")), answer.get("because"))
