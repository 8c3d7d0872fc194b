"""Calls that are cancelled at a chosen place: wherever a driver waits, once each."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import trio

Place: TypeAlias = tuple[str, ...]
"""Where a task waits: the lines of leasekit's own functions that are under way, the innermost last."""

_PACKAGE = "/leasekit/"


class CancelledAt(trio.abc.Instrument):
    """Cancels one call when it, or a task that it has started, waits at ``place`` for the first time ((): nowhere).

    ``seen`` are all the places where it has waited.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.seen: dict[Place, None] = {}
        self._scope = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None

    async def run(self, call: Awaitable[Any]) -> None:
        """Until the call has ended, by itself or cancelled."""
        self._task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        try:
            with self._scope:
                await call
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task has come to where it waits."""
        place = self._place(task)
        if place and place not in self.seen:
            self.seen[place] = None
            if place == self.place:
                self._scope.cancel()

    def _place(self, task: trio.lowlevel.Task | None) -> Place:
        lines: list[str] = []
        while task is not None:
            lines[:0] = _lines(task.coro)
            if task is self._task:
                return tuple(lines)
            task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
        return ()


def _lines(waiting: Any) -> Iterator[str]:
    """The lines at which a coroutine, and those that it waits for, stand."""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None and _PACKAGE in frame.f_code.co_filename:
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
