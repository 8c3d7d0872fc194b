"""Jobs, and the load they make, from logs in the Standard Workload Format (Parallel Workloads Archive)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import attrs

from leasekit.config.traces.places import TraceError, is_number, opened, wrong
from leasekit.core.signals import Signal
from leasekit.core.time import INSTANT_MAX, MINUTE, SECOND, Duration, Instant

JobLoad = Literal["wanted_procs", "running_procs"]
JOB_LOADS: tuple[JobLoad, ...] = ("wanted_procs", "running_procs")

SWF_FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "CPU time",
    "memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
"""The 18 fields of a job, in order."""


_SWF_DECIMALS = frozenset({1, 2, 3, 5, 6, 8, 9, 17})


@attrs.frozen(kw_only=True)
class SwfJob:
    """One job of a log in the Standard Workload Format 2.2. Times are ms; none means that the log doesn't know.

    ``submit`` is Unix time (the log's UnixStartTime is added), or counts from 0 in a log that states none.
    """

    id: int
    submit: Instant
    wait: Duration | None
    run: Duration | None
    procs: int | None
    cpu: Duration | None
    memory_kb: int | None
    procs_requested: int | None
    time_requested: Duration | None
    memory_requested_kb: int | None
    status: int | None
    user: int | None
    group: int | None
    executable: int | None
    queue: int | None
    partition: int | None
    previous_job: int | None
    think: Duration | None

    @property
    def start(self) -> Instant:
        """When it started: submission plus wait; an unknown wait counts as none."""
        return self.submit + (self.wait or 0)

    @property
    def width(self) -> int:
        """Processors: as allocated, or as requested where the log does not know; 0 where it knows neither."""
        return self.procs or self.procs_requested or 0

    @property
    def usable(self) -> bool:
        """Whether it took any processors for any time."""
        return self.width > 0 and (self.run or 0) > 0


def swf_jobs(path: Path) -> Iterator[SwfJob]:
    """The jobs of an SWF file (gzip or not) in file order, one at a time.

    Raises :class:`TraceError` at the first malformed line, or :class:`TraceMissing`.
    """
    origin = 0
    with opened(path) as text:
        for line, row in enumerate(text, 1):
            if row.lstrip().startswith(";"):
                origin = _swf_origin(path, line, row, origin)
                continue
            fields = row.split()
            if fields:
                yield _swf_job(path, line, fields, origin)


def swf_job_list(path: Path) -> list[SwfJob]:
    """All the jobs of an SWF file, in file order; see :func:`swf_jobs`."""
    return list(swf_jobs(path))


def _swf_origin(path: Path, line: int, row: str, origin: Instant) -> Instant:
    key, colon, found = row.strip().lstrip("; \t").partition(":")
    if not colon or key.strip() != "UnixStartTime":
        return origin
    text = found.split()[0] if found.split() else ""
    if not text.isdigit():
        raise wrong(path, line, found.strip(), "UnixStartTime as whole Unix seconds")
    return int(text) * SECOND


def _swf_job(path: Path, line: int, fields: Sequence[str], origin: Instant) -> SwfJob:
    if len(fields) != len(SWF_FIELDS):
        raise wrong(path, line, " ".join(fields), f"{len(SWF_FIELDS)} fields, of which it has {len(fields)}")
    try:
        numbers: list[float] = [int(field) for field in fields]
    except ValueError:
        numbers = [_swf_number(path, line, index, field) for index, field in enumerate(fields)]
    if min(numbers) < -1:
        index = next(index for index, number in enumerate(numbers) if number < -1)
        raise wrong(path, line, fields[index], f"as {SWF_FIELDS[index]} (field {index + 1}) a number, or -1 if unknown")
    if numbers[0] < 0 or numbers[1] < 0:
        raise wrong(path, line, " ".join(fields[:2]), "a job number and a submit time of at least 0")
    known = [None if number == -1 else round(number) for number in numbers]
    times = [None if number == -1 else round(number * SECOND) for number in numbers]
    return SwfJob(
        id=round(numbers[0]),
        submit=origin + round(numbers[1] * SECOND),
        wait=times[2],
        run=times[3],
        procs=known[4],
        cpu=times[5],
        memory_kb=known[6],
        procs_requested=known[7],
        time_requested=times[8],
        memory_requested_kb=known[9],
        status=known[10],
        user=known[11],
        group=known[12],
        executable=known[13],
        queue=known[14],
        partition=known[15],
        previous_job=known[16],
        think=times[17],
    )


def _swf_number(path: Path, line: int, index: int, field: str) -> float:
    """A field that may have decimals: logs give them for times and memory, where they are kept or rounded."""
    number = float(field) if is_number(field) else math.nan
    if not math.isfinite(number) or (not number.is_integer() and index not in _SWF_DECIMALS):
        kind = "a number" if index in _SWF_DECIMALS else "a whole number"
        raise wrong(path, line, field, f"as {SWF_FIELDS[index]} (field {index + 1}) {kind}, or -1 if unknown")
    return number


def swf_signal(jobs: Iterable[SwfJob], load: JobLoad = "wanted_procs", *, interval: Duration = 5 * MINUTE) -> Signal:
    """The processors that a job log takes over time, as a signal in bins.

    ``wanted_procs``: as if each job had started when it was submitted; ``running_procs``: as it was scheduled
    then. Bins are ``interval`` long and aligned to multiples of it in Unix time; a bin's value is the mean number
    of processors over the bin (processor-milliseconds divided by the interval). The first bin is the one of the
    first submission, the last the one of the last submission: what runs on after it is cut. Jobs that took no
    processor or no time don't count (:attr:`SwfJob.usable`). Raises :class:`TraceError` where none does.
    """
    if load not in JOB_LOADS:
        raise TraceError(f"load: found {load!r}, allowed is one of: {', '.join(JOB_LOADS)}")
    starts, ends, widths = array("q"), array("q"), array("q")
    first, last = INSTANT_MAX, -1
    for job in jobs:
        if not job.usable:
            continue
        start = job.submit if load == "wanted_procs" else job.start
        starts.append(start)
        ends.append(start + (job.run or 0))
        widths.append(job.width)
        first, last = min(first, job.submit), max(last, job.submit)
    if last < 0:
        raise TraceError("found no job that took any processor for any time; allowed is a log with at least one")
    low, high = first // interval * interval, (last // interval + 1) * interval
    bins = _binned(zip(starts, ends, widths, strict=True), low, high, interval)
    return Signal(((low + index * interval, area / interval) for index, area in enumerate(bins)), end=high)


def _binned(
    spans: Iterable[tuple[Instant, Instant, int]], low: Instant, high: Instant, interval: Duration
) -> Iterator[int]:
    """Width times milliseconds per bin of [low, high), exact; a span costs O(1) whatever its length."""
    count = (high - low) // interval
    partial, steps = array("q", bytes(8 * (count + 1))), array("q", bytes(8 * (count + 1)))
    for start, end, width in spans:
        start, end = max(start, low), min(end, high)
        if end <= start:
            continue
        head, head_offset = divmod(start - low, interval)
        tail, tail_offset = divmod(end - low, interval)
        # The span counts in full from its first bin to before its last; then the part before its start comes off.
        steps[head] += width
        steps[tail] -= width
        partial[head] -= width * head_offset
        partial[tail] += width * tail_offset
    width = 0
    for index in range(count):
        width += steps[index]
        yield width * interval + partial[index]
