"""Power at a site: what its mapper decides of it, and what a mapper that watches is told.

A mapper decides which free units are switched off, suspended, or on (:class:`~leasekit.core.mappers.Power`); each
decision becomes an operation of the driver that the site has for the power of that type. A lease may be given a unit
that is not on: :mod:`.units` has it switched on first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from leasekit.actors.site.maintenance import SiteMaintenance
from leasekit.actors.site.turns import GROW, NEW, SHRINK
from leasekit.actors.site.units import REASON_MAX
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import Assign, AuthorityDecision, Demand, Power, Refuse, Release
from leasekit.core.protocol.codec import clip
from leasekit.core.steps import Tick
from leasekit.core.time import Instant, Term

HELD: Final = "held"
EVENTS: Final = ("on", "off", "suspend")
"""What a mapper may decide."""


class SitePower(SiteMaintenance):
    """A site's power switches."""

    decisions = (Assign, Release, Refuse, Power)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._watches = getattr(self._mapper, "watches", False) is True
        self._watched = False

    # -- the mapper's turns ------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
        if self._watches and not self._watched:
            self._watched = self._look = True

    def look_again(self) -> None:
        """As the layer below; a mapper that watches wants to know of any change."""
        super().look_again()
        self._look = self._look or self._watches

    def _turn_at(self) -> Instant | None:
        if self._watches and not self._queue and not self.turns.running:
            return self.kernel.now if self._look or self._more else self.turns.wake
        return super()._turn_at()

    def _filters(self, shown: Iterable[str]) -> Iterator[tuple[str, str]]:
        """As the layer below; a mapper that watches looks at what is booked as well."""
        live = (lease.id for lease in self.leases.values() if lease.ended < 0)
        return super()._filters(live if self._watches else shown)

    def _booked(self, shown: Container[str]) -> Callable[[str], Sequence[Demand]]:
        """What leases will need, by type. Looked up once a turn, and only if the mapper watches."""
        if not self._watches:
            return super()._booked(shown)
        found: dict[str, list[Demand]] = {}
        for demand in chain.from_iterable(self._later(lease, shown) for lease in self.leases.values()):
            found.setdefault(demand.type, []).append(demand)
        for demands in found.values():
            demands.sort(key=lambda demand: (demand.term.start, demand.lease))
        return lambda type_: found.get(type_, ())

    def _later(self, lease: SiteLease, shown: Container[str]) -> Iterable[Demand]:
        """What a lease has, and what it will need more of than it has, or than it is shown to wait for."""
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return
        end = lease.goes_to if lease.noticed < 0 else min(lease.goes_to, lease.noticed)
        if lease.units:
            term = Term(lease.term.start, max(end, lease.term.start + 1))
            held = tuple(lease.units)
            yield Demand(lease.id, lease.holder, HELD, lease.type, 0, held, (), term, lease.properties)
        if lease.id in shown:
            return
        op = self._queue.get(lease.id)
        if op is not None and op != SHRINK:  # its turn is the next one, at this same instant
            yield self._view(lease, op)
            return
        if lease.pending == au.REDEEMING and end > lease.term.start:
            term = Term(lease.term.start, end)
            yield Demand(lease.id, lease.holder, NEW, lease.type, lease.wanted, (), (), term, lease.properties)
        for later in lease.accepted:
            if later.units > lease.wanted and end > later.term.start:
                term = Term(later.term.start, min(end, later.term.end))
                yield Demand(
                    lease.id, lease.holder, GROW, lease.type, later.units - lease.wanted, tuple(lease.units), (),
                    term, later.properties,
                )  # fmt: skip

    # -- what it decides ---------------------------------------------------------------------------------------

    def _carry_out(self, decision: AuthorityDecision) -> None:
        if isinstance(decision, Power):
            self._switch(decision)
        else:
            super()._carry_out(decision)

    def _switch(self, decision: Power) -> None:
        name, to = decision.unit, decision.to
        if name not in self.units:
            raise CommandError(f"there is no unit {name!r}")
        if to not in EVENTS:
            raise CommandError(f"unit {name}: found {to!r}, it can be switched to one of: {', '.join(EVENTS)}")
        unit = self.units[name]
        if not self.units.is_switched(unit):
            raise CommandError(f"unit {name}: no driver switches units of type {unit.type!r}")
        if unit.state != au.FREE or unit.promised:
            holder = unit.lease or unit.promised
            raise CommandError(f"unit {name} is {unit.state}{f', for lease {holder}' if holder else ''}: it stays on")
        if not pw.MACHINE.allows((unit.power, NONE), to):
            raise CommandError(f"unit {name} is {unit.power}: it can't be switched {to}")
        self.units.switch(unit, to, clip(decision.reason, REASON_MAX))
