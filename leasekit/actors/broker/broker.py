"""The broker: arbitrates requests over what sites have delegated to it (:mod:`leasekit.core.leases.broker`).

It keeps one timetable for each delegation, asks its mapper what to grant, checks the answer against the timetables
and the requests, and cuts tickets. Nothing that a mapper says can overbook.

It shows its calendars as they are: when something would fit, and who has what when.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final

import attrs
from msgspec.structs import replace

from leasekit.actors.base import Carriers, MapperTurns, Server, is_inline, plans_apart
from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.claims import (
    BookedTimes,
    GrantedClaims,
    Lapses,
    LongestRuns,
    ReportsOfSites,
    ReturnedTickets,
    Statements,
)
from leasekit.actors.broker.delegations import (
    LargestPieces,
    ReleasedSources,
    Shortages,
    SourceDependents,
    Subdelegation,
    TakenDelegations,
    Withholding,
)
from leasekit.actors.broker.grants import (
    AGAIN_MAX,
    SHOWN_MAX,
    Answers,
    Cycles,
    GrantChecks,
    Grants,
    HeldParts,
    Introductions,
    LeaseTerms,
    LeaseViews,
    TicketCutter,
)
from leasekit.actors.broker.planner import Holds, Planner, Quotes
from leasekit.actors.broker.preemption import Market, Preemption, Promises
from leasekit.actors.broker.requests import GRANTED, Admission, DryRuns, Refusals, Requests
from leasekit.actors.broker.usage import EndedBook, UsageBook
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel, deferred, keeps, query
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Served
from leasekit.actors.settings import REQUEST, BrokerSettings, Peer
from leasekit.core.answers import (
    BrokerLeaseDetails,
    BrokerStatus,
    ClaimOfLease,
    RequestDetails,
    SourceDetails,
    describe_counts,
    plain,
)
from leasekit.core.calendars import ActorCalendar, CalendarClass, CalendarEntry, FreeSlot, FreeSlots
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.commands import FindSlots, ListLeases, ShowCalendar, ShowLease
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import BrokerLease, Delegation, Granted
from leasekit.core.mappers import BrokerMapper, Defer, Grant, GrantGroup, Preempt, Price, Reject
from leasekit.core.profile import binned
from leasekit.core.properties import Counts, needs_of
from leasekit.core.protocol.messages import DryRun, DryRunAnswer, Message, RequestTicket
from leasekit.core.reasons import Code, of_mapper, view
from leasekit.core.schema import Row
from leasekit.core.steps import Command, Reply, Turn, TurnDone
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import ClassedTimetable


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
        if not self._book.of_type(asked.type):
            has = ", ".join(self._book.types()) or "nothing"
            raise CommandError(f"type: found {asked.type!r:.80}, there is {has}", Code.UNKNOWN_TYPE)
        chains = self._book.chains(asked.type, asked.site)
        window, tables = Term(start, asked.end), [(chain, self._table(chain, asked)) for chain in chains]
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

    def _table(self, chain: Delegation, asked: FindSlots) -> ClassedTimetable:
        """The calendar of those units that will do. Raises ``CommandError``."""
        try:
            needs = needs_of(asked.needs)
        except ValueError as error:
            raise CommandError(str(error), Code.BAD_ARGUMENT) from None
        return self._book.accepted(chain.base, asked.filter, needs)

    def _in_the_way(self, wanted: Mapping[str, Container[bytes]], holder: str, until: Term) -> list[str]:
        """The holder's leases that have, over a part of a time, units of classes that are ``wanted`` of a chain."""
        leases = (lease for lease in self._times.within(until) if lease.holder == holder)
        return [lease.id for lease in leases if self._takes(lease, wanted, until)]

    def _takes(self, lease: BrokerLease, wanted: Mapping[str, Container[bytes]], until: Term) -> bool:
        return any(
            class_ in wanted.get(self._book.base(one.source), ())
            for one in lease.claims if one.term.overlaps(until) for class_, _ in one.classes
        )  # fmt: skip


def _windows(chain: Delegation, table: ClassedTimetable, asked: FindSlots, window: Term) -> Iterator[FreeSlot]:
    for found in table.fits(asked.units, asked.length, window):
        yield FreeSlot(chain.site, chain.base, *found)


SPARE: Final = 2
"""How many times as many windows as were asked for are looked at, where a mapper does not grant each."""


@attrs.define(slots=True, eq=False)
class _WindowSearch:
    """A search for windows: the command that waits for it, what is free, what was tried of that, what is granted, and
    why the first that was not is not.
    """

    command: Command
    asked: FindSlots
    found: FreeSlots
    tried: int = 0
    granted: list[FreeSlot] = attrs.field(factory=list)
    refused: DryRunAnswer | None = None

    def answer(self) -> FreeSlots:
        """What was found, and if that is nothing, why."""
        found = replace(self.found, slots=self.granted)
        if self.granted or self.refused is None or not self.asked.explain:
            return found
        return replace(found, **view(self.refused.reason))


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
            if search.granted or search.refused or not asked.explain:
                self._kernel.reply(Reply(search.command.id, plain(search.answer())))
                return
            start = max(asked.start, self._kernel.now)  # free nowhere: what the request would be told
            slot = FreeSlot(asked.site, "", start, start + asked.length)
        else:
            slot = search.found.slots[tried]
            search.tried += 1
        properties = {**asked.needs, **({"filter": asked.filter} if asked.filter else {})}
        term = Term(slot.start, slot.start + asked.length)
        request = DryRun("slot", tried, asked.type, asked.units, term, slot.site, properties)
        self._dry_runs.ask(asked.holder, request, partial(self._heard, search, slot))

    def _heard(self, search: _WindowSearch, slot: FreeSlot, answer: DryRunAnswer) -> None:
        if answer.status == GRANTED:
            search.granted.append(slot if slot.source else replace(slot, site=answer.site))
        elif search.refused is None:
            search.refused = answer
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
            for lease in (self._served.leases.values() if asked.entries else ())
            if lease.claims and asked.type in ("", lease.type)
            for entry in self._entries(lease, window)
            if asked.site in ("", entry.site)
        ]
        chains = self._book.chains(asked.type, asked.site)
        classes = [one for chain in chains for one in self._classes(chain, asked)]
        return ActorCalendar(revision, entries, classes)

    def _classes(self, chain: Delegation, asked: ShowCalendar) -> Iterator[CalendarClass]:
        for class_, table in self._book.asked(chain.base).tables.items():
            steps = list(binned(table.steps(asked.term), asked.term, asked.step))
            properties = self._book.attributes_of(((class_, 1),))[0]
            yield CalendarClass(chain.site, chain.type, class_.hex(), properties, steps)

    def _entries(self, lease: BrokerLease, window: Term) -> Iterator[CalendarEntry]:
        """One for each stretch over which a lease has the same units of the same site."""
        stretches: list[tuple[tuple[str, Counts, int], Term]] = []
        for claim in lease.claims:
            if claim.term.start < claim.until:
                has, begin = (self._book.site_of(claim.source), claim.classes, claim.units), claim.term.start
                if stretches and stretches[-1][0] == has and stretches[-1][1].end == begin:
                    begin = stretches.pop()[1].start
                stretches.append((has, Term(begin, claim.until)))
        for (site, classes, units), term in stretches:
            if term.overlaps(window):
                yield CalendarEntry(
                    lease.id, lease.holder, site, lease.type, lease.state, units, *term,
                    classes=describe_counts(classes),
                )  # fmt: skip


def decisions(
    queue: RequestQueue, grants: Grants, answers: Answers, preemption: Preemption, promises: Promises, market: Market
) -> Carriers:
    """How each decision is carried out, for :meth:`MapperTurns.declare`."""

    def grant(one: Grant) -> None:
        if one.victims:
            promises.promise(queue.waiting(one.lease), queue.options[one.lease], one)
        else:
            grants.grant((one,))

    def reject(one: Reject) -> None:
        fits = one.earliest if one.earliest is None or one.earliest >= 0 else None
        answers.reject(queue.waiting(one.lease), of_mapper(one.reason, fits), fits)

    def defer(one: Defer) -> None:
        lease = queue.waiting(one.lease)
        lease.defer_reason = of_mapper(one.reason) if one.reason else None
        if one.again:
            queue.looks.look_again(lease, one.again)

    return {
        Grant: grant,
        GrantGroup: lambda one: grants.grant(one.grants),
        Reject: reject,
        Defer: defer,
        Preempt: preemption.preempt,
        Price: market.set,
    }


@keeps(volatile="_last _plans")
@attrs.define(eq=False)
class BrokerTurns:
    """When the mapper is called: for requests that wait, and for questions what it would answer. Where it plans apart,
    topologies are planned beside that: who asks for the dearest one holds up only those who ask for others.
    """

    _turns: MapperTurns
    _cycles: Cycles
    _dry_runs: DryRuns
    _planner: Planner
    mapper: BrokerMapper
    _last: int = attrs.field(default=-1, init=False)
    _plans: int = attrs.field(default=0, init=False)
    """The number of the turn that plans a topology now, or 0."""

    def at(self) -> Instant | None:
        """See :class:`Turning`."""
        if (self._planner.ready and self._may_plan()) or (self._dry_runs.is_due() and self._may_decide()):
            return self._cycles.due_at(None, asked=True)
        return self._cycles.due_at(self._turns.wake) if self._may_decide() else None

    def _may_plan(self) -> bool:
        return not self._plans and (not self._turns.running or plans_apart(self.mapper))

    def _may_decide(self) -> bool:
        return not self._turns.running and (not self._plans or plans_apart(self.mapper))

    def turn(self) -> Turn | None:
        """The mapper's turn, if requests wait and something has changed since it saw them, or a question's, or a
        topology's: what had the last turn goes behind the others, so that none waits for ever behind what keeps coming.
        """
        kinds = (self._allocation, self._dry_run, self._planned)
        for number in range(self._last + 1, self._last + 1 + len(kinds)):
            turn = kinds[number % len(kinds)]()
            if turn is not None:
                self._last = number % len(kinds)
                return turn
        return None

    def _allocation(self) -> Turn | None:
        if not self._may_decide() or not self._cycles.is_due(self._turns.wake):
            return None
        self._turns.answer_wake()
        cycle = self._cycles.show_news()
        return self._turns.begin(lambda: self.mapper.allocate(cycle)) if cycle.requests or cycle.groups else None

    def _dry_run(self) -> Turn | None:
        call = self._dry_runs.next_call() if self._may_decide() else None
        return None if call is None else self._turns.begin(call)

    def _planned(self) -> Turn | None:
        if not self._planner.ready or not self._may_plan():
            return None
        call = self._planner.next_call(snapshot=not is_inline(self.mapper))
        if call is None:
            return None
        turn = self._turns.beside(call)
        self._plans = turn.number
        return turn

    def done(self, done: TurnDone) -> None:
        """See :class:`Turning`."""
        if done.number == self._plans:
            self._plans = 0
            self._planner.turn_done(done)
        elif done.number == self._turns.running and self._dry_runs.in_turn is not None:
            self._turns.end()
            self._dry_runs.turn_done(done)
        elif self._turns.done(done):
            self._cycles.failed()


class Broker(Server[BrokerLease]):
    """A broker's actor. ``fresh`` makes its mapper anew, for questions what it would answer; None: it takes none."""

    role = "broker"

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: BrokerMapper,
        settings: BrokerSettings | None = None,
        fresh: Callable[[], BrokerMapper] | None = None,
    ) -> None:
        self.settings = settings or BrokerSettings()
        super().__init__(name, signer, scheme, peers, self.settings)
        self.dispatch.recall = lambda row: self._describe(BrokerLease.from_row(row))
        self.book = Book()
        self.queue = RequestQueue(self.keyring, self.settings.pending_max, self.settings.priorities)
        statements = Statements(self.kernel, self.keyring, self.book, self.settings.redeem_within)
        self.granted = GrantedClaims(self.kernel, self.served, self.queue, self.book, statements)
        self.subdelegation = Subdelegation(self.kernel, self.keyring, self.book, self.notices, self.settings)
        self._add_issued(self.issued)
        self.granted.freed.append(self.issued.give_waiting)
        dependents = SourceDependents(self.kernel, self.keyring, self.book, self.granted, self.issued)
        self.sources = TakenDelegations(self.kernel, self.keyring, self.book, self.issued, dependents)
        self.dispatch.connected.append(self.sources.connected)
        self.introductions = Introductions(self.kernel, self.keyring, self.peering, self.notices, self.settings.endorse)
        self.peering.changed.append(self.introductions.unsay)
        self.answers = Answers(self.kernel, self.served, self.queue, self.book, self.introductions)
        self.answers.unpromised.append(self.granted.free_kept)
        returned = ReturnedTickets(self.kernel, self.served, self.granted, statements)
        self.notices.accepted += [returned.truncated, self.subdelegation.truncated]
        preemption = Preemption(self.kernel, self.granted, statements, self.notices, self.answers)
        clocks = (
            Lapses(self.kernel, self.granted, statements, self.notices),
            LongestRuns(self.kernel, preemption.end_at, self.settings.preemptible.max_run),
        )
        LeaseTerms(self.kernel, self.served, self.granted, self.answers, clocks)

        if getattr(mapper, "wants_usage", False):
            self.granted.count_usage(UsageBook(getattr(mapper, "usage_kept", 0)))
        if getattr(mapper, "wants_ended", False):
            self.granted.note_ends(EndedBook())
        views = LeaseViews(self.kernel, self.queue, self.book, self.granted, self.settings)
        self.cycles = Cycles(self.kernel, self.queue, self.book, views, is_inline(mapper))
        self.cycles.by_itself = getattr(mapper, "by_itself", False)
        if self.settings.kept_bytes < INSTANT_MAX:  # whose peers have no budget has no peers to fear
            self.cycles.look_at(AGAIN_MAX, SHOWN_MAX)
        if getattr(mapper, "by_bid", False):
            self.queue.looks.bid_of = self.queue.bid_of
        checks = GrantChecks(self.kernel, self.keyring, self.book, self.cycles, dependents)
        cutter = TicketCutter(self.kernel, self.book, self.granted, statements, self.answers)
        grants = Grants(self.queue, self.book, self.cycles, checks, cutter)
        self.refusals = Refusals(self.kernel, self.book)
        self.admission = Admission(self.kernel, self.served, self.queue, self.book, self.settings)
        self.dry_runs = DryRuns(self.kernel, self.served, self.admission, grants, fresh)
        self.holds = Holds(self.kernel, self.keyring, self.served, self.book, self.settings)
        self.holds.dropped.append(self.answers.hold_dropped)
        held = HeldParts(self.granted, self.queue, self.book, self.holds, cutter)
        quotes = Quotes(self.kernel, self.keyring, self.book, self.settings)
        self.planner = Planner(self.kernel, self.keyring, self.holds, quotes, getattr(mapper, "plan", None))
        self.dispatch.refused.insert(1, self.planner.refused)
        promises = Promises(self.kernel, self.granted, checks, cutter, preemption)
        market = Market(self.kernel, self.book)
        carriers = decisions(self.queue, grants, self.answers, preemption, promises, market)
        self.turns.declare(carriers, self.queue.waiting_ids)
        self.turning = BrokerTurns(self.turns, self.cycles, self.dry_runs, self.planner, mapper)
        withholding = Withholding(self.kernel, self.keyring, self.book, self.notices, self.issued)
        withholding.heeded.append(Shortages(self.kernel, self.book, self.served).withheld)
        released = ReleasedSources(self.kernel, self.book, self.notices, dependents)
        self.subdelegation.freed.append(released.freed)
        slots = SlotFinder(self.kernel, self.book, BookedTimes(self.granted))
        for part in (
            self.sources,
            withholding,
            LargestPieces(self.kernel, self.book, self.issued),
            released,
            returned,
            preemption,
            ReportsOfSites(self.kernel, self.keyring, self.granted, statements, self.reports),
            Requests(self.kernel, self.served, self.admission, self.answers, held),
            self.dry_runs,
            self.holds,
            quotes,
            self.planner,
            slots,
            GrantedSlots(self.kernel, self.keyring, slots, self.dry_runs),
            BookCalendar(self.kernel, self.book, self.served),
        ):
            self.dispatch.add(part)

    # -- time and state ----------------------------------------------------------------------------------------

    @property
    def issued(self) -> Issued:
        """What it has delegated."""
        return self.subdelegation.issued

    def _begin(self) -> None:
        self.subdelegation.begin()

    def _refuse_message(self, peer: str, message: Message, error: RemoteError) -> None:
        if isinstance(message, RequestTicket):
            self.refusals.count(peer, message, error.reason)
        super()._refuse_message(peer, message, error)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        rows = tables.get("delegations", ())
        self.sources.restore(rows)
        self.subdelegation.restore(rows, tables.get("overrides", ()))
        self.granted.restore(tables.get("leases", ()), tables.get("usage", ()))
        self.admission.restore()
        self.holds.restore(tables.get("plans", ()))

    # -- queries -----------------------------------------------------------------------------------------------

    def _describe(self, lease: BrokerLease) -> BrokerLeaseDetails:
        claims = [
            ClaimOfLease(
                one.source, one.units, one.digest.hex(), describe_counts(one.classes),
                Term(one.term.start, self._until(one)),
            )
            for one in lease.claims
        ]  # fmt: skip
        site = self.book.site_of(lease.claims[-1].source) if lease.claims else ""
        end = claims[-1].term.end if claims else lease.asked.term.end
        return BrokerLeaseDetails.of(
            lease, site=site or lease.asked.site, requested=RequestDetails.of(lease.asked), claims=claims,
            priority=self.cycles.class_of(lease), end=end if lease.ended < 0 else min(end, lease.ended),
            **view(lease.defer_reason or lease.reason),
        )  # fmt: skip

    def _until(self, claim: Granted) -> Instant:
        """When a claim ends: by its issuer's deadline at the latest, if that takes back what it was cut from."""
        source = self.book.get(claim.source)
        if source is None or source.taken_back.deadline < 0:
            return claim.until
        return max(claim.term.start, min(claim.until, source.taken_back.deadline))

    @query("leases")
    def _query_leases(self, asked: ListLeases) -> list[BrokerLeaseDetails]:
        return [self._describe(lease) for lease in self.served.listed(asked)]

    @query("lease")
    def _query_lease(self, asked: ShowLease) -> BrokerLeaseDetails:
        return self._describe(self.served.find(asked))

    @query("sources")
    def _query_sources(self) -> list[SourceDetails]:
        return self.book.describe(self.kernel.now)

    @query("status")
    def _query_status(self) -> BrokerStatus:
        return BrokerStatus.of(
            self._status(self.leases.values()), waiting=len(self.queue), sources=len(self.book),
            reports=self.reports.latest(), delegations=self.issued.differences(),
        )  # fmt: skip
