"""What ends claims before their time: closes, tickets that are given back, and the word of those who issued them."""

from __future__ import annotations

from collections import Counter

import attrs

from leasekit.actors.issued import taken_back
from leasekit.actors.kernel import Kernel, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.served import FRESH, OLD, Served
from leasekit.actors.settings import DELEGATE
from leasekit.actors.site.claims import HEARD, REDEEMED, VOID, Accusations, SiteClaims
from leasekit.actors.site.leases import LeaseEnds, LeaseUpdates, SiteLeases
from leasekit.actors.site.redeems import GIVEN_BACK
from leasekit.core.claims.claim import Claim, Ticket, decode_claim, decode_ticket
from leasekit.core.claims.keys import fingerprint
from leasekit.core.claims.statements import (
    RECEIPT,
    RELINQUISHMENT,
    TRUNCATION,
    Statement,
    check_statement,
    decode_statement,
    state,
)
from leasekit.core.errors import TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteClaim, SiteLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.protocol.messages import Accepted, CloseLease, Relinquish, Relinquished, Truncated
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Term

STRAYS_MAX = 1000
"""How many closes of leases that were never redeemed are remembered at once."""


@attrs.define(eq=False, slots=False)
class Closes:
    """The closes that guests send."""

    _kernel: Kernel
    _served: Served[SiteLease]
    _updates: LeaseUpdates
    _ends: LeaseEnds
    _claims: SiteClaims
    strays: list[str] = attrs.field(factory=list, init=False)
    """Leases of which only closes were heard."""

    @takes(CloseLease)
    def _on_close(self, peer: str, message: CloseLease) -> None:
        lease = self._served.leases.get(message.lease)
        fresh = self._served.freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        if lease is None:
            self._close_unknown(peer, message)
            return
        if fresh != FRESH:
            self._served.repeat(lease, message.number)
            return
        receipt = self._claims.given_back(peer, message, lease)
        lease.number = message.number
        self._kernel.touch(lease)
        if lease.ended >= 0:
            self._served.repeat(lease, message.number)
            return
        if receipt:
            lease.receipt = receipt
        lease.settles, lease.saves = message.number, lease.saves and message.save
        self._ends.close(lease, "close", self._why_closed(lease))
        self._served.accept(lease, message.number)

    @staticmethod
    def _why_closed(lease: SiteLease) -> Reason | None:
        if lease.saves:
            return lease.notice
        if lease.noticed < 0:
            return Reason(Code.CLOSED_BY_GUEST)
        return Reason(Code.CLOSED_BEFORE_NOTICE, at=lease.noticed).because(lease.notice)

    def _close_unknown(self, peer: str, message: CloseLease) -> None:
        """A close that overtook its redeem: remembered, so that the redeem finds the lease closed when it comes.

        Only so many, or a guest could fill the memory with them. Or one that is long forgotten: its claim is not.
        """
        self._served.check_id(message.lease, peer)
        receipt = self._claims.given_back(peer, message, None)
        now = self._kernel.now
        lease = SiteLease(
            message.lease, peer, "", "", au.CLOSED, NONE, b"", Term(now, now + 1), 0, message.number,
            reason=Reason(Code.CLOSED_UNREDEEMED), receipt=receipt, key=self._served.key_of(peer),
        )  # fmt: skip
        lease.ended = self._kernel.now
        self._served.leases[lease.id] = lease
        self._updates.publish(lease, "closed", message.number)
        self.strays = [stray for stray in self.strays if stray in self._served.leases]
        if len(self.strays) >= STRAYS_MAX:  # who has most of them has one less
            ((most, _),) = Counter(self._served.leases[stray].holder for stray in self.strays).most_common(1)
            oldest = next(stray for stray in self.strays if self._served.leases[stray].holder == most)
            self.strays.remove(oldest)
            self._served.drop(self._served.leases[oldest])
        self.strays.append(lease.id)

    def restore(self) -> None:
        """After leases."""
        self.strays = [lease.id for lease in self._served.leases.values() if not lease.type]


@attrs.define(eq=False)
class ClaimVoids:
    """Claims that become void."""

    _kernel: Kernel
    _claims: SiteClaims
    _leases: SiteLeases
    _ends: LeaseEnds

    def void(self, leaf: Claim, known: SiteClaim | None, number: int) -> tuple[SiteClaim, Reason | None]:
        """Void a claim. Returns what is known of it then, and why it can't be if it is in use."""
        if known is None or known.state == HEARD:  # nothing was ever used of it: from its start on it was never given
            record = self._claims.remember_unused(leaf, VOID, leaf.term.start)
            record.at = self._claims.end_claim(leaf.digest, leaf.term.start)
            return record, None
        at = max(self._kernel.now, leaf.term.start)
        lease = self._leases.by_id.get(known.lease)
        if lease is not None and lease.ended < 0:
            later = lease.extension
            if later is not None and later.claim == leaf.digest:
                self._leases.withdraw_next(lease, GIVEN_BACK)
                self._claims.disuse(leaf.digest)
            elif lease.claim == leaf.digest and lease.pending != au.CLOSING and lease.number < number:
                # Its guest was told no, and gives the claim back; then a late repeat of its redeem made the lease.
                self._ends.close(lease, "close", Reason(Code.GIVEN_BACK))
            elif leaf.digest in (lease.claim, *(one.claim for one in lease.accepted)) and lease.pending != au.CLOSING:
                return known, Reason(Code.CLAIM_IN_USE, lease.id)
        known.state, known.at = VOID, self._claims.end_claim(leaf.digest, at)
        return known, None


@attrs.define(eq=False)
class DoubleUse:
    """Claims that their holders gave back, and redeemed all the same."""

    _leases: SiteLeases
    _accusations: Accusations
    _updates: LeaseUpdates
    _ends: LeaseEnds

    def settle(self, ticket: Ticket, known: SiteClaim, note: Statement) -> None:
        """A claim that its holder had given back was redeemed: keep evidence, and end the lease."""
        lease = self._leases.by_id.get(known.lease)
        if lease is None or lease.ended >= 0 or lease.claim != ticket.leaf.digest or lease.pending == au.CLOSING:
            return
        self._accusations.returned(ticket, known, note, self._updates.contract(lease, known.at or None))
        self._ends.close(lease, "close", Reason(Code.GIVEN_BACK_BEFORE))


@attrs.define(eq=False)
class Relinquishments:
    """The tickets that guests give back unused."""

    _kernel: Kernel
    _keyring: Keyring
    _claims: SiteClaims
    _voids: ClaimVoids
    _double_use: DoubleUse

    @takes(Relinquish)
    def _on_relinquish(self, peer: str, message: Relinquish) -> None:
        """Works the same however often it comes: the claim is void from the first time on.

        The holder's word may also come from the issuer to whom the holder gave it: if the claim was redeemed all the
        same, that settles it against the holder.
        """
        ticket = decode_ticket(message.ticket)
        digest = ticket.leaf.digest
        known = self._claims.get(digest)
        if known is None or known.state != VOID:
            keys = self._keyring.keys_of(peer)
            by_issuer = ticket.leaf.issuer in keys
            holder = ticket.leaf.holder if by_issuer or ticket.leaf.holder in keys else keys[0]
            leaf = self._keyring.verify(ticket, root=self._keyring.own_among(ticket.root.issuer), holder=holder)
            said_by = decode_statement(message.relinquishment).signer
            signer = said_by if said_by in keys and leaf.holder in keys else leaf.holder
            note = check_statement(
                self._keyring.scheme, message.relinquishment, RELINQUISHMENT, signer=signer, subject=digest
            )
            if by_issuer and known is not None:
                self._double_use.settle(ticket, known, note)
            known, reason = self._voids.void(leaf, known, message.number)
            if reason:
                self._kernel.send(peer, Relinquished(message.lease, message.number, b"", reason))
                return
        receipt = state(self._keyring.signer_of(ticket.root.issuer), RECEIPT, digest, known.at, known.lease).encode()
        self._kernel.send(peer, Relinquished(message.lease, message.number, receipt, None))


@attrs.define(eq=False)
class EarlyEnds:
    """Claims that their issuers end early, and delegations that are taken back."""

    _kernel: Kernel
    _keyring: Keyring
    _claims: SiteClaims
    _leases: SiteLeases
    _ends: LeaseEnds

    def taken_back(self, record: Delegation) -> None:
        """A delegation is taken back: leases that came from it and have not begun by then are off; the others are over
        by the deadline.
        """
        why = taken_back(self._keyring.name, record.peer)
        for lease in list(self._leases.by_id.values()):
            if lease.ended >= 0:
                continue
            if lease.origin == record.digest and lease.term.start >= record.reclaimed:
                self._leases.notice(lease, lease.term.start, why)
            elif record.deadline >= 0 and (at := self._claims.end_under(lease, record.digest, record.deadline)) >= 0:
                self._leases.notice(lease, at, why)

    @takes(Truncated, DELEGATE)
    def _on_truncated(self, peer: str, message: Truncated) -> None:
        """An issuer ends a claim of its own early: a lease that it was redeemed for ends with it."""
        statement = decode_statement(message.truncation)
        key = self._keyring.key_among(peer, statement.signer)
        known = self._claims.get(statement.subject)
        if message.ticket:
            ticket = decode_ticket(message.ticket)
            root = self._keyring.own_among(ticket.root.issuer)
            self._keyring.verify(ticket, root=root, holder=ticket.leaf.holder, issuer=key)
            claim = ticket.leaf
        elif known is not None and known.issuer == key.hex():
            claim = decode_claim(known.body, known.signature)
        else:
            raise TicketError(
                Code.UNKNOWN_CLAIM, f"{self._keyring.name} has seen no claim of {peer} that this is about"
            )
        check_statement(self._keyring.scheme, message.truncation, TRUNCATION, signer=key, subject=claim.digest)
        self._check_firm(claim, known)
        if known is None:
            self._claims.remember_unused(claim, HEARD)
        ended = self._claims.end_claim(claim.digest, statement.at)
        taker = self._keyring.name_of(claim.holder) or fingerprint(claim.holder)
        for lease in self._claims.leases_of(claim.digest):
            own = claim.digest in (lease.claim, *(one.claim for one in lease.accepted))
            at = self._claims.end_under(lease, claim.digest, max(ended, self._kernel.now))
            if at >= 0 and message.saving > 0:
                self._ends.suspend(lease, at, message.saving, peer)
            elif at >= 0:
                self._leases.notice(lease, at, Reason(Code.ENDED_BY, peer) if own else taken_back(peer, taker))
        receipt = self._claims.receipt(claim.digest, ended, message.lease)
        self._kernel.send(peer, Accepted(message.lease, message.number, receipt))

    def _check_firm(self, claim: Claim, known: SiteClaim | None) -> None:
        """A guest's claim ends early by its issuer's word only if it says so itself; a delegation may be taken back.

        Raises ``TicketError``.
        """
        if claim.constraints.get("preemptible") == "true":
            return
        guests = (peer for peer in self._keyring.peers.values() if peer.role == "guest")
        of_guest = any(claim.holder == peer.key or claim.holder in dict(peer.former) for peer in guests)
        if of_guest or (known is not None and known.state == REDEEMED):
            raise TicketError(
                Code.NOT_PREEMPTIBLE, f"claim {claim.id[:16]} does not say that its issuer may end it early"
            )
