"""How times, durations, numbers and ``key=value`` pairs are written on the command line."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import click

from leasekit.config.instants import parse_instant, shown
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, format_duration, parse_duration

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
COUNT_MAX: Final = 2**53 - 1
"""The greatest whole number that every part of leasekit can hold."""


def now() -> Instant:
    """The time of day in Unix milliseconds."""
    return int(time.time() * SECOND)


class _When(click.ParamType[Instant]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Instant:
        if isinstance(value, int):
            return value
        try:
            instant = parse_when(str(value), now())
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return instant


class _Span(click.ParamType[Duration]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Duration:
        if isinstance(value, int):
            return value
        try:
            span = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if span <= 0:
            self.fail(f"found {value!r}, expected a duration above 0", param, ctx)
        return span


class _Pair(click.ParamType[tuple[str, str]]):
    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, sign, text = str(value).partition("=")
        if not key or not sign:
            self.fail(f"found {value!r}, expected KEY=VALUE", param, ctx)
        return key, text


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


WHEN = _When()
SPAN = _Span()
PAIR = _Pair()


def parse_when(text: str, now: Instant) -> Instant:
    """Unix milliseconds from ``now``, ``+2h``, ``-1d``, ISO 8601 (UTC where it names no zone) or milliseconds.

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
            instant = parse_instant(text)
    except ValueError:
        instant = -1
    if not 0 <= instant <= INSTANT_MAX:
        raise ValueError(f"found {text!r}, expected now, +2h, or ISO 8601 such as 2027-03-01T12:00Z")
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


_MORE: Final = Number(min=0, min_open=True)


def saving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--memory`` and ``--rate``: suspending and resuming take the one over the other."""
    for option in (
        click.option(
            "--rate", type=_MORE, default=32.0, show_default=True, metavar="MB/S",
            help="How fast a suspended unit's memory is written and read.",
        ),
        click.option(
            "--memory", type=_MORE, default=1024.0, show_default=True, metavar="MB",
            help="The memory of a unit: what suspending it saves.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
