"""``leasekit experiment``: experiments that are more than one deploy file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from leasekit.cli.output import console, example, json_option, note, print_json, print_table

SCENARIOS = ("normal", "service_levels", "load_balancing", "preference_domain", "preference_size")
"""As in the experiment itself, which is imported when it is run."""


@click.group()
def experiment() -> None:
    """Repeat experiments of papers that leasekit builds on."""


@experiment.command(epilog=example("leasekit experiment coallocation --data ../shared/data --seeds 10 --out results"))
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the testbed is [LEASEKIT_DATA].")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where pictures, CSV files and JSON go.")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many, from 1 on.")
@click.option(
    "--scenario", "scenarios", type=click.Choice(SCENARIOS), multiple=True, help="Only these (repeat it) [all]."
)
@click.option(
    "--starts",
    type=click.Choice(["equidistant", "breakpoints", "both"]),
    default="equidistant",
    show_default=True,
    help="Which starts of a window are tried.",
)
@click.option("--frames", type=click.IntRange(1, 1000), default=10, show_default=True, help="Equidistant starts.")
@click.option("--sort", type=click.Choice(["value", "start"]), default="value", show_default=True, help="Best plan by.")
@click.option("--pmax", type=click.IntRange(0), default=2, show_default=True, help="Most links of a path (0: any).")
@click.option("--load", type=click.FloatRange(0, 100, min_open=True), default=1.0, help="Times as many requests [1].")
@click.option("--jobs", type=click.IntRange(1), default=None, metavar="N", help="Processes [one for each CPU].")
@json_option
def coallocation(
    data: Path | None,
    out: Path | None,
    seeds: int,
    scenarios: tuple[str, ...],
    starts: Any,
    frames: int,
    sort: Any,
    pmax: int,
    load: float,
    jobs: int | None,
    as_json: bool,
) -> None:
    """The simulation of the co-allocation paper: success, utilisation and planning times as the load grows.

    Two users ask for sites with bandwidth between them on the paper's testbed, for 24 hours. The same seeds give
    the same results, but for planning times.
    """
    from leasekit.emulation import coallocation_experiment as simulation

    testbed = simulation.read_testbed(data)
    setup = simulation.Setup(pmax=pmax or None, starts=starts, frames=frames, sort=sort, load=load)
    wanted = [name for name in SCENARIOS if name in (scenarios or SCENARIOS)]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = jobs or cpus or 1
    with _bar() as progress:
        tallies = simulation.run_all(testbed, wanted, range(1, seeds + 1), setup, jobs=workers, progress=progress)
    summary, times = simulation.summarize(testbed, tallies, setup), simulation.measured(tallies)
    pictures = [] if out is None else simulation.write(out, summary, times, tallies)
    if as_json:
        print_json({**summary, "measured": times})
    else:
        _print(summary, times)
    if out is not None:
        note(f"written to {out}; pictures: {', '.join(path.name for path in pictures)}")


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None] | None]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    where = console(stderr=True)
    if not where.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _print(summary: Mapping[str, Any], times: Mapping[str, Any]) -> None:
    loads = [f"{load}%" for load in summary["loads_pct"]]
    rows = []
    for name, found in summary["scenarios"].items():
        for user, ratios in found["success"].items():
            rows.append((name, user, *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios)))
    print_table(("success", "user", *loads), rows, empty="no runs", right=loads)
    shares = [
        (name, site, *(f"{share:.2f}" for share in found["utilisation"][site]))
        for name, found in summary["scenarios"].items()
        for site in found["utilisation"]
    ]
    print_table(("utilisation", "site", *loads), shares, empty="no runs", right=loads)
    planning = [(name, found["mean_ms"], found["p99_ms"], found["max_ms"]) for name, found in times.items()]
    print_table(("planning (ms)", "mean", "99 %", "max"), planning, empty="", right=("mean", "99 %", "max"))
    compared = [
        (row["what"], f"{row['low']:g} to {row['high']:g}", row["found"], "ok" if row["ok"] else "differs")
        for row in summary["comparison"]
    ]
    print_table(("against the paper", "expected", "found", ""), compared, empty="", right=("expected", "found"))
