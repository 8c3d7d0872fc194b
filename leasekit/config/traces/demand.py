"""The demand of an emulation: a spec from its file turned into a signal on its clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from leasekit.config.instants import format_instant, instant_setting
from leasekit.config.traces.csv_reader import Gaps, TimeUnit, read_csv
from leasekit.config.traces.places import TraceError, known_trace, missing_traces
from leasekit.config.traces.swf import JOB_LOADS, swf_jobs, swf_signal
from leasekit.config.traces.synthetic import BATCH, WEB, SyntheticSettings, synthetic
from leasekit.core.settings import DurationSetting
from leasekit.core.signals import Signal
from leasekit.core.time import DAY, MINUTE, Instant, Term, format_duration


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
    return open_signals({"signal": spec}, folder, synthetic=synthetic)["signal"]


def open_signals(specs: Mapping[str, SignalSpec], folder: Path | None, *, synthetic: bool = False) -> dict[str, Signal]:
    """Every signal of a deployment, by name; one :class:`TraceMissing` names all traces that are not there."""
    if not synthetic:
        names = dict.fromkeys(spec.file for spec in specs.values() if spec.file)
        if missing := [name for name in names if not _trace_path(name, folder).is_file()]:
            raise missing_traces(missing, folder)
    return {name: _opened_signal(spec, folder, synthetic) for name, spec in specs.items()}


def _trace_path(name: str, folder: Path | None) -> Path:
    return Path(name) if folder is None else folder / name


def _opened_signal(spec: SignalSpec, folder: Path | None, generated: bool) -> Signal:
    signal = _generated(spec) if not spec.file or generated else _from_trace(spec, _trace_path(spec.file, folder))
    return signal.rounded_up() if spec.whole_units else signal


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
    names = path.name.removesuffix(".gz")
    if names.endswith(".swf"):
        column = "wanted_procs" if spec.column is None else spec.column
        load = next((load for load in JOB_LOADS if load == column), None)
        if load is None:
            raise TraceError(f"{path}: found column {column!r}, allowed of an SWF file: {', '.join(JOB_LOADS)}")
        return swf_signal(swf_jobs(path), load, interval=spec.interval)
    column = 1 if spec.column is None else spec.column
    return read_csv(path, time=spec.time_column, value=column, unit=spec.time_unit, gaps=spec.gaps)
