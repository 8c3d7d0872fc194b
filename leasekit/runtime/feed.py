"""Telling those who watch what happens, without ever waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

WATCH_MAX = 10_000
"""How many items wait for a watcher that is slow; further ones are left out, and it is told how many."""


class Watcher(Generic[T]):
    """One who watches. ``missed`` counts the items that were left out since :meth:`take` returned last."""

    def __init__(self, wanted: Callable[[T], bool], limit: int) -> None:
        self._wanted = wanted
        self._limit = limit
        self._items: list[T] = []
        self._event = trio.Event()
        self.missed = 0

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
