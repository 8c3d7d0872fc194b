"""What switching units off saves, and what it costs, by the formulas of Rossigneux, Lefèvre and Dias de Assunção
("A Resource Reservation System to Improve the Support for HPC Applications in OpenStack", section 5.2).

Units are cores there; here they are whatever the series count. Integrals are in unit-seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from leasekit.core.signals import SignalSteps
from leasekit.core.time import SECOND, Duration, Term


class Delayed(NamedTuple):
    """A request of so many ``units`` for ``duration`` ms that waited ``boot`` ms for the last of them to come on."""

    units: int
    boot: Duration
    duration: Duration

    @property
    def weight(self) -> float:
        """What it adds to ``delay_req``: units times boot time by duration."""
        return self.units * self.boot / self.duration


def res_idle(capacity: SignalSteps | float, used: SignalSteps, window: Term) -> float:
    """The integral of capacity that is not used: no more than that can be saved."""
    available = capacity.integral(window) if isinstance(capacity, SignalSteps) else capacity * window.length
    return (available - used.integral(window)) / SECOND


def e_savings(off: SignalSteps, window: Term) -> float:
    """The integral of the units that are switched off."""
    return off.integral(window) / SECOND


def delay_req(delayed: Iterable[Delayed]) -> float:
    """The weighted delay of all requests that had to wait for a unit to come on."""
    return math.fsum(request.weight for request in delayed)
