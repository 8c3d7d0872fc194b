"""What the choice of a host and of victims costs on a full cluster, the upkeep of its index included.

    python benchmarks/preemption.py [--json] [--quick]

10,000 hosts of 8 CPUs are full: of 4 medium preemptible leases each (*one victim*: requests of that size), or of up to
6 of three sizes, with others that are not preemptible (*any*: requests of each size in turn). A decision is a choice by
the index, what it costs to bring the index up to date with the time since the last one (100 ms), and the exchange of
the victims for the new lease. The floor is the median of a plain loop that filters and weighs the same hosts for the
same requests, in the same run, and ``_ratio`` a decision's share of it; ``search_40`` is the exact choice among 40
leases of three resources on one host.

``live_`` are the same among production actors in virtual time, of which the site has the mapper ``preemption``
(_bench_farm.py). ``_decision``, the figure with a target, is all of the mapper's call for one request that has a lease
leave: to read what has changed since its last turn, to bring its index up to date, to choose, and to ask the site for
room. ``_least`` is the part of that which no mapper can do without, in turns of its own; ``_again`` a decision right
after another mapper has decided the same, so that the code is in the processor's caches; ``_crowd`` one of several in a
turn. ``_turn`` is the whole turn, with what the site shows, checks and carries out; ``_redeem`` what it costs the site
before that to take the ticket. All in processor time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

from _bench_farm import GUEST, SITE, TYPE, TimedAuthority, TimedMapper, ask, farm, size_of
from _report import Result, emit, result

from leasekit.core.time import DAY
from leasekit.policies.preempting.costs import PeriodCost
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost, Vector
from leasekit.policies.preempting.index import HostIndex
from leasekit.policies.preempting.rules import PlacingRules, spread
from leasekit.policies.preempting.selection import filter_and_weigh
from leasekit.policies.preempting.victims import choose_victims

SMALL, MEDIUM, LARGE = (1, 2000, 20), (2, 4000, 40), (4, 8000, 80)
CAPACITY = (8, 16_000, 160)
BEGIN = 1_000 * DAY
STEP = 100
ONE_MS, ANY_MS, SEARCH_MS = 0.05, 0.5, 17.0
CROWDS, CROWD = 10, 20


def host(rng: Random, number: int, sizes: Sequence[Vector], most: int) -> LoadedHost:
    """A full host: up to so many preemptible leases, and small others in what is left."""
    left, leases = CAPACITY, []
    while left[0] and len(leases) < most:
        needs = rng.choice([each for each in sizes if each[0] <= left[0]])
        left = tuple(there - need for there, need in zip(left, needs, strict=True))
        start = BEGIN - rng.randrange(DAY)
        leases.append(HostedLease(f"p{number}.{len(leases)}", needs, start, preemptible=True))
    leases += [HostedLease(f"n{number}.{place}", SMALL, BEGIN) for place in range(left[0])]
    return LoadedHost(id=f"h{number:05}", capacity=CAPACITY, leases=tuple(leases))


def spent(work: Callable[[], object]) -> float:
    """Milliseconds of the processor that it takes."""
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)


def decide(hosts: Sequence[LoadedHost], requests: Sequence[HostRequest], count: int) -> tuple[list[float], float]:
    """Milliseconds of each decision, and of the plain loop."""
    index, rules = HostIndex(hosts, PlacingRules()), PlacingRules(weighers=[(spread, 1.0)])
    for request in requests:
        if index.select(request, BEGIN) is None:
            raise RuntimeError(f"nothing for {request}")
    times, loops = [], []
    for number in range(count):
        request, now = requests[number % len(requests)], BEGIN + STEP * number
        new = [HostedLease(f"x{number}", request.needs, now, preemptible=True)]
        times.append(spent(lambda request=request, new=new, now=now: index.place(request, new, now)))
        if number % (count // 20) == 0:
            loops.append(spent(lambda request=request: filter_and_weigh(index.hosts.values(), request, rules)))
    return times, median(loops)


def search(rng: Random, rounds: int) -> list[float]:
    """Milliseconds of the exact choice among 40 leases."""
    times = []
    for _ in range(rounds):
        leases = [
            HostedLease(
                f"v{place:02}", rng.choice((SMALL, MEDIUM, LARGE, (1, 8000, 20), (4, 2000, 40))), rng.randrange(DAY)
            )
            for place in range(40)
        ]
        missing = (rng.choice((8, 16, 24)), rng.choice((8000, 32_000, 48_000)), rng.choice((100, 200, 600)))
        times.append(spent(lambda leases=leases, missing=missing: choose_victims(leases, missing, PeriodCost(), BEGIN)))
    return times


def live(name: str, count: int, decisions: int, cores: Sequence[int], most: int, wanted: Sequence[int]) -> list[Result]:
    """The figures of a site's turns, of so many decisions with victims."""
    world = farm(count, cores, most)
    site = world.nodes[SITE].actor
    assert isinstance(site, TimedAuthority)
    mapper = site.turning.mapper
    assert isinstance(mapper, TimedMapper)
    warm = len(wanted)  # the first of each size looks at all hosts
    for number in range(warm + decisions):
        ask(world, number + 1, wanted[number % len(wanted)])
    asked = warm + decisions
    for number in range(CROWDS):
        ask(world, asked + 1, wanted[number % len(wanted)], CROWD)
        asked += CROWD
    states = world.query(GUEST, "status")["leases"]
    few = len(mapper.times) < decisions // 2 or not mapper.crowds
    if states != {"active": asked} or site.errors or few:
        raise RuntimeError(
            f"{states}, {len(mapper.times)} and {len(mapper.crowds)} turns with victims, {site.errors[:1]}"
        )
    (index,) = mapper.indexes(TYPE)
    rules = PlacingRules(weighers=[(spread, 1.0)])
    request = HostRequest(tuple(much for _, much in size_of(wanted[0])))
    floor = median(spent(lambda: filter_and_weigh(index.hosts.values(), request, rules)) for _ in range(5))
    times = mapper.times[warm:]
    target = ONE_MS if len(wanted) == 1 else ANY_MS
    return [
        result(f"live_{name}_decision", median(times), "ms", target, floor),
        result(f"live_{name}_decision_p99", sorted(times)[len(times) * 99 // 100], "ms", None, floor),
        *(result(f"live_{name}_{what}", median(some), "ms", None) for what, some in mapper.compared if some),
        result(f"live_{name}_crowd", median(mapper.crowds), "ms", None, floor),
        result(f"live_{name}_ratio", median(times) / floor, "of a plain loop", None),
        result(f"live_{name}_turn", median(site.turn_times[warm:]), "ms", None, floor),
        result(f"live_{name}_redeem", median(site.redeems[warm:]), "ms", None, floor),
    ]


def measure(count: int, decisions: int) -> list[Result]:
    """All figures."""
    rng = Random(19)
    results = []
    for name, sizes, most, wanted, target in (
        ("one_victim", [MEDIUM], 4, [MEDIUM], ONE_MS),
        ("any", [SMALL, SMALL, MEDIUM, LARGE], 6, [SMALL, MEDIUM, LARGE], ANY_MS),
    ):
        hosts = [host(rng, number, sizes, most) for number in range(count)]
        times, floor = decide(hosts, [HostRequest(needs) for needs in wanted], decisions)
        results.append(result(name, median(times), "ms", target, floor))
        results.append(result(f"{name}_p99", sorted(times)[len(times) * 99 // 100], "ms", None, floor))
        results.append(result(f"{name}_ratio", median(times) / floor, "of a plain loop", None))
    results += live("one_victim", count, decisions // 10, [2], 4, [2])
    results += live("any", count, decisions // 10, [1, 1, 2, 4], 6, [1, 2, 4])
    results.append(result("search_40", median(search(rng, 40)), "ms", SEARCH_MS))
    return results


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer hosts and decisions: whether it runs")
    arguments = parser.parse_args()
    count, decisions = (500, 100) if arguments.quick else (10_000, 2_000)
    mode = "quick" if arguments.quick else "full"
    return 0 if emit("preemption", mode, measure(count, decisions), arguments.json) else 1


if __name__ == "__main__":
    sys.exit(main())
