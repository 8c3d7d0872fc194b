"""What is under notice is promised to the request that others make room for, and to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.core.mappers import BrokerCycle, Defer, Grant, Preempt
from leasekit.core.protocol.messages import ErrorReply, RequestTicket, TicketUpdate, Truncated
from leasekit.core.reasons import words
from leasekit.core.steps import TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.broker.fcfs import Fcfs

DEFERRABLE = {"deferrable": "true", "latest_start": str(30 * MINUTE)}


class Strong:
    """As FCFS. What that refuses or defers gets the place of all preemptible leases, when these can be ended."""

    inline = True

    def __init__(self) -> None:
        self._fcfs = Fcfs()

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Grants with victims."""
        return [self._stronger(cycle, one) for one in self._fcfs.allocate(cycle)]

    def _stronger(self, cycle: BrokerCycle, decision: Any) -> Any:
        request = next((one for one in cycle.requests if one.lease == decision.lease), None)
        held = [one for one in cycle.granted("vm") if one.preemptible and one.term.end == one.booked]
        if isinstance(decision, Grant) or request is None or request.preemptible or not held:
            return decision
        at = max(request.term.start, *(one.ends_from for one in held))
        if at > request.latest_start:
            return Defer(request.lease, "too late for others to make room")
        victims = tuple(Preempt(one.lease, at, "it is more important") for one in held)
        term = Term(at, at + request.term.length)
        return Grant(request.lease, held[0].source, request.units, term, victims=victims)


def strong(name: str, actor: Actor) -> Actor:
    """The mapper above, for the broker of two guests."""
    if name == "upper":
        assert isinstance(actor, Broker)
        actor.turning.mapper = Strong()
    return actor


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    """Two units for two guests."""
    text = CHAIN.replace('role = "broker"', 'role = "broker"\nsettings.request_timeout = "20m"')
    text = text.replace('default_broker = "lower"', 'default_broker = "upper"')
    text = text.replace(
        'settings.default_broker = "upper"', 'settings = {default_broker = "upper", request_timeout = "20m"}'
    )
    return DeployedWorld(text, tmp_path, make=strong)


def victim(world: DeployedWorld, units: int = 2, **more: str) -> str:
    """A preemptible lease that runs."""
    properties = {"preemptible": "true", **more}
    lease = world.request("batch", units, world.now + SECOND, world.now + HOUR, properties=properties)
    world.pass_time(30 * SECOND)
    assert world.lease("batch", lease)["state"] == "active", world.lease("batch", lease)
    return lease


def tickets(world: DeployedWorld, lease: str) -> int:
    """How many tickets its guest was sent for a lease."""
    return sum(one.lease == lease and bool(one.ticket) for one in world.letters(TicketUpdate, "upper"))


def test_the_victim_hears_who_and_when_and_the_other_starts_then(world: DeployedWorld) -> None:
    """By code and values; nothing starts before the victim's notice is over, and both are told of it."""
    first = victim(world)
    asked = world.now
    other = world.request("web", 2, asked, asked + HOUR, properties=DEFERRABLE)
    world.pass_time(5 * SECOND)
    told = world.guest("batch").leases[first]
    ends = told.ending.at
    assert asked + 30 * SECOND <= ends <= asked + 31 * SECOND
    assert told.reason is not None and told.reason.code == "ended_by"
    (why,) = told.reason.causes
    assert (why.code, why.who, why.at) == ("makes_room", other, ends)
    broker = world.lease("upper", other)
    assert broker["state"] == "nascent" and "when others have made room" in broker["reason"]
    assert world.lease("batch", first)["state"] == "active" and tickets(world, other) == 0
    world.run_until(ends - SECOND)
    assert world.lease("batch", first)["state"] == "active" and tickets(world, other) == 1
    world.run_until(ends + 5 * SECOND)
    assert world.lease("batch", first)["state"] == "closed"
    assert world.lease("web", other)["state"] == "active"
    assert world.query("site", "evidence") == []


def test_a_victim_that_leaves_early_makes_room_early(world: DeployedWorld) -> None:
    """What it leaves is handed over at once, though its notice goes on."""
    first = victim(world, notice="5m")
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(MINUTE)
    assert world.lease("web", other)["state"] == "nascent"
    world.command("batch", "lease.close", lease=first)
    world.pass_time(15 * SECOND)
    assert world.lease("web", other)["state"] == "active", world.lease("web", other)
    assert world.broker("upper").leases[first].ending.at > world.now
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("restarted", [(), ("upper", "batch", "site", "web")])
def test_what_a_victim_gives_unit_by_unit_is_the_others(world: DeployedWorld, restarted: tuple[str, ...]) -> None:
    """Of a lease under notice each unit that its guest names goes to the one that it makes room for, which starts when
    it has enough; nobody else gets it meanwhile, also over restarts. What is left ends with the notice.
    """
    first = victim(world, notice="5m")
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(10 * SECOND)
    ends = world.guest("batch").leases[first].ending.at
    assert not world.command("batch", "lease.modify", lease=first, victims=["vm-1"]).error
    for name in restarted:
        world.pass_time(10 * SECOND)
        world.restart(name)
    world.pass_time(10 * SECOND)
    third = world.request("batch", 1, world.now, world.now + 2 * MINUTE, properties={"deferrable": "true"})
    world.pass_time(10 * SECOND)
    assert world.lease("batch", first)["pending"] == world.lease("upper", first)["pending"] == "noticed"
    assert [one["unit"] for one in world.lease("batch", first)["units"]] == ["vm-0"]
    assert world.lease("web", other)["state"] == "nascent" and world.now < ends - 2 * MINUTE
    assert world.broker("upper").leases[first].claims[-1].until == ends
    assert not world.command("batch", "lease.close", lease=first).error
    world.pass_time(15 * SECOND)
    assert world.lease("web", other)["state"] == "active"
    found = world.broker("upper").leases
    assert all(one.term.start >= found[other].claims[0].term.end for one in found[third].claims)
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("restarted", [False, True])
def test_one_unit_can_be_enough(world: DeployedWorld, restarted: bool) -> None:
    """Who needs fewer units than its victim has starts as soon as that has given so many; the rest of the victim stays
    until its notice is over.
    """
    first = victim(world, notice="5m")
    other = world.request("web", 1, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(10 * SECOND)
    ends = world.guest("batch").leases[first].ending.at
    assert not world.command("batch", "lease.modify", lease=first, victims=["vm-1"]).error
    if restarted:
        world.restart("upper")
    world.pass_time(15 * SECOND)
    assert world.lease("web", other)["state"] == "active"
    assert [one["unit"] for one in world.lease("batch", first)["units"]] == ["vm-0"]
    world.run_until(ends - SECOND)
    assert world.lease("batch", first)["state"] == "active"
    world.run_until(ends + 5 * SECOND)
    assert world.lease("batch", first)["state"] == "closed" and world.lease("upper", first)["state"] == "closed"
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_given_for_a_request_that_is_withdrawn_is_free(world: DeployedWorld, restarted: bool) -> None:
    """What a lease under notice has given back is anybody's when the one that it makes room for is withdrawn; with the
    others the victim runs up to the end of its notice.
    """
    first = victim(world, notice="5m")
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(10 * SECOND)
    ends = world.guest("batch").leases[first].ending.at
    assert not world.command("batch", "lease.modify", lease=first, victims=["vm-1"]).error
    world.pass_time(10 * SECOND)
    kept = world.request("batch", 1, world.now, world.now + MINUTE)
    world.pass_time(10 * SECOND)
    assert world.lease("batch", kept)["state"] == "nascent"
    assert not world.command("batch", "lease.close", lease=kept).error
    assert not world.command("web", "lease.close", lease=other).error
    if restarted:
        world.restart("upper")
    world.pass_time(10 * SECOND)
    free = world.request("batch", 1, world.now, world.now + MINUTE)
    world.pass_time(10 * SECOND)
    assert world.lease("batch", free)["state"] == "active", world.lease("batch", free)
    world.run_until(ends - SECOND)
    assert world.lease("batch", first)["state"] == "active"
    world.run_until(ends + 5 * SECOND)
    assert world.lease("batch", first)["state"] == world.lease("upper", first)["state"] == "closed"
    assert world.query("site", "evidence") == []


def test_what_was_given_back_is_not_asked_for_anew(world: DeployedWorld) -> None:
    """A lease that is to be requeued asks for the units that it had at its end, for as long as it was to run."""
    first = victim(world, notice="5m", on_preempt="requeue")
    known = {first, world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)}
    world.pass_time(10 * SECOND)
    asked = world.guest("batch").leases[first]
    assert asked.is_noticed and not world.command("batch", "lease.modify", lease=first, victims=["vm-1"]).error
    world.run_until(asked.ending.at + 10 * SECOND)
    assert world.lease("batch", first)["state"] == "closed"
    (again,) = world.guest("batch").leases.keys() - known
    found = world.lease("batch", again)["requested"]
    assert (found["units"], found["term"][1] - found["term"][0]) == (1, HOUR - SECOND)


def test_who_has_a_fixed_start_keeps_it(world: DeployedWorld) -> None:
    """It has nothing before, whatever its victim gives back: that is free until then, for who is done by then."""
    first = victim(world, notice="5m")
    start = world.now + 10 * MINUTE
    other = world.request("web", 2, start, start + HOUR)
    world.pass_time(10 * SECOND)
    assert not world.command("batch", "lease.modify", lease=first, victims=["vm-1"]).error
    world.pass_time(10 * SECOND)
    third = world.request("batch", 1, world.now, world.now + 8 * MINUTE)
    world.pass_time(10 * SECOND)
    assert world.lease("batch", third)["state"] == "active" and world.lease("web", other)["state"] == "ticketed"
    world.run_until(start + 10 * SECOND)
    assert world.lease("web", other)["state"] == "active"
    assert world.guest("web").leases[other].approved.term.start == start
    assert world.query("site", "evidence") == []


def test_who_is_under_notice_gives_of_what_it_has_now(world: DeployedWorld) -> None:
    """A lease that was to grow from then on is under notice: fewer units than it was to have are no fewer than it has,
    and its broker, whatever the guest asks, gives it none.
    """
    first = victim(world, units=1, notice="20m")
    middle = world.now + 10 * MINUTE
    assert not world.command("batch", "lease.modify", lease=first, end=middle).error
    world.pass_time(5 * SECOND)
    assert not world.command("batch", "lease.extend", lease=first, end=world.now + HOUR, units=2).error
    world.pass_time(5 * SECOND)
    world.request("web", 2, world.now, world.now + HOUR, properties={**DEFERRABLE, "latest_start": "3000000"})
    world.pass_time(10 * SECOND)
    lease = world.broker("upper").leases[first]
    now, later = lease.claims
    assert lease.is_noticed and (now.units, later.units) == (1, 2) and now.until < lease.ending.at
    term = Term(world.now, now.until)
    world.receive(
        "upper", "batch", RequestTicket(first, lease.number + 1, "modify", "s", "vm", 1, term, "", {}, now.digest)
    )
    world.pass_time(5 * SECOND)
    assert [one.reason.code for one in world.letters(ErrorReply, "upper", "batch")] == ["preempted"]
    assert world.broker("upper").leases[first].claims == (now, later)


def test_nobody_else_gets_what_is_under_notice(world: DeployedWorld) -> None:
    """A third request that would fit when the victim is gone gets its units when the other's lease is over. So it is
    over restarts of the broker, while the site has not heard and afterwards.
    """
    first = victim(world)
    world.lost.add(("upper", "site", "Truncated"))
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(SECOND)
    third = world.request("batch", 2, world.now, world.now + HOUR, properties={"deferrable": "true"})
    for lost in (True, False):
        world.restart("upper")
        world.pass_time(5 * SECOND)
        assert world.letters(Truncated, "upper", "site")
        assert world.lease("web", other)["state"] == "nascent" and tickets(world, other) == 0
        if lost:
            world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert world.lease("batch", first)["state"] == "closed"
    assert world.lease("web", other)["state"] == "active"
    assert world.lease("batch", third)["state"] == "ticketed"
    leases = world.broker("upper").leases
    assert leases[third].claims[0].term.start >= leases[other].claims[0].term.end
    assert world.query("site", "evidence") == []


def test_what_was_promised_is_free_again_when_nobody_wants_it(world: DeployedWorld) -> None:
    """The victim's end stands; what it leaves goes to the next one."""
    first = victim(world)
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(5 * SECOND)
    world.command("web", "lease.close", lease=other)
    third = world.request("batch", 2, world.now + MINUTE, world.now + HOUR)
    world.pass_time(2 * MINUTE)
    assert world.lease("batch", first)["state"] == "closed"
    assert world.lease("batch", third)["state"] == "active", world.lease("batch", third)


@pytest.mark.parametrize("killed", ["batch", "upper", "site"])
def test_a_notice_is_a_state_that_survives_a_kill(world: DeployedWorld, killed: str) -> None:
    """Broker and guest have it in their tables: nothing goes on from there, and the units leave in time."""
    first = victim(world, notice="2m")
    other = world.request("web", 2, world.now, world.now + HOUR, properties=DEFERRABLE)
    world.pass_time(5 * SECOND)
    for _ in range(2):
        assert world.lease("batch", first)["pending"] == world.lease("upper", first)["pending"] == "noticed"
        refused = world.command("batch", "lease.extend", lease=first, end=world.now + 3 * HOUR)
        assert "ends early, at" in refused.error
        world.restart(killed)
        world.pass_time(10 * SECOND)
    ends = world.guest("batch").leases[first].ending.at
    world.run_until(ends + 5 * SECOND)
    assert world.lease("batch", first)["state"] == "closed" and world.lease("web", other)["state"] == "active"


def test_a_victim_that_is_requeued_is_asked_for_anew(world: DeployedWorld) -> None:
    """All of it, in its old place in line, when the other is over; one that its guest closes early is not."""
    first = victim(world, on_preempt="requeue", notice="10s", deferrable="true", latest_start=str(MINUTE))
    arrived = world.broker("upper").leases[first].waits.arrived
    world.request("web", 2, world.now, world.now + 10 * MINUTE, properties=DEFERRABLE)
    world.pass_time(MINUTE)
    again = next(one for one in world.guest("batch").leases.values() if one.asked.properties.get("resumes") == first)
    assert again.asked.term.length == HOUR - SECOND and world.broker("upper").leases[again.id].waits.arrived == arrived
    world.pass_time(12 * MINUTE)
    assert world.lease("batch", again.id)["state"] == "active", world.lease("batch", again.id)
    world.request("web", 2, world.now, world.now + 10 * MINUTE, properties=DEFERRABLE)
    world.pass_time(SECOND)
    world.command("batch", "lease.close", lease=again.id)
    world.pass_time(MINUTE)
    assert all(one.is_over for one in world.guest("batch").leases.values())


def test_one_that_has_not_begun_is_requeued_too(world: DeployedWorld) -> None:
    """Its broker alone says so: the site has never heard of it."""
    start = world.now + 10 * MINUTE
    properties = {"preemptible": "true", "on_preempt": "requeue"}
    first = world.request("batch", 2, start, start + HOUR, properties=properties)
    world.pass_time(SECOND)
    world.request("web", 2, start, start + HOUR)
    world.pass_time(5 * SECOND)
    assert world.lease("batch", first)["state"] == "failed"
    why = world.guest("batch").leases[first].reason
    assert why is not None and [why.code, *(cause.code for cause in why.causes)] == ["ended_by", "makes_room"]
    asked = [one for one in world.guest("batch").leases.values() if one.asked.properties.get("resumes") == first]
    assert [one.asked.term.length for one in asked] == [HOUR]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lease_ends_when_it_has_run_for_as_long_as_it_may(world: DeployedWorld, restarted: bool) -> None:
    """Its guest hears of it in time, by the code; an extend doesn't move that, and it is not requeued."""
    first = victim(world, max_run="20m", notice="2m", on_preempt="requeue")
    world.command("batch", "lease.extend", lease=first, end=world.now + 3 * HOUR)
    since = world.broker("upper").leases[first].terms.since
    if restarted:
        world.restart("upper")
    world.run_until(since + 18 * MINUTE - SECOND)
    assert world.guest("batch").leases[first].ending.at == -1
    world.run_until(since + 18 * MINUTE + SECOND)
    told = world.guest("batch").leases[first]
    assert told.ending.at == since + 20 * MINUTE
    world.run_until(since + 20 * MINUTE + 5 * SECOND)
    assert told.state == "closed" and told.reason is not None
    assert [told.reason.code, told.reason.causes[0].code] == ["ended_by", "max_run"]
    assert len(world.guest("batch").leases) == 1
    other = world.request("web", 2, world.now, world.now + HOUR)
    world.pass_time(10 * SECOND)
    assert world.lease("web", other)["state"] == "active"


def test_a_lease_of_a_site_that_is_no_peer_ends_when_the_site_is_one_again(world: DeployedWorld) -> None:
    """It goes on while nobody can be told, which is said once."""
    first = victim(world, max_run="20m", notice="2m")
    since, site = world.broker("upper").leases[first].terms.since, world.broker("upper").peers["site"]
    world.command("upper", "peer.remove", name="site")
    world.run_until(since + 25 * MINUTE)
    assert world.lease("batch", first)["state"] == "active"
    assert sum("run for as long as it may" in error for error in world.broker("upper").errors) == 1
    assert not world.command("upper", "peer.add", name="site", role="authority", key=site.key.hex()).error
    world.run_until(since + 29 * MINUTE)
    assert world.lease("batch", first)["state"] == "closed"


def test_a_fixed_start_has_its_ticket_as_soon_as_sites_agree(world: DeployedWorld) -> None:
    """It can't start earlier."""
    first = victim(world)
    start = world.now + 10 * MINUTE
    other = world.request("web", 2, start, start + HOUR)
    world.pass_time(5 * SECOND)
    assert tickets(world, other) == 1 and world.guest("batch").leases[first].ending.at == start
    world.run_until(start + 10 * SECOND)
    assert world.lease("web", other)["state"] == "active"


def test_all_victims_or_none(world: DeployedWorld) -> None:
    """If one of them can't be ended, or what they leave isn't enough, nobody is ended, and nothing is promised."""
    first, second = victim(world, 1), victim(world, 1, min_run="1h")
    firm = world.request("web", 6, world.now + 5 * MINUTE, world.now + HOUR)
    world.pass_time(SECOND)
    broker = world.broker("upper")
    at, held = world.now + MINUTE, broker.leases[first].claims[0].source
    both = (Preempt(first, at), Preempt(second, at))
    for units, victims, why in (
        (6, both, "can be ended from"),
        (6, (Preempt(first, at), Preempt("nobody-1", at)), "holds nothing"),
        (6, (Preempt(first, at),), "units are free"),
        (6, (Preempt(first, world.now),), "can be ended from"),
    ):
        _decide(broker, Grant(firm, held, units, broker.leases[firm].asked.term, victims=victims))
        assert why in broker.errors[-1], (why, broker.errors[-1])
    assert broker.leases[first].ending.at == broker.leases[second].ending.at == -1
    assert broker.leases[firm].room.promise is None
    world.feed("upper", [])
    world.run_until(world.now + 10 * MINUTE)
    assert world.lease("batch", first)["state"] == world.lease("batch", second)["state"] == "active"


def _decide(broker: Broker, decision: Any) -> None:
    """Have the broker carry out a decision as at the end of a turn."""
    broker.turns.running = broker.kernel.next("turn")
    broker.step(TurnDone(broker.turns.running, [decision]))


@pytest.mark.parametrize(
    ("said", "most"),
    [({"notice": "1d1h"}, "1d"), ({"min_run": "8d"}, "7d"), ({"suspend": "366d", "on_preempt": "suspend"}, "1d")],
)
def test_who_would_stay_for_longer_than_the_broker_lets_is_refused(
    world: DeployedWorld, said: dict[str, str], most: str
) -> None:
    """Nobody could count on the place of such a lease. As long as it may be is taken; so it is when it is extended."""
    name, found = next(iter(said.items()))
    lease = world.request("batch", 1, world.now + SECOND, world.now + HOUR, properties={"preemptible": "true", **said})
    world.pass_time(10 * SECOND)
    told = world.guest("batch").leases[lease].reason
    assert told is not None and told.root.code == "stays_too_long"
    assert words(told.root) == f"properties.{name}: found {found}, upper allows at most {most}"
    other = victim(world, 1, **{**said, name: most})
    asked = next(one for one in reversed(world.letters(RequestTicket, "batch")) if one.lease == other)
    longer = {"preemptible": "true", **said}
    world.receive("upper", "batch", replace(asked, number=99, op="extend", properties=longer))
    world.pass_time(SECOND)
    assert world.letters(ErrorReply, "upper", "batch")[-1].reason.code == "stays_too_long"
