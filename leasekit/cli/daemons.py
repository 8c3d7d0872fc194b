"""The daemons of a deploy file: ``leasekit up``, ``down``, ``reload``, ``status``, ``clock``, ``backup``, ``restore``;
and what they have counted, ``usage``.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import DAEMONS, FILE_AND_ACTORS, Shown, argument, command, now, option, to_second
from leasekit.cli.output import listing, note, print_table
from leasekit.cli.peer import difference_in_words
from leasekit.cli.places import GATEWAY, DeployPlace
from leasekit.core.accounts import KEYS
from leasekit.core.errors import LeasekitError
from leasekit.core.time import DAY, HOUR, Instant, format_duration

if TYPE_CHECKING:
    from leasekit.cli.places import AnyDoor
    from leasekit.config.deployment import Deployment
    from leasekit.runtime.daemon import Service

UP_WITHIN: Final = 60.0
LOOK_EVERY: Final = 0.1


@command(None)
def status(
    place: DeployPlace,
    name: str = argument("[ACTOR]", default=""),
    wait: bool = option(f"Wait until all of them are running, for up to {UP_WITHIN:.0f} s."),
) -> Shown:
    """Show how daemons are: what they hold, whom they are connected to, what troubles them.

    Exits with 0 if all of them are running, with 1 otherwise.

    Example:
      leasekit status --file deploy/quickstart/all.toml
      leasekit status site --json
    """
    wanted, until = name or place.actor, time.monotonic() + UP_WITHIN
    answers = _ask_all(place, wanted)
    while wait and not all(map(_running, answers)) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)  # nobody tells of a socket that is not there yet
        answers = _ask_all(place, wanted)
    problems = [f"{answer['name']}: {problem}" for answer in answers for problem in _problems(answer)]
    return answers, (STATUS, *filter(None, map(_numbers, answers)), *problems), 0 if all(map(_running, answers)) else 1


def _ask_all(place: DeployPlace, wanted: str) -> list[dict[str, Any]]:
    return [_ask(door) for door in place.doors([wanted] if wanted else ())]


def _ask(door: AnyDoor) -> dict[str, Any]:
    """How a daemon is; of one that the caller may not ask, what the gateway has said of it."""
    from leasekit.config.sockets import RemoteDoor
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    state, problem = "down", ""
    try:
        with ControlClient(door.control) as client:
            answer: dict[str, Any] = client.query("status")
            return answer
    except ControlError as error:
        problem = str(error)
    except RequestError:
        if not isinstance(door.control, RemoteDoor):
            raise
        state = door.control.state
    return {"name": door.name, "role": door.role, "shell": {"state": state, "problem": problem}}


def _numbers(answer: dict[str, Any]) -> str:
    """What the mapper reports, in words."""
    told = ", ".join(f"{name} {value:g}" for name, value in answer.get("reported", {}).items())
    return f"{answer['name']}: its mapper reports {told}" if told else ""


def _running(answer: dict[str, Any]) -> bool:
    return bool(answer["shell"]["state"] == "running")


def _connected(answer: dict[str, Any]) -> str:
    peers = answer.get("peers", ())
    return f"{sum(bool(peer['connected']) for peer in peers)} of {len(peers)}" if peers else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _units(answer: dict[str, Any]) -> str:
    """A site counts its units by type and state, a guest those it has."""
    units = answer.get("units", "")
    if not isinstance(units, dict):
        return str(units)
    return "; ".join(f"{type_}: {_counts(states)}" for type_, states in units.items())


STATUS: Final = listing(
    ("actor", "name"),
    "role",
    ("state", lambda answer: answer["shell"]["state"]),
    ">pid",
    ("leases", lambda answer: _counts(answer.get("leases", {}))),
    ("units", _units),
    ">waiting",
    ("peers", _connected),
    empty="no actors",
)


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
    if answer.get("sources") == 0:
        problems.append(
            "nobody has delegated units to it; if its store was lost, sites have to `reclaim` and `delegate` them anew"
        )
    problems += [difference_in_words(row) for row in answer.get("delegations", ())]
    problems += [f"peer {peer['peer']}: {peer['problem']}" for peer in answer.get("peers", ()) if peer["problem"]]
    problems += [
        f"peer {peer['peer']}: its clock is {format_duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}: "
        "nothing that it says is obeyed (clock_skew)"
        for peer in answer.get("peers", ())
        if (ahead := peer["clock_ahead"])
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


@command(clock)
def accept(place: DeployPlace = DAEMONS) -> Shown:
    """Have daemons take their machine's clock for right after it was set: all of a deploy file, or those ACTORs of it.

    Until then time goes on at the old pace, and nothing ends by it; what is over by the clock ends now. An actor's log
    says who accepted it. A clock that is behind can't be accepted while time is later: what to do is said then.

    Exits with 1 if one of the daemons does not answer or can't accept it.

    Example:
      leasekit clock accept --file deploy/quickstart/all.toml
      leasekit clock accept site
    """
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"user {os.getuid()}"
    with_clock = [door for door in place.doors(place.actors) if place.actors or door.role != GATEWAY]
    status, answers = _command_all(with_clock, "clock.accept", by=user)
    told = [{"actor": name, **answer} for name, answer in answers]
    return told, tuple(f"{answer['actor']}: {_told(answer)}" for answer in told), status


def _command_all(doors: Sequence[AnyDoor], name: str, **arguments: Any) -> tuple[int, list[Any]]:
    """Have daemons carry out a command: the exit status, and what each answers that does, by its name. What is wrong
    with the others is told.
    """
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    answers, refusals = [], dict[str, list[str]]()
    for door in doors:
        called = door.name or str(door.control)
        try:
            with ControlClient(door.control, warn=lambda text: None) as client:
                answers.append((called, client.command(name, **arguments)))
        except (ControlError, RequestError) as error:
            for line in str(error).splitlines():
                refusals.setdefault(line, []).append(called)
    for line, names in refusals.items():
        note(f"{', '.join(names)}: {line}")
    return 0 if len(answers) == len(doors) else 1, answers


def _told(answer: dict[str, Any]) -> str:
    if not answer["accepted"]:
        return "there is nothing to accept: the clock agrees with the time here"
    return f"time is {format_duration(answer['ahead'])} later than before: {to_second(answer['now'])}"


@command(None)
def up(
    place: DeployPlace = FILE_AND_ACTORS,
    data: Path | None = option("Where the traces are that mappers follow.", metavar="DIR"),
    synthetic: bool = option("Let mappers follow generated load instead of traces."),
    accept_clock: bool = option("Believe this machine's clock, although it was set."),
    ready_fd: int | None = option("Write the ready lines to this descriptor as well.", metavar="N"),
) -> int:
    """Run the daemons of a deploy file (or those ACTORs of it) in this process until they are stopped.

    Prints a line for each actor as soon as it listens, and stops in good order on Ctrl-C, SIGTERM or `leasekit down`.

    Example:
      leasekit up deploy/quickstart/all.toml
      leasekit up deploy/quickstart/all.toml site --state run/site
    """
    from leasekit.runtime.daemon import run

    deployment = place.deployment_with_actors()
    return run(
        deployment,
        place.actors,
        ready_fd=ready_fd,
        data_dir=data,
        synthetic=synthetic,
        accept_clock=accept_clock,
        services=partial(_gateways, deployment),
    )


def _gateways(deployment: Deployment, names: Sequence[str]) -> Sequence[Service]:
    """What runs the gateways of these names."""
    if not names:
        return []
    from leasekit.cli.gateway import gateway_service

    return [gateway_service(deployment, deployment.gateways[name]) for name in names]


@command(None)
def down(place: DeployPlace = DAEMONS) -> None:
    """Stop the daemons of a deploy file, or those ACTORs of it. What runs is finished, or resumed at the next start.

    A process that runs several actors stops as a whole.

    Example:
      leasekit down --file deploy/quickstart/all.toml
    """
    from leasekit.runtime.client import ControlClient, ControlError

    with ExitStack() as stack:
        running = {}
        for door in place.doors(place.actors):
            with suppress(ControlError):
                running[door.name or str(door.control)] = stack.enter_context(ControlClient(door.control))
        for name, client in running.items():
            with suppress(ControlError):  # the process that runs it may have been told so already
                client.stop()
            note(f"{name}: stopping")
    if not running:
        raise LeasekitError(f"{place.control or place.deploy_file()}: none of its daemons is running")


@command(None)
def reload(place: DeployPlace = DAEMONS) -> Shown:
    """Have daemons take what their deploy file says by now: all of a file, or those ACTORs of it. SIGHUP does the same.

    Each actor takes all that is new, or, if anything in the file is wrong, nothing. What is new is shown by key, as it
    was and as it is; keys that need a restart are named, and stay as they were until then. Guests that the file did not
    have before are run by the process that runs all of it, and gateways serve them.

    Exits with 1 if one of the daemons does not answer or takes nothing.

    Example:
      leasekit reload --file deploy/quickstart/all.toml
      leasekit reload site --json
      leasekit reload --control run/quickstart/site.control.sock
    """
    status, answers = _command_all(place.doors(place.actors), "reload")
    rows = [{"actor": name, **change} for name, changes in answers for change in changes]
    return rows, CHANGES if answers else (), status


CHANGES: Final = listing(
    "actor", "key", "before", "after", ("taken", lambda change: "at a restart" if change["restart"] else "now"),
    empty="no key has another value",
)  # fmt: skip


COPIES = listing("actor", "store", "copy", ">bytes", empty="no actor keeps a store")
FOLDER = click.Path(path_type=Path, file_okay=False)


@command(None)
def backup(
    place: DeployPlace = FILE_AND_ACTORS,
    folder: Path = option("Where the copies go, as ACTOR.db.", "--to", type=FOLDER, metavar="DIR", required=True),
) -> Shown:
    """Copy the stores of a deploy file's actors (or of those ACTORs), while their daemons run or not.

    A copy is as of one commit, and takes the place of an older one of that name only when it is whole. Keys are not
    copied: they do not change, so keep them apart.

    Example:
      leasekit backup --to /var/backups/leasekit
      leasekit backup deploy/quickstart/all.toml site --to copies
    """
    from leasekit.stores.sqlite import copy_store

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = []
    for name, store in _stores(place):
        to = folder / f"{name}.db"
        copy_store(store, to, now())
        copies.append({"actor": name, "store": str(store), "copy": str(to), "bytes": to.stat().st_size})
    return copies, COPIES


@command(None)
def restore(
    place: DeployPlace = FILE_AND_ACTORS,
    folder: Path | None = option("Where `leasekit backup` put the copies.", "--from", type=FOLDER, metavar="DIR"),
    empty: bool = option("There is no copy: begin with an empty store."),
) -> Shown:
    """Put copies in the place of the stores of a deploy file's actors (or of those ACTORs), which must not run.

    What was there is kept beside it. An actor that goes on from a copy gives no number again that it may have given
    since: docs/operations.md says what its peers see of that.

    Example:
      leasekit restore site --from /var/backups/leasekit
      leasekit restore guest --empty
    """
    from leasekit.stores.sqlite import put_back

    if (folder is None) != empty:
        raise click.UsageError("say --from DIR, or --empty")
    done, told = [], []
    for name, store in _stores(place):
        aside = [str(path) for path in put_back(None if folder is None else folder / f"{name}.db", store, now())]
        done.append({"actor": name, "store": str(store), "aside": aside})
        what = f"{store} is {'empty' if empty else 'put back'}"
        told.append(f"{name}: {what}" + (f"; what was there is {aside[0]}" if aside else ""))
    return done, tuple(told)


def _stores(place: DeployPlace) -> list[tuple[str, Path]]:
    """The stores of the actors that were named (none: all that keep one). Raises ``LeasekitError`` for one without."""
    deployment = place.deployment_with_actors()
    specs = [deployment.daemons[name] for name in place.actors or deployment.daemons]
    for spec in specs:
        if spec.store is None and place.actors:
            raise LeasekitError(f"{deployment.file}: {spec.name} keeps no store")
    return [(spec.name, spec.store) for spec in specs if spec.store is not None]


ROLES: Final = ("broker", "authority")
NUMBERS: Final = (
    "leases", "requests", "granted", "refused", "granted_unit_hours", "billed", "used_unit_hours", "utilisation",
    "lead_median", "lead_p90",
)  # fmt: skip


@command(None)
def usage(
    place: DeployPlace,
    since: Instant | None = option("The period's begin (default: 30 days ago).", metavar="TIME"),
    until: Instant | None = option("Its end (default: now).", metavar="TIME"),
    by: Sequence[str] = option("Add up by this; repeatable (default: all three).", type=KEYS),
    as_csv: bool = option("Print comma-separated values.", "--csv"),
) -> Shown:
    """Show what was asked for, granted and used, by holder, type and site.

    Brokers tell of requests, refusals, what they granted and what that is billed for leases that bid; sites of what was
    used, and which share of all their units that is.

    Example:
      leasekit usage --since -30d
      leasekit usage --by holder --actor site --csv
    """
    end = now() if until is None else until
    start = end - 30 * DAY if since is None else since
    if end <= start:
        raise click.UsageError("--until is not after --since")
    keys = [key for key in KEYS if key in by] or list(KEYS)
    rows: list[dict[str, Any]] = []
    notes: list[Any] = []
    lines: list[list[Any]] = []
    columns = ("actor", *keys, *NUMBERS)
    for actor, (role, answer) in _answers(place, start, end, keys).items():
        offered = answer["offered_unit_ms"]
        for row in answer["accounts"]:
            # How much there was to use at a site, of a row's type or of all; null at a broker, or if nobody knows.
            there = offered.get(row["type"], 0) if "type" in row else sum(offered.values())
            rows.append({"actor": actor, **row, "offered_unit_ms": there or None})
            shown = _in_hours(rows[-1], role)
            lines.append([shown[column] for column in columns])
        if answer["since"] > start and not as_csv:
            notes.append(f"{actor}: what its store has begins at {to_second(answer['since'])}")
    if as_csv:
        return rows, lambda _: csv.writer(sys.stdout).writerows([columns, *lines])
    titles = ("actor", *keys, *(f">{column.replace('_', ' ')}" for column in NUMBERS))
    return rows, (*notes, lambda _: print_table(titles, lines, empty="no leases"))


def _answers(
    place: DeployPlace, start: Instant, end: Instant, keys: Sequence[str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """The role of each broker and site, or of the one that was named, and what it says."""
    from leasekit.runtime.client import ControlClient

    found = {}
    for door in place.doors((place.actor,) if place.actor else ()):
        if door.role in (*ROLES, ""):
            with ControlClient(door.control) as client:
                who = client.query("status")  # of a control socket alone nothing is known
                if who["role"] in ROLES:
                    found[who["name"]] = who["role"], client.usage(start, end, keys)
    if not found:
        raise LeasekitError("there is no broker and no site here: guests keep no accounts")
    return found


def _in_hours(row: Mapping[str, Any], role: str) -> dict[str, Any]:
    """A row in the units that people use. What an actor of that role knows nothing of is left empty."""
    there = row["offered_unit_ms"]
    is_broker = role == "broker"
    return {
        **row,
        "refused": " ".join(f"{code}:{count}" for code, count in row["refused"].items()),
        "requests": row["requests"] if is_broker else "",
        "granted": row["granted"] if is_broker else "",
        "granted_unit_hours": f"{row['granted_unit_ms'] / HOUR:.3f}" if is_broker else "",
        "billed": row["billed"] if is_broker else "",
        "used_unit_hours": "" if is_broker else f"{row['used_unit_ms'] / HOUR:.3f}",
        "utilisation": "" if there is None else f"{100 * row['used_unit_ms'] / there:.1f}%",
        "lead_median": _shown_span(row["lead_median_ms"]),
        "lead_p90": _shown_span(row["lead_p90_ms"]),
    }


def _shown_span(span: int | None) -> str:
    return "" if span is None else format_duration(span)
