"""The broker: arbitrates requests over what sites have delegated to it (:mod:`leasekit.core.leases.broker`).

It keeps one timetable for each delegation, asks its mapper what to grant, checks the answer against the timetables
and the requests, and cuts tickets. Nothing that a mapper says can overbook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from leasekit.actors.base import Carriers, MapperTurns, Server, is_inline, plans_apart
from leasekit.actors.broker.book import Book, EndedBook, RequestQueue, UsageBook
from leasekit.actors.broker.claims import BookedTimes, GrantedClaims, ReportsOfSites, ReturnedTickets, Statements
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
    Answers,
    Cycles,
    GrantChecks,
    Grants,
    HeldParts,
    Introductions,
    Lapses,
    LeaseTerms,
    LeaseViews,
    TicketCutter,
)
from leasekit.actors.broker.planner import Holds, Planner, Quotes
from leasekit.actors.broker.preemption import LongestRuns, Market, Preemption, Promises
from leasekit.actors.broker.requests import Admission, DryRuns, Refusals, Requests
from leasekit.actors.broker.slots import BookCalendar, GrantedSlots, SlotFinder
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import keeps, query
from leasekit.actors.settings import BrokerSettings, Peer
from leasekit.core.answers import (
    BrokerLeaseDetails,
    BrokerStatus,
    ClaimOfLease,
    RequestDetails,
    SourceDetails,
    describe_counts,
)
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.commands import ListLeases, ShowLease
from leasekit.core.errors import RemoteError
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.mappers import BrokerMapper, Defer, Grant, GrantGroup, Preempt, Price, Reject
from leasekit.core.protocol.messages import Message, RequestTicket
from leasekit.core.reasons import of_mapper, view
from leasekit.core.schema import Row
from leasekit.core.steps import Tick, Turn, TurnDone
from leasekit.core.time import Instant, Term


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
        queue.waiting(one.lease).defer_reason = of_mapper(one.reason) if one.reason else None

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
        if (self._planner.is_due() and self._may_plan()) or (self._dry_runs.is_due() and self._may_decide()):
            return self._cycles.due_at(None, asked=True)
        return self._cycles.due_at(self._turns.wake) if self._may_decide() else None

    def _may_plan(self) -> bool:
        return not self._plans and (plans_apart(self.mapper) or not self._turns.running)

    def _may_decide(self) -> bool:
        return not self._turns.running and (plans_apart(self.mapper) or not self._plans)

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
        call = self._planner.next_call(snapshot=not is_inline(self.mapper)) if self._may_plan() else None
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
        else:
            self._turns.done(done)


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
            LongestRuns(self.kernel, preemption, self.settings.max_run),
        )
        LeaseTerms(self.kernel, self.served, self.granted, self.answers, clocks)

        if getattr(mapper, "wants_usage", False):
            self.granted.count_usage(UsageBook(getattr(mapper, "usage_kept", 0)))
        if getattr(mapper, "wants_ended", False):
            self.granted.note_ends(EndedBook())
        views = LeaseViews(self.kernel, self.queue, self.book, self.granted, self.settings)
        self.cycles = Cycles(self.kernel, self.queue, self.book, views, is_inline(mapper))
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
        slots = SlotFinder(self.kernel, self.book, BookedTimes(self.granted))
        for part in (
            self.sources,
            withholding,
            LargestPieces(self.kernel, self.book, self.issued),
            ReleasedSources(self.kernel, self.book, self.notices, dependents),
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

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
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
        return BrokerLeaseDetails.of(
            lease, site=self._site_of(lease), requested=RequestDetails.of(lease.asked), claims=claims,
            priority=self.cycles.class_of(lease),
            **view(lease.defer_reason or lease.reason),
        )  # fmt: skip

    def _site_of(self, lease: BrokerLease) -> str:
        source = self.book.get(lease.claims[-1].source) if lease.claims else None
        return source.site if source is not None else lease.asked.site

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
