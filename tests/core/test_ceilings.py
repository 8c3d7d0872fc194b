"""How much hosts have left in one piece, as a timetable of a divided type sees it."""

from __future__ import annotations

import pytest

from leasekit.core.divided import Ceiling, DividedTimetable
from leasekit.core.properties import HostClass, HostClasses, Vector, weigh
from leasekit.core.time import Term
from leasekit.core.timetable import ClassedTimetable

CLASS = b"c" * 32
HAS: Vector = (("cpu", 4000), ("memory", 8192))
SMALL: Vector = (("cpu", 1000), ("memory", 1024))
LARGE: Vector = (("cpu", 3000), ("memory", 1024))
DAY = Term(0, 1000)


@pytest.fixture
def table() -> DividedTimetable:
    """Two hosts, of which each has 2000 millicores left up to 100."""
    hosts = HostClasses({CLASS: HostClass(HAS, 0, 1000)})
    pools = ClassedTimetable({})
    pools.add_capacity(DAY, weigh(((CLASS, 2),), (HAS,)))
    return DividedTimetable(pools, hosts, ceilings={CLASS: [Ceiling("cpu", 2000, 100)]})


def test_who_needs_more_has_no_place_before_it_ends(table: DividedTimetable) -> None:
    """Terms that begin by then have none; later ones, smaller units, and units that have their places do."""
    large, small = table.needing(LARGE), table.needing(SMALL)
    assert large.available(Term(99, 200)) == table.available(Term(0, 1)) == 0
    assert large.available(Term(100, 200)) == 2 and small.available(Term(0, 200)) == 8
    assert large.earliest(1, 50, 0, 500) == 100 and small.earliest(1, 50, 0, 500) == 0
    assert [(term, free - taken) for term, taken, free in large.steps(Term(0, 200))] == [
        (Term(0, 100), 0), (Term(100, 200), 2),
    ]  # fmt: skip
    assert large.placed().available(Term(0, 200)) == 2
    assert large.of(frozenset({CLASS})).available(Term(0, 200)) == 0


def test_it_is_lifted_while_units_leave(table: DividedTimetable) -> None:
    """In all views of one turn, and in no other."""
    turn, other = table.overlay(), table.copy()
    large = turn.needing(LARGE)
    turn.needing(SMALL).add_capacity(Term(0, 100), ((CLASS, 2),))
    assert large.available(Term(0, 200)) == 2
    assert table.needing(LARGE).available(Term(0, 200)) == other.needing(LARGE).available(Term(0, 200)) == 0
    turn.needing(SMALL).add_capacity(Term(0, 100), ((CLASS, 2),), -1)
    assert large.available(Term(0, 200)) == 0
