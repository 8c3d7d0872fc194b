"""Which units leases to come are planned to get, of types whose units are leased whole.

Claims count units of a class, and a site chooses units when a term starts. Whoever has redeemed long before wants to
see which these will be. So a lease that is redeemed :data:`AHEAD` of its term, or more, has units planned that nobody
else has, or is planned to have, in its term: of each class the last ones, as leases that start at once get the first.
The plan is what the lease's record has as its places; there is no other. A mapper that ``plans`` gives its units when
the term starts.

Units of a class are kept in the order of the last end that was planned on each. So whoever begins after that is found a
unit at once, the one that was planned last before; gaps before it are looked for at :data:`LOOKED_MAX` units.

A plan is no promise. A unit that fails, is out of service over the term, or is given to somebody who needs it sooner is
planned for nobody: another takes its place, or none, where none is free throughout. Each change is in the site's log
(``place``), as are those of places on hosts (:mod:`.calendars`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final

import attrs
from sortedcontainers import SortedList

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.units import Units
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.reasons import Code, said
from leasekit.core.time import MINUTE, Duration, Instant, Term

AHEAD: Final[Duration] = MINUTE
"""How long before its term a lease is redeemed that has units planned: who waits for less sees them soon enough."""

LOOKED_MAX: Final = 200
"""How many units of a class are looked at, at most, for one lease."""
NO_CONCERN: Final = frozenset({"up", "down", "modify", "teardown", "back"})
"""What happens to units, and takes them from nobody for whom they are planned."""


@keeps(derived="_on _noted _ends _orders")
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
    """For which leases to come each unit was planned; for which it still is their records say."""
    _noted: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """The same by lease."""
    _ends: dict[str, Instant] = attrs.field(factory=dict, init=False)
    """The last end that was planned on each unit."""
    _orders: dict[tuple[str, bytes], SortedList] = attrs.field(factory=dict, init=False)
    """Units of each type and class, by these ends and then as the inventory has them."""

    def plan(self, lease: SiteLease) -> None:
        """Plan units for a lease that is new."""
        if self._is_planned(lease) and lease.term.start >= self._kernel.now + AHEAD:
            for class_, count in lease.classes:
                self._choose(lease, class_, count)

    def restore(self, lease: SiteLease) -> None:
        """Take up the plan of a lease, as a store kept it."""
        if lease.awaits_mapper and not lease.sizes:
            known = (name for name in lease.places if name in self._units)  # what nobody had leaves no record
            lease.places = tuple(known) if self._is_planned(lease) else ()
            for name in lease.places:
                self._note(lease, name)

    def inventory_changed(self, changed: Iterable[SiteUnit]) -> None:
        """Units have come, or gone, or are of other classes."""
        self._orders.clear()
        self.check([unit.id for unit in changed])

    def _is_planned(self, lease: SiteLease) -> bool:
        filtered_by = getattr(self._mapper, "filtered_by", "")
        return getattr(self._mapper, "plans", False) is True and not lease.sizes and filtered_by not in lease.properties

    def _choose(self, lease: SiteLease, class_: bytes, count: int) -> tuple[str, ...]:
        """Plan so many units of a class for a lease, as far as there are some; which these are."""
        found = tuple(islice(self._free(lease, class_), count))
        lease.places += found
        for name in found:
            self._note(lease, name)
        return found

    def _note(self, lease: SiteLease, name: str) -> None:
        self._on.setdefault(name, {})[lease.id] = None
        self._noted.setdefault(lease.id, {})[name] = None
        self._set_end(name, max(lease.ends_at, self._ends.get(name, 0)))

    def _set_end(self, name: str, end: Instant) -> None:
        before, unit = self._ends.pop(name, 0), self._units[name]
        if end:
            self._ends[name] = end
        for key in [(unit.type, class_) for class_ in unit.classes]:
            if key in self._orders:
                self._orders[key].discard((before, unit.number, name))
                self._orders[key].add((end, unit.number, name))

    def settled(self, lease: SiteLease) -> None:
        """A lease has its units, or is over: it has no plan any more."""
        if lease.awaits_mapper:
            return
        for name in self._noted.pop(lease.id, ()):
            del self._on[name][lease.id]
            if not self._on[name]:
                del self._on[name]
                self._set_end(name, 0)
        if not self._noted:
            self._orders.clear()

    def unit_moved(self, unit: SiteUnit, event: str, *_: object) -> None:
        """Something has happened to a unit."""
        if unit.id in self._on and event not in NO_CONCERN:
            self.check((unit.id,))

    def check(self, names: Iterable[str]) -> None:
        """Plan others where any of these units can't be had any more by a lease for which it is planned."""
        for name in [one for one in names if one in self._on]:
            for lease in self._planned(name):
                if not self._is_there(self._units[name], lease):
                    self._replace(lease, name)

    def _planned(self, name: str) -> list[SiteLease]:
        """The leases to come for which a unit is planned."""
        there = (self._leases[id_] for id_ in self._on[name])
        return [lease for lease in there if lease.awaits_mapper and name in lease.places]

    def _replace(self, lease: SiteLease, name: str) -> None:
        classes = self._units[name].classes
        short = next((class_ for class_, _ in lease.classes if class_ in classes), lease.classes[0][0])
        lease.places = tuple(one for one in lease.places if one != name)
        others = self._choose(lease, short, 1)
        self._kernel.note(lease.id, "place", "", "", said(f"{others[0] if others else 'none'}, not {name}"))
        self._kernel.touch(lease)

    def _free(self, lease: SiteLease, class_: bytes) -> Iterator[str]:
        """Units of a class that a lease to come may have."""
        order, after = self._order(class_, lease.type), (lease.term.start + 1,)
        behind = order.irange(maximum=after, inclusive=(True, False), reverse=True)
        for end, _, name in islice(chain(behind, order.irange(minimum=after)), LOOKED_MAX):
            is_alone = end <= lease.term.start or not self._meets_another(name, lease)
            if is_alone and name not in lease.places and self._is_there(self._units[name], lease):
                yield name

    def _order(self, class_: bytes, type_: str) -> SortedList:
        key = type_, class_  # units of other types may have equal attributes
        if key not in self._orders:
            units = (unit for unit in self._units if unit.type == type_ and class_ in unit.classes)
            self._orders[key] = SortedList((self._ends.get(unit.id, 0), unit.number, unit.id) for unit in units)
        return self._orders[key]

    def _is_there(self, unit: SiteUnit, lease: SiteLease) -> bool:
        """Whether a unit is in service throughout a lease to come, and who has it has left it by then."""
        term = Term(lease.term.start, lease.ends_at)
        is_out = (unit.is_out or unit.retire) and (unit.retire is None or unit.retire.code != Code.MAINTENANCE)
        if is_out or self._is_out(unit, term):  # one that is out for a window comes back at its end
            return False
        holder = self._leases.get(unit.promised or (unit.lease if unit.is_in_use else ""))
        if holder is None:
            return True
        given_up = (later.term.start for later in holder.accepted if unit.id in later.victims)
        return min((holder.ends_at, *given_up)) <= term.start

    def _meets_another(self, name: str, lease: SiteLease) -> bool:
        """Whether a unit is planned for another at some time of a lease to come."""
        term = Term(lease.term.start, lease.ends_at)
        others = self._planned(name) if name in self._on else ()
        return any(one is not lease and term.overlaps(Term(one.term.start, one.ends_at)) for one in others)
