"""Times and durations as they are written on the command line."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.types import FloatParamType
from hypothesis import given
from hypothesis import strategies as st

from leasekit.cli.main import cli
from leasekit.cli.options import Number, parse_when, round_span, show_when, to_second
from leasekit.config.instants import dated, format_instant
from leasekit.core.reasons import mark, marked
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, format_duration

NOON = 1_803_902_400_000


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("now", NOON),
        ("+2h", NOON + 2 * HOUR),
        ("-1d", NOON - DAY),
        ("+1h30m", NOON + 90 * MINUTE),
        ("2027-03-01T12:00Z", NOON),
        ("2027-03-01T13:00+01:00", NOON),
        ("2027-03-01T12:00", NOON),
        ("2027-03-01", NOON - 12 * HOUR),
        (str(NOON), NOON),
    ],
)
def test_when(text: str, instant: int) -> None:
    """Every way in which a time may be written is read."""
    assert parse_when(text, NOON) == instant


@pytest.mark.parametrize("text", ["", "soon", "+", "+2", "2h", "-9999999w", "2027-13-01", "12", "9" * 30])
def test_no_time(text: str) -> None:
    """What is no time, or lies outside of what an instant can be, is refused with what is allowed."""
    with pytest.raises(ValueError, match=r"expected now, \+2h, tomorrow, .* or ISO 8601"):
        parse_when(text, NOON)


@given(st.integers(0, 253_402_300_799_999))
def test_shown_times_can_be_typed(instant: int) -> None:
    """What is shown of an instant reads back as the same instant (or as its second)."""
    assert parse_when(format_instant(instant), NOON) == instant
    assert parse_when(to_second(instant), NOON) == instant // SECOND * SECOND


def test_prose_has_dates() -> None:
    """Instants that actors mark in what they say become dates that can be typed in again; numbers stay."""
    prose = f"3 of 'vm' wanted over {marked((NOON, NOON + 90_001))}; it would fit at {mark(NOON)}"
    assert dated(prose) == (
        "3 of 'vm' wanted over [2027-03-01T12:00:00Z, 2027-03-01T12:01:30.001Z); it would fit at 2027-03-01T12:00:00Z"
    )
    assert dated(f"{NOON}, node-{NOON}, @{NOON}, {{{NOON}}}") == f"{NOON}, node-{NOON}, @{NOON}, {{{NOON}}}"


@given(st.integers(0, INSTANT_MAX))
def test_rounding_never_lengthens(span: int) -> None:
    """A rounded duration is at most as long as it was, and loses less than a fiftieth or a second."""
    rounded = round_span(span)
    assert 0 <= span - rounded < max(SECOND, span / 48 + 1)


def test_show_when_says_how_far_off() -> None:
    """A time is shown with its distance from now."""
    assert show_when(NOON + 90 * MINUTE + 7, NOON) == "2027-03-01T13:30:00Z (in 1h30m)"
    assert show_when(NOON - 5 * SECOND, NOON) == f"2027-03-01T11:59:55Z ({format_duration(5 * SECOND)} ago)"


def test_the_end_of_time_can_be_shown() -> None:
    """An instant that no calendar has is shown all the same."""
    assert to_second(INSTANT_MAX) == "after the year 9999"
    assert to_second(-INSTANT_MAX) == "before the year 1"
    assert dated(f"not {mark(-INSTANT_MAX)}") == "not before the year 1"


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999", "x", "0", "-1"])
def test_no_number(text: str) -> None:
    """What is no number, or none above the least, is refused."""
    with pytest.raises(click.BadParameter, match=f"found {text}, expected a number above 0"):
        Number(min=0, min_open=True).convert(text, None, None)
    assert Number(min=0, min_open=True).convert("0.5", None, None) == 0.5


def _commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from _commands(command)


def test_every_fraction_is_a_number() -> None:
    """No option of any command takes what is none."""
    options = [option for command in _commands(cli) for option in command.params]
    fractions = [option for option in options if isinstance(option.type, FloatParamType)]
    assert len(fractions) > 5
    assert [option.name for option in fractions if not isinstance(option.type, Number)] == []
