"""What operators change while the site runs: units that they add, remove, or say to be otherwise, and put out of
service; and maintenance windows, whose leases they hit, and who hears of them.

What was said is kept, over restarts and whatever the settings say, until the unit is reset. Leases keep what they have:
a unit that is removed is given to nobody, and is gone when its lease, or the last machine on it, has left it; a host
that changes has what is on it, or planned for it, in its new size, or the change is refused.

Holders are told when a window is announced that takes a unit which their lease has, or all of its type; with ``close``
their leases end for it. A lease that is not ended keeps its units until it gives them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel, command, keeps, named, query
from leasekit.actors.served import Notices
from leasekit.actors.site.calendars import Calendars, retired_for
from leasekit.actors.site.claims import SiteDelegations
from leasekit.actors.site.leases import DemandQueue, SiteLeases, host_of
from leasekit.actors.site.units import GONE, Units, measure, shown_state
from leasekit.actors.withheld import in_order, units_of_class, withheld_shares
from leasekit.core.answers import (
    EvictedLease,
    HitLease,
    InventoryEntry,
    MeasuredUnit,
    RemovedFromWindows,
    RemovedWindow,
    ServiceOfUnit,
    WatchedUnit,
    WindowDetails,
)
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.commands import (
    AddMaintenance,
    DisableUnit,
    EnableUnit,
    EvictLease,
    MeasureUnit,
    RemoveMaintenance,
    RemoveUnit,
    ResetUnit,
    SetUnit,
)
from leasekit.core.drivers import UNIT_ID, UNIT_ID_ALLOWED, OnlyUnits
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases.records import Delegation, HostKind, SiteLease, SiteUnit, UnitChange, Window, Withheld
from leasekit.core.properties import (
    CAPACITY,
    CLASSES_MAX,
    EMPTY,
    LEAST_YIELD,
    THOUSAND,
    HostClass,
    Properties,
    added,
    amount,
    check_plain,
    check_properties,
    counts,
    host_attributes,
    host_class,
    written,
)
from leasekit.core.protocol.messages import OUT
from leasekit.core.reasons import Code, Reason, clip, mark, said, view
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
"""How a unit differs from what the settings say."""
IN_SERVICE: Final = frozenset({"setup", "modify", "up"})
"""What happens to units, and puts none out of service, nor back."""


@keeps(rows="_changes _kinds", derived="_serves")
@attrs.define(eq=False, slots=False)
class UnitChanges:
    """What an operator has said of units. ``told`` hear of those of which it is news whether they are in the
    inventory. ``_serves`` says which units alone the drivers of a type can serve.
    """

    _kernel: Kernel
    _leases: SiteLeases
    _calendars: Calendars
    _delegations: SiteDelegations
    _serves: Mapping[str, Sequence[OnlyUnits]]
    told: list[Callable[[Iterable[SiteUnit]], None]] = attrs.field(factory=list, init=False)
    _changes: dict[str, UnitChange] = attrs.field(factory=dict, init=False)
    _kinds: dict[str, HostKind] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(UnitChange)
        self._kernel.register(HostKind)
        self._units, self._inventory = self._calendars.units, self._calendars.units.inventory

    def restore(self, rows: Iterable[Row], kinds: Iterable[Row]) -> None:
        """What a store kept: before the units are taken up."""
        self._changes = {one.id: one for one in map(UnitChange.from_row, rows)}
        self._inventory.change(self._changes.values())
        self._kinds = {one.id: one for one in map(HostKind.from_row, kinds)}
        for one in self._kinds.values():
            self._inventory.remember(one.type, {bytes.fromhex(one.id): one.attributes})

    def begin(self) -> None:
        """It is known which claims go on, and so as what hosts count: as nothing else, from now on."""
        self._keep_kinds()
        for type_ in self._inventory.types:
            if self._inventory.known_hosts(type_):
                self._calendars.count(type_)

    def _keep_kinds(self) -> None:
        """What hosts of each class have is written down: claims go on when hosts are otherwise. What no host counts as
        any more is forgotten.
        """
        now = {
            class_.hex(): unit.type
            for unit in self._units
            if self._inventory.known_hosts(unit.type)
            for class_ in unit.classes
        }
        for id_, type_ in now.items():
            if id_ not in self._kinds:
                has = self._inventory.attributes_of(bytes.fromhex(id_), type_)
                self._kinds[id_] = HostKind(id_, type_, has)
                self._kernel.touch(self._kinds[id_])
        for id_ in [one for one in self._kinds if one not in now]:
            gone = self._kinds.pop(id_)
            self._inventory.forget(gone.type, bytes.fromhex(id_))
            self._kernel.erase(gone)

    # -- commands ----------------------------------------------------------------------------------------------

    @command("unit.add")
    def _add(self, asked: SetUnit) -> InventoryEntry:
        known = [self._units[asked.unit]] if asked.unit in self._units else []
        if any(unit.id in self._inventory or unit.host for unit in known):
            raise CommandError(f"unit: found {asked.unit!r}, which is a unit here already")
        if asked.type not in self._inventory.types:
            there = ", ".join(self._inventory.types)
            raise ArgumentError(f"type: found {asked.type!r:.80}, there are {there}")
        if any(unit.type != asked.type for unit in known):
            raise CommandError(f"unit: {asked.unit!r} was of type {known[0].type!r}: it keeps that")
        if not UNIT_ID.fullmatch(asked.unit):
            raise ArgumentError(f"unit: found {asked.unit!r:.80}, expected {UNIT_ID_ALLOWED}")
        self._check_served(asked.unit, asked.type)
        return self._say(UnitChange(asked.unit, asked.type, self._attributes(asked, asked.type, EMPTY)))

    @command("unit.set")
    def _set(self, asked: SetUnit) -> InventoryEntry:
        unit = self._find(asked.unit)
        if asked.type not in ("", unit.type):
            raise CommandError(
                f"type: found {asked.type!r:.80}, unit {unit.id} is of type {unit.type!r}: it keeps that"
            )
        own = self._attributes(asked, unit.type, self._own(unit.id))
        self._check_taken(unit, own)
        return self._say(UnitChange(unit.id, unit.type, own))

    @command("unit.remove")
    def _remove(self, asked: RemoveUnit) -> InventoryEntry:
        unit = self._find(asked.unit)
        return self._say(UnitChange(unit.id, unit.type, gone=True))

    @command("unit.reset")
    def _reset(self, asked: ResetUnit) -> InventoryEntry:
        change = self._changes.get(asked.unit)
        if change is None:
            found = ", ".join(self._changes) or "(none)"
            raise ArgumentError(f"unit: found {asked.unit!r:.80}, those that differ from the settings are {found}")
        settled = self._settled(change.id)
        if settled is None:
            return self._say(attrs.evolve(change, gone=True))
        if not change.gone:
            self._check_taken(self._units[change.id], settled)
        return self._say(attrs.evolve(change, own=settled, gone=False))

    def _find(self, name: str) -> SiteUnit:
        if name not in self._inventory:
            raise CommandError(
                f"unit: found {name!r:.80}, which is not in the inventory; `leasekit site unit list` shows what is",
                Code.NOT_FOUND,
            )
        return self._units[name]

    def _check_served(self, name: str, type_: str) -> None:
        """A driver that says which units it has must have this one. Raises ``CommandError``."""
        for only in self._serves.get(type_, ()):
            what = only.lacks(name, divided=bool(self._inventory.known_hosts(type_)))
            if what:
                raise CommandError(
                    f"unit: the driver of type {type_!r} has no {what} for {name!r} in its {only.key}: name it there,"
                    " and reload the site"
                )

    def _own(self, name: str) -> Properties:
        return next(group.own for group in self._inventory.groups if name in group.names)

    def _settled(self, name: str) -> Properties | None:
        """A unit's own attributes as the settings say; None if they don't name it."""
        return next((group.own for group in self._inventory.settled if name in group.names), None)

    def _has(self, type_: str, own: Properties) -> HostClass:
        """What a unit of a type with these attributes of its own has: nothing, where it is no host."""
        return host_class({**self._inventory.properties(type_), **own}) or HostClass((), 0, THOUSAND)

    def _check_taken(self, host: SiteUnit, own: Properties) -> None:
        """What is on a host, or planned for it, has room in its new size. Raises ``CommandError``."""
        places, now, capacity = self._calendars.places, self._kernel.now, self._has(host.type, own).capacity
        if capacity == self._inventory.capacity(host.type, host.classes[0]):
            return
        if host.is_in_use or places.is_leased_whole(host.id, now):
            raise CommandError(
                f"host {host.id}: it is leased whole, now or later: its capacity stays until that is over"
            )
        on = added(one.size for one in self._units.machines_on(host.id) if not one.is_free)
        taken = {**dict(places.taken(host.id, now))}
        for name, much in on:
            taken[name] = max(much, taken.get(name, 0))
        over = tuple((name, much) for name, much in sorted(taken.items()) if much > amount(capacity, name))
        if over:
            raise CommandError(
                f"host {host.id}: found {written(capacity)}, its machines take up to {written(over)}, now or later"
            )

    def _say(self, change: UnitChange) -> InventoryEntry:
        """Keep what is said, and go on with the inventory that there is now. Raises ``CommandError``, with nothing
        changed, if units of the type were told apart in claims, and can be no more: they differ in too many ways.
        """
        before, variety = self._changes.pop(change.id, None), self._inventory.variety(change.type)
        settled = self._settled(change.id)
        differs = settled is not None if change.gone else change.own != settled
        if differs:
            self._changes[change.id] = change
        self._inventory.change(self._changes.values())
        if variety <= CLASSES_MAX < self._inventory.variety(change.type):
            self._changes.pop(change.id, None)
            self._changes.update({} if before is None else {before.id: before})
            self._inventory.change(self._changes.values())
            raise CommandError(
                f"unit {change.id}: units of type {change.type!r} may differ in {CLASSES_MAX} ways at most"
            )
        if differs:
            self._kernel.touch(change)
        elif before is not None:
            self._kernel.erase(before)
        attributes = " ".join(f"{key}={value}" for key, value in change.own.items())
        self._kernel.note(change.id, "said", "", "", said(REMOVED if change.gone else attributes))
        self._follow(change)
        return self._show([self._units[change.id]])[0]

    def _follow(self, change: UnitChange) -> None:
        news = self._units.follow_inventory()
        self._keep_kinds()
        for unit in news:
            self._calendars.places.resize(unit.id, self._kernel.now)
        self._calendars.count(change.type)
        self._delegations.note_totals()
        self._delegations.issued.give(again=True)
        for tell in self.told:  # after that, as at a restart: who is offered more hears what is out of it
            tell(news)
        if change.gone:
            self._leases.plan_anew({change.id}, self._calendars.from_now_on)

    # -- queries -----------------------------------------------------------------------------------------------

    @query("inventory")
    def _query_inventory(self) -> list[InventoryEntry]:
        """Every unit of the inventory, those that were removed and are not gone yet among them."""
        there = [
            unit for unit in self._units if unit.id in self._inventory or unit.id in self._changes or not unit.is_out
        ]
        return self._show(there)

    def _show(self, units: Iterable[SiteUnit]) -> list[InventoryEntry]:
        own = {name: group.own for group in self._inventory.groups for name in group.names}
        leases: dict[str, list[str]] = {}
        for lease in self._leases.by_id.values():
            if lease.ended < 0:
                for host in {*lease.places, *(host_of(self._units[name]) for name in lease.units)}:
                    leases.setdefault(host, []).append(lease.id)
        return [self._entry(unit, own.get(unit.id), sorted(leases.get(unit.id, ()))) for unit in units]

    def _entry(self, unit: SiteUnit, own: Properties | None, leases: list[str]) -> InventoryEntry:
        has = HostClass((), 0, THOUSAND) if own is None else self._has(unit.type, own)
        on = [one for one in self._units.machines_on(unit.id) if not one.is_free]
        differs = REMOVED if own is None else ""
        if own is not None and unit.id in self._changes:
            differs = CHANGED if self._settled(unit.id) is not None else ADDED
        return InventoryEntry(
            unit.id, unit.number, unit.type, unit.state, written(has.capacity), written(added(one.size for one in on)),
            has.core, has.least_yield, _others(own or EMPTY), {one.id: one.lease or one.promised for one in on},
            unit.lease or unit.promised, leases, differs,
        )  # fmt: skip

    def _attributes(self, asked: SetUnit, type_: str, now: Properties) -> Properties:
        """A unit's own attributes: those that it has ``now``, but for what is asked. Raises ``CommandError``."""
        of_type, is_host = self._inventory.properties(type_), bool(self._inventory.known_hosts(type_))
        if not is_host and (asked.capacity is not None or asked.least_yield is not None):
            raise ArgumentError(f"capacity: found some, units of type {type_!r} have none in the settings")
        others = _other_attributes(asked, now, of_type)
        return {**others, **_capacity(asked, now)} if is_host else others


def _capacity(asked: SetUnit, now: Properties) -> Properties:
    least = int(now.get(LEAST_YIELD, THOUSAND)) if asked.least_yield is None else asked.least_yield
    if not 0 < least <= THOUSAND:
        raise ArgumentError(f"least_yield: found {least}, expected a number from 1 to {THOUSAND}, in thousandths")
    has = {key: value for key, value in now.items() if key.startswith(CAPACITY)}
    if asked.capacity is not None or not has:
        try:
            has = dict(host_attributes(asked.capacity or {}))
        except ValueError as error:
            raise CommandError(f"capacity: {error}") from None
    return {**has, **({LEAST_YIELD: str(least)} if least < THOUSAND else {})}


def _other_attributes(asked: SetUnit, now: Properties, of_type: Properties) -> Properties:
    others = asked.attributes if asked.attributes is not None else _others(now)
    wrong = next((key for key in others if key.startswith(CAPACITY) or key == LEAST_YIELD or key in of_type), None)
    if wrong is not None:
        raise ArgumentError(f"attributes: found {wrong!r:.80}, which is said by the capacity, or the type's properties")
    try:
        check_plain(check_properties(others, "attributes"), "attributes")
    except ValueError as error:
        raise CommandError(str(error)) from None
    return others


def _others(own: Properties) -> Properties:
    """A unit's own attributes that say nothing of what it has."""
    return {key: value for key, value in own.items() if not key.startswith(CAPACITY) and key != LEAST_YIELD}


@keeps(derived="_out")
@attrs.define(eq=False, slots=False)
class Maintenance:
    """An operator's windows, units that are out of service or gone, and leases that the operator ends. ``_out`` are the
    units that are out of service, or will be when their leases give them up, and of which nobody knows until when.
    """

    _kernel: Kernel
    _leases: SiteLeases
    _calendars: Calendars
    _issued: Issued
    _notices: Notices
    _out: set[str] = attrs.field(factory=set, init=False)

    def restore(self) -> None:
        """After the units, and before anything happens to them. Brokers have heard of those that are out."""
        self._out = {unit.id for unit in self._calendars.units if self._is_out(unit)}

    def _is_out(self, unit: SiteUnit) -> bool:
        """Whether a unit is out of service, or will be, for no window. Of gone units brokers hear otherwise."""
        why = unit.retire or (unit.reason if unit.is_out else None)
        elsewhere = (Code.MAINTENANCE, Code.DRAINED, Code.NOT_IN_INVENTORY)
        return why is not None and why.code not in elsewhere and unit.id in self._calendars.units.inventory

    def unit_moved(self, unit: SiteUnit, *_: object) -> None:
        """Brokers hear of a unit that has gone out of service, or is back."""
        is_out = not unit.host and self._is_out(unit)
        if is_out == (unit.id in self._out):
            return
        self._out ^= {unit.id}
        self._tell_of_out([unit])
        for window in self._calendars.windows.values():
            if unit.type in self._calendars.units_in(window):  # what is spare for it is other by now
                self._tell_brokers(window)

    def _tell_of_out(self, changed: Iterable[SiteUnit]) -> None:
        """Brokers hear how many of their units are out of service, of classes that ``changed`` are of."""
        self._tell_brokers(self._out_window(), changed)

    def tell_of_gone(self, changed: Iterable[SiteUnit]) -> None:
        """Those who have units that the settings name no more, or name again, hear of it."""
        changed = list(changed)
        if changed:
            self.restore()
            self._tell_of_out(changed)
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
            raise ArgumentError(
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
        self._tell_brokers(window)
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
            raise CommandError(
                f"lease: found {asked.lease!r:.80}, which is no lease here that goes on (a reservation is known"
                " here when its ticket is redeemed)",
                Code.NOT_FOUND,
            )
        at, end = max(asked.at, self._kernel.now), _end_of(lease)
        if at >= end:
            raise CommandError(f"at: found {mark(at)}, lease {lease.id} ends at {mark(end)} anyway")
        self._leases.notice(lease, at, Reason(Code.EVICTED, detail=clip(asked.reason or "no reason given")))
        return EvictedLease(lease.id, lease.holder, at)

    # -- brokers -----------------------------------------------------------------------------------------------

    def _tell_brokers(self, window: Window, changed: Iterable[SiteUnit] = (), *, give_back: bool = False) -> None:
        """How many units of its delegation each broker had better not grant: its share of what the site can't spare of
        its own; none (``give_back``) of a window that is taken back. Classes of ``changed`` units count, even if the
        window has none of them.
        """
        term, missing = Term(window.start, window.end), self._missing(window)
        for unit in changed:
            missing.setdefault(unit.type, Counter()).update(dict.fromkeys(unit.classes, 0))
        for type_, classes in missing.items():
            held = [one for one in self._issued.heeding() if one.type == type_]
            told: dict[str, dict[bytes, int]] = {}
            there = self._calendars.classes_of(type_)
            for class_, count in classes.items() if not give_back else ():
                spare = partial(self._spare, window, type_, class_, there[class_])
                for name, units in withheld_shares(count, term, spare, units_of_class(held, class_)).items():
                    told.setdefault(name, {})[class_] = units
            for record in held:
                each = in_order(decode_ticket(record.ticket).leaf, counts(told.get(record.id, {})))
                self._notices.withhold(record, Withheld(window.id, sum(each), term, window.reason, by_class=each))

    def _missing(self, window: Window) -> dict[str, Counter[bytes]]:
        """How many units a window takes, by type and class: those that are out of service anyway are missing once."""
        found: dict[str, Counter[bytes]] = {}
        for unit in self._calendars.units_of(window):
            takes = window.id == OUT or (unit.id in self._calendars.units.inventory and unit.id not in self._out)
            found.setdefault(unit.type, Counter()).update(dict.fromkeys(unit.classes, int(takes)))
        return found

    def _spare(self, window: Window, type_: str, class_: bytes, there: int, part: Term) -> int:
        """The units of a class, of those that are ``there``, that the site has given to nobody over ``part``, and that
        no other window takes.
        """
        given = sum(units[class_] for units in self._issued.counted(type_, part).values())
        others = [
            one
            for one in (self._withheld() if window.id != OUT else ())
            if one.id != window.id and Term(one.start, one.end).overlaps(part)
        ]
        return there - given - sum(self._missing(one).get(type_, Counter())[class_] for one in others)

    def _withheld(self) -> list[Window]:
        """What brokers have heard of: the windows, and one of all that is out of service."""
        return [*self._calendars.windows.values(), *([self._out_window()] if self._out else ())]

    def _out_window(self) -> Window:
        units = tuple(sorted(self._out))
        return Window(OUT, self._kernel.now, INSTANT_MAX, units, "out of service", close=False)

    def offer_taken(self, record: Delegation) -> None:
        """One that has just taken its delegation hears of what is withheld."""
        for window in self._withheld():
            self._tell_brokers(window)


def _end_of(lease: SiteLease) -> Instant:
    return lease.goes_to if lease.terminates_at < 0 else min(lease.terminates_at, lease.goes_to)


@attrs.define(eq=False)
class UnitCommands:
    """What an operator, and whoever probes units, says and asks of them. ``context`` is what a driver may know."""

    _leases: SiteLeases
    _units: Units
    _calendars: Calendars
    _demands: DemandQueue
    _context: Callable[[SiteUnit, SiteLease | None], Properties]

    @command("unit.disable")
    def _disable_unit(self, asked: DisableUnit) -> ServiceOfUnit:
        unit = self._units.retire(asked.unit, said(asked.reason) if asked.reason else Reason(Code.OUT_OF_SERVICE))
        self._calendars.count(unit.type)
        self._leases.plan_anew({unit.id}, self._calendars.from_now_on)
        return ServiceOfUnit(unit.id, shown_state(self._units, unit), **view(unit.retire))

    @command("unit.enable")
    def _enable_unit(self, asked: EnableUnit) -> ServiceOfUnit:
        unit = self._units.bring_back(asked.unit)
        self._calendars.count(unit.type)
        self._demands.mark_dirty()
        return ServiceOfUnit(unit.id, unit.state, **view(None))

    @command("unit.measured")
    def _measure_unit(self, asked: MeasureUnit) -> MeasuredUnit:
        unit = self._units.find(asked.unit)
        if asked.cpu < 0:
            raise ArgumentError(f"cpu: found {asked.cpu}, expected millicores")
        if not unit.is_usable or (unit.lease, unit.setup) != (asked.lease, asked.setup):
            raise CommandError(f"unit {unit.id} has another lease by now, or was set up anew")
        self._units.news.changed(unit)
        if measure(unit, asked.cpu):
            self._demands.mark_dirty()
        return MeasuredUnit(unit.id, unit.used)

    @query("watched")
    def _query_watched(self) -> list[WatchedUnit]:
        return [
            WatchedUnit(
                unit.id, unit.type, unit.lease, unit.setup, self._context(unit, lease),
                lease.properties if lease is not None else EMPTY,
            )
            for unit in (*self._units, *self._units.machines)
            if unit.is_up
            for lease in (self._leases.by_id.get(unit.lease),)
        ]  # fmt: skip
