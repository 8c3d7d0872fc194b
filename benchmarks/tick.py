"""What a tick costs when nothing is due, with 1 and with 100,000 active leases: it must not depend on them.

A tick is what a shell does at one: step the clock, ask for a mapper turn, for a Ready and for the next instant. The
figure is the dearest of the three actors; the floor is four calls of methods that do nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from _bench_world import build, lease, tune_gc, world
from _report import emit, result

from leasekit.core.steps import Tick

ROUNDS = 20_000


def tick_us(actor: Any, now: int) -> float:
    """Microseconds of one idle tick, the best of five runs."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for offset in range(ROUNDS):
            actor.step(Tick(now + offset % 50))
            actor.turn()
            actor.ready()
            actor.wake_at()
        best = min(best, time.perf_counter() - begin)
    return best / ROUNDS * 1e6


class Nothing:
    """The floor: the same calls, to methods that do nothing."""

    def step(self, input: Tick) -> None:
        """Nothing."""

    def turn(self) -> None:
        """Nothing."""

    def ready(self) -> None:
        """Nothing."""

    def wake_at(self) -> None:
        """Nothing."""


def main() -> int:
    """Measure at both sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="10,000 leases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tune_gc()
    floor = tick_us(Nothing(), 0)
    results = []
    for count in (1, 10_000 if options.quick else options.leases):
        made = world(build(count, signed=False))
        lease(made, count, 2000)
        made.run_until(made.now + 10_000)
        for node in made.nodes.values():
            node.actor.ready()
        dearest = max(tick_us(node.actor, made.now + 1) for node in made.nodes.values())
        results.append(result(f"tick_us_{count}", dearest, "us", 10.0, floor))
    return 0 if emit("tick", "in one process", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
