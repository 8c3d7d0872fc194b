"""Membership: units of a guest's leases join its application and leave it again.

Each unit has one action at a time, under a number; the end of an older action changes nothing. A unit whose join
fails stays in the lease, marked, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from leasekit.actors.kernel import Kernel
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, GuestUnit
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import UnitState
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone

WAITING, UNIT_JOINING, UNIT_JOINED, UNIT_LEAVING, LEFT, UNIT_FAILED = (
    "waiting", "joining", "joined", "leaving", "left", "failed",
)  # fmt: skip
BUSY = (UNIT_JOINING, UNIT_LEAVING)


class Membership:
    """The units of a guest's ``leases``. ``all_joined`` and ``all_left`` are told of a lease that has come so far."""

    def __init__(
        self,
        kernel: Kernel,
        leases: Mapping[str, GuestLease],
        all_joined: Callable[[GuestLease], None],
        all_left: Callable[[GuestLease], None],
    ) -> None:
        self._kernel = kernel
        self._leases = leases
        self._all_joined = all_joined
        self._all_left = all_left
        kernel.register(GuestUnit)

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
                if unit.state in BUSY:
                    self._act(lease, unit, "join" if unit.state == UNIT_JOINING else "leave", unit.action)

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
                unit = lease.units[name] = GuestUnit(f"{lease.id}/{name}", lease.id, name, lease.type)
            elif unit.properties == state.properties and unit.state != LEFT:
                continue
            if unit.state == LEFT:
                unit.state = WAITING
            unit.properties = state.properties
            self._kernel.touch(unit)
        self.check_left(lease)

    def join(self, lease: GuestLease) -> None:
        """Join all units that wait; tells :meth:`_all_joined` at once if none does."""
        lease.join = sm.JOINING
        for unit in lease.units.values():
            if unit.state == WAITING:
                unit.state = UNIT_JOINING
                self._act(lease, unit, "join", self._kernel.next("action"))
        self._check_joined(lease)

    def leave(self, lease: GuestLease, names: Iterable[str]) -> None:
        """Let the named units leave; those that never joined have left already."""
        for name in names:
            unit = lease.units.get(name)
            if unit is None or unit.state in (UNIT_LEAVING, LEFT):
                continue
            if unit.state == WAITING:
                unit.state = LEFT
                self._kernel.touch(unit)
            else:
                unit.state = UNIT_LEAVING
                self._act(lease, unit, "leave", self._kernel.next("action"))

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
        predecessor = self._leases.get(lease.join_predecessor) if lease.join_predecessor else None
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
        if unit.state == UNIT_JOINING:
            unit.state = UNIT_JOINED if done.ok else UNIT_FAILED
            unit.reason = "" if done.ok else f"join failed: {done.reason}"
            if done.ok and done.properties:
                unit.properties = {**unit.properties, **done.properties}
            self._kernel.touch(unit)
            self._check_joined(lease)
        elif unit.state == UNIT_LEAVING:
            self._has_left(lease, unit, "" if done.ok else f"leave failed: {done.reason}")

    def _has_left(self, lease: GuestLease, unit: GuestUnit, reason: str) -> None:
        """A leave has ended. A victim that its site has spared meanwhile, as others failed, joins anew."""
        spared = lease.join in (sm.JOINING, sm.JOINED) and unit.name not in lease.leaving
        unit.state, unit.reason = WAITING if spared else LEFT, reason
        self._kernel.touch(unit)
        if spared:
            self.join(lease)
        self._check_joined(lease)
        self.check_left(lease)

    def _check_joined(self, lease: GuestLease) -> None:
        if lease.join == sm.JOINING and not lease.busy:
            lease.join = sm.JOINED
            failed = [unit for unit in lease.units.values() if unit.state == UNIT_FAILED]
            if failed:
                lease.reason = f"{len(failed)} of {len(lease.units)} units did not join: {failed[0].reason}"
            self._kernel.touch(lease)
            self._all_joined(lease)

    def check_left(self, lease: GuestLease) -> None:
        """Whether all have left a lease that is left."""
        if lease.join == sm.LEAVING and not lease.busy:
            self._all_left(lease)

    def _erase(self, unit: GuestUnit) -> None:
        self._kernel.erase(unit)

    def clear(self, lease: GuestLease) -> None:
        """The lease has no units any more."""
        for unit in lease.units.values():
            self._erase(unit)
        lease.units = {}
