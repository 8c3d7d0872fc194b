"""What waits before an actor, and what waits for those who watch it.

The queue in front of an actor (:class:`Inbox`) is bounded for those that can wait, and open for what is bounded anyway.
Each peer has a lane of its own, and lanes are taken from in turn: what a busy peer has sent waits behind itself, not
before what others send. Those who watch (:class:`Feed`) are told what happens; nobody ever waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import attrs
import trio

from leasekit.core.steps import Input, Received

OWN: Final = ""
"""The lane of all that does not come from a peer."""


class Inbox:
    """Inputs in order of arrival for each peer. :meth:`put` waits for room; :meth:`put_now` does not.

    The second is for what the shell itself has set going (ends of actions and turns), of which there is never more
    than was started: if they had to wait for room, a flood from a peer could hold them up.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: dict[str, deque[Input]] = {}
        """Those in which something waits; the first is the next to be taken from."""
        self._count = 0
        self._writers = trio.lowlevel.ParkingLot()
        self._reader = trio.Event()

    def __len__(self) -> int:
        return self._count

    async def put(self, inputs: Sequence[Input]) -> None:
        """Append all of ``inputs``, which come from one peer, once there is room for one: a batch is not torn apart.

        Who has nothing in the inbox always finds room; otherwise its share of the limit among all that have.
        """
        lane = _lane(inputs[0])
        while lane in self._lanes and len(self._lanes[lane]) * len(self._lanes) >= self._limit:
            await self._writers.park()
        self._append(lane, inputs)

    def put_now(self, *inputs: Input) -> None:
        """Append whether or not there is room."""
        for one in inputs:
            self._append(_lane(one), (one,))

    def wake(self) -> None:
        """End a :meth:`wait` although nothing has come."""
        self._reader.set()

    def take(self, most: int) -> list[Input]:
        """Up to ``most`` inputs: an equal part of each lane's oldest, the rest from those that have more."""
        taken: list[Input] = []
        while self._lanes and len(taken) < most:
            part = max(1, (most - len(taken)) // len(self._lanes))
            for lane, inputs in list(self._lanes.items()):
                count = min(part, len(inputs), most - len(taken))
                taken += [inputs.popleft() for _ in range(count)]
                # To the end of the row, so that the others come first the next time.
                del self._lanes[lane]
                if inputs:
                    self._lanes[lane] = inputs
                if len(taken) == most:
                    break
        self._count -= len(taken)
        if not self._count:
            self._reader = trio.Event()
        self._writers.unpark_all()
        return taken

    async def wait(self, seconds: float) -> None:
        """Until something is there or ``seconds`` are over; a checkpoint in any case."""
        if self._reader.is_set():
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await self._reader.wait()

    def _append(self, lane: str, inputs: Sequence[Input]) -> None:
        self._lanes.setdefault(lane, deque()).extend(inputs)
        self._count += len(inputs)
        self._reader.set()


def _lane(one: Input) -> str:
    return one.peer if isinstance(one, Received) else OWN


T = TypeVar("T")

WATCH_MAX = 10_000
"""How many items wait for a watcher that is slow; further ones are left out, and it is told how many."""


@attrs.define(eq=False)
class Watcher(Generic[T]):
    """One who watches. ``missed`` counts the items that were left out since :meth:`take` returned last."""

    _wanted: Callable[[T], bool]
    _limit: int
    _items: list[T] = attrs.field(init=False, factory=list)
    _event: trio.Event = attrs.field(init=False, factory=trio.Event)
    missed: int = attrs.field(init=False, default=0)

    def offer(self, item: T) -> None:
        """Keep ``item``, if it is wanted and there is room."""
        if not self._wanted(item):
            return
        if len(self._items) >= self._limit:
            self.missed += 1
        else:
            self._items.append(item)
            self._event.set()

    async def take(self) -> tuple[list[T], int]:
        """What has come since the last time (waits for the first item), and how much was left out after it."""
        await self._event.wait()
        items, missed = self._items, self.missed
        self._items, self.missed, self._event = [], 0, trio.Event()
        return items, missed


class Feed(Generic[T]):
    """Items go to everyone who watches at the time."""

    def __init__(self) -> None:
        self._watchers: set[Watcher[T]] = set()

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def publish(self, items: Sequence[T]) -> None:
        """Offer ``items`` to all."""
        for watcher in self._watchers:
            for item in items:
                watcher.offer(item)

    @contextmanager
    def watch(self, wanted: Callable[[T], bool] = lambda item: True, limit: int = WATCH_MAX) -> Iterator[Watcher[T]]:
        """A watcher of all items from now on that are ``wanted``."""
        watcher = Watcher(wanted, limit)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
