"""The virtual-time shell where things go wrong: actors that are down for a while, and what does not reach whom.

The fault simulator's world is one of these as well. Who is down or cut off, and when, is not decided here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from leasekit.core.drivers import UNIT
from leasekit.core.steps import ActionDone, ActorLike, Connected, Tick, TurnDone
from leasekit.core.time import Instant
from leasekit.emulation.world import INPUTS, WAKE, Node, World

CALL: Final = 3
"""A kind of event: something is done in an actor's turn."""
Event: TypeAlias = tuple[Instant, int, int, int, Any]
Carrier: TypeAlias = Callable[[str, str, bytes], Instant | None]
"""Says when a batch of messages arrives, from one actor to another; None for one that is lost."""


class FailingWorld(World):
    """Actors that may be down, and pairs of actors of which one does not hear the other."""

    def __init__(self, **settings: Any) -> None:
        """As a world's."""
        super().__init__(**settings)
        self.cuts: dict[tuple[str, str], Instant] = {}
        """Up to when nothing gets from a sender to a receiver."""
        self.carrier: Carrier | None = None

    def is_up(self, name: str) -> bool:
        """Whether an actor runs."""
        return self.nodes[name].up_at <= self.now

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether nothing gets from one to the other now."""
        return bool(self.cuts) and self.cuts.get((sender, receiver), 0) > self.now

    def connect(self, one: str, other: str) -> None:
        """Tell two actors that a connection between them came up."""
        for name, peer in ((one, other), (other, one)):
            if self.is_up(name):
                self.feed(name, [Connected(peer)])

    # -- running -----------------------------------------------------------------------------------------------

    def call_at(self, at: Instant, owner: str, call: Callable[[], None]) -> None:
        """Have something done at an instant, in the turn of an actor, be it up or not."""
        node = self.nodes[owner]
        self._push(at, node.index, CALL, (node, call))

    def _take(self) -> None:
        """The next event, and all inputs of the same actor at the same instant with it."""
        queue = self._queue
        at, index, _, kind, payload = heapq.heappop(queue)
        node: Any = payload[0]
        self.now, self.acting = at, node.actor.name
        due = self._feed(node, kind, payload, at)
        while queue and queue[0][0] == at and queue[0][1] == index:
            _, _, _, kind, payload = heapq.heappop(queue)
            due = self._feed(node, kind, payload, at) or due
        self._step(node, at, due)

    def _feed(self, node: Any, kind: int, payload: Any, at: Instant) -> bool:
        """Take one event in; whether the actor has something to do because of it."""
        if kind == INPUTS:
            node.inbox.extend(payload[1])
            return True
        if kind == WAKE:
            if node.scheduled != at:
                return False
            node.scheduled = None
            self.timers += 1
            return True
        payload[1]()
        return bool(node.inbox)

    def _step(self, node: Any, at: Instant, due: bool) -> None:
        """Let an actor act that has something to do, if it is up."""
        if due and node.up_at <= at:
            self.events += 1
            self.acting = node.actor.name
            node.actor.step(Tick(at))
            self._handle(node)

    def _carry(self, sender: str, receiver: str, data: bytes) -> None:
        if self.carrier is None:
            super()._carry(sender, receiver, data)
        elif (at := self.carrier(sender, receiver, data)) is not None:
            self._deliver(sender, receiver, data, at)

    def fail_actions(self, name: str, unit: str, reason: str) -> None:
        """What an actor's drivers do to a unit fails, when it would have ended."""
        index = self.nodes[name].index
        for _, owner, _, kind, payload in self._queue:
            if owner == index and kind == INPUTS:
                payload[1][:] = [
                    one._replace(ok=False, properties={}, reason=reason, blame=UNIT)
                    if isinstance(one, ActionDone) and one.unit == unit
                    else one
                    for one in payload[1]
                ]

    # -- going down, and coming back ---------------------------------------------------------------------------

    def take_down(self, name: str, back: Instant) -> list[Event]:
        """Lose an actor's memory, what it was sent but has not taken, and its running actions; what arrives before
        ``back`` is lost. Returns what will not happen.
        """
        node = self.nodes[name]
        node.inbox, node.up_at = [], back
        node.scheduled = back  # no tick comes first: the actor is another one then
        lost = [event for event in self._queue if event[1] == node.index and not self._outlives(event, back)]
        if lost:
            gone = {event[2] for event in lost}
            self._queue[:] = [event for event in self._queue if event[2] not in gone]
            heapq.heapify(self._queue)
        return lost

    @staticmethod
    def _outlives(event: Event, back: Instant) -> bool:
        """Whether an event of an actor that goes down still happens to the new one."""
        kind, payload = event[3], event[4]
        if kind == CALL:
            return True
        if kind == INPUTS and isinstance(payload[1][0], ActionDone | TurnDone):
            return False
        return kind != WAKE and bool(event[0] >= back)

    def take_up(self, node: Node, actor: ActorLike, at: Instant) -> None:
        """Have an actor go on ``at`` then, with what its store holds."""
        node.actor = actor
        actor.restore(node.store.load())
        node.scheduled = None
        self._schedule_wake(node, at)
