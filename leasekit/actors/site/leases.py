"""Leases at a site, from the start of their term to the end of their units' teardown: which of them wait for units,
which are planned for those to come, what their mapper is shown, and what their guests are told.

What is due at one instant is done in order, in one mapper turn: leases that end give up their units, then shrinking
extends, growing extends, replacements for units that failed, and new leases get theirs. Guests' filters are asked
before the turn (:class:`.Kinds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import attrs
from sortedcontainers import SortedList

from leasekit.actors.kernel import Kernel, earliest, keeps
from leasekit.actors.served import Served
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.inventory import SiteSaved
from leasekit.actors.site.units import Units
from leasekit.core.claims.signed import CONTRACT, Signer, Statement, state
from leasekit.core.drivers import UNIT_HOST
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import RESUMES
from leasekit.core.mappers import AuthorityMapper, Demand, TenantView
from leasekit.core.properties import WHOLE, Counts, Properties, Vector, count_of, counts, minus, saves, total
from leasekit.core.protocol.messages import EXTEND, LeaseUpdate, UnitState
from leasekit.core.reasons import Code, Reason, all_of, said
from leasekit.core.schema import Row
from leasekit.core.time import MINUTE, Duration, Instant, Term

SHRINK, GROW, REPLACE, NEW = "shrink", "grow", "replace", "new"
HELD: Final = "held"
AHEAD: Final[Duration] = MINUTE
"""How long before its term a lease is redeemed that has units planned: who waits for less sees them soon enough."""

LOOKED_MAX: Final = 200
"""How many units of a class are looked at, at most, for one lease."""
NO_CONCERN: Final = frozenset({"up", "down", "modify", "teardown", "back"})
"""What happens to units, and takes them from nobody for whom they are planned."""
_ORDER = {SHRINK: 0, GROW: 1, REPLACE: 2, NEW: 3}


@keeps(volatile="ops alone stale _look _more", derived="_shown")
@attrs.define(eq=False, slots=False)
class DemandQueue:
    """Leases that wait for their site's mapper, by what they need, and what it was shown last. A mapper that
    ``watches`` wants to know of any change, whether a lease waits or not.
    """

    leases: Mapping[str, SiteLease]
    """All leases of the site."""
    watches: bool
    ops: dict[str, str] = attrs.field(factory=dict, init=False)
    """What each lease that waits needs."""
    alone: bool = attrs.field(default=False, init=False)
    """Whether those that shrink were shown by themselves."""
    stale: bool = attrs.field(default=False, init=False)
    """Whether something had changed when the mapper's decisions came."""
    _look: bool = attrs.field(default=False, init=False)
    _more: bool = attrs.field(default=False, init=False)
    _shown: dict[str, int] = attrs.field(factory=dict, init=False)

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

    def mark_dirty(self) -> None:
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


def held_classes(lease: SiteLease, units: Units) -> Counts:
    """As how many units of each class those count that a lease has."""
    return counts(Counter(units[name].given_as for name in lease.units))


def demand_of(lease: SiteLease, op: str, units: Units) -> Demand:
    """What a lease lacks now, or has too many of."""
    has, wants = held_classes(lease, units), lease.classes
    classes = minus(has, wants) if op == SHRINK else minus(wants, has)
    return Demand(
        lease.id, lease.holder, op, lease.type, lease.wanted - len(lease.units), tuple(lease.units), (), lease.term,
        lease.properties, classes, tuple(size_of(lease, class_) for class_, _ in classes if lease.sizes), lease.needs,
        lease.places if op == SHRINK else missing_places(lease, units),
    )  # fmt: skip


def tenant_of(lease: SiteLease) -> TenantView:
    """What a lease's ticket says of its end for others."""
    leaves = lease.terminates_at >= 0 or lease.is_ending
    class_, notice, min_run, _ = lease.early
    return TenantView(lease.id, lease.holder, lease.term.start, lease.preemptible, class_, notice, min_run, leaves)


def size_of(lease: SiteLease, class_: bytes) -> Vector:
    """What a unit of a class takes for a lease."""
    return next((size for (own, _), size in zip(lease.classes, lease.sizes, strict=True) if own == class_), WHOLE)


def host_of(unit: SiteUnit) -> str:
    """Where a unit is: a machine on its host, a host in its own place."""
    return unit.host or unit.id


def missing_places(lease: SiteLease, units: Units) -> tuple[str, ...]:
    """The hosts on which a lease has a place, and no unit yet; of a type that is not divided the units that are planned
    for it, and can be had now.
    """
    if not lease.sizes:
        return tuple(name for name in lease.places if units.is_available(units[name]))
    left = list(lease.places)
    for name in lease.units:
        _taken(left, host_of(units[name]))
    return tuple(left)


def _taken(places: list[str], host: str) -> bool:
    """Take a host out of ``places``, once; whether it was there."""
    there = host in places
    if there:
        places.remove(host)
    return there


def booked(queue: DemandQueue, shown: Container[str], units: Units) -> dict[str, list[Demand]]:
    """What leases have and will need, by type, beside the demands of those that are ``shown``."""
    found: dict[str, list[Demand]] = {}
    for lease in queue.leases.values():
        for demand in _later(lease, queue.ops.get(lease.id), lease.id in shown, units):
            found.setdefault(demand.type, []).append(demand)
    for demands in found.values():
        demands.sort(key=lambda demand: (demand.term.start, demand.lease))
    return found


def _later(lease: SiteLease, op: str | None, is_shown: bool, units: Units) -> Iterable[Demand]:
    """What a lease has, and what it will need more of than it has, or than it is shown to wait for."""
    if lease.is_ending:
        return
    end = lease.goes_to if lease.terminates_at < 0 else min(lease.goes_to, lease.terminates_at)
    held = tuple(lease.units)
    if held:
        term = Term(lease.term.start, max(end, lease.term.start + 1))
        yield Demand(lease.id, lease.holder, HELD, lease.type, 0, held, (), term, lease.properties)
    if is_shown:
        return
    if op is not None and op != SHRINK:  # its turn is the next one, at this same instant
        yield demand_of(lease, op, units)
        return
    if lease.awaits_mapper and end > lease.term.start:
        term = Term(lease.term.start, end)
        yield Demand(
            lease.id, lease.holder, NEW, lease.type, lease.wanted, (), (), term, lease.properties, lease.classes
        )
    for later in lease.accepted:
        if later.units > lease.wanted and end > later.term.start:
            term = Term(later.term.start, min(end, later.term.end))
            more = minus(later.classes, lease.classes)
            yield Demand(lease.id, lease.holder, GROW, lease.type, total(more), held, (), term, later.properties, more)


@attrs.define(eq=False)
class LeaseUpdates:
    """A site's word on its leases. ``signer_of`` is who speaks of a claim."""

    _kernel: Kernel
    _served: Served[SiteLease]
    _units: Units
    _saved: SiteSaved
    _signer_of: Callable[[bytes], Signer]

    def publish(self, lease: SiteLease, word: str, number: int, reason: Reason | None = None) -> None:
        """Tell the guest how the lease stands; ``reason`` is the record's if none is given. A lease that goes on from
        another says which of its units do not.
        """
        units: tuple[UnitState, ...] = ()
        contract = b""
        if word in ("active", "waiting", "told"):
            held = [self._units[name] for name in lease.units]
            up = [unit for unit in held if unit.is_usable]
            units = tuple(UnitState(unit.id, "active", _told(unit), unit.reason, unit.given_as) for unit in up)
            if word == "active" and lease.properties.get(RESUMES):
                anew = (Reason(Code.UNIT, unit.id).because(unit.reason) for unit in held if unit.reason)
                reason = all_of(reason or lease.reason, *anew)
        if word == "active":
            contract = self.contract(lease).encode()
        self._served.publish(
            lease,
            LeaseUpdate(
                lease.id, lease.update + 1, number, word, _promised(lease, word), units, reason or lease.told,
                contract, lease.receipt, self._saved.count(lease),
            ),
        )  # fmt: skip

    def contract(self, lease: SiteLease, at: Instant | None = None) -> Statement:
        """The site's signed word, as of ``at`` (None: now), that the lease holds its units, and until when."""
        detail = f"{lease.id} {len(lease.units)} {lease.term.start} {lease.term.end}"
        return state(
            self._signer_of(lease.claim), CONTRACT, lease.claim, self._kernel.now if at is None else at, detail
        )


def _told(unit: SiteUnit) -> Properties:
    """What a guest is told of a unit that is up: what its driver says, and where a machine is."""
    return {**unit.given, UNIT_HOST: unit.host} if unit.host else unit.given


def _promised(lease: SiteLease, word: str) -> Term:
    """The term as its guest can count on it; a notice tells of what was accepted for later as well."""
    if lease.terminates_at < 0:
        return lease.term
    last = lease.goes_to if word == "terminating" else lease.term.end
    return Term(lease.term.start, max(min(lease.terminates_at, last), lease.term.start + 1))


@keeps(derived="_on _noted _ends _orders")
@attrs.define(eq=False, slots=False)
class UnitPlans:
    """Which units ``leases`` to come are planned to get, of types whose units are leased whole: if the ``mapper``
    follows that, and for none with a filter of its own. ``is_out`` says whether a unit is out of service for a window
    at some time of a term.

    Claims count units of a class, and a site chooses units when a term starts. Whoever has redeemed long before wants
    to see which these will be. So a lease that is redeemed :data:`AHEAD` of its term, or more, has units planned that
    nobody else has, or is planned to have, in its term: of each class the last ones, as leases that start at once get
    the first. The plan is what the lease's record has as its places; there is no other. A mapper that ``plans`` gives
    its units when the term starts.

    Units of a class are kept in the order of the last end that was planned on each. So whoever begins after that is
    found a unit at once, the one that was planned last before; gaps before it are looked for at :data:`LOOKED_MAX`.

    A plan is no promise. A unit that fails, is out of service over the term, or is given to somebody who needs it
    sooner is planned for nobody: another takes its place, or none, where none is free throughout. Each change is in the
    site's log (``place``), as are those of places on hosts (:mod:`.calendars`).
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

    def unit_moved(self, unit: SiteUnit, *_: object) -> None:
        """Something has happened to a unit."""
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


@attrs.define(eq=False)
class SiteLeases:
    """What becomes of the leases of a site, and of their units with them."""

    _kernel: Kernel
    _updates: LeaseUpdates
    _plans: UnitPlans
    _calendars: Calendars
    _demands: DemandQueue
    _units: Units = attrs.field(init=False)
    settled: list[Callable[[SiteLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease that is ready, or over, or that it was looked at whether it is ready."""

    def __attrs_post_init__(self) -> None:
        self._units = self._calendars.units

    @property
    def by_id(self) -> Mapping[str, SiteLease]:
        """All leases that the site remembers."""
        return self._demands.leases

    def settle_places(self, lease: SiteLease) -> None:
        """Units of a lease that a move has left on other hosts than were planned have their places there."""
        over = list(lease.places)
        others = [host for name in lease.units if not _taken(over, host := host_of(self._units[name]))]
        for start, to in zip(over, others, strict=False):
            self.change_place(lease, start, to)

    def claims_of(self, lease: SiteLease) -> dict[bytes, Term]:
        """The claims by which a lease goes on, and what is left of their terms."""
        now, first = self._kernel.now, lease.accepted[0].term.start if lease.accepted else lease.term.end
        own = {lease.claim: Term(now, first)} if now < first else {}
        return {**own, **{one.claim: one.term for one in lease.accepted if one.claim != lease.claim}}

    def change_place(self, lease: SiteLease, start: str, to: str) -> None:
        """A unit of a lease has its place on another host from now on."""
        self._calendars.places.move(self.claims_of(lease), start, to)
        lease.places = _with(lease.places, start, to)
        lease.next = lease.next and lease.next._replace(places=_with(lease.next.places, start, to))
        lease.after = lease.after and lease.after._replace(places=_with(lease.after.places, start, to))
        self._kernel.note(lease.id, "place", "", "", said(f"{to}, not {start}"))
        self._kernel.touch(lease)

    def plan_anew(self, hosts: Collection[str], over: Term) -> None:
        """Hosts are out of service over a time: leases that have places on them then, and no unit there, have these on
        others, the highest class first; where none has room their guests hear of it.
        """
        leases = sorted(self.by_id.values(), key=lambda one: (-one.early.priority, one.preemptible)) if hosts else ()
        for lease in leases:
            planned = [] if lease.is_ending or not lease.sizes else missing_places(lease, self._units)
            for host in [one for one in planned if one in hosts]:
                claims = {claim: term for claim, term in self.claims_of(lease).items() if term.overlaps(over)}
                to = self._calendars.places.elsewhere(claims, host) if claims else host
                if to is None and lease.id not in self._demands.ops:
                    self.tell(lease, Reason(Code.UNIT, host).because(self._units[host].retire))
                elif to not in (None, host):
                    self.change_place(lease, host, to)
        self._plans.check(hosts)

    def plan(self, lease: SiteLease) -> None:
        """Plan which units a lease to come gets, and others for those who were to get those that it goes on with."""
        if lease.awaits_mapper:
            self._plans.plan(lease)
        else:
            self._plans.check(lease.units)

    def start(self, lease: SiteLease) -> None:
        """Its term has started: it needs units."""
        self._demands.put(lease, NEW)

    def touch(self, lease: SiteLease) -> None:
        """A request has changed the lease: its mapper may want to know."""
        self._kernel.touch(lease)
        self._demands.mark_dirty()

    def apply_next(self, lease: SiteLease) -> None:
        """Go on with what was accepted for now: an extend at the old end, or a modify. Units that are being set up go
        on with that: what others were promised from now on does not wait for them.
        """
        later = lease.next
        assert later is not None, "only called with something accepted"
        modified = later.claim == lease.claim
        lease.next, lease.after = lease.after, None
        if lease.next is not None:  # it begins with the configuration of that time
            lease.next = lease.next._replace(properties=later.properties)
        lease.replaced = 0 if later.op == EXTEND else lease.replaced
        if not modified:
            self._calendars.end(lease, later.term.start)
        lease.claim, lease.wanted, lease.settles = later.claim, later.units, later.number
        lease.classes, lease.sizes, lease.places = later.classes, later.sizes, later.places
        lease.term = Term(lease.term.start, later.term.end)
        changed = later.properties != lease.properties
        lease.properties = later.properties
        self._kernel.fire(lease, "apply", said(later.op))
        if changed and later.op != EXTEND:
            lease.waiting += sum(
                self._units.change(self._units[name]) for name in lease.units if name not in later.victims
            )
        for name in later.victims:
            spare = minus(held_classes(lease, self._units), lease.classes)
            if lease.sizes:  # those that stay may count as of other classes
                is_spare = len(lease.units) > lease.wanted
            else:
                is_spare = name in self._units and bool(count_of(spare, self._units[name].given_as))
            if name in lease.units and is_spare:
                self.take(lease, name)
        if lease.sizes:
            self._count_anew(lease)
            self.settle_places(lease)
        self._demand(lease)

    def _count_anew(self, lease: SiteLease) -> None:
        """A lease goes on by a claim that counts its units as of other classes, where hosts have changed: of those that
        these are of by now, else of those that it lacks.
        """
        lacking = Counter(dict(minus(lease.classes, held_classes(lease, self._units))))
        over = Counter(dict(minus(held_classes(lease, self._units), lease.classes)))
        for unit in map(self._units.__getitem__, lease.units if lacking and over else ()):
            there = self._units[host_of(unit)].classes
            fitting = next((class_ for class_ in (*there, *lacking) if lacking[class_] > 0), None)
            if over[unit.given_as] > 0 and fitting is not None:
                over[unit.given_as] -= 1
                lacking[fitting] -= 1
                self._units.count_as(unit, fitting)
                self._calendars.given_as(unit)

    def _demand(self, lease: SiteLease) -> None:
        """What the lease lacks, or has too many of, is for the mapper; if it is even, it is ready when all have
        settled.
        """
        self._demands.remove(lease)
        more = lease.wanted - len(lease.units)
        if more:
            self._demands.put(lease, GROW if more > 0 else SHRINK)
        else:
            self.check_primed(lease)

    def withdraw_next(self, lease: SiteLease, why: Reason | None) -> None:
        """The extend that was accepted comes to nothing before it began."""
        later = lease.extension
        if later is None:
            return
        lease.next, lease.after = (None if lease.next is later else lease.next), None
        self._calendars.release(lease, later.claim)
        if lease.is_extending:
            self._kernel.fire(lease, "withdraw", why)
        self._kernel.touch(lease)

    def end(self, lease: SiteLease, event: str, reason: Reason | None) -> None:
        """End the lease now: every unit goes. ``event`` is ``close`` or ``end``."""
        self._kernel.fire(lease, event, reason)
        lease.reason = reason
        self._demands.remove(lease)
        self._calendars.end(lease, self._kernel.now)
        for later in lease.accepted:
            self._calendars.release(lease, later.claim)
        lease.next = lease.after = None
        for name in list(lease.units):
            self.take(lease, name)
        self.check_down(lease)

    def notice(self, lease: SiteLease, at: Instant, why: Reason | None) -> None:
        """End the lease at ``at``, before its term does, or that of a renewal, and tell its guest now."""
        later = lease.extension
        if lease.is_ending or at >= lease.goes_to or 0 <= lease.terminates_at <= at:
            return
        if later is not None and at <= later.term.start:
            self.withdraw_next(lease, why)
            lease.notice = why
            self._updates.publish(lease, "refused", later.number, why)
            if at >= lease.term.end:
                return
        lease.terminates_at, lease.notice = at, why
        for name in lease.units:
            self._units.news.changed(self._units[name])
        self._calendars.end(lease, at)
        for one in lease.accepted:
            self._calendars.end_claim(lease.type, one.claim, at)
        self._kernel.note(lease.id, "notice", "", "", Reason(Code.ENDS_AT, at=at).because(why))
        if lease.awaits_mapper and lease.id not in self._demands.ops and lease.term.start >= at:
            self._kernel.fire(lease, "refuse", why)
            lease.reason = why
            self._finish(lease, "failed")
        else:
            self._updates.publish(lease, "terminating", 0, why)

    def show(self, lease: SiteLease) -> None:
        """Have the guest of an active lease hear how its units are by now: one of them is somewhere else."""
        if lease.is_active and lease.is_idle:
            self._updates.publish(lease, "active", 0, lease.reason)

    def tell(self, lease: SiteLease, reason: Reason | None) -> None:
        """Have the guest of a lease that goes on hear of something that concerns it."""
        lease.reason = reason
        self._kernel.touch(lease)
        self._updates.publish(lease, "told", 0)

    def take(self, lease: SiteLease, name: str) -> None:
        """Take a unit from the lease."""
        unit = self._units[name]
        lease.units.remove(name)
        lease.waiting -= _is_unsettled(lease, unit)
        self._units.take(unit, lease.id)
        self._kernel.touch(lease)

    def check_primed(self, lease: SiteLease) -> None:
        """A lease whose units are all there, or will not come, is active, or has failed."""
        if not lease.waiting:
            self._check_primed(lease)
            self._tell_settled(lease)

    def _check_primed(self, lease: SiteLease) -> None:
        if not lease.is_priming or lease.id in self._demands.ops:
            return
        if not lease.units and lease.is_ticketed:
            lease.reason = lease.reason or Reason(Code.NO_UNIT)
            self.fail(lease, "fail", lease.reason)
            return
        lease.reason = self._short(lease)
        self._kernel.fire(lease, "primed", lease.reason)
        self._updates.publish(lease, "active", lease.settles)
        if lease.next is not None:
            self._kernel.fire(lease, lease.next.op, Reason(Code.ACCEPTED_MEANWHILE))
            if lease.next.term.start <= self._kernel.now:
                self.apply_next(lease)

    def fail(self, lease: SiteLease, event: str, why: Reason | None) -> None:
        """A lease that was never active gets no units."""
        self._kernel.fire(lease, event, why)
        self._calendars.end(lease, self._kernel.now)
        self._finish(lease, "failed")

    def _short(self, lease: SiteLease) -> Reason | None:
        """What the lease's guest had better know: that units are missing, or are of another class than its ticket's."""
        short = lease.wanted - len(lease.units)
        if short:
            return Reason(Code.UNITS_MISSING, units=short, of=lease.wanted).because(lease.reason)
        held = map(self._units.__getitem__, lease.units)
        return all_of(*(Reason(Code.OTHER_CLASS, unit.id) for unit in held if unit.given_as not in unit.classes))

    def check_down(self, lease: SiteLease) -> None:
        """A lease that closes is closed when the last unit that it held has been torn down."""
        if lease.is_idle:
            if lease.ended < 0 and lease.is_closed:
                self._finish(lease, "closed")
            return
        if lease.is_torn_down and not self._units.holding.get(lease.id):
            self._kernel.fire(lease, "down")
            self._finish(lease, "closed")

    def _finish(self, lease: SiteLease, word: str) -> None:
        lease.ended = self._kernel.now
        self._demands.remove(lease)
        self._updates.publish(lease, word, max(lease.settles, lease.number))
        self._calendars.count_ended()
        self._tell_settled(lease)

    def _tell_settled(self, lease: SiteLease) -> None:
        for tell in self.settled:
            tell(lease)

    def resume(self, lease: SiteLease) -> None:
        """Take up a lease that is not over, as a store kept it."""
        self._calendars.restore(lease)
        self._plans.restore(lease)
        lease.waiting = sum(_is_unsettled(lease, self._units[name]) for name in lease.units)
        if lease.is_priming and len(lease.units) != lease.wanted:
            self._demand(lease)


def _is_unsettled(lease: SiteLease, unit: SiteUnit) -> bool:
    return unit.promised == lease.id or unit.is_settling


@attrs.define(eq=False)
class LeaseEnds:
    """Leases that end with their units saved, if these can be."""

    _kernel: Kernel
    _leases: SiteLeases
    _units: Units
    _saved: SiteSaved

    def close(self, lease: SiteLease, event: str, reason: Reason | None) -> None:
        """End the lease now, as :meth:`SiteLeases.end`; what is up of one that is suspended is saved."""
        if lease.saves:
            plain = reason == lease.notice
            for name in lease.units:
                self._saved.save(lease, self._units[name])
            reason = lease.notice if plain else reason
        self._leases.end(lease, event, reason)

    def suspend(self, lease: SiteLease, at: Instant, saving: Duration, by: str, why: Reason | None) -> None:
        """Have the lease end so early that its units are saved by ``at``, in ``saving`` ms; tell its guest now."""
        if not saves(self._units.inventory.properties(lease.type)):
            self._leases.notice(lease, at, Reason(Code.ENDED_BY, by).because(why))
        elif not lease.is_ending:  # else its guest has closed it, and may have said that nothing is to be kept
            self._save_by(lease, at, saving, Reason(Code.SUSPENDED_BY, by).because(why))

    def make_room(self, lease: SiteLease, at: Instant, why: Reason) -> None:
        """Have the lease end at ``at`` for another, saved by then if its claim says so and its driver can."""
        if lease.early.suspend and saves(self._units.inventory.properties(lease.type)):
            self._save_by(lease, at, lease.early.suspend, why)
        else:
            self._leases.notice(lease, at, why)

    def _save_by(self, lease: SiteLease, at: Instant, saving: Duration, why: Reason) -> None:
        before, begin = lease.saves, max(at - saving, self._kernel.now)
        lease.saves = True
        self._leases.notice(lease, begin, why)
        lease.saves = before if lease.terminates_at != begin else lease.ended < 0
        self._kernel.touch(lease)


@attrs.define(eq=False)
class LeaseTimes:
    """When time concerns a lease, and what is done then."""

    _kernel: Kernel
    _served: Served[SiteLease]
    _demands: DemandQueue
    _leases: SiteLeases
    _ends: LeaseEnds

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            SiteLease, due_at=self._due_at, on_due=self._due, awaits=self._served.awaits, send=self._served.send_now
        )

    def _due_at(self, lease: SiteLease) -> Instant | None:
        """When time next concerns the lease."""
        sending = lease.send_at if lease.unacked else None
        if lease.ended >= 0:
            return earliest(sending, self._served.drop_at(lease))
        if lease.is_torn_down:
            return sending
        starts = lease.term.start if lease.awaits_mapper and lease.id not in self._demands.ops else None
        later = lease.next
        ends = lease.term.end if later is None else later.term.start
        return earliest(sending, starts, earliest(ends, lease.terminates_at if lease.terminates_at >= 0 else None))

    def _due(self, lease: SiteLease) -> None:
        """Do what is due: end, go on, start, send again, or forget."""
        now = self._kernel.now
        if lease.ended >= 0:
            if self._served.drop_at(lease) <= now:
                self._served.drop(lease)
                return
        elif lease.is_torn_down:
            pass
        elif 0 <= lease.terminates_at <= now:
            self._ends.close(lease, "end", lease.notice)
        elif lease.next is not None and lease.next.term.start <= now:
            self._leases.apply_next(lease)
        elif lease.term.end <= now and lease.next is None:
            self._ends.close(lease, "end", Reason(Code.TERM_OVER))
        elif lease.awaits_mapper and lease.term.start <= now and lease.id not in self._demands.ops:
            self._leases.start(lease)
        if lease.unacked and lease.send_at <= now:
            self._served.send(lease)

    def restore(self, rows: Iterable[Row]) -> None:
        """Leases as a store kept them, after their units; what was under way goes on under the same action numbers."""
        for row in rows:
            lease = SiteLease.from_row(row)
            self._served.restore(lease, row)
            if lease.ended < 0:
                self._leases.resume(lease)
            if lease.unacked:
                self._kernel.owe(lease, lease.holder)
            self._kernel.schedule(lease, self._kernel.now if lease.unacked else self._due_at(lease))


def _with(places: Sequence[str], start: str, to: str) -> tuple[str, ...]:
    """Places of which one is another now."""
    at = places.index(start) if start in places else -1
    return tuple(to if number == at else host for number, host in enumerate(places))
