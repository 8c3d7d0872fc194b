"""Whether the memory of a daemon stays flat under floods of all kinds, one after the other, without end.

    python benchmarks/hostile_memory.py [--json] [--quick] [--rounds N | --hours H] [--target NAME]

Daemons and floods as in ``hostile``. Who is flooded keeps at most 2 MiB of what a peer says (``kept_bytes``): the
first rounds reach that, and some 200 the 8 MiB of pages that a store keeps in memory. The figure is the most resident
memory of the second half of the rounds, as a multiple of that of the first half. An honest guest has leases all the
while.

A day takes a day, or an hour where all clocks go 24 times as fast, the attacker's as well (by ``faketime``: what takes
processor time then takes 24 times as long by them, and every timeout comes that early)::

    faketime -f '+0 x24' python benchmarks/hostile_memory.py --hours 24
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from _bench_attacker import CONNECTIONS, FLOODS
from _bench_sockets import control, daemons
from _report import Result, emit, result
from hostile import UNITS, flooded, hostile, latencies

from leasekit.core.time import HOUR, MINUTE
from leasekit.runtime.client import ControlClient

RATIO = 1.05
"""How much more than in the first half of the rounds may be resident in the second."""
LASTS = 5.0
"""For how many seconds each flood goes on at least."""
FEW = 5
"""How many leases an honest guest has under each flood."""
LEASED = 20 * MINUTE
"""For how long, so that what it is allowed is enough where clocks go fast."""
MESSAGES = tuple(flood for flood in FLOODS if flood not in CONNECTIONS)


def settings(target: str) -> str:
    """How little ``target`` keeps, and how patient guest and broker are, for the deploy file."""
    patience, kept = 'request_timeout = "10m"', f"kept_bytes = {2 * 2**20}"
    tables = {"guest": [patience], "broker": [patience], "site": []}
    tables[target].append(kept)
    return "".join(f"\n[actor.{name}.settings]\n" + "\n".join(lines) + "\n" for name, lines in tables.items())


def looked_at(file: Path, target: str) -> tuple[float, float]:
    """The resident memory of a daemon, in MB, and the hours on its clock."""
    with ControlClient(control(file, target)) as client:
        status = client.query("status")
    lines = Path(f"/proc/{status['pid']}/status").read_text(encoding="ascii").splitlines()
    resident = next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS:"))
    return resident, status["shell"]["clock"]["now"] / HOUR


def round_of(file: Path, target: str) -> tuple[float, float]:
    """Every flood of messages once, and one of connections; memory and clock after it, as :func:`looked_at`."""
    for flood in (*MESSAGES, "forged"):
        with flooded(file, flood, target):
            until = time.monotonic() + LASTS
            latencies(control(file, "guest"), FEW, LEASED)
            time.sleep(max(0.0, until - time.monotonic()))
    return looked_at(file, target)


def main() -> int:
    """Flood, round after round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds, which are shown and not judged: the first ones reach what may be kept",
    )
    parser.add_argument("--rounds", type=int, default=10, help="how often all floods come (default: 10)")
    parser.add_argument(
        "--hours", type=float, default=0.0, help="for how long they come at least, by the target's clock"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--target", choices=("broker", "site"), default="broker", help="who is flooded")
    options = parser.parse_args()
    rounds = 2 if options.quick else max(6, options.rounds)
    found: list[float] = []
    with daemons(UNITS, hostile(options.target) + settings(options.target)) as file:
        _, begin = looked_at(file, options.target)
        hours = 0.0
        while len(found) < rounds or hours < options.hours:
            memory, now = round_of(file, options.target)
            found.append(memory)
            hours = now - begin
            print(f"round {len(found)}: {memory:.1f} MB after {hours:.2f} h", file=sys.stderr)
    half = len(found) // 2
    first, second = max(found[:half]), max(found[half:])
    results: list[Result] = [
        result("lasted", hours, "h", None),
        result("resident_mb", second, "MB", None, first),
        result("resident", second / first, "times", None if options.quick else RATIO),
    ]
    mode = "quick" if options.quick else "full"
    return 0 if emit(f"hostile_memory of {options.target}", mode, results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
