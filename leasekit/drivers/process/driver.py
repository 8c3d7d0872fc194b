"""A driver whose units are process groups on this machine: the embedded default that really runs something.

A unit has a directory, a port and limits of its own; it needs no superuser. It belongs to no daemon: it is started
in a session of its own by ``launcher``, goes on when the daemon is killed, and is adopted by the next one, which
knows it by process id, start time and boot. Units of one site run as one user, so this separates what is orderly,
not what is hostile; what makes a session of its own is not found by teardown.

    DIRECTORY/units/UNIT/unit.json     whose it is, its action number and port, whether it was ready
                         pid.json      its process
                         config.json   its properties, rewritten by modify
                         output.log    what it wrote
                         work/         where it runs
    DIRECTORY/saved/KEY/               what a unit was that is saved: the same, and saved.json, which says so until
                                       another has gone on from it
    DIRECTORY/members.json             at a guest: who has joined

That a unit is ready is learnt by events, but for commands that only open a port. What is saved is moved aside, in one
step: it is in one place or the other whenever the daemon is killed. Its file says under which key it was saved, up to
when a unit that goes on from it is ready: before that it is put back, whatever ends the unit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs
import trio

from leasekit.core.drivers import (
    DROP,
    LEASE,
    NOT_RESUMED,
    NOT_SAVED,
    RESUME,
    SAVE,
    UNIT,
    DriverError,
    Orphan,
    ProbeResult,
    SiteFaultError,
    UnitContext,
)
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.settings import DurationSetting, SettingsError, expecting
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.files import SEARCH, find_executable, make_private, narrow, read_table, wipe, write_whole
from leasekit.drivers.members import MembersFile, ask, connect, unit_address
from leasekit.drivers.names import check_unit_id, one_line, unknown_operation
from leasekit.drivers.process.files import DIRECTORY_VARIABLE, ProcessRecord, UnitFiles
from leasekit.drivers.processes import ProcessState, boot_id, process_state, send_signals, stop_processes, wait_end
from leasekit.drivers.unit_books import UnitLocks

Readiness = Literal["pipe", "port", "start"]

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
LAUNCH_TIMEOUT: Final[Duration] = 30 * SECOND
"""How long the launcher itself may take."""
END_GRACE: Final[Duration] = 1 * SECOND
"""How long a process whose ready pipe closed may take to end, so that errors can tell the two apart."""
LINE_MAX: Final = 4096
"""The longest announcement that is read, in bytes."""

_CONNECT_PAUSES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # seconds between looks at a port; the last one repeats


class UnitStart:
    """One start of a unit: :meth:`launch`, then :meth:`wait_ready`, then :meth:`close` in any case."""

    def __init__(self, files: UnitFiles, ready: Readiness) -> None:
        self._files = files
        self._ready = ready
        self._pipe: trio.lowlevel.FdStream | None = None
        self._received = bytearray()
        self._process: ProcessState | None = None
        self._refused = False

    async def launch(self, spec: dict[str, Any]) -> None:
        """Runs the launcher until the process's id is known, and on file; not cancelled in between.

        ``spec`` is what ``launcher`` reads, but for descriptors. Raises ``DriverError``.
        """
        with trio.CancelScope(shield=True):
            lock = await self._files.lock()
            try:
                stderr = await self._run_launcher(spec, lock)
            except OSError as error:
                raise SiteFaultError(f"can't start {sys.executable}: {error.strerror}") from error
            finally:
                os.close(lock)
            word, rest = "", ""
            with trio.move_on_after(LAUNCH_TIMEOUT / SECOND):
                word, _, rest = (await self._line() or "").partition(" ")
        if word == "error":
            raise DriverError(f"the unit can't be started: {one_line(rest)}")
        if word != "pid":
            raise DriverError(f"the unit's launcher failed: {one_line(stderr)}")
        pid, start = map(int, rest.split())
        state = process_state(pid)
        self._process = state if state is not None and state.start == start else None

    async def _run_launcher(self, spec: dict[str, Any], lock: int) -> str:
        read_end, write_end = os.pipe()
        self._pipe = trio.lowlevel.FdStream(read_end)
        keep = self._ready == "pipe"
        spec = {**spec, "ready": write_end, "lock": lock, "keep_ready": keep}
        if keep:
            spec["environment"] = {**spec["environment"], "LEASEKIT_READY_FD": str(write_end)}
        try:
            done = await trio.run_process(
                # Isolated and without site packages it starts in half the time.
                [sys.executable, "-I", "-S", str(LAUNCHER)],
                stdin=json.dumps(spec).encode(),
                capture_stderr=True,
                check=False,
                pass_fds=(write_end, lock),
            )
        finally:
            os.close(write_end)
        return done.stderr.decode("utf-8", "replace")[-500:]

    async def wait_ready(self, address: tuple[str, int], timeout: Duration) -> None:
        """Returns when the unit is ready.

        Raises ``DriverError`` if it ends before, or takes more than ``timeout`` ms.
        """
        fault: str | None = None
        with trio.move_on_after(timeout / SECOND) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
                fault = await self._announced(address)
                nursery.cancel_scope.cancel()
        if fault is None and not limit.cancelled_caught:
            fault = await self._last_fault()
        if fault is None:
            host, port = address
            sign = f"did not answer at {host}:{port}" if self._ready == "port" else "wrote no line to LEASEKIT_READY_FD"
            fault = f"was not ready within {format_duration(timeout)}: it {sign} (setting ready = {self._ready})"
        if fault:
            last = "" if self._refused else "".join(self._files.last_lines(1))
            text = f"the unit {fault}" + (f"; it wrote: {last}" if last else "")
            raise DriverError(text, blame=LEASE if self._refused else UNIT)

    async def close(self) -> None:
        """Closes the ready pipe."""
        if self._pipe is not None:
            with trio.CancelScope(shield=True):
                await self._pipe.aclose()

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        if self._process is not None:
            await wait_end(self._process)
        scope.cancel()

    async def _last_fault(self) -> str:
        """Why a process ended: a launcher that failed said it just before."""
        with trio.move_on_after(END_GRACE / SECOND):
            word, _, rest = (await self._line() or "").partition(" ")
            if word == "error":
                return f"can't be started: {one_line(rest)}"
        return "ended before it was ready"

    async def _announced(self, address: tuple[str, int]) -> str:
        """What is wrong with a unit that announced itself: nothing if it is ready."""
        while line := await self._line():
            word, _, rest = line.partition(" ")
            if word == "error":
                return f"can't be started: {one_line(rest)}"
            if word == "refused" and self._ready == "pipe":
                self._refused = True
                return f"refuses its configuration: {one_line(rest)}"
            if word == "ready" and self._ready == "pipe":
                return ""
        if self._ready == "pipe":
            # If it is ending, its end is the better reason, and cancels this.
            await trio.sleep(END_GRACE / SECOND)
            return "closed its ready descriptor before it said that it is ready"
        if self._ready == "port":
            await _wait_port(address)
        return ""

    async def _line(self) -> str | None:
        """The next line from the ready pipe; none at its end."""
        assert self._pipe is not None
        while b"\n" not in self._received:
            piece = await self._pipe.receive_some()
            if not piece or len(self._received) > LINE_MAX:
                return None
            self._received += piece
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received[:] = rest
        return line.decode("utf-8", "replace")


async def _wait_port(address: tuple[str, int]) -> None:
    """Returns when the port accepts connections. The system has no event for that, so it looks, ever less often."""
    attempt = 0
    while True:
        try:
            await (await connect(address, SECOND)).aclose()
        except DriverError:
            await trio.sleep(_CONNECT_PAUSES[min(attempt, len(_CONNECT_PAUSES) - 1)])
            attempt += 1
        else:
            return


# -P: what lies in the unit's directory is not to be imported by the unit's Python.
DEFAULT_COMMAND: Final = (sys.executable, "-P", "-m", "leasekit.drivers.process.unit")

logger = logging.getLogger(__name__)

SUSPEND_TIMEOUT: Final[Duration] = 10 * SECOND
"""How long it may take until all processes of a unit have stopped."""

_SIGNALS: Final = ("HUP", "INT", "TERM", "KILL", "USR1", "USR2", "STOP", "CONT")


_POSITIVE: Final = attrs.validators.optional(attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class ProcessLimits:
    """Limits of each process of a unit; what is left out is as the daemon's own.

    ``cpu`` is processor time; ``processes`` counts all processes of the daemon's user, and does not bind the superuser.
    """

    cpu: DurationSetting | None = attrs.field(default=None, validator=_POSITIVE)
    memory_mb: int | None = attrs.field(default=None, validator=_POSITIVE)
    processes: int | None = attrs.field(default=None, validator=_POSITIVE)
    open_files: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(64)))
    file_size_mb: int | None = attrs.field(default=None, validator=_POSITIVE)

    def as_resources(self) -> dict[str, int]:
        """The names and values of ``setrlimit``."""
        found = {
            "RLIMIT_CPU": None if self.cpu is None else math.ceil(self.cpu / SECOND),
            "RLIMIT_AS": None if self.memory_mb is None else self.memory_mb * 2**20,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_FSIZE": None if self.file_size_mb is None else self.file_size_mb * 2**20,
        }
        return {"RLIMIT_CORE": 0, **{name: value for name, value in found.items() if value is not None}}


_check_ports: Final = expecting(
    "the first and the last of a range of ports, from 1 to 65535", lambda ports: 0 < ports[0] <= ports[1] < 65536
)


@attrs.frozen(kw_only=True)
class ProcessSettings:
    """Where units live, what they run, and how long things may take.

    ``ready`` says how a unit shows that it is ready: by the line ``ready`` on the descriptor ``LEASEKIT_READY_FD``,
    by its port accepting connections, or by having started at all. ``identify`` says that units speak the protocol
    of ``process.unit``, so that join can make sure of their identity, and modify of its effect. After ``grace``
    what did not heed SIGTERM gets SIGKILL.
    """

    directory: Path
    command: tuple[str, ...] = attrs.field(default=DEFAULT_COMMAND, validator=attrs.validators.min_len(1))
    host: str = "127.0.0.1"
    ports: tuple[int, int] = attrs.field(default=(20_000, 29_999), validator=_check_ports)
    environment: Mapping[str, str] = attrs.Factory(dict)
    limits: ProcessLimits = ProcessLimits()
    ready: Readiness = "pipe"
    identify: bool = True
    start_timeout: DurationSetting = 30 * SECOND
    grace: DurationSetting = 5 * SECOND


class ProcessDriver:
    """A :class:`~leasekit.core.drivers.Driver` of process groups, and of members that join a guest.

    Raises ``SettingsError`` where the command can't be executed or the directory can't be made.
    """

    Settings: ClassVar[type] = ProcessSettings
    capabilities: frozenset[str] = frozenset({"suspend", "save"})
    operations: frozenset[str] = frozenset({"restart", "signal", "suspend", "resume", DROP})

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._directory = settings.directory.absolute()
        self._units = self._directory / "units"
        self._environment = {"PATH": SEARCH, "LANG": "C.UTF-8", **settings.environment}
        try:
            program = find_executable(settings.command[0], self._directory, self._environment["PATH"])
        except ValueError as error:
            raise SettingsError([f"command: {error}"]) from error
        self._command = [str(program), *settings.command[1:]]
        try:
            make_private(self._units)
        except OSError as error:
            text = f"directory: found {str(settings.directory)!r}, can't make {error.filename}: {error.strerror}"
            raise SettingsError([text]) from error
        made = [self._directory / "saved", self._units, *self._units.glob("*"), *self._units.glob("*/*")]
        if said := narrow(made):
            logger.warning("%s", said)
        self._saved = SavedUnits(self._directory / "saved")
        self._ports = self._ports_on_disk()
        self._members = MembersFile(self._directory / "members.json")
        self._locks = UnitLocks()

    # The site's side

    async def setup(self, unit: UnitContext) -> Properties:
        """Makes the unit's directory, gives it a port, starts its command and waits until it is ready.

        A live unit of the same action number is adopted; anything else that is there goes first. When it fails or
        is cancelled nothing is left.

        With ``lease.resume`` it has the directory of a unit that was saved, in which its command starts again.
        """
        key = unit.properties.get(RESUME, "")
        if key:
            check_unit_id(key)
        async with self._exclusively(unit.unit) as files:
            record, leader = files.record(), files.leader()
            if record is not None and record.ready and record.number == unit.number and leader is not None:
                self._saved.took(files)
                unit.log(f"runs already as process {leader.pid}, on port {record.port}")
                return self._properties(record)
            await self._remove(files)
            try:
                lost = await self._saved.take(key, files) if key else ""
                made = await self._make(files, unit)
                if key:
                    unit.log(f"is set up anew: {lost}" if lost else f"goes on from what was saved as {key}")
                self._saved.took(files)
                return {**made, NOT_RESUMED: lost} if lost else made
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._remove(files)
                raise

    async def teardown(self, unit: UnitContext) -> Properties | None:
        """Ends all processes of the unit and removes its directory; a unit that is not there is done.

        With ``lease.save`` the directory is kept, and a process has ``grace`` to write down how far it is, as at any
        end: all that is saved is what is in its files.
        """
        key = unit.properties.get(SAVE, "")
        async with self._exclusively(unit.unit) as files:
            lost = await self._save(check_unit_id(key), files) if key else ""
            await self._remove(files)
        if key:
            unit.log(f"is not saved: {lost}" if lost else f"is saved as {key}")
        return {NOT_SAVED: lost} if lost else None

    async def _save(self, key: str, files: UnitFiles) -> str:
        """Ends the unit's processes and puts its directory aside; returns why not, if it can't be."""
        record = files.record()
        if record is None or not record.ready:
            return "" if self._saved.has(key) else "it was not running"
        await stop_processes(files.members, self._settings.grace)
        return await self._saved.put(key, files)

    async def modify(self, unit: UnitContext) -> Properties:
        """Rewrites the configuration and sends SIGHUP; with ``identify`` returns when the unit has read it."""
        async with self._exclusively(unit.unit) as files:
            record, leader = files.record(), files.leader()
            if record is None or leader is None:
                raise DriverError(f"unit {unit.unit} is not running, so it can't be modified", retry=False)
            self._write_config(files, unit)
            send_signals([leader], signal.SIGHUP)
            if self._settings.identify:
                address = (self._settings.host, record.port)
                await ask(address, f"config {unit.number}", self._settings.start_timeout)
            return self._properties(record)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Whether the unit's first process is alive; ``processes``, ``rss_bytes`` and ``cpu_seconds`` of all."""
        await trio.lowlevel.checkpoint()
        files = self._files(unit.unit)
        record, leader, members = files.record(), files.leader(), files.members()
        measured = {
            "processes": float(len(members)),
            "rss_bytes": float(sum(state.rss for state in members)),
            "cpu_seconds": sum(state.cpu for state in members),
        }
        if record is None:
            return ProbeResult(state="down", detail="not set up")
        if leader is None:
            last = "".join(files.last_lines(1))
            return ProbeResult(state="down", detail=f"its process has ended: {last}", measured=measured)
        if not record.ready:
            return ProbeResult(state="down", detail="not ready yet", measured=measured)
        detail = "suspended" if leader.state == "T" else f"process {leader.pid} on port {record.port}"
        return ProbeResult(state="up", detail=detail, measured=measured)

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """``restart``, ``suspend``, ``resume``, or ``signal`` to the first process (argument ``signal``: USR1);
        ``drop`` throws away what is saved under a key.
        """
        if operation not in self.operations:
            raise unknown_operation("process", operation, self.operations)
        if operation == DROP:
            await self._saved.drop(check_unit_id(unit.unit))
            return EMPTY
        async with self._exclusively(unit.unit) as files:
            record, leader = files.record(), files.leader()
            if record is None or (leader is None and operation != "restart"):
                raise DriverError(f"unit {unit.unit} is not running: no {operation}", retry=False)
            if operation == "restart":
                return await self._restart(files, record, unit)
            if operation == "signal":
                name = str(arguments.get("signal", ""))
                if name not in _SIGNALS:
                    text = f"signal: found {name[:20]!r}, expected one of: {', '.join(_SIGNALS)}"
                    raise DriverError(text, retry=False)
                send_signals([leader] if leader else [], signal.Signals[f"SIG{name}"])
            elif operation == "suspend":
                await _suspend(files)
            else:
                send_signals(files.members(), signal.SIGCONT)
            return self._properties(record)

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """The directories of units that are not ``known``; :meth:`teardown` ends what runs in them and removes them."""
        await trio.lowlevel.checkpoint()
        left = sorted(path for path in self._units.iterdir() if path.name not in known)
        return [Orphan(self._settings.host, path.name, "directory", str(path)) for path in left]

    # The guest's side

    async def join(self, unit: UnitContext) -> Properties:
        """Connects to the unit, makes sure that it is the one meant, and adds it to ``members.json``."""
        address = unit_address(unit.properties)
        name = unit.properties.get("name", "")
        if self._settings.identify:
            answer = await ask(address, "identity", self._settings.start_timeout)
            if answer.get("unit") != name:
                text = f"{address[0]}:{address[1]} says it is unit {answer.get('unit')!r:.80}, expected {name!r:.80}"
                raise DriverError(text, retry=False)
        else:
            await (await connect(address, self._settings.start_timeout)).aclose()
        member = {"name": name, "host": address[0], "port": address[1], "lease": unit.lease, "type": unit.type}
        self._members.add(unit.unit, member)
        unit.log(f"joined at {address[0]}:{address[1]}")
        return EMPTY

    async def leave(self, unit: UnitContext) -> None:
        """Takes the unit out of ``members.json``."""
        await trio.lowlevel.checkpoint()
        self._members.remove(unit.unit)

    # Files and ports

    def _files(self, unit: str) -> UnitFiles:
        return UnitFiles(self._units / check_unit_id(unit))

    @asynccontextmanager
    async def _exclusively(self, unit: str) -> AsyncIterator[UnitFiles]:
        """One action on a unit at a time, and none while a launcher of an earlier daemon is still at it."""
        files = self._files(unit)
        async with self._locks.of(unit):
            if files.root.is_dir():
                os.close(await files.lock())
            yield files

    def _ports_on_disk(self) -> dict[str, int]:
        ports = {}
        for path in self._units.iterdir():
            # A record that can't be read is for the unit's next action to report.
            with suppress(DriverError):
                record = UnitFiles(path).record() if path.is_dir() else None
                if record is not None:
                    ports[path.name] = record.port
        return ports

    def _allocate_port(self, unit: str) -> int:
        """The first free port from where the unit's name points to: the same one whenever that is free."""
        first, last = self._settings.ports
        size = last - first + 1
        start = int.from_bytes(blake2b(unit.encode(), digest_size=8).digest(), "big") % size
        taken = set(self._ports.values())
        for step in range(size):
            port = first + (start + step) % size
            if port not in taken and _is_free(self._settings.host, port):
                self._ports[unit] = port
                return port
        raise SiteFaultError(f"no port from {first} to {last} is free on {self._settings.host}")

    def _properties(self, record: ProcessRecord) -> Properties:
        return {"name": record.unit, "host": self._settings.host, "port": str(record.port)}

    def _write_config(self, files: UnitFiles, unit: UnitContext) -> None:
        config = {"unit": unit.unit, "lease": unit.lease, "type": unit.type, "number": unit.number}
        write_whole(files.config, {**config, "properties": dict(unit.chosen)}, durable=False)

    async def _remove(self, files: UnitFiles) -> None:
        """Ends the unit's processes and removes its directory; its port is free then. What it was to go on from, and
        has not yet, is put back.
        """
        await stop_processes(files.members, self._settings.grace)
        await self._saved.put_back(files)
        await trio.to_thread.run_sync(wipe, files.root)
        self._ports.pop(files.root.name, None)

    # Starting

    async def _make(self, files: UnitFiles, unit: UnitContext) -> Properties:
        port = self._allocate_port(unit.unit)
        try:
            make_private(files.work)
        except OSError as error:
            raise SiteFaultError(f"can't make {files.work}: {error.strerror}") from error
        self._write_config(files, unit)
        record = ProcessRecord(
            unit=unit.unit, lease=unit.lease, type=unit.type, number=unit.number, port=port, ready=False
        )
        return await self._start(files, record, unit)

    async def _restart(self, files: UnitFiles, record: ProcessRecord, unit: UnitContext) -> Properties:
        record = attrs.evolve(record, ready=False)
        files.write_record(record)
        await stop_processes(files.members, self._settings.grace)
        for path in (files.pid, files.ready):
            path.unlink(missing_ok=True)
        try:
            return await self._start(files, record, unit)
        except BaseException:
            with trio.CancelScope(shield=True):
                await stop_processes(files.members, self._settings.grace)
            raise

    async def _start(self, files: UnitFiles, record: ProcessRecord, unit: UnitContext) -> Properties:
        """Starts the command and waits until it is ready; then the record says so."""
        files.write_record(record)
        start = UnitStart(files, self._settings.ready)
        try:
            await start.launch(self._spec(files, record))
            await start.wait_ready((self._settings.host, record.port), self._settings.start_timeout)
        finally:
            for line in files.last_lines(200):
                unit.log(line)
            await start.close()
        record = attrs.evolve(record, ready=True)
        files.write_record(record)
        unit.log(f"serves on {self._settings.host}:{record.port}; what it writes is in {files.output}")
        return self._properties(record)

    def _spec(self, files: UnitFiles, record: ProcessRecord) -> dict[str, Any]:
        """What ``launcher`` is told, but for its descriptors."""
        environment = {
            "HOME": str(files.work),
            "TMPDIR": str(files.work),
            **self._environment,
            "LEASEKIT_UNIT": record.unit,
            "LEASEKIT_HOST": self._settings.host,
            "LEASEKIT_PORT": str(record.port),
            "LEASEKIT_CONFIG": str(files.config),
            "LEASEKIT_READY_FILE": str(files.ready),
            DIRECTORY_VARIABLE: str(files.root),
        }
        return {
            "command": self._command,
            "environment": environment,
            "directory": str(files.work),
            "output": str(files.output),
            "pid_file": str(files.pid),
            "boot": boot_id(),
            "limits": self._settings.limits.as_resources(),
        }


async def _suspend(files: UnitFiles) -> None:
    """Stops all processes of a unit; returns when they are. Only a parent gets an event for that, so it looks."""
    with trio.move_on_after(SUSPEND_TIMEOUT / SECOND):
        while running := [state for state in files.members() if state.state not in "Tt"]:
            send_signals(running, signal.SIGSTOP)
            await trio.sleep(0.001)
        return
    raise DriverError(f"a process does not stop within {SUSPEND_TIMEOUT} ms")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class SavedUnits:
    """The directories that were put aside, in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, key: str) -> bool:
        """Whether anything is kept under a key."""
        return (self._root / key).is_dir()

    async def put(self, key: str, files: UnitFiles) -> str:
        """Put a unit's directory aside; none of its processes may be left. Returns why not, if it can't be."""

        def put() -> None:
            self._root.mkdir(mode=0o700, exist_ok=True)
            write_whole(files.saved, {"key": key})
            _move(files.root, self._root / key)

        try:
            await trio.to_thread.run_sync(put)
        except (OSError, DriverError) as error:
            files.saved.unlink(missing_ok=True)
            return one_line(str(error))
        return ""

    async def take(self, key: str, files: UnitFiles) -> str:
        """Make what is kept under a key the unit's directory, which must not be there. Returns why not, if nothing is
        kept. Raises ``DriverError``.
        """
        kept = UnitFiles(self._root / key)
        if not kept.saved.is_file():
            return "what was saved of it is gone"
        await self._moved(kept.root, files.root)
        for path in (files.pid, files.ready):
            path.unlink(missing_ok=True)
        return ""

    def took(self, files: UnitFiles) -> None:
        """The unit is ready: what it went on from is its own now."""
        files.saved.unlink(missing_ok=True)

    async def put_back(self, files: UnitFiles) -> None:
        """Put aside again what a unit was to go on from, if it is not ready yet. Raises ``DriverError``."""
        table = read_table(files.saved)
        if table is not None:
            await self._moved(files.root, self._root / check_unit_id(str(table.get("key", ""))))

    async def drop(self, key: str) -> None:
        """Throw away what is kept under a key. Raises ``DriverError``."""
        await trio.to_thread.run_sync(wipe, self._root / key)

    async def _moved(self, here: Path, there: Path) -> None:
        try:
            await trio.to_thread.run_sync(_move, here, there)
        except OSError as error:
            raise DriverError(f"can't move {here}: {error.strerror}") from error


def _move(here: Path, there: Path) -> None:
    here.rename(there)
    for folder in {here.parent, there.parent}:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
