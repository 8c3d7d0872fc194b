"""How a broker answers requests: the lease goes on or is over, nothing waits any more, and its guest is told."""

from __future__ import annotations

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.introductions import Introductions
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.core.leases import broker as br
from leasekit.core.leases.plans import HOLD, PlanHold
from leasekit.core.leases.records import BrokerLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import EMPTY
from leasekit.core.protocol.messages import TicketUpdate
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant


class Answers:
    """The answers to requests that waited in ``queue``."""

    def __init__(
        self,
        kernel: Kernel,
        served: Served[BrokerLease],
        queue: RequestQueue,
        book: Book,
        introductions: Introductions,
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._queue = queue
        self._book = book
        self._introductions = introductions

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
        further: bytes = b"",
    ) -> None:
        """The request of ``lease`` is over, as ``status`` says: its guest is told until it acknowledges that."""
        number, lease.defer_reason = lease.request, None
        lease.request = 0
        self._queue.remove(lease)
        if status == "granted":
            self._book.leave_group(lease.id)
        if lease.state in (br.CLOSED, br.FAILED):
            lease.ended, lease.reason = self._kernel.now, reason
        site, properties, endorsement = "", EMPTY, b""
        if source is not None:
            site, properties = source.site, source.properties
            endorsement = self._introductions.introduce(lease.holder, source, lease.claims[-1].term.end)
        self._served.publish(
            lease,
            TicketUpdate(
                lease.id, lease.update + 1, number, status, ticket, site, properties, truncation, reason,
                -1 if fits is None else fits, endorsement, further,
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
