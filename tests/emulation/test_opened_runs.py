"""What who had what when in a run comes to, written while it runs and read by who opens it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import run_folder

from leasekit.client.runs import RunAsked, RunBar, RunView
from leasekit.config.instants import parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.signals import Signal, SignalSteps
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Instant, Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.runs import opened
from leasekit.emulation.runs.book import VERSION, CalendarBook
from leasekit.emulation.runs.opened import OpenedRun, RunsFolder


def at(instant: Instant) -> datetime:
    """As somebody asks for it."""
    return datetime.fromtimestamp(instant / SECOND, UTC)


def written(folder: Path, book: CalendarBook, end: Instant = DAY, **series: SignalSteps) -> OpenedRun:
    """A run that lasted to an instant, opened."""
    book.write(folder / "kept" / "run.calendar", "", "", Term(0, end), series)
    return OpenedRun(folder / "kept" / "run.calendar")


def of(bars: Sequence[RunBar]) -> list[tuple[Any, ...]]:
    """What bars say, with instants as numbers."""
    return [(one.kind, one.lease or one.reason, one.units, *map(parse_instant, (one.start, one.end))) for one in bars]


def levels(view: RunView, column: str) -> list[int]:
    """A column of the only row, for each stretch of the view."""
    (row,) = view.rows
    known = dict(zip(row.at, getattr(row, column), strict=True))
    found: list[int] = []
    for stretch in range((parse_instant(view.end) - parse_instant(view.start)) // HOUR):
        found.append(known[stretch] if stretch in known else found[-1])
    return found


def test_a_lease_that_changes_is_a_bar_for_each_number_of_units(tmp_path: Path) -> None:
    """What has not ended lasts until the run does; what is over when it begins was not."""
    book = CalendarBook()
    for unit in ("n0", "n1", "n2"):
        book.unit("lab", "node", unit)
    book.leased(2 * HOUR, "lab", "a", ("web", "node", 1))
    book.leased(4 * HOUR, "lab", "a", ("web", "node", 3))
    book.leased(5 * HOUR, "lab", "b", ("web", "node", 1))
    book.leased(5 * HOUR, "lab", "b", None)
    run = written(tmp_path, book)
    view = run.view(RunAsked(bins=24))
    assert of(view.bars) == [("lease", "a", 1, 2 * HOUR, 4 * HOUR), ("lease", "a", 3, 4 * HOUR, DAY)]
    assert levels(view, "booked") == levels(view, "mine") == [0, 0, 1, 1, *[3] * 20]
    assert levels(view, "free") == [3, 3, 2, 2, *[0] * 20]
    assert levels(run.view(RunAsked(bins=24, guest="other")), "mine") == [0] * 24
    assert view.guests == ["web"]
    assert [unit.name for unit in view.rows[0].units or []] == ["n0", "n1", "n2"]


def test_what_units_are_used_for_is_told_of_open_rows_alone(tmp_path: Path) -> None:
    """Units of one lease at once are one bar; a unit that fails is not there."""
    book = CalendarBook()
    for unit in ("n0", "n1"):
        book.used(HOUR, "lab", unit, ("node", unit, "a"))
        book.used(3 * HOUR, "lab", unit, None)
    book.out(3 * HOUR, "lab", "n1", ("node", False))
    book.out(4 * HOUR, "lab", "n1", None)
    book.out(5 * HOUR, "lab", "n0", ("node", True))
    book.out(6 * HOUR, "lab", "n0", None)
    run = written(tmp_path, book)
    assert run.view(RunAsked(bins=24)).stays == []
    view = run.view(RunAsked(bins=24, open="lab/node"))
    assert of(view.stays) == [
        ("lease", "a", 2, HOUR, 3 * HOUR),
        ("failure", "failed", 1, 3 * HOUR, 4 * HOUR),
        ("maintenance", "", 1, 5 * HOUR, 6 * HOUR),
    ]
    assert [one.on for one in view.stays] == [[0, 1], [1], [0]]
    assert levels(view, "there")[:7] == levels(view, "free")[:7] == [2, 2, 2, 1, 2, 1, 2]


def test_a_type_is_opened_whatever_is_in_its_name(tmp_path: Path) -> None:
    """A comma of a name is written otherwise than one between names."""
    book, type_ = CalendarBook(), "disk, 50%2C"
    book.used(HOUR, "lab", "n0", (type_, "n0", "a"))
    run = written(tmp_path, book)
    assert len(run.view(RunAsked(open="lab/x,lab/disk%2C 50%252C")).stays) == 1
    assert run.view(RunAsked(open=f"lab/{type_}")).stays == []


def test_the_shortest_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of leases, and of what single units are used for; a window that has fewer of them shows all."""
    book = CalendarBook()
    for number in range(10):
        lease, unit = f"l{number}", f"n{number}"
        book.leased(number * HOUR, "lab", lease, ("web", "node", 1))
        book.leased(number * HOUR + (number + 1) * SECOND, "lab", lease, None)
        book.used(number * HOUR, "lab", unit, ("node", unit, lease))
        book.used(number * HOUR + (number + 1) * SECOND, "lab", unit, None)
    run = written(tmp_path, book)
    monkeypatch.setattr(opened, "STAYS_MAX", 3)
    view = run.view(RunAsked(limit=4, open="lab/node"))
    assert [one.lease for one in view.bars] == ["l6", "l7", "l8", "l9"]
    assert [one.lease for one in view.stays] == ["l7", "l8", "l9"]
    assert (view.more, view.more_stays) == (6, 7)
    part = run.view(RunAsked(since=at(0), until=at(2 * HOUR), limit=4, open="lab/node"))
    assert [one.lease for one in part.bars] == [one.lease for one in part.stays] == ["l0", "l1"]
    assert (part.more, part.more_stays) == (0, 0)


SPELLS = st.lists(st.tuples(st.integers(0, 95), st.integers(1, 40), st.integers(1, 5), st.booleans()), max_size=30)


@given(spells=SPELLS, since=st.integers(0, 90), length=st.integers(1, 24))
def test_profiles_have_the_most_of_each_stretch(
    tmp_path_factory: pytest.TempPathFactory, spells: list[tuple[int, int, int, bool]], since: int, length: int
) -> None:
    """As a count of every quarter of an hour says, wherever the window begins; over stretches of an hour."""
    quarter, book = HOUR // 4, CalendarBook()
    changes = [
        (quarter * when, number, now)
        for number, (start, lasts, units, mine) in enumerate(spells)
        for when, now in ((start, ("web" if mine else "batch", "node", units)), (start + lasts, None))
    ]
    for when, number, now in sorted(changes, key=lambda one: one[:2]):
        book.leased(when, "lab", f"l{number}", now)
    book.unit("lab", "node", "n0")
    run = written(tmp_path_factory.mktemp("run"), book, 140 * quarter)
    begin = since * quarter
    view = run.view(RunAsked(since=at(begin), until=at(begin + length * HOUR), bins=length, guest="web"))
    for column, counted in (("booked", (True, False)), ("mine", (True,))):
        at_quarter = [
            sum(units for start, lasts, units, mine in spells if start <= one < start + lasts and mine in counted)
            for one in range(200)
        ]
        first = begin // HOUR * 4
        found = levels(view, column)
        assert found == [max(at_quarter[first + 4 * one : first + 4 * one + 4]) for one in range(len(found))]


def test_series_are_what_they_are_at_an_instant(tmp_path: Path) -> None:
    """From each change on; zero before the first."""
    series = Series()
    series.add(HOUR, 2)
    series.add(2 * HOUR, -1)
    run = written(tmp_path, CalendarBook(), web=series)
    assert [run.series(one)["web"] for one in (0, HOUR - 1, HOUR, 2 * HOUR, DAY)] == [0, 0, 2, 1, 1]


def test_a_load_that_stays_the_same_takes_no_room(tmp_path: Path) -> None:
    """However often it was measured."""
    measured = Signal([(minute * MINUTE, 2.0 + (minute >= 900)) for minute in range(1_440)])
    run = written(tmp_path, CalendarBook(), web=measured)
    assert (tmp_path / "kept" / "run.calendar").stat().st_size < 500
    assert [run.series(one)["web"] for one in (0, 15 * HOUR - 1, 15 * HOUR, DAY)] == [2, 2, 3, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two runs have written."""
    return run_folder(tmp_path_factory.mktemp("lab"))


def test_a_folder_of_runs(folder: Path) -> None:
    """Runs side by side with what was set for each, and the calendar of each, which adds up to its summary."""
    found = RunsFolder(folder)
    told = found.overview()
    assert [(one["run"], one["calendar"], one["set"]) for one in told.runs] == [
        (f"nodes {units}", True, {"actor.web.settings": {"retry_max": "30s"}, "actor.lab.inventory.0.units": units})
        for units in (2, 4)
    ]
    summary = json.loads((folder / "summary.json").read_text())
    for run, written in zip(told.runs, summary["runs"], strict=True):
        view = found.calendar(run["run"], RunAsked(bins=20_000, limit=100_000))
        hours = sum(one.units * (parse_instant(one.end) - parse_instant(one.start)) / HOUR for one in view.bars)
        assert hours == pytest.approx(written["guests"]["web"]["leased_unit_h"], rel=0.01)
        assert view.more == view.more_stays == 0
        assert max(view.rows[0].booked) <= run["set"]["actor.lab.inventory.0.units"]


def test_an_instant_has_the_lines_of_the_log_about_it(folder: Path) -> None:
    """Those before it, up to the very last one of the log, and what comes next."""
    found = RunsFolder(folder)
    log = (folder / "nodes_4-transitions.csv").read_text().splitlines()[1:]
    instants = [int(line.partition(",")[0]) for line in log]
    for when in (0, instants[0], instants[len(instants) // 2], instants[-1] - 1, instants[-1], DAY):
        lines = found.moment("nodes 4", when).lines
        over, next_ = [one for one in instants if one <= when], [one for one in instants if one > when]
        expected = [*over[-opened.BEFORE :], *next_[: opened.AFTER]]
        assert [parse_instant(one["at"]) for one in lines] == expected, when
        assert [one["actor"] for one in lines] == [
            line.split(",")[1] for line in log[max(0, len(over) - opened.BEFORE) : len(over) + opened.AFTER]
        ]


def test_what_a_folder_does_not_have_is_named(folder: Path) -> None:
    """A run, and a window without length."""
    found = RunsFolder(folder)
    with pytest.raises(LeasekitError, match=r"^run: found 'nodes 9', expected one that has a calendar: 'nodes 2', 'n"):
        found.calendar("nodes 9", RunAsked())
    with pytest.raises(LeasekitError, match=r"^until: expected an instant after since$"):
        found.calendar("nodes 2", RunAsked(since=at(HOUR), until=at(HOUR)))
    assert found.picture("summary.json") is None
    assert found.picture("../lab.toml") is None


def test_a_folder_is_read_anew_where_it_was_written_anew(tmp_path: Path, folder: Path) -> None:
    """As when what was interrupted is gone on with while a browser looks at it; or it is there no more."""
    file, summary = tmp_path / "summary.json", json.loads((folder / "summary.json").read_text())
    file.write_text(json.dumps({**summary, "runs": summary["runs"][:1], "not_run": ["nodes 4"]}))
    found = RunsFolder(tmp_path)
    assert (len(found.overview().runs), found.overview().not_run) == (1, ["nodes 4"])
    file.write_text(json.dumps(summary))
    os.utime(file, (1, 1))
    assert (len(found.overview().runs), found.overview().not_run) == (2, [])
    file.unlink()
    with pytest.raises(LeasekitError, match="found no summary"):
        found.overview()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"runs": 1}', '{"runs": [{"run": "old"}]}'], ids=str)
def test_a_folder_without_runs_is_refused(tmp_path: Path, text: str | None) -> None:
    """The message says what is expected."""
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(
        LeasekitError, match=r"found no summary\.json of runs, expected a folder that `leasekit emulate"
    ):
        RunsFolder(tmp_path)


def test_a_folder_of_an_older_leasekit_has_runs_without_calendars(tmp_path: Path, folder: Path) -> None:
    """They are side by side all the same."""
    (tmp_path / "summary.json").write_bytes((folder / "summary.json").read_bytes())
    found = RunsFolder(tmp_path)
    assert [run["calendar"] for run in found.overview().runs] == [False, False]
    with pytest.raises(LeasekitError, match="none: an older leasekit wrote this folder"):
        found.moment("nodes 2", 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "No more data to unpack.: expected the calendar of a run"),
        (b"\xc1", "expected the calendar of a run"),
        (b"run,calendar", "found version None, expected"),
        (msgpack.packb({"version": VERSION + 1}), f"found version {VERSION + 1}, expected {VERSION}: run it again"),
    ],
    ids=["empty", "no msgpack", "text", "newer"],
)
def test_a_calendar_that_cannot_be_read_is_named(tmp_path: Path, folder: Path, content: bytes, said: str) -> None:
    """The file, and what is wrong with it."""
    (tmp_path / "summary.json").write_bytes((folder / "summary.json").read_bytes())
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run.calendar").write_bytes(content)
    with pytest.raises(LeasekitError) as error:
        RunsFolder(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'kept' / 'run.calendar'}: ")
    assert said in str(error.value)
