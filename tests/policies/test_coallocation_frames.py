"""Candidate starts, what is free at them, plans in order, and what is reserved."""

from __future__ import annotations

from fractions import Fraction

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.time import Term
from leasekit.core.timetable import Shortfall
from leasekit.policies.broker.coallocation.frames import Books, FramePlanned, FramePlanner, FrameWindow, Policy, starts
from leasekit.policies.broker.coallocation.instance import InstanceShape, Network, scale_of
from leasekit.policies.broker.coallocation.model import (
    CoRequest,
    LinkRequest,
    ModelLink,
    ModelOptions,
    Resources,
    SiteRequest,
    Vertex,
)
from leasekit.policies.broker.coallocation.solve import SolveLimits

RESOURCES = Resources(
    vertices=(
        Vertex(id="A", kind="site", cpus=8),
        Vertex(id="B", kind="site", cpus=8),
        Vertex(id="C", kind="site", cpus=4),
        Vertex(id="X", kind="exchange"),
    ),
    links=(
        ModelLink(a="A", b="X", bw=2, vb=3),
        ModelLink(a="B", b="X", bw=2, vb=3),
        ModelLink(a="C", b="X", bw=2, vb=3),
        ModelLink(a="A", b="B", bw=1, vb=7),
    ),
)
NETWORK = Network(RESOURCES, scale_of(RESOURCES))
OPTIONS = ModelOptions()
A, B, C = (NETWORK.index[name] for name in "ABC")


def pair(cpus: int = 4, bw: float = 1) -> CoRequest:
    """Two sites and a link between them."""
    return CoRequest(
        sites=(SiteRequest(id="r0", cpus=cpus), SiteRequest(id="r1", cpus=cpus)),
        links=(LinkRequest(from_="r0", to="r1", bw=bw),),
    )


def shape_of(request: CoRequest) -> InstanceShape:
    """The request, prepared."""
    return InstanceShape(NETWORK, request, OPTIONS)


def booked(*reserved: tuple[int, int, int, int]) -> Books:
    """Books with these reservations: vertex, CPUs, from, to."""
    books = Books.empty(NETWORK)
    for number, (v, cpus, start, end) in enumerate(reserved):
        table = books.cpus[v]
        assert table is not None
        table.reserve(number, cpus, Term(start, end))
    return books


def sites(planned: FramePlanned) -> list[tuple[int, str]]:
    """Start and sites of each plan, in order."""
    return [(plan.start, "".join(NETWORK.names[v] for v in plan.outcome.sites)) for plan in planned.plans]


def test_equidistant_starts_are_the_papers() -> None:
    """EST + floor(k (LST - EST) / (N - 1)), both ends included, in whole units of the requester's, none twice."""
    books = Books.empty(NETWORK)
    assert starts(FrameWindow(est=5, lst=105, duration=9, count=4), books) == [5, 38, 71, 105]
    assert starts(FrameWindow(est=5, lst=7, duration=9), books) == [5, 6, 7]
    assert starts(FrameWindow(est=5, lst=9, duration=9, count=1), books) == [5]
    assert starts(FrameWindow(est=0, lst=10_000, duration=9, count=4, unit=1000), books) == [0, 3000, 6000, 10_000]


def test_breakpoints_are_where_anything_changes_in_the_window() -> None:
    """Starts and ends of reservations of CPUs and of links, EST itself, nothing outside the window."""
    books = booked((A, 1, 10, 20), (B, 1, 15, 500))
    books.links[0].reserve("l", 1, Term(0, 33))
    assert starts(FrameWindow(est=5, lst=100, duration=9, mode="breakpoints"), books) == [5, 10, 15, 20, 33]
    both = starts(FrameWindow(est=5, lst=100, duration=9, mode="both", count=2), books)
    assert both == [5, 10, 15, 20, 33, 100]


def test_a_frame_is_half_open() -> None:
    """A reservation that ends when a frame starts, or starts when it ends, takes nothing from it."""
    books = booked((A, 8, 0, 10), (A, 8, 20, 30))
    assert books.free(Term(10, 20)).cpus[A] == 8
    assert books.free(Term(9, 20)).cpus[A] == 0
    assert books.free(Term(10, 21)).cpus[A] == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.integers(1, 8), st.integers(0, 40), st.integers(1, 20)), max_size=8
    ),
    st.integers(1, 8),
    st.integers(1, 12),
)
def test_breakpoints_find_the_true_earliest_start(
    taken: list[tuple[int, int, int, int]], cpus: int, duration: int
) -> None:
    """No start at any instant of the window is earlier than the first plan over breakpoints."""
    books = Books.empty(NETWORK)
    for number, (v, units, start, length) in enumerate(taken):
        table = books.cpus[v]
        assert table is not None
        table.reserve(number, units, Term(start, start + length), force=True)
    shape, planner = shape_of(pair(cpus)), FramePlanner(books)
    policy = Policy(sort="start", best_only=True)
    quick = planner.plan(shape, FrameWindow(est=0, lst=60, duration=duration, mode="breakpoints"), policy)
    every = planner.plan(shape, FrameWindow(est=0, lst=60, duration=duration, count=61), policy)
    assert [plan.start for plan in quick.plans] == [plan.start for plan in every.plans]


def test_plans_are_sorted_by_what_the_user_wants() -> None:
    """By start the earliest first; by value the cheapest first, the earlier one of equals."""
    books = Books.empty(NETWORK)
    books.links[0].reserve("l", 2, Term(0, 10))
    books.links[1].reserve("l", 2, Term(0, 10))
    books.links[2].reserve("l", 2, Term(0, 10))
    window = FrameWindow(est=0, lst=20, duration=5, count=3)
    by_start = FramePlanner(books).plan(shape_of(pair()), window)
    by_value = FramePlanner(books).plan(shape_of(pair()), window, Policy(sort="value"))
    assert [(plan.start, plan.outcome.cost) for plan in by_start.plans] == [(0, 15), (10, 14), (20, 14)]
    assert [plan.start for plan in by_value.plans] == [10, 20, 0]


@pytest.mark.parametrize("sort", ["start", "value"])
def test_the_best_alone_is_the_first_of_all(sort: str) -> None:
    """Planning only for the best plan finds the plan that comes first among all."""
    books = booked((A, 6, 0, 30), (B, 6, 12, 50), (C, 4, 25, 60))
    window = FrameWindow(est=0, lst=60, duration=7, count=9, mode="both")
    policy = attrs.evolve(Policy(), sort=sort, load_balancing=True)
    whole = FramePlanner(books).plan(shape_of(pair(2)), window, policy)
    best = FramePlanner(books).plan(shape_of(pair(2)), window, attrs.evolve(policy, best_only=True))
    first = min(best.plans, key=lambda plan: plan.start if sort == "start" else (plan.outcome.cost, plan.start))
    assert first[:1] == whole.plans[0][:1] and first.outcome[:5] == whole.plans[0].outcome[:5]


def test_frames_that_see_the_same_share_a_solution() -> None:
    """Starts that differ only in what does not matter to the request are solved once."""
    books = booked((A, 1, 10, 20), (B, 2, 30, 40))
    planned = FramePlanner(books).plan(shape_of(pair(4)), FrameWindow(est=0, lst=90, duration=5))
    assert (planned.looked_at, planned.solved) == (10, 1)
    assert sites(planned) == [(start, "AB") for start in range(0, 91, 10)]


def test_a_fraction_is_rounded_down_to_whole_units() -> None:
    """Half of 7 CPUs is 3, half of a bandwidth of 1 is none: that user sees no link."""
    books = booked((A, 1, 0, 100))
    policy = Policy(fraction=Fraction(1, 2))
    free = books.free(Term(0, 10), policy)
    assert free.cpus == (3, 4, 2, 0) and free.bw == (1, 1, 1, 0)
    shown = FramePlanner(books).plan(shape_of(pair(4)), FrameWindow(est=0, lst=0, duration=10), policy)
    assert not shown.plans and shown.refused[0].outcome is not None


def test_load_balancing_makes_loaded_sites_dear() -> None:
    """Option A: a CPU's value is 1 + floor(99 x reserved / capacity) at the frame, whatever it was."""
    books = booked((A, 4, 0, 100), (B, 1, 0, 50))
    policy = Policy(load_balancing=True, sort="value")
    assert books.free(Term(0, 10), policy).vc == (1 + 49, 1 + 12, 1, 1)
    planned = FramePlanner(books).plan(shape_of(pair(2)), FrameWindow(est=0, lst=50, duration=10, count=2), policy)
    assert sites(planned) == [(50, "BC"), (0, "BC")]


def test_preferred_sites_are_taken_first() -> None:
    """Option B: weights by pattern of names, the first that fits; others keep their value."""
    values = NETWORK.preferred({"C": 1, "[BC]": 5, "A": 100})
    assert values == (100, 5, 1, 1)
    planned = FramePlanner(Books.empty(NETWORK)).plan(
        shape_of(pair(2)), FrameWindow(est=0, lst=0, duration=10), Policy(values=values)
    )
    assert sites(planned) == [(0, "BC")]


def test_reserving_a_plan_takes_all_of_it_or_nothing() -> None:
    """What a plan uses is taken on every link of its paths; where a part is gone meanwhile the rest is untouched."""
    books = Books.empty(NETWORK)
    shape = shape_of(pair(4, 2))
    plan = FramePlanner(books).plan(shape, FrameWindow(est=0, lst=0, duration=10)).plans[0]
    books.reserve("one", shape, plan, 10)
    free = books.free(Term(0, 10))
    assert free.cpus == (4, 4, 4, 0) and free.bw == (0, 0, 2, 1)
    with pytest.raises(Shortfall):
        books.reserve("two", shape, plan, 10)
    assert books.free(Term(0, 10)) == free
    books.release("one", shape, plan)
    assert books.free(Term(0, 10)) == Books.empty(NETWORK).free(Term(0, 10))


def test_an_overlay_leaves_the_books_as_they_are() -> None:
    """A what-if view takes reservations that the books never see."""
    books = Books.empty(NETWORK)
    shape = shape_of(pair())
    plan = FramePlanner(books).plan(shape, FrameWindow(est=0, lst=0, duration=10)).plans[0]
    view = books.overlay()
    view.reserve("one", shape, plan, 10)
    assert view.free(Term(0, 10)).cpus[A] == 4 and books.free(Term(0, 10)).cpus[A] == 8


def test_when_time_runs_out_the_rest_is_refused_as_not_looked_at() -> None:
    """Starts that were not reached have no outcome; those that were keep theirs."""
    left = iter([5.0] * 8)
    policy = Policy(limits=SolveLimits(remaining=lambda: next(left, 0.0)))
    planned = FramePlanner(booked((A, 5, 0, 15), (B, 5, 10, 40))).plan(
        shape_of(pair(4)), FrameWindow(est=0, lst=90, duration=5), policy
    )
    assert planned.refused and planned.refused[-1].outcome is None
    assert len(planned.plans) + len(planned.refused) == 10
