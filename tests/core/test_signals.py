"""Step functions and load signals."""

from __future__ import annotations

import itertools
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.signals import Signal, SignalSoFar, whole_units
from leasekit.core.time import INSTANT_MAX, Term

VALUES = st.floats(0, 1e6, allow_nan=False)


@st.composite
def signals(draw: st.DrawFn, *, pairs_min: int = 1) -> Signal:
    """A signal on a small time line."""
    instants = sorted(draw(st.sets(st.integers(0, 60), min_size=pairs_min, max_size=12)))
    pairs = [(instant, draw(VALUES)) for instant in instants]
    return Signal(pairs, end=(instants[-1] if instants else 0) + draw(st.integers(0, 20)))


@st.composite
def windows(draw: st.DrawFn) -> Term:
    """A window that may lie before, in or after a signal of the small time line."""
    start = draw(st.integers(-10, 80))
    return Term(start, start + draw(st.integers(1, 40)))


def brute(signal: Signal, at: int) -> float:
    """The value at an instant, by going through all the pairs."""
    value = 0.0
    for instant, new in signal:
        if instant <= at:
            value = new
    return value


def test_value_is_right_continuous_and_zero_before_the_first_pair() -> None:
    """A value holds from its own instant, not before; before all pairs it is 0, after them the last holds."""
    signal = Signal([(10, 2.0), (20, 5.0)])
    assert [signal.value(at) for at in (0, 9, 10, 19, 20, INSTANT_MAX)] == [0.0, 0.0, 2.0, 2.0, 5.0, 5.0]


@given(signals(), windows())
def test_every_reading_agrees_with_brute_force(signal: Signal, window: Term) -> None:
    """Value, steps, samples, integral, mean and peak are those of a walk over each millisecond."""
    walked = [brute(signal, at) for at in range(*window)]
    assert [signal.value(at) for at in range(*window)] == walked
    assert [value for start, end, value in signal.steps(window) for _ in range(start, end)] == walked
    assert [value for _, value in signal.sampled(window.start, window.end, 3)] == walked[::3]
    assert signal.integral(window) == pytest.approx(math.fsum(walked), rel=1e-12)
    assert signal.mean(window) == pytest.approx(math.fsum(walked) / window.length, rel=1e-12)
    assert signal.peak(window) == max(walked)


@given(signals(), windows())
def test_steps_fill_the_window_without_gap_or_overlap(signal: Signal, window: Term) -> None:
    """The pieces touch, are not empty, and begin and end with the window."""
    pieces = list(signal.steps(window))
    assert pieces[0][0] == window.start
    assert pieces[-1][1] == window.end
    assert all(start < end for start, end, _ in pieces)
    assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(pieces))


@given(signals(), st.floats(0.5, 1e5))
def test_scaled_meets_its_peak_exactly(signal: Signal, peak: float) -> None:
    """The scaled peak is exact, never passed, and whole units never exceed the peak's."""
    if signal.peak() <= 0:
        with pytest.raises(ValueError, match="no value above 0 anywhere"):
            signal.scaled(peak=peak)
        return
    scaled = signal.scaled(peak=peak)
    assert scaled.peak() == peak
    assert scaled.rounded_up().peak() == whole_units(peak)
    assert scaled.end == signal.end


def test_scaled_in_a_window_uses_the_peak_there() -> None:
    """The factor comes from the window's peak only; the rest is scaled with it."""
    scaled = Signal([(0, 10.0), (10, 100.0), (20, 40.0)]).scaled(peak=20, window=Term(0, 10))
    assert [value for _, value in scaled] == [20.0, 200.0, 80.0]


@pytest.mark.parametrize("peak", [-1.0, math.nan, math.inf])
def test_scaled_refuses_impossible_peaks(peak: float) -> None:
    """A negative or endless peak is an error that names it."""
    with pytest.raises(ValueError, match="at least 0"):
        Signal([(0, 1.0)]).scaled(peak=peak)


@given(signals(), st.integers(-100, 100), st.integers(-20, 120))
def test_shifted_moves_every_instant(signal: Signal, by: int, at: int) -> None:
    """The shifted signal has at t + by what the signal has at t, and a shift back undoes it."""
    moved = signal.shifted(by)
    assert moved.value(at + by) == signal.value(at)
    assert moved.end == signal.end + by
    assert moved.shifted(-by) == signal


@given(signals(), windows())
def test_between_is_the_signal_inside_the_window(signal: Signal, window: Term) -> None:
    """Inside the window nothing changes, before it is 0, and the window is covered."""
    part = signal.between(window)
    assert [part.value(at) for at in range(*window)] == [signal.value(at) for at in range(*window)]
    assert part.value(window.start - 1) == 0.0
    assert part.covers(window)


@given(signals(), st.integers(1, 25), st.integers(-5, 30))
def test_resampled_mean_keeps_the_integral(signal: Signal, interval: int, origin: int) -> None:
    """Whole bins of the mean hold as many unit-ms as the signal did, aligned to the origin, covering its end."""
    bins = signal.resampled(interval, origin=origin)
    assert all((instant - origin) % interval == 0 for instant, _ in bins)
    assert bins.end >= signal.end
    assert signal.first is not None
    second = next(iter(bins))[0] + interval
    if second < bins.end:
        window = Term(second, bins.end)
        assert bins.integral(window) == pytest.approx(signal.integral(window), rel=1e-9, abs=1e-6)


@given(signals(), st.integers(1, 25))
def test_resampled_peak_and_sample(signal: Signal, interval: int) -> None:
    """A bin's peak is the largest value since the first pair in it; its sample is the value at its start."""
    first = signal.first
    assert first is not None
    for start, value in signal.resampled(interval, "peak"):
        assert value == signal.peak(Term(max(start, first), start + interval))
    for start, value in signal.resampled(interval, "sample"):
        assert value == signal.value(start)


def test_resampled_means_by_hand() -> None:
    """Mean per bin; the first bin counts from the first pair on, not from the bin's start."""
    signal = Signal([(5, 4.0), (12, 8.0)], end=20)
    assert list(signal.resampled(10)) == [(0, 4.0), (10, pytest.approx(7.2))]


@pytest.mark.parametrize(
    ("value", "units"),
    [(0.0, 0.0), (0.2, 1.0), (2.0, 2.0), (2.001, 3.0), (7 / 49 * 49, 7.0), (3 + 1e-12, 3.0), (3 - 1e-12, 3.0)],
)
def test_whole_units_round_up_but_not_for_noise(value: float, units: float) -> None:
    """Any real excess needs one more unit; an excess in the last digits does not."""
    assert whole_units(value) == units


@given(signals())
def test_rounded_up_serves_the_demand(signal: Signal) -> None:
    """Whole units are whole, at least the demand but for noise, and less than one above it."""
    for (_, value), (_, units) in zip(signal, signal.rounded_up(), strict=True):
        assert units == int(units)
        assert value * (1 - 1e-8) - 1e-8 <= units < value + 1


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(5, 1.0), (5, 2.0)], r"pair 1: instant 5 must be later than the one before it, 5"),
        ([(5, 1.0), (4, 2.0)], r"pair 1: instant 4 must be later"),
        ([(5, math.nan)], r"pair 0 at 5: value nan must be a finite number"),
        ([(5, math.inf)], r"value inf must be a finite number"),
    ],
)
def test_bad_pairs_are_named(pairs: list[tuple[int, float]], message: str) -> None:
    """A pair out of order or not finite is an error that says which and what was found."""
    with pytest.raises(ValueError, match=message):
        Signal(pairs)


@pytest.mark.parametrize(
    ("values", "message"),
    [([1, math.inf, 2], "pair 1 at 5: value inf"), ([1, 2], "3 instants and 2 values")],
)
def test_signals_of_arrays_are_checked(values: list[float], message: str) -> None:
    """As pairs are."""
    with pytest.raises(ValueError, match=message):
        Signal.of(array("q", [0, 5, 9]), values, end=10)


def test_end_before_the_last_pair_is_refused() -> None:
    """A signal can't end before its own last pair."""
    with pytest.raises(ValueError, match="end 9 must not come before its last pair, at 10"):
        Signal([(10, 1.0)], end=9)


def test_empty_windows_and_intervals_are_refused() -> None:
    """An empty window or an interval below 1 ms is an error, never a division by zero."""
    signal = Signal([(0, 1.0)])
    for read in (signal.mean, signal.peak, signal.between):
        with pytest.raises(ValueError, match="is empty"):
            read(Term(5, 5))
    with pytest.raises(ValueError, match="at least 1 ms"):
        signal.resampled(0)
    with pytest.raises(ValueError, match="at least 1 ms"):
        list(signal.sampled(0, 10, 0))


def test_a_signal_without_pairs_is_zero() -> None:
    """No pairs: 0 everywhere, nothing covered, nothing to change."""
    empty = Signal([])
    assert (empty.value(5), empty.peak(), empty.first) == (0.0, 0.0, None)
    assert not empty.covers(Term(0, 1))
    assert len(empty.resampled(10)) == 0


def test_covers_needs_both_ends() -> None:
    """A window is covered from the first pair to the end, and no further."""
    signal = Signal([(10, 1.0)], end=20)
    assert signal.covers(Term(10, 20))
    assert not signal.covers(Term(9, 20))
    assert not signal.covers(Term(10, 21))


def test_equality_is_of_pairs_and_end() -> None:
    """Signals are equal if their pairs and ends are, and can't be keys."""
    assert Signal([(0, 1.0)], end=5) == Signal([(0, 1.0)], end=5)
    assert Signal([(0, 1.0)], end=5) != Signal([(0, 1.0)], end=6)
    assert Signal([(0, 1.0)]) != Signal([(0, 2.0)])
    assert Signal([(0, 1.0)]) != [(0, 1.0)]
    with pytest.raises(TypeError):
        hash(Signal([]))


def test_a_signal_so_far_shows_nothing_that_is_to_come() -> None:
    """Up to the instant that it is all is as the signal has it; beyond it is an error that says what to do."""
    signal = Signal([(10, 2.0), (20, 5.0), (30, 1.0)], end=40)
    load, now = SignalSoFar(signal), -1
    assert load.first is None and load.peak() == 0.0 and load.end == -1
    load.now = lambda: now
    now = 20
    assert (load.first, load.end, load.value(20), load.mean(Term(0, 20)), load.peak()) == (10, 20, 5.0, 1.0, 5.0)
    assert list(load.sampled(0, 21, 10)) == [(0, 0.0), (10, 2.0), (20, 5.0)]
    assert load.peak(Term(0, 20)) == 2.0
    assert load.covers(Term(10, 21)) and not load.covers(Term(10, 30)) and signal.covers(Term(10, 30))
    for peek in (
        lambda: load.value(21),
        lambda: load.mean(Term(0, 22)),
        lambda: load.peak(Term(0, 31)),
        lambda: load.sampled(0, 22, 1),
    ):
        with pytest.raises(ValueError, match=r"is to come, it is 20: a mapper that is to see ahead says needs_future"):
            peek()
    now = 50
    assert (load.end, load.value(50), load.peak()) == (40, 1.0, 5.0)
    assert load.whole() is signal
