"""What mappers do wrong in an emulation: what actors say of it, and turns that do not end.

Faults are told at once, counted, and told once however often they happen. A turn that takes longer than its limit, on
this machine's clock, ends the run, never only the turn: what a mapper decides must not depend on how fast a machine is.
A timer looks every now and then which turn is running, so that turns cost nothing more. It is processor time that
counts; a turn that only waits is given four times as long, in which a process that was stopped does not count.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Final

from leasekit.actors.base import place, run_turn
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND, Duration, format_duration

Tell = Callable[[str], None]
"""Told a line for the person who watches."""

_VARIES: Final = re.compile(r"(?<!line )\b[0-9a-f-]*\d[0-9a-f-]*\b|\(waiting: .*\)")
"""What differs between two of the same: names of leases, instants, counts; a line number does not."""


class MapperFaults:
    """Of all actors of one run; ``mappers`` has the name of each one's mapper."""

    def __init__(self, mappers: Mapping[str, str], tell: Tell | None = None) -> None:
        self._mappers = mappers
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, since_start: str, actor: str, kind: str, text: str) -> None:
        """``actor`` says so, at so long after the start: ``kind`` is one of :mod:`leasekit.actors.base`."""
        self._counts.setdefault(actor, Counter())[kind] += 1
        alike = actor, _VARIES.sub("", text)
        if self._tell is not None and alike not in self._told:
            self._told.add(alike)
            self._tell(f"{actor}, mapper {self._mappers.get(actor, '?')}, after {since_start}: {text}")

    def summary(self) -> dict[str, dict[str, int]]:
        """How often each kind happened, by actor; empty where all is well."""
        return {actor: dict(sorted(kinds.items())) for actor, kinds in self._counts.items()}


RAISED_MAX: Final = 5
"""So often a turn is told to end before the process is ended: its mapper may swallow whatever is raised into it."""


class TurnLimitError(LeasekitError):
    """A mapper did not end its turn in time."""


class _Over(BaseException):
    """Raised into a turn; no ``Exception``, so that a mapper's own handlers let it pass."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class _Watch:
    def __init__(self, limit_s: float, every_s: float, who: Callable[[], str]) -> None:
        self._limit, self._every, self._who = limit_s, every_s, who
        self._turn: FrameType | None = None
        self._looks = self._raised = 0
        self._since = 0.0

    def look(self, _: int, frame: FrameType | None) -> None:
        """Which turn is running now, and for how long?"""
        inner = list(walk_stack(frame))
        outer = next((at for at, (one, _) in enumerate(inner) if one.f_code is run_turn.__code__), None)
        turn = None if outer is None else inner[outer][0]
        if turn is None or turn is not self._turn:
            self._turn, self._looks, self._raised, self._since = turn, 0, 0, time.process_time()
            return
        self._looks += 1
        if time.process_time() - self._since < self._limit and self._looks * self._every < 4 * self._limit:
            return
        where = place(reversed(inner[:outer]))
        self._raised += 1
        if self._raised > RAISED_MAX:
            text = f"{too_long(self._who(), self._limit, where)}, and could not be interrupted"
            os.write(2, f"leasekit: {text}; what is done so far is kept\n".encode())
            sys.stdout.flush()
            os._exit(1)
        raise _Over(where)


def too_long(who: str, limit_s: float, where: str) -> str:
    """In words, whose turn it was, and where the mapper was at it."""
    limit = format_duration(round(limit_s * SECOND))
    return f"{who} did not end its turn within {limit}{where}; a turn over the limit ends the run"


@contextmanager
def turn_limit(limit: Duration, who: Callable[[], str]) -> Iterator[None]:
    """End a turn that takes longer than ``limit`` by a :class:`TurnLimitError`; ``who`` says whose turn it is.

    Only in a process's main thread, the only one that a timer can interrupt; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s = limit / SECOND
    every_s = min(1.0, limit_s / 4)
    before = signal.signal(signal.SIGALRM, _Watch(limit_s, every_s, who).look)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    except _Over as over:
        raise TurnLimitError(too_long(who(), limit_s, over.where)) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
