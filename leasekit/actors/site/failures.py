"""The turns of a site's mapper, and what it decides for leases, checked and carried out: which units they get, or give
up, on which hosts machines are, and how much CPU each gets. And units that fail while a lease has them: in their setup,
or when they are up, as a probe finds or the operator says.

A unit that fails is torn down like any other, and its lease gets another in its place (deficit correction): so many in
each term. With no more, or if its property ``deficit`` says so, it goes on with fewer. Where it was up its guest hears
at once that it has one unit less, and again when the place is filled.

What can't be set up by the lease's fault can't be set up on any unit: nothing is replaced, and no unit is held to have
failed. A lease that was never active fails then; another one keeps what it has.

What is the site's own fault is no unit's: while its directory is down, or its pool full, a lease that has met that
waits with the units that it has been given (:mod:`leasekit.core.leases.outage`), and its guest is told why. Units are
torn down all the same. Each lease finds out for itself: what one guest asks for may be all that is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import attrs

from leasekit.actors.base import MapperTurns, is_inline
from leasekit.actors.kernel import Kernel, command, keeps, query
from leasekit.actors.settings import AuthoritySettings
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.leases import (
    NEW,
    REPLACE,
    SHRINK,
    DemandQueue,
    LeaseEnds,
    LeaseUpdates,
    SiteLeases,
    booked,
    demand_of,
    held_classes,
    host_of,
    missing_places,
    size_of,
    tenant_of,
)
from leasekit.actors.site.units import Units, UnitsSnapshot, host_changes, host_views, shown_state
from leasekit.core.answers import MovedUnit, OutageDetails, ServiceOfUnit, UnitDetails
from leasekit.core.commands import FailUnit, MoveUnit
from leasekit.core.drivers import LEASE, SITE, Blame
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import outage as out
from leasekit.core.leases.outage import Outage
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    AuthorityMapper,
    Cap,
    Migrate,
    Place,
    Power,
    Refuse,
    Release,
    TenantView,
)
from leasekit.core.properties import CAPS, CPU, MIGRATES, Vector, amount, counts, minus
from leasekit.core.reasons import Code, Reason, clip, counted, of_mapper, said, view
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone, Turn, TurnDone
from leasekit.core.time import MINUTE, SECOND, Duration, Instant, Term

EMPTY_ENDS: Final[Mapping[str, Instant]] = MappingProxyType({})


FILTERS_MAX: Final = 4
"""How many different filters (none is one, too) the demands of one turn have at most."""
_SLICE: Final = Turn(-1, lambda: TurnDone(-1), yields=True)


@attrs.define(eq=False)
class SiteTurns:
    """The turns of a site's mapper."""

    _kernel: Kernel
    _turns: MapperTurns
    mapper: AuthorityMapper
    _queue: DemandQueue
    _calendars: Calendars
    _units: Units = attrs.field(init=False)
    _inline: bool = attrs.field(init=False)
    _filtered_by: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._units = self._calendars.units
        self._inline = is_inline(self.mapper)
        self._filtered_by = str(getattr(self.mapper, "filtered_by", "")) if self._inline else ""

    def at(self) -> Instant | None:
        """When the next turn is due: if leases wait for units, or the mapper watches, and something has changed since
        it looked, now; else when it wants to be called.
        """
        if self._turns.running or not (self._queue.ops or self._queue.watches):
            return None
        return self._kernel.now if self._queue.is_news() else self._turns.wake

    def turn(self) -> Turn | None:
        """The mapper's turn, if one is due; before it, what filters say."""
        at = self.at()
        if at is None or at > self._kernel.now:
            return None
        queue, units = self._queue, self._units
        ordered = queue.ordered()
        shrinking = [item for item in ordered if item[1] == SHRINK]
        # By themselves, so that what they give up is there for the others at the same instant.
        alone = bool(shrinking) and len(shrinking) < len(ordered) and not queue.alone
        shown = shrinking if alone else self._few(ordered)
        if self._filtered_by:
            # A mapper that watches looks at what is booked as well.
            live = (lease for lease in queue.leases.values() if lease.ended < 0)
            asking = live if queue.watches else (lease for lease, _ in shown)
            filters = ((one.type, text) for one in asking if (text := one.properties.get(self._filtered_by, "")))
            if not units.kinds.ask(dict.fromkeys(filters)):
                return _SLICE
        demands = [demand_of(lease, op, units) for lease, op in shown]
        queue.show(demands, alone=alone)
        self._turns.answer_wake()
        seen = units if self._inline else units.snapshot()
        hosts = seen.hosts if isinstance(seen, UnitsSnapshot) else partial(host_views, units)
        changes = seen.changes if isinstance(seen, UnitsSnapshot) else partial(host_changes, units)
        # Looked up once a turn, and only if the mapper watches.
        later = booked(queue, {lease.id for lease, _ in shown}, units) if queue.watches else {}
        cycle = AuthorityCycle(
            self._kernel.now, demands, seen.free, seen.view, seen.all, lambda type_: later.get(type_, ()), hosts,
            self._room, changes, self._tenant,
        )  # fmt: skip
        return self._turns.begin(lambda: self.mapper.assign(cycle))._replace(yields=queue.is_more_to_show())

    def _room(self, host: str, size: Vector, term: Term, leaving: Collection[str] = ()) -> int:
        claims = {claim for lease in leaving for claim in self._queue.leases[lease].claims}
        return self._calendars.places.room(host, size, term, claims)

    def _tenant(self, lease: str) -> TenantView | None:
        there = self._queue.leases.get(lease)
        return tenant_of(there) if there is not None else None

    def _few(self, ordered: list[tuple[SiteLease, str]]) -> list[tuple[SiteLease, str]]:
        """As many of the first as have few different filters: each may mean a look at all units."""
        filters: set[str] = set()
        for place, (lease, _) in enumerate(ordered):
            filters.add(lease.properties.get(self._filtered_by, ""))
            if len(filters) > FILTERS_MAX:
                return ordered[:place]
        return ordered

    def done(self, done: TurnDone) -> None:
        """Carry out what the mapper decided. What has changed while the mapper was at it, it is shown in a turn that is
        due.
        """
        self._queue.begin_decisions()
        self._turns.done(done)
        self._queue.end_decisions()


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
            lease.places = lease.places if lease.sizes else ()
        for unit, class_ in zip(units, given_as, strict=True):
            lease.units.append(unit.id)
            lease.waiting += 1
            self._units.give(unit, lease.id, class_)
            self._calendars.given_as(unit)
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


AGAIN_FIRST: Final[Duration] = 10 * SECOND
"""How long after setups were stopped one is tried; the wait doubles from there."""
AGAIN_LAST: Final[Duration] = 2 * MINUTE
"""The longest wait between two tries."""


@keeps(rows="by_lease")
@attrs.define(eq=False, slots=False)
class SiteOutages:
    """The leases of the site ``name`` whose setups are stopped."""

    _name: str
    _kernel: Kernel
    _demands: DemandQueue
    _units: Units
    _updates: LeaseUpdates
    by_lease: dict[str, Outage] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Outage, due_at=self._due_at, on_due=self._try)

    def stop(self, lease: SiteLease, unit: SiteUnit, reason: Reason) -> None:
        """A unit could not be set up by the site's fault: no more of its lease's are, until one can be."""
        outage = self.by_lease.get(lease.id)
        if outage is None:
            id_ = f"{unit.type}/{lease.id}"
            outage = self.by_lease[lease.id] = Outage(id_, reason, self._kernel.now, self._kernel.now + AGAIN_FIRST)
            self._kernel.note(outage.id, "outage", "", f"{out.STOPPED}/-", reason)
        elif outage.is_tried and outage.unit == unit.id:
            outage.tries += 1
            outage.reason = reason
            outage.again = self._kernel.now + min(AGAIN_LAST, AGAIN_FIRST << min(outage.tries, 20))
            self._kernel.fire(outage, "failed", reason)
        self._kernel.touch(outage)
        if unit.is_free:
            self._units.prepare(unit)
        else:
            self._tell_waiting(outage)

    def waits(self, unit: SiteUnit) -> bool:
        """Whether a unit is not to be set up yet."""
        outage = self.by_lease.get(unit.promised)
        if outage is None or (outage.is_tried and outage.unit == unit.id):
            return False
        outage.waiting[unit.id] = unit
        self._kernel.touch(outage)
        self._tell_waiting(outage)
        return True

    def _tell_waiting(self, outage: Outage) -> None:
        """Tell the lease's guest once why it waits."""
        lease = self._demands.leases[outage.lease]
        why = Reason(Code.OUTAGE, self._name, outage.type)
        if lease.reason is None or (lease.reason.code, lease.reason.what) != (why.code, why.what):
            lease.reason = why.because(outage.reason)
            self._kernel.touch(lease)
            self._updates.publish(lease, "waiting", 0)

    def _try(self, outage: Outage) -> None:
        """Set up the unit that waits the longest; nothing, if none does any more."""
        while outage.waiting and outage.is_stopped:
            unit = outage.waiting.pop(next(iter(outage.waiting)))
            if outage.holds_up(unit):
                outage.unit = unit.id
                self._kernel.fire(outage, "try", Reason(Code.UNIT, unit.id))
                self._units.prepare(unit)
        self._kernel.touch(outage)

    def unit_moved(self, unit: SiteUnit, event: str, before: str, why: Reason | None, done: ActionDone | None) -> None:
        """A unit that is tried was set up, or came to something else."""
        for outage in self.by_lease.values():
            if outage.unit == unit.id and outage.is_tried:
                break
        else:
            return
        if event == "up":
            self._mended(outage)
        elif unit.is_out or (not unit.is_set_up and not unit.promised):
            outage.again = self._kernel.now
            self._kernel.fire(outage, "unclear", Reason(Code.UNIT, unit.id).because(why))

    def _mended(self, outage: Outage) -> None:
        self._end(outage, "mended")
        for unit in outage.waiting.values():
            if outage.holds_up(unit):
                self._units.prepare(unit)
        for other in self.by_lease.values():
            if other.type == outage.type and other.is_stopped:
                other.again = self._kernel.now
                self._kernel.touch(other)

    def _end(self, outage: Outage, event: str) -> None:
        self._kernel.fire(outage, event)
        del self.by_lease[outage.lease]
        self._kernel.erase(outage)

    def lease_settled(self, lease: SiteLease) -> None:
        """Nothing of the lease is held up any more if it is over, or waits for no unit."""
        if lease.id in self.by_lease and (lease.ended >= 0 or not lease.waiting):
            self._end(self.by_lease[lease.id], "gone")

    # -- time and state ----------------------------------------------------------------------------------------

    @staticmethod
    def _due_at(outage: Outage) -> Instant | None:
        return outage.again if outage.is_stopped and outage.waiting else None

    def load(self, rows: Iterable[Row]) -> None:
        """What was stopped stays so until it is tried again. Units are told apart by that as they are taken up."""
        self.by_lease = {outage.lease: outage for outage in map(Outage.from_row, rows)}

    def link(self) -> None:
        """After leases and units: which of these are held up."""
        for outage in self.by_lease.values():
            outage.waiting = {unit.id: unit for unit in self._units if outage.holds_up(unit)}
            self._kernel.schedule(outage, self._kernel.due_at(outage))

    # -- queries -----------------------------------------------------------------------------------------------

    @query("units")
    def _query_units(self) -> list[UnitDetails]:
        there = (*self._units, *self._units.machines)
        return [self._units.describe(unit, self._why_waits(unit)) for unit in there]

    def _why_waits(self, unit: SiteUnit) -> Reason | None:
        outage = self.by_lease.get(unit.promised)
        if outage is None or unit.id not in outage.waiting:
            return None
        return Reason(Code.WAITS_FOR_SITE).because(outage.reason)

    def describe(self) -> list[OutageDetails]:
        """Each, for an operator."""
        return [OutageDetails.of(outage, **view(outage.reason)) for outage in self.by_lease.values()]


@attrs.define(eq=False)
class Replacements:
    """Other units in place of those that leases have lost."""

    _kernel: Kernel
    _leases: SiteLeases
    _demands: DemandQueue
    _updates: LeaseUpdates
    _settings: AuthoritySettings

    def go_on_without(self, lease: SiteLease, unit: SiteUnit, *, count: bool = True) -> None:
        """The lease has lost a unit that was up; ``count`` the one that it gets among those that may be replaced."""
        lease.units.remove(unit.id)
        lease.reason = Reason(Code.UNIT, unit.id).because(unit.reason)
        self._kernel.touch(lease)
        settled = not lease.is_priming
        if settled:
            lease.settles = 0  # nobody asked for what comes of it
            self._kernel.fire(lease, "replace", lease.reason)
        if not self._seek_another(lease, count=count):
            self._leases.check_primed(lease)
        elif settled and lease.is_active:
            # Else there may be units that are not up yet, and its guest hears when all of them are.
            self._updates.publish(lease, "active", 0, lease.reason)

    def replace(self, lease: SiteLease, unit: SiteUnit, *, count: bool = False) -> None:
        """Another unit in place of one that the lease never had up."""
        if self._without(lease, unit) and not self._seek_another(lease, count=count):
            self._leases.check_primed(lease)

    def give_up(self, lease: SiteLease, unit: SiteUnit) -> None:
        """What the lease's guest has asked for can't be had: on this unit, and on any other."""
        if not self._without(lease, unit):
            return
        if lease.is_ticketed:
            for name in list(lease.units):
                self._leases.take(lease, name)
        if len(lease.units) <= lease.wanted:
            self._demands.remove(lease)
        self._leases.check_primed(lease)

    def _without(self, lease: SiteLease, unit: SiteUnit) -> bool:
        """Take a unit that was to come from a lease. Returns whether it still wants one."""
        lease.units.remove(unit.id)
        lease.waiting -= 1
        self._kernel.touch(lease)
        return lease.is_priming

    def _seek_another(self, lease: SiteLease, *, count: bool = True) -> bool:
        """Have the mapper find another unit for a lease that has lost one. Returns False if it is to get none."""
        more = lease.wanted - len(lease.units)
        if more == 0:
            self._demands.remove(lease)  # it was to give up a unit
        if more <= 0 or lease.properties.get("deficit", "correct") == "accept":
            return False
        most = self._settings.replacements_max + lease.wanted * self._settings.replacements_share // 1000
        if count and lease.replaced >= most:
            lease.reason = Reason(Code.REPLACED_ENOUGH, units=most).because(lease.reason)
            return False
        lease.replaced += count
        if lease.id not in self._demands.ops:
            self._demands.put(lease, REPLACE)
        self._demands.mark_dirty()
        return True


@attrs.define(eq=False)
class UnitFailures:
    """Units that can't be had, and what that means for their leases."""

    _leases: SiteLeases
    _units: Units
    _calendars: Calendars
    _outages: SiteOutages
    _replacements: Replacements

    def failed(self, lease: SiteLease, unit: SiteUnit, blame: Blame) -> None:
        """A unit could not be set up for its lease."""
        reason = Reason(Code.UNIT, unit.id).because(unit.reason)
        if blame == SITE:
            self._outages.stop(lease, unit, reason)
            return
        lease.reason = reason
        if unit.retire:
            self._calendars.count(unit.type)
        if unit.id not in lease.units:
            return
        if blame == LEASE:
            self._replacements.give_up(lease, unit)
        else:
            self._replacements.replace(lease, unit, count=True)

    def out(self, unit: SiteUnit) -> None:
        """A unit is out of service: a lease that was to get it gets another."""
        self._calendars.count(unit.type)
        host = unit.host or unit.id
        for waiting in (*self._units.machines_on(host), *([self._units[host]] if unit.host else ())):
            lease = self._leases.by_id.get(waiting.promised)
            if waiting.is_free and lease is not None:
                self._units.take(waiting, lease.id)
                self._replacements.replace(lease, waiting)
        if unit.promised:
            promised, unit.promised = self._leases.by_id.get(unit.promised), ""
            self._calendars.unit_moved(unit)
            if promised is not None and unit.id in promised.units:
                self._replacements.replace(promised, unit)

    def left(self, machine: SiteUnit) -> None:
        """A machine was torn down: its host may be in service again."""
        self._calendars.count_moved(machine.type)

    @command("unit.fail")
    def _fail_unit(self, asked: FailUnit) -> ServiceOfUnit:
        """``unit`` is down, for ``reason``. With ``lease`` and ``setup``, as ``watched`` told them, only if it is
        still that one's, from that setup; without, an operator says so, and it stays out until it is enabled.
        """
        unit = self._units.find(asked.unit)
        if asked.setup is None and self._units.machines_on(unit.id):
            told = self._fail_host(unit, _reason(asked.reason, Code.DOWN))
            self._leases.plan_anew({unit.id}, self._calendars.from_now_on)
            return told
        name, lease = unit.id, unit.lease if asked.lease is None else asked.lease
        if not unit.is_up:
            raise CommandError(f"unit {name} is {unit.state}: only one that is {au.UP} can be said to have failed")
        if unit.lease != lease or asked.setup not in (None, unit.setup):
            raise CommandError(f"unit {name} has another lease by now, or was set up anew")
        why = _reason(asked.reason, Code.DOWN)
        if asked.setup is None and not unit.retire:
            self._units.retire(name, why)
        self._units.lose(unit, why)
        if unit.retire:
            self._calendars.count(unit.type)
        self._replacements.go_on_without(self._leases.by_id[lease], unit)
        return ServiceOfUnit(name, unit.state, **view(unit.reason))

    def _fail_host(self, host: SiteUnit, why: Reason) -> ServiceOfUnit:
        """A host is down, and all machines on it, also those that are being changed or are to leave it: their leases
        get others in their place, however many: it is no fault of theirs. What was to come from elsewhere stays there.
        """
        if not host.retire:
            self._units.retire(host.id, why)
        self._calendars.count(host.type)
        for machine in self._units.machines_on(host.id):
            lease = self._leases.by_id.get(machine.lease or machine.promised)
            if lease is None or machine.id not in lease.units or machine.leaves not in ("", host.id):
                continue
            if machine.is_usable:
                lease.waiting -= machine.is_settling
                self._units.lose(machine, why, SITE)
                self._replacements.go_on_without(lease, machine, count=False)
            elif machine.promised:
                self._units.take(machine, lease.id)
                self._replacements.replace(lease, machine)
        return ServiceOfUnit(host.id, shown_state(self._units, host), **view(host.reason or host.retire))


@attrs.define(eq=False)
class UnitMoves:
    """Units that are up, and whose leases are to have them elsewhere."""

    _leases: SiteLeases
    _units: Units
    _calendars: Calendars
    _replacements: Replacements
    _assignment: Assignment

    @command("unit.move")
    def _move_unit(self, asked: MoveUnit) -> MovedUnit:
        unit = self._units.find(asked.unit)
        lease = self._leases.by_id.get(unit.lease)
        if not unit.is_up or lease is None:
            raise CommandError(f"unit {unit.id} is {unit.state}: only one that is {au.UP} can be moved")
        if asked.host and not unit.host:
            raise ArgumentError(
                f"host: found {asked.host!r:.80}, unit {unit.id} is no machine that could be moved there"
            )
        why, to = asked.reason or "no reason given", ""
        if unit.host:
            to = self._other_host(unit, lease, asked.host)
            if self._assignment.can_migrate(unit):
                self._assignment.migrate(Migrate(unit.id, to, why))
                return MovedUnit(unit.id, unit.state, lease.id, to)
            self._leases.change_place(lease, unit.host, to)
        elif not any(unit.retire or unit.given_as in view.classes for view in self._units.free(unit.type)):
            like = "" if unit.retire else ", and of its class,"  # else it would come back to the lease
            raise CommandError(f"unit {unit.id}: no other unit of type {unit.type!r}{like} is free")
        if lease.properties.get("deficit") == "accept":
            raise CommandError(f"unit {unit.id}: lease {lease.id} takes no other in its place (deficit=accept)")
        self._units.lose(unit, Reason(Code.MOVED, detail=clip(why)), SITE)
        self._replacements.go_on_without(lease, unit, count=False)
        return MovedUnit(unit.id, unit.state, lease.id, to)

    def _other_host(self, unit: SiteUnit, lease: SiteLease, host: str) -> str:
        """The host that a machine is to be moved to: the one that is named, if any is. Raises ``CommandError``."""
        claims, places = self._leases.claims_of(lease), self._calendars.places
        if host:
            self._units.find(host)
        found = places.elsewhere(claims, unit.host, [host] if host else None)
        if found is None:
            where = f"host {host}" if host else "no other host of its class"
            has = "has no room for it, or is not of its class" if host else "has room for it"
            raise CommandError(f"unit {unit.id}: {where} {has} up to the end of lease {lease.id}")
        return found


@attrs.define(eq=False)
class UnitEnds:
    """What the ends of actions mean for the leases of their units."""

    _kernel: Kernel
    _leases: SiteLeases
    _units: Units
    _demands: DemandQueue
    _failures: UnitFailures

    def done(self, done: ActionDone) -> None:
        """An action on a unit has ended."""
        ended = self._units.done(done)
        if ended is None:
            return
        what, unit, lease_id, left = ended
        if unit.host or self._units.inventory.hosts(unit.type):
            self._demands.mark_dirty()
        lease = self._leases.by_id.get(lease_id)
        if what == "down":
            self._down(unit, lease)
        elif lease is None:
            return
        elif what == "failed":
            self._failures.failed(lease, unit, done.blame)
        elif what != "again":
            lease.waiting -= 1
            if unit.host:
                self._leases.settle_places(lease)
            if left and unit.host != left:
                self._leases.show(lease)
            self._leases.check_primed(lease)

    def _down(self, unit: SiteUnit, lease: SiteLease | None) -> None:
        if unit.is_out:
            self._failures.out(unit)
        elif unit.host:
            self._failures.left(unit)
        elif unit.is_free and self._demands.ops:
            self._demands.mark_dirty()
        if lease is not None:
            self._leases.check_down(lease)


def _reason(text: str, otherwise: Code) -> Reason:
    return said(text) if text else Reason(otherwise)
