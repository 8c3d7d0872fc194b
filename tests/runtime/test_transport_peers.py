"""Peers that come and go while a transport runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from polling import poll
from transport_nodes import KEYS, TCP, Node, Raw, couple, unix

from leasekit.core.claims.signed import Keypair
from leasekit.core.protocol import codec
from leasekit.core.protocol.messages import Ack
from leasekit.runtime.peers import PeerAddress
from leasekit.runtime.sockets import Endpoint, Tls, parse_endpoint


def address(name: str, where: Endpoint | None = None, key: str = "") -> PeerAddress:
    """The peer ``name`` at ``where``."""
    return PeerAddress(name, KEYS[key or name].public, where)


@pytest.mark.parametrize("where", ["unix", "tcp"])
async def test_a_peer_that_is_added_is_dialled_and_let_in(nursery: trio.Nursery, tmp_path: Path, where: str) -> None:
    """Neither side knows the other at first: the one gets in as soon as both do."""
    listen = TCP if where == "tcp" else unix(tmp_path / "bob.sock")
    bob = await Node("bob", {}, [listen]).start(nursery)
    alice = await Node("alice", {}, []).start(nursery)
    alice.transport.add_peer(address("bob", bob.transport.bound[0]))
    await poll(lambda: "know" in alice.transport.status()[0].problem)
    bob.transport.add_peer(address("alice"))
    await bob.until(lambda: bob.connects == ["alice"])
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])


@pytest.mark.parametrize("where", ["unix", "tcp"])
async def test_a_peer_that_is_removed_is_hung_up_on(nursery: trio.Nursery, tmp_path: Path, where: str) -> None:
    """Its connection ends at once, it hears why, it does not get in again, and nothing more can be sent to it."""
    listen = TCP if where == "tcp" else unix(tmp_path / "bob.sock")
    bob = await Node("bob", {"alice": None, "carol": None}, [listen]).start(nursery)
    alice = await Node("alice", {"bob": bob.transport.bound[0]}, []).start(nursery)
    carol = await Node("carol", {"bob": bob.transport.bound[0]}, []).start(nursery)
    await bob.until(lambda: sorted(bob.connects) == ["alice", "carol"])
    bob.transport.remove_peer("alice")
    await bob.until(lambda: bob.losses == [("alice", "it is no peer any more")])
    await alice.until(lambda: bool(alice.losses))
    assert "'removed': 'it is no peer any more'" in alice.losses[0][1]
    await poll(lambda: "know" in alice.transport.status()[0].problem)
    assert [status.peer for status in bob.transport.status()] == ["carol"]
    carol.transport.send("bob", [Ack("C", 1)])
    await bob.until(lambda: bob.heard == [Ack("C", 1)])
    with pytest.raises(KeyError):
        bob.transport.remove_peer("alice")


async def test_what_a_removed_peer_has_sent_is_not_obeyed(nursery: trio.Nursery, tmp_path: Path) -> None:
    """What lies unread when a peer is removed is never handed to the actor."""
    bob = await Node("bob", {"alice": None}, [unix(tmp_path / "bob.sock")]).start(nursery)
    raw = await Raw.dial(bob, "alice")
    bob.gate = trio.Event()
    await raw.send(codec.encode_batch([Ack("L", 1)]))
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    await raw.send(codec.encode_batch([Ack("L", 2)]))
    bob.transport.remove_peer("alice")
    bob.gate.set()
    await bob.until(lambda: bool(bob.losses))
    assert bob.heard == [Ack("L", 1)]


async def test_one_who_dials_a_removed_peer_stops(nursery: trio.Nursery, tmp_path: Path) -> None:
    """A removed peer is not dialled any more, connected or not."""
    alice, bob = await couple(nursery, tmp_path)
    alice.transport.remove_peer("bob")
    await bob.until(lambda: len(bob.losses) == 1)
    alice.transport.add_peer(address("bob", unix(tmp_path / "nobody.sock")))
    await poll(lambda: "No such file" in alice.transport.status()[0].problem)
    alice.transport.remove_peer("bob")
    again = await Node("carol", {"bob": unix(tmp_path / "bob.sock")}, []).start(nursery)
    await poll(lambda: "is not known to 'bob'" in again.transport.status()[0].problem)
    assert bob.connects == ["alice"]


async def test_one_more_peer_is_one_more_anchor(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever becomes known later gets in by the context that is there; it is made anew only where a key goes."""
    made, trusted = [], []
    server, trust = Tls.server, Tls.trust
    monkeypatch.setattr(Tls, "server", lambda tls, keys: made.append("server") or server(tls, keys))
    monkeypatch.setattr(Tls, "trust", lambda tls, context, key: trusted.append(key) or trust(tls, context, key))
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    for number in range(20):
        bob.transport.add_peer(PeerAddress(f"new-{number}", Keypair(bytes([100 + number]) * 32).public))
    await Node("alice", {"bob": bob.transport.bound[0]}, []).start(nursery)
    bob.transport.add_peer(address("carol"))
    carol = await Node("carol", {"bob": bob.transport.bound[0]}, []).start(nursery)
    await bob.until(lambda: sorted(bob.connects) == ["alice", "carol"])
    assert (len(made), len(trusted)) == (1, 21)
    bob.transport.remove_peer("carol")
    await carol.until(lambda: bool(carol.losses))
    await poll(lambda: "does not know the key" in carol.transport.status()[0].problem)
    assert (len(made), len(trusted)) == (2, 21)


@pytest.mark.parametrize(
    ("where", "problem"), [("tcp://127.0.0.1:0", "failed"), ("tcp://no..host:7000", "no host can have the name")]
)
async def test_an_address_where_nobody_can_be(nursery: trio.Nursery, tmp_path: Path, where: str, problem: str) -> None:
    """It is a peer's to say, by a broker's introduction: it is the peer's problem, and nobody else's."""
    alice, bob = await couple(nursery, tmp_path)
    alice.transport.add_peer(address("carol", parse_endpoint(where)))
    await poll(lambda: problem in alice.transport.status()[1].problem)
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])


def test_peers_that_can_not_be() -> None:
    """A name that is taken, and the actor's own, change nothing."""
    node = Node("alice", {"bob": None}, [])
    with pytest.raises(ValueError, match="peer 'bob': the name is taken"):
        node.transport.add_peer(address("bob"))
    with pytest.raises(ValueError, match="peer 'alice': the name is taken"):
        node.transport.add_peer(address("alice"))
    assert [status.peer for status in node.transport.status()] == ["bob"]


async def test_a_peer_that_moves_keeps_its_connection(nursery: trio.Nursery, tmp_path: Path) -> None:
    """One that is said to be elsewhere is dialled there when the connection is gone; one that was not reached, at once;
    and one that has no address any more is not dialled.
    """
    first, second = unix(tmp_path / "first.sock"), unix(tmp_path / "second.sock")
    bob = await Node("bob", {"alice": None}, [first]).start(nursery)
    alice = await Node("alice", {"bob": first}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.change_peer("bob", address("bob", second))
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    assert alice.losses == []
    await bob.stop()
    again = await Node("bob", {"alice": None}, [second]).start(nursery)
    await alice.until(lambda: alice.connects == ["bob", "bob"])
    alice.transport.change_peer("bob", address("bob"))
    await again.stop()
    await alice.until(lambda: len(alice.losses) == 2)
    third = await Node("bob", {"alice": None}, [first]).start(nursery)
    await trio.testing.wait_all_tasks_blocked()
    assert alice.transport.status()[0].address == "" and third.connects == []
    alice.transport.change_peer("bob", address("bob", unix(tmp_path / "nobody.sock")))
    await poll(lambda: "No such file" in alice.transport.status()[0].problem)
    alice.transport.change_peer("bob", address("bob", first))
    await alice.until(lambda: len(alice.connects) == 3)
