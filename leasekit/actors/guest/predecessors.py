"""Leases that wait for another one (paper section 3.5).

Each lease has at most one redeem predecessor and one join predecessor, which were requested before it: there are no
cycles. Before a blocked lease goes on, the mapper's upcall may change its properties or hold it longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasekit.actors.guest.endings import Endings
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.membership import Membership
from leasekit.actors.kernel import Kernel
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import Go, Hold

READY: Final = "ready"
WAIT: Final = "wait"
LOST: Final = "lost"


class Predecessors:
    """Whether one of a guest's leases may go on. ``unblock`` is the mapper's upcall, given a lease and its
    predecessor.
    """

    def __init__(
        self,
        kernel: Kernel,
        records: Leases,
        endings: Endings,
        unblock: Callable[[GuestLease, GuestLease], Go | Hold],
    ) -> None:
        self._kernel = kernel
        self._records = records
        self._endings = endings
        self._unblock = unblock

    def may_join(self, lease: GuestLease) -> bool:
        """Whether units may join; the lease is blocked if they may not yet, and closed if they never will."""
        if not mb.MACHINE.allows((lease.join, NONE), "block_join"):
            return True
        answer = self._look_at(lease, lease.after.join, lambda p: p.join == mb.JOINED)
        if answer == LOST:
            self._endings.close(lease, f"its join predecessor {self._what_became_of(lease.after.join)}")
        elif answer == WAIT:
            Membership.move(lease, "block_join")
        return answer == READY

    def may_redeem(self, lease: GuestLease, *, due: bool) -> bool:
        """The same for its first ticket; the mapper is asked when that is ``due``."""
        answer = self._look_at(lease, lease.after.redeem, lambda p: p.state in (sm.ACTIVE, sm.ACTIVE_TICKETED), ask=due)
        if answer == LOST:
            self._endings.expire(lease, f"its redeem predecessor {self._what_became_of(lease.after.redeem)}")
            return False
        if answer == WAIT:
            if lease.join != mb.BLOCKED_REDEEM:
                Membership.move(lease, "block_redeem")
                self._kernel.note(lease.id, "blocked_redeem", "", "", f"waits for {lease.after.redeem}")
        else:
            Membership.move(lease, "unblock")
        self._kernel.touch(lease)
        return answer == READY

    def _look_at(self, lease: GuestLease, name: str, done: Callable[[GuestLease], bool], *, ask: bool = True) -> str:
        """:data:`READY`, :data:`WAIT` or :data:`LOST`; with ``ask``, the mapper's upcall comes before ``READY``."""
        if not name:
            return READY
        predecessor = self._records.by_id.get(name)
        if predecessor is None or predecessor.state in (sm.CLOSED, sm.FAILED):
            return READY if lease.after.proceed else LOST
        if not done(predecessor) or self._kernel.now < lease.hold_until:
            return WAIT
        if not ask:
            return READY
        answer = self._unblock(lease, predecessor)
        if isinstance(answer, Hold):
            lease.hold_until = max(answer.until, self._kernel.now + 1)
            self._kernel.touch(lease)
            return WAIT
        if answer.configuration:
            lease.configuration = {**lease.configuration, **answer.configuration}
            if lease.next_configuration is not None:
                lease.next_configuration = {**lease.next_configuration, **answer.configuration}
            self._kernel.touch(lease)
        return READY

    def _what_became_of(self, name: str) -> str:
        predecessor = self._records.by_id.get(name)
        if predecessor is None:
            return f"{name} is over"
        return f"{name} is {predecessor.state}: {predecessor.reason or 'it gave no reason'}"
