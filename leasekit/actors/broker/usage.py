"""What each holder of a broker has used, and which of its leases have ended, for mappers that go by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import attrs

from leasekit.actors.kernel import keeps
from leasekit.core.leases.records import BrokerLease, Granted, pack_body, unpack_body
from leasekit.core.mappers import EndedLease
from leasekit.core.profile import Ledger
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Change, Row
from leasekit.core.time import DAY, Duration, Instant, Term

KEPT: Final[Duration] = 31 * DAY
"""How far back usage is kept at least."""
KEPT_MAX: Final[Duration] = 400 * DAY
"""How far back it is kept at most, whatever a mapper asks for."""
TIDY_EVERY: Final = 1024
STRETCHES_MAX: Final = 256
TABLE: Final = "usage"


ENDED_MAX: Final = 10_000
"""How many leases that have ended are kept for the mapper's next turn."""


@keeps(volatile="_granted _ended before")
@attrs.define(eq=False, slots=False)
class EndedBook:
    """The leases that have ended since a mapper was last shown any. A restart forgets them, and what those that go on
    were granted before they were cut short.
    """

    _granted: dict[str, Instant] = attrs.field(factory=dict, init=False)
    _ended: deque[EndedLease] = attrs.field(factory=lambda: deque(maxlen=ENDED_MAX), init=False)
    before: int = attrs.field(default=0, init=False)
    """How many ended before those that are kept."""

    def granted(self, lease: BrokerLease) -> None:
        """What a lease has by now is what it was last granted, whatever becomes of it."""
        self._granted[lease.id] = lease.claims[-1].until

    def over(self, lease: BrokerLease, site: str, reason: Reason) -> None:
        """A lease is over for a reason."""
        last, start = lease.claims[-1], lease.terms.since
        why = "suspended" if last.saving else str(reason.code)
        end = start if reason.code == Code.LAPSED else max(start, last.until)
        self.before += len(self._ended) == ENDED_MAX
        self._ended.append(
            EndedLease(
                lease.id, lease.holder, lease.type, site, last.units, start,
                max(self._granted.pop(lease.id, last.term.end), end), end,
                "preempted" if lease.ending.at >= 0 else why, lease.asked.properties,
            )
        )  # fmt: skip

    def show(self) -> tuple[Sequence[EndedLease], int]:
        """Those that were not shown yet, and how many are not kept: they are shown now."""
        found = tuple(self._ended), self.before
        self._ended.clear()
        self.before = 0
        return found


class _Page(NamedTuple):
    """A row of the table: stretches of use, as start, end and units. Full ones keep none in memory."""

    id: str
    until: Instant
    stretches: tuple[tuple[Instant, Instant, int], ...]


@keeps(rows="_ledger _pages _rows _serial _changes")
class UsageBook:
    """A calendar of units for each holder and type (:class:`leasekit.core.mappers.Usage`), kept for ``kept`` ms."""

    def __init__(self, kept: Duration = KEPT) -> None:
        self.kept = min(max(kept, KEPT), KEPT_MAX)
        self._ledger = Ledger()
        self._pages: dict[tuple[str, str], list[_Page]] = {}
        self._serial = 0
        self._changes = 0
        self._rows: dict[str, Change] = {}

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """See :class:`Ledger`."""
        return self._ledger.held(holder, type_, window)

    def replace(
        self, holder: str, type_: str, before: Sequence[Granted], after: Sequence[Granted], now: Instant
    ) -> None:
        """A lease's claims are others than before."""
        for claims, sign in ((before, -1), (after, 1)):
            others = after if sign < 0 else before
            for claim in claims:
                if claim not in others and claim.until > claim.term.start:
                    if sign < 0 and claim.until <= now and not any(one.key == claim.key for one in after):
                        self.let_go(holder, type_, (claim,))  # it is over: it has been used
                        continue
                    self._ledger.add(holder, type_, sign * claim.units, Term(claim.term.start, claim.until))
        self._changes += 1
        if self._changes % TIDY_EVERY == 0:
            self._tidy(now)

    def let_go(self, holder: str, type_: str, claims: Iterable[Granted]) -> None:
        """Claims that were counted are in no record any more: they are written down."""
        used = [(claim.term.start, claim.until, claim.units) for claim in claims if claim.until > claim.term.start]
        if not used:
            return
        pages = self._pages.setdefault((holder, type_), [])
        if not pages or len(pages[-1].stretches) + len(used) > STRETCHES_MAX:
            if pages:
                pages[-1] = pages[-1]._replace(stretches=())
            self._serial += 1
            pages.append(_Page(f"{self._serial:012}", 0, ()))
        page = pages[-1]
        until = max(page.until, *(end for _, end, _ in used))
        page = pages[-1] = _Page(page.id, until, (*page.stretches, *used))
        row = (page.id, holder, type_, until, pack_body((page.stretches,)))
        self._rows[page.id] = Change(TABLE, page.id, row)

    def take_changes(self) -> list[Change]:
        """The rows to be written since this was last asked."""
        if not self._rows:
            return []
        rows, self._rows = list(self._rows.values()), {}
        return rows

    def restore(self, rows: Iterable[Row], now: Instant) -> None:
        """Take up the rows of a store, in the order of their keys."""
        for id_, holder, type_, until, body in rows:
            (stretches,) = unpack_body(body)
            self._serial = max(self._serial, int(id_))
            for start, end, units in stretches:
                self._ledger.add(holder, type_, units, Term(start, end))
            pages = self._pages.setdefault((holder, type_), [])
            if pages:
                pages[-1] = pages[-1]._replace(stretches=())
            pages.append(_Page(id_, until, stretches))
        self._tidy(now)

    def _tidy(self, now: Instant) -> None:
        """Let go of what is too old to count."""
        begin = now - self.kept
        self._ledger.forget_before(begin)
        for name, pages in list(self._pages.items()):
            for page in pages:
                if page.until <= begin:
                    self._rows[page.id] = Change(TABLE, page.id, None)
            kept = [page for page in pages if page.until > begin]
            if kept:
                self._pages[name] = kept
            else:
                del self._pages[name]
