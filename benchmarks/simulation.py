"""How fast the fault simulation is: actor steps per second with faults on and checkers looking, without signatures and
with them, and how many lease-hours it simulates in a second.

A step is one input that an actor takes: a message, a tick, the end of an action, a command, a mapper's decisions. The
floor is the same scenarios without checkers and without faults.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from _bench_world import tune_gc
from _report import Result, emit, result

from leasekit.core.time import HOUR
from leasekit_simulation.faults.checkers import Violated
from leasekit_simulation.faults.run import Run
from leasekit_simulation.faults.scenario import Scenario, draw

TARGET = 20_000
FIRST = 100_000


def scenarios(count: int, *, signed: bool) -> list[Scenario]:
    """The first scenarios that are drawn with signatures, or without them; channels and SQLite files are in their usual
    share.
    """
    drawn = (draw(FIRST + n) for n in itertools.count())
    return list(itertools.islice((scenario for scenario in drawn if scenario.signed == signed), count))


def measure(made: list[Scenario], *, full: bool) -> tuple[float, float, float]:
    """Steps, simulated lease-hours and runs per second of processor time; ``full`` is with checkers and faults."""
    steps = lease_ms = 0
    spent = 0.0
    for scenario in made:
        begin = time.process_time()
        run = Run(scenario, checked=full, faulty=full)
        try:
            run.go()
        except Violated as error:
            raise SystemExit(f"benchmarks/simulation.py: seed {scenario.seed} fails: {error}") from error
        spent += time.process_time() - begin
        steps += run.world.steps
        lease_ms += run.checkers.states.lease_ms
        run.world.close()
    return steps / spent, lease_ms / HOUR / spent, len(made) / spent


def figures(name: str, made: list[Scenario], target: float | None, rounds: int) -> list[Result]:
    """The best of some rounds, full and bare in turn."""
    full, bare = [], []
    for _ in range(rounds):
        full.append(measure(made, full=True))
        bare.append(measure(made, full=False))
    best, floor = max(full), max(bare)
    return [
        result(f"steps_per_s_{name}", best[0], "1/s", target, floor[0], higher_is_better=True),
        result(f"lease_hours_per_s_{name}", best[1], "h/s", None, higher_is_better=True),
        result(f"seeds_per_s_{name}", best[2], "1/s", None, floor[2], higher_is_better=True),
    ]


def main() -> int:
    """Measure without signatures and with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="10 seeds, one round")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tune_gc()
    count, rounds = (10, 1) if options.quick else (options.seeds, options.rounds)
    results = figures("unsigned", scenarios(count, signed=False), TARGET, rounds)
    results += figures("signed", scenarios(max(count // 4, 3), signed=True), None, rounds)
    return 0 if emit("simulation", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
