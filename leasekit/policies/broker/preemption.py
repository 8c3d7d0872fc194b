"""First come, first served, where a request that fits nowhere takes the place of preemptible leases: of the cheapest
set that makes enough room (García et al., "An efficient cloud scheduler design supporting preemptible instances", FGCS
2019; the costs and the exact choice are those of :mod:`leasekit.policies.preempting`).

Requests are decided as by ``fcfs``, in the same order. Where that has nothing for a new request of no group that is
not preemptible, at no start in its window, others make room: preemptible leases of its own class or lower, of one
delegation. It starts as soon as enough of them can have left, after their notice and least run, and of all sets that
can by then the cheapest leaves.

Which units leases have is said over time: where they end within the term that is asked for, a set must leave enough in
each part of it, as if each part was a resource of a host. That choice is exact up to :data:`SEARCHED_MAX` leases, and
:data:`PARTS_MAX` parts, that differ in what they leave. For more, for units of several classes, for machines on hosts,
and where a budget rules the best set out, leases are added by what they cost for each of their units until there is
enough, and those that turn out not to be needed are left alone.

While a site has not accepted that leases of it end, nobody else leaves it: a request waits for that rather than being
refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple, TypeAlias

import attrs

from leasekit.core.mappers import (
    BrokerCycle,
    BrokerDecision,
    Defer,
    Grant,
    GrantedLease,
    GrantGroup,
    PendingRequest,
    Preempt,
    Reject,
    Wake,
)
from leasekit.core.reasons import Coded
from leasekit.core.requests import SUSPEND
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, Duration, Instant, Term
from leasekit.policies.broker import reasons
from leasekit.policies.broker.capacity import ClassedView, Place
from leasekit.policies.broker.quotas import Limit
from leasekit.policies.broker.turn import NEW, BrokerTurn, StandardMapper, StandardSettings, decide, items, plain
from leasekit.policies.preempting.costs import COSTS, Amount, CostError, VictimCost, costs_of, total
from leasekit.policies.preempting.hosts import HostedLease, Vector
from leasekit.policies.preempting.victims import TABLE_MAX, all_victims, choose_victims

STARTS_MAX: Final = 32
"""How many starts of a deferrable request are tried."""
SEARCHED_MAX: Final = 64
"""Among how many leases the cheapest set is searched for, those aside that others like them go before."""
PARTS_MAX: Final = 16
"""How many parts of a term a search tells apart."""
NODES_MAX: Final = 5_000
"""How many nodes of a search are looked at."""
ONE_BY_ONE_MAX: Final = 250
"""How many leases leave for one request at most, where no set is searched for."""
LOOKED_AT_MAX: Final = 2_000
"""How many leases are looked at in a turn for the requests of one holder, before the others of them wait."""
REST: Final[Duration] = 200
"""How long these wait."""

LookedAtFor: TypeAlias = Mapping[str, Set[str]]
"""The requests of holders for which leases were looked at."""


@attrs.frozen(kw_only=True)
class PreemptionSettings(StandardSettings):
    """Settings of :class:`PreemptionMapper`."""

    cost: str = attrs.field(default="period", validator=attrs.validators.in_(tuple(COSTS)))
    """What a victim costs when it ends: the time into its current billing period, which isn't billed (``"period"``);
    the same times its units, and its bid if it has one (``"price"``); the time since its start (``"lost_work"``); 1
    (``"count"``); or 1,000 times what one of the class below does (``"priority"``)."""
    period: DurationSetting = attrs.field(default=HOUR, validator=attrs.validators.ge(1))
    """The billing period of ``"period"`` and ``"price"``."""
    budget: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many leases of one holder and type may be on their way out at once, from their notice to their end."""


class PreemptionMapper(StandardMapper):
    """``fcfs``, with victims. A mapper that derives from it may have a ``cost`` of its own, a plug-in."""

    Settings: ClassVar[type[PreemptionSettings]] = PreemptionSettings

    def __init__(self, settings: PreemptionSettings | None = None, cost: VictimCost | None = None) -> None:
        self.settings = settings or PreemptionSettings()
        cost = cost or COSTS[self.settings.cost](self.settings.period)
        super().__init__(self.settings, MakingRoom(cost, self.settings.budget))
        self.by_itself = True


class MakingRoom:
    """Requests in order, each for itself; who would be refused, or wait, may have others make room."""

    bulk = True

    def __init__(self, cost: VictimCost, budget: int | None) -> None:
        self._cost, self._budget = cost, budget
        self._looked_at_for: LookedAtFor = {}

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Every request of the cycle, in order."""
        victims = VictimTurn(turn, cycle, self._cost, self._budget, self._looked_at_for)
        decisions: list[BrokerDecision] = []
        for op, _, _, _, _, requests in sorted(items(cycle, plain)):
            found, first = decide(turn, op, requests), requests[0]
            if op == NEW and not (first.group or first.preemptible or isinstance(found[0], Grant)):
                found = [victims.make_room(first, found[0])]
            decisions += found
        self._looked_at_for = victims.go_on()
        return decisions + victims.wakes


class _Way(NamedTuple):
    """One way to make room: the best is the least. ``number`` is that of the place."""

    start: Instant
    cost: Amount
    size: int
    number: int
    victims: tuple[GrantedLease, ...]


class VictimTurn:
    """Who leaves in one turn. ``before`` is what :meth:`go_on` has said in the last one."""

    def __init__(
        self, turn: BrokerTurn, cycle: BrokerCycle, cost: VictimCost, budget: int | None, before: LookedAtFor
    ) -> None:
        self._turn = turn
        self._cycle = cycle
        self._cost = cost
        self._budget = budget
        self._granted: dict[str, Sequence[GrantedLease]] = {}
        self._leaving: dict[str, Counter[str]] = {}
        self._asked: set[str] = set()
        """Delegations of which somebody has been asked to leave."""
        self._chosen: list[GrantedLease] = []
        self.wakes: list[BrokerDecision] = []
        """When those are to be looked at for whom leases were not looked at in this turn."""
        self._looked_at: Counter[str] = Counter()
        """How many leases were looked at for each holder, by what that takes."""
        self._before = before
        self._shown: dict[str, set[str]] = {}
        self._left: dict[str, set[str]] = {}
        """The requests of each holder for which others may make room, and those of them that wait for a later turn."""

    def make_room(self, request: PendingRequest, otherwise: BrokerDecision) -> BrokerDecision:
        """A grant with victims, or what is decided ``otherwise``, also where nobody can say what victims cost. A holder
        for whose requests much was looked at has the others wait for a later turn.
        """
        try:
            return self._make_room(request, otherwise)
        except CostError as error:
            failed = Coded(str(error), "cost_failed")
            return Reject(request.lease, failed) if isinstance(otherwise, Reject) else Defer(request.lease, failed)

    def _make_room(self, request: PendingRequest, otherwise: BrokerDecision) -> BrokerDecision:
        turn, shape = self._turn, self._turn.shape(request)
        if reasons.never(request, shape, request.min_units, turn.now):
            return otherwise
        self._shown.setdefault(request.holder, set()).add(request.lease)
        if request.lease in self._before.get(request.holder, ()):
            return otherwise
        if self._is_enough_for(request):
            self._left.setdefault(request.holder, set()).add(request.lease)
            words = f"waits until leases were looked at for other requests of {request.holder!r}"
            self.wakes = [Wake(turn.now + REST)]
            return Defer(request.lease, Coded(words, "makes_room"), turn.now + REST)
        self._look(request.type)
        waits, ways, limit = "", [], turn.limit(request)
        for number, place in enumerate(shape.places):
            able = self._able(request, place)
            self._looked_at[request.holder] += 1 + len(self._granted[request.type]) // 8
            if able and place.view.id in self._asked:
                waits = place.site
            elif able:
                ways += self._first_way(request, number, place, able, limit)
        if ways:
            best = min(ways)
            return self._grant(request, shape.places[best.number], best, limit)
        if waits and isinstance(otherwise, Reject):
            words = f"waits until site {waits!r} has accepted that others end"
            return Defer(request.lease, Coded(words, "makes_room"))
        return otherwise

    def go_on(self) -> LookedAtFor:
        """Which requests were looked at already, of those holders of whom some were not: these are next."""
        return {holder: self._shown[holder] - left for holder, left in self._left.items()}

    def outbid(self, type_: str) -> list[GrantedLease]:
        """The leases of a type that leave for others, by what was decided in this turn."""
        return [one for one in self._chosen if one.type == type_]

    def _look(self, type_: str) -> None:
        """See who is there, and who is leaving."""
        if type_ not in self._granted:
            granted = self._granted[type_] = self._cycle.granted(type_)
            self._leaving[type_] = Counter(one.holder for one in granted if one.ending)
            self._asked.update(one.source for one in granted if one.term.end < one.booked)

    def _is_enough_for(self, request: PendingRequest) -> bool:
        return self._looked_at[request.holder] >= LOOKED_AT_MAX

    def _able(self, request: PendingRequest, place: Place) -> list[GrantedLease]:
        """The leases of a place that may be ended at some time for a request."""
        return [
            one
            for one in self._granted[request.type]
            if one.source == place.view.id and one.preemptible and not one.ending
            and one.priority <= request.priority and self._left_of(one) > 0
            and (one.bid < request.bid or not request.preemptible)
        ]  # fmt: skip

    def _left_of(self, one: GrantedLease) -> int:
        """How many more of the leases of a holder may leave."""
        leaving = self._leaving[one.type][one.holder]
        return len(self._granted[one.type]) if self._budget is None else self._budget - leaving

    # -- one place -----------------------------------------------------------------------------------------------------

    def _first_way(
        self, request: PendingRequest, number: int, place: Place, able: list[GrantedLease], limit: Limit | None
    ) -> list[_Way]:
        """The cheapest way at the earliest start at which there is any; none where there isn't."""
        for start in self._starts(request, place, able):
            term = Term(start, start + request.term.length)
            if limit is not None and limit.short(term, request.min_units) is not None:
                continue
            at = start - place.ahead
            leaving = [one for one in able if at < one.term.end and not one.since < at < one.ends_from]
            self._looked_at[request.holder] += len(leaving)
            chosen = self._cheapest(request, place, term, leaving)
            if chosen:
                cost = total(costs_of(self._cost, [_hosted(one, at) for one in chosen], at))
                return [_Way(start, cost, len(chosen), number, tuple(chosen))]
            if self._is_enough_for(request):
                break
        return []

    def _starts(self, request: PendingRequest, place: Place, able: list[GrantedLease]) -> list[Instant]:
        """The starts at which somebody can have left, or there is more room."""
        begin, latest = max(request.term.start, self._turn.now + place.ahead), request.latest_start
        if begin > latest:
            return []
        starts = {begin, *(one.ends_from + place.ahead for one in able), *place.rises(Term(begin, latest + 1))}
        return sorted(start for start in starts if begin <= start <= latest)[:STARTS_MAX]

    def _cheapest(
        self, request: PendingRequest, place: Place, term: Term, leaving: list[GrantedLease]
    ) -> list[GrantedLease]:
        """Victims that leave enough over a term; empty where there are none."""
        begin = term.start - place.ahead
        if not isinstance(place.view, ClassedView):
            if sum(one.units for one in leaving) + place.free(term) < request.min_units:
                return []
            names = self._searched(request, place, Term(begin, term.end), leaving)
            chosen = [one for one in leaving if one.lease in (names or ())]
            if names is not None and (not chosen or self._is_enough(request, place, term, chosen)):
                return chosen
        return self._one_by_one(request, place, term, leaving)

    def _searched(
        self, request: PendingRequest, place: Place, booked: Term, leaving: list[GrantedLease]
    ) -> set[str] | None:
        """The cheapest set by name, empty if there is none; None where that can't be searched for, or must not be."""
        begin, end = booked
        bounds = {at for one in leaving for at in (one.term.start, one.term.end) if begin < at < end}
        parts = [Term(*pair) for pair in pairwise(sorted({begin, end, *bounds}))]
        short = [(part, request.min_units - place.view.free(part)) for part in parts]
        short = [(part, units) for part, units in short if units > 0]
        if not short or len(short) > PARTS_MAX:
            return None
        missing = tuple([units for _, units in short])
        hosted = [_hosted(one, begin, tuple([_leaves(one, *each) for each in short])) for one in leaving]
        if any(sum(one.needs[number] for one in hosted) < units for number, units in enumerate(missing)):
            return set()  # all of them together leave too little
        holders = {one.lease: one.holder if self._budget is not None else "" for one in leaving}
        searched = _without_spare(hosted, costs_of(self._cost, hosted, begin), missing, holders)
        if len(searched) > SEARCHED_MAX:
            return None
        by_name = {one.lease: one for one in leaving}
        if len(searched) <= TABLE_MAX:
            sets = all_victims(searched, missing, self._cost, begin)
        else:
            best = choose_victims(searched, missing, self._cost, begin, NODES_MAX)
            if best is None:
                return set()
            sets = iter([best])
        for found in sets:
            if self._within_budget([by_name[one.id] for one in found.leases]):
                return {one.id for one in found.leases}
        return set() if len(searched) <= TABLE_MAX else None

    def _is_enough(self, request: PendingRequest, place: Place, term: Term, victims: list[GrantedLease]) -> bool:
        """Whether victims leave enough: where more is booked than there is, more is missing than shows."""
        for one in victims:
            self._leave(place, one, term.start - place.ahead)
        enough = place.free(term) >= request.min_units
        for one in victims:
            self._leave(place, one, term.start - place.ahead, -1)
        return enough

    def _within_budget(self, victims: Sequence[GrantedLease]) -> bool:
        of = Counter(one.holder for one in victims)
        return all(of[one.holder] <= self._left_of(one) for one in victims)

    def _one_by_one(
        self, request: PendingRequest, place: Place, term: Term, leaving: list[GrantedLease]
    ) -> list[GrantedLease]:
        """Victims by what they cost for each unit, none of them in vain; empty if all of them aren't enough."""
        at, least, chosen = term.start - place.ahead, request.min_units, list[GrantedLease]()
        costs = costs_of(self._cost, [_hosted(one, at) for one in leaving], at)
        by_name = {one.lease: cost for one, cost in zip(leaving, costs, strict=True)}
        of: Counter[str] = Counter()
        for one in sorted(leaving, key=lambda one: (by_name[one.lease] / one.units, one.lease)):
            if len(chosen) == ONE_BY_ONE_MAX or place.free(term) >= least:
                break
            if of[one.holder] < self._left_of(one):
                self._leave(place, one, at)
                chosen.append(one)
                of[one.holder] += 1
        self._looked_at[request.holder] += 8 * len(chosen)
        enough = place.free(term) >= least
        for one in sorted(chosen, key=lambda one: -by_name[one.lease]) if enough else ():
            self._leave(place, one, at, -1)
            if place.free(term) >= least:
                chosen.remove(one)
            else:
                self._leave(place, one, at)
        for one in chosen:
            self._leave(place, one, at, -1)
        return chosen if enough else []

    # -- what comes of it ----------------------------------------------------------------------------------------------

    def _leave(self, place: Place, one: GrantedLease, at: Instant, sign: int = 1) -> None:
        """Free what a lease leaves, or take it back where ``sign`` is negative."""
        self._turn.leave(place.view, one, Term(max(at, one.term.start), one.term.end), sign)

    def _grant(self, request: PendingRequest, place: Place, way: _Way, limit: Limit | None) -> Grant:
        """What is left to nobody stays booked until the site has accepted that its lease ends."""
        at = way.start - place.ahead
        for one in way.victims:
            self._leave(place, one, at)
        grant = self._turn.grant(request, place, Term(way.start, way.start + request.term.length), limit)
        for one in way.victims:
            self._leave(place, one, at, -1)
            self._leaving[one.type][one.holder] += 1
        self._asked.add(place.view.id)
        self._chosen += way.victims
        self._granted[request.type] = [one for one in self._granted[request.type] if one not in way.victims]
        victims = (
            Preempt(one.lease, at, "it is preemptible", suspend=one.on_preempt == SUSPEND and one.since < at)
            for one in way.victims
        )
        return grant._replace(victims=tuple(victims))


def _hosted(one: GrantedLease, at: Instant, needs: Vector = ()) -> HostedLease:
    """A lease as costs know it. One that will not have begun has cost nothing; its price is that of its units, by its
    bid.
    """
    return HostedLease(one.lease, needs, min(one.since, at), True, one.priority, price=one.units * (one.bid + 1))


def granted_to(decision: BrokerDecision) -> Grant | GrantGroup | None:
    """A decision, if it gives units."""
    return decision if isinstance(decision, Grant | GrantGroup) else None


def _leaves(one: GrantedLease, part: Term, short: int) -> int:
    """How many of the units that are missing in a part of a term a lease leaves."""
    return min(one.units, short) if one.term.start <= part.start and part.end <= one.term.end else 0


def _without_spare(
    leases: Sequence[HostedLease], costs: Sequence[Amount], missing: Vector, holders: dict[str, str]
) -> list[HostedLease]:
    """The leases by id, without those that others of the same holder go before: of those that leave the same, the
    cheapest are needed, and no more than would do by themselves.
    """
    alike: dict[tuple[str, Vector], list[HostedLease]] = {}
    for _, lease in sorted(zip(costs, leases, strict=True)):
        if any(lease.needs):
            alike.setdefault((holders[lease.id], lease.needs), []).append(lease)
    kept: list[HostedLease] = []
    for (_, needs), several in alike.items():
        most = max(-(-short // each) for each, short in zip(needs, missing, strict=True) if each)
        kept += several[:most]
    return sorted(kept)
