"""The records that the actors keep, one class for each table and role: in one module of over 800 lines, so that whoever
adds a field sees what others have.

A record is everything that must survive a crash, and a few fields that need not (:func:`volatile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Self, get_type_hints

import attrs
import msgspec

from leasekit.core.claims.claim import TOLD_NOTHING, Claim, EarlyTerms
from leasekit.core.leases import authority as site
from leasekit.core.leases import broker, membership, returns
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases import service_manager as guest
from leasekit.core.leases.machine import NONE, JointIn, Machine, PendingIn, StateIn
from leasekit.core.leases.power import ON
from leasekit.core.properties import (
    CPU,
    EMPTY,
    NO_UNITS,
    WHOLE,
    Counts,
    Properties,
    Sizes,
    Vector,
    amount,
    counts,
    weigh,
)
from leasekit.core.protocol.codec import UnknownKind, decode_message
from leasekit.core.protocol.messages import EXTEND, UNDO, LeaseUpdate, Message, TicketUpdate
from leasekit.core.reasons import Code, Reason, read, to_text
from leasekit.core.requests import TERMINATE
from leasekit.core.schema import TABLES, Row, StoreError
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term

pack_body: Final = msgspec.msgpack.Encoder().encode
unpack_body: Final = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
"""The fields of a body of no record: arrays in them are lists."""


_VOLATILE: Final = {"volatile": True}


def volatile(default: Any = None, *, factory: Callable[[], Any] | None = None) -> Any:
    """A field that need not survive a crash: after a restart all that is due is due at once."""
    return attrs.field(default=default if factory is None else attrs.Factory(factory), metadata=_VOLATILE)


@attrs.define(slots=True, eq=False)
class KeptRecord:
    """A record that a store keeps. ``timer`` is when time next concerns it."""

    timer: Instant | None = attrs.field(default=None, init=False, metadata=_VOLATILE)

    machine: ClassVar[Machine]
    """The table of its states, of a record that has any."""
    table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]] = {}
    """The attributes (or paths of attributes) of columns that have another name."""

    def can(self, event: str) -> bool:
        """Whether the table of its states allows an event now."""
        record: Any = self
        return event in self.machine.table.get((record.state, record.pending), ())

    def row(self) -> Row:
        """Its row."""
        return layout_of(type(self)).row(self)

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """The record that was kept as a row."""
        made: Self = layout_of(cls).record(row)
        return made


@attrs.define(slots=True, eq=False)
class SentRecord(KeptRecord):
    """One of which something is sent until it is answered: again at ``send_at``, after so many ``tries``."""

    pending: str = attrs.field(default=NONE, init=False, metadata=_VOLATILE)
    send_at: Instant = attrs.field(default=0, init=False, metadata=_VOLATILE)
    tries: int = attrs.field(default=0, init=False, metadata=_VOLATILE)


def _same(value: Any) -> Any:
    return value


_COLUMNS: Final[Mapping[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    bool: (int, bool),
    Reason: (to_text, read),
    Reason | None: (to_text, read),
}
"""What a column holds of a field of such a type, and what the field is made of."""


class Layout:
    """How records of one class become rows."""

    def __init__(self, cls: type[Any]) -> None:
        columns = [*TABLES[cls.table].columns][:-1]
        paths = [cls.columns.get(column, column) for column in columns]
        hints = get_type_hints(cls)
        kept = [field.name for field in attrs.fields(cls) if not field.metadata.get("volatile")]
        self._cls = cls
        self._columns: Callable[[Any], tuple[Any, ...]] = attrgetter(*paths)
        kinds = [bool if column == "live" else hints.get(path) for column, path in zip(columns, paths, strict=True)]
        self._flags = [at for at, kind in enumerate(kinds) if kind is bool]
        self._reasons = [at for at, kind in enumerate(kinds) if _COLUMNS.get(kind, ("",))[0] is to_text]
        self._read = [
            (path, at, _COLUMNS[kinds[at]][1] if kinds[at] in _COLUMNS else _same)
            for at, path in enumerate(paths)
            if path in kept
        ]
        self._names = [name for name in kept if name not in paths]
        values = [attrgetter(name) for name in self._names]
        self._body: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*self._names) if len(values) > 1 else lambda record: tuple(value(record) for value in values)
        )
        types = tuple(hints[name] for name in self._names)
        self._unpack: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(
            tuple.__class_getitem__(types)
        ).decode

    def row(self, record: Any) -> Row:
        """The row of a record."""
        return (*self.brief(record)[:-1], pack_body(self._body(record)))

    def brief(self, record: Any) -> Row:
        """Its row without what only a restart needs: the body is empty."""
        row = [*self._columns(record), b""]
        for at in self._flags:
            row[at] = int(row[at])
        for at in self._reasons:
            reason = row[at]
            row[at] = "" if reason is None else reason.text()
        return tuple(row)

    def record(self, row: Row) -> Any:
        """The record of a row. Raises ``StoreError`` for one that another version of leasekit has written."""
        try:
            fields = dict(zip(self._names, self._unpack(row[-1]), strict=True))
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{self._cls.table}: {row[0]!r:.80} is not as this leasekit writes it ({error}): start the leasekit "
                "that wrote the store, or move the store away"
            ) from None
        for name, at, from_column in self._read:
            fields[name] = from_column(row[at])
        return self._cls(**fields)


_LAYOUTS: Final[dict[type[Any], Layout]] = {}


def layout_of(cls: type[Any]) -> Layout:
    """How records of a class become rows."""
    layout = _LAYOUTS.get(cls)
    if layout is None:
        layout = _LAYOUTS[cls] = Layout(cls)
    return layout


class Held(NamedTuple):
    """A ticket that a guest holds: its encoded chain, its leaf's digest, and what it gives. ``extends`` is the number
    of the extend that brought it (0: none did), ``victims`` the units that its lease then gives up. ``promised``: its
    site has accepted it, and goes on by it when its term begins.
    """

    ticket: bytes
    digest: bytes
    units: int
    term: Term
    extends: int = 0
    victims: tuple[str, ...] = ()
    promised: bool = False


class Asked(NamedTuple):
    """What a guest asked a broker for: the *requested* slot of a lease, which no grant overwrites."""

    op: str
    units: int
    term: Term
    site: str
    properties: Properties


@attrs.define(slots=True, eq=False)
class GuestUnit(KeptRecord):
    """One unit of a guest's lease (:mod:`.membership`)."""

    id: str
    lease: str
    name: str
    type: str
    state: str = membership.WAITING
    pending: str = volatile(NONE)
    action: int = 0
    properties: Properties = EMPTY
    reason: Reason | None = None
    unit_class: bytes = b""

    machine = membership.UNIT_MACHINE
    table: ClassVar[str] = "units"
    is_joining = StateIn(membership.JOINING)
    is_leaving = StateIn(membership.LEAVING)
    is_busy = StateIn(*membership.BUSY)
    has_failed = StateIn(membership.FAILED)
    has_left = StateIn(membership.LEFT)
    is_going = StateIn(*membership.GOING)


class Operation(NamedTuple):
    """What the site of a guest's lease was asked: which kind (empty: nothing), under which number (0: no answer is
    waited for), with which configuration, and when first; and whether it has accepted what it was asked last. It says
    the same as often as it is sent, whatever becomes of the lease meanwhile: one number stands for one content.
    """

    op: str = ""
    number: int = 0
    configuration: Properties = EMPTY
    since: Instant = 0
    accepted: bool = False


NO_OPERATION: Final = Operation()


class After(NamedTuple):
    """The leases that a guest's lease waits for before it is redeemed, and before its units join (empty: none), and
    whether it goes on without one that has come to nothing.
    """

    redeem: str = ""
    join: str = ""
    proceed: bool = False


NO_PREDECESSOR: Final = After()


class Resumed(NamedTuple):
    """A guest's lease that was suspended, and when it ended."""

    lease: str
    at: Instant


class Origin(NamedTuple):
    """How a guest's lease came to be: which leases it waits for, what it asked for first (of one that can be suspended
    or requeued: what goes on from it asks likewise), which suspended lease it goes on from. ``number`` is that of its
    first request, ``ticket`` the digest of the ticket that answered it.
    """

    after: After = NO_PREDECESSOR
    asked: Asked | None = None
    resumes: Resumed | None = None
    number: int = 0
    ticket: bytes = b""


class Ask(NamedTuple):
    """The request that the broker of a guest's lease has not answered: its number (0: none), until when an answer is of
    use, and whether the broker has accepted it.
    """

    number: int = 0
    deadline: Instant = 0
    accepted: bool = False


class HeldTickets(NamedTuple):
    """The tickets of a guest's lease: the one that it runs on, and those in hand that go on from its term, one after
    the other; what the broker said of the units. ``before`` is the digest of the ticket before ``approved``, if its
    site was asked to go on before it said that it goes by that.
    """

    approved: Held | None = None
    continuations: tuple[Held, ...] = ()
    resource: Properties = EMPTY
    before: bytes = b""


class ChangeAsked(NamedTuple):
    """What a guest's lease is to become: the ticket that its site was asked to go on by, with what cuts off the one
    before, another configuration (None: the same), and the units that it gives up.
    """

    renewal: Held | None = None
    truncation: bytes = b""
    configuration: Properties | None = None
    victims: tuple[str, ...] = ()


NO_CHANGE: Final = ChangeAsked()


class Given(NamedTuple):
    """What a site has given: the term, and its signed word on it."""

    term: Term
    contract: bytes


class Ending(NamedTuple):
    """Whether, and why, a guest closes its lease; when its site ends it before its term (-1: it does not), and whether
    it is suspended then.
    """

    closing: bool = False
    reason: Reason | None = None
    at: Instant = -1
    suspends: bool = False


class Heard(NamedTuple):
    """The numbers of the last updates of a guest's lease by its broker and site, and the slice's key that its site was
    last told.
    """

    broker: int = 0
    site: int = 0
    key: str = ""


@attrs.define(slots=True, eq=False)
class Waits:
    """What a guest's lease waits for, and need not know after a restart: how many drivers are at work on its units,
    when its broker and its site are asked again, after how many tries, and until when its mapper holds it.
    """

    busy: int = 0
    ask_at: Instant = 0
    ask_tries: int = 0
    op_at: Instant = 0
    op_tries: int = 0
    hold_until: Instant = 0


@attrs.define(slots=True, eq=False)
class GuestLease(KeptRecord):
    """The service manager's record of a lease (:mod:`.service_manager`).

    Three slots never overwrite each other: ``asked`` (requested), ``tickets`` (in hand), and ``given`` (by the site).
    ``ask`` is what the broker has not answered, ``operation`` what the site was asked; ``number`` is the last one used.
    ``change`` is what the lease becomes by that, ``ending`` how it ends before its term.
    """

    id: str
    name: str
    slice: str
    type: str
    broker: str
    asked: Asked
    site: str = ""
    state: str = guest.NASCENT
    pending: str = NONE
    join: str = membership.NOT_JOINED
    reason: Reason | None = None
    number: int = 0
    ask: Ask = attrs.Factory(Ask)
    operation: Operation = NO_OPERATION
    heard: Heard = attrs.Factory(Heard)
    tickets: HeldTickets = attrs.Factory(HeldTickets)
    change: ChangeAsked = NO_CHANGE
    given: Given | None = None
    configuration: Properties = EMPTY
    origin: Origin = attrs.Factory(Origin)
    ending: Ending = attrs.Factory(Ending)
    ended: Instant = -1

    units: dict[str, GuestUnit] = volatile(factory=dict)
    waits: Waits = volatile(factory=Waits)

    machine = guest.MACHINE
    table: ClassVar[str] = "leases"
    columns: ClassVar = {
        "live": "is_live", "peer": "server", "units": "latest.units", "term_start": "runs.start",
        "term_end": "runs.end", "updated": "ended",
    }  # fmt: skip

    is_open = StateIn(*guest.OPEN)
    is_over = StateIn(*guest.OVER)
    is_running = StateIn(*guest.RUNNING)
    has_next_ticket = StateIn(guest.ACTIVE_TICKETED)
    has_ticket = JointIn(guest.UNREDEEMED)
    is_replaced = JointIn(guest.REPLACED)
    is_closing = PendingIn(*guest.ENDING)
    is_leaving = PendingIn(guest.CLOSING)
    awaits_last_word = PendingIn(guest.CLOSE_WAIT)
    is_withdrawn = JointIn(guest.WITHDRAWN)
    takes_extend_back = PendingIn(guest.WITHDRAWING)
    is_idle = PendingIn(NONE)
    is_noticed = PendingIn(guest.NOTICED)
    asks_extend = PendingIn(guest.EXTENDING_TICKET)
    asks_further = PendingIn(guest.EXTENDING_FURTHER)
    goes_on = PendingIn(guest.EXTENDING_LEASE)

    @property
    def phase(self) -> str:
        """What it waits for."""
        return guest.PHASES[self.state, self.pending]

    @property
    def approved(self) -> Held | None:
        """The ticket that it runs on."""
        return self.tickets.approved

    @property
    def continuations(self) -> tuple[Held, ...]:
        """The tickets in hand: each becomes the renewal when its time comes."""
        return self.tickets.continuations

    @property
    def renewal(self) -> Held | None:
        """The ticket that the site was asked to go on by."""
        return self.change.renewal

    @property
    def granted(self) -> Term | None:
        """The term that its site has given."""
        return self.given.term if self.given is not None else None

    @property
    def latest(self) -> Held | Asked:
        """What it goes by: the ticket in hand, or what was asked."""
        held = self.tickets.approved
        return held if held is not None else self.asked

    @property
    def runs(self) -> Term:
        """The term that it has, or is to have."""
        return self.granted or self.latest.term

    @property
    def server(self) -> str:
        """Who is asked next: its site, or its broker."""
        return self.site or self.broker

    @property
    def is_live(self) -> bool:
        """Whether it goes on."""
        return self.ended < 0 or not self.is_over

    @property
    def end(self) -> Instant:
        """When the lease ends as far as the site has promised, milliseconds."""
        if self.given is not None:
            return self.given.term.end
        return self.approved.term.end if self.approved is not None else self.asked.term.end

    @property
    def following(self) -> tuple[Held, ...]:
        """The tickets that go on from the one that the lease runs on: one that is being redeemed, those in hand."""
        redeemed = self.renewal if self.operation.op in (EXTEND, UNDO) else None
        return self.continuations if redeemed is None else (redeemed, *self.continuations)

    @property
    def last_end(self) -> Instant:
        """When the lease ends after all that it was extended by."""
        return self.following[-1].term.end if self.following else self.end

    @property
    def is_promised(self) -> bool:
        """Whether its site goes on by the first of the following tickets, whatever else it is asked before."""
        first = self.following[0] if self.following else None
        return first is not None and (first.promised or (first is self.renewal and self.operation.accepted))

    @property
    def leaving(self) -> tuple[str, ...]:
        """The units that go by what its site was asked last."""
        redeemed = self.renewal if self.operation.op in (EXTEND, UNDO) else None
        return self.change.victims if redeemed is None else redeemed.victims


@attrs.define(slots=True, eq=False)
class Slice(KeptRecord):
    """A group of a guest's leases. With ``hold`` its redeems wait until that many tickets have arrived, all or none.

    ``key`` is what its users log in to units with (OpenSSH public keys, a line each); ``notes`` are what programs keep
    with it, and are read by nobody else. Both may change at any time.
    """

    id: str
    hold: int = 0
    released: bool = True
    refused: Reason | None = None
    live: bool = True
    key: str = ""
    notes: Properties = EMPTY

    table: ClassVar[str] = "slices"
    columns: ClassVar = {"name": "id"}


@attrs.define(slots=True, eq=False)
class Return(SentRecord):
    """A claim on its way back (:mod:`.returns`)."""

    id: str
    lease: str
    site: str
    broker: str
    held: Held
    number: int
    at: Instant
    state: str = returns.RELINQUISHING
    reason: Reason | None = volatile()
    receipt: bytes = b""

    machine = returns.MACHINE
    table: ClassVar[str] = "returns"
    is_at_site = StateIn(returns.RELINQUISHING)
    is_at_broker = StateIn(returns.RETURNING)
    columns: ClassVar = {"stage": "state"}


class Update(NamedTuple):
    """A numbered update that a server sends its client until it is acknowledged."""

    number: int
    message: TicketUpdate | LeaseUpdate


class Granted(NamedTuple):
    """A claim that a broker cut for a lease: ``until`` is where it really ends (its term's end, unless truncated or
    returned). ``held``: a modify has cut it off, and the site has not confirmed that yet. ``serial`` is the claim's.
    ``saving``: the lease is suspended at its end, and saved in so many milliseconds before. ``replaces`` is the digest,
    in hex, of the claim that it was granted in the place of; where that must not be redeemed any more, ``unused_until``
    is the end of its term (-1: it was a modify's). ``kept``: its site counts what was cut off of it no more, which is
    booked for another lease that it makes room for. ``classes`` says how many units it has of each class.
    ``redeem_by`` is until when its site takes it (-1: to its end).
    ``sizes`` says what one unit of each class takes, where the type is divided, ``needs`` what was asked for one.
    ``early`` is what it says of its lease's end for others (:class:`~leasekit.core.claims.claim.EarlyTerms`).
    """

    digest: bytes
    source: str
    key: str
    units: int
    term: Term
    until: Instant
    held: bool = False
    serial: int = 0
    preemptible: bool = False
    prepare: int = 0
    saving: int = 0
    replaces: str = ""
    classes: Counts = NO_UNITS
    redeem_by: Instant = -1
    sizes: Sizes = ()
    needs: Vector = WHOLE
    early: Properties = EMPTY
    unused_until: Instant = -1
    kept: bool = False

    @property
    def weights(self) -> Counts:
        """What it takes, as it is booked."""
        return weigh(self.classes, self.sizes)

    @property
    def booked_until(self) -> Instant:
        """When nothing of it is booked any more. What a modify cut off is booked as long as that may be undone."""
        return max(self.until, self.term.end) if self.held else self.until


class EndTerms(NamedTuple):
    """How a lease at a broker can be ended before its time. It runs from ``since`` on (-1: nothing is granted yet), for
    ``min_run`` at least and ``max_run`` at most (0: there is no limit), and hears of its end ``notice`` before;
    ``on_preempt`` is what becomes of it then, ``suspend`` how long it takes to save it (0: it can't be), ``bid`` what
    it pays at most for a unit and billing period.
    """

    since: Instant = -1
    notice: Duration = 0
    min_run: Duration = 0
    max_run: Duration = 0
    on_preempt: str = TERMINATE
    suspend: Duration = 0
    bid: int = 0

    @property
    def least_end(self) -> Instant:
        """When it has run for as long as it runs at least."""
        return self.since + self.min_run


NO_TERMS: Final = EndTerms()


class WaitsForMapper(NamedTuple):
    """The request of a lease that waits for its broker's mapper: its number (0: none does), its place in line, by when
    it arrived, and until when an answer is of use.
    """

    number: int
    arrived: Instant
    deadline: Instant


class EarlyEnd(NamedTuple):
    """When a lease at a broker was preempted to end (-1: it wasn't), whether it is suspended, or requeued, and nobody
    has asked for its rest yet, and which lease gets what its end leaves.
    """

    at: Instant = -1
    suspended: bool = False
    promised: str = ""


NO_EARLY_END: Final = EarlyEnd()


class MadeRoom(NamedTuple):
    """What a lease is to get when its ``victims`` have ended: it is booked, and has no ticket yet. That is cut at
    ``hand_over`` (-1: when they have made room).
    """

    promise: Granted | None = None
    victims: tuple[str, ...] = ()
    hand_over: Instant = -1


NO_ROOM: Final = MadeRoom()


@attrs.define(slots=True, eq=False)
class BrokerLease(SentRecord):
    """The broker's record of a lease (:mod:`.broker`). ``waits`` is the request that waits for the mapper, ``number``
    that of the last one seen, ``key`` the holder's when it first asked. ``looked`` is when its sites were last asked
    whether its claims were redeemed. ``terms`` are those on which it can be ended early, ``ending`` what came of that,
    ``room`` what others make for it, ``told_again`` when it is tried again to end it, if its site could not be told.
    """

    id: str
    holder: str
    slice: str
    type: str
    state: str
    pending: str
    asked: Asked
    number: int
    waits: WaitsForMapper
    reason: Reason | None = None
    claims: tuple[Granted, ...] = ()
    update: int = 0
    unacked: list[Update] = attrs.Factory(list)
    group: str = ""
    ended: Instant = -1
    key: bytes = b""
    looked: Instant = -1
    terms: EndTerms = NO_TERMS
    ending: EarlyEnd = NO_EARLY_END
    room: MadeRoom = NO_ROOM

    defer_reason: Reason | None = volatile()
    told_again: Instant = volatile(-1)

    machine = broker.MACHINE
    is_ticketed = StateIn(broker.TICKETED)
    is_noticed = PendingIn(broker.NOTICED)
    is_over = StateIn(*broker.OVER)
    is_idle = PendingIn(NONE)
    table: ClassVar[str] = "leases"
    columns: ClassVar = {
        "live": "is_live", "peer": "holder", "units": "latest.units", "term_start": "runs.start",
        "term_end": "runs.end", "updated": "ended",
    }  # fmt: skip

    def has_answered(self, number: int) -> bool:
        """Whether an update that answers a request is out."""
        return self.waits.number != number

    @property
    def latest(self) -> Granted | Asked:
        """What it goes by: the last claim, or what was asked."""
        return self.claims[-1] if self.claims else self.asked

    @property
    def runs(self) -> Term:
        """The term that it has, or is to have."""
        return Term(self.claims[0].term.start, self.claims[-1].until) if self.claims else self.asked.term

    @property
    def is_live(self) -> bool:
        """Whether anything depends on it still."""
        return self.ended < 0 or bool(self.unacked)


@attrs.define(slots=True, eq=False)
class SiteUnit(KeptRecord):
    """One unit of a site's inventory. ``lease`` holds it now, ``promised`` gets it when its teardown has ended.

    ``number`` is its own at the site, and is never another's: units are given out in that order; machines have none.
    ``given`` are the properties that its driver returned; ``failures`` counts failures in a row. ``setup`` is the
    number of the setup that it is up from (transient: 0 after a restart). ``power`` is whether it is on
    (:mod:`.power`), ``metered`` what the driver that switches it has said of it. ``left`` is the lease that could not
    be torn down there: what is left of it goes before the unit is in service again. ``changed``: its lease has other
    properties since its setup, or modify, began. ``classes`` are the class that it is of, and then those that it was of
    which claims may still count; ``given_as`` the one that it counts as for its lease.

    A *machine* is a unit on a host, which is there for its lease only: ``host`` is where it is, ``size`` what it takes
    there (:mod:`leasekit.core.properties`), ``needs`` what was asked for it, ``cap`` how much CPU it gets at most, in
    millicores (-1: as much as there is), ``leaves`` the host that it is moved from, ``used`` how much CPU probes have
    seen it use, smoothed (transient; -1: nobody has said).
    """

    id: str
    type: str
    state: str = site.FREE
    pending: str = volatile(NONE)
    lease: str = ""
    promised: str = ""
    action: int = 0
    given: Properties = EMPTY
    reason: Reason | None = None
    failures: int = 0
    retire: Reason | None = None
    number: int = 0
    setup: int = volatile(0)
    power: str = ON
    metered: Properties = EMPTY
    left: str = ""
    changed: bool = False
    classes: tuple[bytes, ...] = ()
    given_as: bytes = b""
    host: str = ""
    size: Vector = WHOLE
    needs: Vector = WHOLE
    cap: int = -1
    leaves: str = ""
    used: int = volatile(-1)

    machine = site.UNIT_MACHINE
    table: ClassVar[str] = "units"
    is_free = StateIn(site.FREE)
    is_out = StateIn(site.OUT)
    is_up = StateIn(site.UP)
    is_set_up = StateIn(site.SETUP)
    is_modified = StateIn(site.CHANGE)
    is_torn_down = StateIn(site.TEARDOWN)
    is_in_use = StateIn(*site.IN_USE)
    is_settling = StateIn(*site.SETTLING)
    is_usable = StateIn(*site.USABLE)

    @property
    def asked(self) -> int:
        """How much CPU was asked for a machine, in millicores."""
        return amount(self.needs, CPU)

    @property
    def is_clean(self) -> bool:
        """Whether nobody has it, or is to get it."""
        return self.is_free and not self.promised


class AcceptedChange(NamedTuple):
    """What a site has accepted for later: from ``term.start`` on the lease goes on with these (extend, or modify).
    ``sizes`` and ``places`` are as in :class:`SiteLease`.
    """

    op: str
    number: int
    claim: bytes
    units: int
    term: Term
    victims: tuple[str, ...]
    properties: Properties
    classes: Counts = NO_UNITS
    sizes: Sizes = ()
    places: tuple[str, ...] = ()

    @property
    def weights(self) -> Counts:
        """What its units take, as it is booked."""
        return weigh(self.classes, self.sizes)


@attrs.define(slots=True, eq=False)
class SiteLease(SentRecord):
    """The authority's record of a lease (:mod:`.authority`).

    ``wanted`` is how many units it is to have now, ``classes`` how many of each class; ``units`` those it has, in
    order; ``next`` what was accepted for later, ``after`` an extend that was accepted before, if that is a modify.
    ``settles`` is the request that the next update answers. ``origin`` is the digest of the root claim that it
    comes from, ``terminates_at`` when it is ended before its term (-1: it isn't). ``key`` is that of the holder when it
    redeemed. ``saves``: its units are saved when it ends by that notice. ``replaced`` is how many of its units were
    replaced in this term. Of a divided type, ``sizes`` is what a unit of each class takes of its host, ``needs`` what
    was asked for each, and ``places`` are the hosts of its units, as many times as they have one; of other types,
    before its term, the units that are planned for it. ``early`` is what its claim says of its end for others.
    """

    id: str
    holder: str
    slice: str
    type: str
    state: str
    pending: str
    claim: bytes
    term: Term
    wanted: int
    number: int
    resource: Properties = EMPTY
    properties: Properties = EMPTY
    reason: Reason | None = None
    units: list[str] = attrs.Factory(list)
    settles: int = 0
    next: AcceptedChange | None = None
    update: int = 0
    unacked: list[Update] = attrs.Factory(list)
    receipt: bytes = b""
    ended: Instant = -1
    root: bytes = b""
    preemptible: bool = False
    origin: bytes = b""
    terminates_at: Instant = -1
    notice: Reason | None = None
    key: bytes = b""
    saves: bool = False
    replaced: int = 0
    after: AcceptedChange | None = None
    classes: Counts = NO_UNITS
    sizes: Sizes = ()
    needs: Vector = WHOLE
    places: tuple[str, ...] = ()
    early: EarlyTerms = TOLD_NOTHING

    waiting: int = volatile(0)

    machine = site.MACHINE
    is_ticketed = StateIn(site.TICKETED)
    is_active = StateIn(site.ACTIVE)
    is_closed = StateIn(site.CLOSED)
    awaits_mapper = PendingIn(site.REDEEMING)
    is_priming = PendingIn(site.PRIMING)
    is_extending = PendingIn(site.EXTENDING)
    is_torn_down = PendingIn(site.CLOSING)
    is_idle = PendingIn(NONE)
    table: ClassVar[str] = "leases"
    columns: ClassVar = {
        "live": "is_live", "peer": "holder", "units": "wanted", "term_start": "term.start", "term_end": "term.end",
        "updated": "ended",
    }  # fmt: skip

    @property
    def weights(self) -> Counts:
        """What its units take, as it is booked."""
        return weigh(self.classes, self.sizes)

    @property
    def is_ending(self) -> bool:
        """Whether it is over, or its units are torn down."""
        return self.ended >= 0 or self.is_torn_down

    def has_answered(self, number: int) -> bool:
        """Whether an update that answers a request is out."""
        return any(update.message.number >= number for update in self.unacked)

    @property
    def claims(self) -> frozenset[bytes]:
        """Its claim, and those that were accepted for later."""
        return frozenset([self.claim, *[one.claim for one in (self.next, self.after) if one is not None]])

    @property
    def accepted(self) -> tuple[AcceptedChange, ...]:
        """What was accepted for later, in its order."""
        return tuple([one for one in (self.next, self.after) if one is not None])

    @property
    def extension(self) -> AcceptedChange | None:
        """The extend that was accepted."""
        return next((one for one in self.accepted if one.op == EXTEND), None)

    @property
    def goes_to(self) -> Instant:
        """When it ends, by all that was accepted."""
        return self.accepted[-1].term.end if self.accepted else self.term.end

    @property
    def ends_at(self) -> Instant:
        """When it ends, or did, whoever ends it."""
        return min([self.goes_to, *(at for at in (self.terminates_at, self.ended) if at >= 0)])

    @property
    def told(self) -> Reason | None:
        """Why it is as it is: what was last said of it, else why it ends before its term does."""
        return self.reason or (self.notice if self.terminates_at >= 0 else None)

    @property
    def is_live(self) -> bool:
        """Whether anything depends on it still: on a close without a lease, which has no type, that no redeem which it
        has overtaken is carried out.
        """
        return self.ended < 0 or bool(self.unacked) or not self.type


@attrs.define(slots=True, eq=False)
class SiteClaim(KeptRecord):
    """A claim that a site has seen: ``redeemed`` for a lease at ``at``, ``void`` (given back) as of ``at``, ``seen``
    above one that was redeemed, or only ``heard`` of: that it ends early. ``until``, ``honoured`` and ``used`` say how
    it stands in the claim tree; ``vouched`` is when the site last gave its word that it stands.
    """

    id: str
    lease: str
    parent: str
    issuer: str
    holder: str
    type: str
    units: int
    term: Term
    state: str
    at: Instant
    body: bytes
    signature: bytes
    live: bool = True
    until: Instant = -1
    honoured: bool = True
    used: bool = True
    vouched: Instant = -1

    is_redeemed = StateIn(site.REDEEMED)
    is_void = StateIn(site.VOID)
    is_only_heard_of = StateIn(site.HEARD)
    table: ClassVar[str] = "claims"
    columns: ClassVar = {"term_start": "term.start", "term_end": "term.end"}


class Withheld(NamedTuple):
    """What a broker had better not grant of a delegation over the ``term`` of a maintenance window: ``units``, 0 once
    the window was taken back. ``number`` is that of the message that said so last. ``by_class`` are those of each class
    of its claim, in the claim's order (empty: it has one class).
    """

    window: str
    units: int
    term: Term
    reason: str
    number: int = 0
    by_class: tuple[int, ...] = ()

    def of(self, claim: Claim) -> Counts:
        """How many units of each class of ``claim`` are not to be granted."""
        names = [class_ for class_, _ in claim.classes]
        return counts(zip(names, self.by_class or (self.units,), strict=False))


class TakenBack(NamedTuple):
    """That an issuer took a delegation back, by its signed ``statement``: what is granted of it from then on ends by
    ``at``; leases that existed before are over by ``deadline``. Both are -1 where there is none.
    """

    at: Instant = -1
    deadline: Instant = -1
    statement: bytes = b""


NOT_TAKEN_BACK: Final = TakenBack()


@attrs.define(slots=True, eq=False)
class Delegation(SentRecord):
    """A delegation as its issuer or its holder keeps it (:mod:`.delegation`). ``peer`` is the other side.

    ``site`` names the site whose units they are, ``digest`` the claim (its leaf). A broker that gives has cut it from
    its own delegation ``source``; ``given`` tells the issuer's record from the holder's. ``taken_back`` says as of when
    it was reclaimed. From ``freed`` on (-1: there is no such instant) its issuer can grant the units anew: the site
    counts the claim as ended then. ``properties`` is what all its units have, and ``classes`` what each class of them
    has beside that, where there are several. ``withheld`` is what a holder had better not grant. A delegation that is
    renewed is several records, one for each period: ``renewal_of`` is the name of the first, empty in that one itself.
    From ``replaced`` on another claim of the chain stands in its place (-1: none does); until ``beyond`` more of the
    chain is in use than this has.
    """

    id: str
    peer: str
    type: str
    units: int
    term: Term
    ticket: bytes
    properties: Properties
    number: int
    site: str
    digest: bytes
    state: str = deleg.OFFERING
    reason: Reason | None = None
    given: bool = False
    source: str = ""
    taken_back: TakenBack = NOT_TAKEN_BACK
    withheld: tuple[Withheld, ...] = ()
    freed: Instant = -1
    renewal_of: str = ""
    replaced: Instant = -1
    beyond: Instant = -1
    classes: tuple[Properties, ...] = ()

    table: ClassVar[str] = "delegations"
    columns: ClassVar = {"term_start": "term.start", "term_end": "term.end"}

    machine = deleg.MACHINE
    is_offered = StateIn(deleg.OFFERING)
    is_held = StateIn(deleg.HELD)
    is_replaced = StateIn(deleg.REPLACED)
    is_refused = StateIn(deleg.REFUSED)
    is_reclaimed = StateIn(deleg.RECLAIMED)
    has_ended = StateIn(deleg.ENDED)
    is_current = StateIn(*deleg.CURRENT)
    is_unanswered = StateIn(*deleg.UNANSWERED)
    is_used = StateIn(*deleg.USED)
    is_over = StateIn(*deleg.OVER)

    def can_grant(self, now: Instant) -> bool:
        """Whether its holder may grant of it yet, or may come to do so: also before the instant from which on it is
        taken back.
        """
        kept = self.state in deleg.CURRENT or self.state in deleg.TAKEN_BACK
        return kept and max(now, self.term.start) < self.grants_until

    @property
    def base(self) -> str:
        """The name of the delegation that this is a renewal of."""
        return self.renewal_of or self.id

    @property
    def grants_until(self) -> Instant:
        """Until when new terms may go: to its end, or to the instant from which on it is taken back, or replaced."""
        start, until = self.term
        for at in (self.taken_back.at, self.replaced):
            if 0 <= at < until:
                until = at
        return max(start, until)


@attrs.define(slots=True, eq=False)
class DelegationOverride(KeptRecord):
    """What the operator had an issuer delegate, whatever its settings say: ``id`` is the chain. ``units`` and ``until``
    are those of the settings where they are 0 and -1; ``site`` is empty where any will do. What was until another
    instant by an earlier override is to last ``anew`` for as long as the settings say.
    """

    id: str
    peer: str
    type: str
    units: int
    until: Instant
    site: str = ""
    anew: bool = False

    table: ClassVar[str] = "overrides"


@attrs.define(slots=True, eq=False)
class Notice(SentRecord):
    """A message that is due to ``peer`` until it accepts it, or until ``until`` when it is of no use any more.

    ``subject`` and ``number`` are those of the message, and of the ``Accepted`` that answers it.
    """

    id: str
    peer: str
    subject: str
    number: int
    until: Instant
    message: bytes
    state: str = "due"

    table: ClassVar[str] = "notices"

    def content(self) -> Message:
        """The message itself."""
        message = decode_message(self.message)
        assert not isinstance(message, UnknownKind), "what is kept was encoded here"
        return message


@attrs.define(slots=True, eq=False)
class Report(KeptRecord):
    """That somebody gave away more than it had, or was allowed to: found by a site, or heard from one (``peer``).

    ``subject`` is the claim or evidence that it is about, ``reason`` says what it is, and who did what and when.
    """

    id: str
    at: Instant
    peer: str
    subject: str
    reason: Reason

    table: ClassVar[str] = "reports"
    columns: ClassVar = {"code": "reason.code"}


@attrs.define(slots=True, eq=False)
class PeerRecord(KeptRecord):
    """A peer that the deploy file does not name: made known by the operator, or introduced by a broker (``origin``).
    ``used`` is when one that a broker introduced is last of use: introduced, connected, or at the end of a lease.
    """

    id: str
    role: str
    key: bytes
    address: str
    origin: str
    may: tuple[str, ...]
    open_requests: int
    priority_max: int
    removed: bool
    former: tuple[tuple[bytes, Instant], ...]
    used: Instant

    table: ClassVar[str] = "peers"
    columns: ClassVar = {"key": "key_hex"}

    @property
    def key_hex(self) -> str:
        """Its key, for people."""
        return self.key.hex()


@attrs.define(slots=True, eq=False)
class Window(KeptRecord):
    """A maintenance window of a site: ``units`` are out of service over ``[start, end)``; with ``close`` leases are
    ended for it. ``begun``: they have been taken out. One without an end is open: its units are drained.
    """

    id: str
    start: Instant
    end: Instant
    units: tuple[str, ...]
    reason: str
    close: bool
    begun: bool = False

    table: ClassVar[str] = "maintenance"

    @property
    def is_open(self) -> bool:
        """Whether it goes on until it is removed."""
        return self.end == INSTANT_MAX


def out_for(window: str, end: Instant, why: str) -> Reason:
    """Why units are out of service over a window, which may have no end."""
    if end == INSTANT_MAX:
        return Reason(Code.DRAINED, window, detail=why)
    return Reason(Code.MAINTENANCE, window, until=end, detail=why)


@attrs.define(slots=True, eq=False)
class UnitChange(KeptRecord):
    """What an operator has said of a unit of a site, whatever its settings say: that it is ``gone``, or that it is of
    this type and has these attributes of its ``own``.
    """

    id: str
    type: str
    own: Properties = EMPTY
    gone: bool = False

    table: ClassVar[str] = "unit_changes"


@attrs.define(slots=True, eq=False)
class HostKind(KeptRecord):
    """What hosts of a class have, or had: ``id`` is the class in hex. It is kept as long as hosts count as of it,
    whatever they have by now.
    """

    id: str
    type: str
    attributes: Properties

    table: ClassVar[str] = "host_kinds"


@attrs.define(slots=True, eq=False)
class Incident(KeptRecord):
    """Evidence that a site holds: who did what, when it was found, and the file that proves it. ``root`` is the key, in
    hex, to whom the site itself gave what it is about.
    """

    id: str
    at: Instant
    kind: str
    guilty: str
    words: str
    body: bytes
    root: str = ""

    table: ClassVar[str] = "evidence"
