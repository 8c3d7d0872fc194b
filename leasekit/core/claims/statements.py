"""Signed statements about claims: they are no links of a chain, they say what became of one.

- *truncation*: the issuer ends a claim at an instant before its term does (modify in mid-term, preemption);
- *relinquishment*: the holder gives back what is left of a claim from an instant on;
- *receipt*: the site confirms a relinquishment or truncation: the claim is void from that instant, the issuer may reuse
  the units;
- *standing*: the site says of several claims that each of them holds at an instant: by now it has given no receipt by
  which one of them ended by then (see :func:`standing`);
- *contract*: the site's lease, naming the ticket by digest, hard where the ticket is soft;
- *reclaim*: the issuer takes a delegation back: nothing new may come out of it from an instant on. Claims do not say
  when they were signed, so that this is judged by when one is first seen. Leases that exist run out, or are closed by a
  deadline if the statement names one;
- *endorsement*: about a key instead of a claim: its signer vouches that the key is that of an actor of some name, role
  and address (paper section 2.1: the broker endorses the keys of service managers and authorities to each other). The
  latest one by the same signer about the same name counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final, NamedTuple

import attrs
import msgpack

from leasekit.core.claims.claim import DIGEST_BYTES, pack
from leasekit.core.claims.keys import KEY_BYTES, SIGNATURE_BYTES, Scheme, Signer, fingerprint
from leasekit.core.errors import TicketError
from leasekit.core.reasons import Code
from leasekit.core.time import INSTANT_MAX, Instant

TRUNCATION: Final = "truncation"
RELINQUISHMENT: Final = "relinquishment"
RECEIPT: Final = "receipt"
CONTRACT: Final = "contract"
RECLAIM: Final = "reclaim"
ENDORSEMENT: Final = "endorsement"
STANDING: Final = "standing"
KINDS: Final = frozenset({TRUNCATION, RELINQUISHMENT, RECEIPT, CONTRACT, RECLAIM, ENDORSEMENT, STANDING})
ROLES: Final = frozenset({"site", "broker", "guest"})
STATEMENT_MAX: Final = 4096
_ENVELOPE: Final = 2 + 4 + SIGNATURE_BYTES
"""What :meth:`Statement.encode` adds to a body at most."""


@attrs.frozen(slots=True, eq=False)
class Statement:
    """``signer`` says ``kind`` of the claim ``subject`` as of ``at``; ``detail`` is the kind's text (a lease id).

    The subject is the claim's digest; an endorsement's is the key endorsed, a standing's :func:`all_of` its claims.
    All have 32 bytes.
    """

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
    """A new statement, signed. Raises ``TicketError`` (code ``malformed``) if nobody would accept it."""
    fields = ("statement1", kind, signer.public, subject, at, detail)
    try:
        body = pack(fields)
    except ValueError as error:
        raise TicketError(Code.MALFORMED, f"{kind}: {error}") from error
    if len(body) + _ENVELOPE > STATEMENT_MAX:
        raise TicketError(
            Code.MALFORMED, f"{kind} of {len(body)} bytes, at most {STATEMENT_MAX - _ENVELOPE} are allowed"
        )
    return _build(fields, body, signer.sign(body))


def reclaim(signer: Signer, claim: bytes, at: Instant, deadline: Instant | None = None) -> Statement:
    """The delegation ``claim`` (a digest) is taken back from ``at`` on; its leases are closed at ``deadline``, if any.

    Raises ``TicketError`` (code ``malformed``) if the deadline is before ``at``.
    """
    made = state(signer, RECLAIM, claim, at, "" if deadline is None else str(deadline))
    reclaim_deadline(made)
    return made


def reclaim_deadline(statement: Statement) -> Instant | None:
    """When the leases of a reclaimed delegation are closed; None if they run out.

    Raises ``TicketError`` (code ``malformed``) if the statement's text is not one that :func:`reclaim` writes.
    """
    if not statement.detail:
        return None
    deadline = _instant(statement.detail, what := f"reclaim as of {statement.at}: its deadline")
    if deadline < statement.at:
        raise TicketError(Code.MALFORMED, f"{what} is {deadline}, which is before that")
    return deadline


class Endorsed(NamedTuple):
    """Who a key is said to belong to. ``address`` is empty if it is not said where the actor listens."""

    key: bytes
    name: str
    role: str
    address: str


def endorse(signer: Signer, key: bytes, at: Instant, *, name: str, role: str, address: str = "") -> Statement:
    """``signer`` vouches that ``key`` is that of the site, broker or guest ``name``.

    Raises ``TicketError`` (code ``malformed``) if a text is not printable, the name empty or the role unknown.
    """
    made = state(signer, ENDORSEMENT, key, at, "\n".join((role, name, address)))
    endorsed(made)
    return made


def endorsed(statement: Statement) -> Endorsed:
    """What an endorsement says.

    Raises ``TicketError`` (code ``malformed``) if the statement's text is not one that :func:`endorse` writes.
    """
    parts = statement.detail.split("\n")
    if len(parts) != 3 or not all(part.isprintable() for part in parts) or parts[0] not in ROLES or not parts[1]:
        raise TicketError(
            Code.MALFORMED, f"endorsement: expected role, name and address in lines, found {statement.detail!r:.80}"
        )
    role, name, address = parts
    return Endorsed(statement.subject, name, role, address)


def all_of(claims: Iterable[bytes]) -> bytes:
    """What stands for several claims (digests), in any order, as the subject of one statement."""
    return sha256(b"".join(sorted(claims))).digest()


def standing(signer: Signer, claims: Iterable[bytes], at: Instant, instant: Instant) -> Statement:
    """The word of a site at ``at``: each of ``claims`` (digests) holds at ``instant``.

    A site that has said so dates every later receipt for one of them after ``at``. So a receipt of ``at`` or before, by
    which one of them ended by ``instant``, shows that the site has lied.
    """
    return state(signer, STANDING, all_of(claims), at, str(instant))


def stands_at(statement: Statement) -> Instant:
    """The instant at which a *standing*'s claims hold. Raises ``TicketError`` (code ``malformed``) if it names none."""
    return _instant(statement.detail, f"standing as of {statement.at}: its instant")


def _instant(text: str, what: str) -> Instant:
    found = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(INSTANT_MAX)) else -1
    if str(found) != text or not 0 <= found <= INSTANT_MAX:
        raise TicketError(Code.MALFORMED, f"{what} is {text!r:.40}, which is none")
    return found


def decode_statement(data: bytes) -> Statement:
    """The statement in ``data``, its signature unchecked. Raises ``TicketError`` (code ``malformed``)."""
    try:
        if len(data) > STATEMENT_MAX:
            raise ValueError(f"{len(data)} bytes, at most {STATEMENT_MAX}")
        body, signature = msgpack.unpackb(data, use_list=False, max_array_len=2, max_map_len=0, max_ext_len=0)
        fields = msgpack.unpackb(body, use_list=False, max_array_len=8, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError(Code.MALFORMED, f"statement is not msgpack: {error}") from error
    if canonical != body or not isinstance(signature, bytes):
        raise TicketError(Code.MALFORMED, "statement is not in its shortest encoding")
    return _build(fields, body, signature)


def check_statement(
    scheme: Scheme, data: bytes, kind: str, *, signer: bytes, subject: bytes | None = None
) -> Statement:
    """The statement in ``data``, if it is of ``kind``, by ``signer``, about ``subject``, and rightly signed.

    Raises ``TicketError`` that names the check that failed.
    """
    statement = decode_statement(data)
    if statement.kind != kind:
        raise TicketError(Code.WRONG_KIND, f"expected a {kind}, found a {statement.kind}")
    if statement.signer != signer:
        raise TicketError(
            Code.WRONG_SIGNER, f"{kind} is signed by {fingerprint(statement.signer)}, not {fingerprint(signer)}"
        )
    if subject is not None and statement.subject != subject:
        raise TicketError(Code.WRONG_SUBJECT, f"{kind} is about another claim")
    if not scheme.verify(statement.signer, statement.signature, statement.body):
        raise TicketError(Code.BAD_SIGNATURE, f"signature on the {kind} does not verify")
    return statement


def _build(fields: Any, body: bytes, signature: bytes) -> Statement:
    if not isinstance(fields, tuple) or len(fields) != 6 or fields[0] != "statement1":
        raise TicketError(
            Code.MALFORMED, "not a statement: expected an array of 6 fields that begins with 'statement1'"
        )
    _, kind, signer, subject, at, detail = fields
    fine = (
        isinstance(kind, str)
        and kind in KINDS
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
        raise TicketError(Code.MALFORMED, "statement: a field is outside its limits")
    return Statement(kind, signer, subject, at, detail, body, signature)
