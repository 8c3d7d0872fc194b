"""Successions: an actor's new key, signed by both, and everything that is none."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.claims.signed import ED25519, Keypair, Succession, check_succession, decode_succession, succeed
from leasekit.core.errors import TicketError
from leasekit.core.time import INSTANT_MAX

OLD, NEW, OTHER = (Keypair(bytes([number]) * 32) for number in (1, 2, 3))


def made(**changes: Any) -> Succession:
    """A succession of the actor ``site``."""
    values = {"old": OLD, "new": NEW, "name": "site", "at": 1000, "until": 2000}
    return succeed(**(values | changes))


def code(data: bytes, name: str = "site", old: bytes = OLD.public) -> str:
    """Why a succession is refused."""
    with pytest.raises(TicketError) as caught:
        check_succession(ED25519, data, name=name, old=old)
    return caught.value.code


def test_it_says_what_it_was_made_with() -> None:
    """Both keys, the name and both instants come back as they were, and it verifies."""
    one = made()
    back = check_succession(ED25519, one.encode(), name="site", old=OLD.public)
    assert (back.name, back.old, back.new, back.at, back.until) == ("site", OLD.public, NEW.public, 1000, 2000)
    assert back.encode() == one.encode()
    assert back.digest == one.digest != made(until=2001).digest


def test_it_is_of_one_actor_and_one_key() -> None:
    """Another actor's, or that of a key which is not the one that is known, is refused."""
    assert code(made().encode(), name="broker") == "wrong_subject"
    assert code(made().encode(), old=OTHER.public) == "wrong_signer"


def test_both_keys_must_have_signed() -> None:
    """Neither can somebody else give an actor a new key, nor an actor take somebody else's key for its own."""
    one = made()
    for signature, consent in [(OTHER.sign(one.body), one.consent), (one.signature, OTHER.sign(one.body))]:
        assert code(msgpack.packb((one.body, signature, consent))) == "bad_signature"
    assert code(msgpack.packb((one.body, one.consent, one.signature))) == "bad_signature"
    assert code(msgpack.packb((one.body, b"", b""))) == "bad_signature"
    assert code(msgpack.packb((made(new=OTHER).body, one.signature, one.consent))) == "bad_signature"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "n" * 129},
        {"at": -1},
        {"at": 2001},
        {"until": INSTANT_MAX + 1},
        {"new": OLD},
        {"at": 1.5},
    ],
)
def test_fields_outside_their_limits(changes: dict[str, Any]) -> None:
    """A name, an instant or a key that can't be is refused when it is made."""
    with pytest.raises(TicketError):
        made(**changes)


def test_it_has_one_encoding() -> None:
    """The same values in wider integers, or with bytes behind them, are refused."""
    one = made()
    wide = one.body.replace(b"\xcd\x03\xe8", b"\xce\x00\x00\x03\xe8")
    assert wide != one.body
    assert code(msgpack.packb((wide, OLD.sign(wide), one.consent))) == "malformed"
    assert code(one.encode() + b"\0") == "malformed"
    assert code(one.encode().replace(b"\xc4\x40", b"\xc5\x00\x40", 1)) == "malformed"
    assert code(b"x" * 2000) == "malformed"


@given(st.binary(max_size=300))
def test_garbage_is_malformed(data: bytes) -> None:
    """Whatever the bytes are, the only error is TicketError."""
    with pytest.raises(TicketError):
        decode_succession(data)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_never_passes(at: int, flip: int) -> None:
    """No byte of a succession can be changed."""
    data = bytearray(made().encode())
    data[at % len(data)] ^= flip
    with pytest.raises(TicketError):
        check_succession(ED25519, bytes(data), name="site", old=OLD.public)
