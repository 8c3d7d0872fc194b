"""Calls that block, each in a thread: how many at once, how long they may take, and what becomes of one that hangs.

A thread can't be ended. One whose call hangs, on a pool whose server is away for instance, is given up: it keeps its
turn, so that such threads don't pile up, and whoever waited for it goes on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

import attrs
import outcome
import trio

from leasekit.core.time import SECOND, Duration

T = TypeVar("T")

AGAIN: Final = 1
"""Seconds between one time that a job is told to end and the next: it may not have begun yet."""

_stop: Final[ContextVar[threading.Event]] = ContextVar("leasekit_libvirt_stop")


class GivenUpError(Exception):
    """A call did not come to its end in time. What was asked for may yet be done."""


class StoppedError(Exception):
    """A call ended early, because nobody waits for it any more."""


def check_stopped() -> None:
    """For long functions, which call this often in their thread. Raises :class:`StoppedError` when they are to end."""
    stop = _stop.get(None)
    if stop is not None and stop.is_set():
        raise StoppedError


@attrs.define
class _Turn:
    """A turn among the calls of one host: a limiter to trio, which starts the clock of ``scope`` when the turn comes,
    and with ``shield`` has nothing but that end the wait from then on.
    """

    limiter: trio.CapacityLimiter
    scope: trio.CancelScope
    seconds: float
    shield: bool

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self.limiter.acquire_on_behalf_of(borrower)
        self.scope.deadline = trio.current_time() + self.seconds
        self.scope.shield = self.shield

    def release_on_behalf_of(self, borrower: object) -> None:
        self.limiter.release_on_behalf_of(borrower)


class LibvirtCalls:
    """The calls of one host: ``threads`` at once. One that hangs is given up after ``patience`` ms."""

    def __init__(self, threads: int, patience: Duration) -> None:
        self.patience = patience
        self._limiter = trio.CapacityLimiter(threads)

    async def look(self, function: Callable[[], T]) -> T:
        """What ``function`` returns, which changes nothing: when the wait is cancelled it is left alone at once.
        Raises :class:`GivenUpError`.
        """
        return await self._short(function, shield=False)

    async def act(self, function: Callable[[], T]) -> T:
        """What ``function`` returns, which takes a moment. Who cancels waits for its end, for what comes after it must
        find it done, or not done. Raises :class:`GivenUpError`.
        """
        return await self._short(function, shield=True)

    async def work(self, function: Callable[[], T], abort: Callable[[], None] | None = None) -> T:
        """What ``function`` returns, which may take long: it is given up only if it goes on when the wait was
        cancelled, though ``abort`` was called in another thread, or :func:`check_stopped` told it to end. Raises
        :class:`GivenUpError`.
        """
        stop, ended, scope = threading.Event(), trio.Event(), trio.CancelScope()
        results: list[outcome.Outcome[T]] = []

        def captured() -> outcome.Outcome[T]:
            _stop.set(stop)
            return outcome.capture(function)

        async def attend() -> None:
            try:
                with scope:
                    turn = _Turn(self._limiter, scope, math.inf, shield=True)
                    results.append(await _in_thread(captured, turn))
            finally:
                ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attend)
            try:
                await ended.wait()
            except trio.Cancelled:
                # It comes again below, once it is known how the call ended.
                stop.set()
                scope.deadline = trio.current_time() + self.patience / SECOND
                with trio.CancelScope(shield=True):
                    await self._press(abort, ended, scope.deadline)
        if not results:
            raise GivenUpError
        if isinstance(results[0], outcome.Error):
            # Why a call failed that was told to end is nothing to tell.
            await trio.lowlevel.checkpoint_if_cancelled()
        return results[0].unwrap()

    async def _short(self, function: Callable[[], T], *, shield: bool) -> T:
        seconds = self.patience / SECOND
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            return await _in_thread(function, _Turn(self._limiter, scope, seconds, shield))
        raise GivenUpError

    async def _press(self, abort: Callable[[], None] | None, ended: trio.Event, until: float) -> None:
        """Waits for the end of a call, and tells it to end time and again."""
        while abort is not None and not ended.is_set():
            with trio.CancelScope(deadline=until):
                # Not among the others: these may all hang.
                await trio.to_thread.run_sync(abort, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
            with trio.move_on_after(AGAIN):
                await ended.wait()
        await ended.wait()


async def _in_thread(function: Callable[[], T], turn: _Turn) -> T:
    # Trio takes whatever has the two methods of a limiter, and says so in its documentation.
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=turn)  # type: ignore[arg-type]
