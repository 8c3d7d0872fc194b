"""Which units leases to come are planned to get, of types whose units are leased whole.

Claims count units of a class, and a site chooses units when a term starts. Whoever has redeemed long before wants to
see which these will be. So a lease that is redeemed :data:`AHEAD` of its term, or more, has units planned that nobody
else has, or is planned to have, in its term: of each class the last ones, as leases that start at once get the first.
The plan is what the lease's record has as its places; there is no other. A mapper that ``plans`` gives its units when
the term starts.

A plan is no promise. A unit that fails, is out of service over the term, or is given to somebody who needs it sooner is
planned for nobody: another takes its place, or none, where none is free throughout. Each change is in the site's log
(``place``), as are those of places on hosts (:mod:`.hosts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import attrs

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.units import Units
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.reasons import Code, said
from leasekit.core.time import MINUTE, Duration, Term

AHEAD: Final[Duration] = MINUTE
"""How long before its term a lease is redeemed that has units planned: who waits for less sees them soon enough."""


@keeps(derived="_on")
@attrs.define(eq=False, slots=False)
class UnitPlans:
    """The plans of a site's ``leases``, if its ``mapper`` follows them; of none with a filter of its own. ``is_out``
    says whether a unit is out of service for a window at some time of a term.
    """

    _kernel: Kernel
    _units: Units
    _leases: Mapping[str, SiteLease]
    _is_out: Callable[[SiteUnit, Term], bool]
    _mapper: AuthorityMapper
    _on: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """For which leases each unit was planned; for which it still is their records say."""

    def plan(self, lease: SiteLease) -> None:
        """Plan units for a lease that is new."""
        if self._is_planned(lease) and lease.term.start >= self._kernel.now + AHEAD:
            for class_, count in lease.classes:
                lease.places += tuple(islice(self._free(lease, class_), count))
            self._note(lease)

    def restore(self, lease: SiteLease) -> None:
        """Take up the plan of a lease, as a store kept it."""
        if lease.awaits_mapper and not lease.sizes:
            lease.places = lease.places if self._is_planned(lease) else ()
            self._note(lease)

    def _is_planned(self, lease: SiteLease) -> bool:
        filtered_by = getattr(self._mapper, "filtered_by", "")
        return getattr(self._mapper, "plans", False) is True and not lease.sizes and filtered_by not in lease.properties

    def _note(self, lease: SiteLease) -> None:
        for name in lease.places:
            self._on.setdefault(name, {})[lease.id] = None

    def unit_moved(self, unit: SiteUnit, *_: object) -> None:
        """Something has happened to a unit."""
        if unit.id in self._on:
            self.check((unit.id,))

    def check(self, names: Iterable[str]) -> None:
        """Plan others where any of these units can't be had any more by a lease for which it is planned."""
        for name in [one for one in names if one in self._on]:
            for lease in self._planned(name):
                if not self._is_free(self._units[name], lease):
                    self._replace(lease, name)

    def _planned(self, name: str) -> list[SiteLease]:
        """The leases to come for which a unit is planned."""
        there = self._on.get(name, {})
        found = [lease for id_ in there if (lease := self._leases.get(id_)) is not None and self._has(lease, name)]
        if len(found) < len(there):
            self._on[name] = {lease.id: None for lease in found}
            if not found:
                del self._on[name]
        return found

    @staticmethod
    def _has(lease: SiteLease, name: str) -> bool:
        return lease.awaits_mapper and name in lease.places

    def _replace(self, lease: SiteLease, name: str) -> None:
        classes = self._units[name].classes
        short = next((class_ for class_, _ in lease.classes if class_ in classes), lease.classes[0][0])
        others = tuple(islice(self._free(lease, short), 1))
        lease.places = tuple(one for one in lease.places if one != name) + others
        self._note(lease)
        self._kernel.note(lease.id, "place", "", "", said(f"{others[0] if others else 'none'}, not {name}"))
        self._kernel.touch(lease)

    def _free(self, lease: SiteLease, class_: bytes) -> Iterator[str]:
        """Units of a class that a lease to come may have, the last ones first."""
        for group in reversed(self._units.inventory.groups):
            for name in reversed(group.names) if group.type == lease.type else ():
                unit = self._units[name]
                if class_ in unit.classes and name not in lease.places and self._is_free(unit, lease):
                    yield name

    def _is_free(self, unit: SiteUnit, lease: SiteLease) -> bool:
        """Whether nobody else has a unit, or is planned to have it, at any time of a lease to come."""
        term = Term(lease.term.start, lease.ends_at)
        is_out = (unit.is_out or unit.retire) and (unit.retire is None or unit.retire.code != Code.MAINTENANCE)
        if is_out or self._is_out(unit, term):  # one that is out for a window comes back at its end
            return False
        holder = self._leases.get(unit.promised or (unit.lease if unit.is_in_use else ""))
        if holder is not None:
            given_up = (later.term.start for later in holder.accepted if unit.id in later.victims)
            if min((holder.ends_at, *given_up)) > term.start:
                return False
        others = self._planned(unit.id) if unit.id in self._on else ()
        return not any(one is not lease and term.overlaps(Term(one.term.start, one.ends_at)) for one in others)
