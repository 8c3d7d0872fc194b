"""Cost plug-ins that go wrong in a live broker, and settings that are none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.config.load import check
from leasekit.core.mappers import BrokerCycle, Grant, Preempt
from leasekit.core.steps import TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant
from leasekit.policies.broker.preemption import PreemptionMapper
from leasekit.policies.preempting.hosts import HostedLease


class Wrong:
    """Says what it is told to, or raises it."""

    def __init__(self, says: Any) -> None:
        self.says = says

    def cost(self, lease: HostedLease, now: Instant) -> Any:
        """No cost."""
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Undecided:
    """A mapper that has not decided anything yet."""

    inline = True

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Nothing."""
        return []


def world_with(tmp_path: Path, cost: Any) -> DeployedWorld:
    """Two units for two guests, by a mapper with that cost."""

    def make(name: str, actor: Actor) -> Actor:
        if name == "upper":
            assert isinstance(actor, Broker)
            actor.turning.mapper = PreemptionMapper(cost=cost)
        return actor

    text = CHAIN.replace('role = "broker"', 'role = "broker"\nsettings.request_timeout = "20m"')
    text = text.replace('default_broker = "lower"', 'default_broker = "upper"')
    text = text.replace(
        'settings.default_broker = "upper"', 'settings = {default_broker = "upper", request_timeout = "20m"}'
    )
    return DeployedWorld(text, tmp_path, make=make)


def running(world: DeployedWorld) -> str:
    """A preemptible lease of one of both units."""
    lease = world.request("batch", 1, world.now, world.now + HOUR, properties={"preemptible": "true"})
    world.pass_time(5 * SECOND)
    assert world.lease("batch", lease)["state"] == "active"
    return lease


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (math.nan, "found nan"),
        (math.inf, "found inf"),
        (-1, "found -1"),
        ("much", "found 'much'"),
        (ZeroDivisionError("by nothing"), "found ZeroDivisionError: by nothing"),
    ],
)
def test_a_cost_that_is_none_refuses_one_request(tmp_path: Path, says: Any, told: str) -> None:
    """By a message that names plug-in and lease; nobody has to leave, and who needs nobody to leave is served."""
    world = world_with(tmp_path, Wrong(says))
    first = running(world)
    other = world.request("web", 2, world.now + 10 * MINUTE, world.now + 20 * MINUTE)
    third = world.request("web", 1, world.now, world.now + HOUR)
    world.pass_time(30 * SECOND)
    shown = world.lease("web", other)
    assert shown["state"] == "failed"
    assert f"cost Wrong of lease {first}: {told}, expected a number of at least 0" in shown["reason"]
    assert world.broker("upper").leases[first].ending.at == -1
    assert world.lease("batch", first)["state"] == world.lease("web", third)["state"] == "active"


def test_a_victim_that_is_named_twice_leaves_nothing_changed(tmp_path: Path) -> None:
    """The broker refuses the grant, whatever the mapper says."""
    world = world_with(tmp_path, None)
    first, broker = running(world), world.broker("upper")
    broker.turning.mapper = Undecided()
    other = world.request("web", 1, world.now + 10 * MINUTE, world.now + 20 * MINUTE)
    world.pass_time(SECOND)
    term, source = broker.leases[other].asked.term, broker.leases[first].claims[0].source
    at = term.start
    twice = (Preempt(first, at), Preempt(first, at - SECOND))
    broker.turns.running = broker.kernel.next("turn")
    broker.step(TurnDone(broker.turns.running, [Grant(other, source, 1, term, victims=twice)]))
    assert "one is named twice" in broker.errors[-1]
    assert broker.leases[first].ending.at == -1 and broker.leases[other].room.promise is None


@pytest.mark.parametrize(
    ("mapper", "key"),
    [
        ('{ name = "preemption", budget = -1 }', "budget"),
        ('{ name = "preemption", period = "0s" }', "period"),
        ('{ name = "preemption", cost = "luck" }', "cost"),
        ('{ name = "spot", budget = -1 }', "budget"),
        ('{ name = "spot", reserve = -2 }', "reserve"),
        ('{ name = "spot", period = "5s" }', "period"),
    ],
)
def test_settings_that_are_none_are_named(tmp_path: Path, mapper: str, key: str) -> None:
    """By file, key, what was found and what is allowed."""
    file = tmp_path / "broker.toml"
    file.write_text(f'[actor.b]\nrole = "broker"\nmapper = {mapper}\n')
    (wrong,) = check(file)[0]
    assert f"mapper.{key}" in wrong.key and wrong.found and wrong.allowed
