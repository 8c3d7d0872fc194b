"""Mapper turns in threads of their own, under a time limit.

A thread can't be ended from outside. One that takes too long gets an exception raised into it, which ends a loop in
Python at its next step; until it has ended (a call into C may never look) it counts as a runaway, and past a limit
no new turn begins.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

import trio

from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import SECOND, Duration, format_duration

_raise_into: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_into.argtypes = (ctypes.c_ulong, ctypes.py_object)


class TurnAbandonedError(BaseException):
    """Raised into a mapper that took too long. No ``Exception``, so that a mapper's own handlers let it pass."""


class _Run:
    """One turn in one thread."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._token = trio.lowlevel.current_trio_token()
        self._over = threading.Lock()
        self._ended = False
        self.result: TurnDone | None = None
        self.finished = trio.Event()
        # A daemon thread: a runaway must not keep the process from ending.
        self._thread = threading.Thread(target=self._main, name=f"mapper turn {turn.number}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            result = self._turn.run()
            with self._over:
                self._ended = True
            self._tell(result)
        except TurnAbandonedError:
            with self._over:
                self._ended = True
        except BaseException as error:  # noqa: BLE001 - a mapper that calls sys.exit() must not end its turn unheard
            self._tell(TurnDone(self._turn.number, error=f"{type(error).__name__}: {error}"))

    def _tell(self, result: TurnDone) -> None:
        self.result = result
        try:
            self._token.run_sync_soon(self.finished.set)
        except trio.RunFinishedError:
            return  # nobody is there any more to hear it

    def abandon(self) -> None:
        """Raise into the thread, if it is still with the mapper."""
        with self._over:
            if not self._ended and self._thread.ident is not None:
                _raise_into(self._thread.ident, TurnAbandonedError)


class TurnRunner:
    """Runs the turns of one actor. ``timeout`` is in milliseconds."""

    def __init__(self, timeout: Duration, runaways_max: int) -> None:
        self._timeout = timeout
        self._runaways_max = runaways_max
        self._runaways: list[_Run] = []

    @property
    def runaways(self) -> int:
        """How many turns that were given up are still running."""
        self._runaways = [run for run in self._runaways if run.alive]
        return len(self._runaways)

    async def run(self, turn: Turn) -> TurnDone:
        """What the mapper decided, or that it took too long."""
        if self.runaways >= self._runaways_max:
            await trio.sleep(self._timeout / SECOND)
            if self.runaways >= self._runaways_max:
                text = f"not called: {self.runaways} earlier turns took too long and are still running"
                return TurnDone(turn.number, error=text)
        run = _Run(turn)
        try:
            with trio.move_on_after(self._timeout / SECOND):
                await run.finished.wait()
        finally:
            if run.result is None:
                run.abandon()
                self._runaways.append(run)
        if run.result is None:
            return TurnDone(turn.number, error=f"took longer than {format_duration(self._timeout)} and was given up")
        return run.result
