"""TCP connections at their worst: a proxy for each pair of actors that delays, stalls, cuts, garbles and half-opens.

What befalls a connection depends on the seed, its link and its number, so a run can be had again as far as the
processes let it. The proxy runs in a thread of its own; :meth:`Proxies.calm` ends all misfortune.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import trio

HOST: Final = "127.0.0.1"
CHUNK: Final = 16 * 1024
CALM: Final = "calm"
FATES: Final = (
    ("cut", 30),
    ("cut in mid-frame", 15),
    ("stall", 20),
    ("half open", 20),
    ("garbled", 10),
    ("refused", 5),
)
"""What ends or mars a connection, and how often in a hundred."""
LIFE: Final = 4.0
"""How long a connection fares well on average, in seconds."""
DELAYS: Final = (0, 0, 0, 0, 0.002, 0.01, 0.05, 0.2)
LINGER: Final = 2.5
"""The longest stall, and the longest time for which one side does not hear that the other is gone, in seconds."""


class _Connection:
    """One connection through the proxy."""

    def __init__(self, dialler: trio.SocketStream, rng: Random, counts: Counter[str], calm: trio.Event) -> None:
        self._ends = [dialler]
        self._rng, self._counts, self._calm = rng, counts, calm
        self._fate = rng.choices([name for name, _ in FATES], [share for _, share in FATES])[0]
        self._open = trio.Event()
        self._open.set()
        self._swallows: set[int] = set()
        self._garbles = self._tears = False

    async def run(self, port: int) -> None:
        """Until both ends are closed."""
        dialler = self._ends[0]
        try:
            if self._fate == "refused" and not self._calm.is_set():
                self._counts[self._fate] += 1
                return
            try:
                self._ends.append(await trio.open_tcp_stream(HOST, port))
            except OSError:
                self._counts["nobody there"] += 1
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, 0, nursery.cancel_scope)
                nursery.start_soon(self._pump, 1, nursery.cancel_scope)
                nursery.start_soon(self._befall, nursery.cancel_scope)
        finally:
            for end in (dialler, *self._ends):
                await trio.aclose_forcefully(end)

    async def _pump(self, side: int, both: trio.CancelScope) -> None:
        """Carry bytes from one side to the other."""
        source, target = self._ends[side], self._ends[1 - side]
        try:
            while data := await source.receive_some(self._rng.choice((100, 1000, CHUNK, CHUNK))):
                if not self._calm.is_set():
                    await self._wait(self._rng.choice(DELAYS))
                    await self._open.wait()
                if side in self._swallows:
                    continue
                if self._tears:
                    await target.send_all(data[: self._rng.randrange(len(data))])
                    both.cancel()
                if self._garbles:
                    place = self._rng.randrange(len(data))
                    data = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
                    self._garbles = False
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side is gone: what follows is the same as at its end
        if self._rng.random() < 0.3:
            self._counts["the end hidden"] += 1
            await self._wait(self._rng.uniform(0, LINGER))
        both.cancel()

    async def _befall(self, both: trio.CancelScope) -> None:
        """Wait for what is to happen to the connection, and let it happen."""
        await self._wait(self._rng.expovariate(1 / LIFE))
        if self._calm.is_set():
            return
        fate = self._fate
        self._counts[fate] += 1
        if fate == "cut":
            both.cancel()
        elif fate == "cut in mid-frame":
            self._tears = True
        elif fate == "garbled":
            self._garbles = True
        elif fate == "stall":
            self._open = trio.Event()
            await self._wait(self._rng.uniform(0.1, LINGER))
            self._open.set()
        elif fate == "half open":
            # Both ends think that they are connected, and one of them (or neither) is heard.
            self._swallows.update(self._rng.choice(((0,), (1,), (0, 1))))
            await self._wait(self._rng.uniform(0.5, 2 * LINGER))
            both.cancel()

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until nothing is to go wrong any more."""
        if seconds:
            with trio.move_on_after(seconds):
                await self._calm.wait()


class Proxies:
    """Ports that lead to other ports. Links are made before the ``with`` block in which they work."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self._links: list[tuple[str, socket.socket, int]] = []
        self._token: trio.lowlevel.TrioToken | None = None
        self._calm: trio.Event | None = None
        self._scope: trio.CancelScope | None = None

    def link(self, name: str, target: int) -> int:
        """A port of its own that leads to the port ``target``; ``name`` says for whom."""
        listener = socket.create_server((HOST, 0), backlog=64)
        self._links.append((name, listener, target))
        return int(listener.getsockname()[1])

    def calm(self) -> None:
        """From now on every connection is carried as it should be; what was being spoilt ends."""
        assert self._token is not None and self._calm is not None, "it runs"
        self._token.run_sync_soon(self._calm.set)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Carry connections while the block runs."""
        started = threading.Event()
        thread = threading.Thread(target=trio.run, args=(self._main, started), name="proxies", daemon=True)
        thread.start()
        started.wait()
        try:
            yield
        finally:
            assert self._token is not None and self._scope is not None, "it has started"
            self._token.run_sync_soon(self._scope.cancel)
            thread.join()

    async def _main(self, started: threading.Event) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._calm = trio.Event()
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                for name, listener, target in self._links:
                    listener.setblocking(False)
                    stream = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
                    nursery.start_soon(self._serve, nursery, name, stream, target)
                started.set()

    async def _serve(self, nursery: trio.Nursery, name: str, listener: trio.SocketListener, target: int) -> None:
        assert self._calm is not None, "made first"
        number = 0
        async with listener:
            while True:
                dialler = await listener.accept()
                number += 1
                self.counts["connections"] += 1
                rng = Random(f"{self.seed} {name} {number}")
                nursery.start_soon(_Connection(dialler, rng, self.counts, self._calm).run, target)
