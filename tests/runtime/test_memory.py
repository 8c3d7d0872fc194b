"""Memory that a flood had is the system's again when the flood is over."""

from __future__ import annotations

import gc
import ssl
import subprocess
import sys
import weakref

import trio
import trio.testing

from leasekit.runtime.daemon import TRIMMED_EVERY, give_memory_back

FLOOD = """
import os
from pathlib import Path

import trio
from trio.testing import MockClock

from leasekit.runtime.daemon import TRIMMED_EVERY, give_memory_back


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


before = resident()
flood = [str(number) * 4000 for number in range(10_000, 12_000)]
stays = [flood.pop(at) for at in reversed(range(0, len(flood), 4))]
flood.clear()
freed = resident()


async def give_back() -> None:
    with trio.move_on_after(TRIMMED_EVERY + 1):
        await give_memory_back()


trio.run(give_back, clock=MockClock(autojump_threshold=0))
print(freed - before, resident() - before)
"""


def test_what_a_flood_had_is_given_back() -> None:
    """Of 40 MB three quarters are freed between what stays, which the C library keeps until it is told to give them
    back. The process is a new one: in one that has freed memory a flood takes none.
    """
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    freed, given = map(int, done.stdout.split())
    assert freed > 30_000_000
    assert given < freed / 2


async def test_connections_that_are_over_are_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """trio's TLS streams refer to themselves: they go before Python looks through all objects by itself."""
    gc.disable()  # from the start: a stream that Python's own collections have passed over is young no more
    try:
        near, far = trio.testing.memory_stream_pair()
        stream = trio.SSLStream(near, ssl.create_default_context(), server_hostname="over")
        over = weakref.ref(stream)
        await trio.aclose_forcefully(stream)
        del stream
        assert over() is not None
        with trio.move_on_after(TRIMMED_EVERY + 1):
            await give_memory_back()
        assert over() is None
    finally:
        gc.enable()
    await far.aclose()
