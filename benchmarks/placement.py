"""What placing tasks by yield costs: MCB8 by size, and all algorithms on the paper's small problems.

    python benchmarks/placement.py [--json] [--quick]

``mcb8_TASKS`` is MCB8 with all of its search, from lists of numbers to a mapping: the median over problems with
slacks 0.3, 0.5 and 0.7. The floor is what Python's own sort of the same needs takes, as often as MCB8 probes.
``search_500`` adds local search, ``solve_500`` is the whole call with shares. ``small_...`` are totals over instances
of the paper's small set: its 1,440, or with ``--quick`` every tenth. Gaps and degradations are in percent, over the
same instances; ``large_...`` over one instance of each kind of the large set. All times in processor time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil, log2
from statistics import median

from _report import Result, emit, result

from leasekit.emulation.placement import SEARCHED, SETS, Found, YieldCase, YieldFound, cases, figures, solved
from leasekit.policies.authority.placing.improve import improved
from leasekit.policies.authority.placing.instance import compiled
from leasekit.policies.authority.placing.model import YieldHost, YieldProblem, YieldTask
from leasekit.policies.authority.placing.packing import WIDTH, mcb
from leasekit.policies.authority.placing.solve import solve
from leasekit.policies.solver import load_highs

SIZES = ((500, 64, 15.0), (5_000, 640, 150.0), (50_000, 6_400, 3_000.0))
"""Tasks, hosts, and the most ms."""
PROBES = ceil(log2(1 / WIDTH))
EXACT_S = 300.0
LARGE = ("lp", *(f"mcb{number}" for number in range(1, 9)), SEARCHED)


def spent(work: Callable[[], object]) -> float:
    """Milliseconds of the processor that it takes."""
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)


def large_problem(tasks: int, hosts: int, slack: float) -> YieldProblem:
    """A problem of the paper's kind with any number of hosts."""
    drawn = YieldCase("large", tasks, slack, 0.75, 0.75, 0, 1).problem().tasks
    scale = hosts / 64
    return YieldProblem(
        hosts=tuple(YieldHost(id=f"h{j}", cpu=1.0, rigid=(1.0,)) for j in range(hosts)),
        tasks=tuple(YieldTask(id=task.id, cpu=task.cpu, rigid=(task.rigid[0] * scale,)) for task in drawn),
    )


def speed(sizes: Sequence[tuple[int, int, float]], repeats: int) -> Iterator[Result]:
    """MCB8 by size, each problem so often, of which the quickest counts: what else runs here only makes it longer."""
    for tasks, hosts, most in sizes:
        times, floors = [], []
        for slack in (0.3, 0.5, 0.7):
            instance = compiled(large_problem(tasks, hosts, slack))
            free = [-1] * tasks
            rows = (instance.need, instance.rigid[0])
            times.append(min(spent(lambda i=instance, f=free: mcb(i, 8, f)) for _ in range(repeats)))
            floors.append(min(PROBES * spent(lambda r=rows: [sorted(row) for row in r]) for _ in range(repeats)))
        yield result(f"mcb8_{tasks}", median(times), "ms", most, median(floors))
        yield result(f"mcb8_{tasks}_by_sort", median(times) / median(floors), "x", None)
    problem = large_problem(500, 64, 0.5)
    instance = compiled(problem)
    mapping = mcb(instance, 8, [-1] * 500)
    assert mapping is not None
    yield result("search_500", min(spent(lambda: improved(instance, mapping)) for _ in range(repeats)), "ms", None)
    yield result("solve_500", min(spent(lambda: solve(problem, "mcb8")) for _ in range(repeats)), "ms", None)


def found(some: Sequence[YieldCase], names: Sequence[str]) -> list[tuple[YieldCase, dict[str, YieldFound]]]:
    """Algorithms on instances, with the processor time that each took."""
    everything = []
    for case in some:
        problem, one = case.problem(), {}
        for name in names:
            begin = time.process_time()
            placed = solve(problem, name.partition(" ")[0], local_search=name == SEARCHED)
            took = time.process_time() - begin
            least = placed.min_yield if placed.status in ("optimal", "placed") else None
            one[name] = YieldFound(least, None, took)
        everything.append((case, one))
    return everything


def judged(name: str, all_: Found) -> Iterator[Result]:
    """Degradations and gaps as the experiment counts them: within the paper's bands, so too little is wrong as well."""
    values = figures(name, solved(all_))
    for what, (low, high) in SETS[name].expected.items():
        key, (value,) = f"{name}_{what.replace(' + ', '_').replace(' ', '_')}", values[f"{name}: {what}, %"]
        yield result(key, value, "%", high)
        yield result(f"{key}_least", value, "%", low, higher_is_better=True)


def measure(quick: bool) -> Iterator[Result]:
    """All figures."""
    load_highs()
    yield from speed(SIZES[: 2 if quick else 3], 3)
    small = cases("small", 10, 1)[:: 10 if quick else 1]
    names = ("lp", "exact", "gr", "sg", "gb", "sgb", *(f"mcb{number}" for number in range(1, 9)), SEARCHED)
    all_ = found(small, names)
    for name in ("exact", "sgb", "mcb8", SEARCHED):
        total = sum(one[name].took for _, one in all_)
        yield result(f"small_{name.replace(' + ', '_')}_s", total, "s", EXACT_S if name == "exact" else None)
    yield result("small_instances", len(small), "", None)
    if not quick:
        yield from judged("small", all_)
        yield from judged("large", found(cases("large", 1, 1), LARGE))


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer problems: whether it runs")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    return 0 if emit("placement", mode, list(measure(arguments.quick)), arguments.json) else 1


if __name__ == "__main__":
    sys.exit(main())
