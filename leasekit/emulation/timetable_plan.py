"""A workload file, for ``leasekit plan timetable`` and ``leasekit mapper compare``, and what the first makes of it.

The file is CSV with a request in each line (submit, earliest start, deadline, duration, nodes, kind). To plan is to run
the requests through a broker's mapper: guests ask a broker for them as they are submitted, and one site has all
``nodes`` (:mod:`leasekit.emulation.compare.drive`).
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.time import INSTANT_MAX, SECOND, Instant
from leasekit.emulation.compare.drive import REFUSED, DriveOutcome, drive
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.compare.works import BEST_EFFORT, Work, Workload, in_order
from leasekit.emulation.mapper_faults import Tell
from leasekit.emulation.metrics import BOUND
from leasekit.emulation.outputs import write_rows
from leasekit.policies.registry import make_mapper

COLUMNS: Final = ("submit_s", "earliest_start_s", "deadline_s", "duration_s", "nodes", "kind")
SUBMIT, START, DEADLINE, DURATION, NODES, KIND = range(len(COLUMNS))
NODES_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?")
KINDS: Final[Mapping[str, str]] = {
    "ar": "advance reservation: at exactly earliest_start_s, refused if it does not fit",
    "im": "immediate: at submission, or never",
    "be": "best effort: as early as possible, done by deadline_s (empty: no limit)",
}


class WorkloadError(LeasekitError):
    """A workload that can't be used; the text names file, line and column, what was found and what is allowed."""


def read_workload(file: Path) -> list[Work]:
    """The work of a workload file, in its order. Raises :class:`WorkloadError`."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return parse_workload(lines, str(file))
    except OSError as error:
        raise WorkloadError(f"{file}: can't be read: {error.strerror or error}") from error


def from_file(file: Path) -> Workload:
    """The work of a workload file as it is submitted. Raises ``LeasekitError``."""
    works = read_workload(file)
    if not works:
        raise LeasekitError(f"{file}: found no requests, expected at least one")
    return Workload(name=file.name, works=in_order(works))


def parse_workload(lines: Iterable[str], name: str) -> list[Work]:
    """The work in the lines of a workload, called ``name`` in messages. Raises :class:`WorkloadError`."""
    rows = csv.reader(lines)
    try:
        header = next(rows, [])
        if tuple(header) != COLUMNS:
            raise WorkloadError(f"{name}: line 1: found {','.join(header)!r:.120}, expected {','.join(COLUMNS)}")
        return [_Row(name, rows.line_num, row).work() for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"{name}: can't be read as a workload: {error}") from error


class _Row:
    """One line of a workload, of which each column is checked as it is read."""

    def __init__(self, name: str, line: int, row: Sequence[str]) -> None:
        self._line, self._where, self._row = line, f"{name}: line {line}", row

    def work(self) -> Work:
        """The work that it is, which takes all of its time. Raises :class:`WorkloadError`."""
        found = len(self._row)
        if found != len(COLUMNS):
            raise WorkloadError(f"{self._where}: found {found} columns, expected {len(COLUMNS)}: {','.join(COLUMNS)}")
        kind = self._row[KIND]
        if kind not in KINDS:
            raise self._wrong(KIND, f"one of {', '.join(KINDS)}")
        submit, start, duration = self._time(SUBMIT), self._time(START), self._time(DURATION, 1)
        nodes = self._nodes()
        if kind == "ar" and start < submit:
            raise self._wrong(START, f"a start from {in_seconds(submit)} on, when the reservation is submitted")
        earliest = max(start, submit)
        if earliest + duration > INSTANT_MAX:
            raise self._wrong(DURATION, f"an end of at most {in_seconds(INSTANT_MAX)}")
        latest = start
        if kind == "be":
            latest = (self._time(DEADLINE) if self._row[DEADLINE] else INSTANT_MAX) - duration
            if latest < earliest:
                least = in_seconds(earliest + duration)
                raise self._wrong(DEADLINE, f"{least} or more, its earliest start and its duration, or nothing")
        id_ = str(self._line - 1)
        return Work(id_, "workload", submit, earliest, latest, duration, duration, nodes, kind)

    def _time(self, column: int, least: int = 0) -> int:
        value = round(self._number(column) * SECOND)
        if not least <= value <= INSTANT_MAX:
            raise self._wrong(column, f"a number of seconds from {in_seconds(least)} to {in_seconds(INSTANT_MAX)}")
        return value

    def _nodes(self) -> int:
        value = self._number(NODES)
        if not 1 <= value <= NODES_MAX or value % 1:
            raise self._wrong(NODES, f"a whole number from 1 to {NODES_MAX}")
        return int(value)

    def _number(self, column: int) -> Decimal:
        """The number in a column; -1, which none may be, for what is no number."""
        text = self._row[column]
        return Decimal(text) if _NUMBER.fullmatch(text) else Decimal(-1)

    def _wrong(self, column: int, allowed: str) -> WorkloadError:
        return WorkloadError(f"{self._where}: {COLUMNS[column]}: found {self._row[column]!r:.40}, expected {allowed}")


def in_seconds(instant: Instant) -> str:
    """An instant or a duration as a workload file has it: exactly, without an exponent."""
    return f"{Decimal(instant) / SECOND:f}"


@attrs.frozen(kw_only=True)
class PlannedAnswer:
    """What became of a request: its start and its end, or no start and the reason. Work that was suspended in between
    ends later than its start and duration say.
    """

    start: Instant | None
    reason: str = ""
    end: Instant = 0


def plan(
    works: Sequence[Work],
    nodes: int,
    policy: str,
    settings: Mapping[str, Any] | None = None,
    saving: Saving | None = None,
    tell: Tell | None = None,
) -> tuple[dict[str, Any], list[PlannedAnswer]]:
    """Run a workload; returns the summary and an answer for each request, in their order. ``tell`` hears at once what
    the mapper does wrong.

    Raises ``LeasekitError`` for a policy that doesn't exist, or wrong settings of it.
    """
    mapper = make_mapper(policy, "broker", settings or {}, "policy", {})
    order = sorted(range(len(works)), key=lambda place: works[place].submit)
    begin = time.perf_counter()
    outcome = drive([works[place] for place in order], nodes, mapper, saving=saving, tell=tell)
    elapsed = time.perf_counter() - begin
    answers = _answers(works, order, outcome)
    summary = _summary(works, answers, nodes, policy)
    return {
        **summary,
        "suspensions": outcome.suspensions,
        "mapper_errors": dict(outcome.mapper_errors),
        "decisions_per_s": round(len(works) / elapsed, 1),
    }, answers


def _answers(works: Sequence[Work], order: Sequence[int], outcome: DriveOutcome) -> list[PlannedAnswer]:
    answers = [PlannedAnswer(start=None)] * len(works)
    for number, place in enumerate(order):
        start = outcome.starts[number]
        if start == REFUSED:
            answers[place] = PlannedAnswer(start=None, reason=outcome.reasons[number])
        else:
            stretches = outcome.suspended.get(number)
            end = stretches[-1].end if stretches else start + works[place].run
            answers[place] = PlannedAnswer(start=start, end=end)
    return answers


def _summary(works: Sequence[Work], answers: Sequence[PlannedAnswer], nodes: int, policy: str) -> dict[str, Any]:
    kinds: dict[str, dict[str, int]] = {kind: {"accepted": 0, "refused": 0} for kind in KINDS}
    waits, slowdowns = [], []
    used, ends = 0, [0]
    for work, answer in zip(works, answers, strict=True):
        kinds[work.kind]["refused" if answer.start is None else "accepted"] += 1
        if answer.start is None:
            continue
        used += work.units * work.run
        ends.append(answer.end)
        if work.kind == BEST_EFFORT:
            waits.append((answer.start - work.submit) / SECOND)
            slowdowns.append(max(1.0, (answer.end - work.submit) / max(work.run, BOUND)))
    first = min((work.submit for work in works), default=0)
    makespan = max(ends) - first
    return {
        "policy": policy,
        "nodes": nodes,
        "requests": len(works),
        "kinds": kinds,
        "mean_wait_s": round(sum(waits) / len(waits), 3) if waits else None,
        "mean_bounded_slowdown": round(sum(slowdowns) / len(slowdowns), 4) if slowdowns else None,
        "utilisation": round(used / (nodes * makespan), 6) if makespan > 0 else None,
        "makespan_s": makespan / SECOND,
    }


def write_answers(path: Path, answers: Sequence[PlannedAnswer]) -> None:
    """A CSV row for each request, in the order of the input: start_s (empty: refused) and the reason."""
    rows = (["" if answer.start is None else in_seconds(answer.start), answer.reason] for answer in answers)
    write_rows(path, ["start_s", "reason"], rows)
