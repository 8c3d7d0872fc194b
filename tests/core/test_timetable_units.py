"""Per-unit occupancy, against a brute-force model and at its edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leasekit.core.time import Term
from leasekit.core.timetable import Shortfall, UnitConflict, UnitTimetable
from leasekit.core.timetable.units import Attributes

LINE = 60
NAMES = [f"h{i}" for i in range(8)]
KINDS = [{"rack": "a", "memory": "2"}, {"rack": "a", "memory": "10"}, {"rack": "b", "memory": "10"}]

keys = st.integers(0, 12)
terms = st.tuples(st.integers(0, LINE - 1), st.integers(1, 20)).map(lambda t: Term(t[0], min(t[0] + t[1], LINE)))
some_units = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)


def where_rack_a(attributes: Any) -> bool:
    return bool(attributes["rack"] == "a")


class AgainstModel(RuleBasedStateMachine):
    """Whatever is said and asked in whatever order, the timetable agrees with a plain dict of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = UnitTimetable()
        self.held: dict[Hashable, tuple[tuple[str, ...], Term]] = {}
        self.kind = {name: KINDS[i % 3] for i, name in enumerate(NAMES)}
        self.horizon = -1
        for name, kind in self.kind.items():
            self.subject.add_unit(name, kind)

    def blockers(self, name: str, term: Term, but: Hashable = None) -> list[Hashable]:
        """The keys that hold a unit somewhere in a term."""
        return [key for key, (units, held) in self.held.items() if key != but and name in units and held.overlaps(term)]

    def free(self, term: Term) -> list[str]:
        return [name for name in NAMES if not self.blockers(name, term)]

    @rule(key=keys, units=some_units, term=terms)
    def reserve(self, key: int, units: list[str], term: Term) -> None:
        if key in self.held:
            with pytest.raises(KeyError):
                self.subject.reserve(key, units, term)
        elif term.end <= self.horizon:
            with pytest.raises(ValueError, match="forgotten"):
                self.subject.reserve(key, units, term)
        elif any(self.blockers(name, term) for name in units):
            with pytest.raises(UnitConflict) as caught:
                self.subject.reserve(key, units, term)
            self.check_conflict(caught.value, units, term, None)
        else:
            self.subject.reserve(key, units, term)
            self.held[key] = (tuple(units), term)

    def check_conflict(self, error: UnitConflict, units: list[str], term: Term, but: Hashable) -> None:
        assert error.unit == next(name for name in units if self.blockers(name, term, but))
        first = min(self.blockers(error.unit, term, but), key=lambda key: self.held[key][1].start)
        assert (error.holder, error.term) == (first, self.held[first][1])

    @rule(key=keys)
    def release(self, key: int) -> None:
        if key in self.held:
            self.subject.release(key)
            del self.held[key]
        else:
            with pytest.raises(KeyError):
                self.subject.release(key)

    @rule(key=keys, units=st.none() | some_units, term=st.none() | terms)
    def change(self, key: int, units: list[str] | None, term: Term | None) -> None:
        if key not in self.held:
            with pytest.raises(KeyError):
                self.subject.change(key, units=units, term=term)
            return
        had, was = self.held[key]
        then, wanted = list(had) if units is None else units, was if term is None else term
        if wanted.end <= self.horizon:
            with pytest.raises(ValueError, match="forgotten"):
                self.subject.change(key, units=units, term=term)
        elif any(self.blockers(name, wanted, key) for name in then):
            with pytest.raises(UnitConflict) as caught:
                self.subject.change(key, units=units, term=term)
            self.check_conflict(caught.value, then, wanted, key)
        else:
            self.subject.change(key, units=units, term=term)
            self.held[key] = (tuple(then), wanted)

    @rule(instant=st.integers(0, LINE // 3))
    def forget(self, instant: int) -> None:
        self.subject.forget_before(instant)
        self.horizon = max(self.horizon, instant)
        self.held = {key: held for key, held in self.held.items() if held[1].end > instant}

    @rule(
        term=terms, count=st.integers(1, 6), prefer=st.lists(st.sampled_from(NAMES), max_size=3), filtered=st.booleans()
    )
    def choose(self, term: Term, count: int, prefer: list[str], filtered: bool) -> None:
        where = where_rack_a if filtered else None
        able = [name for name in self.free(term) if where is None or where(self.kind[name])]
        first = [name for name in dict.fromkeys(prefer) if name in able]
        for order, rest in ((None, able), (lambda name: -int(name[1:]), able[::-1])):
            wanted = [*first, *(name for name in rest if name not in first)][:count]
            if len(wanted) < count:
                with pytest.raises(Shortfall) as caught:
                    self.subject.choose(count, term, where, prefer=prefer, order=order)
                assert (caught.value.term, caught.value.free, caught.value.wanted) == (term, len(wanted), count)
            else:
                assert self.subject.choose(count, term, where, prefer=prefer, order=order) == wanted

    @rule(window=terms, count=st.integers(1, 6), duration=st.integers(1, 25), filtered=st.booleans())
    def earliest(self, window: Term, count: int, duration: int, filtered: bool) -> None:
        where = where_rack_a if filtered else None
        starts = (
            at
            for at in range(window.start, window.end + 1)
            if sum(where is None or where(self.kind[n]) for n in self.free(Term(at, at + duration))) >= count
        )
        assert self.subject.earliest(count, duration, *window, where) == next(starts, None)

    @rule(name=st.sampled_from(NAMES), window=terms)
    def ask(self, name: str, window: Term) -> None:
        mine = sorted((held[1], key) for key, held in self.held.items() if name in held[0])
        over = [(key, term) for term, key in mine if term.overlaps(window)]
        assert list(self.subject.reservations(name, window)) == over
        assert self.subject.is_free(name, window) == (not over)
        holder = next((key for term, key in mine if term.start <= window.start < term.end), None)
        assert self.subject.holder(name, window.start) == holder
        upcoming = next((term.start for term, _ in mine if term.start >= window.start), None)
        assert self.subject.next_reservation(name, window.start) == upcoming

    @invariant()
    def agree(self) -> None:
        assert list(self.subject) == list(self.held) and len(self.subject) == len(self.held)
        assert all(self.subject.get(key) == held for key, held in self.held.items())
        for term in (Term(0, LINE), Term(10, 20), Term(20, 21)):
            assert self.subject.free(term) == self.free(term)

    @rule()
    def copy(self) -> None:
        """Go on with a copy, after spoiling the original."""
        original, self.subject = self.subject, self.subject.copy()
        for key in list(original):
            original.release(key)


AgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)


TestAgainstModel = AgainstModel.TestCase


def two_hosts() -> UnitTimetable:
    timetable = UnitTimetable()
    timetable.add_unit("a", {"memory": "2"})
    timetable.add_unit("b", {"memory": "10"})
    return timetable


def test_the_same_units_for_the_extension() -> None:
    """A lease's own units come first when they are free for the next term, in the order in which it held them."""
    timetable = two_hosts()
    timetable.add_unit("c")
    timetable.reserve("lease", ["c", "b"], Term(0, 10))
    assert timetable.choose(2, Term(10, 20), prefer=["c", "b"]) == ["c", "b"]
    timetable.reserve("other", ["c"], Term(19, 30))
    assert timetable.choose(2, Term(10, 20), prefer=["c", "b"]) == ["b", "a"]
    timetable.change("lease", term=Term(0, 19))
    with pytest.raises(UnitConflict) as caught:
        timetable.change("lease", term=Term(0, 20))
    assert (caught.value.unit, caught.value.holder, caught.value.term) == ("c", "other", Term(19, 30))
    assert timetable.get("lease") == (("c", "b"), Term(0, 19))


def test_conflict_in_words() -> None:
    """A refusal names the unit, who holds it and when."""
    timetable = two_hosts()
    timetable.reserve("first", ["b"], Term(5, 10))
    with pytest.raises(UnitConflict) as caught:
        timetable.reserve("second", ["a", "b"], Term(0, 6))
    assert str(caught.value) == "unit 'b' is held by 'first' over [5, 10)"
    assert timetable.is_free("a", Term(0, 6)) and "second" not in timetable


def test_where_is_asked_once_for_equal_attributes() -> None:
    """A filter is asked once per kind of unit in a call, however many units there are of it."""
    timetable = UnitTimetable()
    asked: list[str] = []

    def where(attributes: Attributes) -> bool:
        asked.append(attributes["rack"])
        return attributes["rack"] != "1"

    for i in range(100):
        timetable.add_unit(f"h{i}", {"rack": str(i % 4)})
    chosen = timetable.choose(30, Term(0, 1), where)
    assert chosen[:4] == ["h0", "h2", "h3", "h4"] and len(chosen) == 30
    assert asked == ["0", "1", "2", "3"]


def test_filters_see_units_that_come_and_go() -> None:
    """What a filter accepted before is not what it gets after units were added and removed."""
    timetable = two_hosts()

    def large(attributes: Attributes) -> bool:
        return int(attributes["memory"]) >= 9

    assert timetable.choose(1, Term(0, 1), large) == ["b"]
    timetable.add_unit("c", {"memory": "10"})
    timetable.add_unit("d", {"memory": "64"})
    assert timetable.choose(3, Term(0, 1), large) == ["b", "c", "d"]
    for name in ("b", "c", "a"):
        timetable.remove_unit(name)
    assert timetable.choose(1, Term(0, 1), large) == timetable.choose(1, Term(0, 1)) == ["d"]


def test_earliest_at_the_one_instant_at_which_two_ranges_meet() -> None:
    """One host must be taken at the latest when the other can be at the earliest: that instant counts, no other."""
    timetable = two_hosts()
    timetable.reserve("x", ["a"], Term(15, 100))
    timetable.reserve("y", ["b"], Term(0, 5))
    assert timetable.earliest(2, 10, 0, 50) == 5
    assert timetable.earliest(2, 11, 0, 50) is None


def test_units_come_and_go() -> None:
    """A unit is added once, can't leave while it is held, and is unknown afterwards; attributes can't be written."""
    timetable = two_hosts()
    timetable.reserve("k", ["a"], Term(0, 10))
    with pytest.raises(UnitConflict):
        timetable.remove_unit("a")
    timetable.release("k")
    timetable.remove_unit("a")
    assert timetable.units == ["b"] and timetable.attributes("b") == {"memory": "10"}
    with pytest.raises(KeyError, match="already"):
        timetable.add_unit("b")
    with pytest.raises(TypeError):
        timetable.attributes("b")["memory"] = "1"  # type: ignore[index]


@pytest.mark.parametrize(
    "call,kind,message",
    [
        (lambda t: t.reserve("k", [], Term(0, 1)), ValueError, "none are named"),
        (lambda t: t.reserve("k", ["a", "a"], Term(0, 1)), ValueError, "unit 'a' is named twice"),
        (lambda t: t.reserve("k", ["a", "x"], Term(0, 1)), KeyError, "no unit 'x'"),
        (lambda t: t.reserve("k", ["a"], Term(1, 1)), ValueError, "empty"),
        (lambda t: t.change("held", units=["x"]), KeyError, "no unit 'x'"),
        (lambda t: t.change("held", term=Term(2, 1)), ValueError, "reversed"),
        (lambda t: t.choose(0, Term(0, 1)), ValueError, "0 units"),
        (lambda t: t.choose(1, Term(0, 1), prefer=["x"]), KeyError, "no unit 'x'"),
        (lambda t: t.earliest(1, 0, 0, 1), ValueError, "0 ms"),
        (lambda t: t.free(Term(1, 0)), ValueError, "reversed"),
        (lambda t: t.is_free("x", Term(0, 1)), KeyError, "no unit 'x'"),
        (lambda t: t.remove_unit("x"), KeyError, "no unit 'x'"),
    ],
)
def test_bad_input_is_refused_in_words(
    call: Callable[[UnitTimetable], Any], kind: type[Exception], message: str
) -> None:
    """Wrong units, terms and counts raise an error that says what was found, and change nothing."""
    timetable = two_hosts()
    timetable.reserve("held", ["b"], Term(5, 10))
    with pytest.raises(kind) as caught:
        call(timetable)
    assert message in str(caught.value)
    assert timetable.free(Term(0, 20)) == ["a"] and timetable.get("held") == (("b",), Term(5, 10))


def test_long_run_forgets() -> None:
    """A run that forgets as it goes keeps only what is under way, per unit and over all."""
    timetable, random = UnitTimetable(), Random(3)
    for i in range(20):
        timetable.add_unit(f"h{i}")
    for now in range(0, 50_000, 10):
        term = Term(now, now + random.randint(5, 60))
        timetable.reserve(now, timetable.choose(2, term), term)
        timetable.forget_before(now)
    assert len(timetable) < 10
    assert sum(len(list(timetable.reservations(unit, Term(0, 60_000)))) for unit in timetable.units) < 20
