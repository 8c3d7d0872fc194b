"""How many units of each type are spoken for, over time, and how many there are: those in service, less what
maintenance windows take over their time.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.units import Units
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease
from leasekit.core.leases.relations import Window
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Timetable

TIDY_EVERY: Final = 256
"""After how many leases that are over calendars forget what is past."""


class Calendars:
    """A calendar for each type of units, and the windows over whose time units are missing in it."""

    def __init__(self, kernel: Kernel, inventory: Inventory, units: Units) -> None:
        self._kernel = kernel
        self._inventory = inventory
        self._units = units
        self._tables: dict[str, Timetable] = {}
        self.windows: dict[str, Window] = {}
        self._dips: dict[tuple[str, str], int] = {}
        self._endings = 0
        self.reset()

    def reset(self) -> None:
        """Begin with the units that are in service, of all types that the settings name."""
        for type_ in self._inventory.types:
            self._tables[type_] = Timetable(self._units.in_service(type_))

    def of(self, type_: str) -> Timetable:
        """How many units of a type are spoken for."""
        return self._tables.setdefault(type_, Timetable(0))  # leases may have one that is out of the inventory

    # -- leases ------------------------------------------------------------------------------------------------

    def end(self, lease: SiteLease, at: Instant) -> None:
        """Free the lease's current claim from ``at`` on."""
        self.of(lease.type).end(lease.claim, at)

    def release(self, lease: SiteLease, claim: bytes) -> None:
        """Free all of a claim of the lease."""
        table = self.of(lease.type)
        if claim in table:
            table.release(claim)

    def count_ended(self) -> None:
        """Another lease is over: from time to time what is past is forgotten."""
        self._endings += 1
        if self._endings % TIDY_EVERY == 0:
            for table in self._tables.values():
                table.forget_before(self._kernel.now)

    def book_again(self, lease: SiteLease) -> None:
        """A modify of it is refused after all: its claim is booked as it was."""
        table = self.of(lease.type)
        end = lease.term.end if lease.noticed < 0 else min(lease.noticed, lease.term.end)
        if end > max(self._kernel.now, lease.term.start):
            if lease.claim in table:
                table.release(lease.claim)
            table.reserve(lease.claim, lease.wanted, Term(lease.term.start, end), force=True)

    def restore(self, lease: SiteLease) -> None:
        """Book what a lease had before a restart."""
        if lease.pending == au.CLOSING or not lease.type:
            return
        table = self.of(lease.type)
        table.reserve(lease.claim, lease.wanted, lease.term, force=True)
        for later in lease.accepted:
            if later.term.start < lease.term.end:
                table.change(lease.claim, term=Term(lease.term.start, later.term.start))
            table.reserve(later.claim, later.units, later.term, force=True)
        for claim in (lease.claim, *(later.claim for later in lease.accepted)) if lease.noticed >= 0 else ():
            table.end(claim, lease.noticed)

    # -- units, and windows ------------------------------------------------------------------------------------

    def count(self, type_: str) -> None:
        """Make the calendar's capacity, from now on, the number of units that are in service. Over the time of a window
        its units are missing: those that would be there without it.
        """
        for window in self.windows.values():
            self._dip(window, type_, self._taken_by(window, type_))
        table = self.of(type_)
        more = self._units.in_service(type_) + self._missing(type_) - table.capacity_at(self._kernel.now)
        if more:
            table.add_capacity(Term(self._kernel.now, INSTANT_MAX), more)

    def count_all(self, window: Window) -> None:
        """As :meth:`count`, of all types that a window has units of."""
        for type_ in self.units_in(window):
            self.count(type_)

    def add(self, window: Window) -> None:
        """There is a window, over whose time its units are missing from the next :meth:`count` on."""
        self.windows[window.id] = window

    def remove(self, window: Window) -> None:
        """A window is no more: nothing is missing because of it."""
        for type_ in self.units_in(window):
            self._dip(window, type_, 0)
            self._dips.pop((window.id, type_), None)
        del self.windows[window.id]

    def units_in(self, window: Window) -> dict[str, int]:
        """How many units of each type a window has."""
        counts: dict[str, int] = {}
        for name in window.units:
            if name in self._units:
                type_ = self._units[name].type
                counts[type_] = counts.get(type_, 0) + 1
        return counts

    def _dip(self, window: Window, type_: str, count: int) -> None:
        """Have ``count`` units missing in the calendar over what is left of the window."""
        more = self._dips.get((window.id, type_), 0) - count
        start = max(window.start, self._kernel.now)
        if more and start < window.end:
            self.of(type_).add_capacity(Term(start, window.end), more)
            self._dips[window.id, type_] = count

    def _taken_by(self, window: Window, type_: str) -> int:
        """How many units are out because of the window; or will be: all but those that are out for good."""
        units = [self._units[name] for name in window.units if name in self._units and self._units[name].type == type_]
        if window.begun:
            return sum(unit.retire == retired_for(window) for unit in units)
        passing = {None, *map(retired_for, self.windows.values())}
        return sum(unit.retire in passing for unit in units)

    def _missing(self, type_: str) -> int:
        """How many units, more than are in service, the calendar has beside what is missing in it for a while: units
        that are out of service come back at the end of a window, until which they are missing in the calendar.
        """
        windows = {retired_for(window) for window in self.windows.values() if window.begun}
        back = sum(unit.retire in windows for unit in self._units if unit.type == type_)
        running = [window for window in self.windows.values() if window.start <= self._kernel.now < window.end]
        return back - sum(self._dips.get((window.id, type_), 0) for window in running)


def retired_for(window: Window) -> Reason:
    """Why a unit is out of service that a window has."""
    return Reason(Code.MAINTENANCE, window.id, until=window.end, detail=window.reason)
