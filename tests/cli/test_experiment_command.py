"""``leasekit experiment coallocation`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.cli import emulate
from leasekit.cli.main import run
from leasekit.emulation.coallocation.experiment import FILE, SCENARIOS
from leasekit.emulation.papers.claims import PaperClaim, judge


def test_one_scenario_is_run_summed_up_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON on standard output, files in the folder, and where they are on standard error."""
    data = str(data_file(FILE).parent.parent)
    small = ["--seeds", "2", "--load", "0.05", "--scenario", "normal", "--jobs", "1"]
    assert run(["experiment", "coallocation", "--data", data, "--out", str(tmp_path / "o"), "--json", *small]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert list(summary["scenarios"]) == ["normal"] and summary["seeds"] == [1, 2]
    assert "written to" in captured.err and (tmp_path / "o" / "success.svg").is_file()
    assert summary["claims"] == []
    assert run(["experiment", "coallocation", "--data", data, *small]) == 0
    captured = capsys.readouterr()
    assert "verdict" not in captured.out
    assert "not held against the paper, whose settings are others: load 0.05 (not 1.0)" in captured.err


@pytest.mark.parametrize(("seeds", "noisy"), [(1, True), (2, True), (3, False)])
def test_what_the_paper_says_stands_beside_what_was_found(
    seeds: int, noisy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the verdict of ``experiment all``; what has no criterion is left out, and few seeds are said to be noise."""
    claim = PaperClaim("slide 21", "success at 80 %", "over 0.61", 0.6, 0.7)
    claims = [judge(claim, [0.5, 0.5, 0.51][:seeds]), judge(PaperClaim("slide 21", "load"), [1.0])]
    emulate._print_coallocation({
        "seeds": list(range(1, seeds + 1)), "not_the_papers": [], "claims": claims, "loads_pct": [], "scenarios": {},
        "measured": {},
    })  # fmt: skip
    captured = capsys.readouterr()
    head, line = captured.out.splitlines()[-2:]
    assert head.split() == ["where", "figure", "theirs", "expected", "ours", "verdict"]
    assert line.split()[-1] == "differs" and "0.6 to 0.7" in line
    assert ("fewer than 3 seeds" in captured.err) is noisy


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the place of --out ends both experiments before any run."""
    data = str(data_file(FILE).parent.parent)
    file = tmp_path / "README.md"
    file.write_text("read me")
    for kind in ("coallocation", "energy"):
        assert run(["experiment", kind, "--data", data, "--out", str(file), "--jobs", "1"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"leasekit: {file}: found a file, expected a folder to write results to\n"
    assert file.read_text() == "read me"


def test_the_scenarios_of_the_command_are_those_of_the_experiment() -> None:
    """Names are written down twice so that help needs no imports; they agree."""
    assert emulate.SCENARIOS == SCENARIOS


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without data the commands say what they looked for, and advise nothing that they don't have."""
    assert run(["experiment", "coallocation", "--data", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "coallocation/testbed.json" in told and "--synthetic" not in told
    assert run(["experiment", "energy", "--data", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "trace is missing" in told and "--synthetic" not in told, "there is no such option"
