"""The null driver's model: distributions, purity, and the same answers for driver and emulation."""

from __future__ import annotations

import statistics

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.draws import Exponential, Fixed, LatencyTable, Lognormal, Normal
from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.drivers.null import LatencyModel, NullDriver, NullSettings


def model(**settings) -> LatencyModel:
    return LatencyModel(structure(NullSettings, settings, "null"))


def draws(made: LatencyModel, count: int = 4000) -> list[int]:
    return [made.latency("setup", f"u{number % 50}", number) for number in range(count)]


def test_operations_left_out_take_no_time_and_succeed():
    """Without settings every action takes 0 ms and succeeds; setup returns the unit's host."""
    made = model()
    assert made.latency("setup", "u1", 1) == 0
    assert made.outcome("setup", "u1", 1) == (True, {"host": "u1"}, "")
    assert made.outcome("teardown", "u1", 1) == (True, {}, "")


def test_a_fixed_latency_is_always_the_same():
    """A bare duration is a fixed latency."""
    assert set(draws(model(latency={"setup": "90s"}))) == {90_000}


def test_a_normal_latency_has_its_mean_and_deviation():
    """4,000 draws come within 2% of the mean and 5% of the standard deviation, and none is negative."""
    found = draws(model(latency={"setup": {"kind": "normal", "mean": "90s", "stddev": "10s"}}))
    assert statistics.mean(found) == pytest.approx(90_000, rel=0.02)
    assert statistics.stdev(found) == pytest.approx(10_000, rel=0.05)
    low = draws(model(latency={"setup": {"kind": "normal", "mean": 10, "stddev": 1000}}))
    assert min(low) == 0 < max(low)


def test_a_table_is_drawn_by_its_weights():
    """Only the table's latencies come, each about as often as its weight says."""
    table = {"kind": "table", "latencies": ["1s", "2s", "5s"], "weights": [1, 0, 3]}
    found = draws(model(latency={"setup": table}))
    assert set(found) == {1000, 5000}
    assert found.count(5000) / len(found) == pytest.approx(0.75, abs=0.03)
    assert set(draws(model(latency={"setup": ["1s", "2s"]}))) == {1000, 2000}


def test_failures_come_as_often_as_set():
    """A failure probability is met within 2 points, and failing has nothing to do with the latency drawn."""
    made = model(failure={"setup": 0.2}, latency={"setup": {"kind": "normal", "mean": 1000, "stddev": 100}})
    outcomes = [made.outcome("setup", "u", number) for number in range(4000)]
    assert sum(not outcome.ok for outcome in outcomes) / 4000 == pytest.approx(0.2, abs=0.02)
    failed = [made.latency("setup", "u", n) for n, outcome in enumerate(outcomes) if not outcome.ok]
    assert statistics.mean(failed) == pytest.approx(1000, rel=0.02)
    assert "setup of u failed" in next(outcome.reason for outcome in outcomes if not outcome.ok)


NAMES = st.text(max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["setup", "join"]), NAMES, st.integers(0, 2**63)), min_size=1), st.data())
def test_a_draw_depends_on_seed_number_operation_and_unit_alone(actions, data):
    """Actions drawn in another order, or again, by another instance give the same latencies and outcomes."""
    normal = {"kind": "normal", "mean": "1h", "stddev": "10m"}
    settings = {"seed": 7, "latency": {"setup": normal, "join": normal}, "failure": {"setup": 0.5}}
    one, other = model(**settings), model(**settings)
    first = {action: (one.latency(*action), one.outcome(*action)) for action in actions}
    for action in data.draw(st.permutations(actions)):
        assert (other.latency(*action), other.outcome(*action)) == first[action]


def test_each_part_of_an_action_matters():
    """Another seed, operation, unit or number draws another latency; numbers and names do not run together."""
    normal = {"kind": "normal", "mean": "1000d", "stddev": "100d"}
    settings = {"latency": {"setup": normal, "join": normal}}
    made = model(**settings)
    found = [
        made.latency("setup", "u1", 1),
        made.latency("join", "u1", 1),
        made.latency("setup", "u2", 1),
        made.latency("setup", "u1", 2),
        made.latency("setup", "11", 1),
        made.latency("setup", "1", 11),
        model(seed=1, **settings).latency("setup", "u1", 1),
    ]
    assert len(set(found)) == len(found)


def test_the_extreme_draws_are_finite():
    """The ends of what can be drawn give latencies for each distribution."""
    for uniform in (0.5 / 2**52, 1 - 0.5 / 2**52):
        assert 0 <= Normal(mean=1000, stddev=100).draw(uniform) < 10_000
        assert LatencyTable(latencies=(1, 2, 3)).draw(uniform) in (1, 3)
        assert Fixed(latency=4).draw(uniform) == 4


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"latency": {"setup": -1}}, "null.latency.setup: found -1, expected a duration such as "),
        ({"latency": {"boot": 1}}, "null.latency.boot: as a key, found 'boot', expected one of: 'setup'"),
        (
            {"failure": {"setup": 2}},
            "null.failure: found a table, but a probability lies between 0 and 1 (setup: 2.0)",
        ),
        (
            {"latency": {"setup": {"kind": "table", "latencies": []}}},
            "null.latency.setup.latencies: found an empty list, ",
        ),
        (
            {"latency": {"setup": {"kind": "table", "latencies": [1], "weights": [1, 2]}}},
            "null.latency.setup: found 2 weights for 1 latencies",
        ),
        (
            {"latency": {"setup": {"kind": "table", "latencies": [1], "weights": [0]}}},
            "null.latency.setup: found weights (0.0,), expected",
        ),
        ({"properties": {"": "x"}}, "null.properties: found a table, but properties: key '' must be"),
    ],
)
def test_bad_settings_are_named(settings, error):
    """What a model can't be made of is refused with its key, what was found and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        structure(NullSettings, settings, "null")
    assert len(caught.value.errors) == 1
    assert caught.value.errors[0].startswith(error)


async def test_the_driver_takes_the_models_time(autojump_clock, make_unit):
    """Each action takes exactly what the model says, and setup returns the model's properties."""
    normal = {"kind": "normal", "mean": "1h", "stddev": "10m"}
    settings = structure(NullSettings, {"latency": {"setup": normal, "join": "5s"}, "properties": {"os": "x"}}, "n")
    driver, made = NullDriver(settings), LatencyModel(settings)
    before = trio.current_time()
    assert await driver.setup(make_unit("u1", number=3)) == {"host": "u1", "os": "x"}
    assert trio.current_time() - before == pytest.approx(made.latency("setup", "u1", 3) / 1000)
    before = trio.current_time()
    await driver.join(make_unit("u1", "join", number=4))
    await driver.leave(make_unit("u1", "leave", number=5))
    assert trio.current_time() - before == pytest.approx(5)


async def test_the_driver_fails_as_the_model_says(autojump_clock, make_unit):
    """An action fails in the driver exactly when it does in the model, and is not worth a retry."""
    settings = structure(NullSettings, {"failure": {"teardown": 0.5}}, "n")
    driver, made = NullDriver(settings), LatencyModel(settings)
    failed = 0
    for number in range(50):
        expected = made.outcome("teardown", "u1", number)
        try:
            await driver.teardown(make_unit("u1", "teardown", number=number))
        except DriverError as error:
            failed += 1
            assert (expected.ok, expected.reason, error.retry) == (False, str(error), False)
        else:
            assert expected.ok
    assert 10 < failed < 40


async def test_a_meter_is_told_of_by_power_operations(make_unit):
    """And by no others."""
    driver = NullDriver(structure(NullSettings, {"metered": {"idle_watts": "90"}}, "null"))
    assert "idle_watts" not in await driver.setup(make_unit("u"))
    unit = make_unit("u", "operate")
    assert await driver.operate(unit, "power_off", {}) == {"power": "off", "idle_watts": "90"}
    assert await driver.operate(unit, "status", {}) == {"power": "off"}
    """The share of what they need that the settings say, or their lease's configuration, and no more than their cap."""
    driver = NullDriver(NullSettings(use=0.25))
    properties = {"needs.cpu": "2000", "unit.host": "a"}
    await driver.setup(make_unit("a.1", properties=properties))
    assert (await driver.probe(make_unit("a.1", "probe", properties=properties))).measured == {"cpu": 500.0}
    busy = make_unit("a.1", "probe", properties={**properties, "unit.cap": "700"}, configuration={"use": "1.0"})
    assert (await driver.probe(busy)).measured == {"cpu": 700.0}
    odd = make_unit("a.1", "probe", properties=properties, configuration={"use": "nan"})
    assert (await driver.probe(odd)).measured == {"cpu": 500.0}
    assert (await driver.probe(make_unit("a.1", "probe"))).measured == {}


@pytest.mark.parametrize(
    ("distribution", "half", "most"),
    [
        (Exponential(mean=1000), 693, 2303),
        (Lognormal(median=1000, sigma=1.0), 1000, 3602),
        (Normal(mean=1000, stddev=100), 1000, 1128),
    ],
    ids=["exponential", "lognormal", "normal"],
)
def test_distributions_have_their_quantiles(
    distribution: Exponential | Lognormal | Normal, half: int, most: int
) -> None:
    """The median, and what nine of ten do not exceed, as textbooks have them."""
    assert (distribution.draw(0.5), distribution.draw(0.9)) == (half, most)
