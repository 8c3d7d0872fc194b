"""Leases that wait for each other: predecessors (paper section 3.5), and slices that hold their redeems for all.

Each lease has at most one redeem predecessor and one join predecessor, which were requested before it: there are no
cycles. Before a blocked lease goes on, the mapper's upcall may change its properties or hold it longer.
"""

from __future__ import annotations

from collections.abc import Callable

from leasekit.actors.guest.state import GuestState
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import Go, Hold


class GuestGroups(GuestState):
    """Lease groups."""

    def _upcall(self, lease: GuestLease, predecessor: GuestLease) -> Go | Hold:
        raise NotImplementedError

    def _join(self, lease: GuestLease) -> None:
        raise NotImplementedError

    def advance(self, lease: GuestLease) -> None:
        """Do what the lease's state allows now."""
        raise NotImplementedError

    def close(self, lease: GuestLease, reason: str) -> None:
        """End the lease before its time."""
        raise NotImplementedError

    def _predecessor(
        self, lease: GuestLease, name: str, done: Callable[[GuestLease], bool], *, ask: bool = True
    ) -> str:
        """``ready``, ``wait`` or ``failed``; with ``ask``, the mapper's upcall comes before ``ready``."""
        if not name:
            return "ready"
        predecessor = self.leases.get(name)
        if predecessor is None or predecessor.state in (sm.CLOSED, sm.FAILED):
            return "ready" if lease.proceed else "failed"
        if not done(predecessor) or self.kernel.now < lease.hold_until:
            return "wait"
        if not ask:
            return "ready"
        answer = self._upcall(lease, predecessor)
        if isinstance(answer, Hold):
            lease.hold_until = max(answer.until, self.kernel.now + 1)
            self.kernel.touch(lease)
            return "wait"
        if answer.configuration:
            lease.configuration = {**lease.configuration, **answer.configuration}
            if lease.next_configuration is not None:
                lease.next_configuration = {**lease.next_configuration, **answer.configuration}
            self.kernel.touch(lease)
        return "ready"

    def _what_became_of(self, name: str) -> str:
        predecessor = self.leases.get(name)
        if predecessor is None:
            return f"{name} is over"
        return f"{name} is {predecessor.state}: {predecessor.reason or 'it gave no reason'}"

    def _wake_dependents(self, lease: GuestLease) -> None:
        for dependent in self.records.dependents(lease):
            if dependent.join == mb.BLOCKED_JOIN:
                self._join(dependent)
                self.kernel.touch(dependent)
            elif dependent.state == sm.TICKETED and dependent.pending == NONE:
                self.advance(dependent)

    def _settle_hold(self, lease: GuestLease) -> None:
        """A slice that holds its redeems goes on when every ticket is there, and closes when one was refused."""
        record = self.records.slices.get(lease.slice)
        if record is None or record.released or not record.hold:
            return
        members = self.records.of_slice(record.id)
        lost = next((other for other in members if other.state in (sm.FAILED, sm.CLOSED)), None)
        if lost is not None:
            record.refused = f"lease {lost.id}: {lost.reason or lost.state}"
            record.released = True
            self.kernel.touch(record)
            for other in members:
                if sm.MACHINE.allows((other.state, other.pending), "close"):
                    self.close(other, f"its slice holds for all, and {record.refused}")
        elif sum(other.approved is not None for other in members) >= record.hold:
            record.released = True
            self.kernel.touch(record)
            for other in members:
                if other is not lease:
                    self.advance(other)
