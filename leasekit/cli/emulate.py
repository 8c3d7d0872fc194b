"""``leasekit emulate``: a deploy file in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekit.cli.output import console, example, json_option, note, print_json, print_table

if TYPE_CHECKING:
    from leasekit.emulation.experiment import Progress


@click.command(
    epilog=example(
        "leasekit emulate deploy/emulation/month.toml --synthetic --out run/month",
        "leasekit emulate deploy/emulation/terms.toml --data ../shared/data --json",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where pictures, CSV files and the summary go."
)
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the traces are [LEASEKIT_DATA].")
@click.option("--synthetic", is_flag=True, help="Use generated load instead of traces.")
@click.option("--seed", type=int, metavar="N", help="Another seed than the file's.")
@click.option("--signatures/--no-signatures", default=None, help="Sign and verify, or not, whatever the file says.")
@json_option
def emulate(
    file: Path,
    out: Path | None,
    data: Path | None,
    synthetic: bool,
    seed: int | None,
    signatures: bool | None,
    as_json: bool,
) -> None:
    """Run a deploy file in virtual time, in every variant that its [emulation] table names, and sum it up.

    The actors, mappers, tickets and messages are those of the daemons; drivers are replaced by how long they take.
    The same file and seed give the same summary, but for what was measured with a clock.
    """
    from leasekit.emulation.experiment import run_file

    with progress_bars() as progress:
        summary = run_file(
            file, out, data=data, synthetic=synthetic, seed=seed, signatures=signatures, progress=progress
        )
    if as_json:
        print_json(summary)
        return
    print_summary(summary)
    if out is not None:
        pictures = ", ".join(summary.get("pictures", ())) or "none"
        note(f"written to {out}; pictures: {pictures}")


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """A bar for each run on standard error, where that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    where = console(stderr=True)
    if not where.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(run: str, share: float) -> None:
            if run not in tasks:
                tasks[run] = bars.add_task(run or "emulating", total=1.0)
            bars.update(tasks[run], completed=share)

        yield show


def print_summary(summary: Mapping[str, Any]) -> None:
    """The summary of an experiment as a table, a line for each guest of each run."""
    rows = []
    for run in summary["runs"]:
        measured = run["measured"]
        for name, guest in run["guests"].items():
            rows.append(
                (
                    run["run"] or summary["deployment"],
                    name,
                    _figure(guest.get("mean_demand")),
                    _figure(guest.get("mean_leased")),
                    _figure(guest.get("rmse")),
                    _percent(guest.get("unserved")),
                    _percent(guest.get("idle")),
                    _figure(guest["fidelity"]),
                    f"{measured['wall_s']:.1f}",
                    f"{measured['alpha_ms']:.4f}",
                    run["events"],
                )
            )
    columns = (
        "run",
        "guest",
        "demand",
        "leased",
        "rmse",
        "unserved",
        "idle",
        "fidelity",
        "wall s",
        "ms a tick",
        "events",
    )
    print_table(columns, rows, empty="no runs", right=columns[2:])
    _print_types(summary)
    _print_topologies(summary)
    parts = [f"seed {summary['seed']}", "signed" if summary["signatures"] else "signatures off"]
    parts += ["generated load"] if summary["synthetic"] else []
    parts += [f"ticks executed: {_ticks(summary['runs'])}"] if summary["runs"] else []
    note("; ".join(parts))


def _print_types(summary: Mapping[str, Any]) -> None:
    """What guests held that leased units of several types, which are not added: they may be different things."""
    rows = [
        (run["run"] or summary["deployment"], name, kind, _figure(held["mean_leased"]), _figure(held["peak_leased"]))
        for run in summary["runs"]
        for name, guest in run["guests"].items()
        for kind, held in (guest["types"].items() if len(guest["types"]) > 1 else ())
    ]
    if rows:
        print_table(("run", "guest", "type", "leased", "peak"), rows, empty="", right=("leased", "peak"))


def _print_topologies(summary: Mapping[str, Any]) -> None:
    """What became of the topologies of those guests that asked for any."""
    counts = ("asked", "granted", "refused", "given_up", "waiting")
    rows = [
        (run["run"] or summary["deployment"], name, *(guest["topologies"][count] for count in counts))
        for run in summary["runs"]
        for name, guest in run["guests"].items()
        if "topologies" in guest
    ]
    if rows:
        columns = ("topologies asked for", *(count.replace("_", " ") for count in counts[1:]))
        print_table(("run", "guest", *columns), rows, empty="", right=columns)


def _ticks(runs: Sequence[Mapping[str, Any]]) -> str:
    """Which ticks were executed, in which runs where they differ."""
    found = Counter(run["ticks_executed"] for run in runs)
    if len(found) == 1:
        return str(runs[0]["ticks_executed"])
    return ", ".join(f"{which} in {count} runs" if count > 1 else f"{which} in 1 run" for which, count in found.items())


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"
