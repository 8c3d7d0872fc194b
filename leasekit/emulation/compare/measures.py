"""What a run comes to: waits, slowdowns, utilisation, acceptance and fairness, as the field measures them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from leasekit.core.time import SECOND, Instant, Term
from leasekit.emulation.compare.drive import REFUSED, DriveOutcome
from leasekit.emulation.compare.works import BEST_EFFORT, Work
from leasekit.emulation.metrics import BOUND


@attrs.frozen(kw_only=True)
class Measured:
    """One mapper's run of a workload: its ``summary``, and for each piece of work, in order, its start in ms
    (:data:`.drive.REFUSED`: never), with the reasons of those refused, and when those ran that were suspended.
    """

    summary: dict[str, Any]
    starts: Sequence[Instant]
    reasons: dict[int, str]
    suspended: Mapping[int, Sequence[Term]] = attrs.Factory(dict)


def measure(label: str, works: Sequence[Work], units: int, outcome: DriveOutcome) -> Measured:
    """Sum one run up. Waits and slowdowns are those of best-effort work that was granted; None where there is none."""
    columns = Columns.of(works)
    starts = np.asarray(outcome.starts, dtype=np.int64)
    granted = starts != REFUSED
    chosen = granted & columns.best_effort
    waits = (starts - columns.submits)[chosen] / SECOND
    ends = ends_of(columns, starts, outcome.suspended)
    slowdowns = bounded_slowdowns(columns, ends)[chosen]
    first, last = int(columns.submits[0]), int(columns.submits[-1])
    ends = ends[granted]
    summary = {
        "mapper": label,
        "requests": len(works),
        "accepted": _rounded(float(granted.mean())),
        "kinds": _kinds(works, granted),
        "mean_wait_s": _rounded(_mean(waits), 3),
        "median_wait_s": _rounded(float(np.median(waits)) if waits.size else None, 3),
        "p95_wait_s": _rounded(float(np.percentile(waits, 95)) if waits.size else None, 3),
        "mean_bounded_slowdown": _rounded(_mean(slowdowns)),
        "utilisation": _rounded(_utilisation(stretches(columns, starts, outcome.suspended), units, first, last)),
        "fairness": _rounded(_fairness(np.asarray([work.holder for work in works])[chosen], slowdowns)),
        "makespan_s": _rounded((int(ends.max()) - first) / SECOND if ends.size else 0.0, 3),
        "mapper_errors": dict(outcome.mapper_errors),
        "measured": {
            "seconds": round(outcome.seconds, 3),
            "cpu_seconds": round(outcome.cpu_seconds, 3),
            "mapper_cpu_seconds": round(outcome.mapper_cpu_seconds, 3),
            "requests_per_s": round(len(works) / max(outcome.seconds, 1e-9), 1),
            "turns": outcome.turns,
            "decisions": outcome.decisions,
            "deepest_queue": outcome.deepest,
            "booked_ahead": outcome.booked_ahead,
            "suspensions": outcome.suspensions,
        },
    }
    return Measured(summary=summary, starts=outcome.starts, reasons=outcome.reasons, suspended=dict(outcome.suspended))


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


Suspended: TypeAlias = Mapping[int, Sequence[Term]]
"""When those ran that were suspended on the way, by position."""


def ends_of(columns: Columns, starts: NDArray[np.int64], suspended: Suspended) -> NDArray[np.int64]:
    """When each piece of work was done; without meaning for those refused."""
    ends: NDArray[np.int64] = starts + columns.runs
    for number, terms in suspended.items():
        ends[number] = terms[-1].end
    return ends


def bounded_slowdowns(columns: Columns, ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """The bounded slowdown of each piece of work; without meaning for those refused."""
    found: NDArray[np.float64] = np.maximum(1.0, (ends - columns.submits) / np.maximum(columns.runs, BOUND))
    return found


def stretches(columns: Columns, starts: NDArray[np.int64], suspended: Suspended) -> NDArray[np.int64]:
    """Begin, end and units of each stretch of time in which granted work ran: an array of three rows."""
    whole = starts != REFUSED
    whole[list(suspended)] = False
    plain = np.stack([starts[whole], (starts + columns.runs)[whole], columns.units[whole]])
    parts = [(*term, columns.units[number]) for number, terms in suspended.items() for term in terms]
    return np.concatenate([plain, np.array(parts, dtype=np.int64).reshape(-1, 3).T], axis=1)


def _utilisation(ran: NDArray[np.int64], units: int, first: Instant, last: Instant) -> float:
    """Within the window in which work was submitted, so that mappers are held to the same span of time."""
    begin, end = np.clip(ran[0], first, last), np.clip(ran[1], first, last)
    area = float(((end - begin) * ran[2]).sum())
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
