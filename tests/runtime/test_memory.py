"""Memory that a flood had is the system's again when the flood is over."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

import trio
import trio.testing
from polling import PATIENCE
from transport_nodes import KEYS, TCP, Node, Raw

from leasekit.runtime.sockets import Tls

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


async def test_connections_that_are_over_are_given_up(nursery: trio.Nursery) -> None:
    """At once, with their buffers, and not at a collection of all objects, which may be days away: those that lasted,
    and those whose handshake failed.
    """
    bob = await Node("bob", {"alice": None}, [TCP]).start(nursery)
    where, tls = bob.transport.bound[0], Tls(KEYS["mallory"], "mallory")
    gc.disable()
    try:
        alice = await Raw.dial(bob, "alice")
        assert streams() == 2
        await trio.aclose_forcefully(alice.stream)
        await bob.until(lambda: len(bob.losses) == 1)
        del alice
        stream = await trio.open_tcp_stream(where.host, where.port)
        secured = await tls.handshake(stream, tls.client(KEYS["bob"].public), dialled=True)
        with suppress(trio.BrokenResourceError):
            assert await secured.receive_some() == b""
        del secured
        await trio.aclose_forcefully(stream)
        with trio.fail_after(PATIENCE):
            while streams():
                await trio.testing.wait_all_tasks_blocked()
    finally:
        gc.enable()


def streams() -> int:
    """How many TLS streams there are, of use or not."""
    return sum(type(one) is trio.SSLStream for one in gc.get_objects())
