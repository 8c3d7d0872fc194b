"""The bare-metal driver with nodes that are network namespaces: real DHCP, TFTP, HTTP, names, imaging and ssh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from system.baremetal_nodes import V4, V6, Nodes, console, killed_when, nodes_in, state
from system.packages import BAREMETAL, LIBVIRT, require, require_root
from system.system_waits import wait_until

from leasekit.core.drivers import DriverError

pytestmark = pytest.mark.xdist_group("baremetal")
"""One after the other with all that start domains: their control groups are the machine's."""
KERNEL = tuple(name for name in LIBVIRT if name.startswith("linux-image"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    require_root()
    require((*BAREMETAL, *KERNEL))
    with nodes_in(tmp_path_factory.mktemp("metal"), "node-1", "node-2") as made:
        made.add("large", 16 * 2**20)
        yield made


@pytest.fixture(autouse=True)
def nothing_left(nodes: Nodes) -> Iterator[None]:
    """After each test all nodes are off, and there is nothing of them."""
    yield
    assert nodes.entries() == []
    assert not any(node.is_on() for node in nodes.nodes.values())


def resolved(name: str) -> str:
    """What the driver's name server says of a name."""
    done = subprocess.run(["busybox", "nslookup", name, f"{V4}.1"], capture_output=True, text=True, check=False)
    return done.stdout.partition("Name:")[2]


async def test_a_node_is_imaged_used_and_erased(nodes):
    """A node whose disk was full of somebody's data has the image and nothing else on it, its guest is up, and names
    lead to it; afterwards the disk is zeros, the node off, and the next guest has another image, address and host key.
    """
    node = nodes.nodes["node-1"]
    with nodes.driving() as driver:
        first = await driver.setup(nodes.unit("node-1"))
        image = (nodes.folder / "image").read_bytes()
        assert node.disk.read_bytes() == image.ljust(node.disk.stat().st_size, b"\0")
        assert first["hostname"] == "node-1.metal.example"
        assert f"{V4}." in first["host"] and first["addresses"].split()[1].startswith(V6)
        for name in ("node-1.metal.example", "node-1"):
            assert all(address in resolved(name) for address in first["addresses"].split())
        assert (await driver.probe(nodes.unit("node-1", "probe"))).state == "up"
        [orphan] = await driver.orphans(set())
        assert (orphan.unit, orphan.kind, orphan.name) == ("node-1", "disk", str(node.disk))
        assert await driver.operate(nodes.unit("node-1", "operate"), "status", {}) == {"power": "on"}
        await driver.teardown(nodes.unit("node-1", "teardown", 2))
        assert set(node.disk.read_bytes()) == {0}
        wait_until("the name's end", lambda: resolved("node-1.metal.example"))
        wait_until("the end of its lease", lambda: (nodes.folder / "driver/dnsmasq/leases").read_text().count("node-1"))
        assert (await driver.probe(nodes.unit("node-1", "probe"))).state == "down"
        assert await driver.orphans(set()) == []
        starts = node.starts()
        second = await driver.setup(nodes.unit("node-1", number=3, image="net"))
        # Its disk is known to be clean, so it started once.
        assert node.starts() == starts + 1
        assert second["host"] != first["host"]
        assert second["host_key"].startswith("ssh-ed25519 ")
        assert second["user"] == "root"
        await driver.teardown(nodes.unit("node-1", "teardown", 4))


async def test_a_guest_that_is_told_by_its_disk(nodes):
    """What cloud-init reads is a partition behind the image's own; a guest with another host key is not taken for up,
    and a node that failed is off, and is erased by the teardown.
    """
    node = nodes.nodes["large"]
    image = nodes.folder / "partitioned"
    image.write_bytes(b"bootable".ljust(2**21, b"\0"))
    subprocess.run(["sfdisk", "-q", image], input="start=2048, size=1024\n", text=True, check=True)
    artifact = nodes.artifact("partitioned", image.read_bytes())
    images = {"disk": {"kind": "disk", "disk": artifact, "seed": "nocloud", "user": "debian"}}
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMJdpVBIBavuwwCcmlU6ZjtVlTGwAwkARC4VysxM8kZf me"
    with nodes.driving(images=images, start_timeout="5s") as driver:
        with pytest.raises(DriverError, match="has another host key than the one that this unit was given"):
            await driver.setup(nodes.unit("large", **{"slice.key": key}))
        assert not node.is_on()
        assert nodes.entries() == []
        told = subprocess.run(["sfdisk", "-J", node.disk], capture_output=True, text=True, check=True).stdout
        parts = json.loads(told)["partitiontable"]["partitions"]
        assert [part["size"] for part in parts] == [1024, 16_384]
        seed = node.disk.read_bytes()[parts[1]["start"] * 512 :]
        assert seed[0x8001:0x8006] == b"CD001"
        assert b"cidata" in seed[0x8000:0x8800]
        assert key.encode() in seed and b"node" not in seed[:0x8000]
        await driver.teardown(nodes.unit("large", "teardown", 2))
    assert set(node.disk.read_bytes()) == {0}


async def test_nodes_at_the_same_time(nodes):
    """Nodes are set up side by side, each with an address of its own; a setup that comes again changes nothing."""
    found: dict[str, Any] = {}
    with nodes.driving() as driver:

        async def one(name: str) -> None:
            unit = nodes.unit(name, image="net")
            found[name] = await driver.setup(unit)
            starts = nodes.nodes[name].starts()
            assert await driver.setup(unit) == found[name]
            assert nodes.nodes[name].starts() == starts
            await driver.teardown(nodes.unit(name, "teardown", 2))

        async with trio.open_nursery() as nursery:
            for name in ("node-1", "node-2"):
                nursery.start_soon(one, name)
    assert len({properties["host"] for properties in found.values()}) == 2


PHASES: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "planned": lambda record, _: record.get("state") == "imaging",
    "ordered": lambda record, _: record.get("state") == "imaging" and record.get("ordered") is True,
    "writing": lambda record, said: record.get("state") == "imaging" and "writing the image" in said,
    "imaged": lambda record, _: record.get("state") == "starting",
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_daemon_killed_while_it_sets_a_node_up(nodes, phase):
    """Whenever a daemon is killed, the next one brings the node up for the same action, and it is imaged once."""
    name = "node-2"
    before = len(console(nodes, name))
    unit = nodes.unit(name, number=7)
    assert killed_when(nodes, unit, lambda: PHASES[phase](state(nodes, name), console(nodes, name)[before:]))
    with nodes.driving() as driver:
        properties = await driver.setup(unit)
        assert properties["host"] in resolved("node-2")
        assert console(nodes, name)[before:].count("writing the image") == 1
        disk = nodes.nodes[name].disk.read_bytes()
        assert disk == (nodes.folder / "image").read_bytes().ljust(len(disk), b"\0")
        await driver.teardown(nodes.unit(name, "teardown", 8))


async def test_a_daemon_killed_while_it_erases_a_node(nodes):
    """A node whose erasure was under way is erased once, and is clean only when it said so."""
    name, unit = "node-1", nodes.unit("node-1", "teardown", 8)
    with nodes.driving() as driver:
        await driver.setup(nodes.unit(name, number=7))
    before = len(console(nodes, name))
    assert killed_when(nodes, unit, lambda: "erasing" in console(nodes, name)[before:])
    assert state(nodes, name)["state"] == "cleaning"
    with nodes.driving() as driver:
        await driver.teardown(unit)
        await driver.teardown(unit)
    assert console(nodes, name)[before:].count("erasing") == 1
    assert state(nodes, name)["state"] == "clean"
    assert set(nodes.nodes[name].disk.read_bytes()) == {0}


async def test_a_cancelled_setup_writes_no_more(nodes):
    """When a setup is cancelled the node is off and its job is no more; it counts as dirty until it was erased."""
    node = nodes.nodes["node-1"]
    with nodes.driving() as driver:
        (node.folder / "hangs").touch()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(driver.setup, nodes.unit("node-1", number=5))
                with trio.fail_after(60):
                    while state(nodes, "node-1").get("number") != 5 or not node.is_on():
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        finally:
            (node.folder / "hangs").unlink()
        assert not node.is_on()
        assert nodes.entries() == []
        assert state(nodes, "node-1")["state"] == "dirty"
        assert state(nodes, "node-1")["token"] == ""
        await driver.teardown(nodes.unit("node-1", "teardown", 6))
    assert state(nodes, "node-1")["state"] == "clean"


async def test_jobs_are_told_to_their_node_alone(nodes):
    """Who is not the node gets neither its script nor its guest's keys; a job that is over is gone; nothing else of
    the site can be fetched.
    """
    with nodes.driving() as driver:
        properties = await driver.setup(nodes.unit("node-1", image="net"))
        token, mac = state(nodes, "node-1")["token"], nodes.nodes["node-1"].mac.replace(":", "-")
        paths = {
            f"/job/{token}/seed": (200, 403), f"/mac-{mac}.ipxe": (200, 403), f"/job/{'0' * 32}/seed": (410, 410),
            "/agent/../secrets/node-1.seed": (404, 404), "/etc/passwd": (404, 404), f"/job/{token}/spec": (404, 403),
        }  # fmt: skip
        own = fetched([*paths], nodes.nodes["node-1"].namespace)
        assert dict(zip(paths, zip(own, fetched([*paths]), strict=True), strict=True)) == paths
        await driver.teardown(nodes.unit("node-1", "teardown", 2))
        assert fetched([f"/job/{token}/seed"]) == [410]
    assert token not in "\n".join(nodes.lines)
    assert "PRIVATE" not in json.dumps(dict(properties))


def fetched(paths: list[str], namespace: str = "") -> list[int]:
    """The HTTP statuses of requests, from a node's namespace or from this machine."""
    prefix = ["ip", "netns", "exec", namespace] if namespace else []
    script = (
        "import http.client, sys\nfor path in sys.argv[2:]:\n    c = http.client.HTTPConnection(sys.argv[1], 8069)\n"
        "    c.request('GET', path)\n    print(c.getresponse().status)"
    )
    command = [*prefix, sys.executable, "-c", script, f"{V4}.1", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize(
    ("change", "reason", "retry"),
    [
        ({"file": "no-such-file"}, "image disk: can't read .*no-such-file: No such file or directory", False),
        ({"sha256": "0" * 64}, "image disk: .*image has the SHA-256 [0-9a-f]{64}, expected 0{64}", False),
    ],
    ids=["missing", "checksum"],
)
async def test_images_that_are_not_what_the_site_says(nodes, change, reason, retry):
    """A node whose image is missing or another fails with that reason before it is touched."""
    node = nodes.nodes["node-1"]
    starts, disk = node.starts(), node.disk.read_bytes()
    artifact = {**nodes.settings()["images"]["disk"]["disk"], **change}
    images = {"disk": {"kind": "disk", "disk": artifact}}
    with nodes.driving(images=images) as driver, pytest.raises(DriverError, match=reason) as caught:
        await driver.setup(nodes.unit("node-1"))
    assert caught.value.retry is retry
    assert (node.starts(), node.disk.read_bytes()) == (starts, disk)


async def test_a_disk_that_is_too_small(nodes):
    """A node whose disk can't hold the image fails with that reason, for good."""
    large = nodes.artifact("large-image", b"bootable" * 2**20)
    with nodes.driving(images={"disk": {"kind": "disk", "disk": large, "seed": "none"}}) as driver:
        with pytest.raises(
            DriverError, match=r"disk full: .*disk has 4194304 bytes, the image needs 8388608"
        ) as caught:
            await driver.setup(nodes.unit("node-1"))
        assert not caught.value.retry
        await driver.teardown(nodes.unit("node-1", "teardown", 2))


async def test_nobody_answers_the_nodes_question(nodes):
    """A node that gets no answer to its DHCP fails with that reason."""
    settings = nodes.settings(boot_timeout="2s")
    settings["nodes"]["node-1"]["mac"] = "02:15:00:00:ff:ff"
    reason = "nothing was heard of it within 2s of power on: it asked for no address"
    with nodes.driving(settings) as driver, pytest.raises(DriverError, match=reason):
        await driver.setup(nodes.unit("node-1", number=11))
    with nodes.driving() as driver:
        await driver.teardown(nodes.unit("node-1", "teardown", 12))


async def test_a_guest_that_never_comes_up(nodes):
    """A guest that does not serve ssh fails with what it did last; one that goes off fails at once."""
    node = nodes.nodes["node-1"]
    (node.folder / "deaf").touch()
    try:
        with nodes.driving(start_timeout="3s") as driver:
            reason = r"its guest was not up within 3s: no ssh server at \S+: .+ \(the last that it did here: it fetched"
            with pytest.raises(DriverError, match=reason):
                await driver.setup(nodes.unit("node-1", number=13, image="net"))
    finally:
        (node.folder / "deaf").unlink()
    with nodes.driving() as driver:
        await driver.teardown(nodes.unit("node-1", "teardown", 14))


async def test_a_node_that_can_not_be_cleaned(nodes):
    """A disk that can't be erased is told of, and the node stays dirty until it is."""
    node = nodes.nodes["node-1"]
    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=15, image="net"))
        kept = node.disk.rename(node.folder / "kept")
        node.disk.mkdir()
        try:
            with pytest.raises(DriverError, match=r"node-1: .*disk can't be erased: .*Is a directory"):
                await driver.teardown(nodes.unit("node-1", "teardown", 16))
        finally:
            node.disk.rmdir()
            kept.rename(node.disk)
        assert state(nodes, "node-1")["state"] == "dirty"
        assert [orphan.unit for orphan in await driver.orphans({"node-2", "large"})] == ["node-1"]
        await driver.teardown(nodes.unit("node-1", "teardown", 16))
        assert state(nodes, "node-1")["state"] == "clean"


async def test_dnsmasq_is_looked_after(nodes):
    """A dnsmasq that ends is started again; the next daemon finds it; one with other settings takes its place."""
    pid_file = nodes.folder / "driver/dnsmasq/pid"

    def pid() -> int:
        try:
            return int(pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def alive(number: int) -> bool:
        return number > 0 and Path(f"/proc/{number}").exists()

    with nodes.driving() as driver:
        await driver.setup(nodes.unit("node-1", number=17, image="net"))
        first = pid()
        os.kill(first, signal.SIGKILL)
        wait_until("another dnsmasq", lambda: "" if pid() != first and alive(pid()) else "not yet")
        wait_until("names", lambda: "" if V4 in resolved("node-1") else "none yet")
    second = pid()
    with nodes.driving() as driver:
        assert (await driver.probe(nodes.unit("node-1", "probe"))).state == "up"
        assert pid() == second and alive(second)
    network = {**nodes.settings()["network"], "dnsmasq": {"kind": "owned", "lease_time": "5m"}}
    with nodes.driving(network=network) as driver:
        await driver.teardown(nodes.unit("node-1", "teardown", 18))
        assert pid() != second and alive(pid())
        assert (
            "5m" in (pid_file.with_name("dnsmasq.conf")).read_text()
            or "300s" in pid_file.with_name("dnsmasq.conf").read_text()
        )


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that dnsmasq's user can get into, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="leasekit-site-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_a_dnsmasq_that_runs_anyway(nodes, open_folder):
    """With a dnsmasq of the site's, which runs as a user of its own, the driver writes its files, and tells it of what
    is gone.
    """
    folder = open_folder
    for name in ("hosts.d", "names.d"):
        (folder / name).mkdir(parents=True)
    subprocess.run(["kill", (nodes.folder / "driver/dnsmasq/pid").read_text().strip()], check=True)
    lines = [
        "no-hosts", "no-resolv", "bind-interfaces", "except-interface=lo", f"interface={nodes.interface}",
        f"pid-file={folder}/pid", f"dhcp-leasefile={folder}/leases", f"log-facility={folder}/log", "dhcp-authoritative",
        "dhcp-ignore=tag:!known", f"dhcp-range={V4}.0,static,10m", f"dhcp-hostsdir={folder}/hosts.d",
        f"hostsdir={folder}/names.d", "enable-tftp", f"tftp-root={folder}", "dhcp-boot=boot.ipxe",
    ]  # fmt: skip
    (folder / "conf").write_text("\n".join(lines) + "\n")
    (folder / "boot.ipxe").write_text(f"#!ipxe\nchain --autofree http://{V4}.1:8069/mac-${{mac:hexhyp}}.ipxe\n")
    wait_until("the end of the other", lambda: subprocess.run(["dnsmasq", f"--conf-file={folder}/conf"]).returncode)
    try:
        external = {"kind": "external", "hosts": f"{folder}/hosts.d", "names": f"{folder}/names.d"}
        external |= {"leases": f"{folder}/leases", "pid_file": f"{folder}/pid"}
        network = {**nodes.settings()["network"], "dnsmasq": external}
        with nodes.driving(network=network) as driver:
            properties = await driver.setup(nodes.unit("node-1", number=19, image="net"))
            assert properties["host"] in resolved("node-1.metal.example")
            await driver.teardown(nodes.unit("node-1", "teardown", 20))
            wait_until("the name's end", lambda: resolved("node-1.metal.example"))
            wait_until("the end of its lease", lambda: (folder / "leases").read_text().count("node-1"))
        assert [path.name for name in ("hosts.d", "names.d") for path in (folder / name).iterdir()] == []
    finally:
        site = int((folder / "pid").read_text())
        os.kill(site, signal.SIGTERM)
    wait_until("its end", lambda: "still there" if Path(f"/proc/{site}").exists() else "")
    gone = pytest.raises(DriverError, match="dnsmasq does not run, as its pid_file")
    with nodes.driving(network=network) as driver, gone:
        await driver.setup(nodes.unit("node-1", number=21, image="net"))
