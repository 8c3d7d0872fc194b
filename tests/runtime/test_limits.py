"""Rates and strangers, by numbers alone; and then with sockets: floods, slow and half-open peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from polling import PATIENCE, poll
from transport_nodes import KEYS, NOW, TCP, Node, Raw, couple, unix

from leasekit.config.tables import TransportSettings
from leasekit.core.protocol import codec
from leasekit.core.protocol.messages import Ack, OfferAnswer
from leasekit.core.reasons import said
from leasekit.runtime.limits import (
    CERTIFIED,
    GREETED,
    SILENT,
    SPEAKS,
    WORK_BURST,
    WORK_SHARE,
    Allowance,
    Bucket,
    UnauthenticatedPeer,
    UnauthenticatedPeers,
)
from leasekit.runtime.sockets import AT_ONCE, Endpoint, PacedListener, Tls, Wire, network
from leasekit.runtime.transport import BEGUN_A_SECOND, CERTIFIED_COSTS, GREETED_AT_ONCE

# Numbers.


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=60))
def test_a_bucket_lets_no_more_through_than_rate_and_burst(steps: list[tuple[float, int]]) -> None:
    """Whatever is taken when, who waits as told has never taken more than burst, rate x time and one last piece."""
    now, taken, bucket = 0.0, 0, Bucket(10, 20, 0.0)
    for pause, amount in steps:
        now += pause + bucket.wait(now + pause)
        assert taken <= 20 + 10 * now + 1e-6
        bucket.take(amount, now)
        taken += amount


def test_a_bucket_asks_for_no_more_patience_than_needed() -> None:
    """A debt is waited out at the rate, and a rest fills the bucket up to its burst only."""
    bucket = Bucket(10, 20, 0.0)
    bucket.take(20, 0.0)
    assert bucket.wait(0.0) == 0
    bucket.take(5, 0.0)
    assert bucket.wait(0.0) == pytest.approx(0.5)
    assert bucket.wait(0.2) == pytest.approx(0.3)
    bucket.take(20, 1000.0)
    assert bucket.wait(1000.0) == 0
    bucket.take(1, 1000.0)
    assert bucket.wait(1000.0) == pytest.approx(0.1)


def test_an_allowance_reports_a_flood_once() -> None:
    """A peer that is held back without a break is reported when that has lasted long enough, and again after a rest."""
    allowance = Allowance(TransportSettings(messages_per_second=10, messages_burst=10, flood_after=2000), 0.0)
    allowance.count(11, 0.0)
    assert allowance.pause(0.0) == pytest.approx(0.1)
    assert not allowance.hold(0.0, 1.0)
    assert not allowance.hold(1.5, 0.4)
    assert allowance.hold(1.9, 0.2)
    assert allowance.flooding
    assert not allowance.hold(5.0, 1.0)
    assert allowance.held == pytest.approx(2.6)
    assert allowance.rest()
    assert not allowance.rest()
    assert not allowance.hold(6.0, 1.0)
    assert allowance.hold(7.0, 1.0)


def test_empty_envelopes_count() -> None:
    """A heartbeat costs as much as a message: its signature is checked as well."""
    allowance = Allowance(TransportSettings(messages_per_second=10, messages_burst=10), 0.0)
    for _ in range(12):
        allowance.count(0, 0.0)
    assert allowance.pause(0.0) == pytest.approx(0.2)


def test_work_is_limited_as_well() -> None:
    """A peer whose bytes are dear to check is not read until its share of a processor has made up for it."""
    allowance = Allowance(TransportSettings(), 0.0)
    allowance.work(WORK_BURST, 0.0)
    assert allowance.pause(0.0) == 0
    allowance.work(0.5, 0.0)
    assert allowance.pause(0.0) == pytest.approx(0.5 / WORK_SHARE)


def test_a_peer_may_connect_so_often() -> None:
    """Connections beyond the rate are refused, and refusals cost nothing of it."""
    allowance = Allowance(TransportSettings(connections_per_minute=3), 0.0)
    assert [allowance.connect(0.0) for _ in range(10)] == [True] * 3 + [False] * 7
    assert allowance.connect(20.0)
    assert not allowance.connect(20.1)


class Door:
    """UnauthenticatedPeers that are told apart by name, and who has been dropped."""

    def __init__(self, limit: int) -> None:
        self.strangers = UnauthenticatedPeers(limit)
        self.dropped: list[str] = []

    def come(self, name: str, source: str = "there") -> UnauthenticatedPeer:
        peer = UnauthenticatedPeer(source, lambda: self.dropped.append(name))
        self.strangers.admit(peer)
        return peer


def test_the_oldest_of_the_least_advanced_goes() -> None:
    """Who has said nothing goes before who has; who was answered before who has a certificate."""
    door = Door(6)
    first, second, third = (door.come(name) for name in "abc")
    door.strangers.advance(second, SPEAKS)
    door.come("d")
    assert door.dropped == ["a"]
    door.come("e")
    assert door.dropped == ["a", "c"]
    for made in (door.come(name) for name in "fgh"):
        door.strangers.advance(made, GREETED)
    door.dropped.clear()
    door.strangers.advance(second, CERTIFIED)
    assert door.dropped == ["f"]
    assert (first.level, second.level, third.level) == (SILENT, CERTIFIED, SILENT)
    assert not door.strangers.leave(third)


def test_who_was_answered_has_time_to_go_on() -> None:
    """However many come, who was answered stays; only for others who are answered it makes room in the end."""
    door = Door(10)
    door.strangers.advance(door.come("answered"), GREETED)
    for number in range(1000):
        door.strangers.advance(door.come(f"flood {number}"), SPEAKS)
    assert "answered" not in door.dropped
    for number in range(5):
        assert "answered" not in door.dropped
        door.strangers.advance(door.come(f"also answered {number}"), GREETED)
    assert "answered" in door.dropped


def test_a_flood_takes_its_places_from_itself() -> None:
    """Of the machine that has the most connections one goes, whatever those of others have said."""
    door = Door(20)
    quiet, slow = door.come("quiet", "elsewhere"), door.come("slow", "elsewhere")
    door.strangers.advance(slow, GREETED)
    for number in range(100):
        door.strangers.advance(door.come(f"flood {number}"), CERTIFIED if number % 2 else SPEAKS)
    assert len(door.strangers) <= 20
    assert len(door.dropped) >= 80
    assert door.strangers.leave(quiet)
    assert door.strangers.leave(slow)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 20)), max_size=80), st.integers(2, 8)
)
def test_there_are_never_more_strangers_than_allowed(steps: list[tuple[str, int, int]], limit: int) -> None:
    """However they come, advance and leave: the count is right, within the limit, and the newest is always let in."""
    strangers, inside = UnauthenticatedPeers(limit), []
    for source, action, which in steps:
        if action == 4 and inside:
            strangers.leave(inside.pop(which % len(inside)))
        elif action and inside:
            strangers.advance(inside[which % len(inside)], action)
        else:
            made = UnauthenticatedPeer(source, lambda: None)
            made.drop = lambda made=made: inside.remove(made)  # type: ignore[misc]
            inside.append(made)
            strangers.admit(made)
            assert made in inside
        assert len(strangers) == len(inside) <= limit


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("192.0.2.1", "192.0.2.254", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("::ffff:192.0.2.1", "192.0.2.9", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_addresses_of_one_network_share_its_places(one: str, other: str, same: bool) -> None:
    """Who has a whole network of addresses has no more places for that than who has one."""
    door = Door(20)
    quiet = door.come("quiet", network(other))
    for number in range(20):
        door.come(f"flood {number}", network(one))
    assert door.strangers.leave(quiet) is not same


# Sockets.


async def test_a_peer_without_end_is_held_back_and_reported(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A peer that sends without end is read no faster than allowed, its own queue fills, and it is reported once."""
    limits = {"messages_per_second": 1000, "messages_burst": 50, "flood_after": 30, "queue_max": 20_000}
    bob = await Node("bob", {"alice": None, "carol": None}, [unix(tmp_path / "bob.sock")], **limits).start(nursery)
    alice = await Node("alice", {"bob": unix(tmp_path / "bob.sock")}, [], queue_max=20_000, heartbeat=20).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    over = trio.Event()

    async def flood() -> None:
        while not over.is_set():
            alice.transport.send("bob", [OfferAnswer("d", 1, said("x" * 1000))] * 20)
            await trio.sleep(0)

    nursery.start_soon(flood)
    await poll(lambda: bob.transport.status()[0].flooding)
    await poll(lambda: alice.transport.status()[0].dropped > 0)
    (status, _) = bob.transport.status()
    assert status.flooding
    assert status.held_ms > 0
    assert "alice sends more than it may, and has been held back for 30ms without a break" in caplog.text
    over.set()
    await poll(lambda: not bob.transport.status()[0].flooding)
    assert caplog.text.count("alice sends more than it may") == 1


async def test_a_busy_peer_does_not_starve_others(nursery: trio.Nursery, tmp_path: Path) -> None:
    """While one peer is held back for a long time, the messages of another are heard at once."""
    where = unix(tmp_path / "bob.sock")
    limits = {"messages_per_second": 1, "messages_burst": 10}
    bob = await Node("bob", {"alice": None, "carol": None}, [where], **limits).start(nursery)
    alice = await Node("alice", {"bob": where}, []).start(nursery)
    carol = await Node("carol", {"bob": where}, []).start(nursery)
    await bob.until(lambda: len(bob.connects) == 2)
    alice.transport.send("bob", [Ack("L", number) for number in range(1000)])
    await bob.until(lambda: len(bob.heard) == 1000)
    alice.transport.send("bob", [Ack("late", 0)])
    for number in range(3):
        carol.transport.send("bob", [Ack("C", number)])
        await bob.until(lambda number=number: Ack("C", number) in bob.heard)  # type: ignore[misc]
    assert Ack("late", 0) not in bob.heard


async def test_bytes_are_limited_as_well(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """A few messages that are very long are held back like many short ones."""
    alice, bob = await couple(nursery, tmp_path, bytes_per_second=100_000, bytes_burst=1000, flood_after=0)
    alice.transport.send("bob", [OfferAnswer("d", number, said("x" * 2000)) for number in range(4)])
    await poll(lambda: len(bob.heard) == 4 and "alice sends more than it may" in caplog.text)


async def test_coming_back_does_not_make_a_peer_new(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A peer that is held back and connects anew is still held back."""
    where, limits = unix(tmp_path / "bob.sock"), {"messages_per_second": 1, "messages_burst": 2}
    bob = await Node("bob", {"alice": None}, [where], **limits).start(nursery)
    first = await Raw.dial(bob, "alice")
    await first.send(codec.encode_batch([Ack("L", number) for number in range(1000)]))
    await bob.until(lambda: len(bob.heard) == 1000)
    again = await Raw.dial(bob, "alice")
    await again.send(codec.encode_batch([Ack("again", 1)]))
    await poll(lambda: bob.transport.status()[0].held_ms > 100_000)
    assert Ack("again", 1) not in bob.heard


async def test_a_peer_that_connects_too_often(nursery: trio.Nursery, tmp_path: Path, caplog: Any) -> None:
    """Beyond so many connections a minute a peer is told so and hung up on; the one that it has is left alone."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], connections_per_minute=2).start(nursery)
    await Raw.dial(bob, "alice")
    kept = await Raw.dial(bob, "alice")
    third = Raw(await trio.open_unix_socket(str(tmp_path / "bob.sock")), "alice", "bob")
    await third.flush()
    await third.receive()
    await third.flush()
    assert "'too_often': 'more than 2 connections a minute (connections_per_minute)'" in await third.closing()
    await kept.send(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert "alice has made more than 2 connections a minute" in caplog.text


async def test_a_peer_that_drips_is_dropped(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A proven peer that keeps sending single bytes of an envelope that never ends is not alive."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], silence=150).start(nursery)
    raw = await Raw.dial(bob, "alice")

    async def drip() -> None:
        try:
            await raw.stream.send_all(b"\0\1\0\0")
            while not bob.losses:
                await raw.stream.send_all(b"x")
                await trio.sleep(0.01)
        except trio.BrokenResourceError:
            pass  # hung up on

    nursery.start_soon(drip)
    await bob.until(lambda: bob.losses == [("alice", "nothing was heard for 150 ms")])


async def test_a_peer_that_takes_single_bytes_is_dropped(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A peer that reads, but so slowly that an envelope takes for ever, does not hold its queue for ever."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")], silence=300).start(nursery)
    raw = await Raw.dial(bob, "alice")

    async def sip() -> None:
        try:
            while not bob.losses:
                await raw.stream.receive_some(1)
                raw.channel.ping(NOW)
                await raw.flush()
                await trio.sleep(0.005)
        except trio.BrokenResourceError:
            pass  # hung up on

    nursery.start_soon(sip)
    bob.transport.send("alice", [OfferAnswer("d", 1, said("x" * 2000))] * 2000)
    await bob.until(lambda: bob.losses == [("alice", "it took nothing for 300 ms")])
    assert bob.transport.status()[0].queued_bytes == 0


class Cable:
    """Carries one connection at a time, and can be cut without either end being told, as networks do."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.cut = False

    async def start(self, nursery: trio.Nursery) -> int:
        """Begin to carry; the port."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, self._carry, [listener])
        port: int = listener.socket.getsockname()[1]
        return port

    async def _carry(self, stream: trio.SocketStream) -> None:
        further = await trio.open_tcp_stream(*self.target)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._one_way, stream, further)
            nursery.start_soon(self._one_way, further, stream)

    async def _one_way(self, one: trio.SocketStream, other: trio.SocketStream) -> None:
        while data := await one.receive_some(65_536):
            if self.cut:
                await trio.sleep_forever()
            await other.send_all(data)


async def test_half_open_connections_are_noticed(nursery: trio.Nursery) -> None:
    """When a network loses all that is sent and tells nobody, both sides notice by themselves, and say so."""
    timing = {"silence": 300, "heartbeat": 50}
    bob = await Node("bob", {"alice": None}, [TCP], **timing).start(nursery)
    cable = Cable(("127.0.0.1", bob.transport.bound[0].port))
    port = await cable.start(nursery)
    alice = await Node("alice", {"bob": Endpoint(host="127.0.0.1", port=port)}, [], **timing).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    cable.cut = True
    await alice.until(lambda: alice.losses == [("bob", "nothing was heard for 300 ms")])
    await bob.until(lambda: bob.losses == [("alice", "nothing was heard for 300 ms")])


async def silent(port: int, streams: list[trio.SocketStream]) -> None:
    """A connection that says nothing."""
    streams.append(await trio.open_tcp_stream("127.0.0.1", port))


async def stalled(port: int, streams: list[trio.SocketStream]) -> None:
    """A connection that begins a TLS handshake and does not go on with it."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(b"\x16\x03\x01\x02\x00")
    streams.append(stream)


@pytest.mark.parametrize("half_open", [silent, stalled])
async def test_a_flood_of_half_open_handshakes(nursery: trio.Nursery, half_open: Callable[..., Any]) -> None:
    """While connections that never prove anything come without end, real peers get in and are served."""
    bob = await Node("bob", {"alice": None, "carol": None}, [TCP], unauthenticated_max=16).start(nursery)
    where, streams = bob.transport.bound[0], []
    over = trio.Event()

    async def flood() -> None:
        while not over.is_set():
            await half_open(where.port, streams)
            if len(streams) > 100:
                await trio.aclose_forcefully(streams.pop(0))

    for _ in range(3):
        nursery.start_soon(flood)
    await poll(lambda: len(streams) > 50)
    alice = await Node("alice", {"bob": where}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert len(bob.transport._unauthenticated) <= 16
    over.set()


class Rounds(trio.abc.Instrument):
    """Counts the turns of the loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_costly_handshakes_take_turns(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients knock at once, few TLS handshakes are begun at each turn of the loop, and all get in."""
    rounds, begun = Rounds(), Counter[int]()
    secure = Wire.secure

    async def noted(wire: Wire, *arguments: Any, dialled: bool) -> None:
        if not dialled:
            begun[rounds.count] += 1
        await secure(wire, *arguments, dialled=dialled)

    monkeypatch.setattr(Wire, "secure", noted)
    bob = await Node("bob", {"alice": None}, [TCP], connections_per_minute=1000).start(nursery)
    trio.lowlevel.add_instrument(rounds)
    async with trio.open_nursery() as dialling:
        for _ in range(20):
            dialling.start_soon(Raw.dial, bob, "alice")
    trio.lowlevel.remove_instrument(rounds)
    assert begun.total() == 20
    assert max(begun.values()) <= GREETED_AT_ONCE


async def test_those_who_knock_are_let_in_at_a_pace(nursery: trio.Nursery) -> None:
    """A flood waits at the door, where one of another network overtakes it, and one too many of it goes."""
    (listener,) = await trio.open_tcp_listeners(0, host="0.0.0.0")
    refused: list[str] = []
    pace = Bucket(1e-6, 1, 0.0)
    door = PacedListener(listener, pace, 8, refused.append)
    port = listener.socket.getsockname()[1]
    flood = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(AT_ONCE)]
    quiet = await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.7.1")
    begun = [await door.accept(), await door.accept()]
    with trio.move_on_after(0.05) as waits:
        await door.accept()
    assert waits.cancelled_caught
    assert refused == ["127.0.0.0/24"] * (AT_ONCE + 1 - 8)
    pace.take(-1, trio.current_time())
    begun.append(await door.accept())
    names = [one.socket.getpeername() for one in begun]
    assert names == [one.socket.getsockname() for one in (quiet, *flood[-7:-5])]
    await door.aclose()
    for one in (*flood, quiet, *begun):
        await trio.aclose_forcefully(one)


async def test_handshakes_have_a_pace(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a certificate to be checked waits for others before, as what it costs says."""
    monkeypatch.setattr("leasekit.runtime.transport.BEGUN_AT_ONCE", CERTIFIED_COSTS)
    bob = await Node("bob", {"alice": None}, [TCP], connections_per_minute=1000).start(nursery)
    began, clients = trio.current_time(), 30
    async with trio.open_nursery() as dialling:
        for _ in range(clients):
            dialling.start_soon(Raw.dial, bob, "alice")
    assert trio.current_time() - began > (clients - 4) * (1 + CERTIFIED_COSTS) / BEGUN_A_SECOND


async def test_a_certificate_is_not_enough(nursery: trio.Nursery) -> None:
    """Who has got through TLS and then says nothing is hung up on in time."""
    bob = await Node("bob", {"alice": None}, [TCP], handshake=200).start(nursery)
    stream = await trio.open_tcp_stream("127.0.0.1", bob.transport.bound[0].port)
    tls = Tls(KEYS["alice"], "alice")
    secured = await tls.handshake(stream, tls.client(KEYS["bob"].public), dialled=True)
    with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError):
        await secured.receive_some(1)
    assert bob.connects == []
