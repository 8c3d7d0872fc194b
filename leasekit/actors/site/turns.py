"""Which leases wait for units, and what the site's mapper is shown of them, when.

What is due at one instant is shown in order: leases that give up units, then those that get more, replacements for
units that failed, and new ones. Guests' filters are asked before the turn (:mod:`.kinds`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.units import Units
from leasekit.actors.turns import MapperTurns, is_inline
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import AuthorityCycle, AuthorityMapper, Demand
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant, Term

SHRINK, GROW, REPLACE, NEW = "shrink", "grow", "replace", "new"
HELD: Final = "held"
_ORDER = {SHRINK: 0, GROW: 1, REPLACE: 2, NEW: 3}


@attrs.define(eq=False, slots=False)
class DemandQueue:
    """Leases that wait for their site's mapper, by what they need, and what it was shown last. A mapper that
    ``watches`` wants to know of any change, whether a lease waits or not.
    """

    leases: Mapping[str, SiteLease]
    """All leases of the site."""
    watches: bool
    ops: dict[str, str] = attrs.field(factory=dict, init=False)
    """What each lease that waits needs."""
    alone: bool = attrs.field(default=False, init=False)
    """Whether those that shrink were shown by themselves."""
    stale: bool = attrs.field(default=False, init=False)
    """Whether something had changed when the mapper's decisions came."""
    _look: bool = attrs.field(default=False, init=False)
    _more: bool = attrs.field(default=False, init=False)
    _shown: dict[str, int] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.ops)

    def waiting(self) -> Iterable[str]:
        """The leases that wait."""
        return self.ops

    def put(self, lease: SiteLease, op: str) -> None:
        """A lease needs its mapper from now on."""
        self.ops[lease.id] = op
        self._look = True

    def remove(self, lease: SiteLease) -> None:
        """A lease needs its mapper no more."""
        self.ops.pop(lease.id, None)

    def look_again(self) -> None:
        """Something has changed that the mapper may want to know."""
        self._look = self.watches or bool(self.ops)

    def is_news(self) -> bool:
        """Whether there is something that the mapper was not shown."""
        return self._look or self._more

    def ordered(self) -> list[tuple[SiteLease, str]]:
        """Those that wait, and what each needs, in the order in which they are shown."""
        return [(self.leases[id_], op) for id_, op in sorted(self.ops.items(), key=lambda item: _ORDER[item[1]])]

    def show(self, demands: Sequence[Demand], *, alone: bool) -> None:
        """The mapper is shown this much."""
        self.alone = self._look = alone
        self._more = not alone and len(demands) < len(self.ops)
        self._shown = {demand.lease: demand.units for demand in demands}

    def is_more_to_show(self) -> bool:
        """Whether the next turn shows what there was no place for in this one."""
        return self._more

    def shown_units(self, lease: SiteLease, otherwise: int) -> int:
        """How many units the mapper believes that a lease needs."""
        return self._shown.get(lease.id, otherwise)

    def begin_decisions(self) -> None:
        """Decisions come: what has changed meanwhile makes a refusal stale."""
        self.stale = self._look

    def end_decisions(self) -> None:
        """Decisions were carried out: those that were shown, and still wait, come after what was not shown yet."""
        if self._more and (left := [lease for lease in self._shown if lease in self.ops]):
            self._more = False
            self.ops.update({lease: self.ops.pop(lease) for lease in left})


def demand_of(lease: SiteLease, op: str) -> Demand:
    """What a lease lacks now, or has too many of."""
    return Demand(
        lease.id, lease.holder, op, lease.type, lease.wanted - len(lease.units), tuple(lease.units), (), lease.term,
        lease.properties,
    )  # fmt: skip


def booked(queue: DemandQueue, shown: Container[str]) -> dict[str, list[Demand]]:
    """What leases have and will need, by type, beside the demands of those that are ``shown``."""
    found: dict[str, list[Demand]] = {}
    for lease in queue.leases.values():
        for demand in _later(lease, queue.ops.get(lease.id), lease.id in shown):
            found.setdefault(demand.type, []).append(demand)
    for demands in found.values():
        demands.sort(key=lambda demand: (demand.term.start, demand.lease))
    return found


def _later(lease: SiteLease, op: str | None, is_shown: bool) -> Iterable[Demand]:
    """What a lease has, and what it will need more of than it has, or than it is shown to wait for."""
    if lease.ended >= 0 or lease.pending == au.CLOSING:
        return
    end = lease.goes_to if lease.noticed < 0 else min(lease.goes_to, lease.noticed)
    if lease.units:
        term = Term(lease.term.start, max(end, lease.term.start + 1))
        held = tuple(lease.units)
        yield Demand(lease.id, lease.holder, HELD, lease.type, 0, held, (), term, lease.properties)
    if is_shown:
        return
    if op is not None and op != SHRINK:  # its turn is the next one, at this same instant
        yield demand_of(lease, op)
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


def filters_of(leases: Iterable[SiteLease], field: str) -> Iterator[tuple[str, str]]:
    """The filters that the property ``field`` of leases has, each with the type that it is about."""
    for lease in leases:
        if text := lease.properties.get(field, ""):
            yield lease.type, text


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
    _units: Units
    _inline: bool = attrs.field(init=False)
    _filtered_by: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
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
            if not units.kinds.ask(dict.fromkeys(filters_of(asking, self._filtered_by))):
                return _SLICE
        demands = [demand_of(lease, op) for lease, op in shown]
        queue.show(demands, alone=alone)
        self._turns.answer_wake()
        seen = units if self._inline else units.snapshot()
        # Looked up once a turn, and only if the mapper watches.
        later = booked(queue, {lease.id for lease, _ in shown}) if queue.watches else {}
        cycle = AuthorityCycle(
            self._kernel.now, demands, seen.free, seen.view, seen.all, lambda type_: later.get(type_, ())
        )
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
