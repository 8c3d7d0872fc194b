"""What one commit comes to, worked out before any store is touched: the same for every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, cast

from leasekit.core.schema import LOG, LOG_COLUMNS, TABLES, Change, Row, StoreError

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
