"""How a broker plans topologies: for a guest that asks, over what it holds itself and what other brokers quote.

A request is decided in a mapper's turn of its own, which the mapper need not have (:class:`.PlansTopologies`). What the
mapper returns are plans in order. Each is checked against its request, and held: here, and by the other brokers of
whose delegations it has parts. The first that is held everywhere is the answer; if one can't be, what was held of it is
released and the next is tried. Until a plan is held nothing is stored: after a restart, whoever asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs
from msgspec.structs import replace

from leasekit.actors.broker.holds import Holds
from leasekit.actors.broker.quotes import REMOTE, Quotes, source_of
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import REQUEST
from leasekit.actors.turns import FAILED, MALFORMED, NOT_CARRIED_OUT, check_decision
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.plans import HELD, HOLD_MACHINE, HOLDING, PlanHold
from leasekit.core.mappers import NoPlan, PlanCycle, TopologyPlan
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.fields import PARTS_MAX
from leasekit.core.protocol.messages import (
    ErrorReply,
    HoldParts,
    PartsHeld,
    Plan,
    Planned,
    PlanPart,
    Quoted,
    QuotedOffer,
    ReleaseParts,
)
from leasekit.core.reasons import DETAIL_MAX, Code, Reason, clip, mark, of_mapper, said
from leasekit.core.settings import SettingsError
from leasekit.core.steps import TurnDone
from leasekit.core.time import Instant, Term
from leasekit.core.topology import Leased, TopologyRequest, decode_topology, plan_faults

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


class Planner:
    """The requests for topologies that wait for a broker. ``plan`` is its mapper's, if that plans any."""

    def __init__(
        self,
        kernel: Kernel,
        keyring: Keyring,
        holds: Holds,
        quotes: Quotes,
        plan: Callable[[PlanCycle], Any] | None,
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._holds = holds
        self._quotes = quotes
        self._plan = plan
        self.plannings: dict[str, _Planning] = {}
        self.in_turn: _Planning | None = None
        """The request that the mapper plans now."""
        self._ready: deque[_Planning] = deque()
        kernel.register_unkept(_Planning, on_due=self._due)
        holds.dropped.append(self._hold_dropped)

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
            self._ready.append(planning)

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
            self._ready.append(planning)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """A broker that refuses to quote, or to hold, has answered."""
        planning = self.plannings.get(message.lease)
        if planning is not None and planning.hold is None and peer in planning.waiting:
            self._on_quoted(peer, Quoted(message.lease, message.number, ()))
            return True
        if any(one.hold is not None and one.hold.id == message.lease for one in self.plannings.values()):
            self._on_held(peer, PartsHeld(message.lease, message.number, message.reason))
            return True
        return False

    # -- the mapper's turn -------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a request waits for the mapper."""
        return bool(self._ready)

    def next_call(self, *, snapshot: bool) -> Callable[[], Any] | None:
        """What has the mapper plan the next request."""
        while self._ready and self._ready[0].peer not in self._keyring.peers:
            self._end(self._ready.popleft())
        if not self._ready:
            return None
        plan = self._plan
        assert plan is not None, "no request is taken without"
        self.in_turn = planning = self._ready.popleft()
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

    @takes(PartsHeld)
    def _on_held(self, peer: str, message: PartsHeld) -> None:
        planning = next(
            (one for one in self.plannings.values() if one.hold is not None and one.hold.id == message.plan), None
        )
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
            self._kernel.fire(HOLD_MACHINE, hold, "promise", said(", ".join(hold.others)))
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
        planning = next((one for one in self.plannings.values() if one.hold is hold), None)
        if planning is not None:
            planning.hold = None
            self._refuse(planning, -1)

    # -- answering ---------------------------------------------------------------------------------------------

    def _refuse(self, planning: _Planning, fits: Instant) -> None:
        message, request = planning.message, planning.request
        answer = Planned(
            message.query,
            message.number,
            "refused",
            "",
            request.term(request.est),
            (),
            "",
            "",
            -1,
            planning.dropped,
            fits,
        )
        self._answer(planning, answer)

    def _answer(self, planning: _Planning, answer: Planned) -> None:
        self._end(planning)
        if planning.peer in self._keyring.peers:
            self._kernel.send(planning.peer, answer)

    def _end(self, planning: _Planning) -> None:
        self.plannings.pop(planning.id, None)
        self._kernel.schedule(planning, None)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due(self, record: _Planning) -> None:
        self._kernel.forget(record)
        if record.hold is not None:
            silent = ", ".join(sorted(record.waiting))
            self._give_up(record, Reason(Code.SILENT, silent))
        elif record.waiting:
            record.waiting.clear()  # who has not answered is left out
            self._ready.append(record)
