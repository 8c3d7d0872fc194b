"""The real clock, as actors want it: Unix milliseconds that never run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from leasekit.core.time import Instant

_NANOSECONDS: Final = 1_000_000


class RealClock:
    """The system's time of day. While that is set back, this clock stands still until it has caught up.

    ``source`` gives nanoseconds since the epoch.
    """

    def __init__(self, source: Callable[[], int] = time.time_ns) -> None:
        self._source = source
        self._last: Instant = 0

    def now(self) -> Instant:
        """Milliseconds since 1970, at least as many as the last time."""
        now = self._source() // _NANOSECONDS
        if now > self._last:
            self._last = now
        return self._last

    def start_at(self, instant: Instant) -> None:
        """Never show an earlier time than ``instant``: what a store remembers from before a restart."""
        self._last = max(self._last, instant)
