"""Measures of an experiment."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.signals import Signal, SignalSteps
from leasekit.core.time import Term
from leasekit.emulation import metrics
from leasekit.emulation.metrics import Series

WINDOW = Term(0, 100)


def series(*pairs: tuple[int, float]) -> Series:
    """A series of these records."""
    made = Series()
    for at, value in pairs:
        made.append(at, value)
    return made


@st.composite
def recorded(draw: st.DrawFn) -> Series:
    """A series on a small time line, of whole units."""
    instants = sorted(draw(st.lists(st.integers(-10, 110), max_size=12)))
    return series(*((at, float(draw(st.integers(0, 9)))) for at in instants))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=40))
def test_series_reads_back_what_was_recorded(records: list[tuple[int, int]]) -> None:
    """At every instant the value is the last one recorded at or before it, and no two neighbours are equal."""
    records.sort(key=lambda record: record[0])
    made = series(*((at, float(value)) for at, value in records))
    for at in range(60):
        assert made.value(at) == next((float(value) for when, value in reversed(records) if when <= at), 0.0)
    values = [value for _, value in made]
    assert all(one != two for one, two in itertools.pairwise(values))


def test_series_refuses_what_is_late_or_endless() -> None:
    """An earlier instant is refused even if the later record changed nothing, and so is a value not finite."""
    made = series((0, 1.0), (10, 1.0))
    with pytest.raises(ValueError, match="instant 5 must not be earlier than the one before it, 10"):
        made.append(5, 2.0)
    with pytest.raises(ValueError, match="must be a finite number"):
        made.append(20, math.nan)
    assert list(made) == [(0, 1.0)]


def test_series_add_counts_up_and_down() -> None:
    """Changes add up, also several at one instant."""
    made = Series()
    assert [made.add(at, change) for at, change in ((0, 2), (5, 3), (5, -1), (9, -4))] == [2.0, 5.0, 4.0, 0.0]
    assert list(made) == [(0, 2.0), (5, 4.0), (9, 0.0)]


def test_csv_of_several_columns(tmp_path: Path) -> None:
    """Columns side by side at each interval; the row at the window's end is not part of it."""
    path = tmp_path / "all.csv"
    metrics.write_csv(path, {"a": series((0, 1.0), (10, 3.0)), "b": Signal([(5, 0.1)])}, Term(0, 15), 5)
    assert path.read_bytes() == b"instant_ms,a,b\n0,1,0\n5,1,0.1\n10,3,0.1\n"


def test_rmse_by_hand() -> None:
    """Errors of 0 and 4 over halves of the window: the root of 8; signs don't cancel."""
    demand, holdings = series((0, 10.0)), series((0, 10.0), (50, 14.0))
    assert metrics.rmse(demand, holdings, WINDOW) == pytest.approx(math.sqrt(8))
    assert metrics.rmse(demand, series((0, 13.0), (50, 7.0)), WINDOW) == pytest.approx(3.0)


@given(recorded(), recorded())
def test_rmse_is_its_definition(demand: Series, holdings: Series) -> None:
    """Over every millisecond; it is 0 where nothing differs."""
    errors = [(demand.value(at) - holdings.value(at)) ** 2 for at in range(*WINDOW)]
    assert metrics.rmse(demand, holdings, WINDOW) == pytest.approx(math.sqrt(sum(errors) / len(errors)))
    assert metrics.rmse(demand, demand, WINDOW) == 0.0


@given(recorded(), recorded())
def test_unserved_and_idle_are_their_definitions(demand: Series, holdings: Series) -> None:
    """Unserved is demand beyond holdings, idle is holdings beyond demand, as shares of each."""
    wanted = sum(demand.value(at) for at in range(*WINDOW))
    held = sum(holdings.value(at) for at in range(*WINDOW))
    short = sum(max(0.0, demand.value(at) - holdings.value(at)) for at in range(*WINDOW))
    spare = sum(max(0.0, holdings.value(at) - demand.value(at)) for at in range(*WINDOW))
    assert metrics.unserved(demand, holdings, WINDOW) == pytest.approx(short / wanted if wanted else 0.0)
    assert metrics.idle(demand, holdings, WINDOW) == pytest.approx(spare / held if held else 0.0)


def test_fidelity_is_the_usable_share() -> None:
    """Ten units leased for 100 ms and usable for 75 of them: 75 %."""
    assert metrics.fidelity(series((20, 10.0), (95, 0.0)), series((0, 10.0)), WINDOW) == pytest.approx(0.75)


def test_fidelity_of_nothing_is_none_and_of_too_much_an_error() -> None:
    """Nothing leased has no fidelity; more usable than leased means that the series don't belong together."""
    assert metrics.fidelity(Series(), Series(), WINDOW) is None
    with pytest.raises(ValueError, match="exceed leased"):
        metrics.fidelity(series((0, 2.0)), series((0, 1.0)), WINDOW)


@pytest.mark.parametrize("capacity", [10.0, Signal([(0, 10.0)])])
def test_usage_of_a_site(capacity: SignalSteps | float) -> None:
    """Five of ten units for half the window: a quarter, with capacity as a number or a function of time."""
    assert metrics.usage(series((0, 5.0), (50, 0.0)), capacity, WINDOW) == pytest.approx(0.25)


def test_usage_without_capacity_is_none() -> None:
    """A site that has nothing has no usage."""
    assert metrics.usage(Series(), 0, WINDOW) is None


@given(st.lists(recorded(), max_size=4))
def test_summed_is_the_sum_everywhere(parts: list[Series]) -> None:
    """At every instant the sum is the sum of the parts."""
    total = metrics.summed(parts)
    for at in range(-15, 115):
        assert total.value(at) == sum(part.value(at) for part in parts)


def test_empty_windows_are_refused() -> None:
    """A measure over no time is an error that shows the window, never a division by zero."""
    one = series((0, 1.0))
    for measure in (metrics.rmse, metrics.unserved, metrics.fidelity, metrics.usage):
        with pytest.raises(ValueError, match=r"window \[5, 5\) is empty"):
            measure(one, one, Term(5, 5))
