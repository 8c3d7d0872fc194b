"""The default store: one SQLite file per actor, in WAL mode with full sync.

What is committed is on the disk when :meth:`SqliteStore.commit` returns. A lock file beside the database keeps a second
daemon away; readers (``sqlite-utils rows state.db leases``) may look at any time.

History that is older than wanted, or more than one owner's share, goes a little at a time, with the commits that write
something new: about twice as much as that. So a store stays as large as what it is to keep, and no commit waits for
long. The file does not shrink; what is free in it is used again.

The schema of SQLite stores: how a new file gets it, and how the file of an earlier version does.

The version of a file is its ``PRAGMA user_version``. A new file gets the tables of
:data:`leasekit.core.schema.TABLES` at once. A migration brings a file to the next version, in one transaction with the
new number. Once released it never changes, so it spells out what it makes rather than reading those tables.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from leasekit.core.accounts import STANDING
from leasekit.core.reasons import with_code
from leasekit.core.schema import COPIED, LOG, LOG_COLUMNS, TABLES, Change, History, LogRow, Row, StoreError
from leasekit.core.time import SECOND, Duration, Instant, Term
from leasekit.stores.memory import COLUMNS, LIVE, Batch, archived_table, make_batch, plain_table

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
    for table, ended, owner in (("leases", "updated", "peer"), ("claims", "term_end", "holder")):
        key = ", id" if table == "leases" else ""
        db.execute(f"CREATE INDEX {table}_past ON {table} ({ended}{key}) WHERE live = 0")
        if table == "leases":
            db.execute("CREATE INDEX leases_past_in ON leases (state, updated, id) WHERE live = 0")
        db.execute(f"CREATE INDEX {table}_past_of ON {table} ({owner}, {ended}) WHERE live = 0")


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
        for table, (_, ended) in _OWNER.items():
            sql = f"SELECT id FROM {table} WHERE live = 0 AND {ended} < ? ORDER BY {ended} LIMIT {lines}"
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
        """Old lines go that are of no lease; those of leases go with these. What holds until it is said otherwise stays
        until then: a site that has had the same units for longer than that still has to say how many it had.
        """
        sql = (
            f"SELECT seq, at, event, EXISTS (SELECT 1 FROM leases WHERE id = lease) FROM {LOG} WHERE seq > ?"
            f" ORDER BY seq LIMIT {lines}"
        )
        for seq, at, event, is_lease in connection.execute(sql, (self._seq,)).fetchall():
            if at >= before:
                break
            if event in STANDING:
                connection.execute(_SAID_OTHERWISE, (seq,))
            elif not is_lease:
                connection.execute(f"DELETE FROM {LOG} WHERE seq = ?", (seq,))
            self._seq = seq


_WHAT: Final = "iif(json_valid({0}.why), {0}.why ->> '$.what', '')"
_SAID_OTHERWISE: Final = (
    f"DELETE FROM {LOG} WHERE seq IN (SELECT old.seq FROM {LOG} AS new JOIN {LOG} AS old ON old.lease = new.lease"
    " AND old.event = new.event AND old.seq < new.seq"
    f" WHERE new.seq = ? AND {_WHAT.format('old')} IS {_WHAT.format('new')})"
)
"""The lines that say of the same thing what held before a line says it otherwise."""

logger = logging.getLogger(__name__)

HISTORY: Final = History()
BUSY_TIMEOUT: Final[Duration] = 5 * SECOND
"""How long a commit waits for another program that is writing to the file, by default."""
JOURNAL_SIZE_MAX: Final = 64 * 1024 * 1024
"""To how many bytes the write-ahead log is cut back after it was longer (a long reader had kept it)."""
CHECKPOINT_PAGES: Final = 4000
"""After how many pages of the write-ahead log they are copied into the database: a page that many commits have changed
is copied once. 4,000 are 16 MiB, which a restart after a crash reads in a moment."""
CACHE_SIZE: Final = 8 * 1024
"""The most pages that are kept in memory, in KiB: those of the leases that are on their way at one time."""

_ADVICE: Final = {
    "SQLITE_FULL": "free some space, nothing of the transaction was applied",
    "SQLITE_BUSY": "another program is writing to the file; end it",
    "SQLITE_CORRUPT": "restore a backup, or save what is readable with `sqlite3 FILE .recover`",
    "SQLITE_NOTADB": "restore a backup, name another file, or move this one away to start with an empty store",
    "SQLITE_READONLY": "give the daemon's user write permission on the file and its directory",
    "SQLITE_CANTOPEN": "give the daemon's user write permission on the file and its directory",
    "SQLITE_IOERR": "check the disk's space and health, nothing of the transaction was applied",
}

ROWS: Final = (64, 8, 1)
"""How many rows one statement writes, the largest that fits first: what a statement costs whatever it writes is shared,
and a commit in a thread asks for the interpreter's lock once for all of them."""


def _insert(table: str, columns: Sequence[str], rows: int, suffix: str = "") -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * rows)}{suffix}"


def _upsert(table: str, columns: Sequence[str], rows: int) -> str:
    values = ", ".join(f"{column} = excluded.{column}" for column in columns[1:])
    return _insert(table, columns, rows, f" ON CONFLICT ({columns[0]}) DO UPDATE SET {values}")


_WRITE: Final = {name: {rows: _upsert(name, columns, rows) for rows in ROWS} for name, columns in COLUMNS.items()}
_DELETE: Final = {name: f"DELETE FROM {name} WHERE {columns[0]} = ?" for name, columns in COLUMNS.items()}
_SELECT: Final = {name: f"SELECT {', '.join(columns)} FROM {name}" for name, columns in COLUMNS.items()}
_APPEND: Final = {rows: _insert(LOG, tuple(LOG_COLUMNS), rows) for rows in ROWS}
_LOG: Final = f"SELECT seq, {', '.join(LOG_COLUMNS)} FROM {LOG}"


class SqliteStore:
    """A :class:`~leasekit.core.schema.Store` in the file ``path``, made where missing; its directory is not.

    ``busy_timeout`` is in milliseconds. An instance may be handed from thread to thread, but used by one at a
    time. What is over is kept as ``history`` says. Raises ``StoreError`` naming the file, what was found and what to
    do: it is in use by another daemon, newer than this code, corrupt, another program's, in a directory that is missing
    or can't be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, history: History = HISTORY, busy_timeout: Duration = BUSY_TIMEOUT
    ) -> None:
        self.path = Path(path)
        self._tidy = Tidying(history)
        self._busy_timeout = busy_timeout
        is_lost = _lock_file(self.path).exists() and _is_empty(self.path)
        self._lock = _lock(self.path)
        self._db: sqlite3.Connection | None = None
        try:
            connection = self._connection()
            if is_lost:
                logger.warning("%s is gone, or empty: the daemon begins with an empty store", self.path)
                _mark_copied(connection, time.time_ns() // 1_000_000)
        except BaseException:
            self.close()
            raise

    def load(self) -> dict[str, list[Row]]:
        """As :meth:`leasekit.core.schema.Store.load`. Raises ``StoreError`` where the file can't be read."""
        tables = {}
        for name, columns in COLUMNS.items():
            where = " WHERE live = 1" if name in LIVE else ""
            tables[name] = self._query(f"{_SELECT[name]}{where} ORDER BY {columns[0]}")
        return tables

    def commit(self, changes: Sequence[Change]) -> None:
        """As :meth:`leasekit.core.schema.Store.commit`: durable when it returns, nothing applied when it raises.

        A commit that failed for want of space, or because of another writer, can be tried again.
        """
        batch = make_batch(changes)
        connection = self._connection()
        if not changes:
            return
        with self._explained("write"):
            try:
                connection.execute("BEGIN IMMEDIATE")
                _apply(connection, batch)
                self._tidy.after(connection, batch)
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back(connection)
                raise

    def history(self, lease: str) -> list[LogRow]:
        """As :meth:`leasekit.core.schema.Store.history`."""
        return [LogRow(*row) for row in self._query(f"{_LOG} WHERE lease = ? ORDER BY seq", lease)]

    def log(self, after: int = 0, limit: int | None = None, code: str = "", before: int = 0) -> list[LogRow]:
        """As :meth:`leasekit.core.schema.Store.log`."""
        begin = with_code(code)
        of_code, given = (" AND substr(why, 1, ?) = ?", (len(begin), begin)) if code else ("", ())
        until, order = (" AND seq < ?", "seq DESC") if before else ("", "seq")
        sql = f"{_LOG} WHERE seq > ?{of_code}{until} ORDER BY {order} LIMIT ?"
        rows = self._query(sql, after, *given, *([before] if before else ()), -1 if limit is None else limit)
        return [LogRow(*row) for row in rows]

    def log_end(self) -> int:
        """As :meth:`leasekit.core.schema.Store.log_end`."""
        ((last,),) = self._query(f"SELECT max(seq) FROM {LOG}")
        return last or 0

    def archived(self, table: str, limit: int | None = None) -> list[Row]:
        """As :meth:`leasekit.core.schema.Store.archived`; the newest is the one that was first written last."""
        archived_table(table)
        # The index on `live` holds its rows by rowid, so this reads no more rows than it returns.
        sql = f"{_SELECT[table]} WHERE live = 0 ORDER BY rowid DESC LIMIT ?"
        return self._query(sql, -1 if limit is None else limit)

    def past(self, period: Term, after: tuple[Instant, str], limit: int, state: str = "") -> list[Row]:
        """As :meth:`leasekit.core.schema.Store.past`."""
        # Of itself SQLite takes the index of what is live, and sorts all the rest for each page.
        index = "leases_past_in" if state else "leases_past"
        sql = (
            f"{_SELECT['leases']} INDEXED BY {index} WHERE live = 0 AND updated >= ? AND (updated, id) > (?, ?)"
            f" AND term_start < ?{' AND state = ?' if state else ''} ORDER BY updated, id LIMIT ?"
        )
        of = (state,) if state else ()
        return self._query(sql, max(period.start, after[0]), *after, period.end, *of, limit)

    def get(self, table: str, key: str) -> Row | None:
        """As :meth:`leasekit.core.schema.Store.get`."""
        rows = self._query(f"{_SELECT[plain_table(table)]} WHERE {COLUMNS[table][0]} = ?", key)
        return rows[0] if rows else None

    def close(self) -> None:
        """As :meth:`leasekit.core.schema.Store.close`: the write-ahead log goes into the file, the lock is let go."""
        db, self._db = self._db, None
        if db is not None:
            db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _query(self, sql: str, *parameters: object) -> list[Row]:
        connection = self._connection()
        with self._explained("read"):
            return connection.execute(sql, parameters).fetchall()

    def _connection(self) -> sqlite3.Connection:
        """The open connection; opened again if a failed rollback had to close it."""
        if self._lock < 0:
            raise StoreError(f"{self.path}: the store is closed")
        if self._db is None:
            with self._explained("open"):
                self._db = _open(self.path, self._busy_timeout)
        return self._db

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing drops the transaction for certain; the next call opens the file again.
            self._db = None
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_explain(self.path, what, error)) from error
        except (UnicodeEncodeError, OverflowError) as error:
            # Text with half a surrogate pair, or a whole number of more than 64 bits.
            raise StoreError(f"{self.path}: can't {what} a value: {error}") from error


def _apply(connection: sqlite3.Connection, batch: Batch) -> None:
    for table, keys in batch.deletes.items():
        connection.executemany(_DELETE[table], ((key,) for key in keys))
    for table, rows in batch.writes.items():
        _put(connection, _WRITE[table], list(rows.values()))
    _put(connection, _APPEND, batch.log)


def _put(connection: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[Row]) -> None:
    """Write ``rows`` in their order; ``statements`` holds one for each number of rows in :data:`ROWS`."""
    done = 0
    for size in ROWS:
        while len(rows) - done >= size:
            connection.execute(statements[size], tuple(chain.from_iterable(rows[done : done + size])))
            done += size


def _explain(path: Path, what: str, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    advice = next((text for prefix, text in _ADVICE.items() if name.startswith(prefix)), "")
    return f"{path}: can't {what} the store: {error}" + (f"; {advice}" if advice else "")


def copy_store(path: Path, to: Path, at: Instant) -> None:
    """Make ``to`` a copy of the store ``path`` as of its last commit, also while a daemon writes to it. ``to`` is
    replaced when the copy is whole, and on the disk. ``at`` is the instant that it is, milliseconds. Raises
    ``StoreError``.
    """
    if not path.is_file():
        raise StoreError(f"{path}: there is no store")
    if _is_empty(path):
        raise StoreError(f"{path}: the file is empty, and no store")
    if to.exists() and to.samefile(path):
        raise StoreError(f"{to}: is the store itself; name another folder for the copy")
    made = to.with_name(f".{to.name}.new")
    try:
        made.unlink(missing_ok=True)
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _copy(path, made, at)
        made.replace(to)
        _sync(to.parent)
    except OSError as error:
        raise StoreError(f"{to}: can't write the copy: {error.strerror}") from error
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)


def put_back(copy: Path | None, path: Path, at: Instant) -> list[Path]:
    """Put ``copy`` (None: an empty store) in the place of the store ``path``, of a daemon that does not run. Returns
    the files that were there, by the names that they have got. Raises ``StoreError``.
    """
    descriptor = _lock(path)
    made = path.with_name(f".{path.name}.copy")
    try:
        if copy is None:
            with closing(SqliteStore(made)) as store:
                _mark_copied(store._connection(), at)
        else:
            copy_store(copy, made, at)
        # The write-ahead log goes first, as it would be played into the copy; and there is a store at any instant, as a
        # daemon begins with an empty one otherwise.
        aside = [Path(f"{path}.before-{at}{suffix}") for suffix in ("", "-wal") if Path(f"{path}{suffix}").exists()]
        for kept in reversed(aside):
            kept.hardlink_to(kept.with_name(kept.name.replace(f".before-{at}", "")))
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        made.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: can't put the copy there: {error.strerror}") from error
    finally:
        for file in (made, _lock_file(made)):
            with suppress(OSError):
                file.unlink(missing_ok=True)
        os.close(descriptor)
    return aside


def read_rows(path: Path, table: str, order: str = "rowid") -> list[Row]:
    """All rows of a table of a store, or of the log, in an order, whether a daemon has the store open or not. Raises
    ``StoreError``.
    """
    columns = ", ".join(("seq", *LOG_COLUMNS) if table == LOG else COLUMNS[plain_table(table)])
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            return source.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()
    except sqlite3.Error as error:
        raise StoreError(_explain(path, "read", error)) from error


def _copy(path: Path, made: Path, at: Instant) -> None:
    with (
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(made, isolation_level=None)) as target,
    ):
        try:
            _found_version(path, source)
            source.backup(target)
            (found,) = target.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{_explain(path, 'copy', error)} (the copy goes to {made.parent})") from error
        if found != "ok":
            raise StoreError(f"{path}: can't copy the store: {found}; {_ADVICE['SQLITE_CORRUPT']}")
        try:
            target.execute("PRAGMA journal_mode = DELETE")  # one file, which can be moved
            _mark_copied(target, at)
        except sqlite3.Error as error:
            raise StoreError(_explain(made, "write", error)) from error


def _mark_copied(connection: sqlite3.Connection, at: Instant) -> None:
    connection.execute(_WRITE["meta"][1], (COPIED, at))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_empty(path: Path) -> bool:
    """Whether there is nothing at ``path``, or a file without a byte, as a copy leaves that found no room."""
    return not path.exists() or path.stat().st_size == 0


def _lock_file(path: Path) -> Path:
    # Two paths that lead to one database must lead to one lock.
    return Path(f"{os.path.realpath(path)}.lock")


def _lock(path: Path) -> int:
    """An open, locked ``PATH.lock``; the system lets the lock go when the daemon ends, however it ends.

    The lock is on the open file, so that a second store in the same process is refused too. The file stays: removing it
    would let two daemons lock two files of one name.
    """
    name = _lock_file(path)
    target = name.with_suffix("")
    if not target.parent.is_dir():
        raise StoreError(f"{path}: there is no directory {target.parent}; create it, or name another file")
    if target.is_dir():
        raise StoreError(f"{path}: found a directory, expected a database file")
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        advice = "give the daemon's user write permission on the directory, or name another file"
        raise StoreError(f"{path}: can't make the lock file {name}: {error.strerror}; {advice}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        text = f"in use by another daemon (process {holder}); stop that one, or give each its own file"
        raise StoreError(f"{path}: {text}") from error
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{path}: can't lock {name}: {error.strerror}") from error
    return descriptor


def _open(path: Path, busy_timeout: Duration) -> sqlite3.Connection:
    """A connection to a database of the newest version. Raises ``sqlite3.Error``, ``StoreError``."""
    _keep_private(path)
    connection = sqlite3.connect(
        path, timeout=busy_timeout / SECOND, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    try:
        found = _found_version(path, connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_MAX}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_SIZE}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        migrate(connection, found)
        _check_columns(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_private(path: Path) -> None:
    """Make the file for its owner alone, or narrow it, with what is beside it: SQLite gives these the file's mode."""
    target = os.path.realpath(path)
    with suppress(OSError):  # it is there, or SQLite says what is wrong with the path
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm", ".lock"):
        file = Path(f"{target}{suffix}")
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & 0o077:
                try:
                    file.chmod(mode & 0o700)
                except OSError as error:
                    logger.warning("others may use %s, which can't be changed: %s", file, error.strerror)
                else:
                    logger.warning("others could use %s (mode %04o): now only the owner can", file, mode)


def _found_version(path: Path, db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    is_empty = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone() is None
    if application != APPLICATION_ID and (application or version or not is_empty):
        text = "found another program's SQLite database; name another file, or move this one away"
        raise StoreError(f"{path}: {text}")
    if version not in range(1 if application else 0, newest() + 1):
        text = f"found schema version {version}, this leasekit knows versions up to {newest()}"
        raise StoreError(f"{path}: {text}; use the leasekit that wrote it, or restore a backup")
    return version


def _check_columns(path: Path, db: sqlite3.Connection) -> None:
    expected = {name: list(table.columns) for name, table in TABLES.items()}
    expected[LOG] = ["seq", *LOG_COLUMNS]
    for name, columns in expected.items():
        found = [name for _, name, *_ in db.execute(f"PRAGMA table_info({name})")]
        if found != columns:
            text = f"table {name} has the columns {', '.join(found) or 'none'}, expected {', '.join(columns)}"
            raise StoreError(f"{path}: {text}; restore a backup, or move the file away")
