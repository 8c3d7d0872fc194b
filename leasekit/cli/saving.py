"""Options of commands in which work may be suspended: how long that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from leasekit.cli.times import Number

_MORE: Final = Number(min=0, min_open=True)


def saving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--memory`` and ``--rate``: suspending and resuming take the one over the other."""
    for option in (
        click.option(
            "--rate", type=_MORE, default=32.0, show_default=True, metavar="MB/S",
            help="How fast a suspended unit's memory is written and read.",
        ),
        click.option(
            "--memory", type=_MORE, default=1024.0, show_default=True, metavar="MB",
            help="The memory of a unit: what suspending it saves.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
