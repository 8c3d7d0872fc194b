"""Reservations over time: what is for a fixed term first, then the rest at its earliest fit.

Advance reservations (a term to come), immediate requests (a term from now on) and deferrable ones (a window and a
duration) are booked in one timetable. Of those that wait at the same time and are of one class, those that can't be
moved are booked first, and those that can be moved around them. Nothing that is booked is ever moved or broken.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from leasekit.policies.broker.turn import Booking, StandardMapper, StandardSettings, fixed_first


@attrs.frozen(kw_only=True)
class TimetableSettings(StandardSettings):
    """Settings of :class:`TimetableMapper`."""


class TimetableMapper(StandardMapper):
    """Books fixed terms first, windows around them."""

    Settings: ClassVar[type[TimetableSettings]] = TimetableSettings

    def __init__(self, settings: TimetableSettings | None = None) -> None:
        self.settings = settings or TimetableSettings()
        super().__init__(self.settings, Booking(fixed_first))
