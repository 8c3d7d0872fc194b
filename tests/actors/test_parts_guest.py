"""Parts of a service manager, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekit.actors.guest.answers import (
    BrokerAnswers,
    BrokerUpdates,
    LeaseTimeouts,
    LeaseTimers,
    SiteAnswers,
    Sites,
    SiteUpdates,
    Tickets,
)
from leasekit.actors.guest.leases import GuestOperations, Leases, Limits
from leasekit.actors.guest.lifecycle import Endings, Membership, Predecessors, Redeems, Transitions
from leasekit.actors.guest.requests import DryRunRequests, LeaseChanges, LeaseRequests, Slices
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.topologies import LeasedTopologies, PlanTrials
from leasekit.actors.kernel import RESENT_AT_ONCE, Dispatch, Kernel
from leasekit.actors.peering import Calls, Keyring, Peering
from leasekit.actors.settings import ActorSettings, GuestSettings, Peer
from leasekit.core.answers import ClosedSlice
from leasekit.core.claims.claim import delegate, delegate_root
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.core.commands import CloseSlice, CreateSlice, PlanTopology, SetSliceKey
from leasekit.core.errors import CommandError, LeasekitError, RemoteError, TicketError
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import (
    After,
    Asked,
    Ending,
    Given,
    GuestLease,
    GuestUnit,
    Held,
    HeldTickets,
    Origin,
    Resumed,
    Slice,
)
from leasekit.core.mappers import CloseLeaseEarly, ExtendLease, Go, Hold, ModifyLease, RequestLease, RequestTopology
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.messages import (
    EXTEND,
    NEW,
    Accepted,
    CloseLease,
    DryRun,
    DryRunAnswer,
    ErrorReply,
    LeaseUpdate,
    Message,
    Plan,
    Planned,
    PlanPart,
    Redeem,
    ReleaseParts,
    Relinquish,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    UnitState,
    Withdraw,
)
from leasekit.core.reasons import Code, Reason, said, words
from leasekit.core.steps import ActionDone, Command
from leasekit.core.time import DAY, HOUR, MINUTE, Term
from leasekit.core.topology import PlanOptions, RequestedLink, RequestedSite, TopologyRequest

ME, HUB, SITE = (Keypair(letter * 32) for letter in (b"m", b"h", b"s"))
TERM = Term(HOUR, 2 * HOUR)
GIVEN = Given(TERM, b"")


def lease(number: int, name: str = "one", slice_: str = "s", **more: Any) -> GuestLease:
    """A lease that is asked for: two units."""
    return GuestLease(f"w-{number}", name, slice_, "vm", "hub", Asked(NEW, 2, TERM, "", {}), **more)


def test_leases_are_found_by_id_and_by_name() -> None:
    """A bare name means the open lease; one that several slices have must be told apart. A restart changes nothing."""
    kernel = Kernel(ActorSettings())
    kernel.register(GuestLease)
    leases = Leases(kernel, keep_closed=True)
    leases.slices["s"] = Slice("s")
    for one in (lease(1), lease(2, "two", origin=Origin(After(join="w-1"))), lease(10, "two", "t")):
        leases.adopt(one)
    assert leases.find("w-1") is leases.find("one") is leases.find("s/one")
    with pytest.raises(CommandError, match="used in 2 slices: write SLICE/two"):
        leases.find("two")
    with pytest.raises(CommandError, match="no lease 'three' here"):
        leases.find("three")
    assert [one.id for one in leases.dependents(leases.find("w-1"))] == ["w-2"]
    assert [one.id for one in leases.of_slice("s")] == ["w-1", "w-2"]
    rows = [one.row() for one in reversed(leases.by_id.values())]
    again = Leases(Kernel(ActorSettings()), keep_closed=True)
    again.restore([leases.slices["s"].row()], rows)
    assert list(again.by_id) == ["w-1", "w-2", "w-10"], "in the order of request"
    assert again.describe(again.find("one")) == leases.describe(leases.find("one"))


def test_leases_that_are_over_are_forgotten() -> None:
    """What is open goes by the state; a lease that is dropped leaves its row as history."""
    kernel = Kernel(ActorSettings())
    kernel.register(GuestLease)
    leases = Leases(kernel, keep_closed=True)
    over = lease(1, state=sm.CLOSED)
    leases.adopt(over)
    assert not leases.open
    leases.drop(over)
    ready = kernel.take()
    assert ready is not None and ready.changes[0][::2] == ("leases", over.row())
    with pytest.raises(CommandError, match="no lease 'one' here"):
        leases.find("one")


def test_a_view_is_made_anew_only_of_a_lease_that_has_changed() -> None:
    """Whatever of it changes; its units are looked up when they are asked for, but for what is to hold still."""
    leases, one, held = Leases(Kernel(ActorSettings()), keep_closed=True), lease(1), Held(b"", b"", 3, TERM)
    changes = [
        ("site", "east"), ("state", sm.ACTIVE), ("pending", sm.CLOSING), ("join", mb.JOINED), ("reason", said("so")),
        ("asked", one.asked._replace(units=5)), ("tickets", HeldTickets(held)), ("given", Given(Term(0, HOUR), b"")),
        ("tickets", HeldTickets(held, (held,))), ("ending", Ending(closing=True)),
    ]  # fmt: skip
    for field, value in changes:
        before = leases.view(one)
        assert leases.view(one) is before
        setattr(one, field, value)
        assert leases.view(one) != before, field
    view, still = leases.view(one), leases.view(one, snapshot=True)
    one.units["a"] = GuestUnit("w-1/a", "w-1", "a", "vm")
    assert ([unit.id for unit in view.members()], still.members()) == (["a"], [])
    assert leases.view(one) is view, "units are no part of it"


def test_tickets_are_held_against_what_was_asked() -> None:
    """A ticket for what was asked, from a site that is known, can be run on; others say what is wrong with them."""
    kernel = Kernel(ActorSettings())
    kernel.tick(HOUR)
    peers = [Peer(name="hub", key=HUB.public, role="broker"), Peer(name="site", key=SITE.public, role="authority")]
    keyring = Keyring("me", ME, ED25519, peers, kernel)
    sites = Sites(kernel, keyring, Peering(kernel, keyring, "guest", "authority", lambda peer: False))
    tickets = Tickets(keyring, sites, Returns(kernel, keyring, {}, sites.name_of))

    def update(type_: str = "vm", units: int = 2) -> TicketUpdate:
        root = delegate_root(
            SITE, holder=HUB.public, type=type_, units=9, term=Term(0, 9 * HOUR), serial=1,
            properties=digest_properties({}),
        )  # fmt: skip
        ticket = delegate(root, HUB, holder=ME.public, units=units, term=TERM, serial=2)
        return TicketUpdate("w-1", 1, 1, "granted", ticket.encode(), "site", {}, b"", None, -1)

    held, rest, site = tickets.check(lease(1), update())
    assert (held.units, held.term, rest, site) == (2, TERM, (), "site")
    with pytest.raises(TicketError, match="it is for 'gpu', not 'vm'"):
        tickets.check(lease(1), update("gpu"))
    del keyring.peers["site"]
    sites.changed("site")
    with pytest.raises(TicketError, match="no site known here"):
        tickets.check(lease(1), update())


def test_limits_follow_from_the_state_of_a_lease() -> None:
    """Units leave a lease before its end, or before the instant that its site has given notice of; a ticket in hand is
    redeemed when its term comes near, but not while its slice holds for all.
    """
    kernel = Kernel(ActorSettings())
    settings = GuestSettings(leave_time=MINUTE, redeem_lead=2 * MINUTE)
    records = Leases(kernel, keep_closed=True)
    slices = records.slices
    slices["s"] = Slice("s")
    limits = Limits(kernel, settings, records, lambda part: False, lambda lease: False)
    held = Held(b"ticket", b"d" * 32, 2, TERM)
    runs = lease(1, state=sm.ACTIVE, tickets=HeldTickets(held), given=GIVEN)
    assert limits.of(runs) == TERM.end - MINUTE
    runs.ending = Ending(at=TERM.start + 5 * MINUTE)
    assert limits.of(runs) == TERM.start + 4 * MINUTE
    waits = lease(2, state=sm.TICKETED, tickets=HeldTickets(held))
    assert limits.of(waits) == TERM.start - 2 * MINUTE
    kernel.tick(TERM.start - 2 * MINUTE)
    assert limits.is_past(waits)
    slices["s"].released = False
    assert limits.of(waits) == TERM.end and not limits.is_past(waits)
    assert limits.of(lease(3, state=sm.CLOSED)) is None


class Guest:
    """The parts that others build on, wired as a service manager wires them."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GuestSettings(**settings)
        self.kernel = kernel = Kernel(self.settings)
        kernel.tick(HOUR // 2)
        peers = [Peer(name="hub", key=HUB.public, role="broker"), Peer(name="site", key=SITE.public, role="authority")]
        self.keyring = Keyring("me", ME, ED25519, peers, kernel)
        peering = Peering(kernel, self.keyring, "guest", "authority", lambda peer: False)
        self.records = Leases(kernel, keep_closed=True)
        sites = Sites(kernel, self.keyring, peering)
        self.returns = Returns(kernel, self.keyring, self.records.by_id, sites.name_of)
        self.tickets = Tickets(self.keyring, sites, self.returns)
        self.operations = GuestOperations(kernel, self.records, self.returns)
        self.membership = Membership(kernel, self.records.by_id)
        self.limits = Limits(kernel, self.settings, self.records, lambda part: False, lambda lease: False)
        self.endings = Endings(kernel, self.records, self.operations, self.returns, self.membership)
        self.membership.all_left.append(self.endings.all_left)
        self.advanced: list[str] = []
        self.redeems = Redeems(
            kernel, self.records, self.operations, self.returns, lambda lease: self.advanced.append(lease.id)
        )
        self.requests = LeaseRequests(kernel, self.keyring, self.settings, self.records, self.operations)
        self.changes = LeaseChanges(kernel, self.records, self.tickets, self.limits, self.redeems)
        self.calls = Calls(kernel, self.keyring, Dispatch("guest"))
        kernel.register(
            GuestLease, due_at=self.operations.due_at, on_due=self.operations.due, awaits=self.operations.awaits,
            send=self.operations.send_now,
        )  # fmt: skip

    def transitions(self, unblock: Callable[[GuestLease, GuestLease], Go | Hold] = lambda *_: Go()) -> Transitions:
        """What a lease's state allows, with a mapper that lets all go on."""
        predecessors = Predecessors(self.kernel, self.records, self.endings, unblock)
        return Transitions(self.limits, predecessors, self.redeems, self.membership)

    def lease(self, number: int, name: str = "one", **more: Any) -> GuestLease:
        """One of its leases."""
        made = lease(number, name, **more)
        self.records.adopt(made)
        return made

    def sent(self) -> list[Message]:
        """The messages of the Ready."""
        ready = self.kernel.take()
        return [] if ready is None else [message for _, message in ready.messages]


def ticket(units: int = 2, term: Term = TERM, extends: int = 0) -> Held:
    """A ticket from the hub."""
    root = delegate_root(
        SITE, holder=HUB.public, type="vm", units=9, term=Term(0, 9 * HOUR), serial=1, properties=digest_properties({})
    )
    made = delegate(root, HUB, holder=ME.public, units=units, term=term, serial=2)
    return Held(made.encode(), made.leaf.digest, units, term, extends)


def grant(number: int, held: Held) -> TicketUpdate:
    """The hub grants a request of the lease ``w-1``."""
    return TicketUpdate("w-1", number, number, "granted", held.ticket, "site", {}, b"", None, -1)


def test_operations_are_sent_until_they_are_accepted() -> None:
    """An unanswered request is sent again; one that its server has accepted waits longer. Others accept nothing."""
    guest = Guest()
    one = guest.lease(1)
    guest.operations.ask(one, "ask", HOUR)
    (first,) = guest.sent()
    guest.kernel.tick(one.waits.ask_at)
    assert guest.sent() == [first] and isinstance(first, RequestTicket)
    guest.operations._on_accepted("site", Accepted("w-1", one.ask.number))
    assert not one.ask.accepted
    guest.operations._on_accepted("hub", Accepted("w-1", one.ask.number))
    assert one.waits.ask_at == guest.kernel.now + guest.settings.retry_max
    one.state, one.pending, one.site = sm.TICKETED, sm.REDEEMING, "site"
    one.tickets = HeldTickets(ticket())
    guest.operations.end_ask(one)
    guest.operations.begin(one, NEW)
    (redeem,) = guest.sent()
    assert isinstance(redeem, Redeem) and (redeem.number, redeem.ticket) == (2, one.approved.ticket)
    assert guest.operations.awaits(one, "site") and not guest.operations.awaits(one, "hub")


def test_accepted_requests_are_asked_for_ever_more_rarely() -> None:
    """The wait doubles up to 64 times ``retry_max``: a grant that was lost is heard of within that."""
    guest = Guest()
    one, longest = guest.lease(1), guest.settings.retry_max
    guest.operations.ask(one, "ask", DAY)
    guest.operations._on_accepted("hub", Accepted("w-1", one.ask.number))
    (asked,) = guest.sent()
    waits = []
    for _ in range(9):
        waits.append((one.waits.ask_at - guest.kernel.now) // longest)
        guest.kernel.tick(one.waits.ask_at)
        assert guest.sent() == [asked]
        guest.operations._on_accepted("hub", Accepted("w-1", one.ask.number))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    guest.kernel.connected("hub")
    assert one.waits.ask_at - guest.kernel.now == longest
    one.state, one.pending = sm.WITHDRAWN
    guest.operations.withdraw(one)
    assert one.waits.ask_at - guest.kernel.now == guest.settings.retry_first


def test_who_accepts_again_what_it_had_forgotten_is_asked_for_all() -> None:
    """A broker that comes back gets a few requests at once, and another for each that it accepts."""
    guest = Guest()
    for number in range(1, 41):
        guest.operations.ask(guest.lease(number, f"lease{number}"), "ask", DAY)
    guest.sent()
    guest.kernel.connected("hub")
    asked = guest.sent()
    assert len(asked) == RESENT_AT_ONCE
    for message in asked:  # it grows meanwhile
        assert isinstance(message, RequestTicket)
        guest.operations._on_accepted("hub", Accepted(message.lease, message.number))
        asked += guest.sent()
    assert len({message.lease for message in asked if isinstance(message, RequestTicket)}) == len(asked) == 40


def test_endings_let_units_leave_before_the_site_is_told() -> None:
    """Units leave first, then the site closes the lease, and those who wait for its end are told. It ends once."""
    guest = Guest()
    ended: list[str] = []
    guest.endings.ended.append(lambda lease: ended.append(lease.id))
    one = guest.lease(1, state=sm.ACTIVE, site="site", tickets=HeldTickets(ticket()), given=GIVEN)
    guest.membership.take(one, [UnitState("a", "active", {}, None)])
    guest.membership.join(one)
    guest.membership.done(ActionDone(one.units["a"].action, "w-1/a", True))
    guest.endings.close_early(CloseLeaseEarly("one"))
    assert one.pending == sm.CLOSING and not guest.sent()
    with pytest.raises(CommandError, match="w-1 is being closed already"):
        guest.endings.close_early(CloseLeaseEarly("one"))
    guest.membership.done(ActionDone(one.units["a"].action, "w-1/a", True))
    assert [type(message) for message in guest.sent()] == [CloseLease]
    guest.endings.over(one, "closed", said("closed by its guest"), b"receipt")
    assert (one.state, ended, guest.records.open) == (sm.CLOSED, ["w-1"], {})
    assert [type(message) for message in guest.sent()] == [ReturnTicket], "what is left of its ticket"
    with pytest.raises(CommandError, match="w-1 is closed already"):
        guest.endings.close_early(CloseLeaseEarly("w-1"))


def test_redeems_go_on_by_the_tickets_in_hand() -> None:
    """A lease goes on by the first ticket in hand; the last extend is taken back whole, if it has not begun."""
    guest = Guest()
    after, last = (ticket(term=Term(n * HOUR, (n + 1) * HOUR), extends=n) for n in (2, 3))
    one = guest.lease(1, state=sm.ACTIVE, site="site", tickets=HeldTickets(ticket(), (after, last)), given=GIVEN)
    assert guest.redeems.in_hand(one) and one.state == sm.ACTIVE_TICKETED
    guest.redeems.undo_extend(one)
    assert one.continuations == (after,) and guest.advanced == ["w-1"]
    assert [type(message) for message in guest.sent()] == [Relinquish]
    assert guest.redeems.in_hand(one)
    guest.redeems.go_on(one)
    (redeem,) = guest.sent()
    assert isinstance(redeem, Redeem) and (redeem.op, redeem.ticket) == (EXTEND, after.ticket)
    units = [UnitState("a", "active", {}, None)]
    guest.redeems.confirmed(
        one, LeaseUpdate("w-1", 1, one.operation.number, "active", after.term, units, None, b"", b"")
    )
    assert (one.state, one.approved, one.granted) == (sm.ACTIVE, after, after.term)
    with pytest.raises(CommandError, match="no extension that could be undone"):
        guest.redeems.undo_extend(one)


def test_transitions_wait_for_predecessors() -> None:
    """A ticket is redeemed when the predecessor is active and the mapper agrees; without the predecessor, never."""
    guest = Guest(redeem_lead=HOUR)
    answers: list[Go | Hold] = [Hold(HOUR), Go({"size": "2"})]
    transitions = guest.transitions(lambda lease, predecessor: answers.pop(0))
    slices = Slices(guest.kernel, guest.records, guest.endings, transitions)
    first = guest.lease(1, state=sm.TICKETED, pending=sm.REDEEMING, site="site", tickets=HeldTickets(ticket()))
    second = guest.lease(
        2, "two", state=sm.TICKETED, site="site", tickets=HeldTickets(ticket()), origin=Origin(After("w-1"))
    )
    transitions.advance(second)
    assert second.join == mb.BLOCKED_REDEEM and not guest.sent()
    first.state = sm.ACTIVE
    slices.wake_dependents(first)
    assert second.waits.hold_until == HOUR and not guest.sent()
    guest.kernel.tick(HOUR)
    transitions.advance(second)
    (redeem,) = guest.sent()
    assert isinstance(redeem, Redeem) and redeem.properties == {"size": "2"}
    third = guest.lease(
        3, "three", state=sm.TICKETED, site="site", tickets=HeldTickets(ticket()), origin=Origin(After("w-0"))
    )
    transitions.advance(third)
    assert (third.state, third.reason) == (sm.FAILED, Reason(Code.REDEEM_PREDECESSOR, "w-0", "over"))


def test_slices_hold_for_all() -> None:
    """A slice goes on when all have tickets, and gives its units another key; no two slices have one name."""
    guest = Guest(redeem_lead=HOUR)
    slices = Slices(guest.kernel, guest.records, guest.endings, guest.transitions())
    slices._create(CreateSlice(name="s", hold=2))
    with pytest.raises(CommandError, match="expected a name that no slice has yet"):
        slices._create(CreateSlice(name="s"))
    one, two = guest.lease(1), guest.lease(2, "two")
    for each in (one, two):
        each.state, each.site, each.tickets = sm.TICKETED, "site", HeldTickets(ticket())
    slices.settle(two)
    assert guest.records.slices["s"].released and (one.pending, two.pending) == (sm.REDEEMING, NONE)
    told: list[Reason] = []
    slices.closing.append(lambda name, reason: told.append(reason))
    slices._set_key(SetSliceKey(name="s", key="ssh-ed25519 AAAA"))
    assert two.configuration == {"slice.key": "ssh-ed25519 AAAA"} and two.pending == sm.REDEEMING
    assert slices._close(CloseSlice(name="s")) == ClosedSlice("s", ["w-1", "w-2"])
    assert told == [Reason(Code.SLICE_CLOSED)]


def test_requests_are_checked_before_anything_happens() -> None:
    """A request becomes a lease that its broker is asked for; one that can't be carried out changes nothing."""
    guest = Guest()
    with pytest.raises(CommandError, match="site: found 'hub', known sites are site"):
        guest.requests.request(RequestLease("vm", 2, TERM, site="hub"))
    with pytest.raises(CommandError, match="broker: found 'site', known brokers are hub"):
        guest.requests.request(RequestLease("vm", 2, TERM, broker="site"))
    with pytest.raises(CommandError, match="redeem_predecessor: found 'two', expected a lease that was requested"):
        guest.requests.request(RequestLease("vm", 2, TERM, redeem_predecessor="two"))
    assert not guest.records.by_id and not guest.records.slices and not guest.sent()
    assert not guest.kernel.counters["lease"]
    one = guest.requests.request(RequestLease("vm", 2, TERM, "s", "one"))
    assert [type(message) for message in guest.sent()] == [RequestTicket] and "s" in guest.records.slices
    with pytest.raises(CommandError, match=f"has a lease 'one' already .{one.id}, nascent"):
        guest.requests.request(RequestLease("vm", 2, TERM, "s", "one"))
    assert guest.requests.free_name("s", "one") == "one-2"


def test_changes_ask_for_what_goes_on_or_is_another() -> None:
    """An extend goes on from the end, a modify from now; both need a lease that is active."""
    guest = Guest()
    guest.kernel.tick(HOUR + MINUTE)
    one = guest.lease(1, state=sm.ACTIVE, site="site", tickets=HeldTickets(ticket()), given=GIVEN)
    _, asked = guest.changes.modification(ModifyLease("one", units=1))
    assert asked is not None and (asked.units, asked.term) == (1, Term(HOUR + MINUTE, TERM.end))
    with pytest.raises(CommandError, match="nothing to modify"):
        guest.changes.modify(ModifyLease("one"))
    guest.changes.extend(ExtendLease("one", 3 * HOUR))
    (message,) = guest.sent()
    assert isinstance(message, RequestTicket) and message.term == Term(TERM.end, 3 * HOUR)
    with pytest.raises(CommandError, match="is active, extending_ticket: only an active lease with nothing pending"):
        guest.changes.extend(ExtendLease("one", 4 * HOUR))
    assert one.pending == sm.EXTENDING_TICKET


def test_dry_runs_and_trials_answer_a_command() -> None:
    """What a broker would do is the command's reply; a group's request can't be tried, nor can what is no topology."""
    guest = Guest()
    dry_runs = DryRunRequests(guest.kernel, guest.keyring, guest.calls, guest.requests, guest.changes)
    wish = {"type": "vm", "units": 1, "term": [HOUR, 2 * HOUR]}
    with pytest.raises(CommandError, match="a group is answered whole"):
        dry_runs._dry_run(Command(1, "lease.dry_run", {**wish, "properties": {"group_id": "g", "lease_count": "1"}}))
    dry_runs._dry_run(Command(2, "lease.dry_run", wish))
    (question,) = guest.sent()
    assert isinstance(question, DryRun)
    dry_runs._answered(
        "hub", DryRunAnswer(question.lease, question.number, "refused", "", 0, TERM, said("full"), 3 * HOUR)
    )
    ready = guest.kernel.take()
    assert ready is not None and ready.replies[0][:2] == (2, {
        "broker": "hub", "status": "refused", "site": "", "units": 0, "classes": [], "term": [*TERM], "reason": "full",
        "because": {"code": "said", "detail": "full"}, "earliest": 3 * HOUR,
    })  # fmt: skip
    topologies = LeasedTopologies(guest.kernel, guest.keyring, guest.records, guest.requests, guest.endings)
    trials = PlanTrials(guest.kernel, guest.keyring, guest.calls, guest.requests, topologies)
    with pytest.raises(LeasekitError, match="sites: found nothing"):
        trials._try(Command(3, "topology.plan", {}), PlanTopology())


def test_topologies_are_leased_at_once() -> None:
    """A broker's plan becomes a lease for each part; when one is lost, the others are closed, and another is tried."""
    guest = Guest()
    topologies = LeasedTopologies(guest.kernel, guest.keyring, guest.records, guest.requests, guest.endings)
    sites = tuple(RequestedSite(id=name, type="vm", units=1) for name in ("a", "b"))
    links = (RequestedLink(id="k", from_="a", to="b", bw=1.0),)
    options = PlanOptions(distinct_sites=False)
    wish = TopologyRequest(sites=sites, links=links, est=HOUR, lst=2 * HOUR, duration=HOUR, options=options)
    with pytest.raises(CommandError, match="tries: found 0"):
        topologies.request(RequestTopology(wish, "hub", 0))
    made = topologies.request(RequestTopology(wish, "hub", 2))
    (asked,) = guest.sent()
    assert isinstance(asked, Plan)
    parts = [PlanPart(name, name, 0, "hub", "line", "site", "vm", 1) for name in ("a", "b")]
    topologies.planned(
        "hub", Planned(asked.query, asked.number, "held", "p-1", TERM, parts, "", "", 2 * HOUR, None, -1)
    )
    one, two = guest.records.by_id.values()
    assert [type(message) for message in guest.sent()] == [RequestTicket] * 2
    assert topologies.is_undecided(one) and made.state == "committing"
    one.state, one.pending, one.reason, one.ended = sm.FAILED, NONE, said("full"), guest.kernel.now
    topologies.settle(one)
    assert (made.state, made.left, words(made.reason)) == ("asking", 0, "lease a is failed: full")
    assert words(two.ending.reason) == "its topology came to nothing: lease a is failed: full"
    assert {type(message) for message in guest.sent()} == {Plan, Withdraw, ReleaseParts}


def test_answers_of_brokers_and_sites_are_taken_once() -> None:
    """A grant is taken in its turn; a site that says nothing of the lease's own is refused, as is a strange ticket."""
    guest = Guest(redeem_lead=HOUR)
    transitions = guest.transitions()
    answers = BrokerAnswers(guest.kernel, guest.returns, guest.endings, guest.redeems, transitions)
    broker = BrokerUpdates(guest.kernel, guest.records, guest.tickets, guest.operations, answers)
    replies = SiteAnswers(guest.kernel, guest.redeems, guest.endings, guest.membership, transitions)
    site = SiteUpdates(guest.kernel, guest.records, guest.tickets, replies, transitions.advance)
    one = guest.lease(1)
    guest.operations.ask(one, "ask", HOUR)
    broker._on_update("hub", grant(2, ticket()))
    assert one.state == sm.NASCENT, "an earlier one has yet to come"
    broker._on_update("hub", grant(1, ticket()))
    assert (one.state, one.pending, one.site) == (sm.TICKETED, sm.REDEEMING, "site")
    update = LeaseUpdate("w-1", 1, one.operation.number, "refused", TERM, [], said("no room"), b"", b"")
    with pytest.raises(RemoteError, match="is at site, not at hub"):
        site._on_update("hub", update)
    site._on_update("site", update)
    assert (one.state, one.reason) == (sm.FAILED, said("no room"))
    assert not broker.refused("hub", ErrorReply("w-1", one.number, Reason("busy", detail="later"))), (
        "it asks for nothing any more"
    )


def test_timeouts_end_what_nobody_answers() -> None:
    """A request without an answer fails when its deadline is past, and not before; after a while it is forgotten."""
    guest = Guest()
    transitions = guest.transitions()
    answers = BrokerAnswers(guest.kernel, guest.returns, guest.endings, guest.redeems, transitions)
    broker = BrokerUpdates(guest.kernel, guest.records, guest.tickets, guest.operations, answers)
    timeouts = LeaseTimeouts(guest.limits, guest.endings, guest.redeems, guest.membership, broker)
    one = guest.lease(1)
    guest.operations.ask(one, "ask", HOUR)
    timeouts.check(one)
    assert one.state == sm.NASCENT
    timers = LeaseTimers(guest.kernel, guest.records, guest.operations, timeouts, transitions)
    guest.kernel.register(GuestLease, due_at=timers.due_at, on_due=timers.due)
    guest.kernel.tick(HOUR)
    assert (one.state, one.reason) == (sm.FAILED, Reason(Code.NO_TICKET, "hub"))
    guest.kernel.tick(HOUR + guest.settings.retention - 1)
    assert "w-1" in guest.records.by_id
    guest.kernel.tick(HOUR + guest.settings.retention)
    assert "w-1" not in guest.records.by_id


def test_rests_of_suspended_leases_are_asked_for() -> None:
    """What is left of a suspended lease is a lease of its own; of one that its guest has closed, nothing is."""
    guest = Guest()
    guest.kernel.tick(HOUR + 15 * MINUTE)
    one = guest.lease(
        1,
        state=sm.CLOSED,
        site="site",
        tickets=HeldTickets(ticket()),
        ending=Ending(reason=said("closed by its guest"), suspends=True),
    )
    one.origin = Origin(asked=one.asked)
    guest.requests.ask_for_rest(one)
    assert not guest.sent()
    one.ending = one.ending._replace(reason=None)
    guest.requests.ask_for_rest(one)
    (message,) = guest.sent()
    assert isinstance(message, RequestTicket) and message.term.length == 45 * MINUTE
    rest = guest.records.find("one")
    assert (rest.origin.resumes, rest.asked.site) == (Resumed("w-1", guest.kernel.now), "site")
