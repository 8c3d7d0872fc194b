"""Which units leases to come are planned to get, at a site whose units are leased whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.actors.site.leases import AHEAD
from leasekit.config.load import load
from leasekit.core.reasons import read, words
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Instant, Term

TEXT = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
names = ["a", "b", "c"]
unit_properties = { gpu = "no" }
[[actor.site.inventory]]
type = "vm"
names = ["x", "y"]
unit_properties = { gpu = "yes" }
[[actor.site.delegation]]
broker = "broker"
type = "vm"
[actor.broker]
role = "broker"
[actor.web]
role = "guest"
settings.redeem_lead = "1d"
"""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(TEXT, tmp_path)


def ask(world: DeployedWorld, units: int, start: Instant, length: int = HOUR, **properties: str) -> str:
    """A lease, once its site knows of it."""
    term = [start, start + length]
    reply = world.command("web", "lease.request", type="vm", units=units, term=term, properties=properties)
    assert not reply.error, reply.error
    world.pass_time(SECOND)
    return str(reply.result["id"])


def shown(world: DeployedWorld, lease: str) -> dict[str, Any]:
    return dict(world.query("site", "lease", lease=lease))


def planned(world: DeployedWorld, lease: str) -> list[str]:
    return list(shown(world, lease)["planned"])


def log(world: DeployedWorld, lease: str) -> list[str]:
    """What the site has told of changes of a lease's plan."""
    rows = world.nodes["site"].store.log()
    return [words(read(row.why)) for row in rows if (row.lease, row.event) == (lease, "place")]


def test_a_lease_gets_the_units_that_were_planned(world: DeployedWorld) -> None:
    """The last ones of its class, that leases which start at once do not get; the calendar shows them, and its row."""
    start = world.now + HOUR
    later = ask(world, 2, start, filter="gpu == no")
    now = ask(world, 1, world.now)
    assert planned(world, later) == ["c", "b"] and not planned(world, now)
    (entry,) = [
        one for one in world.query("site", "calendar", start=start, end=start + 1, step=1)["entries"]
        if one["lease"] == later
    ]  # fmt: skip
    assert entry["on"] == ["c", "b"]
    world.restart("site")
    assert planned(world, later) == ["c", "b"]
    world.run_until(start + MINUTE)
    assert shown(world, later)["units"] == ["c", "b"] and not planned(world, later)
    assert not log(world, later)


def test_leases_after_each_other_have_the_same_units_planned(world: DeployedWorld) -> None:
    """Terms that touch do not overlap; where they do units differ, and no two classes are mixed."""
    first = ask(world, 3, world.now + HOUR, filter="gpu == no")
    second = ask(world, 3, world.now + 2 * HOUR, filter="gpu == no")
    beside = ask(world, 2, world.now + HOUR)
    assert planned(world, first) == planned(world, second) == ["c", "b", "a"]
    assert planned(world, beside) == ["y", "x"]


def test_who_starts_soon_has_nothing_planned(world: DeployedWorld) -> None:
    """Its units are chosen when its term starts, as ever."""
    lease = ask(world, 1, world.now + AHEAD - 1)
    assert planned(world, lease) == []
    world.pass_time(2 * MINUTE)
    assert len(shown(world, lease)["units"]) == 1


def test_units_of_another_type_with_the_same_attributes(tmp_path: Path) -> None:
    """They are of the same class, and planned for nobody who asks for another type."""
    gpus = """
[[actor.site.inventory]]
type = "gpu"
names = ["g"]
unit_properties = { gpu = "yes" }
[[actor.site.delegation]]
broker = "broker"
type = "gpu"
"""
    world = DeployedWorld(TEXT.replace("[actor.broker]", f"{gpus}[actor.broker]"), tmp_path)
    start = world.now + HOUR
    term, filter_ = [start, start + HOUR], {"filter": "gpu == yes"}
    first = world.command("web", "lease.request", type="gpu", units=1, term=term).result["id"]
    second = world.command("web", "lease.request", type="vm", units=2, term=term, properties=filter_).result["id"]
    world.pass_time(SECOND)
    assert planned(world, first) == ["g"] and planned(world, second) == ["y", "x"]
    world.run_until(start + MINUTE)
    assert shown(world, first)["units"] == ["g"] and shown(world, second)["units"] == ["y", "x"]


def test_another_takes_a_unit_that_is_planned(world: DeployedWorld) -> None:
    """Whoever needs it sooner gets it, and goes on with it: another is planned, which is an event; or none is."""
    later = ask(world, 1, world.now + HOUR, filter="gpu == no")
    assert planned(world, later) == ["c"]
    long = ask(world, 3, world.now, 30 * MINUTE, filter="gpu == no")
    assert planned(world, later) == ["c"], "it is free again by then"
    world.pass_time(MINUTE)
    end = shown(world, long)["end"]
    assert not world.command("web", "lease.extend", lease=long, units=2, end=end + 2 * HOUR, victims=["a"]).error
    world.run_until(end + MINUTE)
    assert planned(world, later) == ["a"] and log(world, later) == ["a, not c"]
    world.run_until(world.now + HOUR)
    assert shown(world, later)["units"] == ["a"]


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
def test_a_planned_unit_goes_out_of_service(world: DeployedWorld, *, restarts: bool) -> None:
    """For a window over the term, by an operator's word, or for good: others are planned, as long as there are some."""
    start = world.now + HOUR
    later = ask(world, 1, start, filter="gpu == no")
    assert not world.command("site", "maintenance.add", units=["c"], start=start - DAY, end=start).error
    assert planned(world, later) == ["c"], "the window is over by then"
    world.command("site", "maintenance.remove", units=["c"])
    assert not world.command("site", "maintenance.add", units=["c"], start=start + 1, end=start + 2).error
    assert planned(world, later) == ["b"]
    if restarts:
        world.restart("site")
    assert not world.command("site", "unit.disable", unit="b").error
    assert planned(world, later) == ["a"]
    assert not world.command("site", "unit.remove", unit="a").error
    assert planned(world, later) == []
    assert log(world, later) == ["b, not c", "a, not b", "none, not a"]


def test_a_filter_of_the_guest_s_own(world: DeployedWorld) -> None:
    """What that says of units is asked when the term starts: nothing is planned."""
    start = world.now + HOUR
    reply = world.command(
        "web", "lease.request", type="vm", units=1, term=[start, start + HOUR], configuration={"filter": 'unit == "a"'}
    )
    world.pass_time(SECOND)
    assert planned(world, reply.result["id"]) == []
    world.run_until(start + MINUTE)
    assert shown(world, reply.result["id"])["units"] == ["a"]


def test_a_lease_that_is_closed_leaves_its_plan(world: DeployedWorld) -> None:
    """The same units can be planned for the next one."""
    first = ask(world, 3, world.now + HOUR, filter="gpu == no")
    assert not world.command("web", "lease.close", lease=first).error
    world.pass_time(SECOND)
    assert sorted(planned(world, ask(world, 3, world.now + HOUR, filter="gpu == no"))) == ["a", "b", "c"]


def test_a_lease_before_others_has_what_is_free_until_then(world: DeployedWorld) -> None:
    """Units that are planned for later are planned for who comes and goes before."""
    now = world.now
    for hours in (5, 3, 1, 4, 2):
        lease = ask(world, 3, now + hours * HOUR, filter="gpu == no")
        assert sorted(planned(world, lease)) == ["a", "b", "c"]


def test_a_unit_that_the_file_names_no_more_is_planned_for_nobody(world: DeployedWorld, tmp_path: Path) -> None:
    """The site finds another when it starts again."""
    start = world.now + HOUR
    later = ask(world, 1, start, filter="gpu == no")
    assert planned(world, later) == ["c"]
    (tmp_path / "world.toml").write_text(TEXT.replace('"b", "c"', '"b"'))
    world.deployment = load(tmp_path / "world.toml", tmp_path / "state")
    world.restart("site")
    assert planned(world, later) == ["b"] and log(world, later) == ["b, not c"]
    world.run_until(start + MINUTE)
    assert shown(world, later)["units"] == ["b"]


@pytest.mark.parametrize("seed", range(6))
def test_plans_hold_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Of leases of any terms, extended, closed, with units that fail and windows: no unit is planned twice, or beside
    who has it; and what was planned last is what a lease gets.
    """
    rng, world = random.Random(seed), DeployedWorld(TEXT, tmp_path)
    plans: dict[str, list[str]] = {}
    kept = 0
    for _ in range(120):
        term = world.now + rng.choice((0, MINUTE, HOUR, 2 * HOUR)), rng.choice((10 * MINUTE, HOUR, 3 * HOUR))
        kind = rng.choice(
            ("ask", "ask", "ask", "close", "extend", "unit.disable", "unit.enable", "unit.enable", "window")
        )
        live = [one for one in world.site().leases.values() if one.ended < 0]
        if kind == "ask":
            ask(world, rng.randint(1, 3), *term, **rng.choice(({}, {"filter": "gpu == no"})))
        elif kind == "close" and live:
            world.command("web", "lease.close", lease=rng.choice(live).id)
        elif kind == "extend" and live:
            lease = rng.choice(live)
            world.command("web", "lease.extend", lease=lease.id, units=lease.wanted, end=lease.term.end + HOUR)
        elif kind.startswith("unit"):
            world.command("site", kind, unit=rng.choice("abcxy"))
        elif kind == "window":
            world.command("site", "maintenance.add", units=[rng.choice("abcxy")], start=term[0], end=sum(term))
        if rng.random() < 0.1:
            world.restart("site")
        plans |= {one["id"]: one["planned"] for one in world.query("site", "leases") if one["planned"]}
        before = {one.id for one in world.site().leases.values() if one.awaits_mapper}
        world.run_until(world.now + rng.choice((SECOND, MINUTE, HOUR)))
        check(world)
        for id_ in before:
            lease = world.site().leases.get(id_)
            if lease is not None and lease.is_active and id_ in plans and not log(world, id_) and not lease.replaced:
                kept += 1
                assert set(plans[id_]) <= set(lease.units)
    assert kept > 1


def check(world: DeployedWorld) -> None:
    """No unit is planned for two at once, or while somebody has it; each is of a class that its lease is to get."""
    site = world.site()
    coming = [one for one in site.leases.values() if one.awaits_mapper and one.places]
    for lease in coming:
        term = Term(lease.term.start, lease.ends_at)
        assert len(set(lease.places)) == len(lease.places) <= lease.wanted
        for name in lease.places:
            unit = site.units[name]
            assert any(class_ in unit.classes for class_, _ in lease.classes)
            holder = site.leases.get(unit.promised or (unit.lease if unit.is_in_use else ""))
            victim = holder is not None and any(name in later.victims for later in holder.accepted)
            assert holder is None or victim or holder.ends_at <= term.start, (name, lease.id)
            for other in coming:
                apart = not Term(other.term.start, other.ends_at).overlaps(term)
                assert other is lease or name not in other.places or apart, (name, lease.id, other.id)
