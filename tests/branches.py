"""Which branches of actors/ and core/ no simulated seed takes, and which test takes each of them.

    python tests/branches.py --seeds 0..999            # compare with the list; exits with 1 if a branch is not on it
    python tests/branches.py --seeds 0..999 --write    # write the list anew, with a test for each branch (minutes)

The list is ``tests/simulation/branches.txt``. It only shrinks: what seeds learn to meet is taken out, and a new branch
is met by a seed, or its test is named here by hand. A branch is written with its function, the line at which it begins
and the line to which it leads, so that lines that move change nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import coverage
import pytest

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
LIST: Final = HERE / "simulation" / "branches.txt"
ROOMS: Final = ("leasekit/actors", "leasekit/core")
UNIT_TESTS: Final = ("tests/core", "tests/actors", "tests/policies")
NOBODY: Final = "(no test)"
PROPERTY: Final = "(a property test)"
"""hypothesis calls these itself, so that coverage does not see which test it is."""
IMPORT: Final = "(an import)"
"""These are taken when their module is made, before any test."""


class Branch(NamedTuple):
    """From which line of a file to which: their texts, and the function that they are in."""

    file: str
    function: str
    line: str
    to: str

    def __str__(self) -> str:
        return f"{self.file} | {self.function} | {self.line} | {self.to}"


Arc = tuple[str, int, int]
"""A file, and the lines from which and to which a branch leads; the second is below 0 where it leaves a function."""


def missed(seeds: range) -> dict[Arc, Branch]:
    """The branches that none of these seeds takes."""
    from leasekit_simulation.faults.run import simulate
    from leasekit_simulation.faults.scenario import draw

    with tempfile.TemporaryDirectory() as folder:
        measured = _coverage(Path(folder) / "seeds")
        with measured.collect():
            for seed in seeds:
                simulate(draw(seed))
        out = Path(folder) / "report.json"
        measured.json_report(outfile=str(out))
        report = json.loads(out.read_text("utf-8"))
    found = {}
    for file, told in report["files"].items():
        for start, end in told["missing_branches"]:
            found[file, start, end] = _branch(file, start, end)
    return found


def taken_by_tests() -> dict[Arc, str]:
    """For each branch that a test takes, the first of these tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests"
        measured = _coverage(path, dynamic_context="test_function")
        with measured.collect():
            if pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *UNIT_TESTS]):
                raise SystemExit("the unit tests must pass first")
        measured.save()
        with sqlite3.connect(path) as store:
            rows = store.execute(
                "select file.path, context.context, fromno, tono from arc join file on file.id = file_id "
                "join context on context.id = context_id order by context.context"
            ).fetchall()
    first: dict[Arc, str] = {}
    others: dict[Arc, str] = {}
    for path_, context, start, end in rows:
        file = str(Path(path_).relative_to(ROOT))
        begins = _statements(file)
        arc = file, begins.get(start, start), begins.get(end, end)
        if not context or context.startswith("hypothesis."):
            others[arc] = PROPERTY if context else IMPORT
        else:
            first.setdefault(arc, context)
    return others | first


def _coverage(path: Path, **more: str) -> coverage.Coverage:
    made = coverage.Coverage(data_file=str(path), branch=True, source=[str(ROOT / room) for room in ROOMS])
    for name, value in more.items():
        made.set_option(f"run:{name}", value)
    return made


# -- lines of files ----------------------------------------------------------------------------------------------------


def _branch(file: str, start: int, end: int) -> Branch:
    lines = _lines(file)
    to = lines[end - 1].strip() if end > 0 else "(leaves)"
    return Branch(file, _functions(file).get(start, ""), lines[start - 1].strip(), to)


@cache
def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text("utf-8").splitlines()


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse("\n".join(_lines(file)))


@cache
def _statements(file: str) -> Mapping[int, int]:
    """The first line of the statement, or of its header, that a line belongs to."""
    first = {}
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            first |= dict.fromkeys(range(node.lineno, last + 1), node.lineno)
    return first


@cache
def _functions(file: str) -> Mapping[int, str]:
    """The name of the function, with its class, that a line is in."""
    named = {}
    for name, node in _definitions(_tree(file), ""):
        named |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), name)
    return named


def _definitions(parent: ast.AST, where: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{where}{node.name}"
            yield name, node
            yield from _definitions(node, f"{name}.")
        else:
            yield from _definitions(node, where)


# -- the list ----------------------------------------------------------------------------------------------------------


def listed() -> dict[str, str]:
    """The branches on the list, each with its test."""
    found = {}
    for line in LIST.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            branch, _, test = line.rpartition(" | ")
            found[branch] = test
    return found


def write(branches: Mapping[Arc, Branch], tests: Mapping[Arc, str]) -> None:
    """Write the list."""
    rows = sorted({str(branch): tests.get(arc, NOBODY) for arc, branch in branches.items()}.items())
    head = "# Branches that no seed takes: file | function | line | to which line | which test takes it."
    LIST.write_text("\n".join([head, *(f"{branch} | {test}" for branch, test in rows)]) + "\n", "utf-8")


def main() -> int:
    """Exits with 1 if a branch that no seed takes is not on the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..999", metavar="FROM..TO", help="which seeds [0..999]")
    parser.add_argument("--write", action="store_true", help="write the list anew")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    branches = missed(range(int(first), int(last) + 1))
    if options.write:
        write(branches, taken_by_tests())
        return 0
    known, met_by_none = listed(), {str(branch) for branch in branches.values()}
    for branch in sorted(known.keys() - met_by_none):
        print(f"a seed takes it, or it is gone: {branch}")
    new = sorted(met_by_none - known.keys())
    for branch in new:
        print(f"no seed takes it, and it is not on the list: {branch}")
    print(f"{len(met_by_none)} branches are taken by none of {options.seeds}, {len(known)} are on the list")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
