"""The libvirt driver with real libvirt, QEMU and guests: two are up for the whole file, which tests work on in turn."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from system.libvirt_host import POOL, LibvirtHost, another_host
from system.libvirt_world import NET, V4, V6, World, kill, open_world, start_child
from system.system_waits import soon, wait_until

from leasekit.core.drivers import DriverError, ProbeResult, UnitContext
from leasekit.core.properties import Properties
from leasekit.drivers.libvirt.driver import CAPS, LibvirtDriver
from leasekit.drivers.libvirt.images import read_artifact
from leasekit.drivers.libvirt.place import WORD, boot_sector
from leasekit.drivers.libvirt.readiness import Console
from leasekit.drivers.libvirt.settings import ImageArtifact
from leasekit.drivers.libvirt.volumes import Volumes

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt")

SPIN = "(while :; do :; done) </dev/null >/dev/null 2>&1 & echo $! >/tmp/spins"
MEASURED_FOR = 2.5
"""Seconds over which a guest's CPU time is measured."""
MEASURED_TIMES = 12
"""How often that is done before a cap is said not to hold."""
TRIES = 3
"""How often a guest is set up before that is given up."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


@pytest.fixture(scope="module")
def pair(world: World) -> Iterator[dict[str, Properties]]:
    """Two guests that are up: vm-1 from an initramfs with an agent, vm-2 with a disk, and another for its seed."""
    found: dict[str, Properties] = {}

    async def start() -> None:
        driver = world.driver()

        async def one(unit: str, image: str) -> None:
            # As a site does: the libvirt daemons of other tests may take the same name for a tap at the same moment.
            for attempt in range(1, TRIES + 1):
                try:
                    found[unit] = await driver.setup(world.unit(unit, "setup", attempt, image=image))
                except DriverError as error:
                    if attempt == TRIES or "busy" not in str(error):
                        raise
                else:
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "vm-1", "tiny")
            nursery.start_soon(one, "vm-2", "disk")

    async def end() -> None:
        driver = world.driver()
        for unit in found:
            await driver.teardown(world.unit(unit, "teardown", 99))

    trio.run(start)
    try:
        yield found
    finally:
        trio.run(end)
    assert world.left("leasekit-vm-") == []


async def busy_share(driver: LibvirtDriver, unit: UnitContext) -> float:
    """The percentage of one CPU that a guest has had over a while."""
    await driver.probe(unit)
    await trio.sleep(MEASURED_FOR)
    return (await driver.probe(unit)).measured["cpu_percent"]


async def share_held_to(cap: int, driver: LibvirtDriver, unit: UnitContext) -> float:
    """The percentage of one CPU that a busy guest has had, measured until it is about its ``cap`` at most.

    A machine that is itself kept from running counts that time as its guests', who pay for it in the time after.
    Without a cap, a guest that spins takes too much for as long as it is measured.
    """
    shares = [await busy_share(driver, unit)]
    while sum(shares) > len(shares) * cap * 1.3 and len(shares) < MEASURED_TIMES:
        shares.append(await busy_share(driver, unit))
    return sum(shares) / len(shares)


def throttled(guests: list[int]) -> int:
    """How often guests wanted to go on and were held back by a cap, as their control groups count it."""
    total = 0
    for pid in guests:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = Path("/sys/fs/cgroup") / ("cpu" if "cpu" in controllers.split(",") else "")
            if controllers and "cpu" not in controllers.split(","):
                continue
            # A cap is one of the whole guest, so it stands above the groups of its threads.
            for folder in (root / path.strip("/"), (root / path.strip("/")).parent):
                if (folder / "cpu.stat").exists():
                    told = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
                    total += int(told.get("nr_throttled", 0))
    return total


async def test_guests_are_what_their_properties_say(world, pair):
    """Who leased two guests logs in to each with their key, finds its host key, name and addresses; others can't."""
    for number, unit in enumerate(("vm-1", "vm-2"), 1):
        properties = pair[unit]
        assert properties["addresses"] == f"{V4}.{10 + number} {V6}:{10 + number:x}"
        assert world.ssh(properties, "hostname").strip() == unit
        told = world.ssh(properties, "ip -o addr show eth0")
        assert all(f" {address}/" in told for address in properties["addresses"].split())
        with pytest.raises(AssertionError, match="Permission denied"):
            world.ssh(properties, "true", key="id2")
    with pytest.raises(AssertionError, match="Host key verification failed"):
        world.ssh({**pair["vm-1"], "host_key": pair["vm-2"]["host_key"]}, "true")


async def test_another_daemon_adopts_what_runs(world, pair):
    """A driver that was just made finds units up, and setup of the same action changes nothing."""
    before = world.host.guests()
    driver = world.driver()
    for unit, image in (("vm-1", "tiny"), ("vm-2", "disk")):
        assert await driver.setup(world.unit(unit, image=image)) == pair[unit]
        assert (await driver.probe(world.unit(unit, "probe"))).state == "up"
    assert world.host.guests() == before
    assert [orphan.unit for orphan in await driver.orphans({"vm-1"})] == ["vm-2"] * 4
    assert await driver.orphans({"vm-1", "vm-2"}) == []


async def test_caps_hold_a_busy_guest(world, pair):
    """A guest that spins gets no more of a CPU than its cap says, though it would; a cap can be lifted."""
    driver, unit = world.driver(), world.unit("vm-1", "modify")
    domain = world.host.connect().lookupByName("leasekit-vm-1")
    world.ssh(pair["vm-1"], SPIN)
    try:
        for cap in (10, 30):
            await driver.modify(attrs.evolve(unit, properties={**unit.properties, "cap": str(cap)}))
            assert domain.schedulerParameters()["global_quota"] == cap * 1000
            before = throttled(world.host.guests())
            assert 0 < await share_held_to(cap, driver, unit) < cap * 1.3
            assert throttled(world.host.guests()) > before
        await driver.modify(unit)
        before = throttled(world.host.guests())
        await busy_share(driver, unit)
        assert throttled(world.host.guests()) == before
    finally:
        world.ssh(pair["vm-1"], "kill $(cat /tmp/spins)")


async def test_caps_are_measured(world, pair):
    """The operation that measures caps tells what a busy guest gets under each, keeps to its cap afterwards, and
    refuses a guest that is not busy.
    """
    driver, unit = world.driver(), world.unit("vm-1", "operate", cap="70")
    domain = world.host.connect().lookupByName("leasekit-vm-1")
    with pytest.raises(DriverError, match="without a cap: it must be busy to be measured"):
        await driver.operate(unit, "caps", {})
    with pytest.raises(DriverError, match="property seconds: found '0', expected a whole number from 1 to 60"):
        await driver.operate(unit, "caps", {"seconds": "0"})
    world.ssh(pair["vm-1"], SPIN)
    try:
        told = {key: float(text) for key, text in (await driver.operate(unit, "caps", {"seconds": "1"})).items()}
    finally:
        world.ssh(pair["vm-1"], "kill $(cat /tmp/spins)")
    assert list(told) == ["none", *map(str, CAPS)]
    held = [cap for cap in CAPS if 0 < told[str(cap)] < cap * 1.3]
    assert len(held) >= len(CAPS) - 1, f"all but one, when the machine itself may have been kept from running: {told}"
    assert domain.schedulerParameters()["global_quota"] == 70_000
    await driver.modify(world.unit("vm-1", "modify"))


async def test_vcpus_memory_and_shares_change_while_a_guest_runs(world, pair):
    """A running guest gets a second CPU and less memory, and sees both."""
    driver = world.driver()
    shares = world.host.connect().lookupByName("leasekit-vm-1").schedulerParameters()["cpu_shares"]
    before = int(world.ssh(pair["vm-1"], "awk '/MemTotal/ {print $2}' /proc/meminfo"))
    await driver.modify(world.unit("vm-1", "modify", 2, vcpus="2", memory_mb="128", shares="512"))
    online = "echo 1 >/sys/devices/system/cpu/cpu1/online; grep -c ^processor /proc/cpuinfo"
    assert world.ssh(pair["vm-1"], online).strip() == "2"

    def still_large() -> str:
        told = int(world.ssh(pair["vm-1"], "awk '/MemTotal/ {print $2}' /proc/meminfo"))
        return "" if told < before - 32 * 1024 else f"{told} KiB"

    wait_until("the guest gives back memory", still_large)
    domain = world.host.connect().lookupByName("leasekit-vm-1")
    assert domain.schedulerParameters()["cpu_shares"] == 512
    await driver.modify(world.unit("vm-1", "modify", 2, vcpus="2", memory_mb="128"))
    assert domain.schedulerParameters()["cpu_shares"] == shares, "as it was with none"
    await driver.modify(world.unit("vm-1", "modify", 3, vcpus="1"))
    assert world.ssh(pair["vm-1"], "cat /sys/devices/system/cpu/cpu1/online").strip() == "0"
    await driver.modify(world.unit("vm-1", "modify", 4, vcpus="2"))
    assert world.ssh(pair["vm-1"], "cat /sys/devices/system/cpu/cpu1/online").strip() == "1"
    with pytest.raises(DriverError, match="property vcpus: found '3', expected a whole number from 1 to 2"):
        await driver.modify(world.unit("vm-1", "modify", 3, vcpus="3"))


async def test_login_keys_change_while_a_guest_runs(world, pair):
    """Where a guest has an agent, other keys take the place of the old ones; where it has none, the log says so."""
    driver = world.driver()
    other = (world.folder / "id2.pub").read_text()
    unit = world.unit("vm-1", "modify", 4)
    await driver.modify(attrs.evolve(unit, properties={"slice.key": other}))
    assert world.ssh(pair["vm-1"], "hostname", key="id2").strip() == "vm-1"
    with pytest.raises(AssertionError, match="Permission denied"):
        world.ssh(pair["vm-1"], "true")
    await driver.modify(unit)
    assert world.ssh(pair["vm-1"], "hostname").strip() == "vm-1"
    await driver.modify(attrs.evolve(world.unit("vm-2", "modify", 4, image="disk"), properties={"slice.key": other}))
    assert world.ssh(pair["vm-2"], "hostname").strip() == "vm-2"
    assert "image disk has no guest agent" in world.lines[-2]


async def test_a_suspended_guest_goes_on_where_it_was(world, pair):
    """A guest that is suspended runs no more, needs no memory, is found by another daemon, and goes on as it was."""
    driver = world.driver()
    running = len(world.host.guests())
    begun = world.ssh(pair["vm-1"], "echo kept >/tmp/kept; cat /proc/sys/kernel/random/boot_id")
    assert await driver.operate(world.unit("vm-1", "operate"), "suspend", {}) == pair["vm-1"]
    assert len(world.host.guests()) == running - 1
    assert "suspended" in (await world.driver().probe(world.unit("vm-1", "probe"))).detail
    assert await world.driver().setup(world.unit("vm-1")) == pair["vm-1"]
    with pytest.raises(DriverError, match="suspended, its memory is on disk, so it can't be modified"):
        await driver.modify(world.unit("vm-1", "modify", 5))
    assert await driver.operate(world.unit("vm-1", "operate"), "resume", {}) == pair["vm-1"]
    assert world.ssh(pair["vm-1"], "cat /tmp/kept /proc/sys/kernel/random/boot_id") == f"kept\n{begun}"


async def test_a_libvirtd_that_is_killed_and_comes_back(world, pair):
    """Guests go on without libvirt's daemon; meanwhile errors say what is wrong, and after it one driver goes on."""
    driver = world.driver()
    before = world.host.guests()
    assert (await driver.probe(world.unit("vm-1", "probe"))).state == "up"
    world.host.kill()
    try:
        with pytest.raises(DriverError, match="host one: ") as caught:
            await driver.probe(world.unit("vm-1", "probe"))
        assert caught.value.retry
        assert world.ssh(pair["vm-1"], "hostname").strip() == "vm-1"
    finally:
        world.host.start()
    assert (await driver.probe(world.unit("vm-1", "probe"))).state == "up"
    assert await driver.setup(world.unit("vm-1")) == pair["vm-1"]
    assert world.host.guests() == before


async def test_a_guest_moves_to_another_host_while_it_runs(world, pair):
    """A guest moves with its disk, goes on where it was, is found there by another daemon, and moves back."""
    with LibvirtHost(world.folder, "two", world.folder / "cache", another_host()) as two:
        two.count_up()
        hosts = {"one": world.host.settings(migration="tcp://127.0.0.1"), "two": two.settings()}
        hosts["two"]["migration"] = "tcp://127.0.0.1"
        world.ssh(pair["vm-2"], "printf moving | dd of=/dev/vda bs=512 seek=9 conv=notrunc,fsync")
        begun = world.ssh(pair["vm-2"], "cat /proc/sys/kernel/random/boot_id")
        driver, unit = world.driver(hosts=hosts), world.unit("vm-2", "operate", image="disk")
        moved = await driver.operate(unit, "migrate", {"host": "two"})
        assert moved == {**pair["vm-2"], "console": "two/leasekit-vm-2"}
        assert two.domains() == ["leasekit-vm-2"]
        assert "leasekit-vm-2" not in world.host.domains()
        seen = world.ssh(pair["vm-2"], "cat /proc/sys/kernel/random/boot_id; dd if=/dev/vda bs=512 skip=9 count=1")
        assert seen.startswith(begun)
        assert "moving" in seen
        later = world.driver(hosts=hosts)
        assert (await later.probe(unit)).detail == "running on host two"
        with pytest.raises(DriverError, match="host: found 'three', expected one of: one, two"):
            await later.operate(unit, "migrate", {"host": "three"})
        await later.operate(unit, "migrate", {"host": "one"})
        assert await world.driver(hosts=hosts).setup(world.unit("vm-2", image="disk")) == pair["vm-2"]
        assert two.domains() == []
        assert [path.name for path in two.images.iterdir() if "vm-2" in path.name] == []
        assert world.ssh(pair["vm-2"], "cat /proc/sys/kernel/random/boot_id") == begun


async def test_a_filter_keeps_a_guest_to_its_address(world, pair):
    """A guest that takes an address that is not its own is heard there, but not if there is a filter; it goes on being
    heard at its own. A filter that the host does not have fails the setup.
    """
    world.ssh(pair["vm-1"], f"ip addr add {V4}.78/24 dev eth0")
    await (await trio.open_tcp_stream(f"{V4}.78", 22)).aclose()
    world.ssh(pair["vm-1"], f"ip addr del {V4}.78/24 dev eth0")
    network = {"bridge": world.bridge, "subnets": [f"{V4}.0/24"], "filter": "clean-traffic"}
    driver = world.driver(network=network, prefix="held-")
    properties = await driver.setup(world.unit("vm-50"))
    world.ssh(properties, f"ip addr add {V4}.77/24 dev eth0")
    assert world.ssh(properties, "ip -o -4 addr show eth0").count(f"{V4}.") >= 2
    with trio.move_on_after(3), pytest.raises(OSError):
        await trio.open_tcp_stream(f"{V4}.77", 22)
    assert world.ssh(properties, "hostname").strip() == "vm-50"
    await driver.teardown(world.unit("vm-50", "teardown", 2))
    with pytest.raises(DriverError, match="no-such"):
        await world.driver(network=network | {"filter": "no-such"}, prefix="held-").setup(world.unit("vm-51"))
    assert world.left("held-vm") == []


async def test_a_host_that_is_reached_by_ssh(world, tmp_path):
    """A hypervisor behind ssh takes images, starts guests and tells of them like one near by; when ssh breaks, the
    error names the host, and may pass.
    """
    port = 20_000 + NET
    with world.host.by_ssh(port, tmp_path, world.folder / "id") as uri:
        driver, unit = world.driver(hosts={"far": world.host.settings(uri=uri)}, prefix="far-"), world.unit("vm-40")
        properties = await driver.setup(unit)
        assert world.ssh(properties, "hostname").strip() == "vm-40"
        assert (await driver.probe(unit)).detail == "running on host far"
    # A call may be under way before the break is seen; the next one finds nobody to connect to. What libvirt says of
    # that depends on whether it reads what ssh says before it writes to it.
    for reason in (r"host far: ", r"host far: can't connect to qemu\+ssh://"):
        with pytest.raises(DriverError, match=reason) as caught:
            await driver.probe(unit)
        assert caught.value.retry
    await world.driver(prefix="far-").teardown(world.unit("vm-40", "teardown", 2))
    assert world.left("far-") == []


async def test_a_killed_domain_is_seen_and_made_again(world, pair):
    """A domain that somebody destroys is down, with the reason; setup makes it again with an empty disk, or restart
    brings it back as it was.
    """
    driver, unit = world.driver(), world.unit("own-3", image="disk")
    properties = await driver.setup(unit)
    assert world.ssh(properties, "head -c 8 /dev/vda") == "pristine"
    world.ssh(properties, "printf secrets! | dd of=/dev/vda conv=notrunc,fsync")
    world.host.connect().lookupByName("leasekit-own-3").destroy()
    down = await driver.probe(unit)
    assert (down.state, down.detail) == ("down", "its domain is stopped: it was destroyed")
    with pytest.raises(DriverError, match="unit own-3 is stopped: it was destroyed, so it can't be modified"):
        await driver.modify(unit)
    assert await driver.operate(unit, "restart", {}) == properties
    assert world.ssh(properties, "head -c 8 /dev/vda") == "secrets!"
    assert (await driver.operate(unit, "console", {}))["console"].count("tiny guest is up") == 1
    world.host.connect().lookupByName("leasekit-own-3").destroy()
    again = await driver.setup(unit)
    assert again["host_key"] != properties["host_key"]
    assert world.ssh(again, "head -c 8 /dev/vda") == "pristine"
    assert (await driver.probe(world.unit("vm-1", "probe"))).state == "up"
    await driver.teardown(world.unit("own-3", "teardown", 2))
    assert world.left("leasekit-own-") == []


@pytest.mark.soak
async def test_a_guest_that_fills_the_hosts_disk(world):
    """A guest that writes more than its host has room for is halted, and the probe says why; an image for which there
    is no room fails with that reason, each time: libvirt itself says so in nine times of ten. Neither leaves anything.
    """
    host = world.host.settings(pool="small", pool_path="/var/lib/libvirt/small")
    driver, unit = world.driver(hosts={"one": host}), world.unit("full-4", image="disk")
    properties = await driver.setup(unit)
    world.ssh(properties, "(dd if=/dev/urandom of=/dev/vda bs=1M) </dev/null >/dev/null 2>&1 &")
    with trio.fail_after(120):
        while (state := await driver.probe(unit)).state == "up":
            await trio.sleep(0.1)
    assert "want of room in the host's pool" in state.detail
    await driver.teardown(world.unit("full-4", "teardown", 2))
    large = world.folder / "large"
    large.write_bytes(os.urandom(41 * 2**20))
    image = world.guest.image(kernel=world.guest.artifact(large), ready="running")
    driver = world.driver(hosts={"one": host}, images={"large": image}, image="large")
    for attempt in range(1, 13):
        with pytest.raises(DriverError, match=r"can't write volume \S+\.image.*No space left on device") as caught:
            await driver.setup(world.unit("full-5", "setup", attempt))
        assert caught.value.retry
    left = [path.name for path in (world.host.root / "lib/small").iterdir()]
    assert sum(name.endswith(".whole") for name in left) == 3 == sum(name.endswith(".image") for name in left)
    assert len(left) == 6


async def test_guests_that_do_not_come_up(world):
    """A guest that hangs fails when its time is over, one that stops fails at once; both say why, and leave nothing."""
    images = {"hang": world.guest.sector_image(marker="up!")}
    with pytest.raises(DriverError, match="the guest was not up within 4s: 'up!' is not on its console"):
        await world.driver(images=images, image="hang", start_timeout="4s").setup(world.unit("bad-6"))
    with trio.fail_after(80), pytest.raises(DriverError, match=r"its domain (stopped: |was shutting down)") as caught:
        await world.driver().setup(world.unit("bad-7", image="off"))
    assert caught.value.retry
    assert world.left("leasekit-bad-") == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256": "0" * 64}, "image tiny: .*kernel has the SHA-256 [0-9a-f]{64}, expected 0{64}"),
        ({"file": "/nowhere/kernel"}, "image tiny: can't read /nowhere/kernel: No such file or directory"),
        ({"file": "/nowhere\n<disk>/$(id)"}, r"image tiny: can't read /nowhere <disk>/\$\(id\): No such file"),
    ],
    ids=["checksum", "missing", "hostile"],
)
async def test_images_that_are_not_what_the_site_says(world, change, reason):
    """An image with another checksum, or none at all, fails with that reason, for good, and leaves nothing."""
    images = {"tiny": world.guest.image(kernel={**world.guest.artifact(world.guest.kernel), **change})}
    driver = world.driver(images=images, prefix="odd-")
    with pytest.raises(DriverError, match=reason) as caught:
        await driver.setup(world.unit("bad-8"))
    assert not caught.value.retry
    assert world.left("odd-") == []
    assert [path.name for path in world.host.images.iterdir() if path.name.startswith("odd-")] == []


async def test_images_by_http_and_qcow2_files_that_lean_on_others(world):
    """An image comes by HTTP as well, another status than success fails; a qcow2 file on top of another is refused."""
    overlay = world.folder / "overlay.qcow2"
    command = ["qemu-img", "create", "-f", "qcow2", "-b", "/etc/shadow", "-F", "raw", overlay, "1M"]
    subprocess.run(command, check=True, capture_output=True)
    with _served(world.folder) as address:
        initrd = {"url": f"{address}/initrd", "sha256": world.guest.artifact(world.guest.initrd)["sha256"]}
        images = {
            "web": world.guest.image(initrd=initrd, ready="running"),
            "gone": world.guest.image(initrd={**initrd, "url": f"{address}/gone"}, ready="running"),
            "leaning": world.guest.image(disk=world.guest.artifact(overlay), ready="running"),
        }
        driver = world.driver(images=images, image="web", prefix="web-")
        await driver.setup(world.unit("vm-30"))
        assert (await driver.probe(world.unit("vm-30", "probe"))).state == "up"
        await driver.teardown(world.unit("vm-30", "teardown", 2))
        with pytest.raises(DriverError, match=r"image gone: can't read .*/gone: HTTP status 404"):
            await driver.setup(world.unit("vm-31", image="gone"))
        with pytest.raises(DriverError, match="laid over another, expected one that stands alone"):
            await driver.setup(world.unit("vm-32", image="leaning"))
    assert world.left("web-vm") == []


async def test_an_image_that_an_operator_removed(world, monkeypatch):
    """An image whose volume was removed is uploaded again, and while it is nothing says that it is whole."""
    driver, seen = world.driver(prefix="anew-"), []
    await driver.setup(world.unit("vm-34", image="bare"))
    pool = world.host.connect().storagePoolLookupByName("units")
    for volume in pool.listAllVolumes():
        if volume.name().startswith("anew-") and volume.name().endswith(".image"):
            volume.delete(0)

    def read(image: str, artifact: ImageArtifact) -> Iterator[bytes]:
        seen.append((world.host.images / f"anew-{artifact.sha256}.whole").exists())
        return read_artifact(image, artifact)

    monkeypatch.setattr("leasekit.drivers.libvirt.images.read_artifact", read)
    await driver.setup(world.unit("vm-34", image="bare", number=2))
    assert seen and not any(seen)
    await driver.teardown(world.unit("vm-34", "teardown", 3))
    assert world.left("anew-") == []


LOUD = "yes a line of text on the console | head -c {size} >/dev/console; echo {last} >/dev/console"
"""What a guest runs to fill its console."""


@pytest.mark.soak
async def test_a_console_that_virtlogd_has_begun_anew(world):
    """What a guest writes after virtlogd has put its console aside is read from the new file's beginning. All that it
    put aside goes with the unit, also where a refresh has had the pool forget of it, or know what is gone.
    """
    more = {"virtlogd.conf": f"max_size = {2**16}"}  # 2 MiB is usual, which a guest takes long to write
    with LibvirtHost(world.folder, "four", world.folder / "cache", more) as four:
        driver, images = world.driver(hosts={"four": four.settings()}), four.images
        properties = await driver.setup(world.unit("loud-35"))
        pool = four.connect().storagePoolLookupByName("units")
        console = Console(Volumes(driver._places["four"].host), "leasekit-loud-35.console")
        await console.more()
        world.ssh(properties, LOUD.format(size=3 * 2**14, last="the first file"))
        assert b"the first file" in await console.more()
        pool.refresh(0)
        world.ssh(properties, LOUD.format(size=2**15, last="the second file"))
        rolled = images / "leasekit-loud-35.console.0"
        wait_until("a new file", lambda: "" if rolled.exists() else "not yet")
        wait_until("its end", lambda: "" if b"the second file" in (images / console.name).read_bytes() else "not yet")
        assert b"the second file" in await console.more()
        assert rolled.name not in pool.listVolumes()
        (images / "leasekit-loud-35.console.1").touch()
        pool.refresh(0)
        (images / "leasekit-loud-35.console.1").unlink()
        await driver.teardown(world.unit("loud-35", "teardown", 2))
        assert [path.name for path in images.iterdir() if "loud-" in path.name] == []


async def test_volumes_whose_files_are_gone(world):
    """A teardown is done where somebody else has removed a unit's files, whatever the pool still knows of them."""
    driver = world.driver(image="sector")
    await driver.setup(world.unit("gone-36"))
    for suffix in ("disk", "seed", "console"):
        (world.host.images / f"leasekit-gone-36.{suffix}").unlink()
    await driver.teardown(world.unit("gone-36", "teardown", 2))
    assert world.left("leasekit-gone-") == []
    assert not [name for name in world.host.connect().storagePoolLookupByName("units").listVolumes() if "gone" in name]


async def test_consoles_that_qemu_writes_itself(world):
    """Where a host's administrator has set ``stdio_handler = "file"`` nothing is left either."""
    more = {"qemu.conf": 'stdio_handler = "file"'}
    with LibvirtHost(world.folder, "three", world.folder / "cache", more) as three:
        driver = world.driver(hosts={"three": three.settings()}, image="sector")
        await driver.setup(world.unit("file-37"))
        await driver.teardown(world.unit("file-37", "teardown", 2))
        assert [path.name for path in three.images.iterdir() if "file-37" in path.name] == []


class _served:
    """A folder over HTTP on this machine."""

    def __init__(self, folder: Path) -> None:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(folder))

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.soak
async def test_a_daemon_killed_in_setup_and_teardown(world):
    """What a killed daemon was setting up is adopted and not made twice, or made anew where it was not a domain yet;
    what it was tearing down is torn down. Nothing is left.
    """
    unit = world.unit("kill-9", number=7)
    for suffix in (".initrd", ".console"):
        process = start_child(world, unit)
        path = world.host.images / f"leasekit-kill-9{suffix}"
        soon(lambda path=path: path.exists())
        kill(process)
    process = start_child(world, unit)
    soon(lambda: "leasekit-kill-9" in world.host.domains() and world.pid("kill-9") is not None)
    kill(process)
    first = world.pid("kill-9")
    driver = world.driver()
    properties = await driver.setup(unit)
    assert world.pid("kill-9") == first is not None
    assert world.ssh(properties, "hostname").strip() == "kill-9"
    process = start_child(world, world.unit("kill-9", "teardown", 8))
    soon(lambda: world.pid("kill-9") is None)
    kill(process)
    await driver.teardown(world.unit("kill-9", "teardown", 8))
    assert (await driver.probe(unit)) == ProbeResult(state="down", detail="not set up")
    assert world.left("leasekit-kill-") == []


async def test_kvm_is_used_only_where_it_runs_guests(world):
    """The tiny guest of the probe says its word on a machine that runs it; what the probe found stands, and it leaves
    nothing.
    """
    sector = world.folder / "sector"
    sector.write_bytes(boot_sector())
    said = world.folder / "said"
    command = ["qemu-system-x86_64", "-accel", "tcg", "-m", "16", "-display", "none", "-serial", f"file:{said}"]
    with subprocess.Popen([*command, "-drive", f"file={sector},format=raw,if=ide"]) as process:
        try:
            wait_until("the word", lambda: "" if said.exists() and WORD in said.read_bytes() else "not yet")
        finally:
            process.kill()
    driver = world.driver(hosts={"one": world.host.settings(acceleration="probe")})
    kind = (await driver._places["one"].machine()).kind
    guest = any(f" {flag} " in Path("/proc/cpuinfo").read_text() for flag in ("vmx", "svm"))
    assert kind == "qemu" or (guest and Path("/dev/kvm").exists())
    assert world.left("leasekit-~") == []


def test_pool_is_made_where_it_is_missing(world, pair):
    """The pool that the settings name is there, starts with its host, and is closed to who is no administrator."""
    pool = world.host.connect().storagePoolLookupByName("units")
    assert pool.autostart() == 1
    assert POOL in pool.XMLDesc(0)
