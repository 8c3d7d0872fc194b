"""What units of several classes cost: request to active, in one process, against units that are all alike.

    python benchmarks/classes.py [--json] [--quick]

A site has 3,600 units, all delegated, in 1, 12 and 36 classes; 3,600 leases of a unit each are asked for and become
active. *Plain* requests take units of any class, *picky* ones name a class by a filter, each of them in turn. *Waiting*
is one turn of the mapper over 360 requests of 10 units each that begin one after the other, of any class. All are
measured in turn, some rounds; a figure is the median of the ratios of each round to the one of the same round in which
all units are alike, in processor time.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from statistics import median

from _bench_world import BROKER, GUEST, START, build, lease, tune_gc, world
from _report import Result, emit, result

from leasekit.core.steps import Command
from leasekit.core.time import HOUR
from leasekit.emulation.world import World

CLASSES = (1, 12, 36)
MOST = 2.0


def lifecycle(classes: int, count: int, *, picky: bool) -> float:
    """Seconds for all leases to become active."""
    made = world(build(count, signed=False, classes=classes))
    return timed(lambda: lease(made, count, 100, racks=classes if picky else 0))


def waiting(classes: int, count: int) -> float:
    """Seconds in which the broker decides a burst of requests for later."""
    made: World = world(build(count, signed=False, classes=classes))
    commands = [
        Command(number, "lease.request", {"type": "vm", "units": 10, "term": [start, start + 40 * HOUR]})
        for number in range(count // 10)
        for start in (START + number * HOUR + HOUR,)
    ]
    made.feed(GUEST, commands)
    spent = timed(lambda: made.run_until(made.now + 100))
    states = made.query(BROKER, "status")["leases"]
    if states != {"ticketed": count // 10}:
        raise RuntimeError(f"not every request was granted: {states}")
    return spent


def timed(work: Callable[[], object]) -> float:
    """Seconds of the processor that it takes."""
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(count: int, rounds: int) -> list[Result]:
    """The ratio of each to the same with units that are all alike."""
    ways: dict[str, Callable[[int], float]] = {
        "plain": lambda classes: lifecycle(classes, count, picky=False),
        "picky": lambda classes: lifecycle(classes, count, picky=classes > 1),
        "waiting": lambda classes: waiting(classes, count),
    }
    results = []
    for name, way in ways.items():
        taken = [{classes: way(classes) for classes in CLASSES} for _ in range(rounds)]
        for classes in CLASSES[1:]:
            ratio = median(one[classes] / one[1] for one in taken)
            results.append(result(f"{name}_{classes}", ratio, "times", MOST))
    return results


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer units and rounds: whether it runs")
    arguments = parser.parse_args()
    tune_gc()
    count, rounds = (360, 1) if arguments.quick else (3600, 3)
    return 0 if emit("classes", "quick" if arguments.quick else "full", measure(count, rounds), arguments.json) else 1


if __name__ == "__main__":
    sys.exit(main())
