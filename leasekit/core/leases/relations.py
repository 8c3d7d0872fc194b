"""The records of what actors have with each other beside leases: delegations, notices, reports, peers, evidence.

As in :mod:`.records`, a row's ``body`` holds what its columns don't.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import attrs

from leasekit.core.claims.claim import Claim
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import KeptRecord, SentRecord
from leasekit.core.properties import Counts, Properties, counts
from leasekit.core.protocol.codec import UnknownKind, decode_message
from leasekit.core.protocol.messages import Message
from leasekit.core.reasons import Reason
from leasekit.core.time import INSTANT_MAX, Instant, Term


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


@attrs.define(slots=True, eq=False)
class Delegation(SentRecord):
    """A delegation as its issuer or its holder keeps it (:mod:`.delegation`). ``peer`` is the other side.

    ``site`` names the site whose units they are, ``digest`` the claim (its leaf). A broker that gives has cut it from
    its own delegation ``source``; ``given`` tells the issuer's record from the holder's. What is granted of one that
    was reclaimed ends by ``reclaimed``; leases that existed before are over by ``deadline``. From ``freed`` on its
    issuer can grant the units anew: the site counts the claim as ended then. All three are -1 where there is none.
    ``properties`` is what all its units have, and ``classes`` what each class of them has beside that, where there
    are several. ``withheld`` is what a holder had better not grant. A delegation that is renewed is several records,
    one for each stretch of time: ``line`` is the name of the first, empty in that one itself. From ``replaced`` on
    another claim of the line stands in its place (-1: none does); until ``beyond`` more of the line is in use than
    this has.
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
    reclaimed: Instant = -1
    deadline: Instant = -1
    statement: bytes = b""
    withheld: tuple[Withheld, ...] = ()
    freed: Instant = -1
    line: str = ""
    replaced: Instant = -1
    beyond: Instant = -1
    classes: tuple[Properties, ...] = ()

    table: ClassVar[str] = "delegations"
    columns: ClassVar = {"term_start": "term.start", "term_end": "term.end"}

    @property
    def base(self) -> str:
        """The name of the delegation that this is a stretch of."""
        return self.line or self.id

    @property
    def grants_until(self) -> Instant:
        """Until when new terms may go: to its end, or to the instant from which on it is taken back, or replaced."""
        start, end = self.term
        return max(start, min([end, *(at for at in (self.reclaimed, self.replaced) if at >= 0)]))


@attrs.define(slots=True, eq=False)
class DelegationOverride(KeptRecord):
    """What the operator had an issuer delegate, whatever its settings say: ``id`` is the line. ``units`` and ``until``
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
