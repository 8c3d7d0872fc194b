"""What switching idle cores off saves with and without reservations, on a job log (Rossigneux, Lefèvre, Dias de
Assunção).

Two workloads are made of a log (:mod:`.requests`): requests in advance, as they were scheduled, and the same
requests as users of a cloud without reservations would make them, each with the capacity that it needs. Both are run
under the energy manager with several forecasts (:mod:`.drive`), and compared with a site whose cores are all on, where
requests take their cores when they start; figures are those of :mod:`.metrics`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from leasekit.core.signals import SignalSteps
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Term
from leasekit.emulation import plots
from leasekit.emulation.energy.drive import CORE, Course, Latencies, drive
from leasekit.emulation.energy.metrics import delay_req, e_savings, res_idle
from leasekit.emulation.energy.requests import (
    LOGS,
    EnergyRequest,
    WorkingHours,
    capacity_for,
    on_demand,
    peak,
    read_requests,
    window_of,
)
from leasekit.emulation.metrics import Series
from leasekit.emulation.outputs import write_results, write_rows
from leasekit.emulation.papers.claims import PaperClaim, judged
from leasekit.emulation.spread import Progress, spread_over
from leasekit.policies.authority.energy import EnergySettings
from leasekit.policies.authority.energy_plan import EnergyPowerSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORE_HOUR: Final = HOUR // SECOND


@attrs.frozen(kw_only=True)
class EnergySetup:
    """How to run the experiment, on the first ``days`` of the log (0: all of it). Durations are milliseconds."""

    days: int = 14
    safety: float = 0.1
    hours: tuple[int, int] = (8, 18)
    latencies: Latencies = attrs.Factory(Latencies)
    power: EnergyPowerSettings = attrs.field(
        default=attrs.Factory(lambda self: EnergyPowerSettings(boot=self.latencies.boot), takes_self=True)
    )
    suspend_below: Duration = 30 * MINUTE


class Strategy(NamedTuple):
    """A name, whether requests are made in advance, the forecast (none: all cores stay on), and whether cores are
    suspended that are expected to be idle for a short time only.
    """

    name: str
    reservations: bool
    forecast: str = ""
    suspends: bool = False


STRATEGIES: Final = tuple(
    Strategy(f"{workload}, {name}", workload == "reservations", forecast, suspends)
    for workload in ("on demand", "reservations")
    for name, forecast, suspends in (
        ("all on", "", False), ("last value", "last", False), ("EWMA", "ewma", False),
        ("EWMA, suspend", "ewma", True),
    )
)  # fmt: skip


class Workloads(NamedTuple):
    """The two workloads of a log, and how many requests the first rule moved to their submission."""

    log: str
    in_advance: list[EnergyRequest]
    on_demand: list[EnergyRequest]
    moved: int

    def of(self, strategy: Strategy) -> list[EnergyRequest]:
        """The one that a strategy is run on."""
        return self.in_advance if strategy.reservations else self.on_demand


class EnergyFound(NamedTuple):
    """One strategy's figures, cores in use and off by day, and how long it took, in seconds."""

    figures: dict[str, Any]
    daily: dict[str, list[float]]
    took: float


def read_workloads(log: str, setup: EnergySetup, data: Path | None = None) -> Workloads:
    """The workloads of a log by name. Raises ``LeasekitError`` where it is missing or malformed."""
    requests = read_requests(log, data)
    if setup.days:
        until = requests[0].start + setup.days * DAY
        requests = [request for request in requests if request.start < until]
    hours = WorkingHours(zone=LOGS[log].zone, begin=setup.hours[0], end=setup.hours[1])
    adapted, moved = on_demand(requests, hours)
    return Workloads(log, requests, adapted, moved)


def run_strategy(workloads: Workloads, strategy: Strategy, setup: EnergySetup) -> EnergyFound:
    """One strategy over the whole log."""
    begin = time.perf_counter()
    requests = workloads.of(strategy)
    capacity, window = capacity_for(requests, setup.safety), window_of(requests)
    if strategy.forecast:
        power = attrs.evolve(setup.power, suspend_below=setup.suspend_below if strategy.suspends else 0)
        settings = EnergySettings(types=(CORE,), forecast=strategy.forecast, **attrs.asdict(power))
        course = drive(requests, capacity, settings, setup.latencies)
    else:
        course = Course(used=_used(requests))
    used, off, suspended, delayed = course.used, course.off, course.suspended, course.delayed
    idle, saved, slept = res_idle(capacity, used, window), e_savings(off, window), e_savings(suspended, window)
    figures = {
        "strategy": strategy.name,
        "reservations": strategy.reservations,
        "forecast": strategy.forecast,
        "capacity": capacity,
        "idle_core_h": round(idle / CORE_HOUR),
        "off_core_h": round(saved / CORE_HOUR),
        "suspended_core_h": round(slept / CORE_HOUR),
        "off_share_of_idle": round(saved / idle, 4) if idle else 0.0,
        "on_core_h": round((capacity * window.length / SECOND - saved - slept) / CORE_HOUR),
        "delay_req": round(delay_req(delayed), 1),
        "delayed": len(delayed),
        "delayed_share": round(len(delayed) / len(requests), 4),
        "known_ahead_and_delayed": course.late,
        "not_served": course.refused,
        "mean_boot_s": round(sum(one.boot for one in delayed) / len(delayed) / SECOND, 1) if delayed else 0.0,
        "switched": course.switched,
    }
    daily = {"used": _daily(used, window), "off": _daily(off, window), "suspended": _daily(suspended, window)}
    return EnergyFound(figures, daily, time.perf_counter() - begin)


def _used(requests: Sequence[EnergyRequest]) -> Series:
    """The cores that requests use if none has to wait."""
    changes = sorted(
        change
        for request in requests
        for change in ((request.start, request.cores), (request.start + request.duration, -request.cores))
    )
    series = Series()
    for at, change in changes:
        series.add(at, change)
    return series


def _daily(series: SignalSteps, window: Term) -> list[float]:
    return [
        round(series.integral(Term(at, min(at + DAY, window.end))) / min(DAY, window.end - at), 3)
        for at in range(window.start, window.end, DAY)
    ]


def run_all(
    workloads: Workloads, setup: EnergySetup = EnergySetup(), *, jobs: int = 1, progress: Progress | None = None
) -> list[EnergyFound]:
    """Every strategy, on so many processes, in the order of :data:`STRATEGIES`."""
    return list(spread_over(partial(run_strategy, workloads, setup=setup), STRATEGIES, jobs, "energy", progress))


# -- what it came to -------------------------------------------------------------------------------------------------


def summarize(workloads: Workloads, found: Sequence[EnergyFound], setup: EnergySetup) -> dict[str, Any]:
    """What repeats for a log and a setup, as plain data."""
    requests = workloads.in_advance
    window = window_of(requests)
    ahead = sum(request.start > request.submit for request in requests)
    return {
        "log": workloads.log,
        "file": LOGS[workloads.log].file,
        "zone": LOGS[workloads.log].zone,
        "setup": attrs.asdict(setup),
        "requests": len(requests),
        "made_in_advance": ahead,
        "moved_to_submission": workloads.moved,
        "days": round(window.length / DAY, 1),
        "peak": {"on demand": peak(workloads.on_demand), "reservations": peak(requests)},
        "strategies": [one.figures for one in found],
        "claims": judged(claims(workloads.log), figures(workloads.log, found)),
    }


def measured(found: Sequence[EnergyFound]) -> dict[str, float]:
    """How long each strategy took, in seconds."""
    return {one.figures["strategy"]: round(one.took, 2) for one in found}


CORES: Final = "cores needed on demand, of those with reservations"
IDLE: Final = "idle core-hours with reservations, of those on demand"
DELAY: Final = "{}: weighted delay with reservations, of that on demand"
OFF: Final = "off, of idle: {}"
FORECASTS: Final = ("last value", "EWMA", "EWMA, suspend")


def claims(log: str) -> list[PaperClaim]:
    """What the paper says in words: that a ratio is above 1, or below. It has no figures of results; ours are shown."""
    more, *less = (f"{log}: {what}" for what in (CORES, IDLE, *map(DELAY.format, FORECASTS)))
    return [
        PaperClaim("section 5", more, "above 1", low=1),
        *(PaperClaim("section 5", what, "below 1", high=1) for what in less),
        *(PaperClaim("section 5", f"{log}: {OFF.format(one.name)}") for one in STRATEGIES if one.forecast),
    ]


def figures(log: str, found: Sequence[EnergyFound]) -> dict[str, list[float]]:
    """The figures of :func:`claims`."""
    by_name: Mapping[str, Mapping[str, Any]] = {one.figures["strategy"]: one.figures for one in found}
    cloud, ahead = by_name["on demand, all on"], by_name["reservations, all on"]
    pairs = {CORES: (cloud["capacity"], ahead["capacity"]), IDLE: (ahead["idle_core_h"], cloud["idle_core_h"])}
    pairs |= {
        DELAY.format(name): (by_name[f"reservations, {name}"]["delay_req"], by_name[f"on demand, {name}"]["delay_req"])
        for name in FORECASTS
    }
    ratios = {what: round(one / other, 3) if other else 0.0 for what, (one, other) in pairs.items()}
    ratios |= {OFF.format(name): one["off_share_of_idle"] for name, one in by_name.items()}
    return {f"{log}: {what}": [value] for what, value in ratios.items()}


# -- files -----------------------------------------------------------------------------------------------------------


def write(
    out: Path | None, summary: Mapping[str, Any], times: Mapping[str, float], found: Sequence[EnergyFound]
) -> list[Path]:
    """Write summary.json, measured.json, strategies.csv, daily.csv and the pictures, which are returned: see
    :func:`.outputs.write_results`.
    """

    def others(out: Path) -> Iterator[Path]:
        write_rows(out / "strategies.csv", list(found[0].figures), (list(one.figures.values()) for one in found))
        write_rows(out / "daily.csv", ("day", "strategy", "used", "off", "suspended"), _daily_rows(found))
        yield from (*_draw_cores(out, summary, found), *_draw_hours(out, summary), *_draw_delays(out, summary))

    return write_results(out, summary, times, others)


def _daily_rows(found: Sequence[EnergyFound]) -> Iterator[Sequence[object]]:
    for one in found:
        for day, values in enumerate(zip(*one.daily.values(), strict=True)):
            yield (day, one.figures["strategy"], *values)


def _draw_cores(out: Path, summary: Mapping[str, Any], found: Sequence[EnergyFound]) -> tuple[Path, Path]:
    """Cores in use and on by day, without and with reservations, under the manager with the last value."""
    chosen = [one for one in found if one.figures["forecast"] == "last"]

    def draw(figure: Figure) -> None:
        for axes, one in zip(plots.stacked(figure, len(chosen)), chosen, strict=True):
            capacity = one.figures["capacity"]
            days = range(len(one.daily["used"]))
            on = [capacity - off - slept for off, slept in zip(one.daily["off"], one.daily["suspended"], strict=True)]
            axes.step(days, [capacity] * len(days), where="post", color=plots.BLACK, label="there")
            axes.step(days, on, where="post", color=plots.VERMILION, label="on")
            axes.fill_between(days, one.daily["used"], step="post", color=plots.BLUE, alpha=0.35, label="in use")
            axes.set_title(one.figures["strategy"], fontsize=10)
            axes.set(ylabel="cores, mean of a day", ylim=(0, None))
        figure.axes[-1].set_xlabel("days")
        plots.headline(figure, f"Cores of {summary['log']}", figure.axes[0], loc="outside right upper")

    return plots.draw_figure(out / "cores", (9.0, 5.5), draw)


def _draw_hours(out: Path, summary: Mapping[str, Any]) -> tuple[Path, Path]:
    """What becomes of each strategy's core-hours."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows = summary["strategies"]
        parts = {
            "in use": [row["on_core_h"] + row["off_core_h"] + row["suspended_core_h"] - row["idle_core_h"] for row in
            rows], "idle and on": [row["idle_core_h"] - row["off_core_h"] - row["suspended_core_h"] for row in rows],
            "suspended": [row["suspended_core_h"] for row in rows], "off": [row["off_core_h"] for row in rows],
        }  # fmt: skip
        colors = (plots.BLUE, plots.VERMILION, plots.SKY, plots.DEMAND_FILL)
        _bars(axes, [row["strategy"] for row in rows], parts, colors)
        axes.set(title=f"Core-hours of {summary['log']}", xlabel="million core-hours")
        axes.legend(loc="lower right")

    return plots.draw_figure(out / "core_hours", (9.0, 4.5), draw)


def _bars(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], colors: Sequence[str]) -> None:
    left = [0.0] * len(names)
    for (label, values), color in zip(parts.items(), colors, strict=True):
        millions = [value / 1e6 for value in values]
        axes.barh(names, millions, left=left, color=color, label=label)
        left = [low + value for low, value in zip(left, millions, strict=True)]
    axes.invert_yaxis()


def _draw_delays(out: Path, summary: Mapping[str, Any]) -> tuple[Path, Path]:
    """The trade: core-hours that are on while idle, and weighted delay."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, row in enumerate(summary["strategies"]):
            wasted = (row["idle_core_h"] - row["off_core_h"] - row["suspended_core_h"]) / 1000
            color = plots.BLUE if row["reservations"] else plots.VERMILION
            marker = plots.MARKERS[index % (len(STRATEGIES) // 2)]
            axes.plot([wasted], [row["delay_req"] / 1000], marker, color=color, label=row["strategy"], linestyle="")
        axes.set(
            title=f"What is wasted, and who waits: {summary['log']}", xlabel="thousand core-hours on and idle",
            xscale="log", ylabel="weighted delay, thousands", ylim=(0, None),
        )  # fmt: skip
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.xaxis.set_minor_formatter("")
        axes.legend()

    return plots.draw_figure(out / "delays", (7.5, 4.5), draw)
