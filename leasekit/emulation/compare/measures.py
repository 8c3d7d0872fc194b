"""What a run comes to: waits, slowdowns, utilisation, acceptance and fairness, as the field measures them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from leasekit.core.time import SECOND, Instant
from leasekit.emulation.compare.drive import REFUSED, Outcome
from leasekit.emulation.compare.works import BEST_EFFORT, Work

BOUND: Final = 10 * SECOND
"""Runs shorter than this count as this long in a bounded slowdown, as the field does."""

MEASURES: Final = {
    "accepted": "share of the requests that were granted",
    "mean_wait_s": "best effort: mean seconds from submission to start",
    "median_wait_s": "best effort: the wait that half of them stay below",
    "p95_wait_s": "best effort: the wait that 95 of 100 stay below",
    "mean_bounded_slowdown": "best effort: mean of max(1, (wait + run) / max(run, 10 s))",
    "utilisation": "unit time that work ran, over unit time from the first submission to the last",
    "fairness": "Jain's index over the holders' mean bounded slowdowns: 1 if all fare alike, 1/n if one bears it all",
    "makespan_s": "seconds from the first submission to the last end",
}
"""What each measure means."""


@attrs.frozen(kw_only=True)
class Measured:
    """One mapper's run of a workload: its ``summary``, and for each piece of work, in order, its start in ms
    (:data:`.drive.REFUSED`: never), with the reasons of those refused.
    """

    summary: dict[str, Any]
    starts: Sequence[Instant]
    reasons: dict[int, str]


def measure(label: str, works: Sequence[Work], units: int, outcome: Outcome) -> Measured:
    """Sum one run up. Waits and slowdowns are those of best-effort work that was granted; None where there is none."""
    columns = Columns.of(works)
    starts = np.asarray(outcome.starts, dtype=np.int64)
    granted = starts != REFUSED
    chosen = granted & columns.best_effort
    waits = (starts - columns.submits)[chosen] / SECOND
    slowdowns = bounded_slowdowns(columns, starts)[chosen]
    first, last = int(columns.submits[0]), int(columns.submits[-1])
    ends = (starts + columns.runs)[granted]
    summary = {
        "mapper": label,
        "requests": len(works),
        "accepted": _rounded(float(granted.mean())),
        "kinds": _kinds(works, granted),
        "mean_wait_s": _rounded(_mean(waits), 3),
        "median_wait_s": _rounded(float(np.median(waits)) if waits.size else None, 3),
        "p95_wait_s": _rounded(float(np.percentile(waits, 95)) if waits.size else None, 3),
        "mean_bounded_slowdown": _rounded(_mean(slowdowns)),
        "utilisation": _rounded(_utilisation(columns, starts, units, first, last)),
        "fairness": _rounded(_fairness(np.asarray([work.holder for work in works])[chosen], slowdowns)),
        "makespan_s": _rounded((int(ends.max()) - first) / SECOND if ends.size else 0.0, 3),
        "measured": {
            "seconds": round(outcome.seconds, 3),
            "cpu_seconds": round(outcome.cpu_seconds, 3),
            "requests_per_s": round(len(works) / max(outcome.seconds, 1e-9), 1),
            "turns": outcome.turns,
            "decisions": outcome.decisions,
            "deepest_queue": outcome.deepest,
        },
    }
    return Measured(summary=summary, starts=outcome.starts, reasons=outcome.reasons)


@attrs.frozen(kw_only=True, eq=False)
class Columns:
    """A workload as arrays, in ms and units."""

    submits: NDArray[np.int64]
    runs: NDArray[np.int64]
    units: NDArray[np.int64]
    best_effort: NDArray[np.bool_]

    @classmethod
    def of(cls, works: Sequence[Work]) -> Columns:
        """The arrays of a workload."""
        return cls(
            submits=np.array([work.submit for work in works], dtype=np.int64),
            runs=np.array([work.run for work in works], dtype=np.int64),
            units=np.array([work.units for work in works], dtype=np.int64),
            best_effort=np.array([work.kind == BEST_EFFORT for work in works], dtype=np.bool_),
        )


def bounded_slowdowns(columns: Columns, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The bounded slowdown of each piece of work; without meaning for those refused."""
    wanted = starts - columns.submits + columns.runs
    found: NDArray[np.float64] = np.maximum(1.0, wanted / np.maximum(columns.runs, BOUND))
    return found


def _utilisation(columns: Columns, starts: NDArray[np.int64], units: int, first: Instant, last: Instant) -> float:
    """Within the window in which work was submitted, so that mappers are held to the same span of time."""
    granted = starts != REFUSED
    begin = np.clip(starts[granted], first, last)
    end = np.clip(starts[granted] + columns.runs[granted], first, last)
    area = float(((end - begin) * columns.units[granted]).sum())
    return area / (units * (last - first)) if last > first else 0.0


def _fairness(holders: NDArray[np.str_], slowdowns: NDArray[np.float64]) -> float | None:
    if not slowdowns.size:
        return None
    _, which = np.unique(holders, return_inverse=True)
    means = np.bincount(which, weights=slowdowns) / np.bincount(which)
    return float(means.sum() ** 2 / (means.size * (means**2).sum()))


def _kinds(works: Sequence[Work], granted: NDArray[np.bool_]) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for work, accepted in zip(works, granted.tolist(), strict=True):
        counts = kinds.setdefault(work.kind, {"accepted": 0, "refused": 0})
        counts["accepted" if accepted else "refused"] += 1
    return dict(sorted(kinds.items()))


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)
