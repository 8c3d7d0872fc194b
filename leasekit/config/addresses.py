"""Addresses of a deploy file: ``unix:PATH`` and ``tcp://HOST:PORT``.

Once resolved, an address is one text that says all: ``?tls=false`` stands at the end of a TCP address without TLS.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

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
