"""The lean set-up: production actors in virtual time, and nothing around them that no decision depends on.

Messages are handed over as they are, without the wire encoding; nobody signs; no record is kept; what takes no time is
done at once. The actors, their mappers, tickets and state tables are those of the daemons. It is for experiments that
ask what a broker or a site decides, over many leases.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.mappers import AuthorityMapper, BrokerMapper, GuestDecision
from leasekit.core.schema import Change
from leasekit.core.steps import Action, ActionDone, Input, Outgoing, Received, Tick
from leasekit.core.time import DAY, INSTANT_MAX, Duration, Instant
from leasekit.core.tuples import new_tuple
from leasekit.emulation.world import INPUTS, ActionModel, Node, World, instant
from leasekit.policies.guest.manual import Manual
from leasekit.stores.memory import Forgetful

BROKER: Final = "broker"
SITE: Final = "nodes"
"""The site, where there is one."""
WHOLE_RUN: Final[Duration] = 100_000 * DAY
"""Nothing is lost on the way, so that nothing need be said again; and what may wait, may wait for the whole run."""
OVER: Final = (f"{sm.CLOSED}/{NONE}", f"{sm.FAILED}/{NONE}")
"""The states of a guest's lease that is over, as its log has them."""
DECISION: Final = 2
Observe = Callable[[Instant, str, Sequence[Change]], None]


class LeanWorld(World):
    """A world without wire and network. At each instant actors take their turns, each with all that is there for it,
    until nothing is left to do.
    """

    def __init__(self, *, observe: Observe | None = None, start: Instant = 0) -> None:
        super().__init__(tick=1, observe=observe, start=start)
        self._due: dict[str, Node] = {}

    def put(self, actor: Actor, model: ActionModel = instant, *, records: bool = False, log: bool = True) -> None:
        """Put an actor into the world. Nothing keeps its records and its log; ``records`` are made, and the ``log`` is,
        for who observes.
        """
        kernel = actor.kernel
        kernel.keeps_records, kernel.keeps_counters, kernel.keeps_log, kernel.resends = records, False, log, False
        self.add(actor, Forgetful(), model)

    def _run_events(self, until: Instant) -> None:
        queue = self._queue
        self._drain()
        while queue and queue[0][0] <= until:
            self.now = queue[0][0]
            while queue and queue[0][0] == self.now:
                self._take()
            self._drain()

    def decide_at(self, at: Instant, guest: str, decision: GuestDecision) -> None:
        """Have a guest carry out a decision, as one of its mapper, at an instant that is not past. One that can't be
        carried out changes nothing: to close a lease that is over, say.
        """
        self._push(at, self.nodes[guest].index, DECISION, (self.nodes[guest], decision))

    def _take(self) -> None:
        at, _, _, kind, (node, *inputs) = heapq.heappop(self._queue)
        if kind == INPUTS:
            self._give(node, inputs[0])
        elif kind == DECISION:
            guest = cast(ServiceManager, node.actor)
            guest.step(Tick(at))
            with suppress(CommandError):
                guest.turns.carry_out(inputs[0])
            self._due[node.actor.name] = node
        elif node.scheduled == at:
            node.scheduled = None
            self._due[node.actor.name] = node

    def _give(self, node: Node, inputs: Iterable[Input]) -> None:
        node.inbox.extend(inputs)
        self._due[node.actor.name] = node

    def _drain(self) -> None:
        due, tick = self._due, Tick(self.now)
        acted: dict[str, Node] = {}
        while due:
            name = next(iter(due))
            node = acted[name] = due.pop(name)
            self.acting = name
            self.events += 1
            node.actor.step(tick)
            self._act(node)
            while node.inbox:  # actions that took no time
                self._act(node)
        for node in acted.values():  # only now: most of what an actor waits for has come at the same instant
            self._wake(node)

    def _send(self, sender: str, outgoing: Iterable[Outgoing]) -> None:
        for peer, message in outgoing:
            self._give(self.nodes[peer], (Received(sender, message),))
            self.messages += 1

    def _start(self, node: Node, actions: Sequence[Action]) -> None:
        self.actions += len(actions)
        for action in actions:
            latency, *how = node.model(action)
            done = new_tuple(ActionDone, (action.number, action.unit, *how))
            if latency:
                self._push(self.now + latency, node.index, INPUTS, (node, (done,)))
            else:
                node.inbox.append(done)


def lean_world(
    guests: Iterable[str],
    broker: BrokerMapper,
    sites: Mapping[str, tuple[AuthorityMapper, AuthoritySettings]],
    *,
    model: ActionModel = instant,
    observe: Observe | None = None,
    start: Instant = 0,
    asking: GuestSettings | None = None,
    site_records: bool = False,
    only_guests: bool = False,
) -> LeanWorld:
    """One broker with the mapper ``broker``; ``sites``, each with its mapper and settings, which give all of their
    inventories to the broker for ever; and ``guests``, which ask for what they are told to. ``model`` says how long the
    sites' actions take, ``asking`` when guests redeem and extend; ``observe`` hears of all logs, and of the sites'
    records if ``site_records``; of the servers' logs only complaints if it is for ``only_guests``.
    """
    roles = {BROKER: "broker", **dict.fromkeys(sites, "authority"), **dict.fromkeys(guests, "guest")}
    keys = {name: UnsignedIdentity(name) for name in roles}
    peers = {
        name: Peer(name=name, key=key.public, role=roles[name], open_requests=INSTANT_MAX, priority_max=INSTANT_MAX)
        for name, key in keys.items()
    }
    clients = [peer for peer in peers.values() if peer.role == "guest"]
    servers = [peers[BROKER], *(peers[name] for name in sites)]
    patient = BrokerSettings(
        defer_max=WHOLE_RUN, pending_max=INSTANT_MAX, kept_bytes=INSTANT_MAX, redeem_within=0, booked_hours=0
    )
    world = LeanWorld(observe=observe, start=start)
    world.put(Broker(BROKER, keys[BROKER], UNSIGNED, [*servers[1:], *clients], broker, patient), log=not only_guests)
    for name, (mapper, settings) in sites.items():
        given = tuple(
            DelegationSpec(broker=BROKER, type=group.type, units=len(group.names), until=INSTANT_MAX)
            for group in settings.inventory
        )
        owner = attrs.evolve(settings, delegations=given, kept_bytes=INSTANT_MAX)
        site = Authority(name, keys[name], UNSIGNED, [peers[BROKER], *clients], mapper, owner)
        world.put(site, model, records=site_records, log=not only_guests)
    asking = attrs.evolve(asking or GuestSettings(), defer_max=WHOLE_RUN, drives=False)
    for peer in clients:
        world.put(ServiceManager(peer.name, keys[peer.name], UNSIGNED, servers, Manual(), asking))
    world.run_until(start)
    return world
