"""The flop-flip filter."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.settings import SettingsError, structure
from leasekit.policies.guest.filters import FlopFlip, FlopFlipSettings, SlidingMoments

LOADS = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=80)


def smoothed(values: list[float], settings: FlopFlipSettings | None = None) -> list[float]:
    """The estimate after each observation."""
    return list(map(FlopFlip(settings).observe, values))


def by_definition(values: list[float], settings: FlopFlipSettings) -> list[float]:
    """The filter as its theory of operation states it, recomputing everything for each sample."""
    window: deque[float] = deque(maxlen=settings.window)
    average: float | None = None
    estimate: float | None = None
    estimates = []
    for value in values:
        window.append(value)
        if settings.average == "window":
            average = statistics.fmean(window)
        else:
            average = value if average is None else settings.damping * average + (1 - settings.damping) * value
        if estimate is None or abs(estimate - average) > settings.threshold * statistics.pstdev(window):
            estimate = average
        estimates.append(estimate)
    return estimates


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=100), st.integers(1, 12))
def test_sliding_moments_are_those_of_the_window(values: list[float], window: int) -> None:
    """After every sample, count, mean and deviation are those of the last ``window`` samples."""
    moments = SlidingMoments(window)
    for index, value in enumerate(values):
        found = moments.add(value)
        kept = values[max(0, index + 1 - window) : index + 1]
        assert found.samples == len(kept)
        assert found.mean == pytest.approx(statistics.fmean(kept), rel=1e-9, abs=1e-6)
        assert found.deviation == pytest.approx(statistics.pstdev(kept), rel=1e-9, abs=1e-6)


def test_a_huge_sample_leaves_no_error_behind() -> None:
    """Once 1e15 has left the window, the deviation of the small samples is exact again."""
    moments = SlidingMoments(3)
    for value in (1.0, 1e15, 2.0, 3.0):
        moments.add(value)
    assert moments.add(4.0).deviation == pytest.approx(math.sqrt(2 / 3), rel=1e-15)


def test_deviation_survives_a_large_offset() -> None:
    """Samples that differ by 1 about a billion have the deviation of samples that differ by 1 about 0."""
    moments = SlidingMoments(30)
    for step in range(10_000):
        found = moments.add(1e9 + step % 2)
    assert found.deviation == pytest.approx(0.5, rel=1e-6)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=80), st.sampled_from(["damped", "window"]))
def test_the_filter_is_its_definition(loads: list[int], average: Any) -> None:
    """Estimates agree with the definition; the threshold is irrational, so that rounding decides nothing."""
    settings = FlopFlipSettings(window=5, threshold=math.sqrt(0.7), damping=0.75, average=average)
    values = [float(load) for load in loads]
    assert smoothed(values, settings) == pytest.approx(by_definition(values, settings), rel=1e-9, abs=1e-9)


@given(LOADS)
def test_estimates_stay_within_what_was_observed(loads: list[float]) -> None:
    """An estimate is never below the least or above the greatest observation."""
    for estimate in smoothed(loads):
        assert min(loads) - 1e-6 <= estimate <= max(loads) + 1e-6


@given(st.floats(0, 1e6), st.integers(1, 100))
def test_a_constant_load_is_reproduced_exactly(load: float, count: int) -> None:
    """A load that doesn't change gives that load to the last digit."""
    flop_flip = FlopFlip()
    assert {flop_flip.observe(load) for _ in range(count)} == {load}


def test_small_noise_is_held_and_a_step_is_followed() -> None:
    """Noise about a level moves nothing once the window has seen it; a lasting step is reached."""
    flop_flip = FlopFlip(FlopFlipSettings(window=30))
    for step in range(60):
        flop_flip.observe(50.0 + (step % 2))
    held = flop_flip.estimate
    for step in range(60):
        assert flop_flip.observe(50.0 + (step % 2)) == held
    for _ in range(120):
        flop_flip.observe(100.0)
    assert flop_flip.estimate == pytest.approx(100.0, abs=0.01)


def test_an_endless_threshold_never_moves_and_zero_always_does() -> None:
    """The threshold is the step size: enormous holds the first estimate, 0 follows the average."""
    loads = [float(value) for value in (10, 90, 20, 80, 30)]
    assert set(smoothed(loads, FlopFlipSettings(threshold=1e9))) == {10.0}
    assert smoothed(loads, FlopFlipSettings(threshold=0, damping=0)) == loads


def test_more_damping_is_slower() -> None:
    """After a step, a filter with more damping lies further from the new level."""
    loads = [0.0] + [100.0] * 10
    *_, slow = smoothed(loads, FlopFlipSettings(threshold=0, damping=0.9))
    *_, fast = smoothed(loads, FlopFlipSettings(threshold=0, damping=0.5))
    assert slow < fast < 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_endless_observation_is_refused_and_changes_nothing(value: float) -> None:
    """A value that isn't finite raises, and the filter goes on as if it had never come."""
    flop_flip, twin = FlopFlip(), FlopFlip()
    flop_flip.observe(3.0)
    twin.observe(3.0)
    with pytest.raises(ValueError, match="allowed is a finite number"):
        flop_flip.observe(value)
    assert flop_flip.observe(9.0) == twin.observe(9.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window: found 0, expected >= 1"),
        ({"window": 2.5}, "window: found 2.5, expected a whole number"),
        ({"window": True}, "window: found true, expected a whole number"),
        ({"threshold": -1}, "threshold: found -1, expected >= 0"),
        ({"threshold": math.nan}, "threshold: found nan, expected a number"),
        ({"damping": 1.0}, "damping: found 1.0, expected < 1"),
        ({"damping": "x"}, "damping: found 'x', expected a number"),
        ({"average": "median"}, "average: found 'median', expected one of: 'damped', 'window'"),
    ],
)
def test_settings_say_what_is_allowed(settings: dict[str, Any], message: str) -> None:
    """A wrong setting is named with what was found and what is allowed."""
    with pytest.raises(SettingsError, match=message):
        structure(FlopFlipSettings, settings, "filter")


def test_the_defaults_are_the_papers() -> None:
    """Thirty samples (150 minutes of five), one standard deviation."""
    assert (FlopFlipSettings().window, FlopFlipSettings().threshold) == (30, 1.0)
