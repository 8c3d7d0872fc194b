"""Units in the order in which the site offers them: clean ones first, then those that are still being torn down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import attrs

from leasekit.core.filters import Filter, FilterError, parse_filter
from leasekit.core.mappers import Assign, AuthorityCycle, AuthorityDecision, Demand, Refuse, Release, UnitView

FILTER: Final = "filter"
"""The configuration property that says which units will do."""
SHOWN_MAX: Final = 3


@attrs.frozen(kw_only=True)
class FirstFitSettings:
    """Settings of :class:`FirstFit`: there are none."""


class FirstFit:
    """The authority's standard mapper. It keeps nothing from turn to turn.

    A lease that is to get more units than there are gets what there is; the authority says in the lease's reason how
    many are missing. A unit that the ticket names goes to that lease before any other gets to choose. A lease whose
    configuration property ``filter`` is set gets only units whose properties (with ``unit``, the name, and ``type``)
    it accepts. A lease that shrinks without having named all its victims gives up the units that it got last.
    """

    Settings: ClassVar[type[FirstFitSettings]] = FirstFitSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: FirstFitSettings | None = None) -> None:
        self.settings = settings or FirstFitSettings()

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle, in its order."""
        turn = Turn(cycle)
        return [turn.shrink(demand) if demand.units < 0 else turn.fill(demand) for demand in cycle.demands]


class Turn:
    """One turn: which units have been given out so far, and how far each offer has been read."""

    def __init__(self, cycle: AuthorityCycle) -> None:
        self._cycle = cycle
        self._offers: dict[tuple[str, str], Iterator[str]] = {}
        self._able: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        # Named units are kept from everybody else, whoever comes first.
        self._named = {unit for demand in cycle.demands if demand.units > 0 for unit in demand.wanted}

    @staticmethod
    def shrink(demand: Demand) -> Release:
        """The last ones go."""
        return Release(demand.lease, demand.held[demand.units :])

    def fill(self, demand: Demand) -> Assign | Refuse:
        """Named units where the demand names them, then whatever is next, and will do, for those that it doesn't."""
        text = demand.properties.get(FILTER, "")
        try:
            filter_ = parse_filter(text) if text else None
        except FilterError as error:
            return Refuse(demand.lease, f"configuration.{error}")
        named = [unit for unit in demand.wanted if unit not in demand.held]
        chosen = self._wanted(demand.type, named[: demand.units])
        chosen += self._next(demand.type, demand.units - len(named), filter_)
        if chosen:
            return Assign(demand.lease, tuple(chosen))
        if named:
            return Refuse(demand.lease, f"none of the units that the ticket names is free: {', '.join(named[:5])}")
        return Refuse(demand.lease, self._why_none(demand.type, filter_))

    def _wanted(self, type_: str, named: list[str]) -> list[str]:
        """Those of the named units that can be had. The ticket ties the lease to them, so that others won't do."""
        if not named:
            return []
        if type_ not in self._able:
            self._able[type_] = {unit.id for unit in self._cycle.free(type_)}
        mine = [unit for unit in named if unit in self._able[type_] and unit not in self._gone]
        self._gone.update(mine)
        return mine

    def _next(self, type_: str, count: int, filter_: Filter | None) -> list[str]:
        key = (type_, filter_.text if filter_ is not None else "")
        offer = self._offers.get(key)
        if offer is None:
            offer = self._offers[key] = self._offer(type_, filter_)
        chosen: list[str] = []
        while len(chosen) < count:
            unit = next(offer, None)
            if unit is None:
                break
            if unit not in self._gone and unit not in self._named:
                chosen.append(unit)
        self._gone.update(chosen)
        return chosen

    def _offer(self, type_: str, filter_: Filter | None) -> Iterator[str]:
        return (unit.id for unit in self._cycle.free(type_) if acceptable(unit, filter_))

    def _why_none(self, type_: str, filter_: Filter | None) -> str:
        nothing = f"no unit of type {type_!r} is in service and free"
        if filter_ is None:
            return nothing
        free = [unit for unit in self._cycle.free(type_) if unit.id not in self._gone and unit.id not in self._named]
        if not free:
            return nothing
        # One example of each way in which units fall short.
        misses = {filter_.misses(described(unit)): unit.id for unit in reversed(free)}
        shown = [f"{unit}: {miss}" for miss, unit in reversed(misses.items())]
        more = "" if len(shown) <= SHOWN_MAX else ", ..."
        return (
            f"none of the {len(free)} free units of type {type_!r} satisfies the filter {filter_.text!r:.200} "
            f"({', '.join(shown[:SHOWN_MAX])}{more})"
        )


def described(unit: UnitView) -> dict[str, str]:
    """What a filter sees of a unit."""
    return {**unit.properties, "unit": unit.id, "type": unit.type}


def acceptable(unit: UnitView, filter_: Filter | None) -> bool:
    """Whether a unit will do for a filter."""
    return filter_ is None or filter_(described(unit))
