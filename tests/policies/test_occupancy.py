"""Who holds which unit when, against a plain list of what is held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.time import Term
from leasekit.policies.authority.energy_holds import Occupancy

NAMES = ["a", "b", "c"]
keys = st.integers(0, 9)
terms = st.builds(lambda start, length: Term(start, start + length), st.integers(0, 30), st.integers(1, 10))
holds = st.tuples(keys, st.lists(st.sampled_from(NAMES), min_size=1, unique=True), terms)


@given(steps=st.lists(keys | holds, max_size=30), asked=terms)
def test_it_says_who_holds_what(steps: list[int | tuple[int, list[str], Term]], asked: Term) -> None:
    """Whatever is held, and released again: who has a unit in a term, and when it is held next."""
    table: Occupancy[int] = Occupancy()
    model: dict[int, tuple[list[str], Term]] = {}

    def holders(unit: str, term: Term) -> list[int]:
        found = [(held, key) for key, (units, held) in model.items() if unit in units and held.overlaps(term)]
        return [key for _, key in sorted(found)]

    for step in steps:
        if isinstance(step, int):
            table.release(step)
            model.pop(step, None)
            continue
        key, units, term = step
        assert [table.is_free(unit, term) for unit in units] == [not holders(unit, term) for unit in units]
        if key not in model and not any(holders(unit, term) for unit in units):
            table.hold(key, units, term)
            model[key] = (units, term)
    assert len(table) == len(model)
    for unit in NAMES:
        assert list(table.holders(unit, asked)) == holders(unit, asked)
        starts = [term.start for units, term in model.values() if unit in units and term.start >= asked.start]
        assert table.next_start(unit, asked.start) == min(starts, default=None)
