"""A store that keeps its rows in memory: for emulations and for tests. It outlives its actor, not its process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from leasekit.core.reasons import with_code
from leasekit.core.schema import TABLES, Change, LogRow, Row, StoreError
from leasekit.core.time import Instant, Term
from leasekit.stores.batch import COLUMNS, LIVE, archived_table, make_batch, plain_table

_START, _ENDED, _STATE = (COLUMNS["leases"].index(name) for name in ("term_start", "updated", "state"))


class MemoryStore:
    """A :class:`~leasekit.core.schema.Store` in dictionaries.

    An actor that is made anew after a simulated crash restores itself from the same instance.
    """

    def __init__(self, *, keep_log: bool = True) -> None:
        """Without ``keep_log`` transitions are not kept, for long emulations that write them to a file themselves."""
        self._keep_log = keep_log
        self._tables: dict[str, dict[str, Row]] = {name: {} for name in TABLES}
        self._log: list[Row] = []
        self._closed = False

    def load(self) -> dict[str, list[Row]]:
        """As :meth:`leasekit.core.schema.Store.load`."""
        self._check_open()
        return {name: self._live_rows(name) for name in TABLES}

    def _live_rows(self, table: str) -> list[Row]:
        rows = self._tables[table]
        live = LIVE.get(table)
        return [row for _, row in sorted(rows.items()) if live is None or row[live]]

    def commit(self, changes: Sequence[Change]) -> None:
        """As :meth:`leasekit.core.schema.Store.commit`: what is wrong with a change is found before any is applied."""
        self._check_open()
        batch = make_batch(changes)
        for table, keys in batch.deletes.items():
            rows = self._tables[table]
            for key in keys:
                rows.pop(key, None)
        for table, written in batch.writes.items():
            self._tables[table].update(written)
        if self._keep_log:
            self._log.extend(batch.log)

    def history(self, lease: str) -> list[LogRow]:
        """As :meth:`leasekit.core.schema.Store.history`; looks through the whole log."""
        self._check_open()
        return [LogRow(seq, *row) for seq, row in enumerate(self._log, start=1) if row[1] == lease]

    def log(self, after: int = 0, limit: int | None = None, code: str = "") -> list[LogRow]:
        """As :meth:`leasekit.core.schema.Store.log`."""
        self._check_open()
        first, begin = max(after, 0), with_code(code)
        rows = (LogRow(seq, *row) for seq, row in enumerate(islice(self._log, first, None), start=first + 1))
        return list(islice((row for row in rows if not code or row.why.startswith(begin)), limit))

    def log_end(self) -> int:
        """As :meth:`leasekit.core.schema.Store.log_end`."""
        self._check_open()
        return len(self._log)

    def archived(self, table: str, limit: int | None = None) -> list[Row]:
        """As :meth:`leasekit.core.schema.Store.archived`; the newest is the one that was first written last."""
        self._check_open()
        live = archived_table(table)
        past = (row for row in reversed(self._tables[table].values()) if not row[live])
        return list(islice(past, limit))

    def past(self, period: Term, after: tuple[Instant, str], limit: int, state: str = "") -> list[Row]:
        """As :meth:`leasekit.core.schema.Store.past`."""
        self._check_open()
        live, start, ended = LIVE["leases"], _START, _ENDED
        found = (
            row
            for row in self._tables["leases"].values()
            if not row[live] and row[ended] >= period.start and row[start] < period.end and (row[ended], row[0]) > after
            if state in ("", row[_STATE])
        )
        return sorted(found, key=lambda row: (row[ended], row[0]))[:limit]

    def get(self, table: str, key: str) -> Row | None:
        """As :meth:`leasekit.core.schema.Store.get`."""
        self._check_open()
        return self._tables[plain_table(table)].get(key)

    def close(self) -> None:
        """As :meth:`leasekit.core.schema.Store.close`."""
        self._closed = True
        self._tables.clear()
        self._log.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store in memory is closed")


class Forgetful(MemoryStore):
    """A store that keeps nothing, for emulations in which no actor is ever made anew."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Let go of them."""
