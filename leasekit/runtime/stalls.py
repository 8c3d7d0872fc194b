"""How long this process has not looked at its sockets: what came meanwhile is not late.

A task that is woken because bytes have come can't know when they came. The loop may have been busy with another task
before it looked at its sockets at all; the process may have been stopped while it waited for them. So the loop is
watched: how long it ran between two looks, and by how much a look outlasted the time that it was to wait. That no look
may be so long that it hides the second, the loop is woken now and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from leasekit.core.time import SECOND, Duration
from leasekit.runtime.clock import since_boot

_NANOSECONDS: Final = 10**9


def seconds_since_boot() -> float:
    """What :func:`~leasekit.runtime.clock.since_boot` gives, in seconds."""
    return since_boot() / _NANOSECONDS


class Stalls(trio.abc.Instrument):
    """Watches trio's loop from :meth:`run` on. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._asleep = self._awake = clock()
        self._stalled = self._stalled_before = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """The loop looks at its sockets."""
        self._asleep = self.clock()
        self._stalled_before = self._stalled
        self._stalled = self._asleep - self._awake

    def after_io_wait(self, timeout: float) -> None:
        """It has looked, and goes on to run the tasks that this has woken."""
        self._awake = self.clock()
        self._stalled += max(0.0, self._awake - self._asleep - timeout)

    def lag(self) -> float:
        """For how many seconds what a task finds now may have been there unseen."""
        # A look during which the process was stopped ends empty, whatever has come: the next one finds it.
        return self._stalled_before + self._stalled + self.clock() - self._awake

    async def run(self, every: Duration) -> None:
        """Watch until cancelled; no look lasts longer than ``every`` milliseconds."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                await trio.sleep(every / SECOND)
        finally:
            trio.lowlevel.remove_instrument(self)
