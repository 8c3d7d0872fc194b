"""Connections between actors over real channels: handshakes, signed envelopes, and what happens when one breaks.

A connection is in order and loses nothing while it lives, as TCP's are: a lost frame is a connection that broke, and
all that was under way on it is gone. What is sent while there is none is dropped, because actors send again what is
due. A frame that somebody repeats, changes or makes up ends the connection. A peer whose clock is off by more than the
skew that is allowed is not obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.protocol.channel import Channel, Closed, Established, Heartbeat, ReceivedBatch
from leasekit.core.time import SECOND, Duration, Instant
from leasekit_simulation.faults.scenario import Scenario

REDIAL: Final[tuple[Duration, ...]] = (100, SECOND, 5 * SECOND, 30 * SECOND)
KEPT_FRAMES: Final = 4


class Fate(NamedTuple):
    """What becomes of a frame: ``delays`` has one delay for each copy that arrives."""

    lost: bool
    delays: tuple[Duration, ...]


class Line(Protocol):
    """What links are laid through: the world, as far as they know it."""

    scenario: Scenario
    scheme: Scheme

    @property
    def now(self) -> Instant:
        """The world's own time."""
        ...

    def call_at(self, at: Instant, owner: str, call: Callable[[], None]) -> None:
        """Have something done at an instant."""
        ...

    def mark(self, name: str) -> None:
        """Note that something was met."""
        ...

    def is_up(self, name: str) -> bool:
        """Whether an actor runs."""
        ...

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether nothing gets from one to the other now."""
        ...

    def identity(self, name: str) -> Signer:
        """The key that an actor signs with."""
        ...

    def key_of(self, name: str) -> bytes | None:
        """The key that an actor is known by."""
        ...

    def fate(self, sender: str, receiver: str) -> Fate:
        """What becomes of the next frame from one to the other."""
        ...

    def carry_bytes(self, link: Link, life: int, receiver: str, data: bytes, at: Instant) -> None:
        """Have bytes arrive at an instant, if the link is still in that life of it."""
        ...

    def connected(self, name: str, peer: str) -> None:
        """An actor hears that it is connected."""
        ...

    def arrived(self, sender: str, receiver: str, payload: bytes) -> None:
        """An envelope arrives."""
        ...


class Link:
    """The connection between two actors, which is made anew when it has broken."""

    def __init__(self, world: Line, one: str, other: str) -> None:
        self.world = world
        self.names = (one, other)
        self.life = 0
        self.tries = 0
        self._ends: dict[str, Channel] = {}
        self._latest: dict[str, Instant] = {}
        self.flip = False
        self.kept: list[tuple[int, str, bytes]] = []

    def other(self, name: str) -> str:
        """The peer of ``name`` on this link."""
        return self.names[name == self.names[0]]

    # -- making and breaking -----------------------------------------------------------------------------------

    def dial(self) -> None:
        """Begin a handshake, if both actors are up and nothing is between them; else try again later."""
        one, other = self.names
        if self._ends:
            return
        world = self.world
        if not (world.is_up(one) and world.is_up(other)) or world.is_cut(one, other):
            self.redial()
            return
        self.life += 1
        self._latest = {}
        for place, name in enumerate(self.names):
            self._ends[name] = Channel(
                me=world.identity(name),
                name=name,
                scheme=world.scheme,
                nonce=sha256(f"{world.scenario.seed} {one} {other} {self.life} {place}".encode()).digest(),
                peers=world.key_of,
                initiator=place == 0,
                expect=other if place == 0 else None,
            )
        self.flush(one)

    def redial(self) -> None:
        """Dial later, with backoff."""
        wait = REDIAL[min(self.tries, len(REDIAL) - 1)]
        self.tries += 1
        self.world.call_at(self.world.now + wait, self.names[0], self.dial)

    def fail(self) -> None:
        """The connection breaks; what is under way on it never arrives."""
        if self._ends:
            self.world.mark("connection broken")
            self._ends = {}
            self.life += 1
            self.redial()

    def hurry(self, soon: Instant) -> None:
        """What is under way arrives at ``soon`` at the latest."""
        self._latest = {name: min(at, soon) for name, at in self._latest.items()}

    # -- sending and receiving ---------------------------------------------------------------------------------

    def send(self, sender: str, payload: bytes, sent_at: Instant) -> None:
        """One envelope, if the connection is up."""
        channel = self._ends.get(sender)
        if channel is None or not channel.peer or channel.state.name != "OPEN":
            self.world.mark("dropped for want of a connection")
            return
        channel.send_batch(payload, sent_at)
        self.flush(sender)

    def flush(self, sender: str) -> None:
        """Put on the line what the channel has for it."""
        channel = self._ends.get(sender)
        data = channel.bytes_to_send() if channel is not None else b""
        if data:
            if len(self.kept) < KEPT_FRAMES:
                self.kept.append((self.life, sender, data))
            self.put(sender, data)

    def put(self, sender: str, data: bytes) -> None:
        """Bytes on the line, as the network is at present."""
        world, receiver = self.world, self.other(sender)
        fate = world.fate(sender, receiver)
        if fate.lost:
            self.fail()
            return
        if self.flip and data:
            self.flip = False
            place = len(data) // 2
            data = data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]
        # In order: nothing overtakes what was sent before it.
        at = max(world.now + fate.delays[0], self._latest.get(sender, 0))
        self._latest[sender] = at
        for _ in fate.delays:
            world.carry_bytes(self, self.life, receiver, data, at)

    def take(self, life: int, name: str, data: bytes, now: Instant, skew: Duration) -> None:
        """Bytes arrive at ``name``, whose clock shows ``now``."""
        channel = self._ends.get(name)
        if life != self.life or channel is None:
            return
        for event in channel.receive_bytes(data):
            if isinstance(event, Closed):
                self.world.mark(f"channel: {event.error.code}")
                self.fail()
                return
            if isinstance(event, Established):
                self.tries = 0
                self.world.connected(name, self.other(name))
            elif isinstance(event, ReceivedBatch | Heartbeat) and abs(event.sent_at - now) > skew:
                self.world.mark("clock too far off: not obeyed")
            elif isinstance(event, ReceivedBatch):
                self.world.arrived(self.other(name), name, event.payload)
        self.flush(name)


def make_links(world: Line, names: Sequence[str]) -> dict[frozenset[str], Link]:
    """A link for each pair of actors that have something to say to each other."""
    links = {}
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            if world.scenario.role(one) != world.scenario.role(other) or world.scenario.role(one) == "broker":
                links[frozenset((one, other))] = Link(world, one, other)
    return links
