"""What drivers make of names and addresses that come from outside, and the words in which they refuse them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from leasekit.core.drivers import LEASE, SITE, UNIT_ID, UNIT_ID_ALLOWED, Blame, DriverError
from leasekit.core.settings import expect_one_of, expecting

FULL: Final = "No space left on device"
"""What hosts say whose disk, or pool, is full."""
MEMBER_MAX: Final = 200
"""The longest id of a unit at a guest, in characters."""


def check_unit_id(unit: str) -> str:
    """``unit``, if it can safely be a file's name. Raises ``DriverError`` that is not worth a retry otherwise."""
    if UNIT_ID.fullmatch(unit) is None:
        raise DriverError(f"unit id: found {unit[:80]!r}, expected {UNIT_ID_ALLOWED}", retry=False)
    return unit


def check_member_id(unit: str) -> str:
    """``unit``, if it is a unit's id or, as at a guest, ids with slashes between them: a path that leads nowhere else.

    A guest has unit ids from sites, which it need not trust. Raises ``DriverError`` that is not worth a retry.
    """
    if len(unit) > MEMBER_MAX:
        raise DriverError(f"unit id: found {len(unit)} characters, at most {MEMBER_MAX} are allowed", retry=False)
    for part in unit.split("/"):
        check_unit_id(part)
    return unit


def check_printable(lease: str, type_: str) -> None:
    """Raises ``DriverError`` for the id of a lease, which its guest has chosen, or a type that is no printable line."""
    names: tuple[tuple[str, str, Blame], ...] = (("lease", lease, LEASE), ("type", type_, SITE))
    for name, text, blame in names:
        if not text.isprintable():
            raise DriverError(
                f"{name}: found {text[:80]!a}, expected one line of printable text", retry=False, blame=blame
            )


def unknown_operation(driver: str, operation: str, known: Collection[str]) -> DriverError:
    """The error for an operator's action that a driver does not have."""
    return DriverError(
        f"{driver} driver: found operation {operation!r}, {expect_one_of(operation, known)}", retry=False
    )


def one_line(text: str, longest: int = 500) -> str:
    """Text of unknown origin as one line that is fit for a reason, a log or a terminal: no control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def bare(address: str) -> str:
    """An address without the length of its prefix."""
    return str(ipaddress.ip_interface(address).ip)


PLAIN_NAME: Final = UNIT_ID
"""What may stand in the place of a file's name."""
USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
"""Who logs in."""
INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
"""What a network interface is called."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""A SHA-256."""
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


plain_or_none: Final = expecting(
    "letters, digits, dots, dashes and underscores, a letter or digit first",
    lambda text: not text or PLAIN_NAME.fullmatch(text),
)
"""A validator: the text is a :data:`PLAIN_NAME`, or empty."""


printable_line: Final = expecting("one line of printable text", str.isprintable)
"""A validator: the text is one line, or empty."""


def refused_property(key: str, found: str, expected: str) -> DriverError:
    """What a unit property can't be."""
    return DriverError(f"unit property {key}: found {one_line(found, 80)!a}, {expected}", retry=False)


def check_names(kind: str, names: Iterable[str]) -> None:
    """Raises ``ValueError`` unless the keys of a table can be names of files."""
    for name in names:
        if PLAIN_NAME.fullmatch(name) is None:
            raise ValueError(f"{kind}: found {name[:60]!r}, expected letters, digits, dots, dashes and _")
