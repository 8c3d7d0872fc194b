"""What the state of a guest's lease allows now: units join, a ticket is redeemed, a slice's key is given to units.

Whatever has changed for a lease, :meth:`Transitions.advance` does what follows.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.predecessors import Predecessors
from leasekit.actors.guest.redeems import Redeems
from leasekit.actors.kernel import Kernel
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease

SLICE_KEY: Final = "slice.key"
"""The configuration property that holds a slice's login keys."""


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
            self._redeems.reconfigure(lease, "the slice's key")
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
