"""Numbers that mappers report: in the summary, tables, CSV files and pictures of an emulation."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import leasekit
from leasekit.cli.main import run
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR
from leasekit.emulation.experiment import run_file

MAPPERS = '''
from leasekit.core.mappers import ReportNumber, Wake
from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs


class Counting(Fcfs):
    """How many wait, and a number that falls."""

    def allocate(self, cycle):
        yield ReportNumber("waiting", len(cycle.requests))
        yield ReportNumber("debt.vm", -float(cycle.now))
        yield from super().allocate(cycle)


class Free(FirstFit):
    def assign(self, cycle):
        yield ReportNumber("free", sum(1 for _ in cycle.free("vm")))
        yield from super().assign(cycle)


class Hourly:
    """Reports the hour, from the second one on, and asks for nothing."""

    inline = True

    def plan(self, cycle):
        if cycle.now >= HOUR:
            yield ReportNumber("hour", cycle.now // HOUR)
        yield Wake(cycle.now // HOUR * HOUR + HOUR)


class Wrong:
    """Each in one turn, every minute: a mapper that was wrong is called again before."""

    inline = True
    last = -1
    wrong = (("nan", float("nan")), ("inf", float("inf")), ("huge", 10**400), ("text", "12"), ("flag", True),
             ("", 1), ("a b", 1), ("x" * 65, 1), (3, 1))

    def plan(self, cycle):
        minute = cycle.now // MINUTE
        first, self.last = minute > self.last, minute
        if first and minute < len(self.wrong):
            yield ReportNumber(*self.wrong[minute])
        if first and minute == 20:
            for number in range(66):
                yield ReportNumber(f"n{number}", number)
        yield ReportNumber("n0", 7)
        yield Wake((minute + 1) * MINUTE)
'''
DEPLOY = """
[deployment]
name = "numbers"
signatures = false
[actor.site]
role = "authority"
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]
mapper = { name = "mine.py:Free" }
[actor.broker]
role = "broker"
mapper = { name = "mine.py:Counting" }
[actor.web]
role = "guest"
mapper = { name = "static", demands = [
    { type = "vm", units = 2, term = "1h", start = "30m" },
    { type = "vm", units = 1, term = "1h", name = "later", start = "2h" }] }
[actor.clock]
role = "guest"
mapper = { name = "mine.py:Hourly" }
[emulation]
horizon = "4h"
sample = "30m"
plot = [{ kind = "reported" }, { kind = "reported", file = "hour", numbers = ["clock.hour"] }]
"""


def deploy(folder: Path, text: str = DEPLOY) -> Path:
    """The file, with its mappers beside it."""
    (folder / "mine.py").write_text(MAPPERS)
    file = folder / "numbers.toml"
    file.write_text(text)
    return file


def test_numbers_come_out_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of mappers of all roles, from when they are first known on; a resumed run has them as well."""
    file, out = deploy(tmp_path), tmp_path / "out"
    assert run(["emulate", str(file), "--out", str(out)]) == 0
    assert "mapper of" in capsys.readouterr().out
    summary = run_file(file, out, resume=True)
    (one,) = summary["runs"]
    assert one["mapper_errors"] == {}
    # 1 from 1h to 2h, 2 up to 3h, 3 up to 4h.
    assert one["reported"]["clock"] == {"hour": {"mean": pytest.approx(2), "least": 1, "most": 3, "last": 3}}
    assert one["reported"]["broker"]["waiting"]["most"] == 1
    debt = one["reported"]["broker"]["debt.vm"]
    assert -4 * HOUR < debt["last"] == debt["least"] < debt["most"] <= 0
    assert one["reported"]["site"]["free"]["most"] == 4
    assert summary["pictures"] == ["reported.png", "reported.svg", "hour.png", "hour.svg"]
    drawn = (out / "reported.svg").read_text()
    assert all(name in drawn for name in ("broker.waiting", "broker.debt.vm", "site.free", "clock.hour"))
    assert "broker.waiting" not in (out / "hour.svg").read_text()
    with (out / "series.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["clock.reported.hour"] for row in rows] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    with (out / "runs.csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert float(row["clock.reported.hour.mean"]) == pytest.approx(2)


def test_the_library_has_rows_of_them(tmp_path: Path) -> None:
    """A row for each number; a world that is stepped has those that there are so far."""
    file = deploy(tmp_path)
    rows = leasekit.emulate(str(file)).reported
    assert [(row["actor"], row["number"], row["last"]) for row in rows if row["actor"] == "clock"] == [
        ("clock", "hour", 3)
    ]
    world = leasekit.World(str(file))
    world.run_for("90m")
    assert [row["last"] for row in world.result().reported if row["actor"] == "clock"] == [1]


def test_wrong_numbers_are_dropped_and_told(tmp_path: Path) -> None:
    """Each wrong one by itself, named; what else the mapper says stands."""
    told: list[str] = []
    file = deploy(tmp_path, DEPLOY.replace("mine.py:Hourly", "mine.py:Wrong"))
    (one,) = run_file(file, tell=told.append)["runs"]
    numbers = one["reported"]["clock"]
    assert list(numbers) == [f"n{number}" for number in range(64)] and numbers["n0"]["last"] == 7
    # Nine wrong ones, and two names too many.
    assert one["mapper_errors"] == {"clock": {"decision malformed": 11}}
    for said in (
        "value: found nan, expected a finite number",
        "value: found '12', expected a finite number",
        "value: found True, expected a finite number",
        "name: found 'a b', expected up to 64 letters, digits and _-., of which the first is a letter",
        "name: found 3, expected text",
        "name: found 'n64', one more than the 64 names that a mapper may have",
    ):
        assert any(said in line and "ReportNumber is not carried out" in line for line in told), (said, told)


def test_a_picture_of_a_number_that_nobody_reports_is_refused(tmp_path: Path) -> None:
    """With what there is."""
    file = deploy(tmp_path, DEPLOY.replace('"clock.hour"', '"clock.hours"'))
    with pytest.raises(LeasekitError, match=r"plot hour: numbers: found 'clock.hours', .*clock\.hour"):
        run_file(file, tmp_path / "out")
