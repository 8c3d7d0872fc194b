"""How many units of each type are spoken for, over time, and how many there are: those in service, less what
maintenance windows take over their time; of divided types also on which part of which host.

From the moment that a window is announced its units are missing from the calendar over its time, and brokers are told
how many of what they hold they had better not grant then. When it begins its units go out of service (one that a
lease has, as soon as the lease gives it up), and when it ends they come back. A window without an end drains its units.

Which part of which host each lease of a divided type has, and when: a place for each of its units, from the moment that
its ticket is taken.

What a class has in all can be free in pieces on several hosts, of which none takes a whole unit. So a site plans places
when a ticket is redeemed: one that has none is refused (``fragmented``), and what is accepted finds its place when its
term begins, unless a host fails. The plan is kept, and may be changed: by a mapper that places a unit elsewhere, or
moves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import attrs

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.units import Units
from leasekit.actors.site.vacancies import Alike, Ranked, Vacancies
from leasekit.core.claims.claim import Claim
from leasekit.core.divided import SizedTimetable
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.lacking import LOOKED_MAX, Lack, lacking
from leasekit.core.leases.records import SiteLease, SiteUnit, Window, out_for
from leasekit.core.properties import Counts, Sizes, Vector, amount, most_of
from leasekit.core.protocol.messages import LargestPiece
from leasekit.core.reasons import Reason, counted, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Shortfall, Timetable

PLANNED, FRAGMENTED = "planned", "fragmented"


_Key: TypeAlias = tuple[bytes, int]


class _Booking(NamedTuple):
    """The place of one unit: on which host, how much of it, and under which key; and of which class its claim counts
    it, with which size.
    """

    host: str
    size: Vector
    key: _Key
    class_: bytes
    counted: Vector


class FragmentedError(Shortfall):
    """There is as much as was wanted, but not on single hosts, which have too little for one unit (``lacks``)."""

    def __init__(self, term: Term, free: int, wanted: int, lacks: Sequence[Lack]) -> None:
        super().__init__(term, free, wanted)
        self.lacks = lacks


@keeps(volatile="_tables _booked", derived="_bookings counts _vacancies _loose")
@attrs.define(eq=False, slots=False)
class Places:
    """The calendars of single hosts. ``is_out`` says whether a host is out of service at some time of a term."""

    _kernel: Kernel
    _units: Units
    _is_out: Callable[[SiteUnit, Term], bool]
    _tables: dict[str, dict[str, Timetable]] = attrs.field(factory=dict, init=False)
    _booked: dict[bytes, list[_Booking]] = attrs.field(factory=dict, init=False)
    _bookings: int = attrs.field(default=0, init=False)
    counts: Counter[str] = attrs.field(factory=lambda: Counter({PLANNED: 0, FRAGMENTED: 0}), init=False)
    """How many claims of machines, or whole hosts, were planned since the start, and how many had no place."""
    changed: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """Who is told that hosts may have more, or less, left."""
    _vacancies: Vacancies = attrs.field(init=False)
    _loose: dict[str, dict[str, tuple[int, Instant]]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with empty hosts."""
        self._tables, self._booked, self._loose = {}, {}, {}
        self._vacancies = Vacancies(self._kernel, self._units, self._tables)

    def of(self, claim: bytes) -> tuple[str, ...]:
        """The hosts of a claim's units."""
        return tuple(one.host for one in self._booked.get(claim, ()))

    def room(self, host: str, size: Vector, term: Term, leaving: Container[bytes] = ()) -> int:
        """How many units of a size have their place on a host throughout a term, beside all but claims that are
        ``leaving``.
        """
        unit = self._units[host]
        if unit.retire or self._is_out(unit, term):
            return 0
        return _without(self._takes_of(host, size), term, self._keys(host, leaving) if leaving else ())

    def _keys(self, host: str, claims: Container[bytes]) -> Collection[_Key]:
        """Under which keys units of some claims are booked on a host."""
        if isinstance(claims, (set, frozenset)):  # else it is not known which they are
            return [one.key for claim in claims for one in self._booked.get(claim, ()) if one.host == host]
        keys = dict.fromkeys(key for table in self._tables.get(host, {}).values() for key in table)
        return [key for key in keys if isinstance(key, tuple) and key[0] in claims]

    def _sized(self, host: str, size: Vector) -> SizedTimetable:
        """A host's calendar, in units of a size."""
        return SizedTimetable(self._takes_of(host, size))

    def _takes_of(self, host: str, size: Vector) -> list[tuple[Timetable, int]]:
        """The calendars of what a unit of a size takes of a host, and how much of each."""
        tables = self._tables.get(host)
        if tables is None:
            unit = self._units[host]
            has = self._units.inventory.capacity(unit.type, unit.classes[0])
            tables = self._tables[host] = {name: Timetable(much) for name, much in has}
        takes = []
        for name, much in size:
            table = tables.get(name)
            if table is None:
                table = tables[name] = Timetable()
            takes.append((table, much))
        return takes

    # -- planning ----------------------------------------------------------------------------------------------

    def book(
        self, leaf: Claim, term: Term, near: Sequence[str] = (), leaving: Callable[[], Container[bytes]] | None = None
    ) -> None:
        """Plan a place for each unit of a claim: on the hosts ``near``, as often as these are named, as far as they do,
        then where the least is left beside them, then beside all but claims that are ``leaving``. Raises
        :class:`FragmentedError`, with nothing changed.
        """
        claim, left = leaf.digest, list(near)
        try:
            for (class_, count), size in zip(leaf.classes, leaf.sizes, strict=False):  # none: of no divided type
                for _ in range(count):
                    host = next((one for one in left if self._takes(one, class_, size, term)), None)
                    if host is not None:
                        left.remove(host)
                    else:
                        host = self._best(leaf.type, class_, size, term)
                    if host is None and leaving is not None:
                        host = self._made(leaf.type, class_, size, term, leaving())
                    if host is None:
                        self.counts[FRAGMENTED] += 1
                        lacks = self._lacks(leaf.type, class_, size, term, leaving() if leaving is not None else ())
                        raise FragmentedError(term, len(self._booked.get(claim, ())), leaf.units, lacks)
                    self._put(claim, host, class_, size, term, force=leaving is not None)
        except FragmentedError:
            self.release(claim)
            raise
        self.counts[PLANNED] += bool(leaf.sizes)

    def largest(self, type_: str) -> Vector:
        """The most of each resource that is free now on one host of a type that is in service."""
        self._follow()
        most = Counter[str]()
        for alike in self._vacancies.left(type_):
            if alike.serves:
                most |= Counter(dict(alike.left))
        return tuple(sorted((name, much) for name, much in most.items() if much > 0))

    def _follow(self) -> None:
        """What is known of each host is as it is now."""
        for host in self._vacancies.follow():
            self._loose.pop(host, None)

    def pieces(self, type_: str, loose: Container[bytes] = ()) -> tuple[LargestPiece, ...]:
        """Of each class of a type, what no host that counts as one has left beside all but ``loose`` claims, and until
        when no more, as far as nobody leaves early: where that is less than hosts of the class have.
        """
        self._follow()
        of: dict[bytes, list[Alike]] = {}
        for alike in self._vacancies.left(type_):
            for class_ in alike.classes:
                of.setdefault(class_, []).append(alike)
        found = []
        for class_, several in sorted(of.items()):
            for name, much in self._units.inventory.capacity(type_, class_):
                most, until = self._most_without(several, name, loose) if loose else self._most(several, name, much)
                if most < much:
                    found.append(LargestPiece(class_, name, most, until))
        return tuple(found)

    def _most(self, several: Sequence[Alike], resource: str, enough: int) -> tuple[int, Instant]:
        """The most of a resource that a host has left now, and until when none has more, where that is not enough."""
        there = [alike for alike in several if alike.serves]
        most, until = max((max(0, amount(alike.left, resource)) for alike in there), default=0), INSTANT_MAX
        for host in (one for alike in there for one in self._vacancies.hosts(alike)) if most < enough else ():
            if self._vacancies.same_until(host) < until:
                found = self._tables[host][resource].earliest(most + 1, 1, self._kernel.now, INSTANT_MAX - 1)
                until = until if found is None else min(until, found)
        return most, until

    def _most_without(self, several: Sequence[Alike], resource: str, loose: Container[bytes]) -> tuple[int, Instant]:
        """The same, without some claims: until another claim ends."""
        most, until = 0, INSTANT_MAX
        for alike in several:
            left = amount(alike.left, resource)
            for host in self._vacancies.hosts(alike) if alike.serves else ():
                there = self._loose.setdefault(host, {})
                known = there.get(resource)
                if known is None:
                    known = there[resource] = self._left_without(host, resource, left, loose)
                most, until = max(most, known[0]), min(until, known[1])
        return most, until

    def _left_without(self, host: str, resource: str, left: int, loose: Container[bytes]) -> tuple[int, Instant]:
        """How much of a resource a host has left without some claims, of which so much is free beside these, and until
        when it surely has no more: until another claim ends.
        """
        table, now, until = self._tables.get(host, {}).get(resource, Timetable()), self._kernel.now, INSTANT_MAX
        for key in table:
            units, term = table.get(key) or (0, Term(now, now + 1))
            if term.end > now and isinstance(key, tuple) and key[0] in loose:
                left += units if term.start <= now else 0
            elif term.end > now:
                until = min(until, term.end)
        return max(0, left), until

    def _takes(self, host: str, class_: bytes, size: Vector, term: Term, leaving: Container[bytes] = ()) -> bool:
        if host not in self._units or class_ not in self._units[host].classes:
            return False
        return self.room(host, self._taken_of(host, class_, size), term, leaving) > 0

    def _taken_of(self, host: str, class_: bytes, size: Vector) -> Vector:
        """What a unit takes of a host that its claim counts as so much of a class: all of the host, where that is a
        whole one, whatever hosts of the class had.
        """
        unit = self._units[host]
        has = self._units.inventory.capacity(unit.type, unit.classes[0])
        if class_ == unit.classes[0] or size != self._units.inventory.capacity(unit.type, class_):
            return size
        return most_of(has, size)

    def _best(self, type_: str, class_: bytes, size: Vector, term: Term) -> str | None:
        """The host with room for a unit that has the least left."""
        self._follow()
        may = self._vacancies.candidates(type_, class_, size, term)
        return self._fullest(may, term, lambda host: self._takes(host, class_, size, term))

    def _fullest(self, may: Iterable[Ranked], term: Term, takes: Callable[[str], bool]) -> str | None:
        """Which of the hosts that may take something does take it, and has the least left over a term."""
        best: Ranked | None = None
        for least, number, host in may:
            if best is not None and best < (least, number, host):
                break  # neither has any that comes after this one less left
            if takes(host):
                found = (self._free(host, term), number, host)
                best = found if best is None else min(best, found)
        return best[2] if best is not None else None

    def _made(self, type_: str, class_: bytes, size: Vector, term: Term, leaving: Container[bytes]) -> str | None:
        """The first host that would have room for a unit beside all but claims that are ``leaving``."""
        if not leaving:
            return None
        there = (unit.id for unit in self._units if unit.type == type_)
        return next((host for host in there if self._takes(host, class_, size, term, leaving)), None)

    def _lacks(self, type_: str, class_: bytes, size: Vector, term: Term, leaving: Container[bytes]) -> Sequence[Lack]:
        """What the first hosts of a class have too little of for a unit, beside all but claims that are ``leaving``."""
        of_class = (unit.id for unit in self._units if unit.type == type_ and class_ in unit.classes)
        hosts = islice(of_class, LOOKED_MAX)
        free = [[max(0, self.room(host, ((name, 1),), term, leaving)) for name, _ in size] for host in hosts]
        return lacking(dict(size), free)

    def _free(self, host: str, term: Term) -> float:
        """Which share of a host is free throughout a term, added up over its resources."""
        return sum(
            table.available(term) / max(1, table.capacity_at(term.start)) for table in self._tables[host].values()
        )

    def _put(self, claim: bytes, host: str, class_: bytes, size: Vector, term: Term, *, force: bool = False) -> None:
        self._booked.setdefault(claim, []).append(self._reserved(claim, host, class_, size, term, force=force))

    def _reserved(self, claim: bytes, host: str, class_: bytes, size: Vector, term: Term, *, force: bool) -> _Booking:
        self._bookings += 1
        self._vacancies.changed.add(host)
        made = _Booking(host, self._taken_of(host, class_, size), (claim, self._bookings), class_, size)
        self.note_changed()
        self._sized(host, made.size).reserve(made.key, 1, term, force=force)
        return made

    def restore(self, claim: bytes, places: Iterable[str], units: Counts, sizes: Sizes, term: Term) -> None:
        """Book what was planned before a restart."""
        each = [(class_, size) for (class_, count), size in zip(units, sizes, strict=False) for _ in range(count)]
        for host, (class_, size) in zip(places, each, strict=False):
            if host in self._units:
                self._put(claim, host, class_, size, term, force=True)

    # -- changes -----------------------------------------------------------------------------------------------

    def taken(self, host: str, now: Instant) -> Vector:
        """The most of each resource of a host that is booked at any time from now on."""
        always, booked = Term(now, INSTANT_MAX), self._tables.get(host, {})
        return tuple((name, one.capacity_at(now) - one.available(always)) for name, one in sorted(booked.items()))

    def is_leased_whole(self, host: str, now: Instant) -> bool:
        """Whether units that take all of a host have their place on it, now or later."""
        unit, has = (
            self._units[host],
            self._units.inventory.capacity(self._units[host].type, self._units[host].classes[0]),
        )
        ends = (
            self._tables[host][one.size[0][0]].get(one.key)
            for several in self._booked.values()
            for one in several
            if one.host == unit.id and one.size == has
        )
        return any(held is not None and held[1].end > now for held in ends)

    def resize(self, host: str, now: Instant) -> None:
        """A host has what its class says from now on."""
        self._vacancies.changed.add(host)
        unit, tables = self._units[host], self._tables.get(host, {})
        has = self._units.inventory.capacity(unit.type, unit.classes[0])
        for name in {*tables, *(name for name, _ in has)} if tables else ():
            table = tables.setdefault(name, Timetable())
            if more := amount(has, name) - table.capacity_at(now):
                table.add_capacity(Term(now, INSTANT_MAX), more)

    def elsewhere(self, claims: Mapping[bytes, Term], start: str, among: Container[str] | None = None) -> str | None:
        """Another host (``among`` these, if they are named) that takes a unit of these claims which has its place on
        ``start``: the one that has the least left.
        """
        numbers = [(claim, term, self._number(claim, start)) for claim, term in claims.items()]
        there = [(self._booked[claim][number].counted, term) for claim, term, number in numbers if number is not None]
        if not there:
            return None
        over, host = Term(min(t.start for _, t in there), max(t.end for _, t in there)), self._units[start]
        self._follow()
        may = merge(*(self._vacancies.candidates(host.type, class_, *there[0]) for class_ in host.classes))
        return self._fullest(
            (one for one in may if one[2] != start and (among is None or one[2] in among)),
            over,
            lambda to: self.can_move(claims, start, to),
        )

    def release(self, claim: bytes) -> None:
        """Give up all of a claim's places."""
        self.note_changed()
        for key, table in self._reservations(claim):
            table.release(key)
        self._booked.pop(claim, None)

    def end(self, claim: bytes, at: Instant, *, over: bool = False) -> None:
        """Give up a claim's places from ``at`` on; if that is ``over``, nothing more becomes of them."""
        self.note_changed()
        for key, table in self._reservations(claim):
            table.end(key, at)
        if over:
            self._booked.pop(claim, None)

    def note_changed(self) -> None:
        """Hosts may have more, or less, left than before."""
        for tell in self.changed:
            tell()

    def _reservations(self, claim: bytes) -> Iterator[tuple[_Key, Timetable]]:
        for one in self._booked.get(claim, ()):
            self._vacancies.changed.add(one.host)
            for name, _ in one.size:
                table = self._tables[one.host][name]
                if one.key in table:
                    yield one.key, table

    def can_move(self, claims: Mapping[bytes, Term], start: str, to: str, leaving: Container[bytes] = ()) -> bool:
        """Whether a unit of these claims that has its place on one host could have it on another throughout, beside all
        but claims that are ``leaving``.
        """
        for claim, term in claims.items():
            number = self._number(claim, start)
            if number is None:
                continue
            one = self._booked[claim][number]
            if self.room(to, self._taken_of(to, one.class_, one.counted), term, leaving) <= 0:
                return False
        return True

    def move(self, claims: Mapping[bytes, Term], start: str, to: str) -> None:
        """A unit of these claims has its place on another host over what is left of their terms."""
        for claim, term in claims.items():
            number = self._number(claim, start)
            if number is None:
                continue
            old = self._booked[claim][number]
            self._vacancies.changed.add(start)
            self._sized(start, old.size).end(old.key, term.start)
            self._booked[claim][number] = self._reserved(claim, to, old.class_, old.counted, term, force=True)

    def _number(self, claim: bytes, host: str) -> int | None:
        return next((at for at, one in enumerate(self._booked.get(claim, ())) if one.host == host), None)

    def forget_before(self, now: Instant) -> None:
        """Drop what is past."""
        for tables in self._tables.values():
            for table in tables.values():
                table.forget_before(now)
        for claim in [one for one in self._booked if not any(self._reservations(one))]:
            del self._booked[claim]


def _without(takes: Iterable[tuple[Timetable, int]], term: Term, gone: Collection[_Key]) -> int:
    """How many units, each of which takes so much of these calendars, would have their place without what is booked
    under some keys.
    """
    found = []
    for table, much in takes:
        more, without = 0, table
        for key in gone:
            held = table.get(key)
            if held is None:
                continue
            units, over = held
            if over.start <= term.start and over.end >= term.end:
                more += units
            elif over.overlaps(term):  # what leaves is there for a part of the term only
                without = table.overlay() if without is table else without
                without.release(key)
        found.append((without.available(term) + more) // much)
    return min(found)


@keeps(rows="windows", volatile="_tables", derived="_dips _endings _stand_ins _moved")
@attrs.define(eq=False, slots=False)
class Calendars:
    """A calendar for each type of units, by class, and the windows over whose time units are missing in it. Units that
    were of another class are in both as long as claims count them as that.
    """

    _kernel: Kernel
    units: Units
    _mark_dirty: Callable[[], None]
    """Have the mapper see that units are there again."""
    _makes_room: bool = False
    """Whether the mapper has preemptible leases leave a host for others."""
    places: Places = attrs.field(init=False)
    """Of divided types, on which hosts units are spoken for."""
    _tables: dict[str, ClassedTimetable] = attrs.field(factory=dict, init=False)
    windows: dict[str, Window] = attrs.field(factory=dict, init=False)
    _dips: dict[tuple[str, str, bytes], int] = attrs.field(factory=dict, init=False)
    _endings: int = attrs.field(default=0, init=False)
    _stand_ins: set[str] = attrs.field(factory=set, init=False)
    _moved: set[str] = attrs.field(factory=set, init=False)
    """Types of units to which something has happened since they were counted."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Window, due_at=_due_at, on_due=self._due)
        self.places = Places(self._kernel, self.units, self.is_out)
        self.reset()

    def reset(self) -> None:
        """Begin with the units that are in service, of all types that the settings name."""
        self.places.reset()
        self._stand_ins = set()
        for type_ in self.units.inventory.types:
            there = self._weigh(type_, self.units.in_service(type_))
            classes = dict.fromkeys((*self._weigh(type_, self.units.inventory.counts(type_)), *there))
            self._tables[type_] = ClassedTimetable({class_: Timetable(there[class_]) for class_ in classes})

    @property
    def from_now_on(self) -> Term:
        """All time that is to come."""
        return Term(self._kernel.now, INSTANT_MAX)

    def _weigh(self, type_: str, units: Counter[bytes]) -> Counter[bytes]:
        return self.units.inventory.weigh(type_, units)

    def is_out(self, unit: SiteUnit, term: Term) -> bool:
        """Whether a unit is out of service for a maintenance window at some time of a term."""
        return bool(self.windows) and any(
            unit.id in window.units and Term(window.start, window.end).overlaps(term)
            for window in self.windows.values()
        )

    def of(self, type_: str) -> ClassedTimetable:
        """How many units of a type are spoken for."""
        table = self._tables.get(type_)
        if table is None:  # leases may have one that is out of the inventory
            table = self._tables[type_] = ClassedTimetable({})
        return table

    # -- leases ------------------------------------------------------------------------------------------------

    def book(
        self, leaf: Claim, term: Term, near: Sequence[str] = (), leaving: Callable[[], Container[bytes]] | None = None
    ) -> None:
        """Book a claim over a term: its places on the hosts ``near``, as far as they are there; where there is none,
        and the mapper makes room, beside all but claims that are ``leaving``. Raises ``Shortfall``, with nothing
        changed.
        """
        table = self.of(leaf.type)
        table.reserve(leaf.digest, leaf.weights, term)
        self._plan(leaf, term, near, leaving if self._makes_room else None)

    def _plan(
        self, leaf: Claim, term: Term, near: Sequence[str], leaving: Callable[[], Container[bytes]] | None = None
    ) -> None:
        try:
            self.places.book(leaf, term, near, leaving)
        except Shortfall:
            self.of(leaf.type).release(leaf.digest)
            raise

    def replace(self, lease: SiteLease, leaf: Claim, term: Term, near: Sequence[str] = ()) -> None:
        """Book a claim in place of the rest of the lease's own. Raises ``Shortfall``, with nothing changed."""
        self.of(lease.type).replace(lease.claim, leaf.digest, leaf.weights, term)
        self.places.end(lease.claim, term.start)
        try:
            self._plan(leaf, term, near)
        except Shortfall:
            self.book_again(lease)
            raise

    def kept_places(self, lease: SiteLease, victims: Sequence[str]) -> list[str]:
        """The hosts on which a lease goes on that gives up some of its units."""
        places = list(lease.places)
        for name in victims:
            host = self.units[name].host or name if name in self.units else ""
            if host in places:
                places.remove(host)
        return places

    def end(self, lease: SiteLease, at: Instant) -> None:
        """Free the lease's current claim from ``at`` on."""
        self.end_claim(lease.type, lease.claim, at)

    def end_claim(self, type_: str, claim: bytes, at: Instant) -> None:
        """Free a claim from ``at`` on."""
        self.of(type_).end(claim, at)
        self.places.end(claim, at, over=at <= self._kernel.now)

    def release(self, lease: SiteLease, claim: bytes) -> None:
        """Free all of a claim of the lease."""
        table = self.of(lease.type)
        if claim in table:
            table.release(claim)
        self.places.release(claim)

    def given_as(self, unit: SiteUnit) -> None:
        """A unit is given as one of a class. If it stands in for one of another class, its own class lacks it."""
        if unit.given_as in unit.classes:
            self._end_stand_in(unit)
            return
        table, key = self.of(unit.type), f"for {unit.id}"
        self._stand_ins.add(unit.id)
        if key in table:
            table.release(key)
        lacks = tuple(self._weigh(unit.type, Counter({unit.classes[0]: 1})).items())
        table.reserve(key, lacks, self.from_now_on, force=True)

    def unit_moved(self, unit: SiteUnit, *_: object) -> None:
        """A unit that has left its lease stands in for none."""
        if not unit.host:
            self._moved.add(unit.type)
        if not unit.promised and not unit.is_in_use:
            self._end_stand_in(unit)

    def _end_stand_in(self, unit: SiteUnit) -> None:
        if unit.id in self._stand_ins:
            self._stand_ins.remove(unit.id)
            self.of(unit.type).end(f"for {unit.id}", self._kernel.now)

    def count_ended(self) -> None:
        """Another lease is over: from time to time what is past is forgotten."""
        self._endings += 1
        if self._endings % self._kernel.tidy_every == 0:
            for table in self._tables.values():
                table.forget_before(self._kernel.now)
            self.places.forget_before(self._kernel.now)

    def book_again(self, lease: SiteLease) -> None:
        """A modify of it is refused after all: its claim is booked as it was."""
        table = self.of(lease.type)
        end = lease.term.end if lease.terminates_at < 0 else min(lease.terminates_at, lease.term.end)
        if end > max(self._kernel.now, lease.term.start):
            if lease.claim in table:
                table.release(lease.claim)
            table.reserve(lease.claim, lease.weights, Term(lease.term.start, end), force=True)
            self.places.release(lease.claim)
            self.places.restore(lease.claim, lease.places, lease.classes, lease.sizes, Term(lease.term.start, end))

    def restore(self, lease: SiteLease) -> None:
        """Book what a lease had before a restart."""
        if lease.is_torn_down or not lease.type:
            return
        table = self.of(lease.type)
        for name in lease.units:
            self.given_as(self.units[name])
        table.reserve(lease.claim, lease.weights, lease.term, force=True)
        self.places.restore(lease.claim, lease.places, lease.classes, lease.sizes, lease.term)
        for later in lease.accepted:
            if later.term.start < lease.term.end:
                self.end(lease, later.term.start)
            table.reserve(later.claim, later.weights, later.term, force=True)
            self.places.restore(later.claim, later.places, later.classes, later.sizes, later.term)
        for claim in (lease.claim, *(later.claim for later in lease.accepted)) if lease.terminates_at >= 0 else ():
            self.end_claim(lease.type, claim, lease.terminates_at)

    # -- units, and windows ------------------------------------------------------------------------------------

    def count(self, type_: str) -> None:
        """Make the calendar's capacity, from now on, the number of units of each class that are in service. Over the
        time of a window its units are missing: those that would be there without it.
        """
        self._moved.discard(type_)
        for window in self.windows.values():
            self._dip(window, type_, self._weigh(type_, self._taken_by(window, type_)))
        self.places.note_changed()
        table, there = self.of(type_), self._weigh(type_, self.units.in_service(type_))
        there.update(self._missing(type_))
        for class_ in {*table.tables, *there}:
            of_class = table.open(class_)
            more = there[class_] - of_class.capacity_at(self._kernel.now)
            if more:
                of_class.add_capacity(self.from_now_on, more)

    def count_moved(self, type_: str) -> None:
        """As :meth:`count`, if anything has happened to a unit of the inventory."""
        if type_ in self._moved:
            self.count(type_)

    def count_all(self, window: Window) -> None:
        """As :meth:`count`, of all types that a window has units of."""
        for type_ in self.units_in(window):
            self.count(type_)

    def units_in(self, window: Window) -> Counter[str]:
        """How many units of each type a window has."""
        return Counter(unit.type for unit in self.units_of(window))

    def classes_of(self, type_: str) -> Counter[bytes]:
        """How many units of each class of a type the inventory has, in service or not."""
        inventory = self.units.inventory
        return _classes(unit for unit in self.units if unit.type == type_ and unit.id in inventory)

    def units_of(self, window: Window) -> list[SiteUnit]:
        """The units of a window, where they are still known."""
        return [self.units[name] for name in window.units if name in self.units]

    def _dip(self, window: Window, type_: str, missing: Counter[bytes]) -> None:
        """Have units missing in the calendar over what is left of the window."""
        start, table = max(window.start, self._kernel.now), self.of(type_)
        for class_ in {*table.tables, *missing}:
            key, count = (window.id, type_, class_), missing[class_]
            more = self._dips.get(key, 0) - count
            if more and start < window.end:
                table.open(class_).add_capacity(Term(start, window.end), more)
                self._dips[key] = count

    def _taken_by(self, window: Window, type_: str) -> Counter[bytes]:
        """How many units are out because of the window; or will be: all but those that are out for good."""
        passing = {retired_for(window)} if window.begun else {None, *map(retired_for, self.windows.values())}
        return _classes(one for one in self.units_of(window) if one.type == type_ and one.retire in passing)

    def _missing(self, type_: str) -> Counter[bytes]:
        """How many units, more than are in service, the calendar has beside what is missing in it for a while: units
        that are out of service come back at the end of a window, until which they are missing in the calendar.
        """
        windows = {retired_for(window) for window in self.windows.values() if window.begun}
        out = _classes(one for one in (self.units if windows else ()) if one.type == type_ and one.retire in windows)
        found = self._weigh(type_, out)
        for window in self.windows.values():
            if window.start <= self._kernel.now < window.end:
                classes = self.of(type_).tables
                found.subtract({class_: self._dips.get((window.id, type_, class_), 0) for class_ in classes})
        return found

    # -- windows ---------------------------------------------------------------------------------------------

    def announce(self, names: Collection[str], type_: str, start: Instant, end: Instant, **more: Any) -> Window:
        """Announce a window over these units, or all of a type. Raises ``CommandError``."""
        chosen = self._chosen(names, type_)
        start = max(start, self._kernel.now)
        self._check_alone(chosen, start, end)
        window = Window(f"window-{self._kernel.next('serial')}", start, end, chosen, **more)
        self.windows[window.id] = window
        announced = said(f"{counted(len(chosen))} over [{mark(start)}, {mark(end)})").because(retired_for(window))
        self._kernel.note("", "maintenance", "", "", announced)
        self.count_all(window)
        return window

    def _chosen(self, names: Collection[str], type_: str) -> tuple[str, ...]:
        """The units that are meant: those named, else all of the type, else all there are. Raises ``CommandError``."""
        if type_ and type_ not in self.units.inventory.types:
            raise ArgumentError(f"type: found {type_!r}, there are {', '.join(self.units.inventory.types)}")
        for name in names:
            self.units.find(name)
        chosen = [u.id for u in self.units if (not names or u.id in names) and (not type_ or u.type == type_)]
        if not chosen:
            raise CommandError(f"units: none of {', '.join(names)} is of type {type_!r}")
        return tuple(chosen)

    def _check_alone(self, units: Sequence[str], start: Instant, end: Instant) -> None:
        """A unit is in one window at a time: the end of one would bring it back in another. Raises ``CommandError``."""
        for other in self.windows.values():
            shared = set(units) & set(other.units)
            if shared and start < other.end and other.start < end:
                how = "drained" if other.is_open else f"out over {marked((other.start, other.end))}"
                raise CommandError(f"units: {min(shared)} is {how} already ({other.id}): remove that window first")

    def whole_types(self, window: Window) -> set[str]:
        """The types of which a window has all units."""
        counts = self.units_in(window).items()
        return {type_ for type_, count in counts if count == self.units.inventory.total(type_)}

    def begin_window(self, window: Window) -> None:
        """Its units go out of service."""
        if window.begun:
            return
        window.begun = True
        self._take_out(window, self.units_of(window))
        self._kernel.touch(window)

    def keep_out(self, back: Iterable[SiteUnit]) -> None:
        """Units that the settings name again stay out of service as long as a window has them."""
        there = [unit for unit in back if unit.id in self.units.inventory]
        for window in self.windows.values() if there else ():
            if window.begun:
                self._take_out(window, [unit for unit in there if unit.id in window.units])

    def _take_out(self, window: Window, units: Iterable[SiteUnit]) -> None:
        for unit in units:
            if not unit.is_out and not unit.retire:
                self.units.retire(unit.id, retired_for(window))
        self.count_all(window)

    def end_window(self, window: Window) -> None:
        """Its units come back, but for those that another window has by now."""
        for unit in self.units_of(window) if window.begun else ():
            if unit.retire == retired_for(window):
                self.units.bring_back(unit.id)
                for other in self.windows.values():
                    if other.begun and other is not window and unit.id in other.units:  # it begins as this one ends
                        self.units.retire(unit.id, retired_for(other))
        for type_ in self.units_in(window):
            self._dip(window, type_, Counter())
            for class_ in self.of(type_).tables:
                self._dips.pop((window.id, type_, class_), None)
        del self.windows[window.id]
        self.count_all(window)
        self._kernel.erase(window)
        self._mark_dirty()

    def _due(self, window: Window) -> None:
        if window.end <= self._kernel.now:
            self.end_window(window)
        else:
            self.begin_window(window)

    def restore_windows(self, rows: Iterable[Row]) -> None:
        """After leases and units: a window takes from the calendars what they have."""
        for row in rows:
            window = Window.from_row(row)
            self.windows[window.id] = window
            self._kernel.schedule(window, _due_at(window))
        for type_ in self.units.inventory.types:
            self.count(type_)


def _classes(units: Iterable[SiteUnit]) -> Counter[bytes]:
    return Counter(class_ for unit in units for class_ in unit.classes)


def retired_for(window: Window) -> Reason:
    """Why a unit is out of service that a window has."""
    return out_for(window.id, window.end, window.reason)


def _due_at(window: Window) -> Instant | None:
    if not window.begun:
        return window.start
    return None if window.is_open else window.end
