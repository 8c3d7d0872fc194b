"""The experiment of the co-allocation paper: one coordinator, ten sites, a day of requests for the next day.

Two users send requests in a Poisson stream during the first 24 hours, each for some time in the second. A request is
planned over ten equidistant starts, and those at which anything changes, as requests for leases are; its best plan (by
value, then start) is held and leased; it fails if there is none. The load grows as the day goes by: what arrives
between 70 and 80 % of the day sees a network that is loaded so far. Success is counted for each tenth of the day,
utilisation is what is granted of the second day at the end of each. Who carries a run out is :mod:`.actors`.

The testbed, its request types and the scenarios come from ``coallocation/testbed.json`` of the data folder. Each
seed draws one stream, the same in all scenarios. All but the planning times repeats for a seed.

Scenarios: ``normal``; ``service_levels`` (user B sees half of what is free, rounded down); ``load_balancing`` (option
A); ``preference_domain`` and ``preference_size`` (options B1 and B2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from leasekit.config.traces import data_dir, missing_traces
from leasekit.core.errors import LeasekitError
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import DAY, MINUTE, SECOND, Instant
from leasekit.core.topology import Mode, Sort
from leasekit.emulation import plots
from leasekit.emulation.coallocation.against_paper import EXPECTED, figures_of
from leasekit.emulation.outputs import write_results, write_rows
from leasekit.emulation.papers.claims import judged
from leasekit.policies.broker.coallocation.model import ModelLink, Resources, Solver, Vertex

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE: Final = "coallocation/testbed.json"
INTERVALS: Final = 10
USERS: Final = ("A", "B")
SCENARIOS: Final = ("normal", "service_levels", "load_balancing", "preference_domain", "preference_size")


class RequestType(NamedTuple):
    """A requested graph: how many sites, and links between them."""

    sites: int
    links: tuple[tuple[int, int], ...]


@attrs.frozen(kw_only=True)
class Testbed:
    """What the simulation needs of the testbed file; durations in milliseconds."""

    resources: Resources
    types: tuple[RequestType, ...]
    cpus: tuple[int, ...]
    bandwidth: float
    durations: tuple[int, ...]
    requests: int
    preferences: Mapping[str, Mapping[str, float]]
    fractions: Mapping[str, Mapping[str, float]]


@attrs.frozen(kw_only=True)
class CoallocationSetup:
    """How to run the simulation: everything but the seed and the scenario. ``load`` scales the number of requests."""

    pmax: int | None = 2
    starts: Mode = "both"
    frames: int = 10
    sort: Sort = "value"
    solver: Solver = "auto"
    load: float = 1.0


class Arrival(NamedTuple):
    """One request: when it arrives, whose it is, what it asks for. Times in milliseconds; ``latest`` is a start."""

    at: Instant
    user: str
    kind: RequestType
    cpus: int
    earliest: Instant
    latest: Instant
    duration: int


class CoallocationTally(NamedTuple):
    """What one run of one scenario came to, by user or site, each by tenth of the day; and what became of the
    ``leases`` of granted requests: how many were made, were active for a while, and how many messages and events that
    took.
    """

    scenario: str
    seed: int
    asked: Mapping[str, Sequence[int]]
    granted: Mapping[str, Sequence[int]]
    utilisation: Mapping[str, Sequence[float]]
    planning_ms: Sequence[Sequence[float]]
    leases: Mapping[str, int]


# -- the testbed -----------------------------------------------------------------------------------------------------


def read_testbed(data: Path | None = None) -> Testbed:
    """The testbed of the data folder. Raises ``LeasekitError`` where it is missing or malformed."""
    folder = data_dir(data)
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        raise missing_traces([FILE], folder, generated=False)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        workload, scenarios = content["workload"], content["scenarios"]
        return Testbed(
            resources=_resources(path, content),
            types=tuple(
                RequestType(kind["sites"], tuple((a, b) for a, b in kind["links"]))
                for kind in content["types"].values()
            ),
            cpus=tuple(workload["cpus_per_requested_site"]),
            bandwidth=float(workload["bandwidth_per_requested_link"]),
            durations=tuple(round(seconds * SECOND) for seconds in workload["duration_s"]),
            requests=int(workload["requests_at_100pct"].rsplit("=", 1)[-1]),
            preferences={
                "preference_domain": scenarios["B1_domain"]["vc"],
                "preference_size": scenarios["B2_size"]["vc"],
            },
            fractions={"service_levels": scenarios["service_levels"]["user_fraction"]},
        )
    except OSError as error:
        raise LeasekitError(f"{path}: can't be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LeasekitError(f"{path}: can't be read as a testbed: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LeasekitError(f"{path}: is not a testbed of the co-allocation paper: {error!r}") from error


def _resources(path: Path, content: Mapping[str, Any]) -> Resources:
    def kept(table: Mapping[str, Any], cls: type) -> dict[str, Any]:
        names = {field.alias or field.name for field in attrs.fields(cls)}
        return {key: value for key, value in table.items() if key in names}

    plain = {
        "vertices": [kept(vertex, Vertex) for vertex in content["vertices"]],
        "links": [kept(link, ModelLink) for link in content["links"]],
    }
    try:
        return structure(Resources, plain, "")
    except SettingsError as error:
        raise LeasekitError("\n".join(f"{path}: {line}" for line in error.errors)) from error


def draw_requests(testbed: Testbed, seed: int, load: float = 1.0) -> list[Arrival]:
    """A day of requests, in order of arrival; half of them each user's. The same for the same seed."""
    arrivals = []
    for user in USERS:
        random = Random(f"{seed}/{user}")
        rate = testbed.requests * load / len(USERS) / DAY
        at = random.expovariate(rate)
        while at < DAY:
            kind, cpus = random.choice(testbed.types), random.choice(testbed.cpus)
            duration = random.choice(testbed.durations)
            # The window, duration included, is three times the duration and lies in the second day.
            minutes = (DAY - 3 * duration) // MINUTE
            earliest = DAY + MINUTE * random.randint(0, minutes)
            arrivals.append(Arrival(round(at), user, kind, cpus, earliest, earliest + 2 * duration, duration))
            at += random.expovariate(rate)
    return sorted(arrivals)


# -- what it came to -------------------------------------------------------------------------------------------------


def summarize(testbed: Testbed, tallies: Sequence[CoallocationTally], setup: CoallocationSetup) -> dict[str, Any]:
    """Means over seeds: by scenario, success by interval for each user and both, utilisation by interval and site.

    They are held against the paper's if the settings are the paper's.
    """
    scenarios = list(dict.fromkeys(tally.scenario for tally in tallies))
    found: dict[str, Any] = {
        "seeds": list(dict.fromkeys(tally.seed for tally in tallies)),
        "setup": attrs.asdict(setup),
        "requests_at_100pct": testbed.requests,
        "loads_pct": [100 // INTERVALS * (k + 1) for k in range(INTERVALS)],
        "scenarios": {name: _summary([t for t in tallies if t.scenario == name]) for name in scenarios},
    }
    others = other_settings(setup)
    found["not_the_papers"] = others
    found["claims"] = [] if others else judged((claim for claim, *_ in EXPECTED), figures(tallies))
    return found


def other_settings(setup: CoallocationSetup) -> list[str]:
    """The settings that are not the paper's, in words; how a problem is solved exactly is no matter of the paper."""
    pairs = [(field.name, getattr(setup, field.name), field.default) for field in attrs.fields(CoallocationSetup)]
    return [f"{name} {value} (not {paper})" for name, value, paper in pairs if value != paper and name != "solver"]


def figures(tallies: Sequence[CoallocationTally]) -> dict[str, list[float]]:
    """The figures of which the paper has some, of each seed."""
    by_seed: dict[int, dict[str, Mapping[str, Any]]] = {}
    for tally in tallies:
        by_seed.setdefault(tally.seed, {})[tally.scenario] = _summary([tally])
    return figures_of(list(by_seed.values()))


def _summary(tallies: Sequence[CoallocationTally]) -> dict[str, Any]:
    success = {
        name: [_ratio(tallies, k, users) for k in range(INTERVALS)]
        for name, users in (("both", USERS), *((user, (user,)) for user in USERS))
    }
    utilisation = {
        site: [round(fmean(each), 4) for each in zip(*(tally.utilisation[site] for tally in tallies), strict=True)]
        for site in sorted(tallies[0].utilisation)
    }
    return {
        "requests": sum(sum(map(sum, tally.asked.values())) for tally in tallies),
        "granted": sum(sum(map(sum, tally.granted.values())) for tally in tallies),
        "success": success,
        "utilisation": utilisation,
        "spread_of_utilisation": [round(pstdev(each), 4) for each in zip(*utilisation.values(), strict=True)],
    }


def _ratio(tallies: Sequence[CoallocationTally], k: int, users: Sequence[str]) -> float | None:
    """Success in an interval, averaged over the seeds that had requests in it."""
    ratios = []
    for tally in tallies:
        asked, granted = (sum(counts[user][k] for user in users) for counts in (tally.asked, tally.granted))
        if asked:
            ratios.append(granted / asked)
    return round(fmean(ratios), 4) if ratios else None


def measured(tallies: Sequence[CoallocationTally]) -> dict[str, Any]:
    """Planning times, in ms of processor time, by scenario: the only part that does not repeat."""
    found = {}
    for name in dict.fromkeys(tally.scenario for tally in tallies):
        by_load = [[took for t in tallies if t.scenario == name for took in t.planning_ms[k]] for k in range(INTERVALS)]
        times = sorted(took for part in by_load for took in part)
        found[name] = {
            "mean_ms": round(fmean(times), 4) if times else None,
            "p99_ms": round(times[int(0.99 * (len(times) - 1))], 4) if times else None,
            "max_ms": round(times[-1], 4) if times else None,
            "mean_ms_by_load": [round(fmean(part), 4) if part else None for part in by_load],
            "max_ms_by_load": [round(max(part), 4) if part else None for part in by_load],
        }
    return found


# -- files -----------------------------------------------------------------------------------------------------------


def write(
    out: Path | None, summary: Mapping[str, Any], times: Mapping[str, Any], tallies: Sequence[CoallocationTally]
) -> list[Path]:
    """Write summary.json, measured.json, success.csv, utilisation.csv and the pictures, which are returned: see
    :func:`.outputs.write_results`.
    """
    loads = summary["loads_pct"]

    def others(out: Path) -> Iterator[Path]:
        granted = (
            (t.scenario, t.seed, loads[k], user, t.asked[user][k], t.granted[user][k])
            for t in tallies
            for k in range(INTERVALS)
            for user in USERS
        )
        write_rows(out / "success.csv", ("scenario", "seed", "load_pct", "user", "requests", "granted"), granted)
        shares = (
            (t.scenario, t.seed, loads[k], site, f"{shares[k]:.6f}")
            for t in tallies
            for k in range(INTERVALS)
            for site, shares in t.utilisation.items()
        )
        write_rows(out / "utilisation.csv", ("scenario", "seed", "load_pct", "site", "utilisation"), shares)
        yield from (*_draw_success(out, summary), *_draw_utilisation(out, summary), *_draw_times(out, summary, times))

    return write_results(out, summary, times, others)


def _draw_success(out: Path, summary: Mapping[str, Any]) -> tuple[Path, ...]:
    """Success by load: both users where they are treated alike, each of them where not."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, found in summary["scenarios"].items():
        for user in USERS if name == "service_levels" else ("both",):
            label = name.replace("_", " ") + (f", user {user}" if user != "both" else "")
            points = zip(summary["loads_pct"], found["success"][user], strict=True)
            curves[label] = [(load, ratio) for load, ratio in points if ratio is not None]

    return plots.draw_curves(
        out / "success", curves, legend="lower left", title="Success of co-allocation, for each tenth of the requests",
        xlabel="request load (%)", ylabel="success ratio", ylim=(0, 1.03),
    )  # fmt: skip


def _draw_utilisation(out: Path, summary: Mapping[str, Any]) -> tuple[Path, Path]:
    """A panel for each scenario: the utilisation of each site at each load, as in the paper."""
    scenarios = summary["scenarios"]

    def draw(figure: Figure) -> None:
        for axes, (name, found) in zip(plots.stacked(figure, len(scenarios)), scenarios.items(), strict=True):
            sites = list(found["utilisation"])
            below = [0.0] * len(sites)
            for k, load in enumerate(summary["loads_pct"]):
                heights = [found["utilisation"][site][k] - low for site, low in zip(sites, below, strict=True)]
                # Darker the later it was taken.
                axes.bar(sites, heights, bottom=below, color=plots.BLUE, alpha=0.15 + 0.085 * k, label=f"{load} %")
                below = [low + height for low, height in zip(below, heights, strict=True)]
            axes.set_title(name.replace("_", " "), fontsize=10)
            axes.set(ylabel="utilisation", ylim=(0, 1))
        title = "Utilisation of each site as the load grows"
        plots.headline(figure, title, figure.axes[0], loc="outside right upper", title="load")

    return plots.draw_figure(out / "utilisation", (8.0, 1.0 + 1.9 * len(scenarios)), draw)


def _draw_times(out: Path, summary: Mapping[str, Any], times: Mapping[str, Any]) -> tuple[Path, ...]:
    """Mean planning time by load."""
    curves = {
        name.replace("_", " "): [
            (load, took)
            for load, took in zip(summary["loads_pct"], found["mean_ms_by_load"], strict=True)
            if took is not None
        ]
        for name, found in times.items()
    }

    return plots.draw_curves(
        out / "planning", curves, title=f"Planning one request, {summary['setup']['frames']} candidate starts",
        xlabel="request load (%)", ylabel="mean time (ms)", ylim=(0, None),
    )  # fmt: skip
