"""Distributions of durations, and draws that depend on a key alone: not on their order, nor on how many there were."""

from __future__ import annotations

import math
from bisect import bisect_right
from hashlib import blake2b
from itertools import accumulate
from statistics import NormalDist
from typing import ClassVar, Final, TypeAlias

import attrs

from leasekit.core.settings import DurationSetting
from leasekit.core.time import Duration

_STANDARD: Final = NormalDist()


@attrs.frozen(kw_only=True)
class Fixed:
    """Always the same latency; a bare duration stands for it."""

    kind: ClassVar[str] = "fixed"
    shorthand: ClassVar[str] = "latency"
    latency: DurationSetting

    def draw(self, uniform: float) -> Duration:
        """The latency."""
        return self.latency


@attrs.frozen(kw_only=True)
class Normal:
    """Normally distributed around ``mean``, never below 0."""

    kind: ClassVar[str] = "normal"
    mean: DurationSetting
    stddev: DurationSetting

    def draw(self, uniform: float) -> Duration:
        """The latency whose cumulative probability is ``uniform``, which lies strictly between 0 and 1."""
        return max(0, round(self.mean + self.stddev * _STANDARD.inv_cdf(uniform)))


@attrs.frozen(kw_only=True)
class Exponential:
    """Exponentially distributed with this ``mean``, as the gaps of a Poisson process are."""

    kind: ClassVar[str] = "exponential"
    mean: DurationSetting

    def draw(self, uniform: float) -> Duration:
        """As :meth:`Normal.draw`."""
        return round(-self.mean * math.log1p(-uniform))


@attrs.frozen(kw_only=True)
class Lognormal:
    """Lognormally distributed around ``median``, over ``sigma`` (of the logarithm): many are short, few are long."""

    kind: ClassVar[str] = "lognormal"
    median: DurationSetting
    sigma: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0), attrs.validators.le(10)])

    def draw(self, uniform: float) -> Duration:
        """As :meth:`Normal.draw`."""
        return round(self.median * math.exp(self.sigma * _STANDARD.inv_cdf(uniform)))


@attrs.frozen(kw_only=True)
class LatencyTable:
    """One of the measured ``latencies``, each as likely as its weight (all alike where there are no ``weights``)."""

    kind: ClassVar[str] = "table"
    shorthand: ClassVar[str] = "latencies"
    latencies: tuple[DurationSetting, ...] = attrs.field(validator=attrs.validators.min_len(1))
    weights: tuple[float, ...] = ()
    _cumulated: tuple[float, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        weights = self.weights or (1.0,) * len(self.latencies)
        if len(weights) != len(self.latencies):
            raise ValueError(f"found {len(weights)} weights for {len(self.latencies)} latencies, expected one for each")
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"found weights {weights}, expected none below 0 and one above")
        object.__setattr__(self, "_cumulated", tuple(accumulate(weights)))

    def draw(self, uniform: float) -> Duration:
        """The latency that ``uniform`` (0 to 1) points at."""
        return self.latencies[bisect_right(self._cumulated, uniform * self._cumulated[-1])]


Distribution: TypeAlias = Fixed | Normal | Exponential | Lognormal | LatencyTable


def uniform(seed: int, *key: object) -> float:
    """A number strictly between 0 and 1 for a key: with 52 random bits neither end can be rounded to."""
    text = "\0".join(map(str, (seed, *key))).encode("utf-8", "surrogatepass")
    return ((int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 12) + 0.5) / 2**52
