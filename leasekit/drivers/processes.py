"""Processes, sessions and their ends, as Linux tells of them in /proc: without polling, and safe against recycled ids.

A process is known by its id, its start time and the boot it belongs to; an id alone may come to mean another process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND, Duration

KILL_TIMEOUT: Final[Duration] = 20 * SECOND
"""How long SIGKILL may take: longer only for a process that hangs in the kernel."""

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessState(NamedTuple):
    """One line of /proc/PID/stat. ``start`` is in ticks since boot, ``rss`` in bytes.

    ``cpu`` is in seconds, with that of the children which it has waited for.
    """

    pid: int
    state: str
    session: int
    start: int
    cpu: float
    rss: int
    parent: int

    @property
    def alive(self) -> bool:
        """Whether it runs or could; a zombie does not, however late its parent looks for it."""
        return self.state not in "ZXx"


def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def process_state(pid: int) -> ProcessState | None:
    """The state of a process, zombies included, or none if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; what follows the last one is numbers.
    fields = text[text.rindex(")") + 2 :].split()
    cpu = sum(map(int, fields[11:15])) / _TICKS
    return ProcessState(pid, fields[0], int(fields[3]), int(fields[19]), cpu, int(fields[21]) * _PAGE, int(fields[1]))


def session_members(session: int) -> list[ProcessState]:
    """The processes of a session that are alive, in no order."""
    states = (process_state(int(path.name)) for path in _PROC.iterdir() if path.name.isdecimal())
    return [state for state in states if state is not None and state.session == session and state.alive]


def has_environment(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with ``name=value`` in its environment, as far as that may be seen."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def open_process(state: ProcessState) -> int | None:
    """A descriptor of that very process, or none if it is gone; the caller closes it."""
    try:
        descriptor = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return None
    now = process_state(state.pid)
    if now is None or now.start != state.start:
        os.close(descriptor)
        return None
    return descriptor


async def wait_end(state: ProcessState) -> None:
    """Returns when that process has ended."""
    descriptor = open_process(state)
    if descriptor is None:
        await trio.lowlevel.checkpoint()
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def send_signals(states: Iterable[ProcessState], *numbers: signal.Signals) -> None:
    """Sends the signals to exactly these processes; one that is gone is passed over."""
    for state in states:
        descriptor = open_process(state)
        if descriptor is None:
            continue
        try:
            for number in numbers:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


async def stop_processes(members: Callable[[], list[ProcessState]], grace: Duration) -> None:
    """Ends all that ``members()`` lists, now or later: SIGTERM, and SIGKILL to what is left after ``grace`` ms.

    Raises ``DriverError`` if something outlives SIGKILL.
    """
    found = members()
    # A stopped process gets SIGTERM only when it goes on.
    send_signals(found, signal.SIGTERM, signal.SIGCONT)
    with trio.move_on_after(grace / SECOND):
        await _wait_all(found)
    with trio.move_on_after(KILL_TIMEOUT / SECOND) as limit:
        # What forks while it is being killed is found by looking again.
        while left := members():
            send_signals(left, signal.SIGKILL)
            await _wait_all(left)
    if limit.cancelled_caught and (left := members()):
        names = ", ".join(f"{state.pid} (state {state.state})" for state in left)
        raise DriverError(f"processes that do not end by SIGKILL: {names}")


async def _wait_all(states: Iterable[ProcessState]) -> None:
    with ExitStack() as stack:
        descriptors = []
        for state in states:
            descriptor = open_process(state)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
                descriptors.append(descriptor)
        await trio.lowlevel.checkpoint()
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)
