"""How a broker answers requests: what its mapper is shown; how what it grants is checked, reserved, and cut into
tickets; and how guests are told, of leases whose term is over as well. Nothing that a mapper says can overbook. It has
more than 800 lines as what is shown, checked and cut goes by the same few rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import overload

import attrs

from leasekit.actors.broker.book import Book, RequestQueue, rest_keys
from leasekit.actors.broker.claims import (
    GrantedClaims,
    LeaseClock,
    Statements,
    booked_until,
    concerned,
    early,
    ends_from,
    ends_suspended,
    is_part,
    note_terms,
    place_of,
    with_suspend,
)
from leasekit.actors.broker.delegations import SourceDependents
from leasekit.actors.broker.planner import Holds
from leasekit.actors.kernel import Kernel, earliest, keeps
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.served import Notices, Served
from leasekit.actors.settings import BrokerSettings
from leasekit.core.claims.claim import JOINED_MAX, Ticket, decode_ticket, join_tickets
from leasekit.core.errors import CommandError
from leasekit.core.leases.plans import HOLD, PlanHold
from leasekit.core.leases.records import NO_ROOM, Asked, BrokerLease, Delegation, Granted
from leasekit.core.mappers import BrokerCycle, EndedLease, Grant, GrantedLease, PendingRequest, Usage
from leasekit.core.properties import (
    EMPTY,
    NO_UNITS,
    WHOLE,
    Counts,
    Portion,
    Properties,
    Vector,
    chosen,
    first_of,
    fits,
    saves,
    total,
)
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, REPLACE, TICKET_MAX, Introduce, TicketUpdate
from leasekit.core.reasons import Code, Reason, mark, marked
from leasekit.core.requests import SUSPEND, TERMINATE, Options
from leasekit.core.time import DAY, INSTANT_MAX, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Shortfall


@keeps(volatile="_told _endorsements")
@attrs.define(eq=False, slots=False)
class Introductions:
    """What a broker has said of whom to whom. It says nothing unless it is to ``endorse``."""

    _kernel: Kernel
    _keyring: Keyring
    _peering: Peering
    _notices: Notices
    _endorse: bool
    _told: dict[tuple[str, str], tuple[Instant, Instant]] = attrs.field(factory=dict, init=False)
    _endorsements: dict[str, bytes] = attrs.field(factory=dict, init=False)

    def introduce(self, guest: str, source: Delegation, until: Instant) -> bytes:
        """If the settings say so, make a guest, whose lease ends at ``until``, known at the site of ``source``. Returns
        the site's endorsement for the guest.
        """
        site = source.site
        holder, place = self._keyring.peers.get(guest), self._keyring.peers.get(site)
        if not self._endorse or holder is None or place is None:
            return b""
        at, told = self._told.get((guest, site), (-DAY, 0))
        if at + DAY <= self._kernel.now or told + DAY < until:  # or the site may forget, before the lease begins
            self._told[guest, site] = self._kernel.now, max(told, until)
            message = Introduce(guest, self._kernel.next("serial"), self._peering.endorsement(holder), until)
            # Due for longer than the lease is: the guest's next one may not be introduced anew.
            self._notices.owe(f"introduce:{guest}@{site}", site, message, max(until, source.term.end))
        if site not in self._endorsements:
            self._endorsements[site] = self._peering.endorsement(place)
        return self._endorsements[site]

    def unsay(self, name: str) -> None:
        """What was said of a peer may not hold any more: it is said anew."""
        self._told = {pair: told for pair, told in self._told.items() if name not in pair}
        self._endorsements.pop(name, None)


@attrs.define(eq=False, slots=False)
class Answers:
    """The answers to requests that waited in ``queue``."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    queue: RequestQueue
    _book: Book
    _introductions: Introductions
    unpromised: list[Callable[[BrokerLease], None]] = attrs.field(factory=list, init=False)
    """What happens to a lease that makes room for another, once nothing is promised to that one any more."""

    def settle(
        self,
        lease: BrokerLease,
        status: str,
        reason: Reason | None,
        *,
        ticket: bytes = b"",
        source: Delegation | None = None,
        truncation: bytes = b"",
        fits: Instant | None = None,
        continuations: bytes = b"",
    ) -> None:
        """The request of ``lease`` is over, as ``status`` says: its guest is told until it acknowledges that."""
        number, lease.waits = lease.waits.number, lease.waits._replace(number=0)
        self.take_back(lease)
        self.queue.remove(lease)
        if status == "granted":
            self._book.leave_group(lease.id)
        if lease.is_over:
            lease.ended, lease.reason = self._kernel.now, reason
        site, endorsement = "", b""
        properties: Properties = EMPTY
        classes: tuple[Properties, ...] = ()
        if source is not None:
            site, (properties, classes) = source.site, self._book.attributes_of(decode_ticket(ticket).leaf.classes)
            endorsement = self._introductions.introduce(lease.holder, source, lease.claims[-1].term.end)
        self._served.publish(
            lease,
            TicketUpdate(
                lease.id, lease.update + 1, number, status, ticket, site, properties, truncation, reason,
                -1 if fits is None else fits, endorsement, continuations, classes,
            ),
        )  # fmt: skip

    def take_back(self, lease: BrokerLease) -> None:
        """What ``lease`` waits for is decided: nothing is promised to it any more."""
        lease.defer_reason = None
        (promise, victims, _), lease.room = lease.room, NO_ROOM
        if promise is not None:
            self._book.take_back(promise)
            self._book.note_news()
            for name in victims:
                for tell in self.unpromised if name in self._served.leases else ():
                    tell(self._served.leases[name])

    def class_of(self, lease: BrokerLease) -> int:
        """The class of a request that is answered."""
        return self.queue.class_of(lease)

    def reject(self, lease: BrokerLease, reason: Reason, fits: Instant | None = None, event: str = "refuse") -> None:
        """Refuse the request of ``lease``, and those of its group."""
        self._kernel.fire(lease, event, reason)
        lease.reason = reason
        self.settle(lease, "refused", reason, fits=fits)
        self.refuse_group(lease, Reason(Code.GROUP_REFUSED).because(reason))

    def hold_dropped(self, hold: PlanHold, why: Reason) -> None:
        """Refuse what waits for a part of a hold."""
        self._book.note_news()
        mine = f"{hold.id}/"
        for lease in list(self.queue.leases.values()):
            if lease.asked.properties.get(HOLD, "").startswith(mine) and lease.id in self.queue:
                self.reject(lease, Reason(Code.HOLD_EXPIRED).because(why))

    def refuse_group(self, lease: BrokerLease, reason: Reason) -> None:
        """Refuse what waits of the group of ``lease`` beside it."""
        for member in self._book.dissolve_group(lease.id):
            other = self.queue.leases.get(member)
            if other is not None and other is not lease:
                self._kernel.fire(other, "refuse", reason)
                self.settle(other, "refused", reason)

    def expire(self, lease: BrokerLease) -> None:
        """The request of ``lease`` has waited for too long."""
        why = Reason(Code.NOT_GRANTED).because(lease.defer_reason)
        if lease.group and lease.asked.op == NEW:
            have, count = self._book.group_size(lease.id)
            if have < count or not count:
                why = Reason(Code.GROUP_INCOMPLETE, what=lease.group, units=have, of=count or -1)
        self.reject(lease, why, event="expire")


@attrs.define(eq=False)
class LeaseTerms:
    """The timers of leases."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _granted: GrantedClaims
    _answers: Answers
    _clocks: Sequence[LeaseClock]

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            BrokerLease, due_at=self._due_at, on_due=self._due, awaits=self._served.awaits, send=self._served.send_now
        )

    def _due_at(self, lease: BrokerLease) -> Instant | None:
        if lease.ended >= 0:
            return earliest(lease.send_at if lease.unacked else None, self._served.drop_at(lease))
        waiting = lease.waits.deadline if lease.waits.number else None
        if lease.room.hand_over >= 0:
            waiting = min(lease.waits.deadline, lease.room.hand_over)
        clocks = (clock.due_at(lease) for clock in self._clocks if lease.claims)
        ends = earliest(booked_until(lease), *clocks) if lease.claims else None
        return earliest(lease.send_at if lease.unacked else None, waiting, ends)

    def _due(self, lease: BrokerLease) -> None:
        if lease.ended >= 0 and self._served.drop_at(lease) <= self._kernel.now:
            self._served.drop(lease)
            return
        if lease.waits.number and lease.waits.deadline <= self._kernel.now:
            self._answers.expire(lease)
        elif 0 <= lease.room.hand_over <= self._kernel.now:
            self._granted.changed(lease)
        if lease.unacked and lease.send_at <= self._kernel.now:
            self._served.send(lease)
        if lease.ended < 0 and lease.claims and booked_until(lease) <= self._kernel.now:
            self._kernel.fire(lease, "end", Reason(Code.TERM_OVER))
            self._granted.changed(lease)
            self._granted.over(lease, Reason(Code.TERM_OVER))
        elif lease.ended < 0 and lease.claims:
            for clock in self._clocks:
                clock.due(lease)


@attrs.define(eq=False)
class LeaseViews:
    """Requests and leases as mappers see them."""

    _kernel: Kernel
    _queue: RequestQueue
    _book: Book
    _granted: GrantedClaims
    _settings: BrokerSettings

    @property
    def usage(self) -> Usage | None:
        """What each holder has been granted, if the mapper goes by it."""
        return self._granted.usage

    def ended(self) -> tuple[Sequence[EndedLease], int]:
        """The leases that have ended and were not shown, if the mapper wants to know, and how many are not kept."""
        return self._granted.ended.show() if self._granted.ended is not None else ((), 0)

    @property
    def booked_hours(self) -> int:
        """How much a holder is to have booked ahead."""
        return self._settings.booked_hours

    def booked(self, *, snapshot: bool) -> Callable[[str, str], int]:
        """How much a holder has booked ahead of a type; with ``snapshot`` as it is now, whatever comes meanwhile."""
        now = self._kernel.now
        if not snapshot:
            return lambda holder, type_: self._granted.ahead.at(holder, type_, now)
        found = self._granted.ahead.all_at(now)
        return lambda holder, type_: found.get((holder, type_), 0)

    def granted(self, type_: str) -> Sequence[GrantedLease]:
        """The leases of a type that are not over. Records are read as they are when the mapper asks."""
        found = []
        for lease in list(self._granted.leases.values()):
            claims = lease.claims
            if lease.type != type_ or not lease.is_ticketed or not claims or claims[-1].until <= self._kernel.now:
                continue
            last = claims[-1]
            end = last.until if not lease.is_noticed else min(last.until, max(lease.ending.at, last.term.start + 1))
            on_preempt = self._on_preempt(lease)
            found.append(
                GrantedLease(
                    lease.id, lease.holder, self._book.base(last.source), type_, last.units, Term(last.term.start, end),
                    last.preemptible, self._queue.class_of(lease), with_suspend(lease), last.until, last.classes,
                    lease.terms.since, ends_from(lease, self._kernel.now, suspend=on_preempt == SUSPEND),
                    lease.is_noticed, last.needs, on_preempt, lease.terms.bid,
                )
            )  # fmt: skip
        return found

    def _on_preempt(self, lease: BrokerLease) -> str:
        """What becomes of a lease that is ended for others, by what its site can do."""
        source = self._book.get(lease.claims[-1].source) if lease.terms.on_preempt == SUSPEND else None
        return lease.terms.on_preempt if source is None or saves(source.properties) else TERMINATE

    def request(self, lease: BrokerLease) -> PendingRequest:
        """What ``lease`` asks for."""
        asked, options = lease.asked, self._queue.options[lease.id]
        last = concerned(lease) if lease.claims else None
        # What is past is not given: the book knows nothing of it any more.
        start = max(asked.term.start, self._kernel.now) if asked.op != EXTEND else asked.term.start
        later = options.deferrable and asked.op == NEW
        latest = options.latest_start or (max(lease.waits.deadline, start) if options.deferrable else start)
        return PendingRequest(
            lease=lease.id,
            holder=lease.holder,
            op=NEW if asked.op == REPLACE else asked.op,
            type=lease.type,
            units=asked.units,
            min_units=min(options.min_units or asked.units, asked.units),
            term=Term(start, start + asked.term.length if later else asked.term.end),
            latest_start=latest if asked.op == NEW else start,
            deadline=lease.waits.deadline,
            arrived=lease.waits.arrived,
            site=asked.site,
            exclude_sites=options.exclude_sites,
            source=self._book.base(last.source) if last is not None and asked.op != NEW else "",
            held=last.units if last is not None else 0,
            group=lease.group,
            priority=self._queue.class_of(lease),
            preemptible=options.preemptible or _stays_preemptible(lease),
            properties=asked.properties,
            held_until=last.until if last is not None else 0,
            classes=self._goes_on_with(last, options, asked) if last is not None else NO_UNITS,
            needs=last.needs if last is not None and asked.op in (EXTEND, MODIFY) else options.needs,
            bid=lease.terms.bid if options.bid is None else options.bid,
            held_from=last.term.start if last is not None and asked.op == REPLACE else 0,
        )

    def _goes_on_with(self, held: Granted, options: Options, asked: Asked) -> Counts:
        """The units that a lease goes on with: all of those that it holds, or those that its guest keeps."""
        if asked.op == REPLACE:
            return held.classes
        named = total(options.keep) == asked.units and fits(options.keep, held.classes)
        kept = options.keep if named else held.classes
        return self._book.goes_on_as(self._book.base(held.source), asked.term, kept)


def _stays_preemptible(lease: BrokerLease) -> bool:
    """Whether a request continues what can be ended early, and does not ask for a firm claim by that name."""
    if lease.asked.op == NEW or not lease.claims:
        return False
    return concerned(lease).preemptible and (lease.asked.op == MODIFY or "preemptible" not in lease.asked.properties)


class RequestViews(Sequence[PendingRequest]):
    """Requests as a mapper that is called in line sees them: made when it looks at them, for many a mapper looks at the
    last ones only.
    """

    __slots__ = ("_leases", "_view")

    def __init__(self, leases: Sequence[BrokerLease], view: Callable[[BrokerLease], PendingRequest]) -> None:
        self._leases, self._view = leases, view

    def __len__(self) -> int:
        return len(self._leases)

    @overload
    def __getitem__(self, index: int) -> PendingRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PendingRequest]: ...
    def __getitem__(self, index: int | slice) -> PendingRequest | Sequence[PendingRequest]:
        if isinstance(index, slice):
            return RequestViews(self._leases[index], self._view)
        return self._view(self._leases[index])

    def __iter__(self) -> Iterator[PendingRequest]:
        return map(self._view, self._leases)


AGAIN_MAX = 32
"""How many requests that it has put off before a mapper looks at in one turn: some 3 ms."""
SHOWN_MAX = 256
"""How many requests of one holder a mapper sees that looks at all that wait in each turn: some 10 ms."""


@keeps(derived="at")
@attrs.define(eq=False, slots=False)
class Cycles:
    """The cycles of a mapper that is called ``inline``, or in another thread.

    A mapper that decides each request ``by_itself`` is shown those that it has put off only when something may have
    come free, and ``again_max`` of them in one turn, so that whoever has many waiting makes nobody else wait for them.
    Each holder has the same share of these places. Later turns go on with the others, a part of the time.

    One that looks at all that waits in each turn is shown about ``shown_max`` of each holder, those that came first.
    """

    _kernel: Kernel
    _queue: RequestQueue
    _book: Book
    _views: LeaseViews
    _inline: bool
    by_itself: bool = attrs.field(default=False, init=False)
    again_max: int = attrs.field(default=INSTANT_MAX, init=False)
    shown_max: int = attrs.field(default=INSTANT_MAX, init=False)
    at: Instant = attrs.field(default=0, init=False)
    """When the mapper was last shown anything."""

    def look_at(self, again_max: int, shown_max: int) -> None:
        """Bound what the mapper is shown in one turn."""
        self.shown_max = shown_max
        if self.by_itself:
            self.again_max = again_max

    def due_at(self, wake: Instant | None, *, asked: bool = False) -> Instant | None:
        """When the mapper is to be called: now if it is ``asked`` something, or requests wait and something has changed
        since it saw them; else when it wants to be called.
        """
        if asked or (self._queue and self._book.has_news):
            return self._kernel.now
        if not self._queue:
            return None
        again = None if self._is_few else self._queue.looks.due_at
        return earliest(wake, again if again is None else max(again, self._kernel.now))

    def is_due(self, wake: Instant | None) -> bool:
        """Whether the mapper is to see the requests that wait."""
        at = self.due_at(wake)
        return at is not None and at <= self._kernel.now

    def view(self, lease: BrokerLease) -> PendingRequest:
        """The request of ``lease`` as the mapper would be shown it now."""
        return self._views.request(lease)

    def class_of(self, lease: BrokerLease) -> int:
        """The class of a lease, as the mapper would be shown it."""
        return self._queue.class_of(lease)

    def show_news(self) -> BrokerCycle:
        """What the mapper is shown in its own turn: until something changes there is nothing new for it."""
        if self._book.note_seen():
            self._queue.looks.note_freed()
        cycle = self.show(self._next())
        ended, before = self._views.ended() if cycle.requests or cycle.groups else ((), 0)
        bids = {} if self._is_few else self._queue.looks.highest_bids()
        return cycle._replace(ended=ended, ended_before=before, bids=bids)

    def _next(self) -> Iterable[BrokerLease]:
        if self._is_few:
            return self._queue.first_of_each(self.shown_max, self._together)
        return self._queue.looks.next(self._kernel.now, self.again_max, self._together)

    def _together(self, id_: str) -> Sequence[BrokerLease]:
        """What is decided at once: a request that waits, or its group once that is complete."""
        have, count = self._book.group_size(id_)
        return [self._queue.leases[one] for one in self._book.group_of(id_) or (id_,)] if have == count else ()

    @property
    def _is_few(self) -> bool:
        """Whether the mapper looks at all that waits in each turn."""
        return len(self._queue) <= self.again_max

    def failed(self) -> None:
        """The mapper's turn has failed."""
        self._queue.looks.retry()

    def show_with(self, lease: BrokerLease) -> BrokerCycle:
        """What the mapper is shown for a question, that of ``lease``. Very many that were put off are not."""
        waiting = self._next() if self._is_few else self._queue.looks.new.values()
        return self.show([*waiting, lease])

    def show(self, leases: Iterable[BrokerLease]) -> BrokerCycle:
        """What the mapper is shown of some leases."""
        alone: list[BrokerLease] = []
        members: dict[str, BrokerLease] = {}
        offered = set(self._book.types())
        for lease in leases:
            if lease.room.promise is not None:
                continue
            if lease.asked.op == NEW and HOLD in lease.asked.properties:
                lease.defer_reason = Reason(Code.PARTS_UNASKED)
                continue
            if lease.type not in offered:
                lease.defer_reason = Reason(Code.NOT_OFFERED, what=lease.type)
                continue
            if lease.group and lease.asked.op == NEW:
                members[lease.id] = lease
            else:
                alone.append(lease)
        groups = [
            tuple(self._views.request(members[id_]) for id_ in ids)
            for ids in self._book.complete_groups(members)
            if all(id_ in members for id_ in ids)
        ]
        self.at = self._kernel.now
        # A mapper that is called in line sees the requests as they still are when its decisions are carried out.
        views = RequestViews(alone, self._views.request)
        requests = views if self._inline else list(views)
        sources = self._book.turn_sources(snapshot=not self._inline)
        usage = self._views.usage
        return BrokerCycle(
            self._kernel.now, requests, groups, sources, self._views.granted, usage, self._suspends(),
            self._views.booked_hours, self._views.booked(snapshot=not self._inline),
        )  # fmt: skip

    def _suspends(self) -> bool:
        """Whether there is anything here that can be suspended: of some type, at some site."""
        return any(saves(source.properties) for type_ in self._book.types() for source in self._book.of_type(type_))


CLAIM_MAX = 512
"""More bytes than a claim that a broker cuts for a guest has beside the classes that it names: those of the delegation,
at most."""


@attrs.define(eq=False)
class GrantChecks:
    """Whether a grant is what was asked for, of what there is."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _cycles: Cycles
    _dependents: SourceDependents

    def check_own(self, grant: Grant, portion: Portion) -> None:
        """Raises ``CommandError`` if more of a delegation is in use than it has, and this is too much then."""
        for source, term in self._book.cover(grant.source, grant.booked):
            for class_, _ in self._book.table(source.id).lacking(term):
                self._dependents.check_own(source, term, class_, grant, portion.weights)

    def check(self, lease: BrokerLease, options: Options, grant: Grant) -> None:
        """Raises ``CommandError`` if ``grant`` can't be carried out, units apart."""
        view = self._cycles.view(lease)
        source = next((one for one in self._book.chain(grant.source) if one.grants_until > self._kernel.now), None)
        if lease.holder not in self._keyring.peers:
            raise CommandError(f"lease {lease.id}: its holder {lease.holder!r} is no peer any more")
        if source is None or source.type != lease.type:
            raise CommandError(f"source {grant.source!r} has no {lease.type!r} to grant")
        if not view.min_units <= grant.units <= view.units:
            raise CommandError(f"{grant.units} units were granted, {view.min_units} to {view.units} were asked for")
        asked = lease.asked.term
        moves = lease.asked.op == NEW and options.deferrable
        part = is_part(lease, grant, options, source.properties)
        fits = part or (grant.term.length == asked.length if moves else grant.term.end == asked.end)
        # A mapper in a thread decides by the time that it was shown.
        begin = asked.start if lease.asked.op == EXTEND else max(asked.start, self._cycles.at)
        if not fits or not begin <= grant.term.start <= view.latest_start:
            raise CommandError(
                f"term {marked(grant.term)} is not what was asked for: {marked(view.term)}, latest "
                f"{mark(view.latest_start)}"
            )
        if lease.asked.op in (EXTEND, MODIFY) and grant.source != view.source:
            raise CommandError(f"lease {lease.id} continues from {view.source!r}, not {grant.source!r}")
        if (view.site and source.site != view.site) or source.site in view.exclude_sites:
            raise CommandError(f"lease {lease.id} can't be at {source.site!r}")
        if grant.prepare and (lease.asked.op not in (NEW, REPLACE) or grant.booked.start < self._kernel.now):
            raise CommandError(
                f"units can't be prepared from {mark(grant.booked.start)} on: it is {mark(self._kernel.now)}, "
                f"{lease.asked.op}"
            )
        self._check_covered(source, grant)

    def check_above(self, lease: BrokerLease, options: Options, victim: BrokerLease) -> None:
        """Raises ``CommandError`` if ``victim`` need not make room for what ``lease`` asks for."""
        mine, other = self._cycles.class_of(lease), self._cycles.class_of(victim)
        if options.preemptible and (options.bid or 0) <= victim.terms.bid:
            raise CommandError(
                f"lease {lease.id} is preemptible, and bids {options.bid or 0}: {victim.id}, which bids "
                f"{victim.terms.bid}, makes no room for it"
            )
        if other > mine:
            raise CommandError(
                f"lease {victim.id} is of class {other}, and makes no room for {lease.id} of class {mine}"
            )

    def choose(self, lease: BrokerLease, options: Options, grant: Grant) -> Portion:
        """The units of a grant by class: of those classes that the request's filter takes. A lease goes on with the
        units that it has. Raises ``CommandError``, or ``Shortfall`` if there are not so many.
        """
        is_first = lease.asked.op in (NEW, REPLACE)
        needs = options.needs if is_first else concerned(lease).needs
        units = self._units(lease, options, grant, needs)
        if not is_first and concerned(lease).sizes:  # hosts of a class may be gone by now
            old = concerned(lease)
            known = dict(zip((class_ for class_, _ in old.classes), old.sizes, strict=True))
            hosts = self._book.hosts(grant.source)
            each = (known.get(class_) or hosts[class_].size(needs) for class_, _ in units)
            return Portion(units, tuple(size for size in each if size), needs)
        return self._book.hosts(grant.source).portion(units, needs)

    def _units(self, lease: BrokerLease, options: Options, grant: Grant, needs: Vector) -> Counts:
        if lease.asked.op == REPLACE:
            booked = self._book.table_of(grant.source).overlay()
            booked.end(concerned(lease).key, concerned(lease).term.start)
            return self._book.accepted(grant.source, options.filter, needs, booked).pick(grant.units, grant.booked)
        table = self._book.accepted(grant.source, options.filter, needs, placed=True)
        if lease.asked.op == NEW:
            with suppress(Shortfall):  # whether a host has it by now is for the site to say
                return self._book.accepted(grant.source, options.filter, needs).pick(grant.units, grant.booked)
            return table.pick(grant.units, grant.booked)
        kept = first_of(self._cycles.view(lease).classes, grant.units)
        if grant.units == total(kept):
            return kept
        until = concerned(lease).until if lease.asked.op == MODIFY else 0
        free = self._book.asked(grant.source, needs).goes_on(kept, until, grant.booked, table.tables)
        units = chosen(grant.units, free, kept)
        if not fits(kept, units):
            raise Shortfall(grant.booked, sum(free.values()), grant.units)
        return units

    def _check_covered(self, source: Delegation, grant: Grant) -> None:
        """What is granted lies in one delegation, or in some that go on from each other. Raises ``CommandError``."""
        parts = self._book.cover(grant.source, grant.booked)
        if not parts:
            end = max(one.grants_until for one in self._book.chain(grant.source))
            raise CommandError(f"the delegation covers {marked((source.term.start, end))}, not {marked(grant.booked)}")
        if parts[0][1].end <= self._kernel.now:
            raise CommandError(f"{parts[0][0].id}, in which it begins, was replaced meanwhile")
        if grant.prepare and parts[0][1].end <= grant.term.start:
            raise CommandError(f"units can't be prepared in {parts[0][0].id}, which ends before the term begins")
        if len(parts) > JOINED_MAX + 1 or sum(2 * len(one.ticket) + CLAIM_MAX for one, _ in parts) > TICKET_MAX:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")


@attrs.define(eq=False)
class TicketCutter:
    """Tickets for what is granted."""

    _kernel: Kernel
    _book: Book
    _granted: GrantedClaims
    _statements: Statements
    _answers: Answers

    def new_key(self, lease: BrokerLease) -> str:
        """Under which something is booked for ``lease``."""
        # Not by the request's number: one whose record is long forgotten may come again.
        return f"{lease.id}#{self._kernel.next('serial')}"

    def reserve(self, lease: BrokerLease, grant: Grant, portion: Portion) -> str:
        """Book the grant of these units, that of a modify in place of the rest of the claim it replaces. Raises
        ``Shortfall`` with nothing changed.
        """
        key = self.new_key(lease)
        if lease.asked.op == REPLACE:
            self.try_reserve(lease, grant, portion)
        self._reserve(self._book.table_of(grant.source), lease, key, portion.weights, grant)
        return key

    def _reserve(self, table: ClassedTimetable, lease: BrokerLease, key: str, units: Counts, grant: Grant) -> None:
        if lease.asked.op == MODIFY:
            table.replace(concerned(lease).key, key, units, grant.booked)
            return
        if lease.asked.op == REPLACE:
            table.end(concerned(lease).key, self._cut_of(lease, grant))
        table.reserve(key, units, grant.booked)

    def _cut_of(self, lease: BrokerLease, grant: Grant) -> Instant:
        """Up to when the claim in whose place something is granted is booked as it was: what is beyond is booked as far
        as it is more than the grant.
        """
        old = concerned(lease)
        if lease.asked.op == MODIFY:
            return grant.booked.start
        if self._book.base(old.source) != grant.source:
            return old.term.end
        return min(max(grant.booked.start, old.term.start), old.term.end)

    def try_reserve(self, lease: BrokerLease, grant: Grant, portion: Portion) -> None:
        """Raises ``Shortfall`` if these units could not be booked. Nothing is changed."""
        classes = frozenset(class_ for class_, _ in portion.weights)
        self._reserve(self._book.table_of(grant.source).of(classes).overlay(), lease, "", portion.weights, grant)

    def room(self, options: Options, grant: Grant) -> Portion:
        """What is free for a grant when its victims have left. Raises ``CommandError``. Nothing is changed."""
        table = self._book.table_of(grant.source).overlay()
        for one in grant.victims:
            victim = self._granted.leases.get(one.lease)
            for claim in victim.claims if victim is not None else ():
                for key in (claim.key, *rest_keys(claim)):
                    table.end(key, max(one.at, claim.term.start))
        try:
            left = self._book.accepted(grant.source, options.filter, options.needs, table)
            units = left.pick(grant.units, grant.booked)
        except Shortfall as short:
            raise CommandError(
                f"{short.free} units are free over {marked(short.term)} when all have made room"
            ) from short
        return self._book.hosts(grant.source).portion(units, options.needs)

    def promise(self, lease: BrokerLease, options: Options, grant: Grant) -> Granted:
        """Book what is free for a grant when its victims have left, though they have not yet. Raises ``CommandError``
        with nothing changed.
        """
        portion = self.room(options, grant)
        promise = Granted(
            b"", grant.source, self.new_key(lease), grant.units, grant.booked, grant.booked.end,
            preemptible=grant.preemptible, prepare=grant.prepare, classes=portion.classes, sizes=portion.sizes,
            needs=portion.needs,
        )  # fmt: skip
        self._book.promise(promise)
        return promise

    def earliest(self, promise: Granted, options: Options, starts: Term, kept: Iterable[Granted]) -> Instant | None:
        """The earliest of some starts at which what is promised is free for as long as it is promised for, with what is
        ``kept`` for it.
        """
        table = self._book.table_of(promise.source).overlay()
        for key in (promise.key, *(key for claim in kept for key in rest_keys(claim))):
            if key in table:
                table.release(key)
        left = self._book.accepted(promise.source, options.filter, options.needs, table)
        return left.earliest(promise.units, promise.term.length, *starts)

    def take_back(self, lease: BrokerLease) -> None:
        """Nothing is promised to ``lease`` any more."""
        self._answers.take_back(lease)

    def cut(self, lease: BrokerLease, grant: Grant, options: Options, key: str, portion: Portion) -> None:
        """Cut the tickets of a grant of these units, which is reserved under ``key``, and answer with them."""
        note_terms(lease, grant, options)
        parts = self._cut_claims(lease, grant, options, key, portion)
        first, continuations = parts[0][0], join_tickets([ticket.encode() for ticket, _ in parts[1:]])
        cut_at = self._cut_of(lease, grant) if lease.asked.op in (MODIFY, REPLACE) else -1
        place = place_of(lease, lease.asked.op, lease.asked.term)
        truncation = self._granted.add(lease, place, [granted for _, granted in parts], cut_at)
        if not lease.is_noticed:
            lease.ending = lease.ending._replace(suspended=bool(lease.claims[-1].saving))
        lease.reason = None
        start, end = grant.booked
        source = self._book.get(parts[-1][1].source)
        assert source is not None, "checked before"
        granted = Reason(Code.GRANTED, source.site, lease.type, units=grant.units, at=start, until=end)
        self._kernel.fire(lease, "grant", granted)
        self._answers.settle(
            lease, "granted", None, ticket=first.encode(), source=source, continuations=continuations,
            truncation=truncation if lease.asked.op == MODIFY else b"",
        )  # fmt: skip

    def _cut_claims(
        self, lease: BrokerLease, grant: Grant, options: Options, key: str, portion: Portion
    ) -> list[tuple[Ticket, Granted]]:
        """The claims of a grant, which is reserved under ``key``: one for each delegation that its term lies in."""
        parts = self._book.cover(grant.source, grant.booked)
        table = self._book.table_of(grant.source)
        if len(parts) > 1:
            table.release(key)
        made: list[tuple[Ticket, Granted]] = []
        for number, (source, term) in enumerate(parts):
            prepare = grant.prepare if number == 0 else 0
            saving = ends_suspended(lease, grant, options, source.properties) if number == len(parts) - 1 else 0
            part_key, serial = f"{key}.{number}" if number else key, self._kernel.next("serial")
            old = concerned(lease) if lease.asked.op in (MODIFY, REPLACE) and number == 0 else None
            replaces = "" if old is None else old.digest.hex()
            unused_until = old.term.end if old is not None and lease.asked.op == REPLACE else -1
            if len(parts) > 1:
                table.reserve(part_key, portion.weights, term, force=True)
            claim = Granted(
                b"", source.id, part_key, grant.units, term, term.end, False, serial, grant.preemptible, prepare,
                saving, replaces, portion.classes, self._statements.redeem_by(term, prepare), portion.sizes,
                portion.needs, early(lease, self._answers.queue.class_of(lease), grant) if portion.needs else EMPTY,
                unused_until,
            )  # fmt: skip
            ticket = self._statements.cut_for(claim, lease.holder)
            made.append((ticket, claim._replace(digest=ticket.leaf.digest)))
        return made


@attrs.define(eq=False)
class Grants:
    """What is granted of the requests that wait. It is the ``Decider`` of questions."""

    _queue: RequestQueue
    _book: Book
    _cycles: Cycles
    _checks: GrantChecks
    _cutter: TicketCutter

    def grant(self, grants: Sequence[Grant]) -> None:
        """Reserve for all, or for none; then cut the tickets. Raises ``CommandError``."""
        if any(grant.victims for grant in grants):
            raise CommandError("others make room for one new request at a time, which is of no group")
        leases = [self._queue.waiting(grant.lease) for grant in grants]
        self._check_group(leases, grants)
        for lease, grant in zip(leases, grants, strict=True):
            self._checks.check(lease, self._queue.options[lease.id], grant)
        reserved: list[tuple[BrokerLease, Grant, str, Portion]] = []
        try:
            # Who takes any class of units leaves to the others of its group what these need.
            pairs = zip(leases, grants, strict=True)
            for lease, grant in sorted(pairs, key=self._pickiness) if len(grants) > 1 else pairs:
                units = self._checks.choose(lease, self._queue.options[lease.id], grant)
                self._checks.check_own(grant, units)
                reserved.append((lease, grant, self._cutter.reserve(lease, grant, units), units))
        except (CommandError, Shortfall) as error:
            for _, grant, key, _ in reserved:
                self._book.table_of(grant.source).release(key)
            if isinstance(error, CommandError):
                raise
            raise CommandError(f"it would overbook: {error.free} units are free over {marked(error.term)}") from error
        for lease, grant, key, units in reserved:
            self._cutter.cut(lease, grant, self._queue.options[lease.id], key, units)

    def _pickiness(self, pair: tuple[BrokerLease, Grant]) -> int:
        lease, grant = pair
        options = self._queue.options[lease.id]
        return len(self._book.accepted(grant.source, options.filter, options.needs).tables)

    def _check_group(self, leases: Sequence[BrokerLease], grants: Sequence[Grant]) -> None:
        group = {lease.group for lease in leases if lease.asked.op == NEW}
        if group == {""} or not group:
            if len(leases) != 1:
                raise CommandError("only the members of a request group are granted together")
            return
        whole = self._book.group_of(leases[0].id)
        fixed = all(self._queue.options[lease.id].latest_start == lease.asked.term.start for lease in leases)
        one_term = fixed or len({grant.term for grant in grants}) == 1
        if sorted(lease.id for lease in leases) != sorted(whole) or not one_term:
            raise CommandError(f"request group {leases[0].group!r} is granted whole and over one term, or not at all")

    def show(self, lease: BrokerLease) -> BrokerCycle:
        """See :class:`.dry_runs.Decider`."""
        return self._cycles.show_with(lease)

    def try_grant(self, lease: BrokerLease, grant: Grant) -> tuple[Delegation, Counts]:
        """See :class:`.dry_runs.Decider`."""
        options = self._queue.options[lease.id]
        self._checks.check(lease, options, grant)
        try:
            if grant.victims:
                units = self._cutter.room(options, grant)
            else:
                units = self._checks.choose(lease, options, grant)
                self._cutter.try_reserve(lease, grant, units)
        except Shortfall as short:
            raise CommandError(f"it would overbook: {short.free} units are free over {marked(short.term)}") from short
        self._checks.check_own(grant, units)
        return self._book.cover(grant.source, grant.booked)[0][0], units.classes


@attrs.define(eq=False)
class HeldParts:
    """What is held for planned topologies, and granted when all parts of one are asked for."""

    _granted: GrantedClaims
    _queue: RequestQueue
    _book: Book
    holds: Holds
    _cutter: TicketCutter

    def use(self, hold: PlanHold, lease: BrokerLease) -> None:
        """``lease`` asks for a part of a hold: if it is the last one, all are granted, and nothing is held any more."""
        members = {
            self._granted.leases[id_].asked.properties.get(HOLD, "").rpartition("/")[2]: self._granted.leases[id_]
            for id_ in self._book.group_of(lease.id)
        }
        if set(members) != {part.part for part in hold.parts}:
            return
        wrong = self.holds.why_not(hold, lease.holder)
        if wrong:
            self.holds.drop(hold, wrong)
            return
        for part in hold.parts:
            member = members[part.part]
            key = self._cutter.new_key(member)
            self.holds.reserve(hold, part, key)
            grant = Grant(member.id, part.source, part.units, hold.term)
            portion = self._book.hosts(part.source).portion(self._book.asked(part.source).booked(key), WHOLE)
            self._cutter.cut(member, grant, self._queue.options[member.id], key, portion)
        self.holds.use(hold, lease.holder)
