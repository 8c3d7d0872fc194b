"""A broker's calendars as they are: when something would fit, and who has what when."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

import attrs

from leasekit.actors.broker.book import Book
from leasekit.actors.kernel import Kernel, query
from leasekit.actors.served import Served
from leasekit.core.answers import describe_counts
from leasekit.core.calendars import ActorCalendar, CalendarClass, CalendarEntry, FreeSlot, FreeSlots
from leasekit.core.commands import FindSlots, ShowCalendar
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import BrokerLease, Delegation, Granted
from leasekit.core.profile import binned
from leasekit.core.reasons import Code
from leasekit.core.time import Term
from leasekit.core.timetable import ClassedTimetable
from leasekit.core.vectors import needs_of


@attrs.define(eq=False)
class SlotFinder:
    """Finds windows in which units are free together, of one delegation each, as a ticket is cut.

    A calendar says what is free; whether a mapper would grant it (quotas, order, groups) only that mapper says.
    """

    _kernel: Kernel
    _book: Book
    _served: Served[BrokerLease]

    @query("slots")
    def find(self, asked: FindSlots) -> FreeSlots:
        """The first windows, in order of their start, and what stands in the way before the first one."""
        start = max(asked.start, self._kernel.now)
        if asked.end - start < asked.length:
            raise CommandError(f"end: expected at least {asked.length} ms after the start", Code.BAD_ARGUMENT)
        window, chains = Term(start, asked.end), self._chains(asked)
        found = merge(*(self._windows(chain, asked, window) for chain in chains), key=lambda slot: slot.start)
        slots = list(islice(found, asked.limit))
        first = slots[0].start if slots else asked.end
        at_once = Term(start, start + asked.length)
        free = max((self._table(chain, asked).available(at_once) for chain in chains), default=0)
        short = max(0, asked.units - free)
        return FreeSlots(slots, short, self._in_the_way(chains, asked.holder, Term(start, first)) if short else [])

    def _chains(self, asked: FindSlots) -> list[Delegation]:
        """The first delegation of each chain that may be asked. Raises ``CommandError``."""
        of_type = self._book.of_type(asked.type)
        if not of_type:
            has = ", ".join(self._book.types()) or "nothing"
            raise CommandError(f"type: found {asked.type!r:.80}, there is {has}", Code.UNKNOWN_TYPE)
        chains = {one.base: one for one in reversed(of_type) if asked.site in ("", one.site)}
        return [chains[base] for base in sorted(chains)]

    def _table(self, chain: Delegation, asked: FindSlots) -> ClassedTimetable:
        """The calendar of those units that will do. Raises ``CommandError``."""
        try:
            needs = needs_of(asked.needs)
        except ValueError as error:
            raise CommandError(str(error), Code.BAD_ARGUMENT) from None
        return self._book.accepted(chain.base, asked.filter, needs)

    def _windows(self, chain: Delegation, asked: FindSlots, window: Term) -> Iterator[FreeSlot]:
        for found in self._table(chain, asked).fits(asked.units, asked.length, window):
            yield FreeSlot(chain.site, chain.base, *found)

    def _in_the_way(self, chains: list[Delegation], holder: str, until: Term) -> list[str]:
        """The leases of a holder that have units of these chains before the first window."""
        bases = {chain.base for chain in chains}
        return [
            lease.id
            for lease in self._served.leases.values()
            if lease.claims  # most are at other times, which their ends say without a look at each claim
            and lease.claims[0].term.start < until.end
            and lease.claims[-1].term.end > until.start
            and lease.holder == holder
            and any(self._book.base(one.source) in bases and one.term.overlaps(until) for one in lease.claims)
        ]


@attrs.define(eq=False)
class BookCalendar:
    """Shows who has what of a broker's delegations when, and what is free of each class."""

    _book: Book
    _served: Served[BrokerLease]

    @query("calendar")
    def show(self, asked: ShowCalendar) -> ActorCalendar:
        """Leases that have a part of the time, and the figures of every chain."""
        window = asked.term
        entries = [
            entry
            for lease in self._served.leases.values()
            if lease.claims and asked.type in ("", lease.type)
            for entry in self._entries(lease, window)
            if asked.site in ("", entry.site)
        ]
        return ActorCalendar(entries, [one for chain in self._shown(asked) for one in self._classes(chain, asked)])

    def _shown(self, asked: ShowCalendar) -> list[Delegation]:
        types = [asked.type] if asked.type else self._book.types()
        chains = {one.base: one for type_ in types for one in self._book.of_type(type_) if asked.site in ("", one.site)}
        return [chains[base] for base in sorted(chains)]

    def _classes(self, chain: Delegation, asked: ShowCalendar) -> Iterator[CalendarClass]:
        for class_, table in self._book.asked(chain.base).tables.items():
            steps = list(binned(table.steps(asked.term), asked.term, asked.step))
            properties = self._book.attributes_of(((class_, 1),))[0]
            yield CalendarClass(chain.site, chain.type, class_.hex(), properties, steps)

    def _entries(self, lease: BrokerLease, window: Term) -> Iterator[CalendarEntry]:
        """One for each stretch over which a lease has the same units of the same site."""
        stretch: tuple[Granted, Term] | None = None
        for claim in lease.claims:
            term = Term(claim.term.start, claim.until)
            if term.start >= term.end:
                continue
            if stretch is not None and stretch[1].end == term.start and self._alike(stretch[0], claim):
                term = Term(stretch[1].start, term.end)
            elif stretch is not None and stretch[1].overlaps(window):
                yield self._entry(lease, *stretch)
            stretch = claim, term
        if stretch is not None and stretch[1].overlaps(window):
            yield self._entry(lease, *stretch)

    def _alike(self, one: Granted, other: Granted) -> bool:
        return one.classes == other.classes and self._site(one) == self._site(other)

    def _site(self, claim: Granted) -> str:
        source = self._book.get(claim.source)
        return source.site if source is not None else ""

    def _entry(self, lease: BrokerLease, claim: Granted, term: Term) -> CalendarEntry:
        site, classes = self._site(claim), describe_counts(claim.classes)
        return CalendarEntry(
            lease.id, lease.holder, site, lease.type, lease.state, claim.units, *term, classes=classes
        )  # fmt: skip
