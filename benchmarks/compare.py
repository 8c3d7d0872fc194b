"""How fast a workload goes through a broker's mapper, by ``leasekit mapper compare``.

    python benchmarks/compare.py [--json] [--quick]

The log of KTH's SP2 (28,476 jobs on 100 nodes) through ``fcfs``, strict FCFS and EASY backfilling, each in a process of
its own: the processor time of the run, without reading the log, and how many times that is what the mapper's own turns
took in the same run. The rest is what guests, broker and site do. And what the field knows: how much smaller EASY's
mean bounded slowdown is than that of FCFS. ``--quick`` takes the first 2,000 jobs, and judges nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _report import Result, emit, result

from leasekit.config.traces import data_dir
from leasekit.core.errors import LeasekitError
from leasekit.emulation.compare.engines import run_local
from leasekit.emulation.compare.measures import Measured
from leasekit.emulation.compare.pool import Pool
from leasekit.emulation.compare.targets import read_target
from leasekit.emulation.compare.works import from_swf

TARGETS = {"fcfs": "fcfs", "strict_fcfs": "fcfs:backfill=false", "easy": "backfill:mode=easy"}
CLEARLY = 2.0
"""How many times smaller EASY's mean bounded slowdown must be than that of strict FCFS."""
LOG, NODES, FEW = "kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz", 100, 2000


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 jobs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    folder = data_dir(config=Path(__file__))
    path = Path(LOG) if folder is None else folder / LOG
    if not path.is_file():
        print(f"compare: {LOG} is missing; set LEASEKIT_DATA to the folder of traces", file=sys.stderr)
        return 1
    works = from_swf(path).works[: FEW if options.quick else None]
    results: list[Result] = []
    slowdowns: dict[str, float] = {}
    for name, target in TARGETS.items():
        (run,) = run_local([read_target(target)], works, Pool(NODES), jobs=1, patience=600)
        if not isinstance(run, Measured):
            raise LeasekitError(f"{target}: {run}")
        took = run.summary["measured"]
        slowdowns[name] = run.summary["mean_bounded_slowdown"]
        results.append(result(f"{name}_cpu_s", took["cpu_seconds"], "s", None))
        over = took["cpu_seconds"] / took["mapper_cpu_seconds"]
        results.append(result(f"{name}_over_its_mapper", over, "times", None))
        results.append(result(f"{name}_slowdown", slowdowns[name], "", None))
    ratio = slowdowns["strict_fcfs"] / slowdowns["easy"]
    least_times = None if options.quick else CLEARLY
    results.append(result("strict_fcfs_over_easy", ratio, "times", least_times, higher_is_better=True))
    return 0 if emit("compare", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
