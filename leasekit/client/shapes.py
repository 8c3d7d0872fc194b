"""What goes over HTTP, a class for each: the gateway reads and writes them, its OpenAPI document describes them, and
the Python client has them.

Instants are datetimes, in JSON ISO 8601 in UTC; lengths of time are text such as ``90s``, ``2h`` or ``1d12h``.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

At: TypeAlias = Annotated[datetime, Meta(tz=True, description="an instant: ISO 8601 with its zone")]
Span: TypeAlias = Annotated[str, Meta(max_length=64, description="a length of time: 90s, 2h, 1d12h")]
Word: TypeAlias = Annotated[str, Meta(max_length=256)]
Words: TypeAlias = Annotated[str, Meta(max_length=2_000)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Properties: TypeAlias = Annotated[dict[Word, Words], Meta(max_length=256)]


class RequestBody(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What every body is: a map in which nothing unknown may stand."""


class ProblemDetails(Struct, kw_only=True, omit_defaults=True):
    """Why a request came to nothing (RFC 9457). ``code`` is one of the core's, or the gateway's own; ``values`` are the
    code's.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    code: str = ""
    values: dict[str, Any] = {}


class LeaseUnit(Struct, kw_only=True):
    """A unit of a lease: its state, what is wrong with it, and how it is reached (host, port and the like)."""

    unit: str
    state: str
    reason: str = ""
    properties: dict[str, str] = {}


class Lease(Struct, kw_only=True):
    """A lease of a project. ``members`` are its units, where one lease is asked for; ``start`` and ``end`` are those of
    what was granted, else of what was asked for. ``reason`` says why it is as it is, ``code`` the same for programs.
    ``planned``, before its term, are the units that its site means to give it, of hosts that are divided the hosts:
    what is planned may change, and is not told where the site is away or of another deployment. ``extended_to``: when
    it ends after all that it was extended by, where that is later than ``end``; ``undo``: whether the last extension
    can be taken back, where one lease is asked for.
    """

    id: str
    name: str = ""
    project: str
    slice: str
    type: str
    site: str = ""
    state: str
    pending: str = ""
    join: str = ""
    units: int
    start: At
    end: At
    extended_to: At | None = None
    undo: bool = False
    reason: str = ""
    code: str = ""
    values: dict[str, Any] = {}
    broker: str = ""
    keepalive: str = ""
    members: list[LeaseUnit] = []
    planned: list[str] = []
    configuration: dict[str, str] = {}
    properties: dict[str, str] = {}


class LeasePage(Struct, kw_only=True):
    """A page of leases; ``next`` is the cursor of the page after it, if there is one."""

    items: list[Lease]
    next: str | None = None


class LeaseRequest(RequestBody):
    """What is asked for. Without ``start`` it begins as soon as it can within ``timeout``; it ends ``length`` after its
    start, or at ``end``. ``elastic`` is with how few units it would do; ``needs`` makes its units machines on hosts.
    ``keepalive``: the lease is closed when its holder was not heard of for so long.
    """

    type: Word
    units: Count = 1
    length: Span | None = None
    start: At | None = None
    end: At | None = None
    name: Word = ""
    slice: Word = ""
    site: Word = ""
    broker: Word = ""
    filter: Words = ""
    needs: dict[Word, Word | int] = {}
    elastic: Count | None = None
    deferrable_until: At | None = None
    preemptible: bool = False
    notice: Span | None = None
    min_run: Span | None = None
    max_run: Span | None = None
    on_preempt: Word | None = None
    bid: int | None = None
    timeout: Span | None = None
    after: Word = ""
    join_after: Word = ""
    proceed: bool = False
    group: Word = ""
    group_size: Count | None = None
    keepalive: Span | None = None
    properties: Properties = {}
    configuration: Properties = {}


class SeriesHours(RequestBody, kw_only=True):
    """The same hours of many days: ``every`` such as ``mon-fri``, ``mon,thu`` or ``day``, from ``begin`` to ``finish``,
    such as ``9:00``, on the clocks of ``zone``. All of the days, or none; ``each``: those that can be had.
    """

    every: Word
    begin: Word
    finish: Word
    zone: Word = "UTC"
    each: bool = False


class SeriesRequest(SeriesHours, kw_only=True):
    """A lease on each of some days, up to and with the day ``until``. ``request`` says the rest, its ``start`` from
    when on; it has no length, end, group, keepalive, or lease that it waits for. Leases are named ``NAME.DATE``.
    """

    request: LeaseRequest
    until: date


DayStatus: TypeAlias = Literal["granted", "possible", "waits", "refused"]


class SeriesDay(Struct, kw_only=True, omit_defaults=True):
    """One day of a series: its ``lease`` is ``granted``, or it is ``refused`` and why; ``possible``: it could be had by
    itself; ``waits``: what a dry run says of what would not be answered at once, and of a lease that is asked for whose
    broker can't answer, as the actor that the ``reason`` names is away.
    """

    start: At
    end: At
    status: DayStatus
    name: str = ""
    lease: str = ""
    site: str = ""
    reason: str = ""
    code: str = ""
    values: dict[str, Any] = {}


class SeriesAnswer(Struct, kw_only=True):
    """What became of each day of a series, or would. ``kept``: some of its leases are there. On the days that are
    ``skipped`` the clocks of the zone skip these hours; those that are ``past`` had begun before it was approved.
    ``approval``: why the policy of the project wants it approved first, as a dry run says.
    """

    id: str
    kept: bool
    days: list[SeriesDay]
    skipped: list[str]
    past: list[str] = []
    approval: str = ""


class LeaseExtend(RequestBody):
    """A renewal: until ``end``, or for ``length`` more; with as many units as now, unless ``units`` says."""

    end: At | None = None
    length: Span | None = None
    units: Count | None = None
    victims: list[Word] = []
    properties: Properties = {}


class LeaseModify(RequestBody):
    """A change; what is not given stays as it is. Only a lease that has not begun gets another ``start``, with which
    its end moves if that is not given, or another ``filter``.
    """

    units: Count | None = None
    start: At | None = None
    end: At | None = None
    filter: Words | None = None
    configuration: Properties | UnsetType = UNSET
    victims: list[Word] = []


class WantedTopologyPlan(RequestBody):
    """A topology as its file has it (docs/coallocation.md), with ``start``, or ``est`` and ``lst``, as instants in ISO
    8601; from the only ``broker`` that plans, or the one that is named.
    """

    request: dict[str, Any]
    broker: Word = ""


class WantedTopology(WantedTopologyPlan):
    """The same, to be leased; it is planned anew when a plan comes to nothing, ``tries`` times in all."""

    tries: Annotated[int, Meta(ge=1, le=1_000)] = 3


class Close(RequestBody):
    """Why it is closed."""

    reason: Words = ""


class LeaseHanding(RequestBody):
    """Whose a lease is to be, and why."""

    to: Word
    reason: Words = ""


class LeaseTemplateRequest(RequestBody):
    """A request for any time, under a ``name``, and the ``days`` of one that recurs; ``shared``: all of the project see
    it.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    request: LeaseRequest
    days: SeriesHours | None = None
    shared: bool = False


class LeaseTemplate(Struct, kw_only=True):
    """A template that ``caller`` has made."""

    id: str
    project: str
    caller: str
    name: str
    shared: bool
    request: LeaseRequest
    days: SeriesHours | None = None


class TemplateList(Struct, kw_only=True):
    """Templates that somebody may see, by name."""

    items: list[LeaseTemplate]


class SayAlive(RequestBody):
    """For how long its holder may be silent from now on; not said: as long as before."""

    length: Span | None = None


class KeptLease(Struct, kw_only=True):
    """A lease that is closed ``at`` then, if its holder is not heard of before."""

    id: str
    keepalive: str
    at: At


class SlotSearch(RequestBody):
    """What is to fit, for how long, and between which instants (not said: from now on, for 30 days). With ``sites`` and
    the ``links`` between them, as a topology has them, all of these are to fit at once; ``type``, ``units`` and
    ``filter`` are then those of a site that doesn't say its own.
    """

    type: Word
    length: Span
    units: Count = 1
    sites: Annotated[list[dict[Word, Any]], Meta(max_length=16)] = []
    links: Annotated[list[dict[Word, Any]], Meta(max_length=32)] = []
    start: At | None = None
    end: At | None = None
    filter: Words = ""
    needs: dict[Word, Word | int] = {}
    site: Word = ""
    limit: Annotated[int, Meta(ge=1, le=20)] = 3


class Slot(Struct, kw_only=True):
    """A window in which it fits; it may begin at ``latest`` at the latest. A request for ``start`` would be granted
    now. ``members``: where the sites and links of a topology would be.
    """

    start: At
    end: At
    latest: At
    site: str
    broker: str
    members: dict[str, list[str]] = {}


class Slots(Struct, kw_only=True):
    """Windows in order of their start, and what stands in the way before the first one: so many units are ``short`` at
    the start that was asked for, and these ``leases`` of the project have some until then. Without any window,
    ``reason``, ``code`` and ``values`` say why, as a request would be told. Brokers that are ``away`` may have others.
    """

    items: list[Slot]
    short: int = 0
    leases: list[str] = []
    reason: str = ""
    code: str = ""
    values: dict[str, Any] = {}
    away: list[str] = []


class Wait(Struct, kw_only=True):
    """Somebody waits for what they have ``asked`` for to fit: ``waiting``, ``free`` (``slot`` is the window that there
    was then; nobody holds it), or ``over``: there was none. ``limited``: within the policy that the project has then.
    """

    id: str
    project: str
    caller: str
    asked: SlotSearch
    created: At
    state: Literal["waiting", "free", "over"] = "waiting"
    slot: Slot | None = None
    limited: bool = True


class WaitList(Struct, kw_only=True):
    """Waits that somebody may see, oldest first."""

    items: list[Wait]


class DryRunResult(Struct, kw_only=True):
    """What a broker would answer: ``granted``, ``waits`` or ``refused``; ``earliest`` is when it would fit, where that
    is known, ``approval`` why the policy of the project wants it approved first, if it does.
    """

    status: str
    broker: str = ""
    site: str = ""
    units: int = 0
    start: At | None = None
    end: At | None = None
    earliest: At | None = None
    reason: str = ""
    code: str = ""
    values: dict[str, Any] = {}
    approval: str = ""


class Transition(Struct, kw_only=True):
    """A line of an actor's history: who is ``actor``, what happened to ``lease`` and why."""

    actor: str
    seq: int
    at: At
    lease: str
    event: str
    before: str
    after: str
    reason: str = ""
    code: str = ""
    values: dict[str, Any] = {}


class TransitionPage(Struct, kw_only=True):
    """A page of them, oldest first."""

    items: list[Transition]
    next: str | None = None


Role: TypeAlias = Literal["viewer", "user", "manager"]
"""What somebody may do in a project: look; ask for leases as well; rule it."""
Office: TypeAlias = Literal["operator", "auditor"]
"""What somebody may do in all of the deployment: everything; look at everything."""


class TokenRequest(RequestBody):
    """A token for ``caller`` (not said: for who asks), of which more than their own rights can't be given."""

    name: Word
    caller: Word = ""
    projects: dict[Word, Role] = {}
    offices: list[Office] = []
    length: Span | None = None


class Token(Struct, kw_only=True):
    """A token, without what it is: that is shown once, as ``secret``, when it is made."""

    id: str
    name: str
    caller: str
    projects: dict[str, Role]
    offices: list[Office]
    created: At
    expires: At | None = None
    used: At | None = None
    secret: str = ""


class LoginWays(Struct, kw_only=True):
    """How one logs in: by a password, and, where there is an ``issuer``, as its ``client_id``, for ``scopes``."""

    issuer: str = ""
    client_id: str = ""
    scopes: str = ""


class SessionRequest(RequestBody):
    """Who logs in, by which password."""

    name: Word
    password: Words


class UserRequest(RequestBody):
    """A local user: how they log in, and what they may do."""

    name: Word
    password: Words
    projects: dict[Word, Role] = {}
    offices: list[Office] = []


class UserChange(RequestBody):
    """Another ``password``, with the ``old`` one, or other rights."""

    password: Words | None = None
    old: Words = ""
    projects: dict[Word, Role] | None = None
    offices: list[Office] | None = None


class User(Struct, kw_only=True):
    """A local user, and what they may do."""

    name: str
    projects: dict[str, Role]
    offices: list[Office]
    created: At


class Me(Struct, kw_only=True):
    """Who calls, by which way, and what they may do."""

    caller: str
    way: str
    projects: dict[str, Role]
    offices: list[Office]


class LeasePolicy(RequestBody):
    """What a project's leases may be; what is not given is not limited. ``longest``: from start to end, extensions
    included; ``ahead``: how long before its start a lease is asked for at most, ``lead`` at least; ``recurring``:
    whether by ``--every``.

    Above ``approve_units`` or ``approve_length`` a manager of the project, or one of ``approvers``, approves it first,
    within ``approve_within``. ``ask`` is the URL of a service that is asked before a request is sent on, ``asked_as``
    its protocol; it answers within ``ask_within``, else the request is refused, or let through where it ``fails`` open.
    ``hands``: who hands a lease to a colleague, its holder or managers, managers alone, or nobody.
    """

    longest: Span | None = None
    ahead: Span | None = None
    lead: Span | None = None
    most_units: Count | None = None
    recurring: bool = True
    approve_units: Count | None = None
    approve_length: Span | None = None
    approvers: Annotated[list[Word], Meta(max_length=100)] = []
    approve_within: Span = "3d"
    ask: Word = ""
    asked_as: Literal["leasekit", "blazar"] = "leasekit"
    ask_within: Span = "5s"
    fails: Literal["closed", "open"] = "closed"
    hands: Literal["holder", "manager", "nobody"] = "holder"


class ProjectPolicy(Struct, kw_only=True):
    """The policy of a project."""

    project: str
    policy: LeasePolicy


class ApprovalRequest(RequestBody):
    """What is to be approved: a new lease (``request``), all leases of a ``series``, or a change of one that there is:
    ``lease``, and ``extend`` or ``modify``. ``why`` is for who approves.
    """

    request: LeaseRequest | None = None
    series: SeriesRequest | None = None
    lease: Word = ""
    extend: LeaseExtend | None = None
    modify: LeaseModify | None = None
    why: Words = ""


class ApprovalDecision(RequestBody):
    """Why it is approved, refused, or withdrawn."""

    reason: Words = ""


class Approval(Struct, kw_only=True):
    """Something that waits to be approved until ``until``, or was: ``pending``, ``approving`` (it is being done),
    ``approved``, ``stopped`` (it was begun, and could not be gone on with for too long: what was done of it is among
    the leases of the project), ``refused``, ``withdrawn`` or ``expired``; ``lease``, or the days of ``series``, are
    what came of it.
    """

    id: str
    project: str
    caller: str
    asked: ApprovalRequest
    state: str
    created: At
    until: At
    decided_by: str = ""
    reason: str = ""
    lease: str = ""
    series: SeriesAnswer | None = None


class ApprovalList(Struct, kw_only=True):
    """Approvals, oldest first."""

    items: list[Approval]


class ActorState(Struct, kw_only=True):
    """A daemon of the deployment: ``running``, or ``away`` and why."""

    name: str
    role: str
    state: str
    problem: str = ""


EventKind: TypeAlias = Literal[
    "granted", "refused", "starts_soon", "ends_soon", "ended", "unit_failed", "evicted", "maintenance",
    "approval_wanted", "free", "announced", "test",
]  # fmt: skip


class NotificationRuleRequest(RequestBody):
    """Who is told of what. ``url`` gets CloudEvents by POST, ``mail`` gets messages: one of the two. ``type``: of
    leases of one type alone. ``ends`` and ``starts``: how long before an end, or a start, one is told.
    """

    events: Annotated[list[EventKind], Meta(min_length=1, max_length=16)]
    url: Words = ""
    mail: Word = ""
    type: Word = ""
    ends: Annotated[list[Span], Meta(min_length=1, max_length=8)] = field(default_factory=lambda: ["7d", "3d", "1d"])
    starts: Annotated[list[Span], Meta(min_length=1, max_length=8)] = field(default_factory=lambda: ["1h"])


class NotificationRule(Struct, kw_only=True, omit_defaults=True):
    """A rule. ``secret``, by which what is sent is signed, is shown when the rule is made, and never again."""

    id: str
    project: str
    caller: str
    events: list[EventKind]
    url: str = ""
    mail: str = ""
    type: str = ""
    ends: list[str] = []
    starts: list[str] = []
    secret: str = ""


class AnnouncementRequest(RequestBody):
    """An outage, or work that is to come, from ``start`` (not said: from now on) until ``end``."""

    text: Annotated[str, Meta(min_length=1, max_length=500)]
    end: At
    start: At | None = None


class Announcement(Struct, kw_only=True):
    """What ``caller`` has announced to all."""

    id: str
    text: str
    start: At
    end: At
    caller: str
    created: At


class AnnouncementList(Struct, kw_only=True):
    """Announcements of what is to come or goes on, in order of their start."""

    items: list[Announcement]


class Delivery(Struct, kw_only=True):
    """Something that somebody is told: ``waiting``, ``done``, or ``dead`` when it was tried too often; ``problem`` is
    why the last try failed, ``next`` when the next one is.
    """

    id: str
    rule: str
    event: EventKind
    lease: str
    state: Literal["waiting", "done", "dead"]
    tries: int
    problem: str
    next: At | None


class FeedRequest(RequestBody):
    """A calendar of leases: of one ``type`` or all; with ``mine`` of those that one has asked for oneself."""

    type: Word = ""
    mine: bool = False


class CalendarFeed(Struct, kw_only=True, omit_defaults=True):
    """A calendar. ``path`` is its address at the gateway, which is shown when it is made, and never again."""

    id: str
    project: str
    caller: str
    type: str = ""
    mine: bool = False
    created: At
    path: str = ""


class ShownUnit(Struct, kw_only=True, omit_defaults=True):
    """A unit of a site; ``reason`` is what is wrong with it, for who may look at everything."""

    name: str
    state: str
    reason: str = ""


class CalendarRow(Struct, kw_only=True, omit_defaults=True):
    """Units of one class of a type at a site: what they have, and which they are, where the site is of the deployment.

    From stretch ``at[i]`` on, up to the next, at least ``there[i]`` are there, ``booked[i]`` at most are booked or
    held, and ``free[i]`` at least can be had of the deployment's brokers.
    """

    site: str
    type: str
    class_: str = field(name="class")
    properties: dict[str, str] = {}
    units: list[ShownUnit] = []
    at: list[int] = []
    there: list[int] = []
    booked: list[int] = []
    free: list[int] = []


class CalendarBar(Struct, kw_only=True, omit_defaults=True):
    """So many ``units`` of a row over a time (-1: of which is not settled), and ``on`` which of its units these are, as
    far as that is known. Whose ``lease`` it is, and its name and state, are told of one's own projects only.
    """

    row: int
    kind: Literal["lease", "hold", "maintenance"]
    units: int
    start: At
    end: At
    on: list[int] = []
    lease: str = ""
    name: str = ""
    project: str = ""
    state: str = ""
    type: str = ""
    site: str = ""
    reason: str = ""


class CalendarView(Struct, kw_only=True):
    """Who has what from ``start`` to ``end``, in stretches of ``step``. ``more``: so many bars are left out, the
    shortest ones. ``away``: what these actors know is not in it.
    """

    start: At
    end: At
    step: str
    rows: list[CalendarRow]
    bars: list[CalendarBar]
    more: int = 0
    away: list[str] = []


class TypeClass(Struct, kw_only=True):
    """Units of one class of a type at a site: how many are ``there`` for the deployment's brokers to give, and how many
    of these are ``free`` now.
    """

    site: str
    class_: str = field(name="class")
    properties: dict[str, str]
    there: int
    free: int


class UnitType(Struct, kw_only=True):
    """A type that can be asked for."""

    type: str
    classes: list[TypeClass]


class UnitTypes(Struct, kw_only=True):
    """All types, by name, but for those of brokers that are ``away``."""

    items: list[UnitType]
    away: list[str] = []


class UnitPrice(Struct, kw_only=True):
    """What a unit of a type costs at a broker from an instant on, for each billing ``period``, in the broker's own
    money.
    """

    broker: str
    type: str
    at: At
    price: int
    period: str


class UnitPrices(Struct, kw_only=True):
    """Prices by broker and type, in order of time, but for those of brokers that are ``away``."""

    items: list[UnitPrice]
    away: list[str] = []


class UnitLog(Struct, kw_only=True):
    """The last lines of a unit's log, oldest first."""

    lines: list[str]
