"""Windows that a broker's calendars have, by real actors: of classes, of sites, and what is in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.errors import CommandError
from leasekit.core.reasons import Code
from leasekit.core.time import HOUR

SITES = """
[emulation]
horizon = "1d"
[actor.north]
role = "authority"
[[actor.north.inventory]]
type = "vm"
names = ["a-0", "a-1"]
unit_properties = { rack = "a" }
[[actor.north.inventory]]
type = "vm"
names = ["b-0"]
unit_properties = { rack = "b" }
[[actor.north.delegation]]
broker = "hub"
type = "vm"
[actor.south]
role = "authority"
[[actor.south.inventory]]
type = "vm"
units = 2
prefix = "s-"
[[actor.south.delegation]]
broker = "hub"
type = "vm"
[actor.hub]
role = "broker"
[actor.web]
role = "guest"
[actor.batch]
role = "guest"
"""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    """Three units in the north, in two racks, and two in the south; web has all of the north from 2 h to 4 h."""
    made = DeployedWorld(SITES, tmp_path)
    made.request("web", 3, 2 * HOUR, 4 * HOUR, site="north")
    made.run_until(HOUR)
    return made


def slots(world: DeployedWorld, **asked: Any) -> dict[str, Any]:
    """What the broker answers."""
    usual = {"type": "vm", "units": 1, "length": HOUR, "start": HOUR, "end": 10 * HOUR, "holder": "web"}
    found: dict[str, Any] = world.query("hub", "slots", **{**usual, **asked})
    return found


def windows(found: dict[str, Any]) -> list[tuple[str, float, float]]:
    """The windows of an answer, in hours."""
    return [(one["site"], one["start"] / HOUR, one["end"] / HOUR) for one in found["slots"]]


def test_windows_are_what_the_calendars_have(world: DeployedWorld) -> None:
    """In order of their start, of each site by itself; those that are too short, and those of others, are left out."""
    assert windows(slots(world, units=2)) == [("north", 1, 2), ("south", 1, 10), ("north", 4, 10)]
    assert windows(slots(world, units=3)) == [("north", 1, 2), ("north", 4, 10)]
    assert windows(slots(world, units=3, length=2 * HOUR)) == [("north", 4, 10)]
    assert windows(slots(world, units=2, site="south", limit=1)) == [("south", 1, 10)]
    assert windows(slots(world, filter="rack == b")) == [("north", 1, 2), ("north", 4, 10)]
    assert windows(slots(world, units=2, filter="rack == b")) == []


def test_what_is_in_the_way_is_told_of_ones_own(world: DeployedWorld) -> None:
    """So many units are short at the wanted start, and whose own leases have some until the first window."""
    found = slots(world, units=3, start=2 * HOUR)
    (lease,) = world.query("web", "leases")
    assert (found["short"], found["leases"], windows(found)) == (1, [lease["id"]], [("north", 4, 10)])
    assert slots(world, units=3, start=2 * HOUR, holder="batch")["leases"] == []
    at_once = slots(world, units=2, start=2 * HOUR)
    assert (at_once["short"], at_once["leases"], windows(at_once)[0]) == (0, [], ("south", 2, 10))
    assert slots(world, units=6)["short"] == 3


def test_what_can_t_be_looked_for_is_told(world: DeployedWorld) -> None:
    """Types of nobody, filters that are none, windows that are over or too short."""
    with pytest.raises(CommandError, match="type: found 'pc', there is vm") as caught:
        slots(world, type="pc")
    assert caught.value.reason.code == Code.UNKNOWN_TYPE
    for wrong, words in (
        ({"filter": "rack =="}, "filter"),
        ({"end": HOUR + 1}, "end: expected at least"),
        ({"units": 0}, "units: found 0"),
        ({"limit": 1000}, "limit: found 1000"),
        ({"needs": {"needs.cpu": "x"}}, "cpu"),
    ):
        with pytest.raises(CommandError, match=words):
            slots(world, **wrong)
