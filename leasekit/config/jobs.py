"""Jobs for guests that replay them, the table ``jobs`` of their mappers: from logs, or made by distributions.

There is one reader for each format. Of a log in the Standard Workload Format (:func:`~.traces.swf_jobs`) these columns
count: job number, submit time, run time, allocated processors (requested ones where it does not know), requested time
as the estimate (the run time where none is), and user as the holder. Of the reservations of Grid'5000 (columns
``job_id, submit_bound_s, start_s, stop_s, outcome``) those that ran: the bound is taken for the submission, and the log
says no widths. A CSV file has the columns of :data:`COLUMNS`, of which ``submit_s`` and ``run_s`` or ``estimate_s`` are
needed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from leasekit.config.instants import instant_setting
from leasekit.config.traces import SwfJob, TraceError, is_number, opened, swf_jobs, trace_path, wrong
from leasekit.core.draws import Distribution, Exponential, Lognormal, uniform
from leasekit.core.properties import EMPTY
from leasekit.core.requests import ReplayedJob
from leasekit.core.settings import DurationSetting
from leasekit.core.time import DAY, INSTANT_MAX, MINUTE, SECOND, Duration, Instant

GRID5000: Final = ("job_id", "submit_bound_s", "start_s", "stop_s", "outcome")
COLUMNS: Final[Mapping[str, str]] = {
    "id": "a name (default: the line's number)",
    "holder": "whose it is",
    "type": "the resource type of its units",
    "units": "how many (default: 1)",
    "estimate_s": "for how long it asks (default: its run time)",
    "run_s": "how long it takes (default: its estimate)",
    "submit_s": "when it is asked for",
    "start_s": "when it is to begin (default: when it is asked for)",
    "latest_s": "when it is to begin at the latest",
    "priority": "a whole number",
    "site": "where it must be",
    "properties": "request properties, as KEY=VALUE, separated by semicolons",
}
"""The columns of a CSV file of jobs. Times are seconds, instants of any origin."""


def _factor(_: object, field: attrs.Attribute[float], found: float) -> None:
    if not 0 < found <= 1e6:
        raise ValueError(f"'{field.name}' must be a number above 0, at most a million: {found}")


@attrs.frozen(kw_only=True)
class MadeJobs:
    """``jobs.made``: jobs that come by distributions. ``units`` has widths, each as likely."""

    every: Distribution = attrs.field(factory=lambda: Exponential(mean=10 * MINUTE))
    run: Distribution = attrs.field(factory=lambda: Lognormal(median=20 * MINUTE))
    estimate: float = attrs.field(default=2.0, validator=[attrs.validators.ge(1), attrs.validators.le(1000)])
    units: tuple[int, ...] = attrs.field(default=(1,), validator=attrs.validators.min_len(1))
    holders: int = attrs.field(default=1, validator=attrs.validators.ge(1))

    def __attrs_post_init__(self) -> None:
        if min(self.units) < 1:
            raise ValueError(f"units are {self.units}, expected each at least 1")


@attrs.frozen(kw_only=True)
class JobsSpec:
    """``jobs`` of a guest's mapper: a log (``file``), or ``made`` ones. Durations in ms. Jobs are, in this order,
    chosen, cut, scaled, repeated and shifted.
    """

    file: str = ""
    """A log, relative to the data folder: SWF (`.swf`), reservations of Grid'5000, or CSV; any may be gzipped."""
    made: MadeJobs | None = None
    """In place of `file`: jobs that come by distributions."""
    holders: tuple[str, ...] = ()
    """Only jobs of these holders (default: all)."""
    part: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Which part of the holders, in their order in the log, counted from 0; there are `parts`."""
    parts: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Into how many parts the holders are divided, so that several guests can share a log."""
    start: Instant | None = attrs.field(default=None, converter=attrs.converters.optional(instant_setting))
    """The log's instant that is 0 (default: its first submission); jobs before it are left out."""
    length: DurationSetting | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """How much of the log is used (default: all of it)."""
    arrivals: float = attrs.field(default=1.0, validator=_factor)
    """So many times as many jobs in the same time: submissions and starts move together."""
    runs: float = attrs.field(default=1.0, validator=_factor)
    """So many times as long: run times and estimates."""
    units: float = attrs.field(default=1.0, validator=_factor)
    """So many times as wide, rounded up."""
    widest: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    """Wider jobs are cut to so many units."""
    widths: tuple[int, ...] = attrs.field(default=(1,), validator=attrs.validators.min_len(1))
    """Widths for a log that says none: each as likely, by `seed`."""
    repeat: int = attrs.field(default=1, validator=[attrs.validators.ge(1), attrs.validators.le(10_000)])
    """How often the log is played, one time after the other."""
    pad: DurationSetting = 0
    """How long nothing is submitted between one time and the next."""
    shift: DurationSetting = 0
    """By how much all of it is later."""
    horizon: DurationSetting = attrs.field(default=30 * DAY, validator=attrs.validators.ge(1))
    """Up to when jobs are submitted (in an emulation not said: its horizon)."""
    origin: Instant | None = attrs.field(default=None, converter=attrs.converters.optional(instant_setting))
    """The instant of the actor's clock at which 0 lies (default: the run's start)."""
    seed: int = 0
    """What is drawn depends on it (not said: one of the emulation's for each actor)."""

    def __attrs_post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"part is {self.part}, expected less than parts, {self.parts}")
        if min(self.widths) < 1:
            raise ValueError(f"widths are {self.widths}, expected each at least 1")


def open_jobs(spec: JobsSpec, folder: Path | None, *, synthetic: bool = False) -> list[ReplayedJob]:
    """The jobs that a spec describes, in order of submission, from 0 on. With ``synthetic``, made ones take the place
    of a log. Raises :class:`~.traces.TraceError`, or :class:`~.traces.TraceMissing`.
    """
    if not spec.file or synthetic:
        return _transformed(spec, list(_made(spec, spec.made or MadeJobs())))
    return _transformed(spec, read_jobs(trace_path(spec.file, folder), lambda number: _width(spec, number)))


def read_jobs(path: Path, width: Callable[[int], int] = lambda _: 1) -> list[ReplayedJob]:
    """The jobs of a log, in order of submission; ``width`` says how wide job number N is of a log that does not say.

    Raises :class:`~.traces.TraceError`.
    """
    if path.name.removesuffix(".gz").endswith(".swf"):
        jobs: Iterable[ReplayedJob] = (from_swf(job) for job in swf_jobs(path) if job.usable)
    else:
        jobs = _csv_jobs(path, width)
    found = sorted(jobs, key=lambda job: job.submit)
    if not found:
        raise TraceError(f"{path}: found no job that took any unit for any time, allowed is a log with at least one")
    return found


def from_swf(job: SwfJob) -> ReplayedJob:
    """A usable job of a log in the Standard Workload Format: the requested time is the estimate, or the run time where
    none was requested; what ran on after its estimate is cut.
    """
    run = job.run or 0
    estimate = job.time_requested or run
    holder = "?" if job.user is None else str(job.user)
    return ReplayedJob(str(job.id), holder, job.submit, job.submit, -1, job.width, estimate, min(run, estimate))


def _csv_jobs(path: Path, width: Callable[[int], int]) -> Iterator[ReplayedJob]:
    with opened(path) as text:
        rows = csv.reader(text)
        try:
            header = [cell.strip() for cell in next(rows, [])]
            grid5000 = tuple(header) == GRID5000
            if not grid5000:
                _check_header(path, header)
            for row in rows:
                if not row or row[0].startswith("#"):
                    continue
                if len(row) != len(header):
                    raise wrong(path, rows.line_num, ",".join(row), f"{len(header)} columns")
                cells = _Cells(path, rows.line_num, dict(zip(header, map(str.strip, row), strict=True)))
                job = cells.reservation(width) if grid5000 else cells.job()
                if job is not None:
                    yield job
        except csv.Error as error:
            raise TraceError(f"{path}, line {rows.line_num}: not CSV: {error}") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    unknown = [name for name in header if name not in COLUMNS]
    timed = "submit_s" in header and ("run_s" in header or "estimate_s" in header)
    if unknown or not timed or len(set(header)) < len(header):
        allowed = f"columns of {', '.join(COLUMNS)}, each once, with submit_s, and run_s or estimate_s"
        raise wrong(path, 1, ",".join(header), allowed)


@attrs.frozen
class _Cells:
    """One line of a CSV file, by column."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def reservation(self, width: Callable[[int], int]) -> ReplayedJob | None:
        """Of Grid'5000: those that ran for a time. One that began before its bound was made when it began."""
        if self.cells["outcome"] != "ran":
            return None
        start, stop = self._time("start_s"), self._time("stop_s")
        if stop <= start:
            return None
        number, submit = self._whole("job_id"), min(self._time("submit_bound_s"), start)
        return ReplayedJob(str(number), "?", submit, start, -1, width(number), stop - start, stop - start)

    def job(self) -> ReplayedJob:
        """Of a file of one's own."""
        submit, cells = self._time("submit_s"), self.cells
        run = self._time("run_s" if cells.get("run_s") else "estimate_s")
        estimate = self._time("estimate_s") if cells.get("estimate_s") else run
        start = self._time("start_s") if cells.get("start_s") else submit
        units = self._whole("units") if cells.get("units") else 1
        latest = self._time("latest_s") if cells.get("latest_s") else -1
        if units < 1 or run < 1 or estimate < 1 or start < submit or -1 < latest < start:
            found, allowed = ",".join(cells.values()), "a unit or more, for some time, from its submission on"
            raise wrong(self.path, self.line, found, f"{allowed}, with no latest start before the first")
        return ReplayedJob(
            cells.get("id") or str(self.line), cells.get("holder") or "?", submit, start,
            latest, units, estimate, min(run, estimate),
            cells.get("type", ""), cells.get("site", ""), self._whole("priority") if cells.get("priority") else 0,
            self._properties(),
        )  # fmt: skip

    def _time(self, column: str) -> Instant:
        text = self.cells.get(column, "")
        number = float(text) * SECOND if is_number(text) else math.nan
        if not 0 <= number <= INSTANT_MAX:
            raise wrong(self.path, self.line, text, f"as {column} seconds, at least 0")
        return round(number)

    def _whole(self, column: str) -> int:
        text = self.cells[column]
        if not text.removeprefix("-").isdecimal() or len(text) > 18:
            raise wrong(self.path, self.line, text, f"as {column} a whole number")
        return int(text)

    def _properties(self) -> Mapping[str, str]:
        text = self.cells.get("properties", "")
        if not text:
            return EMPTY
        pairs = [part.partition("=") for part in text.split(";")]
        if not all(key.strip() and sign for key, sign, _ in pairs):
            raise wrong(self.path, self.line, text, "as properties KEY=VALUE, separated by semicolons")
        return {key.strip(): value.strip() for key, _, value in pairs}


def _width(spec: JobsSpec, number: int) -> int:
    return spec.widths[int(uniform(spec.seed, "width", number) * len(spec.widths))]


def _made(spec: JobsSpec, made: MadeJobs) -> Iterator[ReplayedJob]:
    """Jobs until the horizon, before they are scaled."""
    at, number = 0, 0
    while True:
        at += max(1, made.every.draw(uniform(spec.seed, "gap", number)))
        if at >= spec.horizon * max(1.0, spec.arrivals):
            return
        run = max(SECOND, made.run.draw(uniform(spec.seed, "run", number)))
        units = made.units[int(uniform(spec.seed, "units", number) * len(made.units))]
        holder = f"u{int(uniform(spec.seed, 'holder', number) * made.holders) + 1}"
        number += 1
        yield ReplayedJob(str(number), holder, at, at, -1, units, round(run * made.estimate), run)


def _transformed(spec: JobsSpec, jobs: Sequence[ReplayedJob]) -> list[ReplayedJob]:
    places = {holder: index for index, holder in enumerate(dict.fromkeys(job.holder for job in jobs))}
    if lost := [name for name in spec.holders if name not in places]:
        raise TraceError(f"{spec.file}: found no jobs of {', '.join(lost)}, allowed are holders that it has")
    zero = spec.start if spec.start is not None else jobs[0].submit if spec.file and jobs else 0
    length = spec.length or max((job.submit - zero + SECOND for job in jobs), default=1)
    chosen = [
        _scaled(spec, job, zero)
        for job in jobs
        if 0 <= job.submit - zero < length
        and (not spec.holders or job.holder in spec.holders)
        and places[job.holder] % spec.parts == spec.part
    ]
    period = round(length / spec.arrivals) + spec.pad
    repeated = [
        _later(job, spec.shift + time * period, f"-r{time + 1}" if time else "")
        for time in range(spec.repeat)
        for job in chosen
    ]
    return sorted((job for job in repeated if job.submit < spec.horizon), key=lambda job: job.submit)


def _scaled(spec: JobsSpec, job: ReplayedJob, zero: Instant) -> ReplayedJob:
    units = max(1, math.ceil(job.units * spec.units - 1e-9))
    submit = round((job.submit - zero) / spec.arrivals)
    wait = job.start - job.submit
    return job._replace(
        submit=submit,
        start=submit + wait,
        latest=job.latest if job.latest < 0 else submit + job.latest - job.submit,
        units=units if spec.widest is None else min(units, spec.widest),
        estimate=max(1, round(job.estimate * spec.runs)),
        run=max(1, round(job.run * spec.runs)),
    )


def _later(job: ReplayedJob, by: Duration, suffix: str = "") -> ReplayedJob:
    latest = job.latest if job.latest < 0 else job.latest + by
    return job._replace(id=job.id + suffix, submit=job.submit + by, start=job.start + by, latest=latest)


def shifted(jobs: Sequence[ReplayedJob], by: Duration) -> Sequence[ReplayedJob]:
    """The same jobs, by so much later."""
    return [_later(job, by) for job in jobs] if by else jobs
