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

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import click

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


class LazyGroup(click.Group):
    """``later`` says which commands a module of this package has. A module is imported when one of them is asked for;
    all are for the group's help, and where a word is no command, to say which it is near to.
    """

    def __init__(self, *args: Any, later: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.later = {name: module for module, names in later.items() for name in names.split()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*self.commands, *self.later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name, or None."""
        if cmd_name not in self.commands:
            for name in [cmd_name] if cmd_name in self.later else self.later:
                module, attribute = import_module(f"leasekit.cli.{self.later[name]}"), name.replace("-", "_")
                # What Python has words of its own for is called so with a line at the end.
                self.add_command(getattr(module, f"{attribute}_", None) or getattr(module, attribute), name)
        return super().get_command(ctx, cmd_name)


class CommandLine(LazyGroup):
    """The commands of leasekit itself, and those that other distributions add, loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        from importlib.metadata import entry_points

        return sorted({*super().list_commands(ctx), *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; raises :class:`click.ClickException` if its distribution is not installed."""
        if cmd_name not in self.later:
            from importlib.metadata import entry_points

            for entry in entry_points(group=COMMANDS, name=cmd_name):
                command: click.Command = entry.load()
                return command
            if cmd_name in ELSEWHERE:
                raise click.ClickException(f"{cmd_name} is not installed: it comes with {ELSEWHERE[cmd_name]}")
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=CommandLine,
    later={
        "daemons": "up down reload status usage clock backup restore",
        "main": "lease completion",
        "topology": "slice",
        "site": "site",
        "broker": "broker",
        "gateway": "token user login",
        "projects": "project policy approval announcement feed wait",
        "templates": "template",
        "running": "run",
        "peer": "peer",
        "ticket": "ticket evidence",
        "keys": "keys config",
        "emulate": "emulate experiment",
        "runs": "runs",
        "history": "history",
        "mapper": "plan mapper",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="leasekit", message="leasekit %(version)s")
def cli() -> None:
    """Lease computers and other units from sites, through brokers.

    Daemons are started with `leasekit up FILE`, or the same file is run in virtual time with `leasekit emulate FILE`.
    All commands find their deploy file by --file (or LEASEKIT_FILE, or ./leasekit.toml), and the daemon that they talk
    to by --actor.

    Times are ISO 8601 (UTC where no zone is named), `now`, or `+2h`; durations are `90s`, `12h`, `1d`.
    """


@click.group(
    cls=LazyGroup,
    later={
        "lease_changes": "request extend modify hand close",
        "lease_looks": "list show history watch logs ssh console",
        "topology": "topologies topology close-topology",
    },
)
def lease() -> None:
    """Lease units: ask, list, change, follow, end.

    LEASE is a lease's id, its name, or SLICE/NAME.
    """


@click.command(epilog="\b\nExample:\n  leasekit completion bash > ~/.local/share/bash-completion/completions/leasekit")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL: bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    root = ctx.find_root()
    click.echo(kind(root.command, {}, "leasekit", "_LEASEKIT_COMPLETE").source())


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
        return getattr(error, "status", EXIT_ERROR)
    except OSError as error:
        _tell(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return EXIT_ERROR
    except Exception as error:  # noqa: BLE001 - a bug ends in one line as well, not in a traceback
        if os.environ.get(TRACEBACK_VARIABLE):
            import traceback

            traceback.print_exc()
        _tell(f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)")
        return EXIT_BUG


def _in_one_line(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name[1:].isdecimal():
        return f"found {error.option_name}, expected a whole number of units: 1 or more"
    return " ".join(error.format_message().split())


def _tell(text: str) -> None:
    from leasekit.cli.output import clean

    for line in text.splitlines() or [""]:
        click.echo(f"leasekit: {dated(clean(line))}", err=True)


def main() -> None:
    """The entry point of the command ``leasekit``."""
    # Records are not garbage: looking for cycles among them at every few hundred allocations is wasted time.
    gc.set_threshold(50_000, 50, 100)
    sys.exit(run())


if __name__ == "__main__":
    main()
