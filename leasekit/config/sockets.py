"""Addresses of a deploy file (``unix:PATH`` and ``tcp://HOST:PORT``), and where its daemons take commands.

Control sockets are read from the file alone, with nothing else of it looked at. A resolved address is one text that
says all: ``?tls=false`` stands at the end of a TCP address without TLS.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

UNIX_PATH_MAX: Final = 107
"""The longest path of a Unix socket on Linux, in bytes."""
ALLOWED: Final = "unix:PATH or tcp://HOST:PORT (an IPv6 host in brackets)"

_UNIX: Final = "unix:"
PLAIN: Final = "?tls=false"
"""The end of a TCP address where TLS is not spoken."""
_TCP: Final = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def resolve_address(text: str, state: Path, tls: bool | None = None) -> str:
    """The address with its path made absolute, from the state folder, and with what ``tls`` says of it (None: TLS on
    TCP). Raises ``ValueError`` that says what is allowed.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path or "\0" in path:
            raise ValueError(ALLOWED)
        return f"{_UNIX}{state / path}"
    match = _TCP.fullmatch(text)
    if match is None or int(match[1]) > 65_535:
        raise ValueError(ALLOWED)
    return f"{text}{PLAIN}" if tls is False else text


def without_tls(address: str) -> bool:
    """Whether the address is a TCP address where TLS is not spoken."""
    return address.endswith(PLAIN) and not address.startswith(_UNIX)


def place(address: str) -> str:
    """The address without what is spoken there: no two listeners can have the same."""
    return address.removesuffix(PLAIN) if without_tls(address) else address


def can_be_dialled(address: str) -> bool:
    """Whether the address says where it is: port 0 is any free port, known once it listens."""
    return address.startswith(_UNIX) or not place(address).endswith(":0")


def socket_path(address: str) -> Path | None:
    """The path of a Unix socket's address, or None for TCP."""
    return Path(address.removeprefix(_UNIX)) if address.startswith(_UNIX) else None


def too_long(path: Path) -> bool:
    """Whether no Unix socket can have this path."""
    return len(os.fsencode(path)) > UNIX_PATH_MAX


FILE_MAX: Final = 4 * 2**20
"""The most bytes that a deploy file may have."""
STATE_ENVIRONMENT: Final = "LEASEKIT_STATE"


class RemoteDoor(NamedTuple):
    """The control socket of an ``actor`` behind the gateway at ``url``, which says that its daemon is in ``state``;
    ``token`` says who asks.
    """

    url: str
    token: str
    actor: str
    state: str = "running"

    def __str__(self) -> str:
        return f"{self.url} ({self.actor})"


ControlAddress: TypeAlias = Path | RemoteDoor
"""Where a daemon takes commands."""


class Door(NamedTuple):
    """A daemon and its control socket."""

    name: str
    role: str
    control: ControlAddress


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
    """The daemons of a deploy file by name, actors first; none where it can't be read or is not as it must be, which
    :func:`leasekit.config.load.load` tells.
    """
    try:
        document = _document(file)
        head = document.get("deployment", {})
        folder = state_folder(file, state, _text(head, "name"), _text(head, "state"))
        made = [
            Door(name, _text(table, "role"), control_socket(name, _text(table, "control"), folder))
            for name, table in _table(document.get("actor")).items()
        ]
        return {door.name: door for door in sorted(made, key=lambda door: door.role == "gateway")}
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
