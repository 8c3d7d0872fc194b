"""What of actors, messages and actions matters when two joint states are compared.

Everything that can influence what happens next is read into *atoms*: plain values, and marked ones whose size means
nothing by itself, which :mod:`leasekit_simulation.explore.canonical` counts relative to each other.

Texts that are for people (reasons), counters, and what is derived from records are left out; fields that a record does
not use in the state it is in, too. An attribute that is not known here is taken as it is: a new one makes too many
states, not too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
from msgspec import Struct

from leasekit.actors.kernel import kept_by
from leasekit.actors.served import acknowledge
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.leases.records import (
    BrokerLease,
    GuestLease,
    KeptRecord,
    Notice,
    Return,
    SiteClaim,
    SiteLease,
    SiteUnit,
)
from leasekit.core.protocol.messages import Ack, LeaseUpdate, Message, TicketUpdate
from leasekit.core.settings import written_types
from leasekit.core.steps import Action
from leasekit.core.time import Instant
from leasekit.core.timetable import ClassedTimetable

TIME, NUMBER, UPDATE, ACTION, DIGEST = "time", "number", "update", "action", "digest"

Mark: TypeAlias = tuple[str, Any, Any]
"""A value whose size means nothing by itself: its kind, its scope (a lease, a server, an actor), and the value."""

_IGNORED: Final[Mapping[str, frozenset[str]]] = {
    "GuestLease": frozenset({
        "name", "slice", "type", "broker", "reason", "site",
    }),
    "Ending": frozenset({"reason"}),
    "Given": frozenset({"contract"}),
    "Heard": frozenset({"key"}),
    "HeldTickets": frozenset({"resource"}),
    "Waits": frozenset({"ask_tries", "op_tries", "busy"}),
    "GuestUnit": frozenset({"id", "lease", "type", "reason", "timer"}),
    "Return": frozenset({"site", "broker", "reason", "tries", "lease"}),
    "BrokerLease": frozenset({
        "holder", "slice", "type", "reason", "tries", "defer_reason", "group", "ended",
    }),
    "WaitsForMapper": frozenset({"arrived"}),
    "Granted": frozenset({"source", "key", "serial"}),
    "SiteLease": frozenset({
        "holder", "slice", "type", "reason", "tries", "resource", "root", "origin", "notice", "ended",
    }),
    "SiteUnit": frozenset({"type", "reason", "pending", "setup"}),
    "SiteClaim": frozenset({"parent", "issuer", "holder", "type", "body", "signature"}),
    "ClaimReport": frozenset({"reason"}),
    "TicketUpdate": frozenset({"reason", "site", "properties", "earliest"}),
    "LeaseUpdate": frozenset({"reason"}),
    "UnitState": frozenset({"reason"}),
    "RequestTicket": frozenset({"slice", "type"}),
    "Redeem": frozenset({"slice", "resource"}),
    "Relinquished": frozenset({"reason"}),
    "Asked": frozenset({"site"}),
    "Held": frozenset({"ticket"}),
    "Action": frozenset({"properties", "type"}),
}  # fmt: skip
"""Fields that nothing depends on: texts, what never differs here, what is derived from other fields, and the number of
the setup that a unit is up from, which is only held against what probes say: there are none here.
"""


class Scope(NamedTuple):
    """What the numbers in a record or message belong to."""

    lease: str
    server: str
    now: Instant = 0


_NO_SCOPE: Final = Scope("", "")

Reader: TypeAlias = Callable[[Any, Scope, list[Any]], None]
RecordReader: TypeAlias = Callable[[Any, Any, list[Any]], bool]
"""Reads a record of an actor; whether it means that something of a lease is kept."""


# -- reading values ------------------------------------------------------------------------------------------------


def _plain(value: Any, scope: Scope, out: list[Any]) -> None:
    if value is None or isinstance(value, (str, int)):
        out.append(value)
    elif isinstance(value, bytes):
        out.append((DIGEST, "", value))
    elif isinstance(value, KeptRecord):
        record: Any = value
        _reader(type(record), "id")(record.id, scope, out)  # it is read where it is kept
    elif isinstance(value, ClassedTimetable):
        _read_table(value, scope, out)
    elif isinstance(value, ClaimTree):
        out.append(len(value))
        _plain([(digest, at) for (digest, _), at in value._early.items()], scope, out)
    elif isinstance(value, Mapping):
        out.append(len(value))
        for key, item in value.items():
            _plain(key, scope, out)
            _plain(item, scope, out)
    elif not isinstance(value, type) and (
        isinstance(value, Struct) or hasattr(value, "_fields") or attrs.has(type(value))
    ):
        _record(value, scope, out)
    elif isinstance(value, Sequence):
        out.append(len(value))
        for item in value:
            _plain(item, scope, out)
    elif isinstance(value, (set, frozenset)):
        _plain(sorted(value), scope, out)
    elif callable(value):
        out.append(value.__qualname__)  # wiring: which function it is, is all there is to it
    else:
        raise TypeError(f"{type(value).__name__} is nothing that can be compared: say how in {__name__}")


def _time(value: Instant | None, scope: Scope, out: list[Any]) -> None:
    out.append(value if value is None or value <= 0 else (TIME, "", value))


def _term(value: tuple[Instant, Instant] | None, scope: Scope, out: list[Any]) -> None:
    if value is None:
        out.append(None)
    else:
        out.append((TIME, "", value[0]))
        out.append((TIME, "", value[1]))


def _number(value: int, scope: Scope, out: list[Any]) -> None:
    out.append((NUMBER, scope.lease, value) if value > 0 else value)


def _update(server: str) -> Reader:
    def read(value: int, scope: Scope, out: list[Any]) -> None:
        out.append((UPDATE, (scope.lease, server or scope.server), value))

    return read


def _action(value: int, scope: Scope, out: list[Any]) -> None:
    out.append((ACTION, scope.server, value) if value else 0)


def _digest(value: bytes | str, scope: Scope, out: list[Any]) -> None:
    """In bytes, or in hex."""
    out.append((DIGEST, "", bytes.fromhex(value) if isinstance(value, str) else value) if value else "")


def _ticket(value: bytes, scope: Scope, out: list[Any]) -> None:
    if not value:
        out.append("")
        return
    digest, units, start, end = _leaf(value)
    out += ((DIGEST, "", digest), units, (TIME, "", start), (TIME, "", end))


@lru_cache(maxsize=4096)
def _leaf(ticket: bytes) -> tuple[bytes, int, Instant, Instant]:
    leaf = decode_ticket(ticket).leaf
    return leaf.digest, leaf.units, leaf.term.start, leaf.term.end


def _statement(value: bytes, scope: Scope, out: list[Any]) -> None:
    if not value:
        out.append("")
        return
    kind, subject, at = _said(value)
    out += (kind, (DIGEST, "", subject), (TIME, "", at))


@lru_cache(maxsize=4096)
def _said(statement: bytes) -> tuple[str, bytes, Instant]:
    said = decode_statement(statement)
    return said.kind, said.subject, said.at


def _truth(value: Any, scope: Scope, out: list[Any]) -> None:
    out.append(bool(value))


_BY_NAME: Final[Mapping[str, Reader]] = {
    "ticket": _ticket, "contract": _statement, "receipt": _statement, "truncation": _statement,
    "relinquishment": _statement, "digest": _digest, "claim": _digest, "number": _number, "ask": _number,
    "settles": _number, "request": _number, "update": _update(""),
    "action": _action, "retire": _truth,
    "reason": _truth,
}  # fmt: skip
_BY_TYPE: Final[Mapping[str, Reader]] = {
    "Instant": _time, "Instant | None": _time, "At": _time, "AtOrUnknown": _time,
    "Term": _term, "Term | None": _term, "WireTerm": _term,
}  # fmt: skip


@cache
def _fields(kind: Any) -> tuple[tuple[str, Reader], ...]:
    """How to read each field of a record or message that is not ignored."""
    records = attrs.has(kind)
    hints = {field.name: field.type for field in attrs.fields(kind)} if records else written_types(kind)
    ignored = _IGNORED.get(kind.__name__, frozenset())
    fields = []
    for name, hint in hints.items():
        if name not in ignored:
            text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", getattr(hint, "__name__", ""))
            fields.append((name, _reader(kind, name, text)))
    return tuple(fields)


def _reader(kind: Any, name: str, text: str = "") -> Reader:
    return _SPECIAL.get((kind.__name__, name)) or _BY_NAME.get(name) or _BY_TYPE.get(text, _plain)


def _skip(value: Any, scope: Scope, out: list[Any]) -> None:
    """Nothing here depends on it: as on a number that an answer repeats, and that nothing is compared with."""


def _lease(value: str, scope: Scope, out: list[Any]) -> None:
    """What an answer is about: a lease, or a claim's digest in hex."""
    (_digest if len(value) == 64 else _plain)(value, scope, out)


def _update_number(value: int, scope: Scope, out: list[Any]) -> None:
    out.append((UPDATE, (scope.lease, scope.server), value))


_SPECIAL: Final[Mapping[tuple[str, str], Reader]] = {
    ("GuestLease", "ask"): _plain,
    ("Heard", "broker"): _update("broker"),
    ("Heard", "site"): _update("site"),
    ("Origin", "number"): _plain,
    ("Origin", "ticket"): _digest,
    ("Return", "id"): _digest,
    ("SiteClaim", "id"): _digest,
    ("SiteClaim", "lease"): _truth,
    ("Held", "extends"): _number,
    ("Update", "number"): _update_number,
    ("Action", "number"): _action,
    ("ClaimReport", "number"): _skip,
    ("Truncated", "number"): _skip,
    ("Accepted", "lease"): _lease,
    ("Truncated", "lease"): _lease,
}


_ACKNOWLEDGED: Final[dict[bytes, TicketUpdate | LeaseUpdate]] = {}
"""An update that an acknowledgement may mean, by what that says of it."""


def _record(record: Any, scope: Scope, out: list[Any], unused: frozenset[str] = frozenset()) -> None:
    """``unused`` are fields, and with a dot those of what is in a field."""
    kind: Any = type(record)
    for name, read in _fields(kind):
        value = getattr(record, name)
        if name in unused:
            continue
        within = frozenset(one.partition(".")[2] for one in unused if one.startswith(f"{name}."))
        if within:
            _record(value, scope, out, within)
        else:
            read(value, scope, out)
    if isinstance(record, (TicketUpdate, LeaseUpdate)):
        signed = acknowledge(record).signed
        _ACKNOWLEDGED[signed] = record
        out.append((DIGEST, "", signed))  # whether it is what an acknowledgement means
    elif isinstance(record, Ack) and (meant := _ACKNOWLEDGED.get(record.signed)) is not None:
        # A server that forgot may say the very same again at the same instant: then it means that, too.
        read_signed, signed = (
            (_ticket, meant.ticket) if isinstance(meant, TicketUpdate) else (_statement, meant.contract)
        )
        read_signed(signed, scope, out)


# -- actors --------------------------------------------------------------------------------------------------------

_OVER_GUEST: Final = frozenset({
    "asked", "ask", "operation", "change", "given", "configuration", "ending.closing", "ending.at", "ended", "waits",
    "join", "origin.after", "origin.number", "origin.ticket",
})  # fmt: skip
_OVER_BROKER: Final = frozenset({"asked", "waits.deadline", "send_at"})
_OVER_SITE: Final = frozenset({
    "term", "wanted", "properties", "units", "settles", "next", "after", "waiting", "preemptible", "send_at", "receipt",
    "replaced",
})  # fmt: skip


def _unused_guest(lease: GuestLease) -> frozenset[str]:
    """Fields that the lease does not look at in its state."""
    if lease.ended >= 0:
        return _OVER_GUEST
    unused = {"ended"}
    if not lease.ask.number:
        unused |= {"waits.ask_at", "ask.accepted"}
    if not lease.ask.number and lease.state != "nascent":
        unused |= {"ask.deadline"}
    if not lease.operation.number:  # whether the last one was accepted counts still: the site may go on by it
        unused |= {"waits.op_at", "operation.op", "operation.number", "operation.configuration", "operation.since"}
    if lease.waits.hold_until == 0:
        unused |= {"waits.hold_until"}
    return frozenset(unused)


def _unused_broker(lease: BrokerLease) -> frozenset[str]:
    unused = set(_OVER_BROKER) if lease.ended >= 0 else set()
    if not lease.unacked:
        unused |= {"send_at"}
    elif lease.ended >= 0:
        unused -= {"send_at"}
    if not lease.waits.number:
        unused |= {"asked", "waits.deadline"}
    return frozenset(unused)


def _unused_site(lease: SiteLease) -> frozenset[str]:
    unused = set(_OVER_SITE) if lease.ended >= 0 else set()
    if not lease.unacked:
        unused |= {"send_at"}
    elif lease.ended >= 0:
        unused -= {"send_at"}
    if lease.ended < 0 and lease.pending == "closing":
        unused |= {"wanted", "properties", "next", "after", "waiting", "preemptible"}
    return frozenset(unused)


def read_actor(actor: Any, parts: Iterable[Any]) -> tuple[Piece, bool]:
    """What an actor holds, by what its parts declare: their records, and what else the next step depends on; and
    whether it keeps anything of a lease.
    """
    out: list[Any] = []
    scope = Scope("", actor.name, actor.now)
    busy = False
    for part in parts:
        rows, volatile, _ = kept_by(part)
        for name in rows:
            held = getattr(part, name)
            for record in held.values() if isinstance(held, dict) else ():
                if isinstance(record, KeptRecord):
                    read: RecordReader = _RECORDS.get(type(record), _read_other)
                    busy |= read(actor, record, out)
            out.append(name)
        for name in volatile:
            held = getattr(part, name)
            out.append(name)
            read_held: Reader = _VOLATILE.get((type(part).__name__, name), _plain)
            read_held(held, scope, out)
            for table in held.values() if name == "_tables" else ():
                busy |= bool(table.reserved_at(actor.now))
    _read_unacknowledged(actor.kernel, out)
    return make_piece(out), busy


def _read_ties(timers: Iterable[Any], scope: Scope, out: list[Any]) -> None:
    """Timers that run out at the same instant do so in the order in which they were set."""
    for one, two in pairwise(sorted(timers, key=itemgetter(0, 1))):
        if one[0] == two[0] and one[2] is not two[2]:
            for record in (one[2], two[2]):
                out.append(type(record).__name__)
                _plain(record, scope, out)


def _read_unacknowledged(kernel: Any, out: list[Any]) -> None:
    for peer, records in kernel.unacknowledged.items():
        out.append(peer)
        for record in records.values():
            # Who has acknowledged all keeps its place in the order for what comes later.
            _plain(record, _NO_SCOPE, out)
            out.append(kernel.awaits(record, peer))


_VOLATILE: Final[Mapping[tuple[str, str], Reader]] = {
    ("MapperTurns", "wake"): _time,
    ("Kernel", "timers"): _read_ties,
    ("Kernel", "unacknowledged"): _skip,  # read at the end, with whether it still is
    ("Peering", "_linked"): _skip,  # is asked only about peers that brokers have introduced: there are none
    ("BrokerTurns", "_last"): _skip,  # of the mapper's kinds of turns there is one here
}
"""How a part's attribute is read that is more than it looks like, or is of no use here."""


def _read_guest_lease(guest: Any, lease: GuestLease, out: list[Any]) -> bool:
    out.append(lease.id)
    _record(lease, Scope(lease.id, guest.name), out, _unused_guest(lease))
    # Its waits may count from the end of a term that is past.
    _time(guest.limits.of(lease) if lease.ended < 0 else None, _NO_SCOPE, out)
    return True


def _read_return(guest: Any, giving: Return, out: list[Any]) -> bool:
    out.append(giving.lease)
    _record(giving, Scope(giving.lease, guest.name), out)
    return True


def _read_served(server: Any, lease: BrokerLease | SiteLease, out: list[Any]) -> bool:
    unused = _unused_broker(lease) if isinstance(lease, BrokerLease) else _unused_site(lease)
    _record(lease, Scope(lease.id, server.name), out, unused)
    # When a lease ended says when it is forgotten, which is yet to come.
    _time(server.served.drop_at(lease) if lease.ended >= 0 else None, _NO_SCOPE, out)
    return True


def _read_unit(site: Any, unit: SiteUnit, out: list[Any]) -> bool:
    _record(unit, Scope("", site.name), out)
    return unit.state not in ("free", "out")


def _read_claim(site: Any, claim: SiteClaim, out: list[Any]) -> bool:
    out.append(claim.lease)
    _record(claim, Scope(claim.lease, site.name), out)
    return False


def _read_notice(server: Any, notice: Notice, out: list[Any]) -> bool:
    out += [notice.id.partition(":")[0], notice.peer, notice.state]
    for at in (notice.until, notice.send_at, notice.timer):
        _time(at, _NO_SCOPE, out)
    _record(notice.content(), Scope("", server.name), out)
    return False


def _read_other(actor: Any, record: KeptRecord, out: list[Any]) -> bool:
    _record(record, Scope("", actor.name), out)
    return False


_RECORDS: Final[Mapping[type, RecordReader]] = {
    GuestLease: _read_guest_lease,
    Return: _read_return,
    BrokerLease: _read_served,
    SiteLease: _read_served,
    SiteUnit: _read_unit,
    SiteClaim: _read_claim,
    Notice: _read_notice,
}
"""How records are read of which a part is relative, and whether one means that something of a lease is kept."""


def _read_table(table: ClassedTimetable, scope: Scope, out: list[Any]) -> None:
    held = []
    for key in table:
        booked = table.get(key)
        if booked is not None and booked[1].end > scope.now:
            held.append((max(booked[1].start, scope.now), booked[1].end, booked[0], key))
    for start, end, units, key in sorted(held):
        out += ((TIME, "", start), (TIME, "", end), units)
        if isinstance(key, bytes):  # other keys are a broker's own: which claim has which, its records say
            out.append((DIGEST, "", key))
    out.append(table.capacity_at(scope.now))


# -- what is under way ---------------------------------------------------------------------------------------------


def read_parcel(sender: str, receiver: str, messages: Sequence[Message]) -> Piece:
    """Messages on their way. Which lease's come first within a parcel is an accident of which timer was set first."""
    out: list[Any] = [sender, receiver]
    for message in by_lease(messages):
        lease = getattr(message, "lease", "")
        server = sender if isinstance(message, TicketUpdate | LeaseUpdate) else receiver
        out += [type(message).__name__, lease]
        _record(message, Scope(lease, server), out)
    return make_piece(out)


def by_lease(messages: Sequence[Message]) -> list[Message]:
    """The messages of a parcel, those of one lease in their order."""
    return sorted(messages, key=_lease_of)


def _lease_of(message: Message) -> str:
    lease: str = getattr(message, "lease", "")
    return lease


def read_action(actor: str, action: Action, slow: bool) -> Piece:
    """An action that is being done."""
    return make_piece([actor, action.op, action.unit, action.lease, (ACTION, actor, action.number), slow])


# -- pieces ------------------------------------------------------------------------------------------------------


@attrs.frozen(slots=True, eq=False)
class Piece:
    """Part of a joint state: what is plain in it, and its marked values in their order: instants, digests, numbers."""

    plain: bytes
    times: tuple[Instant, ...]
    digests: tuple[bytes, ...]
    numbers: tuple[Mark, ...]


def make_piece(atoms: Iterable[Any]) -> Piece:
    """Sort atoms by how they are counted."""
    plain: list[Any] = []
    times: list[Instant] = []
    digests: list[bytes] = []
    numbers: list[Mark] = []
    for atom in atoms:
        if type(atom) is not tuple:
            plain.append(atom)
            continue
        kind = atom[0]
        plain.append((kind, atom[1]))
        if kind == TIME:
            times.append(atom[2])
        elif kind == DIGEST:
            digests.append(atom[2])
        else:
            numbers.append(atom)
    return Piece(repr(plain).encode(), tuple(times), tuple(digests), tuple(numbers))
