"""Asking a broker what it would answer: true answers, in bounded time, that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from actor_bench import Bench, Fault, Mappers, Plan
from bad_mappers import BAD_MAPPERS
from msgspec.structs import replace

from leasekit.actors.base import MalformedError, check_decision, run_turn
from leasekit.actors.broker.requests import PEER_DRY_RUNS_MAX
from leasekit.actors.guest.requests import DRY_RUN_TIMEOUT
from leasekit.core.claims.signed import key_tag
from leasekit.core.mappers import BrokerCycle, Grant, Preempt, RequestTopology
from leasekit.core.protocol.messages import DryRun, DryRunAnswer, ErrorReply, RequestTicket
from leasekit.core.reasons import Code, Coded, Reason, words
from leasekit.core.steps import Command, Received, Reply, Tick, TurnDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.registry import BUILT_IN, mapper_maker

NOW = SECOND
IDS = iter(range(1000, 10_000))
"""Ids of commands, apart from those that the world counts."""


def bench(policy: str = "fcfs", **settings: Any) -> Bench:
    """A site of four units under a broker with a standard mapper."""
    return Bench(Plan(), Mappers(broker=mapper_maker(policy, "broker", settings, "mapper", {}))).start()


def term(start: int, hours: float) -> list[int]:
    return [start, start + int(hours * HOUR)]


def send(world: Bench, **wish: Any) -> int:
    """Ask; the id of the command that waits for the answer."""
    id_ = next(IDS)
    world.feed("guest", [Command(id_, "lease.dry_run", {"type": "vm", "units": 1, **wish})])
    return id_


def stored(world: Bench) -> dict[str, Any]:
    """The rows of all actors."""
    return {name: dict(world.nodes[name].store.load()) for name in ("guest", "broker", "site")}


def answered(world: Bench, **wish: Any) -> Reply:
    """The reply, which must be there within a second."""
    id_ = send(world, **wish)
    world.run_until(world.now + SECOND)
    return world.replies.pop(id_)


def ask(world: Bench, **wish: Any) -> dict[str, Any]:
    """The answer."""
    reply = answered(world, **wish)
    assert not reply.error, reply.error
    answer: dict[str, Any] = reply.result
    return answer


def lease(world: Bench, **wish: Any) -> dict[str, Any]:
    """A lease that is asked for in earnest, as it is a second later."""
    reply = world.command("guest", "lease.request", **{"type": "vm", "units": 1, **wish})
    assert not reply.error, reply.error
    world.run_until(world.now + SECOND)
    found: dict[str, Any] = world.query("guest", "lease", lease=reply.result["id"])
    return found


@pytest.mark.parametrize("policy", sorted(BUILT_IN["broker"]))
def test_the_answer_is_what_the_request_then_gets(policy: str) -> None:
    """Under every mapper: granted, granted for later, short, and short with an earliest fit, as in earnest."""
    world = bench(policy)
    for units, start, hours in ((3, 0, 2), (2, 0, 1), (1, 0, 1), (4, 3, 1), (4, 1, 1), (5, 6, 1)):
        wish: dict[str, Any] = {"units": units, "term": term(world.now + start * HOUR + MINUTE, hours)}
        told = ask(world, **wish)
        got = lease(world, **wish)
        if told["status"] == "granted":
            assert got["state"] in ("ticketed", "active"), got["reason"]
            approved = got["approved"]
            assert (got["site"], approved["units"], approved["term"]) == (told["site"], told["units"], told["term"])
        else:
            assert (told["status"], got["state"]) == ("refused", "failed")
            assert told["reason"].partition("[")[0] in got["reason"]
            assert told["earliest"] is None or str(told["earliest"]) in got["reason"]


def test_refusals_have_codes() -> None:
    """For programs, beside the words, in the answer and in earnest."""
    world = bench("fcfs", quotas=[{"units": 3}])
    held = lease(world, units=2, term=term(NOW, 1))
    assert held["state"] in ("ticketed", "active")
    wishes: dict[str, dict[str, Any]] = {
        "quota": {"units": 2},
        "no_match": {"properties": {"filter": "site == elsewhere"}},
        "not_covered": {"term": [NOW, 10**12]},
    }
    for code, wish in wishes.items():
        asked = {"term": term(world.now + MINUTE, 0.5), **wish}
        for answer in (ask(world, **asked), lease(world, **asked)):
            assert answer["because"]["code"] == f"mapper:{code}", answer
            assert answer["reason"]


def test_a_mappers_code_is_a_word() -> None:
    """Another one is refused where it is made."""
    for code in ("", "No Room", "x" * 49):
        with pytest.raises(ValueError, match="code: found"):
            Coded("no room", code)


def test_a_question_changes_nothing() -> None:
    """No row, no booking and no account of a holder is different after it, and the next request is decided the same."""
    world = bench("fair_share", quotas=[{"unit_hours": 6}])
    lease(world, units=2, term=term(NOW, 1))
    world.run_until(MINUTE)
    before = stored(world)
    described = world.query("broker", "sources"), world.query("broker", "status")["leases"]
    for units in (1, 2, 3, 4, 5):
        ask(world, units=units, term=term(world.now + HOUR, 1))
    assert stored(world) == before
    assert (world.query("broker", "sources"), world.query("broker", "status")["leases"]) == described
    assert ask(world, units=4, term=term(world.now + HOUR, 1))["status"] == "granted"
    assert lease(world, units=4, term=term(world.now + HOUR, 1))["state"] == "ticketed"
    assert "unit-hours" in ask(world, units=1, term=term(world.now + 3 * HOUR, 1))["reason"]


def test_who_waits_in_line_comes_first() -> None:
    """A request behind one that waits is told that it would wait too, though there is room for it alone."""
    world = bench("fcfs", backfill=False)
    later = {"deferrable": "true", "latest_start": str(9 * HOUR)}
    lease(world, units=3, term=term(NOW, 4))
    lease(world, units=4, term=term(NOW, 1), properties=later)
    assert ask(world, term=term(world.now, 1), properties=later)["status"] == "waits"
    assert ask(world, term=term(world.now, 1))["status"] in ("granted", "refused")


def test_a_mapper_that_decides_in_rounds() -> None:
    """The answer is that of the next round, and doesn't wait for it."""
    world = bench(gather="5s")
    told = ask(world, units=3, term=term(NOW + MINUTE, 1))
    assert (told["status"], told["units"], told["term"]) == ("granted", 3, term(NOW + MINUTE, 1))


@pytest.mark.parametrize(
    ("wish", "status", "words"),
    [
        ({"type": "tape"}, "refused", "type: found 'tape', broker has vm"),
        ({"units": 5}, "refused", "units: found 5, no site here has more than 4 of 'vm'"),
        ({"properties": {"filter": "cpu >"}}, "refused", "filter: character 6"),
        ({"properties": {"filter": "cpu > 3"}}, "refused", "unknown attribute 'cpu'"),
        ({"units": 9, "properties": {"elastic": "true"}}, "granted", ""),
    ],
)
def test_what_can_never_be(wish: dict[str, Any], status: str, words: str) -> None:
    """Types, sizes and filters are refused with the words of a request; an elastic one gets what there is."""
    told = ask(bench(), **{"term": term(NOW + MINUTE, 1), **wish})
    assert told["status"] == status and words in told["reason"], told


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"term": [5, 3]}, "term:"),
        ({"units": 0}, "units"),
        ({"term": [0, 1]}, "is past"),
        ({"broker": "b2"}, "known brokers are broker"),
        ({"properties": {"group_id": "g"}}, "a group is answered whole"),
        ({"properties": {"deferrable": "maybe"}}, "properties.deferrable"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_no_request(wish: dict[str, Any], words: str) -> None:
    """It is refused at the guest, at once, and nothing is sent."""
    world = bench()
    sent = world.messages
    id_ = send(world, **{"term": term(NOW + MINUTE, 1), **wish})
    assert words in world.replies[id_].error
    assert world.messages == sent


def test_a_broker_that_does_not_answer() -> None:
    """Who asks hears so in time, once; a late answer is nobody's any more."""
    world = bench()
    world.faults.append(Fault("keep", "broker", "guest", "DryRunAnswer", 1))
    id_ = send(world, term=term(NOW + MINUTE, 1))
    world.run_until(world.now + DRY_RUN_TIMEOUT - SECOND)
    assert id_ not in world.replies
    world.run_until(world.now + 2 * SECOND)
    reply = world.replies.pop(id_)
    assert reply.error == "broker did not answer within 20 s; nothing was asked for"
    assert reply.reason == Reason(Code.SILENT, "broker")
    world.release()
    world.run_until(world.now + SECOND)
    assert id_ not in world.replies
    assert ask(world, term=term(world.now, 1))["status"] == "granted"


def test_a_question_that_was_lost_on_its_way() -> None:
    """It is asked again when a connection comes up, and answered once."""
    world = bench()
    world.faults.append(Fault("lose", "guest", "broker", "DryRun", 1))
    id_ = send(world, term=term(NOW + MINUTE, 1))
    world.run_until(world.now + 5 * SECOND)
    assert id_ not in world.replies
    for _ in range(2):
        world.connect("guest", "broker")
    world.run_until(world.now + SECOND)
    assert world.replies.pop(id_).result["status"] == "granted"
    assert id_ not in world.replies


def test_a_broker_that_forgets_it() -> None:
    """A restart of broker or guest loses a question; nothing hangs, and the next one is answered."""
    world = bench()
    send(world, term=term(NOW + MINUTE, 1))
    world.crash("broker")
    world.crash("guest")
    world.run_until(world.now + MINUTE)
    assert ask(world, term=term(world.now, 1))["status"] == "granted"


def test_the_error_of_a_lease_is_not_taken_for_an_answer() -> None:
    """Numbers of questions and of requests are counted apart: only what names the question answers it."""
    world = bench()
    id_ = send(world, term=term(NOW + MINUTE, 1))
    for number in range(5):
        world.receive("guest", "broker", ErrorReply("other-1", number, Reason("busy", detail="no")))
        world.receive("guest", "broker", DryRunAnswer("other", number, "granted", "x", 1, Term(1, 2), None, -1))
    assert id_ not in world.replies
    world.run_until(world.now + SECOND)
    assert world.replies[id_].result["site"] == "site"


@pytest.mark.parametrize("bad", ["broker_raises", "overbooks", "too_many", "wrong_term", "nonsense"])
def test_a_mapper_that_breaks_the_rules(bad: str) -> None:
    """The answer says that it can't be relied on; nothing else comes of it, and the broker's operator is told."""
    world = Bench(Plan(), Mappers(broker=BAD_MAPPERS[bad])).start()
    reply = answered(world, units=4, term=term(world.now + MINUTE, 1))
    if bad == "overbooks":
        assert reply.result["status"] == "granted", "alone it is no overbooking"
        return
    assert reply.result["status"] in ("refused", "waits")
    if bad != "nonsense":
        assert reply.result["status"] == "refused"
        assert world.query("broker", "status")["mapper_errors"]


class Full:
    """Grants the whole source whatever is booked."""

    inline = True

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """All of it."""
        return [
            Grant(request.lease, source.id, request.units, request.term)
            for request in cycle.requests
            for source in cycle.sources(request.type)
        ]


def test_an_answer_that_would_overbook() -> None:
    """A mapper's grant is held against the book, as in earnest."""
    world = Bench(Plan(), Mappers(broker=Full)).start()
    lease(world, units=3, term=term(world.now, 2))
    told = ask(world, units=2, term=term(world.now, 1))
    assert told["status"] == "refused" and "it would overbook: 1 units are free" in told["reason"]


def test_one_peer_can_not_fill_the_queue() -> None:
    """Beyond its share a peer is told to try later; others are heard, and real requests go first."""
    world = bench()
    broker = world.actor("broker")
    tag = key_tag(world.identity("guest").public)
    probe = DryRun("q", 0, "vm", 1, Term(NOW, HOUR), "", {})
    for number in range(PEER_DRY_RUNS_MAX + 3):
        broker._received(("guest", replace(probe, number=number)))
    broker._received(("guest", RequestTicket(f"{tag}-7", 1, "new", "s", "vm", 4, Term(NOW, HOUR), "", {}, b"")))
    turns = 0
    while (turn := broker.turn()) is not None:
        assert broker.turn() is None, "one turn at a time"
        broker.step(turn.run())
        turns += 1
    sent = [out.message for out in broker.ready().messages]
    assert turns == 1 + PEER_DRY_RUNS_MAX
    assert [m.reason.code for m in sent if isinstance(m, ErrorReply)] == ["busy"] * 3
    answers = [m for m in sent if isinstance(m, DryRunAnswer)]
    assert [answer.status for answer in answers] == ["refused"] * PEER_DRY_RUNS_MAX, "the request took all four units"


def test_a_turn_that_is_given_up() -> None:
    """A mapper that is too slow for the shell is one that has failed; what it says later is not heard."""
    world = bench()
    broker = world.actor("broker")
    broker._received(("guest", DryRun("q", 4, "vm", 1, Term(NOW, HOUR), "", {})))
    turn = broker.turn()
    assert turn is not None and broker.turn() is None
    broker.step(TurnDone(turn.number, error="took longer than 10s"))
    broker.step(turn.run())
    (out,) = broker.ready().messages
    assert (out.message.number, out.message.status) == (4, "refused")
    assert out.message.reason.code == Code.MAPPER_FAILED
    assert broker.turn() is None and broker.wake_at() != broker.now


def test_a_broker_without_a_mapper_to_spare() -> None:
    """It says so."""
    world = bench()
    world.actor("broker").dry_runs._fresh = None
    assert answered(world, term=term(NOW + MINUTE, 1)).error == "broker: broker answers requests only"


def test_run_turn_reports_what_the_maker_raises() -> None:
    """A mapper that can't be made anew fails its question, not the broker."""
    world = bench()
    world.actor("broker").dry_runs._fresh = lambda: 1 // 0
    told = ask(world, term=term(NOW + MINUTE, 1))
    assert told["status"] == "refused" and "has failed on it" in told["reason"]
    error = run_turn(1, lambda: 1 // 0).error
    assert error.startswith("ZeroDivisionError: integer division or modulo by zero (test_dry_runs.py, line ")
    assert run_turn(1, lambda: 7).error == "returned 7, expected its decisions, as a list or by yield"


def test_decisions_of_other_types_than_they_say() -> None:
    """What is no truth value, and what is no request for a topology, is named."""
    for decision, text in (
        (Preempt("l", 1, "why", "yes"), "suspend: found 'yes', expected true or false"),
        (RequestTopology(7), "request: found 7, expected a TopologyRequest"),
    ):
        with pytest.raises(MalformedError, match=text):
            check_decision(decision)


# -- extends and modifies ----------------------------------------------------------------------------------------------


def tried(world: Bench, command: str, **wish: Any) -> Reply:
    """The reply to a question about a lease, which must be there within a second."""
    id_ = next(IDS)
    world.feed("guest", [Command(id_, command, wish)])
    world.run_until(world.now + SECOND)
    return world.replies.pop(id_)


def held(world: Bench, units: int, hours: float = 2) -> str:
    """A lease from now on that is active."""
    found = lease(world, units=units, term=term(world.now, hours))["id"]
    world.run_until(world.now + MINUTE)
    assert world.query("guest", "lease", lease=found)["state"] == "active"
    return str(found)


@pytest.mark.parametrize("policy", sorted(BUILT_IN["broker"]))
@pytest.mark.parametrize(("units", "granted"), [(2, True), (3, True), (4, False)])
def test_an_extend_is_answered_as_in_earnest(policy: str, units: int, granted: bool) -> None:
    """Whether the lease could go on with so many units, where it is; then the extend itself gets the same."""
    world = bench(policy)
    name = held(world, 2)
    end = world.query("guest", "lease", lease=name)["end"]
    lease(world, units=1, term=term(end, 1))
    told = tried(world, "lease.dry_run_extend", lease=name, end=end + HOUR, units=units).result
    assert (told["status"] == "granted") is granted, told
    assert world.query("guest", "lease", lease=name)["pending"] == "-"
    assert not world.command("guest", "lease.extend", lease=name, end=end + HOUR, units=units).error
    world.run_until(end + MINUTE)
    got = world.query("guest", "lease", lease=name)
    if granted:
        assert (told["site"], told["units"], told["term"]) == ("site", units, [end, end + HOUR])
        assert (got["end"], got["state"], len(got["units"])) == (end + HOUR, "active", units)
    else:
        assert "insufficient resources" in told["reason"]
        assert (got["end"], got["state"]) == (end, "closed")


@pytest.mark.parametrize("policy", sorted(BUILT_IN["broker"]))
@pytest.mark.parametrize(("units", "granted"), [(1, True), (3, True), (4, False)])
def test_a_modify_is_answered_as_in_earnest(policy: str, units: int, granted: bool) -> None:
    """What the lease holds itself counts as free for it; then the modify itself gets the same."""
    world = bench(policy)
    name = held(world, 2)
    lease(world, units=1, term=term(world.now, 1))
    told = tried(world, "lease.dry_run_modify", lease=name, units=units).result
    assert (told["status"] == "granted") is granted, told
    assert not world.command("guest", "lease.modify", lease=name, units=units).error
    world.run_until(world.now + MINUTE)
    assert len(world.query("guest", "lease", lease=name)["units"]) == (units if granted else 2)


def test_a_question_about_a_lease_changes_nothing() -> None:
    """No row of anybody is different after it, and its lease can be asked about again and extended."""
    world = bench("fair_share", quotas=[{"units": 3}])
    name = held(world, 2)
    end = world.query("guest", "lease", lease=name)["end"]
    before = stored(world)
    for units in (1, 2, 3, 4):
        tried(world, "lease.dry_run_extend", lease=name, end=end + HOUR, units=units)
        tried(world, "lease.dry_run_modify", lease=name, units=units, end=end + HOUR)
    assert stored(world) == before
    assert "quota" in tried(world, "lease.dry_run_extend", lease=name, end=end + HOUR, units=4).result["reason"]
    assert not world.command("guest", "lease.extend", lease=name, end=end + HOUR, units=3).error


@pytest.mark.parametrize(
    ("command", "wish", "words"),
    [
        ("lease.dry_run_extend", {"lease": "nobody", "end": HOUR}, "nobody"),
        ("lease.dry_run_extend", {"lease": "web", "end": MINUTE}, "it must be later than the lease's end"),
        ("lease.dry_run_modify", {"lease": "web", "configuration": {"a": "b"}}, "the broker has nothing to decide"),
        ("lease.dry_run_modify", {"lease": "web", "units": 0}, "units"),
    ],
)
def test_what_can_not_be_asked_about_a_lease(command: str, wish: dict[str, Any], words: str) -> None:
    """What the command itself would refuse is refused by the guest, in its words."""
    world = bench()
    lease(world, units=2, term=term(world.now, 2), name="web", slice="default")
    world.run_until(world.now + MINUTE)
    found = tried(world, command, **wish)
    assert words in found.error, found


@pytest.mark.parametrize(
    ("op", "of", "text"),
    [
        ("extend", "l-1", "has granted guest no lease l-1"),
        ("extend", "", "has granted guest no lease"),
        ("shrink", "", "op: found 'shrink', allowed are new, extend, modify"),
    ],
)
def test_a_broker_is_asked_about_leases_that_it_gave(op: str, of: str, text: str) -> None:
    """A stranger's question about a lease that is not its own gets no answer but that."""
    world = bench()
    broker = world.actor("broker")
    broker._received(("guest", DryRun("q", 1, "vm", 1, Term(HOUR, 2 * HOUR), "", {}, op, of)))
    (out,) = broker.ready().messages
    assert out.message.status == "refused" and text in words(out.message.reason)


def test_a_probe_after_a_restart_has_another_number() -> None:
    """The answer to the one before may still be on its way, and is not for this one. Nothing is written down for that:
    it is later.
    """
    world = Bench(Plan()).start()
    world.run_until(NOW)
    numbers = []
    for now in (NOW, NOW + 1):
        guest = world.actor("guest")
        guest.ready()
        guest.step(Tick(now))
        guest.step(Command(next(IDS), "lease.dry_run", {"type": "vm", "units": 1, "term": term(MINUTE, 1)}))
        ready = guest.ready()
        assert not ready.changes
        numbers += [one.message.number for one in ready.messages if isinstance(one.message, DryRun)]
        world.crash("guest")
    assert len(set(numbers)) == 2


def test_a_question_that_waited_for_too_long_is_refused() -> None:
    """As a request is that was not granted in time; the mapper is not asked about a term that is over."""
    world = Bench(Plan()).start()
    world.run_until(NOW)
    guest, broker = world.actor("guest"), world.actor("broker")
    guest.step(Command(next(IDS), "lease.dry_run", {"type": "vm", "units": 1, "term": [2 * SECOND, 3 * SECOND]}))
    (question,) = [one.message for one in guest.ready().messages if isinstance(one.message, DryRun)]
    broker.step(Received("guest", question))
    broker.step(Tick(4 * SECOND))
    assert broker.turn() is None
    (answer,) = [one.message for one in broker.ready().messages if isinstance(one.message, DryRunAnswer)]
    assert (answer.status, answer.reason) == ("refused", Reason(Code.NOT_GRANTED))
