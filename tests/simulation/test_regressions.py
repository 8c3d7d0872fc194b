"""What was found once is not found again: scenarios, made small, in which there was a bug."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit_simulation.faults.run import explain, simulate
from leasekit_simulation.faults.scenario import read_scenario

HERE = Path(__file__).parent
LIST = HERE / "regressions.txt"
LINES = [line.split(maxsplit=1) for line in LIST.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]


@pytest.mark.parametrize("name", [name for name, _ in LINES])
def test_found_once(name: str) -> None:
    """The scenario comes to its end, and no checker has anything to say."""
    path = HERE / "regressions" / name
    scenario = read_scenario(path)
    failure = simulate(scenario).failure
    assert failure is None, explain(scenario, failure, f"leasekit simulate --scenario {path.name}")


def test_the_list_is_whole() -> None:
    """Each scenario that is kept is in the list, with a reason."""
    assert {name for name, _ in LINES} == {path.name for path in (HERE / "regressions").iterdir()}
    assert all(len(why) > 20 for _, why in LINES)
