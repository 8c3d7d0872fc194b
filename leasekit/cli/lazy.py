"""A group whose commands are imported when they are asked for, so that none waits for what only others need."""

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
