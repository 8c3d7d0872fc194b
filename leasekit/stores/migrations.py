"""The schema of SQLite stores, version by version.

The version of a file is its ``PRAGMA user_version``. Migration n brings a database of version n - 1 to
version n, in one transaction with the new number. A migration that was released never changes, so each spells
out what it makes rather than reading :data:`leasekit.core.schema.TABLES`; a test holds the sum of all against
those tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlite_utils import Database

Migration = Callable[[Database], None]

APPLICATION_ID: Final = 0x4C4B4954
"""``PRAGMA application_id`` of a leasekit store: "LKIT"."""

MIGRATIONS: Final[list[Migration]] = []
"""All migrations in order; their number is the version that this code writes."""


def migration(function: Migration) -> Migration:
    """Registers the next migration."""
    MIGRATIONS.append(function)
    return function


def migrate(db: Database, found: int) -> None:
    """Brings a database from version ``found`` to the newest. Each step is whole or not taken.

    Raises ``sqlite3.Error``.
    """
    for version, function in enumerate(MIGRATIONS[found:], start=found + 1):
        with db.atomic():
            function(db)
            db.conn.execute(f"PRAGMA user_version = {version}")


@migration
def tables_of_version_1(db: Database) -> None:
    """The first tables, and views of them for people."""
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    tables: Mapping[str, Mapping[str, type]] = {
        "meta": {"key": str, "value": int},
        "slices": {"id": str, "name": str, "live": int, "body": bytes},
        "leases": {
            "id": str, "live": int, "slice": str, "peer": str, "type": str, "state": str, "pending": str, "units": int,
            "term_start": int, "term_end": int, "reason": str, "updated": int, "body": bytes,
        },
        "units": {"id": str, "lease": str, "type": str, "state": str, "action": int, "reason": str, "body": bytes},
        "claims": {
            "id": str, "live": int, "parent": str, "lease": str, "issuer": str, "holder": str, "type": str,
            "units": int, "term_start": int, "term_end": int, "state": str, "body": bytes,
        },
        "delegations": {
            "id": str, "peer": str, "type": str, "units": int, "term_start": int, "term_end": int, "state": str,
            "reason": str, "body": bytes,
        },
        "returns": {"id": str, "lease": str, "stage": str, "body": bytes},
    }  # fmt: skip
    for name, columns in tables.items():
        key = next(iter(columns))
        db.create_table(name, dict(columns), pk=key, not_null={key}, strict=True)
    indexes = {
        "slices": ("live",),
        "leases": ("live", "slice"),
        "units": ("lease",),
        "claims": ("live", "parent", "lease"),
    }
    for name, indexed in indexes.items():
        for column in indexed:
            db.table(name).create_index([column])
    # AUTOINCREMENT, which sqlite-utils does not know: a number that was once given never comes again.
    db.conn.execute(
        "CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, lease TEXT, event TEXT,"
        " from_state TEXT, to_state TEXT, why TEXT) STRICT"
    )
    db.table("log").create_index(["lease"])
    _create_views(db)


@migration
def tables_of_version_2(db: Database) -> None:
    """What actors have with each other beside leases: notices that are due, peers made known later, evidence."""
    tables: Mapping[str, Mapping[str, type]] = {
        "notices": {"id": str, "peer": str, "state": str, "until": int, "body": bytes},
        "peers": {"id": str, "role": str, "key": str, "address": str, "origin": str, "body": bytes},
        "maintenance": {"id": str, "start": int, "end": int, "reason": str, "body": bytes},
        "evidence": {"id": str, "at": int, "kind": str, "guilty": str, "words": str, "body": bytes},
    }
    for name, columns in tables.items():
        db.create_table(name, dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def fewer_indexes_in_version_3(db: Database) -> None:
    """No query goes by these columns, and each write of a row paid for its entries."""
    for index in ("leases_slice", "units_lease", "claims_parent", "claims_lease"):
        db.conn.execute(f"DROP INDEX idx_{index}")


@migration
def plans_in_version_4(db: Database) -> None:
    """What brokers hold for planned topologies, and what guests make of them."""
    columns: Mapping[str, type] = {"id": str, "peer": str, "state": str, "expires": int, "body": bytes}
    db.create_table("plans", dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def usage_in_version_5(db: Database) -> None:
    """What holders have had of a broker, beyond the records of their leases."""
    columns: Mapping[str, type] = {"id": str, "holder": str, "type": str, "until": int, "body": bytes}
    db.create_table("usage", dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def saved_units_in_version_6(db: Database) -> None:
    """What a site keeps of the units of suspended leases."""
    columns: Mapping[str, type] = {
        "id": str, "lease": str, "holder": str, "type": str, "state": str, "until": int, "body": bytes,
    }  # fmt: skip
    db.create_table("saved", dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def reports_in_version_7(db: Database) -> None:
    """What sites have found out about claims, and told brokers."""
    columns: Mapping[str, type] = {"id": str, "at": int, "peer": str, "code": str, "words": str, "body": bytes}
    db.create_table("reports", dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def wishes_in_version_8(db: Database) -> None:
    """What operators had delegated, beside what the deploy file says."""
    columns: Mapping[str, type] = {"id": str, "peer": str, "type": str, "units": int, "until": int, "body": bytes}
    db.create_table("wishes", dict(columns), pk="id", not_null={"id"}, strict=True)


@migration
def outages_in_version_9(db: Database) -> None:
    """What keeps a site from setting up units."""
    columns: Mapping[str, type] = {
        "id": str, "state": str, "since": int, "again": int, "reason": str, "body": bytes,
    }  # fmt: skip
    db.create_table("outages", dict(columns), pk="id", not_null={"id"}, strict=True)


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
