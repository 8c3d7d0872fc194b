"""Stores under faults: memory, or the real SQLite file, which is left behind as a kill finds it.

A crash of an actor on SQLite abandons the open file: the new store is opened on a copy of database and write-ahead log
as they were at that instant, or as they were when a commit was half written. What comes back is compared with a book of
the rows that were committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leasekit.core.schema import LOG, TABLES, Change, LogRow, Row, Store, StoreError
from leasekit.core.time import Instant, Term
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore
from leasekit_simulation.faults.checkers import must

FILE = "state.db"


class FaultyStore:
    """A store whose disk can be full, and which can be taken away in the middle of anything."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.full = False

    def load(self) -> dict[str, list[Row]]:
        """As the store's."""
        return self.inner.load()

    def commit(self, changes: Sequence[Change]) -> None:
        """As the store's. Raises ``StoreError`` while the disk is full."""
        if self.full:
            raise StoreError("no space left on the disk; nothing of the transaction was applied")
        self.inner.commit(changes)

    def set_full(self, full: bool) -> None:
        """Whether the disk is full from now on."""
        self.full = full

    def crash(self, torn: Sequence[Change] = (), share: float = 0.0) -> None:
        """The process is killed; with ``torn``, when this ``share`` of that commit was on the disk."""

    def history(self, lease: str) -> list[LogRow]:
        """As the store's."""
        return self.inner.history(lease)

    def log(self, after: int = 0, limit: int | None = None, code: str = "", before: int = 0) -> list[LogRow]:
        """As the store's."""
        return self.inner.log(after, limit, code, before)

    def log_end(self) -> int:
        """As the store's."""
        return self.inner.log_end()

    def archived(self, table: str, limit: int | None = None) -> list[Row]:
        """As the store's."""
        return self.inner.archived(table, limit)

    def past(self, period: Term, after: tuple[Instant, str], limit: int, state: str = "") -> list[Row]:
        """As the store's."""
        return self.inner.past(period, after, limit, state)

    def get(self, table: str, key: str) -> Row | None:
        """As the store's."""
        return self.inner.get(table, key)

    def close(self) -> None:
        """As the store's."""
        self.inner.close()


def memory_store() -> FaultyStore:
    """A store in memory."""
    return FaultyStore(MemoryStore())


class KilledSqlite(FaultyStore):
    """The SQLite store in a file that survives kills, with a book of what was committed to it."""

    def __init__(self, folder: Path, name: str, met: Callable[[str], None]) -> None:
        """``folder`` is where its files go; ``name`` is the actor's."""
        self._folder, self._name, self._met = folder, name, met
        self._life = 0
        self._book: dict[str, dict[str, Row]] = {table: {} for table in TABLES}
        self._lines = 0
        self._place().mkdir(parents=True)
        super().__init__(SqliteStore(self._place() / FILE))

    def _place(self) -> Path:
        return self._folder / f"{self._name}-{self._life}"

    def commit(self, changes: Sequence[Change]) -> None:
        """As the store's; on a full disk it is SQLite that says so, where it needs a page that is not there."""
        self.inner.commit(changes)
        self._write_down(changes)

    def _write_down(self, changes: Sequence[Change]) -> None:
        for table, key, row in changes:
            if table == LOG:
                self._lines += 1
            elif row is None:
                self._book[table].pop(key, None)
            else:
                self._book[table][key] = row

    def set_full(self, full: bool) -> None:
        """Bounds the file to the pages that it has, or to as many as SQLite knows."""
        self.full = full
        self._bound_pages()

    def _bound_pages(self) -> None:
        assert isinstance(self.inner, SqliteStore)
        connection = self.inner._connection()  # a fault is put in from the inside
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages if self.full else 2**30}")

    def crash(self, torn: Sequence[Change] = (), share: float = 0.0) -> None:
        """Abandon the files as they are, and open a copy of them as a new process would."""
        old = self._place()
        before = {name: (old / name).read_bytes() for name in (FILE, f"{FILE}-wal") if (old / name).exists()}
        if torn and not self.full:
            self.inner.commit(torn)
            wal = f"{FILE}-wal"
            before[wal] = _half_written(before.get(wal, b""), (old / wal).read_bytes(), share)
            self._met("sqlite: killed in a commit")
        self._life += 1
        self._place().mkdir()
        for name, data in before.items():
            (self._place() / name).write_bytes(data)
            (self._place() / name).chmod(0o600)
        self.inner.close()
        shutil.rmtree(old)
        self.inner = SqliteStore(self._place() / FILE)
        self._met("sqlite: restored from its file")
        if self.full:
            self._bound_pages()
        self._compare()

    def _compare(self) -> None:
        loaded = self.inner.load()
        for table, found in loaded.items():
            live = list(TABLES[table].columns).index("live") if TABLES[table].archived else None
            expected = [row for _, row in sorted(self._book[table].items()) if live is None or row[live]]
            wrong = _first_difference(expected, found)
            must(wrong is None, f"{self._name}: table {table} came back from the disk with {wrong}")
        lines = len(self.inner.log())
        must(lines == self._lines, f"{self._name}: {lines} of {self._lines} lines of the log came back from the disk")

    def close(self) -> None:
        """As the store's; its files go with it."""
        super().close()
        shutil.rmtree(self._place(), ignore_errors=True)


def _half_written(before: bytes, after: bytes, share: float) -> bytes:
    """The file when only the first part of what changed from ``before`` to ``after`` had reached the disk.

    The last frame of a commit is what makes it one, so that at least a byte of it must be missing.
    """
    same = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    last = next((n for n in range(len(after) - 1, -1, -1) if n >= len(before) or after[n] != before[n]), len(after) - 1)
    cut = same + int((last - same) * share)
    return after[:cut] + before[cut:]


def _first_difference(expected: Sequence[Row], found: Sequence[Row]) -> str | None:
    if expected == found:
        return None
    mine: Mapping[Any, Row] = {row[0]: row for row in expected}
    theirs: Mapping[Any, Row] = {row[0]: row for row in found}
    for key in sorted(set(mine) | set(theirs)):
        if mine.get(key) != theirs.get(key):
            return f"row {key}: {theirs.get(key)!r:.200}, committed was {mine.get(key)!r:.200}"
    return "its rows in another order"
