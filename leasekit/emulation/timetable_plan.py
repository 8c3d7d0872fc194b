"""``leasekit plan timetable``: a workload of reservations run through a broker's mapper.

The workload is a CSV file of requests (submit, earliest start, deadline, duration, nodes, kind); guests ask a broker
for them as they are submitted, and one site has all ``nodes`` (:mod:`leasekit.emulation.compare.drive`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from leasekit.core.time import SECOND, Instant
from leasekit.emulation.compare.drive import REFUSED, DriveOutcome, drive
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.compare.works import BEST_EFFORT, BOUND, Work
from leasekit.emulation.mapper_faults import Tell
from leasekit.emulation.outputs import write_rows
from leasekit.emulation.workload_file import KINDS, in_seconds
from leasekit.policies.registry import make_mapper


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
