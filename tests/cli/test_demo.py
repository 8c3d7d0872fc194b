"""The demo that `make demo` runs: it passes as a whole, and fails where it can't have checked a step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from leasekit.cli.demo import MARKER, DemoError, expect, fresh

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.xdist_group("system")
def test_demo_checks_every_step(tmp_path: Path) -> None:
    """All steps are checked, the daemons are gone afterwards, and what it names at the end is there."""
    folder = tmp_path / "run"
    line = [sys.executable, "-m", "leasekit.cli.demo", "--folder", str(folder), "--term", "12s"]
    done = subprocess.run(
        [*line, "--deploy", str(ROOT / "deploy")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) == 11
    assert "All steps checked" in done.stdout
    assert list((folder / "month").glob("*.png"))
    assert [name for name in ("site", "broker", "guest") if not (folder / f"{name}.db").exists()] == []
    fresh(folder)
    assert [path.name for path in folder.iterdir()] == [MARKER]


def test_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """A folder that no demo has made is neither removed nor written to."""
    (tmp_path / "precious").touch()
    with pytest.raises(DemoError, match="was not made by a demo"):
        fresh(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_unexpected_is_told() -> None:
    """What differs from what is expected names both."""
    expect(4, 4, "units")
    with pytest.raises(DemoError, match="units: expected 4, found 3"):
        expect(3, 4, "units")


def test_demo_fails_without_its_deploy_files(tmp_path: Path) -> None:
    """Where a step can't be done the exit status is 1 and the reason is told in words."""
    line = [sys.executable, "-m", "leasekit.cli.demo", "--folder", str(tmp_path / "run"), "--deploy", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "site.toml" in done.stderr
