"""What results are written to: folders, made before the work that fills them."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A file with one JSON object: whoever reads it meanwhile finds the one before, or this one."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file, whose lines end in a line feed on every machine."""
    with path.open("w", encoding="utf-8", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(header)
        lines.writerows(rows)


def write_results(
    out: Path | None, summary: Mapping[str, Any], times: Mapping[str, Any], others: Callable[[Path], Iterable[Path]]
) -> list[Path]:
    """Write summary.json, measured.json and the ``others``, of which the pictures are returned; nothing without a
    folder. Raises ``LeasekitError`` where the folder can't be written.
    """
    if out is None:
        return []
    make_folder(out)
    with writing(out):
        write_json(out / "summary.json", summary)
        write_json(out / "measured.json", times)
        return list(others(out))
