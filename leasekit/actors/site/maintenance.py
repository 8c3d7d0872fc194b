"""An operator's maintenance windows, whose leases they hit, and who hears of them.

Holders are told when a window is announced that takes a unit which their lease has, or all of its type; with ``close``
their leases end for it. A lease that is not ended keeps its units until it gives them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs

from leasekit.actors.issued import Issued, in_order, units_of_class, withheld_shares
from leasekit.actors.kernel import Kernel, command, named, query
from leasekit.actors.served import Notices
from leasekit.actors.site.calendars import Calendars, retired_for
from leasekit.actors.site.leases import SiteLeases, host_of
from leasekit.actors.site.units import GONE
from leasekit.core.answers import EvictedLease, HitLease, RemovedFromWindows, RemovedWindow, WindowDetails
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.commands import AddMaintenance, EvictLease, RemoveMaintenance
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import Delegation, SiteLease, SiteUnit, Window
from leasekit.core.properties import counts
from leasekit.core.protocol.messages import Withhold
from leasekit.core.reasons import Code, Reason, clip, mark
from leasekit.core.time import INSTANT_MAX, Instant, Term


@attrs.define(eq=False)
class Maintenance:
    """An operator's windows, units that are gone, and leases that the operator ends."""

    _kernel: Kernel
    _leases: SiteLeases
    _calendars: Calendars
    _issued: Issued
    _notices: Notices

    def tell_of_gone(self, changed: Iterable[SiteUnit]) -> None:
        """Those who have units that the settings name no more, or name again, hear of it."""
        for id_ in dict.fromkeys(unit.lease for unit in changed if unit.lease):
            lease = self._leases.by_id.get(id_)
            if lease is None or lease.is_ending:
                continue
            gone = next((name for name in lease.units if self._calendars.units[name].retire == GONE), None)
            told = lease.reason is not None and GONE in lease.reason.causes
            if told != (gone is not None):
                self._leases.tell(lease, None if gone is None else Reason(Code.UNIT, gone).because(GONE))

    @command("maintenance.add")
    def _add(self, asked: AddMaintenance) -> WindowDetails:
        start, end = asked.start, asked.end
        if not max(start, self._kernel.now) < end <= INSTANT_MAX:
            raise CommandError(
                f"window: found {mark(start)} to {mark(end)}, it must end after it begins, later than "
                f"{mark(self._kernel.now)}"
            )
        window = self._announce(asked.units, asked.type, start, end, asked.reason or "maintenance", asked.close)
        self._leases.plan_anew(window.units, Term(window.start, window.end))
        closes_at = max(window.start, asked.close_at)
        for lease in self._hit_by(window):
            if window.close:
                self._leases.notice(lease, max(closes_at, lease.term.start), retired_for(window))
            else:
                self._leases.tell(lease, retired_for(window))
        self._begin(window)
        return self._show(window)

    def _announce(
        self, units: Sequence[str], type_: str, start: Instant, end: Instant, reason: str, close: bool
    ) -> Window:
        window = self._calendars.announce(units, type_, start, end, reason=clip(reason), close=close)
        self._tell_brokers(window, give_back=False)
        return window

    def _begin(self, window: Window) -> None:
        if window.start <= self._kernel.now:
            self._calendars.begin_window(window)
        self._kernel.touch(window)

    @command("maintenance.remove")
    def _remove(self, asked: RemoveMaintenance) -> RemovedWindow | RemovedFromWindows:
        if not asked.units:
            window = named("window", asked.window, self._calendars.windows)
            self._take_back(window)
            return RemovedWindow(window.id)
        windows = self._calendars.windows
        of = {name: window for window in windows.values() for name in window.units}
        for name in asked.units:
            if name not in of:
                raise CommandError(
                    f"unit {name} is in no window, and not drained; those that are: {', '.join(sorted(of)) or '(none)'}"
                )
        found = {window.id: window for window in (of[name] for name in asked.units)}
        for window in found.values():
            self._take_back(window)
            rest = [name for name in window.units if name not in asked.units]
            if rest:
                self._begin(self._announce(rest, "", window.start, window.end, window.reason, window.close))
        return RemovedFromWindows(list(found), list(asked.units))

    def _take_back(self, window: Window) -> None:
        told = [lease for lease in self._hit_by(window) if lease.reason == retired_for(window)]
        self._tell_brokers(window, give_back=True)
        self._calendars.end_window(window)
        for lease in told:
            self._leases.tell(lease, None)

    def _hit_by(self, window: Window) -> Iterator[SiteLease]:
        """The leases that have units of a window over its time, or are of a type of which it has all."""
        gone, units = self._calendars.whole_types(window), set(window.units)
        for lease in list(self._leases.by_id.values()):
            over = lease.is_ending
            meets = not over and lease.term.start < window.end and window.start < lease.goes_to
            if meets and (
                lease.type in gone or not units.isdisjoint((*lease.places, *map(self._host_of, lease.units)))
            ):
                yield lease

    def _host_of(self, name: str) -> str:
        return host_of(self._calendars.units[name])

    def _show(self, window: Window) -> WindowDetails:
        hit = [
            HitLease(
                lease.id, lease.holder, [name for name in lease.units if self._host_of(name) in window.units],
                _end_of(lease),
            )
            for lease in self._hit_by(window)
        ]  # fmt: skip
        return WindowDetails.of(window, window=window.id, leases=hit)

    @query("maintenance")
    def _query_windows(self) -> list[WindowDetails]:
        return [self._show(window) for window in self._calendars.windows.values()]

    @command("lease.evict")
    def _evict(self, asked: EvictLease) -> EvictedLease:
        lease = self._leases.by_id.get(asked.lease)
        if lease is None or lease.is_ending:
            raise CommandError(f"lease: found {asked.lease!r:.80}, which is no lease here that goes on", Code.NOT_FOUND)
        at, end = max(asked.at, self._kernel.now), _end_of(lease)
        if at >= end:
            raise CommandError(f"at: found {mark(at)}, lease {lease.id} ends at {mark(end)} anyway")
        self._leases.notice(lease, at, Reason(Code.EVICTED, detail=clip(asked.reason or "no reason given")))
        return EvictedLease(lease.id, lease.holder, at)

    # -- brokers -----------------------------------------------------------------------------------------------

    def _tell_brokers(self, window: Window, *, give_back: bool, again: bool = False) -> None:
        """How many units of its delegation each broker had better not grant: its share of what the site can't spare of
        its own. ``again``: who has which share may be another by now, so that all hear it.
        """
        term = Term(window.start, window.end)
        for type_ in self._calendars.units_in(window):
            held = [d for d in self._issued if d.type == type_ and d.can_grant(self._kernel.now)]
            told: dict[str, dict[bytes, int]] = {}
            for class_, count in self._calendars.classes_in(window, type_).items():
                holders = units_of_class(held, class_)
                spare = partial(self._spare, type_, class_, window)
                for name, units in withheld_shares(count, term, spare, holders).items():
                    told.setdefault(name, {})[class_] = units
            for record in held:
                each = in_order(decode_ticket(record.ticket).leaf, counts(told.get(record.id, {})))
                if record.id in told and (any(each) or give_back or again):
                    number, share = self._kernel.next("serial"), tuple(0 for _ in each) if give_back else each
                    message = Withhold(record.id, number, window.id, sum(share), term, window.reason, share)
                    until = min(window.end, record.term.end)  # a window that is open has no end of its own
                    self._notices.owe(f"{window.id}@{record.id}", record.peer, message, until)

    def _spare(self, type_: str, class_: bytes, window: Window, part: Term) -> int:
        """The units of a class that the site has given to nobody over ``part``, and that no other window takes."""
        given = sum(units[class_] for units in self._issued.counted(type_, part).values())
        others = [one for one in self._calendars.windows.values() if one is not window]
        there = [one for one in others if Term(one.start, one.end).overlaps(part)]
        taken = sum(self._calendars.classes_in(one, type_)[class_] for one in there)
        return self._calendars.classes_of(type_)[class_] - given - taken

    def offer_taken(self, record: Delegation) -> None:
        """One that has just taken its delegation hears of the windows that there are."""
        for window in self._calendars.windows.values():
            self._tell_brokers(window, give_back=False, again=True)


def _end_of(lease: SiteLease) -> Instant:
    return lease.goes_to if lease.terminates_at < 0 else min(lease.terminates_at, lease.goes_to)
