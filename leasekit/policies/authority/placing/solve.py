"""An algorithm by its name, with a bound on migration: the mapping, the shares, and what moves. GR, SG, GB
and SGB are here: each item goes to the first host, in the order of CPU load, that has room for it.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

import attrs

from leasekit.policies.authority.placing.improve import improved
from leasekit.policies.authority.placing.instance import Mapped, Rooms, YieldInstance, compiled
from leasekit.policies.authority.placing.model import Placement, SecondPhase, YieldProblem
from leasekit.policies.authority.placing.moves import in_order
from leasekit.policies.authority.placing.packing import mcb
from leasekit.policies.authority.placing.programs import LEAST_SHARE, Exact, Remaining, exact, relaxed_level, rounded
from leasekit.policies.authority.placing.shares import shares

PLACEMENTS_MAX: Final = 500_000
"""How often a backtracking search puts an item on a host before it gives up."""


def greedy(
    instance: YieldInstance, pinned: Sequence[int], *, largest_first: bool = False, backtrack: bool = False
) -> Mapped | None:
    """The first mapping that is found; None if none was. Items are tried in their order, or those with the most memory
    first (SG, SGB); with ``backtrack`` the next host is tried where another choice has led nowhere (GB, SGB).
    """
    rooms, mapping = Rooms(instance, pinned), list(pinned)
    items = [item for item, host in enumerate(pinned) if host < 0]
    if largest_first and instance.resources:
        items.sort(key=lambda item: -instance.rigid[0][item])
    order = sorted((load / of, host) for host, (load, of) in enumerate(zip(rooms.load, instance.capacity, strict=True)))
    trail: list[tuple[int, tuple[float, int]]] = []  # place in the order, and load as it was
    left = PLACEMENTS_MAX if backtrack else len(items)
    place = 0
    while len(trail) < len(items):
        item = items[len(trail)]
        for at in range(place, len(order)):
            if rooms.fits(item, order[at][1]):
                break
        else:
            if not backtrack or not trail:
                return None
            place, entry = trail.pop()
            item = items[len(trail)]
            rooms.put(item, entry[1], -1)
            order.remove((_after(entry, instance, item), entry[1]))
            order.insert(place, entry)
            place += 1
            continue
        if not left:
            return None
        left -= 1
        entry = order.pop(at)
        trail.append((at, entry))
        rooms.put(item, entry[1])
        insort(order, (_after(entry, instance, item), entry[1]))
        place = 0
    for item, (_, (_, host)) in zip(items, trail, strict=True):
        mapping[item] = host
    return mapping


def _after(entry: tuple[float, int], instance: YieldInstance, item: int) -> float:
    load, host = entry
    return load + instance.need[item] / instance.capacity[host]


Heuristic = Callable[[YieldInstance, Sequence[int], int], Mapped | None]
"""Maps what is not pinned, with a seed."""


def _mcb(instance: YieldInstance, pinned: Sequence[int], seed: int, *, number: int) -> Mapped | None:
    return mcb(instance, number, pinned)


def _greedy(instance: YieldInstance, pinned: Sequence[int], seed: int, **how: bool) -> Mapped | None:
    return greedy(instance, pinned, **how)


HEURISTICS: Final[Mapping[str, Heuristic]] = {
    "rrnd": rounded,
    "rrnz": partial(rounded, least=LEAST_SHARE),
    "gr": _greedy,
    "sg": partial(_greedy, largest_first=True),
    "gb": partial(_greedy, backtrack=True),
    "sgb": partial(_greedy, largest_first=True, backtrack=True),
    **{f"mcb{number}": partial(_mcb, number=number) for number in range(1, 9)},
}
ALGORITHMS: Final = ("exact", "lp", *HEURISTICS, "best")
BEST_OF: Final = ("mcb8", "mcb5", "sg")
"""What ``best`` tries, each with local search."""
TIE: Final = 1e-9


def solve(
    problem: YieldProblem,
    algorithm: str = "best",
    *,
    local_search: bool = False,
    second_phase: SecondPhase = "average",
    seed: int = 0,
    remaining: Remaining = None,
) -> Placement:
    """Place the tasks of a problem that has no :func:`.model.faults`. ``algorithm`` is one of :data:`ALGORITHMS`.

    ``lp`` has the level of the relaxed program and no mapping. ``remaining`` says how many seconds are left for
    ``exact``. Of mappings with equal levels the one that moves the least memory is taken. Heuristics move only what can
    be migrated one after the other (:mod:`.moves`). Raises ``LeasekitError`` without HiGHS where it is needed.
    """
    instance = compiled(problem)
    if algorithm == "lp":
        level = relaxed_level(instance)
        if level is None:
            return Placement(status="infeasible", bound=0.0)
        return Placement(status="placed", bound=level, level=level, min_yield=level)
    if algorithm == "exact":
        mapping, bound, proven = _exact(instance, seed, remaining)
    else:
        mapping, bound, proven = _heuristic(instance, algorithm, local_search, seed), instance.ceiling(), False
    if mapping is None:
        return Placement(status="infeasible" if proven else "failed", bound=bound)
    return _placement(instance, mapping, bound, proven, second_phase)


def _placement(
    instance: YieldInstance, mapping: Mapped, bound: float, proven: bool, second_phase: SecondPhase
) -> Placement:
    cpu, yields = shares(instance, mapping, second_phase)
    tasks = instance.problem.tasks
    hosts = [-1] * len(tasks)
    for block, host in zip(instance.tasks, mapping, strict=True):
        for t in block:
            hosts[t] = host
    names = [host.id for host in instance.problem.hosts]
    level = instance.level(mapping)
    return Placement(
        status="optimal" if proven or level >= bound * (1 - TIE) else "placed",
        bound=bound,
        level=level,
        min_yield=min(yields, default=1.0),
        average_yield=sum(yields) / len(yields) if yields else 1.0,
        mapping=tuple(hosts),
        cpu=tuple(cpu),
        moved=tuple(t for t, task in enumerate(tasks) if task.host is not None and task.host != names[hosts[t]]),
    )


def _exact(instance: YieldInstance, seed: int, remaining: Remaining) -> Exact:
    """What heuristics find is the answer where it is as good as anything can be, and where time runs out before more is
    found.
    """
    quick, top = _heuristic(instance, "best", True, seed), instance.ceiling()
    if quick is not None and instance.level(quick) >= top * (1 - TIE) and not instance.moved(quick):
        return Exact(quick, top, True)
    found = exact(instance, remaining=remaining)
    if quick is None or (found.mapping is not None and instance.level(found.mapping) >= instance.level(quick)):
        return found
    return found if found.proven else found._replace(mapping=quick)


# -- heuristics, with what runs already ------------------------------------------------------------------------------


def _heuristic(instance: YieldInstance, algorithm: str, local_search: bool, seed: int) -> Mapped | None:
    """The best of what an algorithm finds with all tasks pinned that run, with none, and with some."""
    names = BEST_OF if algorithm == "best" else (algorithm,)
    bound = inf if instance.problem.bound is None else instance.problem.bound
    best: Mapped | None = None
    rank = (-inf, -inf)
    for pinned in _pinnings(instance, bound):
        for name in names:
            mapping = HEURISTICS[name](instance, pinned, seed)
            if mapping is None:
                continue
            if any(instance.homes):
                mapping = _relabelled(instance, mapping, pinned)
                mapping = _reachable(instance, mapping)
            if mapping is None or instance.moved(mapping) > bound:
                continue
            if local_search or algorithm == "best":
                mapping = _reachable(instance, improved(instance, mapping, bound)) or mapping
            level = instance.level(mapping)
            new_rank = (level, -instance.moved(mapping))
            if level > rank[0] * (1 + TIE) or (level >= rank[0] * (1 - TIE) and new_rank[1] > rank[1]):
                best, rank = mapping, new_rank
    return best


def _pinnings(instance: YieldInstance, bound: float) -> Iterator[list[int]]:
    """Which items stay where they run: all; those that the bound does not let go, the smallest let go first, or those
    of the fullest hosts; none.
    """
    running = [item for item, homes in enumerate(instance.homes) if homes]
    stay = [-1] * len(instance.need)
    for item in running:
        hosts = {home.host for home in instance.homes[item]}
        allowed = instance.allowed[item]
        if len(hosts) == 1 and (allowed is None or hosts <= allowed):
            stay[item] = hosts.pop()
    if running and _stands(instance, stay):
        yield stay
    if not running or bound >= sum(home.memory for homes in instance.homes for home in homes):
        yield [-1] * len(stay)
    elif bound > 0:
        load = Rooms(instance, stay).load
        memory = [sum(home.memory for home in homes) for homes in instance.homes]
        for order in (
            sorted(running, key=lambda item: memory[item]),
            sorted(running, key=lambda item: -load[stay[item]] / instance.capacity[stay[item]]),
        ):
            pinned, left = list(stay), bound
            for item in order:
                if memory[item] <= left:
                    pinned[item] = -1
                    left -= memory[item]
            if _stands(instance, pinned):
                yield pinned


def _stands(instance: YieldInstance, mapping: Sequence[int]) -> bool:
    """Whether what has a host has room there: needs may have grown, and hosts shrunk, since it was put there."""
    rooms = Rooms(instance)
    for item, host in enumerate(mapping):
        if host >= 0:
            if not rooms.fits(item, host):
                return False
            rooms.put(item, host)
    return True


def _relabelled(instance: YieldInstance, mapping: Mapped, pinned: Sequence[int]) -> Mapped:
    """The same mapping with equal hosts renamed, so that what shares a host stays where most of its memory is."""
    if instance.limited:
        return mapping
    taken = {host for host in pinned if host >= 0}
    alike = [(instance.capacity[host], *(row[host] for row in instance.room)) for host in range(len(instance.capacity))]
    kept: defaultdict[tuple[int, int], float] = defaultdict(float)
    for item, host in enumerate(mapping):
        for home in instance.homes[item]:
            if not {host, home.host} & taken and alike[host] == alike[home.host]:
                kept[host, home.host] += home.memory
    name: dict[int, int] = {host: host for host in taken}
    used = set(taken)
    for host, was in sorted(kept, key=lambda pair: (-kept[pair], pair)):
        if host not in name and was not in used:
            name[host] = was
            used.add(was)
    spare: defaultdict[tuple[float, ...], list[int]] = defaultdict(list)
    for host in range(len(alike) - 1, -1, -1):
        if host not in used:
            spare[alike[host]].append(host)
    for host in range(len(alike)):
        if host not in name:
            name[host] = spare[alike[host]].pop()
    return [name[host] for host in mapping]


def _reachable(instance: YieldInstance, mapping: Mapped) -> Mapped | None:
    """The mapping without the moves that can't be made one after the other; None if it does not fit without them."""
    item_of = {home.task: item for item, homes in enumerate(instance.homes) for home in homes}
    stuck = in_order(instance, {t: mapping[item] for t, item in item_of.items()})[1]
    if not stuck:
        return mapping
    found = list(mapping)
    for one in stuck:
        found[item_of[one.task]] = one.source
    return (
        found
        if _stands(instance, found) and not in_order(instance, {t: found[item] for t, item in item_of.items()})[1]
        else None
    )


# -- admission -------------------------------------------------------------------------------------------------------


def admit(
    problem: YieldProblem,
    algorithm: str = "best",
    *,
    local_search: bool = False,
    second_phase: SecondPhase = "average",
    seed: int = 0,
    ranked: Sequence[Sequence[int]] | None = None,
) -> Placement:
    """The same as :func:`solve`, but where not all fit, jobs are dropped: those of the lowest priority first, of equal
    ones those that don't run yet, of these the last. A job that fits beside all that go before it is never dropped.
    With ``ranked`` these groups of tasks, by position, are the jobs, the first the last to be dropped.
    """
    place = partial(solve, algorithm=algorithm, local_search=local_search, second_phase=second_phase, seed=seed)
    order = _ranked(problem) if ranked is None else ranked

    def attempt(some: Iterable[Sequence[int]]) -> Placement | None:
        kept = sorted(t for job in some for t in job)
        found = place(attrs.evolve(problem, tasks=tuple(problem.tasks[t] for t in kept)))
        return _widened(found, kept, len(problem.tasks)) if found.status in ("optimal", "placed") else None

    best = attempt(order)
    if best is not None:
        return best
    fitting, above = 0, len(order)  # the first so many fit, and don't
    while above - fitting > 1:
        middle = (fitting + above) // 2
        found = attempt(order[:middle])
        fitting, above, best = (middle, above, found) if found is not None else (fitting, middle, best)
    kept, refused = list(order[:fitting]), list(order[fitting : fitting + 1])
    for job in order[fitting + 1 :]:
        if any(_needs_as_much(problem, job, other) for other in refused):
            continue
        found = attempt([*kept, job])
        if found is None:
            refused.append(job)
        else:
            kept, best = [*kept, job], found
    return best or attempt([]) or Placement(status="failed", bound=0.0)


def _ranked(problem: YieldProblem) -> list[list[int]]:
    """The tasks of each job, the first the last to be dropped."""
    jobs: dict[tuple[str, int], list[int]] = {}
    for t, task in enumerate(problem.tasks):
        jobs.setdefault((task.job, -1) if task.job else ("", t), []).append(t)

    def rank(job: list[int]) -> tuple[int, bool]:
        tasks = [problem.tasks[t] for t in job]
        return -max(task.priority for task in tasks), all(task.host is None for task in tasks)

    return sorted(jobs.values(), key=rank)


def _needs_as_much(problem: YieldProblem, job: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a job has no chance where another had none: both are one task that differs in its needs alone."""
    if len(job) > 1 or len(other) > 1:
        return False
    one, two = problem.tasks[job[0]], problem.tasks[other[0]]
    same = (one.hosts, one.together, one.spread, one.host) == (two.hosts, two.together, two.spread, two.host)
    return same and one.floor >= two.floor and all(a >= b for a, b in zip(one.rigid, two.rigid, strict=True))


def _widened(placement: Placement, kept: Sequence[int], count: int) -> Placement:
    """The placement of some tasks as one of all."""
    mapping: list[int | None] = [None] * count
    cpu = [0.0] * count
    for t, host, share in zip(kept, placement.mapping, placement.cpu, strict=True):
        mapping[t], cpu[t] = host, share
    return attrs.evolve(
        placement,
        mapping=tuple(mapping),
        cpu=tuple(cpu),
        moved=tuple(kept[t] for t in placement.moved),
        dropped=tuple(sorted(set(range(count)) - set(kept))),
    )
