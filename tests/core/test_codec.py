"""The codec: what goes in comes out; what is malformed is refused with its place, its value and what is allowed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import BY_CLASS, messages, packable

from leasekit.core.errors import WireError
from leasekit.core.protocol import codec, fields
from leasekit.core.protocol.channel import ENVELOPE_OVERHEAD, FRAME_MAX
from leasekit.core.protocol.codec import UnknownKind, decode_batch, decode_message, encode_batch, encode_message
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    ErrorReply,
    LeaseUpdate,
    Message,
    OfferAnswer,
    Redeem,
    RequestTicket,
    UnitState,
)
from leasekit.core.time import INSTANT_MAX, Term

REQUEST = RequestTicket("L1", 7, "new", "web", "vm", 4, Term(10, 20), "", {"elastic": "true"}, b"")
UPDATE = LeaseUpdate(
    "L1", 1, 7, "active", Term(10, 20), (UnitState("u1", "active", {"ip": "10.0.0.1"}, ""),), "", b"", b""
)

REDEEM = Redeem("L", 1, "new", "s", b"", {}, {}, (), b"")


def raw(message: Message, **changes: Any) -> bytes:
    """The bytes of ``message`` with some fields replaced by whatever is given."""
    kind = next(kind for kind, (cls, _) in codec.KINDS.items() if cls is type(message))
    packed: bytes = msgpack.packb([kind, *message._replace(**changes)], unicode_errors="surrogatepass")
    return packed


def fault(data: bytes) -> str:
    """The text of the error that decoding ``data`` as one message raises."""
    with pytest.raises(WireError) as caught:
        decode_message(data)
    assert caught.value.code == "malformed"
    return caught.value.text


def nested(depth: int) -> list[Any]:
    """Arrays in arrays, ``depth`` of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_every_message_has_a_kind() -> None:
    """The table of kinds, the strategies and the union of messages list the same classes."""
    classes = set(get_args(Message))
    assert {cls for cls, _ in codec.KINDS.values()} == classes == set(BY_CLASS)


def test_kind_numbers_are_fixed() -> None:
    """The numbers on the wire never change: an old peer would take one message for another."""
    assert {kind: cls.__name__ for kind, (cls, _) in codec.KINDS.items()} == {
        1: "RequestTicket", 2: "Withdraw", 3: "ReturnTicket", 4: "TicketUpdate", 5: "Redeem", 6: "CloseLease",
        7: "Relinquish", 8: "Relinquished", 9: "LeaseUpdate", 10: "Truncated", 11: "Accepted", 12: "Ack", 13: "Offer",
        14: "OfferAnswer", 15: "ErrorReply", 16: "Reclaim", 17: "Introduce", 18: "ClaimReport", 19: "Administer",
        20: "Administered", 21: "Withhold", 22: "Probe", 23: "ProbeAnswer", 24: "Plan", 25: "Planned", 26: "Quote",
        27: "Quoted", 28: "Hold", 29: "Held", 30: "Release", 31: "LetGo",
    }  # fmt: skip


@pytest.mark.parametrize("cls", BY_CLASS, ids=lambda cls: cls.__name__)
def test_round_trip_of_each_class(cls: type[Any]) -> None:
    """Each class of message comes back equal and of the same class, alone and in a batch, by both readers."""

    @settings(max_examples=40)
    @given(BY_CLASS[cls])
    def check(message: Any) -> None:
        data = encode_message(message)
        for back in (decode_message(data), codec._Careful(data).single(), *decode_batch(encode_batch([message]))):
            assert back == message
            assert type(back) is cls

    check()


@given(st.lists(messages, max_size=20))
def test_round_trip_of_batches(batch: list[Message]) -> None:
    """A batch comes back in order, with each message of its own class (named tuples of two classes can be equal)."""
    back = decode_batch(encode_batch(batch))
    assert back == batch
    assert [type(one) for one in back] == [type(one) for one in batch]


def test_nested_values_come_back_as_their_classes() -> None:
    """Terms and unit states are named tuples again, not bare tuples."""
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
    full = [Ack("L", 1)] * codec.BATCH_MAX
    assert decode_batch(encode_batch(full)) == full
    with pytest.raises(ValueError, match="found 1025 messages, a batch holds at most 1024"):
        encode_batch([*full, full[0]])
    with pytest.raises(WireError, match="found an array of 1025 messages, allowed are at most 1024"):
        decode_batch(msgpack.packb([[12, "L", 1]] * 1025))


def test_read_only_properties_are_encoded() -> None:
    """Properties may be any mapping, not only a dict."""
    message = REQUEST._replace(properties=MappingProxyType({"a": "b"}))
    assert decode_message(encode_message(message)) == REQUEST._replace(properties={"a": "b"})


def test_what_is_no_message_is_not_encoded() -> None:
    """Encoding something else is the caller's mistake, and says so."""
    with pytest.raises(TypeError, match="Term is not a message"):
        encode_message(Term(1, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="found object, messages hold"):
        encode_message(Ack("L", object()))  # type: ignore[arg-type]
    with pytest.raises(OverflowError, match="found 18446744073709551616, integers have at most 64 bits"):
        encode_message(Ack("L", 2**64))
    with pytest.raises(UnicodeEncodeError):
        encode_message(OfferAnswer("d", 1, "\ud800"))
    assert decode_message(encode_message(Ack("L", 1))) == Ack("L", 1)


@given(st.text(max_size=30) | st.text(min_size=codec.TEXT_MAX, max_size=codec.TEXT_MAX + 9))
def test_clip_makes_any_text_fit(text: str) -> None:
    """Whatever a driver printed can travel as a reason once it is clipped; what fits is not changed."""
    clipped = codec.clip(text)
    assert decode_message(encode_message(OfferAnswer("d", 1, clipped))) == OfferAnswer("d", 1, clipped)
    if len(text) <= codec.TEXT_MAX and not any("\ud800" <= char <= "\udfff" for char in text):
        assert clipped == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lease": ""}, "message, RequestTicket: lease: found '', allowed is text of 1 to 80 characters"),
        ({"lease": "x" * 81}, "lease: found '" + "x" * 40 + "'... (81 characters), allowed is text of"),
        ({"lease": b"L1"}, "lease: found 2 bytes, allowed is text"),
        ({"number": -1}, "number: found -1 (int), allowed is an integer from 0 to 9223372036854775807"),
        ({"number": 2**63}, "number: found 9223372036854775808 (int)"),
        ({"number": True}, "number: found True (bool)"),
        ({"number": 7.0}, "number: found 7.0 (float)"),
        ({"op": ""}, "op: found '', allowed is text of 1 to 64 characters"),
        ({"slice": ""}, "slice: found ''"),
        ({"type": "t" * 129}, "type: found"),
        ({"units": 0}, "units: found 0 (int), allowed is an integer from 1 to 2147483647"),
        ({"units": 2**31}, "units: found 2147483648 (int)"),
        ({"units": True}, "units: found True (bool)"),
        ({"units": float("nan")}, "units: found nan (float)"),
        ({"units": "4"}, "units: found '4', allowed is an integer"),
        ({"units": None}, "units: found None (NoneType)"),
        ({"term": (20, 10)}, "term: term [20, 10) is reversed: its end must be later than its start"),
        ({"term": (10, 10)}, "term: term [10, 10) is empty"),
        ({"term": (-1, 10)}, "term: term [-1, 10) is out of range"),
        ({"term": (0, INSTANT_MAX + 1)}, "is out of range"),
        ({"term": (10,)}, "term: found an array of 1, allowed is a term"),
        ({"term": (10, 20.0)}, "term: found an array of 2, allowed is a term: an array of two integers"),
        ({"term": (False, True)}, "term: found an array of 2, allowed is a term: an array of two integers"),
        ({"term": 10}, "term: found 10 (int), allowed is a term"),
        ({"site": "s" * 129}, "site: found"),
        ({"properties": [["a", "b"]]}, "properties: found an array of 1, allowed is a map of at most 256 string pairs"),
        ({"properties": {"": "x"}}, "properties: found key '', allowed is text of 1 to 128 characters"),
        ({"properties": {"k" * 129: "x"}}, "properties: found key '"),
        ({"properties": {b"k": "x"}}, "properties: found key 1 bytes, allowed is text"),
        ({"properties": {"n": 4}}, "properties: found 4 (int) under 'n', allowed is text of at most 16384 characters"),
        ({"properties": {"n": "v" * 16_385}}, "(16385 characters) under 'n'"),
        ({"properties": {"n": nested(900)}}, "properties: found an array of 1 under 'n'"),
        ({"properties": {str(n): "" for n in range(257)}}, "properties: 257 exceeds max_map_len(256)"),
        ({"properties": {1: "x"}}, "properties: int is not allowed for map key"),
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
        (UPDATE, {"units": 3}, "LeaseUpdate: units: found something else than an array"),
        (UPDATE, {"units": [["u", "active", {}]]}, "units[0]: found 3 fields, the next one, 'reason', is missing"),
        (UPDATE, {"units": [UPDATE.units[0], 5]}, "units[1]: found 5 (int), allowed is an array of 4 to 64 fields"),
        (UPDATE, {"units": [["u", "active", {"a": 1}, ""]]}, "units[0]: properties: found 1 (int) under 'a'"),
        (UPDATE, {"units": [["u", "", {}, ""]]}, "units[0]: state: found ''"),
        (UPDATE, {"reason": "r" * 2049}, "reason: found"),
        (UPDATE, {"contract": b"c" * 4097}, "contract: found 4097 bytes, allowed is at most 4096 bytes"),
        (REDEEM, {"ticket": b"t" * 16_385}, "ticket: 16385 exceeds max_bin_len(16384)"),
        (REDEEM, {"victims": ["u", ""]}, "victims[1]: found ''"),
        (REDEEM, {"victims": "u"}, "victims: found something else than an array"),
    ],
)  # fmt: skip
def test_what_is_inside_a_list_is_named(message: Message, changes: dict[str, Any], text: str) -> None:
    """Errors inside unit states and victims say which item."""
    assert text in fault(raw(message, **changes))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "message: ends in the middle of a value"),
        (b"\x93\x0c\xa1L", "Ack: update: ends in the middle of a value"),
        (b"\x93\x0c\xa5L", "Ack: lease: ends in the middle of a value"),
        (b"\x93\x0c\xa1L\x01\x00", "message: 1 bytes follow its end"),
        (b"\x90", "message: found an empty array"),
        (b"\xc0", "message: found something else than an array"),
        (b"\xa1L", "message: found something else than an array"),
        (b"\x81\x0c\x01", "message: found something else than an array"),
        (b"\xc1", "message: found something else than an array"),
        (b"\x92\x0c\xc1", "Ack: lease: found the byte c1, which is not msgpack"),
        (b"\xdd\xff\xff\xff\xff\x0c", "message: found an array of 4294967295 fields, allowed are at most 64"),
        (b"\x93\xa1x\xa1L\x01", "message: found 'x', allowed is an integer, the message's kind"),
        (b"\x93\xc3\xa1L\x01", "message: found True (bool), allowed is an integer"),
        (b"\x93\xcb@(\x00\x00\x00\x00\x00\x00\xa1L\x01", "message: found 12.0 (float), allowed is an integer"),
        (b"\x92\x0c\xa1L", "Ack: found 1 fields, the next one, 'update', is missing"),
        (b"\x93\x0c\xa1L\xdb\xff\xff\xff\xff", "Ack: update: ends in the middle of a value"),
        (b"\x93\x0c\xa1L\xc6\xff\xff\xff\xff", "Ack: update: ends in the middle of a value"),
        (b"\x93\x0c\xa1L\xdd\xff\xff\xff\xff", "Ack: update: 4294967295 exceeds max_array_len(1024)"),
        (b"\x93\x0c\xa1L\xdf\xff\xff\xff\xff", "Ack: update: 4294967295 exceeds max_map_len(256)"),
        (b"\x93\x0c\xa1L\xc9\xff\xff\xff\xff\x05", "Ack: update: 0 exceeds max_ext_len(0)"),
        (b"\x93\x0c\xa1L\xd6\xff\x00\x00\x00\x00", "Ack: update: 5 exceeds max_ext_len(0)"),
        (b"\x93\x0c\xa1L" + b"\x91" * 3000, "Ack: update: arrays and maps are nested deeper than 8"),
        (b"\x95\x0c\xa1L\x01\xc4\x00" + b"\x91" * 6 + b"\x90", "Ack: found arrays and maps nested deeper than 8"),
        (b"\x95\x0c\xa1L\x01\xc4\x00" + b"\x91" * 3000, "Ack: arrays and maps are nested deeper than 8"),
        (b"\x95\x0c\xa1L\x01\xc4\x00\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "Ack: found NaN"),
        (b"\x95\x0c\xa1L\x01\xc4\x00\x82\xa1a\x01\xa1a\x02", "Ack: found a map that has the same key twice"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, text: str) -> None:
    """Truncated, trailing, oversized, too deep or ambiguous bytes are refused before they cost anything."""
    assert text in fault(data)


def test_duplicate_keys_are_refused_even_in_two_encodings() -> None:
    """The same key as a short and as a long string is one key: neither of its values is believed."""
    head = raw(REQUEST).split(b"\x81\xa7elastic")[0]
    doubled = head + b"\x82\xa1a\xa1x" + b"\xd9\x01a\xa1y" + b"\xc4\x00"
    assert fault(doubled) == "message, RequestTicket: properties: found a map that has the same key twice"


def test_a_batch_says_which_message() -> None:
    """In a batch the error counts the messages; one that is malformed spoils all of it."""
    data = codec.join_batch([encode_message(REQUEST), raw(REQUEST, units=0), encode_message(REQUEST)])
    with pytest.raises(WireError, match=r"^message 2 of 3, RequestTicket: units: found 0"):
        decode_batch(data)
    with pytest.raises(WireError, match=r"^batch: 1 bytes follow its end"):
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
    assert answer[:3] == ("L9", 4, "unknown_kind")
    assert "999" in answer.text


@pytest.mark.parametrize("fields", [[], [5], [b"L", -1], ["x" * 81, -1], ["x" * 81, True], [None, "n"]])
def test_unknown_kinds_without_lease_or_number(fields: list[Any]) -> None:
    """What can't be the lease and number of an unknown kind is not taken for them; it can be answered all the same."""
    data = msgpack.packb([-7, *fields])
    unknown = decode_message(data)
    assert unknown == codec._Careful(data).single() == UnknownKind(-7, "", 0)
    assert isinstance(unknown, UnknownKind)
    assert isinstance(decode_message(encode_message(unknown.answer())), ErrorReply)


@given(messages, st.lists(packable, max_size=3))
def test_extra_fields_are_ignored(message: Message, extras: list[Any]) -> None:
    """Fields that a newer peer adds change nothing, unless they are such that no version may send them."""
    kind = codec._HEADS[type(message)][0]
    data = msgpack.packb([kind, *message, *extras])
    try:
        for extra in extras:
            fields.inspect(msgpack.unpackb(msgpack.packb(extra), use_list=False))
    except ValueError:
        fault(data)
    else:
        assert decode_message(data) == message


def test_extra_fields_of_a_unit_are_ignored() -> None:
    """Parts of messages grow at their end as messages do."""
    data = raw(UPDATE, units=[[*UPDATE.units[0], "new", [1]]])
    assert decode_message(data) == codec._Careful(data).single() == UPDATE


def test_missing_fields_get_their_defaults() -> None:
    """An older peer leaves out the fields that have defaults; those without are missed."""
    shape = fields.Shape(
        UnitState, {"unit": fields.NAME, "state": fields.WORD, "properties": fields.PROPERTIES, "reason": fields.TEXT}
    )
    shape.defaults, shape.least = {"reason": "none given"}, 3
    assert shape.part(("u", "active", {})) == UnitState("u", "active", {}, "none given")
    with pytest.raises(ValueError, match="'properties', is missing"):
        shape.part(("u", "active"))


def test_a_table_that_differs_from_its_class_is_refused() -> None:
    """A field added to a message but not to the codec's table is found at import."""
    with pytest.raises(TypeError, match="Accepted has fields"):
        fields.Shape(Accepted, {"lease": fields.ID})


def test_large_updates_pass() -> None:
    """More units than the direct reader takes are read by the careful one, with the same result."""
    units = tuple(UnitState(f"u{n}", "active", {"ip": "10.0.0.1"}, "") for n in range(10_000))
    update = UPDATE._replace(units=units)
    assert decode_batch(encode_batch([update, Ack("L", 1)])) == [update, Ack("L", 1)]
    few = UPDATE._replace(units=tuple(UnitState("u", "a", {}, "") for _ in range(fields.WIDTH_MAX + 1)))
    assert len(encode_message(few)) < codec.DIRECT_MAX
    assert decode_message(encode_message(few)) == few


def test_lists_have_a_limit() -> None:
    """Victims and units beyond the limit are refused on sight of the array's header."""
    redeem = REDEEM._replace(victims=("u",) * codec.LIST_MAX)
    assert decode_message(encode_message(redeem)) == redeem
    text = fault(raw(redeem, victims=["u"] * (codec.LIST_MAX + 1)))
    assert text == "message, Redeem: victims: found an array of 12001 items, allowed are at most 12000"


def test_a_batch_has_a_limit_on_all_its_values() -> None:
    """Many messages, each within its limits, can't add up to more than the batch's limit."""
    part = REDEEM._replace(victims=("u",) * (codec.LIST_MAX // 3))
    assert len(decode_batch(encode_batch([part] * 3))) == 3
    with pytest.raises(WireError, match="message 4 of 4, Redeem: victims: found more than 60000 values in one batch"):
        decode_batch(encode_batch([part] * 4))
    unit = UnitState("u", "a", {str(n): "" for n in range(200)}, "")
    wide = UPDATE._replace(units=(unit,) * 300)
    with pytest.raises(WireError, match="found more than 60000 values"):
        decode_message(encode_message(wide))


def test_a_large_lease_fits() -> None:
    """The update of a lease of 2,000 units with 20 properties each is within all limits."""
    properties = {f"property-{n}": f"value of property {n}" for n in range(20)}
    units = tuple(UnitState(f"unit-{n}.site.example.org", "active", properties, "") for n in range(2000))
    update = UPDATE._replace(units=units)
    data = encode_batch([update])
    assert len(data) < FRAME_MAX - ENVELOPE_OVERHEAD
    assert decode_batch(data) == [update]


def test_fields_that_are_ignored_have_a_limit() -> None:
    """What is ignored is still looked into, so a batch can hold only so much of it."""
    extra = {"k": "v" * 16_000}
    fine = [msgpack.packb([12, "L", n, b"", extra]) for n in range(3)]
    assert len(decode_batch(codec.join_batch([*fine, encode_message(UPDATE)]))) == 4
    with pytest.raises(WireError, match="message 4 of 20, Ack: found more than 49152 bytes of fields"):
        decode_batch(codec.join_batch([msgpack.packb([12, "L", n, b"", extra]) for n in range(20)]))


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
    count = (FRAME_MAX - 4096) // (len(text.encode()) + 12)
    tables = [{f"k{i}": text for i in range(at, min(count, at + 250))} for at in range(0, count, 250)]
    return encode_batch([REQUEST._replace(properties=table) for table in tables])


@pytest.mark.parametrize("kind", ["map", "units"])
@pytest.mark.parametrize("text", ["a" * 16384, "é" * 16384, "漢" + "a" * 16000, "\U0001f600" * 16000, "漢" * 16000])
def test_a_full_frame_of_any_text_costs_little(text: str, kind: str) -> None:
    """Text of one width takes, with the frame itself, at most four times the largest frame."""
    data = full_frame(text)
    if kind == "units":
        units = tuple(UnitState(f"u{i}", "active", {"k": text[:200]}, "") for i in range(4000))
        data = encode_batch([UPDATE._replace(units=units)])
    assert len(data) + peak_of(lambda: decode_batch(data)) <= 4 * FRAME_MAX
    assert decode_batch(data)


@pytest.mark.parametrize("size", [16000, 150, 60])
def test_one_character_does_not_widen_a_frame(size: int) -> None:
    """Python gives each character of a text the width of its widest: a frame in which each text has one that is wide,
    which would take four times its size beside itself, is refused before that, wherever the texts are.
    """
    wide = "\U0001f600" + "a" * (size - 1)
    batches = [encode_batch([UPDATE._replace(units=tuple(
        UnitState(f"u{i}", "active", {f"k{j}": wide for j in range(10)}, "") for i in range(FRAME_MAX // (11 * size))
    ))])] if size < 16000 else [full_frame(wide)]  # fmt: skip
    for data in batches:
        refused: list[str] = []

        def decode(data: bytes = data, refused: list[str] = refused) -> None:
            with pytest.raises(WireError) as caught:
                decode_batch(data)
            refused.append(caught.value.text)

        assert len(data) + peak_of(decode) <= 4 * FRAME_MAX
        assert "beyond one for each character" in refused[0] or "values in one batch" in refused[0]


def peak_of(work: Callable[[], Any]) -> int:
    """The most memory that ``work`` takes, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200) | packable.map(msgpack.packb))
def test_garbage_is_refused_or_read_the_same_by_both_readers(data: bytes) -> None:
    """Whatever the bytes are, the only error is WireError, and the two readers agree."""

    def outcome(read: Any) -> Any:
        try:
            return read()
        except WireError as error:
            return error.text

    careful = outcome(lambda: codec._Careful(data).batch())
    assert outcome(lambda: decode_batch(data)) == careful
    assert outcome(lambda: decode_message(data)) == outcome(lambda: codec._Careful(data).single())


@given(messages, st.data())
def test_mutated_messages_are_refused_or_read_the_same_by_both_readers(message: Message, data: st.DataObject) -> None:
    """One changed, removed or added byte never gives another error, and never parts the readers."""
    good = encode_message(message)
    at = data.draw(st.integers(0, len(good) - 1))
    new = data.draw(st.binary(max_size=2))
    bad = good[:at] + new + good[at + data.draw(st.integers(0, 1)) :]
    results: list[Any] = []
    reads: list[Callable[[], Any]] = [lambda: decode_message(bad), lambda: codec._Careful(bad).single()]
    for read in reads:
        try:
            results.append(read())
        except WireError as error:
            results.append(error.text)
    assert results[0] == results[1]
    assert type(results[0]) is type(results[1])


@given(messages, packable, st.data())
def test_any_value_in_any_field_is_refused_or_kept(message: Message, value: Any, data: st.DataObject) -> None:
    """A field holds what its rule allows, or the whole message is refused with that field's name."""
    field = data.draw(st.sampled_from(message._fields))
    packed = raw(message, **{field: value})
    try:
        back = decode_message(packed)
    except WireError as error:
        assert f"{type(message).__name__}: {field}" in error.text
    else:
        assert encode_message(back) == packed  # type: ignore[arg-type]
