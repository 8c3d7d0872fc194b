"""The records that the actors keep, one class per table and role, and how each becomes a row.

A record is everything that must survive a crash, and a few transient fields (timers and how often a message was sent)
that need not: after a restart all that is due is due at once. The ``body`` of a row is a msgpack array of the
persistent fields that its columns do not hold, as ``row`` writes them and ``from_row`` reads them: a change of either
is a new version of the schema, and needs a migration (:mod:`leasekit.stores.migrations`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Self

import attrs
import msgpack
import msgspec

from leasekit.core.leases import authority as site
from leasekit.core.leases import returns
from leasekit.core.leases import service_manager as guest
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.power import ON
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.messages import EXTEND, UNDO, LeaseUpdate, TicketUpdate
from leasekit.core.schema import Row
from leasekit.core.time import Duration, Instant, Term

pack_body: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode


def unpack_body(body: bytes) -> tuple[Any, ...]:
    """The fields that were packed."""
    fields: tuple[Any, ...] = msgpack.unpackb(body, use_list=False, strict_map_key=False)
    return fields


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


def _held(value: Any) -> Held | None:
    return None if value is None else Held._make(value)._replace(term=Term(*value[3]))


def _asked(value: Any) -> Asked:
    return Asked._make(value)._replace(term=Term(*value[2]))


@attrs.define(slots=True, eq=False)
class GuestUnit:
    """One unit of a guest's lease. ``state``: ``waiting``, ``joining``, ``joined``, ``leaving``, ``left`` or
    ``failed``.
    """

    id: str
    lease: str
    name: str
    type: str
    state: str = "waiting"
    action: int = 0
    properties: Properties = EMPTY
    reason: str = ""
    timer: Instant | None = None

    table: ClassVar[str] = "units"

    def row(self) -> Row:
        return (
            self.id,
            self.lease,
            self.type,
            self.state,
            self.action,
            self.reason,
            pack_body((self.name, self.properties)),
        )

    @classmethod
    def from_row(cls, row: Row) -> Self:
        id_, lease, type_, state, action, reason, body = row
        name, properties = unpack_body(body)
        return cls(id_, lease, name, type_, state, action, properties, reason)


@attrs.define(slots=True, eq=False)
class GuestLease:
    """The service manager's record of a lease (:mod:`.service_manager`).

    Three slots never overwrite each other: ``asked`` (requested), ``approved`` with ``further`` (tickets in hand), and
    ``granted`` (what the site gave). ``ask`` numbers the request that the broker owes an answer to, ``op_number`` the
    site's (``op`` says what kind), 0 for none; ``number`` is the last one used. ``key_tried`` is the slice's key that
    its site was last told. ``op_configuration`` and ``op_since`` (when it was first sent) are what the site's request
    says as often as it is sent, whatever becomes of the lease meanwhile: one number stands for one content.
    ``renewal`` is the ticket that the site was asked to go on by; ``further`` are those in hand that go on from the
    running term, one after the other: each becomes the renewal when its time comes.
    ``suspends``: its site has said that it is suspended; ``resumes`` is the suspended lease that it goes on from, which
    ended at ``resumes_from``. ``first_asked`` is kept of a lease that can be suspended: its rest asks likewise.
    ``began`` is the number of its first request, and the digest of the ticket that answered it. ``before`` is the
    digest of the ticket before ``approved``, if its site was asked to go on before it said that it goes by that.
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
    join: str = guest.NOT_JOINED
    reason: str = ""
    number: int = 0
    ask: int = 0
    ask_accepted: bool = False
    ask_deadline: Instant = 0
    op: str = ""
    op_number: int = 0
    op_accepted: bool = False
    broker_seen: int = 0
    site_seen: int = 0
    approved: Held | None = None
    renewal: Held | None = None
    truncation: bytes = b""
    granted: Term | None = None
    contract: bytes = b""
    configuration: Properties = EMPTY
    next_configuration: Properties | None = None
    resource: Properties = EMPTY
    victims: tuple[str, ...] = ()
    redeem_predecessor: str = ""
    join_predecessor: str = ""
    proceed: bool = False
    closing: bool = False
    close_reason: str = ""
    noticed: Instant = -1
    ended: Instant = -1
    key_tried: str = ""
    op_configuration: Properties | None = None
    op_since: Instant = 0
    further: tuple[Held, ...] = ()
    suspends: bool = False
    resumes: str = ""
    resumes_from: Instant = -1
    first_asked: Asked | None = None
    began: tuple[int, bytes] = (0, b"")
    before: bytes = b""

    units: dict[str, GuestUnit] = attrs.Factory(dict)
    timer: Instant | None = None
    busy: int = 0
    ask_at: Instant = 0
    ask_tries: int = 0
    op_at: Instant = 0
    op_tries: int = 0
    hold_until: Instant = 0

    table: ClassVar[str] = "leases"

    @property
    def end(self) -> Instant:
        """When the lease ends as far as the site has promised, milliseconds."""
        if self.granted is not None:
            return self.granted.end
        return self.approved.term.end if self.approved is not None else self.asked.term.end

    @property
    def following(self) -> tuple[Held, ...]:
        """The tickets that go on from the one that the lease runs on: one that is being redeemed, those in hand."""
        redeemed = self.renewal if self.op in (EXTEND, UNDO) else None
        return self.further if redeemed is None else (redeemed, *self.further)

    @property
    def is_promised(self) -> bool:
        """Whether its site goes on by the first of the following tickets, whatever else it is asked before."""
        first = self.following[0] if self.following else None
        return first is not None and (first.promised or (first is self.renewal and self.op_accepted))

    @property
    def leaving(self) -> tuple[str, ...]:
        """The units that go by what its site was asked last."""
        redeemed = self.renewal if self.op in (EXTEND, UNDO) else None
        return self.victims if redeemed is None else redeemed.victims

    def row(self) -> Row:
        term = self.granted or (self.approved.term if self.approved is not None else self.asked.term)
        units = self.approved.units if self.approved is not None else self.asked.units
        live = 0 if self.ended >= 0 and self.state in (guest.CLOSED, guest.FAILED) else 1
        return (
            self.id, live, self.slice, self.site or self.broker, self.type, self.state, self.pending, units,
            term.start, term.end, self.reason, max(self.ended, 0), pack_body(_GUEST_FIELDS(self)),
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Self:
        lease = cls(**dict(zip(_GUEST_NAMES, unpack_body(row[-1]), strict=True)))
        lease.asked = _asked(lease.asked)
        lease.approved, lease.renewal = _held(lease.approved), _held(lease.renewal)
        lease.further = tuple(one for one in map(_held, lease.further) if one is not None)
        lease.first_asked = None if lease.first_asked is None else _asked(lease.first_asked)
        lease.granted = Term(*lease.granted) if lease.granted is not None else None
        return lease


_GUEST_NAMES = tuple(field.name for field in attrs.fields(GuestLease))
_GUEST_NAMES = _GUEST_NAMES[: _GUEST_NAMES.index("units")]
_GUEST_FIELDS = attrgetter(*_GUEST_NAMES)


@attrs.define(slots=True, eq=False)
class Slice:
    """A group of a guest's leases. With ``hold`` its redeems wait until that many tickets have arrived, all or none.

    ``key`` is what its users log in to units with (OpenSSH public keys, a line each); it may change at any time.
    """

    id: str
    hold: int = 0
    released: bool = True
    refused: str = ""
    live: bool = True
    key: str = ""
    timer: Instant | None = None

    table: ClassVar[str] = "slices"

    def row(self) -> Row:
        return (self.id, self.id, int(self.live), pack_body((self.hold, self.released, self.refused, self.key)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        hold, released, refused, key = unpack_body(row[-1])
        return cls(row[0], hold, released, refused, bool(row[2]), key)


@attrs.define(slots=True, eq=False)
class Return:
    """A claim on its way back (:mod:`.returns`)."""

    id: str
    lease: str
    site: str
    broker: str
    held: Held
    number: int
    at: Instant
    state: str = returns.RELINQUISHING
    pending: str = NONE
    reason: str = ""
    receipt: bytes = b""
    timer: Instant | None = None
    send_at: Instant = 0
    tries: int = 0

    table: ClassVar[str] = "returns"

    def row(self) -> Row:
        body = (self.site, self.broker, self.held, self.number, self.at, self.receipt)
        return (self.id, self.lease, self.state, pack_body(body))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        site_, broker_, held, number, at, receipt = unpack_body(row[-1])
        taken = _held(held)
        assert taken is not None, "a return always has a ticket"
        return cls(row[0], row[1], site_, broker_, taken, number, at, row[2], receipt=receipt)


class Update(NamedTuple):
    """A numbered update that a server owes its client until it is acknowledged."""

    number: int
    message: TicketUpdate | LeaseUpdate


def _pack_updates(unacked: list[Update]) -> list[bytes]:
    return [encode_message(update.message) for update in unacked]


def _unpack_updates(packed: Any) -> list[Update]:
    updates = []
    for data in packed:
        message = decode_message(data)
        assert isinstance(message, TicketUpdate | LeaseUpdate), "only updates are kept"
        updates.append(Update(message.update, message))
    return updates


class Granted(NamedTuple):
    """A claim that a broker cut for a lease: ``until`` is where it really ends (its term's end, unless truncated or
    returned). ``held``: a modify has cut it off, and the site has not confirmed that yet. ``serial`` is the claim's.
    ``saving``: the lease is suspended at its end, and saved in so many milliseconds before. ``replaces`` is the digest,
    in hex, of the claim that a modify replaced by it.
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

    @property
    def booked_until(self) -> Instant:
        """When nothing of it is booked any more. What a modify cut off is booked as long as that may be undone."""
        return max(self.until, self.term.end) if self.held else self.until


@attrs.define(slots=True, eq=False)
class BrokerLease:
    """The broker's record of a lease (:mod:`.broker`). ``request`` is the number that waits for the mapper,
    ``number`` the last seen, ``cut`` when it was preempted to end (-1: it wasn't), ``key`` that of the holder when it
    first asked. ``suspend`` is how long it takes to save it (0: it can't be), ``suspended`` whether it is
    suspended, and nobody has asked for its rest yet.
    """

    id: str
    holder: str
    slice: str
    type: str
    state: str
    pending: str
    asked: Asked
    number: int
    request: int
    arrived: Instant
    deadline: Instant
    reason: str = ""
    claims: tuple[Granted, ...] = ()
    update: int = 0
    unacked: list[Update] = attrs.Factory(list)
    group: str = ""
    ended: Instant = -1
    cut: Instant = -1
    key: bytes = b""
    suspend: Duration = 0
    suspended: bool = False

    timer: Instant | None = None
    send_at: Instant = 0
    tries: int = 0
    defer_reason: str = ""

    table: ClassVar[str] = "leases"

    def row(self) -> Row:
        term = Term(self.claims[0].term.start, self.claims[-1].until) if self.claims else self.asked.term
        units = self.claims[-1].units if self.claims else self.asked.units
        body = (
            self.asked, self.number, self.request, self.arrived, self.deadline, self.claims, self.update,
            _pack_updates(self.unacked), self.group, self.ended, self.cut, self.key, self.suspend, self.suspended,
        )  # fmt: skip
        return (
            self.id, int(self.is_live), self.slice, self.holder, self.type, self.state, self.pending, units, term.start,
            term.end, self.reason, max(self.ended, 0), pack_body(body),
        )  # fmt: skip

    @property
    def is_live(self) -> bool:
        """Whether anything depends on it still."""
        return self.ended < 0 or bool(self.unacked)

    @classmethod
    def from_row(cls, row: Row) -> Self:
        (
            asked, number, request, arrived, deadline, claims, update, unacked, group, ended, cut, key, suspend,
            suspended,
        ) = unpack_body(row[-1])  # fmt: skip
        granted = tuple(Granted._make(claim)._replace(term=Term(*claim[4])) for claim in claims)
        return cls(
            row[0], row[3], row[2], row[4], row[5], row[6], _asked(asked), number, request, arrived, deadline, row[10],
            granted, update, _unpack_updates(unacked), group, ended, cut, key, suspend, suspended,
        )  # fmt: skip


@attrs.define(slots=True, eq=False)
class SiteUnit:
    """One unit of a site's inventory. ``lease`` holds it now, ``promised`` gets it when its teardown has ended.

    ``given`` are the properties that its driver returned; ``failures`` counts failures in a row. ``setup`` is the
    number of the setup that it is up from (transient: 0 after a restart). ``power`` is whether it is on
    (:mod:`.power`), ``metered`` what the driver that switches it has said of it. ``left`` is the lease that could not
    be torn down there: what is left of it goes before the unit is in service again. ``changed``: its lease has other
    properties since its setup, or modify, began.
    """

    id: str
    type: str
    state: str = site.FREE
    pending: str = NONE
    lease: str = ""
    promised: str = ""
    action: int = 0
    given: Properties = EMPTY
    reason: str = ""
    failures: int = 0
    retire: str = ""
    timer: Instant | None = None
    index: int = 0
    setup: int = 0
    power: str = ON
    metered: Properties = EMPTY
    left: str = ""
    changed: bool = False

    table: ClassVar[str] = "units"

    def row(self) -> Row:
        body = pack_body(
            (
                self.promised, self.given, self.failures, self.retire, self.power, self.metered, self.left,
                self.changed,
            )
        )  # fmt: skip
        return (self.id, self.lease, self.type, self.state, self.action, self.reason, body)

    @classmethod
    def from_row(cls, row: Row) -> Self:
        id_, lease, type_, state, action, reason, body = row
        promised, given, failures, retire, power, metered, left, changed = unpack_body(body)
        return cls(
            id_, type_, state, NONE, lease, promised, action, given, reason, failures, retire, power=power,
            metered=metered, left=left, changed=changed,
        )  # fmt: skip


class Change(NamedTuple):
    """What a site has accepted for later: from ``term.start`` on the lease goes on with these (extend, or modify)."""

    op: str
    number: int
    claim: bytes
    units: int
    term: Term
    victims: tuple[str, ...]
    properties: Properties


def _change(value: Any) -> Change | None:
    return None if value is None else Change._make(value)._replace(term=Term(*value[4]))


@attrs.define(slots=True, eq=False)
class SiteLease:
    """The authority's record of a lease (:mod:`.authority`).

    ``wanted`` is how many units it is to have now; ``units`` those it has, in order; ``next`` what was accepted for
    later, ``after`` an extend that was accepted before, if that is a modify. ``settles`` is the request that the next
    update answers. ``origin`` is the digest of the root claim that it comes from, ``noticed`` when it is ended before
    its term (-1: it isn't). ``key`` is that of the holder when it redeemed. ``saves``: its units are saved when it ends
    by that notice. ``replaced`` is how many of its units were replaced in this term.
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
    reason: str = ""
    units: list[str] = attrs.Factory(list)
    settles: int = 0
    next: Change | None = None
    update: int = 0
    unacked: list[Update] = attrs.Factory(list)
    receipt: bytes = b""
    ended: Instant = -1
    root: bytes = b""
    preemptible: bool = False
    origin: bytes = b""
    noticed: Instant = -1
    notice: str = ""
    key: bytes = b""
    saves: bool = False
    replaced: int = 0
    after: Change | None = None

    timer: Instant | None = None
    send_at: Instant = 0
    tries: int = 0
    waiting: int = 0

    table: ClassVar[str] = "leases"

    @property
    def accepted(self) -> tuple[Change, ...]:
        """What was accepted for later, in its order."""
        return tuple(one for one in (self.next, self.after) if one is not None)

    @property
    def extension(self) -> Change | None:
        """The extend that was accepted."""
        return next((one for one in self.accepted if one.op == EXTEND), None)

    @property
    def goes_to(self) -> Instant:
        """When it ends, by all that was accepted."""
        return self.accepted[-1].term.end if self.accepted else self.term.end

    @property
    def is_live(self) -> bool:
        """Whether anything depends on it still: on a close without a lease, which has no type, that no redeem which it
        has overtaken is carried out.
        """
        return self.ended < 0 or bool(self.unacked) or not self.type

    def row(self) -> Row:
        body = (
            self.claim, self.term, self.wanted, self.number, self.resource, self.properties, self.units, self.settles,
            self.next, self.update, _pack_updates(self.unacked), self.receipt, self.ended, self.root,
            self.preemptible, self.origin, self.noticed, self.notice, self.key, self.saves, self.replaced,
            self.after,
        )  # fmt: skip
        return (
            self.id, int(self.is_live), self.slice, self.holder, self.type, self.state, self.pending, self.wanted,
            self.term.start, self.term.end, self.reason, max(self.ended, 0), pack_body(body),
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Self:
        (
            claim, term, wanted, number, resource, properties, units, settles, next_, update, unacked, receipt, ended,
            root, preemptible, origin, noticed, notice, key, saves, replaced, after,
        ) = unpack_body(row[-1])  # fmt: skip
        return cls(
            row[0], row[3], row[2], row[4], row[5], row[6], claim, Term(*term), wanted, number, resource, properties,
            row[10], list(units), settles, _change(next_), update, _unpack_updates(unacked), receipt, ended, root,
            preemptible, origin, noticed, notice, key, saves, replaced, _change(after),
        )  # fmt: skip


@attrs.define(slots=True, eq=False)
class SiteClaim:
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
    timer: Instant | None = None

    table: ClassVar[str] = "claims"

    def row(self) -> Row:
        return (
            self.id, int(self.live), self.parent, self.lease, self.issuer, self.holder, self.type, self.units,
            self.term.start, self.term.end, self.state,
            pack_body((self.at, self.body, self.signature, self.until, self.honoured, self.used, self.vouched)),
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Self:
        at, body, signature, until, honoured, used, vouched = unpack_body(row[-1])
        return cls(
            row[0], row[3], row[2], row[4], row[5], row[6], row[7], Term(row[8], row[9]), row[10], at, body,
            signature, bool(row[1]), until, honoured, used, vouched,
        )  # fmt: skip
