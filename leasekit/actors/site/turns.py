"""What the site's mapper is shown of leases that wait for units, when. Guests' filters are asked before the turn
(:mod:`.kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.units import Units
from leasekit.actors.site.waiting import SHRINK, DemandQueue, booked, demand_of, filters_of
from leasekit.actors.turns import MapperTurns, is_inline
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import AuthorityCycle, AuthorityMapper, Demand
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant

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
        self._mapper = mapper
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
        return self._turns.begin(lambda: self._mapper.assign(cycle))._replace(yields=queue.is_more_to_show())

    def _few(self, ordered: list[tuple[SiteLease, str]]) -> list[tuple[SiteLease, str]]:
        """As many of the first as have few different filters: each may mean a look at all units."""
        filters: set[str] = set()
        for place, (lease, _) in enumerate(ordered):
            filters.add(lease.properties.get(self._filtered_by, ""))
            if len(filters) > FILTERS_MAX:
                return ordered[:place]
        return ordered
