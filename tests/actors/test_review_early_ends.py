"""What ends early, by preemption, reclaim or maintenance: it ends for everybody, at one instant, and over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.settings import DelegationSpec
from leasekit.core.mappers import BrokerCycle, Defer, Preempt
from leasekit.core.protocol.codec import decode_batch
from leasekit.core.protocol.messages import (
    EXTEND,
    CloseLease,
    Offer,
    OfferAnswer,
    ReturnTicket,
    TicketUpdate,
    Truncated,
)
from leasekit.core.reasons import words
from leasekit.core.steps import Received, TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.policies.broker.fcfs import Fcfs

EARLY = CHAIN.replace('default_broker = "upper"', 'default_broker = "upper"\nsettings.extend_lead = "20m"').replace(
    'default_broker = "lower"', 'default_broker = "lower"\nsettings.extend_lead = "20m"'
)
"""As the chain; guests redeem a renewal up to 20 minutes before it begins."""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(EARLY, tmp_path)


def decide(world: DeployedWorld, broker: str, decision: Any) -> list[str]:
    """Have a broker carry out a decision as at the end of a turn; returns what it complained of."""
    actor = world.broker(broker)
    before = len(actor.errors)
    actor.turns.running = actor.kernel.next("turn")
    actor.step(TurnDone(actor.turns.running, [decision]))
    world.feed(broker, [])
    return actor.errors[before:]


def preemptible(world: DeployedWorld, guest: str = "batch", units: int = 2, end: int = 30 * MINUTE) -> str:
    return world.request(guest, units, 10 * SECOND, end, properties={"preemptible": "true"})


def states(world: DeployedWorld, lease: str, *actors: str) -> list[str]:
    return [str(world.lease(actor, lease)["state"]) for actor in actors]


def all_free(world: DeployedWorld) -> bool:
    return all(unit["state"] == "free" for unit in world.query("site", "units"))


# -- preemption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["in hand", "accepted"])
@pytest.mark.parametrize("cut", [20 * MINUTE, 40 * MINUTE], ids=["before", "within"])
def test_a_lease_with_a_renewal_is_preempted(world: DeployedWorld, when: str, cut: int) -> None:
    """Whether the renewal waits at the guest or has been accepted by the site, and whether the cut is before it begins
    or within it: the lease ends at the cut, its units can be granted from then on, and nobody is blamed.
    """
    lease = preemptible(world)
    world.pass_time(MINUTE)
    assert not world.command("batch", "lease.extend", lease=lease, end=HOUR).error, "what is preemptible stays so"
    world.run_until(5 * MINUTE if when == "in hand" else 12 * MINUTE)
    following = world.site().leases[lease].next
    assert (following is not None) == (when == "accepted")
    assert decide(world, "upper", Preempt(lease, cut, "go")) == []
    world.pass_time(10 * SECOND)
    other = world.request("batch", 2, cut + MINUTE, cut + 10 * MINUTE)
    world.run_until(cut - SECOND)
    assert states(world, lease, "site") == ["active"]
    world.run_until(cut + 2 * MINUTE)
    assert states(world, lease, "batch", "site") == ["closed", "closed"]
    assert world.lease("batch", other)["state"] == "active", world.lease("batch", other)["reason"]
    world.pass_time(HOUR)
    assert world.query("site", "evidence") == [] and all_free(world)
    assert world.query("batch", "returns") == []


class Patient:
    """Grants new requests, and lets extends wait."""

    inline = True

    def __init__(self) -> None:
        self._fcfs = Fcfs()

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        waiting = [Defer(r.lease, "later") for r in cycle.requests if r.op == EXTEND]
        rest = cycle._replace(requests=[r for r in cycle.requests if r.op != EXTEND])
        return [*waiting, *self._fcfs.allocate(rest)]


def patient(name: str, actor: Actor) -> Actor:
    if name == "upper":
        assert isinstance(actor, Broker)
        actor.turning.mapper = Patient()
    return actor


def test_asking_for_an_extend_is_no_way_out_of_a_preemption(tmp_path: Path) -> None:
    """A lease whose extend waits is preempted as well, and the extend is refused."""
    world = DeployedWorld(EARLY, tmp_path, make=patient)
    lease = preemptible(world)
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=lease, end=HOUR)
    world.pass_time(SECOND)
    assert world.broker("upper").leases[lease].pending == "extending_ticket"
    assert decide(world, "upper", Preempt(lease, 5 * MINUTE, "go")) == []
    world.pass_time(SECOND)
    refused = [update for update in world.letters(TicketUpdate, "upper", "batch") if update.status == "refused"]
    assert words(refused[-1].reason) == "the lease is preempted: go"
    assert world.guest("batch").leases[lease].ending.at == 5 * MINUTE
    world.run_until(6 * MINUTE)
    assert states(world, lease, "batch", "site") == ["closed", "closed"]


def test_a_preemption_that_is_refused_changes_nothing(world: DeployedWorld) -> None:
    """A holder that the operator has removed since can't be preempted by its ticket, or can; in no case is anything
    half done.
    """
    lease = preemptible(world)
    world.pass_time(MINUTE)
    world.command("upper", "peer.remove", name="batch")
    complaints = decide(world, "upper", Preempt(lease, 5 * MINUTE, "go"))
    world.run_until(6 * MINUTE)
    if complaints:
        assert world.broker("upper").leases[lease].ending.at == -1
        assert not world.letters(Truncated, "upper", "site")
        assert states(world, lease, "site") == ["active"]
    else:
        assert states(world, lease, "site") == ["closed"]


def test_a_grant_to_one_who_was_removed_leaves_nothing_booked(tmp_path: Path) -> None:
    """A request whose guest is no peer any more is not granted; what was reserved for it is free."""
    world = DeployedWorld(CHAIN, tmp_path)
    broker = world.broker("upper")
    full = world.request("batch", 2, 10 * SECOND, 5 * MINUTE)
    world.pass_time(MINUTE)
    world.request("batch", 2, 2 * MINUTE, 10 * MINUTE, properties={"deferrable": "true"})
    world.request("batch", 2, 2 * MINUTE, 3 * MINUTE, properties={"deferrable": "true", "latest_start": str(HOUR)})
    world.command("upper", "peer.remove", name="batch")
    world.pass_time(SECOND)
    for _ in range(3):
        broker.book.note_news()
        world.feed("upper", [])
        world.pass_time(SECOND)
    assert full
    booked = sum(len(lease.claims) for lease in broker.leases.values())
    assert len(broker.book.table("site/vm@upper")) == booked + 1, "and the delegation that it gave"


def test_a_restart_does_not_book_again_what_ends_early(world: DeployedWorld) -> None:
    """After a notice the calendar counts a lease until it ends, also once the site was restarted."""
    lease = preemptible(world, end=HOUR)
    world.pass_time(MINUTE)
    decide(world, "upper", Preempt(lease, 5 * MINUTE, "go"))
    world.pass_time(SECOND)
    table = world.site().calendars.of("vm")
    assert (table.free_at(5 * MINUTE - 1), table.free_at(5 * MINUTE)) == (4, 6)
    world.restart("site")
    table = world.site().calendars.of("vm")
    assert (table.free_at(5 * MINUTE - 1), table.free_at(5 * MINUTE)) == (4, 6)
    firm = world.request("batch", 2, 6 * MINUTE, HOUR)
    web = world.request("web", 4, 6 * MINUTE, HOUR)
    world.run_until(8 * MINUTE)
    assert [world.lease("batch", firm)["state"], world.lease("web", web)["state"]] == ["active", "active"]


def test_units_leave_in_time_before_a_preemption(tmp_path: Path) -> None:
    """A guest whose renewal is in hand lets its units leave before the cut, as any other."""
    text = CHAIN.replace('default_broker = "upper"', 'default_broker = "upper"\nsettings.leave_time = "30s"')
    world = DeployedWorld(text, tmp_path)
    lease = preemptible(world)
    world.pass_time(MINUTE)
    assert not world.command("batch", "lease.extend", lease=lease, end=HOUR).error
    world.pass_time(SECOND)
    assert decide(world, "upper", Preempt(lease, 10 * MINUTE, "go")) == []
    world.run_until(9 * MINUTE)
    assert states(world, lease, "batch", "site") == ["active", "active"]
    world.run_until(10 * MINUTE - 20 * SECOND)
    assert states(world, lease, "batch", "site") == ["closed", "closed"]
    assert world.query("batch", "returns") == []


# -- reclaims --------------------------------------------------------------------------------------------------------


def test_a_deadline_within_an_extend_that_was_accepted(world: DeployedWorld) -> None:
    """A lease whose renewal runs beyond the deadline ends at the deadline, not at the renewal's end."""
    lease = world.request("batch", 2, 10 * SECOND, 30 * MINUTE)
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=lease, end=HOUR)
    world.run_until(12 * MINUTE)
    assert world.site().leases[lease].next is not None
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=35 * MINUTE, deadline=40 * MINUTE)
    world.restart("site")
    world.run_until(39 * MINUTE)
    assert states(world, lease, "batch", "site") == ["active", "active"]
    world.run_until(41 * MINUTE)
    assert states(world, lease, "batch", "site") == ["closed", "closed"]
    assert all_free(world)


def test_a_deadline_holds_for_what_is_redeemed_later(world: DeployedWorld) -> None:
    """Tickets cut before the reclaim, and redeemed or extended after it, end by the deadline as well."""
    running = world.request("batch", 1, 10 * SECOND, 30 * MINUTE)
    later = world.request("batch", 1, 10 * MINUTE, HOUR)
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=running, end=HOUR)
    world.pass_time(MINUTE)
    assert world.site().leases[running].next is None
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=35 * MINUTE, deadline=40 * MINUTE)
    world.run_until(39 * MINUTE)
    assert [world.lease("batch", one)["state"] for one in (running, later)] == ["active", "active"]
    assert [world.guest("batch").leases[one].end for one in (running, later)] == [40 * MINUTE, 40 * MINUTE]
    world.run_until(41 * MINUTE)
    assert [world.lease("batch", one)["state"] for one in (running, later)] == ["closed", "closed"]


def test_a_broker_reclaims_with_a_deadline(world: DeployedWorld) -> None:
    """Leases that another broker granted from the delegation end by the deadline, so that the units can be granted."""
    lease = world.request("web", 4, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower", deadline=10 * MINUTE)
    world.pass_time(MINUTE)
    assert world.guest("web").leases[lease].ending.at == 10 * MINUTE
    other = world.request("batch", 6, 11 * MINUTE, HOUR)
    world.run_until(13 * MINUTE)
    assert states(world, lease, "web", "site") == ["closed", "closed"]
    assert world.lease("batch", other)["state"] == "active", world.lease("batch", other)["reason"]
    assert world.query("site", "evidence") == []


def test_a_holder_does_not_put_the_deadline_off(world: DeployedWorld) -> None:
    """Whatever the holder says of how long its leases go on, its issuer has the units back by the deadline."""
    world.lost.add(("upper", "lower", "Reclaim"))
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower", deadline=10 * MINUTE)
    number = world.broker("upper").issued.given["upper/vm@lower"].number
    world.receive("upper", "lower", OfferAnswer("upper/vm@lower", number, None, 11 * HOUR))
    world.pass_time(MINUTE)
    table = world.broker("upper").book.table("site/vm@upper")
    assert (table.free_at(10 * MINUTE - 1), table.free_at(10 * MINUTE)) == (2, 6)


def test_what_was_taken_back_is_free_after_a_restart(world: DeployedWorld) -> None:
    """A broker that the site has told that the claim ended can grant its units, restarted or not."""
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower")
    world.pass_time(MINUTE)
    for _ in range(2):
        assert world.broker("upper").book.table("site/vm@upper").free_at(world.now) == 6
        world.restart("upper")
        world.pass_time(SECOND)


def test_reservations_that_a_reclaim_forbids_do_not_hold_it_up(world: DeployedWorld) -> None:
    """What has not begun by the reclaim is off: the issuer does not wait for its end."""
    world.request("web", 1, 6 * HOUR, 7 * HOUR)
    world.pass_time(MINUTE)
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower")
    world.pass_time(MINUTE)
    assert world.broker("upper").book.table("site/vm@upper").free_at(2 * HOUR) == 6


def test_what_was_taken_back_is_not_offered_again(world: DeployedWorld) -> None:
    """Not even when its term is over and the actors are started anew."""
    for name, delegation in (("upper", "upper/vm@lower"), ("site", "site/vm@upper")):
        world.command(name, "delegation.reclaim", delegation=delegation)
    world.run_until(25 * HOUR)
    sent = len(world.letters(Offer))
    for name in ("site", "upper"):
        world.restart(name)
    world.pass_time(MINUTE)
    assert len(world.letters(Offer)) == sent


def test_a_holder_that_was_removed_stops_no_start(world: DeployedWorld) -> None:
    """An actor whose operator removed the broker that it is to delegate to starts all the same."""
    world.run_until(25 * HOUR)
    for name, broker in (("site", "upper"), ("upper", "lower")):
        world.command(name, "peer.remove", name=broker)
        world.restart(name)
    world.pass_time(MINUTE)
    assert world.query("site", "status")["role"] == "authority"
    assert world.query("upper", "status")["role"] == "broker"


# -- the past --------------------------------------------------------------------------------------------------------


def test_a_receipt_that_comes_late(world: DeployedWorld) -> None:
    """A receipt, or the site's acceptance of a truncation, for an instant that the book has forgotten is taken."""
    lease, victim = world.request("batch", 1, 10 * SECOND, HOUR), preemptible(world, units=1, end=HOUR)
    world.pass_time(MINUTE)
    world.lost |= {("batch", "upper", "ReturnTicket"), ("site", "upper", "Accepted")}
    world.command("batch", "lease.close", lease=lease)
    decide(world, "upper", Preempt(victim, 2 * MINUTE, "go"))
    world.run_until(20 * MINUTE)
    assert world.letters(ReturnTicket, "batch", "upper")
    world.broker("upper").book.forget_before(world.now)
    world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert world.broker("upper").book.table("site/vm@upper").free_at(world.now) == 2
    assert world.query("batch", "returns") == []


def test_leases_that_end_when_the_calendar_is_tidied(world: DeployedWorld) -> None:
    """A lease can be closed at the very instant up to which the site has forgotten its calendar."""
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    world.site().calendars.of("vm").forget_before(world.now)
    site = world.site()
    world.feed("site", [Received("batch", CloseLease(lease, site.leases[lease].number + 1, b""))])
    world.pass_time(MINUTE)
    assert site.calendars.of("vm").free_at(world.now) == 6 and all_free(world)


# -- maintenance -----------------------------------------------------------------------------------------------------


def window(world: DeployedWorld, start: int, end: int, **arguments: Any) -> str:
    reply = world.command("site", "maintenance.add", start=start, end=end, reason="disks", **arguments)
    assert not reply.error, reply.error
    return str(reply.result["window"])


def test_only_leases_of_the_windows_time_are_ended_for_it(tmp_path: Path) -> None:
    """A reservation for after the window stands, redeemed ahead or not."""
    text = CHAIN.replace('default_broker = "upper"', 'default_broker = "upper"\nsettings.redeem_lead = "3h"')
    world = DeployedWorld(text, tmp_path)
    after = world.request("batch", 1, HOUR, 2 * HOUR)
    world.pass_time(MINUTE)
    assert world.site().leases[after].pending == "redeeming"
    window(world, 10 * MINUTE, 20 * MINUTE, close=True)
    world.run_until(HOUR + MINUTE)
    assert states(world, after, "batch", "site") == ["active", "active"]


def test_a_window_within_an_extend_that_was_accepted(world: DeployedWorld) -> None:
    """A lease that would run on into the window ends when the window begins."""
    lease = world.request("batch", 2, 10 * SECOND, 30 * MINUTE)
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=lease, end=HOUR)
    world.run_until(12 * MINUTE)
    window(world, 40 * MINUTE, 50 * MINUTE, close=True)
    world.run_until(41 * MINUTE)
    assert states(world, lease, "batch", "site") == ["closed", "closed"]


def test_windows_of_one_unit_do_not_meet(world: DeployedWorld) -> None:
    """A unit is in one window at a time: the end of one would bring it back in the middle of the other."""
    first = window(world, 10 * MINUTE, 20 * MINUTE, units=["vm-0"])
    error = failed(
        world.command("site", "maintenance.add", start=15 * MINUTE, end=30 * MINUTE, units=["vm-0", "vm-1"])
    )  # fmt: skip
    assert first in error and "vm-0" in error
    window(world, 20 * MINUTE, 30 * MINUTE, units=["vm-0"])
    world.run_until(25 * MINUTE)
    assert world.site().units["vm-0"].state == "out"
    world.run_until(31 * MINUTE)
    assert world.site().units["vm-0"].state == "free"


def test_units_that_come_and_go_during_a_window(world: DeployedWorld) -> None:
    """What is disabled and enabled by hand while others are in maintenance is counted once, and once only."""
    world.command("site", "unit.disable", unit="vm-5")
    window(world, 10 * MINUTE, 20 * MINUTE, units=["vm-0", "vm-1"])
    world.run_until(12 * MINUTE)
    world.command("site", "unit.enable", unit="vm-5")
    assert world.site().calendars.of("vm").free_at(world.now) == 4
    world.command("site", "unit.disable", unit="vm-4")
    assert world.site().calendars.of("vm").free_at(world.now) == 3
    world.command("site", "unit.enable", unit="vm-4")
    world.run_until(21 * MINUTE)
    table = world.site().calendars.of("vm")
    assert (table.free_at(world.now), table.free_at(HOUR)) == (6, 6)


def test_a_broker_that_takes_its_delegation_late_hears_of_windows(tmp_path: Path) -> None:
    """A window that was announced while the offer was on its way is told to the broker when it has taken it."""
    world = Late(CHAIN, tmp_path)
    window(world, 10 * MINUTE, 20 * MINUTE)
    world.pass_time(MINUTE)
    assert len(world.broker("upper").book) == 0
    world.late = False
    world.pass_time(5 * MINUTE)
    table = world.broker("upper").book.table("site/vm@upper")
    assert table.free_at(10 * MINUTE) <= 0 < table.free_at(20 * MINUTE)


def test_a_window_is_taken_back_from_all_that_were_told(tmp_path: Path) -> None:
    """Also if what one of them was told would be another's share by now."""
    text = CHAIN.replace('length = "1d"', 'units = 2\nlength = "1d"', 1).replace("units = 4", "units = 1")
    world = DeployedWorld(text + '[actor.other]\nrole = "broker"\n', tmp_path)
    taken = window(world, 2 * HOUR, 3 * HOUR, units=["vm-0", "vm-1", "vm-2", "vm-3", "vm-4"])
    world.pass_time(MINUTE)
    (source,) = world.broker("upper").book.of_type("vm")
    table = world.broker("upper").book.table(source.id)
    assert table.free_at(2 * HOUR) == 0 < table.free_at(HOUR)
    site = world.site()
    more = DelegationSpec(broker="other", type="vm", units=4)
    site.settings = evolve(site.settings, delegations=(*site.settings.delegations, more))
    site.issued.give()
    world.feed("site", [])
    world.pass_time(MINUTE)
    assert not world.command("site", "maintenance.remove", window=taken).error
    world.pass_time(MINUTE)
    assert table.free_at(2 * HOUR) == table.free_at(HOUR)


class Late(DeployedWorld):
    """No offer arrives at first."""

    late = True

    def _carry(self, sender: str, receiver: str, data: bytes) -> None:
        if not (self.late and isinstance(decode_batch(data)[0], Offer)):
            super()._carry(sender, receiver, data)
