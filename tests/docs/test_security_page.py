"""docs/security.md names tests: each must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_exists() -> None:
    """An attack that is said to be tested is."""
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)
    }
    assert named, "the page names tests"
    assert named <= there, sorted(named - there)


def test_every_attack_has_a_test() -> None:
    """Each line of a table of attacks names at least one."""
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| attack", "| ---"))]
    assert len(rows) > 50
    assert [row for row in rows if "`test_" not in row] == []
