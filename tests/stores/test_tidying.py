"""What a store lets go of: what ended too long ago, and more of one owner than its share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from leasekit.core.accounts import INVENTORY, PRICE
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import LOG, Change, History, Row
from leasekit.core.time import DAY, HOUR, WEEK
from leasekit.stores.sqlite import EVERY, SqliteStore

LINES = 4


def lease(number: int, peer: str, at: int, *, live: int = 0) -> list[Change]:
    """One that ended at ``at``, with a claim and what the log says of it."""
    id_ = f"{peer}-{number}"
    row: Row = (id_, live, "s", peer, "vm", "closed", "", 1, at - HOUR, at, "", at if not live else -1, b"x" * 200)
    claim: Row = (f"c{id_}", live, "", id_, "", peer, "vm", 1, at - HOUR, at, "redeemed", b"x" * 200)
    lines = [Change(LOG, "", (at, id_, "event", "a", "b", "why")) for _ in range(LINES)]
    return [Change("leases", id_, row), Change("claims", claim[0], claim), *lines]


def ids(store: SqliteStore, table: str) -> list[str]:
    return [row[0] for row in reversed(store.archived(table))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "s.db", history=History(kept=10 * DAY, most=300))
    yield made
    made.close()


def test_what_ended_too_long_ago_goes(store: SqliteStore) -> None:
    """With its claims and its log; live leases, and what is said of them, stay, however old."""
    store.commit(lease(0, "old", 0, live=1))
    store.commit([Change(LOG, "", (HOUR, "unit-1", "unit down", "a", "b", ""))])
    for day in range(1, 40):
        for number in range(EVERY // LINES):
            store.commit(lease(1000 * day + number, f"peer{day}", day * DAY))
    left = ids(store, "leases")
    assert left[0].startswith("peer28-") or left[0].startswith("peer29-")
    assert len(left) <= 12 * EVERY // LINES and ids(store, "claims") == [f"c{one}" for one in left]
    assert {row.lease for row in store.log()} == {*left, "old-0"}
    assert [row[0] for row in store.load()["leases"]] == ["old-0"]


def test_nobody_fills_it(store: SqliteStore) -> None:
    """The oldest of one who has too much go; others' stay."""
    for number in range(200):
        store.commit(lease(number, "meek", number))
    for number in range(1500):
        store.commit([change for part in range(3) for change in lease(3 * number + part, "greedy", 300 + number)])
    left = ids(store, "leases")
    greedy = [int(one.removeprefix("greedy-")) for one in left if one.startswith("greedy")]
    assert len(left) - len(greedy) == 200
    assert 300 <= len(greedy) <= 300 + EVERY and min(greedy) == 4500 - len(greedy)
    assert len(store.log()) == LINES * len(left)


def test_what_holds_until_it_is_said_otherwise_stays(store: SqliteStore) -> None:
    """However old it is: what a site has, by which accounts are counted, and prices. What held before goes."""

    def note(at: int, event: str, type_: str, units: int) -> Change:
        return Change(LOG, "", (at, event, event, "", "", Reason(Code.INVENTORY, what=type_, units=units).text()))

    store.commit([note(0, INVENTORY, "vm", 4), note(0, INVENTORY, "gpu", 2), note(0, PRICE, "vm", 7)])
    store.commit([note(DAY, INVENTORY, "vm", 5), note(DAY, INVENTORY, "gpu", 2), note(DAY, PRICE, "gpu", 9)])
    store.commit([Change(LOG, "", (DAY, "unit-1", "unit down", "a", "b", ""))])
    for day in range(1, 40):
        if day == 35:
            store.commit([note(day * DAY, INVENTORY, "vm", 6)])
        for number in range(EVERY // LINES):
            store.commit(lease(1000 * day + number, f"peer{day}", day * DAY))
    assert [row.at for row in store.history(INVENTORY)] == [DAY, DAY, 35 * DAY]
    assert [row.at for row in store.history(PRICE)] == [0, DAY]
    assert not store.history("unit-1")


@pytest.mark.long
def test_large_commits_are_kept_up_with(tmp_path: Path) -> None:
    """As much as comes at once may go at once; what is kept is there after a restart as well."""
    path = tmp_path / "s.db"
    sizes = []
    for day in range(18):
        store = SqliteStore(path, history=History(kept=5 * DAY, most=10**6))
        for batch in range(4):
            store.commit(
                [one for number in range(500) for one in lease(2000 * day + 500 * batch + number, "p", day * DAY)]
            )
        assert len(ids(store, "leases")) <= 2000 * 7
        store.close()
        sizes.append(path.stat().st_size)
    assert max(sizes[8:]) <= 1.1 * sizes[8]


@pytest.mark.long
def test_a_year_and_another_take_the_room_of_one(tmp_path: Path) -> None:
    """A small load for two years: the file grows for the first, and not any more."""
    path, numbers = tmp_path / "s.db", count()
    sizes = []
    store = SqliteStore(path)
    for week in range(2 * 53):
        for _ in range(20):
            store.commit([one for _ in range(4) for one in lease(next(numbers), "p", week * WEEK)])
        store._query("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(path.stat().st_size)
    store.close()
    assert sizes[52] > 1.8 * sizes[26]
    assert max(sizes[53:]) <= 1.1 * sizes[53]
