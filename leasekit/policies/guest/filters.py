"""Filters between a noisy load signal and the demand that a guest asks for.

Theory of operation of the "flop-flip" filter (Shirako, section 5.2, after Muse): the filter holds a stable
estimate E of demand while E lies within a tolerance of a moving average A of recent observations x; once it
does not, E becomes A::

    E(t) = E(t-1)   if |E(t-1) - A(t)| <= threshold * sigma(t)
           A(t)     otherwise

sigma is the standard deviation of the observations in a sliding window (the paper: 150 minutes, that is 30
samples five minutes apart; a step threshold of one standard deviation). The paper calls A a sliding-window
moving average and "a heavily damped average", and the formula is lost from the text that we have, so both
readings are settings: ``average = "damped"``, A(t) = d * A(t-1) + (1-d) * x(t) with damping d (the default), or
``average = "window"``, the plain mean of the window. The default damping of 7/8 is our choice.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import attrs

from leasekit.core.tuples import new_tuple

Average = Literal["damped", "window"]


@attrs.frozen
class FlopFlipSettings:
    """How a flop-flip filter smooths."""

    window: int = attrs.field(default=30, validator=attrs.validators.ge(1))
    """Samples over which the standard deviation (and the mean, if ``average = "window"``) is taken."""
    threshold: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    """How many standard deviations the estimate may lie from the moving average before it moves."""
    damping: float = attrs.field(default=0.875, validator=[attrs.validators.ge(0), attrs.validators.lt(1)])
    """The weight of the old average in the new one; no effect with ``average = "window"``."""
    average: Average = "damped"
    """Which moving average the estimate is held against."""


class Moments(NamedTuple):
    """Number, mean and sum of squared distances from the mean of some samples."""

    samples: int
    mean: float
    spread: float

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets together (Chan, Golub and LeVeque); only adds, so nothing cancels."""
        if not self.samples or not other.samples:
            return self if self.samples else other
        samples = self.samples + other.samples
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.samples / samples)
        spread = self.spread + other.spread + delta * delta * (self.samples * other.samples / samples)
        return new_tuple(Moments, (samples, mean, spread))

    @property
    def deviation(self) -> float:
        """The standard deviation of the samples, as the whole population."""
        return math.sqrt(self.spread / self.samples) if self.samples else 0.0


_NONE = Moments(0, 0.0, 0.0)


class SlidingMoments:
    """Mean and standard deviation of the last ``window`` samples; amortised O(1) per sample.

    A queue of two stacks: the older samples as merged suffixes, ready to be dropped one by one, the newer ones
    as one running total. Samples are only ever added, never subtracted, so that a huge sample leaves no error
    behind once it has left the window.
    """

    __slots__ = ("_newer", "_newer_total", "_older", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._older: list[Moments] = []
        self._newer: list[float] = []
        self._newer_total = _NONE

    def add(self, sample: float) -> Moments:
        """Takes one sample in, drops the one that leaves the window, and returns the moments of the window."""
        if len(self._older) + len(self._newer) == self._window:
            self._drop_oldest()
        self._newer.append(sample)
        self._newer_total = self._newer_total.merged(new_tuple(Moments, (1, sample, 0.0)))
        return self._older[-1].merged(self._newer_total) if self._older else self._newer_total

    def _drop_oldest(self) -> None:
        if not self._older:
            suffix = _NONE
            for sample in reversed(self._newer):
                suffix = new_tuple(Moments, (1, sample, 0.0)).merged(suffix)
                self._older.append(suffix)
            self._newer.clear()
            self._newer_total = _NONE
        self._older.pop()


class FlopFlip:
    """A flop-flip filter: feed it one observation per interval, it returns the estimate to act on."""

    __slots__ = ("_average", "_estimate", "_moments", "settings")

    def __init__(self, settings: FlopFlipSettings | None = None) -> None:
        self.settings = settings if settings is not None else FlopFlipSettings()
        self._moments = SlidingMoments(self.settings.window)
        self._average: float | None = None
        self._estimate: float | None = None

    @property
    def estimate(self) -> float | None:
        """The estimate that is held now, or none before the first observation."""
        return self._estimate

    def observe(self, value: float) -> float:
        """Takes in one observation and returns the estimate.

        Raises ``ValueError`` on a value that is not finite, and is unchanged by it.
        """
        if not math.isfinite(value):
            raise ValueError(f"observation: found {value}, allowed is a finite number")
        moments = self._moments.add(value)
        average = self._average = self._next_average(value, moments)
        if self._estimate is None or abs(self._estimate - average) > self.settings.threshold * moments.deviation:
            self._estimate = average
        return self._estimate

    def _next_average(self, value: float, moments: Moments) -> float:
        if self.settings.average == "window":
            return moments.mean
        if self._average is None:
            return value
        # Written as a step towards the value, so that a constant signal is reproduced to the last digit.
        return self._average + (1 - self.settings.damping) * (value - self._average)
