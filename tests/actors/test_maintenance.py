"""Maintenance windows: nobody gets the units then, everybody is told, and they come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.core.time import HOUR, MINUTE, SECOND

START, END = 10 * MINUTE, 20 * MINUTE


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def add(world: DeployedWorld, **arguments: Any) -> str:
    reply = world.command("site", "maintenance.add", start=START, end=END, reason="new disks", **arguments)
    assert not reply.error, reply.error
    return str(reply.result["window"])


def free_at(world: DeployedWorld, at: int) -> tuple[int, int, int]:
    """What the site and both brokers have to give at an instant."""
    counts = [world.site().calendars.of("vm").free_at(at)]
    for name in ("upper", "lower"):
        book = world.broker(name).book
        counts.append(sum(max(0, book.table(source.id).free_at(at)) for source in book.of_type("vm")))
    return counts[0], counts[1], counts[2]


def out(world: DeployedWorld) -> list[str]:
    return [unit["unit"] for unit in world.query("site", "units") if unit["state"] == "out"]


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_some_units(world: DeployedWorld, restarts: bool) -> None:
    """The window's units are missing over its time, at the site and at the brokers; then they are back."""

    def restart() -> None:
        for name in ("site", "upper", "lower") if restarts else ():
            world.restart(name)

    add(world, units=["vm-0", "vm-5"])
    restart()
    world.pass_time(MINUTE)
    assert free_at(world, START - 1) == (6, 2, 4)
    assert free_at(world, START) == (4, 0, 4), "what upper has given to nobody goes first"
    assert free_at(world, END) == (6, 2, 4)
    world.run_until(START + MINUTE)
    assert out(world) == ["vm-0", "vm-5"]
    restart()
    world.pass_time(MINUTE)
    assert free_at(world, END) == (6, 2, 4)
    lease = world.request("web", 2, world.now + MINUTE, END - MINUTE)
    world.pass_time(2 * MINUTE)
    assert world.lease("web", lease)["state"] == "active", world.lease("web", lease)["reason"]
    assert not {"vm-0", "vm-5"} & set(world.lease("site", lease)["units"])
    world.run_until(END + MINUTE)
    assert out(world) == [] and world.query("site", "maintenance") == []
    assert world.site().calendars.of("vm").free_at(world.now) == 6


def test_the_whole_site(world: DeployedWorld) -> None:
    """Nothing can be leased over it; a deferrable request waits for its end."""
    add(world)
    world.pass_time(SECOND)
    refused = world.request("web", 1, START + MINUTE, END + MINUTE)
    later = world.request("web", 1, START + MINUTE, START + 5 * MINUTE, properties={"deferrable": "true"})
    world.pass_time(MINUTE)
    assert world.lease("web", refused)["state"] == "failed"
    assert world.guest("web").leases[later].approved.term.start == END  # type: ignore[union-attr]
    world.run_until(END + 2 * MINUTE)
    assert world.lease("web", later)["state"] == "active"


def test_leases_that_run(world: DeployedWorld) -> None:
    """A lease keeps its units beyond the window's start unless it is to be closed for it; its guest hears of that."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    units = world.lease("site", lease)["units"]
    window = add(world, units=units[:1])
    world.run_until(START + MINUTE)
    assert world.lease("web", lease)["state"] == "active"
    world.command("site", "maintenance.remove", window=window)
    world.command("web", "lease.close", lease=lease)
    world.run_until(START + 3 * MINUTE)
    assert out(world) == []
    assert world.site().calendars.of("vm").free_at(world.now) == 6


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_a_lease_shrinks_while_its_site_has_too_few(world: DeployedWorld, restarts: bool) -> None:
    """A lease may have less over a window that leaves its site with less than was granted; not more."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    other = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    add(world)
    world.pass_time(MINUTE)
    for name in ("site", "upper", "lower") if restarts else ():
        world.restart(name)
    more = world.command("web", "lease.modify", lease=lease, units=3)
    assert not more.error
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "active" and len(world.lease("web", lease)["units"]) == 2
    assert not world.command("web", "lease.modify", lease=lease, units=1).error
    world.pass_time(MINUTE)
    assert len(world.lease("web", lease)["units"]) == len(world.lease("site", lease)["units"]) == 1
    assert world.lease("batch", other)["state"] == "active"
    assert world.site().calendars.of("vm").free_at(START) == -3


def test_a_lease_that_shrinks_still_ends_when_it_was_told_to(world: DeployedWorld) -> None:
    """A modify changes nothing about a window that its lease is closed for: the units are others' from its start on."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    add(world, units=world.lease("site", lease)["units"][:1], close=True)
    world.pass_time(SECOND)
    assert not world.command("web", "lease.modify", lease=lease, units=1).error
    world.pass_time(MINUTE)
    assert len(world.lease("site", lease)["units"]) == 1 and world.guest("web").leases[lease].noticed == START
    assert world.site().calendars.of("vm").free_at(START - 1) == 5
    assert world.site().calendars.of("vm").free_at(END) == 6


def test_leases_are_closed_for_it(world: DeployedWorld) -> None:
    """With ``close`` a lease that has one of the units ends when the window begins, and its guest is told before."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    other = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    add(world, units=world.lease("site", lease)["units"][:1], close=True)
    world.pass_time(SECOND)
    assert world.guest("web").leases[lease].noticed == START
    world.run_until(START + MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    assert world.lease("batch", other)["state"] == "active"
    assert len(out(world)) == 1


def test_a_window_is_taken_back(world: DeployedWorld) -> None:
    """Brokers have their units again."""
    window = add(world)
    world.pass_time(MINUTE)
    assert free_at(world, START) == (0, 0, 0)
    world.command("site", "maintenance.remove", window=window)
    world.pass_time(MINUTE)
    assert free_at(world, START) == (6, 2, 4)


def test_windows_that_cannot_be(world: DeployedWorld) -> None:
    """Times, units, types and windows that make no sense are named."""
    for arguments, words in (
        ({"start": END, "end": START}, "window: found"),
        ({"start": 0, "end": 1}, "must end after it begins"),
        ({"start": "soon", "end": END}, "start: found 'soon'"),
        ({"start": START, "end": END, "units": ["nothing"]}, "no unit 'nothing'"),
        ({"start": START, "end": END, "type": "gpu"}, "type: found 'gpu', there are vm"),
    ):
        assert words in failed(world.command("site", "maintenance.add", **arguments))
    assert "there are (none)" in failed(world.command("site", "maintenance.remove", window="x"))


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_units_that_are_out_for_another_reason(world: DeployedWorld, restarts: bool) -> None:
    """A unit that is out of service counts once as missing, whatever windows it is in, and as soon as it is back it
    counts again.
    """

    def counted() -> tuple[int, int, int]:
        if restarts:
            world.restart("site")
        world.pass_time(SECOND)
        table = world.site().calendars.of("vm")
        return tuple(table.free_at(max(at, world.now)) for at in (world.now, START + MINUTE, END))  # type: ignore[return-value]

    def order(command: str, unit: str) -> None:
        reply = world.command("site", command, unit=unit)
        assert not reply.error, reply.error

    order("unit.disable", "vm-0")
    add(world, units=["vm-0", "vm-1"])
    assert counted() == (5, 4, 5)
    order("unit.enable", "vm-0")
    assert counted() == (6, 4, 6)
    order("unit.disable", "vm-1")
    order("unit.disable", "vm-2")
    assert counted() == (4, 3, 4)
    world.run_until(START + 2 * MINUTE)
    assert counted() == (3, 3, 4)
    order("unit.enable", "vm-1")
    assert counted() == (4, 4, 5), "the operator says that it can be used, window or not"
    order("unit.disable", "vm-3")
    assert counted() == (3, 3, 4)
    world.run_until(END + MINUTE)
    assert counted() == (4, 4, 4)
    assert out(world) == ["vm-2", "vm-3"]


def test_the_rest_of_a_lease_that_a_window_ended(world: DeployedWorld) -> None:
    """What is left of its claim goes back to its broker, as of when its site has closed the lease."""
    lease = world.request("batch", 2, MINUTE, 3 * HOUR)
    world.run_until(2 * MINUTE)
    add(world, close=True)
    assert free_at(world, END)[1] == 0
    world.run_until(START + MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    assert free_at(world, END) == (6, 2, 4)
