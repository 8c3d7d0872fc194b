"""Instants and durations at their limits, in requests of a hostile peer: who else asks does not notice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.core.protocol.messages import DryRun, DryRunAnswer, RequestTicket, TicketUpdate
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Term

MAPPERS: dict[str, dict[str, Any]] = {
    "fcfs": {}, "gather": {"name": "fcfs", "gather": "5s"},
    "quotas": {"name": "fcfs", "quotas": [
        {"units": 5, "unit_hours": 50, "longest": "3d", "stacked": 2, "rest": "1h", "ahead": "2d"}]},
    "timetable": {}, "easy": {"name": "backfill"}, "conservative": {"name": "backfill", "mode": "conservative"},
    "priority": {}, "fair_share": {}, "coallocation": {},
}  # fmt: skip
STARTS = (0, 1, 2 * SECOND, DAY, INSTANT_MAX - 2, INSTANT_MAX - 1)
ENDS = (1, 3 * SECOND, HOUR, DAY, DAY + 1, INSTANT_MAX - 1, INSTANT_MAX)
WISHES: tuple[dict[str, str], ...] = (
    {}, {"deferrable": "true"}, {"deferrable": "true", "latest_start": str(INSTANT_MAX)},
    {"deferrable": "true", "latest_start": str(2 * SECOND), "request_timeout": f"{INSTANT_MAX}ms"},
    {"request_timeout": "1ms"}, {"preemptible": "true", "suspend": f"{INSTANT_MAX}ms"},
    {"preemptible": "true", "suspend": "1ms", "deferrable": "true"},
    {"prepare": f"{INSTANT_MAX}ms"}, {"prepare": "1d", "deferrable": "true", "latest_start": str(INSTANT_MAX)},
    {"priority": str(INSTANT_MAX), "elastic": "true"}, {"priority": str(-INSTANT_MAX)},
)  # fmt: skip


def wishes() -> Iterator[tuple[Term, dict[str, str]]]:
    """Every term with every wish."""
    for start, end, wish in itertools.product(STARTS, ENDS, WISHES):
        if start < end:
            yield Term(start, end), wish


@pytest.mark.long
@pytest.mark.parametrize("length", [pytest.param("1d", marks=pytest.mark.soak), "36500d"])
@pytest.mark.parametrize("mapper", MAPPERS)
def test_requests_at_the_limits_of_time(tmp_path: Path, mapper: str, length: str) -> None:
    """Each is answered, the mapper loses no turn, and another guest's request in the same turn is granted."""
    text = CHAIN.replace('type = "vm"\nlength = "1d"', f'type = "vm"\nlength = "{length}"')
    world = DeployedWorld(text, tmp_path, changes={"actor.upper.mapper": {"name": mapper} | MAPPERS[mapper]})
    tag = world.guest("web").keyring.tag
    asked = list(wishes())
    for number, (term, wish) in enumerate(asked, 1):
        world.receive(
            "upper", "web",
            RequestTicket(f"{tag}-{number}", 1, "new", "s", "vm", 1 + number % 5, term, "", wish, b""),
            DryRun(f"{tag}-dry-run", number, "vm", 6, term, "", wish),
        )  # fmt: skip
    honest = world.request("batch", 1, DAY // 2, DAY // 2 + HOUR, properties={"deferrable": "true"})
    world.pass_time(MINUTE)
    assert world.broker("upper").kernel.errors == []
    assert world.lease("batch", honest)["state"] == "ticketed"
    world.pass_time(HOUR)
    assert world.broker("upper").kernel.errors == []
    answered = {update.lease for update in world.letters(TicketUpdate, "upper", "web")}
    assert len(world.letters(DryRunAnswer, "upper", "web")) > 0
    assert len(answered) > 0
    world.restart("upper")
    world.pass_time(2 * DAY)
    assert world.broker("upper").kernel.errors == []
