"""Delegations that are renewed at their term's end, and leases that go on across it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.protocol.messages import ErrorReply, Offer, OfferAnswer, Redeem, TicketUpdate
from leasekit.core.reasons import Reason, said
from leasekit.core.steps import Connected, Outgoing, Tick
from leasekit.core.time import HOUR, MINUTE, SECOND, Term

SITE = 2 * HOUR
"""How long each of the site's stretches is."""
RENEWED = CHAIN.replace('length = "1d"', 'length = "2h"\nrenew = "30m"').replace(
    'length = "12h"', 'length = "90m"\nrenew = "20m"\nrenew_for = "1h"'
)
BEFORE, AFTER = 110 * MINUTE, 150 * MINUTE
"""Instants on both sides of the end of the first period."""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(RENEWED, tmp_path)


def terms(world: DeployedWorld, actor: str) -> list[Term]:
    """The terms of what an actor holds, in order."""
    return sorted(Term(*row["term"]) for row in world.query(actor, "sources"))


def in_hand(world: DeployedWorld, guest: str, lease: str) -> list[Term]:
    """The terms of the tickets that a guest has in hand for a lease."""
    record = world.guest(guest).leases[lease]
    held = [one for one in (record.approved, record.renewal, *record.continuations) if one is not None]
    assert [decode_ticket(one.ticket).leaf.term for one in held] == [one.term for one in held]
    return [one.term for one in held]


def free(world: DeployedWorld, broker: str) -> int:
    """The units that a broker can grant now."""
    return sum(row["free_now"] for row in world.query(broker, "sources"))


def goes_on(world: DeployedWorld, lease: str, end: int) -> None:
    """The lease of ``batch`` keeps its units until ``end``, and is closed then."""
    units = world.lease("site", lease)["units"]
    assert len(units) == 2
    while world.now < end - MINUTE:
        world.pass_time(MINUTE)
        assert world.lease("site", lease)["units"] == units, world.lease("batch", lease)["reason"]
    world.run_until(end + MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    assert world.query("site", "evidence") == []
    assert free(world, "upper") == 2


def test_stretches_follow_without_a_gap(world: DeployedWorld) -> None:
    """Site to broker and broker to broker: what is held goes on, a part of the issuer's; what is over goes."""
    seen: dict[str, set[Term]] = {"upper": set(), "lower": set()}
    for _ in range(60):
        world.pass_time(10 * MINUTE)
        for name, found in seen.items():
            held = terms(world, name)
            found.update(held)
            assert held[0].start <= world.now < held[-1].end
            assert len(held) <= 3
            assert free(world, name) == {"upper": 2, "lower": 4}[name]
    for found in seen.values():
        assert all(one.end == two.start for one, two in pairwise(sorted(found)))
    assert all(term.length == SITE for term in seen["upper"])
    assert len(seen["upper"]) >= 5 and len(seen["lower"]) >= 10
    assert all(any(above.contains(term) for above in seen["upper"]) for term in seen["lower"])
    assert world.query("site", "evidence") == []
    assert len(world.query("site", "delegations")) <= 3


@pytest.mark.parametrize("restarted", ["", "site", "upper", "batch"])
def test_a_lease_is_extended_across_the_boundary(world: DeployedWorld, restarted: str) -> None:
    """The extend begins in one delegation and ends in the next: a claim under each, redeemed in turn, for one lease;
    whoever is restarted on the way.
    """
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, world.now + 10 * SECOND, BEFORE)
    world.run_until(105 * MINUTE)
    assert not world.command("batch", "lease.extend", lease=lease, end=AFTER).error
    world.pass_time(10 * SECOND)
    assert in_hand(world, "batch", lease)[1:] == [Term(BEFORE, SITE), Term(SITE, AFTER)]
    assert len(world.letters(TicketUpdate, "upper")[-1].continuations) > 0
    for at in (106, 112, 121) if restarted else ():
        world.run_until(at * MINUTE)
        world.restart(restarted)
    goes_on(world, lease, AFTER)
    redeemed = {decode_ticket(message.ticket).root.term for message in world.letters(Redeem, "batch")}
    assert redeemed == {Term(0, SITE), Term(SITE, 2 * SITE)}


def test_a_new_lease_across_the_boundary(world: DeployedWorld) -> None:
    """A mapper sees one source without an end in between: it grants as ever, and a claim is cut for each delegation."""
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, world.now + 10 * SECOND, AFTER)
    world.pass_time(MINUTE)
    assert in_hand(world, "batch", lease) == [Term(100 * MINUTE + 10 * SECOND, SITE), Term(SITE, AFTER)]
    goes_on(world, lease, AFTER)


def test_a_lease_is_modified_across_the_boundary(world: DeployedWorld) -> None:
    """What replaces the rest of a claim may go on in the next delegation as well."""
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 1, world.now + 10 * SECOND, BEFORE)
    world.run_until(105 * MINUTE)
    assert not world.command("batch", "lease.modify", lease=lease, units=2, end=AFTER).error
    world.pass_time(MINUTE)
    assert in_hand(world, "batch", lease)[-1] == Term(SITE, AFTER)
    goes_on(world, lease, AFTER)


@pytest.mark.parametrize("at", [101, 105, 121])
def test_all_of_it_is_given_back(world: DeployedWorld, at: int) -> None:
    """Closed before, between or after: what is left of each claim is the broker's again, and nobody is blamed."""
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, 102 * MINUTE, AFTER)
    world.run_until(at * MINUTE)
    assert not world.command("batch", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    table = world.broker("upper").book.table_of("site/vm@upper")
    assert {table.free_at(t) for t in (119 * MINUTE, SITE, 149 * MINUTE) if t >= world.now} == {2}
    assert world.query("batch", "returns") == []
    other = world.request("batch", 2, world.now + 10 * SECOND, AFTER)
    world.pass_time(MINUTE)
    assert len(world.lease("site", other)["units"]) == 2
    assert world.query("site", "evidence") == []


def test_no_extend_beyond_what_is_held(world: DeployedWorld) -> None:
    """Before the next period is there, a term that needs it is refused; it is granted when it has come."""
    world.run_until(80 * MINUTE)
    lease = world.request("batch", 1, world.now + 10 * SECOND, AFTER)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "failed"
    world.run_until(91 * MINUTE)
    lease = world.request("batch", 1, world.now + 10 * SECOND, AFTER)
    world.pass_time(MINUTE)
    assert len(world.lease("site", lease)["units"]) == 1


def test_a_line_is_taken_back(world: DeployedWorld) -> None:
    """Taking a delegation back takes what goes on from it as well: nothing is renewed, what exists runs out."""
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, world.now + 10 * SECOND, 115 * MINUTE)
    world.pass_time(MINUTE)
    assert not world.command("site", "delegation.reclaim", delegation="site/vm@upper").error
    world.pass_time(MINUTE)
    assert {row["state"] for row in world.query("site", "delegations")} == {"reclaimed"}
    assert world.lease("batch", lease)["state"] == "active"
    world.command("batch", "lease.extend", lease=lease, end=AFTER)
    world.pass_time(10 * SECOND)
    assert world.lease("batch", lease)["renewal"] is None
    world.run_until(116 * MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    world.run_until(5 * HOUR)
    assert terms(world, "upper") == []
    world.restart("site")
    world.pass_time(MINUTE)
    assert terms(world, "upper") == []


def test_a_reclaim_spares_what_began_before(world: DeployedWorld) -> None:
    """Of a ticket for both stretches the part that has not begun is off; the other one runs out."""
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, 110 * MINUTE, AFTER)
    world.pass_time(MINUTE)
    assert len(in_hand(world, "batch", lease)) == 2
    world.command("site", "delegation.reclaim", delegation="site/vm@upper#2")
    world.pass_time(MINUTE)
    assert in_hand(world, "batch", lease) == [Term(110 * MINUTE, SITE)]
    world.run_until(111 * MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    world.run_until(SITE + MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"


# -- offers that are refused -------------------------------------------------------------------------------------------


class Refusing:
    """Makes a broker refuse offers, in one of two ways, while ``on``."""

    def __init__(self, how: str) -> None:
        self.how, self.on = how, True

    def __call__(self, name: str, actor: Actor) -> Actor:
        if name == "upper":
            take: Any = actor.dispatch.messages[Offer]
            actor.dispatch.messages[Offer] = lambda peer, message: (
                self.refuse(actor, peer, message) if self.on else take(peer, message)
            )
        return actor

    def refuse(self, actor: Actor, peer: str, message: Offer) -> None:
        """Say no."""
        answer: Any = OfferAnswer(message.delegation, message.number, said("no room for more"))
        if self.how == "error":
            answer = ErrorReply(message.delegation, message.number, Reason("forbidden", detail="no room for more"))
        actor.kernel.messages.append(Outgoing(peer, answer))


@pytest.mark.parametrize("how", ["answer", "error"])
def test_a_refused_offer_is_not_sent_for_ever(tmp_path: Path, how: str) -> None:
    """A refusal, or an error, ends it: the operator sees why, and it is offered again when the holder comes anew."""
    refusing = Refusing(how)
    world = DeployedWorld(CHAIN, tmp_path, make=refusing)
    world.pass_time(HOUR)
    assert len(world.letters(Offer, "site")) == 1
    (row,) = world.query("site", "delegations")
    assert (row["state"], row["reason"]) == ("refused", "no room for more")
    assert any("no room for more" in error for error in world.site().errors)
    world.feed("site", [Connected("upper")])
    world.pass_time(MINUTE)
    assert len(world.letters(Offer, "site")) == 2, "once for each connection"
    refusing.on = False
    world.restart("upper")
    world.pass_time(MINUTE)
    assert [row["state"] for row in world.query("site", "delegations")][-1] == "held"
    assert len(world.letters(Offer, "site")) == 3
    lease = world.request("batch", 2, world.now + 10 * SECOND, world.now + HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active"


def test_retries_are_bounded(tmp_path: Path) -> None:
    """A holder that comes again and again, and refuses each time, is offered so much and no more until something else
    changes.
    """
    world = DeployedWorld(CHAIN, tmp_path, make=Refusing("error"))
    for _ in range(30):
        world.feed("site", [Connected("upper")])
        world.pass_time(SECOND)
    assert len(world.letters(Offer, "site")) == 11
    world.restart("site")
    world.pass_time(SECOND)
    assert len(world.letters(Offer, "site")) == 13, "its own start, and that upper connects"


def test_a_renewal_that_is_refused(tmp_path: Path) -> None:
    """The period before goes on to its end; the refusal says why, and a restart tries again."""
    refusing = Refusing("answer")
    refusing.on = False
    world = DeployedWorld(RENEWED, tmp_path, make=refusing)
    refusing.on = True
    world.run_until(110 * MINUTE)
    rows = {row["delegation"]: (row["state"], row["reason"]) for row in world.query("site", "delegations")}
    assert rows == {"site/vm@upper": ("held", ""), "site/vm@upper#2": ("refused", "no room for more")}
    refusing.on = False
    world.restart("site")
    world.pass_time(MINUTE)
    assert terms(world, "upper") == [Term(0, SITE), Term(SITE, 2 * SITE)]


def test_a_claim_that_was_refused_is_worth_nothing(tmp_path: Path) -> None:
    """A holder that refuses an offer and uses its claim all the same is refused, and the issuer is not to blame."""
    refusing = Refusing("answer")
    world = DeployedWorld(CHAIN, tmp_path, make=refusing)
    offer = world.letters(Offer, "site")[0]
    refusing.on = False
    world.receive("upper", "site", offer)
    world.pass_time(MINUTE)
    lease = world.request("batch", 2, world.now + 10 * SECOND, world.now + HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "failed"
    assert "ended" in world.lease("batch", lease)["reason"]
    assert world.query("site", "evidence") == []


def test_a_line_that_begins_anew(world: DeployedWorld) -> None:
    """A broker can't renew what it gives, since its units are taken, and the line ends; it begins anew as soon as units
    are free for it, and goes on when the issuer's own line does.
    """
    world.run_until(60 * MINUTE)
    lease = world.request("batch", 4, 91 * MINUTE, 110 * MINUTE)
    world.run_until(100 * MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    assert terms(world, "lower") == []
    first = world.query("upper", "delegations")[0]
    world.run_until(125 * MINUTE)
    again = world.query("upper", "delegations")
    assert [one["state"] for one in again] == ["ended", "held"]
    assert again[0]["term"][0] >= 110 * MINUTE > first["term"][1]
    assert (free(world, "upper"), free(world, "lower")) == (2, 4)


def test_beyond_a_gap(world: DeployedWorld) -> None:
    """A site's clock is far ahead, and its line goes on after a gap. What is in one part of it is granted, also while
    the first has not ended; what goes over the gap is not.
    """
    world.run_until(200 * MINUTE)
    world.feed("site", [Tick(245 * MINUTE)])
    world.pass_time(MINUTE)
    assert terms(world, "upper") == [Term(SITE, 2 * SITE), Term(245 * MINUTE, 245 * MINUTE + SITE)]
    before = world.request("batch", 2, 210 * MINUTE, 220 * MINUTE)
    behind = world.request("batch", 2, 250 * MINUTE, 260 * MINUTE)
    over = world.request("batch", 2, 230 * MINUTE, 260 * MINUTE)
    world.pass_time(MINUTE)
    assert in_hand(world, "batch", before) == [Term(210 * MINUTE, 220 * MINUTE)]
    assert in_hand(world, "batch", behind) == [Term(250 * MINUTE, 260 * MINUTE)]
    assert world.lease("batch", over)["state"] == "failed"
    assert "0 free at site" in world.lease("batch", over)["reason"]
