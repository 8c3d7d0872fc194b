"""Real daemons at their worst: killed at random moments, under load, over connections that delay, stall, break and lie.

``LEASEKIT_KILLS`` says how many kills there are in all, those of test_kill.py included (20 if it is not set),
``LEASEKIT_SEED`` which ones. A hundred kills are a round with daemons and stores of its own.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from system.chaos_lies import LIES
from system.chaos_load import OVER, User
from system.chaos_replay import Replay
from system.chaos_rounds import SEED, chaos_rounds
from system.chaos_world import BELOW, BROKERS, GUESTS, ROLES, SITES, UNITS, World
from system.system_waits import no_units_left, unit_processes, wait_until

from leasekit.core.time import MINUTE, SECOND
from leasekit.runtime.client import RequestError
from leasekit_simulation.faults.checkers import Violated

SETTLED = ("active", "active_ticketed", *OVER)


@pytest.mark.parametrize(("seed", "kills"), chaos_rounds())
def test_chaos(tmp_path: Path, seed: int, kills: int) -> None:
    """Whatever is killed and whatever happens to connections, every checker of the simulator is content with what all
    daemons did, nothing acknowledged is lost, and soon after the last fault all is settled and nothing is left over.
    """
    world = World(tmp_path, seed)
    with no_units_left(world.state), world.up():
        users = [User(world, guest, seed) for guest in GUESTS]
        for user in users:
            user.start()
        began = time.monotonic()
        killed = kill_at_random(world, kills - 1, random.Random(seed))
        took = time.monotonic() - began
        for user in users:
            user.finish()
        world.proxies.calm()
        killed[kill_while_active(world, users)] += 1
        check_settled(world, users)
        check_held(world, users)
        check_over(world, users)
        world.stop()
        assert not unit_processes(world.state)
        replay = Replay(world)
        replay.run()
        check_books(replay)
        if seed == SEED:
            check_lies(world)
        done = sum((user.counts for user in users), Counter[str]())
        print(f"seed {seed}: {kills} kills in {took:.0f} s {dict(killed)}; {dict(done)}; {dict(world.proxies.counts)}")
        print(
            f"states seen last {dict(Counter(s for user in users for s in user.seen.values()))}; {dict(replay.counts)}"
        )
        assert done["request acknowledged"] and replay.counts["actions"], "there was some load"


def kill_at_random(world: World, kills: int, rng: random.Random) -> Counter[str]:
    """SIGKILL one daemon or some of them, at work or while they start, and start them again sooner or later."""
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        time.sleep(rng.choice((0.02, 0.1, 0.3, 0.6, 1.0)))
        victims = rng.sample(sorted(ROLES), min(rng.choice((1, 1, 1, 1, 2, 3)), kills - killed.total()))
        for name in victims:
            world.kill(name)
            killed[name] += 1
        time.sleep(rng.choice((0, 0, 0, 0.1, 1.0)))
        for name in victims:
            world.begin(name)
        if killed.total() < kills and rng.random() < 0.2:
            time.sleep(rng.uniform(0, 0.3))
            world.kill(victims[0])
            killed[victims[0]] += 1
            world.begin(victims[0])
        for name in victims:
            world.running[name].wait_ready()
    return killed


def kill_while_active(world: World, users: Sequence[User]) -> str:
    """SIGKILL a site that has a lease which goes on, whenever the others were killed: each history is to have that, as
    one of the lies is about it. Returns the site.
    """
    if not lasting(world, users):
        users[0].ask_for_long()
    wait_until("a lease to be active for long", lambda: not lasting(world, users))
    site = lasting(world, users)[0]
    world.kill(site)
    world.begin(site)
    world.running[site].wait_ready()
    return site


def lasting(world: World, users: Sequence[User]) -> list[str]:
    """The sites of leases that are active, and will be so for longer than it takes to kill them."""
    until = int(time.time() * 1000) + MINUTE
    leases = [lease for user in users for lease in held(world, user.guest)]
    return [lease["site"] for lease in leases if lease["pending"] == "-" and lease["end"] > until]


def records(world: World, guest: str) -> dict[str, dict[str, Any]]:
    """All leases that a guest knows, the forgotten ones from its store."""
    with world.client(guest) as client:
        past = {row["id"]: row for row in client.archived("leases", 10_000)}
        return past | {lease["id"]: lease for lease in client.query("leases", all=True)}


def check_settled(world: World, users: Sequence[User]) -> None:
    """Soon nothing is on its way any more, and what was acknowledged is as it was asked to be."""
    for user in users:
        wait_until(f"leases of {user.guest} to settle", partial(unsettled, world, user.guest))
    for user in users:
        known = records(world, user.guest)
        lost = set(user.asked) - set(known)
        assert not lost, f"{user.guest}: {len(lost)} acknowledged requests are lost: {sorted(lost)[:5]}"
        for id_, lease in known.items():
            user.note(id_, lease["state"], lease["reason"])
        open_ = [id_ for id_ in user.closed if known[id_]["state"] not in OVER]
        assert not open_, f"{user.guest}: acknowledged closes were forgotten: {open_[:3]}"
        bugs = [lease for lease in known.values() if "driver failed" in lease["reason"]]
        assert not bugs, bugs[:3]


def unsettled(world: World, guest: str) -> list[dict[str, Any]]:
    """Leases that are on their way somewhere now, and don't wait for their time."""
    known, now = records(world, guest), world.query(guest, "status")["now"]
    found = []
    for lease in known.values():
        if lease["state"] == "ticketed" and lease["pending"] == "-":
            detail = world.query(guest, "lease", lease=lease["id"])
            before = known.get(detail["redeem_predecessor"], {"state": ""})
            if detail["approved"]["term"][0] > now + SECOND or before["state"] == "ticketed":
                continue
        if lease["state"] not in SETTLED or lease["pending"] != "-":
            found.append(lease)
    return found[:3]


def check_held(world: World, users: Sequence[User]) -> None:
    """Every unit is free, or up for the live lease that its guest says has it; processes run for these alone."""

    def amiss() -> list[str]:
        holders = {(u["site"], name): u["id"] for user in users for u in held(world, user.guest) for name in u["names"]}
        rows = {(site, row["unit"]): row for site in SITES for row in world.query(site, "units")}
        wrong = [f"{key}: {row}" for key, row in rows.items() if (row["lease"] or "") != holders.get(key, "")]
        wrong += [f"{key}: {row}" for key, row in rows.items() if row["state"] not in ("free", "active")]
        up, running = sum(site == "north" for site, _ in holders), len(unit_processes(world.state))
        return wrong + [f"{running} processes run for {up} units"] * (up != running)

    wait_until("units and leases to agree", lambda: amiss()[:3])


def held(world: World, guest: str) -> list[dict[str, Any]]:
    """The leases of a guest that are active now, with the names of their units."""
    with world.client(guest) as client:
        found = []
        for lease in client.query("leases"):
            if lease["state"] in ("active", "active_ticketed"):
                detail = client.query("lease", lease=lease["id"])
                found.append({**lease, "names": [unit["unit"] for unit in detail["units"]]})
        return found


def check_over(world: World, users: Sequence[User]) -> None:
    """When every lease is closed every unit is free, all that was given is back, and nobody is to blame."""
    for user in users:
        for id_, lease in records(world, user.guest).items():
            if lease["state"] not in OVER:
                world.journal.write("may_close", id_)
                try:
                    world.command(user.guest, "lease.close", lease=id_)
                except RequestError:
                    continue  # its term has just ended

    def left(actor: str) -> list[Any]:
        role = ROLES[actor]
        rows = [row for row in world.query(actor, "leases", all=True) if row["state"] not in OVER]
        if role == "guest":
            rows += world.query(actor, "returns")
        elif role == "broker":
            mine = BELOW if actor == "lower" else UNITS - BELOW
            rows += [row for row in world.query(actor, "sources") if row["free_now"] != mine]
        else:
            rows += [row for row in world.query(actor, "units") if row["state"] != "free"]
        return rows[:3]

    for actor in (*GUESTS, *SITES, *BROKERS):
        wait_until(f"{actor} to have nothing left", partial(left, actor))
    wait_until("processes of units", lambda: unit_processes(world.state))
    for site in SITES:
        assert world.query(site, "evidence") == [], "every broker was honest"
    for actor in ROLES:
        shell = world.query(actor, "status")["shell"]
        assert shell["bugs"] == 0 and "Traceback" not in world.said(actor), f"{actor}: {world.said(actor)[-3000:]}"


def check_books(replay: Replay) -> None:
    """The checkers' own books are closed as well."""
    checkers = replay.checkers
    holding = {key: unit for key, unit in checkers.units.units.items() if unit.lease or unit.left}
    assert not holding, f"units that no teardown freed: {holding}"
    assert not checkers.claims.torn_groups()
    later = max(replay.clocks.values())
    left = [given for given in checkers.claims.unreturned(later) if given.claim.term.end > later]
    assert not left, f"claims that never came back: {left[:3]}"


def check_lies(world: World) -> None:
    """Had it been otherwise, the checkers would have said so: they hear of enough."""
    for lie, change in LIES.items():
        with pytest.raises(Violated):
            Replay(world, change).run()
            pytest.fail(f"nobody noticed that this is not so: {lie}")
    with pytest.raises(Violated, match="lines in its log"):
        Replay(world, lose=1).run()
