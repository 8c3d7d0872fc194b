"""Papers on decisions, held against their numbers: preemption (OPIE), placement by yield, co-allocation, energy."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from leasekit.emulation import placement
from leasekit.emulation.coallocation import actors
from leasekit.emulation.coallocation import experiment as coallocation
from leasekit.emulation.coallocation.against_paper import EXPECTED
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


def _yields(means: Means) -> PaperFigures:
    figures: defaultdict[str, list[float]] = defaultdict(list)
    pictures = []
    for name in ("small",) if means.quick else YIELD_SETS:
        instances = 10 if name == "small" and not means.quick else 1
        for seed in range(1, 4):
            found = placement.run_all(placement.cases(name, instances, seed), jobs=means.jobs)
            for what, values in placement.figures(name, placement.solved(found)).items():
                figures[what] += values
        summary = placement.summarize(name, instances, seed, found)
        pictures += placement.write(means.out and means.out / name, summary, placement.measured(found), found)
    return PaperFigures(figures, pictures)


YIELD_SETS: Final = ("small", "large", "parallel")
YIELD: Final = PaperExperiment(
    name="yield",
    paper="Stillwell, Schanzenbach, Vivien and Casanova, Resource Allocation using Virtual Clusters (2008)",
    what="Who places tasks best: the least yield of every algorithm, on problems drawn by a seed.",
    full="3 seeds: 1,440 small problems, 108 large ones, 108 of parallel jobs each",
    quick="3 seeds, 144 small problems each", run=_yields,
    claims=tuple(claim for name in YIELD_SETS for claim in placement.claims(name)),
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
    mean, most = (times["normal"][key] for key in ("mean_ms", "max_ms"))
    figures = coallocation.figures(tallies) | {PLANNING.format("mean"): [mean], PLANNING.format("most"): [most]}
    pictures = coallocation.write(means.out, summary, times, tallies)
    count = len(summary["seeds"])
    share = (
        "" if count == len(seeds) else f"{count} of {len(seeds)} seeds, five scenarios: it was ended before the others"
    )
    return PaperFigures(figures, pictures, share)


PLANNING: Final = "planning one request, {}, ms"

COALLOCATION: Final = PaperExperiment(
    name="coallocation",
    paper="Takefusa, Nakada, Kudoh and Tanaka, co-allocation of computers and bandwidth (slides, 2010)",
    what="Two users ask for sites with bandwidth between them: success and utilisation as the load grows.",
    full="40 seeds, five scenarios", quick="3 seeds, five scenarios", run=_coallocation,
    claims=(
        *(claim for claim, *_ in EXPECTED),
        PaperClaim("slide 24", PLANNING.format("mean"), "333 (GLPK, st)", high=333),
        PaperClaim("slide 24", PLANNING.format("most"), "4205 (GLPK, st)", high=4205),
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
    for log in LOGS[:1] if means.quick else LOGS:
        workloads = energy.read_workloads(log, setup, means.data)
        found = energy.run_all(workloads, setup, jobs=means.jobs)
        summary = energy.summarize(workloads, found, setup)
        figures |= energy.figures(log, found)
        pictures += energy.write(means.out and means.out / log, summary, energy.measured(found), found)
    return PaperFigures(figures, pictures)


LOGS: Final = ("kth-sp2", "hpc2n")

ENERGY: Final = PaperExperiment(
    name="energy",
    paper="Rossigneux, Lefèvre and Dias de Assunção, A Resource Reservation System to Improve the Support for HPC "
    "Applications in OpenStack (its evaluation is empty)",
    what="What switching idle cores off saves on job logs, with and without reservations, and who waits for it.",
    full="14 days of kth-sp2 and of hpc2n; nothing is drawn", quick="7 days of kth-sp2", run=_energy,
    claims=tuple(claim for log in LOGS for claim in energy.claims(log)),
    left_out={"section 5": "it is empty: what the text says in words is judged, and nothing else"},
)  # fmt: skip
