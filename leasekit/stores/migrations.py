"""The schema of SQLite stores: how a new file gets it, and how the file of an earlier version does.

The version of a file is its ``PRAGMA user_version``. A new file gets the tables of
:data:`leasekit.core.schema.TABLES` at once. A migration brings a file to the next version, in one transaction with the
new number. Once released it never changes, so it spells out what it makes rather than reading those tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlite_utils import Database

from leasekit.core.schema import LOG, TABLES

Migration = Callable[[Database], None]

APPLICATION_ID: Final = 0x4C4B4954
"""``PRAGMA application_id`` of a leasekit store: "LKIT"."""


MIGRATIONS: Final[list[Migration]] = []
"""All migrations in order: the first brings a file of version 1 to version 2. None was needed yet."""


def newest() -> int:
    """The version that this code writes."""
    return 1 + len(MIGRATIONS)


def migrate(db: Database, found: int) -> None:
    """Brings a database from version ``found`` (0: it is empty) to the newest. Each step is whole or not taken.

    Raises ``sqlite3.Error``.
    """
    steps = MIGRATIONS[found - 1 :] if found else [create]
    for version, step in enumerate(steps, start=newest() - len(steps) + 1):
        with db.atomic():
            step(db)
            db.conn.execute(f"PRAGMA user_version = {version}")


def create(db: Database) -> None:
    """The tables of the newest version, and views of them for people."""
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for name, table in TABLES.items():
        key = next(iter(table.columns))
        db.create_table(name, dict(table.columns), pk=key, not_null={key}, strict=True)
        if table.archived:  # no other column is asked for, and each write of a row pays for its entries
            db.table(name).create_index(["live"])
    # AUTOINCREMENT, which sqlite-utils does not know: a number that was once given never comes again.
    db.conn.execute(
        f"CREATE TABLE {LOG} (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, lease TEXT, event TEXT,"
        " from_state TEXT, to_state TEXT, why TEXT) STRICT"
    )
    db.table(LOG).create_index(["lease"])
    _create_views(db)
    _index_the_past(db)


def _create_views(db: Database) -> None:
    def time(column: str) -> str:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000.0, 'unixepoch')"

    db.create_view(
        "lease_history",
        f"SELECT seq, {time('at')} AS time, lease, event, from_state, to_state, why FROM log ORDER BY seq",
    )
    db.create_view(
        "live_leases",
        f"SELECT id, slice, peer, type, state, pending, units, {time('term_start')} AS starts,"
        f" {time('term_end')} AS ends, reason FROM leases WHERE live = 1 ORDER BY term_end, id",
    )
    db.create_view("unit_count", "SELECT type, state, count(*) AS units FROM units GROUP BY type, state")


def _index_the_past(db: Database) -> None:
    """What is over is looked for by when it ended, and by whose it was."""
    for table, time, owner in (("leases", "updated", "peer"), ("claims", "term_end", "holder")):
        key = ", id" if table == "leases" else ""
        db.conn.execute(f"CREATE INDEX {table}_past ON {table} ({time}{key}) WHERE live = 0")
        db.conn.execute(f"CREATE INDEX {table}_past_of ON {table} ({owner}, {time}) WHERE live = 0")
