"""The libvirt driver over libvirt's own test driver: what it does with domains, hosts and errors, without guests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from driver_harnesses import LibvirtHarness
from polling import PATIENCE, poll

from leasekit.core.drivers import UNIT_HOST, DriverError, Orphan, PartlyToldError, UnitContext
from leasekit.core.settings import SettingsError
from leasekit.drivers.libvirt.driver import LibvirtDriver
from leasekit.drivers.registry import action_timeout, make_driver

PREFIX = LibvirtHarness.PREFIX
NODE = "<node><cpu><mhz>1</mhz><model>x</model><active>1</active><nodes>1</nodes><sockets>1</sockets>" + (
    "<cores>1</cores><threads>1</threads></cpu><memory>1000000</memory></node>"
)


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[LibvirtHarness]:
    made = LibvirtHarness(tmp_path)
    yield made
    made.close()


def driver_of(virtual: LibvirtHarness, **settings: Any) -> LibvirtDriver:
    made = virtual.make(**settings)
    assert isinstance(made, LibvirtDriver)
    return made


async def test_properties_tell_a_guest_what_it_needs(virtual, make_unit):
    """A unit's properties are its name, addresses, port, console and image, and no secret or path of the host."""
    driver = driver_of(virtual, domain="site.example")
    properties = await driver.setup(make_unit("vm-1"))
    assert properties == {
        "name": "vm-1",
        "hostname": "vm-1.site.example",
        "host": "192.0.2.11",
        "port": "22",
        "addresses": "192.0.2.11 2001:db8::b",
        "console": f"here/{PREFIX}vm-1",
        "image": "tiny",
    }
    assert driver.capabilities == {"cap", "resize", "suspend", "image", "save"}


async def test_a_new_action_or_lease_makes_the_unit_anew(virtual, make_unit):
    """What another lease or an older action left is no unit of this one: it goes first."""
    driver = driver_of(virtual)
    seen = set()
    for number, lease in ((1, "a"), (2, "a"), (2, "b")):
        await driver.setup(make_unit("vm-1", number=number, lease=lease))
        seen.add(virtual.connection.lookupByName(f"{PREFIX}vm-1").UUIDString())
    assert len(seen) == 3


async def test_a_domain_that_was_stopped_is_down_and_comes_back(virtual, make_unit):
    """A domain that somebody destroyed is reported with the reason, refused for operations, and made again by setup."""
    driver = driver_of(virtual)
    first = await driver.setup(make_unit("vm-1"))
    virtual.connection.lookupByName(f"{PREFIX}vm-1").destroy()
    found = await driver.probe(make_unit("vm-1", "probe"))
    assert (found.state, found.detail) == ("down", "its domain is stopped: it was destroyed")
    for operation in ("suspend", "resume"):
        with pytest.raises(DriverError, match="unit vm-1 is stopped: it was destroyed, so it can't be ") as caught:
            await driver.operate(make_unit("vm-1", "operate"), operation, {})
        assert not caught.value.retry
    assert await driver.operate(make_unit("vm-1", "operate"), "restart", {}) == first
    virtual.connection.lookupByName(f"{PREFIX}vm-1").destroy()
    assert await driver.setup(make_unit("vm-1")) == first
    assert (await driver.probe(make_unit("vm-1", "probe"))).state == "up"


async def test_a_domain_that_stops_while_it_is_waited_for_fails_at_once(virtual, make_unit):
    """A guest that goes away before it is up fails its setup on that event, long before its time is over."""
    driver = driver_of(virtual, ready="ssh", start_timeout="1h")

    async def stop() -> None:
        await poll(lambda: f"{PREFIX}vm-1" in virtual.leftovers())
        domain = virtual.connection.lookupByName(f"{PREFIX}vm-1")
        await poll(domain.isActive)
        domain.destroy()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with pytest.raises(DriverError, match="the guest was not up when its domain stopped: it was destroyed"):
                await driver.setup(make_unit("vm-1"))
    assert virtual.leftovers() == []


async def test_suspended_units_are_adopted_and_resumed(virtual, make_unit):
    """A suspended unit is up, for a new daemon as well; suspend and resume can be done twice; teardown removes it."""
    driver = driver_of(virtual)
    first = await driver.setup(make_unit("vm-1"))
    for _ in range(2):
        assert await driver.operate(make_unit("vm-1", "operate"), "suspend", {}) == first
    later = driver_of(virtual)
    assert (await later.probe(make_unit("vm-1", "probe"))).state == "up"
    assert await later.setup(make_unit("vm-1")) == first
    for _ in range(2):
        assert await later.operate(make_unit("vm-1", "operate"), "resume", {}) == first
    assert virtual.connection.lookupByName(f"{PREFIX}vm-1").isActive()
    await later.operate(make_unit("vm-1", "operate"), "suspend", {})
    await later.teardown(make_unit("vm-1", "teardown", 2))
    assert virtual.leftovers() == []


async def test_sizes_change_while_a_unit_runs(virtual, make_unit):
    """Modify gives a domain the vCPUs, memory and shares of its properties, for now and for later starts; a cap that
    the hypervisor does not know is refused.
    """
    choices = {"vcpus": [1, 4], "memory_mb": [64, 512], "shares": [0, 1000], "cap": [0, 100]}
    driver = driver_of(virtual, choices=choices)
    await driver.setup(make_unit("vm-1"))
    domain = virtual.connection.lookupByName(f"{PREFIX}vm-1")
    assert domain.info()[3] == 1
    properties = {"vcpus": "3", "memory_mb": "128", "shares": "70"}
    units = make_unit
    await driver.modify(units("vm-1", "modify", 2, properties=properties))
    assert (domain.info()[2], domain.info()[3]) == (128 * 1024, 3)
    await driver.modify(units("vm-1", "modify", 3, properties={"vcpus": "1", "slice.key": ""}))
    assert domain.info()[3] == 3
    assert "keeps 3 vCPUs until it is restarted" in units.lines[-2]
    assert domain.vcpusFlags(virtual.libvirt.VIR_DOMAIN_AFFECT_CONFIG) == 1
    with pytest.raises(DriverError, match="allow no CPU caps") as caught:
        await driver.modify(units("vm-1", "modify", 4, properties={"cap": "50"}))
    assert not caught.value.retry


async def test_a_guest_has_no_more_memory_than_its_lease_says(virtual, make_unit):
    """A domain can't grow beyond its lease's memory, whatever leases may choose: more is refused until its next start.
    Where the site has guests grow, it can grow to the most that leases may choose.
    """
    choices = {"memory_mb": [64, 4096]}
    small, more = {"memory_mb": "128"}, {"memory_mb": "256"}
    driver = driver_of(virtual, choices=choices)
    await driver.setup(make_unit("vm-1", properties=small))
    domain = virtual.connection.lookupByName(f"{PREFIX}vm-1")
    assert domain.maxMemory() == 128 * 1024
    with pytest.raises(DriverError, match="memory_mb: unit vm-1 has 128 until it is restarted, then 256: ") as caught:
        await driver.modify(make_unit("vm-1", "modify", 2, properties=more))
    assert not caught.value.retry
    assert (domain.maxMemory(), domain.info()[2]) == (128 * 1024, 128 * 1024)
    await driver.operate(make_unit("vm-1", "operate", properties=more), "restart", {})
    assert (domain.maxMemory(), domain.info()[2]) == (256 * 1024, 256 * 1024)
    growing = driver_of(virtual, choices=choices, memory_grows=True)
    await growing.setup(make_unit("vm-2", properties=small))
    await growing.modify(make_unit("vm-2", "modify", 2, properties=more))
    domain = virtual.connection.lookupByName(f"{PREFIX}vm-2")
    assert (domain.maxMemory(), domain.info()[2]) == (4096 * 1024, 256 * 1024)


async def test_orphans_are_found_and_can_be_torn_down(virtual, make_unit):
    """Domains and volumes of units that nobody knows are told with their host; what isn't this driver's is not."""
    driver = driver_of(virtual)
    for unit in ("vm-1", "vm-2"):
        await driver.setup(make_unit(unit))
    virtual.pool.createXML(f"<volume><name>{PREFIX}vm-3.seed</name><capacity>1</capacity></volume>", 0)
    later = driver_of(virtual)
    assert await later.orphans(["vm-1"]) == [
        Orphan("here", "vm-2", "domain", f"{PREFIX}vm-2"),
        Orphan("here", "vm-2", "volume", f"{PREFIX}vm-2.disk"),
        Orphan("here", "vm-3", "volume", f"{PREFIX}vm-3.seed"),
    ]
    for unit in ("vm-2", "vm-3"):
        await later.teardown(make_unit(unit, "teardown", 9))
    assert await later.orphans(["vm-1"]) == []
    assert "test" in [domain.name() for domain in virtual.connection.listAllDomains(0)]


async def test_units_are_where_the_site_says(virtual, make_unit, tmp_path):
    """Each of several hosts has the units that the site has there, the first those of which it says nothing; a host
    that is none of the driver's is refused; one that can't be reached harms nobody else's units, and its own fail with
    its name.
    """

    def on(host: str, unit: str) -> UnitContext:
        return make_unit(unit, properties={UNIT_HOST: host})

    other = tmp_path / "other.xml"
    other.write_text(NODE)
    hosts = {
        "here": {"uri": "test:///default", "pool": "default-pool"},
        "there": {"uri": f"test://{other}", "pool": "units", "pool_path": "/there"},
        "gone": {"uri": f"qemu+unix:///system?socket={tmp_path}/none"},
    }
    images = {"none": {"disk": {"volume": "base"}, "format": "raw", "seed": "none", "ready": "running"}}
    driver = driver_of(virtual, hosts=hosts, images=images)
    assert driver.capabilities == {"cap", "resize", "suspend", "image", "save", "migrate"}
    assert (await driver.setup(make_unit("a-1")))["console"] == f"here/{PREFIX}a-1"
    with pytest.raises(DriverError, match="image none: host there has no volume 'base' in its pool"):
        await driver.setup(on("there", "b-2"))
    with pytest.raises(DriverError, match=r"host gone: can't connect to qemu.*none: .*No such file") as caught:
        await driver.setup(on("gone", "c-3"))
    assert caught.value.retry
    with pytest.raises(
        DriverError, match="unit d-4 is to be on 'nowhere', expected one of: gone, here, there"
    ) as caught:
        await driver.setup(on("nowhere", "d-4"))
    assert not caught.value.retry
    assert (await driver.probe(make_unit("a-1", "probe"))).detail == "running on host here"
    with pytest.raises(PartlyToldError, match=r"^host gone: can't connect to qemu") as untold:
        await driver.orphans([])
    assert {(one.host, one.unit, one.kind) for one in untold.value.found} >= {("here", "a-1", "domain")}


async def test_no_two_units_have_one_address(virtual, make_unit):
    """Units whose names end in one number would have one address: the second is refused, until the first is gone, by
    a daemon that was started anew as well.
    """
    driver = driver_of(virtual)
    await driver.setup(make_unit("a-1"))
    with pytest.raises(DriverError, match=r"unit b-1: 192.0.2.11 is the address of unit a-1"):
        await driver.setup(make_unit("b-1"))
    later = driver_of(virtual)
    with pytest.raises(DriverError, match=r"unit b-1: 192.0.2.11 is the address of unit a-1"):
        await later.setup(make_unit("b-1"))
    for each in (driver, later):
        await each.teardown(make_unit("a-1", "teardown", 2))
    await later.setup(make_unit("b-1"))


async def test_a_guest_of_the_driver_is_no_guest_of_a_site(virtual, make_unit):
    """Join and leave are refused with what to use instead, and so is a host that is none."""
    driver = driver_of(virtual)
    for act in (driver.join, driver.leave):
        with pytest.raises(DriverError, match=r"is for sites: it can't .* where process or script can") as caught:
            await act(make_unit("vm-1", "join"))
        assert not caught.value.retry
    await driver.setup(make_unit("vm-1"))
    with pytest.raises(DriverError, match="host: found 'nowhere', expected one of: here"):
        await driver.operate(make_unit("vm-1", "operate"), "migrate", {"host": "nowhere"})


async def test_measured_cpu_is_that_since_the_last_probe(virtual, make_unit):
    """Measured CPU comes from the second probe on, and a unit that was torn down is forgotten."""
    driver = driver_of(virtual)
    await driver.setup(make_unit("vm-1"))
    assert "cpu_percent" not in (await driver.probe(make_unit("vm-1", "probe"))).measured
    assert "cpu_percent" in (await driver.probe(make_unit("vm-1", "probe"))).measured
    await driver.teardown(make_unit("vm-1", "teardown", 2))
    await driver.setup(make_unit("vm-1", number=3))
    assert "cpu_percent" not in (await driver.probe(make_unit("vm-1", "probe"))).measured


def test_without_the_binding_one_error_says_what_to_install(monkeypatch):
    """Where libvirt-python is missing, making the driver says so and how to get it; checking settings needs it not."""
    monkeypatch.setitem(sys.modules, "libvirt", None)
    given: dict[str, Any] = {
        "hosts": {"a": {"uri": "qemu:///system"}},
        "images": {"x": {"disk": {"volume": "x"}, "ready": "running"}},
    }
    action_timeout("libvirt", given, None, "vms")
    with pytest.raises(SettingsError, match=r"vms.kind: found 'libvirt', which needs the package libvirt-python \(pip"):
        make_driver("libvirt", given, "vms")


def test_daemons_without_libvirt_do_not_read_its_modules():
    """The registry names the driver without importing it."""
    code = "import sys, leasekit.drivers.registry; print([m for m in sys.modules if 'libvirt' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_slices_have_blocks_of_addresses(virtual, make_unit, tmp_path):
    """Units of one slice of one holder share a block of addresses, others have another, whatever a lease asks for; a
    daemon that is started anew knows them; a teardown and a setup that fails give them back.
    """
    book = tmp_path / "b.json"
    network = {"bridge": "br0", "subnets": ["192.0.2.0/24", "2001:db8::/64"], "block": 8, "book": str(book)}
    driver = driver_of(virtual, network=network)
    alice, bob = {"lease.holder": "alice", "slice.name": "web"}, {"lease.holder": "bob", "slice.name": "web"}
    asked = {"host": "192.0.2.18", "addresses": "192.0.2.18", "network.block": "100"}
    first = await driver.setup(make_unit("p", properties=alice | asked))
    second = await driver.setup(make_unit("q", properties=bob | asked))
    third = await driver.setup(make_unit("r", properties=alice | asked))
    assert first["addresses"] == "192.0.2.10 2001:db8::a"
    assert second["addresses"] == "192.0.2.18 2001:db8::12"
    assert third["addresses"] == "192.0.2.11 2001:db8::b"
    again = driver_of(virtual, network=network)
    assert await again.setup(make_unit("q", properties=bob)) == second
    await again.teardown(make_unit("p", "teardown", 2))
    assert (await again.setup(make_unit("s", properties=alice)))["host"] == "192.0.2.10"
    broken = driver_of(virtual, network=network, ready="ssh", start_timeout="50ms")
    with pytest.raises(DriverError, match="the guest was not up within"):
        await broken.setup(make_unit("t", properties=bob))
    for name in "qrs":
        await again.teardown(make_unit(name, "teardown", 2))
    assert book.read_text() == "{}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block": 8}, "block and book: expected both or none"),
        ({"block": 300, "book": "b"}, "a block of 300 addresses after the first 10 does not fit into 192.0.2.0/24"),
        ({"block": 8, "book": "b", "addresses": {"vm-1": ["192.0.2.7"]}}, "expected none where slices have blocks"),
    ],
)
def test_blocks_that_can_not_be(virtual, change, reason):
    """Faults of the settings of blocks are told before anything is made."""
    with pytest.raises(SettingsError, match=reason):
        virtual.make(network={"bridge": "br0", "subnets": ["192.0.2.0/24"], **change})
