"""Parts of a service manager, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

from typing import Any

import pytest

from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.tickets import Sites, Tickets
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import ActorSettings, GuestSettings, Peer
from leasekit.core.claims.keys import ED25519, Keypair
from leasekit.core.claims.ticket import delegate, delegate_root
from leasekit.core.errors import CommandError, TicketError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import Asked, GuestLease, Held, Slice
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.messages import NEW, TicketUpdate
from leasekit.core.time import HOUR, MINUTE, Term

ME, HUB, SITE = (Keypair(letter * 32) for letter in (b"m", b"h", b"s"))
TERM = Term(HOUR, 2 * HOUR)


def lease(number: int, name: str = "one", slice_: str = "s", **more: Any) -> GuestLease:
    """A lease that is asked for: two units."""
    return GuestLease(f"w-{number}", name, slice_, "vm", "hub", Asked(NEW, 2, TERM, "", {}), **more)


def test_leases_are_found_by_id_and_by_name() -> None:
    """A bare name means the open lease; one that several slices have must be told apart. A restart changes nothing."""
    kernel = Kernel(ActorSettings())
    kernel.register(GuestLease)
    leases = Leases(kernel, keep_closed=True)
    leases.slices["s"] = Slice("s")
    for one in (lease(1), lease(2, "two", join_predecessor="w-1"), lease(10, "two", "t")):
        leases.adopt(one)
    assert leases.find("w-1") is leases.find("one") is leases.find("s/one")
    with pytest.raises(CommandError, match="used in 2 slices: write SLICE/two"):
        leases.find("two")
    with pytest.raises(CommandError, match="no lease 'three' here"):
        leases.find("three")
    assert [one.id for one in leases.dependents(leases.find("w-1"))] == ["w-2"]
    assert [one.id for one in leases.of_slice("s")] == ["w-1", "w-2"]
    rows = [one.row() for one in reversed(leases.by_id.values())]
    again = Leases(Kernel(ActorSettings()), keep_closed=True)
    again.restore([leases.slices["s"].row()], rows)
    assert list(again.by_id) == ["w-1", "w-2", "w-10"], "in the order of request"
    assert again.describe(again.find("one")) == leases.describe(leases.find("one"))


def test_leases_that_are_over_are_forgotten() -> None:
    """What is open goes by the state; a lease that is dropped leaves its row as history."""
    kernel = Kernel(ActorSettings())
    kernel.register(GuestLease)
    leases = Leases(kernel, keep_closed=True)
    over = lease(1, state=sm.CLOSED)
    leases.adopt(over)
    assert not leases.open
    leases.drop(over)
    ready = kernel.take()
    assert ready is not None and ready.changes[0][::2] == ("leases", over.row())
    with pytest.raises(CommandError, match="no lease 'one' here"):
        leases.find("one")


def test_tickets_are_held_against_what_was_asked() -> None:
    """A ticket for what was asked, from a site that is known, can be run on; others say what is wrong with them."""
    kernel = Kernel(ActorSettings())
    kernel.tick(HOUR)
    peers = [Peer(name="hub", key=HUB.public, role="broker"), Peer(name="site", key=SITE.public, role="authority")]
    keyring = Keyring("me", ME, ED25519, peers, kernel)
    sites = Sites(keyring)
    tickets = Tickets(keyring, sites, Returns(kernel, keyring, {}, sites.name_of))

    def update(type_: str = "vm", units: int = 2) -> TicketUpdate:
        root = delegate_root(
            SITE, holder=HUB.public, type=type_, units=9, term=Term(0, 9 * HOUR), serial=1,
            properties=digest_properties({}),
        )  # fmt: skip
        ticket = delegate(root, HUB, holder=ME.public, units=units, term=TERM, serial=2)
        return TicketUpdate("w-1", 1, 1, "granted", ticket.encode(), "site", {}, b"", "", -1)

    held, rest, site = tickets.check(lease(1), update())
    assert (held.units, held.term, rest, site) == (2, TERM, (), "site")
    with pytest.raises(TicketError, match="it is for 'gpu', not 'vm'"):
        tickets.check(lease(1), update("gpu"))
    del keyring.peers["site"]
    sites.changed("site")
    with pytest.raises(TicketError, match="no site known here"):
        tickets.check(lease(1), update())


def test_limits_follow_from_the_state_of_a_lease() -> None:
    """Units leave a lease before its end, or before the instant that its site has given notice of; a ticket in hand is
    redeemed when its term comes near, but not while its slice holds for all.
    """
    kernel = Kernel(ActorSettings())
    settings = GuestSettings(leave_time=MINUTE, redeem_lead=2 * MINUTE)
    slices = {"s": Slice("s")}
    limits = Limits(kernel, settings, slices, lambda lease: False)
    held = Held(b"ticket", b"d" * 32, 2, TERM)
    runs = lease(1, state=sm.ACTIVE, approved=held, granted=TERM)
    assert limits.of(runs) == TERM.end - MINUTE
    runs.noticed = TERM.start + 5 * MINUTE
    assert limits.of(runs) == TERM.start + 4 * MINUTE
    waits = lease(2, state=sm.TICKETED, approved=held)
    assert limits.of(waits) == TERM.start - 2 * MINUTE
    kernel.tick(TERM.start - 2 * MINUTE)
    assert limits.is_past(waits)
    slices["s"].released = False
    assert limits.of(waits) == TERM.end and not limits.is_past(waits)
    assert limits.of(lease(3, state=sm.CLOSED)) is None
