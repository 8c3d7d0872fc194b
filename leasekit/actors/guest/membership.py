"""Membership: units of a guest's leases join its application and leave it again.

Each unit has one action at a time, under a number; the end of an older action changes nothing. A unit whose join
fails stays in the lease, marked, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from leasekit.actors.kernel import Kernel
from leasekit.core.leases import membership as mb
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease, GuestUnit
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import UnitState
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone


@attrs.define(eq=False, slots=False)
class Membership:
    """The units of a guest's ``leases``."""

    _kernel: Kernel
    _leases: Mapping[str, GuestLease]
    all_joined: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease of which all units have joined, or failed to."""
    all_left: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """The same when all have left."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(GuestUnit)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the units of leases that a store kept."""
        for unit in map(GuestUnit.from_row, rows):
            lease = self._leases.get(unit.lease)
            if lease is not None:
                lease.units[unit.name] = unit

    def resume(self, leases: Iterable[GuestLease]) -> None:
        """After a restart: have done again, under the same number, what was under way."""
        for lease in leases:
            for unit in lease.units.values():
                if unit.state in mb.BUSY:
                    self._act(lease, unit, "join" if unit.state == mb.JOINING else "leave", unit.action)

    def take(self, lease: GuestLease, units: Iterable[UnitState]) -> None:
        """Make the lease's units those that the site says it has: new ones wait to join, lost ones are gone."""
        given = {unit.unit: unit for unit in units if unit.state == "active"}
        for name in [name for name in lease.units if name not in given]:
            gone = lease.units.pop(name)
            lease.busy -= gone.action != 0
            self._erase(gone)
        for name, state in given.items():
            unit = lease.units.get(name)
            if unit is None:
                unit = lease.units[name] = GuestUnit(
                    f"{lease.id}/{name}", lease.id, name, lease.type, unit_class=state.unit_class
                )
            elif unit.properties == state.properties and unit.state != mb.LEFT:
                continue
            if unit.state == mb.LEFT:
                self._fire(unit, "given")
            unit.properties = state.properties
            self._kernel.touch(unit)
        self.check_left(lease)

    @staticmethod
    def move(lease: GuestLease, event: str) -> None:
        """Move a lease by an event of :data:`~leasekit.core.leases.membership.TABLE`. Raises ``ProtocolError``."""
        lease.join, _ = mb.MACHINE.next((lease.join, NONE), event)

    @staticmethod
    def _fire(unit: GuestUnit, event: str) -> None:
        unit.state, _ = mb.UNIT_MACHINE.next((unit.state, NONE), event)

    def join(self, lease: GuestLease) -> None:
        """Join all units that wait; tells :attr:`all_joined` at once if none does."""
        self.move(lease, "join")
        for unit in lease.units.values():
            if unit.state == mb.WAITING:
                self._fire(unit, "join")
                self._act(lease, unit, "join", self._kernel.next("action"))
        self._check_joined(lease)

    def leave(self, lease: GuestLease, names: Iterable[str]) -> None:
        """Let the named units leave; those that never joined have left already."""
        for name in names:
            unit = lease.units.get(name)
            if unit is None or not mb.UNIT_MACHINE.allows((unit.state, NONE), "leave"):
                continue
            self._fire(unit, "leave")
            if unit.state == mb.LEFT:
                self._kernel.touch(unit)
            else:
                self._act(lease, unit, "leave", self._kernel.next("action"))

    def leave_early(self, lease: GuestLease, names: Iterable[str]) -> None:
        """Let the named units leave a lease that goes on without them."""
        self.leave(lease, names)
        self._kernel.touch(lease)

    def _act(self, lease: GuestLease, unit: GuestUnit, op: str, number: int) -> None:
        lease.busy += unit.action == 0 or number == unit.action
        unit.action = number
        self._kernel.touch(unit)
        self._kernel.actions.append(Action(number, op, unit.id, unit.type, lease.id, self._context(lease, unit)))

    def _context(self, lease: GuestLease, unit: GuestUnit) -> Properties:
        context = {
            **lease.resource,
            **lease.configuration,
            **unit.properties,
            "lease.id": lease.id,
            "lease.name": lease.name,
            "lease.site": lease.site,
            "lease.end": str(lease.end),
            "slice.name": lease.slice,
            "unit.name": unit.name,
        }
        predecessor = self._leases.get(lease.after.join) if lease.after.join else None
        if predecessor is not None:
            context["predecessor.units"] = " ".join(predecessor.units)
            hosts = [unit.properties["host"] for unit in predecessor.units.values() if "host" in unit.properties]
            if hosts:
                context["predecessor.hosts"] = " ".join(hosts)
        return context

    def done(self, done: ActionDone) -> None:
        """An action has ended: an older one than the unit's changes nothing."""
        lease_id, _, name = done.unit.partition("/")
        lease = self._leases.get(lease_id)
        unit = lease.units.get(name) if lease is not None else None
        if lease is None or unit is None or unit.action != done.number:
            return
        unit.action = 0
        lease.busy -= 1
        if unit.state == mb.JOINING:
            self._fire(unit, "joined" if done.ok else "failed")
            unit.reason = None if done.ok else Reason(Code.JOIN_FAILED, detail=done.reason)
            if done.ok and done.properties:
                unit.properties = {**unit.properties, **done.properties}
            self._kernel.touch(unit)
            self._check_joined(lease)
        elif unit.state == mb.LEAVING:
            self._has_left(lease, unit, None if done.ok else Reason(Code.LEAVE_FAILED, detail=done.reason))

    def _has_left(self, lease: GuestLease, unit: GuestUnit, reason: Reason | None) -> None:
        """A leave has ended. A victim that its site has spared meanwhile, as others failed, joins anew."""
        spared = lease.join in (mb.JOINING, mb.JOINED) and unit.name not in lease.leaving
        self._fire(unit, "spared" if spared else "left")
        unit.reason = reason
        self._kernel.touch(unit)
        if spared:
            self.join(lease)
        self._check_joined(lease)
        self.check_left(lease)

    def _check_joined(self, lease: GuestLease) -> None:
        if lease.join == mb.JOINING and not lease.busy:
            self.move(lease, "joined")
            failed = [unit for unit in lease.units.values() if unit.state == mb.FAILED]
            if failed:
                missing = Reason(Code.UNITS_NOT_JOINED, units=len(failed), of=len(lease.units))
                lease.reason = missing.because(failed[0].reason)
            self._kernel.touch(lease)
            self._kernel.note(lease.id, "joined", lease.state, lease.state, lease.reason)
            for tell in self.all_joined:
                tell(lease)

    def check_left(self, lease: GuestLease) -> None:
        """Whether all have left a lease that is left."""
        if lease.join == mb.LEAVING and not lease.busy:
            for tell in self.all_left:
                tell(lease)

    def _erase(self, unit: GuestUnit) -> None:
        self._kernel.erase(unit)

    def clear(self, lease: GuestLease) -> None:
        """The lease has no units any more."""
        for unit in lease.units.values():
            self._erase(unit)
        lease.units = {}
