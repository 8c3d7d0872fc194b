"""The energy experiment: how a log becomes a workload, what is simulated, and what is summed up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from datafiles import data_file
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekit.config.traces import TraceMissing
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.emulation.energy import experiment
from leasekit.emulation.energy.drive import CORE, Course, Latencies, drive
from leasekit.emulation.energy.metrics import Delayed, delay_req, e_savings, res_idle
from leasekit.emulation.energy.requests import (
    LOGS,
    EnergyRequest,
    WorkingHours,
    capacity_for,
    on_demand,
    peak,
    read_requests,
    window_of,
)
from leasekit.emulation.metrics import Series
from leasekit.policies.authority.energy import EnergySettings
from leasekit.policies.authority.energy_plan import EnergyPowerSettings

HOURS = WorkingHours(zone="Europe/Stockholm")
LATENCIES = Latencies(boot=3 * MINUTE, resume=15 * SECOND)


def at(text: str) -> int:
    """Local time in Sweden in winter, as an instant."""
    return int(datetime.fromisoformat(f"{text}+01:00").astimezone(UTC).timestamp()) * SECOND


def series(*changes: tuple[int, float]) -> Series:
    made = Series()
    for instant, value in changes:
        made.append(instant, value)
    return made


# -- formulas --------------------------------------------------------------------------------------------------------


def test_the_formulas_are_the_papers() -> None:
    """By hand: integrals in unit-seconds, and units times boot time by duration."""
    used = series((0, 2), (10 * SECOND, 5), (20 * SECOND, 0))
    window = Term(0, 40 * SECOND)
    assert res_idle(8, used, window) == 8 * 40 - 2 * 10 - 5 * 10
    assert res_idle(series((0, 8), (20 * SECOND, 4)), used, window) == 8 * 20 + 4 * 20 - 70
    assert e_savings(series((0, 0), (10 * SECOND, 3)), window) == 90
    assert delay_req([Delayed(4, 60 * SECOND, 120 * SECOND), Delayed(1, 30 * SECOND, 10 * SECOND)]) == 5.0
    assert delay_req([]) == 0


# -- workloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "inside"),
    [
        ("1997-01-15T08:00", True), ("1997-01-15T07:59", False), ("1997-01-15T17:59", True),
        ("1997-01-15T18:00", False), ("1997-01-18T12:00", False),
    ],
)  # fmt: skip
def test_working_hours_are_local(local: str, inside: bool) -> None:
    """Monday to Friday, from 8 until before 18, in the log's time zone."""
    assert (at(local) in HOURS) is inside


def test_working_hours_follow_summer_time() -> None:
    """8 in summer is 6 in UTC."""
    summer = int(datetime(1997, 7, 16, 6, 0, tzinfo=UTC).timestamp()) * SECOND
    assert summer in HOURS
    assert summer - 1 not in HOURS


def test_both_rules_are_applied() -> None:
    """Submitted within hours and started outside: at its submission. Every other: both at its start."""
    day, evening = at("1997-01-15T10:00"), at("1997-01-15T22:00")
    moved = EnergyRequest(evening, day, HOUR, 4)
    others = [
        EnergyRequest(day + HOUR, day, HOUR, 1),
        EnergyRequest(evening + HOUR, evening, HOUR, 2),
        EnergyRequest(at("1997-01-16T09:00"), evening, HOUR, 3),
        EnergyRequest(day, day, HOUR, 5),
    ]
    adapted, count = on_demand(sorted([moved, *others]), HOURS)
    assert count == 1
    assert adapted == sorted([EnergyRequest(day, day, HOUR, 4), *(one._replace(submit=one.start) for one in others)])


def test_capacity_is_the_peak_and_a_margin() -> None:
    """Requests that follow each other without a gap don't add up."""
    requests = [
        EnergyRequest(0, 0, 10, 4),
        EnergyRequest(5, 0, 10, 3),
        EnergyRequest(10, 0, 10, 4),
        EnergyRequest(30, 0, 1, 6),
    ]
    assert peak(requests) == 7
    assert capacity_for(requests, 0.1) == 8
    assert window_of(requests) == Term(0, 31)


def brute_peak(requests: Sequence[EnergyRequest]) -> int:
    return max(sum(r.cores for r in requests if r.start <= one.start < r.start + r.duration) for one in requests)


request_lists = st.lists(
    st.builds(
        lambda start, ahead, duration, cores: EnergyRequest(start, max(0, start - ahead), duration, cores),
        st.integers(0, 5 * HOUR), st.sampled_from((0, 0, MINUTE, HOUR, 4 * HOUR)), st.integers(1, 2 * HOUR),
        st.integers(1, 6),
    ),
    min_size=1, max_size=25,
).map(sorted)  # fmt: skip


@given(request_lists)
def test_the_peak_is_that_of_counting(requests: list[EnergyRequest]) -> None:
    """Against counting at each start."""
    assert peak(requests) == brute_peak(requests)


def test_the_kth_log_has_what_is_known_of_it() -> None:
    """28,467 usable jobs; 104 cores at once as they were scheduled, and far more on demand."""
    data_file(LOGS["kth-sp2"].file)
    workloads = experiment.read_workloads("kth-sp2", experiment.EnergySetup(days=0))
    assert len(workloads.in_advance) == len(workloads.on_demand) == 28_467
    assert peak(workloads.in_advance) == 104
    assert peak(workloads.on_demand) == 470
    assert workloads.moved == 2631
    few = experiment.read_workloads("kth-sp2", experiment.EnergySetup(days=14))
    assert few.in_advance == workloads.in_advance[: len(few.in_advance)]
    assert window_of(few.in_advance).length > 14 * 24 * HOUR


def test_a_missing_log_is_told(tmp_path: Path) -> None:
    """Its name, and where it was looked for."""
    with pytest.raises(TraceMissing, match="KTH-SP2"):
        read_requests("kth-sp2", tmp_path)


# -- a site ------------------------------------------------------------------------------------------------------


def run(requests: Sequence[EnergyRequest], capacity: int, *, ewma: bool = False, **power: int) -> Course:
    made = EnergySettings(types=(CORE,), forecast="ewma" if ewma else "last", **{"boot": LATENCIES.boot, **power})  # type: ignore[arg-type]
    return drive(requests, capacity, made, LATENCIES)


def test_a_request_on_demand_waits_for_its_cores() -> None:
    """One core is in use for an hour, the other is off from the first decision after five checks on; the second request
    gets it back for its boot time.
    """
    requests = [EnergyRequest(0, 0, HOUR, 1), EnergyRequest(30 * MINUTE, 30 * MINUTE, 10 * MINUTE, 1)]
    course = run(requests, 2)
    assert list(course.off)[:3] == [(5 * MINUTE, 1), (30 * MINUTE, 0), (50 * MINUTE, 1)]
    assert list(course.used) == [(0, 1), (30 * MINUTE, 2), (43 * MINUTE, 1), (60 * MINUTE, 0)]
    assert course.delayed == [Delayed(1, 3 * MINUTE, 10 * MINUTE)]
    assert (course.refused, course.late) == (0, 0)


def test_a_request_in_advance_does_not_wait() -> None:
    """Its core is switched on as soon as its start is within the horizon, and stays on for it."""
    requests = [EnergyRequest(0, 0, HOUR, 1), EnergyRequest(50 * MINUTE + 1, 0, 10 * MINUTE, 1)]
    course = run(requests, 2)
    assert course.delayed == []
    assert list(course.off)[:2] == [(5 * MINUTE, 1), (35 * MINUTE + 2, 0)]


def test_who_comes_unannounced_leaves_what_is_held() -> None:
    """The idle core is for the reservation: the other request waits for one that is off."""
    requests = [
        EnergyRequest(0, 0, 2 * HOUR, 1),
        EnergyRequest(46 * MINUTE, 46 * MINUTE, 30 * MINUTE, 1),
        EnergyRequest(50 * MINUTE, 0, 30 * MINUTE, 1),
    ]
    course = run(requests, 3)
    assert course.delayed == [Delayed(1, 3 * MINUTE, 30 * MINUTE)]
    assert course.late == 0


def test_cores_are_suspended_where_idle_times_are_short() -> None:
    """After the first time off showed how short they are: the next wait is that of resuming."""
    requests = [EnergyRequest(n * 20 * MINUTE, n * 20 * MINUTE, 5 * MINUTE, 1) for n in range(4)]
    course = run(requests, 1, suspend_below=HOUR)
    assert [one.boot for one in course.delayed] == [3 * MINUTE, 15 * SECOND, 15 * SECOND]
    assert course.suspended.peak(Term(0, 2 * HOUR)) == 1


def test_too_many_at_once_wait_in_line() -> None:
    """First come, first served."""
    requests = [
        EnergyRequest(0, 0, HOUR, 2),
        EnergyRequest(MINUTE, MINUTE, HOUR, 1),
        EnergyRequest(2 * MINUTE, 2 * MINUTE, HOUR, 1),
    ]
    course = run(requests, 2)
    assert course.used.peak(Term(0, 3 * HOUR)) == 2
    assert course.used.integral(Term(0, 3 * HOUR)) == 4 * HOUR


@settings(deadline=None, max_examples=20)
@given(request_lists, st.integers(0, 3), st.booleans(), st.sampled_from((0, 30 * MINUTE)))
def test_every_request_is_served_and_no_core_is_two_things(
    requests: list[EnergyRequest], spare: int, ewma: bool, suspend_below: int
) -> None:
    """Cores in use, off and suspended never exceed what there is; used core-time is that of all requests, and of what
    those waited for their cores that asked for as much more; the same run comes out the same.
    """
    capacity = peak(requests) + spare
    course = run(requests, capacity, ewma=ewma, suspend_below=suspend_below)
    instants = {instant for part in (course.used, course.off, course.suspended) for instant, _ in part}
    for instant in instants:
        parts = [part.value(instant) for part in (course.used, course.off, course.suspended)]
        assert min(parts) >= 0
        assert sum(parts) <= capacity
    window = Term(0, 100 * HOUR)
    asked = sum(request.cores * request.duration for request in requests)
    waited = sum(one.units * one.boot for one in course.delayed)
    assert asked <= course.used.integral(window) <= asked + waited
    assert course.refused == 0
    again = run(requests, capacity, ewma=ewma, suspend_below=suspend_below)
    assert [list(part) for part in (again.used, again.off)] == [list(part) for part in (course.used, course.off)]
    if not suspend_below:
        assert list(course.suspended) == []


def test_all_that_are_announced_early_start_on_time() -> None:
    """With room to spare nobody waits whom the site knew of for as long as it looks ahead."""
    requests = sorted(EnergyRequest(2 * HOUR + n * 7 * MINUTE, 0, 11 * MINUTE, 1 + n % 5) for n in range(60))
    course = run(requests, 3 * peak(requests))
    assert course.delayed == []
    assert course.off.peak(Term(0, 24 * HOUR)) > 0


# -- the experiment --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workloads() -> experiment.Workloads:
    """A few days by hand: users who plan by day what runs at night."""
    morning = at("1997-01-13T09:00")
    planned = [
        EnergyRequest(morning + day * 24 * HOUR + hour * HOUR, morning + day * 24 * HOUR + MINUTE, 50 * MINUTE, 4)
        for day in range(2)
        for hour in (2, 10, 12, 14)
    ]
    sudden = [EnergyRequest(morning + n * 5 * HOUR, morning + n * 5 * HOUR, 20 * MINUTE, 1) for n in range(8)]
    requests = sorted([*planned, *sudden])
    adapted, moved = on_demand(requests, HOURS)
    return experiment.Workloads("kth-sp2", requests, adapted, moved)


@pytest.fixture(scope="module")
def found(workloads: experiment.Workloads) -> list[experiment.EnergyFound]:
    """What each strategy comes to on them."""
    return experiment.run_all(workloads)


def test_the_experiment_compares_all_strategies(
    workloads: experiment.Workloads, found: list[experiment.EnergyFound], tmp_path: Path
) -> None:
    """Figures of each hang together, claims are of two strategies each, and files hold what was found."""
    summary = experiment.summarize(workloads, found, experiment.EnergySetup())
    assert [row["strategy"] for row in summary["strategies"]] == [one.name for one in experiment.STRATEGIES]
    for row in summary["strategies"]:
        assert 0 <= row["off_core_h"] + row["suspended_core_h"] <= row["idle_core_h"]
        assert (row["off_core_h"] == 0) == (row["forecast"] == "")
    assert summary["peak"] == {"on demand": 13, "reservations": 5}
    assert summary["moved_to_submission"] == 6
    claims = {row["figure"].partition(": ")[2]: row for row in summary["claims"]}
    cores = claims["cores needed on demand, of those with reservations"]
    assert (cores["found"], cores["verdict"], cores["expected"]) == (round(15 / 6, 3), "holds", "above 1")
    assert {figure.partition(": ")[2] for figure in experiment.figures("log", found)} >= claims.keys()
    pictures = experiment.write(tmp_path / "out", summary, experiment.measured(found), found)
    assert all(path.stat().st_size > 1000 for path in pictures)
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == json.loads(json.dumps(summary))
    lines = (tmp_path / "out" / "strategies.csv").read_text().splitlines()
    assert len(lines) == 1 + len(experiment.STRATEGIES)
    assert (tmp_path / "out" / "daily.csv").read_text().startswith("day,strategy,used,off,suspended\n0,")


@pytest.mark.soak  # by the spreading that the experiment on co-allocation has
def test_the_same_in_several_processes(workloads: experiment.Workloads, found: list[experiment.EnergyFound]) -> None:
    """In the same order, with the same figures."""
    again = experiment.run_all(workloads, jobs=2)
    assert [one.figures for one in again] == [one.figures for one in found]


def test_a_site_that_never_switches_saves_nothing(workloads: experiment.Workloads) -> None:
    """With as many cores on as there are, the manager is the same as none."""
    setup = experiment.EnergySetup(power=EnergyPowerSettings(minimum=1000))
    found = experiment.run_strategy(workloads, experiment.STRATEGIES[1], setup).figures
    still = experiment.run_strategy(workloads, experiment.STRATEGIES[0], setup).figures
    same = set(found) - {"strategy", "forecast"}
    assert {key: found[key] for key in same} == {key: still[key] for key in same}


def test_a_folder_that_cannot_be_written_is_told(
    workloads: experiment.Workloads, found: list[experiment.EnergyFound], tmp_path: Path
) -> None:
    """One line that names it."""
    (tmp_path / "file").write_text("")
    summary = experiment.summarize(workloads, found, experiment.EnergySetup())
    with pytest.raises(LeasekitError, match="found a file, expected a folder to write results to"):
        experiment.write(tmp_path / "file", summary, {}, found)


def test_the_setup_boots_as_long_as_the_manager_expects() -> None:
    """The rule's lead is the latency that is simulated, unless said otherwise."""
    assert experiment.EnergySetup(latencies=attrs.evolve(LATENCIES, boot=9 * MINUTE)).power.boot == 9 * MINUTE
