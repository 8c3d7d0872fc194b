"""What a connection's bytes go through: a socket, and TLS over it or not."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final

import trio

from leasekit.runtime.frames import readable
from leasekit.runtime.stalls import Stalls
from leasekit.runtime.tls import RECORD, Tls, TlsError

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
        """The machine at the other end, or the empty text for this one's own (a Unix socket)."""
        try:
            name = self._socket.stream.socket.getpeername()
        except OSError:
            return "gone"
        return str(name[0]) if isinstance(name, tuple) else ""

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


__all__ = ["CLOSE_WITHIN", "TlsError", "Wire", "broken"]
