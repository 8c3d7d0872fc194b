"""When the state of a guest's lease makes something happen by itself, if no message does.

This part only tells the instants; what is done then is in :mod:`.timeouts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasekit.actors.kernel import Kernel
from leasekit.actors.settings import GuestSettings
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease, Slice
from leasekit.core.time import Instant


class Limits:
    """The instants of a guest's leases. ``is_undecided`` tells leases that must not be redeemed yet."""

    def __init__(
        self,
        kernel: Kernel,
        settings: GuestSettings,
        slices: Mapping[str, Slice],
        is_undecided: Callable[[GuestLease], bool],
    ) -> None:
        self._kernel = kernel
        self._settings = settings
        self._slices = slices
        self._is_undecided = is_undecided

    def of(self, lease: GuestLease) -> Instant | None:
        """When the lease's state itself makes something happen, if no message does."""
        if lease.state == sm.ACTIVE and lease.pending == NONE:  # by far the most common
            return self._leaves_at(lease, lease.end)
        match (lease.state, lease.pending):
            case (sm.NASCENT, sm.TICKETING | sm.CLOSE_WAIT):
                return lease.ask_deadline
            case (sm.TICKETED | sm.ACTIVE, sm.CLOSE_WAIT):
                return self._last_end(lease) + self._settings.close_timeout
            case (sm.TICKETED, sm.REDEEMING):
                return lease.end + self._settings.clock_skew
            case (sm.TICKETED, _):
                goes_on = max(self._redeem_at(lease), lease.hold_until)
                return lease.end if self._is_held(lease) else min(goes_on, lease.end)
            case (sm.ACTIVE_TICKETED, sm.EXTENDING_LEASE | sm.EXTENDING_FURTHER):
                assert lease.renewal is not None
                goes_on = lease.is_promised and not self.leaving_victims(lease)
                return self._leaves_at(lease, lease.renewal.term.end if goes_on else lease.end)
            case (sm.ACTIVE_TICKETED, sm.UNDOING):
                assert lease.renewal is not None
                # A site that only accepts it goes on by the extension already, and says so when its units are up.
                return self._leaves_at(lease, lease.renewal.term.end if lease.op_accepted else lease.end)
            case (sm.ACTIVE_TICKETED, sm.MODIFYING) if lease.operation.number:
                leaves = self._leaves_at(lease, lease.end)
                return min(max(self.redeem_by(lease), self._changed_by(lease)), leaves) if lease.op_accepted else leaves
            case (sm.ACTIVE_TICKETED, _) if lease.noticed >= 0 and not lease.is_promised:
                return 0  # its site will refuse the renewal: the sooner, the sooner its units can leave
            case (sm.ACTIVE_TICKETED, pending) if pending == NONE and lease.is_promised:
                return 0  # a modify that came between is settled
            case (sm.ACTIVE_TICKETED, _):
                return self.redeem_by(lease)
            case (sm.ACTIVE, sm.MODIFYING) if lease.op_accepted and lease.renewal is not None:
                return self._leaves_at(lease, lease.renewal.term.end)
            case (sm.ACTIVE, sm.CLOSING):
                # The site goes on to the end of an extend that it has accepted, heard of or not.
                return self._last_end(lease) if lease.op_accepted else lease.end
            case (sm.ACTIVE, _):
                return self._leaves_at(lease, lease.end)
        return None

    def redeem_by(self, lease: GuestLease) -> Instant:
        """When a lease with tickets in hand must ask its site to go on, milliseconds: at its end, if that was asked
        before, and accepted.
        """
        if lease.is_promised:
            return self._leaves_at(lease, lease.end)
        return lease.end - max(self._settings.extend_lead, self._settings.leave_time)

    def leaves_before(self, end: Instant) -> Instant:
        """When units must begin to leave, for a lease that ends at ``end``, milliseconds."""
        return end - self._settings.leave_time

    def _changed_by(self, lease: GuestLease) -> Instant:
        """From when on a modify that the site has accepted is in force there, whose clock may be behind."""
        start = lease.renewal.term.start if lease.renewal is not None else lease.operation.since
        return start + self._settings.clock_skew

    def _leaves_at(self, lease: GuestLease, end: Instant) -> Instant:
        """When units are to leave a lease that ends at ``end``, if its site does not end it before."""
        return (end if lease.noticed < 0 else min(end, lease.noticed)) - self._settings.leave_time

    @staticmethod
    def _last_end(lease: GuestLease) -> Instant:
        """When the lease ends at the latest, whatever the site has done with the renewal."""
        return lease.renewal.term.end if lease.renewal is not None else lease.end

    def is_past(self, lease: GuestLease) -> bool:
        """Whether its time has come."""
        limit = self.of(lease)
        return limit is not None and limit <= self._kernel.now

    def is_over(self, lease: GuestLease) -> bool:
        """Whether its term has ended."""
        return lease.end <= self._kernel.now

    def may_redeem(self, lease: GuestLease) -> bool:
        """Whether the time has come to redeem its first ticket."""
        return self._redeem_at(lease) <= self._kernel.now

    def _redeem_at(self, lease: GuestLease) -> Instant:
        assert lease.approved is not None
        return lease.approved.term.start - self._settings.redeem_lead

    def waits_for_others(self, lease: GuestLease) -> bool:
        """Whether it must not be redeemed before the others of its slice or topology have their tickets."""
        record = self._slices.get(lease.slice)
        return (record is not None and not record.released) or self._is_undecided(lease)

    def is_held_by_mapper(self, lease: GuestLease) -> bool:
        """Whether the mapper wants it to wait longer than for its predecessor."""
        return lease.hold_until > self._kernel.now

    def _is_held(self, lease: GuestLease) -> bool:
        blocked = lease.join == mb.BLOCKED_REDEEM and not self.is_held_by_mapper(lease)
        return blocked or self.waits_for_others(lease)

    def leaving_victims(self, lease: GuestLease) -> list[str]:
        """Those that are to leave before an extend, and have not been told: no more than there are units too many. Its
        site spares the others, if the lease has lost units since they were named.
        """
        wanted = lease.renewal.units if lease.renewal is not None else 0
        going = [name for name in lease.leaving if name in lease.units][: max(0, len(lease.units) - wanted)]
        return [name for name in going if lease.units[name].state not in ("leaving", "left")]
