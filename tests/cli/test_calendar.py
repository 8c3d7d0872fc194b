"""The broker's calendar: as steps, as a picture in text, as data, and drawn."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.cli.broker import (
    BARS,
    HOLDERS_SHOWN,
    OTHERS,
    Calendar,
    Step,
    bars,
    calendars,
    holdings,
    print_calendar,
    taken,
)
from leasekit.cli.pictures import draw
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR, Term

WINDOW = Term(0, 100)
HELD = st.lists(
    st.tuples(st.integers(1, 9), st.builds(lambda a, n: Term(a, a + n), st.integers(-50, 150), st.integers(1, 80))),
    max_size=12,
)
DAY = Term(1_790_000_000_000, 1_790_000_000_000 + 24 * HOUR)


def source(name: str, *withheld: tuple[int, int, int], until: int = 48) -> dict[str, Any]:
    """A delegation as a broker describes it; windows of maintenance are units and hours of the day. Nothing of it can
    be granted beyond the hour ``until``.
    """
    windows = [
        {"window": f"window-{number}", "units": units, "term": hours(a, b), "reason": "new disks"}
        for number, (units, a, b) in enumerate(withheld)
    ]
    return {
        "source": name, "site": name, "type": "vm", "units": 8, "withheld": windows, "term": hours(-24, 48),
        "grants_until": hours(0, until)[1], "classes": [],
    }  # fmt: skip


def hours(start: float, end: float) -> list[int]:
    return [DAY.start + int(start * HOUR), DAY.start + int(end * HOUR)]


def lease(holder: str, units: int, term: list[int], at: str = "east") -> dict[str, Any]:
    claim = {"source": at, "units": units, "classes": [{"class": "ab" * 32, "units": units}], "term": term}
    return {"id": f"{holder}-1", "holder": holder, "claims": [claim]}


def given_on(units: int, term: list[int], state: str = "held", freed: int = -1) -> dict[str, Any]:
    return {
        "source": "east", "broker": "lower", "units": units, "classes": [], "term": term, "state": state,
        "freed": freed,
    }  # fmt: skip


def stepped(steps: list[tuple[int, int, int]]) -> list[Step]:
    return [{"from": start, "until": end, "taken": units} for start, end, units in steps]


def calendar(*leases: dict[str, Any], withheld: tuple[tuple[int, int, int], ...] = ()) -> Calendar:
    """The one of east."""
    return calendars([source("east", *withheld)], leases, (), DAY)[0]


@given(HELD)
def test_steps_agree_with_what_is_held_at_every_instant(held: list[tuple[int, Term]]) -> None:
    """At each instant of the window the steps say what is held there, and they cover all of it."""
    steps = taken(held, WINDOW)
    assert steps[0]["from"] == WINDOW.start
    assert steps[-1]["until"] == WINDOW.end
    for instant in range(WINDOW.start, WINDOW.end):
        (level,) = [one["taken"] for one in steps if one["from"] <= instant < one["until"]]
        assert level == sum(units for units, term in held if term.start <= instant < term.end)


def test_what_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From when on a delegation is taken back is drawn, in the picture as well; what its holder let go of is free."""
    given_back = given_on(4, hours(-1, 40), "reclaimed", hours(0, 6)[1])
    (made,) = calendars([source("east", until=12)], (), (given_back,), DAY)
    assert made["taken_back"] == hours(12, 48)
    assert [tuple(one.values()) for one in made["steps"]] == [(*hours(0, 6), 4), (*hours(6, 24), 0)]
    print_calendar(made, DAY)
    lines = capsys.readouterr().out.splitlines()
    (bar,) = [line.split("|")[1] for line in lines if line.startswith("taken back |")]
    assert bar == " " * (len(bar) // 2) + BARS[-1] * (len(bar) - len(bar) // 2)
    assert any(line.startswith("taken back from 2026-09-22T") for line in lines)
    draw([made], DAY, tmp_path / "c.svg")
    assert "taken back" in (tmp_path / "c.svg").read_text()
    (usual,) = calendars([source("east")], (), (), DAY)
    assert usual["taken_back"] is None


@given(HELD, st.integers(10, 100))
def test_steps_differ_from_their_neighbours(held: list[tuple[int, Term]], columns: int) -> None:
    """No two steps in a row are at one level, and a picture has as many characters as it was asked for."""
    steps = taken(held, WINDOW)
    assert all(a["taken"] != b["taken"] for a, b in pairwise(steps))
    assert len(bars(steps, 10, WINDOW, columns)) == columns


def test_bars_show_the_most_that_is_taken() -> None:
    """A column is blank only where nothing is taken, and full only where all is."""
    steps = [(0, 50, 0), (50, 60, 1), (60, 90, 99), (90, 100, 100)]
    assert bars(stepped(steps), 100, WINDOW, 10) == "     " + BARS[1] + BARS[7] * 3 + BARS[8]


def test_short_peaks_are_not_lost() -> None:
    """A peak that is shorter than a column is seen in it."""
    steps = [(0, 42, 0), (42, 43, 10), (43, 100, 0)]
    assert bars(stepped(steps), 10, WINDOW, 10) == "    " + BARS[-1] + "     "


def test_what_a_broker_says_becomes_a_calendar() -> None:
    """Leases and delegations that were passed on are reservations; what is elsewhere, over or refused is left out."""
    leases = [
        lease("web", 2, hours(1, 3)),
        lease("web", 1, hours(30, 40)),
        lease("lab", 5, hours(-2, 1)),
        lease("web", 7, hours(1, 3), "west"),
    ]
    given = [given_on(1, hours(-9, 99)), given_on(3, hours(0, 9), "refused"), given_on(3, hours(0, 9), "ended")]
    east, west = calendars([source("east", (2, 20, 30), (1, 24, 30)), source("west")], leases, given, DAY)
    assert [(r["holder"], r["lease"], r["units"]) for r in east["reservations"]] == [
        ("lower", "", 1), ("lab", "lab-1", 5), ("web", "web-1", 2)
    ]  # fmt: skip
    assert [(w["window"], w["units"], w["reason"]) for w in east["maintenance"]] == [("window-0", 2, "new disks")]
    assert [(s["from"], s["taken"]) for s in east["steps"]] == [
        (DAY.start, 6), (hours(1, 0)[0], 3), (hours(3, 0)[0], 1)
    ]  # fmt: skip
    assert [r["units"] for r in west["reservations"]] == [7] and west["maintenance"] == []


def test_holders_are_listed_by_what_they_have() -> None:
    """Who has most unit-time within the window comes first; beyond a dozen they are counted together, none is lost."""
    small = [lease(f"h{number:02}", 1, hours(number % 20, number % 20 + 1)) for number in range(HOLDERS_SHOWN + 5)]
    held = holdings(calendar(*small, lease("long", 1, hours(0, 9)), lease("past", 8, hours(-50, 0.5))), DAY)
    assert list(held)[:2] == ["long", "past"] and list(held)[-1] == OTHERS
    assert len(held) == HOLDERS_SHOWN + 1 and len(held[OTHERS]) == 7


def test_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """A class of which units are taken has steps, and a line, of its own: it is full where none of it is free."""
    mine = {"class": "ab" * 32, "units": 2, "properties": {"rack": "a\x1b"}}
    other = {"class": "cd" * 32, "units": 6, "properties": {"rack": "b"}}
    (made,) = calendars([source("east") | {"classes": [mine, other]}], [lease("web", 2, hours(0, 12))], (), DAY)
    assert [(one["properties"], [step["taken"] for step in one["steps"]]) for one in made["classes"]] == [
        (mine["properties"], [2, 0]), (other["properties"], [0])
    ]  # fmt: skip
    print_calendar(made, DAY)
    _, every, rack, _, _ = capsys.readouterr().out.splitlines()
    assert rack.startswith("rack=a\\x1b |") and BARS[-1] in rack and BARS[-1] not in every


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Each holder and the maintenance have a line under that of all; names of any length and kind keep the frame."""
    print_calendar(
        calendar(lease("web\x1b[2J", 4, hours(0, 12)), lease("a" * 60, 8, hours(12, 24)), withheld=((8, 6, 12),)), DAY
    )
    head, every, long, short, gone, axis, note = capsys.readouterr().out.splitlines()
    assert head == "east: 8 units, at most 8 taken at once"
    assert every.startswith("all ") and long.startswith("a" * 19 + "…") and short.startswith("web\\x1b[2J")
    assert len({line.index("|") for line in (every, long, short, gone)}) == 1
    half = every.index("|") + 1 + 100
    assert (every[half - 1], every[half]) == (BARS[4], BARS[8])
    assert gone.rstrip("|").endswith(" ") and BARS[8] in gone
    assert axis.lstrip().startswith("2026-09-21T14:13:20Z")
    assert note.startswith("maintenance window-0: 8 units over 2026-09-21T20:13:20Z .. ") and note.endswith("new disks")


def test_picture(tmp_path: Path) -> None:
    """Both kinds are written: every delegation and holder by name, colours enough for many, the same bytes again."""
    many = [lease(f"holder{number}", 1, hours(number / 2, 20)) for number in range(20)]
    made = calendars(
        [source("east", (2, 20, 30)), source("$west_1$")], [*many, lease("x", 9, hours(1, 3), "$west_1$")], (), DAY
    )
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
        for file in files:
            draw(made, DAY, file)
        one, two = [file.read_bytes() for file in files]
        assert one == two and one.startswith(magic)
    said = set(re.findall(r">([^<>]+)</text>", (tmp_path / "one.svg").read_text()))
    assert {"east: 8 units", "$west_1$: 8 units", "holder0", "holder11", OTHERS, "maintenance", "x", "UTC"} <= said
    assert "holder19" not in said


def test_picture_that_can_not_be(tmp_path: Path) -> None:
    """A file that can't be written, and a window beyond the calendar, are told in one line."""
    with pytest.raises(LeasekitError, match=r"can't write .*none/x.png: No such file or directory"):
        draw([calendar()], DAY, tmp_path / "none" / "x.png")
    with pytest.raises(LeasekitError, match="the window ends after the year 9999: that can't be drawn"):
        draw([calendar()], Term(DAY.start, 10**15), tmp_path / "x.png")
