"""Redeems: how the tickets of guests become leases, extends and modifies of a site."""

from __future__ import annotations

import attrs

from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.served import Served
from leasekit.actors.settings import REDEEM
from leasekit.actors.site.admission import TicketAdmission
from leasekit.actors.site.checks import TicketChecks
from leasekit.actors.site.claims import REDEEMED, SiteClaims
from leasekit.actors.site.leases import LeaseEnds, SiteLeases
from leasekit.actors.site.updates import LeaseUpdates
from leasekit.core.claims.claim import Claim
from leasekit.core.claims.statements import TRUNCATION, check_statement
from leasekit.core.claims.ticket import REPLACES, decode_ticket, saving_of
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import AcceptedChange as Later
from leasekit.core.leases.records import SiteLease
from leasekit.core.properties import check_plain, is_plain
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, UNDO, Redeem
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.time import Instant, Term
from leasekit.core.words import counted

GIVEN_BACK = Reason(Code.EXTEND_TAKEN_BACK)


@attrs.define(eq=False)
class AcceptedTerms:
    """The terms by which leases go, and those that were accepted for later."""

    _kernel: Kernel
    _leases: SiteLeases
    _ends: LeaseEnds
    _claims: SiteClaims
    _updates: LeaseUpdates

    def begin(self, lease: SiteLease, leaf: Claim, until: Instant) -> None:
        """A new lease goes by its first ticket, which is good up to ``until``."""
        self._claims.remember(leaf, lease.id, REDEEMED, self._kernel.now)
        to, why = f"{au.TICKETED}/{au.REDEEMING}", said(f"{lease.holder}: {leaf.units} {leaf.type}")
        self._kernel.note(lease.id, "redeem", "", to, why)
        self._end_with(lease, leaf, until)
        if lease.term.start <= self._kernel.now and lease.ended < 0:
            self._leases.start(lease)

    def again(self, lease: SiteLease, message: Redeem) -> SiteLease:
        """The same holder redeems the same claim under another number: a repeat, which gets the same answer."""
        known = self._claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is None or known.lease != lease.id or lease.ended >= 0 or lease.pending == au.CLOSING:
            raise RemoteError(Code.EXISTS, f"lease {lease.id} is {lease.state} already")
        lease.number = lease.settles = message.number
        if lease.state == au.ACTIVE:
            self._updates.publish(lease, "active", message.number)
        return lease

    def is_taken(self, lease: SiteLease, message: Redeem) -> bool:
        """Whether the lease goes on by that ticket already, or will: its guest, which has had it modified since, asks
        for it anew.
        """
        digest, later = decode_ticket(message.ticket).leaf.digest, lease.extension
        if later is not None and later.claim == digest:
            anew = later._replace(number=message.number, victims=message.victims, properties=message.properties)
            lease.next, lease.after = (anew, None) if lease.after is None else (lease.next, anew)
            lease.number = message.number
            return True
        return self._goes_by(lease, digest, message.number)

    def _goes_by(self, lease: SiteLease, digest: bytes, number: int) -> bool:
        """Whether the lease goes by that ticket already: then the answer to ``number`` is how it stands."""
        if lease.claim != digest or lease.ended >= 0 or lease.pending == au.CLOSING:
            return False
        lease.number = lease.settles = number
        if lease.pending != au.PRIMING:
            self._updates.publish(lease, "active", number)
        return True

    def undo(self, lease: SiteLease, message: Redeem) -> None:
        """Take an extend back. Too late if the lease goes on by that ticket already. One that has not come yet is out
        of date when it comes.
        """
        digest = decode_ticket(message.ticket).leaf.digest
        lease.number = message.number
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return  # its last word is the answer
        if self._goes_by(lease, digest, message.number):
            return
        if lease.extension is not None and lease.extension.claim == digest:
            self._leases.withdraw_next(lease, GIVEN_BACK)
            self._claims.disuse(digest)
        self._updates.publish(lease, "undone", message.number)

    def accept(self, lease: SiteLease, message: Redeem, leaf: Claim, until: Instant) -> None:
        """The extend or modify of ``message`` is good, up to ``until``: it is applied when its term begins."""
        self._kernel.fire(au.MACHINE, lease, message.op, said(f"{counted(leaf.units)} to {mark(leaf.term.end)}"))
        lease.number = message.number
        later = Later(
            message.op, message.number, leaf.digest, leaf.units, leaf.term, message.victims, message.properties
        )
        lease.next, lease.after = later, lease.next
        self._claims.remember(leaf, lease.id, REDEEMED, self._kernel.now)
        self._end_with(lease, leaf, until)
        if leaf.term.start <= self._kernel.now:
            self._leases.apply_next(lease)

    def _end_with(self, lease: SiteLease, leaf: Claim, until: Instant) -> None:
        if until < leaf.term.end:
            self._leases.notice(lease, until, Reason(Code.ENDED_ABOVE))
        elif saving := saving_of(leaf):
            self._ends.suspend(lease, leaf.term.end, saving, "its broker")

    def accept_configuration(self, lease: SiteLease, message: Redeem) -> None:
        """A modify without a ticket: only the configuration changes, now."""
        self._kernel.fire(au.MACHINE, lease, "modify", said("configuration"))
        lease.number = message.number
        term = Term(self._kernel.now, lease.term.end) if lease.term.end > self._kernel.now else lease.term
        later = Later(MODIFY, message.number, lease.claim, lease.wanted, term, (), message.properties)
        lease.next, lease.after = later, lease.next
        self._leases.apply_next(lease)

    def refuse(self, lease: SiteLease, number: int, reason: Reason) -> None:
        """Refuse a request about a lease. Written down, unlike other refusals: a repeat that comes late must not be
        obeyed after all.
        """
        lease.number = number
        self._updates.publish(lease, "refused", number, reason)


@attrs.define(eq=False)
class Continuations:
    """Extends and modifies by tickets."""

    _keyring: Keyring
    _claims: SiteClaims
    _checks: TicketChecks
    _admission: TicketAdmission
    _terms: AcceptedTerms

    def extend(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        """The lease goes on from its end. Raises ``TicketError``."""
        known = self._claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is not None and known.lease == lease.id and lease.notice:
            raise TicketError(Code.NOT_GOING_ON, who=lease.id, what=self._keyring.name, because=lease.notice)
        ticket, leaf = self._checks.check_first(peer, message.ticket, message.resource)
        if lease.noticed >= 0:
            raise TicketError(Code.NOTICED, who=lease.id, at=lease.noticed, because=lease.notice)
        if leaf.type != lease.type or leaf.term.start != lease.term.end:
            raise TicketError(
                Code.WRONG_TERM,
                f"lease {lease.id} ends at {mark(lease.term.end)}, the claim starts at {mark(leaf.term.start)}",
            )
        until = self._admission.admit(ticket)
        self._terms.accept(lease, message, leaf, until)

    def modify(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        """The lease changes in mid-term. Raises ``TicketError``."""
        if not message.ticket:
            self._terms.accept_configuration(lease, message)
            return
        known = self._claims.get(lease.claim)
        if known is not None and decode_ticket(message.ticket).leaf.term.end <= known.term.start:
            raise TicketError(
                Code.TOO_LATE, f"lease {lease.id} has gone on to its extension, at {mark(known.term.start)}"
            )
        ticket, leaf = self._checks.check(peer, message.ticket, message.resource)
        if leaf.type != lease.type:
            raise TicketError(
                Code.TYPE_CHANGED, f"lease {lease.id} is of type {lease.type!r}, the claim of {leaf.type!r}"
            )
        if leaf.constraints.get(REPLACES) != lease.claim.hex():
            raise TicketError(
                Code.REPLACES, f"claim {leaf.id[:16]} does not say that it replaces that of lease {lease.id}"
            )
        extension = lease.extension
        # Its issuer is that of the first one, or has another key by now.
        issuer = bytes.fromhex(known.issuer) if known is not None else lease.root
        cut = check_statement(self._keyring.scheme, message.truncation, TRUNCATION, signer=issuer, subject=lease.claim)
        if cut.at != leaf.term.start or cut.at >= lease.term.end:
            raise TicketError(
                Code.WRONG_TERM, f"lease {lease.id} is cut off at {mark(cut.at)}, the claim starts at "
                f"{mark(leaf.term.start)}; its "
                f"term ends at {mark(lease.term.end)}"
            )  # fmt: skip
        if extension is not None and leaf.term.end != extension.term.start:
            raise TicketError(
                Code.WRONG_TERM,
                f"lease {lease.id} goes on from {mark(extension.term.start)}: the claim ends at {mark(leaf.term.end)}",
            )
        self._terms.accept(lease, message, leaf, self._admission.replace(lease, ticket))


@attrs.define(eq=False)
class NewTickets:
    """The first ticket of a lease."""

    _served: Served[SiteLease]
    _checks: TicketChecks
    _admission: TicketAdmission
    _terms: AcceptedTerms

    def redeem(self, peer: str, message: Redeem) -> SiteLease:
        """Make the lease. Raises ``RemoteError``."""
        self._served.check_id(message.lease, peer)
        _check_words(message)
        ticket, leaf = self._checks.check_first(peer, message.ticket, message.resource)
        until = self._admission.admit(ticket)
        lease = SiteLease(
            message.lease, peer, message.slice, leaf.type, au.TICKETED, au.REDEEMING, leaf.digest, leaf.term,
            leaf.units, message.number, message.resource, message.properties, settles=message.number,
            root=leaf.issuer, preemptible=leaf.constraints.get("preemptible") == "true", origin=ticket.root.digest,
            key=self._served.key_of(peer),
        )  # fmt: skip
        self._served.leases[lease.id] = lease
        self._terms.begin(lease, leaf, until)
        return lease


@attrs.define(eq=False)
class Redemptions:
    """The redeems that guests send."""

    _served: Served[SiteLease]
    _leases: SiteLeases
    _tickets: NewTickets
    _terms: AcceptedTerms
    _continuations: Continuations

    @takes(Redeem, REDEEM)
    def _on_redeem(self, peer: str, message: Redeem) -> None:
        lease = self._leases.by_id.get(message.lease)
        if not self._served.is_news(lease, peer, message.number):
            return
        if message.op not in (NEW, EXTEND, MODIFY, UNDO):
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {NEW}, {EXTEND}, {MODIFY}, {UNDO}")
        if message.op == NEW:
            lease = self._tickets.redeem(peer, message) if lease is None else self._terms.again(lease, message)
        elif lease is None:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has no lease {message.lease}")
        else:
            try:
                self._continue(lease, peer, message)
            except RemoteError as error:
                self._terms.refuse(lease, message.number, error.reason)
                return
        self._served.accept(lease, message.number)
        self._leases.touch(lease)

    def _continue(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        _check_words(message)
        if message.op == UNDO:
            self._terms.undo(lease, message)
            return
        if message.op == EXTEND and self._terms.is_taken(lease, message):
            return
        if lease.next is not None and (message.op, lease.next.op) != (MODIFY, EXTEND):
            raise RemoteError(Code.WAITING, who=lease.id)
        au.MACHINE.next((lease.state, lease.pending), message.op)  # raises before anything is reserved
        if message.op == EXTEND:
            self._continuations.extend(lease, peer, message)
        else:
            self._continuations.modify(lease, peer, message)


def _check_words(message: Redeem) -> None:
    """What a guest says goes to drivers, logs and files: raises ``RemoteError`` for control characters in it."""
    if not is_plain(message.slice):
        raise RemoteError(Code.BAD_NAME, f"slice: found {message.slice!r:.80}, names have no control characters")
    try:
        check_plain(message.resource, "resource")
        check_plain(message.properties, "properties")
    except ValueError as error:
        raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error
