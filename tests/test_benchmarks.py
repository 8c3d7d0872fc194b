"""Benchmarks are measured by `make bench`; here, that each still begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
HELP = """
import importlib, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    sys.argv = [name, "--help"]
    try:
        module.main()
    except SystemExit as end:
        assert not end.code, f"{name}: exit status {end.code}"
    else:
        raise AssertionError(f"{name}: --help was not heeded")
"""


@pytest.mark.long
def test_each_benchmark_begins() -> None:
    """What it imports is there, and it says how it is run. In a process of their own: names of benchmarks are those of
    folders here, too.
    """
    names = sorted(path.stem for path in BENCHMARKS.glob("[a-z]*.py"))
    assert "run" in names
    done = subprocess.run(
        [sys.executable, "-c", HELP, *names],
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(names)
