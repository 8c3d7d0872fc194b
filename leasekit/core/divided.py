"""Timetables of a divided type: what is free of each resource of its hosts, seen in units of one size.

What is booked of hosts is booked by class and resource (:func:`leasekit.core.properties.weigh`), in one timetable each,
together a :class:`ClassedTimetable` of *pools*. Who asks for machines, or for whole hosts, wants to know how many of
these are free: a :class:`DividedTimetable` says that of the same pools for any needs. What is booked in one view is
booked in all.

How much a class has in all is not what fits: pieces of several hosts make no machine. A site plans places
for what it takes (in its calendars), and says how much any one host of a class has left, as long as
that is less than a host has: a :class:`Ceiling`. Here a machine is known to fit in a host by itself, and to need no
more than a host has left.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

from leasekit.core.properties import AMOUNT_MAX, WHOLE, Counts, HostClasses, Vector, amount, pool
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Shortfall, Timetable


class SizedTimetable(Timetable):
    """Units of one size on the hosts of one class: each takes so much of each of some timetables."""

    __slots__ = ("_takes",)

    def __init__(self, takes: Sequence[tuple[Timetable, int]]) -> None:
        """``takes`` are the timetables of what a unit takes, and how much of each: at least one, none of them 0."""
        self._takes = takes

    # -- changing it --------------------------------------------------------------------------------------------

    def add_capacity(self, term: Term, units: int) -> None:
        """As :meth:`Timetable.add_capacity`."""
        for table, much in self._takes:
            table.add_capacity(term, units * much)

    def reserve(self, key: Hashable, units: int, term: Term, *, force: bool = False) -> None:
        """As :meth:`Timetable.reserve`: of all that a unit takes, or of nothing."""
        if not force and (free := self.available(term)) < units:
            raise Shortfall(term, free, units)
        for table, much in self._takes:
            table.reserve(key, units * much, term, force=force)

    def release(self, key: Hashable) -> None:
        """As :meth:`Timetable.release`."""
        for table, _ in self._takes:
            table.release(key)

    def end(self, key: Hashable, at: Instant) -> None:
        """As :meth:`Timetable.end`."""
        for table, _ in self._takes:
            table.end(key, at)

    def change(self, key: Hashable, *, units: int | None = None, term: Term | None = None, force: bool = False) -> None:
        """Reservations are changed where they are booked, by resource."""
        self._refuse_change()

    def replace(self, old: Hashable, key: Hashable, units: int, term: Term) -> None:
        """Reservations are replaced where they are booked, by resource."""
        self._refuse_change()

    @staticmethod
    def _refuse_change() -> NoReturn:
        raise TypeError("what is booked of a divided type is changed by resource")

    def forget_before(self, instant: Instant) -> None:
        """As :meth:`Timetable.forget_before`."""
        for table, _ in self._takes:
            table.forget_before(instant)

    # -- asking -------------------------------------------------------------------------------------------------

    @property
    def horizon(self) -> Instant:
        """History before this instant is forgotten."""
        return max(table.horizon for table, _ in self._takes)

    def get(self, key: Hashable) -> tuple[int, Term] | None:
        """The units of this size, and the term, held under ``key``, or None."""
        table, much = self._takes[0]
        held = table.get(key)
        return (held[0] // much, held[1]) if held is not None else None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._takes[0][0]

    def __len__(self) -> int:
        return len(self._takes[0][0])

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._takes[0][0])

    def available(self, term: Term) -> int:
        """As :meth:`Timetable.available`."""
        return min([table.available(term) // much for table, much in self._takes])

    def free_at(self, instant: Instant) -> int:
        """As :meth:`Timetable.free_at`."""
        return min([table.free_at(instant) // much for table, much in self._takes])

    def capacity_at(self, instant: Instant) -> int:
        """As :meth:`Timetable.capacity_at`: how many there could be if nothing else was there."""
        return min([table.capacity_at(instant) // much for table, much in self._takes])

    def reserved_at(self, instant: Instant) -> int:
        """How many fewer are free than there could be."""
        return self.capacity_at(instant) - self.free_at(instant)

    def earliest(self, units: int, duration: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """As :meth:`Timetable.earliest`: each resource in turn puts the start off, until all have as much."""
        start, agreed = not_before, 0
        while agreed < len(self._takes):
            for table, much in self._takes:
                found = table.earliest(units * much, duration, start, not_after)
                if found is None:
                    return None
                agreed = agreed + 1 if found == start else 1
                start = found
                if agreed >= len(self._takes):
                    break
        return start

    def short_at(self, units: int, begin: Instant) -> Instant:
        """As :meth:`Timetable.short_at`."""
        return min(table.short_at(units * much, begin) for table, much in self._takes)

    def overcommitted(self) -> list[Term]:
        """As :meth:`Timetable.overcommitted`, of any resource."""
        found = [term for table, _ in self._takes for term in table.overcommitted()]
        return sorted(found, key=lambda term: term.end)

    def steps(self, window: Term) -> Iterator[tuple[Term, int, int]]:
        """As :meth:`Timetable.steps`."""
        ends = {term.start for table, _ in self._takes for term, _, _ in table.steps(window)}
        at, figures = window.start, (self.reserved_at(window.start), self.capacity_at(window.start))
        for instant in sorted(ends):
            now = self.reserved_at(instant), self.capacity_at(instant)
            if now != figures:
                yield Term(at, instant), *figures
                at, figures = instant, now
        yield Term(at, window.end), *figures

    # -- planning -----------------------------------------------------------------------------------------------

    def overlay(self) -> SizedTimetable:
        """As :meth:`Timetable.overlay`."""
        return SizedTimetable([(table.overlay(), much) for table, much in self._takes])

    def copy(self) -> SizedTimetable:
        """As :meth:`Timetable.copy`."""
        return SizedTimetable([(table.copy(), much) for table, much in self._takes])


class Ceiling:
    """No host of a class has more than ``most`` of a resource left at any instant before ``until``: who needs more has
    no place over a term that begins by then.
    """

    __slots__ = ("most", "resource", "table", "until")

    def __init__(self, resource: str, most: int, until: Instant) -> None:
        self.resource, self.most, self.until = resource, most, until
        self.table = Timetable(AMOUNT_MAX)
        """What units that need more take of beside the rest: nothing is free of it as long as the ceiling holds."""
        self.hold()

    def hold(self) -> None:
        """It holds."""
        if _HELD not in self.table:
            self.table.reserve(_HELD, AMOUNT_MAX, Term(0, self.until), force=True)

    def lift(self) -> None:
        """It does not: something is to leave a host."""
        if _HELD in self.table:
            self.table.release(_HELD)


_HELD: Final = "ceiling"
Ceilings: TypeAlias = Mapping[bytes, Sequence[Ceiling]]
"""Those of each class."""
NO_CEILINGS: Final[Ceilings] = {}


class DividedTimetable(ClassedTimetable):
    """The hosts of a type, by class, as who has certain needs sees them: how many units of that size are free, and have
    a place under the ``ceilings``.
    """

    __slots__ = ("ceilings", "hosts", "needs", "pools")

    def __init__(
        self, pools: ClassedTimetable, hosts: HostClasses, needs: Vector = WHOLE, ceilings: Ceilings = NO_CEILINGS
    ) -> None:
        self.pools, self.hosts, self.needs, self.ceilings = pools, hosts, needs, ceilings
        sizes = ((class_, one.size(needs)) for class_, one in hosts.items())
        super().__init__(
            {class_: SizedTimetable(self._takes(class_, size)) for class_, size in sizes if size is not None}
        )

    def _takes(self, class_: bytes, size: Vector) -> list[tuple[Timetable, int]]:
        counted = [(self.pools.open(pool(class_, name)), much) for name, much in size]
        ceilings = self.ceilings.get(class_, ())
        return counted + [(one.table, 1) for one in ceilings if amount(size, one.resource) > one.most]

    def needing(self, needs: Vector) -> DividedTimetable:
        """The same hosts, for other needs: what is booked in one is booked in the other."""
        return self if needs == self.needs else DividedTimetable(self.pools, self.hosts, needs, self.ceilings)

    def of(self, classes: frozenset[bytes]) -> DividedTimetable:
        """As :meth:`ClassedTimetable.of`."""
        hosts = HostClasses((name, one) for name, one in self.hosts.items() if name in classes)
        return DividedTimetable(self.pools, hosts, self.needs, self.ceilings)

    def placed(self) -> DividedTimetable:
        """The same, for who has its places: no ceiling concerns it."""
        return DividedTimetable(self.pools, self.hosts, self.needs) if self.ceilings else self

    def add_capacity(self, term: Term, units: int | Counts, sign: int = 1) -> None:
        """As :meth:`ClassedTimetable.add_capacity`. Where units are put in service, as some leave their hosts, there is
        no ceiling any more, until they are taken out.
        """
        super().add_capacity(term, units, sign)
        for class_, number in units if not isinstance(units, int) else ():
            for one in self.ceilings.get(class_, ()):
                (one.lift if sign * number > 0 else one.hold)()

    def release(self, key: Hashable) -> None:
        """As :meth:`ClassedTimetable.release`, of units of whatever size."""
        self.pools.release(key)

    def overlay(self) -> DividedTimetable:
        """As :meth:`Timetable.overlay`."""
        return DividedTimetable(self.pools.overlay(), self.hosts, self.needs, _anew(self.ceilings))

    def copy(self) -> DividedTimetable:
        """As :meth:`Timetable.copy`."""
        return DividedTimetable(self.pools.copy(), self.hosts, self.needs, _anew(self.ceilings))


def _anew(ceilings: Ceilings) -> Ceilings:
    return {
        class_: [Ceiling(one.resource, one.most, one.until) for one in several] for class_, several in ceilings.items()
    }
