"""Figures as people read them."""

from __future__ import annotations

import pytest

from leasekit.core.measures import shown_figure


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""), (0, "0"), (0.05, "0.05"), (0.0004996, "0.0005"), (-0.0123456, "-0.0123"), (3.14159, "3.14"),
        (99.96, "100"), (999.6, "1,000"), (1234567.8, "1,234,568"),
    ],
)  # fmt: skip
def test_a_figure_keeps_its_digits_however_small_it_is(value: float | None, shown: str) -> None:
    """Three that count; all before the point."""
    assert shown_figure(value) == shown


def test_as_many_digits_as_are_asked_for() -> None:
    """More of means, fewer of intervals."""
    assert [shown_figure(value, 4) for value in (0.123456, 999.96, 4957.3)] == ["0.1235", "1,000", "4,957"]
    assert [shown_figure(value, 2) for value in (0.04449, 9.96, 110.4)] == ["0.044", "10", "110"]
