"""How many units of each type are spoken for, over time, and how many there are: those in service, less what
maintenance windows take over their time.

From the moment that a window is announced its units are missing from the calendar over its time, and brokers are told
how many of what they hold they had better not grant then. When it begins its units go out of service (one that a
lease has, as soon as the lease gives it up), and when it ends they come back. A window without an end drains its units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

import attrs

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.hosts import Places
from leasekit.actors.site.units import Units
from leasekit.core.claims.claim import Claim
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import SiteLease, SiteUnit, Window
from leasekit.core.reasons import Code, Reason, counted, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Shortfall, Timetable


@keeps(rows="windows", volatile="_tables", derived="_dips _endings _stand_ins _moved")
@attrs.define(eq=False, slots=False)
class Calendars:
    """A calendar for each type of units, by class, and the windows over whose time units are missing in it. Units that
    were of another class are in both as long as claims count them as that.
    """

    _kernel: Kernel
    units: Units
    _mark_dirty: Callable[[], None]
    """Have the mapper see that units are there again."""
    _makes_room: bool = False
    """Whether the mapper has preemptible leases leave a host for others."""
    places: Places = attrs.field(init=False)
    """Of divided types, on which hosts units are spoken for."""
    _tables: dict[str, ClassedTimetable] = attrs.field(factory=dict, init=False)
    windows: dict[str, Window] = attrs.field(factory=dict, init=False)
    _dips: dict[tuple[str, str, bytes], int] = attrs.field(factory=dict, init=False)
    _endings: int = attrs.field(default=0, init=False)
    _stand_ins: set[str] = attrs.field(factory=set, init=False)
    _moved: set[str] = attrs.field(factory=set, init=False)
    """Types of units to which something has happened since they were counted."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Window, due_at=_due_at, on_due=self._due)
        self.places = Places(self._kernel, self.units, self.is_out)
        self.reset()

    def reset(self) -> None:
        """Begin with the units that are in service, of all types that the settings name."""
        self.places.reset()
        self._stand_ins = set()
        for type_ in self.units.inventory.types:
            there = self._weigh(type_, self.units.in_service(type_))
            classes = dict.fromkeys((*self._weigh(type_, self.units.inventory.counts(type_)), *there))
            self._tables[type_] = ClassedTimetable({class_: Timetable(there[class_]) for class_ in classes})

    @property
    def from_now_on(self) -> Term:
        """All time that is to come."""
        return Term(self._kernel.now, INSTANT_MAX)

    def _weigh(self, type_: str, units: Counter[bytes]) -> Counter[bytes]:
        return self.units.inventory.weigh(type_, units)

    def is_out(self, unit: SiteUnit, term: Term) -> bool:
        """Whether a unit is out of service for a maintenance window at some time of a term."""
        return bool(self.windows) and any(
            unit.id in window.units and Term(window.start, window.end).overlaps(term)
            for window in self.windows.values()
        )

    def of(self, type_: str) -> ClassedTimetable:
        """How many units of a type are spoken for."""
        table = self._tables.get(type_)
        if table is None:  # leases may have one that is out of the inventory
            table = self._tables[type_] = ClassedTimetable({})
        return table

    # -- leases ------------------------------------------------------------------------------------------------

    def book(
        self, leaf: Claim, term: Term, near: Sequence[str] = (), leaving: Callable[[], Container[bytes]] | None = None
    ) -> None:
        """Book a claim over a term: its places on the hosts ``near``, as far as they are there; where there is none,
        and the mapper makes room, beside all but claims that are ``leaving``. Raises ``Shortfall``, with nothing
        changed.
        """
        table = self.of(leaf.type)
        table.reserve(leaf.digest, leaf.weights, term)
        self._plan(leaf, term, near, leaving if self._makes_room else None)

    def _plan(
        self, leaf: Claim, term: Term, near: Sequence[str], leaving: Callable[[], Container[bytes]] | None = None
    ) -> None:
        try:
            self.places.book(leaf, term, near, leaving)
        except Shortfall:
            self.of(leaf.type).release(leaf.digest)
            raise

    def replace(self, lease: SiteLease, leaf: Claim, term: Term, near: Sequence[str] = ()) -> None:
        """Book a claim in place of the rest of the lease's own. Raises ``Shortfall``, with nothing changed."""
        self.of(lease.type).replace(lease.claim, leaf.digest, leaf.weights, term)
        self.places.end(lease.claim, term.start)
        try:
            self._plan(leaf, term, near)
        except Shortfall:
            self.book_again(lease)
            raise

    def kept_places(self, lease: SiteLease, victims: Sequence[str]) -> list[str]:
        """The hosts on which a lease goes on that gives up some of its units."""
        places = list(lease.places)
        for name in victims:
            host = self.units[name].host or name if name in self.units else ""
            if host in places:
                places.remove(host)
        return places

    def end(self, lease: SiteLease, at: Instant) -> None:
        """Free the lease's current claim from ``at`` on."""
        self.end_claim(lease.type, lease.claim, at)

    def end_claim(self, type_: str, claim: bytes, at: Instant) -> None:
        """Free a claim from ``at`` on."""
        self.of(type_).end(claim, at)
        self.places.end(claim, at, over=at <= self._kernel.now)

    def release(self, lease: SiteLease, claim: bytes) -> None:
        """Free all of a claim of the lease."""
        table = self.of(lease.type)
        if claim in table:
            table.release(claim)
        self.places.release(claim)

    def stand_in(self, unit: SiteUnit) -> None:
        """A unit of one class is given as one of another, of which there was none: its own class lacks it."""
        table, key = self.of(unit.type), f"for {unit.id}"
        self._stand_ins.add(unit.id)
        if key in table:
            table.release(key)
        lacks = tuple(self._weigh(unit.type, Counter({unit.classes[0]: 1})).items())
        table.reserve(key, lacks, self.from_now_on, force=True)

    def unit_moved(self, unit: SiteUnit, *_: object) -> None:
        """A unit that has left its lease stands in for none."""
        if not unit.host:
            self._moved.add(unit.type)
        if unit.id in self._stand_ins and not unit.promised and not unit.is_in_use:
            self._stand_ins.remove(unit.id)
            self.of(unit.type).end(f"for {unit.id}", self._kernel.now)

    def count_ended(self) -> None:
        """Another lease is over: from time to time what is past is forgotten."""
        self._endings += 1
        if self._endings % self._kernel.tidy_every == 0:
            for table in self._tables.values():
                table.forget_before(self._kernel.now)
            self.places.forget_before(self._kernel.now)

    def book_again(self, lease: SiteLease) -> None:
        """A modify of it is refused after all: its claim is booked as it was."""
        table = self.of(lease.type)
        end = lease.term.end if lease.terminates_at < 0 else min(lease.terminates_at, lease.term.end)
        if end > max(self._kernel.now, lease.term.start):
            if lease.claim in table:
                table.release(lease.claim)
            table.reserve(lease.claim, lease.weights, Term(lease.term.start, end), force=True)
            self.places.release(lease.claim)
            self.places.restore(lease.claim, lease.places, lease.classes, lease.sizes, Term(lease.term.start, end))

    def restore(self, lease: SiteLease) -> None:
        """Book what a lease had before a restart."""
        if lease.is_torn_down or not lease.type:
            return
        table, units = self.of(lease.type), [self.units[name] for name in lease.units]
        for unit in units:
            if unit.given_as not in unit.classes:
                self.stand_in(unit)
        table.reserve(lease.claim, lease.weights, lease.term, force=True)
        self.places.restore(lease.claim, lease.places, lease.classes, lease.sizes, lease.term)
        for later in lease.accepted:
            if later.term.start < lease.term.end:
                self.end(lease, later.term.start)
            table.reserve(later.claim, later.weights, later.term, force=True)
            self.places.restore(later.claim, later.places, later.classes, later.sizes, later.term)
        for claim in (lease.claim, *(later.claim for later in lease.accepted)) if lease.terminates_at >= 0 else ():
            self.end_claim(lease.type, claim, lease.terminates_at)

    # -- units, and windows ------------------------------------------------------------------------------------

    def count(self, type_: str) -> None:
        """Make the calendar's capacity, from now on, the number of units of each class that are in service. Over the
        time of a window its units are missing: those that would be there without it.
        """
        self._moved.discard(type_)
        for window in self.windows.values():
            self._dip(window, type_, self._weigh(type_, self._taken_by(window, type_)))
        self.places.note_changed()
        table, there = self.of(type_), self._weigh(type_, self.units.in_service(type_))
        there.update(self._missing(type_))
        for class_ in {*table.tables, *there}:
            of_class = table.open(class_)
            more = there[class_] - of_class.capacity_at(self._kernel.now)
            if more:
                of_class.add_capacity(self.from_now_on, more)

    def count_moved(self, type_: str) -> None:
        """As :meth:`count`, if anything has happened to a unit of the inventory."""
        if type_ in self._moved:
            self.count(type_)

    def count_all(self, window: Window) -> None:
        """As :meth:`count`, of all types that a window has units of."""
        for type_ in self.units_in(window):
            self.count(type_)

    def units_in(self, window: Window) -> Counter[str]:
        """How many units of each type a window has."""
        return Counter(unit.type for unit in self._units_of(window))

    def classes_in(self, window: Window, type_: str) -> Counter[bytes]:
        """How many units of each class of a type a window has."""
        return _classes(unit for unit in self._units_of(window) if unit.type == type_)

    def classes_of(self, type_: str) -> Counter[bytes]:
        """How many units of each class of a type there are, in service or not."""
        return _classes(unit for unit in self.units if unit.type == type_)

    def _units_of(self, window: Window) -> list[SiteUnit]:
        return [self.units[name] for name in window.units if name in self.units]

    def _dip(self, window: Window, type_: str, missing: Counter[bytes]) -> None:
        """Have units missing in the calendar over what is left of the window."""
        start, table = max(window.start, self._kernel.now), self.of(type_)
        for class_ in {*table.tables, *missing}:
            key, count = (window.id, type_, class_), missing[class_]
            more = self._dips.get(key, 0) - count
            if more and start < window.end:
                table.open(class_).add_capacity(Term(start, window.end), more)
                self._dips[key] = count

    def _taken_by(self, window: Window, type_: str) -> Counter[bytes]:
        """How many units are out because of the window; or will be: all but those that are out for good."""
        passing = {retired_for(window)} if window.begun else {None, *map(retired_for, self.windows.values())}
        return _classes(one for one in self._units_of(window) if one.type == type_ and one.retire in passing)

    def _missing(self, type_: str) -> Counter[bytes]:
        """How many units, more than are in service, the calendar has beside what is missing in it for a while: units
        that are out of service come back at the end of a window, until which they are missing in the calendar.
        """
        windows = {retired_for(window) for window in self.windows.values() if window.begun}
        out = _classes(one for one in (self.units if windows else ()) if one.type == type_ and one.retire in windows)
        found = self._weigh(type_, out)
        for window in self.windows.values():
            if window.start <= self._kernel.now < window.end:
                classes = self.of(type_).tables
                found.subtract({class_: self._dips.get((window.id, type_, class_), 0) for class_ in classes})
        return found

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
        if type_ and type_ not in self.units.inventory.types:
            raise CommandError(f"type: found {type_!r}, there are {', '.join(self.units.inventory.types)}")
        for name in names:
            self.units.find(name)
        chosen = [u.id for u in self.units if (not names or u.id in names) and (not type_ or u.type == type_)]
        if not chosen:
            raise CommandError(f"units: none of {', '.join(names)} is of type {type_!r}")
        return tuple(chosen)

    def _check_alone(self, units: Sequence[str], start: Instant, end: Instant) -> None:
        """A unit is in one window at a time: the end of one would bring it back in another. Raises ``CommandError``."""
        for other in self.windows.values():
            shared = set(units) & set(other.units)
            if shared and start < other.end and other.start < end:
                how = "drained" if other.is_open else f"out over {marked((other.start, other.end))}"
                raise CommandError(f"units: {min(shared)} is {how} already ({other.id}): remove that window first")

    def whole_types(self, window: Window) -> set[str]:
        """The types of which a window has all units."""
        counts = self.units_in(window).items()
        return {type_ for type_, count in counts if count == self.units.inventory.total(type_)}

    def begin_window(self, window: Window) -> None:
        """Its units go out of service."""
        if window.begun:
            return
        window.begun = True
        self._take_out(window, self._units_of(window))
        self._kernel.touch(window)

    def keep_out(self, back: Iterable[SiteUnit]) -> None:
        """Units that the settings name again stay out of service as long as a window has them."""
        there = [unit for unit in back if unit.id in self.units.inventory]
        for window in self.windows.values() if there else ():
            if window.begun:
                self._take_out(window, [unit for unit in there if unit.id in window.units])

    def _take_out(self, window: Window, units: Iterable[SiteUnit]) -> None:
        for unit in units:
            if not unit.is_out and not unit.retire:
                self.units.retire(unit.id, retired_for(window))
        self.count_all(window)

    def end_window(self, window: Window) -> None:
        """Its units come back, but for those that another window has by now."""
        for unit in self._units_of(window) if window.begun else ():
            if unit.retire == retired_for(window):
                self.units.bring_back(unit.id)
                for other in self.windows.values():
                    if other.begun and other is not window and unit.id in other.units:  # it begins as this one ends
                        self.units.retire(unit.id, retired_for(other))
        for type_ in self.units_in(window):
            self._dip(window, type_, Counter())
            for class_ in self.of(type_).tables:
                self._dips.pop((window.id, type_, class_), None)
        del self.windows[window.id]
        self.count_all(window)
        self._kernel.erase(window)
        self._mark_dirty()

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
            self._kernel.schedule(window, _due_at(window))
        for type_ in self.units.inventory.types:
            self.count(type_)


def _classes(units: Iterable[SiteUnit]) -> Counter[bytes]:
    return Counter(class_ for unit in units for class_ in unit.classes)


def retired_for(window: Window) -> Reason:
    """Why a unit is out of service that a window has."""
    if window.is_open:
        return Reason(Code.DRAINED, window.id, detail=window.reason)
    return Reason(Code.MAINTENANCE, window.id, until=window.end, detail=window.reason)


def _due_at(window: Window) -> Instant | None:
    if not window.begun:
        return window.start
    return None if window.is_open else window.end
