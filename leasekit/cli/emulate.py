"""``leasekit emulate``: a deploy file in virtual time."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekit.cli.output import console, example, json_option, note, print_table, report
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.emulation.experiment import Progress

INTERRUPTED = 130


@click.command(
    epilog=example(
        "leasekit emulate deploy/emulation/month.toml --synthetic --out run/month",
        "leasekit emulate deploy/emulation/terms.toml --data ../shared/data --json",
        "leasekit emulate deploy/emulation/terms.toml --synthetic --run 1d --run 7d",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where pictures, CSV files and the summary go."
)
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the traces are [LEASEKIT_DATA].")
@click.option("--synthetic", is_flag=True, help="Use generated load instead of traces.")
@click.option("--seed", type=int, metavar="N", help="Another seed than the file's.")
@click.option("--run", "only", multiple=True, metavar="NAME", help="Only this run of the file's (repeat it) [all].")
@click.option("--allow-mapper-errors", is_flag=True, help="End with 0 also where a mapper went wrong.")
@click.option("--signatures/--no-signatures", default=None, help="Sign and verify, or not, whatever the file says.")
@json_option
def emulate(
    file: Path,
    out: Path | None,
    data: Path | None,
    synthetic: bool,
    seed: int | None,
    only: tuple[str, ...],
    allow_mapper_errors: bool,
    signatures: bool | None,
    as_json: bool,
) -> int:
    """Run a deploy file in virtual time, in every variant that its [emulation] table names, and sum it up.

    The actors, mappers, tickets and messages are those of the daemons; drivers are replaced by how long they take.
    The same file and seed give the same summary, but for what was measured with a clock.

    What a mapper does wrong is told at once, and the exit status is 1. A turn over the limit (emulation.turn_limit, one
    minute) ends the run; so does Ctrl-C. The summary, files and pictures are then of the runs that were done.
    """
    from leasekit.emulation.experiment import INTERRUPT, run_file

    with progress_bars() as progress:
        summary = run_file(
            file, out, data=data, synthetic=synthetic, seed=seed, signatures=signatures, only=only, tell=note,
            progress=progress,
        )  # fmt: skip
    report(summary, print_summary, as_json=as_json)
    if out is not None and not as_json:
        pictures = ", ".join(summary.get("pictures", ())) or "none"
        note(f"written to {out}; pictures: {pictures}")
    wrong = _mapper_errors(summary)
    for line in wrong:
        note(line)
    stopped_by = summary.get("stopped_by", "")
    if stopped_by:
        again = [str(file), *(["--data", str(data)] if data else []), *(["--synthetic"] if synthetic else [])]
        again += [] if seed is None else ["--seed", str(seed)]
        again += [] if signatures is None else ["--signatures" if signatures else "--no-signatures"]
        again += ["--allow-mapper-errors"] if allow_mapper_errors else []
        _say_how_to_go_on(again, out, summary)
        if stopped_by != INTERRUPT:
            raise LeasekitError(stopped_by)
        return INTERRUPTED
    return 1 if wrong and not (allow_mapper_errors or summary["mapper_errors_allowed"]) else 0


def _mapper_errors(summary: Mapping[str, Any]) -> list[str]:
    """A line for each actor whose mapper went wrong, over all runs."""
    counts: dict[str, Counter[str]] = {}
    for run in summary["runs"]:
        for actor, kinds in run["mapper_errors"].items():
            counts.setdefault(actor, Counter()).update(kinds)
    return went_wrong({f"of {actor}": kinds for actor, kinds in counts.items()})


def went_wrong(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each mapper that went wrong at all, by how often and how."""
    return [
        f"the mapper {which} went wrong: {', '.join(f'{kind}: {count}' for kind, count in sorted(kinds.items()))}"
        for which, kinds in counts.items()
        if kinds
    ]


def _say_how_to_go_on(arguments: Sequence[str], out: Path | None, summary: Mapping[str, Any]) -> None:
    """How many runs were done, and with which command the others can be."""
    missing, done = summary["not_run"], len(summary["runs"])
    note(f"stopped: {done} of {done + len(missing)} runs are done")
    if any(missing):
        options = [option for name in missing for option in ("--run", name)]
        options += [] if out is None else ["--out", f"{out}-2"]
        note(f"to go on: leasekit emulate {shlex.join([*arguments, *options])}")


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
                    _percent(guest.get("idle_leased")),
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
        "idle leased",
        "fidelity",
        "wall s",
        "ms a tick",
        "events",
    )
    print_table(columns, rows, empty="no runs", right=columns[2:])
    _print_sites(summary)
    _print_types(summary)
    _print_topologies(summary)
    parts = [f"seed {summary['seed']}", "signed" if summary["signatures"] else "signatures off"]
    parts += ["generated load"] if summary["synthetic"] else []
    parts += [f"ticks executed: {_ticks(summary['runs'])}"] if summary["runs"] else []
    note("; ".join(parts))


def _print_sites(summary: Mapping[str, Any]) -> None:
    """What became of what each site has of each type, and of the requests for it."""
    rows = [
        (
            run["run"] or summary["deployment"], name, kind, one["capacity"], f"{one['bought_unit_h']:,.0f}",
            *(_percent(one[share]) for share in ("used", "idle", "out_of_service")), one["failed"],
            *(one["requests"][count] for count in ("asked", "refused", "waited")),
            _span(one["requests"]["mean_wait_s"]) if one["requests"]["waited"] else "",
        )
        for run in summary["runs"]
        for name, site in run["sites"].items()
        for kind, one in site["types"].items()
    ]  # fmt: skip
    columns = (
        "run", "site", "type", "units", "bought unit-h", "used", "idle", "out of service", "failed", "asked", "refused",
        "waited", "mean wait",
    )  # fmt: skip
    if rows:
        print_table(columns, rows, empty="", right=columns[3:])


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f}h" if seconds >= 3600 else f"{seconds / 60:.1f}m"


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
