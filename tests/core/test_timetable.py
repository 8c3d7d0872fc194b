"""The timetable of capacity, against a brute-force model and at its edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from leasekit.core import profile
from leasekit.core.time import Term
from leasekit.core.timetable import Shortfall, Timetable

LINE = 160
"""Instants 0 to LINE - 1 are where the tests play; beyond them the model knows that nothing happens."""


class Model:
    """The timetable's figures by counting, instant by instant, straight from what was said."""

    def __init__(self, capacity: int) -> None:
        self.base = capacity
        self.added: list[tuple[Term, int]] = []
        self.held: dict[Hashable, tuple[int, Term]] = {}
        self.horizon = -1

    def capacity_at(self, instant: int) -> int:
        at = max(instant, self.horizon)
        return self.base + sum(units for term, units in self.added if term.start <= at < term.end)

    def reserved_at(self, instant: int) -> int:
        at = max(instant, self.horizon)
        return sum(units for units, term in self.held.values() if term.start <= at < term.end)

    def free_at(self, instant: int) -> int:
        return self.capacity_at(instant) - self.reserved_at(instant)

    def add_capacity(self, term: Term, units: int) -> None:
        self.added.append((term, units))

    def reserve(self, key: Hashable, units: int, term: Term, *, force: bool = False) -> None:
        if key in self.held:
            raise KeyError
        self._place(key, units, term, force, {})

    def change(self, key: Hashable, *, units: int | None = None, term: Term | None = None, force: bool = False) -> None:
        had, was = self.held[key]
        own = dict.fromkeys(range(was.start, was.end), had)
        self._place(key, had if units is None else units, term or was, force, own)

    def replace(self, old: Hashable, key: Hashable, units: int, term: Term) -> None:
        had, was = self.held.get(old, (0, Term(0, 0)))
        if key in self.held:
            raise KeyError
        self._place(key, units, term, False, dict.fromkeys(range(max(was.start, term.start), was.end), had))
        if was.end > term.start:
            self.held[old] = (had, Term(was.start, term.start))
            if term.start <= max(was.start, self.horizon):
                del self.held[old]

    def _place(self, key: Hashable, units: int, term: Term, force: bool, own: dict[int, int]) -> None:
        if term.end <= self.horizon:
            raise ValueError
        free = {at: self.free_at(at) + own.get(at, 0) for at in range(*term)}
        short = [at for at in free if units > own.get(at, 0) and free[at] < units]
        if short and not force:
            stop = short[0]
            while stop in short:
                stop += 1
            raise Shortfall(Term(short[0], stop), min(free[at] for at in range(short[0], stop)), units)
        self.held[key] = (units, term)

    def release(self, key: Hashable) -> None:
        del self.held[key]

    def forget_before(self, instant: int) -> None:
        self.horizon = max(self.horizon, instant)
        self.held = {key: held for key, held in self.held.items() if held[1].end > instant}

    def get(self, key: Hashable) -> tuple[int, Term] | None:
        return self.held.get(key)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def available(self, term: Term) -> int:
        return min(self.free_at(at) for at in range(*term))

    def earliest(self, units: int, duration: int, not_before: int, not_after: int) -> int | None:
        good = [self.free_at(at) >= units for at in range(not_after + duration)]
        starts = range(not_before, not_after + 1)
        return next((at for at in starts if all(good[at : at + duration])), None)

    def short_at(self, units: int, begin: int) -> int:
        return next((at for at in range(begin, LINE + 1) if self.free_at(at) < units), profile.FOREVER)

    def overcommitted(self) -> list[Term]:
        return _runs(Term(max(self.horizon, 0), LINE), lambda at: self.free_at(at) < 0, keep=True)

    def steps(self, window: Term) -> list[tuple[Term, int, int]]:
        runs = _runs(window, lambda at: (self.reserved_at(at), self.capacity_at(at)))
        return [(term, self.reserved_at(term.start), self.capacity_at(term.start)) for term in runs]

    def utilisation(self, window: Term) -> float:
        capacity = sum(self.capacity_at(at) for at in range(*window))
        return sum(self.reserved_at(at) for at in range(*window)) / capacity if capacity > 0 else 0.0


def _runs(window: Term, what: Callable[[int], Any], keep: Any = None) -> list[Term]:
    runs = []
    for value, instants in groupby(range(*window), what):
        some = list(instants)
        if keep is None or value == keep:
            runs.append(Term(some[0], some[-1] + 1))
    return runs


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or how it fails, in a form that compares."""
    try:
        value = call()
    except Shortfall as error:
        return "Shortfall", error.term, error.free, error.wanted
    except (KeyError, ValueError) as error:
        return type(error).__name__
    return list(value) if isinstance(value, Iterator) else value


def _fits(timetable: Timetable, key: int, units: int, term: Term) -> bool:
    return outcome(lambda: timetable.reserve(key, units, term)) is None


def check_tree(tree: profile.Profile) -> None:
    """The invariants of the tree: order, first keys, least and largest values, sizes."""

    def walk(node: Any, first: int, upper: int) -> tuple[int, int]:
        keys = node.keys
        assert keys[0] == first and keys == sorted(set(keys)) and keys[-1] < upper
        if isinstance(node, profile._Leaf):
            assert len(node.vals) == len(keys) <= profile.LEAF_MAX
            assert all(a != b for a, b in zip(node.vals, node.vals[1:], strict=False))
            return min(node.vals), max(node.vals)
        assert len(keys) == len(node.kids) == len(node.adds) <= profile.FAN_MAX
        uppers = [*keys[1:], upper]
        for i, kid in enumerate(node.kids):
            low, high = walk(kid, keys[i], uppers[i])
            assert (node.mins[i], node.maxs[i]) == (low + node.adds[i], high + node.adds[i])
        return min(node.mins), max(node.maxs)

    walk(tree._root, profile.BEGIN, profile.FOREVER)


terms = st.tuples(st.integers(0, LINE - 1), st.integers(1, LINE)).map(lambda t: Term(t[0], min(t[0] + t[1], LINE)))
short_terms = st.tuples(st.integers(0, LINE - 13), st.integers(1, 12)).map(lambda t: Term(t[0], t[0] + t[1]))
units_wanted = st.integers(1, 6)


class Comparison(RuleBasedStateMachine):
    """One timetable is told and asked the same as another thing that must agree with it."""

    keys: Bundle[int] = Bundle("keys")
    subject: Timetable
    reference: Any

    def __init__(self) -> None:
        super().__init__()
        self.sizes = profile.LEAF_MAX, profile.FAN_MAX
        # Small nodes, so that a short run makes a tree of several levels, splits it and joins it.
        profile.LEAF_MAX = profile.FAN_MAX = 8
        self.next_key = 0

    def teardown(self) -> None:
        profile.LEAF_MAX, profile.FAN_MAX = self.sizes

    def both(self, name: str, *args: Any, **kwargs: Any) -> Any:
        got = outcome(lambda: getattr(self.subject, name)(*args, **kwargs))
        wanted = outcome(lambda: getattr(self.reference, name)(*args, **kwargs))
        if isinstance(got, float):
            assert got == pytest.approx(wanted)
        else:
            assert got == wanted, (name, args, kwargs)
        return got

    def fill(self, seed: int) -> None:
        random = Random(seed)
        for key in range(-random.choice((0, 10, 80)), 0):
            start = random.randrange(LINE - 1)
            end = min(start + random.choice((1, 4, 30)), LINE)
            self.both("reserve", key, random.randint(1, 3), Term(start, end))

    @rule(target=keys, units=units_wanted, term=st.one_of(terms, short_terms), force=st.booleans())
    def reserve(self, units: int, term: Term, force: bool) -> Any:
        self.next_key += 1
        taken = self.both("reserve", self.next_key, units, term, force=force) is None
        return self.next_key if taken else multiple()

    @rule(key=keys, units=units_wanted, term=terms)
    def reserve_again(self, key: int, units: int, term: Term) -> None:
        self.both("reserve", key, units, term)

    @rule(key=keys)
    def release(self, key: int) -> None:
        self.both("release", key)

    @rule(key=st.integers(-80, -1))
    def release_filled(self, key: int) -> None:
        self.both("release", key)

    @rule(key=keys, units=st.none() | units_wanted, term=st.none() | terms | short_terms, force=st.booleans())
    def change(self, key: int, units: int | None, term: Term | None, force: bool) -> None:
        self.both("change", key, units=units, term=term, force=force)

    @rule(target=keys, old=keys, units=units_wanted, term=st.one_of(terms, short_terms))
    def replace(self, old: int, units: int, term: Term) -> Any:
        self.next_key += 1
        taken = self.both("replace", old, self.next_key, units, term) is None
        return self.next_key if taken else multiple()

    @rule(term=terms, units=st.integers(-8, 8))
    def add_capacity(self, term: Term, units: int) -> None:
        self.both("add_capacity", term, units)

    @rule(term=terms, units=st.integers(-2, 14), duration=st.integers(1, 40))
    def ask(self, term: Term, units: int, duration: int) -> None:
        self.both("available", term)
        self.both("short_at", units, term.start)
        self.both("steps", term)
        self.both("utilisation", term)
        self.both("earliest", max(units, 1), duration, *term)

    @invariant()
    def agree(self) -> None:
        for instant in (-1, 0, 17, LINE // 2, LINE - 1, LINE, LINE + 9):
            for name in ("free_at", "reserved_at", "capacity_at"):
                self.both(name, instant)
        self.both("overcommitted")
        assert set(self.subject) == set(self.reference)
        assert len(self.subject) == len(self.reference)
        assert all(self.subject.get(key) == self.reference.get(key) for key in self.reference)


class AgainstModel(Comparison):
    """Whatever is said and asked in whatever order, the timetable agrees with the model; history may be forgotten."""

    @initialize(capacity=st.integers(0, 12), seed=st.integers(0, 2**32))
    def start(self, capacity: int, seed: int) -> None:
        self.subject, self.reference = Timetable(capacity), Model(capacity)
        self.fill(seed)

    @rule(instant=st.integers(0, LINE // 2))
    def forget(self, instant: int) -> None:
        self.both("forget_before", instant)

    @invariant()
    def in_shape(self) -> None:
        assert isinstance(self.subject._free, profile.Profile)
        check_tree(self.subject._free)
        assert list(self.subject) == list(self.reference)


class OverlayAgainstCopy(Comparison):
    """Whatever is said and asked, a what-if view agrees with a copy, and its base never changes."""

    @initialize(capacity=st.integers(0, 12), seed=st.integers(0, 2**32), forgotten=st.integers(0, 20))
    def start(self, capacity: int, seed: int, forgotten: int) -> None:
        self.base, self.reference = Timetable(capacity), Timetable(capacity)
        self.subject = self.base
        self.fill(seed)
        self.base.add_capacity(Term(20, 50), 3)
        self.base.forget_before(forgotten)
        self.subject, self.reference = self.base.overlay(), self.base.copy()
        self.before = self.picture()

    def picture(self) -> Any:
        return list(self.base.steps(Term(-5, LINE + 5))), [(key, self.base.get(key)) for key in self.base]

    @rule(again=st.booleans())
    def go_deeper(self, again: bool) -> None:
        self.subject = self.subject.overlay() if again else self.subject.copy()

    @invariant()
    def base_is_untouched(self) -> None:
        assert self.picture() == self.before


AgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
OverlayAgainstCopy.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)


TestAgainstModel = AgainstModel.TestCase
TestOverlayAgainstCopy = OverlayAgainstCopy.TestCase


@pytest.mark.parametrize("leaf_max,fan_max", [(8, 8), (64, 24)])
def test_long_run(monkeypatch: pytest.MonkeyPatch, leaf_max: int, fan_max: int) -> None:
    """Thousands of reservations that come and go give the figures of a plain list, in a tree that shrinks again."""
    monkeypatch.setattr(profile, "LEAF_MAX", leaf_max)
    monkeypatch.setattr(profile, "FAN_MAX", fan_max)
    random, line, capacity = Random(7), 3000, 40
    timetable, free = Timetable(capacity), [capacity] * 3000
    for key in range(6000):
        start = random.randrange(line - 1)
        end = random.randint(start + 1, min(line, start + random.choice((3, 40, 2000))))
        units = random.randint(1, 5)
        fits = min(free[start:end]) >= units
        assert _fits(timetable, key, units, Term(start, end)) == fits
        if fits:
            free[start:end] = [value - units for value in free[start:end]]
        if random.random() < 0.4 and len(timetable):
            gone: Hashable = random.choice(list(timetable))
            held = timetable.get(gone)
            assert held is not None
            timetable.release(gone)
            free[slice(*held[1])] = [value + held[0] for value in free[slice(*held[1])]]
    assert [timetable.free_at(at) for at in range(line)] == free
    assert isinstance(timetable._free, profile.Profile)
    check_tree(timetable._free)
    for left in list(timetable):
        timetable.release(left)
    check_tree(timetable._free)
    assert list(timetable.steps(Term(0, line))) == [(Term(0, line), 0, capacity)]
    assert len(timetable._free) < line // leaf_max


def test_touching_terms_do_not_collide() -> None:
    """All units can be held up to an instant by one and from it on by another; one ms of overlap is too much."""
    timetable = Timetable(4)
    timetable.reserve("a", 4, Term(0, 10))
    timetable.reserve("b", 4, Term(10, 20))
    assert timetable.free_at(9) == timetable.free_at(10) == 0 and timetable.free_at(20) == 4
    with pytest.raises(Shortfall):
        timetable.reserve("c", 1, Term(19, 21))
    timetable.reserve("c", 4, Term(20, 21))


def test_shortfall_says_where_and_how_much() -> None:
    """A refusal names the first short period, the least that is free there and what was wanted."""
    timetable = Timetable(10)
    timetable.reserve("a", 4, Term(10, 20))
    timetable.reserve("b", 7, Term(20, 25))
    timetable.reserve("c", 9, Term(40, 50))
    with pytest.raises(Shortfall) as caught:
        timetable.reserve("d", 7, Term(0, 100))
    assert (caught.value.term, caught.value.free, caught.value.wanted) == (Term(10, 25), 3, 7)
    assert str(caught.value) == "7 units wanted, 3 free in [10, 25)"
    with pytest.raises(Shortfall) as caught:
        timetable.reserve("d", 7, Term(22, 24))
    assert caught.value.term == Term(22, 24)
    assert "d" not in timetable and timetable.free_at(0) == 10


def test_force_overcommits_and_it_is_reported() -> None:
    """A forced reservation is held beyond what is free, and the periods that are overcommitted are listed."""
    timetable = Timetable(2)
    timetable.reserve("a", 2, Term(0, 10))
    timetable.reserve("b", 3, Term(5, 20), force=True)
    assert timetable.overcommitted() == [Term(5, 20)]
    assert timetable.available(Term(0, 30)) == -3
    assert timetable.utilisation(Term(5, 10)) == 2.5
    timetable.release("a")
    assert timetable.overcommitted() == [Term(5, 20)] and timetable.available(Term(0, 30)) == -1


def test_capacity_may_fall_below_what_is_reserved() -> None:
    """Units out of service are a fact: reservations stay, the period is listed, and capacity comes back."""
    timetable = Timetable()
    timetable.add_capacity(Term(0, 100), 8)
    timetable.reserve("a", 6, Term(10, 30))
    timetable.add_capacity(Term(20, 40), -4)
    assert timetable.overcommitted() == [Term(20, 30)]
    assert timetable.get("a") == (6, Term(10, 30))
    assert [(timetable.reserved_at(at), timetable.capacity_at(at)) for at in (5, 25, 35, 100)] == [
        (0, 8),
        (6, 4),
        (0, 4),
        (0, 0),
    ]
    timetable.add_capacity(Term(20, 40), 4)
    assert timetable.overcommitted() == []


def test_change_is_atomic() -> None:
    """A change that doesn't fit changes nothing, and counts the reservation's own units as had."""
    timetable = Timetable(10)
    timetable.reserve("mine", 6, Term(0, 10))
    timetable.reserve("other", 5, Term(10, 20))
    before = list(timetable.steps(Term(0, 40)))
    with pytest.raises(Shortfall) as caught:
        timetable.change("mine", units=11, term=Term(5, 15))
    assert (caught.value.term, caught.value.free, caught.value.wanted) == (Term(5, 15), 5, 11)
    assert list(timetable.steps(Term(0, 40))) == before and timetable.get("mine") == (6, Term(0, 10))
    timetable.change("mine", units=5, term=Term(5, 15))
    assert timetable.get("mine") == (5, Term(5, 15)) and timetable.reserved_at(12) == 10


def test_shortfall_of_a_change_stops_where_it_needs_no_more() -> None:
    """Fewer units for longer on both sides: the first short period ends where the reservation's own term begins."""
    timetable = Timetable(10)
    timetable.reserve("mine", 5, Term(10, 20))
    timetable.reserve("before", 9, Term(0, 10))
    timetable.reserve("after", 9, Term(20, 30))
    with pytest.raises(Shortfall) as caught:
        timetable.change("mine", units=3, term=Term(5, 25))
    assert (caught.value.term, caught.value.free, caught.value.wanted) == (Term(5, 10), 1, 3)


def test_change_may_always_shrink() -> None:
    """Where capacity was lost, holding less or for a shorter time is possible although it still doesn't fit."""
    timetable = Timetable(10)
    timetable.reserve("a", 10, Term(0, 10))
    timetable.add_capacity(Term(0, 10), -8)
    timetable.change("a", units=9)
    timetable.change("a", term=Term(2, 8))
    assert timetable.get("a") == (9, Term(2, 8))
    with pytest.raises(Shortfall):
        timetable.change("a", units=10)


def test_what_replaces_a_reservation_needs_only_what_is_more() -> None:
    """Where capacity was lost, less can take the place of the rest; more can't, and changes nothing."""
    timetable = Timetable(10)
    timetable.reserve("a", 8, Term(0, 10))
    timetable.reserve("b", 2, Term(0, 20))
    timetable.add_capacity(Term(0, 10), -8)
    with pytest.raises(Shortfall) as caught:
        timetable.replace("a", "c", 9, Term(4, 12))
    assert (caught.value.term, caught.value.free, caught.value.wanted) == (Term(4, 12), 0, 9)
    assert timetable.get("a") == (8, Term(0, 10)) and "c" not in timetable
    timetable.replace("a", "c", 7, Term(4, 12))
    assert (timetable.get("a"), timetable.get("c")) == ((8, Term(0, 4)), (7, Term(4, 12)))
    with pytest.raises(KeyError):
        timetable.replace("a", "c", 1, Term(2, 3))
    timetable.forget_before(2)
    with pytest.raises(ValueError, match="forgotten"):
        timetable.replace("a", "d", 9, Term(0, 2))


def test_a_reservation_ends_early() -> None:
    """What is left of it is free; nothing is left of one that has not begun, or would end in forgotten history."""
    table = Timetable(5)
    for key in "abcd":
        table.reserve(key, 1, Term(10, 50))
    table.end("a", 30)
    table.end("b", 10)
    table.end("c", 60)
    table.end("nobody", 1)
    assert (table.get("a"), table.get("b"), table.get("c")) == ((1, Term(10, 30)), None, (1, Term(10, 50)))
    assert (table.free_at(20), table.free_at(40)) == (2, 3)
    table.forget_before(35)
    assert table.horizon == 35
    table.end("c", 35)
    table.end("d", 20)
    assert len(table) == 0 and table.free_at(40) == 5


def test_earliest_bounds_are_both_included() -> None:
    """The first and the last start of the window both count; one ms less is too little."""
    timetable = Timetable(1)
    timetable.reserve("a", 1, Term(0, 10))
    timetable.reserve("b", 1, Term(15, 20))
    assert timetable.earliest(1, 5, 0, 100) == 10
    assert timetable.earliest(1, 6, 0, 100) == 20
    assert timetable.earliest(1, 6, 0, 20) == 20
    assert timetable.earliest(1, 6, 0, 19) is None
    assert timetable.earliest(1, 5, 10, 10) == 10
    assert timetable.earliest(1, 5, 11, 10) is None
    assert timetable.earliest(2, 1, 0, 10**15) is None


def test_forget_before_bounds_what_is_stored() -> None:
    """A run that forgets as it goes keeps no more than what is under way, however long it lasts."""
    timetable = Timetable(100)
    for now in range(0, 200_000, 10):
        timetable.reserve(now, 1 + now % 3, Term(now, now + 150 + now % 70))
        if now % 40 == 0:
            timetable.change(now, term=Term(now, now + 90))
        timetable.forget_before(now)
    assert isinstance(timetable._free, profile.Profile)
    assert timetable._ends is not None
    assert len(timetable) < 30 and len(timetable._free) < 60 and len(timetable._ends) < 200
    for key in list(timetable):
        timetable.release(key)
    assert timetable.available(Term(0, 300_000)) == 100 and len(timetable._free) == 1


def test_forget_before_drops_what_ended_by_then() -> None:
    """What ends at the instant vanishes, what ends a millisecond later stays and can be released."""
    timetable = Timetable(5)
    timetable.reserve("gone", 2, Term(0, 10))
    timetable.reserve("stays", 3, Term(0, 11))
    timetable.forget_before(10)
    assert list(timetable) == ["stays"]
    with pytest.raises(KeyError):
        timetable.release("gone")
    with pytest.raises(ValueError, match="forgotten"):
        timetable.reserve("late", 1, Term(2, 10))
    assert timetable.free_at(0) == timetable.free_at(10) == 2
    timetable.release("stays")
    assert timetable.free_at(0) == timetable.free_at(10) == 5
    timetable.forget_before(4)
    assert timetable.free_at(10) == 5


def test_keys_of_one_end_need_not_compare() -> None:
    """Reservations of different kinds of keys that end together can be forgotten."""
    timetable = Timetable(5)
    timetable.forget_before(0)
    for key in ("text", 7, ("a", 1), None):
        timetable.reserve(key, 1, Term(0, 10))
    timetable.forget_before(10)
    assert len(timetable) == 0


def test_a_reservation_that_is_changed_again_and_again() -> None:
    """What is past is forgotten when its time comes, however often that has changed before."""
    timetable = Timetable(4)
    timetable.forget_before(1)
    timetable.reserve("a", 2, Term(1, 10))
    for end in range(11, 211):
        timetable.change("a", term=Term(1, end))
    timetable.forget_before(209)
    assert "a" in timetable
    timetable.forget_before(210)
    assert "a" not in timetable


def test_overlay_plans_without_touching_its_base() -> None:
    """A view may release, move and add reservations; the base keeps its own, and later changes show through."""
    base = Timetable(4)
    base.reserve("a", 3, Term(0, 10))
    plan = base.overlay()
    plan.release("a")
    plan.reserve("b", 4, Term(0, 10))
    assert "a" not in plan and "b" in plan and len(plan) == 1
    assert "a" in base and "b" not in base and base.free_at(5) == 1
    base.reserve("c", 2, Term(50, 60))
    assert plan.free_at(55) == 2 and "c" in plan
    with pytest.raises(TypeError, match="overlay"):
        plan.forget_before(5)
    for gone in ("a", "z"):
        with pytest.raises(KeyError):
            plan.release(gone)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda t: t.reserve("k", 0, Term(0, 1)), "0 units over [0, 1): a reservation holds 1 or more"),
        (lambda t: t.reserve("k", -2, Term(0, 1)), "-2 units"),
        (lambda t: t.reserve("k", 1, Term(3, 3)), "term [3, 3) is empty"),
        (lambda t: t.reserve("k", 1, Term(4, 3)), "term [4, 3) is reversed"),
        (lambda t: t.change("a", units=0), "0 units"),
        (lambda t: t.change("a", term=Term(4, 3)), "reversed"),
        (lambda t: t.available(Term(3, 3)), "empty"),
        (lambda t: t.add_capacity(Term(3, 2), 1), "reversed"),
        (lambda t: t.earliest(0, 5, 0, 9), "0 units for 5 ms"),
        (lambda t: t.earliest(5, 0, 0, 9), "5 units for 0 ms"),
        (lambda t: list(t.steps(Term(1, 0))), "reversed"),
        (lambda t: t.utilisation(Term(1, 1)), "empty"),
        (lambda t: Timetable(-1), "capacity is -1"),
    ],
)
def test_bad_input_is_refused_in_words(call: Callable[[Timetable], Any], message: str) -> None:
    """Wrong units and terms raise ValueError that says what was found, and change nothing."""
    timetable = Timetable(3)
    timetable.reserve("a", 1, Term(0, 10))
    with pytest.raises(ValueError) as caught:
        call(timetable)
    assert message in str(caught.value)
    assert list(timetable.steps(Term(-5, 20))) == [(Term(-5, 0), 0, 3), (Term(0, 10), 1, 3), (Term(10, 20), 0, 3)]


def test_unknown_and_repeated_keys() -> None:
    """A key is taken once and must exist to be released or changed; get says None."""
    timetable = Timetable(3)
    timetable.reserve("a", 1, Term(0, 10))
    with pytest.raises(KeyError, match="already"):
        timetable.reserve("a", 1, Term(20, 30))
    with pytest.raises(KeyError, match="b"):
        timetable.release("b")
    with pytest.raises(KeyError, match="b"):
        timetable.change("b", units=2)
    assert timetable.get("b") is None and list(timetable) == ["a"]


def test_utilisation_of_nothing_is_zero() -> None:
    """No capacity, no utilisation; half the units for half the time are a quarter."""
    assert Timetable().utilisation(Term(0, 10)) == 0.0
    timetable = Timetable(4)
    timetable.reserve("a", 2, Term(0, 5))
    assert timetable.utilisation(Term(0, 10)) == 0.25
