"""Commands of a site, run without a shell: what they are in a settings file, and one run from start to end."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import trio

from leasekit.core.drivers import LEASE, SITE, UNIT, Blame, DriverError
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.files import find_executable
from leasekit.drivers.names import one_line
from leasekit.drivers.processes import ProcessState, process_state, session_members, stop_processes

Command: TypeAlias = tuple[str, ...]

OUTPUT_MAX: Final = 1024 * 1024
"""The most bytes that a command may write to its standard output."""
LINE_MAX: Final = 8192
"""The longest line of standard error that is logged whole, in bytes."""
LINES_MAX: Final = 10_000
"""The most lines of standard error of one command that are logged."""
PIPE_GRACE: Final[Duration] = 1 * SECOND
"""How long output is read after the command ended, where something that it started keeps the pipes open."""
EXIT_TEMPORARY: Final = 75
"""EX_TEMPFAIL of sysexits.h: the command may succeed later."""
BLAMES: Final[Mapping[int, Blame]] = {65: LEASE, 69: SITE}
"""Whose fault it is that a command has failed: EX_DATAERR of sysexits.h, and EX_UNAVAILABLE. All else is the unit's."""

_MARK: Final = "leasekit-run-"
"""What the descriptors are called by which commands that run are known (memfd_create(2))."""
_TEMPORARY_ERRORS: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def as_commands(value: Any) -> tuple[Command, ...]:
    """Commands from a settings file: one list of words, or a list of such lists that are run in order.

    Raises ``ValueError`` in words.
    """
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError("expected a command as a list of words, or a list of commands")
    for command in value:
        if not isinstance(command, list | tuple) or not command or not all(map(_is_word, command)) or not command[0]:
            raise ValueError(f"a command is a list of words without NUL, the first a program; one is {command!r:.60}")
    return tuple(tuple(command) for command in value)


def _is_word(word: object) -> bool:
    return isinstance(word, str) and "\0" not in word


def resolve_commands(
    commands: Mapping[str, tuple[Command, ...]], directory: Path, search: str
) -> tuple[dict[str, tuple[Command, ...]], list[str]]:
    """The same commands with their programs as absolute paths, and one line for each program that can't be run."""
    resolved: dict[str, tuple[Command, ...]] = {}
    errors = []
    for name, several in commands.items():
        made = []
        for index, command in enumerate(several):
            try:
                made.append((str(find_executable(command[0], directory, search)), *command[1:]))
            except ValueError as error:
                errors.append(f"{name}[{index}]: {error}")
        resolved[name] = tuple(made)
    return resolved, errors


def abandoned() -> dict[str, list[ProcessState]]:
    """The processes of commands that go on although the daemon which began them is gone, by the mark of their unit;
    blocks. What a command left running when it had ended well is none of them.
    """
    found: dict[str, list[ProcessState]] = {}
    for process in Path("/proc").iterdir():
        state = process_state(int(process.name)) if process.name.isdecimal() else None
        if state is None or not state.alive:
            continue
        links: list[Path] = []
        with suppress(OSError):  # it has ended, or is not ours to look at
            links += (process / "fd").iterdir()
        for link in links:
            with suppress(OSError):
                name = str(link.readlink()).removesuffix(" (deleted)")
                mark, *owner = name.removeprefix("/memfd:").split(".")
                if mark.startswith(_MARK) and not link.read_bytes() and not _runs(owner):
                    found.setdefault(mark, []).append(state)
    return found


def _runs(owner: Sequence[str]) -> bool:
    """Whether the daemon with this id and start time is there still: what it runs is its own business."""
    pid, start = (int(word) if word.isdecimal() else 0 for word in (*owner, "", "")[:2])
    state = process_state(pid)
    return state is not None and state.alive and state.start == start


async def end_abandoned(found: Iterable[ProcessState], grace: Duration) -> None:
    """End what :func:`abandoned` has found, with all of its sessions. Raises ``DriverError``."""
    now = ((one, process_state(one.pid)) for one in found)
    sessions = {one.session for one, state in now if state is not None and state.start == one.start}
    with trio.CancelScope(shield=True):
        await stop_processes(lambda: [one for session in sessions for one in session_members(session)], grace)


def mark_of(unit: str, lease: str) -> str:
    """By what the commands for a lease's unit are known while they run."""
    return _MARK + hashlib.sha256(f"{lease}/{unit}".encode("utf-8", "replace")).hexdigest()[:32]


class Abandoned:
    """What a daemon that was killed had begun, as a driver of the next one finds it."""

    def __init__(self, grace: Duration) -> None:
        self._grace = grace
        self._found: dict[str, list[ProcessState]] | None = None

    async def end(self, mark: str) -> None:
        """End what goes on for a unit: nothing may work against what is done now. Raises ``DriverError``."""
        if self._found is None:
            self._found = abandoned()
        if mark in self._found:
            await end_abandoned(self._found[mark], self._grace)
            self._found.pop(mark, None)  # another action of the unit may have come first


@attrs.frozen(kw_only=True)
class Run:
    """One run of a command: ``given`` goes to its standard input, lines of standard error to ``log``.

    ``grace`` (ms) is the time between SIGTERM and SIGKILL, where it has to be ended. By its ``mark`` a later daemon
    finds it, should this one be killed: a descriptor that the command inherits, named by the mark and by this daemon,
    empty until it has ended well.
    """

    command: Command
    directory: Path
    environment: Mapping[str, str]
    given: bytes
    grace: Duration
    log: Callable[[str], None]
    what: str
    """What is being done, for errors: ``setup: clone.sh``."""
    mark: str = _MARK

    async def output(self) -> bytes:
        """Runs the command in a session of its own; returns its standard output if it ends with 0.

        What it leaves running goes on then. If it fails, writes too much or is cancelled, its whole session is ended.
        Raises ``DriverError``: retryable after exit status 69 or 75 and after a signal.
        """
        owner = process_state(os.getpid())
        assert owner is not None, "this process is there"
        mark = os.memfd_create(f"{self.mark}.{owner.pid}.{owner.start}")
        try:
            return await self._output(mark)
        finally:
            os.close(mark)

    async def _output(self, mark: int) -> bytes:
        try:
            process = await trio.lowlevel.open_process(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(mark,),
                cwd=self.directory,
                env=dict(self.environment),
            )
        except (OSError, ValueError) as error:
            raise self._not_started(error) from error
        # The process stays unreaped, so that its id, which is the session's, can't be given away, until the end.
        descriptor = await _descriptor(process)
        streams = _Streams(self.log)
        succeeded = False
        try:
            await streams.serve(process, self.given, descriptor)
            status = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            succeeded = not streams.overflow and status is not None and status.si_status == 0
            if succeeded:
                os.write(mark, b"done")
        finally:
            with trio.CancelScope(shield=True):
                try:
                    if not succeeded:
                        await stop_processes(lambda: session_members(process.pid), self.grace)
                finally:
                    os.close(descriptor)
                    await process.wait()
                    await _close(process)
        if not succeeded:
            raise self._failed(process.returncode or 0, streams)
        return bytes(streams.output)

    def _not_started(self, error: OSError | ValueError) -> DriverError:
        reason = error.strerror if isinstance(error, OSError) else one_line(str(error))
        code = error.errno if isinstance(error, OSError) else 0
        # All that can be too long for an environment is what a guest has said.
        blame: Blame = LEASE if code == errno.E2BIG else SITE
        return DriverError(f"{self.what} can't be started: {reason}", retry=code in _TEMPORARY_ERRORS, blame=blame)

    def _failed(self, code: int, streams: _Streams) -> DriverError:
        if streams.overflow:
            text = f"{self.what} wrote more than {OUTPUT_MAX} bytes to its standard output"
            return DriverError(text, retry=False)
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        last = f": {streams.last_line}" if streams.last_line else ""
        blame = BLAMES.get(code, UNIT)
        retry = code < 0 or code == EXIT_TEMPORARY or blame == SITE
        return DriverError(f"{self.what} {ended}{last}", retry=retry, blame=blame)


async def _descriptor(process: trio.Process) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError as error:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await _close(process)
        raise DriverError(f"process {process.pid} can't be watched: {error.strerror}") from error


async def _close(process: trio.Process) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


class _Streams:
    """The three pipes of a running command."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.output = bytearray()
        self.overflow = False
        self.last_line = ""
        self._log = log
        self._lines = 0

    async def serve(self, process: trio.Process, given: bytes, descriptor: int) -> None:
        """Returns when the process ended and its pipes are read, or when it wrote too much."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, process.stdin, given)
            nursery.start_soon(self._collect, process.stdout, nursery.cancel_scope)
            nursery.start_soon(self._follow, process.stderr)
            await trio.lowlevel.wait_readable(descriptor)
            nursery.cancel_scope.deadline = trio.current_time() + PIPE_GRACE / SECOND

    async def _feed(self, stream: trio.abc.SendStream, given: bytes) -> None:
        try:
            async with stream:
                await stream.send_all(given)
        except trio.BrokenResourceError:
            pass  # It does not want to know: that is its right.

    async def _collect(self, stream: trio.abc.ReceiveStream, scope: trio.CancelScope) -> None:
        async for piece in stream:
            self.output += piece
            if len(self.output) > OUTPUT_MAX:
                self.overflow = True
                scope.cancel()
                return

    async def _follow(self, stream: trio.abc.ReceiveStream) -> None:
        rest = b""
        try:
            async for piece in stream:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._write(line)
                if len(rest) > LINE_MAX:
                    self._write(rest)
                    rest = b""
        finally:
            self._write(rest)

    def _write(self, line: bytes) -> None:
        text = one_line(line[:LINE_MAX].decode("utf-8", "replace"), LINE_MAX)
        if not text:
            return
        self.last_line = one_line(text)
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log(text)
        elif self._lines == LINES_MAX + 1:
            self._log(f"(further lines are left out after {LINES_MAX})")
