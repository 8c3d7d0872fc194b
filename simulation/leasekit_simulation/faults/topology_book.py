"""The checker of topologies: what is held for plans, and when guests redeem what they planned.

It keeps its own book, from the messages alone: which parts a plan has, which lease asks for which part, whose ticket
has come. At the end it looks at what brokers and guests still have.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from leasekit.core.leases.plans import ASKING, COMMITTING, USED
from leasekit.core.protocol.messages import NEW, Planned, Redeem, ReleaseParts, RequestTicket, TicketUpdate
from leasekit.core.time import MINUTE, SECOND, Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.networks import draw_request
from leasekit_simulation.faults.population import Population

SLACK: Final = 2 * SECOND
"""How much longer than its store's clock a hold must last to be looked for."""


class TopologyChecker(Listening):
    """No member of a group that is not decided is redeemed; nothing is held beyond its expiry; all comes to an end."""

    def __init__(self, world: Population) -> None:
        super().__init__()
        self.world = world
        self.sends = {
            RequestTicket: self._request, Redeem: self._redeem, Planned: self._planned, ReleaseParts: self._releases,
        }  # fmt: skip
        self.receives = {TicketUpdate: self._ticket, ReleaseParts: self._release, Planned: self._heard_plan}
        self._plan_of: dict[tuple[str, str], tuple[str, Instant]] = {}
        self._over: set[tuple[str, str]] = set()
        """Plans that brokers need not hold any more: released, or asked for, which may have been refused."""
        self._promised: dict[str, dict[str, Instant]] = {}
        self._parts: dict[str, frozenset[str]] = {}
        self._expires: dict[str, Instant] = {}
        self._part_of: dict[str, tuple[str, str]] = {}
        self._ticketed: dict[str, set[str]] = {}
        self._told: dict[tuple[str, str], str] = {}
        """Guests and plans that they have heard of, from which broker."""
        self._settled: set[tuple[str, str]] = set()
        """Guests and plans that they have asked for, or released."""

    def _planned(self, at: Instant, sender: str, receiver: str, message: Planned) -> None:
        self.world.mark(f"topology {message.status}")
        if message.status != "held":
            return
        parts = frozenset(part.part for part in message.parts)
        known = self._parts.setdefault(message.plan, parts)
        self._promised.setdefault(sender, {}).setdefault(message.plan, message.expires)
        first = self._plan_of.setdefault((sender, message.query), (message.plan, message.expires))
        again = first[0] == message.plan or first[1] <= self.world.actor(sender).now
        again = again or (sender, first[0]) in self._over
        must(again, f"{sender} holds {message.plan} for {message.query}, and {first[0]}, until {first[1]}")
        must(known == parts, f"{sender} answers {message.query} with other parts than before")
        must(
            self._expires.setdefault(message.plan, message.expires) == message.expires,
            f"{sender} holds {message.plan} until {message.expires}, it had said {self._expires[message.plan]}",
        )

    def _heard_plan(self, at: Instant, sender: str, receiver: str, message: Planned) -> None:
        if message.status == "held":
            self._told[receiver, message.plan] = sender

    def _releases(self, at: Instant, sender: str, receiver: str, message: ReleaseParts) -> None:
        self._settled.add((sender, message.plan))

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        plan, _, part = message.properties.get("hold", "").rpartition("/")
        if plan and message.op == NEW:
            self._part_of[message.lease] = (plan, part)
            self._settled.add((sender, plan))
            self._promised.get(receiver, {}).pop(plan, None)  # from now on it may be used, or refused
            self._over.add((receiver, plan))

    def _release(self, at: Instant, sender: str, receiver: str, message: ReleaseParts) -> None:
        self._promised.get(receiver, {}).pop(message.plan, None)
        self._over.add((receiver, message.plan))

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """What a broker has said that it holds it holds after a crash; what a guest was about to release expires."""
        self._settled.update(told for told in self._told if told[0] == actor)
        for plan, expires in self._promised.get(actor, {}).items():
            if expires > made.now + SLACK:
                must(plan in made.holds.held, f"{actor} forgot {plan}, which it holds until {expires}")

    def _ticket(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        if message.status == "granted" and message.lease in self._part_of:
            plan, part = self._part_of[message.lease]
            self._ticketed.setdefault(plan, set()).add(part)

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if message.op != NEW or message.lease not in self._part_of or sender not in self.world.scenario.guests:
            return
        plan, part = self._part_of[message.lease]
        missing = self._parts.get(plan, frozenset()) - self._ticketed.get(plan, set())
        must(not missing, f"{sender} redeems {part} of {plan}, the tickets of {sorted(missing)} have not come")
        self.world.mark("topology redeemed")

    def check_settled(self) -> None:
        """After the last fault: no hold is older than its expiry, no guest is still planning."""
        world = self.world
        for broker in world.scenario.brokers:
            now = world.actor(broker).now
            for hold in world.actor(broker).holds.held.values():
                must(hold.expires + MINUTE > now, f"{broker} still has {hold.id}, {hold.state}, it is {now} there")
                must(hold.state == USED, f"{broker} holds {hold.id} for {hold.peer}, who has had minutes to take it")
            must(not world.actor(broker).planner.plannings, f"{broker} is still planning")
            book = world.actor(broker).book
            lines = {row["chain"] for row in world.query(broker, "sources")}
            left = [key for line in lines for key in book.table_of(line) if str(key).startswith("hold ")]
            must(not left, f"{broker} holds nothing, its timetables say {left}")
        for (guest, plan), broker in self._told.items():
            must((guest, plan) in self._settled, f"{guest} has not released {plan}, which {broker} holds for it")
        for guest in world.scenario.guests:
            for topology in world.actor(guest).topologies.by_id.values():
                undecided = topology.state in (ASKING, COMMITTING)
                must(not undecided, f"{guest}: {topology.id} is still {topology.state}")
                must(bool(topology.reason) or topology.ended < 0, f"{guest}: {topology.id} does not say why it is over")


def draw_topology(world: Population, guest: str, rng: Random) -> tuple[str, dict[str, Any]]:
    """A command about a topology, with its arguments; no name where there is nothing to command."""
    scenario = world.scenario
    if not scenario.links or not world.is_up(guest):
        return "", {}
    known = [one.id for one in world.actor(guest).topologies.by_id.values() if one.ended < 0]
    if known and rng.random() < 0.15:
        return "topology.close", {"topology": rng.choice(known)}
    request = draw_request(scenario, world.clock(guest), rng)
    broker = rng.choice(list(scenario.brokers))
    if rng.random() < 0.15:
        return "topology.plan", {"request": request, "broker": broker}
    return "topology.request", {"request": request, "broker": broker, "tries": rng.choice((1, 2, 3))}
