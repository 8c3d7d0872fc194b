"""Which part of which host each lease of a divided type has, and when: a place for each of its units, from the moment
that its ticket is taken.

What a class has in all can be free in pieces on several hosts, of which none takes a whole unit. So a site plans places
when a ticket is redeemed: one that has none is refused (``fragmented``), and what is accepted finds its place when its
term begins, unless a host fails. The plan is kept, and may be changed: by a mapper that places a unit elsewhere, or
moves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from heapq import merge
from typing import NamedTuple, TypeAlias

import attrs

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.units import Units
from leasekit.actors.site.vacancies import Alike, Ranked, Vacancies
from leasekit.core.claims.claim import Claim
from leasekit.core.divided import SizedTimetable
from leasekit.core.leases.records import SiteUnit
from leasekit.core.properties import Counts
from leasekit.core.protocol.messages import LargestPiece
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Shortfall, Timetable
from leasekit.core.vectors import Sizes, Vector, amount, most_of

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
    """There is as much as was wanted, but not on single hosts."""


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
        if isinstance(claims, Set):  # else it is not known which they are
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
                        raise FragmentedError(term, len(self._booked.get(claim, ())), leaf.units)
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
