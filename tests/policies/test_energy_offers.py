"""The free units of one type, best first: what is kept in heaps is what sorting anew for each lease would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.time import Instant
from leasekit.policies.authority.energy import EnergyOffer, Rank

DUES = st.sampled_from([None, 5, 10, 20])


def order(end: Instant, due: Instant | None, rank: Rank) -> tuple[float, ...]:
    """As the energy manager's: what nobody needs before ``end``, what is ready, what is free for longest, the rest."""
    return (due is not None and due < end, rank.ready, 0 if due is None else 1 / (1 + due), rank.waste, rank.place)


@given(
    units=st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 0), DUES), min_size=1, max_size=12),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 4), st.integers(1, 25)),
            st.tuples(st.just("move"), st.integers(0, 11), DUES),
            st.tuples(st.just("pick"), st.integers(0, 11), st.integers(0, 2)),
            st.tuples(st.just("lose"), st.integers(0, 11), st.none()),
        ),
        max_size=12,
    ),
)
def test_it_is_as_if_all_were_sorted_each_time(
    units: list[tuple[int, int, Instant | None]], steps: list[tuple[str, int, int | None]]
) -> None:
    """Whatever is taken, moved, picked by name or given away elsewhere in between."""
    ranks = {f"u{place}": Rank(ready, waste, place) for place, (ready, waste, _) in enumerate(units)}
    due = {f"u{place}": at for place, (_, _, at) in enumerate(units)}
    gone: set[str] = set()
    offer, left = EnergyOffer(list(ranks), ranks, lambda unit: due[unit], gone), dict(due)

    for what, number, other in steps:
        name = f"u{number}"
        if what == "take":
            end = other or 0
            wanted = sorted(left, key=lambda unit: order(end, left[unit], ranks[unit]))[:number]
            assert offer.take(number, lambda at, rank: order(end, at, rank)) == wanted  # noqa: B023
            for unit in wanted:
                del left[unit]
        elif what == "move" and name in ranks:
            offer.moved(name, other)
            if name in left:
                left[name] = other
        elif what == "pick":
            wanted = [name][: other or 0] if name in left else []
            assert offer.pick([name], other or 0, lambda at, rank: order(0, at, rank)) == wanted
            left = {unit: at for unit, at in left.items() if unit not in wanted}
        elif what == "lose":
            gone.add(name)
            left.pop(name, None)
    assert set(left) == set(ranks) - gone


def test_several_are_picked_in_the_leases_order() -> None:
    """Of the units that are named, those that are best."""
    ranks = {
        name: Rank(0, waste, place) for place, (name, waste) in enumerate({"a": -1.0, "b": -3.0, "c": -2.0}.items())
    }
    offer = EnergyOffer(ranks, ranks, lambda unit: None, set())
    assert offer.pick(["a", "b", "c", "x"], 2, lambda due, rank: order(0, due, rank)) == ["b", "c"]
    assert offer.take(5, lambda due, rank: order(0, due, rank)) == ["a"]
