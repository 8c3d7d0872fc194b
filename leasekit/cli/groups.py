"""Groups whose commands are imported when they are asked for, so that none waits for what only others need.

``leasekit lease`` is one: ask for leases, change them, follow them, end them. ``leasekit completion`` knows them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """``later`` says of each command where it is: ``module:name``. All are loaded for the group's help, and where a
    word is none of them, to say which it is near to.
    """

    def __init__(self, *args: Any, later: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*self.commands, *self.later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name, or None."""
        if cmd_name not in self.commands:
            for name in [cmd_name] if cmd_name in self.later else self.later:
                module, _, attribute = self.later[name].partition(":")
                self.add_command(getattr(import_module(module), attribute), name)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=LazyGroup,
    later={
        "request": "leasekit.cli.lease_changes:request",
        "extend": "leasekit.cli.lease_changes:extend",
        "modify": "leasekit.cli.lease_changes:modify",
        "close": "leasekit.cli.lease_changes:close",
        "list": "leasekit.cli.lease_looks:list_",
        "show": "leasekit.cli.lease_looks:show",
        "history": "leasekit.cli.lease_looks:history",
        "watch": "leasekit.cli.lease_looks:watch",
        "logs": "leasekit.cli.lease_looks:logs",
        "topologies": "leasekit.cli.topology:topologies",
        "topology": "leasekit.cli.topology:topology",
        "close-topology": "leasekit.cli.topology:close_topology",
        "ssh": "leasekit.cli.lease_looks:ssh",
        "console": "leasekit.cli.lease_looks:console",
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
