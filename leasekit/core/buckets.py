"""How often something may be done. Instants are seconds of the caller's: no clock is read here."""

from __future__ import annotations


class Bucket:
    """A token bucket: ``rate`` a second on average, ``burst`` at once. What is taken beyond it is a debt to be waited
    out, so that what comes in pieces of any size is slowed down to the rate, and never refused.
    """

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``, whether it is there or not."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """The seconds until there is no debt."""
        return max(0.0, -self._level / self._rate - (now - self._at))
