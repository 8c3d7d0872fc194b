"""A site, a broker and a guest made by hand, and shells for them: what the tests of the runtime share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import trio
from limited_drivers import limited
from polling import PATIENCE

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.config.tables import ShellSettings
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.core.drivers import Driver
from leasekit.core.mappers import Assign, AuthorityCycle, BrokerCycle, Grant, Release
from leasekit.core.schema import Store
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.logs import UnitLogs
from leasekit.runtime.shell import ActorShell
from leasekit.stores.memory import MemoryStore

ROLES = {"site": "authority", "broker": "broker", "guest": "guest"}
KEYS = {name: Keypair(bytes([number]) * 32) for number, name in enumerate(ROLES, start=1)}
UNITS = tuple(f"vm-{number}" for number in range(12))


class GrantAll:
    """A broker's mapper that grants what is asked for from the first source that has it."""

    inline = True

    def allocate(self, cycle: BrokerCycle) -> Iterable[Grant]:
        for request in cycle.requests:
            for source in cycle.sources(request.type):
                yield Grant(request.lease, source.id, request.units, request.term)
                break


class TakeFirst:
    """A site's mapper that takes the first free units."""

    inline = True

    def assign(self, cycle: AuthorityCycle) -> Iterable[Assign | Release]:
        taken: set[str] = set()
        for demand in cycle.demands:
            if demand.units < 0:
                yield Release(demand.lease, demand.held[demand.units :])
                continue
            free = [u.id for u in islice((u for u in cycle.free(demand.type) if u.id not in taken), demand.units)]
            taken.update(free)
            yield Assign(demand.lease, tuple(free))


class Nothing:
    """A guest's mapper that leaves everything to the operator."""

    inline = True

    def plan(self, cycle: object) -> tuple[()]:
        return ()


def peers_of(name: str) -> list[Peer]:
    """All actors but ``name``."""
    return [Peer(name=other, key=KEYS[other].public, role=role) for other, role in ROLES.items() if other != name]


def make_actor(
    name: str, *, mapper: Any = None, units: tuple[str, ...] = UNITS, type_: str = "vm", **settings: Any
) -> Actor:
    """The actor called ``name``, without state."""
    common = (name, KEYS[name], ED25519, peers_of(name))
    if name == "site":
        return Authority(
            *common,
            mapper or TakeFirst(),
            AuthoritySettings(
                inventory=(UnitGroup(type=type_, names=units),),
                delegations=(DelegationSpec(broker="broker", type=type_, units=len(units)),),
                **settings,
            ),
        )
    if name == "broker":
        return Broker(*common, mapper or GrantAll(), BrokerSettings(**settings))
    return ServiceManager(*common, mapper or Nothing(), GuestSettings(**settings))


def make_shell(
    name: str,
    folder: Path,
    *,
    store: Store | None = None,
    driver: Driver | None = None,
    mapper: Any = None,
    **changes: Any,
) -> ActorShell:
    """A shell without sockets."""
    settings = changes.pop("settings", {})
    bound = limited(driver or NullDriver(NullSettings()), retries=0)
    values: dict[str, Any] = {
        "driver_of": lambda type_: bound,
        "unit_logs": UnitLogs(folder / "units", lambda: 0),
        "inline": getattr(mapper, "inline", True),
        "settings": ShellSettings(**{"grace": 1_000, **settings}),
    }
    make: Callable[[], Actor] = changes.pop("make", lambda: make_actor(name, mapper=mapper))
    return ActorShell(make, store or MemoryStore(), **{**values, **changes})


@asynccontextmanager
async def running(*shells: ActorShell) -> AsyncIterator[None]:
    """Run shells, joined to one another, until the block ends; then stop them."""
    by_name = {shell.actor.name: shell for shell in shells}
    async with trio.open_nursery() as nursery:
        for shell in shells:
            await nursery.start(shell.run)
        for shell in shells:
            shell.send = _carrier(nursery, shell.actor.name, by_name)
            for other in by_name:
                if other != shell.actor.name:
                    shell.connected(other)
        yield
        for shell in shells:
            shell.stop()


def _carrier(nursery: trio.Nursery, sender: str, by_name: Mapping[str, ActorShell]) -> Callable[[str, Any], None]:
    def send(peer: str, messages: Any) -> None:
        if peer in by_name:
            nursery.start_soon(by_name[peer].receive, sender, messages)

    return send


async def until(shell: ActorShell, check: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until ``check`` holds, looking again whenever the actor has written a transition."""
    with trio.fail_after(seconds), shell.transitions.watch() as watcher:
        while not check():
            await watcher.take()


async def delegated(site: ActorShell) -> None:
    """Wait until the broker has taken what the site delegates."""
    records = site.actor.issued.given
    await until(site, lambda: bool(records) and all(record.state == "held" for record in records.values()))


def request(units: int = 2, seconds: float = 600, **more: Any) -> dict[str, Any]:
    """Arguments of ``lease.request`` for a lease that begins now."""
    import time

    now = int(time.time() * 1000)
    return {"type": "vm", "units": units, "term": [now, now + int(seconds * 1000)], **more}
