"""What a modify leaves of the claim before it stays booked until the site has taken the modify: over extends, returns
and restarts too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.core.leases.records import Asked, GuestLease, Held
from leasekit.core.time import MINUTE, SECOND, Term


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    """The site's word that it has taken a modify does not get through."""
    made = DeployedWorld(CHAIN, tmp_path)
    made.lost.add(("site", "upper", "ClaimReport"))
    return made


def free(world: DeployedWorld) -> list[int]:
    """What the upper broker has free of its six units, minute by minute from now on."""
    (source,) = world.broker("upper").book.of_type("vm")
    table = world.broker("upper").book.table(source.id)
    return [table.free_at(at) for at in range(world.now, world.now + 60 * MINUTE, MINUTE)]


def change(world: DeployedWorld, what: str, lease: str, **arguments: Any) -> None:
    """Have the guest change its lease, and let that come to its end."""
    reply = world.command("batch", f"lease.{what}", lease=lease, **arguments)
    assert not reply.error, reply.error
    world.pass_time(10 * SECOND)


@pytest.mark.parametrize(("units", "end"), [(1, 5 * MINUTE), (2, 10 * MINUTE)], ids=["less time", "fewer units"])
def test_a_restart_after_a_modify_and_extends(world: DeployedWorld, units: int, end: int) -> None:
    """A broker that has not heard that a modify was taken, and has extended the lease since, comes back from a restart
    with the same units booked, also when the claim of the modify is over.
    """
    lease = world.request("batch", units, 10 * SECOND, 10 * MINUTE)
    world.pass_time(MINUTE)
    change(world, "modify", lease, units=1, end=end)
    change(world, "extend", lease, end=20 * MINUTE, units=1)
    world.restart("upper")
    for length in (MINUTE, end - world.now - 30 * SECOND, MINUTE, 2 * MINUTE):
        world.pass_time(length)
        before = free(world)
        world.restart("upper")
        assert free(world) == before
    assert world.lease("batch", lease)["end"] == 20 * MINUTE
    change(world, "extend", lease, end=30 * MINUTE, units=2)
    before = free(world)
    world.restart("upper")
    assert free(world) == before
    world.lost.clear()
    world.command("batch", "lease.close", lease=lease)
    world.pass_time(MINUTE)
    assert free(world) == [2] * 60, "all but what the lower broker has"
    world.restart("upper")
    assert free(world) == [2] * 60


@pytest.mark.parametrize("units", [1, 2])
def test_a_restart_after_a_modified_lease_has_ended(world: DeployedWorld, units: int) -> None:
    """A lease that was modified to end sooner is not over at its broker while its site may still count the old claim:
    that stays booked up to the old end, over restarts too, and is free from then on.
    """
    lease = world.request("batch", units, 10 * SECOND, 40 * MINUTE)
    world.pass_time(MINUTE)
    change(world, "modify", lease, units=1, end=5 * MINUTE)
    for at in (6 * MINUTE, 18 * MINUTE, 39 * MINUTE):
        world.run_until(at)
        assert world.query("upper", "lease", lease=lease)["state"] == "ticketed"
        before = free(world)
        assert before[0] == 2 - units
        world.restart("upper")
        assert free(world) == before
    world.run_until(41 * MINUTE)
    assert world.query("upper", "lease", lease=lease)["state"] == "closed"
    assert free(world) == [2] * 60
    world.restart("upper")
    assert free(world) == [2] * 60
    assert not world.broker("upper").leases


def test_what_an_ended_lease_left_is_free_when_its_site_says_so(world: DeployedWorld) -> None:
    """The site's word that it took a modify comes after the lease has ended, and after a restart: the rest is free,
    and the lease is over.
    """
    lease = world.request("batch", 2, 10 * SECOND, 40 * MINUTE)
    world.pass_time(MINUTE)
    change(world, "modify", lease, units=1, end=5 * MINUTE)
    world.run_until(20 * MINUTE)
    world.restart("upper")
    assert free(world)[0] == 0
    world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert free(world) == [2] * 60
    assert world.query("upper", "lease", lease=lease)["state"] == "closed"
    world.restart("upper")
    assert free(world) == [2] * 60


def test_old_rows_have_their_extension_in_hand() -> None:
    """A lease that was extended before its tickets in hand were kept together goes on by them, and can be undone."""
    first, second = (Held(b"t", bytes([n]), 2, Term(n * MINUTE, (n + 1) * MINUTE)) for n in (1, 2))
    asked = Asked("extend", 2, Term(MINUTE, 3 * MINUTE), "site", {})
    old = GuestLease(
        "g-1", "web", "default", "vm", "broker", asked, state="active_ticketed", number=3, renewal=first,
        further=(second,), victims=("vm-0",),
    )  # fmt: skip
    lease = GuestLease.from_row(old.row())
    assert lease.renewal is None
    assert [(one.digest, one.extends) for one in lease.further] == [(b"\x01", 3), (b"\x02", 3)]
    assert lease.further[0].victims == ("vm-0",)


def test_old_rows_have_the_victims_of_what_is_redeemed() -> None:
    """The units that go by an extend that was being redeemed were kept beside its ticket, and are told to the site as
    often as it is asked.
    """
    ticket = Held(b"t", b"1", 1, Term(MINUTE, 2 * MINUTE), 3)
    old = GuestLease(
        "g-1", "web", "default", "vm", "broker", Asked("extend", 1, ticket.term, "site", {}), state="active_ticketed",
        pending="extending_lease", number=4, op="extend", op_number=4, renewal=ticket, victims=("vm-0",),
    )  # fmt: skip
    assert GuestLease.from_row(old.row()).leaving == ("vm-0",)
