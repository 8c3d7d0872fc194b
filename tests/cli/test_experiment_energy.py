"""``leasekit experiment energy`` from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from leasekit.cli import emulate
from leasekit.cli.main import run
from leasekit.emulation.energy.requests import LOGS

LOG = """; UnixStartTime: 853056000
1 0 0 1800 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1
2 36000 50000 3600 8 -1 -1 8 -1 -1 1 1 1 1 1 1 -1 -1
3 90000 60 7200 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1
4 120000 0 60 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a log of four jobs in the place of KTH's."""
    path = tmp_path / "data" / LOGS["kth-sp2"].file
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(LOG.encode()))
    return tmp_path / "data"


def test_strategies_are_compared_and_written(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON or tables on standard output, files in the folder, and where they are on standard error."""
    small = ["experiment", "energy", "--data", str(data), "--jobs", "1"]
    assert run([*small, "--json", "--out", str(tmp_path / "out"), "--boot", "5m"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["requests"] == 4
    assert summary["setup"]["latencies"]["boot"] == 300_000
    assert "written to" in captured.err
    assert (tmp_path / "out" / "delays.svg").is_file()
    assert run(small) == 0
    shown = capsys.readouterr().out
    assert "reservations, last value" in shown
    assert "verdict" in shown and "holds" in shown


def test_the_logs_of_the_command_are_those_of_the_experiment() -> None:
    """Names are written down twice so that help needs no imports; they agree."""
    (option,) = (one for one in emulate.experiment.commands["energy"].params if one.name == "log")
    assert list(option.type.choices) == list(LOGS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--log", "lpc"], 2, "kth-sp2"),
        (["--boot", "soon"], 2, "--boot"),
        (["--safety", "-1"], 2, "--safety"),
        (["--safety", "nan"], 2, "--safety': found nan, expected a number of at least 0, at most 10"),
        (["--log", "hpc2n"], 1, "HPC2N-2002-2.2-cln.swf.gz"),
    ],
)
def test_bad_input_is_one_line(
    data: Path, arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the option, or the file that is missing."""
    assert run(["experiment", "energy", "--data", str(data), *arguments]) == status
    assert words in capsys.readouterr().err


def test_a_broken_log_is_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the file and the line."""
    (data / LOGS["kth-sp2"].file).write_bytes(gzip.compress(b"1 2 3\n"))
    assert run(["experiment", "energy", "--data", str(data)]) == 1
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize("row", ["1 0 0 1800 0 -1 -1 -1 -1 -1 1 1 1 1 1 1 -1 -1", "; of nothing"])
def test_a_log_without_jobs_is_one_line(data: Path, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the file, whether there are no jobs or none that took processors for any time."""
    path = data / LOGS["kth-sp2"].file
    path.write_bytes(gzip.compress(f"{row}\n".encode()))
    assert run(["experiment", "energy", "--data", str(data)]) == 1
    assert f"{path}: found no job that took any processor for any time" in " ".join(capsys.readouterr().err.split())
