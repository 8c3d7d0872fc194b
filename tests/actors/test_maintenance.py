"""Maintenance windows: nobody gets the units then, everybody is told, and they come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, SECOND

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
    assert len(world.lease("site", lease)["units"]) == 1 and world.guest("web").leases[lease].ending.at == START
    assert world.site().calendars.of("vm").free_at(START - 1) == 5
    assert world.site().calendars.of("vm").free_at(END) == 6


def test_leases_are_closed_for_it(world: DeployedWorld) -> None:
    """With ``close`` a lease that has one of the units ends when the window begins, and its guest is told before."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    other = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    add(world, units=world.lease("site", lease)["units"][:1], close=True)
    world.pass_time(SECOND)
    assert world.guest("web").leases[lease].ending.at == START
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


def test_fewer_units_are_given_within_a_window(world: DeployedWorld) -> None:
    """What brokers go on to use of the claim before is not spare: they grant no more than there is."""
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    add(
        world,
        units=[f"vm-{number}" for number in range(6) if f"vm-{number}" not in world.lease("site", lease)["units"]][:3],
    )
    assert not world.command("site", "delegation.give", broker="upper", type="vm", units=4).error
    world.pass_time(MINUTE)
    for at in (START + MINUTE, END - MINUTE):
        there, *given = free_at(world, at)
        assert there == 2 and sum(given) <= there
    wanted = world.request("web", 3, START + MINUTE, START + 2 * MINUTE)
    world.pass_time(MINUTE)
    assert world.lease("web", wanted)["state"] == "failed"


@pytest.mark.parametrize("early", [False, True], ids=["announced after", "announced before"])
def test_who_has_units_until_a_reclaim_hears_of_a_window(tmp_path: Path, early: bool) -> None:
    """Also one whose answer to the offer was lost, and that grants until the instant from which on it is taken back."""
    given = '[[actor.site.delegation]]\nbroker = "upper"\ntype = "vm"\nlength = "1d"\n'
    world = DeployedWorld(CHAIN.replace(given, ""), tmp_path)
    if early:
        add(world)
    world.lost.add(("upper", "site", "OfferAnswer"))
    assert not world.command("site", "delegation.give", broker="upper", type="vm", units=6).error
    world.pass_time(SECOND)
    assert not world.command("site", "delegation.reclaim", delegation="site/vm@upper", at=30 * MINUTE).error
    world.pass_time(SECOND)
    world.lost.clear()
    world.restart("site")
    world.pass_time(SECOND)
    assert [one["state"] for one in world.query("site", "delegations")] == ["reclaimed"]
    if not early:
        add(world)
    world.pass_time(MINUTE)
    leases = [world.request("batch", 1, start, start + 5 * MINUTE) for start in (START + MINUTE, END, 30 * MINUTE)]
    world.pass_time(MINUTE)
    states = [world.lease("batch", one)["state"] for one in leases]
    assert states == ["failed", "ticketed", "failed"]


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


def test_draining_says_whose_leases_are_hit_and_what_is_left(world: DeployedWorld) -> None:
    """Units go out as leases give them up; holders, operators and brokers know; taken back, they are there again."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    unit = world.lease("site", lease)["units"][0]
    spare = next(one["unit"] for one in world.query("site", "units") if one["state"] == "free")
    drained = world.command("site", "maintenance.add", units=[unit, spare], reason="old disks").result
    assert drained["leases"] == [{"lease": lease, "holder": "web", "units": [unit], "end": HOUR}]
    world.pass_time(MINUTE)
    told = world.lease("web", lease)
    assert (told["state"], told["reason"]) == ("active", f"old disks ({drained['window']})")
    assert out(world) == [spare] and free_at(world, world.now)[0] == 2
    world.restart("site")
    world.pass_time(MINUTE)
    world.command("web", "lease.close", lease=lease)
    world.pass_time(2 * MINUTE)
    assert sorted(out(world)) == sorted([unit, spare])
    (window,) = world.query("site", "maintenance")
    assert window["leases"] == [] and window["end"] == INSTANT_MAX
    assert "is in no window" in world.command("site", "maintenance.remove", units=["vm-9"]).error
    world.command("site", "maintenance.remove", units=[spare])
    assert out(world) == [unit] and [one["units"] for one in world.query("site", "maintenance")] == [[unit]]
    world.command("site", "maintenance.remove", units=[unit])
    world.pass_time(MINUTE)
    assert out(world) == [] and world.query("site", "maintenance") == []
    assert free_at(world, world.now) == (6, 2, 4)


def test_a_drain_that_is_taken_back_is_told_as_well(world: DeployedWorld) -> None:
    """What concerned a lease concerns it no more."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    unit = world.lease("site", lease)["units"][0]
    window = world.command("site", "maintenance.add", units=[unit]).result["window"]
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["reason"] == f"maintenance ({window})"
    world.command("site", "maintenance.remove", units=[unit])
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["reason"] == "" and world.lease("web", lease)["state"] == "active"


@pytest.mark.parametrize("at", [-1, 20 * MINUTE], ids=["at_once", "with_notice"])
def test_a_drain_ends_leases_by_an_instant(world: DeployedWorld, at: int) -> None:
    """With ``close`` the leases that have the units end: now, or at an instant that their holders hear of."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    unit = world.lease("site", lease)["units"][0]
    world.command("site", "maintenance.add", units=[unit], close=True, close_at=at)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == ("closed" if at < 0 else "active")
    if at >= 0:
        world.run_until(at + MINUTE)
    assert world.lease("web", lease)["state"] == "closed" and out(world) == [unit]


def test_a_lease_is_moved_off_a_unit(world: DeployedWorld) -> None:
    """It gets another one, and the drained one goes out. Without another unit, nothing is moved."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    unit = world.lease("site", lease)["units"][0]
    world.command("site", "maintenance.add", units=[unit])
    assert not world.command("site", "unit.move", unit=unit, reason="new disks").error
    world.pass_time(MINUTE)
    units = world.lease("site", lease)["units"]
    assert len(units) == 2 and unit not in units and out(world) == [unit]
    assert world.lease("web", lease)["state"] == "active"
    assert "only one that is active can be moved" in world.command("site", "unit.move", unit=unit).error
    rest = [one["unit"] for one in world.query("site", "units") if one["state"] == "free"]
    world.command("site", "maintenance.add", units=rest)
    refused = world.command("site", "unit.move", unit=units[0]).error
    assert "no other unit of type 'vm', and of its class, is free" in refused
    assert world.lease("site", lease)["units"] == units
    world.command("site", "maintenance.remove", units=rest)
    world.command("site", "unit.move", unit=units[0], reason="to see it")
    world.pass_time(MINUTE)
    (left,) = [one for one in world.query("site", "units") if one["unit"] == units[0]]
    assert (left["state"], left["reason"]) == ("free", ""), "nothing ails it"


def test_a_lease_is_evicted(world: DeployedWorld) -> None:
    """By its site with notice or at once, by its broker only if it is preemptible, or waits; its holder hears why."""
    firm = world.request("web", 1, 10 * SECOND, HOUR)
    loose = world.request("web", 1, 10 * SECOND, HOUR, properties={"preemptible": "true"})
    world.pass_time(MINUTE)
    refused = world.command("lower", "lease.evict", lease=firm, reason="needed").error
    assert "is firm" in refused and f"as soon as the ticket is redeemed: `leasekit site evict {firm}`" in refused
    assert not world.command("lower", "lease.evict", lease=loose, reason="needed").error
    at = 10 * MINUTE
    assert world.command("site", "lease.evict", lease=firm, at=at, reason="needed").result["at"] == at
    assert "ends at" in world.command("site", "lease.evict", lease=firm, at=at).error
    world.pass_time(MINUTE)
    assert world.lease("web", loose)["state"] == "closed" and "evicted: needed" in world.lease("web", loose)["reason"]
    noticed = world.lease("web", firm)
    assert (noticed["state"], noticed["reason"]) == ("active", "evicted: needed")
    world.run_until(at + MINUTE)
    assert world.lease("web", firm)["state"] == "closed"
    for actor in ("site", "lower"):
        assert "which is no lease here that goes on" in world.command(actor, "lease.evict", lease=firm).error


def test_a_broker_says_when_leases_have_ended(world: DeployedWorld) -> None:
    """One that was refused, or whose ticket came back, is over since then, and not when its term would have ended."""
    refused = world.request("web", 1, HOUR, 2 * HOUR, properties={"filter": "rack == z"})
    returned = world.request("web", 1, HOUR, 2 * HOUR)
    world.pass_time(MINUTE)
    assert world.lease("lower", returned)["end"] == 2 * HOUR
    world.command("web", "lease.close", lease=returned)
    world.pass_time(MINUTE)
    for lease, state in ((refused, "failed"), (returned, "closed")):
        now = world.lease("lower", lease)
        assert (now["state"], now["end"] <= 2 * MINUTE) == (state, True)


def test_why_a_lease_ends_early_is_told_after_it_was_modified(world: DeployedWorld) -> None:
    """Its holder and the site's operator see that as long as it goes on, and when it is over."""
    lease = world.request("web", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    world.command("site", "lease.evict", lease=lease, at=10 * MINUTE, reason="needed")
    world.pass_time(MINUTE)
    assert not world.command("web", "lease.modify", lease=lease, units=2).error
    world.pass_time(MINUTE)
    for actor in ("web", "site"):
        now = world.lease(actor, lease)
        assert (now["state"], len(now["units"]), now["end"], now["reason"]) == (
            "active",
            2,
            10 * MINUTE,
            "evicted: needed",
        )
    world.run_until(11 * MINUTE)
    assert (world.lease("web", lease)["state"], world.lease("web", lease)["reason"]) == ("closed", "evicted: needed")


def test_a_unit_that_failed_by_its_operators_word_stays_out(world: DeployedWorld) -> None:
    """Until it is enabled; one that a probe finds down is torn down and given out again."""
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    first, second = world.lease("site", lease)["units"]
    setup = next(one["setup"] for one in world.query("site", "watched") if one["unit"] == second)
    world.command("site", "unit.fail", unit=first, reason="it smokes")
    world.command("site", "unit.fail", unit=second, lease=lease, setup=setup)
    world.pass_time(MINUTE)
    assert out(world) == [first]
    world.command("site", "unit.enable", unit=first)
    assert out(world) == []


def test_who_is_gone_is_not_told_for_ever_that_a_unit_is_back(world: DeployedWorld) -> None:
    """A broker that does not answer hears of a drained unit, and that it is back, as long as it has its delegation."""
    world.lost |= {("site", "upper", "Withhold")}
    world.command("site", "maintenance.add", units=["vm-0"])
    world.pass_time(MINUTE)
    world.command("site", "maintenance.remove", units=["vm-0"])
    world.pass_time(HOUR)
    (notice,) = world.site().notices
    assert notice.until == world.query("site", "delegations")[0]["term"][1]
    world.pass_time(24 * HOUR)
    assert not list(world.site().notices)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_whoever_has_a_ticket_hears_that_units_will_be_missing(world: DeployedWorld, restarts: bool) -> None:
    """Its lease says why, as long as the window leaves too few; who loses nothing, or is over before, hears nothing."""

    def why(lease: str) -> str:
        return str(world.lease("web", lease)["reason"])

    hit = world.request("web", 4, START + MINUTE, END + MINUTE)
    before = world.request("web", 4, START - 5 * MINUTE, START)
    world.pass_time(MINUTE)
    add(world, units=["vm-0", "vm-1"])
    world.pass_time(MINUTE)
    assert why(hit) == "", "what nobody has goes first"
    window = add(world, units=["vm-2"])
    for name in ("upper", "lower", "web") if restarts else ():
        world.restart(name)
    world.pass_time(MINUTE)
    assert why(hit).startswith(f"new disks ({window}, until ") and why(before) == ""
    world.command("site", "maintenance.remove", window=window)
    world.pass_time(MINUTE)
    assert why(hit) == "" and world.lease("web", hit)["state"] == "ticketed"
    world.run_until(START + 2 * MINUTE)
    assert world.lease("web", hit)["state"] == "active"


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_units_that_are_out_of_service(world: DeployedWorld, restarts: bool) -> None:
    """Brokers grant nothing of units that an operator, or their failures, took out of service, until these are back;
    a window over the same units takes none of them twice.
    """

    def restart() -> None:
        for name in ("site", "upper", "lower") if restarts else ():
            world.restart(name)
        world.pass_time(MINUTE)

    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    broken = world.lease("site", lease)["units"][0]
    free = next(f"vm-{number}" for number in range(6) if f"vm-{number}" not in world.lease("site", lease)["units"])
    assert not world.command("site", "unit.disable", unit=free, reason="a noise").error
    restart()
    assert free_at(world, 2 * HOUR) == (5, 1, 4), "what upper has given to nobody goes first"
    assert not world.command("site", "unit.fail", unit=broken, reason="smoke").error
    restart()
    assert free_at(world, 2 * HOUR) == (4, 0, 4)
    window = add(world, units=[free, "vm-5"])
    restart()
    assert free_at(world, START) == (1, 0, 1), "a lease has two"
    world.command("site", "maintenance.remove", window=window)
    restart()
    assert free_at(world, 2 * HOUR) == (4, 0, 4)
    assert [world.command("site", "unit.enable", unit=unit).error for unit in (free, broken)] == ["", ""]
    restart()
    assert free_at(world, 2 * HOUR) == (6, 2, 4)


def test_a_broken_unit_is_not_granted_for_ever(tmp_path: Path) -> None:
    """A mapper gives first of the class of which least is left; where that is broken it gives of another."""
    odd = '[[actor.site.inventory]]\ntype = "vm"\nunits = 1\nprefix = "odd-"\nunit_properties = { rack = "b" }\n'
    world = DeployedWorld(f"{CHAIN}\n{odd}", tmp_path)
    world.pass_time(MINUTE)
    assert not world.command("site", "unit.disable", unit="odd-0", reason="smoke").error
    world.pass_time(SECOND)
    leases = [world.request("web", 1, world.now + MINUTE, world.now + HOUR) for _ in range(3)]
    world.pass_time(2 * MINUTE)
    assert [world.lease("web", lease)["state"] for lease in leases] == ["active"] * 3
