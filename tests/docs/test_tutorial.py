"""docs/tutorial.md: what a newcomer types works as it stands, and comes to what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
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
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the mapper as it is first written, and the workload, of so many jobs where a test says how many."""
    (tmp_path / "easy.py").write_text(_blocks("python")[0])
    (workload,) = commands("workload")
    assert "--jobs 1000 " in workload
    status, printed = _type(workload.replace("--jobs 1000 ", f"--jobs {getattr(request, 'param', 1000)} "), tmp_path)
    assert status == 0, printed
    return tmp_path


def slowdowns(runs: Mapping[str, Any]) -> tuple[float, float]:
    """Of the page's mapper, and of the better kind of fcfs."""
    found = {name: run["mean_bounded_slowdown"] for name, run in runs.items()}
    return found["easy.py:Easy"], min(found["fcfs"], found["fcfs:backfill=false"])


@pytest.mark.parametrize("folder", [300], indirect=True)
def test_the_mapper_beats_fcfs(folder: Path) -> None:
    """In thirty lines, by what the page has one type, here for three tenths of its jobs."""
    code = [line for line in _blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 30
    first, second, _ = commands("compare")
    assert first == second.replace(" fcfs easy.py:Easy", "").replace(" --out compared", "").replace(
        "fcfs:backfill=false", "fcfs fcfs:backfill=false"
    ), "what the page runs first is part of what it runs next"
    runs = {run["mapper"]: run for run in json_of(second, folder)["runs"]}
    mine, others = slowdowns(runs)
    assert mine < others
    assert {row[0] for row in ROW.findall(PAGE)} == set(runs)
    assert {path.suffix for path in (folder / "compared").iterdir()} == {".json", ".csv", ".png", ".svg"}


@pytest.mark.soak
def test_the_table_says_what_comes_out(folder: Path) -> None:
    """The mapper has a third of the slowdown of either kind of fcfs at most."""
    _, compared, _ = commands("compare")
    runs = {run["mapper"]: run for run in json_of(compared, folder)["runs"]}
    mine, others = slowdowns(runs)
    assert mine * 3 < others
    for name, *figures in ROW.findall(PAGE):
        told = [float(figure.replace(",", "")) for figure in figures]
        found = [runs[name][key] for key in ("mean_wait_s", "mean_bounded_slowdown", "utilisation")]
        assert found == pytest.approx(told, rel=2e-3), name


def test_the_check_finds_what_is_missing_and_nothing_once_it_is_there(tmp_path: Path) -> None:
    """As first written the mapper fails one check, over groups; with the page's second piece of code it fails none.

    What a turn costs, which the command tells as well, is left out, and so are two of three cases: they take most of
    the command's time.
    """
    (tmp_path / "easy.py").write_text(_blocks("python")[0])
    before, after = commands("check")
    assert before == f"{after} --out cases || true"
    *_, target, _, cases = after.split()
    subject = Subject(target=str(tmp_path / target), role="broker", cases=int(cases) // 3, sizes=SIZES[:1])
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
