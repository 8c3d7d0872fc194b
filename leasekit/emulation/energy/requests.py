"""Requests for cores from a job log: as they were scheduled, in advance, and as a cloud's users would make them.

A log with submission, start and width says when each user knew that so many cores would be needed. Adapted to a cloud
that takes no reservations (Rossigneux et al., section 5.1): a request submitted within working hours whose start lies
outside them is made at its submission, for then; every other is made at its start, for then. A site's capacity is the
most cores that all requests together need, and a safety margin.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import attrs

from leasekit.config.traces import TraceError, data_dir, missing_traces, swf_jobs
from leasekit.core.time import SECOND, Duration, Instant, Term


class Log(NamedTuple):
    """A job log of the data folder: its file there, and the time zone that its users live in."""

    file: str
    zone: str


LOGS: Final = {
    "kth-sp2": Log("kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz", "Europe/Stockholm"),
    "hpc2n": Log("extra-hpc2n/HPC2N-2002-2.2-cln.swf.gz", "Europe/Stockholm"),
}


class EnergyRequest(NamedTuple):
    """``cores`` from ``start`` on for ``duration`` ms, which the site knows of from ``submit`` on."""

    start: Instant
    submit: Instant
    duration: Duration
    cores: int


@attrs.frozen(kw_only=True)
class WorkingHours:
    """From ``begin`` to ``end`` o'clock, Monday to Friday, in a time zone."""

    zone: str
    begin: int = attrs.field(default=8, validator=[attrs.validators.ge(0), attrs.validators.lt(24)])
    end: int = attrs.field(default=18, validator=[attrs.validators.gt(0), attrs.validators.le(24)])

    def __contains__(self, instant: Instant) -> bool:
        local = datetime.fromtimestamp(instant / SECOND, ZoneInfo(self.zone))
        return local.weekday() < 5 and self.begin <= local.hour < self.end


def read_requests(name: str, data: Path | None = None) -> list[EnergyRequest]:
    """The requests of a log, as they were scheduled, in order of their start; there is at least one. Raises
    ``TraceError``, ``LeasekitError`` where the log is missing.
    """
    folder, log = data_dir(data), LOGS[name]
    path = None if folder is None else folder / log.file
    if path is None or not path.is_file():
        raise missing_traces([log.file], folder, generated=False)
    requests = sorted(
        EnergyRequest(job.start, job.submit, job.run or 0, job.width) for job in swf_jobs(path) if job.usable
    )
    if not requests:
        found = "no job that took any processor for any time"
        raise TraceError(f"{path}: found {found}, allowed is a log with at least one")
    return requests


def on_demand(requests: Iterable[EnergyRequest], hours: WorkingHours) -> tuple[list[EnergyRequest], int]:
    """The requests as a cloud without reservations gets them, in order, and how many of them were moved to their
    submission by the first rule.
    """
    adapted, moved = [], 0
    for request in requests:
        if request.start != request.submit and request.submit in hours and request.start not in hours:
            moved += 1
            adapted.append(request._replace(start=request.submit))
        else:
            adapted.append(request._replace(submit=request.start))
    return sorted(adapted), moved


def peak(requests: Sequence[EnergyRequest]) -> int:
    """The most cores that requests, in order of their start, need at once."""
    most = used = 0
    ends: list[tuple[Instant, int]] = []
    for request in requests:
        while ends and ends[0][0] <= request.start:
            used -= heapq.heappop(ends)[1]
        heapq.heappush(ends, (request.start + request.duration, request.cores))
        used += request.cores
        most = max(most, used)
    return most


def capacity_for(requests: Sequence[EnergyRequest], safety: float) -> int:
    """The capacity of a site that serves them all: the peak, and ``safety`` (a share of it) more."""
    return math.ceil(peak(requests) * (1 + safety))


def window_of(requests: Sequence[EnergyRequest]) -> Term:
    """From the first start to the last end."""
    return Term(requests[0].start, max(request.start + request.duration for request in requests))
