"""A step function over another one, for plans that must not change what they plan with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from leasekit.core.time import Instant
from leasekit.core.timetable.profile import FOREVER, Profile, Segment, coalesced


class Layer:
    """A step function that is a base read through, plus its own changes; the base is never written.

    A search costs what it costs in the base, times the number of own segments that it passes. Most layers are looked
    at and thrown away unchanged: until the first change there is nothing but the base.
    """

    __slots__ = ("_base", "_own")

    def __init__(self, base: StepFunction, own: Profile | None = None) -> None:
        self._base = base
        self._own = own

    @property
    def horizon(self) -> Instant:
        """The base's horizon."""
        return self._base.horizon

    def add(self, lo: Instant, hi: Instant, delta: int) -> None:
        """Add ``delta`` over ``[lo, hi)``, here and not in the base."""
        if self._own is None:
            self._own = Profile(0, self._base.horizon)
        self._own.add(lo, hi, delta)

    def value(self, instant: Instant) -> int:
        """The value at an instant."""
        if self._own is None:
            return self._base.value(instant)
        return self._base.value(instant) + self._own.value(instant)

    def min(self, lo: Instant, hi: Instant) -> int:
        """The least value over ``[lo, hi)``, which must not be empty."""
        if self._own is None:
            return self._base.min(lo, hi)
        return min(self._base.min(a, b) + extra for a, b, extra in self._own.segments(lo, hi))

    def first_at_least(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is ``level`` or more; :data:`FOREVER` if there is none."""
        if self._own is None:
            return self._base.first_at_least(lo, level)
        for start, end, extra in self._own.segments(lo, FOREVER):
            found = self._base.first_at_least(start, level - extra)
            if found < end:
                return found
        return FOREVER

    def first_below(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is less than ``level``; :data:`FOREVER` if there is none."""
        if self._own is None:
            return self._base.first_below(lo, level)
        for start, end, extra in self._own.segments(lo, FOREVER):
            found = self._base.first_below(start, level - extra)
            if found < end:
                return found
        return FOREVER

    def last_below(self, lo: Instant, hi: Instant, level: int) -> Instant:
        """The end of the last segment that meets ``[lo, hi)`` with less than ``level``; ``lo`` if there is none."""
        if self._own is None:
            return self._base.last_below(lo, hi, level)
        for start, end, extra in reversed(list(self._own.segments(lo, hi))):
            found = self._base.last_below(start, end, level - extra)
            if found > start:
                # A base segment may run on beyond `end`. Within [lo, hi) that is where later own segments, known
                # to be enough, begin; at `hi` the caller looks on from there.
                return min(found, end)
        return lo

    def segments(self, lo: Instant, hi: Instant) -> Iterator[Segment]:
        """The maximal stretches of one value, in order, clipped to ``[lo, hi)``."""
        own = self._own
        if own is None:
            return self._base.segments(lo, hi)
        return coalesced(
            (a, b, value + extra)
            for start, end, extra in own.segments(lo, hi)
            for a, b, value in self._base.segments(start, end)
        )

    def copy(self) -> Layer:
        """An independent layer over the same base."""
        return Layer(self._base, None if self._own is None else self._own.copy())

    def forget_before(self, instant: Instant) -> None:
        """Refused: history belongs to the base. Raises ``TypeError``."""
        raise TypeError("an overlay can't forget: call forget_before on the timetable that it was made from")


StepFunction: TypeAlias = Profile | Layer
"""A whole number as a function of time."""
