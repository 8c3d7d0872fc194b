"""What is delegated changes while daemons run: again, more, fewer, until when; and after a store was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.config.load import load
from leasekit.core.protocol.messages import HeldClaim, Offer, OfferAnswer
from leasekit.core.reasons import said
from leasekit.core.schema import COPIED, Change
from leasekit.core.steps import Connected
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.stores.memory import MemoryStore

LINE, BELOW = "site/vm@upper", "upper/vm@lower"
ALONE = CHAIN.replace("units = 4\n", "units = 1\n")
"""The lower broker has one unit, so that the upper one has five of its own."""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def free(world: DeployedWorld, broker: str) -> int:
    """The units that a broker can grant now."""
    return max((row["free_now"] for row in world.query(broker, "sources") if row["state"] == "held"), default=0)


def differs(world: DeployedWorld, actor: str) -> dict[str, tuple[str, int, int]]:
    """What the actor's status says of each line that is not as the settings say: why, what is held, what is wanted."""
    rows = world.query(actor, "status")["delegations"]
    return {row["chain"]: (row["code"], row["held"], row["wanted"]) for row in rows}


def rewrite(world: DeployedWorld, tmp_path: Path, old: str, new: str, *names: str) -> None:
    """Change the deploy file, and start ``names`` again."""
    file = tmp_path / "world.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    world.deployment = load(file, tmp_path / "state")
    for name in names:
        world.restart(name)
    world.pass_time(SECOND)


def lose_store(world: DeployedWorld, name: str) -> None:
    """The actor starts with an empty store."""
    world.nodes[name].store = MemoryStore()
    world.restart(name)


def give(world: DeployedWorld, issuer: str, broker: str, **arguments: Any) -> Any:
    """The operator's `delegate`."""
    reply = world.command(issuer, "delegation.give", broker=broker, type="vm", **arguments)
    assert not reply.error, reply.error
    world.pass_time(SECOND)
    return reply.result


def is_sound(world: DeployedWorld) -> None:
    """Nobody is blamed, and no unit is at two leases."""
    assert world.query("site", "evidence") == []
    held = [unit for lease in world.site().leases.values() if lease.ended < 0 for unit in lease.units]
    assert len(held) == len(set(held))


@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_given_again_after_a_reclaim(world: DeployedWorld, restarted: bool) -> None:
    """All down the chain; what runs out from before counts in it until then."""
    lease = world.request("web", 2, 10 * SECOND, 30 * MINUTE)
    world.run_until(MINUTE)
    world.command("site", "delegation.reclaim", delegation=LINE)
    world.pass_time(MINUTE)
    assert differs(world, "site") == {LINE: ("reclaimed", 0, 6)}
    assert (free(world, "upper"), free(world, "lower")) == (0, 0)
    give(world, "site", "upper")
    if restarted:
        for name in ("site", "upper", "lower"):
            world.restart(name)
    world.pass_time(MINUTE)
    assert (free(world, "upper"), differs(world, "site")) == (2, {})
    world.run_until(31 * MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    world.run_until(32 * MINUTE)
    assert (free(world, "upper"), free(world, "lower")) == (2, 4)
    other = world.request("web", 4, world.now + SECOND, world.now + HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", other)["state"] == "active"
    is_sound(world)


@pytest.mark.parametrize("restarted", ["", "site", "upper"])
def test_inventory_that_grows_reaches_the_broker_at_once(tmp_path: Path, restarted: str) -> None:
    """A running lease goes on, and one lease can have old and new units together."""
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("batch", 2, 10 * SECOND, HOUR)
    world.run_until(MINUTE)
    rewrite(world, tmp_path, "units = 6", "units = 10", "site")
    if restarted:
        world.restart(restarted)
    assert (free(world, "upper"), differs(world, "site")) == (4, {})
    states = {row["delegation"]: row["state"] for row in world.query("site", "delegations")}
    assert states == {LINE: "replaced", f"{LINE}#2": "held"}
    assert not world.command("batch", "lease.modify", lease=lease, units=6).error
    world.pass_time(MINUTE)
    assert len(world.lease("site", lease)["units"]) == 6
    assert not world.command("batch", "lease.extend", lease=lease, end=2 * HOUR).error
    world.run_until(90 * MINUTE)
    assert len(world.lease("site", lease)["units"]) == 6
    world.run_until(2 * HOUR + MINUTE)
    assert free(world, "upper") == 6
    assert {row["state"] for row in world.query("site", "delegations")} <= {"ended", "held", "replaced"}
    is_sound(world)


def test_inventory_that_shrinks_reaches_the_broker_at_once(tmp_path: Path) -> None:
    """Nothing more is granted of what is gone; a lease that has one of its units keeps it to its end."""
    world = DeployedWorld(ALONE, tmp_path)
    lease = world.request("batch", 5, 10 * SECOND, HOUR)
    world.run_until(MINUTE)
    rewrite(world, tmp_path, "units = 6", "units = 3", "site")
    assert differs(world, "site") == {LINE: ("in_use", 3, 3)}
    assert world.lease("site", lease)["state"] == "active"
    assert len(world.lease("site", lease)["units"]) == 5
    refused = world.request("batch", 1, world.now + SECOND, world.now + 10 * MINUTE)
    world.pass_time(MINUTE)
    assert world.lease("batch", refused)["state"] == "failed"
    for units, left in ((4, 5), (3, 3)):  # of the new claim no more can be cut than it has
        assert not world.command("batch", "lease.modify", lease=lease, units=units).error
        world.pass_time(2 * MINUTE)
        assert len(world.lease("site", lease)["units"]) == left
    world.run_until(HOUR + MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    assert (free(world, "upper"), differs(world, "site")) == (2, {})
    out = {unit["unit"]: unit["reason"] for unit in world.query("site", "units") if unit["state"] == "out"}
    assert out == {f"vm-{index}": "no longer in the inventory" for index in (3, 4, 5)}
    world.restart("site")
    world.pass_time(SECOND)
    assert "no longer" in failed(world.command("site", "unit.enable", unit="vm-5"))
    rewrite(world, tmp_path, "units = 3", "units = 6", "site")
    assert free(world, "upper") == 5
    assert {unit["state"] for unit in world.query("site", "units")} == {"free"}
    is_sound(world)


def test_of_each_class_no_more_is_offered_than_there_is(tmp_path: Path) -> None:
    """Units of one class come and go again: what is left of the other one stays offered."""
    racks = 'units = 2\nprefix = "a-"\nunit_properties = { rack = "a" }\n[[actor.site.inventory]]\ntype = "vm"\n'
    racks += 'units = 4\nprefix = "b-"\nunit_properties = { rack = "b" }\n'
    world = DeployedWorld(ALONE.replace("units = 6\n", racks), tmp_path)
    lease = world.request("batch", 5, 10 * SECOND, HOUR)
    world.run_until(MINUTE)
    rack_a, rack_b = (f'units = {{}}\nprefix = "{rack}-"' for rack in "ab")
    there = [2, 4]
    for wanted in ([2, 6], [2, 4], [2, 3], [3, 2]):
        rewrite(world, tmp_path, rack_b.format(there[1]), rack_b.format(wanted[1]))
        rewrite(world, tmp_path, rack_a.format(there[0]), rack_a.format(wanted[0]), "site")
        (row,) = (one for one in world.query("upper", "sources") if one["state"] == "held")
        assert {(one["properties"]["rack"], one["units"]) for one in row["classes"]} == set(
            zip("ab", wanted, strict=True)
        )
        there = wanted
    assert world.lease("site", lease)["state"] == "active"
    is_sound(world)


@pytest.mark.parametrize("who", ["site", "upper"])
def test_more_and_fewer_by_command(tmp_path: Path, who: str) -> None:
    """What the operator says stands over restarts, whatever the file says, until it is said otherwise."""
    text = ALONE.replace('broker = "upper"\n', 'broker = "upper"\nunits = 4\n', 1) if who == "site" else ALONE
    world = DeployedWorld(text, tmp_path)
    holder, line, most = ("upper", LINE, 6) if who == "site" else ("lower", BELOW, 3)
    started = free(world, holder)
    given = give(world, who, holder, units=most)
    assert given["difference"]["code"] == "offered"
    grown = free(world, holder)
    assert grown - started == 2
    for _ in range(2):
        assert differs(world, who) == {line: ("overridden", most, most)}
        world.restart(who)
        world.pass_time(SECOND)
    give(world, who, holder, units=2)
    assert free(world, holder) == grown - most + 2
    give(world, who, holder)
    assert free(world, holder) == started
    assert differs(world, who) == {}
    is_sound(world)


def test_fewer_than_are_in_use(world: DeployedWorld) -> None:
    """Leases keep what they have; the status says until when; a reclaim takes it sooner."""
    lease = world.request("web", 4, 10 * SECOND, HOUR)
    world.run_until(MINUTE)
    give(world, "site", "upper", units=5)
    assert (free(world, "upper"), differs(world, "site")) == (1, {LINE: ("overridden", 5, 5)})
    give(world, "site", "upper", units=2)
    assert free(world, "upper") < 0
    assert differs(world, "site") == {LINE: ("in_use", 2, 2)}
    assert world.lease("web", lease)["state"] == "active"
    world.command("site", "delegation.reclaim", delegation=LINE, deadline=10 * MINUTE)
    world.run_until(11 * MINUTE)
    assert world.lease("web", lease)["state"] == "closed"
    assert all(unit["state"] == "free" for unit in world.query("site", "units"))
    is_sound(world)


def test_an_end_that_the_broker_hears_of_too_late(world: DeployedWorld) -> None:
    """It was away until then: what it holds beyond that is taken back."""
    world.lost.add(("site", "upper", "Offer"))
    give(world, "site", "upper", until=10 * MINUTE)
    world.run_until(11 * MINUTE)
    world.lost.clear()
    world.restart("site")
    world.pass_time(2 * MINUTE)
    assert free(world, "upper") == 0
    assert {row["state"] for row in world.query("site", "delegations")} <= {"reclaimed", "ended"}


@pytest.mark.parametrize("until", [13 * HOUR, 3 * DAY])
def test_until_when(world: DeployedWorld, until: int) -> None:
    """Earlier or later than it was; nothing is granted beyond, and it ends then."""
    give(world, "site", "upper", until=until)
    held = [row for row in world.query("upper", "sources") if row["state"] == "held"]
    assert [row["grants_until"] for row in held] == [until]
    asked = [world.request("batch", 1, until - HOUR, end) for end in (until, until + 1)]
    world.pass_time(MINUTE)
    assert [world.lease("batch", one)["state"] for one in asked] == ["ticketed", "failed"]
    world.restart("site")
    world.run_until(until + MINUTE)
    assert {row["state"] for row in world.query("site", "delegations")} == {"ended"}
    assert world.query("upper", "sources") == []


@pytest.mark.parametrize("who", ["site", "upper"])
def test_what_was_until_another_time_is_as_the_file_says_again(tmp_path: Path, who: str) -> None:
    """Until when, too: once, and also where the issuer starts again before it is answered."""
    world = DeployedWorld(ALONE, tmp_path)
    holder = "upper" if who == "site" else "lower"

    def held() -> list[tuple[str, int]]:
        rows = world.query(holder, "sources")
        return [(row["source"], row["grants_until"]) for row in rows if row["state"] == "held"]

    ((_, first),) = held()
    give(world, who, holder, until=world.now + HOUR)
    assert [until for _, until in held()] < [2 * HOUR]
    world.command(who, "delegation.give", broker=holder, type="vm")
    world.restart(who)
    world.pass_time(MINUTE)
    ((source, until),) = held()
    assert until >= first
    assert differs(world, who) == {}
    world.restart(who)
    give(world, who, holder)
    assert held() == [(source, until)]
    is_sound(world)


def test_what_another_goes_on_to_use_is_not_given_twice(tmp_path: Path) -> None:
    """Units move from one broker to another: what leases have is given when they have ended."""
    text = (
        ALONE.replace('broker = "upper"\ntype', 'broker = "upper"\nunits = 5\ntype')
        + '[actor.other]\nrole = "broker"\n'
    )
    world = DeployedWorld(text, tmp_path)
    lease = world.request("batch", 4, 10 * SECOND, HOUR)
    world.run_until(MINUTE)
    give(world, "site", "upper", units=2)
    give(world, "site", "other", units=4)
    assert world.query("other", "sources") == []
    assert differs(world, "site")["site/vm@other"] == ("waits", 0, 4)
    world.run_until(HOUR + MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    assert (free(world, "other"), free(world, "upper")) == (4, 1)
    is_sound(world)


def test_commands_that_cannot_be(world: DeployedWorld) -> None:
    """Each is refused with what was found and what there is, and changes nothing."""
    for arguments, words in (
        ({"broker": "web", "type": "vm"}, "upper"),
        ({"broker": "upper", "type": "gpu"}, "vm"),
        ({"broker": "upper", "type": "vm", "units": 7}, "site has 6"),
        ({"broker": "lower", "type": "vm", "units": 1}, "6 for upper"),
        ({"broker": "upper", "type": "vm", "units": -1}, "units"),
        ({"broker": "upper", "type": "vm", "until": 0}, "until"),
    ):
        assert words in failed(world.command("site", "delegation.give", **arguments))
    assert "units" in failed(world.command("lower", "delegation.give", broker="upper", type="vm"))
    world.restart("site")
    assert differs(world, "site") == {}


def test_an_offer_that_is_lost_or_doubled(world: DeployedWorld) -> None:
    """What replaces a claim is offered until it is answered, and taken once; old offers change nothing."""
    world.lost.add(("upper", "site", "OfferAnswer"))
    give(world, "site", "upper", units=3)
    assert differs(world, "site") == {LINE: ("offered", 6, 3)}
    world.restart("site")
    world.lost.clear()
    world.pass_time(MINUTE)
    assert differs(world, "site") == {LINE: ("in_use", 3, 3)}
    for offer in world.letters(Offer, "site", "upper"):
        world.receive("upper", "site", offer)
    for answer in world.letters(OfferAnswer, "upper", "site"):
        world.receive("site", "upper", answer)
    assert [row["units"] for row in world.query("upper", "sources") if row["state"] == "held"] == [3]


def test_a_site_that_lost_its_store_takes_up_what_it_gave(world: DeployedWorld) -> None:
    """The broker shows the claim; tickets from before are honoured, and what is given can be changed and taken back."""
    ticket = world.request("web", 2, 10 * MINUTE, HOUR)
    world.pass_time(MINUTE)
    lose_store(world, "site")
    world.pass_time(MINUTE)
    assert [(row["delegation"], row["state"]) for row in world.query("site", "delegations")] == [(LINE, "held")]
    assert differs(world, "site") == {}
    world.run_until(11 * MINUTE)
    assert world.lease("web", ticket)["state"] == "active"
    give(world, "site", "upper", units=5)
    assert free(world, "upper") == 1
    world.restart("site")
    world.command("site", "delegation.reclaim", delegation=LINE, deadline=20 * MINUTE)
    world.run_until(21 * MINUTE)
    assert world.lease("web", ticket)["state"] == "closed"
    is_sound(world)


def test_a_store_that_is_lost_after_changes(tmp_path: Path) -> None:
    """All that the broker holds of the line is taken up, and what the file says by then is given."""
    world = DeployedWorld(ALONE, tmp_path)
    give(world, "site", "upper", units=4)
    rewrite(world, tmp_path, "units = 6", "units = 5")
    lose_store(world, "site")
    world.pass_time(MINUTE)
    held = [row["units"] for row in world.query("upper", "sources") if row["state"] == "held"]
    assert (held, differs(world, "site")) == ([5], {})
    lease = world.request("batch", 4, world.now + SECOND, world.now + HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    is_sound(world)


def test_a_broker_shows_no_claim_that_the_site_did_not_forget(world: DeployedWorld) -> None:
    """A site with a record of the line takes up nothing; nor what its own key has not signed for that broker."""
    (first,) = world.letters(Offer, "site", "upper")
    (below,) = world.letters(Offer, "upper", "lower")
    mine = HeldClaim(LINE, first.ticket, "held", -1)
    before = [row["state"] for row in world.query("site", "delegations")]
    world.receive("site", "upper", OfferAnswer(LINE, first.number, said("no"), 0, (mine,)))
    assert [row["state"] for row in world.query("site", "delegations")] == before == ["held"]
    world.lost.add(("upper", "site", "OfferAnswer"))
    lose_store(world, "site")
    for name, ticket in ((LINE, below.ticket), (f"{LINE}#2", below.ticket), ("elsewhere", first.ticket)):
        number = world.letters(Offer, "site", "upper")[-1].number
        held = HeldClaim(name, ticket, "held", -1)
        world.receive("site", "upper", OfferAnswer(LINE, number, said("no"), 0, (held,)))
        assert "held" not in {row["state"] for row in world.query("site", "delegations")}
        world.restart("site")


@pytest.mark.parametrize("broker", ["upper", "lower"])
def test_who_gave_a_broker_its_units_hears_that_it_lost_its_store(world: DeployedWorld, broker: str) -> None:
    """Its issuer says so until it has taken back and given anew, and no more where the store comes back."""
    issuer, chain = {"upper": ("site", LINE), "lower": ("upper", BELOW)}[broker]
    store = world.nodes[broker].store
    lose_store(world, broker)
    world.nodes[broker].store.commit([Change("meta", COPIED, (COPIED, world.now))])
    world.restart(broker)
    world.pass_time(SECOND)
    assert world.query(broker, "sources") == []
    world.restart(issuer)
    assert differs(world, issuer)[chain][0] == "not_known"
    (row,) = (one for one in world.query(issuer, "delegations") if one["delegation"] == chain)
    assert (row["state"], row["because"]["code"]) == ("held", "not_known")
    lost, world.nodes[broker].store = world.nodes[broker].store, store
    store.commit([Change("meta", COPIED, (COPIED, world.now))])
    world.restart(broker)
    world.pass_time(SECOND)
    assert differs(world, issuer) == {}
    world.nodes[broker].store = lost
    world.restart(broker)
    world.pass_time(SECOND)
    assert not world.command(issuer, "delegation.reclaim", delegation=chain).error
    world.pass_time(SECOND)
    assert differs(world, issuer)[chain][0] == "reclaimed"
    give(world, issuer, broker)
    assert free(world, broker) == {"upper": 6, "lower": 4}[broker] and differs(world, issuer) == {}
    is_sound(world)


@pytest.mark.parametrize("lost", [False, True])
def test_a_broker_lets_go_of_a_dead_site(world: DeployedWorld, lost: bool) -> None:
    """Leases run out; when the site is back, with its store or without, it offers anew, and so does the broker."""
    lease, later = (world.request("batch", 1, start, HOUR) for start in (10 * SECOND, 30 * MINUTE))
    world.run_until(MINUTE)
    for name in ("upper", "batch"):
        world.lost |= {("site", name, kind) for kind in ("Offer", "Accepted", "LeaseUpdate")}
    world.lost |= {(name, "site", kind) for name in ("upper", "batch") for kind in ("LetGo", "CloseLease", "Redeem")}
    reply = world.command("upper", "source.release", source=LINE)
    assert not reply.error
    assert reply.result["sources"] == [LINE]
    assert free(world, "upper") == 0
    for _ in range(2):
        world.restart("upper")
        world.pass_time(MINUTE)
    assert world.lease("batch", later)["state"] == "failed"
    assert world.lease("batch", lease)["state"] == "active"
    assert "let go" in failed(world.command("upper", "source.release", source=LINE))
    if lost:
        world.nodes["site"].store = MemoryStore()
    world.run_until(11 * MINUTE)
    world.lost.clear()
    world.restart("site")
    world.pass_time(2 * MINUTE)
    held = [row["source"] for row in world.query("upper", "sources") if row["state"] == "held"]
    assert held == [f"{LINE}#2"]
    assert [row["state"] for row in world.query("site", "delegations")] == ["reclaimed", "held"]
    world.run_until(61 * MINUTE)
    assert free(world, "upper") == 2
    is_sound(world)


def test_sources_that_are_not_there(world: DeployedWorld) -> None:
    """Refused with those that there are."""
    assert LINE in failed(world.command("upper", "source.release", source="nothing"))


def test_a_broker_that_grants_of_both_claims(tmp_path: Path) -> None:
    """Of a claim and of what stands in its place no more is honoured than the most that the broker ever had: what the
    site keeps for others is there for them.
    """
    text = CHAIN.replace("units = 6", "units = 10").replace("units = 4\n", "units = 1\n")
    text = text.replace('broker = "upper"\n', 'broker = "upper"\nunits = 6\n', 1)
    world = DeployedWorld(text, tmp_path)
    give(world, "site", "upper", units=8)
    first = world.request("batch", 7, world.now + SECOND, HOUR)
    world.pass_time(MINUTE)
    book = world.broker("upper").book
    old = book.get(LINE)
    assert old is not None
    with book.changing(old, 0):
        old.replaced = -1
    second = world.request("batch", 2, world.now + SECOND, HOUR)
    world.pass_time(MINUTE)
    states = [world.lease("batch", one)["state"] for one in (first, second)]
    assert states == ["active", "failed"]
    assert "gives more than the 8 units" in world.lease("batch", second)["reason"]
    assert [one["code"] for one in world.query("site", "status")["reports"]] == ["overdelegated"]


def test_a_type_that_is_gone(tmp_path: Path) -> None:
    """A type that the inventory names no more is taken back from its brokers; leases run out."""
    gpu = '[[actor.site.inventory]]\ntype = "gpu"\nunits = 2\n'
    given = '[[actor.site.delegation]]\nbroker = "upper"\ntype = "gpu"\nlength = "1d"\n'
    world = DeployedWorld(CHAIN.replace("[actor.upper]", f"{gpu}{given}[actor.upper]"), tmp_path)
    world.feed("upper", [Connected("site")])
    rewrite(world, tmp_path, gpu + given, "", "site")
    states = {row["source"]: row["state"] for row in world.query("upper", "sources")}
    assert states == {LINE: "held", "site/gpu@upper": "reclaimed"}


@pytest.mark.parametrize("late", [False, True])
def test_a_window_is_over_after_what_it_was_told_of_was_replaced(world: DeployedWorld, late: bool) -> None:
    """The broker below hears of its end, though it has its units of the claim that was there before; and of its begin,
    if it begins then.
    """
    before = free(world, "lower")
    if late:
        give(world, "site", "upper", units=5)
    made = world.command("site", "maintenance.add", start=world.now, end=world.now + DAY, type="vm")
    assert not made.error
    world.pass_time(SECOND)
    assert free(world, "lower") == 0 < before
    if not late:
        give(world, "site", "upper", units=5)
    assert not world.command("site", "maintenance.remove", window=made.result["window"]).error
    world.pass_time(SECOND)
    assert free(world, "lower") == before
    is_sound(world)


def test_a_repeat_of_an_offer_that_comes_when_others_have_its_place(world: DeployedWorld) -> None:
    """What was replaced, and let go of as nothing of it was in use, does not come back."""
    give(world, "site", "upper", units=5)
    late = world.letters(Offer, "site", "upper")[-1]
    give(world, "site", "upper", units=4)
    assert world.broker("upper").book.get(late.delegation) is None
    before = world.query("upper", "sources")
    world.receive("upper", "site", late)
    world.pass_time(SECOND)
    assert world.query("upper", "sources") == before
    assert {row["units"] for row in before if row["state"] == "held"} == {4}
    is_sound(world)
