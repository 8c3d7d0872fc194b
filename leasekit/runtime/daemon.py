"""Daemons: one or several actors of a deploy file in one process, from start to a graceful end.

Each actor has a lock file, its store, its sockets for peers and its control socket. What keeps one from starting,
or makes it stop, ends the whole process, after the others have come to a graceful end: who supervises it sees an
exit status, never half a daemon. A ``SIGKILL`` at any moment is fine too: the records say what was under way. On
``SIGHUP`` each actor takes what its deploy file says by then (:class:`Reloading`).

===========  =========================================================================================
exit status  meaning
===========  =========================================================================================
0            stopped by SIGTERM, SIGINT or on the control socket, or by SIGHUP as the terminal goes
1            could not start: the message says why
4            the store could not be written for too long
70           a bug
128 + n      stopped by signal n a second time: what ran was cancelled at once
===========  =========================================================================================
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from functools import partial
from getpass import getpass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, cast

import attrs
import trio
from msgspec import UNSET
from msgspec.structs import replace

from leasekit.config.build import BoundDriver, BuiltActor, build, make_drivers, open_store
from leasekit.config.deployment import Deployment, out_of_reach
from leasekit.config.gateway import GatewayTable
from leasekit.config.identities import KeySource, prepare
from leasekit.config.instants import dated
from leasekit.config.load import load
from leasekit.config.reload import ChangedKey, gone, reread
from leasekit.config.resources import NULL
from leasekit.config.tables import ActorTable
from leasekit.core.answers import DaemonStatus, Stopping
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.drivers import Closable
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.reasons import said, with_article
from leasekit.core.schema import Store
from leasekit.core.steps import ActorLike, PeerChange
from leasekit.core.time import INSTANT_MAX, Duration, Instant, format_duration
from leasekit.drivers.files import make_private, narrow
from leasekit.runtime import logs
from leasekit.runtime.clock import RealClock
from leasekit.runtime.control import ActorDoor, Answering, Control, ControlRequest
from leasekit.runtime.logs import UnitLogs
from leasekit.runtime.mapper_turns import apart
from leasekit.runtime.metrics import ActorMetrics, Measure, Pages
from leasekit.runtime.peers import PeerAddress
from leasekit.runtime.shell import EXIT_BUG, ActorShell, ActorStoppedError, only_leaf
from leasekit.runtime.sockets import Endpoint, Sockets, parse_endpoint
from leasekit.runtime.tending import Tending
from leasekit.runtime.transport import Transport

EXIT_START: Final = 1
"""Exit status: an actor could not be started."""
NO_CHANGE: Final = "no key has another value"
GIVE_WAY: Final = 0.0005
"""Seconds that a thread may go on while another waits to run Python; Python's own default is ten times as much."""
SERVICE_END: Final = 5.0
"""How long a service may take to end, in seconds."""
TRIMMED_EVERY: Final = 10.0
"""How often memory is given back to the system, in seconds."""
YOUNG: Final = 1
"""The generations of objects that are looked through for that: what has come since the last time, and is not kept."""
FULL_AFTER: Final = 1_000
"""After how many times all objects may be looked through, which takes long where there are many."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


async def give_memory_back() -> None:
    """Give the system, over and over, what nobody uses. Errors and the calls that they passed are cycles of objects,
    which are looked for only after so many more; and what is free amid what is in use glibc keeps, so that a
    daemon would go on to have as much as in the worst moment of a flood. Takes about 2 ms, and 0.1 ms for each MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await trio.sleep(TRIMMED_EVERY)
        gc.collect(YOUNG)
        if trim is not None:
            trim(0)


class StartError(LeasekitError):
    """An actor can't be started; the text says why, and what to do."""


@attrs.frozen(kw_only=True)
class Job:
    """One actor to be run, as its ``table`` in the deploy file says. ``state`` is the folder for what it keeps;
    ``make`` gives the same actor, without state, every time; ``mapper`` is what its mapper is called when that fails.
    ``accept_clock``: this machine's clock is believed, although it was set since the daemon ran last.
    """

    name: str
    table: ActorTable
    make: Callable[[], ActorLike]
    inline: bool
    open_store: Callable[[], Store]
    signer: Signer
    scheme: Scheme
    peers: Sequence[PeerAddress]
    listen: Sequence[Endpoint]
    control: Path
    state: Path
    driver_of: Callable[[str], BoundDriver | None]
    clock_skew: Duration
    mapper: str = ""
    drivers: Sequence[BoundDriver] = ()
    accept_clock: bool = False
    store: Path | None = None
    """The file that ``open_store`` opens, if it is one."""
    others: Container[str] = frozenset()
    """All actors that its deploy file has."""
    reread: Callable[[], tuple[Job, Sequence[ChangedKey]]] | None = None
    """The same job as its deploy file has it by now, and what is otherwise; None: there is no file. Raises what reading
    and building it raise."""


class Serving(Protocol):
    """Serves until ``stopping``; says where it listens as soon as it does."""

    async def __call__(self, stopping: trio.Event, *, task_status: trio.TaskStatus[str]) -> None: ...


@attrs.frozen(kw_only=True)
class Service:
    """What a daemon runs that is no actor, and has no lease, as its ``table`` in the deploy file says: on its control
    socket it answers ``status``, ``stop`` and ``commands``. ``describe`` is what it says of itself, ``measure`` tells
    its numbers.
    """

    name: str
    table: GatewayTable
    serve: Serving
    control: Path
    state: Path
    describe: Callable[[], Mapping[str, Any]]
    measure: Measure
    commands: Mapping[str, Answering]

    def kinds(self, stop: Callable[[], None]) -> dict[str, Answering]:
        """What it answers on its control socket."""

        async def query(asked: ControlRequest) -> Any:
            if asked.name != "status":
                raise CommandError(f"{with_article(self.table.role)} has no query {asked.name!r}; it has status")
            shell = {"state": "running", "problem": ""}
            return {"name": self.name, "role": self.table.role, "pid": os.getpid(), "shell": shell, **self.describe()}

        async def command(asked: ControlRequest) -> Any:
            if asked.name not in self.commands:
                has = ", ".join(sorted(self.commands)) or "none"
                raise CommandError(f"{with_article(self.table.role)} has no command {asked.name!r}; it has {has}")
            return await self.commands[asked.name](asked)

        async def end(asked: ControlRequest) -> Any:
            logger.info("stop: asked for on the control socket by %s", asked.caller)
            stop()
            return Stopping()

        return {"command": command, "query": query, "stop": end}


SOME: Final = 3
"""How many units are named where there may be many."""


@attrs.define(eq=False)
class Reloading:
    """Has the actor of ``job``, which ``shell`` runs, take what its deploy file says by now: all of it but for what
    needs a restart, or, if anything in it is wrong, nothing.
    """

    job: Job
    _shell: ActorShell
    _transport: Transport
    _tending: Tending
    _grow: Callable[[], Awaitable[None]]
    """Has guests that are new in the file run in this process, before others look for their keys."""
    _beside: Callable[[], Iterable[Job]]
    """What else this process runs."""
    _lock: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    waiting: list[str] = attrs.field(init=False, factory=list)
    """The keys that its file gives other values, which need a restart."""

    async def reload(self, arguments: Mapping[str, Any]) -> list[ChangedKey]:
        """The command: what is otherwise, by key. Raises ``LeasekitError`` with nothing changed."""
        if self.job.reread is None:
            raise CommandError(f"{self.job.name}: found no deploy file to reload")
        logs.ACTOR.set(self.job.name)
        async with self._lock:
            try:
                await self._grow()
                job, found = await trio.to_thread.run_sync(self.job.reread)
                left = [gone(one.name, one.table.role) for one in self._beside() if one.name not in job.others]
                changes = [*found, *left]
                await self._take(job, changes)
            except LeasekitError as error:
                for line in str(error).splitlines():
                    logger.error("nothing is reloaded: %s", line)
                raise
        self.waiting = [change.key for change in changes if change.restart]
        for line in map(str, changes) if changes else (NO_CHANGE,):
            logger.info("reload: %s", line)
        return changes

    async def _check_drivers(self, job: Job) -> None:
        """Units that somebody has need the driver that will tear them down. Raises ``CommandError``."""
        if job.table.role != "authority":
            return
        in_use: dict[str, list[str]] = {}
        for unit in await self._shell.query("units", {}):
            if unit["state"] not in ("free", "out"):
                in_use.setdefault(unit["type"], []).append(unit["unit"])
        for type_, units in in_use.items():
            was, now = (driver and driver.spec.kind for driver in (self.job.driver_of(type_), job.driver_of(type_)))
            if was not in (None, now) and (was != NULL or now is None):  # what has set nothing up leaves nothing behind
                some = ", ".join(units[:SOME]) + (" and more" if len(units) > SOME else "")
                raise CommandError(
                    f"actor.{job.name}.driver: found {now or 'none'} for units of type {type_!r}, expected {was}, which"
                    f" they have while they are in use: {some}"
                )

    async def _take(self, job: Job, changes: Iterable[ChangedKey]) -> None:
        await self._check_drivers(job)
        why = said("; ".join(map(str, changes)) or NO_CHANGE)
        await self._shell.reload(job.make, job.driver_of, inline=job.inline, mapper=job.mapper, why=why)
        before, self.job = self.job, job
        was, now = ({peer.name: peer for peer in one.peers} for one in (before, job))
        for name in {*was, *now}:
            if was.get(name) != now.get(name):
                self._transport.change_peer(name, now.get(name))
        logs.set_level(job.name, job.table.log_level)
        if job.drivers != before.drivers:
            self._tending.use(_tended(job))
        going_on = {id(bound.driver) for bound in job.drivers}
        for bound in before.drivers:
            if id(bound.driver) not in going_on and hasattr(bound.driver, "close"):
                cast(Closable, bound.driver).close()


@attrs.define(eq=False)
class Daemon:
    """Runs ``jobs`` in one process, and ``services`` once these are there. ``on_ready`` is called for each that
    listens, with a line that says where. ``more`` are the guests that the deploy file has by now beside those that run.
    """

    _jobs: Sequence[Job]
    _on_ready: Callable[[str], None]
    _services: Sequence[Service] = ()
    _more: Callable[[Container[str]], Sequence[Job]] = lambda running: ()
    _running: set[str] = attrs.field(init=False, factory=set)
    _actors: trio.Nursery = attrs.field(init=False)
    _growing: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _stops: list[Callable[[], None]] = attrs.field(init=False, factory=list)
    _reloadings: list[Reloading] = attrs.field(init=False, factory=list)
    _stopping: bool = attrs.field(init=False, default=False)
    _pages: Pages | None = attrs.field(init=False, default=None)
    _failures: list[tuple[str, BaseException]] = attrs.field(init=False, factory=list)

    async def run(self) -> list[tuple[str, BaseException]]:
        """Run until all actors have stopped; what went wrong, by actor."""
        with Sockets() as sockets:
            async with trio.open_nursery() as nursery:
                self._pages = Pages(nursery, sockets)
                nursery.start_soon(self._obey_signals, nursery)
                nursery.start_soon(give_memory_back)
                await self._run_all()
                nursery.cancel_scope.cancel()
        return self._failures

    async def _run_all(self) -> None:
        async with trio.open_nursery() as self._actors:
            both: list[Job | Service] = [*self._jobs, *self._services]
            for job in both:
                await self._begin(job)

    async def _begin(self, job: Job | Service) -> None:
        if not self._stopping:
            begun = trio.Event()
            self._running.add(job.name)
            self._actors.start_soon(self._guard, job, begun)
            await begun.wait()

    async def _grow(self) -> None:
        """Run the guests that are new in the deploy file. Raises ``LeasekitError`` where one can't be made."""
        async with self._growing:
            for job in await trio.to_thread.run_sync(self._more, frozenset(self._running)):
                logger.info("%s is new in the deploy file, and is run", job.name)
                await self._begin(job)

    def _all_jobs(self) -> list[Job]:
        return [one.job for one in self._reloadings]

    def stop(self) -> None:
        """Bring all actors to a graceful end."""
        self._stopping = True
        for stop in self._stops:
            stop()

    async def _guard(self, job: Job | Service, begun: trio.Event) -> None:
        """Run one actor or service; its failure ends the daemon, but not by tearing the others down. One that comes
        later and can't begin is told of, and no more.
        """
        logs.ACTOR.set(job.name)
        try:
            with _own_folder(job):
                await (self._run_actor(job, begun) if isinstance(job, Job) else self._run_service(job, begun))
        except Exception as error:  # whatever it is, the other actors are stopped in good order
            if job in (*self._jobs, *self._services) or begun.is_set():
                self._failures.append((job.name, only_leaf(error)))
                self.stop()
            else:
                self._running.discard(job.name)
                logger.error("%s is not run", job.name, exc_info=error)
        finally:
            begun.set()

    async def _obey_signals(self, nursery: trio.Nursery) -> None:
        had_terminal = _has_terminal()
        with trio.open_signal_receiver(*SIGNALS) as received:
            async for number in received:
                if number == signal.SIGHUP and not (had_terminal and not _has_terminal()):
                    nursery.start_soon(self._reload_all)
                    continue
                if self._stopping:
                    text = f"stopped at once by {signal.Signals(number).name}"
                    self._failures.append(("", ActorStoppedError(text, 128 + number)))
                    nursery.cancel_scope.cancel()
                    return
                logger.info("%s: stopping; once more, and what runs is cancelled at once", signal.Signals(number).name)
                self.stop()

    async def _reload_all(self) -> None:
        asked = ControlRequest(0, "command", "reload", {})
        every: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            *((one.job.name, partial(one.reload, {})) for one in self._reloadings),
            *((one.name, partial(one.commands["reload"], asked)) for one in self._services if "reload" in one.commands),
        ]
        for name, reload in every:
            try:
                await reload()
            except LeasekitError:
                pass  # it is logged
            except Exception as error:
                # A bug in what is made anew: the actor goes on as it was.
                logger.critical("bug: nothing of %s is reloaded", name, exc_info=error)

    async def _run_actor(self, job: Job, begun: trio.Event) -> None:
        store = await trio.to_thread.run_sync(job.open_store)
        try:
            await self._serve(job, store, begun)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close)

    async def _run_service(self, service: Service, begun: trio.Event) -> None:
        stopping = trio.Event()
        self._stops.append(stopping.set)
        control = Control(service.kinds(self.stop))

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            await service.serve(stopping, task_status=task_status)
            nursery.cancel_scope.cancel()

        with Sockets() as sockets:
            listener = await _listen_control(sockets, service)
            async with self._shown(service, service.measure), trio.open_nursery() as nursery:
                where = await nursery.start(serve)
                nursery.start_soon(control.serve, listener)
                logger.info("%s: listens on %s", service.table.role, where)
                self._on_ready(f"ready {service.name} control={service.control} listen={where}")
                begun.set()
                await stopping.wait()
                nursery.cancel_scope.deadline = trio.current_time() + SERVICE_END
        logger.info("stopped")

    async def _serve(self, job: Job, store: Store, begun: trio.Event) -> None:
        shell = _make_shell(job, store)
        transport = Transport(
            job.name,
            job.signer,
            job.scheme,
            job.peers,
            job.listen,
            clock=shell.clock.now,
            on_receive=shell.receive,
            on_cost=shell.charge,
            on_connected=shell.connected,
            on_disconnected=lambda peer, reason: shell.disconnected(peer),
            settings=job.table.transport,
            clock_skew=job.clock_skew,
            key=f"actor.{job.name}.listen",
        )
        shell.send = transport.send
        shell.meet = partial(_meet, transport)
        tending = Tending(shell, _tended(job))
        reloading = Reloading(job, shell, transport, tending, self._grow, self._all_jobs)
        more = {**(tending.requests if job.table.role == "authority" else {}), "reload": reloading.reload}
        door = ActorDoor(
            shell, stop=self.stop, more=more,
            describe=lambda: _describe(job, transport, tending, reloading),
        )  # fmt: skip
        control = Control(door.kinds, streams=door.streams, warnings=lambda: _warnings(job, shell, transport))
        metrics = ActorMetrics(job.name, job.table.role, shell, transport, job.store)
        with Sockets() as sockets:
            listener = await _listen_control(sockets, job)
            async with self._shown(job, metrics.measure), trio.open_nursery() as nursery:
                if job.table.metrics:
                    nursery.start_soon(metrics.count_outcomes)
                await nursery.start(self._until_stopped, shell, nursery.cancel_scope)
                bound = await nursery.start(transport.run)
                nursery.start_soon(control.serve, listener)
                nursery.start_soon(tending.run)
                self._reloadings.append(reloading)
                where = " ".join(map(str, bound))
                logger.info("%s: listens on %s", job.table.role, where or "no address")
                self._on_ready(f"ready {job.name} control={job.control} listen={where or '(dials only)'}")
                begun.set()
        logger.info("stopped")

    def _shown(self, job: Job | Service, measure: Measure) -> AbstractAsyncContextManager[None]:
        assert self._pages is not None, "they are made before anything is run"
        return self._pages.showing(job.table.metrics, f"actor.{job.name}.metrics", measure)

    async def _until_stopped(
        self, shell: ActorShell, scope: trio.CancelScope, task_status: trio.TaskStatus[None]
    ) -> None:
        self._stops.append(shell.stop)
        if self._stopping:
            shell.stop()
        await shell.run(task_status=task_status)
        scope.cancel()


@contextmanager
def _own_folder(job: Job | Service) -> Iterator[None]:
    """Be the only daemon of that name in its state folder, with its files for its user alone, and its log in one."""
    with ExitStack() as stack:
        stack.enter_context(_lock(job.state, job.name))
        files = job.state / "logs"
        if said := narrow([job.state / f"{job.name}.lock", files, *_logs_of(files, job.name)]):
            logger.warning("%s", said)
        log, level = job.table.log, job.table.log_level
        stack.callback(logs.log_to_file(files / f"{job.name}.log", job.name, log, level))
        yield


def _tended(job: Job) -> Sequence[BoundDriver]:
    return job.drivers if job.table.role == "authority" else ()


def _has_terminal() -> bool:
    """Whether this process has a terminal, which is there: SIGHUP says so, too, when one goes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _meet(transport: Transport, changes: Sequence[PeerChange]) -> None:
    """Connect to peers that an actor made known, and hang up on those that it forgot."""
    for name, peer in changes:
        wanted = None
        if peer is not None:
            try:
                address = parse_endpoint(peer.address) if peer.address else None
            except ValueError as error:
                logger.warning("peer %s can't be dialled at %r: %s", name, peer.address, error)
                address = None
            wanted = PeerAddress(name, peer.key, address)
        transport.change_peer(name, wanted)


def _make_shell(job: Job, store: Store) -> ActorShell:
    clock = RealClock(job.clock_skew)
    watched = job.table.log == "human" and sys.stderr.isatty()
    return ActorShell(
        job.make,
        store,
        driver_of=job.driver_of,
        unit_logs=UnitLogs(job.state / "logs" / "units" / job.name, clock.now),
        clock=clock,
        inline=job.inline,
        mapper=job.mapper,
        settings=job.table.shell,
        transition_log=logs.TransitionLog(logging.getLogger("leasekit.transitions"), watched),
        accept_clock=job.accept_clock,
    )


def _logs_of(folder: Path, name: str) -> list[Path]:
    """The log of one actor, those of its units, and what was rotated."""
    units = folder / "units" / name
    return [*folder.glob(f"{name}.log*"), units.parent, units, *units.glob("*.log*")]


async def _listen_control(sockets: Sockets, job: Job | Service) -> trio.SocketListener:
    try:
        make_private(job.control.parent)
    except OSError as error:
        raise StartError(f"can't make the folder {job.control.parent}: {error.strerror}") from error
    before = os.umask(0o177)
    try:
        (listener,) = await sockets.listen(Endpoint(path=str(job.control)), f"actor.{job.name}.control")
    finally:
        os.umask(before)
    return listener


def _describe(job: Job, transport: Transport, tending: Tending, reloading: Reloading) -> DaemonStatus:
    peers = [replace(one, clock_ahead=transport.clocks_off.get(one.peer, 0)) for one in transport.status()]
    listen = [str(endpoint) for endpoint in transport.bound]
    store, untold = str(job.store or ""), tending.describe()
    return DaemonStatus(
        pid=os.getpid(), listen=listen, store=store, peers=peers, needs_restart=reloading.waiting,
        orphans=UNSET if untold is None else len(untold.orphans),
        orphans_untold=UNSET if untold is None else untold.troubles,
    )  # fmt: skip


def _warnings(job: Job, shell: ActorShell, transport: Transport) -> list[str]:
    """What an operator must hear whatever he asks: that this machine's clock can't be trusted."""
    found, off = [shell.clock.trouble()], transport.clocks_off
    if off and 2 * len(off) > (connected := sum(peer.connected for peer in transport.status())):
        clocks = ", ".join(f"{name} by {format_duration(ahead)}" for name, ahead in islice(off.items(), 3))
        found.append(
            f"the clocks of {len(off)} of {connected} connected peers differ from the time here ({clocks}"
            f"{', ...' if len(off) > 3 else ''}): nothing that they say is obeyed; see whose clock is right"
        )
    return [f"{job.name}: {text}" for text in found if text]


@contextmanager
def _lock(folder: Path, name: str) -> Iterator[None]:
    """Be the only daemon of actor ``name`` in ``folder``; the system lets go of the lock however the process ends."""
    path = folder / f"{name}.lock"
    try:
        make_private(folder)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"can't make {path}: {error.strerror}; the state folder must be writable") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            text = f"is run by another daemon already (process {holder}, state in {folder}): stop that one"
            raise StartError(text) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def run_jobs(
    jobs: Sequence[Job],
    services: Sequence[Service] = (),
    more: Callable[[Container[str]], Sequence[Job]] = lambda running: (),
    *,
    ready_fd: int | None = None,
) -> int:
    """Run ``jobs`` and ``services``, and ``more`` as :class:`Daemon` does, until they are stopped; returns the exit
    status. Errors go to standard error, in one line each.

    When an actor listens, a line ``ready NAME control=PATH listen=ADDRESS...`` goes to standard output, and to the
    descriptor ``ready_fd``, which is closed after the last.
    """
    left = len(jobs) + len(services)
    # A mapper that computes in its thread gives way to the actor for so long only, at each of the actor's wake-ups.
    sys.setswitchinterval(GIVE_WAY)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_AFTER)

    def on_ready(line: str) -> None:
        nonlocal left
        left -= 1
        with suppress(OSError):
            print(line, flush=True)
        if ready_fd is not None and left >= 0:  # those that come later have no place in it
            with suppress(OSError):
                os.write(ready_fd, f"{line}\n".encode())
                if not left:
                    os.close(ready_fd)

    with ExitStack() as stack:
        both: list[Job | Service] = [*jobs, *services]
        for first in both[:1]:
            stack.callback(logs.log_to_stream(first.table.log, first.table.log_level, first.name))
        failures = trio.run(Daemon(jobs, on_ready, services, more).run)
    return max((_report(name, error) for name, error in failures), default=0)


def _report(name: str, error: BaseException) -> int:
    """Tell the user; the exit status that goes with it."""
    head = f"leasekit: {name}: " if name else "leasekit: "
    if isinstance(error, LeasekitError):
        print(f"{head}{dated(str(error))}", file=sys.stderr)
        return getattr(error, "status", EXIT_START)
    traceback.print_exception(error)
    print(f"{head}internal error: {type(error).__name__}: {error}", file=sys.stderr)
    return EXIT_BUG


ORIGIN_SUFFIX: Final = ".origin"


def run(
    deployment: Deployment,
    names: Sequence[str] = (),
    *,
    ready_fd: int | None = None,
    data_dir: Path | None = None,
    synthetic: bool = False,
    accept_clock: bool = False,
    services: Callable[[Sequence[str]], Sequence[Service]] | None = None,
) -> int:
    """Run the actors ``names`` of a deployment (none: all) in this process until they are stopped; ``services`` makes
    what runs beside them, for names of the deployment's gateways.

    Returns the exit status (see :mod:`leasekit.runtime.daemon`); what goes wrong is said on standard error, one
    line for each error. ``ready_fd`` is as in :func:`~leasekit.runtime.daemon.run_jobs`, ``data_dir`` and
    ``synthetic`` as in :func:`leasekit.config.build.build`, ``accept_clock`` as in
    :class:`~leasekit.runtime.daemon.Job`.
    """
    everything = list(names) or list(deployment.daemons)
    wanted = [name for name in everything if name in deployment.actors]
    for line in out_of_reach(deployment, wanted):
        print(f"leasekit: warning: {deployment.file}: {line}", file=sys.stderr)
    try:
        keys = prepare(deployment, wanted, _ask if sys.stdin is not None and sys.stdin.isatty() else None)
        made = partial(make_job, deployment, keys=keys, data_dir=data_dir, synthetic=synthetic)
        jobs = [attrs.evolve(made(name), accept_clock=accept_clock) for name in wanted]
        beside = services([name for name in everything if name not in deployment.actors]) if services else ()
    except LeasekitError as error:
        for line in str(error).splitlines():
            print(f"leasekit: {line}", file=sys.stderr)
        return EXIT_START

    def more(running: Container[str]) -> Sequence[Job]:
        now = load(deployment.file, deployment.state)
        guests = (one for one in now.actors.values() if one.role == "guest" and one.name not in running)
        new = [one.name for one in guests if not one.control.exists()]  # else another process runs it
        keys = prepare(now, new)
        return [make_job(now, name, keys, data_dir=data_dir, synthetic=synthetic) for name in new]

    return run_jobs(jobs, beside, *(() if names else (more,)), ready_fd=ready_fd)


def make_job(
    deployment: Deployment,
    name: str,
    keys: KeySource,
    *,
    data_dir: Path | None = None,
    synthetic: bool = False,
    running: Mapping[str, BoundDriver] | None = None,
) -> Job:
    """What the daemon needs to run the actor ``name``. Raises what building it raises, and :class:`StartError`.

    Drivers that are ``running`` with the same settings are not made again.
    """
    origin = _origin(deployment, name)
    guard = partial(apart, settings=deployment.actors[name].table.shell)

    def built() -> BuiltActor:
        return build(deployment, name, keys=keys, data=data_dir, synthetic=synthetic, origin=origin, guard=guard)

    first = built()
    spec = first.spec
    drivers = make_drivers(deployment, name, running)
    try:
        listen = [parse_endpoint(address) for address in spec.listen]
        peers = [
            PeerAddress(link.name, link.key, parse_endpoint(link.address) if link.address else None)
            for link in first.peers
        ]
    except ValueError as error:
        raise StartError(f"{deployment.file}: {name}: {error}") from error

    def again() -> tuple[Job, Sequence[ChangedKey]]:
        now, changes = reread(deployment, name)
        others = prepare(now, ())
        own = attrs.evolve(others, signer=keys.signer, former={name: keys.former(name)})
        return make_job(now, name, own, data_dir=data_dir, synthetic=synthetic, running=drivers), changes

    return Job(
        name=name,
        table=spec.table,
        make=lambda: built().actor,
        inline=first.actor.inline,
        mapper=spec.mapper.target.rpartition("/")[2],
        open_store=lambda: open_store(spec),
        signer=first.signer,
        scheme=first.scheme,
        peers=peers,
        listen=listen,
        control=spec.control,
        state=deployment.state,
        driver_of=lambda type_: drivers.get(spec.driver_for(type_)),
        drivers=tuple(drivers.values()),
        clock_skew=spec.settings.clock_skew,
        store=spec.store,
        others=deployment.actors,
        reread=again,
    )


def _ask(key: Path) -> str:
    return getpass(f"passphrase of {key}: ")


def _origin(deployment: Deployment, name: str) -> Instant:
    """Where a load begins that its file doesn't date: at the actor's first start, also after later ones."""
    mapper = deployment.actors[name].mapper
    wanted = mapper.signal or mapper.jobs
    if wanted is None or wanted.origin is not None:
        return 0
    path = deployment.state / f"{name}{ORIGIN_SUFFIX}"
    try:
        try:
            text = path.read_text("ascii")
        except FileNotFoundError:
            text = str(time.time_ns() // 1_000_000)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(text, "ascii")
            beside.replace(path)
        origin = int(text)
    except (OSError, ValueError) as error:
        raise StartError(f"{path}: expected the instant of the first start in milliseconds: {error}") from error
    if not 0 <= origin <= INSTANT_MAX:
        raise StartError(f"{path}: found {origin}, expected the instant of the first start in milliseconds")
    return origin
