"""A broker ends a preemptible lease early, and grants its units anew when the site counts it as ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.mappers import BrokerCycle, Defer, Preempt
from leasekit.core.protocol.messages import Relinquish, RequestTicket, TicketUpdate, Truncated
from leasekit.core.steps import Received, TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.policies.broker.fcfs import Fcfs

CUT = 5 * MINUTE


class Pushy:
    """Grants as FCFS does; if that fails, it has every preemptible lease end at five minutes, and waits for it."""

    inline = True

    def __init__(self) -> None:
        self._fcfs = Fcfs()

    def allocate(self, cycle: BrokerCycle) -> Sequence[Any]:
        decisions: list[Any] = []
        for decision in self._fcfs.allocate(cycle):
            if type(decision).__name__ != "Reject":
                decisions.append(decision)
                continue
            decisions.append(Defer(decision.lease, "somebody is asked to go"))
            for held in cycle.granted("vm"):
                if held.preemptible and held.term.end > CUT:
                    decisions.append(Preempt(held.lease, CUT, "for one who is more important"))
        return decisions


def pushy(name: str, actor: Actor) -> Actor:
    if name == "upper":
        assert isinstance(actor, Broker)
        actor.turning.mapper = Pushy()
    return actor


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    text = CHAIN.replace('role = "broker"', 'role = "broker"\nsettings.request_timeout = "20m"')
    text = text.replace('default_broker = "upper"', 'default_broker = "upper"\nsettings.request_timeout = "20m"')
    return DeployedWorld(text, tmp_path, make=pushy)


def ask(world: DeployedWorld, units: int, *, preemptible: bool, start: int = 10 * SECOND) -> str:
    properties = {"preemptible": "true"} if preemptible else {}
    return world.request("batch", units, start, HOUR, properties=properties)


def test_a_lease_is_preempted(world: DeployedWorld) -> None:
    """The victim's guest hears of it, its units go at the instant said, and then the other one gets them."""
    victim = ask(world, 2, preemptible=True)
    world.pass_time(MINUTE)
    other = world.request("batch", 2, CUT + MINUTE, HOUR)
    world.pass_time(10 * SECOND)
    assert world.guest("batch").leases[victim].ending.at == CUT
    assert world.lease("batch", victim)["state"] == "active"
    world.run_until(8 * MINUTE)
    assert world.lease("batch", victim)["state"] == "closed"
    assert world.lease("batch", other)["state"] == "active", world.lease("batch", other)["reason"]
    assert world.query("site", "evidence") == []


def test_nothing_is_granted_before_the_site_has_heard(world: DeployedWorld) -> None:
    """While the truncation is lost the units stay booked, also over a restart of the broker."""
    victim = ask(world, 2, preemptible=True)
    world.pass_time(MINUTE)
    world.lost.add(("upper", "site", "Truncated"))
    other = world.request("batch", 2, CUT + MINUTE, HOUR)
    world.pass_time(MINUTE)
    assert world.letters(Truncated, "upper", "site")
    assert world.lease("batch", other)["state"] == "nascent"
    world.restart("upper")
    world.pass_time(10 * SECOND)
    assert world.lease("batch", other)["state"] == "nascent"
    world.lost.clear()
    world.run_until(8 * MINUTE)
    assert world.lease("batch", victim)["state"] == "closed"
    assert world.lease("batch", other)["state"] == "active"
    assert world.query("site", "evidence") == []


def test_only_what_is_preemptible(world: DeployedWorld) -> None:
    """A lease that isn't is left alone, whatever the mapper says; one is preempted once, and can't be extended then."""
    firm = ask(world, 1, preemptible=False)
    victim = ask(world, 1, preemptible=True)
    world.pass_time(MINUTE)
    broker = world.broker("upper")
    for lease, at in ((firm, CUT), ("nobody-1", CUT), (victim, 2 * HOUR), (victim, SECOND)):
        errors = len(broker.errors)
        _decide(broker, Preempt(lease, at))
        assert len(broker.errors) == errors + 1, (lease, at)
    _decide(broker, Preempt(victim, CUT, "go"))
    world.feed("upper", [])
    world.pass_time(SECOND)
    refused = world.command("batch", "lease.extend", lease=victim, end=2 * HOUR)
    assert "ends early, at @{" in refused.error and "upper ends it early: go" in refused.error
    world.run_until(6 * MINUTE)
    assert world.lease("batch", victim)["state"] == "closed"
    assert world.lease("batch", firm)["state"] == "active"


def test_a_ticket_that_was_not_redeemed_yet(world: DeployedWorld) -> None:
    """A reservation that is preempted is given up by its guest; redeemed all the same, it ends when it was said to."""
    victim = ask(world, 2, preemptible=True, start=4 * MINUTE)
    world.pass_time(10 * SECOND)
    assert world.lease("batch", victim)["state"] == "ticketed"
    world.lost.add(("upper", "batch", "TicketUpdate"))
    _decide(world.broker("upper"), Preempt(victim, CUT, "go"))
    world.feed("upper", [])
    world.run_until(4 * MINUTE + 30 * SECOND)
    assert world.lease("batch", victim)["state"] == "active"
    assert world.guest("batch").leases[victim].ending.at == CUT
    world.run_until(6 * MINUTE)
    assert world.lease("batch", victim)["state"] == "closed"


def _decide(broker: Broker, decision: Any) -> None:
    """Have the broker carry out a decision as at the end of a turn."""
    broker.turns.running = broker.kernel.next("turn")
    broker.step(TurnDone(broker.turns.running, [decision]))


def test_granted_anew(tmp_path: Path) -> None:
    """A broker has ended a lease early and forgotten it, and its guest could not hear of that. What is granted to a
    late repeat of the guest's request is none of the lease's tickets, and goes back at once; the lease itself goes on.
    """
    text = CHAIN.replace('role = "broker"', 'role = "broker"\nsettings.retention = "1s"')
    world = DeployedWorld(text, tmp_path, make=pushy)
    victim = world.request("batch", 2, 2 * MINUTE, HOUR, properties={"preemptible": "true", "deferrable": "true"})
    world.pass_time(10 * SECOND)
    late = world.letters(RequestTicket, "batch", "upper")[0]
    world.lost |= {("upper", "batch", "TicketUpdate"), ("batch", "site", "Redeem")}
    _decide(world.broker("upper"), Preempt(victim, MINUTE, "go"))
    world.feed("upper", [])
    world.run_until(3 * MINUTE)
    assert victim not in world.broker("upper").leases
    world.lost = {("batch", "site", "Redeem")}
    world.feed("upper", [Received("batch", late)])
    world.pass_time(5 * SECOND)
    granted = world.letters(TicketUpdate, "upper", "batch")
    first, anew = decode_ticket(granted[0].ticket).leaf, decode_ticket(granted[-1].ticket).leaf
    lease = world.guest("batch").leases[victim]
    assert lease.ended < 0 and lease.approved is not None and lease.approved.digest == first.digest != anew.digest
    assert [decode_ticket(m.ticket).leaf.digest for m in world.letters(Relinquish, "batch", "site")] == [anew.digest]
    assert victim not in world.broker("upper").leases, "it is over, and forgotten, again"
