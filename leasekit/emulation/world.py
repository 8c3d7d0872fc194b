"""The virtual-time shell: any number of production actors on one event queue.

Events are ordered by (instant, actor, sequence), and the clock jumps from one to the next: the same inputs and seed
give the same run, byte for byte. Messages are copied through the wire encoding, unless they are to be handed over as
they are, and arrive after the network's delay; actions end after the driver's latency model says so; everything else is
the code that a daemon runs. What may fail on purpose (the network, an actor, a store) is a subclass's to say: here
nothing does.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from leasekit.core.drivers import UNIT, Blame
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import Change, Store
from leasekit.core.steps import (
    Action,
    ActionDone,
    ActorLike,
    Command,
    Connected,
    Input,
    Outgoing,
    Received,
    Reply,
    Tick,
    Turn,
    TurnDone,
)
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.core.tuples import new_tuple

BATCH_MESSAGES: Final = 256


class Outcome(NamedTuple):
    """How an action ends: after ``latency`` milliseconds, with these properties, or failed for ``reason``, by whose
    fault.
    """

    latency: Duration
    ok: bool
    properties: Properties
    reason: str
    blame: Blame = UNIT


ActionModel: TypeAlias = Callable[[Action], Outcome]
"""Says how an action ends, as a pure function of the action: what takes a driver's place in virtual time."""

Delay: TypeAlias = Callable[[str, str], Duration]
"""The network's delay for one batch of messages from one actor to another, in milliseconds."""


AT_ONCE: Final = Outcome(0, True, {}, "")


def instant(action: Action) -> Outcome:
    """The action model that takes no time and never fails."""
    return AT_ONCE


def no_delay(sender: str, receiver: str) -> Duration:
    """The network that takes no time."""
    return 0


@contextmanager
def few_collections() -> Iterator[None]:
    """Records are not garbage: looking for cycles among them at every few hundred allocations is wasted time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@attrs.define(slots=True, eq=False)
class Node:
    """One actor in the world, with what a daemon would have around it."""

    index: int
    actor: ActorLike
    store: Store
    model: ActionModel
    inbox: list[Input] = attrs.Factory(list)
    wake: Instant | None = None
    scheduled: Instant | None = None
    up_at: Instant = 0
    """From when on the actor runs (again)."""
    name: str = attrs.field(default=attrs.Factory(lambda self: self.actor.name, takes_self=True), init=False)


UNHEARD: Final = 0
"""The id of commands whose reply nobody waits for."""
WAKE: Final = 0
INPUTS: Final = 1


class World:
    """Actors, the event queue and the clock."""

    def __init__(
        self,
        *,
        tick: Duration = SECOND,
        delay: Delay = no_delay,
        every_tick: bool = False,
        copies: bool = True,
        observe: Callable[[Instant, str, Sequence[Change]], None] | None = None,
        start: Instant = 0,
    ) -> None:
        """``tick`` is the period of the actors' clock, counted from 0; with ``every_tick`` each tick of every actor is
        executed as a daemon's shell would, else those at which nothing is due are skipped. Both give the same run.

        Wake-ups wait for the next tick; messages and the ends of actions are taken when they come. Without ``copies``
        messages are handed over as they are, not through the wire encoding: the same run again, in less time.
        """
        if tick <= 0:
            raise ValueError(f"tick: found {tick}, expected a period of at least 1 ms")
        self.now: Instant = start
        self.acting = ""
        """The actor that has the floor."""
        self.nodes: dict[str, Node] = {}
        self.events = 0
        self.ticks = 0
        self.timers = 0
        """How often an actor was woken by its own timer, or for its mapper, however many were due then."""
        self.messages = 0
        self.actions = 0
        self.replies: dict[int, Reply] = {}
        self._tick = tick
        self._delay = delay
        self._every_tick = every_tick
        self.copies = copies
        self._next_tick = start + (-start) % tick
        self._observe = observe
        self._queue: list[tuple[Instant, int, int, int, Any]] = []
        self._sequence = 0
        self._command = 0

    # -- building ----------------------------------------------------------------------------------------------

    def add(self, actor: ActorLike, store: Store, model: ActionModel = instant) -> Node:
        """Put an actor into the world; it takes up what its store holds and is ticked at once."""
        node = self.nodes[actor.name] = Node(len(self.nodes), actor, store, model)
        actor.restore(store.load())
        self._schedule_wake(node, self.now)
        return node

    def reload(self, actor: ActorLike) -> None:
        """Go on with ``actor``, which has other settings, in the place of the one of its name: it takes up what the
        store holds, and what is on its way to it comes.
        """
        node = self.nodes[actor.name]
        actor.restore(node.store.load())
        node.actor = actor
        self.feed(actor.name, [Connected(other) for other in self.nodes if other != actor.name])

    # -- running -----------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> Instant | None:
        """When something happens next, if anything will."""
        return self._queue[0][0] if self._queue else None

    def run_until(self, until: Instant) -> None:
        """Let time pass up to and including ``until``."""
        if self._every_tick:
            self._run_every_tick(until)
        else:
            self._run_events(until)
        self.now = max(self.now, until)

    def _run_events(self, until: Instant) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until:
            self._take()

    def _run_every_tick(self, until: Instant) -> None:
        """Every actor is ticked at every tick; what is due then, and what comes in between, keeps its order."""
        nodes, queue = list(self.nodes.values()), self._queue
        while self._next_tick <= until:
            at = self._next_tick
            self._next_tick += self._tick
            while queue and queue[0][0] < at:
                self._take()
            self.now = at
            tick = Tick(at)
            for node in nodes:
                if node.scheduled != at and node.up_at <= at:  # those that are due get their tick in their turn
                    self.acting = node.name
                    node.actor.step(tick)
                    self._handle(node)
            while queue and queue[0][0] <= at:
                self._take()
            self.ticks += 1
        self._run_events(until)

    def _take(self) -> None:
        """The next event, and all inputs of the same actor at the same instant with it."""
        queue = self._queue
        at, index, _, kind, payload = heapq.heappop(queue)
        node: Node = payload[0]
        if kind == WAKE:
            if node.scheduled != at:
                return
            node.scheduled = None
            self.timers += 1
        else:
            node.inbox.extend(payload[1])
        while queue and queue[0][0] == at and queue[0][1] == index:
            _, _, _, kind, payload = heapq.heappop(queue)
            if kind == INPUTS:
                node.inbox.extend(payload[1])
            elif node.scheduled == at:
                node.scheduled = None
                self.timers += 1
        self.now, self.acting = at, node.name
        self.events += 1
        node.actor.step(new_tuple(Tick, (at,)))
        self._handle(node)

    def _handle(self, node: Node) -> None:
        """Let an actor act, and wake it when it next has something to do."""
        self._act(node)
        self._wake(node)

    def _act(self, node: Node) -> None:
        """Step what is in the inbox, run mapper turns in line, and do what is wanted: commit, send, start."""
        actor = node.actor
        if node.inbox:
            inbox, node.inbox = node.inbox, []
            for item in inbox:
                actor.step(item)
        while (turn := actor.turn()) is not None:
            actor.step(self._run_turn(turn))
        ready = actor.ready()
        if ready is not None:
            if ready.changes:
                node.store.commit(ready.changes)
                if self._observe is not None:
                    self._observe(self.now, self.acting, ready.changes)
            for reply in ready.replies:
                if reply.id != UNHEARD:
                    self.replies[reply.id] = reply
            if ready.messages:
                self._send(self.acting, ready.messages)
            if ready.actions:
                self._start(node, ready.actions)

    def _wake(self, node: Node) -> None:
        wake = node.wake = node.actor.wake_at()
        if wake is not None and (node.scheduled is None or wake < node.scheduled):
            self._schedule_wake(node, wake)

    def _run_turn(self, turn: Turn) -> TurnDone:
        return turn.run()

    def _schedule_wake(self, node: Node, at: Instant) -> None:
        at = max(at + (-at) % self._tick, self.now)
        if node.scheduled is None or at < node.scheduled:
            node.scheduled = at
            self._push(at, node.index, WAKE, (node,))
        node.wake = at

    def _push(self, at: Instant, index: int, kind: int, payload: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (at, index, self._sequence, kind, payload))

    # -- network, drivers --------------------------------------------------------------------------------------

    def _send(self, sender: str, outgoing: Iterable[Outgoing]) -> None:
        """Send messages in batches, one for each receiver, through the wire encoding."""
        batches: dict[str, list[Message]] = {}
        for peer, message in outgoing:
            batches.setdefault(peer, []).append(message)
        for peer, messages in batches.items():
            self.messages += len(messages)
            if not self.copies:
                self._hand(sender, peer, messages, self.now + self._delay(sender, peer))
                continue
            for first in range(0, len(messages), BATCH_MESSAGES):
                self._carry(sender, peer, encode_batch(messages[first : first + BATCH_MESSAGES]))

    def _carry(self, sender: str, receiver: str, data: bytes) -> None:
        """Deliver one batch after the network's delay."""
        self._deliver(sender, receiver, data, self.now + self._delay(sender, receiver))

    def _deliver(self, sender: str, receiver: str, data: bytes, at: Instant) -> None:
        self._hand(sender, receiver, [item for item in decode_batch(data) if not isinstance(item, UnknownKind)], at)

    def _hand(self, sender: str, receiver: str, messages: Iterable[Message], at: Instant) -> None:
        node = self.nodes.get(receiver)
        if node is not None:
            self._push(at, node.index, INPUTS, (node, [new_tuple(Received, (sender, message)) for message in messages]))

    def _start(self, node: Node, actions: Sequence[Action]) -> None:
        """Ask the latency model how each action ends; those that end together come back as one event."""
        ends: dict[Instant, list[ActionDone]] = {}
        for action in actions:
            latency, *how = node.model(action)
            done = new_tuple(ActionDone, (action.number, action.unit, *how))
            ends.setdefault(self.now + latency, []).append(done)
        self.actions += len(actions)
        for at, done_ in ends.items():
            self._push(at, node.index, INPUTS, (node, done_))

    # -- the operator's hand -----------------------------------------------------------------------------------

    def command(self, actor: str, name: str, /, **arguments: Any) -> Reply:
        """Have an actor carry out a command now; returns its reply. Time does not pass."""
        self._command += 1
        self.feed(actor, [Command(self._command, name, arguments)])
        return self.replies.pop(self._command)

    def command_at(self, at: Instant, actor: str, name: str, /, **arguments: Any) -> None:
        """Have an actor carry out a command at an instant that is not past; nobody hears what it answers."""
        self._push(at, self.nodes[actor].index, INPUTS, (self.nodes[actor], [Command(UNHEARD, name, arguments)]))

    def feed(self, actor: str, inputs: Iterable[Input]) -> None:
        """Give an actor inputs now, all in one batch; :attr:`replies` keeps what commands were answered."""
        node = self.nodes[actor]
        self.acting = actor
        node.actor.step(Tick(self.now))
        node.inbox.extend(inputs)
        self._handle(node)

    def query(self, actor: str, name: str, /, **arguments: Any) -> Any:
        """Ask an actor. Raises ``CommandError``."""
        return self.nodes[actor].actor.query(name, arguments)
