"""Resident memory per active one-unit lease and actor: three actors in one process, signed, with SQLite stores."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path

from _bench_world import build, lease, world
from _report import emit, result

from leasekit.stores.sqlite import SqliteStore


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Measure the growth between the first thousand leases and all of them, so that what is there anyway doesn't
    count.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="5,000 leases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    first, count = 1000, 5000 if options.quick else options.leases
    with tempfile.TemporaryDirectory() as scratch:
        made = world(build(count + first, signed=True), lambda name: SqliteStore(Path(scratch) / f"{name}.db"))
        lease(made, first, 500)
        gc.collect()
        before = resident()
        lease(made, count, 500, there=first)
        gc.collect()
        grown = resident() - before
        for node in made.nodes.values():
            node.store.close()
    per_lease = grown / count / len(made.nodes)
    figure = result("bytes_per_lease", per_lease, "B", 8192.0)
    return 0 if emit("memory", "three actors in one process", [figure], options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
