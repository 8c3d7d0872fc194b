"""Why a broker can't fill a request, in words that a guest can act on.

"Insufficient resources" is said only where that is the reason: a site that isn't there, a request larger than any
site, a filter that no site passes, and a delegation that ends too soon are different things (specs/leases.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from leasekit.core.filters import misses
from leasekit.core.mappers import PendingRequest, Source
from leasekit.core.reasons import Coded, counted, mark, marked
from leasekit.core.time import Instant, Term, format_duration
from leasekit.policies.broker.capacity import GoingOn, Place, Shape, classes_seen

T = TypeVar("T")
INSUFFICIENT = "insufficient"
"""The code of what could be had at less load."""
LATE = "late"
"""The code of what came too late."""
SHOWN_MAX = 5
"""The most sites that a reason lists."""


def never(request: PendingRequest, shape: Shape, least: int, now: Instant) -> str:
    """Why the request can't be filled at any load; empty if it could be."""
    if shape.fault:
        return Coded(shape.fault, "bad_request")
    places, (start, end), latest = shape.places, request.term, request.latest_start
    for place in places:
        if place.units >= least and place.covers(end - start, start, latest):
            return ""
    if not places:
        return _nowhere(request, shape)
    most = max(place.units for place in places)
    if least > most:
        where = f"site {request.site!r} has" if request.site else "any site here has"
        left = f"; {_left_out(shape)}" if shape.left_out else ""
        are = "is" if least == 1 else "are"
        words = f"{counted(least)} of {request.type!r} {are} more than {where}, which is {most} at most{left}"
        return Coded(words, "too_many")
    term = request.term
    able = [place for place in places if place.units >= least]
    if any(place.view.covers(term.length, term.start, latest) for place in able):
        ahead = min(place.ahead for place in able)
        return Coded(
            f"the units need {format_duration(ahead)} to be made ready, and the latest start, {mark(latest)}, is "
            f"{format_duration(latest - now)} away", "too_soon",
        )  # fmt: skip
    spans = _listed([f"{place.site} {_span(place.span)}" for place in places])
    return Coded(f"no delegation of {request.type!r} covers {_span(term)}{_later(request)}: {spans}", "not_covered")


def late(request: PendingRequest) -> str:
    """Its window is over: it was long on its way, or its broker could not take it up."""
    return Coded(f"its latest start, {mark(request.latest_start)}, is past", LATE)


def insufficient(request: PendingRequest, places: Sequence[Place | GoingOn], term: Term, least: int) -> str:
    """How many are free, where, of how many that were wanted."""
    free = _listed([f"{place.free(term)} free at {place.site}" for place in places])
    return Coded(f"insufficient resources: {_wanted(request, least)} wanted over {_span(term)}, {free}", INSUFFICIENT)


def refused(request: PendingRequest, shape: Shape, term: Term, least: int, fit: tuple[Instant, Place] | None) -> str:
    """The same for a request that can't wait, with the earliest fit and what else was tried."""
    text = f"{insufficient(request, shape.places, term, least)}; {fitting(fit)}"
    return Coded(text + (f"; {_left_out(shape)}" if shape.left_out else ""), INSUFFICIENT)


def fitting(fit: tuple[Instant, Place] | None) -> str:
    """When and where a request would fit that doesn't fit as it is."""
    if fit is None:
        return "it fits at no later start either"
    return f"the earliest fit is at {mark(fit[0])} at {fit[1].site}"


def not_yet(request: PendingRequest, shape: Shape, least: int) -> str:
    """The same for a request that waits: nothing fits as yet, up to its latest start."""
    text = insufficient(request, shape.places, request.term, least)
    text += f"; nothing up to its latest start, {mark(request.latest_start)}"
    return Coded(text + (f"; {_left_out(shape)}" if shape.left_out else ""), INSUFFICIENT)


def earliest_fit(places: Sequence[Place], least: int, term: Term) -> tuple[Instant, Place] | None:
    """When and where it would fit first, from the start of ``term`` on."""
    found: tuple[Instant, Place] | None = None
    for place in places:
        start = place.earliest(least, term.length, term.start, place.span.end if found is None else found[0] - 1)
        found = found if start is None else (start, place)
    return found


def _nowhere(request: PendingRequest, shape: Shape) -> str:
    sites = sorted({view.site for view in shape.offered})
    if not sites:
        return Coded(f"no site here offers type {request.type!r}", "unknown_type")
    if shape.left_out:
        return Coded(f"no site passes the filter: {_missing(shape)}", "no_match")
    if request.site in request.exclude_sites:
        return Coded(f"site {request.site!r} is both asked for and excluded", "excluded")
    if request.site:
        return Coded(f"site {request.site!r} offers no {request.type!r} here; {_listed(sites)} do", "not_there")
    return Coded(f"every site with {request.type!r} is excluded: {_listed(sites)}", "excluded")


def beside(request: PendingRequest, found: GoingOn, free: int, until: Instant) -> str:
    """What a modify could have with the units that its lease holds up to ``until``."""
    return Coded(
        f"insufficient resources: {counted(request.min_units)} of {request.type!r} wanted over "
        f"{_span(request.term)}, {free} to be had at {found.site} with the {request.held} "
        f"that the lease holds there until {mark(until)}", INSUFFICIENT,
    )  # fmt: skip


def _wanted(request: PendingRequest, least: int) -> str:
    units = counted(request.units) if least == request.units else f"{least} to {counted(request.units)}"
    return f"{units} of {request.type!r}"


def _left_out(shape: Shape) -> str:
    return f"the filter leaves out {_missing(shape)}"


def _missing(shape: Shape) -> str:
    return _listed(shape.left_out, lambda one: f"{one[0].site}: {_misses(one[1], one[0].source)}")


def _misses(text: str, source: Source) -> str:
    """Why a filter takes no unit of a source, or not all: what each class lacks."""
    return " or ".join(dict.fromkeys(filter(None, (misses(text, one) for one in classes_seen(source).values()))))


def _later(request: PendingRequest) -> str:
    return f", nor with a start up to {mark(request.latest_start)}" if request.latest_start > request.term.start else ""


def _span(term: Term) -> str:
    return marked(term)


def _listed(found: Sequence[T], words: Callable[[T], str] = str) -> str:
    rest = len(found) - SHOWN_MAX
    return ", ".join(map(words, found[:SHOWN_MAX])) + (f" and {rest} more" if rest > 0 else "")
