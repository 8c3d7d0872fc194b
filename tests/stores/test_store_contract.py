"""The contract of :class:`leasekit.core.schema.Store`, over every store of ``conftest.HARNESSES``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from leasekit.core.schema import LOG, TABLES, Change, Row, StoreError
from leasekit.core.time import Term


def lease_row(key: str, *, live: int = 1, state: str = "active", units: int = 1) -> Row:
    return (key, live, "s1", "peer", "vm", state, "", units, 1000, 2000, "", 1500, b"\x00body")


def put(key: str, **columns: Any) -> Change:
    return Change("leases", key, lease_row(key, **columns))


def delete(key: str) -> Change:
    return Change("leases", key, None)


def logged(at: int, lease: str, why: str = "") -> Change:
    return Change(LOG, "", (at, lease, "event", "nascent", "ticketed", why))


def test_a_new_store_is_empty(harness):
    """load() names every table but the log, with no rows."""
    assert harness.store.load() == {name: [] for name in TABLES}
    assert harness.store.log() == []


def test_rows_come_back_in_key_order_and_unchanged(harness):
    """Values of every column type come back as they went in, NULs and None included, in key order."""
    rows = [lease_row(key) for key in ("b", "é", "a\x00z", "a", "Z")]
    empty = ("0", *(None for _ in rows[0][1:]))
    empty = (empty[0], 1, *empty[2:])
    harness.store.commit([Change("leases", row[0], row) for row in [*rows, empty]])
    found = harness.reopen().load()["leases"]
    assert found == sorted([*rows, empty], key=lambda row: row[0])


def test_every_table_keeps_rows(harness):
    """A row written to any table is there after a restart."""
    rows = {
        name: tuple({int: 1, str: "k", bytes: b"b"}[kind] for kind in table.columns.values())
        for name, table in TABLES.items()
    }
    harness.store.commit([Change(name, "k", row) for name, row in rows.items()])
    assert harness.reopen().load() == {name: [row] for name, row in rows.items()}


def test_the_last_change_of_a_key_wins(harness):
    """Within one commit a later change to the same key replaces an earlier one, deletions too."""
    harness.store.commit([put("a", units=1), put("b"), put("a", units=2), delete("b")])
    harness.store.commit([delete("a"), put("a", units=3), put("c"), delete("c"), delete("never there")])
    assert harness.reopen().load()["leases"] == [lease_row("a", units=3)]


def test_past_rows_are_kept_but_not_loaded(harness):
    """Rows of an archived table with live = 0 are left out of load(), and found by archived() and get()."""
    harness.store.commit([put("a"), put("b"), put("c")])
    harness.store.commit([put("b", live=0), put("a", live=0, state="closed")])
    store = harness.reopen()
    assert store.load()["leases"] == [lease_row("c")]
    assert store.archived("leases") == [lease_row("b", live=0), lease_row("a", live=0, state="closed")]
    assert store.archived("leases", limit=1) == [lease_row("b", live=0)]
    assert store.get("leases", "a") == lease_row("a", live=0, state="closed")
    assert store.get("leases", "nowhere") is None


def test_the_past_of_a_period(harness):
    """Leases that ended in it or later, and began before its end: a page at a time, in order of their ends."""
    ends = {"c": 10, "a": 30, "b": 20, "d": 20, "early": 9}
    rows = {
        key: (*lease_row(key, live=0, state="failed" if key in "cd" else "closed")[:8], end - 5, end, "", end, b"x")
        for key, end in ends.items()
    }
    late = (*lease_row("late", live=0)[:8], 50, 60, "", 60, b"x")
    harness.store.commit([Change("leases", key, row) for key, row in rows.items()])
    harness.store.commit([put("alive"), Change("leases", "late", late)])
    store, period = harness.reopen(), Term(10, 50)
    assert [row[0] for row in store.past(period, (-1, ""), 9)] == ["c", "b", "d", "a"]
    assert [row[0] for row in store.past(period, (-1, ""), 2)] == ["c", "b"]
    assert [row[0] for row in store.past(period, (20, "b"), 9)] == ["d", "a"]
    assert [row[0] for row in store.past(Term(0, 51), (30, "a"), 9)] == ["late"]
    assert [row[0] for row in store.past(period, (-1, ""), 9, "failed")] == ["c", "d"]
    assert [row[0] for row in store.past(period, (10, "c"), 9, "failed")] == ["d"]
    assert store.past(period, (-1, ""), 9, "nothing") == []


def test_the_log_is_numbered_and_ordered(harness):
    """Log rows get growing numbers from 1, over restarts too; history() and log() select from them."""
    harness.store.commit([logged(5, "x", "first"), logged(4, "y"), put("x")])
    store = harness.reopen()
    store.commit([logged(6, "x", "last")])
    assert [(row.seq, row.at, row.lease, row.why) for row in store.log()] == [
        (1, 5, "x", "first"),
        (2, 4, "y", ""),
        (3, 6, "x", "last"),
    ]
    assert [row.seq for row in store.history("x")] == [1, 3]
    assert [row.seq for row in store.log(after=1)] == [2, 3]
    assert [row.seq for row in store.log(after=1, limit=1)] == [2]
    assert [row.seq for row in store.log(before=9)] == [3, 2, 1]
    assert [row.seq for row in store.log(after=1, before=3)] == [2]
    assert [row.seq for row in store.log(before=3, limit=1)] == [2]
    assert store.history("z") == [] == store.log(after=3) == store.log(before=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("lease", "a", ("a",)), ["'lease'", "leases"]),
        (Change("lease", "a", None), ["'lease'", "leases"]),
        (Change("leases", "a", ("a", 1)), ["leases", "2 values", "13"]),
        (Change("leases", "b", lease_row("a")), ["leases", "'a'", "'b'"]),
        (Change("leases", "a", ("a", "1", *lease_row("a")[2:])), ["leases", "live", "'1' (str)", "int"]),
        (Change("leases", "a", (*lease_row("a")[:-1], "text")), ["body", "'text' (str)", "bytes"]),
        (Change(LOG, "", None), ["log", "deletion"]),
        (Change(LOG, "", (1, "x")), ["log", "2 values", "6"]),
    ],
)
def test_a_change_that_cannot_be_kept_is_refused_whole(harness, change, words):
    """A malformed change raises StoreError in words, and nothing of its commit is applied."""
    harness.store.commit([put("kept")])
    with pytest.raises(StoreError) as caught:
        harness.store.commit([put("new"), logged(1, "new"), delete("kept"), change])
    for word in words:
        assert word in str(caught.value)
    store = harness.reopen()
    assert store.load()["leases"] == [lease_row("kept")]
    assert store.log() == []


def test_questions_about_unknown_tables_are_refused(harness):
    """archived() and get() name what they can't answer for."""
    with pytest.raises(StoreError, match=r"'units' keeps no past rows.*leases"):
        harness.store.archived("units")
    with pytest.raises(StoreError, match=r"'units; --'.*leases"):
        harness.store.get("units; --", "k")


def test_a_closed_store_says_so(harness):
    """After close() every call raises StoreError; closing twice is harmless."""
    store = harness.store
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        store.load,
        store.log,
        lambda: store.commit([put("a")]),
        lambda: store.history("a"),
        lambda: store.archived("leases"),
        lambda: store.get("leases", "a"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="closed"):
            call()


def test_many_rows_in_one_commit(harness):
    """A commit of 5,000 rows is one transaction like any other."""
    harness.store.commit([put(f"{number:05}") for number in range(5000)])
    harness.store.commit([delete(f"{number:05}") for number in range(1, 5000)])
    assert harness.reopen().load()["leases"] == [lease_row("00000")]


KEYS = st.sampled_from(["a", "b", "c", "\x00", "é", "𝄞", "A"])
TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
VALUES = {int: st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), str: TEXTS, bytes: st.binary(max_size=8)}


@st.composite
def changes(draw: st.DrawFn) -> Change:
    table = draw(st.sampled_from([*TABLES, LOG]))
    if table == LOG:
        texts = [draw(KEYS), *(draw(TEXTS) for _ in range(4))]
        return Change(LOG, "", (draw(st.integers(0, 2**53)), *texts))
    key = draw(KEYS)
    if draw(st.integers(0, 3)) == 0:
        return Change(table, key, None)
    columns = list(TABLES[table].columns.items())[1:]
    values = (draw(st.integers(0, 1) if name == "live" else VALUES[kind]) for name, kind in columns)
    return Change(table, key, (key, *values))


class StoreMachine(RuleBasedStateMachine):
    """A store against dictionaries and a list."""

    make: Callable[[Path], Any]

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.harness = type(self).make(Path(self.directory.name))
        self.tables: dict[str, dict[str, Row]] = {name: {} for name in TABLES}
        self.lines: list[Row] = []

    @rule(batch=st.lists(changes(), max_size=12))
    def commit(self, batch: list[Change]) -> None:
        self.harness.store.commit(batch)
        for table, key, row in batch:
            if table == LOG and row is not None:
                self.lines.append(row)
            elif row is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = row

    @rule(batch=st.lists(changes(), max_size=5))
    def commit_with_a_fault(self, batch: list[Change]) -> None:
        with pytest.raises(StoreError):
            self.harness.store.commit([*batch, Change("nowhere", "k", None)])

    @rule()
    def reopen(self) -> None:
        self.harness.reopen()

    @invariant()
    def holds_what_was_committed(self) -> None:
        store = self.harness.store
        loaded = store.load()
        for name, table in TABLES.items():
            rows = sorted(self.tables[name].values(), key=lambda row: row[0])
            live = list(table.columns).index("live") if table.archived else None
            assert loaded[name] == [row for row in rows if live is None or row[live]]
            if live is not None:
                past = sorted(store.archived(name), key=lambda row: row[0])
                assert past == [row for row in rows if not row[live]]
        assert [tuple(line) for line in store.log()] == [(n, *row) for n, row in enumerate(self.lines, 1)]

    def teardown(self) -> None:
        with suppress(StoreError):
            self.harness.close()
        self.directory.cleanup()


def test_any_sequence_of_commits_and_restarts(make_harness):
    """After any commits, refused commits and restarts a store holds exactly what was committed."""
    machine = type("Machine", (StoreMachine,), {"make": staticmethod(make_harness)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=15,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_both_stores_agree_on_what_is_newest(harness):
    """archived() goes by the order in which rows first came, whatever was rewritten or deleted since."""
    harness.store.commit([put(key, live=0) for key in "dacb"])
    harness.store.commit([put("a", live=0, units=2), delete("c")])
    harness.store.commit([put("c", live=0)])
    assert [row[0] for row in harness.reopen().archived("leases")] == ["c", "b", "a", "d"]
