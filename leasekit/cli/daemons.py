"""``leasekit up``, ``down``, ``reload``, ``status`` and ``clock``: the daemons of a deploy file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.output import example, json_option, listing, note, print_json, print_table, report
from leasekit.cli.peer import difference_in_words
from leasekit.cli.places import DeployPlace, daemon_options, daemons_options, file_and_actors
from leasekit.cli.times import to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.time import format_duration

UP_WITHIN: Final = 60.0
LOOK_EVERY: Final = 0.1
COLUMNS = ("actor", "role", "state", "pid", "leases", "units", "waiting", "peers")


@click.command(epilog=example("leasekit status --file deploy/quickstart/all.toml", "leasekit status site --json"))
@click.argument("name", metavar="[ACTOR]", default="")
@daemon_options
@click.option("--wait", is_flag=True, help=f"Wait until all of them are running, for up to {UP_WITHIN:.0f} s.")
@json_option
def status(place: DeployPlace, name: str, wait: bool, as_json: bool) -> int:
    """Show how daemons are: what they hold, whom they are connected to, what troubles them.

    Exits with 0 if all of them are running, with 1 otherwise.
    """
    wanted = name or place.actor
    doors, until = place.doors([wanted] if wanted else ()), time.monotonic() + UP_WITHIN
    answers = [_ask(door.name, door.role, door.control) for door in doors]
    while wait and not all(map(_running, answers)) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)  # nobody tells of a socket that is not there yet
        answers = [_ask(door.name, door.role, door.control) for door in doors]
    if as_json:
        print_json(answers)
    else:
        print_table(COLUMNS, [_row(answer) for answer in answers], empty="no actors", right=("pid", "waiting"))
        for answer in answers:
            for problem in _problems(answer):
                note(f"{answer['name']}: {problem}")
    return 0 if all(_running(answer) for answer in answers) else 1


def _ask(name: str, role: str, path: Path) -> dict[str, Any]:
    from leasekit.runtime.client import ControlClient, ControlError

    try:
        with ControlClient(path) as client:
            answer: dict[str, Any] = client.query("status")
    except ControlError as error:
        return {"name": name, "role": role, "shell": {"state": "down", "problem": str(error)}}
    return answer


def _running(answer: dict[str, Any]) -> bool:
    return bool(answer["shell"]["state"] == "running")


def _row(answer: dict[str, Any]) -> tuple[Any, ...]:
    peers = answer.get("peers", ())
    return (
        answer["name"],
        answer["role"],
        answer["shell"]["state"],
        answer.get("pid", ""),
        _counts(answer.get("leases", {})),
        _units(answer.get("units", "")),
        answer.get("waiting", ""),
        f"{sum(bool(peer['connected']) for peer in peers)} of {len(peers)}" if peers else "",
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _units(units: Any) -> str:
    """A site counts its units by type and state, a guest those it has."""
    if not isinstance(units, dict):
        return str(units)
    return "; ".join(f"{type_}: {_counts(states)}" for type_, states in units.items())


def _apart(ahead: int) -> str:
    return f"{format_duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"


def _outages(outages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each type of units that can't be set up for some leases, with the first reason."""
    for type_ in dict.fromkeys(one["type"] for one in outages):
        first, *more = (one for one in outages if one["type"] == type_)
        whom = f"lease {first['lease']}" + (f" and {len(more)} more" if more else "")
        yield f"units of type {type_} are not set up for {whom} since {to_second(first['since'])}: {first['reason']}"


def _problems(answer: dict[str, Any]) -> list[str]:
    problems = [answer["shell"].get("problem", "")]
    problems += [
        f"{one['broker']} has introduced {one['known']} peers; {one['refused']} more were refused (introductions_max)"
        for one in answer.get("introductions", ())
        if one["refused"]
    ]
    problems += [f"mapper: {error}" for error in answer.get("mapper_errors", ())]
    problems += _outages(answer.get("outages", ()))
    problems += [
        f"{to_second(one['at'])}, {one['from']} reports {one['code']}: {one['words']}"
        for one in answer.get("reports", ())
    ]
    problems += [difference_in_words(row) for row in answer.get("delegations", ())]
    problems += [f"peer {peer['peer']}: {peer['problem']}" for peer in answer.get("peers", ()) if peer["problem"]]
    problems += [
        f"peer {peer['peer']}: its clock is {_apart(peer['clock_ahead'])}: nothing that it says is obeyed (clock_skew)"
        for peer in answer.get("peers", ())
        if peer["clock_ahead"]
    ]
    if answer.get("orphans"):
        problems.append(f"{answer['orphans']} things of units that nobody has: `leasekit site orphans` lists them")
    problems += [
        f"driver {one['driver']} can't say what is left of old units: {one['reason']}; `leasekit site orphans` retries"
        for one in answer.get("orphans_untold", ())
    ]
    if answer.get("needs_restart"):
        problems.append(f"a restart is needed for {', '.join(answer['needs_restart'])} of the deploy file")
    return [problem for problem in problems if problem]


@click.group()
def clock() -> None:
    """Say that the clock of a daemon's machine is right."""


@clock.command(epilog=example("leasekit clock accept --file deploy/quickstart/all.toml", "leasekit clock accept site"))
@click.argument("actors", metavar="[ACTOR]...", nargs=-1)
@daemons_options
@json_option
def accept(place: DeployPlace, actors: tuple[str, ...], as_json: bool) -> int:
    """Have daemons take their machine's clock for right after it was set: all of a deploy file, or those ACTORs of it.

    Until then time goes on at the old pace, and nothing ends by it; what is over by the clock ends now. An actor's log
    says who accepted it. A clock that is behind can't be accepted while time is later: what to do is said then.

    Exits with 1 if one of the daemons does not answer or can't accept it.
    """
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"user {os.getuid()}"
    status, answers = _command_all(place, actors, "clock.accept", by=user)
    told = [{"actor": name, **answer} for name, answer in answers]
    if as_json:
        print_json(told)
    else:
        for answer in told:
            note(f"{answer['actor']}: {_told(answer)}")
    return status


def _command_all(place: DeployPlace, actors: Sequence[str], name: str, **arguments: Any) -> tuple[int, list[Any]]:
    """Have daemons carry out a command: the exit status, and what each answers that does, by its name. What is wrong
    with the others is told.
    """
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    answers, doors = [], place.doors(actors)
    for door in doors:
        called = door.name or str(door.control)
        try:
            with ControlClient(door.control, warn=lambda text: None) as client:
                answers.append((called, client.command(name, **arguments)))
        except (ControlError, RequestError) as error:
            for line in str(error).splitlines():
                note(f"{called}: {line}")
    return 0 if len(answers) == len(doors) else 1, answers


def _told(answer: dict[str, Any]) -> str:
    if not answer["accepted"]:
        return "there is nothing to accept: the clock agrees with the time here"
    return f"time is {format_duration(answer['ahead'])} later than before: {answer['now']}"


@click.command(
    epilog=example(
        "leasekit up deploy/quickstart/all.toml",
        "leasekit up deploy/quickstart/all.toml site --state run/site",
    )
)
@file_and_actors
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the traces are that mappers follow."
)
@click.option("--synthetic", is_flag=True, help="Let mappers follow generated load instead of traces.")
@click.option("--accept-clock", is_flag=True, help="Believe this machine's clock, although it was set.")
@click.option("--ready-fd", type=int, metavar="N", help="Write the ready lines to this descriptor as well.")
def up(
    place: DeployPlace,
    actors: tuple[str, ...],
    data: Path | None,
    synthetic: bool,
    accept_clock: bool,
    ready_fd: int | None,
) -> int:
    """Run the daemons of a deploy file (or those ACTORs of it) in this process until they are stopped.

    Prints a line for each actor as soon as it listens, and stops in good order on Ctrl-C, SIGTERM or `leasekit down`.
    """
    from leasekit.runtime.daemon import run

    return run(
        place.deployment(), actors, ready_fd=ready_fd, data_dir=data, synthetic=synthetic, accept_clock=accept_clock
    )


@click.command(epilog=example("leasekit down --file deploy/quickstart/all.toml"))
@click.argument("actors", metavar="[ACTOR]...", nargs=-1)
@daemons_options
def down(place: DeployPlace, actors: tuple[str, ...]) -> None:
    """Stop the daemons of a deploy file, or those ACTORs of it. What runs is finished, or resumed at the next start.

    A process that runs several actors stops as a whole.
    """
    from leasekit.runtime.client import ControlClient, ControlError

    with ExitStack() as stack:
        running = {}
        for door in place.doors(actors):
            with suppress(ControlError):
                running[door.name or str(door.control)] = stack.enter_context(ControlClient(door.control))
        for name, client in running.items():
            with suppress(ControlError):  # the process that runs it may have been told so already
                client.stop()
            note(f"{name}: stopping")
    if not running:
        raise LeasekitError(f"{place.control or place.deploy_file()}: none of its daemons is running")


@click.command(
    epilog=example(
        "leasekit reload --file deploy/quickstart/all.toml",
        "leasekit reload site --json",
        "leasekit reload --control run/quickstart/site.control.sock",
    )
)
@click.argument("actors", metavar="[ACTOR]...", nargs=-1)
@daemons_options
@json_option
def reload(place: DeployPlace, actors: tuple[str, ...], as_json: bool) -> int:
    """Have daemons take what their deploy file says by now: all of a file, or those ACTORs of it. SIGHUP does the same.

    Each actor takes all that is new, or, if anything in the file is wrong, nothing. What is new is shown by key, as it
    was and as it is; keys that need a restart are named, and stay as they were until then.

    Exits with 1 if one of the daemons does not answer or takes nothing.
    """
    status, answers = _command_all(place, actors, "reload")
    rows = [{"actor": name, **change} for name, changes in answers for change in changes]
    if answers or as_json:
        report(rows, CHANGES, as_json=as_json)
    return status


CHANGES: Final = listing(
    "actor", "key", "before", "after", ("taken", lambda change: "at a restart" if change["restart"] else "now"),
    empty="no key has another value",
)  # fmt: skip
