"""Mappers that others wrote: their turns run in threads of their own, under a time limit.

What a process runs on its own thread it can't break off. So a daemon takes the word of leasekit's own mappers only that
they are quick; all others run apart from it, whatever they promise, and can hold up nobody but themselves.

A thread can't be ended from outside. One that takes too long gets an exception raised into it, which ends a loop in
Python at its next step; until it has ended (a call into C may never look) it counts as a runaway, and past a limit
no new turn begins.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from leasekit.config.tables import ShellSettings
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.policies.registry import is_own

UPCALL_MAX: Final[Duration] = 1 * SECOND
"""How long an actor stands still for what it must know of a mapper at once."""

_raise_into: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_into.argtypes = (ctypes.c_ulong, ctypes.py_object)


class TurnAbandonedError(BaseException):
    """Raised into a mapper that took too long. No ``Exception``, so that a mapper's own handlers let it pass."""


class _Run:
    """One call of a mapper in one thread. ``told`` is called there when it has ended in time."""

    def __init__(self, name: str, call: Callable[[], Any], told: Callable[[], object]) -> None:
        self._call = call
        self._told = told
        self._lock = threading.Lock()
        self._over = False
        self._abandoned = False
        self.value: Any = None
        self.error: BaseException | None = None
        # A daemon thread: a runaway must not keep the process from ending.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            try:
                value, error = self._call(), None
            except BaseException as raised:  # noqa: BLE001 - a mapper that calls sys.exit() must not end its turn unheard
                value, error = None, raised
            with self._lock:
                self._over = True
                if self._abandoned:
                    return
                self.value, self.error = value, error
            self._told()
        except TurnAbandonedError:
            return  # raised into the few lines above: nobody waits for the answer any more

    def abandon(self) -> str:
        """Give it up unless it has ended: from now on nobody hears what becomes of it. Returns where it is."""
        with self._lock:
            self._abandoned = True
            ident = self._thread.ident
            if self._over or ident is None:
                return ""
            frame = sys._current_frames().get(ident)
            _raise_into(ident, TurnAbandonedError)
        if frame is None:
            return ""
        where = traceback.extract_stack(frame)[-1]
        return f", in {where.name}(), {Path(where.filename).name}, line {where.lineno}"


def _too_long(timeout: Duration, where: str) -> str:
    return f"took longer than {format_duration(timeout)} and was given up{where}"


class _Runaways:
    """What was given up and still runs: so much of it, and nothing new is begun."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._runs: list[_Run] = []

    def add(self, run: _Run) -> None:
        self._runs.append(run)

    def __len__(self) -> int:
        self._runs = [run for run in self._runs if run.alive]
        return len(self._runs)

    def refusal(self) -> str:
        """Why nothing is begun; empty if it is."""
        count = len(self)
        return f"not called: {count} earlier turns took too long and are still running" if count >= self._most else ""


class TurnRunner:
    """Runs the turns of one actor. ``timeout`` is in milliseconds."""

    def __init__(self, timeout: Duration, runaways_max: int) -> None:
        self._timeout = timeout
        self.runaways = _Runaways(runaways_max)
        """The turns that were given up and are still running."""

    async def run(self, turn: Turn) -> TurnDone:
        """What the mapper decided, or that it took too long."""
        if self.runaways.refusal():
            await trio.sleep(self._timeout / SECOND)
            refusal = self.runaways.refusal()
            if refusal:
                return TurnDone(turn.number, error=refusal)
        finished, token = trio.Event(), trio.lowlevel.current_trio_token()
        run = _Run(f"mapper turn {turn.number}", turn.run, partial(_tell, token, finished))
        ended, where = False, ""
        try:
            with trio.move_on_after(self._timeout / SECOND):
                await finished.wait()
                ended = True
        finally:
            if not ended:
                where = run.abandon()
                self.runaways.add(run)
        if not ended:
            return TurnDone(turn.number, error=_too_long(self._timeout, where))
        if run.error is not None:
            return TurnDone(turn.number, error=f"{type(run.error).__name__}: {run.error}")
        done: TurnDone = run.value
        return done


def _tell(token: trio.lowlevel.TrioToken, finished: trio.Event) -> None:
    try:
        token.run_sync_soon(finished.set)
    except trio.RunFinishedError:
        return  # nobody is there any more to hear it


class Apart:
    """A mapper that is kept off its actor's step: it is not ``inline``, and has a second at most for what the actor
    must know at once (``unblock``).
    """

    inline: Final = False

    def __init__(self, mapper: Any, settings: ShellSettings) -> None:
        self._mapper = mapper
        self._timeout = min(settings.mapper_timeout, UPCALL_MAX)
        self._runaways = _Runaways(settings.runaways_max)

    def __getattr__(self, name: str) -> Any:
        """What else the mapper has, as its actor asks for it."""
        found = getattr(self._mapper, name)
        return partial(self._ask, name, found) if name == "unblock" and callable(found) else found

    def _ask(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in a thread, and wait. Raises what it raises, as an ``Exception``, and ``TimeoutError``."""
        refusal = self._runaways.refusal()
        if refusal:
            raise TimeoutError(refusal)
        finished = threading.Event()
        run = _Run(f"mapper {name}", lambda: call(*arguments), finished.set)
        if not finished.wait(self._timeout / SECOND):
            self._runaways.add(run)
            raise TimeoutError(_too_long(self._timeout, run.abandon()))
        if run.error is None:
            return run.value
        if isinstance(run.error, Exception):
            raise run.error
        raise RuntimeError(f"{type(run.error).__name__}: {run.error}") from run.error


def apart(mapper: Any, settings: ShellSettings) -> Any:
    """The mapper as a daemon calls it: itself if it is leasekit's own, else kept apart."""
    return mapper if is_own(mapper) else Apart(mapper, settings)
