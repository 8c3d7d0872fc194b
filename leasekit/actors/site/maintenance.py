"""Maintenance windows of a site: units that nobody gets for a while.

From the moment that a window is announced its units are missing from the calendar over its time, and brokers are told
how many of what they hold they had better not grant then. When it begins its units go out of service (one that a
lease has, as soon as the lease gives it up; with ``close`` leases are ended for it), and when it ends they come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from leasekit.actors.dispatch import command, query
from leasekit.actors.shares import withheld_shares
from leasekit.actors.site.calendars import retired_for
from leasekit.actors.site.failures import SiteFailures
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, Window
from leasekit.core.protocol.messages import Withhold
from leasekit.core.reasons import clip, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.words import counted

REASON_MAX = 1000


class SiteMaintenance(SiteFailures):
    """A site's maintenance windows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kernel.register(Window, due_at=lambda one: one.end if one.begun else one.start, on_due=self._window_due)

    # -- announcing --------------------------------------------------------------------------------------------

    @command("maintenance.add")
    def _add_window(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        named = arguments.get("units") or ()
        if not isinstance(named, (list, tuple)):
            raise CommandError(f"units: found {named!r:.80}, expected a list of names")
        names = tuple(map(str, named))
        type_, reason = str(arguments.get("type") or ""), str(arguments.get("reason") or "maintenance")
        start, end = arguments.get("start"), arguments.get("end")
        if type(start) is not int or type(end) is not int or not max(start, self.kernel.now) < end <= INSTANT_MAX:
            raise CommandError(
                f"window: found {start!r:.40} to {end!r:.40}, it must end after it begins, later than "
                f"{mark(self.kernel.now)} and by {INSTANT_MAX}"
            )
        chosen = self._chosen(names, type_)
        self._check_alone(chosen, max(start, self.kernel.now), end)
        window = Window(
            f"window-{self.kernel.next('serial')}", max(start, self.kernel.now), end, chosen, clip(reason),
            bool(arguments.get("close", False)),
        )  # fmt: skip
        self.calendars.add(window)
        self.kernel.note(
            "",
            "maintenance",
            "",
            "",
            said(f"{counted(len(chosen))} over [{mark(start)}, {mark(end)})").because(retired_for(window)),
        )
        self.calendars.count_all(window)
        self._tell_brokers(window, give_back=False)
        if window.close:
            self._notice_leases(window)
        if window.start <= self.kernel.now:
            self._begin(window)
        self.kernel.touch(window)
        return {"window": window.id, "units": list(chosen), "start": window.start, "end": end}

    def _chosen(self, names: Sequence[str], type_: str) -> tuple[str, ...]:
        """The units that are meant: those named, else all of the type, else all there are. Raises ``CommandError``."""
        if type_ and type_ not in self.inventory.types:
            raise CommandError(f"type: found {type_!r}, there are {', '.join(self.inventory.types)}")
        for name in names:
            if name not in self.units:
                raise CommandError(f"no unit {name!r} here; `leasekit site units` shows those there are")
        chosen = [u.id for u in self.units if (not names or u.id in names) and (not type_ or u.type == type_)]
        if not chosen:
            raise CommandError(f"units: none of {', '.join(names)} is of type {type_!r}")
        return tuple(chosen)

    def _check_alone(self, units: Sequence[str], start: Instant, end: Instant) -> None:
        """A unit is in one window at a time: the end of one would bring it back in another. Raises ``CommandError``."""
        for other in self.calendars.windows.values():
            shared = set(units) & set(other.units)
            if shared and start < other.end and other.start < end:
                raise CommandError(
                    f"units: {min(shared)} is in {other.id} already, over {marked((other.start, other.end))}: "
                    f"remove it first"
                )

    @command("maintenance.remove")
    def _remove_window(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        window = self.calendars.windows.get(str(arguments.get("window", "")))
        if window is None:
            known = ", ".join(self.calendars.windows) or "(none)"
            raise CommandError(f"window: found {arguments.get('window')!r}, there are {known}")
        self._tell_brokers(window, give_back=True)
        self._end(window)
        return {"window": window.id}

    def _tell_brokers(self, window: Window, *, give_back: bool, again: bool = False) -> None:
        """How many units of its delegation each broker had better not grant: its share of what the site can't spare of
        its own. ``again``: who has which share may be another by now, so that all hear it.
        """
        term = Term(window.start, window.end)
        for type_, count in self.calendars.units_in(window).items():
            held = [d for d in self.issued if d.type == type_ and d.state in (deleg.OFFERING, deleg.HELD)]
            told = withheld_shares(count, term, partial(self._spare, type_, held, window), held)
            for record in held:
                units = told.get(record.id, 0)
                if record.id in told and (units or give_back or again):
                    number = self.kernel.next("serial")
                    message = Withhold(record.id, number, window.id, 0 if give_back else units, term, window.reason)
                    self.notices.owe(f"{window.id}@{record.id}", record.peer, record.id, number, message, window.end)

    def _spare(self, type_: str, held: Sequence[Delegation], window: Window, part: Term) -> int:
        """The units that the site has given to nobody over ``part``, and that no other window takes."""
        given = sum(record.units for record in held if record.term.overlaps(part))
        others = [
            one
            for one in self.calendars.windows.values()
            if one is not window and Term(one.start, one.end).overlaps(part)
        ]
        return self.inventory.total(type_) - given - sum(self.calendars.units_in(one).get(type_, 0) for one in others)

    def _notice_leases(self, window: Window) -> None:
        """End the leases that may have one of the window's units when it begins: all of a type if all of it goes."""
        gone = {
            type_ for type_, count in self.calendars.units_in(window).items() if count == self.inventory.total(type_)
        }
        for lease in list(self.leases.values()):
            if lease.term.start >= window.end or lease.ended >= 0:
                continue
            if lease.type in gone or set(lease.units) & set(window.units):
                self.notice_lease(lease, max(window.start, lease.term.start), retired_for(window))

    def _tell_of_windows(self, record: Delegation) -> None:
        """One that has just taken its delegation hears of the windows that there are."""
        for window in self.calendars.windows.values():
            self._tell_brokers(window, give_back=False, again=True)

    # -- beginning and ending ----------------------------------------------------------------------------------

    def _begin(self, window: Window) -> None:
        if window.begun:
            return
        window.begun = True
        for name in window.units:
            if name in self.units and self.units[name].state != au.OUT and not self.units[name].retire:
                self.units.retire(name, retired_for(window))
        self.calendars.count_all(window)
        self.kernel.touch(window)

    def _end(self, window: Window) -> None:
        for name in window.units if window.begun else ():
            if name in self.units and self.units[name].retire == retired_for(window):
                self.units.bring_back(name)
                following = [one for one in self.calendars.windows.values() if one.begun and one is not window]
                for other in following:  # it begins as this one ends
                    if name in other.units:
                        self.units.retire(name, retired_for(other))
        self.calendars.remove(window)
        self.calendars.count_all(window)
        self.kernel.erase(window)
        self.demands.look_again()

    # -- time and state ----------------------------------------------------------------------------------------

    def _window_due(self, window: Window) -> None:
        if window.end <= self.kernel.now:
            self._end(window)
        else:
            self._begin(window)

    def _restore_windows(self, rows: Sequence[Row]) -> None:
        """After leases and units: a window takes from the calendars what they have."""
        for row in rows:
            window = Window.from_row(row)
            self.calendars.add(window)
            self.kernel.schedule(window, window.end if window.begun else window.start)
        for type_ in self.inventory.types:
            self.calendars.count(type_)

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
            for one in self.calendars.windows.values()
        ]
