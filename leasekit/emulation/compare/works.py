"""Workloads: pieces of work that ask for units of one pool, from a log, a workload file, or made by a seed.

What each piece asks for and what it really takes are two things. A mapper is shown the estimate, which is the length of
the lease; the work ends after its run time, at the latest with the lease: what a log says beyond the estimate is cut
off, as a lease's end would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import attrs

from leasekit.config.jobs import from_swf as from_swf_job
from leasekit.config.traces import TraceError, swf_jobs
from leasekit.core.requests import ReplayedJob
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Duration, Instant

BEST_EFFORT = "be"


class Work(NamedTuple):
    """One piece of work: ``units`` from ``start`` (``latest`` at the latest) on for ``estimate``, of which it takes
    ``run``. Instants and durations in milliseconds; ``kind`` as in a workload file (``ar``, ``im``, ``be``).
    """

    id: str
    holder: str
    submit: Instant
    start: Instant
    latest: Instant
    estimate: Duration
    run: Duration
    units: int
    kind: str


@attrs.frozen(kw_only=True)
class Workload:
    """Work in order of submission, and where it is from. ``left_out`` counts the jobs of a log that took no processor
    or no time.
    """

    name: str
    works: Sequence[Work]
    left_out: int = 0


def from_swf(path: Path) -> Workload:
    """The jobs of a log in the Standard Workload Format: the requested time is the estimate, or the run time where none
    was requested. Raises ``TraceError``.
    """
    works, left_out = [], 0
    for job in swf_jobs(path):
        if job.usable:
            works.append(_from_job(from_swf_job(job)))
        else:
            left_out += 1
    if not works:
        raise TraceError(f"{path}: found no job that took any processor for any time; allowed is a log with one")
    return Workload(name=path.name, works=in_order(works), left_out=left_out)


def _from_job(job: ReplayedJob) -> Work:
    latest = INSTANT_MAX - job.estimate
    return Work(job.id, job.holder, job.submit, job.start, latest, job.estimate, job.run, job.units, BEST_EFFORT)


def in_order(works: Iterable[Work]) -> list[Work]:
    """As they are submitted."""
    return sorted(works, key=lambda work: work.submit)


# -- made by a seed ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class WorkShape:
    """A workload to be made: ``jobs`` on ``nodes`` at a mean ``load``, from ``users`` of whom some ask for much."""

    jobs: int = attrs.field(default=2000, validator=attrs.validators.ge(1))
    nodes: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    load: float = attrs.field(default=0.8, validator=[attrs.validators.gt(0), attrs.validators.le(10)])
    users: int = attrs.field(default=12, validator=attrs.validators.ge(1))
    seed: int = 1


ROUND_ESTIMATES = (5 * MINUTE, 15 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 12 * HOUR, DAY)
"""What people ask for: hardly anybody estimates to the minute."""
_RUN_MIN, _RUN_MAX = 10 * SECOND, DAY


def generate(shape: WorkShape) -> Workload:
    """Jobs as batch systems see them: widths that favour powers of two, run times over four orders of magnitude,
    estimates that are round and too long, arrivals that follow the hours of the day. The same shape, the same jobs.
    """
    random = Random(shape.seed)
    widths = [_width(random, shape.nodes) for _ in range(shape.jobs)]
    runs = [_run(random) for _ in range(shape.jobs)]
    area = sum(width * run for width, run in zip(widths, runs, strict=True))
    gap = area / (shape.nodes * shape.load) / shape.jobs
    works, now = [], 0.0
    for number, (width, run) in enumerate(zip(widths, runs, strict=True), 1):
        # Twice as many by day as at night, and as many as the load wants on average.
        now += random.expovariate(1.0) * gap / (1 + 0.5 * math.sin(2 * math.pi * (now / DAY - 0.3)))
        submit = round(now / SECOND) * SECOND
        estimate = _estimate(random, run)
        holder = f"u{min(int(random.expovariate(3 / shape.users)), shape.users - 1)}"
        latest = INSTANT_MAX - estimate
        works.append(Work(str(number), holder, submit, submit, latest, estimate, run, width, BEST_EFFORT))
    return Workload(name=f"{shape.jobs} jobs of seed {shape.seed}", works=works)


def _width(random: Random, nodes: int) -> int:
    if random.random() < 0.25:
        return 1
    width = 2 ** random.uniform(0, math.log2(nodes))
    return min(nodes, max(1, 2 ** round(math.log2(width)) if random.random() < 0.75 else round(width)))


def _run(random: Random) -> Duration:
    return round(min(max(random.lognormvariate(math.log(20 * MINUTE), 1.8), _RUN_MIN), _RUN_MAX) / SECOND) * SECOND


def _estimate(random: Random, run: Duration) -> Duration:
    wanted = run / random.uniform(0.05, 1.0)
    return max(run, next((each for each in ROUND_ESTIMATES if each >= wanted), ROUND_ESTIMATES[-1]))


def write_swf(path: Path, workload: Workload, nodes: int) -> None:
    """The work as a log in the Standard Workload Format; holders become numbers. Times are whole seconds there."""
    users = {holder: number for number, holder in enumerate(dict.fromkeys(work.holder for work in workload.works), 1)}
    with path.open("w", encoding="utf-8") as out:
        print("; Version: 2.2", f"; Computer: {workload.name}", "; UnixStartTime: 0", sep="\n", file=out)
        print(f"; MaxNodes: {nodes}", f"; MaxProcs: {nodes}", sep="\n", file=out)
        for number, work in enumerate(workload.works, 1):
            run, estimate = work.run // SECOND, work.estimate // SECOND
            fields = (number, work.submit // SECOND, -1, run, work.units, -1, -1, work.units, estimate, -1, 1)
            print(*fields, users[work.holder], -1, -1, -1, -1, -1, -1, file=out)
