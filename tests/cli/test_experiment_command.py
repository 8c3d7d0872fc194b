"""``leasekit experiment coallocation`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.cli import experiment
from leasekit.cli.main import run
from leasekit.emulation.coallocation.experiment import FILE, SCENARIOS


def test_one_scenario_is_run_summed_up_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON on standard output, files in the folder, and where they are on standard error."""
    data = str(data_file(FILE).parent.parent)
    small = ["--seeds", "2", "--load", "0.05", "--scenario", "normal", "--jobs", "1"]
    assert run(["experiment", "coallocation", "--data", data, "--out", str(tmp_path / "o"), "--json", *small]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert list(summary["scenarios"]) == ["normal"] and summary["seeds"] == [1, 2]
    assert "written to" in captured.err and (tmp_path / "o" / "success.svg").is_file()
    assert run(["experiment", "coallocation", "--data", data, *small]) == 0
    assert "against the paper" in capsys.readouterr().out


def test_the_scenarios_of_the_command_are_those_of_the_experiment() -> None:
    """Names are written down twice so that help needs no imports; they agree."""
    assert experiment.SCENARIOS == SCENARIOS


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the testbed the command says what it looked for."""
    assert run(["experiment", "coallocation", "--data", str(tmp_path)]) == 1
    assert "coallocation/testbed.json" in capsys.readouterr().err
