"""A broker's calendars as they are: when something would fit, and who has what when."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final

import attrs
from msgspec.structs import replace

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import BookedTimes
from leasekit.actors.broker.requests import GRANTED, DryRuns
from leasekit.actors.kernel import Kernel, deferred, query
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Served
from leasekit.actors.settings import REQUEST
from leasekit.core.answers import describe_counts, plain
from leasekit.core.calendars import ActorCalendar, CalendarClass, CalendarEntry, FreeSlot, FreeSlots
from leasekit.core.commands import FindSlots, ShowCalendar
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import BrokerLease, Delegation, Granted
from leasekit.core.profile import binned
from leasekit.core.protocol.messages import DryRun, DryRunAnswer
from leasekit.core.reasons import Code
from leasekit.core.steps import Command, Reply
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
    _times: BookedTimes

    @query("slots")
    def find(self, asked: FindSlots) -> FreeSlots:
        """The first windows, in order of their start, and what stands in the way before the first one."""
        return self.first(asked, asked.limit)

    def first(self, asked: FindSlots, limit: int) -> FreeSlots:
        """The first ``limit`` windows. Raises ``CommandError``."""
        start = max(asked.start, self._kernel.now)
        if asked.end - start < asked.length:
            raise CommandError(f"end: expected at least {asked.length} ms after the start", Code.BAD_ARGUMENT)
        window, tables = Term(start, asked.end), [(chain, self._table(chain, asked)) for chain in self._chains(asked)]
        found = merge(*(_windows(chain, table, asked, window) for chain, table in tables), key=lambda slot: slot.start)
        slots = list(islice(found, limit))
        first = slots[0].start if slots else asked.end
        at_once = Term(start, start + asked.length)
        if first == start:
            return FreeSlots(slots, 0, [])
        free = max((table.available(at_once) for _, table in tables), default=0)
        wanted = {chain.base: table.tables for chain, table in tables}
        until = Term(start, min(first, at_once.end))
        return FreeSlots(slots, max(0, asked.units - free), self._in_the_way(wanted, asked.holder, until))

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

    def _in_the_way(self, wanted: Mapping[str, Container[bytes]], holder: str, until: Term) -> list[str]:
        """The holder's leases that have, over a part of a time, units of classes that are ``wanted`` of a chain."""
        return [
            lease.id
            for lease in self._times.within(until)
            if lease.holder == holder
            and any(
                class_ in wanted.get(self._book.base(one.source), ())
                for one in lease.claims
                if one.term.overlaps(until)
                for class_, _ in one.classes
            )
        ]


def _windows(chain: Delegation, table: ClassedTimetable, asked: FindSlots, window: Term) -> Iterator[FreeSlot]:
    for found in table.fits(asked.units, asked.length, window):
        yield FreeSlot(chain.site, chain.base, *found)


SPARE: Final = 2
"""How many times as many windows as were asked for are looked at, where a mapper does not grant each."""


@attrs.define(slots=True, eq=False)
class _WindowSearch:
    """A search for windows: the command that waits for it, what is free, what was tried of that and what is granted."""

    command: Command
    asked: FindSlots
    found: FreeSlots
    tried: int = 0
    granted: list[FreeSlot] = attrs.field(factory=list)


@attrs.define(eq=False)
class GrantedSlots:
    """Finds windows in which the broker's own mapper would grant a request of the holder's, asked by dry runs."""

    _kernel: Kernel
    _keyring: Keyring
    _finder: SlotFinder
    _dry_runs: DryRuns

    @deferred("slots.find")
    def _find(self, command: Command, asked: FindSlots) -> None:
        self._keyring.check_may(asked.holder, REQUEST)
        self._try_next(_WindowSearch(command, asked, self._finder.find(asked)))

    def _try_next(self, search: _WindowSearch) -> None:
        """Try the next window, or answer. Raises ``CommandError`` and ``RemoteError``."""
        asked, tried, most = search.asked, search.tried, search.asked.limit
        if tried == most and len(search.granted) < most:
            search.found = replace(search.found, slots=self._finder.first(asked, SPARE * most).slots)
        if tried == len(search.found.slots) or len(search.granted) == most:
            self._kernel.reply(Reply(search.command.id, plain(replace(search.found, slots=search.granted))))
            return
        slot = search.found.slots[tried]
        search.tried += 1
        properties = {**asked.needs, **({"filter": asked.filter} if asked.filter else {})}
        term = Term(slot.start, slot.start + asked.length)
        request = DryRun("slot", tried, asked.type, asked.units, term, slot.site, properties)
        self._dry_runs.ask(asked.holder, request, partial(self._heard, search, slot))

    def _heard(self, search: _WindowSearch, slot: FreeSlot, answer: DryRunAnswer) -> None:
        if answer.status == GRANTED:
            search.granted.append(slot)
        try:
            self._try_next(search)
        except (CommandError, RemoteError) as error:
            self._kernel.reply(Reply(search.command.id, error=str(error), reason=error.reason))


@attrs.define(eq=False)
class BookCalendar:
    """Shows who has what of a broker's delegations when, and what is free of each class."""

    _kernel: Kernel
    _book: Book
    _served: Served[BrokerLease]

    @query("calendar")
    def show(self, asked: ShowCalendar) -> ActorCalendar:
        """Leases that have a part of the time, and the figures of every chain."""
        window, revision = asked.term, self._kernel.revision
        if asked.known == revision:
            return ActorCalendar(revision)
        entries = [
            entry
            for lease in self._served.leases.values()
            if lease.claims and asked.type in ("", lease.type)
            for entry in self._entries(lease, window)
            if asked.site in ("", entry.site)
        ]
        classes = [one for chain in self._shown(asked) for one in self._classes(chain, asked)]
        return ActorCalendar(revision, entries, classes)

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
