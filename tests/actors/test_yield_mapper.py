"""The mapper of virtual clusters on real actors: who gets how much CPU, who moves, and what is never done."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import DeployedWorld

from leasekit.core.leases import authority as au
from leasekit.core.leases import service_manager as sm
from leasekit.core.reasons import Code
from leasekit.core.steps import Action
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.emulation.world import Outcome

FARM = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
mapper = { name = "yield", SETTINGS }
[[actor.site.inventory]]
type = "node"
units = 3
capacity = { cpu = 4, memory = "8GiB" }
least_yield = 0.25
[[actor.site.delegation]]
broker = "broker"
type = "node"
length = "1d"
[actor.broker]
role = "broker"
priorities = { high = 2 }
[actor.web]
role = "guest"
settings.default_broker = "broker"
[actor.high]
role = "guest"
settings.default_broker = "broker"
"""
NEEDS = {"needs.cpu": "2000", "needs.memory": "1024"}


def world_of(folder: Path, settings: str = "") -> DeployedWorld:
    return DeployedWorld(FARM.replace(", SETTINGS", f", {settings}" if settings else ""), folder)


def ask(world: DeployedWorld, units: int, hours: int = 1, **more: dict[str, str]) -> str:
    """A lease of machines that is active a minute later."""
    lease = world.request("web", units, world.now, world.now + hours * HOUR, type="node", properties=NEEDS, **more)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE, world.lease("web", lease)["reason"]
    return lease


def yields(world: DeployedWorld) -> dict[str, list[int]]:
    """The CPU of each machine, in millicores, by host."""
    site = world.site()
    found: dict[str, list[int]] = {}
    for unit in sorted(site.units.machines, key=lambda unit: unit.id):
        if unit.state == au.UP:
            assert unit.leaves == ""
            found.setdefault(unit.host, []).append(unit.cap if unit.cap >= 0 else dict(unit.needs)["cpu"])
    assert all(sum(caps) <= 4000 for caps in found.values()), found
    assert site.errors == []
    return found


def test_cpu_is_shared_as_machines_come_and_go(tmp_path: Path) -> None:
    """Newcomers spread over the hosts; caps fall when there are many, and rise when some have left."""
    world = world_of(tmp_path)
    first = ask(world, 6)
    assert sorted(yields(world).values()) == [[2000, 2000]] * 3, "six of them get all that they need"
    second = ask(world, 6)
    world.pass_time(MINUTE)
    assert sorted(yields(world).values()) == [[1000] * 4] * 3, "twelve of them get half of it"
    assert not world.command("web", "lease.close", lease=first).error
    world.pass_time(2 * MINUTE)
    assert sum(map(len, yields(world).values())) == 6
    assert min(cap for caps in yields(world).values() for cap in caps) == 2000
    assert world.lease("web", second)["state"] == sm.ACTIVE


@pytest.mark.parametrize("bound", [0, 2048, 16384])
def test_who_runs_moves_within_the_bound(tmp_path: Path, bound: int) -> None:
    """Machines move to a host that has become free, as much memory at once as the bound says; with 0 none does."""
    world = world_of(tmp_path, f"migration_bound = {bound}")
    site = world.site()
    whole = world.request("web", 2, world.now, world.now + HOUR, type="node")
    world.pass_time(MINUTE)
    lease = ask(world, 4)
    where = {unit.id: unit.host for unit in site.units.machines}
    assert yields(world) == {"node-2": [1000] * 4}
    assert not world.command("web", "lease.close", lease=whole).error
    world.pass_time(5 * MINUTE)
    moved = sum(unit.host != where[unit.id] for unit in site.units.machines)
    found = [cap for caps in yields(world).values() for cap in caps]
    assert world.lease("web", lease)["state"] == sm.ACTIVE
    told = {unit["unit"]: unit["properties"]["unit.host"] for unit in world.lease("web", lease)["units"]}
    assert told == {unit.id: unit.host for unit in site.units.machines}
    assert (moved, min(found)) == {0: (0, 1000), 2048: (2, 2000), 16384: (2, 2000)}[bound]


def test_a_move_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A machine whose move fails half way is where it was, with its place there; its lease goes on."""
    world = world_of(tmp_path)
    site = world.site()
    whole = world.request("web", 2, world.now, world.now + HOUR, type="node")
    world.pass_time(MINUTE)
    lease = ask(world, 4)
    world.failing = "modify"
    assert not world.command("web", "lease.close", lease=whole).error
    world.pass_time(MINUTE)
    assert {unit.host for unit in site.units.machines} == {"node-2"}
    assert site.leases[lease].places == ("node-2",) * 4 and not any(unit.leaves for unit in site.units.machines)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and site.errors == []


class SlowMoves(DeployedWorld):
    """A world in which no move ends within a day."""

    def _outcome(self, action: Action) -> Outcome:
        return super()._outcome(action)._replace(latency=DAY if action.op == "modify" else SECOND)


def moving_off(folder: Path) -> tuple[SlowMoves, str]:
    """A world in which some of the four machines of a lease move to hosts that have become free."""
    world = SlowMoves(FARM.replace(", SETTINGS", ""), folder)
    whole = world.request("web", 2, world.now, world.now + HOUR, type="node")
    world.pass_time(MINUTE)
    lease = ask(world, 4)
    assert not world.command("web", "lease.close", lease=whole).error
    world.pass_time(MINUTE)
    return world, lease


def test_a_move_that_never_ends_holds_nobody_up(tmp_path: Path) -> None:
    """Both hosts keep room for a machine that is on its way, over a restart as well; its lease can be closed, and then
    all of it is free.
    """
    world, lease = moving_off(tmp_path)
    moving = {unit.id: unit.leaves for unit in world.site().units.machines if unit.leaves}
    assert set(moving.values()) == {"node-2"}
    world.restart("site")
    world.pass_time(MINUTE)
    assert {unit.id: unit.leaves for unit in world.site().units.machines if unit.leaves} == moving
    refused = world.request("web", 3, world.now, world.now + HOUR, type="node")
    world.pass_time(MINUTE)
    assert world.lease("web", refused)["state"] == sm.FAILED
    assert not world.command("web", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.CLOSED and not list(world.site().units.machines)
    last = world.request("web", 3, world.now, world.now + HOUR, type="node")
    world.pass_time(MINUTE)
    assert world.lease("web", last)["state"] == sm.ACTIVE and world.site().errors == []


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_host_dies_while_machines_move(tmp_path: Path, which: str) -> None:
    """Those that were to leave it are lost with it, and come back elsewhere; those that were to come are where they
    were, when their moves have failed.
    """
    world, lease = moving_off(tmp_path)
    site = world.site()
    moving = {unit.id: unit.host for unit in site.units.machines if unit.leaves}
    dead = "node-2" if which == "source" else next(iter(moving.values()))
    assert len(moving) == 2 and not world.command("site", "unit.fail", unit=dead).error
    world.pass_time(MINUTE)
    there = {unit.id: unit.host for unit in site.units.machines if unit.is_usable}
    assert len(there) == 4 and world.lease("web", lease)["state"] == sm.ACTIVE and site.errors == []
    if which == "source":
        assert dead not in there.values() and not there.keys() & moving.keys()
    else:
        assert there.items() >= moving.items()


@pytest.mark.parametrize("algorithm", ["best", "exact", "sg", "mcb1"])
def test_any_algorithm_will_do(tmp_path: Path, algorithm: str) -> None:
    """Each places machines; none goes below what is guaranteed, or over what hosts have."""
    world = world_of(tmp_path, f'algorithm = "{algorithm}", second_phase = "max_min"')
    ask(world, 9)
    ask(world, 9)
    world.pass_time(MINUTE)
    found = yields(world)
    assert sum(map(len, found.values())) == 18
    assert min(cap for caps in found.values() for cap in caps) >= 500


@pytest.mark.parametrize(("wish", "units"), [("spread", 5), ("affinity", 9)])
def test_groups_for_which_there_is_no_room_cost_nobody_a_share(tmp_path: Path, wish: str, units: int) -> None:
    """Five machines on hosts of their own, of which there are three, or nine on one that takes eight: they are placed
    without it, and so are those that come later; all are still planned.
    """
    world = world_of(tmp_path)
    ask(world, units, configuration={wish: "together or not"})
    assert min(cap for caps in yields(world).values() for cap in caps) >= 1333
    ask(world, 12 - units)
    world.pass_time(MINUTE)
    assert sorted(yields(world).values()) == [[1000] * 4] * 3


@pytest.mark.parametrize(("parallel", "most"), [("true", 1333), ("false", 2000)])
def test_machines_of_a_parallel_job_get_the_same(tmp_path: Path, parallel: str, most: int) -> None:
    """Of seven machines on three hosts three share one: the others get no more than these, where they would wait."""
    world = world_of(tmp_path)
    ask(world, 7, configuration={"parallel": parallel})
    world.pass_time(MINUTE)
    caps = [cap for found in yields(world).values() for cap in found]
    assert (len(caps), min(caps), max(caps)) == (7, 1333, most)


def test_groups_are_kept_while_there_is_room(tmp_path: Path) -> None:
    """Machines of a group share a host, or have hosts of their own, though others come and need CPU."""
    world = world_of(tmp_path)
    near, apart_ = ask(world, 3, configuration={"affinity": "a"}), ask(world, 3, configuration={"spread": "a"})
    ask(world, 9)
    world.pass_time(MINUTE)
    assert (len(set(hosts_of(world, near))), len(set(hosts_of(world, apart_)))) == (1, 3)


@pytest.mark.parametrize(("one", "other"), [("1e308", "1e-308"), ("nan", "heavy"), ("-1", "0")])
def test_no_weight_keeps_others_from_their_places(tmp_path: Path, one: str, other: str) -> None:
    """A weight counts as 100 at most and as 0.01 at least, and as 1 where it is none."""
    world = world_of(tmp_path)
    for weight in (one, other, other):
        ask(world, 4, configuration={"weight": weight})
    world.pass_time(MINUTE)
    found = sorted(cap for caps in yields(world).values() for cap in caps)
    assert found == ([500] * 8 + [2000] * 4 if one == "1e308" else [1000] * 12)


def test_after_a_restart_caps_are_as_before(tmp_path: Path) -> None:
    """Caps and hosts are rows; a restart in the middle of a change goes on with it."""
    world = world_of(tmp_path)
    ask(world, 6)
    world.request("web", 6, world.now, world.now + HOUR, type="node")
    world.request("web", 6, world.now, world.now + HOUR, type="node", properties=NEEDS)
    world.pass_time(SECOND // 2)
    world.restart("site")
    world.pass_time(3 * MINUTE)
    before = yields(world)
    world.restart("site")
    world.pass_time(MINUTE)
    assert yields(world) == before


def measured(world: DeployedWorld, cpu: dict[str, int]) -> None:
    """Probes see machines use so much, again and again, until the estimates have followed."""
    site = world.site()
    for _ in range(16):
        for name, much in cpu.items():
            unit = site.units[name]
            told = {"unit": name, "lease": unit.lease, "setup": unit.setup, "cpu": min(much, max(unit.cap, 0) or much)}
            assert not world.command("site", "unit.measured", **told).error
        world.pass_time(MINUTE)


def test_cpu_goes_to_those_that_use_it(tmp_path: Path) -> None:
    """With measured needs a machine that idles gives up what is not guaranteed, and has it again when it is busy."""
    world = world_of(tmp_path, 'needs = "measured", migration_bound = 0, second_phase = "max_min"')
    ask(world, 12, hours=2)
    before = yields(world)
    assert sorted(cap for caps in before.values() for cap in caps) == [1000] * 12
    host = next(iter(before))
    names = [unit.id for unit in world.site().units.machines if unit.host == host]
    measured(world, {names[0]: 100, names[1]: 100, names[2]: 2000, names[3]: 2000})
    assert sorted(yields(world)[host]) == [500, 500, 1500, 1500], "the floor is what is guaranteed"
    measured(world, dict.fromkeys(names, 2000))
    assert all(990 <= cap <= 1000 for cap in yields(world)[host]), "changes of a hundredth are not made"
    (told,) = [unit for unit in world.query("site", "units") if unit["unit"] == names[0]]
    assert (told["host"], told["leaves"], told["asked"]) == (host, "", 2000)
    assert 990 <= told["cap"] <= 1000 and told["used"] > told["cap"], "it counts as one that would use more"
    unit = world.site().units[names[0]]
    late = {"unit": unit.id, "lease": unit.lease, "setup": unit.setup + 1, "cpu": 1}
    assert "was set up anew" in world.command("site", "unit.measured", **late).error


@pytest.mark.parametrize(("parallel", "caps"), [("true", [1000] * 4), ("false", [500, 500, 1500, 1500])])
def test_measured_machines_of_a_parallel_job_need_what_the_busiest_does(
    tmp_path: Path, parallel: str, caps: list[int]
) -> None:
    """Those that wait for it use less, and would be slow when it is their turn."""
    world = world_of(tmp_path, 'needs = "measured", migration_bound = 0, second_phase = "max_min"')
    ask(world, 12, hours=2, configuration={"parallel": parallel})
    host = next(iter(yields(world)))
    names = [unit.id for unit in world.site().units.machines if unit.host == host]
    measured(world, {names[0]: 100, names[1]: 100, names[2]: 2000, names[3]: 2000})
    assert sorted(yields(world)[host]) == caps


def test_given_needs_stay_whatever_is_used(tmp_path: Path) -> None:
    """Without the setting what machines use changes nothing."""
    world = world_of(tmp_path)
    ask(world, 12)
    names = [unit.id for unit in world.site().units.machines]
    measured(world, dict.fromkeys(names[:6], 10))
    assert sorted(cap for caps in yields(world).values() for cap in caps) == [1000] * 12


def big(world: DeployedWorld, who: str, gib: int = 4, *, units: int = 1, **more: str) -> str:
    """A lease of machines that are limited by memory, a minute after it was asked for."""
    properties = {"needs.cpu": "1000", "needs.memory": str(1024 * gib), **more}
    lease = world.request(who, units, world.now, world.now + HOUR, type="node", properties=properties)
    world.pass_time(MINUTE)
    return lease


def hosts_of(world: DeployedWorld, *leases: str) -> list[str]:
    """The hosts of leases' machines; no decision was refused."""
    site = world.site()
    assert site.errors == []
    return [unit.host for lease in leases for unit in site.units.machines if unit.lease == lease]


def ending(world: DeployedWorld) -> set[str]:
    """The leases that end for others."""
    leases = world.site().leases.values()
    return {one.id for one in leases if one.notice is not None and one.notice.code == Code.MAKES_ROOM}


def test_where_a_host_dies_the_highest_class_has_the_room_that_is_left(tmp_path: Path) -> None:
    """Of two machines on it one has a place elsewhere: that of the higher class, whoever came first. Caps go on."""
    world = world_of(tmp_path)
    first, low = big(world, "web", units=2), big(world, "web")
    high = big(world, "high", units=2)
    (shared,) = set(hosts_of(world, high)) & set(hosts_of(world, low, first))
    victim = low if shared in hosts_of(world, low) else first
    assert not world.command("site", "unit.fail", unit=shared).error
    world.pass_time(MINUTE)
    assert len(hosts_of(world, high)) == 2 and shared not in hosts_of(world, high)
    assert len(hosts_of(world, first, low)) == 2
    told = world.site().leases[victim].reason
    assert told is not None and told.code == Code.UNITS_MISSING, told


def pieces(world: DeployedWorld, *left: str) -> tuple[str, ...]:
    """Both of these leases are alone on their hosts, which are half full by that; the third host is full."""
    site = world.site()
    for host in hosts_of(world, *left):
        for unit in [one for one in site.units.machines if one.host == host and one.lease not in left]:
            who = "web" if unit.lease in world.guest("web").leases else "high"
            assert not world.command(who, "lease.close", lease=unit.lease).error
    world.pass_time(MINUTE)
    assert len(set(hosts_of(world, *left))) == len(left) and len(list(site.units.machines)) == 4
    return left


def full(world: DeployedWorld, **more: str) -> list[str]:
    """Preemptible machines of both guests in turn, two on each of three hosts."""
    return [big(world, who, preemptible="true", **more) for who in ("web", "high") * 3]


def apart(world: DeployedWorld, leases: list[str]) -> tuple[str, str]:
    """Two leases that are on different hosts, of the guest ``web`` and of ``high``."""
    low = leases[0]
    return low, next(one for one in leases[1::2] if hosts_of(world, one) != hosts_of(world, low))


@pytest.mark.parametrize("who", ["web", "high"])
def test_what_has_no_room_has_preemptible_leases_of_the_lowest_class_leave(tmp_path: Path, who: str) -> None:
    """Where nobody may move the lowest class leaves, after its notice; then nobody is left that class 0 could ask."""
    world = world_of(tmp_path, "makes_room = true, migration_bound = 0")
    low, _ = pieces(world, *apart(world, full(world)))
    new = big(world, who, 8)
    assert ending(world) == {low} and world.lease("web", low)["state"] == sm.CLOSED
    assert world.lease(who, new)["state"] == sm.ACTIVE and len(yields(world)) == 3


def test_who_moves_need_not_leave(tmp_path: Path) -> None:
    """Where a migration makes room for what has its place beside preemptible leases nobody leaves."""
    world = world_of(tmp_path, "makes_room = true")
    left = pieces(world, *apart(world, full(world)))
    new = big(world, "web", 8)
    world.pass_time(MINUTE)
    assert world.lease("web", new)["state"] == sm.ACTIVE and ending(world) == set()
    assert len(set(hosts_of(world, *left))) == 1


def test_a_machine_of_a_host_that_died_has_room_that_another_makes_by_moving(tmp_path: Path) -> None:
    """No host has room for it, until one machine joins another."""
    world = world_of(tmp_path)
    large, *fillers = big(world, "web", 6), big(world, "web", 5), big(world, "web", 5)
    small = big(world, "web", 3), big(world, "web", 3)
    for lease in fillers:
        assert not world.command("web", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    (host,) = hosts_of(world, large)
    assert len(set(hosts_of(world, *small))) == 2 and host not in hosts_of(world, *small)
    assert not world.command("site", "unit.fail", unit=host).error
    world.pass_time(2 * MINUTE)
    assert len(set(hosts_of(world, *small))) == 1 and len(hosts_of(world, large)) == 1
    assert world.lease("web", large)["state"] == sm.ACTIVE


def test_a_restart_while_others_leave_changes_nothing(tmp_path: Path) -> None:
    """While others leave their caps stay within their host, and who leaves is told once; then it is as decided."""
    world = world_of(tmp_path, "makes_room = true, migration_bound = 0")
    left = pieces(world, *apart(world, full(world, notice="5m")))
    new = big(world, "high", 8)
    (gone,) = ending(world)
    assert gone in left and world.lease("high", new)["state"] != sm.ACTIVE
    world.restart("site")
    world.pass_time(MINUTE)
    assert ending(world) == {gone} and sum(map(len, yields(world).values())) == 4
    world.pass_time(6 * MINUTE)
    assert world.lease("high", new)["state"] == sm.ACTIVE and len(yields(world)) == 3
