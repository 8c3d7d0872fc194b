"""What each holder has been granted, over time: for mappers with quotas or fair shares.

It outlives the leases that it is about. What the records of leases still say is read from them; a claim that they let
go of is written down, with others of the same holder and type, in rows of the table ``usage``: so a restart of the
broker makes nobody's use undone. A row takes so many claims, and goes when the last of them is too old to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from leasekit.core.leases.records import Granted
from leasekit.core.leases.rows import pack_body, unpack_body
from leasekit.core.schema import Change, Row
from leasekit.core.time import DAY, Duration, Instant, Term
from leasekit.core.timetable.profile import Profile

KEPT: Final[Duration] = 31 * DAY
"""How far back usage is kept at least."""
KEPT_MAX: Final[Duration] = 400 * DAY
"""How far back it is kept at most, whatever a mapper wishes."""
TIDY_EVERY: Final = 1024
STRETCHES_MAX: Final = 256
TABLE: Final = "usage"


class _Page(NamedTuple):
    """A row of the table: stretches of use, as start, end and units. Full ones keep none in memory."""

    id: str
    until: Instant
    stretches: tuple[tuple[Instant, Instant, int], ...]


class UsageBook:
    """A calendar of units for each holder and type (:class:`leasekit.core.mappers.Usage`), kept for ``kept`` ms."""

    def __init__(self, kept: Duration = KEPT) -> None:
        self.kept = min(max(kept, KEPT), KEPT_MAX)
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._pages: dict[tuple[str, str], list[_Page]] = {}
        self._serial = 0
        self._changes = 0
        self._rows: dict[str, Change] = {}

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        profile = self._profiles.get((holder, type_))
        if profile is not None:
            for start, end, units in profile.segments(window.start, window.end):
                if units > 0:
                    yield Term(start, end), units

    def replace(
        self, holder: str, type_: str, before: Sequence[Granted], after: Sequence[Granted], now: Instant
    ) -> None:
        """A lease's claims are others than before."""
        profile = self._profile(holder, type_)
        for claims, sign in ((before, -1), (after, 1)):
            others = after if sign < 0 else before
            for claim in claims:
                if claim not in others and claim.until > claim.term.start:
                    if sign < 0 and claim.until <= now and not any(one.key == claim.key for one in after):
                        self.let_go(holder, type_, (claim,))  # it is over: it has been used
                        continue
                    profile.add(claim.term.start, claim.until, sign * claim.units)
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
            profile = self._profile(holder, type_)
            for start, end, units in stretches:
                profile.add(start, end, units)
            pages = self._pages.setdefault((holder, type_), [])
            if pages:
                pages[-1] = pages[-1]._replace(stretches=())
            pages.append(_Page(id_, until, stretches))
        self._tidy(now)

    def _profile(self, holder: str, type_: str) -> Profile:
        profile = self._profiles.get((holder, type_))
        if profile is None:
            profile = self._profiles[holder, type_] = Profile()
        return profile

    def _tidy(self, now: Instant) -> None:
        """Let go of what is too old to count."""
        begin = now - self.kept
        for profile in self._profiles.values():
            profile.forget_before(begin)
        for name, pages in list(self._pages.items()):
            for page in pages:
                if page.until <= begin:
                    self._rows[page.id] = Change(TABLE, page.id, None)
            kept = [page for page in pages if page.until > begin]
            if kept:
                self._pages[name] = kept
            else:
                del self._pages[name]
