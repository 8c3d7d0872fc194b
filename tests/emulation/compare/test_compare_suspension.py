"""Work that is suspended on its way through a mapper: what is left of it, when it goes on, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import BrokerCycle, Grant, Preempt
from leasekit.core.time import INSTANT_MAX, SECOND, Term
from leasekit.emulation.compare.drive import REFUSED, DriveOutcome, drive
from leasekit.emulation.compare.measures import measure
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.compare.works import Work
from leasekit.policies.broker.waiting import Backfill, BackfillSettings

TEN = Saving(memory=10, rate=1000)
"""Takes 10 ms."""


class By:
    """A mapper that decides as a function says, and keeps what it was shown."""

    def __init__(self, decide: Callable[[BrokerCycle], Iterator[Any]]) -> None:
        self._decide = decide
        self.cycles: list[BrokerCycle] = []

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """As the function says."""
        self.cycles.append(cycle._replace(requests=list(cycle.requests)))
        return list(self._decide(cycle))


def best_effort(submit: int, run: int, units: int = 1, estimate: int = 0, latest: int | None = None) -> Work:
    """Best effort, which can be suspended."""
    estimate = estimate or run
    last = INSTANT_MAX - estimate if latest is None else latest
    return Work(f"{submit}", "h", submit, submit, last, estimate, run, units, "be")


def reservation(submit: int, start: int, run: int, units: int = 1) -> Work:
    """An advance reservation."""
    return Work(f"{submit}", "h", submit, start, start, run, run, units, "ar")


def in_parts(length: int) -> Callable[[BrokerCycle], Iterator[Any]]:
    """Grants parts of that length, with the time that is needed to come back before it."""

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        for request in cycle.requests:
            (source,) = cycle.sources("node")
            back = 10 if "resumes" in request.properties else 0
            start = cycle.now + back
            end = start + min(length, request.term.length)
            yield Grant(request.lease, source.id, request.units, Term(start, end), preemptible=True, prepare=back)

    return decide


def test_a_part_is_followed_by_its_rest() -> None:
    """Of a part the last moments go to saving; the rest asks again when its guest hears of that, for what is left."""
    mapper = By(in_parts(40))
    outcome = drive([best_effort(0, 80, estimate=100)], 2, mapper, saving=TEN)
    assert outcome.suspended == {0: [Term(0, 30), Term(50, 80), Term(100, 120)]}
    assert list(outcome.starts) == [0]
    assert outcome.suspensions == 2
    rests = [cycle.requests[0] for cycle in mapper.cycles]
    assert [rest.term for rest in rests] == [Term(0, 100), Term(40, 110), Term(90, 130)]
    assert rests[0].properties["suspend"] == "10ms"
    assert rests[1].properties.items() >= {"suspend": "10ms", "prepare": "10ms", "resumes": rests[0].lease}.items()
    assert rests[2].properties["resumes"] == rests[1].lease
    assert rests[1].site == "nodes"
    assert all(rest.preemptible for rest in rests)


def test_what_runs_is_suspended_for_others() -> None:
    """A lease that is suspended by an instant runs until there is just time to save it, and goes on afterwards."""

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        for request in cycle.requests:
            (source,) = cycle.sources("node")
            back, (start, end) = 10 if "resumes" in request.properties else 0, request.term
            if source.free.available(Term(start, end + back)) >= request.units:
                term = Term(start + back, end + back)
                yield Grant(request.lease, source.id, request.units, term, request.preemptible, back)
            elif not request.preemptible:
                for lease in cycle.granted("node"):
                    if lease.preemptible and lease.booked > request.term.start:
                        assert lease.properties["suspend"] == "10ms"
                        yield Preempt(lease.lease, request.term.start, suspend=True)

    mapper = By(decide)
    outcome = drive([best_effort(0, 100, 2), reservation(20, 50, 30, 2)], 2, mapper, saving=TEN)
    assert outcome.suspended == {0: [Term(0, 40), Term(90, 150)]}
    assert list(outcome.starts) == [0, 50]
    assert mapper.cycles[-1].requests[0].term.length == 100 - 40


def test_work_that_is_done_by_then_is_not_suspended() -> None:
    """A lease whose work ends before it would be saved ends by itself."""

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        (source,) = cycle.sources("node")
        if cycle.now == 10:
            yield from (Preempt(one.lease, 50, suspend=True) for one in cycle.granted("node") if one.term.end == 100)
        for request in cycle.requests:
            yield Grant(request.lease, source.id, request.units, request.term, preemptible=True)

    outcome = drive([best_effort(0, 30, estimate=100), best_effort(10, 5)], 2, By(decide), saving=TEN)
    assert list(outcome.starts) == [0, 10]
    assert (outcome.suspended, outcome.suspensions, outcome.mapper_errors) == ({}, 0, {})


def test_what_is_not_resumed_in_time_is_refused() -> None:
    """Work that is suspended and can't be done by its deadline any more counts as refused, whatever it has done."""

    def once(cycle: BrokerCycle) -> Iterator[Any]:
        if cycle.now == 0:
            yield from in_parts(40)(cycle)

    outcome = drive([best_effort(0, 100, latest=20), best_effort(500, 1)], 1, By(once), saving=TEN)
    assert outcome.starts[0] == REFUSED
    assert outcome.reasons[0] == "suspended, and not resumed: not granted in time"
    assert outcome.suspended == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            lambda first, second: Preempt(second, 80, suspend=True),
            "can't be suspended: it doesn't say how long that takes",
        ),
        (lambda first, second: Preempt(first, 25, suspend=True), "by @{25}: that takes 10 from @{20} on"),
        (lambda first, second: Preempt(first, 100, suspend=True), "ends at @{100}: at is @{100}"),
        (lambda first, second: Preempt("7", 80, suspend=True), "lease '7' holds nothing that could be taken"),
    ],
)
def test_what_can_not_be_suspended_goes_on(wrong: Callable[[str, str], Preempt], told: str) -> None:
    """Only best effort that runs, and that there is time to save."""

    def decide(cycle: BrokerCycle) -> Iterator[Any]:
        (source,) = cycle.sources("node")
        if cycle.now == 20:
            yield wrong(*(lease.lease for lease in cycle.granted("node")))
        for request in cycle.requests:
            yield Grant(request.lease, source.id, request.units, request.term, preemptible=request.preemptible)

    works = [best_effort(0, 100), reservation(5, 5, 100), best_effort(20, 5)]
    lines: list[str] = []
    outcome = drive(works, 4, By(decide), saving=TEN, tell=lines.append)
    assert list(outcome.starts) == [0, 5, 20]
    assert outcome.mapper_errors == {"decision not carried out": 1}
    assert told in lines[0]


def test_saving_takes_memory_over_rate() -> None:
    """A gigabyte at 32 MB a second takes 32 s, as Haizea has it."""
    assert Saving().time == 32 * SECOND
    assert Saving(memory=256, rate=64).time == 4 * SECOND
    with pytest.raises(ValueError, match="rate"):
        Saving(rate=0)


def test_measures_count_what_ran() -> None:
    """Slowdown counts up to the end, time in between included; utilisation only the time in which it ran."""
    works = [best_effort(0, 80_000), best_effort(200_000, 1000)]
    saving = Saving(memory=10, rate=1)
    outcome = drive(works, 1, By(parts_of_40_s), saving=saving)
    assert outcome.suspended == {0: [Term(0, 30_000), Term(50_000, 80_000), Term(100_000, 120_000)]}
    summary = measure("m", works, 1, outcome).summary
    assert summary["mean_wait_s"] == 0
    assert summary["mean_bounded_slowdown"] == pytest.approx((120 / 80 + 1) / 2)
    assert summary["utilisation"] == pytest.approx(80 / 200)
    assert summary["measured"]["suspensions"] == 2


def parts_of_40_s(cycle: BrokerCycle) -> Iterator[Any]:
    """Parts of 40 s, of which 10 go to saving, and 10 before each to coming back."""
    for request in cycle.requests:
        start = cycle.now + (10_000 if "resumes" in request.properties else 0)
        term = Term(start, start + min(40_000, request.term.length))
        (source,) = cycle.sources("node")
        yield Grant(request.lease, source.id, 1, term, preemptible=True, prepare=start - cycle.now)


WORKS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 120), st.integers(0, 60), st.integers(1, 4), st.integers(-200, 120)),
    max_size=25,
)  # fmt: skip


def drawn_works(drawn: list[tuple[int, int, int, int, int]]) -> list[Work]:
    """Reservations and best effort, which may take less than it asks for."""
    now, works = 0, []
    for gap, run, extra, units, ahead in drawn:
        now += gap
        if ahead >= 0:
            works.append(reservation(now, now + ahead, run, units))
        else:
            works.append(best_effort(now, run, units, run + extra))
    return works


def check_stretches(works: list[Work], outcome: DriveOutcome, units: int) -> None:
    """All that was granted ran for as long as it takes, nowhere with more units than there are."""
    spans = []
    for number, work in enumerate(works):
        if outcome.starts[number] == REFUSED:
            continue
        plain = [Term(outcome.starts[number], outcome.starts[number] + work.run)]
        terms = outcome.suspended.get(number, plain)
        assert terms[0].start == outcome.starts[number] >= work.start
        assert sum(term.length for term in terms) == work.run
        assert work.kind == "be" or terms == plain == [Term(work.start, work.start + work.run)]
        assert all(later.start - sooner.end >= 2 * TEN.time for sooner, later in pairwise(terms))
        spans += [(*term, work.units) for term in terms]
    for at in {start for start, _, _ in spans}:
        assert sum(many for start, end, many in spans if start <= at < end) <= units


@given(WORKS, st.sampled_from(["easy", "conservative", "strict"]), st.sampled_from(["serial", "all"]))
def test_backfill_with_suspension_keeps_the_rules(
    drawn: list[tuple[int, int, int, int, int]], mode: Any, which: Any
) -> None:
    """Whatever is suspended when: nothing is overbooked, reservations run when they asked to, all work is done in full,
    and no best effort is lost.
    """
    works = drawn_works(drawn)
    chosen = BackfillSettings(mode=mode, suspension=which, least_run=15)
    outcome = drive(works, 4, Backfill(chosen), saving=TEN)
    check_stretches(works, outcome, 4)
    assert all(outcome.starts[number] != REFUSED for number, work in enumerate(works) if work.kind == "be")
    assert all(works[number].units == 1 for number in outcome.suspended if which == "serial")
