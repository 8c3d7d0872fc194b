"""A workload file: requests as CSV, for ``leasekit plan timetable`` and ``leasekit mapper compare``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.time import INSTANT_MAX, SECOND, Instant

COLUMNS: Final = ("submit_s", "earliest_start_s", "deadline_s", "duration_s", "nodes", "kind")
KINDS: Final[Mapping[str, str]] = {
    "ar": "advance reservation: at exactly earliest_start_s, refused if it does not fit",
    "im": "immediate: at submission, or never",
    "be": "best effort: as early as possible, done by deadline_s (empty: no limit)",
}


@attrs.frozen(kw_only=True)
class Request:
    """One row of a workload; instants and durations in milliseconds. ``latest`` is the latest start."""

    id: str
    submit: Instant
    start: Instant
    latest: Instant
    duration: int
    nodes: int
    kind: str


def read_workload(file: Path) -> list[Request]:
    """The requests of a workload file, in its order. Raises ``LeasekitError`` that names file, line, column, and
    what is allowed.
    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines)
            header = next(rows, [])
            if tuple(header) != COLUMNS:
                raise LeasekitError(f"{file}: line 1: found {','.join(header)!r:.120}, expected {','.join(COLUMNS)}")
            return [_request(file, rows.line_num, row) for row in rows if row]
    except OSError as error:
        raise LeasekitError(f"{file}: can't be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise LeasekitError(f"{file}: can't be read as a workload: {error}") from error


def _request(file: Path, line: int, row: Sequence[str]) -> Request:
    def number(column: int, least: int) -> int:
        text = row[column]
        value = float(text) if text.replace(".", "", 1).isdecimal() else -1.0
        if value < least:
            raise LeasekitError(
                f"{file}: line {line}: {COLUMNS[column]}: found {text!r:.40}, expected a number of at least {least}"
            )
        return round(value * (1 if column == 4 else SECOND))

    if len(row) != len(COLUMNS):
        raise LeasekitError(
            f"{file}: line {line}: found {len(row)} columns, expected {len(COLUMNS)}: {','.join(COLUMNS)}"
        )
    kind = row[5]
    if kind not in KINDS:
        raise LeasekitError(f"{file}: line {line}: kind: found {kind!r:.40}, allowed are {', '.join(KINDS)}")
    submit, start, duration, nodes = number(0, 0), number(1, 0), number(3, 0), number(4, 1)
    if duration == 0:
        raise LeasekitError(f"{file}: line {line}: duration_s: found {row[3]!r}, expected more than 0")
    if kind == "be":
        latest = number(2, 0) - duration if row[2] else INSTANT_MAX
        if latest < max(start, submit):
            raise LeasekitError(f"{file}: line {line}: deadline_s: found {row[2]}, before it could be done")
    else:
        latest = start
    return Request(
        id=str(line - 1), submit=submit, start=max(start, submit), latest=latest, duration=duration, nodes=nodes,
        kind=kind,
    )  # fmt: skip
