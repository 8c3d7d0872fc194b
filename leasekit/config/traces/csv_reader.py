"""Signals from CSV files of timestamp and value."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from leasekit.config.instants import parse_instant
from leasekit.config.traces.places import TraceError, is_number, opened, wrong
from leasekit.core.signals import Signal
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant

TimeUnit = Literal["auto", "s", "ms", "iso"]
Gaps = Literal["hold", "zero"]
TIME_UNITS: tuple[TimeUnit, ...] = ("auto", "s", "ms", "iso")
GAPS: tuple[Gaps, ...] = ("hold", "zero")


class _Columns(NamedTuple):
    time: int
    value: int
    unit: TimeUnit
    header: bool


def read_csv(
    path: Path,
    *,
    time: str | int = 0,
    value: str | int = 1,
    unit: TimeUnit = "auto",
    interval: Duration | None = None,
    gaps: Gaps = "hold",
) -> Signal:
    """The signal in a CSV file of timestamps and values (at least 0), each holding until the next.

    ``time`` and ``value`` select columns by name (which needs a header line) or by index from 0. ``unit`` of
    numeric timestamps is ``s`` or ``ms``; ``auto`` means ISO 8601 where it reads as that, ms in a column whose name
    ends in ``_ms``, s otherwise. ``interval`` is the file's own sampling interval (default: its smallest step): the
    last value holds that long, and with ``gaps="zero"`` any value does, with 0 until the next row (as in counts
    that leave out what is 0). Empty lines and lines that begin with ``#`` are skipped.
    Raises :class:`TraceError`, or :class:`TraceMissing` where there is no such file.
    """
    if unit not in TIME_UNITS or gaps not in GAPS:
        raise TraceError(f"{path}: found unit {unit!r}, gaps {gaps!r}; allowed: {TIME_UNITS} and {GAPS}")
    instants, values = array("q"), array("d")
    with opened(path) as text:
        for instant, number in _csv_rows(path, text, time, value, unit):
            instants.append(instant)
            values.append(number)
    if not instants:
        raise TraceError(f"{path}: found no rows, allowed is a CSV file with at least one row of timestamp and value")
    if interval is None:
        interval = min((b - a for a, b in pairwise(instants)), default=1)
    pairs = zip(instants, values, strict=True)
    return Signal(_with_gaps(pairs, interval) if gaps == "zero" else pairs, end=instants[-1] + interval)


def _with_gaps(pairs: Iterable[tuple[Instant, float]], interval: Duration) -> Iterator[tuple[Instant, float]]:
    due: Instant | None = None
    for instant, value in pairs:
        if due is not None and instant > due:
            yield due, 0.0
        yield instant, value
        due = instant + interval


def _csv_rows(
    path: Path, text: TextIO, time: str | int, value: str | int, unit: TimeUnit
) -> Iterator[tuple[Instant, float]]:
    rows = csv.reader(text)
    columns: _Columns | None = None
    previous: Instant | None = None
    try:
        for row in rows:
            if not row or (len(row) == 1 and not row[0].strip()) or row[0].startswith("#"):
                continue
            line = rows.line_num
            if columns is None:
                columns = _csv_columns(path, line, row, time, value, unit)
                if columns.header:
                    continue
            if len(row) <= max(columns.time, columns.value):
                raise wrong(path, line, ",".join(row), f"at least {max(columns.time, columns.value) + 1} columns")
            instant = _csv_instant(path, line, row[columns.time], columns.unit)
            if previous is not None and instant <= previous:
                raise wrong(path, line, row[columns.time], "a timestamp later than the one before it")
            previous = instant
            yield instant, _csv_value(path, line, row[columns.value])
    except csv.Error as error:
        raise TraceError(f"{path}, line {rows.line_num}: not CSV: {error}") from error


def _csv_columns(
    path: Path, line: int, row: Sequence[str], time: str | int, value: str | int, unit: TimeUnit
) -> _Columns:
    """Which columns count, from the first row: a header if none of its cells is a number or a date."""
    names = [cell.strip() for cell in row]
    header = not any(is_number(name) or _is_date(name) for name in names)
    time_index, value_index = (_csv_index(path, line, names, column, header) for column in (time, value))
    if unit == "auto" and header and time_index < len(names) and names[time_index].endswith("_ms"):
        unit = "ms"
    return _Columns(time_index, value_index, unit, header)


def _csv_index(path: Path, line: int, names: Sequence[str], column: str | int, header: bool) -> int:
    if isinstance(column, str):
        if not header:
            raise wrong(path, line, ",".join(names), f"a header line with the column {column!r}")
        if column not in names:
            raise wrong(path, line, ",".join(names), f"a header line with the column {column!r}")
        return names.index(column)
    if not 0 <= column < len(names):
        raise wrong(path, line, ",".join(names), f"a row that has column {column}, counted from 0")
    return column


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _csv_instant(path: Path, line: int, cell: str, unit: TimeUnit) -> Instant:
    text = cell.strip()
    numeric = unit != "iso" and is_number(text)
    if numeric:
        factor = 1 if unit == "ms" else SECOND
        instant = int(text) * factor if text.isdigit() else _rounded(float(text) * factor)
    elif unit in ("auto", "iso") and _is_date(text):
        instant = parse_instant(text)
    else:
        instant = -1
    if not 0 <= instant <= INSTANT_MAX:
        kind = {"s": "seconds", "ms": "milliseconds", "iso": "ISO 8601", "auto": "seconds or ISO 8601"}[unit]
        raise wrong(path, line, cell, f"a timestamp in {kind}, not before 1970")
    return instant


def _rounded(number: float) -> int:
    return round(number) if math.isfinite(number) else -1


def _csv_value(path: Path, line: int, cell: str) -> float:
    number = float(cell) if is_number(cell.strip()) else math.nan
    if not 0 <= number < math.inf:
        raise wrong(path, line, cell, "a value that is a number of at least 0")
    return number
