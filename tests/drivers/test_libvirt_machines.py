"""Machines on hosts that a site decides on, over libvirt's own test driver: where they are, and how they move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_harnesses import LibvirtHarness

from leasekit.core.drivers import SITE, DriverError
from leasekit.drivers.libvirt.connection import HostLostError
from leasekit.drivers.libvirt.driver import LibvirtDriver

MACHINE = "node-2.7"
BASE = f"{LibvirtHarness.PREFIX}{MACHINE}"
NOTE = f"{BASE}~moved-there"
NEEDS = {"capacity.cpu": "4000", "capacity.memory": "4096", "needs.cpu": "1500", "needs.memory": "256"}
HERE, THERE = {"unit.host": "here", **NEEDS}, {"unit.host": "there", **NEEDS}
LEAVES = {**THERE, "unit.leaves": "here"}
NODE = """<node><pool type="dir"><name>units</name><target><path>{path}</path></target>
<volume><name>base</name><capacity>1048576</capacity></volume></pool></node>"""


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[LibvirtHarness]:
    made = LibvirtHarness(tmp_path)
    yield made
    made.close()


def driver_of(virtual: LibvirtHarness, folder: Path, path: str = "/default-pool") -> LibvirtDriver:
    """A driver with two hosts, of which the first takes all units that have no host of their own."""
    (folder / "there.xml").write_text(NODE.format(path=path))
    hosts: dict[str, Any] = {
        "here": {"uri": "test:///default", "pool": "default-pool"},
        "there": {"uri": f"test://{folder}/there.xml", "pool": "units"},
    }
    made = virtual.make(hosts=hosts, network=None, size={"cap": 50}, choices={"memory_mb": [16, 8192]})
    assert isinstance(made, LibvirtDriver)
    return made


async def where(driver: LibvirtDriver) -> set[tuple[str, str]]:
    """What there is of the machine, by host."""
    return {(one.host, one.name.removeprefix(BASE)) for one in await driver.orphans([]) if one.unit == MACHINE}


async def test_a_machine_is_on_its_host(virtual, make_unit, tmp_path):
    """It is set up, probed and torn down on the host that its site has it on, with what it needs; a whole host is on
    itself, with all that it has. What is left of a machine that nobody knows goes, too.
    """
    driver = driver_of(virtual, tmp_path)
    made = await driver.setup(make_unit(MACHINE, properties=THERE))
    assert made["console"] == f"there/{BASE}"
    probed = await driver.probe(make_unit(MACHINE, "probe", properties=THERE))
    assert (probed.state, probed.detail) == ("up", "running on host there")
    assert (probed.measured["vcpus"], probed.measured["memory_bytes"]) == (2, 256 * 2**20)
    assert await where(driver) == {("there", ""), ("there", ".disk")}
    await driver.teardown(make_unit(MACHINE, "teardown", 2, properties=THERE))
    assert await where(driver) == set()
    whole = {key: text for key, text in NEEDS.items() if key.startswith("capacity.")}
    assert (await driver.setup(make_unit("there", properties=whole)))["console"].startswith("there/")
    probed = await driver.probe(make_unit("there", "probe", properties=whole))
    assert (probed.measured["vcpus"], probed.measured["memory_bytes"]) == (4, 4096 * 2**20)
    await driver.setup(make_unit(MACHINE, number=3, properties=THERE))
    await driver.teardown(make_unit(MACHINE, "teardown", 9))
    assert await where(driver) == set()


async def test_a_host_that_the_driver_does_not_know(virtual, make_unit, tmp_path):
    """It is the site's fault, and told with the hosts that there are, whether a machine is to be there or to move."""
    driver = driver_of(virtual, tmp_path)
    await driver.setup(make_unit(MACHINE, properties=HERE))
    expected = r"hosts: unit node-2.\d is to be on 'elsewhere', expected one of: here, there"
    elsewhere = {**NEEDS, "unit.host": "elsewhere"}
    for act, unit in (
        (driver.setup, make_unit("node-2.8", properties=elsewhere)),
        (driver.modify, make_unit(MACHINE, "modify", 2, properties={**elsewhere, "unit.leaves": "here"})),
    ):
        with pytest.raises(DriverError, match=expected) as caught:
            await act(unit)
        assert (caught.value.blame, caught.value.retry) == (SITE, False)
    assert await where(driver) == {("here", ""), ("here", ".disk")}


async def test_nobody_but_the_site_moves_a_machine(virtual, make_unit, tmp_path):
    """An operator can't: its place on the other host is not planned."""
    driver = driver_of(virtual, tmp_path)
    await driver.setup(make_unit(MACHINE, properties=HERE))
    with pytest.raises(DriverError, match=f"unit {MACHINE}: its site's mapper says on which host it is") as caught:
        await driver.operate(make_unit(MACHINE, "operate", properties=HERE), "migrate", {"host": "there"})
    assert not caught.value.retry


@pytest.mark.parametrize("path", ["/default-pool", "/elsewhere"])
async def test_a_move_that_fails_leaves_the_machine_where_it_was(virtual, make_unit, tmp_path, path):
    """Nothing of it is at the other host, whether that can't take it at all, or fails at it half way."""
    driver = driver_of(virtual, tmp_path, path)
    await driver.setup(make_unit(MACHINE, properties=HERE))
    reason = "units move only between hosts" if path == "/elsewhere" else "can't move domain .* not supported"
    for _ in range(2):
        with pytest.raises(DriverError, match=reason):
            await driver.modify(make_unit(MACHINE, "modify", 2, properties=LEAVES))
        assert await where(driver) == {("here", ""), ("here", ".disk")}
        assert (await driver.probe(make_unit(MACHINE, "probe", properties=HERE))).detail == "running on host here"


async def test_a_move_that_was_done_is_done(virtual, make_unit, tmp_path):
    """A daemon that was killed when a machine had moved, and is told to move it again, finds it there, and removes
    what its old host has of it, and the note of where it went.
    """
    driver = driver_of(virtual, tmp_path)
    await driver.setup(make_unit(MACHINE, properties=THERE))
    for name in (NOTE, f"{BASE}.disk"):
        virtual.pool.createXML(f"<volume><name>{name}</name><capacity>1</capacity></volume>", 0)
    assert (await driver.probe(make_unit(MACHINE, "probe", properties=LEAVES))).detail == "running on host there"
    for number in (2, 2):
        moved = await driver.modify(make_unit(MACHINE, "modify", number, properties=LEAVES))
        assert moved["console"] == f"there/{BASE}"
        assert await where(driver) == {("there", ""), ("there", ".disk")}
    assert (await driver.probe(make_unit(MACHINE, "probe", properties=THERE))).detail == "running on host there"


@pytest.mark.parametrize("over", [True, False])
async def test_a_connection_that_is_lost_as_a_move_ends(virtual, make_unit, tmp_path, monkeypatch, over):
    """Both hosts are asked which of them has the machine: a move that was over is done, another one is tried again."""
    driver = driver_of(virtual, tmp_path)
    await driver.setup(make_unit(MACHINE, properties=HERE))

    async def lost(source: Any, target: Any, name: str, *, copy_disk: bool) -> None:
        if over:  # libvirt's test driver can't migrate
            described = await source.look("x", lambda connection: connection.lookupByName(name).XMLDesc(0))
            await source.look("x", lambda connection: _end(connection.lookupByName(name)))
            await target.look("x", lambda connection: connection.defineXML(described).create())
        raise HostLostError("host here: the connection broke")

    monkeypatch.setattr("leasekit.drivers.libvirt.driver.migrate", lost)
    if over:
        moved = await driver.modify(make_unit(MACHINE, "modify", 2, properties=LEAVES))
        assert moved["console"] == f"there/{BASE}"
        assert await where(driver) == {("there", ""), ("there", ".disk")}
    else:
        with pytest.raises(HostLostError):
            await driver.modify(make_unit(MACHINE, "modify", 2, properties=LEAVES))
        assert ("here", "") in await where(driver)


def _end(domain: Any) -> None:
    domain.destroy()
    domain.undefine()


async def test_what_an_old_host_could_not_remove_goes_with_the_machine(virtual, make_unit, tmp_path):
    """Files and notes on a host that was its home once."""
    driver = driver_of(virtual, tmp_path)
    await driver.setup(make_unit(MACHINE, properties=THERE))
    virtual.pool.createXML(f"<volume><name>{NOTE}</name><capacity>1</capacity></volume>", 0)
    await driver.teardown(make_unit(MACHINE, "teardown", 2, properties=THERE))
    assert await where(driver) == set()
