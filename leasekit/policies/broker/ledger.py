"""What holders have been granted over time, as far as it is known here. What a broker knows it shows with its cycle."""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.core.profile import Profile
from leasekit.core.time import Term


class Ledger:
    """Units by holder and type."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[str, str], Profile] = {}

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
