"""What a site shows of who has which of its units when."""

from __future__ import annotations

import attrs

from leasekit.actors.kernel import Kernel, query
from leasekit.actors.site.leases import SiteLeases
from leasekit.actors.site.units import Units
from leasekit.core.answers import describe_counts
from leasekit.core.calendars import ActorCalendar, CalendarEntry, CalendarUnit
from leasekit.core.commands import ShowCalendar
from leasekit.core.leases.records import SiteLease
from leasekit.core.reasons import words
from leasekit.core.time import Term


@attrs.define(eq=False)
class SiteCalendar:
    """Shows the leases at a site, and its units. ``name`` is the site's."""

    name: str
    _kernel: Kernel
    _leases: SiteLeases
    _units: Units

    @query("calendar")
    def show(self, asked: ShowCalendar) -> ActorCalendar:
        """Leases that have a part of the time, each with its units, and all units."""
        window, revision = asked.term, self._kernel.revision
        if asked.known == revision or asked.site not in ("", self.name):
            return ActorCalendar(revision)
        entries = [
            self._entry(lease)
            for lease in self._leases.by_id.values()
            if lease.type and asked.type in ("", lease.type) and Term(lease.term.start, lease.ends_at).overlaps(window)
        ]
        units = [
            CalendarUnit(unit.id, unit.type, unit.classes[0].hex(), unit.state, words(unit.reason or unit.retire))
            for unit in self._units
            if unit.classes and asked.type in ("", unit.type)
        ]
        return ActorCalendar(revision, entries, units=units)

    def _entry(self, lease: SiteLease) -> CalendarEntry:
        return CalendarEntry(
            lease.id, lease.holder, self.name, lease.type, lease.state, lease.wanted, lease.term.start, lease.ends_at,
            classes=describe_counts(lease.classes), on=list(lease.places or lease.units),
        )  # fmt: skip
