"""SQLite in the loop: whatever a kill leaves of the files, what was committed comes back, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from leasekit.core.schema import LOG, Change, StoreError
from leasekit_simulation.faults.checkers import Violated
from leasekit_simulation.faults.stores import KilledSqlite, memory_store


def row(key: str, value: int) -> Change:
    """A row of the table of counters."""
    return Change("meta", key, (key, value))


def line(number: int) -> Change:
    """A line of the log."""
    return Change(LOG, "", (number, "lease-1", "event", "a/-", "b/-", "why " * 40))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 0.999])
def test_half_a_commit_is_none(tmp_path: Path, share: float) -> None:
    """A commit of which any part short of the whole was on the disk has not happened; the one before it has."""
    met: Counter[str] = Counter()
    store = KilledSqlite(tmp_path, "site", lambda name: met.update([name]))
    for number in range(20):
        store.commit([row("clock", number), line(number)])
    store.crash([row("clock", 99), *(line(n) for n in range(50))], share)
    assert store.load()["meta"] == [("clock", 19)]
    assert len(store.log()) == 20
    store.commit([row("clock", 20)])
    store.crash()
    assert store.load()["meta"] == [("clock", 20)]
    assert met == {"sqlite: killed in a commit": 1, "sqlite: restored from its file": 2}
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_kill_between_any_two_commits(tmp_path: Path) -> None:
    """Killed after each of many commits, past the point at which the write-ahead log begins anew, nothing is lost."""
    store = KilledSqlite(tmp_path, "site", lambda name: None)
    for number in range(60):
        store.commit([row("clock", number), *(line(n) for n in range(40))])
        if number % 3 == 0:
            store.crash([row("clock", -1)] if number % 2 else (), 0.5)
        assert store.load()["meta"] == [("clock", number)]
    store.close()


def test_a_lost_row_is_noticed(tmp_path: Path) -> None:
    """The book is not the store's own: a row that the disk does not give back is told."""
    store = KilledSqlite(tmp_path, "site", lambda name: None)
    store.commit([row("clock", 1)])
    store.inner.commit([Change("meta", "clock", None)])
    with pytest.raises(Violated, match="table meta came back from the disk with row clock"):
        store.crash()
    store.close()


def test_a_full_disk_refuses(tmp_path: Path) -> None:
    """On a full disk SQLite refuses what needs room, applies none of it, and takes it when there is room again."""
    store = KilledSqlite(tmp_path, "site", lambda name: None)
    store.commit([row("clock", 1)])
    store.set_full(True)
    with pytest.raises(StoreError, match="full"):
        store.commit([row("clock", 2), *(line(n) for n in range(500))])
    assert store.load()["meta"] == [("clock", 1)]
    store.set_full(False)
    store.commit([row("clock", 2), *(line(n) for n in range(500))])
    assert len(store.log()) == 500
    store.close()


def test_a_full_disk_in_memory() -> None:
    """A store in memory refuses every commit while its disk is said to be full."""
    store = memory_store()
    store.set_full(True)
    with pytest.raises(StoreError, match="no space left"):
        store.commit([row("clock", 1)])
    store.set_full(False)
    store.commit([row("clock", 1)])
    assert store.get("meta", "clock") == ("clock", 1)
