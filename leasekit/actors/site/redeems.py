"""Tickets at a site: how they are checked and counted, and become leases, extends and modifies; and what ends claims
before their time: closes, tickets that are given back, and the word of those who issued them.

A ticket that passed its checks is counted twice: in the claim tree, which says whether each issuer in its chain had
what it gave, and in the calendar of the type's units, which says whether they are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import attrs

from leasekit.actors.issued import taken_back
from leasekit.actors.kernel import Kernel, keeps, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.served import FRESH, OLD, Served
from leasekit.actors.settings import DELEGATE, REDEEM, AuthoritySettings
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import Accusations, ClaimReports, DelegationLimits, SiteClaims
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.leases import LeaseEnds, LeaseUpdates, SiteLeases
from leasekit.core.claims.claim import (
    REPLACES,
    UNUSED_UNTIL,
    Claim,
    Ticket,
    decode_claim,
    decode_ticket,
    early_terms,
    redeem_by,
    saving_of,
)
from leasekit.core.claims.evidence import in_words
from leasekit.core.claims.signed import (
    RECEIPT,
    RELINQUISHMENT,
    TRUNCATION,
    Statement,
    check_statement,
    decode_statement,
    fingerprint,
    state,
)
from leasekit.core.claims.tree import Surplus
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import AcceptedChange as Later
from leasekit.core.leases.records import Delegation, SiteClaim, SiteLease
from leasekit.core.properties import WHOLE, Properties, check_plain, is_plain, is_within, minus, needs_of, written
from leasekit.core.protocol.messages import (
    EXTEND,
    LIST_MAX,
    MODIFY,
    NEW,
    UNDO,
    Accepted,
    CloseLease,
    Redeem,
    Relinquish,
    Relinquished,
    Truncated,
)
from leasekit.core.reasons import Code, Reason, counted, mark, said
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall


@attrs.define(eq=False)
class TicketChecks:
    """The checks that a ticket passes before it is counted."""

    _kernel: Kernel
    _keyring: Keyring
    _inventory: Inventory
    _settings: AuthoritySettings
    _history: Sequence[Callable[[Ticket], None]]
    """What is known of its claims: each raises ``TicketError`` for a ticket that can't be redeemed any more."""

    def check(self, peer: str, data: bytes, resource: Properties) -> tuple[Ticket, Claim]:
        """The ticket and its leaf, if ``peer`` may redeem it now. Raises ``TicketError`` with the first check that
        failed.
        """
        ticket, now, me = decode_ticket(data), self._kernel.now, self._keyring.name
        holder = self._keyring.key_among(peer, ticket.leaf.holder)
        leaf = self._keyring.verify(ticket, root=self._keyring.own_among(ticket.root.issuer), holder=holder)
        if leaf.units > LIST_MAX:
            raise TicketError(Code.TOO_LARGE, f"{leaf.units} units don't fit in one lease: at most {LIST_MAX} do")
        if leaf.term.end <= now:
            text = f"claim ended at {mark(leaf.term.end)}, it is {mark(now)} at {me}"
            raise TicketError(Code.EXPIRED, text, who=me, at=leaf.term.end, now=now)
        if redeem_by(leaf) < now:
            raise TicketError(Code.LAPSED, at=redeem_by(leaf))
        if leaf.type not in self._inventory.types:
            raise TicketError(
                Code.UNKNOWN_TYPE, f"type: found {leaf.type!r}, {me} has {', '.join(self._inventory.types)}"
            )
        if leaf.term.start > now + self._settings.redeem_ahead_max:
            raise TicketError(Code.FUTURE, f"the term starts at {mark(leaf.term.start)}, too far ahead of {mark(now)}")
        self._check_sizes(leaf)
        for check in self._history:
            check(ticket)
        return ticket, leaf

    def _check_sizes(self, leaf: Claim) -> None:
        """What a claim says that a unit takes is at least what it needs: brokers may not make machines look small, or
        others would have no room beside them. Raises ``TicketError``.
        """
        try:
            needs = needs_of(leaf.constraints)
        except ValueError as error:
            raise TicketError(Code.WRONG_PROPERTIES, f"constraints: {error}") from error
        if not leaf.sizes:
            if needs or self._inventory.known_hosts(leaf.type):
                raise TicketError(Code.WRONG_PROPERTIES, "the claim does not say what a unit takes of its host")
            return
        for (class_, _), size in zip(leaf.classes, leaf.sizes, strict=True):
            host = self._inventory.known_hosts(leaf.type).get(class_)
            least = host.size(needs) if host is not None else WHOLE
            if least is None or not is_within(least, size):
                raise TicketError(
                    Code.WRONG_PROPERTIES,
                    f"the claim gives {written(size)} for a unit that needs {written(needs) or 'a whole host'}",
                )

    def check_first(self, peer: str, data: bytes, resource: Properties) -> tuple[Ticket, Claim]:
        """The ticket of a new term. One that a modify was granted is none: counted beside the claim that it replaces,
        it would make its honest issuer look guilty. Raises ``TicketError``.
        """
        ticket, leaf = self.check(peer, data, resource)
        if REPLACES in leaf.constraints and UNUSED_UNTIL not in leaf.constraints:
            old = leaf.constraints[REPLACES][:16]
            raise TicketError(
                Code.REPLACES, f"claim {leaf.id[:16]} replaces claim {old}: it is for a modify of its lease"
            )
        return ticket, leaf


@attrs.define(eq=False)
class ClaimAccounts:
    """The claim tree's side of admission."""

    _kernel: Kernel
    _keyring: Keyring
    _claims: SiteClaims
    _limits: DelegationLimits
    _accusations: Accusations

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
                self._limits.check_chain(ticket)
            except TicketError:
                self._claims.tree.withdraw(leaf.digest)
                raise
        return until

    def honour(self, ticket: Ticket) -> None:
        """A ticket that was counted is honoured: what is above its leaf is remembered."""
        for claim in ticket.chain[:-1]:  # not the fresh ones only: a ticket that was refused may have brought them
            known = self._claims.get(claim.digest)
            if known is None or known.is_only_heard_of:
                self._claims.remember(claim, "", au.SEEN)
        self._claims.tidy()

    def _nothing_left(self, surplus: Surplus) -> str:
        claim = surplus.claim
        return (
            f"what {self._keyring.called(claim.holder)} may give from its claim {claim.id[:16]} is given already: "
            f"{max(surplus.free, 0)} of {surplus.capacity} units are left at {in_words(surplus.instant)}"
        )


@attrs.define(eq=False)
class TicketAdmission:
    """Both sides: a ticket is counted in the tree and in the calendar, or in neither."""

    _kernel: Kernel
    _claims: SiteClaims
    _calendars: Calendars
    _accounts: ClaimAccounts
    _told: ClaimReports

    def admit(
        self, ticket: Ticket, lease: SiteLease | None = None, victims: Sequence[str] = (), *, booked: bool = False
    ) -> Instant:
        """Count the ticket's claims in the tree and its units in the calendar: both, or neither, with a reason; in the
        tree only if they are ``booked`` already. Its units have their places where those of ``lease`` are, but for
        ``victims``, as far as they can.

        Returns when it ends, which is before its term does if a claim in the chain was ended early. Raises
        ``TicketError``.
        """
        leaf = ticket.leaf
        until = self._accounts.count(ticket, booked=booked)
        try:
            if booked:
                self._calendars.end_claim(leaf.type, leaf.digest, until)
            else:
                near = self._calendars.kept_places(lease, victims) if lease is not None else ()
                self._calendars.book(leaf, self._rest(leaf, until), near, partial(self._claims.below, leaf))
        except Shortfall as short:
            self._claims.tree.withdraw(leaf.digest)
            raise self._told.no_room(ticket, short) from short
        self._accounts.honour(ticket)
        return until

    def replace(self, lease: SiteLease, ticket: Ticket, victims: Sequence[str] = ()) -> Instant:
        """End the lease's claim where the ticket starts, and admit the ticket in its place; all or nothing.

        Returns when it ends, as :meth:`admit` does. Raises ``TicketError``.
        """
        leaf, old = ticket.leaf, lease.claim
        standing = self._claims.tree.standing(old)
        try:  # before the tree hears of it: units that are missing are nobody's guilt
            near = self._calendars.kept_places(lease, victims)
            self._calendars.replace(lease, leaf, self._rest(leaf, leaf.term.end), near)
        except Shortfall as short:
            raise self._told.no_room(ticket, short) from short
        try:
            self._claims.tree.end_early(old, leaf.term.start)
            until = self.admit(ticket, booked=True)
        except TicketError:
            self._calendars.release(lease, leaf.digest)
            self._calendars.book_again(lease)
            if standing is not None:
                self._claims.tree.reopen(old, standing.until, leaf.digest)
            raise
        if lease.terminates_at >= 0:
            self._calendars.end_claim(lease.type, leaf.digest, lease.terminates_at)
        self._claims.refresh(old)
        if minus(lease.weights, leaf.weights) or leaf.term.end < lease.term.end:
            record = self._claims.get(old)
            if record is not None:
                claim = decode_claim(record.body, record.signature)
                receipt = self._claims.receipt(old, self._claims.dated(record, leaf.term.start), lease.id)
                self._told.tell(claim.issuer, claim, Reason(Code.REPLACED, at=leaf.term.start), receipt)
        return until

    def places(self, leaf: Claim) -> tuple[str, ...]:
        """The hosts on which a claim's units have their places."""
        return self._calendars.places.of(leaf.digest)

    def _rest(self, leaf: Claim, until: Instant) -> Term:
        """A ticket that comes late takes nothing of what is past, where others may have had the units."""
        return Term(max(leaf.term.start, self._kernel.now), until)


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
        self._claims.remember(leaf, lease.id, au.REDEEMED, self._kernel.now)
        to, why = f"{au.TICKETED}/{au.REDEEMING}", Reason(Code.ASKED, lease.holder, leaf.type, units=leaf.units)
        self._kernel.note(lease.id, "redeem", "", to, why)
        self._end_with(lease, leaf, until)
        if lease.term.start <= self._kernel.now and lease.ended < 0:
            self._leases.start(lease)

    def again(self, lease: SiteLease, message: Redeem) -> SiteLease:
        """The same holder redeems the same claim under another number: a repeat, which gets the same answer."""
        known = self._claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is None or known.lease != lease.id or lease.is_ending:
            raise RemoteError(Code.EXISTS, f"lease {lease.id} is {lease.state} already")
        lease.number = lease.settles = message.number
        if lease.is_active:
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
        if lease.claim != digest or lease.is_ending:
            return False
        lease.number = lease.settles = number
        if not lease.is_priming:
            self._updates.publish(lease, "active", number)
        return True

    def undo(self, lease: SiteLease, message: Redeem) -> None:
        """Take an extend back. Too late if the lease goes on by that ticket already. One that has not come yet is out
        of date when it comes.
        """
        digest = decode_ticket(message.ticket).leaf.digest
        lease.number = message.number
        if lease.is_ending:
            return  # its last word is the answer
        if self._goes_by(lease, digest, message.number):
            return
        if lease.extension is not None and lease.extension.claim == digest:
            self._leases.withdraw_next(lease, GIVEN_BACK)
            self._claims.disuse(digest)
        self._updates.publish(lease, "undone", message.number)

    def accept(
        self, lease: SiteLease, message: Redeem, leaf: Claim, until: Instant, places: tuple[str, ...] = ()
    ) -> None:
        """The extend or modify of ``message`` is good, up to ``until``: it is applied when its term begins."""
        later = Later(
            message.op, message.number, leaf.digest, leaf.units, leaf.term, message.victims, message.properties,
            leaf.classes, leaf.sizes, places,
        )  # fmt: skip
        self._take(lease, later, f"{counted(leaf.units)} to {mark(leaf.term.end)}")
        self._claims.remember(leaf, lease.id, au.REDEEMED, self._kernel.now)
        self._end_with(lease, leaf, until)
        if leaf.term.start <= self._kernel.now:
            self._leases.apply_next(lease)

    def accept_configuration(self, lease: SiteLease, message: Redeem) -> None:
        """A modify without a ticket: only the configuration changes, now."""
        term = Term(self._kernel.now, lease.term.end) if lease.term.end > self._kernel.now else lease.term
        later = Later(
            MODIFY, message.number, lease.claim, lease.wanted, term, (), message.properties, lease.classes,
            lease.sizes, lease.places,
        )  # fmt: skip
        self._take(lease, later, "configuration")
        self._leases.apply_next(lease)

    def _take(self, lease: SiteLease, later: Later, why: str) -> None:
        self._kernel.fire(lease, later.op, said(why))
        lease.number, lease.next, lease.after = later.number, later, lease.next
        self._leases.plan(lease)

    def _end_with(self, lease: SiteLease, leaf: Claim, until: Instant) -> None:
        if until < leaf.term.end:
            self._leases.notice(lease, until, Reason(Code.ENDED_ABOVE))
        elif saving := saving_of(leaf):
            self._ends.suspend(lease, leaf.term.end, saving, "its broker", None)

    def refuse(self, lease: SiteLease, number: int, reason: Reason) -> None:
        """Refuse a request about a lease. Written down, unlike other refusals: a repeat that comes late must not be
        obeyed after all.
        """
        lease.number = number
        self._updates.publish(lease, "refused", number, reason)


@attrs.define(eq=False)
class RedeemedTickets:
    """What leases get by tickets: their first terms, extends and modifies."""

    _keyring: Keyring
    _claims: SiteClaims
    _checks: TicketChecks
    _admission: TicketAdmission
    _terms: AcceptedTerms

    def new(self, peer: str, message: Redeem) -> tuple[SiteLease, Claim, Instant]:
        """A lease by its first ticket; the claim, and when that ends. Raises ``TicketError``."""
        ticket, leaf = self._checks.check_first(peer, message.ticket, message.resource)
        until = self._admission.admit(ticket)
        lease = SiteLease(
            message.lease, peer, message.slice, leaf.type, au.TICKETED, au.REDEEMING, leaf.digest, leaf.term,
            leaf.units, message.number, message.resource, message.properties, settles=message.number,
            root=leaf.issuer, preemptible=leaf.constraints.get("preemptible") == "true", origin=ticket.root.digest,
            key=self._keyring.key_of(peer), classes=leaf.classes, sizes=leaf.sizes,
            needs=needs_of(leaf.constraints), places=self._admission.places(leaf),
            early=early_terms(leaf.constraints),
        )  # fmt: skip
        return lease, leaf, until

    def extend(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        """The lease goes on from its end. Raises ``TicketError``."""
        known = self._claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is not None and known.lease == lease.id and lease.notice:
            raise TicketError(Code.NOT_GOING_ON, who=lease.id, what=self._keyring.name, because=lease.notice)
        ticket, leaf = self._checks.check_first(peer, message.ticket, message.resource)
        if lease.terminates_at >= 0:
            raise TicketError(Code.TERMINATING, who=lease.id, at=lease.terminates_at, because=lease.notice)
        if leaf.type != lease.type or leaf.term.start != lease.term.end:
            ends, starts = mark(lease.term.end), mark(leaf.term.start)
            raise TicketError(Code.WRONG_TERM, f"lease {lease.id} ends at {ends}, the claim starts at {starts}")
        until = self._admission.admit(ticket, lease, message.victims)
        self._terms.accept(lease, message, leaf, until, self._admission.places(leaf))

    def modify(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        """The lease changes in mid-term. Raises ``TicketError``."""
        if not message.ticket:
            self._terms.accept_configuration(lease, message)
            return
        known, who = self._claims.get(lease.claim), f"lease {lease.id}"
        if known is not None and decode_ticket(message.ticket).leaf.term.end <= known.term.start:
            raise TicketError(Code.TOO_LATE, f"{who} has gone on to its extension, at {mark(known.term.start)}")
        ticket, leaf = self._checks.check(peer, message.ticket, message.resource)
        starts, ends = mark(leaf.term.start), mark(leaf.term.end)
        if leaf.type != lease.type:
            raise TicketError(Code.TYPE_CHANGED, f"{who} is of type {lease.type!r}, the claim of {leaf.type!r}")
        if leaf.constraints.get(REPLACES) != lease.claim.hex():
            raise TicketError(Code.REPLACES, f"claim {leaf.id[:16]} does not say that it replaces that of {who}")
        # Its issuer is that of the first one, or has another key by now.
        issuer = bytes.fromhex(known.issuer) if known is not None else lease.root
        cut = check_statement(self._keyring.scheme, message.truncation, TRUNCATION, signer=issuer, subject=lease.claim)
        if cut.at != leaf.term.start or cut.at >= lease.term.end:
            text = f"{who} is cut off at {mark(cut.at)}, the claim starts at {starts}"
            raise TicketError(Code.WRONG_TERM, f"{text}; its term ends at {mark(lease.term.end)}")
        later = lease.extension
        if later is not None and leaf.term.end != later.term.start:
            text = f"{who} goes on from {mark(later.term.start)}: the claim ends at {ends}"
            raise TicketError(Code.WRONG_TERM, text)
        until = self._admission.replace(lease, ticket, message.victims)
        self._terms.accept(lease, message, leaf, until, self._admission.places(leaf))


@attrs.define(eq=False)
class Redemptions:
    """The redeems that guests send."""

    _served: Served[SiteLease]
    _leases: SiteLeases
    _terms: AcceptedTerms
    _tickets: RedeemedTickets

    @takes(Redeem, REDEEM)
    def _on_redeem(self, peer: str, message: Redeem) -> None:
        lease = self._leases.by_id.get(message.lease)
        if not self._served.is_news(lease, peer, message):
            return
        if message.op not in (NEW, EXTEND, MODIFY, UNDO):
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {NEW}, {EXTEND}, {MODIFY}, {UNDO}")
        if message.op == NEW:
            lease = self._new(peer, message) if lease is None else self._terms.again(lease, message)
        elif lease is None:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has no lease {message.lease}")
        else:
            try:
                self._continue(lease, peer, message)
            except RemoteError as error:
                self._terms.refuse(lease, message.number, error.reason)
                return
        self._served.accept(lease, message)
        self._leases.touch(lease)

    def _new(self, peer: str, message: Redeem) -> SiteLease:
        self._served.check_id(message.lease, peer)
        _check_words(message)
        lease, leaf, until = self._tickets.new(peer, message)
        self._served.leases[lease.id] = lease
        self._terms.begin(lease, leaf, until)
        self._leases.plan(lease)
        return lease

    def _continue(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        _check_words(message)
        if message.op == UNDO:
            self._terms.undo(lease, message)
            return
        if message.op == EXTEND and self._terms.is_taken(lease, message):
            return
        if lease.next is not None and (message.op, lease.next.op) != (MODIFY, EXTEND):
            raise RemoteError(Code.WAITING, who=lease.id)
        lease.machine.next((lease.state, lease.pending), message.op)  # raises before anything is reserved
        if message.op == EXTEND:
            self._tickets.extend(lease, peer, message)
        else:
            self._tickets.modify(lease, peer, message)


def _check_words(message: Redeem) -> None:
    """What a guest says goes to drivers, logs and files: raises ``RemoteError`` for control characters in it."""
    if not is_plain(message.slice):
        raise RemoteError(Code.BAD_NAME, f"slice: found {message.slice!r:.80}, names have no control characters")
    try:
        check_plain(message.resource, "resource")
        check_plain(message.properties, "properties")
    except ValueError as error:
        raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error


STRAYS_MAX = 1000
"""How many closes of leases that were never redeemed are remembered at once."""


@keeps(volatile="strays")
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
        self._served.accept(lease, message)

    @staticmethod
    def _why_closed(lease: SiteLease) -> Reason | None:
        if lease.saves:
            return lease.notice
        if lease.terminates_at < 0:
            return Reason(Code.CLOSED_BY_GUEST)
        return Reason(Code.CLOSED_BEFORE_NOTICE, at=lease.terminates_at).because(lease.notice)

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
    """Claims that become void, or were redeemed all the same. ``contract`` is the site's word on a lease."""

    _claims: SiteClaims
    _leases: SiteLeases
    _ends: LeaseEnds
    _accusations: Accusations
    _contract: Callable[[SiteLease, Instant | None], Statement]

    def void(self, leaf: Claim, known: SiteClaim | None, number: int) -> tuple[SiteClaim, Reason | None]:
        """Void a claim. Returns what is known of it then, and why it can't be if it is in use."""
        if known is None or known.is_only_heard_of:  # nothing was ever used of it: from its start on it was never given
            record = self._claims.remember_unused(leaf, au.VOID, leaf.term.start)
            record.at = self._claims.end_claim(leaf.digest, leaf.term.start)
            return record, None
        lease = self._leases.by_id.get(known.lease)
        if lease is not None and lease.ended < 0:
            later = lease.extension
            if later is not None and later.claim == leaf.digest:
                self._leases.withdraw_next(lease, GIVEN_BACK)
                self._claims.disuse(leaf.digest)
            elif lease.claim == leaf.digest and not lease.is_torn_down and lease.number < number:
                # Its guest was told no, and gives the claim back; then a late repeat of its redeem made the lease.
                self._ends.close(lease, "close", Reason(Code.GIVEN_BACK))
            elif leaf.digest in (lease.claim, *(one.claim for one in lease.accepted)) and not lease.is_torn_down:
                return known, Reason(Code.CLAIM_IN_USE, lease.id)
        known.state, known.at = au.VOID, self._claims.end_from_now(leaf.digest, leaf.term.start)
        return known, None

    def settle(self, ticket: Ticket, known: SiteClaim, note: Statement) -> None:
        """A claim that its holder had given back was redeemed: keep evidence, and end the lease."""
        lease = self._leases.by_id.get(known.lease)
        if lease is None or lease.is_ending or lease.claim != ticket.leaf.digest:
            return
        self._accusations.returned(ticket, known, note, self._contract(lease, known.at or None))
        self._ends.close(lease, "close", Reason(Code.GIVEN_BACK_BEFORE))


@attrs.define(eq=False)
class Relinquishments:
    """The tickets that guests give back unused."""

    _kernel: Kernel
    _keyring: Keyring
    _claims: SiteClaims
    _voids: ClaimVoids

    @takes(Relinquish)
    def _on_relinquish(self, peer: str, message: Relinquish) -> None:
        """Works the same however often it comes: the claim is void from the first time on.

        The holder's word may also come from the issuer to whom the holder gave it: if the claim was redeemed all the
        same, that settles it against the holder.
        """
        ticket = decode_ticket(message.ticket)
        digest = ticket.leaf.digest
        known = self._claims.get(digest)
        if known is None or not known.is_void:
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
                self._voids.settle(ticket, known, note)
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
        at, deadline, _ = record.taken_back
        for lease in list(self._leases.by_id.values()):
            if lease.ended >= 0:
                continue
            if lease.origin == record.digest and lease.term.start >= at:
                self._leases.notice(lease, lease.term.start, why)
            elif deadline >= 0 and (end := self._claims.end_under(lease, record.digest, deadline)) >= 0:
                self._leases.notice(lease, end, why)

    @takes(Truncated, DELEGATE)
    def _on_truncated(self, peer: str, message: Truncated) -> None:
        """An issuer ends a claim of its own early: a lease that it was redeemed for ends with it. A claim that was not
        redeemed in time may end as it begins; of one that was there is no receipt.
        """
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
        lapsed = redeem_by(claim) < self._kernel.now and statement.at <= claim.term.start
        if lapsed and known is not None and known.is_redeemed:
            self._kernel.send(peer, Accepted(message.lease, message.number))
            return
        if not lapsed:
            self._check_firm(claim, known)
        if known is None:
            self._claims.remember_unused(claim, au.HEARD)
        ended = self._claims.end_claim(claim.digest, statement.at)
        holder = self._keyring.name_of(claim.holder) or fingerprint(claim.holder)
        for lease in self._claims.leases_of(claim.digest):
            own = claim.digest in (lease.claim, *(one.claim for one in lease.accepted))
            at = self._claims.end_under(lease, claim.digest, max(ended, self._kernel.now))
            if at >= 0 and message.saving > 0:
                self._ends.suspend(lease, at, message.saving, peer, message.reason)
            elif at >= 0:
                why = Reason(Code.ENDED_BY, peer).because(message.reason) if own else taken_back(peer, holder)
                self._leases.notice(lease, at, why)
        receipt = self._claims.receipt(claim.digest, ended, "" if lapsed else message.lease)
        self._kernel.send(peer, Accepted(message.lease, message.number, receipt))

    def _check_firm(self, claim: Claim, known: SiteClaim | None) -> None:
        """A guest's claim ends early by its issuer's word only if it says so itself; a delegation may be taken back.

        Raises ``TicketError``.
        """
        if claim.constraints.get("preemptible") == "true":
            return
        guests = (peer for peer in self._keyring.peers.values() if peer.role == "guest")
        of_guest = any(claim.holder in peer.keys for peer in guests)
        if of_guest or (known is not None and known.is_redeemed):
            raise TicketError(
                Code.NOT_PREEMPTIBLE, f"claim {claim.id[:16]} does not say that its issuer may end it early"
            )
