"""What all standard mappers of a broker have in common: their settings, how a turn goes, what it has granted so far,
and how each kind of request is decided by itself.

The order in which requests are decided, and whether a deferrable one is booked ahead or waits, is the mapper's
:class:`Rule`. That of those that book ahead is here (:class:`Booking`): every request is decided at once, a deferrable
one by a grant for later; the others are in :mod:`.waiting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import merge
from itertools import islice
from typing import ClassVar, Protocol, TypeAlias

import attrs

from leasekit.core.mappers import (
    BrokerCycle,
    BrokerDecision,
    Defer,
    Grant,
    GrantedLease,
    GrantGroup,
    PendingRequest,
    Reject,
    Usage,
    Wake,
)
from leasekit.core.profile import Ledger
from leasekit.core.properties import NO_UNITS, Counts
from leasekit.core.reasons import Coded, mark
from leasekit.core.settings import DurationSetting
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term
from leasekit.policies.broker import reasons
from leasekit.policies.broker.capacity import (
    BALANCES,
    Balance,
    CapacityView,
    CapacityViews,
    Choice,
    GoingOn,
    Member,
    Place,
    Shape,
    ShapeKey,
    SiteFilterSettings,
    SiteWeigherSettings,
    pick,
    place,
    search,
)
from leasekit.policies.broker.constraints import PLAIN, read_constraints
from leasekit.policies.broker.quotas import ANY, SOON, HeldAccount, Limit, QuotaSettings

STARTS_MAX = 1_000
"""How many starts are tried for one group in one turn."""

PLACED_MAX = 20_000
"""How many places are tried for the members of one group in one turn, over all starts: some 0.05 s."""

FILLED_MAX = 10_000
"""How many members of one group are placed anew, to see whether one can have more units: some 0.1 s."""

QUOTA_STARTS_MAX = 64
"""How many starts are tried for a request whose holder is at its quota."""

EXPLAINED_MAX = 16
"""How many requests that wait are told in one turn when they would fit."""


@lru_cache
def _otherwise(hours: int) -> QuotaSettings:
    return QuotaSettings(booked_hours=hours)


class Quotas:
    """All quotas of a mapper."""

    def __init__(self, quotas: Sequence[QuotaSettings]) -> None:
        self._quotas = {(quota.holder, quota.type): quota for quota in quotas}

    @property
    def wants_usage(self) -> bool:
        """Whether what holders have had counts."""
        return any(
            limit is not None
            for quota in self._quotas.values()
            for limit in (quota.units, quota.unit_hours, quota.stacked)
        )

    @property
    def history(self) -> Duration:
        """How far back they look."""
        return max((max(q.period, (q.longest or 0) + q.rest) for q in self._quotas.values()), default=0)

    def of(self, request: PendingRequest, usage: HeldAccount, now: Instant) -> Limit | None:
        """What limits a request, if anything does."""
        for holder, type_ in (
            (request.holder, request.type), (request.holder, ANY), (ANY, request.type), (ANY, ANY)
        ):  # fmt: skip
            quota = self._quotas.get((holder, type_))
            if quota is not None:
                return Limit(quota, request, usage, now)
        if usage.booked_hours and request.op == "new" and request.latest_start > now + SOON:
            return Limit(_otherwise(usage.booked_hours), request, usage, now)
        return None


class BrokerTurn:
    """What is left of the sources, and of quotas, after what the turn has granted so far."""

    def __init__(
        self, cycle: BrokerCycle, choice: Choice, quotas: Quotas, bulk: Sequence[PendingRequest] | None
    ) -> None:
        self.now = cycle.now
        self.views = CapacityViews(cycle, bulk)
        self.choice = choice
        self.changes = 0
        """How often something was booked or given back so far."""
        self._quotas = quotas
        self.usage = GrantedToo(cycle)
        """The broker's account of holders, with what this turn has granted."""
        self._fits: dict[tuple[object, ...], tuple[int, tuple[Instant, Place] | None]] = {}
        self._full: dict[int, list[tuple[int, Duration, Instant, Instant]]] = {}
        self._explained = 0

    # -- new requests ------------------------------------------------------------------------------------------

    def new(self, request: PendingRequest) -> BrokerDecision:
        """Grant at once if possible, else later if the request allows that."""
        if request.held_from:
            return self._instead(request)
        term, least = request.term, request.min_units
        if term.start < self.now < request.latest_start:
            # What has passed since a deferrable request was shown is no part of its window any more.
            term = Term(self.now, self.now + term.length)
            request = request._replace(term=term)
        if request.latest_start < term.start:
            return Reject(request.lease, reasons.late(request))
        shape = self.shape(request)
        limit = self.limit(request)
        waits = request.latest_start > term.start
        if not shape.fault:
            found = self.earliest(request, shape, limit) if waits else self._at_once(request, shape, limit)
            if found is not None:
                return self.grant(request, found[1], found[0], limit)
        if reason := reasons.never(request, shape, least, self.now):
            return Reject(request.lease, reason)
        short = limit.short(term, least) if limit is not None else None
        if waits:
            if short is None:
                return Defer(request.lease, self.not_yet(request, shape))
            return Reject(request.lease, short.reason) if short.lasts else Defer(request.lease, short.reason)
        if short is not None:
            return Reject(request.lease, short.reason)
        fit = self._fit(request, shape)
        text = reasons.refused(request, shape, term, least, fit)
        return Reject(request.lease, text, None if fit is None else fit[0])

    def _instead(self, request: PendingRequest) -> BrokerDecision:
        """Decide with what the request holds free for it: nobody else has that in this turn."""
        view = self.views.get(request.type, request.source)
        if view is None:
            return self.new(request._replace(held_from=0))
        own, view = Term(request.held_from, request.held_until), self.views.needing(view, request.needs)
        self.give(view, request.held, own, request.classes)
        self.usage.add(request.holder, request.type, -request.held, own)
        decision = self.new(request._replace(held_from=0))
        self.give(view, -request.held, own, request.classes)
        if not isinstance(decision, Grant):
            self.usage.add(request.holder, request.type, request.held, own)
        return decision

    def _at_once(self, request: PendingRequest, shape: Shape, limit: Limit | None) -> tuple[Term, Place] | None:
        """The very term that was asked for, and where it can be had."""
        term, least = request.term, request.min_units
        if limit is not None and limit.units(term) < least:
            return None
        found = pick(shape.places, term, request.units, least, self.choice, request.lease)
        return None if found is None else (term, found)

    def earliest(self, request: PendingRequest, shape: Shape, limit: Limit | None) -> tuple[Term, Place] | None:
        """The earliest term within a request's window that it can have, and where."""
        length, least, latest = request.term.length, request.min_units, request.latest_start
        begin: Instant | None = max(request.term.start, self.now)
        for _ in range(QUOTA_STARTS_MAX):
            assert begin is not None, "left below when there is none"
            term = self._first(shape, least, length, begin, latest)
            if term is None:
                return None
            if limit is None or limit.units(term) >= least:
                units = request.units if limit is None else min(request.units, limit.units(term))
                found = pick(shape.places, term, units, least, self.choice, request.lease)
                assert found is not None, "it fits there"
                return term, found
            begin = limit.next_start(term.start, length)
            if begin is None or begin > latest:
                return None
        return None

    def _first(self, shape: Shape, least: int, length: Duration, begin: Instant, latest: Instant) -> Term | None:
        """The earliest term with enough units anywhere. What was in vain for less isn't tried again for more."""
        full = self._full.setdefault(id(shape), [])
        if any(least >= u and length >= d and begin >= b and latest <= e for u, d, b, e in full):
            return None
        best: Instant | None = None
        for each in shape.places:
            start = each.earliest(least, length, begin, latest if best is None else best)
            best = best if start is None else start
        if best is None:
            full.append((least, length, begin, latest))
            return None
        return Term(best, best + length)

    def shape(self, request: PendingRequest) -> Shape:
        """Where a request can be filled from."""
        return self.views.shape(self.shape_key(request))

    def shape_key(self, request: PendingRequest) -> ShapeKey:
        """What requests of one shape have in common: the type, sites, and what they and the broker ask of units."""
        constraints = read_constraints(request.properties) if request.properties else PLAIN
        if self.choice.filters:
            filters = self.choice.filters_for(request.holder, request.type)
            constraints = constraints._replace(site_filters=filters)
        return request.type, request.site, request.exclude_sites, constraints

    def limit(self, request: PendingRequest) -> Limit | None:
        """What limits a request's holder, if anything does."""
        return self._quotas.of(request, self.usage, self.now)

    def grant(self, request: PendingRequest, found: Place | GoingOn, term: Term, limit: Limit | None) -> Grant:
        """Book as many units as there are, up to those wanted."""
        units = min(request.units, found.free(term))
        if limit is not None:
            units = min(units, limit.units(term))
        found.take(units, term)
        self.changes += 1
        self.usage.add(request.holder, request.type, units, term)
        return Grant(request.lease, found.view.id, units, term, request.preemptible, found.ahead)

    def _fit(self, request: PendingRequest, shape: Shape) -> tuple[Instant, Place] | None:
        """When it would fit; the same question isn't worked out twice while nothing has been granted in between."""
        key = (id(shape), request.min_units, request.term)
        known = self._fits.get(key)
        if known is None or known[0] != self.changes:
            found = reasons.earliest_fit(shape.places, request.min_units, request.term)
            known = self._fits[key] = (self.changes, found)
        return known[1]

    def not_yet(self, request: PendingRequest, shape: Shape) -> str:
        """Why a request waits that doesn't fit up to its latest start, and when it would fit. That is for people: a
        turn works it out for a few only, however many wait.
        """
        text = reasons.not_yet(request, shape, request.min_units)
        self._explained += 1
        if self._explained > EXPLAINED_MAX:
            return text
        begin = max(request.term.start, self.now)
        fit = self._fit(request._replace(term=Term(begin, begin + request.term.length)), shape)
        # Where it fits within its window, a quota stands in its way.
        if fit is None or fit[0] > request.latest_start:
            return Coded(f"{text}; {reasons.fitting(fit)}", reasons.INSUFFICIENT)
        return text

    # -- extends and modifies ----------------------------------------------------------------------------------

    def goes_on(self, request: PendingRequest) -> BrokerDecision:
        """Grant an extend or a modify from where the lease is, over exactly the term asked for, or refuse. What a
        modify gives up is nobody else's yet: the broker keeps it booked until the site has confirmed the modify.
        """
        found = self._source(request)
        if isinstance(found, Reject):
            return found
        term, least, until = request.term, request.min_units, request.held_until
        free = found.free(term)
        if free < least and until > term.start:
            return Reject(request.lease, reasons.beside(request, found, free, until))
        if free < least:
            return Reject(request.lease, reasons.insufficient(request, [found], term, least))
        limit = self.limit(request)
        short = limit.short(term, least) if limit is not None else None
        if short is not None:
            return Reject(request.lease, short.reason)
        if until > term.start:
            self.usage.add(request.holder, request.type, -request.held, Term(term.start, until))
        return self.grant(request, found, term, limit)

    def give(self, view: CapacityView, units: int, term: Term, classes: Counts = NO_UNITS) -> None:
        """Free units that a lease of these ``classes`` has, or takes them back where negative; without classes, what
        was granted in this turn.
        """
        view.give(units, term, classes)
        self._full.clear()
        self.changes += 1

    def leave(self, view: CapacityView, one: GrantedLease, term: Term, sign: int = 1) -> None:
        """Free what a granted lease has over a term, or take it back where ``sign`` is negative: machines count in
        their own size, whatever the view's.
        """
        whole = self.views.get(one.type, view.id) or view
        self.give(self.views.needing(whole, one.needs), sign * one.units, term, one.classes)

    def _source(self, request: PendingRequest) -> GoingOn | Reject:
        """What the lease can go on with where it is, if it can at any load."""
        view = self.views.get(request.type, request.source)
        if view is None:
            words = f"the delegation {request.source!r} that the lease is from is over"
            return Reject(request.lease, Coded(words, "not_covered"))
        if (request.site and view.site != request.site) or view.site in request.exclude_sites:
            words = f"the lease is at site {view.site!r} and can't go on anywhere else"
            return Reject(request.lease, Coded(words, "not_there"))
        view = self.views.needing(view, request.needs)
        constraints = read_constraints(request.properties)
        fault, taken = self.views.filtered(request.type, constraints.filter)
        reason = reasons.never(request, Shape([view], [view], constraints.fault or fault), request.min_units, self.now)
        return Reject(request.lease, reason) if reason else view.going_on(request, taken[view.id])

    # -- groups ------------------------------------------------------------------------------------------------

    def group(self, group: tuple[PendingRequest, ...]) -> list[BrokerDecision]:
        """All members at their earliest common start, or none; elastic ones with as many units as they can have there.
        Members that each begin at a fixed instant have terms of their own, and don't wait.
        """
        is_fixed = all(request.latest_start <= request.term.start for request in group)
        if is_fixed and (len(group) == 1 or len({request.term for request in group}) > 1):
            return [self._each_in_its_term(group)]
        shapes = [self.shape(request) for request in group]
        refusal = self._never_together(group, shapes)
        if refusal is not None:
            return [refusal]
        length = group[0].term.length
        members = self._members(group, shapes)
        short, left = "", PLACED_MAX
        every, least = {each: None for member in members for each in member.places}, sum(one.units for one in members)
        for start in islice(_starts(group, members, self.now), STARTS_MAX):
            term = Term(start, start + length)
            if sum(max(0, each.free(term)) for each in every) < least:
                continue
            chosen, tried = search(members, term, self.choice)
            left -= len(members) + tried
            if chosen is None and left <= 0:
                break
            if chosen is None:
                continue
            short = self._short_together(group, members, term)
            if not short:
                filled = self._filled(group, members, chosen, term)
                return [GrantGroup(group[0].group, self._grants(group, *filled, term))]
        latest = min(request.latest_start for request in group)
        total = sum(request.min_units for request in group)
        reason = short or Coded(
            f"insufficient resources: no start from {mark(max(request.term.start for request in group))} to "
            f"{mark(latest)} has all "
            f"{total} units of the {len(group)} requests of group {group[0].group!r} free at once",
            reasons.INSUFFICIENT,
        )
        if is_fixed:
            return [Reject(group[0].lease, reason)]
        return [Defer(request.lease, reason) for request in group]

    def _each_in_its_term(self, group: Sequence[PendingRequest]) -> BrokerDecision:
        """Each member by itself; where one can't be had, what the others had booked is given back. All that they need
        is booked before any has more.
        """
        granted: list[tuple[PendingRequest, Grant]] = []
        for request in group:
            decision = self.new(request if len(group) == 1 else request._replace(units=request.min_units))
            if isinstance(decision, Grant):
                granted.append((request, decision))
                continue
            for other, grant in granted:
                view = self.views.get(other.type, grant.source)
                assert view is not None, "it was granted from there"
                self.give(view, grant.units, grant.booked)
                self.usage.add(other.holder, other.type, -grant.units, grant.term)
            return decision
        return GrantGroup(group[0].group, tuple(self._grown(request, grant) for request, grant in granted))

    def _grown(self, request: PendingRequest, grant: Grant) -> Grant:
        """A grant with as many more units as its request wants and there are."""
        (found,) = [one for one in self.shape(request).places if one.view.id == grant.source]
        limit, wanted = self.limit(request), request.units - grant.units
        if limit is not None:
            wanted = min(wanted, limit.units(grant.term))
        if wanted <= 0 or found.free(grant.term) <= 0:
            return grant
        more = self.grant(request._replace(units=wanted), found, grant.term, None)
        return grant._replace(units=grant.units + more.units)

    def _filled(
        self, group: Sequence[PendingRequest], members: Sequence[Member], chosen: Sequence[Place], term: Term
    ) -> tuple[Sequence[Member], Sequence[Place]]:
        """The members with as many units as each can have, in their order, and a place for each. They have at least
        what they have in ``members``, at the places ``chosen``.
        """
        left = FILLED_MAX
        for number, request in enumerate(group):
            least, most = members[number].units, request.units
            units = most  # most often there is enough
            while least < most and left > 0:
                left -= len(members)
                more = [*members[:number], members[number]._replace(units=units), *members[number + 1 :]]
                found = place(more, term, self.choice)
                if found is None or self._short_together(group, more, term):
                    most = units - 1
                else:
                    least, members, chosen = units, more, found
                units = (least + most + 1) // 2
        return members, chosen

    def _members(self, group: Sequence[PendingRequest], shapes: Sequence[Shape]) -> list[Member]:
        """The members, with what each needs at least, and each view with the longest preparation that any of them needs
        there.
        """
        ahead: dict[str, Duration] = {}
        for shape in shapes:
            for each in shape.places:
                ahead[each.view.id] = max(each.ahead, ahead.get(each.view.id, 0))
        return [
            Member(
                request.lease,
                request.min_units,
                [self.views.prepared(each.view, ahead[each.view.id]) for each in shape.places],
            )
            for request, shape in zip(group, shapes, strict=True)
        ]

    def _short_together(self, group: Sequence[PendingRequest], members: Sequence[Member], term: Term) -> str:
        """Which quota doesn't let the members have so many units; of one holder and type they count together."""
        wanted: dict[tuple[str, str], int] = {}
        for request, member in zip(group, members, strict=True):
            key = (request.holder, request.type)
            wanted[key] = wanted.get(key, 0) + member.units
            limit = self.limit(request)
            short = limit.short(term, wanted[key]) if limit is not None else None
            if short is not None:
                return short.reason
        return ""

    def _grants(
        self, group: Sequence[PendingRequest], members: Sequence[Member], chosen: Sequence[Place], term: Term
    ) -> tuple[Grant, ...]:
        grants: dict[str, Grant] = {}
        # Who takes any class of units leaves to the others what these need.
        each = sorted(zip(group, members, chosen, strict=True), key=lambda one: one[2].view.classes)
        for request, member, found in each:
            assert found.free(term) >= member.units, "place() counts what it has placed"
            grants[request.lease] = self.grant(request._replace(units=member.units), found, term, None)
        return tuple(grants[request.lease] for request in group)

    def _never_together(self, group: Sequence[PendingRequest], shapes: Sequence[Shape]) -> Reject | None:
        for request, shape in zip(group, shapes, strict=True):
            if reason := reasons.never(request, shape, request.min_units, self.now):
                return Reject(request.lease, reason)
        name, first = group[0].group, group[0].lease
        lengths = {request.term.length for request in group}
        if len(lengths) > 1:
            words = " and ".join(f"{length} ms" for length in sorted(lengths)[:3])
            words = f"the requests of group {name!r} get one term, but ask for {words}"
            return Reject(first, Coded(words, "bad_request"))
        begin, latest = max(r.term.start for r in group), min(r.latest_start for r in group)
        if begin > latest:
            words = f"no start suits all requests of group {name!r}: one starts at {mark(begin)} or later, one by "
            return Reject(first, Coded(words + mark(latest), "bad_request"))
        return None


class GrantedToo:
    """The broker's account of holders, with what this turn has granted on top."""

    def __init__(self, cycle: BrokerCycle) -> None:
        self.before: Usage = Ledger() if cycle.usage is None else cycle.usage
        self._cycle = cycle
        self.booked_hours = cycle.booked_hours
        self._changed: dict[tuple[str, str], list[tuple[Term, int]]] = {}
        self._sums = Ledger()
        self._summed: dict[tuple[str, str], int] = {}

    def add(self, holder: str, type_: str, units: int, term: Term) -> None:
        """Units were granted over a term; negative: they were given back."""
        self._changed.setdefault((holder, type_), []).append((term, units))

    def booked(self, holder: str, type_: str) -> int:
        """What a holder has over terms that have not begun, in unit-milliseconds."""
        now, fresh = self._cycle.now, self._changed.get((holder, type_), ())
        return self._cycle.booked(holder, type_) + sum(units * term.length for term, units in fresh if term.start > now)

    def units(self, type_: str) -> int:
        """How many units of a type there are to be granted."""
        return sum(source.units for source in self._cycle.sources(type_))

    def changed(self, holder: str, type_: str) -> Sequence[tuple[Term, int]]:
        """What this turn has granted to a holder, and taken back, so far."""
        return self._changed.get((holder, type_), ())

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        changed = self._changed.get((holder, type_))
        if changed is None:
            return self.before.held(holder, type_, window)
        summed = self._summed.get((holder, type_))
        if summed is None:
            for term, units in self.before.held(holder, type_, Term(0, INSTANT_MAX)):
                self._sums.add(holder, type_, units, term)
        for term, units in changed[summed:]:
            self._sums.add(holder, type_, units, term)
        self._summed[holder, type_] = len(changed)
        return self._sums.held(holder, type_, window)


def _starts(group: Sequence[PendingRequest], members: Sequence[Member], now: Instant) -> Iterator[Instant]:
    """Starts worth trying, in order: the first at which each member fits by itself, then where more gets free."""
    length = group[0].term.length
    start = max(request.term.start for request in group)
    latest = min(request.latest_start for request in group)
    if start < now <= latest:
        start = now
    shapes = list({(member.units, tuple(member.places)): None for member in members})
    moved = True
    while moved:
        moved = False
        for units, places in shapes:
            fits = [at for each in places if (at := each.earliest(units, length, start, latest)) is not None]
            if not fits:
                return
            moved = moved or min(fits) > start
            start = min(fits)
    yield start
    every = {each: None for member in members for each in member.places}
    previous = start
    for at in merge(*(each.rises(Term(start, latest + 1)) for each in every)):
        if at > previous:
            previous = at
            yield at


# -- what all standard mappers of a broker have ------------------------------------------------------------------------


RANKS = {"extend": 0, "modify": 1}
NEW = 2

Rank: TypeAlias = Callable[[PendingRequest], int]
"""Of two new requests of one class, the one of lower rank is decided first."""

Item: TypeAlias = tuple[int, int, int, Instant, int, tuple[PendingRequest, ...]]
"""Operation, class (negated), rank, arrival, position, and the requests to be decided together."""


def plain(request: PendingRequest) -> int:
    """All alike: the order is that of arrival."""
    return 0


def fixed_first(request: PendingRequest) -> int:
    """What can't be moved goes before what can."""
    return int(request.latest_start > request.term.start)


def items(cycle: BrokerCycle, rank: Rank) -> Iterator[Item]:
    """What is to be decided in a turn; sorted, it is in the order in which it is decided."""
    for index, request in enumerate(cycle.requests):
        op = RANKS.get(request.op, NEW)
        yield op, -request.priority, rank(request) if op == NEW else 0, request.arrived, index, (request,)
    for index, group in enumerate(cycle.groups, len(cycle.requests)):
        priority, arrived = max(member.priority for member in group), max(member.arrived for member in group)
        yield NEW, -priority, max(map(rank, group)), arrived, index, group


def decide(turn: BrokerTurn, op: int, requests: tuple[PendingRequest, ...]) -> list[BrokerDecision]:
    """The decision on one item."""
    if op == NEW:
        return turn.group(requests) if requests[0].group else [turn.new(requests[0])]
    return [turn.goes_on(requests[0])]


class Booking:
    """Requests in order, each for itself."""

    bulk = True

    def __init__(self, rank: Rank = plain) -> None:
        self._rank = rank

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Every request of the cycle, in order."""
        decisions: list[BrokerDecision] = []
        for op, _, _, _, _, requests in sorted(items(cycle, self._rank)):
            decisions += decide(turn, op, requests)
        return decisions


def _one_of_each(_: object, field: attrs.Attribute[tuple[QuotaSettings, ...]], found: Sequence[QuotaSettings]) -> None:
    seen: set[tuple[str, str]] = set()
    for quota in found:
        if (quota.holder, quota.type) in seen:
            raise ValueError(f"two quotas of holder {quota.holder!r} and type {quota.type!r}, expected one")
        seen.add((quota.holder, quota.type))


@attrs.frozen(kw_only=True)
class StandardSettings:
    """Settings of every standard mapper of a broker."""

    balance: Balance = attrs.field(default="load_balanced", validator=attrs.validators.in_(BALANCES))
    """The site for a request that may go to several: the one with the largest share free over its term, the first that
    has enough, the one with fewest units free that has enough, the one with most, or one drawn by ``seed``. An elastic
    request that none can fill goes to the one with most."""
    seed: int = 0
    """For ``balance = "random"``: the same seed, the same sites."""
    weighers: tuple[SiteWeigherSettings, ...] = ()
    """What chooses the site instead of `balance`: of those that have enough, the one whose weights have the largest
    sum."""
    filters: tuple[SiteFilterSettings, ...] = ()
    """Which sites will do, for whom: all of those that concern a request must take the site. An extend or a modify goes
    on where its lease is."""
    gather: DurationSetting = 0
    """Decide in rounds of this length, at whole multiples of it on the broker's clock, so that order counts among
    all requests of a round; it delays each of them by up to that. Less than the broker's ``request_timeout``. 0: at
    once."""
    quotas: tuple[QuotaSettings, ...] = attrs.field(default=(), validator=_one_of_each)
    """What holders may have."""


class Rule(Protocol):
    """The order in which requests are decided, and whether deferrable ones are booked ahead or wait."""

    bulk: bool
    """Whether each request of a cycle is looked at by itself."""

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """The decisions of a turn."""


class StandardMapper:
    """A rule, with the settings that all have."""

    inline: ClassVar[bool] = True

    def __init__(self, settings: StandardSettings, rule: Rule) -> None:
        self._gather = settings.gather
        self._choice = Choice(settings.balance, settings.seed, settings.weighers, settings.filters)
        self._quotas = Quotas(settings.quotas)
        self.wants_usage = self._quotas.wants_usage
        self.usage_kept = self._quotas.history
        self.by_itself = isinstance(rule, Booking)
        self._rule = rule

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Decide what the cycle shows."""
        decisions: list[BrokerDecision] = []
        if self._gather:
            cycle = self._gathered(cycle, decisions)
        turn = BrokerTurn(cycle, self._choice, self._quotas, None if self._rule.bulk else ())
        return decisions + self._rule.decide(turn, cycle)

    def _gathered(self, cycle: BrokerCycle, decisions: list[BrokerDecision]) -> BrokerCycle:
        """The part of the cycle that came before the current round; the rest waits for the next one."""
        begun = cycle.now // self._gather * self._gather
        requests: Sequence[PendingRequest] = cycle.requests
        if requests and requests[-1].arrived >= begun:  # they are in order of arrival
            requests = [request for request in requests if request.arrived < begun]
        groups = [group for group in cycle.groups if max(member.arrived for member in group) < begun]
        if len(requests) + len(groups) < len(cycle.requests) + len(cycle.groups):
            decisions.append(Wake(begun + self._gather))
        return cycle._replace(requests=requests, groups=groups)
