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


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """A file with one JSON object: see :func:`write_whole_file`."""
    write_whole_file(path, (json.dumps(content, indent=indent) + "\n").encode())


def write_whole_file(path: Path, content: bytes) -> None:
    """A file: whoever reads it meanwhile finds the one before, or this one."""
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(content)
    beside.replace(path)


def read_made(path: Path | None, made_of: str) -> dict[str, Any] | None:
    """What a file has that :func:`write_json` wrote, if it says that it is ``made_of`` this."""
    try:
        content = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("made_of") == made_of else None


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
