"""Against real daemons: filters as dear as a guest can make them hold up nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_daemons import site_and_broker
from system.system_waits import wait_until

from leasekit.actors.site.inventory import ASKING, READING, SLICE
from leasekit.config.load import load
from leasekit.core.filters import WORDS_MAX
from leasekit.core.time import HOUR
from leasekit.runtime.client import ControlClient

pytestmark = pytest.mark.xdist_group("cli_daemons")

KINDS, UNITS = 60, 1_200
FILTERS = 4
COMPARISONS = WORDS_MAX // 4
"""How many a filter has at most that are joined by words, as ``cores > 1 or cores > 2``."""
GROUP = """
[[actor.site.inventory]]
type = "vm"
units = {units}
prefix = "r{rack}-"
unit_properties = {{ rack = "{rack}", cores = "{cores}" }}
"""
RACKS = "".join(GROUP.format(units=UNITS // KINDS, rack=rack, cores=rack % 64) for rack in range(KINDS))
DEPLOY = site_and_broker(f'delegation = [{{ broker = "broker", type = "vm" }}]{RACKS}', "greedy", "honest")
COSTLY = " or ".join(f"cores > {1_000 + number}" for number in range(COMPARISONS - 1))


def test_costly_filters_hold_up_nobody(file: Path) -> None:
    """Each is asked once for units that are alike, in slices of a bounded cost; others' leases become active."""
    actors = load(file).actors
    with (
        ControlClient(actors["site"].control) as site,
        ControlClient(actors["greedy"].control) as greedy,
        ControlClient(actors["honest"].control) as honest,
    ):
        now = site.query("status")["now"]
        later = {"deferrable": "true", "latest_start": str(now + HOUR)}
        wish = {"type": "vm", "units": 1, "term": [now, now + HOUR], "properties": later}
        costly = [
            greedy.command("lease.request", **wish, configuration={"filter": f"{COSTLY} or rack == {number}"})
            for number in range(FILTERS)
        ]
        plain = honest.command("lease.request", **wish)["id"]
        wait_until("the honest guest's lease", lambda: _not_yet(honest, plain, "active"))
        for one in costly:
            wait_until("a lease with a filter", lambda one=one: _not_yet(greedy, one["id"], "active"))
        filters = site.query("status")["filters"]
        print(filters)
        assert filters["asked"] == FILTERS * KINDS
        assert filters["slices"] >= FILTERS * KINDS * COMPARISONS // SLICE
        last = max(ASKING + 2 * COMPARISONS, READING * (len(COSTLY) + 40))  # of those in it: asked, or read
        assert filters["largest_slice"] <= SLICE + last


def _not_yet(client: ControlClient, lease: str, state: str) -> str:
    found = str(client.query("lease", lease=lease)["state"])
    return "" if found == state else found
