"""Files that a command reads or writes: standard input in a file's place, and results that go where nothing is lost."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

import click

from leasekit.cli.output import clean
from leasekit.core.errors import LeasekitError

EXIT_PROBLEM: Final = 2
STANDARD_INPUT: Final = "standard input"


def is_standard_input(file: Path | str) -> bool:
    """Whether standard input is meant."""
    return str(file) == "-"


def wrong_problem(text: str) -> int:
    """Tell what is wrong with a problem file, in one line; the exit status of that."""
    click.echo(f"leasekit: {clean(text)}", err=True)
    return EXIT_PROBLEM


def check_out_file(out: Path, source: Path) -> None:
    """See before the work that ``out`` can be written, and that it is not ``source``, which would be lost.

    What is there is left as it is. Raises ``click.UsageError`` for the source, ``LeasekitError`` for what can't be
    written.
    """
    if not out.exists():
        found = "" if out.parent.is_dir() else f"no folder {out.parent}"
    elif _is_read(out, source):
        raise click.UsageError(f"--out: found {out}, the file that is read, expected another one")
    else:
        found = "a folder" if out.is_dir() else "" if os.access(out, os.W_OK) else "no permission to write to it"
    if found:
        raise LeasekitError(f"--out: {out}: found {found}, expected a file that can be written")


def _is_read(out: Path, source: Path) -> bool:
    """Whether the two are one file, whatever they are called."""
    try:
        read = os.fstat(sys.stdin.fileno()) if is_standard_input(source) else source.stat()
    except (OSError, ValueError):  # no such file, or nothing that has a number
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(read, out.stat())
