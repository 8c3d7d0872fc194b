"""Maintenance windows of a site: units that nobody gets for a while.

From the moment that a window is announced its units are missing from the calendar over its time, and brokers are told
how many of what they hold they had better not grant then. When it begins its units go out of service (one that a
lease has, as soon as the lease gives it up; with ``close`` leases are ended for it), and when it ends they come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from leasekit.actors.dispatch import command, query
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.notices import Notices
from leasekit.actors.shares import withheld_shares
from leasekit.actors.site.calendars import Calendars, retired_for
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.leases import SiteLeases
from leasekit.actors.site.units import Units
from leasekit.actors.site.waiting import DemandQueue
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, Window
from leasekit.core.protocol.messages import Withhold
from leasekit.core.reasons import clip, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.words import counted


@attrs.define(eq=False)
class Windows:
    """The units of each window, from its announcement to its end."""

    _kernel: Kernel
    _inventory: Inventory
    _units: Units
    _calendars: Calendars
    _demands: DemandQueue

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Window, due_at=lambda one: one.end if one.begun else one.start, on_due=self._due)

    def add(self, names: Collection[str], type_: str, start: Instant, end: Instant, **more: Any) -> Window:
        """Announce a window over these units, or all of a type. Raises ``CommandError``."""
        chosen = self._chosen(names, type_)
        start = max(start, self._kernel.now)
        self._check_alone(chosen, start, end)
        window = Window(f"window-{self._kernel.next('serial')}", start, end, chosen, **more)
        self._calendars.add(window)
        announced = said(f"{counted(len(chosen))} over [{mark(start)}, {mark(end)})").because(retired_for(window))
        self._kernel.note("", "maintenance", "", "", announced)
        self._calendars.count_all(window)
        return window

    def _chosen(self, names: Collection[str], type_: str) -> tuple[str, ...]:
        """The units that are meant: those named, else all of the type, else all there are. Raises ``CommandError``."""
        if type_ and type_ not in self._inventory.types:
            raise CommandError(f"type: found {type_!r}, there are {', '.join(self._inventory.types)}")
        for name in names:
            if name not in self._units:
                raise CommandError(f"no unit {name!r} here; `leasekit site units` shows those there are")
        chosen = [u.id for u in self._units if (not names or u.id in names) and (not type_ or u.type == type_)]
        if not chosen:
            raise CommandError(f"units: none of {', '.join(names)} is of type {type_!r}")
        return tuple(chosen)

    def _check_alone(self, units: Sequence[str], start: Instant, end: Instant) -> None:
        """A unit is in one window at a time: the end of one would bring it back in another. Raises ``CommandError``."""
        for other in self._calendars.windows.values():
            shared = set(units) & set(other.units)
            if shared and start < other.end and other.start < end:
                raise CommandError(
                    f"units: {min(shared)} is in {other.id} already, over {marked((other.start, other.end))}: "
                    f"remove it first"
                )

    def whole_types(self, window: Window) -> set[str]:
        """The types of which a window has all units."""
        counts = self._calendars.units_in(window).items()
        return {type_ for type_, count in counts if count == self._inventory.total(type_)}

    def find(self, name: str) -> Window:
        """The window of that name. Raises ``CommandError``."""
        window = self._calendars.windows.get(name)
        if window is None:
            raise CommandError(f"window: found {name!r}, there are {', '.join(self._calendars.windows) or '(none)'}")
        return window

    def begin(self, window: Window) -> None:
        """Its units go out of service."""
        if window.begun:
            return
        window.begun = True
        for name in window.units:
            if name in self._units and self._units[name].state != au.OUT and not self._units[name].retire:
                self._units.retire(name, retired_for(window))
        self._calendars.count_all(window)
        self._kernel.touch(window)

    def end(self, window: Window) -> None:
        """Its units come back, but for those that another window has by now."""
        for name in window.units if window.begun else ():
            if name in self._units and self._units[name].retire == retired_for(window):
                self._units.bring_back(name)
                following = [one for one in self._calendars.windows.values() if one.begun and one is not window]
                for other in following:  # it begins as this one ends
                    if name in other.units:
                        self._units.retire(name, retired_for(other))
        self._calendars.remove(window)
        self._calendars.count_all(window)
        self._kernel.erase(window)
        self._demands.look_again()

    def _due(self, window: Window) -> None:
        if window.end <= self._kernel.now:
            self.end(window)
        else:
            self.begin(window)

    def restore(self, rows: Iterable[Row]) -> None:
        """After leases and units: a window takes from the calendars what they have."""
        for row in rows:
            window = Window.from_row(row)
            self._calendars.add(window)
            self._kernel.schedule(window, window.end if window.begun else window.start)
        for type_ in self._inventory.types:
            self._calendars.count(type_)

    @query("maintenance")
    def _query_windows(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "window": one.id,
                "start": one.start,
                "end": one.end,
                "units": list(one.units),
                "reason": one.reason,
                "begun": one.begun,
            }
            for one in self._calendars.windows.values()
        ]


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
        others = [
            one
            for one in self._calendars.windows.values()
            if one is not window and Term(one.start, one.end).overlaps(part)
        ]
        return self._inventory.total(type_) - given - sum(self._calendars.units_in(one).get(type_, 0) for one in others)

    def offer_taken(self, record: Delegation) -> None:
        """One that has just taken its delegation hears of the windows that there are."""
        for window in self._calendars.windows.values():
            self.tell(window, give_back=False, again=True)


@attrs.define(eq=False)
class Maintenance:
    """An operator's windows."""

    _kernel: Kernel
    _leases: SiteLeases
    _windows: Windows
    _withheld: WithheldShares

    @command("maintenance.add")
    def _add(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        named = arguments.get("units") or ()
        if not isinstance(named, (list, tuple)):
            raise CommandError(f"units: found {named!r:.80}, expected a list of names")
        names = tuple(map(str, named))
        type_, reason = str(arguments.get("type") or ""), str(arguments.get("reason") or "maintenance")
        start, end = arguments.get("start"), arguments.get("end")
        if type(start) is not int or type(end) is not int or not max(start, self._kernel.now) < end <= INSTANT_MAX:
            raise CommandError(
                f"window: found {start!r:.40} to {end!r:.40}, it must end after it begins, later than "
                f"{mark(self._kernel.now)} and by {INSTANT_MAX}"
            )
        close = bool(arguments.get("close", False))
        window = self._windows.add(names, type_, start, end, reason=clip(reason), close=close)
        self._withheld.tell(window, give_back=False)
        if window.close:
            self._end_leases(window)
        if window.start <= self._kernel.now:
            self._windows.begin(window)
        self._kernel.touch(window)
        return {"window": window.id, "units": list(window.units), "start": window.start, "end": end}

    @command("maintenance.remove")
    def _remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        window = self._windows.find(str(arguments.get("window", "")))
        self._withheld.tell(window, give_back=True)
        self._windows.end(window)
        return {"window": window.id}

    def _end_leases(self, window: Window) -> None:
        """Those that may have one of the window's units when it begins: all of a type if all of it goes."""
        gone = self._windows.whole_types(window)
        for lease in list(self._leases.by_id.values()):
            if lease.term.start >= window.end or lease.ended >= 0:
                continue
            if lease.type in gone or set(lease.units) & set(window.units):
                self._leases.notice(lease, max(window.start, lease.term.start), retired_for(window))
