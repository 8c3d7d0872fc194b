"""The records of what actors have with each other beside leases: delegations, notices, reports, peers, evidence.

As in :mod:`.records`, a row's ``body`` holds what its columns don't.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import attrs

from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import pack_body, unpack_body
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import UnknownKind, decode_message
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term


class Withheld(NamedTuple):
    """What a broker had better not grant of a delegation over the ``term`` of a maintenance window: ``units``, 0 once
    the window was taken back. ``number`` is that of the message that said so last.
    """

    window: str
    units: int
    term: Term
    reason: str
    number: int = 0


@attrs.define(slots=True, eq=False)
class Delegation:
    """A delegation as its giver or its taker keeps it (:mod:`.delegation`). ``peer`` is the other side.

    ``site`` names the site whose units they are, ``digest`` the claim (its leaf). A broker that gives has cut it from
    its own delegation ``source``; ``given`` tells the giver's record from the taker's. What is granted of one that
    was reclaimed ends by ``reclaimed``; leases that existed before are over by ``deadline``. From ``freed`` on its
    giver can grant the units anew: the site counts the claim as ended then. All three are -1 where there is none.
    ``withheld`` is what a taker had better not grant. A delegation that is renewed is several records, one for each
    stretch of time: ``line`` is the name of the first, empty in that one itself. From ``replaced`` on another claim of
    the line stands in its place (-1: none does); until ``beyond`` more of the line is in use than this has.
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
    pending: str = NONE
    reason: str = ""
    given: bool = False
    source: str = ""
    reclaimed: Instant = -1
    deadline: Instant = -1
    statement: bytes = b""
    withheld: tuple[Withheld, ...] = ()
    freed: Instant = -1
    line: str = ""
    replaced: Instant = -1
    beyond: Instant = -1
    timer: Instant | None = None
    send_at: Instant = 0
    tries: int = 0

    table: ClassVar[str] = "delegations"

    @property
    def base(self) -> str:
        """The name of the delegation that this is a stretch of."""
        return self.line or self.id

    @property
    def grants_until(self) -> Instant:
        """Until when new terms may go: to its end, or to the instant from which on it is taken back, or replaced."""
        start, end = self.term
        return max(start, min([end, *(at for at in (self.reclaimed, self.replaced) if at >= 0)]))

    def row(self) -> Row:
        body = (
            self.ticket, self.properties, self.number, self.site, self.digest, self.given, self.source,
            self.reclaimed, self.deadline, self.statement, self.withheld, self.freed, self.line,
            self.replaced, self.beyond,
        )  # fmt: skip
        return (
            self.id, self.peer, self.type, self.units, self.term.start, self.term.end, self.state, self.reason,
            pack_body(body),
        )  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Self:
        (
            ticket, properties, number, site_, digest, given, source, reclaimed, deadline, statement, withheld, freed,
            line, replaced, beyond,
        ) = unpack_body(row[-1])  # fmt: skip
        return cls(
            row[0], row[1], row[2], row[3], Term(row[4], row[5]), ticket, properties, number, site_, digest, row[6],
            NONE, row[7], given, source, reclaimed, deadline, statement,
            tuple(Withheld._make(one)._replace(term=Term(*one[2])) for one in withheld), freed, line, replaced, beyond,
        )  # fmt: skip


@attrs.define(slots=True, eq=False)
class Wish:
    """What the operator had a giver delegate, whatever its settings say: ``id`` is the line. ``units`` and ``until``
    are those of the settings where they are 0 and -1; ``site`` is empty where any will do. What was until another
    instant by an earlier wish is to last ``anew`` for as long as the settings say.
    """

    id: str
    peer: str
    type: str
    units: int
    until: Instant
    site: str = ""
    anew: bool = False
    timer: Instant | None = None

    table: ClassVar[str] = "wishes"

    def row(self) -> Row:
        return (self.id, self.peer, self.type, self.units, self.until, pack_body((self.site, self.anew)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        site_, anew = unpack_body(row[-1])
        return cls(row[0], row[1], row[2], row[3], row[4], site_, anew)


@attrs.define(slots=True, eq=False)
class Notice:
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
    timer: Instant | None = None
    send_at: Instant = 0
    tries: int = 0

    table: ClassVar[str] = "notices"

    def content(self) -> Message:
        """The message itself."""
        message = decode_message(self.message)
        assert not isinstance(message, UnknownKind), "what is kept was encoded here"
        return message

    def row(self) -> Row:
        return (self.id, self.peer, self.state, self.until, pack_body((self.subject, self.number, self.message)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        subject, number, message = unpack_body(row[-1])
        return cls(row[0], row[1], subject, number, row[3], message, row[2])


@attrs.define(slots=True, eq=False)
class Report:
    """That somebody gave away more than it had, or was allowed to: found by a site, or heard from one (``peer``).

    ``code`` says what it is, ``subject`` which claim or evidence it is about, ``words`` who did what and when.
    """

    id: str
    at: Instant
    peer: str
    code: str
    subject: str
    words: str
    timer: Instant | None = None

    table: ClassVar[str] = "reports"

    def row(self) -> Row:
        return (self.id, self.at, self.peer, self.code, self.words, pack_body((self.subject,)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        (subject,) = unpack_body(row[-1])
        return cls(row[0], row[1], row[2], row[3], subject, row[4])


@attrs.define(slots=True, eq=False)
class PeerRecord:
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
    removed: bool
    former: tuple[tuple[bytes, Instant], ...]
    used: Instant
    timer: Instant | None = None

    table: ClassVar[str] = "peers"

    def row(self) -> Row:
        body = pack_body((self.may, self.open_requests, self.removed, self.former, self.used))
        return (self.id, self.role, self.key.hex(), self.address, self.origin, body)

    @classmethod
    def from_row(cls, row: Row) -> Self:
        may, open_requests, removed, former, used = unpack_body(row[-1])
        key = bytes.fromhex(row[2])
        return cls(row[0], row[1], key, row[3], row[4], tuple(may), open_requests, removed, former, used)


@attrs.define(slots=True, eq=False)
class Window:
    """A maintenance window of a site: ``units`` are out of service over ``[start, end)``; with ``close`` leases are
    ended for it. ``begun``: they have been taken out.
    """

    id: str
    start: Instant
    end: Instant
    units: tuple[str, ...]
    reason: str
    close: bool
    begun: bool = False
    timer: Instant | None = None

    table: ClassVar[str] = "maintenance"

    def row(self) -> Row:
        return (self.id, self.start, self.end, self.reason, pack_body((self.units, self.close, self.begun)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        units, close, begun = unpack_body(row[-1])
        return cls(row[0], row[1], row[2], tuple(units), row[3], close, begun)


@attrs.define(slots=True, eq=False)
class Incident:
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
    timer: Instant | None = None

    table: ClassVar[str] = "evidence"

    def row(self) -> Row:
        return (self.id, self.at, self.kind, self.guilty, self.words, pack_body((self.body, self.root)))

    @classmethod
    def from_row(cls, row: Row) -> Self:
        body, root = unpack_body(row[-1])
        return cls(row[0], row[1], row[2], row[3], row[4], body, root)
