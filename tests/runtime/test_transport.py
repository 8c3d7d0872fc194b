"""The transport over real sockets: Unix sockets in a temporary directory, TCP on the loopback with any free port."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from polling import PATIENCE, poll
from transport_nodes import KEYS, NOW, TCP, Node, Raw, couple, unix

from leasekit.core.claims.signed import ED25519
from leasekit.core.protocol import codec
from leasekit.core.protocol.channel import Heartbeat
from leasekit.core.protocol.messages import BATCH_MAX, Accepted, Ack, ErrorReply, Message, OfferAnswer
from leasekit.core.reasons import Code, Reason, said
from leasekit.runtime.peers import ENVELOPE_FULL, PeerAddress
from leasekit.runtime.sockets import Endpoint, Stalls, TransportError, parse_endpoint
from leasekit.runtime.transport import Transport


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:/run/site.sock", Endpoint(path="/run/site.sock")),
        ("unix:site.sock", Endpoint(path="site.sock")),
        ("tcp://127.0.0.1:7000", Endpoint(host="127.0.0.1", port=7000)),
        ("tcp://broker.example.org:0", Endpoint(host="broker.example.org", port=0)),
        ("tcp://[::1]:65535", Endpoint(host="::1", port=65535)),
        ("tcp://[::1]:65535?tls=false", Endpoint(host="::1", port=65535, tls=False)),
    ],
)
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    """An endpoint is read from its text, and written back the same."""
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "'' is not an address, allowed is unix:PATH or tcp://HOST:PORT"),
        ("localhost:7000", "is not an address"),
        ("http://localhost:7000", "is not an address"),
        ("tcp://localhost", "is not an address"),
        ("tcp://:7000", "is not an address"),
        ("tcp://::1:7000", "is not an address"),
        ("tcp://a b:7000", "is not an address"),
        ("tcp://h:7000/x", "is not an address"),
        ("tcp://h:65536", "found port 65536, allowed is 0 to 65535"),
        ("tcp://h:-1", "is not an address"),
        ("tcp://h:1?tls=true", "is not an address"),
        ("unix:", "found a path of 0 bytes, allowed are 1 to 107"),
        ("unix:" + "p" * 108, "found a path of 108 bytes"),
        ("unix:a\0b", "is not an address"),
    ],
)
def test_bad_endpoints(text: str, found: str) -> None:
    """What is no endpoint is named, with what is allowed."""
    with pytest.raises(ValueError, match=r"allowed (is|are)") as caught:
        parse_endpoint(text)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        (["alice"], "peer 'alice': the name is taken"),
        (["bob", "bob"], "peer 'bob': the name is taken"),
    ],
)
def test_names_are_unique(peers: list[str], text: str) -> None:
    """Neither two peers nor a peer and the actor can have one name."""
    addresses = [PeerAddress(peer, KEYS[peer].public) for peer in peers]
    with pytest.raises(ValueError, match=text):
        Transport("alice", KEYS["alice"], ED25519, addresses, [], clock=lambda: 0, on_receive=nothing)


async def nothing(peer: str, messages: list[Message], size: int) -> None:
    """Hear nothing."""


async def test_messages_over_unix_sockets(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Messages arrive in order, with the sender's name, both ways."""
    alice, bob = await couple(nursery, tmp_path)
    alice.transport.send("bob", [Ack("L", 1), Accepted("L", 1)])
    bob.transport.send("alice", [Ack("L", 3)])
    await bob.until(lambda: len(bob.heard) == 2)
    await alice.until(lambda: len(alice.heard) == 1)
    assert bob.batches == [("alice", [Ack("L", 1), Accepted("L", 1)])]
    assert [type(message) for message in bob.heard] == [Ack, Accepted]
    assert alice.batches == [("bob", [Ack("L", 3)])]


async def test_messages_over_tcp(nursery: trio.Nursery) -> None:
    """The same over TCP, with a port that the system chose."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    assert bob.transport.bound[0].port > 0
    alice = await Node("alice", {"bob": bob.transport.bound[0]}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    (status,) = bob.transport.status()
    assert (status.peer, status.connected, status.received, status.problem) == ("alice", True, 1, "")
    assert bob.transport.connected("alice")
    assert not bob.transport.connected("carol")


async def test_what_is_queued_goes_in_one_envelope(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Hundreds of messages sent in one go cost one envelope, and are heard in one call."""
    alice, bob = await couple(nursery, tmp_path)
    for number in range(500):
        alice.transport.send("bob", [Ack("L", number)])
    await bob.until(lambda: len(bob.batches) == 1)
    assert bob.heard == [Ack("L", number) for number in range(500)]
    assert alice.transport.status()[0].sent == 500


async def test_long_queues_are_split(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Batches stay within their limits, in bytes and in messages; none is lost between them."""
    alice, bob = await couple(nursery, tmp_path)
    wide: list[Message] = [OfferAnswer("d", number, said("x" * 2000)) for number in range(300)]
    many: list[Message] = [Ack("L", number) for number in range(BATCH_MAX + 1)]
    alice.transport.send("bob", wide + many)
    await bob.until(lambda: len(bob.heard) == 301 + BATCH_MAX)
    assert bob.heard == wide + many
    assert all(len(codec.encode_batch(batch)) <= ENVELOPE_FULL for _, batch in bob.batches)


@pytest.mark.parametrize("attempt", range(5))
async def test_both_sides_dial(nursery: trio.Nursery, tmp_path: Path, attempt: int) -> None:
    """Two actors that dial each other at once come to keep the same connection, and it works both ways."""
    alice_at, bob_at = unix(tmp_path / "a.sock"), unix(tmp_path / "b.sock")
    nodes = [Node("bob", {"alice": alice_at}, [bob_at]), Node("alice", {"bob": bob_at}, [alice_at])]
    async with trio.open_nursery() as starting:
        for node in nodes[:: 1 - 2 * (attempt % 2)]:
            starting.start_soon(node.start, nursery)
    bob, alice = nodes
    number = 0

    def is_one() -> bool:
        ours, theirs = alice.transport._peers["bob"].link, bob.transport._peers["alice"].link
        return ours is not None and theirs is not None and ours.channel._session == theirs.channel._session

    with trio.fail_after(PATIENCE):
        while number < 20 or not is_one():  # what is sent by the other connection may be lost
            await bob.until(lambda: bob.transport.connected("alice"))
            await alice.until(lambda: alice.transport.connected("bob"))
            alice.transport.send("bob", [Ack("L", number)])
            bob.transport.send("alice", [Ack("M", number)])
            await trio.sleep(0.005)
            number += 1
    alice.transport.send("bob", [Ack("L", number)])
    bob.transport.send("alice", [Ack("M", number)])
    await bob.until(lambda: Ack("L", number) in bob.heard)
    await alice.until(lambda: Ack("M", number) in alice.heard)
    assert is_one()


async def test_a_peer_that_restarts_is_dialled_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A stop is told to the peer; when the daemon is back, so is the connection."""
    alice, bob = await couple(nursery, tmp_path)
    bob.transport.send("alice", [Ack("L", 0)])
    await alice.until(lambda: alice.heard == [Ack("L", 0)])
    await bob.stop()
    await alice.until(lambda: len(alice.losses) == 1)
    assert alice.losses == [("bob", "the other side hung up: 'stopping': 'the actor stops'")]
    again = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    await alice.until(lambda: alice.connects == ["bob", "bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await again.until(lambda: again.heard == [Ack("L", 1)])


async def test_a_peer_that_is_not_there_yet(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Dialling goes on until the peer is there; until then its status says why not, and messages are dropped."""
    alice = await Node("alice", {"bob": unix(tmp_path / "bob.sock")}, []).start(nursery)
    await poll(lambda: "No such file" in alice.transport.status()[0].problem)
    alice.transport.send("bob", [Ack("L", 1)])
    assert alice.transport.status()[0].dropped == 1
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    await bob.until(lambda: bob.connects == ["alice"])
    await alice.until(lambda: alice.connects == ["bob"])
    assert alice.transport.status()[0].problem == ""


async def test_messages_to_nobody_are_dropped(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A name that is not configured is logged, not an error."""
    alice, _ = await couple(nursery, tmp_path)
    alice.transport.send("dave", [Ack("L", 1)])
    assert "1 messages for 'dave' dropped: no such peer is configured" in caplog.text


async def test_what_can_not_be_sent_is_dropped_alone(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A text that is not Unicode, a number too large, a message too long: the others go."""
    alice, bob = await couple(nursery, tmp_path, frame_max=8000)
    bad: list[Message] = [
        OfferAnswer("d", 1, Reason(Code.SAID, detail="\ud800")),
        Ack("L", 2**64),
        OfferAnswer("d", 1, Reason(Code.SAID, detail="x" * 9000)),
    ]
    alice.transport.send("bob", [*bad, Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert alice.transport.status()[0].dropped == 3
    assert "OfferAnswer can't be encoded" in caplog.text
    assert re.search(r"OfferAnswer has 90\d\d bytes, at most 7869 fit in a frame", caplog.text)


async def test_backpressure(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A peer that does not read fills its own queue up to the limit, and gets on when it reads again."""
    alice, bob = await couple(nursery, tmp_path, queue_max=100_000)
    bob.gate = trio.Event()
    message = OfferAnswer("d", 1, said("x" * 2000))
    while alice.transport.status()[0].dropped == 0:
        alice.transport.send("bob", [message] * 20)
        await trio.sleep(0)
    status = alice.transport.status()[0]
    assert 0 < status.queued_bytes <= 100_000
    assert len(bob.batches) == 1
    assert caplog.text.count("its queue is full") == 1
    bob.gate.set()
    await bob.until(
        lambda: len(bob.heard) == alice.transport.status()[0].sent and alice.transport.status()[0].queued_bytes == 0
    )
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard[-1] == Ack("L", 1))


@pytest.mark.parametrize("offset", [-60_000, -2001, 2001, 60_000])
async def test_a_clock_that_is_off(nursery: trio.Nursery, tmp_path: Path, offset: int, caplog: Any) -> None:
    """A peer whose clock is too far off is reported once and not obeyed, until its clock is right."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    await raw.send(codec.encode_batch([Ack("L", 1)]), NOW + offset)
    await raw.send(codec.encode_batch([Ack("L", 2)]), NOW + offset)
    await raw.send(codec.encode_batch([Ack("L", 3)]), NOW)
    await bob.until(lambda: bool(bob.heard))
    assert bob.heard == [Ack("L", 3)]
    assert caplog.text.count(f"the clock of alice differs by {offset} ms") == 1


@pytest.mark.parametrize("offset", [-2000, 0, 2000])
async def test_a_clock_that_is_close(nursery: trio.Nursery, tmp_path: Path, offset: int) -> None:
    """Up to the allowed skew a peer is obeyed."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    await raw.send(codec.encode_batch([Ack("L", 1)]), NOW + offset)
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert not bob.transport.clocks_off


async def test_waiting_here_is_no_skew(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A batch that lay unread for a minute because this actor was busy is obeyed: its sender's clock is right."""
    alice, bob = await couple(nursery, tmp_path)
    bob.gate = trio.Event()
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: len(bob.heard) == 1)
    alice.transport.send("bob", [Ack("L", 2)])
    await poll(lambda: alice.transport.status()[0].sent == 2)
    bob.now += 60_000
    bob.gate.set()
    await bob.until(lambda: len(bob.heard) == 2)
    assert not bob.transport.clocks_off


async def listening(nursery: trio.Nursery, tmp_path: Path) -> tuple[Node, Raw]:
    """Bob, who waits for what alice says, and alice."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    await trio.testing.wait_all_tasks_blocked()
    return bob, raw


async def test_a_stall_of_this_process_is_no_skew(nursery: trio.Nursery, tmp_path: Path) -> None:
    """What came while another task held the loop for half a minute is obeyed; what comes late after it is not."""
    bob, raw = await listening(nursery, tmp_path)
    raw.write(codec.encode_batch([Ack("L", 1)]))
    bob.pass_time(30)
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert not bob.transport.clocks_off
    await trio.testing.wait_all_tasks_blocked()
    raw.write(codec.encode_batch([Ack("L", 2)]), NOW)
    await poll(lambda: bob.transport.clocks_off == {"alice": -30_000})
    raw.write(codec.encode_batch([Ack("L", 3)]), NOW + 30_000)
    await bob.until(lambda: bob.heard[1:] == [Ack("L", 3)])
    assert not bob.transport.clocks_off


async def test_a_stall_hides_no_clock_that_is_ahead(nursery: trio.Nursery, tmp_path: Path) -> None:
    """However long this process was not there, what will be sent in the future can't have come."""
    bob, raw = await listening(nursery, tmp_path)
    raw.write(codec.encode_batch([Ack("L", 1)]), NOW + 32_001)
    bob.pass_time(30)
    await poll(lambda: bob.transport.clocks_off == {"alice": 2_001})
    assert bob.heard == []


async def test_what_its_sender_could_not_get_rid_of_is_no_skew(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A peer that was not read for a minute, and sends the rest of what it had to say then, is obeyed."""
    bob, raw = await listening(nursery, tmp_path)
    bob.gate = trio.Event()
    raw.write(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    bob.pass_time(60)
    bob.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    raw.write(codec.encode_batch([Ack("L", 2)]))
    await bob.until(lambda: len(bob.heard) == 2)
    assert not bob.transport.clocks_off


async def test_a_long_way_of_a_long_frame_is_no_skew(nursery: trio.Nursery, tmp_path: Path) -> None:
    """The age of an envelope counts from its first byte."""
    bob, raw = await listening(nursery, tmp_path)
    raw.channel.send_batch(codec.encode_batch([OfferAnswer("d", 1, said("x" * 2000))]), NOW)
    data = raw.channel.bytes_to_send()
    await raw.stream.send_all(data[:1000])
    await trio.testing.wait_all_tasks_blocked()
    bob.now += 30_000
    await raw.stream.send_all(data[1000:])
    await bob.until(lambda: len(bob.heard) == 1)
    assert not bob.transport.clocks_off


def test_how_long_a_process_was_stalled() -> None:
    """How long the loop ran, and by how much it outslept; what a stop hid from one look is found by the next."""
    now = 100.0
    stalls = Stalls(lambda: now)
    for run, timeout, slept, lag in (
        (0, 5, 5, 0), (2, 0, 0, 2), (0, 5, 3, 2), (0, 5, 5, 0), (0, 1, 30, 29), (0, 0, 0, 29), (0, 0, 0, 0),
    ):  # fmt: skip
        now += run
        stalls.before_io_wait(timeout)
        now += slept
        stalls.after_io_wait(timeout)
        assert stalls.lag() == lag
    now += 1
    assert stalls.lag() == 1


async def test_a_silent_peer_is_dropped(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A proven peer that says nothing more is hung up on, and told why."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], silence=50).start(nursery)
    raw = await Raw.dial(bob, "alice")
    assert "nothing was heard for 50 ms" in await raw.closing()
    await bob.until(lambda: bob.losses == [("alice", "nothing was heard for 50 ms")])


async def test_heartbeats(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A side that has nothing to say shows that it is there, at first and then in every interval."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], heartbeat=5).start(nursery)
    raw = await Raw.dial(bob, "alice")
    while sum(isinstance(event, Heartbeat) for event in raw.events) < 4:
        await raw.receive()
    assert raw.events[-1] == Heartbeat(NOW)


async def test_a_peer_that_reads_nothing_is_dropped(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A proven peer that sends heartbeats but takes nothing does not hold its queue for ever."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], silence=200).start(nursery)
    raw = await Raw.dial(bob, "alice")

    async def beat() -> None:
        while not bob.losses:
            raw.channel.ping(NOW)
            try:
                await raw.flush()
            except trio.BrokenResourceError:
                return
            await trio.sleep(0.02)

    nursery.start_soon(beat)
    bob.transport.send("alice", [OfferAnswer("d", 1, said("x" * 2000))] * 3000)
    await bob.until(lambda: bob.losses == [("alice", "it took nothing for 200 ms")])
    status = bob.transport.status()[0]
    assert (status.connected, status.queued_bytes) == (False, 0)
    assert status.dropped > 0


async def test_a_handshake_that_never_ends(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A connection that says nothing is closed without a word when its time is up."""
    await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], handshake=30).start(nursery)
    stream = await trio.open_unix_socket(str(tmp_path / "bob.sock"))
    with trio.fail_after(PATIENCE):
        assert await stream.receive_some(100) == b""
    assert "the handshake was not complete within 30 ms" in caplog.text


async def test_a_flood_of_strangers(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Beyond the limit the oldest unproven connection goes, so that a peer still gets in."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], unauthenticated_max=8).start(nursery)
    strangers = [await trio.open_unix_socket(str(tmp_path / "bob.sock")) for _ in range(7)]
    with trio.fail_after(PATIENCE):
        for stream in strangers[:3]:
            assert await stream.receive_some(1) == b""
    assert len(bob.transport._unauthenticated) == 4
    raw = await Raw.dial(bob, "alice")
    await raw.send(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert len(bob.transport._unauthenticated) == 3


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\xff" * 10_000, b"\0\0\0\1\xc1"])
async def test_garbage_is_hung_up_on(nursery: trio.Nursery, tmp_path: Path, data: bytes, caplog: Any) -> None:
    """A peer that does not speak the protocol is hung up on, and peers are served on."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    stream = await trio.open_unix_socket(str(tmp_path / "bob.sock"))
    await stream.send_all(data)
    with trio.fail_after(PATIENCE):
        with suppress(trio.BrokenResourceError):  # closed before all was read: a reset, which is as good
            assert await stream.receive_some(100) == b""
    assert "connection refused: found" in caplog.text
    raw = await Raw.dial(bob, "alice")
    await raw.send(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])


async def test_a_stranger_is_refused_by_name(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Who is not configured is told so, and its status shows it."""
    await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    carol = await Node("carol", {"bob": unix(tmp_path / "bob.sock")}, []).start(nursery)
    await poll(lambda: "is not known to 'bob'" in carol.transport.status()[0].problem)
    assert carol.connects == []


async def test_a_broken_frame_ends_the_connection(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A proven peer whose envelope does not verify is told why and hung up on."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    raw.channel.send_batch(b"x", NOW)
    data = raw.channel.bytes_to_send()
    await raw.stream.send_all(data + data)
    assert "'sequence': 'found envelope 1, due is 2" in await raw.closing()


async def test_unknown_kinds_are_answered(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A message of a newer version is answered with an error, and the others of its batch are obeyed."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    await raw.send(codec.join_batch([codec.encode_message(Ack("L", 1)), msgpack.packb([99, "L", 2])]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    known = f"this peer knows kinds 1 to {max(codec.KINDS)}"
    assert await answer(raw) == ErrorReply(
        "L", 2, Reason("unknown_kind", detail=f"message kind 99 is not known: {known}")
    )


async def test_answers_to_unknown_kinds_are_paid_for(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is made while the peer is charged."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    made: list[int] = []
    answer_to = codec.UnknownKind.answer

    def count(one: codec.UnknownKind) -> ErrorReply:
        made.append(len(bob.costs))
        return answer_to(one)

    monkeypatch.setattr(codec.UnknownKind, "answer", count)
    before = len(bob.costs)
    await raw.send(codec.join_batch([msgpack.packb([99, "L", 2]), codec.encode_message(Ack("L", 1))]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert made == [before + 1] and len(bob.costs) == before + 2  # the envelope, then its batch


async def test_a_malformed_batch_is_answered(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A batch that can't be read is answered with what is wrong; the connection stays."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    await raw.send(msgpack.packb([[12, "L", -1]]))
    found = await answer(raw)
    assert isinstance(found, ErrorReply)
    assert (found.lease, found.number, found.reason.code) == ("", 0, "malformed")
    assert found.reason.detail.startswith("message 1 of 1, Ack: update: found -1")
    await raw.send(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])


async def answer(raw: Raw) -> Any:
    """The first message that ``raw`` is sent."""
    while not (payloads := [event.payload for event in raw.events if hasattr(event, "payload")]):
        await raw.receive()
    return codec.decode_batch(payloads[0])[0]


async def test_a_newer_connection_replaces_the_older(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A peer that dials again has lost the older connection: the newer one is served."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    first = await Raw.dial(bob, "alice")
    second = await Raw.dial(bob, "alice")
    assert "a newer connection took over" in await first.closing()
    await second.send(codec.encode_batch([Ack("L", 2)]))
    await bob.until(lambda: bob.heard == [Ack("L", 2)])
    assert bob.losses == []


async def refusal(endpoint: Endpoint, run: Callable[[Transport], Awaitable[None]] = Transport.run) -> str:
    """Why a transport can't listen on ``endpoint``."""
    node = Node("carol", {}, [endpoint])
    with pytest.raises(TransportError) as caught, trio.fail_after(PATIENCE):
        await run(node.transport)
    return str(caught.value)


async def test_the_socket_of_a_dead_daemon_is_replaced(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A socket file that nobody listens on is left over from a crash, and no obstacle."""
    path = tmp_path / "bob.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    await couple(nursery, tmp_path)


async def test_the_socket_of_a_live_daemon_is_left_alone(nursery: trio.Nursery, tmp_path: Path) -> None:
    """Two daemons can't have one socket; the second says which setting and address, the first goes on."""
    alice, bob = await couple(nursery, tmp_path)
    text = await refusal(unix(tmp_path / "bob.sock"))
    assert text == (
        f"listen: can't listen on unix:{tmp_path}/bob.sock: "
        "it is in use by another daemon; stop that one, or choose another address"
    )
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])


async def test_a_live_socket_without_a_lock_is_left_alone(tmp_path: Path) -> None:
    """Another program's socket is not taken either."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen(1)
        assert "it is in use by another daemon" in await refusal(unix(tmp_path / "s"))
        assert (tmp_path / "s").is_socket()


async def test_paths_that_can_not_be_sockets(tmp_path: Path) -> None:
    """A file that is no socket is not removed; a directory that is missing is named."""
    (tmp_path / "file").write_text("precious")
    assert "there is a file of that name that is not a socket" in await refusal(unix(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"
    assert "its directory does not exist" in await refusal(unix(tmp_path / "missing" / "s"))


async def test_a_port_in_use(nursery: trio.Nursery) -> None:
    """A port that another daemon has is named with the setting."""
    bob = await Node("bob", {}, [TCP]).start(nursery)
    address = bob.transport.bound[0]
    assert await refusal(address) == (
        f"listen: can't listen on {address}: it is in use by another daemon; stop that one, or choose another address"
    )
    assert "this machine has no such address" in await refusal(Endpoint(host="192.0.2.1"))


async def test_what_was_opened_is_closed_when_the_rest_fails(nursery: trio.Nursery, tmp_path: Path) -> None:
    """If one of several addresses can't be had, the others are free again."""
    node = Node("carol", {}, [unix(tmp_path / "one"), unix(tmp_path / "missing" / "two")])
    with pytest.raises(TransportError):
        await node.transport.run()
    assert not (tmp_path / "one").exists()
    await Node("bob", {}, [unix(tmp_path / "one")]).start(nursery)


async def test_a_stop_removes_the_socket(nursery: trio.Nursery, tmp_path: Path) -> None:
    """After a stop the socket file is gone, so that nobody dials it in vain."""
    bob = await Node("bob", {}, [unix(tmp_path / "bob.sock")]).start(nursery)
    assert (tmp_path / "bob.sock").is_socket()
    await bob.stop()
    assert not (tmp_path / "bob.sock").exists()
