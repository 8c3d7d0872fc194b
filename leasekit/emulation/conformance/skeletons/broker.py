"""A broker's mapper: each request as early as it fits, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import attrs

from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, Grant, GrantGroup, PendingRequest, Reject, Source
from leasekit.core.settings import DurationSetting
from leasekit.core.time import DAY, Instant, Term, format_duration


@attrs.frozen(kw_only=True)
class SkeletonSettings:
    """What a deploy file may say in the mapper's table, beside its name."""

    longest: DurationSetting = 365 * DAY
    """The longest term that is granted."""


class Skeleton:
    """Called whenever something has changed; keeps nothing from turn to turn."""

    Settings: ClassVar[type[SkeletonSettings]] = SkeletonSettings
    inline: ClassVar[bool] = True  # it is quick: an emulation need not copy what it shows it

    def __init__(self, settings: SkeletonSettings | None = None) -> None:
        self.settings = settings or SkeletonSettings()

    def allocate(self, cycle: BrokerCycle) -> Iterator[BrokerDecision]:
        """One decision for each request, and for each group."""
        for request in cycle.requests:
            yield self._single(cycle, request)
        for group in cycle.groups:
            yield from self._group(cycle, group)

    def _single(self, cycle: BrokerCycle, request: PendingRequest) -> BrokerDecision:
        if request.term.length > self.settings.longest:
            return Reject(request.lease, f"terms are at most {format_duration(self.settings.longest)} here")
        fits = [(_earliest(source, request), source) for source in _allowed(cycle, request)]
        starts = [(start, source) for start, source in fits if start is not None]
        if not starts:
            reason = f"no site has {request.min_units} units of {request.type!r} free"
            waits = request.latest_start > request.term.start
            return Defer(request.lease, reason) if waits else Reject(request.lease, reason)
        start, source = min(starts, key=lambda found: found[0])
        term = Term(start, start + request.term.length)
        units = min(request.units, _free(source, request, term))
        # Book it in this turn's what-if copy, so that the next request sees what is left.
        source.free.reserve(object(), units, term, force=True)
        return Grant(request.lease, source.id, units, term, request.preemptible)

    def _group(self, cycle: BrokerCycle, group: Sequence[PendingRequest]) -> Iterator[BrokerDecision]:
        """All members over one term, each with the fewest units that will do, from the first source that has them; or
        none, with nothing booked.
        """
        start = max(member.term.start for member in group)
        term = Term(start, start + group[0].term.length)
        booked: list[tuple[object, Source]] = []
        grants: list[Grant] = []
        for member in group:
            able = [source for source in _allowed(cycle, member) if _free(source, member, term) >= member.min_units]
            if not able or start > member.latest_start or member.term.length != term.length:
                for key, source in booked:
                    source.free.release(key)
                yield Reject(member.lease, f"no room for {member.lease} together with the rest of its group")
                return
            booked.append((key := object(), able[0]))
            able[0].free.reserve(key, member.min_units, term)
            grants.append(Grant(member.lease, able[0].id, member.min_units, term, member.preemptible))
        yield GrantGroup(group[0].group, tuple(grants))


def _allowed(cycle: BrokerCycle, request: PendingRequest) -> list[Source]:
    """The delegations that a request can be filled from; an extend or a modify goes on where the lease is."""
    return [
        source
        for source in cycle.sources(request.type)
        if (request.op == "new" or source.id == request.source)
        and request.site in ("", source.site)
        and source.site not in request.exclude_sites
    ]


def _free(source: Source, request: PendingRequest, term: Term) -> int:
    """The units free throughout a term; what a lease holds itself counts for its modify."""
    if not source.term.contains(term):
        return 0
    own = request.held if request.op == "modify" and term.end <= request.held_until else 0
    return source.free.available(term) + own


def _earliest(source: Source, request: PendingRequest) -> Instant | None:
    """The earliest start in the request's window at which it fits; None if there is none."""
    if _free(source, request, request.term) >= request.min_units:
        return request.term.start
    length = request.term.length
    first, last = max(request.term.start, source.term.start), min(request.latest_start, source.term.end - length)
    if request.op != "new" or last < first:
        return None
    return source.free.earliest(request.min_units, length, first, last)
