"""Clocks that are off: what they show, and when they show it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekit.emulation.clocks import Clock

INSTANTS = st.integers(0, 10**10)


@given(st.integers(-(10**6), 10**6), st.integers(-1000, 1000), INSTANTS)
def test_the_first_instant_that_shows_it(offset: int, drift: int, local: int) -> None:
    """``world`` is the first instant of the world at which the clock shows that much or more."""
    clock = Clock(offset, drift)
    at = clock.world(local)
    assert clock.local(at) >= local
    assert at == 0 or clock.local(at - 1) < local


@given(st.integers(-(10**6), 10**6), st.sampled_from((-500_000, -200, 0, 300)), INSTANTS)
def test_a_clock_is_set(by: int, drift: int, at: int) -> None:
    """From the instant at which a clock is set it shows so much more, and goes at its new pace."""
    clock = Clock(7, -200)
    before = clock.local(at)
    clock.turn(at, by, drift)
    assert clock.local(at) == max(0, before + by)
    assert abs(clock.local(at + 10**6) - max(0, before + by + 10**6 + drift)) <= 1 or before + by < 0


@given(INSTANTS)
def test_a_right_clock_shows_the_time(at: int) -> None:
    """Without offset and drift a clock shows the world's time."""
    assert Clock().is_right
    assert Clock().local(at) == Clock().world(at) == at


def test_a_clock_runs_at_its_own_speed() -> None:
    """A drift of 200 millionths is 0.72 s in an hour."""
    assert Clock(drift=200).local(3_600_000) - 3_600_000 == 720
    assert not Clock(drift=1).is_right
    assert not Clock(offset=1).is_right
