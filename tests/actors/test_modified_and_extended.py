"""What a modify leaves of the claim before it stays booked until the site has taken the modify: over extends, returns
and restarts too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.core.time import MINUTE, SECOND


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
