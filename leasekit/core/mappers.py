"""What a mapper is, what it is shown, and what it may decide.

A mapper is a plain object that an actor calls once per cycle with a read-only view; it returns decisions. No I/O, no
clock, nothing to inherit from. The actor checks every decision against its own state before it acts, so a wrong
mapper can be unfair but can't overbook, and one that raises loses its turn, not its actor. A mapper that sets
``inline = True`` promises to be quick: an emulation calls it on the actor's own step, and so does a daemon if it is
leasekit's own; others are run in a thread under a time limit.

This module is all that a mapper may rely on, and :data:`VERSION` says when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from leasekit.core.properties import EMPTY, NO_UNITS, WHOLE, Counts, Properties, Sizes, Vector
from leasekit.core.requests import TERMINATE
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Timetable
from leasekit.core.topology import TopologyRequest

VERSION: Final = 3
EMPTY_CLASSES: Final[Mapping[bytes, Properties]] = MappingProxyType({})
NO_BIDS: Final[Mapping[str, int]] = MappingProxyType({})


class Wake(NamedTuple):
    """Call me again at ``at``, whatever happens (any role)."""

    at: Instant


class ReportNumber(NamedTuple):
    """A number of the mapper's own, from now on (any role): people and programs see it beside what actors say.

    ``name`` is up to 64 letters, digits and ``_-.``, and begins with a letter; a mapper has up to 64 names. ``value``
    is finite. The last one counts, until the actor starts anew.
    """

    name: str
    value: float


# -- broker ------------------------------------------------------------------------------------------------------


class PendingRequest(NamedTuple):
    """One request that waits for the broker's mapper.

    ``op`` is ``new``, ``extend`` or ``modify``; the last two must be filled from ``source`` and keep their start.
    ``min_units`` is below ``units`` for an elastic request, ``latest_start`` above ``term.start`` for a deferrable
    one. ``held`` is what the lease holds, up to ``held_until`` (0 where it holds nothing): a modify gives that up
    from ``term.start`` on, though ``Source.free`` still counts it; what it leaves of that stays booked until the
    site has confirmed the modify. A ``new`` one that holds units from ``held_from`` on, which is to come, asks for
    another ticket in the place of that one: it may have what it gives up, and anything else. ``classes`` says how many
    units of each class it holds; an extend or modify goes on with these.
    ``needs`` is what each machine needs of a host (:data:`~leasekit.core.properties.WHOLE`: whole units are asked for).
    ``deadline`` is the last instant at which an answer is of use. ``priority`` is the class of the holder and the
    request's own priority, added up. ``bid`` is what a preemptible one pays at most for a unit and billing period.
    """

    lease: str
    holder: str
    op: str
    type: str
    units: int
    min_units: int
    term: Term
    latest_start: Instant
    deadline: Instant
    arrived: Instant
    site: str
    exclude_sites: frozenset[str]
    source: str
    held: int
    group: str
    priority: int
    preemptible: bool
    properties: Properties
    held_until: Instant = 0
    classes: Counts = NO_UNITS
    needs: Vector = WHOLE
    bid: int = 0
    held_from: Instant = 0


class Source(NamedTuple):
    """A delegation that the broker holds and can grant from.

    ``free`` is a what-if view of its timetable for this turn: reserve in it what you decide, to see what is left. It is
    thrown away afterwards.

    ``properties`` is what all its units have. ``classes`` says of each class of them, by its name, what these have;
    where there are several, ``free`` is their :class:`~leasekit.core.timetable.ClassedTimetable`, whose ``of`` looks at
    some of them: those that the filter of a request takes. Of a divided type it is a
    :class:`~leasekit.core.divided.DividedTimetable` in whole hosts, whose ``needing`` looks at machines.
    """

    id: str
    site: str
    type: str
    units: int
    term: Term
    properties: Properties
    free: Timetable | ClassedTimetable
    classes: Mapping[bytes, Properties] = EMPTY_CLASSES


class GrantedLease(NamedTuple):
    """A lease that the broker has granted and that is not over: ``units`` of ``source`` over ``term``, its last one.

    ``preemptible`` says whether it can be ended early by :class:`Preempt`, once; one that was already is ``ending``,
    shows its new end, and its units are booked up to ``booked`` as long as its site has not accepted that (-1: to the
    end of its term). ``priority`` is the class of the holder and the lease's own priority, added up. ``classes`` says
    how many they are of each class, ``needs`` what each of its machines needs of a host, whatever its last request
    said. It runs from ``since`` on. ``ends_from`` is the earliest instant at which it can be ended, if that is decided
    now: after its notice, and its least run. ``on_preempt`` is what is to become of it then: ``terminate``, ``requeue``
    (its guest asks for it anew), or ``suspend``, and then it can be suspended from ``ends_from`` on. ``bid`` is what it
    pays at most for each unit and billing period.
    """

    lease: str
    holder: str
    source: str
    type: str
    units: int
    term: Term
    preemptible: bool
    priority: int
    properties: Properties
    booked: Instant = -1
    classes: Counts = NO_UNITS
    since: Instant = -1
    ends_from: Instant = -1
    ending: bool = False
    needs: Vector = WHOLE
    on_preempt: str = TERMINATE
    bid: int = 0


class EndedLease(NamedTuple):
    """A lease that a broker had granted, and that is over: it held ``units`` of ``type`` at ``site`` (empty: the broker
    holds nothing of it any more), in its last term. It was to run from ``start`` to ``granted``, the end that it was
    last granted, by an extend as well that it gave back unused; it ended at ``end``.

    ``why`` is ``term_over``, ``given_back`` (by its holder, or its site: a lease whose units failed among them),
    ``lapsed`` (nobody redeemed its ticket, and it had nothing: ``end`` is ``start``), ``preempted`` (also
    where it is saved, and goes on later), or ``suspended`` (what was granted was a part of what it asks for).
    ``properties`` are those of its last request.
    """

    lease: str
    holder: str
    type: str
    site: str
    units: int
    start: Instant
    granted: Instant
    end: Instant
    why: str
    properties: Properties = EMPTY


class Usage(Protocol):
    """What holders have been granted, extends and modifies included, as far back as the broker keeps it."""

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        ...


def _nothing(*asked: object) -> tuple[()]:
    return ()


def _none(*asked: object) -> int:
    return 0


class BrokerCycle(NamedTuple):
    """What a broker's mapper is shown: requests in order of arrival, complete groups, and sources by type.

    ``granted`` lists the leases of a type that are not over. ``usage`` is for mappers with ``wants_usage = True``; how
    far back it goes is theirs to say (``usage_kept``, in ms): at least 31 days, at most 400.
    ``suspends`` says whether a preemptible lease with the request property ``suspend`` (how long that takes) can be
    suspended rather than ended: by :class:`Preempt`, or by a grant of a shorter term, from a source whose property
    ``driver.save`` is ``true``. Its rest is then asked for anew. ``booked_hours`` is how much a holder is to have over
    terms that have not begun, in hours of all units of a type (0: as much as there is); ``booked`` says how much a
    holder has of a type over such terms, in unit-milliseconds.

    ``ended`` is for mappers with ``wants_ended = True``: the leases that ended since the mapper's last turn, in that
    order, the last 10,000 of them; ``ended_before`` is how many more there were, which are not shown. Each is shown
    once, also in a turn that fails. A broker that starts anew has forgotten those that were not shown.

    ``bids`` is for mappers with ``by_bid = True``: the highest bid, by type, of the preemptible requests that were put
    off and are not shown this time.
    """

    now: Instant
    requests: Sequence[PendingRequest]
    groups: Sequence[tuple[PendingRequest, ...]]
    sources: Callable[[str], Sequence[Source]]
    granted: Callable[[str], Sequence[GrantedLease]] = _nothing
    usage: Usage | None = None
    suspends: bool = False
    booked_hours: int = 0
    booked: Callable[[str, str], int] = _none
    ended: Sequence[EndedLease] = ()
    ended_before: int = 0
    bids: Mapping[str, int] = NO_BIDS


class Grant(NamedTuple):
    """Give ``lease`` that many ``units`` of ``source`` over ``term``.

    ``victims`` make room for it, all of them or none: what it grants, to a new request of no group, is booked for that
    at once, and nobody else has it. None of them is of a higher class (``priority``); those that a preemptible request
    names bid less than it does (``bid``). Its ticket is cut when the sites of all victims have accepted their ends;
    where it may start earlier, it does if the victims leave before.

    With ``prepare`` (ms) they are booked and granted from so much earlier on, so that the site has set them up by the
    start of ``term`` (Haizea's preparation overhead).
    """

    lease: str
    source: str
    units: int
    term: Term
    preemptible: bool = False
    prepare: Duration = 0
    victims: tuple[Preempt, ...] = ()

    @property
    def booked(self) -> Term:
        """The term of the claim: with the time to prepare."""
        return Term(self.term.start - self.prepare, self.term.end) if self.prepare else self.term


class GrantGroup(NamedTuple):
    """Give all or nothing: one grant for each member of ``group``, over one term, or each over its own where none of
    them has a choice of its start.
    """

    group: str
    grants: tuple[Grant, ...]


class Defer(NamedTuple):
    """Keep the request for a later turn; ``reason`` is shown to who asks.

    A mapper with ``by_itself = True`` is shown it ``again`` at an instant (0: once something may have come free), and
    nothing else that it has put off of the same holder before that.
    """

    lease: str
    reason: str = ""
    again: Instant = 0


class Reject(NamedTuple):
    """Refuse the request (a group: any member names it); ``earliest`` is when it would fit, if that is known."""

    lease: str
    reason: str
    earliest: Instant | None = None


class Preempt(NamedTuple):
    """End ``lease``, which must be preemptible, at ``at``: not before its ``ends_from``, unless it has not begun by
    then. Its units can be granted anew when its site has accepted that: look for them in a later cycle, or make it one
    of the ``victims`` of a :class:`Grant`.

    With ``suspend`` its site saves its units by then, beginning as long before as the lease says (``suspend``), and its
    guest asks for the rest.
    """

    lease: str
    at: Instant
    reason: str = ""
    suspend: bool = False


class PlanCycle(NamedTuple):
    """A request for a topology, which ``holder`` sends: sites, links between them, and a window for the start.

    ``sources`` are all of the types that it asks for, and all links (:mod:`leasekit.core.topology`); those of other
    brokers among them show what these say. What is free already leaves out what is held for other plans.
    """

    now: Instant
    holder: str
    request: TopologyRequest
    sources: Sequence[Source]


class PlannedPart(NamedTuple):
    """``units`` of ``source`` for ``member`` of the request: all of a site, or one link of a path.

    ``part`` is the id of a site; of a path it is ``LINK.PATH.HOP``, where ``path`` is 0, or 1 for the backup, and hops
    count from 0 at the link's ``from``.
    """

    part: str
    member: str
    path: int
    source: str
    units: int


class TopologyPlan(NamedTuple):
    """A plan for the whole request, to start at ``start``. ``objective`` is its value and ``gap`` what it is above the
    least one at most, as decimal numbers.
    """

    start: Instant
    parts: tuple[PlannedPart, ...]
    objective: str = ""
    gap: str = "0"


class NoPlan(NamedTuple):
    """Nothing can be planned: why, and when it would fit, if that is known."""

    reason: str
    earliest: Instant | None = None


class PlansTopologies(Protocol):
    """A broker's mapper that plans topologies as well. It is called for one request at a time; the broker holds the
    first of its plans that can be held. Where it has ``plans_apart = True``, ``plan`` shares nothing with ``allocate``,
    and runs beside it.
    """

    def plan(self, cycle: PlanCycle) -> Iterable[TopologyPlan | NoPlan]: ...


class Price(NamedTuple):
    """A unit of ``type`` costs so much from now on, for each billing period of ``period`` ms: what leases that bid are
    billed. ``price`` is a whole number of the broker's own, of at least 0.
    """

    type: str
    price: int
    period: Duration


BrokerDecision: TypeAlias = Grant | GrantGroup | Defer | Reject | Preempt | Price | ReportNumber | Wake


class BrokerMapper(Protocol):
    """Decides which requests are filled, from where and when.

    One with ``by_itself = True`` decides each request for itself, and puts off those that don't fit. Where many
    wait it is shown those again only once something may have come free, some in each turn. Any other is shown all that
    is new, and of each holder those that came first. One with ``by_bid = True`` is shown the highest bids of each
    holder first.
    """

    def allocate(self, cycle: BrokerCycle) -> Iterable[BrokerDecision]: ...


# -- authority ---------------------------------------------------------------------------------------------------


class UnitView(NamedTuple):
    """One unit of a site. ``state`` is ``free``, ``teardown`` (promised to nobody) or the state in which its lease
    has it; ``lease`` is the one that has it, or gets it next.

    ``classes`` are those that it counts as: of a unit that a lease has, the one that it was given as; of another, the
    class that it is of, and those that it was of which claims may still count.

    ``power`` is ``on``, unless units of the type can be switched (:class:`Power`): then it may be ``off``,
    ``suspended``, on the way (``starting``, ``resuming``, ``stopping``, ``suspending``), or ``unknown``. A lease may
    get a unit that is not on: it is switched on first, and set up then.
    """

    id: str
    type: str
    state: str
    lease: str
    failures: int
    properties: Properties
    power: str = "on"
    classes: tuple[bytes, ...] = ()
    host: str = ""

    @property
    def attributes(self) -> Properties:
        """What a filter sees of the unit (:mod:`leasekit.core.filters`): its properties, ``unit``, its name, and
        ``type``.
        """
        return {**self.properties, "unit": self.id, "type": self.type}


class MachineView(NamedTuple):
    """A machine on a host: what was asked for it (``needs``), what it takes of the host at least (``size``), and how
    much CPU it gets at most, in millicores (``cap``, -1: as much as there is). ``used`` is what it is taken to use of
    CPU, smoothed over probes, in millicores (-1: nobody has said): where it uses nearly all that it may, twice that.
    Its lease's ``properties`` are those of its configuration. It counts as on a host of the class ``given_as``: no
    other host takes it.
    """

    id: str
    lease: str
    state: str
    given_as: bytes
    size: Vector
    needs: Vector
    cap: int
    used: int
    properties: Properties


class HostView(NamedTuple):
    """A host of a divided type: what it has, in all and at one core, the least yield of its CPU in thousandths, and the
    machines on it, those that leave it among them. ``state`` is that of a unit; one that is not ``free`` is leased
    whole. ``able`` is what its driver can do to machines: ``cap``, ``migrate``. ``classes`` are its class, and those
    that it was of which leases may still count.
    """

    id: str
    type: str
    classes: tuple[bytes, ...]
    state: str
    capacity: Vector
    core: int
    least_yield: int
    machines: tuple[MachineView, ...]
    able: frozenset[str]
    properties: Properties


class MachineChange(NamedTuple):
    """What has become of a machine on a host: it came, or it or its lease is otherwise (``view``), or it left
    (None).
    """

    host: str
    id: str
    view: MachineView | None


class HostChanges(NamedTuple):
    """What has become of the hosts of a type since a ``mark``: ``hosts`` that are new, or otherwise, with all that is
    on them, and those that are ``gone``, or out of service; with ``anew`` these hosts are all that there are.
    ``machines`` is what has become of machines on other hosts than these. ``mark`` is what to ask with the next time.
    """

    mark: int
    hosts: tuple[HostView, ...] = ()
    gone: tuple[str, ...] = ()
    anew: bool = False
    machines: tuple[MachineChange, ...] = ()


class TenantView(NamedTuple):
    """A lease at a site, as its ticket has it: its class, whether it makes room for others of its class and above, with
    which ``notice``, and how long it runs at least from ``start``. ``is_leaving``: it ends before its term, and was
    told.
    """

    id: str
    holder: str
    start: Instant
    preemptible: bool
    priority: int
    notice: Duration
    min_run: Duration
    is_leaving: bool


class Demand(NamedTuple):
    """What one lease needs of its site now.

    ``units`` is how many more it gets (growing extends, new redeems, replacements for failed ones: ``op`` says
    which), negative when it shrinks without having named all its victims. ``held`` are the units that it has.
    ``wanted`` names units that the ticket ties it to. ``classes`` says of which classes the units are that it gets, or
    gives up: those of another class won't do, unless ``op`` is ``replace`` and there are none (empty: any will do).

    Of a divided type, ``sizes`` is what one unit of each of these classes takes, ``needs`` what was asked for a machine
    (:data:`~leasekit.core.properties.WHOLE`: for whole hosts), and ``places`` the hosts on which the units that are
    missing have their places; when it shrinks, those of the units that it keeps. Of other types ``places`` are units
    that were planned for a new lease, and can be had: a mapper that gives these says so by ``plans = True``.
    """

    lease: str
    holder: str
    op: str
    type: str
    units: int
    held: tuple[str, ...]
    wanted: tuple[str, ...]
    term: Term
    properties: Properties
    classes: Counts = NO_UNITS
    sizes: Sizes = ()
    needs: Vector = WHOLE
    places: tuple[str, ...] = ()


def _no_changes(type_: str, mark: int) -> HostChanges:
    return HostChanges(0, anew=True)


def _no_tenant(lease: str) -> TenantView | None:
    return None


class HostRoom(Protocol):
    """How many more units of a size have a place on a host throughout a term, beside all but leases that are
    ``leaving``.
    """

    def __call__(self, host: str, size: Vector, term: Term, leaving: Collection[str] = (), /) -> int: ...


class FreeUnits(Protocol):
    """The units of a type that can be given out; where ``filter`` is not empty, those that it accepts."""

    def __call__(self, type_: str, filter: str = "", /) -> Iterator[UnitView]: ...


class AllUnits(Protocol):
    """The units of a type; where ``filter`` is not empty, those that it accepts."""

    def __call__(self, type_: str, filter: str = "", /) -> Sequence[UnitView]: ...


class AuthorityCycle(NamedTuple):
    """What an authority's mapper is shown: demands in the order in which they must be filled (shrinking extends,
    growing extends, replacements, new redeems), and units: ``free(type)`` yields clean ones first, then those that
    are still in teardown, then those that must be switched on; ``units(type)`` has all of them. Both take the text of a
    filter as well (and raise ``FilterError``); for mappers that say ``filtered_by``, it has been asked before the turn.

    ``booked(type)`` is for mappers that set ``watches = True``: what leases have (``op`` is ``held``) and what they
    will need, by tickets that were redeemed before their term (``new`` or ``grow``), in order of the start of ``term``;
    among them, where ``demands`` are those of shrinking leases alone, the demands of the next turn.
    Such a mapper is called at once, and whenever it asked for that by :class:`Wake`, also when no lease needs anything.

    ``hosts(type)`` are the hosts of a divided type, ``changes(type, mark)`` what has become of them since the mark of
    an earlier answer (0: all of them), for mappers that keep an index. ``room(host, size, term)`` is how many more
    units of a size have a place on a host throughout a term (also: beside all but some leases), ``tenant(lease)`` what
    the ticket of a lease says of its end for others. A mapper with ``makes_room = True`` is shown normal leases that
    have a place only if preemptible ones leave: others are refused when they are redeemed.
    """

    now: Instant
    demands: Sequence[Demand]
    free: FreeUnits
    unit: Callable[[str], UnitView]
    units: AllUnits = _nothing
    booked: Callable[[str], Sequence[Demand]] = _nothing
    hosts: Callable[[str], Sequence[HostView]] = _nothing
    room: HostRoom = _none
    changes: Callable[[str, int], HostChanges] = _no_changes
    tenant: Callable[[str], TenantView | None] = _no_tenant


class Assign(NamedTuple):
    """Give ``lease`` these units."""

    lease: str
    units: tuple[str, ...]


class Release(NamedTuple):
    """Take these units of a shrinking lease."""

    lease: str
    units: tuple[str, ...]


class Place(NamedTuple):
    """Give ``lease`` a unit on each of these hosts, as often as named: a machine, or the whole host. Hosts that
    are of several classes count by the order of the demand's, if all are named in that. ``caps`` say of machines how
    much CPU each gets at most, in millicores (-1: as much as there is; none said: all of them). ``victims`` are
    preemptible leases that end for that, after their notice: in one step they are told, and what they leave is this
    lease's. Its machines are set up when they have left.
    """

    lease: str
    hosts: tuple[str, ...]
    caps: tuple[int, ...] = ()
    victims: tuple[str, ...] = ()


class Migrate(NamedTuple):
    """Move a machine that is up to another host of its class; ``cap`` is as :class:`Cap` has it (-1: as it is now)."""

    unit: str
    host: str
    reason: str = ""
    cap: int = -1


class Cap(NamedTuple):
    """Let a machine have so much CPU at most, in millicores: no less than its size, which is guaranteed."""

    unit: str
    cpu: int
    reason: str = ""


class Refuse(NamedTuple):
    """The demand can't be filled; an extend keeps what it has, a redeem fails, a replacement is done without."""

    lease: str
    reason: str


class Power(NamedTuple):
    """Switch a free unit ``on`` or ``off``, or ``suspend`` it: one whose type the site has a power driver for. One that
    is on its way there already, or is there, can't be told again; ``reason`` is written down.
    """

    unit: str
    to: str
    reason: str = ""


AuthorityDecision: TypeAlias = Assign | Place | Release | Refuse | Migrate | Cap | Power | ReportNumber | Wake


class AuthorityMapper(Protocol):
    """Decides which units of a site a lease gets.

    A mapper that switches units may have ``switches``, a list, tuple or set of the types whose power it decides of. A
    deploy file must have them in its inventory, and in the ``powers`` of a driver.

    An inline mapper may have ``filtered_by``, the name of the configuration property in which guests say by a filter
    which units will do. Its site then asks all filters of a turn before the turn, each once for units that are alike,
    in slices that hold nobody up; of leases with different filters it is shown a few at a time.
    """

    def assign(self, cycle: AuthorityCycle) -> Iterable[AuthorityDecision]: ...


# -- guest -------------------------------------------------------------------------------------------------------


class GuestUnitView(NamedTuple):
    """One unit of a guest's lease. ``state`` is ``waiting``, ``joining``, ``joined``, ``leaving``, ``left`` or
    ``failed``.
    """

    id: str
    state: str
    properties: Properties
    reason: str


class LeaseView(NamedTuple):
    """One lease as its guest has it. ``next_term`` is the term of the renewal in hand, if any; ``units`` how many it
    holds or has tickets for; ``members()`` yields the units themselves.
    """

    id: str
    name: str
    slice: str
    type: str
    site: str
    state: str
    pending: str
    join: str
    requested: int
    units: int
    term: Term
    next_term: Term | None
    next_units: int
    closing: bool
    reason: str
    properties: Properties
    members: Callable[[], Sequence[GuestUnitView]]


class TopologyView(NamedTuple):
    """A topology as its guest has it. ``state`` is ``asking``, ``committing``, ``committed``, ``failed`` or ``closed``;
    ``leases`` are the ids of its leases, ``earliest`` when a failed one would fit (-1: not known).
    """

    id: str
    state: str
    term: Term | None
    leases: tuple[str, ...]
    reason: str
    earliest: Instant


class GuestCycle(NamedTuple):
    """What a guest's mapper is shown: its open leases (none that is closed or failed), in order of request, and its
    topologies, also those that came to an end a while ago.
    """

    now: Instant
    leases: Sequence[LeaseView]
    topologies: Sequence[TopologyView] = ()


class RequestLease(NamedTuple):
    """Ask for a new lease. Properties are the request's; ``configuration`` goes to the site with the redeem."""

    type: str
    units: int
    term: Term
    slice: str = ""
    name: str = ""
    broker: str = ""
    site: str = ""
    properties: Properties = EMPTY
    configuration: Properties = EMPTY
    redeem_predecessor: str = ""
    join_predecessor: str = ""
    if_predecessor_fails: str = "fail"


class RequestTopology(NamedTuple):
    """Ask ``broker`` (empty: the default one) to plan several sites and the links between them, and lease them all, or
    none. ``tries`` is how many plans are tried if what was planned can't be had after all.
    """

    request: TopologyRequest
    broker: str = ""
    tries: int = 3


class ExtendLease(NamedTuple):
    """Renew ``lease`` to ``end`` with ``units`` (None: as many as now), giving up ``victims`` if it shrinks."""

    lease: str
    end: Instant
    units: int | None = None
    victims: tuple[str, ...] = ()
    properties: Properties = EMPTY


class ModifyLease(NamedTuple):
    """Change ``lease`` in mid-term: its configuration, its number of units, its end (None: as it is); before it begins
    its start (with which its end moves, if it is not said) and its filter as well.
    """

    lease: str
    configuration: Properties | None = None
    units: int | None = None
    end: Instant | None = None
    victims: tuple[str, ...] = ()
    start: Instant | None = None
    filter: str | None = None


class CloseLeaseEarly(NamedTuple):
    """End ``lease`` before its time."""

    lease: str
    reason: str = ""


GuestDecision: TypeAlias = (
    RequestLease | RequestTopology | ExtendLease | ModifyLease | CloseLeaseEarly | ReportNumber | Wake
)


class GuestMapper(Protocol):
    """Decides what a guest asks for, renews and gives up.

    A mapper may also have ``unblock(lease, predecessor) -> Go | Hold``, called before a lease that waited for its
    predecessor goes on (paper section 3.5).
    """

    def plan(self, cycle: GuestCycle) -> Iterable[GuestDecision]: ...


class Go(NamedTuple):
    """The blocked lease may go on, with these configuration properties added."""

    configuration: Properties = EMPTY


class Hold(NamedTuple):
    """The blocked lease waits on; ask again at ``until``."""

    until: Instant


@runtime_checkable
class Unblocks(Protocol):
    """A guest mapper that wants the upcall before a blocked lease goes on."""

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Go | Hold: ...


MapperSettings: TypeAlias = Mapping[str, Any]
