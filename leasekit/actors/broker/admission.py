"""What a broker takes to be decided by its mapper: requests that can be granted some time, and until when they wait."""

from __future__ import annotations

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import place_of
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.actors.settings import BrokerSettings
from leasekit.core.errors import RemoteError
from leasekit.core.leases.records import BrokerLease
from leasekit.core.protocol.messages import EXTEND, NEW, Probe, RequestTicket
from leasekit.core.reasons import Code, mark
from leasekit.core.requests import Options, parse_options
from leasekit.core.time import INSTANT_MAX, Instant, Term


class Admission:
    """Whether a request, or a question, is taken. ``settings`` say how long it may wait."""

    def __init__(
        self, kernel: Kernel, served: Served[BrokerLease], queue: RequestQueue, book: Book, settings: BrokerSettings
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._queue = queue
        self._book = book
        self._settings = settings

    def note(self, lease: BrokerLease, options: Options) -> None:
        """``lease`` is that of a question: how it may be granted is known as long as the question waits."""
        self._queue.options[lease.id] = options

    def enqueue(self, lease: BrokerLease, options: Options) -> None:
        """The request of ``lease`` waits for the mapper."""
        self._queue.add(lease, options)
        self._book.note_news()

    def join_group(self, lease: BrokerLease, options: Options) -> None:
        """``lease`` is asked for with others: once all are there, all wait as long as each says."""
        self._book.join_group(lease.holder, options.group, lease.id, options.lease_count)
        have, count = self._book.group_size(lease.id)
        if have == count:
            for id_ in self._book.group_of(lease.id):
                member = self._served.leases[id_]
                member.deadline = self.deadline(self._queue.options[id_], member.asked.term.end, whole=True)
                self._kernel.touch(member)

    def restore(self) -> None:
        """The requests of leases that were taken up wait again."""
        waiting = (lease for lease in self._served.leases.values() if lease.request)
        for lease in sorted(waiting, key=lambda one: (one.arrived, one.id)):
            options = parse_options(lease.asked.properties, lease.asked.term)
            self.enqueue(lease, options)
            if lease.group and lease.asked.op == NEW:
                self._book.join_group(lease.holder, lease.group, lease.id, options.lease_count)

    def forget(self, lease: BrokerLease) -> None:
        """The question of ``lease`` is answered."""
        self._queue.options.pop(lease.id, None)

    def admit(self, peer: str, message: RequestTicket | Probe, options: Options) -> None:
        """Refuse what can never be granted, by the answer that fits: type, site, size and time are different."""
        self._queue.check_room(peer)
        if message.term.end <= self._kernel.now:
            raise RemoteError(
                Code.PAST,
                f"term ends at {mark(message.term.end)}, it is {mark(self._kernel.now)} at {self._served.name}",
            )
        sources = self._book.of_type(message.type)
        if not sources and not self._book.types() and options.deferrable:
            return  # just started: the sites' offers are on their way, and this request can wait for them
        if not sources:
            known = ", ".join(self._book.types()) or "(none yet)"
            raise RemoteError(Code.UNKNOWN_TYPE, f"type: found {message.type!r}, {self._served.name} has {known}")
        if message.site:
            sources = [source for source in sources if source.site == message.site]
            if not sources:
                known = ", ".join(sorted({source.site for source in self._book.of_type(message.type)}))
                raise RemoteError(
                    Code.UNKNOWN_SITE, f"site: {message.site!r} offers no {message.type!r} here; {known} do"
                )

    def check_size(self, type_: str, units: int, options: Options) -> None:
        """Raises ``RemoteError`` for more units than any site has, unless fewer will do."""
        most = max((source.units for source in self._book.of_type(type_)), default=units)
        if units > most and not options.elastic:
            raise RemoteError(Code.TOO_LARGE, f"units: found {units}, no site here has more than {most} of {type_!r}")

    def deadline(self, options: Options, end: Instant, *, whole: bool) -> Instant:
        """Until when a request for a term that ends at ``end`` waits.

        A group that is not ``whole`` waits for its members first, and not for long.
        """
        settings, last = self._settings, options.latest_start
        if options.group and not whole:
            last = min(last or INSTANT_MAX, self._kernel.now + settings.group_timeout)
        elif not last:
            last = (
                self._kernel.now + settings.defer_max
                if options.deferrable
                else min(end, self._kernel.now + settings.request_timeout)
            )
        return min(last, self._kernel.now + options.request_timeout) if options.request_timeout else last

    def goes_on_until(self, lease: BrokerLease, op: str, term: Term) -> Instant:
        """Until when an extend or modify of a lease waits. Raises ``RemoteError`` where it can't be asked for."""
        last, claim = lease.claims[-1], lease.claims[place_of(lease, op, term)]
        if lease.cut >= 0:
            raise RemoteError(Code.PREEMPTED, f"lease {lease.id} was preempted, it ends at {lease.cut}")
        if last.saving:
            raise RemoteError(Code.SUSPENDED, f"lease {lease.id} is suspended by {last.until}: extend what resumes it")
        if last.until <= self._kernel.now:
            raise RemoteError(Code.PAST, f"lease {lease.id} ended at {last.until}")
        if op == EXTEND and term.start != last.until:
            raise RemoteError(
                Code.WRONG_TERM, f"an extend starts where the lease ends: at {mark(last.until)}, not {mark(term.start)}"
            )
        if op == EXTEND:
            return last.until
        if not claim.term.start <= term.start < claim.until:
            raise RemoteError(Code.WRONG_TERM, f"a modify starts within the term, before {claim.until}")
        if claim is not last and term.end != claim.until:
            raise RemoteError(
                Code.WRONG_TERM,
                f"the lease goes on from {mark(claim.until)}: a modify ends there, not {mark(term.end)}",
            )
        return min(claim.until, term.end, self._kernel.now + self._settings.request_timeout)
