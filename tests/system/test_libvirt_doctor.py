"""What `leasekit site doctor` says of a real libvirt with the settings that Debian ships, and of what one may lack."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from system.libvirt_host import LibvirtHost
from system.libvirt_world import World, open_world

from leasekit.drivers.registry import examine

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


async def told(world: World, **changes: Any) -> dict[str, str]:
    found = await examine("libvirt", world.settings(**changes), "driver", base=world.folder)
    assert all(one.advice for one in found if one.verdict != "ok")
    return {one.what: f"{one.verdict}: {one.found}" for one in found}


def network(world: World, **changes: Any) -> dict[str, Any]:
    return {**world.settings()["network"], "filter": "clean-traffic", **changes}


async def test_a_host_as_debian_ships_it(world):
    """It has all that units need, which a guest shows that starts and never runs; nothing of it is left."""
    found = await told(world, network=network(world))
    assert [line for line in found.values() if not line.startswith("ok: ")] == []
    assert found["host one: a guest"] == "ok: starts, with disk, console and network card"
    assert found["program for CD-ROM images"].startswith("ok: ") and found["program ssh"].startswith("ok: ")
    assert world.left("leasekit-") == [] == world.host.guests()


async def test_what_keeps_guests_from_starting(world):
    """A bridge that is away, and a virtlogd that does not run, are told before a unit needs them."""
    missing = await told(world, network=network(world, bridge="none0"))
    assert "none0" in missing["host one: a guest"] and missing["host one: a guest"].startswith("missing: ")
    with LibvirtHost(world.folder, "four", world.folder / "cache") as four:
        hosts = {"four": four.settings()}
        assert (await told(world, hosts=hosts))["host four: a guest"].startswith("ok: ")
        virtlogd = four.root / "run/virtlogd.pid"
        os.kill(int(virtlogd.read_text()), signal.SIGKILL)
        said = (await told(world, hosts=hosts))["host four: a guest"]
        assert said.startswith("missing: host four: can't start a guest: ") and "virtlogd" in said
        virtlogd.unlink()
        names = [*four.domains(), *(path.name for path in four.images.iterdir())]
        assert [name for name in names if "trial" in name] == []


async def test_a_pool_that_can_not_be(world):
    """A pool whose folder can't be made is told as such, and not as a host that does not answer."""
    hosts = {"one": world.host.settings(pool="nowhere", pool_path="/proc/nowhere")}
    found = await told(world, hosts=hosts)
    assert found["host one: pool nowhere"].startswith("missing: host one: can't start pool nowhere: ")
    assert "host one" not in found
    world.host.connect().storagePoolLookupByName("nowhere").undefine()


async def test_images_that_are_none(world, monkeypatch: pytest.MonkeyPatch):
    """A disk of another format, a volume that is not in the pool, a server that is down, and no program that makes
    seeds, are found beforehand.
    """
    guest = world.guest
    images = {
        "kernel": guest.image(seed="none", disk=guest.artifact(guest.kernel)),
        "raw": guest.image(seed="none", disk=guest.artifact(guest.qcow2), format="raw"),
        "volume": guest.image(seed="nocloud", disk={"volume": "none.qcow2"}),
        "url": guest.image(seed="none", disk={"url": "http://127.0.0.1:9/disk", "sha256": "0" * 64}),
    }
    monkeypatch.setenv("PATH", str(world.folder))
    found = await told(world, images=images, image="raw")
    assert found["image kernel: disk"] == "missing: image kernel: found no qcow2 file, expected one (format)"
    assert found["image raw: disk"] == "missing: found a qcow2 file, expected a raw one"
    assert "no volume 'none.qcow2'" in found["host one: image volume: disk"]
    assert found["image url: disk"].startswith("missing: image url: can't read http://127.0.0.1:9/disk")
    assert found["program for CD-ROM images"].startswith("missing: none of genisoimage")


async def test_room_for_images(world):
    """A pool that is too small for the images that are to come is found before they are brought."""
    hosts = {"one": world.host.settings(pool="small", pool_path="/var/lib/libvirt/small")}
    big = world.folder / "big"
    with big.open("wb") as file:
        file.truncate(64 * 2**20)
    images = {"big": world.guest.image(seed="none", disk=world.guest.artifact(big), format="raw")}
    found = await told(world, hosts=hosts, images=images, image="big")
    assert found["host one: room for images"].startswith("missing: ")
    big.unlink()
