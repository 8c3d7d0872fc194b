"""Who makes room, by the broker's mapper ``preemption``: against every set of leases, millisecond by millisecond."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from broker_cycles import Books, request
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import BrokerCycle, Defer, Grant, GrantedLease, PendingRequest, Reject, Wake
from leasekit.core.time import Term
from leasekit.policies.broker import preemption
from leasekit.policies.broker.preemption import PreemptionMapper, PreemptionSettings
from leasekit.policies.preempting.victims import TABLE_MAX

UNITS = 6


def held(lease: str, units: int, start: int, end: int, **changes: Any) -> GrantedLease:
    """A lease of ``a/vm`` that can be ended at once."""
    lent = GrantedLease(lease, "holder", "a/vm", "vm", units, Term(start, end), True, 0, {}, end, (), start, 0)
    return lent._replace(**changes)


def decided(
    there: list[GrantedLease], *wishes: PendingRequest, units: int = UNITS, now: int = 0, **settings: Any
) -> list[Any]:
    """What a fresh mapper decides at a site with these leases."""
    books = Books({"a": units}, 1000)
    for one in there:
        books.book("a", one.lease, one.units, one.term.start, one.booked)
    cycle = books.cycle(*wishes)._replace(now=now, granted=lambda type_: there)
    return PreemptionMapper(PreemptionSettings(**{"period": 50, **settings})).allocate(cycle)


def names(decision: Any) -> list[str]:
    """Who makes room."""
    assert isinstance(decision, Grant), decision
    return [one.lease for one in decision.victims]


def test_the_cheapest_set_by_each_cost() -> None:
    """The period begins anew at 50: the lease that began at 0 has just begun one. Costs differ, so do victims."""
    there = [held("old", 2, 0, 300, priority=1), held("mid", 2, 20, 300), held("big", 2, 45, 300)]
    wish = request("r", 2, 60, 100, priority=1)
    for cost, expected in (("period", ["old"]), ("lost_work", ["big"]), ("count", ["big"]), ("priority", ["big"])):
        (decision,) = decided(there, wish, now=60, cost=cost)
        assert names(decision) == expected, cost
        assert decision.victims[0].at == 60 and decision.term == Term(60, 100) and decision.source == "a/vm"
    one = held("one", 1, 20, 300)
    (decision,) = decided([*there[:1], one, held("two", 3, 20, 300)], request("r", 1, 60, 100), now=60, cost="price")
    assert names(decision) == ["one"], "each unit has its price"


@pytest.mark.parametrize(
    "wish",
    [
        request("r", 2, 0, 50),
        request("r", 3, 0, 50, latest_start=400),
        request("r", 3, 0, 50, preemptible=True),
        request("r", 3, 0, 50, priority=-1),
        request("r", 9, 0, 50),
        request("r", 3, 0, 50, site="b"),
        request("r", 3, 0, 50, op="extend", source="a/vm"),
    ],
    ids=["there is room", "later", "preemptible", "of a lower class", "too many", "another site", "an extend"],
)
def test_nobody_leaves(wish: PendingRequest) -> None:
    """Where there is room within the window, or others need not make any, the decision is that of ``fcfs``."""
    (decision,) = decided([held("old", 4, 0, 300)], wish)
    assert not isinstance(decision, Grant) or (decision.victims == () and decision.term.start >= wish.term.start)


def test_notice_and_least_run() -> None:
    """A fixed start that is too soon is refused; one that can wait gets the first instant at which enough have left."""
    there = [held("a", 3, 0, 900, since=0, ends_from=130), held("b", 3, 0, 900, since=0, ends_from=180)]
    (decision,) = decided(there, request("r", 3, 120, 200), now=100)
    assert isinstance(decision, Reject)
    for units, start, victims in ((3, 130, ["a"]), (4, 180, ["a", "b"])):
        (decision,) = decided(there, request("r", units, 120, 200, latest_start=190), now=100)
        assert names(decision) == victims and decision.term == Term(start, start + 80)
    coming = [held("c", 6, 500, 900, ends_from=130)]
    (decision,) = decided(coming, request("r", 6, 450, 600), now=100)
    assert names(decision) == ["c"] and decision.victims[0].at == 450, "it will not have begun"


def test_who_ends_within_the_term_counts_for_a_part_of_it() -> None:
    """Two that follow each other make as much room as one that goes on, and one of them makes none."""
    there = [held("x1", 2, 0, 50), held("x2", 2, 50, 300), held("y", 4, 0, 300, priority=9)]
    (decision,) = decided(there, request("r", 2, 10, 100, priority=1), now=10)
    assert names(decision) == ["x1", "x2"]


def test_while_a_site_has_not_accepted_nobody_else_leaves() -> None:
    """The second request of a turn waits; so does one that finds that somebody was ended before."""
    there = [held("a", 3, 0, 300), held("b", 3, 0, 300)]
    first, second = decided(there, request("r", 2, 5, 100), request("s", 2, 5, 100), now=5)
    assert len(names(first)) == 1
    assert isinstance(second, Defer) and "accepted" in second.reason
    leaving = there[0]._replace(term=Term(0, 200), ending=True)
    (decision,) = decided([leaving, there[1]], request("r", 2, 5, 100), now=5)
    assert isinstance(decision, Defer)
    accepted = leaving._replace(booked=200)
    (decision,) = decided([accepted, there[1]], request("r", 2, 5, 100), now=5)
    assert names(decision) == ["b"], "who was ended before is not ended again"


def test_the_budget_of_a_holder() -> None:
    """Two of the three cheapest are one holder's, who may have one on its way out."""
    mine = [held(f"m{number}", 2, 90 + number, 300) for number in range(2)]
    there = [*mine, held("y", 2, 60, 300, holder="other")]
    wish = request("r", 4, 95, 200)
    (free,) = decided(there, wish, now=95)
    assert names(free) == ["m0", "m1"]
    (decision,) = decided(there, wish, now=95, budget=1)
    assert names(decision) == ["m1", "y"]
    (decision,) = decided(there, wish, now=95, budget=0)
    assert isinstance(decision, Reject)
    gone = [mine[0]._replace(ending=True, term=Term(90, 250), booked=250), *there[1:]]
    (decision,) = decided(gone, request("r", 2, 95, 200), now=95, budget=1)
    assert names(decision) == ["y"]


LEASES = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(0, 9), st.integers(11, 40), st.integers(0, 2), st.integers(0, 14),
        st.sampled_from("xy"),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(LEASES, st.integers(1, 6), st.integers(1, 25), st.integers(0, 8), st.integers(0, 1), st.none() | st.just(2))
def test_no_set_of_leases_is_better(
    drawn: list[tuple[int, int, int, int, int, str]], units: int, length: int, window: int, priority: int,
    budget: int | None,
) -> None:  # fmt: skip
    """Earliest start, then cost, then count, then names: the best of all sets, or none if there is none."""
    there: list[GrantedLease] = []
    for number, (size, start, end, above, notice, holder) in enumerate(drawn if budget is None else drawn[:TABLE_MAX]):
        taken = [sum(one.units for one in there if one.term.start <= at < one.term.end) for at in range(start, end)]
        if max(taken) + size <= UNITS:
            more = {"priority": above, "ends_from": 10 + notice, "holder": holder}
            there.append(held(f"l{number}", size, start, end, **more))
    wish = request("r", units, 10, 10 + length, latest_start=10 + window, priority=priority)
    (decision,) = decided(there, wish, now=10, period=7, **({} if budget is None else {"budget": budget}))
    best = _best(there, wish, budget)
    if best is None or not best[3]:
        assert not isinstance(decision, Grant) or not decision.victims
    else:
        assert (decision.term.start, tuple(names(decision))) == (best[0], best[3])


def _best(
    there: list[GrantedLease], wish: PendingRequest, budget: int | None
) -> tuple[int, int, int, tuple[str, ...]] | None:
    """By trying all: start, cost, count and names; without names if nobody need leave at some start."""
    starts = range(wish.term.start, wish.latest_start + 1)
    for victims in (False, True):
        for start in starts:
            able = [one for one in there if one.priority <= wish.priority and one.ends_from <= start < one.term.end]
            found = []
            for count in range(len(able) + 1) if victims else (0,):
                for chosen in combinations(able, count):
                    of = Counter(one.holder for one in chosen)
                    stay = [one for one in there if one not in chosen]
                    if (budget is None or all(each <= budget for each in of.values())) and all(
                        sum(one.units for one in stay if one.term.start <= at < one.term.end) + wish.units <= UNITS
                        for at in range(start, start + wish.term.length)
                    ):
                        cost = sum((start - one.since) % 7 for one in chosen)
                        found.append((start, cost, count, tuple(sorted(one.lease for one in chosen))))
            if found:
                return min(found)
    return None


def test_one_site_makes_room() -> None:
    """The one where it costs least; never two halves of two sites."""
    books = Books({"a": 4, "b": 4}, 1000)
    there = [held("dear", 4, 10, 300), held("cheap", 4, 20, 300, source="b/vm")]
    for one in there:
        books.book(one.source[0], one.lease, one.units, one.term.start, one.booked)
    for units, expected in ((3, ["cheap"]), (5, None)):
        cycle = books.cycle(request("r", units, 30, 100))._replace(now=30, granted=lambda type_: there)
        (decision,) = PreemptionMapper().allocate(cycle)
        assert (names(decision) if expected else isinstance(decision, Reject)) == (expected or True)


def test_many_leases_that_are_alike() -> None:
    """Among thousands the cheapest are found without a search through all."""
    there = [held(f"l{number:04}", 1, number % 50, 900 + number % 3) for number in range(4000)]
    (decision,) = decided(there, request("r", 5, 60, 100), units=4000, now=60)
    cheapest = sorted((60 - one.since) % 50 for one in there)[:5]
    assert [(60 - one.since) % 50 for one in there if one.lease in names(decision)] == cheapest


def test_without_a_search_there_is_enough_and_nobody_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where leases differ too much for a search, none of the victims can stay."""
    monkeypatch.setattr(preemption, "SEARCHED_MAX", 0)
    there = [held("a", 1, 9, 300), held("b", 2, 8, 300), held("c", 3, 7, 300)]
    for units in range(1, 7):
        (decision,) = decided(there, request("r", units, 10, 50), now=10)
        left = {one.lease: one.units for one in there if one.lease in names(decision)}
        assert sum(left.values()) >= units
        assert all(sum(left.values()) - each < units for each in left.values())


def test_a_cycle_without_leases() -> None:
    """Nobody there, nobody leaves."""
    books = Books({"a": 1})
    cycle: BrokerCycle = books.cycle(request("r", 2), request("s", 1))
    refused, granted = PreemptionMapper().allocate(cycle)
    assert isinstance(refused, Reject) and granted == Grant("s", "a/vm", 1, Term(0, 10))


def test_for_one_holder_so_many_leases_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other requests wait for a later turn, which comes; those of somebody else are looked at in this one."""
    monkeypatch.setattr(preemption, "LOOKED_AT_MAX", 40)
    there = [held(f"l{number:02}", 1, 0, 500) for number in range(40)]
    wishes = [request(f"r{number}", 1, 10, 100, holder="many", arrived=number) for number in range(3)]
    other = request("other", 1, 10, 100, holder="one", arrived=9)
    first, second, third, last, wake = decided(there, *wishes, other, units=40, now=10)
    assert len(names(first)) == 1
    assert all(isinstance(one, Defer) and one.again == 10 + preemption.REST for one in (second, third))
    assert isinstance(last, Defer) and not last.again and "accepted" in last.reason, "it was looked at"
    assert wake == Wake(10 + preemption.REST)
    assert [names(one) for one in decided(there, wishes[1], units=40, now=10)] == [names(first)]


def test_each_request_of_a_holder_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not looked at are next, before those that were and are shown as well; then nobody is waited for
    any more.
    """
    monkeypatch.setattr(preemption, "LOOKED_AT_MAX", 20)
    there = [held(f"l{number:02}", 1, 0, 500) for number in range(20)]
    firm = held("firm", 1, 0, 500, preemptible=False)
    books = Books({"a": 21}, 1000)
    for one in (*there, firm):
        books.book("a", one.lease, one.units, one.term.start, one.booked)
    wishes = [request(f"r{number}", 21 - number // 3, 10, 100, latest_start=20, arrived=number) for number in range(4)]
    mapper, waited = PreemptionMapper(), list[list[str]]()
    while True:
        cycle = books.cycle(*wishes)._replace(now=10, granted=lambda type_: [*there, firm])
        decisions = mapper.allocate(cycle)
        waited.append([one.lease for one in decisions if isinstance(one, Defer) and one.again])
        if not waited[-1]:
            break
    assert waited == [["r1", "r2", "r3"], ["r2", "r3"], ["r3"], []]
    assert len(names(decisions[-1])) == 20, "the last one can be had"


def test_what_all_do_not_leave_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all together leave too little in a part of the term nobody is tried, and others of the holder are next."""
    monkeypatch.setattr(preemption, "LOOKED_AT_MAX", 60)
    monkeypatch.setattr(preemption, "SEARCHED_MAX", 1)
    halves = [held(f"l{number:02}", 1, 0, 50) for number in range(10)]
    halves += [held(f"m{number:02}", 1, 50, 500, preemptible=number > 0) for number in range(10)]
    wishes = [request(name, 10, 10, 100, holder="many", arrived=number) for number, name in enumerate("abc")]
    assert [type(one) for one in decided(halves, *wishes, units=10, now=10)] == [Reject] * 3


def test_starts_are_tried_up_to_so_many_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that can wait for a start at which others have ended is looked at no longer than others."""
    there = [held(f"l{number:02}", 1, 0, 500, ends_from=20 + number) for number in range(20)]
    firm = held("firm", 1, 0, 60, preemptible=False)
    wish = request("r", 21, 10, 100, latest_start=400)
    (decision,) = decided([*there, firm], wish, units=21, now=10)
    assert isinstance(decision, Grant) and decision.term.start == 60
    monkeypatch.setattr(preemption, "LOOKED_AT_MAX", 40)
    (decision,) = decided([*there, firm], wish, units=21, now=10)
    assert isinstance(decision, Defer)


def test_so_many_leave_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the set is not searched for."""
    monkeypatch.setattr(preemption, "SEARCHED_MAX", 1)
    there = [held(f"l{number:02}", 1, 0, 500 + number) for number in range(40)]
    (decision,) = decided(there, request("r", 12, 10, 100), units=40, now=10)
    assert len(names(decision)) == 12
    monkeypatch.setattr(preemption, "ONE_BY_ONE_MAX", 11)
    (decision,) = decided(there, request("r", 12, 10, 100), units=40, now=10)
    assert isinstance(decision, Reject)
    (decision,) = decided(there, request("r", 11, 10, 100), units=40, now=10)
    assert len(names(decision)) == 11
