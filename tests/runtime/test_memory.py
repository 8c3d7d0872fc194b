"""Memory that a flood had is the system's again when the flood is over."""

from __future__ import annotations

import os
from pathlib import Path

import trio
import trio.testing

from leasekit.runtime.daemon import TRIMMED_EVERY, give_memory_back

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


async def test_what_a_flood_had_is_given_back(autojump_clock: trio.testing.MockClock) -> None:
    """40 MB that are freed between what stays are kept by the C library, until it is told to give them back."""
    before = resident()
    flood = [str(number) * 4000 for number in range(10_000, 12_000)]
    stays = [flood.pop(at) for at in reversed(range(0, len(flood), 4))]
    flood.clear()
    freed = resident()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_memory_back)
        await trio.sleep(TRIMMED_EVERY + 1)
        nursery.cancel_scope.cancel()
    assert len(stays) == 500
    assert freed - before > 20_000_000
    assert resident() - before < (freed - before) / 2
