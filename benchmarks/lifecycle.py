"""Request to active: how many one-unit leases a second go through guest, broker and site.

Modes: ``local`` (one process, memory store, signatures off), ``signed`` (signatures on, SQLite with full sync) and
``sockets`` (three daemons on loopback, signed, SQLite with full sync). The floor of ``local`` and ``signed`` is a
bare loop of the same work in the same run: it replays what one run really signed, verified, encoded, decoded and
committed.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
from _bench_sockets import sockets
from _bench_world import build, lease, tune_gc, world
from _report import emit, result

from leasekit.core.claims.keys import Ed25519, Keypair
from leasekit.core.schema import LOG, LOG_COLUMNS, TABLES, Change, Store
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

TARGETS = {"local": 3000.0, "signed": 1000.0, "sockets": 500.0}


class Tape:
    """What one run did, to be done again without leasekit: signatures, checks, batches on the wire, commits."""

    def __init__(self) -> None:
        self.signed: list[bytes] = []
        self.verified: list[tuple[bytes, bytes, bytes]] = []
        self.batches: list[bytes] = []
        self.commits: list[tuple[str, Sequence[Change]]] = []

    def floor(self, folder: Path | None) -> float:
        """Seconds that a bare loop takes for the same."""
        names = {name for name, _ in self.commits} if folder else set()
        databases = {name: _database(folder / f"floor-{name}.db") for name in names} if folder else {}
        key, scheme = Keypair(b"\x07" * 32), Ed25519()
        begin = time.perf_counter()
        for body in self.signed:
            key.sign(body)
        for public, signature, body in self.verified:
            scheme.verify(public, signature, body)
        for batch in self.batches:
            msgpack.packb(msgpack.unpackb(batch, use_list=False))
        for name, changes in self.commits:
            if databases:
                _commit(databases[name], changes)
        return time.perf_counter() - begin


def _database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
    for name, table in TABLES.items():
        columns = list(table.columns)
        database.execute(f"CREATE TABLE {name} ({columns[0]} PRIMARY KEY, {', '.join(columns[1:])})")
    database.execute(f"CREATE TABLE {LOG} (seq INTEGER PRIMARY KEY, {', '.join(LOG_COLUMNS)})")
    return database


def _commit(database: sqlite3.Connection, changes: Sequence[Change]) -> None:
    rows: dict[str, list[Any]] = {}
    for table, _, row in changes:
        if row is not None:
            rows.setdefault(table, []).append(row if table != LOG else (None, *row))
    database.execute("BEGIN IMMEDIATE")
    for table, of_table in rows.items():
        marks = ",".join("?" * len(of_table[0]))
        database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", of_table)
    database.execute("COMMIT")


def _record(tape: Tape, made: Any) -> None:
    """Have a world write what it does onto the tape."""
    for name, node in made.nodes.items():
        commit = node.store.commit

        def taped(changes: Sequence[Change], name: str = name, commit: Any = commit) -> None:
            tape.commits.append((name, list(changes)))
            commit(changes)

        node.store.commit = taped
        actor = node.actor
        sign, verify = actor.signer.sign, actor.scheme.verify
        if isinstance(actor.signer, Keypair):
            actor.signer = _Signer(actor.signer.public, sign, tape)
            actor.scheme = actor.verifier._scheme = _Scheme(verify, tape)
    carry = made._carry

    def carried(sender: str, receiver: str, data: bytes) -> None:
        tape.batches.append(data)
        carry(sender, receiver, data)

    made._carry = carried


class _Signer:
    def __init__(self, public: bytes, sign: Any, tape: Tape) -> None:
        self.public, self._sign, self._tape = public, sign, tape

    def sign(self, data: bytes) -> bytes:
        self._tape.signed.append(data)
        signature: bytes = self._sign(data)
        return signature


class _Scheme:
    name = "ed25519"

    def __init__(self, verify: Any, tape: Tape) -> None:
        self._verify, self._tape = verify, tape

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        self._tape.verified.append((key, signature, data))
        return bool(self._verify(key, signature, data))


def in_process(mode: str, count: int, in_flight: int) -> tuple[float, float]:
    """Leases a second, ours and the floor's."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def store(name: str, run: str) -> Store:
            return SqliteStore(folder / f"{run}-{name}.db") if mode == "signed" else MemoryStore()

        tape = Tape()
        taped = world(build(count, signed=mode == "signed"), lambda name: store(name, "tape"))
        _record(tape, taped)
        lease(taped, count, in_flight)
        made = world(build(count, signed=mode == "signed"), lambda name: store(name, "run"))
        begin = time.perf_counter()
        lease(made, count, in_flight)
        ours = time.perf_counter() - begin
        floor = tape.floor(folder if mode == "signed" else None)
        for node in made.nodes.values():
            node.store.close()
    return count / ours, count / floor


def main() -> int:
    """Run one mode, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--leases", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tune_gc()
    fine = True
    for mode in TARGETS if options.mode == "all" else [options.mode]:
        if mode == "sockets":
            speed, floor = sockets(options.leases, options.in_flight), None
        else:
            speed, floor = in_process(mode, options.leases, options.in_flight)
        figure = result("leases_per_s", speed, "1/s", TARGETS[mode], floor, higher_is_better=True)
        fine &= emit("lifecycle", mode, [figure], options.json)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
