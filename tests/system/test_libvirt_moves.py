"""Migrations of real guests that do not come to a good end: what becomes of the guest, and what is left where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from system.libvirt_host import LibvirtHost, another_host
from system.libvirt_world import World, kill, open_world, start_child
from system.system_waits import soon, wait_until

from leasekit.core.drivers import DriverError
from leasekit.core.properties import Properties
from leasekit.drivers.libvirt.place import Whereabouts

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt")

NAME = "leasekit-move-1"
NOTE = f"{NAME}~moved-two"
SLOW = 1
"""MiB in a second that a migration may send: with that it does not end while a test looks at it."""
FAST = 1000
WRITES = "(while :; do dd if=/dev/urandom of=/tmp/noise bs=1M count=8; sleep 1; done) </dev/null >/dev/null 2>&1 &"


@attrs.frozen
class Hosts:
    """Two hosts, and what the driver's settings say of them."""

    world: World
    two: LibvirtHost
    settings: dict[str, dict[str, Any]]

    def driver(self, **changes: Any) -> Any:
        return self.world.driver(hosts=self.settings, **changes)

    def left(self, host: LibvirtHost) -> list[str]:
        """Domains and files of the unit on a host."""
        files = [path.name for path in host.images.iterdir()]
        return sorted({name for name in host.domains() + files if "move-" in name})

    def is_moving(self) -> bool:
        """Whether memory is on its way from the first host."""
        domain = self.world.host.connect().lookupByName(NAME)
        return bool(domain.isActive()) and domain.jobInfo()[0] != 0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with open_world() as world, LibvirtHost(world.folder, "two", world.folder / "cache", another_host()) as two:
        two.count_up()
        settings = {
            "one": world.host.settings(migration="tcp://127.0.0.1"),
            "two": two.settings(migration="tcp://127.0.0.1"),
        }
        yield Hosts(world, two, settings)


async def guest(hosts: Hosts, *, slow: bool) -> Properties:
    """A guest that is up on the first host, and with ``slow`` writes to its memory faster than it may be sent."""
    properties = await hosts.driver().setup(hosts.world.unit("move-1", image="disk"))
    if slow:
        hosts.world.ssh(properties, WRITES)
        hosts.world.host.connect().lookupByName(NAME).migrateSetMaxSpeed(SLOW)
    return properties


async def until_moving(hosts: Hosts) -> None:
    await trio.to_thread.run_sync(soon, hosts.is_moving)


async def test_a_daemon_killed_while_a_guest_moves(hosts):
    """The guest goes on where it was, its home knows where to look, and its teardown leaves nothing on either host:
    no files with its keys either.
    """
    world, unit = hosts.world, hosts.world.unit("move-1", "operate", image="disk")
    await guest(hosts, slow=True)
    process = start_child(world, attrs.evolve(unit, op="operate"), "migrate", {"host": "two"}, hosts=hosts.settings)
    soon(hosts.is_moving)
    assert NOTE in hosts.left(world.host)
    kill(process)
    wait_until("its end", lambda: "it moves" if hosts.is_moving() else "")
    driver = hosts.driver()
    assert (await driver.probe(unit)).detail == "running on host one"
    assert f"{NAME}.seed" in hosts.left(hosts.two)
    await driver.teardown(world.unit("move-1", "teardown", 2))
    assert (hosts.left(world.host), hosts.left(hosts.two)) == ([], [])


async def test_a_daemon_killed_when_a_guest_has_moved(hosts, monkeypatch):
    """What a daemon did not come to remove at the host that a guest left goes with the unit, whichever way it moved;
    keys are overwritten even if the site has disks not wiped.
    """
    world, unit = hosts.world, hosts.world.unit("move-1", "operate", image="sector")
    driver = hosts.driver(wipe=False)
    await driver.setup(world.unit("move-1", image="sector"))
    seed, there = world.folder / "seed", hosts.two.images / f"{NAME}.seed"
    os.link(world.host.images / f"{NAME}.seed", seed)
    assert seed.read_bytes().strip(b"\0")
    await driver.operate(unit, "migrate", {"host": "two"})
    assert not seed.read_bytes().strip(b"\0")
    assert hosts.left(world.host) == [NOTE]

    async def killed(*_: object) -> None:
        raise RuntimeError("killed")

    seed.unlink()
    os.link(there, seed)
    with monkeypatch.context() as patch:
        patch.setattr(Whereabouts, "clear", killed)
        with pytest.raises(RuntimeError, match="killed"):
            await driver.operate(unit, "migrate", {"host": "one"})
    assert hosts.left(hosts.two) != [] and NAME in world.host.domains()
    later = hosts.driver(wipe=False)
    assert (await later.probe(unit)).detail == "running on host one"
    await later.teardown(world.unit("move-1", "teardown", 2))
    assert not seed.read_bytes().strip(b"\0")
    assert (hosts.left(world.host), hosts.left(hosts.two)) == ([], [])


async def test_a_machine_is_moved_again_when_its_daemon_was_killed(hosts):
    """The move from host to host that its site had begun is done by the next daemon, which finds the guest where it
    was; its old host keeps nothing of it, and no note.
    """
    world = hosts.world
    here = {"image": "disk", "needs.cpu": "1000", "needs.memory": "192", "unit.host": "one"}
    there = {**here, "unit.host": "two"}
    properties = await hosts.driver().setup(world.unit("move-1", **here))
    world.ssh(properties, WRITES)
    domain = world.host.connect().lookupByName(NAME)
    domain.migrateSetMaxSpeed(SLOW)
    moving = world.unit("move-1", "modify", 2, **there, **{"unit.leaves": "one"})
    process = start_child(world, moving, hosts=hosts.settings)
    soon(hosts.is_moving)
    kill(process)
    wait_until("its end", lambda: "it moves" if hosts.is_moving() or NAME in hosts.two.domains() else "")
    domain.migrateSetMaxSpeed(FAST)
    driver = hosts.driver()
    assert (await driver.probe(moving)).detail == "running on host one"
    await driver.modify(moving)
    assert hosts.left(world.host) == []
    assert (await driver.probe(world.unit("move-1", "probe", **there))).detail == "running on host two"
    assert world.ssh(properties, "hostname").strip() == "move-1"
    await driver.teardown(world.unit("move-1", "teardown", 3, **there))
    assert (hosts.left(world.host), hosts.left(hosts.two)) == ([], [])


async def test_a_move_that_is_cancelled(hosts):
    """A migration that a guest would make endless ends when it is cancelled, and the guest stays where it was; the end
    of its lease ends it, too.
    """
    world, unit = hosts.world, hosts.world.unit("move-1", "operate", image="disk")
    properties, driver = await guest(hosts, slow=True), hosts.driver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.operate, unit, "migrate", {"host": "two"})
        await until_moving(hosts)
        nursery.cancel_scope.cancel()
    assert hosts.left(hosts.two) == [] and NOTE not in hosts.left(world.host)
    assert (await driver.probe(unit)).detail == "running on host one"
    assert world.ssh(properties, "hostname").strip() == "move-1"
    refused = []

    async def move() -> None:
        with pytest.raises(DriverError, match="unit move-1 is torn down, so it does not move") as caught:
            await driver.operate(unit, "migrate", {"host": "two"})
        refused.append(caught.value.retry)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        await until_moving(hosts)
        await driver.teardown(world.unit("move-1", "teardown", 2))
    assert refused == [False]
    assert (hosts.left(world.host), hosts.left(hosts.two)) == ([], [])
