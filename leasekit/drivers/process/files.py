"""The files of one unit of the process driver, and what they say of its processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.drivers.files import read_as, write_whole
from leasekit.drivers.names import one_line
from leasekit.drivers.processes import ProcessState, boot_id, has_environment, process_state, session_members

DIRECTORY_VARIABLE: Final = "LEASEKIT_UNIT_DIRECTORY"
"""The variable by which a unit's processes are known when the first of them is gone."""

_TAIL = 64 * 1024


@attrs.frozen(kw_only=True)
class ProcessRecord:
    """Whose a unit is. ``number`` is that of the setup that made it; ``ready`` whether that setup came to its end."""

    unit: str
    lease: str
    type: str
    number: int
    port: int
    ready: bool


@attrs.frozen(kw_only=True)
class Leader:
    """A unit's first process, whose id is its session's; ``start`` in ticks since the boot ``boot``."""

    pid: int
    start: int
    boot: str


class UnitFiles:
    """What is in a unit's directory. Whatever can't be read raises ``DriverError`` naming the file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.json"
        self.output = root / "output.log"
        self.pid = root / "pid.json"
        self.ready = root / "ready"
        self.work = root / "work"
        self.saved = root / "saved.json"
        self._record = root / "unit.json"
        self._lock = root / "lock"

    def record(self) -> ProcessRecord | None:
        """Whose the unit is, or none where it was never set up."""
        return read_as(ProcessRecord, self._record)

    def write_record(self, record: ProcessRecord) -> None:
        """Writes whose the unit is."""
        write_whole(self._record, attrs.asdict(record), durable=False)

    def leader(self) -> ProcessState | None:
        """The unit's first process, if it is alive."""
        noted = read_as(Leader, self.pid)
        if noted is None or noted.boot != boot_id():
            return None
        state = process_state(noted.pid)
        return state if state is not None and state.start == noted.start and state.alive else None

    def members(self) -> list[ProcessState]:
        """All processes of the unit that are alive."""
        noted = read_as(Leader, self.pid)
        if noted is None or noted.boot != boot_id():
            return []
        first = process_state(noted.pid)
        if first is not None and first.start != noted.start:
            # The id means another process by now, which it can't while one of the session is left.
            return []
        found = session_members(noted.pid)
        if first is not None:
            return found
        root = str(self.root)
        return [state for state in found if has_environment(state.pid, DIRECTORY_VARIABLE, root)]

    async def lock(self) -> int:
        """A locked descriptor, which the caller closes; waits while a launcher is at work on the unit."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DriverError(f"can't open {self._lock}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A launcher that outlived its daemon has it, for some milliseconds.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(fcntl.flock, descriptor, fcntl.LOCK_EX)
        return descriptor

    def last_lines(self, most: int) -> list[str]:
        """The last lines that the unit wrote, in order, at most ``most`` of them and 64 KiB."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        lines = [one_line(line) for line in text.splitlines()]
        return [line for line in lines if line][-most:]
