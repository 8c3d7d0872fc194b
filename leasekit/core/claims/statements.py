"""Signed statements about claims: they are no links of a chain, they say what became of one.

- *truncation*: the issuer ends a claim at an instant before its term does (modify in mid-term, preemption);
- *relinquishment*: the holder gives back what is left of a claim from an instant on;
- *receipt*: the site confirms a relinquishment: the claim is void from that instant, the issuer may reuse the units;
- *contract*: the site's lease, naming the ticket by digest, hard where the ticket is soft.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import attrs
import msgpack

from leasekit.core.claims.claim import DIGEST_BYTES, pack
from leasekit.core.claims.keys import KEY_BYTES, SIGNATURE_BYTES, Scheme, Signer, fingerprint
from leasekit.core.errors import TicketError
from leasekit.core.time import INSTANT_MAX, Instant

TRUNCATION: Final = "truncation"
RELINQUISHMENT: Final = "relinquishment"
RECEIPT: Final = "receipt"
CONTRACT: Final = "contract"
KINDS: Final = frozenset({TRUNCATION, RELINQUISHMENT, RECEIPT, CONTRACT})
STATEMENT_MAX: Final = 4096


@attrs.frozen(slots=True, eq=False)
class Statement:
    """``signer`` says ``kind`` of the claim ``subject`` as of ``at``; ``detail`` is the kind's text (a lease id)."""

    kind: str
    signer: bytes
    subject: bytes
    at: Instant
    detail: str
    body: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)

    def encode(self) -> bytes:
        """The statement as it travels and is stored."""
        return pack((self.body, self.signature))

    @property
    def digest(self) -> bytes:
        """SHA-256 of body and signature."""
        return sha256(self.body + self.signature).digest()


def state(signer: Signer, kind: str, subject: bytes, at: Instant, detail: str = "") -> Statement:
    """A new statement, signed."""
    fields = ("statement1", kind, signer.public, subject, at, detail)
    body = pack(fields)
    return _build(fields, body, signer.sign(body))


def decode_statement(data: bytes) -> Statement:
    """The statement in ``data``, its signature unchecked. Raises ``TicketError`` (code ``malformed``)."""
    try:
        if len(data) > STATEMENT_MAX:
            raise ValueError(f"{len(data)} bytes, at most {STATEMENT_MAX}")
        body, signature = msgpack.unpackb(data, use_list=False, max_array_len=2, max_map_len=0, max_ext_len=0)
        fields = msgpack.unpackb(body, use_list=False, max_array_len=8, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError("malformed", f"statement is not msgpack: {error}") from error
    if canonical != body or not isinstance(signature, bytes):
        raise TicketError("malformed", "statement is not in its shortest encoding")
    return _build(fields, body, signature)


def check_statement(
    scheme: Scheme, data: bytes, kind: str, *, signer: bytes, subject: bytes | None = None
) -> Statement:
    """The statement in ``data``, if it is of ``kind``, by ``signer``, about ``subject``, and rightly signed.

    Raises ``TicketError`` that names the check that failed.
    """
    statement = decode_statement(data)
    if statement.kind != kind:
        raise TicketError("wrong_kind", f"expected a {kind}, found a {statement.kind}")
    if statement.signer != signer:
        raise TicketError(
            "wrong_signer", f"{kind} is signed by {fingerprint(statement.signer)}, not {fingerprint(signer)}"
        )
    if subject is not None and statement.subject != subject:
        raise TicketError("wrong_subject", f"{kind} is about another claim")
    if not scheme.verify(statement.signer, statement.signature, statement.body):
        raise TicketError("bad_signature", f"signature on the {kind} does not verify")
    return statement


def _build(fields: Any, body: bytes, signature: bytes) -> Statement:
    if not isinstance(fields, tuple) or len(fields) != 6 or fields[0] != "statement1":
        raise TicketError("malformed", "not a statement: expected an array of 6 fields that begins with 'statement1'")
    _, kind, signer, subject, at, detail = fields
    fine = (
        kind in KINDS
        and isinstance(signer, bytes)
        and len(signer) == KEY_BYTES
        and isinstance(subject, bytes)
        and len(subject) == DIGEST_BYTES
        and type(at) is int
        and 0 <= at <= INSTANT_MAX
        and isinstance(detail, str)
        and len(signature) in (0, SIGNATURE_BYTES)
    )
    if not fine:
        raise TicketError("malformed", "statement: a field is outside its limits")
    return Statement(kind, signer, subject, at, detail, body, signature)
