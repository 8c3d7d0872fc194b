"""The energy manager's rule: idle checks, how many units are to be on, which are switched, and forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant
from leasekit.policies.authority.energy_plan import (
    EnergyPowerSettings,
    Ewma,
    EwmaSettings,
    Fleet,
    Forecast,
    IdleChecks,
    LastValue,
    PowerManager,
    Switching,
)
from leasekit.policies.registry import known_mappers, make_part


class Says:
    """A forecast that is known."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)
        self.asked: list[tuple[Instant, int]] = []

    def forecast(self, now: Instant, demand: int) -> float:
        self.asked.append((now, demand))
        return self.values.pop(0)


def manager(forecast: Forecast | None = None, **settings: int) -> PowerManager:
    """A manager whose units u0, u1, ... have all been idle since 0."""
    made = PowerManager(EnergyPowerSettings(**settings), forecast or LastValue())
    for number in range(10):
        made.checks.idle(f"u{number}", 0)
    return made


def fleet(on: int, *, in_use: int = 0, reserved: int = 0, idle: Sequence[str] = (), dark: Sequence[str] = ()) -> Fleet:
    return Fleet(in_use=in_use, reserved=reserved, on=on, idle=idle, dark=dark)


# -- idle checks -----------------------------------------------------------------------------------------------------


def idle_checks(checks: IdleChecks, unit: str, now: int) -> int:
    """In how many checks in a row, up to ``now``, a unit was idle."""
    return next(number for number in count() if not [*checks.idle_for([unit], now, number + 1)])


def counted(changes: Sequence[tuple[Instant, bool]], now: Instant, interval: int) -> int:
    """The paper's counter: at each check one more if the unit is idle, and 0 if it isn't."""
    count = 0
    for check in range(0, now + 1, interval):
        idle = False
        for at, state in changes:
            if at <= check:
                idle = state
        count = count + 1 if idle else 0
    return count


@given(st.lists(st.integers(0, 60), max_size=12, unique=True), st.integers(0, 70), st.integers(1, 9))
def test_idle_checks_count_as_if_each_check_had_looked(instants: list[int], now: int, interval: int) -> None:
    """Told only of changes, the count for a unit that is idle is that of the paper's procedure, which samples at every
    check. One that is busy again since the last check is none that could be switched off.
    """
    checks = IdleChecks(interval)
    changes = [(at, number % 2 == 0) for number, at in enumerate(sorted(instants)) if at <= now]
    for at, idle in changes:
        (checks.idle if idle else checks.busy)("u", at)
    idle = bool(changes) and changes[-1][1]
    assert idle_checks(checks, "u", now) == (counted(changes, now, interval) if idle else 0)


def test_a_unit_that_was_off_counts_anew() -> None:
    """After it was switched on again a unit has been idle for no check yet."""
    checks = IdleChecks(MINUTE)
    checks.idle("u", 0)
    assert idle_checks(checks, "u", 4 * MINUTE) == 5
    checks.forget("u")
    assert idle_checks(checks, "u", 5 * MINUTE) == 0
    checks.idle("u", 5 * MINUTE + 1)
    assert idle_checks(checks, "u", 6 * MINUTE) == 1


# -- decisions -------------------------------------------------------------------------------------------------------


def test_units_are_switched_on_when_fewer_are_on_than_needed() -> None:
    """As the paper's text says; its listing has the test the wrong way round."""
    made = manager(Says(5.2))
    assert made.decide(HOUR, fleet(3, in_use=3, dark=["a", "b", "c", "d"])) == Switching(("a", "b", "c"))


def test_units_are_switched_off_when_more_are_on_than_needed() -> None:
    """The first ones offered, which are the least efficient, and no more than there are too many."""
    made = manager(Says(4))
    found = made.decide(HOUR, fleet(6, in_use=3, idle=["u2", "u1", "u0"]))
    assert found == Switching((), ("u2", "u1"))


def test_as_many_as_needed_is_left_alone() -> None:
    """Nothing is switched when as many are on as are needed."""
    assert manager(Says(3)).decide(HOUR, fleet(3, in_use=2, idle=["u0"], dark=["a"])) == Switching()


def test_needed_is_the_greatest_of_forecast_reservations_and_minimum() -> None:
    """Each of the three decides when it is the greatest; the forecast is rounded up."""
    for forecast, reserved, minimum, needed in ((6.1, 3, 2, 7), (1, 5, 2, 5), (1, 2, 4, 4)):
        made = manager(Says(forecast), minimum=minimum)
        assert made.needed(HOUR, fleet(0, reserved=reserved)) == needed


def test_only_units_idle_for_enough_checks_are_switched_off() -> None:
    """Five checks in a row by default; a unit that was busy at one of them stays."""
    made = manager(Says(0, 0))
    made.checks.busy("u1", 3 * MINUTE - SECOND)
    made.checks.idle("u1", 3 * MINUTE + SECOND)
    units = ["u0", "u1"]
    assert made.decide(4 * MINUTE - SECOND, fleet(2, idle=units)) == Switching()
    assert made.decide(5 * MINUTE, fleet(2, idle=units)) == Switching((), ("u0",))


def test_the_forecast_learns_once_in_each_decision() -> None:
    """It is asked once a decision, with what is in use."""
    says = Says(1, 2)
    made = manager(says)
    made.decide(5 * MINUTE, fleet(3, in_use=3))
    made.decide(10 * MINUTE, fleet(3, in_use=2))
    assert says.asked == [(5 * MINUTE, 3), (10 * MINUTE, 2)]


def test_a_short_idle_time_expected_means_suspend() -> None:
    """Off where nothing is known; suspended where the next reservation is near, or where units were dark for short of
    late.
    """
    made = manager(Says(0, 0, 0, 0), suspend_below=30 * MINUTE)
    assert made.decide(HOUR, fleet(1, idle=["u0"])) == Switching((), ("u0",), False)
    near = fleet(1, idle=["u1"])._replace(next_due=HOUR + 20 * MINUTE)
    assert made.decide(HOUR, near) == Switching((), ("u1",), True)
    far = fleet(1, idle=["u2"])._replace(next_due=2 * HOUR)
    assert made.decide(HOUR, far) == Switching((), ("u2",), False)
    made.woken("u2", HOUR + 10 * MINUTE)
    assert made.decide(2 * HOUR, fleet(1, idle=["u3"])) == Switching((), ("u3",), True)
    assert made.expected(2 * HOUR, fleet(1)) == 10 * MINUTE


def test_never_suspended_unless_told_so() -> None:
    """By default a unit is switched off however short its idle time will be."""
    made = manager(Says(0))
    found = made.decide(HOUR, fleet(1, idle=["u0"])._replace(next_due=HOUR + 1))
    assert found == Switching((), ("u0",), False)


def test_the_lookahead_covers_booting() -> None:
    """The horizon, unless booting and the wait for the next decision take longer."""
    assert EnergyPowerSettings().lookahead == 15 * MINUTE
    assert EnergyPowerSettings(boot=14 * MINUTE).lookahead == 19 * MINUTE


@given(on=st.integers(0, 8), forecast=st.floats(0, 12), reserved=st.integers(0, 12), minimum=st.integers(0, 12))
def test_a_decision_leads_to_what_is_needed_as_far_as_it_can(
    on: int, forecast: float, reserved: int, minimum: int
) -> None:
    """After it as many are on as are needed, or all that can be are, or no more can be switched off."""
    made = manager(Says(forecast), minimum=minimum)
    idle, dark = [f"u{n}" for n in range(on)], [f"d{n}" for n in range(8 - on)]
    found = made.decide(HOUR, fleet(on, reserved=reserved, idle=idle, dark=dark))
    needed = max(math.ceil(round(forecast, 6)), reserved, minimum)
    after = on + len(found.on) - len(found.off)
    assert after == min(needed, 8)
    assert not (found.on and found.off)


# -- forecasts -------------------------------------------------------------------------------------------------------


def test_last_value_is_the_demand() -> None:
    """As many as now."""
    assert [LastValue().forecast(at, demand) for at, demand in ((0, 4), (1, 0), (2, 9))] == [4, 0, 9]


def test_ewma_without_deviations_is_the_weighted_average() -> None:
    """Against the definition, by hand."""
    made = Ewma(EwmaSettings(weight=0.5, deviations=0))
    assert [made.forecast(0, demand) for demand in (8, 4, 4, 12)] == [8, 6, 5, 8.5]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.floats(0.05, 1), st.floats(0, 3))
def test_ewma_stays_within_what_it_has_seen(demands: list[int], weight: float, deviations: float) -> None:
    """Never below the least demand; above the greatest by no more than the deviations allow."""
    made = Ewma(EwmaSettings(weight=weight, deviations=deviations))
    spread = max(demands) - min(demands)
    for demand in demands:
        found = made.forecast(0, demand)
    assert min(demands) - 1e-6 <= found <= max(demands) + deviations * spread + 1e-6


def test_a_steady_demand_is_forecast_as_it_is() -> None:
    """With nothing to deviate from nothing is added."""
    made = Ewma()
    assert {made.forecast(at, 7) for at in range(50)} == {7}


@pytest.mark.parametrize(("before", "then"), [(5, 0), (9, 5)])
def test_an_average_that_comes_down_to_a_demand_needs_no_more(before: int, then: int) -> None:
    """It never gets there, as numbers are, and what is left of the way is no unit."""
    made = PowerManager(EnergyPowerSettings(minimum=0), Ewma())
    needed = [made.needed(n * 5 * MINUTE, fleet(9, in_use=before if n < 20 else then)) for n in range(2000)]
    assert needed[-1] == then


def test_forecasts_are_found_by_name_and_by_class() -> None:
    """As mappers are; settings go to them."""
    assert known_mappers("forecast") == ["ewma", "last"]
    made = make_part("forecast", "ewma", {"weight": 1.0}, "forecast")
    assert isinstance(made, Ewma)
    assert made.settings.weight == 1.0
    other = make_part("forecast", "leasekit.policies.authority.energy_plan:LastValue", {}, "forecast")
    assert isinstance(other, LastValue)


@pytest.mark.parametrize(
    ("target", "settings", "words"),
    [
        ("elast", {}, "forecast.name: found 'elast', expected"),
        ("leasekit.core.time:Term", {}, "which has no method forecast()"),
        ("ewma", {"weight": 0.0}, "forecast.weight"),
        ("last", {"weight": 0.5}, "forecast.weight: found an unknown key"),
    ],
)
def test_a_wrong_forecast_is_told(target: str, settings: dict[str, float], words: str) -> None:
    """The error names the key, and what is allowed."""
    with pytest.raises(SettingsError, match=words.replace("(", r"\(").replace(")", r"\)")):
        make_part("forecast", target, settings, "forecast")


@pytest.mark.parametrize("settings", [{"check": 0}, {"idle_checks": 0}, {"decide": "0s"}, {"minimum": -1}])
def test_wrong_settings_are_told(settings: dict[str, object]) -> None:
    """The key is named."""
    with pytest.raises(SettingsError, match=f"mapper.{next(iter(settings))}"):
        structure(EnergyPowerSettings, settings, "mapper")


@given(
    moves=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(0, 90)), max_size=40),
    checks=st.integers(1, 6),
)
def test_those_idle_for_long_are_those_that_count_so(moves: list[tuple[str, bool, int]], checks: int) -> None:
    """Asked of all at once, units are picked as if each one's count had been looked at, in the order given."""
    idle, now = IdleChecks(10), 0
    for unit, busy, later in moves:
        now += later
        (idle.busy if busy else idle.idle)(unit, now)
        order = ("d", "b", "a", "c")
        assert list(idle.idle_for(order, now, checks)) == [
            one for one in order if idle_checks(idle, one, now) >= checks
        ]
