"""``leasekit completion``: the script that makes a shell complete leasekit's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from leasekit.cli.output import example


@click.command(epilog=example("leasekit completion bash > ~/.local/share/bash-completion/completions/leasekit"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL: bash, zsh or fish."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    root = ctx.find_root()
    click.echo(kind(root.command, {}, "leasekit", "_LEASEKIT_COMPLETE").source())
