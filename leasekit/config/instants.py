"""How instants are written: as ISO 8601, also where actors speak of them in prose; and days and hours on a clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from datetime import time as time_of_day
from typing import Any, Final

from leasekit.core.reasons import unmark
from leasekit.core.time import INSTANT_MAX, SECOND, Instant

CALENDAR_BEGIN: Final[Instant] = -62_135_596_800_000
CALENDAR_END: Final[Instant] = 253_402_300_799_999


def parse_instant(text: str | int | datetime, zone: tzinfo = UTC) -> Instant:
    """Unix milliseconds from ISO 8601 text such as ``1998-06-11T22:00Z``, a datetime, or milliseconds as they are.

    Where it names no zone it is in ``zone``. Raises ``ValueError`` that says what is allowed.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    try:
        moment = text if isinstance(text, datetime) else datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise ValueError(f"{text!r} is not an instant: write ISO 8601, such as 1998-06-11T22:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * SECOND)


def instant_setting(value: Any) -> Instant:
    """An instant as a deploy file may have it. Raises ``ValueError``."""
    allowed = "expected an instant not before 1970, such as 1998-06-11T22:00Z, or whole milliseconds"
    if isinstance(value, bool) or not isinstance(value, str | int | datetime):
        raise ValueError(allowed)
    try:
        instant = parse_instant(value)
    except ValueError:
        raise ValueError(allowed) from None
    if not 0 <= instant <= INSTANT_MAX:
        raise ValueError(allowed)
    return instant


def format_instant(instant: Instant) -> str:
    """An instant of Unix time as a person reads it, to the second, or to the millisecond where it has any."""
    moment = datetime.fromtimestamp(instant // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    rest = instant % SECOND
    return f"{moment}.{rest:03}Z" if rest else f"{moment}Z"


def shown(instant: Instant) -> str:
    """Any instant; those that no calendar has are only said to be far away."""
    if instant < CALENDAR_BEGIN:
        return "before the year 1"
    return format_instant(instant) if instant <= CALENDAR_END else "after the year 9999"


def dated(text: str) -> str:
    """Words of actors with the instants that are marked in them as dates: exactly, since they are typed in again."""
    return unmark(text, shown)


WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def weekday(text: str) -> int:
    """A day of the week from its name or the first three letters of that; Monday is 0. Raises ``ValueError``."""
    return [name for day in WEEKDAYS for name in (day, day[:3])].index(text.lower()) // 2


def parse_clock(text: str) -> time_of_day:
    """A time of day such as ``9:00``. Raises ``ValueError``."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"found {text!r}, expected a time of day from 0:00 to 23:59")
    return time_of_day(int(found[1]), int(found[2]))


def on_clock(moment: datetime) -> Instant:
    """When the clock of a moment's zone shows it. Of a time that a change of the clock brings twice it is the first,
    and one that it skips counts from before the change, as in calendars (RFC 5545).
    """
    return int(moment.replace(fold=0).timestamp()) * SECOND


def zone_named(text: str) -> tzinfo:
    """The time zone of that name. Raises ``ValueError`` that says what is allowed."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # what ZoneInfo raises for no name, one that is no path, and a folder
        allowed = "expected a name of the time zone database, such as Europe/Berlin"
        raise ValueError(f"found {text:.40}, {allowed}") from None
