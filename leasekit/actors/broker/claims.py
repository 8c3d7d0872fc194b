"""The claims that a broker has cut for leases: which a lease has, what is booked for them, and when they end.

Units are granted anew only when the site counts the old claim as ended, by its receipt, which comes for what is given
back, for a modify that was taken, and for a truncation. Until then they stay booked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, Protocol

import attrs

from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.usage import EndedBook, UsageBook
from leasekit.actors.kernel import Kernel, keeps, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Notices, Reports, Served
from leasekit.actors.settings import DELEGATE
from leasekit.core.claims.claim import READY_AT, REDEEM_BY, REPLACES, SAVING, UNUSED_UNTIL, EarlyTerms, Ticket, delegate
from leasekit.core.claims.signed import RECEIPT, TRUNCATION, Signer, Statement, check_statement, decode_statement, state
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import BrokerLease, EndTerms, Granted, Notice, pack_body
from leasekit.core.mappers import Grant
from leasekit.core.profile import Ledger
from leasekit.core.properties import NEEDS, Properties, as_properties, saves
from leasekit.core.protocol.messages import (
    MODIFY,
    NEW,
    REPLACE,
    Accepted,
    ClaimReport,
    ReturnTicket,
    TicketUpdate,
    Truncated,
)
from leasekit.core.reasons import Code, Reason, mark
from leasekit.core.requests import NOTICE, SUSPEND, Options
from leasekit.core.schema import Change, Row
from leasekit.core.time import HOUR, MINUTE, Duration, Instant, Term, format_duration

TRUNCATE = "truncate:"


def is_part(lease: BrokerLease, grant: Grant, options: Options, resource: Properties) -> bool:
    """Whether a grant is of a part of what a deferrable request asks for, after which the lease is suspended."""
    if lease.asked.op != NEW or not options.deferrable or lease.group or not grant.preemptible:
        return False
    return 0 < options.suspend < grant.term.length < lease.asked.term.length and saves(resource)


def ends_suspended(lease: BrokerLease, grant: Grant, options: Options, resource: Properties) -> Duration:
    """How long before its end the lease is saved, if a grant is of a part; else 0."""
    return lease.terms.suspend if is_part(lease, grant, options, resource) else 0


def note_terms(lease: BrokerLease, grant: Grant, options: Options) -> None:
    """Remember how the lease can be ended early: renewals needn't say it again."""
    new = lease.asked.op == NEW
    terms = lease.terms._replace(since=grant.term.start) if new or lease.asked.op == REPLACE else lease.terms
    if not grant.preemptible:
        lease.terms = EndTerms(terms.since)
        return
    if new or options.notice is not None:
        notice = NOTICE if options.notice is None else options.notice
        terms = terms._replace(notice=notice, on_preempt=options.on_preempt)
    lease.terms = terms._replace(
        min_run=terms.min_run if options.min_run is None else options.min_run,
        max_run=terms.max_run if options.max_run is None else options.max_run,
        suspend=options.suspend or terms.suspend,
        bid=terms.bid if options.bid is None else options.bid,
    )


def ends_from(lease: BrokerLease, now: Instant, *, suspend: bool = False) -> Instant:
    """When a lease that has begun can be ended at the earliest, or be suspended by, if that is decided now."""
    if suspend:
        return max(max(now, lease.claims[0].term.start) + lease.terms.suspend, lease.terms.least_end)
    return max(now + lease.terms.notice, lease.terms.least_end)


def with_suspend(lease: BrokerLease) -> Properties:
    """The request properties of what the lease last asked for, with what it says of being suspended."""
    told = lease.asked.properties
    if not lease.terms.suspend or SUSPEND in told:
        return told
    return {**told, SUSPEND: format_duration(lease.terms.suspend)}


def early(lease: BrokerLease, class_: int, grant: Grant) -> Properties:
    """What claims of a lease of machines say of its class, and of its end for others: the site, which alone knows where
    there is room, may have to decide of that.
    """
    if not grant.preemptible:
        return EarlyTerms(class_).constraints()
    terms = lease.terms
    suspend = terms.suspend if terms.on_preempt == SUSPEND else 0
    return EarlyTerms(class_, terms.notice, terms.min_run, suspend).constraints()


RETURNED = "returned"
"""The state of a claim, in history, for which the site has given a receipt."""


def _constraints_of(claim: Granted) -> Properties:
    """What a claim says beside units and term: whether it can be ended early, and how, by when its units are to be up,
    how long before its end they are saved, where the lease is suspended then, until when it can be redeemed, and which
    claim of its lease it replaces.
    """
    said = {"preemptible": "true"} if claim.preemptible else {}
    if claim.replaces:
        said[REPLACES] = claim.replaces
    if claim.unused_until >= 0:
        said[UNUSED_UNTIL] = str(claim.unused_until)
    if claim.saving:
        said[SAVING] = str(claim.saving)
    if claim.redeem_by >= 0:
        said[REDEEM_BY] = str(claim.redeem_by)
    if claim.prepare:
        said[READY_AT] = str(claim.term.start + claim.prepare)
    return {**said, **claim.early, **as_properties(claim.needs, NEEDS)}


def keep_receipt(
    kernel: Kernel, keyring: Keyring, ticket: Ticket, claim: bytes, about: tuple[str | int, ...], data: bytes
) -> Statement:
    """Check the receipt in ``data`` for a ``claim`` that was cut in, or from, ``ticket``, and keep it as history: if
    anyone says that the units were given away twice, the receipt refutes it. ``about`` are the lease or delegation,
    issuer, holder, type, units and term. Raises ``TicketError``.
    """
    receipt = check_statement(keyring.scheme, data, RECEIPT, signer=ticket.root.issuer, subject=claim)
    if kernel.settings.keep_closed:
        id_, parent = claim.hex(), ticket.leaf.parent if ticket.leaf.digest == claim else ticket.leaf.digest
        kernel.changes.append(Change("claims", id_, (id_, 0, parent.hex(), *about, RETURNED, pack_body((data,)))))
    return receipt


@attrs.define(eq=False)
class Statements:
    """What is signed of the delegations in ``book``, and of the claims that are cut from them."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _redeem_within: Duration

    def redeem_by(self, term: Term, prepare: Duration) -> Instant:
        """Until when a claim over ``term``, whose units take ``prepare`` to be up, can be redeemed; -1: to its end."""
        at = max(term.start + prepare, self._kernel.now) + self._redeem_within
        return at if self._redeem_within and at < term.end else -1

    def cut(self, claim: Granted, holder: bytes) -> Ticket:
        """The ticket for ``claim``, whose digest is not known before, for the key ``holder``."""
        return delegate(
            self._book.ticket(claim.source), self._signer_from(claim.source), holder=holder,
            units=claim.classes, term=claim.term, serial=claim.serial,
            constraints=_constraints_of(claim), sizes=claim.sizes,
        )  # fmt: skip

    def cut_for(self, claim: Granted, holder: str) -> Ticket:
        """The ticket for ``claim`` for the peer ``holder``."""
        return self.cut(claim, self._keyring.key_of(holder))

    def early_end(self, lease: BrokerLease, claim: Granted, at: Instant) -> bytes:
        """That a claim of ``lease`` ends at ``at``."""
        return state(self._signer_from(claim.source), TRUNCATION, claim.digest, at, lease.id).encode()

    def truncated(
        self, lease: BrokerLease, claim: Granted, at: Instant, saving: Duration, reason: Reason
    ) -> tuple[str, Truncated]:
        """Which site a claim is of, and what that is told of its early end. Raises ``CommandError``."""
        if not claim.preemptible:
            raise CommandError(f"lease {lease.id} is not preemptible")
        return self._told(lease, claim, max(at, claim.term.start), saving, reason)

    def lapsed(self, lease: BrokerLease, claim: Granted) -> tuple[str, Truncated]:
        """As :meth:`truncated`, of a claim that was to be redeemed by now: it ends as it begins, unless it was."""
        return self._told(lease, claim, claim.term.start, 0, Reason(Code.LAPSED, at=claim.redeem_by))

    def _told(
        self, lease: BrokerLease, claim: Granted, at: Instant, saving: Duration, reason: Reason
    ) -> tuple[str, Truncated]:
        source = self._book.get(claim.source)
        if source is None or source.site not in self._keyring.peers:
            raise CommandError(f"lease {lease.id}: its site can't be told")
        statement = self.early_end(lease, claim, at)
        number = self._kernel.next("serial")
        return source.site, Truncated(lease.id, number, self._ticket_again(lease, claim), statement, saving, reason)

    def _ticket_again(self, lease: BrokerLease, claim: Granted) -> bytes:
        """The ticket that was cut for ``claim``: the same bytes, since signatures are deterministic."""
        peer = self._keyring.peers.get(lease.holder)
        for holder in peer.keys if peer is not None else ():
            ticket = self.cut(claim, holder)
            if ticket.leaf.digest == claim.digest:
                return ticket.encode()
        raise CommandError(f"lease {lease.id}: its ticket can't be made again")

    def _signer_from(self, source: str) -> Signer:
        """Who cuts claims from a delegation, and speaks of them: the key that it was given to."""
        known = self._book.get(source)
        return self._keyring.signer if known is None else self._keyring.signer_of(self._book.ticket(source).leaf.holder)

    # -- receipts ----------------------------------------------------------------------------------------------

    def is_of_site(self, claim: Granted, peer: str) -> bool:
        """Whether ``peer`` is the site whose units are claimed."""
        if self._book.get(claim.source) is None:
            return False
        return self._book.ticket(claim.source).root.issuer in self._keyring.keys_of(peer)

    def check_receipt(self, lease: BrokerLease, claim: Granted, data: bytes) -> Statement:
        """The site's receipt for a claim of a lease, which is kept. Raises ``TicketError`` if it is none."""
        holder = self._keyring.peers.get(lease.holder)
        key = holder.key.hex() if holder is not None else ""
        issuer = self._signer_from(claim.source).public.hex()
        about = (lease.id, issuer, key, lease.type, claim.units, *claim.term)
        return keep_receipt(self._kernel, self._keyring, self._book.ticket(claim.source), claim.digest, about, data)


def place_of(lease: BrokerLease, op: str, term: Term) -> int:
    """Which of a lease's claims a request is about: the one that a modify begins in, else the last."""
    within = (n for n, one in enumerate(lease.claims) if one.term.start <= term.start < one.until and op == MODIFY)
    return next(within, len(lease.claims) - 1)


def concerned(lease: BrokerLease) -> Granted:
    """The claim that a lease's request is about."""
    return lease.claims[place_of(lease, lease.asked.op, lease.asked.term)]


def booked_until(lease: BrokerLease) -> Instant:
    """When a lease is over: when its last claim is, and no modify that shortened it can be undone any more."""
    return max(claim.booked_until for claim in lease.claims)


LATE: Final[Duration] = MINUTE
"""How late a request may come whose start is past, for all that is booked at its start to be known."""
PAST_KEPT: Final[Duration] = HOUR
"""How long what is past is known at most."""


@keeps(derived="_cut_off _closings ahead")
@attrs.define(eq=False, slots=False)
class GrantedClaims:
    """The claims of a broker's leases, which are booked in ``book``."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _queue: RequestQueue
    _book: Book
    _statements: Statements
    _cut_off: dict[str, str] = attrs.field(factory=dict, init=False)
    _closings: int = attrs.field(default=0, init=False)
    usage: UsageBook | None = attrs.field(default=None, init=False)
    """What each holder has been granted, if the mapper goes by it."""
    ended: EndedBook | None = attrs.field(default=None, init=False)
    """The leases that have ended, if the mapper wants to know."""
    ahead: Ledger = attrs.field(factory=Ledger, init=False)
    """What each holder has booked over terms that begin later than an instant, in unit-milliseconds."""
    freed: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """What happens, in order, when a lease is over."""
    moved: list[Callable[[BrokerLease], None]] = attrs.field(factory=list, init=False)
    """What happens, in order, when a lease has other claims, or is over."""
    shrunk: list[Callable[[BrokerLease], None]] = attrs.field(factory=list, init=False)
    """What happens, in order, when something of a lease's claims has come free."""

    def __attrs_post_init__(self) -> None:
        self.leases, self.name = self._served.leases, self._served.name

    def count_usage(self, usage: UsageBook) -> None:
        """Note in ``usage`` what is granted."""
        self.usage = usage

    def note_ends(self, ended: EndedBook) -> None:
        """Note in ``ended`` how leases end."""
        self.ended = ended

    def set(self, lease: BrokerLease, claims: tuple[Granted, ...]) -> None:
        """The lease's claims are these from now on."""
        if self.usage is not None:
            self.usage.replace(lease.holder, lease.type, lease.claims, claims, self._kernel.now)
            self._kernel.changes += self.usage.take_changes()
        self._count_ahead(lease, -1)
        lease.claims = claims
        self._count_ahead(lease, 1)
        for tell in self.moved:
            tell(lease)

    def _count_ahead(self, lease: BrokerLease, sign: int) -> None:
        """What has begun by now counts at no instant to come, and what is over was taken off then."""
        for claim in lease.claims if lease.ended < 0 else ():
            start = claim.term.start
            if self._kernel.now < start < claim.until:
                amount = sign * claim.units * (claim.until - start)
                self.ahead.add(lease.holder, lease.type, amount, Term(0, start))

    def changed(self, lease: BrokerLease) -> None:
        """Something of the lease's claims has come free, or not any more."""
        self._book.note_news()
        self._kernel.touch(lease)
        for tell in self.shrunk:
            tell(lease)

    def is_held(self, claim: Granted) -> bool:
        """Whether what ``claim`` was cut from is still held."""
        return self._book.get(claim.source) is not None

    # -- a claim takes another's place ---------------------------------------------------------------------------

    def add(self, lease: BrokerLease, place: int, made: Sequence[Granted], cut_at: Instant = -1) -> bytes:
        """``made`` come after the claim at ``place``. From ``cut_at`` on they stand in that claim's stead: returns the
        statement that it ends there.
        """
        truncation = b""
        before, after = lease.claims[: place + 1], lease.claims[place + 1 :]
        if cut_at >= 0:
            old = before[-1]._replace(until=cut_at, held=True)
            truncation = self._statements.early_end(lease, old, cut_at)
            before = (*before[:-1], old)
            self._book.hold_rest(old, made[0])
            self._cut_off[old.digest.hex()] = lease.id
        self.set(lease, (*self._going_on(before), *made, *after))
        if self.ended is not None:
            self.ended.granted(lease)
        return truncation

    def _going_on(self, claims: Sequence[Granted]) -> list[Granted]:
        """The claims without those that are over, but for the last. What a modify left of one that was cut off is known
        by the claim after it: both stay as long as that may be booked.
        """
        kept: list[Granted] = []
        follows = False
        for claim in claims[:-1]:
            if claim.held and claim.term.end <= self._kernel.now:
                self._free_rest(claim)
                claim = claim._replace(held=False)
            if claim.until > self._kernel.now or claim.held or follows:
                kept.append(claim)
            follows = claim.held
        return [*kept, *claims[-1:]]

    def with_cut_off(self, digest: str) -> BrokerLease | None:
        """The lease whose claim of that ``digest`` was cut off, and is not confirmed to end early."""
        return self.leases.get(self._cut_off.get(digest, ""))

    def undo(self, lease: BrokerLease, claim: Granted) -> None:
        """The claim of an extend or modify came back unused: the lease is as it was before it.

        What a modify took from the claim before it is booked again: as long as the site has not confirmed that it ends
        early nobody else has it, else if nobody has it by now.
        """
        self._book.end_early(claim, claim.term.start)
        if claim.held:  # another has its place
            self._free_rest(claim)
        place = lease.claims.index(claim)
        before = lease.claims[place - 1]
        rest = (*lease.claims[:place], *lease.claims[place + 1 :])
        is_cut = before.until == claim.term.start or claim.unused_until >= 0
        if place and not claim.held and is_cut and before.until < before.term.end:
            self._free_rest(before)
            whole = before._replace(until=before.term.end, held=False)
            left = whole if self._book.reopen(whole, force=before.held) else before._replace(held=False)
            rest = tuple(left if c is before else c for c in rest)
        self.set(lease, rest)

    # -- a claim ends --------------------------------------------------------------------------------------------

    def leave_out(self, lease: BrokerLease, claim: Granted) -> None:
        """The claim is over before it begins, and what came before it is."""
        self._book.end_early(claim, claim.term.start)
        self.settle_cut(lease, lease.claims.index(claim))
        self.set(lease, tuple(c for c in lease.claims if c is not claim))

    def end(self, lease: BrokerLease, claim: Granted, at: Instant) -> None:
        """The site counts a claim to ``at`` and no longer."""
        ended = self._ended_at(claim, at)
        self.set(lease, tuple(ended if c is claim else c for c in lease.claims))

    def _ended_at(self, claim: Granted, at: Instant) -> Granted:
        """What is booked beyond ``at`` is free. The claim's term ends there as well, so that no modify that is undone
        later gives it back more.
        """
        ended = claim._replace(term=Term(claim.term.start, max(at, claim.term.start + 1)))
        if claim.held and at > max(claim.until, self._kernel.now):
            self._book.end_rest(claim, at)
        elif claim.held:
            self._free_rest(claim)
            ended = ended._replace(held=False)
        if at < claim.until:
            self._book.end_early(claim, at)
            ended = ended._replace(until=at)
        return ended

    def settle_cut(self, lease: BrokerLease, place: int) -> None:
        """Nothing is booked any more for what is left of the claims before ``place``: its site has gone on to that."""
        if any(claim.held for claim in lease.claims[:place]):
            for claim in lease.claims[:place]:
                self._free_rest(claim)
            settled = (claim._replace(held=False) for claim in lease.claims[:place])
            self.set(lease, (*settled, *lease.claims[place:]))

    def settle_for(self, lease: BrokerLease, place: int) -> None:
        """As :meth:`settle_cut`. What a lease under notice gives back is kept for the one that it makes room for."""
        other = self.leases.get(lease.ending.promised)
        if other is None or other.room.promise is None:
            self.settle_cut(lease, place)
        else:
            kept = (claim._replace(kept=claim.held) for claim in lease.claims[:place])
            self.set(lease, (*kept, *lease.claims[place:]))
        if lease.is_noticed:
            self.changed(lease)

    def free_kept(self, lease: BrokerLease) -> None:
        """What was kept of a lease's claims is free."""
        for claim in lease.claims:
            if claim.kept:
                self._free_rest(claim)
        settled = (claim._replace(held=False, kept=False) if claim.kept else claim for claim in lease.claims)
        self.set(lease, tuple(settled))
        self._kernel.touch(lease)

    def _free_rest(self, claim: Granted) -> None:
        self._cut_off.pop(claim.digest.hex(), None)
        self._book.free_rest(claim)
        self._book.note_news()

    def notice(self, lease: BrokerLease, claim: Granted, at: Instant, reason: Reason) -> None:
        """Tell a guest that a claim of its lease, and what goes on from it, ends at ``at``."""
        statement = self._statements.early_end(lease, claim, at)
        update = TicketUpdate(lease.id, lease.update + 1, 0, "terminating", b"", "", {}, statement, reason, -1)
        self._served.publish(lease, update)

    def check_saved_by(self, lease: BrokerLease, at: Instant) -> Duration:
        """How long before ``at`` a lease that is suspended must be saved. Raises ``CommandError`` if it can't be."""
        source = self._book.get(lease.claims[-1].source)
        if source is None or not saves(source.properties):
            raise CommandError(f"lease {lease.id} can't be suspended: its site saves no {lease.type!r}")
        saving = lease.terms.suspend
        if not saving:
            raise CommandError(f"lease {lease.id} can't be suspended: it doesn't say how long that takes (suspend)")
        begun = max(self._kernel.now, lease.claims[0].term.start)
        if at - saving < begun:
            raise CommandError(
                f"lease {lease.id} can't be suspended by {mark(at)}: that takes {saving} from {mark(begun)} on"
            )
        return saving

    # -- a lease ends --------------------------------------------------------------------------------------------

    def over(self, lease: BrokerLease, reason: Reason) -> None:
        """The lease is over: nothing of it is booked, and it asks for nothing."""
        self.settle_cut(lease, len(lease.claims))
        self._count_ahead(lease, -1)
        lease.ended, lease.reason = self._kernel.now, reason
        lease.waits = lease.waits._replace(number=0)
        if self.usage is not None:  # now: after a restart its row is history, which is not read
            self.usage.let_go(lease.holder, lease.type, lease.claims)
            self._kernel.changes += self.usage.take_changes()
        if self.ended is not None:
            self.ended.over(lease, self._book.site_of(lease.claims[-1].source), reason)
        self._queue.remove(lease)
        for tell in self.moved:
            tell(lease)
        for told in self.freed:
            told()
        self._closings += 1
        if self._closings % self._kernel.tidy_every == 0:
            self._book.forget_before(self._past())
            self.ahead.forget_before(self._kernel.now)

    def _past(self) -> Instant:
        """Before when nothing is granted any more: a request that waits, or comes late, may have a start that is past,
        and claims that have ended count there, since whoever verifies claims adds up all of a time.
        """
        now = self._kernel.now
        first = min((lease.asked.term.start for lease in self._queue.leases.values()), default=now)
        return max(now - PAST_KEPT, min(now, first) - LATE)

    def restore(self, rows: Iterable[Row], usage: Iterable[Row]) -> None:
        """Take up the leases, and what was used, that a store kept."""
        if self.usage is not None:
            self.usage.restore(usage, self._kernel.now)
            self._kernel.changes += self.usage.take_changes()
        for row in rows:
            lease = BrokerLease.from_row(row)
            self._served.restore(lease, row)
            if self.usage is not None:
                self.usage.replace(lease.holder, lease.type, (), lease.claims, self._kernel.now)
            self._count_ahead(lease, 1)
            for claim in lease.claims:
                self._book.reserve_again(claim)
            for old, new in pairwise(lease.claims):
                if old.held:
                    self._book.hold_rest(old, new)
                    self._cut_off[old.digest.hex()] = lease.id
            if lease.room.promise is not None:
                self._book.promise(lease.room.promise)
            if lease.unacked:
                self._kernel.owe(lease, lease.holder)
            self._kernel.schedule(lease, self._kernel.now if lease.unacked else self._kernel.due_at(lease))


REPLACED = "replaced"


@attrs.define(eq=False)
class ReturnedTickets:
    """What comes back of what was granted, with the site's receipt."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _granted: GrantedClaims
    _statements: Statements

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

    def _take_back(self, lease: BrokerLease, claim: Granted, data: bytes, why: Code = Code.GIVEN_BACK) -> None:
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
        if lease.is_ticketed:
            left = (Reason(Code.LEFT, units=one.units, at=one.term.start, until=one.until) for one in lease.claims)
            told = Reason(Code.CAME_BACK, units=claim.units, at=receipt.at).because(*left)
            self._kernel.fire(lease, "returned" if over else "return", told)
            if over:
                self._granted.over(lease, Reason(why, at=claim.redeem_by if why == Code.LAPSED else -1))
        self._granted.changed(lease)

    def truncated(self, notice: Notice, receipt: bytes) -> None:
        """A site knows of the early end of a claim, and has given ``receipt``."""
        message, lease = notice.content(), self._granted.leases.get(notice.subject)
        if not isinstance(message, Truncated) or lease is None or not receipt:
            return
        subject = decode_statement(message.truncation).subject
        claim = next((one for one in lease.claims if one.digest == subject), None)
        if claim is None or not self._granted.is_held(claim):
            return
        if message.reason is not None and message.reason.code == Code.LAPSED:
            self._granted.notice(lease, claim, claim.term.start, message.reason)
            self._take_back(lease, claim, receipt, Code.LAPSED)
            return
        at = self._statements.check_receipt(lease, claim, receipt).at
        if at < claim.term.end:
            self._granted.end(lease, claim, at)
            self._granted.changed(lease)


@attrs.define(eq=False)
class ReportsOfSites:
    """What sites say of the claims that they are shown."""

    _kernel: Kernel
    _keyring: Keyring
    _granted: GrantedClaims
    _statements: Statements
    _reports: Reports

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
                self._granted.settle_for(lease, place + 1)
                self._kernel.touch(lease)


@keeps(derived="_order _places")
@attrs.define(eq=False, slots=False)
class BookedTimes:
    """The leases that have claims, in the order in which they begin: from the first question on, as most brokers are
    never asked.
    """

    _granted: GrantedClaims
    _order: list[tuple[Instant, Instant, str]] | None = attrs.field(default=None, init=False)
    """When each begins and ends, and its id."""
    _places: dict[str, tuple[Instant, Instant, str]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._granted.moved.append(self._moved)

    def within(self, term: Term) -> Iterator[BrokerLease]:
        """Those that have a part of a term, in order."""
        if self._order is None:
            self._order = []
            for lease in self._granted.leases.values():
                self._moved(lease)
        order = self._order
        for place in range(bisect_left(order, (term.end,))):
            _, end, id_ = order[place]
            if end > term.start:
                yield self._granted.leases[id_]

    def _moved(self, lease: BrokerLease) -> None:
        if self._order is None:
            return
        before = self._places.pop(lease.id, None)
        if before is not None:
            del self._order[bisect_left(self._order, before)]
        if lease.claims and lease.ended < 0:
            after = self._places[lease.id] = (lease.claims[0].term.start, lease.claims[-1].term.end, lease.id)
            insort(self._order, after)


class LeaseClock(Protocol):
    """Something that time does to leases with claims."""

    def due_at(self, lease: BrokerLease) -> Instant | None:
        """When that is next."""

    def due(self, lease: BrokerLease) -> None:
        """Do it, if it is due."""


@attrs.define(eq=False)
class Lapses:
    """Tickets that nobody redeems in time: their sites are asked, whose receipts free the units."""

    _kernel: Kernel
    _granted: GrantedClaims
    _statements: Statements
    _notices: Notices

    def due_at(self, lease: BrokerLease) -> Instant | None:
        """When the next claim of a lease may have lapsed, by any clock that is obeyed."""
        grace = 2 * self._kernel.settings.clock_skew
        ends = (claim.redeem_by + grace for claim in lease.claims if 0 <= claim.redeem_by < claim.until - grace)
        return min((at for at in ends if at > lease.looked), default=None)

    def due(self, lease: BrokerLease) -> None:
        """Ask whether the claims that are due were redeemed; those whose sites can't be asked stay booked."""
        while (at := self.due_at(lease)) is not None and at <= self._kernel.now:
            lease.looked = at
            for claim in lease.claims:
                if claim.redeem_by + 2 * self._kernel.settings.clock_skew == at:
                    with suppress(CommandError):
                        site, message = self._statements.lapsed(lease, claim)
                        self._notices.owe(f"lapse:{lease.id}#{claim.key}", site, message, claim.term.end)
            self._kernel.touch(lease)


TOLD_AGAIN: Final[Duration] = MINUTE
"""After so long it is tried again to end a lease early whose site is no peer, and can't be told: it may come back."""


@attrs.define(eq=False)
class LongestRuns:
    """Preemptible leases that have run for as long as they may: as they say, and no longer than ``max_run`` (0: there
    is no limit).
    """

    _kernel: Kernel
    _end: Callable[[BrokerLease, Instant, Reason], None]
    """Ends one early; raises ``CommandError`` where a site can't be told."""
    _max_run: Duration

    def due_at(self, lease: BrokerLease) -> Instant | None:
        """When such a lease is to hear that it ends."""
        last = lease.claims[-1]
        longest = min(filter(None, (lease.terms.max_run, self._max_run)), default=0)
        if not longest or not last.preemptible or lease.is_noticed:
            return None
        end = lease.terms.since + longest
        return max(end - lease.terms.notice, lease.told_again) if end < last.until else None

    def due(self, lease: BrokerLease) -> None:
        """End it, if its time has come."""
        due = self.due_at(lease)
        if due is None or due > self._kernel.now:
            return
        at = max(due, self._kernel.now) + lease.terms.notice
        why = Reason(Code.MAX_RUN, at=at)
        try:
            self._end(lease, at, why)
        except CommandError as error:
            if lease.told_again < 0:
                self._kernel.complain(f"a lease has run for as long as it may, and goes on until that is told: {error}")
            lease.told_again = self._kernel.now + TOLD_AGAIN
        self._kernel.touch(lease)
