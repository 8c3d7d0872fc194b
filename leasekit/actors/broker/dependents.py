"""What was cut from the delegations that a broker has: for leases, and for other brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from leasekit.actors.broker.book import Book, rest_of
from leasekit.actors.broker.claims import GrantedClaims
from leasekit.actors.issued import Issued, taken_back
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.core.errors import CommandError
from leasekit.core.leases import broker as br
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation
from leasekit.core.mappers import Grant
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant, Term
from leasekit.core.timetable.profile import Profile


class SourceDependents:
    """The claims and delegations that depend on a delegation in ``book``."""

    def __init__(self, kernel: Kernel, keyring: Keyring, book: Book, granted: GrantedClaims, issued: Issued) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._granted = granted
        self._issued = issued

    def check_own(self, parts: Sequence[tuple[Delegation, Term]], grant: Grant) -> None:
        """Where a line has less than is in use, a modify that takes nothing more fits in; but of each claim no more can
        be cut than it has. Raises ``CommandError``.
        """
        for source, term in parts:
            if self._book.table(source.id).available(term) >= 0:
                continue
            used = Profile()
            for units, start, end in self._cut_from(source, but=grant.lease):
                if start < end:
                    used.add(start, end, units)
            most = self._book.ticket(source.id).leaf.capacity - grant.units
            if used.first_at_least(term.start, most + 1) < term.end:
                raise CommandError(
                    f"{source.id} has {source.units} units, and more are in use of what was there before"
                )

    def _cut_from(self, source: Delegation, *, but: str) -> Iterator[tuple[int, Instant, Instant]]:
        """What is cut from a delegation, but for the lease ``but``: units, from when, until when they are booked."""
        for lease in self._granted.leases.values():
            claims = lease.claims if lease.id != but else ()
            yield from ((one.units, one.term.start, one.until) for one in claims if one.source == source.id)
            for old, new in pairwise(claims):
                if old.held and old.source == source.id:
                    yield from ((units, *term) for _, units, term in rest_of(old, new))
        for one in self._issued:
            if one.source == source.id:
                yield one.units, one.term.start, one.term.end if one.freed < 0 else one.freed

    def busy_until(self, source: Delegation) -> Instant:
        """When the last thing ends that was cut from ``source`` and may go on, or may be cut yet: 0 if nothing is."""
        claims = [c for lease in self._granted.leases.values() for c in lease.claims if c.source == source.id]
        ends = [c.booked_until for c in claims if source.reclaimed < 0 or c.term.start < source.reclaimed]
        ends += [d.term.end for d in self._issued if d.source == source.id and d.state != deleg.ENDED]
        last = max((end for end in (*ends, source.grants_until) if end > self._kernel.now), default=0)
        return min(last, source.deadline) if source.deadline >= 0 else last

    def let_go(self, source: Delegation, at: Instant, deadline: Instant, why: Reason) -> None:
        """Nothing new goes on under ``source`` from ``at`` on; what was cut from it is over by ``deadline`` (-1: it
        runs out).
        """
        with self._book.changing(source, self._kernel.now):
            source.reclaimed = at
        source.deadline = deadline
        self._kernel.fire(deleg.MACHINE, source, "let_go", why)
        self._stop_granting(source)

    def _stop_granting(self, source: Delegation) -> None:
        """What was cut from ``source`` and has not begun by then is off; its own takers are told."""
        for record in list(self._issued):
            if record.source == source.id and deleg.MACHINE.allows((record.state, record.pending), "reclaim"):
                self._issued.give_again(record)
                self._issued.take_back(
                    record, source.reclaimed, source.deadline, Reason(Code.TOOK_BACK, source.peer, source.id)
                )
        for lease in list(self._granted.leases.values()):
            for claim in lease.claims if lease.state == br.TICKETED else ():
                if claim.source == source.id and claim.term.start >= source.reclaimed:
                    self._granted.notice(lease, claim, claim.term.start, taken_back(source.peer, self._keyring.name))
                    break
