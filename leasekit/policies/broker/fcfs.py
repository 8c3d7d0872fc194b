"""First come, first served, by priority class (Shirako section 5.2: "FCFS priority scheduling").

In one turn extends are decided first, then modifies, then new requests and complete groups; within each, the higher
priority class goes first, then who came first. A group comes when its last member does, in the class of its highest.

A request that fits is granted at once. An elastic one takes as many units as are free, down to its ``min_units``. A
deferrable one gets a reservation at the earliest start within its window at which it fits (an elastic one: with
``min_units``; it then takes what is free there). Because a deferrable request holds its place in the timetable from its
first turn on, those that come after it can't push it back: within a class nobody starves, and nobody need be kept
waiting behind a large request that can't start yet (no head-of-line blocking). A request whose whole window is full is
deferred; it is looked at again, in its old place in the order, whenever something changes.

Priority counts among requests that wait at the same time. A broker asks its mapper as soon as a request is there, so
that guests which ask at about the same time are served in the order in which their messages happen to come in, unless
the setting ``gather`` makes requests wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import ClassVar, TypeAlias

import attrs

from leasekit.core.mappers import (
    BrokerCycle,
    BrokerDecision,
    Defer,
    Grant,
    GrantGroup,
    PendingRequest,
    Reject,
    Wake,
)
from leasekit.core.settings import DurationSetting
from leasekit.core.time import Instant, Term
from leasekit.policies.broker import reasons
from leasekit.policies.broker.placement import Balance, Member, pick, place
from leasekit.policies.broker.rooms import Room, Rooms

STARTS_MAX = 1_000
"""How many starts are tried for one group in one turn."""

_ORDER = {"extend": 0, "modify": 1}
_NEW = 2

_Item: TypeAlias = tuple[int, int, Instant, int, tuple[PendingRequest, ...]]
"""Rank of the operation, priority (negated), arrival, position, and the requests to be decided together."""


@attrs.frozen(kw_only=True)
class FcfsSettings:
    """Settings of :class:`Fcfs`."""

    balance: Balance = attrs.field(
        default="load_balanced", validator=attrs.validators.in_(("load_balanced", "first_fit", "best_fit"))
    )
    """The site for a request that may go to several: the one with most units free over its term, the first that has
    enough, or the one with fewest free that has enough. An elastic request that none can fill goes to the roomiest."""
    gather: DurationSetting = 0
    """Decide in rounds of this length, at whole multiples of it on the broker's clock, so that priority counts among
    all requests of a round; it delays each of them by up to that. Less than the broker's ``request_timeout``. 0: at
    once."""


class Fcfs:
    """The broker's standard mapper. It keeps nothing from turn to turn."""

    Settings: ClassVar[type[FcfsSettings]] = FcfsSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: FcfsSettings | None = None) -> None:
        self.settings = settings or FcfsSettings()

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Decide every request of the cycle."""
        decisions: list[BrokerDecision] = []
        if self.settings.gather:
            cycle = self._gathered(cycle, decisions)
        turn = _Turn(cycle, self.settings.balance)
        for rank, _, _, _, requests in sorted(_items(cycle)):
            if rank == _NEW and requests[0].group:
                decisions += turn.group(requests)
            elif rank == _NEW:
                decisions.append(turn.new(requests[0]))
            else:
                decisions.append(turn.extend(requests[0]) if rank == 0 else turn.modify(requests[0]))
        return decisions

    def _gathered(self, cycle: BrokerCycle, decisions: list[BrokerDecision]) -> BrokerCycle:
        """The part of the cycle that came before the current round; the rest waits for the next one."""
        begun = cycle.now // self.settings.gather * self.settings.gather
        requests = [request for request in cycle.requests if request.arrived < begun]
        groups = [group for group in cycle.groups if max(member.arrived for member in group) < begun]
        if len(requests) + len(groups) < len(cycle.requests) + len(cycle.groups):
            decisions.append(Wake(begun + self.settings.gather))
        return cycle._replace(requests=requests, groups=groups)


def _items(cycle: BrokerCycle) -> Iterator[_Item]:
    for index, request in enumerate(cycle.requests):
        yield _ORDER.get(request.op, _NEW), -request.priority, request.arrived, index, (request,)
    for index, group in enumerate(cycle.groups, len(cycle.requests)):
        priority = max(member.priority for member in group)
        yield _NEW, -priority, max(member.arrived for member in group), index, group


class _Turn:
    """One turn: the rooms as they are after what it has granted so far."""

    def __init__(self, cycle: BrokerCycle, balance: Balance) -> None:
        self._rooms = Rooms(cycle)
        self._balance: Balance = balance
        self._changes = 0
        self._fits: dict[tuple[object, ...], tuple[int, Instant | None]] = {}

    # -- new requests ------------------------------------------------------------------------------------------

    def new(self, request: PendingRequest) -> BrokerDecision:
        """Grant at once if possible, else later if the request allows that."""
        term, least = request.term, request.min_units
        rooms = self._allowed(request)
        room = pick(rooms, term, request.units, least, self._balance)
        if room is not None:
            return self._grant(request, room, term, min(request.units, room.free(term)))
        if reason := reasons.never(request, self._rooms.of_type(request.type), rooms, least):
            return Reject(request.lease, reason)
        if request.latest_start > term.start:
            return self._later(request, rooms)
        return Reject(request.lease, reasons.insufficient(request, rooms, term, least), self._fit(request, rooms))

    def _later(self, request: PendingRequest, rooms: Sequence[Room]) -> BrokerDecision:
        """The earliest start of the window at which it fits; the rooms that have it then are chosen from as ever."""
        length, least = request.term.length, request.min_units
        best = request.latest_start
        at: list[Room] = []
        for room in rooms:
            start = room.earliest(least, length, request.term.start, best)
            if start is not None:
                at = [*at, room] if start == best else [room]
                best = start
        term = Term(best, best + length)
        chosen = pick(at, term, request.units, least, self._balance)
        if chosen is None:
            return Defer(request.lease, reasons.not_yet(request, rooms, least))
        return self._grant(request, chosen, term, min(request.units, chosen.free(term)))

    def _allowed(self, request: PendingRequest) -> Sequence[Room]:
        rooms = self._rooms.of_type(request.type)
        if request.site:
            rooms = [room for room in rooms if room.site == request.site]
        if request.exclude_sites:
            rooms = [room for room in rooms if room.site not in request.exclude_sites]
        return rooms

    def _grant(self, request: PendingRequest, room: Room, term: Term, units: int) -> Grant:
        room.take(units, term)
        self._changes += 1
        return Grant(request.lease, room.id, units, term, request.preemptible)

    def _fit(self, request: PendingRequest, rooms: Sequence[Room]) -> Instant | None:
        """When it would fit; the same question isn't worked out twice while nothing has been granted in between."""
        key = (request.type, request.min_units, request.term, request.site, request.exclude_sites)
        known = self._fits.get(key)
        if known is None or known[0] != self._changes:
            known = self._fits[key] = (self._changes, reasons.earliest_fit(rooms, request.min_units, request.term))
        return known[1]

    # -- extends and modifies ----------------------------------------------------------------------------------

    def extend(self, request: PendingRequest) -> BrokerDecision:
        """Grant from where the lease is, over exactly the term asked for, or refuse."""
        room = self._source(request)
        if isinstance(room, Reject):
            return room
        term, least = request.term, request.min_units
        free = room.free(term)
        if free < least:
            return Reject(request.lease, reasons.insufficient(request, [room], term, least))
        return self._grant(request, room, term, min(request.units, free))

    def modify(self, request: PendingRequest) -> BrokerDecision:
        """Grant in place of the rest of what the lease holds, which counts as free for it."""
        room = self._source(request)
        if isinstance(room, Reject):
            return room
        term, least = request.term, request.min_units
        until = request.held_until
        if until > term.start:
            rest = Term(term.start, until)
            if self._free_beside(request, room, until) < least:
                return Reject(request.lease, self._short_beside(request, room, until))
            room.give(request.held, rest)
        elif room.free(term) < least:
            return Reject(request.lease, reasons.insufficient(request, [room], term, least))
        return self._grant(request, room, term, min(request.units, room.free(term)))

    @staticmethod
    def _free_beside(request: PendingRequest, room: Room, until: Instant) -> int:
        """How many units the lease could have from now on, its own counted, which it holds up to ``until``."""
        start, end = request.term
        inside = room.free(Term(start, min(end, until))) + request.held
        return inside if end <= until else min(inside, room.free(Term(until, end)))

    def _short_beside(self, request: PendingRequest, room: Room, until: Instant) -> str:
        free = self._free_beside(request, room, until)
        return (
            f"insufficient resources: {request.min_units} units of {request.type!r} wanted over "
            f"[{request.term.start}, {request.term.end}), {free} to be had at {room.site} with the {request.held} "
            f"that the lease holds there until {until}"
        )

    def _source(self, request: PendingRequest) -> Room | Reject:
        """The room that the lease continues from, if it can at any load."""
        room = self._rooms.get(request.type, request.source)
        if room is None:
            return Reject(request.lease, f"the delegation {request.source!r} that the lease is from is over")
        if (request.site and room.site != request.site) or room.site in request.exclude_sites:
            return Reject(request.lease, f"the lease is at site {room.site!r} and can't go on anywhere else")
        reason = reasons.never(request, [room], [room], request.min_units)
        return Reject(request.lease, reason) if reason else room

    # -- groups ------------------------------------------------------------------------------------------------

    def group(self, group: tuple[PendingRequest, ...]) -> list[BrokerDecision]:
        """All members at their earliest common start, or none."""
        rooms = [self._allowed(request) for request in group]
        refusal = self._never_together(group, rooms)
        if refusal is not None:
            return [refusal]
        length = group[0].term.length
        members = [Member(request.units, allowed) for request, allowed in zip(group, rooms, strict=True)]
        for start in islice(self._starts(group, rooms), STARTS_MAX):
            term = Term(start, start + length)
            chosen = place(members, term, self._balance)
            if chosen is not None:
                return [GrantGroup(group[0].group, self._grants(group, chosen, term))]
        latest = min(request.latest_start for request in group)
        total = sum(request.units for request in group)
        reason = (
            f"insufficient resources: no start from {max(request.term.start for request in group)} to {latest} has all "
            f"{total} units of the {len(group)} requests of group {group[0].group!r} free at once"
        )
        return [Defer(request.lease, reason) for request in group]

    def _grants(self, group: Sequence[PendingRequest], chosen: Sequence[Room], term: Term) -> tuple[Grant, ...]:
        grants = []
        for request, room in zip(group, chosen, strict=True):
            assert room.free(term) >= request.units, "place() counts what it has placed"
            grants.append(self._grant(request, room, term, request.units))
        return tuple(grants)

    def _never_together(self, group: Sequence[PendingRequest], rooms: Sequence[Sequence[Room]]) -> Reject | None:
        for request, allowed in zip(group, rooms, strict=True):
            if reason := reasons.never(request, self._rooms.of_type(request.type), allowed, request.units):
                return Reject(request.lease, reason)
        name, first = group[0].group, group[0].lease
        lengths = {request.term.length for request in group}
        if len(lengths) > 1:
            words = " and ".join(f"{length} ms" for length in sorted(lengths)[:3])
            return Reject(first, f"the requests of group {name!r} get one term, but ask for {words}")
        begin, latest = max(r.term.start for r in group), min(r.latest_start for r in group)
        if begin > latest:
            return Reject(
                first, f"no start suits all requests of group {name!r}: one starts at {begin} or later, one by {latest}"
            )
        return None

    def _starts(self, group: Sequence[PendingRequest], rooms: Sequence[Sequence[Room]]) -> Iterator[Instant]:
        """Starts worth trying, in order: the first at which each member fits by itself, then where more gets free."""
        length = group[0].term.length
        start: Instant | None = max(request.term.start for request in group)
        latest = min(request.latest_start for request in group)
        shapes = list({(r.units, tuple(allowed)): None for r, allowed in zip(group, rooms, strict=True)})
        moved = True
        while moved:
            moved = False
            for units, allowed in shapes:
                assert start is not None, "left below when a member fits nowhere"
                fits = [at for room in allowed if (at := room.earliest(units, length, start, latest)) is not None]
                if not fits:
                    return
                moved = moved or min(fits) > start
                start = min(fits)
        assert start is not None, "set before the loop"
        yield start
        every = {room: None for allowed in rooms for room in allowed}
        previous = start
        for at in merge(*(room.rises(Term(start, latest + 1)) for room in every)):
            if at > previous:
                previous = at
                yield at
