"""The energy manager's rule: how many units are to be on, and which are switched (Rossigneux, Lefèvre, Dias de
Assunção, "A Resource Reservation System to Improve the Support for HPC Applications in OpenStack", section 4).

Every ``check`` it is counted how many checks in a row each unit was idle. Every ``decide`` the units needed are the
greater of the forecast for the next interval and those that reservations hold within the horizon. If fewer are on, some
are switched on (the paper's listing has this test the wrong way round); if more are, units that were idle for long
enough, and that no reservation holds within the horizon, are switched off, the least efficient first.

It asks nobody for the time.

How many units will be needed next: forecasts for the energy manager.

A forecast is a plain object that is told, once in every decision interval, how many units are needed at that instant,
and says how many will be in the next. One of its own follows the convention of mappers: a class with the method
``forecast(now, demand)``, and with settings as an attrs class ``Settings`` if it has any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol

import attrs

from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, Duration, Instant


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


@attrs.frozen(kw_only=True)
class EnergyPowerSettings:
    """What the rule goes by."""

    check: DurationSetting = attrs.field(default=1 * MINUTE, validator=attrs.validators.ge(1))
    """How often it is looked which units are idle."""
    idle_checks: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    """For how many checks in a row a unit must have been idle to be switched off."""
    decide: DurationSetting = attrs.field(default=5 * MINUTE, validator=attrs.validators.ge(1))
    """How often it is decided how many units are to be on."""
    horizon: DurationSetting = 15 * MINUTE
    """How far ahead reservations count."""
    boot: DurationSetting = 5 * MINUTE
    """How long a unit needs to come on: one that is reserved is switched on that long, and a decision, before its
    time."""
    minimum: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """How many units (of each type) are on at least."""
    suspend_below: DurationSetting = 0
    """A unit is suspended, rather than switched off, if it is expected to be idle for less than this; 0: never."""

    @property
    def lookahead(self) -> Duration:
        """How far ahead reservations are looked for, ms: the horizon, or what booting takes if that is more."""
        return max(self.horizon, self.boot + self.decide)


class IdleChecks:
    """For how many checks in a row units were idle. Checks are at whole multiples of ``interval`` ms.

    It is told when units become idle and busy, and counts as if it had looked at every check: a unit that was busy
    between two checks only was idle at both.
    """

    def __init__(self, interval: Duration) -> None:
        self._interval = interval
        self._first: dict[str, int] = {}
        self._busy: dict[str, tuple[int, int]] = {}

    def idle(self, unit: str, at: Instant) -> None:
        """From ``at`` on the unit is idle; not news if it was already."""
        check = -(-at // self._interval)
        if unit not in self._first:
            was = self._busy.pop(unit, None)
            self._first[unit] = was[0] if was is not None and was[1] == check else check

    def busy(self, unit: str, at: Instant) -> None:
        """From ``at`` on the unit is not idle any more."""
        first = self._first.pop(unit, None)
        if first is not None:
            self._busy[unit] = first, -(-at // self._interval)

    def forget(self, unit: str) -> None:
        """The unit is not on: it counts from anew when it is."""
        self._first.pop(unit, None)
        self._busy.pop(unit, None)

    def idle_for(self, units: Iterable[str], now: Instant, checks: int) -> Iterator[str]:
        """Those of ``units`` that were idle in at least so many checks in a row (1 or more), up to ``now``."""
        latest, first = now // self._interval - checks + 1, self._first
        return (unit for unit in units if unit in first and first[unit] <= latest)


class Fleet(NamedTuple):
    """How the units of one type are: ``on`` counts those that are on, or coming on; ``in_use`` those that leases have.

    ``reserved`` is how many leases have, or will have, at once within the lookahead, by what is known of reservations.
    ``idle`` are those that are on and free, and that no reservation holds, least efficient first; ``dark`` those that
    can be switched on, in that order. ``next_due`` is when the next reservation begins beyond the lookahead, if one
    does.
    """

    in_use: int
    reserved: int
    on: int
    idle: Iterable[str]
    dark: Iterable[str]
    next_due: Instant | None = None


class Switching(NamedTuple):
    """What is to be switched: ``on``, and ``off`` (suspended, if ``suspend``)."""

    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    suspend: bool = False


class PowerManager:
    """Decides for the units of one type."""

    def __init__(self, settings: EnergyPowerSettings, forecast: Forecast) -> None:
        self.settings = settings
        self.checks: IdleChecks = IdleChecks(settings.check)
        self._forecast = forecast
        self._dark: dict[str, Instant] = {}
        self._usual = math.nan

    def needed(self, now: Instant, fleet: Fleet) -> int:
        """How many units are to be on until the next decision. Called once for each: the forecast learns from it."""
        # An average comes as near to a demand that stays as it is as numbers can, and may stay a little above it.
        forecast = round(self._forecast.forecast(now, fleet.in_use), 6)
        return max(math.ceil(forecast), fleet.reserved, self.settings.minimum)

    def decide(self, now: Instant, fleet: Fleet) -> Switching:
        """The decision for an interval."""
        needed = self.needed(now, fleet)
        if fleet.on < needed:
            return self.wake(needed - fleet.on, fleet)
        more = fleet.on - needed
        if not more:
            return Switching()
        off = tuple(islice(self.checks.idle_for(fleet.idle, now, self.settings.idle_checks), more))
        for unit in off:
            self._dark[unit] = now
            self.checks.forget(unit)
        return Switching((), off, bool(off) and self.expected(now, fleet) < self.settings.suspend_below)

    @staticmethod
    def wake(count: int, fleet: Fleet) -> Switching:
        """Switch on so many, the first of those that are dark, or what there is."""
        return Switching(tuple(islice(fleet.dark, count)))

    def woken(self, unit: str, now: Instant) -> None:
        """A unit is being switched on, for whatever reason: how long it was off is remembered."""
        since = self._dark.pop(unit, None)
        if since is not None:
            slept = now - since
            self._usual = slept if math.isnan(self._usual) else 0.9 * self._usual + 0.1 * slept

    def unsure(self, unit: str) -> None:
        """Whether the unit is off is not known: for how long it is so is no time that it was off."""
        self._dark.pop(unit, None)

    def expected(self, now: Instant, fleet: Fleet) -> float:
        """How long, in ms, a unit that is switched off now is expected to be idle: until the next reservation, or as
        long as they were of late; infinite if nothing is known.
        """
        known = [self._usual] if not math.isnan(self._usual) else []
        if fleet.next_due is not None:
            known.append(fleet.next_due - now)
        return min(known, default=math.inf)
