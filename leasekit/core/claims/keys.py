"""Keys and signature schemes.

An actor's identity is its Ed25519 public key (32 bytes). The scheme is an object so that an experiment can
switch signatures off and say so; a daemon always runs :data:`ED25519`. Nothing here is random: keys are made
by the command line, the core only uses them.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_sign,
    crypto_sign_open,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import BadSignatureError

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TAG_DIGITS: Final = 16
"""How many hex digits of a key's hash its owner's ids begin with: 64 bits."""
LARGE: Final = 65_536
"""From how many bytes on a signature is checked without copying what was signed."""


class Signer(Protocol):
    """Signs as one actor. ``public`` is its key as others know it."""

    @property
    def public(self) -> bytes: ...

    def sign(self, data: bytes) -> bytes: ...


class Scheme(Protocol):
    """How signatures are checked."""

    name: str

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool: ...


def _verify_large(key: bytes, signature: bytes, data: bytes) -> bool:
    """As libsodium checks what is smaller: OpenSSL alone accepts keys and points of small order."""
    if not (crypto_core_ed25519_is_valid_point(key) and crypto_core_ed25519_is_valid_point(signature[:KEY_BYTES])):
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
