"""Failures are made small, and told in a way that leads to their cause."""

from __future__ import annotations

from pathlib import Path

from planted_bugs import BUGS, known, planted

from leasekit_simulation.faults.campaign import Shrinker, same_failure
from leasekit_simulation.faults.run import explain, simulate
from leasekit_simulation.faults.scenario import draw, read_scenario, write_scenario

BUG = "a unit that can't be torn down is used again"
SEED = known()[BUG].seed
SHRUNK = "a repeated request is done again"


def test_a_failure_is_made_small(tmp_path: Path) -> None:
    """With a bug in, what is left fails in the same way with few operations and faults, from a file as well; without
    the bug it does not fail.
    """
    bug = BUGS[SHRUNK]
    scenario = draw(known()[SHRUNK].seed)
    with planted(bug):
        failure = simulate(scenario).failure
        assert failure is not None
        shrinker = Shrinker(scenario, failure, runs_max=150)
        small = shrinker.go()
        assert len(small.operations) < len(scenario.operations) / 10
        assert small.faults is not None
        write_scenario(tmp_path / "small.json", small)
        again = simulate(read_scenario(tmp_path / "small.json")).failure
    assert same_failure(failure, again)
    assert shrinker.runs <= 150
    assert simulate(small).failure is None


def test_a_failure_is_told() -> None:
    """The story has the seed, the step, a line for each event of the lease concerned, and the command."""
    bug = BUGS[BUG]
    with planted(bug):
        scenario = draw(SEED)
        failure = simulate(scenario).failure
        assert failure is not None
        told = explain(scenario, failure, "leasekit simulate --seed 5")
    assert f"seed {SEED}: {failure.kind} ({failure.phase} phase, step {failure.step}" in told
    assert failure.text in told
    assert failure.lease and f"what became of lease {failure.lease}" in told
    assert "sends" in told and "gets from" in told and "starts setup" in told
    assert told.endswith("run it again: leasekit simulate --seed 5")
    assert "run again it was" not in told
