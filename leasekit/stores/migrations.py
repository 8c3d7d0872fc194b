"""The schema of SQLite stores: how a new file gets it, and how the file of an earlier version does.

The version of a file is its ``PRAGMA user_version``. A new file gets the tables of
:data:`leasekit.core.schema.TABLES` at once. A migration brings a file to the next version, in one transaction with the
new number. Once released it never changes, so it spells out what it makes rather than reading those tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

from leasekit.core.schema import LOG, LOG_COLUMNS, TABLES

Migration = Callable[[sqlite3.Connection], None]

APPLICATION_ID: Final = 0x4C4B4954
"""``PRAGMA application_id`` of a leasekit store: "LKIT"."""


_KINDS: Final[Mapping[type, str]] = {str: "TEXT", int: "INTEGER", bytes: "BLOB"}

MIGRATIONS: Final[list[Migration]] = []
"""All migrations in order: the first brings a file of version 1 to version 2. None was needed yet."""


def newest() -> int:
    """The version that this code writes."""
    return 1 + len(MIGRATIONS)


def migrate(db: sqlite3.Connection, found: int) -> None:
    """Brings a database from version ``found`` (0: it is empty) to the newest. Each step is whole or not taken.

    Raises ``sqlite3.Error``.
    """
    steps = MIGRATIONS[found - 1 :] if found else [create]
    for version, step in enumerate(steps, start=newest() - len(steps) + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            step(db)
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def create(db: sqlite3.Connection) -> None:
    """The tables of the newest version, and views of them for people."""
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for name, table in TABLES.items():
        key, *others = _declared(table.columns)
        db.execute(f"CREATE TABLE {name} ({key} PRIMARY KEY NOT NULL, {', '.join(others)}) STRICT")
        if table.archived:  # no other column is asked for, and each write of a row pays for its entries
            db.execute(f"CREATE INDEX idx_{name}_live ON {name} (live)")
    # AUTOINCREMENT: a number that was once given never comes again.
    columns = ", ".join(_declared(LOG_COLUMNS))
    db.execute(f"CREATE TABLE {LOG} (seq INTEGER PRIMARY KEY AUTOINCREMENT, {columns}) STRICT")
    db.execute(f"CREATE INDEX idx_{LOG}_lease ON {LOG} (lease)")
    _create_views(db)
    _index_the_past(db)


def _declared(columns: Mapping[str, type]) -> list[str]:
    return [f'"{name}" {_KINDS[kind]}' for name, kind in columns.items()]


def _create_views(db: sqlite3.Connection) -> None:
    def time(column: str) -> str:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000.0, 'unixepoch')"

    db.execute(
        "CREATE VIEW lease_history AS"
        f" SELECT seq, {time('at')} AS time, lease, event, from_state, to_state, why FROM log ORDER BY seq",
    )
    db.execute(
        "CREATE VIEW live_leases AS"
        f" SELECT id, slice, peer, type, state, pending, units, {time('term_start')} AS starts,"
        f" {time('term_end')} AS ends, reason FROM leases WHERE live = 1 ORDER BY term_end, id",
    )
    db.execute("CREATE VIEW unit_count AS SELECT type, state, count(*) AS units FROM units GROUP BY type, state")


def _index_the_past(db: sqlite3.Connection) -> None:
    """What is over is looked for by when it ended, by its state, and by whose it was."""
    for table, time, owner in (("leases", "updated", "peer"), ("claims", "term_end", "holder")):
        key = ", id" if table == "leases" else ""
        db.execute(f"CREATE INDEX {table}_past ON {table} ({time}{key}) WHERE live = 0")
        if table == "leases":
            db.execute("CREATE INDEX leases_past_in ON leases (state, updated, id) WHERE live = 0")
        db.execute(f"CREATE INDEX {table}_past_of ON {table} ({owner}, {time}) WHERE live = 0")
