"""Where frames travel: addresses, the sockets that listen on them, and connections to them."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from leasekit.core.errors import LeasekitError

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
