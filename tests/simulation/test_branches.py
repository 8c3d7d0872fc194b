"""The list of branches that no simulated seed takes: each names a test that takes it, which exists."""

from __future__ import annotations

from pathlib import Path

from branches import IMPORT, NOBODY, PROPERTY, listed

TESTS = Path(__file__).resolve().parents[1]
UNTESTED_MAX = 112
"""How many branches neither a seed nor a unit test takes: others than unit tests may, so that each is looked at."""


def test_named_tests_exist() -> None:
    """A branch whose test was renamed, or has gone, is looked at again."""
    known = {
        f"{path.stem}.{line.split('(')[0].removeprefix('async ').removeprefix('def ')}"
        for path in TESTS.rglob("test_*.py")
        for line in (text.strip() for text in path.read_text("utf-8").splitlines())
        if line.startswith(("def test_", "async def test_"))
    }
    named = set(listed().values()) - {NOBODY, PROPERTY, IMPORT}
    assert named, "the list is there"
    assert not {test for test in named if ".".join(test.split(".")[-2:]) not in known}


def test_few_branches_have_no_test() -> None:
    """What neither seeds nor unit tests take does not grow."""
    assert sum(test == NOBODY for test in listed().values()) <= UNTESTED_MAX
