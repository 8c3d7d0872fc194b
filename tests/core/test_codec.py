"""The codec: what goes in comes out; what is malformed is refused with its place, its value and what is allowed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from types import MappingProxyType
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import asdict, astuple, replace
from wire_strategies import BY_CLASS, messages, packable

from leasekit.core.errors import WireError
from leasekit.core.properties import BYTES_MAX
from leasekit.core.protocol import codec
from leasekit.core.protocol import messages as wire
from leasekit.core.protocol.channel import ENVELOPE_OVERHEAD, FRAME_MAX
from leasekit.core.protocol.codec import UnknownKind, decode_batch, decode_message, encode_batch, encode_message
from leasekit.core.protocol.messages import (
    Ack,
    ErrorReply,
    LeaseUpdate,
    Message,
    OfferAnswer,
    Quoted,
    QuotedOffer,
    Redeem,
    RequestTicket,
    UnitState,
)
from leasekit.core.reasons import CAUSES_MAX, DEPTH_MAX, TEXT_MAX, Code, Reason, clip, said
from leasekit.core.time import INSTANT_MAX, Term

REQUEST = RequestTicket("L1", 7, "new", "web", "vm", 4, Term(10, 20), "", {"elastic": "true"}, b"")
UPDATE = LeaseUpdate(
    "L1", 1, 7, "active", Term(10, 20), (UnitState("u1", "active", {"ip": "10.0.0.1"}, None),), None, b"", b""
)

REDEEM = Redeem("L", 1, "new", "s", b"", {}, {}, (), b"")
OFFER = QuotedOffer("s", "site", "vm", 2, Term(10, 20), {}, (10, 2))
QUOTED = Quoted("q", 1, (OFFER,))
BEHIND = reduce(lambda behind, _: Reason(Code.LEASE_LOST, causes=(behind,)), range(DEPTH_MAX), said("so"))
MANY = Reason(Code.LEASE_LOST, causes=(Reason(Code.LEASE_LOST, causes=(said("so"),) * CAUSES_MAX),) * CAUSES_MAX)


def _plain(value: Any) -> Any:
    return to_builtins(value) if isinstance(value, Reason) else astuple(value)


def raw(message: Message, **changes: Any) -> bytes:
    """The bytes of ``message`` with some fields replaced by whatever is given."""
    packed: bytes = msgpack.packb(
        [message.__struct_config__.tag, *({**asdict(message), **changes}).values()],
        default=_plain, unicode_errors="surrogatepass",
    )  # fmt: skip
    return packed


def fault(data: bytes) -> str:
    """The text of the error that decoding ``data`` as one message raises."""
    with pytest.raises(WireError) as caught:
        decode_message(data)
    assert caught.value.code == "malformed"
    return str(caught.value)


def nested(depth: int) -> list[Any]:
    """Arrays in arrays, ``depth`` of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_every_message_has_a_kind() -> None:
    """The table of kinds, the strategies and the union of messages list the same classes."""
    classes = set(get_args(Message))
    assert {*codec.KINDS.values()} == classes == set(BY_CLASS)


def test_kind_numbers_are_fixed() -> None:
    """The numbers on the wire never change: an old peer would take one message for another."""
    assert {kind: cls.__name__ for kind, cls in codec.KINDS.items()} == {
        1: "RequestTicket", 2: "Withdraw", 3: "ReturnTicket", 4: "TicketUpdate", 5: "Redeem", 6: "CloseLease",
        7: "Relinquish", 8: "Relinquished", 9: "LeaseUpdate", 10: "Truncated", 11: "Accepted", 12: "Ack", 13: "Offer",
        14: "OfferAnswer", 15: "ErrorReply", 16: "Reclaim", 17: "Introduce", 18: "ClaimReport", 19: "Administer",
        20: "Administered", 21: "Withhold", 22: "DryRun", 23: "DryRunAnswer", 24: "Plan", 25: "Planned", 26: "Quote",
        27: "Quoted", 28: "HoldParts", 29: "PartsHeld", 30: "ReleaseParts", 31: "LetGo", 32: "Holdings",
        33: "Largest",
    }  # fmt: skip


@pytest.mark.parametrize("cls", BY_CLASS, ids=lambda cls: cls.__name__)
def test_round_trip_of_each_class(cls: type[Any]) -> None:
    """Each class of message comes back equal and of the same class, alone and in a batch."""

    @settings(max_examples=40)
    @given(BY_CLASS[cls])
    def check(message: Any) -> None:
        data = encode_message(message)
        for back in (decode_message(data), *decode_batch(encode_batch([message]))):
            assert back == message
            assert type(back) is cls

    check()


@given(st.lists(messages, max_size=20))
def test_round_trip_of_batches(batch: list[Message]) -> None:
    """A batch comes back in order, with each message of its own class."""
    back = decode_batch(encode_batch(batch))
    assert back == batch


def test_nested_values_come_back_as_their_classes() -> None:
    """Terms and unit states come back as such, not as bare tuples."""
    back = decode_message(encode_message(UPDATE))
    assert isinstance(back, LeaseUpdate)
    assert isinstance(back.term, Term)
    assert isinstance(back.units[0], UnitState)


@given(st.lists(st.binary(max_size=30), max_size=70_000 // 1000))
def test_join_batch_is_the_encoding_of_the_list(parts: list[bytes]) -> None:
    """Joining encoded messages gives the very bytes of packing their list at once."""
    encoded = [msgpack.packb(part) for part in parts]
    assert codec.join_batch(encoded) == msgpack.packb(parts)


def test_a_batch_has_a_limit_on_both_sides() -> None:
    """A batch of the most messages passes; one more is refused when it is made and when it is read."""
    full = [Ack("L", 1)] * wire.BATCH_MAX
    assert decode_batch(encode_batch(full)) == full
    with pytest.raises(ValueError, match="found 1025 messages, a batch holds at most 1024"):
        encode_batch([*full, full[0]])
    with pytest.raises(WireError, match="found an array of 1025 messages, allowed are at most 1024"):
        decode_batch(msgpack.packb([[12, "L", 1]] * 1025))


def test_read_only_properties_are_encoded() -> None:
    """Properties may be any mapping, not only a dict."""
    message = replace(REQUEST, properties=MappingProxyType({"a": "b"}))
    assert decode_message(encode_message(message)) == replace(REQUEST, properties={"a": "b"})


def test_what_is_no_message_is_not_encoded() -> None:
    """Encoding something else is the caller's mistake, and says so."""
    with pytest.raises(TypeError, match="Term is not a message"):
        encode_message(Term(1, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="found object, messages hold"):
        encode_message(Ack("L", object()))  # type: ignore[arg-type]
    with pytest.raises(OverflowError, match="can't serialize ints"):
        encode_message(Ack("L", 2**64))
    with pytest.raises(UnicodeEncodeError):
        encode_message(OfferAnswer("d", 1, Reason("x", detail="\ud800")))
    assert decode_message(encode_message(Ack("L", 1))) == Ack("L", 1)


@given(st.text(max_size=30) | st.text(min_size=TEXT_MAX, max_size=TEXT_MAX + 9))
def test_clip_makes_any_text_fit(text: str) -> None:
    """Whatever a driver printed can travel as a reason once it is clipped; what fits is not changed."""
    clipped = clip(text)
    assert decode_message(encode_message(OfferAnswer("d", 1, said(text)))) == OfferAnswer(
        "d", 1, Reason("said", detail=clipped)
    )
    if len(text) <= TEXT_MAX and not any("\ud800" <= char <= "\udfff" for char in text):
        assert clipped == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lease": ""}, "message, RequestTicket: lease: found '', allowed is text of length >= 1"),
        ({"lease": "x" * 81}, "lease: found '" + "x" * 40 + "'... (81 characters), allowed is text of length <= 80"),
        ({"lease": b"L1"}, "lease: found 2 bytes, allowed is text"),
        ({"number": -1}, "number: found -1 (int), allowed is an integer >= 0"),
        ({"number": 2**63}, "number: found 9223372036854775808 (int)"),
        ({"number": True}, "number: found True (bool)"),
        ({"number": 7.0}, "number: found 7.0 (float)"),
        ({"op": ""}, "op: found '', allowed is text of length >= 1"),
        ({"slice": ""}, "slice: found ''"),
        ({"type": "t" * 129}, "type: found"),
        ({"units": 0}, "units: found 0 (int), allowed is an integer >= 1"),
        ({"units": 2**31}, "units: found 2147483648 (int)"),
        ({"units": True}, "units: found True (bool)"),
        ({"units": float("nan")}, "units: found nan (float)"),
        ({"units": "4"}, "units: found '4', allowed is an integer"),
        ({"units": None}, "units: found None (NoneType)"),
        ({"term": (20, 10)}, "term: term [20, 10) is reversed: its end must be later than its start"),
        ({"term": (10, 10)}, "term: term [10, 10) is empty"),
        ({"term": (-1, 10)}, "term: term [-1, 10) is out of range"),
        ({"term": (0, INSTANT_MAX + 1)}, "is out of range"),
        ({"term": (10,)}, "term: found an array of 1, allowed is an array of length 2"),
        ({"term": (10, 20.0)}, "term[1]: found 20.0 (float), allowed is an integer"),
        ({"term": (False, True)}, "term[0]: found False (bool), allowed is an integer"),
        ({"term": 10}, "term: found 10 (int), allowed is an array"),
        ({"site": "s" * 129}, "site: found"),
        ({"properties": [["a", "b"]]}, "properties: found an array of 1, allowed is a map"),
        ({"properties": {"": "x"}}, "properties: found a map of 1, allowed is text of length >= 1"),
        ({"properties": {"k" * 129: "x"}}, "properties: found a map of 1, allowed is text of length <= 128"),
        ({"properties": {b"k": "x"}}, "properties: found a map of 1, allowed is text"),
        ({"properties": {"n": 4}}, "properties: found a map of 1, allowed is text"),
        ({"properties": {"n": "v" * 16_385}}, "properties: found a map of 1, allowed is text of length <= 16384"),
        ({"properties": {"n": nested(900)}}, "properties: found a map of 1, allowed is text"),
        ({"properties": {str(n): "" for n in range(257)}}, "found a map of 257, allowed is a map of length <= 256"),
        ({"properties": {1: "x"}}, "properties: found a map of 1, allowed is text"),
        ({"claim": b"x" * 31}, "claim: found 31 bytes, allowed is 0 or 32 bytes"),
        ({"lease": "\ud800"}, "lease: found text that is not UTF-8"),
    ],
)  # fmt: skip
def test_a_field_outside_its_limits_is_named(changes: dict[str, Any], text: str) -> None:
    """The error names the message, the field, what was found and what is allowed, and stays short."""
    found = fault(raw(REQUEST, **changes))
    assert text in found
    assert found.startswith("message, RequestTicket: ")
    assert len(found) < 300


@pytest.mark.parametrize(
    ("message", "changes", "text"),
    [
        (UPDATE, {"units": 3}, "LeaseUpdate: units: found 3 (int), allowed is an array"),
        (UPDATE, {"units": [["u", "active", {}]]}, "units[0]: found 3 fields, the next one, 'reason', is missing"),
        (UPDATE, {"units": [UPDATE.units[0], 5]}, "units[1]: found 5 (int), allowed is an array"),
        (UPDATE, {"units": [["u", "active", {"a": 1}, ""]]}, "units[0]: properties: found a map of 1, allowed is text"),
        (UPDATE, {"units": [["u", "", {}, ""]]}, "units[0]: state: found ''"),
        (UPDATE, {"reason": "r" * 2049}, "reason: found"),
        (UPDATE, {"contract": b"c" * 4097}, "contract: found 4097 bytes, allowed is bytes of length <= 4096"),
        (REDEEM, {"ticket": b"t" * 16_385}, "ticket: found 16385 bytes, allowed is bytes of length <= 16384"),
        (REDEEM, {"victims": ["u", ""]}, "victims[1]: found ''"),
        (REDEEM, {"victims": "u"}, "victims: found 'u', allowed is an array"),
        (UPDATE, {"reason": BEHIND}, f"reason: found {DEPTH_MAX + 1} reasons behind each other"),
        (UPDATE, {"reason": MANY}, f"reason: found {1 + CAUSES_MAX + CAUSES_MAX**2} reasons in one"),
        (QUOTED, {"offers": [(*astuple(OFFER)[:-1], (1, 2, 3))]}, "steps: found an array of 3, allowed are pairs"),
        (QUOTED, {"offers": [(*astuple(OFFER)[:-1], (5, 2, 5, 3))]}, "steps: found 5 after 5, instants must grow"),
        (QUOTED, {"offers": [(*astuple(OFFER)[:-1], (5, 2 ** 31))]}, "steps: found 2147483648 units"),
    ],
)  # fmt: skip
def test_what_is_inside_a_list_is_named(message: Message, changes: dict[str, Any], text: str) -> None:
    """Errors inside unit states and victims say which item."""
    assert text in fault(raw(message, **changes))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "message: Input data was truncated"),
        (b"\x93\x0c\xa1L", "message: Input data was truncated"),
        (b"\x93\x0c\xa1L\x01\x00", "message: MessagePack data is malformed: trailing characters (byte 5)"),
        (b"\x90", "message: found an array of 0"),
        (b"\xc0", "message: found None (NoneType), allowed is an array"),
        (b"\xa1L", "message: found 'L', allowed is an array"),
        (b"\x81\x0c\x01", "message: found a map of 1, allowed is an array"),
        (b"\xc1", "message: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)"),
        (b"\xdd\xff\xff\xff\xff\x0c", "message: Input data was truncated"),
        (b"\x93\xa1x\xa1L\x01", "message: kind: found 'x', allowed is an integer"),
        (b"\x93\xc3\xa1L\x01", "message: kind: found True (bool), allowed is an integer"),
        (b"\x93\xcb@(\x00\x00\x00\x00\x00\x00\xa1L\x01", "message: kind: found 12.0 (float), allowed is an integer"),
        (b"\x92\x0c\xa1L", "Ack: found 1 fields, the next one, 'update', is missing"),
        (b"\x93\x0c\xa1L\xdb\xff\xff\xff\xff", "Input data was truncated"),
        (b"\x93\x0c\xa1L\xc6\xff\xff\xff\xff", "Input data was truncated"),
        (b"\x93\x0c\xa1L\xdd\xff\xff\xff\xff", "Input data was truncated"),
        (b"\x93\x0c\xa1L\xdf\xff\xff\xff\xff", "Input data was truncated"),
        (b"\x93\x0c\xa1L\xd6\xff\x00\x00\x00\x00", "Ack: update: found"),
        (b"\x93\x0c\xa1L" + b"\x91" * 3000, "message: "),
        (b"\x95\x0c\xa1L\x01\xc4\x00" + b"\x91" * 3000, "message: "),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, text: str) -> None:
    """Truncated, trailing, oversized or too deep bytes are refused before they cost anything."""
    assert text in fault(data)


def test_a_key_that_comes_twice_has_its_last_value() -> None:
    """Whoever reads the message reads the same: there is one reader. What is signed has one encoding of its own."""
    head = raw(REQUEST).split(b"\x81\xa7elastic")[0]
    doubled = decode_message(head + b"\x82\xa1a\xa1x" + b"\xd9\x01a\xa1y" + b"\xc4\x00")
    assert isinstance(doubled, RequestTicket) and doubled.properties == {"a": "y"}


def test_a_batch_says_which_message() -> None:
    """In a batch the error counts the messages; one that is malformed spoils all of it."""
    data = codec.join_batch([encode_message(REQUEST), raw(REQUEST, units=0), encode_message(REQUEST)])
    with pytest.raises(WireError, match=r"^message 2 of 3, RequestTicket: units: found 0"):
        decode_batch(data)
    with pytest.raises(WireError, match=r"^batch: MessagePack data is malformed: trailing"):
        decode_batch(encode_batch([REQUEST]) + b"\x00")
    with pytest.raises(WireError, match=r"^batch: found something else than an array"):
        decode_batch(b"\xc0")


def test_unknown_kinds_do_not_stop_the_batch() -> None:
    """A kind of a newer version comes back as a value that can be answered, between its neighbours."""
    batch = [
        encode_message(Ack("L", 1)),
        msgpack.packb([999, "L9", 4, {"new": ["things"]}]),
        encode_message(Ack("L", 2)),
    ]
    first, unknown, last = decode_batch(codec.join_batch(batch))
    assert (first, last) == (Ack("L", 1), Ack("L", 2))
    assert isinstance(unknown, UnknownKind)
    assert unknown == UnknownKind(999, "L9", 4)
    answer = unknown.answer()
    assert decode_message(encode_message(answer)) == answer
    assert (answer.lease, answer.number, answer.reason.code) == ("L9", 4, "unknown_kind")
    assert "999" in answer.reason.detail


@pytest.mark.parametrize("fields", [[], [5], [b"L", -1], ["x" * 81, -1], ["x" * 81, True], [None, "n"]])
def test_unknown_kinds_without_lease_or_number(fields: list[Any]) -> None:
    """What can't be the lease and number of an unknown kind is not taken for them; it can be answered all the same."""
    data = msgpack.packb([-7, *fields])
    unknown = decode_message(data)
    assert unknown == UnknownKind(-7, "", 0)
    assert isinstance(unknown, UnknownKind)
    assert isinstance(decode_message(encode_message(unknown.answer())), ErrorReply)


@given(messages, st.lists(packable, max_size=3))
def test_extra_fields_are_ignored(message: Message, extras: list[Any]) -> None:
    """Fields that a newer peer adds change nothing."""
    data = msgpack.packb([*msgpack.unpackb(encode_message(message)), *extras])
    assert decode_message(data) == decode_batch(codec.join_batch([data]))[0] == message


def test_extra_fields_of_a_unit_are_ignored() -> None:
    """Parts of messages grow at their end as messages do."""
    assert decode_message(raw(UPDATE, units=[[*astuple(UPDATE.units[0]), "new", [1]]])) == UPDATE


def test_missing_fields_get_their_defaults() -> None:
    """An older peer leaves out the fields that have defaults; those without are missed."""
    assert decode_message(msgpack.packb([12, "L", 1])) == Ack("L", 1, b"")
    assert fault(msgpack.packb([12, "L"])) == "message, Ack: found 1 fields, the next one, 'update', is missing"


def test_lists_have_a_limit() -> None:
    """Victims and units up to the limit pass; beyond, they are refused."""
    redeem = replace(REDEEM, victims=("u",) * wire.LIST_MAX)
    assert decode_message(encode_message(redeem)) == redeem
    text = fault(raw(redeem, victims=["u"] * (wire.LIST_MAX + 1)))
    assert text == "message, Redeem: victims: found an array of 12001, allowed is an array of length <= 12000"
    units = tuple(UnitState(f"u{n}", "active", {"ip": "10.0.0.1"}, None) for n in range(wire.LIST_MAX))
    update = replace(UPDATE, units=units)
    assert decode_batch(encode_batch([update, Ack("L", 1)])) == [update, Ack("L", 1)]


def test_a_large_lease_fits() -> None:
    """The update of a lease of 2,000 units with 20 properties each is within all limits."""
    properties = {f"property-{n}": f"value of property {n}" for n in range(20)}
    units = tuple(UnitState(f"unit-{n}.site.example.org", "active", properties, None) for n in range(2000))
    update = replace(UPDATE, units=units)
    data = encode_batch([update])
    assert len(data) < FRAME_MAX - ENVELOPE_OVERHEAD
    assert decode_batch(data) == [update]


@pytest.mark.parametrize(
    "data",
    [
        b"\xdc\x04\x00" * 80_000,
        b"\xdc\x04\x00" * 16_000,
        b"\x91\x93\x0c\xa1L" + b"\xdc\x04\x00" * 1000,
        b"\xdd\x00\x0f\xff\xff" + b"\x80" * 1_048_575,
        b"\x91\xdd\x00\x0f\xff\xff\x0c" + b"\x80" * 1_048_575,
        b"\x91\x94\x0c\xa1L\x01\xdd\x00\x0f\xff\xff" + b"\x81\xa0\x80" * 1_048_575,
        b"\x91\x9a\x09\xa1L\x01\x01\xa1a\x92\x00\x01\xdd\x00\x00\x20\x00" + b"\xdc\x04\x00" * 500_000,
    ],
    ids=["nested", "nested_short", "nested_field", "maps_in_batch", "maps_in_message", "long_extra", "nested_units"],
)
def test_bombs_cost_little(data: bytes) -> None:
    """Small frames that claim or hold very many values are refused within 10 MiB, whatever their headers promise."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_batch(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20


def full_frame(text: str) -> bytes:
    """A batch of nearly the largest size, all of it that text in properties."""
    count = (FRAME_MAX - 4096) // (len(text.encode()) + 64)
    each = min(250, BYTES_MAX // (len(text.encode()) + 8))
    tables = [{f"k{i}": text for i in range(at, min(count, at + each))} for at in range(0, count, each)]
    return encode_batch([replace(REQUEST, properties=table) for table in tables])


@pytest.mark.parametrize(
    "text", ["a" * 16384, "é" * 16384, "漢" + "a" * 16000, "\U0001f600" * 16000, "\U0001f600" + "a" * 59]
)
def test_a_full_frame_of_any_text_costs_little(text: str) -> None:
    """Text takes at most six times its frame: Python gives each character of a text the width of its widest."""
    data = full_frame(text)
    assert peak_of(lambda: decode_batch(data)) <= 6 * len(data)
    assert decode_batch(data)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["units", "tiny units", "pairs", "victims", "parts", "steps", "acks", "reasons", "causes"]
)
def test_a_full_frame_of_small_values_costs_little(kind: str) -> None:
    """Whatever small values a frame is full of, they take at most 24 times its length: so much do units without
    properties take, which are smallest on the wire for what they are in memory.
    """
    pack, units = msgpack.packb, [[f"u{n}", "a", {}, None] for n in range(12_000)]
    one = {
        "units": lambda: pack([9, "L", 1, 1, "a", [1, 2], units, None, b"", b""]),
        "tiny units": lambda: pack([9, "L", 1, 1, "a", [1, 2], [["u", "a", {}, None]] * 12_000, None, b"", b""]),
        "pairs": lambda: pack([5, "L", 1, "n", "s", b"", {f"{n:02x}": "a" for n in range(256)}, {}, [], b""]),
        "victims": lambda: pack([5, "L", 1, "n", "s", b"", {}, {}, [f"{n:x}" for n in range(12_000)], b""]),
        "parts": lambda: pack([28, "q", 1, b"", [1, 2], [["p", "m", 0, "b", "s", "t", "u", 1]] * 500, 5]),
        "steps": lambda: pack([27, "q", 1, [["s", "t", "u", 1, [1, 2], {}, list(range(200))]] * 1000]),
        "acks": lambda: pack([12, "L", 1]),
        "reasons": lambda: pack([15, "", 1, {"code": "x"}]),
        "causes": lambda: pack(
            [15, "", 1, {"code": "x", "causes": [{"code": "x", "causes": [{"code": "x"}] * 6}] * 8}]
        ),
    }[kind]()
    data = codec.join_batch([one] * min(wire.BATCH_MAX, (FRAME_MAX - ENVELOPE_OVERHEAD) // len(one)))
    assert peak_of(lambda: decode_batch(data)) <= 24 * len(data)


def peak_of(work: Callable[[], Any]) -> int:
    """The most memory that ``work`` takes, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200) | packable.map(msgpack.packb))
def test_garbage_is_refused(data: bytes) -> None:
    """Whatever the bytes are, the only error is WireError."""
    for read in (decode_batch, decode_message):
        with suppress(WireError):
            read(data)


@given(messages, st.data())
def test_mutated_messages_are_refused_or_read_alike_in_a_batch(message: Message, data: st.DataObject) -> None:
    """One changed, removed or added byte never gives another error, and a batch of one is read as the message is."""
    good = encode_message(message)
    at = data.draw(st.integers(0, len(good) - 1))
    new = data.draw(st.binary(max_size=2))
    bad = good[:at] + new + good[at + data.draw(st.integers(0, 1)) :]
    try:
        alone = decode_message(bad)
    except WireError:
        with suppress(WireError):
            assert len(decode_batch(b"\x91" + bad)) == 0
    else:
        assert decode_batch(b"\x91" + bad) == [alone]


@given(messages, packable, st.data())
def test_any_value_in_any_field_is_refused_or_kept(message: Message, value: Any, data: st.DataObject) -> None:
    """A field holds what its rule allows, or the whole message is refused with that field's name."""
    field = data.draw(st.sampled_from(message.__struct_fields__))
    packed = raw(message, **{field: value})
    try:
        back = decode_message(packed)
    except WireError as error:
        assert f"{type(message).__name__}: {field}" in str(error)
    else:
        assert decode_message(encode_message(back)) == back  # type: ignore[arg-type]
