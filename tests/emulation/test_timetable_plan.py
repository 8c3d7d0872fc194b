"""``leasekit plan timetable``: what a workload comes to, and what is said of a bad one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.core.errors import LeasekitError
from leasekit.emulation.timetable_plan import COLUMNS, Answer, plan, read_workload, write_answers

HEADER = ",".join(COLUMNS)


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
    """One row for each request: its start, or nothing and the reason."""
    write_answers(tmp_path / "a.csv", [Answer(start=1500), Answer(start=None, reason="full")])
    with (tmp_path / "a.csv").open(newline="") as rows:
        assert list(csv.reader(rows)) == [["start_s", "reason"], ["1.5", ""], ["", "full"]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,0,,60,1", "line 2: found 5 columns, expected 6"),
        ("x,0,,60,1,im", "line 2: submit_s: found 'x', expected a number of at least 0"),
        ("0,0,,0,1,im", "line 2: duration_s: found '0', expected more than 0"),
        ("0,0,,60,0,im", "line 2: nodes: found '0', expected a number of at least 1"),
        ("0,0,,60,1,xx", "line 2: kind: found 'xx', allowed are ar, im, be"),
        ("50,0,60,60,1,be", "line 2: deadline_s: found 60, before it could be done"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, said: str) -> None:
    """The message names file, line and column, what was found and what is allowed."""
    with pytest.raises(LeasekitError) as error:
        read_workload(workload(tmp_path, row))
    assert said in str(error.value)
    assert "workload.csv" in str(error.value)


def test_a_wrong_header_and_a_missing_file_are_named(tmp_path: Path) -> None:
    """What isn't a workload is said to be none."""
    (tmp_path / "other.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(LeasekitError, match=r"line 1: found 'a,b', expected submit_s"):
        read_workload(tmp_path / "other.csv")
    with pytest.raises(LeasekitError, match="can't be read as a workload"):
        read_workload(tmp_path / "missing.csv")


def test_a_mapper_that_overbooks_is_caught(tmp_path: Path) -> None:
    """What a mapper grants is checked against the timetable, whoever wrote it."""
    (tmp_path / "greedy.py").write_text(
        "from leasekit.core.mappers import Grant\n"
        "class Greedy:\n"
        "    def allocate(self, cycle):\n"
        "        return [Grant(r.lease, 'nodes', r.units, r.term) for r in cycle.requests]\n",
        encoding="utf-8",
    )
    requests = read_workload(workload(tmp_path, "0,0,,60,2,im", "1,1,,60,1,im"))
    with pytest.raises(LeasekitError, match="the mapper overbooked: 0 nodes were free"):
        plan(requests, 2, f"{tmp_path / 'greedy.py'}:Greedy")


POLICIES = ("backfill", "fair_share", "fcfs", "priority", "timetable")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_reservation_mix_of_64_nodes(policy: str) -> None:
    """On the published mix no node is ever overbooked, every accepted reservation starts exactly when it asked to."""
    requests = read_workload(data_file("reservations/wl_n64_r1000_s1_l0.9.csv"))
    summary, found = plan(requests, 64, policy)
    assert sum(sum(counts.values()) for counts in summary["kinds"].values()) == len(requests) == 1000
    events = []
    for request, answer in zip(requests, found, strict=True):
        if answer.start is not None:
            assert request.start <= answer.start <= request.latest
            events += [(answer.start, request.nodes), (answer.start + request.duration, -request.nodes)]
    used = 0
    for _, change in sorted(events):
        used += change
        assert 0 <= used <= 64


def test_backfill_accepts_at_least_what_haizea_did() -> None:
    """Haizea's figures: 284 reservations, 120 immediate requests, all best effort after 619 s on average."""
    requests = read_workload(data_file("reservations/wl_n64_r1000_s1_l0.9.csv"))
    summary, _ = plan(requests, 64, "backfill")
    assert summary["kinds"]["ar"]["accepted"] >= 284
    assert summary["kinds"]["im"]["accepted"] >= 120
    assert summary["kinds"]["be"]["refused"] == 0
    assert summary["mean_wait_s"] <= 619


def test_who_overtakes_waits_less() -> None:
    """With nobody overtaking best effort waits longer than with EASY; the settings of a mapper are taken."""
    requests = read_workload(data_file("reservations/wl_n64_r1000_s1_l0.9.csv"))
    strict, easy = (plan(requests, 64, "backfill", {"mode": mode})[0] for mode in ("strict", "easy"))
    assert strict["mean_bounded_slowdown"] > easy["mean_bounded_slowdown"]
    with pytest.raises(LeasekitError, match=r"policy.mode: found 'hard', expected one of: 'easy', "):
        plan(requests, 64, "backfill", {"mode": "hard"})
