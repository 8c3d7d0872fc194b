"""What happens to a guest's lease when its time has come, and no message has settled what it waited for.

:mod:`.limits` tells when that is.
"""

from __future__ import annotations

from leasekit.actors.guest.answers import BrokerUpdates
from leasekit.actors.guest.endings import Endings
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.operations import GuestOperations
from leasekit.actors.guest.redeems import Redeems
from leasekit.actors.guest.transitions import Transitions
from leasekit.actors.kernel import Kernel, earliest
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant


class LeaseTimeouts:
    """The timeouts of a guest's leases."""

    def __init__(
        self, limits: Limits, endings: Endings, redeems: Redeems, membership: Membership, broker: BrokerUpdates
    ) -> None:
        self._limits = limits
        self._endings = endings
        self._redeems = redeems
        self._membership = membership
        self._broker = broker

    def due_at(self, lease: GuestLease) -> Instant | None:
        """When that is next."""
        return self._limits.of(lease)

    def check(self, lease: GuestLease) -> None:
        """Do what the lease's state makes happen now by itself."""
        if not self._limits.is_past(lease):
            return
        expire = self._endings.expire
        match (lease.state, lease.pending):
            case (sm.NASCENT, _):
                expire(lease, Reason(Code.NO_TICKET, lease.broker))
            case (_, sm.CLOSE_WAIT):
                expire(lease, Reason(Code.NO_CLOSE, lease.site))
            case (sm.TICKETED, sm.REDEEMING):
                expire(lease, Reason(Code.NO_LEASE, lease.site))
            case (sm.TICKETED, _):
                if self._limits.is_over(lease):
                    expire(lease, Reason(Code.TERM_UNUSED))
            case (sm.ACTIVE_TICKETED, sm.EXTENDING_LEASE | sm.EXTENDING_FURTHER):
                victims = self._limits.leaving_victims(lease) if lease.is_promised else []
                if victims:
                    self._membership.leave_early(lease, victims)
                else:
                    late = Reason(Code.NO_EXTEND, lease.site)
                    expire(lease, late if lease.noticed < 0 else lease.reason)
            case (sm.ACTIVE_TICKETED, sm.EXTENDING_TICKET):
                self._redeems.go_on(lease)
            case (sm.ACTIVE_TICKETED, _) if lease.ask:
                self._broker.unheard(lease)
            case (sm.ACTIVE_TICKETED, sm.UNDOING):
                expire(lease, Reason(Code.NO_UNDO, lease.site))
            case (sm.ACTIVE_TICKETED, sm.MODIFYING):
                if not self._redeems.go_on_from_modify(lease):
                    expire(lease, Reason(Code.NO_MODIFY, lease.site))
            case (sm.ACTIVE, sm.CLOSING):
                self._endings.leave_at_once(lease)
            case (sm.ACTIVE, _):
                expire(lease, Reason(Code.TERM_OVER) if lease.noticed < 0 else lease.reason)


class LeaseTimers:
    """When time next concerns a guest's lease, and what happens then, in order."""

    def __init__(
        self,
        kernel: Kernel,
        records: Leases,
        operations: GuestOperations,
        timeouts: LeaseTimeouts,
        transitions: Transitions,
    ) -> None:
        self._kernel = kernel
        self._records = records
        self._operations = operations
        self._timeouts = timeouts
        self._transitions = transitions

    def due_at(self, lease: GuestLease) -> Instant | None:
        """When its time comes: to send something again, for its state, for its mapper, or to be forgotten."""
        if lease.state in (sm.CLOSED, sm.FAILED):
            return lease.ended + self._kernel.settings.retention
        held = lease.hold_until if lease.join == mb.BLOCKED_JOIN and lease.hold_until > self._kernel.now else None
        return earliest(self._operations.due_at(lease), self._timeouts.due_at(lease), held)

    def due(self, lease: GuestLease) -> None:
        """Its time has come."""
        if lease.state in (sm.CLOSED, sm.FAILED):
            if lease.ended + self._kernel.settings.retention <= self._kernel.now:
                self._records.drop(lease)
            return
        self._operations.due(lease)
        self._timeouts.check(lease)
        self._transitions.advance(lease)
