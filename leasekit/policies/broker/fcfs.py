"""First come, first served, by priority class (Shirako section 5.2: "FCFS priority scheduling").

In one turn extends are decided first, then modifies, then new requests and complete groups; within each, the higher
priority class goes first, then who came first. A group comes when its last member does, in the class of its highest.

A request that fits is granted at once. An elastic one takes as many units as are free, down to its ``min_units``. A
deferrable one gets a reservation at the earliest start within its window at which it fits (an elastic one: with
``min_units``; it then takes what is free there). Because a deferrable request holds its place in the timetable from its
first turn on, those that come after it can't push it back: within a class nobody starves, and nobody need be kept
waiting behind a large request that can't start yet (no head-of-line blocking). A request whose whole window is full is
deferred; it is looked at again, in its old place in the order, whenever something changes.

With ``backfill = false`` it is first come, first served to the letter, as of old: a deferrable request waits until it
is its turn, and nobody who came later starts before it.

Priority counts among requests that wait at the same time. A broker asks its mapper as soon as a request is there, so
that guests which ask at about the same time are served in the order in which their messages happen to come in, unless
the setting ``gather`` makes requests wait for each other.

The mappers that are named after how they choose a site are this one, with that choice.

``timetable`` plans reservations over time: what is for a fixed term first, then the rest at its earliest fit.

Advance reservations (a term to come), immediate requests (a term from now on) and deferrable ones (a window and a
duration) are booked in one timetable. Of those that wait at the same time and are of one class, those that can't be
moved are booked first, and those that can be moved around them. Nothing that is booked is ever moved or broken.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from leasekit.core.time import DAY
from leasekit.policies.broker.capacity import Balance
from leasekit.policies.broker.turn import Booking, Rule, StandardMapper, StandardSettings, fixed_first
from leasekit.policies.broker.waiting import ByArrival, Waiting


@attrs.frozen(kw_only=True)
class FcfsSettings(StandardSettings):
    """Settings of :class:`Fcfs`."""

    backfill: bool = True
    """Whether a request may get an earlier start than one that came before it. ``false``: deferrable requests wait in
    line, and the first of them starts or all wait."""


class Fcfs(StandardMapper):
    """The broker's standard mapper."""

    Settings: ClassVar[type[FcfsSettings]] = FcfsSettings
    balance: ClassVar[Balance | None] = None
    """The choice of a site that a mapper's name stands for."""

    def __init__(self, settings: FcfsSettings | None = None) -> None:
        settings = settings or FcfsSettings()
        if self.balance is not None:
            settings = attrs.evolve(settings, balance=self.balance)
        self.settings = settings
        rule: Rule = Booking() if settings.backfill else Waiting(ByArrival(), "strict", 0, DAY)
        super().__init__(settings, rule)


class LoadBalanced(Fcfs):
    """``fcfs`` that fills the site with the largest share free."""

    balance = "load_balanced"


class FirstFitBroker(Fcfs):
    """``fcfs`` that fills the first site that has enough."""

    balance = "first_fit"


class BestFit(Fcfs):
    """``fcfs`` that fills the site with the fewest units free that has enough."""

    balance = "best_fit"


class WorstFit(Fcfs):
    """``fcfs`` that fills the site with the most units free."""

    balance = "worst_fit"


class Random(Fcfs):
    """``fcfs`` that fills a site drawn by seed among those that have enough."""

    balance = "random"


@attrs.frozen(kw_only=True)
class TimetableSettings(StandardSettings):
    """Settings of :class:`TimetableMapper`."""


class TimetableMapper(StandardMapper):
    """Books fixed terms first, windows around them."""

    Settings: ClassVar[type[TimetableSettings]] = TimetableSettings

    def __init__(self, settings: TimetableSettings | None = None) -> None:
        self.settings = settings or TimetableSettings()
        super().__init__(self.settings, Booking(fixed_first))
