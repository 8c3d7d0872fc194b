"""The bare-metal driver with machines that are domains: BIOS, iPXE, IPMI and guests for real, through leases too.

These start machines many times, which takes minutes: `make test-baremetal` runs them.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.baremetal_world import BRIDGE, Machines, deploy_file, open_machines
from system.libvirt_world import World
from system.system_waits import wait_until

from leasekit.core.drivers import DriverError


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with open_machines() as made:
        for name in ("node-1", "node-2"):
            made.add(name)
        yield made


@pytest.fixture
def world(machines: Machines) -> World:
    return World(machines.folder, machines.host, machines.guest, BRIDGE)


async def test_a_node_from_image_to_ssh_and_on_to_the_next_guest(machines, world):
    """A node full of somebody's data is imaged, starts from its disk and is logged in to with the host key that the
    site made; it is erased and off after that; its next guest has another image, address and host key.
    """
    metal = machines.metal["node-1"]
    driver = machines.driver()
    try:
        began = time.monotonic()
        first = await driver.setup(machines.unit("node-1"))
        up = time.monotonic() - began
        assert world.ssh(first, "hostname").strip() == "node-1.metal.example"
        assert first["rack"] == "7"
        told = world.ssh(first, "ip -o addr show eth0")
        assert all(f" {address}/" in told for address in first["addresses"].split())
        assert b"somebody's secret" not in metal.disk.read_bytes()
        assert (await driver.probe(machines.unit("node-1", "probe"))).state == "up"
        assert await driver.setup(machines.unit("node-1")) == first
        world.ssh(first, "printf confidential | dd of=/dev/vda bs=512 seek=70000 conv=notrunc,fsync")
        await driver.teardown(machines.unit("node-1", "teardown", 2))
        erased = time.monotonic() - began - up
        assert set(metal.disk.read_bytes()) == {0}
        assert not machines.is_on("node-1")
        began = time.monotonic()
        second = await driver.setup(machines.unit("node-1", number=3, image="net"))
        again = time.monotonic() - began
        assert second["host"] != first["host"] and second["host_key"] != first["host_key"]
        assert world.ssh(second, "hostname; head -c 4 /dev/vda | od -An -tx1").split()[1:] == ["00"] * 4
        # What a guest was told is for nobody else, and its node asks for it again only until the lease ends.
        await driver.teardown(machines.unit("node-1", "teardown", 4))
        print(f"image, start, ssh {up:.1f} s; use, erase, off {erased:.1f} s; netboot to ssh {again:.1f} s")
    finally:
        driver.close()


async def test_a_node_that_is_switched_off_from_outside(machines):
    """A guest whose machine loses its power is down, with the reason; a restart brings it back as it was."""
    driver = machines.driver()
    try:
        properties = await driver.setup(machines.unit("node-1", number=5, image="net"))
        machines.host.connect().lookupByName("node-1").destroy()
        down = await driver.probe(machines.unit("node-1", "probe"))
        assert (down.state, down.detail) == ("down", "its power is off")
        assert await driver.operate(machines.unit("node-1", "operate"), "power_on", {}) == {"power": "on"}
        with trio.fail_after(240):
            while not _answers(properties["host"]):
                await trio.sleep(0.2)
        await driver.teardown(machines.unit("node-1", "teardown", 6))
    finally:
        driver.close()


async def test_a_node_whose_bmc_speaks_redfish(machines, world):
    """A node behind a Redfish service is erased, imaged, starts from its disk, is logged in to, and erased again."""
    machines.add("fish", "redfish")
    driver = machines.driver()
    try:
        began, starts = time.monotonic(), machines.starts()
        properties = await driver.setup(machines.unit("fish", number=21))
        up = time.monotonic() - began
        assert world.ssh(properties, "hostname").strip() == "fish.metal.example"
        assert machines.starts() == starts + 2
        assert (await driver.probe(machines.unit("fish", "probe"))).state == "up"
        assert await driver.operate(machines.unit("fish", "operate"), "status", {}) == {"power": "on"}
        await driver.teardown(machines.unit("fish", "teardown", 22))
        assert set(machines.metal["fish"].disk.read_bytes()) == {0}
        assert not machines.is_on("fish")
        print(f"Redfish: image, start, ssh {up:.1f} s; use, erase, off {time.monotonic() - began - up:.1f} s")
    finally:
        driver.close()


async def test_a_bmc_that_times_out(machines):
    """A node whose BMC is away fails with that reason, and nothing was done to its disk; the BMC back, it is erased."""
    nodes = machines.settings()["nodes"]
    nodes["node-2"]["power"] |= {"order_timeout": "2s", "answer_timeout": "700ms"}
    driver = machines.driver(nodes=nodes)
    machines.bmc.stop("node-2")
    reason = r"the BMC at 127.0.0.1 port \d+: the power was not off within 2s: "
    try:
        with pytest.raises(DriverError, match=reason) as caught:
            await driver.setup(machines.unit("node-2", number=7))
        assert caught.value.retry
        assert b"somebody's secret" in machines.metal["node-2"].disk.read_bytes()
    finally:
        machines.bmc.start("node-2")
        driver.close()
    driver = machines.driver()
    try:
        await driver.teardown(machines.unit("node-2", "teardown", 8))
        assert set(machines.metal["node-2"].disk.read_bytes()) == {0}
    finally:
        driver.close()


def test_a_lease_ends_in_a_machine_to_log_in_to(machines, world, tmp_path):
    """A lease through three daemons ends in a machine with the site's image, which its holder logs in to; the site is
    killed while it images the node and while it erases it, and the node is started once for each all the same.
    """
    with Daemons(deploy_file(machines, tmp_path), tmp_path / "s") as daemons:
        daemons.start_all()
        began = time.monotonic()
        wish = request(1, 3600, type="node", configuration={"slice.key": world.public})
        with daemons.client("guest") as client:
            lease = client.command("lease.request", **wish)["id"]
        starts = machines.starts()
        wait_until("imaging", lambda: "" if _state(machines, "imaging", "heard") else "not yet", 240)
        _restart(daemons)
        wait_until("a unit", lambda: _missing(daemons, lease), 480)
        (unit,) = daemons.query("guest", "lease", lease=lease)["units"]
        properties = unit["properties"]
        assert world.ssh(properties, "hostname").strip() == f"{properties['name']}.metal.example"
        print(f"from lease to ssh {time.monotonic() - began:.1f} s, the site killed once meanwhile")
        with daemons.client("guest") as client:
            client.command("lease.close", lease=lease)
        wait_until("erasing", lambda: "" if _state(machines, "cleaning", "heard") else "not yet", 240)
        _restart(daemons)
        wait_until("free units", lambda: _held(daemons), 480)
    assert machines.starts() == starts + 3
    assert not machines.is_on(properties["name"])
    assert set(machines.metal[properties["name"]].disk.read_bytes()) == {0}


def _restart(daemons: Daemons) -> None:
    daemons.kill("site")
    daemons.start("site")


def _state(machines: Machines, state: str, key: str) -> bool:
    """Whether some node is in that state, and has that mark."""
    found = []
    for path in (machines.folder / "driver/nodes").glob("*.json"):
        record = json.loads(path.read_text())
        found.append(record["state"] == state and record[key])
    return any(found)


def _missing(daemons: Daemons, lease: str) -> Any:
    told = daemons.query("guest", "lease", lease=lease)
    return None if [unit["state"] for unit in told["units"]] == ["joined"] else told


def _held(daemons: Daemons) -> list[Any]:
    return [unit for unit in daemons.query("site", "units") if unit["state"] != "free"]


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), 1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
