"""Waiting for what other processes do, and looking for processes that should not be there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SETTLED_WITHIN = 60.0


def wait_until(what: str, check: Callable[[], Any], seconds: float = SETTLED_WITHIN) -> None:
    """Look until ``check()`` returns nothing that is still missing, less and less often: each look takes time from
    those who are waited for.
    """
    until, pause = time.monotonic() + seconds, 0.02
    while missing := check():
        assert time.monotonic() < until, f"{what}: {missing}"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.25)


def soon(check: Callable[[], Any]) -> None:
    """Look without a pause: what is looked for lasts for milliseconds."""
    until = time.monotonic() + SETTLED_WITHIN
    while not check():
        assert time.monotonic() < until, "it did not come to that"


def unit_processes(state: Path) -> list[int]:
    """Processes that run for a unit of this test, by the directory in their environment."""
    mark = f"LEASEKIT_UNIT_DIRECTORY={state}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended, or is not ours
    return found


@contextmanager
def no_units_left(state: Path) -> Iterator[None]:
    """End what a failed test leaves running: units belong to no daemon, and would go on for ever."""
    try:
        yield
    finally:
        for pid in unit_processes(state):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
