"""Text scripts: what is done to actors, and all that follows from it, in order; one file for each scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from actor_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    """What follows from a script's lines is what the file says, line by line."""
    old = path.read_text()
    new = run_script(old)
    if request.config.getoption("--rewrite-scripts", False):
        path.write_text(new)
        return
    assert new.splitlines() == old.splitlines()


def test_scripts_are_there() -> None:
    """The scripts were found: an empty folder would let everything pass."""
    assert len(SCRIPTS) > 40
