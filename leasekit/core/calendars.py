"""What actors answer of their calendars: who has what when, and when something would fit (as in :mod:`.answers`)."""

from __future__ import annotations

from msgspec import field

from leasekit.core.answers import Answer, ClassCount
from leasekit.core.properties import Properties
from leasekit.core.reasons import Reason
from leasekit.core.time import Instant


class FreeSlot(Answer, frozen=True):
    """A window in which what was asked for is free at one site; it may begin at any instant up to ``end`` less its
    length.
    """

    site: str
    source: str
    start: Instant
    end: Instant


class FreeSlots(Answer, frozen=True):
    """Windows, and what stands in the way of the earliest start: how many units are ``short`` there, and which of the
    holder's own ``leases`` have some before the first window. Without any window: what the request would be told, where
    that was asked for.
    """

    slots: list[FreeSlot]
    short: int
    leases: list[str]
    reason: str = ""
    because: Reason | None = None


class CalendarClass(Answer, frozen=True):
    """Units of a class of a type that a broker has of a site. ``steps`` are the number of a stretch, and the least that
    are there in it, the most that are booked, the least that are free: for each that differs from the one before.
    """

    site: str
    type: str
    class_: str = field(name="class")
    properties: Properties
    steps: list[tuple[int, int, int, int]]


class CalendarUnit(Answer, frozen=True):
    """A unit of a site."""

    unit: str
    type: str
    class_: str = field(name="class")
    state: str
    reason: str


class CalendarEntry(Answer, frozen=True):
    """A lease over a time, as an actor knows it: its ``name`` at its guest, its units ``on`` which it is, or is planned
    to be, at its site; how many of each class they are, where that is settled. A guest is no ``holder`` to itself.
    """

    lease: str
    holder: str
    site: str
    type: str
    state: str
    units: int
    start: Instant
    end: Instant
    name: str = ""
    classes: list[ClassCount] = []
    on: list[str] = []


class ActorCalendar(Answer, frozen=True):
    """What an actor knows of who has what when: a broker the figures of what it has, a site its units. Where it is of
    the ``revision`` that is known there is nothing else.
    """

    revision: int
    entries: list[CalendarEntry] = []
    classes: list[CalendarClass] = []
    units: list[CalendarUnit] = []
