"""``leasekit plan timetable``: a workload of reservations run through a broker's mapper, without the actors around
it.

The workload is a CSV file of requests (submit, earliest start, deadline, duration, nodes, kind); the mapper sees
them as a broker would show them, turn by turn as they are submitted, over one timetable of ``nodes``. What it
grants is checked as a broker checks it: nothing is overbooked, nothing is granted that was not asked for.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import BrokerCycle, BrokerMapper, Defer, Grant, PendingRequest, Reject, Source, Wake
from leasekit.core.time import INSTANT_MAX, SECOND, Instant, Term
from leasekit.core.timetable import Shortfall, Timetable
from leasekit.policies.registry import make_mapper

COLUMNS: Final = ("submit_s", "earliest_start_s", "deadline_s", "duration_s", "nodes", "kind")
KINDS: Final[Mapping[str, str]] = {
    "ar": "advance reservation: at exactly earliest_start_s, refused if it does not fit",
    "im": "immediate: at submission, or never",
    "be": "best effort: as early as possible, done by deadline_s (empty: no limit)",
}
BOUND: Final = 10 * SECOND
"""Runs shorter than this count as this long in a bounded slowdown, as the field does."""
_NODE, _SITE = "node", "nodes"


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


@attrs.frozen(kw_only=True)
class Answer:
    """What became of a request: its start, or None and the reason."""

    start: Instant | None
    reason: str = ""


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
    except (OSError, UnicodeDecodeError, csv.Error) as error:
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


class _Run:
    """The workload on its way through the mapper."""

    def __init__(self, mapper: BrokerMapper, nodes: int) -> None:
        self.answers: dict[str, Answer] = {}
        self.decisions = 0
        self._mapper = mapper
        self._nodes = nodes
        self._table = Timetable(nodes)
        self._waiting: dict[str, PendingRequest] = {}
        self._deferred: dict[str, str] = {}

    def turn(self, now: Instant, arrived: Sequence[Request]) -> Instant | None:
        """One turn of the mapper; returns when it wants the next one, if it said so (never at this instant again)."""
        for request in arrived:
            self._waiting[request.id] = _pending(request)
        self._table.forget_before(now)
        self._expire(now)
        cycle = BrokerCycle(now, list(self._waiting.values()), (), self._sources)
        wake: Instant | None = None
        for decision in self._mapper.allocate(cycle):
            self.decisions += 1
            if isinstance(decision, Wake):
                wake = max(now + 1, decision.at if wake is None else min(wake, decision.at))
            elif isinstance(decision, Grant):
                self._grant(decision)
            elif isinstance(decision, Reject):
                self._waiting.pop(decision.lease, None)
                self.answers[decision.lease] = Answer(start=None, reason=decision.reason)
            elif isinstance(decision, Defer):
                self._deferred[decision.lease] = decision.reason
            else:
                raise LeasekitError(f"the mapper decided {decision!r:.80}, which a workload has no use for")
        return wake

    def _expire(self, now: Instant) -> None:
        """As a broker does: a request that can't start any more is refused, one that waited starts from now on."""
        for id_, request in list(self._waiting.items()):
            if request.latest_start < now:
                del self._waiting[id_]
                self.answers[id_] = Answer(start=None, reason=self._deferred.get(id_, "") or "not granted in time")
            elif request.term.start < now:
                self._waiting[id_] = request._replace(term=Term(now, now + request.term.length))

    def _sources(self, type_: str) -> Sequence[Source]:
        if type_ != _NODE:
            return ()
        return [Source(_SITE, _SITE, _NODE, self._nodes, Term(0, INSTANT_MAX), {}, self._table.overlay())]

    def _grant(self, grant: Grant) -> None:
        request = self._waiting.pop(grant.lease, None)
        if request is None or grant.units != request.units or grant.term.length != request.term.length:
            raise LeasekitError(f"the mapper granted {grant!r:.120}, which nobody asked for")
        if not request.term.start <= grant.term.start <= request.latest_start:
            raise LeasekitError(f"the mapper granted request {grant.lease} outside its window, at {grant.term.start}")
        try:
            self._table.reserve(grant.lease, grant.units, grant.term)
        except Shortfall as short:
            raise LeasekitError(
                f"the mapper overbooked: {short.free} nodes were free over {tuple(short.term)}"
            ) from short
        self.answers[grant.lease] = Answer(start=grant.term.start)

    @property
    def waits(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._waiting)

    def give_up(self) -> None:
        """Requests that still wait when nothing more can happen are refused."""
        for id_ in self._waiting:
            self.answers[id_] = Answer(start=None, reason=self._deferred.get(id_, "") or "never decided")


def _pending(request: Request) -> PendingRequest:
    term = Term(request.start, request.start + request.duration)
    return PendingRequest(
        lease=request.id, holder="workload", op="new", type=_NODE, units=request.nodes, min_units=request.nodes,
        term=term, latest_start=request.latest, deadline=request.latest, arrived=request.submit, site="",
        exclude_sites=frozenset(),
        source="", held=0, group="", priority=0, preemptible=False, properties={},
    )  # fmt: skip


def plan(
    requests: Sequence[Request], nodes: int, policy: str, settings: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Answer]]:
    """Run a workload; returns the summary and an answer for each request, in their order.

    Raises ``LeasekitError`` for a mapper that overbooks, a policy that doesn't exist, or wrong settings of it.
    """
    if nodes < 1:
        raise LeasekitError(f"nodes: found {nodes}, expected at least 1")
    run = _Run(make_mapper(policy, "broker", settings or {}, "policy", {}), nodes)
    begin = time.perf_counter()
    wake: Instant | None = None
    for now, arrived in _by_submission(requests):
        while wake is not None and wake < now:
            wake = run.turn(wake, ())
        wake = run.turn(now, arrived)
    while wake is not None and run.waits:
        wake = run.turn(wake, ())
    run.give_up()
    elapsed = time.perf_counter() - begin
    answers = [run.answers[request.id] for request in requests]
    return {**_summary(requests, answers, nodes, policy), "decisions_per_s": round(len(requests) / elapsed, 1)}, answers


def _by_submission(requests: Sequence[Request]) -> Iterator[tuple[Instant, list[Request]]]:
    ordered = sorted(requests, key=lambda request: request.submit)
    first = 0
    while first < len(ordered):
        last = first
        while last < len(ordered) and ordered[last].submit == ordered[first].submit:
            last += 1
        yield ordered[first].submit, ordered[first:last]
        first = last


def _summary(requests: Sequence[Request], answers: Sequence[Answer], nodes: int, policy: str) -> dict[str, Any]:
    kinds: dict[str, dict[str, int]] = {kind: {"accepted": 0, "refused": 0} for kind in KINDS}
    waits, slowdowns = [], []
    used, ends = 0, [0]
    for request, answer in zip(requests, answers, strict=True):
        kinds[request.kind]["refused" if answer.start is None else "accepted"] += 1
        if answer.start is None:
            continue
        used += request.nodes * request.duration
        ends.append(answer.start + request.duration)
        if request.kind == "be":
            wait = answer.start - request.submit
            waits.append(wait / SECOND)
            slowdowns.append(max(1.0, (wait + request.duration) / max(request.duration, BOUND)))
    first = min((request.submit for request in requests), default=0)
    makespan = max(ends) - first
    return {
        "policy": policy,
        "nodes": nodes,
        "requests": len(requests),
        "kinds": kinds,
        "mean_wait_s": round(sum(waits) / len(waits), 3) if waits else None,
        "mean_bounded_slowdown": round(sum(slowdowns) / len(slowdowns), 4) if slowdowns else None,
        "utilisation": round(used / (nodes * makespan), 6) if makespan > 0 else None,
        "makespan_s": makespan / SECOND,
    }


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """A CSV row for each request, in the order of the input: start_s (empty: refused) and the reason."""
    with path.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["start_s", "reason"])
        for answer in answers:
            rows.writerow(["" if answer.start is None else f"{answer.start / SECOND:g}", answer.reason])
