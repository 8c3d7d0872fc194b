"""What a command costs before it does anything: ``leasekit lease list`` against a running daemon.

    python benchmarks/door.py [--json] [--quick]

Its CPU time, with a deploy file, over that of a process that only imports what every command prints with (click and
rich), which is the floor. Both run in turn, and a figure is the least of some rounds: what else a machine does adds to
a round, never takes away.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _bench_sockets import control, daemons, drive
from _report import emit, result

TARGET = 2.0
"""How many times the floor it may take."""
LEASES = 4
"""How many leases are listed."""
FLOOR = [sys.executable, "-c", "import click, rich.console"]


def cpu_ms(command: Sequence[str]) -> float:
    """User and system time of a process that must succeed, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    ours = floor = float("inf")
    with daemons(LEASES) as file:
        drive(control(file, "guest"), LEASES, LEASES)
        command = [
            str(Path(sys.executable).with_name("leasekit")),
            "lease",
            "list",
            "--actor",
            "guest",
            "--file",
            str(file),
        ]
        for _ in range(5 if options.quick else 20):
            floor, ours = min(floor, cpu_ms(FLOOR)), min(ours, cpu_ms(command))
    results = [
        result("lease_list_cpu_ms", ours, "ms", None, floor),
        result("lease_list_by_imports", ours / floor, "times", TARGET),
    ]
    return 0 if emit("door", "quick" if options.quick else "full", results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
