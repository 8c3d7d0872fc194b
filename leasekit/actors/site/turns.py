"""Which leases wait for units, and what the site's mapper is shown of them, when.

What is due at one instant is shown in order: leases that give up units, then those that get more, replacements for
units that failed, and new ones. Guests' filters are asked before the turn (:mod:`.kinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final

from leasekit.actors.issued import Issued
from leasekit.actors.server import Server
from leasekit.actors.settings import AuthoritySettings, Peer
from leasekit.actors.site.units import Units
from leasekit.actors.turns import is_inline
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import AuthorityCycle, AuthorityMapper, Demand
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant

SHRINK, GROW, REPLACE, NEW = "shrink", "grow", "replace", "new"
FILTERS_MAX: Final = 4
"""How many different filters (none is one, too) the demands of one turn have at most."""
_SLICE: Final = Turn(-1, lambda: TurnDone(-1), yields=True)
_ORDER = {SHRINK: 0, GROW: 1, REPLACE: 2, NEW: 3}


class SiteTurns(Server[SiteLease]):
    """The mapper's turns at an authority."""

    units: Units
    issued: Issued

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: AuthorityMapper,
        settings: AuthoritySettings,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self._mapper = mapper
        self.inline = is_inline(mapper)
        self._filtered_by = str(getattr(mapper, "filtered_by", "")) if self.inline else ""
        self._queue: dict[str, str] = {}
        self._look = self._more = False
        self._shrunk = False
        self._shown: dict[str, int] = {}

    def look_again(self) -> None:
        """Something has changed that the mapper may want to know."""
        self._look = bool(self._queue)

    def _turn_at(self) -> Instant | None:
        if self.turns.running or not self._queue:
            return None
        return self.kernel.now if self._look or self._more else self.turns.wake

    def turn(self) -> Turn | None:
        """The mapper's turn, if leases wait for units and something has changed since it looked; before it, what
        filters say.
        """
        at = self._turn_at()
        if at is None or at > self.kernel.now:
            return None
        ordered = sorted(self._queue.items(), key=lambda item: _ORDER[item[1]])
        shrinking = [item for item in ordered if item[1] == SHRINK]
        # By themselves, so that what they give up is there for the others at the same instant.
        alone = bool(shrinking) and len(shrinking) < len(ordered) and not self._shrunk
        shown = shrinking if alone else self._few(ordered)
        if self._filtered_by and not self.units.kinds.ask(dict.fromkeys(self._filters(id_ for id_, _ in shown))):
            return _SLICE
        self._shrunk, self._look, self.turns.wake = alone, alone, None
        self._more = not alone and len(shown) < len(ordered)
        demands = [self._view(self.leases[id_], op) for id_, op in shown]
        self._shown = {demand.lease: demand.units for demand in demands}
        units = self.units if self.inline else self.units.snapshot()
        cycle = AuthorityCycle(self.kernel.now, demands, units.free, units.view, units.all, self._booked(dict(shown)))
        return self.turns.begin(lambda: self._mapper.assign(cycle))._replace(yields=self._more)

    def _few(self, ordered: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """As many of the first as have few different filters: each may mean a look at all units."""
        filters: set[str] = set()
        for place, (id_, _) in enumerate(ordered):
            filters.add(self.leases[id_].properties.get(self._filtered_by, ""))
            if len(filters) > FILTERS_MAX:
                return ordered[:place]
        return ordered

    def _filters(self, shown: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The filters that the mapper will need, each with the type that it is about."""
        for lease in map(self.leases.__getitem__, shown):
            if text := lease.properties.get(self._filtered_by, ""):
                yield lease.type, text

    def _booked(self, shown: Container[str]) -> Callable[[str], Sequence[Demand]]:
        """What a mapper is told beside the demands of those leases that are ``shown``: nothing, unless it wants it."""
        return _nothing

    def _view(self, lease: SiteLease, op: str) -> Demand:
        return Demand(
            lease.id, lease.holder, op, lease.type, lease.wanted - len(lease.units), tuple(lease.units), (), lease.term,
            lease.properties,
        )  # fmt: skip

    def _waits_for_mapper(self) -> Iterable[str]:
        return self._queue


def _nothing(type_: str) -> Sequence[Demand]:
    return ()
