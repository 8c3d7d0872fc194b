"""The leases of the co-allocation experiment, on the day that they are for."""

from __future__ import annotations

import pytest
from datafiles import data_file

from leasekit.emulation.coallocation.actors import run_all
from leasekit.emulation.coallocation.experiment import CoallocationSetup, read_testbed


@pytest.mark.parametrize("scenario", ["service_levels", "preference_size"])
def test_each_lease_of_what_was_granted_becomes_active(scenario: str) -> None:
    """The second day changes nothing of what was granted on the first, and each of its leases is set up."""
    testbed, setup = read_testbed(data_file("coallocation/testbed.json").parents[1]), CoallocationSetup(load=0.08)
    (tally,), leases = run_all(testbed, [scenario], [3], setup, redeem=True)
    (alone,), _ = run_all(testbed, [scenario], [3], setup)
    assert sum(map(sum, tally.asked.values())) > 20
    assert tally[:5] == alone[:5]
    found = leases[scenario]
    assert found["made"] == found["active"] > 2 * sum(map(sum, tally.granted.values()))
