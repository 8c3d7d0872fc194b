"""A workload through a mapper: what is shown when, and what comes of what is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import BrokerCycle, Defer, Grant, Preempt, Reject, Wake
from leasekit.core.time import INSTANT_MAX, Term
from leasekit.emulation.compare.drive import REFUSED, drive
from leasekit.emulation.compare.works import Work
from leasekit.policies.broker.fcfs import Fcfs

Decide = Callable[[BrokerCycle], Iterator[Any]]


class By:
    """A mapper that decides as a function says, and remembers which works it was shown."""

    inline = True

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self.shown: list[tuple[int, list[str]]] = []

    def allocate(self, cycle: BrokerCycle) -> Iterator[Any]:
        """As the function says."""
        self.shown.append((cycle.now, [number(request.lease) for request in cycle.requests]))
        return self._decide(cycle)


def number(lease: str) -> int:
    """Which of its guest's leases it is, from 0 on: here a guest asks for nothing twice."""
    return int(lease.rpartition("-")[2]) - 1


def work(submit: int, run: int, units: int = 1, estimate: int = 0, latest: int | None = None) -> Work:
    """Best effort, but with ``latest`` as its latest start."""
    estimate = estimate or run
    last = INSTANT_MAX - estimate if latest is None else latest
    return Work(f"{submit}", "h", submit, submit, last, estimate, run, units, "be")


def in_order(cycle: BrokerCycle) -> Iterator[Any]:
    """Strictly first come, first served; comes back when the first in line can start."""
    (source,) = cycle.sources("node")
    for request in cycle.requests:
        if source.free.available(request.term) < request.units:
            start = source.free.earliest(request.units, request.term.length, cycle.now, source.term.end // 2)
            assert start is not None
            yield Wake(start)
            return
        source.free.reserve(request.lease, request.units, request.term)
        yield Grant(request.lease, source.id, request.units, request.term)


def test_early_ends_make_room() -> None:
    """Work that is done before its estimate ends its lease; whoever waits is looked at in the same instant."""
    mapper = By(in_order)
    outcome = drive([work(0, 30, 4, estimate=100), work(1, 10, 4), work(1, 5, 4)], 4, mapper)
    assert list(outcome.starts) == [0, 30, 40]
    assert mapper.shown == [(0, [0]), (1, [1, 2]), (30, [1, 2]), (40, [2])]
    assert (outcome.turns, outcome.deepest) == (4, 2)


def test_an_end_in_time_is_news_too() -> None:
    """A term that ends makes room: a broker looks at those that wait, also for a mapper that asked for no Wake."""

    def never_asks(cycle: BrokerCycle) -> Iterator[Any]:
        return (each for each in in_order(cycle) if not isinstance(each, Wake))

    outcome = drive([work(0, 30, 4), work(1, 10, 4)], 4, By(never_asks))
    assert list(outcome.starts) == [0, 30]


def test_who_is_never_granted_waits_no_longer_than_anything_happens() -> None:
    """A mapper that does nothing, and asks for nothing, leaves all that it is shown waiting."""
    outcome = drive([work(0, 30, 4)], 4, By(lambda cycle: iter(())))
    assert list(outcome.starts) == [REFUSED]
    assert outcome.reasons == {0: "never decided"}


def test_terms_begin_now_for_those_that_wait() -> None:
    """A request that waits is shown with a term that begins now, of the length that it asked for."""
    terms: list[Term] = []

    def look(cycle: BrokerCycle) -> Iterator[Any]:
        terms.extend(request.term for request in cycle.requests if number(request.lease) == 1)
        return in_order(cycle)

    drive([work(0, 30, 4), work(5, 10, 4)], 4, By(look))
    assert terms == [Term(5, 15), Term(30, 40)]


def test_a_reservation_stands_and_its_rest_comes_back() -> None:
    """A grant for later holds its place, and what is left of it when the work is done is free again."""

    def late(cycle: BrokerCycle) -> Iterator[Any]:
        (source,) = cycle.sources("node")
        for request in cycle.requests:
            start = source.free.earliest(request.units, request.term.length, cycle.now + 50, 10**9)
            assert start is not None
            term = Term(start, start + request.term.length)
            source.free.reserve(request.lease, request.units, term)
            yield Grant(request.lease, source.id, request.units, term)

    outcome = drive([work(0, 10, 2, estimate=100), work(70, 10, 2), work(100, 10, 2)], 2, By(late))
    assert list(outcome.starts) == [50, 120, 150]


def test_what_can_start_no_more_is_refused() -> None:
    """Past its latest start a request is gone, with the reason that its mapper gave last."""

    def defer(cycle: BrokerCycle) -> Iterator[Any]:
        return (Defer(request.lease, "not yet") for request in cycle.requests)

    outcome = drive([work(0, 10, latest=20), work(50, 10, latest=60)], 1, By(defer))
    assert list(outcome.starts) == [REFUSED, REFUSED]
    assert outcome.reasons == {0: "not granted in time: not yet", 1: "not granted in time: not yet"}


def test_what_runs_is_shown() -> None:
    """``granted`` lists what holds units; ``usage`` is kept for who wants it, with what was given back left out."""
    seen: list[tuple[int, list[int], list[tuple[Term, int]]]] = []

    class Looks(By):
        wants_usage = True

    def look(cycle: BrokerCycle) -> Iterator[Any]:
        assert cycle.usage is not None
        used = list(cycle.usage.held("h", "node", Term(0, 1000)))
        seen.append((cycle.now, [number(lease.lease) for lease in cycle.granted("node")], used))
        return in_order(cycle)

    drive([work(0, 30, 2, estimate=100), work(40, 10, 1), work(60, 10, 1)], 4, Looks(look))
    assert seen == [
        (0, [], []),
        (40, [], [(Term(0, 30), 2)]),
        (60, [], [(Term(0, 30), 2), (Term(40, 50), 1)]),
    ]


@pytest.mark.parametrize(
    ("wrong", "kind", "told"),
    [
        (lambda c, a, b: Grant("h-9", "nodes", 1, a.term), "decision not carried out", "no request of lease 'h-9'"),
        (lambda c, a, b: Grant(a.lease, "x", 1, a.term), "decision not carried out", "source 'x' has no 'node'"),
        (lambda c, a, b: Grant(a.lease, c, 2, a.term), "decision not carried out", "2 units were granted, 1 to 1"),
        (lambda c, a, b: Grant(a.lease, c, 1, Term(5, 9)), "decision not carried out", "is not what was asked for"),
        (lambda c, a, b: Grant(a.lease, c, 1, Term(3, 13)), "decision not carried out", "is not what was asked for"),
        (lambda c, a, b: Grant(b.lease, c, 4, b.term), "decision not carried out", "it would overbook: 3 units"),
        (lambda c, a, b: Reject("h-9", "no"), "decision not carried out", "no request of lease 'h-9' is waiting"),
        (lambda c, a, b: Preempt(a.lease, 7), "decision not carried out", "holds nothing that could be taken"),
        (lambda c, a, b: "yes", "decision malformed", "'yes' is no decision of the broker mapper"),
        (lambda c, a, b: 1 // 0, "turn failed", "ZeroDivisionError"),
    ],
)
def test_what_can_not_be_carried_out_is_told(wrong: Callable[..., Any], kind: str, told: str) -> None:
    """A wrong decision is counted and told in a line, and the broker goes on: to what else was decided, or to the next
    turn.
    """

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        (source,) = cycle.sources("node")
        if cycle.now == 5 and len(cycle.requests) == 3:
            first, second, third = cycle.requests
            yield Grant(third.lease, source.id, third.units, third.term)
            yield wrong(source.id, first, second)
            return
        yield from in_order(cycle)

    lines: list[str] = []
    outcome = drive([work(5, 10), work(5, 10, 4), work(5, 10, 1)], 4, By(decide), tell=lines.append)
    assert outcome.mapper_errors == {kind: 1}
    (line,) = lines
    assert line.startswith("broker, mapper By, after 0s: ")
    assert told in line
    assert REFUSED not in outcome.starts
    assert (outcome.starts[2] == 5) == (kind != "turn failed")


def test_preempted_work_that_is_not_suspended_is_lost() -> None:
    """A broker ends what it preempts, unless the mapper says that it is to be suspended."""

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        if cycle.now == 20:
            yield from (
                Preempt(lease.lease, 25, "others need it") for lease in cycle.granted("node") if lease.term.end == 100
            )
        (source,) = cycle.sources("node")
        for request in cycle.requests:
            yield Grant(request.lease, source.id, request.units, request.term, preemptible=True)

    outcome = drive([work(0, 100), work(20, 10)], 2, By(decide))
    assert list(outcome.starts) == [REFUSED, 20]
    assert outcome.reasons == {0: "broker ends it early: others need it"}
    assert outcome.suspensions == 0


def test_no_nodes() -> None:
    """A pool has at least one unit."""
    with pytest.raises(LeasekitError, match="nodes: found 0"):
        drive([work(0, 1)], 0, By(in_order))


WORKS = st.lists(
    st.builds(
        lambda gap, run, extra, units: (gap, run, run + extra, units),
        st.integers(0, 20), st.integers(1, 50), st.integers(0, 50), st.integers(1, 4),
    ),
    max_size=30,
)  # fmt: skip


@given(WORKS, st.sampled_from(["strict", "fcfs"]))
def test_never_more_runs_than_there_is(drawn: list[tuple[int, int, int, int]], which: str) -> None:
    """At every instant what runs fits, everything starts, nothing before it was submitted, and twice is the same."""
    now, works = 0, []
    for gap, run, estimate, units in drawn:
        now += gap
        works.append(work(now, run, units, estimate))
    mappers: dict[str, Callable[[], Any]] = {"strict": lambda: By(in_order), "fcfs": Fcfs}
    outcome = drive(works, 4, mappers[which]())
    assert outcome.starts == drive(works, 4, mappers[which]()).starts
    spans = [(start, start + each.run, each.units) for start, each in zip(outcome.starts, works, strict=True)]
    assert all(start >= each.submit for (start, _, _), each in zip(spans, works, strict=True))
    for at in {start for start, _, _ in spans}:
        assert sum(units for start, end, units in spans if start <= at < end) <= 4
