"""An actor that takes other settings while it runs: what goes on, what begins again, and who is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from limited_drivers import limited
from polling import PATIENCE
from runtime_world import UNITS, delegated, make_actor, make_shell, request, running, until
from test_shell_recovery import Gate

from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.protocol.messages import Administer
from leasekit.core.reasons import said
from leasekit.core.steps import Connected
from leasekit.runtime.shell import ActorShell


async def take(shell: ActorShell, driver_of: Any = None, **changes: Any) -> None:
    """Have the actor of ``shell`` go on with other settings, and other drivers if they are said."""
    name, driver_of = shell.actor.name, driver_of or shell.executor.driver_of
    await shell.reload(
        lambda: make_actor(name, **changes), driver_of, inline=True, mapper="", why=said("the file says so")
    )


async def test_a_site_that_gets_smaller_under_its_leases(tmp_path: Path) -> None:
    """A lease keeps the units that it has, its holder hears that one is not in the inventory any more, and then that it
    is again; no unit that is gone is given to anybody.
    """
    guest, site = make_shell("guest", tmp_path), make_shell("site", tmp_path)
    broker = make_shell("broker", tmp_path, make=lambda: make_actor("broker", request_timeout=100))
    async with running(guest, broker, site):
        await delegated(site)
        lease = (await guest.command("lease.request", request(4)))["id"]
        record = guest.actor.leases[lease]
        await until(guest, lambda: record.join == "joined")
        await take(site, units=UNITS[:3])
        await until(guest, lambda: record.reason is not None)
        assert (await guest.query("lease", {"lease": lease}))["reason"] == "unit vm-3: no longer in the inventory"
        assert (record.state, len(record.units)) == ("active", 4)
        await until(site, lambda: [d.units for d in site.actor.issued.given.values() if d.state == "held"] == [3])
        more = (await guest.command("lease.request", request(1)))["id"]
        await until(guest, lambda: guest.actor.leases[more].state == "failed")
        await take(site, units=UNITS)
        await until(guest, lambda: record.reason is None)
        rows = [row for row in await site.log(0, 1000) if row.event == "reloaded"]
        assert len(rows) == 2 and all("the file says so" in row.why for row in rows)


async def test_what_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    """Settings that the store contradicts are refused, and the actor goes on as it was."""
    site, broker = make_shell("site", tmp_path), make_shell("broker", tmp_path)
    async with running(site, broker):
        await delegated(site)
        before = site.actor

        with pytest.raises(LeasekitError, match="unit 'vm-0' is of type 'vm' and of type 'pc'"):
            make = partial(make_actor, "site", units=("vm-0",), type_="pc")
            await site.reload(make, site.executor.driver_of, inline=True, mapper="", why=said("x"))
        assert site.actor is before
        assert [unit["state"] for unit in await site.query("units", {})] == ["free"] * len(UNITS)


async def test_connections_go_on(tmp_path: Path) -> None:
    """The new actor is told who is connected, and who went meanwhile is not among them."""
    site, broker = make_shell("site", tmp_path), make_shell("broker", tmp_path)
    async with running(site, broker):
        await delegated(site)
        site.connected("guest")
        site.disconnected("guest")
        await site.command("unit.disable", {"unit": "vm-1"})
        told: list[Any] = []

        def make() -> Any:
            actor = make_actor("site")
            actor._inputs[Connected] = told.append
            return actor

        await site.reload(make, site.executor.driver_of, inline=True, mapper="", why=said("x"))
        await site.command("unit.disable", {"unit": "vm-0"})
    assert told == [Connected("broker")]


async def test_who_waits_for_an_answer_is_told(tmp_path: Path) -> None:
    """A command that only the actor of before knew is answered: to ask again."""
    site = make_shell("site", tmp_path)
    async with running(site), trio.open_nursery() as nursery:
        sent, refused = trio.Event(), trio.Event()
        # Not with the site's first messages of its own, which may be on their way: the command is not known to it yet.
        site.send = lambda peer, messages: any(isinstance(one, Administer) for one in messages) and sent.set()

        async def ask() -> None:
            with pytest.raises(CommandError, match="site was reloaded before there was an answer: ask again"):
                await site.command("peer.command", {"peer": "broker", "command": "status"})
            refused.set()

        nursery.start_soon(ask)
        with trio.fail_after(PATIENCE):
            await sent.wait()
        await take(site)
        with trio.fail_after(PATIENCE):
            await refused.wait()


async def test_what_runs_goes_on_with_its_driver_and_begins_again_with_another(tmp_path: Path) -> None:
    """A setup that runs is left alone where its driver stays, whatever its limits are by now; where the driver is
    another, it is cancelled and that one does it.
    """
    first, second = Gate(), Gate()
    guest, broker = make_shell("guest", tmp_path), make_shell("broker", tmp_path)
    site = make_shell("site", tmp_path, driver=first, settings={"tick": 60_000})
    async with running(guest, broker, site):
        await delegated(site)
        lease = (await guest.command("lease.request", request(1)))["id"]
        with trio.fail_after(PATIENCE):
            await first.begun.wait()
            same = limited(first, retries=5)
            await take(site, lambda type_: same)
            await trio.testing.wait_all_tasks_blocked()
            assert (len(first.starts), site.executor.counts()["running"]) == (1, 1)
            other = limited(second)
            await take(site, lambda type_: other)
            await second.begun.wait()
        assert second.starts == first.starts, "the same action, by its number"
        second.gate.set()
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")


async def test_holders_hear_once_of_a_unit_that_is_gone(tmp_path: Path) -> None:
    """Another reload, or restart, says nothing more of it."""
    guest, broker, site = (make_shell(name, tmp_path) for name in ("guest", "broker", "site"))
    async with running(guest, broker, site):
        await delegated(site)
        lease = (await guest.command("lease.request", request(2)))["id"]
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")
        await take(site, units=UNITS[:1])
        await until(guest, lambda: guest.actor.leases[lease].reason is not None)
        before = site.actor.leases[lease].update
        await take(site, units=UNITS[:1])
        await site.command("unit.disable", {"unit": "vm-0"})
        assert site.actor.leases[lease].update == before
