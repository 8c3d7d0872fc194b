"""How instants are written: as ISO 8601, also where actors speak of them in prose."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from leasekit.core.reasons import unmark
from leasekit.core.time import INSTANT_MAX, SECOND, Instant

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
    return format_instant(instant) if instant <= CALENDAR_END else "after the year 9999"


def dated(text: str) -> str:
    """Words of actors with the instants that are marked in them as dates: exactly, since they are typed in again."""
    return unmark(text, shown)
