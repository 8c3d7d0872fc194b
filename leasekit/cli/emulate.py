"""``leasekit emulate`` and ``leasekit experiment``: deploy files, and experiments of papers, in virtual time."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import SPAN, Count, Number, Shown, argument, command, gathered, option
from leasekit.cli.output import console, listing, note, print_table
from leasekit.core.errors import LeasekitError
from leasekit.core.measures import shown_figure
from leasekit.core.time import Duration

if TYPE_CHECKING:
    from leasekit.emulation.papers.claims import Means
    from leasekit.emulation.spread import Progress

INTERRUPTED = 130
LOGGED_EVERY_S: Final = 30.0
"""How often progress is told where no terminal shows it."""


@command(None)
def emulate(
    file: Path = argument(),
    out: Path | None = option("Where pictures, CSV files and the summary go.", metavar="DIR"),
    data: Path | None = option("Where the traces are [LEASEKIT_DATA].", metavar="DIR"),
    synthetic: bool = option("Use generated load instead of traces."),
    seed: int | None = option("Another seed than the file's.", metavar="N"),
    seeds: int | None = option("Each run with so many seeds, from that one on.", type=Count(1, 10_000), metavar="N"),
    only: tuple[str, ...] = option("Only this run of the file's (repeat it) [all].", "--run", metavar="NAME"),
    jobs: int = option("Processes.", type=Count(1), shown=1, metavar="N"),
    dask: str = option("Run on the Dask cluster of this scheduler.", metavar="ADDRESS"),
    resume: bool = option("Go on with --out: what it has of the same runs is not run again."),
    open_: bool = option("Then serve --out to a browser, as `leasekit runs` does, until Ctrl-C."),
    allow_mapper_errors: bool = option("End with 0 also where a mapper went wrong."),
    signatures: bool | None = option(
        "Sign and verify, or not, whatever the file says.", "--signatures/--no-signatures"
    ),
    against: tuple[Path, ...] = option(
        "Compare with the history of guests' daemons: their stores, a folder of them, or what `history export` has "
        "written (repeat it).",
        metavar="STORE",
    ),
    within: Duration | None = option(
        "With --against: instants no further apart than this are the same [5s].", metavar="SPAN"
    ),
) -> Shown:
    """Run a deploy file in virtual time, in every variant that its [emulation] table names, and sum it up.

    The actors, mappers, tickets and messages are those of the daemons; drivers are replaced by how long they take.
    The same file and seed give the same summary, but for what was measured with a clock.

    What a mapper does wrong is told at once, and the exit status is 1. A turn over the limit (emulation.turn_limit, one
    minute) ends the run; so does Ctrl-C. The summary, files and pictures are then of the runs that were done, and
    --resume goes on with the others, also after a crash.

    Example:
      leasekit emulate deploy/emulation/month.toml --synthetic --out run/month --open
      leasekit emulate deploy/emulation/terms.toml --data ../shared/data --json
      leasekit emulate deploy/emulation/terms.toml --synthetic --run 1d --run 7d
      leasekit emulate deploy/emulation/terms.toml --synthetic --jobs 4 --out run/terms --resume
      leasekit emulate all.toml --against run/quickstart
    """
    if against:
        from leasekit.cli.history import compared

        return compared(file, against, within, data, synthetic)
    if within is not None:
        raise click.UsageError("--within is for --against")
    if open_ and (out is None or click.get_current_context().params["as_json"]):
        raise click.UsageError("--open is for --out, and not for --json")
    from leasekit.emulation.experiment import INTERRUPT, run_file

    with progress_bars() as progress:
        summary = run_file(
            file, out, data=data, synthetic=synthetic, seed=seed, seeds=seeds, signatures=signatures, only=only,
            tell=note, progress=progress, jobs=jobs, dask=dask, resume=resume,
        )  # fmt: skip
    told: list[Any] = [print_summary]
    if out is not None:
        pictures = ", ".join(summary.get("pictures", ())) or "none"
        told.append(f"written to {out}; pictures: {pictures}")
    wrong = _mapper_errors(summary)
    for line in wrong:
        note(line)
    stopped_by = summary.get("stopped_by", "")
    if stopped_by:
        again = [str(file), *(["--data", str(data)] if data else []), *(["--synthetic"] if synthetic else [])]
        again += [] if seed is None else ["--seed", str(seed)]
        again += [] if seeds is None else ["--seeds", str(seeds)]
        again += [] if signatures is None else ["--signatures" if signatures else "--no-signatures"]
        again += ["--allow-mapper-errors"] if allow_mapper_errors else []
        again += ["--jobs", str(jobs)] if jobs > 1 else []
        again += ["--dask", dask] if dask else []
        again += [] if out is None else ["--out", str(out), "--resume", *(["--open"] if open_ else [])]
        _say_how_to_go_on(again, out is not None, only, summary)
        return summary, tuple(told), INTERRUPTED if stopped_by == INTERRUPT else LeasekitError(stopped_by)
    if open_ and out is not None:
        told.append(partial(_open, out))
    return summary, tuple(told), int(bool(wrong) and not (allow_mapper_errors or summary["mapper_errors_allowed"]))


def _open(folder: Path, _: object) -> None:
    from leasekit.cli.runs import open_folder

    open_folder(folder)


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


def _say_how_to_go_on(arguments: Sequence[str], resumes: bool, only: Sequence[str], summary: Mapping[str, Any]) -> None:
    """How many runs were done, and with which command the others can be: all that were wanted where it ``resumes``."""
    missing, done = summary["not_run"], len(summary["runs"])
    note(f"stopped: {done} of {done + len(missing)} runs are done")
    if any(missing):
        options = [option for name in (only if resumes else missing) for option in ("--run", name)]
        note(f"to go on: leasekit emulate {shlex.join([*arguments, *options])}")


@contextmanager
def progress_bars(one: str = "") -> Iterator[Progress | None]:
    """A bar for each run on standard error, or ``one`` for all, called so at first; where that is no terminal, a line
    now and then for who reads it as a log.
    """
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    where = console(stderr=True)
    if not where.is_terminal:
        yield _log_progress(one)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(run: str, share: float) -> None:
            key = one or run
            if key not in tasks:
                tasks[key] = bars.add_task(one or run or "emulating", total=1.0)
            bars.update(tasks[key], completed=share, description=run if one else None)

        yield show


def _log_progress(one: str) -> Progress:
    told = time.monotonic()

    def show(run: str, share: float) -> None:
        nonlocal told
        if time.monotonic() - told >= LOGGED_EVERY_S:
            told = time.monotonic()
            note(" ".join(part for part in (one, run, f"{share:.0%}") if part))

    return show


def _percent(share: float | None) -> str:
    return "" if share is None else f"{shown_figure(100 * share)}%"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    size, unit = (3600, "h") if seconds >= 3600 else (60, "m") if seconds >= 60 else (1, "s")
    return f"{shown_figure(seconds / size)}{unit}"


def _of(
    key: str, show: Callable[[Any], str] = shown_figure, called: str = ""
) -> tuple[str, Callable[[Mapping[str, Any]], str]]:
    """The column of a figure, ``called`` so or as its key; nothing where a thing has none."""
    return f">{called or key.replace('_', ' ')}", lambda one: show(one.get(key))


def _counted(codes: Mapping[str, int]) -> str:
    return ", ".join(f"{code}: {count}" for code, count in codes.items())


GUESTS: Final = listing(
    "run", "guest", _of("mean_demand", called="demand"), _of("mean_leased", called="leased"),
    _of("leased_unit_h", called="leased unit-h"), _of("rmse"), _of("unserved", _percent),
    _of("idle_leased", _percent), _of("fidelity"),
    _of("wall_s"), _of("alpha_ms", called="ms a tick"), ">events",
    empty="no runs",
)  # fmt: skip
SITES: Final = listing(
    "run", "site", "type", (">units", "capacity"), _of("bought_unit_h", called="bought unit-h"),
    _of("used", _percent), _of("idle", _percent), _of("out_of_service", _percent), ">peak", ">failed", ">repaired",
    empty="no sites",
)  # fmt: skip
REQUESTS: Final = listing(
    "run", "requests", "type", ">asked", (">at once", "granted_at_once"), (">later", "granted_later"), ">refused",
    (">given up", "given_up"), ">unanswered", (">leases failed", "failed"), ">cut",
    ("refused because", lambda one: _counted(one["refusals"])), ("cut because", lambda one: _counted(one["cuts"])),
    empty="no requests",
)  # fmt: skip
WAITS: Final = listing(
    "run", ("waits", "requests"), "type", _of("mean_wait_s", _span, "mean"), _of("p50_wait_s", _span, "p50"),
    _of("p95_wait_s", _span, "p95"), _of("p99_wait_s", _span, "p99"),
    _of("mean_bounded_slowdown", called="bounded slowdown"), empty="no waits",
)  # fmt: skip


def _names(summary: Mapping[str, Any]) -> dict[str, None]:
    """Guests, and sites with their types, as figures are named by them."""
    runs = summary["runs"]
    guests = dict.fromkeys(name for run in runs for name in run["guests"])
    sites = (f"{name}.{kind}" for run in runs for name, site in run["sites"].items() for kind in site["types"])
    return guests | dict.fromkeys(sites)


MEAN_FIGURES: Final = {
    "leased": ("mean_leased", 1), "unserved (%)": ("unserved", 100), "fidelity": ("fidelity", 1),
    "used (%)": ("used", 100), "idle (%)": ("idle", 100), "refused": ("requests.refused", 1),
    "cut": ("requests.cut", 1), "mean wait (s)": ("requests.mean_wait_s", 1),
}  # fmt: skip


def _mean_rows(summary: Mapping[str, Any], of: str) -> Iterator[dict[str, Any]]:
    for one in summary["means"]:
        what = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in one["set"].items())
        row = {"run": " ".join(part for part in (one["series"], what) if part) or summary["deployment"]}
        for name, (figure, factor) in MEAN_FIGURES.items():
            if (found := one["figures"].get(f"{of}.{figure}")) is not None:
                half = factor * (found["high"] - found["mean"])
                row[name] = f"{shown_figure(factor * found['mean'])} ± {shown_figure(half, 2)}"
        yield {**row, "of": of, "seeds": one["seeds"]}


MEANS: Final = listing(
    ("mean, 95%", "run"), "of", ">seeds", *((f">{name}", name) for name in MEAN_FIGURES), empty="no means",
)  # fmt: skip
MISHAPS: Final = listing(
    "run", ("what went wrong", "kind"), "of", ">times", _of("hours"), (">messages lost", "messages_lost"),
    (">actions lost", "actions_lost"), _of("mean_delay_s", called="mean delay (s)"), empty="nothing went wrong",
)  # fmt: skip
ENERGY: Final = listing(
    "run", ("energy", "site"), ">switched", (">off unit-h", lambda one: shown_figure(one["e_savings"] / 3600)),
    (">suspended unit-h", lambda one: shown_figure(one["suspended"] / 3600)), ">delayed",
    _of("saved_wh", called="saved Wh"), empty="nothing was switched",
)  # fmt: skip


REPORTED: Final = listing(
    "run", ("mapper of", "actor"), "number", _of("mean"), _of("least"), _of("most"), _of("last"),
    empty="no numbers",
)  # fmt: skip


def print_summary(summary: Mapping[str, Any]) -> None:
    """The summary of an experiment as tables: a line for each guest of each run, and for what each site has of a type
    and the requests for it.
    """
    from leasekit.emulation.tidy import reported_rows

    runs = [(run["run"] or summary["deployment"], run) for run in summary["runs"]]
    GUESTS(
        {**run["measured"], **guest, "events": run["events"], "run": title, "guest": name}
        for title, run in runs
        for name, guest in run["guests"].items()
    )
    sites = [
        {**one, "run": title, "site": name, "type": kind}
        for title, run in runs
        for name, site in run["sites"].items()
        for kind, one in site["types"].items()
    ]
    if sites:
        SITES(sites)
    asked = [
        {**one["requests"], "run": title, "requests": name, "type": kind}
        for title, run in runs
        for name, actor in (*run["guests"].items(), *run["sites"].items())
        for kind, one in actor["types"].items()
        if one["requests"]["asked"]
    ]
    if asked:
        REQUESTS(asked)
    if waits := [one for one in asked if one["granted_later"]]:
        WAITS(waits)
    if mishaps := [{**one, "run": title} for title, run in runs for one in run["mishaps"]]:
        MISHAPS(mishaps)
    if numbers := [{**row, "run": row["run"] or summary["deployment"]} for row in reported_rows(summary)]:
        REPORTED(numbers)
    switched = [
        {**site["energy"], "run": title, "site": name}
        for title, run in runs
        for name, site in run["sites"].items()
        if "energy" in site
    ]
    if switched:
        ENERGY(switched)
    for bought in summary["purchases"]:
        _print_purchase(bought)
    if summary["means"]:
        MEANS(one for of in (*_names(summary),) for one in _mean_rows(summary, of))
    _print_types(summary)
    _print_topologies(summary)
    for guest in dict.fromkeys(name for _, run in runs for name, one in run["guests"].items() if "sees_ahead" in one):
        note(f"the mapper of {guest} is shown what is to come of its load (needs_future): others may not know as much")
    parts = [f"seed {summary['seed']}", "signed" if summary["signatures"] else "signatures off"]
    parts += ["generated load"] if summary["synthetic"] else []
    parts += [f"ticks executed: {_ticks(summary['runs'])}"] if summary["runs"] else []
    note("; ".join(parts))


def _print_purchase(bought: Mapping[str, Any]) -> None:
    """What more units came to, with the knee marked."""
    rows = [
        (
            one["run"], f"{one['units']:g}", _percent(one["unserved"]), _span(one["mean_wait_s"]),
            _span(one["p95_wait_s"]), f"{one['refused']:.0f} of {one['asked']:.0f}", _percent(one["used"]),
            _percent(one["idle"]), "knee" if one["units"] == bought["knee"] else "",
        )
        for one in bought["rows"]
    ]  # fmt: skip
    columns = (f">{bought['units_of']}", ">unserved", ">mean wait", ">p95 wait", ">refused", ">used", ">idle")
    print_table(("run", *columns, ""), rows, empty="no runs")
    if bought["knee"] is not None:
        by = {"unserved": "what is unserved", "mean_wait_s": "the mean wait"}[bought["by"]]
        note(f"knee: beyond {bought['knee']:g} {bought['units_of']}, more of them lower {by} by little")


def _print_types(summary: Mapping[str, Any]) -> None:
    """What guests held that leased units of several types, which are not added: they may be different things."""
    rows = [
        (
            run["run"] or summary["deployment"],
            name,
            kind,
            shown_figure(held["mean_leased"]),
            shown_figure(held["peak_leased"]),
        )
        for run in summary["runs"]
        for name, guest in run["guests"].items()
        for kind, held in (guest["types"].items() if len(guest["types"]) > 1 else ())
    ]
    if rows:
        print_table(("run", "guest", "type", ">leased", ">peak"), rows)


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
        columns = (">topologies asked for", *(f">{count.replace('_', ' ')}" for count in counts[1:]))
        print_table(("run", "guest", *columns), rows)


def _ticks(runs: Sequence[Mapping[str, Any]]) -> str:
    """Which ticks were executed, in which runs where they differ."""
    found = Counter(run["ticks_executed"] for run in runs)
    if len(found) == 1:
        return str(runs[0]["ticks_executed"])
    return ", ".join(f"{which} in {count} runs" if count > 1 else f"{which} in 1 run" for which, count in found.items())


SCENARIOS = ("normal", "service_levels", "load_balancing", "preference_domain", "preference_size")
"""As in the experiment itself, which is imported when it is run."""


@click.group()
def experiment() -> None:
    """Repeat experiments of papers that leasekit builds on."""


@command(experiment)
def coallocation(
    data: Path | None = option("Where the testbed is [LEASEKIT_DATA].", metavar="DIR"),
    out: Path | None = option("Where pictures, CSV files and JSON go.", metavar="DIR"),
    seeds: int = option("How many, from 1 on.", type=Count(1, 10_000), shown=5),
    scenarios: tuple[str, ...] = option("Only these (repeat it) [all].", "--scenario", type=SCENARIOS),
    starts: Any = option(
        "Which starts of a window are tried.",
        type=("equidistant", "breakpoints", "both"),
        shown="both",
    ),
    frames: int = option("Equidistant starts.", type=Count(1, 1000), shown=10),
    sort: Any = option("Best plan by.", type=("value", "start"), shown="value"),
    pmax: int = option("Most links of a path (0: any).", type=Count(0), shown=2),
    load: float = option("Times as many requests [1].", type=Number(0, 100, min_open=True), default=1.0),
    jobs: int | None = option("Processes [one for each CPU].", type=Count(1), metavar="N"),
    actors: bool = option("Go on to the second day: the leases are redeemed."),
) -> Shown:
    """The simulation of the co-allocation paper: success, utilisation and planning times as the load grows.

    Two users ask for sites with bandwidth between them on the paper's testbed, for 24 hours: guests send requests to a
    broker that plans and holds them, in virtual time. The same seeds give the same results, but for planning times.

    With --actors the leases of what was granted are followed to the second day, on which site authorities set them up.
    Ctrl-C ends it with the seeds that are done; with the same --out it goes on from there.

    Example:
      leasekit experiment coallocation --data ../shared/data --seeds 10 --out results
    """
    from leasekit.emulation.coallocation import actors as coallocation_actors
    from leasekit.emulation.coallocation import experiment as simulation
    from leasekit.emulation.compare.engines import cpus
    from leasekit.emulation.outputs import make_folder

    testbed = simulation.read_testbed(data)
    if out is not None:
        make_folder(out)
    setup = simulation.CoallocationSetup(pmax=pmax or None, starts=starts, frames=frames, sort=sort, load=load)
    wanted = [name for name in SCENARIOS if name in (scenarios or SCENARIOS)]
    with progress_bars("simulating") as progress:
        tallies, leases = coallocation_actors.run_all(
            testbed,
            wanted,
            range(1, seeds + 1),
            setup,
            redeem=actors,
            jobs=jobs or cpus(),
            progress=progress,
            out=out,
        )
    summary, times = simulation.summarize(testbed, tallies, setup), simulation.measured(tallies)
    _say_written(out, simulation.write(out, summary, times, tallies))
    found = {**summary, "measured": times, **({"leases": leases} if actors else {})}
    told = (_print_coallocation, *((lambda found: _print_leases(found["leases"]),) if actors else ()))
    return found, told, INTERRUPTED if len(summary["seeds"]) < seeds else 0


def _print_leases(leases: Mapping[str, Mapping[str, int]]) -> None:
    """What became of the leases."""
    rows = [(name, *found.values()) for name, found in leases.items()]
    print_table(("leases, by actors", ">asked for", ">active", ">messages", ">events"), rows)


def _print_coallocation(summary: Mapping[str, Any]) -> None:
    loads = [f">{load}%" for load in summary["loads_pct"]]
    rows = []
    for name, found in summary["scenarios"].items():
        for user, ratios in found["success"].items():
            rows.append((name, user, *map(shown_figure, ratios)))
    print_table(("success", "user", *loads), rows, empty="no runs")
    shares = [
        (name, site, *map(shown_figure, found["utilisation"][site]))
        for name, found in summary["scenarios"].items()
        for site in found["utilisation"]
    ]
    print_table(("utilisation", "site", *loads), shares, empty="no runs")
    planning = [
        (name, *map(shown_figure, (found["mean_ms"], found["p99_ms"], found["max_ms"])))
        for name, found in summary["measured"].items()
    ]
    print_table(("planning (ms)", ">mean", ">99 %", ">max"), planning)
    from leasekit.emulation.coallocation.against_paper import SEEDS_MIN

    if summary["not_the_papers"]:
        note(f"not held against the paper, whose settings are others: {', '.join(summary['not_the_papers'])}")
        return
    _print_claims(summary)
    if len(summary["seeds"]) < SEEDS_MIN:
        note(f"noise: with fewer than {SEEDS_MIN} seeds a difference says nothing; the docs' figures are of 10 and 40")


def _say_written(out: Path | None, pictures: Sequence[Path]) -> None:
    if out is not None:
        note(f"written to {out}; pictures: {', '.join(path.name for path in pictures)}")


def _print_claims(summary: Mapping[str, Any]) -> None:
    """What the paper says beside what was found, and the verdict, as ``experiment all`` has them. What is only shown
    stands in the tables above.
    """
    from leasekit.emulation.papers.claims import SHOWN
    from leasekit.emulation.papers.page import rows

    if claims := [claim for claim in summary["claims"] if claim["verdict"] != SHOWN]:
        _print_verdicts(rows({"claims": claims}))


def _print_verdicts(rows: Sequence[Sequence[Any]], *columns: str) -> None:
    from leasekit.emulation.papers.page import COLUMNS

    print_table((*columns, *(f">{name}" if name == "ours" else name for name in COLUMNS)), rows)


@command(experiment)
def energy(
    data: Path | None = option("Where the logs are [LEASEKIT_DATA].", metavar="DIR"),
    log: str = option("Which job log.", type=("kth-sp2", "hpc2n"), shown="kth-sp2"),
    out: Path | None = option("Where pictures, CSV files and JSON go.", metavar="DIR"),
    boot: int = option("How long a core needs to come on.", type=SPAN, shown="3m"),
    resume: int = option("The same after it was suspended.", type=SPAN, shown="15s"),
    safety: float = option("Capacity beyond the peak.", type=Number(0, 10), shown=0.1),
    suspend_below: int = option("Suspend what is expected to idle less.", type=SPAN, shown="30m"),
    minimum: int = option("Cores that stay on.", type=Count(0), shown=0),
    days: int = option("Of the log, the first so many; 0: all.", type=Count(0), shown=14),
    jobs: int | None = option("Processes [one for each CPU].", type=Count(1), metavar="N"),
) -> Shown:
    """What switching idle cores off saves on a job log, with and without reservations, and who waits for it.

    The site, its energy manager (the mapper `energy`), the broker and the guest are those of a deployment, in virtual
    time. The same log gives the same figures.

    Example:
      leasekit experiment energy --data ../shared/data --log hpc2n --out results
    """
    from leasekit.emulation.compare.engines import cpus
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
    with progress_bars("simulating") as progress:
        found = simulation.run_all(workloads, setup, jobs=jobs or cpus(), progress=progress)
    summary, times = simulation.summarize(workloads, found, setup), simulation.measured(found)
    _say_written(out, simulation.write(out, summary, times, found))
    return {**summary, "measured": times}, _print_energy


def _print_energy(summary: Mapping[str, Any]) -> None:
    rows = [
        (
            one["strategy"], one["capacity"], f"{one['idle_core_h']:,}", f"{one['off_core_h']:,}",
            f"{one['suspended_core_h']:,}", f"{one['off_share_of_idle']:.1%}", f"{one['delay_req']:,.0f}",
            f"{one['delayed_share']:.1%}", one["mean_boot_s"],
        )
        for one in summary["strategies"]
    ]  # fmt: skip
    columns = (
        f"{summary['log']}, {summary['days']} days", ">cores", ">idle core-h", ">off", ">suspended", ">off / idle",
        ">weighted delay", ">delayed", ">mean wait (s)",
    )  # fmt: skip
    print_table(columns, rows, empty="no runs")
    _print_claims(summary)


@command(experiment, name="yield")
def yield_(
    name: Any = option(
        "Small problems, also solved exactly; large ones; parallel jobs; or small ones of which a fifth changes.",
        "--set",
        type=("small", "large", "parallel", "dynamic"),
        shown="small",
    ),
    instances: int = option("Of each of the 144 or 108 kinds.", type=Count(1, 1000), shown=10, metavar="K"),
    seed: int = option("What they are drawn by.", shown=1, metavar="S"),
    out: Path | None = option("Where pictures, CSV files and JSON go.", metavar="DIR"),
    jobs: int | None = option("Processes [one for each CPU].", type=Count(1), metavar="N"),
) -> Shown:
    """The simulations of the paper on virtual clusters: all algorithms that place tasks by yield, beside its tables.

    Degradation is by how much an algorithm's least yield is below the best of MCB1 to MCB8, in percent; a failure
    counts as 100. The same seed gives the same yields.

    Example:
      leasekit experiment yield --set small --instances 10 --seed 1 --out results
    """
    from leasekit.emulation import placement as simulation
    from leasekit.emulation.compare.engines import cpus
    from leasekit.emulation.outputs import make_folder

    if out is not None:
        make_folder(out)
    with progress_bars("placing") as progress:
        found = simulation.run_all(simulation.cases(name, instances, seed), jobs=jobs or cpus(), progress=progress)
    summary, times = simulation.summarize(name, instances, seed, found), simulation.measured(found)
    _say_written(out, simulation.write(out, summary, times, found))
    return {**summary, "measured": times}, _print_yields


def _print_yields(summary: Mapping[str, Any]) -> None:
    note(f"{summary['problems']} problems, {summary['feasible']} of them solved by some algorithm")
    if summary["mcb"]:
        DEGRADATIONS(summary["mcb"])
    times = summary["measured"]
    sizes = list(next(iter(times.values())))
    above = next(key for key in summary["algorithms"][0] if key.endswith("_above_pct"))
    rows = [
        (
            one["algorithm"], *(shown_figure(one[key]) for key in ("least_yield", "mean_yield", above)),
            one["failures"], *(shown_figure(times[one["algorithm"]][n]) for n in sizes),
        )
        for one in summary["algorithms"]
    ]  # fmt: skip
    times_of = (f">ms, {n}" for n in sizes)
    columns = (">least yield", ">mean yield", f">{above.partition('_')[0]} above (%)", ">failed", *times_of)
    print_table(("algorithm", *columns), rows)
    _print_claims(summary)


DEGRADATIONS: Final = listing(
    "algorithm", _of("mean_pct", called="degradation (%)"), (">paper", "paper_mean_pct"),
    _of("most_pct", called="most"), (">paper's most", "paper_most_pct"), (">failed", "failures"),
)  # fmt: skip


@command(experiment)
def preemption() -> Shown:
    """The tables of the paper on preemptible leases: who has to leave for a request, and what that costs in minutes.

    Ends with 1 if a table differs from the paper's.

    Example:
      leasekit experiment preemption
      leasekit experiment preemption --json
    """
    from leasekit.emulation.preemption import tables

    found = tables()
    return found, PREEMPTION, 0 if all(one["same"] for one in found) else 1


def _others(others: Mapping[str, float]) -> str:
    return ", ".join(f"{victims} {cost:g}" for victims, cost in others.items())


PREEMPTION: Final = listing(
    ">table",
    "victims",
    (">cost", lambda one: f"{one['cost']:g}"),
    ("paper", lambda one: one["paper"]["victims"]),
    (">its cost", lambda one: one["paper"]["cost"]),
    ("others", lambda one: _others(one["others"])),
    ("paper's others", lambda one: _others(one["paper"]["others"])),
    ("", lambda one: "ok" if one["same"] else "differs"),
)


PAPERS: Final[Mapping[str, str]] = {
    "activation": "How long a leased cluster takes until all of its nodes have joined (Shirako, figure 4).",
    "fidelity": "The share of a lease that its holder can use (Shirako, figure 5).",
    "terms": "How well holdings follow a load, by lease term (Shirako, figures 6 and 7).",
    "compete": "Two guests that compete for the same nodes (Shirako, figures 8 and 9).",
    "scaling": "What leasing costs at saturation (Shirako, tables 3 and 4, figure 10).",
    "sockets": "The same with daemons over sockets (Shirako, table 5).",
    "haizea": "Reservations and best effort, with and without suspension (Haizea's mix).",
    "tariff": "Power-off that heeds prices or carbon by hour, against the plain one; of no paper.",
    "borrow": "Best effort that gives way for a while, against refusing; of no paper.",
}
"""Experiments without options of their own."""


def _means(
    data: Path | None = option("Where traces, logs and the testbed are [LEASEKIT_DATA].", metavar="DIR"),
    deploys: Path = option("Where the deploy files are.", shown="deploy/emulation", metavar="DIR"),
    quick: bool = option("Only a small share: fewer seeds, sizes and days."),
    jobs: int | None = option("Processes [one for each CPU].", type=Count(1), metavar="N"),
) -> Callable[..., Means]:
    """With what an experiment is repeated, once it is said where its results go (``out``)."""
    from leasekit.emulation.compare.engines import cpus
    from leasekit.emulation.papers.claims import Means

    return partial(Means, quick=quick, data=data, deploys=deploys, jobs=jobs or cpus())


MEANS_GIVEN: Any = gathered(_means)


@command(experiment, name="all")
def all_(
    out: Path = option("Where the page, pictures and JSON go.", metavar="DIR", required=True),
    means: Any = MEANS_GIVEN,
    only: tuple[str, ...] = option("Only this experiment (repeat it) [all].", metavar="NAME"),
) -> Shown:
    """Every table and figure of the papers that can be repeated: ours beside theirs, and a verdict.

    Criteria are part of leasekit, so they are there before the run. DIR gets index.html, results.json and
    experiments.md, anew after each experiment, and a folder for each with its pictures. One that can't be run (its data
    are missing) is told, the others go on, and the exit status is 1.

    Example:
      leasekit experiment all --data ../shared/data --out results --quick
      leasekit experiment all --data ../shared/data --out results --only preemption --only fidelity
    """
    return _repeat(only, out, means)


def _repeat(only: Sequence[str], out: Path | None, means: Callable[..., Means]) -> Shown:
    from leasekit.cli.daemon_experiment import SOCKETS
    from leasekit.emulation.papers.catalogue import EXPERIMENTS, run_all

    results = run_all(only, means(out=out), note, (*EXPERIMENTS, SOCKETS))
    if out is not None:
        note(f"written to {out}: index.html, results.json, experiments.md")
    if any("ended" in one for one in results):
        return results, _print_papers, INTERRUPTED
    return results, _print_papers, 1 if any("error" in one for one in results) else 0


def _print_papers(results: Sequence[Mapping[str, Any]]) -> None:
    from leasekit.emulation.papers.page import counted, rows

    cells = [(result["name"], *row) for result in results for row in rows(result)]
    if cells:
        _print_verdicts(cells, "experiment")
    note(counted(results))


def _of_paper(experiment_name: str, words: str) -> None:
    def run(
        out: Path | None = option("Where the page, pictures and JSON go.", metavar="DIR"), means: Any = MEANS_GIVEN
    ) -> Shown:
        return _repeat([experiment_name], out, means)

    run.__doc__ = (
        f"{words}\n\n    Ours beside what the paper says, and a verdict; docs/experiments.md has what came out.\n\n"
        f"    Example:\n      leasekit experiment {experiment_name} --data ../shared/data --quick\n    "
    )
    command(experiment, name=experiment_name)(run)


for _name, _words in PAPERS.items():
    _of_paper(_name, _words)
