"""The network of a simulated world: it loses, repeats, delays and reorders frames, and is cut or slowed for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import BATCH_MAX, Message
from leasekit.core.steps import Connected, Received
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.emulation.world import INPUTS
from leasekit_simulation.faults.links import Fate, Link
from leasekit_simulation.faults.population import Population
from leasekit_simulation.faults.scenario import Scenario

BYTES: Final = 2
"""A kind of event: bytes arrive on a connection."""
DELAYS: Final[tuple[Duration, ...]] = (1, 1, 5, 5, 50, 50, 500, 3000)
LATE: Final[tuple[Duration, ...]] = (20 * SECOND, 90 * SECOND, 15 * MINUTE, 20 * SECOND)


LOST: Final = Fate(True, ())


class Network(Population):
    """What is between the actors."""

    def __init__(self, scenario: Scenario, *, faulty: bool = True) -> None:
        super().__init__(scenario, faulty=faulty)
        self.slow: dict[str, Instant] = {}
        self.on_hostile: Callable[[str, str, Message], None] = lambda sender, receiver, message: None
        self.twist: Callable[[str, Sequence[tuple[str, Message]]], Sequence[tuple[str, Message]]] = _as_it_is
        self._explicit = None if scenario.faults is None else _by_occasion(scenario.faults)
        self._streams: dict[tuple[str, str], tuple[Random, list[int]]] = {}
        self._links: dict[frozenset[str], Link] = {}

    # -- network -----------------------------------------------------------------------------------------------

    def fate(self, sender: str, receiver: str) -> Fate:
        """What becomes of the next frame from one to the other."""
        if not self.faults_on:
            return Fate(False, (10,))
        pair = (sender, receiver)
        stream = self._streams.get(pair)
        if stream is None:
            stream = self._streams[pair] = (Random(f"{self.scenario.seed} net {sender}>{receiver}"), [0])
        rng, count = stream
        bits = rng.getrandbits(64)
        count[0] += 1
        if self.is_cut(sender, receiver):
            self.mark("lost in a cut")
            return LOST
        what = self._what_happens(sender, receiver, count[0], bits)
        delay = DELAYS[bits >> 48 & 7]
        if self.slow and (self.slow.get(sender, 0) > self.now or self.slow.get(receiver, 0) > self.now):
            self.mark("slowed down")
            delay = 10 * delay + 2 * SECOND
        if what == "lose":
            return LOST
        if what == "repeat":
            return Fate(False, (delay, DELAYS[bits >> 51 & 7]))
        if what == "late":
            return Fate(False, (LATE[bits >> 54 & 3],))
        return Fate(False, (delay,))

    def _what_happens(self, sender: str, receiver: str, number: int, bits: int) -> str:
        if self._explicit is not None:
            what = self._explicit.get(f"net {sender}>{receiver} {number}", "")
        else:
            rates = self.scenario.rates
            what = ""
            if (bits & 0xFFFF) < rates.lose * 65536:
                what = "lose"
            elif (bits >> 16 & 0xFFFF) < rates.repeat * 65536:
                what = "repeat"
            elif (bits >> 32 & 0xFFFF) < rates.late * 65536:
                what = "late"
        if what:
            self.mark(f"network: {what}")
            self.inject(f"net {sender}>{receiver} {number}", what)
        return what

    def what_happens(self, occasion: str, drawn: str) -> str:
        """What small fault there is at an occasion: the one that is listed for it, else the one that was drawn."""
        what = drawn if self._explicit is None else self._explicit.get(occasion, "")
        if what:
            self.inject(occasion, what)
        return what

    def _send(self, sender: str, outgoing: Any) -> None:
        batches: dict[str, list[Message]] = {}
        outgoing = self.twist(sender, outgoing)
        for receiver, message in outgoing:
            batch = batches.get(receiver)
            if batch is None:
                batch = batches[receiver] = []
            batch.append(message)
            for heard in self._handlers(0, type(message)):
                heard(self.now, sender, receiver, message)
        self.messages += len(outgoing)
        for receiver, messages in batches.items():
            if receiver in self.nodes:
                for first in range(0, len(messages), BATCH_MAX):  # as connections do
                    self._cast(sender, receiver, encode_batch(messages[first : first + BATCH_MAX]))
            else:
                for message in messages:
                    self.on_hostile(sender, receiver, message)

    def _cast(self, sender: str, receiver: str, data: bytes) -> None:
        link = self._links.get(frozenset((sender, receiver))) if self._links else None
        if link is not None:
            link.send(sender, data, self.clock(sender))
            return
        if self.scenario.forgets and not self.knows(sender, receiver):
            self.mark("not said: forgotten")
            return
        fate = self.fate(sender, receiver)
        for delay in fate.delays:
            self._deliver(sender, receiver, data, self.now + delay)

    def _deliver(self, sender: str, receiver: str, data: bytes, at: Instant) -> None:
        node = self.node(receiver)
        if node.up_at > at:
            if node.asleep_until <= at:
                return
            at = node.asleep_until
        inputs = [Received(sender, item) for item in decode_batch(data) if not isinstance(item, UnknownKind)]
        self._note_order(sender, receiver, at)
        self._push(at, node.index, INPUTS, (node, inputs))

    def _note_order(self, sender: str, receiver: str, at: Instant) -> None:
        stream = self._streams.get((sender, receiver))
        if stream is not None:
            latest = stream[1][1] if len(stream[1]) > 1 else 0
            if at < latest:
                self.mark("network: reorder")
            stream[1][1:] = [max(at, latest)]

    # -- links -------------------------------------------------------------------------------------------------

    def link(self, one: str, other: str) -> Link | None:
        """The connection between two actors, where they have one."""
        return self._links.get(frozenset((one, other)))

    @property
    def links(self) -> list[Link]:
        """All connections, up or not."""
        return list(self._links.values())

    def carry_bytes(self, link: Link, life: int, receiver: str, data: bytes, at: Instant) -> None:
        """Bytes are under way on a connection."""
        node = self.nodes[receiver]
        self._push(at, node.index, BYTES, (node, link, life, data))

    def arrived(self, sender: str, receiver: str, payload: bytes) -> None:
        """An envelope was opened: its messages are in the actor's inbox."""
        if self.node(receiver).up_at <= self.now:
            self.node(receiver).inbox += [
                Received(sender, item) for item in decode_batch(payload) if not isinstance(item, UnknownKind)
            ]

    def connected(self, name: str, peer: str) -> None:
        """A connection came up."""
        self.node(name).inbox.append(Connected(peer))


def _as_it_is(sender: str, outgoing: Sequence[tuple[str, Message]]) -> Sequence[tuple[str, Message]]:
    return outgoing


def _by_occasion(faults: Sequence[str]) -> dict[str, str]:
    """Keys of faults, such as ``net guest-0>broker-0 17 lose``, by their first three words."""
    found = {}
    for key in faults:
        words = key.split(" ", 3)
        found[" ".join(words[:3])] = words[3] if len(words) > 3 else ""
    return found
