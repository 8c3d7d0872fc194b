"""How many units will be needed next: forecasts for the energy manager.

A forecast is a plain object that is told, once in every decision interval, how many units are needed at that instant,
and says how many will be in the next. One of its own follows the convention of mappers: a class with the method
``forecast(now, demand)``, and with settings as an attrs class ``Settings`` if it has any.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import attrs

from leasekit.core.time import Instant


class Forecast(Protocol):
    """Says what will be needed."""

    def forecast(self, now: Instant, demand: int) -> float:
        """How many units will be needed until the next call, when ``demand`` are at ``now``. At least 0."""
        ...


class LastValue:
    """As many as now."""

    def forecast(self, now: Instant, demand: int) -> float:
        """The demand itself."""
        return demand


@attrs.frozen(kw_only=True)
class EwmaSettings:
    """Settings of :class:`Ewma`."""

    weight: float = attrs.field(default=0.25, validator=[attrs.validators.gt(0), attrs.validators.le(1)])
    """The weight of the last value; 1 is the last value alone."""
    deviations: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    """How many mean deviations of the demand from its average are added."""


class Ewma:
    """The exponentially weighted moving average of the demand, and as much more as it is wont to exceed that.

    The average alone would be too little half of the time. What is added is the average of the distance between the
    two, weighted in the same way (as TCP adds to the round-trip time).
    """

    Settings: ClassVar[type[EwmaSettings]] = EwmaSettings

    def __init__(self, settings: EwmaSettings | None = None) -> None:
        self.settings = settings or EwmaSettings()
        self._average = math.nan
        self._deviation = 0.0

    def forecast(self, now: Instant, demand: int) -> float:
        """The average, with ``deviations`` mean deviations on top."""
        weight = self.settings.weight
        if math.isnan(self._average):
            self._average = float(demand)
        off = demand - self._average
        self._average += weight * off
        self._deviation += weight * (abs(off) - self._deviation)
        return self._average + self.settings.deviations * self._deviation
