"""The guest's mapper that keeps a list of demands satisfied."""

from __future__ import annotations

from typing import Any

import pytest
from guest_cycles import Provider, view
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, LeaseView, RequestLease, Wake
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Instant, Term
from leasekit.policies.guest.static import StaticDemand, StaticSettings


def keeper(*demands: dict[str, Any], **settings: Any) -> StaticDemand:
    defaults = {"type": "vm", "term": HOUR}
    table = {"demands": [{**defaults, **demand} for demand in demands or ({},)], **settings}
    return StaticDemand(structure(StaticSettings, table, "mapper"))


def plan(mapper: StaticDemand, now: Instant, *leases: LeaseView) -> list[GuestDecision]:
    return mapper.plan(GuestCycle(now, leases))


def own(name: str = "vm", units: int = 1, start: Instant = 0, end: Instant = HOUR, **changes: Any) -> LeaseView:
    return view("l1", units, start, end, slice="static", name=name, **changes)


def requests(provider: Provider) -> list[tuple[Instant, str, Term]]:
    return [(now, wish.name, wish.term) for now, wish in provider.wishes if isinstance(wish, RequestLease)]


def test_each_demand_is_asked_for_at_its_start() -> None:
    """A request says all that its demand does; a later one waits for its offset."""
    first = {
        "type": "gpu", "units": 4, "slice": "lab", "name": "train", "site": "a", "broker": "b",
        "properties": {"priority": "1"}, "configuration": {"image": "x"},
    }  # fmt: skip
    mapper = keeper(first, {"start": 5 * MINUTE})
    assert plan(mapper, 100) == [
        RequestLease("gpu", 4, Term(100, 100 + HOUR), "lab", "train", "b", "a", {"priority": "1"}, {"image": "x"}),
        Wake(100 + 10 * SECOND),
    ]
    provider = Provider({"a": 9})
    provider.run(keeper(first, {"start": 5 * MINUTE}), HOUR // 2)
    assert requests(provider) == [(0, "train", Term(0, HOUR)), (5 * MINUTE, "vm", Term(5 * MINUTE, 65 * MINUTE))]


def test_a_lease_is_extended_before_it_ends_again_and_again() -> None:
    """One lease goes on for a day by extends, each of them 5 minutes ahead, with the demand's units."""
    provider = Provider({"a": 9})
    provider.run(keeper({"units": 3}), DAY)
    assert len(requests(provider)) == 1
    extends = [(now, wish) for now, wish in provider.wishes if isinstance(wish, ExtendLease)]
    assert [now for now, _ in extends] == [n * HOUR - 5 * MINUTE for n in range(1, 25)]
    assert extends[0][1] == ExtendLease("l1", 2 * HOUR, 3)


def test_anew_is_followed_by_another_lease_without_extends() -> None:
    """With ``renew = "anew"`` each term is a lease of its own, asked for ahead, back to back."""
    provider = Provider({"a": 9})
    provider.run(keeper({"units": 2, "renew": "anew", "term": 30 * MINUTE}), 2 * HOUR - 10 * MINUTE)
    half = 30 * MINUTE
    assert requests(provider) == [
        (0, "vm", Term(0, half)),
        (27 * MINUTE, "vm.2", Term(half, 2 * half)),
        (57 * MINUTE, "vm", Term(2 * half, 3 * half)),
        (87 * MINUTE, "vm.2", Term(3 * half, 4 * half)),
    ]
    assert len(provider.wishes) == 4


def test_without_renewal_a_demand_is_over_after_its_term() -> None:
    """``renew = false`` asks for one term and never wakes again when it is over."""
    provider = Provider({"a": 9})
    provider.run(keeper({"renew": False}), DAY)
    assert len(provider.wishes) == 1
    assert provider.turns[-1] == HOUR
    assert provider.wake is None


def test_a_short_demand_is_not_asked_for_twice() -> None:
    """A lease shorter than the wait before the next look is over then, not refused."""
    provider = Provider({"a": 9})
    provider.run(keeper({"renew": False, "term": 4 * SECOND}), DAY)
    assert len(provider.wishes) == 1


def test_a_lost_lease_that_is_not_renewed_is_made_up_for_what_is_left() -> None:
    """What is left of the only term is asked for again when the lease is lost in the middle of it."""
    provider, mapper = Provider({"a": 9}), keeper({"renew": False})
    provider.run(mapper, 20 * MINUTE)
    provider.lose("l1")
    provider.run(mapper, DAY)
    (_, second) = requests(provider)
    assert second[0] <= 25 * MINUTE
    assert second[2] == Term(second[0], HOUR)


def test_refused_requests_are_repeated_with_backoff() -> None:
    """Attempts come 10, 20, 40 s apart and so on up to the longest wait, and stop when one is granted."""
    provider = Provider({"a": 9}, refuse=lambda now, wish: now < 30 * MINUTE)
    provider.run(keeper(retry_max="5m"), HOUR)
    times = [now // SECOND for now, _, _ in requests(provider)]
    assert times == [0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510, 1810]


def test_a_refused_extend_is_repeated_and_the_lease_replaced_at_its_end() -> None:
    """Extends that are refused are tried again while there is time; at the end a new lease is asked for at once."""
    provider = Provider({"a": 9}, refuse=lambda now, wish: isinstance(wish, ExtendLease) and now < 2 * HOUR)
    provider.run(keeper(retry_max="1m"), 3 * HOUR)
    tries = [now - 55 * MINUTE for now, wish in provider.wishes if isinstance(wish, ExtendLease) and now < HOUR]
    assert tries == [0, 10_000, 30_000, 70_000, 130_000, 190_000, 250_000]
    assert requests(provider)[1][0] - HOUR in range(MINUTE)


def test_a_lost_lease_is_noticed_within_the_check_and_replaced() -> None:
    """Nothing tells the mapper of a loss: it looks every five minutes."""
    provider, mapper = Provider({"a": 9}), keeper()
    provider.run(mapper, 20 * MINUTE)
    provider.lose("l1")
    provider.run(mapper, 30 * MINUTE)
    assert [name for _, name, _ in requests(provider)] == ["vm", "vm"]
    assert requests(provider)[1][0] <= 25 * MINUTE


def test_a_restarted_guest_finds_its_lease() -> None:
    """A fresh mapper goes on with the lease that is open under the demand's name, and extends it in time."""
    assert plan(keeper(), 20 * MINUTE, own()) == [Wake(25 * MINUTE)]
    extend, _ = plan(keeper(), 56 * MINUTE, own("vm.3"))
    assert extend == ExtendLease("l1", 2 * HOUR, 1)
    elsewhere = [own()._replace(slice="other"), own("vm-2"), own("vm.x")]
    assert isinstance(plan(keeper(), 0, *elsewhere)[0], RequestLease)


@pytest.mark.parametrize("changes", [{"closing": True}, {"pending": "close_wait"}, {"term": Term(0, 10)}])
def test_a_lease_on_its_way_out_is_replaced_under_another_name(changes: dict[str, Any]) -> None:
    """A lease that closes or is over covers nothing; its name is taken until it is gone."""
    request = plan(keeper(), 10, own()._replace(**changes))[0]
    assert isinstance(request, RequestLease)
    assert request.name == "vm.2"


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "nascent", "pending": "ticketing"},
        {"state": "ticketed", "pending": "redeeming"},
        {"pending": "modifying"},
        {"pending": "extending_ticket"},
    ],
)
def test_a_busy_lease_is_left_alone(changes: dict[str, Any]) -> None:
    """While an answer is out, nothing is asked; the mapper looks again soon."""
    mapper = keeper()
    assert plan(mapper, 58 * MINUTE, own(**changes)) == [Wake(58 * MINUTE + 10 * SECOND)]
    assert isinstance(plan(mapper, 58 * MINUTE + 10 * SECOND, own())[0], ExtendLease)


def test_count_makes_as_many_leases_with_names_of_their_own() -> None:
    """``count`` leases are kept apart by number, each renewed by itself."""
    provider = Provider({"a": 9})
    provider.run(keeper({"count": 3, "name": "web"}), 2 * HOUR)
    assert [name for _, name, _ in requests(provider)] == ["web-1", "web-2", "web-3"]
    assert sum(isinstance(wish, ExtendLease) for _, wish in provider.wishes) == 6


@pytest.mark.parametrize(
    ("demand", "ahead"),
    [
        ({"term": "1d"}, 5 * MINUTE),
        ({"term": "30m"}, 3 * MINUTE),
        ({"term": "10m"}, 2 * MINUTE),
        ({"term": "3m"}, 90 * SECOND),
        ({"term": "1d", "extend_ahead": "2h"}, 2 * HOUR),
    ],
)
def test_how_long_ahead_a_lease_is_renewed(demand: dict[str, Any], ahead: int) -> None:
    """A tenth of the term within 2 to 5 minutes, never more than half the term, or as set."""
    assert keeper(demand).settings.demands[0].ahead == ahead


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from((True, False, "anew")), st.integers(0, 30)), min_size=1),
    st.lists(st.integers(0, 120), max_size=10),
)
def test_demands_never_hold_more_than_asked_and_mappers_never_spin(
    shapes: list[tuple[int, Any, int]], outages: list[int]
) -> None:
    """Whatever is refused and when, each demand holds at most its units at any time, and turns stay few."""
    demands = [
        {"name": f"d{index}", "units": 2, "term": term * MINUTE, "renew": renew, "start": start * MINUTE}
        for index, (term, renew, start) in enumerate(shapes)
    ]
    provider = Provider({"a": 2 * len(demands)}, refuse=lambda now, wish: now // MINUTE in outages)
    mapper, horizon = keeper(*demands, retry_max="1m"), 2 * HOUR
    while provider.wake is not None and provider.wake < horizon:
        provider.turn(mapper, provider.wake)
        now = provider.turns[-1]
        for index in range(len(demands)):
            open_ = [lease for lease in provider.leases if lease.name.partition(".")[0] == f"d{index}"]
            assert sum(lease.units for lease in open_ if lease.term.start <= now < lease.term.end) <= 2
    # Each demand looks at most every 10 s for a while, and then once for each of its waits.
    assert len(provider.turns) <= len(demands) * (horizon // (10 * SECOND))
    assert len(set(provider.turns)) == len(provider.turns)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "mapper.demands: found nothing, expected a list"),
        ({"demands": []}, "mapper.demands: found an empty list, "),
        ({"demands": [{"type": "vm"}]}, "mapper.demands[0].term: found nothing, expected a duration"),
        (
            {"demands": [{"type": "vm", "term": "1h", "units": 0}]},
            "mapper.demands[0].units: found 0, expected >= 1",
        ),
        (
            {"demands": [{"type": "vm", "term": "1h", "renew": "yes"}]},
            "mapper.demands[0].renew: found 'yes', expected true or false or one of: 'anew'",
        ),
        (
            {"demands": [{"type": "vm", "term": "1h", "name": "a.2"}]},
            "mapper.demands[0].name: found 'a.2', but expected a name without a slash that doesn't end in a dot",
        ),
        (
            {"demands": [{"type": "vm", "term": "1h", "extend_ahead": "1h"}]},
            "mapper.demands[0]: extend_ahead is 1h, expected less than term, 1h",
        ),
        (
            {"demands": [{"type": "vm", "term": "1h"}, {"type": "vm", "term": "2h"}]},
            "mapper: slice 'static' has two demands named 'vm', expected different names",
        ),
        (
            {"demands": [{"type": "vm", "term": "1h"}], "retry_first": "1h"},
            "mapper: retry_max is 10m, expected at least retry_first, 1h",
        ),
    ],
)
def test_settings_that_can_not_be_used(table: dict[str, Any], words: str) -> None:
    """Each fault names its key, what was found and what is expected."""
    with pytest.raises(SettingsError) as raised:
        structure(StaticSettings, table, "mapper")
    (line,) = raised.value.errors
    assert line.startswith(words)
