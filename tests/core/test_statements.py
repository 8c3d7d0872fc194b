"""Signed statements about claims: one encoding each, and every check before they are believed."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import texts

from leasekit.core.claims.keys import ED25519, UNSIGNED, Keypair, UnsignedIdentity
from leasekit.core.claims.statements import (
    CONTRACT,
    KINDS,
    RECEIPT,
    RELINQUISHMENT,
    STATEMENT_MAX,
    TRUNCATION,
    check_statement,
    decode_statement,
    state,
)
from leasekit.core.errors import TicketError
from leasekit.core.time import INSTANT_MAX

SITE, GUEST = Keypair(b"\x01" * 32), Keypair(b"\x03" * 32)
SUBJECT = b"c" * 32
NAMES = ("tag", "kind", "signer", "subject", "at", "detail")
FIELDS = ("statement1", RECEIPT, SITE.public, SUBJECT, 5, "L-1")


def packed(signature: Any = b"", **changes: Any) -> bytes:
    """A statement with some fields replaced by whatever is given."""
    fields = [changes.get(name, value) for name, value in zip(NAMES, FIELDS, strict=True)]
    data: bytes = msgpack.packb((msgpack.packb(fields), signature))
    return data


@given(
    kind=st.sampled_from(sorted(KINDS)),
    subject=st.binary(min_size=32, max_size=32),
    at=st.integers(0, INSTANT_MAX),
    detail=texts(0, 200),
)
def test_round_trip(kind: str, subject: bytes, at: int, detail: str) -> None:
    """A statement that was decoded is the one that was made, and is believed of who made it only."""
    made = state(SITE, kind, subject, at, detail)
    again = check_statement(ED25519, made.encode(), kind, signer=SITE.public, subject=subject)
    assert (again.kind, again.signer, again.subject, again.at, again.detail) == (kind, SITE.public, subject, at, detail)
    assert again.digest == made.digest
    assert check_statement(ED25519, made.encode(), kind, signer=SITE.public).digest == made.digest


def refusal(data: bytes, kind: str = RECEIPT, signer: bytes = SITE.public, subject: bytes | None = SUBJECT) -> str:
    """The code of the check that fails."""
    with pytest.raises(TicketError) as caught:
        check_statement(ED25519, data, kind, signer=signer, subject=subject)
    return caught.value.code


def test_every_check() -> None:
    """Another kind, signer, subject or signature is refused, each by its own code."""
    data = state(SITE, RECEIPT, SUBJECT, 5, "L-1").encode()
    assert refusal(data, kind=RELINQUISHMENT) == "wrong_kind"
    assert refusal(data, signer=GUEST.public) == "wrong_signer"
    assert refusal(data, subject=b"d" * 32) == "wrong_subject"
    body, signature = msgpack.unpackb(data)
    forged = bytes([signature[0] ^ 1]) + signature[1:]
    assert refusal(msgpack.packb((body, forged))) == "bad_signature"
    assert refusal(msgpack.packb((body, b""))) == "bad_signature"
    assert check_statement(ED25519, data, RECEIPT, signer=SITE.public, subject=SUBJECT).at == 5


@pytest.mark.parametrize("change", [{"at": 6}, {"detail": "L-2"}, {"kind": CONTRACT}, {"subject": b"d" * 32}])
def test_alterations(change: dict[str, Any]) -> None:
    """Any change of what was said spoils the signature."""
    _, signature = msgpack.unpackb(state(SITE, RECEIPT, SUBJECT, 5, "L-1").encode())
    data = packed(signature, **change)
    said = decode_statement(data)
    assert refusal(data, kind=said.kind, subject=said.subject) == "bad_signature"


def test_a_statement_signed_by_another() -> None:
    """Who signs in another's name is found out: the signature is checked against the signer that is named."""
    fields = msgpack.packb(FIELDS)
    assert refusal(msgpack.packb((fields, GUEST.sign(fields)))) == "bad_signature"


@pytest.mark.parametrize(
    "change",
    [
        {"tag": "statement2"}, {"kind": "gift"}, {"kind": 5}, {"signer": b"short"}, {"signer": "s" * 32},
        {"subject": b""}, {"subject": b"c" * 33}, {"at": -1}, {"at": INSTANT_MAX + 1}, {"at": True}, {"at": "now"},
        {"detail": b"x"}, {"detail": None}, {"signature": b"x" * 63}, {"signature": "x"}, {"signature": None},
    ],
)  # fmt: skip
def test_fields_outside_their_limits(change: dict[str, Any]) -> None:
    """Each field that is not what it must be makes the statement malformed."""
    signature = change.pop("signature", b"")
    with pytest.raises(TicketError) as caught:
        decode_statement(packed(signature, **change))
    assert caught.value.code == "malformed"


@given(data=st.binary(max_size=200) | st.just(b"x" * (STATEMENT_MAX + 1)))
def test_bytes_that_are_no_statement(data: bytes) -> None:
    """Random bytes are malformed, outside and inside, and nothing else is raised."""
    for junk in (data, msgpack.packb((data, b"")), msgpack.packb([data, b"", b""]), msgpack.packb({"a": 1})):
        with pytest.raises(TicketError) as caught:
            decode_statement(junk)
        assert caught.value.code == "malformed"


def test_one_statement_has_one_encoding() -> None:
    """The same fields in a longer encoding are refused."""
    body = msgpack.packb(FIELDS)
    longer = body.replace(b"\x05\xa3L-1", b"\xcc\x05\xa3L-1")
    assert msgpack.unpackb(longer) == msgpack.unpackb(body) and longer != body
    with pytest.raises(TicketError, match="not in its shortest encoding"):
        decode_statement(msgpack.packb((longer, b"")))


def test_unsigned_statements() -> None:
    """Without signatures a statement is believed of the identity that it names, and signed ones are not."""
    me = UnsignedIdentity("site")
    made = state(me, TRUNCATION, SUBJECT, 5)
    assert check_statement(UNSIGNED, made.encode(), TRUNCATION, signer=me.public, subject=SUBJECT).detail == ""
    with pytest.raises(TicketError, match="does not verify"):
        check_statement(UNSIGNED, state(SITE, TRUNCATION, SUBJECT, 5).encode(), TRUNCATION, signer=SITE.public)
