"""A spot market: who has units by bids, what they cost, and what is billed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.core.accounts import BID, Accounts, Prices, prices_of
from leasekit.core.mappers import Price
from leasekit.core.reasons import Code, Reason, read, to_text
from leasekit.core.schema import LogRow
from leasekit.core.steps import TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.broker.spot import SpotMapper, SpotSettings

LATER = {"deferrable": "true", "latest_start": str(30 * MINUTE)}
LIFE = Term(0, 100)


def market(name: str, actor: Actor) -> Actor:
    """A market at the broker of two guests."""
    if name == "upper":
        assert isinstance(actor, Broker)
        actor.turning.mapper = SpotMapper(SpotSettings(reserve=2, period=10 * MINUTE))
    return actor


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    """Two units for two guests."""
    text = CHAIN.replace('role = "broker"', 'role = "broker"\nsettings.request_timeout = "20m"')
    text = text.replace('default_broker = "lower"', 'default_broker = "upper"')
    text = text.replace(
        'settings.default_broker = "upper"', 'settings = {default_broker = "upper", request_timeout = "20m"}'
    )
    return DeployedWorld(text, tmp_path, make=market)


def ask(world: DeployedWorld, guest: str, bid: str, *, units: int = 2, **more: str) -> str:
    """A preemptible lease of an hour that bids."""
    properties = {"preemptible": "true", "bid": bid, "notice": "10s", **more}
    lease = world.request(guest, units, world.now, world.now + HOUR, properties=properties)
    world.pass_time(5 * SECOND)
    return lease


def prices(world: DeployedWorld) -> list[int]:
    """What a unit has cost, in order."""
    found = (read(row.why) for row in world.nodes["upper"].store.history("price"))
    return [why.units for why in found if why is not None]


def test_the_highest_bids_have_the_units(world: DeployedWorld) -> None:
    """A higher bid outbids a lower one, an equal one waits; victims hear by the code who bids how much. The price is
    the highest bid that has no units, and no more than the lowest that has some.
    """
    low = ask(world, "batch", "3")
    assert world.lease("batch", low)["state"] == "active" and prices(world) == [2]
    equal = ask(world, "web", "3", **LATER)
    assert world.lease("web", equal)["state"] == "nascent" and prices(world) == [2, 3]
    high = ask(world, "web", "7", **LATER)
    told = world.guest("batch").leases[low]
    assert told.reason is not None
    (why,) = told.reason.causes
    assert (why.code, why.who, why.units, why.of) == (Code.OUTBID, high, 7, 3)
    assert prices(world)[-1] == 3
    world.pass_time(30 * SECOND)
    assert world.lease("batch", low)["state"] == "closed" and world.lease("web", high)["state"] == "active"
    assert world.query("site", "evidence") == []


def test_bids_below_the_least_price_are_refused(world: DeployedWorld) -> None:
    """The reason names both."""
    lease = ask(world, "batch", "1")
    assert world.lease("batch", lease)["state"] == "failed"
    assert "found 1, the least price" in world.lease("batch", lease)["reason"]


def test_who_is_not_preemptible_has_the_lowest_bids_leave(world: DeployedWorld) -> None:
    """It pays no bid, and is outbid by nobody."""
    one, two = ask(world, "batch", "9", units=1), ask(world, "batch", "4", units=1)
    firm = world.request("web", 1, world.now, world.now + HOUR, properties=LATER)
    world.pass_time(30 * SECOND)
    states = [world.lease(guest, lease)["state"] for guest, lease in (("batch", one), ("batch", two), ("web", firm))]
    assert states == ["active", "closed", "active"]
    bidder = ask(world, "batch", "100", **LATER)
    world.pass_time(30 * SECOND)
    assert world.lease("web", firm)["state"] == "active" and world.lease("batch", bidder)["state"] == "nascent"


@pytest.mark.parametrize(
    ("price", "why"),
    [
        (Price("vm", -1, HOUR), "price of 'vm': found -1"),
        (Price("vm", 3, 0), "period of 'vm': found 0"),
        (Price("gold", 3, HOUR), "type: found 'gold'"),
    ],
)
def test_what_is_no_price_changes_nothing(world: DeployedWorld, price: Price, why: str) -> None:
    """One message names what is wrong; the broker goes on."""
    world.pass_time(SECOND)
    broker = world.broker("upper")
    broker.turns.running = broker.kernel.next("turn")
    broker.step(TurnDone(broker.turns.running, [price]))
    assert why in broker.errors[-1]
    world.feed("upper", [])
    assert prices(world) == []
    assert world.lease("batch", ask(world, "batch", "3"))["state"] == "active"


@pytest.mark.parametrize(
    ("property_", "value"), [("bid", "-1"), ("bid", "much"), ("notice", "-5s"), ("min_run", "-1m"), ("max_run", "0s")]
)
def test_what_is_no_bid_is_refused(world: DeployedWorld, property_: str, value: str) -> None:
    """By a message that names the property and what was found; nothing is asked for."""
    properties = {"preemptible": "true", "bid": "3", property_: value}
    term = [world.now, world.now + HOUR]
    reply = world.command("batch", "lease.request", type="vm", units=1, term=term, properties=properties)
    assert f"properties.{property_}" in reply.error and repr(value).strip("'") in reply.error
    assert not world.guest("batch").leases


# -- bills -------------------------------------------------------------------------------------------------------------


def row(at: int, event: str, why: Reason | None, before: str = "", lease: str = "l") -> LogRow:
    """A line of a broker's log."""
    return LogRow(0, at, lease, event, before, "", to_text(why))


def bill(*end: LogRow, period: Term = LIFE) -> int:
    """What a lease of 2 units from 5 to 45 is billed: a unit costs 3 for 10 ms from 0 on, 4 from 20 on."""
    costs = [row(at, "price", Reason(Code.PRICE, what="vm", units=units, of=10)) for at, units in ((0, 3), (20, 4))]
    lines = [
        row(1, "request", Reason(Code.ASKED, "web", "vm", units=2, at=5, until=45)),
        row(1, BID, Reason(Code.BID, units=9)),
        row(2, "grant", Reason(Code.GRANTED, "site", "vm", units=2, at=5, until=45), "nascent/ticketing"),
    ]
    accounts = Accounts(period, ("holder",), "upper", Prices(costs))
    accounts.count([*lines, *end])
    (found,) = accounts.shown()
    return found.billed


def test_periods_that_have_begun_are_billed() -> None:
    """At the price that there was when each began: 2 x (3 + 3 + 4 + 4); of another account's period none is."""
    assert bill() == 28
    assert bill(period=Term(10, 30)) == 14
    assert bill(period=Term(0, 30)) + bill(period=Term(30, 100)) == 28


def test_the_last_part_of_a_period_is_billed_unless_the_broker_has_ended_it() -> None:
    """Given back at 30, within the period from 25 on: that is billed. Ended by the broker: it isn't."""
    left = Reason(Code.LEFT, units=2, at=5, until=30)
    assert bill(row(30, "return", Reason(Code.CAME_BACK).because(left))) == 20
    assert bill(row(26, "preempt", Reason(Code.ENDS_AT, at=30))) == 12
    assert bill(row(26, "preempt", Reason(Code.ENDS_AT, at=35))) == 20


def test_prices_of_a_period_begin_with_those_that_there_were() -> None:
    """By type, in order."""
    notes = [
        {"at": at, "because": {"code": "price", "what": type_, "units": units, "of": 10}}
        for at, type_, units in ((0, "vm", 3), (6, "vm", 3), (7, "gpu", 9), (20, "vm", 4))
    ]
    found = [(one["type"], one["at"], one["price"]) for one in prices_of(notes, Term(5, 50))]
    assert found == [("gpu", 7, 9), ("vm", 5, 3), ("vm", 20, 4)]
    assert [one["at"] for one in prices_of(notes, Term(20, 50))] == [20, 20]
