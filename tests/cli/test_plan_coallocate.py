"""``leasekit plan coallocate``: formats, exit statuses, and one message for a bad file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli.main import run

PROBLEM: dict[str, Any] = {
    "resources": {
        "vertices": [{"id": "N0", "kind": "site", "cpus": 8}, {"id": "N1", "kind": "site", "cpus": 4}],
        "links": [{"a": "N0", "b": "N1", "bw": 1, "vb": 3}],
    },
    "request": {
        "sites": [{"id": "r0", "cpus": 8}, {"id": "r1", "cpus": 2}],
        "links": [{"from": "r0", "to": "r1", "bw": 1}],
    },
}


def problem(folder: Path, **parts: Any) -> str:
    """A problem file."""
    file = folder / "problem.json"
    file.write_text(json.dumps(PROBLEM | parts), encoding="utf-8")
    return str(file)


def test_json_is_one_object_in_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided is exit status 0, with exactly the keys of the format."""
    assert run(["plan", "coallocate", problem(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("solve_ms") >= 0
    assert answer == {
        "status": "optimal",
        "objective": 13,
        "bound": 13,
        "sites": {"r0": "N0", "r1": "N1"},
        "paths": [["N0", "N1"]],
        "reason": None,
    }


def test_infeasible_is_decided_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0, and the reason in words."""
    request = {"sites": [{"id": "r0", "cpus": 9}]}
    assert run(["plan", "coallocate", problem(tmp_path, request=request), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "infeasible" and answer["paths"] is None
    assert "no site with 9 CPUs free" in answer["reason"]


def test_a_person_sees_status_sites_and_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the same is printed as tables."""
    assert run(["plan", "coallocate", problem(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "optimal" in out and "N0 - N1" in out
    frames = {"est": 0, "lst": 10, "duration": 5, "count": 2}
    reserved = [{"site": "N0", "from": 0, "to": 7, "cpus": 1}]
    assert run(["plan", "coallocate", problem(tmp_path, frames=frames, reserved=reserved)]) == 0
    out = capsys.readouterr().out
    assert "r0: N0, r1: N1" in out and "no site with 8 CPUs free for r0 over 0-5" in out


def test_frames_give_plans_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With frames the answer has plans in order and the starts without one."""
    frames = {"est": 0, "lst": 10, "duration": 5, "count": 2}
    reserved = [{"site": "N0", "from": 0, "to": 7, "cpus": 1}]
    assert run(["plan", "coallocate", problem(tmp_path, frames=frames, reserved=reserved), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [plan["start"] for plan in answer["plans"]] == [10]
    assert [one["start"] for one in answer["refused"]] == [0]


def test_the_problem_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dash is standard input, also in messages."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(PROBLEM)))
    assert run(["plan", "coallocate", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "optimal"
    monkeypatch.setattr("sys.stdin", io.StringIO("{"))
    assert run(["plan", "coallocate", "-"]) == 2
    assert "standard input: line 1, column 2: found no JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "found list, expected a JSON object"),
        ("", "line 1, column 1: found no JSON"),
        ("[" * 100_000, "found lists in lists without end"),
        (json.dumps(PROBLEM | {"optoins": {}}), "optoins: found an unknown key, expected one of:"),
        (
            json.dumps(PROBLEM | {"request": {"sites": [{"id": "r0", "cpu": 1}]}}),
            "request.sites[0].cpu: found an unknown",
        ),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    """Exit status 2 and one line on standard error, which begins with the file."""
    file = tmp_path / "bad.json"
    file.write_text(content, encoding="utf-8")
    assert run(["plan", "coallocate", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"leasekit: {file}: ") and words in captured.err


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, and bytes that are no text, are no traceback."""
    assert run(["plan", "coallocate", str(tmp_path / "none.json")]) == 2
    assert "none.json: can't be read" in capsys.readouterr().err
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert run(["plan", "coallocate", str(tmp_path / "bytes")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    assert run(["plan", "coallocate"]) == 2


def test_the_schema_names_every_key_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """It is strict about keys, as reading is, and says what is required."""
    assert run(["plan", "coallocate", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["resources", "request"] and schema["additionalProperties"] is False
    link = schema["properties"]["request"]["properties"]["links"]["items"]
    assert link["required"] == ["from", "to", "bw"] and link["additionalProperties"] is False
    vertex = schema["properties"]["resources"]["properties"]["vertices"]["items"]["properties"]
    assert vertex["kind"] == {"enum": ["site", "exchange"]} and "attrs" in vertex
    assert schema["properties"]["options"]["properties"]["pmax"]["default"] == 2


def test_the_solver_prints_nothing(tmp_path: Path) -> None:
    """A process of its own whose standard output is one JSON object: HiGHS, which is no Python, would write past it."""
    command = [sys.executable, "-m", "leasekit.cli.main", "plan", "coallocate", "--json"]
    done = subprocess.run([*command, problem(tmp_path, options={"solver": "highs"})], capture_output=True, check=True)
    assert json.loads(done.stdout)["objective"] == 13 and done.stderr == b""
