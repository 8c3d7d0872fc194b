"""The queue in front of an actor: bounded for those that can wait, and open for what is bounded anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from leasekit.core.steps import Input


class Inbox:
    """Inputs in order of arrival. :meth:`put` waits for room; :meth:`put_now` does not.

    The second is for what the shell itself has set going (ends of actions and turns), of which there is never more
    than was started: if they had to wait for room, a flood from a peer could hold them up.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inputs: deque[Input] = deque()
        self._writers = trio.lowlevel.ParkingLot()
        self._reader = trio.Event()

    def __len__(self) -> int:
        return len(self._inputs)

    async def put(self, inputs: Sequence[Input]) -> None:
        """Append all of ``inputs`` once there is room for one: a batch is not torn apart."""
        while len(self._inputs) >= self._limit:
            await self._writers.park()
        self.put_now(*inputs)

    def put_now(self, *inputs: Input) -> None:
        """Append whether or not there is room."""
        self._inputs.extend(inputs)
        self._reader.set()

    def wake(self) -> None:
        """End a :meth:`wait` although nothing has come."""
        self._reader.set()

    def take(self, most: int) -> list[Input]:
        """Up to ``most`` of the oldest inputs."""
        inputs = self._inputs
        taken = [inputs.popleft() for _ in range(min(most, len(inputs)))]
        if not inputs:
            self._reader = trio.Event()
        if len(inputs) < self._limit:
            self._writers.unpark_all()
        return taken

    async def wait(self, seconds: float) -> None:
        """Until something is there or ``seconds`` are over; a checkpoint in any case."""
        if self._reader.is_set():
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await self._reader.wait()
