"""Guests' mappers that follow a load see what was; what is to come only where they say so, which is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.cli.main import run
from leasekit.emulation.experiment import run_file

MAPPERS = '''
from leasekit.core.mappers import ReportNumber, Wake
from leasekit.core.time import HOUR, Term


class Now:
    """Reports the load of each hour as it comes, with its peak so far."""

    needs_signal = True
    inline = True
    ahead = 0

    def __init__(self, *, signal):
        self.load = signal

    def plan(self, cycle):
        yield ReportNumber("load", self.load.value(cycle.now + self.ahead))
        yield ReportNumber("peak", self.load.peak(Term(0, cycle.now + 1)))
        yield Wake(cycle.now // HOUR * HOUR + HOUR)


class Peeks(Now):
    ahead = HOUR


class Knows(Peeks):
    needs_future = True


class Early(Now):
    def __init__(self, *, signal):
        super().__init__(signal=signal)
        signal.value(0)
'''
DEPLOY = """
[deployment]
signatures = false
[actor.broker]
role = "broker"
[actor.web]
role = "guest"
mapper = { name = "mine.py:NAME", signal = { file = "load.csv", column = "load", time_unit = "s" } }
[emulation]
horizon = "5h"
"""


def deploy(folder: Path, name: str) -> Path:
    """The file, with the mapper of that name and a load of 1, 4, 2, 3, 5 by the hour."""
    (folder / "mine.py").write_text(MAPPERS)
    rows = "".join(f"{hour * 3600},{load}\n" for hour, load in enumerate((1, 4, 2, 3, 5)))
    (folder / "load.csv").write_text(f"timestamp,load\n{rows}")
    file = folder / "ahead.toml"
    file.write_text(DEPLOY.replace("NAME", name))
    return file


def test_what_was_is_shown(tmp_path: Path) -> None:
    """The load of each turn, in the whole run."""
    (one,) = run_file(deploy(tmp_path, "Now"), data=tmp_path)["runs"]
    assert one["mapper_errors"] == {} and "sees_ahead" not in one["guests"]["web"]
    load, peak = one["reported"]["web"]["load"], one["reported"]["web"]["peak"]
    assert (load["mean"], load["least"], load["most"], load["last"]) == (pytest.approx(3, abs=1e-3), 1, 5, 5)
    assert peak["mean"] == pytest.approx((1 + 4 + 4 + 4 + 5) / 5, abs=1e-3)


def test_who_peeks_fails_and_is_told_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn fails; `mapper check` finds it too."""
    monkeypatch.chdir(tmp_path)  # where it writes the case down
    file = deploy(tmp_path, "Peeks")
    assert run(["emulate", str(file), "--data", str(tmp_path)]) == 1
    said = "is to come, it is 0: a mapper that is to see ahead says needs_future = True (mine.py, line 17)"
    assert f"guest mapper: ValueError: the load at 3600000 {said}" in capsys.readouterr().err
    assert run(["mapper", "check", f"{tmp_path / 'mine.py'}:Peeks", "--role", "guest", "--cases", "2"]) == 1
    assert "says needs_future = True" in capsys.readouterr().out
    assert run(["mapper", "check", f"{tmp_path / 'mine.py'}:Now", "--role", "guest", "--cases", "2"]) == 0


def test_who_is_to_know_is_shown_all_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the summary, and to people."""
    file = deploy(tmp_path, "Knows")
    (one,) = run_file(file, data=tmp_path)["runs"]
    assert one["mapper_errors"] == {} and one["guests"]["web"]["sees_ahead"] is True
    assert one["reported"]["web"]["load"]["mean"] == pytest.approx((4 + 2 + 3 + 5 + 5) / 5, abs=1e-3)
    assert run(["emulate", str(file), "--data", str(tmp_path)]) == 0
    assert "the mapper of web is shown what is to come of its load (needs_future)" in capsys.readouterr().err


def test_a_constructor_knows_nothing_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose mapper looks before its first turn is refused, before anything runs."""
    file = deploy(tmp_path, "Early")
    assert run(["config", "check", str(file)]) == 1
    assert "it is -1: a mapper that is to see ahead says needs_future = True" in capsys.readouterr().out
