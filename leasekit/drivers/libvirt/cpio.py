"""Archives in the format that Linux unpacks into its first root file system: cpio, "newc".

The kernel unpacks several that stand one after the other, each from a multiple of 4 bytes on, and what comes later
wins: so data can be added to an initramfs without opening it (Documentation/driver-api/early-userspace in Linux).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable

import attrs


@attrs.frozen
class CpioEntry:
    """A file, directory, device or link. ``mode`` has the type bits; ``device`` is (major, minor)."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str, mode: int = 0o755) -> CpioEntry:
    """A directory."""
    return CpioEntry(name, stat.S_IFDIR | mode)


def file(name: str, data: bytes, mode: int = 0o644) -> CpioEntry:
    """A file."""
    return CpioEntry(name, stat.S_IFREG | mode, data)


def link(name: str, target: str) -> CpioEntry:
    """A symbolic link."""
    return CpioEntry(name, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[CpioEntry]) -> bytes:
    """The archive, owned by root, dated 0: the same entries make the same bytes."""
    made = bytearray()
    for number, entry in enumerate(entries, 1):
        made += _record(number, entry)
    made += _record(0, CpioEntry("TRAILER!!!", 0))
    made += bytes(-len(made) % 512)
    return bytes(made)


def _record(number: int, entry: CpioEntry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + entry.data + bytes(-len(entry.data) % 4)
