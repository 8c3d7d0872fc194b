"""Starting one unit's process, and learning that it is ready: by events, but for commands that only open a port."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final, Literal

import trio

from leasekit.core.drivers import LEASE, UNIT, DriverError, SiteFaultError
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.members import connect
from leasekit.drivers.names import one_line
from leasekit.drivers.process.files import UnitFiles
from leasekit.drivers.processes import ProcessState, process_state, wait_end

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
            fault = f"was not ready within {timeout} ms"
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
