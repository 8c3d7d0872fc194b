"""Which of a lease's claims a request is about."""

from __future__ import annotations

from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.protocol.messages import MODIFY
from leasekit.core.time import Term


def place_of(lease: BrokerLease, op: str, term: Term) -> int:
    """Which of a lease's claims a request is about: the one that a modify begins in, else the last."""
    within = (n for n, one in enumerate(lease.claims) if one.term.start <= term.start < one.until and op == MODIFY)
    return next(within, len(lease.claims) - 1)


def concerned(lease: BrokerLease) -> Granted:
    """The claim that a lease's request is about."""
    return lease.claims[place_of(lease, lease.asked.op, lease.asked.term)]
