"""``leasekit mapper``: write mappers of your own, check them, and compare them."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli import output
from leasekit.cli.emulate import progress_bars, went_wrong
from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.times import Count, Number, saving_options
from leasekit.core.errors import LeasekitError
from leasekit.policies.registry import known_mappers

if TYPE_CHECKING:
    from leasekit.emulation.compare.works import Workload
    from leasekit.emulation.conformance.kit import Checked, Subject

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
BEGIN_WITH: Final = {"broker": "fcfs", "authority": "first_fit", "guest": "manual"}

PROJECT: Final = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "A mapper for leasekit: {name}, a {role}'s"
requires-python = ">=3.11"
dependencies = ["attrs", "leasekit"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."leasekit.mappers"]
{name} = "{module}:{kind}"

[tool.setuptools]
py-modules = ["{module}"]
"""

README: Final = """\
# {name}

A mapper for leasekit, for a {role}. What it may rely on is `leasekit.core.mappers`.

```console
$ pip install -e .
$ leasekit mapper check {name}
$ leasekit emulate deploy.toml
$ pytest
```

`deploy.toml` names it; its settings stand beside its name. Without an installation, `{module}.py:{kind}` names it too.
"""

DEPLOY: Final = """\
# A deployment that runs the mapper: in virtual time with `leasekit emulate`, as daemons with `leasekit up`. The package
# must be installed; without that, `name = "{module}.py:{kind}"` names the class in the file.

[deployment]
create_keys = true  # those that are missing when a daemon starts; an emulation needs none

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]  # where daemons dial it; an emulation has no use for it
{broker}
[actor.site]
role = "authority"
listen = ["unix:site.sock"]
inventory = [{{ type = "vm", units = 8 }}]
delegation = [{{ broker = "broker", type = "vm" }}]
{authority}
[actor.guest]
role = "guest"
{guest}
[emulation]
horizon = "1d"
"""

DEMAND: Final = 'mapper = { name = "static", demands = [{ type = "vm", units = 3, term = "1h" }] }\n'

TEST: Final = '''\
"""The mapper keeps the rules that every mapper must keep, and does what it is for."""

from __future__ import annotations

{imports}from leasekit.emulation.conformance.kit import Subject, check

from {module} import {kind}, {kind}Settings


def test_passes_the_conformance_kit() -> None:
    """It never overbooks, decides what it can, repeats itself, and survives empty and full worlds."""
    checked = check(Subject(target="{module}:{kind}", role="{role}", cases=25))
    assert not checked.faults, checked.faults

{own}'''

OWN: Final = {
    "broker": (
        """\
from leasekit.core.mappers import BrokerCycle, PendingRequest, Reject
from leasekit.core.time import HOUR, Term
""",
        '''
def test_terms_are_bounded() -> None:
    """A term longer than the setting allows is refused, and the reason says what is allowed."""
    request = PendingRequest(
        lease="l-1", holder="guest", op="new", type="vm", units=1, min_units=1, term=Term(0, 3 * HOUR), latest_start=0,
        deadline=HOUR, arrived=0, site="", exclude_sites=frozenset(), source="", held=0, group="", priority=0,
        preemptible=False, properties={},
    )
    mapper = KIND(KINDSettings(longest=2 * HOUR))
    (decision,) = mapper.allocate(BrokerCycle(0, [request], (), lambda type_: ()))
    assert isinstance(decision, Reject)
    assert "2h" in decision.reason
''',
    ),
    "authority": (
        """\
from leasekit.core.mappers import Assign, AuthorityCycle, Demand, UnitView
from leasekit.core.time import HOUR, Term
""",
        '''
def test_units_that_failed_go_last() -> None:
    """A lease gets the units that have failed least."""
    units = [UnitView(f"vm-{n}", "vm", "free", "", failures, {}) for n, failures in enumerate((2, 0, 1))]
    demand = Demand("l-1", "guest", "new", "vm", 2, (), (), Term(0, HOUR), {})
    mapper = KIND(KINDSettings())
    (decision,) = mapper.assign(AuthorityCycle(0, [demand], lambda type_: iter(units), lambda name: units[0]))
    assert decision == Assign("l-1", ("vm-1", "vm-2"))
''',
    ),
    "guest": (
        """\
from leasekit.core.mappers import GuestCycle, RequestLease
""",
        '''
def test_asks_at_first() -> None:
    """Without a lease it asks for one, with the units that its settings say."""
    mapper = KIND(KINDSettings(units=3))
    first, *_ = mapper.plan(GuestCycle(0, []))
    assert isinstance(first, RequestLease)
    assert first.units == 3
''',
    ),
}


def write_package(folder: Path, name: str, role: str) -> list[Path]:
    """The files of a new package ``folder/NAME``. Raises ``LeasekitError`` for a name that won't do, or where something
    of that name is there already.
    """
    if NAME.fullmatch(name) is None:
        raise LeasekitError(
            f"NAME: found {name!r}, expected small letters, digits, and - or _ between them; a letter comes first"
        )
    if keyword.iskeyword(name):
        raise LeasekitError(f"NAME: found {name!r}, which is a word of Python's own: choose another name")
    if name.replace("-", "_") in sys.stdlib_module_names | {"attrs", "leasekit"}:
        raise LeasekitError(f"NAME: found {name!r}, which is a module that would be hidden: choose another name")
    taken = [known for role_ in BEGIN_WITH for known in known_mappers(role_) if known == name]
    if taken:
        raise LeasekitError(f"NAME: found {name!r}, which is a mapper already: choose another name")
    target = folder / name
    if target.exists():
        raise LeasekitError(f"{target} is there already")
    module = name.replace("-", "_")
    kind = "".join(part.capitalize() for part in re.split(r"[-_]", name))
    words = {
        "name": name,
        "role": role,
        "module": module,
        "kind": kind,
        "package": f"leasekit-{name.replace('_', '-')}",
    }
    texts = {
        f"{module}.py": skeleton(role).replace("Skeleton", kind).replace("skeleton", module),
        f"test_{module}.py": _test(words),
        "pyproject.toml": PROJECT.format(**words),
        "README.md": README.format(**words),
        "deploy.toml": _deploy(words),
    }
    target.mkdir(parents=True)
    for file, text in texts.items():
        (target / file).write_text(text, encoding="utf-8")
    return [target / file for file in texts]


def skeleton(role: str) -> str:
    """The source of the mapper that a role begins with."""
    from leasekit.emulation.conformance import skeletons

    text = (Path(skeletons.__path__[0]) / f"{role}.py").read_text(encoding="utf-8")
    # Where it goes, leasekit is a library like others: linters want it in one block with them.
    return text.replace("import attrs\n\nfrom leasekit", "import attrs\nfrom leasekit")


def _deploy(words: dict[str, str]) -> str:
    lines = dict.fromkeys(BEGIN_WITH, "")
    lines["guest"] = DEMAND
    lines[words["role"]] = f'mapper = {{ name = "{words["name"]}" }}\n'
    return DEPLOY.format(**words, **lines)


def _test(words: dict[str, str]) -> str:
    imports, own = OWN[words["role"]]
    return TEST.format(**words, imports=imports, own=own.replace("KIND", words["kind"]))


ROLES = ("broker", "authority", "guest")
_FILE = click.Path(path_type=Path)


@click.group()
def mapper() -> None:
    """Write a mapper of your own, check it, compare it with others."""


@mapper.command(epilog=example("leasekit mapper new shortest --role broker"))
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Whose mapper it is.")
@click.option("--in", "folder", type=_FILE, default=Path(), metavar="DIR", help="Where the package goes [here].")
def new(name: str, role: str, folder: Path) -> None:
    """Write a package with a mapper that works: its settings, its test, its entry point, and a deploy file.

    Change what it does, install it, and name it in a deploy file.
    """
    for path in write_package(folder, name, role):
        note(str(path))


@mapper.command(name="list", epilog=example("leasekit mapper list --role broker"))
@click.option("--role", type=click.Choice(ROLES), help="Only mappers of this role.")
@json_option
def list_(role: str | None, as_json: bool) -> None:
    """List the mappers that a deploy file can name: those that come with leasekit, and those of installed packages."""
    columns = ("name", "role", "from", "class")
    found = [dict(zip(columns, row, strict=True)) for row in [*_built_in(), *_installed()] if role in (None, row[1])]
    output.report(found, output.listing(*columns, empty="no mappers"), as_json=as_json)


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


@mapper.command(
    epilog=example(
        "leasekit mapper check fcfs",
        "leasekit mapper check mine.py:Mine --cases 500",
        "leasekit mapper check mine.py:Mine --replay mapper-check-mine.json",
    )
)
@click.argument("target", metavar="MAPPER")
@click.option("--role", type=click.Choice(ROLES), help="Its role, where its methods leave that open.")
@click.option("--settings", type=_FILE, metavar="FILE", help="Its settings: a TOML file.")
@click.option("--cases", type=Count(min=1), default=100, show_default=True, metavar="N", help="Worlds.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="What the cases are drawn by.")
@click.option(
    "--type", "types", multiple=True, default=("vm", "host"), show_default=True, metavar="NAME", help="Types of units."
)
@click.option("--limit", type=Number(min=0.1), default=5.0, show_default=True, help="Seconds for a turn.")
@click.option("--out", type=_FILE, default=Path(), metavar="DIR", help="Where a failing case is written [here].")
@click.option("--replay", "replay_file", type=_FILE, metavar="FILE", help="Play the one case of this file.")
@json_option
def check(
    target: str,
    role: str | None,
    settings: Path | None,
    cases: int,
    seed: int,
    types: tuple[str, ...],
    limit: float,
    out: Path,
    replay_file: Path | None,
    as_json: bool,
) -> int:
    """Check that a mapper does what every mapper must, in worlds of real actors that are drawn by a seed.

    It never overbooks, decides what it can, respects groups and windows, repeats itself for a seed, survives empty and
    full worlds, and ends its turns in time. A case in which it does not is made as small as possible and written to a
    file that --replay plays again. Exits with 1 if anything is wrong.
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
        return _show_replay(kit.replay(subject, recorded.case), as_json)
    with progress_bars() as report:
        checked = kit.check(subject, report)
    files = [kit.write_case(out, subject, found) for found in checked.faults if found.case is not None]
    _show_checked(subject, checked, files, as_json)
    return 1 if checked.faults else 0


def _show_checked(subject: Subject, checked: Checked, files: list[Path], as_json: bool) -> None:
    from leasekit.emulation.conformance import kit
    from leasekit.emulation.conformance.loads import told

    faults = {found.check: found.text for found in checked.faults}
    if as_json:
        print_json(
            {
                "mapper": subject.target,
                "role": subject.role,
                "cases": checked.cases,
                "turns": checked.turns,
                "faults": faults,
                "files": [str(file) for file in files],
                "costs": [{"size": cost.size, "us_each": round(cost.each_us, 2)} for cost in checked.costs],
            }
        )
        return
    rows = [(name, "failed" if name in faults else "ok", faults.get(name, text)) for name, text in kit.CHECKS.items()]
    if checked.costs:
        rows.append((kit.COST, "", told(checked.costs)))
    done = f"{checked.cases} cases, {checked.turns} turns"
    print_table(("check", "", ""), rows, empty="", title=f"{subject.target} ({subject.role}): {done}")
    for file in files:
        note(f"the failing case is in {file}: leasekit mapper check {subject.target} --replay {file}")


def _show_replay(checked: Checked, as_json: bool) -> int:
    faults = [(found.check, found.text) for found in checked.faults]
    if as_json:
        print_json({"faults": [list(fault) for fault in faults], "turns": [list(turn) for turn in checked.journal]})
        return 1 if faults else 0
    rows: list[tuple[Any, str, str]] = []
    for now, shown, decided in checked.journal:
        rows += [(now, shown, decided[0] if decided else "(nothing)"), *(("", "", each) for each in decided[1:])]
    print_table(("at ms", "shown", "decided"), rows, empty="the mapper was never called", right=("at ms",))
    for name, text in faults:
        note(f"{name}: {text}")
    if not faults:
        note("nothing wrong with this case")
    return 1 if faults else 0


@mapper.command(
    epilog=example("leasekit mapper compare fcfs backfill:mode=easy --swf log.swf.gz --nodes 240 --out compared")
)
@click.argument("targets", nargs=-1, required=True, metavar="MAPPER...")
@click.option("--workload", "workload_file", type=_FILE, metavar="FILE", help="A workload as for `plan timetable`.")
@click.option("--swf", type=_FILE, metavar="FILE", help="A job log in the Standard Workload Format, gzip or not.")
@click.option("--nodes", type=Count(min=1), required=True, metavar="N", help="How many nodes there are.")
@click.option("--out", type=_FILE, metavar="DIR", help="Where tables and pictures go.")
@click.option("--jobs", type=Count(min=1), metavar="N", help="How many runs at once (default: a run a CPU).")
@click.option(
    "--engine", type=click.Choice(("local", "dask")), default="local", show_default=True, help="Where they run."
)
@click.option("--scheduler", metavar="ADDRESS", help="The Dask scheduler, as tcp://host:8786.")
@click.option(
    "--patience", type=Number(min=0, min_open=True), default=60.0, show_default=True, metavar="S",
    help="How long one turn may take.",
)  # fmt: skip
@saving_options
@json_option
def compare(
    targets: tuple[str, ...],
    workload_file: Path | None,
    swf: Path | None,
    nodes: int,
    out: Path | None,
    jobs: int | None,
    engine: str,
    scheduler: str | None,
    patience: float,
    memory: float,
    rate: float,
    as_json: bool,
) -> int:
    """Run one workload through several brokers' mappers, and show how work fared.

    MAPPER is a name, module:Class or path/to/file.py:Class, with settings after a colon if need be, as
    `backfill:mode=easy`, or a TOML file with `name` and settings. Work asks for its estimate and ends when it is done.
    First come, first served as job logs know it is `fcfs:backfill=false`: `fcfs` alone books everything ahead.

    Guests, a broker and a site do what they do as daemons, in virtual time. What a mapper does wrong is told at once;
    the broker goes on, and the exit status is 1.
    """
    from leasekit.emulation.compare.engines import cpus, run_dask, run_local
    from leasekit.emulation.compare.pool import Pool, Saving
    from leasekit.emulation.compare.targets import read_target
    from leasekit.emulation.outputs import make_folder

    if (workload_file is None) == (swf is None):
        raise click.UsageError("give either --workload or --swf")
    if (engine == "dask") != (scheduler is not None):
        raise click.UsageError("--engine dask and --scheduler go together")
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise click.UsageError(f"{twice[0]!r} is given twice")
    chosen = [read_target(target) for target in targets]
    for target in chosen:
        target.make()  # what is wrong with one is told before hours of work
    workload = _workload(workload_file, swf)
    if out is not None:
        make_folder(out)
    with progress_bars() as report:
        pool = Pool(nodes, Saving(memory=memory, rate=rate))
        if engine == "dask":
            results = run_dask(chosen, workload.works, pool, scheduler=str(scheduler), report=report)
        else:
            results = run_local(
                chosen, workload.works, pool, jobs=jobs or cpus(), report=report, patience=patience,
                tell=lambda label, text: note(f"{label}: {text}"),
            )  # fmt: skip
    return _show(targets, workload, nodes, results, out, as_json)


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


def _show(
    targets: tuple[str, ...], workload: Workload, nodes: int, results: list[Any], out: Path | None, as_json: bool
) -> int:
    from leasekit.emulation.compare import report

    done = [result for result in results if not isinstance(result, LeasekitError)]
    failed = {target: str(r) for target, r in zip(targets, results, strict=True) if isinstance(r, LeasekitError)}
    if as_json:
        print_json({"workload": workload.name, "nodes": nodes, "runs": [r.summary for r in done], "failed": failed})
    elif done:
        rows = [[*_cells(run.summary), f"{run.summary['measured']['seconds']:.1f}"] for run in done]
        print_table((*report.COLUMNS, "took s"), rows, empty="", right=(*report.COLUMNS[1:], "took s"))
        note("utilisation is over the time from the first submission to the last")
        for run in done:
            for text in report.remarks(run.summary, workload):
                note(text)
    if out is not None and done:
        files = report.write(out, workload, nodes, done)
        note(f"written to {out}: {', '.join(file.name for file in files if file.suffix != '.svg')}")
    wrong = went_wrong({run.summary["mapper"]: run.summary["mapper_errors"] for run in done})
    for line in wrong:
        note(line)
    if failed:
        raise LeasekitError("\n".join(f"mapper {target!r} {text}" for target, text in failed.items()))
    return 1 if wrong else 0


def _cells(summary: dict[str, Any]) -> list[str]:
    from leasekit.emulation.compare.report import COLUMNS

    return [_cell(summary[column]) for column in COLUMNS]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return "" if value is None else str(value)


@mapper.command(epilog=example("leasekit mapper workload jobs.swf --jobs 2000 --nodes 64 --seed 1"))
@click.argument("file", type=_FILE)
@click.option("--jobs", type=Count(min=1), default=2000, show_default=True, metavar="N", help="How many jobs.")
@click.option("--nodes", type=Count(min=1), default=64, show_default=True, metavar="N", help="How many nodes.")
@click.option("--load", type=Number(min=0.01, max=10), default=0.8, show_default=True, metavar="SHARE", help="Offered.")
@click.option("--users", type=Count(min=1), default=12, show_default=True, metavar="N", help="Whose jobs.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="What they are drawn by.")
def workload(file: Path, jobs: int, nodes: int, load: float, users: int, seed: int) -> None:
    """Make a job log by a seed, for those who have none: FILE in the Standard Workload Format."""
    from leasekit.emulation.compare.works import WorkShape, generate, write_swf

    write_swf(file, generate(WorkShape(jobs=jobs, nodes=nodes, load=load, users=users, seed=seed)), nodes)
    note(f"{file}: {jobs} jobs for {nodes} nodes at load {load:g}")
