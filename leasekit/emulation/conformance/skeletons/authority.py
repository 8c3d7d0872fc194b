"""An authority's mapper: the units that have failed least go first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from leasekit.core.mappers import Assign, AuthorityCycle, AuthorityDecision, Demand, Refuse, Release, UnitView


@attrs.frozen(kw_only=True)
class SkeletonSettings:
    """What a deploy file may say in the mapper's table, beside its name."""

    newest_first: bool = True
    """Whether a lease that shrinks without having named its victims gives up the units that it got last."""


class Skeleton:
    """Called when leases need units, or must give some up; keeps nothing from turn to turn."""

    Settings: ClassVar[type[SkeletonSettings]] = SkeletonSettings
    inline: ClassVar[bool] = True  # it is quick: an emulation need not copy what it shows it

    def __init__(self, settings: SkeletonSettings | None = None) -> None:
        self.settings = settings or SkeletonSettings()

    def assign(self, cycle: AuthorityCycle) -> Iterator[AuthorityDecision]:
        """One decision for each demand, in the order in which they must be filled."""
        free: dict[str, list[UnitView]] = {}
        for demand in cycle.demands:
            if demand.units < 0:
                yield self._shrink(demand)
                continue
            if demand.type not in free:
                # Clean ones come before those that are still torn down: the sort keeps that order among equals. The
                # last one of the list is the next to go.
                free[demand.type] = sorted(cycle.free(demand.type), key=lambda unit: unit.failures)[::-1]
            yield _fill(demand, free[demand.type])

    def _shrink(self, demand: Demand) -> Release:
        count = -demand.units
        return Release(demand.lease, demand.held[-count:] if self.settings.newest_first else demand.held[:count])


def _fill(demand: Demand, free: list[UnitView]) -> Assign | Refuse:
    """As many as there are; a ticket that names units gets those and no others."""
    named = set(demand.wanted) - set(demand.held)
    if named:
        chosen = [unit for unit in free if unit.id in named][: demand.units]
        free[:] = [unit for unit in free if unit not in chosen]
    else:
        chosen = [free.pop() for _ in range(min(demand.units, len(free)))]
    if not chosen:
        return Refuse(demand.lease, f"no unit of type {demand.type!r} is free")
    return Assign(demand.lease, tuple(unit.id for unit in chosen))
