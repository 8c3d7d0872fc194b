"""The command ``leasekit``: one group for each noun, and how errors end it.

===========  ==============================================================================
exit status  meaning
===========  ==============================================================================
0            done
1            not done: one line on standard error says why
2            the command line makes no sense
3            open: ``leasekit evidence verify`` alone
70           a bug; ``LEASEKIT_TRACEBACK=1`` shows where
130          interrupted
===========  ==============================================================================

``leasekit up`` has a few more, which :mod:`leasekit.runtime.daemon` lists.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Final

import click

from leasekit.cli.broker import broker
from leasekit.cli.clock import clock
from leasekit.cli.completion import completion
from leasekit.cli.config import config
from leasekit.cli.emulate import emulate
from leasekit.cli.evidence import evidence
from leasekit.cli.experiment import experiment
from leasekit.cli.keys import keys
from leasekit.cli.lease import lease
from leasekit.cli.mapper import mapper
from leasekit.cli.output import clean
from leasekit.cli.peer import peer
from leasekit.cli.plan import plan
from leasekit.cli.plan_coallocate import coallocate
from leasekit.cli.site import site
from leasekit.cli.slice import slice_
from leasekit.cli.status import status
from leasekit.cli.ticket import ticket
from leasekit.cli.up import down, up
from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_BUG: Final = 70
EXIT_INTERRUPTED: Final = 130
TRACEBACK_VARIABLE: Final = "LEASEKIT_TRACEBACK"


COMMANDS: Final = "leasekit.commands"
"""The group of entry points by which other distributions add commands."""
ELSEWHERE: Final = {"simulate": "leasekit-simulation, the folder simulation/ of leasekit's sources"}
"""Commands of which we know the distribution, also where it is not installed."""


class CommandLine(click.Group):
    """The commands of leasekit itself, and those that other distributions add, loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*self.commands, *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; raises :class:`click.ClickException` if its distribution is not installed."""
        if cmd_name not in self.commands:
            for entry in entry_points(group=COMMANDS, name=cmd_name):
                self.add_command(entry.load(), cmd_name)
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in ELSEWHERE:
            raise click.ClickException(f"{cmd_name} is not installed: it comes with {ELSEWHERE[cmd_name]}")
        return command


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("leasekit"), message="leasekit %(version)s")
def cli() -> None:
    """Lease computers and other units from sites, through brokers.

    Daemons are started with `leasekit up FILE`, or the same file is run in virtual time with `leasekit emulate FILE`.
    All commands find their deploy file by --file (or LEASEKIT_FILE, or ./leasekit.toml), and the daemon that they talk
    to by --actor.

    Times are ISO 8601 (UTC where no zone is named), `now`, or `+2h`; durations are `90s`, `12h`, `1d`.
    """


for _command in (
    up,
    down,
    status,
    clock,
    lease,
    slice_,
    site,
    broker,
    peer,
    ticket,
    evidence,
    keys,
    config,
    emulate,
    plan,
    mapper,
    completion,
):
    cli.add_command(_command)
plan.add_command(coallocate)
cli.add_command(experiment)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's own); returns the exit status, with any error told."""
    try:
        result = cli.main(args=arguments, prog_name="leasekit", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "leasekit"
        _tell(f"{_in_one_line(error)} (see {where} --help)")
        return EXIT_USAGE
    except click.ClickException as error:
        _tell(error.format_message())
        return EXIT_ERROR
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except LeasekitError as error:
        _tell(str(error))
        return EXIT_ERROR
    except OSError as error:
        _tell(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return EXIT_ERROR
    except Exception as error:  # noqa: BLE001 - a bug ends in one line as well, not in a traceback
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        _tell(f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)")
        return EXIT_BUG


def _in_one_line(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name[1:].isdecimal():
        return f"found {error.option_name}, expected a whole number of units: 1 or more"
    return " ".join(error.format_message().split())


def _tell(text: str) -> None:
    for line in text.splitlines() or [""]:
        click.echo(f"leasekit: {dated(clean(line))}", err=True)


def main() -> None:
    """The entry point of the command ``leasekit``."""
    sys.exit(run())


if __name__ == "__main__":
    main()
