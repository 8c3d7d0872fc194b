"""What each holder has been granted, over time: for mappers with quotas or fair shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from leasekit.core.leases.records import Granted
from leasekit.core.time import DAY, Duration, Instant, Term
from leasekit.core.timetable.profile import Profile

KEPT: Final[Duration] = 31 * DAY
"""How far back usage is kept. It is made from leases that the store loads: those over before a restart don't count."""
TIDY_EVERY: Final = 1024


class UsageBook:
    """A calendar of units for each holder and type (:class:`leasekit.core.mappers.Usage`)."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._changes = 0

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        profile = self._profiles.get((holder, type_))
        if profile is not None:
            for start, end, units in profile.segments(window.start, window.end):
                if units > 0:
                    yield Term(start, end), units

    def replace(
        self, holder: str, type_: str, before: Sequence[Granted], after: Sequence[Granted], now: Instant
    ) -> None:
        """A lease's claims are others than before."""
        profile = self._profiles.get((holder, type_))
        if profile is None:
            profile = self._profiles[holder, type_] = Profile()
        for claims, sign in ((before, -1), (after, 1)):
            others = after if sign < 0 else before
            for claim in claims:
                if claim not in others and claim.until > claim.term.start:
                    if sign < 0 and claim.until <= now and not any(one.key == claim.key for one in after):
                        continue  # it is over and was let go: it has been used
                    profile.add(claim.term.start, claim.until, sign * claim.units)
        self._changes += 1
        if self._changes % TIDY_EVERY == 0:
            for one in self._profiles.values():
                one.forget_before(now - KEPT)
