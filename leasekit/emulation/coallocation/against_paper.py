"""The figures that the co-allocation paper or its reconstruction gives, and where each is in what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from leasekit.emulation.papers.claims import PaperClaim

SEEDS_MIN: Final = 3
"""With fewer seeds a difference is noise: success from seed to seed varies by 0.1 at high load."""

Summaries = Mapping[str, Mapping[str, Any]]
"""What was found, by scenario."""
Figure = Callable[..., float | None]
"""A figure in what was found of some scenarios, given in order."""


def _success(load: int, user: str = "both") -> Figure:
    return lambda summary: summary["success"][user][load // 10 - 1]


def _least(intervals: int) -> Figure:
    """The least success of the first intervals, of those that had requests."""

    def least(summary: Mapping[str, Any]) -> float | None:
        ratios = [ratio for ratio in summary["success"]["both"][:intervals] if ratio is not None]
        return min(ratios, default=None)

    return least


def _lead(preferred: str, other: str, load: int) -> Figure:
    """How much more utilised the sites are whose names begin or end with one than those with the other."""

    def mean(summary: Mapping[str, Any], mark: str) -> float:
        shares = [share for site, share in summary["utilisation"].items() if mark in (site[0], site[-1])]
        return fmean(share[load // 10 - 1] for share in shares)

    return lambda summary: mean(summary, preferred) - mean(summary, other)


def _flattened(balanced: Mapping[str, Any], normal: Mapping[str, Any]) -> float | None:
    flat, uneven = (summary["spread_of_utilisation"][4] for summary in (balanced, normal))
    return flat / uneven if uneven else None


FLATTENED: Final = "load balancing: spread of utilisation at 50 %, of normal's"

EXPECTED: Final[Sequence[tuple[PaperClaim, Sequence[str], Figure]]] = (
    (PaperClaim("slide 21", "success up to 40 %: least interval", "", 0.975, 1.0), ["normal"], _least(4)),
    (PaperClaim("slide 21", "success at 50 %", "about 0.90", 0.90, 0.97), ["normal"], _success(50)),
    (PaperClaim("slide 21", "success at 80 %", "over 0.61", 0.61, 0.68), ["normal"], _success(80)),
    (PaperClaim("slide 21", "service levels at 100 %, user A", "0.60", 0.55, 0.65), ["service_levels"],
        _success(100, "A")),
    (PaperClaim("slide 21", "service levels at 100 %, user B", "0.37", 0.35, 0.45), ["service_levels"],
        _success(100, "B")),
    (PaperClaim("slide 22", "load balancing: success at 80 %", "", 0.75, 0.81), ["load_balancing"], _success(80)),
    *(
        (PaperClaim("slide 22", what, "", 0.05, 1.0), [f"preference_{kind}"], _lead(first, second, load))
        for what, kind, first, second, load in (
            ("domain N before S: utilisation at 30 %", "domain", "N", "S", 30),
            ("domain S before U: utilisation at 60 %", "domain", "S", "U", 60),
            ("sites of 32 before those of 16: utilisation at 30 %", "size", "2", "1", 30),
            ("sites of 16 before those of 8: utilisation at 60 %", "size", "1", "0", 60),
        )
    ),
    (PaperClaim("slide 22", FLATTENED, "flatter", 0.0, 0.75), ["load_balancing", "normal"], _flattened),
)  # fmt: skip
"""Each claim, and the scenarios of which its figure is. (A drawing on slide 22 has no numbers.)"""


def figures_of(by_seed: Sequence[Summaries]) -> dict[str, list[float]]:
    """Those of each seed, of the scenarios that were run."""
    found = {}
    for claim, scenarios, figure in EXPECTED:
        of_seeds = [figure(*(one[name] for name in scenarios)) for one in by_seed if one.keys() >= set(scenarios)]
        if values := [round(value, 4) for value in of_seeds if value is not None]:
            found[claim.figure] = values
    return found
