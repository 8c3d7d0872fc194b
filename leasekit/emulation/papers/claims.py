"""A paper's experiment: what it claims, the criterion by which that is judged, and how it is repeated.

Claims and criteria are data in this package, so they are there before a run. A run gives figures, one for each seed;
the verdict follows from both (:func:`judge`). Text, JSON, the HTML page and docs/experiments.md are made of the same
verdicts (:mod:`.page`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs

from leasekit.emulation.tidy import interval

HOLDS: Final = "holds"
DIFFERS: Final = "differs"
OPEN: Final = "open"
"""The 95% interval of the mean lies across the criterion: of a band, with the mean outside, or of a direction."""
SHOWN: Final = "shown"
"""Nothing to be held against: no criterion."""


class PaperClaim(NamedTuple):
    """One statement. ``where`` is the paper's table, figure or section; ``figure`` names what a run finds.

    With ``low`` and ``high`` the figure must lie between them, both included; with one of them it must be above, or
    below, and not equal. ``theirs`` is what the paper's text has; empty where its numbers are lost: then the criterion
    is a direction. ``why`` is the reason for a difference, where one is known.
    """

    where: str
    figure: str
    theirs: str = ""
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def expected(self) -> str:
        """The criterion in words; empty where there is none."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"above {self.low:g}"
        return "" if self.high is None else f"below {self.high:g}"

    def is_met(self, value: float) -> bool:
        """Whether a figure meets the criterion."""
        if self.low is not None and self.high is not None:
            return self.low <= value <= self.high
        if self.low is not None:
            return value > self.low
        return self.high is None or value < self.high


@attrs.frozen(kw_only=True)
class Means:
    """What a run has: a ``quick`` one is a small share, which says the same with less certainty. Pictures and the
    experiment's own files go to ``out``; ``deploys`` has the deploy files that some experiments run.
    """

    quick: bool = False
    data: Path | None = None
    out: Path | None = None
    deploys: Path = Path("deploy", "emulation")
    jobs: int = 1


class PaperFigures(NamedTuple):
    """What a run found: figures by name, one for each seed; and pictures. ``share`` says what was done of one that
    Ctrl-C ended.
    """

    figures: Mapping[str, Sequence[float]]
    pictures: Sequence[Path] = ()
    share: str = ""


@attrs.frozen(kw_only=True)
class PaperExperiment:
    """An experiment of a paper, or one of our own (``paper`` is empty). ``full`` and ``quick`` say what the shares are;
    ``stand_ins`` what takes the place of what is not to be had; ``left_out`` what can't be repeated, and why.
    """

    name: str
    paper: str
    what: str
    full: str
    quick: str
    claims: Sequence[PaperClaim]
    run: Callable[[Means], PaperFigures]
    stand_ins: Sequence[str] = ()
    left_out: Mapping[str, str] = attrs.Factory(dict)


def judge(claim: PaperClaim, values: Sequence[float]) -> dict[str, Any]:
    """The claim beside what was found, as plain data: the mean over seeds, its 95% interval, and the verdict."""
    found = interval(values)
    mean, low, high = found["mean"], found["low"], found["high"]
    return {
        "where": claim.where, "figure": claim.figure, "theirs": claim.theirs, "expected": claim.expected,
        "found": mean, "low": low, "high": high, "seeds": found["seeds"], "why": claim.why,
        "verdict": _verdict(claim, mean, low, high),
    }  # fmt: skip


def judged(claims: Iterable[PaperClaim], figures: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Those of the claims whose figures were found."""
    return [judge(claim, figures[claim.figure]) for claim in claims if claim.figure in figures]


def _verdict(claim: PaperClaim, mean: float, low: float | None, high: float | None) -> str:
    if claim.low is None and claim.high is None:
        return SHOWN
    if low is None or high is None:
        return HOLDS if claim.is_met(mean) else DIFFERS
    if claim.low is not None and claim.high is not None:
        reached = low <= claim.high and high >= claim.low
        return HOLDS if claim.is_met(mean) else OPEN if reached else DIFFERS
    return {2: HOLDS, 1: OPEN, 0: DIFFERS}[claim.is_met(low) + claim.is_met(high)]


def told_of(experiment: PaperExperiment, means: Means) -> dict[str, Any]:
    """What is known of an experiment before it is run, as plain data."""
    return {
        "name": experiment.name, "paper": experiment.paper, "what": experiment.what, "quick": means.quick,
        "share": experiment.quick if means.quick else experiment.full, "claims": [],
        "stand_ins": list(experiment.stand_ins), "left_out": dict(experiment.left_out), "pictures": [],
    }  # fmt: skip


def carry_out(experiment: PaperExperiment, means: Means) -> dict[str, Any]:
    """Run an experiment and judge it: plain data, with the names of pictures. A quick share may lack figures. Raises
    ``LeasekitError`` for data that are missing.
    """
    evidence = experiment.run(means)
    claims = [claim for claim in experiment.claims if claim.figure in evidence.figures or not means.quick]
    pictures = [str(one.relative_to(means.out or "")) for one in evidence.pictures if one.suffix == ".svg"]
    judged = [judge(claim, evidence.figures[claim.figure]) for claim in claims]
    told = told_of(experiment, means) | ({"share": evidence.share, "ended": True} if evidence.share else {})
    return {**told, "claims": judged, "pictures": pictures}
