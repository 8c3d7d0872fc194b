"""The simulations of "Resource Allocation using Virtual Clusters" (Stillwell, Schanzenbach, Vivien, Casanova): every
algorithm on the same problems, drawn by a seed, and what it comes to beside the paper's tables.

CPU needs are normal with mean 0.5 and a coefficient of variation, drawn again outside [0.01, 1], and memory likewise;
memory is then scaled so that the tasks have 1 - slack of what the hosts have. (The paper's text has another generator,
which does not reproduce its tables.) A degradation is by how much a yield is below the best one of an instance, in
percent; a failure counts as 100. Instances that nobody solved are left out.

Of parallel jobs (section 5 of the paper) all tasks need the same. How many tasks a job has is drawn as Lublin and
Feitelson (JPDC 2003) model it: 24 % have one; of the others the logarithm is uniform in two stages, and 75 % are
rounded to powers of two. The last job is cut to the number of tasks. The workload that changes (section 6, of which the
paper has no figures): a fifth of the tasks that MCB8 has placed goes, as many come, and what moves has no more than a
share of the memory.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from leasekit.emulation import plots
from leasekit.emulation.outputs import write_results, write_rows
from leasekit.emulation.papers.claims import PaperClaim, judged
from leasekit.emulation.spread import Progress, spread_over
from leasekit.policies.authority.placing.model import YieldHost, YieldProblem, YieldTask
from leasekit.policies.authority.placing.solve import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLACKS: Final = tuple(tenths / 10 for tenths in range(1, 10))
VARIATIONS: Final = (0.25, 0.75)
MCB: Final = tuple(f"mcb{number}" for number in range(1, 9))
SEARCHED: Final = "mcb8 + search"
"""MCB8 with local search after it."""


MOVED: Final = (0, 5, 10, 25, 100)
"""How much of the memory of tasks that run may move at once, in percent."""
CHANGED: Final = 0.2
"""Which share of the tasks goes, and comes, between two placements."""


class YieldSet(NamedTuple):
    """So many hosts, with these numbers of tasks and algorithms; what the paper says of MCB1 to MCB8: degradation from
    best, mean and most, in percent; and what must come out, in percent.
    """

    hosts: int
    tasks: tuple[int, ...]
    algorithms: tuple[str, ...]
    paper: Mapping[str, tuple[float, float]] = MappingProxyType({})
    expected: Mapping[str, tuple[float, float]] = MappingProxyType({})
    parallel: bool = False
    changes: bool = False


SETS: Final[Mapping[str, YieldSet]] = {
    "small": YieldSet(
        4,
        (6, 8, 10, 12),
        ("lp", "exact", "rrnd", "rrnz", "gr", "sg", "gb", "sgb", *MCB, SEARCHED, "best"),
        {
            "mcb8": (1.06, 40.45), "mcb5": (1.60, 38.67), "mcb6": (1.83, 37.61), "mcb7": (3.91, 40.71),
            "mcb3": (11.76, 55.73), "mcb2": (14.21, 48.30), "mcb1": (14.90, 55.84), "mcb4": (17.32, 46.95),
        },
        {
            "degradation of mcb8": (0.9, 1.3), "degradation of mcb5": (1.4, 2.1), "degradation of mcb1": (13.5, 16.5),
            "exact above mcb8": (1.5, 3.5), "exact above sg": (9.0, 15.0), f"exact above {SEARCHED}": (0.0, 1.0),
            "lp above exact": (3.0, 5.0),
        },
    ),
    "large": YieldSet(
        64,
        (100, 250, 500),
        ("lp", "rrnd", "rrnz", "gr", "sg", *MCB, SEARCHED, "best"),
        {
            "mcb8": (0.09, 3.16), "mcb5": (0.25, 3.50), "mcb6": (0.46, 16.68), "mcb7": (1.04, 48.39),
            "mcb3": (4.07, 64.71), "mcb2": (8.68, 46.68), "mcb1": (10.97, 73.33), "mcb4": (14.80, 61.20),
        },
        {
            "degradation of mcb8": (0.05, 0.12), "degradation of mcb5": (0.15, 0.4), "degradation of mcb1": (9.0, 13.0),
            f"lp above {SEARCHED}": (0.0, 0.4),
        },
    ),
    "parallel": YieldSet(64, (100, 250, 500), ("lp", "sg", "mcb8", SEARCHED), parallel=True),
    "dynamic": YieldSet(
        4, (6, 8, 10, 12), tuple(f"{name}, {share} %" for name in ("exact", SEARCHED) for share in MOVED), changes=True
    ),
}  # fmt: skip

WHERE: Final = {"small": "table 1, figures 2 to 5, 11 to 14", "large": "table 7, figures 6 to 10, 15 to 18"}
THEIR_WORDS: Final = {
    ("small", "exact above mcb8"): "about 2", ("small", "exact above sg"): "11 to 13",
    ("small", "lp above exact"): "about 4",
}  # fmt: skip
FEW: Final = "a few problems make most of this mean; with other seeds it is another by up to 0.2"
ABOVE: Final = "{} of mcb8 above sg's"

OTHERS: Final = 1_000_000
"""The numbers of instances from which those come that are new in another."""
SERIAL, TWO_STAGES, POWERS = 0.24, 0.86, 0.75
LOGS: Final = (0.8, 3.5, 6.0)
"""Of parallel jobs: the shares that have one task, a logarithm of the first stage (from the first of these to the
second, the others from there to the third), and a power of two."""


class YieldCase(NamedTuple):
    """What an instance is drawn by."""

    name: str
    tasks: int
    slack: float
    cpu: float
    memory: float
    number: int
    seed: int

    def problem(self) -> YieldProblem:
        """The instance."""
        random, hosts = Random("/".join(map(str, self))), SETS[self.name].hosts
        jobs = list(_jobs(random, self.tasks)) if SETS[self.name].parallel else [""] * self.tasks
        cpu = _alike([_drawn(random, self.cpu) for _ in range(self.tasks)], jobs)
        memory = _alike([_drawn(random, self.memory) for _ in range(self.tasks)], jobs)
        scale = hosts * (1 - self.slack) / sum(memory)
        return YieldProblem(
            hosts=tuple(YieldHost(id=f"h{j}", cpu=1.0, rigid=(1.0,)) for j in range(hosts)),
            tasks=tuple(
                YieldTask(id=f"t{i}", cpu=c, rigid=(m * scale,), job=jobs[i])
                for i, (c, m) in enumerate(zip(cpu, memory, strict=True))
            ),
        )


def _drawn(random: Random, variation: float) -> float:
    while True:
        found = random.gauss(0.5, variation * 0.5)
        if 0.01 <= found <= 1:
            return found


def _jobs(random: Random, tasks: int) -> Iterator[str]:
    """The job of each task."""
    left, number = tasks, 0
    while left:
        log = random.uniform(*(LOGS[:2] if random.random() < TWO_STAGES else LOGS[1:]))
        size = 2 ** round(log) if random.random() < POWERS else round(2**log)
        size = min(left, 1 if random.random() < SERIAL else size)
        yield from [f"j{number}"] * size
        left, number = left - size, number + 1


def _alike(needs: Sequence[float], jobs: Sequence[str]) -> list[float]:
    """Needs of which those of one job are the same: those of its first task."""
    first: dict[str, float] = {}
    return [first.setdefault(job, need) if job else need for job, need in zip(jobs, needs, strict=True)]


class YieldFound(NamedTuple):
    """The least and the mean yield that an algorithm found (None: it failed), and how long it took, in seconds."""

    least: float | None
    mean: float | None
    took: float


Found = Sequence[tuple[YieldCase, Mapping[str, YieldFound]]]


def cases(name: str, instances: int, seed: int) -> list[YieldCase]:
    """All instances of a set, so many of each kind."""
    kinds = itertools.product(SETS[name].tasks, SLACKS, VARIATIONS, VARIATIONS, range(instances))
    return [YieldCase(name, *kind, seed) for kind in kinds]


def run_case(case: YieldCase) -> dict[str, YieldFound]:
    """Every algorithm of the set on one instance."""
    of, problem, found = SETS[case.name], case.problem(), {}
    running = changed(case, problem) if of.changes else problem
    if running is None:
        return dict.fromkeys(of.algorithms, YieldFound(None, None, 0.0))
    for name in of.algorithms:
        algorithm, _, share = name.partition(", ")
        if share:
            there = sum(task.rigid[0] for task in running.tasks if task.host is not None)
            running = attrs.evolve(running, bound=there * int(share.removesuffix(" %")) / 100)
        begin = time.perf_counter()
        placed = solve(running, algorithm.partition(" ")[0], local_search=algorithm == SEARCHED, seed=case.seed)
        took = time.perf_counter() - begin
        is_solved = placed.status in ("optimal", "placed")
        mean = placed.average_yield if is_solved and name != "lp" else None
        found[name] = YieldFound(placed.min_yield if is_solved else None, mean, took)
    return found


def changed(case: YieldCase, problem: YieldProblem) -> YieldProblem | None:
    """A problem some time later: tasks of MCB8's placement run where they are, but for some that have gone; as many
    have come, which need what those of another instance do. None if MCB8 finds no placement.
    """
    placed = solve(problem, "mcb8", local_search=True)
    if placed.status != "placed":
        return None
    random = Random(f"changes of {case}")
    count = max(1, round(CHANGED * case.tasks))
    gone = set(random.sample(range(case.tasks), count))
    stay = (
        attrs.evolve(task, host=problem.hosts[host].id)
        for at, (task, host) in enumerate(zip(problem.tasks, placed.mapping, strict=True))
        if at not in gone and host is not None
    )
    others = case._replace(number=case.number + OTHERS).problem().tasks[:count]
    come = (attrs.evolve(task, id=f"new {task.id}") for task in others)
    return attrs.evolve(problem, tasks=(*stay, *come))


def run_all(all_cases: Sequence[YieldCase], *, jobs: int = 1, progress: Progress | None = None) -> Found:
    """Every instance, on so many processes."""
    return list(zip(all_cases, spread_over(run_case, all_cases, jobs, "placing", progress), strict=True))


# -- what it came to -------------------------------------------------------------------------------------------------


def summarize(name: str, instances: int, seed: int, found: Found) -> dict[str, Any]:
    """What repeats for a seed, as plain data."""
    of, feasible = SETS[name], solved(found)
    best_known = next(one for one in ("exact", "lp", f"exact, {MOVED[-1]} %") if one in of.algorithms)
    return {
        "set": name,
        "instances": instances,
        "seed": seed,
        "problems": len(found),
        "feasible": len(feasible),
        "mcb": [_degraded(key, feasible, of.paper[key]) for key in of.paper],
        "algorithms": [
            {
                "algorithm": key,
                **_figures_of(key, feasible),
                f"{best_known.partition(',')[0]}_above_pct": _above(best_known, key, feasible),
            }
            for key in of.algorithms
        ],
        "claims": judged(claims(name), figures(name, feasible)),
    }


def solved(found: Found) -> list[Mapping[str, YieldFound]]:
    """What was found of the instances that some algorithm solved."""
    return [one for _, one in found if any(y.least is not None for key, y in one.items() if key != "lp")]


def claims(name: str) -> Iterator[PaperClaim]:
    """What the paper says of a set: the table of MCB1 to MCB8, where it has bands and where it is shown, and curves."""
    of, where = SETS[name], WHERE.get(name, "")
    theirs = {f"degradation of {key}": f"{mean:g}" for key, (mean, _) in of.paper.items()}
    for what, (low, high) in of.expected.items():
        words = theirs.get(what, THEIR_WORDS.get((name, what), ""))
        yield PaperClaim(where, f"{name}: {what}, %", words, low, high, FEW)
    for what, mean in theirs.items():
        if what not in of.expected:
            yield PaperClaim(where, f"{name}: {what}, %", mean)
    if of.parallel:
        yield PaperClaim("figure 19", f"{name}: {ABOVE.format('least yield')}", "MCB8 above", low=0)
        yield PaperClaim("figure 20", f"{name}: {ABOVE.format('mean yield')}", "SG above", high=0)
        yield PaperClaim("figure 21", f"{name}: {ABOVE.format('failures')}", "identical", 0, 0)
    elif "sg" in of.algorithms:
        yield PaperClaim(where, f"{name}: {ABOVE.format('least yield')}", "MCB8 above", low=0)


def figures(name: str, feasible: Sequence[Mapping[str, YieldFound]]) -> dict[str, list[float]]:
    """The figures of :func:`claims`, as far as they were found."""
    of = SETS[name]
    whats = dict.fromkeys((*(f"degradation of {key}" for key in of.paper), *of.expected))
    found = {f"{what}, %": _value(what, feasible) for what in whats}
    if "sg" in of.algorithms:
        rows = [_figures_of(key, feasible) for key in ("mcb8", "sg")]
        for key in rows[0]:
            one, other = (row[key] for row in rows)
            found[ABOVE.format(key.replace("_", " "))] = None if one is None or other is None else one - other
    return {f"{name}: {what}": [value] for what, value in found.items() if value is not None}


def _figures_of(algorithm: str, feasible: Sequence[Mapping[str, YieldFound]]) -> dict[str, float | None]:
    return {
        "least_yield": _mean(one[algorithm].least for one in feasible),
        "mean_yield": _mean(one[algorithm].mean for one in feasible),
        "failures": sum(one[algorithm].least is None for one in feasible),
    }


def measured(found: Found) -> dict[str, dict[str, float]]:
    """How long each algorithm took on average, in ms, by the number of tasks."""
    times: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, one in found:
        for name, result in one.items():
            times[name][str(case.tasks)].append(result.took)
    return {name: {key: round(1000 * fmean(some), 3) for key, some in by.items()} for name, by in times.items()}


def _degraded(name: str, feasible: Sequence[Mapping[str, YieldFound]], paper: tuple[float, float]) -> dict[str, Any]:
    """Degradation from the best of MCB1 to MCB8."""
    degradations, succeeded = [], []
    for one in feasible:
        best = max((one[key].least or 0.0 for key in MCB), default=0.0)
        least = one[name].least
        if best:
            degradations.append(100 * (best - (least or 0.0)) / best)
            if least is not None:
                succeeded.append(degradations[-1])
    return {
        "algorithm": name,
        "mean_pct": round(fmean(degradations), 3) if degradations else None,
        "most_pct": round(max(succeeded), 2) if succeeded else None,
        "failures": len(degradations) - len(succeeded),
        "paper_mean_pct": paper[0],
        "paper_most_pct": paper[1],
    }


def _above(one: str, other: str, feasible: Sequence[Mapping[str, YieldFound]]) -> float | None:
    """By how much the mean yield of one is above another's, in percent, where both have found something."""
    pairs = [(a, b) for found in feasible if (a := found[one].least) and (b := found[other].least)]
    return round(100 * (fmean(a for a, _ in pairs) / fmean(b for _, b in pairs) - 1), 3) if pairs else None


def _value(what: str, feasible: Sequence[Mapping[str, YieldFound]]) -> float | None:
    if what.startswith("degradation of "):
        mean: float | None = _degraded(what.removeprefix("degradation of "), feasible, (0, 0))["mean_pct"]
        return mean
    one, _, other = what.partition(" above ")
    return _above(one, other, feasible)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


# -- files -----------------------------------------------------------------------------------------------------------


def write(out: Path | None, summary: Mapping[str, Any], times: Mapping[str, Any], found: Found) -> list[Path]:
    """Write summary.json, measured.json, instances.csv and the pictures, which are returned: see
    :func:`.outputs.write_results`.
    """
    of = SETS[summary["set"]]
    rest = [name for name in of.algorithms if name not in MCB or name == "mcb8"]

    def others(out: Path) -> Iterator[Path]:
        columns = ("tasks", "slack", "cpu_variation", "memory_variation", "number", "algorithm", "least", "mean")
        write_rows(out / "instances.csv", columns, _rows(found))
        for stem, names in ((("mcb", MCB),) if of.paper else ()) + (("algorithms", rest),):
            for what, label in (("least", "least yield"), ("mean", "mean yield"), ("failed", "share that failed")):
                yield from _draw(out / f"{stem}_{what}", names, what, label, found)

    return write_results(out, summary, times, others)


def _rows(found: Found) -> Iterator[Sequence[object]]:
    for case, one in found:
        for name, result in one.items():
            yield (*case[1:6], name, result.least, result.mean)


def _draw(stem: Path, names: Sequence[str], what: str, label: str, found: Found) -> tuple[Path, Path]:
    """A curve for each algorithm against the slack, as in figures 2 to 4 and 11 to 17 of the paper."""
    by_slack: defaultdict[str, defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, one in found:
        for name in names:
            value = float(one[name].least is None) if what == "failed" else getattr(one[name], what)
            if value is not None:
                by_slack[name][case.slack].append(value)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, name in enumerate(names):
            points = [(slack, fmean(values)) for slack, values in by_slack[name].items()]
            if points:
                plots.draw_curve(axes, index, name, points)
        title = f"{label[0].upper()}{label[1:]} against memory slack"
        axes.set(title=title, xlabel="slack: share of the memory that no task needs", ylabel=label)
        axes.legend(ncols=2)

    return plots.draw_figure(stem, (8.0, 5.0), draw)
