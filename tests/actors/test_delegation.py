"""Delegations: from a site through brokers to guests, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.actors.broker.broker import Broker
from leasekit.actors.peering import Peer
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.protocol.messages import Offer, OfferAnswer, Reclaim, Truncated
from leasekit.core.reasons import said, words
from leasekit.core.steps import Connected, Input, Message, Outgoing, Received, Tick
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.stores.memory import MemoryStore


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def free(world: DeployedWorld, broker: str) -> int:
    """The units that a broker can still grant now, over an hour."""
    return sum(row["free_for_a_day"] for row in world.query(broker, "sources") if row["state"] == "held")


def booked(world: DeployedWorld, broker: str) -> int:
    """The units that a broker has given out for now."""
    book = world.broker(broker).book
    return sum(source.units - book.table(source.id).free_at(world.now) for source in book.of_type("vm"))


def test_a_chain_of_two_brokers(world: DeployedWorld) -> None:
    """A guest leases from a site by way of two brokers; its ticket shows all three claims."""
    lease = world.request("web", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "active"
    assert world.lease("web", lease)["site"] == "site"
    assert len(world.lease("site", lease)["units"]) == 3
    held = world.guest("web").leases[lease].approved
    assert held is not None
    assert [claim.units for claim in decode_ticket(held.ticket).chain] == [6, 4, 3]
    assert (free(world, "upper"), free(world, "lower")) == (2, 1)


def test_a_broker_grants_nothing_that_it_gave_away(world: DeployedWorld) -> None:
    """What a broker has delegated is not its own any more."""
    lease = world.request("batch", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "failed"
    assert "2 free" in world.lease("batch", lease)["reason"]


def test_returns_go_back_to_the_broker_that_granted(world: DeployedWorld) -> None:
    """Closing a lease early gives its units back to the lower broker, with the site's receipt."""
    lease = world.request("web", 4, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert free(world, "lower") == 0
    world.command("web", "lease.close", lease=lease)
    world.pass_time(MINUTE)
    assert free(world, "lower") == 4
    assert world.query("web", "returns") == []
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("name", ["site", "upper", "lower", "web"])
def test_restarts(world: DeployedWorld, name: str) -> None:
    """Whoever is restarted, delegations and what was granted from them are as they were."""
    lease = world.request("web", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert (booked(world, "upper"), booked(world, "lower")) == (4, 3)
    world.restart(name)
    world.pass_time(MINUTE)
    assert (booked(world, "upper"), booked(world, "lower")) == (4, 3)
    other = world.request("web", 1, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert [world.lease("web", one)["state"] for one in (lease, other)] == ["active", "active"]
    assert world.query("site", "evidence") == []


def test_offers_are_repeated_until_answered(tmp_path: Path) -> None:
    """An offer whose answer is lost is sent again, and answered again; a restart sends none that was taken."""
    world = DeployedWorld(CHAIN, tmp_path)
    assert world.query("upper", "delegations")[0]["state"] == "held"
    sent = len(world.letters(Offer))
    world.restart("upper")
    world.pass_time(HOUR)
    assert len(world.letters(Offer)) == sent
    (tmp_path / "other").mkdir()
    other = DeployedWorld(CHAIN, tmp_path / "other", make=_deaf_to_answers)
    assert other.query("upper", "delegations")[0]["state"] == "offering"
    first = len(other.letters(Offer, "upper"))
    other.broker("upper").dispatch.messages[OfferAnswer] = other.broker("upper").issued._on_offer_answer
    other.pass_time(MINUTE)
    assert len(other.letters(Offer, "upper")) > first
    assert other.query("upper", "delegations")[0]["state"] == "held"


def _deaf_to_answers(name: str, actor):  # type: ignore[no-untyped-def]
    if name == "upper":
        actor.dispatch.messages[OfferAnswer] = lambda peer, message: None
    return actor


def test_what_was_refused_stays_booked_until_its_site_knows(tmp_path: Path) -> None:
    """The holder has the claim of an offer that it refuses: its units are nobody else's, after a restart neither, until
    the site has heard that it is over.
    """
    world = DeployedWorld(CHAIN, tmp_path, make=_refusing)
    for _ in range(2):
        assert [row["state"] for row in world.query("upper", "delegations")] == ["refused"], "no other is offered"
        assert (booked(world, "upper"), free(world, "upper")) == (4, 2)
        world.restart("upper")
        world.pass_time(MINUTE)
    site = world.site()
    site.dispatch.messages[Truncated] = site.hears_of_truncations
    world.pass_time(HOUR)
    assert (booked(world, "upper"), free(world, "upper")) == (0, 6)


def _refusing(name: str, actor):  # type: ignore[no-untyped-def]
    if name == "site":
        actor.hears_of_truncations = actor.dispatch.messages[Truncated]
        actor.dispatch.messages[Truncated] = lambda peer, message: None
    if name == "lower":
        actor.dispatch.messages[Offer] = lambda peer, offer: actor.kernel.messages.append(
            Outgoing(peer, OfferAnswer(offer.delegation, offer.number, said("it has enough")))
        )
    return actor


def test_a_reclaim_lets_leases_run_out(world: DeployedWorld) -> None:
    """From the instant on nothing new begins; a lease that exists goes on to its end."""
    lease = world.request("web", 2, 10 * SECOND, 30 * MINUTE)
    later = world.request("web", 2, 40 * MINUTE, HOUR)
    world.pass_time(MINUTE)
    assert [world.lease("web", one)["state"] for one in (lease, later)] == ["active", "ticketed"]
    reply = world.command("site", "delegation.reclaim", delegation="site/vm@upper")
    assert reply.result["state"] == "reclaiming"
    world.pass_time(MINUTE)
    assert world.query("site", "delegations")[0]["state"] == "reclaimed"
    assert world.query("upper", "delegations")[0]["state"] == "reclaimed", "the broker takes back what it gave of it"
    assert world.lease("web", lease)["state"] == "active"
    assert world.lease("web", later)["state"] == "failed"
    assert "takes" in world.lease("web", later)["reason"]
    refused = world.request("web", 1, world.now + MINUTE, HOUR, properties={})
    world.pass_time(2 * MINUTE)
    assert world.lease("web", refused)["state"] == "failed"
    world.run_until(31 * MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    assert all(unit["state"] == "free" for unit in world.query("site", "units"))
    world.restart("site")
    world.pass_time(MINUTE)
    assert [row["state"] for row in world.query("site", "delegations")] == ["reclaimed"], "not offered anew"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_reclaim_from_later_on_leaves_the_time_before(world: DeployedWorld, restarted: bool) -> None:
    """Until the instant of a reclaim all brokers below grant what ends by then, and nothing that goes beyond; they say
    so, and have nothing from then on.
    """
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=10 * MINUTE)
    world.pass_time(SECOND)
    if restarted:
        for name in ("upper", "lower"):
            world.restart(name)
    for name in ("upper", "lower"):
        (row,) = world.query(name, "sources")
        assert (row["state"], row["reclaimed"], row["grants_until"]) == ("reclaimed", 10 * MINUTE, 10 * MINUTE)
    assert [row["free_now"] for name in ("upper", "lower") for row in world.query(name, "sources")] == [2, 4]
    asked = {
        guest: [world.request(guest, 1, 2 * MINUTE, end) for end in (10 * MINUTE, 10 * MINUTE + 1)]
        for guest in ("web", "batch")
    }
    world.run_until(3 * MINUTE)
    for guest, leases in asked.items():
        assert [world.lease(guest, one)["state"] for one in leases] == ["active", "failed"]
        assert world.command(guest, "lease.extend", lease=leases[0], end=20 * MINUTE).error == ""
    world.run_until(11 * MINUTE)
    for guest, (lease, _) in asked.items():
        assert world.lease(guest, lease)["state"] == "closed"
    for name in ("upper", "lower"):
        (row,) = world.query(name, "sources")
        assert (row["free_now"], row["free_for_a_day"], row["grants_until"]) == (0, 0, 10 * MINUTE)
        assert world.broker(name).book.types() == []
    assert world.query("site", "evidence") == []


def test_a_broker_that_did_not_hear_of_a_reclaim(world: DeployedWorld) -> None:
    """What it grants all the same is refused by the site if it begins later, and runs out if not."""
    world.lost.add(("site", "upper", "Reclaim"))
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=10 * MINUTE)
    before, after = (world.request("web", 1, start, HOUR) for start in (5 * MINUTE, 10 * MINUTE))
    world.run_until(12 * MINUTE)
    assert world.lease("web", before)["state"] == "active"
    assert world.lease("web", after)["state"] == "failed"
    assert "took this delegation back" in world.lease("web", after)["reason"]
    world.lost.clear()
    world.run_until(62 * MINUTE)
    assert world.lease("web", before)["state"] == "closed"
    assert world.query("site", "delegations")[0]["state"] == "reclaimed"


def test_what_is_granted_before_a_reclaim_is_not_given_twice(world: DeployedWorld) -> None:
    """A broker that takes back from later on grants the units anew from then on, not before; nobody is blamed."""
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower", at=10 * MINUTE)
    world.pass_time(SECOND)
    lower = world.request("web", 4, 5 * MINUTE, 10 * MINUTE)
    early, late = (world.request("batch", 6, start, start + 5 * MINUTE) for start in (5 * MINUTE, 10 * MINUTE))
    world.run_until(6 * MINUTE)
    assert (world.lease("web", lower)["state"], world.lease("batch", early)["state"]) == ("active", "failed")
    world.run_until(11 * MINUTE)
    assert (world.lease("web", lower)["state"], world.lease("batch", late)["state"]) == ("closed", "active")
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("leave", ["0s", "5s"])
def test_a_guest_hears_who_takes_units_back(tmp_path: Path, leave: str) -> None:
    """A broker's reclaim ends leases below it in its name: at once those that have not begun, by the deadline the
    others, which say so all along.
    """
    text = CHAIN.replace('default_broker = "lower"', f'default_broker = "lower"\nsettings.leave_time = "{leave}"')
    world = DeployedWorld(text, tmp_path)
    lease, later = (world.request("web", 1, start, HOUR) for start in (10 * SECOND, 30 * MINUTE))
    world.pass_time(MINUTE)
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower", deadline=10 * MINUTE)
    world.pass_time(SECOND)
    why = "upper takes back what it gave to lower"
    assert (world.lease("web", later)["state"], world.lease("web", later)["reason"]) == ("failed", why)
    going = world.lease("web", lease)
    assert (going["state"], going["end"], going["reason"]) == ("active", 10 * MINUTE, why)
    assert world.lease("lower", lease)["claims"][-1]["term"][1] == 10 * MINUTE
    world.run_until(11 * MINUTE)
    assert (world.lease("web", lease)["state"], world.lease("web", lease)["reason"]) == ("closed", why)
    assert why in world.lease("site", lease)["reason"]


def test_a_reclaim_with_a_deadline_closes_leases(world: DeployedWorld) -> None:
    """Leases are over by the deadline; their guests hear of it at once, and leave in time."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", deadline=10 * MINUTE)
    world.pass_time(SECOND)
    assert world.guest("web").leases[lease].ending.at == 10 * MINUTE
    extended = world.command("web", "lease.extend", lease=lease, end=2 * HOUR)
    world.pass_time(10 * SECOND)
    assert extended.error or world.lease("web", lease)["renewal"] is None
    for name in ("site", "web"):
        world.restart(name)
    world.run_until(10 * MINUTE - SECOND)
    assert world.lease("web", lease)["state"] == "active"
    world.run_until(11 * MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    assert all(unit["state"] == "free" for unit in world.query("site", "units"))


def test_a_reservation_at_the_site_is_given_up(tmp_path: Path) -> None:
    """A ticket redeemed ahead of a term that the reclaim forbids fails at the site, with that reason."""
    text = CHAIN.replace('default_broker = "lower"', 'default_broker = "lower"\nsettings.redeem_lead = "1h"')
    world = DeployedWorld(text, tmp_path)
    lease = world.request("web", 2, 20 * MINUTE, HOUR)
    world.pass_time(10 * SECOND)
    site = world.site()
    assert site.leases[lease].pending == "redeeming"
    world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=10 * MINUTE)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "failed"
    assert "takes back" in world.lease("web", lease)["reason"]


def test_what_a_broker_takes_back_it_can_grant(world: DeployedWorld) -> None:
    """The upper broker's units are free when the site has heard that the claim ended, and nobody is blamed for it."""
    lease = world.request("web", 1, 10 * SECOND, 30 * MINUTE)
    world.pass_time(MINUTE)
    world.lost.add(("upper", "site", "Truncated"))
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower")
    world.pass_time(MINUTE)
    assert world.letters(Reclaim, "upper", "lower") and world.letters(Truncated, "upper", "site")
    assert free(world, "upper") == 2, "until the site has accepted it, the site would count both"
    world.restart("upper")
    world.lost.clear()
    world.run_until(25 * MINUTE)
    table = world.broker("upper").book.table("site/vm@upper")
    assert (table.free_at(29 * MINUTE), table.free_at(31 * MINUTE)) == (2, 6), "the lease of the lower broker runs out"
    new = world.request("batch", 6, 31 * MINUTE, HOUR)
    world.run_until(32 * MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    assert world.lease("batch", new)["state"] == "active", world.lease("batch", new)["reason"]
    assert world.query("site", "evidence") == []


def test_reclaims_that_cannot_be(world: DeployedWorld) -> None:
    """What is no delegation, over already, or has a deadline before its instant is refused with what was found."""
    error = failed(world.command("site", "delegation.reclaim", delegation="nothing"))
    assert "'nothing'" in error and "site/vm@upper" in error
    error = failed(world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=HOUR, deadline=MINUTE))
    assert "deadline" in error
    world.command("site", "delegation.reclaim", delegation="site/vm@upper")
    world.pass_time(MINUTE)
    assert "reclaimed" in failed(world.command("site", "delegation.reclaim", delegation="site/vm@upper"))


def test_types_with_long_names(tmp_path: Path) -> None:
    """A delegation whose parts have long names gets a name that a message can hold, and is taken."""
    text = CHAIN.replace("units = 6", 'units = 6\nprefix = "vm"').replace('"vm"\nlength', f'"{LONG}"\nlength')
    text = text.replace('type = "vm"', f'type = "{LONG}"')
    world = DeployedWorld(text, tmp_path)
    assert [row["state"] for row in world.query("site", "delegations")] == ["held"]
    assert [row["type"] for row in world.query("lower", "sources")] == [LONG]
    world.restart("site")
    world.pass_time(MINUTE)
    assert len(world.query("upper", "sources")) == 1


LONG = "v" * 90


def test_a_reclaim_that_overtakes_its_offer(world: DeployedWorld) -> None:
    """The offer that comes after its reclaim is not taken."""
    offer = world.letters(Offer, "upper", "lower")[0]
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower")
    reclaim = world.letters(Reclaim, "upper", "lower")[0]
    lower = world.broker("lower")
    lower.book.remove("upper/vm@lower")
    world.receive("lower", "upper", reclaim)
    world.receive("lower", "upper", offer)
    world.pass_time(MINUTE)
    assert free(world, "lower") == 0
    assert lower.book.types() == []


def test_a_refused_offer_that_comes_again_is_refused_again() -> None:
    """Though it could be taken by then: an issuer that has heard the first answer uses the units for others.

    The site was away when its delegation ended, and offers anew; the broker's clock is behind, and the old one's time
    is not over there.
    """
    keys = {name: UnsignedIdentity(name) for name in ("site", "broker")}
    spec = DelegationSpec(broker="broker", type="vm", units=1, length=100 * SECOND)
    group = UnitGroup(type="vm", names=("vm-0",))

    def site() -> Authority:
        peers = [Peer(name="broker", key=keys["broker"].public, role="broker")]
        settings = AuthoritySettings(inventory=(group,), delegations=(spec,))
        return Authority("site", keys["site"], UNSIGNED, peers, FirstFit(), settings)

    peers = [Peer(name="site", key=keys["site"].public, role="authority")]
    broker = Broker("broker", keys["broker"], UNSIGNED, peers, Fcfs(), BrokerSettings())
    store = MemoryStore()

    def says(actor: Authority | Broker, *inputs: Input) -> list[Message]:
        for one in inputs:
            actor.step(one)
        ready = actor.ready()
        if ready is not None and isinstance(actor, Authority):
            store.commit(ready.changes)
        return [] if ready is None else [one.message for one in ready.messages]

    issuer = site()
    (offer,) = says(issuer, Tick(0))
    says(issuer, *(Received("broker", answer) for answer in says(broker, Tick(0), Received("site", offer))))
    issuer = site()
    issuer.restore(store.load())
    offer = says(issuer, Tick(100 * SECOND))[-1]
    (refused,) = says(broker, Tick(99 * SECOND), Received("site", offer))
    assert isinstance(refused, OfferAnswer)
    assert refused.reason is not None and "holds another claim" in words(refused.reason)
    (again,) = says(broker, Tick(101 * SECOND), Received("site", offer))
    assert isinstance(again, OfferAnswer)
    assert again.reason == refused.reason
    assert broker.query("sources", {}) == []
    fresh = [one for one in says(issuer, Received("broker", refused), Connected("broker")) if isinstance(one, Offer)]
    (taken,) = says(broker, Received("site", fresh[-1]))
    assert isinstance(taken, OfferAnswer)
    assert taken.reason is None
