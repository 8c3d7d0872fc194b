"""The experiments after Shirako's section 5, from published traces: what must come out, told by other code than the
recorder's, from the transition log and the traces themselves.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import pytest
from datafiles import data_file

from leasekit.config.load import load
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, parse_duration
from leasekit.emulation.experiment import run_deployment, run_file, run_one

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "emulation"
PAGE = (ROOT / "docs" / "experiments.md").read_text()
WEB = "worldcup98/worldcup98-5min.csv.gz"
BATCH = "lpc-egee/LPC-EGEE-2004-1.2-cln-5min.csv.gz"
INTERVAL = 5 * MINUTE
MONTH = 30 * DAY

TERMS = pytest.mark.parametrize("term", [pytest.param("12h", marks=pytest.mark.soak), "3d"])
"""Of guests that compete: a month with the shorter term takes four times as long, and `make soak` has it."""

pytestmark = pytest.mark.xdist_group("paper")


class Experiment(NamedTuple):
    """A finished experiment: its summary, and its folder."""

    summary: Mapping[str, Any]
    out: Path

    def run(self, name: str) -> Any:
        """The summary of one run."""
        return next(run for run in self.summary["runs"] if run["run"] == name)

    def log(self, name: str) -> list[dict[str, str]]:
        """The transitions of one run."""
        with (self.out / f"{name}-transitions.csv").open(encoding="utf-8", newline="") as text:
            return list(csv.DictReader(text))

    def series(self, name: str) -> list[dict[str, str]]:
        """The series of one run."""
        with (self.out / f"{name}-series.csv").open(encoding="utf-8", newline="") as text:
            return list(csv.DictReader(text))


@pytest.fixture(scope="module")
def terms(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """terms.toml, a month for each of four terms."""
    data = data_file(WEB).parents[1]
    out = tmp_path_factory.mktemp("terms")
    return Experiment(run_file(DEPLOY / "terms.toml", out, data=data), out)


@pytest.fixture(scope="module")
def compete(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Experiment]:
    """compete.toml, a month with a term."""
    data = data_file(WEB).parents[1]
    data_file(BATCH)

    @cache
    def run(term: str) -> Experiment:
        out = tmp_path_factory.mktemp("compete")
        return Experiment(run_deployment(load(DEPLOY / "compete.toml"), out, data=data, only=[term])[0], out)

    return run


# -- told from the log and the traces ------------------------------------------------------------------------------


def trace(name: str, column: str, start_s: int) -> list[float]:
    """The month of a trace from ``start_s`` on, one value for each five minutes, as the file has it."""
    with gzip.open(data_file(name), "rt", encoding="utf-8", newline="") as text:
        rows = {int(row["timestamp_s"]): float(row[column]) for row in csv.DictReader(text)}
    return [rows[start_s + 300 * index] for index in range(MONTH // INTERVAL)]


def scaled(values: list[float], peak: int) -> list[int]:
    """Whole units, at most ``peak``."""
    highest = max(values)
    return [math.ceil(round(value * peak / highest, 9)) for value in values]


WEB_START_S = 897602400  # 1998-06-11T22:00Z
BATCH_START_S = 1111790100  # 2005-03-25T22:35Z


def held(log: list[dict[str, str]], guest: str, sites: tuple[str, ...]) -> list[tuple[int, int]]:
    """How many units a guest held from which instant on: those that were set up for its leases and not taken yet.

    Sets up and tears down in no time, so that setup and teardown are where a lease begins and ends.
    """
    leases = {row["lease"] for row in log if row["actor"] == guest}
    changes: Counter[int] = Counter()
    for row in log:
        if row["actor"] in sites and row["lease"] in leases:
            changes[int(row["at"])] += {"unit setup": 1, "unit teardown": -1}.get(row["event"], 0)
    steps, count = [(0, 0)], 0
    for at in sorted(changes):
        count += changes[at]
        steps.append((at, count))
    return steps


def pieces(steps: list[tuple[int, int]], demand: list[int]) -> Iterator[tuple[int, int, int]]:
    """(milliseconds, demand, held) of each piece of the month in which both are constant."""
    edges = sorted({*range(0, MONTH + 1, INTERVAL), *(at for at, _ in steps if at < MONTH)})
    index = 0
    for start, end in pairwise(edges):
        while index + 1 < len(steps) and steps[index + 1][0] <= start:
            index += 1
        yield end - start, demand[start // INTERVAL], steps[index][1]


def error(steps: list[tuple[int, int]], demand: list[int]) -> float:
    """The root mean square of demand less holdings over the month."""
    return math.sqrt(sum(length * (want - have) ** 2 for length, want, have in pieces(steps, demand)) / MONTH)


@pytest.mark.parametrize("term", ["12h", "1d", "3d", "7d"])
def test_terms_are_what_the_log_says(terms: Experiment, term: str) -> None:
    """Error, mean holdings and unserved demand of the summary follow from the transition log and the trace."""
    demand = scaled(trace(WEB, "requests", WEB_START_S), 140)
    assert (len(demand), max(demand)) == (8640, 140)
    steps = held(terms.log(term), "web", ("east", "west"))
    web = terms.run(term)["guests"]["web"]
    assert web["rmse"] == pytest.approx(error(steps, demand), rel=1e-12)
    cut = list(pieces(steps, demand))
    assert web["mean_leased"] == pytest.approx(sum(length * have for length, _, have in cut) / MONTH, rel=1e-12)
    assert web["mean_demand"] == pytest.approx(sum(demand) / len(demand), rel=1e-12)
    short = sum(length * max(0, want - have) for length, want, have in cut)
    assert web["unserved"] == pytest.approx(short / (sum(demand) * INTERVAL), rel=1e-12)


@TERMS
def test_competing_guests_are_what_the_log_says(compete: Callable[[str], Experiment], term: str) -> None:
    """The same for two guests, whose demand comes from traces of their own."""
    demands = {
        "web": scaled(trace(WEB, "requests", WEB_START_S), 140),
        "batch": scaled(trace(BATCH, "running_procs", BATCH_START_S), 140),
    }
    log = compete(term).log(term)
    for guest, demand in demands.items():
        found = compete(term).run(term)["guests"][guest]
        assert found["rmse"] == pytest.approx(error(held(log, guest, ("east", "west")), demand), rel=1e-9)
        assert found["mean_demand"] == pytest.approx(sum(demand) / len(demand), rel=1e-12)


def replay(log: list[dict[str, str]], sites: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """After each setup and teardown: the site, and which lease holds each of its units."""
    holders: dict[str, dict[str, str]] = defaultdict(dict)
    for row in log:
        if row["actor"] not in sites or not row["event"].startswith("unit "):
            continue
        unit, of_site = row["why"].split()[0], holders[row["actor"]]
        if row["event"] == "unit setup":
            assert unit not in of_site, f"{unit} is set up for {row['lease']} while {of_site[unit]} holds it"
            of_site[unit] = row["lease"]
        elif row["event"] == "unit down":
            del of_site[unit]
        yield row["actor"], of_site


@TERMS
def test_no_unit_is_held_twice(compete: Callable[[str], Experiment], term: str) -> None:
    """At each step of the month a unit is held by one lease at most, no site has more than its 70 out, and both are
    full at some instant.
    """
    peaks: Counter[str] = Counter()
    for site, holders in replay(compete(term).log(term), ("east", "west")):
        peaks[site] = max(peaks[site], len(holders))
    assert peaks == {"east": 70, "west": 70}
    assert {name: site["peak"] for name, site in compete(term).run(term)["sites"].items()} == peaks


@TERMS
def test_series_are_the_month(compete: Callable[[str], Experiment], term: str) -> None:
    """30 days of five minutes each, whose columns are the traces scaled to 140 and the counts of the log; never more
    than 140 nodes at once.
    """
    rows = compete(term).series(term)
    assert [int(row["instant_ms"]) for row in rows] == list(range(0, MONTH, INTERVAL))
    assert [int(row["web.demand"]) for row in rows] == scaled(trace(WEB, "requests", WEB_START_S), 140)
    assert [int(row["batch.demand"]) for row in rows] == scaled(trace(BATCH, "running_procs", BATCH_START_S), 140)
    steps = held(compete(term).log(term), "web", ("east", "west"))
    counts = dict(steps)
    at_sample, have = {}, 0
    for at in sorted({*counts, *range(0, MONTH, INTERVAL)}):
        have = counts.get(at, have)
        at_sample[at] = have
    assert [int(row["web.leased"]) for row in rows] == [at_sample[at] for at in range(0, MONTH, INTERVAL)]
    assert max(int(row["web.leased"]) + int(row["batch.leased"]) for row in rows) == 140
    assert all(int(row["web.usable"]) <= int(row["web.leased"]) for row in rows)


# -- what must come out --------------------------------------------------------------------------------------------


def test_error_rises_with_the_term(terms: Experiment) -> None:
    """Figure 7: the longer the term, the larger the error, the more lies idle, and the fewer nodes change hands;
    with one guest all that the mapper wants is served.
    """
    runs = [terms.run(term) for term in ("12h", "1d", "3d", "7d")]
    guests = [run["guests"]["web"] for run in runs]
    for one, other in pairwise(guests):
        assert one["rmse"] < other["rmse"]
        assert one["rmse_wanted"] < other["rmse_wanted"]
        assert one["idle_leased"] < other["idle_leased"]
        assert one["unserved"] > other["unserved"]
    for shorter, longer in pairwise(runs):
        assert shorter["flips"] > longer["flips"]
    assert all(guest["unserved_wanted"] == 0 for guest in guests)
    assert terms.summary["rmse"] == {run["run"]: {"web": run["guests"]["web"]["rmse"]} for run in runs}


def test_page_of_terms(terms: Experiment) -> None:
    """docs/experiments.md has the figures of these runs."""
    for run in terms.summary["runs"]:
        web = run["guests"]["web"]
        errors = f"{web['rmse']:.2f} | {web['rmse_wanted']:.2f}"
        assert f"| {run['run']} | {errors} | {web['unserved']:.1%} | {web['idle_leased']:.1%} |" in PAGE


@TERMS
def test_page_of_competing_guests(compete: Callable[[str], Experiment], term: str) -> None:
    """docs/experiments.md has the figures of these runs."""
    web, batch = (compete(term).run(term)["guests"][name] for name in ("web", "batch"))
    errors = f"{web['rmse']:.2f} | {batch['rmse']:.2f}"
    assert f"| {term} | {errors} | {web['unserved']:.1%} | {batch['unserved']:.1%} |" in PAGE


def test_load_is_balanced(terms: Experiment) -> None:
    """The broker spreads the leases of a term of 12 h evenly: neither site has over 60% of the node-time."""
    usage = [site["used"] for site in terms.run("12h")["sites"].values()]
    assert max(usage) / sum(usage) < 0.6


@pytest.mark.soak
def test_competing_guests_react_late_with_long_terms(compete: Callable[[str], Experiment]) -> None:
    """Figures 8 and 9: both guests' errors at 3 d are above those at 12 h."""
    for guest in ("web", "batch"):
        short, long = (compete(term).run(term)["guests"][guest]["rmse"] for term in ("12h", "3d"))
        assert short < long


@pytest.mark.soak
@TERMS
def test_priority_decides_who_is_served(compete: Callable[[str], Experiment], term: str) -> None:
    """The guest of the higher priority goes short of less than with the lower one, and the other of more: web first
    against batch first, all else the same.
    """
    deployment = load(DEPLOY / "compete.toml").with_overrides(
        {"actor.broker.priorities.web": 0, "actor.broker.priorities.batch": 10}
    )
    assert deployment.emulation is not None
    data = data_file(WEB).parents[1]
    (spec,) = (spec for spec in deployment.emulation.runs if spec.name == term)
    swapped = run_one(deployment, spec, None, data=data).summary["guests"]
    stated = compete(term).run(term)["guests"]
    assert stated["web"]["unserved_wanted"] < swapped["web"]["unserved_wanted"]
    assert stated["batch"]["unserved_wanted"] > swapped["batch"]["unserved_wanted"]


SCALES = [
    *((f"N = {nodes}", nodes, 1, nodes in (240, 360)) for nodes in (120, 240, 360, 480)),
    *((f"l = {leases}, t = 3600s", 240, leases, leases == 240) for leases in (24, 240)),
]
"""What a run of scaling.toml is called, its nodes, its leases, and whether it is left to `make soak`: runs between two
others, and the longest.
"""


@pytest.mark.parametrize("every", [True, False], ids=["every tick", "idle ticks skipped"])
@pytest.mark.parametrize(
    ("scale", "nodes", "leases"),
    [pytest.param(*scale, marks=pytest.mark.soak if later else ()) for *scale, later in SCALES],
)
def test_scaling(tmp_path: Path, scale: str, nodes: int, leases: int, every: bool) -> None:
    """Section 5.3: in each of ten terms every node is given anew, in as many leases as were asked for, and none is
    extended; all nodes are out all the time; alpha, the minimum term and flips a second are there.
    """
    deployment = load(DEPLOY / "scaling.toml")
    assert deployment.emulation is not None
    name = f"{'every tick' if every else 'idle ticks skipped'}, {scale}"
    (spec,) = (spec for spec in deployment.emulation.runs if spec.name == name)
    run = run_one(deployment, spec, tmp_path).summary
    with (tmp_path / "transitions.csv").open(encoding="utf-8", newline="") as text:
        log = list(csv.DictReader(text))
    flipped: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for row in log:
        if row["event"] == "unit setup":
            flipped[int(row["at"])].append((row["why"].split()[0], row["lease"]))
    assert list(flipped) == [MINUTE + term * HOUR for term in range(10)]
    for units in flipped.values():
        assert len({unit for unit, _ in units}) == len(units) == nodes
        assert set(Counter(lease for _, lease in units).values()) == {nodes // leases}
    owners = [dict(units) for units in flipped.values()]
    assert all(before[unit] != after[unit] for before, after in pairwise(owners) for unit in before)
    assert run["flips"] == 10 * nodes
    assert run["guests"]["guest"]["fidelity"] == 1
    assert run["sites"]["site"]["peak"] == nodes
    assert run["ticks"] == 36_060
    assert run["ticks_executed"] == ("every" if every else "only those with something due")
    measured = run["measured"]
    assert measured["alpha_ms"] > 0
    assert measured["minimum_term_s"] > 0
    assert measured["flips_per_s"] > 0


# -- fidelity ------------------------------------------------------------------------------------------------------

UNITS, LEAVE_TIME, LEAVE, JOIN = 10, 10 * SECOND, 5 * SECOND, 10 * SECOND
JOIN_DEVIATION = 2 * SECOND
MACHINES = {
    "cloned VM": (35 * SECOND, 3 * SECOND, 5 * SECOND),
    "VM": (3 * MINUTE, 20 * SECOND, 10 * SECOND),
    "physical": (6 * MINUTE, 1 * MINUTE, 30 * SECOND),
}
"""Mean and standard deviation of setup, and teardown, as fidelity.toml has them, in ms."""
LENGTHS = ["10m", "15m", "30m", "1h", "2h", "4h", "8h", "1d"]
EDGE = ("physical", "10m")
"""The run whose overhead can take the whole of a term."""
SHORT = LENGTHS[:3]
"""Terms of which two days have most leases: but for the edge, they are run by `make soak`."""
RUNS = [(machine, length) for machine in MACHINES for length in LENGTHS]
OF_LENGTHS = pytest.mark.parametrize("lengths", [LENGTHS[3:], pytest.param(LENGTHS, marks=pytest.mark.soak)], ids=len)


def slowest(count: int) -> tuple[float, float]:
    """Mean and standard deviation of the largest of ``count`` standard normal numbers, by summing over its density."""
    normal, step = NormalDist(), 0.001
    points = [-8 + step * index for index in range(16_001)]
    density = [count * normal.cdf(x) ** (count - 1) * normal.pdf(x) * step for x in points]
    mean = math.fsum(x * share for x, share in zip(points, density, strict=True))
    square = math.fsum(x * x * share for x, share in zip(points, density, strict=True))
    return mean, math.sqrt(square - mean * mean)


@pytest.fixture(scope="module")
def fidelity() -> Callable[[str, str], float]:
    """The fidelity of a run of fidelity.toml."""
    deployment = load(DEPLOY / "fidelity.toml")
    assert deployment.emulation is not None
    specs = {spec.name: spec for spec in deployment.emulation.runs}
    assert set(specs) == {f"{machine}, {length}" for machine, length in RUNS}

    @cache
    def run(machine: str, length: str) -> float:
        summary = run_one(deployment, specs[f"{machine}, {length}"], None).summary
        return float(summary["guests"]["guest"]["fidelity"])

    return run


@pytest.mark.parametrize(
    ("machine", "length"),
    [pytest.param(*run, marks=pytest.mark.soak if run[1] in SHORT and run != EDGE else ()) for run in RUNS],
)
def test_fidelity_is_what_latencies_leave(fidelity: Callable[[str, str], float], machine: str, length: str) -> None:
    """A term loses what its predecessor's teardown takes of it, the setup of its slowest unit, a join, and the time
    that the guest leaves before the end.

    The site calls a lease active when all of its ten units are up, so it pays the largest of ten setups. Teardown
    begins when the guest has left, before the end of the term: only what goes beyond it is the successor's. The
    tolerance is five standard deviations of the mean over the leases of two days, plus a tick for each lease, plus,
    where the overhead can take the whole of a short term, what a lease can't lose below nothing: at most the 0.2 s by
    which the slowest of ten physical machines passes ten minutes on average.
    """
    setup, deviation, teardown = MACHINES[machine]
    term = parse_duration(length)
    leases = 2 * DAY // term
    late, spread = slowest(UNITS)
    carried = max(0, teardown - (LEAVE_TIME - LEAVE)) * (leases - 1) / leases
    overhead = carried + setup + late * deviation + JOIN + LEAVE_TIME
    of_one = math.hypot(spread * deviation, JOIN_DEVIATION / math.sqrt(UNITS))
    tolerance = (5 * of_one / math.sqrt(leases) + SECOND + 200) / term
    expected = max(0.0, 1 - round(overhead) / term)
    assert fidelity(machine, length) == pytest.approx(expected, abs=tolerance, rel=0)


@OF_LENGTHS
def test_fidelity_rises_with_the_term(fidelity: Callable[[str, str], float], lengths: list[str]) -> None:
    """Figure 5: longer terms pay for setup, and slower machines need longer ones."""
    for machine in MACHINES:
        for shorter, longer in pairwise(lengths):
            assert fidelity(machine, shorter) < fidelity(machine, longer)
    for length in lengths:
        assert fidelity("physical", length) < fidelity("VM", length) < fidelity("cloned VM", length)


@OF_LENGTHS
def test_page_of_fidelity(fidelity: Callable[[str, str], float], lengths: list[str]) -> None:
    """docs/experiments.md has the figures of these runs."""
    for length in lengths:
        shares = " | ".join(f"{fidelity(machine, length):.1%}" for machine in MACHINES)
        assert f"| {length} | {shares} |" in PAGE
