"""The co-allocation experiment by actors comes to what the planner alone comes to."""

from __future__ import annotations

import pytest
from datafiles import data_file

from leasekit.emulation.coallocation.actors import run_all
from leasekit.emulation.coallocation.experiment import Setup, read_testbed, run_once


@pytest.mark.parametrize("scenario", ["service_levels", "preference_size"])
def test_actors_grant_what_the_planner_grants(scenario: str) -> None:
    """The same requests succeed and the same sites are used, and each lease of those granted becomes active."""
    testbed, setup = read_testbed(data_file("coallocation/testbed.json").parents[1]), Setup(load=0.08)
    (tally,), leases = run_all(testbed, [scenario], [3], setup)
    alone = run_once(testbed, scenario, 3, setup)
    assert sum(tally.asked.values()) > 20
    assert (tally.asked, tally.granted) == (alone.asked, alone.granted)
    assert tally.utilisation == pytest.approx(alone.utilisation)
    found = leases[scenario]
    assert found["made"] == found["active"] > 2 * sum(tally.granted.values())
