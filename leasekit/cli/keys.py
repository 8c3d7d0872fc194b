"""``leasekit keys`` and ``leasekit config``: the files that daemons start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from leasekit.cli.options import FILES, Shown, argument, command, option
from leasekit.cli.output import listing, note, print_fields
from leasekit.cli.places import DeployPlace
from leasekit.config.instants import shown
from leasekit.core.claims.signed import fingerprint
from leasekit.core.errors import LeasekitError
from leasekit.core.time import DAY, Duration, Instant

if TYPE_CHECKING:
    from leasekit.config.errors import ConfigError


@click.group()
def config() -> None:
    """Check deploy files."""


@command(config)
def check(
    files: Sequence[Path] = argument("[FILE]..."),
    state: Path | None = option("State folder, where it is not the file's.", metavar="DIR"),
) -> Shown:
    """List everything that is wrong with deploy files: key, what was found, what is allowed.

    Without a FILE it is that of all commands. Exits with 0 if nothing is wrong, with 1 otherwise. Warned of is
    what may be meant: actors that must talk and can't dial each other, types that nobody offers, holders and types in
    quotas that the file does not name, scripts that are not on this machine, keys that nobody has made yet.

    Example:
      leasekit config check deploy/quickstart/all.toml
      leasekit config check *.toml
    """
    from leasekit.config.load import check as check_file

    errors_of: dict[Path, list[ConfigError]] = {}
    warnings: dict[Path, list[str]] = {}
    for file in files or (DeployPlace(None, state).deploy_file(),):
        errors_of[file], warnings[file] = check_file(file, state)
    errors = [error for found in errors_of.values() for error in found]
    told: list[Any] = [listing("file", "key", "found", "allowed")] if errors else []
    for file in [file for file, found in errors_of.items() if not found]:
        told.append(f"{file}: nothing wrong{', but:' if warnings[file] else ''}")
        told += [f"{file}: warning: {line}" for line in warnings[file]]
    return [attrs.asdict(error) for error in errors], tuple(told), 1 if errors else 0


KEYS = "keys"
"""The folder of keys in a state folder, unless a deploy file says otherwise."""
KEYS_SHOWN: Final = listing("name", "fingerprint", "public", "file", empty="no keys")

_path = click.Path(path_type=Path)
PASSPHRASE: Any = option("Ask for a passphrase for the new key.", "--passphrase")
PASSPHRASE_FILE: Any = option("Take the passphrase from the first line of this file.", metavar="PATH")


@click.group()
def keys() -> None:
    """Make and show the keys that actors sign with."""


@command(keys)
def new(
    files: tuple[Path, ...] = argument("FILE...", required=True),
    ask: bool = PASSPHRASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
) -> Shown:
    """Make a key pair: the secret key in FILE, which only you may read, its public key in a .pub file beside it.

    With a passphrase the file is of no use to one who has not got that too. A file that exists is never overwritten.

    Example:
      leasekit keys new run/keys/site.key
    """
    from leasekit.config.keys import new_key

    passphrase = _new_passphrase(ask, passphrase_file)
    rows = [_row(path.name.removesuffix(".key"), new_key(path, passphrase).public, path) for path in files]
    _report_folders(files)
    return rows, KEYS_SHOWN


@command(keys)
def show(files: tuple[Path, ...] = argument("[FILE]..."), place: DeployPlace = FILES) -> Shown:
    """Show the public keys of key files (.key or .pub), or of all actors of the deploy file.

    What it prints is public: it goes into the [peer] tables of others.

    Example:
      leasekit keys show --file deploy/quickstart/all.toml
      leasekit keys show site.pub
    """
    if files:
        rows = [_row(path.stem, _public(path), path) for path in files]
    else:
        from leasekit.config.keys import public_path

        actors = place.deployment().actors.values()
        rows = [_row(actor.name, _public(public_path(actor.key)), public_path(actor.key)) for actor in actors]
    return rows, KEYS_SHOWN


@command(keys)
def rotate(
    file: Path = argument(),
    name: str = option("The actor whose key it is [the file's name].", metavar="NAME"),
    start: Instant = option("When the new key takes over.", "--from", shown="now"),
    honoured: Duration = option(
        "For how long after that the old key still counts: until the last lease that names it is over.",
        "--honoured-for",
        default=30 * DAY,
        show_default="30d",
    ),
    passphrase_file: Path | None = option(
        "Has the old key's passphrase [asked for], and the new one's.", metavar="PATH"
    ),
    new_passphrase_file: Path | None = option("Has the new key's, where it is another.", metavar="PATH"),
) -> Shown:
    """Make the key that follows the one in FILE, beside it, and a statement of that which both keys sign.

    For site.key that is site.next.key, site.next.pub and site.succession. Nothing secret is in the last two: peers
    learn the new key from the statement. The old key is left as it is.

    Example:
      leasekit keys rotate run/keys/site.key --honoured-for 60d
      leasekit keys rotate run/keys/web.key --name web --from 2027-03-01T12:00Z
    """
    from leasekit.config.keys import check_key, passphrase_of, read_passphrase
    from leasekit.config.keys import rotate as rotate_key

    sealed = check_key(file)
    found = passphrase_of(file, passphrase_file, _ask) if sealed else None
    passphrase = found() if found is not None else None
    made = rotate_key(
        file, name or file.name.removesuffix(".key"), start, start + honoured,
        passphrase=None if passphrase is None else lambda: passphrase,
        new_passphrase=passphrase if new_passphrase_file is None else read_passphrase(new_passphrase_file),
    )  # fmt: skip
    told = made.succession
    row = {
        "name": told.name, "old": told.old.hex(), "new": told.new.hex(), "from": shown(told.at),
        "honoured_until": shown(told.until), "key": str(made.key), "statement": str(made.statement),
    }  # fmt: skip
    _report_folders([file])
    following = (
        f"next: have every peer run `leasekit peer succeed {told.name} {made.statement.name}`, then start "
        f'{told.name} with key = {{ file = "{_in_deploy_file(made.key)}", after = ["{_in_deploy_file(file)}"] }} '
        "in its deploy file, where paths are relative to the state folder"
    )
    return row, (lambda row: print_fields(row.items()), following)


def _in_deploy_file(path: Path) -> str:
    """The path of a key as a deploy file has it: relative to the state folder, where the key seems to be in one's
    ``keys``.
    """
    where = path.absolute()
    return f"{where.parent.name}/{where.name}" if where.parent.name == KEYS else str(where)


def _ask(path: Path) -> str:
    answer: str = click.prompt(f"passphrase of {path}", hide_input=True, err=True)
    return answer


def _new_passphrase(ask: bool, file: Path | None) -> bytes | None:
    from leasekit.config.keys import check_passphrase, read_passphrase

    if file is not None:
        return read_passphrase(file)
    if not ask:
        return None
    typed: str = click.prompt("passphrase for the new key", hide_input=True, confirmation_prompt=True, err=True)
    return check_passphrase(typed.encode("utf-8", "surrogateescape"), "what was typed")


def _report_folders(files: Iterable[Path]) -> None:
    from leasekit.config.keys import folder_trouble

    for trouble in sorted({folder_trouble(path) for path in files} - {""}):
        note(f"beware: {trouble}")


def _public(path: Path) -> bytes:
    from leasekit.config.keys import KeyFileError, check_key, load_key, load_public, public_path

    try:
        if path.suffix != ".key":
            return load_public(str(path))
        return load_public(str(public_path(path))) if check_key(path) else load_key(path).public
    except KeyFileError as error:
        raise LeasekitError(f"{path}: {error}") from error


def _row(name: str, public: bytes, path: Path) -> dict[str, Any]:
    return {"name": name, "fingerprint": fingerprint(public), "public": public.hex(), "file": str(path)}
