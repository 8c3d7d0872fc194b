"""Parts of actors, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import attrs
import pytest

from leasekit.actors.base import MapperTurns
from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.grants import Answers, Introductions
from leasekit.actors.broker.planner import Holds, Planner, Quotes
from leasekit.actors.broker.requests import Admission, DryRuns
from leasekit.actors.guest.lifecycle import Membership
from leasekit.actors.guest.returns import Returns
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Dispatch, Kernel, command, deferred, query, takes
from leasekit.actors.peering import ADMINISTER_TIMEOUT, Calls, Keyring, Peering
from leasekit.actors.served import REPORTS_KEPT, Notices, Reports, Served, acknowledge
from leasekit.actors.settings import ActorSettings, BrokerSettings, DelegationSpec, Peer
from leasekit.core.claims.claim import delegate, delegate_root
from leasekit.core.claims.signed import ED25519, ENDORSEMENT, Keypair, check_statement, endorse, key_tag
from leasekit.core.errors import CommandError, LeasekitError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases import membership as mb
from leasekit.core.leases.records import Asked, BrokerLease, Delegation, GuestLease, Notice, Waits, WaitsForMapper
from leasekit.core.mappers import BrokerCycle, Grant, PlanCycle, PlannedPart, Reject, TopologyPlan, Wake
from leasekit.core.properties import Counts
from leasekit.core.protocol.messages import (
    NEW,
    Accepted,
    Ack,
    Administer,
    Administered,
    CloseLease,
    DryRun,
    DryRunAnswer,
    ErrorReply,
    HoldParts,
    Introduce,
    Message,
    Offer,
    OfferAnswer,
    PartsHeld,
    Plan,
    Planned,
    PlanPart,
    Quote,
    Quoted,
    Reclaim,
    Relinquish,
    Relinquished,
    ReturnTicket,
    TicketUpdate,
    UnitState,
)
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.requests import parse_options
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone, Command, TurnDone
from leasekit.core.time import DAY, HOUR, SECOND, Term
from leasekit.core.topology import RequestedSite, TopologyRequest
from leasekit.policies.broker.fcfs import Fcfs

ME, WEB, SITE = (Keypair(letter * 32) for letter in (b"m", b"w", b"s"))


@attrs.define(eq=False)
class Note:
    """A record of no part."""

    id: str
    due: int
    timer: int | None = None
    table: ClassVar[str] = "notes"

    def row(self) -> Row:
        return (self.id, self.due)


@pytest.fixture
def kernel() -> Kernel:
    """At the first hour."""
    made = Kernel(ActorSettings())
    made.tick(HOUR)
    return made


@pytest.fixture
def keyring(kernel: Kernel) -> Keyring:
    """That of a broker, which knows a guest and a site."""
    web = Peer(name="web", key=WEB.public, role="guest", may=frozenset({"request"}))
    site = Peer(name="site", key=SITE.public, role="authority")
    return Keyring("hub", ME, ED25519, [web, site], kernel)


def sent(kernel: Kernel) -> list[tuple[str, Message]]:
    """The messages of the Ready."""
    ready = kernel.take()
    return [] if ready is None else [(peer, message) for peer, message in ready.messages]


def test_kernel_writes_what_was_touched_and_wakes_what_is_due(kernel: Kernel) -> None:
    """Once each; a timer that was taken back wakes nobody, and a thousand of them take no room for long."""
    woken: list[str] = []
    kernel.register(Note, due_at=lambda note: note.due, on_due=lambda note: woken.append(note.id))
    one, two = Note("one", 2 * HOUR), Note("two", 3 * HOUR)
    for note in (one, two, one):
        kernel.touch(note)
    ready = kernel.take()
    assert ready is not None
    assert [change.key for change in ready.changes if change.table == "notes"] == ["one", "two"]
    assert (kernel.next_timer(), kernel.take()) == (2 * HOUR, None)
    for later in range(1000):
        kernel.schedule(two, 4 * HOUR + later)
    kernel.erase(one)
    kernel.touch(two)
    assert kernel.next_timer() == 3 * HOUR and len(kernel.timers) < 100
    kernel.tick(5 * HOUR)
    assert woken == ["two"]


def test_kernel_sends_what_is_not_acknowledged_when_its_peer_connects(kernel: Kernel) -> None:
    """And forgets what is."""
    heard: list[tuple[str, str]] = []
    kernel.register(Note, awaits=lambda note, peer: note.due > 0, send=lambda note, peer: heard.append((note.id, peer)))
    one, two, three = Note("one", 1), Note("two", 0), Note("three", 1)
    for note in (one, two, three):
        kernel.owe(note, "site")
    kernel.owe_no_more(three, "site")
    for peer in ("web", "site"):
        kernel.connected(peer)
    assert heard == [("one", "site")] and list(kernel.unacknowledged["site"]) == ["one"]


def test_keyring_honours_former_keys_until_they_are_over(kernel: Kernel, keyring: Keyring) -> None:
    """Its own, and those of its peers."""
    old = Keypair(b"o" * 32)
    keyring.had_before(old, 2 * HOUR)
    keyring.peers["web"] = attrs.evolve(keyring.peers["web"], former=((old.public, 2 * HOUR),))
    assert keyring.signer_of(old.public) is old and keyring.key_among("web", old.public) == old.public
    kernel.tick(2 * HOUR)
    assert keyring.signer_of(old.public) is ME and keyring.key_among("web", old.public) == WEB.public
    with pytest.raises(RemoteError, match="hub knows no peer named 'nobody'"):
        keyring.key_of("nobody")
    with pytest.raises(RemoteError, match="web may not redeem at hub"):
        keyring.check_may("web", "redeem")
    keyring.check_may("web", "request")


class Desk:
    """A part that takes something of each."""

    @takes(Ack, "request")
    def _on_ack(self, peer: str, message: Ack) -> None: ...

    @command("desk.open")
    def _open(self, arguments: Any) -> Any:
        return ["opened", dict(arguments)]

    @deferred("desk.ask")
    def _ask(self, command: Command) -> None: ...

    @query("desk")
    def _desk(self, arguments: Any) -> Any:
        return "tidy"


class LargerDesk(Desk):
    """It opens otherwise, as the same command."""

    def _open(self, arguments: Any) -> Any:
        return "wide open"


def test_dispatch_finds_what_a_part_is_marked_with() -> None:
    """Also where a method is overridden; what nobody takes is refused with what there is."""
    dispatch = Dispatch("broker")
    dispatch.add(Desk())
    assert (set(dispatch.messages), dispatch.needs, set(dispatch.deferred)) == ({Ack}, {Ack: "request"}, {"desk.ask"})
    assert dispatch.prepare("desk.open", {"x": 1})() == ["opened", {"x": 1}]
    assert dispatch.ask("desk", {}) == "tidy"
    with pytest.raises(CommandError, match=r"a broker has no command 'desk\.shut'; it has desk\.open"):
        dispatch.prepare("desk.shut", {})()
    with pytest.raises(CommandError, match="not Unicode"):
        dispatch.prepare("desk.open", {"x": "\ud800"})()
    dispatch.add(LargerDesk())
    assert dispatch.prepare("desk.open", {})() == "wide open"


def test_turns_carry_out_each_decision_by_itself(kernel: Kernel) -> None:
    """One that can't be carried out is told, and the mapper called again; what is no decision as well."""
    done: list[str] = []

    def carry_out(decision: Any) -> None:
        if decision.lease == "bad":
            raise CommandError("no such lease")
        done.append(decision.lease)

    turns = MapperTurns(kernel, "broker")
    turns.declare({Reject: carry_out}, lambda: iter(["one", "two"]))
    turn = turns.begin(lambda: [Reject("bad", "r"), Wake(5 * HOUR), Reject("good", "r"), 7])
    turns.done(TurnDone(turn.number + 1, [Reject("stale", "r")]))
    turns.done(turn.run())
    assert (done, turns.running, turns.wake) == (["good"], 0, HOUR + kernel.settings.retry_first)
    assert [error.partition(": ")[0] for error in kernel.errors] == [
        "broker mapper's Reject is not carried out", "broker mapper's int is not carried out",
    ]  # fmt: skip
    turns.done(turns.begin(lambda: 1 // 0).run())
    assert "ZeroDivisionError" in kernel.errors[-1] and "(waiting: one, two)" in kernel.errors[-1]


def test_peering_believes_endorsements_of_its_role_only(kernel: Kernel, keyring: Keyring) -> None:
    """Whoever is made known is told to those who asked; who deals with nobody is forgotten in time."""
    busy = {"new"}
    told: list[str] = []
    peering = Peering(kernel, keyring, "authority", "guest", busy.__contains__)
    peering.changed.append(told.append)
    new = Keypair(b"n" * 32).public
    keyring.peers["web"] = attrs.evolve(keyring.peers["web"], role="broker")
    note = endorse(WEB, new, HOUR, name="new", role="guest").encode()
    peering._on_introduce("web", Introduce("new", 1, note, 2 * HOUR))
    assert (keyring.key_of("new"), told) == (new, ["new"])
    assert sent(kernel) == [("web", Accepted("new", 1))]
    with pytest.raises(RemoteError, match="an authority takes no such word"):
        peering.take_endorsement("web", endorse(WEB, new, HOUR, name="more", role="site").encode())
    kernel.tick(40 * DAY)
    assert "new" in keyring.peers
    busy.clear()
    kernel.take()
    kernel.tick(80 * DAY)
    assert "new" not in keyring.peers and told == ["new", "new"]
    word = peering.endorsement(keyring.peers["site"])
    assert check_statement(ED25519, word, ENDORSEMENT, signer=ME.public).subject == SITE.public


def test_calls_wait_for_their_peer(kernel: Kernel, keyring: Keyring) -> None:
    """The answer is the command's; no answer is one, too; who commands here must be permitted to by the dispatch."""
    dispatch = Dispatch("broker")
    dispatch.add(Desk())
    calls = Calls(kernel, keyring, dispatch)
    dispatch.add(calls)
    begin = dispatch.deferred["peer.command"]
    for id_ in (1, 2):
        begin(Command(id_, "peer.command", {"peer": "site", "command": "unit.enable", "arguments": {"unit": "u"}}))
    (_, first), _ = sent(kernel)
    assert first == Administer("unit.enable", HOUR, '{"unit": "u"}')
    calls._on_administered("web", Administered("unit.enable", HOUR, "1", ""))
    assert kernel.replies == []
    calls._on_administered("site", Administered("unit.enable", HOUR, '{"done": true}', ""))
    kernel.tick(HOUR + ADMINISTER_TIMEOUT)
    ready = kernel.take()
    assert ready is not None
    assert [(reply.id, reply.result) for reply in ready.replies] == [(1, {"done": True}), (2, None)]
    assert "did not answer within 30 s" in ready.replies[1].error
    assert not calls.refused("site", ErrorReply("unit.enable", HOUR + 1, Reason("busy", detail="later")))
    calls._on_administer("site", Administer("desk.open", 9, '{"x": 2}'))
    assert sent(kernel) == [("site", Administered("desk.open", 9, '["opened", {"x": 2}]', ""))]


def lease_of(keyring: Keyring) -> BrokerLease:
    """One that web has asked for."""
    asked = Asked(NEW, 1, Term(HOUR, 2 * HOUR), "", {})
    return BrokerLease(
        "w-1", "web", "", "vm", br.NASCENT, br.TICKETING, asked, 3, WaitsForMapper(3, HOUR, HOUR), key=WEB.public
    )


def test_served_numbers_updates_and_keeps_them_until_they_are_acknowledged(kernel: Kernel, keyring: Keyring) -> None:
    """A request is fresh, a repeat, or old; nobody else's word counts; what is taken is acknowledged once."""
    served: Served[BrokerLease] = Served(kernel, keyring)
    kernel.register(BrokerLease, awaits=served.awaits, send=served.send_now)
    lease = served.leases["w-1"] = lease_of(keyring)
    assert [served.freshness(lease, "web", number) for number in (2, 3, 4)] == ["old", "repeat", "fresh"]
    with pytest.raises(RemoteError, match="not held by site"):
        served.freshness(lease, "site", 4)
    for number in (2, 3):
        served.accept(lease, CloseLease("w-1", number, b""))
    served.before_ready()
    assert sent(kernel) == [("web", Accepted("w-1", 3))]
    update = TicketUpdate("w-1", 1, 3, "refused", b"", "", {}, b"", said("no"), -1)
    served.publish(lease, update)
    assert sent(kernel) == [("web", update)]
    kernel.connected("web")
    served._on_ack("site", acknowledge(update))
    assert sent(kernel) == [("web", update)] and lease.unacked
    served._on_ack("web", acknowledge(update))
    assert not lease.unacked and not kernel.unacknowledged["web"]


def test_a_queue_keeps_a_share_for_each_peer(keyring: Keyring) -> None:
    """Who asks without end leaves others theirs; nobody has more than its own limit, nor all more than there is."""
    queue = RequestQueue(keyring, 8)
    keyring.peers["other"] = attrs.evolve(keyring.peers["web"], name="other", open_requests=1)
    options = parse_options({}, Term(HOUR, 2 * HOUR))

    def ask(number: int, holder: str) -> BrokerLease:
        lease = attrs.evolve(lease_of(keyring), id=f"{holder}-{number}", holder=holder)
        queue.check_room(holder)
        queue.add(lease, options)
        return lease

    leases = [ask(number, "web") for number in range(6)]
    with pytest.raises(RemoteError, match="web has 6 requests waiting at hub, its share is 2 of 8"):
        ask(6, "web")
    ask(0, "other")
    with pytest.raises(RemoteError, match="other has 1 request waiting at hub, its limit"):
        ask(1, "other")
    queue.remove(leases[0])
    ask(7, "web")
    assert len(queue) == 7 and "web-0" not in queue and list(queue.options) == list(queue.leases)


def book_of(keyring: Keyring) -> Book:
    """With four units of a site over the second hour."""
    ticket = delegate_root(SITE, holder=ME.public, type="vm", units=4, term=Term(HOUR, 2 * HOUR), serial=1)
    source = Delegation(
        "site/vm@hub", "site", "vm", 4, Term(HOUR, 2 * HOUR), ticket.encode(), {}, 1, "site", ticket.leaf.digest,
        deleg.HELD,
    )  # fmt: skip
    book = Book()
    book.add(source, ticket)
    return book


def holds_of(kernel: Kernel, keyring: Keyring, book: Book) -> Holds:
    """Which keep what is held for a minute, and know the broker ``other``."""
    keyring.peers["other"] = Peer(name="other", key=Keypair(b"o" * 32).public, role="broker")
    served: Served[BrokerLease] = Served(kernel, keyring)
    return Holds(kernel, keyring, served, book, BrokerSettings(hold_for=60 * SECOND, holds_max=1))


def test_holds_are_booked_until_they_are_released_or_expire(kernel: Kernel, keyring: Keyring) -> None:
    """What is held is booked, for brokers only; who must know of its end is told."""
    book = book_of(keyring)
    holds, dropped = holds_of(kernel, keyring, book), []
    holds.dropped.append(lambda hold, why: dropped.append((hold.id, why)))
    free, term = book.table("site/vm@hub").available, Term(HOUR, 2 * HOUR)
    part = PlanPart("a", "a", 0, "hub", "site/vm@hub", "site", "vm", 3)
    tag = key_tag(keyring.peers["other"].key)
    plans = [f"{tag}-{number}" for number in range(2)]
    with pytest.raises(RemoteError, match="web is no broker"):
        holds._on_hold("web", HoldParts(plans[0], 1, WEB.public, term, (part,), 3 * HOUR))
    holds._on_hold("other", HoldParts(plans[0], 1, WEB.public, term, (part,), 3 * HOUR))
    assert sent(kernel) == [("other", PartsHeld(plans[0], 1, None))] and free(term) == 1
    holds._on_hold("other", HoldParts(plans[1], 2, WEB.public, term, (part,), 3 * HOUR))
    assert sent(kernel) == [("other", PartsHeld(plans[1], 2, Reason(Code.PLANS_MAX, "hub", "other", 1)))]
    kernel.tick(HOUR + 60 * SECOND)
    assert dropped == [(plans[0], Reason(Code.HELD_UNTIL, at=kernel.now))] and free(term) == 4 and not holds.held


class Yes:
    """Decides that one unit is granted at most."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def show(self, lease: BrokerLease) -> BrokerCycle:
        return BrokerCycle(HOUR, [], [], lambda type_: [], lambda type_: [], None)

    def try_grant(self, lease: BrokerLease, grant: Grant) -> tuple[Delegation, Counts]:
        if grant.units > 1:
            raise CommandError("only one is free")
        source = self._book.chain(grant.source)[0]
        return source, self._book.ticket(source.id).leaf.classes


def test_dry_runs_answer_by_a_mapper_made_for_them(kernel: Kernel, keyring: Keyring) -> None:
    """What can't be granted ever is refused at once, the rest as the mapper decides; nothing is kept of either."""
    book, queue = book_of(keyring), RequestQueue(keyring, 8)
    served: Served[BrokerLease] = Served(kernel, keyring)
    admission = Admission(kernel, served, queue, book, BrokerSettings())
    runs = DryRuns(kernel, served, admission, Yes(book), Fcfs)

    def dry_run(number: int, type_: str = "vm") -> DryRun:
        return DryRun(f"w-{number}", number, type_, number, Term(HOUR, 2 * HOUR), "", {})

    runs._on_dry_run("web", dry_run(1, "disk"))
    ((_, refused),) = sent(kernel)
    assert isinstance(refused, DryRunAnswer) and (refused.status, runs.is_due()) == ("refused", False)
    for units, status in ((1, "granted"), (2, "refused")):
        runs._on_dry_run("web", dry_run(units))
        assert runs.is_due() and runs.next_call() is not None and runs.in_turn is not None
        grant = Grant(runs.in_turn.lease.id, "site/vm@hub", units, Term(HOUR, 2 * HOUR))
        runs.turn_done(TurnDone(1, (grant,)))
        ((_, answer),) = sent(kernel)
        assert isinstance(answer, DryRunAnswer) and answer.status == status
    assert not queue.options and not served.leases and runs.in_turn is None


def test_introductions_are_said_once_until_a_peer_changes(kernel: Kernel, keyring: Keyring) -> None:
    """A site hears of a guest once for a lease, and again when the guest has another key; nothing is said unasked."""
    peering = Peering(kernel, keyring, "broker", "", lambda peer: False)
    notices = Notices(kernel)
    (source,) = book_of(keyring).of_type("vm")
    silent = Introductions(kernel, keyring, peering, notices, endorse=False)
    assert silent.introduce("web", source, 2 * HOUR) == b"" and not sent(kernel)
    told = Introductions(kernel, keyring, peering, notices, endorse=True)
    endorsed = told.introduce("web", source, 2 * HOUR)
    assert check_statement(ED25519, endorsed, ENDORSEMENT, signer=ME.public)
    ((peer, message),) = sent(kernel)
    assert peer == "site" and isinstance(message, Introduce) and (message.peer, message.until) == ("web", 2 * HOUR)
    assert told.introduce("web", source, 2 * HOUR) == endorsed and not sent(kernel)
    told.unsay("web")
    assert told.introduce("web", source, 2 * HOUR) == endorsed and len(sent(kernel)) == 1


def test_answers_settle_a_request_and_refuse_its_group(kernel: Kernel, keyring: Keyring) -> None:
    """Who waited hears it, and waits no more; what is refused takes its group with it; a lease that is over is not
    refused again.
    """
    served: Served[BrokerLease] = Served(kernel, keyring)
    kernel.register(BrokerLease, awaits=served.awaits, send=served.send_now)
    book, queue = book_of(keyring), RequestQueue(keyring, 8)
    introductions = Introductions(
        kernel, keyring, Peering(kernel, keyring, "broker", "", lambda peer: False),
        Notices(kernel), endorse=False,
    )  # fmt: skip
    answers = Answers(kernel, served, queue, book, introductions)
    leases = [attrs.evolve(lease_of(keyring), id=f"w-{number}", group="g") for number in range(2)]
    for lease in leases:
        served.leases[lease.id] = lease
        queue.add(lease, parse_options({}, Term(HOUR, 2 * HOUR)))
        book.join_group("web", "g", lease.id, 2)
    answers.reject(leases[0], said("no room"), fits=2 * HOUR)
    updates = [message for _, message in sent(kernel) if isinstance(message, TicketUpdate)]
    assert [(one.lease, one.status, one.earliest) for one in updates] == [
        ("w-0", "refused", 2 * HOUR),
        ("w-1", "refused", -1),
    ]
    assert not len(queue) and {lease.state for lease in leases} == {br.FAILED}
    with pytest.raises(LeasekitError):
        answers.reject(leases[0], said("again"))


def test_a_planner_asks_other_brokers_and_holds_what_its_mapper_plans(kernel: Kernel, keyring: Keyring) -> None:
    """Quotes first, then the mapper, then holds; a plan that is not what was asked for is not taken."""
    book, asked = book_of(keyring), []

    def plan(cycle: PlanCycle) -> list[TopologyPlan]:
        asked.append(sorted(source.id for source in cycle.sources))
        return []

    holds = holds_of(kernel, keyring, book)
    quotes = Quotes(kernel, keyring, book, BrokerSettings(planners=("other",), disclose=500))
    planner = Planner(kernel, keyring, holds, quotes, plan)
    quotes._on_quote("other", Quote("theirs", 1, Term(HOUR, 2 * HOUR), ("vm",)))
    ((_, quoted),) = sent(kernel)
    assert isinstance(quoted, Quoted) and [(offer.units, offer.steps) for offer in quoted.offers] == [(2, (HOUR, 2))]
    request = TopologyRequest(sites=(RequestedSite(id="a", type="vm", units=2),), est=HOUR, lst=HOUR, duration=HOUR)
    for number, units in enumerate((1, 2)):
        planner._on_plan("web", Plan(f"q{number}", number, "hold", request.to_bytes()))
        ((peer, question),) = sent(kernel)
        assert peer == "other" and isinstance(question, Quote) and not planner.ready
        assert planner.refused("other", ErrorReply(question.query, question.number, Reason("busy", detail="not now")))
        call = planner.next_call(snapshot=False)
        assert call is not None and call() == [] and planner.in_turn is not None
        made = TopologyPlan(HOUR, (PlannedPart("a", "a", 0, "site/vm@hub", units),))
        planner.turn_done(TurnDone(1, (made,)))
        ((_, answer),) = sent(kernel)
        assert isinstance(answer, Planned) and answer.status == ("refused" if units < 2 else "held")
    assert asked == [["site/vm@hub"]] * 2 and not planner.plannings and list(holds.held) == [answer.plan]


def test_notices_are_due_until_they_are_accepted(kernel: Kernel) -> None:
    """Backed off, and not for ever; who waited for it is asked whether its receipt will do."""
    taken: list[tuple[str, bytes]] = []

    def accepted(notice: Notice, receipt: bytes) -> None:
        if not receipt:
            raise LeasekitError("that is no receipt")
        taken.append((notice.id, receipt))

    notices = Notices(kernel)
    notices.accepted.append(accepted)
    message = Introduce("web", 5, b"word")
    notices.owe("a", "site", message, 2 * HOUR)
    assert sent(kernel) == [("site", message)]
    kernel.tick(HOUR + kernel.settings.retry_first)
    assert sent(kernel) == [("site", message)]
    with pytest.raises(LeasekitError):
        notices._on_accepted("site", Accepted("web", 5))
    notices._on_accepted("web", Accepted("web", 5, b"r"))
    assert [notice.id for notice in notices] == ["a"]
    notices._on_accepted("site", Accepted("web", 5, b"r"))
    assert (taken, list(notices)) == ([("a", b"r")], [])
    notices.owe("b", "site", Introduce("web", 6, b"word"), 2 * HOUR)
    kernel.take()
    kernel.tick(2 * HOUR)
    assert list(notices) == []


def test_reports_keep_the_latest(kernel: Kernel) -> None:
    """What says the same again changes nothing."""
    reports = Reports(kernel, "hub")
    for number in range(REPORTS_KEPT + 2):
        reports.keep(f"claim-{number:02}", Reason(Code.OVERDELEGATED, detail="too much"))
    ready = kernel.take()
    reports.keep(f"claim-{number:02}", Reason(Code.OVERDELEGATED, detail="too much"))
    assert ready is not None and kernel.take() is None
    assert [one.about for one in reports.latest()][-1] == f"claim-{number:02}"
    rows = {c.key: c.row for c in ready.changes if c.table == "reports" and c.row is not None}
    again = Reports(Kernel(ActorSettings()), "hub")
    again.restore(rows.values())
    assert again.latest() == reports.latest()


def test_returns_go_by_their_site_to_their_broker(kernel: Kernel, keyring: Keyring) -> None:
    """A ticket for nobody here goes back all the same; with the site's receipt it is the broker's."""
    keyring.peers["hub"] = Peer(name="hub", key=WEB.public, role="broker")
    returns = Returns(kernel, keyring, {}, {SITE.public: "site"}.get)
    root = delegate_root(SITE, holder=WEB.public, type="vm", units=3, term=Term(0, DAY), serial=1)
    ticket = delegate(root, WEB, holder=ME.public, units=1, term=Term(0, 2 * HOUR), serial=2)
    update = TicketUpdate("w-1", 1, 1, "granted", ticket.encode(), "site", {}, b"", None, -1)
    for _ in range(2):
        returns.give_back_unknown("hub", update)
    ((peer, asked),) = sent(kernel)
    assert (peer, type(asked), len(returns)) == ("site", Relinquish, 1)
    (giving,) = returns
    returns._on_relinquished("hub", Relinquished("w-1", giving.number, b"receipt", None))
    assert sent(kernel) == []
    returns._on_relinquished("site", Relinquished("w-1", giving.number, b"receipt", None))
    assert sent(kernel) == [("hub", ReturnTicket("w-1", giving.number, b"receipt"))]
    assert returns.awaits(giving, "hub") and not returns.awaits(giving, "site")
    kernel.tick(2 * HOUR)
    assert len(returns) == 0, "its term is over"


def test_membership_tells_when_all_have_joined_and_left(kernel: Kernel) -> None:
    """One action for a unit at a time; one that does not join stays, marked; the end of an older action is nothing."""
    lease = GuestLease("w-1", "one", "s", "vm", "hub", Asked(NEW, 2, Term(HOUR, 2 * HOUR), "", {}), site="site")
    kernel.register(GuestLease)
    told: list[str] = []
    membership = Membership(kernel, {"w-1": lease})
    membership.all_joined.append(lambda lease: told.append("joined"))
    membership.all_left.append(lambda lease: told.append("left"))
    membership.take(lease, [UnitState(name, "active", {"host": name}, None) for name in ("a", "b")])
    membership.join(lease)
    first, second = kernel.actions
    assert [(one.op, one.properties["unit.name"]) for one in (first, second)] == [("join", "a"), ("join", "b")]
    membership.done(ActionDone(first.number, first.unit, True))
    membership.done(ActionDone(first.number, second.unit, True))
    assert told == []
    membership.done(ActionDone(second.number, second.unit, False, reason="no route"))
    assert (told, lease.units["b"].reason) == (["joined"], Reason(Code.JOIN_FAILED, detail="no route"))
    lease.join = mb.LEAVING
    membership.leave(lease, ["a", "b"])
    rows = [change.row for change in kernel.take().changes if change.table == "units"]  # type: ignore[union-attr]
    again = Kernel(ActorSettings())
    copy = attrs.evolve(lease, units={}, waits=Waits())
    restored = Membership(again, {"w-1": copy})
    restored.all_left.append(lambda lease: told.append("left"))
    restored.restore(row for row in rows if row is not None)
    restored.resume([copy])
    for action in again.actions:
        restored.done(ActionDone(action.number, action.unit, True))
    assert [action.op for action in again.actions] == ["leave", "leave"] and told == ["joined", "left"]


def test_members_of_whom_nobody_drives_anything_join_and_leave_at_once(kernel: Kernel) -> None:
    """There is no action, and all is told as if each had ended."""
    lease = GuestLease("w-1", "one", "s", "vm", "hub", Asked(NEW, 2, Term(HOUR, 2 * HOUR), "", {}), site="site")
    kernel.register(GuestLease)
    told: list[str] = []
    membership = Membership(kernel, {"w-1": lease}, drives=False)
    membership.all_joined.append(lambda lease: told.append("joined"))
    membership.all_left.append(lambda lease: told.append("left"))
    membership.take(lease, [UnitState(name, "active", {}, None) for name in ("a", "b")])
    membership.join(lease)
    assert (told, [unit.state for unit in lease.units.values()]) == (["joined"], [mb.JOINED, mb.JOINED])
    membership.leave(lease, ["a"])
    assert lease.units["a"].state == mb.LEFT
    lease.join = mb.LEAVING
    membership.leave(lease, ["a", "b"])
    membership.check_left(lease)
    assert (told, lease.units["b"].state, kernel.actions) == (["joined", "left"], mb.LEFT, [])


class Plenty:
    """An issuer that has ten units for whoever is in its settings."""

    def __init__(self, *specs: DelegationSpec) -> None:
        self.specs = specs
        self.heard: list[tuple[str, str]] = []
        self.issued: Issued | None = None

    def delegation_specs(self) -> tuple[DelegationSpec, ...]:
        return self.specs

    def most_of(self, spec: DelegationSpec) -> int:
        return 10

    def is_outdated(self, record: Delegation) -> bool:
        return False

    def delegate(self, id_: str, spec: DelegationSpec, last: Any, *, instead: bool = False) -> bool:
        assert self.issued is not None
        start, end = self.issued.period(spec, last, instead=instead)
        ticket = delegate_root(ME, holder=WEB.public, type=spec.type, units=spec.units, term=Term(start, end), serial=1)
        self.issued.offer(id_, spec.broker, ticket, {}, (), chain=self.issued.chain_name(spec))
        return True

    def check_override(self, line: str, type_: str, units: int) -> None: ...

    def check_given_in_all(self, type_: str) -> None: ...

    def is_own_claim(self, peer: str, ticket: Any, offered: Any) -> bool:
        return False

    def offer_refused(self, record: Any) -> None:
        self.heard.append(("refused", record.id))

    def taken_back(self, record: Any) -> None:
        self.heard.append(("taken back", record.id))

    def let_go(self, record: Any, until: int) -> None:
        self.heard.append(("let go", record.id))


def offers(messages: Iterable[tuple[str, Message]]) -> Iterator[Offer | Reclaim]:
    """The offers and reclaims among messages."""
    return (message for _, message in messages if isinstance(message, Offer | Reclaim))


def test_issued_delegations_are_offered_held_and_taken_back(kernel: Kernel, keyring: Keyring) -> None:
    """Sent until answered; refused ones are not offered again by themselves; the issuer hears what becomes of each."""
    keyring.peers["web"] = attrs.evolve(keyring.peers["web"], role="broker")
    issuer = Plenty(DelegationSpec(broker="web", type="vm", units=12, length=DAY))
    issued = issuer.issued = Issued(kernel, keyring, issuer)
    issued.taken.append(lambda record: issuer.heard.append(("taken", record.id)))
    issued.give()
    (offer,) = offers(sent(kernel))
    kernel.tick(HOUR + SECOND)
    assert list(offers(sent(kernel))) == [offer], "sent again"
    record = issued.given[offer.delegation]
    assert (record.id, record.units, record.state) == ("hub/vm@web", 10, deleg.OFFERING), "no more than there is"
    issued._on_offer_answer("web", OfferAnswer(record.id, offer.number, said("no room"), 0))
    assert (record.state, issuer.heard) == (deleg.REFUSED, [("refused", record.id)])
    issued.give()
    assert not list(offers(sent(kernel)))
    issued.give(again=True)
    (offer,) = offers(sent(kernel))
    issued._on_offer_answer("web", OfferAnswer(offer.delegation, offer.number, None, 0))
    fresh = issued.given[offer.delegation]
    issued.take_back(fresh, kernel.now, -1, said("wanted back"))
    (reclaim,) = offers(sent(kernel))
    issued._on_offer_answer("web", OfferAnswer(fresh.id, reclaim.number, None, 3 * HOUR))
    assert fresh.state == deleg.RECLAIMED
    assert [what for what, _ in issuer.heard] == ["refused", "taken", "taken back", "let go"]
