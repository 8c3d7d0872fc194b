"""Accounts from the log are exact: the broker's own book, and a recount instant by instant, say the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.accounts import INVENTORY, NOT_TAKEN, Accounts, offered
from leasekit.core.answers import AccountDetails
from leasekit.core.errors import CommandError
from leasekit.core.reasons import Code, read
from leasekit.core.schema import LogRow
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, SECOND, Term

WORLD = """
[emulation]
horizon = "2d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 6
[[actor.site.inventory]]
type = "gpu"
units = 2
[[actor.site.delegation]]
broker = "hub"
type = "vm"
length = "2d"
[[actor.site.delegation]]
broker = "hub"
type = "gpu"
length = "2d"
[actor.hub]
role = "broker"
settings.redeem_within = "20m"
mapper = { name = "fcfs", quotas = [{ units = 5 }] }
[actor.web]
role = "guest"
[actor.batch]
role = "guest"
"""
GUESTS, TYPES = ("web", "batch"), ("vm", "gpu")
END = 30 * HOUR


def log_of(world: DeployedWorld, actor: str) -> list[LogRow]:
    return list(world.nodes[actor].store.log())


def accounts(world: DeployedWorld, actor: str, period: Term, *keys: str) -> dict[tuple[str, ...], AccountDetails]:
    made, store = Accounts(period, keys, actor), world.nodes[actor].store
    for lease in dict.fromkeys(row.lease for row in log_of(world, actor)):
        made.count(store.history(lease))
    made.count_refused(store.history(NOT_TAKEN))
    return {tuple(getattr(row, key) for key in keys): row for row in made.shown()}


def run(world: DeployedWorld, seed: int) -> None:
    """A day and more of requests that come and go in every way."""
    rng = Random(seed)
    leases: list[tuple[str, str]] = []
    while world.now < END:
        world.pass_time(rng.randrange(1, 40) * MINUTE)
        guest = rng.choice(GUESTS)
        mine = [id_ for owner, id_ in leases if owner == guest]
        operation = rng.choice(
            ("request", "request", "request", "extend", "modify", "close", "fail", "restart", "deaf")
        )
        try:
            if operation == "request" or not mine:
                start = world.now + rng.randrange(0, 120) * MINUTE
                asked = {"type": rng.choice(TYPES), "units": rng.randrange(1, 5), "term": [start, start + 3 * HOUR]}
                lease = world.command(guest, "lease.request", **asked)
                leases.append((guest, lease.result["id"]))
            elif operation == "extend":
                end = world.lease(guest, mine[-1])["end"] + rng.randrange(10, 200) * MINUTE
                world.command(guest, "lease.extend", lease=mine[-1], end=end, units=rng.randrange(1, 4))
            elif operation == "modify":
                more: dict[str, Any] = {"units": rng.randrange(1, 5)}
                if rng.random() < 0.4:
                    more = {"configuration": {"image": f"i{rng.randrange(9)}"}}
                world.command(guest, "lease.modify", lease=mine[-1], **more)
            elif operation == "close":
                world.command(guest, "lease.close", lease=rng.choice(mine))
            elif operation == "fail":
                world.command("site", "unit.fail", unit=f"vm-{rng.randrange(6)}")
            elif operation == "restart":
                world.restart(rng.choice(("site", "hub", guest)))
            else:
                world.lost ^= {(guest, "site", "Redeem")}
        except CommandError:
            pass  # that lease is over


def used_by_recount(world: DeployedWorld, period: Term) -> Counter[tuple[str, str]]:
    """Who has used how much of what, added up from each line of the site's log to the next."""
    used: Counter[tuple[str, str]] = Counter()
    whose: dict[str, tuple[str, str]] = {}
    up: dict[str, str] = {}
    last = 0
    for row in [*log_of(world, "site"), LogRow(0, INSTANT_MAX, "", "", "", "", "")]:
        span = max(0, min(row.at, period.end) - max(last, period.start))
        for lease in up.values():
            used[whose[lease]] += span
        last, why = row.at, read(row.why)
        if row.event == "redeem" and why is not None:
            whose[row.lease] = why.who, why.what
        elif row.event.startswith("unit ") and why is not None:
            up.pop(why.who, None)
            if row.to_state in ("active", "modify"):
                up[why.who] = row.lease
    return used


@pytest.mark.parametrize("seed", (8, 36, 38, *range(44, 60)))
def test_accounts_are_exact(tmp_path: Path, seed: int) -> None:
    """Over any period: what was granted as the broker's book of usage has it, what was used as a recount does."""
    world = DeployedWorld(WORLD, tmp_path)
    run(world, seed)
    rng, book = Random(seed), world.broker("hub").granted.usage
    assert book is not None
    for _ in range(8):
        start = rng.randrange(0, END)
        period = Term(start, rng.randrange(start + 1, END + 1))
        granted = accounts(world, "hub", period, "holder", "type")
        used = accounts(world, "site", period, "holder", "type")
        recount = used_by_recount(world, period)
        for key in ((guest, type_) for guest in GUESTS for type_ in TYPES):
            held = sum(units * term.length for term, units in book.held(*key, period))
            assert (granted[key].granted_unit_ms if key in granted else 0) == held, (key, period)
            assert (used[key].used_unit_ms if key in used else 0) == recount[key], (key, period)
    whole = Term(0, INSTANT_MAX)
    whys = [(row.event, read(row.why)) for row in log_of(world, "hub")]
    asked = sum(why is not None and why.code == Code.ASKED for _, why in whys)
    refused = sum(event in ("refuse", "expire") for event, _ in whys)
    away = sum(why.units for event, why in whys if event == NOT_TAKEN and why is not None)
    (total,) = accounts(world, "hub", whole).values()
    assert total.requests == asked + away and sum(total.refused.values()) == refused + away
    by_site = accounts(world, "hub", whole, "site")
    assert sum(row.granted_unit_ms for row in by_site.values()) == total.granted_unit_ms > 0
    assert set(by_site) <= {("site",), ("",)}


def test_requests_that_are_not_taken_at_all(tmp_path: Path) -> None:
    """They leave no record: a line of the log tells of one at once, and of more a minute later."""
    world = DeployedWorld(WORLD, tmp_path)
    for _ in range(5):
        world.command("web", "lease.request", type="vm", units=99, term=[world.now, world.now + HOUR])
        world.pass_time(10 * SECOND)
    world.command("batch", "lease.request", type="fog", units=1, term=[world.now, world.now + HOUR])
    world.pass_time(MINUTE)
    world.command("web", "lease.request", type="vm", units=98, term=[world.now, world.now + HOUR])
    world.pass_time(MINUTE)
    assert len(world.nodes["hub"].store.history(NOT_TAKEN)) <= 4
    found = accounts(world, "hub", Term(0, HOUR), "holder", "type")
    assert found["web", "vm"].requests == 6 and found["web", "vm"].refused == {"too_large": 6}
    assert found["batch", ""].requests == 1 and found["batch", ""].granted_unit_ms == 0


def test_leads_and_what_there_was(tmp_path: Path) -> None:
    """Leads are from the request to the start; units count from when a site has them on."""
    world = DeployedWorld(WORLD, tmp_path)
    world.run_until(10 * SECOND)
    for lead in (1, 2, 3, 50):
        start = world.now + lead * MINUTE
        world.command("web", "lease.request", type="vm", units=1, term=[start, start + HOUR])
    world.pass_time(MINUTE)
    (row,) = accounts(world, "hub", Term(0, HOUR), "holder").values()
    assert abs(row.lead_median_ms - 2 * MINUTE) <= SECOND and abs(row.lead_p90_ms - 50 * MINUTE) <= SECOND
    assert row.granted == row.requests == row.leases == 4
    period = Term(HOUR, 3 * HOUR)
    notes = world.nodes["site"].store.history(INVENTORY)
    assert offered(notes, period) == {"vm": 6 * 2 * HOUR, "gpu": 2 * 2 * HOUR}
    later = notes[0]._replace(at=2 * HOUR, why=notes[0].why.replace('"units":6', '"units":9'))
    assert offered([*notes, later], period) == {"vm": 6 * HOUR + 9 * HOUR, "gpu": 2 * HOUR}
