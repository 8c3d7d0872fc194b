"""Where the passphrase of a key comes from: a file, or somebody at a terminal; never an argument, which others see."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasekit.config.keys import KeyFileError, Passphrase

ENVIRONMENT: Final = "LEASEKIT_PASSPHRASE_FILE"
"""Names the passphrase file of keys for which nothing else does."""
PASSPHRASE_MAX: Final = 1024
"""The longest passphrase, in bytes."""

Ask = Callable[[Path], str]
"""Asks somebody for the passphrase of the key at a path."""


def passphrase_of(key: Path, file: Path | None = None, ask: Ask | None = None) -> Passphrase | None:
    """How to get the passphrase of ``key``: from ``file``, from the file that the environment names, or by asking.
    None if there is no way.
    """
    environment = os.environ.get(ENVIRONMENT, "")
    named = file if file is not None else Path(environment) if environment else None
    if named is not None:
        return lambda: read_passphrase(named)
    if ask is not None:
        return lambda: check_passphrase(ask(key).encode("utf-8", "surrogateescape"), "what was typed")
    return None


def read_passphrase(path: Path) -> bytes:
    """The first line of the file at ``path``, which only its owner may read. Raises :class:`KeyFileError`."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise KeyFileError(
                    f"the passphrase file {path} with mode {mode:04o}, which others may read",
                    f"mode 0600: run `chmod 600 {path}`",
                )
            line = file.read(PASSPHRASE_MAX + 2).split(b"\n", 1)[0].removesuffix(b"\r")
    except OSError as error:
        raise KeyFileError(f"the passphrase file {path}, which can't be read ({error.strerror})", "a file") from None
    return check_passphrase(line, f"the passphrase file {path}")


def check_passphrase(passphrase: bytes, where: str) -> bytes:
    """``passphrase``, if it can be one. Raises :class:`KeyFileError`."""
    if not 0 < len(passphrase) <= PASSPHRASE_MAX:
        raise KeyFileError(f"{where} with {len(passphrase)} bytes", f"a passphrase of 1 to {PASSPHRASE_MAX} bytes")
    return passphrase
