"""A guest's leases that are suspended: what is left of their terms is asked for at once, by a lease that resumes them.

The site says that a lease is suspended, when, and in the end how many of its units it has saved. The rest is a new
lease of the same name, units and slice, pinned to that site: it waits in line for its start as long as a deferrable
request may, and says what it resumes, to the broker for its place in line, and to the site for what is saved. One that
its guest closed itself is not resumed, nor is one of a group that belongs together as a topology.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.guest.requests import LeaseRequests
from leasekit.actors.kernel import Kernel
from leasekit.core.claims.ticket import begin_of, decode_ticket, saving_of
from leasekit.core.errors import CommandError
from leasekit.core.leases.plans import HOLD
from leasekit.core.leases.records import Asked, GuestLease, Resumed
from leasekit.core.leases.saved import RESUMES
from leasekit.core.mappers import RequestLease
from leasekit.core.properties import Properties
from leasekit.core.reasons import said
from leasekit.core.requests import TRUE, parse_options
from leasekit.core.time import Duration, Instant, Term

ONCE: Final = (
    "elastic", "min_units", "deferrable", "latest_start", "request_timeout", "group_id", "lease_count", "image",
    "prepare", "exclude_sites", "resumes",
)  # fmt: skip
"""Request properties that say how the suspended lease was to begin: its rest begins otherwise."""


class Rests:
    """What becomes of suspended leases."""

    def __init__(self, kernel: Kernel, requests: LeaseRequests) -> None:
        self._kernel = kernel
        self._requests = requests

    def ended(self, lease: GuestLease) -> None:
        """Ask for what is left of a lease that was suspended, if its guest still wants it."""
        held, asked = lease.approved, lease.first_asked
        if (
            not lease.suspends
            or held is None
            or asked is None
            or lease.close_reason
            or lease.closing
            or HOLD in asked.properties
        ):
            return
        begin = begin_of(decode_ticket(held.ticket).leaf)
        stopped = max(begin, min(self._kernel.now, lease.noticed if lease.noticed >= 0 else self._kernel.now))
        left = _whole_end(lease, begin + asked.term.length) - stopped
        if left <= 0:
            return
        wish = RequestLease(
            lease.type, held.units, Term(self._kernel.now, self._kernel.now + left), lease.slice, lease.name,
            lease.broker, lease.site, self._rest_properties(lease.id, asked, stopped - begin),
            {**lease.configuration, RESUMES: lease.id},
        )  # fmt: skip
        try:
            rest = self._requests.request(wish)
        except CommandError as error:
            self._kernel.complain(f"the rest of lease {lease.id}, which was suspended, can't be asked for: {error}")
            return
        rest.resumes = Resumed(lease.id, stopped)
        self._kernel.note(lease.id, "rest", "", "", said(f"{rest.id} asks for the {left} ms that are left"))
        self._kernel.touch(rest)

    def _rest_properties(self, before: str, asked: Asked, done: Duration) -> Properties:
        """Its window, if it had one, moves on by the time that it has run: it is to be done when it was to be done."""
        kept = {name: value for name, value in asked.properties.items() if name not in ONCE}
        latest = parse_options(asked.properties, asked.term).latest_start
        if latest:
            kept["latest_start"] = str(max(self._kernel.now, latest + done))
        if "suspend" in kept:
            kept["prepare"] = kept["suspend"]
        return {**kept, "deferrable": TRUE, "resumes": before}


def _whole_end(lease: GuestLease, asked: Instant) -> Instant:
    """When the lease was to end, had it not been suspended: at ``asked``, if it was granted a part of what it asked."""
    tickets = [one for one in (lease.approved, lease.renewal, *lease.further) if one is not None]
    if any(saving_of(decode_ticket(one.ticket).leaf) for one in tickets):
        return asked
    return max(one.term.end for one in tickets)
