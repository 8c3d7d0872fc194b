"""Logs: what drivers say of each unit, which an operator can follow while a driver works on it, and the daemon's own.

Units share :data:`FILES` files, each line with its unit's name, for a file of its own costs a unit far more than a line
does. A name always goes to the same file, with everything escaped that could be taken for something else. A file is
rotated once at ``size_max``. What a log can't take (the disk is full) is dropped and counted, never raised: a unit does
not fail for want of its log.

A daemon logs one line per record, for people or as JSON, with actor, lease, unit and peer as fields. Transitions of
leases are in the store, where ``lease history`` and ``lease watch`` find all of them. So they go to
the log as well only where someone looks on: at level ``info`` on a terminal, up to :data:`TRANSITIONS_PER_SECOND`,
and at ``debug`` always, all of them. Elsewhere only those that tell of trouble are logged, which costs a look at
each row.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TextIO
from zlib import crc32

import attrs

from leasekit.config.instants import dated
from leasekit.core.reasons import read, words
from leasekit.core.schema import Row
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


@attrs.define(eq=False)
class UnitLogs:
    """The logs of one actor's units, in ``folder``, which is made when there is something to write."""

    folder: Path
    _clock: Callable[[], Instant]
    _size_max: int = attrs.field(default=SIZE_MAX, kw_only=True)
    dropped: int = attrs.field(init=False, default=0)
    last_error: str = attrs.field(init=False, default="")
    _followers: dict[str, list[Follower]] = attrs.field(init=False, factory=dict)

    def open(self, unit: str, prefix: str) -> Follower:
        """What writes a text to the log of ``unit``, one line of the log for each of its lines; every line begins with
        the time and ``prefix``, and control characters are escaped.
        """
        return partial(self.write, unit_of(unit), prefix)

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


ACTOR: Final[ContextVar[str]] = ContextVar("leasekit_actor", default="")
"""The actor that the current task works for; set by the daemon, added to every record."""
FIELDS: Final = ("actor", "lease", "unit", "peer")
TRANSITIONS_PER_SECOND: Final = 50
"""How many transitions are shown on a terminal in a second; of further ones only the number is."""
FILE_SIZE_MAX: Final = 10 * 1024 * 1024
FILES_KEPT: Final = 3
ROOT: Final = "leasekit"

TROUBLE: Final = frozenset(
    {"mapper", "complaint", "report", "overdelegation", "returned", "contradiction", "clock_accepted"}
)
"""What an actor notes, of no lease, that its operator ought to hear of."""

_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def _field(record: logging.LogRecord, name: str) -> str:
    value = getattr(record, name, "")
    return value if isinstance(value, str) else ""


def _tag(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass, and writes down whose record it is."""
    if not hasattr(record, "actor"):
        record.actor = ACTOR.get()
    return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``at``, ``level``, ``logger``, ``message``, the fields that are set, and
    ``traceback``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """As the base class."""
        line: dict[str, Any] = {
            "at": stamp(int(record.created * SECOND)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name in FIELDS if (value := _field(record, name)))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class HumanFormatter(logging.Formatter):
    """``2026-11-21 04:18:29.123 INFO site: message (lease=..., peer=...)``; a traceback follows on lines of its own.

    Instants that actors speak of are dates.
    """

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """As the base class."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        actor = _field(record, "actor")
        head = f"{when}.{int(record.msecs):03d} {level} {f'{actor}: ' if actor else ''}"
        fields = ", ".join(f"{name}={value}" for name in FIELDS[1:] if (value := _field(record, name)))
        said = dated(record.getMessage())
        message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)
        text = f"{head}{message}{f' ({fields})' if fields else ''}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def make_formatter(format_: str, stream: TextIO | None = None) -> logging.Formatter:
    """The formatter called ``format_`` (one of :data:`FORMATS`), in colour where ``stream`` is a terminal."""
    if format_ == "json":
        return JsonFormatter()
    return HumanFormatter(stream is not None and stream.isatty())


def log_to_stream(format_: str, level: str, actor: str = "", stream: TextIO | None = None) -> Callable[[], None]:
    """Log to ``stream`` (standard error) from now on, by the level of ``actor``; what is returned ends it."""
    stream = stream or sys.stderr
    return _add(logging.StreamHandler(stream), make_formatter(format_, stream), level, actor)


def log_to_file(path: Path, actor: str, format_: str, level: str) -> Callable[[], None]:
    """Log what concerns ``actor`` to ``path`` from now on, which is rotated when large; what is returned ends it.

    Raises ``OSError`` if the file can't be written.
    """
    make_private(path.parent)
    handler = _PrivateFile(
        path, maxBytes=FILE_SIZE_MAX, backupCount=FILES_KEPT, encoding="utf-8", errors="backslashreplace"
    )
    return _add(handler, make_formatter(format_), level, actor, lambda record: _field(record, "actor") == actor)


def set_level(actor: str, level: str) -> None:
    """Where the level of ``actor`` counts it is this one from now on."""
    root = logging.getLogger(ROOT)
    for handler in root.handlers:
        if handler.name == actor:
            handler.setLevel(level.upper())
    root.setLevel(min((handler.level for handler in root.handlers), default=root.level))


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A file, and those that it was rotated to, for their owner alone."""

    def _open(self) -> Any:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=opener)


def _add(
    handler: logging.Handler,
    formatter: logging.Formatter,
    level: str,
    actor: str,
    wanted: Callable[[logging.LogRecord], bool] = lambda record: True,
) -> Callable[[], None]:
    root = logging.getLogger(ROOT)
    handler.setFormatter(formatter)
    handler.name = actor
    handler.setLevel(level.upper())
    handler.addFilter(lambda record: _tag(record) and wanted(record))
    root.addHandler(handler)
    before = root.level
    root.setLevel(min(before or logging.CRITICAL, handler.level))

    def remove() -> None:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()

    return remove


SELDOM_EVERY: Final = 60.0
SELDOM_LINES: Final = 5
"""So many lines about one subject are logged in :data:`SELDOM_EVERY` seconds; of further ones only the number is."""
SUBJECTS_MAX: Final = 1000
"""Of how many subjects that is known at once; the others share what one has."""


@attrs.define(eq=False)
class Seldom:
    """What others bring about is logged, but nobody can fill a log, and so have it rotated away, by that."""

    _clock: Callable[[], float] = time.monotonic
    _began: dict[str, float] = attrs.field(init=False, factory=dict)
    _counts: dict[str, int] = attrs.field(init=False, factory=dict)

    def note(self, subject: str) -> str | None:
        """What is to be added to a line about ``subject``: how many were left out before it. None: leave it out."""
        now, left = self._clock(), 0
        if subject not in self._began and len(self._began) >= SUBJECTS_MAX:
            self._forget(now)
            subject = subject if len(self._began) < SUBJECTS_MAX else ""
        if now - self._began.get(subject, -SELDOM_EVERY) >= SELDOM_EVERY:
            left = self._counts.get(subject, 0) - SELDOM_LINES
            self._began[subject], self._counts[subject] = now, 0
        self._counts[subject] += 1
        if self._counts[subject] > SELDOM_LINES:
            return None
        return f" (and {left} more like it, which were not logged)" if left > 0 else ""

    def _forget(self, now: float) -> None:
        for subject in [one for one, began in self._began.items() if now - began >= SELDOM_EVERY]:
            del self._began[subject], self._counts[subject]


@attrs.define(eq=False)
class TransitionLog:
    """Puts transitions into the log, as many as is sensible. ``watched`` says that someone looks on at a terminal."""

    _log: logging.Logger
    _watched: bool = False
    _clock: Callable[[], float] = time.monotonic
    _second: float = attrs.field(init=False, default=0.0)
    _shown: int = attrs.field(init=False, default=0)
    _left_out: int = attrs.field(init=False, default=0)
    _failures: Seldom = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._failures = Seldom(self._clock)

    def write(self, rows: Sequence[Row]) -> None:
        """Log rows of the transition log: (at, lease, event, from, to, why)."""
        debug = self._log.isEnabledFor(logging.DEBUG)
        show = debug or (self._watched and self._log.isEnabledFor(logging.INFO))
        for _, lease, event, before, after, reason in rows:
            why = words(read(reason)) if reason else ""
            if event in TROUBLE and not lease:
                self._log.warning("%s", why)
            elif after.startswith("failed"):
                # Ids of leases begin with the tag of their holder's key: each holder has lines of its own.
                if (more := self._failures.note(lease.partition("-")[0])) is not None:
                    self._log.warning("%s: %s: %s%s", event, after, why, more, extra={"lease": lease})
            elif after == "out":
                self._log.warning("%s: %s: %s", event, after, why, extra={"lease": lease})
            elif show and (debug or self._may_show()):
                level = logging.INFO if self._watched else logging.DEBUG
                arrow = f"{before} -> {after}" if before else after
                self._log.log(level, "%s: %s%s", event, arrow, f": {why}" if why else "", extra={"lease": lease})

    def _may_show(self) -> bool:
        now = self._clock()
        if now - self._second >= 1:
            if self._left_out:
                self._log.info("... and %d further transitions", self._left_out)
            self._second, self._shown, self._left_out = now, 0, 0
        self._shown += 1
        if self._shown <= TRANSITIONS_PER_SECOND:
            return True
        self._left_out += 1
        return False
