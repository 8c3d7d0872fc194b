"""Tests that must not run side by side don't: those of a group share a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GROUP = """
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_worker(number):
    pathlib.Path(__file__).with_name(f"{number}.worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_tests_of_a_group_share_a_worker(tmp_path: Path) -> None:
    """With the versions of pytest and its plug-in that are installed, a group's tests all run in one process."""
    (tmp_path / "test_group.py").write_text(GROUP)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "no:cacheprovider",
    ]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take all of the time to import
    done = subprocess.run(
        [*command, str(tmp_path)], env=alone, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = [path.read_text() for path in tmp_path.glob("*.worker")]
    assert len(workers) == 8 and len(set(workers)) == 1
