"""Who is to blame when a site can't honour a ticket, and who hears of it (SHARP; paper section 2.2).

A ticket that the claim tree calls surplus is refused with evidence of who signed too much; one that only the units are
missing for is refused without blame: *oversubscribed* if somebody in the chain was allowed to promise more than there
is.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.notices import Notices
from leasekit.actors.reports import Reports
from leasekit.actors.site.claims import SiteClaims
from leasekit.actors.site.incidents import Incidents
from leasekit.core.claims.claim import DEGREE_ONE, Claim
from leasekit.core.claims.evidence import (
    in_words,
    of_overdelegation,
    of_returned,
    overdelegated,
    span_in_words,
)
from leasekit.core.claims.keys import fingerprint
from leasekit.core.claims.statements import Statement
from leasekit.core.claims.ticket import Ticket
from leasekit.core.claims.tree import Overdelegation
from leasekit.core.errors import LeasekitError, TicketError
from leasekit.core.leases.records import SiteClaim
from leasekit.core.protocol.messages import ClaimReport
from leasekit.core.reasons import Code, Reason, marked
from leasekit.core.timetable import Shortfall

REPLACED: Final = "replaced"
REPORTS_MAX: Final = 100
"""How many reports of trouble are owed to one broker at once; those that say what is free again are always sent."""


class ClaimReports:
    """What brokers are told of claims that they issued or hold, and the operator of trouble that is nobody's guilt."""

    def __init__(self, kernel: Kernel, keyring: Keyring, notices: Notices, reports: Reports) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._notices = notices
        self._reports = reports

    def tell(self, key: bytes, claim: Claim, reason: Reason, receipt: bytes = b"") -> None:
        """Tell the peer with ``key``, if it is one, what became of ``claim``."""
        brokers = (peer for peer in self._keyring.peers.values() if peer.role == "broker")
        peer = next((one.name for one in brokers if one.key == key or key in dict(one.former)), None)
        if peer is not None:
            if reason.code != Code.REPLACED and sum(n.peer == peer for n in self._notices) >= REPORTS_MAX:
                return
            number = self._kernel.next("serial")
            message = ClaimReport(claim.id, number, reason, receipt)
            self._notices.owe(
                f"report:{reason.code}:{claim.id}@{peer}", peer, claim.id, number, message, claim.term.end
            )

    def no_room(self, ticket: Ticket, short: Shortfall) -> TicketError:
        """Why the units aren't there: somebody was allowed to promise more than there is, or they are out of order."""
        leaf = ticket.leaf
        text = (
            f"{leaf.units} units of {leaf.type!r} were wanted, {max(short.free, 0)} are free at {self._keyring.name} "
            f"over {marked(short.term)}"
        )
        if all(claim.degree == DEGREE_ONE for claim in ticket.chain):
            return TicketError(Code.INSUFFICIENT, text)
        holder, issuer = self._keyring.called(leaf.holder), self._keyring.called(leaf.issuer)
        told = (
            f"oversubscribed: {holder} was refused {leaf.units} units of {leaf.type!r} {span_in_words(leaf.term)}, "
            f"which {issuer} gave it; {max(short.free, 0)} are free"
        )
        why = Reason(Code.OVERSUBSCRIBED, detail=told)
        self._reports.keep(leaf.id, why)
        self.tell(leaf.issuer, leaf, why)
        return TicketError(Code.OVERSUBSCRIBED, f"oversubscribed, try later: {text}")


class Accusations:
    """What a site says of those who gave away, or redeemed, what they did not have."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, claims: SiteClaims, incidents: Incidents, told: ClaimReports
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._claims = claims
        self._incidents = incidents
        self._told = told

    def overdelegated(self, found: Overdelegation, root: bytes) -> None:
        """Keep evidence of one who gave away more than it had, and tell those who ought to know."""
        id_ = f"{fingerprint(found.guilty)}-{found.parent.id[:16]}"
        words = overdelegated(found.parent, found.units, len(found.claims), found.instant, self._keyring.called)
        try:
            word = self._claims.vouch(found.claims, found.instant)
        except LeasekitError as error:
            word = None
            self._kernel.complain(f"evidence {id_} is kept without the site's word: {error}")
        self._incidents.keep(id_, found.guilty, of_overdelegation(found, word), words, root)
        for key in dict.fromkeys((found.guilty, found.parent.issuer)):  # a set has no order to rely on
            if not self._keyring.is_own(key):
                self._told.tell(key, found.claims[0], Reason(Code.OVERDELEGATED, detail=words))

    def returned(self, ticket: Ticket, known: SiteClaim, note: Statement, contract: Statement) -> None:
        """A claim that its holder had given back by ``note`` was redeemed: its lease has a ``contract``. Only who
        redeemed it afterwards is guilty: a lease that stood before is simply being closed.
        """
        if contract.at <= note.at + self._kernel.settings.clock_skew:
            return
        leaf = ticket.leaf
        given_back = f"gave back {leaf.units} units of {leaf.type!r} as of {in_words(note.at)}"
        words = f"{self._keyring.called(leaf.holder)} {given_back}, and redeemed them at {in_words(contract.at)}"
        evidence = of_returned(ticket, note, contract)
        self._incidents.keep(f"returned-{known.id[:16]}", leaf.holder, evidence, words, ticket.root.holder)
