"""A store that keeps its rows in memory: for emulations and for tests. It outlives its actor, not its process. And what
one commit comes to, worked out before any store is touched: the same for every store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, cast

from leasekit.core.reasons import with_code
from leasekit.core.schema import LOG, LOG_COLUMNS, TABLES, Change, LogRow, Row, StoreError
from leasekit.core.time import Instant, Term

COLUMNS: Mapping[str, tuple[str, ...]] = {name: tuple(table.columns) for name, table in TABLES.items()}
"""The column names of every table but the log, in row order."""

LIVE: Mapping[str, int] = {name: COLUMNS[name].index("live") for name, table in TABLES.items() if table.archived}
"""Where an archived table keeps its ``live``, which is 0 or 1."""

_TYPES = {name: tuple(table.columns.values()) for name, table in TABLES.items()}
_TYPES[LOG] = tuple(LOG_COLUMNS.values())
_NAMES = {**COLUMNS, LOG: tuple(LOG_COLUMNS)}

MANY: Final = 16
"""From how many rows on it is cheaper to check them column by column."""

_key = itemgetter(0)

# The type signatures of rows that were found right, so that checking a row costs one look-up.
_known: dict[str, set[tuple[type, ...]]] = {name: set() for name in _TYPES}


class Batch(NamedTuple):
    """The net effect of a list of changes, by table. A key is either in ``writes``, with its row, or in ``deletes``."""

    writes: dict[str, dict[str, Row]]
    deletes: dict[str, list[str]]
    log: list[Row]


def make_batch(changes: Sequence[Change]) -> Batch:
    """Groups changes by table; the last change to a key wins, log rows keep their order.

    Raises ``StoreError`` that names table and column for a row that its table can't hold: an unknown table, a wrong
    number of values, a value of a wrong type, a key that is not the row's, a log row without a row.
    """
    last: dict[str, dict[str, Row | None]] = {}
    log: list[Row | None] = []
    for table, key, row in changes:
        if table == LOG:
            log.append(row)
        elif table in last:
            last[table][key] = row
        else:
            last[plain_table(table)] = {key: row}
    writes: dict[str, dict[str, Row]] = {}
    deletes: dict[str, list[str]] = {}
    for table, rows in last.items():
        gone = [key for key, row in rows.items() if row is None]
        for key in gone:
            del rows[key]
        if gone:
            deletes[table] = gone
        if rows:
            writes[table] = _checked(table, cast("dict[str, Row]", rows))
    return Batch(writes, deletes, _log_rows(log))


def archived_table(table: str) -> int:
    """The position of ``live`` in an archived table's rows. Raises ``StoreError`` for any other table."""
    if table not in LIVE:
        raise StoreError(f"table {table!r} keeps no past rows; those that do are: {', '.join(LIVE)}")
    return LIVE[table]


def _checked(table: str, rows: dict[str, Row]) -> dict[str, Row]:
    _check_all(table, list(rows.values()))
    if list(map(_key, rows.values())) != list(rows):
        key, row = next((key, row) for key, row in rows.items() if row[0] != key)
        raise StoreError(f"table {table}: found a row with key {row[0]!r} in a change of {key!r}")
    return rows


def _log_rows(log: list[Row | None]) -> list[Row]:
    rows = [row for row in log if row is not None]
    if len(rows) < len(log):
        raise StoreError(f"table {LOG}: found a deletion, its rows are only ever appended")
    _check_all(LOG, rows)
    return rows


def plain_table(table: str) -> str:
    """``table``, if it is one whose rows have keys. Raises ``StoreError`` otherwise."""
    if table not in TABLES:
        raise StoreError(f"found a table {table!r}, the tables are: {', '.join(TABLES)}")
    return table


def _check_all(table: str, rows: Sequence[Row]) -> None:
    """Raise ``StoreError`` unless the table can hold each of the rows: many by column, a few row by row."""
    if len(rows) >= MANY and set(map(len, rows)) == {len(_TYPES[table])}:
        columns = zip(_TYPES[table], zip(*rows, strict=True), strict=True)
        if all(list(map(type, column)).count(expected) == len(rows) for expected, column in columns):
            return
    known = _known[table]
    for row in rows:
        if tuple(map(type, row)) not in known:
            _check(table, row)


def _check(table: str, row: Row) -> None:
    if table != LOG:
        plain_table(table)
    names, types = _NAMES[table], _TYPES[table]
    if len(row) != len(types):
        raise StoreError(f"table {table}: found {len(row)} values, expected {len(types)} ({', '.join(names)})")
    for name, expected, value in zip(names, types, row, strict=True):
        if value is not None and not isinstance(value, expected):
            found = f"{value!r:.80} ({type(value).__name__})"
            raise StoreError(f"table {table}, column {name}: found {found}, expected {expected.__name__} or None")
    _known[table].add(tuple(map(type, row)))


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

    def log(self, after: int = 0, limit: int | None = None, code: str = "", before: int = 0) -> list[LogRow]:
        """As :meth:`leasekit.core.schema.Store.log`."""
        self._check_open()
        begin, last = with_code(code), len(self._log)
        wanted = range(min(last, before - 1), max(after, 0), -1) if before else range(max(after, 0) + 1, last + 1)
        rows = (LogRow(seq, *self._log[seq - 1]) for seq in wanted)
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
