"""Changing an actor's key: a new key beside the old one, and the statement by which others learn of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from leasekit.config.keys import KeyFileError, Passphrase, load_key, new_key, write_text
from leasekit.core.claims.succession import SUCCESSION_MAX, Succession, decode_succession, succeed
from leasekit.core.errors import TicketError
from leasekit.core.time import Instant

TAG: Final = "leasekit-succession-1"


@attrs.frozen(kw_only=True)
class Rotation:
    """What :func:`rotate` has made: the new key's file, the statement's file, and what it says."""

    key: Path
    statement: Path
    succession: Succession


def next_path(path: Path) -> Path:
    """Where the successor of the key at ``path`` lies: ``site.key`` is followed by ``site.next.key``."""
    return path.with_name(f"{path.name.removesuffix('.key')}.next.key")


def statement_path(path: Path) -> Path:
    """Where the succession of the key at ``path`` lies: beside it, in ``site.succession``."""
    return path.with_name(f"{path.name.removesuffix('.key')}.succession")


def rotate(
    path: Path,
    name: str,
    at: Instant,
    until: Instant,
    *,
    passphrase: Passphrase | None = None,
    new_passphrase: bytes | None = None,
) -> Rotation:
    """Make the successor of the key at ``path``, and the statement, signed by both keys, that ``name`` has it from
    ``at`` on. The old key stays where it is; the new one is under ``new_passphrase``, if that is given.

    A rotation that was broken off after its key was made goes on with that key. Raises
    :class:`~.keys.KeyFileError`; nothing that exists is overwritten.
    """
    old = load_key(path, passphrase)
    following, statement = next_path(path), statement_path(path)
    if statement.exists():
        raise KeyFileError(f"{statement}, which exists", "a key that is not being changed already")
    if following.exists():
        new = load_key(following, None if new_passphrase is None else lambda: new_passphrase)
    else:
        new = new_key(following, new_passphrase)
    try:
        succession = succeed(old, new, name, at, until)
    except TicketError as error:
        raise KeyFileError(
            f"a succession of {name!r} that can't be: {error}", "an end that is not before its begin"
        ) from None
    write_text(statement, f"{TAG} {succession.encode().hex()}\n")
    return Rotation(key=following, statement=statement, succession=succession)


def load_succession(path: Path) -> Succession:
    """The succession in the file at ``path``, its signatures unchecked. Raises :class:`~.keys.KeyFileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * SUCCESSION_MAX)
    except OSError as error:
        raise KeyFileError(f"{path}, which can't be read ({error.strerror})", "a succession file") from None
    tag, _, rest = data.decode("ascii", "replace").strip().partition(" ")
    try:
        if tag != TAG:
            raise ValueError(f"it does not begin with {TAG}")
        return decode_succession(bytes.fromhex(rest))
    except (ValueError, TicketError) as error:
        raise KeyFileError(f"{path}, which holds no succession ({error})", f"{TAG} and its bytes in hex") from None
