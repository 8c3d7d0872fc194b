"""What a SQLite store lets go of: history that is older than wanted, or more than one owner's share.

It goes a little at a time, with the commits that write something new: about twice as much as that. So a store stays as
large as what it is to keep, and no commit waits for long. The file does not shrink; what is free in it is used again.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Final

import attrs

from leasekit.core.schema import LOG, History
from leasekit.core.time import Instant
from leasekit.stores.memory import COLUMNS, LIVE, Batch

EVERY: Final = 256
"""After how many new lines of the log the store is tidied."""
SLICES_MAX: Final = 100_000
"""How many slices that are over stay."""

_OWNER: Final = {"leases": ("peer", "updated"), "claims": ("holder", "term_end")}
_AT, _LEASE = 0, 1


@attrs.define(eq=False)
class Tidying:
    """Tidies one store by what its commits write. Raises ``sqlite3.Error``, in the transaction of the commit."""

    _history: History
    _lines: int = attrs.field(default=0, init=False)
    _now: Instant = attrs.field(default=0, init=False)
    _owners: dict[tuple[str, str], int] = attrs.field(factory=dict, init=False)
    _written: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _seq: int = attrs.field(default=0, init=False)

    def after(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """A batch was written: from time to time some of what is too old goes with it."""
        for table, (owner, _) in _OWNER.items():
            place, live = COLUMNS[table].index(owner), LIVE[table]
            self._written.update((table, row[place]) for row in batch.writes.get(table, {}).values() if not row[live])
        if not batch.log:
            return
        self._lines += len(batch.log)
        self._now = max(self._now, batch.log[-1][_AT])
        if self._lines >= EVERY:
            self._tidy(connection, self._now - self._history.kept, self._lines)
            self._lines = 0

    def _tidy(self, connection: sqlite3.Connection, before: Instant, lines: int) -> None:
        for table, (_, time) in _OWNER.items():
            sql = f"SELECT id FROM {table} WHERE live = 0 AND {time} < ? ORDER BY {time} LIMIT {lines}"
            self._delete(connection, table, [id_ for (id_,) in connection.execute(sql, (before,))])
        for (table, owner), written in self._written.items():
            self._delete(connection, table, self._surplus(connection, table, owner, written))
        self._written.clear()
        self._tidy_log(connection, before, 2 * lines)
        sql = f"SELECT rowid FROM slices WHERE live = 0 ORDER BY rowid DESC LIMIT 1 OFFSET {SLICES_MAX}"
        for (rowid,) in connection.execute(sql).fetchall():
            connection.execute("DELETE FROM slices WHERE live = 0 AND rowid <= ?", (rowid,))

    def _surplus(self, connection: sqlite3.Connection, table: str, owner: str, written: int) -> list[str]:
        """The oldest of an owner's rows, where there are too many. They are counted when there may be: some of those
        that were ``written`` were there before.
        """
        name, time = _OWNER[table]
        known = self._owners.get((table, owner))
        if known is not None and known + written <= self._history.most:
            self._owners[table, owner] = known + written
            return []
        where = f"FROM {table} WHERE live = 0 AND {name} = ?"
        (count,) = connection.execute(f"SELECT count(*) {where}", (owner,)).fetchone()
        self._owners[table, owner] = min(count, self._history.most)
        sql = f"SELECT id {where} ORDER BY {time} LIMIT ?"
        surplus = max(0, min(count - self._history.most, 2 * written))
        return [id_ for (id_,) in connection.execute(sql, (owner, surplus))]

    @staticmethod
    def _delete(connection: sqlite3.Connection, table: str, ids: list[str]) -> None:
        if table == "leases":
            connection.executemany(f"DELETE FROM {LOG} WHERE lease = ?", ((id_,) for id_ in ids))
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", ((id_,) for id_ in ids))

    def _tidy_log(self, connection: sqlite3.Connection, before: Instant, lines: int) -> None:
        """Old lines go that are of no lease; those of leases go with these."""
        sql = (
            f"SELECT seq, at, EXISTS (SELECT 1 FROM leases WHERE id = lease) FROM {LOG} WHERE seq > ? ORDER BY seq"
            f" LIMIT {lines}"
        )
        for seq, at, is_lease in connection.execute(sql, (self._seq,)).fetchall():
            if at >= before:
                break
            if not is_lease:
                connection.execute(f"DELETE FROM {LOG} WHERE seq = ?", (seq,))
            self._seq = seq
