"""What the mapper of a broker is shown: requests that wait, sources, and leases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import GrantedClaims, concerned
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.broker.suspension import with_suspend
from leasekit.actors.kernel import Kernel
from leasekit.actors.settings import BrokerSettings
from leasekit.core.drivers import saves
from leasekit.core.leases import broker as br
from leasekit.core.leases.plans import HOLD
from leasekit.core.leases.records import BrokerLease
from leasekit.core.mappers import BrokerCycle, GrantedLease, PendingRequest, Usage
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant, Term


class LeaseViews:
    """Requests and leases as mappers see them."""

    def __init__(
        self, kernel: Kernel, queue: RequestQueue, book: Book, granted: GrantedClaims, settings: BrokerSettings
    ) -> None:
        self._kernel = kernel
        self._queue = queue
        self._book = book
        self._granted = granted
        self._settings = settings

    @property
    def usage(self) -> Usage | None:
        """What each holder has been granted, if the mapper goes by it."""
        return self._granted.usage

    def granted(self, type_: str) -> Sequence[GrantedLease]:
        """The leases of a type that are not over. Records are read as they are when the mapper asks."""
        found = []
        for lease in list(self._granted.leases.values()):
            claims = lease.claims
            if lease.type != type_ or lease.state != br.TICKETED or not claims or claims[-1].until <= self._kernel.now:
                continue
            last = claims[-1]
            end = last.until if lease.cut < 0 else min(last.until, max(lease.cut, last.term.start + 1))
            priority = self._settings.priorities.get(lease.holder, 0)
            found.append(
                GrantedLease(
                    lease.id, lease.holder, self._book.base(last.source), type_, last.units, Term(last.term.start, end),
                    last.preemptible, priority, with_suspend(lease), last.until,
                )
            )  # fmt: skip
        return found

    def request(self, lease: BrokerLease) -> PendingRequest:
        """What ``lease`` asks for."""
        asked, options = lease.asked, self._queue.options[lease.id]
        last = concerned(lease) if lease.claims else None
        # What is past is not given: the book knows nothing of it any more.
        start = max(asked.term.start, self._kernel.now) if asked.op != EXTEND else asked.term.start
        later = options.deferrable and asked.op == NEW
        latest = options.latest_start or (max(lease.deadline, start) if options.deferrable else start)
        return PendingRequest(
            lease=lease.id,
            holder=lease.holder,
            op=asked.op,
            type=lease.type,
            units=asked.units,
            min_units=min(options.min_units or asked.units, asked.units),
            term=Term(start, start + asked.term.length if later else asked.term.end),
            latest_start=latest if asked.op == NEW else start,
            deadline=lease.deadline,
            arrived=lease.arrived,
            site=asked.site,
            exclude_sites=options.exclude_sites,
            source=self._book.base(last.source) if last is not None and asked.op != NEW else "",
            held=last.units if last is not None else 0,
            group=lease.group,
            priority=self._settings.priorities.get(lease.holder, 0) + options.priority,
            preemptible=options.preemptible or _stays_preemptible(lease),
            properties=asked.properties,
            held_until=last.until if last is not None else 0,
        )


def _stays_preemptible(lease: BrokerLease) -> bool:
    """Whether a request continues what can be ended early, and does not ask for a firm claim by that name."""
    if lease.asked.op == NEW or not lease.claims:
        return False
    return concerned(lease).preemptible and (lease.asked.op == MODIFY or "preemptible" not in lease.asked.properties)


class Cycles:
    """The cycles of a mapper that is called ``inline``, or in another thread."""

    def __init__(self, kernel: Kernel, queue: RequestQueue, book: Book, views: LeaseViews, inline: bool) -> None:
        self._kernel = kernel
        self._queue = queue
        self._book = book
        self._views = views
        self._inline = inline
        self._shown: dict[str, PendingRequest] = {}
        self.at: Instant = 0
        """When the mapper was last shown anything."""

    def due_at(self, wake: Instant | None, *, asked: bool = False) -> Instant | None:
        """When the mapper is to be called: now if it is ``asked`` something, or requests wait and something has changed
        since it saw them; else when it wants to be called.
        """
        if asked or (self._queue and self._book.has_news):
            return self._kernel.now
        return wake if self._queue else None

    def is_due(self, wake: Instant | None) -> bool:
        """Whether the mapper is to see the requests that wait."""
        at = self.due_at(wake)
        return at is not None and at <= self._kernel.now

    def view(self, lease: BrokerLease) -> PendingRequest:
        """The request of ``lease`` as the mapper was shown it, or would be."""
        return self._shown.get(lease.id) or self._views.request(lease)

    def show_news(self) -> BrokerCycle:
        """What the mapper is shown in its own turn: until something changes there is nothing new for it."""
        self._book.note_seen()
        return self.show()

    def show(self, more: Iterable[BrokerLease] = ()) -> BrokerCycle:
        """What the mapper is shown: all requests that wait, and ``more``."""
        requests: list[PendingRequest] = []
        views: dict[str, PendingRequest] = {}
        members: dict[str, PendingRequest] = {}
        for lease in chain(self._queue.leases.values(), more):
            if lease.asked.op == NEW and HOLD in lease.asked.properties:
                lease.defer_reason = Reason(Code.PARTS_UNASKED)
                continue
            if not self._book.of_type(lease.type):
                lease.defer_reason = Reason(Code.NOT_OFFERED, what=lease.type)
                continue
            view = views[lease.id] = self._views.request(lease)
            if lease.group and lease.asked.op == NEW:
                members[lease.id] = view
            else:
                requests.append(view)
        groups = [
            tuple(members[id_] for id_ in ids) for ids in self._book.complete_groups() if all(i in members for i in ids)
        ]
        self.at = self._kernel.now
        # A mapper that is called in line sees the requests as they still are when its decisions are carried out.
        self._shown = views if self._inline else {}
        sources = self._book.turn_sources(snapshot=not self._inline)
        usage = self._views.usage
        return BrokerCycle(self._kernel.now, requests, groups, sources, self._views.granted, usage, self._suspends())

    def _suspends(self) -> bool:
        """Whether there is anything here that can be suspended: of some type, at some site."""
        return any(saves(source.properties) for type_ in self._book.types() for source in self._book.of_type(type_))
