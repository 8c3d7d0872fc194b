"""Claims and tickets: one encoding each, and limits on every field."""

from __future__ import annotations

import re
import tracemalloc
from hashlib import sha256
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import properties, terms, texts

from leasekit.core.claims.claim import (
    BODY_MAX,
    DEGREE_MAX,
    DEPTH_MAX,
    JOINED_MAX,
    TAG,
    TYPE_MAX,
    UNITS_MAX,
    Claim,
    check_chain,
    decode_claim,
    decode_ticket,
    delegate,
    delegate_root,
    issue,
    split_tickets,
)
from leasekit.core.claims.signed import ED25519, LARGE, UNSIGNED, Keypair, UnsignedIdentity, fingerprint
from leasekit.core.errors import TicketError
from leasekit.core.properties import counts, is_plain
from leasekit.core.time import INSTANT_MAX, Term

SITE, BROKER, GUEST = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
TERM = Term(1000, 9000)
FIELDS = [TAG, SITE.public, BROKER.public, "vm", 5, 1000, 9000, 7, 1000, b"", b"", []]
NAMES = (
    "tag", "issuer", "holder", "type", "units", "start", "end", "serial", "degree", "properties", "parent",
    "constraints",
)  # fmt: skip


def body(**changes: Any) -> bytes:
    """The body of a claim with some fields replaced by whatever is given."""
    packed: bytes = msgpack.packb([changes.get(name, value) for name, value in zip(NAMES, FIELDS, strict=True)])
    return packed


def example(**changes: Any) -> Claim:
    """A claim of the site's for the broker."""
    fields: dict[str, Any] = {"holder": BROKER.public, "type": "vm", "units": 5, "term": TERM, "serial": 7}
    return issue(SITE, **{**fields, **changes})


digests = st.just(b"") | st.binary(min_size=32, max_size=32)
claims = st.builds(
    issue,
    st.just(SITE),
    holder=st.binary(min_size=32, max_size=32),
    type=texts(1, TYPE_MAX).filter(is_plain),
    units=st.integers(1, UNITS_MAX)
    | st.dictionaries(st.just(b"") | st.binary(min_size=32, max_size=32), st.integers(1, 2**20), min_size=1).map(
        counts
    ),
    term=terms(),
    serial=st.integers(0, 2**63 - 1),
    degree=st.integers(1000, DEGREE_MAX),
    properties=digests,
    parent=digests,
    constraints=properties.map(lambda pairs: {k: v for k, v in pairs.items() if is_plain(k) and is_plain(v)}),
)


@given(claim=claims)
def test_round_trip(claim: Claim) -> None:
    """A claim that was decoded is the one that was issued, field by field; its digest covers body and signature."""
    again = decode_claim(claim.body, claim.signature)
    for field in ("issuer", "holder", "type", "units", "classes", "term", "serial", "degree", "parent", "digest"):
        assert getattr(again, field) == getattr(claim, field)
    assert again.constraints == claim.constraints
    assert claim.digest == sha256(claim.body + claim.signature).digest()
    assert claim.id == claim.digest.hex()


def test_the_encoding_is_fixed() -> None:
    """These bytes are what was signed in every version so far: they must not change."""
    claim = issue(
        UnsignedIdentity("site"), holder=b"\x02" * 32, type="vm", units=5, term=TERM, serial=7,
        constraints={"preemptible": "true"},
    )  # fmt: skip
    assert claim.signature == b""
    assert claim.body == bytes.fromhex(
        "9ca6636c61696d31c420" + UnsignedIdentity("site").public.hex() + "c420" + "02" * 32
        + "a2766d05cd03e8cd232807cd03e8c400c4009192ab707265656d707469626c65a474727565"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tag": "claim2"}, "not a claim"),
        ({"issuer": b"short"}, "issuer is b'short'"),
        ({"issuer": "text" * 8}, "issuer is"),
        ({"holder": b"x" * 33}, "holder is"),
        ({"type": ""}, "type is ''"),
        ({"type": "x" * (TYPE_MAX + 1)}, "type is"),
        ({"type": b"vm"}, "type is"),
        ({"units": 0}, "units is 0"),
        ({"units": -1}, "units is -1"),
        ({"units": UNITS_MAX + 1}, "units is"),
        ({"units": True}, "units is True"),
        ({"units": 1.5}, "units is 1.5"),
        ({"start": "now"}, "term is"),
        ({"start": 9000}, "is empty"),
        ({"start": 9001}, "is reversed"),
        ({"start": -1}, "out of range"),
        ({"end": INSTANT_MAX + 1}, "out of range"),
        ({"end": True}, "term is"),
        ({"serial": -1}, "serial is -1"),
        ({"serial": 2**63}, "serial is"),
        ({"degree": 999}, "degree is 999"),
        ({"degree": DEGREE_MAX + 1}, "degree is"),
        ({"properties": b"x" * 31}, "properties is"),
        ({"units": [1, 2]}, "classes is"),
        ({"units": [1, 2], "properties": [b"", b"x" * 31]}, "classes is"),
        ({"units": [1, 2], "properties": [b"x" * 32, b""]}, "classes is"),
        ({"units": [1, 2], "properties": [b"", b""]}, "classes is"),
        ({"units": [1, 0], "properties": [b"", b"x" * 32]}, "classes is"),
        ({"units": [1, UNITS_MAX], "properties": [b"", b"x" * 32]}, "classes is"),
        ({"units": [1], "properties": [b""]}, "classes is"),
        ({"units": [], "properties": []}, "classes is"),
        ({"properties": [b"", b"x" * 32]}, "properties is"),
        ({"parent": b"x"}, "parent is"),
        ({"constraints": [["a", 5]]}, "property values are strings"),
        ({"constraints": [["b", "1"], ["a", "1"]]}, "constraints is"),
        ({"constraints": [["a", "1"], ["a", "1"]]}, "constraints is"),
        ({"constraints": 5}, "claim:"),
        ({"constraints": ["ab"]}, "constraints is"),
    ],
)
def test_fields_outside_their_limits(change: dict[str, Any], text: str) -> None:
    """Each field that is not what it must be is refused by name."""
    with pytest.raises(TicketError, match=text) as caught:
        decode_claim(body(**change), b"")
    assert caught.value.code == "malformed"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x93\x01", msgpack.packb(5), msgpack.packb(FIELDS[:-1]), msgpack.packb([*FIELDS, 1]),
        msgpack.packb({"a": 1}), msgpack.packb(FIELDS) + b"\x00", b"\x91" * 5000,
        msgpack.packb([TAG, *[float("nan")] * 11]),
        b"\xdd\xff\xff\xff\xff", b"\x9c\xa6claim1" + b"\xc7\x01\x05x" * 11,
    ],
)  # fmt: skip
def test_bytes_that_are_no_claim(data: bytes) -> None:
    """Anything else is malformed, and nothing else is raised."""
    with pytest.raises(TicketError) as caught:
        decode_claim(data, b"")
    assert caught.value.code == "malformed"


@given(data=st.binary(max_size=200))
def test_random_bytes_are_no_claim(data: bytes) -> None:
    """Random bytes are malformed as a claim, as a ticket and inside one."""
    for decode in (lambda: decode_claim(data, b""), lambda: decode_ticket(data), lambda: decode_ticket(
        msgpack.packb([[data, b""]])
    )):  # fmt: skip
        with pytest.raises(TicketError) as caught:
            decode()
        assert caught.value.code == "malformed"


def test_one_claim_has_one_encoding() -> None:
    """The same fields in a longer encoding are refused: nobody makes a second digest of one claim."""
    claim = example()
    longer = claim.body.replace(b"\x05\xcd\x03\xe8", b"\xcc\x05\xcd\x03\xe8")
    assert longer != claim.body and msgpack.unpackb(longer) == msgpack.unpackb(claim.body)
    with pytest.raises(TicketError, match="not in its shortest encoding"):
        decode_claim(longer, claim.signature)


@pytest.mark.parametrize("empty", [b"", "", None, {}], ids=repr)
def test_no_constraints_have_one_encoding(empty: Any) -> None:
    """Whatever else is empty stands for no constraints: a claim that says so has another digest."""
    claim = example(constraints={})
    fields = list(msgpack.unpackb(claim.body, use_list=False))
    assert fields[-1] == () and decode_claim(claim.body, claim.signature).digest == claim.digest
    with pytest.raises(TicketError, match="constraints"):
        decode_claim(msgpack.packb([*fields[:-1], empty]), claim.signature)


@pytest.mark.parametrize("extra", [(), "", None, {}], ids=repr)
def test_a_field_too_many_is_named(extra: Any) -> None:
    """An empty field after the last makes no second claim of the same content, and the message says what is allowed."""
    claim = example()
    fields = msgpack.unpackb(claim.body, use_list=False)
    words = rf"the thirteenth field \(sizes\) is {re.escape(repr(extra))}, allowed is .*left out where"
    with pytest.raises(TicketError, match=words):
        decode_claim(msgpack.packb([*fields, extra]), claim.signature)


@pytest.mark.parametrize("size", [0, LARGE, LARGE + 1])
def test_keys_and_points_of_small_order(size: int) -> None:
    """What no honest signer makes is refused, however long that is which was signed."""
    data, honest = b"x" * size, Keypair(b"k" * 32)
    assert ED25519.verify(honest.public, honest.sign(data), data)
    identity = bytes([1, *bytes(31)])  # with it as key and as point, any text has a signature: S = 0
    assert not ED25519.verify(identity, identity + bytes(32), data)
    assert not ED25519.verify(honest.public, identity + honest.sign(data)[32:], data)


def test_sizes_are_bounded() -> None:
    """A body or signature of a wrong size is refused before it is looked at."""
    for data, signature in ((b"x" * (BODY_MAX + 1), b""), (example().body, b"x" * 63), (example().body, b"x" * 65)):
        with pytest.raises(TicketError, match=f"claim of {len(data)} bytes with a signature of {len(signature)} bytes"):
            decode_claim(data, signature)


def test_claims_without_end_fill_no_memory() -> None:
    """Of what was decoded last little is remembered, however long it is."""
    pairs = [(f"key {number:03}", "v") for number in range(240)]
    classes = [bytes([number]) * 32 for number in range(64)]
    tracemalloc.start()
    try:
        for serial in range(1000):
            found = decode_claim(body(serial=serial, units=[1] * 64, properties=classes, constraints=pairs), b"")
            assert len(found.body) > BODY_MAX // 2
        assert tracemalloc.get_traced_memory()[0] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_issue_refuses_what_decoding_would() -> None:
    """A claim that nobody would accept is not signed in the first place."""
    for change in ({"units": 0}, {"type": ""}, {"term": Term(5, 5)}, {"degree": 1}, {"holder": b""}):
        with pytest.raises(TicketError):
            example(**change)


def test_capacity() -> None:
    """What children may hold is the units times the degree, rounded down."""
    assert [example(degree=degree).capacity for degree in (1000, 1100, 1199, 1200, 2000)] == [5, 5, 5, 6, 10]


def test_secrets_are_not_shown() -> None:
    """A key pair shows its fingerprint, and its secret nowhere."""
    assert repr(SITE) == f"<Keypair {fingerprint(SITE.public)}>"
    assert (bytes([1]) * 32).hex() not in repr(SITE)
    with pytest.raises(ValueError, match="a secret key has 32 bytes, found 31"):
        Keypair(b"x" * 31)


def test_unsigned_worlds_are_apart() -> None:
    """The scheme without signatures accepts the empty one only; its identities are told apart by name."""
    assert UNSIGNED.verify(b"k" * 32, b"", b"data") and not UNSIGNED.verify(b"k" * 32, b"x" * 64, b"data")
    assert UnsignedIdentity("a").public != UnsignedIdentity("b").public


# -- tickets -----------------------------------------------------------------------------------------------------------


def root(**changes: Any) -> Any:
    """A ticket of depth one."""
    fields: dict[str, Any] = {"holder": BROKER.public, "type": "vm", "units": 5, "term": TERM, "serial": 1}
    return delegate_root(SITE, **{**fields, **changes})


def test_ticket_round_trip() -> None:
    """A chain comes back as it was, from the site's root to the holder's leaf."""
    ticket = delegate(root(), BROKER, holder=GUEST.public, units=2, term=Term(2000, 3000), serial=4)
    again = decode_ticket(ticket.encode())
    assert [claim.digest for claim in again.chain] == [claim.digest for claim in ticket.chain]
    assert (again.root.issuer, again.leaf.holder, again.leaf.units) == (SITE.public, GUEST.public, 2)
    assert again.encode() == ticket.encode()


@pytest.mark.parametrize(
    "data", [[], [[]], [[b"a"]], [[b"a", "b"]], [["a", b"b"]], [[b"a", b"b", b"c"]], {}, 5, [5], [[b"a", b"x" * 63]]]
)
def test_what_is_no_ticket(data: Any) -> None:
    """Anything but an array of pairs of body and signature is malformed."""
    with pytest.raises(TicketError) as caught:
        decode_ticket(msgpack.packb(data))
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("data", [{}, 5, ["a"], [b"a", 5], [b"a"] * (JOINED_MAX + 1)])
def test_what_are_no_tickets(data: Any) -> None:
    """Tickets that go on from each other are an array of so many, each still encoded."""
    assert split_tickets(msgpack.packb([b"a", b"b"])) == (b"a", b"b")
    with pytest.raises(TicketError) as caught:
        split_tickets(msgpack.packb(data))
    assert caught.value.code == "malformed"


def test_depth_is_bounded() -> None:
    """A chain that is deeper than any setting may allow is not decoded."""
    claim = example()
    deep = msgpack.packb([(claim.body, claim.signature)] * (DEPTH_MAX + 1))
    with pytest.raises(TicketError, match="ticket is not msgpack"):
        decode_ticket(deep)


@pytest.mark.parametrize(
    ("signer", "units", "term", "code"),
    [
        (GUEST, 1, TERM, "not_holder"),
        (BROKER, 6, TERM, "exceeds_parent"),
        (BROKER, 5, Term(999, 9000), "exceeds_parent"),
        (BROKER, 5, Term(1000, 9001), "exceeds_parent"),
        (BROKER, 0, TERM, "malformed"),
    ],
)
def test_delegations_that_can_not_be(signer: Keypair, units: int, term: Term, code: str) -> None:
    """Only the holder delegates, and no more than it has."""
    with pytest.raises(TicketError) as caught:
        delegate(root(), signer, holder=GUEST.public, units=units, term=term, serial=2)
    assert caught.value.code == code


def test_delegation_keeps_what_is_not_the_holders_to_change() -> None:
    """Type and properties digest are the parent's; an oversubscribed parent has room for more than its units."""
    parent = root(degree=2000, properties=b"p" * 32)
    child = delegate(parent, BROKER, holder=GUEST.public, units=10, term=TERM, serial=2, constraints={"a": "b"}).leaf
    assert (child.type, child.classes, child.parent) == ("vm", ((b"p" * 32, 10),), parent.leaf.digest)
    assert (child.degree, child.constraints) == (1000, {"a": "b"})


def test_a_class_is_delegated_from_what_there_is_of_it() -> None:
    """A child has no more of any class than its parent, though it has fewer units in all."""
    one, other, third = (bytes([number]) * 32 for number in range(3))
    parent = root(units=((one, 3), (other, 4)))
    assert (parent.leaf.units, parent.leaf.capacities) == (7, ((one, 3), (other, 4)))
    child = delegate(parent, BROKER, holder=GUEST.public, units=((one, 3), (other, 1)), term=TERM, serial=2)
    check_chain(child.chain)
    for wrong, code in ((((one, 4),), "exceeds_units"), (((third, 1),), "properties_changed")):
        with pytest.raises(TicketError, match="do not fit"):
            delegate(parent, BROKER, holder=GUEST.public, units=wrong, term=TERM, serial=2)
        forged = issue(
            BROKER, holder=GUEST.public, type="vm", units=wrong, term=TERM, serial=2, parent=parent.leaf.digest
        )
        with pytest.raises(TicketError) as caught:
            check_chain((parent.leaf, forged))
        assert caught.value.code == code


@pytest.mark.parametrize("name", ["vm\0", "v\nm", "vm\x1b[2J", "vm\x85"])
def test_types_have_no_control_characters(name):
    """A type is a word in logs, files and environments: no claim has one with control characters."""
    with pytest.raises(TicketError, match=r"type is .*, which is outside its limits"):
        example(type=name)
