"""What drivers say of each unit, which an operator can follow while a driver works on it.

Units share :data:`FILES` files, each line with its unit's name, for a file of its own costs a unit far more than a line
does. A name always goes to the same file, with everything escaped that could be taken for something else. A file is
rotated once at ``size_max``. What a log can't take (the disk is full) is dropped and counted, never raised: a unit does
not fail for want of its log.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from leasekit.core.time import SECOND, Instant
from leasekit.drivers.files import make_private

FILES: Final = 64
"""Over how many files the units are spread."""
SIZE_MAX: Final = 2 * 1024 * 1024
LINE_MAX: Final = 8 * 1024
TAIL_MAX: Final = 10_000
"""The most lines that :meth:`UnitLogs.tail` returns."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

Follower = Callable[[str], None]


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stamp(now: Instant) -> str:
    """An instant in Unix milliseconds as ISO 8601 in UTC, with milliseconds."""
    return f"{_second(now // SECOND)}.{now % SECOND:03d}Z"


STAMP_LENGTH: Final = len(stamp(0))


def unit_word(unit: str) -> str:
    """A unit's name as one word without spaces: different for different names."""
    return _UNSAFE.sub(_escape, unit) or "%"


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def unit_of(action_unit: str) -> str:
    """The unit's own name: a guest calls its units ``LEASE/UNIT``."""
    return action_unit.rpartition("/")[2] or action_unit


class UnitLogs:
    """The logs of one actor's units, in ``folder``, which is made when there is something to write."""

    def __init__(self, folder: Path, clock: Callable[[], Instant], *, size_max: int = SIZE_MAX) -> None:
        self.folder = folder
        self.dropped = 0
        self.last_error = ""
        self._clock = clock
        self._size_max = size_max
        self._followers: dict[str, list[Follower]] = {}

    def open(self, unit: str, prefix: str) -> UnitLog:
        """A log for one action on ``unit``; every line begins with the time and ``prefix``."""
        return UnitLog(self, unit_of(unit), prefix)

    def path(self, unit: str) -> Path:
        """Where the lines of ``unit`` go, among those of others."""
        return Path(self._path(unit_word(unit_of(unit))))

    def _path(self, word: str) -> str:
        return f"{self.folder}/units-{crc32(word.encode()) % FILES:02}.log"

    def tail(self, unit: str, lines: int) -> list[str]:
        """The last ``lines`` lines, from before the last rotation too. Raises ``OSError`` if they can't be read."""
        word = unit_word(unit_of(unit))
        path = Path(self._path(word))
        kept: deque[str] = deque(maxlen=min(max(lines, 0), TAIL_MAX))
        for name in (_rotated(path), path):
            with suppress(FileNotFoundError):
                kept.extend(_lines_of(name.read_bytes(), word))
        return list(kept)

    def follow(self, unit: str, follower: Follower) -> Callable[[], None]:
        """Call ``follower`` with each line from now on; what is returned ends it."""
        name = unit_of(unit)
        followers = self._followers.setdefault(name, [])
        followers.append(follower)

        def end() -> None:
            followers.remove(follower)
            if not followers and self._followers.get(name) is followers:
                del self._followers[name]

        return end

    def write(self, unit: str, prefix: str, text: str) -> None:
        """Append ``text`` to the log of ``unit`` (its own name), one line for each of its lines."""
        at, word = stamp(self._clock()), unit_word(unit)
        lines = [f"{prefix}{_printable(line)[:LINE_MAX]}" for line in text.split("\n")]
        try:
            self._append(self._path(word), "".join([f"{at} {word} {line}\n" for line in lines]).encode())
        except OSError as error:
            self.dropped += 1
            self.last_error = f"{self.folder}: {error.strerror}"
        for follower in list(self._followers.get(unit, ())):
            for line in lines:
                follower(f"{at} {line}")

    def _append(self, path: str, data: bytes) -> None:
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            make_private(self.folder)
            descriptor = os.open(path, _FLAGS, 0o600)
        try:
            os.write(descriptor, data)
            full = os.fstat(descriptor).st_size >= self._size_max
        finally:
            os.close(descriptor)
        if full:
            Path(path).replace(_rotated(Path(path)))


class UnitLog:
    """What one action writes to its unit's log."""

    def __init__(self, logs: UnitLogs, unit: str, prefix: str) -> None:
        self._logs = logs
        self._unit = unit
        self._prefix = prefix

    def write(self, text: str) -> None:
        """Append ``text``, one line of the log for each of its lines; control characters are escaped."""
        self._logs.write(self._unit, self._prefix, text)


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line)


def _lines_of(data: bytes, word: str) -> Iterator[str]:
    """The lines of one unit, without its name. Only what may be one of them is looked at: files are long."""
    name = f" {word} ".encode()
    found = data.find(name)
    while found >= 0:
        start, end = data.rfind(b"\n", 0, found) + 1, data.find(b"\n", found)
        if found - start == STAMP_LENGTH and end >= 0:
            yield (data[start:found] + data[found + len(name) - 1 : end]).decode("utf-8", "replace")
        found = data.find(name, max(end, found + 1))


def _rotated(path: Path) -> Path:
    return path.with_suffix(".log.1")
