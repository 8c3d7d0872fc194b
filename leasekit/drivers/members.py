"""The guest's side of the process driver: who has joined, and how to ask a unit who it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from leasekit.core.drivers import DriverError
from leasekit.core.properties import Properties
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.files import read_table, write_whole
from leasekit.drivers.names import one_line

ANSWER_MAX: Final = 16 * 1024 * 1024
"""The longest answer of a unit that is read, in bytes: a full property list fits."""


class MembersFile:
    """The units that have joined, by name, in a JSON file that the guest's application may read at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, member: Mapping[str, Any]) -> None:
        """Adds or replaces a member. Raises ``DriverError`` naming the file."""
        members = read_table(self.path) or {}
        if members.get(name) != member:
            write_whole(self.path, {**members, name: member})

    def remove(self, name: str) -> None:
        """Removes a member, if it is one. Raises ``DriverError`` naming the file."""
        members = read_table(self.path) or {}
        if members.pop(name, None) is not None:
            write_whole(self.path, members)

    def names(self) -> list[str]:
        """All members, in order of their names. Raises ``DriverError`` naming the file."""
        return sorted(read_table(self.path) or {})


def unit_address(properties: Properties) -> tuple[str, int]:
    """Where a unit serves, by its properties ``host`` and ``port``. Raises ``DriverError``, not worth a retry."""
    host, port = properties.get("host", ""), properties.get("port", "")
    if not host or not host.isascii() or not host.isprintable() or len(host) > 253:
        raise DriverError(f"unit property host: found {host[:80]!r}, expected a host name or address", retry=False)
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise DriverError(f"unit property port: found {port[:80]!r}, expected a number from 1 to 65535", retry=False)
    return host, int(port)


async def connect(address: tuple[str, int], timeout: Duration) -> trio.SocketStream:
    """A connection to a unit. Raises ``DriverError`` when there is none within ``timeout`` ms."""
    host, port = address
    with trio.move_on_after(timeout / SECOND):
        try:
            return await trio.open_tcp_stream(host, port)
        except OSError as error:
            causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else [error]
            reason = one_line(", ".join(str(cause) for cause in causes))
            raise DriverError(f"can't reach the unit at {host}:{port}: {reason}") from error
    raise DriverError(f"can't reach the unit at {host}:{port}: no answer within {timeout} ms")


async def ask(address: tuple[str, int], line: str, timeout: Duration) -> dict[str, Any]:
    """A unit's answer to one line of the protocol of ``process.unit``. Raises ``DriverError``."""
    host, port = address
    stream = await connect(address, timeout)
    received = bytearray()
    async with stream:
        with trio.move_on_after(timeout / SECOND) as limit:
            try:
                await stream.send_all(f"{line}\n".encode())
                while not received.endswith(b"\n") and len(received) <= ANSWER_MAX:
                    piece = await stream.receive_some()
                    if not piece:
                        break
                    received += piece
            except trio.BrokenResourceError as error:
                raise DriverError(f"the unit at {host}:{port} broke the connection") from error
    if limit.cancelled_caught:
        raise DriverError(f"the unit at {host}:{port} did not answer {line!r} within {timeout} ms")
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError) as error:
        begin = one_line(received[:200].decode("utf-8", "replace"), 60)
        raise DriverError(f"the unit at {host}:{port} answered {line!r} by {begin!r}, which is no JSON") from error
    if not isinstance(answer, dict) or "error" in answer:
        raise DriverError(f"the unit at {host}:{port} answered {line!r} by {one_line(repr(answer), 100)}")
    return answer
