"""Guests of a real Xen that move while they run, by ``make test-xen``.

Both hosts of these tests are one control domain, which logs in to itself: what goes over that login, and what `xl` does
at either end, is the same as between two machines.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from system.real_xen import RealXen
from system.system_waits import wait_until
from system.xen_world import Watch, driver_of, settings, unit

from leasekit.core.drivers import DriverError
from leasekit.drivers.registry import examine
from leasekit.drivers.xen.driver import XenDriver

pytest_plugins = ("system.xen_fixtures",)

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
BEATS = "i=0; while :; do echo $((i += 1)); sleep 0.2; done"
MOVES_WITHIN = 300.0


class Beats:
    """What a guest says through a login that stays open: a number five times a second."""

    def __init__(self, stdout: trio.abc.ReceiveStream) -> None:
        self._stdout = stdout
        self.longest = 0.0
        """The longest silence between two of them, in seconds."""
        self.count = 0

    async def listen(self) -> None:
        """Hears them until the login ends."""
        last = trio.current_time()
        async for _ in self._stdout:
            now = trio.current_time()
            self.longest, last = max(self.longest, now - last), now
            self.count += 1

    async def next(self) -> None:
        """Waits for the next one."""
        heard = self.count
        with trio.fail_after(60):
            while self.count == heard:
                await trio.sleep(0.02)


@asynccontextmanager
async def beats(xen: RealXen, told: dict[str, str]) -> AsyncIterator[Beats]:
    """A guest's beats, from one login for all of them."""
    words = [*xen.login(told["host"], told["host_key"]), BEATS]
    process = await trio.lowlevel.open_process(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    found = Beats(process.stdout)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.listen)
            await found.next()
            yield found
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def driver(xen: RealXen, **changes: Any) -> XenDriver:
    """One that knows the control domain by two names."""
    hosts = {"one": xen.host(), "two": xen.host(units=[], migration="root@127.0.0.1")}
    return driver_of(xen, hosts=hosts, shared=True, **changes)


def names(xen: RealXen) -> set[str]:
    """The domains that are there."""
    return {line.split()[0] for line in xen.run("xl list").splitlines()[2:]}


async def incoming(xen: RealXen) -> None:
    """Waits until there is a domain that a guest is moved into."""
    with trio.fail_after(MOVES_WITHIN):
        while "leasekit-u1--incoming" not in await trio.to_thread.run_sync(names, xen):
            await trio.sleep(0.2)


async def test_a_guest_moves_while_it_runs(xen):
    """A guest that moves goes on as it was, with its disk and cap, and those who are logged in to it stay so."""
    moving = unit(xen, image="moving", cap="150")
    told = await driver(xen).setup(moving)
    xen.inside(told, "printf changed_ >/dev/xvda; sync")
    boot, domain = xen.inside(told, BOOT_ID), xen.run("xl domid leasekit-u1")
    moved: dict[str, str] = {}

    async def move() -> None:
        moved.update(await driver(xen).operate(moving, "migrate", {"host": "two"}))

    async with beats(xen, told) as heard:
        with Watch(xen, "live migration"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(move)
                await incoming(xen)
                await heard.next()
                assert not moved, "it had moved before it was seen to run while it moves"
        await heard.next()
    xen.seconds["live migration: longest silence"] = heard.longest
    assert moved == {**told, "console": "two/leasekit-u1"}
    assert names(xen) == {"leasekit-u1"}
    assert xen.run("xl domid leasekit-u1") != domain
    assert xen.inside(told, BOOT_ID) == boot
    assert xen.inside(told, "head -c 8 /dev/xvda") == "changed_"
    assert "150" in xen.run("xl sched-credit2 -d leasekit-u1").split()
    probed = await driver(xen).probe(unit(xen, op="probe"))
    assert (probed.state, probed.detail.split()[-2:]) == ("up", ["host", "one"])
    await driver(xen).teardown(unit(xen, op="teardown", number=2))


async def test_a_move_that_nobody_waits_for(xen):
    """An authority that ends while a guest moves finds it afterwards, running, wherever it is; and it can be moved."""
    moving = unit(xen, image="moving")
    told = await driver(xen).setup(moving)
    boot = xen.inside(told, BOOT_ID)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver(xen).operate, moving, "migrate", {"host": "two"})
        await incoming(xen)
        nursery.cancel_scope.cancel()
    wait_until("the end of the move", lambda: names(xen) != {"leasekit-u1"}, MOVES_WITHIN)
    assert await driver(xen).setup(moving) == told
    assert (await driver(xen).probe(unit(xen, op="probe"))).state == "up"
    assert xen.inside(told, BOOT_ID) == boot
    await driver(xen).teardown(unit(xen, op="teardown", number=2))


async def test_a_guest_that_can_not_move_stays(xen):
    """Where `xl` can't move a guest it goes on where it was, and the reason is told. (Debian's Xen is built without
    shadow paging, without which it keeps no log of the pages that a paravirtualized guest writes to.)
    """
    told = await driver(xen).setup(unit(xen))
    before = xen.inside(told, BOOT_ID)
    with pytest.raises(DriverError, match=r"can't move domain leasekit-u1 to host two: .* to enable logdirty"):
        await driver(xen).operate(unit(xen), "migrate", {"host": "two"})
    assert await driver(xen).setup(unit(xen)) == told
    assert xen.inside(told, BOOT_ID) == before
    await driver(xen).teardown(unit(xen, op="teardown", number=2))


async def test_the_doctor_knows_what_can_move(xen):
    """The doctor says which types of guests can move here, as they do, and whether hosts can log in to each other."""
    hosts = {"one": xen.host(), "two": xen.host(units=[], migration="root@127.0.0.1")}
    found = await examine("xen", settings(xen, hosts=hosts, shared=True), "xen")
    verdicts = {finding.what: finding.verdict for finding in found if "one: " in finding.what}
    assert verdicts["host one: moving pv guests"] == "doubtful"
    assert verdicts["host one: moving pvh guests"] == "ok"
    assert verdicts["host one: handing over to host two"] == "ok"
