"""The floor of the lifecycle: a bare loop that does again what one run of the actors really did.

The loop makes the same signatures and checks them as often, encodes and decodes the same claims, messages and rows, and
makes the same transactions of the same rows. What is left out is all that decides: states, timers, tickets' checks.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from leasekit.core.claims.signed import Ed25519, Keypair
from leasekit.core.schema import LOG, LOG_COLUMNS, TABLES, Change
from leasekit.emulation.world import World
from leasekit.stores.sqlite import SqliteStore

_unpack = msgpack.unpackb


class _Write(NamedTuple):
    """One row to write: ``body`` is what its last column holds in msgpack, None where the row has no such column."""

    table: str
    key: str
    columns: tuple[Any, ...]
    body: Any


class Tape:
    """What one run did: the bodies that were signed and verified, the batches on the wire, the transactions."""

    def __init__(self) -> None:
        self.signed: list[bytes] = []
        self.verified: list[tuple[bytes, bytes, bytes]] = []
        self.batches: list[bytes] = []
        self.commits: list[tuple[str, Sequence[Change]]] = []

    def record(self, world: World) -> None:
        """Have a world write what it does onto the tape."""
        for name, node in world.nodes.items():
            keyring: Any = node.actor.keyring
            keyring.signer = _Signer(keyring.signer, self)
            keyring.scheme = keyring.verifier._scheme = _Scheme(keyring.scheme, self)
            store: Any = node.store
            store.commit = self._taped(name, store.commit)
        carry = world._carry

        def carried(sender: str, receiver: str, data: bytes) -> None:
            self.batches.append(data)
            carry(sender, receiver, data)

        world._carry = carried  # type: ignore[method-assign]

    def _taped(self, name: str, commit: Callable[[Sequence[Change]], None]) -> Callable[[Sequence[Change]], None]:
        def taped(changes: Sequence[Change]) -> None:
            self.commits.append((name, list(changes)))
            commit(changes)

        return taped

    def play(self, *, signatures: bool, folder: Path | None) -> float:
        """Seconds that the bare loop takes; into databases in ``folder``, or into dictionaries without one."""
        claims = [_unpack(body) for body in self.signed]
        messages = [_unpack(batch) for batch in self.batches]
        commits = [(name, [_write(change) for change in changes]) for name, changes in self.commits]
        names = {name for name, _ in commits}
        into = {name: _Database(folder / f"floor-{name}.db") if folder else _Dictionaries() for name in names}
        pack, key, scheme = msgpack.Packer().pack, Keypair(b"\x07" * 32), Ed25519()
        begin = time.perf_counter()
        for claim in claims:
            body = pack(claim)
            if signatures:
                key.sign(body)
        for public, signature, body in self.verified:
            _unpack(body)
            if signatures:
                scheme.verify(public, signature, body)
        for batch in messages:
            _unpack(pack(batch))
        for name, writes in commits:
            into[name].commit(
                [
                    (table, row_key, columns if body is None else (*columns, pack(body)))
                    for table, row_key, columns, body in writes
                ]
            )
        took = time.perf_counter() - begin
        for store in into.values():
            store.close()
        return took


def _write(change: Change) -> _Write:
    row = change.row
    if row is None:
        return _Write(change.table, change.key, (), None)
    if change.table in TABLES and list(TABLES[change.table].columns)[-1] == "body":
        return _Write(change.table, change.key, row[:-1], _unpack(row[-1], strict_map_key=False))
    return _Write(change.table, change.key, row, None)


class _Dictionaries:
    """Rows in memory, the last one of each key."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, tuple[Any, ...]]] = {name: {} for name in TABLES}
        self._log: list[tuple[Any, ...]] = []

    def commit(self, rows: Sequence[tuple[str, str, tuple[Any, ...]]]) -> None:
        """Apply one transaction."""
        for table, key, row in rows:
            if table == LOG:
                self._log.append(row)
            elif row:
                self._tables[table][key] = row
            else:
                self._tables[table].pop(key, None)

    def close(self) -> None:
        """Let go of the rows."""
        self._tables.clear()


class _Database:
    """Rows in SQLite with the store's own tables, write-ahead log and full sync."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        SqliteStore(path).close()
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
        self._inserts: Mapping[str, str] = {
            **{name: f"INSERT OR REPLACE INTO {name} VALUES ({_marks(of.columns)})" for name, of in TABLES.items()},
            LOG: f"INSERT INTO {LOG} ({', '.join(LOG_COLUMNS)}) VALUES ({_marks(LOG_COLUMNS)})",
        }

    def commit(self, rows: Sequence[tuple[str, str, tuple[Any, ...]]]) -> None:
        """Apply one transaction, the last row of each key."""
        last: dict[str, dict[str, tuple[Any, ...]]] = {}
        log = []
        for table, key, row in rows:
            if table == LOG:
                log.append(row)
            else:
                last.setdefault(table, {})[key] = row
        self._db.execute("BEGIN IMMEDIATE")
        for table, found in last.items():
            self._db.executemany(self._inserts[table], [row for row in found.values() if row])
            gone = [(key,) for key, row in found.items() if not row]
            if gone:
                self._db.executemany(f"DELETE FROM {table} WHERE {next(iter(TABLES[table].columns))} = ?", gone)
        self._db.executemany(self._inserts[LOG], log)
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _marks(columns: Mapping[str, type]) -> str:
    return ", ".join("?" * len(columns))


class _Signer:
    def __init__(self, signer: Any, tape: Tape) -> None:
        self.public, self._signer, self._tape = signer.public, signer, tape

    def sign(self, data: bytes) -> bytes:
        self._tape.signed.append(data)
        signature: bytes = self._signer.sign(data)
        return signature


class _Scheme:
    def __init__(self, scheme: Any, tape: Tape) -> None:
        self.name, self._scheme, self._tape = scheme.name, scheme, tape

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        self._tape.verified.append((key, signature, data))
        return bool(self._scheme.verify(key, signature, data))
