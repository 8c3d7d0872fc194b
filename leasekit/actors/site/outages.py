"""What is the site's own fault, and no unit's: while its directory is down, or its pool full, a lease that has met that
waits with the units that it has been given (:mod:`leasekit.core.leases.outage`), and its guest is told why. Units are
torn down all the same.

Each lease finds out for itself. What one guest asks for may be all that is broken, and would hold up the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leasekit.actors.site.leases import SiteLeases
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


class SiteOutages(SiteLeases):
    """A site that knows its own faults."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.outages: dict[str, Outage] = {}
        self.kernel.register(Outage, due_at=self._outage_due_at, on_due=self._try)
        self.units.moved += (self._held_up, self.saved.unit_moved)

    def stop_setups(self, lease: SiteLease, unit: SiteUnit, reason: Reason) -> None:
        """A unit could not be set up by the site's fault: no more of its lease's are, until one can be."""
        outage = self.outages.get(lease.id)
        if outage is None:
            id_ = f"{unit.type}/{lease.id}"
            outage = self.outages[lease.id] = Outage(id_, reason, self.kernel.now, self.kernel.now + AGAIN_FIRST)
            self.kernel.note(outage.id, "outage", "", f"{out.STOPPED}/-", reason)
        elif outage.state == out.TRYING and outage.unit == unit.id:
            outage.tries += 1
            outage.reason = reason
            outage.again = self.kernel.now + min(AGAIN_LAST, AGAIN_FIRST << min(outage.tries, 20))
            self.kernel.fire(out.MACHINE, outage, "failed", reason)
        self.kernel.touch(outage)
        if unit.state == au.FREE:
            self.units.prepare(unit)
        else:
            self._tell_waiting(outage)

    def _waits(self, unit: SiteUnit) -> bool:
        outage = self.outages.get(unit.promised)
        if outage is None or (outage.state == out.TRYING and outage.unit == unit.id):
            return False
        outage.waiting[unit.id] = unit
        self.kernel.touch(outage)
        self._tell_waiting(outage)
        return True

    def _tell_waiting(self, outage: Outage) -> None:
        """Tell the lease's guest once why it waits."""
        lease = self.leases[outage.lease]
        why = Reason(Code.OUTAGE, self.name, outage.type)
        if lease.reason is None or (lease.reason.code, lease.reason.what) != (why.code, why.what):
            lease.reason = why.because(outage.reason)
            self.kernel.touch(lease)
            self.updates.publish(lease, "waiting", 0)

    def _try(self, outage: Outage) -> None:
        """Set up the unit that waits the longest; nothing, if none does any more."""
        while outage.waiting and outage.state == out.STOPPED:
            unit = outage.waiting.pop(next(iter(outage.waiting)))
            if outage.holds_up(unit):
                outage.unit = unit.id
                self.kernel.fire(out.MACHINE, outage, "try", Reason(Code.UNIT, unit.id))
                self.units.prepare(unit)
        self.kernel.touch(outage)

    def _held_up(self, unit: SiteUnit, event: str, before: str, why: Reason | None, done: ActionDone | None) -> None:
        tried = (one for one in self.outages.values() if one.unit == unit.id and one.state == out.TRYING)
        outage = next(tried, None)
        if outage is None:
            return
        if event == "up":
            self._mended(outage)
        elif unit.state == au.OUT or (unit.state != au.SETUP and not unit.promised):
            outage.again = self.kernel.now
            self.kernel.fire(out.MACHINE, outage, "unclear", Reason(Code.UNIT, unit.id).because(why))

    def _mended(self, outage: Outage) -> None:
        self._end_outage(outage, "mended")
        for unit in outage.waiting.values():
            if outage.holds_up(unit):
                self.units.prepare(unit)
        for other in self.outages.values():
            if other.type == outage.type and other.state == out.STOPPED:
                other.again = self.kernel.now
                self.kernel.touch(other)

    def _end_outage(self, outage: Outage, event: str) -> None:
        self.kernel.fire(out.MACHINE, outage, event)
        del self.outages[outage.lease]
        self.kernel.erase(outage)

    def _check_primed(self, lease: SiteLease) -> None:
        super()._check_primed(lease)
        if not lease.waiting and lease.id in self.outages:
            self._end_outage(self.outages[lease.id], "gone")  # it gave up what was held up

    def _finish(self, lease: SiteLease, word: str) -> None:
        super()._finish(lease, word)
        if lease.id in self.outages:
            self._end_outage(self.outages[lease.id], "gone")

    # -- time and state ----------------------------------------------------------------------------------------

    @staticmethod
    def _outage_due_at(outage: Outage) -> Instant | None:
        return outage.again if outage.state == out.STOPPED and outage.waiting else None

    def restore_leases(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """As the layer below: what was stopped stays so until it is tried again."""
        kept = [Outage.from_row(row) for row in tables.get(Outage.table, ())]
        self.outages = {outage.lease: outage for outage in kept}
        super().restore_leases(tables)
        for outage in kept:
            outage.waiting = {unit.id: unit for unit in self.units if outage.holds_up(unit)}
            self.kernel.schedule(outage, self.kernel.due_at(outage))

    # -- queries -----------------------------------------------------------------------------------------------

    def _query_units(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = super()._query_units(arguments)
        for unit in found:
            outage = self.outages.get(self.units[unit["unit"]].promised)
            if outage is not None and unit["unit"] in outage.waiting:
                unit |= view(Reason(Code.WAITS_FOR_SITE).because(outage.reason))
        return found

    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = ("type", "lease", "since", "again", "tries")
        outages = [
            {**{name: getattr(outage, name) for name in names}, **view(outage.reason)}
            for outage in self.outages.values()
        ]
        return {**super()._query_status(arguments), "outages": outages}
