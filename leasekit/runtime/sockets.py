"""Where frames travel: addresses, the sockets that listen on them, and connections, with TLS over them or not.

:class:`Stalls` tells how long this process has not looked at its sockets: what came meanwhile is not late. A task that
is woken because bytes have come can't know when they came. The loop may have been busy with another task before it
looked at its sockets at all; the process may have been stopped while it waited for them. So the loop is watched: how
long it ran between two looks, and by how much a look outlasted the time that it was to wait. That no look may be so
long that it hides the second, the loop is woken now and again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Final

import attrs
import trio

from leasekit.core.buckets import Bucket
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND, Duration
from leasekit.runtime.clock import since_boot
from leasekit.runtime.limits import Room, UnauthenticatedPeer
from leasekit.runtime.tls import RECORD, Tls

UNIX_PATH_MAX: Final = 107
"""The longest path of a Unix socket, in bytes (Linux)."""

_TCP = re.compile(r"tcp://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})(\?tls=false)?")


class TransportError(LeasekitError):
    """An address that can't be used; the text names it and says what to do."""


@attrs.frozen(slots=True)
class Endpoint:
    """An address: the ``path`` of a Unix socket, or ``host`` and ``port`` (0 when listening: any free one).

    ``tls`` says whether TLS is spoken on TCP; a Unix socket never has it.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = True

    @property
    def encrypted(self) -> bool:
        """Whether what goes over it is encrypted."""
        return self.tls and not self.path

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}{'' if self.tls else '?tls=false'}"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that ``unix:PATH`` or ``tcp://HOST:PORT`` names; with ``?tls=false`` after it, TCP without TLS.

    Raises ``ValueError`` that says what was found and what is allowed.
    """
    allowed = "unix:PATH or tcp://HOST:PORT (an IPv6 host in brackets)"
    if text.startswith("unix:") and "\0" not in text:
        path = text.removeprefix("unix:")
        if 0 < len(os.fsencode(path)) <= UNIX_PATH_MAX:
            return Endpoint(path=path)
        raise ValueError(f"{text!r}: found a path of {len(os.fsencode(path))} bytes, allowed are 1 to {UNIX_PATH_MAX}")
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an address, allowed is {allowed}")
    port = int(match[3])
    if port > 65_535:
        raise ValueError(f"{text!r}: found port {port}, allowed is 0 to 65535")
    return Endpoint(host=match[1] or match[2], port=port, tls=match[4] is None)


async def connect(address: Endpoint) -> trio.SocketStream:
    """A connection to ``address``. Raises ``OSError``."""
    if address.path:
        return await trio.open_unix_socket(address.path)
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except UnicodeError as error:  # a label of a name that is empty or too long
        raise OSError(f"no host can have the name {address.host!r}") from error


def readable(stream: trio.SocketStream) -> bool:
    """Whether something has arrived that was not read yet."""
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def bound(listener: trio.SocketListener, tls: bool = True) -> Endpoint:
    """Where ``listener`` listens, with the port that it got."""
    name = listener.socket.getsockname()
    return Endpoint(path=name) if isinstance(name, str) else Endpoint(host=name[0], port=name[1], tls=tls)


AT_ONCE: Final = 64
"""How many connections are taken out of the system's queue in one go."""


class PacedListener(trio.abc.Listener[trio.SocketStream]):
    """Takes the connections that wait at ``listener`` out of the system's queue, in which all would wait behind each
    other for seconds, and lets them in as ``pace`` allows: each costs 1 of it. Up to ``limit`` wait here, where that
    costs next to nothing. Of the network from which the fewest come the oldest is next; if one too many comes, one of
    the network that has the most goes, of which ``refused`` hears.
    """

    def __init__(self, listener: trio.SocketListener, pace: Bucket, limit: int, refused: Callable[[str], None]) -> None:
        self._listener, self._pace, self._refused = listener, pace, refused
        self._door = socket.fromfd(listener.socket.fileno(), listener.socket.family, socket.SOCK_STREAM)
        self._door.setblocking(False)
        self._room = Room(limit)
        self._waiting: dict[UnauthenticatedPeer, socket.socket] = {}

    async def accept(self) -> trio.SocketStream:
        """The next connection. Raises as that of trio's listener does."""
        if not self._waiting:
            first = await self._listener.accept()
            self._admit(socket.socket(fileno=first.socket.detach()))
        while pause := self._pace.wait(trio.current_time()):
            self._take()
            await trio.sleep(pause)
        self._take()
        self._pace.take(1, trio.current_time())
        next_ = self._room.next()
        self._room.take(next_)
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._waiting.pop(next_)))

    def _take(self) -> None:
        with suppress(OSError):  # nobody waits any more; any other reason is met again
            for _ in range(AT_ONCE):
                self._admit(self._door.accept()[0])

    def _admit(self, taken: socket.socket) -> None:
        def drop() -> None:
            self._waiting.pop(peer).close()
            self._refused(peer.source)

        peer = UnauthenticatedPeer(source_of(taken), drop)
        self._waiting[peer] = taken
        self._room.put(peer)

    async def aclose(self) -> None:
        """Close it, and what waits here."""
        self._door.close()
        for taken in self._waiting.values():
            taken.close()
        await self._listener.aclose()


class Sockets:
    """The sockets that a transport listens on, with the files and locks that must go with them."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, int]] = []
        self._listeners: list[trio.SocketListener] = []

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *exc: object) -> None:
        for listener in self._listeners:
            listener.socket.close()
        for path, lock in self._files:
            path.unlink(missing_ok=True)
            os.close(lock)

    async def listen(self, endpoint: Endpoint, key: str) -> list[trio.SocketListener]:
        """Listeners on ``endpoint``. Raises ``TransportError`` that names it and the setting ``key``."""
        try:
            if endpoint.path:
                found = [self._listen_unix(Path(endpoint.path))]
            else:
                found = list(await trio.open_tcp_listeners(endpoint.port, host=endpoint.host))
        except socket.gaierror as error:
            raise TransportError(f"{key}: {endpoint}: no such host: {error.strerror}") from error
        except OSError as error:
            raise TransportError(f"{key}: can't listen on {endpoint}: {_advice(error)}") from error
        self._listeners += found
        return found

    def _listen_unix(self, path: Path) -> trio.SocketListener:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(str(path))
                sock.listen(128)
                sock.setblocking(False)
            except OSError:
                sock.close()
                raise
        except OSError:
            os.close(lock)
            raise
        self._files.append((path, lock))
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _clear(path: Path) -> None:
    """Remove the socket that a dead daemon left at ``path``. Raises ``OSError`` if it is alive, or no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise BlockingIOError(errno.EADDRINUSE, "it is alive")


_ADVICE: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "it is in use by another daemon; stop that one, or choose another address",
    errno.EAGAIN: "it is in use by another daemon; stop that one, or choose another address",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "permission denied",
    errno.ENOENT: "its directory does not exist",
}


def _advice(error: OSError) -> str:
    return _ADVICE.get(error.errno or 0) or error.strerror or str(error)


_NANOSECONDS: Final = 10**9


def seconds_since_boot() -> float:
    """What :func:`~leasekit.runtime.clock.since_boot` gives, in seconds."""
    return since_boot() / _NANOSECONDS


class Stalls(trio.abc.Instrument):
    """Watches trio's loop from :meth:`run` on. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._asleep = self._awake = clock()
        self._stalled = self._stalled_before = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """The loop looks at its sockets."""
        self._asleep = self.clock()
        self._stalled_before = self._stalled
        self._stalled = self._asleep - self._awake

    def after_io_wait(self, timeout: float) -> None:
        """It has looked, and goes on to run the tasks that this has woken."""
        self._awake = self.clock()
        self._stalled += max(0.0, self._awake - self._asleep - timeout)

    def lag(self) -> float:
        """For how many seconds what a task finds now may have been there unseen."""
        # A look during which the process was stopped ends empty, whatever has come: the next one finds it.
        return self._stalled_before + self._stalled + self.clock() - self._awake

    async def run(self, every: Duration) -> None:
        """Watch until cancelled; no look lasts longer than ``every`` milliseconds."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                await trio.sleep(every / SECOND)
        finally:
            trio.lowlevel.remove_instrument(self)


@lru_cache(4096)
def network(address: str) -> str:
    """What one who has ``address`` is likely to have all of: its /24, or its /64 where it is of IPv6."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    return str(ip_network((found, 24 if found.version == 4 else 64), strict=False))


def source_of(connection: socket.socket | trio.socket.SocketType) -> str:
    """The network at the other end (:func:`network`), or the empty text for this machine's own (a Unix socket)."""
    try:
        name = connection.getpeername()
    except OSError:
        return "gone"
    return network(str(name[0])) if isinstance(name, tuple) else ""


CLOSE_WITHIN: Final = 1.0
"""How long, in seconds, closing in good manners may take."""
LINGER_BYTES: Final = 65_536
"""How much is read of one who was refused already."""


class _Socket(trio.abc.Stream):
    """A socket that notes whether a reader had to wait: then all that had come before was read, and the rest came at
    :attr:`empty_at` or later. After :meth:`finish` it is broken for who sends: TLS then does without the goodbye that
    it would send at its close.
    """

    def __init__(self, stream: trio.SocketStream, stalls: Stalls) -> None:
        self.stream = stream
        self.waited = False
        self.empty_at = self._left_at = stalls.clock()
        self._stalls = stalls
        self._finished = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._finished:
            raise trio.BrokenResourceError("all has been said on this connection")
        await self.stream.send_all(data)

    async def finish(self) -> None:
        """Say nothing more."""
        self._finished = True
        await self.stream.send_eof()

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        # Nobody may have looked into the socket for a while, and who sends may have had to wait for that.
        away = self._stalls.clock() - self._left_at
        waits = not readable(self.stream)
        data = await self.stream.receive_some(max_bytes)
        self._left_at = self._stalls.clock()
        if waits:
            self.waited = True
            self.empty_at = max(self.empty_at, self._left_at - self._stalls.lag() - away)
        return data

    async def aclose(self) -> None:
        await self.stream.aclose()


class Wire:
    """One connection, plain at first. All its methods raise ``trio.BrokenResourceError`` when it breaks."""

    def __init__(self, stream: trio.SocketStream, stalls: Stalls) -> None:
        self._socket = _Socket(stream, stalls)
        self._stalls = stalls
        self._stream: trio.abc.Stream = self._socket
        self.encrypted = False
        self.binding = b""
        """What ties the channel's handshake to this connection; empty without TLS."""

    @property
    def age(self) -> float:
        """For how many seconds at most what was read last may have been on this machine."""
        return self._stalls.clock() - self._socket.empty_at

    @property
    def source(self) -> str:
        """The network at the other end (:func:`source_of`)."""
        return source_of(self._socket.stream.socket)

    async def begins_with_tls(self) -> bool:
        """Whether the other side, which speaks first, begins with TLS. Nothing is taken from the stream."""
        try:
            first = await self._socket.stream.socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
        return bool(first) and first[0] == RECORD

    async def secure(self, tls: Tls, context: ssl.SSLContext, *, dialled: bool) -> None:
        """Go over to TLS. Raises ``TlsError``."""
        secured = await tls.handshake(self._socket, context, dialled=dialled)
        self.binding = tls.binding(secured, dialled=dialled)
        self._stream, self.encrypted = secured, True

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        await self._stream.send_all(data)

    async def receive(self, most: int) -> tuple[bytes | bytearray, bool]:
        """What has come, up to ``most`` bytes (nothing: the other side has closed), and whether that had to be waited
        for.
        """
        self._socket.waited = False
        data = await self._stream.receive_some(most)
        return data, self._socket.waited

    async def linger(self) -> None:
        """Say nothing more, and wait a little for the other side to close: what it has not read yet of the last words
        would be lost if the connection was closed while something of it lies here unread.
        """
        left = LINGER_BYTES
        with trio.move_on_after(CLOSE_WITHIN), suppress(trio.BrokenResourceError):
            await self._socket.finish()
            while left > 0 and (data := await self._socket.receive_some(left)):
                left -= len(data)

    async def close(self) -> None:
        """Close it, in good manners if that takes no time."""
        with trio.move_on_after(CLOSE_WITHIN, shield=True):
            await self._stream.aclose()
        await trio.aclose_forcefully(self._socket)


def broken(error: BaseException) -> str:
    """Why a wire broke, in words."""
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other side closed the connection"
    return f"the connection broke: {cause}"
