"""What the bare-metal driver believes of nodes: which disk it has, what started there, what was left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from system.baremetal_nodes import V4, Node, Nodes, console, killed_when, nodes_in, state
from system.libvirt_site import HEAD
from system.libvirt_world import as_toml
from system.packages import BAREMETAL, LIBVIRT, require, require_root
from system.system_waits import wait_until

from leasekit.core.drivers import DriverError

pytestmark = pytest.mark.xdist_group("baremetal")
"""One after the other with all that starts nodes: ports are the machine's."""
KERNEL = tuple(name for name in LIBVIRT if name.startswith("linux-image"))
RESOURCES = """
[[actor.site.inventory]]
type = "node"
names = ["node-1", "node-2"]
driver = "metal"
[[actor.site.delegation]]
broker = "broker"
type = "node"
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    require_root()
    require((*BAREMETAL, *KERNEL))
    with nodes_in(tmp_path_factory.mktemp("trust"), "node-1", "node-2") as made:
        yield made


@pytest.fixture
def node(nodes: Nodes) -> Iterator[Node]:
    """A node that nobody has, and of which nothing is known."""
    node = nodes.nodes["node-1"]
    (nodes.folder / "driver/nodes/node-1.json").unlink(missing_ok=True)
    secret = b"somebody's".ljust(16, b"!") * (node.disk.stat().st_size // 16)
    node.disk.write_bytes(secret)
    yield node
    assert not node.is_on()
    assert nodes.entries() == []


def settings(nodes: Nodes, **changes: Any) -> dict[str, Any]:
    """The driver's, with changes of the node's."""
    made = nodes.settings()
    made["nodes"]["node-1"] |= changes
    return made


def exchange(node: Node, serial: str) -> None:
    """Puts another disk, full of somebody's data, in the place of the node's."""
    size = node.disk.stat().st_size
    node.remove_disk("disk")
    node.add_disk("disk", b"another's".ljust(16, b"!") * (size // 16), serial)


# Which disk


async def test_a_disk_that_is_not_the_node_s(nodes, node):
    """With a disk that the site does not know of nothing is done to any; where it is to be kept it is, and only it."""
    content = b"the site's own".ljust(4096, b"!")
    other = node.add_disk("other", content, "K 2")
    reason = "another disk is there, which is not among keep_disks: other, serial:K_2,bytes:4096"
    try:
        with nodes.driving() as driver:
            for action in (driver.setup, driver.teardown):
                with pytest.raises(DriverError, match=reason) as caught:
                    await action(nodes.unit("node-1", number=1))
                assert not caught.value.retry
        assert b"somebody's" in node.disk.read_bytes() and other.read_bytes() == content
        for disk in (str(node.disk), "serial:node-1_1"):
            with nodes.driving(settings(nodes, disk=disk, keep_disks=["serial:K_2"])) as driver:
                await driver.setup(nodes.unit("node-1", number=2))
                await driver.teardown(nodes.unit("node-1", "teardown", 3))
            assert set(node.disk.read_bytes()) == {0} and other.read_bytes() == content
            assert state(nodes, "node-1")["disk"] == disk
            assert state(nodes, "node-1")["identity"] == f"serial:node-1_1,bytes:{node.disk.stat().st_size}"
    finally:
        node.remove_disk("other")


async def test_a_disk_that_is_to_be_kept_is_not_erased(nodes, node):
    """Where the kernel calls a disk that is to be kept as the guest's was called, nothing is done to it."""
    with nodes.driving(settings(nodes, keep_disks=["serial:node-1_1"])) as driver:
        reason = r"the disk \S+ is serial:node-1_1,bytes:\d+, one of keep_disks"
        with pytest.raises(DriverError, match=reason) as caught:
            await driver.setup(nodes.unit("node-1", number=1))
    assert not caught.value.retry
    assert b"somebody's" in node.disk.read_bytes()
    with nodes.driving() as driver:
        await driver.teardown(nodes.unit("node-1", "teardown", 2))


async def test_a_disk_in_the_place_of_one_that_was_erased(nodes, node):
    """A node is clean while it has the disk that was erased, and is told to have it: else it is erased again."""
    unit = nodes.unit("node-1", number=1)
    with nodes.driving() as driver:
        await driver.setup(unit)
        await driver.teardown(nodes.unit("node-1", "teardown", 2))
        exchange(node, "B")
        await driver.setup(nodes.unit("node-1", number=3))
        assert b"another's" not in node.disk.read_bytes()
        assert state(nodes, "node-1")["identity"].startswith("serial:B,")
        await driver.teardown(nodes.unit("node-1", "teardown", 4))
    node.disk.write_bytes(b"another's".ljust(16, b"!") * (node.disk.stat().st_size // 16))
    with nodes.driving(settings(nodes, disk="serial:B")) as driver:
        # A guest that has no image looks at its disk as it is.
        await driver.setup(nodes.unit("node-1", number=5, image="net"))
        assert set(node.disk.read_bytes()) == {0}
        await driver.teardown(nodes.unit("node-1", "teardown", 6))


async def test_a_guest_s_disk_that_is_not_there_to_be_erased(nodes, node):
    """When a guest's disk is another at its end, that is told, once: the next time whichever is there is erased."""
    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=1))
        exchange(node, "C")
        with pytest.raises(DriverError, match=r"the guest's disk was serial:\S+, and \S+ is serial:C,") as caught:
            await driver.teardown(nodes.unit("node-1", "teardown", 2))
        assert not caught.value.retry
        assert b"another's" in node.disk.read_bytes()
        assert state(nodes, "node-1")["state"] == "dirty"
        await driver.teardown(nodes.unit("node-1", "teardown", 3))
    assert set(node.disk.read_bytes()) == {0}


# What starts


async def test_a_node_starts_from_the_network_however_late_its_power_came(nodes, node):
    """A daemon is killed between saying what the next start is from and the start; the controller has forgotten it when
    the next daemon switches the node on: it is erased all the same.
    """
    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=1))
    unit = nodes.unit("node-1", "teardown", 2)
    (node.folder / "stuck").touch()
    assert killed_when(nodes, unit, lambda: state(nodes, "node-1").get("ordered") and not node.is_on())
    (node.folder / "stuck").unlink()
    (node.folder / "device").write_text("disk\n")
    with nodes.driving() as driver:
        await driver.teardown(unit)
    assert set(node.disk.read_bytes()) == {0}


# What a daemon finds again


async def test_a_daemon_serves_nodes_that_are_on_from_its_start(nodes, node):
    """After a restart of the machine nodes have DHCP, names and their files before anything is done to any of them."""
    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=1, image="net"))
    pid_file = nodes.folder / "driver/dnsmasq/pid"
    killed = int(pid_file.read_text())
    os.kill(killed, signal.SIGKILL)
    wait_until("its end", lambda: Path(f"/proc/{killed}").exists())
    path = f"/job/{state(nodes, 'node-1')['token']}/seed"
    with nodes.driving() as driver:
        assert await driver.orphans({"node-1"}) == []
        named = subprocess.run(
            ["busybox", "nslookup", "node-1.metal.example", f"{V4}.1"], capture_output=True, text=True, check=False
        )
        assert f"{V4}." in named.stdout.partition("Name:")[2]
        script = (
            "import http.client, sys\nc = http.client.HTTPConnection(sys.argv[1], 8069)\n"
            "c.request('GET', sys.argv[2])\nprint(c.getresponse().status)"
        )
        command = ["ip", "netns", "exec", node.namespace, sys.executable, "-c", script, f"{V4}.1", path]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "200\n"
        await driver.teardown(nodes.unit("node-1", "teardown", 2))


async def test_orphans_are_told_where_nodes_can_not_be_served(nodes, node):
    """What is left of units is found out whatever keeps dnsmasq or the server from running."""
    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=1))
    made = nodes.settings()
    made["network"]["address"] = f"{V4}.2"
    with nodes.driving(made) as driver:
        assert [orphan.unit for orphan in await driver.orphans(set())] == ["node-1"]
    with nodes.driving() as driver:
        await driver.teardown(nodes.unit("node-1", "teardown", 2))


def test_a_site_with_a_node_that_was_not_erased(nodes, node, tmp_path):
    """A site starts with it and warns; `site orphans` lists the disk, and `--remove` erases it."""
    records = nodes.folder / "driver/nodes"
    records.mkdir(parents=True, exist_ok=True)
    record = {"node": "node-1", "state": "dirty", "lease": "lease-1", "number": 1, "offset": 40}
    (records / "node-1.json").write_text(json.dumps(record))
    driver = as_toml({"kind": "baremetal", **nodes.settings()}, "actor.site.driver.metal")
    file = tmp_path / "metal.toml"
    file.write_text(f"{HEAD}\n{RESOURCES}\n{driver}\n")
    disk = {"unit": "node-1", "kind": "disk", "name": str(node.disk)}
    with Daemons(file, tmp_path / "s") as daemons:
        for _ in range(2):
            daemons.start("site")
            said = daemons.running["site"].said
            wait_until("a warning", lambda said=said: "" if "which nobody has" in said() else said())
            assert "is of unit node-1, which nobody has" in said()
            [found] = daemons.command("site", "orphans.list")["orphans"]
            assert disk.items() <= found.items() and found["host"]
            daemons.stop("site")
        daemons.start("site")
        with daemons.client("site", timeout=60) as client:
            [removed] = client.command("orphans.remove")["orphans"]
        assert removed == found
        assert daemons.command("site", "orphans.list")["orphans"] == []
    assert set(node.disk.read_bytes()) == {0}
    assert state(nodes, "node-1")["state"] == "clean"
    assert "erasing" in console(nodes, "node-1")


async def test_a_machine_s_console(nodes, node):
    """Who asks for a machine's console is told where it is."""
    reason = "unit node-1: a physical machine has no console here: its BMC has one"
    with nodes.driving() as driver, pytest.raises(DriverError, match=reason):
        await driver.operate(nodes.unit("node-1", "operate"), "console", {})
