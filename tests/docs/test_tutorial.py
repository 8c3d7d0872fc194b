"""docs/tutorial.md: what a newcomer types works as it stands, and comes to what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekit.emulation.conformance.kit import Subject, check
from leasekit.emulation.conformance.loads import SIZES
from leasekit.emulation.conformance.watched import ANSWERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \| ([\d,]+) s \| ([\d,.]+) \| ([\d.]+) \|$", re.MULTILINE)

pytestmark = pytest.mark.xdist_group("docs_examples")


def _blocks(language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(PAGE) if found == language]


def commands(verb: str) -> list[str]:
    lines = [line.removeprefix("$ ") for block in _blocks("console") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"leasekit mapper {verb}")]


def _type(line: str, folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def json_of(line: str, folder: Path) -> Any:
    """What a command prints with --json."""
    status, printed = _type(f"{line} --json 2>/dev/null", folder)
    assert status == 0, printed
    return json.loads(printed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the mapper as it is first written, and the workload."""
    (tmp_path / "easy.py").write_text(_blocks("python")[0])
    (workload,) = commands("workload")
    status, printed = _type(workload, tmp_path)
    assert status == 0, printed
    return tmp_path


def test_the_mapper_beats_fcfs(folder: Path) -> None:
    """In thirty lines it has a third of the slowdown of either kind of fcfs at most; the table says what comes out."""
    code = [line for line in _blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 30
    first, second, _ = commands("compare")
    assert first == second.replace(" fcfs easy.py:Easy", "").replace(" --out compared", "").replace(
        "fcfs:backfill=false", "fcfs fcfs:backfill=false"
    ), "what the page runs first is part of what it runs next"
    runs = {run["mapper"]: run for run in json_of(second, folder)["runs"]}
    slowdowns = {name: run["mean_bounded_slowdown"] for name, run in runs.items()}
    assert slowdowns["easy.py:Easy"] * 3 < min(slowdowns["fcfs"], slowdowns["fcfs:backfill=false"])
    rows = ROW.findall(PAGE)
    assert {row[0] for row in rows} == set(runs)
    for name, *figures in rows:
        told = [float(figure.replace(",", "")) for figure in figures]
        found = [runs[name][key] for key in ("mean_wait_s", "mean_bounded_slowdown", "utilisation")]
        assert found == pytest.approx(told, rel=2e-3), name
    assert {path.suffix for path in (folder / "compared").iterdir()} == {".json", ".csv", ".png", ".svg"}


def test_the_check_finds_what_is_missing_and_nothing_once_it_is_there(tmp_path: Path) -> None:
    """As first written the mapper fails one check, over groups; with the page's second piece of code it fails none.

    What a turn costs, which the command tells as well, is left out: it takes most of the command's time.
    """
    (tmp_path / "easy.py").write_text(_blocks("python")[0])
    before, after = commands("check")
    assert before == f"{after} --out cases || true"
    *_, target, _, cases = after.split()
    subject = Subject(target=str(tmp_path / target), role="broker", cases=int(cases), sizes=SIZES[:1])
    (found,) = check(subject).faults
    assert found.check == ANSWERS
    assert "units free for all of its group" in found.text
    complete(tmp_path)
    assert check(subject).faults == ()


def complete(folder: Path) -> None:
    """Put the page's second piece of code where the page says."""
    text = (folder / "easy.py").read_text()
    more = _blocks("python")[1].partition("\n")[2]
    text = text.replace("import Grant,", "import Grant, GrantGroup,").replace("    def may(", f"{more}\n    def may(")
    (folder / "easy.py").write_text(text)
