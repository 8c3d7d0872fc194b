"""What must not happen around a commit that fails and an actor that is made anew: actions before the commit, decisions
of a turn that the new actor never asked for, and a second start of what is running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from polling import PATIENCE, poll
from runtime_world import GrantAll, delegated, make_actor, make_shell, request, running, until

from leasekit.actors.base import Actor
from leasekit.core.drivers import UnitContext
from leasekit.core.errors import CommandError
from leasekit.core.mappers import BrokerCycle, Grant, Wake
from leasekit.core.properties import Properties
from leasekit.core.schema import Change, StoreError
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.shell import STORE_TROUBLE, ActorShell
from leasekit.stores.memory import MemoryStore


class FullStore(MemoryStore):
    """A store that has no room while it is ``full``."""

    full = False

    def commit(self, changes: Sequence[Change]) -> None:
        if self.full:
            raise StoreError("no room")
        super().commit(changes)


class Gate(NullDriver):
    """Sets units up behind a gate, and notes each start."""

    def __init__(self) -> None:
        super().__init__(NullSettings())
        self.gate, self.begun = trio.Event(), trio.Event()
        self.starts: list[int] = []

    async def setup(self, unit: UnitContext) -> Properties:
        self.starts.append(unit.number)
        self.begun.set()
        await self.gate.wait()
        return {}


class Held(GrantAll):
    """A broker's mapper that asks for another turn at once. In later ones it decides, and answers when it is let go."""

    inline = False

    def __init__(self) -> None:
        self.go = [threading.Event() for _ in range(2)]
        self.begun = [trio.Event() for _ in range(2)]
        self.token = trio.lowlevel.current_trio_token()
        self.calls = 0

    def allocate(self, cycle: BrokerCycle) -> Iterable[Grant | Wake]:
        if cycle.requests and not self.calls:
            self.calls = 1
            return [Wake(cycle.now + 1)]
        decisions: list[Grant | Wake] = list(super().allocate(cycle))
        if decisions:
            call, self.calls = self.calls - 1, self.calls + 1
            self.token.run_sync_soon(self.begun[call].set)
            self.go[call].wait(10)
        return decisions


class TurnEnds(trio.abc.Instrument):
    """Tells when a turn has ended, and all that its shell does with it."""

    def __init__(self) -> None:
        self.ended = trio.Event()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("ActorShell._run_turn"):
            self.ended.set()


def with_a_bug(name: str, **changes: Any) -> Any:
    """Makes the actor ``name``, the first one with a bug in ``peer.remove``."""
    made: list[Actor] = []

    def fail(arguments: Mapping[str, Any]) -> Any:
        raise ZeroDivisionError("a bug")

    def make() -> Actor:
        actor = make_actor(name, **changes)
        if not made:
            actor.dispatch.commands["peer.remove"] = fail
        made.append(actor)
        return actor

    return make


async def meet_the_bug(shell: ActorShell) -> None:
    """Have the actor made anew from its store."""
    before = shell.actor
    with pytest.raises(CommandError, match="internal error: ZeroDivisionError"):
        await shell.command("peer.remove", {"peer": "nobody"})
    assert shell.actor is not before


async def test_starts_no_action_before_the_commit(tmp_path: Path) -> None:
    """A unit's setup begins when the lease's row is durable: not while the store has no room."""
    driver, store = Gate(), FullStore()
    driver.gate.set()
    settings = {"store_retry_first": 10}
    guest, broker, site = (
        make_shell("guest", tmp_path),
        make_shell("broker", tmp_path),
        make_shell("site", tmp_path, store=store, driver=driver, settings=settings),
    )
    async with running(guest, broker, site):
        await delegated(site)
        await site.query("units", {})
        store.full = True
        lease = (await guest.command("lease.request", request(1)))["id"]
        await poll(lambda: site.state == STORE_TROUBLE)
        assert [unit.state for unit in site.actor.units if unit.lease] == ["setup"], "it is decided, and not durable"
        await trio.testing.wait_all_tasks_blocked()
        assert driver.starts == []
        store.full = False
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")
    assert len(driver.starts) == 1


async def test_the_turn_of_an_actor_that_was_made_anew_is_dropped(tmp_path: Path) -> None:
    """What a mapper decides for an actor that is gone is nothing to the new one, whose turns may have the same numbers:
    a turn that followed from time alone has left no trace in the store.
    """
    mapper, turns = Held(), TurnEnds()
    guest, site = make_shell("guest", tmp_path), make_shell("site", tmp_path)
    broker = make_shell("broker", tmp_path, mapper=mapper, make=with_a_bug("broker", mapper=mapper))
    async with running(guest, broker, site):
        await delegated(site)
        lease = (await guest.command("lease.request", request(1, properties={"deferrable": "true"})))["id"]
        with trio.fail_after(PATIENCE):
            await mapper.begun[0].wait()
            await meet_the_bug(broker)
            await mapper.begun[1].wait()
            trio.lowlevel.add_instrument(turns)
            mapper.go[0].set()
            await turns.ended.wait()
            trio.lowlevel.remove_instrument(turns)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.actor.leases[lease].state == "nascent", "the new actor's own turn has not ended"
        mapper.go[1].set()
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")
    assert mapper.calls == 3


async def test_what_runs_is_not_started_again_by_a_recovery(tmp_path: Path) -> None:
    """An actor that is made anew asks for what was under way by its number: the setup that runs goes on, once."""
    driver = Gate()
    guest, broker = make_shell("guest", tmp_path), make_shell("broker", tmp_path)
    site = make_shell("site", tmp_path, driver=driver, make=with_a_bug("site"), settings={"tick": 60_000})
    async with running(guest, broker, site):
        await delegated(site)
        lease = (await guest.command("lease.request", request(1)))["id"]
        with trio.fail_after(PATIENCE):
            await driver.begun.wait()
        await meet_the_bug(site)
        await poll(lambda: site.counts.actions_started >= 2)
        assert len(driver.starts) == 1
        assert site.executor.counts() == {"running": 1, "waiting": 0}, "it was not cancelled either"
        driver.gate.set()
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")
    assert len(driver.starts) == 1
