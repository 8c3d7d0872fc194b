"""What is the site's own fault, and no unit's: while its directory is down, or its pool full, a lease that has met that
waits with the units that it has been given (:mod:`leasekit.core.leases.outage`), and its guest is told why. Units are
torn down all the same.

Each lease finds out for itself. What one guest asks for may be all that is broken, and would hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from leasekit.actors.dispatch import query
from leasekit.actors.kernel import Kernel
from leasekit.actors.site.units import Units
from leasekit.actors.site.updates import LeaseUpdates
from leasekit.actors.site.waiting import DemandQueue
from leasekit.core.leases import authority as au
from leasekit.core.leases import outage as out
from leasekit.core.leases.outage import Outage
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.core.words import view

AGAIN_FIRST: Final[Duration] = 10 * SECOND
"""How long after setups were stopped one is tried; the wait doubles from there."""
AGAIN_LAST: Final[Duration] = 2 * MINUTE
"""The longest wait between two tries."""


@attrs.define(eq=False, slots=False)
class SiteOutages:
    """The leases of the site ``name`` whose setups are stopped."""

    _name: str
    _kernel: Kernel
    _demands: DemandQueue
    _units: Units
    _updates: LeaseUpdates
    by_lease: dict[str, Outage] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Outage, due_at=self._due_at, on_due=self._try)

    def stop(self, lease: SiteLease, unit: SiteUnit, reason: Reason) -> None:
        """A unit could not be set up by the site's fault: no more of its lease's are, until one can be."""
        outage = self.by_lease.get(lease.id)
        if outage is None:
            id_ = f"{unit.type}/{lease.id}"
            outage = self.by_lease[lease.id] = Outage(id_, reason, self._kernel.now, self._kernel.now + AGAIN_FIRST)
            self._kernel.note(outage.id, "outage", "", f"{out.STOPPED}/-", reason)
        elif outage.state == out.TRYING and outage.unit == unit.id:
            outage.tries += 1
            outage.reason = reason
            outage.again = self._kernel.now + min(AGAIN_LAST, AGAIN_FIRST << min(outage.tries, 20))
            self._kernel.fire(out.MACHINE, outage, "failed", reason)
        self._kernel.touch(outage)
        if unit.state == au.FREE:
            self._units.prepare(unit)
        else:
            self._tell_waiting(outage)

    def waits(self, unit: SiteUnit) -> bool:
        """Whether a unit is not to be set up yet."""
        outage = self.by_lease.get(unit.promised)
        if outage is None or (outage.state == out.TRYING and outage.unit == unit.id):
            return False
        outage.waiting[unit.id] = unit
        self._kernel.touch(outage)
        self._tell_waiting(outage)
        return True

    def _tell_waiting(self, outage: Outage) -> None:
        """Tell the lease's guest once why it waits."""
        lease = self._demands.leases[outage.lease]
        why = Reason(Code.OUTAGE, self._name, outage.type)
        if lease.reason is None or (lease.reason.code, lease.reason.what) != (why.code, why.what):
            lease.reason = why.because(outage.reason)
            self._kernel.touch(lease)
            self._updates.publish(lease, "waiting", 0)

    def _try(self, outage: Outage) -> None:
        """Set up the unit that waits the longest; nothing, if none does any more."""
        while outage.waiting and outage.state == out.STOPPED:
            unit = outage.waiting.pop(next(iter(outage.waiting)))
            if outage.holds_up(unit):
                outage.unit = unit.id
                self._kernel.fire(out.MACHINE, outage, "try", Reason(Code.UNIT, unit.id))
                self._units.prepare(unit)
        self._kernel.touch(outage)

    def unit_moved(self, unit: SiteUnit, event: str, before: str, why: Reason | None, done: ActionDone | None) -> None:
        """A unit that is tried was set up, or came to something else."""
        tried = (one for one in self.by_lease.values() if one.unit == unit.id and one.state == out.TRYING)
        outage = next(tried, None)
        if outage is None:
            return
        if event == "up":
            self._mended(outage)
        elif unit.state == au.OUT or (unit.state != au.SETUP and not unit.promised):
            outage.again = self._kernel.now
            self._kernel.fire(out.MACHINE, outage, "unclear", Reason(Code.UNIT, unit.id).because(why))

    def _mended(self, outage: Outage) -> None:
        self._end(outage, "mended")
        for unit in outage.waiting.values():
            if outage.holds_up(unit):
                self._units.prepare(unit)
        for other in self.by_lease.values():
            if other.type == outage.type and other.state == out.STOPPED:
                other.again = self._kernel.now
                self._kernel.touch(other)

    def _end(self, outage: Outage, event: str) -> None:
        self._kernel.fire(out.MACHINE, outage, event)
        del self.by_lease[outage.lease]
        self._kernel.erase(outage)

    def lease_settled(self, lease: SiteLease) -> None:
        """Nothing of the lease is held up any more if it is over, or waits for no unit."""
        if lease.id in self.by_lease and (lease.ended >= 0 or not lease.waiting):
            self._end(self.by_lease[lease.id], "gone")

    # -- time and state ----------------------------------------------------------------------------------------

    @staticmethod
    def _due_at(outage: Outage) -> Instant | None:
        return outage.again if outage.state == out.STOPPED and outage.waiting else None

    def load(self, rows: Iterable[Row]) -> None:
        """What was stopped stays so until it is tried again. Units are told apart by that as they are taken up."""
        self.by_lease = {outage.lease: outage for outage in map(Outage.from_row, rows)}

    def link(self) -> None:
        """After leases and units: which of these are held up."""
        for outage in self.by_lease.values():
            outage.waiting = {unit.id: unit for unit in self._units if outage.holds_up(unit)}
            self._kernel.schedule(outage, self._kernel.due_at(outage))

    # -- queries -----------------------------------------------------------------------------------------------

    @query("units")
    def _query_units(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = self._units.describe()
        for unit in found:
            outage = self.by_lease.get(self._units[unit["unit"]].promised)
            if outage is not None and unit["unit"] in outage.waiting:
                unit |= view(Reason(Code.WAITS_FOR_SITE).because(outage.reason))
        return found

    def describe(self) -> list[dict[str, Any]]:
        """Each as plain data for an operator."""
        names = ("type", "lease", "since", "again", "tries")
        return [
            {**{name: getattr(outage, name) for name in names}, **view(outage.reason)}
            for outage in self.by_lease.values()
        ]
