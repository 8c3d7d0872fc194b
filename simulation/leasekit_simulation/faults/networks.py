"""Simulated worlds with links: what their network authority and their brokers are told, and what guests ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from leasekit.actors.settings import MAY, REQUEST
from leasekit.core.properties import SAVES
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration
from leasekit_simulation.faults.scenario import NETWORK, Scenario

WINDOWS: Final[tuple[Duration, ...]] = (0, 0, MINUTE, 10 * MINUTE)
LENGTHS: Final[tuple[Duration, ...]] = (20 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR)
HOLDS: Final[tuple[Duration, ...]] = (5 * SECOND, 30 * SECOND, 60 * SECOND)


def link_properties(scenario: Scenario, type_: str) -> Mapping[str, str]:
    """The resource properties of a type: what a link is, for those that are, and whether units are saved."""
    ends = scenario.links.get(type_)
    if ends is None:
        return {SAVES: "true"} if scenario.suspends else {}
    return {"link.a": ends[0], "link.b": ends[1]}


def may_plan(scenario: Scenario, role: str, other: str) -> dict[str, Any]:
    """What a peer may do on top of what its role may: brokers plan with what others have."""
    return {"may": MAY[other] | {REQUEST}} if scenario.links and role == other == "broker" else {}


def planning(scenario: Scenario, broker: str) -> dict[str, Any]:
    """A broker's settings."""
    if not scenario.links:
        return {}
    rng = Random(f"{scenario.seed} planning {broker}")
    others = tuple(name for name in scenario.brokers if name != broker and rng.random() < 0.6)
    return {
        "planners": others, "hold_for": rng.choice(HOLDS), "holds_max": rng.choice((2, 16)),
        "disclose": rng.choice((1000, 1000, 700)),
    }  # fmt: skip


def draw_request(scenario: Scenario, now: int, rng: Random) -> dict[str, Any]:
    """A line, a star or a single site, of a few units each."""
    count = rng.choice((1, 2, 2, 2, 3))
    sites: list[dict[str, Any]] = [{"id": f"r{n}", "type": "vm", "units": rng.randint(1, 2)} for n in range(count)]
    places = [name for name in scenario.sites if name != NETWORK]
    if rng.random() < 0.1:
        sites[0]["pin"] = rng.choice(places)
    links: list[dict[str, Any]] = [
        {"id": f"k{n}", "from": f"r{rng.randrange(n)}", "to": f"r{n}", "bw": rng.choice((0.5, 1, 2))}
        for n in range(1, count)
    ]
    if links and rng.random() < 0.15:
        links[0]["backup"] = True
    if count > 1 and rng.random() < 0.15:
        sites[-1]["redeem_predecessor"] = rng.choice(["r0", links[0]["id"]])
    est = now + rng.choice((0, SECOND, 20 * SECOND, 3 * MINUTE))
    return {
        "sites": sites, "links": links, "est": est, "lst": est + rng.choice(WINDOWS), "duration": rng.choice(LENGTHS),
        "slice": rng.choice(("main", "other")),
        "options": {"pmax": rng.choice((0, 2, 3)), "distinct_sites": rng.random() < 0.8,
                    "sort": rng.choice(("start", "value")), "frames": {"count": 3, "mode": "both"}},
    }  # fmt: skip
