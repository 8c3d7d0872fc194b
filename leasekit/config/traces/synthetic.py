"""Generated load for those who have no traces: daily and weekly cycle, noise, bursts, all from one seed."""

from __future__ import annotations

import math
from array import array
from random import Random

import attrs

from leasekit.config.traces.places import TraceError
from leasekit.core.settings import DurationSetting
from leasekit.core.signals import Signal
from leasekit.core.time import DAY, HOUR, MINUTE, WEEK, Duration, Instant


def _share(_: object, __: object, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError("expected a share from 0 to 1")


def _amount(_: object, __: object, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError("expected a number of at least 0")


@attrs.frozen(kw_only=True)
class SyntheticSettings:
    """``signal.synthetic``: the shape of generated load. Shares are of the mean level."""

    daily: float = attrs.field(default=0.6, validator=_share)
    """How far the daily cycle swings about the mean: 0 to 1; highest at 20:00, lowest at 08:00 of emulated days."""
    weekly: float = attrs.field(default=0.3, validator=_share)
    """How much lower days 6 and 7 of each emulated week are: 0 to 1."""
    noise: float = attrs.field(default=0.1, validator=_amount)
    """Standard deviation of the noise, which is correlated over about an hour: at least 0."""
    bursts_per_day: float = attrs.field(default=1.0, validator=_amount)
    """Mean number of bursts a day, at random instants: at least 0."""
    burst_height: float = attrs.field(default=2.0, validator=_amount)
    """Mean height of a burst, in mean levels: at least 0."""
    burst_length: DurationSetting = attrs.field(default=2 * HOUR, validator=attrs.validators.ge(1))
    """Mean time in which a burst dies away, in ms: at least 1."""


WEB = SyntheticSettings()
BATCH = SyntheticSettings(daily=0.2, weekly=0.2, noise=0.2, bursts_per_day=2.0, burst_height=1.5, burst_length=8 * HOUR)


def synthetic(
    seed: int, horizon: Duration, *, interval: Duration = 5 * MINUTE, peak: float, settings: SyntheticSettings = WEB
) -> Signal:
    """Generated demand over [0, horizon): a daily and weekly cycle, noise and bursts, scaled to ``peak``.

    A pure function of its arguments: it draws only from a generator seeded with ``seed``, and only by ``random()``,
    whose sequence Python promises to keep. Raises :class:`TraceError` on a horizon or interval below 1 ms.
    """
    if horizon < 1 or interval < 1 or not 0 <= peak < math.inf:
        raise TraceError(
            f"synthetic load: found horizon {horizon} ms, interval {interval} ms, peak {peak}; "
            "allowed are at least 1 ms, at least 1 ms, and a number of at least 0"
        )
    draw = Random(seed).random
    decay = math.exp(-interval / settings.burst_length)
    memory = math.exp(-interval / HOUR)
    noise, burst, levels = 0.0, 0.0, array("d")
    for at in range(0, horizon, interval):
        # Every sample draws the same number of times, so that one setting does not shift what another draws.
        normal = math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
        arrives, height = draw(), -math.log(1 - draw())
        noise = memory * noise + math.sqrt(1 - memory * memory) * settings.noise * normal
        burst *= decay
        if arrives < 1 - math.exp(-settings.bursts_per_day * interval / DAY):
            burst += settings.burst_height * height
        levels.append(max(0.0, _cycle(at, settings) + noise + burst))
    raw = Signal(zip(range(0, horizon, interval), levels, strict=True), end=horizon)
    return raw.scaled(peak=peak) if raw.peak() > 0 else raw


def _cycle(at: Instant, settings: SyntheticSettings) -> float:
    day = 1 + settings.daily * math.cos(2 * math.pi * (at - 20 * HOUR) / DAY)
    return day * (1 - settings.weekly) if at % WEEK >= 5 * DAY else day
