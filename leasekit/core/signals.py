"""Step functions over time, and load signals made of them.

A step function is kept as two compact arrays: the instants at which it takes a new value, ascending, and those
values. It is 0 before its first instant, and its last value holds from there on. Nothing here reads a clock, a
file or a random number: readers and the generator of synthetic load make a :class:`Signal` from pairs.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from leasekit.core.time import Duration, Instant, Term

WHOLE_TOLERANCE = 1e-9
"""How far above a whole number a value may lie, relative to it, and still count as that number of units.

Scaling leaves rounding errors in the last digits; without the tolerance 7/49 of 49 nodes would be 8 nodes."""

Resampling = Literal["mean", "peak", "sample"]


class SignalSteps:
    """A step function of time: what signals and recorded series have in common, all of it read-only."""

    __slots__ = ("_instants", "_values")

    def __init__(self) -> None:
        self._instants = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._instants)

    def __iter__(self) -> Iterator[tuple[Instant, float]]:
        """The pairs (instant of change, value from there on), ascending."""
        return zip(self._instants, self._values, strict=True)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._instants == other._instants and self._values == other._values

    @property
    def first(self) -> Instant | None:
        """The instant of the first pair, or none where there are no pairs."""
        return self._instants[0] if self._instants else None

    @property
    def last(self) -> Instant | None:
        """The instant of the last pair, or none where there are no pairs."""
        return self._instants[-1] if self._instants else None

    def value(self, at: Instant) -> float:
        """The value at an instant; O(log n)."""
        index = bisect_right(self._instants, at)
        return self._values[index - 1] if index else 0.0

    def steps(self, window: Term) -> Iterator[tuple[Instant, Instant, float]]:
        """The pieces (start, end, value) that fill the window exactly, in order; none if it is empty."""
        start, value = window.start, self.value(window.start)
        low = bisect_right(self._instants, window.start)
        high = bisect_left(self._instants, window.end)
        for index in range(low, high):
            instant = self._instants[index]
            yield start, instant, value
            start, value = instant, self._values[index]
        if start < window.end:
            yield start, window.end, value

    def integral(self, window: Term) -> float:
        """The sum of value times milliseconds over the window (for units held: unit-milliseconds)."""
        return math.fsum(value * (end - start) for start, end, value in self.steps(window))

    def mean(self, window: Term) -> float:
        """The time-weighted mean over the window. Raises ``ValueError`` on an empty window."""
        check_window(window)
        return self.integral(window) / window.length

    def peak(self, window: Term | None = None) -> float:
        """The largest value that the function takes in the window, or anywhere in its pairs; 0 if it has none."""
        if window is None:
            return max(self._values, default=0.0)
        check_window(window)
        return max(value for _, _, value in self.steps(window))

    def sampled(self, start: Instant, end: Instant, interval: Duration) -> Iterator[tuple[Instant, float]]:
        """The pairs (instant, value) at start, start + interval, ... before end.

        One pass over the pairs, so sampling a month costs O(n + samples). Raises ``ValueError`` on an interval
        that is not positive.
        """
        _check_interval(interval)
        instants, values = self._instants, self._values
        index, value = bisect_right(instants, start), self.value(start)
        for at in range(start, end, interval):
            while index < len(instants) and instants[index] <= at:
                value = values[index]
                index += 1
            yield at, value


class Signal(SignalSteps):
    """A load signal: a step function that does not change once made.

    ``pairs`` are (instant in ms, value), strictly ascending by instant; ``end`` is the instant up to which the
    last value is known to hold (default: the last instant), which only :attr:`covers` and windows of experiments
    care about. Raises ``ValueError`` with the index and what was found when a pair is out of order or not finite.
    """

    __slots__ = ("_end",)

    def __init__(self, pairs: Iterable[tuple[Instant, float]], *, end: Instant | None = None) -> None:
        super().__init__()
        previous: Instant | None = None
        for index, (instant, value) in enumerate(pairs):
            if previous is not None and instant <= previous:
                raise ValueError(f"pair {index}: instant {instant} must be later than the one before it, {previous}")
            _check_value(index, instant, value)
            self._instants.append(instant)
            self._values.append(value)
            previous = instant
        self._end = self._checked_end(end)

    @classmethod
    def of(cls, instants: array[Instant], values: Iterable[float], *, end: Instant) -> Signal:
        """The signal that takes ``values`` at ``instants``: an array that ascends, and that nobody changes any more, as
        signals share it. Raises ``ValueError`` for values that are not finite, or not as many.
        """
        made = cls(())
        made._instants, made._values = instants, array("d", values)
        if len(made) != len(made._values):
            raise ValueError(f"{len(made)} instants and {len(made._values)} values: there must be as many of each")
        for index in () if all(map(math.isfinite, made._values)) else range(len(made)):
            _check_value(index, instants[index], made._values[index])
        made._end = made._checked_end(end)
        return made

    def _checked_end(self, end: Instant | None) -> Instant:
        last = self.last
        if end is None:
            return 0 if last is None else last
        if last is not None and end < last:
            raise ValueError(f"a signal's end {end} must not come before its last pair, at {last}")
        return end

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        if same is NotImplemented or not isinstance(other, Signal):
            return NotImplemented
        return bool(same) and self._end == other._end

    def __repr__(self) -> str:
        return f"Signal({len(self)} pairs, first={self.first}, end={self._end})"

    @property
    def end(self) -> Instant:
        """The instant up to which the signal is known."""
        return self._end

    def covers(self, window: Term) -> bool:
        """Whether the signal is known all over the window."""
        return self.first is not None and self.first <= window.start and window.end <= self._end

    def mapped(self, change: Callable[[float], float]) -> Signal:
        """The signal with every value changed by a function, which must return finite numbers."""
        return Signal.of(self._instants, map(change, self._values), end=self._end)

    def scaled(self, *, peak: float, window: Term | None = None) -> Signal:
        """The signal times the factor that makes its peak, in the window or anywhere, exactly ``peak``.

        Raises ``ValueError`` when the signal has no positive value there, or ``peak`` is negative.
        """
        if not (math.isfinite(peak) and peak >= 0):
            raise ValueError(f"cannot scale to a peak of {peak}: it must be a finite number of at least 0")
        found = self.peak(window)
        if found <= 0:
            where = "anywhere" if window is None else f"in [{window.start}, {window.end})"
            raise ValueError(f"cannot scale to a peak of {peak}: the signal has no value above 0 {where}")
        # Dividing first makes the largest value exactly 1.0, so that the peak is met exactly and never passed.
        return self.mapped(lambda value: value / found * peak)

    def shifted(self, by: Duration) -> Signal:
        """The signal as it is, ``by`` milliseconds later (earlier where negative)."""
        return Signal(((instant + by, value) for instant, value in self), end=self._end + by)

    def between(self, window: Term) -> Signal:
        """The part of the signal in the window: 0 before it; its last value there holds on after it."""
        check_window(window)
        return Signal(((start, value) for start, _, value in self.steps(window)), end=window.end)

    def resampled(self, interval: Duration, how: Resampling = "mean", *, origin: Instant = 0) -> Signal:
        """The signal in bins of one length, aligned to ``origin``, from its first pair to its end.

        A bin's value is the time-weighted mean over the bin, its peak there, or the sample at the bin's start;
        of the first bin only the part since the first pair counts. Raises ``ValueError`` on an interval that is
        not positive.
        """
        _check_interval(interval)
        first, last = self.first, self.last
        if first is None or last is None:
            return Signal((), end=self._end)
        low = origin + (first - origin) // interval * interval
        known = max(self._end, last + 1)
        high = origin - (origin - known) // interval * interval
        if how == "sample":
            pairs: Iterator[tuple[Instant, float]] = self.sampled(low, high, interval)
        else:
            pairs = self._bins(low, high, interval, first, how)
        return Signal(pairs, end=high)

    def _bins(
        self, low: Instant, high: Instant, interval: Duration, first: Instant, how: Resampling
    ) -> Iterator[tuple[Instant, float]]:
        for start in range(low, high, interval):
            part = Term(max(start, first), start + interval)
            yield start, self.mean(part) if how == "mean" else self.peak(part)

    def rounded_up(self) -> Signal:
        """The signal in whole units, rounded up (but see :data:`WHOLE_TOLERANCE`)."""
        return self.mapped(whole_units)


def _check_value(index: int, instant: Instant, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"pair {index} at {instant}: value {value} must be a finite number")


class SignalSoFar:
    """A load signal as who follows it knows it: up to the instant that it is. What is to come raises ``ValueError``.

    ``now`` tells that instant; it is for whoever calls the follower to set, and before that all is to come.
    """

    __slots__ = ("_signal", "now")

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self.now: Callable[[], Instant] = _before_all

    def whole(self) -> Signal:
        """All of it, for who says that it is to see what is to come."""
        return self._signal

    @property
    def first(self) -> Instant | None:
        """The instant of the first pair, or none where there is none yet."""
        first = self._signal.first
        return first if first is not None and first <= self.now() else None

    @property
    def end(self) -> Instant:
        """The instant up to which the signal is known: now, or its last one."""
        return min(self._signal.end, self.now())

    def covers(self, window: Term) -> bool:
        """Whether the signal is known all over the window."""
        return window.end <= self.now() + 1 and self._signal.covers(window)

    def value(self, at: Instant) -> float:
        """The value at an instant; O(log n)."""
        self._check(at)
        return self._signal.value(at)

    def mean(self, window: Term) -> float:
        """The time-weighted mean over the window. Raises ``ValueError`` on an empty window."""
        self._check(window.end - 1)
        return self._signal.mean(window)

    def peak(self, window: Term | None = None) -> float:
        """The largest value that the function has taken in the window, or so far; 0 if it has none."""
        if window is not None:
            self._check(window.end - 1)
            return self._signal.peak(window)
        first = self.first
        return 0.0 if first is None else self._signal.peak(Term(first, self.now() + 1))

    def sampled(self, start: Instant, end: Instant, interval: Duration) -> Iterator[tuple[Instant, float]]:
        """The pairs (instant, value) at start, start + interval, ... before end."""
        self._check(end - 1)
        return self._signal.sampled(start, end, interval)

    def _check(self, at: Instant) -> None:
        now = self.now()
        if at > now:
            raise ValueError(
                f"the load at {at} is to come, it is {now}: a mapper that is to see ahead says needs_future = True"
            )


def _before_all() -> Instant:
    return -1


def whole_units(value: float) -> float:
    """The smallest whole number of units that serves a demand, as a float; noise in the last digits is ignored."""
    nearest = float(round(value))
    if abs(value - nearest) <= WHOLE_TOLERANCE * max(1.0, abs(nearest)):
        return nearest
    return float(math.ceil(value))


def check_window(window: Term) -> None:
    """Raises ``ValueError`` for one that is empty."""
    if window.end <= window.start:
        raise ValueError(f"window [{window.start}, {window.end}) is empty: its end must be later than its start")


def _check_interval(interval: Duration) -> None:
    if interval <= 0:
        raise ValueError(f"interval {interval} ms must be at least 1 ms")
