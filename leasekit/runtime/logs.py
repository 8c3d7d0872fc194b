"""What a daemon logs: one line per record, for people or as JSON, with actor, lease, unit and peer as fields.

Transitions of leases are in the store, where ``lease history`` and ``lease watch`` find all of them. So they go to
the log as well only where someone looks on: at level ``info`` on a terminal, up to :data:`TRANSITIONS_PER_SECOND`,
and at ``debug`` always, all of them. Elsewhere only those that tell of trouble are logged, which costs a look at
each row.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TextIO

from leasekit.config.instants import dated
from leasekit.core.reasons import read
from leasekit.core.schema import Row
from leasekit.core.time import SECOND
from leasekit.core.words import words
from leasekit.drivers.files import make_private
from leasekit.runtime.unit_logs import stamp

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


def log_to_stream(format_: str, level: str, stream: TextIO | None = None) -> Callable[[], None]:
    """Log to ``stream`` (standard error) from now on; what is returned ends it."""
    stream = stream or sys.stderr
    return _add(logging.StreamHandler(stream), make_formatter(format_, stream), level)


def log_to_file(path: Path, actor: str, format_: str, level: str) -> Callable[[], None]:
    """Log what concerns ``actor`` to ``path`` from now on, which is rotated when large; what is returned ends it.

    Raises ``OSError`` if the file can't be written.
    """
    make_private(path.parent)
    handler = _PrivateFile(
        path, maxBytes=FILE_SIZE_MAX, backupCount=FILES_KEPT, encoding="utf-8", errors="backslashreplace"
    )
    return _add(handler, make_formatter(format_), level, lambda record: _field(record, "actor") == actor)


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
    wanted: Callable[[logging.LogRecord], bool] = lambda record: True,
) -> Callable[[], None]:
    root = logging.getLogger(ROOT)
    handler.setFormatter(formatter)
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


class TransitionLog:
    """Puts transitions into the log, as many as is sensible. ``watched`` says that someone looks on at a terminal."""

    def __init__(self, log: logging.Logger, watched: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._watched = watched
        self._clock = clock
        self._second = 0.0
        self._shown = 0
        self._left_out = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Log rows of the transition log: (at, lease, event, from, to, why)."""
        debug = self._log.isEnabledFor(logging.DEBUG)
        show = debug or (self._watched and self._log.isEnabledFor(logging.INFO))
        for _, lease, event, before, after, reason in rows:
            why = words(read(reason)) if reason else ""
            if event in TROUBLE and not lease:
                self._log.warning("%s", why)
            elif after.startswith("failed") or after == "out":
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
