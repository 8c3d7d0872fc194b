"""What most brokers' mappers need: from which delegations a request can be filled, when it fits, and how it is granted.

All of it is for one turn: what is granted is booked in the turn's what-if copies (``Source.free``), so that who comes
next sees what is left. A mapper that has an order of its own, and nothing else, is :func:`fit` for each request and
:func:`fit_group` for each group, in that order. One that chooses delegations in its own way gives :func:`fit` filters
and weighers, as a cloud's scheduler has them: functions of a delegation and a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TypeAlias

from leasekit.core.divided import DividedTimetable
from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.mappers import BrokerCycle, Defer, Grant, GrantGroup, PendingRequest, Reject, Source
from leasekit.core.properties import Properties
from leasekit.core.reasons import Coded
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import ClassedTimetable, Timetable

SourceFilter: TypeAlias = Callable[[Source, PendingRequest], bool]
SourceWeigher: TypeAlias = Callable[[Source, PendingRequest], float]

_NONE = Timetable(0)


def allowed(cycle: BrokerCycle, request: PendingRequest) -> list[Source]:
    """The delegations that a request can be filled from, by its site and those that it excludes; an extend or a modify
    goes on where its lease is.
    """
    return [
        source
        for source in cycle.sources(request.type)
        if (request.op == "new" or source.id == request.source)
        and request.site in ("", source.site)
        and source.site not in request.exclude_sites
    ]


def view(source: Source, request: PendingRequest) -> Timetable | ClassedTimetable:
    """The part of a delegation's what-if copy that concerns a request: units that its filter takes, in machines of its
    needs. What is booked in it is booked in all of it. A filter that can't be read takes none.
    """
    free = source.free
    if isinstance(free, DividedTimetable):
        free = free.needing(request.needs)
    text = request.properties.get("filter", "") if request.op == "new" else ""
    if not text:
        return free
    try:
        takes = parse_filter(text)
    except FilterError:
        return _NONE
    here: Properties = {"site": source.site, "type": source.type}
    if isinstance(free, Timetable):
        return free if takes({**source.properties, **here}) else _NONE
    return free.of(
        frozenset(name for name, own in source.classes.items() if takes({**source.properties, **own, **here}))
    )


def free_over(source: Source, request: PendingRequest, term: Term) -> int:
    """The units that a request could have throughout a term; what a lease holds itself counts for its modify. 0 where
    the delegation does not reach over the term.
    """
    if not source.term.contains(term):
        return 0
    own = request.held if request.op == "modify" and term.end <= request.held_until else 0
    return view(source, request).available(term) + own


def earliest(source: Source, request: PendingRequest) -> Instant | None:
    """The earliest start in a request's window at which its fewest units fit; None if there is none."""
    if free_over(source, request, request.term) >= request.min_units:
        return request.term.start
    length = request.term.length
    first, last = max(request.term.start, source.term.start), min(request.latest_start, source.term.end - length)
    if request.op != "new" or last < first:
        return None
    return view(source, request).earliest(request.min_units, length, first, last)


def grant(source: Source, request: PendingRequest, units: int, term: Term) -> Grant:
    """The grant of so many units over a term, which must be free; they are booked in this turn's copy."""
    view(source, request).reserve(object(), units, term, force=True)
    return Grant(request.lease, source.id, units, term, request.preemptible)


def normalised(found: Sequence[float]) -> list[float]:
    """Numbers on a scale from 0, for the least of them, to 1, for the largest; all 0 where they are alike."""
    least, span = min(found, default=0.0), max(found, default=0.0) - min(found, default=0.0)
    return [(one - least) / span if span else 0.0 for one in found]


def heaviest(
    sources: Sequence[Source], request: PendingRequest, weighers: Sequence[tuple[SourceWeigher, float]]
) -> Source:
    """The delegation whose weights have the largest sum: what each weigher says, from 0 for the least of them to 1 for
    the largest, times its multiplier. The first of those that are alike. Raises ``ValueError`` where there is none.
    """
    each = [normalised([weigher(source, request) for source in sources]) for weigher, _ in weighers]
    sums = [sum(times * own[at] for own, (_, times) in zip(each, weighers, strict=True)) for at in range(len(sources))]
    return sources[max(range(len(sources)), key=sums.__getitem__)]


def share_free(source: Source, request: PendingRequest) -> float:
    """A weigher: the share of a delegation that is free throughout the term, for units of the request's needs."""
    return free_over(source, request, request.term) / max(1, source.units)


def number_in(properties: Properties, name: str) -> float:
    """The number that a property holds; 0 where it holds none that is finite. ``lambda source, _:
    number_in(source.properties, "price")`` is a weigher.
    """
    try:
        number = float(properties.get(name, 0))
    except ValueError:
        return 0.0
    return number if isfinite(number) else 0.0


def fit(
    cycle: BrokerCycle,
    request: PendingRequest,
    filters: Sequence[SourceFilter] = (),
    weighers: Sequence[tuple[SourceWeigher, float]] = (),
) -> Grant | Defer | Reject:
    """A request as early as it fits, with as many units as are free there; one that fits nowhere in its window is
    deferred if it has one, else refused. A new one goes to a delegation that all filters take; where it can begin
    as early in several, to the heaviest.
    """
    able = [
        source
        for source in allowed(cycle, request)
        if request.op != "new" or all(takes(source, request) for takes in filters)
    ]
    starts = [(at, source) for source in able if (at := earliest(source, request)) is not None]
    if not starts:
        reason = Coded(f"no site has {request.min_units} units of {request.type!r} free", "insufficient")
        waits = request.latest_start > request.term.start
        return Defer(request.lease, reason) if waits else Reject(request.lease, reason)
    start = min(at for at, _ in starts)
    source = heaviest([source for at, source in starts if at == start], request, weighers)
    term = Term(start, start + request.term.length)
    return grant(source, request, min(request.units, free_over(source, request, term)), term)


def fit_group(cycle: BrokerCycle, group: Sequence[PendingRequest]) -> GrantGroup | Reject:
    """All members over one term, each with the fewest units that will do, from the first delegation that has them; or
    none, with nothing booked, and the group refused.
    """
    start = max(member.term.start for member in group)
    term = Term(start, start + group[0].term.length)
    booked: list[tuple[object, Timetable | ClassedTimetable]] = []
    grants: list[Grant] = []
    for member in group:
        able = (one for one in allowed(cycle, member) if free_over(one, member, term) >= member.min_units)
        source = next(able, None)
        if source is None or start > member.latest_start or member.term.length != term.length:
            for key, table in booked:
                table.release(key)
            reason = f"no room for {member.lease} together with the rest of its group"
            return Reject(member.lease, Coded(reason, "insufficient"))
        booked.append((key := object(), table := view(source, member)))
        table.reserve(key, member.min_units, term)
        grants.append(Grant(member.lease, source.id, member.min_units, term, member.preemptible))
    return GrantGroup(group[0].group, tuple(grants))
