"""Best effort around reservations: deferrable requests wait in line, and small ones fill the holes.

See :mod:`leasekit.policies.broker.waiting` for the rule and its modes.
"""

from __future__ import annotations

from typing import ClassVar, get_args

import attrs

from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.broker.suspension import Suspender, Suspension
from leasekit.policies.broker.turn import StandardMapper, StandardSettings
from leasekit.policies.broker.waiting import ByArrival, Mode, Order, Waiting


@attrs.frozen(kw_only=True)
class WaitingSettings(StandardSettings):
    """Settings of mappers whose deferrable requests wait in line."""

    mode: Mode = attrs.field(default="easy", validator=attrs.validators.in_(get_args(Mode)))
    """Who holds a place while waiting: with ``"easy"`` the first in line (at each site), and others start if they
    don't delay it; with ``"conservative"`` all, and others start if they delay none of them; ``"strict"``: nobody
    overtakes."""
    depth: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    """With ``mode = "conservative"``: how many hold a place; those behind them may start if they delay none of
    these."""
    patience: DurationSetting = 12 * HOUR
    """How long the first in line waits before it goes before requests for a fixed term. Until then it can't
    stand in the way of a reservation, and a reservation can push it back."""
    suspension: Suspension = attrs.field(default="none", validator=attrs.validators.in_(get_args(Suspension)))
    """Which leases may be suspended to make room for a request for a fixed term, or start in front of one and be
    suspended before it: none, those of one unit, or all; of those that are preemptible and say how long it takes
    (``suspend``), at sites that save units."""
    least_run: DurationSetting = attrs.field(default=10 * MINUTE, validator=attrs.validators.ge(1))
    """With ``suspension``: how long a lease must be able to run to be started in front of a reservation."""


@attrs.frozen(kw_only=True)
class BackfillSettings(WaitingSettings):
    """Settings of :class:`Backfill`."""


class WaitingMapper(StandardMapper):
    """A line in some order."""

    def __init__(self, settings: WaitingSettings, order: Order) -> None:
        suspender = Suspender(settings.suspension, settings.least_run)
        super().__init__(settings, Waiting(order, settings.mode, settings.depth, settings.patience, suspender))


class Backfill(WaitingMapper):
    """A line in order of class and arrival."""

    Settings: ClassVar[type[BackfillSettings]] = BackfillSettings

    def __init__(self, settings: BackfillSettings | None = None) -> None:
        self.settings = settings or BackfillSettings()
        super().__init__(self.settings, ByArrival())
