"""A request says the same as often as it is sent: one number stands for one content, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.served import acknowledge
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import Go, LeaseView, Preempt
from leasekit.core.protocol.messages import (
    Ack,
    CloseLease,
    ErrorReply,
    Redeem,
    RequestTicket,
    TicketUpdate,
)
from leasekit.core.reasons import Reason
from leasekit.core.steps import Connected, TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Term


def told_by_predecessor(name: str, actor: Actor) -> Actor:
    """A guest whose mapper gives each blocked lease the name of the one that it waited for."""
    if isinstance(actor, ServiceManager):

        def unblock(lease: LeaseView, predecessor: LeaseView) -> Go:
            return Go({"server": predecessor.name})

        actor.turning.mapper.unblock = unblock  # type: ignore[attr-defined]
    return actor


class LosingWorld(DeployedWorld):
    """A world that loses what the requests of one lease say to its site."""

    loses = ""

    def _send(self, sender: str, outgoing: Any) -> None:
        kept = [
            (peer, message) for peer, message in outgoing
            if not (isinstance(message, Redeem | CloseLease) and message.lease == self.loses)
        ]  # fmt: skip
        self.sent += [(sender, *lost) for lost in outgoing if tuple(lost) not in kept]
        super()._send(sender, kept)


@pytest.fixture
def world(tmp_path: Path) -> LosingWorld:
    """A guest with upcalls."""
    return LosingWorld(CHAIN, tmp_path, make=told_by_predecessor)


def waiting_lease(world: LosingWorld) -> GuestLease:
    """A lease that is active from 10 s to 2 min, and joins when another one has, which begins at 100 s."""
    world.request("batch", 1, 100 * SECOND, 30 * MINUTE, name="first")
    lease = world.request("batch", 1, 10 * SECOND, 2 * MINUTE, name="second", join_predecessor="first")
    world.run_until(20 * SECOND)
    found = world.guest("batch").leases[lease]
    assert (found.state, found.join) == ("active", "blocked_join")
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_an_upcall_while_an_extend_is_sent_again(world: LosingWorld, restart: bool) -> None:
    """A join upcall changes the configuration; the extend that is being redeemed is what it was, after a restart too,
    and the next request has the new configuration.
    """
    lease = waiting_lease(world).id
    assert not world.command("batch", "lease.extend", lease=lease, end=20 * MINUTE).error
    world.loses = lease
    world.run_until(104 * SECOND)
    assert world.lease("batch", lease)["configuration"] == {"server": "first"}
    world.loses = ""
    if restart:
        world.restart("batch")
    else:
        world.feed("batch", [Connected("site")])  # what is owed is sent at once
    world.run_until(3 * MINUTE)
    redeems = [m for m in world.letters(Redeem, "batch") if m.lease == lease and m.op == "extend"]
    assert len(redeems) > 1 and set(map(repr, redeems)) == {repr(redeems[0])}
    assert redeems[0].properties == {}
    assert world.lease("batch", lease)["end"] == 20 * MINUTE
    assert not world.command("batch", "lease.modify", lease=lease, configuration={"size": "2"}).error
    world.pass_time(SECOND)
    assert world.letters(Redeem, "batch")[-1].properties == {"server": "first", "size": "2"}


def test_an_upcall_while_a_modify_is_sent_again(world: LosingWorld) -> None:
    """What a join upcall adds to the configuration while another change of it is under way is not lost with that."""
    lease = waiting_lease(world).id
    world.run_until(95 * SECOND)
    world.loses = lease
    assert not world.command("batch", "lease.modify", lease=lease, configuration={"size": "2"}).error
    world.run_until(104 * SECOND)
    world.loses = ""
    world.run_until(115 * SECOND)
    redeems = [m for m in world.letters(Redeem, "batch") if m.lease == lease and m.op == "modify"]
    assert {tuple(m.properties.items()) for m in redeems} == {(("size", "2"),)}
    assert world.lease("batch", lease)["configuration"] == {"size": "2", "server": "first"}


def test_a_close_that_is_sent_again(world: LosingWorld) -> None:
    """A close gives the rest of the claim back as of when it was first sent."""
    lease = world.request("batch", 1, 10 * SECOND, 30 * MINUTE)
    world.run_until(MINUTE)
    world.loses = lease
    assert not world.command("batch", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    world.restart("batch")
    world.loses = ""
    world.pass_time(MINUTE)
    closes = world.letters(CloseLease, "batch")
    assert len(closes) > 2 and set(map(repr, closes)) == {repr(closes[0])}
    assert world.lease("batch", lease)["state"] == "closed"


def test_an_old_answer_settles_no_return(world: LosingWorld) -> None:
    """A broker that has forgotten a lease grants an old request anew; the guest gives that ticket back, and a late
    refusal of what the lease once asked its site for, in whatever number, does not keep it from that.
    """
    lease = world.request("batch", 2, 10 * SECOND, 3 * HOUR)
    world.run_until(MINUTE)
    assert not world.command("batch", "lease.close", lease=lease).error
    world.run_until(HOUR)
    assert lease not in world.broker("upper").leases
    (asked,) = {repr(m): m for m in world.letters(RequestTicket, "batch")}.values()
    sent = len(world.sent)
    world.receive("upper", "batch", asked)
    while not any(isinstance(message, TicketUpdate) for _, _, message in world.sent[sent:]):
        world.pass_time(1)
    table = world.broker("upper").book.table("site/vm@upper")
    assert table.free_at(world.now + SECOND) == 0
    world.pass_time(12)
    assert world.query("batch", "returns")
    for number in range(1, 20):
        world.receive("batch", "site", ErrorReply(lease, number, Reason("returned", detail="the claim was given back")))
    world.pass_time(MINUTE)
    assert table.free_at(world.now) == 2
    assert not world.query("batch", "returns")


def test_an_old_acknowledgement_settles_no_new_update(world: LosingWorld) -> None:
    """A broker that has forgotten a lease grants an old request anew, as its first update again: an acknowledgement of
    the first first one, of one that it has never sent, or that does not say of which, does not keep it from telling the
    guest.
    """
    lease = world.request("batch", 2, 10 * SECOND, 3 * HOUR)
    world.run_until(MINUTE)
    assert not world.command("batch", "lease.close", lease=lease).error
    world.run_until(HOUR)
    first = world.letters(TicketUpdate, "upper")[0]
    asked = world.letters(RequestTicket, "batch")[0]
    world.receive("upper", "batch", asked)
    while world.letters(TicketUpdate, "upper")[-1].ticket == first.ticket:
        world.pass_time(1)
    again = world.letters(TicketUpdate, "upper")[-1]
    assert (again.lease, again.update) == (first.lease, first.update)
    owed = world.broker("upper").leases[lease].unacked
    unsaid = Ack(lease, again.update)
    for late in (acknowledge(first), Ack(lease, 7, acknowledge(again).signed), Ack(lease, 7), unsaid):
        world.receive("upper", "batch", late)
        assert [update.message for update in owed] == [again]
    assert world.broker("upper").leases[lease].unacked is owed
    world.receive("upper", "batch", acknowledge(again))
    assert world.broker("upper").leases[lease].unacked == []


def test_an_acknowledgement_settles_only_what_it_names(world: LosingWorld) -> None:
    """A guest that has forgotten a lease acknowledges the updates of one made anew as they come: the later one, come
    first, does not settle the ticket before it, which goes back when it comes.
    """
    lease = world.request("batch", 2, 10 * SECOND, 3 * HOUR, properties={"preemptible": "true"})
    world.run_until(MINUTE)
    assert not world.command("batch", "lease.close", lease=lease).error
    world.run_until(HOUR)
    broker, asked = world.broker("upper"), world.letters(RequestTicket, "batch")[0]
    world.receive("upper", "batch", asked)
    while lease not in broker.leases or not broker.leases[lease].unacked:
        world.pass_time(1)
    broker.turns.running = broker.kernel.next("turn")
    broker.turns.done(TurnDone(broker.turns.running, [Preempt(lease, 2 * HOUR, "others need it more")]))
    granted, noticed = (update.message for update in broker.leases[lease].unacked)
    assert (granted.status, noticed.status) == ("granted", "terminating")
    world.receive("upper", "batch", acknowledge(noticed))
    assert [update.message for update in broker.leases[lease].unacked] == [granted]
    world.pass_time(MINUTE)
    assert broker.leases[lease].ended >= 0, "the ticket came, and went back"


def test_what_a_used_modify_replaced_is_not_booked_after_a_restart(world: LosingWorld) -> None:
    """A lease that was modified to go on for longer, then closed: its broker has all its units, after a restart too."""
    lease = world.request("batch", 2, 10 * SECOND, 3 * HOUR)
    world.run_until(MINUTE)
    assert not world.command("batch", "lease.modify", lease=lease, end=4 * HOUR).error
    world.pass_time(MINUTE)
    assert not world.command("batch", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    world.restart("upper")
    broker = world.broker("upper")
    assert broker.book.table_of("site/vm@upper").available(Term(world.now, 3 * HOUR)) == 2
