"""Units of one size on the hosts of a class, against what their resources say one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.divided import SizedTimetable
from leasekit.core.time import Term
from leasekit.core.timetable import Timetable

terms = st.tuples(st.integers(0, 19), st.integers(1, 8)).map(lambda one: Term(one[0], one[0] + one[1]))
bookings = st.lists(st.tuples(st.sampled_from((0, 1)), st.integers(1, 6), terms), max_size=6)


@given(bookings, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), terms)
def test_what_is_free_of_units_that_take_two_resources(
    booked: list[tuple[int, int, Term]], cpu: int, memory: int, units: int, term: Term
) -> None:
    """At each instant the resource that is scarcest says how many units are free; all questions agree with that."""
    tables, takes = (Timetable(12), Timetable(9)), (cpu, memory)
    for key, (resource, much, over) in enumerate(booked):
        tables[resource].reserve(key, much, over, force=True)
    sized = SizedTimetable(list(zip(tables, takes, strict=True)))

    def free(at: int) -> int:
        return min(table.free_at(at) // much for table, much in zip(tables, takes, strict=True))

    assert [sized.free_at(at) for at in range(30)] == [free(at) for at in range(30)]
    assert sized.available(term) == min(free(at) for at in range(*term))
    short = sized.short_at(units, term.start)
    assert min([at for at in range(term.start, 40) if free(at) < units], default=short) == short
    length = term.end - term.start
    fits = [at for at in range(31) if all(free(one) >= units for one in range(at, at + length))]
    assert sized.earliest(units, length, 0, 30) == (fits[0] if fits else None)
    steps = [(one.start, capacity - reserved) for one, reserved, capacity in sized.steps(Term(0, 30))]
    assert all(free(at) == left for at, left in steps)
