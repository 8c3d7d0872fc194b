"""How much to buy: what runs that differ in the units of a group have come to, and where more units stop to pay.

The knee of a falling curve is its point furthest below the chord from its first point to its last, both axes scaled to
their ranges (Satopää et al., "Finding a Kneedle in a Haystack", 2011). Beyond it more units lower what is looked at by
little. There is none where there are fewer than three points, or the curve does not fall, or bends nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, Final, NamedTuple

import attrs

from leasekit.config.emulation import PlotSpec, RunSpec, group_of_units, key_in_words, lookup

BEND: Final = 0.05
"""How far below the chord a point must lie, as a share of the axes, to be a knee."""
JUDGED: Final = ("unserved", "mean_wait_s")
"""By what the knee is found: the first of these that falls."""


class Trial(NamedTuple):
    """A run, the file's document as it had it, and its summary."""

    spec: RunSpec
    document: Mapping[str, Any]
    summary: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Purchase:
    """Runs of one series, by the units that were bought in each: ``rows`` have the figures, means over the
    ``runs`` of several seeds; ``knee`` is one of their ``units``, found ``by`` one of their keys, or None.
    """

    series: str
    units_of: str
    rows: Sequence[Mapping[str, Any]]
    runs: Sequence[Mapping[str, Any]]
    knee: float | None
    by: str

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        plain = {**attrs.asdict(self), "rows": [dict(row) for row in self.rows]}
        del plain["runs"]
        return plain


def purchases(plot: PlotSpec, trials: Sequence[Trial]) -> list[Purchase]:
    """What the picture ``plot`` shows: a purchase for each series."""
    by_series: dict[str, list[Trial]] = {}
    for trial in trials:
        by_series.setdefault(trial.spec.series, []).append(trial)
    made = []
    for series, several in by_series.items():
        all_rows = sorted((_row(plot, trial) for trial in several), key=lambda row: float(row["units"]))
        rows = [_mean(list(alike)) for _, alike in groupby(all_rows, key=lambda row: row["units"])]
        found = [(by, at) for by in JUDGED if (at := knee(points(rows, by))) is not None]
        by, at = found[0] if found else ("", None)
        units_of = key_in_words(several[0].document, plot.x)
        made.append(Purchase(series=series, units_of=units_of, rows=rows, runs=all_rows, knee=at, by=by))
    return made


def _mean(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Rows of as many units as one."""
    if len(rows) == 1:
        return rows[0]
    found: dict[str, Any] = {"run": f"mean of {len(rows)}"}
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        if key != "run":
            found[key] = fmean(values) if values else None
    return found


def points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """One figure against the units that were bought, where there is one."""
    return [(row["units"], row[key]) for row in rows if row[key] is not None]


def knee(curve: Sequence[tuple[float, float]]) -> float | None:
    """Where a curve, sorted by x, has its knee."""
    if len(curve) < 3:
        return None
    (left, high), (right, low) = curve[0], curve[-1]
    if right <= left or high <= low:
        return None
    below = [(1 - (x - left) / (right - left) - (y - low) / (high - low), -x) for x, y in curve]
    bend, x = max(below)
    return -x if bend > BEND else None


def _row(plot: PlotSpec, trial: Trial) -> dict[str, Any]:
    spec, document, summary = trial
    group = group_of_units(plot.x)
    assert group is not None, "the configuration was checked"
    site = summary["sites"][group.site]["types"][lookup(document, group.type_key)]
    requests = site["requests"]
    return {
        "run": spec.name,
        "units": plot.x_of(document),
        "unserved": _unserved([summary["guests"][guest] for guest in plot.guests]),
        "mean_wait_s": requests["mean_wait_s"],
        "p95_wait_s": requests["p95_wait_s"],
        "refused": requests["refused"],
        "asked": requests["asked"],
        "used": site["used"],
        "idle": site["idle"],
    }


def _unserved(guests: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of their demand that was not served; of what they asked for, where none of them follows a load."""
    loads = [(guest["mean_demand"], guest["unserved"]) for guest in guests if "unserved" in guest]
    if not loads:
        asked = [one["requests"]["unserved"] for one in guests if one["requests"]["unserved"] is not None]
        return max(asked, default=None)
    wanted = sum(demand for demand, _ in loads)
    return sum(demand * share for demand, share in loads) / wanted if wanted else 0.0
