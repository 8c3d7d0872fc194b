"""The channel: two sides joined in memory, and every attack on what passes between them."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import packable

from leasekit.core.claims.signed import ED25519, UNSIGNED, Keypair, Scheme, Signer, UnsignedIdentity
from leasekit.core.protocol import channel as channels
from leasekit.core.protocol.channel import (
    Channel,
    ChannelError,
    Closed,
    Established,
    Event,
    Heartbeat,
    ReceivedBatch,
    State,
)

ALICE, BOB, MALLORY = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
KEYS = {"alice": ALICE.public, "bob": BOB.public}
NOW = 1_700_000_000_000


def side(name: str, signer: Signer, initiator: bool, **options: Any) -> Channel:
    """One side: alice dials bob unless ``options`` say otherwise."""
    values: dict[str, Any] = {
        "scheme": ED25519, "nonce": signer.public[::-1], "peers": KEYS.get, "expect": "bob" if initiator else None,
    }  # fmt: skip
    return Channel(me=signer, name=name, initiator=initiator, **(values | options))


class Pair:
    """Two channels joined in memory. What passes is kept, and can be changed on its way."""

    def __init__(self, alice: Channel | None = None, bob: Channel | None = None) -> None:
        self.alice = alice or side("alice", ALICE, True)
        self.bob = bob or side("bob", BOB, False)
        self.to_alice: list[Event] = []
        self.to_bob: list[Event] = []
        self.sent_by_alice: list[bytes] = []
        self.sent_by_bob: list[bytes] = []

    def run(self, change: Callable[[str, bytes], bytes] = lambda sender, data: data) -> Pair:
        """Pass bytes both ways until nothing is left; ``change`` gets the sender and the bytes."""
        while (first := self.alice.bytes_to_send()) + (second := self.bob.bytes_to_send()):
            self.sent_by_alice.append(first)
            self.sent_by_bob.append(second)
            self.to_bob += self.bob.receive_bytes(change("alice", first))
            self.to_alice += self.alice.receive_bytes(change("bob", second))
        return self

    def opened(self) -> Pair:
        """The pair with its handshake done, and forgotten."""
        self.run()
        assert self.to_alice == [Established("bob", BOB.public, 1)]
        assert self.to_bob == [Established("alice", ALICE.public, 1)]
        self.to_alice, self.to_bob = [], []
        return self


def frame(*fields: Any) -> bytes:
    """One frame on the wire."""
    body: bytes = msgpack.packb(fields)
    return pack(">I", len(body)) + body


def fields_of(data: bytes) -> list[Any]:
    """The fields of the one frame in ``data``."""
    found: list[Any] = msgpack.unpackb(data[4:])
    return found


def error(events: list[Event]) -> ChannelError:
    """The error that ended the connection: it is the last event, and the only one of its kind."""
    assert [isinstance(event, Closed) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, Closed)
    return last.error


def told(channel: Channel) -> tuple[str, str] | None:
    """What a channel tells the other side on its way out, if it does."""
    data = channel.bytes_to_send()
    if not data:
        return None
    tag, code, text = fields_of(data)
    assert tag == 2
    return code, text


def test_handshake_and_batches() -> None:
    """Both sides learn who the other is; batches and heartbeats arrive in order with the sender's time."""
    pair = Pair().opened()
    pair.alice.send_batch(b"one", NOW)
    pair.alice.ping(NOW + 1)
    pair.alice.send_batch(b"two", NOW + 2)
    pair.bob.send_batch(b"three", NOW - 5)
    pair.run()
    assert pair.to_bob == [ReceivedBatch(NOW, b"one"), Heartbeat(NOW + 1), ReceivedBatch(NOW + 2, b"two")]
    assert pair.to_alice == [ReceivedBatch(NOW - 5, b"three")]
    assert (pair.alice.peer, pair.bob.peer) == ("bob", "alice")
    assert (pair.alice.version, pair.bob.version) == (1, 1)


def test_one_byte_at_a_time() -> None:
    """How the stream is cut into pieces makes no difference."""
    pair = Pair()
    events: dict[str, list[Event]] = {"alice": [], "bob": []}

    def pump() -> None:
        while (first := pair.alice.bytes_to_send()) + (second := pair.bob.bytes_to_send()):
            for byte in first:
                events["bob"] += pair.bob.receive_bytes(bytes([byte]))
            for byte in second:
                events["alice"] += pair.alice.receive_bytes(bytes([byte]))

    pump()
    pair.alice.send_batch(b"x" * 300, NOW)
    pair.bob.ping(NOW)
    pump()
    assert events["bob"] == [Established("alice", ALICE.public, 1), ReceivedBatch(NOW, b"x" * 300)]
    assert events["alice"] == [Established("bob", BOB.public, 1), Heartbeat(NOW)]


def test_all_at_once() -> None:
    """The dialling side may send as soon as it is established: its proof and a batch can come in one piece."""
    alice, bob = side("alice", ALICE, True), side("bob", BOB, False)
    assert bob.receive_bytes(alice.bytes_to_send()) == []
    assert alice.receive_bytes(bob.bytes_to_send()) == [Established("bob", BOB.public, 1)]
    alice.send_batch(b"early", NOW)
    assert bob.receive_bytes(alice.bytes_to_send()) == [
        Established("alice", ALICE.public, 1),
        ReceivedBatch(NOW, b"early"),
    ]


def test_unsigned_scheme() -> None:
    """An unsigned world works the same way with empty signatures, and does not mix with a signed one."""
    one, two = UnsignedIdentity("alice"), UnsignedIdentity("bob")
    keys = {"alice": one.public, "bob": two.public}

    def unsigned(name: str, signer: Signer, initiator: bool, scheme: Scheme = UNSIGNED) -> Channel:
        return side(name, signer, initiator, scheme=scheme, peers=keys.get)

    pair = Pair(unsigned("alice", one, True), unsigned("bob", two, False)).run()
    pair.alice.send_batch(b"hello", NOW)
    pair.run()
    assert pair.to_bob == [Established("alice", one.public, 1), ReceivedBatch(NOW, b"hello")]
    mixed = Pair(unsigned("alice", one, True), unsigned("bob", two, False, ED25519)).run()
    assert error(mixed.to_bob).code == "bad_proof"


def test_the_highest_common_version_is_spoken() -> None:
    """Versions are negotiated: both sides come to the same one without another round trip."""
    pair = Pair(side("alice", ALICE, True, versions=(1, 2, 3, 7)), side("bob", BOB, False, versions=(2, 3, 5))).run()
    assert pair.to_alice == [Established("bob", BOB.public, 3)]
    assert pair.to_bob == [Established("alice", ALICE.public, 3)]


def test_no_common_version() -> None:
    """Without a common version both sides end with an error that lists the versions of both."""
    pair = Pair(side("alice", ALICE, True, versions=(3, 4))).run()
    assert error(pair.to_bob).code == "version"
    assert str(error(pair.to_bob)) == "'alice' speaks versions [3, 4], 'bob' speaks [1]: none in common"
    assert error(pair.to_alice).code == "refused"
    assert "'version'" in str(error(pair.to_alice))


def changed(sender: str, tag: int, position: int, value: Any) -> Callable[[str, bytes], bytes]:
    """Replace one field of the frames with ``tag`` that ``sender`` sends."""

    def change(by: str, data: bytes) -> bytes:
        out, at = b"", 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            fields = fields_of(data[at:end])
            if by == sender and fields[0] == tag:
                fields[position] = value(fields[position]) if callable(value) else value
            out, at = out + frame(*fields), end
        return out

    return change


@pytest.mark.parametrize("sender", ["alice", "bob"])
def test_downgrade_fails(sender: str) -> None:
    """Who strikes the better version from a HELLO on its way gets no connection: the transcripts differ."""
    both = {"versions": (1, 2)}
    pair = Pair(side("alice", ALICE, True, **both), side("bob", BOB, False, **both)).run(changed(sender, 0, 2, [1]))
    deceived = pair.to_alice if sender == "bob" else pair.to_bob
    assert error(deceived).code == "bad_proof"
    assert not any(isinstance(event, Established) for event in pair.to_alice + pair.to_bob)


@pytest.mark.parametrize("sender", ["alice", "bob"])
def test_changed_nonce_fails(sender: str) -> None:
    """The proof covers both nonces as they were sent."""
    pair = Pair().run(changed(sender, 0, 5, b"n" * 32))
    assert "bad_proof" in {event.error.code for event in pair.to_alice + pair.to_bob if isinstance(event, Closed)}
    assert not any(isinstance(event, Established) for event in pair.to_alice + pair.to_bob)


@pytest.mark.parametrize("sender", ["alice", "bob"])
def test_changed_proof_fails(sender: str) -> None:
    """A proof that does not verify ends the connection, and the stranger is told nothing."""
    pair = Pair().run(changed(sender, 1, 1, b"s" * 64))
    deceived, channel = (pair.to_bob, pair.bob) if sender == "alice" else (pair.to_alice, pair.alice)
    assert error(deceived).code == "bad_proof"
    assert told(channel) is None


@pytest.mark.parametrize("value", [None, 7, "s", b"", b"s" * 63])
def test_proofs_of_other_shapes_fail(value: Any) -> None:
    """A proof that is no signature at all fails like a wrong one."""
    pair = Pair().run(changed("alice", 1, 1, value))
    assert error(pair.to_bob).code == "bad_proof"


def test_unknown_peer() -> None:
    """A name that isn't known is refused, and told so."""
    pair = Pair(side("mallory", MALLORY, True)).run()
    ended = error(pair.to_bob)
    assert ended.code == "unknown_peer"
    assert "'mallory'" in str(ended)
    assert "not known to 'bob'" in str(ended)
    assert "not known to 'bob'" in str(error(pair.to_alice))


def test_another_name_fails() -> None:
    """A peer that uses another's name has not the key that is pinned; it does not learn that the name is known."""
    pair = Pair(side("alice", MALLORY, True)).run()
    ended = error(pair.to_bob)
    assert ended.code == "wrong_key"
    assert "'alice' has key" in str(ended)
    assert "'unknown_peer'" in str(error(pair.to_alice))


def test_another_name_with_its_key_fails() -> None:
    """Who claims another's name and key can't sign the handshake."""

    class Thief:
        public = ALICE.public

        def sign(self, data: bytes) -> bytes:
            return MALLORY.sign(data)

    pair = Pair(side("alice", Thief(), True)).run()
    assert error(pair.to_bob).code == "bad_proof"


def test_wrong_peer_at_the_address() -> None:
    """Who dials one peer and finds another, though a known one, hangs up without a proof."""
    keys = {**KEYS, "carol": MALLORY.public}
    alice = side("alice", ALICE, True, peers=keys.get)
    pair = Pair(alice, side("carol", MALLORY, False)).run()
    assert error(pair.to_alice).code == "wrong_peer"
    assert str(error(pair.to_alice)) == "dialled 'bob', found 'carol' at its address"
    assert told(alice) is None


def test_talking_to_oneself() -> None:
    """An actor that dials its own address says so."""
    pair = Pair(side("bob", BOB, True, expect=None)).run()
    assert error(pair.to_bob).code == "self"
    assert "connected to itself" in str(error(pair.to_bob))


def test_a_reflected_handshake_fails() -> None:
    """Who sends a side's own frames back to it is not taken for a peer."""
    alice = side("alice", ALICE, True, expect=None)
    assert error(alice.receive_bytes(alice.bytes_to_send())).code == "self"


def test_a_proof_is_of_one_direction() -> None:
    """Bob's proof, sent back to bob as alice's, does not verify even if alice's key were his."""
    bob = side("bob", BOB, False, peers=lambda name: MALLORY.public)
    mallory = side("mallory", MALLORY, True)
    bob.receive_bytes(mallory.bytes_to_send())
    answer = bob.bytes_to_send()
    hello_end = 4 + int.from_bytes(answer[:4], "big")
    assert error(bob.receive_bytes(answer[hello_end:])).code == "bad_proof"


def test_binding_must_agree() -> None:
    """What carries the connection is part of the handshake: two TLS connections joined in the middle differ."""
    pair = Pair(side("alice", ALICE, True, binding=b"one"), side("bob", BOB, False, binding=b"two")).run()
    assert error(pair.to_alice).code == "bad_proof"
    pair = Pair(side("alice", ALICE, True, binding=b"one"), side("bob", BOB, False, binding=b"one")).opened()


def recorded(count: int = 3) -> tuple[Pair, list[bytes]]:
    """An open pair, and envelopes of alice that are on their way."""
    pair = Pair().opened()
    envelopes = []
    for number in range(count):
        pair.alice.send_batch(b"batch %d" % number, NOW)
        envelopes.append(pair.alice.bytes_to_send())
    return pair, envelopes


def test_replayed_envelope_fails() -> None:
    """The same envelope twice ends the connection after its first effect, and the peer is told why."""
    pair, (first, *_) = recorded()
    events = pair.bob.receive_bytes(first + first)
    assert events[0] == ReceivedBatch(NOW, b"batch 0")
    assert error(events).code == "sequence"
    assert str(error(events)) == "found envelope 1, due is 2: repeated, lost or out of order"
    assert told(pair.bob) == ("sequence", str(error(events)))


def test_reordered_envelopes_fail() -> None:
    """The second before the first is refused."""
    pair, (first, second, _) = recorded()
    assert error(pair.bob.receive_bytes(second + first)).code == "sequence"


def test_dropped_envelope_is_noticed() -> None:
    """An envelope that was left out is missed at the next one."""
    pair, (first, _, third) = recorded()
    assert error(pair.bob.receive_bytes(first + third)).code == "sequence"


def test_reflected_envelope_fails() -> None:
    """Alice's own envelope, sent back to her, is not bob's."""
    pair, (first, *_) = recorded()
    assert error(pair.alice.receive_bytes(first)).code == "bad_signature"


def test_envelope_of_another_connection_fails() -> None:
    """What was recorded on one connection is worth nothing on another between the same two."""
    _, (first, *_) = recorded()
    other = Pair(side("alice", ALICE, True, nonce=b"m" * 32)).opened()
    assert error(other.bob.receive_bytes(first)).code == "bad_signature"
    fresh_bob = Pair(bob=side("bob", BOB, False, nonce=b"m" * 32)).opened()
    assert error(fresh_bob.bob.receive_bytes(first)).code == "bad_signature"


def test_a_whole_recorded_connection_fails() -> None:
    """All that alice once sent, played to bob again, ends at the handshake: his nonce is another."""
    pair = Pair().opened()
    pair.alice.send_batch(b"batch", NOW)
    stream = b"".join(pair.sent_by_alice) + pair.alice.bytes_to_send()
    again = side("bob", BOB, False, nonce=b"m" * 32)
    assert error(again.receive_bytes(stream)).code == "bad_proof"
    same = side("bob", BOB, False)
    assert [type(event) for event in same.receive_bytes(stream)] == [Established, ReceivedBatch]


@pytest.mark.parametrize(
    ("position", "value", "code"),
    [
        (1, 2, "sequence"),
        (1, 0, "sequence"),
        (1, 2**63, "sequence"),
        (1, True, "malformed"),
        (1, "1", "malformed"),
        (2, NOW + 1, "bad_signature"),
        (2, -1, "malformed"),
        (2, 2**53, "malformed"),
        (2, 1.5, "malformed"),
        (2, None, "malformed"),
        (3, b"s" * 64, "bad_signature"),
        (3, b"", "bad_signature"),
        (3, "s", "malformed"),
        (4, b"batch 1", "bad_signature"),
        (4, b"", "bad_signature"),
        (4, "batch 0", "malformed"),
        (4, [], "malformed"),
    ],
)
def test_altered_envelopes_fail(position: int, value: Any, code: str) -> None:
    """Every field of an envelope is covered by its signature and limits."""
    pair, (first, *_) = recorded()
    events = pair.bob.receive_bytes(changed("alice", 3, position, value)("alice", first))
    assert len(events) == 1
    assert error(events).code == code
    assert told(pair.bob) == (code, str(error(events)))


@pytest.mark.parametrize("value", [[[]], {}, None, 0])
def test_what_follows_the_known_fields_is_ignored(value: Any) -> None:
    """A newer peer may add to envelopes; a map would be refused before it costs anything."""
    pair, (first, *_) = recorded()
    longer = frame(*fields_of(first), value)
    assert pair.bob.receive_bytes(longer) == [ReceivedBatch(NOW, b"batch 0")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n", "too_large"),
        (b"\x00\x00\x10\x01", "too_large"),
        (b"\x00\x00\x00\x00", "malformed"),
        (b"\x00\x00\x00\x01\xc1", "malformed"),
        (b"\x00\x00\x00\x02\xc0\xc0", "malformed"),
        (b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff", "malformed"),
        (b"\x00\x00\x0f\xff" + b"\x91" * 4095, "malformed"),
        (frame(), "malformed"),
        (frame("leasekit"), "malformed"),
        (frame(False, "leasekit"), "malformed"),
        (frame(1, b"s" * 64), "out_of_turn"),
        (frame(3, 1, 0, b"", b""), "out_of_turn"),
        (frame(9), "out_of_turn"),
        (frame(0), "not_leasekit"),
        (frame(0, "otherkit", [1], "alice", ALICE.public, b"n" * 32), "not_leasekit"),
        (frame(0, "leasekit", [1], "alice", ALICE.public), "malformed"),
        (frame(0, "leasekit", 1, "alice", ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1.0], "alice", ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", list(range(17)), "alice", ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1], "", ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1], "a" * 129, ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1], b"alice", ALICE.public, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1], "alice", b"k" * 31, b"n" * 32), "malformed"),
        (frame(0, "leasekit", [1], "alice", ALICE.public, b"n" * 33), "malformed"),
    ],
)
def test_bad_beginnings(data: bytes, code: str) -> None:
    """What is no HELLO ends the connection with a clear code, and is not answered."""
    bob = side("bob", BOB, False)
    ended = error(bob.receive_bytes(data))
    assert ended.code == code
    assert len(str(ended)) < 400
    assert told(bob) is None
    assert bob.state is State.CLOSED
    assert bob.receive_bytes(data) == []


def test_hello_ignores_what_follows() -> None:
    """A newer peer may add fields to its HELLO."""
    alice, bob = side("alice", ALICE, True), side("bob", BOB, False)
    alice._hello = msgpack.packb([*fields_of(alice.bytes_to_send()), "newer", 7])
    alice._send_frame(alice._hello)
    pair = Pair(alice, bob).opened()
    assert pair.bob.state is State.OPEN


@pytest.mark.parametrize(
    "frames", [frame(0, "leasekit"), frame(1, b"s"), frame(3, 1, 5), frame(7), frame("x"), b"\x00\x00\x00\x01\xc1"]
)
def test_wrong_frames_on_an_open_connection(frames: bytes) -> None:
    """A proven peer that sends what is not due is hung up on, and told why."""
    pair = Pair().opened()
    ended = error(pair.bob.receive_bytes(frames))
    assert ended.code in ("out_of_turn", "malformed")
    assert told(pair.bob) == (ended.code, str(ended))


def test_oversized_frames_are_refused_by_their_length() -> None:
    """A frame that announces too much is refused when its length is in, on an open connection too."""
    pair = Pair().opened()
    ended = error(pair.bob.receive_bytes(pack(">I", channels.FRAME_MAX + 1)))
    assert str(ended) == f"found a frame of {4 * 2**20 + 1} bytes, allowed are at most {4 * 2**20}"
    assert told(pair.bob) == ("too_large", str(ended))


def test_the_largest_payload_passes() -> None:
    """A payload of the stated limit fits in a frame of the limit; one byte more is the sender's own error."""
    options = {"frame_max": 5000}
    pair = Pair(side("alice", ALICE, True, **options), side("bob", BOB, False, **options)).opened()
    assert pair.alice.payload_max == 5000 - channels.ENVELOPE_OVERHEAD
    with pytest.raises(ValueError, match="found a payload of 4873 bytes, at most 4872 fit"):
        pair.alice.send_batch(b"x" * 4873, NOW)
    pair.alice.send_batch(b"x" * 4872, NOW)
    pair.run()
    assert pair.to_bob == [ReceivedBatch(NOW, b"x" * 4872)]


def test_a_large_batch_in_pieces() -> None:
    """Megabytes in pieces are put together without keeping more than the frame."""
    pair = Pair().opened()
    payload = bytes(range(256)) * 8192
    pair.alice.send_batch(payload, NOW)
    data = pair.alice.bytes_to_send()
    events: list[Event] = []
    for at in range(0, len(data), 65_536):
        events += pair.bob.receive_bytes(data[at : at + 65_536])
        assert len(pair.bob._in) <= len(data)
    assert events == [ReceivedBatch(NOW, payload)]
    assert len(pair.bob._in) == 0


def test_close_tells_the_other_side() -> None:
    """A side that hangs up says why; the reason of a peer is shown as a literal, never as it is."""
    pair = Pair().opened()
    pair.alice.close("stopping", "back \x1b[2J soon")
    pair.run()
    ended = error(pair.to_bob)
    assert ended.code == "refused"
    assert str(ended) == "the other side hung up: 'stopping': 'back \\x1b[2J soon'"
    with pytest.raises(ValueError, match="CLOSED: it must be OPEN"):
        pair.alice.send_batch(b"x", NOW)
    pair.alice.close("again", "")
    assert pair.alice.bytes_to_send() == b""


@pytest.mark.parametrize("fields", [(2, b"c", "t"), (2, "c", 5), (2, "c" * 65, "t"), (2, "c", "t" * 2049)])
def test_malformed_goodbyes(fields: tuple[Any, ...]) -> None:
    """A goodbye that is not a code and a text is malformed; it ends the connection all the same."""
    assert error(side("bob", BOB, False).receive_bytes(frame(*fields))).code == "malformed"
    assert error(side("bob", BOB, False).receive_bytes(frame(2))).code == "refused"


def test_sending_too_early() -> None:
    """Nothing can be sent before the other side has proven who it is."""
    with pytest.raises(ValueError, match="HELLO_DUE: it must be OPEN"):
        side("alice", ALICE, True).send_batch(b"x", NOW)


@pytest.mark.parametrize("options", [{"nonce": b"short"}, {"name": ""}, {"name": "n" * 129}])
def test_unusable_arguments(options: dict[str, Any]) -> None:
    """Arguments that can't be used are the caller's error."""
    values: dict[str, Any] = {"me": ALICE, "name": "alice", "nonce": b"n" * 32}
    with pytest.raises(ValueError, match="found"):
        Channel(**(values | options), scheme=ED25519, peers=KEYS.get, initiator=True)


def some_frames() -> st.SearchStrategy[bytes]:
    """Frames with any content, most of them with a tag that means something."""
    tagged = st.tuples(st.sampled_from([0, 1, 2, 3, 3]), st.lists(packable, max_size=6)).map(
        lambda parts: frame(parts[0], *parts[1])
    )
    hello = st.tuples(st.just("leasekit"), packable, packable, packable, packable).map(lambda rest: frame(0, *rest))
    return st.one_of(tagged, hello, packable.map(lambda value: frame(value)), st.binary(max_size=40))


@given(st.booleans(), st.lists(some_frames(), max_size=6), st.integers(1, 64))
def test_garbage_only_ever_ends_the_connection(opened: bool, frames: list[bytes], step: int) -> None:
    """Whatever comes, before or after the handshake, the worst is one Closed; what is kept stays within what came."""
    bob = Pair().opened().bob if opened else side("bob", BOB, False)
    stream, events = b"".join(frames), []
    for at in range(0, len(stream), step):
        events += bob.receive_bytes(stream[at : at + step])
        assert len(bob._in) <= (channels.FRAME_MAX if opened else channels.HANDSHAKE_FRAME_MAX + 4 + step)
    assert all(isinstance(event, Closed) for event in events)
    assert len(events) <= 1
    assert (bob.state is State.CLOSED) == bool(events)


@given(st.data())
def test_one_changed_byte_never_passes(data: st.DataObject) -> None:
    """Flipping any byte of an envelope never delivers anything else than what was sent."""
    pair, (first, *_) = recorded(1)
    at = data.draw(st.integers(0, len(first) - 1))
    flip = data.draw(st.integers(1, 255))
    bad = first[:at] + bytes([first[at] ^ flip]) + first[at + 1 :]
    events = pair.bob.receive_bytes(bad)
    assert not any(isinstance(event, (ReceivedBatch, Heartbeat)) for event in events)
