"""How fast the broker's standard mappers decide, and how well.

    python benchmarks/mappers.py [--json] [--quick]

A mix of requests, made by a seed: 30 % advance reservations, 50 % best effort, 20 % immediate, of 1 to 8 nodes, so many
that the load is 0.9; 1,000 and 20,000 of them on 64 nodes, and as many on 256 at the same load. Each mapper is led
through it as `leasekit plan timetable` does it, with every check. Where the published mix is at hand
(`LEASEKIT_DATA`, or ../shared/data), what `backfill` accepts of it is held against what Haizea did. One turn with a
deep line: 10,000 wait, one more comes. Rates are requests a second of processor time. ``--quick`` leaves out 20,000.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from _report import Result, emit, result

from leasekit.config.traces import data_dir
from leasekit.core.mappers import BrokerCycle, PendingRequest, Source
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, SECOND, Term
from leasekit.core.timetable import Timetable
from leasekit.emulation.compare.works import Work
from leasekit.emulation.timetable_plan import plan, read_workload
from leasekit.policies.registry import make_mapper

POLICIES = ("fcfs", "timetable", "backfill", "priority", "fair_share")
RATE = 5_000
LOAD = 0.9
KINDS, SHARES = ("ar", "be", "im"), (30, 50, 20)
PUBLISHED = "reservations/wl_n64_r1000_s1_l0.9.csv"
HAIZEA = {"ar": 284, "im": 120, "wait": 619.0}
DEEP = 10_000
SMALL, LARGE = 1_000, 20_000


def mix(count: int, nodes: int, seed: int = 1) -> list[Work]:
    """A workload; instants in ms, whole minutes. The same arguments, the same requests."""
    random = Random(seed)
    shapes = [(random.randint(1, 8), MINUTE * random.randint(10, 240)) for _ in range(count)]
    gap = sum(units * length for units, length in shapes) / (nodes * LOAD) / count
    requests, now = [], 0.0
    for number, (units, length) in enumerate(shapes):
        now += random.expovariate(1 / gap)
        submit = round(now / SECOND) * SECOND
        (kind,) = random.choices(KINDS, SHARES)
        start = submit + (random.randint(30, 720) * MINUTE if kind == "ar" else 0)
        latest = start + (HOUR + 24 * HOUR if kind == "be" else 0)
        requests.append(Work(str(number), "workload", submit, start, latest, length, length, units, kind))
    return requests


def rate(requests: Sequence[Work], nodes: int, policy: str) -> float:
    """Requests decided in a second of processor time; the better of two runs."""
    best = 0.0
    for _ in range(2):
        begin = time.process_time()
        plan(requests, nodes, policy)
        best = max(best, len(requests) / (time.process_time() - begin))
    return best


def mix_figures(counts: Sequence[int]) -> Iterator[Result]:
    """Every mapper on the mixes."""
    for nodes in (64, 256):
        for count in counts:
            requests = mix(count, nodes)
            for policy in POLICIES:
                name = f"{policy}, {count} requests, {nodes} nodes"
                yield result(name, rate(requests, nodes, policy), "requests/s", RATE, higher_is_better=True)


def published_figures() -> Iterator[Result]:
    """What backfill makes of the published mix."""
    folder = data_dir(config=Path(__file__))
    if folder is None or not (folder / PUBLISHED).is_file():
        print(f"{PUBLISHED} is not at hand: left out", file=sys.stderr)
        return
    summary, _ = plan(read_workload(folder / PUBLISHED), 64, "backfill")
    accepted = {kind: counts["accepted"] for kind, counts in summary["kinds"].items()}
    yield result("backfill: reservations accepted", accepted["ar"], "of 285", HAIZEA["ar"], higher_is_better=True)
    yield result("backfill: immediate accepted", accepted["im"], "of 186", HAIZEA["im"], higher_is_better=True)
    yield result("backfill: mean best-effort wait", summary["mean_wait_s"], "s", HAIZEA["wait"])


def waiting(number: int) -> PendingRequest:
    """One of many that wait."""
    units, length = 1 + number % 16, (5 + number % 50) * MINUTE
    return PendingRequest(
        lease=f"l{number}", holder=f"h{number % 20}", op="new", type="vm", units=units, min_units=units,
        term=Term(0, length), latest_start=INSTANT_MAX // 2, deadline=INSTANT_MAX, arrived=number, site="",
        exclude_sites=frozenset(), source="", held=0, group="", priority=0, preemptible=False, properties={},
    )  # fmt: skip


def deep_figures() -> Iterator[Result]:
    """A turn when one more comes, behind many that wait, with one unit free that the first doesn't want."""
    for policy in ("backfill", "priority"):
        table = Timetable(64)
        table.reserve("old", 63, Term(0, 1000 * HOUR))
        mapper = make_mapper(policy, "broker", {}, "mapper", {})
        requests = [waiting(1 + 16 * (number // 15) + number % 15) for number in range(DEEP)]
        samples = []
        for more in range(200):
            source = Source("s", "s", "vm", 64, Term(0, INSTANT_MAX), {}, table.overlay())
            cycle = BrokerCycle(0, requests, (), lambda type_, source=source: [source])  # type: ignore[misc]
            begin = time.perf_counter()
            mapper.allocate(cycle)
            samples.append((time.perf_counter() - begin) * 1e6)
            requests.append(waiting(16 * DEEP + 2 + more * 16)._replace(lease=f"m{more}"))
        yield result(f"{policy}: a turn with {DEEP} waiting", sorted(samples)[len(samples) // 2], "us", 1_000)


def main() -> int:
    """Measure, print, and fail where a target is missed."""
    parser = argparse.ArgumentParser(description="The broker's standard mappers.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out the large mixes")
    options = parser.parse_args()
    counts = (SMALL,) if options.quick else (SMALL, LARGE)
    results = [*published_figures(), *mix_figures(counts), *deep_figures()]
    return 0 if emit("mappers", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
