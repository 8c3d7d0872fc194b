"""What a site's mapper decides for leases, checked and carried out: which units they get, or give up, on which hosts
machines are, and how much CPU each gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.leases import (
    NEW,
    REPLACE,
    SHRINK,
    DemandQueue,
    LeaseEnds,
    SiteLeases,
    held_classes,
    host_of,
    missing_places,
    size_of,
    tenant_of,
)
from leasekit.actors.site.units import Units
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.mappers import (
    Assign,
    Cap,
    Migrate,
    Place,
    Power,
    Refuse,
    Release,
)
from leasekit.core.properties import CAPS, MIGRATES, counts, minus
from leasekit.core.reasons import Code, Reason, counted, of_mapper, said
from leasekit.core.time import Instant, Term
from leasekit.core.vectors import CPU, amount

EMPTY_ENDS: Final[Mapping[str, Instant]] = MappingProxyType({})


@attrs.define(eq=False)
class Assignment:
    """What the mapper decides for leases that wait."""

    _kernel: Kernel
    _leases: SiteLeases
    _ends: LeaseEnds
    _demands: DemandQueue
    _calendars: Calendars
    _units: Units = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._units = self._calendars.units

    @property
    def carriers(self) -> dict[type, Callable[[Any], None]]:
        """How each decision is carried out."""
        return {
            Assign: lambda one: self._assign(*self._waiting(one.lease), one.units),
            Place: lambda one: self._place(*self._waiting(one.lease), one),
            Migrate: self.migrate,
            Cap: lambda one: self._cap(one.unit, one.cpu, one.reason),
            Release: lambda one: self._release(*self._waiting(one.lease), one.units),
            Refuse: lambda one: self._refuse(*self._waiting(one.lease), of_mapper(one.reason)),
            Power: lambda one: self._units.switch(one.unit, one.to, of_mapper(one.reason) if one.reason else None),
        }

    def _waiting(self, id_: str) -> tuple[SiteLease, str]:
        lease, op = self._leases.by_id.get(id_), self._demands.ops.get(id_)
        if lease is None or op is None:
            raise CommandError(f"lease {id_!r} waits for nothing (any more)")
        return lease, op

    def _assign(self, lease: SiteLease, op: str, names: Sequence[str]) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} shrinks: it is to give up units, not to get any")
        if not names or len(set(names)) != len(names) or len(names) > lease.wanted - len(lease.units):
            raise CommandError(
                f"lease {lease.id} needs {lease.wanted - len(lease.units)} units, each once; got {names!r:.120}"
            )
        for name in names:
            is_of_type = name in self._units and self._units[name].type == lease.type
            if not is_of_type or not self._units.is_available(self._units[name]):
                raise CommandError(f"unit {name!r} is not a free unit of type {lease.type!r}")
        if lease.needs:
            raise CommandError(f"lease {lease.id} needs parts of hosts: decide on which, by Place")
        given_as = self._given_as(lease, op, names)
        self._take_places(lease, names)
        self._give(lease, op, [self._units[name] for name in names], given_as)

    def _place(self, lease: SiteLease, op: str, place: Place) -> None:
        hosts, caps = place.hosts, place.caps or (-1,) * len(place.hosts)
        if not lease.needs:
            self._assign(lease, op, hosts)
            return
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} shrinks: it is to give up units, not to get any")
        if not hosts or len(hosts) > lease.wanted - len(lease.units):
            raise CommandError(f"lease {lease.id} needs {lease.wanted - len(lease.units)} units; got {hosts!r:.120}")
        for host in hosts:
            if host not in self._units or self._units[host].host or self._units[host].type != lease.type:
                raise CommandError(f"{host!r} is no host of type {lease.type!r}")
        given_as = self._given_as(lease, op, hosts)
        sizes = [size_of(lease, class_) for class_ in given_as]
        if len(caps) != len(hosts) or any(0 <= cap < amount(one, CPU) for cap, one in zip(caps, sizes, strict=True)):
            raise CommandError(f"caps of lease {lease.id}: found {caps!r:.120}, one is below what is guaranteed")
        ends = self._ends_of(lease, place.victims)
        self._take_places(lease, hosts, ends)
        for victim, at in ends.items():
            self._ends.make_room(self._leases.by_id[victim], at, Reason(Code.MAKES_ROOM, who=lease.id, at=at))
        machines = [
            self._units.add_machine(host, size, lease.needs, cap)
            for host, size, cap in zip(hosts, sizes, caps, strict=True)
        ]
        self._give(lease, op, machines, given_as)

    def _ends_of(self, lease: SiteLease, victims: Sequence[str]) -> dict[str, Instant]:
        """When the victims of a lease end: after their notice, and not before their least run. Raises ``CommandError``
        if one of them need not make room for it.
        """
        ends: dict[str, Instant] = {}
        for name in victims:
            victim = self._leases.by_id.get(name)
            if victim is None or victim.is_ending or victim.terminates_at >= 0 or victim.type != lease.type:
                raise CommandError(f"victim {name!r:.80} of lease {lease.id} is no lease of its type that goes on")
            if name in ends:
                raise CommandError(f"victims of lease {lease.id}: {name} is named twice")
            mine, other = tenant_of(lease), tenant_of(victim)
            if mine.preemptible or not other.preemptible or other.priority > mine.priority:
                raise CommandError(f"lease {name} need not make room for lease {lease.id}")
            ends[name] = max(self._kernel.now + other.notice, other.start + other.min_run)
        return ends

    def _take_places(self, lease: SiteLease, hosts: Sequence[str], ends: Mapping[str, Instant] = EMPTY_ENDS) -> None:
        """Units of a lease come to these hosts: where its places are others, these are changed. Raises
        ``CommandError``, with nothing changed, if a host has no room, also when victims have ended.
        """
        if not lease.sizes:
            return
        planned, others = list(missing_places(lease, self._units)), []
        for host in hosts:
            if host in planned:
                planned.remove(host)
            else:
                others.append(host)
        moves = list(zip(planned, others, strict=False))
        claims = self._leases.claims_of(lease)
        leaving = {claim for name in ends for claim in self._leases.by_id[name].claims}
        for start, to in moves:
            begin = max((at for name, at in ends.items() if self._is_on(name, to)), default=0)
            left = {one: Term(max(term.start, begin), term.end) for one, term in claims.items() if begin < term.end}
            if not left or not self._calendars.places.can_move(left, start, to, leaving):
                raise CommandError(f"host {to!r} has no room for a unit of lease {lease.id} up to its end")
        for start, to in moves:
            self._leases.change_place(lease, start, to)

    def _is_on(self, lease: str, host: str) -> bool:
        """Whether a lease has a machine on a host."""
        return any(host_of(self._units[name]) == host for name in self._leases.by_id[lease].units)

    def _machine(self, name: str, able: str) -> tuple[SiteUnit, SiteLease]:
        """A machine that is up, and its lease. Raises ``CommandError``."""
        unit = self._units.find(name)
        lease = self._leases.by_id.get(unit.lease)
        if not unit.host or not unit.is_up or lease is None:
            raise CommandError(f"unit {name} is no machine that is up: it is {unit.state}")
        if self._units.inventory.properties(unit.type).get(able) != "true":
            raise CommandError(f"unit {name}: the driver of type {unit.type!r} has not {able!r}")
        return unit, lease

    def can_migrate(self, unit: SiteUnit) -> bool:
        """Whether the driver of a machine can move it while it runs."""
        return self._units.inventory.properties(unit.type).get(MIGRATES) == "true"

    def migrate(self, move: Migrate) -> None:
        """Move a machine that is up to another host while it runs. Raises ``CommandError``, with nothing changed."""
        name, host = move.unit, move.host
        unit, lease = self._machine(name, MIGRATES)
        if move.cap >= 0:
            self._check_cap(unit, move.cap)
        on = self._units.find(host)
        if on.type != unit.type or on.host or unit.given_as not in on.classes or host == unit.host:
            raise CommandError(f"unit {name} can't be moved to {host}: that is no other host of its class")
        if not self._units.has_place(host, unit.size) or not self._calendars.places.can_move(
            self._leases.claims_of(lease), unit.host, host
        ):
            raise CommandError(f"unit {name} can't be moved to {host}: that has no room for it up to the lease's end")
        why = of_mapper(move.reason) if move.reason else None
        self._kernel.note(lease.id, "migrate", unit.host, host, Reason(Code.UNIT, name).because(why))
        self._leases.change_place(lease, unit.host, host)
        lease.waiting += 1
        unit.cap = move.cap if move.cap >= 0 else unit.cap
        self._units.move(unit, host)
        self._kernel.touch(lease)

    def _cap(self, name: str, cpu: int, reason: str) -> None:
        unit, lease = self._machine(name, CAPS)
        self._check_cap(unit, cpu)
        if cpu != unit.cap:
            unit.cap = cpu
            lease.waiting += self._units.change(unit)

    @staticmethod
    def _check_cap(unit: SiteUnit, cpu: int) -> None:
        least = amount(unit.size, CPU)
        if cpu < least:
            raise CommandError(f"unit {unit.id}: a cap of {cpu} is below the {least} millicores that are guaranteed")

    def _give(self, lease: SiteLease, op: str, units: Sequence[SiteUnit], given_as: Sequence[bytes]) -> None:
        self._demands.remove(lease)
        missing = lease.wanted - len(lease.units)
        if missing > self._demands.shown_units(lease, missing):  # more have failed than the mapper knew of
            self._demands.put(lease, REPLACE if op == NEW else op)
        elif len(units) < missing:
            lease.reason = lease.reason or Reason(Code.FEWER_FREE, units=len(units))
        if op == NEW:
            self._kernel.fire(lease, "assign", said(counted(len(units))))
        for unit, class_ in zip(units, given_as, strict=True):
            lease.units.append(unit.id)
            lease.waiting += 1
            self._units.give(unit, lease.id, class_)
            if class_ not in unit.classes:
                self._calendars.stand_in(unit)
        self._kernel.touch(lease)

    def _given_as(self, lease: SiteLease, op: str, names: Sequence[str]) -> list[bytes]:
        """The class that each unit is to count as: those that are lacking, in their order, if that does; a unit may be
        of several. One of another class may stand in for a unit that failed, if there is none of its own. Raises
        ``CommandError``.
        """
        lacking = Counter(dict(minus(lease.classes, held_classes(lease, self._units))))
        in_order = list(lacking.elements())[: len(names)]
        if len(in_order) == len(names) and all(map(self._is_of, names, in_order)):
            return in_order
        found: list[bytes] = []
        for name in names:
            fitting = next((class_ for class_ in self._units[name].classes if lacking[class_] > 0), None)
            if fitting is None and op == REPLACE:
                fitting = next((class_ for class_ in +lacking if not self._has_free(lease.type, class_, names)), None)
            if fitting is None:
                raise CommandError(f"unit {name!r} is of another class than those that lease {lease.id} needs")
            lacking[fitting] -= 1
            found.append(fitting)
        return found

    def _is_of(self, name: str, class_: bytes) -> bool:
        return class_ in self._units[name].classes

    def _has_free(self, type_: str, class_: bytes, but: Sequence[str]) -> bool:
        return any(class_ in view.classes and view.id not in but for view in self._units.free(type_))

    def _release(self, lease: SiteLease, op: str, names: tuple[str, ...]) -> None:
        if op != SHRINK or len(set(names)) != len(names) or len(names) != len(lease.units) - lease.wanted:
            raise CommandError(
                f"lease {lease.id} is to give up {len(lease.units) - lease.wanted} units; got {names!r:.120}"
            )
        for name in names:
            if name not in lease.units:
                raise CommandError(f"unit {name!r} is not one of lease {lease.id}")
        kept = Counter(host_of(self._units[name]) for name in lease.units if name not in names)
        if lease.sizes and kept - Counter(lease.places):
            raise CommandError(
                f"lease {lease.id} goes on with units on {', '.join(lease.places)}, not on {', '.join(kept)}"
            )
        gone = counts(Counter(self._units[name].given_as for name in names))
        if gone != minus(held_classes(lease, self._units), lease.classes):
            raise CommandError(f"units of other classes are to be given up by lease {lease.id}: got {names!r:.120}")
        self._demands.remove(lease)
        for name in names:
            self._leases.take(lease, name)
        self._leases.check_primed(lease)

    def _refuse(self, lease: SiteLease, op: str, reason: Reason) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} must give up units: that can't be refused")
        if self._demands.stale:
            return  # by what there is now it may be another matter
        self._demands.remove(lease)
        lease.reason = lease.reason or reason
        if op == NEW:
            self._leases.fail(lease, "refuse", reason)
        else:
            self._kernel.touch(lease)
            self._leases.check_primed(lease)
