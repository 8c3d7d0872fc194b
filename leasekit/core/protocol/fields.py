"""What a field of a message may hold, as types that :mod:`msgspec` checks while it decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from leasekit.core.claims.claim import DIGEST_BYTES, UNITS_MAX
from leasekit.core.claims.statements import STATEMENT_MAX
from leasekit.core.properties import KEY_MAX, PROPERTIES_MAX, VALUE_MAX
from leasekit.core.reasons import DEPTH_MAX, REASONS_MAX, Reason
from leasekit.core.time import INSTANT_MAX, Term, make_term
from leasekit.core.topology import REQUEST_BYTES_MAX

ID_MAX: Final = 80
"""The longest id of a lease or delegation, in characters."""
HELD_MAX: Final = 8
"""How many claims an answer to an offer shows."""
NAME_MAX: Final = 128
"""The longest name of a peer, slice, site, type or unit, in characters."""
WORD_MAX: Final = 64
"""The longest op, status, state or code, in characters."""
TEXT_MAX: Final = 2048
"""The longest reason or error text, in characters."""
TICKET_MAX: Final = 16_384
"""The longest ticket, in bytes."""
NUMBER_MAX: Final = 2**63 - 1
"""The largest request or update number."""
LIST_MAX: Final = 12_000
"""The most units, or victims, in one message."""
PARTS_MAX: Final = 500
"""The most parts of one plan."""
OFFERS_MAX: Final = 1000
"""The most delegations in one quote."""
STEPS_MAX: Final = 200
"""The most steps of one of them."""
BATCH_MAX: Final = 1024
"""The most messages in one batch."""


class Check:
    """Beside the type of a field: what the type can't say. ``refuses`` raises ``ValueError`` with what was found and
    what is allowed; the codec asks it once the message is decoded.
    """

    def __init__(self, refuses: Callable[[Any], object]) -> None:
        self.refuses = refuses


def _check_digest(value: bytes) -> None:
    if value and len(value) != DIGEST_BYTES:
        raise ValueError(f"found {len(value)} bytes, allowed is 0 or {DIGEST_BYTES} bytes")


def _check_reason(value: Reason | None) -> None:
    if value is not None and value.depth > DEPTH_MAX:
        raise ValueError(f"found {value.depth} reasons behind each other, allowed are at most {DEPTH_MAX}")
    if value is not None and value.size > REASONS_MAX:
        raise ValueError(f"found {value.size} reasons in one, allowed are at most {REASONS_MAX}")


def _check_steps(value: tuple[int, ...]) -> None:
    if len(value) % 2:
        raise ValueError(f"found an array of {len(value)}, allowed are pairs of instant and units")
    last = -1
    for at, free in zip(value[::2], value[1::2], strict=True):
        if at <= last:
            raise ValueError(f"found {at} after {last}, instants must grow")
        if free > UNITS_MAX:
            raise ValueError(f"found {free} units, allowed are at most {UNITS_MAX}")
        last = at


Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
IdOrNone: TypeAlias = Annotated[str, Meta(max_length=ID_MAX)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
NameOrNone: TypeAlias = Annotated[str, Meta(max_length=NAME_MAX)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=WORD_MAX)]
WordOrNone: TypeAlias = Annotated[str, Meta(max_length=WORD_MAX)]
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_MAX)]
Cause: TypeAlias = Annotated[Reason, Check(_check_reason)]
"""Why it is so."""
Why: TypeAlias = Annotated[Reason | None, Check(_check_reason)]
"""Why it is so, if it is."""
Ticket: TypeAlias = Annotated[bytes, Meta(max_length=TICKET_MAX)]
Statement: TypeAlias = Annotated[bytes, Meta(max_length=STATEMENT_MAX)]
Request: TypeAlias = Annotated[bytes, Meta(max_length=REQUEST_BYTES_MAX)]
Digest: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST_BYTES), Check(_check_digest)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Units: TypeAlias = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
UnitsOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=UNITS_MAX)]
UnitsOrUnknown: TypeAlias = Annotated[int, Meta(ge=-1, le=UNITS_MAX)]
At: TypeAlias = Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
Lasts: TypeAlias = At
AtOrUnknown: TypeAlias = Annotated[int, Meta(ge=-1, le=INSTANT_MAX)]
WireTerm: TypeAlias = Annotated[Term, Check(lambda value: make_term(*value))]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=LIST_MAX)]
Steps: TypeAlias = Annotated[tuple[At, ...], Meta(max_length=2 * STEPS_MAX), Check(_check_steps)]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY_MAX)]
Value: TypeAlias = Annotated[str, Meta(max_length=VALUE_MAX)]
Pairs: TypeAlias = Annotated[Mapping[Key, Value], Meta(max_length=PROPERTIES_MAX)]
