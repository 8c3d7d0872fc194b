"""The helpers of brokers' mappers: where a request may go, when it fits, and what is booked when it is granted."""

from __future__ import annotations

from typing import Any

import pytest

from leasekit.core.fitting import allowed, earliest, fit, fit_group, free_over, number_in, share_free
from leasekit.core.mappers import BrokerCycle, Defer, Grant, GrantGroup, PendingRequest, Reject, Source
from leasekit.core.time import HOUR, Term
from leasekit.core.timetable import ClassedTimetable, Timetable

NOON, DAY_LONG = 12 * HOUR, Term(0, 24 * HOUR)


def request(lease: str = "l", **changes: Any) -> PendingRequest:
    """One unit for two hours from noon on."""
    plain = PendingRequest(
        lease=lease, holder="g", op="new", type="vm", units=1, min_units=1, term=Term(NOON, NOON + 2 * HOUR),
        latest_start=NOON, deadline=NOON, arrived=0, site="", exclude_sites=frozenset(), source="", held=0, group="",
        priority=0, preemptible=False, properties={},
    )  # fmt: skip
    return plain._replace(**changes)


def source(site: str, units: int, taken: int = 0, until: int = NOON + HOUR) -> Source:
    """A delegation of a day, some of which is taken up to an instant."""
    table = Timetable(units)
    if taken:
        table.reserve("taken", taken, Term(0, until))
    return Source(f"d-{site}", site, "vm", units, DAY_LONG, {"zone": site}, table)


def cycle(*sources: Source) -> BrokerCycle:
    """A turn with these delegations."""
    return BrokerCycle(0, (), (), lambda _: sources)


@pytest.mark.parametrize(
    ("changes", "sites"),
    [
        ({}, ["a", "b"]),
        ({"site": "b"}, ["b"]),
        ({"exclude_sites": frozenset({"b"})}, ["a"]),
        ({"op": "extend", "source": "d-b"}, ["b"]),
        ({"op": "modify", "source": "d-a"}, ["a"]),
    ],
)
def test_where_a_request_may_go(changes: dict[str, Any], sites: list[str]) -> None:
    """By its site, those that it excludes, and where its lease is."""
    assert [one.site for one in allowed(cycle(source("a", 1), source("b", 1)), request(**changes))] == sites


def test_a_modify_has_what_it_holds() -> None:
    """Units that the lease holds itself count as free for its modify, as long as it holds them."""
    full = source("a", 4, taken=4, until=24 * HOUR)
    held = {"op": "modify", "source": "d-a", "held": 3}
    assert free_over(full, request(**held, held_until=NOON + 2 * HOUR), request().term) == 3
    assert free_over(full, request(**held, held_until=NOON + HOUR), request().term) == 0
    assert free_over(full, request(), Term(NOON, 25 * HOUR)) == 0


def test_the_earliest_start_in_the_window() -> None:
    """A deferrable request starts when there is room, if that is in its window and an extend never later."""
    full = source("a", 2, taken=2)
    assert earliest(full, request()) is None
    assert earliest(full, request(latest_start=NOON + 3 * HOUR)) == NOON + HOUR
    assert earliest(full, request(latest_start=NOON + HOUR - 1)) is None
    assert earliest(full, request(op="extend", latest_start=NOON + 3 * HOUR)) is None


def test_filters_take_units_of_some_classes() -> None:
    """A filter looks at attributes of the delegation and of its classes; one that can't be read takes none."""
    classed = ClassedTimetable({b"big": Timetable(1), b"small": Timetable(5)})
    mixed = source("a", 6)._replace(free=classed, classes={b"big": {"memory": "64"}, b"small": {"memory": "8"}})
    term = request().term

    def free(text: str, where: Source = mixed) -> int:
        return free_over(where, request(properties={"filter": text}), term)

    assert (free("memory > 32"), free("memory > 4"), free("memory > 99"), free("memory >")) == (1, 6, 0, 0)
    assert (free("zone == 'a'"), free("zone == 'b'")) == (6, 0)
    assert (free("zone == 'b'", source("b", 2)), free("site == 'a'", source("b", 2))) == (2, 0)
    granted = fit(cycle(mixed), request(properties={"filter": "memory > 32"}))
    assert isinstance(granted, Grant)
    assert free("memory > 32") == 0 and free("memory > 4") == 5


def test_requests_are_fitted_one_after_the_other() -> None:
    """Each sees what those before it have left; an elastic one takes what there is; who fits nowhere waits or goes."""
    turn = cycle(source("a", 2, taken=2), source("b", 3))
    first = fit(turn, request("first", units=2, min_units=2))
    assert isinstance(first, Grant) and (first.source, first.units) == ("d-b", 2)
    some = fit(turn, request("some", units=5, min_units=1))
    assert isinstance(some, Grant) and (some.source, some.units, some.term.start) == ("d-b", 1, NOON)
    later = fit(turn, request("later", latest_start=NOON + 4 * HOUR))
    assert isinstance(later, Grant) and (later.source, later.term.start) == ("d-a", NOON + HOUR)
    assert isinstance(fit(turn, request("never", units=9, min_units=9)), Reject)
    assert isinstance(fit(turn, request("waits", units=9, min_units=9, latest_start=NOON + HOUR)), Defer)


def test_a_group_is_granted_whole_or_leaves_nothing() -> None:
    """All members over one term; where one has no room the others' bookings are taken back."""
    turn = cycle(one := source("a", 3))
    members = [request(f"m{n}", group="g", units=2, min_units=1) for n in range(3)]
    granted = fit_group(turn, members)
    assert isinstance(granted, GrantGroup) and [grant.units for grant in granted.grants] == [1, 1, 1]
    assert one.free.available(request().term) == 0
    turn = cycle(one := source("a", 3))
    refused = fit_group(turn, [request("m0", group="g"), request("m1", group="g", units=3, min_units=3)])
    assert isinstance(refused, Reject) and refused.lease == "m1"
    assert one.free.available(request().term) == 3


def test_filters_and_weighers_choose_a_delegation() -> None:
    """Of those that all filters take and that have the earliest start, the heaviest; without any the first. An extend
    goes on where it is.
    """
    prices = {"a": "4", "b": "1", "c": "0.5", "d": "no number"}
    sources = [
        source(site, 4, taken, NOON + HOUR)._replace(properties={"price": price})
        for (site, price), taken in zip(prices.items(), (2, 3, 4, 0), strict=True)
    ]

    def price(one: Source, _: PendingRequest) -> float:
        return number_in(one.properties, "price")

    def chosen(filters: Any = (), weighers: Any = (), **changes: Any) -> str:
        fresh = [one._replace(free=one.free.overlay()) for one in sources]
        decision = fit(cycle(*fresh), request(latest_start=NOON + HOUR, **changes), filters, weighers)
        return decision.source if isinstance(decision, Grant) else type(decision).__name__

    assert chosen() == "d-a"
    assert chosen(weighers=[(price, 1.0)]) == "d-a"
    assert (
        chosen(weighers=[(price, -1.0)]) == "d-d"
    )  # what is no number counts as 0; c is cheap, and has its room later
    assert chosen([lambda one, _: price(one, _) > 0], [(price, -1.0)]) == "d-b"
    assert chosen(weighers=[(price, -1.0), (share_free, 0.1)], exclude_sites=frozenset("d")) == "d-b"
    assert chosen(weighers=[(price, -1.0), (share_free, 9.0)], exclude_sites=frozenset("d")) == "d-a"
    assert chosen([lambda one, _: one.site == "c"]) == "d-c"
    assert chosen([lambda one, _: False]) == "Defer"
    assert chosen([lambda one, _: False], op="extend", source="d-b") == "d-b"
