"""Requests of a broker's cycle, for tests that need nothing special of them."""

from __future__ import annotations

from leasekit.core.mappers import PendingRequest
from leasekit.core.time import Duration, Instant, Term


def waiting_request(lease: str, start: Instant, length: Duration, units: int = 1) -> PendingRequest:
    """A deferrable request for ``node``."""
    return PendingRequest(
        lease=lease, holder="h", op="new", type="node", units=units, min_units=units, term=Term(start, start + length),
        latest_start=10**9, deadline=10**9, arrived=start, site="", exclude_sites=frozenset(), source="", held=0,
        group="", priority=0, preemptible=False, properties={},
    )  # fmt: skip
