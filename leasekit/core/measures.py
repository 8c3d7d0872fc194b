"""What is measured, for those who watch: histograms, where they and other numbers are told, and figures as text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

import attrs

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
"""Bounds for what takes a program milliseconds, and somebody who waits for units minutes."""


@attrs.define(eq=False)
class Histogram:
    """How many values there were up to each of ``bounds``, in their order, and how much they are together."""

    bounds: Sequence[float] = SECONDS
    total: float = attrs.field(init=False, default=0.0)
    _counts: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def note(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """For each bound how many values are not above it; the last has all."""
        told, reached = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            reached += count
            told.append((bound, reached))
        return told


def shown_figure(value: float | None, digits: int = 3) -> str:
    """A figure for people: to so many significant digits, however small it is; whole where it has more before the
    point. Empty for None.
    """
    if value is None:
        return ""
    rounded = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


class Measuring(Protocol):
    """Takes numbers by name, with labels. What is told twice of one name has the same labels, with other values."""

    def gauge(self, name: str, words: str, value: float, **labels: str) -> None:
        """What is so now."""
        ...

    def counter(self, name: str, words: str, value: float, **labels: str) -> None:
        """What was counted since the process started; ``name`` is without the ``_total`` of its end."""
        ...

    def histogram(self, name: str, words: str, value: Histogram, **labels: str) -> None:
        """How values were distributed since the process started."""
        ...
