"""Papers on decisions, held against their numbers: preemption (OPIE), placement by yield, co-allocation, energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from leasekit.emulation import placement
from leasekit.emulation.coallocation import actors, against_paper
from leasekit.emulation.coallocation import experiment as coallocation
from leasekit.emulation.energy import experiment as energy
from leasekit.emulation.papers.claims import Means, PaperClaim, PaperExperiment, PaperFigures
from leasekit.emulation.preemption import TABLES, tables

# -- OPIE ----------------------------------------------------------------------------------------------------------


def _preemption(_: Means) -> PaperFigures:
    figures = {}
    for one in tables():
        number = one["table"]
        figures[f"cost of {TABLES[number - 1].victims}, minutes"] = [float(one["cost"])]
        figures[f"table {number}: victims and others, as the paper's (1: the same)"] = [float(one["same"])]
    return PaperFigures(figures)


PREEMPTION: Final = PaperExperiment(
    name="preemption",
    paper="López García et al., An efficient cloud scheduler design supporting preemptible instances (FGCS 2019)",
    what="Who has to leave full hosts for a request, and what that costs.",
    full="the four tables; nothing is drawn", quick="the same", run=_preemption,
    claims=tuple(
        claim
        for number, table in enumerate(TABLES, 1)
        for claim in (
            PaperClaim(f"table {number}", f"cost of {table.victims}, minutes", f"{table.cost}", table.cost, table.cost),
            PaperClaim(f"table {number}", f"table {number}: victims and others, as the paper's (1: the same)",
                f"{table.victims}; {', '.join(f'{who} {cost}' for who, cost in table.others.items())}", 1, 1),
        )
    ),
)  # fmt: skip

# -- Stillwell -----------------------------------------------------------------------------------------------------

TABLES_OF: Final = {"small": "table 1, figures 2 to 5, 11 to 14", "large": "table 7, figures 6 to 10, 15 to 18"}
FEW: Final = "a few problems make most of this mean; with other seeds it is another by up to 0.2"


def _yields(means: Means) -> PaperFigures:
    figures: defaultdict[str, list[float]] = defaultdict(list)
    pictures = []
    for name in ("small",) if means.quick else ("small", "large", "parallel"):
        instances = 10 if name == "small" and not means.quick else 1
        for seed in range(1, 4):
            found = placement.run_all(placement.cases(name, instances, seed), jobs=means.jobs)
            summary = placement.summarize(name, instances, seed, found)
            rows = {row["algorithm"]: row for row in summary["algorithms"]}
            for row in summary["comparison"]:
                figures[f"{name}: {row['what']}, %"].append(row["found"])
            for row in summary["mcb"]:
                if (what := f"degradation of {row['algorithm']}") not in placement.SETS[name].expected:
                    figures[f"{name}: {what}, %"].append(row["mean_pct"])
            for key in ("least_yield", "mean_yield", "failures"):
                above = rows["mcb8"][key] - rows["sg"][key]
                figures[f"{name}: {key.replace('_', ' ')} of mcb8 above sg's"].append(above)
        if means.out is not None:
            pictures += placement.write(means.out / name, summary, placement.measured(found), found)
    return PaperFigures(figures, pictures)


def _yield_claims(name: str) -> Iterable[PaperClaim]:
    """The paper's table of MCB1 to MCB8, where it has bands and where it is shown; and the curves' directions."""
    of = placement.SETS[name]
    where = TABLES_OF[name]
    theirs = {f"degradation of {key}": f"{mean:g}" for key, (mean, _) in of.paper.items()}
    for what, (low, high) in of.expected.items():
        yield PaperClaim(
            where, f"{name}: {what}, %", theirs.get(what, THEIR_WORDS.get((name, what), "")), low, high, FEW
        )
    for what, mean in theirs.items():
        if what not in of.expected:
            yield PaperClaim(where, f"{name}: {what}, %", mean)
    yield PaperClaim(where, f"{name}: least yield of mcb8 above sg's", "MCB8 above", low=0)


THEIR_WORDS: Final = {
    ("small", "exact above mcb8"): "about 2", ("small", "exact above sg"): "11 to 13",
    ("small", "lp above exact"): "about 4",
}  # fmt: skip

YIELD: Final = PaperExperiment(
    name="yield",
    paper="Stillwell, Schanzenbach, Vivien and Casanova, Resource Allocation using Virtual Clusters (2008)",
    what="Who places tasks best: the least yield of every algorithm, on problems drawn by a seed.",
    full="3 seeds: 1,440 small problems, 108 large ones, 108 of parallel jobs each",
    quick="3 seeds, 144 small problems each", run=_yields,
    claims=(
        *_yield_claims("small"), *_yield_claims("large"),
        PaperClaim("figure 19", "parallel: least yield of mcb8 above sg's", "MCB8 above", low=0),
        PaperClaim("figure 20", "parallel: mean yield of mcb8 above sg's", "SG above", high=0),
        PaperClaim("figure 21", "parallel: failures of mcb8 above sg's", "identical", 0, 0),
    ),
    stand_ins=(
        "HiGHS for GLPK",
        "CPU and memory are drawn as leasekit/emulation/placement.py says: the generator that the paper's text "
        "describes does not reproduce its tables",
        "sizes of parallel jobs by Lublin and Feitelson's model",
    ),
    left_out={
        "figures 5, 10, 14, 18, 22": "run times: benchmarks/placement.py has ours, on a machine of today",
        "section 7, CPU caps of Xen": "needs a host with Xen; docs/xen.md has what was measured under QEMU",
        "section 6": "it has a program for workloads that change and no figures; ours are in docs/experiments.md",
    },
)  # fmt: skip

# -- co-allocation -------------------------------------------------------------------------------------------------


def _coallocation(means: Means) -> PaperFigures:
    testbed = coallocation.read_testbed(means.data)
    setup = coallocation.CoallocationSetup()
    seeds = range(1, 4 if means.quick else 41)
    tallies, _ = actors.run_all(testbed, coallocation.SCENARIOS, seeds, setup, jobs=means.jobs, out=means.out)
    summary, times = coallocation.summarize(testbed, tallies, setup), coallocation.measured(tallies)
    figures: dict[str, list[float]] = {
        row["what"]: [round(value, 4) for value in row["by_seed"]] for row in summary["comparison"]
    }
    mean = times["normal"]["mean_ms"]
    figures["planning one request, mean, ms"] = [mean]
    figures["planning one request, most, ms"] = [times["normal"]["max_ms"]]
    pictures = [] if means.out is None else coallocation.write(means.out, summary, times, tallies)
    count = len(summary["seeds"])
    share = (
        "" if count == len(seeds) else f"{count} of {len(seeds)} seeds, five scenarios: it was ended before the others"
    )
    return PaperFigures(figures, pictures, share)


SLIDES: Final[dict[str, tuple[str, str]]] = {
    "success up to 40 %: least interval": ("slide 21", ""),
    "success at 50 %": ("slide 21", "about 0.90"),
    "success at 80 %": ("slide 21", "over 0.61"),
    "service levels at 100 %, user A": ("slide 21", "0.60"),
    "service levels at 100 %, user B": ("slide 21", "0.37"),
}
"""Where the slides have a figure, and which; the others are drawings on slide 22."""

OTHER: Final = ("slide 22", "")

COALLOCATION: Final = PaperExperiment(
    name="coallocation",
    paper="Takefusa, Nakada, Kudoh and Tanaka, co-allocation of computers and bandwidth (slides, 2010)",
    what="Two users ask for sites with bandwidth between them: success and utilisation as the load grows.",
    full="40 seeds, five scenarios", quick="3 seeds, five scenarios", run=_coallocation,
    claims=(
        *(PaperClaim(SLIDES.get(one.what, OTHER)[0], one.what, SLIDES.get(one.what, OTHER)[1], one.low, one.high)
        for one in against_paper.EXPECTED),
        PaperClaim("slide 22", against_paper.FLATTENED, "flatter", 0.0, 0.75),
        PaperClaim("slide 24", "planning one request, mean, ms", "333 (GLPK, st)", high=333),
        PaperClaim("slide 24", "planning one request, most, ms", "4205 (GLPK, st)", high=4205),
    ),
    stand_ins=(
        "the testbed's links and the four request types, which the slides show as pictures (coallocation/testbed.json "
        "says which parts)",
        "processor time of a machine of today for theirs",
    ),
    left_out={
        "slides 24 and 25, MiniSat and Sugar++": "a SAT solver for integer programs that we don't have; GLPK and HiGHS "
        "against the search are in benchmarks/coallocation.py",
    },
)  # fmt: skip

# -- energy --------------------------------------------------------------------------------------------------------


def _energy(means: Means) -> PaperFigures:
    figures: dict[str, list[float]] = {}
    pictures = []
    setup = energy.EnergySetup(days=7 if means.quick else 14)
    for log in ("kth-sp2",) if means.quick else ("kth-sp2", "hpc2n"):
        workloads = energy.read_workloads(log, setup, means.data)
        found = energy.run_all(workloads, setup, jobs=means.jobs)
        summary = energy.summarize(workloads, found, setup)
        figures |= {f"{log}: {row['what']}": [row["found"]] for row in summary["claims"]}
        figures |= {
            f"{log}: off, of idle: {one['strategy']}": [one["off_share_of_idle"]] for one in summary["strategies"]
        }
        if means.out is not None:
            pictures += energy.write(means.out / log, summary, energy.measured(found), found)
    return PaperFigures(figures, pictures)


ENERGY: Final = PaperExperiment(
    name="energy",
    paper="Rossigneux, Lefèvre and Dias de Assunção, A Resource Reservation System to Improve the Support for HPC "
    "Applications in OpenStack (its evaluation is empty)",
    what="What switching idle cores off saves on job logs, with and without reservations, and who waits for it.",
    full="14 days of kth-sp2 and of hpc2n; nothing is drawn", quick="7 days of kth-sp2", run=_energy,
    claims=tuple(
        PaperClaim("section 5", f"{log}: {what}", "above 1", low=1)
        if above
        else PaperClaim("section 5", f"{log}: {what}", "below 1", high=1)
        for log in ("kth-sp2", "hpc2n")
        for what, above in energy.CLAIMED.items()
    ) + tuple(
        PaperClaim("section 5", f"{log}: off, of idle: {one.name}")
        for log in ("kth-sp2", "hpc2n") for one in energy.STRATEGIES if one.forecast
    ),
    left_out={"section 5": "it is empty: what the text says in words is judged, and nothing else"},
)  # fmt: skip
