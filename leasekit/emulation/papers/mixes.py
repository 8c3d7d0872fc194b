"""Mixes of reservations, immediate requests and best effort, as Haizea's (Sotomayor, Keahey and Foster, "Combining
batch execution and leasing using virtual machines", HPDC 2008); and two questions of our own.

Haizea's paper is not among the texts that we have: what its authors say in words of suspension is judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

import attrs

from leasekit.config.traces import data_dir, missing_traces
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, Instant, Term
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.compare.works import Work, in_order
from leasekit.emulation.energy.drive import CORE, Latencies, drive
from leasekit.emulation.energy.experiment import EnergySetup, read_workloads
from leasekit.emulation.energy.metrics import delay_req
from leasekit.emulation.energy.requests import capacity_for, window_of
from leasekit.emulation.metrics import Series
from leasekit.emulation.papers.claims import Means, PaperClaim, PaperExperiment, PaperFigures
from leasekit.emulation.timetable_plan import plan, read_workload
from leasekit.policies.authority.energy import EnergySettings
from leasekit.policies.authority.energy_plan import Ewma

NODES: Final = 64
FILES: Final = ("reservations/wl_n64_r1000_s1_l0.9.csv", "reservations/wl_n64_r5000_s1_l0.9.csv")
SEEDS: Final = 5


def _from_file(means: Means, name: str) -> list[Work]:
    folder = data_dir(means.data)
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        raise missing_traces([name], folder, generated=False)
    return in_order(read_workload(path))


def _drawn_anew(works: Sequence[Work], seed: int) -> list[Work]:
    """A mix of the same kinds, widths and durations, whose requests come in another order: seed 1 is as it was."""
    if seed == 1:
        return list(works)
    submits = [work.submit for work in works]
    shuffled = list(works)
    Random(seed).shuffle(shuffled)
    moved = []
    for work, submit in zip(shuffled, submits, strict=True):
        by = submit - work.submit
        latest = work.latest if work.latest + work.estimate >= INSTANT_MAX else work.latest + by
        moved.append(work._replace(submit=submit, start=work.start + by, latest=latest))
    return in_order(moved)


def _mixes(means: Means) -> list[list[Work]]:
    """The mixes of a share: the smaller file and its reorderings, or those of the larger."""
    works = _from_file(means, FILES[0] if means.quick else FILES[1])
    return [_drawn_anew(works, seed) for seed in range(1, (3 if means.quick else SEEDS) + 1)]


def _planned(works: Sequence[Work], policy: str, saving: Saving | None = None, **settings: Any) -> dict[str, Any]:
    return plan(works, NODES, policy, settings, saving)[0]


def _refused(summary: Mapping[str, Any], *kinds: str) -> int:
    return sum(summary["kinds"][kind]["refused"] for kind in kinds)


def _haizea(means: Means) -> PaperFigures:
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for works in _mixes(means):
        plain = _planned(works, "backfill")
        halting = _planned(works, "backfill", suspension="all")
        accepted = [one["kinds"]["ar"]["accepted"] for one in (halting, plain)]
        figures["reservations accepted, with suspension less without"].append(accepted[0] - accepted[1])
        for key, name in (("utilisation", "utilisation"), ("mean_wait_s", "mean wait of best effort")):
            figures[f"{name}, with suspension of without"].append(halting[key] / plain[key])
        figures["makespan, with suspension of without"].append(halting["makespan_s"] / plain["makespan_s"])
        figures["suspensions"].append(halting["suspensions"])
        for name, one in (("with", halting), ("without", plain)):
            figures[f"reservations refused, {name} suspension"].append(_refused(one, "ar"))
            figures[f"mean wait of best effort {name} suspension, s"].append(one["mean_wait_s"])
    return PaperFigures(figures)


HAIZEA: Final = PaperExperiment(
    name="haizea",
    paper="Sotomayor, Keahey and Foster, Combining batch execution and leasing using virtual machines (HPDC 2008; its "
    "text is not among ours, so directions are judged)",
    what="Best effort around reservations on 64 nodes, with and without suspension of what is in the way.",
    full="5,000 requests, 5 orders of them", quick="1,000 requests, 3 orders of them", run=_haizea,
    claims=(
        PaperClaim("HPDC 2008", "reservations accepted, with suspension less without", "no fewer", low=-0.5),
        PaperClaim("HPDC 2008", "utilisation, with suspension of without", "higher", low=1),
        PaperClaim("HPDC 2008", "mean wait of best effort, with suspension of without", "shorter", high=1),
        PaperClaim("HPDC 2008", "makespan, with suspension of without", "no longer", high=1.005),
        PaperClaim("HPDC 2008", "suspensions"),
        *(PaperClaim("HPDC 2008", f"{what} {which} suspension{unit}") for what, unit in (("reservations refused,", ""),
        ("mean wait of best effort", ", s")) for which in ("with", "without")),
    ),
    stand_ins=(
        "a made mix of 30% reservations, 50% best effort and 20% immediate requests at load 0.9, for the logs and "
        "reservations of the paper; other seeds are other orders of the same requests",
    ),
)  # fmt: skip


LEAD: Final = 5 * MINUTE
"""How long after they are asked for immediate requests begin where best effort may give way: saving takes time, so that
nothing can be borrowed for at once.
"""


def _soon(work: Work) -> Work:
    if work.kind != "im":
        return work
    return work._replace(start=work.start + LEAD, latest=work.latest + LEAD)


def _borrow(means: Means) -> PaperFigures:
    figures: defaultdict[str, list[float]] = defaultdict(list)
    ways: Mapping[str, tuple[str, Saving]] = {
        "refusing": ("none", Saving()),
        "borrowing, 32 s to save": ("all", Saving()),
        "borrowing, 256 s to save": ("all", Saving(memory=8192)),
        "borrowing of one node only": ("serial", Saving()),
    }
    for mix in _mixes(means):
        works = list(map(_soon, mix))
        refused: list[int] = []
        for name, (suspension, saving) in ways.items():
            one = _planned(works, "backfill", saving, suspension=suspension)
            refused.append(_refused(one, "ar", "im"))
            figures[f"{name}: refused"].append(refused[-1])
            figures[f"{name}: refused, less than by refusing"].append(refused[0] - refused[-1])
            figures[f"{name}: best effort lost"].append(_refused(one, "be"))
            figures[f"{name}: mean bounded slowdown of best effort"].append(one["mean_bounded_slowdown"])
    return PaperFigures(figures)


BORROW: Final = PaperExperiment(
    name="borrow", paper="",
    what="Borrow and return: who runs as best effort gives way for a while, so that fewer reservations and immediate "
    "requests are refused. These begin five minutes after they are asked for, in all ways: saving takes time, so that "
    "nothing can be borrowed for at once.",
    full="5,000 requests on 64 nodes, 5 orders of them", quick="1,000 requests on 64 nodes, 3 orders of them",
    run=_borrow,
    claims=tuple(
        PaperClaim("ours", f"{way}: {what}")
        for what in (
            "refused", "refused, less than by refusing", "best effort lost", "mean bounded slowdown of best effort",
        )
        for way in ("refusing", "borrowing, 32 s to save", "borrowing, 256 s to save", "borrowing of one node only")
    ),
)  # fmt: skip

# -- tariffs and carbon --------------------------------------------------------------------------------------------

PRICES: Final[Mapping[str, tuple[float, ...]]] = {
    # By hour of the day, UTC, 1 in the mean: a tariff with two peaks, and a grid that the sun makes clean at noon.
    "tariff": (
        0.6, 0.6, 0.6, 0.6, 0.6, 0.7, 1.0, 1.5, 1.5, 1.3, 1.1, 1.0, 1.0, 0.9, 0.9, 1.0, 1.3, 1.7, 1.7, 1.3, 1.0, 0.9,
        0.6, 0.6,
    ),
    "carbon": (
        1.2, 1.2, 1.2, 1.2, 1.2, 1.1, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.2, 1.2, 1.2,
        1.2, 1.2,
    ),
}  # fmt: skip
"""Synthetic profiles: relative prices by hour."""
DEAR: Final = 1.0


@attrs.frozen(kw_only=True)
class PricedForecastSettings:
    """Settings of :class:`PricedForecast`: a price for each hour of the day (UTC), and from which on it is high."""

    prices: tuple[float, ...] = attrs.field(validator=attrs.validators.min_len(24))
    dear: float = DEAR


class PricedForecast:
    """A forecast that heeds prices: in dear hours as many cores as are needed now, in the others with a margin, by the
    weighted average (:class:`~leasekit.policies.authority.energy_plan.Ewma`).
    """

    Settings: ClassVar[type[PricedForecastSettings]] = PricedForecastSettings

    def __init__(self, settings: PricedForecastSettings) -> None:
        self._settings = settings
        self._average = Ewma()

    def forecast(self, now: Instant, demand: int) -> float:
        """How many cores will be needed until the next call."""
        with_margin = self._average.forecast(now, demand)
        is_dear = self._settings.prices[now // HOUR % 24] >= self._settings.dear
        return float(demand) if is_dear else with_margin


def cost(on: Series, window: Term, prices: Sequence[float]) -> float:
    """What is on over a window, in core-hours times the price of each hour of the day (UTC)."""
    total, at = 0.0, window.start
    while at < window.end:
        until = min((at // HOUR + 1) * HOUR, window.end)
        total += on.integral(Term(at, until)) / HOUR * prices[at // HOUR % 24]
        at = until
    return total


def _tariff(means: Means) -> PaperFigures:
    setup = EnergySetup(days=7 if means.quick else 14)
    figures: dict[str, list[float]] = {}
    for log in ("kth-sp2",) if means.quick else ("kth-sp2", "hpc2n"):
        requests = read_workloads(log, setup, means.data).in_advance
        capacity, window = capacity_for(requests, setup.safety), window_of(requests)
        for profile, prices in PRICES.items():
            for way in WAYS:
                priced = way == "heeding prices"
                forecast = f"{__name__}:PricedForecast" if priced else {"last value": "last", "EWMA": "ewma"}[way]
                more = {"prices": prices} if priced else {}
                power = attrs.asdict(setup.power)
                settings = EnergySettings(types=(CORE,), forecast=forecast, forecast_settings=more, **power)
                course = drive(requests, capacity, settings, Latencies())
                everything = cost(_constant(capacity, window), window, prices)
                dark = cost(course.off, window, prices)
                figures[f"{log}, {profile}: cost, of all on: {way}"] = [1 - dark / everything]
                figures[f"{log}, {profile}: weighted delay: {way}"] = [delay_req(course.delayed)]
                figures[f"{log}, {profile}: cores switched: {way}"] = [course.switched]
    return PaperFigures(figures)


def _constant(value: float, window: Term) -> Series:
    series = Series()
    series.append(window.start, value)
    return series


WAYS: Final = ("last value", "EWMA", "heeding prices")

TARIFF: Final = PaperExperiment(
    name="tariff", paper="",
    what="Power-off that heeds a tariff or the carbon of the grid, by hour, against the plain one: without a margin in "
    "dear hours.",
    full="14 days of kth-sp2 and of hpc2n, with reservations", quick="7 days of kth-sp2, with reservations",
    run=_tariff,
    claims=tuple(
        PaperClaim("ours", f"{log}, {profile}: {what}: {way}")
        for log in ("kth-sp2", "hpc2n") for profile in PRICES
        for what in ("cost, of all on", "weighted delay", "cores switched") for way in WAYS
    ),
    stand_ins=("synthetic prices by hour of the day, 1 in the mean, as leasekit/emulation/papers/mixes.py has them",),
)  # fmt: skip
