"""``leasekit plan timetable``: what a workload comes to, and what is said of a bad one."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from datafiles import data_file

from leasekit.core.errors import LeasekitError
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.timetable_plan import COLUMNS, PlannedAnswer, WorkloadError, plan, read_workload, write_answers

HEADER = ",".join(COLUMNS)
one_process = pytest.mark.xdist_group("reservation_mix")
"""Of tests that look at the same plans, which are made once."""


def workload(folder: Path, *rows: str) -> Path:
    """A workload file of these rows."""
    file = folder / "workload.csv"
    file.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
    return file


def answers(folder: Path, nodes: int, *rows: str) -> list[int | None]:
    """The starts, in seconds, that fcfs gives to these rows."""
    _, found = plan(read_workload(workload(folder, *rows)), nodes, "fcfs")
    return [None if answer.start is None else answer.start // 1000 for answer in found]


def test_a_reservation_gets_exactly_its_start_and_touching_ones_fit(tmp_path: Path) -> None:
    """Two reservations of all nodes that touch are both accepted, one that overlaps them is refused."""
    assert answers(tmp_path, 4, "0,100,200,100,4,ar", "1,200,300,100,4,ar", "2,199,299,100,1,ar") == [100, 200, None]


def test_immediate_is_now_or_never(tmp_path: Path) -> None:
    """An immediate request starts at its submission, or is refused."""
    assert answers(tmp_path, 2, "5,5,,60,2,im", "10,10,,60,1,im", "65,65,,60,1,im") == [5, None, 65]


def test_best_effort_waits_for_its_turn_but_not_beyond_its_deadline(tmp_path: Path) -> None:
    """Best effort starts as early as it fits; one that can't be done by its deadline is refused."""
    rows = ("0,0,,100,2,im", "1,1,,50,2,be", "2,2,120,50,1,be", "3,3,,10,1,be")
    assert answers(tmp_path, 2, *rows) == [0, 100, None, 150]


def test_best_effort_is_put_before_a_reservation_only_if_it_is_done_by_then(tmp_path: Path) -> None:
    """A reservation booked ahead is never broken by what comes later."""
    assert answers(tmp_path, 1, "0,100,200,100,1,ar", "1,1,,99,1,be", "2,2,,1,1,be") == [100, 1, 200]


def test_the_summary_counts_what_the_answers_say(tmp_path: Path) -> None:
    """Accepted, refused, wait, slowdown, utilisation and makespan follow from the starts alone."""
    file = workload(tmp_path, "0,0,,100,2,im", "10,10,,50,2,be", "20,20,,1,9,im")
    summary, _ = plan(read_workload(file), 2, "fcfs")
    assert summary["kinds"] == {
        "ar": {"accepted": 0, "refused": 0},
        "im": {"accepted": 1, "refused": 1},
        "be": {"accepted": 1, "refused": 0},
    }
    assert summary["mean_wait_s"] == 90.0
    assert summary["mean_bounded_slowdown"] == pytest.approx((90 + 50) / 50)
    assert summary["makespan_s"] == 150.0
    assert summary["utilisation"] == 1.0


def test_answers_are_written_in_the_order_of_the_input(tmp_path: Path) -> None:
    """One row for each request: its start, exactly, or nothing and the reason."""
    late = PlannedAnswer(start=12_345_678_900)
    write_answers(tmp_path / "a.csv", [PlannedAnswer(start=1500), PlannedAnswer(start=None, reason="full"), late])
    with (tmp_path / "a.csv").open(newline="") as rows:
        assert list(csv.reader(rows)) == [["start_s", "reason"], ["1.5", ""], ["", "full"], ["12345678.9", ""]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,0,,60,1", "line 2: found 5 columns, expected 6"),
        ("x,0,,60,1,im", "line 2: submit_s: found 'x', expected a number of seconds from 0 to 9007199254740.991"),
        ("0,1e300,,60,1,im", "line 2: earliest_start_s: found '1e300', expected a number of seconds from 0 to 9007"),
        ("0,0,inf,60,1,be", "line 2: deadline_s: found 'inf', expected a number of seconds from 0 to 9007"),
        ("0,0,,0,1,im", "line 2: duration_s: found '0', expected a number of seconds from 0.001 to 9007"),
        ("0,0,,0.0001,1,im", "line 2: duration_s: found '0.0001', expected a number of seconds from 0.001 to 9007"),
        ("0,9007199254740,,60,1,ar", "line 2: duration_s: found '60', expected an end of at most 9007199254740.991"),
        ("0,0,,60,0,im", "line 2: nodes: found '0', expected a whole number from 1 to 2147483647"),
        ("0,0,,60,1.5,be", "line 2: nodes: found '1.5', expected a whole number from 1 to 2147483647"),
        ("0,0,,60,1,xx", "line 2: kind: found 'xx', expected one of ar, im, be"),
        (
            "10.5,0,20,10,1,ar",
            "line 2: earliest_start_s: found '0', expected a start from 10.5 on, when the",
        ),
        (
            "50,0,60,60,1,be",
            "line 2: deadline_s: found '60', expected 110 or more, its earliest start and its",
        ),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, said: str) -> None:
    """The message names file, line and column, what was found and what is allowed."""
    with pytest.raises(WorkloadError) as error:
        read_workload(workload(tmp_path, row))
    assert said in str(error.value)
    assert "workload.csv" in str(error.value)


def test_a_wrong_header_and_a_missing_file_are_named(tmp_path: Path) -> None:
    """What isn't a workload is said to be none."""
    (tmp_path / "other.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(LeasekitError, match=r"line 1: found 'a,b', expected submit_s"):
        read_workload(tmp_path / "other.csv")
    with pytest.raises(LeasekitError, match=r"missing\.csv: can't be read: No such file"):
        read_workload(tmp_path / "missing.csv")


def test_a_mapper_that_overbooks_is_caught(tmp_path: Path) -> None:
    """What a mapper grants is checked against the timetable, whoever wrote it."""
    (tmp_path / "greedy.py").write_text(
        "from leasekit.core.mappers import Grant\n"
        "class Greedy:\n"
        "    def allocate(self, cycle):\n"
        "        (source,) = cycle.sources('node')\n"
        "        return [Grant(r.lease, source.id, r.units, r.term) for r in cycle.requests]\n",
        encoding="utf-8",
    )
    requests = read_workload(workload(tmp_path, "0,0,,60,2,im", "1,1,,60,1,im"))
    told: list[str] = []
    summary, answers = plan(requests, 2, f"{tmp_path / 'greedy.py'}:Greedy", tell=told.append)
    assert [answer.start for answer in answers] == [0, None]
    assert summary["mapper_errors"] == {"decision not carried out": 1}
    assert "it would overbook: 0 units are free over" in told[0]


@cache
def mix(policy: str, **settings: str) -> tuple[dict[str, Any], list[PlannedAnswer]]:
    """What the published mix comes to on 64 nodes."""
    return plan(read_workload(data_file("reservations/wl_n64_r1000_s1_l0.9.csv")), 64, policy, settings)


POLICIES = (
    "backfill",
    "fcfs",
    "timetable",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("fair_share", "priority")),  # they order as fcfs does
)


@one_process
@pytest.mark.parametrize("policy", POLICIES)
def test_the_reservation_mix_of_64_nodes(policy: str) -> None:
    """On the published mix no node is ever overbooked, every accepted reservation starts exactly when it asked to."""
    requests = read_workload(data_file("reservations/wl_n64_r1000_s1_l0.9.csv"))
    summary, found = mix(policy)
    assert sum(sum(counts.values()) for counts in summary["kinds"].values()) == len(requests) == 1000
    events = []
    for request, answer in zip(requests, found, strict=True):
        if answer.start is not None:
            assert request.start <= answer.start <= request.latest
            events += [(answer.start, request.units), (answer.start + request.run, -request.units)]
    used = 0
    for _, change in sorted(events):
        used += change
        assert 0 <= used <= 64


@one_process
def test_backfill_accepts_at_least_what_haizea_did() -> None:
    """Haizea's figures: 284 reservations, 120 immediate requests, all best effort after 619 s on average."""
    summary, _ = mix("backfill")
    assert summary["kinds"]["ar"]["accepted"] >= 284
    assert summary["kinds"]["im"]["accepted"] >= 120
    assert summary["kinds"]["be"]["refused"] == 0
    assert summary["mean_wait_s"] <= 619


@one_process
def test_who_overtakes_waits_less() -> None:
    """With nobody overtaking best effort waits longer than with EASY; the settings of a mapper are taken."""
    (strict, _), (easy, _) = mix("backfill", mode="strict"), mix("backfill")
    assert strict["mean_bounded_slowdown"] > easy["mean_bounded_slowdown"]
    with pytest.raises(LeasekitError, match=r"policy.mode: found 'hard', expected one of: 'easy', "):
        mix("backfill", mode="hard")


# -- suspension --------------------------------------------------------------------------------------------------------


def suspending(folder: Path, nodes: int, *rows: str, **settings: object) -> tuple[list[tuple[int, int] | None], int]:
    """Start and end of each row, in seconds, and how often work was suspended; saving takes 10 s."""
    given = {"suspension": "all", "least_run": "1m", **settings}
    chosen = plan(read_workload(workload(folder, *rows)), nodes, "backfill", given, Saving(memory=10, rate=1))
    found = [None if one.start is None else (one.start // 1000, one.end // 1000) for one in chosen[1]]
    return found, chosen[0]["suspensions"]


def test_a_reservation_suspends_what_is_in_its_way(tmp_path: Path) -> None:
    """What runs is suspended by the reservation's start, and goes on after its end with the rest, 10 s to come back."""
    rows = ("0,0,,600,4,be", "60,300,400,100,4,ar")
    assert suspending(tmp_path, 4, *rows) == ([(0, 400 + 10 + 600 - 290), (300, 400)], 1)
    assert suspending(tmp_path, 4, *rows, suspension="none") == ([(0, 600), None], 0)
    assert suspending(tmp_path, 4, *rows, suspension="serial") == ([(0, 600), None], 0)


def test_no_more_is_suspended_than_is_needed(tmp_path: Path) -> None:
    """Those go first that have run for the shortest time; who isn't needed goes on."""
    rows = ("0,0,,600,1,be", "30,30,,600,2,be", "40,40,,600,1,be", "60,300,400,100,2,ar")
    (first, second, third, booked), count = suspending(tmp_path, 4, *rows)
    assert (first, second[0], third, booked, count) == ((0, 600), 30, (40, 640), (300, 400), 1)


def test_only_single_units_with_serial(tmp_path: Path) -> None:
    """With ``serial`` leases of several units are left alone."""
    rows = ("0,0,,600,1,be", "0,0,,600,1,be", "0,0,,600,2,be", "60,300,400,100,2,ar")
    found, count = suspending(tmp_path, 4, *rows, suspension="serial")
    assert count == 2
    assert found[2:] == [(0, 600), (300, 400)]


def test_what_does_not_help_is_not_done(tmp_path: Path) -> None:
    """Where even all of it would not be enough, or there is no time to save it, nothing is suspended."""
    rows = ("0,0,,600,2,be", "0,0,,600,2,im", "60,300,400,100,3,ar", "70,75,175,100,1,ar")
    assert suspending(tmp_path, 4, *rows) == ([(0, 600), (0, 600), None, None], 0)


def test_work_starts_in_front_of_a_reservation(tmp_path: Path) -> None:
    """It runs up to the reservation, less the time to save it, and goes on behind; not for less than ``least_run``."""
    rows = ("0,300,400,100,4,ar", "10,10,,600,4,be")
    assert suspending(tmp_path, 4, *rows) == ([(300, 400), (10, 400 + 10 + 600 - 280)], 1)
    assert suspending(tmp_path, 4, *rows, least_run="5m") == ([(300, 400), (400, 1000)], 0)


def test_what_was_suspended_goes_before_who_came_later(tmp_path: Path) -> None:
    """The rest has the place in line of its first request."""
    rows = ("0,300,400,100,4,ar", "10,10,,600,4,be", "20,20,,600,4,be")
    found, _ = suspending(tmp_path, 4, *rows)
    assert found == [(300, 400), (10, 730), (730, 1330)]


def test_a_deadline_that_could_not_be_kept_is_no_reason_to_start(tmp_path: Path) -> None:
    """A part isn't started whose rest would find no room up to its deadline."""
    rows = ("0,300,1300,1000,4,ar", "10,10,1400,600,4,be")
    found, count = suspending(tmp_path, 4, *rows)
    assert (found[1], count) == (None, 0)


@one_process
def test_suspension_shortens_the_waits_of_the_reservation_mix() -> None:
    """On the published mix best effort starts sooner, no reservation and no best effort is lost for it."""
    plain, some, most = mix("backfill")[0], *(mix("backfill", suspension=kind)[0] for kind in ("serial", "all"))
    assert plain["suspensions"] == 0 < some["suspensions"] < most["suspensions"]
    for summary in (some, most):
        assert summary["kinds"]["ar"]["accepted"] == 285
        assert summary["kinds"]["im"]["accepted"] >= 120
        assert summary["kinds"]["be"]["refused"] == 0
    assert most["mean_wait_s"] < some["mean_wait_s"] < plain["mean_wait_s"]
