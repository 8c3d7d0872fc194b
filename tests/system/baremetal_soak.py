"""Many leases of the same nodes: `make soak` runs it.

``LEASEKIT_CYCLES`` is how often both nodes are set up and torn down. Nodes that are network namespaces have a daemon
killed at random each time, in a setup or a teardown; those that are machines are leased through three daemons.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from system.baremetal_nodes import Nodes, console, killed_when, nodes_in, state
from system.baremetal_world import BRIDGE, Machines, deploy_file, open_machines
from system.libvirt_site import Site
from system.libvirt_world import World
from system.packages import BAREMETAL, require, require_root
from system.system_waits import wait_until

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


def test_leases_of_the_same_machines(tmp_path):
    """As often as two machines are leased, imaged, logged in to and given back, nothing is left of any lease: no file,
    process, domain that runs, address, name, DHCP lease or key; disks are erased.
    """
    with open_machines() as machines:
        for name in ("node-1", "node-2"):
            machines.add(name)
        world = World(machines.folder, machines.host, machines.guest, BRIDGE)
        with Daemons(deploy_file(machines, tmp_path), tmp_path / "s") as daemons:
            daemons.start_all()
            site = Site(world, daemons)
            _lease_once(site)
            before, keys = _found(machines), set[str]()
            for cycle in range(CYCLES):
                began = time.monotonic()
                keys |= _lease_once(site)
                print(f"cycle {cycle + 1}: both machines leased, used and erased in {time.monotonic() - began:.1f} s")
                assert _found(machines) == before
        # Nobody's host key was anybody's before.
        assert len(keys) == 2 * CYCLES


def _lease_once(site: Site) -> set[str]:
    """Both machines are leased, used and given back; the host keys that they had."""
    lease = site.ask("node", 2)
    wait_until("machines", lambda: _missing(site, lease), 600)
    units = site.lease(lease)["units"]
    for unit in units:
        said = site.world.ssh(unit["properties"], "printf confidential | dd of=/dev/vda bs=512 seek=70000; hostname")
        assert said.strip() == unit["properties"]["hostname"]
    site.close(lease)
    wait_until("erased machines", lambda: [u for u in site.daemons.query("site", "units") if u["state"] != "free"], 600)
    return {unit["properties"]["host_key"] for unit in units}


def _missing(site: Site, lease: str) -> Any:
    told = site.lease(lease)
    assert told["state"] not in ("failed", "closed"), told
    return None if [unit["state"] for unit in told["units"]] == ["joined"] * 2 else told


def _found(machines: Machines) -> dict[str, Any]:
    """What there is of machines that nobody has."""
    driver = machines.folder / "driver"
    for metal in machines.metal.values():
        assert set(metal.disk.read_bytes()) == {0}
    # dnsmasq writes down what it is told a moment later.
    wait_until("no DHCP lease", lambda: [m.mac for m in machines.metal.values() if m.mac in _text(driver)])
    return {
        "files": sorted(str(path) for path in driver.rglob("*")),
        "nodes": {path.name: json.loads(path.read_text()) for path in driver.glob("nodes/*.json")},
        "running": [name for name in machines.metal if machines.is_on(name)],
        "domains": machines.host.domains(),
        "images": sorted(path.name for path in machines.host.images.iterdir()),
        "processes": sorted(_processes(str(driver))),
    }


def _text(driver: Path) -> str:
    return (driver / "dnsmasq/leases").read_text()


def _processes(marker: str) -> Iterator[int]:
    """Those that are told of a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue
