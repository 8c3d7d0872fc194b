"""``leasekit simulate``: production actors in a world in which everything goes wrong that may, drawn from a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import Count, Number, argument, command, option
from leasekit.cli.output import clean, console, note, print_fields, print_json
from leasekit.core.settings import expect_one_of

if TYPE_CHECKING:
    from rich.status import Status

    from leasekit_simulation.explore import Report
    from leasekit_simulation.faults.campaign import Progress, Summary
    from leasekit_simulation.faults.run import Failure
    from leasekit_simulation.faults.scenario import Scenario

SEEDS_DEFAULT: Final = 100
SHOWN_MAX: Final = 3
"""Of how many failures the whole story is told."""


class SeedRange(click.ParamType[tuple[int, int | None]]):
    """``A..B``, both of them included, or ``A..`` for on and on."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        """The first and the last seed."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)\.\.(\d*)", value)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            self.fail(f"found {value!r}, expected A..B with A up to B, such as 0..999, or A..")
        return int(match[1]), int(match[2]) if match[2] else None


@command(None)
def simulate(
    as_json: bool,
    seed: int | None = option("Run this seed again, exactly as it was.", type=Count(min=0), metavar="N"),
    seeds: tuple[int, int | None] | None = option(
        "Run these seeds [0..99]; A.. goes on and on.", type=SeedRange(), metavar="A..B"
    ),
    jobs: int = option("In how many processes [1].", type=Count(min=1), default=1, metavar="N"),
    minutes: float | None = option("Go on until time is up.", type=Number(min=0), metavar="M"),
    file: Path | None = option("Fix (part of) what the seed draws: TOML or JSON.", "--scenario", metavar="FILE"),
    shrink: bool = option("Drop faults and requests while the failure stays; write what is left."),
    write: Path | None = option("Write the scenario (with --shrink: the small one).", metavar="FILE"),
    flows: bool = option("Explore every joint state of a lease instead.", "--explore"),
    faults: int = option("With --explore: at most so many [1].", type=Count(0, 3), default=1, metavar="N"),
    flow: tuple[str, ...] = argument(),
) -> None:
    """Look for bugs of the leasing protocol: run seeds, each a world of its own with its own faults.

    Actors, mappers, tickets, stores and messages are those of the daemons. Checkers keep their own books; what they
    find is told with the seed, the step, the story of the lease concerned and the command that runs it again. The exit
    status is 1 if anything failed, or if a campaign of 300 seeds or more never met a fault or a transition.

    Example:
      leasekit simulate --seeds 0..999 --jobs 2
      leasekit simulate --seeds 5000.. --jobs 2 --minutes 30
      leasekit simulate --seed 4711 --shrink
      leasekit simulate --scenario seed-4711.json
      leasekit simulate --explore plain --faults 2
    """
    context = click.get_current_context()
    _check_usage(seed, seeds, minutes, file, shrink, write, flows, flow)
    if flows:
        context.exit(_explore(flow, faults, as_json))
    if seed is not None or file is not None:
        context.exit(_one(seed, file, shrink, write, as_json))
    first, last = seeds if seeds is not None else (0, None if minutes is not None else SEEDS_DEFAULT - 1)
    context.exit(_many(first, last, jobs, minutes, as_json))


def _check_usage(
    seed: int | None, seeds: Any, minutes: float | None, file: Path | None, shrink: bool, write: Path | None,
    flows: bool, flow: tuple[str, ...],
) -> None:  # fmt: skip
    one = seed is not None or file is not None
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds exclude each other")
    if one and (seeds is not None or minutes is not None):
        raise click.UsageError("--seeds and --minutes don't go with one seed or scenario")
    if (shrink or write is not None) and not one:
        raise click.UsageError("--shrink and --write go with --seed or --scenario")
    if flow and not flows:
        raise click.UsageError(f"found {flow[0]!r}: names of flows go with --explore")


# -- one seed ----------------------------------------------------------------------------------------------------------


def _one(seed: int | None, file: Path | None, shrink: bool, write: Path | None, as_json: bool) -> int:
    from leasekit_simulation.faults.campaign import Summary
    from leasekit_simulation.faults.run import simulate as run
    from leasekit_simulation.faults.scenario import draw, read_scenario, write_scenario

    scenario = draw(seed or 0) if file is None else read_scenario(file, seed)
    result = run(scenario)
    summary = Summary(first=scenario.seed)
    summary.add(result)
    failure = result.failure
    if failure is not None and shrink:
        scenario = _shrunk(scenario, failure)
        write = write or Path(f"seed-{scenario.seed}.json")
        failure = run(scenario).failure or failure
    if write is not None:
        write_scenario(write, scenario)
        note(f"written to {write}: {len(scenario.operations)} operations, {len(scenario.faults or ())} small faults")
    if as_json:
        print_json(summary.as_dict())
    elif failure is None:
        _print_figures(summary)
    if failure is not None:
        replay = f"leasekit simulate --seed {scenario.seed}"
        if write is not None or file is not None:
            replay = f"leasekit simulate --scenario {write or file}"
        _tell(scenario, failure, replay)
    return 0 if failure is None else 1


def _shrunk(scenario: Scenario, failure: Failure) -> Scenario:
    from leasekit_simulation.faults.campaign import Shrinker

    where = console(stderr=True)
    with where.status("shrinking ...") as status:

        def show(runs: int, operations: int, faults: int) -> None:
            status.update(f"shrinking: {runs} runs, {operations} operations and {faults} small faults are left")

        shrinker = Shrinker(scenario, failure, progress=show)
        small = shrinker.go()
    note(f"{shrinker.runs} runs; {len(small.operations)} of {len(scenario.operations)} operations are left")
    for operation in small.operations:
        note(f"  {operation.at:>9} {operation.do} {operation.who}")
    for fault in small.faults or ():
        note(f"            {fault}")
    return small


def _tell(scenario: Scenario, failure: Failure, replay: str) -> None:
    from leasekit_simulation.faults.run import explain

    for line in explain(scenario, failure, replay).splitlines():
        note(line)


# -- many seeds --------------------------------------------------------------------------------------------------------


def _many(first: int, last: int | None, jobs: int, minutes: float | None, as_json: bool) -> int:
    from leasekit_simulation.faults.campaign import campaign
    from leasekit_simulation.faults.scenario import draw

    with _progress(first, last, minutes) as progress:
        summary = campaign(first, last, jobs=jobs, minutes=minutes, progress=progress)
    if as_json:
        print_json(summary.as_dict())
    else:
        _print_figures(summary)
    for failure in summary.failures[:SHOWN_MAX]:
        _tell(draw(failure.seed), failure, f"leasekit simulate --seed {failure.seed}")
    for failure in summary.failures[SHOWN_MAX:]:
        note(f"seed {failure.seed}: {failure.kind}: {failure.text}")
    for name in summary.never_met:
        note(f"never met in {summary.seeds} seeds: {name}")
    return 0 if summary.fine else 1


@contextmanager
def _progress(first: int, last: int | None, minutes: float | None) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal: by seeds, or by time if that ends it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda summary: None
        return
    total = None if last is None else float(last - first + 1)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=where, transient=True) as bars:
        task = bars.add_task("simulating", total=minutes * 60 if minutes is not None else total)

        def show(summary: Summary) -> None:
            failed = f", {len(summary.failures)} failed" if summary.failures else ""
            done = summary.seconds if minutes is not None else summary.seeds
            bars.update(task, completed=done, description=f"{summary.seeds} seeds{failed}")

        yield show


def _print_figures(summary: Summary) -> None:
    from leasekit_simulation.faults import marks

    figures = summary.as_dict()
    every = marks.declared()
    reachable = [name for name in every if name not in marks.UNREACHABLE]
    print_fields(
        [
            ("seeds", f"{summary.seeds} ({summary.first}..{summary.last})"),
            ("failed", str(len(summary.failures))),
            ("requests", f"{summary.requests} ({figures['requests_per_seed']} a seed)"),
            (
                "steps",
                f"{summary.steps} ({figures['steps_per_second']} a second)" if summary.seconds else summary.steps,
            ),
            ("simulated", f"{figures['virtual_hours']} h, {figures['lease_hours']} lease-hours"),
            ("met", f"{sum(bool(summary.met[name]) for name in reachable)} of {len(reachable)} marks"),
        ]
    )


# -- joint states ------------------------------------------------------------------------------------------------------


def _explore(flow: tuple[str, ...], faults: int, as_json: bool) -> int:
    """Explore the named flows, all if none is named."""
    from leasekit_simulation.explore import FLOWS, explore

    for name in flow:
        if name not in FLOWS:
            raise click.UsageError(f"FLOW: found {name!r}, {expect_one_of(name, FLOWS)}")
    where = console(stderr=True)
    reports = []
    for name in flow or FLOWS:
        with where.status(f"exploring {name} ...") as status:

            def tell(found: int, waiting: int, most: int, name: str = name, status: Status = status) -> None:
                status.update(f"{name}: {found} joint states, {waiting} to go through, {most} faults")

            reports.append(explore(name, faults, tell))
        if not as_json:
            click.echo(clean_lines(reports[-1].text()))
    if as_json:
        print_json([_explored(report) for report in reports])
    return 0 if all(report.fine for report in reports) else 1


def _explored(report: Report) -> dict[str, Any]:
    return {
        "flow": report.flow,
        "faults": report.faults,
        "joint_states": list(report.joint_states),
        "states": [list(level) for level in report.levels],
        "transitions": len(report.steps),
        "unlisted": [list(level) for level in report.unlisted],
        "failures": [{"what": failure.what, "path": list(failure.path)} for failure in report.failures],
    }


def clean_lines(text: str) -> str:
    """Text of several lines that is safe on a terminal."""
    return "\n".join(clean(line) for line in text.splitlines())
