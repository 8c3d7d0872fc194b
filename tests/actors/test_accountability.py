"""Who gives away more than it has is found out, whoever it is; who was allowed to is not blamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace

from leasekit.actors.base import Actor
from leasekit.actors.broker.book import Book
from leasekit.actors.broker.broker import Broker
from leasekit.actors.served import REPORTS_A_MINUTE, REPORTS_KEPT
from leasekit.core.claims.claim import Ticket
from leasekit.core.claims.evidence import decode_evidence, verify_evidence
from leasekit.core.claims.signed import CONTRACT, RELINQUISHMENT, fingerprint, state
from leasekit.core.leases.records import Delegation
from leasekit.core.protocol.messages import ClaimReport, Redeem, Relinquish
from leasekit.core.reasons import Reason, read, words
from leasekit.core.time import HOUR, MINUTE, SECOND
from leasekit.emulation.world import Outcome


class GreedyBook(Book):
    """The book of a broker that thinks it has twice what it holds."""

    def add(self, source: Delegation, ticket: Ticket) -> None:
        super().add(source, ticket)
        self.table(source.id).add_capacity(source.term, source.units)


def greedy(who: str) -> Callable[[str, Actor], Actor]:
    """Make ``who`` a greedy broker."""

    def make(name: str, actor: Actor) -> Actor:
        if name == who:
            assert isinstance(actor, Broker)
            actor.book.__class__ = GreedyBook
        return actor

    return make


def verdict_of(world: DeployedWorld, index: int = 0) -> bytes:
    """Whom the evidence that the site keeps proves guilty, to anyone who only has the file."""
    incident = world.query("site", "evidence")[index]
    text = world.query("site", "evidence", id=incident["id"])[0]["file"]
    site = world.site()
    verdict = verify_evidence(site.scheme, decode_evidence(text), site=site.signer.public)
    assert verdict.guilty.hex() == incident["guilty"]
    assert verdict.missing == "", "the site has given its word"
    return verdict.guilty


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_a_broker_deep_in_the_chain(tmp_path: Path, signed: bool) -> None:
    """The lower broker gives its four units to two guests: the second is refused, and evidence names that broker."""
    changes = {} if signed else {"deployment.signatures": False}
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("lower"), changes=changes)
    first = world.request("web", 4, 10 * SECOND, HOUR)
    second = world.request("web", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", first)["state"] == "active"
    assert world.lease("web", second)["state"] == "failed"
    assert "given already: 0 of 4 units are left at 1970-01-01 00:00:10" in world.lease("web", second)["reason"]
    key = world.broker("lower").signer.public
    assert "Z, could give away 4" in world.query("site", "evidence")[0]["words"], "instants are dates"
    if signed:
        assert verdict_of(world) == key
    assert [incident["guilty"] for incident in world.query("site", "evidence")] == [key.hex()]
    reports = world.letters(ClaimReport, "site")
    assert reports and {report.reason.code for report in reports} == {"overdelegated"}
    (to_guilty,), (to_upper,) = (
        {report.number for report in world.letters(ClaimReport, "site", name)} for name in ("lower", "upper")
    )
    assert to_guilty < to_upper, "in this order in every process"
    told = f"lower ({fingerprint(key)}) held 4 units of 'vm' from upper ("
    for name, who in (("upper", "site"), ("lower", "site"), ("site", "site")):
        (report,) = world.query(name, "status")["reports"]
        assert report["from"] == who and report["words"].startswith(told), "the guilty, and who trusted it, hear of it"


def test_reports_are_bounded_and_outlive_a_restart(tmp_path: Path) -> None:
    """The last reports are kept, each once, and are there after a restart, in their order; the log has all."""
    world = DeployedWorld(CHAIN, tmp_path)
    node = world.nodes["upper"]
    for number in range(REPORTS_KEPT + 3):
        for _ in range(2):
            report = ClaimReport(f"{number:064x}", number + 1, Reason("overdelegated", detail=f"number {number}"))
            world.receive("upper", "site", report)
            world.pass_time(SECOND)
    logged = [words(read(row.why)) for row in node.store.log() if row.event == "report"]
    assert logged == [f"site reports: number {number}" for number in range(REPORTS_KEPT + 3)]
    shown = world.query("upper", "status")["reports"]
    assert [one["words"] for one in shown] == [f"number {n}" for n in range(REPORTS_KEPT - 2, REPORTS_KEPT + 3)]
    world.restart("upper")
    assert world.query("upper", "status")["reports"] == shown
    assert len(node.store.load()["reports"]) == REPORTS_KEPT


def test_one_peer_makes_so_many_reports(tmp_path: Path) -> None:
    """One that reports without end fills neither the log nor the store, and others' reports stay."""
    text = f'{CHAIN}\n[actor.other]\nrole = "authority"\n'
    world = DeployedWorld(text, tmp_path)
    node = world.nodes["upper"]

    def report(site: str, number: int) -> None:
        reason = Reason("overdelegated", detail=f"number {number}")
        world.receive("upper", site, ClaimReport(f"{number:064x}", number + 1, reason))

    report("site", 0)
    for number in range(1, 10 * REPORTS_A_MINUTE):
        report("other", number)
    world.pass_time(SECOND)
    logged = [words(read(row.why)) for row in node.store.log() if row.event == "report"]
    assert len(logged) == 1 + REPORTS_A_MINUTE
    assert "site" in {row.peer for row in world.broker("upper").reports._reports.values()}
    world.pass_time(MINUTE)
    report("other", 0)
    world.pass_time(SECOND)
    said = [words(read(row.why)) for row in node.store.log() if row.event == "complaint"]
    assert f"other made {9 * REPORTS_A_MINUTE - 1} more reports in a minute than are kept" in said


def test_touching_terms_and_returns_are_no_guilt(tmp_path: Path) -> None:
    """The same units one after the other, or given back and granted again, are fine."""
    world = DeployedWorld(CHAIN, tmp_path)
    first = world.request("web", 4, 10 * SECOND, 20 * MINUTE)
    second = world.request("web", 4, 20 * MINUTE, HOUR)
    world.run_until(21 * MINUTE)
    assert [world.lease("web", one)["state"] for one in (first, second)] == ["closed", "active"]
    world.command("web", "lease.close", lease=second)
    world.pass_time(MINUTE)
    third = world.request("web", 4, world.now + MINUTE, HOUR)
    world.pass_time(3 * MINUTE)
    assert world.lease("web", third)["state"] == "active"
    for units in (3, 2, 4):
        world.command("web", "lease.modify", lease=third, units=units)
        world.pass_time(MINUTE)
        assert world.guest("web").leases[third].approved.units == units  # type: ignore[union-attr]
    assert world.query("site", "evidence") == []


def test_evidence_outlives_a_restart(tmp_path: Path) -> None:
    """After a restart the site still has the evidence, still counts what it honoured, and still refuses the surplus."""
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("lower"))
    world.request("web", 4, 10 * SECOND, HOUR)
    world.request("web", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    world.restart("site")
    world.pass_time(SECOND)
    assert verdict_of(world) == world.broker("lower").signer.public
    third = world.request("web", 1, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", third)["state"] == "failed"
    assert len(world.query("site", "evidence")) == 1


def test_honour_in_order_of_arrival(tmp_path: Path) -> None:
    """With that policy tickets are honoured as long as what the issuer held isn't used up; evidence is kept, too."""
    changes = {"actor.site.settings.surplus": "honour"}
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("upper"), changes=changes)
    leases = [world.request("web", 2, 10 * SECOND, HOUR), world.request("batch", 6, 10 * SECOND, HOUR)]
    world.pass_time(MINUTE)
    assert [world.lease(guest, one)["state"] for guest, one in zip(("web", "batch"), leases, strict=True)] == [
        "active", "failed"
    ]  # fmt: skip
    more = world.request("batch", 4, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", more)["state"] == "active", "only two of the four that the lower broker has are used"
    assert verdict_of(world) == world.broker("upper").signer.public


def test_surplus_is_refused_by_delegation(tmp_path: Path) -> None:
    """By default what a broker gave first is set aside for its holder, used or not."""
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("upper"))
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    more = world.request("batch", 4, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert (world.lease("web", lease)["state"], world.lease("batch", more)["state"]) == ("active", "failed")
    assert verdict_of(world) == world.broker("upper").signer.public


def test_later_tickets_of_the_guilty_are_refused(tmp_path: Path) -> None:
    """If the site wants it, nothing more that a guilty issuer signed is honoured; also after a restart."""
    changes = {"actor.site.settings.refuse_guilty": True}
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("lower"), changes=changes)
    first = world.request("web", 4, 10 * SECOND, 10 * MINUTE)
    world.request("web", 3, 10 * SECOND, 10 * MINUTE)
    world.pass_time(MINUTE)
    world.restart("site")
    later = world.request("web", 1, 20 * MINUTE, HOUR)
    innocent = world.request("batch", 2, 20 * MINUTE, HOUR)
    world.run_until(11 * MINUTE)
    assert world.lease("web", first)["state"] == "closed"
    world.run_until(21 * MINUTE)
    assert world.lease("web", later)["state"] == "failed"
    assert "keeps evidence" in world.lease("web", later)["reason"]
    assert world.lease("batch", innocent)["state"] == "active"


def test_oversubscribed_on_purpose(tmp_path: Path) -> None:
    """A degree of 1.5 lets the broker promise 9 of 6 units; the redeem beyond what is free is refused without blame."""
    text = CHAIN.replace('length = "1d"', 'length = "1d"\ndegree = 1.5')
    world = DeployedWorld(text, tmp_path)
    leases = [
        world.request(guest, units, 10 * SECOND, HOUR) for guest, units in (("web", 4), ("batch", 2), ("batch", 3))
    ]
    world.pass_time(MINUTE)
    states = [world.lease(guest, one)["state"] for guest, one in zip(("web", "batch", "batch"), leases, strict=True)]
    assert states == ["active", "active", "failed"]
    assert "oversubscribed, try later" in world.lease("batch", leases[2])["reason"]
    assert world.query("site", "evidence") == []
    for name in ("upper", "site"):
        (report,) = world.query(name, "status")["reports"]
        assert report["code"] == "oversubscribed"
        assert f"batch ({fingerprint(world.guest('batch').signer.public)}) was refused 3 units" in report["words"]
    world.command("web", "lease.close", lease=leases[0])
    world.pass_time(MINUTE)
    again = world.request("batch", 3, world.now + 5 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", again)["state"] == "active", world.lease("batch", again)["reason"]


def test_degrees_do_not_multiply(tmp_path: Path) -> None:
    """A broker that lets its holder promise half as much again sets so much aside of its own."""
    text = CHAIN.replace('units = 4\nlength = "12h"', 'units = 4\nlength = "12h"\ndegree = 1.5')
    world = DeployedWorld(text, tmp_path)
    rest = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", rest)["state"] == "failed", "6 units may be promised by the lower broker: all there are"
    leases = [world.request("web", 3, world.now + 10 * SECOND, HOUR) for _ in range(2)]
    world.pass_time(MINUTE)
    assert [world.lease("web", one)["state"] for one in leases] == ["active", "active"]
    assert world.query("site", "evidence") == []


def test_a_returned_ticket_that_is_redeemed(tmp_path: Path) -> None:
    """A ticket that went back is refused; the issuer's receipt for it is the site's."""
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("web", 2, 20 * MINUTE, HOUR)
    world.pass_time(SECOND)
    record = world.guest("web").leases[lease]
    assert record.approved is not None
    ticket, resource = record.approved.ticket, record.tickets.resource
    world.command("web", "lease.close", lease=lease)
    world.pass_time(MINUTE)
    tag = lease.rpartition("-")[0]
    world.receive("site", "web", Redeem(f"{tag}-99", 1, "new", "slice", ticket, resource, {}, (), b""))
    world.pass_time(SECOND)
    assert f"{tag}-99" not in world.site().leases


def test_the_issuers_word_against_the_holder(tmp_path: Path) -> None:
    """A guest gives its ticket back to the broker, and redeems it all the same: its own relinquishment, which the
    broker shows, ends the lease, and with the site's contract it is evidence.
    """
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    record = world.guest("batch").leases[lease]
    assert record.approved is not None
    note = state(world.guest("batch").signer, RELINQUISHMENT, record.approved.digest, 2 * SECOND, lease).encode()
    world.receive("site", "web", Relinquish(lease, 7, record.approved.ticket, note))
    assert world.lease("site", lease)["state"] == "active", "only the holder and the issuer have a say"
    world.receive("site", "upper", Relinquish(lease, 7, record.approved.ticket, note))
    world.pass_time(MINUTE)
    assert world.lease("site", lease)["state"] == "closed"
    assert verdict_of(world) == world.guest("batch").signer.public
    assert world.query("site", "evidence")[0]["kind"] == "returned"
    assert world.query("site", "evidence", id="nothing") == []
    assert CONTRACT in world.query("site", "evidence", id=world.query("site", "evidence")[0]["id"])[0]["file"]


def test_a_close_on_its_way_is_no_guilt(tmp_path: Path) -> None:
    """A lease that stood before its holder gave the claim back ends by the issuer's word, without blame."""
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("batch", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    record = world.guest("batch").leases[lease]
    assert record.approved is not None
    note = state(world.guest("batch").signer, RELINQUISHMENT, record.approved.digest, world.now, lease).encode()
    world.pass_time(MINUTE)
    world.receive("site", "upper", Relinquish(lease, 7, record.approved.ticket, note))
    world.pass_time(MINUTE)
    assert world.lease("site", lease)["state"] == "closed"
    assert world.query("site", "evidence") == []


def test_guilt_counts_from_when_the_ticket_was_taken(tmp_path: Path) -> None:
    """A guest that redeems, and gives the claim back while its units are still being set up, has done nothing wrong:
    the site's contract is of when it took the ticket, not of when the units were up.
    """
    world = DeployedWorld(CHAIN, tmp_path)
    world.nodes["site"].model = lambda action: Outcome(MINUTE, True, {}, "")
    lease = world.request("batch", 2, 2 * SECOND, HOUR)
    world.pass_time(10 * SECOND)
    site = world.site()
    assert site.leases[lease].state == "ticketed", "its units are not up yet"
    record = world.guest("batch").leases[lease]
    assert record.approved is not None
    note = state(world.guest("batch").signer, RELINQUISHMENT, record.approved.digest, world.now, lease).encode()
    world.pass_time(2 * MINUTE)
    assert site.leases[lease].state == "active"
    world.restart("site")
    world.receive("site", "upper", Relinquish(lease, 7, record.approved.ticket, note))
    world.pass_time(3 * MINUTE)
    assert world.lease("site", lease)["state"] == "closed"
    assert world.query("site", "evidence") == []


def test_a_second_redeem_by_the_same_holder(tmp_path: Path) -> None:
    """Under another number it is a repeat, and gets the same answer; under another lease it is refused."""
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    record = world.guest("web").leases[lease]
    assert record.approved is not None
    again = Redeem(lease, 50, "new", record.slice, record.approved.ticket, record.tickets.resource, {}, (), b"")
    before = world.site().leases[lease].update
    world.receive("site", "web", again)
    world.receive("site", "web", again)
    assert world.site().leases[lease].update == before + 1
    assert len(world.site().leases) == 1
    world.receive("site", "web", replace(again, lease=f"{lease}9"))
    assert len(world.site().leases) == 1
    world.receive("site", "batch", again)
    assert world.site().leases[lease].holder == "web"


def test_evidence_is_bounded(tmp_path: Path) -> None:
    """More evidence than the settings allow is not kept, and the operator is told."""
    changes = {"actor.site.settings.evidence_max": 1}
    world = DeployedWorld(CHAIN, tmp_path, make=greedy("lower"), changes=changes)
    world.request("web", 4, 10 * SECOND, HOUR)
    world.request("web", 3, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    site = world.site()
    site.incidents.keep("other", b"k" * 32, decode_evidence(next(iter(site.incidents.evidence.values())).body), "words")
    assert len(site.incidents.evidence) == 1
    assert "not kept" in site.errors[-1]
    evidence = decode_evidence(next(iter(site.incidents.evidence.values())).body)
    for number in range(50):
        site.incidents.keep(f"made up {number}", number.to_bytes(32, "big"), evidence, "words", bytes([number % 2]))
    assert len(site.incidents._guilty) == len(site.incidents.evidence) == 1, (
        "guilty is who there is evidence against, and no more"
    )
