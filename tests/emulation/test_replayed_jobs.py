"""Jobs as load: guests that replay logs, and users who think between their jobs."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.config.jobs import JobsSpec, MadeJobs, open_jobs, read_jobs
from leasekit.config.traces import TraceError
from leasekit.core.draws import Exponential, Fixed
from leasekit.core.requests import ReplayedJob
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.emulation.compare.drive import drive
from leasekit.emulation.compare.works import WorkShape, from_swf, generate, write_swf
from leasekit.emulation.experiment import run_file
from leasekit.policies.registry import make_mapper

NODES = 16
FILE = """
[deployment]
name = "jobs"
signatures = false
[actor.broker]
role = "broker"
mapper = { name = "backfill" }
[actor.lab]
role = "authority"
inventory = [{ type = "node", units = 16 }]
delegation = [{ broker = "broker", type = "node" }]
[actor.batch]
role = "guest"
settings = { defer_max = "60d" }
mapper = MAPPER
[emulation]
horizon = "HORIZON"
"""


def emulated(folder: Path, mapper: str, horizon: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The only run, and its transition log."""
    file = folder / "jobs.toml"
    file.write_text(FILE.replace("MAPPER", mapper).replace("HORIZON", horizon))
    (run,) = run_file(file, folder / "out", data=folder)["runs"]
    with (folder / "out" / "transitions.csv").open(newline="") as log:
        return run, list(csv.DictReader(log))


def test_a_replayed_log_waits_as_it_does_where_mappers_are_compared(tmp_path: Path) -> None:
    """The same jobs through the whole of a deployment and through the lean set-up: each is granted, and the mean wait
    is the same but for the ticks of clocks.
    """
    write_swf(tmp_path / "log.swf", generate(WorkShape(jobs=40, nodes=NODES, load=1.2, users=3, seed=5)), NODES)
    mapper = '{ name = "replay", type = "node", patience = "50d", jobs = { file = "log.swf" } }'
    run, _ = emulated(tmp_path, mapper, "10d")
    found = run["guests"]["batch"]["requests"]
    works = from_swf(tmp_path / "log.swf").works
    lean = drive(works, NODES, make_mapper("backfill", "broker", {}, "mapper", {}))
    waits = [(start - work.submit) / SECOND for start, work in zip(lean.starts, works, strict=True)]
    assert (found["asked"], found["leases"], found["refused"], found["failed"]) == (40, 40, 0, 0)
    assert found["granted_later"] > 3
    assert found["mean_wait_s"] == pytest.approx(sum(waits) / len(waits), rel=0.02)


CSV = """id,holder,type,units,estimate_s,run_s,submit_s,start_s,latest_s,priority,site,properties
a,ann,node,10,7200,3600,0,,,,,
b,bob,,10,3600,,60,,,3,lab,bid=7;preemptible=true
c,bob,,10,3600,,60,,120,,,
d,ann,,2,600,,60,3660,,,,
"""


def test_a_file_of_ones_own_says_all_that_a_request_can(tmp_path: Path) -> None:
    """``a`` ends with its run time, so ``b`` begins then and not after two hours; ``c`` may not wait that long; ``d``
    begins when it is reserved for.
    """
    (tmp_path / "jobs.csv").write_text(CSV)
    jobs = read_jobs(tmp_path / "jobs.csv")
    assert jobs[1] == ReplayedJob(
        "b", "bob", MINUTE, MINUTE, -1, 10, HOUR, HOUR, "", "lab", 3, {"bid": "7", "preemptible": "true"}
    )
    assert (jobs[0].estimate, jobs[0].run, jobs[2].latest, jobs[3].start) == (2 * HOUR, HOUR, 2 * MINUTE, 61 * MINUTE)
    mapper = '{ name = "replay", type = "node", jobs = { file = "jobs.csv" } }'
    run, log = emulated(tmp_path, mapper, "6h")
    found = run["guests"]["batch"]["requests"]
    assert (found["asked"], found["granted_at_once"], found["granted_later"], found["refused"]) == (4, 2, 1, 1)
    begun = sorted(int(row["at"]) for row in log if (row["actor"], row["event"]) == ("batch", "lease"))
    assert begun == pytest.approx([0, HOUR, 61 * MINUTE], abs=2 * MINUTE)


def test_the_reservations_of_grid5000_that_ran(tmp_path: Path) -> None:
    """Widths are drawn by the seed, for the log says none."""
    with gzip.open(tmp_path / "reservations.csv.gz", "wt") as file:
        file.write(
            "job_id,submit_bound_s,start_s,stop_s,outcome\n840,1000,900,-1,cancelled\n841,1000,1000,1500,ran\n"
            "842,1200,5000,5600,ran\n843,1300,1290,1290,ran\n"
        )
    spec = JobsSpec(file="reservations.csv.gz", widths=(1, 2, 4), seed=3)
    first, second = open_jobs(spec, tmp_path)
    assert (first.id, first.submit, first.start, first.run) == ("841", 0, 0, 500 * SECOND)
    assert (second.submit, second.start, second.estimate) == (200 * SECOND, 4000 * SECOND, 600 * SECOND)
    assert {first.units, second.units} <= {1, 2, 4}
    assert open_jobs(spec, tmp_path) == [first, second]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("submit_s,units\n1,2\n", "line 1: found 'submit_s,units', allowed is columns of id, holder"),
        ("submit_s,run_s\n-1,2\n", "line 2: found '-1', allowed is as submit_s seconds, at least 0"),
        ("submit_s,run_s,units\n1,2,x\n", "line 2: found 'x', allowed is as units a whole number"),
        ("submit_s,run_s,properties\n1,2,bid\n", "line 2: found 'bid', allowed is as properties KEY=VALUE"),
        ("submit_s,run_s,start_s\n9,2,1\n", "line 2: found '9,2,1', allowed is a unit or more"),
        ("submit_s,run_s,start_s,latest_s\n1,2,9,8\n", "line 2: found '1,2,9,8', allowed is a unit or more"),
        ("submit_s,run_s\n1\n", "line 2: found '1', allowed is 2 columns"),
        ("submit_s,run_s\n", "found no job that took any unit for any time"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """By file, line and column, with what is allowed."""
    file = tmp_path / "jobs.csv"
    file.write_text(text)
    with pytest.raises(TraceError) as error:
        read_jobs(file)
    assert str(error.value).startswith(str(file)) and said in str(error.value)


def _submitted(folder: Path, **changes: Any) -> list[tuple[str, int, int]]:
    """The jobs of two holders, at 0, 10, 20 and 30 minutes: id, minute of submission, units."""
    rows = [f"j{n},{'ab'[n % 2]},{n + 1},600,{600 * n}" for n in range(4)]
    (folder / "log.csv").write_text("\n".join(["id,holder,units,run_s,submit_s", *rows]) + "\n")
    jobs = open_jobs(JobsSpec(file="log.csv", **changes), folder)
    return [(job.id, job.submit // MINUTE, job.units) for job in jobs]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, [("j0", 0, 1), ("j1", 10, 2), ("j2", 20, 3), ("j3", 30, 4)]),
        ({"holders": ("b",)}, [("j1", 10, 2), ("j3", 30, 4)]),
        ({"parts": 2, "part": 1}, [("j1", 10, 2), ("j3", 30, 4)]),
        ({"start": 10 * MINUTE, "length": 15 * MINUTE}, [("j1", 0, 2), ("j2", 10, 3)]),
        ({"arrivals": 2.0, "units": 1.5}, [("j0", 0, 2), ("j1", 5, 3), ("j2", 10, 5), ("j3", 15, 6)]),
        ({"widest": 2, "shift": HOUR}, [("j0", 60, 1), ("j1", 70, 2), ("j2", 80, 2), ("j3", 90, 2)]),
        (
            {"length": 15 * MINUTE, "repeat": 2, "pad": 5 * MINUTE},
            [("j0", 0, 1), ("j1", 10, 2), ("j0-r2", 20, 1), ("j1-r2", 30, 2)],
        ),
        ({"horizon": 15 * MINUTE}, [("j0", 0, 1), ("j1", 10, 2)]),
    ],
    ids=["all", "holders", "part", "cut", "scaled", "shifted", "repeated and padded", "horizon"],
)
def test_a_log_is_cut_scaled_repeated_and_shifted(
    tmp_path: Path, changes: dict[str, Any], found: list[tuple[str, int, int]]
) -> None:
    """Each on its own."""
    assert _submitted(tmp_path, **changes) == found


def test_jobs_by_distribution_come_as_often_as_they_say() -> None:
    """A job every ten minutes in the mean, for a month; the same seed, the same jobs; runs scaled apart."""
    spec = JobsSpec(made=MadeJobs(every=Exponential(mean=10 * MINUTE), run=Fixed(latency=HOUR), units=(1, 3)), runs=0.5)
    jobs = open_jobs(spec, None)
    assert len(jobs) == pytest.approx(30 * DAY / (10 * MINUTE), rel=0.05)
    assert {job.run for job in jobs} == {HOUR // 2} and {job.units for job in jobs} == {1, 3}
    assert jobs == open_jobs(spec, None) != open_jobs(JobsSpec(made=spec.made, seed=1), None)


def test_users_think_between_their_jobs(tmp_path: Path) -> None:
    """Each of two users runs for 20 minutes and thinks for 40: a job an hour, and not two at a time; a lease ends with
    its job, not with the estimate.
    """
    mapper = '{ name = "users", type = "node", users = 2, units = [3], run = "20m", think = "40m", estimate = 3.0 }'
    run, log = emulated(tmp_path, mapper, "24h")
    batch = run["guests"]["batch"]
    assert batch["requests"]["asked"] == batch["requests"]["granted_at_once"] == pytest.approx(2 * 24, abs=2)
    assert batch["peak_leased"] == 6
    assert batch["mean_leased"] == pytest.approx(6 / 3, rel=0.05)
    assert any(row["event"] == "close" for row in log)


def test_replay_without_jobs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And jobs for a mapper that replays none."""
    for mapper, said in (
        ('{ name = "replay", type = "node" }', "actor.batch.mapper.jobs: found nothing, expected jobs"),
        ('{ name = "manual", jobs = { made = {} } }', "found jobs, mapper 'manual' replays none"),
        ('{ name = "replay", type = "node", jobs = {} }', "found neither of file and made, expected one of them"),
    ):
        file = tmp_path / "jobs.toml"
        file.write_text(FILE.replace("MAPPER", mapper).replace("HORIZON", "1h"))
        assert main.run(["emulate", str(file)]) == 1
        assert said in capsys.readouterr().err
