"""What actors and their daemons answer operators: one list of over 800 lines, with a few for each kind of thing that is
shown, so that whoever adds one sees what others are called.

A handler's return type says what its command or query answers. ``--json`` prints the fields in their order, under the
names that they have here, and so does every other client of a control socket: clients get plain data (:func:`plain`).
Instants and durations are milliseconds, terms ``[start, end]``; -1 is an instant that there is none of, where nothing
else is said. ``reason`` is for people, ``because`` says the same for programs (None: there is none).
"""

from __future__ import annotations

from typing import Any, Self

from msgspec import UNSET, Struct, UnsetType, field, msgpack

from leasekit.core.drivers import Orphan
from leasekit.core.properties import Counts, Properties
from leasekit.core.reasons import Reason
from leasekit.core.time import Duration, Instant, Term


class Answer(Struct, frozen=True):
    """What one thing is shown as. A field that may be unset is there only where it says so."""

    @classmethod
    def of(cls, record: object, /, **others: Any) -> Self:
        """With the fields of ``record`` that have the names of fields here, and ``others``."""
        own = cls.__struct_fields__[: len(cls.__struct_fields__) - len(cls.__struct_defaults__)]
        return cls(**{name: getattr(record, name) for name in own if name not in others}, **others)


def plain(answer: Any) -> Any:
    """An answer, or several, as maps, lists, text and numbers."""
    return msgpack.decode(msgpack.encode(answer))


class ClassCount(Answer, frozen=True):
    """How many units of a class there are."""

    class_: str = field(name="class")
    units: int


def describe_counts(of: Counts) -> list[ClassCount]:
    """How many units of each class."""
    return [ClassCount(class_.hex(), units) for class_, units in of]


# -- every daemon ------------------------------------------------------------------------------------------------------


class ClockDetails(Answer, frozen=True):
    """A daemon's clock: ``agrees``, or ``held`` (the system's was set, at the actor's time ``since``; else there is
    none); the actor's time ``now``, and by how much the system's is ``ahead`` of it.
    """

    state: str
    now: Instant
    ahead: Duration
    since: Instant | None


class AcceptedClock(Answer, frozen=True):
    """Whether the system's clock was taken over: the actor's time ``before`` and ``now``."""

    accepted: bool
    ahead: Duration
    before: Instant
    now: Instant


class ShellDetails(Answer, frozen=True):
    """How it goes in a daemon: the inputs that wait, the actions of drivers by their state, and from ``inputs`` on how
    much was done since the start.
    """

    state: str
    problem: str
    clock: ClockDetails
    inbox: int
    actions: dict[str, int]
    runaway_turns: int
    unit_log_lines_dropped: int
    inputs: int
    commits: int
    changes: int
    messages: int
    actions_started: int
    turns: int
    bugs: int


class LinkDetails(Answer, frozen=True):
    """How it stands with a peer. Counts are messages since the start, ``problem`` is why there is no connection.

    For ``held_ms`` the peer was not read because it sent more than it may; ``flooding``: it does so for longer than
    ``flood_after`` now. By ``clock_ahead`` its clock is ahead of the one here at least (negative: behind), as far as
    what it sends tells.
    """

    peer: str
    address: str
    connected: bool
    queued_bytes: int
    sent: int
    received: int
    dropped: int
    problem: str
    encrypted: bool
    held_ms: Duration
    flooding: bool
    clock_ahead: Duration


class OrphanTrouble(Answer, frozen=True):
    """Why a driver can't say what is left of old units, or can't remove what is left of one ``unit``."""

    driver: str
    unit: str
    reason: str


class OrphanReport(Answer, frozen=True):
    """What is left of old units, or was removed, and what went wrong."""

    orphans: list[Orphan]
    troubles: list[OrphanTrouble]


class ProbedUnit(Answer, frozen=True):
    """What a driver's probe found, and measured."""

    state: str
    detail: str
    measured: dict[str, float]


class DaemonStatus(Answer, frozen=True, kw_only=True):
    """What a daemon adds to the status of its actor: ``needs_restart`` are the keys that its file gives other values
    since, ``orphans`` how much is left of old units.
    """

    shell: ShellDetails | UnsetType = UNSET
    pid: int | UnsetType = UNSET
    listen: list[str] | UnsetType = UNSET
    store: str | UnsetType = UNSET
    peers: list[LinkDetails] | UnsetType = UNSET
    orphans: int | UnsetType = UNSET
    orphans_untold: list[OrphanTrouble] | UnsetType = UNSET
    needs_restart: list[str] | UnsetType = UNSET


class LoggedTransition(Answer, frozen=True):
    """A line of an actor's log. One that is told as it comes has no number yet."""

    seq: int | UnsetType
    at: Instant
    lease: str
    event: str
    from_state: str
    to_state: str
    why: str
    because: Reason | None


class LogEnd(Answer, frozen=True):
    """The number of the log's last line."""

    seq: int


class PastPosition(Answer, frozen=True):
    """After which lease a page ended."""

    ended: Instant
    id: str


class PastPage(Answer, frozen=True):
    """Leases that are over, as queries show them; where the next page begins (None: there is none)."""

    leases: list[dict[str, Any]]
    after: PastPosition | None


class AccountDetails(Answer, frozen=True):
    """What was asked for, granted, used and billed, of those keys that accounts are added up by. ``billed`` is in the
    broker's own money; ``lead`` is how long before their starts leases were asked for (None: none was); ``refused``
    counts refusals by their codes.
    """

    holder: str | UnsetType
    type: str | UnsetType
    site: str | UnsetType
    leases: int
    requests: int
    granted: int
    refused: dict[str, int]
    granted_unit_ms: int
    used_unit_ms: int
    billed: int
    lead_median_ms: Duration | None
    lead_p90_ms: Duration | None


class UsageDetails(Answer, frozen=True):
    """The accounts of a broker or a site, how much a site had to use by type, and ``since`` when the log says it."""

    accounts: list[AccountDetails]
    offered_unit_ms: dict[str, int]
    since: Instant


class LastLines(Answer, frozen=True):
    """The last lines of a unit's log, oldest first."""

    lines: list[str]


class Stopping(Answer, frozen=True):
    """The daemon ends."""

    stopping: bool = True


# -- every actor -------------------------------------------------------------------------------------------------------


class PeerDetails(Answer, frozen=True):
    """A peer: ``origin`` is who has made it known."""

    peer: str
    role: str
    open_requests: int
    priority_max: int
    address: str
    key: str
    fingerprint: str
    may: list[str]
    origin: str


class AddedPeer(Answer, frozen=True):
    """A peer that was made known."""

    peer: str
    key: str
    may: list[str]


class ImportedPeers(Answer, frozen=True):
    """Peers that were made known."""

    peers: list[str]


class RemovedPeer(Answer, frozen=True):
    """A peer that is known no more."""

    peer: str


class SucceededPeer(Answer, frozen=True):
    """A peer that has another key; the one before is honoured until then."""

    peer: str
    key: str
    former_until: Instant


class IntroductionCounts(Answer, frozen=True):
    """How many peers a broker has made known, how many more it tried to since the start, and how many it may."""

    broker: str
    known: int
    refused: int
    most: int


class DelegationDifference(Answer, frozen=True):
    """A chain of delegations of which something else is held than the settings say. ``held`` are the units that the
    holder has now, ``wanted`` those that it is to have, ``file`` those of the settings (0: they don't name it); it is
    so ``until`` then (-1: not known).
    """

    chain: str
    broker: str
    type: str
    code: str
    held: int
    wanted: int
    file: int
    until: Instant
    reason: str
    because: Reason | None


class DelegationDetails(Answer, frozen=True):
    """A delegation that was given to ``broker``."""

    delegation: str
    broker: str
    chain: str
    site: str
    source: str
    type: str
    units: int
    term: Term
    state: str
    reclaimed: Instant
    deadline: Instant
    freed: Instant
    classes: list[ClassCount]
    reason: str
    because: Reason | None


class GivenChain(Answer, frozen=True):
    """A chain of delegations that is given by command, and what of it is not held as the settings say."""

    chain: str
    difference: DelegationDifference | None


class ReclaimedDelegation(Answer, frozen=True):
    """A delegation that is taken back as of ``at``."""

    delegation: str
    at: Instant
    deadline: Instant
    state: str


class ReportDetails(Answer, frozen=True):
    """That somebody gave away more than it had, or was allowed to, as ``from`` found."""

    about: str
    at: Instant
    from_: str = field(name="from")
    code: str
    words: str


class ActorStatus(DaemonStatus, frozen=True):
    """Who an actor is, what time it has, how many leases are in which state, and the numbers that its mapper has
    ``reported``.
    """

    name: str
    role: str
    key: str
    now: Instant
    leases: dict[str, int]
    mapper_errors: list[str]
    introductions: list[IntroductionCounts]
    reported: dict[str, float]


class EvictedLease(Answer, frozen=True):
    """A lease that its broker or site ends early, ``at`` then."""

    lease: str
    holder: str
    at: Instant


class LeaseAnswer(Answer, frozen=True):
    """A lease, as any actor has it."""

    id: str
    slice: str
    type: str
    state: str
    pending: str
    reason: str
    because: Reason | None


class RequestDetails(Answer, frozen=True):
    """What was asked of a broker, or what a site has accepted for later."""

    op: str
    units: int
    term: Term


# -- guest -------------------------------------------------------------------------------------------------------------


class GuestStatus(ActorStatus, frozen=True):
    """A guest: the units that it has, and how many tickets are on their way back."""

    units: int
    returns: int


class GuestLeaseAnswer(LeaseAnswer, frozen=True):
    """A guest's lease. At ``last_end`` it ends after all that it was extended by."""

    name: str
    site: str
    join: str
    start: Instant
    end: Instant
    last_end: Instant


class GuestLeaseSummary(GuestLeaseAnswer, frozen=True):
    """A guest's lease, with how many units it has, or is to have."""

    units: int


class GuestRequestDetails(RequestDetails, frozen=True):
    """The same, with its properties."""

    properties: Properties


class TicketDetails(Answer, frozen=True):
    """The ticket that a lease runs on."""

    units: int
    term: Term
    claim: str


class ContinuationDetails(Answer, frozen=True):
    """A ticket by which a lease goes on: ``undo`` says whether it goes back when the last extension is undone."""

    units: int
    term: Term
    undo: bool


class GrantDetails(Answer, frozen=True):
    """What a site has given."""

    term: Term
    units: int


class GuestUnitDetails(Answer, frozen=True):
    """A unit of a guest's lease."""

    unit: str
    state: str
    reason: str
    because: Reason | None
    properties: Properties


class ResumedDetails(Answer, frozen=True):
    """The lease that another one goes on from, and when it was suspended."""

    lease: str
    suspended: Instant


class GuestLeaseDetails(GuestLeaseAnswer, frozen=True):
    """All of a guest's lease: what it has asked for, the tickets that it holds, and what its site has given."""

    broker: str
    closing: bool
    requested: GuestRequestDetails
    approved: TicketDetails | None
    renewal: ContinuationDetails | None
    continuations: list[ContinuationDetails]
    granted: GrantDetails | None
    configuration: Properties
    resource: Properties
    units: list[GuestUnitDetails]
    redeem_predecessor: str
    join_predecessor: str
    suspends: bool
    resumes: ResumedDetails | None


class KeptAlive(Answer, frozen=True):
    """A lease that is closed ``at`` then, if its holder is not heard of before; it may be silent for ``length``."""

    id: str
    length: int
    at: Instant


class HandedLease(Answer, frozen=True):
    """Whose a lease is from now on."""

    id: str
    to: str


class Present(Answer, frozen=True):
    """A gateway is taken to be there until then, and for ``apart`` by leases whose holders may be silent for least."""

    until: Instant
    apart: Duration


class SliceDetails(Answer, frozen=True):
    """A slice: how many leases it holds its redeems for, whether it holds them no more, and why it was closed (None:
    it was not). ``notes`` are what programs keep with it.
    """

    slice: str
    hold: int
    released: bool
    refused: str | None
    notes: Properties
    leases: int
    open: int
    units: int


class ReturnDetails(Answer, frozen=True):
    """A claim on its way back."""

    claim: str
    stage: str
    lease: str
    units: int
    from_: Instant = field(name="from")
    end: Instant


class DryRunDetails(Answer, frozen=True):
    """What a broker would answer a request, with the classes of the units that it would grant; ``earliest`` is when it
    would fit (None: not known).
    """

    broker: str
    status: str
    site: str
    units: int
    classes: list[ClassCount]
    term: Term
    reason: str
    because: Reason | None
    earliest: Instant | None


class HeldPartDetails(Answer, frozen=True):
    """What is held for a part of a plan."""

    part: str
    source: str
    site: str
    type: str
    units: int


class PlanPartDetails(HeldPartDetails, frozen=True):
    """What is to be leased for one ``member`` of a topology; ``path`` is 1 for a backup."""

    member: str
    path: int
    broker: str


class LeasedPartDetails(PlanPartDetails, frozen=True):
    """The same, with its lease (empty: none yet)."""

    lease: str
    state: str
    pending: str


class PlannedTopology(Answer, frozen=True):
    """What a broker would plan for a topology."""

    broker: str
    status: str
    plan: str
    term: Term | None
    objective: str
    gap: str
    expires: Instant | None
    reason: str
    because: Reason | None
    earliest: Instant | None
    parts: list[PlanPartDetails]


class TopologyDetails(Answer, frozen=True):
    """A topology that is leased at once: ``left`` is how often it is planned again. The list of all has no parts."""

    topology: str
    slice: str
    broker: str
    state: str
    left: int
    plan: str
    term: Term | None
    objective: str
    gap: str
    expires: Instant | None
    reason: str
    because: Reason | None
    earliest: Instant | None
    parts: list[LeasedPartDetails] | UnsetType = UNSET
    request: dict[str, Any] | UnsetType = UNSET


class CreatedSlice(Answer, frozen=True):
    """A slice that was made."""

    slice: str
    hold: int


class SliceKeySet(Answer, frozen=True):
    """The open leases whose units get a slice's new key."""

    slice: str
    leases: list[str]


class NotedSlice(Answer, frozen=True):
    """All that programs keep with a slice now."""

    slice: str
    notes: Properties


class ClosedSlice(Answer, frozen=True):
    """The leases that were closed with a slice."""

    slice: str
    closed: list[str]


# -- broker ------------------------------------------------------------------------------------------------------------


class BrokerStatus(ActorStatus, frozen=True):
    """A broker: how many requests wait, and how many delegations it holds."""

    waiting: int
    sources: int
    reports: list[ReportDetails]
    delegations: list[DelegationDifference]


class ClaimOfLease(Answer, frozen=True):
    """A claim that a broker has cut for a lease."""

    source: str
    units: int
    claim: str
    classes: list[ClassCount]
    term: Term


class BrokerLeaseDetails(LeaseAnswer, frozen=True):
    """A lease at its broker. ``priority`` is what counts: its holder's class and what it asked for, as far as its
    holder may, added up. ``end`` is when it ends, or did, or was refused.
    """

    holder: str
    priority: int
    site: str
    requested: RequestDetails
    claims: list[ClaimOfLease]
    end: Instant


class SourceClass(Answer, frozen=True):
    """The units of a class of a delegation."""

    class_: str = field(name="class")
    units: int
    free_now: int
    properties: Properties


class WithheldDetails(Answer, frozen=True):
    """Units that a broker had better not grant, over a maintenance window."""

    window: str
    units: int
    term: Term
    reason: str


class SourceDetails(Answer, frozen=True):
    """A delegation that a broker holds, and what is free of it; ``classes`` where it has several."""

    source: str
    issuer: str
    chain: str
    site: str
    state: str
    type: str
    units: int
    reclaimed: Instant
    deadline: Instant
    grants_until: Instant
    term: Term
    properties: Properties
    free_now: int
    free_for_a_day: int
    reservations: int
    classes: list[SourceClass]
    withheld: list[WithheldDetails]


class HoldDetails(Answer, frozen=True):
    """What a broker holds for a planned topology, until it ``expires``."""

    plan: str
    peer: str
    state: str
    term: Term
    expires: Instant
    parts: list[HeldPartDetails]


class ReleasedDelegations(Answer, frozen=True):
    """The delegations that a broker's operator has let go of."""

    sources: list[str]


# -- site --------------------------------------------------------------------------------------------------------------


class OutageDetails(Answer, frozen=True):
    """Units of a type can't be set up for a lease, by the site's fault; it is tried ``again`` then."""

    type: str
    lease: str
    since: Instant
    again: Instant
    tries: int
    reason: str
    because: Reason | None


class SiteStatus(ActorStatus, frozen=True):
    """A site: how many units of each type are in each state, how many leases wait for some, what filters have cost. Of
    hosts: how many tickets were ``planned`` since the start, how many had no place (``fragmented``), and by type the
    ``largest`` amount of each resource that any one host has free now, in words.
    """

    units: dict[str, dict[str, int]]
    waiting: int
    places: dict[str, int]
    largest: dict[str, str]
    filters: dict[str, int]
    reports: list[ReportDetails]
    outages: list[OutageDetails]
    delegations: list[DelegationDifference]


class SiteLeaseDetails(LeaseAnswer, frozen=True):
    """A lease at its site: ``end`` is when it ends by all that was accepted. Before its term ``planned`` are the units,
    of a divided type the hosts, that it is to get as things are; that may change.
    """

    holder: str
    wanted: int
    units: list[str]
    term: Term
    end: Instant
    next: RequestDetails | None
    planned: list[str] = []


class ServiceOfUnit(Answer, frozen=True):
    """A unit that an operator has taken out of service, or put into it."""

    unit: str
    state: str
    reason: str
    because: Reason | None


class MeasuredUnit(Answer, frozen=True):
    """What a machine is taken to use by now, in millicores of CPU."""

    unit: str
    cpu: int


class MovedUnit(Answer, frozen=True):
    """A unit whose lease gets another one in its place; of a machine the ``host`` that it goes to."""

    unit: str
    state: str
    lease: str
    host: str


class UnitDetails(Answer, frozen=True):
    """A unit of a site. A daemon adds ``trouble``: what fails there, and is tried again. Of a machine the ``host`` that
    it is on, and the one that it ``leaves``; in millicores of CPU what it was ``asked`` to have, what it gets at most
    (``cap``, -1: as much as there is), and what probes see it use (``used``, -1: nobody has said).
    """

    unit: str
    type: str
    state: str
    lease: str
    promised: str
    failures: int
    host: str
    leaves: str
    asked: int
    cap: int
    used: int
    reason: str
    because: Reason | None
    power: str
    properties: Properties
    trouble: str | UnsetType = UNSET


class InventoryEntry(Answer, frozen=True):
    """A unit of a site's inventory. ``number`` is its own at the site, and is never another's. Of a host, what it has,
    and what of that is ``taken``, in words, and the machines on it, and whose they are; the ``lease`` that has all of
    the unit; the ``leases`` that have anything there, now or later; and how it ``differs`` from what the deploy file
    says: ``added``, ``changed``, ``removed``, or not at all.
    """

    unit: str
    number: int
    type: str
    state: str
    capacity: str
    taken: str
    core: int
    least_yield: int
    attributes: Properties
    machines: dict[str, str]
    lease: str
    leases: list[str]
    differs: str


class WatchedUnit(Answer, frozen=True):
    """A unit that is up, for whoever probes it: whose it is, from which setup, and what its driver may know."""

    unit: str
    type: str
    lease: str
    setup: int
    properties: Properties
    configuration: Properties


class SavedUnitDetails(Answer, frozen=True):
    """What a driver keeps of a unit of a suspended lease, under ``key``."""

    key: str
    lease: str
    unit: str
    holder: str
    type: str
    state: str
    until: Instant


class HitLease(Answer, frozen=True):
    """A lease that has units of a maintenance window."""

    lease: str
    holder: str
    units: list[str]
    end: Instant


class WindowDetails(Answer, frozen=True):
    """A maintenance window, and the leases that it hits."""

    window: str
    units: list[str]
    start: Instant
    end: Instant
    reason: str
    begun: bool
    leases: list[HitLease]


class RemovedWindow(Answer, frozen=True):
    """A maintenance window that there is no more."""

    window: str


class RemovedFromWindows(Answer, frozen=True):
    """Units that are in no maintenance window any more, and the windows that they were in."""

    windows: list[str]
    units: list[str]


class ClaimDetails(Answer, frozen=True):
    """A claim that a site has given, or seen."""

    claim: str
    lease: str
    parent: str
    issuer: str
    issuer_fingerprint: str
    issuer_name: str
    holder: str
    holder_fingerprint: str
    holder_name: str
    type: str
    units: int
    classes: list[ClassCount]
    term: Term
    state: str
    honoured: bool


class EvidenceDetails(Answer, frozen=True):
    """Evidence that a site holds; with its ``file`` where one is asked for."""

    id: str
    at: Instant
    kind: str
    guilty: str
    guilty_fingerprint: str
    guilty_name: str
    words: str
    file: str | UnsetType = UNSET


class VouchedEvidence(Answer, frozen=True):
    """The ``file`` of evidence with a site's word, given ``at`` then."""

    file: str
    at: Instant
