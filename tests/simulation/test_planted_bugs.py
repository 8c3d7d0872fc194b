"""To prove that the simulation finds bugs: bugs that are put in on purpose, each found by the seed that is known for
it.
"""

from __future__ import annotations

import pytest
from planted_bugs import BEGIN, BUGS, END, PAGE, SEEDS_MAX, known, planted, table

from leasekit_simulation.faults import world
from leasekit_simulation.faults.run import simulate
from leasekit_simulation.faults.scenario import draw

FIRSTS = set({found.checker: name for name, found in reversed(known().items())}.values())
"""The first bug of each checker: `make test` finds these, and `make soak` all."""
FINE = 6
"""How many seeds `make test` runs without a bug; `make soak` runs all that are known for one."""


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_be_planted(name: str) -> None:
    """What it changes is still there to be changed, and its seed is one that a soak runs."""
    with planted(BUGS[name]):
        assert known()[name].seed < SEEDS_MAX


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRSTS else pytest.mark.soak) for name in BUGS]
)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bug in, its seed fails, as its checker finds. A run without end is one of fewer steps here."""
    monkeypatch.setattr(world, "STEPS_MAX", 20_000)
    with planted(BUGS[name]):
        failure = simulate(draw(known()[name].seed)).failure
    assert failure is not None and failure.kind == known()[name].checker


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.soak if place >= FINE else ())
        for place, seed in enumerate(sorted({found.seed for found in known().values()}))
    ],
)
def test_without_a_bug_its_seed_is_fine(seed: int) -> None:
    """It is the bug that fails; several bugs have the same seed."""
    assert simulate(draw(seed)).failure is None


def test_there_are_enough() -> None:
    """At least 25 bugs are planted, no two the same."""
    assert len(set(BUGS.values())) == len(BUGS) >= 25


def test_the_page_has_the_table() -> None:
    """docs/simulation.md says of every bug by which checker it is found, and in how many seeds."""
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == table(known())
    assert set(known()) == set(BUGS)
