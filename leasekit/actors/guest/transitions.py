"""What the state of a guest's lease allows now: units join, a ticket is redeemed, a slice's key is given to units.

Whatever has changed for a lease, :meth:`Transitions.advance` does what follows. A lease may have to wait for another
one (paper section 3.5): it has at most one redeem predecessor and one join predecessor, which were requested before it,
so that there are no cycles. Before a blocked lease goes on, the mapper's upcall may change its properties or hold it
longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasekit.actors.guest.endings import Endings
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.redeems import Redeems
from leasekit.actors.kernel import Kernel
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import Go, Hold
from leasekit.core.reasons import Code, Reason, said

SLICE_KEY: Final = "slice.key"
"""The configuration property that holds a slice's login keys."""
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
            self._endings.close(lease, self._what_became_of(Code.JOIN_PREDECESSOR, lease.after.join))
        elif answer == WAIT:
            Membership.move(lease, "block_join")
        return answer == READY

    def may_redeem(self, lease: GuestLease, *, due: bool) -> bool:
        """The same for its first ticket; the mapper is asked when that is ``due``."""
        answer = self._look_at(lease, lease.after.redeem, lambda p: p.state in (sm.ACTIVE, sm.ACTIVE_TICKETED), ask=due)
        if answer == LOST:
            self._endings.expire(lease, self._what_became_of(Code.REDEEM_PREDECESSOR, lease.after.redeem))
            return False
        if answer == WAIT:
            if lease.join != mb.BLOCKED_REDEEM:
                Membership.move(lease, "block_redeem")
                self._kernel.note(lease.id, "blocked_redeem", "", "", said(f"waits for {lease.after.redeem}"))
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

    def _what_became_of(self, code: Code, name: str) -> Reason:
        other = self._records.by_id.get(name)
        return Reason(code, name, "over") if other is None else Reason(code, name, other.state).because(other.reason)


class SliceKeys:
    """The login keys of a guest's slices, on their way to the units."""

    def __init__(self, kernel: Kernel, records: Leases, redeems: Redeems) -> None:
        self._kernel = kernel
        self._records = records
        self._redeems = redeems

    def roll(self, lease: GuestLease) -> None:
        """Have the site give the slice's key to units that have another one; it is asked once for each key."""
        record = self._records.slices.get(lease.slice)
        key = record.key if record is not None else ""
        if not key or lease.key_tried == key or lease.configuration.get(SLICE_KEY) == key:
            return
        if lease.state == sm.TICKETED:
            lease.configuration = {**lease.configuration, SLICE_KEY: key}
        elif (
            sm.MACHINE.allows((lease.state, lease.pending), "modify")
            and not lease.closing
            and lease.end > self._kernel.now
        ):
            lease.key_tried = key
            self._redeems.change(lease, {**lease.configuration, SLICE_KEY: key}, ())
            self._redeems.reconfigure(lease, said("the slice's key"))
        self._kernel.touch(lease)


class Transitions:
    """What follows for a guest's leases."""

    def __init__(
        self, limits: Limits, predecessors: Predecessors, redeems: Redeems, membership: Membership, keys: SliceKeys
    ) -> None:
        self._limits = limits
        self._predecessors = predecessors
        self._redeems = redeems
        self._membership = membership
        self._keys = keys

    def advance(self, lease: GuestLease) -> None:
        """Do what the lease's state allows now: join, or redeem."""
        if lease.join == mb.BLOCKED_JOIN and not self._limits.is_held_by_mapper(lease):
            self.join(lease)
        if lease.state == sm.ACTIVE and lease.pending in (NONE, sm.EXTENDING_TICKET):
            self._keys.roll(lease)
            if self._redeems.in_hand(lease):
                self.advance(lease)
        elif (lease.state, lease.pending) == (sm.TICKETED, NONE):
            self._redeem_first(lease)
        elif (lease.state, lease.pending) == (sm.ACTIVE_TICKETED, NONE):
            if self._limits.is_past(lease):
                self._redeems.go_on(lease)
            else:
                self._keys.roll(lease)

    def _redeem_first(self, lease: GuestLease) -> None:
        if self._limits.waits_for_others(lease):
            return
        due = self._limits.may_redeem(lease)
        if self._predecessors.may_redeem(lease, due=due) and due:
            self._keys.roll(lease)
            self._redeems.begin(lease)

    def join(self, lease: GuestLease) -> None:
        """Have the units of an active lease join that wait."""
        if lease.state not in (sm.ACTIVE, sm.ACTIVE_TICKETED) or lease.pending in (sm.CLOSING, sm.CLOSE_WAIT):
            return
        if self._predecessors.may_join(lease):
            self._membership.join(lease)


class Dependents:
    """Leases that have another one as a predecessor."""

    def __init__(self, kernel: Kernel, records: Leases, transitions: Transitions) -> None:
        self._kernel = kernel
        self._records = records
        self._transitions = transitions

    def wake(self, lease: GuestLease) -> None:
        """A lease has come so far that those may go on which waited for it."""
        for dependent in self._records.dependents(lease):
            if dependent.join == mb.BLOCKED_JOIN:
                self._transitions.join(dependent)
                self._kernel.touch(dependent)
            elif dependent.state == sm.TICKETED and dependent.pending == NONE:
                self._transitions.advance(dependent)
