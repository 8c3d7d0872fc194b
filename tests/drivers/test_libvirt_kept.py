"""What the libvirt driver keeps of units that are saved, over libvirt's own test driver, which keeps no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from driver_harnesses import LibvirtHarness

from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE, DriverError
from leasekit.drivers.libvirt.documents import DomainMachine, resumed_xml
from leasekit.drivers.libvirt.plan import make_plan
from leasekit.drivers.libvirt.record import find_record, make_record
from leasekit.drivers.libvirt.settings import Image, ImageArtifact, LibvirtHost, LibvirtSettings, Size

PREFIX = LibvirtHarness.PREFIX
MARK = f"{PREFIX}~kept-saved-1"
SAVED, RESUMED = {SAVE: "saved-1"}, {RESUME: "saved-1"}
WHOLE = [MARK, f"{MARK}.disk"]
GONE = "what was saved of it is gone"


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[LibvirtHarness]:
    made = LibvirtHarness(tmp_path)
    yield made
    made.close()


async def save(virtual: LibvirtHarness, make_unit: Any, unit: str = "vm-1", number: int = 1) -> None:
    """Sets a unit up, and saves it."""
    await virtual.driver.setup(make_unit(unit, number=number))
    assert await virtual.driver.teardown(make_unit(unit, "teardown", number + 1, properties=SAVED)) is None
    assert virtual.kept() == WHOLE
    assert virtual.leftovers() == []


async def test_what_is_kept_is_no_unit(virtual, make_unit):
    """It is neither an orphan nor a unit that is up, and what it has is nobody's: its unit can be leased again, with
    another one's addresses, and torn down.
    """
    await save(virtual, make_unit)
    assert await virtual.reopen().orphans([]) == []
    assert (await virtual.driver.probe(make_unit("vm-1", "probe"))).state == "down"
    await virtual.driver.setup(make_unit("vm-1", number=5, lease="lease-9"))
    await virtual.driver.teardown(make_unit("vm-1", "teardown", 6))
    assert virtual.kept() == WHOLE


async def test_a_setup_that_fails_or_is_cancelled_leaves_it(virtual, make_unit):
    """Wherever a setup ends that was to go on from it, what is kept is whole; one that ends well takes it."""
    await save(virtual, make_unit)
    hasty = virtual.make(ready="ssh", start_timeout="30ms")
    with pytest.raises(DriverError, match="the guest was not up within 30ms"):
        await hasty.setup(make_unit("vm-2", number=3, properties=RESUMED))
    assert (virtual.kept(), virtual.leftovers()) == (WHOLE, [])
    slow = virtual.slow()
    for step in range(12):
        with trio.move_on_after(step * 0.01):
            await slow.setup(make_unit("vm-2", number=4 + step, properties=RESUMED))
        await virtual.driver.teardown(make_unit("vm-2", "teardown", 4 + step))
        assert (virtual.kept(), virtual.leftovers()) == (WHOLE, [])
    found = await virtual.driver.setup(make_unit("vm-2", number=50, properties=RESUMED))
    assert (found["resumed"], virtual.kept()) == ("disk", [])


async def test_a_teardown_that_is_cancelled_is_done_again(virtual, make_unit):
    """Wherever a teardown that saves is cancelled, the same again saves all of it."""
    for step in range(12):
        await virtual.driver.setup(make_unit("vm-1", number=2 * step))
        unit = make_unit("vm-1", "teardown", 2 * step + 1, properties=SAVED)
        with trio.move_on_after(step * 0.005):
            await virtual.driver.teardown(unit)
        assert not await virtual.reopen().teardown(unit)
        assert (virtual.kept(), virtual.leftovers()) == (WHOLE, [])


async def test_what_is_not_whole_is_not_gone_on_from(virtual, make_unit):
    """Volumes without the mark that comes last are what a killed daemon left: a unit is set up anew, and says so, by a
    restarted daemon too; dropping the key removes them.
    """
    await save(virtual, make_unit)
    virtual.connection.lookupByName(MARK).undefine()
    unit = make_unit("vm-2", number=3, properties=RESUMED)
    found = await virtual.driver.setup(unit)
    assert found[NOT_RESUMED] == GONE and "resumed" not in found
    assert await virtual.reopen().setup(unit) == found
    assert virtual.kept() == []
    await virtual.driver.teardown(make_unit("vm-2", "teardown", 4))
    await save(virtual, make_unit, number=7)
    virtual.connection.lookupByName(MARK).undefine()
    await virtual.driver.operate(make_unit("saved-1", DROP), DROP, {})
    assert virtual.kept() == []


async def test_a_unit_that_is_down_still_has_a_disk(virtual, make_unit):
    """Of a unit whose domain was destroyed the disk is kept; of one that was never set up there is nothing to keep."""
    driver = virtual.driver
    lost = await driver.teardown(make_unit("vm-1", "teardown", 1, properties=SAVED))
    assert lost == {NOT_SAVED: "it was not up"}
    await driver.setup(make_unit("vm-1", number=2))
    virtual.connection.lookupByName(f"{PREFIX}vm-1").destroy()
    assert await driver.teardown(make_unit("vm-1", "teardown", 3, properties=SAVED)) is None
    assert virtual.kept() == WHOLE


async def test_a_unit_without_disk_or_memory_is_not_saved(virtual, make_unit):
    """Where nothing can be kept the unit is gone all the same, and says why."""
    image = {"kernel": {"volume": "base"}, "seed": "none", "ready": "running"}
    driver = virtual.make(images={"net": image})
    await driver.setup(make_unit("vm-1"))
    lost = await driver.teardown(make_unit("vm-1", "teardown", 2, properties=SAVED))
    assert lost == {NOT_SAVED: "it has no disk, and its memory could not be kept"}
    assert (virtual.kept(), virtual.leftovers()) == ([], [])


async def test_an_image_that_the_site_has_no_more(virtual, make_unit):
    """A disk of an image that was taken from the site's list is not started again; another image of a lease's own
    properties does not stand for it.
    """
    await save(virtual, make_unit)
    images = {"other": {"disk": {"volume": "base"}, "format": "raw", "seed": "none", "ready": "running"}}
    driver = virtual.make(images=images)
    found = await driver.setup(make_unit("vm-1", number=3, properties=RESUMED))
    assert found[NOT_RESUMED] == "its image tiny is not among the site's any more"
    assert (found["image"], virtual.kept()) == ("other", [])


async def test_a_host_that_may_keep_it_and_can_not_be_asked(virtual, make_unit, tmp_path):
    """While a host is away a unit is not set up anew, for what is kept may be there; dropping it has to wait, too."""
    gone = {"uri": f"qemu+unix:///system?socket={tmp_path}/none"}
    hosts = {"here": {"uri": "test:///default", "pool": "default-pool"}, "gone": gone}
    driver = virtual.make(hosts=hosts)
    for act in (
        driver.setup(make_unit("vm-1", properties=RESUMED)),
        driver.operate(make_unit("saved-1", DROP), DROP, {}),
    ):
        with pytest.raises(DriverError, match="host gone: can't connect") as caught:
            await act
        assert caught.value.retry
    await save(virtual, make_unit)
    with pytest.raises(DriverError, match="host gone: can't connect"):
        await driver.setup(make_unit("vm-1", number=5, properties=RESUMED))
    found = await virtual.driver.setup(make_unit("vm-1", number=5, properties=RESUMED))
    assert found["resumed"] == "disk"


@pytest.mark.parametrize("key", ["..", "../up", "a/b", "$(id)", "a\nb", "<disk/>", "x" * 64, "~kvm"])
async def test_hostile_keys_of_saved_machines(virtual, make_unit, key):
    """A key that is no plain name is refused, before anything is touched."""
    await virtual.driver.setup(make_unit("vm-1"))
    before = virtual.leftovers()
    for op, properties in (("setup", {RESUME: key}), ("teardown", {SAVE: key})):
        with pytest.raises(DriverError, match="unit id: found") as caught:
            await getattr(virtual.driver, op)(make_unit("vm-1", op, 2, properties=properties))
        assert not caught.value.retry
    with pytest.raises(DriverError, match="unit id: found"):
        await virtual.driver.operate(make_unit(key, DROP), DROP, {})
    assert (virtual.kept(), virtual.leftovers()) == ([], before)


def test_a_domain_that_goes_on_is_described_for_its_new_lease(make_unit):
    """Of what libvirt wrote beside the memory all stays but for whose it is, and what its new lease may use."""
    images = {"x": Image(disk=ImageArtifact(volume="x"), ready="running")}
    settings = LibvirtSettings(hosts={"a": LibvirtHost(uri="qemu:///system")}, images=images, size=Size(cap=30))
    plan = make_plan(make_unit("vm-1", number=9, lease="new & <lease>"), settings)
    record = make_record(plan, "", resumed="memory")
    xml = (
        "<domain type='qemu'><name>leasekit-vm-1</name><metadata><unit xmlns='urn:leasekit:libvirt:1'/></metadata>"
        "<cputune><global_quota>90000</global_quota></cputune><devices><emulator>/bin/qemu</emulator></devices></domain>"
    )
    changed = resumed_xml(xml, record, plan, DomainMachine("qemu"))
    assert find_record(changed) == record
    assert changed.count("<global_quota>") == 1 and "<global_quota>30000</global_quota>" in changed
    assert "<emulator>/bin/qemu</emulator>" in changed and "new &amp; &lt;lease&gt;" in changed
    assert find_record("<domain/>") is None is find_record("no xml")
