"""Where the daemons of a deploy file take commands: read from the file alone, with nothing else of it looked at."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE_MAX: Final = 4 * 2**20
"""The most bytes that a deploy file may have."""
STATE_ENVIRONMENT: Final = "LEASEKIT_STATE"


class Door(NamedTuple):
    """An actor and its control socket."""

    name: str
    role: str
    control: Path


def state_folder(file: Path, given: Path | None, name: str, state: str) -> Path:
    """The given folder, else that of the environment (both from the current folder), else the file's own choice."""
    environment = os.environ.get(STATE_ENVIRONMENT, "")
    if given is not None or environment:
        return Path(given if given is not None else environment).absolute()
    return Path(os.path.normpath(file.absolute().parent / (state or f"run/{name or file.stem}")))


def control_socket(name: str, control: str, state: Path) -> Path:
    """The control socket of the actor ``name``, of which its table says ``control``, perhaps nothing.

    Raises ``ValueError`` where that is no path.
    """
    path = (control or f"{name}.control.sock").removeprefix("unix:")
    if not path or "\0" in path:
        raise ValueError("expected a path")
    return state / path


def doors(file: Path, state: Path | None) -> dict[str, Door]:
    """The actors of a deploy file by name; none where it can't be read or is not as it must be, which
    :func:`leasekit.config.load.load` tells.
    """
    try:
        document = _document(file)
        head = document.get("deployment", {})
        folder = state_folder(file, state, _text(head, "name"), _text(head, "state"))
        return {
            name: Door(name, _text(table, "role"), control_socket(name, _text(table, "control"), folder))
            for name, table in _table(document.get("actor")).items()
        }
    except (OSError, ValueError, RecursionError):
        return {}


def _document(file: Path) -> dict[str, Any]:
    if not file.is_file():  # what can be read just once is left to those that need all of it
        raise ValueError("expected a file")
    with file.open("rb") as opened:
        data = opened.read(FILE_MAX + 1)
    if len(data) > FILE_MAX:
        raise ValueError("expected a smaller file")
    return tomllib.loads(data.decode("utf-8"))


def _table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected a table")
    return value


def _text(table: object, key: str) -> str:
    value = _table(table).get(key, "")
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value
