"""How fast a workload goes through a broker's mapper, by the loop of ``leasekit mapper compare``.

    python benchmarks/compare.py [--json] [--quick]

The log of HPC2N (202,871 jobs on 240 processors) through ``fcfs``, strict FCFS and EASY backfilling, each in a process
of its own: the seconds of the run, without reading the log. And what the field knows: how much smaller EASY's mean
bounded slowdown is than that of FCFS. The floor of each is the time of the bare loop: the same jobs, started as they
come on more processors than they can fill, with nothing to decide. ``--quick`` takes the log of KTH's SP2 (28,476 jobs
on 100 nodes) and judges speed alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from _report import Result, emit, result

from leasekit.config.traces import data_dir
from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Grant
from leasekit.emulation.compare.drive import drive
from leasekit.emulation.compare.engines import run_local
from leasekit.emulation.compare.measures import Measured
from leasekit.emulation.compare.parts import Pool
from leasekit.emulation.compare.targets import read_target
from leasekit.emulation.compare.works import Workload, from_swf

TARGETS = {"fcfs": "fcfs", "strict_fcfs": "fcfs:backfill=false", "easy": "backfill:mode=easy"}
CLEARLY = 2.0
"""How many times smaller EASY's mean bounded slowdown must be than that of strict FCFS."""


class Log(NamedTuple):
    """A log of the data folder, the processors it was made on, and the seconds that a run may take."""

    file: str
    nodes: int
    seconds: float


HPC2N = Log("extra-hpc2n/HPC2N-2002-2.2-cln.swf.gz", 240, 60.0)
KTH = Log("kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz", 100, 15.0)


class AtOnce:
    """Starts everything where there is room for all: what the loop costs by itself."""

    inline = True

    def allocate(self, cycle: BrokerCycle) -> Iterator[BrokerDecision]:
        """Grant whatever comes."""
        for request in cycle.requests[:]:
            (source,) = cycle.sources(request.type)
            yield Grant(request.lease, source.id, request.units, request.term)


def floor(workload: Workload) -> float:
    """Seconds of the bare loop."""
    begin = time.perf_counter()
    drive(workload.works, 10_000_000, AtOnce())
    return time.perf_counter() - begin


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smaller log")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    log = KTH if options.quick else HPC2N
    folder = data_dir(config=Path(__file__))
    path = Path(log.file) if folder is None else folder / log.file
    if not path.is_file():
        print(f"compare: {log.file} is missing; set LEASEKIT_DATA to the folder of traces", file=sys.stderr)
        return 1
    workload = from_swf(path)
    least = floor(workload)
    results: list[Result] = []
    slowdowns: dict[str, float] = {}
    for name, target in TARGETS.items():
        (run,) = run_local([read_target(target)], workload.works, Pool(log.nodes), jobs=1, patience=600)
        if not isinstance(run, Measured):
            raise LeasekitError(f"{target}: {run}")
        took = run.summary["measured"]["seconds"]
        slowdowns[name] = run.summary["mean_bounded_slowdown"]
        results.append(result(f"{name}_s", took, "s", log.seconds, floor=least))
        results.append(result(f"{name}_cpu_s", run.summary["measured"]["cpu_seconds"], "s", None))
        results.append(result(f"{name}_slowdown", slowdowns[name], "", None))
    ratio = slowdowns["strict_fcfs"] / slowdowns["easy"]
    least_times = None if options.quick else CLEARLY
    results.append(result("strict_fcfs_over_easy", ratio, "times", least_times, higher_is_better=True))
    return 0 if emit("compare", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
