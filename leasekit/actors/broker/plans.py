"""How a broker plans topologies: for a guest that asks, over what it holds itself and what other brokers quote.

A request is decided in a mapper's turn of its own, which the mapper need not have (:class:`.PlansTopologies`). What the
mapper returns are plans in order. Each is checked against its request, and held: here, and by the other brokers of
whose delegations it has parts. The first that is held everywhere is the answer; if one can't be, what was held of it is
released and the next is tried. Until a plan is held nothing is stored: after a restart, whoever asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
from msgspec.structs import replace

from leasekit.actors.broker.holds import BrokerHolds
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import earliest
from leasekit.actors.settings import REQUEST, BrokerSettings, Peer
from leasekit.actors.turns import FAILED, MALFORMED, NOT_CARRIED_OUT, check_decision
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.plans import HELD, HOLD_MACHINE, HOLDING, PlanHold
from leasekit.core.mappers import BrokerMapper, NoPlan, PlanCycle, PlannedPart, Source, TopologyPlan
from leasekit.core.protocol.codec import clip, decode_message, encode_message
from leasekit.core.protocol.fields import OFFERS_MAX, PARTS_MAX, STEPS_MAX
from leasekit.core.protocol.messages import (
    ErrorReply,
    Held,
    Hold,
    Plan,
    Planned,
    PlanPart,
    Quote,
    Quoted,
    QuotedOffer,
    Release,
)
from leasekit.core.settings import SettingsError
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.core.topology import Leased, TopologyRequest, decode_topology, plan_faults

PLANS_MAX: Final = 64
"""How many requests for topologies may wait at once."""
PEER_PLANS_MAX: Final = 16
"""How many of them may be one peer's."""
REASON_MAX: Final = 1500
TRY: Final = "try"
REMOTE: Final = "!"
"""Between a broker's name and its delegation's, in the ids of sources that mappers see."""


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
    dropped: str = ""
    timer: Instant | None = None


class BrokerPlans(BrokerHolds):
    """The requests for topologies that wait for a broker."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        settings: BrokerSettings,
        fresh: Callable[[], BrokerMapper] | None,
        mapper: BrokerMapper,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings, fresh)
        self._call_plan: Callable[[PlanCycle], Any] | None = getattr(mapper, "plan", None)
        self._plannings: dict[str, _Planning] = {}
        self.kernel.register_unkept(_Planning, on_due=self._planning_due)
        self._to_plan: deque[_Planning] = deque()
        self.refused.insert(self.refused.index(self.calls.refused), self._plan_refused)
        self._planning: _Planning | None = None

    # -- being asked -------------------------------------------------------------------------------------------

    @takes(Plan, REQUEST)
    def _on_plan(self, peer: str, message: Plan) -> None:
        if self._call_plan is None:
            raise RemoteError("unavailable", f"{self.name}'s mapper plans no topologies; `coallocation` does")
        known = next((hold for hold in self.holds.values() if (hold.peer, hold.query) == (peer, message.query)), None)
        if known is not None and known.answer:
            answer = decode_message(known.answer)
            assert isinstance(answer, Planned), "what is kept was encoded here"
            self.kernel.send(peer, replace(answer, number=message.number))
            return
        theirs = [one for one in self._plannings.values() if one.peer == peer]
        for one in theirs:
            if one.message.query == message.query:
                one.message = message  # it is being planned: its answer goes to the last that asked
                return
        if len(self._plannings) >= PLANS_MAX or len(theirs) >= PEER_PLANS_MAX:
            raise RemoteError("busy", f"{self.name} plans {len(self._plannings)} topologies: try again later")
        try:
            request = decode_topology(message.topology)
        except SettingsError as error:
            raise RemoteError("bad_request", clip("; ".join(error.errors), REASON_MAX)) from error
        number = self.kernel.next("serial")
        planning = _Planning(f"planning:{number}", peer, message, request, number)
        self._plannings[planning.id] = planning
        if request.lst < self.kernel.now:
            planning.dropped = f"its latest start, {request.lst}, is past: it is {self.kernel.now} at {self.name}"
            self._refuse_plan(planning, -1)
        else:
            self._ask_planners(planning)

    def _ask_planners(self, planning: _Planning) -> None:
        request = planning.request
        types = tuple(sorted({site.type for site in request.sites}))
        term = Term(max(request.est, self.kernel.now), max(request.lst, self.kernel.now) + request.duration)
        for name in self.settings.planners:
            if name in self.keyring.peers and name != planning.peer:
                planning.waiting.add(name)
                self.kernel.send(name, Quote(planning.id, planning.number, term, types))
        if planning.waiting:
            planning.until = self.kernel.now + self.settings.quote_timeout
            self.kernel.schedule(planning, planning.until)
        else:
            self._to_plan.append(planning)

    # -- quotes ------------------------------------------------------------------------------------------------

    @takes(Quote, REQUEST)
    def _on_quote(self, peer: str, message: Quote) -> None:
        self._must_plan(peer)
        offers: list[QuotedOffer] = []
        for source in self._offered(message.types, snapshot=False):
            start, end = max(source.term.start, message.term.start), min(source.term.end, message.term.end)
            if start < end and len(offers) < OFFERS_MAX:
                offers.append(self._quoted(source, Term(start, end)))
        self.kernel.send(peer, Quoted(message.query, message.number, tuple(offers)))

    def _quoted(self, source: Source, term: Term) -> QuotedOffer:
        """What is shown of a source: the disclosed share of what is free; a step shows the least of what it spans."""
        share = self.settings.disclose
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

    @takes(Quoted)
    def _on_quoted(self, peer: str, message: Quoted) -> None:
        planning = self._plannings.get(message.query)
        if planning is None or planning.hold is not None or peer not in planning.waiting:
            return
        planning.waiting.discard(peer)
        for offer in message.offers:
            if offer.units:
                planning.offers[f"{peer}{REMOTE}{offer.source}"] = offer
        if not planning.waiting:
            self.kernel.schedule(planning, None)
            self._to_plan.append(planning)

    def _plan_refused(self, peer: str, message: ErrorReply) -> bool:
        """A broker that refuses to quote, or to hold, has answered."""
        planning = self._plannings.get(message.lease)
        if planning is not None and planning.hold is None and peer in planning.waiting:
            self._on_quoted(peer, Quoted(message.lease, message.number, ()))
            return True
        if any(one.hold is not None and one.hold.id == message.lease for one in self._plannings.values()):
            self._on_held(peer, Held(message.lease, message.number, message.text or "it is refused"))
            return True
        return False

    # -- the mapper's turn -------------------------------------------------------------------------------------

    def _plan_turn(self) -> Turn | None:
        """The turn that plans the next request."""
        while self._to_plan and self._to_plan[0].peer not in self.keyring.peers:
            self._end_planning(self._to_plan.popleft())
        if self.turns.running or not self._to_plan:
            return None
        plan = self._call_plan
        assert plan is not None, "no request is taken without"
        self._planning = planning = self._to_plan.popleft()
        types = {site.type for site in planning.request.sites}
        sources = self._offered(types, snapshot=not self.inline)
        sources += [_remote(id_, offer) for id_, offer in planning.offers.items()]
        cycle = PlanCycle(self.kernel.now, planning.peer, planning.request, sources)
        return self.turns.begin(lambda: plan(cycle))

    def _offered(self, types: Iterable[str], *, snapshot: bool) -> list[Source]:
        """What can be granted of these types, and all links."""
        links = {type_ for type_ in self.book.types() for one in self.book.of_type(type_) if "link.a" in one.properties}
        view = self.book.turn_sources(snapshot=snapshot)
        return [source for type_ in sorted({*types, *links}) for source in view(type_)]

    def _plan_done(self, done: TurnDone) -> None:
        planning = self._planning
        assert planning is not None, "its turn has ended"
        self._planning, self.turns.running = None, 0
        refusal = NoPlan("the broker's mapper found no plan, and did not say why")
        if done.error:
            self.turns.wrong(FAILED, f"broker mapper, asked to plan: {done.error}")
            refusal = NoPlan("the broker's mapper has failed on it")
        for decision in done.decisions:
            try:
                if not isinstance(decision, TopologyPlan | NoPlan):
                    raise CommandError(f"{decision!r:.80} is no plan")
                check_decision(decision)
            except CommandError as error:
                self.turns.wrong(MALFORMED, f"broker mapper's plan is not taken: {error}")
                continue
            if isinstance(decision, NoPlan):
                refusal = decision
            else:
                planning.plans.append(decision)
        planning.dropped = clip(refusal.reason, REASON_MAX)
        if planning.plans:
            self._try_next(planning)
        else:
            self._refuse_plan(planning, -1 if refusal.earliest is None else max(refusal.earliest, -1))

    # -- the plans, one after the other ------------------------------------------------------------------------

    def _try_next(self, planning: _Planning) -> None:
        """Hold the next plan that can be held; or, for who only wants to hear it, find the first that could be."""
        if planning.peer not in self.keyring.peers:
            self._end_planning(planning)
            return
        while planning.plans:
            plan = planning.plans.popleft()
            try:
                self._try(planning, plan)
                return
            except CommandError as error:
                planning.dropped = f"a plan to start at {plan.start} could not be held: {error}"
        self._refuse_plan(planning, -1)

    def _try(self, planning: _Planning, plan: TopologyPlan) -> None:
        """Raises ``CommandError``, with nothing held, if that can't be done."""
        term = self._check_start(planning.request, plan.start)
        parts = self._checked_parts(planning, plan)
        message, dry = planning.message, planning.message.op == TRY
        id_ = "" if dry else f"{self.keyring.tag}-plan-{self.kernel.next('serial')}"
        expires = -1 if dry else self.kernel.now + self.settings.hold_for
        answer = Planned(
            message.query, message.number, "planned" if dry else "held", id_, term, parts, clip(plan.objective, 64),
            clip(plan.gap, 64), expires, "", -1,
        )  # fmt: skip
        own = tuple(part for part in parts if part.broker == self.name)
        if dry:
            self._check_free(own, term)
            self._answer_plan(planning, answer)
            return
        others = tuple(sorted({part.broker for part in parts} - {self.name}))
        busy = self._may_hold(planning.peer)
        if busy:
            planning.plans.clear()
            raise CommandError(busy)
        hold = PlanHold(
            id_, planning.peer, message.query, self.keyring.key_of(planning.peer), term, own, expires,
            HOLDING if others else HELD, b"" if others else encode_message(answer), others,
        )  # fmt: skip
        self._hold(hold)
        if not others:
            self._answer_plan(planning, answer)
            return
        planning.hold, planning.answer, planning.waiting = hold, answer, set(others)
        for name in others:
            theirs = tuple(part for part in parts if part.broker == name)
            self.kernel.send(name, Hold(id_, planning.number, hold.holder, term, theirs, expires))
        planning.until = self.kernel.now + self.settings.quote_timeout
        self.kernel.schedule(planning, planning.until)

    def _check_start(self, request: TopologyRequest, start: Instant) -> Term:
        if not request.est <= start <= request.lst:
            raise CommandError(f"it starts at {start}, asked for was {request.est} to {request.lst}")
        if start + request.duration <= self.kernel.now:
            raise CommandError("its term is over")
        return request.term(start)

    def _checked_parts(self, planning: _Planning, plan: TopologyPlan) -> tuple[PlanPart, ...]:
        """The plan's parts, checked against its request. Raises ``CommandError``."""
        if len(plan.parts) > PARTS_MAX:
            raise CommandError(f"it has {len(plan.parts)} parts, at most {PARTS_MAX} are allowed")
        made: list[PlanPart] = []
        seen: list[Leased] = []
        for part in plan.parts:
            made.append(self._part(planning, part))
            properties = self._properties_of(planning, part.source)
            site, type_ = made[-1].site, made[-1].type
            seen.append(Leased(part.part, part.member, part.path, site, type_, part.units, properties))
        try:
            faults = plan_faults(planning.request, seen)
        except ValueError as error:
            faults = [str(error)]
        if faults:
            self.turns.wrong(NOT_CARRIED_OUT, f"broker mapper's plan is not taken: {'; '.join(faults)}")
            raise CommandError(f"it is not what was asked for: {faults[0]}")
        return tuple(made)

    def _part(self, planning: _Planning, part: PlannedPart) -> PlanPart:
        offer = planning.offers.get(part.source)
        if offer is not None:
            broker = part.source.partition(REMOTE)[0]
            found = (broker, offer.source, offer.site, offer.type)
        else:
            line = self.book.line(part.source)
            if not line:
                raise CommandError(f"source {part.source!r} is not known")
            found = (self.name, part.source, line[0].site, line[0].type)
        if part.units < 1:
            raise CommandError(f"part {part.part!r} has {part.units} units")
        return PlanPart(part.part, part.member, part.path, *found, part.units)

    def _properties_of(self, planning: _Planning, source: str) -> Any:
        offer = planning.offers.get(source)
        return offer.properties if offer is not None else self.book.line(source)[0].properties

    def _check_free(self, parts: Sequence[PlanPart], term: Term) -> None:
        """Raises ``CommandError`` unless all parts could be held."""
        wanted: dict[str, int] = {}
        for part in parts:
            self._check_part(part, term)
            wanted[part.source] = wanted.get(part.source, 0) + part.units
        for source, units in wanted.items():
            free = self.book.table_of(source).available(term)
            if free < units:
                raise CommandError(f"{units} units of {source} are wanted, {free} are free")

    # -- the other brokers' word -------------------------------------------------------------------------------

    @takes(Held)
    def _on_held(self, peer: str, message: Held) -> None:
        planning = next(
            (one for one in self._plannings.values() if one.hold is not None and one.hold.id == message.plan), None
        )
        if planning is None or planning.hold is None or peer not in planning.waiting:
            if not message.reason and message.plan not in self.holds:
                self.kernel.send(peer, Release(message.plan, message.number))
            return
        planning.waiting.discard(peer)
        if message.reason:
            self._give_up(planning, f"{peer}: {message.reason}")
        elif not planning.waiting:
            hold, answer = planning.hold, planning.answer
            assert answer is not None, "it was made with the hold"
            answer = replace(answer, number=planning.message.number)
            hold.answer, planning.hold = encode_message(answer), None
            self.kernel.fire(HOLD_MACHINE, hold, "promise", ", ".join(hold.others))
            self._answer_plan(planning, answer)

    def _give_up(self, planning: _Planning, why: str) -> None:
        """The plan that is being held comes to nothing: the next one is tried."""
        hold = planning.hold
        assert hold is not None, "there is one to be given up"
        planning.hold = None
        self.kernel.schedule(planning, None)
        self._drop_hold(hold, why)
        planning.dropped = f"a plan to start at {hold.term.start} could not be held: {why}"
        self._try_next(planning)

    def _let_go_of(self, hold: PlanHold, why: str) -> None:
        for name in hold.others:
            self.kernel.send(name, Release(hold.id, self.kernel.next("serial")))
        planning = next((one for one in self._plannings.values() if one.hold is hold), None)
        if planning is not None:
            planning.hold = None
            self._refuse_plan(planning, -1)

    # -- answering ---------------------------------------------------------------------------------------------

    def _refuse_plan(self, planning: _Planning, fits: Instant) -> None:
        message, request = planning.message, planning.request
        reason = clip(planning.dropped, REASON_MAX)
        answer = Planned(
            message.query, message.number, "refused", "", request.term(request.est), (), "", "", -1, reason, fits
        )
        self._answer_plan(planning, answer)

    def _answer_plan(self, planning: _Planning, answer: Planned) -> None:
        self._end_planning(planning)
        if planning.peer in self.keyring.peers:
            self.kernel.send(planning.peer, answer)

    def _end_planning(self, planning: _Planning) -> None:
        self._plannings.pop(planning.id, None)
        self.kernel.schedule(planning, None)

    # -- time and state ----------------------------------------------------------------------------------------

    def _planning_due(self, record: _Planning) -> None:
        self.kernel.forget(record)
        if record.hold is not None:
            silent = ", ".join(sorted(record.waiting))
            self._give_up(record, f"{silent} did not answer in time")
        elif record.waiting:
            record.waiting.clear()  # who has not answered is left out
            self._to_plan.append(record)

    def _plans_due(self, at: Instant | None) -> Instant | None:
        """When the next turn is due, if another is due ``at``."""
        return earliest(at, self.kernel.now if self._to_plan else None)


def _remote(id_: str, offer: QuotedOffer) -> Source:
    """What another broker quotes, as mappers see it."""
    free = Timetable(0)
    ends = [*offer.steps[2::2], offer.term.end]
    for at, units, end in zip(offer.steps[::2], offer.steps[1::2], ends, strict=True):
        if units and at < end:
            free.add_capacity(Term(at, end), units)
    return Source(id_, offer.site, offer.type, offer.units, offer.term, offer.properties, free)
