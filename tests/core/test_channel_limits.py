"""The channel: what may be written in two ways, and what its frames may cost before and while they are checked."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import pack
from typing import Any

import msgpack
import pytest
from test_channel import NOW, Pair, error, fields_of, frame, recorded, side, told

from leasekit.core.claims.signed import Keypair
from leasekit.core.protocol.channel import (
    FRAME_MAX,
    HANDSHAKE_FRAME_MAX,
    Channel,
    Established,
    Event,
    ReceivedBatch,
    State,
)

BOB = Keypair(bytes([2]) * 32)


def peak_of(work: Callable[[], Any]) -> int:
    """The most memory that ``work`` takes, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def opened() -> Channel:
    """A side whose other side has proven who it is."""
    return Pair().opened().bob


def fresh() -> Channel:
    """A side at the start of a handshake."""
    return side("bob", BOB, False)


@pytest.mark.parametrize("make", [fresh, opened])
@pytest.mark.parametrize("length", [2**32 - 1, 2**31, FRAME_MAX + 1])
def test_lengths_are_refused_before_anything_is_allocated(make: Callable[[], Channel], length: int) -> None:
    """Gigabytes that are announced end the connection when four bytes are in, and cost no more than the answer."""
    channel = make()
    ended: list[Event] = []
    assert peak_of(lambda: ended.extend(channel.receive_bytes(pack(">I", length)))) < 1_000_000
    assert error(ended).code == "too_large"
    assert channel.state is State.CLOSED


HEADERS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x05",
    "nested": b"\x91" * 2000,
    "wide and nested": b"\xdc\x00\x10" * 1000,
}


@pytest.mark.parametrize("make", [fresh, opened])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("before", [b"", b"\x95\x03\x01"], ids=["alone", "in_an_envelope"])
def test_headers_are_refused_before_anything_is_allocated(
    make: Callable[[], Channel], header: bytes, before: bytes
) -> None:
    """What a header inside a frame promises is not believed: neither its size nor its depth costs memory."""
    channel, body = make(), before + header
    ended: list[Event] = []
    data = pack(">I", len(body)) + body
    assert peak_of(lambda: ended.extend(channel.receive_bytes(data))) < 1_000_000
    assert error(ended).code == "malformed"


def test_a_frame_that_does_not_come_is_not_reserved() -> None:
    """A frame of the largest size of which only the beginning is there takes the room of its beginning."""
    channel = opened()
    assert peak_of(lambda: channel.receive_bytes(pack(">I", FRAME_MAX) + b"x" * 1000)) < 20_000
    assert channel.missing == FRAME_MAX - 1000
    assert channel.receive_bytes(b"x" * 1000) == []
    assert channel.missing == FRAME_MAX - 2000


def test_the_largest_envelope_costs_at_most_four_times_its_size() -> None:
    """From the first byte to the event, a frame of the largest size takes at most four times its size."""
    pair = Pair().opened()
    pair.alice.send_batch(b"x" * pair.alice.payload_max, NOW)
    data = pair.alice.bytes_to_send()
    events: list[Event] = []

    def receive() -> None:
        for at in range(0, len(data), 65_536):
            events.extend(pair.bob.receive_bytes(data[at : at + 65_536]))

    assert peak_of(receive) <= 4 * FRAME_MAX
    assert [type(event) for event in events] == [ReceivedBatch]


def test_missing_is_nothing_between_frames() -> None:
    """How much of a frame is to come is not known before its length is in, and nothing once it is complete."""
    channel = fresh()
    assert channel.missing == 0
    channel.receive_bytes(b"\0\0")
    assert channel.missing == 0
    channel.receive_bytes(b"\0\x09")
    assert channel.missing == 9
    assert Pair().opened().bob.missing == 0


def widened(data: bytes) -> bytes:
    """The one envelope in ``data`` with its integers in the widest form, which msgpack allows as well."""
    _, seq, sent_at, signature, payload = fields_of(data)
    body = b"\x95\xcf" + pack(">Q", 3) + b"\xcf" + pack(">Q", seq) + b"\xcf" + pack(">Q", sent_at)
    body += msgpack.packb(signature) + msgpack.packb(payload)
    assert len(body) > len(data) - 4
    return pack(">I", len(body)) + body


def test_integers_in_another_width_change_nothing() -> None:
    """An envelope whose integers are written wider is the same one: it takes effect once, whichever comes first."""
    pair, (first, second, _) = recorded()
    assert pair.bob.receive_bytes(widened(first)) == [ReceivedBatch(NOW, b"batch 0")]
    assert pair.bob.receive_bytes(second) == [ReceivedBatch(NOW, b"batch 1")]
    pair, (first, *_) = recorded()
    events = pair.bob.receive_bytes(first + widened(first))
    assert events[0] == ReceivedBatch(NOW, b"batch 0")
    assert error(events).code == "sequence"


def test_a_hello_in_another_width_is_another_hello() -> None:
    """Who rewrites a HELLO, though its values stay the same, ends the handshake: proofs cover the bytes as sent."""

    def widen(sender: str, data: bytes) -> bytes:
        if sender == "alice" and data[4:6] == b"\x96\x00":
            return pack(">I", len(data) - 4 + 1) + b"\x96\xcc\x00" + data[6:]
        return data

    pair = Pair().run(widen)
    assert "bad_proof" in {event.error.code for event in pair.to_alice + pair.to_bob if hasattr(event, "error")}
    assert not any(isinstance(event, Established) for event in pair.to_alice + pair.to_bob)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (1, 1.0),
        (2, float("nan")),
        (2, float(NOW)),
        (2, -1),
        (2, 2**64 - 1),
        (3, "s" * 64),
        (4, "text"),
        (4, None),
        (4, {}),
        (4, msgpack.ExtType(5, b"")),
        (4, msgpack.Timestamp(1)),
    ],
)
def test_values_of_other_types_are_no_envelope(position: int, value: Any) -> None:
    """Numbers with fractions, text for bytes, maps and extensions: the connection ends, and the peer hears why."""
    pair, (first, *_) = recorded()
    fields = fields_of(first)
    fields[position] = value
    ended = error(pair.bob.receive_bytes(frame(*fields)))
    assert ended.code == "malformed"
    assert told(pair.bob) is not None


@pytest.mark.parametrize("name", [b"\xa3\xed\xa0\x80", b"\xa1\xff", b"\xa4\xf4\x90\x80\x80"])
def test_names_that_are_not_unicode(name: bytes) -> None:
    """Surrogates and other bytes that are not UTF-8 are no name."""
    hello = b"\x96\x00" + msgpack.packb("leasekit") + b"\x91\x01" + name + msgpack.packb(b"k" * 32) * 2
    assert error(fresh().receive_bytes(pack(">I", len(hello)) + hello)).code == "malformed"


def test_tls_is_recognised() -> None:
    """Who begins with TLS where there is none is told so in a way that it can't take for TLS, as is the operator."""
    channel = fresh()
    ended = error(channel.receive_bytes(b"\x16\x03\x01\x02\x00\x01\x00"))
    assert ended.code == "tls"
    assert "tls must be the same on both sides" in str(ended)
    assert told(channel) == ("tls", str(ended))
    assert int.from_bytes(b"\x16\x03\x01\x02", "big") > HANDSHAKE_FRAME_MAX
