"""``leasekit config``: deploy files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import click

from leasekit.cli.output import example, json_option, note, print_json, print_table


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

    Exits with 0 if nothing is wrong, with 1 otherwise.
    """
    from leasekit.config.load import check as check_file

    errors_of = {file: check_file(file, state) for file in files}
    errors = [error for found in errors_of.values() for error in found]
    if as_json:
        print_json([attrs.asdict(error) for error in errors])
        return 1 if errors else 0
    if errors:
        print_table(("file", "key", "found", "allowed"), [attrs.astuple(error) for error in errors], empty="")
    for file, found in errors_of.items():
        if not found:
            note(f"{file}: nothing wrong")
    return 1 if errors else 0
