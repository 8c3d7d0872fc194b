"""What a broker makes of leases that can be suspended: which grants are of a part only, and what mappers are shown.

A preemptible lease whose request property ``suspend`` says how long it takes to save its units can be granted a shorter
term than it asked for, from a source whose site saves: its claim then says that it is suspended at its end, and its
guest asks for the rest. Or it is preempted (:meth:`.preemption.Preemption.preempt`) to the same effect.
"""

from __future__ import annotations

from leasekit.core.drivers import saves
from leasekit.core.leases.records import BrokerLease
from leasekit.core.mappers import Grant
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import NEW
from leasekit.core.requests import Options
from leasekit.core.time import Duration, format_duration

SUSPEND = "suspend"


def is_part(lease: BrokerLease, grant: Grant, options: Options, resource: Properties) -> bool:
    """Whether a grant is of a part of what a deferrable request asks for, after which the lease is suspended."""
    if lease.asked.op != NEW or not options.deferrable or lease.group or not grant.preemptible:
        return False
    return 0 < options.suspend < grant.term.length < lease.asked.term.length and saves(resource)


def ends_suspended(lease: BrokerLease, grant: Grant, options: Options, resource: Properties) -> Duration:
    """How long before its end the lease is saved, if a grant is of a part; else 0."""
    return lease.suspend if is_part(lease, grant, options, resource) else 0


def note_suspend(lease: BrokerLease, grant: Grant, options: Options) -> None:
    """Remember how long it takes to save the lease: renewals needn't say it again."""
    if not grant.preemptible:
        lease.suspend = 0
    elif options.suspend:
        lease.suspend = options.suspend


def with_suspend(lease: BrokerLease) -> Properties:
    """The request properties of what the lease last asked for, with what it says of being suspended."""
    told = lease.asked.properties
    if not lease.suspend or SUSPEND in told:
        return told
    return {**told, SUSPEND: format_duration(lease.suspend)}
