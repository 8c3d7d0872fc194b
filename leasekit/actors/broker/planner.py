"""How a broker plans topologies: for a guest that asks, over what it holds itself and what other brokers quote; and the
plans that it holds.

A request is decided in a mapper's turn of its own, which the mapper need not have (:class:`.PlansTopologies`). What the
mapper returns are plans in order. Each is checked against its request, and held: here, and by the other brokers of
whose delegations it has parts. The first that is held everywhere is the answer; if one can't be, what was held of it is
released and the next is tried. Until a plan is held nothing is stored: after a restart, whoever asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from msgspec.structs import replace

from leasekit.actors.base import FAILED, MALFORMED, NOT_CARRIED_OUT, check_decision
from leasekit.actors.broker.book import Book
from leasekit.actors.kernel import Kernel, keeps, query, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Served
from leasekit.actors.settings import REQUEST, BrokerSettings
from leasekit.core.answers import HeldPartDetails, HoldDetails
from leasekit.core.claims.claim import JOINED_MAX
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.plans import HELD, HOLD, HOLDING, PlanHold
from leasekit.core.leases.records import BrokerLease
from leasekit.core.mappers import NoPlan, PlanCycle, Source, TopologyPlan
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.messages import (
    NEW,
    OFFERS_MAX,
    PARTS_MAX,
    STEPS_MAX,
    ErrorReply,
    HoldParts,
    PartsHeld,
    Plan,
    Planned,
    PlanPart,
    Quote,
    Quoted,
    QuotedOffer,
    ReleaseParts,
    RequestTicket,
)
from leasekit.core.reasons import DETAIL_MAX, Code, Reason, clip, mark, marked, of_mapper, said
from leasekit.core.schema import Change, Row
from leasekit.core.settings import SettingsError
from leasekit.core.steps import TurnDone
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall, Timetable
from leasekit.core.topology import Leased, TopologyRequest, decode_topology, plan_faults

EXPIRED: Final = "hold_expired"


def group_of(plan: str, broker: str) -> str:
    """The request group of a plan's parts at one broker."""
    return f"{plan}@{broker}"


def _key(plan: str, part: str) -> str:
    return f"hold {plan}/{part}"


@keeps(rows="held")
@attrs.define(eq=False, slots=False)
class Holds:
    """The holds of a broker. ``settings`` say how many there may be, and for how long."""

    _kernel: Kernel
    _keyring: Keyring
    _served: Served[BrokerLease]
    _book: Book
    _settings: BrokerSettings
    held: dict[str, PlanHold] = attrs.field(factory=dict, init=False)
    dropped: list[Callable[[PlanHold, Reason], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, that what a hold held is free again, and why."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(PlanHold, due_at=lambda hold: hold.expires, on_due=self._due)

    # -- holding -----------------------------------------------------------------------------------------------

    def may_hold(self, peer: str, holder: bytes = b"") -> Reason | None:
        """Why nothing more is held for a peer; None if it may be. Of what is held for another broker one ``holder``
        may have half, so that it does not stand in the way of those beside it.
        """
        theirs = [hold for hold in self.held.values() if hold.peer == peer and not hold.is_used]
        most = self._settings.holds_max
        if len(theirs) >= most:
            return Reason(Code.PLANS_MAX, self._keyring.name, peer, len(theirs))
        same = sum(hold.holder == holder for hold in theirs) if holder else 0
        if same >= max(1, most // 2):
            return Reason(Code.PLANS_OF_GUEST_MAX, self._keyring.name, peer, same)
        return None

    def expires(self) -> Instant:
        """Until when what is held from now on is held at most."""
        return self._kernel.now + self._settings.hold_for

    def hold(self, hold: PlanHold) -> None:
        """Book all parts of ``hold`` and keep it. Raises ``CommandError``, with nothing changed, if one doesn't fit."""
        booked: list[PlanPart] = []
        try:
            for part in hold.parts:
                self.check_part(part, hold.term)
                self._book.asked(part.source).reserve(_key(hold.id, part.part), part.units, hold.term)
                booked.append(part)
        except (CommandError, Shortfall) as error:
            for part in booked:
                self._book.table_of(part.source).release(_key(hold.id, part.part))
            raise CommandError(f"{part.site}, {part.type}: {error}") from error
        self.held[hold.id] = hold
        self._kernel.note(
            hold.id,
            "hold",
            "",
            f"{hold.state}/{hold.pending}",
            said(f"{len(hold.parts)} parts for {hold.peer} until {mark(hold.expires)}"),
        )
        self._kernel.touch(hold)

    def check_part(self, part: PlanPart, term: Term) -> None:
        """Raises ``CommandError`` if a part can't be granted from its delegation, whatever is free."""
        chain = self._book.chain(part.source)
        if not chain or (chain[0].type, chain[0].site) != (part.type, part.site):
            raise CommandError(f"no delegation {part.source!r} of it is held")
        parts = self._book.cover(part.source, term)
        if not parts:
            raise CommandError(f"the delegation {part.source} does not cover {marked(term)}")
        if len(parts) > JOINED_MAX + 1:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")

    def _free_parts(self, hold: PlanHold) -> None:
        for part in hold.parts:
            if self._book.chain(part.source):
                table = self._book.table_of(part.source)
                if _key(hold.id, part.part) in table:
                    table.release(_key(hold.id, part.part))

    def drop(self, hold: PlanHold, why: Reason) -> None:
        """Nothing is held under it any more."""
        held = not hold.is_used
        if held:
            self._kernel.fire(hold, "let_go", why)
        del self.held[hold.id]
        self._kernel.erase(hold)
        if not held:
            return
        self._free_parts(hold)
        for tell in self.dropped:
            tell(hold, why)

    # -- turning it into leases --------------------------------------------------------------------------------

    def for_request(self, peer: str, message: RequestTicket) -> PlanHold | None:
        """The hold that a request is made for, if it is for one. Raises ``RemoteError`` if that is gone, or another."""
        named = message.properties.get(HOLD, "")
        if not named or message.op != NEW:
            return None
        plan, _, name = named.rpartition("/")
        hold = self.held.get(plan)
        if hold is None or hold.awaits_others:
            raise RemoteError(
                EXPIRED, f"hold expired: {self._keyring.name} holds nothing (any more) under {plan!r:.100}"
            )
        if hold.holder not in self._keyring.keys_of(peer):
            raise RemoteError(Code.NOT_YOURS, f"what is held under {plan} is not held for {peer}")
        part = next((one for one in hold.parts if one.part == name), None)
        found = (message.type, message.units, message.site, message.term)
        if part is None or found != (part.type, part.units, part.site, hold.term):
            raise RemoteError(Code.WRONG_HOLD, f"{named!r:.100}: what is held is not what is asked for")
        if message.properties.get("group_id") != group_of(plan, self._keyring.name):
            raise RemoteError(Code.WRONG_HOLD, f"{HOLD} goes with group_id = {group_of(plan, self._keyring.name)!r}")
        if hold.is_used:
            raise RemoteError(EXPIRED, f"hold expired: {named} was granted before")
        return hold

    def reserve(self, hold: PlanHold, part: PlanPart, key: str) -> None:
        """Book a part of ``hold`` under ``key`` instead, for a lease."""
        table, held = self._book.table_of(part.source), _key(hold.id, part.part)
        units = table.booked(held)
        table.release(held)
        table.reserve(key, units, hold.term, force=True)  # what was just released

    def use(self, hold: PlanHold, holder: str) -> None:
        """All parts of ``hold`` are leases of ``holder`` now: nothing is held any more."""
        self._kernel.fire(hold, "use", said(holder))

    def check_free(self, parts: Sequence[PlanPart], term: Term) -> None:
        """Raises ``CommandError`` unless all parts could be held."""
        wanted: dict[str, int] = {}
        for part in parts:
            self.check_part(part, term)
            wanted[part.source] = wanted.get(part.source, 0) + part.units
        for source, units in wanted.items():
            free = self._book.asked(source).available(term)
            if free < units:
                raise CommandError(f"{units} units of {source} are wanted, {free} are free")

    def why_not(self, hold: PlanHold, holder: str) -> Reason | None:
        """What has changed since it was held, so that it can't be granted."""
        for part in hold.parts:
            try:
                self.check_part(part, hold.term)
            except CommandError as error:
                return Reason(Code.NOT_GRANTABLE, part.site).because(error.reason)
            table = self._book.table_of(part.source)
            if _key(hold.id, part.part) not in table:
                return Reason(Code.OTHER_DELEGATION, part.site, part.source)
            if table.lacking(hold.term):  # what is held itself counts
                return Reason(Code.UNITS_OUT, part.site, part.type)
        return None if holder in self._keyring.peers else Reason(Code.NO_PEER, holder)

    # -- for other brokers -------------------------------------------------------------------------------------

    @takes(HoldParts, REQUEST)
    def _on_hold(self, peer: str, message: HoldParts) -> None:
        """Another broker has planned with what it was quoted."""
        check_may_plan(self._keyring, peer)
        reason = None
        known = self.held.get(message.plan)
        if known is None:
            reason = self._hold_for(peer, message)
        elif (known.peer, known.parts, known.term) != (peer, message.parts, message.term):
            reason = Reason(Code.HOLDS_OTHER, self._keyring.name, message.plan)
        self._kernel.send(peer, PartsHeld(message.plan, message.number, reason))

    def _hold_for(self, peer: str, message: HoldParts) -> Reason | None:
        self._served.check_id(message.plan, peer, "plan")
        expires = min(message.expires, self.expires())
        if (
            not message.parts
            or not message.holder
            or message.term.end <= self._kernel.now
            or expires <= self._kernel.now
        ):
            return Reason(Code.NOTHING_TO_HOLD)
        if len({part.part for part in message.parts}) < len(message.parts):
            return Reason(Code.PARTS_ALIKE)
        hold = PlanHold(message.plan, peer, "", message.holder, message.term, message.parts, expires)
        reason = self.may_hold(peer, message.holder)
        try:
            if not reason:
                self.hold(hold)
        except CommandError as error:
            return error.reason
        return reason

    @takes(ReleaseParts, REQUEST)
    def _on_release(self, peer: str, message: ReleaseParts) -> None:
        hold = self.held.get(message.plan)
        if hold is not None and hold.peer == peer and not hold.is_used:
            self.drop(hold, Reason(Code.RELEASED, peer))

    # -- time and state ----------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the holds that a store kept, when the book has its delegations again."""
        for row in rows:
            hold = PlanHold.from_row(row)
            if hold.awaits_others:
                # Whoever asked has had no answer, and asks again; other brokers' shares expire.
                self._kernel.changes.append(Change(hold.table, hold.id, None))
                continue
            self.held[hold.id] = hold
            if hold.is_held:
                for part in hold.parts:
                    if self._book.chain(part.source):
                        table = self._book.asked(part.source)
                        table.reserve(_key(hold.id, part.part), part.units, hold.term, force=True)
            self._kernel.schedule(hold, hold.expires)

    def _due(self, hold: PlanHold) -> None:
        self.drop(hold, Reason(Code.HELD_UNTIL, at=hold.expires))

    @query("holds")
    def _query_holds(self) -> list[HoldDetails]:
        return [
            HoldDetails.of(hold, plan=hold.id, parts=[HeldPartDetails.of(part) for part in hold.parts])
            for hold in self.held.values()
        ]


REMOTE: Final = "!"
"""Between a broker's name and its delegation's, in the ids of sources that mappers see."""


def check_may_plan(keyring: Keyring, peer: str) -> None:
    """Raises ``RemoteError`` unless a peer is a broker: what is held is granted without asking the mapper, so a guest
    must not say itself what that is.
    """
    if keyring.peers[peer].role != "broker":
        raise RemoteError(Code.FORBIDDEN, f"{peer} is no broker: {keyring.name} neither quotes nor holds for it")


@attrs.define(eq=False)
class Quotes:
    """What is shown to planners of a broker's delegations, and asked of other brokers."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _settings: BrokerSettings

    def ask(self, query: str, number: int, term: Term, types: tuple[str, ...], *, but: str) -> set[str]:
        """Ask the other brokers that the settings name, but for ``but``, what they have. Returns who was asked."""
        asked = {name for name in self._settings.planners if name in self._keyring.peers and name != but}
        for name in self._settings.planners:
            if name in asked:
                self._kernel.send(name, Quote(query, number, term, types))
        return asked

    def answer_by(self) -> Instant:
        """Until when an answer of other brokers is waited for that are asked now."""
        return self._kernel.now + self._settings.quote_timeout

    @takes(Quote, REQUEST)
    def _on_quote(self, peer: str, message: Quote) -> None:
        check_may_plan(self._keyring, peer)
        offers: list[QuotedOffer] = []
        for source in self.offered(message.types, snapshot=False):
            start, end = max(source.term.start, message.term.start), min(source.term.end, message.term.end)
            if start < end and len(offers) < OFFERS_MAX:
                offers.append(self._quoted(source, Term(start, end)))
        self._kernel.send(peer, Quoted(message.query, message.number, tuple(offers)))

    def _quoted(self, source: Source, term: Term) -> QuotedOffer:
        """What is shown of a source: the disclosed share of what is free; a step shows the least of what it spans."""
        share = self._settings.disclose
        steps: list[tuple[Instant, int]] = []
        for piece, reserved, capacity in source.free.steps(term):
            free = max(0, capacity - reserved) * share // 1000
            if not steps or steps[-1][1] != free:
                steps.append((piece.start, free))
        every = -(-len(steps) // STEPS_MAX)
        shown = [
            value
            for first in range(0, len(steps), every)
            for value in (steps[first][0], min(free for _, free in steps[first : first + every]))
        ]
        units = source.units * share // 1000
        return QuotedOffer(source.id, source.site, source.type, units, term, source.properties, tuple(shown))

    def offered(self, types: Iterable[str], *, snapshot: bool) -> list[Source]:
        """What can be granted of these types, and all links."""
        links = {
            type_ for type_ in self._book.types() for one in self._book.of_type(type_) if "link.a" in one.properties
        }
        view = self._book.turn_sources(snapshot=snapshot)
        return [source for type_ in sorted({*types, *links}) for source in view(type_)]

    def where(self, source: str, quoted: Mapping[str, QuotedOffer]) -> tuple[tuple[str, str, str, str], Properties]:
        """The broker, delegation, site and type of a source that a mapper names, and its properties. Raises
        ``CommandError`` if it is neither held here nor among ``quoted``.
        """
        offer = quoted.get(source)
        if offer is not None:
            return (source.partition(REMOTE)[0], offer.source, offer.site, offer.type), offer.properties
        chain = self._book.chain(source)
        if not chain:
            raise CommandError(f"source {source!r} is not known")
        # Of what was taken back it may not be known what it was.
        first = next((one for one in chain if one.can_grant(self._kernel.now)), chain[0])
        return (self._keyring.name, source, first.site, first.type), first.properties


def source_of(id_: str, offer: QuotedOffer) -> Source:
    """What another broker quotes, as mappers see it."""
    free = Timetable(0)
    ends = [*offer.steps[2::2], offer.term.end]
    for at, units, end in zip(offer.steps[::2], offer.steps[1::2], ends, strict=True):
        if units and at < end:
            free.add_capacity(Term(at, end), units)
    return Source(id_, offer.site, offer.type, offer.units, offer.term, offer.properties, free)


PLANS_MAX: Final = 64
"""How many requests for topologies may wait at once."""
PEER_PLANS_MAX: Final = 16
"""How many of them may be one peer's."""
TRY: Final = "try"


@attrs.define(slots=True, eq=False)
class _Planning:
    """One request being planned. Nothing of it is kept: who asks asks again. ``waiting`` are brokers whose answers are
    due by ``until``: quotes, and then, for ``hold``, whether they hold their parts.
    """

    id: str
    peer: str
    message: Plan
    request: TopologyRequest
    number: int
    until: Instant = -1
    waiting: set[str] = attrs.Factory(set)
    offers: dict[str, QuotedOffer] = attrs.Factory(dict)
    plans: deque[TopologyPlan] = attrs.Factory(deque)
    hold: PlanHold | None = None
    answer: Planned | None = None
    dropped: Reason | None = None
    timer: Instant | None = None


@keeps(volatile="plannings in_turn ready _turns")
@attrs.define(eq=False, slots=False)
class Planner:
    """The requests for topologies that wait for a broker. ``plan`` is its mapper's, if that plans any."""

    _kernel: Kernel
    _keyring: Keyring
    _holds: Holds
    _quotes: Quotes
    _plan: Callable[[PlanCycle], Any] | None
    plannings: dict[str, _Planning] = attrs.field(factory=dict, init=False)
    in_turn: _Planning | None = attrs.field(default=None, init=False)
    """The request that the mapper plans now."""
    ready: list[_Planning] = attrs.field(factory=list, init=False)
    """The requests that wait for the mapper."""
    _turns: list[str] = attrs.field(factory=list, init=False)
    """The peers that had turns and have more requests, the last one at the end."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register_unkept(_Planning, on_due=self._due)
        self._holds.dropped.append(self._hold_dropped)

    # -- being asked -------------------------------------------------------------------------------------------

    @takes(Plan, REQUEST)
    def _on_plan(self, peer: str, message: Plan) -> None:
        if self._plan is None:
            raise RemoteError(
                Code.UNAVAILABLE, f"{self._keyring.name}'s mapper plans no topologies; `coallocation` does"
            )
        known = next(
            (hold for hold in self._holds.held.values() if (hold.peer, hold.query) == (peer, message.query)), None
        )
        if known is not None and known.answer:
            answer = decode_message(known.answer)
            assert isinstance(answer, Planned), "what is kept was encoded here"
            self._kernel.send(peer, replace(answer, number=message.number))
            return
        theirs = [one for one in self.plannings.values() if one.peer == peer]
        for one in theirs:
            if one.message.query == message.query:
                one.message = message  # it is being planned: its answer goes to the last that asked
                return
        if len(self.plannings) >= PLANS_MAX or len(theirs) >= PEER_PLANS_MAX:
            raise RemoteError(
                Code.BUSY, f"{self._keyring.name} plans {len(self.plannings)} topologies: try again later"
            )
        try:
            request = decode_topology(message.topology)
        except SettingsError as error:
            raise RemoteError(Code.BAD_REQUEST, clip("; ".join(error.errors), DETAIL_MAX)) from error
        number = self._kernel.next("serial")
        planning = _Planning(f"planning:{number}", peer, message, request, number)
        self.plannings[planning.id] = planning
        if request.lst < self._kernel.now:
            planning.dropped = Reason(Code.START_PAST, self._keyring.name, at=request.lst, now=self._kernel.now)
            self._refuse(planning, -1)
        else:
            self._ask_planners(planning)

    def _ask_planners(self, planning: _Planning) -> None:
        request = planning.request
        types = tuple(sorted({site.type for site in request.sites}))
        term = Term(max(request.est, self._kernel.now), max(request.lst, self._kernel.now) + request.duration)
        planning.waiting = self._quotes.ask(planning.id, planning.number, term, types, but=planning.peer)
        if planning.waiting:
            planning.until = self._quotes.answer_by()
            self._kernel.schedule(planning, planning.until)
        else:
            self.ready.append(planning)

    # -- quotes ------------------------------------------------------------------------------------------------

    @takes(Quoted)
    def _on_quoted(self, peer: str, message: Quoted) -> None:
        planning = self.plannings.get(message.query)
        if planning is None or planning.hold is not None or peer not in planning.waiting:
            return
        planning.waiting.discard(peer)
        for offer in message.offers:
            if offer.units:
                planning.offers[f"{peer}{REMOTE}{offer.source}"] = offer
        if not planning.waiting:
            self._kernel.schedule(planning, None)
            self.ready.append(planning)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """A broker that refuses to quote, or to hold, has answered."""
        planning = self.plannings.get(message.lease)
        if planning is not None and planning.hold is None and peer in planning.waiting:
            self._on_quoted(peer, Quoted(message.lease, message.number, ()))
            return True
        if self._holding(message.lease) is not None:
            self._on_held(peer, PartsHeld(message.lease, message.number, message.reason))
            return True
        return False

    # -- the mapper's turn -------------------------------------------------------------------------------------

    def next_call(self, *, snapshot: bool) -> Callable[[], Any] | None:
        """What has the mapper plan the next request: of the peer that has not had a turn for the longest time."""
        for gone in [one for one in self.ready if one.peer not in self._keyring.peers]:
            self.ready.remove(gone)
            self._end(gone)
        if not self.ready:
            return None
        plan = self._plan
        assert plan is not None, "no request is taken without"
        self.in_turn = planning = min(
            self.ready, key=lambda one: self._turns.index(one.peer) if one.peer in self._turns else -1
        )
        self.ready.remove(planning)
        self._turns = [*(peer for peer in self._turns if peer != planning.peer), planning.peer]
        types = {site.type for site in planning.request.sites}
        sources = self._quotes.offered(types, snapshot=snapshot)
        sources += [source_of(id_, offer) for id_, offer in planning.offers.items()]
        cycle = PlanCycle(self._kernel.now, planning.peer, planning.request, sources)
        return lambda: plan(cycle)

    def turn_done(self, done: TurnDone) -> None:
        """Hold what the mapper planned, or refuse the request."""
        planning = self.in_turn
        assert planning is not None, "its turn has ended"
        self.in_turn = None
        planning.dropped, fits = Reason(Code.NO_PLAN), None
        if done.error:
            self._kernel.complain(f"broker mapper, asked to plan: {done.error}", "mapper", FAILED)
            planning.dropped = Reason(Code.MAPPER_FAILED)
        for decision in done.decisions:
            try:
                if not isinstance(decision, TopologyPlan | NoPlan):
                    raise CommandError(f"{decision!r:.80} is no plan")
                check_decision(decision)
            except CommandError as error:
                self._kernel.complain(f"broker mapper's plan is not taken: {error}", "mapper", MALFORMED)
                continue
            if isinstance(decision, NoPlan):
                planning.dropped, fits = of_mapper(decision.reason, decision.earliest), decision.earliest
            else:
                planning.plans.append(decision)
        if planning.plans:
            self._try_next(planning)
        else:
            self._refuse(planning, -1 if fits is None else max(fits, -1))

    # -- the plans, one after the other ------------------------------------------------------------------------

    def _try_next(self, planning: _Planning) -> None:
        """Hold the next plan that can be held; or, for who only wants to hear it, find the first that could be."""
        if planning.peer not in self._keyring.peers:
            self._end(planning)
            return
        while planning.plans:
            plan = planning.plans.popleft()
            try:
                self._try(planning, plan)
                return
            except CommandError as error:
                planning.dropped = Reason(Code.NOT_HELD, at=plan.start).because(error.reason)
        self._refuse(planning, -1)

    def _try(self, planning: _Planning, plan: TopologyPlan) -> None:
        """Raises ``CommandError``, with nothing held, if that can't be done."""
        term = self._check_start(planning.request, plan.start)
        parts = self._checked_parts(planning, plan)
        message, dry = planning.message, planning.message.op == TRY
        id_ = "" if dry else f"{self._keyring.tag}-plan-{self._kernel.next('serial')}"
        expires = -1 if dry else self._holds.expires()
        answer = Planned(
            message.query, message.number, "planned" if dry else "held", id_, term, parts, clip(plan.objective, 64),
            clip(plan.gap, 64), expires, None, -1,
        )  # fmt: skip
        own = tuple(part for part in parts if part.broker == self._keyring.name)
        if dry:
            self._holds.check_free(own, term)
            self._answer(planning, answer)
            return
        others = tuple(sorted({part.broker for part in parts} - {self._keyring.name}))
        busy = self._holds.may_hold(planning.peer)
        if busy:
            planning.plans.clear()
            raise CommandError(busy)
        hold = PlanHold(
            id_, planning.peer, message.query, self._keyring.key_of(planning.peer), term, own, expires,
            HOLDING if others else HELD, b"" if others else encode_message(answer), others,
        )  # fmt: skip
        self._holds.hold(hold)
        if not others:
            self._answer(planning, answer)
            return
        planning.hold, planning.answer, planning.waiting = hold, answer, set(others)
        for name in others:
            theirs = tuple(part for part in parts if part.broker == name)
            self._kernel.send(name, HoldParts(id_, planning.number, hold.holder, term, theirs, expires))
        planning.until = self._quotes.answer_by()
        self._kernel.schedule(planning, planning.until)

    def _check_start(self, request: TopologyRequest, start: Instant) -> Term:
        if not request.est <= start <= request.lst:
            raise CommandError(f"it starts at {mark(start)}, asked for was {mark(request.est)} to {mark(request.lst)}")
        if start + request.duration <= self._kernel.now:
            raise CommandError(Reason(Code.TERM_OVER))
        return request.term(start)

    def _checked_parts(self, planning: _Planning, plan: TopologyPlan) -> tuple[PlanPart, ...]:
        """The plan's parts, checked against its request. Raises ``CommandError``."""
        if len(plan.parts) > PARTS_MAX:
            raise CommandError(f"it has {len(plan.parts)} parts, at most {PARTS_MAX} are allowed")
        made: list[PlanPart] = []
        seen: list[Leased] = []
        for part in plan.parts:
            found, properties = self._quotes.where(part.source, planning.offers)
            if part.units < 1:
                raise CommandError(f"part {part.part!r} has {part.units} units")
            _, _, site, type_ = found
            made.append(PlanPart(part.part, part.member, part.path, *found, part.units))
            seen.append(Leased(part.part, part.member, part.path, site, type_, part.units, properties))
        try:
            faults = plan_faults(planning.request, seen)
        except ValueError as error:
            faults = [str(error)]
        if faults:
            self._kernel.complain(f"broker mapper's plan is not taken: {'; '.join(faults)}", "mapper", NOT_CARRIED_OUT)
            raise CommandError(f"it is not what was asked for: {faults[0]}")
        return tuple(made)

    # -- the other brokers' word -------------------------------------------------------------------------------

    def _holding(self, plan: str) -> _Planning | None:
        """The request of which the plan of that id is being held, if there is one."""
        return next((one for one in self.plannings.values() if one.hold is not None and one.hold.id == plan), None)

    @takes(PartsHeld)
    def _on_held(self, peer: str, message: PartsHeld) -> None:
        planning = self._holding(message.plan)
        if planning is None or planning.hold is None or peer not in planning.waiting:
            if not message.reason and message.plan not in self._holds.held:
                self._kernel.send(peer, ReleaseParts(message.plan, message.number))
            return
        planning.waiting.discard(peer)
        if message.reason:
            self._give_up(planning, Reason(Code.SAYS, peer).because(message.reason))
        elif not planning.waiting:
            hold, answer = planning.hold, planning.answer
            assert answer is not None, "it was made with the hold"
            answer = replace(answer, number=planning.message.number)
            hold.answer, planning.hold = encode_message(answer), None
            self._kernel.fire(hold, "promise", said(", ".join(hold.others)))
            self._answer(planning, answer)

    def _give_up(self, planning: _Planning, why: Reason) -> None:
        """The plan that is being held comes to nothing: the next one is tried."""
        hold = planning.hold
        assert hold is not None, "there is one to be given up"
        planning.hold = None
        self._kernel.schedule(planning, None)
        self._holds.drop(hold, why)
        planning.dropped = Reason(Code.NOT_HELD, at=hold.term.start).because(why)
        self._try_next(planning)

    def _hold_dropped(self, hold: PlanHold, why: Reason) -> None:
        for name in hold.others:
            self._kernel.send(name, ReleaseParts(hold.id, self._kernel.next("serial")))
        planning = self._holding(hold.id)
        if planning is not None:
            planning.hold = None
            self._refuse(planning, -1)

    # -- answering ---------------------------------------------------------------------------------------------

    def _refuse(self, planning: _Planning, fits: Instant) -> None:
        message, request = planning.message, planning.request
        answer = Planned(
            message.query, message.number, "refused", "", request.term(request.est), (), "", "", -1, planning.dropped,
            fits,
        )  # fmt: skip
        self._answer(planning, answer)

    def _answer(self, planning: _Planning, answer: Planned) -> None:
        self._end(planning)
        if planning.peer in self._keyring.peers:
            self._kernel.send(planning.peer, answer)

    def _end(self, planning: _Planning) -> None:
        self.plannings.pop(planning.id, None)
        asking = {one.peer for one in self.plannings.values()}
        self._turns = [peer for peer in self._turns if peer in asking]
        self._kernel.schedule(planning, None)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due(self, record: _Planning) -> None:
        self._kernel.forget(record)
        if record.hold is not None:
            silent = ", ".join(sorted(record.waiting))
            self._give_up(record, Reason(Code.SILENT, silent))
        elif record.waiting:
            record.waiting.clear()  # who has not answered is left out
            self.ready.append(record)
