"""What a mapper was shown in a turn, in lines for who replays a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leasekit.core.mappers import AuthorityCycle, BrokerCycle, Demand, GuestCycle, LeaseView, PendingRequest, Source
from leasekit.core.properties import Properties
from leasekit.core.time import Term


def shown(cycle: Any) -> tuple[str, ...]:
    """A line for each request, demand or lease of a cycle, and one for each source that they can be filled from."""
    if isinstance(cycle, BrokerCycle):
        return tuple(_requests(cycle)) or ("nothing",)
    if isinstance(cycle, AuthorityCycle):
        return tuple(_demand(demand) for demand in cycle.demands) or ("nothing",)
    if isinstance(cycle, GuestCycle):
        return tuple(_lease(lease) for lease in cycle.leases) or ("nothing",)
    return ("nothing",)


def _requests(cycle: BrokerCycle) -> Iterator[str]:
    for lease in cycle.ended:
        yield f"ended {lease.lease} of {lease.holder} ({lease.why}): ran {_span(Term(lease.start, lease.end))}"
    members = [member for group in cycle.groups for member in group]
    for request in (*cycle.requests, *members):
        yield _request(request)
        for source in cycle.sources(request.type):
            yield f"  {_free(source, request)}"


def _request(request: PendingRequest) -> str:
    least = f"{request.min_units} to " if request.min_units < request.units else ""
    parts = [f"{request.op} {request.lease} of {request.holder}: {least}{request.units} {request.type}"]
    parts.append(_span(request.term))
    if request.latest_start > request.term.start:
        parts.append(f"may start up to {request.latest_start}")
    if request.group:
        parts.append(f"group {request.group}")
    if request.site:
        parts.append(f"at {request.site} only")
    if request.exclude_sites:
        parts.append(f"not at {', '.join(sorted(request.exclude_sites))}")
    if request.source:
        parts.append(f"from {request.source}, holds {request.held}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.preemptible:
        parts.append("preemptible")
    return ", ".join(parts)


def _free(source: Source, request: PendingRequest) -> str:
    if not source.term.contains(request.term):
        return f"{source.id}: delegated {_span(source.term)}"
    return f"{source.id}: {source.free.available(request.term)} of {source.units} free throughout its term"


def _demand(demand: Demand) -> str:
    parts = [f"{demand.op} {demand.lease} of {demand.holder}: {demand.units:+d} {demand.type}", _span(demand.term)]
    if demand.held:
        parts.append(f"has {', '.join(demand.held)}")
    if demand.wanted:
        parts.append(f"wants {', '.join(demand.wanted)}")
    return ", ".join([*parts, *_properties(demand.properties)])


def _lease(lease: LeaseView) -> str:
    state = lease.state if lease.pending in ("", "-") else f"{lease.state}/{lease.pending}"
    return ", ".join((f"{lease.id} {state}: {lease.units} of {lease.requested} {lease.type}", _span(lease.term)))


def _properties(properties: Properties) -> Iterator[str]:
    return (f"{key} = {value}" for key, value in sorted(properties.items()))


def _span(term: Term) -> str:
    return f"{term.start} to {term.end}"
