"""``leasekit config``: deploy files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from leasekit.cli.output import example, json_option, note, print_json, print_table

if TYPE_CHECKING:
    from leasekit.config.errors import ConfigError


@click.group()
def config() -> None:
    """Check deploy files."""


@config.command(epilog=example("leasekit config check deploy/quickstart/all.toml", "leasekit config check *.toml"))
@click.argument("files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--state", type=click.Path(path_type=Path), metavar="DIR", help="State folder, where it is not the file's."
)
@json_option
def check(files: Sequence[Path], state: Path | None, as_json: bool) -> int:
    """List everything that is wrong with deploy files: key, what was found, what is allowed.

    Exits with 0 if nothing is wrong, with 1 otherwise. Actors that must talk and can't dial each other are a warning.
    """
    from leasekit.config.load import check as check_file

    errors_of: dict[Path, list[ConfigError]] = {}
    warnings: dict[Path, list[str]] = {}
    for file in files:
        errors_of[file], warnings[file] = check_file(file, state)
    errors = [error for found in errors_of.values() for error in found]
    if as_json:
        print_json([attrs.asdict(error) for error in errors])
        return 1 if errors else 0
    if errors:
        print_table(("file", "key", "found", "allowed"), [attrs.astuple(error) for error in errors], empty="")
    for file, found in errors_of.items():
        if not found:
            note(f"{file}: nothing wrong{', but daemons will not meet:' if warnings[file] else ''}")
            for line in warnings[file]:
                note(f"{file}: warning: {line}")
    return 1 if errors else 0
