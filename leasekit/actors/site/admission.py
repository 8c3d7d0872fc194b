"""Counting tickets that a site honours.

A ticket that passed its checks is counted twice: in the claim tree, which says whether each issuer in its chain had
what it gave, and in the calendar of the type's units, which says whether they are there.
"""

from __future__ import annotations

from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.site.accusations import Accusations, ClaimReports
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import HEARD, SEEN, SiteClaims
from leasekit.actors.site.limits import DelegationLimits
from leasekit.core.claims.claim import Claim, decode_claim
from leasekit.core.claims.evidence import (
    in_words,
)
from leasekit.core.claims.ticket import Ticket
from leasekit.core.claims.tree import Surplus
from leasekit.core.errors import TicketError
from leasekit.core.leases.records import SiteLease
from leasekit.core.reasons import Code, Reason, mark
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall


class ClaimAccounts:
    """The claim tree's side of admission."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, claims: SiteClaims, limits: DelegationLimits, accusations: Accusations
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._claims = claims
        self._limits = limits
        self._accusations = accusations

    def count(self, ticket: Ticket, *, booked: bool) -> Instant:
        """Count the ticket's claims in the tree. Returns when it ends. Raises ``TicketError``."""
        leaf = ticket.leaf
        for claim in ticket.chain:
            known = self._claims.get(claim.digest)
            if known is not None and known.until >= 0 and claim.digest not in self._claims.tree:
                self._claims.tree.end_early(claim.digest, known.until)  # it remembers only so many
        added = self._claims.tree.add(ticket)
        for found in added.found:
            self._accusations.overdelegated(found, ticket.root.holder)
        until = min(added.until, self._limits.deadline(ticket))
        if until <= max(self._kernel.now, leaf.term.start):
            self._claims.tree.withdraw(leaf.digest)
            raise TicketError(Code.RETURNED, f"the claim, or one above it, was ended as of {mark(until)}")
        if added.surplus is not None:
            raise TicketError(Code.OVERDELEGATED, self._nothing_left(added.surplus))
        if not booked:
            try:
                self._limits.check_line(ticket)
            except TicketError:
                self.withdraw(leaf)
                raise
        return until

    def withdraw(self, leaf: Claim) -> None:
        """A claim that was counted is not honoured after all."""
        self._claims.tree.withdraw(leaf.digest)

    def honour(self, ticket: Ticket) -> None:
        """A ticket that was counted is honoured: what is above its leaf is remembered."""
        for claim in ticket.chain[:-1]:  # not the fresh ones only: a ticket that was refused may have brought them
            known = self._claims.get(claim.digest)
            if known is None or known.state == HEARD:
                self._claims.remember(claim, "", SEEN)
        self._claims.tidy()

    def _nothing_left(self, surplus: Surplus) -> str:
        claim = surplus.claim
        return (
            f"what {self._keyring.called(claim.holder)} may give from its claim {claim.id[:16]} is given already: "
            f"{max(surplus.free, 0)} of {claim.capacity} units are left at {in_words(surplus.instant)}"
        )


class TicketAdmission:
    """Both sides: a ticket is counted in the tree and in the calendar, or in neither."""

    def __init__(
        self, kernel: Kernel, claims: SiteClaims, calendars: Calendars, accounts: ClaimAccounts, told: ClaimReports
    ) -> None:
        self._kernel = kernel
        self._claims = claims
        self._calendars = calendars
        self._accounts = accounts
        self._told = told

    def admit(self, ticket: Ticket, *, booked: bool = False) -> Instant:
        """Count the ticket's claims in the tree and its units in the calendar: both, or neither, with a reason; in the
        tree only if they are ``booked`` already.

        Returns when it ends, which is before its term does if a claim in the chain was ended early. Raises
        ``TicketError``.
        """
        leaf = ticket.leaf
        until = self._accounts.count(ticket, booked=booked)
        table = self._calendars.of(leaf.type)
        try:
            if booked:
                table.end(leaf.digest, until)
            else:
                table.reserve(leaf.digest, leaf.units, self._rest(leaf, until))
        except Shortfall as short:
            self._accounts.withdraw(leaf)
            raise self._told.no_room(ticket, short) from short
        self._accounts.honour(ticket)
        return until

    def replace(self, lease: SiteLease, ticket: Ticket) -> Instant:
        """End the lease's claim where the ticket starts, and admit the ticket in its place; all or nothing.

        Returns when it ends, as :meth:`admit` does. Raises ``TicketError``.
        """
        leaf, table, old = ticket.leaf, self._calendars.of(lease.type), lease.claim
        standing = self._claims.tree.standing(old)
        try:  # before the tree hears of it: units that are missing are nobody's guilt
            table.replace(old, leaf.digest, leaf.units, self._rest(leaf, leaf.term.end))
        except Shortfall as short:
            raise self._told.no_room(ticket, short) from short
        try:
            self._claims.tree.end_early(old, leaf.term.start)
            until = self.admit(ticket, booked=True)
        except TicketError:
            table.release(leaf.digest)
            self._calendars.book_again(lease)
            if standing is not None:
                self._claims.tree.reopen(old, standing.until, leaf.digest)
            raise
        if lease.noticed >= 0:
            table.end(leaf.digest, lease.noticed)
        self._claims.refresh(old)
        if leaf.units < lease.wanted or leaf.term.end < lease.term.end:
            record = self._claims.get(old)
            if record is not None:
                claim = decode_claim(record.body, record.signature)
                receipt = self._claims.receipt(old, self._claims.dated(record, leaf.term.start), lease.id)
                self._told.tell(claim.issuer, claim, Reason(Code.REPLACED, at=leaf.term.start), receipt)
        return until

    def _rest(self, leaf: Claim, until: Instant) -> Term:
        """A ticket that comes late takes nothing of what is past, where others may have had the units."""
        return Term(max(leaf.term.start, self._kernel.now), until)
