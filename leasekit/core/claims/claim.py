"""Claims: one link of a ticket's chain, signed once and carried as it was signed (SHARP; paper section 2.2).

A claim's body is a msgpack array in its shortest encoding, so that one claim has one encoding: a body that does
not come out the same when it is encoded again is refused. Its digest (SHA-256 of body and signature) names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import attrs
import msgpack

from leasekit.core.claims.keys import KEY_BYTES, SIGNATURE_BYTES, Signer
from leasekit.core.errors import TicketError
from leasekit.core.properties import EMPTY, Properties, check_plain, check_properties, is_plain
from leasekit.core.reasons import Code
from leasekit.core.time import INSTANT_MAX, Term, make_term

TAG: Final = "claim1"
DIGEST_BYTES: Final = 32
BODY_MAX: Final = 8192
TYPE_MAX: Final = 128
UNITS_MAX: Final = 2**31 - 1
DEGREE_ONE: Final = 1000
"""Oversubscription degree in thousandths: 1000 means that children may add up to the parent and no more."""
DEGREE_MAX: Final = 100 * DEGREE_ONE

pack: Final[Callable[[Any], bytes]] = msgpack.Packer().pack
"""One packer for claims, tickets and statements: making one costs more than it takes to pack a claim."""


@attrs.frozen(slots=True, eq=False)
class Claim:
    """Issuer gives holder ``units`` of ``type`` over ``term``.

    ``degree`` is what the issuer allows the holder's children to add up to, in thousandths of ``units``;
    ``properties`` the digest of the site-defined resource properties (empty for none); ``parent`` the digest of the
    parent claim (empty at the root); ``serial`` the issuer's counter, which keeps equal claims apart;
    ``constraints`` what else binds the holder (``preemptible``, ``units``: named ones).
    """

    issuer: bytes
    holder: bytes
    type: str
    units: int
    term: Term
    serial: int
    degree: int
    properties: bytes
    parent: bytes
    constraints: Properties
    body: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    digest: bytes

    @property
    def id(self) -> str:
        """The digest in hex: how logs and tables name the claim."""
        return self.digest.hex()

    @property
    def capacity(self) -> int:
        """The most units that children may hold at any instant: ``units`` times the degree, rounded down."""
        return self.units * self.degree // DEGREE_ONE


def issue(
    signer: Signer,
    *,
    holder: bytes,
    type: str,
    units: int,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    properties: bytes = b"",
    parent: bytes = b"",
    constraints: Properties = EMPTY,
) -> Claim:
    """A new claim, signed by ``signer``. Raises ``TicketError`` if a field is outside its limits."""
    fields = (
        TAG, signer.public, holder, type, units, term.start, term.end, serial, degree, properties, parent,
        tuple(sorted(constraints.items())),
    )  # fmt: skip
    body = pack(fields)
    return _build(fields, body, signer.sign(body))


@lru_cache(maxsize=4096)
def decode_claim(body: bytes, signature: bytes) -> Claim:
    """The claim in ``body``. The signature is carried, not checked: that is the verifier's work.

    A pure function of bytes that recur in every ticket of a broker, so the last few thousand results are kept.

    Raises ``TicketError`` (code ``malformed``) for anything but the one encoding of a claim within its limits.
    """
    if len(body) > BODY_MAX or len(signature) not in (0, SIGNATURE_BYTES):
        raise TicketError(Code.MALFORMED, f"claim of {len(body)} bytes with a signature of {len(signature)} bytes")
    try:
        fields = msgpack.unpackb(body, use_list=False, max_array_len=256, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError(Code.MALFORMED, f"claim is not msgpack: {error}") from error
    if canonical != body:
        raise TicketError(Code.MALFORMED, "claim is not in its shortest encoding")
    return _build(fields, body, signature)


def _build(fields: Any, body: bytes, signature: bytes) -> Claim:
    """The claim that has these fields. One condition for what is fine, and who asks what is not comes after it."""
    if type(fields) is not tuple or len(fields) != 12 or fields[0] != TAG:
        raise TicketError(Code.MALFORMED, f"not a claim: expected an array of 12 fields that begins with {TAG!r}")
    _, issuer, holder, type_, units, start, end, serial, degree, properties, parent, constraints = fields
    fine = (
        type(issuer) is bytes
        and len(issuer) == KEY_BYTES
        and type(holder) is bytes
        and len(holder) == KEY_BYTES
        and type(type_) is str
        and 0 < len(type_) <= TYPE_MAX
        and is_plain(type_)
        and type(units) is int
        and 0 < units <= UNITS_MAX
        and type(serial) is int
        and 0 <= serial < 2**63
        and type(degree) is int
        and DEGREE_ONE <= degree <= DEGREE_MAX
        and type(properties) is bytes
        and len(properties) in (0, DIGEST_BYTES)
        and type(parent) is bytes
        and len(parent) in (0, DIGEST_BYTES)
        and type(start) is int
        and type(end) is int
        and 0 <= start < end <= INSTANT_MAX
    )
    if not fine:
        raise _fault(fields)
    pairs = EMPTY if constraints == () else _constraints(constraints)
    digest = sha256(body + signature).digest()
    term = Term(start, end)
    return Claim(
        issuer, holder, type_, units, term, serial, degree, properties, parent, pairs, body, signature, digest
    )  # fmt: skip


def _fault(fields: tuple[Any, ...]) -> TicketError:
    """What is wrong with the fields of a claim: the first one that is outside its limits."""
    _, issuer, holder, type_, units, start, end, serial, degree, properties, parent, _ = fields
    for name, key in (("issuer", issuer), ("holder", holder)):
        if type(key) is not bytes or len(key) != KEY_BYTES:
            return _outside(name, key)
    if type(type_) is not str or not 0 < len(type_) <= TYPE_MAX or not is_plain(type_):
        return _outside("type", type_)
    for name, number, least, most in (
        ("units", units, 1, UNITS_MAX), ("serial", serial, 0, 2**63 - 1), ("degree", degree, DEGREE_ONE, DEGREE_MAX)
    ):  # fmt: skip
        if type(number) is not int or not least <= number <= most:
            return _outside(name, number)
    for name, digest in (("properties", properties), ("parent", parent)):
        if type(digest) is not bytes or len(digest) not in (0, DIGEST_BYTES):
            return _outside(name, digest)
    if type(start) is not int or type(end) is not int:
        return _outside("term", (start, end))
    try:
        make_term(start, end)
    except ValueError as error:
        return TicketError(Code.MALFORMED, f"claim: {error}")
    raise AssertionError("a claim without a fault was refused")


def _constraints(found: Any) -> Properties:
    try:
        pairs = check_properties(dict(found), "constraints")
        check_plain(pairs, "constraints")
    except (ValueError, TypeError) as error:
        raise TicketError(Code.MALFORMED, f"claim: {error}") from error
    if list(found) != sorted(pairs.items()):
        raise _outside("constraints", found)
    return pairs


def _outside(field: str, found: object) -> TicketError:
    return TicketError(Code.MALFORMED, f"claim: {field} is {found!r:.80}, which is outside its limits")
