"""The xen driver with a real Xen and real guests, by ``make test-xen``: QEMU emulates all, which takes minutes."""

from __future__ import annotations

import json
import os

import pytest
import trio
from system.real_xen import guest_initramfs
from system.system_waits import wait_until
from system.xen_recording import keep, kept, record, shape
from system.xen_world import Watch, driver_of, settings, unit

from leasekit.core.drivers import DriverError
from leasekit.drivers.registry import examine
from leasekit.drivers.xen.document import Files, document, make_plan

pytest_plugins = ("system.xen_fixtures",)

CAPS = {30: 8.0, 10: 5.0}
"""Percent of one CPU, and by how much a measure may differ on a machine that does other things as well."""
CAP_SECONDS = 10
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
SPIN = "(while :; do :; done) </dev/null >/dev/null 2>&1 &"


async def test_life_of_a_guest(xen):
    """A guest has the name, address and keys that its properties tell, takes other sizes, and goes without a trace."""
    driver = driver_of(xen)
    with Watch(xen, "first guest, with its image's way to the host"):
        told = await driver.setup(unit(xen, cap="50"))
    assert told["console"] == "one/leasekit-u1"
    assert xen.inside(told, "hostname; nproc").split() == ["u1", "1"]
    assert "50" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    probed = await driver.probe(unit(xen, op="probe"))
    assert (probed.state, probed.measured["vcpus"]) == ("up", 1)
    assert "tiny guest is up" in (await driver.operate(unit(xen), "console", {}))["console"]
    with Watch(xen, "resize"):
        await driver.modify(unit(xen, op="modify", number=2, vcpus="2", memory_mb="128", cap="80", shares="512"))
    assert "80" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    assert "512" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    assert (await driver.probe(unit(xen, op="probe"))).measured["memory_bytes"] <= 130 * 2**20
    wait_until("2 CPUs", lambda: xen.inside(told, "cat /sys/devices/system/cpu/present") != "0-1\n")
    assert {(found.unit, found.kind) for found in await driver.orphans({"u2"})} == {("u1", "domain"), ("u1", "folder")}
    with Watch(xen, "teardown"):
        await driver.teardown(unit(xen, op="teardown", number=3))
    assert await driver.orphans(()) == []


async def test_three_guests_at_once(xen):
    """Guests are set up side by side, each with an address and a host key of its own."""
    driver, told = driver_of(xen), {}

    async def one(name: str) -> None:
        told[name] = await driver.setup(unit(xen, name))

    with Watch(xen, "three guests at once"):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(one, f"u{number}")
    assert len({found["host_key"] for found in told.values()}) == 3
    assert [xen.inside(found, "hostname").strip() for _, found in sorted(told.items())] == ["u0", "u1", "u2"]
    for name in told:
        await driver.teardown(unit(xen, name, "teardown", 2))


async def test_caps_hold(xen):
    """A busy guest gets the share of a CPU that its cap says, and much more without one."""
    driver = driver_of(xen)
    told = await driver.setup(unit(xen))
    xen.inside(told, SPIN)
    found = {}
    for number, cap in enumerate((0, *CAPS), 2):
        await driver.modify(unit(xen, op="modify", number=number, cap=str(cap)))
        await trio.sleep(1)
        await driver.probe(unit(xen, op="probe"))
        await trio.sleep(CAP_SECONDS)
        found[cap] = (await driver.probe(unit(xen, op="probe"))).measured["cpu_percent"]
        xen.seconds[f"percent of a CPU at cap {cap or 'none'}"] = found[cap]
    await driver.teardown(unit(xen, op="teardown", number=9))
    for cap, tolerance in CAPS.items():
        assert abs(found[cap] - cap) <= tolerance, found
    assert found[0] > 45, found


@pytest.mark.parametrize("image", ["tiny", "moving"])
async def test_suspend_and_resume(xen, image):
    """A guest that was saved uses nothing, is up for its lease, and goes on where it was, with its cap."""
    driver = driver_of(xen)
    told = await driver.setup(unit(xen, image=image))
    await driver.modify(unit(xen, op="modify", number=2, cap="70"))
    before = xen.inside(told, BOOT_ID)
    with Watch(xen, f"save, {image}"):
        await driver.operate(unit(xen), "suspend", {})
    assert "leasekit-u1" not in xen.run("xl list")
    assert "suspended" in (await driver.probe(unit(xen, op="probe"))).detail
    with Watch(xen, f"restore, {image}"):
        await driver_of(xen).operate(unit(xen, cap="70", image=image), "resume", {})
    assert xen.inside(told, BOOT_ID) == before
    assert "70" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    await driver.operate(unit(xen), "suspend", {})
    await driver.teardown(unit(xen, op="teardown", number=3))


async def test_restart_and_reboot(xen):
    """A guest that is restarted, or reboots itself, comes up with the keys and the cap that it has."""
    driver = driver_of(xen)
    told = await driver.setup(unit(xen))
    await driver.modify(unit(xen, op="modify", number=2, cap="90"))
    first = xen.inside(told, BOOT_ID)
    assert await driver.operate(unit(xen, cap="90"), "restart", {}) == told
    second = xen.inside(told, BOOT_ID)
    assert second != first
    was = xen.run("xl domid leasekit-u1")
    xen.inside(told, "(sleep 1; reboot -f) </dev/null >/dev/null 2>&1 &")
    wait_until("a new domain", lambda: xen.run("xl domid leasekit-u1 2>/dev/null || true") in (was, ""))
    wait_until("its ssh", lambda: xen.ssh(told["host"], told["host_key"], "true").returncode, 120)
    assert xen.inside(told, BOOT_ID) not in (first, second)
    assert "90" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    await driver.teardown(unit(xen, op="teardown", number=3))


@pytest.mark.parametrize("image", ["copied", "overlaid"])
async def test_disks(xen, image):
    """A unit's disk begins as its image's does, grows, and is its own; a NoCloud disk tells the guest who it is."""
    driver = driver_of(xen)
    told = await driver.setup(unit(xen, image=image))
    assert xen.inside(told, "head -c 8 /dev/xvda") == "pristine"
    assert int(xen.inside(told, "cat /sys/class/block/xvda/size")) == (16384 if image == "copied" else 8192)
    xen.inside(told, "printf changed_ >/dev/xvda; sync")
    assert xen.inside(told, "hostname").strip() == "u1"
    await driver.teardown(unit(xen, op="teardown", number=2))
    again = await driver.setup(unit(xen, number=3, image=image))
    assert xen.inside(again, "head -c 8 /dev/xvda") == "pristine"
    await driver.teardown(unit(xen, op="teardown", number=4))


async def test_a_restarted_authority_adopts(xen):
    """A driver that knows nothing finds the guest of the same action as it is, and one of another makes way."""
    told = await driver_of(xen).setup(unit(xen))
    before = xen.inside(told, BOOT_ID)
    assert await driver_of(xen).setup(unit(xen)) == told
    assert xen.inside(told, BOOT_ID) == before
    other = await driver_of(xen).setup(unit(xen, number=2))
    assert other["host_key"] != told["host_key"]
    assert xen.inside(other, BOOT_ID) != before
    await driver_of(xen).teardown(unit(xen, op="teardown", number=3))


async def test_what_goes_wrong_is_told(xen):
    """A guest that ends, hangs, or is ended by somebody, and an image that is another, are failures with a reason."""
    with pytest.raises(DriverError, match=r"was not up when its domain was (gone|shut down)"):
        await driver_of(xen).setup(unit(xen, image="off"))
    # Time enough for it to come as far as it does, on a machine that does other things as well.
    with pytest.raises(DriverError, match=r"not up within 1m30s: .* on its console: tiny guest hangs"):
        await driver_of(xen, start_timeout="90s").setup(unit(xen, image="hang"))
    wrong = {**xen.image(), "kernel": {**xen.image()["kernel"], "sha256": "0" * 64}}
    with pytest.raises(DriverError, match=r"has the SHA-256 .*, expected 0000") as caught:
        await driver_of(xen, images={"wrong": wrong}, image="").setup(unit(xen))
    assert not caught.value.retry
    driver = driver_of(xen)
    await driver.setup(unit(xen))
    xen.run("xl destroy leasekit-u1")
    probed = await driver.probe(unit(xen, op="probe"))
    assert (probed.state, probed.detail) == ("down", "its domain is gone: its guest ended it, or somebody else")
    await driver.teardown(unit(xen, op="teardown", number=2))


async def test_xl_reads_what_is_quoted(xen):
    """The real `xl` finds in a configuration what was put there, whatever characters it has."""
    odd = r"""a "quoted" 'one' \ $(id) `id` ../x ; # [ ] %s é \n \x41"""
    driver = driver_of(xen, images={"odd": xen.image(odd)}, image="")
    plan = make_plan(unit(xen), driver._settings)
    files = Files(kernel='/k"e\\r nel', initrd="/i$(id)", disk="/d 'x' é", seed="/s")
    xen.send("mkdir -p /tmp/odd; cat >/tmp/odd/cfg", document("odd", plan, "pvh", files, "br0").encode())
    try:
        found = json.loads(xen.run("xl create -n -q -f /tmp/odd/cfg 2>/dev/null || xl create -n -q /tmp/odd/cfg"))
    finally:
        xen.run("rm -rf /tmp/odd")
    build = found["b_info"]
    assert build["cmdline"].endswith(odd)
    assert (build["kernel"], build["ramdisk"]) == (files.kernel, files.initrd)
    assert [disk["pdev_path"] for disk in found["disks"]] == [files.disk, files.seed]


async def test_the_doctor(xen):
    """The doctor finds nothing missing, and says what is wrong with a host key and a bridge that are not there."""
    found = await examine("xen", settings(xen), "xen")
    assert [finding for finding in found if finding.verdict != "ok"] == []
    names = {finding.what for finding in found}
    assert {"host one: scheduler", "host one: memory", "host one: bridge br0", "host one: consoles"} <= names
    other = {"one": xen.host(host_key=xen.public.strip().rpartition(" ")[0])}
    (missing,) = [f for f in await examine("xen", settings(xen, hosts=other), "xen") if f.verdict == "missing"]
    assert "can't log in to root@" in missing.found
    network = {"bridge": "nowhere", "subnets": ["192.0.2.0/24"]}
    (missing,) = [f for f in await examine("xen", settings(xen, network=network), "xen") if f.verdict == "missing"]
    assert "ip link add nowhere type bridge" in missing.advice


def test_the_recording_is_what_xl_says(xen, tmp_path):
    """What the player says in other tests is what a real `xl` says; LEASEKIT_RECORD=1 records it anew."""
    kernel, initrd = xen.parts.folder / "kernel", tmp_path / "initrd"
    initrd.write_bytes(guest_initramfs(xen.parts))
    with Watch(xen, "recording"):
        calls = record(xen, kernel, initrd)
    if os.environ.get("LEASEKIT_RECORD") == "1":
        keep(calls)
    assert [shape(call) for call in calls] == [shape(call) for call in kept()]
