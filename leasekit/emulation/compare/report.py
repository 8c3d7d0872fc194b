"""Files of a comparison: the summaries, a row for each mapper and for each piece of work, and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from leasekit.core.measures import shown_figure
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.emulation.compare.drive import REFUSED
from leasekit.emulation.compare.measures import Columns, Measured, bounded_slowdowns, ends_of, stretches
from leasekit.emulation.compare.works import Workload
from leasekit.emulation.outputs import write_json, write_rows
from leasekit.emulation.plots import DASHES, PALETTE, draw_figure, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS: Final = (
    "mapper",
    "requests",
    "accepted",
    "mean_wait_s",
    "median_wait_s",
    "p95_wait_s",
    "mean_bounded_slowdown",
    "utilisation",
    "fairness",
    "makespan_s",
)
"""The columns of ``summary.csv`` and of the printed table."""
_PANELS: Final = {
    "mean_wait_s": "mean wait (h)",
    "mean_bounded_slowdown": "mean bounded slowdown",
    "utilisation": "utilisation",
    "accepted": "accepted",
    "fairness": "fairness (Jain)",
}
_SHARES: Final = frozenset({"utilisation", "accepted", "fairness"})
BOOKED_SHARE: Final = 0.1
"""From what share of the work on it is remarked that starts were booked ahead, where as much ends early."""
DEEP: Final = 1_000
"""From how many on it is remarked that so many waited."""
_LOG_FROM: Final = 20.0
"""Bars whose heights differ by more than this factor are drawn on a logarithmic axis."""


def remarks(summary: dict[str, Any], workload: Workload) -> list[str]:
    """What the figures of a run don't say by themselves."""
    name, measured = summary["mapper"], summary["measured"]
    found = []
    early = sum(work.run < work.estimate for work in workload.works)
    if measured["booked_ahead"] > BOOKED_SHARE * len(workload.works) and early > BOOKED_SHARE * len(workload.works):
        found.append(
            f"{name}: {measured['booked_ahead']:,} starts were booked ahead, and stay where they are when other work "
            "ends before its estimate; mappers that let work wait in line (backfill, priority, fcfs:backfill=false) "
            "don't do that"
        )
    if measured["deepest_queue"] > DEEP:
        found.append(
            f"{name}: up to {measured['deepest_queue']:,} requests waited at a time: where that many wait, mean wait "
            "and slowdown say more about how long the workload is than about the mapper"
        )
    if measured["suspensions"]:
        found.append(f"{name}: work was suspended {measured['suspensions']:,} times; waits are up to the first start")
    return found


def write(out: Path, workload: Workload, nodes: int, runs: Sequence[Measured]) -> list[Path]:
    """All files of a comparison, into ``out``, which is made; returns them."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / "summary.json", out / "summary.csv", out / "requests.csv"]
    document = {"workload": workload.name, "nodes": nodes, "runs": [run.summary for run in runs]}
    write_json(files[0], document)
    write_rows(files[1], COLUMNS, ([run.summary[column] for column in COLUMNS] for run in runs))
    write_rows(files[2], *_requests(workload, runs))
    for name, size, draw in (
        ("measures", (11.0, 0.9 + 0.42 * len(runs) + 0.6), _measures),
        ("waits", (10.0, 4.2), _waits),
        ("usage", (10.0, 4.2), _usage),
    ):
        files += draw_figure(out / name, size, partial(draw, workload=workload, nodes=nodes, runs=runs))
    return files


def _requests(workload: Workload, runs: Sequence[Measured]) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """A row for each piece of work: what it asked for, and its start with each mapper (empty: refused)."""
    header = ["id", "holder", "kind", "submit_s", "units", "estimate_s", "run_s"]
    header += [f"start_s {run.summary['mapper']}" for run in runs]
    rows = (
        [
            work.id, work.holder, work.kind, _s(work.submit), work.units, _s(work.estimate), _s(work.run),
            *("" if run.starts[number] == REFUSED else _s(run.starts[number]) for run in runs),
        ]
        for number, work in enumerate(workload.works)
    )  # fmt: skip
    return header, rows


def _s(milliseconds: int) -> str:
    whole, rest = divmod(milliseconds, SECOND)
    return f"{whole}.{rest:03}" if rest else str(whole)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _measures(figure: Figure, workload: Workload, nodes: int, runs: Sequence[Measured]) -> None:
    """A panel for each measure, a bar for each mapper."""
    panels: Any = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
    names = [run.summary["mapper"] for run in runs]
    colours = [PALETTE[place % len(PALETTE)] for place in range(len(runs))]
    for axes, (key, title) in zip(panels, _PANELS.items(), strict=True):
        values = [run.summary[key] or 0.0 for run in runs]
        if key == "mean_wait_s":
            values = [value * SECOND / HOUR for value in values]
        axes.barh(range(len(runs)), values, color=colours, height=0.6)
        axes.set_title(title, fontsize=10)
        if min(values) > 0 and max(values) / min(values) > _LOG_FROM:
            axes.set_xscale("log")
            axes.set_xlim(min(values) / 3, max(values) * 10)
        else:
            axes.set_xlim(0, 1.35 * (1.0 if key in _SHARES else max(values) or 1.0))
        axes.set_xticks([])
        axes.set_xticks([], minor=True)
        for place, value in enumerate(values):
            axes.annotate(shown_figure(value), (value, place), xytext=(3, 0), textcoords="offset points", va="center")
    panels[0].set_yticks(range(len(runs)), names)
    panels[0].invert_yaxis()
    headline(figure, _title(workload, nodes))


def _waits(figure: Figure, workload: Workload, nodes: int, runs: Sequence[Measured]) -> None:
    """For waits and bounded slowdowns, the share of best-effort work that stays below."""
    left, right = cast(Any, figure.subplots(1, 2, sharey=True))
    columns = Columns.of(workload.works)
    for place, run in enumerate(runs):
        starts = np.asarray(run.starts, dtype=np.int64)
        chosen = (starts != REFUSED) & columns.best_effort
        if not chosen.any():
            continue
        waits = (starts - columns.submits)[chosen] / MINUTE
        _share_below(left, waits, place, run.summary["mapper"])
        slowdowns = bounded_slowdowns(columns, ends_of(columns, starts, run.suspended))[chosen]
        _share_below(right, slowdowns, place, run.summary["mapper"])
    left.set_xscale("symlog", linthresh=1)
    right.set_xscale("log")
    for axes in (left, right):
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e4 else f"{value:.0e}")
        axes.xaxis.set_minor_formatter("")
    left.set(xlabel="wait (minutes)", ylabel="share of best effort below", ylim=(0, 1))
    right.set_xlabel("bounded slowdown")
    headline(figure, _title(workload, nodes), right, loc="outside lower center", ncols=min(4, len(runs)))


def _share_below(axes: Axes, values: NDArray[Any], place: int, label: str) -> None:
    at = np.linspace(0.0, 1.0, 501)
    axes.plot(np.quantile(values, at), at, color=_colour(place), linestyle=_dash(place), label=label)


def _usage(figure: Figure, workload: Workload, nodes: int, runs: Sequence[Measured]) -> None:
    """The share of the units that ran work, as a mean over each of 200 stretches of time."""
    axes = figure.subplots()
    columns = Columns.of(workload.works)
    first = int(columns.submits[0])
    ran = [stretches(columns, np.asarray(run.starts, dtype=np.int64), run.suspended) for run in runs]
    last = max((int(each[1].max()) for each in ran if each.size), default=first) + 1
    grid = np.linspace(first, last, 201)
    for place, run in enumerate(runs):
        share = _shares(ran[place], nodes, grid)
        axes.stairs(
            share, (grid - first) / DAY, color=_colour(place), linestyle=_dash(place), label=run.summary["mapper"]
        )
    axes.set(xlim=(0, (last - first) / DAY), ylim=(0, 1.02))
    axes.set(xlabel="days since the first submission", ylabel="units running work")
    headline(figure, _title(workload, nodes), axes, loc="outside lower center", ncols=min(4, len(runs)))


def _shares(ran: NDArray[np.int64], nodes: int, grid: NDArray[Any]) -> NDArray[Any]:
    """By the area under the number of running units up to each point of the grid."""
    at = np.concatenate([ran[0], ran[1]])
    change = np.concatenate([ran[2], -ran[2]])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(change[order])
    if not at.size:
        return np.zeros(grid.size - 1)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    total = np.interp(grid, at, area)
    return cast("NDArray[Any]", np.diff(total) / np.diff(grid) / nodes)


def _title(workload: Workload, nodes: int) -> str:
    return f"{workload.name}: {len(workload.works):,} requests on {nodes:,} nodes"


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def _dash(place: int) -> str:
    return DASHES[place % len(DASHES)]
