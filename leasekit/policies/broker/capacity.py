"""What is left of each delegation while a broker's mapper decides: a scratch copy of the books for one turn.

A turn books what it grants, so that the next request sees what is left. Requests come in bursts that want the same
term; a :class:`CapacityView` therefore remembers what is free over the last term that it was asked about, counts down,
and books the burst as one reservation when another term is asked for. Then, which delegation a request is filled from,
and how the members of a group are spread over them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, islice
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from leasekit.core.divided import DividedTimetable
from leasekit.core.filters import FilterError, Shown, ask, parse_filter, seen, takes
from leasekit.core.fitting import normalised, number_in
from leasekit.core.mappers import BrokerCycle, PendingRequest, Source
from leasekit.core.properties import WHOLE, Counts, HostClasses, Vector, chosen, first_of, minus, ratio, total
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Timetable
from leasekit.policies.broker.constraints import PLAIN, Constraints

FLATTEN_FROM = 64
"""From how many different terms of one type on a turn considers working on a flat copy instead of the view.

A view is made in no time but slows down with each thing booked in it: n bookings cost about n * n / 2 steps. A copy
costs one step for each step of the timetable to come."""

COPY_FROM = 16
"""After how many bookings a view considers going on with a flat copy; then after twice as many, and so on. Each booking
is followed by a look at all that can start now, so that a view costs more than its bookings alone."""


class CapacityView:
    """One delegation during one turn."""

    __slots__ = (
        "_booked", "_flatten_at", "_floor", "_left", "_now", "_table", "_taken", "_term",
        "divided", "id", "site", "source", "span", "units",
    )  # fmt: skip

    ahead: Duration = 0
    """How long before the start of a term the units are taken."""
    classes: int = 1
    """Of how many classes its units are."""

    def loses(self, other: CapacityView, units: int) -> int:
        """How many of its units are missing when so many of another view are taken, which it overlaps."""
        return units

    def overlaps(self, other: CapacityView) -> bool:
        """Whether what is taken from the one may be missing in the other."""
        return self is other

    def __init__(self, source: Source, table: Timetable, now: Instant) -> None:
        self.id = source.id
        self.site = source.site
        self.units = source.units
        self.span = source.term
        self.source = source
        self.divided = False
        """Whether its units are hosts, of which others see parts."""
        self._now = now
        self._table = table
        self._booked = 0
        self._flatten_at = COPY_FROM
        self._floor: Instant = 0
        self._term: Term | None = None
        self._left = 0
        self._taken = 0

    @property
    def view(self) -> CapacityView:
        """Itself."""
        return self

    def free(self, term: Term) -> int:
        """The units free throughout ``term``; 0 where the delegation doesn't cover it."""
        if term != self._term:
            self._book()
            self._term = term
            self._left = max(0, self._table.available(self._known(term))) if self.span.contains(term) else 0
        return self._left

    def take(self, units: int, term: Term) -> None:
        """Book units that :meth:`free` has just shown."""
        assert term == self._term and 0 < units <= self._left, "only what free() has shown is taken"
        self._left -= units
        self._taken += units

    def give(self, units: int, term: Term, classes: Counts) -> None:
        """Free units that a lease had booked before this turn, which is of these ``classes``; take them back where
        negative.
        """
        self._settle()
        self._table.add_capacity(term, units)

    def going_on(self, request: PendingRequest, accepted: Container[bytes]) -> GoingOn:
        """What the lease of a request can have here that goes on, of those classes beside its own."""
        self._settle()
        ((class_, _),) = classes_seen(self.source).items()
        kept = ((class_, total(request.classes) or request.held),)
        return GoingOn(self, ClassedTimetable({class_: self._table}), kept, request, accepted)

    def earliest(self, units: int, length: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` with ``units`` free for ``length`` ms, or None."""
        not_before, not_after = max(not_before, self.span.start), min(not_after, self.span.end - length)
        if units > self.units or not_before > not_after:
            return None
        self._book()
        return self._table.earliest(units, length, not_before, not_after)

    def rises(self, window: Term) -> list[Instant]:
        """The instants within ``window``, its start left out, from which on more is free than just before."""
        self._book()
        return _rises(self._table, window)

    def covers(self, length: Duration, not_before: Instant, not_after: Instant) -> bool:
        """Whether the delegation covers a term of that length with a start in ``[not_before, not_after]``."""
        return max(not_before, self.span.start) <= min(not_after, self.span.end - length)

    def stairs(self, now: Instant, horizon: Instant) -> list[tuple[int, Instant]]:
        """How long how many units can be had from now on: pairs of units and the instant up to which that many are
        free throughout, most units first. Empty where none are. Nothing after ``horizon`` is looked at.
        """
        self._book()
        end = min(self.span.end, horizon)
        return _stairs(self._table, now, end) if self.span.start <= now < end else []

    def next_change(self, now: Instant, stairs: list[tuple[int, Instant]], horizon: Instant) -> Instant | None:
        """An instant after ``now`` before which nothing that ends by ``horizon`` can start if it can't start now.

        ``stairs`` are those of now. It is when more gets free, or when less is, as then a later rise may come before
        there is more than now. What is after the horizon is in nobody's way.
        """
        begin, end = self.span
        if now < begin:
            return begin
        level, until = stairs[0] if stairs else (0, end)
        more = self._table.earliest(level + 1, 1, now + 1, end - 1) if level < self.units and now + 1 < end else None
        if until < min(end, horizon):
            return until if more is None else min(more, until)
        return more

    def _book(self) -> None:
        if self._taken:
            assert self._term is not None, "units are taken over a term"
            # take() has checked that they are there.
            self._table.reserve(object(), self._taken, self._known(self._term), force=True)
            self._taken = 0
            self._booked += 1
            if self._booked == self._flatten_at:
                self._flatten()

    def _known(self, term: Term) -> Term:
        """A flat copy knows nothing of what was before now, which is no longer to be had."""
        return term if term.start >= self._floor else Term(min(self._floor, term.end - 1), term.end)

    def _flatten(self) -> None:
        """Go on with a flat copy, if there isn't much to copy."""
        begin = max(self._now, self.span.start)
        if begin < self.span.end:
            flat = _flat(self._table, Term(begin, self.span.end), 4 * self._booked**2)
            if flat is not None:
                self._table, self._floor = flat, begin
                return
        self._flatten_at *= 2

    def _settle(self) -> None:
        self._book()
        self._term = None


class Prepared:
    """A view for a request whose units are made ready before its start: they are taken that much earlier."""

    __slots__ = ("ahead", "now", "site", "span", "units", "view")

    def __init__(self, view: CapacityView, ahead: Duration, now: Instant) -> None:
        self.view = view
        self.ahead = ahead
        self.now = now
        self.site = view.site
        self.units = view.units
        self.span = view.span

    def free(self, term: Term) -> int:
        """The units free from ``ahead`` before the term on; 0 where that is past."""
        begin = term.start - self.ahead
        return self.view.free(Term(begin, term.end)) if begin >= self.now else 0

    def take(self, units: int, term: Term) -> None:
        """Book units that :meth:`free` has just shown, from ``ahead`` before the term on."""
        self.view.take(units, Term(term.start - self.ahead, term.end))

    def earliest(self, units: int, length: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` at which the units can be ready, or None."""
        ahead = self.ahead
        begin = self.view.earliest(units, length + ahead, max(not_before - ahead, self.now), not_after - ahead)
        return None if begin is None else begin + ahead

    def rises(self, window: Term) -> list[Instant]:
        """The starts within ``window`` that become possible where more gets free."""
        ahead = self.ahead
        found = self.view.rises(Term(window.start - ahead, window.end - ahead))
        return [at + ahead for at in found]

    def covers(self, length: Duration, not_before: Instant, not_after: Instant) -> bool:
        """Whether the delegation covers such a term and the time before it, from now on."""
        ahead = self.ahead
        return self.view.covers(length + ahead, max(not_before - ahead, self.now), not_after - ahead)


class ClassedView(CapacityView):
    """A view of units of several classes, or of some of these; or of a divided type, of units of one size. What is
    taken of one is at once missing in the others of its delegation.
    """

    __slots__ = ("_booked_here", "_classed", "_hosts", "_needs", "_whole", "classes")

    def __init__(
        self, source: Source, classed: ClassedTimetable, now: Instant, whole: CapacityView | None = None
    ) -> None:
        super().__init__(source, Timetable(0), now)
        self._needs, self._hosts = WHOLE, HostClasses()
        if isinstance(classed, DividedTimetable):
            self._needs, self._hosts = classed.needs, classed.hosts
        self.classes = len(classed.tables)
        self._classed = classed
        self._whole: ClassedTimetable | None = None if isinstance(source.free, Timetable) else source.free
        if isinstance(self._whole, DividedTimetable):
            self.divided, self._whole = True, self._whole.needing(self._needs)
            if self._needs:
                begin = max(now, self.span.start)
                steps = classed.steps(Term(begin, max(begin + 1, self.span.end)))
                self.units = max(capacity for _, _, capacity in steps)
        self._booked_here: _Booked = whole._booked_here if isinstance(whole, ClassedView) else _Booked()

    def overlaps(self, other: CapacityView) -> bool:
        """Whether both are of one delegation, and have a class in common."""
        if not isinstance(other, ClassedView) or self.id != other.id:
            return False
        return not self._classed.tables.keys().isdisjoint(other._classed.tables)

    def loses(self, other: CapacityView, units: int) -> int:
        """As :meth:`CapacityView.loses`: at most, where the units of both differ in size."""
        if not isinstance(other, ClassedView) or self._needs == other._needs:
            return units
        hosts = self._hosts
        return units * max(
            (ratio(mine, theirs) for one in hosts.values() if (mine := one.size(self._needs)) is not None
             and (theirs := one.size(other._needs)) is not None), default=0,
        )  # fmt: skip

    def free(self, term: Term) -> int:
        """The units free throughout ``term``; 0 where the delegation doesn't cover it."""
        return sum(self._each(term).values()) if self.span.contains(term) else 0

    def _each(self, term: Term) -> dict[bytes, int]:
        """The units of each class that are free throughout a term."""
        seen = self._booked_here.seen(term, self._needs)
        for class_, table in self._classed.tables.items():
            if class_ not in seen:
                seen[class_] = max(0, table.available(term))
        return {class_: seen[class_] for class_ in self._classed.tables}

    def take(self, units: int, term: Term) -> None:
        """Book units that :meth:`free` has just shown."""
        taken = chosen(units, self._each(term))
        assert taken, "only what free() has shown is taken"
        self._classed.reserve(self._booked_here.add(units, term, taken), taken, term, force=True)

    def give(self, units: int, term: Term, classes: Counts) -> None:
        """As :meth:`CapacityView.give`. Of a lease that goes on with fewer, those of its last classes are given;
        without ``classes``, what was taken last over that term.
        """
        assert self._whole is not None, "of one class there is a CapacityView"
        if not classes:
            self._whole.release(self._booked_here.let_go(units, term))
            return
        self._booked_here.forget()
        gone = minus(classes, first_of(classes, total(classes) - abs(units)))
        self._whole.add_capacity(term, gone, 1 if units > 0 else -1)

    def going_on(self, request: PendingRequest, accepted: Container[bytes]) -> GoingOn:
        """As :meth:`CapacityView.going_on`: on hosts it has its places."""
        free = self._classed.placed() if isinstance(self._classed, DividedTimetable) else self._classed
        return GoingOn(self, free, request.classes, request, accepted)

    def earliest(self, units: int, length: Duration, not_before: Instant, not_after: Instant) -> Instant | None:
        """The earliest start in ``[not_before, not_after]`` with ``units`` free for ``length`` ms, or None."""
        not_before, not_after = max(not_before, self.span.start), min(not_after, self.span.end - length)
        if units > self.units or not_before > not_after:
            return None
        return self._classed.earliest(units, length, not_before, not_after)

    def rises(self, window: Term) -> list[Instant]:
        """The instants within ``window``, its start left out, from which on more of any class is free than before."""
        found = {at for table in self._classed.tables.values() for at in _rises(table, window)}
        return sorted(found)

    def stairs(self, now: Instant, horizon: Instant) -> list[tuple[int, Instant]]:
        """As :meth:`CapacityView.stairs`, where each class is free throughout by itself."""
        end = min(self.span.end, horizon)
        if not self.span.start <= now < end:
            return []
        each = [_stairs(table, now, end) for table in self._classed.tables.values()]
        bounds = sorted({until for stairs in each for _, until in stairs})
        found: list[tuple[int, Instant]] = []
        for until in bounds:
            level = sum(next((units for units, last in stairs if last >= until), 0) for stairs in each)
            if found and found[-1][0] == level:
                found[-1] = (level, until)
            elif level:
                found.append((level, until))
        return found

    def next_change(self, now: Instant, stairs: list[tuple[int, Instant]], horizon: Instant) -> Instant | None:
        """As :meth:`CapacityView.next_change`: when more, or less, of any class is free."""
        begin, end = self.span
        if now < begin:
            return begin
        window = Term(now, max(min(end, horizon), now + 1))
        tables = list(self._classed.tables.values())
        if isinstance(self._whole, DividedTimetable):
            ceilings = chain.from_iterable(self._whole.ceilings.values())
            tables = [*self._whole.pools.tables.values(), *(one.table for one in ceilings)]
        changes = (term.start for table in tables for term, _, _ in islice(table.steps(window), 1, 2))
        return min((at for at in changes if at > now), default=None)


class GoingOn:
    """What the lease of an extend or a modify can have of a view: it goes on with the units that it has, ``kept``, and
    can have others, of the classes that are ``accepted``, only beside them.
    """

    __slots__ = ("_accepted", "_free", "_kept", "_until", "ahead", "site", "view")

    def __init__(
        self, view: CapacityView, free: ClassedTimetable, kept: Counts, request: PendingRequest,
        accepted: Container[bytes],
    ) -> None:  # fmt: skip
        self.view, self.site, self.ahead = view, view.site, 0
        self._free, self._kept, self._accepted = free, kept, accepted
        self._until = request.held_until if request.op == "modify" else 0

    def free(self, term: Term) -> int:
        """The units that it can have throughout ``term``; 0 where the delegation doesn't cover it."""
        if not self.view.span.contains(term):
            return 0
        each, found = self._free.goes_on(self._kept, self._until, term, self._accepted), 0
        for class_, units in self._kept:
            if each[class_] < units:
                return found + each[class_]
            found += units
        return sum(each.values())

    def take(self, units: int, term: Term) -> None:
        """Book units that :meth:`free` has just shown: beside those that it has as long as it has these."""
        taken = chosen(units, self._free.goes_on(self._kept, self._until, term, self._accepted), self._kept)
        assert taken, "only what free() has shown is taken"
        own = Term(term.start, min(max(self._until, term.start), term.end))
        for part, counted in ((own, minus(taken, self._kept)), (Term(own.end, term.end), taken)):
            if part.length and counted:
                self.view.give(-total(counted), part, counted)


class _Booked:
    """What was booked of a delegation in this turn, and what was last seen to be free of each class."""

    __slots__ = ("_free", "_needs", "_taken", "_term")

    def __init__(self) -> None:
        self._needs: Vector = WHOLE
        self._taken: list[tuple[int, Term]] = []
        self._term: Term | None = None
        self._free: dict[bytes, int] = {}

    def seen(self, term: Term, needs: Vector) -> dict[bytes, int]:
        """What is known to be free over a term, by class, in units that have certain needs."""
        if (term, needs) != (self._term, self._needs):
            self._term, self._needs, self._free = term, needs, {}
        return self._free

    def add(self, units: int, term: Term, taken: Counts) -> tuple[str, int]:
        """Units are booked over the term that was last seen; under which key."""
        for class_, count in taken:
            self._free[class_] -= count
        self._taken.append((units, term))
        return "turn", len(self._taken) - 1

    def let_go(self, units: int, term: Term) -> tuple[str, int]:
        """The key of what was booked last over a term, which is free again."""
        self.forget()
        number = max(at for at, own in enumerate(self._taken) if own == (units, term))
        self._taken[number] = (0, term)
        return "turn", number

    def forget(self) -> None:
        """Something else is free than was seen."""
        self._term = None


def _rises(table: Timetable, window: Term) -> list[Instant]:
    found: list[Instant] = []
    before: int | None = None
    for term, reserved, capacity in table.steps(window):
        free = capacity - reserved
        if before is not None and free > before:
            found.append(term.start)
        before = free
    return found


def _stairs(table: Timetable, now: Instant, end: Instant) -> list[tuple[int, Instant]]:
    found: list[tuple[int, Instant]] = []
    at, level = now, table.free_at(now)
    while level > 0:
        at = min(table.short_at(level, at), end)
        found.append((level, at))
        if at >= end:
            break
        level = table.free_at(at)
    return found


Place: TypeAlias = CapacityView | Prepared
"""Where a request can be filled from, as it looks to that request."""
ShapeKey: TypeAlias = tuple[str, str, frozenset[str], Constraints]


class Shape:
    """Where requests that want the same type, sites and properties can be filled from. ``fault`` says why nowhere,
    where the constraints itself is to blame; ``left_out`` are the views that a filter doesn't accept, and which.
    """

    __slots__ = ("fault", "left_out", "offered", "places")

    def __init__(
        self,
        offered: Sequence[CapacityView],
        places: Sequence[Place],
        fault: str = "",
        left_out: Sequence[tuple[CapacityView, str]] = (),
    ) -> None:
        self.offered = offered
        self.places = places
        self.fault = fault
        self.left_out = left_out


class CapacityViews:
    """All delegations during one turn, by type. ``bulk`` are the requests that are going to be looked at one by one."""

    def __init__(self, cycle: BrokerCycle, bulk: Sequence[PendingRequest] | None = None) -> None:
        self.now = cycle.now
        self._sources = cycle.sources
        self._views: dict[str, list[CapacityView]] = {}
        self._shapes: dict[ShapeKey, Shape] = {}
        self._prepared: dict[tuple[CapacityView, Duration], Prepared] = {}
        self._parts: dict[tuple[str, frozenset[bytes], Vector], CapacityView] = {}
        self._seen: dict[str, tuple[dict[str, dict[bytes, Shown]], frozenset[Shown]]] = {}
        self._terms = _distinct_terms(cycle.requests if bulk is None else bulk)

    def of_type(self, type_: str) -> Sequence[CapacityView]:
        """The views of a type, in the order of their delegations' ids."""
        views = self._views.get(type_)
        if views is None:
            terms = self._terms.get(type_, ())
            views = self._views[type_] = [_view(source, terms, self.now) for source in self._sources(type_)]
        return views

    def get(self, type_: str, id_: str) -> CapacityView | None:
        """The view of one delegation, or None if it is over."""
        return next((view for view in self.of_type(type_) if view.id == id_), None)

    def shape(self, key: ShapeKey) -> Shape:
        """Where requests of a shape can be filled from, worked out once in a turn."""
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shaped(*key)
        return shape

    def prepared(self, view: CapacityView, ahead: Duration) -> Place:
        """A view from ``ahead`` before each term on; the same object each time."""
        if not ahead:
            return view
        place = self._prepared.get((view, ahead))
        if place is None:
            place = self._prepared[view, ahead] = Prepared(view, ahead, self.now)
        return place

    def filtered(self, type_: str, text: str) -> tuple[str, dict[str, frozenset[bytes]]]:
        """What is wrong with a filter, and which classes of each delegation of a type it takes."""
        if type_ not in self._seen:
            each = {view.id: classes_seen(view.source) for view in self.of_type(type_)}
            self._seen[type_] = each, frozenset(one for classes in each.values() for one in classes.values())
        each, several = self._seen[type_]
        fault, taken = ask(text, several) if text else ("", several)
        return fault, {
            id_: frozenset(class_ for class_, one in classes.items() if one in taken) for id_, classes in each.items()
        }

    def needing(self, view: CapacityView, needs: Vector) -> CapacityView:
        """A view in units that have these needs; of a type that is not divided, itself."""
        free = view.source.free
        return self._part(view, frozenset(free.tables), needs) if isinstance(free, DividedTimetable) else view

    def _part(self, view: CapacityView, classes: frozenset[bytes], needs: Vector = WHOLE) -> CapacityView:
        """What a view has of some classes, in units that have these needs: the same object each time."""
        free = view.source.free
        if isinstance(free, Timetable) or (len(classes) == len(free.tables) and not needs):
            return view
        known = self._parts.get((view.id, classes, needs))
        if known is None:
            part = free.needing(needs).of(classes) if isinstance(free, DividedTimetable) else free.of(classes)
            known = self._parts[view.id, classes, needs] = ClassedView(view.source, part, self.now, view)
        return known

    def _shaped(self, type_: str, site: str, exclude: frozenset[str], constraints: Constraints) -> Shape:
        offered = views = self.of_type(type_)
        if site:
            views = [view for view in views if view.site == site]
        if exclude:
            views = [view for view in views if view.site not in exclude]
        if constraints == PLAIN:
            return Shape(offered, views)
        fault = constraints.fault
        left_out = [(view, one) for view in views for one in constraints.site_filters if not passes(view.source, one)]
        shut = {view for view, _ in left_out}
        views = [view for view in views if view not in shut]
        if constraints.filter:
            fault, taken = self.filtered(type_, constraints.filter)
            left_out += [(view, constraints.filter) for view in views if not taken[view.id]]
            views = [self._part(view, taken[view.id], constraints.needs) for view in views if taken[view.id]]
        if constraints.needs:
            views = [view for view in views if isinstance(view.source.free, DividedTimetable)]
            fault = fault or ("" if views else f"needs.*: units of {type_!r} are not divided into machines")
            views = views if constraints.filter else [self.needing(view, constraints.needs) for view in views]
        places = [self.prepared(view, constraints.ahead(view.source)) for view in views]
        return Shape(offered, places, fault, left_out)


def _distinct_terms(requests: Sequence[PendingRequest]) -> dict[str, set[Term]]:
    found: dict[str, set[Term]] = {}
    if len(requests) >= FLATTEN_FROM:
        for request in requests:
            found.setdefault(request.type, set()).add(request.term)
    return found


def classes_seen(source: Source) -> dict[bytes, Shown]:
    """What a filter sees of each class of a source. One that names no classes has one."""
    classes = source.classes or {b"": source.properties}
    return {class_: seen(source.site, source.type, attributes) for class_, attributes in classes.items()}


def _view(source: Source, terms: set[Term] | tuple[()], now: Instant) -> CapacityView:
    if isinstance(source.free, ClassedTimetable):
        return ClassedView(source, source.free, now)
    return CapacityView(source, _workable(source, source.free, terms), now)


def _workable(source: Source, free: Timetable, terms: set[Term] | tuple[()]) -> Timetable:
    """The source's view, or a flat copy of what is to come if that will be cheaper for so many different terms."""
    if len(terms) < FLATTEN_FROM:
        return free
    begin = min(term.start for term in terms)
    if begin >= source.term.end:
        return free
    flat = _flat(free, Term(begin, source.term.end), len(terms) ** 2 // 5)
    return free if flat is None else flat


def _flat(table: Timetable, window: Term, limit: int) -> Timetable | None:
    """A copy of what is free within a window, all free outside of it; None if it has more steps than ``limit``."""
    steps = list(islice(table.steps(window), limit + 1))
    if len(steps) > limit:
        return None
    most = max(0, *(capacity - reserved for _, reserved, capacity in steps))
    flat = Timetable(most)
    for term, reserved, capacity in steps:
        if capacity - reserved < most:
            flat.reserve(term, most - (capacity - reserved), term, force=True)
    return flat


Balance = Literal["load_balanced", "first_fit", "best_fit", "worst_fit", "random"]

BALANCES: Final[tuple[str, ...]] = ("load_balanced", "first_fit", "best_fit", "worst_fit", "random")

NODES_MAX = 2_000
"""How many placements are tried beyond one per member before a group counts as not fitting at some instant."""


SITE_WEIGHERS: Final[Mapping[str, Callable[[Place, int, str], float]]] = {
    "share_free": lambda place, free, _: free / place.units,
    "free": lambda place, free, _: free,
    "property": lambda place, _, name: number_in(place.view.source.properties, name),
}
"""What weighs sites: a place, what is free there, and the name of a property."""


@attrs.frozen(kw_only=True)
class SiteWeigherSettings:
    """A weigher of sites, and how much it counts beside others."""

    name: str = attrs.field(validator=attrs.validators.in_(tuple(SITE_WEIGHERS)))
    """`"share_free"`: the site with the largest share free over the term; `"free"`: with most units free; `"property"`:
    with the largest number in the property that `property` names (0 for one that has none)."""
    property: str = ""
    """Which property of sites, for `name = "property"`."""
    multiplier: float = 1.0
    """What its weight, from 0 for the least of the sites that have enough to 1 for the largest, is multiplied by."""

    def __attrs_post_init__(self) -> None:
        if (self.name == "property") != bool(self.property):
            raise ValueError(
                f"property: found {self.property!r} with name {self.name!r}, expected the name of a property of sites "
                'with name "property", and none with another'
            )


def _readable(_: object, __: object, text: str) -> None:
    try:
        parse_filter(text)
    except FilterError as error:
        raise ValueError(str(error)) from None


@attrs.frozen(kw_only=True)
class SiteFilterSettings:
    """What a site must be for a request."""

    takes: str = attrs.field(validator=_readable)
    """What must be so of all units of the type that the site has delegated: an expression as a request's `filter`, over
    their properties, `site` and `type`."""
    holder: str = "*"
    """For whose requests; ``"*"``: for everybody's."""
    type: str = "*"
    """For requests of which type; ``"*"``: of each."""


def passes(source: Source, text: str) -> bool:
    """Whether a filter takes all classes of a delegation."""
    return all(takes(text, one) for one in classes_seen(source).values())


class Choice(NamedTuple):
    """How a site is chosen; ``seed`` is for ``random`` only. Where there are ``weighers``, they choose instead, of the
    sites that ``filters`` take.
    """

    balance: Balance = "load_balanced"
    seed: int = 0
    weighers: tuple[SiteWeigherSettings, ...] = ()
    filters: tuple[SiteFilterSettings, ...] = ()

    def filters_for(self, holder: str, type_: str) -> tuple[str, ...]:
        """What sites must be for a holder's requests of a type."""
        return tuple(one.takes for one in self.filters if one.holder in ("*", holder) and one.type in ("*", type_))

    def weighed(self, places: Sequence[Place], free: Sequence[int]) -> list[Place]:
        """Places that have so many units free each, the heaviest first; those that are alike as they come."""
        sums = [0.0] * len(places)
        for one in self.weighers:
            weigh = SITE_WEIGHERS[one.name]
            found = [weigh(place, units, one.property) for place, units in zip(places, free, strict=True)]
            sums = [sum_ + one.multiplier * weight for sum_, weight in zip(sums, normalised(found), strict=True)]
        return [place for _, place in sorted(zip(sums, places, strict=True), key=lambda pair: -pair[0])]

    def drawn(self, place: Place, lease: str) -> bytes:
        """A number for a site and a lease: the same each time, whatever was drawn before."""
        return blake2b(f"{self.seed}/{lease}/{place.view.id}".encode(), digest_size=8).digest()


def pick(places: Sequence[Place], term: Term, units: int, least: int, choice: Choice, lease: str) -> Place | None:
    """Where to fill ``units`` from over ``term``; if none has them all, the roomiest that has ``least``; or None."""
    if len(places) == 1:
        return places[0] if places[0].free(term) >= least else None
    if choice.balance == "first_fit" and not choice.weighers:  # the others need not be looked at
        first = next((place for place in places if place.free(term) >= units), None)
        if first is not None:
            return first
    left = {place: place.free(term) for place in places}
    able = [place for place in places if left[place] >= units]
    if able:
        return next(_options(able, left, choice, lease))
    best = max(places, key=left.__getitem__, default=None)
    return best if best is not None and left[best] >= least else None


class Member(NamedTuple):
    """One member of a group: its lease, how many units, and the places that may give them."""

    lease: str
    units: int
    places: Sequence[Place]


def classes_of(member: Member) -> int:
    """How many classes of units a member takes somewhere: who takes few of them goes first."""
    return max((place.view.classes for place in member.places), default=0)


def place(members: Sequence[Member], term: Term, choice: Choice) -> list[Place] | None:
    """A place for each member, so that all fit at once; None if none was found."""
    return search(members, term, choice)[0]


def search(members: Sequence[Member], term: Term, choice: Choice) -> tuple[list[Place] | None, int]:
    """A place for each member, so that all fit at once, and what was tried to find it; None if none was found.

    Members that take the fewest classes of units, with the least choice and the most units are placed first. What
    goes wrong is taken back and tried otherwise, up to a limit: fitting members into views is bin packing, so the
    search must end somewhere. A view must be the same place to all members.
    """
    order = sorted(
        range(len(members)), key=lambda i: (classes_of(members[i]), len(members[i].places), -members[i].units)
    )
    left = {place: place.free(term) for member in members for place in member.places}
    near = {place: [other for other in left if other.view.overlaps(place.view)] for place in left}
    chosen: list[Place | None] = [None] * len(members)
    options: list[Iterator[Place]] = []
    tries = most = len(members) + NODES_MAX
    while len(options) <= len(order):
        depth = len(options)
        if depth == len(order):
            return [place for place in chosen if place is not None], most - tries
        member = members[order[depth]]
        able = [place for place in member.places if left[place] >= member.units]
        options.append(_options(able, left, choice, member.lease))
        while options:
            tries -= 1
            index = order[len(options) - 1]
            taken = chosen[index]
            if taken is not None:
                for one in near[taken]:
                    left[one] += one.view.loses(taken.view, members[index].units)
            found = chosen[index] = next(options[-1], None)
            if found is not None:
                for one in near[found]:
                    left[one] -= one.view.loses(found.view, members[index].units)
                break
            options.pop()
        if not options or tries < 0:
            break
    return None, most - tries


def _options(fitting: list[Place], left: Mapping[Place, int], choice: Choice, lease: str) -> Iterator[Place]:
    """Places that have enough left for a lease, the preferred one first."""
    if choice.weighers:
        return iter(choice.weighed(fitting, [left[place] for place in fitting]))
    if choice.balance == "load_balanced":
        fitting.sort(key=lambda place: (-left[place] / place.units, -left[place]))
    elif choice.balance == "worst_fit":
        fitting.sort(key=lambda place: -left[place])
    elif choice.balance == "best_fit":
        fitting.sort(key=lambda place: left[place])
    elif choice.balance == "random":
        fitting.sort(key=lambda place: choice.drawn(place, lease))
    return iter(fitting)
