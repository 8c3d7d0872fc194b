"""What operators and mappers decide at a guest: read from a command's arguments, and checked by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from leasekit.actors.turns import check_decision
from leasekit.core.errors import CommandError
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease
from leasekit.core.time import Term

NAME_MAX = 128
T = TypeVar("T")


def structure(kind: Callable[..., T], arguments: Mapping[str, Any], *, term: bool = False) -> T:
    """The decision that a command's arguments say. Raises ``CommandError``."""
    values = dict(arguments)
    if term and isinstance(values.get("term"), (list, tuple)) and len(values["term"]) == 2:
        values["term"] = Term(*values["term"])
    if "victims" in values and (values["victims"] is None or isinstance(values["victims"], list)):
        values["victims"] = tuple(values["victims"] or ())
    try:
        decision = kind(**values)
    except TypeError as error:
        raise CommandError(re.sub(r"\w+\.__new__\(\)", "arguments", str(error))) from error
    check_decision(decision)
    return decision


def text_of(arguments: Mapping[str, Any], field: str) -> str:
    """A text among a command's arguments; empty if it isn't given. Raises ``CommandError``."""
    value = arguments.get(field) or ""
    if not isinstance(value, str):
        raise CommandError(f"{field}: found {value!r:.80}, expected text")
    return value


def check_name(field: str, value: Any) -> None:
    """Raises ``CommandError`` unless a slice or lease can have this name."""
    if not isinstance(value, str) or len(value) > NAME_MAX or "/" in value or not value.isprintable():
        raise CommandError(
            f"{field}: found {value!r:.80}, expected up to {NAME_MAX} printable characters without a slash"
        )


def check_units(units: Any) -> None:
    """Raises ``CommandError`` unless so many units can be asked for."""
    if type(units) is not int or not 0 < units < 2**31:
        raise CommandError(f"units: found {units!r}, expected a whole number of at least 1")


def joint(lease: GuestLease) -> str:
    """Its state, and what is pending in it, for an operator."""
    return lease.state if lease.pending == NONE else f"{lease.state}, {lease.pending}"
