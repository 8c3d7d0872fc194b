"""A site whose mapper runs apart from it: what changes while the mapper thinks is not decided by what it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from actor_bench import Bench, Mappers

from leasekit.actors.peering import Peer
from leasekit.actors.settings import AuthoritySettings, DelegationSpec, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.claim import decode_ticket, delegate
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity, key_tag
from leasekit.core.mappers import Assign, AuthorityCycle, AuthorityDecision, Refuse, Wake
from leasekit.core.protocol.messages import NEW, LeaseUpdate, Offer, OfferAnswer, Redeem
from leasekit.core.steps import Action, ActionDone, Command, Input, Message, Ready, Received, Tick, TurnDone
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.first_fit import FirstFit

SITE, BROKER, GUEST = UnsignedIdentity("site"), UnsignedIdentity("broker"), UnsignedIdentity("guest")
LEASE = f"{key_tag(GUEST.public)}-1"


class Apart(FirstFit):
    """First fit, in a thread."""

    inline: ClassVar[bool] = False


class Desk:
    """A site of some units, fed by hand; it has given them all to a broker."""

    def __init__(self, units: str) -> None:
        peers = [
            Peer(name="broker", key=BROKER.public, role="broker"),
            Peer(name="guest", key=GUEST.public, role="guest"),
        ]
        settings = AuthoritySettings(
            inventory=(UnitGroup(type="vm", names=tuple(units)),),
            delegations=(DelegationSpec(broker="broker", type="vm", units=len(units)),),
        )
        self.site = Authority("site", SITE, UNSIGNED, peers, Apart(), settings)
        self.actions: dict[str, int] = {}
        (offer,) = [one for one in self.feed(Tick(0)) if isinstance(one, Offer)]
        self._offer = offer
        self.feed(Received("broker", OfferAnswer(offer.delegation, offer.number, None)))

    def feed(self, *inputs: Input) -> Sequence[Message]:
        """Step on; what is sent then. Keeps the number of each unit's action."""
        for one in inputs:
            self.site.step(one)
        ready = self.site.ready() or Ready([], [], [], [], [])
        self.actions |= {action.unit: action.number for action in ready.actions if isinstance(action, Action)}
        return [outgoing.message for outgoing in ready.messages]

    def redeem(self, units: int, *, start: Instant = 0) -> None:
        """A guest redeems a ticket for so many units."""
        given = decode_ticket(self._offer.ticket)
        ticket = delegate(given, BROKER, holder=GUEST.public, units=units, term=Term(start, 10**6), serial=1)
        self.feed(Received("guest", Redeem(LEASE, 1, NEW, "s", ticket.encode(), {}, {}, (), b"")))

    def think(self) -> TurnDone:
        """The mapper's turn, which is due; the site has not heard of its end."""
        turn = self.site.turn()
        assert turn is not None
        return turn.run()

    def ends(self, unit: str, *, ok: bool) -> Sequence[Message]:
        """What was being done to a unit is done, or has failed."""
        return self.feed(ActionDone(self.actions[unit], unit, ok, {}, "" if ok else "broke"))


def test_a_unit_fails_while_the_mapper_replaces_another() -> None:
    """The mapper knew of one; the other is replaced in the next turn, though the first decision was carried out."""
    desk = Desk("abcde")
    desk.redeem(3)
    desk.feed(desk.think())
    desk.ends("a", ok=False)
    done = desk.think()
    assert done.decisions == (Assign(LEASE, ("d",)),)
    desk.ends("b", ok=False)
    desk.feed(done)
    desk.feed(desk.think())
    for unit in "cd":
        desk.ends(unit, ok=True)
    (update,) = [one for one in desk.ends("e", ok=True) if isinstance(one, LeaseUpdate)]
    assert (update.state, [unit.unit for unit in update.units], update.reason) == ("active", ["c", "d", "e"], None)
    assert desk.site.turn() is None


@pytest.mark.parametrize("enabled", [True, False])
def test_a_refusal_holds_if_nothing_has_changed_meanwhile(enabled: bool) -> None:
    """A unit that comes into service while the mapper thinks makes it another matter, which it decides anew."""
    desk = Desk("a")
    desk.redeem(1, start=10)
    desk.feed(Command(1, "unit.disable", {"unit": "a"}), Tick(10))
    done = desk.think()
    assert [type(one) for one in done.decisions] == [Refuse]
    if enabled:
        desk.feed(Command(2, "unit.enable", {"unit": "a"}), done)
        desk.feed(desk.think())
        sent = desk.ends("a", ok=True)
    else:
        sent = desk.feed(done)
    (update,) = [one for one in sent if isinstance(one, LeaseUpdate)]
    assert update.state == ("active" if enabled else "failed")


class Hesitant(FirstFit):
    """First fit, which puts off for a while which units a lease is to give up."""

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Nothing of what shrinks, if it was not put off already."""
        assert all(demand.units for demand in cycle.demands), "a lease that lacks nothing is not asked about"
        later = [Wake(cycle.now + 10_000)] if any(demand.units < 0 for demand in cycle.demands) else []
        return [*later, *super().assign(cycle._replace(demands=[one for one in cycle.demands if one.units > 0]))]


def test_a_lease_that_loses_the_unit_it_was_to_give_up_is_even() -> None:
    """A setup fails while the mapper has yet to choose what a shrinking lease gives up: there is nothing to choose."""
    bench = Bench(mappers=Mappers(site=Hesitant)).start()
    bench.command("guest", "lease.request", type="vm", units=2, term=[2000, 600_000], name="web")
    bench.run_until(20_000)
    bench.latencies["site", "setup"] = 5000
    bench.failures["site", "setup", "vm-2"] = 1
    bench.command("site", "unit.fail", unit="vm-0")  # vm-2 comes in its place
    bench.command("guest", "lease.modify", lease="web", units=1)
    bench.run_until(60_000)
    lease = bench.query("guest", "lease", lease="web")
    assert (lease["state"], lease["pending"], len(lease["units"])) == ("active", "-", 1)
    assert [unit["state"] for unit in bench.query("site", "units")].count("active") == 1
