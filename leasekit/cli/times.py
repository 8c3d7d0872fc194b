"""How times, durations, numbers and ``key=value`` pairs are written on the command line."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from operator import itemgetter
from typing import Any, Final, TypeVar

import click

from leasekit.config.instants import on_clock, parse_clock, parse_instant, shown, weekday, zone_named
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, format_duration, parse_duration

T = TypeVar("T")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
COUNT_MAX: Final = 2**53 - 1
"""The greatest whole number that every part of leasekit can hold."""


def now() -> Instant:
    """The time of day in Unix milliseconds."""
    return int(time.time() * SECOND)


class Parsed(click.ParamType[T]):
    """What ``parse`` makes of a text; it raises ``ValueError`` that says what is allowed."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            made: T = value
            return made
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _span(text: str) -> Duration:
    span = parse_duration(text)
    if span <= 0:
        raise ValueError(f"found {text!r}, expected a duration above 0")
    return span


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise ValueError(f"found {text!r}, expected KEY=VALUE")
    return key, value


class Count(click.IntRange):
    """A whole number within bounds; what is none is told with what is allowed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        least, most = self.min or 0, self.max or COUNT_MAX
        number = int(value) if _WHOLE.fullmatch(str(value)) else None
        if number is None or not least <= number <= most:
            to = f" to {most}" if self.max or (number or 0) > most else " on"
            self.fail(f"found {value!s:.40}, expected a whole number from {least}{to}", param, ctx)
        return number


class Number(click.FloatRange):
    """A number within bounds, which is one: click finds ``nan`` within any, and ``inf`` where there is no greatest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"found {value!s:.40}, expected a finite number", param, ctx)
        return number


WHEN: Final = Parsed("time", lambda text: parse_when(text, now(), zone_of(click.get_current_context(silent=True))))
SPAN: Final = Parsed("duration", _span)
PAIR: Final = Parsed("key=value", _pair)


_ZONE_KEY: Final = "leasekit.zone"
zone_option = click.option(
    "--zone", type=Parsed("zone", zone_named), is_eager=True, expose_value=False, metavar="NAME",
    callback=lambda ctx, _, zone: ctx.meta.__setitem__(_ZONE_KEY, zone or UTC),
    help="The time zone of times that name none, such as Europe/Berlin [UTC].",
)  # fmt: skip


def zone_of(ctx: click.Context | None) -> tzinfo:
    """The time zone in which a command line says its times."""
    zone: tzinfo = UTC if ctx is None else ctx.meta.get(_ZONE_KEY, UTC)
    return zone


def _parse_day(text: str, now: Instant, zone: tzinfo) -> Instant | None:
    """``today``, ``tomorrow``, a day of the week, each perhaps with a time of day, or that alone; None for all else. A
    day of the week, or a time of day, is the next that is to come.
    """
    day, _, clock = text.lower().partition(" ")
    if not clock and ":" in day:
        day, clock = "", day
    today = datetime.fromtimestamp(now // SECOND, zone).date()
    try:
        ahead = {"": 0, "today": 0, "tomorrow": 1}.get(day)
        if ahead is None:
            ahead, every = (weekday(day) - today.weekday()) % 7, 7
        else:
            every = 0 if day else 1
        at = parse_clock(clock.strip()) if clock else time_of_day()
    except ValueError:
        return None
    found = datetime.combine(today + timedelta(ahead), at, zone)
    return on_clock(found) if on_clock(found) > now or not every else on_clock(found + timedelta(every))


def parse_when(text: str, now: Instant, zone: tzinfo = UTC) -> Instant:
    """Unix milliseconds from ``now``, ``+2h``, ``-1d``, ``tomorrow``, ``monday 9:00``, ``9:00``, ISO 8601, or
    milliseconds. What names no zone is in ``zone``.

    Raises ``ValueError`` that says what is allowed.
    """
    text = text.strip()
    try:
        if text == "now":
            instant = now
        elif text[:1] in ("+", "-"):
            span = parse_duration(text[1:])
            instant = now + span if text[0] == "+" else now - span
        elif text.isdecimal() and len(text) > 8:
            instant = int(text)
        else:
            day = _parse_day(text, now, zone) if text else None
            instant = parse_instant(text, zone) if day is None else day
    except (ValueError, OverflowError):
        instant = -1
    if not 0 <= instant <= INSTANT_MAX:
        raise ValueError(
            f"found {text!r}, expected now, +2h, tomorrow, monday 9:00, 9:00, or ISO 8601 such as 2027-03-01T12:00Z"
        )
    return instant


def show_when(instant: Instant, now: Instant) -> str:
    """An instant as a person reads it, and how far off it is."""
    off = instant - now
    span = format_duration(round_span(abs(off)))
    return f"{to_second(instant)} ({f'in {span}' if off >= 0 else f'{span} ago'})"


def to_second(instant: Instant) -> str:
    """An instant without its milliseconds, for tables where they are noise."""
    return shown(instant // SECOND * SECOND)


def at(key: str) -> Callable[[Mapping[str, Any]], str]:
    """What makes a table's cell of the instant that a thing has at ``key``; nothing of one before all time."""
    return lambda thing: to_second(thing[key]) if thing[key] >= 0 else ""


def term_columns(
    of: Callable[[Any], Sequence[int] | None] = itemgetter("term"),
) -> tuple[tuple[str, Callable[[Any], str]], tuple[str, Callable[[Any], str]]]:
    """The columns of a table that show the term which ``of`` finds in a thing; nothing where there is none."""

    def cell(index: int) -> Callable[[Any], str]:
        return lambda thing: to_second(term[index]) if (term := of(thing)) else ""

    return ("from", cell(0)), ("until", cell(1))


TERM: Final = term_columns()


def round_span(span: Duration) -> Duration:
    """A duration without what nobody reads: to seconds below an hour, minutes below two days, else hours."""
    grain = SECOND if span < 3600 * SECOND else 60 * SECOND if span < 2 * 86400 * SECOND else 3600 * SECOND
    return span // grain * grain
