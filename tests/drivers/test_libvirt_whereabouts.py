"""Where the libvirt driver looks for units, and what it removes where, over two of libvirt's own test drivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from driver_harnesses import LibvirtHarness
from test_libvirt_driver import NODE

from leasekit.core.drivers import DriverError
from leasekit.core.settings import structure
from leasekit.drivers.libvirt.connection import HostLostError
from leasekit.drivers.libvirt.documents import DomainMachine, kept_xml
from leasekit.drivers.libvirt.place import LibvirtPlace, Whereabouts
from leasekit.drivers.libvirt.plan import make_plan
from leasekit.drivers.libvirt.record import make_record
from leasekit.drivers.libvirt.settings import LibvirtSettings

BASE = f"{LibvirtHarness.PREFIX}vm-1"
NOTE = f"{BASE}~moved-"


@attrs.frozen
class World:
    """Three hosts: the unit's home ``here``, ``there``, and ``gone``, which can't be reached."""

    settings: LibvirtSettings
    places: dict[str, LibvirtPlace]
    units: Whereabouts

    async def left(self) -> dict[str, list[str]]:
        """What there is of units on the hosts that can be reached."""
        return {name: [name for _, _, name in await self.places[name].belongings()] for name in ("here", "there")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    virtual = LibvirtHarness(tmp_path)
    (tmp_path / "there.xml").write_text(NODE)
    hosts = {
        "here": {"uri": "test:///default", "pool": "default-pool"},
        "there": {"uri": f"test://{tmp_path}/there.xml", "pool": "units", "pool_path": "/there"},
        "gone": {"uri": f"qemu+unix:///system?socket={tmp_path}/none"},
    }
    settings = structure(LibvirtSettings, virtual.settings(hosts=hosts), "vms")
    places = {name: LibvirtPlace(name, host, settings) for name, host in settings.hosts.items()}
    yield World(settings, places, Whereabouts(places, settings))
    virtual.close()


async def put(world: World, host: str, make_unit: Any, *, domain: bool = True) -> None:
    """Has a host have something of the unit: its running domain and disk, or only the disk."""
    place = world.places[host]
    await place.volumes.create(f"{BASE}.disk", 1)
    if domain:
        record = make_record(make_plan(make_unit("vm-1"), world.settings), "")
        await place.domains.define(kept_xml(BASE, record, DomainMachine("test")))
        await place.domains.start(BASE)


EMPTY: dict[str, list[str]] = {"here": [], "there": []}


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "note lost"])
async def test_a_unit_is_found_where_it_is(world, make_unit, noted):
    """A unit that was moved is found and removed, its note with it; even if its home knows nothing of it any more."""
    unit = make_unit("vm-1")
    await put(world, "there", make_unit)
    await put(world, "here", make_unit, domain=False)
    if noted:
        await world.places["here"].note_move("vm-1", "there")
        await world.places["here"].note_move("vm-1", "there")
    found = await world.left()
    assert found == {"here": [f"{BASE}.disk", *[f"{NOTE}there"] * noted], "there": [BASE, f"{BASE}.disk"]}
    assert (await world.units.find(unit)).name == "there"
    await world.units.remove(unit)
    assert await world.left() == EMPTY
    assert (await world.units.find(unit)).name == "here"


async def test_what_a_move_left_behind_is_removed(world, make_unit):
    """A unit that stayed at home, or came back, is removed with what a noted host, or one that is none, has of it."""
    unit = make_unit("vm-1")
    for noted in (True, False):
        await put(world, "here", make_unit)
        await put(world, "there", make_unit, domain=False)
        if noted:
            await world.places["here"].note_move("vm-1", "there")
        assert (await world.units.find(unit)).name == "here"
        await world.units.remove(unit)
        assert await world.left() == EMPTY


async def test_a_host_that_may_have_it_is_waited_for(world, make_unit):
    """A unit is not removed, and not taken for gone, while a host that a note names can't be reached; a host of which
    nothing is known holds nobody up.
    """
    unit = make_unit("vm-1")
    home = world.places["here"]
    await put(world, "here", make_unit)
    await world.units.remove(unit)
    assert await world.left() == EMPTY
    await home.note_move("vm-1", "gone")
    with pytest.raises(HostLostError, match="host gone: can't connect"):
        await world.units.find(unit)
    with pytest.raises(HostLostError, match="host gone: can't connect"):
        await world.units.remove(unit)
    assert await world.left() == {"here": [f"{NOTE}gone"], "there": []}
    await put(world, "here", make_unit)
    assert (await world.units.find(unit)).name == "here", "it runs there, so it runs nowhere else"
    await home.domains.stop(BASE)
    with pytest.raises(HostLostError, match="host gone: can't connect"):
        await world.units.find(unit)
    await home.forget_move("vm-1", "gone")
    assert (await world.units.find(unit)).name == "here"
    await world.units.remove(unit)
    assert await world.left() == EMPTY


async def test_a_host_that_the_settings_do_not_name_any_more(world, make_unit):
    """A unit that was moved to a host that is taken from the settings is told of, with where that is written."""
    unit = make_unit("vm-1")
    await world.places["here"].note_move("vm-1", "old")
    for act in (world.units.find, world.units.remove):
        with pytest.raises(
            DriverError, match=rf"unit vm-1 was moved to host 'old', .*{NOTE}old on host here"
        ) as caught:
            await act(unit)
        assert not caught.value.retry


async def test_what_a_host_has_no_more_is_cleared_only_there(world, make_unit):
    """A host that a unit left is cleared, and its note goes; where its domain is, nothing is touched."""
    unit = make_unit("vm-1")
    home = world.places["here"]
    await home.note_move("vm-1", "there")
    await put(world, "there", make_unit)
    await world.units.clear(world.places["there"], unit)
    assert await world.left() == {"here": [f"{NOTE}there"], "there": [BASE, f"{BASE}.disk"]}
    await world.places["there"].domains.remove(BASE)
    await world.units.clear(world.places["there"], unit)
    assert await world.left() == EMPTY
