"""Parts of a broker, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

import attrs
import pytest

from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.claims import GrantedClaims, Lapses, ReportsOfSites, ReturnedTickets, Statements
from leasekit.actors.broker.delegations import (
    ReleasedSources,
    SourceDependents,
    Subdelegation,
    TakenDelegations,
    Withholding,
)
from leasekit.actors.broker.grants import (
    Answers,
    Cycles,
    GrantChecks,
    Grants,
    HeldParts,
    Introductions,
    LeaseTerms,
    LeaseViews,
    TicketCutter,
)
from leasekit.actors.broker.planner import Holds
from leasekit.actors.broker.preemption import Preemption
from leasekit.actors.broker.requests import Admission, Requests
from leasekit.actors.kernel import Kernel
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.served import Notices, Reports, Served
from leasekit.actors.settings import ActorSettings, BrokerSettings, DelegationSpec, Peer
from leasekit.core.claims.claim import delegate_root
from leasekit.core.claims.signed import ED25519, RECEIPT, Keypair, key_tag, reclaim, state
from leasekit.core.commands import ReleaseSource
from leasekit.core.errors import CommandError, RemoteError, TicketError
from leasekit.core.leases import broker as br
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import Asked, BrokerLease, Delegation, Granted, Notice, WaitsForMapper
from leasekit.core.mappers import Grant, Preempt
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.codec import encode_message
from leasekit.core.protocol.messages import (
    NEW,
    Accepted,
    ClaimReport,
    LetGo,
    Message,
    Offer,
    OfferAnswer,
    Reclaim,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withdraw,
    Withhold,
)
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant, Term

ME, WEB, SITE, LOW = (Keypair(letter * 32) for letter in (b"m", b"w", b"s", b"l"))
TERM = Term(HOUR, 2 * HOUR)
SOURCE = "site/vm@hub"


class Parts:
    """Those of a broker that has four units of a site over an hour, as far as they are about what it granted."""

    def __init__(self) -> None:
        self.kernel = Kernel(ActorSettings())
        self.kernel.tick(HOUR)
        web = Peer(name="web", key=WEB.public, role="guest", may=frozenset({"request"}))
        site = Peer(name="site", key=SITE.public, role="authority")
        self.keyring = Keyring("hub", ME, ED25519, [web, site], self.kernel)
        self.book = Book()
        ticket = delegate_root(SITE, holder=ME.public, type="vm", units=4, term=TERM, serial=1)
        self.book.add(
            Delegation(SOURCE, "site", "vm", 4, TERM, ticket.encode(), {}, 1, "site", ticket.leaf.digest, deleg.HELD),
            ticket,
        )
        self.served: Served[BrokerLease] = Served(self.kernel, self.keyring)
        self.kernel.register(BrokerLease, awaits=self.served.awaits, send=self.served.send_now)
        self.queue = RequestQueue(self.keyring, 8)
        self.statements = Statements(self.kernel, self.keyring, self.book, HOUR)
        self.granted = GrantedClaims(self.kernel, self.served, self.queue, self.book, self.statements)
        self.returned = ReturnedTickets(self.kernel, self.served, self.granted, self.statements)
        self.notices = Notices(self.kernel)
        self.notices.accepted.append(self.returned.truncated)

    def lease(self, units: int, *, preemptible: bool = False) -> BrokerLease:
        """One of ``web`` that has so many units."""
        asked = Asked(NEW, units, TERM, "", {})
        lease = BrokerLease(
            "w-1", "web", "", "vm", br.TICKETED, NONE, asked, 3, WaitsForMapper(0, HOUR, HOUR), key=WEB.public
        )
        self.served.leases[lease.id] = lease
        self.granted.add(lease, 0, [self.claim(units, TERM, preemptible=preemptible)])
        return lease

    def claim(self, units: int, term: Term, *, preemptible: bool = False) -> Granted:
        """A claim that is booked."""
        serial = self.kernel.next("serial")
        ((class_, _),) = self.book.ticket(SOURCE).leaf.classes
        claim = Granted(
            b"", SOURCE, f"w-1#{serial}", units, term, term.end, False, serial, preemptible, classes=((class_, units),)
        )
        self.book.reserve_again(claim)
        return claim._replace(digest=self.statements.cut(claim, WEB.public).leaf.digest)

    def free(self, term: Term = TERM) -> int:
        """How many units are free."""
        return self.book.table(SOURCE).available(term)

    def sent(self) -> list[tuple[str, Message]]:
        """The messages of the Ready."""
        ready = self.kernel.take()
        return [] if ready is None else list(ready.messages)


def receipt(claim: Granted | Delegation, at: int, *, used: str = "", key: Keypair = SITE) -> bytes:
    """A site's, that a claim ends at ``at``."""
    return state(key, RECEIPT, claim.digest, at, used).encode()


def test_units_are_free_when_the_site_counts_the_claim_as_ended() -> None:
    """A ticket that comes back with its receipt frees its units; no receipt of another counts, nor another's word."""
    parts = Parts()
    freed: list[str] = []
    parts.granted.freed.append(lambda: freed.append("freed"))
    lease = parts.lease(3)
    assert parts.free() == 1
    claim = lease.claims[0]
    back = ReturnTicket("w-1", 4, receipt(claim, HOUR, key=WEB))
    with pytest.raises(TicketError):
        parts.returned._on_return("web", back)
    back = ReturnTicket("w-1", 4, receipt(claim, HOUR))
    with pytest.raises(RemoteError, match="not held by site"):
        parts.returned._on_return("site", back)
    assert parts.free() == 1 and not parts.book.has_news
    parts.returned._on_return("web", back)
    assert (parts.free(), lease.state, freed, parts.book.has_news) == (4, br.CLOSED, ["freed"], True)
    assert parts.sent() == [("web", Accepted("w-1", 4))]


def test_what_has_just_ended_still_counts_where_a_request_comes_late() -> None:
    """A grant whose start is past may share no instant with a claim that is over: both are signed. After a minute it is
    forgotten, but for a request that still waits and would have begun before.
    """
    parts = Parts()
    parts.kernel.tidy_every = 1
    lease = parts.lease(3)
    over = lease.claims[0].term.end
    late = Term(over - SECOND, over + SECOND)

    def forget(now: Instant) -> None:
        parts.kernel.tick(now)
        parts.granted.over(lease, Reason(Code.TERM_OVER))

    def free_before() -> int:
        return parts.book.table(SOURCE).free_at(late.start)

    forget(over)
    assert free_before() == 1
    waits = attrs.evolve(lease, id="w-2", asked=Asked(NEW, 1, late, "", {}))
    parts.queue.leases["w-2"] = waits
    forget(over + 2 * MINUTE)
    assert free_before() == 1
    del parts.queue.leases["w-2"]
    forget(over + 3 * MINUTE)
    assert lease.claims[0].key not in parts.book.table(SOURCE)


def test_what_a_modify_leaves_is_booked_until_the_site_has_taken_the_modify() -> None:
    """One that comes back unused gives the lease what it had before."""
    parts = Parts()
    lease = parts.lease(3)
    whole, half = lease.claims[0], HOUR + 30 * MINUTE
    rest = Term(half, 2 * HOUR)

    def modify() -> Granted:
        parts.book.end_early(whole, half)
        less = parts.claim(1, rest)
        assert parts.granted.add(lease, 0, [less], half)
        return less

    parts.returned._take_back(lease, modify(), receipt(lease.claims[1], half))
    assert lease.claims == (whole,) and parts.free(rest) == 1
    modify()
    assert parts.free(rest) == 1 and parts.granted.with_cut_off(whole.digest.hex()) is lease
    reports = ReportsOfSites(parts.kernel, parts.keyring, parts.granted, parts.statements, Reports(parts.kernel, "hub"))
    report = ClaimReport(whole.digest.hex(), 9, Reason("replaced", detail=""), receipt(whole, half, used="w-1"))
    with pytest.raises(RemoteError, match="web is no site"):
        reports._on_claim_report("web", report)
    reports._on_claim_report("site", report)
    assert parts.free(rest) == 3 and parts.granted.with_cut_off(whole.digest.hex()) is None


def test_a_lease_is_ended_early_when_its_site_agrees() -> None:
    """Site and guest are told, and the units are free with the site's receipt; what isn't preemptible goes on."""
    parts = Parts()
    introductions = Introductions(
        parts.kernel, parts.keyring, Peering(parts.kernel, parts.keyring, "broker", "", lambda peer: False),
        parts.notices, endorse=False,
    )  # fmt: skip
    answers = Answers(parts.kernel, parts.served, parts.queue, parts.book, introductions)
    preemption = Preemption(parts.kernel, parts.granted, parts.statements, parts.notices, answers)
    firm = parts.lease(1)
    with pytest.raises(CommandError, match="w-1 is not preemptible"):
        preemption.preempt(Preempt(firm.id, HOUR + MINUTE, "others need it"))
    parts.sent()
    lease = parts.lease(3, preemptible=True)
    with pytest.raises(CommandError, match="its site saves no 'vm'"):
        preemption.preempt(Preempt(lease.id, HOUR + MINUTE, "others need it", suspend=True))
    preemption.preempt(Preempt(lease.id, HOUR + MINUTE, "others need it"))
    messages = dict(parts.sent())
    told, heard = messages["site"], messages["web"]
    assert isinstance(told, Truncated) and isinstance(heard, TicketUpdate) and heard.status == "terminating"
    rest = Term(HOUR + MINUTE, 2 * HOUR)
    assert parts.free(rest) == 0
    parts.notices._on_accepted("site", Accepted("w-1", told.number, receipt(lease.claims[0], HOUR + MINUTE)))
    assert parts.free(rest) == 3 and parts.free() == 0


class Delegations(Parts):
    """And those about what it takes and gives, of which it is to give one unit to the broker ``low``."""

    def __init__(self) -> None:
        super().__init__()
        self.keyring.peers["low"] = Peer(name="low", key=LOW.public, role="broker")
        settings = BrokerSettings(delegations=[DelegationSpec(broker="low", type="vm", units=1, length=HOUR)])
        self.subdelegation = Subdelegation(self.kernel, self.keyring, self.book, self.notices, settings)
        self.issued = self.subdelegation.issued
        self.dependents = SourceDependents(self.kernel, self.keyring, self.book, self.granted, self.issued)
        self.sources = TakenDelegations(self.kernel, self.keyring, self.book, self.issued, self.dependents)

    def give(self) -> Delegation:
        """What is to be given is given, and ``low`` has it."""
        self.subdelegation.begin()
        (record,) = self.issued.given.values()
        self.issued._on_offer_answer("low", OfferAnswer(record.id, record.number, None))
        return record


def test_what_is_given_is_reserved_and_ends_with_what_it_was_cut_from() -> None:
    """And its units are free when the site has accepted that; the operator can't let go of what is not held."""
    parts = Delegations()
    record = parts.give()
    assert parts.free() == 3 and record.source == SOURCE
    released = ReleasedSources(parts.kernel, parts.book, parts.notices, parts.dependents)
    with pytest.raises(CommandError, match=f"found 'none', held are {SOURCE}"):
        released._release(ReleaseSource(source="none"))
    parts.sent()
    assert released._release(ReleaseSource(source=SOURCE)).sources == [SOURCE]
    told = {type(message): (peer, message) for peer, message in parts.sent()}
    assert {type_: peer for type_, (peer, _) in told.items()} == {Reclaim: "low", LetGo: "site"}
    assert record.state == deleg.RECLAIMING and told[LetGo][1].until == record.term.end
    parts.issued._on_offer_answer("low", OfferAnswer(record.id, record.number, None, 0))
    ((peer, message),) = parts.sent()
    assert peer == "site" and isinstance(message, Truncated)
    parts.subdelegation.freed.append(released.freed)
    at = parts.kernel.now
    parts.subdelegation.truncated(Notice("n", "site", record.id, 1, 0, encode_message(message)), receipt(record, at))
    assert record.freed == at and f"given {record.id}" not in parts.book.table(SOURCE)
    ((peer, again),) = parts.sent()
    assert peer == "site" and isinstance(again, LetGo) and again.until < record.term.end  # it hears of it once more


def test_offers_are_taken_once_and_taken_back() -> None:
    """Nothing is granted of what is taken back. A name that is not its issuer's is refused."""
    parts = Delegations()
    term = Term(HOUR, 3 * HOUR)
    ticket = delegate_root(
        SITE, holder=ME.public, type="vm", units=2, term=term, serial=2, properties=digest_properties({})
    )
    offer = Offer("site/vm@hub/more", 5, ticket.encode(), {}, "", "")
    with pytest.raises(RemoteError, match="names of low's begin with low/"):
        parts.sources._on_offer("low", offer)
    for _ in range(2):
        parts.sources._on_offer("site", offer)
    answers = [message for _, message in parts.sent() if isinstance(message, OfferAnswer)]
    assert [one.reason for one in answers] == [None, None] and parts.book.table(offer.delegation).available(term) == 2
    statement = reclaim(SITE, ticket.leaf.digest, HOUR, None).encode()
    parts.sources._on_reclaim("site", Reclaim(offer.delegation, 6, ticket.encode(), statement))
    assert parts.book.table(offer.delegation).available(term) == 0
    restored = Delegations()
    restored.sources.restore([one.row() for one in (parts.book.get(offer.delegation),) if one is not None])
    taken = restored.book.get(offer.delegation)
    assert taken is not None and taken.state == deleg.RECLAIMED


def test_maintenance_windows_are_left_out_and_passed_on() -> None:
    """Whom a part was given hears what lacks there; only the issuer can withhold."""
    parts = Delegations()
    record = parts.give()
    withholding = Withholding(parts.kernel, parts.keyring, parts.book, parts.notices, parts.issued)
    message = Withhold(SOURCE, 7, "w", 4, Term(HOUR, HOUR + MINUTE), "new disks")
    with pytest.raises(RemoteError, match=f"hub holds no delegation {SOURCE} of low"):
        withholding._on_withhold("low", message)
    parts.sent()
    withholding._on_withhold("site", message)
    told, accepted = parts.sent()
    assert accepted == ("site", Accepted(SOURCE, 7)) and told[0] == "low"
    assert isinstance(told[1], Withhold) and (told[1].delegation, told[1].units) == (record.id, 1)
    assert parts.free(message.term) < 0 and parts.free(Term(HOUR + MINUTE, 2 * HOUR)) == 3


class Asking(Delegations):
    """And those about requests, with leases that expire and tickets that are cut."""

    def __init__(self) -> None:
        super().__init__()
        settings = BrokerSettings()
        introductions = Introductions(
            self.kernel, self.keyring, Peering(self.kernel, self.keyring, "broker", "", lambda peer: False),
            self.notices, endorse=False,
        )  # fmt: skip
        answers = Answers(self.kernel, self.served, self.queue, self.book, introductions)
        lapses = Lapses(self.kernel, self.granted, self.statements, self.notices)
        LeaseTerms(self.kernel, self.served, self.granted, answers, (lapses,))
        self.cycles = Cycles(
            self.kernel, self.queue, self.book,
            LeaseViews(self.kernel, self.queue, self.book, self.granted, settings), True,
        )  # fmt: skip
        checks = GrantChecks(self.kernel, self.keyring, self.book, self.cycles, self.dependents)
        cutter = TicketCutter(self.kernel, self.book, self.granted, self.statements, answers)
        self.grants = Grants(self.queue, self.book, self.cycles, checks, cutter)
        holds = Holds(self.kernel, self.keyring, self.served, self.book, settings)
        held = HeldParts(self.granted, self.queue, self.book, holds, cutter)
        admission = Admission(self.kernel, self.served, self.queue, self.book, settings)
        self.requests = Requests(self.kernel, self.served, admission, answers, held)

    def ask(self, number: int, units: int) -> BrokerLease:
        """``web`` asks for a lease."""
        id_ = f"{key_tag(WEB.public)}-{number}"
        message = RequestTicket(id_, number, NEW, "s", "vm", units, TERM, "", {}, b"")
        self.requests._on_request("web", message)
        return self.served.leases[id_]


def test_a_grant_is_what_was_asked_for_and_what_is_free() -> None:
    """The mapper is shown what waits; what it grants is checked, booked and sent."""
    parts = Asking()
    lease, other = parts.ask(1, 3), parts.ask(2, 2)
    assert parts.book.has_news
    assert [request.lease for request in parts.cycles.show_news().requests] == [lease.id, other.id]
    with pytest.raises(CommandError, match="2 units were granted, 3 to 3 were asked for"):
        parts.grants.grant([Grant(lease.id, SOURCE, 2, TERM)])
    parts.grants.grant([Grant(lease.id, SOURCE, 3, TERM)])
    assert (parts.free(), lease.state, lease.id in parts.queue) == (1, br.TICKETED, False)
    with pytest.raises(CommandError, match="it would overbook: 1 units are free"):
        parts.grants.grant([Grant(other.id, SOURCE, 2, TERM)])
    with pytest.raises(CommandError, match="it would overbook"):
        parts.grants.try_grant(other, Grant(other.id, SOURCE, 2, TERM))
    assert [one.lease for one in parts.cycles.show(()).granted("vm")] == [lease.id]


def test_a_request_that_nobody_grants_expires_and_a_term_ends() -> None:
    """A request that is withdrawn waits no more."""
    parts = Asking()
    lease, late, gone = (parts.ask(number, 2) for number in (1, 2, 3))
    parts.grants.grant([Grant(lease.id, SOURCE, 2, TERM)])
    parts.requests._on_withdraw("web", Withdraw(gone.id, 4, 3))
    assert gone.state == br.CLOSED and list(parts.queue.leases) == [late.id]
    parts.kernel.tick(2 * HOUR)
    assert (late.state, late.reason) == (br.FAILED, Reason(Code.NOT_GRANTED))
    assert (lease.state, lease.reason) == (br.CLOSED, Reason(Code.TERM_OVER))
    with pytest.raises(RemoteError, match="term ends at"):
        parts.requests._on_request("web", RequestTicket(lease.id, 9, NEW, "s", "vm", 1, TERM, "", {}, b""))
