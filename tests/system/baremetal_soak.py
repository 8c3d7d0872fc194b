"""Many leases of the same nodes, with daemons killed at random meanwhile: `make soak` runs it.

``LEASEKIT_CYCLES`` is how often both nodes are set up and torn down, each with one kill in a setup or a teardown.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.baremetal_nodes import Nodes, console, killed_when, nodes_in, state
from system.packages import BAREMETAL, require, require_root

CYCLES = int(os.environ.get("LEASEKIT_CYCLES", "20"))
STEPS = 14
"""Of how many changes that can be seen from outside an action may have."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    require_root()
    require((*BAREMETAL, "linux-image-cloud-amd64"))
    with nodes_in(tmp_path_factory.mktemp("soak"), "node-1", "node-2") as made:
        yield made


class _Step:
    """True at the given change of what can be seen of a node."""

    def __init__(self, nodes: Nodes, name: str, at: int) -> None:
        self._nodes, self._name, self._left = nodes, name, at
        self._seen = self._look()

    def __call__(self) -> bool:
        now = self._look()
        if now != self._seen:
            self._seen = now
            self._left -= 1
        return self._left <= 0

    def _look(self) -> object:
        nodes, name = self._nodes, self._name
        return (state(nodes, name), nodes.nodes[name].starts(), console(nodes, name).count("imaging: "))


@pytest.mark.parametrize("cycle", range(CYCLES))
async def test_use_and_reuse(nodes, cycle):
    """After each cycle, killed wherever it was, nodes are off and erased, each disk was written once for its lease, and
    no address, name, DHCP lease, key or job is left.
    """
    drawn = random.Random(cycle)
    for name in nodes.nodes:
        setup = nodes.unit(name, number=2 * cycle + 1)
        teardown = nodes.unit(name, "teardown", 2 * cycle + 2)
        before = console(nodes, name).count("writing the image")
        victim = drawn.choice([setup, teardown])
        if victim is setup:
            killed_when(nodes, setup, _Step(nodes, name, drawn.randint(1, STEPS)))
        with nodes.driving() as driver:
            properties = await driver.setup(setup)
        assert console(nodes, name).count("writing the image") == before + 1
        assert properties["image"] == "disk"
        if victim is teardown:
            killed_when(nodes, teardown, _Step(nodes, name, drawn.randint(1, STEPS)))
        with nodes.driving() as driver:
            await driver.teardown(teardown)
        assert set(nodes.nodes[name].disk.read_bytes()) == {0}
        assert not nodes.nodes[name].is_on()
        assert (state(nodes, name)["state"], state(nodes, name)["token"], state(nodes, name)["offset"]) == (
            "clean",
            "",
            0,
        )
    assert nodes.entries() == []
    leases = Path(nodes.folder / "driver/dnsmasq/leases").read_text()
    assert not any(node.mac in leases for node in nodes.nodes.values())
