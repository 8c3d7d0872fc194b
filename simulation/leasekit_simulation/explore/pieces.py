"""What of actors, messages and actions matters when two joint states are compared.

Everything that can influence what happens next is read into *atoms*: plain values, and marked ones whose size means
nothing by itself, which :mod:`leasekit_simulation.explore.canonical` counts relative to each other.

Texts that are for people (reasons), counters, and what is derived from records are left out; fields that a record does
not use in the state it is in, too. An attribute that is not known here is taken as it is: a new one makes too many
states, not too few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
from msgspec import Struct

from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.leases.records import BrokerLease, GuestLease, SiteLease
from leasekit.core.protocol.messages import Ack, LeaseUpdate, Message, TicketUpdate, acknowledge
from leasekit.core.steps import Action
from leasekit.core.time import Instant

TIME, NUMBER, UPDATE, ACTION, DIGEST = "time", "number", "update", "action", "digest"

Mark: TypeAlias = tuple[str, Any, Any]
"""A value whose size means nothing by itself: its kind, its scope (a lease, a server, an actor), and the value."""

_IGNORED: Final[Mapping[str, frozenset[str]]] = {
    "GuestLease": frozenset({
        "name", "slice", "type", "broker", "reason", "close_reason", "contract", "resource", "ask_tries", "op_tries",
        "site", "busy", "key_tried",
    }),
    "GuestUnit": frozenset({"id", "lease", "type", "reason", "timer"}),
    "Return": frozenset({"site", "broker", "reason", "tries", "lease"}),
    "BrokerLease": frozenset({
        "holder", "slice", "type", "reason", "tries", "defer_reason", "arrived", "group", "ended",
    }),
    "Granted": frozenset({"source", "key", "serial"}),
    "SiteLease": frozenset({
        "holder", "slice", "type", "reason", "tries", "resource", "root", "origin", "notice", "ended",
    }),
    "SiteUnit": frozenset({"type", "reason", "index", "pending", "setup"}),
    "SiteClaim": frozenset({"parent", "issuer", "holder", "type", "body", "signature"}),
    "ClaimReport": frozenset({"reason"}),
    "TicketUpdate": frozenset({"reason", "site", "properties", "earliest"}),
    "LeaseUpdate": frozenset({"reason"}),
    "UnitState": frozenset({"reason"}),
    "RequestTicket": frozenset({"slice", "type"}),
    "Redeem": frozenset({"slice", "resource"}),
    "Relinquished": frozenset({"reason"}),
    "ErrorReply": frozenset({"text"}),
    "Asked": frozenset({"site"}),
    "Held": frozenset({"ticket"}),
    "Action": frozenset({"properties", "type"}),
}  # fmt: skip
"""Fields that nothing depends on: texts, what never differs here, what is derived from other fields, and the number of
the setup that a unit is up from, which is only held against what probes say: there are none here.
"""

_KEPT_OUT: Final = frozenset(
    {
        "_counted_claims", "_endings", "_inputs",
        "_tags",  "admission", "answers", "calls", "dispatch", "dry_runs", "holds",
        "introductions", "issued", "kernel", "keyring", "limits", "membership", "name", "notices", "peering",
        "planner", "records", "refusals", "reports", "served", "settings", "turning", "turns", "usage",
        # a guest's
        "_transitions", "topologies",
        # a broker's
        "cycles", "granted", "subdelegation",
        # a site's
        "_maintenance", "_times", "_unit_ends", "closes", "delegations", "incidents", "inventory", "outages",
        "saved",
    }
)  # fmt: skip
"""Attributes of actors that are empty between steps, derived from records, for people, or never change."""


class Scope(NamedTuple):
    """What the numbers in a record or message belong to."""

    lease: str
    server: str


_NO_SCOPE: Final = Scope("", "")

Reader: TypeAlias = Callable[[Any, Scope, list[Any]], None]


# -- reading values ------------------------------------------------------------------------------------------------


def _plain(value: Any, scope: Scope, out: list[Any]) -> None:
    if value is None or isinstance(value, (str, int)):
        out.append(value)
    elif isinstance(value, bytes):
        out.append((DIGEST, "", value))
    elif isinstance(value, Mapping):
        out.append(len(value))
        for key, item in value.items():
            _plain(key, scope, out)
            _plain(item, scope, out)
    elif not isinstance(value, type) and (
        isinstance(value, Struct) or hasattr(value, "_fields") or attrs.has(type(value))
    ):
        _record(value, scope, out)
    elif isinstance(value, (list, tuple, deque)):
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
    "broker_seen": _update("broker"), "site_seen": _update("site"), "action": _action, "retire": _truth,
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
    hints = {field.name: field.type for field in attrs.fields(kind)} if records else kind.__annotations__
    ignored = _IGNORED.get(kind.__name__, frozenset())
    fields = []
    for name, hint in hints.items():
        if name not in ignored:
            text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", getattr(hint, "__name__", ""))
            fields.append(
                (name, _SPECIAL.get((kind.__name__, name)) or _BY_NAME.get(name) or _BY_TYPE.get(text, _plain))
            )
    return tuple(fields)


def _skip(value: Any, scope: Scope, out: list[Any]) -> None:
    """A number that an answer repeats, and that nothing is compared with."""


def _lease(value: str, scope: Scope, out: list[Any]) -> None:
    """What an answer is about: a lease, or a claim's digest in hex."""
    (_digest if len(value) == 64 else _plain)(value, scope, out)


def _update_number(value: int, scope: Scope, out: list[Any]) -> None:
    out.append((UPDATE, (scope.lease, scope.server), value))


_SPECIAL: Final[Mapping[tuple[str, str], Reader]] = {
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
    kind: Any = type(record)
    for name, read in _fields(kind):
        if name not in unused:
            read(getattr(record, name), scope, out)
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
    "asked", "ask", "ask_accepted", "ask_deadline", "operation", "op_accepted", "truncation", "granted",
    "configuration", "next_configuration", "victims", "closing", "terminates_at", "ended", "ask_at", "op_at",
    "hold_until", "join", "after", "began",
})  # fmt: skip
_OVER_BROKER: Final = frozenset({"asked", "deadline", "send_at"})
_OVER_SITE: Final = frozenset({
    "term", "wanted", "properties", "units", "settles", "next", "after", "waiting", "preemptible", "send_at", "receipt",
    "replaced",
})  # fmt: skip


def _unused_guest(lease: GuestLease) -> frozenset[str]:
    """Fields that the lease does not look at in its state."""
    if lease.ended >= 0:
        return _OVER_GUEST
    unused = {"ended"}
    if not lease.ask:
        unused |= {"ask_at", "ask_accepted"}
    if not lease.ask and lease.state != "nascent":
        unused |= {"ask_deadline"}
    if not lease.operation.number:
        unused |= {"op_at", "op_accepted", "operation"}
    if lease.hold_until == 0:
        unused |= {"hold_until"}
    return frozenset(unused)


def _unused_broker(lease: BrokerLease) -> frozenset[str]:
    unused = set(_OVER_BROKER) if lease.ended >= 0 else set()
    if not lease.unacked:
        unused |= {"send_at"}
    elif lease.ended >= 0:
        unused -= {"send_at"}
    if not lease.request:
        unused |= {"asked", "deadline"}
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


def read_actor(actor: Any) -> tuple[Piece, bool]:
    """What an actor holds, and whether it keeps anything of a lease."""
    out: list[Any] = []
    busy = {"guest": _read_guest, "broker": _read_broker, "site": _read_site}[actor.name](actor, out)
    _read_ties(actor, out)
    for peer, records in actor.kernel.unacknowledged.items():
        out.append(peer)
        for record in records.values():
            # Who has acknowledged all keeps its place in the order for what comes later.
            _SPECIAL.get((type(record).__name__, "id"), _plain)(record.id, _NO_SCOPE, out)
            out.append(actor.kernel.awaits(record, peer))
    for name, value in actor.__dict__.items():
        if name not in _KEPT_OUT and name not in _READ[actor.name]:
            out.append(name)
            _plain(value, Scope("", actor.name), out)
    return make_piece(out), busy


def _read_ties(actor: Any, out: list[Any]) -> None:
    """Timers that run out at the same instant do so in the order in which they were set."""
    for one, two in pairwise(sorted(actor.kernel.timers, key=itemgetter(0, 1))):
        if one[0] == two[0] and one[2] is not two[2]:
            for record in (one[2], two[2]):
                kind = type(record).__name__
                out.append(kind)
                _SPECIAL.get((kind, "id"), _plain)(record.id, _NO_SCOPE, out)


_READ: Final[Mapping[str, frozenset[str]]] = {
    "guest": frozenset({"leases", "returns"}),
    "broker": frozenset({"leases", "book", "queue", "sources"}),
    "site": frozenset({
        "leases", "claims", "units", "calendars", "demands",
    }),
}  # fmt: skip
"""Attributes that the functions below read."""


def _read_guest(guest: Any, out: list[Any]) -> bool:
    for id_, lease in guest.leases.items():
        _record(lease, Scope(id_, "guest"), out, _unused_guest(lease))
        # Its waits may count from the end of a term that is past.
        _time(guest.limits.of(lease) if lease.ended < 0 else None, _NO_SCOPE, out)
    out.append("returns")
    for giving in guest.returns:
        out.append(giving.lease)
        _record(giving, Scope(giving.lease, "guest"), out)
    _time(guest.turns.wake, Scope("", ""), out)
    return bool(guest.leases or guest.returns)


def _read_broker(broker: Any, out: list[Any]) -> bool:
    for id_, lease in broker.leases.items():
        _record(lease, Scope(id_, "broker"), out, _unused_broker(lease))
        _read_end(broker, lease, out)
    _plain(broker.sources.refused_offers, Scope("", "broker"), out)
    out += ["pending", *broker.queue.leases]
    _read_relations(broker, out)
    _time(broker.turns.wake, Scope("", ""), out)
    booked = False
    for source in broker.book.describe(broker.now):
        booked |= source["free_now"] != source["units"]
        out.append(source["source"])
        # Keys are the broker's own; which claim has which, its records say.
        _read_table(broker.book.table(source["source"]), broker.now, out, keys=False)
    return bool(broker.leases or booked)


def _read_end(server: Any, lease: BrokerLease | SiteLease, out: list[Any]) -> None:
    """When a lease ended says when it is forgotten, which is yet to come."""
    _time(server.served.drop_at(lease) if lease.ended >= 0 else None, _NO_SCOPE, out)


def _read_relations(server: Any, out: list[Any]) -> None:
    """What a server has with its peers beside leases: what it delegated, and notices that are due."""
    out += [given.state for given in server.issued]
    for notice in server.notices:
        out += [notice.id.partition(":")[0], notice.peer, notice.state]
        for at in (notice.until, notice.send_at, notice.timer):
            _time(at, _NO_SCOPE, out)
        _record(notice.content(), Scope("", server.name), out)


def _read_table(table: Any, now: Instant, out: list[Any], *, keys: bool = True) -> None:
    held = []
    for key in table:
        units, term = table.get(key)
        if term.end > now:
            held.append((max(term.start, now), term.end, units, key))
    for start, end, units, key in sorted(held):
        out += ((TIME, "", start), (TIME, "", end), units)
        if keys:
            out.append((DIGEST, "", key))
    out.append(table.capacity_at(now))


def _read_site(site: Any, out: list[Any]) -> bool:
    for id_, lease in site.leases.items():
        _record(lease, Scope(id_, "site"), out, _unused_site(lease))
        _read_end(site, lease, out)
    out.append("units")
    for unit in site.units:
        _record(unit, Scope("", "site"), out)
    for type_ in site.inventory.types:
        out += [view.id for view in site.units.free(type_)]
        _read_table(site.calendars.of(type_), site.now, out)
    out.append("claims")
    for claim in site.claims.by_digest.values():
        out.append(claim.lease)
        _record(claim, Scope(claim.lease, "site"), out)
    out += [part for item in site.claims._unused.items() for part in item]
    out.append(len(site.claims.tree))
    for (digest, _), at in site.claims.tree._early.items():
        _digest(digest, _NO_SCOPE, out)
        _time(at, _NO_SCOPE, out)
    _read_relations(site, out)
    _plain(site.outages.by_lease, Scope("", "site"), out)
    _plain(site.closes.strays, Scope("", "site"), out)
    demands = site.demands
    out += [demands.is_news(), demands.alone, demands.stale, len(site.saved.units), len(site.incidents.evidence)]
    out += ["queue", *(part for item in site.demands.ops.items() for part in item)]
    out += [part for item in sorted(site.units.holding.items()) for part in item]
    _time(site.turns.wake, Scope("", ""), out)
    busy = any(unit.state not in ("free", "out") for unit in site.units)
    reserved = any(site.calendars.of(type_).reserved_at(site.now) for type_ in site.inventory.types)
    return bool(busy or site.leases or reserved or site.units.holding)


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
