"""What the site's mapper is shown of leases that wait for units, when; and what it decides for them.

Guests' filters are asked before the turn (:mod:`.kinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.leases import SiteLeases
from leasekit.actors.site.power import switch
from leasekit.actors.site.units import Units
from leasekit.actors.site.waiting import NEW, REPLACE, SHRINK, DemandQueue, booked, demand_of, filters_of
from leasekit.actors.turns import MapperTurns, is_inline
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import Assign, AuthorityCycle, AuthorityMapper, Demand, Power, Refuse, Release
from leasekit.core.reasons import Code, Reason, of_mapper, said
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant
from leasekit.core.words import counted

FILTERS_MAX: Final = 4
"""How many different filters (none is one, too) the demands of one turn have at most."""
_SLICE: Final = Turn(-1, lambda: TurnDone(-1), yields=True)


class SiteTurns:
    """The turns of a site's mapper."""

    def __init__(
        self, kernel: Kernel, turns: MapperTurns, mapper: AuthorityMapper, queue: DemandQueue, units: Units
    ) -> None:
        self._kernel = kernel
        self._turns = turns
        self.mapper = mapper
        self._queue = queue
        self._units = units
        self._inline = is_inline(mapper)
        self._filtered_by = str(getattr(mapper, "filtered_by", "")) if self._inline else ""

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
            if not units.kinds.ask(dict.fromkeys(filters_of(asking, self._filtered_by))):
                return _SLICE
        demands = [demand_of(lease, op) for lease, op in shown]
        queue.show(demands, alone=alone)
        self._turns.answer_wake()
        seen = units if self._inline else units.snapshot()
        # Looked up once a turn, and only if the mapper watches.
        later = booked(queue, {lease.id for lease, _ in shown}) if queue.watches else {}

        def of_type(type_: str) -> Sequence[Demand]:
            return later.get(type_, ())

        cycle = AuthorityCycle(self._kernel.now, demands, seen.free, seen.view, seen.all, of_type)
        return self._turns.begin(lambda: self.mapper.assign(cycle))._replace(yields=queue.is_more_to_show())

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
    _units: Units
    _demands: DemandQueue

    @property
    def carriers(self) -> dict[type, Callable[[Any], None]]:
        """How each decision is carried out."""
        return {
            Assign: lambda one: self._assign(*self._waiting(one.lease), one.units),
            Release: lambda one: self._release(*self._waiting(one.lease), one.units),
            Refuse: lambda one: self._refuse(*self._waiting(one.lease), of_mapper(one.reason)),
            Power: lambda one: switch(self._units, one),
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
        self._demands.remove(lease)
        missing = lease.wanted - len(lease.units)
        if missing > self._demands.shown_units(lease, missing):  # more have failed than the mapper knew of
            self._demands.put(lease, REPLACE if op == NEW else op)
        elif len(names) < missing:
            lease.reason = lease.reason or Reason(Code.FEWER_FREE, units=len(names))
        if op == NEW:
            self._kernel.fire(au.MACHINE, lease, "assign", said(counted(len(names))))
        for name in names:
            lease.units.append(name)
            lease.waiting += 1
            self._units.give(self._units[name], lease.id)
        self._kernel.touch(lease)

    def _release(self, lease: SiteLease, op: str, names: tuple[str, ...]) -> None:
        if op != SHRINK or len(set(names)) != len(names) or len(names) != len(lease.units) - lease.wanted:
            raise CommandError(
                f"lease {lease.id} is to give up {len(lease.units) - lease.wanted} units; got {names!r:.120}"
            )
        for name in names:
            if name not in lease.units:
                raise CommandError(f"unit {name!r} is not one of lease {lease.id}")
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
