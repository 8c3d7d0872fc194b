"""A peer that is hostile, as a process of its own: it proves its key, and then does without end what it is told to.

    python benchmarks/_bench_attacker.py FLOOD TARGET PORT KEY_FILE PUBLIC_KEY

It writes a line once the flood is on, and what it was able to do when it is told to stop (SIGTERM).
"""

from __future__ import annotations

import itertools
import os
import signal
import ssl
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgpack
import trio

from leasekit.config.keys import load_key
from leasekit.core.claims.claim import delegate_root
from leasekit.core.claims.signed import ED25519, Keypair, key_tag
from leasekit.core.protocol.channel import NONCE_BYTES, Channel, State
from leasekit.core.protocol.codec import encode_batch
from leasekit.core.protocol.messages import NEW, Plan, Quote, Redeem, RequestTicket, Withdraw
from leasekit.core.time import HOUR, Term
from leasekit.core.topology import read_topology
from leasekit.runtime.sockets import Tls

NAME: Final = "mallory"
BATCH: Final = 256
"""How many messages an envelope of a flood has."""
AT_ONCE: Final = 16
"""How many connections are begun at once."""
HALF_OPEN_PER_SECOND: Final = 900
UNITS: Final = 4000
"""How many units there are to be had."""
MEMBERS: Final = 100
"""How many requests a group has."""
FILTERS: Final = 3000
"""How many requests wait before messages are sent that are forbidden."""
WAITING: Final = 9_900
"""How many requests of a peer wait: about as many as may (``open_requests``)."""
VICTIMS: Final = 2_048
"""How many preemptible leases a peer has."""


class Attacker:
    """One hostile peer of ``target``; or one that is not, if nothing but :meth:`connect` is called. ``done`` counts
    what it has got rid of.
    """

    def __init__(self, target: str, port: int, key: Keypair, public: bytes, name: str = NAME) -> None:
        self._target = target
        self._port, self._key, self._public, self._name = port, key, public, name
        self._tls = Tls(key, name)
        self._context = self._tls.client(public)
        self._numbers = itertools.count(int(time.time() * 1000) % 10**9 * 1000)
        self.done = 0

    async def connect(self) -> tuple[Any, Channel]:
        """A proven connection. Raises ``trio.BrokenResourceError``."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        secured = await self._tls.handshake(stream, self._context, dialled=True)
        channel = Channel(
            me=self._key, name=self._name, scheme=ED25519, nonce=os.urandom(NONCE_BYTES), initiator=True,
            expect=self._target, peers=lambda name: self._public if name == self._target else None,
            binding=self._tls.binding(secured, dialled=True),
        )  # fmt: skip
        while channel.state is not State.OPEN:
            await secured.send_all(channel.bytes_to_send())
            data = await secured.receive_some(65_536)
            if not data:
                raise trio.BrokenResourceError("hung up on")
            channel.receive_bytes(data)
        await secured.send_all(channel.bytes_to_send())
        return secured, channel

    def request(self, number: int, properties: dict[str, str], lease: int | None = None) -> RequestTicket:
        """A request for a unit at some far hour."""
        start = int(time.time() * 1000) + (24 + number % 1000) * HOUR
        name = f"{key_tag(self._key.public)}-{number if lease is None else lease}"
        return RequestTicket(name, number, NEW, "s", "vm", 1, Term(start, start + HOUR), "", properties, b"")

    def _request(self, properties: dict[str, str], term: Term, units: int = 1) -> RequestTicket:
        """A request for units over a term."""
        number = next(self._numbers)
        name = f"{key_tag(self._key.public)}-{number}"
        return RequestTicket(name, number, NEW, "s", "vm", units, term, "", properties, b"")

    async def say(self, payloads: Iterator[bytes]) -> None:
        """Send envelope after envelope, as fast as they are taken, and hear what comes back."""
        secured, channel = await self.connect()

        async def hear() -> None:
            while data := await secured.receive_some(262_144):
                channel.receive_bytes(data)
            raise trio.BrokenResourceError("hung up on")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            for payload in payloads:
                channel.send_batch(payload, int(time.time() * 1000))
                await secured.send_all(channel.bytes_to_send())
                self.done += 1

    def redeem(self, number: int) -> Redeem:
        """A ticket that the peer has signed itself."""
        start = int(time.time() * 1000)
        ticket = delegate_root(
            self._key, holder=self._key.public, type="vm", units=1, term=Term(start, start + HOUR), serial=number
        )
        return Redeem(f"{key_tag(self._key.public)}-{number}", 1, NEW, "s", ticket.encode(), {}, {}, (), b"")

    def requests(self) -> Iterator[bytes]:
        """Valid requests for different leases; of a site, redeems of tickets that are all to be checked."""
        while self._target == "site":
            yield encode_batch([self.redeem(next(self._numbers)) for _ in range(BATCH // 8)])
        while True:
            yield encode_batch([self.request(next(self._numbers), {"deferrable": "true"}) for _ in range(BATCH)])

    def properties(self) -> Iterator[bytes]:
        """Requests with properties of 60 KiB each."""
        filling = {f"p{number}": "x" * 15_000 for number in range(4)}
        while True:
            yield encode_batch([self.request(next(self._numbers), filling) for _ in range(8)])

    def repeats(self) -> Iterator[bytes]:
        """One request again and again."""
        payload = encode_batch([self.request(next(self._numbers), {})] * BATCH)
        return itertools.repeat(payload)

    def refused(self) -> Iterator[bytes]:
        """Requests that are refused at once: their ids are another's."""
        one = self.request(1, {}).__class__
        fields = self.request(1, {}).__struct_fields__
        made = self.request(1, {})
        values = {field: getattr(made, field) for field in fields} | {"lease": "0123456789abcdef-1"}
        return itertools.repeat(encode_batch([one(**values)] * BATCH))

    def filters(self) -> Iterator[bytes]:
        """Requests that wait for units that another has, each with a filter of its own, as long as it may be."""
        start = int(time.time() * 1000) // HOUR * HOUR + 5 * HOUR
        all_ = self._request({}, Term(start, start + HOUR), UNITS)
        yield encode_batch([all_])
        members = ",".join(f"{number:x}" for number in range(240))
        while True:
            wishes = (
                {"latest_start": str(start + 1), "filter": f"site not in {{N{next(self._numbers)},{members}}}"}
                for _ in range(BATCH // 8)
            )
            yield encode_batch([self._request({"deferrable": "true", **one}, all_.term, UNITS) for one in wishes])

    def _waiting(self, requests: Iterator[RequestTicket]) -> Iterator[bytes]:
        """As many requests as may wait, and then a new one for each of the oldest, which is given up."""
        first = list(itertools.islice(requests, WAITING))
        yield from (encode_batch(first[at : at + BATCH]) for at in range(0, WAITING, BATCH))
        kept = deque(first)
        while True:
            old, new = [kept.popleft() for _ in range(BATCH // 8)], list(itertools.islice(requests, BATCH // 8))
            kept.extend(new)
            yield encode_batch([*(Withdraw(one.lease, one.number + 1, one.number) for one in old), *new])

    def bids(self) -> Iterator[bytes]:
        """Preemptible requests that bid for units that another has, each with a bid, a term and a size of its own."""
        start = int(time.time() * 1000) // HOUR * HOUR + 5 * HOUR
        yield encode_batch([self._request({}, Term(start, start + HOUR), UNITS)])

        def bid(number: int) -> RequestTicket:
            begin = start + number % (HOUR // 2)
            said = {"deferrable": "true", "latest_start": str(begin + 1), "preemptible": "true", "bid": str(number)}
            return self._request(said, Term(begin, begin + HOUR // 2 - number % 1000), 1 + number % (UNITS // 2))

        yield from self._waiting(map(bid, itertools.count(1)))

    def victims(self) -> Iterator[bytes]:
        """Preemptible leases of a unit each, of two halves of an hour, and requests for more than all of them leave."""
        start = int(time.time() * 1000) // HOUR * HOUR + 5 * HOUR
        term = Term(start, start + HOUR)
        yield encode_batch([self._request({}, term)])
        cheap, half = {"preemptible": "true", "bid": "1"}, HOUR // 2
        for number in range(VICTIMS // BATCH):
            begin = start + number % 2 * half
            yield encode_batch([self._request(cheap, Term(begin, begin + half)) for _ in range(BATCH)])

        def dear(number: int) -> RequestTicket:
            late = {"deferrable": "true", "latest_start": str(start + HOUR // 2)}
            return self._request(late, Term(start + number % 1000, start + number % 1000 + HOUR), UNITS)

        yield from self._waiting(map(dear, itertools.count(1)))

    def line(self) -> Iterator[bytes]:
        """Requests for long terms that could start now but for a reservation, each with sites of its own."""
        start = int(time.time() * 1000)
        later = Term(start + 24 * HOUR, start + 25 * HOUR)
        yield encode_batch([self._request({}, later, UNITS // 2)])

        def long(number: int) -> RequestTicket:
            said = {"deferrable": "true", "exclude_sites": f"N{number}"}
            return self._request(said, Term(start, later.end + number % 1000), UNITS * 3 // 4)

        yield from self._waiting(map(long, itertools.count(1)))

    def groups(self) -> Iterator[bytes]:
        """Request groups that are refused whole: one member asks for another length."""
        start = int(time.time() * 1000) + 24 * HOUR
        while True:
            name = {"group_id": f"g{next(self._numbers)}"}
            terms = [Term(start, start + HOUR)] * (MEMBERS - 1) + [Term(start, start + 2 * HOUR)]
            first = self._request({**name, "lease_count": str(MEMBERS)}, terms[0])
            yield encode_batch([first, *(self._request(name, term) for term in terms[1:])])

    def forbidden(self) -> Iterator[bytes]:
        """Questions that only a broker may ask; at a broker while many requests with filters wait."""
        if self._target == "broker":
            yield from itertools.islice(self.filters(), FILTERS * 8 // BATCH)
        start = int(time.time() * 1000)
        while True:
            yield encode_batch(
                [Quote(f"q{n}", n, Term(start, start + HOUR), ("vm",)) for n in itertools.islice(self._numbers, BATCH)]
            )

    def unknown(self) -> Iterator[bytes]:
        """Messages of a kind that there is not."""
        return itertools.repeat(msgpack.packb([[9999, f"{key_tag(self._key.public)}-1", 1]] * 1024))

    def malformed(self) -> Iterator[bytes]:
        """Batches of which the last message is malformed, so that all are looked at twice."""
        good = encode_batch([self.request(number, {}) for number in range(BATCH)])
        return itertools.repeat(good[:-8])

    def heartbeats(self) -> Iterator[bytes]:
        """Envelopes without messages: each has a signature."""
        return itertools.repeat(b"")

    def topologies(self) -> Iterator[bytes]:
        """Questions as dear as there may be: topologies of the most sites, at any of a thousand starts."""
        now = int(time.time() * 1000)
        ends = [(number, (number + step) % 16) for number in range(16) for step in (1, 5)]
        frames = {"count": 1000, "mode": "both"}
        asked = read_topology({
            "sites": [{"id": f"r{number}", "type": "vm", "units": 2} for number in range(16)],
            "links": [{"id": f"k{a}-{b}", "from": f"r{a}", "to": f"r{b}", "bw": 3, "backup": True} for a, b in ends],
            "duration": HOUR, "est": now + HOUR, "lst": now + 5 * HOUR,
            "options": {"pmax": 64, "distinct_sites": False, "sort": "value", "frames": frames},
        }).to_bytes()  # fmt: skip
        while True:
            number = next(self._numbers)
            yield encode_batch([Plan(f"q{number}", number, "try", asked)])

    async def forged(self) -> None:
        """Envelopes that are not signed by the peer's key: each ends a connection that was proven."""
        secured, channel = await self.connect()
        channel.send_batch(b"\x90", int(time.time() * 1000))
        data = channel.bytes_to_send()
        await secured.send_all(data[:-10] + bytes(10))
        self.done += 1
        await trio.aclose_forcefully(secured)

    async def reconnects(self) -> None:
        """Connections that are proven and left at once."""
        secured, _ = await self.connect()
        self.done += 1
        await trio.aclose_forcefully(secured)

    async def half_open(self) -> None:
        """Connections that begin with TLS, have all of the server's part made, and do not go on."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        await stream.send_all(self._first_flight)
        self.done += 1
        with trio.move_on_after(2):
            await stream.receive_some(65_536)
            await trio.sleep(1)
        await trio.aclose_forcefully(stream)

    @cached_property
    def _first_flight(self) -> bytes:
        """The begin of a TLS handshake: always the same, so that the flood costs its sender next to nothing."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._context.wrap_bio(incoming, outgoing).do_handshake()
        except ssl.SSLWantReadError:
            return outgoing.read()
        raise AssertionError("a handshake has two sides")


CONNECTIONS: Final = ("forged", "reconnects", "half_open")
FLOODS: Final = (
    "requests", "refused", "malformed", "properties", "repeats", "heartbeats", "filters", "groups", "forbidden",
    "unknown", *CONNECTIONS,
)  # fmt: skip
QUEUES: Final = {"bids": "spot", "victims": "preemption", "line": "backfill"}
"""The floods of requests that wait, and the mapper for which each is meant."""
PLANS: Final = "topologies"
"""The flood of questions that only a broker answers whose mapper plans topologies."""


async def again_and_again(what: Callable[[], Awaitable[None]]) -> None:
    """Do it without end, whatever the other side does."""
    while True:
        try:
            await what()
        except* (trio.BrokenResourceError, OSError):
            await trio.sleep(0.01)


async def at_a_rate(attacker: Attacker) -> None:
    """Begin half-open handshakes at :data:`HALF_OPEN_PER_SECOND`."""

    async def one() -> None:
        with suppress(trio.BrokenResourceError, OSError):  # turned away
            await attacker.half_open()

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for number in itertools.count():
            await trio.sleep_until(began + number / HALF_OPEN_PER_SECOND)
            nursery.start_soon(one)


async def attack(flood: str, attacker: Attacker) -> None:
    """Flood until told to stop."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            if flood == "half_open":
                nursery.start_soon(at_a_rate, attacker)
            elif flood in CONNECTIONS:
                for _ in range(AT_ONCE):
                    nursery.start_soon(again_and_again, getattr(attacker, flood))
            else:
                nursery.start_soon(again_and_again, lambda: attacker.say(getattr(attacker, flood)()))
            print("on", flush=True)
            async for _ in signals:
                print(attacker.done, flush=True)
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    _, chosen, aim, port_text, key_file, public_text = sys.argv
    trio.run(attack, chosen, Attacker(aim, int(port_text), load_key(Path(key_file)), bytes.fromhex(public_text)))
