"""Whose turn it is at a broker: no kind of question, and no peer's, waits for ever behind what keeps coming."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from topology_worlds import STAR, TopologyWorld, pair, world

from leasekit.actors.base import Actor
from leasekit.core.protocol.messages import DryRun, Plan, RequestTicket, TicketUpdate
from leasekit.core.steps import Received
from leasekit.core.time import HOUR, Term
from leasekit.core.topology import read_topology

TERM = Term(HOUR, 2 * HOUR)


class OneByOne:
    """A broker whose turns are carried out one at a time, while messages keep coming."""

    def __init__(self, folder: Path) -> None:
        self.world: TopologyWorld = world(STAR, folder)
        self.broker = self.world.broker("b")
        self.actor: Actor = self.broker
        self.asked = 0

    def request(self, peer: str) -> None:
        """A request that can be granted at once."""
        self.asked += 1
        lease = f"{self.world.guest(peer).keyring.tag}-{900 + self.asked}"
        term = Term(TERM.start + self.asked * HOUR, TERM.end + self.asked * HOUR)
        self._hears(peer, RequestTicket(lease, 1, "new", "s", "vm", 1, term, "", {}, b""))

    def dry_run(self, peer: str) -> None:
        """A question what would be answered to one."""
        self.asked += 1
        self._hears(peer, DryRun(f"{peer}-dry-run", self.asked, "vm", 1, TERM, "", {}))

    def plan(self, peer: str) -> None:
        """A topology that is asked for."""
        self.asked += 1
        self._hears(peer, Plan(f"{peer}-{self.asked}", self.asked, "try", read_topology(pair()).to_bytes()))

    def granted(self) -> int:
        """How many requests have tickets that are on their way."""
        ready = self.actor.ready()
        sent = [one.message for one in ready.messages] if ready else []
        return sum(isinstance(message, TicketUpdate) and bool(message.ticket) for message in sent)

    def _hears(self, peer: str, message: Any) -> None:
        self.actor.step(Received(peer, message))
        self.actor.ready()

    def turn(self) -> str:
        """Whose turn comes next: requests, a question, or the peer whose topology is planned."""
        turn = self.actor.turn()
        assert turn is not None, "something waits"
        planned = self.broker.planner.in_turn
        found = planned.peer if planned else "question" if self.broker.dry_runs.in_turn else "requests"
        self.actor.step(turn.run())
        self.actor.ready()
        return found


def test_topologies_and_questions_do_not_wait_for_requests_to_end(tmp_path: Path) -> None:
    """Where new requests come in each turn, and questions are never at an end, each kind has its turn, one by one."""
    one = OneByOne(tmp_path)
    one.plan("h")
    turns = []
    for _ in range(6):
        one.request("g")
        one.dry_run("g")
        turns.append(one.turn())
    assert turns == ["requests", "question", "h", "requests", "question", "requests"]


def test_topologies_of_peers_are_planned_in_turn(tmp_path: Path) -> None:
    """Who asks for many topologies waits behind who asks for few, at most for the one that is being planned."""
    one = OneByOne(tmp_path)
    for _ in range(8):
        one.plan("g")
    turns = [one.turn()]
    one.plan("h")
    one.plan("h")
    turns += [one.turn() for _ in range(6)]
    assert turns == ["g", "h", "g", "h", "g", "g", "g"]


def test_requests_are_decided_while_a_topology_is_planned(tmp_path: Path) -> None:
    """A mapper that plans apart is asked for ordinary requests beside the dearest topology; the next one waits."""
    one = OneByOne(tmp_path)
    one.plan("h")
    planning = one.actor.turn()
    assert planning is not None and one.broker.planner.in_turn is not None
    one.plan("g")
    one.request("g")
    assert one.broker.wake_at() == one.broker.now
    requests = one.actor.turn()
    assert requests is not None and one.actor.turn() is None
    one.actor.step(requests.run())
    assert one.granted() == 1
    one.actor.step(planning.run())
    one.actor.ready()
    assert one.turn() == "g"


def test_a_mapper_that_does_not_plan_apart_is_asked_one_thing_at_a_time(tmp_path: Path) -> None:
    """What it keeps between its calls may be half changed while it plans."""
    one = OneByOne(tmp_path)
    one.broker.turning.mapper = SimpleNamespace(plan=None)
    one.plan("h")
    planning = one.actor.turn()
    assert planning is not None
    one.request("g")
    assert one.actor.turn() is None
    one.actor.step(planning.run())
    assert one.actor.turn() is not None and one.actor.turn() is None
