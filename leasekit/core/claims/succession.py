"""An actor changes its key: who knows the old key learns the new one from a statement that the old key signs.

The new key signs as well: otherwise an actor could name another's key as its successor, and have what that one does
taken for its own. From ``at`` on the actor speaks with the new key. The old one is honoured until ``until``, by when
the last claim that names it should be over; what it signs after that counts for nothing.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import attrs
import msgpack

from leasekit.core.claims.claim import pack
from leasekit.core.claims.keys import KEY_BYTES, SIGNATURE_BYTES, Scheme, Signer, fingerprint
from leasekit.core.errors import TicketError
from leasekit.core.reasons import Code
from leasekit.core.time import INSTANT_MAX, Instant

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
    _check(fields)
    body = pack(fields)
    return _build(fields, body, old.sign(body), new.sign(_consent(body)))


def decode_succession(data: bytes) -> Succession:
    """The succession in ``data``, its signatures unchecked. Raises ``TicketError`` (code ``malformed``)."""
    try:
        if len(data) > SUCCESSION_MAX:
            raise ValueError(f"{len(data)} bytes, at most {SUCCESSION_MAX}")
        body, signature, consent = msgpack.unpackb(data, use_list=False, max_array_len=3, max_map_len=0, max_ext_len=0)
        fields = msgpack.unpackb(body, use_list=False, max_array_len=6, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise TicketError(Code.MALFORMED, f"succession is not msgpack: {error}") from error
    if canonical != body or pack((body, signature, consent)) != data:
        raise TicketError(Code.MALFORMED, "succession is not in its shortest encoding")
    return _build(fields, body, signature, consent)


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


def _check(fields: Any) -> None:
    if not isinstance(fields, tuple) or len(fields) != 6 or fields[0] != _HEAD:
        raise TicketError(Code.MALFORMED, f"not a succession: expected an array of 6 fields that begins with {_HEAD!r}")
    _, name, old, new, at, until = fields
    keys = all(isinstance(key, bytes) and len(key) == KEY_BYTES for key in (old, new))
    named = isinstance(name, str) and 0 < len(name) <= NAME_MAX
    timed = type(at) is int and type(until) is int and 0 <= at <= until <= INSTANT_MAX
    if not (keys and named and timed) or old == new:
        raise TicketError(Code.MALFORMED, "succession: a field is outside its limits")


def _build(fields: Any, body: bytes, signature: Any, consent: Any) -> Succession:
    _check(fields)
    if not all(isinstance(one, bytes) and len(one) in (0, SIGNATURE_BYTES) for one in (signature, consent)):
        raise TicketError(Code.MALFORMED, "succession: a signature has 64 bytes")
    _, name, old, new, at, until = fields
    return Succession(name, old, new, at, until, body, signature, consent)
