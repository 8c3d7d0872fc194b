"""Hosts that an operator adds, removes, or says to be otherwise while the site runs.

What was said is kept, over restarts and whatever the settings say, until the host is reset. Leases keep what they have:
a host that is removed is given to nobody, and is gone when the last machine has left it; one that changes has what is
on it, or planned for it, in its new size, or the change is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from leasekit.actors.kernel import Kernel, command, keeps, query
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import SiteDelegations
from leasekit.actors.site.leases import SiteLeases, host_of
from leasekit.core.answers import HostDetails
from leasekit.core.commands import RemoveHost, ResetHost, SetHost
from leasekit.core.drivers import UNIT_ID, UNIT_ID_ALLOWED
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import HostChange, HostKind, SiteUnit
from leasekit.core.properties import CLASSES_MAX, EMPTY, Properties, check_plain, check_properties, digest_properties
from leasekit.core.reasons import said
from leasekit.core.schema import Row
from leasekit.core.vectors import (
    CAPACITY,
    LEAST_YIELD,
    THOUSAND,
    HostClass,
    added,
    amount,
    host_attributes,
    host_class,
    written,
)

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
"""How a host differs from what the settings say."""


@keeps(rows="_changes _kinds")
@attrs.define(eq=False, slots=False)
class HostChanges:
    """What an operator has said of hosts. ``told`` hear of units of which it is news whether they are in the
    inventory.
    """

    _kernel: Kernel
    _leases: SiteLeases
    _calendars: Calendars
    _delegations: SiteDelegations
    told: list[Callable[[Iterable[SiteUnit]], None]] = attrs.field(factory=list, init=False)
    _changes: dict[str, HostChange] = attrs.field(factory=dict, init=False)
    _kinds: dict[str, HostKind] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(HostChange)
        self._kernel.register(HostKind)
        self._units, self._inventory = self._calendars.units, self._calendars.units.inventory

    def restore(self, rows: Iterable[Row], kinds: Iterable[Row]) -> None:
        """What a store kept: before the units are taken up."""
        self._changes = {one.id: one for one in map(HostChange.from_row, rows)}
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

    @command("host.add")
    def _add(self, asked: SetHost) -> HostDetails:
        known = asked.host in self._units and not (asked.host in self._inventory or self._units[asked.host].host)
        if asked.host in self._inventory or (asked.host in self._units and not known):
            raise CommandError(f"host: found {asked.host!r}, which is a unit here already")
        divided = [type_ for type_ in self._inventory.types if self._inventory.known_hosts(type_)]
        if asked.type not in divided:
            there = ", ".join(divided) or "(none)"
            raise CommandError(f"type: found {asked.type!r:.80}, types of hosts with capacity are {there}")
        if known and self._units[asked.host].type != asked.type:
            raise CommandError(f"host: {asked.host!r} was of type {self._units[asked.host].type!r}: it keeps that")
        if not UNIT_ID.fullmatch(asked.host):
            raise CommandError(f"host: found {asked.host!r:.80}, expected {UNIT_ID_ALLOWED}")
        own = _attributes(asked, EMPTY, self._inventory.properties(asked.type))
        return self._say(HostChange(asked.host, asked.type, own))

    @command("host.set")
    def _set(self, asked: SetHost) -> HostDetails:
        host = self._find(asked.host)
        own = _attributes(asked, self._own(host.id), self._inventory.properties(host.type))
        made = HostChange(host.id, host.type, own)
        self._check_taken(host, own)
        return self._say(made)

    @command("host.remove")
    def _remove(self, asked: RemoveHost) -> HostDetails:
        host = self._find(asked.host)
        return self._say(HostChange(host.id, host.type, gone=True))

    @command("host.reset")
    def _reset(self, asked: ResetHost) -> HostDetails:
        if asked.host not in self._changes:
            found = ", ".join(self._changes) or "(none)"
            raise CommandError(f"host: found {asked.host!r:.80}, those that differ from the settings are {found}")
        settled = self._settled(asked.host)
        if settled is not None and not self._changes[asked.host].gone:
            self._check_taken(self._units[asked.host], settled)
        if settled is None:
            return self._say(attrs.evolve(self._changes[asked.host], gone=True))
        return self._say(attrs.evolve(self._changes[asked.host], own=settled, gone=False))

    def _find(self, name: str) -> SiteUnit:
        if name not in self._inventory or not self._inventory.hosts(self._units[name].type):
            raise CommandError(f"host: found {name!r:.80}, which is no host here; `leasekit site host list` shows them")
        return self._units[name]

    def _own(self, name: str) -> Properties:
        return next(group.own for group in self._inventory.groups if name in group.names)

    def _settled(self, name: str) -> Properties | None:
        """A host's own attributes as the settings say; None if they don't name it."""
        return next((group.own for group in self._inventory.settled if name in group.names), None)

    def _has(self, type_: str, own: Properties) -> HostClass:
        """What a host of a type with these attributes of its own has."""
        found = host_class({**self._inventory.properties(type_), **own})
        assert found is not None, "hosts without a capacity were refused"
        return found

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

    def _say(self, change: HostChange) -> HostDetails:
        """Keep what is said, and go on with the inventory that there is now. Raises ``CommandError``, with nothing
        changed, if there are too many kinds of hosts.
        """
        before = self._changes.pop(change.id, None)
        settled = self._settled(change.id)
        differs = settled is not None if change.gone else change.own != settled
        if differs:
            self._changes[change.id] = change
        self._inventory.change(self._changes.values())
        classes = {self._inventory.class_of(unit.id, unit.type) for unit in self._units if unit.type == change.type}
        classes.add(digest_properties({**self._inventory.properties(change.type), **change.own}))
        if len(classes) > CLASSES_MAX:
            self._changes.pop(change.id, None)
            self._changes.update({} if before is None else {before.id: before})
            self._inventory.change(self._changes.values())
            raise CommandError(
                f"host {change.id}: hosts of type {change.type!r} may differ in {CLASSES_MAX} ways at most"
            )
        if differs:
            self._kernel.touch(change)
        elif before is not None:
            self._kernel.erase(before)
        what = "removed" if change.gone else written(self._has(change.type, change.own).capacity)
        self._kernel.note(change.id, "host", "", "", said(what))
        self._follow(change)
        return self._show(self._units[change.id])

    def _follow(self, change: HostChange) -> None:
        news = self._units.follow_inventory()
        self._keep_kinds()
        for unit in news:
            self._calendars.places.resize(unit.id, self._kernel.now)
        self._calendars.count(change.type)
        for tell in self.told:
            tell(news)
        self._delegations.issued.give(again=True)
        if change.gone:
            self._leases.plan_anew({change.id}, self._calendars.from_now_on)

    # -- queries -----------------------------------------------------------------------------------------------

    @query("hosts")
    def _query_hosts(self) -> list[HostDetails]:
        """Every host as plain data for an operator, those that were removed and are not gone yet among them."""
        return [
            self._show(unit)
            for unit in self._units
            if self._inventory.known_hosts(unit.type)
            if unit.id in self._inventory or unit.id in self._changes or not unit.is_out
        ]

    def _show(self, host: SiteUnit) -> HostDetails:
        change, is_there = self._changes.get(host.id), host.id in self._inventory
        own = self._own(host.id) if is_there else EMPTY
        has = self._has(host.type, own) if is_there else HostClass((), 0, THOUSAND)
        on = [one for one in self._units.machines_on(host.id) if not one.is_free]
        if is_there and change is not None:
            differs = CHANGED if self._settled(host.id) is not None else ADDED
        else:
            differs = "" if is_there else REMOVED
        leases = sorted(
            lease.id
            for lease in self._leases.by_id.values()
            if lease.ended < 0 and host.id in (*lease.places, *map(self._host_of, lease.units))
        )
        return HostDetails(
            host.id, host.type, host.state, written(has.capacity), written(added(one.size for one in on)), has.core,
            has.least_yield, _others(own), {one.id: one.lease or one.promised for one in on},
            host.lease or host.promised, leases, differs,
        )  # fmt: skip

    def _host_of(self, name: str) -> str:
        return host_of(self._units[name])


def _attributes(asked: SetHost, now: Properties, of_type: Properties) -> Properties:
    """A host's own attributes: those that it has ``now``, but for what is asked. Raises ``CommandError``."""
    least = int(now.get(LEAST_YIELD, THOUSAND)) if asked.least_yield is None else asked.least_yield
    if not 0 < least <= THOUSAND:
        raise CommandError(f"least_yield: found {least}, expected a number from 1 to {THOUSAND}, in thousandths")
    others = asked.attributes if asked.attributes is not None else _others(now)
    wrong = next((key for key in others if key.startswith(CAPACITY) or key == LEAST_YIELD or key in of_type), None)
    if wrong is not None:
        raise CommandError(f"attributes: found {wrong!r:.80}, which is said by the capacity, or the type's properties")
    try:
        check_plain(check_properties(others, "attributes"), "attributes")
    except ValueError as error:
        raise CommandError(str(error)) from None
    has = {key: value for key, value in now.items() if key.startswith(CAPACITY)}
    if asked.capacity is not None or not (has or any(key.startswith(CAPACITY) for key in of_type)):
        try:
            has = dict(host_attributes(asked.capacity or {}))
        except ValueError as error:
            raise CommandError(f"capacity: {error}") from None
    return {**others, **has, **({LEAST_YIELD: str(least)} if least < THOUSAND else {})}


def _others(own: Properties) -> Properties:
    """A host's own attributes that say nothing of what it has."""
    return {key: value for key, value in own.items() if not key.startswith(CAPACITY) and key != LEAST_YIELD}
