"""Units of several classes, from a site's inventory over brokers to leases: what is ticketed can be had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekit.cli.broker import calendars
from leasekit.cli.peer import difference_in_words
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.leases import authority as au
from leasekit.core.leases import service_manager as sm
from leasekit.core.properties import attributes
from leasekit.core.protocol.messages import ClaimReport, Offer
from leasekit.core.reasons import words
from leasekit.core.steps import Command
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant, Term

RACKS = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 3
prefix = "a-"
properties = { cpu = "8" }
unit_properties = { rack = "a" }
[[actor.site.inventory]]
type = "vm"
units = 4
prefix = "b-"
properties = { cpu = "8" }
unit_properties = { rack = "b" }
[[actor.site.delegation]]
broker = "upper"
type = "vm"
length = "1d"
[actor.upper]
role = "broker"
mapper = { name = "MAPPER" }
[actor.web]
role = "guest"
settings.default_broker = "upper"
[actor.batch]
role = "guest"
settings.default_broker = "upper"
"""
LOWER = """
[[actor.upper.delegation]]
broker = "lower"
type = "vm"
units = 5
length = "12h"
[actor.lower]
role = "broker"
mapper = { name = "MAPPER" }
[actor.below]
role = "guest"
settings.default_broker = "lower"
"""
MAPPERS = ["fcfs", "timetable", "backfill", "priority", "fair_share"]


def world_of(folder: Path, mapper: str = "fcfs", text: str = RACKS) -> DeployedWorld:
    return DeployedWorld(text.replace("MAPPER", mapper), folder)


def ask(world: DeployedWorld, units: int, start: Instant, end: Instant, text: str = "", **more: Any) -> dict[str, Any]:
    """What became of a request for units that a filter takes, a second later."""
    guest = more.pop("guest", "web")
    properties = {"filter": text, **more.pop("properties", {})} if text else more.pop("properties", {})
    lease = world.request(guest, units, start, end, properties=properties, **more)
    world.pass_time(SECOND)
    return world.lease(guest, lease)


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_question_is_answered_by_class(tmp_path: Path, mapper: str) -> None:
    """The classes of a dry run's answer are those that the request gets then."""
    world = world_of(tmp_path, mapper)
    start, wishes = world.now + MINUTE, [(5, {}), (2, {"filter": "rack == a"}), (1, {"filter": "rack == b"})]
    for units, properties in wishes:
        wish = {"type": "vm", "units": units, "term": [start, start + HOUR], "properties": properties}
        world.feed("web", [Command(units, "lease.dry_run", wish)])
        world.pass_time(SECOND)
        told = world.replies.pop(units).result
        lease = ask(world, units, start, start + HOUR, properties.get("filter", ""))
        (claim,) = world.lease("upper", lease["id"])["claims"]
        assert claim["classes"] == told["classes"], told
        start += 2 * HOUR


def racks(world: DeployedWorld, lease: str) -> Counter[str]:
    """How many of a lease's units at its site are of which rack."""
    return Counter(name[0] for name in world.lease("site", lease)["units"])


@pytest.mark.parametrize("mapper", MAPPERS)
def test_what_is_reserved_can_be_had(tmp_path: Path, mapper: str) -> None:
    """Two reservations of three of four units can't both be granted, and none of what there is not."""
    world = world_of(tmp_path, mapper)
    start, end = world.now + HOUR, world.now + 2 * HOUR
    first = ask(world, 3, start, end, "rack == b")
    assert first["state"] == sm.TICKETED
    second = ask(world, 3, start, end, "rack == b", guest="batch")
    assert second["state"] == sm.FAILED and "1 free" in second["reason"]
    none = ask(world, 1, start, end, "rack == z", guest="batch")
    assert none["state"] == sm.FAILED and "rack" in none["reason"]
    wish = {"type": "vm", "units": 1, "term": [start, end], "properties": {"filter": "rack =="}}
    assert world.command("batch", "lease.request", **wish).error.startswith("filter: character 8: found the end")
    third = ask(world, 3, start, end, "rack == a", guest="batch")
    fourth = ask(world, 1, start, end, guest="batch")
    assert ask(world, 1, start, end, guest="batch")["state"] == sm.FAILED
    world.run_until(start + MINUTE)
    assert racks(world, first["id"]) == {"b": 3}
    assert racks(world, third["id"]) == {"a": 3}
    assert racks(world, fourth["id"]) == {"b": 1}
    assert world.broker("upper").errors == [] and world.site().errors == []


@pytest.mark.parametrize(("more", "taken"), [(', gflops = "900", watts = "300"', {"a": 3, "b": 1}), ("", {"b": 4})])
@pytest.mark.parametrize("mapper", MAPPERS)
def test_units_that_compute_most_with_a_watt_go_first(
    tmp_path: Path, mapper: str, more: str, taken: dict[str, int]
) -> None:
    """Of a request that takes any; the largest class goes first where nothing is said."""
    world = world_of(tmp_path, mapper, RACKS.replace('rack = "a"', f'rack = "a"{more}'))
    start = world.now + MINUTE
    lease = ask(world, 4, start, start + HOUR)
    world.run_until(start + MINUTE)
    assert racks(world, lease["id"]) == taken


def test_operators_see_classes(tmp_path: Path) -> None:
    """What is free, and what is taken over time, is told by class, of leases and of what is delegated on; so is what
    each claim counts, also of what was given and of which no ticket came yet.
    """
    world = world_of(tmp_path, text=RACKS + LOWER)
    start = world.now + HOUR
    assert [(one["state"], one["holder_name"]) for one in world.query("site", "claims")] == [("given", "upper")]
    ask(world, 2, start, start + HOUR, "rack == a")
    (source,) = world.query("upper", "sources")
    (calendar,) = calendars(
        [source], world.query("upper", "leases"), world.query("upper", "delegations"), Term(start, start + HOUR)
    )
    lower = Counter(dict(decode_ticket(next(iter(world.broker("upper").issued.given.values())).ticket).leaf.classes))
    for one in calendar["classes"]:
        mine = 2 if one["properties"]["rack"] == "a" else 0
        assert [step["taken"] for step in one["steps"]] == [mine + lower[bytes.fromhex(one["class"])]]
    world.run_until(start + MINUTE)
    claims = world.query("site", "claims")
    assert {one["state"] for one in claims} == {"seen", "redeemed"}
    for claim in claims:
        assert sum(one["units"] for one in claim["classes"]) == claim["units"]


def test_a_lease_is_moved_to_another_unit_of_its_class(tmp_path: Path) -> None:
    """Without one nothing is moved: the unit would come back. One that is drained leaves for what there is."""
    world = world_of(tmp_path)
    lease = ask(world, 4, world.now, world.now + HOUR, "rack == b")["id"]
    world.pass_time(MINUTE)
    units = list(world.lease("site", lease)["units"])
    refused = world.command("site", "unit.move", unit="b-0").error
    assert "no other unit of type 'vm', and of its class, is free" in refused
    world.pass_time(MINUTE)
    assert world.lease("site", lease)["units"] == units
    world.command("site", "maintenance.add", units=["b-0"])
    assert not world.command("site", "unit.move", unit="b-0").error
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"b": 3, "a": 1}
    assert not world.command("site", "maintenance.remove", window=world.query("site", "maintenance")[0]["window"]).error
    a = next(name for name in world.lease("site", lease)["units"] if name.startswith("a"))
    assert not world.command("site", "unit.move", unit=a).error
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"b": 4}


@pytest.mark.parametrize("mapper", MAPPERS)
def test_units_of_several_classes_are_one_lease(tmp_path: Path, mapper: str) -> None:
    """A lease that takes any gets some of each; it goes on with the units that it has, and gives up some of them."""
    world = world_of(tmp_path, mapper)
    now = world.now
    lease = ask(world, 5, now, now + HOUR)["id"]
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"b": 4, "a": 1}
    held = world.guest("web").leases[lease].approved
    assert held is not None
    assert sorted(units for _, units in decode_ticket(held.ticket).leaf.classes) == [1, 4]
    units = list(world.lease("site", lease)["units"])
    other = ask(world, 2, now + HOUR, now + 2 * HOUR, "rack == b", guest="batch")
    assert other["state"] == sm.TICKETED
    refused = world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR)
    assert not refused.error
    world.pass_time(SECOND)
    assert world.lease("web", lease)["end"] == now + HOUR, "its units of rack b are another's then"
    assert not world.command("batch", "lease.close", lease=other["id"]).error
    world.pass_time(MINUTE)
    assert not world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR, units=6).error
    world.run_until(now + HOUR + MINUTE)
    assert racks(world, lease) == {"b": 4, "a": 2} and set(units) < set(world.lease("site", lease)["units"])
    assert not world.command("web", "lease.modify", lease=lease, end=now + 2 * HOUR, units=2).error
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE
    assert sum(racks(world, lease).values()) == 2
    assert set(world.lease("site", lease)["units"]) < set(units) | {"a-1"}
    world.run_until(now + 3 * HOUR)
    assert ask(world, 7, world.now, world.now + HOUR)["state"] != sm.FAILED
    assert world.broker("upper").errors == [] and world.site().errors == []


def test_classes_are_passed_on(tmp_path: Path) -> None:
    """A broker gives some units of each class to another one, and each counts what it has of each."""
    world = world_of(tmp_path, text=RACKS + LOWER)
    (offer,) = world.letters(Offer, "upper", "lower")
    leaf = decode_ticket(offer.ticket).leaf
    named = attributes(offer.properties, offer.classes)
    assert {named[class_]["rack"]: units for class_, units in leaf.classes} == {"b": 4, "a": 1}
    assert offer.properties == {"cpu": "8"}
    start, end = world.now + HOUR, world.now + 2 * HOUR
    assert ask(world, 1, start, end, "rack == b")["state"] == sm.FAILED
    below = ask(world, 4, start, end, "rack == b", guest="below")
    assert below["state"] == sm.TICKETED
    rows = {row["source"]: row for row in world.query("lower", "sources")}
    ((_, row),) = rows.items()
    assert {one["properties"]["rack"]: one["units"] for one in row["classes"]} == {"a": 1, "b": 4}
    for name in ("lower", "upper", "site"):
        world.restart(name)
    world.run_until(start + MINUTE)
    assert racks(world, below["id"]) == {"b": 4}
    assert ask(world, 1, world.now, end, "rack == b", guest="below")["state"] == sm.FAILED


def test_a_filter_of_the_configuration_reserves_as_well(tmp_path: Path) -> None:
    """Where a request has none of its own; one that names units is for the site alone."""
    world = world_of(tmp_path)
    start, end = world.now + HOUR, world.now + 2 * HOUR
    first = ask(world, 3, start, end, configuration={"filter": "rack == a"})
    assert ask(world, 1, start, end, configuration={"filter": "rack == a"})["state"] == sm.FAILED
    named = ask(world, 1, start, end, "rack == b", configuration={"filter": "unit == b-2"})
    world.run_until(start + MINUTE)
    assert racks(world, first["id"]) == {"a": 3}
    assert world.lease("site", named["id"])["units"] == ["b-2"]


def test_one_of_another_class_stands_in(tmp_path: Path) -> None:
    """For a unit that failed, where none of its class is left: that is said, and nobody else is given that unit."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 3, now, now + 2 * HOUR, "rack == a")["id"]
    world.pass_time(MINUTE)
    assert not world.command("site", "unit.fail", unit="a-0").error
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"a": 2, "b": 1}
    record = world.site().leases[lease]
    assert record.state == au.ACTIVE and "has other attributes" in words(record.reason)
    calendar = world.site().calendars.of("vm")
    assert calendar.lacking(record.term) != (), "a-0 is missing in its class"
    world.restart("site")
    world.pass_time(MINUTE)
    assert sorted(calendar.tables) == sorted(world.site().calendars.of("vm").tables)
    assert world.site().calendars.of("vm").free_at(world.now) == calendar.free_at(world.now) == 3
    assert not world.command("web", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    assert world.site().calendars.of("vm").free_at(world.now) == 6


def test_units_whose_attributes_change_honour_what_was_given(tmp_path: Path) -> None:
    """Tickets of before are good, leases go on, and nobody else is given these units meanwhile; what is given anew is
    by what they are now.
    """
    world = world_of(tmp_path)
    start, end = world.now + HOUR, world.now + 2 * HOUR
    running = ask(world, 1, world.now, end, "rack == a")["id"]
    world.pass_time(MINUTE)
    later = ask(world, 2, start, end, "rack == a")["id"]
    file = tmp_path / "world.toml"
    file.write_text(file.read_text().replace('rack = "a"', 'rack = "a", ssd = "1T"'))
    from leasekit.config.load import load

    world.deployment = load(file, tmp_path / "state")
    world.restart("site")
    world.pass_time(MINUTE)
    (told,) = world.query("site", "status")["delegations"]
    assert (told["code"], told["held"]) == ("old_attributes", 7)
    assert "`reclaim site/vm@upper`, then `delegate upper vm`" in difference_in_words(told)
    assert ask(world, 1, start, end, "rack == a", guest="batch")["state"] == sm.FAILED
    world.run_until(start + MINUTE)
    assert racks(world, later) == {"a": 2} and racks(world, running) == {"a": 1}
    assert world.site().errors == []
    assert not world.command("site", "delegation.reclaim", delegation="site/vm@upper", deadline=None).error
    world.run_until(end + HOUR)
    assert not world.command("site", "delegation.give", broker="upper", type="vm").error
    world.pass_time(MINUTE)
    lease = ask(world, 3, world.now, world.now + HOUR, "ssd == 1T")
    assert lease["state"] != sm.FAILED, lease["reason"]
    assert "old_attributes" not in {one["code"] for one in world.query("site", "status")["delegations"]}
    world.restart("site")
    assert all(len(unit.classes) == 1 for unit in world.site().units)


def test_who_gives_too_much_of_one_class_is_named(tmp_path: Path) -> None:
    """Though it gives no more in all than it has."""
    world = world_of(tmp_path)
    now = world.now
    broker = world.broker("upper")
    (source,) = broker.book.of_type("vm")
    class_ = next(name for name, one in attributes(source.properties, source.classes).items() if one["rack"] == "a")
    first = ask(world, 3, now + HOUR, now + 2 * HOUR, "rack == a")["id"]
    broker.book.table(source.id).open(class_).add_capacity(source.term, 3)
    second = ask(world, 3, now + HOUR, now + 2 * HOUR, "rack == a", guest="batch")["id"]
    world.run_until(now + HOUR + MINUTE)
    assert racks(world, first) == {"a": 3}
    assert world.lease("batch", second)["state"] == sm.FAILED
    assert any("one class of them" in words(report.reason) for report in world.letters(ClaimReport, "site", "upper"))


def test_a_window_takes_units_of_their_class(tmp_path: Path) -> None:
    """Over its time none of that class is granted, and all of the others."""
    world = world_of(tmp_path)
    start, end = world.now + HOUR, world.now + 2 * HOUR
    reply = world.command("site", "maintenance.add", units=["a-0", "a-1"], start=start, end=end, reason="works")
    assert not reply.error
    world.pass_time(MINUTE)
    assert ask(world, 2, start, end, "rack == a")["state"] == sm.FAILED
    assert ask(world, 1, start, end, "rack == a")["state"] == sm.TICKETED
    assert ask(world, 4, start, end, "rack == b")["state"] == sm.TICKETED
    world.restart("upper")
    assert ask(world, 1, start, end)["state"] == sm.FAILED
    assert ask(world, 2, end, end + HOUR, "rack == a")["state"] == sm.TICKETED


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_lease_whose_class_is_in_maintenance_grows_by_units_of_others(tmp_path: Path, mapper: str) -> None:
    """What it has is its own, however few units of that class its broker may grant now."""
    world = world_of(tmp_path, mapper)
    now, end = world.now, world.now + HOUR
    lease = ask(world, 1, now, end)["id"]
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"b": 1}
    units = [f"b-{number}" for number in range(4)]
    assert not world.command("site", "maintenance.add", units=units, start=world.now, end=end, reason="works").error
    world.pass_time(MINUTE)
    assert not world.command("web", "lease.modify", lease=lease, end=end, units=3).error
    world.pass_time(MINUTE)
    assert racks(world, lease) == {"a": 2, "b": 1} and world.broker("upper").errors == []


@pytest.mark.parametrize("mapper", MAPPERS)
def test_who_takes_any_class_leaves_the_others_of_its_group_what_they_need(tmp_path: Path, mapper: str) -> None:
    """Whichever of a group is asked for first."""
    world = world_of(tmp_path, mapper)
    start, end = world.now + HOUR, world.now + 2 * HOUR
    leases = {}
    for number, (units, text) in enumerate(((3, ""), (2, "rack == b"), (2, "rack == a"))):
        properties = {"group_id": "g", **({"filter": text} if text else {}), **({} if number else {"lease_count": "3"})}
        leases[text] = world.request("web", units, start, end, properties=properties)
    world.pass_time(SECOND)
    assert [world.lease("web", lease)["state"] for lease in leases.values()] == [sm.TICKETED] * 3
    world.run_until(start + MINUTE)
    assert [racks(world, leases[text]) for text in ("rack == b", "rack == a", "")] == [
        {"b": 2},
        {"a": 2},
        {"b": 2, "a": 1},
    ]
    assert world.broker("upper").errors == []


ROUNDS = RACKS.replace('name = "MAPPER"', 'name = "MAPPER", gather = "10s"')
"""What is asked for in ten seconds is decided in one turn."""


def round_of(world: DeployedWorld) -> None:
    """Requests of before are decided, and those of the next seconds together."""
    world.run_until(world.now // (10 * SECOND) * 10 * SECOND + 11 * SECOND)


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_lease_that_grows_has_more_of_its_own_classes_first(tmp_path: Path, mapper: str) -> None:
    """So its broker does, and so its mapper counts: what it grants to others in that turn is there."""
    world = world_of(tmp_path, mapper, ROUNDS)
    now = world.now
    lease = world.request("web", 1, now, now + HOUR, properties={"filter": "rack == a"})
    round_of(world)
    round_of(world)
    end = world.now + 2 * HOUR
    assert not world.command("web", "lease.extend", lease=lease, units=2, end=end).error
    long = world.request("batch", 4, world.now + MINUTE, end, properties={"filter": "rack == b"})
    rest = world.request("batch", 1, world.now + MINUTE, end)
    round_of(world)
    assert [world.lease("batch", one)["state"] for one in (long, rest)] == [sm.TICKETED] * 2
    world.run_until(now + HOUR + MINUTE)
    assert racks(world, lease) == {"a": 2} and racks(world, long) == {"b": 4} and racks(world, rest) == {"a": 1}
    assert world.broker("upper").errors == []


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_lease_goes_on_with_units_that_are_free_for_all_of_its_term(tmp_path: Path, mapper: str) -> None:
    """Not with those of one class as long as it has what it has, and with those of another after that."""
    world = world_of(tmp_path, mapper)
    now, end, later = world.now, world.now + HOUR, world.now + 2 * HOUR
    lease = ask(world, 1, now, end, "rack == a")["id"]
    for units, start, until, text in ((4, now, end, "b"), (1, now, end, "a"), (2, end, later, "a")):
        assert ask(world, units, max(start, world.now), until, f"rack == {text}", guest="batch")["state"] != sm.FAILED
    for units, granted in ((2, 1), (1, 1)):
        assert not world.command("web", "lease.modify", lease=lease, units=units, end=later).error
        world.pass_time(MINUTE)
        assert world.lease("web", lease)["approved"]["units"] == granted
        assert (world.lease("web", lease)["end"] == later) is (units == granted)
    assert world.broker("upper").errors == []


@pytest.mark.parametrize("mapper", MAPPERS)
def test_an_extend_says_of_which_classes_it_wants_more(tmp_path: Path, mapper: str) -> None:
    """It keeps the units that it has, whatever its filter says, and has no others of their class."""
    world = world_of(tmp_path, mapper)
    now = world.now
    lease = ask(world, 1, now, now + HOUR, "rack == a")["id"]
    world.pass_time(MINUTE)
    wanted = {"lease": lease, "units": 6, "end": now + 2 * HOUR, "properties": {"filter": "rack == b"}}
    assert not world.command("web", "lease.extend", **wanted).error
    world.pass_time(MINUTE)
    assert "5 free" in words(world.guest("web").leases[lease].reason)
    assert not world.command("web", "lease.extend", **{**wanted, "units": 5}).error
    world.run_until(now + HOUR + MINUTE)
    assert racks(world, lease) == {"a": 1, "b": 4} and world.broker("upper").errors == []


FILTERS = st.sampled_from(["", "", "rack == a", "rack == b"])
ASKED = st.tuples(st.just("request"), st.integers(1, 5), st.integers(0, 6), st.integers(1, 6), FILTERS)
CHANGED = st.tuples(
    st.sampled_from(["extend", "modify"]), st.integers(0, 5), st.integers(1, 5), st.integers(1, 6), FILTERS
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(mapper=st.sampled_from(MAPPERS), turns=st.lists(st.lists(ASKED | CHANGED, max_size=5), min_size=2, max_size=6))
def test_what_a_mapper_decides_of_classes_can_be_carried_out(
    tmp_path: Path, mapper: str, turns: list[list[tuple[str, int, int, int, str]]]
) -> None:
    """Of what is asked for at once of any classes: new leases, extends and modifies, in any order."""
    world = world_of(tmp_path, mapper, ROUNDS)
    leases: list[str] = []
    for turn in turns:
        round_of(world)
        for op, first, second, length, text in turn:
            properties = {"filter": text} if text else {}
            if op == "request":
                start = world.now + 5 * SECOND + second * MINUTE
                leases.append(world.request("web", first, start, start + length * MINUTE, properties=properties))
            elif leases:
                lease = leases[first % len(leases)]
                end = world.guest("web").leases[lease].last_end + length * MINUTE
                more = {"properties": properties} if op == "extend" else {}
                world.command("web", f"lease.{op}", lease=lease, units=second, end=end, **more)
    world.pass_time(HOUR)
    assert world.broker("upper").errors == [] and world.site().errors == []
