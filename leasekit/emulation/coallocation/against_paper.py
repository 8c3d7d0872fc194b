"""The figures that the co-allocation paper or its reconstruction gives, held against what was found.

A figure is the mean over seeds. How far the seeds lie apart is told with it: with a few of them a mean that differs
says nothing, since success from seed to seed varies by 0.1 at high load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

SEEDS_MIN: Final = 3
"""With fewer seeds a difference is noise."""

Summaries = Mapping[str, Mapping[str, Any]]
"""What was found, by scenario."""
Figure = Callable[[Summaries], float | None]


class _Expected(NamedTuple):
    """A figure of the paper, or of the reconstruction, and where it is found in a summary."""

    what: str
    scenario: str
    low: float
    high: float
    of_scenario: Callable[[Mapping[str, Any]], float | None]

    def figure(self, summaries: Summaries) -> float | None:
        """The figure in what was found."""
        return self.of_scenario(summaries[self.scenario])


def _success(load: int, user: str = "both") -> Callable[[Mapping[str, Any]], float | None]:
    return lambda summary: summary["success"][user][load // 10 - 1]


def _least(intervals: int) -> Callable[[Mapping[str, Any]], float | None]:
    """The least success of the first intervals, of those that had requests."""

    def least(summary: Mapping[str, Any]) -> float | None:
        ratios = [ratio for ratio in summary["success"]["both"][:intervals] if ratio is not None]
        return min(ratios, default=None)

    return least


def _lead(preferred: str, other: str, load: int) -> Callable[[Mapping[str, Any]], float | None]:
    """How much more utilised the sites are whose names begin or end with one than those with the other."""

    def mean(summary: Mapping[str, Any], mark: str) -> float:
        shares = [share for site, share in summary["utilisation"].items() if mark in (site[0], site[-1])]
        return fmean(share[load // 10 - 1] for share in shares)

    return lambda summary: mean(summary, preferred) - mean(summary, other)


EXPECTED: Final = (
    _Expected("success up to 40 %: least interval", "normal", 0.975, 1.0, _least(4)),
    _Expected("success at 50 %", "normal", 0.90, 0.97, _success(50)),
    _Expected("success at 80 %", "normal", 0.61, 0.68, _success(80)),
    _Expected("service levels at 100 %, user A", "service_levels", 0.55, 0.65, _success(100, "A")),
    _Expected("service levels at 100 %, user B", "service_levels", 0.35, 0.45, _success(100, "B")),
    _Expected("load balancing: success at 80 %", "load_balancing", 0.75, 0.81, _success(80)),
    _Expected("domain N before S: utilisation at 30 %", "preference_domain", 0.05, 1.0, _lead("N", "S", 30)),
    _Expected("domain S before U: utilisation at 60 %", "preference_domain", 0.05, 1.0, _lead("S", "U", 60)),
    _Expected("sites of 32 before those of 16: utilisation at 30 %", "preference_size", 0.05, 1.0, _lead("2", "1", 30)),
    _Expected("sites of 16 before those of 8: utilisation at 60 %", "preference_size", 0.05, 1.0, _lead("1", "0", 60)),
)


FLATTENED: Final = "load balancing: spread of utilisation at 50 %, of normal's"


def compare(scenarios: Summaries, by_seed: Sequence[Summaries]) -> list[dict[str, Any]]:
    """Each figure of the scenarios that were run: what is expected, what was found over all seeds, the least and the
    most that one seed alone came to, and the verdict: ``ok``, ``differs``, or ``noise`` with too few seeds.
    """
    rows = [
        _compared(one.what, one.low, one.high, one.figure, scenarios, by_seed)
        for one in EXPECTED
        if one.scenario in scenarios
    ]
    if {"normal", "load_balancing"} <= scenarios.keys():
        rows.append(_compared(FLATTENED, 0.0, 0.75, _flattened, scenarios, by_seed))
    return rows


def _flattened(summaries: Summaries) -> float | None:
    flat, uneven = (summaries[name]["spread_of_utilisation"][4] for name in ("load_balancing", "normal"))
    return flat / uneven if uneven else None


def _compared(
    what: str, low: float, high: float, figure: Figure, scenarios: Summaries, by_seed: Sequence[Summaries]
) -> dict[str, Any]:
    found = figure(scenarios)
    alone = [value for value in map(figure, by_seed) if value is not None]
    # Figures are quoted to two digits.
    ok = found is not None and low <= round(found, 2) <= high
    return {
        "what": what,
        "low": low,
        "high": high,
        "found": _rounded(found),
        "seeds": len(alone),
        "by_seed": [round(value, 4) for value in alone],
        "least": _rounded(min(alone, default=None)),
        "most": _rounded(max(alone, default=None)),
        "ok": ok,
        "verdict": "noise" if len(alone) < SEEDS_MIN else "ok" if ok else "differs",
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
