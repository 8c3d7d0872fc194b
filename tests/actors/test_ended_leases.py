"""What a broker's mapper is shown of leases that have ended: each once, what it was granted and what it used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from actors.test_mapper_accounts import SITE, settled, world_of
from deployed_world import DeployedWorld

from leasekit.actors.broker import usage
from leasekit.core.mappers import EndedLease
from leasekit.core.time import HOUR, MINUTE, SECOND

MAPPER = """
from leasekit.core.fitting import fit

class Looks:
    inline = {inline}
    wants_ended = True

    def __init__(self):
        self.seen, self.before, self.fails = [], 0, False

    def allocate(self, cycle):
        self.seen += cycle.ended
        self.before += cycle.ended_before
        if self.fails:
            raise RuntimeError("it had a bad day")
        return [fit(cycle, request) for request in cycle.requests]
"""
SUSPENDS = """
from leasekit.policies.broker.waiting import Backfill

class Looks(Backfill):
    wants_ended = True

    def __init__(self, settings):
        super().__init__(settings)
        self.seen = []

    def allocate(self, cycle):
        self.seen += cycle.ended
        return super().allocate(cycle)
"""
BROKER = 'role = "broker"\nsettings.redeem_within = "20m"'


@pytest.fixture(params=[True, False], ids=["inline", "in a thread"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> DeployedWorld:
    """A broker whose mapper looks at what has ended."""
    (tmp_path / "looks.py").write_text(MAPPER.replace("{inline}", str(request.param)))
    return world_of(tmp_path, "looks.py", SITE.replace('role = "broker"', BROKER))


def mapper_of(world: DeployedWorld) -> Any:
    """The mapper, which remembers what it was shown."""
    return world.broker("broker").turning.mapper


def next_turn(world: DeployedWorld) -> list[EndedLease]:
    """What the mapper is shown at its next turn, for a request that can't be filled."""
    del mapper_of(world).seen[:]
    settled(world, "web", 4, world.now + 12 * HOUR, world.now + 12 * HOUR + MINUTE)
    found: list[EndedLease] = mapper_of(world).seen
    return found


def test_each_is_shown_once_with_what_it_was_granted_and_used(world: DeployedWorld) -> None:
    """One that runs out, and one that is given back early after it was extended, though its extend had not begun."""
    now = world.now + MINUTE
    whole = settled(world, "web", 1, now, now + HOUR, properties={"batch": "7"})["id"]
    early = settled(world, "batch", 2, now, now + HOUR)["id"]
    world.run_until(now + 20 * MINUTE)
    assert not world.command("batch", "lease.extend", lease=early, end=now + 3 * HOUR).error
    world.run_until(now + 30 * MINUTE)
    assert next_turn(world) == []
    assert not world.command("batch", "lease.close", lease=early).error
    world.run_until(now + 2 * HOUR)
    first, second = next_turn(world)
    assert first[:7] == (early, "batch", "vm", "site", 2, now, now + 3 * HOUR)
    assert first.why == "given_back" and now + 30 * MINUTE <= first.end <= now + 31 * MINUTE
    assert second == EndedLease(whole, "web", "vm", "site", 1, now, now + HOUR, now + HOUR, "term_over", {"batch": "7"})
    assert next_turn(world) == []


def test_a_shorter_term_is_what_is_granted_then(world: DeployedWorld) -> None:
    """Who gives up a part of its term in time has used all that it was granted."""
    now = world.now + MINUTE
    lease = settled(world, "web", 1, now, now + 2 * HOUR)["id"]
    world.run_until(now + 10 * MINUTE)
    assert not world.command("web", "lease.modify", lease=lease, end=now + HOUR).error
    world.run_until(now + 3 * HOUR)
    (ended,) = next_turn(world)
    assert (ended.granted, ended.end, ended.why) == (now + HOUR, now + HOUR, "term_over")


def test_one_that_was_moved_runs_from_its_new_start_on(world: DeployedWorld) -> None:
    """Its first start counts for nothing."""
    now = world.now + MINUTE
    lease = settled(world, "web", 1, now + HOUR, now + 2 * HOUR)["id"]
    assert not world.command("web", "lease.modify", lease=lease, start=now + 3 * HOUR).error
    world.run_until(now + 5 * HOUR)
    (ended,) = next_turn(world)
    assert (ended.start, ended.granted, ended.end) == (now + 3 * HOUR, now + 4 * HOUR, now + 4 * HOUR)


def test_one_that_nobody_redeems_has_had_nothing(world: DeployedWorld) -> None:
    """It has lapsed: its end is its start."""
    now = world.now + MINUTE
    world.lost.add(("web", "site", "Redeem"))
    lease = settled(world, "web", 1, now, now + 2 * HOUR)["id"]
    world.run_until(now + HOUR)
    world.lost.clear()
    (ended,) = next_turn(world)
    assert ended[:1] + ended[5:9] == (lease, now, now + 2 * HOUR, now, "lapsed")


def test_one_that_was_preempted_says_so(world: DeployedWorld) -> None:
    """What it was granted goes beyond what it got."""
    now = world.now + MINUTE
    lease = settled(world, "web", 1, now, now + 2 * HOUR, properties={"preemptible": "true"})["id"]
    world.run_until(now + 10 * MINUTE)
    reply = world.command("broker", "lease.evict", lease=lease, reason="it is dear")
    assert not reply.error, reply.error
    world.run_until(now + HOUR)
    (ended,) = next_turn(world)
    assert (ended.granted, ended.why) == (now + 2 * HOUR, "preempted")
    assert now + 10 * MINUTE <= ended.end < now + 15 * MINUTE


@pytest.mark.parametrize(("reserved_first", "why"), [(True, "suspended"), (False, "preempted")])
def test_one_that_goes_on_later_says_how_it_ended(tmp_path: Path, reserved_first: bool, why: str) -> None:
    """In front of a reservation a part is granted, after which the lease is suspended; for a reservation that comes
    later all of it is preempted, though it is saved.
    """
    (tmp_path / "looks.py").write_text(SUSPENDS)
    saves = 'role = "authority"\ndriver.imagined = { kind = "null", save = true }'
    mapper = '{ name = "looks.py", suspension = "all", least_run = "1m" }'
    world = world_of(tmp_path, mapper, SITE.replace('role = "authority"', saves))
    now, end = world.now, world.now + HOUR
    saving = {"preemptible": "true", "deferrable": "true", "suspend": "10s"}
    if reserved_first:
        settled(world, "batch", 4, end, end + HOUR)
    lease = settled(world, "web", 2, now, now + 2 * HOUR, properties=saving)["id"]
    world.run_until(now + 10 * MINUTE)
    if not reserved_first:
        settled(world, "batch", 4, end, end + HOUR)
    world.run_until(end + MINUTE)
    (ended,) = mapper_of(world).seen
    granted = end if reserved_first else ended.start + 2 * HOUR
    assert (ended.lease, ended.granted, ended.why) == (lease, granted, why)
    assert end - MINUTE <= ended.end <= end
    (rest,) = world.query("web", "leases")
    assert world.lease("web", rest["id"])["resumes"]["lease"] == lease


def test_a_restart_forgets_what_was_not_shown(world: DeployedWorld) -> None:
    """A lease that ends afterwards is shown, with what it was granted by then; a turn that fails has seen it."""
    now = world.now + MINUTE
    settled(world, "web", 1, now, now + HOUR)
    later = settled(world, "batch", 1, now, now + 2 * HOUR)["id"]
    world.run_until(now + HOUR + MINUTE)
    world.restart("broker")
    world.run_until(now + 3 * HOUR)
    mapper_of(world).fails = True
    settled(world, "web", 4, world.now + HOUR, world.now + 2 * HOUR)
    assert [(one.lease, one.granted) for one in mapper_of(world).seen] == [(later, now + 2 * HOUR)]
    mapper_of(world).fails = False
    assert next_turn(world) == []


def test_what_nobody_looks_at_is_bounded(world: DeployedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are kept, and it is told how many ended before them."""
    monkeypatch.setattr(usage, "ENDED_MAX", 2)
    world.restart("broker")
    now = world.now + MINUTE
    leases = [settled(world, "web", 1, now + n * SECOND, now + HOUR + n * MINUTE)["id"] for n in range(4)]
    world.run_until(now + 2 * HOUR)
    assert [one.lease for one in next_turn(world)] == leases[2:]
    assert mapper_of(world).before == 2


def test_who_does_not_want_it_is_shown_nothing_and_nothing_is_kept(tmp_path: Path) -> None:
    """A broker whose mapper has no such flag keeps no list."""
    world = world_of(tmp_path, "fcfs")
    assert world.broker("broker").granted.ended is None
