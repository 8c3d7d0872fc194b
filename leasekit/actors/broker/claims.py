"""The claims that a broker has cut for leases: which a lease has, what is booked for them, and when they end.

Units are granted anew only when the site counts the old claim as ended, by its receipt, which comes for what is given
back, for a modify that was taken, and for a truncation. Until then they stay booked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.broker.statements import Statements
from leasekit.actors.broker.usage import UsageBook
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.core.drivers import saves
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.protocol.messages import MODIFY, TicketUpdate
from leasekit.core.reasons import Reason, mark
from leasekit.core.schema import Row
from leasekit.core.time import Duration, Instant, Term


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


class GrantedClaims:
    """The claims of a broker's leases, which are booked in ``book``."""

    def __init__(
        self,
        kernel: Kernel,
        served: Served[BrokerLease],
        queue: RequestQueue,
        book: Book,
        statements: Statements,
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._queue = queue
        self._book = book
        self._statements = statements
        self._cut_off: dict[str, str] = {}
        self._closings = 0
        self.leases = served.leases
        self.usage: UsageBook | None = None
        """What each holder has been granted, if the mapper goes by it."""
        self.freed: list[Callable[[], None]] = []
        """What happens, in order, when a lease is over."""

    def count_usage(self, usage: UsageBook) -> None:
        """Note in ``usage`` what is granted."""
        self.usage = usage

    def set(self, lease: BrokerLease, claims: tuple[Granted, ...]) -> None:
        """The lease's claims are these from now on."""
        if self.usage is not None:
            self.usage.replace(lease.holder, lease.type, lease.claims, claims, self._kernel.now)
            self._kernel.changes += self.usage.take_changes()
        lease.claims = claims

    def changed(self, lease: BrokerLease) -> None:
        """Something of the lease's claims has come free, or not any more."""
        self._book.note_news()
        self._kernel.touch(lease)

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
        place = lease.claims.index(claim)
        before = lease.claims[place - 1]
        rest = (*lease.claims[:place], *lease.claims[place + 1 :])
        if place and before.until == claim.term.start and before.until < before.term.end:
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

    def _free_rest(self, claim: Granted) -> None:
        self._cut_off.pop(claim.digest.hex(), None)
        self._book.free_rest(claim)
        self._book.note_news()

    def notice(self, lease: BrokerLease, claim: Granted, at: Instant, reason: Reason) -> None:
        """Tell a guest that a claim of its lease, and what goes on from it, ends at ``at``."""
        statement = self._statements.early_end(lease, claim, at)
        update = TicketUpdate(lease.id, lease.update + 1, 0, "noticed", b"", "", {}, statement, reason, -1)
        self._served.publish(lease, update)

    def check_saved_by(self, lease: BrokerLease, at: Instant) -> Duration:
        """How long before ``at`` a lease that is suspended must be saved. Raises ``CommandError`` if it can't be."""
        source = self._book.get(lease.claims[-1].source)
        if source is None or not saves(source.properties):
            raise CommandError(f"lease {lease.id} can't be suspended: its site saves no {lease.type!r}")
        if not lease.suspend:
            raise CommandError(f"lease {lease.id} can't be suspended: it doesn't say how long that takes (suspend)")
        begun = max(self._kernel.now, lease.claims[0].term.start)
        if at - lease.suspend < begun:
            raise CommandError(
                f"lease {lease.id} can't be suspended by {mark(at)}: that takes {lease.suspend} from {mark(begun)} on"
            )
        return lease.suspend

    # -- a lease ends --------------------------------------------------------------------------------------------

    def over(self, lease: BrokerLease, reason: Reason) -> None:
        """The lease is over: nothing of it is booked, and it asks for nothing."""
        self.settle_cut(lease, len(lease.claims))
        lease.ended, lease.reason, lease.request = self._kernel.now, reason, 0
        self._queue.remove(lease)
        for tell in self.freed:
            tell()
        self._closings += 1
        if self._closings % 256 == 0:
            self._book.forget_before(self._kernel.now)

    def drop(self, lease: BrokerLease) -> None:
        """Forget the lease."""
        if self.usage is not None:
            self.usage.let_go(lease.holder, lease.type, lease.claims)
            self._kernel.changes += self.usage.take_changes()
        self._served.drop(lease)

    def restore(self, rows: Iterable[Row], usage: Iterable[Row]) -> None:
        """Take up the leases, and what was used, that a store kept."""
        if self.usage is not None:
            self.usage.restore(usage, self._kernel.now)
            self._kernel.changes += self.usage.take_changes()
        for row in rows:
            lease = BrokerLease.from_row(row)
            self.leases[lease.id] = lease
            if self.usage is not None:
                self.usage.replace(lease.holder, lease.type, (), lease.claims, self._kernel.now)
            for claim in lease.claims:
                self._book.reserve_again(claim)
            for old, new in pairwise(lease.claims):
                if old.held:
                    self._book.hold_rest(old, new)
                    self._cut_off[old.digest.hex()] = lease.id
            if lease.unacked:
                self._kernel.owe(lease, lease.holder)
            self._kernel.schedule(lease, self._kernel.now if lease.unacked else self._kernel.due_at(lease))
