"""The four tables of García et al., "An efficient cloud scheduler design supporting preemptible instances" (FGCS 2019):
full hosts, a request, and who has to leave for it. ``leasekit experiment preemption`` decides them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from leasekit.core.time import MINUTE, SECOND
from leasekit.policies.preempting.problem import PreemptDecision, read_preempt_problem

SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "S": {"vcpus": 1, "ram_mb": 2000},
    "M": {"vcpus": 2, "ram_mb": 4000},
    "L": {"vcpus": 4, "ram_mb": 8000},
}
CAPACITY: Final = {"vcpus": 8, "ram_mb": 16_000}


class PaperTable(NamedTuple):
    """One table. Of each host the leases: name, minutes, size (medium unless said otherwise); those that are
    preemptible have a P in their name. ``others`` are sets that would do as well, with what they cost in minutes.
    """

    request: str
    hosts: Mapping[str, str]
    victims: str
    cost: int
    others: Mapping[str, int]


TABLES: Final[tuple[PaperTable, ...]] = (
    PaperTable(
        "M",
        {
            "host-A": "A1 272, A2 172, AP1 96, AP2 207",
            "host-B": "B1 136, B2 200, BP1 71, BP2 91",
            "host-C": "C1 97, C2 275, CP1 210, CP2 215",
            "host-D": "D1 16, DP1 85, DP2 199, DP3 152",
        },
        "BP1",
        11,
        {"DP2": 19, "AP2": 27, "CP1": 30},
    ),
    PaperTable(
        "M",
        {
            "host-A": "AP1 247, AP2 463, AP3 403, AP4 410",
            "host-B": "B1 388, B2 103, BP1 344, BP2 476",
            "host-C": "C1 481, C2 177, CP1 181, CP2 160",
            "host-D": "D1 173, DP1 384, DP2 168, DP3 232",
        },
        "CP1",
        1,
        {"AP1": 7, "DP1": 24, "BP1": 44},
    ),
    PaperTable(
        "L",
        {
            "host-A": "AP1 298 L, AP2 278 M, AP3 190 S, AP4 187 S",
            "host-B": "B1 494 L, BP1 178 L",
            "host-C": "CP1 297 L, CP2 296 M, CP3 296 S",
            "host-D": "D1 176 M, D2 200 M, D3 116 L",
        },
        "AP2 AP3 AP4",
        55,
        {"CP1": 57, "AP1": 58, "BP1": 58, "CP2 CP3": 112},
    ),
    PaperTable(
        "M",
        {
            "host-A": "A1 234 L, A2 122 M, AP1 172 M",
            "host-B": "BP1 272 L, BP2 212 M, BP3 380 S",
            "host-C": "C1 182 S, C2 120 M, C3 116 L",
            "host-D": "DP1 232 L, DP2 213 S, DP3 324 M, DP4 314 S",
        },
        "BP3",
        20,
        {"DP3": 24, "BP1": 32, "BP2": 32, "DP2 DP4": 47, "AP1": 52},
    ),
)


def problem_of(table: PaperTable) -> dict[str, Any]:
    """A table as a problem file of ``leasekit plan preempt``."""
    return {
        "request": {"resources": SIZES[table.request]},
        "hosts": [
            {"id": name, "capacity": CAPACITY, "leases": [_lease(*lease.split()) for lease in leases.split(", ")]}
            for name, leases in table.hosts.items()
        ],
    }


def _lease(name: str, minutes: str, size: str = "M") -> dict[str, Any]:
    runtime = int(minutes) * MINUTE // SECOND
    return {"id": name, "resources": SIZES[size], "runtime_s": runtime, "preemptible": "P" in name}


def tables() -> list[dict[str, Any]]:
    """Each table decided: the victims, their cost in minutes, and what else would do, beside what the paper has."""
    found = []
    for number, table in enumerate(TABLES, 1):
        answer = PreemptDecision(read_preempt_problem(problem_of(table))).answer()
        chosen = _costs(answer["placements"])
        others = _costs(answer["runners_up"])
        expected = {"victims": table.victims, "cost": table.cost, "others": dict(table.others)}
        same = chosen == {table.victims: table.cost} and all(
            others.get(key) == cost for key, cost in table.others.items()
        )
        [(victims, cost)] = chosen.items()
        found.append(
            {"table": number, "victims": victims, "cost": cost, "others": others, "paper": expected, "same": same}
        )
    return found


def _costs(options: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {" ".join(one["victims"]): one["cost"] * SECOND / MINUTE for one in options}
