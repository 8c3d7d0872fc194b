"""Turns with very many requests: ways to be fast that must not show in what is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from broker_cycles import FAR, Books, decayed, request
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import BrokerCycle, PendingRequest
from leasekit.core.profile import Ledger
from leasekit.core.time import Term
from leasekit.policies.broker import capacity
from leasekit.policies.broker.fair_share import FairShareSettings, _ByShare
from leasekit.policies.broker.turn import GrantedToo
from leasekit.policies.registry import make_mapper

WISHES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(1, 40), st.booleans(), st.sampled_from("xyz")),
    min_size=1,
    max_size=40,
)
HELD = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(1, 40)), max_size=5)
MAPPERS: Mapping[str, Mapping[str, Any]] = {
    "backfill": {},
    "backfill ": {"mode": "conservative"},
    "fcfs": {},
    "timetable": {},
    "fair_share": {},
    "preemption": {},
    "priority": {"order": "shortest"},
}


def cycle_of(drawn: list[tuple[int, int, int, bool, str]], held: list[tuple[int, int, int]]) -> BrokerCycle:
    """Requests of all kinds at two sites that have something leased already."""
    books = Books({"a": 6, "b": 9})
    for number, (units, start, length) in enumerate(held):
        table = books.tables["ab"[number % 2]]
        if table.available(Term(start, start + length)) >= units:
            books.book("ab"[number % 2], f"held{number}", units, start, start + length)
    wishes: list[PendingRequest] = []
    for number, (units, start, length, waits, holder) in enumerate(drawn):
        begin = start if start > 20 or not waits else 0
        latest = FAR // 2 if waits else begin
        wishes.append(
            request(f"l{number}", units, begin, begin + length, latest_start=latest, arrived=number, holder=holder)
        )
    return books.cycle(*wishes)


@given(WISHES, HELD, st.sampled_from(sorted(MAPPERS)))
def test_a_flat_copy_changes_no_decision(
    drawn: list[tuple[int, int, int, bool, str]], held: list[tuple[int, int, int]], name: str
) -> None:
    """Whether a turn goes on with a flat copy of what is free, from the second booking on or never, decides nothing."""
    found = []
    for first in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(capacity, "FLATTEN_FROM", first)
            patch.setattr(capacity, "COPY_FROM", first)
            mapper = make_mapper(name.strip(), "broker", MAPPERS[name], "mapper", {})
            found.append(list(mapper.allocate(cycle_of(drawn, held))))
    assert found[0] == found[1]


USES = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 500), st.integers(1, 9)), max_size=20)


@given(USES, st.lists(st.integers(0, 700), max_size=12))
def test_past_use_is_the_same_summed_up_step_by_step(uses: list[tuple[int, int, int]], steps: list[int]) -> None:
    """What a holder has had, carried on from turn to turn, is what it comes to when all of it is looked at anew."""
    half_life = 400
    order = _ByShare(FairShareSettings(half_life=half_life))
    ledger, now = Ledger(), 0
    for start, length, units in uses:
        ledger.add("x", "vm", units, Term(start, start + length))
    for step in steps:
        now += step
        expected = decayed(ledger, "x", "vm", now, half_life)
        # What ended ten half-lives ago counts for less than a thousandth, and one of the two may still count it.
        slack = sum(units * length for _, length, units in uses) / 2**9
        assert order._had(ledger, "x", "vm", now) == pytest.approx(expected, rel=1e-9, abs=slack)


@given(USES, USES)
def test_what_a_turn_grants_is_added_up_as_it_comes(
    uses: list[tuple[int, int, int]], more: list[tuple[int, int, int]]
) -> None:
    """An account with what this turn has granted is the sum of both, whenever it is looked at in between."""
    before, both = Ledger(), Ledger()
    for start, length, units in uses:
        before.add("x", "vm", units, Term(start, start + length))
        both.add("x", "vm", units, Term(start, start + length))
    turn = GrantedToo(BrokerCycle(0, [], [], lambda _: [], usage=before))
    for start, length, units in more:
        turn.add("x", "vm", units, Term(start, start + length))
        both.add("x", "vm", units, Term(start, start + length))
        window = Term(start // 2, start + 700)
        assert list(turn.held("x", "vm", window)) == list(both.held("x", "vm", window))
    assert list(turn.held("y", "vm", Term(0, 5000))) == []
