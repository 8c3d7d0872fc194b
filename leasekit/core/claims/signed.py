"""Keys, and what is signed by them beside claims.

An actor's identity is its Ed25519 public key (32 bytes). The scheme is an object so that an experiment can
switch signatures off and say so; a daemon always runs :data:`ED25519`. Nothing here is random: keys are made
by the command line, the core only uses them.

Signed statements about claims are no links of a chain, they say what became of one.

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

An actor changes its key by a *succession*: who knows the old key learns the new one from a statement that the old key
signs. The new key signs as well: otherwise an actor could name another's key as its successor, and have what that one
does taken for its own. From ``at`` on the actor speaks with the new key. The old one is honoured until ``until``, by
when the last claim that names it should be over; what it signs after that counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

import attrs
import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from leasekit.core.errors import TicketError
from leasekit.core.reasons import Code
from leasekit.core.time import INSTANT_MAX, Instant

KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TAG_DIGITS: Final = 16
"""How many hex digits of a key's hash its owner's ids begin with: 64 bits."""
LARGE: Final = 65_536
"""From how many bytes on a signature is checked without copying what was signed."""

pack: Final[Callable[[Any], bytes]] = msgpack.Packer().pack
"""One packer for claims, tickets and statements: making one costs more than it takes to pack a claim."""


def check_digest(found: bytes) -> None:
    """Raises ``ValueError`` for what is no digest, nor empty."""
    if found and len(found) != DIGEST_BYTES:
        raise ValueError(f"found {len(found)} bytes, allowed is 0 or {DIGEST_BYTES} bytes")


class Signer(Protocol):
    """Signs as one actor. ``public`` is its key as others know it."""

    @property
    def public(self) -> bytes: ...

    def sign(self, data: bytes) -> bytes: ...


class Scheme(Protocol):
    """How signatures are checked."""

    name: str

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool: ...


def can_verify(key: bytes) -> bool:
    """Whether a signature of an Ed25519 key could ever be taken: a point, in its one encoding, of no small order."""
    return len(key) == KEY_BYTES and crypto_core_ed25519_is_valid_point(key)


def _verify_large(key: bytes, signature: bytes, data: bytes) -> bool:
    """As libsodium checks what is smaller: OpenSSL alone accepts keys and points of small order."""
    if not (can_verify(key) and crypto_core_ed25519_is_valid_point(signature[:KEY_BYTES])):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except InvalidSignature:
        return False
    return True


class Ed25519:
    """The scheme that daemons run, by libsodium: it checks a signature in half the time that OpenSSL takes.

    It also refuses what no honest signer makes (keys of small order, points in more than one encoding), so that all
    who check a signature come to one result.
    """

    name = "ed25519"

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether ``signature`` over ``data`` was made by ``key``'s owner."""
        if len(signature) != SIGNATURE_BYTES or len(key) != KEY_BYTES:
            return False
        if len(data) > LARGE:  # libsodium's binding copies what it checks several times
            return _verify_large(key, signature, data)
        try:
            crypto_sign_open(signature + data, key)
        except BadSignatureError:
            return False
        return True


class Unsigned:
    """No signatures at all, for emulations and benchmarks that say so: every check of a signature passes."""

    name = "unsigned"

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        """Always true, but only for the empty signature: signed and unsigned worlds don't mix by accident."""
        return signature == b""


ED25519: Final = Ed25519()
UNSIGNED: Final = Unsigned()


class Keypair:
    """An actor's own key pair, from its 32 secret bytes. Never printed: its repr shows the fingerprint only."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytes) -> None:
        """Raises ``ValueError`` if ``secret`` is not 32 bytes."""
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a secret key has {KEY_BYTES} bytes, found {len(secret)}")
        self.public, self._secret = crypto_sign_seed_keypair(secret)

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature over ``data``."""
        return crypto_sign(data, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"<Keypair {fingerprint(self.public)}>"


class UnsignedIdentity:
    """An identity of the :data:`UNSIGNED` scheme: a key that is only a name."""

    __slots__ = ("public",)

    def __init__(self, name: str) -> None:
        self.public: bytes = sha256(b"leasekit unsigned identity " + name.encode()).digest()

    def sign(self, data: bytes) -> bytes:
        """The empty signature."""
        return b""


@lru_cache(maxsize=4096)
def fingerprint(key: bytes) -> str:
    """The short name of a key, for people: the first 8 hex digits of its SHA-256. Two keys may have the same."""
    return sha256(key).hexdigest()[:8]


@lru_cache(maxsize=4096)
def key_tag(key: bytes) -> str:
    """What the ids that a key's owner makes begin with: the first 16 hex digits of its SHA-256.

    To find a key with another's tag takes 2**64 tries. Who has found one gets nothing by it: a server keeps to the key
    that came first, and says so.
    """
    return sha256(key).hexdigest()[:TAG_DIGITS]


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
    return _statement(fields, body, signer.sign(body))


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
    return _statement(*_unpack("statement", data, STATEMENT_MAX, 2))


def _unpack(what: str, data: bytes, most: int, length: int) -> tuple[Any, ...]:
    """The fields that are signed, their bytes, and the signatures: ``length`` byte strings in an array, of ``most``
    bytes. Raises ``TicketError`` (code ``malformed``).
    """
    try:
        if len(data) > most:
            raise ValueError(f"{len(data)} bytes, at most {most}")
        body, *signatures = msgpack.unpackb(data, use_list=False, max_array_len=length, max_map_len=0, max_ext_len=0)
        fields = msgpack.unpackb(body, use_list=False, max_array_len=8, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise TicketError(Code.MALFORMED, f"{what} is not msgpack: {error}") from error
    if canonical != body or len(signatures) != length - 1 or pack((body, *signatures)) != data:
        raise TicketError(Code.MALFORMED, f"{what} is not in its shortest encoding")
    if not all(isinstance(one, bytes) and len(one) in (0, SIGNATURE_BYTES) for one in signatures):
        raise TicketError(Code.MALFORMED, f"{what}: a signature has {SIGNATURE_BYTES} bytes")
    return fields, body, *signatures


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


def _statement(fields: Any, body: bytes, signature: bytes) -> Statement:
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
    )
    if not fine:
        raise TicketError(Code.MALFORMED, "statement: a field is outside its limits")
    return Statement(kind, signer, subject, at, detail, body, signature)


SUCCESSION_MAX: Final = 1024
"""More bytes than any succession has."""
NAME_MAX: Final = 128
"""The longest name of an actor, in characters."""

_HEAD: Final = "succession1"
_CONSENT: Final = "succession1 consent"


@attrs.frozen(slots=True, eq=False)
class Succession:
    """The actor ``name``, whose key was ``old``, has the key ``new`` from ``at`` on; ``old`` is honoured until
    ``until``.
    """

    name: str
    old: bytes
    new: bytes
    at: Instant
    until: Instant
    body: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    """The old key's, over the body."""
    consent: bytes = attrs.field(repr=False)
    """The new key's, over the body's digest."""

    def encode(self) -> bytes:
        """The succession as it travels and is stored."""
        return pack((self.body, self.signature, self.consent))

    @property
    def digest(self) -> bytes:
        """SHA-256 of the body and both signatures."""
        return sha256(self.body + self.signature + self.consent).digest()


def succeed(old: Signer, new: Signer, name: str, at: Instant, until: Instant) -> Succession:
    """A new succession, signed by both keys. Raises ``TicketError`` (code ``malformed``) for fields out of limits."""
    fields = (_HEAD, name, old.public, new.public, at, until)
    _check_succession(fields)
    body = pack(fields)
    return _succession(fields, body, old.sign(body), new.sign(_consent(body)))


def decode_succession(data: bytes) -> Succession:
    """The succession in ``data``, its signatures unchecked. Raises ``TicketError`` (code ``malformed``)."""
    return _succession(*_unpack("succession", data, SUCCESSION_MAX, 3))


def check_succession(scheme: Scheme, data: bytes, *, name: str, old: bytes) -> Succession:
    """The succession in ``data``, if it is that of the actor ``name`` whose key is ``old``, and signed by both keys.

    Raises ``TicketError`` that names the check that failed.
    """
    found = decode_succession(data)
    if found.name != name:
        raise TicketError(Code.WRONG_SUBJECT, f"succession is of {found.name!r}, not of {name!r}")
    if found.old != old:
        raise TicketError(
            Code.WRONG_SIGNER, f"succession is of key {fingerprint(found.old)}, not of {fingerprint(old)}"
        )
    if not scheme.verify(old, found.signature, found.body):
        raise TicketError(Code.BAD_SIGNATURE, "the old key's signature on the succession does not verify")
    if not scheme.verify(found.new, found.consent, _consent(found.body)):
        raise TicketError(Code.BAD_SIGNATURE, "the new key's signature on the succession does not verify")
    return found


def _consent(body: bytes) -> bytes:
    return pack((_CONSENT, sha256(body).digest()))


def _succession(fields: Any, body: bytes, signature: bytes, consent: bytes) -> Succession:
    _check_succession(fields)
    _, name, old, new, at, until = fields
    return Succession(name, old, new, at, until, body, signature, consent)


def _check_succession(fields: Any) -> None:
    if not isinstance(fields, tuple) or len(fields) != 6 or fields[0] != _HEAD:
        raise TicketError(Code.MALFORMED, f"not a succession: expected an array of 6 fields that begins with {_HEAD!r}")
    _, name, old, new, at, until = fields
    keys = all(isinstance(key, bytes) and len(key) == KEY_BYTES for key in (old, new))
    named = isinstance(name, str) and 0 < len(name) <= NAME_MAX
    timed = type(at) is int and type(until) is int and 0 <= at <= until <= INSTANT_MAX
    if not (keys and named and timed) or old == new:
        raise TicketError(Code.MALFORMED, "succession: a field is outside its limits")
