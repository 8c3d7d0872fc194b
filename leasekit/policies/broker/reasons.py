"""Why a broker can't fill a request, in words that a guest can act on.

"Insufficient resources" is said only where that is the reason: a site that isn't there, a request larger than any
site, and a delegation that ends too soon are different things (specs/leases.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from leasekit.core.mappers import PendingRequest
from leasekit.core.time import Instant, Term
from leasekit.policies.broker.rooms import Room

SHOWN_MAX = 5
"""The most sites that a reason lists."""


def never(request: PendingRequest, offered: Sequence[Room], rooms: Sequence[Room], least: int) -> str:
    """Why the request can't be filled at any load; empty if it could be.

    ``offered`` are all rooms of its type, ``rooms`` those that the request allows.
    """
    if not rooms:
        return _nowhere(request, offered)
    most = max(room.units for room in rooms)
    if least > most:
        where = f"site {request.site!r} has" if request.site else "any site here has"
        return f"{least} units of {request.type!r} are more than {where}, which is {most} at most"
    term, latest = request.term, request.latest_start
    if not any(room.covers(term.length, term.start, latest) for room in rooms if room.units >= least):
        spans = _listed([f"{room.site} {_span(room.span)}" for room in rooms])
        return f"no delegation of {request.type!r} covers {_span(term)}{_later(request)}: {spans}"
    return ""


def insufficient(request: PendingRequest, rooms: Sequence[Room], term: Term, least: int) -> str:
    """How many are free, where, of how many that were wanted."""
    wanted = f"{request.units}" if least == request.units else f"{least} to {request.units}"
    free = _listed([f"{room.free(term)} free at {room.site}" for room in rooms])
    return f"insufficient resources: {wanted} units of {request.type!r} wanted over {_span(term)}, {free}"


def not_yet(request: PendingRequest, rooms: Sequence[Room], least: int) -> str:
    """The same for a request that waits: nothing fits as yet, up to its latest start."""
    return (
        insufficient(request, rooms, request.term, least) + f"; nothing up to its latest start, {request.latest_start}"
    )


def earliest_fit(rooms: Sequence[Room], least: int, term: Term) -> Instant | None:
    """When it would fit, in the first room that can have it."""
    found: Instant | None = None
    for room in rooms:
        start = room.earliest(least, term.length, term.start, room.span.end if found is None else found)
        found = start if start is not None else found
    return found


def _nowhere(request: PendingRequest, offered: Sequence[Room]) -> str:
    sites = sorted({room.site for room in offered})
    if not sites:
        return f"no site here offers type {request.type!r}"
    if request.site in request.exclude_sites:
        return f"site {request.site!r} is both asked for and excluded"
    if request.site:
        return f"site {request.site!r} offers no {request.type!r} here; {_listed(sites)} do"
    return f"every site with {request.type!r} is excluded: {_listed(sites)}"


def _later(request: PendingRequest) -> str:
    return f", nor with a start up to {request.latest_start}" if request.latest_start > request.term.start else ""


def _span(term: Term) -> str:
    return f"[{term.start}, {term.end})"


def _listed(words: Sequence[str]) -> str:
    rest = len(words) - SHOWN_MAX
    return ", ".join(words[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
