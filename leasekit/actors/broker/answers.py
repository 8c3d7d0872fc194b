"""How a broker answers requests: the lease goes on or is over, nothing waits any more, and its guest is told. Leases
whose term is over, and those that are preempted, are told of as well.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs

from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.claims import GrantedClaims, Statements, booked_until
from leasekit.actors.kernel import Kernel, command, earliest
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.served import Notices, Served
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.commands import EvictLease
from leasekit.core.errors import CommandError
from leasekit.core.leases import broker as br
from leasekit.core.leases.plans import HOLD, PlanHold
from leasekit.core.leases.records import BrokerLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.protocol.messages import NEW, Introduce, TicketUpdate
from leasekit.core.reasons import Code, Reason, clip, mark
from leasekit.core.time import DAY, Instant


@attrs.define(eq=False, slots=False)
class Introductions:
    """What a broker has said of whom to whom. It says nothing unless it is to ``endorse``."""

    _kernel: Kernel
    _keyring: Keyring
    _peering: Peering
    _notices: Notices
    _endorse: bool
    _told: dict[tuple[str, str], tuple[Instant, Instant]] = attrs.field(factory=dict, init=False)
    _endorsements: dict[str, bytes] = attrs.field(factory=dict, init=False)

    def introduce(self, guest: str, source: Delegation, until: Instant) -> bytes:
        """If the settings say so, make a guest, whose lease ends at ``until``, known at the site of ``source``. Returns
        the site's endorsement for the guest.
        """
        site = source.site
        holder, place = self._keyring.peers.get(guest), self._keyring.peers.get(site)
        if not self._endorse or holder is None or place is None:
            return b""
        at, told = self._told.get((guest, site), (-DAY, 0))
        if at + DAY <= self._kernel.now or told + DAY < until:  # or the site may forget, before the lease begins
            self._told[guest, site] = self._kernel.now, max(told, until)
            number = self._kernel.next("serial")
            message = Introduce(guest, number, self._peering.endorsement(holder), until)
            # Due for longer than the lease is: the guest's next one may not be introduced anew.
            self._notices.owe(f"introduce:{guest}@{site}", site, guest, number, message, max(until, source.term.end))
        if site not in self._endorsements:
            self._endorsements[site] = self._peering.endorsement(place)
        return self._endorsements[site]

    def unsay(self, name: str) -> None:
        """What was said of a peer may not hold any more: it is said anew."""
        self._told = {pair: told for pair, told in self._told.items() if name not in pair}
        self._endorsements.pop(name, None)


@attrs.define(eq=False, slots=False)
class Answers:
    """The answers to requests that waited in ``queue``."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _queue: RequestQueue
    _book: Book
    _introductions: Introductions

    def settle(
        self,
        lease: BrokerLease,
        status: str,
        reason: Reason | None,
        *,
        ticket: bytes = b"",
        source: Delegation | None = None,
        truncation: bytes = b"",
        fits: Instant | None = None,
        continuations: bytes = b"",
    ) -> None:
        """The request of ``lease`` is over, as ``status`` says: its guest is told until it acknowledges that."""
        number, lease.defer_reason = lease.request, None
        lease.request = 0
        self._queue.remove(lease)
        if status == "granted":
            self._book.leave_group(lease.id)
        if lease.state in (br.CLOSED, br.FAILED):
            lease.ended, lease.reason = self._kernel.now, reason
        site, endorsement = "", b""
        properties: Properties = EMPTY
        classes: tuple[Properties, ...] = ()
        if source is not None:
            site, (properties, classes) = source.site, self._book.attributes_of(decode_ticket(ticket).leaf.classes)
            endorsement = self._introductions.introduce(lease.holder, source, lease.claims[-1].term.end)
        self._served.publish(
            lease,
            TicketUpdate(
                lease.id, lease.update + 1, number, status, ticket, site, properties, truncation, reason,
                -1 if fits is None else fits, endorsement, continuations, classes,
            ),
        )  # fmt: skip

    def reject(self, lease: BrokerLease, reason: Reason, fits: Instant | None = None, event: str = "refuse") -> None:
        """Refuse the request of ``lease``, and those of its group."""
        self._kernel.fire(br.MACHINE, lease, event, reason)
        lease.reason = reason
        self.settle(lease, "refused", reason, fits=fits)
        self.refuse_group(lease, Reason(Code.GROUP_REFUSED).because(reason))

    def hold_dropped(self, hold: PlanHold, why: Reason) -> None:
        """Refuse what waits for a part of a hold."""
        self._book.note_news()
        mine = f"{hold.id}/"
        for lease in list(self._queue.leases.values()):
            if lease.asked.properties.get(HOLD, "").startswith(mine) and lease.id in self._queue:
                self.reject(lease, Reason(Code.HOLD_EXPIRED).because(why))

    def refuse_group(self, lease: BrokerLease, reason: Reason) -> None:
        """Refuse what waits of the group of ``lease`` beside it."""
        for member in self._book.dissolve_group(lease.id):
            other = self._queue.leases.get(member)
            if other is not None and other is not lease:
                self._kernel.fire(br.MACHINE, other, "refuse", reason)
                self.settle(other, "refused", reason)

    def expire(self, lease: BrokerLease) -> None:
        """The request of ``lease`` has waited for too long."""
        why = Reason(Code.NOT_GRANTED).because(lease.defer_reason)
        if lease.group and lease.asked.op == NEW:
            have, count = self._book.group_size(lease.id)
            if have < count or not count:
                why = Reason(Code.GROUP_INCOMPLETE, what=lease.group, units=have, of=count or -1)
        self.reject(lease, why, event="expire")


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

    def ask(self, lease: BrokerLease) -> None:
        """Ask whether the claims that are due were redeemed; those whose sites can't be asked stay booked."""
        while (at := self.due_at(lease)) is not None and at <= self._kernel.now:
            lease.looked = at
            for claim in lease.claims:
                if claim.redeem_by + 2 * self._kernel.settings.clock_skew == at:
                    with suppress(CommandError):
                        site, message = self._statements.lapsed(lease, claim)
                        id_ = f"lapse:{lease.id}#{claim.key}"
                        self._notices.owe(id_, site, lease.id, message.number, message, claim.term.end)
            self._kernel.touch(lease)


@attrs.define(eq=False)
class LeaseTerms:
    """The timers of leases."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _granted: GrantedClaims
    _answers: Answers
    _lapses: Lapses

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            BrokerLease, due_at=self._due_at, on_due=self._due, awaits=self._served.awaits, send=self._served.send_now
        )

    def _due_at(self, lease: BrokerLease) -> Instant | None:
        if lease.ended >= 0:
            return earliest(lease.send_at if lease.unacked else None, self._served.drop_at(lease))
        waiting = lease.deadline if lease.request else None
        ends = earliest(booked_until(lease), self._lapses.due_at(lease)) if lease.claims else None
        return earliest(lease.send_at if lease.unacked else None, waiting, ends)

    def _due(self, lease: BrokerLease) -> None:
        if lease.ended >= 0 and self._served.drop_at(lease) <= self._kernel.now:
            self._served.drop(lease)
            return
        if lease.request and lease.deadline <= self._kernel.now:
            self._answers.expire(lease)
        if lease.unacked and lease.send_at <= self._kernel.now:
            self._served.send(lease)
        if lease.ended < 0 and lease.claims and booked_until(lease) <= self._kernel.now:
            self._kernel.fire(br.MACHINE, lease, "end", Reason(Code.TERM_OVER))
            self._granted.changed(lease)
            self._granted.over(lease, Reason(Code.TERM_OVER))
        elif lease.ended < 0:
            self._lapses.ask(lease)


TRUNCATE = "truncate:"


@attrs.define(eq=False)
class Preemption:
    """The leases that are ended early."""

    _kernel: Kernel
    _granted: GrantedClaims
    _statements: Statements
    _notices: Notices
    _answers: Answers

    @command("lease.evict")
    def _evict(self, asked: EvictLease) -> dict[str, Any]:
        lease = self._granted.leases.get(asked.lease)
        if lease is None or lease.ended >= 0:
            raise CommandError(f"lease: found {asked.lease!r:.80}, which is no lease here that goes on")
        why = Reason(Code.EVICTED, detail=clip(asked.reason or "no reason given"))
        at = max(asked.at, self._kernel.now)
        if lease.state != br.TICKETED:
            self._answers.reject(lease, why)
        elif lease.claims[-1].preemptible:
            self.preempt(lease.id, at, why)
        else:
            raise CommandError(
                f"lease {lease.id} is firm: its broker can't end it. Its site can: `leasekit site evict {lease.id}`"
            )
        return {"lease": lease.id, "holder": lease.holder, "at": at}

    def preempt(self, lease_id: str, at: Instant, reason: Reason, *, suspend: bool = False) -> None:
        """End a preemptible lease at ``at``: the site is told until it accepts, and the guest hears of it now. With
        ``suspend`` its site saves it by then.

        Raises ``CommandError``.
        """
        lease = self._granted.leases.get(lease_id)
        if lease is None or lease.state != br.TICKETED or not lease.claims:
            raise CommandError(f"lease {lease_id!r} holds nothing that could be taken from it")
        last = lease.claims[-1].until
        if not self._kernel.now <= at < last or lease.cut >= 0:
            raise CommandError(f"lease {lease_id} ends at {mark(last)}: at is {mark(at)}, or it was preempted before")
        # A renewal in hand is a claim of its own: all that go on after ``at`` are ended, or none. So is what a modify
        # cut off, which the site may still go by.
        saving = self._granted.check_saved_by(lease, at) if suspend else 0
        going_on = [claim for claim in lease.claims if claim.booked_until > at]
        notices = [(claim, *self._statements.truncated(lease, claim, at, saving, reason)) for claim in going_on]
        if lease.request:
            self._answers.reject(lease, Reason(Code.PREEMPTED_BY).because(reason))
        lease.cut, lease.suspended = at, suspend
        self._kernel.fire(br.MACHINE, lease, "preempt", Reason(Code.ENDS_AT, at=at).because(reason))
        for claim, site, message in notices:
            id_ = f"{TRUNCATE}{lease.id}#{claim.key}"
            self._notices.owe(id_, site, lease.id, message.number, message, claim.term.end)
        self._granted.notice(lease, lease.claims[-1], at, reason)
