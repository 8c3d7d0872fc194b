"""What the broker tells its mapper and does for it: accounts that outlive a restart, units that are ready at the start,
units of a site that differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.actors.broker.usage import UsageBook
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import Granted
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Action
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Instant, Term
from leasekit.emulation.world import Outcome
from leasekit.stores.sqlite import SqliteStore

SITE = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 4
[[actor.site.delegation]]
broker = "broker"
type = "vm"
length = "1d"
[actor.broker]
role = "broker"
mapper = {MAPPER}
[actor.web]
role = "guest"
[actor.batch]
role = "guest"
"""
PREPARE = 10 * MINUTE
SETUP = 8 * MINUTE


def world_of(folder: Path, mapper: str, text: str = SITE) -> DeployedWorld:
    """A world whose broker has a mapper: its name, or its table."""
    table = mapper if mapper.startswith("{") else f'{{ name = "{mapper}" }}'
    return DeployedWorld(text.replace("{MAPPER}", table), folder)


def settled(world: DeployedWorld, guest: str, units: int, start: Instant, end: Instant, **more: Any) -> dict[str, Any]:
    """A lease that was asked for, a second later."""
    lease = world.request(guest, units, start, end, **more)
    world.pass_time(SECOND)
    return world.lease(guest, lease)


# -- accounts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapper", ["fcfs", "timetable", "backfill", "priority", "fair_share"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_a_quota_counts_what_was_granted_before(tmp_path: Path, mapper: str, restarts: bool) -> None:
    """Units that a holder has, also by a lease for later, count after a restart of the broker as before it."""
    world = world_of(tmp_path, f'{{ name = "{mapper}", quotas = [{{ units = 3 }}] }}')
    now = world.now
    assert settled(world, "web", 2, now, now + HOUR)["state"] != sm.FAILED
    assert settled(world, "web", 3, now + 2 * HOUR, now + 3 * HOUR)["state"] == sm.TICKETED
    if restarts:
        world.restart("broker")
    refused = settled(world, "web", 2, now + MINUTE, now + HOUR)
    assert refused["state"] == sm.FAILED
    assert "web's quota of 'vm' is 3 units at once: 2 are held" in refused["reason"]
    assert "3 are held" in settled(world, "web", 1, now + 2 * HOUR, now + 3 * HOUR)["reason"]
    assert settled(world, "batch", 2, now + MINUTE, now + HOUR)["state"] != sm.FAILED
    assert settled(world, "web", 3, now + 4 * HOUR, now + 5 * HOUR)["state"] == sm.TICKETED
    assert world.broker("broker").errors == []


def test_what_was_given_back_does_not_count(tmp_path: Path) -> None:
    """A lease that its guest closed early has used what it had until then, and no more."""
    world = world_of(tmp_path, '{ name = "fcfs", quotas = [{ unit_hours = 4 }] }')
    now = world.now
    lease = settled(world, "web", 2, now, now + 2 * HOUR)["id"]
    assert "unit-hours" in settled(world, "web", 1, now + MINUTE, now + HOUR)["reason"]
    world.run_until(now + HOUR)
    assert not world.command("web", "lease.close", lease=lease).error
    world.pass_time(MINUTE)
    start = world.now + MINUTE
    assert "unit-hours" in settled(world, "web", 3, start, start + HOUR)["reason"]
    assert settled(world, "web", 1, start, start + HOUR)["state"] == sm.TICKETED


def move_to_file(world: DeployedWorld, file: Path) -> None:
    """The broker's state goes into an SQLite store."""
    node = world.nodes["broker"]
    store = SqliteStore(file)
    store.commit([Change(table, row[0], row) for table, rows in node.store.load().items() for row in rows])
    node.store = store


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_what_leases_of_the_past_have_used_counts(tmp_path: Path, restarts: bool, kept: str) -> None:
    """A quota's period counts leases that were over and forgotten before the broker was restarted, as if it had not
    been; a new period doesn't.
    """
    text = SITE.replace('length = "1d"', 'length = "30d"').replace('horizon = "1d"', 'horizon = "30d"')
    quota = '{ unit_hours = 5, period = "7d" }'
    world = world_of(tmp_path, f'{{ name = "backfill", quotas = [{quota}] }}', text)
    if kept == "sqlite":
        move_to_file(world, tmp_path / "broker.db")
    now = world.now
    lease = settled(world, "web", 2, now, now + HOUR)["id"]
    other = settled(world, "web", 1, now + 2 * HOUR, now + 4 * HOUR)["id"]
    world.run_until(now + 3 * HOUR)
    assert not world.command("web", "lease.close", lease=other).error
    world.run_until(now + 3 * DAY)
    assert lease not in world.broker("broker").leases
    assert other not in world.broker("broker").leases
    for _ in range(2 if restarts else 0):
        world.restart("broker")
    now = world.now
    short = settled(world, "web", 3, now, now + HOUR)["reason"]
    assert "5 unit-hours in 7d: " in short
    assert settled(world, "batch", 3, now, now + HOUR)["state"] != sm.FAILED
    assert settled(world, "web", 1, now + 2 * HOUR, now + 3 * HOUR)["state"] == sm.TICKETED
    world.run_until(7 * DAY + HOUR)
    if restarts:
        world.restart("broker")
    assert settled(world, "web", 4, world.now, world.now + HOUR)["state"] != sm.FAILED
    assert world.broker("broker").errors == []


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_fair_share_remembers_what_is_over(tmp_path: Path, restarts: bool) -> None:
    """Who had more before, by leases that are long forgotten, goes after who had less."""
    text = SITE.replace('length = "1d"', 'length = "30d"').replace('horizon = "1d"', 'horizon = "30d"')
    world = world_of(tmp_path, "fair_share", text)
    now = world.now
    settled(world, "web", 3, now, now + 4 * HOUR)
    settled(world, "batch", 1, now, now + 4 * HOUR)
    world.run_until(now + 3 * DAY)
    assert world.broker("broker").leases == {}
    if restarts:
        world.restart("broker")
    now = world.now
    later = {"deferrable": "true", "latest_start": str(now + 20 * HOUR)}
    blocks = settled(world, "batch", 4, now, now + MINUTE)["id"]
    first = world.request("web", 4, now, now + HOUR, properties=later)
    world.pass_time(SECOND)
    second = world.request("batch", 4, now, now + HOUR, properties=later)
    world.run_until(now + 10 * MINUTE)
    assert world.lease("batch", blocks)["state"] in (sm.CLOSED, sm.FAILED)
    assert world.lease("batch", second)["state"] == sm.ACTIVE
    assert world.lease("web", first)["state"] == sm.NASCENT


def test_use_that_is_too_old_to_count_is_forgotten() -> None:
    """Rows hold many claims each, and go when the last of them is older than any period; a restart reads the rest."""
    book = UsageBook()
    rows: dict[str, Row] = {}

    def write() -> None:
        for change in book.take_changes():
            if change.row is None:
                del rows[change.key]
            else:
                rows[change.key] = change.row

    for hour in range(60 * 24):
        term = Term(hour * HOUR, (hour + 1) * HOUR)
        claim = Granted(bytes(32), "s", f"l{hour}", 2, term, term.end, False, 1)
        book.replace("web", "vm", (), (claim,), hour * HOUR)
        book.replace("web", "vm", (claim,), (), (hour + 1) * HOUR)
        write()
    assert len(rows) <= 60 * 24 // 256 + 1
    now = 60 * DAY
    again = UsageBook()
    again.restore([rows[id_] for id_ in sorted(rows)], now)
    gone = {change.key for change in again.take_changes() if change.row is None}
    assert gone == {id_ for id_, row in rows.items() if row[3] <= now - 31 * DAY} != set()
    seen = list(again.held("web", "vm", Term(now - 31 * DAY, now + DAY)))
    assert sum(term.length * units for term, units in seen) == 2 * 31 * DAY
    assert list(again.held("batch", "vm", Term(0, now))) == []


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_fair_share_goes_by_what_each_has(tmp_path: Path, restarts: bool) -> None:
    """Of two that wait, the one that has had less starts first, also where the broker was restarted in between."""
    world = world_of(tmp_path, "fair_share")
    now = world.now
    later = {"deferrable": "true", "latest_start": str(now + 20 * HOUR)}
    settled(world, "web", 3, now, now + 4 * HOUR)
    settled(world, "batch", 1, now, now + 4 * HOUR)
    # web asks first, but has three times as much.
    first = world.request("web", 4, now, now + HOUR, properties=later)
    world.pass_time(SECOND)
    second = world.request("batch", 4, now, now + HOUR, properties=later)
    world.pass_time(SECOND)
    if restarts:
        world.restart("broker")
    world.run_until(now + 4 * HOUR + MINUTE)
    assert world.lease("batch", second)["state"] == sm.ACTIVE
    assert world.lease("web", first)["state"] == sm.NASCENT
    world.run_until(now + 6 * HOUR)
    assert world.lease("web", first)["state"] in (sm.ACTIVE, sm.CLOSED)


# -- preparation -----------------------------------------------------------------------------------------------------


class Slow:
    """A site whose units take minutes to set up, and who had which of them when."""

    def __init__(self, world: DeployedWorld) -> None:
        self.began: dict[str, Instant] = {}
        self._world = world
        world.nodes["site"].model = self._outcome

    def _outcome(self, action: Action) -> Outcome:
        if action.op == "setup":
            self.began[action.lease] = self._world.now
        return Outcome(SETUP if action.op == "setup" else SECOND, True, {}, "")


@pytest.mark.parametrize("mapper", ["fcfs", "timetable", "backfill", "priority", "fair_share"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_units_are_up_at_the_start(tmp_path: Path, mapper: str, restarts: bool) -> None:
    """With ``prepare`` the site sets the units up before the term that was asked for; without, at its start."""
    world = world_of(tmp_path, mapper)
    site = Slow(world)
    start = world.now + HOUR
    ready = settled(world, "web", 2, start, start + HOUR, properties={"prepare": "10m"})
    plain = settled(world, "batch", 2, start, start + HOUR)
    if restarts:
        for name in ("broker", "site", "web"):
            world.restart(name)
        world.nodes["site"].model = site._outcome
    world.run_until(start - PREPARE - SECOND)
    assert site.began == {}
    world.run_until(start - SECOND)
    assert list(site.began) == [ready["id"]]
    assert start - PREPARE <= site.began[ready["id"]] <= start - PREPARE + MINUTE
    up = [unit["state"] for unit in world.query("site", "units") if unit["lease"] == ready["id"]]
    assert up == ["active", "active"]
    world.run_until(start + MINUTE)
    assert world.lease("web", ready["id"])["state"] == sm.ACTIVE
    assert world.lease("batch", plain["id"])["state"] != sm.ACTIVE
    world.run_until(start + SETUP + MINUTE)
    assert world.lease("batch", plain["id"])["state"] == sm.ACTIVE
    assert world.lease("web", ready["id"])["end"] == start + HOUR
    assert world.broker("broker").errors == world.site().errors == []


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_nobody_else_has_them_during_preparation(tmp_path: Path, restarts: bool) -> None:
    """A request that needs the units within the time to prepare is refused, with a fit before or after; one that ends
    as the preparation begins is granted, and its units change hands there.
    """
    world = world_of(tmp_path, "fcfs")
    start = world.now + HOUR
    ready = settled(world, "web", 3, start, start + HOUR, properties={"prepare": "10m"})
    assert ready["state"] == sm.TICKETED
    if restarts:
        world.restart("broker")
    begin = start - PREPARE
    refused = settled(world, "batch", 2, begin - MINUTE, begin + MINUTE)
    assert refused["state"] == sm.FAILED and str(start + HOUR) in refused["reason"]
    assert settled(world, "batch", 1, begin - MINUTE, begin + MINUTE)["state"] == sm.TICKETED
    touching = settled(world, "batch", 3, begin - 20 * MINUTE, begin)
    assert touching["state"] == sm.TICKETED, touching["reason"]
    world.run_until(begin - SECOND)
    assert world.lease("batch", touching["id"])["state"] == sm.ACTIVE
    world.run_until(begin + MINUTE)
    assert world.lease("batch", touching["id"])["state"] == sm.CLOSED
    assert sum(unit["lease"] == ready["id"] for unit in world.query("site", "units")) == 3
    world.run_until(start)
    assert world.lease("web", ready["id"])["state"] == sm.ACTIVE


def test_too_late_to_prepare(tmp_path: Path) -> None:
    """A request that starts before its units could be ready is refused, and told when they could."""
    world = world_of(tmp_path, "fcfs")
    start = world.now + 5 * MINUTE
    refused = settled(world, "web", 1, start, start + HOUR, properties={"prepare": "10m"})
    assert refused["state"] == sm.FAILED
    later = {"prepare": "10m", "deferrable": "true", "latest_start": str(start + HOUR)}
    deferred = settled(world, "web", 1, start, start + HOUR, properties=later)
    assert deferred["state"] in (sm.TICKETED, sm.ACTIVE)
    assert deferred["end"] >= world.now + PREPARE + HOUR - MINUTE


# -- units that differ -----------------------------------------------------------------------------------------------

RACKS = """
units = 2
prefix = "a-"
unit_properties = { rack = "a", memory_gb = "64" }
[[actor.site.inventory]]
type = "vm"
units = 2
prefix = "b-"
unit_properties = { rack = "b", memory_gb = "256" }
"""


def test_a_lease_gets_units_that_it_asks_for(tmp_path: Path) -> None:
    """The configuration property ``filter`` chooses among a site's units; drivers are told what is theirs alone."""
    world = world_of(tmp_path, "fcfs", SITE.replace("units = 4\n", RACKS))
    told: dict[str, str] = {}

    def outcome(action: Action) -> Outcome:
        told[action.unit] = action.properties.get("rack", "")
        return Outcome(SECOND, True, {}, "")

    world.nodes["site"].model = outcome
    now = world.now
    wish = {"filter": "memory_gb >= 100 and rack != a"}
    lease = settled(world, "web", 2, now, now + HOUR, configuration=wish)["id"]
    world.pass_time(MINUTE)
    assert {unit["unit"] for unit in world.lease("web", lease)["units"]} == {"b-0", "b-1"}
    assert told == {"b-0": "b", "b-1": "b"}
    refused = settled(world, "batch", 1, now, now + HOUR, configuration=wish)
    assert refused["state"] == sm.FAILED
    assert "0 free at site" in refused["reason"]
    world.pass_time(MINUTE)
    plain = settled(world, "batch", 2, world.now, now + HOUR)["id"]
    world.pass_time(MINUTE)
    assert {unit["unit"] for unit in world.lease("batch", plain)["units"]} == {"a-0", "a-1"}
    assert world.site().errors == []


def test_a_restarted_site_knows_its_units(tmp_path: Path) -> None:
    """What is theirs alone comes from the deploy file: a lease that grows after a restart still gets what it wants."""
    world = world_of(tmp_path, "fcfs", SITE.replace("units = 4\n", RACKS))
    now = world.now
    lease = settled(world, "web", 1, now, now + HOUR, configuration={"filter": "rack == b"})["id"]
    world.pass_time(MINUTE)
    world.restart("site")
    assert not world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR, units=2).error
    world.run_until(now + HOUR + MINUTE)
    assert {unit["unit"] for unit in world.lease("web", lease)["units"]} == {"b-0", "b-1"}
