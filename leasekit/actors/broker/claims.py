"""What becomes of the claims that a broker has cut: given back, replaced, ended early, or found wanting by a site.

The rule is the same everywhere: units are granted anew only when the site counts the old claim as ended, by its
receipt, which comes for what is given back, for a modify that was taken, and for a truncation. Until then they stay
booked. Receipts are kept: they show anybody that the units were not given away twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.sources import TRUNCATE, BrokerSources
from leasekit.actors.dispatch import takes
from leasekit.actors.settings import DELEGATE, BrokerSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.statements import TRUNCATION, Statement, decode_statement, state
from leasekit.core.claims.ticket import READY_AT, REPLACES, SAVING, delegate
from leasekit.core.drivers import saves
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.leases.relations import Notice
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import Accepted, ClaimReport, ReturnTicket, Truncated
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.words import counted

REPLACED = "replaced"


def constraints_of(preemptible: bool, ready_at: Instant = -1, saving: Duration = 0, replaces: str = "") -> Properties:
    """What a claim says beside units and term: whether it can be ended early, by when its units are to be up, how long
    before its end they are saved, where the lease is suspended then, and which claim of its lease it replaces.
    """
    said = {"preemptible": "true"} if preemptible else {}
    if replaces:
        said[REPLACES] = replaces
    if saving:
        said[SAVING] = str(saving)
    return said if ready_at < 0 else {**said, READY_AT: str(ready_at)}


class BrokerClaims(BrokerSources):
    """The claims of a broker's leases."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: BrokerSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self._closings = 0
        self.answers = Answers(self.kernel, self.served, self.queue, self.book, self.introductions)

    # -- tickets that come back -------------------------------------------------------------------------------

    @takes(ReturnTicket)
    def _on_return(self, peer: str, message: ReturnTicket) -> None:
        lease = self.leases.get(message.lease)
        if lease is not None:
            self.served.check_holder(lease, peer)
        subject = decode_statement(message.receipt).subject
        claim = next((c for c in lease.claims if c.digest == subject), None) if lease is not None else None
        if lease is not None and claim is not None:
            self._take_back(lease, claim, message.receipt)
        self.kernel.send(peer, Accepted(message.lease, message.number))

    def _take_back(self, lease: BrokerLease, claim: Granted, data: bytes) -> None:
        if self.book.get(claim.source) is None:
            return
        receipt = self._check_receipt(lease, claim, data)
        at = max(receipt.at, claim.term.start)
        if at == claim.term.start and len(lease.claims) > 1:
            if receipt.detail:  # it names the lease that the claim was redeemed for: what came before it is over
                self.book.end_early(claim, at)
                self._settle_cut(lease, lease.claims.index(claim))
                self.set_claims(lease, tuple(c for c in lease.claims if c is not claim))
            else:
                self._undo(lease, claim)
        elif at < claim.term.end:
            if receipt.detail:  # it was used: so what it replaced has ended where it began
                self._settle_cut(lease, lease.claims.index(claim))
            ended = self._ended_at(claim, at)
            self.set_claims(lease, tuple(ended if c is claim else c for c in lease.claims))
        over = all(c.booked_until <= max(self.kernel.now, c.term.start) for c in lease.claims)
        if lease.state == br.TICKETED:
            why = f"{counted(claim.units)} from {receipt.at} on"
            self.kernel.fire(br.MACHINE, lease, "returned" if over else "return", why)
            if over:
                self._over(lease, "given back by its guest")
        self.queue.has_news = True
        self.kernel.touch(lease)

    def _check_receipt(self, lease: BrokerLease, claim: Granted, data: bytes) -> Statement:
        """The site's receipt for a claim of a lease, which is kept. Raises ``TicketError`` if it is none."""
        holder = self.keyring.peers.get(lease.holder)
        key = holder.key.hex() if holder is not None else ""
        about = (lease.id, self.signer_from(claim.source).public.hex(), key, lease.type, claim.units, *claim.term)
        return self.keep_receipt(self.book.ticket(claim.source), claim.digest, about, data)

    def _undo(self, lease: BrokerLease, claim: Granted) -> None:
        """The claim of an extend or modify came back unused: the lease is as it was before it.

        What a modify took from the claim before it is booked again: as long as the site has not confirmed that it ends
        early nobody else has it, else if nobody has it by now.
        """
        self.book.end_early(claim, claim.term.start)
        place = lease.claims.index(claim)
        before = lease.claims[place - 1]
        rest = (*lease.claims[:place], *lease.claims[place + 1 :])
        if place and before.until == claim.term.start and before.until < before.term.end:
            self._free_rest(before)
            whole = before._replace(until=before.term.end, held=False)
            left = whole if self.book.reopen(whole, force=before.held) else before._replace(held=False)
            rest = tuple(left if c is before else c for c in rest)
        self.set_claims(lease, rest)

    def _going_on(self, claims: Sequence[Granted]) -> list[Granted]:
        """The claims without those that are over, but for the last. What a modify left of one that was cut off is known
        by the claim after it: both stay as long as that may be booked.
        """
        kept: list[Granted] = []
        follows = False
        for claim in claims[:-1]:
            if claim.held and claim.term.end <= self.kernel.now:
                self._free_rest(claim)
                claim = claim._replace(held=False)
            if claim.until > self.kernel.now or claim.held or follows:
                kept.append(claim)
            follows = claim.held
        return [*kept, *claims[-1:]]

    @staticmethod
    def _booked_until(lease: BrokerLease) -> Instant:
        """When a lease is over: when its last claim is, and no modify that shortened it can be undone any more."""
        return max(claim.booked_until for claim in lease.claims)

    def _settle_cut(self, lease: BrokerLease, place: int) -> None:
        """Nothing is booked any more for what is left of the claims before ``place``: its site has gone on to that."""
        if any(claim.held for claim in lease.claims[:place]):
            for claim in lease.claims[:place]:
                self._free_rest(claim)
            settled = (claim._replace(held=False) for claim in lease.claims[:place])
            self.set_claims(lease, (*settled, *lease.claims[place:]))

    def _ended_at(self, claim: Granted, at: Instant) -> Granted:
        """The site counts a claim to ``at`` and no longer: what is booked beyond that is free. Its term ends there as
        well, so that no modify that is undone later gives it back more.
        """
        ended = claim._replace(term=Term(claim.term.start, max(at, claim.term.start + 1)))
        if claim.held and at > max(claim.until, self.kernel.now):
            self.book.end_rest(claim, at)
        elif claim.held:
            self._free_rest(claim)
            ended = ended._replace(held=False)
        if at < claim.until:
            self.book.end_early(claim, at)
            ended = ended._replace(until=at)
        return ended

    def _free_rest(self, claim: Granted) -> None:
        self._cut_off.pop(claim.digest.hex(), None)
        self.book.free_rest(claim)
        self.queue.has_news = True

    @takes(ClaimReport, DELEGATE)
    def _on_claim_report(self, peer: str, message: ClaimReport) -> None:
        """A site has taken a modify, so that what it leaves of the old claim is free; or a claim made trouble."""
        if self.keyring.peers[peer].role != "authority":
            raise RemoteError("forbidden", f"{peer} is no site: it reports nothing")
        if message.code == REPLACED:
            self._replaced(peer, message)
        else:
            self.reports.keep(message.code, message.claim, message.reason, peer)
        self.kernel.send(peer, Accepted(message.claim, message.number))

    def _replaced(self, peer: str, message: ClaimReport) -> None:
        lease = self.leases.get(self._cut_off.get(message.claim, ""))
        if lease is None:
            return
        for place, claim in enumerate(lease.claims):
            if claim.digest.hex() == message.claim and self._is_site(peer, claim):
                self._check_receipt(lease, claim, message.receipt)
                self._settle_cut(lease, place + 1)
                self.kernel.touch(lease)

    def _is_site(self, peer: str, claim: Granted) -> bool:
        source = self.book.get(claim.source)
        return source is not None and self.book.ticket(claim.source).root.issuer in self.keyring.keys_of(peer)

    # -- suspension --------------------------------------------------------------------------------------------

    def suspends(self) -> bool:
        """Whether there is anything here that can be suspended: of some type, at some site."""
        return any(saves(source.properties) for type_ in self.book.types() for source in self.book.of_type(type_))

    def place_in_line(self, peer: str, properties: Properties) -> Instant:
        """Since when a new request waits: the rest of a suspended lease of the same holder has its place, once."""
        before = self.leases.get(properties.get("resumes", ""))
        if before is None or before.holder != peer or not before.suspended:
            return self.kernel.now
        before.suspended = False
        self.kernel.touch(before)
        return before.arrived

    # -- preemption --------------------------------------------------------------------------------------------

    def preempt(self, lease_id: str, at: Instant, reason: str, *, suspend: bool = False) -> None:
        """End a preemptible lease at ``at``: the site is told until it accepts, and the guest hears of it now. With
        ``suspend`` its site saves it by then.

        Raises ``CommandError``.
        """
        lease = self.leases.get(lease_id)
        if lease is None or lease.state != br.TICKETED or not lease.claims:
            raise CommandError(f"lease {lease_id!r} holds nothing that could be taken from it")
        last = lease.claims[-1].until
        if not self.kernel.now <= at < last or lease.cut >= 0:
            raise CommandError(f"lease {lease_id} ends at {last}: at is {at}, or it was preempted before")
        # A renewal in hand is a claim of its own: all that go on after ``at`` are ended, or none. So is what a modify
        # cut off, which the site may still go by.
        saving = self._time_to_save(lease, at) if suspend else 0
        going_on = [claim for claim in lease.claims if claim.booked_until > at]
        notices = [self._truncation(lease, claim, at, saving) for claim in going_on]
        if lease.request:
            self.answers.reject(lease, f"the lease is preempted: {reason}")
        lease.cut, lease.suspended = at, suspend
        self.kernel.fire(br.MACHINE, lease, "preempt", f"ends at {at}: {reason}")
        for claim, site, message in notices:
            id_ = f"{TRUNCATE}{lease.id}#{claim.key}"
            self.notices.owe(id_, site, lease.id, message.number, message, claim.term.end)
        self._notice_guest(lease.id, lease.claims[-1], at, reason)

    def _time_to_save(self, lease: BrokerLease, at: Instant) -> Duration:
        """How long before ``at`` a lease that is suspended must be saved. Raises ``CommandError`` if it can't be."""
        source = self.book.get(lease.claims[-1].source)
        if source is None or not saves(source.properties):
            raise CommandError(f"lease {lease.id} can't be suspended: its site saves no {lease.type!r}")
        if not lease.suspend:
            raise CommandError(f"lease {lease.id} can't be suspended: it doesn't say how long that takes (suspend)")
        begun = max(self.kernel.now, lease.claims[0].term.start)
        if at - lease.suspend < begun:
            raise CommandError(
                f"lease {lease.id} can't be suspended by {at}: that takes {lease.suspend} from {begun} on"
            )
        return lease.suspend

    def _truncation(
        self, lease: BrokerLease, claim: Granted, at: Instant, saving: Duration
    ) -> tuple[Granted, str, Truncated]:
        """What a claim's site is told of its early end, and which site that is. Raises ``CommandError``."""
        source = self.book.get(claim.source)
        if not claim.preemptible:
            raise CommandError(f"lease {lease.id} is not preemptible")
        if source is None or source.site not in self.keyring.peers:
            raise CommandError(f"lease {lease.id}: its site can't be told")
        signer, end = self.signer_from(claim.source), max(at, claim.term.start)
        statement = state(signer, TRUNCATION, claim.digest, end, lease.id).encode()
        message = Truncated(lease.id, self.kernel.next("serial"), self._ticket_again(lease, claim), statement, saving)
        return claim, source.site, message

    def _ticket_again(self, lease: BrokerLease, claim: Granted) -> bytes:
        """The ticket that was cut for ``claim``: the same bytes, since signatures are deterministic."""
        ready_at = claim.term.start + claim.prepare if claim.prepare else -1
        said = constraints_of(claim.preemptible, ready_at, claim.saving, claim.replaces)
        peer = self.keyring.peers.get(lease.holder)
        for holder in (peer.key, *(key for key, _ in peer.former)) if peer is not None else ():
            ticket = delegate(
                self.book.ticket(claim.source), self.signer_from(claim.source), holder=holder, units=claim.units,
                term=claim.term, serial=claim.serial, constraints=said,
            )  # fmt: skip
            if ticket.leaf.digest == claim.digest:
                return ticket.encode()
        raise CommandError(f"lease {lease.id}: its ticket can't be made again")

    def _accepted_notice(self, notice: Notice, receipt: bytes) -> None:
        message = notice.content()
        lease = self.leases.get(notice.subject)
        if not isinstance(message, Truncated) or lease is None:
            super()._accepted_notice(notice, receipt)
            return
        subject = decode_statement(message.truncation).subject
        claim = next((one for one in lease.claims if one.digest == subject), None)
        if claim is None or self.book.get(claim.source) is None:
            return
        at = self._check_receipt(lease, claim, receipt).at
        if at < claim.term.end:
            ended = self._ended_at(claim, at)
            self.set_claims(lease, tuple(ended if c is claim else c for c in lease.claims))
            self.queue.has_news = True
            self.kernel.touch(lease)

    def _over(self, lease: BrokerLease, reason: str) -> None:
        self._settle_cut(lease, len(lease.claims))
        lease.ended, lease.reason, lease.request = self.kernel.now, reason, 0
        self.queue.remove(lease)
        self.issued.give_waiting()
        self._closings += 1
        if self._closings % 256 == 0:
            self.book.forget_before(self.kernel.now)
