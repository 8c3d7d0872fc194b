"""Request to active: how many one-unit leases a second go through guest, broker and site.

Modes: ``local`` (one process, memory store, signatures off), ``signed`` (signatures on, SQLite with full sync) and
``sockets`` (three daemons on loopback, signed, SQLite with full sync). The floor of ``local`` and ``signed`` is a
bare loop of the same signatures, checks, encodings and transactions in the same run (:mod:`_bench_tape`).

A figure is the best of some rounds, its floor too: what else a machine does takes away from a round, never adds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from _bench_sockets import sockets
from _bench_tape import Tape
from _bench_world import build, lease, tune_gc, world
from _report import Result, emit, result

from leasekit.core.schema import Store
from leasekit.emulation.world import World
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

TARGETS = {"local": 3000.0, "signed": 1000.0, "sockets": 500.0}


def in_process(mode: str, count: int, in_flight: int, rounds: int) -> tuple[float, float]:
    """Leases a second, ours and the floor's: the best of the rounds."""
    signed, tape = mode == "signed", Tape()
    with tempfile.TemporaryDirectory() as scratch:
        taped = _world(Path(scratch), count, signed)
        tape.record(taped)
        lease(taped, count, in_flight)
        _close(taped)
    ours = floor = float("inf")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            made = _world(Path(scratch), count, signed)
            begin = time.perf_counter()
            lease(made, count, in_flight)
            ours = min(ours, time.perf_counter() - begin)
            _close(made)
            floor = min(floor, tape.play(signatures=signed, folder=Path(scratch) if signed else None))
    return count / ours, count / floor


def _world(folder: Path, count: int, signed: bool) -> World:
    def store(name: str) -> Store:
        return SqliteStore(folder / f"{name}.db") if signed else MemoryStore()

    return world(build(count, signed=signed), store)


def _close(made: World) -> None:
    for node in made.nodes.values():
        node.store.close()


def figure(mode: str, name: str, count: int, in_flight: int, rounds: int) -> Result:
    """The figure of one mode."""
    floor: float | None = None
    if mode == "sockets":
        speed = max(sockets(count, in_flight) for _ in range(rounds))
    else:
        speed, floor = in_process(mode, count, in_flight, rounds)
    return result(name, speed, "1/s", TARGETS[mode], floor, higher_is_better=True)


def main() -> int:
    """Run one mode, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--leases", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1,000 leases in one round, 500 at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tune_gc()
    size = (1000, 500, 1) if options.quick else (options.leases, options.in_flight, options.rounds)
    if options.mode == "all":
        results = [figure(mode, f"leases_per_s_{mode}", *size) for mode in TARGETS]
    else:
        results = [figure(options.mode, "leases_per_s", *size)]
    return 0 if emit("lifecycle", options.mode, results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
