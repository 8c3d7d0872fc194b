"""Tickets that are to be redeemed by an instant: the site refuses them later, and the broker grants their units anew on
the site's word.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.core.claims.claim import decode_ticket, redeem_by
from leasekit.core.claims.signed import TRUNCATION, decode_statement, state
from leasekit.core.protocol.messages import Accepted, ErrorReply, Redeem, TicketUpdate, Truncated
from leasekit.core.reasons import Code
from leasekit.core.time import HOUR, MINUTE, SECOND

START = 10 * SECOND
BY = START + 20 * MINUTE
LATER = {"deferrable": "true", "latest_start": str(2 * HOUR)}


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    """One whose brokers have tickets redeemed within 20 minutes."""
    return DeployedWorld(CHAIN.replace('"broker"\n[', '"broker"\nsettings.redeem_within = "20m"\n['), tmp_path)


def ask(world: DeployedWorld, units: int = 2, **more: object) -> str:
    return world.request("batch", units, START, 4 * HOUR, **more)


def state_of(world: DeployedWorld, lease: str) -> str:
    return str(world.lease("batch", lease)["state"])


def lose_redeems(world: DeployedWorld) -> None:
    world.lost.add(("batch", "site", "Redeem"))


def test_units_that_nobody_redeems_are_granted_anew(world: DeployedWorld) -> None:
    """From when the site has said that nothing was used of them; their guest hears of it."""
    lose_redeems(world)
    idle = ask(world)
    world.pass_time(MINUTE)
    ticket = decode_ticket(world.letters(TicketUpdate, "upper", "batch")[-1].ticket)
    assert redeem_by(ticket.leaf) == BY
    world.lost.add(("site", "upper", "Accepted"))
    other = world.request("batch", 2, START + MINUTE, 3 * HOUR, properties=LATER)
    world.run_until(BY + MINUTE)
    assert world.letters(Truncated, "upper", "site")
    assert [state_of(world, one) for one in (idle, other)] == ["ticketed", "nascent"]
    world.restart("upper")
    world.pass_time(MINUTE)
    assert state_of(world, other) == "nascent"
    world.lost.clear()
    world.pass_time(5 * MINUTE)
    assert [state_of(world, one) for one in (idle, other)] == ["failed", "active"]
    assert "it was not redeemed by" in world.lease("batch", idle)["reason"]
    assert "it was not redeemed by" in world.lease("upper", idle)["reason"]
    assert world.query("site", "evidence") == []


def test_the_site_refuses_what_comes_later(world: DeployedWorld) -> None:
    """Whether its broker has asked or not."""
    lose_redeems(world)
    world.lost |= {("upper", "site", "Truncated")}
    idle = ask(world)
    world.run_until(BY + 5 * SECOND)
    late = world.letters(Redeem, "batch", "site")[0]
    world.receive("site", "batch", late)
    world.pass_time(SECOND)
    (refusal,) = world.letters(ErrorReply, "site", "batch")
    assert refusal.reason.code == Code.LAPSED and refusal.reason.at == BY
    assert state_of(world, idle) == "failed"
    world.lost.clear()
    world.pass_time(5 * MINUTE)
    assert world.lease("upper", idle)["state"] == "closed"
    assert not world.query("site", "leases")


def test_what_was_redeemed_goes_on(world: DeployedWorld) -> None:
    """The broker asks once, and hears that there is nothing to have; so it does after a restart of the site."""
    used = ask(world)
    world.pass_time(MINUTE)
    world.restart("site")
    world.run_until(BY + 10 * MINUTE)
    assert len(world.letters(Truncated, "upper", "site")) == 1
    (told,) = [one for one in world.letters(Accepted, "site", "upper") if one.lease == used]
    assert told.receipt == b""
    assert state_of(world, used) == "active"
    other = world.request("batch", 2, world.now + MINUTE, 3 * HOUR)
    world.pass_time(MINUTE)
    assert state_of(world, other) == "failed"
    world.run_until(4 * HOUR + MINUTE)
    assert state_of(world, used) == "closed"


def test_an_extend_that_nobody_redeems(world: DeployedWorld) -> None:
    """What goes on from a lease lapses by itself."""
    lease = world.request("batch", 2, START, HOUR)
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=lease, end=3 * HOUR)
    world.pass_time(MINUTE)
    lose_redeems(world)
    world.lost.add(("batch", "site", "Relinquish"))
    world.run_until(HOUR + 30 * MINUTE)
    other = world.request("batch", 2, world.now + MINUTE, 3 * HOUR)
    world.pass_time(2 * MINUTE)
    assert [
        one.reason.code for one in world.letters(TicketUpdate, "upper", "batch") if one.status == "terminating"
    ] == [Code.LAPSED]
    world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert state_of(world, other) == "active"


def test_a_broker_ends_nothing_before_or_beyond(world: DeployedWorld) -> None:
    """A ticket stands until its instant; a lease that was redeemed stands, whatever its broker says."""
    lose_redeems(world)
    idle, used = ask(world, 1), ask(world, 1)
    world.pass_time(MINUTE)
    tickets = {one.lease: decode_ticket(one.ticket) for one in world.letters(TicketUpdate, "upper", "batch")}
    world.lost.clear()
    redeems = {one.lease: one for one in world.letters(Redeem, "batch", "site")}
    world.receive("site", "batch", redeems[used])
    world.pass_time(SECOND)
    signer = world.broker("upper").keyring.signer

    def end(lease: str, at: int) -> object:
        leaf = tickets[lease].leaf
        note = state(signer, TRUNCATION, leaf.digest, at, lease).encode()
        before = len(world.sent)
        world.receive("site", "upper", Truncated(lease, 99, tickets[lease].encode(), note))
        return world.sent[before][2]

    early = end(idle, START)
    assert isinstance(early, ErrorReply) and early.reason.code == Code.NOT_PREEMPTIBLE
    assert isinstance(end(used, START), ErrorReply)
    world.run_until(BY + SECOND)
    assert end(used, START) == Accepted(used, 99)
    assert isinstance(end(used, START + MINUTE), ErrorReply)
    world.pass_time(MINUTE)
    assert world.lease("site", used)["state"] == "active"
    statements = [one.receipt for one in world.letters(Accepted, "site", "upper") if one.receipt]
    assert all(decode_statement(one).subject != tickets[used].leaf.digest for one in statements)


def test_short_terms_have_none(world: DeployedWorld) -> None:
    """What ends before it would lapse says nothing of it."""
    world.request("batch", 1, START, START + 20 * MINUTE)
    world.pass_time(MINUTE)
    (update,) = world.letters(TicketUpdate, "upper", "batch")
    assert not decode_ticket(update.ticket).leaf.constraints
