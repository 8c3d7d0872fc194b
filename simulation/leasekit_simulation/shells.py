"""Worlds in the daemon's own shell: actors under :class:`leasekit.runtime.shell.ActorShell`, on trio's mock clock.

The fault simulator has a shell of its own. Here what a daemon runs is at fault: stores that refuse, drivers that take
their time or fail, mappers that run apart from their actors, messages that are late or lost, actors that raise, daemons
that are ended and started again, or take their files anew, in some worlds on SQLite stores; units that are drained, and
come back. Checkers look at what passes between a shell and the actor, store and drivers that it
has. A world passes in virtual time; it need not be the same to the byte each time, for trio's scheduler is not.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import attrs
import trio
import trio.testing
from trio._core import _run as scheduler

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.config.build import BoundDriver
from leasekit.config.tables import DriverSpec, ShellSettings
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import GuestUnit, SiteUnit
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.reasons import said
from leasekit.core.schema import Change, Store, StoreError
from leasekit.core.steps import Input, Tick, Turn, TurnDone
from leasekit.core.time import MINUTE, SECOND, Instant
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.runtime import shell as runtime_shell
from leasekit.runtime.clock import RealClock
from leasekit.runtime.logs import UnitLogs
from leasekit.runtime.shell import ActorShell, ActorStoppedError
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

ROLES: Final[Mapping[str, str]] = {"site": "authority", "broker": "broker", "guest": "guest"}
UNITS: Final = tuple(f"vm-{number}" for number in range(6))
KINDS: Final[Mapping[str, type[SiteUnit | GuestUnit]]] = {"site": SiteUnit, "broker": SiteUnit, "guest": GuestUnit}
"""What the rows of each one's units are; a broker has none."""
BEGIN: Final = 1_700_000_000
"""What the mock clock's 0 is, in seconds since 1970."""
OPERATIONS: Final = 60
KINDS_OF_OPERATIONS: Final = (*["request"] * 5, "extend", "modify", "close", "end", "reload", "drain", "undrain")
SETTLED: Final = 1800
"""How many seconds after the last operation all leases are over."""


class Bug(Exception):
    """An actor raises, as none should."""


class Findings(list[str]):
    """What was wrong. A shell takes what its actor or its drivers raise for theirs, so that none of it is raised."""

    def must(self, fine: bool, text: str) -> None:
        """Write down what is not fine."""
        if not fine:
            self.append(text)


class Watched:
    """An actor that takes only the ends of its own turns, and raises now and then before it takes anything."""

    def __init__(self, actor: Actor, found: Findings, rng: Random) -> None:
        self.actor = actor
        self.name = actor.name
        self.is_calm = False
        self._found, self._rng = found, rng
        self._turns: set[int] = set()

    def step(self, one: Input) -> None:
        """As the actor's. Raises :class:`Bug`."""
        if isinstance(one, TurnDone):
            self._found.must(one.number in self._turns, f"{self.name} hears of turn {one.number}, which is not its own")
        if not isinstance(one, Tick) and not self.is_calm and self._rng.random() < 0.01:
            raise Bug(self.name)
        self.actor.step(one)

    def turn(self) -> Turn | None:
        """As the actor's."""
        turn = self.actor.turn()
        if turn is not None:
            self._turns.add(turn.number)
        return turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)


class FullStore:
    """A store, in memory or in a file, that has no room for a while, now and then, and remembers the last action of
    each unit.
    """

    def __init__(self, kind: type[SiteUnit | GuestUnit], rng: Random, path: Path | None) -> None:
        self._path = path
        self._store: Store = MemoryStore() if path is None else SqliteStore(path)
        self.last_actions: dict[str, float] = {}
        self._kind = kind
        self.is_calm = False
        self._rng = rng
        self._full_until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open_again(self) -> None:
        """As a daemon that starts: a file is closed, and read anew."""
        if self._path is not None:
            self._store.close()
            self._store = SqliteStore(self._path)

    def commit(self, changes: Sequence[Change]) -> None:
        """As the store's. Raises ``StoreError`` while there is no room."""
        now = trio.current_time()
        if not self.is_calm and now >= self._full_until and self._rng.random() < 0.02:
            self._full_until = now + self._rng.choice((0.5, 3, 20))
        if now < self._full_until and not self.is_calm:
            raise StoreError("no space left on device")
        self._store.commit(changes)
        for table, key, row in changes:
            if table == "units":  # a guest may let a unit leave, and have its lease end, in one step
                last = math.inf if row is None else self._kind.from_row(row).action
                self.last_actions[key] = max(self.last_actions.get(key, 0), last)


class WatchedDriver(NullDriver):
    """A driver that takes its time, fails now and then, and looks whether it should have been called."""

    def __init__(self, store: FullStore, found: Findings, rng: Random) -> None:
        super().__init__(NullSettings())
        self._store, self._found, self._rng = store, found, rng
        self._running: set[str] = set()
        self.cancelled: dict[str, int] = {}

    async def _act(self, op: str, unit: UnitContext) -> Any:
        must, stored = self._found.must, self._store.last_actions.get(unit.unit, 0)
        must(stored >= unit.number, f"{op} of {unit.unit} begins as action {unit.number}, stored is {stored}")
        must(unit.unit not in self._running, f"{op} of {unit.unit} begins while another action runs there")
        must(self.cancelled.get(unit.unit) != unit.number, f"{op} of {unit.unit} was cut off to be begun again")
        self._running.add(unit.unit)
        try:
            await trio.sleep(self._rng.choice((0, 0.01, 2, 20)))
        except trio.Cancelled:
            self.cancelled[unit.unit] = unit.number
            raise
        finally:
            self._running.discard(unit.unit)
        if not self._store.is_calm and self._rng.random() < 0.05:
            raise DriverError("it broke", retry=False)
        return self.model.properties(unit.unit) if op in ("setup", "modify") else None


class TurnsApart:
    """Takes a turn's time off the mock clock instead of running the turn in a thread."""

    runaways = 0

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def run(self, turn: Turn) -> TurnDone:
        """What the mapper decides, after a while."""
        done = turn.run()
        await trio.sleep(self._rng.choice((0, 0.1, 3)))
        return done


@contextmanager
def without_threads(rng: Random) -> Iterator[None]:
    """What a shell does in threads it does in line meanwhile, after a while on the mock clock."""

    async def run_sync(call: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(rng.choice((0, 0.001, 0.05)))
        return call(*arguments)

    with (
        patch.object(trio.to_thread, "run_sync", run_sync),
        patch.object(runtime_shell, "TurnRunner", lambda timeout, runaways_max: TurnsApart(rng)),
    ):
        yield


@attrs.define(eq=False)
class Daemon:
    """An actor's place: its store outlives its shells."""

    name: str
    store: FullStore
    driver: WatchedDriver
    shell: ActorShell | None = None
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    actors: list[Watched] = attrs.Factory(list)


class ShellWorld:
    """A site, a broker and a guest, each under a daemon's shell."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(f"leasekit shell world {seed}")
        self.inline = self.rng.random() < 0.3
        self.found = Findings()
        self.daemons: dict[str, Daemon] = {}
        in_files = self.rng.random() < 0.3
        for name, kind in KINDS.items():
            store = FullStore(kind, self.rng, folder / f"{name}.db" if in_files else None)
            self.daemons[name] = Daemon(name, store, WatchedDriver(store, self.found, self.rng))
        self._folder = folder
        self._identities = {name: UnsignedIdentity(name) for name in ROLES}
        self._nursery: trio.Nursery | None = None

    def _make(self, daemon: Daemon) -> Watched:
        name = daemon.name
        peers = [Peer(name=n, key=self._identities[n].public, role=role) for n, role in ROLES.items() if n != name]
        common = (name, self._identities[name], UNSIGNED, peers)
        actor: Actor
        if name == "site":
            actor = Authority(
                *common, FirstFit(),
                AuthoritySettings(
                    inventory=(UnitGroup(type="vm", names=UNITS),),
                    delegations=(DelegationSpec(broker="broker", type="vm", units=len(UNITS)),),
                ),
            )  # fmt: skip
        elif name == "broker":
            actor = Broker(*common, Fcfs(), BrokerSettings(), Fcfs)
        else:
            actor = ServiceManager(*common, Manual(), GuestSettings())
        watched = Watched(actor, self.found, self.rng)
        watched.is_calm = daemon.store.is_calm
        daemon.actors.append(watched)
        return watched

    # -- daemons -----------------------------------------------------------------------------------------------

    async def _serve(self, daemon: Daemon) -> None:
        """Run a daemon's shell; after a stop another one."""
        while True:
            daemon.store.open_again()
            shell = daemon.shell = ActorShell(
                partial(self._make, daemon), daemon.store, driver_of=self._drivers(daemon), inline=self.inline,
                unit_logs=UnitLogs(self._folder / daemon.name, lambda: 0),
                clock=RealClock(system=_nanoseconds, elapsed=_nanoseconds, boot=1),
                settings=ShellSettings(store_retry_max=10 * MINUTE), stopwatch=trio.current_time,
            )  # fmt: skip
            shell.send = partial(self._send, daemon.name)
            daemon.driver.cancelled = {}
            with trio.CancelScope() as daemon.scope, suppress(ActorStoppedError):  # too many bugs in a minute
                await shell.run()
            daemon.shell = None
            await trio.sleep(self.rng.choice((0, 1, 30)))

    @staticmethod
    def _drivers(daemon: Daemon) -> Callable[[str], BoundDriver | None]:
        bound = BoundDriver(daemon.driver, DriverSpec(kind="null", retries=0))
        return lambda type_: bound

    def _send(self, sender: str, receiver: str, messages: Sequence[Message]) -> None:
        assert self._nursery is not None, "shells run in it"
        if self._is_calm or self.rng.random() > 0.05:
            self._nursery.start_soon(self._deliver, sender, receiver, encode_batch(messages))

    @property
    def _is_calm(self) -> bool:
        return self.daemons["site"].store.is_calm

    async def _deliver(self, sender: str, receiver: str, data: bytes) -> None:
        await trio.sleep(self.rng.choice((0, 0.01, 0.2, 5)))
        shell = self.daemons[receiver].shell
        if shell is not None:
            await shell.receive(sender, [one for one in decode_batch(data) if not isinstance(one, UnknownKind)])

    # -- what happens ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Operations and faults, then none; in the end nothing is left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for daemon in self.daemons.values():
                nursery.start_soon(self._serve, daemon)
            for _ in range(OPERATIONS):
                await trio.sleep(self.rng.choice((0.01, 0.5, 5, 20)))
                nursery.start_soon(self._do, self.rng.choice(KINDS_OF_OPERATIONS))
            for daemon in self.daemons.values():
                daemon.store.is_calm = True
                for actor in daemon.actors:
                    actor.is_calm = True
            await trio.sleep(SETTLED)
            self._check_over()
            nursery.cancel_scope.cancel()
        for daemon in self.daemons.values():
            daemon.store.close()

    async def _do(self, operation: str) -> None:
        if operation in ("end", "reload"):
            await self._restart(self.rng.choice(list(self.daemons.values())), in_place=operation == "reload")
            return
        if operation in ("drain", "undrain"):
            await self._drain(out=operation == "drain")
            return
        shell = self.daemons["guest"].shell
        if shell is None:
            return
        now, more = _now(), {}
        active = [one for one in shell.actor.leases.values() if one.state == "active"]  # type: ignore[attr-defined]
        if operation == "request":
            start = now + self.rng.choice((0, 30)) * SECOND
            term = [start, start + self.rng.choice((20, 60, 300)) * SECOND]
            more = {"type": "vm", "units": self.rng.randint(1, 3), "term": term}
        elif active:
            lease = self.rng.choice(active)
            more = {"lease": lease.id}
            if operation == "extend":
                more["end"] = lease.end + MINUTE
            elif operation == "modify":
                more["units"] = self.rng.randint(1, 4)
        if more:
            try:
                await shell.command(f"lease.{operation}", more)
            except CommandError:
                return  # refused, or its daemon has been ended

    async def _restart(self, daemon: Daemon, *, in_place: bool) -> None:
        """A daemon is ended, or takes its file anew."""
        if not in_place:
            daemon.scope.cancel()
        elif daemon.shell is not None:
            with suppress(CommandError, ActorStoppedError, StoreError):  # it is being ended, or has no room
                await daemon.shell.reload(
                    partial(self._make, daemon), self._drivers(daemon), inline=self.inline, mapper="",
                    why=said("its file has changed"),
                )  # fmt: skip

    async def _drain(self, *, out: bool) -> None:
        """Units of the site go out of service as leases give them up, or come back."""
        shell, units = self.daemons["site"].shell, self.rng.sample(UNITS, self.rng.randint(1, 3) if out else 1)
        if shell is None:
            return
        with suppress(CommandError):  # those are not drained, or the daemon has been ended
            if out:
                await shell.command("maintenance.add", {"start": _now(), "units": units, "close": self.inline})
            else:
                await shell.command("maintenance.remove", {"units": units})

    def _check_over(self) -> None:
        for daemon in self.daemons.values():
            assert daemon.shell is not None, "nobody ends it any more"
            leases = daemon.shell.actor.query("leases", {})
            left = [lease["id"] for lease in leases if lease["state"] not in ("closed", "failed")]
            self.found.must(not left, f"{daemon.name} still has {left}")
        units = self.daemons["site"].shell.actor.query("units", {})  # type: ignore[union-attr]
        busy = [unit["unit"] for unit in units if unit["state"] not in ("free", "out")]
        self.found.must(not busy, f"the site's units {busy} are held by nobody")


def _nanoseconds() -> int:
    return int((BEGIN + trio.current_time()) * 1_000_000_000)


def _now() -> Instant:
    return _nanoseconds() // 1_000_000


def run_shell_world(seed: int) -> list[str]:
    """Run the world of a seed; what was wrong in it.

    Trio runs tasks that can go on in an order by chance: here that chance is the seed's, which finds what it found.
    """
    by_seed = patch.multiple(scheduler, _ALLOW_DETERMINISTIC_SCHEDULING=True, _r=Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        world = ShellWorld(seed, Path(folder))
        logging.disable(logging.CRITICAL)  # bugs, and stores without room, that are meant
        try:
            with by_seed, without_threads(world.rng):
                trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0))
        finally:
            logging.disable(logging.NOTSET)
    return world.found
