"""Which units are better, of those that will do: what computes most with a watt, so that others can be switched off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

GFLOPS: Final = "gflops"
WATTS: Final = "watts"
IDLE_WATTS: Final = "idle_watts"
PER_WATT: Final = "gflops_per_watt"
"""Properties of units: what one computes (10^9 floating-point operations a second), what it draws at work, and
idle, and the first divided by the second. What a driver that meters the unit returns counts for more than what the
inventory says."""
METERED: Final = frozenset({GFLOPS, WATTS, IDLE_WATTS, PER_WATT})
"""What a driver that switches a unit may say of it, beside the inventory."""


def efficiency(properties: Mapping[str, str]) -> float:
    """FLOPS per watt, in 10^9; 0 for a unit of which that isn't known."""
    return _efficiency(properties.get(GFLOPS), properties.get(WATTS), properties.get(PER_WATT))


@lru_cache(maxsize=4096)  # a mapper that watches weighs all units in each of its turns, and few of them differ
def _efficiency(gflops: str | None, watts: str | None, per_watt: str | None) -> float:
    computes, draws = positive(gflops), positive(watts)
    return computes / draws if computes > 0 and draws > 0 else positive(per_watt)


def positive(text: str | None) -> float:
    """A property's number; 0 where there is none above that."""
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0
