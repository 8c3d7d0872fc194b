"""How many units of each type are spoken for, over time, and how many there are: those in service, less what
maintenance windows take over their time.

From the moment that a window is announced its units are missing from the calendar over its time, and brokers are told
how many of what they hold they had better not grant then. When it begins its units go out of service (one that a
lease has, as soon as the lease gives it up; with ``close`` leases are ended for it), and when it ends they come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from leasekit.actors.issued import Issued, withheld_shares
from leasekit.actors.kernel import Kernel, command, query, shown
from leasekit.actors.served import Notices
from leasekit.actors.site.units import Inventory, Units
from leasekit.core.commands import AddMaintenance, RemoveMaintenance
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.relations import Delegation, Window
from leasekit.core.protocol.messages import Withhold
from leasekit.core.reasons import Code, Reason, clip, counted, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Timetable

TIDY_EVERY: Final = 256
"""After how many leases that are over calendars forget what is past."""


@attrs.define(eq=False, slots=False)
class Calendars:
    """A calendar for each type of units, and the windows over whose time units are missing in it."""

    _kernel: Kernel
    _inventory: Inventory
    _units: Units
    _look_again: Callable[[], None]
    """Have the mapper see that units are there again."""
    _tables: dict[str, Timetable] = attrs.field(factory=dict, init=False)
    windows: dict[str, Window] = attrs.field(factory=dict, init=False)
    _dips: dict[tuple[str, str], int] = attrs.field(factory=dict, init=False)
    _endings: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Window, due_at=lambda one: one.end if one.begun else one.start, on_due=self._due)
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

    def units_in(self, window: Window) -> Counter[str]:
        """How many units of each type a window has."""
        return Counter(unit.type for unit in self._units_of(window))

    def _units_of(self, window: Window) -> list[SiteUnit]:
        return [self._units[name] for name in window.units if name in self._units]

    def _dip(self, window: Window, type_: str, count: int) -> None:
        """Have ``count`` units missing in the calendar over what is left of the window."""
        more = self._dips.get((window.id, type_), 0) - count
        start = max(window.start, self._kernel.now)
        if more and start < window.end:
            self.of(type_).add_capacity(Term(start, window.end), more)
            self._dips[window.id, type_] = count

    def _taken_by(self, window: Window, type_: str) -> int:
        """How many units are out because of the window; or will be: all but those that are out for good."""
        passing = {retired_for(window)} if window.begun else {None, *map(retired_for, self.windows.values())}
        return sum(unit.type == type_ and unit.retire in passing for unit in self._units_of(window))

    def _missing(self, type_: str) -> int:
        """How many units, more than are in service, the calendar has beside what is missing in it for a while: units
        that are out of service come back at the end of a window, until which they are missing in the calendar.
        """
        windows = {retired_for(window) for window in self.windows.values() if window.begun}
        back = sum(unit.retire in windows for unit in self._units if unit.type == type_)
        running = [window for window in self.windows.values() if window.start <= self._kernel.now < window.end]
        return back - sum(self._dips.get((window.id, type_), 0) for window in running)

    # -- windows ---------------------------------------------------------------------------------------------

    def announce(self, names: Collection[str], type_: str, start: Instant, end: Instant, **more: Any) -> Window:
        """Announce a window over these units, or all of a type. Raises ``CommandError``."""
        chosen = self._chosen(names, type_)
        start = max(start, self._kernel.now)
        self._check_alone(chosen, start, end)
        window = Window(f"window-{self._kernel.next('serial')}", start, end, chosen, **more)
        self.windows[window.id] = window
        announced = said(f"{counted(len(chosen))} over [{mark(start)}, {mark(end)})").because(retired_for(window))
        self._kernel.note("", "maintenance", "", "", announced)
        self.count_all(window)
        return window

    def _chosen(self, names: Collection[str], type_: str) -> tuple[str, ...]:
        """The units that are meant: those named, else all of the type, else all there are. Raises ``CommandError``."""
        if type_ and type_ not in self._inventory.types:
            raise CommandError(f"type: found {type_!r}, there are {', '.join(self._inventory.types)}")
        for name in names:
            self._units.find(name)
        chosen = [u.id for u in self._units if (not names or u.id in names) and (not type_ or u.type == type_)]
        if not chosen:
            raise CommandError(f"units: none of {', '.join(names)} is of type {type_!r}")
        return tuple(chosen)

    def _check_alone(self, units: Sequence[str], start: Instant, end: Instant) -> None:
        """A unit is in one window at a time: the end of one would bring it back in another. Raises ``CommandError``."""
        for other in self.windows.values():
            shared = set(units) & set(other.units)
            if shared and start < other.end and other.start < end:
                raise CommandError(
                    f"units: {min(shared)} is in {other.id} already, over {marked((other.start, other.end))}: "
                    f"remove it first"
                )

    def whole_types(self, window: Window) -> set[str]:
        """The types of which a window has all units."""
        counts = self.units_in(window).items()
        return {type_ for type_, count in counts if count == self._inventory.total(type_)}

    def find(self, name: str) -> Window:
        """The window of that name. Raises ``CommandError``."""
        window = self.windows.get(name)
        if window is None:
            raise CommandError(f"window: found {name!r}, there are {', '.join(self.windows) or '(none)'}")
        return window

    def begin_window(self, window: Window) -> None:
        """Its units go out of service."""
        if window.begun:
            return
        window.begun = True
        for unit in self._units_of(window):
            if unit.state != au.OUT and not unit.retire:
                self._units.retire(unit.id, retired_for(window))
        self.count_all(window)
        self._kernel.touch(window)

    def end_window(self, window: Window) -> None:
        """Its units come back, but for those that another window has by now."""
        for unit in self._units_of(window) if window.begun else ():
            if unit.retire == retired_for(window):
                self._units.bring_back(unit.id)
                for other in self.windows.values():
                    if other.begun and other is not window and unit.id in other.units:  # it begins as this one ends
                        self._units.retire(unit.id, retired_for(other))
        for type_ in self.units_in(window):
            self._dip(window, type_, 0)
            self._dips.pop((window.id, type_), None)
        del self.windows[window.id]
        self.count_all(window)
        self._kernel.erase(window)
        self._look_again()

    def _due(self, window: Window) -> None:
        if window.end <= self._kernel.now:
            self.end_window(window)
        else:
            self.begin_window(window)

    def restore_windows(self, rows: Iterable[Row]) -> None:
        """After leases and units: a window takes from the calendars what they have."""
        for row in rows:
            window = Window.from_row(row)
            self.windows[window.id] = window
            self._kernel.schedule(window, window.end if window.begun else window.start)
        for type_ in self._inventory.types:
            self.count(type_)

    @query("maintenance")
    def _query_windows(self) -> list[dict[str, Any]]:
        fields = ("start", "end", "units", "reason", "begun")
        return [{"window": one.id, **shown(one, *fields)} for one in self.windows.values()]


def retired_for(window: Window) -> Reason:
    """Why a unit is out of service that a window has."""
    return Reason(Code.MAINTENANCE, window.id, until=window.end, detail=window.reason)


@attrs.define(eq=False)
class WithheldShares:
    """What brokers are told of windows."""

    _kernel: Kernel
    _inventory: Inventory
    _calendars: Calendars
    _issued: Issued
    _notices: Notices

    def tell(self, window: Window, *, give_back: bool, again: bool = False) -> None:
        """How many units of its delegation each broker had better not grant: its share of what the site can't spare of
        its own. ``again``: who has which share may be another by now, so that all hear it.
        """
        term = Term(window.start, window.end)
        for type_, count in self._calendars.units_in(window).items():
            held = [d for d in self._issued if d.type == type_ and d.state in (deleg.OFFERING, deleg.HELD)]
            told = withheld_shares(count, term, partial(self._spare, type_, held, window), held)
            for record in held:
                units = told.get(record.id, 0)
                if record.id in told and (units or give_back or again):
                    number = self._kernel.next("serial")
                    message = Withhold(record.id, number, window.id, 0 if give_back else units, term, window.reason)
                    self._notices.owe(f"{window.id}@{record.id}", record.peer, record.id, number, message, window.end)

    def _spare(self, type_: str, held: Sequence[Delegation], window: Window, part: Term) -> int:
        """The units that the site has given to nobody over ``part``, and that no other window takes."""
        given = sum(record.units for record in held if record.term.overlaps(part))
        others = (one for one in self._calendars.windows.values() if one is not window)
        taken = (self._calendars.units_in(one)[type_] for one in others if Term(one.start, one.end).overlaps(part))
        return self._inventory.total(type_) - given - sum(taken)

    def offer_taken(self, record: Delegation) -> None:
        """One that has just taken its delegation hears of the windows that there are."""
        for window in self._calendars.windows.values():
            self.tell(window, give_back=False, again=True)


@attrs.define(eq=False)
class Maintenance:
    """An operator's windows."""

    _kernel: Kernel
    _leases: Mapping[str, SiteLease]
    _end_at: Callable[[SiteLease, Instant, Reason | None], None]
    _calendars: Calendars
    _withheld: WithheldShares

    @command("maintenance.add")
    def _add(self, asked: AddMaintenance) -> dict[str, Any]:
        start, end = asked.start, asked.end
        if not max(start, self._kernel.now) < end <= INSTANT_MAX:
            raise CommandError(
                f"window: found {start!r:.40} to {end!r:.40}, it must end after it begins, later than "
                f"{mark(self._kernel.now)} and by {INSTANT_MAX}"
            )
        reason = clip(asked.reason or "maintenance")
        window = self._calendars.announce(asked.units, asked.type, start, end, reason=reason, close=asked.close)
        self._withheld.tell(window, give_back=False)
        if window.close:
            self._end_leases(window)
        if window.start <= self._kernel.now:
            self._calendars.begin_window(window)
        self._kernel.touch(window)
        return {"window": window.id, "units": list(window.units), "start": window.start, "end": end}

    @command("maintenance.remove")
    def _remove(self, asked: RemoveMaintenance) -> dict[str, Any]:
        window = self._calendars.find(asked.window)
        self._withheld.tell(window, give_back=True)
        self._calendars.end_window(window)
        return {"window": window.id}

    def _end_leases(self, window: Window) -> None:
        """Those that may have one of the window's units when it begins: all of a type if all of it goes."""
        gone = self._calendars.whole_types(window)
        for lease in list(self._leases.values()):
            if lease.term.start >= window.end or lease.ended >= 0:
                continue
            if lease.type in gone or set(lease.units) & set(window.units):
                self._end_at(lease, max(window.start, lease.term.start), retired_for(window))
