"""A bench for actors: the virtual-time shell with the production mappers, drivers that can be told to fail, a network
that can be told to lose, hold or repeat messages, clocks that differ, and actors that can be crashed.

Everything that crosses the wire or reaches a driver can be listened to (:attr:`Bench.listeners`): that is where
scripts get their lines from, and checkers their facts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import ED25519, UNSIGNED, Keypair, Scheme, Signer, UnsignedIdentity
from leasekit.core.drivers import SITE, UNIT, Blame
from leasekit.core.mappers import AuthorityMapper, BrokerMapper, GuestMapper
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import LOG, Change, Row
from leasekit.core.steps import Action, ActionDone, Connected, Input, Ready, Received, Tick, Turn
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.emulation.world import INPUTS, Node, Outcome, World
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.stores.memory import MemoryStore

LATENCIES: Mapping[str, Duration] = {
    "setup": 2000,
    "teardown": 1000,
    "modify": 500,
    "join": 200,
    "leave": 100,
    "power_on": 180_000,
    "power_off": 30_000,
    "suspend": 10_000,
    "resume": 15_000,
}
"""How long each kind of action takes if nothing else is said, in milliseconds: all different, so that order shows."""


@attrs.frozen(kw_only=True)
class Plan:
    """Who is in a bench. ``sites`` maps each site's name to its units by type; ``clocks`` gives offsets in ms."""

    guests: tuple[str, ...] = ("guest",)
    sites: Mapping[str, Mapping[str, int]] = attrs.Factory(lambda: {"site": {"vm": 4}})
    guest: GuestSettings = attrs.Factory(GuestSettings)
    broker: BrokerSettings = attrs.Factory(BrokerSettings)
    site: AuthoritySettings = attrs.Factory(AuthoritySettings)
    clocks: Mapping[str, Duration] = attrs.Factory(dict)
    signed: bool = False
    degree: int = 1000
    delegated: int = 0
    """How many units of each type the broker gets (0: all there are)."""
    power: bool = False
    """Whether the sites' units can be switched on and off."""


class Mappers(NamedTuple):
    """What makes the mapper of each actor, by name; each restart makes a new one."""

    guest: Callable[[], GuestMapper] = Manual
    broker: Callable[[], BrokerMapper] = Fcfs
    site: Callable[[], AuthorityMapper] = FirstFit


class Listener(Protocol):
    """Hears what happens, in the order in which it does."""

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None: ...

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None: ...

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None: ...

    def started(self, at: Instant, actor: str, action: Action) -> None: ...

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None: ...


class Shifted:
    """An actor whose clock is ``offset`` milliseconds ahead of the world's."""

    def __init__(self, actor: Actor, offset: Duration) -> None:
        self.actor = actor
        self.name = actor.name
        self.offset = offset

    def step(self, input: Input) -> None:
        """As the actor's, by its own clock."""
        self.actor.step(Tick(max(0, input.now + self.offset)) if isinstance(input, Tick) else input)

    def turn(self) -> Turn | None:
        """As the actor's."""
        return self.actor.turn()

    def ready(self) -> Ready | None:
        """As the actor's."""
        return self.actor.ready()

    def wake_at(self) -> Instant | None:
        """As the actor's, by the world's clock."""
        at = self.actor.wake_at()
        return None if at is None else max(0, at - self.offset)

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """As the actor's."""
        self.actor.restore(tables)

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """As the actor's."""
        return self.actor.query(name, arguments)


class Fault(NamedTuple):
    """What becomes of the next ``times`` messages of a kind (``*``: any) from one actor to another."""

    what: str
    sender: str
    receiver: str
    kind: str
    times: int


class Bench(World):
    """A world of guests, one broker and sites."""

    def __init__(self, plan: Plan | None = None, mappers: Mappers | None = None, *, tick: Duration = SECOND) -> None:
        super().__init__(tick=tick, observe=self._observed)
        self.plan = plan or Plan()
        self.mappers = mappers or Mappers()
        self.listeners: list[Listener] = []
        self.faults: list[Fault] = []
        self.failures: dict[tuple[str, str, str], int] = {}
        self.blames: dict[str, Blame] = {}
        self.latencies: dict[tuple[str, str], Duration] = {}
        self.cut: set[frozenset[str]] = set()
        self.kept: list[tuple[str, str, bytes]] = []
        self.last: dict[tuple[str, str, str], bytes] = {}
        self.delay_ms = 10
        self._identities: dict[str, Signer] = {}
        self._roles = {"broker": "broker"}
        self._roles.update(dict.fromkeys(self.plan.guests, "guest"))
        self._roles.update(dict.fromkeys(self.plan.sites, "authority"))
        self.scheme: Scheme = ED25519 if self.plan.signed else UNSIGNED
        for number, name in enumerate(self._roles):
            secret = bytes([number + 1]) * 32
            self._identities[name] = Keypair(secret) if self.plan.signed else UnsignedIdentity(name)

    def start(self) -> Bench:
        """Put every actor into the world and let the sites delegate."""
        for name in (*self.plan.guests, "broker", *self.plan.sites):
            self.add(self.make(name), MemoryStore(), self._model(name))
        self.run_until(SECOND)
        return self

    # -- actors ------------------------------------------------------------------------------------------------

    def peers(self, name: str) -> list[Peer]:
        """Who an actor knows: everybody else."""
        return [
            Peer(name=other, key=self._identities[other].public, role=role)
            for other, role in self._roles.items()
            if other != name
        ]

    def identity(self, name: str) -> Signer:
        """What an actor signs with."""
        return self._identities[name]

    def make(self, name: str) -> Shifted:
        """An actor without any state."""
        me, peers, plan = self._identities[name], self.peers(name), self.plan
        actor: Actor
        if name in plan.guests:
            actor = ServiceManager(name, me, self.scheme, peers, self.mappers.guest(), plan.guest)
        elif name == "broker":
            made = self.mappers.broker
            actor = Broker(name, me, self.scheme, peers, made(), plan.broker, fresh=made)
        else:
            units = plan.sites[name]
            settings = attrs.evolve(
                plan.site,
                inventory=tuple(
                    UnitGroup(type=type_, names=tuple(f"{type_}-{i}" for i in range(count)), power=plan.power)
                    for type_, count in units.items()
                ),
                delegations=tuple(
                    DelegationSpec(broker="broker", type=type_, units=plan.delegated or count, degree=plan.degree)
                    for type_, count in units.items()
                ),
            )
            actor = Authority(name, me, self.scheme, peers, self.mappers.site(), settings)
        return Shifted(actor, plan.clocks.get(name, 0))

    def actor(self, name: str) -> Any:
        """The actor itself, whatever wraps it."""
        made = self.nodes[name].actor
        return made.actor if isinstance(made, Shifted) else made

    def crash(self, name: str) -> None:
        """Lose an actor's memory, what it was sent but has not taken, and its running actions; start it anew."""
        node = self.nodes[name]
        node.actor = self.make(name)
        node.inbox = []
        self._queue[:] = [
            event for event in self._queue if not (event[1] == node.index and self._is_completion(event[3], event[4]))
        ]
        heapq.heapify(self._queue)
        node.actor.restore(node.store.load())
        node.scheduled = None
        self._schedule_wake(node, self.now)

    @staticmethod
    def _is_completion(kind: int, payload: Any) -> bool:
        return kind == INPUTS and isinstance(payload[1][0], ActionDone)

    def connect(self, one: str, other: str) -> None:
        """Tell two actors that a connection between them came up."""
        self.feed(one, [Connected(other)])
        self.feed(other, [Connected(one)])

    # -- what happens ------------------------------------------------------------------------------------------

    def _observed(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        rows = [change.row for change in changes if change.table == LOG and change.row is not None]
        for listener in self.listeners:
            listener.committed(at, actor, rows)

    def _send(self, sender: str, outgoing: Any) -> None:
        """One batch for each message, so that each can meet its own fate."""
        for receiver, message in outgoing:
            self.messages += 1
            self.transmit(sender, receiver, message)

    def transmit(self, sender: str, receiver: str, message: Message) -> None:
        """Send one message, as the network is at present."""
        kind, data = type(message).__name__, encode_batch([message])
        self.last[sender, receiver, kind] = data
        fate = self._fate(sender, receiver, kind)
        for listener in self.listeners:
            listener.sent(self.now, sender, receiver, message, fate)
        if fate == "keep":
            self.kept.append((sender, receiver, data))
        elif fate != "lose":
            for copy in range(2 if fate == "repeat" else 1):
                self._deliver(sender, receiver, data, self.now + self.delay_ms * (1 + 3 * copy))

    def _fate(self, sender: str, receiver: str, kind: str) -> str:
        if frozenset((sender, receiver)) in self.cut:
            return "lose"
        for place, fault in enumerate(self.faults):
            if (fault.sender, fault.receiver) == (sender, receiver) and fault.kind in ("*", kind):
                if fault.times > 1:
                    self.faults[place] = fault._replace(times=fault.times - 1)
                else:
                    del self.faults[place]
                return fault.what
        return ""

    def release(self) -> None:
        """Deliver what was kept, the last one first."""
        kept, self.kept = self.kept, []
        for place, (sender, receiver, data) in enumerate(reversed(kept)):
            self._deliver(sender, receiver, data, self.now + 1 + place)

    def resend(self, sender: str, receiver: str, kind: str) -> None:
        """Deliver the last message of a kind once more: a repeat that was long on its way."""
        self._deliver(sender, receiver, self.last[sender, receiver, kind], self.now + 1)

    def receive(self, receiver: str, sender: str, *messages: Message) -> None:
        """Have an actor receive messages that a peer might have sent, now."""
        decoded = decode_batch(encode_batch(messages))
        self.feed(receiver, [Received(sender, item) for item in decoded if not isinstance(item, UnknownKind)])

    def _model(self, name: str) -> Callable[[Action], Outcome]:
        def outcome(action: Action) -> Outcome:
            unit = action.unit.rpartition("/")[2]
            left = self.failures.get((name, action.op, unit), 0)
            latency = self.latencies.get((name, action.op), LATENCIES[action.op])
            if left:
                self.failures[name, action.op, unit] = left - 1
                blame = self.blames.get(unit, self.blames.get(name, UNIT))
                return Outcome(latency, False, {}, "no such image" if blame != SITE else "the directory is down", blame)
            return Outcome(latency, True, {"host": f"{unit}.example"} if action.op == "setup" else {}, "")

        return outcome

    def _start(self, node: Node, actions: Sequence[Action]) -> None:
        for action in actions:
            for listener in self.listeners:
                listener.started(self.now, node.actor.name, action)
            self.actions += 1
            result = node.model(action)
            done = ActionDone(action.number, action.unit, *result[1:])
            self._push(self.now + result.latency, node.index, INPUTS, (node, [done]))

    def _handle(self, node: Node) -> None:
        """As the world's, with listeners, and places where an actor may crash."""
        actor, name = node.actor, node.actor.name
        inbox, node.inbox = node.inbox, []
        for item in inbox:
            self._hear(name, item)
            actor.step(item)
        while (turn := actor.turn()) is not None:
            actor.step(turn.run())
        ready = actor.ready()
        if ready is not None:
            # A command's reply is part of its Ready: it is not given if the actor crashes first.
            if not ready.replies and self._crashes(node, "before commit"):
                return
            if ready.changes:
                node.store.commit(ready.changes)
                self._observed(self.now, name, ready.changes)
            for reply in ready.replies:
                self.replies[reply.id] = reply
            if self._crashes(node, "before send"):
                return
            if ready.messages:
                self._send(name, ready.messages)
            if self._crashes(node, "before action"):
                return
            if ready.actions:
                self._start(node, ready.actions)
        node.wake = actor.wake_at()
        if node.wake is not None:
            self._schedule_wake(node, node.wake)

    def _hear(self, name: str, item: Input) -> None:
        for listener in self.listeners:
            if isinstance(item, ActionDone):
                listener.ended(self.now, name, item)
            elif isinstance(item, Received):
                listener.received(self.now, item.peer, name, item.message)

    def _crashes(self, node: Node, when: str) -> bool:
        """Whether the actor crashes here, and has crashed: a subclass says."""
        return False
