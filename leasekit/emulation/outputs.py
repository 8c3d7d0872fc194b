"""Folders that results are written to, made before the work that fills them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasekit.core.errors import LeasekitError


def make_folder(out: Path) -> None:
    """Make the folder ``out``, so that what is wrong with it is told before hours of work. Raises ``LeasekitError``."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What goes wrong with the folder ``out`` or a file in it is one ``LeasekitError`` in words."""
    try:
        yield
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        found = "a file" if is_file else repr(error.strerror or str(error))
        raise LeasekitError(f"{error.filename or out}: found {found}, expected a folder to write results to") from error
