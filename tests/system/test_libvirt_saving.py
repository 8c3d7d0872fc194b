"""Real guests that are saved with their lease, and go on from where they were."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from system.libvirt_host import LibvirtHost, another_host
from system.libvirt_site import Site, open_site
from system.libvirt_world import World, kill, open_world, start_child
from system.system_waits import soon, wait_until

from leasekit.core.drivers import DROP, NOT_RESUMED, RESUME, SAVE, UnitContext
from leasekit.core.time import HOUR, SECOND

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt_saving")

COUNT = (
    "echo 0 >/tmp/count; (i=0; while :; do i=$((i+1)); echo $i >/tmp/next; mv /tmp/next /tmp/count; usleep 90000; done)"
    " </dev/null >/dev/null 2>&1 &"
)
BOOT = "/proc/sys/kernel/random/boot_id"
SAVED, RESUMED = {SAVE: "saved-1"}, {RESUME: "saved-1"}
OTHER_LEASE = "lease-2"


SUSPENDS = """
[actor.broker.mapper]
name = "backfill"
suspension = "all"
least_run = "1s"

[actor.web]
role = "guest"
settings = { retry_first = "100ms", redeem_lead = "100ms" }
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


def saving(world: World, unit: str, **properties: str) -> UnitContext:
    """What a teardown is told that is to save."""
    return world.unit(unit, "teardown", 2, **SAVED, **properties)


def resuming(world: World, unit: str, **properties: str) -> UnitContext:
    """What a setup for the next lease is told."""
    return attrs.evolve(world.unit(unit, number=3, **RESUMED, **properties), lease=OTHER_LEASE)


def counted(world: World, properties: Any, key: str = "id") -> int:
    """How far a guest has counted."""
    return int(world.ssh(properties, "cat /tmp/count", key=key))


async def test_a_counter_in_memory_goes_on(world):
    """A guest whose memory was saved goes on counting for another daemon and lease: the same boot, host key and name,
    the time of today, the login keys and cap of its new lease. Nothing is kept of it then.
    """
    driver, image = world.driver(), {"image": "tiny"}
    first = await driver.setup(world.unit("mem-1", **image))
    world.ssh(first, COUNT)
    boot, before = world.ssh(first, f"cat {BOOT}"), counted(world, first)
    assert await driver.teardown(saving(world, "mem-1")) is None
    assert await world.driver().teardown(saving(world, "mem-1")) is None, "twice, as after a restart"
    assert world.left("leasekit-mem-") == [] and world.host.guests() == []
    assert f"leasekit-~kept-{SAVED[SAVE]}.memory" in world.left("leasekit-~kept-")
    unit = resuming(world, "mem-1", cap="70")
    unit = attrs.evolve(unit, properties={**unit.properties, "slice.key": (world.folder / "id2.pub").read_text()})
    later = world.driver()
    found = await later.setup(unit)
    assert found == {**first, "resumed": "memory"}
    assert world.ssh(found, f"cat {BOOT}", key="id2") == boot
    after = counted(world, found, key="id2")
    assert before < after
    wait_until("it counts", lambda: "" if counted(world, found, key="id2") > after else "not yet")
    assert abs(int(world.ssh(found, "date +%s", key="id2")) - time.time()) < 60
    with pytest.raises(AssertionError, match="Permission denied"):
        world.ssh(found, "true")
    domain = world.host.connect().lookupByName("leasekit-mem-1")
    assert domain.schedulerParameters()["global_quota"] == 70_000 and domain.isPersistent()
    pid = world.pid("mem-1")
    assert await world.driver().setup(unit) == found and world.pid("mem-1") == pid
    assert world.left("leasekit-~kept-") == []
    await later.teardown(world.unit("mem-1", "teardown", 4))
    assert world.left("leasekit-mem-") == []


async def test_a_disk_goes_on_as_another_unit(world):
    """Another unit has other addresses, which a memory does not know: it boots from the disk that was saved, as itself.
    A setup that fails, and what it wrote, leave what is kept as it was; of a unit without a disk nothing can go on.
    """
    driver, image = world.driver(), {"image": "disk"}
    first = await driver.setup(world.unit("disk-2", **image))
    world.ssh(first, "printf secrets! | dd of=/dev/vda conv=notrunc,fsync")
    assert await driver.teardown(saving(world, "disk-2")) is None
    hasty = world.driver(start_timeout="300ms")
    with pytest.raises(Exception, match="the guest was not up within"):
        await hasty.setup(resuming(world, "disk-3"))
    assert world.left("leasekit-disk-") == []
    found = await driver.setup(resuming(world, "disk-3"))
    assert (found["resumed"], found["image"], found["name"]) == ("disk", "disk", "disk-3")
    assert found["host_key"] != first["host_key"] and found["host"] != first["host"]
    assert world.ssh(found, "hostname; head -c 8 /dev/vda") == "disk-3\nsecrets!"
    assert world.left("leasekit-~kept-") == []
    assert await driver.teardown(attrs.evolve(saving(world, "disk-3"), lease=OTHER_LEASE)) is None
    await driver.operate(world.unit("saved-1", DROP), DROP, {})
    assert world.left("leasekit-") == []
    await driver.setup(world.unit("tiny-4", image="bare"))
    assert await driver.teardown(saving(world, "tiny-4")) is None
    lost = await driver.setup(resuming(world, "tiny-5", image="bare"))
    assert lost[NOT_RESUMED] == "it has no disk, and its memory is that of unit tiny-4 as it was there"
    assert "resumed" not in lost
    await driver.teardown(world.unit("tiny-5", "teardown", 4))
    assert world.left("leasekit-") == []


@pytest.mark.soak
async def test_disks_alone_are_kept_where_the_site_says_so(world):
    """Without memory a guest is ended, by its power where it does not heed, and the same unit boots from its disk."""
    driver, image = world.driver(save_memory=False, grace="1s"), {"image": "disk"}
    first = await driver.setup(world.unit("cold-6", **image))
    boot = world.ssh(first, f"printf written | dd of=/dev/vda conv=notrunc,fsync; cat {BOOT}")
    assert await driver.teardown(saving(world, "cold-6")) is None
    assert any("its power is cut" in line for line in world.lines[-3:])
    assert f"leasekit-~kept-{SAVED[SAVE]}.memory" not in world.left("leasekit-~kept-")
    found = await driver.setup(resuming(world, "cold-6", **image))
    assert found["resumed"] == "disk"
    assert world.ssh(found, "head -c 7 /dev/vda") == "written" and world.ssh(found, f"cat {BOOT}") != boot
    await driver.teardown(world.unit("cold-6", "teardown", 4))
    assert world.left("leasekit-") == []


@pytest.mark.soak
async def test_a_daemon_killed_while_it_saves_and_resumes(world):
    """Whenever a daemon is killed, the next goes on: memory that was written is not lost, a guest that was brought back
    is adopted, and what is kept is there until then.
    """
    driver, image = world.driver(), {"image": "disk"}
    first = await driver.setup(world.unit("kill-7", **image))
    world.ssh(first, COUNT)
    before = counted(world, first)
    process = start_child(world, saving(world, "kill-7"))
    soon(lambda: world.pid("kill-7") is None)
    kill(process)
    assert await driver.teardown(saving(world, "kill-7")) is None
    for _ in range(2):
        process = start_child(world, resuming(world, "kill-7", **image))
        soon(lambda: world.pid("kill-7") is not None)
        kill(process)
        assert "leasekit-~kept-saved-1.memory" in world.left("leasekit-~kept-")
    found = await driver.setup(resuming(world, "kill-7", **image))
    assert found["resumed"] == "memory" and counted(world, found) > before
    pid = world.pid("kill-7")
    assert await world.driver().setup(resuming(world, "kill-7", **image)) == found and world.pid("kill-7") == pid
    await driver.teardown(world.unit("kill-7", "teardown", 4))
    assert world.left("leasekit-") == []


async def test_a_daemon_killed_in_the_middle_of_a_save(world):
    """Memory that libvirt goes on writing for a daemon that was killed is waited for by the next, not begun anew."""
    driver, image = world.driver(), {"image": "disk"}
    await driver.setup(world.unit("half-9", **image))
    process = start_child(world, saving(world, "half-9"))
    writers: list[int] = []
    soon(lambda: writers.extend(_writers("kept-saved-1.memory")) or writers)
    # What writes the file stands still, and QEMU with it before long: there is more than a pipe takes.
    for pid in writers:
        os.kill(pid, signal.SIGSTOP)
    try:
        kill(process)
        file = world.host.images / "leasekit-~kept-saved-1.memory"
        begun = file.stat().st_ino
        lines_before = len(world.lines)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.teardown, saving(world, "half-9"))
            with trio.fail_after(60):
                while not any("is being written already" in line for line in world.lines[lines_before:]):
                    await trio.sleep(0.01)
            assert file.stat().st_ino == begun and world.pid("half-9") is not None
            for pid in writers:
                os.kill(pid, signal.SIGCONT)
    finally:
        for pid in writers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert file.stat().st_ino == begun
    found = await driver.setup(resuming(world, "half-9", **image))
    assert found["resumed"] == "memory"
    await driver.teardown(world.unit("half-9", "teardown", 4))
    assert world.left("leasekit-") == []


def _writers(name: str) -> list[int]:
    """The processes by which libvirt writes a file whose path ends so."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"libvirt_iohelper" in command and f"{name}\0".encode() in command:
                    found.append(int(entry.name))
    return found


@pytest.mark.soak
async def test_a_guest_goes_on_at_another_host(world):
    """What is kept on one host is brought to the one where the unit is now at home: disk, memory and all."""
    with LibvirtHost(world.folder, "two", world.folder / "cache", another_host()) as two:
        hosts = {"one": world.host.settings(), "two": two.settings()}
        turned = {"two": two.settings(), "one": world.host.settings()}
        driver, image = world.driver(hosts=hosts), {"image": "disk"}
        first = await driver.setup(world.unit("far-8", **image))
        world.ssh(first, f"{COUNT} printf carried | dd of=/dev/vda conv=notrunc,fsync")
        before = counted(world, first)
        assert await driver.teardown(saving(world, "far-8")) is None
        there = world.driver(hosts=turned)
        found = await there.setup(resuming(world, "far-8", **image))
        assert found == {**first, "console": "two/leasekit-far-8", "resumed": "memory"}
        assert two.domains() == ["leasekit-far-8"] and world.host.domains() == []
        assert counted(world, found) > before and world.ssh(found, "head -c 7 /dev/vda") == "carried"
        assert world.left("leasekit-") == []
        assert await there.teardown(attrs.evolve(saving(world, "far-8"), lease=OTHER_LEASE)) is None
        again = await driver.setup(attrs.evolve(resuming(world, "far-8", **image), number=5))
        assert again["resumed"] == "memory" and world.ssh(again, "head -c 7 /dev/vda") == "carried"
        await driver.teardown(world.unit("far-8", "teardown", 6))
        assert world.left("leasekit-") == [] == two.domains()
        assert [path.name for path in two.images.iterdir() if not path.name.endswith((".image", ".whole"))] == []


def test_a_lease_of_machines_is_suspended_and_goes_on(world, tmp_path):
    """A lease makes way for another guest's reservation of the same two machines, and goes on behind it as if nothing
    had been; the site's daemon is killed while it keeps them. Nothing is left in the end.
    """
    settings = world.settings() | {"save": True}
    with open_site(world, tmp_path, {"work-9": (2, settings)}, SUSPENDS) as site:
        properties = {"preemptible": "true", "deferrable": "true", "suspend": "8s"}
        now = int(time.time() * SECOND)
        wish = {"type": "work-9", "units": 2, "properties": properties, "configuration": {"slice.key": world.public}}
        work = str(site.daemons.command("guest", "lease.request", term=[now, now + HOUR], **wish)["id"])
        before = {}
        for unit in site.joined(work, 2):
            world.ssh(unit["properties"], COUNT)
            before[unit["unit"]] = (unit["properties"], counted(world, unit["properties"]))
        start = int(time.time() * SECOND) + 16 * SECOND
        del wish["properties"]
        wish["configuration"] = {"image": "sector"}
        reserved = site.daemons.command("web", "lease.request", term=[start, start + 12 * SECOND], **wish)["id"]
        wait_until("saved", lambda: None if site.lease(work)["state"] == "closed" else site.lease(work))
        assert [one["state"] for one in site.daemons.query("site", "saved")] == ["saved"] * 2
        site.restart()
        # On a busy machine guests may not be up before it is over.
        wait_until("the reservation's end", lambda: None if _is_over(site, reserved) else "not yet")
        rest = _rest(site, work)
        for unit in site.joined(rest, 2):
            properties, count = before[unit["unit"]]
            assert unit["properties"] == {**properties, "resumed": "memory"}
            assert counted(world, properties) > count
        assert site.daemons.query("site", "saved") == []
        site.close(rest)
        site.until_free()
        assert world.left("leasekit-work-") == [] == world.left("leasekit-~kept-")


def _is_over(site: Site, lease: str) -> bool:
    return site.daemons.query("web", "lease", lease=lease)["state"] in ("closed", "failed")


def _rest(site: Site, work: str) -> str:
    (found,) = [lease["id"] for lease in site.daemons.query("guest", "leases") if _resumes(site, lease["id"]) == work]
    return str(found)


def _resumes(site: Site, lease: str) -> str:
    return str(site.lease(lease).get("resumes", {}).get("lease", ""))
