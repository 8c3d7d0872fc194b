"""Instants, terms and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import terms

from leasekit.core.time import (
    DAY,
    HOUR,
    INSTANT_MAX,
    MINUTE,
    SECOND,
    WEEK,
    Term,
    format_duration,
    make_term,
    parse_duration,
)


def test_make_term() -> None:
    """A term is what its instants say; the whole range of instants can be used."""
    term = make_term(0, INSTANT_MAX)
    assert (term.start, term.end, term.length) == (0, INSTANT_MAX, INSTANT_MAX)


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (5, 5, r"term \[5, 5\) is empty: its end must be later than its start"),
        (9, 5, r"term \[9, 5\) is reversed: its end must be later than its start"),
        (-1, 5, rf"term \[-1, 5\) is out of range: instants are 0 to {INSTANT_MAX} ms"),
        (0, INSTANT_MAX + 1, rf"term \[0, {INSTANT_MAX + 1}\) is out of range"),
    ],
)
def test_terms_that_are_none(start: int, end: int, text: str) -> None:
    """An empty, reversed or far term is refused with what was found."""
    with pytest.raises(ValueError, match=text):
        make_term(start, end)


@given(one=terms(), other=terms())
def test_contains_and_overlaps(one: Term, other: Term) -> None:
    """Containing and overlapping mean what they mean for half-open intervals; touching terms don't overlap."""
    assert one.overlaps(other) == (max(one.start, other.start) < min(one.end, other.end))
    assert one.overlaps(other) == other.overlaps(one)
    assert one.contains(other) == (min(one.start, other.start) == one.start and max(one.end, other.end) == one.end)
    assert not one.contains(other) or one.overlaps(other)
    if one.end < INSTANT_MAX:
        assert not one.overlaps(Term(one.end, INSTANT_MAX))


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", 90 * SECOND), ("5m", 5 * MINUTE), ("5min", 5 * MINUTE), ("12h", 12 * HOUR), ("1d", DAY), ("1w", WEEK),
        ("250ms", 250), ("1h30m", 90 * MINUTE), (" 1h 30m ", 90 * MINUTE), ("1.5h", 90 * MINUTE), ("0s", 0),
        ("0.5ms", 0), ("1d1h1m1s1ms", DAY + HOUR + MINUTE + SECOND + 1),
    ],
)  # fmt: skip
def test_parse_duration(text: str, duration: int) -> None:
    """A number and a unit, or several of them, to the nearest millisecond."""
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", " ", "5", "h", "-5s", "5 parsecs", "1h later", "5S", "1h,30m"])
def test_texts_that_are_no_durations(text: str) -> None:
    """What is no duration is shown, with what is allowed."""
    with pytest.raises(
        ValueError, match=r"is not a duration: write a number and a unit \(ms, s, m, h, d, w\)"
    ) as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "9" * 20 + "w", f"{INSTANT_MAX + 2}ms"])
def test_durations_that_are_too_long(text: str) -> None:
    """No duration is longer than instants can tell, however many digits it is written with."""
    with pytest.raises(ValueError, match="is longer than any term can be: at most 104249991d"):
        parse_duration(text)


@given(duration=st.integers(0, INSTANT_MAX))
def test_durations_come_back(duration: int) -> None:
    """What is written is read back to the same millisecond."""
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"), [(0, "0s"), (90 * MINUTE, "1h30m"), (-5 * SECOND, "-5s"), (1001, "1s1ms")]
)
def test_format_duration(duration: int, text: str) -> None:
    """The shortest text; weeks are written in days."""
    assert format_duration(duration) == text
