"""How fast the co-allocation planner is: the exact search, HiGHS and GLPK on the same instances.

    python benchmarks/coallocation.py [--json] [--quick]

Testbed: the paper's stream of requests (../shared/data/coallocation, or LEASEKIT_DATA), each planned over ten candidate
starts, availability from the timetables included, and reserved. Planning is timed with an empty memory of paths, five
times, of which the quickest counts: what interrupts a process on a shared machine would be most of a maximum.

Solvers: of a sample of these requests, every start with an availability of its own is solved by the search, by HiGHS on
the paper's plain model, and by glpsol (Debian's glpk-utils), plain and with Pmax = 2 ("st"). Times are sums per
request, and CPU time for all three: on a busy machine what takes a fraction of a millisecond is never interrupted, and
what takes seconds always is, so that by the clock the search would look better than it is. glpsol's are those of its
process, less what it takes to start and say its version. All objectives must agree.

Random: small problems with every feature, search against HiGHS. Large: 100 sites in 20 domains, the best plan of ten
starts. Rings: five to eight sites on a loaded testbed, one second for ten starts. ``--quick`` takes fewer of all.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from _report import Result, emit, result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from coallocation_problems import large_resources, loaded_books, ring_request, small_problem, typed_request

from leasekit.core.time import DAY, SECOND, Term
from leasekit.emulation.coallocation.experiment import Testbed, draw_requests, read_testbed
from leasekit.policies.broker.coallocation import milp
from leasekit.policies.broker.coallocation.frames import (
    Books,
    FramePlan,
    FramePlanned,
    FramePlanner,
    FrameWindow,
    Policy,
)
from leasekit.policies.broker.coallocation.instance import Availability, InstanceShape, Network, scale_of
from leasekit.policies.broker.coallocation.model import CoRequest, LinkRequest, ModelOptions, Problem, SiteRequest
from leasekit.policies.broker.coallocation.routing import Oracle
from leasekit.policies.broker.coallocation.search import Search
from leasekit.policies.broker.coallocation.solve import SolveLimits
from leasekit.policies.solver import load_highs, run

REPEATS = 5
BY_VALUE = Policy(sort="value")
RING_LIMIT_S, RING_ANSWER_S = 0.9, 1.0
ST, PLAIN = ModelOptions(pmax=2), ModelOptions(pmax=None)


class Case(NamedTuple):
    """A request of the stream, and what is free at those of its starts that differ."""

    request: CoRequest
    frames: tuple[Availability, ...]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def child_seconds(command: Sequence[str]) -> float:
    """CPU seconds of a command, run to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def mean(samples: Sequence[float]) -> float:
    """The mean."""
    return sum(samples) / len(samples)


# -- the testbed -----------------------------------------------------------------------------------------------------


def stream(testbed: Testbed, seed: int, policy: Policy, sample: int) -> tuple[list[float], list[Case], Network]:
    """Plan and reserve a day of requests: planning times in ms, and every ``sample``-th request as a case."""
    network = Network(testbed.resources, scale_of(testbed.resources))
    books = Books.empty(network)
    times, cases = [], []
    for number, arrival in enumerate(draw_requests(testbed, seed)):
        request = CoRequest(
            sites=tuple(SiteRequest(id=f"r{j}", cpus=arrival.cpus) for j in range(arrival.kind.sites)),
            links=tuple(LinkRequest(from_=f"r{a}", to=f"r{b}", bw=1) for a, b in arrival.kind.links),
        )
        window = FrameWindow(est=arrival.earliest, lst=arrival.latest, duration=arrival.duration, unit=SECOND)

        def plan(request: CoRequest = request, window: FrameWindow = window) -> FramePlanned:
            return FramePlanner(books).plan(InstanceShape(network, request, ST), window, policy)

        times.append(1000 * min(seconds(plan) for _ in range(REPEATS)))
        if number % sample == 0:
            steps = range(window.count)
            starts = [window.est + (window.lst - window.est) * k // (window.count - 1) for k in steps]
            frees = dict.fromkeys(books.free(window.frame(start)) for start in starts)
            cases.append(Case(request, tuple(frees)))
        planned = plan()
        if planned.plans:
            books.reserve(str(number), InstanceShape(network, request, ST), planned.plans[0], arrival.duration)
    return times, cases, network


def testbed_figures(testbed: Testbed, quick: bool, kept: list[tuple[Case, Network]]) -> Iterator[Result]:
    """Planning times of the stream; fills ``kept`` with the sampled cases."""
    for name, policy in (("normal", BY_VALUE), ("load_balancing", Policy(sort="value", load_balancing=True))):
        times: list[float] = []
        for seed in (1,) if quick else (1, 2, 3):
            # A sample with both options: values that are all 1 make ties, those of option A make none.
            more, cases, network = stream(testbed, seed, policy, 80 if quick else 48)
            times += more
            kept += [(case, network) for case in cases]
        yield result(f"testbed_{name}_mean_ms", mean(times), "ms", 3)
        yield result(f"testbed_{name}_max_ms", max(times), "ms", 20)


# -- solvers on the same instances -----------------------------------------------------------------------------------


def search_cost(network: Network, shape: InstanceShape, free: Availability) -> float | None:
    """The objective that the search finds, with nothing remembered; None if there is no plan."""
    return cost_of(network, Search(network, shape, free, Oracle(network), nodes=10_000_000).run().cost)


def highs_plain_cost(network: Network, shape: InstanceShape, free: Availability) -> float | None:
    """The objective of HiGHS on the paper's model as it stands."""
    program = milp.plain(network, shape, free)
    solved = run(program.cost, program.rows)
    assert solved.done, "no limit was set"
    return sum(c * v for c, v in zip(program.cost, solved.values, strict=True)) if solved.values else None


def cost_of(network: Network, cost: int | None) -> float | None:
    """A scaled cost in the problem's units."""
    return None if cost is None else float(network.scale.money(cost))


def glpk_cost(program: milp.Program, folder: Path) -> tuple[float, float | None]:
    """What glpsol makes of a program: CPU seconds of its process, and the objective (None: infeasible)."""
    model, answer = folder / "model.lp", folder / "answer.txt"
    model.write_text(lp_text(program), encoding="ascii")
    command = ["glpsol", "--lp", str(model), "--write", str(answer)]
    took = child_seconds(command)
    line = next(line for line in answer.read_text().splitlines() if line.startswith("s mip"))
    status, objective = line.split()[4:6]
    if status not in ("o", "n"):
        # glpsol does not reach the integers if the relaxation has no solution.
        assert status == "u", line
        return took, None
    return took, float(objective) if status == "o" else None


def lp_text(program: milp.Program) -> str:
    """A program in CPLEX's LP format."""

    def terms(row: Sequence[tuple[int, float]]) -> str:
        parts = [f"{'-' if value < 0 else '+'} {abs(value):.12g} c{column}" for column, value in row]
        return "\n  ".join(" ".join(parts[i : i + 8]) for i in range(0, len(parts), 8)) or "0 c0"

    lines = ["Minimize", " cost: " + terms(list(enumerate(program.cost))), "Subject To"]
    for number, row in enumerate(program.rows):
        text = terms(list(row.terms.items()))
        if row.low == row.high:
            lines.append(f" r{number}: {text} = {row.low:.12g}")
            continue
        if row.low > -inf:
            lines.append(f" l{number}: {text} >= {row.low:.12g}")
        if row.high < inf:
            lines.append(f" u{number}: {text} <= {row.high:.12g}")
    lines += ["Binary", *(f" c{column}" for column in range(len(program.cost))), "End"]
    return "\n".join(lines) + "\n"


def agree(*costs: float | None) -> bool:
    """Whether solvers say the same: the same objective, or all that there is no plan."""
    first = costs[0]
    if first is None or None in costs:
        return all(cost is None for cost in costs)
    return all(cost is not None and abs(cost - first) <= 1e-6 * max(1.0, abs(first)) for cost in costs)


def solver_figures(kept: Sequence[tuple[Case, Network]]) -> Iterator[Result]:
    """Sums per request of the search, HiGHS and GLPK, the ratios, and how often they differ."""
    if shutil.which("glpsol") is None:
        raise SystemExit("glpsol was not found: install Debian's package glpk-utils")
    version = ["glpsol", "--version"]
    floor = min(child_seconds(version) for _ in range(9))
    load_highs()
    differ, instances = 0, 0
    with tempfile.TemporaryDirectory() as place:
        for name, options in (("plain", PLAIN), ("st", ST)):
            ours, highs, glpk = [], [], []
            for case, network in kept:
                shape = InstanceShape(network, case.request, options)
                sums = [0.0, 0.0, 0.0]
                for free in case.frames:
                    found: list[float | None] = []
                    for index, solver in enumerate((search_cost, highs_plain_cost)):
                        begin = time.process_time()
                        found.append(solver(network, shape, free))
                        sums[index] += time.process_time() - begin
                    took, cost = glpk_cost(milp.plain(network, shape, free), Path(place))
                    sums[2] += max(took - floor, 0.0)
                    differ += not agree(*found, cost)
                    instances += 1
                for times, total in zip((ours, highs, glpk), sums, strict=True):
                    times.append(1000 * total)
            yield result(f"search_{name}_mean_cpu_ms", mean(ours), "ms", None)
            yield result(f"highs_{name}_mean_cpu_ms", mean(highs), "ms", None)
            yield result(f"glpk_{name}_mean_cpu_ms", mean(glpk), "ms", None)
            yield result(f"glpk_{name}_max_cpu_ms", max(glpk), "ms", None)
            yield result(f"glpk_{name}_by_search", mean(glpk) / mean(ours), "x", 50, higher_is_better=True)
    yield result("glpk_start_cpu_ms", 1000 * floor, "ms", None)
    yield result("solver_instances", instances, "", None)
    yield result("solver_objectives_that_differ", differ, "", 0)


def random_figures(count: int) -> Iterator[Result]:
    """Small problems with every feature: the search against HiGHS, sites and all."""
    differ, infeasible = 0, 0
    for seed in range(count):
        problem = small_problem(seed)
        network, shape, free = prepared(problem)
        ours = Search(network, shape, free, Oracle(network)).run()
        theirs = milp.solve(network, shape, free)
        differ += (ours.status, ours.cost, ours.sites) != (theirs.status, theirs.cost, theirs.sites)
        infeasible += ours.status == "infeasible"
    yield result("random_instances", count, "", None)
    yield result("random_infeasible", infeasible, "", None)
    yield result("random_answers_that_differ", differ, "", 0)


def prepared(problem: Problem) -> tuple[Network, InstanceShape, Availability]:
    """A problem at one instant, with all resources free."""
    network = Network(problem.resources, scale_of(problem.resources, [problem.request]))
    return (
        network,
        InstanceShape(network, problem.request, problem.options),
        Availability(network.cpus, network.bw, network.vc),
    )


# -- larger ----------------------------------------------------------------------------------------------------------


def large_figures(count: int) -> Iterator[Result]:
    """The best plan, by value, of ten starts for up to four sites of a hundred, at three loads and two Pmax."""
    day = Term(0, DAY // SECOND)
    policy = Policy(sort="value", best_only=True)
    times = []
    for load, (cpus, bandwidth) in enumerate(((0.2, 0.1), (0.5, 0.25), (0.8, 0.4))):
        resources = large_resources(load)
        books = loaded_books(resources, load, day, cpus, bandwidth)
        random = Random(load)
        for number in range(count):
            request = typed_request(random)
            options = ModelOptions(pmax=random.choice([2, 3]))
            duration = random.choice([1800, 3600, 7200])
            est = random.randrange(day.end - 3 * duration)
            window = FrameWindow(est=est, lst=est + 2 * duration, duration=duration)

            def plan(
                books: Books = books,
                request: CoRequest = request,
                options: ModelOptions = options,
                window: FrameWindow = window,
            ) -> FramePlanned:
                return FramePlanner(books).plan(InstanceShape(books.network, request, options), window, policy)

            times.append(1000 * min(seconds(plan) for _ in range(REPEATS)))
            plans = plan().plans
            if plans:
                books.reserve(f"q{number}", InstanceShape(books.network, request, options), plans[0], duration)
    yield result("large_mean_ms", mean(times), "ms", 40)
    yield result("large_max_ms", max(times), "ms", 100)


def ring_figures(testbed: Testbed, count: int) -> Iterator[Result]:
    """Rings of five to eight at heavy load, within a second for ten starts: time, and gaps of what isn't proven."""
    times, gaps, proven, answered = [], [0.0], 0, 0
    load_highs()
    for size in (5, 6, 7, 8):
        for seed in range(count):
            books = loaded_books(testbed.resources, seed, Term(0, 4 * 3600), 0.45, 0.3)
            shape = InstanceShape(books.network, ring_request(Random(seed), size), ST)
            begin = time.monotonic()

            def left(begin: float = begin) -> float:
                return begin + RING_LIMIT_S - time.monotonic()

            window = FrameWindow(est=0, lst=7200, duration=3600)
            planned = FramePlanner(books).plan(shape, window, Policy(sort="value", limits=SolveLimits(remaining=left)))
            times.append(time.monotonic() - begin)
            answered += len(planned.plans)
            proven += sum(plan.outcome.status == "optimal" for plan in planned.plans)
            gaps += [_gap(plan) for plan in planned.plans]
    yield result("ring_mean_s", mean(times), "s", None)
    # The planner is given a little less: HiGHS notices late that its time is up.
    yield result("ring_max_s", max(times), "s", RING_ANSWER_S)
    yield result("ring_plans", answered, "", None)
    yield result("ring_plans_proven", proven, "", None)
    yield result("ring_largest_gap", max(gaps), "", None)


def _gap(plan: FramePlan) -> float:
    cost = plan.outcome.cost or 0
    return (cost - plan.outcome.bound) / cost if cost else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer instances of everything")
    arguments = parser.parse_args()
    testbed = read_testbed()
    kept: list[tuple[Case, Network]] = []
    results = [*testbed_figures(testbed, arguments.quick, kept)]
    results += large_figures(10 if arguments.quick else 60)
    results += ring_figures(testbed, 2 if arguments.quick else 6)
    results += random_figures(150 if arguments.quick else 1200)
    results += solver_figures(kept)
    ok = emit("coallocation", "quick" if arguments.quick else "full", results, arguments.json)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
