"""Workloads: from logs, from files, and by a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.config.traces import TraceError
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR, INSTANT_MAX, SECOND
from leasekit.emulation.compare.works import WorkShape, from_swf, generate, write_swf
from leasekit.emulation.timetable_plan import from_file


def _job(number: int, submit: int, run: int, procs: int, wanted: int, user: int = 7) -> str:
    return f"{number} {submit} 0 {run} {procs} -1 -1 {procs} {wanted} -1 1 {user} -1 -1 -1 -1 -1 -1"


def test_a_job_asks_for_its_estimate_and_takes_its_run(tmp_path: Path) -> None:
    """The lease is as long as was requested; a job that overran is cut off there, one that never ran is left out."""
    log = tmp_path / "log.swf"
    jobs = [_job(1, 5, 60, 2, 100), _job(2, 3, 60, 1, 50, -1), _job(3, 9, 60, 1, -1), _job(4, 9, 0, 1, 50)]
    log.write_text("; UnixStartTime: 0\n" + "\n".join(jobs) + "\n")
    workload = from_swf(log)
    assert workload.left_out == 1
    told = [(work.id, work.submit, work.estimate, work.run, work.units, work.holder) for work in workload.works]
    assert told == [
        ("2", 3 * SECOND, 50 * SECOND, 50 * SECOND, 1, "?"),
        ("1", 5 * SECOND, 100 * SECOND, 60 * SECOND, 2, "7"),
        ("3", 9 * SECOND, 60 * SECOND, 60 * SECOND, 1, "7"),
    ]
    assert all(work.start == work.submit and work.latest + work.estimate == INSTANT_MAX for work in workload.works)


def test_a_log_without_work(tmp_path: Path) -> None:
    """A log in which nothing ran is told by its name."""
    log = tmp_path / "log.swf"
    log.write_text(_job(1, 0, 0, 1, 50) + "\n")
    with pytest.raises(TraceError, match=r"log\.swf: found no job"):
        from_swf(log)


def test_a_workload_file_keeps_its_windows(tmp_path: Path) -> None:
    """Reservations start when they say, immediate requests at once, best effort until its deadline."""
    file = tmp_path / "w.csv"
    rows = ["10,100,200,100,4,ar", "5,5,,60,2,im", "7,7,90,60,1,be", "8,8,,60,1,be"]
    file.write_text("submit_s,earliest_start_s,deadline_s,duration_s,nodes,kind\n" + "\n".join(rows) + "\n")
    works = from_file(file).works
    assert [(work.kind, work.start // SECOND) for work in works] == [("im", 5), ("be", 7), ("be", 8), ("ar", 100)]
    assert [work.latest // SECOND for work in works[:2]] == [5, 30]
    assert works[2].latest + works[2].estimate == INSTANT_MAX
    assert all(work.run == work.estimate for work in works)


def test_an_empty_workload_file(tmp_path: Path) -> None:
    """A header alone is no workload."""
    file = tmp_path / "w.csv"
    file.write_text("submit_s,earliest_start_s,deadline_s,duration_s,nodes,kind\n")
    with pytest.raises(LeasekitError, match="found no requests"):
        from_file(file)


def test_the_same_seed_makes_the_same_work(tmp_path: Path) -> None:
    """By its seed, to the last digit; another seed makes other work; and a log of it reads back as it was made."""
    shape = WorkShape(jobs=300, nodes=32, seed=5)
    made = generate(shape)
    assert generate(shape).works == made.works
    assert generate(WorkShape(jobs=300, nodes=32, seed=6)).works != made.works
    write_swf(tmp_path / "log.swf", made, 32)
    read = from_swf(tmp_path / "log.swf").works
    assert [work[2:] for work in read] == [work[2:] for work in made.works]
    assert len({work.holder for work in read}) == len({work.holder for work in made.works})


def test_made_work_is_like_what_was_asked_for() -> None:
    """The load over the time of submissions is near what was asked for, nothing is wider than the machine, and
    estimates are never too short and mostly too long.
    """
    shape = WorkShape(jobs=4000, nodes=64, load=0.7, seed=3)
    works = generate(shape).works
    span = works[-1].submit - works[0].submit
    load = sum(work.run * work.units for work in works) / (span * shape.nodes)
    assert load == pytest.approx(0.7, rel=0.1)
    assert max(work.units for work in works) <= 64
    assert all(work.run <= work.estimate for work in works)
    assert sum(work.estimate > 2 * work.run for work in works) > 2000
    assert max(work.run for work in works) > 10 * HOUR


def test_the_real_logs_are_whole() -> None:
    """KTH's log has all of its usable jobs, in order of submission."""
    workload = from_swf(data_file("kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz"))
    assert (len(workload.works), workload.left_out) == (28467, 9)
    submits = [work.submit for work in workload.works]
    assert submits == sorted(submits)
