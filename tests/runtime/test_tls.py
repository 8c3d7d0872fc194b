"""TLS between actors: what it lets through, and a real one in the middle, over sockets."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from polling import PATIENCE, poll
from transport_nodes import KEYS, PLAIN, TCP, Node, Raw

from leasekit.core.protocol.messages import BATCH_MAX, Ack
from leasekit.runtime.sockets import Endpoint, Tls, TlsError


class Middle:
    """One in the middle: takes the connections of one side, makes its own to the other, and passes on what it hears.

    ``inward(stream)`` and ``outward(stream)`` say how it meets the two; ``heard`` is all that it could read.
    """

    def __init__(self, target: Endpoint, inward: Callable[..., Any], outward: Callable[..., Any]) -> None:
        self.target, self.inward, self.outward = target, inward, outward
        self.heard = b""
        self.joined = 0
        self.failures: list[str] = []

    async def start(self, nursery: trio.Nursery) -> Endpoint:
        """Listen; where."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, self._join, [listener])
        return Endpoint(host="127.0.0.1", port=listener.socket.getsockname()[1])

    async def _join(self, stream: trio.SocketStream) -> None:
        async with stream, await trio.open_tcp_stream(self.target.host, self.target.port) as further:
            try:
                theirs, ours = await self.inward(stream), await self.outward(further)
            except TlsError as error:
                self.failures.append(str(error))
                return
            self.joined += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, theirs, ours, nursery)
                nursery.start_soon(self._pass_on, ours, theirs, nursery)

    async def _pass_on(self, one: Any, other: Any, nursery: trio.Nursery) -> None:
        try:
            while data := await one.receive_some(65_536):
                self.heard += data
                await other.send_all(data)
        except trio.BrokenResourceError:
            pass  # one of the two has hung up
        nursery.cancel_scope.cancel()


async def as_it_is(stream: Any) -> Any:
    """No TLS of its own."""
    return stream


def mallory() -> Tls:
    """A TLS identity that neither alice nor bob knows."""
    return Tls(KEYS["mallory"], "mallory")


def gullible(tls: Tls) -> ssl.SSLContext:
    """A context to dial with that believes any certificate: what there would be if pinning was broken."""
    context = tls.client(KEYS["mallory"].public)
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_what_is_said_over_tls_can_not_be_read(nursery: trio.Nursery) -> None:
    """One who carries an encrypted connection unchanged does not stop it, and reads nothing of what is said."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    middle = Middle(bob.transport.bound[0], as_it_is, as_it_is)
    alice = await Node("alice", {"bob": await middle.start(nursery)}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("very-secret-lease", 1)])
    await bob.until(lambda: bob.heard == [Ack("very-secret-lease", 1)])
    assert [status.encrypted for status in (*alice.transport.status(), *bob.transport.status())] == [True, True]
    assert len(middle.heard) > 1000
    assert not any(word in middle.heard for word in (b"very-secret-lease", b"leasekit", KEYS["alice"].public))


async def test_without_tls_it_can_be_read_but_says_so(nursery: trio.Nursery, caplog: Any) -> None:
    """Where TLS is switched off the log warns on both sides, the status shows it, and who carries it can read it."""
    bob = await Node("bob", {"alice": None}, [PLAIN]).start(nursery)
    middle = Middle(bob.transport.bound[0], as_it_is, as_it_is)
    where = await middle.start(nursery)
    alice = await Node("alice", {"bob": Endpoint(host=where.host, port=where.port, tls=False)}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("open-lease", 1)])
    await bob.until(lambda: bob.heard == [Ack("open-lease", 1)])
    assert b"open-lease" in middle.heard
    assert not alice.transport.status()[0].encrypted
    assert f"listens on {bob.transport.bound[0]} WITHOUT TLS" in caplog.text
    assert f"dials bob at tcp://127.0.0.1:{where.port}?tls=false WITHOUT TLS" in caplog.text


async def test_one_in_the_middle_with_keys_of_its_own(nursery: trio.Nursery, caplog: Any) -> None:
    """One in the middle that ends TLS on both sides with its own certificates is refused by who dials it."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    tls = mallory()
    middle = Middle(
        bob.transport.bound[0],
        partial(tls.handshake, context=tls.server([KEYS["alice"].public]), dialled=False),
        partial(tls.handshake, context=tls.client(KEYS["bob"].public), dialled=True),
    )
    alice = await Node("alice", {"bob": await middle.start(nursery)}, []).start(nursery)
    await poll(lambda: "not made with a key that is pinned" in alice.transport.status()[0].problem)
    await poll(lambda: any("does not know the key" in failure for failure in middle.failures))
    assert "(bob has key " in alice.transport.status()[0].problem
    assert (alice.connects, bob.connects, middle.joined, middle.heard) == ([], [], 0, b"")


async def test_one_in_the_middle_is_refused_by_who_listens(nursery: trio.Nursery, caplog: Any) -> None:
    """Even if who dials was deceived, one in the middle gets no connection on to the other: its key is not known."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    tls = mallory()
    stream = await trio.open_tcp_stream("127.0.0.1", bob.transport.bound[0].port)
    secured = await tls.handshake(stream, tls.client(KEYS["bob"].public), dialled=True)
    with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError) as caught:
        await secured.receive_some(100)
    assert "unknown ca" in str(caught.value.__cause__)
    assert "connection refused: its TLS certificate was not made with a key that is pinned here" in caplog.text
    assert bob.connects == []


@pytest.mark.parametrize("known", [True, False])
async def test_two_joined_connections_never_prove_anything(nursery: trio.Nursery, known: bool, caplog: Any) -> None:
    """Were both certificates believed wrongly, the channel's proofs still differ: each end signs what it sees of TLS.

    The one in the middle is a peer of bob's, or else bob believes its certificate; alice believes any in either case.
    """
    peers = {"alice": None, "mallory": None} if known else {"alice": None}
    bob_node = Node("bob", peers, [TCP])
    if not known:
        bob_node.transport._tls = Tls(KEYS["bob"], "bob")
        bob_node.transport._server_context = bob_node.transport._tls.server([KEYS["mallory"].public])
    bob = await bob_node.start(nursery)
    tls = mallory()
    middle = Middle(
        bob.transport.bound[0],
        partial(tls.handshake, context=tls.server([KEYS["alice"].public]), dialled=False),
        partial(tls.handshake, context=tls.client(KEYS["bob"].public), dialled=True),
    )
    where = await middle.start(nursery)
    own = Tls(KEYS["alice"], "alice")
    stream = await trio.open_tcp_stream(where.host, where.port)
    secured = await own.handshake(stream, gullible(own), dialled=True)
    alice = Raw(secured, "alice", "bob", own.binding(secured, dialled=True))
    await alice.flush()
    assert "its signature over the handshake does not verify" in await alice.closing()
    assert (middle.joined, bob.connects) == (1, [])
    assert b"alice" in middle.heard


async def test_a_client_without_tls(nursery: trio.Nursery, caplog: Any) -> None:
    """Who speaks leasekit without TLS to an address that demands it hears so, and so does the other's log."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    where = bob.transport.bound[0]
    alice = await Node("alice", {"bob": Endpoint(host=where.host, port=where.port, tls=False)}, []).start(nursery)
    await poll(lambda: "TLS 1.3 is spoken at this address" in alice.transport.status()[0].problem)
    assert "connection refused: it does not speak TLS, which this address demands" in caplog.text
    assert (alice.connects, bob.connects) == ([], [])


async def test_a_client_with_tls_where_there_is_none(nursery: trio.Nursery, caplog: Any) -> None:
    """Who speaks TLS to an address without it is told by its own error, and the other side logs it."""
    bob = await Node("bob", {"alice": None}, [PLAIN]).start(nursery)
    where = bob.transport.bound[0]
    alice = await Node("alice", {"bob": Endpoint(host=where.host, port=where.port)}, []).start(nursery)
    await poll(lambda: "does not speak TLS: tls must be the same" in alice.transport.status()[0].problem)
    assert "connection refused: the other side speaks TLS, this address does not" in caplog.text
    assert (alice.connects, bob.connects) == ([], [])


async def test_a_peer_whose_key_is_pinned_wrongly(nursery: trio.Nursery) -> None:
    """A listener that has another key pinned for who dials refuses it in words that name the mistake."""
    bob = await Node("bob", {"carol": None}, [TCP]).start(nursery)
    alice = await Node("alice", {"bob": bob.transport.bound[0]}, []).start(nursery)
    await poll(lambda: "the public key that it has pinned is another" in alice.transport.status()[0].problem)


async def test_older_tls_is_not_spoken(nursery: trio.Nursery) -> None:
    """A downgrade below TLS 1.3 is refused in the TLS handshake."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    tls = Tls(KEYS["alice"], "alice")
    context = tls.client(KEYS["bob"].public)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    stream = await trio.open_tcp_stream("127.0.0.1", bob.transport.bound[0].port)
    with pytest.raises(TlsError, match="protocol version"):
        await tls.handshake(stream, context, dialled=True)


async def test_connections_differ(nursery: trio.Nursery) -> None:
    """Two connections between the same two have different bindings: what was proven on one is worth nothing on the
    other."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    first = await Raw.dial(bob, "alice")
    second = await Raw.dial(bob, "alice")
    assert first.channel._binding != second.channel._binding
    assert first.stream.version() == "TLSv1.3"


async def test_a_recorded_tls_connection_is_worth_nothing(nursery: trio.Nursery) -> None:
    """All bytes that a client once sent, sent again to the same listener, get no connection."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    middle = Middle(bob.transport.bound[0], as_it_is, as_it_is)
    sent: list[bytes] = []
    plain_pass = middle._pass_on

    async def recording(one: Any, other: Any, scope: trio.Nursery) -> None:
        if not sent:
            sent.append(b"")
            original = one.receive_some

            async def noted(most: int) -> bytes:
                data: bytes = await original(most)
                sent.append(data)
                return data

            one = type("Noted", (), {"receive_some": staticmethod(noted)})()
        await plain_pass(one, other, scope)

    middle._pass_on = recording  # type: ignore[method-assign]
    alice = await Node("alice", {"bob": await middle.start(nursery)}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    alice.transport.send("bob", [Ack("L", 1)])
    await bob.until(lambda: bob.heard == [Ack("L", 1)])
    await alice.stop()
    stream = await trio.open_tcp_stream("127.0.0.1", bob.transport.bound[0].port)
    await stream.send_all(b"".join(sent))
    with trio.fail_after(PATIENCE):
        try:
            while await stream.receive_some(65_536):
                pass
        except trio.BrokenResourceError:
            pass  # a reset is as good as a close
    assert (bob.connects, bob.heard) == (["alice"], [Ack("L", 1)])


async def test_large_batches_over_tls(nursery: trio.Nursery) -> None:
    """Megabytes go over TLS both ways at once, and arrive in order."""
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    alice = await Node("alice", {"bob": bob.transport.bound[0]}, []).start(nursery)
    await alice.until(lambda: alice.connects == ["bob"])
    await bob.until(lambda: bob.connects == ["alice"])
    batch = [Ack(f"lease-{number:060}", number) for number in range(BATCH_MAX * 10)]
    alice.transport.send("bob", batch)
    bob.transport.send("alice", batch)
    await bob.until(lambda: len(bob.heard) == len(batch))
    await alice.until(lambda: len(alice.heard) == len(batch))
    assert alice.heard == bob.heard == batch


@pytest.mark.parametrize("words", [b"", b"\0\0\0\4what"], ids=["silent", "confused"])
async def test_one_who_gets_no_further_than_tls(nursery: trio.Nursery, words: bytes, caplog: Any) -> None:
    """A peer that has its certificate believed and then says nothing, or nonsense, is hung up on, and harms nobody."""
    bob = await Node("bob", {"alice": None}, [TCP], handshake=300).start(nursery)
    where, tls = bob.transport.bound[0], Tls(KEYS["alice"], "alice")
    stream = await trio.open_tcp_stream(where.host, where.port)
    secured = await tls.handshake(stream, tls.client(KEYS["bob"].public), dialled=True)
    if words:
        await secured.send_all(words)
    with trio.fail_after(PATIENCE):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass  # hung up on all the same
    await stream.aclose()
    await poll(lambda: len(bob.transport._unauthenticated) == 0)
    assert "connection refused" in caplog.text
    await Raw.dial(bob, "alice")
    assert bob.connects == ["alice"]
