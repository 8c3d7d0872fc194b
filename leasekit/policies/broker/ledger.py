"""What each holder has been granted, over time: what quotas and fair shares count.

A broker knows that best: its book has every claim, also those that ended early, also after a restart. Where its cycle
offers ``usage`` (:class:`LedgerUsage`), that is what counts. Where it doesn't, a mapper counts what it has granted
itself since it was made, in a :class:`Ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from leasekit.core.mappers import BrokerCycle
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable.profile import Profile


class LedgerUsage(Protocol):
    """Units that holders have been granted, extends and modifies included, as far back as it is kept."""

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""


class Ledger:
    """A mapper's own record of what it granted. It forgets what is older than ``keep`` ms."""

    def __init__(self, keep: Duration) -> None:
        self._keep = keep
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._forgot: Instant = 0

    def add(self, holder: str, type_: str, units: int, term: Term) -> None:
        """Units were granted over a term; negative: they were given back."""
        profile = self._profiles.get((holder, type_))
        if profile is None:
            profile = self._profiles[holder, type_] = Profile()
        profile.add(term.start, term.end, units)

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        profile = self._profiles.get((holder, type_))
        if profile is not None:
            for start, end, units in profile.segments(window.start, window.end):
                if units > 0:
                    yield Term(start, end), units

    def forget(self, now: Instant) -> None:
        """Let go of what is older than it is to be kept; now and then, as it costs a step for each holder."""
        if now - self._forgot < self._keep // 16:
            return
        self._forgot = now
        for profile in self._profiles.values():
            profile.forget_before(now - self._keep)


def offered_usage(cycle: BrokerCycle) -> LedgerUsage | None:
    """The broker's own account, if its cycle has one: ``BrokerCycle.usage`` is younger than its other fields."""
    found: LedgerUsage | None = getattr(cycle, "usage", None)
    return found
