"""``leasekit mapper`` and ``leasekit plan``: write mappers of your own, check them, compare them; one decision, or one
workload, of a mapper, offline.
"""

from __future__ import annotations

import sys
import time
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

import attrs
import click

from leasekit.cli.emulate import progress_bars, went_wrong
from leasekit.cli.options import FILE_OR_INPUT, SAVING, Count, Number, Shown, argument, command, option
from leasekit.cli.output import (
    STANDARD_INPUT,
    WrongInputError,
    check_out_file,
    is_standard_input,
    listing,
    note,
    print_fields,
    print_json,
    print_table,
)
from leasekit.core.errors import LeasekitError
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.measures import shown_figure
from leasekit.core.settings import SettingsError

if TYPE_CHECKING:
    from leasekit.emulation.compare.deployed import Contest
    from leasekit.emulation.compare.pool import Saving
    from leasekit.emulation.compare.targets import Target
    from leasekit.emulation.compare.works import Work, Workload
    from leasekit.emulation.conformance.kit import Checked, Subject

ROLES = ("broker", "authority", "guest")


@click.group()
def mapper() -> None:
    """Write a mapper of your own, check it, compare it with others."""


@command(mapper)
def new(
    name: str = argument(),
    role: str = option("Whose mapper it is.", type=ROLES, required=True),
    folder: Path = option("Where the package goes [here].", "--in", default=Path(), metavar="DIR"),
) -> None:
    """Write a package with a mapper that works: its settings, its test, its entry point, and a deploy file.

    Change what it does, install it, and name it in a deploy file.

    Example:
      leasekit mapper new shortest --role broker
    """
    from leasekit.emulation.conformance.package import write_package

    for path in write_package(folder, name, role):
        note(str(path))


@command(mapper, name="list")
def list_(role: str | None = option("Only mappers of this role.", type=ROLES)) -> Shown:
    """List the mappers that a deploy file can name: those that come with leasekit, and those of installed packages.

    Example:
      leasekit mapper list --role broker
    """
    columns = ("name", "role", "from", "class")
    found = [dict(zip(columns, row, strict=True)) for row in [*_built_in(), *_installed()] if role in (None, row[1])]
    return found, listing(*columns, empty="no mappers")


def _built_in() -> Iterator[tuple[str, str, str, str]]:
    from leasekit.policies.registry import BUILT_IN

    for role, mappers in BUILT_IN.items():
        for name, place in sorted(mappers.items()):
            yield name, role, "leasekit", place


def _installed() -> Iterator[tuple[str, str, str, str]]:
    """What packages bring. Their entry points don't say the role: each is loaded, and its methods tell."""
    from leasekit.policies.registry import GROUP, METHODS, find_mapper

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = point.dist.name if point.dist is not None else "?"
        roles = []
        for role in METHODS:
            with suppress(LeasekitError):
                find_mapper(point.value, role, point.name)
                roles.append(role)
        for role in roles or ["(can't be loaded)"]:
            yield point.name, role, package, point.value


@command(mapper)
def check(
    target: str = argument("MAPPER"),
    role: str | None = option("Its role, where its methods leave that open.", type=ROLES),
    settings: Path | None = option("Its settings: a TOML file.", metavar="FILE"),
    cases: int = option("Worlds.", type=Count(min=1), shown=100, metavar="N"),
    seed: int = option("What the cases are drawn by.", shown=1, metavar="N"),
    types: tuple[str, ...] = option("Types of units.", "--type", shown=("vm", "host"), metavar="NAME"),
    limit: float = option("Seconds for a turn.", type=Number(min=0.1), shown=5.0),
    out: Path = option("Where a failing case is written [here].", default=Path(), metavar="DIR"),
    replay_file: Path | None = option("Play the one case of this file.", "--replay", metavar="FILE"),
) -> Shown:
    """Check that a mapper does what every mapper must, in worlds of real actors that are drawn by a seed.

    It never overbooks, decides what it can, respects groups and windows, repeats itself for a seed, survives empty and
    full worlds, and ends its turns in time. A case in which it does not is made as small as possible and written to a
    file that --replay plays again. Exits with 1 if anything is wrong.

    Example:
      leasekit mapper check fcfs
      leasekit mapper check mine.py --cases 500
      leasekit mapper check mine.py:Mine --replay mapper-check-mine.json
    """
    from leasekit.emulation.compare.targets import read_target
    from leasekit.emulation.conformance import kit

    chosen = read_target(target, settings)
    recorded = None if replay_file is None else kit.read_case(replay_file)
    table = chosen.settings if recorded is None else {**recorded.settings, **chosen.settings}
    role = role or (None if recorded is None else recorded.role)
    subject = kit.Subject(
        target=chosen.name, role=kit.role_of(chosen.name, role), settings=table, types=types, seed=seed, cases=cases,
        limit=limit,
    )  # fmt: skip
    if recorded is not None:
        return _replayed(kit.replay(subject, recorded.played))
    with progress_bars() as report:
        checked = kit.check(subject, report)
    files = [kit.write_case(out, subject, found) for found in checked.faults if found.case is not None]
    return _checked(subject, checked, files)


def _checked(subject: Subject, checked: Checked, files: list[Path]) -> Shown:
    from leasekit.emulation.conformance import kit
    from leasekit.emulation.conformance.loads import told

    faults = {found.check: found.text for found in checked.faults}
    found = {
        "mapper": subject.target,
        "role": subject.role,
        "cases": checked.cases,
        "turns": checked.turns,
        "faults": faults,
        "files": [str(file) for file in files],
        "costs": [{"size": cost.size, "us_each": round(cost.each_us, 2)} for cost in checked.costs],
    }
    rows = [(name, "failed" if name in faults else "ok", faults.get(name, text)) for name, text in kit.CHECKS.items()]
    if checked.costs:
        rows.append((kit.COST, "", told(checked.costs)))
    title = f"{subject.target} ({subject.role}): {checked.cases} cases, {checked.turns} turns"
    cases = [f"the failing case is in {file}: leasekit mapper check {subject.target} --replay {file}" for file in files]
    return found, (lambda _: print_table(("check", "", ""), rows, title=title), *cases), 1 if faults else 0


def _replayed(checked: Checked) -> Shown:
    faults = [(found.check, found.text) for found in checked.faults]
    rows: list[tuple[Any, str, str]] = []
    for now, shown, decided in checked.journal:
        lines = zip_longest(shown, decided or ("(nothing)",), fillvalue="")
        rows += [("" if number else now, *line) for number, line in enumerate(lines)]
    columns, empty = (">at ms", "shown", "decided"), "the mapper was never called"
    wrong = [f"{name}: {text}" for name, text in faults] or ["nothing wrong with this case"]
    plain = {"faults": [list(fault) for fault in faults], "turns": [list(turn) for turn in checked.journal]}
    return plain, (lambda _: print_table(columns, rows, empty=empty), *wrong), 1 if faults else 0


@command(mapper)
def compare(
    targets: tuple[str, ...] = argument("MAPPER...", required=True),
    workload_file: Path | None = option("A workload as for `plan timetable`.", "--workload", metavar="FILE"),
    swf: Path | None = option("A job log in the Standard Workload Format, gzip or not.", metavar="FILE"),
    deploy: Path | None = option("A deploy file that is emulated with each of them.", "--in", metavar="FILE"),
    actor: str = option("Whose mapper in that file they take the place of.", default="", metavar="NAME"),
    run: str = option("The variant of that file that is emulated [none].", default="", metavar="NAME"),
    data: Path | None = option("Where that file's traces are [LEASEKIT_DATA].", metavar="DIR"),
    synthetic: bool = option("Generated load instead of that file's traces."),
    seed: int | None = option("Instead of that file's.", metavar="N"),
    nodes: int | None = option("How many nodes a workload has.", type=Count(min=1), metavar="N"),
    out: Path | None = option("Where tables and pictures go.", metavar="DIR"),
    jobs: int | None = option("How many runs at once (default: a run a CPU).", type=Count(min=1), metavar="N"),
    engine: str = option("Where they run.", type=("local", "dask"), shown="local"),
    scheduler: str | None = option("The Dask scheduler, as tcp://host:8786.", metavar="ADDRESS"),
    patience: float = option("How long one turn may take.", type=Number(min=0, min_open=True), shown=60.0, metavar="S"),
    saving: Saving = SAVING,
) -> Shown:
    """Run the same through several mappers, and show how it fared with each.

    Brokers' mappers are given a workload of jobs or reservations. Mappers of any role take the place of an actor's in a
    deploy file (--in, --actor), which is emulated as it is, or in one variant of it (--run), once with each of them.

    MAPPER is a name, module:Class or path/to/file.py:Class, with settings after a colon if need be, as
    `backfill:mode=easy`, or a TOML file with `name` and settings. Work asks for its estimate and ends when it is done.
    First come, first served as job logs know it is `fcfs:backfill=false`: `fcfs` alone books everything ahead.

    Guests, brokers and sites do what they do as daemons, in virtual time. What a mapper does wrong is told at once;
    its actor goes on, and the exit status is 1. So it is for one that does not fit; the others are run all the same.

    Example:
      leasekit mapper compare fcfs backfill:mode=easy --swf log.swf.gz --nodes 240 --out compared
      leasekit mapper compare first_fit energy:types=[\"node\"] --in energy.toml --actor site --run EWMA
    """
    from leasekit.emulation.outputs import make_folder

    logs = [target for target in targets if target.endswith((".swf", ".swf.gz", ".csv"))]
    if logs:
        raise click.UsageError(
            f"MAPPER: found the file {logs[0]!r}; a job log is given by --swf, a workload --workload"
        )
    if workload_file is not None and workload_file.name.endswith((".swf", ".swf.gz")):
        raise click.UsageError(f"--workload: found the job log {str(workload_file)!r}, which is given by --swf")
    if sum(given is not None for given in (workload_file, swf, deploy)) != 1:
        raise click.UsageError("give either --workload or --swf, or a deploy file by --in")
    if (deploy is None) == bool(actor) or (run and deploy is None):
        raise click.UsageError("--in and --actor go together, and --run goes with them")
    if (deploy is None) == (nodes is None):
        raise click.UsageError("--swf and --workload need --nodes N; with --in the file says it")
    if (engine == "dask") != (scheduler is not None):
        raise click.UsageError("--engine dask and --scheduler go together")
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise click.UsageError(f"{twice[0]!r} is given twice")
    chosen, misfits = _contenders(targets, made=deploy is None)
    if out is not None:
        make_folder(out)
    if nodes is None:
        assert deploy is not None, "one of the two is given"
        from leasekit.emulation.compare.deployed import Contest

        contest = Contest(file=deploy, actor=actor, run=run, data=data, synthetic=synthetic, seed=seed)
        return _contested(contest, chosen, misfits, out)
    workload = _workload(workload_file, swf)
    from leasekit.emulation.compare.engines import cpus, run_dask, run_local
    from leasekit.emulation.compare.pool import Pool

    with progress_bars() as report:
        pool = Pool(nodes, saving)
        if engine == "dask":
            results = run_dask(chosen, workload.works, pool, scheduler=str(scheduler), report=report)
        else:
            results = run_local(
                chosen, workload.works, pool, jobs=jobs or cpus(), report=report, patience=patience,
                tell=lambda label, text: note(f"{label}: {text}"),
            )  # fmt: skip
    results_of = {**misfits, **dict(zip((target.label for target in chosen), results, strict=True))}
    return _compared(targets, workload, nodes, [results_of[target] for target in targets], out)


def _contenders(targets: Sequence[str], *, made: bool) -> tuple[list[Target], dict[str, LeasekitError]]:
    """The mappers that were named, and what is wrong with those that can't be had (``made``: as a broker's): that is
    told before hours of work, and the others are run.
    """
    from leasekit.emulation.compare.targets import read_target

    chosen: list[Target] = []
    misfits: dict[str, LeasekitError] = {}
    for text in targets:
        try:
            target = read_target(text)
            if made:
                target.make()
        except LeasekitError as error:
            misfits[text] = error
        else:
            chosen.append(target)
    if not chosen:
        raise LeasekitError("\n".join(map(str, misfits.values())))
    for text, misfit in misfits.items():
        note(f"left out: {_told(text, misfit)}")
    return chosen, misfits


def _told(label: str, error: LeasekitError) -> str:
    """What is wrong with a mapper; most faults of what was given name it already."""
    return str(error) if str(error).startswith(label) else f"mapper {label!r}: {error}"


def _contested(contest: Contest, chosen: list[Target], misfits: dict[str, LeasekitError], out: Path | None) -> Shown:
    """Each in the same deployment, and what came of it."""
    from leasekit.emulation.compare.deployed import columns_of, run_contest, write_contest

    with progress_bars() as progress:
        results = run_contest(chosen, contest, out, tell=note, progress=progress)
    failed, runs = dict(misfits), []
    for target, result in zip(chosen, results, strict=True):
        if isinstance(result, LeasekitError):
            failed[target.label] = result
        else:
            runs.append(result)
    told: list[Any] = []
    if runs:
        columns = columns_of(runs)
        rows = [[run["mapper"], *(_cell(run["figures"].get(key)) for key in columns)] for run in runs]
        headings = ("mapper", *(f">{column.replace('_', ' ')}" for column in columns))
        told.append(lambda _: print_table(headings, rows))
    if out is not None and runs:
        note(f"written to {out}: {', '.join(file.name for file in write_contest(out, contest, runs))}")
    wrong = went_wrong({run["mapper"]: run["mapper_errors"].get(contest.actor, {}) for run in runs})
    for line in wrong:
        note(line)
    said = {label: str(error) for label, error in failed.items()}
    plain = {"file": str(contest.file), "actor": contest.actor, "runs": runs, "failed": said}
    return plain, tuple(told), _wrong(failed) or int(bool(wrong))


def _wrong(failed: Mapping[str, LeasekitError]) -> LeasekitError | None:
    return LeasekitError("\n".join(_told(label, error) for label, error in failed.items())) if failed else None


def _workload(file: Path | None, swf: Path | None) -> Workload:
    from leasekit.emulation.compare.works import from_swf
    from leasekit.emulation.timetable_plan import from_file

    if swf is not None:
        workload = from_swf(swf)
        if workload.left_out:
            note(f"{swf}: {workload.left_out} jobs took no processor or no time and are left out")
        return workload
    assert file is not None, "one of the two is given"
    return from_file(file)


def _compared(targets: tuple[str, ...], workload: Workload, nodes: int, results: list[Any], out: Path | None) -> Shown:
    from leasekit.emulation.compare import report

    done = [result for result in results if not isinstance(result, LeasekitError)]
    failed = {target: r for target, r in zip(targets, results, strict=True) if isinstance(r, LeasekitError)}
    told: list[Any] = []
    if done:
        rows = [
            [*(_cell(run.summary[column]) for column in report.COLUMNS), _cell(run.summary["measured"]["seconds"])]
            for run in done
        ]
        first, *figures = report.COLUMNS
        columns = (first, *(f">{column}" for column in figures), ">took s")
        told = [lambda _: print_table(columns, rows)]
        told.append("utilisation is over the time from the first submission to the last")
        told += [text for run in done for text in report.remarks(run.summary, workload)]
    wrong = went_wrong({run.summary["mapper"]: run.summary["mapper_errors"] for run in done})
    if out is not None and done:
        files = report.write(out, workload, nodes, done)
        note(f"written to {out}: {', '.join(file.name for file in files if file.suffix != '.svg')}")
    for line in wrong:
        note(line)
    said = {target: str(error) for target, error in failed.items()}
    plain = {"workload": workload.name, "nodes": nodes, "runs": [run.summary for run in done], "failed": said}
    return plain, tuple(told), _wrong(failed) or int(bool(wrong))


def _cell(value: Any) -> str:
    return shown_figure(value) if value is None or isinstance(value, float) else str(value)


@command(mapper)
def workload(
    file: Path = argument(),
    jobs: int = option("How many jobs.", type=Count(min=1), shown=2000, metavar="N"),
    nodes: int = option("How many nodes.", type=Count(min=1), shown=64, metavar="N"),
    load: float = option("Offered.", type=Number(min=0.01, max=10), shown=0.8, metavar="SHARE"),
    users: int = option("Whose jobs.", type=Count(min=1), shown=12, metavar="N"),
    seed: int = option("What they are drawn by.", shown=1, metavar="N"),
) -> None:
    """Make a job log by a seed, for those who have none: FILE in the Standard Workload Format.

    Example:
      leasekit mapper workload jobs.swf --jobs 2000 --nodes 64 --seed 1
    """
    from leasekit.emulation.compare.works import WorkShape, generate, write_swf

    write_swf(file, generate(WorkShape(jobs=jobs, nodes=nodes, load=load, users=users, seed=seed)), nodes)
    note(f"{file}: {jobs} jobs for {nodes} nodes at load {load:g}")


PROBLEM: Final = click.Path(allow_dash=True)


@click.group()
def plan() -> None:
    """See what a mapper would decide, without daemons."""


@command(plan)
def coallocate(
    file: str | None = argument(type=PROBLEM),
    schema: bool = option("Print what a problem file holds, as a JSON schema."),
) -> Shown:
    """Place a requested graph of sites and links on a network, or with frames: plan when to, too.

    FILE is a JSON file (- for standard input) with resources (vertices, links), request (sites, links), and options.
    The answer is exact unless a limit is met; it says so then. Ends with 2 if the file is wrong.

    Example:
      leasekit plan coallocate problem.json --json
      leasekit plan coallocate --schema
    """
    from leasekit.policies.broker.coallocation.model import Problem, read_problem
    from leasekit.policies.broker.coallocation.problem import Decision

    def decide(content: Mapping[str, Any]) -> dict[str, Any]:
        problem, begin = read_problem(content), time.monotonic()
        return Decision(problem, remaining=lambda: begin + problem.options.time_limit_s - time.monotonic()).answer()

    if schema:
        return _problem_schema("A co-allocation problem", Problem)
    answer = _decide(file, decide)
    return answer, _print_plans if "plans" in answer else _print_one


@command(plan)
def preempt(
    file: str | None = argument(type=PROBLEM),
    schema: bool = option("Print what a problem file holds, as a JSON schema."),
) -> Shown:
    """Choose the host for a request, and the preemptible leases that have to leave it, at least cost.

    FILE is a JSON file (- for standard input) with the request, the hosts and the leases on them. The answer has the
    runners-up as well: other hosts with room, or other sets of leases that would make enough. Ends with 2 if the file
    is wrong.

    Example:
      leasekit plan preempt problem.json --json
      leasekit plan preempt --schema
    """
    from leasekit.policies.preempting.problem import PreemptDecision, PreemptProblem, read_preempt_problem

    if schema:
        return _problem_schema("A request for a place on hosts with preemptible leases", PreemptProblem)
    answer = _decide(file, lambda content: PreemptDecision(read_preempt_problem(content)).answer())
    return answer, _print_placements


@command(plan)
def place(
    file: str | None = argument(type=PROBLEM),
    schema: bool = option("Print what a problem file holds, as a JSON schema."),
) -> Shown:
    """Place tasks on hosts so that the least yield is the greatest: what a task gets of the CPU that it needs.

    FILE is a JSON file (- for standard input) with hosts, tasks, and the algorithm: exact, lp (a bound only), rrnd,
    rrnz, gr, sg, gb, sgb, mcb1 to mcb8, or best. Where tasks run already, migration_bound is the most memory that is
    moved. Ends with 2 if the file is wrong.

    Example:
      leasekit plan place problem.json --json
      leasekit plan place --schema
    """
    from leasekit.policies.authority.placing.file import PlaceDecision, PlaceProblem

    tasks: list[str] = []

    def decide(content: Mapping[str, Any]) -> dict[str, Any]:
        decision, begin = PlaceDecision(content), time.monotonic()
        tasks.extend(task.id or str(number) for number, task in enumerate(decision.file.tasks))
        return decision.answer(lambda: begin + decision.file.time_limit_s - time.monotonic())

    if schema:
        return _problem_schema("Tasks to be placed on hosts", PlaceProblem)
    return _decide(file, decide), partial(_print_placed, tasks)


def _problem_schema(title: str, cls: type) -> Shown:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | _schema(cls), print_json


def _decide(file: str | None, decide: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The answer to what a problem file holds. Raises :class:`WrongInputError`."""
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    try:
        content = _read(file)
        begin = time.monotonic()
        answer = decide(content)
    except SettingsError as error:
        raise WrongInputError(f"{STANDARD_INPUT if file == '-' else file}: {'; '.join(error.errors)}") from None
    answer["solve_ms"] = round(1000 * (time.monotonic() - begin), 3)
    return answer


def _read(file: str) -> Mapping[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        content = read_json(text)
    except OSError as error:
        raise SettingsError([f"can't be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsError(["found bytes that are not UTF-8, expected a JSON object"]) from None
    except JsonError as error:
        raise SettingsError([f"{error}, expected a JSON object"]) from None
    if not isinstance(content, dict):
        raise SettingsError([f"found {type(content).__name__}, expected a JSON object"])
    return content


# -- for a person ----------------------------------------------------------------------------------------------------


def _print_one(answer: Mapping[str, Any]) -> None:
    fields = [(key, answer[key]) for key in ("status", "objective", "bound", "reason", "solve_ms")]
    print_fields((key.replace("_", " "), value) for key, value in fields)
    if answer["sites"] is not None:
        print_table(("requested", "site"), list(answer["sites"].items()), empty="no sites")
        print_table(("link", "path", "backup"), _path_rows(answer), empty="no links")


def _print_placements(answer: Mapping[str, Any]) -> None:
    proven = "" if answer["proven"] else "no"
    print_fields([("status", answer["status"]), ("proven", proven), ("reason", answer["reason"])])
    for title, found in (("host", answer["placements"]), ("runner-up", answer["runners_up"])):
        rows = [(one["host"], ", ".join(one["victims"]), one["cost"]) for one in found]
        print_table((title, "victims", ">cost"), rows, empty=f"no {title}")


def _print_placed(tasks: Sequence[str], answer: Mapping[str, Any]) -> None:
    keys = ("status", "min_yield", "average_yield", "bound", "reason", "solve_ms")
    fields = [(key, answer[key]) for key in keys if key in answer]
    print_fields((key.replace("_", " "), value) for key, value in fields)
    if answer["mapping"] is not None:
        shares = zip(tasks, answer["mapping"], answer["cpu"], strict=True)
        rows = [(task, host, f"{share:.4f}") for task, host, share in shares]
        print_table(("task", "host", ">CPU"), rows, empty="no tasks")
    if answer["moved"]:
        print_fields([("moved", ", ".join(map(str, answer["moved"])))])


def _path_rows(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    backups = answer.get("backups", [None] * len(answer["paths"]))
    return [
        (str(number), _path(path), _path(backup))
        for number, (path, backup) in enumerate(zip(answer["paths"], backups, strict=True))
    ]


def _path(path: Sequence[str] | None) -> str:
    return "" if path is None else " - ".join(path)


def _print_plans(answer: Mapping[str, Any]) -> None:
    rows = [
        (
            plan["start"],
            plan["objective"],
            "" if plan["status"] == "optimal" else f"at least {plan['bound']}",
            ", ".join(f"{name}: {site}" for name, site in plan["sites"].items()),
            "; ".join(_path(path) for path in plan["paths"] if path is not None),
        )
        for plan in answer["plans"]
    ]
    print_table((">start", ">value", "bound", "sites", "paths"), rows, empty="no plan")
    if answer["refused"]:
        refusals = [(one["start"], one["reason"]) for one in answer["refused"]]
        print_table((">refused", "reason"), refusals)
    if answer["alternative"] is not None:
        note(answer["alternative"]["words"])


# -- the schema ------------------------------------------------------------------------------------------------------

_PLAIN: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema(cls: type) -> dict[str, Any]:
    """The JSON schema of an attrs class of a problem file: unknown keys are errors."""
    attrs.resolve_types(cls)
    properties, required = {}, []
    for field in attrs.fields(cls):
        name = (field.alias or field.name).rstrip("_")
        properties[name] = _of(field.type)
        if field.default is attrs.NOTHING:
            required.append(name)
        elif isinstance(field.default, str | int | float) or field.default is None:
            properties[name] = properties[name] | {"default": field.default}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of(cls: Any) -> dict[str, Any]:
    origin, arguments = get_origin(cls), get_args(cls)
    if cls in _PLAIN:
        return {"type": _PLAIN[cls]}
    if cls is type(None):
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(argument) for argument in arguments]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is tuple:
        count = len(arguments)
        return {"type": "array", "prefixItems": [_of(a) for a in arguments], "minItems": count, "maxItems": count}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    return _schema(cls)


_LABELS: Final = {"utilisation": "utilisation of the makespan"}
"""What figures are called for a person, where their names leave something open."""
_APART: Final = frozenset({"kinds", "mapper_errors"})


@command(plan)
def timetable(
    file: Path | None = argument(type=FILE_OR_INPUT),
    nodes: int = option("How many nodes there are.", type=Count(min=1), shown=64, metavar="N"),
    policy: str = option("A broker's mapper, by name or target.", shown="fcfs", metavar="MAPPER"),
    settings: Sequence[str] = option("A setting of the mapper; may be repeated.", "--set", metavar="KEY=VALUE"),
    saving: Saving = SAVING,
    out: Path | None = option("Write start and reason of each request.", metavar="FILE"),
    schema: bool = option("Print what a workload file holds, as a JSON schema of its rows."),
) -> Shown:
    """Run a workload of reservations through a broker's mapper, in virtual time.

    FILE is a CSV file (- for standard input) with the columns submit_s, earliest_start_s, deadline_s, duration_s, nodes
    and kind: ar (advance reservation), im (immediate), be (best effort, done by deadline_s; empty: no limit). Best
    effort may be suspended by a mapper that does so (`--set suspension=all`); with the wait up to the first start, and
    the slowdown up to the end. Utilisation is over the makespan, from the first submission to the last end. Ends with 2
    if the file is wrong, with 1 if the mapper went wrong.

    Example:
      leasekit plan timetable workload.csv --nodes 64 --policy fcfs --out answers.csv
    """
    from leasekit.emulation import timetable_plan

    if schema:
        return _workload_schema(), print_json
    if file is None:
        raise click.UsageError("missing argument 'FILE'")
    if out is not None:
        check_out_file(out, file)
    try:
        requests = _reservations(file)
    except timetable_plan.WorkloadError as error:
        raise WrongInputError(str(error)) from None
    summary, answers = timetable_plan.plan(requests, nodes, policy, dict(map(_setting, settings)), saving, note)
    wrong = went_wrong({policy: summary["mapper_errors"]})
    if out is not None:
        timetable_plan.write_answers(out, answers)
    written = () if out is None else (f"written to {out}",)
    return summary, (_print_timetable, *written, *wrong), 1 if wrong else 0


def _print_timetable(summary: Mapping[str, Any]) -> None:
    kinds = [{"kind": kind, **counts} for kind, counts in summary["kinds"].items()]
    listing("kind", ">accepted", ">refused", empty="no requests")(kinds)
    others = [(_LABELS.get(key, key.replace("_", " ")), value) for key, value in summary.items() if key not in _APART]
    print_table(("", "value"), others)


def _reservations(file: Path) -> list[Work]:
    from leasekit.emulation.timetable_plan import parse_workload, read_workload

    if is_standard_input(file):
        return parse_workload(sys.stdin, STANDARD_INPUT)
    return read_workload(file)


def _setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE``, the value as a deploy file would have it; what is no TOML is text without its quotes."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"found {text!r}, expected KEY=VALUE", param_hint="--set")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _workload_schema() -> dict[str, Any]:
    """What a row holds. (That it ends in time, and starts when it is submitted at the earliest, no schema says.)"""
    from leasekit.core.time import INSTANT_MAX, SECOND
    from leasekit.emulation.timetable_plan import COLUMNS, KINDS, NODES_MAX

    number = {"type": "number", "minimum": 0, "maximum": INSTANT_MAX / SECOND}
    properties: dict[str, Any] = dict.fromkeys(COLUMNS, number)
    properties["deadline_s"] = {"anyOf": [number, {"const": ""}]}
    properties["duration_s"] = number | {"minimum": 1 / SECOND}
    properties["nodes"] = {"type": "integer", "minimum": 1, "maximum": NODES_MAX}
    properties["kind"] = {"enum": list(KINDS), "description": "; ".join(f"{k}: {v}" for k, v in KINDS.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A row of a workload (CSV with a header)",
        "type": "object",
        "properties": properties,
        "required": list(COLUMNS),
        "additionalProperties": False,
    }
