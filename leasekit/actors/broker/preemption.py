"""Leases that a broker ends early, and what others are promised for that.

Theory of operation. A grant that names victims ends these, and books what it grants, in one step: more is booked then
than there is, so that nobody else gets it, until the site of each victim has accepted its end. The request waits on,
without a ticket; its mapper is not shown it any more. When all ends are accepted the ticket is cut. If the request
would rather start earlier it is cut only shortly before its start, or as soon as the victims have left by themselves:
it starts at once then. What is booked is free again when the request is withdrawn, or waits for too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import attrs

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import TRUNCATE, GrantedClaims, Statements, ends_from
from leasekit.actors.broker.grants import Answers, GrantChecks, TicketCutter
from leasekit.actors.kernel import Kernel, command, keeps
from leasekit.actors.served import Notices
from leasekit.core.accounts import PRICE
from leasekit.core.answers import EvictedLease
from leasekit.core.commands import EvictLease
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases.records import NO_ROOM, BrokerLease, Granted, MadeRoom
from leasekit.core.mappers import Grant, Preempt, Price
from leasekit.core.protocol.messages import NEW, Truncated
from leasekit.core.reasons import Code, Reason, clip, mark, of_mapper
from leasekit.core.requests import REQUEUE, Options, parse_options
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, Term
from leasekit.core.timetable import Shortfall

HAND_OVER: Final[Duration] = 10 * SECOND
"""How long before its start a promised ticket is cut, where it would rather start earlier."""

Told: TypeAlias = tuple[Granted, str, Truncated]
"""A claim that ends early, its site, and what that is told."""


@attrs.define(eq=False)
class Preemption:
    """The leases that are ended early."""

    _kernel: Kernel
    _granted: GrantedClaims
    _statements: Statements
    _notices: Notices
    _answers: Answers

    @command("lease.evict")
    def _evict(self, asked: EvictLease) -> EvictedLease:
        lease = self._granted.leases.get(asked.lease)
        if lease is None or lease.ended >= 0:
            raise CommandError(f"lease: found {asked.lease!r:.80}, which is no lease here that goes on", Code.NOT_FOUND)
        why = Reason(Code.EVICTED, detail=clip(asked.reason or "no reason given"))
        at = max(asked.at, self._kernel.now)
        if not lease.is_ticketed:
            self._answers.reject(lease, why)
        elif lease.claims[-1].preemptible:
            self.end_at(lease, at, why)
        else:
            raise CommandError(
                f"lease {lease.id} is firm: its broker can't end it. Its site can, as soon as the ticket is redeemed:"
                f" `leasekit site evict {lease.id}`"
            )
        return EvictedLease(lease.id, lease.holder, at)

    def preempt(self, one: Preempt) -> None:
        """End a preemptible lease, as the mapper says. Raises ``CommandError``."""
        lease, reason = self.victim(one), of_mapper(one.reason)
        self.end(lease, one.at, reason, self.told(lease, one.at, reason, suspend=one.suspend), suspend=one.suspend)

    def victim(self, one: Preempt) -> BrokerLease:
        """The lease that a mapper wants to be ended. Raises ``CommandError`` where that is too early for it."""
        lease = self._granted.leases.get(one.lease)
        if lease is None or not lease.is_ticketed or not lease.claims:
            raise CommandError(f"lease {one.lease!r} holds nothing that could be taken from it")
        first = lease.terms.least_end if one.suspend else ends_from(lease, self._kernel.now)
        if lease.terms.since < one.at < first:
            raise CommandError(
                f"lease {lease.id} can be ended from {mark(first)} on, after its notice and its least run: at is "
                f"{mark(one.at)}"
            )
        return lease

    def told(self, lease: BrokerLease, at: Instant, reason: Reason, *, suspend: bool = False) -> list[Told]:
        """What sites are told when a lease is ended at ``at``. With ``suspend`` they save it by then. Raises
        ``CommandError``, with nothing changed.
        """
        last = lease.claims[-1].until
        if not self._kernel.now <= at < last or lease.is_noticed:
            raise CommandError(f"lease {lease.id} ends at {mark(last)}: at is {mark(at)}, or it was preempted before")
        # A renewal in hand is a claim of its own: all that go on after ``at`` are ended, or none. So is what a modify
        # cut off, which the site may still go by.
        saving = self._granted.check_saved_by(lease, at) if suspend else 0
        going_on = [claim for claim in lease.claims if claim.booked_until > at]
        return [(claim, *self._statements.truncated(lease, claim, at, saving, reason)) for claim in going_on]

    def end_at(self, lease: BrokerLease, at: Instant, why: Reason) -> None:
        """End a preemptible lease at ``at``. Raises ``CommandError``, with nothing changed."""
        self.end(lease, at, why, self.told(lease, at, why))

    def end(
        self, lease: BrokerLease, at: Instant, reason: Reason, told: Iterable[Told], *, suspend: bool = False
    ) -> None:
        """End a preemptible lease at ``at``: its sites are ``told`` until they accept, and its guest hears of it."""
        if lease.waits.number:
            self._answers.reject(lease, Reason(Code.PREEMPTED_BY).because(reason))
        lease.ending = lease.ending._replace(at=at, suspended=suspend or lease.terms.on_preempt == REQUEUE)
        self._kernel.fire(lease, "preempt", Reason(Code.ENDS_AT, at=at).because(reason))
        for claim, site, message in told:
            self._notices.owe(f"{TRUNCATE}{lease.id}#{claim.key}", site, message, claim.term.end)
        by = Reason(Code.ENDED_BY, self._granted.name)
        self._granted.notice(lease, lease.claims[-1], at, by.because(reason))


@keeps(volatile="_prices")
@attrs.define(eq=False)
class Market:
    """What units cost, as the mapper says: each change is noted in the log, by which accounts know it."""

    _kernel: Kernel
    _book: Book
    _prices: dict[str, Price] = attrs.field(factory=dict, init=False)

    def set(self, one: Price) -> None:
        """The price of a type from now on. Raises ``CommandError`` for one that is none."""
        if not self._book.of_type(one.type):
            raise ArgumentError(f"type: found {one.type!r:.80}, which nobody has delegated")
        for name, found, least in (("price", one.price, 0), ("period", one.period, 1)):
            if not least <= found <= INSTANT_MAX:
                raise ArgumentError(f"{name} of {one.type!r}: found {found}, expected {least} to {INSTANT_MAX}")
        if self._prices.get(one.type) != one:
            self._prices[one.type] = one
            self._kernel.note(PRICE, PRICE, "", "", Reason(Code.PRICE, what=one.type, units=one.price, of=one.period))


@attrs.define(eq=False, slots=False)
class Promises:
    """What leases are to get when others have made room for it."""

    _kernel: Kernel
    _granted: GrantedClaims
    _checks: GrantChecks
    _cutter: TicketCutter
    _preemption: Preemption

    def __attrs_post_init__(self) -> None:
        self._granted.shrunk.append(self._changed)

    def promise(self, lease: BrokerLease, options: Options, grant: Grant) -> None:
        """End the victims of a grant, and book it; or change nothing. Raises ``CommandError``."""
        if lease.asked.op != NEW or lease.group:
            raise CommandError("others make room for one new request at a time, which is of no group")
        if lease.room.promise is not None:
            raise CommandError(f"lease {lease.id} waits for others to make room already")
        self._checks.check(lease, options, grant)
        if len({one.lease for one in grant.victims}) < len(grant.victims):
            raise CommandError(f"victims of lease {lease.id}: one is named twice")
        ends: dict[str, tuple[BrokerLease, Preempt, Reason, list[Told]]] = {}
        for one in grant.victims:
            victim = self._preemption.victim(one)
            why = Reason(Code.MAKES_ROOM, who=lease.id, at=one.at)
            if options.preemptible:
                why = Reason(Code.OUTBID, lease.id, units=options.bid or 0, of=victim.terms.bid, at=one.at)
            reason = why.because(of_mapper(one.reason))
            self._checks.check_above(lease, options, victim)
            told = self._preemption.told(victim, one.at, reason, suspend=one.suspend)
            ends[victim.id] = victim, one, reason, told
        lease.room = MadeRoom(self._cutter.promise(lease, options, grant), tuple(ends))
        lease.defer_reason = Reason(Code.PROMISED, units=len(ends), at=grant.term.start)
        for victim, one, reason, told in ends.values():
            victim.ending = victim.ending._replace(promised=lease.id)
            self._preemption.end(victim, one.at, reason, told, suspend=one.suspend)
        self._granted.changed(lease)

    def _changed(self, lease: BrokerLease) -> None:
        """Something of a lease has come free: that may be the last thing that another waits for."""
        for each in (lease, self._granted.leases.get(lease.ending.promised)):
            promise, victims, _ = each.room if each is not None else NO_ROOM
            if each is not None and promise is not None and not any(map(self._holds, victims)):
                self._hand_over(each, promise)

    def _holds(self, name: str) -> bool:
        """Whether a victim's site has not accepted its end yet."""
        lease = self._granted.leases.get(name)
        if lease is None or lease.ended >= 0:
            return False
        return any(claim.booked_until > max(lease.ending.at, claim.term.start) for claim in lease.claims)

    def _hand_over(self, lease: BrokerLease, promise: Granted) -> None:
        """Grant what was promised: from as early as it can start, and not long before if that may change yet. What
        victims have given back of what they have is for nobody else until then.
        """
        victims = (self._granted.leases.get(name) for name in lease.room.victims)
        kept = [claim for victim in victims if victim is not None for claim in victim.claims if claim.kept]
        options, now = parse_options(lease.asked.properties, lease.asked.term), self._kernel.now
        start, begin = promise.term.start + promise.prepare, max(lease.asked.term.start, now)
        length = promise.term.end - start
        if options.deferrable and not promise.prepare and begin != start:
            found = self._cutter.earliest(promise, options, Term(begin, max(begin, start)), kept)
            if begin < start == found and now < start - HAND_OVER:
                lease.room = lease.room._replace(hand_over=start - HAND_OVER)
                self._kernel.touch(lease)
                return
            start = start if found is None else found
        grant = Grant(
            lease.id, promise.source, promise.units, Term(start, start + length), promise.preemptible, promise.prepare
        )
        self._cutter.take_back(lease)
        try:
            self._checks.check(lease, options, grant)
            portion = self._checks.choose(lease, options, grant)
            key = self._cutter.reserve(lease, grant, portion)
        except (CommandError, Shortfall):
            return  # there is less than there was: the request waits for the mapper again
        self._cutter.cut(lease, grant, options, key, portion)
