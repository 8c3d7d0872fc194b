"""The exact search, HiGHS and the checker agree, and limits are honest."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from coallocation_problems import ring_request, small_problem

from leasekit.core.errors import LeasekitError
from leasekit.policies.broker.coallocation import milp
from leasekit.policies.broker.coallocation.bounds import Bounds, Ground, best_of
from leasekit.policies.broker.coallocation.checker import faults
from leasekit.policies.broker.coallocation.instance import (
    INF,
    Availability,
    InstanceOutcome,
    InstanceShape,
    Network,
    scale_of,
)
from leasekit.policies.broker.coallocation.model import (
    ModelLink,
    ModelOptions,
    Problem,
    Resources,
    Vertex,
    check_problem,
)
from leasekit.policies.broker.coallocation.problem import named, named_free
from leasekit.policies.broker.coallocation.routing import Oracle
from leasekit.policies.broker.coallocation.search import Search
from leasekit.policies.broker.coallocation.solve import SolveLimits, solve
from leasekit.policies.solver import load_highs, run

SEEDS = range(200)


def prepared(problem: Problem) -> tuple[Network, InstanceShape, Availability]:
    """A problem at one instant, with all resources free."""
    network = Network(problem.resources, scale_of(problem.resources, [problem.request]))
    return (
        network,
        InstanceShape(network, problem.request, problem.options),
        Availability(network.cpus, network.bw, network.vc),
    )


def searched(problem: Problem) -> InstanceOutcome:
    """What the search finds, with nothing remembered."""
    network, shape, free = prepared(problem)
    return Search(network, shape, free, Oracle(network)).run()


def wrong(problem: Problem, outcome: InstanceOutcome) -> list[str]:
    """What the independent checker says of a plan."""
    network, shape, free = prepared(problem)
    plan = named(network, shape, outcome, len(problem.request.links))
    return faults(plan, problem.resources, problem.request, problem.options, named_free(network, free))


def ring(size: int) -> tuple[Network, InstanceShape, Availability]:
    """A ring on a mesh of twelve sites whose links are short: hard for a tree's bound."""
    names = [f"N{i:02}" for i in range(12)]
    random = Random(size)
    resources = Resources(
        vertices=tuple(Vertex(id=name, kind="site", cpus=2, vc=random.randint(1, 9)) for name in names),
        links=tuple(
            ModelLink(a=a, b=b, bw=random.choice([0, 1, 1, 2, 2, 3]), vb=random.randint(1, 9))
            for i, a in enumerate(names)
            for b in names[:i]
        ),
    )
    problem = Problem(resources=resources, request=ring_request(random, size), options=ModelOptions(pmax=3))
    return prepared(problem)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 25))
def test_search_and_highs_give_the_same_answer(first: int) -> None:
    """On random problems with every feature both prove the same status, objective and sites; the checker agrees."""
    for seed in range(first, first + 25):
        problem = small_problem(seed)
        assert list(check_problem(problem)) == []
        network, shape, free = prepared(problem)
        ours, theirs = searched(problem), milp.solve(network, shape, free)
        assert (ours.status, ours.cost, ours.sites) == (theirs.status, theirs.cost, theirs.sites), seed
        if ours.cost is not None:
            assert wrong(problem, ours) == [] and wrong(problem, theirs) == [], seed


def test_the_random_problems_have_what_they_are_for() -> None:
    """Among them are feasible and infeasible ones, ties, links of no value, demands that share a link, backups."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        problem = small_problem(seed)
        network, _, _ = prepared(problem)
        outcome = searched(problem)
        seen[outcome.status] += 1
        seen["zero"] += any(link.vb == 0 for link in problem.resources.links)
        seen["backup"] += any(link.backup and link.bw > 0 for link in problem.request.links)
        seen["latency"] += any(link.max_latency is not None for link in problem.request.links)
        seen["one site"] += not problem.options.distinct_sites and len(set(outcome.sites)) < len(outcome.sites)
        used = Counter(frozenset(pair) for path in outcome.paths for pair in pairwise(path))
        seen["shared"] += max(used.values(), default=0) > 1
        assert network.names
    assert all(seen[what] >= 5 for what in ("optimal", "infeasible", "zero", "backup", "latency", "one site", "shared"))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_plain_and_the_strengthened_program_have_the_same_optimum(first: int) -> None:
    """What is left out and added for speed changes no objective."""
    for seed in range(first, first + 20):
        network, shape, free = prepared(small_problem(seed))
        unit = network.scale.bandwidth * network.scale.value
        costs = []
        for program in (milp.plain(network, shape, free), milp.strengthened(network, shape, free)):
            answer = run(program.cost, program.rows)
            assert answer.done
            total = sum(c * v for c, v in zip(program.cost, answer.values, strict=True)) if answer.values else None
            costs.append(None if total is None else round(total * unit, 3))
        assert costs[0] == costs[1], seed


def test_ties_are_broken_by_site_names_however_the_file_orders_sites() -> None:
    """Of placements that cost the same the first in the order of names is chosen, spot by spot."""
    names = ["C", "A", "D", "B"]
    resources = Resources(
        vertices=tuple(Vertex(id=name, kind="site", cpus=4) for name in names),
        links=tuple(ModelLink(a=a, b=b, bw=1) for i, a in enumerate(names) for b in names[:i]),
    )
    problem = Problem(resources=resources, request=ring_request(Random(1), 3), options=ModelOptions(pmax=None))
    problem = Problem(
        resources=resources,
        request=problem.request.__class__(
            sites=problem.request.sites,
            links=tuple(link.__class__(from_=link.from_, to=link.to, bw=1) for link in problem.request.links),
        ),
    )
    network, _, _ = prepared(problem)
    assert [network.names[v] for v in searched(problem).sites] == ["A", "B", "C"]


def test_a_search_below_a_cost_finds_only_what_is_cheaper() -> None:
    """With the optimum as its bar nothing is found; with one more, the optimum."""
    network, shape, free = ring(5)
    best = Search(network, shape, free, Oracle(network), nodes=10**9).run()
    assert best.cost is not None
    for solver in (
        lambda below: Search(network, shape, free, Oracle(network), nodes=10**9).run(below),
        lambda below: milp.solve(network, shape, free, below=below),
    ):
        assert solver(best.cost).status == "infeasible"
        assert solver(best.cost + 1).cost == best.cost


def test_bounds_shared_by_frames_change_no_answer() -> None:
    """Bounds of a frame that has at least as much of everything give the same answers as a frame's own."""
    network, shape, free = ring(4)
    random = Random(7)
    oracle = Oracle(network)
    frames = [
        Availability(
            tuple(cpus * random.choice([0, 1, 1, 1]) for cpus in free.cpus),
            tuple(max(0, bw - random.choice([0, 0, 1])) for bw in free.bw),
            tuple(vc * random.choice([1, 2]) for vc in free.vc),
        )
        for _ in range(12)
    ]
    bounds = Bounds(Ground(network, shape, best_of(frames)), oracle)
    for frame in frames:
        own = Search(network, shape, frame, Oracle(network), nodes=10**9).run()
        shared = Search(network, shape, frame, oracle, nodes=10**9, bounds=bounds).run()
        assert own[:5] == shared[:5]


@pytest.mark.parametrize("nodes", [5, 50, 500])
def test_a_search_that_stops_early_states_a_bound_that_holds(nodes: int) -> None:
    """Whatever limit is met, the optimum lies between the bound and the plan that was found."""
    network, shape, free = ring(6)
    best = Search(network, shape, free, Oracle(network), nodes=10**9).run()
    assert best.status == "optimal" and best.cost is not None
    found = Search(network, shape, free, Oracle(network), nodes=nodes).run()
    assert found.bound <= best.cost
    assert found.cost is None or found.cost >= best.cost
    if nodes == 5:
        assert found.status == "bound"


def test_a_deadline_ends_a_search_with_a_bound() -> None:
    """When the caller says that time is up the search ends, and what it says is still true."""
    network, shape, free = ring(6)
    best = Search(network, shape, free, Oracle(network), nodes=10**9).run()
    asked = iter([False, True])
    found = Search(network, shape, free, Oracle(network), nodes=10**9, deadline=lambda: next(asked, True)).run()
    assert found.status == "bound" and best.cost is not None and found.bound <= best.cost


def test_auto_proves_by_highs_what_the_search_could_not() -> None:
    """With too few nodes for the search, the program behind it proves the same optimum and sites."""
    network, shape, free = ring(5)
    best = solve(network, shape, free, Oracle(network), solver="search", limits=SolveLimits(nodes=10**6))
    stopped = Search(network, shape, free, Oracle(network), nodes=5).run()
    assert stopped.status == "bound"
    found = solve(network, shape, free, Oracle(network), limits=SolveLimits(nodes=5))
    assert (found.status, found.cost, found.sites) == ("optimal", best.cost, best.sites)


def test_no_time_at_all_gives_no_plan_and_no_claim() -> None:
    """When time is up before the start neither solver claims anything."""
    network, shape, free = ring(5)
    limits = SolveLimits(nodes=1, remaining=lambda: 0.0)
    for solver in ("auto", "highs"):
        found = solve(network, shape, free, Oracle(network), solver=solver, limits=limits)
        assert found.status == "bound" and found.bound < INF


def test_without_highspy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver highs without its package is an error in words."""
    monkeypatch.setitem(__import__("sys").modules, "highspy", None)
    with pytest.raises(LeasekitError, match="needs the Python package highspy"):
        load_highs()
