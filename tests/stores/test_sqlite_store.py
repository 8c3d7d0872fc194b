"""The SQLite store's own promises: what survives, what is refused and in which words, what people can look at."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from leasekit.core.schema import COPIED, LOG, LOG_COLUMNS, TABLES, Change, StoreError
from leasekit.stores import sqlite
from leasekit.stores.sqlite import SqliteStore


def database(where: object) -> Any:
    """A store's file, or connection, as other code than its own sees it, which imports pandas where that is there."""
    from sqlite_utils import Database

    return Database(where)


COMMITTER = """
import sys
from leasekit.core.schema import Change
from leasekit.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
number = store.load()["meta"][0][1] if store.load()["meta"] else 0
while True:
    number += 1
    lease = f"{number:06}"
    row = (lease, 1, "s", "peer", "vm", "active", "", 1, 0, 1, "", 0, b"x" * (number % 3000))
    store.commit([
        Change("leases", lease, row),
        Change("leases", f"{number - 20:06}", None),
        Change("meta", "number", ("number", number)),
        Change("log", "", (number, lease, "made", "", "active", "")),
    ])
    print(number, flush=True)
"""


def number_of(store: SqliteStore) -> int | None:
    row = store.get("meta", "number")
    return None if row is None else row[1]


def set_number(store: SqliteStore, number: int) -> None:
    store.commit([Change("meta", "number", ("number", number))])


def big(number: int, size: int) -> list[Change]:
    """A commit of one big row and a number."""
    slice_row = (f"s{number}", "name", 1, os.urandom(size))
    return [
        Change("meta", "number", ("number", number)),
        Change("slices", slice_row[0], slice_row),
        Change(LOG, "", (number, "lease", "grew", "", "", "")),
    ]


@pytest.mark.long
def test_nothing_acknowledged_is_lost_by_sigkill(tmp_path):
    """In 25 rounds of SIGKILL at random moments every acknowledged commit is there, and none is there by halves."""
    path, random, last = tmp_path / "state.db", Random(7), 0
    for _ in range(25):
        process = subprocess.Popen([sys.executable, "-c", COMMITTER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(random.randrange(1, 120)):
            process.stdout.readline()
        process.kill()
        acknowledged = process.stdout.read().split()
        process.stdout.close()
        process.wait()
        store = SqliteStore(path)
        found = number_of(store)
        assert found is not None
        assert found >= max([last, *map(int, acknowledged)])
        expected = [f"{number:06}" for number in range(max(1, found - 19), found + 1)]
        assert [row[0] for row in store.load()["leases"]] == expected
        assert [row.at for row in store.log()] == list(range(1, found + 1))
        store.close()
        last = found
    assert last > 25


def test_commits_are_durable_by_setting(tmp_path):
    """The file is in WAL mode and each commit syncs: what a power failure needs, which no kill can show."""
    store = SqliteStore(tmp_path / "state.db")
    connection = store._connection()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


# A full disk


class FullDisk:
    """A directory on a disk whose last space can be taken and given back."""

    def __init__(self, directory: Path, fill: Callable[[], None], free: Callable[[], None]) -> None:
        self.directory, self.fill, self.free = directory, fill, free


@contextmanager
def limited_files(directory: Path) -> Iterator[FullDisk]:
    """Files of this process can't grow past 96 KiB while the disk is "full" (to SQLite an I/O error)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (96 * 1024, before[1]))

    def free() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        yield FullDisk(directory, fill, free)
    finally:
        free()


@contextmanager
def small_tmpfs(directory: Path) -> Iterator[FullDisk]:
    """A file system of 1 MiB, truly full."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], check=True)
    filler = directory / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    try:
        yield FullDisk(directory, fill, filler.unlink)
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


DISKS = [limited_files, small_tmpfs] if may_mount() else [limited_files]


@pytest.mark.parametrize("make_disk", DISKS)
def test_a_full_disk_refuses_a_commit_whole(tmp_path, make_disk):
    """When the disk is full a commit raises StoreError and leaves nothing; once there is space it works, and lasts."""
    with make_disk(tmp_path / "disk" if make_disk is small_tmpfs else tmp_path) as disk:
        path = disk.directory / "state.db"
        store = SqliteStore(path)
        store.commit(big(1, 1000))
        disk.fill()
        for _ in range(3):
            with pytest.raises(StoreError, match=re.escape(str(path))) as caught:
                store.commit(big(2, 200_000))
            assert "nothing of the transaction was applied" in str(caught.value)
            assert (number_of(store), len(store.log())) == (1, 1)
        disk.free()
        store.commit(big(2, 200_000))
        store.close()
        store = SqliteStore(path)
        assert (number_of(store), len(store.log()), len(store.load()["slices"])) == (2, 2, 2)
        store.close()


def test_a_rollback_that_fails_opens_the_file_again(tmp_path, monkeypatch):
    """If a commit breaks down and even its rollback fails, nothing of it stays and the next commit works."""
    store = SqliteStore(tmp_path / "state.db")
    set_number(store, 1)

    def breaks_down(connection: sqlite3.Connection, batch: object) -> None:
        connection.execute("UPDATE meta SET value = 99")
        connection.close()

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_apply", breaks_down)
        with pytest.raises(StoreError, match="closed database"):
            set_number(store, 2)
    assert number_of(store) == 1
    set_number(store, 3)
    assert number_of(store) == 3
    store.close()


# Files that are not what they should be


@pytest.mark.parametrize("version", [-1, 0, 2, 9])
def test_a_database_of_an_unknown_version_is_refused(tmp_path, version):
    """It is left alone: the error names file, found version and supported version."""
    path = tmp_path / "state.db"
    SqliteStore(path).close()
    set_version(path, version)
    with pytest.raises(StoreError) as caught:
        SqliteStore(path)
    found = f"found schema version {version}, this leasekit knows versions up to 1"
    assert str(caught.value) == f"{path}: {found}; use the leasekit that wrote it, or restore a backup"
    assert version_of(path) == version


def set_version(path: Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return version


@pytest.mark.parametrize("loss", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["no file", "no byte in it"])
def test_a_store_that_was_lost_gives_no_number_again(tmp_path, loss, caplog):
    """Of a daemon that ran here before: its actor is told, as of a copy. The first store of all is none."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    assert store.load()["meta"] == []
    store.close()
    loss(path)
    again = SqliteStore(path)
    assert [key for key, _ in again.load()["meta"]] == [COPIED]
    assert "begins with an empty store" in caplog.text
    again.close()


def test_an_empty_file_is_no_copy(tmp_path):
    """It takes the place of no store, and of no copy from before."""
    store, copy = tmp_path / "state.db", tmp_path / "copy.db"
    SqliteStore(store).close()
    sqlite.copy_store(store, copy, 1)
    before = copy.read_bytes()
    store.write_bytes(b"")
    with pytest.raises(StoreError, match=f"{re.escape(str(store))}: the file is empty, and no store"):
        sqlite.copy_store(store, copy, 2)
    assert copy.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path):
    """Any other file is refused by name, with what to do, and stays as it was."""
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database\n" * 100)
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}: .*not a database; .*move this one away"):
        SqliteStore(path)
    assert path.read_bytes() == b"not a database\n" * 100


def test_another_programs_database_is_refused(tmp_path):
    """A SQLite database of something else is refused and not written to."""
    path = tmp_path / "state.db"
    database(path)["recipes"].insert({"id": 1, "title": "soup"})
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}: found another program's"):
        SqliteStore(path)
    assert database(path).table_names() == ["recipes"]


def test_corrupt_pages_are_reported(tmp_path):
    """Overwritten pages surface as a StoreError that names the file and says what to do, when opening or loading."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    store.commit([Change("slices", f"s{n}", (f"s{n}", "name", 1, bytes(2000))) for n in range(200)])
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 8192))
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}: .*malformed; restore a backup"):
        SqliteStore(path).load()


def test_a_table_that_was_changed_by_hand_is_refused(tmp_path):
    """A table with other columns than the code's is named, with the columns found and expected."""
    path = tmp_path / "state.db"
    SqliteStore(path).close()
    database(path)["returns"].add_column("extra", int)
    with pytest.raises(StoreError, match=r"table returns has the columns .*extra, expected id, lease, stage, body"):
        SqliteStore(path)


@contextmanager
def unwritable(directory: Path) -> Iterator[Path]:
    """A directory in which nothing can be made, for the superuser too where it may mount."""
    directory.mkdir()
    if may_mount():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(directory)], check=True)
    else:
        directory.chmod(0o555)
    try:
        yield directory
    finally:
        if may_mount():
            subprocess.run(["umount", str(directory)], check=True)
        else:
            directory.chmod(0o755)


def test_an_unwritable_directory_is_named(tmp_path):
    """Where no file can be made the error names it and says which permission is wanted."""
    with unwritable(tmp_path / "locked") as directory, pytest.raises(StoreError) as caught:
        SqliteStore(directory / "state.db")
    assert str(directory / "state.db") in str(caught.value)
    assert "write permission" in str(caught.value)


def test_a_missing_directory_is_named(tmp_path):
    """The store does not make directories: the error names the one that is missing."""
    with pytest.raises(StoreError, match=re.escape(f"there is no directory {tmp_path / 'no'}")):
        SqliteStore(tmp_path / "no" / "state.db")
    with pytest.raises(StoreError, match="found a directory, expected a database file"):
        SqliteStore(tmp_path)


# One daemon to a file, any number of readers


def test_a_second_store_on_the_file_is_refused(tmp_path):
    """While a store is open another on the same file, by whatever path, is refused with the holder's process id."""
    path, alias = tmp_path / "state.db", tmp_path / "alias.db"
    store = SqliteStore(path)
    alias.symlink_to(path)
    script = "import sys; from leasekit.stores.sqlite import SqliteStore; SqliteStore(sys.argv[1])"
    for name in (path, alias):
        with pytest.raises(StoreError, match=rf"{name}: in use by another daemon \(process {os.getpid()}\)"):
            SqliteStore(name)
        other = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert f"in use by another daemon (process {os.getpid()})" in other.stderr
    store.close()
    SqliteStore(alias).close()


def test_a_child_process_does_not_keep_the_lock(tmp_path):
    """What a daemon started and left running does not keep the daemon's successor out."""
    store = SqliteStore(tmp_path / "state.db")
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    store.close()
    SqliteStore(tmp_path / "state.db").close()
    child.kill()
    child.wait()


@pytest.mark.long
def test_people_can_read_while_a_store_is_open(tmp_path):
    """The sqlite-utils command reads tables and views of an open store, without stopping its commits."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    lease = ("l1", 1, "s1", "peer", "vm", "active", "", 4, 1150156800000, 1150243200500, "as asked", 0, b"")
    store.commit(
        [Change("leases", "l1", lease), Change(LOG, "", (1150156800001, "l1", "redeemed", "", "active", "ok"))]
    )

    def rows(name: str) -> str:
        command = [sys.executable, "-m", "sqlite_utils", "rows", str(path), name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert '"state": "active"' in rows("leases")
    assert '"time": "2006-06-13T00:00:00.001Z"' in rows("lease_history")
    assert '"ends": "2006-06-14T00:00:00.500Z"' in rows("live_leases")
    assert rows("unit_count").strip() == "[]"
    set_number(store, 1)
    store.close()


def test_another_writer_delays_a_commit_but_does_not_break_it(tmp_path):
    """While another program writes, a commit fails in words after its wait, and works when that one is done."""
    path = tmp_path / "state.db"
    store = SqliteStore(path, busy_timeout=20)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked; another program is writing"):
        set_number(store, 1)
    other.execute("ROLLBACK")
    set_number(store, 2)
    assert number_of(store) == 2
    other.close()
    store.close()


# Schema


def test_a_new_file_has_the_tables_of_the_schema(tmp_path):
    """Exactly the tables, columns and types of the schema, with the indexes that queries use."""
    store = SqliteStore(tmp_path / "state.db")
    db = database(store._connection())
    kinds = {int: "INTEGER", str: "TEXT", bytes: "BLOB"}
    for name, table in TABLES.items():
        assert db.table(name).columns_dict == dict(table.columns)
        assert [column.type for column in db.table(name).columns] == [kinds[kind] for kind in table.columns.values()]
        indexed = {index.columns[0] for index in db.table(name).indexes if index.origin == "c"}
        past = {"leases": {"updated", "peer", "state"}, "claims": {"term_end", "holder"}}.get(name, set())
        assert indexed == ({"live"} | past if table.archived else set())
        assert db.table(name).pks == [next(iter(table.columns))]
    assert db.table(LOG).columns_dict == {"seq": int, **LOG_COLUMNS}
    assert [index.columns for index in db.table(LOG).indexes] == [["lease"]]
    assert {name for name in db.table_names() if not name.startswith("sqlite_")} == {*TABLES, LOG}
    store.close()
    assert version_of(tmp_path / "state.db") == 1


@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 64, 65, 200])
def test_a_commit_of_any_size_keeps_rows_and_order(tmp_path, count):
    """However many rows a commit has, each is written once, over older ones too, and the log is in its order."""
    store = SqliteStore(tmp_path / "state.db")
    keys = [f"k{number:03}" for number in range(count)]
    for value in (1, 2):
        rows = [Change("meta", key, (key, value)) for key in keys]
        lines = [Change(LOG, "", (value, key, "", "", "", "")) for key in keys]
        store.commit([*rows, *lines])
    assert store.load()["meta"] == [(key, 2) for key in keys]
    assert [(row.seq, row.at, row.lease) for row in store.log()] == [
        (number, 1 + (number > count), key) for number, key in enumerate([*keys, *keys], 1)
    ]
    store.close()


def test_a_row_that_fails_takes_its_whole_commit_with_it(tmp_path):
    """What can't be written in the midst of many rows leaves none of them."""
    store = SqliteStore(tmp_path / "state.db")
    rows = [Change("meta", f"{number}", (f"{number}", 2**63 if number == 100 else number)) for number in range(200)]
    with pytest.raises(StoreError, match="can't write a value"):
        store.commit(rows)
    assert store.load()["meta"] == []
    store.close()


def more(db: sqlite3.Connection) -> None:
    """A made-up migration, to a version with one table more and one column more in another."""
    db.execute("CREATE TABLE extra (id INTEGER) STRICT")
    db.execute("ALTER TABLE units ADD COLUMN rack TEXT NOT NULL DEFAULT ''")


@contextmanager
def version_2(step: Callable[[sqlite3.Connection], None]) -> Iterator[None]:
    """Code whose next version is made by ``step``."""
    units = TABLES["units"]._replace(columns={**TABLES["units"].columns, "rack": str})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", [step])
        patch.setattr(sqlite, "TABLES", {**TABLES, "units": units})
        yield


def test_a_file_of_the_version_before_is_brought_up_to_date(tmp_path):
    """It keeps its rows and its log, and the code of the version before refuses it from then on."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    set_number(store, 1)
    store.commit([Change(LOG, "", (5, "l1", "ask", "", "", ""))])
    store.close()
    with version_2(more):
        for _ in range(2):
            store = SqliteStore(path)
            assert number_of(store) == 1
            assert [row.event for row in store.history("l1")] == ["ask"]
            store.close()
    assert version_of(path) == 2
    with pytest.raises(StoreError, match="found schema version 2, this leasekit knows versions up to 1"):
        SqliteStore(path)


def test_a_new_file_needs_no_migration(tmp_path):
    """It has the newest tables and their number at once, and no step is taken for it."""
    with version_2(lambda _: pytest.fail("a migration of an empty file")):
        sqlite.migrate(sqlite3.connect(tmp_path / "state.db"), 0)
        assert version_of(tmp_path / "state.db") == 2


def test_a_migration_that_fails_changes_nothing(tmp_path):
    """The file stays at its version with its tables and rows, and is brought up to date by a migration that works."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    set_number(store, 1)
    store.close()

    def fails(db: sqlite3.Connection) -> None:
        more(db)
        db.execute("SELECT nonsense FROM nowhere")

    with version_2(fails), pytest.raises(StoreError, match="no such table: nowhere"):
        SqliteStore(path)
    assert version_of(path) == 1
    store = SqliteStore(path)
    assert number_of(store) == 1
    assert "extra" not in database(store._connection()).table_names()
    store.close()


@pytest.mark.parametrize("found", [0, 1])
def test_a_version_and_its_tables_are_written_together(tmp_path, found):
    """Whenever the process is killed, the file has the number of the version whose tables it has: before each
    statement of a creation and of a migration, another connection sees what a kill would leave.
    """
    path = tmp_path / "state.db"
    db = sqlite3.connect(path)
    if found:
        sqlite.migrate(db, 0)
    seen = []

    def look(_: str) -> None:
        other = database(path)
        seen.append((version_of(path), "meta" in other.table_names(), "extra" in other.table_names()))
        other.close()

    db.set_trace_callback(look)
    with version_2(more) if found else nullcontext():
        sqlite.migrate(db, found)
    db.execute("SELECT 1")
    db.close()
    before, after = ((1, True, False), (2, True, True)) if found else ((0, False, False), (1, True, False))
    assert list(dict.fromkeys(seen)) == [before, after]


def test_text_and_numbers_that_sqlite_cannot_hold_are_refused(tmp_path):
    """Half a surrogate pair or a number of 65 bits raises StoreError, and nothing of the commit stays."""
    store = SqliteStore(tmp_path / "state.db")
    for key, value in (("a\ud800", 1), ("a", 2**63)):
        with pytest.raises(StoreError, match="can't write a value"):
            store.commit([Change("meta", "b", ("b", 1)), Change("meta", key, (key, value))])
    assert store.load()["meta"] == []
    store.close()


def test_the_lock_goes_with_a_killed_daemon(tmp_path):
    """After SIGKILL the file can be opened at once: no stale lock has to be removed by hand."""
    path = tmp_path / "state.db"
    process = subprocess.Popen([sys.executable, "-c", COMMITTER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    SqliteStore(path).close()
    assert (tmp_path / "state.db.lock").read_text() == f"{os.getpid()}\n"
