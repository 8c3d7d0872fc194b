"""Timetables by class against what they say: sums over classes at every instant."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from leasekit.core.profile import binned
from leasekit.core.properties import count_of, counts, total
from leasekit.core.time import Term
from leasekit.core.timetable import ClassedTimetable, Shortfall, Timetable

CLASSES = (b"a", b"b", b"c")
END = 30
terms = st.tuples(st.integers(0, END - 1), st.integers(1, END)).map(lambda pair: Term(pair[0], pair[0] + pair[1]))
bookings = st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 3), terms, st.booleans()), max_size=12)


def made(capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]]) -> ClassedTimetable:
    """A timetable in which some things are booked by class, others of any class as far as they fit."""
    table = ClassedTimetable({class_: Timetable(most) for class_, most in zip(CLASSES, capacities, strict=True)})
    for number, (class_, units, term, anyhow) in enumerate(booked):
        try:
            table.reserve(number, units if anyhow else ((class_, units),), term)
        except Shortfall as short:
            assert short.free < short.wanted == units
    return table


def free(table: ClassedTimetable, class_: bytes, at: int) -> int:
    return table.tables[class_].free_at(at)


@settings(deadline=None)
@given(capacities=st.tuples(*[st.integers(0, 4)] * 3), booked=bookings, term=terms, units=st.integers(1, 9))
def test_what_is_free_is_free_by_class(
    capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]], term: Term, units: int
) -> None:
    """All that is free throughout of each class, and no more, can be had; nothing is overbooked."""
    table = made(capacities, booked)
    least = {class_: min(free(table, class_, at) for at in range(*term)) for class_ in CLASSES}
    assert min(least.values()) >= 0 and table.lacking(term) == ()
    assert table.available(term) == sum(least.values())
    try:
        chosen = table.pick(units, term)
    except Shortfall as short:
        assert short.free == sum(least.values()) < units
    else:
        assert total(chosen) == units and all(count <= least[class_] for class_, count in chosen)
        table.overlay().reserve("new", chosen, term)
    some = table.of(frozenset((b"a", b"c")))
    assert some.available(term) == least[b"a"] + least[b"c"]


@settings(deadline=None)
@given(
    capacities=st.tuples(*[st.integers(0, 4)] * 3), booked=bookings, units=st.integers(1, 9), length=st.integers(1, 9)
)
def test_the_earliest_fit_is_the_earliest(
    capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]], units: int, length: int
) -> None:
    """No start before it has as many units free throughout."""
    table = made(capacities, booked)
    fitting = [at for at in range(2 * END) if table.available(Term(at, at + length)) >= units]
    assert table.earliest(units, length, 0, 2 * END - 1) == (fitting[0] if fitting else None)


@settings(deadline=None)
@given(capacities=st.tuples(*[st.integers(0, 4)] * 3), booked=bookings)
def test_steps_add_up(capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]]) -> None:
    """At each instant as the classes do, one after the other and without a gap."""
    table, window = made(capacities, booked), Term(3, 2 * END)
    steps = list(table.steps(window))
    assert list(table.frees(window)) == [(*term, capacity - reserved) for term, reserved, capacity in steps]
    assert steps[0][0].start == window.start and steps[-1][0].end == window.end
    for (term, reserved, capacity), following in zip(steps, [*steps[1:], None], strict=True):
        assert following is None or (following[0].start == term.end and following[1:] != (reserved, capacity))
        for at in range(*term):
            assert (table.reserved_at(at), table.capacity_at(at)) == (reserved, capacity)


@settings(deadline=None)
@given(
    capacities=st.tuples(*[st.integers(0, 4)] * 3), booked=bookings, units=st.integers(1, 8), length=st.integers(1, 9)
)
def test_windows_have_every_start_that_fits(
    capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]], units: int, length: int
) -> None:
    """And no other; two windows have a start between them that does not."""
    table, window = made(capacities, booked), Term(3, 2 * END)
    starts = range(window.start, window.end - length + 1)
    fitting = {at for at in starts if table.available(Term(at, at + length)) >= units}
    found = list(table.fits(units, length, window))
    assert [at for term in found for at in range(term.start, term.end - length + 1)] == sorted(fitting)
    assert all(one.end - length + 1 < other.start for one, other in pairwise(found))


@settings(deadline=None)
@given(capacities=st.tuples(*[st.integers(0, 4)] * 3), booked=bookings, length=st.integers(1, 3 * END))
def test_stretches_have_the_extremes_of_their_instants(
    capacities: tuple[int, ...], booked: list[tuple[bytes, int, Term, bool]], length: int
) -> None:
    """The least that is there, the most that is reserved, the least that is free; each differs from the one before."""
    table, window = made(capacities, booked), Term(3, 2 * END)
    found = list(binned(table.steps(window), window, length))
    told = {number: figures for number, *figures in found}
    expected, before = {}, None
    for number, start in enumerate(range(*window, length)):
        instants = range(start, min(start + length, window.end))
        there, reserved = [table.capacity_at(at) for at in instants], [table.reserved_at(at) for at in instants]
        figures = [min(there), max(reserved), min(a - b for a, b in zip(there, reserved, strict=True))]
        if figures != before:
            expected[number] = before = figures
    assert told == expected
    assert [number for number, *_ in found] == sorted(told)


@settings(deadline=None)
@given(booked=bookings, at=st.integers(0, 2 * END), term=terms, units=st.integers(1, 3))
def test_changes_are_carried_out_by_class(
    booked: list[tuple[bytes, int, Term, bool]], at: int, term: Term, units: int
) -> None:
    """A reservation that is ended, moved, replaced or released is so in each of its classes, or in none."""
    table = made((4, 4, 4), booked)
    for key in list(table):
        before, held = table.booked(key), table.get(key)
        assert held is not None and total(before) == held[0] and key in table
        view = table.copy()
        view.end(key, at)
        for class_ in CLASSES:
            assert view.tables[class_].free_at(at) == free(table, class_, at) + (
                count_of(before, class_) if held[1].start <= at < held[1].end else 0
            )
        taken = counts(dict.fromkeys(CLASSES[:2], units))
        try:
            view.replace(key, "new", taken, Term(max(at, 1), max(at, 1) + 5))
        except Shortfall:
            assert "new" not in view
        else:
            assert view.booked("new") == taken
        other = table.copy()
        try:
            other.change(key, term=term)
        except Shortfall:
            assert other.get(key) == held
        else:
            assert other.get(key) == (held[0], term) and other.booked(key) == before
        other.release(key)
        assert key not in other and len(other) == len(table) - 1
    assert len(table) == len(list(table))
