"""Leases that recur: on which days and at which hours, and what is asked for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from typing import Any, Final, NamedTuple

from leasekit.config.instants import CALENDAR_END, on_clock, weekday
from leasekit.core.requests import SERIES
from leasekit.core.time import DAY, MINUTE, SECOND, Duration, Instant

SERIES_MAX: Final = 400
"""How many leases are asked for at once at most: those of a year's days, and some."""


class RecurrenceError(ValueError):
    """A ``field`` of a recurrence that can't be as it is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field, self.text = field, text


def weekdays(text: str) -> frozenset[int]:
    """Days of the week, as ``mon-fri`` or ``mon,wed``, or ``day`` for each. Raises ``ValueError``."""
    days: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            begin = 0 if first == "day" else weekday(first)
            count = 6 if first == "day" else (weekday(last) - begin) % 7 if dash else 0
            days |= {(begin + ahead) % 7 for ahead in range(count + 1)}
    except ValueError:
        raise ValueError(f"found {text:.40}, expected days such as mon-fri, mon,wed, or day for each") from None
    return frozenset(days)


class Recurrence(NamedTuple):
    """On which days of the week, between which hours of a ``zone``, and up to which instant's day. ``each``: those that
    can be had, and not all or none.
    """

    days: frozenset[int]
    begin: time
    end: time
    last: Instant
    each: bool
    zone: tzinfo

    @property
    def length(self) -> Duration:
        """How long it is on the clock."""
        return ((self.end.hour - self.begin.hour) * 60 + self.end.minute - self.begin.minute) * MINUTE

    @property
    def last_day(self) -> date:
        """The day up to which, and with which, it recurs."""
        return self._day(self.last)

    def _day(self, at: Instant) -> date:
        # A day short of what a calendar has: its last instant lies beyond in some zones.
        return datetime.fromtimestamp(min(at, CALENDAR_END - DAY) // SECOND, self.zone).date()

    def terms(self, start: Instant) -> Iterator[tuple[date, tuple[Instant, Instant]]]:
        """The days, and their terms, that begin at ``start`` or later. A term has no length where the clock skips its
        hours. Raises :class:`RecurrenceError`.
        """
        first, last = self._day(start), self.last_day
        if last < first:
            raise RecurrenceError("until", f"found {last}, which is before the first day, {first}")
        for day in map(date.fromordinal, range(first.toordinal(), last.toordinal() + 1)):
            begin, end = (on_clock(datetime.combine(day, at, self.zone)) for at in (self.begin, self.end))
            if day.weekday() in self.days and begin >= start:
                yield day, (begin, max(begin, end))

    def requests(self, id_: str, start: Instant, asked: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """The arguments of all requests of a series, as ``asked`` has them but for the term, and the days that have no
        such hours. Raises :class:`RecurrenceError`.
        """
        days: list[dict[str, Any]] = []
        skipped: list[str] = []
        properties = {**asked["properties"], SERIES: id_}
        for day, term in self.terms(start):
            if term[0] == term[1]:
                skipped.append(str(day))
                continue
            if len(days) == SERIES_MAX:
                raise RecurrenceError("until", f"expected at most {SERIES_MAX} leases, by {day} there are more")
            name = f"{asked['name']}.{day}" if asked["name"] else ""
            days.append({**asked, "name": name, "term": list(term), "properties": properties})
        if not days:
            raise RecurrenceError("every", "no such day is left to come until then")
        return days, skipped


def of_group(day: Mapping[str, Any], group: str, days: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arguments of a day's request, which begins when it says or not at all; the first one leads the group. Without
    a ``group`` it is one by itself.
    """
    if not group:
        return dict(day)
    own = {"group_id": group, "latest_start": str(day["term"][0])}
    if day is days[0]:
        own["lease_count"] = str(len(days))
    return {**day, "properties": {**day["properties"], **own}}
