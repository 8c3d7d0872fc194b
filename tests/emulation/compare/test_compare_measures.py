"""What a run comes to, worked out by hand for work so small that one can."""

from __future__ import annotations

from array import array

import pytest

from leasekit.emulation.compare.drive import REFUSED, DriveOutcome
from leasekit.emulation.compare.measures import measure
from leasekit.emulation.compare.works import Work

S = 1000


def _work(submit: int, run: int, units: int, holder: str, kind: str = "be") -> Work:
    return Work("w", holder, submit * S, submit * S, 10**12, run * S, run * S, units, kind)


def _outcome(*starts: int | None) -> DriveOutcome:
    made = array("q", [REFUSED if start is None else start * S for start in starts])
    return DriveOutcome(starts=made, reasons={}, turns=3, decisions=4, deepest=2, seconds=0.5, cpu_seconds=0.4)


def test_by_hand() -> None:
    """Three that were granted, one refused, one that was booked: each measure is what its definition says."""
    works = [
        _work(0, 100, 2, "a"),
        _work(0, 5, 1, "b"),
        _work(10, 20, 1, "b"),
        _work(20, 50, 4, "a"),
        _work(100, 60, 1, "c", "ar"),
    ]
    summary = measure("m", works, 4, _outcome(0, 20, 40, None, 100)).summary
    assert summary["accepted"] == pytest.approx(4 / 5)
    assert summary["kinds"] == {"ar": {"accepted": 1, "refused": 0}, "be": {"accepted": 3, "refused": 1}}
    assert summary["mean_wait_s"] == pytest.approx((0 + 20 + 30) / 3, abs=1e-3)
    assert summary["median_wait_s"] == 20
    # The second ran for 5 s, which count as 10.
    slowdowns = [1.0, 25 / 10, 50 / 20]
    assert summary["mean_bounded_slowdown"] == pytest.approx(sum(slowdowns) / 3)
    assert summary["utilisation"] == pytest.approx((200 + 5 + 20) / (4 * 100))
    means = [1.0, 2.5]
    assert summary["fairness"] == pytest.approx(sum(means) ** 2 / (2 * sum(mean**2 for mean in means)), abs=1e-6)
    assert summary["makespan_s"] == 160
    assert summary["measured"]["requests_per_s"] == 10


def test_nothing_granted() -> None:
    """Without any grant there is no wait to speak of, and no error either."""
    summary = measure("m", [_work(0, 10, 1, "a"), _work(5, 10, 1, "a")], 4, _outcome(None, None)).summary
    assert summary["accepted"] == 0
    assert summary["mean_wait_s"] is summary["mean_bounded_slowdown"] is summary["fairness"] is None
    assert summary["utilisation"] == summary["makespan_s"] == 0


def test_one_instant() -> None:
    """Work that was all submitted at once has no span of submissions to be utilised."""
    assert measure("m", [_work(3, 10, 4, "a")], 4, _outcome(3)).summary["utilisation"] == 0
