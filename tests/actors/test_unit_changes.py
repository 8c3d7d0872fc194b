"""Units that an operator adds, changes and removes while the site runs: what is kept, shown, granted and refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from actors.test_hosts import HOSTS, MAPPERS, SMALL, ask, check_room, hosts, world_of
from deployed_world import DeployedWorld

from leasekit.config.build import build
from leasekit.config.identities import emulation_keys
from leasekit.core.leases import authority as au
from leasekit.core.leases import service_manager as sm
from leasekit.core.properties import CLASSES_MAX
from leasekit.core.time import HOUR, MINUTE, SECOND

BIG = {"cpu": "4", "memory": "8GiB"}


def told(world: DeployedWorld, command: str, **arguments: Any) -> dict[str, Any]:
    reply = world.command("site", command, **arguments)
    assert not reply.error, reply.error
    world.pass_time(SECOND)
    found: dict[str, Any] = reply.result
    return found


def shown(world: DeployedWorld) -> dict[str, tuple[str, str]]:
    """What each host has, and how it differs from the file."""
    return {row["unit"]: (row["capacity"], row["differs"]) for row in world.query("site", "inventory")}


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_host_that_is_added_is_granted(tmp_path: Path, mapper: str) -> None:
    """Its broker has it at once, where the file gives it all that there is; so it is after a restart, and a reload."""
    world = world_of(tmp_path, mapper)
    world.pass_time(SECOND)
    now = world.now
    assert ask(world, 4, now, now + HOUR)["state"] == sm.FAILED
    told(world, "unit.add", unit="d", type="node", capacity=BIG, attributes={"rack": "d"})
    assert shown(world)["d"] == ("cpu=4,memory=8GiB", "added")
    lease = ask(world, 4, world.now, now + HOUR)["id"]
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and set(hosts(world, lease)) == {"a", "b", "c", "d"}
    world.restart("site")
    world.pass_time(MINUTE)
    assert shown(world)["d"] == ("cpu=4,memory=8GiB", "added") and world.site().units["d"].lease == lease
    world.run_until(now + HOUR + MINUTE)
    filtered = ask(world, 1, world.now, world.now + HOUR, properties={"filter": "rack == d"})["id"]
    world.pass_time(MINUTE)
    assert set(hosts(world, filtered)) == {"d"}
    check_room(world)


def test_a_host_that_is_removed_goes_when_its_machines_have_left(tmp_path: Path) -> None:
    """Its machines stay, and are listed; nothing new comes to it; what is planned there is planned elsewhere."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now, now + HOUR, properties=SMALL)["id"]
    later = ask(world, 1, now + 2 * HOUR, now + 3 * HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    (host,) = hosts(world, lease)
    assert world.site().leases[later].places == (host,) if later in world.site().leases else True
    gone = told(world, "unit.remove", unit=host)
    assert gone["differs"] == "removed" and gone["leases"] == [lease] and len(gone["machines"]) == 2
    again = ask(world, 6, world.now, world.now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    assert host not in hosts(world, again) and hosts(world, lease) == {host: 2}
    world.restart("site")
    world.run_until(now + HOUR + MINUTE)
    assert world.site().units[host].state == au.OUT
    assert ask(world, 3, world.now, world.now + HOUR)["state"] == sm.FAILED
    told(world, "unit.reset", unit=host)
    assert shown(world)[host] == ("cpu=4,memory=8GiB", "") and world.site().units[host].state == au.FREE
    world.run_until(now + 2 * HOUR + MINUTE)
    assert ask(world, 2, world.now, world.now + HOUR // 2)["state"] != sm.FAILED
    check_room(world)


def test_what_is_planned_on_a_host_that_goes(tmp_path: Path) -> None:
    """A lease that has not begun has its place on another host; where none has room its guest hears of it."""
    world = world_of(tmp_path)
    now = world.now
    first = ask(world, 1, now, now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    (host,) = hosts(world, first)
    assert not world.command("web", "lease.extend", lease=first, end=now + 3 * HOUR, units=2).error
    world.run_until(now + HOUR - 30 * SECOND)
    assert [one.places for one in world.site().leases[first].accepted] == [(host, host)]
    for name in "abc":
        told(world, "unit.remove", unit=name)
    world.run_until(now + HOUR + MINUTE)
    lease = world.lease("web", first)
    assert lease["state"] == sm.ACTIVE and hosts(world, first) == {host: 1}, "no host takes the second machine"
    told(world, "unit.reset", unit="b" if host != "b" else "a")


def test_a_host_changes_its_size(tmp_path: Path) -> None:
    """More is granted at once. Less than what is on it, or planned, is refused; leases from before go on, are extended
    and begin.
    """
    world = world_of(tmp_path)
    now = world.now
    filtered = {**SMALL, "filter": "rack == c"}
    lease = ask(world, 3, now, now + HOUR, properties=filtered)["id"]
    waits = ask(world, 1, now + HOUR // 2, now + 2 * HOUR, properties=filtered)["id"]
    world.pass_time(MINUTE)
    error = world.command("site", "unit.set", unit="c", capacity={"cpu": "8", "memory": "4GiB"}).error
    assert error == "host c: found cpu=8,memory=4GiB, its machines take up to memory=6GiB, now or later"
    told(world, "unit.set", unit="c", capacity={"cpu": "16", "memory": "16GiB"})
    assert shown(world)["c"] == ("cpu=16,memory=16GiB", "changed")
    more = ask(world, 4, world.now, now + HOUR, properties=filtered)["id"]
    world.pass_time(MINUTE)
    assert hosts(world, more) == {"c": 4}
    assert not world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR).error
    world.restart("site")
    world.run_until(now + HOUR + MINUTE)
    assert world.lease("web", lease)["state"] == world.lease("web", waits)["state"] == sm.ACTIVE
    assert hosts(world, lease) == {"c": 3} and hosts(world, waits) == {"c": 1}
    check_room(world)
    told(world, "unit.reset", unit="c")
    assert shown(world)["c"] == ("cpu=8,memory=8GiB", "")
    world.run_until(now + 3 * HOUR)
    assert ask(world, 3, world.now, world.now + HOUR)["state"] != sm.FAILED
    check_room(world)


def test_all_hosts_of_a_class_change(tmp_path: Path) -> None:
    """Brokers have what there is now, though nothing is left of what they had; leases are extended across it."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 4, now, now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    for name in "ab":
        told(world, "unit.set", unit=name, capacity={"cpu": "8", "memory": "16GiB"})
    more = ask(world, 4, world.now, now + HOUR, properties={"needs.memory": "4096"})["id"]
    world.pass_time(MINUTE)
    assert world.lease("web", more)["state"] == sm.ACTIVE
    assert not world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR).error
    world.run_until(now + HOUR + MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and hosts(world, lease).total() == 4
    check_room(world)


@pytest.mark.parametrize(
    ("command", "arguments", "word"),
    [
        ("unit.add", {"unit": "a", "type": "node", "capacity": BIG}, "unit: found 'a', which is a unit here already"),
        ("unit.add", {"unit": "d", "type": "vm", "capacity": BIG}, "type: found 'vm', there are node"),
        ("unit.add", {"unit": "../d", "type": "node", "capacity": BIG}, "unit: found '../d', expected 1 to 63 letters"),
        ("unit.add", {"unit": "d", "type": "node"}, "capacity: found nothing, expected what the host has in all"),
        ("unit.add", {"unit": "d", "type": "node", "capacity": {"cpu": "-1"}}, "capacity: cpu: found '-1'"),
        ("unit.add", {"unit": "d", "type": "node", "capacity": {"cpu": "nan"}}, "capacity: cpu: found 'nan'"),
        ("unit.set", {"unit": "d", "capacity": BIG}, "unit: found 'd', which is not in the inventory"),
        ("unit.set", {"unit": "a", "least_yield": 0}, "least_yield: found 0"),
        ("unit.set", {"unit": "a", "attributes": {"capacity.cpu": "1"}}, "attributes: found 'capacity.cpu'"),
        ("unit.remove", {"unit": "d"}, "unit: found 'd', which is not in the inventory"),
        ("unit.reset", {"unit": "a"}, "unit: found 'a', those that differ from the settings are (none)"),
    ],
)  # fmt: skip
def test_what_can_not_be_said_of_a_host(tmp_path: Path, command: str, arguments: dict[str, Any], word: str) -> None:
    """One clear message, and nothing is changed."""
    world = world_of(tmp_path)
    before = world.query("site", "inventory")
    assert word in world.command("site", command, **arguments).error
    assert world.query("site", "inventory") == before


def test_a_whole_host_that_is_leased_keeps_its_size(tmp_path: Path) -> None:
    """Who has all of a host would not have what comes to it."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 1, now, now + HOUR)["id"]
    world.pass_time(MINUTE)
    (host,) = hosts(world, lease)
    error = world.command("site", "unit.set", unit=host, capacity={"cpu": "64", "memory": "8GiB"}).error
    assert error == f"host {host}: it is leased whole, now or later: its capacity stays until that is over"
    told(world, "unit.set", unit=host, attributes={"rack": "x"})
    world.run_until(now + HOUR + MINUTE)
    told(world, "unit.set", unit=host, capacity={"cpu": "64", "memory": "8GiB"})
    assert ask(world, 1, world.now, world.now + HOUR, properties={"needs.cpu": "32000"})["state"] != sm.FAILED


@pytest.mark.parametrize("size", [{"cpu": 8, "memory": "16GiB"}, {"cpu": 4, "memory": "6GiB"}])
@pytest.mark.parametrize("mapper", ["first_fit", "yield"])
def test_a_file_says_otherwise_of_hosts(tmp_path: Path, mapper: str, size: dict[str, Any]) -> None:
    """After a reload with other capacities leases go on, are extended and grow; a whole host is, too; and what was
    ticketed before begins.
    """
    world = world_of(tmp_path)
    world.deployment = world.deployment.with_overrides({"actor.site.mapper": {"name": mapper}})
    world.reload(build(world.deployment, "site", keys=emulation_keys(world.deployment), virtual=True).actor)
    now = world.now
    lease = ask(world, 3, now, now + HOUR, properties=SMALL)["id"]
    whole = ask(world, 1, now, now + HOUR, guest="batch", properties={"filter": "rack == c"})["id"]
    later = ask(world, 2, now + HOUR // 2, now + 3 * HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    before = hosts(world, lease)
    said = world.deployment = world.deployment.with_overrides({"actor.site.inventory.0.capacity": size})
    world.reload(build(said, "site", keys=emulation_keys(said), virtual=True).actor)
    world.pass_time(MINUTE)
    for id_, guest in ((lease, "web"), (whole, "batch")):
        assert not world.command(guest, "lease.extend", lease=id_, end=now + 2 * HOUR).error
    world.run_until(now + HOUR + MINUTE)
    assert [world.lease(guest, id_)["state"] for id_, guest in ((lease, "web"), (whole, "batch"), (later, "web"))] == [
        sm.ACTIVE
    ] * 3
    assert hosts(world, lease) == before and hosts(world, whole) == {"c": 1}
    world.restart("site")
    assert not world.command("web", "lease.modify", lease=lease, end=now + 2 * HOUR, units=4).error
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and hosts(world, lease).total() in (3, 4)
    check_room(world)


@pytest.mark.parametrize("able", ["true", ""])
def test_a_machine_is_moved_by_command(tmp_path: Path, able: str) -> None:
    """It goes to the host that is named, or that has room: as it runs, or set up anew where a driver can't do that."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now, now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    types = world.site().units.inventory.types
    types["node"] = {**types["node"], "driver.migrate": able}
    (host,) = hosts(world, lease)
    first, second = world.site().leases[lease].units
    other = "b" if host == "a" else "a"
    assert told(world, "unit.move", unit=first, host=other)["host"] == other
    told(world, "unit.move", unit=second)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and hosts(world, lease) == {other: 2}
    assert (first in world.site().leases[lease].units) == bool(able)
    units = list(world.site().leases[lease].units)
    error = world.command("site", "unit.move", unit=units[0], host="c").error
    assert error == f"unit {units[0]}: host c has no room for it, or is not of its class up to the end of lease {lease}"
    check_room(world)


def test_a_host_that_is_drained_with_moves(tmp_path: Path) -> None:
    """Who drains a host sees whose machines are on it, and what is planned there is planned elsewhere."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now, now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    (host,) = hosts(world, lease)
    window = told(world, "maintenance.add", units=[host], reason="disks")
    ((hit,), units) = (window["leases"], world.site().leases[lease].units)
    assert hit["lease"] == lease and hit["units"] == units
    for unit in list(units):
        told(world, "unit.move", unit=unit)
    world.pass_time(MINUTE)
    assert host not in hosts(world, lease) and world.site().units[host].state == au.OUT
    check_room(world)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
def test_a_unit_that_comes_back_stays_drained(tmp_path: Path, restarts: bool) -> None:
    """One that was removed while it was drained, or in a window, is out of service until that has ended."""
    world = world_of(tmp_path)
    end = world.now + HOUR
    told(world, "maintenance.add", units=["a"], reason="disks")
    told(world, "maintenance.add", units=["b"], start=world.now, end=end)
    for host in ("a", "b"):
        told(world, "unit.remove", unit=host)
        told(world, "unit.reset", unit=host)
    if restarts:
        world.restart("site")
    assert [not world.site().units[host].is_out for host in "abc"] == [False, False, True]
    assert ask(world, 2, world.now, end)["state"] == sm.FAILED
    world.run_until(end)
    assert [not world.site().units[host].is_out for host in "abc"] == [False, True, True]
    told(world, "maintenance.remove", units=["a"])
    lease = ask(world, 3, world.now, end + HOUR)["id"]
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE
    check_room(world)


def full_hosts(folder: Path, mapper: str) -> tuple[DeployedWorld, list[str], list[str]]:
    """Hosts a and b are full of ten guests each, and d has room for four more; the leases of the first ten, and all."""
    text = HOSTS.replace("MAPPER", "fcfs").replace('{ cpu = 4, memory = "8GiB" }', '{ cpu = 10, memory = "20GiB" }')
    text = text.replace('"authority"', f'"authority"\nmapper = {{ name = "{mapper}" }}').replace('"b"]', '"b", "d"]')
    world = DeployedWorld(text + 'settings.redeem_lead = "1d"', folder)  # of the guest batch
    end = world.now + 4 * HOUR
    leases = [ask(world, 1, world.now, end, properties=SMALL)["id"] for _ in range(26)]
    world.pass_time(MINUTE)
    assert Counter(host for lease in leases for host in hosts(world, lease)) == {"a": 10, "b": 10, "d": 6}
    return world, [lease for lease in leases if set(hosts(world, lease)) == {"a"}], leases


@pytest.mark.parametrize(("found", "restarts"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("mapper", ["first_fit", "yield", "preemption"])
def test_a_host_with_ten_guests_dies(tmp_path: Path, mapper: str, found: bool, restarts: bool) -> None:
    """Those are placed anew for which there is room; each of the others is told why. Nobody else moves, nothing comes
    to the host any more, and its site goes on: whether an operator says so, or probes have ``found`` each guest down.
    """
    world, there, leases = full_hosts(tmp_path, mapper)
    site, end = world.site(), world.now + 4 * HOUR
    later = ask(world, 1, end, end + HOUR, properties=SMALL, guest="batch")["id"]
    assert site.calendars.places.of(site.leases[later].claim) == ("a",)
    units = {lease: tuple(site.leases[lease].units) for lease in leases}
    world.failing = "teardown"  # who would carry that out is dead
    for name in [units[lease][0] for lease in there] if found else ["a"]:
        watched = {"lease": site.units[name].lease, "setup": site.units[name].setup} if found else {}
        assert not world.command("site", "unit.fail", unit=name, reason="fire", **watched).error
    if restarts:
        world.restart("site")
    world.pass_time(MINUTE)
    anew = [lease for lease in there if hosts(world, lease)]
    assert [hosts(world, lease) for lease in anew] == [{"d": 1}] * 4
    for lease in leases:
        told_ = world.lease("web", lease)
        assert told_["state"] == sm.ACTIVE
        assert [unit["unit"] for unit in told_["units"]] == list(world.site().leases[lease].units)
        if lease not in there:
            assert tuple(world.site().leases[lease].units) == units[lease] and not told_["reason"]
        elif lease not in anew:
            assert told_["reason"] == f"1 of 1 units are missing: unit {units[lease][0]}: fire"
    check_room(world)
    world.failing = ""
    world.run_until(end + MINUTE)
    assert world.lease("batch", later)["state"] == sm.ACTIVE and hosts(world, later) == {"b": 1}
    check_room(world)


PLAIN = (
    HOSTS.replace("MAPPER", "fcfs")
    .replace('capacity = { cpu = 4, memory = "8GiB" }', "")
    .replace('capacity = { cpu = 8, memory = "8GiB", core = 2 }', "")
)
"""The same units without capacity: two of one class, one of another."""


def listed(world: DeployedWorld) -> dict[str, tuple[int, dict[str, str], str]]:
    """The number of each unit, its attributes, and how it differs from the file."""
    rows = world.query("site", "inventory")
    return {row["unit"]: (row["number"], row["attributes"], row["differs"]) for row in rows}


def units_of(world: DeployedWorld, lease: str) -> set[str]:
    return set(world.site().leases[lease].units)


def test_units_without_capacity_come_change_and_go(tmp_path: Path) -> None:
    """A broker has them at once, filters choose by their attributes, and leases keep them to their end; all of it is so
    after a restart. Numbers are never given again.
    """
    world = DeployedWorld(PLAIN, tmp_path)
    now = world.now
    assert ask(world, 4, now, now + HOUR)["state"] == sm.FAILED
    told(world, "unit.add", unit="d", type="node", attributes={"rack": "d"})
    assert ask(world, 4, world.now, now + HOUR)["state"] != sm.FAILED
    gone = told(world, "unit.remove", unit="d")
    assert gone["differs"] == "removed" and gone["leases"] == [gone["lease"]]
    world.restart("site")
    world.run_until(now + HOUR + MINUTE)
    assert world.site().units["d"].state == au.OUT and "d" not in listed(world)
    assert ask(world, 1, world.now, world.now + MINUTE, properties={"filter": "rack == d"})["state"] == sm.FAILED
    told(world, "unit.set", unit="a", attributes={"rack": "x", "disk": "ssd"})
    world.restart("site")
    assert listed(world) == {
        "a": (1, {"rack": "x", "disk": "ssd"}, "changed"),
        "b": (2, {}, ""),
        "c": (3, {"rack": "c"}, ""),
    }
    told(world, "unit.reset", unit="a")
    told(world, "unit.add", unit="e", type="node")
    assert listed(world)["a"] == (1, {}, "") and listed(world)["e"][0] == 5
    told(world, "unit.add", unit="d", type="node", attributes={"rack": "c"})
    assert listed(world)["d"] == (4, {"rack": "c"}, "added")
    every = ask(world, 5, world.now, world.now + HOUR)["id"]
    world.pass_time(MINUTE)
    assert units_of(world, every) == {"a", "b", "c", "d", "e"} and not world.site().errors


def test_a_unit_that_the_file_names_is_removed_and_comes_back(tmp_path: Path) -> None:
    """With fewer units the broker grants fewer; with the file's again as many as before."""
    world = DeployedWorld(PLAIN, tmp_path)
    told(world, "unit.remove", unit="c")
    assert ask(world, 3, world.now, world.now + MINUTE)["state"] == sm.FAILED
    world.restart("site")
    assert world.command("site", "unit.enable", unit="c").error
    told(world, "unit.reset", unit="c")
    assert ask(world, 3, world.now, world.now + MINUTE)["state"] != sm.FAILED
    error = world.command("site", "unit.add", unit="f", type="node", capacity=BIG).error
    assert error == "capacity: found some, units of type 'node' have none in the settings"


@pytest.mark.parametrize("text", [HOSTS.replace("MAPPER", "fcfs"), PLAIN])
def test_units_may_differ_in_many_ways(tmp_path: Path, text: str) -> None:
    """Units are told apart in claims, and so no more kinds of them can come than these hold."""
    world, capacity = DeployedWorld(text, tmp_path), {"capacity": BIG} if text is not PLAIN else {}
    replies = [
        world.command("site", "unit.add", unit=f"u{n}", type="node", attributes={"shelf": str(n)}, **capacity).error
        for n in range(CLASSES_MAX)
    ]
    world.pass_time(SECOND)
    refused = [error for error in replies if error]
    assert len(refused) == 2
    assert all("units of type 'node' may differ in 64 ways at most" in error for error in refused)
    more = CLASSES_MAX + 1
    assert len(listed(world)) == more
    assert ask(world, more, world.now, world.now + MINUTE)["state"] != sm.FAILED and not world.site().errors


def test_a_unit_that_no_driver_serves_is_not_added(tmp_path: Path) -> None:
    """A driver that names its units says so before anything is set up there."""
    bmc = '{ kind = "redfish", url = "https://192.0.2.1", user = "u", password_file = "p" }'
    nodes = "".join(f"nodes.{name}.power = {bmc}\n" for name in "abc")
    (tmp_path / "p").write_text("secret")
    (tmp_path / "p").chmod(0o600)
    world = DeployedWorld(PLAIN + f'[actor.site.driver.bmc]\nkind = "power"\n{nodes}', tmp_path)
    error = world.command("site", "unit.add", unit="d", type="node").error
    assert (
        error == "unit: the driver of type 'node' has no node for 'd' in its nodes: name it there, and reload the site"
    )


@pytest.mark.parametrize("mapper", ["first_fit", "yield"])
def test_a_whole_host_stands_in_only_if_it_has_what_is_counted(tmp_path: Path, mapper: str) -> None:
    """A host that has less by now is not given as one of its old class, though claims still count it as that."""
    world = world_of(tmp_path)
    world.deployment = world.deployment.with_overrides({"actor.site.mapper": {"name": mapper}})
    world.reload(build(world.deployment, "site", keys=emulation_keys(world.deployment), virtual=True).actor)
    later = ask(world, 1, world.now + MINUTE, world.now + HOUR)["id"]
    world.pass_time(MINUTE - 3 * SECOND)
    (planned,) = world.site().leases[later].places
    (other,) = {"a", "b"} - {planned}
    told(world, "unit.set", unit=other, capacity={"cpu": "2", "memory": "16GiB"})
    told(world, "unit.disable", unit=planned)
    world.pass_time(2 * MINUTE)
    assert world.site().errors == []
    assert world.lease("web", later)["state"] == sm.FAILED
