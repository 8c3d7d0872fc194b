"""What waits before an actor, and what waits for those who watch it.

The queue in front of an actor (:class:`Inbox`) is bounded for those that can wait, and open for what is bounded anyway.
Each peer has a lane of its own, and lanes are taken from in turn by what they cost (start-time fair queueing): next is
whoever has used the least of the actor's time. So what a busy peer has sent waits behind itself, not before what
others send, however many or dear its messages are. Who comes anew begins where the others are: nobody saves up turns.
How much is stepped in one go (:class:`Pace`) is bounded by time as well: nobody's turn comes before the end of it.
Those who watch (:class:`Feed`) are told what happens; nobody ever waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

import attrs
import trio

from leasekit.core.steps import Command, Connected, Disconnected, Input, Received

OWN: Final = ""
"""The lane of all that is no peer's doing."""
LEAST_COST: Final = 1e-6
"""What an input costs at least, in seconds: lanes take turns also where no cost is measured."""


@attrs.define(eq=False)
class _PeerLane:
    """What one peer has sent, each input with its bytes. ``used`` is the instant of the inbox's own time at which it
    may be served next: it goes on by what its inputs cost.
    """

    used: float
    inputs: deque[tuple[Input, float]] = attrs.field(init=False, factory=deque)
    size: float = attrs.field(init=False, default=0.0)


class Inbox:
    """Inputs in order of arrival for each peer. :meth:`put` waits for room; :meth:`put_now` does not.

    The second is for what the shell itself has set going (ends of actions and turns), of which there is never more
    than was started: if they had to wait for room, a flood from a peer could hold them up. There is room for ``limit``
    inputs, and for ``bytes_max`` bytes of what peers have sent.
    """

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit, self._bytes_max = limit, bytes_max
        self._lanes: dict[str, _PeerLane] = {}
        """Those in which something waits, or that have used more than who is served now."""
        self._turns: list[tuple[float, int, _PeerLane]] = []
        """A heap of the lanes in which something waits; a lane that was charged since is put back."""
        self._now = 0.0
        self._count = self._number = 0
        self._writers = trio.lowlevel.ParkingLot()
        self._reader = trio.Event()

    def __len__(self) -> int:
        return self._count

    async def put(self, inputs: Sequence[Input], size: int = 0) -> None:
        """Append all of ``inputs``, which come from one peer in ``size`` bytes, once there is room for one: a batch is
        not torn apart.

        Who has nothing in the inbox always finds room; otherwise its share of the limits among all that have.
        """
        lane = _lane(inputs[0])
        while self._is_full(self._lanes.get(lane)):
            await self._writers.park()
        self._append(lane, inputs, size / len(inputs))

    def put_now(self, *inputs: Input) -> None:
        """Append whether or not there is room."""
        for one in inputs:
            self._append(_lane(one), (one,), 0)

    def wake(self) -> None:
        """End a :meth:`wait` although nothing has come."""
        self._reader.set()

    def take(self) -> Input | None:
        """The oldest input of the lane that has used the least, or None if nothing waits."""
        while self._turns:
            at, _, lane = heappop(self._turns)
            if lane.used > at:
                self._queue(lane)
                continue
            self._now = at
            one, size = lane.inputs.popleft()
            lane.size -= size
            lane.used += LEAST_COST
            self._count -= 1
            if lane.inputs:
                self._queue(lane)
            if not self._count:
                # Nobody waits for anybody: what was used until now is nothing to those who come.
                self._lanes.clear()
                self._reader = trio.Event()
            self._writers.unpark_all()
            return one
        self._reader = trio.Event()
        return None

    def charge(self, peer: str, seconds: float) -> None:
        """What ``peer`` has sent took so long; its next turn comes the later."""
        self._known(peer).used += seconds

    async def wait(self, seconds: float) -> None:
        """Until something is there or ``seconds`` are over; a checkpoint in any case."""
        if self._reader.is_set():
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await self._reader.wait()

    def _is_full(self, lane: _PeerLane | None) -> bool:
        if lane is None or not lane.inputs:
            return False
        share = len(self._turns)
        return len(lane.inputs) * share >= self._limit or lane.size * share >= self._bytes_max

    def _known(self, name: str) -> _PeerLane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _PeerLane(self._now)
        elif not lane.inputs:
            lane.used = max(lane.used, self._now)
        return lane

    def _append(self, name: str, inputs: Sequence[Input], size: float) -> None:
        lane = self._known(name)
        if not lane.inputs:
            self._queue(lane)
        lane.inputs.extend((one, size) for one in inputs)
        lane.size += size * len(inputs)
        self._count += len(inputs)
        self._reader.set()

    def _queue(self, lane: _PeerLane) -> None:
        self._number += 1  # of those that have used the same, who came first
        heappush(self._turns, (lane.used, self._number, lane))


def _lane(one: Input) -> str:
    return one.peer if isinstance(one, Received | Connected | Disconnected) else OWN


def payer(one: Input) -> str | None:
    """Whose turns an input uses up: nobody's, if it is the end of what the shell has set going. Coming and going is a
    peer's own doing: what it has not acknowledged is sent again each time.
    """
    return _lane(one) if isinstance(one, Received | Connected | Disconnected | Command) else None


ROUND: Final = 0.01
"""For how many seconds an actor is at work at most before others have their turn, what it takes to commit included."""
FEWEST: Final = 6
"""So many inputs are stepped together even if they take longer: each commit has a price of its own."""


@attrs.define(eq=False)
class Pace:
    """How many inputs are stepped before what follows from them is carried out: up to ``most``, and so many that a
    round takes no longer than :data:`ROUND`, mapper's turn, commit and all.
    """

    _most: int
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = min(FEWEST, self._most)

    def note(self, inputs: int, seconds: float) -> None:
        """A round with so many inputs took so long."""
        if seconds > ROUND:
            self.size = min(self._most, max(FEWEST, int(min(self.size, inputs) * max(0.5, ROUND / seconds))))
        elif inputs == self.size:
            self.size = min(self._most, self.size + self.size // 2 + 1)


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
