"""The broker's mapper ``preemption`` among real actors: who leaves, when, and over crashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import DeployedWorld
from test_hosts import HOSTS, SMALL, check_room

from leasekit.core.mappers import Grant, Preempt
from leasekit.core.protocol.messages import TicketUpdate, Truncated
from leasekit.core.steps import Command, TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Term

LAB = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 6
[[actor.site.delegation]]
broker = "broker"
type = "vm"
length = "1d"
[actor.broker]
role = "broker"
mapper = { name = "preemption", SETTINGS }
settings.request_timeout = "20m"
priorities = { web = 1 }
[actor.web]
role = "guest"
settings.request_timeout = "20m"
[actor.batch]
role = "guest"
[actor.other]
role = "guest"
"""
SPOT = {"preemptible": "true"}
CAN_WAIT = {"deferrable": "true", "latest_start": str(HOUR)}


def world_of(folder: Path, settings: str = 'period = "10m"') -> DeployedWorld:
    return DeployedWorld(LAB.replace("SETTINGS", settings), folder)


def spot(world: DeployedWorld, units: int, guest: str = "batch", **more: str) -> str:
    """A preemptible lease that runs, a minute later."""
    lease = world.request(guest, units, world.now + SECOND, world.now + 6 * HOUR, properties={**SPOT, **more})
    world.pass_time(MINUTE)
    assert world.lease(guest, lease)["state"] == "active", world.lease(guest, lease)
    return lease


def wait(world: DeployedWorld, units: int, guest: str = "web", **more: str) -> str:
    """A request that is not preemptible, and has been decided."""
    lease = world.request(guest, units, world.now, world.now + HOUR, properties={**CAN_WAIT, **more})
    world.pass_time(5 * SECOND)
    return lease


def ending(world: DeployedWorld) -> set[str]:
    """The leases that are ended early."""
    return {lease.id for lease in world.broker("broker").leases.values() if lease.ending.at >= 0}


def test_the_cheapest_victim_leaves_and_no_other(tmp_path: Path) -> None:
    """Who began last has least of its period behind it; nobody leaves where there is room, or for a preemptible one."""
    world = world_of(tmp_path)
    leases = [spot(world, 2) for _ in range(2)]
    first = wait(world, 2)
    assert ending(world) == set() and world.lease("web", first)["state"] != "nascent"
    refused = world.request("other", 1, world.now + MINUTE, world.now + HOUR, properties=SPOT)
    world.pass_time(SECOND)
    assert world.lease("other", refused)["state"] in ("failed", "closed") and ending(world) == set()
    second = wait(world, 1)
    assert ending(world) == {leases[1]}
    world.pass_time(MINUTE)
    assert world.lease("batch", leases[1])["state"] == "closed" and world.lease("batch", leases[0])["state"] == "active"
    assert world.lease("web", second)["state"] == "active"
    assert world.broker("broker").errors == [] and world.query("site", "evidence") == []


def test_a_trial_says_what_would_be_and_ends_nobody(tmp_path: Path) -> None:
    """A dry run is answered with the term, and nothing goes wrong by that."""
    world = world_of(tmp_path)
    spot(world, 6)
    term = [world.now, world.now + HOUR]
    wish = {"type": "vm", "units": 2, "term": term, "properties": CAN_WAIT}
    world.feed("web", [Command(9999, "lease.dry_run", wish)])
    world.pass_time(5 * SECOND)
    answer = world.replies.pop(9999).result
    assert answer["status"] == "granted" and term[0] < answer["term"][0] <= term[0] + MINUTE, answer
    assert ending(world) == set() and world.broker("broker").errors == []


def test_two_at_once_and_a_budget(tmp_path: Path) -> None:
    """Of two requests in one turn both are filled, by different victims; a holder's second lease stays meanwhile."""
    for budget, left in ((2, 3), (1, 2)):
        (folder := tmp_path / str(budget)).mkdir()
        world = world_of(folder, f'period = "10m", budget = {budget}, gather = "10s"')
        leases = [spot(world, 2, guest) for guest in ("batch", "batch", "other")]
        spots = [world.request("web", 2, world.now, world.now + HOUR, properties=CAN_WAIT) for _ in range(left)]
        world.pass_time(25 * SECOND)
        gone = ending(world)
        assert len(gone) == left and leases[2] in gone
        world.pass_time(2 * MINUTE)
        assert all(world.lease("web", one)["state"] == "active" for one in spots)
        assert world.broker("broker").errors == [] and world.query("site", "evidence") == []


def test_a_crash_between_notice_and_hand_over(tmp_path: Path) -> None:
    """The promise survives; nobody else is named in the meantime, and the request gets what was promised."""
    world = world_of(tmp_path)
    leases = [spot(world, 3) for _ in range(2)]
    world.lost.add(("broker", "site", "Truncated"))
    first = wait(world, 3)
    second = wait(world, 1, guest="other")
    assert ending(world) == {leases[1]} and world.letters(Truncated)
    for lost in (True, False):
        world.restart("broker")
        world.pass_time(5 * SECOND)
        assert ending(world) >= {leases[1]}
        assert not any(one.ticket for one in world.letters(TicketUpdate, "broker", "web"))
        if lost:
            assert ending(world) == {leases[1]}
            world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert ending(world) == set(leases)
    assert world.lease("web", first)["state"] == world.lease("other", second)["state"] == "active"
    assert world.query("site", "evidence") == []


def test_no_victim_of_a_higher_class_whatever_a_mapper_says(tmp_path: Path) -> None:
    """The broker refuses to end what is above the request, and to end anything for what is preemptible."""
    world = world_of(tmp_path)
    high, low = spot(world, 3, "web"), spot(world, 3)
    broker = world.broker("broker")
    below = wait(world, 4, guest="batch")
    assert ending(world) == set(), "the mapper knows"
    cheap = world.request("web", 3, world.now, world.now + HOUR, properties={**SPOT, **CAN_WAIT})
    world.pass_time(SECOND)
    source, at = broker.leases[low].claims[0].source, world.now + MINUTE
    for lease, units, victims, why in (
        (below, 4, (high, low), f"lease {high} is of class 1, and makes no room for {below} of class 0"),
        (cheap, 3, (low,), f"lease {cheap} is preemptible, and bids 0"),
    ):
        grant = Grant(
            lease, source, units, Term(at, at + HOUR), lease == cheap, victims=tuple(Preempt(v, at) for v in victims)
        )
        broker.turns.running = broker.kernel.next("turn")
        broker.step(TurnDone(broker.turns.running, [grant]))
        assert why in broker.errors[-1], broker.errors[-1]
    assert ending(world) == set()


@pytest.mark.parametrize("needs", [SMALL, {}], ids=["machines", "whole hosts"])
def test_machines_and_hosts_make_room(tmp_path: Path, needs: dict[str, str]) -> None:
    """Of a divided type the victims may be of other sizes than what is asked for."""
    world = DeployedWorld(HOSTS.replace("MAPPER", "preemption"), tmp_path)
    end = 6 * HOUR
    for units, filter_ in ((4, "rack in {c}"), (8, "")):
        properties = {**SPOT, **SMALL, "filter": filter_}
        lease = world.request("batch", units, world.now, end, type="node", properties=properties)
        world.pass_time(MINUTE)
        assert world.lease("batch", lease)["state"] == "active", world.lease("batch", lease)
    units = 5 if needs else 1
    lease = world.request("web", units, world.now, world.now + HOUR, type="node", properties={**CAN_WAIT, **needs})
    world.pass_time(3 * MINUTE)
    assert ending(world), world.lease("broker", lease)
    assert world.lease("web", lease)["state"] == "active", world.lease("web", lease)
    check_room(world)


def test_a_modify_that_says_nothing_of_needs(tmp_path: Path) -> None:
    """Machines stay machines, whatever the last request of their lease said: they leave no more than they take."""
    world = DeployedWorld(HOSTS.replace("MAPPER", "preemption"), tmp_path)
    leases = []
    for units, filter_ in ((4, "rack in {c}"), (8, "")):
        properties = {**SPOT, **SMALL, "filter": filter_}
        leases.append(world.request("batch", units, world.now, 6 * HOUR, type="node", properties=properties))
        world.pass_time(MINUTE)
    changed = world.command("batch", "lease.modify", lease=leases[1], units=7)
    assert not changed.error, changed.error
    world.pass_time(MINUTE)
    broker = world.broker("broker")
    assert (
        broker.leases[leases[1]].claims[-1].units == 7 and "needs.cpu" not in broker.leases[leases[1]].asked.properties
    )
    lease = world.request("web", 3, world.now, world.now + HOUR, type="node", properties=CAN_WAIT)
    world.pass_time(3 * MINUTE)
    assert ending(world) == set(leases) and world.lease("web", lease)["state"] == "active", broker.errors
    check_room(world)
