"""The rule of mappers whose deferrable requests wait in line until they can start, and two such mappers: best effort
around reservations, where small requests fill the holes; and class before all.

In each turn extends and modifies are decided first, then requests for a fixed term, for a window that opens later, and
groups: they are booked as the broker's other mappers do it. A deferrable request whose window is open waits: it is
granted when it can start, so that what ends early is of use to who waits, and who waits doesn't stand in the way of
reservations. Who is first in line may wait for ``patience`` at most, or behind lower classes not at all, before it goes
before such reservations.

How many of those who wait hold a place in the plan decides who may overtake:

- ``strict``: nobody does. The first in line starts or all wait.
- ``easy``: the first in line holds a place, at the earliest instant at which it can have one. Others may start now if
  they don't delay it (Lifka, "The ANL/IBM SP scheduling system", 1995). With several sites each keeps one place.
- ``conservative``: all hold one, up to ``depth``, in the order of the line, worked out anew in each turn: nobody is
  delayed by those who are behind.

What waits is kept from turn to turn for speed, never for the decision: it is compared with what the cycle shows, and
read anew where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol, get_args

import attrs

from leasekit.core.claims.claim import UNITS_MAX
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, PendingRequest, Reject, Wake
from leasekit.core.reasons import Coded, mark
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, Duration, Instant, Term
from leasekit.policies.broker import reasons
from leasekit.policies.broker.capacity import CapacityView, Place, pick
from leasekit.policies.broker.line import Key, Lane, Line, LineBucket, LineEntry
from leasekit.policies.broker.suspension import Suspender, Suspension
from leasekit.policies.broker.turn import (
    EXPLAINED_MAX,
    NEW,
    BrokerTurn,
    StandardMapper,
    StandardSettings,
    decide,
    items,
    plain,
)

Mode = Literal["easy", "conservative", "strict"]

READ_ANEW: int = 256
"""After how many turns the line is compared with all of the cycle, whether or not they seem to differ."""


class Order(Protocol):
    """Who is before whom in line."""

    def lane(self, request: PendingRequest) -> Lane:
        """The lane of a request."""

    def key(self, request: PendingRequest) -> Key:
        """Its key within the lane, but for a tie."""

    def rank(self, turn: BrokerTurn) -> Callable[[Lane], Key]:
        """How lanes are ordered, as of now."""


class ByArrival:
    """By class, then first come, first served: one lane."""

    def lane(self, request: PendingRequest) -> Lane:
        """All in one."""
        return ()

    def key(self, request: PendingRequest) -> Key:
        """Class, then arrival."""
        return -request.priority, request.arrived

    def rank(self, turn: BrokerTurn) -> Callable[[Lane], Key]:
        """There is only one."""
        return _alike


def _alike(lane: Lane) -> Key:
    return ()


class Waiting:
    """Requests that wait in line for their start."""

    bulk = False

    def __init__(
        self, order: Order, mode: Mode, depth: int, patience: Duration, suspender: Suspender | None = None
    ) -> None:
        self.order = order
        self.mode: Mode = mode
        self.depth = depth if mode == "conservative" else 0
        """How many hold a place, if not one at each site."""
        self.patience = patience
        """How long the first waits at most before it goes before reservations."""
        self.suspender: Suspender | None = None
        """What may be suspended in this turn, if anything may."""
        self._suspender = suspender or Suspender()
        self._lines: dict[str, Line] = {}
        self._entries: dict[str, LineEntry] = {}
        self._standing = 0
        self._waits_until = INSTANT_MAX
        """The first of the latest starts of those in line: a request waits no more when it is there."""
        self._turns = 0
        self._serial = 0

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Every new request of the cycle, and each of those that wait that can start."""
        out: list[BrokerDecision] = []
        self.suspender = self._suspender if self._suspender.acts(cycle) else None
        others, fresh = self._read(turn, cycle, out)
        services = {type_: _Service(self, type_, line, turn, out) for type_, line in self._lines.items() if line}
        if others or cycle.groups:
            self._decide_others(turn, cycle._replace(requests=others), services, out)
        for service in services.values():
            service.serve()
        self._explain(turn, fresh, services, out)
        for service in services.values():
            service.wake()
        return out

    # -- reading the cycle -------------------------------------------------------------------------------------

    def _read(
        self, turn: BrokerTurn, cycle: BrokerCycle, out: list[BrokerDecision]
    ) -> tuple[list[PendingRequest], list[LineEntry]]:
        """Bring the line up to date; what doesn't belong there, and who has just joined it."""
        self._turns += 1
        requests, known = cycle.requests, self._entries
        new: list[PendingRequest] = []
        count = len(requests)
        anew = self._standing or self._waits_until <= turn.now or not self._turns % READ_ANEW
        if not anew:
            for index in range(count - 1, -1, -1):
                request = requests[index]
                if request.lease in known:
                    break
                new.append(request)
            new.reverse()
        if anew:
            known.clear()
            self._lines.clear()
            self._waits_until = INSTANT_MAX
            new = list(requests)
        elif len(known) + len(new) != count:
            # Some left the line without this mapper's doing, or came before its end: the tail alone doesn't tell.
            new = self._compare(list(requests))
        others: list[PendingRequest] = []
        fresh: list[LineEntry] = []
        for request in new:
            if request.op != "new" or request.term.start > turn.now or request.latest_start <= turn.now:
                others.append(request)
            else:
                self._join(turn, request, fresh, out)
        self._standing = 0
        return others, fresh

    def _compare(self, requests: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Those that are not in line yet; those in line that wait no more leave it."""
        there = {request.lease for request in requests}
        for entry in [entry for lease, entry in self._entries.items() if lease not in there]:
            self.leave(self._lines[entry.request.type], entry)
        return [request for request in requests if request.lease not in self._entries]

    def _join(
        self, turn: BrokerTurn, request: PendingRequest, fresh: list[LineEntry], out: list[BrokerDecision]
    ) -> None:
        shape = turn.shape_key(request)
        reason = reasons.never(request, turn.views.shape(shape), request.min_units, turn.now)
        if not reason:
            limit = turn.limit(request)
            short = limit.short(request.term, request.min_units) if limit is not None else None
            reason = short.reason if short is not None and short.lasts else ""
        if reason:
            out.append(Reject(request.lease, reason))
            return
        line = self._lines.get(request.type)
        if line is None:
            line = self._lines[request.type] = Line()
        self._serial += 1
        if self.suspender is not None:
            since = self.suspender.since(request)
            request = request if since == request.arrived else request._replace(arrived=since)
        key = (*self.order.key(request), self._serial)
        entry = line.add(request, self.order.lane(request), key, shape, shape[-1].prepare)
        self._entries[request.lease] = entry
        self._waits_until = min(self._waits_until, entry.latest)
        fresh.append(entry)

    # -- what doesn't wait in line -----------------------------------------------------------------------------

    def _decide_others(
        self, turn: BrokerTurn, cycle: BrokerCycle, services: dict[str, _Service], out: list[BrokerDecision]
    ) -> None:
        for op, less, _, _, _, requests in sorted(items(cycle, plain)):
            if op == NEW:
                for service in services.values():
                    service.first_before(-less)
            decisions = decide(turn, op, requests)
            suspender = None if op != NEW or requests[0].group else self.suspender
            if suspender is not None and isinstance(decisions[0], Reject):
                decisions = suspender.make_room(turn, cycle, requests[0]) or decisions
            self._standing += sum(isinstance(decision, Defer) for decision in decisions if not requests[0].group)
            out += decisions

    # -- leaving the line --------------------------------------------------------------------------------------

    def leave(self, line: Line, entry: LineEntry) -> None:
        """A request has been decided."""
        line.remove(entry)
        del self._entries[entry.request.lease]

    def _explain(
        self, turn: BrokerTurn, fresh: Sequence[LineEntry], services: dict[str, _Service], out: list[BrokerDecision]
    ) -> None:
        """Tell those who have just joined what they wait for."""
        for entry in fresh:
            request = entry.request
            if request.lease in self._entries:
                out.append(Defer(request.lease, services[request.type].why(entry)))


class _Service:
    """One line during one turn."""

    def __init__(self, rule: Waiting, type_: str, line: Line, turn: BrokerTurn, out: list[BrokerDecision]) -> None:
        self._rule = rule
        self._line = line
        self._turn = turn
        self._out = out
        self._now = turn.now
        self._views = turn.views.of_type(type_)
        self._rank = rule.order.rank(turn)
        # Out of this turn: why, or nothing for those who hold a place.
        self._skipped: dict[LineEntry, str] = {}
        self._planned: dict[LineEntry, Instant] = {}
        self._taken: set[str] = set()
        self._wakes: list[Instant] = []
        self._places: dict[LineBucket, Sequence[Place]] = {}
        # What can start now, good as long as nothing is booked: `_seen` says up to which change.
        self._seen = -1
        self._limits: dict[LineBucket, Duration] = {}
        self._stairs: dict[CapacityView, list[tuple[int, Instant]]] = {}
        self._most = 0
        self._told = 0

    def serve(self) -> None:
        """Start whoever can start."""
        if self._rule.mode == "strict":
            while (first := self._first()) is not None and self._fits(first) and self._start(first):
                pass
        elif self._rule.mode == "easy":
            self._easy()
        else:
            self._conservative()
        if self._rule.suspender is not None and self._rule.mode != "strict":
            self._start_parts(self._rule.suspender)

    def first_before(self, priority: int) -> None:
        """The first in line gets its start or its place before a request of this class, if it may go before it."""
        first = self._line.first(self._rank)
        if first is None or first in self._skipped:
            return
        request = first.request
        if request.priority > priority or self._now - request.arrived >= self._rule.patience:
            if self._fits(first):
                self._start(first)
            else:
                self._reserve(first)

    def why(self, entry: LineEntry) -> str:
        """What a request waits for."""
        if self._skipped.get(entry):
            return self._skipped[entry]
        now = Term(self._now, self._now + entry.length)
        least, places = entry.request.min_units, self._of(entry.bucket)
        text = reasons.insufficient(entry.request, places, now, least)
        if entry in self._planned:
            return Coded(f"{text}; its place is at {mark(self._planned[entry])}", reasons.INSUFFICIENT)
        if self._told < EXPLAINED_MAX:
            self._told += 1
            fit = reasons.earliest_fit(places, least, now)
            if fit is None or fit[0] > entry.latest:
                text += f"; nothing up to its latest start, {mark(entry.latest)}"
            text += f"; {reasons.fitting(fit)}"
        others = len(self._line) - 1
        wait = "1 other waits" if others == 1 else f"{others or 'no'} others wait"
        words = f"{text}; {wait}, it may start when it delays nobody whose place is kept"
        return Coded(words, reasons.INSUFFICIENT)

    def wake(self) -> None:
        """Ask for the next turn when more gets free, if anybody waits."""
        if self._line:
            self._look()
            horizon = self._now + self._line.longest
            changes = (view.next_change(self._now, self._stairs[view], horizon) for view in self._views)
            found = [at for at in changes if at is not None]
            found += [at for at in self._wakes if at > self._now]
            if found:
                self._out.append(Wake(min(found)))

    # -- the modes ---------------------------------------------------------------------------------------------

    def _easy(self) -> None:
        while (found := self._startable()) is not None:
            holder = self._next_to_hold()
            if holder is not None and holder is not found and self._before(holder, found):
                self._hold(holder)
            else:
                self._start(found)

    def _conservative(self) -> None:
        left = self._rule.depth
        for entry in self._line.in_order(self._rank):
            if left <= 0 or self._startable() is None:
                break
            if entry in self._skipped:
                continue
            if self._fits(entry):
                self._start(entry)
            else:
                self._hold(entry)
                left -= 1
        while (found := self._startable()) is not None:
            self._start(found)

    # -- parts, where what runs can be suspended ---------------------------------------------------------------

    def _start_parts(self, suspender: Suspender) -> None:
        """Whoever holds a place may start a part before it; others may if they delay nobody whose place is kept."""
        while self._most and (holder := self._next_to_hold()) is not None:
            self._hold(holder)
            self._look()
        self._look()
        for bucket in sorted(self._line.buckets, key=lambda bucket: self._rank(bucket.lane)):
            while self._limit(bucket) > 0:
                entry = next((entry for entry in bucket.entries if entry not in self._skipped), None)
                if entry is None or not self._start_part(entry, suspender):
                    break
                self._look()

    def _hold(self, entry: LineEntry) -> None:
        """Start a part of a request, or keep a place for it."""
        suspender = self._rule.suspender
        if suspender is None or not self._start_part(entry, suspender):
            self._reserve(entry)

    def _start_part(self, entry: LineEntry, suspender: Suspender) -> bool:
        request, limit = entry.request, self._turn.limit(entry.request)
        self._look()
        for place in self._of(entry.bucket):
            until = self._until(place.view, request.units)
            term = suspender.part(request, place, self._now + place.ahead, until)
            if term is not None and (limit is None or limit.short(term, request.units) is None):
                place.free(term)
                self._out.append(self._turn.grant(request, place, term, limit))
                suspender.remember(request)
                self._rule.leave(self._line, entry)
                return True
        return False

    # -- who is next -------------------------------------------------------------------------------------------

    def _first(self) -> LineEntry | None:
        if not self._skipped:
            return self._line.first(self._rank)
        return next((entry for entry in self._line.in_order(self._rank) if entry not in self._skipped), None)

    def _next_to_hold(self) -> LineEntry | None:
        """The first in line none of whose sites holds a place for anybody yet."""
        if len(self._taken) == len(self._views):
            return None
        if not self._taken and not self._skipped:
            return self._line.first(self._rank)
        best: LineEntry | None = None
        for bucket in self._line.buckets:
            if any(place.view.id in self._taken for place in self._of(bucket)):
                continue
            first = next((entry for entry in bucket.entries if entry not in self._skipped), None)
            if first is not None and (best is None or self._before(first, best)):
                best = first
        return best

    def _startable(self) -> LineEntry | None:
        """The first in line that can start now."""
        self._look()
        most = self._most
        best: LineEntry | None = None
        if most:
            for bucket in self._line.buckets:
                if bucket.units <= most and bucket.shortest <= (limit := self._limit(bucket)):
                    entry = bucket.first_within(limit, self._now, self._skipped)
                    if entry is not None and (best is None or self._before(entry, best)):
                        best = entry
        return best

    def _before(self, one: LineEntry, other: LineEntry) -> bool:
        if one.bucket.lane == other.bucket.lane:
            return one.key < other.key
        return self._rank(one.bucket.lane) < self._rank(other.bucket.lane)

    def _fits(self, entry: LineEntry) -> bool:
        self._look()
        return entry.length <= self._limit(entry.bucket) and entry.latest >= self._now

    def _look(self) -> None:
        """See what can be had from now on, if anything was booked since that was last seen."""
        if self._turn.changes != self._seen:
            self._seen = self._turn.changes
            self._limits.clear()
            horizon = self._now + self._line.longest
            self._stairs = {view: view.stairs(self._now, horizon) for view in self._views}
            self._most = max((stairs[0][0] for stairs in self._stairs.values() if stairs), default=0)
            if any(view.divided for view in self._views):
                self._most = UNITS_MAX  # how many machines there are depends on what each needs

    def _limit(self, bucket: LineBucket) -> Duration:
        """How long a request of a bucket may be to start now; negative where there are no units for it."""
        limit = self._limits.get(bucket)
        if limit is None:
            limit = max((self._until(place.view, bucket.units) - place.ahead for place in self._of(bucket)), default=-1)
            limit = self._limits[bucket] = limit - self._now
        return limit

    def _until(self, view: CapacityView, units: int) -> Instant:
        until, stairs = -1, self._stairs.get(view)
        if stairs is None:  # of some classes of a delegation
            stairs = self._stairs[view] = view.stairs(self._now, self._now + self._line.longest)
        for level, at in stairs:
            if level < units:
                break
            until = at
        return until

    def _of(self, bucket: LineBucket) -> Sequence[Place]:
        places = self._places.get(bucket)
        if places is None:
            places = self._places[bucket] = self._turn.views.shape(bucket.shape).places
        return places

    # -- what becomes of it ------------------------------------------------------------------------------------

    def _start(self, entry: LineEntry) -> bool:
        """Grant a start now, or as soon as the units can be ready; False if it can't be, and it is out of this turn."""
        turn, request = self._turn, entry.request
        limit = turn.limit(request)
        places = self._of(entry.bucket)
        for ahead in sorted({place.ahead for place in places}):
            start = self._now + ahead
            if start > entry.latest:
                break
            term = Term(start, start + entry.length)
            short = limit.short(term, request.min_units) if limit is not None else None
            if short is not None:
                self._skipped[entry] = short.reason
                at = limit.next_start(start, entry.length) if limit is not None else None
                self._wakes += [] if at is None else [at]
                return False
            able = places if len(places) == 1 else [place for place in places if place.ahead == ahead]
            found = pick(able, term, request.units, request.min_units, turn.choice, request.lease)
            if found is not None:
                self._out.append(turn.grant(request, found, term, limit))
                self._rule.leave(self._line, entry)
                return True
        self._skipped[entry] = ""
        return False

    def _reserve(self, entry: LineEntry) -> None:
        """Keep a place for a request in what is left for this turn; who can't have one is out of it."""
        turn, request = self._turn, entry.request
        shape = turn.views.shape(entry.bucket.shape)
        found = turn.earliest(request, shape, turn.limit(request))
        if found is None:
            self._skipped[entry] = turn.not_yet(request, shape)
            return
        term, place = found
        place.take(min(request.units, place.free(term)), term)
        turn.changes += 1
        self._planned[entry] = term.start
        self._skipped[entry] = ""
        self._taken.add(place.view.id)
        self._wakes.append(term.start - place.ahead)


@attrs.frozen(kw_only=True)
class WaitingSettings(StandardSettings):
    """Settings of mappers whose deferrable requests wait in line."""

    mode: Mode = attrs.field(default="easy", validator=attrs.validators.in_(get_args(Mode)))
    """Who holds a place while waiting: with ``"easy"`` the first in line (at each site), and others start if they
    don't delay it; with ``"conservative"`` all, and others start if they delay none of them; ``"strict"``: nobody
    overtakes."""
    depth: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    """With ``mode = "conservative"``: how many hold a place; those behind them may start if they delay none of
    these."""
    patience: DurationSetting = 12 * HOUR
    """How long the first in line waits before it goes before requests for a fixed term. Until then it can't
    stand in the way of a reservation, and a reservation can push it back."""
    suspension: Suspension = attrs.field(default="none", validator=attrs.validators.in_(get_args(Suspension)))
    """Which leases may be suspended to make room for a request for a fixed term, or start in front of one and be
    suspended before it: none, those of one unit, or all; of those that are preemptible and say how long it takes
    (``suspend``), at sites that save units."""
    least_run: DurationSetting = attrs.field(default=10 * MINUTE, validator=attrs.validators.ge(1))
    """With ``suspension``: how long a lease must be able to run to be started in front of a reservation."""


@attrs.frozen(kw_only=True)
class BackfillSettings(WaitingSettings):
    """Settings of :class:`Backfill`."""


class WaitingMapper(StandardMapper):
    """A line in some order."""

    def __init__(self, settings: WaitingSettings, order: Order) -> None:
        suspender = Suspender(settings.suspension, settings.least_run)
        super().__init__(settings, Waiting(order, settings.mode, settings.depth, settings.patience, suspender))


class Backfill(WaitingMapper):
    """A line in order of class and arrival."""

    Settings: ClassVar[type[BackfillSettings]] = BackfillSettings

    def __init__(self, settings: BackfillSettings | None = None) -> None:
        self.settings = settings or BackfillSettings()
        super().__init__(self.settings, ByArrival())


Within = Literal["arrival", "shortest", "smallest", "largest"]


@attrs.frozen(kw_only=True)
class PrioritySettings(WaitingSettings):
    """Settings of :class:`Priority`."""

    order: Within = attrs.field(default="arrival", validator=attrs.validators.in_(get_args(Within)))
    """The order within a class: first come, the shortest term, the fewest units, or the most units first."""
    aging: DurationSetting = 0
    """After how long a wait a request counts as one class higher, and as one more after that again; 0: never. Goes with
    ``order = "arrival"``."""

    def __attrs_post_init__(self) -> None:
        if self.aging and self.order != "arrival":
            raise ValueError(f"aging: goes with order = 'arrival', not {self.order!r}")


class Priority(WaitingMapper):
    """A line in order of class."""

    Settings: ClassVar[type[PrioritySettings]] = PrioritySettings

    def __init__(self, settings: PrioritySettings | None = None) -> None:
        self.settings = settings or PrioritySettings()
        super().__init__(self.settings, _ByClass(self.settings))


class _ByClass(ByArrival):
    """One lane, by class."""

    def __init__(self, settings: PrioritySettings) -> None:
        self._within = settings.order
        self._aging = settings.aging

    def key(self, request: PendingRequest) -> Key:
        """Class, and what goes within it. A class for each ``aging`` waited is as if it had come that much earlier."""
        if self._aging:
            return (request.arrived - request.priority * self._aging, request.arrived)
        first = {
            "arrival": 0,
            "shortest": request.term.length,
            "smallest": request.units,
            "largest": -request.units,
        }[self._within]
        return -request.priority, first, request.arrived
