"""``leasekit keys``: make key files, and show the public keys that others must know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leasekit.cli.output import example, json_option, print_json, print_table
from leasekit.cli.places import Place, file_options
from leasekit.core.claims.keys import fingerprint
from leasekit.core.errors import LeasekitError

COLUMNS = ("name", "fingerprint", "public", "file")


@click.group()
def keys() -> None:
    """Make and show the keys that actors sign with."""


@keys.command(epilog=example("leasekit keys new run/keys/site.key"))
@click.argument("files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@json_option
def new(files: tuple[Path, ...], as_json: bool) -> None:
    """Make a key pair: the secret key in FILE, which only you may read, its public key in a .pub file beside it.

    A file that exists is never overwritten.
    """
    from leasekit.config.keys import new_key

    _print([_row(path.name.removesuffix(".key"), new_key(path).public, path) for path in files], as_json)


@keys.command(epilog=example("leasekit keys show --file deploy/quickstart/all.toml", "leasekit keys show site.pub"))
@click.argument("files", metavar="[FILE]...", type=click.Path(path_type=Path), nargs=-1)
@file_options
@json_option
def show(place: Place, files: tuple[Path, ...], as_json: bool) -> None:
    """Show the public keys of key files (.key or .pub), or of all actors of the deploy file.

    What it prints is public: it goes into the [peer] tables of others.
    """
    if files:
        rows = [_row(path.stem, _public(path), path) for path in files]
    else:
        from leasekit.config.keys import public_path

        actors = place.deployment().actors.values()
        rows = [_row(actor.name, _public(public_path(actor.key)), public_path(actor.key)) for actor in actors]
    _print(rows, as_json)


def _public(path: Path) -> bytes:
    from leasekit.config.keys import KeyFileError, load_key, load_public

    try:
        return load_key(path).public if path.suffix == ".key" else load_public(str(path))
    except KeyFileError as error:
        raise LeasekitError(f"{path}: {error}") from error


def _row(name: str, public: bytes, path: Path) -> dict[str, Any]:
    return {"name": name, "fingerprint": fingerprint(public), "public": public.hex(), "file": str(path)}


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(COLUMNS, [[row[column] for column in COLUMNS] for row in rows], empty="no keys")
