"""``leasekit clock``: what an operator says of the clock of the machine that daemons run on."""

from __future__ import annotations

import os
from typing import Any

import click

from leasekit.cli.output import example, json_option, note, print_json
from leasekit.cli.places import DeployPlace, file_options
from leasekit.core.errors import LeasekitError
from leasekit.core.time import format_duration


@click.group()
def clock() -> None:
    """Say that the clock of a daemon's machine is right."""


@clock.command(epilog=example("leasekit clock accept --file deploy/quickstart/all.toml", "leasekit clock accept site"))
@click.argument("actors", metavar="[ACTOR]...", nargs=-1)
@file_options
@json_option
def accept(place: DeployPlace, actors: tuple[str, ...], as_json: bool) -> int:
    """Have daemons take their machine's clock for right after it was set: all of a deploy file, or those ACTORs of it.

    Until then time goes on at the old pace, and nothing ends by it; what is over by the clock ends now. An actor's log
    says who accepted it. A clock that is behind can't be accepted while time is later: what to do is said then.

    Exits with 1 if one of the daemons does not answer or can't accept it.
    """
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    deployment = place.deployment()
    for name in actors:
        if name not in deployment.actors:
            raise LeasekitError(f"{deployment.file}: no actor {name!r}; it has {', '.join(deployment.actors)}")
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"user {os.getuid()}"
    answers, wanted = [], actors or tuple(deployment.actors)
    for name in wanted:
        try:
            with ControlClient(deployment.actors[name].control, warn=lambda text: None) as client:
                answers.append({"actor": name, **client.command("clock.accept", by=user)})
        except (ControlError, RequestError) as error:
            note(f"{name}: {error}")
    if as_json:
        print_json(answers)
    else:
        for answer in answers:
            note(f"{answer['actor']}: {_told(answer)}")
    return 0 if len(answers) == len(wanted) else 1


def _told(answer: dict[str, Any]) -> str:
    if not answer["accepted"]:
        return "there is nothing to accept: the clock agrees with the time here"
    return f"time is {format_duration(answer['ahead'])} later than before: {answer['now']}"
