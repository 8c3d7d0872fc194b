"""Signed statements about claims: one encoding each, and every check before they are believed."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import texts

from leasekit.core.claims.signed import (
    CONTRACT,
    ED25519,
    ENDORSEMENT,
    KINDS,
    RECEIPT,
    RECLAIM,
    RELINQUISHMENT,
    STATEMENT_MAX,
    TRUNCATION,
    UNSIGNED,
    Endorsed,
    Keypair,
    UnsignedIdentity,
    check_statement,
    decode_statement,
    endorse,
    endorsed,
    reclaim,
    reclaim_deadline,
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
        {"tag": "statement2"}, {"kind": "gift"}, {"kind": 5}, {"kind": {}}, {"signer": b"short"}, {"signer": "s" * 32},
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


def test_what_nobody_would_accept_is_not_signed() -> None:
    """A statement that is too long or no text is refused when it is made, not by whoever gets it."""
    longest = "x" * (STATEMENT_MAX - 200)
    assert len(state(SITE, CONTRACT, SUBJECT, 5, longest).encode()) <= STATEMENT_MAX
    for detail in ("x" * STATEMENT_MAX, "\ud800"):
        with pytest.raises(TicketError) as caught:
            state(SITE, CONTRACT, SUBJECT, 5, detail)
        assert caught.value.code == "malformed"


@given(length=st.integers(3000, 4100))
def test_what_is_signed_is_decoded(length: int) -> None:
    """Around the limit, whatever can be made can be read."""
    try:
        made = state(SITE, CONTRACT, SUBJECT, 5, "x" * length).encode()
    except TicketError:
        return
    assert decode_statement(made).detail == "x" * length


# -- taking a delegation back ------------------------------------------------------------------------------------------


@given(at=st.integers(0, INSTANT_MAX), more=st.none() | st.integers(0, INSTANT_MAX))
def test_reclaims(at: int, more: int | None) -> None:
    """A reclaim says from when on nothing new comes out of a delegation, and when its leases are closed, if at all."""
    deadline = None if more is None else min(at + more, INSTANT_MAX)
    data = reclaim(SITE, SUBJECT, at, deadline).encode()
    found = check_statement(ED25519, data, RECLAIM, signer=SITE.public, subject=SUBJECT)
    assert (found.at, reclaim_deadline(found)) == (at, deadline)


def test_deadlines_that_are_none() -> None:
    """A deadline before the reclaim, or one that is not written as it should be, is refused."""
    with pytest.raises(TicketError, match="reclaim as of 6: its deadline is 5, which is before that"):
        reclaim(SITE, SUBJECT, 6, 5)
    for text in ("soon", "-7", "07", " 7", "7 ", "²", "1e3", str(INSTANT_MAX + 1), "9" * 400):
        with pytest.raises(TicketError) as caught:
            reclaim_deadline(state(SITE, RECLAIM, SUBJECT, 5, text))
        assert caught.value.code == "malformed"


# -- endorsing keys ----------------------------------------------------------------------------------------------------


def test_endorsements() -> None:
    """An endorsement names the key, whose it is, and where its actor listens if that is known."""
    for name, role, address in (("alice", "guest", ""), ("north", "site", "tcp://10.0.0.1:7000"), ("é", "broker", "")):
        data = endorse(SITE, GUEST.public, 5, name=name, role=role, address=address).encode()
        found = check_statement(ED25519, data, ENDORSEMENT, signer=SITE.public, subject=GUEST.public)
        assert endorsed(found) == Endorsed(GUEST.public, name, role, address)


def test_endorsements_of_nothing() -> None:
    """An endorsement without a name, of no role, or with characters that a terminal would obey is refused."""
    good = {"name": "alice", "role": "guest", "address": ""}
    for change in (
        {"name": ""}, {"name": "a\nb"}, {"name": "a\x1b[2J"}, {"role": "king"}, {"address": "\n"}, {"role": "guest\n"}
    ):  # fmt: skip
        with pytest.raises(TicketError) as caught:
            endorse(SITE, GUEST.public, 5, **(good | change))
        assert caught.value.code == "malformed"
    for detail in ("", "guest", "guest\nalice", "guest\nalice\n\n", "guest\r\nalice\r\n"):
        with pytest.raises(TicketError, match="expected role, name and address"):
            endorsed(state(SITE, ENDORSEMENT, GUEST.public, 5, detail))
