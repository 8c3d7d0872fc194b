"""Virtual clusters: every algorithm against brute force, HiGHS and the checks below, on small problems."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf, isclose, nan
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.emulation.placement import YieldCase
from leasekit.policies.authority.placing import packing
from leasekit.policies.authority.placing.improve import improved
from leasekit.policies.authority.placing.instance import Rooms, YieldInstance, compiled
from leasekit.policies.authority.placing.model import Placement, YieldHost, YieldProblem, YieldTask, faults
from leasekit.policies.authority.placing.moves import changes
from leasekit.policies.authority.placing.programs import exact
from leasekit.policies.authority.placing.solve import ALGORITHMS, HEURISTICS, admit, solve

MAPPING = [name for name in ALGORITHMS if name != "lp"]


def hosts(count: int, cpu: float = 1.0, *rigid: float) -> tuple[YieldHost, ...]:
    """Hosts that are alike."""
    return tuple(YieldHost(id=f"h{j}", cpu=cpu, rigid=rigid or (1.0,)) for j in range(count))


def tasks(*needs: tuple[float, ...], **also: Any) -> tuple[YieldTask, ...]:
    """Tasks of these needs, CPU first."""
    return tuple(YieldTask(id=f"t{i}", cpu=need[0], rigid=need[1:], **also) for i, need in enumerate(needs))


def problem(count: int, *needs: tuple[float, ...]) -> YieldProblem:
    """The paper's: equal hosts, two resources."""
    return YieldProblem(hosts=hosts(count), tasks=tasks(*needs))


def random_problem(seed: int, *, runs: bool = False) -> YieldProblem:
    """A small one with all that there is: whole numbers or fractions, unequal hosts, two to four resources, cores,
    weights, floors, jobs, groups that share a host or are spread over domains, hosts that won't do, tasks that run.
    """
    random = Random(seed)
    whole, width = random.random() < 0.5, random.randint(1, 3)
    unit: Any = (lambda low, high: random.randint(round(low * 1000), round(high * 1000))) if whole else random.uniform
    made = tuple(
        YieldHost(
            id=f"h{j}",
            cpu=unit(0.5, 2),
            rigid=tuple(unit(0.6, 1.5) for _ in range(width)),
            core=random.choice([inf, inf, unit(0.2, 0.6)]),
            domain=random.choice(["", "", "rack"]),
        )
        for j in range(random.randint(2, 3))
    )
    names = [host.id for host in made]
    weights = defaultdict(lambda: random.choice([1, 1, 2, 3]))

    def task(i: int) -> YieldTask:
        cpu, job = unit(0.05, 0.9), random.choice(["", "", "a", "b"])
        return YieldTask(
            id=f"t{i}",
            cpu=cpu,
            rigid=tuple(unit(0.05, 0.5) for _ in range(width)),
            job=job,
            host=random.choice([*names, None]) if runs else None,
            cores=random.randint(1, 4),
            floor=random.choice([0, 0, 0, cpu // 5 if whole else cpu / 5]),
            weight=weights[job or f"t{i}"],
            priority=random.randint(0, 2),
            hosts=random.choice([None, None, None, frozenset(random.sample(names, 2))]),
            together=random.choice(["", "", "", "", "x"]),
            spread=random.choice(["", "", "", "s"]),
        )

    return YieldProblem(
        hosts=made,
        tasks=tuple(task(i) for i in range(random.randint(1, 6))),
        bound=random.choice([None, 0, unit(0.1, 1)]) if runs else None,
        spread=random.choice([{}, {"s": 2}]),
    )


def check(of: YieldProblem, found: Placement) -> None:
    """All that must hold of a placement, counted anew from the problem, without anything of the library."""
    assert found.status in ("optimal", "placed")
    by_name = {host.id: number for number, host in enumerate(of.hosts)}
    cpu: Counter[int] = Counter()
    rigid: Counter[tuple[int, int]] = Counter()
    spread: Counter[tuple[str, object]] = Counter()
    yields: dict[str, set[float]] = defaultdict(set)
    together: dict[str, set[int]] = defaultdict(set)
    for t, (task, place, share) in enumerate(zip(of.tasks, found.mapping, found.cpu, strict=True)):
        if place is None:
            assert t in found.dropped and share == 0
            continue
        host = of.hosts[place]
        cpu[place] += share
        for r, size in enumerate(task.rigid):
            rigid[place, r] += size
        assert task.hosts is None or host.id in task.hosts
        assert task.floor * (1 - 1e-6) <= share <= task.cpu * (1 + 1e-9)
        assert share <= host.core * task.cores * (1 + 1e-9)
        if task.spread:
            spread[task.spread, host.domain or place] += 1
        if task.together:
            together[task.together].add(place)
        yields[task.job or f"\0{t}"].add(round(share / task.cpu, 6) if task.cpu else 1.0)
        assert share >= found.level * task.cpu * task.weight / max(one.weight for one in of.tasks) * (1 - 1e-6)
        assert (t in found.moved) == (task.host is not None and by_name[task.host] != place)
    assert all(used <= of.hosts[place].cpu * (1 + 1e-6) for place, used in cpu.items())
    for (place, r), used in rigid.items():
        room = of.hosts[place].rigid[r]
        assert used <= (room if isinstance(room, int) else room * (1 + 1e-9))
    assert all(count <= of.spread.get(group, 1) for (group, _), count in spread.items())
    assert all(len(places) == 1 for places in together.values())
    assert all(len(one) == 1 for one in yields.values())
    assert found.level <= found.bound * (1 + 1e-6)
    if of.bound is not None:
        assert sum(of.tasks[t].rigid[0] for t in found.moved) <= of.bound * (1 + 1e-9)


def brute(instance: YieldInstance) -> float | None:
    """The greatest level of all mappings; None if there is none."""
    best = None
    bound = instance.problem.bound
    for mapping in itertools.product(range(len(instance.capacity)), repeat=len(instance.need)):
        rooms, fits = Rooms(instance), True
        for item, host in enumerate(mapping):
            fits = fits and rooms.fits(item, host)
            rooms.put(item, host)
        if fits and (bound is None or instance.moved(mapping) <= bound):
            level = instance.level(mapping)
            best = level if best is None else max(best, level)
    return best


@pytest.mark.parametrize("runs", [False, True], ids=["newcomers", "some run"])
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_exact_is_the_best_of_all_mappings(first: int, runs: bool) -> None:
    """With every feature; and what the relaxed program says is never less."""
    for seed in range(first, first + 50):
        of = random_problem(seed, runs=runs)
        best = brute(compiled(of))
        found = solve(of, "exact")
        assert (found.status == "infeasible") == (best is None), seed
        if best is not None:
            check(of, found)
            assert found.status == "optimal" and isclose(found.level, best, rel_tol=1e-5), seed
            assert solve(of, "lp").level >= best * (1 - 1e-6), seed


@pytest.mark.parametrize("runs", [False, True], ids=["newcomers", "some run"])
@pytest.mark.parametrize("name", MAPPING)
def test_every_algorithm_keeps_all_limits(name: str, runs: bool) -> None:
    """Whatever it finds holds, with and without local search, in all second phases; local search does no harm."""
    found_some = 0
    for seed in range(60):
        of = random_problem(seed, runs=runs)
        plain = solve(of, name)
        searched = solve(of, name, local_search=True, second_phase="max_min")
        assert (plain.status in ("optimal", "placed")) == (searched.status in ("optimal", "placed"))
        if plain.mapping:
            found_some += 1
            check(of, plain)
            check(of, searched)
            check(of, solve(of, name, second_phase="none"))
            if not runs:
                assert searched.level >= plain.level * (1 - 1e-9)
    assert found_some >= 10


def test_paper_and_compact_form_agree() -> None:
    """The paper's program has the same optimum as the one that is a tenth of it."""
    for seed in range(40):
        of = compiled(random_problem(seed))
        if not of.floors:
            one, two = exact(of), exact(of, paper=True)
            assert (one.mapping is None) == (two.mapping is None)
            if one.mapping and two.mapping:
                assert isclose(of.level(one.mapping), of.level(two.mapping), rel_tol=1e-5)


NEEDS = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 60)), min_size=1, max_size=9)


@given(needs=NEEDS, count=st.integers(1, 4))
def test_no_heuristic_is_above_the_optimum(needs: list[tuple[int, int]], count: int) -> None:
    """Whole numbers, as fractions of a hundred: the optimum bounds all, and backtracking finds what there is."""
    of = YieldProblem(hosts=hosts(count, 100, 100), tasks=tasks(*needs))
    best = solve(of, "exact")
    for name in ("gr", "sg", "mcb1", "mcb5", "mcb8", "best", "rrnz"):
        found = solve(of, name)
        if found.mapping:
            check(of, found)
            assert found.level <= best.level * (1 + 1e-6)
    if count < 3 and len(needs) < 8:
        assert (solve(of, "sgb").status == "failed") == (best.status == "infeasible")


@given(seed=st.integers(0, 10**6), size=st.integers(1, 40), wide=st.booleans())
def test_the_fast_packing_is_the_general_one(seed: int, size: int, wide: bool) -> None:
    """MCB8 with bisection puts everything where MCB8 without it does, also in chunks of a few."""
    random = Random(seed)
    needs = [
        (random.choice([0.1, 0.2, random.random()]), random.choice([0.1, random.random() / 2])) for _ in range(size)
    ]
    instance = compiled(YieldProblem(hosts=hosts(max(1, size // (6 if wide else 3))), tasks=tasks(*needs)))
    free = [-1] * size
    chunk = packing.CHUNK
    try:
        packing.CHUNK = random.choice([1, 2, 5, chunk])  # type: ignore[misc]
        fast, slow = packing._LargestFirst(instance, free, 8), packing._Packer(instance, free, 8)
        for level in (0.05, 0.3, 0.5, 0.8, 1.0):
            assert fast.packed(level) == slow.packed(level)
    finally:
        packing.CHUNK = chunk  # type: ignore[misc]


@given(seed=st.integers(0, 10**6), size=st.integers(1, 20), share=st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_floors_and_cores_that_do_not_count_slow_nothing_down(seed: int, size: int, share: float) -> None:
    """With floors the fast packing is the general one, too; all hosts by name, and cores that are fast enough, are no
    limits; the level is that of each host by itself.
    """
    random = Random(seed)
    count = max(1, size // 4)
    places = tuple(attrs.evolve(host, core=0.5) for host in hosts(count, 1.0, 4.0))
    made = tuple(
        YieldTask(
            id=f"t{i}", cpu=cpu, rigid=(random.random(),), cores=2, floor=random.choice([0, cpu * share]),
            hosts=frozenset(host.id for host in places), weight=random.choice([1, 2]),
        )
        for i, cpu in enumerate(random.random() for _ in range(size))
    )  # fmt: skip
    instance = compiled(YieldProblem(hosts=places, tasks=made))
    assert not instance.limited
    free = [-1] * size
    fast, slow = packing._LargestFirst(instance, free, 8), packing._Packer(instance, free, 8)
    for level in (0.05, 0.3, 0.6, 1.0):
        found = fast.packed(level)
        assert found == slow.packed(level)
        if found is not None:
            own = instance.level(found)
            assert own >= level * (1 - 1e-6) and own == pytest.approx(min(instance._levels(found)))


@pytest.mark.parametrize("slack", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("tasks", [packing.MANY, 250])
def test_a_search_that_begins_ahead_finds_the_same(tasks: int, slack: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what is ahead fits or not: only that it takes fewer probes."""
    instance = compiled(YieldCase("large", tasks, slack, 0.75, 0.75, 0, 1).problem())
    probed: list[float] = []
    packed = packing._LargestFirst.packed

    def noted(self: packing._LargestFirst, level: float) -> list[int] | None:
        probed.append(level)
        return packed(self, level)

    monkeypatch.setattr(packing._LargestFirst, "packed", noted)
    found, ahead = packing.mcb(instance, 8, [-1] * tasks), len(probed)
    monkeypatch.setattr(packing, "AHEAD", ())
    assert packing.mcb(instance, 8, [-1] * tasks) == found
    fits = found is not None and instance.level(found) > 0.94 * instance.ceiling()
    assert len(probed) - ahead - ahead in ((3, 4, 2) if fits else (-2,)), (ahead, len(probed) - ahead)


def test_the_keys_are_those_of_the_paper() -> None:
    """Two resources: which of two tasks goes first, by sum, difference, ratio, and greatest need."""
    a, b = (0.5, 0.5), (0.6, 0.2)
    ahead = [key(a) < key(b) for key in packing.KEYS]
    assert ahead == [False, True, True, True]


# -- second phases ---------------------------------------------------------------------------------------------------


def test_average_fills_the_smallest_needs_first() -> None:
    """On a host with needs 0.5 and 1: the level is 2/3; beside a lone task of 0.9 the rest of its host is left."""
    of = problem(1, (0.5, 0.1), (1.0, 0.1))
    assert [round(x, 6) for x in solve(of, "sg").cpu] == [round(1 / 3, 6), round(2 / 3, 6)]
    two = YieldProblem(hosts=hosts(2), tasks=tasks((1.0, 0.9), (1.0, 0.9), (0.2, 0.1), (0.6, 0.0)))
    found = solve(two, "exact", second_phase="average")
    none, fair = solve(two, "exact", second_phase="none"), solve(two, "exact", second_phase="max_min")
    assert none.average_yield < fair.average_yield <= found.average_yield
    assert none.min_yield == pytest.approx(found.min_yield) == fair.min_yield


def test_the_average_is_that_of_a_linear_program() -> None:
    """Of single tasks, where it is greedy, and of jobs: no other shares have a greater mean yield per job."""
    for seed in range(30):
        of = random_problem(seed)
        found = solve(of, "sgb")
        if not found.mapping:
            continue
        others = [solve(of, "sgb", second_phase=phase).average_yield for phase in ("max_min", "none")]
        assert found.average_yield >= max(others) - 1e-6


def test_jobs_get_one_yield_and_count_once() -> None:
    """A job of two tasks on two hosts beside lone tasks: the mean counts three jobs, not four tasks."""
    made = [
        YieldTask(id="a", cpu=0.5, rigid=(0.6,), job="J"),
        YieldTask(id="b", cpu=0.5, rigid=(0.6,), job="J"),
        YieldTask(id="c", cpu=0.8, rigid=(0.3,)),
        YieldTask(id="d", cpu=0.9, rigid=(0.3,)),
    ]
    of = YieldProblem(hosts=hosts(2), tasks=tuple(made))
    found = solve(of, "exact")
    check(of, found)
    job, c, d = found.cpu[0] / 0.5, found.cpu[2] / 0.8, found.cpu[3] / 0.9
    assert found.cpu[0] == found.cpu[1] and found.average_yield == pytest.approx((job + c + d) / 3)
    assert found.level == pytest.approx(1 / 1.4)


def test_max_min_fills_host_by_host() -> None:
    """Nobody can get more without another of at most its yield getting less."""
    for seed in range(40):
        of = attrs.evolve(random_problem(seed), spread={"s": 9})
        found = solve(of, "sgb", second_phase="max_min")
        if not found.mapping:
            continue
        used: Counter[int] = Counter()
        for place, share in zip(found.mapping, found.cpu, strict=True):
            assert place is not None
            used[place] += share
        heaviest = max(task.weight for task in of.tasks)
        levels = {t: found.cpu[t] / (task.cpu * task.weight / heaviest) for t, task in enumerate(of.tasks)}
        for t, (task, place) in enumerate(zip(of.tasks, found.mapping, strict=True)):
            members = [k for k, one in enumerate(of.tasks) if k == t or (task.job and one.job == task.job)]
            tight = any(
                used[found.mapping[k]] >= of.hosts[found.mapping[k]].cpu * (1 - 1e-6)  # type: ignore[index]
                and all(
                    levels[n] <= levels[t] * (1 + 1e-6) or found.cpu[n] <= of.tasks[n].cpu * 0.35
                    for n, where in enumerate(found.mapping)
                    if where == found.mapping[k]
                )
                for k in members
            )
            full = any(
                found.cpu[k] >= min(of.tasks[k].cpu, of.hosts[found.mapping[k]].core * of.tasks[k].cores) * (1 - 1e-6)  # type: ignore[index]
                for k in members
            )
            assert tight or full, (seed, t, place)


# -- weights, cores, groups ------------------------------------------------------------------------------------------


def test_twice_the_weight_is_twice_the_yield() -> None:
    """As far as there is room; the least yield is then that of the lightest."""
    light, heavy = tasks((1.0, 0.1), (1.0, 0.1))
    of = YieldProblem(hosts=hosts(1), tasks=(light, attrs.evolve(heavy, weight=2)))
    found = solve(of, "exact", second_phase="none")
    assert found.cpu == pytest.approx((1 / 3, 2 / 3)) and found.min_yield == pytest.approx(1 / 3)


def test_a_virtual_cpu_gets_one_core_at_most() -> None:
    """A need of 1 over one virtual CPU on cores of a quarter is met by a quarter; over two by a half."""
    slow = YieldHost(id="slow", cpu=1.0, rigid=(1.0,), core=0.25)
    for cores, share in ((1, 0.25), (2, 0.5), (4, 1.0)):
        made = YieldTask(id="t", cpu=1.0, rigid=(0.5,), cores=cores)
        for name in MAPPING:
            found = solve(YieldProblem(hosts=(slow,), tasks=(made,)), name)
            assert found.cpu == pytest.approx((share,)) and found.level == pytest.approx(share)


def test_groups_are_kept_and_what_can_not_be_is_told() -> None:
    """Three replicas on three racks; a fourth has no place."""
    racks = tuple(YieldHost(id=f"h{j}", cpu=1.0, rigid=(1.0,), domain=f"rack{j // 2}") for j in range(6))
    replicas = tasks(*[(0.1, 0.1)] * 4, spread="web")
    for name in MAPPING:
        found = solve(YieldProblem(hosts=racks, tasks=replicas[:3]), name)
        assert len({place // 2 for place in found.mapping if place is not None}) == 3, name
        assert not solve(YieldProblem(hosts=racks, tasks=replicas), name).mapping
        assert solve(YieldProblem(hosts=racks, tasks=replicas, spread={"web": 2}), name).mapping


# -- what runs already -----------------------------------------------------------------------------------------------


def running(count: int, *placed: tuple[float, float, int | None], bound: float | None = None) -> YieldProblem:
    """Equal hosts, and tasks that run on those of these numbers."""
    return YieldProblem(
        hosts=hosts(count),
        tasks=tuple(
            YieldTask(id=f"t{i}", cpu=c, rigid=(m,), host=None if host is None else f"h{host}")
            for i, (c, m, host) in enumerate(placed)
        ),
        bound=bound,
    )


CROWDED = [(0.5, 0.3, 0), (0.5, 0.3, 0), (0.5, 0.3, 0), (0.5, 0.2, None)]


@pytest.mark.parametrize("name", [*MAPPING])
def test_with_a_bound_of_zero_nobody_moves(name: str) -> None:
    """Newcomers are placed around those that run, who get what is left."""
    of = running(3, *CROWDED, bound=0)
    found = solve(of, name, local_search=True)
    check(of, found)
    assert found.moved == () and found.mapping[:3] == (0, 0, 0) and found.mapping[3] in (1, 2)


@pytest.mark.parametrize("name", ["exact", "best", "mcb8", "sg"])
def test_a_bound_is_used_as_far_as_it_helps(name: str) -> None:
    """0.3 of memory moves one task, which is all that it takes; without a bound no more is moved either."""
    for bound in (0.3, None):
        found = solve(running(3, *CROWDED, bound=bound), name, local_search=True)
        assert found.level == 1.0 and len(found.moved) == 1
    assert solve(running(3, *CROWDED, bound=0.29), name, local_search=True).moved == ()


def test_what_runs_well_is_left_where_it_is() -> None:
    """Ties keep the current host, whatever the hosts are called."""
    of = running(4, (0.5, 0.5, 3), (0.5, 0.5, 2), (0.5, 0.5, 0), (0.5, 0.5, 3))
    for name in MAPPING:
        assert solve(of, name, local_search=True).moved == (), name


def test_newcomers_that_need_room_make_some_within_the_bound() -> None:
    """Two hosts half full of small tasks, a newcomer that needs a whole host: exactly what must move does."""
    of = running(2, (0.1, 0.3, 0), (0.1, 0.2, 1), (0.5, 1.0, None), bound=0.2)
    for name in ("exact", "best", "sg"):
        found = solve(of, name)
        check(of, found)
        assert found.moved == (1,), name
    assert solve(attrs.evolve(of, bound=0.1), "best").status == "failed"


def test_a_host_that_shrank_is_left_as_soon_as_the_bound_allows() -> None:
    """What runs where it has no room any more must go; with a bound of 0 that can't be."""
    of = YieldProblem(
        hosts=(YieldHost(id="h0", cpu=1.0, rigid=(0.5,)), *hosts(3)[1:]),
        tasks=tuple(YieldTask(id=f"t{i}", cpu=0.5, rigid=(0.4,), host="h0") for i in range(2)),
    )
    for name in MAPPING:
        found = solve(of, name)
        check(of, found)
        assert found.moved, name
        assert not solve(attrs.evolve(of, bound=0), name).mapping


def test_caps_fall_then_tasks_move_then_caps_rise() -> None:
    """At every point the caps on a host are at most its CPU, and its memory holds."""
    for seed in range(60):
        of = random_problem(seed, runs=True)
        found = solve(of, "best")
        if not found.mapping:
            continue
        before = {t: task.cpu for t, task in enumerate(of.tasks) if task.host is not None}
        done = changes(of, found, before)
        assert not done.stuck
        assert set(found.moved) == {one.task for one in done.migrations}
        names = {host.id: number for number, host in enumerate(of.hosts)}
        where = {t: names[task.host] for t, task in enumerate(of.tasks) if task.host is not None}
        stands = all(_fits(of, where, host) for host in range(len(of.hosts)))
        for one in done.migrations:
            assert where[one.task] == one.source
            where[one.task] = one.target
            assert _fits(of, where, one.target) or not stands
        caps = before | dict(done.lowered)
        assert all(caps[t] >= found.cpu[t] for t in done.lowered)
        assert {**caps, **done.started, **done.raised} == pytest.approx(dict(enumerate(found.cpu)))


def _fits(of: YieldProblem, where: dict[int, int], host: int) -> bool:
    here = [of.tasks[t] for t, place in where.items() if place == host]
    return all(sum(task.rigid[r] for task in here) <= room * (1 + 1e-9) for r, room in enumerate(of.hosts[host].rigid))


def test_a_swap_that_has_no_room_is_stuck_and_no_heuristic_plans_it() -> None:
    """Two full hosts can't exchange tasks; an exact placement that needs it says what is stuck."""
    of = running(2, (0.9, 0.5, 0), (0.9, 0.5, 0), (0.1, 0.5, 1), (0.1, 0.5, 1))
    best = solve(of, "exact")
    assert best.level == 1.0 and len(changes(of, best, {}).stuck) == 2
    found = solve(of, "best")
    assert found.moved == () and found.level == pytest.approx(1 / 1.8)


# -- admission -------------------------------------------------------------------------------------------------------


def test_the_lowest_priority_is_dropped_when_nothing_fits() -> None:
    """Of equals those that don't run; a job goes as a whole; what fits beside the rest stays."""
    made = (
        YieldTask(id="old", cpu=0.1, rigid=(0.5,), host="h0"),
        YieldTask(id="new", cpu=0.1, rigid=(0.6,)),
        YieldTask(id="high", cpu=0.1, rigid=(0.5,), priority=1),
        YieldTask(id="a", cpu=0.1, rigid=(0.4,), priority=-1, job="J"),
        YieldTask(id="b", cpu=0.1, rigid=(0.7,), priority=-1, job="J"),
        YieldTask(id="small", cpu=0.1, rigid=(0.3,), priority=-2),
    )
    of = YieldProblem(hosts=hosts(2), tasks=made)
    found = admit(of, "sgb")
    check(of, found)
    assert found.dropped == (3, 4) and found.mapping[0] is not None
    alone = attrs.evolve(of, hosts=hosts(1))
    assert admit(alone, "sgb").dropped == (1, 3, 4, 5)
    assert admit(attrs.evolve(of, tasks=made[:3]), "sgb").dropped == ()


def test_admission_keeps_what_goes_before() -> None:
    """No job is dropped for one of lower rank: with those before it, it does not fit."""
    for seed in range(25):
        of = random_problem(seed)
        of = attrs.evolve(of, hosts=of.hosts[:1], tasks=tuple(attrs.evolve(t, hosts=None, job="") for t in of.tasks))
        found = admit(of, "exact")
        check(of, found)
        ranked = sorted(range(len(of.tasks)), key=lambda t: -of.tasks[t].priority)
        for t in found.dropped:
            before = [k for k in ranked[: ranked.index(t)] if k not in found.dropped]
            kept = tuple(of.tasks[k] for k in sorted([*before, t]))
            assert solve(attrs.evolve(of, tasks=kept), "exact").status == "infeasible"


# -- bad input, and the same each time -------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[YieldProblem, str]]:
    """Problems with one fault each, and the words for it."""
    good = problem(2, (0.5, 0.5))
    host, task = good.hosts[0], good.tasks[0]
    yield attrs.evolve(good, hosts=()), "hosts: found none, expected at least one"
    yield attrs.evolve(good, bound=-1), "bound: found -1, expected 0 or more"
    yield attrs.evolve(good, bound=nan), "bound: found nan, expected 0 or more"
    yield attrs.evolve(good, spread={"s": 0}), "spread.s: found 0, expected 1 or more"
    yield attrs.evolve(good, hosts=(host, host)), "hosts: found the id 'h0' 2 times, expected it once"
    yield attrs.evolve(good, tasks=(task, task)), "tasks: found the id 't0' 2 times, expected it once"
    for change, words in (
        ({"cpu": 0.0}, "hosts[0].cpu: found 0, expected a finite number above 0"),
        ({"core": nan}, "hosts[0].core: found nan, expected a number above 0"),
        ({"rigid": (inf,)}, "hosts[0].rigid[0]: found inf, expected a finite number of 0 or more"),
    ):
        yield attrs.evolve(good, hosts=(attrs.evolve(host, **change),)), words  # type: ignore[arg-type]
    yield attrs.evolve(good, hosts=(host, YieldHost(id="x", cpu=1, rigid=()))), "hosts[1].rigid: found 0 numbers, expec"
    for also, words in (
        ({"cpu": nan}, "tasks[0].cpu: found nan, expected a finite number of 0 or more"),
        ({"rigid": (-0.5,)}, "tasks[0].rigid[0]: found -0.5, expected a finite number of 0 or more"),
        ({"rigid": (1.5,)}, "tasks[0].rigid[0]: found 1.5, expected at most 1: no host has more"),
        ({"cpu": 1.5}, "tasks[0].cpu: found 1.5, expected at most 1: no host has more"),
        ({"rigid": ()}, "tasks[0].rigid: found 0 numbers, expected 1, as hosts have"),
        ({"weight": 0.0}, "tasks[0].weight: found 0, expected 0.01 to 100"),
        ({"weight": nan}, "tasks[0].weight: found nan, expected 0.01 to 100"),
        ({"cores": 0}, "tasks[0].cores: found 0, expected 1 or more"),
        ({"floor": 0.6}, "tasks[0].floor: found 0.6, expected at most the task's cpu, 0.5"),
        ({"host": "h9"}, "tasks[0].host: found 'h9', expected one of: h0, h1"),
        ({"hosts": frozenset({"h7"})}, "tasks[0].hosts: found 'h7', expected one of: h0, h1"),
        ({"hosts": frozenset()}, "tasks[0].hosts: found none, expected at least one host"),
    ):
        yield attrs.evolve(good, tasks=(attrs.evolve(task, **also),)), words  # type: ignore[arg-type]
    two = tasks((0.1, 0.1), (0.1, 0.1), job="J")
    yield attrs.evolve(good, tasks=(two[0], attrs.evolve(two[1], weight=2))), "tasks[1].weight: found 2, expected 1 as"


@pytest.mark.parametrize(("of", "words"), list(wrong()), ids=[words.partition(":")[0] for _, words in wrong()])
def test_a_fault_is_one_line_that_names_the_key(of: YieldProblem, words: str) -> None:
    """And nothing else is found wrong with it."""
    (found,) = faults(of)
    assert found.startswith(words)


def test_nothing_to_place_is_placed() -> None:
    """No tasks: a yield of 1, by every algorithm."""
    for name in MAPPING:
        found = solve(problem(2), name)
        assert (found.min_yield, found.average_yield, found.mapping) == (1.0, 1.0, ()), name


def test_rounding_draws_by_the_seed() -> None:
    """The same seed rounds alike, others don't."""
    random = Random(3)
    of = problem(4, *[(random.random(), random.random() / 3) for _ in range(12)])
    drawn = [solve(of, "rrnz", seed=seed).mapping for seed in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1] and len(set(drawn)) > 2


def test_local_search_is_not_worse_and_ends() -> None:
    """From any mapping that fits, on problems of the paper's kind."""
    for seed in range(20):
        random = Random(seed)
        instance = compiled(problem(5, *[(random.random(), random.random() / 5) for _ in range(20)]))
        found = HEURISTICS["gr"](instance, [-1] * 20, 0)
        assert found is not None
        better = improved(instance, found)
        assert instance.level(better) >= instance.level(found) and improved(instance, better) == better
