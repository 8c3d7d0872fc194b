"""The guest's mapper that follows a load signal."""

from __future__ import annotations

from typing import Any

import pytest
from guest_cycles import Provider, view
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, LeaseView, RequestLease, Wake
from leasekit.core.settings import SettingsError, structure
from leasekit.core.signals import Signal, whole_units
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Instant, Term
from leasekit.policies.guest.filters import FlopFlip, FlopFlipSettings
from leasekit.policies.guest.load_following import LoadFollowing, LoadFollowingSettings

STEP = 5 * MINUTE
LOADS = st.lists(st.integers(0, 30), min_size=1, max_size=60)


def signal(*values: float, start: Instant = 0) -> Signal:
    """One value for each interval."""
    return Signal([(start + index * STEP, value) for index, value in enumerate(values)])


def follower(load: Signal, **settings: Any) -> LoadFollowing:
    defaults: dict[str, Any] = {"type": "vm", "smooth": False, "term": HOUR}
    return LoadFollowing(structure(LoadFollowingSettings, {**defaults, **settings}, "mapper"), signal=load)


def plan(mapper: LoadFollowing, now: Instant, *leases: LeaseView) -> list[GuestDecision]:
    return mapper.plan(GuestCycle(now, leases))


def test_asks_for_what_is_missing_as_one_elastic_lease() -> None:
    """The difference between wanted and held is one request for a term from now on, fewer units being fine."""
    mapper = follower(signal(7.2), slice="web", broker="b", configuration={"image": "x"}, properties={"priority": "2"})
    request, wake = plan(mapper, 0, view(units=3, slice="web", end=HOUR))
    assert request == RequestLease(
        "vm", 5, Term(0, HOUR), "web", broker="b", configuration={"image": "x"},
        properties={"elastic": "true", "min_units": "1", "priority": "2"},
    )  # fmt: skip
    assert wake == Wake(15 * SECOND)


def test_wakes_at_the_next_interval_and_no_sooner_when_content() -> None:
    """With enough units the next look is at the next multiple of the interval, wherever this one was."""
    mapper = follower(signal(3))
    assert plan(mapper, STEP + 17, view(units=5, end=HOUR)) == [Wake(2 * STEP)]


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, 4),
        ({"state": "nascent", "pending": "ticketing", "units": 0, "requested": 3}, 3),
        ({"state": "ticketed", "pending": "redeeming"}, 4),
        ({"pending": "extending_ticket", "requested": 6}, 6),
        ({"state": "active_ticketed", "next_term": Term(HOUR, 2 * HOUR), "next_units": 2}, 2),
        ({"term": Term(0, 10), "state": "active_ticketed", "next_term": Term(10, HOUR), "next_units": 2}, 2),
        ({"term": Term(0, STEP)}, 0),
        ({"term": Term(STEP + 1, HOUR)}, 0),
        ({"closing": True}, 0),
        ({"pending": "closing"}, 0),
        ({"pending": "close_wait"}, 0),
        ({"slice": "other"}, 0),
        ({"type": "gpu"}, 0),
    ],
)
def test_holdings_are_what_is_there_or_coming(changes: dict[str, Any], counted: int) -> None:
    """Leases count with what they will have, from request to renewal; not those that end, are over, or are others."""
    mapper = follower(signal(10, 10))
    lease = view(units=4, end=HOUR)._replace(**changes)
    request = next(wish for wish in plan(mapper, STEP, lease) if isinstance(wish, RequestLease))
    assert request.units == 10 - counted


def test_the_rest_is_asked_for_in_the_same_interval() -> None:
    """A surge that one site can't serve is served by two, well before the next interval, on the same terms."""
    provider = Provider({"a": 70, "b": 60})
    provider.run(follower(signal(100)), STEP)
    asked = [(now, wish.units, wish.term) for now, wish in provider.wishes if isinstance(wish, RequestLease)]
    assert asked == [(0, 100, Term(0, HOUR)), (15_000, 30, Term(15_000, HOUR))]
    assert sum(lease.units for lease in provider.leases) == 100
    assert provider.turns == [0, 15_000, 30_000]


def test_a_refused_request_waits_for_the_next_interval() -> None:
    """Nothing is asked for twice in one interval when nothing was granted, nor while an answer is still out."""
    mapper = follower(signal(5, 5))
    assert plan(mapper, 0)[1] == Wake(15_000)
    assert plan(mapper, 15_000) == [Wake(STEP)]
    assert isinstance(plan(mapper, STEP)[0], RequestLease)
    waiting = view("l2", 0, STEP, STEP + HOUR, state="nascent", pending="ticketing", requested=4)
    assert plan(mapper, STEP + 15_000, waiting) == [Wake(2 * STEP)]


def test_without_settling_the_rest_waits_for_the_next_interval() -> None:
    """``settle = 0`` looks once per interval only."""
    provider = Provider({"a": 70, "b": 60})
    provider.run(follower(signal(100), settle=0), STEP + 1)
    assert [now for now, _ in provider.wishes] == [0, STEP]


def test_an_expiring_lease_is_replaced_when_it_ends() -> None:
    """With ``renew = "expire"`` leases end, and what is then missing is asked for anew; nothing is given up before."""
    provider = Provider({"a": 100})
    provider.run(follower(signal(10, *[4] * 30), settle=0), HOUR + 1)
    assert [(now, wish.units) for now, wish in provider.wishes if isinstance(wish, RequestLease)] == [
        (0, 10),
        (HOUR, 4),
    ]


def extended(mapper: LoadFollowing, now: Instant, *leases: LeaseView) -> dict[str, tuple[int | None, Instant]]:
    return {wish.lease: (wish.units, wish.end) for wish in plan(mapper, now, *leases) if isinstance(wish, ExtendLease)}


def test_extends_only_what_could_not_be_extended_later() -> None:
    """A lease is extended at the last look at which ``extend_ahead`` is still left, by a whole term."""
    mapper = follower(signal(*[9] * 20), renew="extend")
    near, far = view("near", 5, 0, 8 * MINUTE), view("far", 4, 0, 12 * MINUTE)
    assert extended(mapper, STEP, near, far) == {"near": (5, 8 * MINUTE + HOUR)}
    assert extended(mapper, 2 * STEP, far) == {"far": (9, 12 * MINUTE + HOUR)}


def test_extends_shrink_by_the_surplus_and_let_go_of_what_is_not_wanted() -> None:
    """The surplus is taken from the leases that end, the first ones first; one of which nothing is wanted expires."""
    mapper = follower(signal(*[6] * 20), renew="extend")
    leases = (view("a", 5, 0, STEP), view("b", 4, 0, STEP), view("c", 4, 0, HOUR))
    assert extended(mapper, 0, *leases) == {"b": (2, STEP + HOUR)}


def test_extends_grow_instead_of_a_new_lease() -> None:
    """What is missing when a lease is extended is added to it; no further lease is asked for."""
    mapper = follower(signal(*[9] * 20), renew="extend")
    decisions = plan(mapper, 0, view("a", 5, 0, STEP))
    wish = {"elastic": "true", "min_units": "1"}
    assert decisions == [ExtendLease("a", STEP + HOUR, 9, properties=wish), Wake(STEP)]


def test_a_lease_that_is_busy_is_not_extended() -> None:
    """Only an active lease with nothing pending and no renewal in hand is extended."""
    mapper = follower(signal(*[9] * 20), renew="extend")
    busy = [
        view("a", 3, 0, STEP, pending="modifying"),
        view("b", 3, 0, STEP, state="active_ticketed", next_term=Term(STEP, HOUR), next_units=3),
        view("c", 3, 0, STEP, state="ticketed"),
    ]
    assert extended(mapper, 0, *busy) == {}


@given(LOADS, st.integers(1, 12))
def test_expiring_leases_hold_at_least_the_load_and_never_what_was_not_wanted(values: list[int], steps: int) -> None:
    """With room enough, holdings at each interval are the load or what some load within one term before it was."""
    provider = Provider({"a": 1000})
    mapper = follower(signal(*values), term=steps * STEP)
    provider.run(mapper, len(values) * STEP)
    for index, wanted in enumerate(values):
        recent = values[max(0, index - steps + 1) : index + 1]
        assert wanted <= provider.held[index * STEP] <= max(recent)


@given(LOADS)
def test_extended_leases_follow_the_load_within_a_term(values: list[int]) -> None:
    """With extends, a load that holds for a term and an interval is met exactly, whatever it was before."""
    steps = 4
    provider = Provider({"a": 1000})
    mapper = follower(signal(*values), term=steps * STEP, renew="extend")
    last = len(values) + 2 * steps
    provider.run(mapper, last * STEP)
    assert provider.held[(last - 1) * STEP] == values[-1]


@given(LOADS, st.sampled_from(("expire", "extend")), st.integers(1, 20), st.integers(0, 20))
def test_runs_are_the_same_each_time_and_scarcity_is_respected(
    values: list[int], renew: str, first: int, second: int
) -> None:
    """Two runs of one load make the same wishes; no more is held than there is, or than the load ever was."""
    runs = []
    for _ in range(2):
        provider = Provider({"a": first, "b": second})
        provider.run(follower(signal(*values), renew=renew, term=20 * MINUTE), len(values) * STEP)
        assert max(provider.held.values()) <= min(first + second, max(values))
        runs.append((provider.wishes, provider.turns))
    assert runs[0] == runs[1]


# -- demand ------------------------------------------------------------------------------------------------------


def test_demand_is_scaled_rounded_up_and_bounded() -> None:
    """Units are the load times ``scale``, rounded up, between ``minimum`` and ``maximum``."""
    mapper = follower(signal(0, 2.1, 9, -3), scale=0.5, minimum=1, maximum=3)
    assert [mapper.wanted(index * STEP) for index in range(4)] == [1, 2, 3, 1]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.data())
def test_smoothed_demand_does_not_depend_on_who_looked_when(values: list[float], data: st.DataObject) -> None:
    """The filter sees each interval once: with skipped looks, repeated ones or a restart, demand is the same."""
    load = signal(*values)
    settings = {"smooth": True, "filter": {"window": 5}}
    expected = [whole_units(value) for value in map(FlopFlip(FlopFlipSettings(window=5)).observe, values)]
    mapper = follower(load, **settings)
    looks = sorted(data.draw(st.lists(st.integers(0, len(values) * STEP - 1), max_size=20)))
    for at in looks:
        if data.draw(st.booleans()):
            mapper = follower(load, **settings)
        assert mapper.wanted(at) == expected[at // STEP]


def test_nothing_is_wanted_before_the_signal_begins() -> None:
    """Before its first pair a signal wants nothing, and the filter hasn't seen anything."""
    mapper = follower(signal(8, start=2 * STEP), smooth=True)
    assert [mapper.wanted(index * STEP) for index in range(4)] == [0, 0, 8, 8]


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"term": 0}, "term: found 0, expected >= 1"),
        ({"interval": "0s"}, "interval: found '0s', expected >= 1"),
        ({"renew": "never"}, "renew: found 'never', expected one of: 'expire', 'extend'"),
        ({"scale": 0}, "scale: found 0, expected > 0"),
        ({"minimum": 5, "maximum": 4}, "maximum is 4, below minimum, 5"),
        ({"term": "1m"}, "term is 1m, expected at least interval, 5m"),
        ({"settle": "5m"}, "settle is 5m, expected less than interval, 5m"),
        (
            {"term": "6m", "renew": "extend"},
            "term is 6m: to be extended it must be at least interval and extend_ahead together, 7m",
        ),
        ({"configuration": {"a": 1}}, "configuration.a: found 1, expected text in quotes"),
        ({"filter": {"window": 0}}, "filter.window: found 0, expected >= 1"),
        ({"terms": 1}, "terms: found an unknown key, expected one of: "),
    ],
)
def test_settings_that_can_not_be_used(settings: dict[str, Any], words: str) -> None:
    """Each fault names its key, what was found and what is expected."""
    with pytest.raises(SettingsError) as raised:
        follower(signal(1), **settings)
    (line,) = raised.value.errors
    assert words in line
    assert line.startswith("mapper")


def test_type_is_needed() -> None:
    """There is no default for the type of units."""
    with pytest.raises(SettingsError, match=r"mapper\.type: found nothing, expected text in quotes"):
        structure(LoadFollowingSettings, {}, "mapper")


def test_a_month_has_bounded_leases_and_turns() -> None:
    """In a month no more leases pile up than a term has intervals, and no more turns than two for each interval."""
    values = [60 + 40 * ((index // 144) % 2) + index % 7 for index in range(30 * 288)]
    provider = Provider({"a": 200})
    provider.run(follower(signal(*values), term=12 * HOUR), 30 * DAY)
    assert len(provider.leases) <= 144
    assert len(provider.turns) <= 2 * 30 * 288
