"""Instants, durations and terms.

An instant is an integer number of milliseconds on some actor's clock; on the wire it is Unix time, in an
emulation the epoch is the emulation's. The core never reads a clock: ``now`` comes with each tick.
A term is half-open: a lease of ``[0, 10)`` and one of ``[10, 20)`` touch and do not collide.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

Instant: TypeAlias = int
"""Milliseconds since the epoch of the clock in question."""

Duration: TypeAlias = int
"""Milliseconds."""

MILLISECOND: Duration = 1
SECOND: Duration = 1000
MINUTE: Duration = 60 * SECOND
HOUR: Duration = 60 * MINUTE
DAY: Duration = 24 * HOUR
WEEK: Duration = 7 * DAY

INSTANT_MAX: Instant = 2**53 - 1
"""The largest instant that every peer can hold exactly (a double's integers): far beyond any lease."""

_UNITS = {"ms": MILLISECOND, "s": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)\s*")


class Term(NamedTuple):
    """A half-open interval of time ``[start, end)``, in milliseconds. A named tuple, so it travels as it is."""

    start: Instant
    end: Instant

    @property
    def length(self) -> Duration:
        """End minus start, in milliseconds."""
        return self.end - self.start

    def contains(self, other: Term) -> bool:
        """Whether ``other`` lies wholly inside this term (equal terms do)."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Term) -> bool:
        """Whether some instant lies in both; touching terms do not overlap."""
        return self.start < other.end and other.start < self.end


def make_term(start: Instant, end: Instant) -> Term:
    """A checked term.

    Raises ``ValueError`` with what was found when the term is empty, reversed or out of range.
    """
    if 0 <= start < end <= INSTANT_MAX:
        return Term(start, end)
    if not 0 <= start <= INSTANT_MAX or not 0 <= end <= INSTANT_MAX:
        raise ValueError(f"term [{start}, {end}) is out of range: instants are 0 to {INSTANT_MAX} ms")
    what = "empty" if end == start else "reversed"
    raise ValueError(f"term [{start}, {end}) is {what}: its end must be later than its start")


def check_term(term: Term) -> None:
    """Raises ``ValueError`` with what was found when a term is empty, reversed or out of range."""
    start, end = term
    if not 0 <= start < end <= INSTANT_MAX:
        make_term(start, end)


def parse_duration(text: str) -> Duration:
    """Milliseconds from text such as ``90s``, ``5m``, ``12h``, ``1d``, ``1w`` or ``1h30m``.

    Raises ``ValueError`` that says what is allowed.
    """
    position, total = 0, 0.0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            break
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if not text.strip() or position != len(text):
        raise ValueError(
            f"{text!r:.80} is not a duration: write a number and a unit (ms, s, m, h, d, w), such as 12h or 1h30m"
        )
    if total > INSTANT_MAX:
        raise ValueError(f"{text!r:.80} is longer than any term can be: at most {INSTANT_MAX // DAY}d")
    return round(total)


def format_duration(duration: Duration) -> str:
    """The shortest text that :func:`parse_duration` reads back to the same number of milliseconds."""
    if duration == 0:
        return "0s"
    sign, rest, parts = ("-" if duration < 0 else ""), abs(duration), []
    for name in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS[name])
        if count:
            parts.append(f"{count}{name}")
    return sign + "".join(parts)
