"""Which leases wait for units, and what a mapper is told of them.

What is due at one instant is shown in order: leases that give up units, then those that get more, replacements for
units that failed, and new ones.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease
from leasekit.core.mappers import Demand
from leasekit.core.time import Term

SHRINK, GROW, REPLACE, NEW = "shrink", "grow", "replace", "new"
HELD: Final = "held"
_ORDER = {SHRINK: 0, GROW: 1, REPLACE: 2, NEW: 3}


class DemandQueue:
    """Leases that wait for their site's mapper, by what they need, and what it was shown last. A mapper that
    ``watches`` wants to know of any change, whether a lease waits or not.
    """

    def __init__(self, leases: Mapping[str, SiteLease], watches: bool) -> None:
        self.leases = leases
        """All leases of the site."""
        self.watches = watches
        self.ops: dict[str, str] = {}
        """What each lease that waits needs."""
        self.alone = False
        """Whether those that shrink were shown by themselves."""
        self.stale = False
        """Whether something had changed when the mapper's decisions came."""
        self._look = self._more = False
        self._shown: dict[str, int] = {}

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
