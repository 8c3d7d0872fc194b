"""What peers with real keys try beyond what they may: nothing of it gets them more, harms others, or stops anyone."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace

from leasekit.actors import served
from leasekit.actors.base import Actor
from leasekit.actors.broker import delegations as broker_delegations
from leasekit.actors.guest import returns as guest_returns
from leasekit.actors.kernel import RESENT_AT_ONCE
from leasekit.actors.served import acknowledge
from leasekit.actors.settings import ADMINISTER, Peer
from leasekit.actors.site import claims
from leasekit.core.claims.claim import Ticket, decode_ticket, delegate, delegate_root
from leasekit.core.claims.evidence import Evidence, encode_evidence, verify_evidence
from leasekit.core.claims.signed import RELINQUISHMENT, TRUNCATION, Keypair, decode_statement, endorse, state
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.errors import TicketError
from leasekit.core.leases.records import Update, unpack_body
from leasekit.core.protocol.messages import (
    Ack,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    Offer,
    OfferAnswer,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.reasons import Code, Reason
from leasekit.core.steps import Connected
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Term


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def held(world: DeployedWorld, guest: str, lease: str) -> Ticket:
    """The ticket that a guest has for its lease."""
    approved = world.guest(guest).leases[lease].approved
    assert approved is not None
    return decode_ticket(approved.ticket)


def source_of(world: DeployedWorld, broker: str) -> Ticket:
    """The ticket of a broker's only delegation."""
    (source,) = world.broker(broker).book.of_type("vm")
    return decode_ticket(source.ticket)


def errors(world: DeployedWorld, sender: str, receiver: str) -> list[str]:
    """The codes of all errors that an actor has sent another."""
    return [error.reason.code for error in world.letters(ErrorReply, sender, receiver)]


def truncated(world: DeployedWorld, broker: str, ticket: Ticket, at: int, subject: bytes | None = None) -> Truncated:
    """A broker's word that a claim of its own ends at ``at``."""
    digest = ticket.leaf.digest if subject is None else subject
    note = state(world.broker(broker).signer, TRUNCATION, digest, at, "x").encode()
    return Truncated("x-1", 7, ticket.encode(), note)


# -- delegations -----------------------------------------------------------------------------------------------------


def test_an_issuer_does_not_overwrite_what_its_holder_has_given(world: DeployedWorld) -> None:
    """An offer, or a reclaim, under the name of what the holder gave itself is refused; a restart forgets nothing."""
    site, upper = world.site(), world.broker("upper")
    ticket = delegate_root(
        site.signer, holder=upper.signer.public, type="vm", units=1, term=Term(0, DAY), serial=99
    )  # fmt: skip
    world.receive("upper", "site", Offer("upper/vm@lower", 9, ticket.encode(), {}))
    world.pass_time(SECOND)
    assert world.letters(OfferAnswer, "upper", "site")[-1].reason or errors(world, "upper", "site")
    world.restart("upper")
    world.pass_time(SECOND)
    assert "upper/vm@lower" in world.broker("upper").issued.given
    assert [row["free_now"] for row in world.query("upper", "sources")] == [2]


def test_a_broker_does_not_take_the_name_of_anothers_delegation(tmp_path: Path) -> None:
    """Whoever is first can't keep another issuer's offer out: names of delegations begin with their issuer's."""
    world = DeployedWorld(CHAIN, tmp_path, make=lambda name, actor: actor)
    lower, upper = world.broker("lower"), world.broker("upper")
    fake = delegate_root(
        lower.signer, holder=upper.signer.public, type="vm", units=5, term=Term(0, DAY), serial=1
    )  # fmt: skip
    world.receive("upper", "lower", Offer("site/gpu@upper", 1, fake.encode(), {}, "elsewhere"))
    world.pass_time(SECOND)
    assert upper.book.get("site/gpu@upper") is None


def test_a_broker_is_no_site(world: DeployedWorld) -> None:
    """A chain that begins at the key of a broker is no delegation of a site's units."""
    lower, upper = world.broker("lower"), world.broker("upper")
    fake = delegate_root(
        lower.signer, holder=upper.signer.public, type="vm", units=5, term=Term(0, DAY), serial=1
    )  # fmt: skip
    world.receive("upper", "lower", Offer("lower/vm@upper", 1, fake.encode(), {}, "elsewhere"))
    world.pass_time(SECOND)
    assert len(upper.book.of_type("vm")) == 1
    assert world.letters(OfferAnswer, "upper", "lower")[-1].reason


def test_delegations_are_bounded(world: DeployedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer can't fill its holder's memory and store with offers, nor with reclaims of what was never offered."""
    monkeypatch.setattr(broker_delegations, "HOLDINGS_MAX", 5)
    site, upper = world.site(), world.broker("upper")
    for serial in range(20):
        ticket = delegate_root(
            site.signer, holder=upper.signer.public, type="vm", units=1, term=Term(0, DAY), serial=100 + serial
        )  # fmt: skip
        world.receive("upper", "site", Offer(f"site/vm@upper/{serial}", 1, ticket.encode(), {}))
    assert len(upper.book) == 5
    world.pass_time(SECOND)
    assert world.letters(OfferAnswer, "upper", "site")[-1].reason.code == Code.BUSY


def test_a_withhold_that_comes_late_changes_nothing(world: DeployedWorld) -> None:
    """A window that was taken back does not come back with an older message that was delayed."""
    early = Withhold("site/vm@upper", 100, "window-1", 2, Term(HOUR, 2 * HOUR), "disks")
    late = replace(early, number=101, units=0)
    world.receive("upper", "site", early, late, early)
    world.pass_time(SECOND)
    table = world.broker("upper").book.table("site/vm@upper")
    assert table.free_at(HOUR) == 2
    world.restart("upper")
    world.receive("upper", "site", early)
    assert world.broker("upper").book.table("site/vm@upper").free_at(HOUR) == 2


# -- truncations -----------------------------------------------------------------------------------------------------


def test_a_truncation_about_one_claim_with_the_ticket_of_another(world: DeployedWorld) -> None:
    """It is refused, and what the site knows of the ticket's claim stays: it can't be redeemed a second time."""
    lease = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    ticket, record = held(world, "batch", lease), world.guest("batch").leases[lease]
    world.receive("site", "upper", truncated(world, "upper", ticket, 2 * MINUTE, subject=b"s" * 32))
    assert world.site().claims.by_digest[ticket.leaf.digest].lease == lease
    again = Redeem(f"{lease}9", 1, "new", "s", ticket.encode(), record.tickets.resource, {}, (), b"")
    world.receive("site", "batch", again)
    world.pass_time(SECOND)
    assert f"{lease}9" not in world.site().leases
    assert world.lease("site", lease)["state"] == "active"


def test_a_firm_lease_is_not_truncated_by_its_broker(world: DeployedWorld) -> None:
    """A broker can't end what it did not say could be ended, redeemed or not."""
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    later = world.request("batch", 1, 20 * MINUTE, HOUR)
    world.pass_time(MINUTE)
    for one in (lease, later):
        world.receive("site", "upper", truncated(world, "upper", held(world, "batch", one), 2 * MINUTE))
    world.run_until(21 * MINUTE)
    assert errors(world, "site", "upper") == ["not_preemptible"] * 2
    assert [world.lease("batch", one)["state"] for one in (lease, later)] == ["active", "active"]


def test_what_a_site_notes_of_unused_claims_is_bounded(world: DeployedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker can't fill a site's store with the ends of claims that it makes up; nor a guest with returns of them.
    Another broker's are still taken.
    """
    monkeypatch.setattr(claims, "UNUSED_MAX", 5)
    upper, batch = world.broker("upper"), world.guest("batch")
    parent = source_of(world, "upper")
    key = Keypair(b"x" * 32).public
    before = len(world.site().claims.by_digest)
    for serial in range(20):
        child = delegate(parent, upper.signer, holder=key, units=1, term=Term(MINUTE, HOUR), serial=1000 + serial)
        world.receive("site", "upper", truncated(world, "upper", child, MINUTE))
        mine = delegate(
            parent, upper.signer, holder=batch.signer.public, units=1, term=Term(MINUTE, HOUR), serial=2000 + serial
        )  # fmt: skip
        note = state(batch.signer, RELINQUISHMENT, mine.leaf.digest, MINUTE, "x").encode()
        world.receive("site", "batch", Relinquish("x-1", serial + 1, mine.encode(), note))
    assert len(world.site().claims.by_digest) - before <= 5
    lower, web = world.broker("lower"), world.guest("web")
    other = delegate(
        source_of(world, "lower"), lower.signer, holder=web.signer.public, units=1, term=Term(MINUTE, HOUR), serial=999
    )  # fmt: skip
    note = state(web.signer, RELINQUISHMENT, other.leaf.digest, MINUTE, "x").encode()
    world.receive("site", "web", Relinquish("x-1", 1, other.encode(), note))
    assert other.leaf.digest in world.site().claims.by_digest


def test_an_early_end_outlives_a_flood_of_others(world: DeployedWorld) -> None:
    """A site that has accepted a truncation counts it, whatever came since: who sent it is not found guilty of what
    others do with the claim that it ended.
    """
    site, upper, lower = world.site(), world.broker("upper"), world.broker("lower")
    site.claims.tree = ClaimTree(early_max=1)
    mine = source_of(world, "lower")
    world.receive("site", "upper", truncated(world, "upper", mine, 2 * MINUTE))
    key = Keypair(b"x" * 32).public
    for serial in range(3):
        child = delegate(
            source_of(world, "upper"), upper.signer, holder=key, units=1, term=Term(MINUTE, HOUR), serial=50 + serial
        )  # fmt: skip
        world.receive("site", "upper", truncated(world, "upper", child, MINUTE))
    ticket = delegate(
        mine, lower.signer, holder=world.guest("web").signer.public, units=4, term=Term(MINUTE, HOUR), serial=77
    )  # fmt: skip
    tag = world.guest("web").keyring.tag
    world.receive("site", "web", Redeem(f"{tag}-50", 1, "new", "s", ticket.encode(), {}, {}, (), b""))
    standing = site.claims.tree.standing(mine.leaf.digest)
    assert standing is not None and standing.until == 2 * MINUTE


# -- filling memory and stores ---------------------------------------------------------------------------------------


def test_updates_that_are_never_acknowledged_are_bounded(world: DeployedWorld) -> None:
    """A guest that asks and asks, and acknowledges nothing, is told to do that first; it may still close."""
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    record, site = world.guest("batch").leases[lease], world.site()
    world.lost.add(("batch", "site", "Ack"))
    for number in range(100, 100 + 3 * served.UNACKED_MAX):
        message = Redeem(lease, number, "extend", record.slice, b"", record.tickets.resource, {}, (), b"")
        world.receive("site", "batch", message)
    assert len(site.leases[lease].unacked) <= served.UNACKED_MAX + 1
    world.pass_time(SECOND)
    assert "busy" in errors(world, "site", "batch")
    world.receive("site", "batch", CloseLease(lease, 10_000, b""))
    world.pass_time(MINUTE)
    assert site.leases[lease].state == "closed"


def test_coming_back_again_and_again_has_little_sent_again(world: DeployedWorld) -> None:
    """A guest that acknowledges nothing is sent few updates each time that it connects; one that does, all of them."""
    upper, tag = world.broker("upper"), world.guest("batch").keyring.tag
    world.lost |= {("upper", "batch", "TicketUpdate")}
    for number in range(60):
        term = Term(HOUR + number * MINUTE, HOUR + (number + 1) * MINUTE)
        ask = RequestTicket(f"{tag}-{1000 + number}", 1, "new", "s", "vm", 1, term, "", {}, b"")
        world.receive("upper", "batch", ask)
    world.pass_time(SECOND)
    owed = len(upper.kernel.unacknowledged["batch"])
    assert owed > 2 * RESENT_AT_ONCE
    for _ in range(20):
        world.sent.clear()
        world.feed("upper", [Connected("batch")])
        assert len(world.letters(TicketUpdate, "upper", "batch")) == RESENT_AT_ONCE
    heard = 0
    while len(letters := world.letters(TicketUpdate, "upper", "batch")) > heard:
        heard = len(letters)
        world.receive("upper", "batch", *map(acknowledge, letters))
    assert heard == len({one.lease for one in letters}) == owed
    assert not upper.kernel.unacknowledged["batch"]


def test_the_same_at_a_broker(world: DeployedWorld) -> None:
    """Extends that are refused, and never acknowledged, fill nothing."""
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    broker = world.broker("upper")
    record = broker.leases[lease]
    record.unacked = [record.unacked[0] if record.unacked else _update(lease, n) for n in range(served.UNACKED_MAX)]
    last = record.claims[-1].digest
    ask = RequestTicket(lease, 9, "extend", "s", "vm", 1, Term(HOUR, 2 * HOUR), "", {}, last)
    world.receive("upper", "batch", ask)
    world.pass_time(SECOND)
    assert "busy" in errors(world, "upper", "batch")


def _update(lease: str, number: int) -> Update:
    return Update(number, TicketUpdate(lease, number, 0, "refused", b"", "", {}, b"", None, -1))


def test_closes_of_leases_that_never_were_leave_no_history(world: DeployedWorld) -> None:
    """What is forgotten of them is forgotten in the store as well, or a guest could fill it."""
    tag = world.guest("web").keyring.tag
    for number in range(50):
        world.receive("site", "web", CloseLease(f"{tag}-{1000 + number}", 1, b""))
    world.pass_time(3 * HOUR)
    assert not world.site().leases
    assert len(world.nodes["site"].store.archived("leases")) == 0


def test_reports_to_one_who_does_not_listen_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site owes a broker that accepts nothing only so many reports."""
    monkeypatch.setattr(claims, "REPORTS_MAX", 5)
    text = CHAIN.replace('length = "1d"', 'length = "1d"\ndegree = 1.5')
    world = DeployedWorld(text, tmp_path)
    world.lost.add(("upper", "site", "Accepted"))
    upper, batch, site = world.broker("upper"), world.guest("batch"), world.site()
    parent = source_of(world, "upper")
    for serial in range(20):
        ticket = delegate(
            parent, upper.signer, holder=batch.signer.public, units=7, term=Term(MINUTE, HOUR), serial=500 + serial
        )  # fmt: skip
        message = Redeem(f"{batch.keyring.tag}-{100 + serial}", 1, "new", "s", ticket.encode(), {}, {}, (), b"")
        world.receive("site", "batch", message)
    assert 0 < len(list(site.notices)) <= 5


def test_tickets_for_leases_that_never_were_are_bounded(world: DeployedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that sends tickets without end can't fill its guest's store with what it is to give back."""
    monkeypatch.setattr(guest_returns, "RETURNS_MAX", 5)
    world.lost.add(("batch", "site", "Relinquish"))
    upper, batch = world.broker("upper"), world.guest("batch")
    parent = source_of(world, "upper")
    for serial in range(20):
        ticket = delegate(
            parent, upper.signer, holder=batch.signer.public, units=1, term=Term(MINUTE, HOUR), serial=500 + serial
        )  # fmt: skip
        update = TicketUpdate(
            f"{batch.keyring.tag}-{900 + serial}", 1, 1, "granted", ticket.encode(), "site", {}, b"", None, -1
        )  # fmt: skip
        world.receive("batch", "upper", update)
    assert len(batch.returns) == 5
    world.pass_time(SECOND)
    assert len(world.letters(Ack, "batch", "upper")) == 20


def test_reports_are_taken_from_sites(world: DeployedWorld) -> None:
    """Another broker can't write reports into a broker's log."""
    world.receive("upper", "lower", ClaimReport("ab" * 32, 1, Reason("overdelegated", detail="you are bad")))
    assert world.query("upper", "status")["reports"] == []


# -- evidence --------------------------------------------------------------------------------------------------------


def test_a_broker_does_not_hide_what_others_do_behind_its_own_guilt(tmp_path: Path) -> None:
    """Keys are made up easily: evidence about them leaves room for that about others."""
    text = CHAIN.replace("units = 6", "units = 20").replace('length = "1d"', 'length = "1d"\nunits = 10') + OTHER
    world = DeployedWorld(text, tmp_path, changes={"actor.site.settings.evidence_max": 5})
    upper, batch, site = world.broker("upper"), world.guest("batch"), world.site()
    parent, term, count = source_of(world, "upper"), Term(MINUTE, HOUR), 0
    for number in range(8):
        puppet = Keypair(bytes([number + 1]) * 32)
        below = delegate(parent, upper.signer, holder=puppet.public, units=1, term=term, serial=500 + number)
        for serial in range(2):
            ticket = delegate(below, puppet, holder=batch.signer.public, units=1, term=term, serial=serial)
            count += 1
            redeem = Redeem(f"{batch.keyring.tag}-{900 + count}", 1, "new", "s", ticket.encode(), {}, {}, (), b"")
            world.receive("site", "batch", redeem)
    assert len(site.incidents.evidence) == 5
    other = world.broker("other")
    for serial in range(2):
        ticket = delegate(
            source_of(world, "other"), other.signer, holder=batch.signer.public, units=6, term=term, serial=700 + serial
        )  # fmt: skip
        redeem = Redeem(f"{batch.keyring.tag}-{990 + serial}", 1, "new", "s", ticket.encode(), {}, {}, (), b"")
        world.receive("site", "batch", redeem)
    for _ in range(2):
        guilty = [incident["guilty"] for incident in world.query("site", "evidence")]
        assert len(guilty) == 5 and other.signer.public.hex() in guilty
        world.restart("site")


OTHER = """
[actor.other]
role = "broker"
[[actor.site.delegation]]
broker = "other"
type = "vm"
units = 10
length = "1d"
"""


def word_on(world: DeployedWorld, evidence: Evidence) -> str:
    """Why the site does not give its word on evidence; empty if it does."""
    return world.command("site", "evidence.word", file=encode_evidence(evidence)).error


def test_a_broker_keeps_what_clears_it(world: DeployedWorld) -> None:
    """A site that gives a receipt, and blames the broker for granting the units anew, is refuted by that receipt."""
    lease = world.request("batch", 2, 10 * MINUTE, HOUR)
    world.pass_time(SECOND)
    first = held(world, "batch", lease)
    world.command("batch", "lease.close", lease=lease)
    world.pass_time(MINUTE)
    again = world.request("batch", 2, 10 * MINUTE, HOUR)
    world.pass_time(SECOND)
    second = held(world, "batch", again)
    parent = source_of(world, "upper").leaf
    lower = source_of(world, "lower").leaf
    framed = Evidence("overdelegation", 11 * MINUTE, (parent, lower, first.leaf, second.leaf))
    scheme = world.site().scheme
    assert "word of the site" in verify_evidence(scheme, framed).missing
    assert word_on(world, framed), "the site does not say that the claims stand"
    row = world.nodes["upper"].store.get("claims", first.leaf.id)
    assert row is not None
    (kept,) = unpack_body(row[-1])
    with pytest.raises(TicketError, match="receipt") as caught:
        site = world.site().signer.public
        verify_evidence(scheme, framed, against=[decode_statement(kept)], site=site)
    assert caught.value.code == "refuted"


def test_the_ticket_of_a_modify_frames_nobody(world: DeployedWorld) -> None:
    """A guest that redeems it for a new lease, beside the old one, is refused: its broker has given nothing twice."""
    lease = world.request("batch", 2, 2 * SECOND, HOUR)
    world.run_until(MINUTE)
    old = held(world, "batch", lease)
    world.lost.add(("batch", "site", "Redeem"))
    world.command("batch", "lease.modify", lease=lease, units=1)
    world.pass_time(SECOND)
    (update,) = [u for u in world.letters(TicketUpdate, "upper", "batch") if u.truncation]
    new = decode_ticket(update.ticket)
    parent, lower = source_of(world, "upper").leaf, source_of(world, "lower").leaf
    assert old.leaf.capacity + new.leaf.capacity + lower.capacity > parent.capacity
    redeem = Redeem(f"{world.guest('batch').keyring.tag}-900", 1, "new", "s", update.ticket, {}, {}, (), b"")
    world.receive("site", "batch", redeem)
    assert errors(world, "site", "batch") == ["replaces"]
    assert world.query("site", "evidence") == []
    with pytest.raises(TicketError) as caught:
        verify_evidence(
            world.site().scheme, Evidence("overdelegation", new.leaf.term.start, (parent, lower, old.leaf, new.leaf))
        )
    assert caught.value.code == "not_exceeding"
    world.lost.clear()
    world.pass_time(10 * MINUTE)
    assert len(world.site().leases[lease].units) == 1


def test_a_delegation_that_was_taken_back_clears_its_issuer(world: DeployedWorld) -> None:
    """The site countersigns a truncation that it has accepted: what was cut anew from the same units is no guilt."""
    lower = source_of(world, "lower").leaf
    world.command("upper", "delegation.reclaim", delegation="upper/vm@lower")
    world.pass_time(MINUTE)
    lease = world.request("batch", 6, 5 * MINUTE, HOUR)
    world.pass_time(SECOND)
    leaf, parent, site = held(world, "batch", lease).leaf, source_of(world, "upper").leaf, world.site()
    framed = Evidence("overdelegation", 10 * MINUTE, (parent, lower, leaf))
    assert "word of the site" in verify_evidence(site.scheme, framed).missing
    assert word_on(world, framed)
    row = world.nodes["upper"].store.get("claims", lower.id)
    assert row is not None and row[3] == "upper/vm@lower"
    (kept,) = unpack_body(row[-1])
    with pytest.raises(TicketError) as caught:
        verify_evidence(site.scheme, framed, against=[decode_statement(kept)], site=site.signer.public)
    assert caught.value.code == "refuted"


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_a_site_that_gave_its_word_does_not_convict_itself(world: DeployedWorld, used: bool) -> None:
    """Receipts that it gives later are dated later, also for what was never used, and after a restart."""
    lease = world.request("batch", 2, 2 * SECOND, HOUR)
    world.run_until(MINUTE)
    claim = held(world, "batch", lease).leaf
    parent, broker = source_of(world, "upper"), world.broker("upper")
    if not used:  # a ticket that the site refuses, as too much, and so never uses
        ticket = delegate(
            parent, broker.signer, holder=claim.holder, units=6, term=Term(2 * SECOND, HOUR), serial=900
        )  # fmt: skip
        redeem = Redeem(f"{world.guest('batch').keyring.tag}-900", 1, "new", "s", ticket.encode(), {}, {}, (), b"")
        world.receive("site", "batch", redeem)
        assert len(world.query("site", "evidence")) == 1
        claim = ticket.leaf
    other = source_of(world, "lower").leaf
    evidence = Evidence("overdelegation", 10 * MINUTE, (parent.leaf, claim, other))
    assert "no ticket that came here has it" in word_on(world, evidence)
    assert word_on(world, attrs.evolve(evidence, claims=(parent.leaf, claim))) == ""
    vouched = world.now
    world.restart("site")
    if used:
        world.command("batch", "lease.close", lease=lease)
        world.pass_time(MINUTE)
        (message,) = {m.receipt for m in world.letters(ReturnTicket, "batch", "upper")}
    else:
        guest = world.guest("batch")
        note = state(guest.signer, RELINQUISHMENT, claim.digest, claim.term.start).encode()
        world.receive("site", "batch", Relinquish("x-1", 5, ticket.encode(), note))
        (message,) = {m.receipt for m in world.letters(Relinquished, "site", "batch")}
    receipt = decode_statement(message)
    assert receipt.subject == claim.digest and vouched < receipt.at <= world.now + 1


# -- endorsements ----------------------------------------------------------------------------------------------------


def test_the_deploy_file_overrules_endorsements(tmp_path: Path) -> None:
    """A broker can't take a name, or name a key, before the deploy file does: nor get the permissions given there."""
    world = DeployedWorld(CHAIN, tmp_path)
    for name, key in (("boss", Keypair(b"o" * 32).public), ("alias", Keypair(b"b" * 32).public)):
        note = endorse(world.broker("upper").signer, key, 1, name=name, role="guest")
        world.receive("site", "upper", Introduce(name, 1, note.encode()))
    assert {"boss", "alias"} <= {row["peer"] for row in world.query("site", "peers")}

    def make(name: str, actor: Actor) -> Actor:
        if name == "site":
            boss = Peer(name="boss", key=Keypair(b"b" * 32).public, role="guest", may=frozenset({ADMINISTER}))
            actor.keyring.peers["boss"] = boss
            actor.peering._deployed["boss"] = boss  # type: ignore[attr-defined]
        return actor

    world._make = make
    for _ in range(2):
        world.restart("site")
        world.pass_time(SECOND)
        assert world.site().peers["boss"].key == Keypair(b"b" * 32).public
        assert "alias" not in world.site().peers


@pytest.mark.parametrize(
    ("victim", "role"),
    [("site", "broker"), ("site", "site"), ("batch", "guest"), ("batch", "broker"), ("lower", "guest")],
)
def test_only_guests_and_sites_are_made_known_to_each_other(world: DeployedWorld, victim: str, role: str) -> None:
    """A broker makes guests known to sites and sites to guests, and nobody else: those would have permissions that the
    broker itself hasn't, such as to endorse in turn.
    """
    made_up = endorse(world.broker("upper").signer, Keypair(b"o" * 32).public, 1, name="new", role=role)
    world.receive(victim, "upper", Introduce("new", 1, made_up.encode()))
    world.pass_time(SECOND)
    assert errors(world, victim, "upper") == ["bad_endorsement"]
    assert "new" not in {row["peer"] for row in world.query(victim, "peers")}


def test_one_broker_does_not_use_up_the_endorsements_of_others(tmp_path: Path) -> None:
    """Each broker may make so many known; the operator hears of more."""
    world = DeployedWorld(CHAIN.replace("[actor.site]\n", "[actor.site]\nsettings.introductions_max = 3\n"), tmp_path)
    for number in range(5):
        for broker in ("upper", "lower"):
            key = Keypair(bytes([number, broker == "upper"]) * 16).public
            note = endorse(world.broker(broker).signer, key, 1, name=f"{broker}-{number}", role="guest")
            world.receive("site", broker, Introduce(f"{broker}-{number}", 1, note.encode()))
    names = {row["peer"] for row in world.query("site", "peers")}
    assert names == {"upper", "lower", "web", "batch"} | {f"{b}-{n}" for b in ("upper", "lower") for n in range(3)}
    told = {"known": 3, "refused": 2, "most": 3}
    assert world.query("site", "status")["introductions"] == [{"broker": b, **told} for b in ("lower", "upper")]
    world.restart("site")
    key = Keypair(b"n" * 32).public
    note = endorse(world.broker("upper").signer, key, 1, name="more", role="guest")
    world.receive("site", "upper", Introduce("more", 1, note.encode()))
    assert "more" not in {row["peer"] for row in world.query("site", "peers")}
