"""What a broker's calendars have: windows of classes and sites, what is in the way of one, and who has what when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.errors import CommandError
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, Grant, Reject
from leasekit.core.reasons import Code, Coded
from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.broker.fcfs import Fcfs

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


class LaterOnly(Fcfs):
    """A mapper that grants nothing of the north before its fifth hour."""

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        decided = list(super().allocate(cycle))
        return [
            Reject(one.lease, "too early")
            if isinstance(one, Grant) and one.source.startswith("north") and one.term.start < 4 * HOUR
            else one
            for one in decided
        ]


def granted(world: DeployedWorld, **asked: Any) -> dict[str, Any]:
    """What the broker answers that has its mapper try each window."""
    usual = {"type": "vm", "units": 1, "length": HOUR, "start": HOUR, "end": 10 * HOUR, "holder": "web"}
    reply = world.command("hub", "slots.find", **{**usual, **asked})
    assert not reply.error, reply.error
    found: dict[str, Any] = reply.result
    return found


def test_windows_are_those_that_the_mapper_would_grant(world: DeployedWorld) -> None:
    """As many as are asked for, if there are: what one is not granted others take the place of. Nothing is kept."""
    before = world.query("hub", "leases")
    assert granted(world, units=2) == slots(world, units=2)
    assert granted(world, units=3, start=2 * HOUR) == slots(world, units=3, start=2 * HOUR)
    assert windows(granted(world, filter="rack == b", limit=1)) == [("north", 1, 2)]
    assert windows(granted(world, units=4)) == []
    world.nodes["hub"].actor.dry_runs._fresh = LaterOnly  # type: ignore[attr-defined]
    assert windows(granted(world, units=2)) == [("south", 1, 10), ("north", 4, 10)]
    assert windows(granted(world, units=2, limit=1)) == [("south", 1, 10)]
    assert windows(granted(world, units=3, limit=1)) == [("north", 4, 10)]
    assert world.query("hub", "leases") == before


class Quota(Fcfs):
    """A mapper that has used up what there was of it, or waits for what it does not say."""

    def __init__(self, waits: bool) -> None:
        super().__init__()
        self.waits = waits

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        (request,) = cycle.requests
        why = Coded("the quota is used up", "quota")
        return [Defer(request.lease, why) if self.waits else Reject(request.lease, why)]


@pytest.mark.parametrize("waits", [False, True])
def test_where_there_is_no_window_it_is_told_why(world: DeployedWorld, waits: bool) -> None:
    """In the words of the refusal, and with its code, if somebody asks; also where nothing is free for it at all."""
    hub = world.nodes["hub"].actor
    found = granted(world, units=4, explain=True)
    assert (found["slots"], found["short"], found["because"]["code"]) == ([], 1, Code.TOO_LARGE)
    hub.dry_runs._fresh = lambda: Quota(waits)  # type: ignore[attr-defined]
    for asked in ({}, {"units": 3, "start": 2 * HOUR, "end": 4 * HOUR}):
        found = granted(world, **asked, explain=True)
        assert (found["slots"], found["because"]["code"]) == ([], "mapper:quota")
        assert "the quota is used up" in found["reason"]
        assert granted(world, **asked)["because"] is None
    hub.dry_runs._fresh = LaterOnly  # type: ignore[attr-defined]
    assert granted(world, units=2, explain=True)["because"] is None


def test_windows_that_can_not_be_tried(world: DeployedWorld) -> None:
    """Of who may ask for nothing; at a broker whose mapper takes no questions, or takes none any more."""
    asked = {"type": "vm", "units": 2, "length": HOUR, "start": HOUR, "end": 10 * HOUR}
    reply = world.command("hub", "slots.find", **asked, holder="eve")
    assert (reply.error, reply.reason and reply.reason.code) == ("eve may not request at hub", Code.FORBIDDEN)
    dry_runs = world.nodes["hub"].actor.dry_runs  # type: ignore[attr-defined]

    class Last(Fcfs):
        def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
            dry_runs._fresh = None
            return list(super().allocate(cycle))

    dry_runs._fresh = Last
    for _ in range(2):
        reply = world.command("hub", "slots.find", **asked, holder="web")
        assert (reply.error, reply.reason and reply.reason.code) == ("hub answers requests only", Code.UNAVAILABLE)


def test_what_is_in_the_way_is_told_of_ones_own(world: DeployedWorld) -> None:
    """So many units are short at the wanted start, and whose own leases have some until the first window."""
    found = slots(world, units=3, start=2 * HOUR)
    (lease,) = world.query("web", "leases")
    assert (found["short"], found["leases"], windows(found)) == (1, [lease["id"]], [("north", 4, 10)])
    assert slots(world, units=3, start=2 * HOUR, holder="batch")["leases"] == []
    assert slots(world, units=3, start=2 * HOUR, filter="rack == a", site="north")["leases"] == [lease["id"]]
    assert slots(world, units=3, start=4 * HOUR, site="south")["leases"] == []
    at_once = slots(world, units=2, start=2 * HOUR)
    assert (at_once["short"], at_once["leases"], windows(at_once)[0]) == (0, [], ("south", 2, 10))
    assert slots(world, units=6)["short"] == 3


def test_what_is_in_the_way_follows_the_leases(world: DeployedWorld) -> None:
    """Also after the first question: a lease that comes, is longer, is closed."""

    def in_the_way(start: int) -> list[str]:
        return list(slots(world, units=3, start=start, site="north")["leases"])

    first = world.query("web", "leases")[0]["id"]
    assert (in_the_way(3 * HOUR), in_the_way(4 * HOUR)) == ([first], [])
    world.request("web", 3, 6 * HOUR, 8 * HOUR, site="north")
    world.run_until(2 * HOUR + MINUTE)
    world.command("web", "lease.extend", lease=first, end=5 * HOUR)
    world.run_until(3 * HOUR)
    second = next(one["id"] for one in world.query("web", "leases") if one["id"] != first)
    assert (in_the_way(4 * HOUR), in_the_way(5 * HOUR), in_the_way(7 * HOUR)) == ([first], [], [second])
    world.command("web", "lease.close", lease=second)
    world.run_until(3 * HOUR + MINUTE)
    assert in_the_way(7 * HOUR) == []


def test_a_calendar_that_is_known_is_not_told_again(world: DeployedWorld) -> None:
    """By its revision: until a lease has changed, whatever time passes; it goes on growing after a restart."""
    world.run_until(3 * HOUR + MINUTE)
    asked = {"start": HOUR, "end": 9 * HOUR, "step": HOUR}
    for actor in ("hub", "north", "web"):
        told = world.query(actor, "calendar", **asked)
        assert told["entries"]
        known = {**asked, "known": told["revision"]}
        world.pass_time(MINUTE)
        same = {"revision": told["revision"], "entries": [], "classes": [], "units": []}
        assert world.query(actor, "calendar", **known) == same
        world.restart(actor)
        again = world.query(actor, "calendar", **known)
        assert again["revision"] >= told["revision"]
        world.pass_time(MINUTE)
        assert world.query(actor, "calendar", **asked)["entries"] == told["entries"]
    told = {actor: world.query(actor, "calendar", **asked) for actor in ("hub", "north", "web")}
    world.command("web", "lease.close", lease=told["web"]["entries"][0]["lease"])
    world.pass_time(MINUTE)
    for actor, before in told.items():
        now = world.query(actor, "calendar", **asked, known=before["revision"])
        assert now["revision"] > before["revision"]
        assert now["entries"] != before["entries"], actor


def test_what_is_booked_ahead_is_counted(tmp_path: Path) -> None:
    """What has not begun, and is not closed: of ten unit-hours that a guest may have ahead; also after a restart."""
    world = DeployedWorld(SITES, tmp_path, changes={"actor.hub.settings.booked_hours": 2})

    def is_granted(units: int, start: int, hours: int = 2) -> str:
        lease = world.request("web", units, start, start + hours * HOUR)
        world.pass_time(MINUTE)
        return lease if world.lease("web", lease)["state"] == "ticketed" else ""

    assert is_granted(3, 3 * HOUR)
    second = is_granted(2, 6 * HOUR)
    assert second
    assert not is_granted(1, 20 * HOUR)
    world.restart("hub")
    world.pass_time(MINUTE)
    assert not is_granted(1, 20 * HOUR)
    world.command("web", "lease.close", lease=second)
    world.pass_time(MINUTE)
    assert is_granted(2, 20 * HOUR, 1)
    assert not is_granted(3, 30 * HOUR, 1)
    world.run_until(3 * HOUR + MINUTE)  # the first one has begun
    assert is_granted(3, 30 * HOUR)
    assert not is_granted(3, 40 * HOUR, 1)


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


def test_who_has_what_when(world: DeployedWorld) -> None:
    """The broker knows what is booked of which class, the site its units; what is over, or of another type, is not
    shown. A lease that is renewed with as many units is one stretch.
    """
    world.run_until(3 * HOUR)
    (lease,) = world.query("web", "leases")
    asked = {"start": HOUR, "end": 9 * HOUR, "step": HOUR}
    found = world.query("hub", "calendar", **asked, site="north")
    (entry,) = found["entries"]
    assert (entry["lease"], entry["holder"], entry["start"], entry["end"]) == (lease["id"], "web", 2 * HOUR, 4 * HOUR)
    steps = {one["properties"]["rack"]: one["steps"] for one in found["classes"]}
    assert steps == {
        "a": [[0, 2, 0, 2], [1, 2, 2, 0], [3, 2, 0, 2]],
        "b": [[0, 1, 0, 1], [1, 1, 1, 0], [3, 1, 0, 1]],
    }
    racks = {one["class"]: one["properties"]["rack"] for one in found["classes"]}
    assert {racks[one["class"]]: one["units"] for one in entry["classes"]} == {"a": 2, "b": 1}
    site = world.query("north", "calendar", **asked)
    assert sorted(site["entries"][0]["on"]) == ["a-0", "a-1", "b-0"]
    assert [one["unit"] for one in site["units"]] == ["a-0", "a-1", "b-0"]
    assert world.query("north", "calendar", site="south")["entries"] == []
    named = world.query("web", "calendar", **asked)["entries"]
    assert [(one["lease"], one["name"], one["units"]) for one in named] == [(lease["id"], lease["name"], 3)]
    for actor in ("hub", "north", "web"):
        assert world.query(actor, "calendar", start=5 * HOUR, end=6 * HOUR)["entries"] == []
        assert world.query(actor, "calendar", type="gpu")["entries"] == []
    world.command("web", "lease.extend", lease=lease["id"], end=6 * HOUR)
    world.run_until(3 * HOUR + HOUR // 2)
    (renewed,) = world.query("hub", "calendar", **asked)["entries"]
    assert (renewed["start"], renewed["end"]) == (2 * HOUR, 6 * HOUR)
    with pytest.raises(CommandError, match="end: expected an instant after the start, at most 10000 steps after it"):
        world.query("hub", "calendar", start=0, end=10_001, step=1)
