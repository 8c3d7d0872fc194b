"""Which of the planted bugs ``make quick`` finds: ``make quick-finds``.

A bug is found by a simulated seed, as ``planted_bugs.json`` knows, or else by a test that fails with the bug in: each
such bug gets a process of its own, in which the tests run until one fails. The exit status is 1 if fewer than nine of
ten are found. Bugs of the daemon's shell, which no seed can find, are among them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "simulation")]

from planted_bugs import BUGS, Bug, known, planted  # noqa: E402
from test_shell_worlds import BUGS as SHELL_BUGS  # noqa: E402

ENOUGH: Final = 0.9


class FirstFailure:
    """Keeps which test has failed, or could not be collected."""

    def __init__(self) -> None:
        self.name = ""

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test."""
        self.name = self.name or (report.nodeid if report.failed else "")

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """One file."""
        self.name = self.name or (report.nodeid if report.failed else "")


def find(bug: Bug | None, paths: Sequence[str]) -> str:
    """The first test that fails with the bug in, or nothing."""
    first = FirstFailure()
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not soak and not long", *paths]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), planted(bug) if bug is not None else contextlib.nullcontext():
        status = pytest.main(words, plugins=[first])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(f"pytest ended with {status!r}:\n{said.getvalue()[-2000:]}")
    return first.name


def main() -> int:
    """Print what finds each bug, and the share that is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="the last seed that is run")
    parser.add_argument("paths", nargs="+", help="the tests that are run")
    given = parser.parse_args()
    found = {name: f"seed {at.seed}" for name, at in known().items() if at.seed <= given.seeds}
    every = {**BUGS, **SHELL_BUGS}
    rest = [name for name in every if name not in found]
    with ProcessPoolExecutor(os.cpu_count(), max_tasks_per_child=1) as pool:
        without = pool.submit(find, None, given.paths)
        tests = pool.map(find, (every[name] for name in rest), [given.paths] * len(rest))
        for name, by in zip(rest, tests, strict=True):
            found[name] = by
            print(f"{name}: {by or 'NOT FOUND'}", flush=True)
        if without.result():
            print(f"without any bug {without.result()} fails", file=sys.stderr)
            return 1
    share = sum(map(bool, found.values())) / len(every)
    by_seeds = sum(by.startswith("seed ") for by in found.values())
    print(f"{share:.1%} of {len(every)} bugs are found, {by_seeds} of them by seeds 0 to {given.seeds}")
    return 0 if share >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
