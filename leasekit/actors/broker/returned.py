"""Claims of leases that end early: given back by guests, found replaced by sites, or truncated.

Receipts are kept: they show anybody that the units were not given away twice.
"""

from __future__ import annotations

from leasekit.actors.broker.claims import GrantedClaims
from leasekit.actors.broker.statements import Statements
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.reports import Reports
from leasekit.actors.served import Served
from leasekit.actors.settings import DELEGATE
from leasekit.core.claims.statements import decode_statement
from leasekit.core.errors import RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.leases.relations import Notice
from leasekit.core.protocol.messages import Accepted, ClaimReport, ReturnTicket, Truncated
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.words import counted

REPLACED = "replaced"


class ReturnedTickets:
    """What comes back of what was granted, with the site's receipt."""

    def __init__(
        self, kernel: Kernel, served: Served[BrokerLease], granted: GrantedClaims, statements: Statements
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._granted = granted
        self._statements = statements

    @takes(ReturnTicket)
    def _on_return(self, peer: str, message: ReturnTicket) -> None:
        lease = self._granted.leases.get(message.lease)
        if lease is not None:
            self._served.check_holder(lease, peer)
        subject = decode_statement(message.receipt).subject
        claim = next((c for c in lease.claims if c.digest == subject), None) if lease is not None else None
        if lease is not None and claim is not None:
            self._take_back(lease, claim, message.receipt)
        self._kernel.send(peer, Accepted(message.lease, message.number))

    def _take_back(self, lease: BrokerLease, claim: Granted, data: bytes) -> None:
        if not self._granted.is_held(claim):
            return
        receipt = self._statements.check_receipt(lease, claim, data)
        at = max(receipt.at, claim.term.start)
        if at == claim.term.start and len(lease.claims) > 1:
            if receipt.detail:  # it names the lease that the claim was redeemed for: what came before it is over
                self._granted.leave_out(lease, claim)
            else:
                self._granted.undo(lease, claim)
        elif at < claim.term.end:
            if receipt.detail:  # it was used: so what it replaced has ended where it began
                self._granted.settle_cut(lease, lease.claims.index(claim))
            self._granted.end(lease, claim, at)
        over = all(c.booked_until <= max(self._kernel.now, c.term.start) for c in lease.claims)
        if lease.state == br.TICKETED:
            why = said(f"{counted(claim.units)} from {mark(receipt.at)} on")
            self._kernel.fire(br.MACHINE, lease, "returned" if over else "return", why)
            if over:
                self._granted.over(lease, Reason(Code.GIVEN_BACK))
        self._granted.changed(lease)

    def truncated(self, notice: Notice, receipt: bytes) -> None:
        """A site knows of the early end of a claim, and has given ``receipt``."""
        message, lease = notice.content(), self._granted.leases.get(notice.subject)
        if not isinstance(message, Truncated) or lease is None:
            return
        subject = decode_statement(message.truncation).subject
        claim = next((one for one in lease.claims if one.digest == subject), None)
        if claim is None or not self._granted.is_held(claim):
            return
        at = self._statements.check_receipt(lease, claim, receipt).at
        if at < claim.term.end:
            self._granted.end(lease, claim, at)
            self._granted.changed(lease)


class ReportsOfSites:
    """What sites say of the claims that they are shown."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, granted: GrantedClaims, statements: Statements, reports: Reports
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._granted = granted
        self._statements = statements
        self._reports = reports

    @takes(ClaimReport, DELEGATE)
    def _on_claim_report(self, peer: str, message: ClaimReport) -> None:
        """A site has taken a modify, so that what it leaves of the old claim is free; or a claim made trouble."""
        if self._keyring.peers[peer].role != "authority":
            raise RemoteError(Code.FORBIDDEN, f"{peer} is no site: it reports nothing")
        if message.reason.code == Code.REPLACED:
            self._replaced(peer, message)
        else:
            self._reports.keep(message.claim, message.reason, peer)
        self._kernel.send(peer, Accepted(message.claim, message.number))

    def _replaced(self, peer: str, message: ClaimReport) -> None:
        lease = self._granted.with_cut_off(message.claim)
        if lease is None:
            return
        for place, claim in enumerate(lease.claims):
            if claim.digest.hex() == message.claim and self._statements.is_of_site(claim, peer):
                self._statements.check_receipt(lease, claim, message.receipt)
                self._granted.settle_cut(lease, place + 1)
                self._kernel.touch(lease)
