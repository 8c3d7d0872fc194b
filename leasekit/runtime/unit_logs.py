"""A log file for each unit, which an operator can follow while a driver works on it.

A file is named after its unit, with everything escaped that could lead elsewhere; it is rotated once at
``size_max``, and the oldest files go when there are more than ``files_max``. What a log can't take (the disk is
full) is dropped and counted, never raised: a unit does not fail for want of its log.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from leasekit.core.time import SECOND, Instant

SIZE_MAX: Final = 1024 * 1024
FILES_MAX: Final = 10_000
LINE_MAX: Final = 8 * 1024
TAIL_MAX: Final = 10_000
"""The most lines that :meth:`UnitLogs.tail` returns."""
_STEM_MAX: Final = 100
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^\.")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

Follower = Callable[[str], None]


def stamp(now: Instant) -> str:
    """An instant in Unix milliseconds as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(now / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{now % SECOND:03d}Z"


def file_stem(unit: str) -> str:
    """A file name for any text: different for different texts, without separators, and short."""
    stem = _UNSAFE.sub(lambda found: "".join(f"%{b:02x}" for b in found[0].encode("utf-8", "surrogatepass")), unit)
    if not stem or len(stem) > _STEM_MAX:
        digest = sha256(unit.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        stem = f"{stem[: _STEM_MAX - 20]}%%{digest}"
    return stem


def unit_of(action_unit: str) -> str:
    """The unit's own name: a guest calls its units ``LEASE/UNIT``."""
    return action_unit.rpartition("/")[2] or action_unit


class UnitLogs:
    """The logs of one actor's units, in ``folder``, which is made when there is something to write."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], Instant],
        *,
        size_max: int = SIZE_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self.folder = folder
        self.dropped = 0
        self.last_error = ""
        self._clock = clock
        self._size_max = size_max
        self._files_max = files_max
        self._known: set[str] | None = None
        self._followers: dict[str, list[Follower]] = {}

    def open(self, unit: str, prefix: str) -> UnitLog:
        """A log for one action on ``unit``; every line begins with the time and ``prefix``. Close it after."""
        return UnitLog(self, unit_of(unit), prefix)

    def path(self, unit: str) -> Path:
        """Where the lines of ``unit`` go."""
        return self.folder / f"{file_stem(unit_of(unit))}.log"

    def tail(self, unit: str, lines: int) -> list[str]:
        """The last ``lines`` lines, from before the last rotation too. Raises ``OSError`` if they can't be read."""
        path = self.path(unit)
        kept: deque[str] = deque(maxlen=min(max(lines, 0), TAIL_MAX))
        for name in (_rotated(path), path):
            with suppress(FileNotFoundError), name.open(encoding="utf-8", errors="replace") as file:
                kept.extend(line.rstrip("\n") for line in file)
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

    def _line(self, unit: str, prefix: str, text: str) -> list[str]:
        head = f"{stamp(self._clock())} {prefix}"
        return [
            f"{head}{_CONTROL.sub(lambda c: c[0].encode('unicode_escape').decode(), line)[:LINE_MAX]}"
            for line in text.split("\n")
        ]

    def _publish(self, unit: str, lines: list[str]) -> None:
        for follower in list(self._followers.get(unit, ())):
            for line in lines:
                follower(line)

    def _open_file(self, unit: str) -> tuple[int, int]:
        """A descriptor to append to, and how many bytes may still be written before the file is rotated."""
        path = self.path(unit)
        if self._known is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._known = {file.name for file in self.folder.glob("*.log")}
        if path.name not in self._known:
            self._make_room(self._known)
            self._known.add(path.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        size = os.fstat(descriptor).st_size
        if size < self._size_max:
            return descriptor, self._size_max - size
        os.close(descriptor)
        path.replace(_rotated(path))
        return os.open(path, flags, 0o600), self._size_max

    def _make_room(self, known: set[str]) -> None:
        if len(known) < self._files_max:
            return
        found = sorted(
            (entry.stat().st_mtime_ns, entry.name) for entry in os.scandir(self.folder) if entry.name in known
        )
        for _, name in found[: max(1, self._files_max // 10)]:
            for path in (self.folder / name, _rotated(self.folder / name)):
                path.unlink(missing_ok=True)
            known.discard(name)

    def _failed(self, error: OSError) -> None:
        self.dropped += 1
        self.last_error = f"{self.folder}: {error.strerror}"


class UnitLog:
    """What one action writes to its unit's log. Nothing is opened before the first line."""

    def __init__(self, logs: UnitLogs, unit: str, prefix: str) -> None:
        self._logs = logs
        self._unit = unit
        self._prefix = prefix
        self._descriptor = -1
        self._room = 0

    def write(self, text: str) -> None:
        """Append ``text``, one line of the log for each of its lines; control characters are escaped."""
        lines = self._logs._line(self._unit, self._prefix, text)
        try:
            if self._room <= 0:
                self.close()
            if self._descriptor < 0:
                self._descriptor, self._room = self._logs._open_file(self._unit)
            self._room -= os.write(self._descriptor, ("\n".join(lines) + "\n").encode())
        except OSError as error:
            self._logs._failed(error)
        self._logs._publish(self._unit, lines)

    def close(self) -> None:
        """Let the file go; a later line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _rotated(path: Path) -> Path:
    return path.with_suffix(".log.1")
