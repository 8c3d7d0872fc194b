"""What brokers and sites with real keys say that is not so: a guest takes no more than it asked for, is not made to
give up what it uses, and says why each of its leases ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace

from leasekit.core.claims.claim import decode_ticket, delegate
from leasekit.core.protocol.messages import LeaseUpdate, Redeem, Relinquish, TicketUpdate, UnitState
from leasekit.core.reasons import Code, said
from leasekit.core.time import HOUR, MINUTE, SECOND, Term

TERM = Term(MINUTE, HOUR)


class Lying(DeployedWorld):
    """A broker's, or a site's, answers to a guest are lost: what the test makes up comes in their place."""

    def __init__(self, folder: Path, liar: str, kind: type[Any]) -> None:
        super().__init__(CHAIN, folder)
        self.pass_time(SECOND)
        self.lost.add((liar, "batch", kind.__name__))

    def ticket(self, **other: Any) -> bytes:
        """A ticket of the broker's own making, for what is asked for here, or for something else."""
        (source,) = self.broker("upper").book.of_type("vm")
        fields = {"units": 2, "term": TERM, **other}
        holder = self.guest("batch").signer.public
        made = delegate(decode_ticket(source.ticket), self.broker("upper").signer, holder=holder, serial=77, **fields)
        return made.encode()

    def grants(self, lease: str, ticket: bytes, update: int = 1) -> None:
        """The broker says that it grants a lease's first request."""
        said_ = TicketUpdate(lease, update, 1, "granted", ticket, "site", {}, b"", None, -1)
        self.receive("batch", "upper", said_)


@pytest.fixture
def broker(tmp_path: Path) -> Lying:
    """A world in which the broker makes things up."""
    return Lying(tmp_path, "upper", TicketUpdate)


@pytest.fixture
def site(tmp_path: Path) -> Lying:
    """A world in which the site does."""
    return Lying(tmp_path, "site", LeaseUpdate)


WRONG: dict[str, dict[str, Any]] = {
    "more units": {"units": 3}, "fewer units": {"units": 1}, "longer": {"term": Term(MINUTE, HOUR + 1)},
    "sooner": {"term": Term(MINUTE - 1, HOUR)}, "not firm": {"constraints": {"preemptible": "true"}},
}  # fmt: skip


@pytest.mark.parametrize("other", WRONG.values(), ids=WRONG)
def test_a_ticket_for_something_else_goes_back(broker: Lying, other: dict[str, Any]) -> None:
    """What was not asked for is not redeemed, but given back to the site; the lease fails, and says why."""
    lease = broker.request("batch", 2, *TERM)
    broker.grants(lease, broker.ticket(**other))
    broker.pass_time(SECOND)
    found = broker.lease("batch", lease)
    assert (found["state"], found["because"]["causes"][0]["code"]) == ("failed", Code.WRONG_TERMS)
    assert broker.letters(Relinquish, "batch", "site") and not broker.letters(Redeem, "batch")


def test_what_can_be_put_off_is_as_long_as_it_was_to_be(broker: Lying) -> None:
    """A deferrable request may be granted later, but for no longer."""
    first, second = (broker.request("batch", 2, *TERM, properties={"deferrable": "true"}) for _ in range(2))
    broker.grants(first, broker.ticket(term=Term(HOUR, 2 * HOUR - MINUTE)))
    broker.grants(second, broker.ticket(term=Term(HOUR, 2 * HOUR)))
    assert [broker.lease("batch", one)["state"] for one in (first, second)] == ["ticketed", "failed"]


def test_a_ticket_of_another_site_than_was_asked_for(broker: Lying) -> None:
    """A site that was excluded gets nothing to redeem."""
    lease = broker.request("batch", 2, *TERM, properties={"exclude_sites": "site"})
    broker.grants(lease, broker.ticket())
    assert broker.lease("batch", lease)["state"] == "failed"


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
def test_a_ticket_is_of_one_lease(broker: Lying, restart: bool) -> None:
    """A broker that grants a ticket twice does not make its guest give back what it uses: the site would end the lease,
    and could blame the guest.
    """
    first, second, third = (broker.request("batch", 2, *TERM) for _ in range(3))
    ticket = broker.ticket()
    broker.grants(first, ticket)
    assert not broker.command("batch", "lease.close", lease=third).error
    if restart:
        broker.restart("batch")
    broker.grants(second, ticket)
    broker.grants(third, ticket)
    broker.pass_time(2 * MINUTE)
    assert [broker.lease("batch", one)["state"] for one in (first, second)] == ["active", "failed"]
    assert not broker.letters(Relinquish, "batch")
    assert not broker.query("site", "evidence")


def test_a_ticket_that_goes_back_is_not_redeemed(broker: Lying) -> None:
    """What a guest is giving back it does not take for another lease."""
    broker.lost.add(("site", "batch", "Relinquished"))
    ticket = broker.ticket(units=3)
    for units in (2, 3):
        broker.grants(broker.request("batch", units, *TERM), ticket)
        broker.pass_time(SECOND)
    assert len(broker.letters(Relinquish, "batch", "site")) and not broker.letters(Redeem, "batch")


def test_a_lease_says_why_it_failed_though_its_broker_does_not(broker: Lying) -> None:
    """A refusal without a reason says who refused."""
    lease = broker.request("batch", 2, *TERM)
    broker.receive("batch", "upper", TicketUpdate(lease, 1, 1, "refused", b"", "", {}, b"", None, -1))
    assert broker.lease("batch", lease)["reason"] == "upper: no reason given"


def active(world: Lying) -> tuple[str, LeaseUpdate]:
    """A lease that the site has set up, and what it was about to tell its guest."""
    lease = world.request("batch", 2, *TERM)
    world.pass_time(3 * MINUTE)
    return lease, next(one for one in world.letters(LeaseUpdate, "site", "batch") if one.state == "active")


def test_no_more_units_than_the_ticket_gives(site: Lying) -> None:
    """Units beyond those that the ticket is for are not joined; the site's word is not taken."""
    lease, update = active(site)
    more = (*update.units, UnitState("vm-9", "active", {}, None))
    site.receive("batch", "site", replace(update, units=more))
    assert not site.lease("batch", lease)["units"]
    site.receive("batch", "site", update)
    assert len(site.lease("batch", lease)["units"]) == 2


def test_a_lease_that_ends_takes_no_units(site: Lying) -> None:
    """While a lease closes, units that its site gives it in addition are none of its, whatever contract they come with;
    those that the site has taken away are gone.
    """
    lease, update = active(site)
    site.receive("batch", "site", update)
    assert not site.command("batch", "lease.close", lease=lease).error
    more = (*update.units[1:], UnitState("vm-9", "active", {}, None))
    site.receive("batch", "site", replace(update, update=2, units=more))
    found = site.lease("batch", lease)
    assert (found["pending"], [unit["unit"] for unit in found["units"]]) == ("closing", [update.units[1].unit])


def test_why_a_lease_ended_stays(site: Lying) -> None:
    """What a site says of a lease that is over changes nothing of it."""
    lease, update = active(site)
    over = replace(update, number=0, state="closed", units=(), contract=b"")
    site.receive("batch", "site", update, replace(over, update=2, reason=said("power failed")))
    before = site.lease("batch", lease)
    assert (before["state"], before["reason"]) == ("closed", "power failed")
    for number, state in enumerate(("told", "waiting", "terminating")):
        site.receive("batch", "site", replace(over, update=3 + number, state=state))
        assert site.lease("batch", lease)["reason"] == "power failed"
