"""Memory that a flood had is the system's again when the flood is over."""

from __future__ import annotations

import gc
import os
import ssl
import weakref
from pathlib import Path

import trio
import trio.testing

from leasekit.runtime.daemon import TRIMMED_EVERY, give_memory_back

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


async def give_back() -> None:
    """What a daemon does now and then, once."""
    with trio.move_on_after(TRIMMED_EVERY + 1):
        await give_memory_back()


async def test_what_a_flood_had_is_given_back(autojump_clock: trio.testing.MockClock) -> None:
    """40 MB that are freed between what stays are kept by the C library, until it is told to give them back."""
    before = resident()
    flood = [str(number) * 4000 for number in range(10_000, 12_000)]
    stays = [flood.pop(at) for at in reversed(range(0, len(flood), 4))]
    flood.clear()
    freed = resident()
    await give_back()
    assert len(stays) == 500
    assert freed - before > 20_000_000
    assert resident() - before < (freed - before) / 2


async def test_connections_that_are_over_are_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """trio's TLS streams refer to themselves: they go before Python looks through all objects by itself."""
    near, far = trio.testing.memory_stream_pair()
    stream = trio.SSLStream(near, ssl.create_default_context(), server_hostname="over")
    over = weakref.ref(stream)
    gc.disable()
    try:
        await trio.aclose_forcefully(stream)
        del stream
        assert over() is not None
        await give_back()
        assert over() is None
    finally:
        gc.enable()
    await far.aclose()
