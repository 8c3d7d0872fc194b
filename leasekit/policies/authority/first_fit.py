"""Units in the order in which the site offers them: clean ones first, then those that are still being torn down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import ClassVar, Final

import attrs

from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.lacking import Lack, lacking, reasons_of
from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    AuthorityDecision,
    Demand,
    HostView,
    Place,
    Refuse,
    Release,
    UnitView,
)
from leasekit.core.properties import Vector, most_of
from leasekit.core.reasons import Coded
from leasekit.core.time import Term

FILTER: Final = "filter"
"""The configuration property that says which units will do."""
SHOWN_MAX: Final = 3
LOOKED_MAX: Final = 100
"""How many free units are looked at, at most, for examples that differ."""


@attrs.frozen(kw_only=True)
class FirstFitSettings:
    """Settings of :class:`FirstFit`: there are none."""


class FirstFit:
    """The authority's standard mapper. It keeps nothing from turn to turn.

    A lease that is to get more units than there are gets what there is; the authority says in the lease's reason how
    many are missing. A unit that the ticket names goes to that lease before any other gets to choose. A lease whose
    configuration property ``filter`` is set gets only units whose properties (with ``unit``, the name, and ``type``)
    it accepts. Units that were planned for a lease go to it. A lease that shrinks without having named all its victims
    gives up the units that it got last.
    """

    Settings: ClassVar[type[FirstFitSettings]] = FirstFitSettings
    inline: ClassVar[bool] = True
    filtered_by: ClassVar[str] = FILTER
    plans: ClassVar[bool] = True

    def __init__(self, settings: FirstFitSettings | None = None) -> None:
        self.settings = settings or FirstFitSettings()

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle, in its order."""
        turn = FirstFitTurn(cycle)
        return [decision for demand in cycle.demands for decision in turn.decide(demand)]


class _Offer:
    """The units that can be given out, which are looked at once, however many classes are asked for."""

    def __init__(self, units: Iterator[UnitView]) -> None:
        self._units = units
        self._seen: defaultdict[bytes | None, list[str]] = defaultdict(list)
        self._read: Counter[bytes | None] = Counter()

    def next(self, class_: bytes | None) -> str | None:
        """The next unit of a class (None: of any) that it has not given as one of that; None if there is none."""
        seen, at = self._seen[class_], self._read[class_]
        while at == len(seen):
            unit = next(self._units, None)
            if unit is None:
                return None
            for each in (None, *unit.classes):
                self._seen[each].append(unit.id)
        self._read[class_] += 1
        return seen[at]


class FirstFitTurn:
    """One turn: which units have been given out so far, and how far each offer has been read."""

    def __init__(self, cycle: AuthorityCycle) -> None:
        self._cycle = cycle
        self._offers: dict[tuple[str, str], _Offer] = {}
        self._able: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        self._beside: defaultdict[str, int] = defaultdict(int)
        # Units that are named, or planned, are kept from everybody else, whoever comes first.
        self._named = {
            unit
            for demand in cycle.demands
            if demand.units > 0
            for unit in (*demand.wanted, *(() if demand.sizes else demand.places))
        }

    def decide(self, demand: Demand) -> Iterable[AuthorityDecision]:
        """What a demand gets, or gives up."""
        return (self.shrink(demand) if demand.units < 0 else self.fill(demand),)

    def expect(self, demand: Demand, machines: Sequence[tuple[str, Vector]]) -> None:
        """Machines of a demand, of these sizes, go to these hosts by another's decision: where they have no places yet
        they count beside what this turn sends there.
        """
        for host in (Counter(host for host, _ in machines) - Counter(demand.places)).elements():
            self._beside[host] += 1

    def shrink(self, demand: Demand) -> Release:
        """The last ones go: of each class as many as are too many."""
        if not demand.classes:
            return Release(demand.lease, demand.held[demand.units :])
        if demand.places:
            return self._release_beside(demand)
        given_as = {name: self._cycle.unit(name).classes for name in demand.held}
        gone: set[str] = set()
        for class_, count in demand.classes:
            of_class = [name for name in demand.held if class_ in given_as[name]]
            gone.update(of_class[len(of_class) - count :])
        return Release(demand.lease, tuple(name for name in demand.held if name in gone))

    def _release_beside(self, demand: Demand) -> Release:
        """Of a divided type those go that are not where the lease has its places from now on."""
        kept, gone = list(demand.places), []
        for name in demand.held:
            host = self._cycle.unit(name).host or name
            if host in kept:
                kept.remove(host)
            else:
                gone.append(name)
        return Release(demand.lease, tuple(gone))

    def place(self, demand: Demand) -> Place | Refuse:
        """Units on the hosts on which the lease has its places; where one can't be had, on another of its class."""
        there = {host.id: host for host in self._cycle.hosts(demand.type)}
        able = there.keys() if demand.needs else {unit.id for unit in self._cycle.free(demand.type)} & there.keys()
        hosts: list[str] = []
        planned = [there[host] for host in demand.places if host in able]
        for (class_, count), size in zip(demand.classes, demand.sizes, strict=True):
            mine = [host for host in planned if class_ in host.classes][:count]
            for host in mine:
                planned.remove(host)
            hosts += [host.id for host in mine]
            taken = mine if demand.needs else [there[name] for name in hosts]
            alike = [one for one in there.values() if one.id in able and class_ in one.classes and one not in taken]
            hosts += self._beside_places(demand, alike, size, count - len(mine))
        if hosts:
            return Place(demand.lease, tuple(hosts[: demand.units]))
        words = f"no host of type {demand.type!r} has room for what lease {demand.lease} needs"
        short = self._lacking(demand, list(islice(there.values(), LOOKED_MAX)))
        return Refuse(demand.lease, Coded(words, "fragmented", reasons_of(short)))

    def _lacking(self, demand: Demand, hosts: Sequence[HostView]) -> list[Lack]:
        """What the first hosts have too little of up to the end of the lease, by the largest of the lease's units."""
        term = Term(self._cycle.now, max(demand.term.end, self._cycle.now + 1))
        size = reduce(most_of, demand.sizes)
        free = [[self._cycle.room(host.id, ((name, 1),), term) for name, _ in size] for host in hosts]
        return lacking(dict(size), free)

    def _beside_places(self, demand: Demand, hosts: Sequence[HostView], size: Vector, count: int) -> list[str]:
        """Hosts that have room for so many units more, up to the end of the lease: a whole one for all that it has, and
        for all that its claim counts.
        """
        term, found = Term(self._cycle.now, max(demand.term.end, self._cycle.now + 1)), list[str]()
        for host in hosts:
            if len(found) >= count:
                break
            free = self._cycle.room(host.id, size if demand.needs else most_of(host.capacity, size), term)
            more = max(0, min(count - len(found), free - self._beside[host.id]))
            found += [host.id] * more
            self._beside[host.id] += more
        return found

    def fill(self, demand: Demand) -> Assign | Place | Refuse:
        """Named units where the demand names them, then whatever is next, and will do, for those that it doesn't."""
        if demand.places and demand.sizes:
            return self.place(demand)
        filter_ = demand.properties.get(FILTER, "")
        named = [unit for unit in demand.wanted if unit not in demand.held]
        chosen = self._wanted(demand.type, named[: demand.units])
        try:
            chosen += self._others(demand, [*named, *chosen], filter_)
        except FilterError as error:
            return Refuse(demand.lease, Coded(f"configuration.{error}", "bad_request"))
        if chosen:
            return Assign(demand.lease, tuple(chosen))
        if named:
            words = f"none of the units that the ticket names is free: {', '.join(named[:5])}"
            return Refuse(demand.lease, Coded(words, "insufficient"))
        code = "no_match" if filter_ else "insufficient"
        return Refuse(demand.lease, Coded(self._why_none(demand.type, filter_), code))

    def _others(self, demand: Demand, named: Sequence[str], filter_: str) -> list[str]:
        """Units for what is not named, by class. A unit that failed is replaced by one of another class if there is
        none of its own.
        """
        chosen: list[str] = []
        left = demand.units - len(set(named))
        planned = [unit for unit in demand.places if unit not in self._gone]
        for class_, count in demand.classes:
            count = min(left - len(chosen), count)
            mine = [unit for unit in planned if class_ in self._cycle.unit(unit).classes][:count]
            self._gone.update(mine)
            planned = [unit for unit in planned if unit not in mine]
            chosen += mine
            chosen += self._next(demand.type, count - len(mine), filter_, class_)
        if len(chosen) < left and (demand.op == "replace" or not demand.classes):
            chosen += self._next(demand.type, left - len(chosen), filter_, None)
        return chosen

    def _wanted(self, type_: str, named: list[str]) -> list[str]:
        """Those of the named units that can be had. The ticket ties the lease to them, so that others won't do."""
        if not named:
            return []
        if type_ not in self._able:
            self._able[type_] = {unit.id for unit in self._cycle.free(type_)}
        mine = [unit for unit in named if unit in self._able[type_] and unit not in self._gone]
        self._gone.update(mine)
        return mine

    def _next(self, type_: str, count: int, filter_: str, class_: bytes | None) -> list[str]:
        """The next units of a class (None: any) for a demand. Raises ``FilterError``."""
        offer = self._offers.get((type_, filter_))
        if offer is None:
            offer = self._offers[type_, filter_] = _Offer(iter(self._cycle.free(type_, filter_)))
        chosen: list[str] = []
        while len(chosen) < count and (unit := offer.next(class_)) is not None:
            if unit not in self._gone and unit not in self._named:
                chosen.append(unit)
        self._gone.update(chosen)
        return chosen

    def _why_none(self, type_: str, filter_: str) -> str:
        nothing = f"no unit of type {type_!r} is in service and free"
        if not filter_:
            return nothing
        free = (unit for unit in self._cycle.free(type_) if unit.id not in self._gone and unit.id not in self._named)
        # One example of each way in which units fall short.
        differ: list[UnitView] = []
        for unit in islice(free, LOOKED_MAX):
            if len(differ) <= SHOWN_MAX and all(unit.properties != other.properties for other in differ):
                differ.append(unit)
        if not differ:
            return nothing
        misses: dict[str, str] = {}
        for unit in differ:
            misses.setdefault(parse_filter(filter_).misses(unit.attributes), unit.id)
        shown = [f"{unit}: {miss}" for miss, unit in misses.items()]
        examples = ", ".join([*shown[:SHOWN_MAX], *(["..."] if len(shown) > SHOWN_MAX else [])])
        return f"no free unit of type {type_!r} satisfies the filter {filter_!r:.200} ({examples})"
