"""``leasekit experiment``: experiments that are more than one deploy file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from leasekit.cli.output import console, example, json_option, note, print_json, print_table
from leasekit.cli.times import SPAN, Count, Number

SCENARIOS = ("normal", "service_levels", "load_balancing", "preference_domain", "preference_size")
"""As in the experiment itself, which is imported when it is run."""


@click.group()
def experiment() -> None:
    """Repeat experiments of papers that leasekit builds on."""


@experiment.command(epilog=example("leasekit experiment coallocation --data ../shared/data --seeds 10 --out results"))
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the testbed is [LEASEKIT_DATA].")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where pictures, CSV files and JSON go.")
@click.option("--seeds", type=Count(1, 10_000), default=5, show_default=True, help="How many, from 1 on.")
@click.option(
    "--scenario", "scenarios", type=click.Choice(SCENARIOS), multiple=True, help="Only these (repeat it) [all]."
)
@click.option(
    "--starts",
    type=click.Choice(["equidistant", "breakpoints", "both"]),
    default="both",
    show_default=True,
    help="Which starts of a window are tried.",
)
@click.option("--frames", type=Count(1, 1000), default=10, show_default=True, help="Equidistant starts.")
@click.option("--sort", type=click.Choice(["value", "start"]), default="value", show_default=True, help="Best plan by.")
@click.option("--pmax", type=Count(0), default=2, show_default=True, help="Most links of a path (0: any).")
@click.option("--load", type=Number(0, 100, min_open=True), default=1.0, help="Times as many requests [1].")
@click.option("--jobs", type=Count(1), default=None, metavar="N", help="Processes [one for each CPU].")
@click.option("--actors", is_flag=True, help="Go on to the second day: the leases are redeemed.")
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
    actors: bool,
    as_json: bool,
) -> None:
    """The simulation of the co-allocation paper: success, utilisation and planning times as the load grows.

    Two users ask for sites with bandwidth between them on the paper's testbed, for 24 hours: guests send requests to a
    broker that plans and holds them, in virtual time. The same seeds give the same results, but for planning times.

    With --actors the leases of what was granted are followed to the second day, on which site authorities set them up.
    """
    from leasekit.emulation.coallocation import actors as coallocation_actors
    from leasekit.emulation.coallocation import experiment as simulation
    from leasekit.emulation.outputs import make_folder

    testbed = simulation.read_testbed(data)
    if out is not None:
        make_folder(out)
    setup = simulation.CoallocationSetup(pmax=pmax or None, starts=starts, frames=frames, sort=sort, load=load)
    wanted = [name for name in SCENARIOS if name in (scenarios or SCENARIOS)]
    with _bar() as progress:
        tallies, leases = coallocation_actors.run_all(
            testbed, wanted, range(1, seeds + 1), setup, redeem=actors, jobs=jobs or _cpus(), progress=progress
        )
    summary, times = simulation.summarize(testbed, tallies, setup), simulation.measured(tallies)
    pictures = [] if out is None else simulation.write(out, summary, times, tallies)
    if as_json:
        print_json({**summary, "measured": times, **({"leases": leases} if actors else {})})
    else:
        _print(summary, times)
        if actors:
            _print_leases(leases)
    if out is not None:
        note(f"written to {out}; pictures: {', '.join(path.name for path in pictures)}")


def _cpus() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cpus or 1


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


def _print_leases(leases: Mapping[str, Mapping[str, int]]) -> None:
    """What became of the leases."""
    columns = ("asked for", "active", "messages", "events")
    rows = [(name, *found.values()) for name, found in leases.items()]
    print_table(("leases, by actors", *columns), rows, empty="", right=columns)


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
    print_comparison(summary)


def print_comparison(summary: Mapping[str, Any]) -> None:
    """What the paper says beside what was found, or why that can't be held against it."""
    if summary["not_the_papers"]:
        note(f"not held against the paper, whose settings are others: {', '.join(summary['not_the_papers'])}")
        return
    seeds = len(summary["seeds"])
    alone = "one seed alone"
    compared = [
        (
            row["what"], f"{row['low']:g} to {row['high']:g}", row["found"],
            "" if row["least"] is None else f"{row['least']:g} to {row['most']:g}", row["verdict"],
        )
        for row in summary["comparison"]
    ]  # fmt: skip
    columns = (f"against the paper, {seeds} seed{'s' if seeds > 1 else ''}", "expected", "found", alone, "")
    print_table(columns, compared, empty="", right=("expected", "found", alone))
    if any(row["verdict"] == "noise" for row in summary["comparison"]):
        note("noise: with fewer than 3 seeds a difference says nothing; the docs' figures are of 10 and 40")


@experiment.command(epilog=example("leasekit experiment energy --data ../shared/data --log hpc2n --out results"))
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the logs are [LEASEKIT_DATA].")
@click.option(
    "--log", type=click.Choice(["kth-sp2", "hpc2n"]), default="kth-sp2", show_default=True, help="Which job log."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where pictures, CSV files and JSON go.")
@click.option("--boot", type=SPAN, default="3m", show_default=True, help="How long a core needs to come on.")
@click.option("--resume", type=SPAN, default="15s", show_default=True, help="The same after it was suspended.")
@click.option("--safety", type=Number(0, 10), default=0.1, show_default=True, help="Capacity beyond the peak.")
@click.option(
    "--suspend-below", type=SPAN, default="30m", show_default=True, help="Suspend what is expected to idle less."
)
@click.option("--minimum", type=Count(0), default=0, show_default=True, help="Cores that stay on.")
@click.option("--days", type=Count(0), default=14, show_default=True, help="Of the log, the first so many; 0: all.")
@click.option("--jobs", type=Count(1), default=None, metavar="N", help="Processes [one for each CPU].")
@json_option
def energy(
    data: Path | None,
    log: str,
    out: Path | None,
    boot: int,
    resume: int,
    safety: float,
    suspend_below: int,
    minimum: int,
    days: int,
    jobs: int | None,
    as_json: bool,
) -> None:
    """What switching idle cores off saves on a job log, with and without reservations, and who waits for it.

    The site, its energy manager (the mapper `energy`), the broker and the guest are those of a deployment, in virtual
    time. The same log gives the same figures.
    """
    from leasekit.emulation.energy import experiment as simulation
    from leasekit.emulation.energy.drive import Latencies
    from leasekit.emulation.outputs import make_folder
    from leasekit.policies.authority.energy_plan import EnergyPowerSettings

    setup = simulation.EnergySetup(
        days=days,
        safety=safety,
        latencies=Latencies(boot=boot, resume=resume),
        power=EnergyPowerSettings(boot=boot, minimum=minimum),
        suspend_below=suspend_below,
    )
    if out is not None:
        make_folder(out)
    workloads = simulation.read_workloads(log, setup, data)
    with _bar() as progress:
        found = simulation.run_all(workloads, setup, jobs=jobs or _cpus(), progress=progress)
    summary, times = simulation.summarize(workloads, found, setup), simulation.measured(found)
    pictures = [] if out is None else simulation.write(out, summary, times, found)
    if as_json:
        print_json({**summary, "measured": times})
    else:
        _print_energy(summary)
    if out is not None:
        note(f"written to {out}; pictures: {', '.join(path.name for path in pictures)}")


def _print_energy(summary: Mapping[str, Any]) -> None:
    numbers = ("cores", "idle core-h", "off", "suspended", "off / idle", "weighted delay", "delayed", "mean wait (s)")
    rows = [
        (
            one["strategy"], one["capacity"], f"{one['idle_core_h']:,}", f"{one['off_core_h']:,}",
            f"{one['suspended_core_h']:,}", f"{one['off_share_of_idle']:.1%}", f"{one['delay_req']:,.0f}",
            f"{one['delayed_share']:.1%}", one["mean_boot_s"],
        )
        for one in summary["strategies"]
    ]  # fmt: skip
    print_table((f"{summary['log']}, {summary['days']} days", *numbers), rows, empty="no runs", right=numbers)
    compared = [
        (row["what"], row["expected"], row["found"], "ok" if row["ok"] else "differs") for row in summary["claims"]
    ]
    print_table(("what the paper says", "expected", "found", ""), compared, empty="", right=("expected", "found"))
