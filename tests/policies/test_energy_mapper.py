"""The energy manager as an authority's mapper: which units leases get, and which are switched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leasekit.core.efficiency import efficiency
from leasekit.core.filters import parse_filter
from leasekit.core.mappers import Assign, AuthorityCycle, Demand, Power, Refuse, Release, UnitView, Wake
from leasekit.core.settings import SettingsError
from leasekit.core.time import HOUR, MINUTE, Instant, Term
from leasekit.policies.authority.energy import EnergyManager, EnergySettings
from leasekit.policies.registry import make_mapper


def unit(name: str, power: str = "on", *, state: str = "free", lease: str = "", **properties: str) -> UnitView:
    return UnitView(name, "node", state, lease, 0, properties, power)


def need(
    lease: str, units: int, term: Term, *, op: str = "new", held: tuple[str, ...] = (), **properties: str
) -> Demand:
    return Demand(lease, "guest", op, "node", units, held, (), term, properties)


def cycle(
    now: Instant, units: Sequence[UnitView], demands: Sequence[Demand] = (), booked: Sequence[Demand] = ()
) -> AuthorityCycle:
    """As an authority would show it."""
    order = ("on", "starting", "resuming", "suspended", "suspending", "off", "stopping", "unknown")
    free = sorted((one for one in units if one.state == "free" and not one.lease), key=lambda u: order.index(u.power))
    by_name = {one.id: one for one in units}
    return AuthorityCycle(
        now,
        demands,
        lambda type_, filter_="": iter(fitting(free, filter_)),
        by_name.__getitem__,
        lambda type_, filter_="": fitting(units, filter_),
        lambda type_: booked,
    )


def fitting(units: Sequence[UnitView], filter_: str) -> Sequence[UnitView]:
    return [one for one in units if parse_filter(filter_)(one.attributes)] if filter_ else units


def mapper(**settings: Any) -> EnergyManager:
    return EnergyManager(EnergySettings(types=("node",), **settings))


def powers(decisions: Sequence[object]) -> list[tuple[str, str]]:
    return [(one.unit, one.to) for one in decisions if isinstance(one, Power)]


def settle(made: EnergyManager, units: Sequence[UnitView], until: Instant, booked: Sequence[Demand] = ()) -> list[Any]:
    """Let checks pass, up to the last one at or before ``until``; returns what it decided then."""
    found: list[Any] = []
    for at in range(0, until + 1, MINUTE):
        found = made.assign(cycle(at, units, booked=booked))
    return found


# -- weighers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"gflops": "900", "watts": "300"}, 3.0),
        ({"gflops_per_watt": "2.5"}, 2.5),
        ({"gflops": "900", "watts": "0", "gflops_per_watt": "1"}, 1.0),
        ({"gflops": "many", "watts": "300"}, 0.0),
        ({"gflops": "inf", "watts": "1"}, 0.0),
        ({}, 0.0),
    ],
)
def test_efficiency_is_flops_by_watt(properties: dict[str, str], found: float) -> None:
    """From both, or from the quotient; 0 where nothing sensible is known."""
    assert efficiency(properties) == found


def test_the_most_efficient_units_are_given_first() -> None:
    """Among those that are on."""
    units = [unit("a", gflops="1", watts="2"), unit("b", gflops="3", watts="2"), unit("c", gflops="2", watts="2")]
    decisions = mapper().assign(cycle(0, units, [need("l", 2, Term(0, HOUR))]))
    assert decisions[0] == Assign("l", ("b", "c"))


def test_a_unit_that_is_on_comes_before_one_that_is_not() -> None:
    """However efficient: the lease would have to wait."""
    units = [unit("dark", "off", gflops="9", watts="1"), unit("soon", "starting", gflops="5", watts="1"), unit("poor")]
    decisions = mapper().assign(cycle(0, units, [need("l", 3, Term(0, HOUR))]))
    assert decisions[0] == Assign("l", ("poor", "soon", "dark"))


def test_an_unreserved_lease_goes_where_no_reservation_is() -> None:
    """Not to the more efficient unit, which a reservation holds within its term."""
    units = [unit("best", gflops="9", watts="1"), unit("other", gflops="1", watts="1")]
    made = mapper()
    booked = [need("later", 1, Term(10 * MINUTE, HOUR))]
    made.assign(cycle(0, units, booked=booked))
    decisions = made.assign(cycle(MINUTE, units, [need("now", 1, Term(MINUTE, HOUR))], booked))
    assert decisions[0] == Assign("now", ("other",))


def test_the_unit_that_is_free_for_longest_is_preferred() -> None:
    """Of two units whose reservations begin after the lease's end, the one whose does so later."""
    units = [unit("a", rack="1"), unit("b", rack="2")]
    made = mapper()
    booked = [
        need("sooner", 1, Term(2 * HOUR, 3 * HOUR), filter="rack == 1"),
        need("later", 1, Term(5 * HOUR, 6 * HOUR), filter="rack == 2"),
    ]
    decisions = made.assign(cycle(0, units, [need("now", 1, Term(0, HOUR))], booked))
    assert decisions[0] == Assign("now", ("b",))


def test_a_reservation_gets_the_units_that_were_held_for_it() -> None:
    """Also where another demand comes before it in the same turn."""
    units = [unit("a", gflops="9", watts="1"), unit("b", gflops="1", watts="1")]
    made = mapper()
    later = need("later", 1, Term(10 * MINUTE, HOUR))
    made.assign(cycle(0, units, booked=[later]))
    demands = [need("now", 1, Term(10 * MINUTE, HOUR)), later]
    decisions = made.assign(cycle(10 * MINUTE, units, demands))
    assert decisions[:2] == [Assign("now", ("b",)), Assign("later", ("a",))]


GPU = '["=", "$gpu", "yes"]'


@pytest.mark.parametrize("start", [HOUR, 50 * MINUTE])
def test_a_reservation_keeps_its_unit_when_another_comes_before_it(start: Instant) -> None:
    """One that was made later, and begins as soon or sooner, is chosen another."""
    units = [unit("g", gflops="9", watts="1", gpu="yes"), unit("p", gflops="1", watts="1")]
    made = mapper()
    first = need("r2", 1, Term(HOUR, 2 * HOUR), filter=GPU)
    second = need("r1", 1, Term(start, 2 * HOUR))
    made.assign(cycle(30 * MINUTE, units, booked=[first]))
    made.assign(cycle(31 * MINUTE, units, booked=[second, first]))
    if start == HOUR:
        assert made.assign(cycle(HOUR, units, [second, first]))[:2] == [Assign("r1", ("p",)), Assign("r2", ("g",))]
    else:
        assert made.assign(cycle(start, units, [second], booked=[first]))[0] == Assign("r1", ("p",))


def test_a_reservation_with_a_filter_takes_over_a_unit_of_one_without() -> None:
    """Which is chosen another one, as any will do for it; but not of one that has a filter too."""
    units = [unit("g", gflops="9", watts="1", gpu="yes"), unit("p", gflops="1", watts="1")]
    made = mapper()
    plain, particular = need("r1", 1, Term(HOUR, 2 * HOUR)), need("r2", 1, Term(90 * MINUTE, 2 * HOUR), filter=GPU)
    too_late = need("r3", 1, Term(100 * MINUTE, 2 * HOUR), filter=GPU)
    made.assign(cycle(30 * MINUTE, units, booked=[plain]))
    made.assign(cycle(31 * MINUTE, units, booked=[plain, particular, too_late]))
    assert made.assign(cycle(HOUR, units, [plain], booked=[particular, too_late]))[0] == Assign("r1", ("p",))
    units[1] = unit("p", state="active", lease="r1", gflops="1", watts="1")
    held = need("r1", 0, plain.term, op="held", held=("p",))
    assert made.assign(cycle(90 * MINUTE, units, [particular], booked=[held, too_late]))[0] == Assign("r2", ("g",))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_lease_grows_into_the_units_that_were_held_for_it(at_once: bool) -> None:
    """Though its demand says when the lease began; and whether or not another lease shrinks first at that instant."""
    units = [unit("g", gflops="9", watts="1", gpu="yes"), unit("p", gflops="1", watts="1")]
    units += [unit("h1", state="active", lease="r1"), unit("h2", state="active", lease="r2", gpu="yes")]
    held = [need(f"r{n}", 0, Term(0, 2 * HOUR), op="held", held=(f"h{n}",)) for n in (1, 2)]
    made = mapper()
    made.assign(cycle(50 * MINUTE, units, booked=[*held, need("r2", 1, Term(HOUR, 2 * HOUR), op="grow", filter=GPU)]))
    now = Term(0, 2 * HOUR)
    demands = [
        need("r1", 1, now, op="grow", held=("h1",)),
        need("r2", 1, now, op="grow", held=("h2",), filter=GPU),
    ]
    if not at_once:
        made.assign(cycle(HOUR, units, booked=[*held, *demands]))
    found = made.assign(cycle(HOUR, units, demands, booked=held))
    assert found[:2] == [Assign("r1", ("p",)), Assign("r2", ("g",))]


def test_what_must_be_filled_is_filled_from_held_units() -> None:
    """Where there are no others: the site has counted that there is room, and the reservation is chosen another."""
    units = [unit("a"), unit("b", state="active", lease="old")]
    made = mapper()
    held = need("old", 0, Term(0, 5 * MINUTE), op="held", held=("b",))
    later = need("later", 1, Term(10 * MINUTE, HOUR))
    made.assign(cycle(0, units, booked=[held, later]))
    found = made.assign(cycle(MINUTE, units, [need("now", 1, Term(MINUTE, HOUR))], [held, later]))
    assert found[0] == Assign("now", ("a",))
    units = [unit("a", state="active", lease="now"), unit("b")]
    now = need("now", 0, Term(MINUTE, HOUR), op="held", held=("a",))
    made.assign(cycle(6 * MINUTE, units, booked=[now, later]))
    found = made.assign(cycle(10 * MINUTE, units, [later], [now]))
    assert found[0] == Assign("later", ("b",))


def test_a_reservation_that_has_its_units_is_not_asked_about() -> None:
    """Its filter may mean a look at all units, and there may be many such reservations."""
    units, made, asked = [unit("a", rack="1"), unit("b", rack="2")], mapper(), []
    term = Term(5 * HOUR, 6 * HOUR)
    shown = cycle(0, units, booked=[need(f"r{rack}", 1, term, filter=f"rack == {rack}") for rack in (1, 2, 3)])
    shown = shown._replace(units=lambda type_, filter_="": asked.append(filter_) or fitting(units, filter_))
    made.assign(shown)
    assert sorted(filter(None, asked)) == ["rack == 1", "rack == 2", "rack == 3"]
    asked.clear()
    made.assign(shown)
    assert list(filter(None, asked)) == ["rack == 3"]


def test_filters_and_shrinking_are_first_fits() -> None:
    """A filter that nothing satisfies is refused with words, and a lease that shrinks gives up its last units."""
    made = mapper()
    shrinking = need("s", -1, Term(0, HOUR), op="shrink", held=("x", "y"))
    wrong = need("w", 1, Term(0, HOUR), filter="rack == 3")
    decisions = made.assign(cycle(0, [unit("a", rack="1")], [shrinking, wrong]))
    assert decisions[0] == Release("s", ("y",))
    assert isinstance(decisions[1], Refuse)
    assert "rack" in decisions[1].reason


# -- power -----------------------------------------------------------------------------------------------------------


def test_it_asks_to_be_called_at_every_check() -> None:
    """At whole multiples of the interval."""
    assert mapper().assign(cycle(90_000, [unit("a")]))[-1] == Wake(2 * MINUTE)
    assert EnergyManager().assign(cycle(90_000, [unit("a")])) == []


def test_it_asks_to_be_called_for_a_decision_and_when_a_reservation_is_near() -> None:
    """However seldom it checks: a unit is on by the time that a reservation of it begins."""
    made, units = mapper(check=30 * MINUTE), [unit("a", "off")]
    ahead = made.settings.lookahead
    booked = [need("r", 1, Term(20 * MINUTE + ahead, 2 * HOUR))]
    assert made.assign(cycle(MINUTE, units, booked=booked))[-1] == Wake(5 * MINUTE)
    assert made.assign(cycle(18 * MINUTE, units, booked=booked))[-1] == Wake(20 * MINUTE)
    found = made.assign(cycle(20 * MINUTE, units, booked=booked))
    assert found[-1] == Wake(20 * MINUTE + 1)
    assert powers(made.assign(cycle(20 * MINUTE + 1, units, booked=booked))) == [("a", "on")]


def test_idle_units_are_switched_off_the_least_efficient_first() -> None:
    """At the first decision after five idle checks, down to the minimum."""
    units = [unit("a", gflops="3", watts="1"), unit("b", gflops="1", watts="1"), unit("c", gflops="2", watts="1")]
    assert powers(settle(mapper(minimum=1), units, 4 * MINUTE)) == []
    assert powers(settle(mapper(minimum=1), units, 5 * MINUTE)) == [("b", "off"), ("c", "off")]


def test_a_unit_that_is_given_away_in_the_same_turn_is_not_switched() -> None:
    """It counts as used."""
    made, units = mapper(), [unit("a"), unit("b")]
    settle(made, units, 4 * MINUTE)
    decisions = made.assign(cycle(5 * MINUTE, units, [need("l", 1, Term(5 * MINUTE, HOUR))]))
    assert decisions[0] == Assign("l", ("a",))
    assert powers(decisions) == [("b", "off")]


def test_units_of_other_types_and_out_of_service_are_left_alone() -> None:
    """Only types that are named are switched, and only units in service."""
    units = [unit("a", state="out"), unit("b", "off", state="out")]
    assert powers(settle(mapper(), units, 10 * MINUTE, [need("r", 2, Term(11 * MINUTE, HOUR))])) == []


def test_reserved_units_stay_on_and_are_switched_on_in_time() -> None:
    """What a reservation needs within the horizon is on, and stays on; what it doesn't need yet is off."""
    units = [unit("a", "off", gflops="2", watts="1"), unit("b", "off", gflops="1", watts="1")]
    later = [need("r", 1, Term(HOUR, 2 * HOUR))]
    assert powers(settle(mapper(), units, 40 * MINUTE, later)) == []
    assert powers(settle(mapper(), units, 50 * MINUTE, later)) == [("a", "on")]
    on = [unit("a", gflops="2", watts="1"), unit("b", gflops="1", watts="1")]
    assert powers(settle(mapper(), on, 50 * MINUTE, later)) == [("b", "off")]


def test_a_reservation_made_late_does_not_wait_for_the_next_decision() -> None:
    """Its units are switched on at once when it is nearer than the lookahead."""
    made, units = mapper(), [unit("a", "off")]
    settle(made, units, 5 * MINUTE)
    decisions = made.assign(cycle(5 * MINUTE + 1, units, booked=[need("r", 1, Term(8 * MINUTE, HOUR))]))
    assert powers(decisions) == [("a", "on")]


def test_the_units_that_a_filter_picks_are_switched_on() -> None:
    """Others that are on don't help a reservation that they won't do for."""
    made = mapper(minimum=1)
    units = [unit("a", rack="1"), unit("b", "off", rack="2")]
    decisions = made.assign(cycle(0, units, booked=[need("r", 1, Term(10 * MINUTE, HOUR), filter="rack == 2")]))
    assert powers(decisions) == [("b", "on")]


def test_a_unit_that_two_reservations_hold_is_switched_on_once() -> None:
    """One after the other they need it, both within the lookahead; the site could not carry out the second order."""
    made = mapper(minimum=1)
    units = [unit("a", rack="1"), unit("b", "off", rack="2")]
    terms = (Term(5 * MINUTE, 10 * MINUTE), Term(10 * MINUTE, HOUR))
    booked = [need(f"r{number}", 1, term, filter="rack == 2") for number, term in enumerate(terms)]
    assert powers(made.assign(cycle(0, units, booked=booked))) == [("b", "on")]


def test_a_unit_that_waits_with_its_lease_is_left_alone() -> None:
    """The site sets nothing up for now, so that a unit that is given stays off; a reservation after it needs it too."""
    units = [unit("a", "off", lease="l")]
    held = need("l", 0, Term(0, 5 * MINUTE), op="held", held=("a",))
    decisions = mapper().assign(cycle(0, units, booked=[held, need("r", 1, Term(5 * MINUTE, HOUR))]))
    assert powers(decisions) == []


def test_a_lease_that_ends_makes_room_for_a_reservation() -> None:
    """Units that are free again by then need no others to be switched on."""
    made = mapper()
    units = [unit("a", state="active", lease="l"), unit("b", "off")]
    held = need("l", 0, Term(0, 10 * MINUTE), op="held", held=("a",))
    assert powers(made.assign(cycle(0, units, booked=[held, need("r", 1, Term(10 * MINUTE, HOUR))]))) == []
    overlap = need("r", 1, Term(9 * MINUTE, HOUR))
    assert powers(mapper().assign(cycle(0, units, booked=[held, overlap]))) == [("b", "on")]


def test_suspended_units_are_woken_first() -> None:
    """They are on sooner."""
    units = [unit("a", "off", gflops="9", watts="1"), unit("b", "suspended"), unit("c", "unknown")]
    decisions = mapper(minimum=2).assign(cycle(0, units))
    assert powers(decisions) == [("b", "on"), ("a", "on")]


def test_units_are_suspended_before_a_reservation_that_is_not_far() -> None:
    """Beyond the horizon, but nearer than what is worth switching off for."""
    booked = [need("r", 1, Term(35 * MINUTE, HOUR))]
    found = settle(mapper(suspend_below=HOUR), [unit("a")], 5 * MINUTE, booked)
    assert powers(found) == [("a", "suspend")]


def test_a_unit_that_could_not_be_switched_off_is_switched_off_again() -> None:
    """At the next decision and, while that fails too, after 1, 2, 4, ... at last every 16 of them: a BMC that did not
    answer once is not left alone for ever. When it was off in between, all begins anew.
    """
    made, seen = mapper(decide=MINUTE), []
    units = [unit("a", "unknown")]
    for minute in range(80):
        if powers(made.assign(cycle(minute * MINUTE, units))) == [("a", "off")]:
            seen.append(minute)
            made.assign(cycle(minute * MINUTE + 1, [unit("a", "stopping")]))
    assert seen == [0, 1, 3, 7, 15, 31, 47, 63, 79]
    assert powers(made.assign(cycle(80 * MINUTE, [unit("a", "off")]))) == []
    assert powers(made.assign(cycle(81 * MINUTE, units))) == [("a", "off")]


def test_a_unit_that_may_be_on_is_not_counted_on() -> None:
    """What is needed is switched on, that unit as well where no other is left, and not switched off meanwhile."""
    units = [unit("a", "unknown"), unit("b", "off")]
    assert powers(mapper(minimum=1).assign(cycle(0, units))) == [("b", "on")]
    assert powers(mapper(minimum=2).assign(cycle(0, units))) == [("b", "on"), ("a", "on")]
    assert powers(mapper(minimum=1).assign(cycle(0, [unit("a", "unknown"), unit("b")]))) == [("a", "off")]
    now = need("l", 2, Term(0, HOUR))
    assert powers(mapper().assign(cycle(0, units, [now]))) == [], "a lease gets it"
    later = need("r", 2, Term(10 * MINUTE, HOUR))
    assert powers(mapper().assign(cycle(0, units, booked=[later]))) == [("b", "on"), ("a", "on")]


def test_how_long_it_was_unknown_is_no_time_off() -> None:
    """Only units that were off tell for how long one is likely to be: what is unknown may have been on all along."""
    made = mapper(suspend_below=HOUR)
    on, dark = [unit("a")], [unit("a", "unknown")]
    assert powers(settle(made, on, 5 * MINUTE)) == [("a", "off")]
    made.assign(cycle(6 * MINUTE, dark))
    made.assign(cycle(7 * MINUTE, on))
    found = [powers(made.assign(cycle(minute * MINUTE, on))) for minute in range(8, 16)]
    assert found[-1] == [("a", "off")], "not suspended, as nothing is known of how long units are off"


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"types": ["node"], "forecast": "oracle"}, "forecast"),
        ({"weighers": ["free_time", "free_time"]}, "weighers"),
        ({"weighers": ["colour"]}, "weighers"),
        ({"types": ["node"], "forecast": "ewma", "forecast_settings": {"weight": 2.0}}, "forecast.weight"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], words: str) -> None:
    """The key is named."""
    with pytest.raises(SettingsError, match=words):
        make_mapper("energy", "authority", settings, "mapper", {})
