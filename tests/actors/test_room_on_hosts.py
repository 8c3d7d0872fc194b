"""The authority's mapper ``preemption`` among real actors: who leaves a host for whom, when, and over a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deployed_world import DeployedWorld
from test_suspension import SavingWorld

from leasekit.actors.site.units import host_changes
from leasekit.core.drivers import NOT_SAVED, RESUME, SAVE
from leasekit.core.leases import service_manager as sm
from leasekit.core.mappers import AuthorityCycle, HostChanges, Place
from leasekit.core.reasons import Code
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.emulation.world import Outcome

FARM = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
mapper = { name = "NAME", SETTINGS }
[[actor.site.inventory]]
type = "node"
units = 2
capacity = { cpu = 4, memory = "8GiB" }
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


def world_of(folder: Path, settings: str = "", name: str = "preemption") -> DeployedWorld:
    text = FARM.replace(", SETTINGS", f", {settings}" if settings else "").replace("NAME", name)
    return DeployedWorld(text, folder)


def ask(
    world: DeployedWorld, cpu: int, *, who: str = "web", units: int = 1, spot: bool = False, length: int = 4 * HOUR,
    **more: str,
) -> str:  # fmt: skip
    """A lease of machines of so many cores, which was asked for a minute ago."""
    properties = {"needs.cpu": str(1000 * cpu), "needs.memory": "512", **more}
    if spot:
        properties["preemptible"] = "true"
    lease = world.request(who, units, world.now, world.now + length, type="node", properties=properties)
    world.pass_time(MINUTE)
    return lease


def filled(world: DeployedWorld, count: int = 8, **more: str) -> list[str]:
    """Both hosts full of preemptible machines of one core, each a lease that began a minute after the last."""
    return [ask(world, 1, spot=True, **more) for _ in range(count)]


def on(world: DeployedWorld) -> Mapping[str, list[str]]:
    """The leases on each host; no host has more than it can take, and no decision was refused."""
    site = world.site()
    assert site.errors == []
    found: dict[str, list[str]] = {}
    for unit in site.units.machines:
        found.setdefault(unit.host, []).append(unit.lease or unit.promised)
    for host in found:
        used = sum(dict(unit.size)["cpu"] for unit in site.units.machines if unit.host == host and not unit.is_free)
        assert used <= 4000, (host, used)
    return found


def pieces(world: DeployedWorld, leases: list[str], each: int = 1) -> list[str]:
    """Have the first leases of each host leave: returns those that go on, in order of their start."""
    hosts = [[lease for lease in there if lease in leases] for _, there in sorted(on(world).items())]
    gone = [lease for there in hosts for lease in there[:each]]
    for lease in gone:
        who = "web" if lease in world.guest("web").leases else "high"
        assert not world.command(who, "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    return [lease for lease in leases if lease not in gone]


def leaving(world: DeployedWorld) -> set[str]:
    """The leases that the site has told that they end for others."""
    leases = world.site().leases.values()
    return {one.id for one in leases if one.notice is not None and one.notice.code == Code.MAKES_ROOM}


def state(world: DeployedWorld, lease: str, who: str = "web") -> str:
    return str(world.lease(who, lease)["state"])


@pytest.mark.parametrize("name", ["preemption", "retry"])
def test_a_normal_lease_has_the_cheapest_leave_its_host(tmp_path: Path, name: str) -> None:
    """What is free is in pieces on two hosts: the preemptible lease leaves that has the least of its period behind it,
    after its notice, and hears for whom. Its broker may grant what it had anew.
    """
    world = world_of(tmp_path, name=name)
    left = pieces(world, filled(world))
    wanted = ask(world, 2)
    assert leaving(world) == {left[-1]}, "it began last"
    reason = world.guest("web").leases[left[-1]].reason
    assert reason is not None and reason.code == Code.MAKES_ROOM and reason.who == wanted
    assert state(world, left[-1]) != sm.ACTIVE and state(world, wanted) == sm.ACTIVE
    assert any(wanted in there for there in on(world).values())
    assert state(world, ask(world, 1)) == sm.ACTIVE and leaving(world) == {left[-1]}


def test_what_has_become_of_machines_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since a mark: machines that came, left or have changed, and hosts that are otherwise; all hosts where what has
    become of them is not known any more.
    """
    world = world_of(tmp_path)
    spot, units = ask(world, 1, spot=True), world.site().units
    first = host_changes(units, "node", 0)
    assert first.anew and sorted(one.lease for host in first.hosts for one in host.machines) == [spot]
    mine = ask(world, 1)
    assert not world.command("web", "lease.close", lease=spot).error
    world.pass_time(MINUTE)
    second = host_changes(units, "node", first.mark)
    assert (second.anew, second.hosts, second.gone) == (False, (), ())
    assert {one.view.lease if one.view is not None else None for one in second.machines} == {mine, None}
    assert host_changes(units, "node", second.mark) == HostChanges(second.mark)
    assert not world.command("site", "unit.set", unit="node-0", capacity={"cpu": "8", "memory": "8GiB"}).error
    third = host_changes(units, "node", second.mark)
    assert [(host.id, dict(host.capacity)["cpu"]) for host in third.hosts] == [("node-0", 8000)] and not third.anew
    monkeypatch.setattr("leasekit.actors.site.inventory.NEWS_MAX", 4)
    for _ in range(3):
        ask(world, 1)
    fourth = host_changes(units, "node", third.mark)
    assert fourth.anew and len([one for host in fourth.hosts for one in host.machines]) == 4


def test_room_beats_killing(tmp_path: Path) -> None:
    """Nobody leaves where there is room, however cheap that would be, or for a preemptible lease."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world))
    assert [state(world, ask(world, 1)), leaving(world)] == [sm.ACTIVE, set()]
    assert [state(world, ask(world, 1)), leaving(world)] == [sm.ACTIVE, set()]
    left = pieces(world, left)
    refused = ask(world, 2, spot=True)
    assert state(world, refused) != sm.ACTIVE and leaving(world) == set()
    assert [state(world, one) for one in left] == [sm.ACTIVE] * len(left)


def test_least_runs(tmp_path: Path) -> None:
    """Nobody leaves before it has run for as long as it must: who finds no other host waits for the first that has."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world, min_run="20m"))
    wanted = ask(world, 2)
    assert leaving(world) == set() and state(world, wanted) != sm.ACTIVE
    world.pass_time(13 * MINUTE)
    assert len(leaving(world)) == 1 and leaving(world) <= set(left) and state(world, wanted) == sm.ACTIVE


def test_classes(tmp_path: Path) -> None:
    """Leases of a higher class stay: who finds no other host is refused as ever, and counted."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world, who="high"))
    assert state(world, ask(world, 2)) != sm.ACTIVE and leaving(world) == set()
    assert world.site().calendars.places.counts["fragmented"] > 0
    assert state(world, ask(world, 2, who="high"), "high") == sm.ACTIVE and leaving(world) == {left[-1]}


def test_notice_over_a_crash(tmp_path: Path) -> None:
    """What is under notice is the preemptor's, and nobody else's; a crash of the site in the middle changes nothing."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world, notice="5m"))
    wanted = ask(world, 2)
    victims = leaving(world)
    assert victims == {left[-1]} and state(world, left[-1]) == sm.ACTIVE and state(world, wanted) != sm.ACTIVE
    world.restart("site")
    assert leaving(world) == victims
    other = ask(world, 2)
    assert state(world, other) != sm.ACTIVE and left[-1] in next(
        there for there in on(world).values() if left[-1] in there
    )
    world.pass_time(5 * MINUTE)
    assert state(world, wanted) == sm.ACTIVE and state(world, left[-1]) != sm.ACTIVE
    assert leaving(world) >= victims


def test_several_machines_name_each_victim_once(tmp_path: Path) -> None:
    """Two machines of one lease on hosts that are full: four leave, of which none is named twice."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world), each=2)
    wanted = ask(world, 1, units=3)
    assert state(world, wanted) == sm.ACTIVE and leaving(world) == set()
    world.command("web", "lease.close", lease=wanted)
    world.pass_time(MINUTE)
    wanted = ask(world, 3)
    assert state(world, wanted) == sm.ACTIVE and len(leaving(world)) == 1, left
    assert leaving(world) <= set(left)


@pytest.mark.parametrize("name", ["preemption", "retry"])
def test_a_budget_bounds_who_leaves_at_once(tmp_path: Path, name: str) -> None:
    """A holder that has as many leases on their way out as it may loses no more: others leave, however dear."""
    world = world_of(tmp_path, "budget = 1", name)
    left = pieces(world, filled(world, notice="10m"))
    wanted = ask(world, 2)
    assert leaving(world) == {left[-1]} and state(world, wanted) != sm.ACTIVE
    second = ask(world, 2)
    assert leaving(world) == {left[-1]} and state(world, second) != sm.ACTIVE


def test_who_is_ended_for_others_asks_anew(tmp_path: Path) -> None:
    """With ``on_preempt=requeue`` the guest asks for all of it anew."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world, on_preempt="requeue", notice="0s"))
    known = set(world.guest("web").leases)
    wanted = ask(world, 2)
    world.pass_time(MINUTE)
    (again,) = world.guest("web").leases.keys() - known - {wanted}
    assert state(world, wanted) == sm.ACTIVE and leaving(world) == {left[-1]}
    assert state(world, again) == sm.TICKETED, "its broker has granted what is free next"


SUSPENDED = {"on_preempt": "suspend", "suspend": "20s", "notice": "5m"}


def saving_world(folder: Path) -> SavingWorld:
    """As :func:`world_of`; the site's driver can save machines."""
    saves = 'mapper = { name = "preemption" }\ndriver.imagined = { kind = "null", save = true }'
    return SavingWorld(FARM.replace('mapper = { name = "NAME", SETTINGS }', saves), folder)


def test_who_is_suspended_for_others_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Where the driver saves, a victim that wants it is saved within its notice, its rest waits, and is set up from
    what was saved when others are gone. A crash of everybody, at any of these times, changes nothing.
    """
    world = saving_world(tmp_path)
    firm = [ask(world, 1) for _ in range(8)]
    first, second = ([one for one in there if one in firm] for there in on(world).values())
    for one in (*first[:3], second[0]):
        assert not world.command("web", "lease.close", lease=one).error
    world.pass_time(MINUTE)
    victim = ask(world, 2, spot=True, **SUSPENDED)
    known = set(world.guest("web").leases)
    wanted = ask(world, 2, length=HOUR)
    assert leaving(world) == {victim} and world.guest("web").leases[victim].ending.suspends
    assert state(world, victim) == sm.ACTIVE
    goes_to = world.lease("web", victim)["approved"]["term"][1]
    _crash(world)
    world.pass_time(5 * MINUTE)
    (saved,) = (action for action in world.told if SAVE in action.properties)
    assert world.kept() == [(victim, "saved")] and saved.lease == victim
    assert state(world, victim) == sm.CLOSED and state(world, wanted) == sm.ACTIVE
    (rest,) = world.guest("web").leases.keys() - known - {wanted}
    assert world.lease("web", rest)["resumes"]["lease"] == victim
    _crash(world)
    world.pass_time(5 * MINUTE)
    assert state(world, rest) == sm.TICKETED, "what is free is in pieces: it is granted for later"
    world.pass_time(HOUR)
    assert state(world, rest) == sm.ACTIVE and world.lease("web", rest)["reason"] == ""
    (resumed,) = (action for action in world.told if RESUME in action.properties)
    assert resumed.properties[RESUME] == saved.properties[SAVE] and resumed.lease == rest
    assert world.kept() == [] and rest in {one for there in on(world).values() for one in there}
    found = world.lease("web", rest)
    (start, end), stopped = found["approved"]["term"], found["resumes"]["suspended"]
    assert end - start == goes_to - stopped + 20 * SECOND, "what was left, and the time to come back"


def _crash(world: DeployedWorld) -> None:
    for name in ("site", "broker", "web"):
        world.restart(name)


def test_what_cannot_be_saved_is_ended(tmp_path: Path) -> None:
    """Where no driver saves, a victim that wants to be suspended is ended as others are, after its notice."""
    world = world_of(tmp_path)
    left = pieces(world, filled(world, **SUSPENDED))
    known = set(world.guest("web").leases)
    wanted = ask(world, 2)
    assert leaving(world) == {left[-1]} and not world.guest("web").leases[left[-1]].ending.suspends
    world.pass_time(6 * MINUTE)
    assert state(world, left[-1]) == sm.CLOSED and state(world, wanted) == sm.ACTIVE
    assert world.guest("web").leases.keys() == known | {wanted}


def test_what_a_driver_fails_to_save_is_told(tmp_path: Path) -> None:
    """The lease ends all the same, the other has its place, and what is set up for the rest is set up anew."""
    world = saving_world(tmp_path)
    filled(world, **SUSPENDED)
    pieces(world, list(world.guest("web").leases))
    fails = {NOT_SAVED: "the disk is full"}
    world.fates.append(lambda action: Outcome(SECOND, True, fails, "") if SAVE in action.properties else None)
    wanted = ask(world, 2)
    (victim,) = leaving(world)
    world.pass_time(6 * MINUTE)
    assert state(world, wanted) == sm.ACTIVE and state(world, victim) == sm.CLOSED and world.kept() == []
    assert "the disk is full" in str(world.lease("web", victim)["reason"])


def test_what_a_host_has_beside_preemptible_leases_follows_its_size(tmp_path: Path) -> None:
    """An empty host that is given more has more left at once, whatever was known of it."""
    world = world_of(tmp_path)
    places, loose = world.site().calendars.places, {b"a claim of a preemptible lease"}
    assert places.pieces("node", loose) == ()
    capacity = {"cpu": "8", "memory": "16GiB"}
    assert not world.command("site", "unit.set", unit="node-0", capacity=capacity).error
    assert places.pieces("node", loose) == ()


@pytest.mark.parametrize("name", ["preemption", "first_fit"])
@pytest.mark.parametrize("memory", [10, 11])
def test_hosts_of_several_classes_are_given_as_those_that_are_needed(tmp_path: Path, name: str, memory: int) -> None:
    """A host that gets the size of another is of both classes: a lease that has a machine of each keeps both."""
    world = world_of(tmp_path, name=name)
    sizes = {"cpu": "4", "memory": f"{memory}GiB"}
    assert not world.command("site", "unit.add", unit="node-2", type="node", capacity=sizes).error
    assert not world.command("site", "unit.remove", unit="node-1").error
    world.pass_time(MINUTE)
    start = world.now + 10 * MINUTE
    properties = {"needs.cpu": "3000", "needs.memory": "512"}
    lease = world.request("web", 2, start, start + HOUR, type="node", properties=properties)
    world.pass_time(MINUTE)
    assert len(world.broker("broker").leases[lease].claims[0].classes) == 2
    assert not world.command("site", "unit.set", unit="node-0", capacity=sizes).error
    world.run_until(start + MINUTE)
    assert on(world) == {"node-0": [lease], "node-2": [lease]} and world.site().errors == []


def test_a_host_that_dies_has_others_make_room(tmp_path: Path) -> None:
    """The machine of a normal lease is replaced on another host, whose preemptible lease leaves for it."""
    world = world_of(tmp_path)
    firm = ask(world, 2)
    spots = [ask(world, 1, spot=True, notice="0s") for _ in range(6)]
    dead = next(host for host, there in on(world).items() if firm in there)
    alive = next(host for host in on(world) if host != dead)
    assert not world.command("site", "unit.fail", unit=dead, reason="fire").error
    world.pass_time(3 * MINUTE)
    assert firm in on(world).get(alive, []), (spots, on(world))
    assert leaving(world) and leaving(world) <= set(spots)


class Wrong:
    """A mapper that says what it was told to, once."""

    inline = True
    makes_room = True

    def __init__(self, decision: Callable[[str], Place]) -> None:
        self.decision = decision

    def assign(self, cycle: AuthorityCycle) -> list[Place]:
        return [self.decision(demand.lease) for demand in cycle.demands]


@pytest.mark.parametrize(
    ("victims", "found"),
    [
        (("nobody",), "is no lease of its type"),
        (("VICTIM", "VICTIM"), "is named twice"),
        (("FIRM",), "need not make room"),
        (("HIGH",), "need not make room"),
        ((), "has no room"),
    ],
)
def test_a_wrong_mapper_can_overfill_nothing(tmp_path: Path, victims: tuple[str, ...], found: str) -> None:
    """Victims that are none, or too few, are refused with nothing changed."""
    world = world_of(tmp_path)
    names = {"FIRM": ask(world, 1), "HIGH": ask(world, 1, spot=True, who="high")}
    left = pieces(world, [ask(world, 1, spot=True) for _ in range(6)])
    names = {"VICTIM": left[-1], **names}
    hosts = on(world)
    full = next(host for host, there in hosts.items() if names["VICTIM"] in there)
    world.site().turning.mapper = Wrong(
        lambda lease: Place(lease, (full,), victims=tuple(names.get(one, one) for one in victims))
    )
    ask(world, 2)
    assert leaving(world) == set()
    assert any(found in error for error in world.site().errors), world.site().errors


def test_a_victim_gives_units_back_one_by_one(tmp_path: Path) -> None:
    """What a lease gives that its site has ended for another is that other's, who begins when it has enough; nobody
    else gets it meanwhile, also over a crash. What is left ends with the notice.
    """
    world = world_of(tmp_path)
    firm = [ask(world, 1) for _ in range(8)]
    first, second = ([one for one in there if one in firm] for there in on(world).values())
    for one in (*first[:3], second[0]):
        assert not world.command("web", "lease.close", lease=one).error
    world.pass_time(MINUTE)
    victim = ask(world, 1, units=2, spot=True, notice="30m")
    ends = world.now + 30 * MINUTE
    wanted = ask(world, 2)
    assert leaving(world) == {victim} and state(world, wanted) == sm.TICKETED
    third = ask(world, 2)
    units = [one.id for one in world.site().units.machines if one.lease == victim]
    assert not world.command("web", "lease.modify", lease=victim, victims=units[:1]).error
    world.restart("site")
    world.pass_time(MINUTE)
    assert state(world, wanted) == sm.ACTIVE and state(world, third) != sm.ACTIVE
    assert [one["unit"] for one in world.lease("web", victim)["units"]] == units[1:]
    world.run_until(ends - MINUTE)
    assert state(world, victim) == sm.ACTIVE
    world.pass_time(3 * MINUTE)
    assert state(world, victim) == sm.CLOSED
    assert on(world) and world.query("site", "evidence") == []
