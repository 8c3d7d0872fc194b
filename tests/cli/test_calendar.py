"""The broker's calendar as a picture in text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasekit.cli.broker import BARS, bars, taken
from leasekit.core.time import Term

WINDOW = Term(0, 100)
CLAIMS = st.lists(st.tuples(st.integers(-50, 150), st.integers(1, 80), st.integers(1, 9)), max_size=12)


def _leases(claims: list[tuple[int, int, int]], source: str = "s") -> list[dict[str, Any]]:
    return [{"claims": [{"source": source, "units": n, "term": [a, a + length]}]} for a, length, n in claims]


@given(CLAIMS)
def test_steps_agree_with_the_claims_at_every_instant(claims: list[tuple[int, int, int]]) -> None:
    """At each instant of the window the steps say what the claims there add up to, and they cover all of it."""
    steps = taken("s", [*_leases(claims), *_leases([(0, 100, 7)], "another")], WINDOW)
    assert steps[0][0] == WINDOW.start
    assert steps[-1][1] == WINDOW.end
    for instant in range(WINDOW.start, WINDOW.end):
        (level,) = [n for a, b, n in steps if a <= instant < b]
        assert level == sum(n for a, length, n in claims if a <= instant < a + length)


@given(CLAIMS, st.integers(10, 100))
def test_steps_differ_from_their_neighbours(claims: list[tuple[int, int, int]], columns: int) -> None:
    """No two steps in a row are at one level, and a picture has as many characters as it was asked for."""
    steps = taken("s", _leases(claims), WINDOW)
    assert all(a[2] != b[2] for a, b in pairwise(steps))
    assert len(bars(steps, 10, WINDOW, columns)) == columns


def test_bars_show_the_most_that_is_taken() -> None:
    """A column is blank only where nothing is taken, and full only where all is."""
    steps = [(0, 50, 0), (50, 60, 1), (60, 90, 99), (90, 100, 100)]
    assert bars(steps, 100, WINDOW, 10) == "     " + BARS[1] + BARS[7] * 3 + BARS[8]


def test_short_peaks_are_not_lost() -> None:
    """A peak that is shorter than a column is seen in it."""
    steps = [(0, 42, 0), (42, 43, 10), (43, 100, 0)]
    assert bars(steps, 10, WINDOW, 10) == "    " + BARS[-1] + "     "
