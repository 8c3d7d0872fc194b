"""Load signals from files: traces as CSV, job logs in the Standard Workload Format, and a generator without files.

Readers stream, read gzip whatever the file's name is, and stop at the first malformed line with one error that
names file, line, what was found and what is allowed. Instants are Unix milliseconds as in the file;
:func:`open_signal` turns a trace into demand on an emulation's clock, whose 0 is the instant that its spec names.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, TextIO, get_args

import attrs

from leasekit.config.instants import format_instant, instant_setting, parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.settings import DurationSetting, expecting
from leasekit.core.signals import Signal
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, WEEK, Duration, Instant, Term, format_duration

DATA_ENVIRONMENT = "LEASEKIT_DATA"
DATA_DEFAULT = Path("shared", "data")
ANCESTORS_MAX = 4


class TraceError(LeasekitError):
    """A trace or its spec can't be used; the text names the file and the line or key, what was found and allowed."""


class TraceMissing(TraceError):
    """Traces that are not there; ``traces`` are their names as the deploy file gives them."""

    def __init__(self, text: str, traces: Sequence[str]) -> None:
        super().__init__(text)
        self.traces = tuple(traces)


class KnownTrace(NamedTuple):
    """A published trace: what it is, who publishes it, and which kind of load it is."""

    title: str
    publisher: str
    url: str
    batch: bool


_ITA, _PWA, _GWA = "the Internet Traffic Archive", "the Parallel Workloads Archive", "the Grid Workloads Archive"
_PWA_URL = "https://www.cs.huji.ac.il/labs/parallel/workload"

KNOWN_TRACES: Mapping[str, KnownTrace] = {
    "worldcup98": KnownTrace(
        "1998 World Cup Web Site Access Logs", _ITA, "https://ita.ee.lbl.gov/html/contrib/WorldCup.html", False
    ),
    "nasa-http": KnownTrace("NASA-HTTP", _ITA, "https://ita.ee.lbl.gov/html/contrib/NASA-HTTP.html", False),
    "lpc-egee": KnownTrace("LPC-EGEE-2004 (log l_lpc)", _PWA, _PWA_URL, True),
    "kth-sp2": KnownTrace("KTH-SP2-1996 (log l_kth_sp2)", _PWA, _PWA_URL, True),
    "hpc2n": KnownTrace("HPC2N-2002 (log l_hpc2n)", _PWA, _PWA_URL, True),
    "grid5000": KnownTrace("Grid'5000 (GWA-T-2)", _GWA, "http://gwa.ewi.tudelft.nl", True),
}


def known_trace(name: str) -> KnownTrace | None:
    """The published trace that a file's path speaks of, or none."""
    lowered = name.lower()
    return next((trace for word, trace in KNOWN_TRACES.items() if word in lowered), None)


def data_dir(
    explicit: Path | None = None, *, config: Path | None = None, environ: Mapping[str, str] | None = None
) -> Path | None:
    """The folder that trace names are relative to, or none.

    The first of: ``explicit`` (``--data``); the environment's ``LEASEKIT_DATA``; ``../shared/data`` where it
    exists; ``shared/data`` beside an ancestor (up to four levels) of the folder that holds the file ``config``.
    Raises :class:`TraceError` when one of the first two is given and is not a folder.
    """
    named = (os.environ if environ is None else environ).get(DATA_ENVIRONMENT, "")
    for what, folder in (("--data", explicit), (DATA_ENVIRONMENT, Path(named) if named else None)):
        if folder is not None:
            if not folder.is_dir():
                raise TraceError(
                    f"{what}: found {folder}, which is not a folder; allowed is the folder with the traces"
                )
            return folder
    candidates = [Path("..") / DATA_DEFAULT]
    if config is not None:
        folder = config.resolve().parent
        candidates += [ancestor.parent / DATA_DEFAULT for ancestor in (folder, *folder.parents[:ANCESTORS_MAX])]
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def missing_traces(names: Sequence[str], folder: Path | None, *, generated: bool = True) -> TraceMissing:
    """The one error for all traces that were not found in a data folder (or without one); ``generated``: whether
    generated demand can take their place.
    """
    looked = f"looked in {folder}" if folder is not None else f"no data folder: give --data DIR or {DATA_ENVIRONMENT}"
    instead = "; --synthetic uses generated demand instead" if generated else ""
    return _missing(names, f"; {looked}{instead}")


def _missing(names: Sequence[str], advice: str) -> TraceMissing:
    parts = []
    for name in names:
        known = known_trace(name)
        published = f" (published by {known.publisher}: {known.title}, {known.url})" if known else ""
        parts.append(f"{name}{published}")
    what = "trace is missing" if len(parts) == 1 else "traces are missing"
    return TraceMissing(f"{what}: {'; '.join(parts)}{advice}", names)


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as text; what goes wrong on the way is a :class:`TraceError` that names it.

    Bytes that are not UTF-8 are replaced: comments may hold any, and in a number they are the parser's to report.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            plain = gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw
            with io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace", newline="") as text:
                yield text
    except FileNotFoundError:
        raise _missing([str(path)], "") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: its gzip data is damaged or cut off ({error}); get the file again") from error
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror or error}") from error


def wrong(path: Path, line: int, found: object, allowed: str) -> TraceError:
    """The error of a malformed line; what was found is cut to a readable length."""
    shown = repr(found)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return TraceError(f"{path}, line {line}: found {shown}, allowed is {allowed}")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


TimeUnit = Literal["auto", "s", "ms", "iso"]
Gaps = Literal["hold", "zero"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
GAPS: tuple[Gaps, ...] = get_args(Gaps)


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


JobLoad = Literal["wanted_procs", "running_procs"]
JOB_LOADS: tuple[JobLoad, ...] = get_args(JobLoad)

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


@attrs.frozen
class SwfJob:
    """What is used of a job of a log in the Standard Workload Format 2.2. Times are ms; none means that the log doesn't
    know.

    ``submit`` is Unix time (the log's UnixStartTime is added), or counts from 0 in a log that states none.
    """

    id: int
    submit: Instant
    wait: Duration | None
    run: Duration | None
    procs: int | None
    procs_requested: int | None
    time_requested: Duration | None
    user: int | None

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
    procs, requested, user = (None if numbers[at] == -1 else round(numbers[at]) for at in (4, 7, 11))
    wait, run, estimate = (None if numbers[at] == -1 else round(numbers[at] * SECOND) for at in (2, 3, 8))
    return SwfJob(
        round(numbers[0]), origin + round(numbers[1] * SECOND), wait, run, procs, requested, estimate, user
    )  # fmt: skip


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


_share: Final = expecting("a share from 0 to 1", lambda value: 0 <= value <= 1)


_amount: Final = expecting("a number of at least 0", lambda value: 0 <= value < math.inf)


@attrs.frozen(kw_only=True)
class SyntheticSettings:
    """``signal.synthetic``: the shape of generated load. Shares are of the mean level."""

    daily: float = attrs.field(default=0.6, validator=_share)
    """How far the daily cycle swings about the mean: 0 to 1; highest at 20:00, lowest at 08:00 of emulated days."""
    weekly: float = attrs.field(default=0.3, validator=_share)
    """How much lower days 6 and 7 of each emulated week are: 0 to 1."""
    noise: float = attrs.field(default=0.1, validator=_amount)
    """Standard deviation of the noise, which is correlated over about an hour: at least 0."""
    bursts_per_day: float = attrs.field(default=1.0, validator=_amount)
    """Mean number of bursts a day, at random instants: at least 0."""
    burst_height: float = attrs.field(default=2.0, validator=_amount)
    """Mean height of a burst, in mean levels: at least 0."""
    burst_length: DurationSetting = attrs.field(default=2 * HOUR, validator=attrs.validators.ge(1))
    """Mean time in which a burst dies away, in ms: at least 1."""


WEB = SyntheticSettings()
BATCH = SyntheticSettings(daily=0.2, weekly=0.2, noise=0.2, bursts_per_day=2.0, burst_height=1.5, burst_length=8 * HOUR)


def synthetic(
    seed: int, horizon: Duration, *, interval: Duration = 5 * MINUTE, peak: float, settings: SyntheticSettings = WEB
) -> Signal:
    """Generated demand over [0, horizon): a daily and weekly cycle, noise and bursts, scaled to ``peak``.

    A pure function of its arguments: it draws what ``Random(seed).random()`` does, whose sequence Python and numpy
    promise to keep. Raises :class:`TraceError` on a horizon or interval below 1 ms.
    """
    if horizon < 1 or interval < 1 or not 0 <= peak < math.inf:
        raise TraceError(
            f"synthetic load: found horizon {horizon} ms, interval {interval} ms, peak {peak}; "
            "allowed are at least 1 ms, at least 1 ms, and a number of at least 0"
        )
    import numpy  # late: it takes a tenth of a second, and most commands generate no load

    memory, decay = math.exp(-interval / HOUR), math.exp(-interval / settings.burst_length)
    often = 1 - math.exp(-settings.bursts_per_day * interval / DAY)
    base = _cycle(horizon, interval, settings)
    # Every sample draws four times, so that one setting does not shift what another draws. Logarithms and cosines are
    # those of Python: numpy's may differ in the last digit from machine to machine.
    *words, place = Random(seed).getstate()[1]
    generator = numpy.random.RandomState()
    generator.set_state(("MT19937", numpy.array(words, dtype=numpy.uint32), place, 0, 0.0))
    sizes, turns, arrivals, heights = generator.random_sample((len(base), 4)).T
    logs = numpy.fromiter(map(math.log, (1 - sizes).tolist()), float)
    normals = numpy.sqrt(-2 * logs) * numpy.fromiter(map(math.cos, (2 * math.pi * turns).tolist()), float)
    shocks = (math.sqrt(1 - memory * memory) * settings.noise * normals).tolist()
    rises, arrive = numpy.zeros(len(base)), arrivals < often
    rises[arrive] = [settings.burst_height * -math.log(1 - height) for height in heights[arrive].tolist()]
    noise = numpy.fromiter(accumulate(shocks, lambda level, more: memory * level + more), float)
    bursts = numpy.fromiter(accumulate(rises.tolist(), lambda level, more: level * decay + more), float)
    levels = numpy.maximum(0.0, numpy.array(base) + noise + bursts)
    raw = Signal.of(_instants(horizon, interval), levels, end=horizon)
    return raw.scaled(peak=peak) if raw.peak() > 0 else raw


@lru_cache(maxsize=4)
def _instants(horizon: Duration, interval: Duration) -> array[int]:
    """When generated demand changes: one array for the signals of all guests, which none of them changes."""
    return array("q", range(0, horizon, interval))


@lru_cache(maxsize=4)
def _cycle(horizon: Duration, interval: Duration, settings: SyntheticSettings) -> array[float]:
    """Generated demand without its noise and bursts, which is the same for every seed."""
    least = 1 - settings.weekly
    days = (
        (at, 1 + settings.daily * math.cos(2 * math.pi * (at - 20 * HOUR) / DAY)) for at in range(0, horizon, interval)
    )
    return array("d", [day * least if at % WEEK >= 5 * DAY else day for at, day in days])


@attrs.frozen(kw_only=True)
class SignalSpec:
    """``signal`` of a guest's mapper: a trace (``file``), or generated load. Durations in ms."""

    file: str = ""
    """A CSV or SWF file relative to the data folder; without one the load is generated."""
    synthetic: SyntheticSettings | None = None
    """The shape of generated load (default: batch in the place of a job log, else web)."""
    column: str | int | None = None
    """CSV: the column of values (default: the second). SWF: ``wanted_procs`` (default) or ``running_procs``."""
    time_column: str | int = 0
    """CSV: the column of timestamps."""
    time_unit: TimeUnit = "auto"
    """CSV: what numeric timestamps count."""
    gaps: Gaps = "hold"
    """CSV: whether a value holds through missing rows, or they count as 0."""
    start: Instant | None = attrs.field(default=None, converter=attrs.converters.optional(instant_setting))
    """The Unix instant of the trace that is 0 on the emulation's clock (default: the trace's first)."""
    origin: Instant | None = attrs.field(default=None, converter=attrs.converters.optional(instant_setting))
    """The instant of the actor's clock at which the signal's 0 lies (default: the run's start)."""
    horizon: DurationSetting = attrs.field(default=30 * DAY, validator=attrs.validators.ge(1))
    """How much of the trace is used (in an emulation not said: its horizon)."""
    interval: DurationSetting = attrs.field(default=5 * MINUTE, validator=attrs.validators.ge(1))
    """The length of the signal's bins, aligned to the emulation's 0; each holds the mean over it."""
    peak: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))
    """Scales the signal so that its highest bin within the horizon has this value; generated load: 100 if none."""
    whole_units: bool = True
    """Whether values are rounded up to whole units, after scaling."""
    seed: int = 0
    """The seed of generated load (not said: one of the emulation's for each actor)."""


PEAK_DEFAULT = 100.0


def open_signal(spec: SignalSpec, folder: Path | None, *, synthetic: bool = False) -> Signal:
    """The demand that a spec describes, on the emulation's clock, over [0, horizon).

    With ``synthetic`` every trace is replaced by generated load, whether it is there or not, so that the same
    command gives the same run on any machine. Raises :class:`TraceError`, or :class:`TraceMissing`.
    """
    is_made = synthetic or not spec.file
    signal = _generated(spec) if is_made else _from_trace(spec, trace_path(spec.file, folder))
    return signal.rounded_up() if spec.whole_units else signal


def trace_path(name: str, folder: Path | None) -> Path:
    """Where a trace is. Raises :class:`TraceMissing`."""
    path = Path(name) if folder is None else folder / name
    if not path.is_file():
        raise missing_traces([name], folder)
    return path


def _generated(spec: SignalSpec) -> Signal:
    known = known_trace(spec.file)
    shape = spec.synthetic or (BATCH if known is not None and known.batch else WEB)
    peak = PEAK_DEFAULT if spec.peak is None else spec.peak
    return synthetic(spec.seed, spec.horizon, interval=spec.interval, peak=peak, settings=shape)


def _from_trace(spec: SignalSpec, path: Path) -> Signal:
    whole = _read(spec, path)
    start = whole.first if spec.start is None else spec.start
    assert start is not None, "a reader's signal has at least one pair"
    window = Term(start, start + spec.horizon)
    if not whole.covers(window):
        raise TraceError(
            f"{spec.file}: found a trace from {format_instant(whole.first or 0)} to {format_instant(whole.end)}; "
            f"allowed is one that covers the {format_duration(spec.horizon)} from {format_instant(start)}"
        )
    signal = whole.between(window).shifted(-start).resampled(spec.interval)
    if spec.peak is None:
        return signal
    try:
        return signal.scaled(peak=spec.peak, window=Term(0, spec.horizon))
    except ValueError as error:
        raise TraceError(f"{spec.file}: {error}") from error


def _read(spec: SignalSpec, path: Path) -> Signal:
    changed = path.stat().st_mtime_ns if path.exists() else 0
    if path.name.removesuffix(".gz").endswith(".swf"):
        column = "wanted_procs" if spec.column is None else spec.column
        load = next((load for load in JOB_LOADS if load == column), None)
        if load is None:
            raise TraceError(f"{path}: found column {column!r}, allowed of an SWF file: {', '.join(JOB_LOADS)}")
        return _swf_kept(path, changed, load, spec.interval)
    return _csv_kept(
        path, changed, spec.time_column, 1 if spec.column is None else spec.column, spec.time_unit, spec.gaps
    )


@lru_cache(maxsize=4)
def _swf_kept(path: Path, changed: int, load: JobLoad, interval: Duration) -> Signal:
    """As :func:`_csv_kept`."""
    return swf_signal(swf_jobs(path), load, interval=interval)


@lru_cache(maxsize=4)
def _csv_kept(path: Path, changed: int, time: str | int, value: str | int, unit: TimeUnit, gaps: Gaps) -> Signal:
    """A whole trace, kept: guests that follow different parts of it read it once. ``changed`` is when the file was."""
    return read_csv(path, time=time, value=value, unit=unit, gaps=gaps)
