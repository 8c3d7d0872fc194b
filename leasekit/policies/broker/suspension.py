"""Suspension of preemptible leases, as Haizea does it (Sotomayor et al., "Combining batch execution and leasing using
virtual machines", HPDC 2008): view is made for a request for a fixed term by suspending what would be in its way, and
what waits in line may start in front of a reservation, to be suspended before it.

What is suspended is saved within its term, and its rest asks for units anew, in its old place in line.
"""

from __future__ import annotations

from typing import Final, Literal

from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, GrantedLease, PendingRequest, Preempt
from leasekit.core.properties import saves
from leasekit.core.reasons import Coded, mark
from leasekit.core.time import Duration, Instant, Term
from leasekit.policies.broker.capacity import Place
from leasekit.policies.broker.constraints import suspend_time
from leasekit.policies.broker.turn import BrokerTurn

Suspension = Literal["none", "serial", "all"]

REMEMBERED: Final = 10_000
"""Of how many suspended leases the place in line is remembered."""


class Suspender:
    """Which leases may be suspended, and when it is worth it."""

    def __init__(self, which: Suspension = "none", least_run: Duration = 1) -> None:
        self._which = which
        self._least_run = least_run
        self._since: dict[str, Instant] = {}

    def acts(self, cycle: BrokerCycle) -> bool:
        """Whether anything is suspended at all, here."""
        return self._which != "none" and cycle.suspends

    def time(self, request: PendingRequest | GrantedLease) -> Duration | None:
        """How long it takes to suspend a lease; None if it may not be."""
        if not request.preemptible or (self._which == "serial" and request.units > 1):
            return None
        return suspend_time(request.properties)

    # -- places in line ----------------------------------------------------------------------------------------

    def remember(self, request: PendingRequest) -> None:
        """A request gets a part of what it wants: the rest comes again, in its place."""
        self._since[request.lease] = self.since(request)
        if len(self._since) > REMEMBERED:
            del self._since[next(iter(self._since))]

    def since(self, request: PendingRequest) -> Instant:
        """Since when a request waits, with the time before it was suspended."""
        return self._since.get(request.properties.get("resumes", ""), request.arrived)

    # -- parts -------------------------------------------------------------------------------------------------

    def part(self, request: PendingRequest, place: Place, start: Instant, until: Instant) -> Term | None:
        """The term of a first part of a request, from ``start`` up to ``until``, when its units are wanted by others;
        None where it isn't worth it, or the rest finds no view afterwards.
        """
        time = self.time(request)
        if time is None or request.min_units < request.units or not saves(place.view.source.properties):
            return None
        useful, length = until - start - time, request.term.length
        if useful < min(self._least_run, length) or useful >= length or start > request.latest_start:
            return None
        latest = request.latest_start + useful - time
        rest = place.view.earliest(request.units, length - useful + time, until, latest)
        return None if rest is None else Term(start, until)

    # -- room for others ---------------------------------------------------------------------------------------

    def make_room(self, turn: BrokerTurn, cycle: BrokerCycle, request: PendingRequest) -> list[BrokerDecision]:
        """What has to be suspended for a request that may start at one instant only; empty if that doesn't help.

        The request is decided when its units are free.
        """
        limit = turn.limit(request)
        if limit is not None and limit.short(request.term, request.min_units) is not None:
            return []
        running = cycle.granted(request.type)
        for place in turn.shape(request).places:
            there = [one for one in running if one.source == place.view.id]
            coming = self._coming(turn, request, place, [one for one in there if one.booked > one.term.end])
            chosen = self._victims(turn, request, place, there) if saves(place.view.source.properties) else []
            enough = bool(coming or chosen) and place.free(request.term) >= request.min_units
            if enough:
                place.take(request.min_units, request.term)
                turn.changes += 1
            at = request.term.start - place.ahead
            # What its site has yet to hear of is nobody else's in this turn: it is still booked.
            later = [(one, Term(one.term.end, one.booked)) for one in coming]
            later += [(one, Term(at, one.term.end)) for one in chosen if enough and one.booked >= 0]
            for one, rest in later:
                turn.leave(place.view, one, rest, -1)
            if enough:
                why = f"suspended for a reservation at {mark(request.term.start)}"
                names = ", ".join(one.lease for one in (*coming, *chosen))
                asked = [Preempt(victim.lease, at, why, suspend=True) for victim in chosen]
                waits = Coded(f"waits until its units are free: {names} suspended by {mark(at)}", "makes_room")
                return [*asked, Defer(request.lease, waits)]
        return []

    def _coming(
        self, turn: BrokerTurn, request: PendingRequest, place: Place, ended: list[GrantedLease]
    ) -> list[GrantedLease]:
        """Those that were ended early before, which their site has yet to hear of: as many as are needed, and free by
        then. Nobody else is suspended in their place.
        """
        at, coming = request.term.start - place.ahead, []
        for one in ended:
            if place.free(request.term) >= request.min_units:
                break
            if one.term.end <= at < one.booked:
                turn.leave(place.view, one, Term(one.term.end, one.booked))
                coming.append(one)
        return coming

    def _victims(
        self, turn: BrokerTurn, request: PendingRequest, place: Place, running: list[GrantedLease]
    ) -> list[GrantedLease]:
        """Those that have run for the shortest time, of the lowest class; none more than are needed."""
        at, view, least = request.term.start - place.ahead, place.view, request.min_units
        able = [one for one in running if one.priority <= request.priority and self._can_stop(one, turn.now, at)]
        chosen: list[GrantedLease] = []
        for victim in sorted(able, key=lambda one: (one.priority, -one.term.start, one.lease)):
            if place.free(request.term) >= least:
                break
            turn.leave(view, victim, Term(at, victim.term.end))
            chosen.append(victim)
        enough = place.free(request.term) >= least
        for victim in list(chosen):
            rest = Term(at, victim.term.end)
            turn.leave(view, victim, rest, -1)
            if enough and place.free(request.term) < least:
                turn.leave(view, victim, rest)
            else:
                chosen.remove(victim)
        return chosen

    def _can_stop(self, lease: GrantedLease, now: Instant, at: Instant) -> bool:
        time = self.time(lease)
        return time is not None and lease.term.end > at and at >= max(now, lease.term.start + time) + time
