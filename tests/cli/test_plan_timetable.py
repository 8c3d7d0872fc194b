"""``leasekit plan timetable``: where the workload comes from, where answers go, and the exit status of a wrong file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from leasekit.cli.main import run
from leasekit.emulation.timetable_plan import COLUMNS

HEADER = ",".join(COLUMNS)
ROWS = f"{HEADER}\n0,0,,10,2,im\n5,20,30,10,1,ar\n"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A workload of two requests."""
    file = tmp_path / "workload.csv"
    file.write_text(ROWS, encoding="utf-8")
    return file


def test_the_workload_can_come_from_standard_input(
    workload: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dash is standard input, with the same answer as a file; messages call it so."""
    summaries = []
    for name in (str(workload), "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO(ROWS))
        assert run(["plan", "timetable", name, "--nodes", "2", "--json"]) == 0
        summaries.append(json.loads(capsys.readouterr().out) | {"decisions_per_s": None})
    assert summaries[0] == summaries[1] and summaries[0]["requests"] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{HEADER}\n0,0,,60,1.5,be\n"))
    assert run(["plan", "timetable", "-"]) == 2
    assert capsys.readouterr().err.startswith("leasekit: standard input: line 2: nodes: found '1.5', expected a whole ")


@pytest.mark.parametrize("content", ["", "a,b\n", f"{HEADER}\n0,0,,60,1\n", f"{HEADER}\n10,0,20,10,1,ar\n"])
def test_a_wrong_file_ends_with_2(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error that begins with the file, nothing on standard output, no answers written."""
    file, out = tmp_path / "wrong.csv", tmp_path / "answers.csv"
    file.write_text(content, encoding="utf-8")
    assert run(["plan", "timetable", str(file), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"leasekit: {file}: line ")
    assert not out.exists()


def test_answers_never_overwrite_the_workload(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that is read is refused as --out under each of its names, and stays as it is."""
    linked, hard = workload.with_name("linked.csv"), workload.with_name("hard.csv")
    linked.symlink_to(workload)
    hard.hardlink_to(workload)
    for out in (workload, linked, hard):
        assert run(["plan", "timetable", str(workload), "--out", str(out)]) == 2
        assert f"--out: found {out}, the file that is read, expected another one" in capsys.readouterr().err
    assert workload.read_text(encoding="utf-8") == ROWS
    other = workload.with_name("answers.csv")
    assert run(["plan", "timetable", str(workload), "--out", str(other)]) == 0
    assert run(["plan", "timetable", str(workload), "--out", str(other)]) == 0
    assert other.read_text(encoding="utf-8") == "start_s,reason\n0,\n20,\n"


def test_answers_never_overwrite_what_standard_input_is(
    workload: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same where the shell opened the workload."""
    with workload.open(encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run(["plan", "timetable", "-", "--out", str(workload)]) == 2
    assert "the file that is read" in capsys.readouterr().err
    assert workload.read_text(encoding="utf-8") == ROWS


def test_where_answers_cannot_go_is_said_before_the_work(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder, and a folder that is missing, are no file to write; nothing is run."""
    for out, found in ((workload.parent, "a folder"), (workload.parent / "none" / "a.csv", "no folder ")):
        assert run(["plan", "timetable", str(workload), "--out", str(out)]) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and f"--out: {out}: found {found}" in captured.err


def test_the_schema_says_what_the_reader_says(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole nodes, all columns required, nothing else; a person is told over what the utilisation is."""
    assert run(["plan", "timetable", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["nodes"]["type"] == "integer" and schema["required"] == list(COLUMNS)
    assert schema["additionalProperties"] is False
    assert run(["plan", "timetable", str(workload)]) == 0
    assert "utilisation of the makespan" in capsys.readouterr().out
