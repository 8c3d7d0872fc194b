"""When time concerns a broker's leases: requests that nobody grants, terms that are over, updates to be sent again."""

from __future__ import annotations

from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import GrantedClaims, booked_until
from leasekit.actors.kernel import Kernel, earliest
from leasekit.actors.served import Served
from leasekit.core.leases import broker as br
from leasekit.core.leases.records import BrokerLease
from leasekit.core.protocol.messages import NEW
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant


class LeaseTerms:
    """The timers of leases."""

    def __init__(
        self, kernel: Kernel, served: Served[BrokerLease], book: Book, granted: GrantedClaims, answers: Answers
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._book = book
        self._granted = granted
        self._answers = answers
        kernel.register(BrokerLease, due_at=self._due_at, on_due=self._due, owes=served.owes, send=served.send_now)

    def _due_at(self, lease: BrokerLease) -> Instant | None:
        if lease.ended >= 0:
            return earliest(lease.send_at if lease.unacked else None, self._served.drop_at(lease))
        waiting = lease.deadline if lease.request else None
        ends = booked_until(lease) if lease.claims else None
        return earliest(lease.send_at if lease.unacked else None, waiting, ends)

    def _due(self, lease: BrokerLease) -> None:
        if lease.ended >= 0 and self._served.drop_at(lease) <= self._kernel.now:
            self._granted.drop(lease)
            return
        if lease.request and lease.deadline <= self._kernel.now:
            self._answers.reject(lease, self._why_expired(lease), event="expire")
        if lease.unacked and lease.send_at <= self._kernel.now:
            self._served.send(lease)
        if lease.ended < 0 and lease.claims and booked_until(lease) <= self._kernel.now:
            self._kernel.fire(br.MACHINE, lease, "end", Reason(Code.TERM_OVER))
            self._book.note_news()
            self._granted.over(lease, Reason(Code.TERM_OVER))

    def _why_expired(self, lease: BrokerLease) -> Reason:
        if lease.group and lease.asked.op == NEW:
            have, count = self._book.group_size(lease.id)
            if have < count or not count:
                return Reason(Code.GROUP_INCOMPLETE, what=lease.group, units=have, of=count or -1)
        return Reason(Code.NOT_GRANTED).because(lease.defer_reason)
