"""The frames of control sockets: a length (4 bytes, big-endian) and msgpack of that length, which holds a map."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import msgpack

from leasekit.core.errors import LeasekitError

MEDIA_TYPE: Final = "application/vnd.leasekit.frames"
"""What frames are called over HTTP."""
LENGTH: Final = Struct(">I")
REQUEST_MAX: Final = 2 * 1024 * 1024
"""The longest request, in bytes."""
ANSWER_MAX: Final = 256 * 1024 * 1024
"""The longest answer, in bytes."""


class FrameError(LeasekitError):
    """Bytes that are no frame of a control socket."""


def pack(value: Any, plain: Callable[[Any], Any] | None = None) -> bytes:
    """A frame that holds ``value``, of which ``plain`` makes data what msgpack doesn't know. Raises ``FrameError`` if
    it can't be said.
    """
    try:
        body: bytes = msgpack.packb(value, default=plain)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise FrameError(f"can't be sent: {error}") from error
    return LENGTH.pack(len(body)) + body


def length(head: bytes | bytearray, limit: int) -> int:
    """The length that a frame's head gives. Raises ``FrameError`` if it is more than ``limit``."""
    (size,) = LENGTH.unpack(head)
    if size > limit:
        raise FrameError(f"found a frame of {size} bytes, allowed are at most {limit}")
    return int(size)


def unpack(body: bytes) -> dict[str, Any]:
    """The map in a frame's body. Raises ``FrameError``."""
    try:
        value = msgpack.unpackb(body, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(f"found a frame that is not msgpack: {error or 'malformed'}") from None
    if not isinstance(value, dict):
        raise FrameError(f"found a frame that holds {type(value).__name__}, expected a map")
    return value


class FrameBuffer:
    """What has come of a stream of frames, each of at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """More has come."""
        self._bytes += data

    def take(self) -> dict[str, Any] | None:
        """The map in the next frame; None if it has yet to come. Raises ``FrameError``."""
        body = self._body()
        return None if body is None else unpack(body)

    def skip(self) -> None:
        """Leave out the frames that are whole. Raises ``FrameError``."""
        while self._body() is not None:
            pass

    def _body(self) -> bytes | None:
        if len(self._bytes) < LENGTH.size:
            return None
        end = LENGTH.size + length(self._bytes[: LENGTH.size], self._limit)
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[LENGTH.size : end])
        del self._bytes[:end]
        return body
