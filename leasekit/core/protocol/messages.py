"""The messages that actors exchange.

A client's request about a lease carries a ``number`` that grows with each request of that lease; the server answers
it at once with :class:`Accepted`, or with the result if it has it. Results are updates: each carries an ``update``
number that grows per lease and server, and is due until the client acknowledges it with :class:`Ack`. So both ends
repeat what is unanswered, and both know a repeat when they see one.

A message travels as an array of its kind and its fields (:mod:`.codec`). A kind is a number, the class's ``tag``: no
number is used twice. New fields go at the end, with a default: an old peer ignores them, and a new one fills them in.

========================  =====================  ==================================================
message                   from, to               answered by
========================  =====================  ==================================================
RequestTicket             guest, broker          Accepted, then TicketUpdate
Withdraw                  guest, broker          TicketUpdate (closed, or granted if it was too late)
ReturnTicket              guest, broker          Accepted
TicketUpdate              broker, guest          Ack
Redeem                    guest, authority       Accepted, then LeaseUpdate
CloseLease                guest, authority       Accepted, then LeaseUpdate (closed) with the receipt
Relinquish                guest, authority       Relinquished
LeaseUpdate               authority, guest       Ack
Truncated                 broker, authority      Accepted
Offer                     issuer, broker          OfferAnswer
Reclaim                   issuer, broker          OfferAnswer
LetGo                     broker, issuer          Accepted
Holdings                  broker, issuer          nothing: it is said again at each connection
Withhold                  issuer, broker          Accepted
Largest                   issuer, broker          nothing: it is said again when it is otherwise
Introduce                 broker, any            Accepted
ClaimReport               authority, broker      Accepted
Administer                any, any               Administered
DryRun                     guest, broker          DryRunAnswer
Plan                      guest, broker          Planned
Quote                     broker, broker         Quoted
Hold                      broker, broker         Held
Release                   any, broker            nothing: what is held expires
ErrorReply                any                    nothing
========================  =====================  ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct

from leasekit.core.claims.claim import UNITS_MAX
from leasekit.core.claims.signed import DIGEST_BYTES, STATEMENT_MAX, check_digest
from leasekit.core.properties import CLASSES_MAX, KEY_MAX, PROPERTIES_MAX, RESOURCES_MAX, VALUE_MAX, check_bytes
from leasekit.core.reasons import Reason, check_depth
from leasekit.core.time import INSTANT_MAX, Term, check_term
from leasekit.core.topology import REQUEST_BYTES_MAX

ID_MAX: Final = 80
"""The longest id of a lease or delegation, in characters."""
HELD_MAX: Final = 8
"""How many claims an answer to an offer shows."""
NAME_MAX: Final = 128
"""The longest name of a peer, slice, site, type or unit, in characters."""
WORD_MAX: Final = 64
"""The longest op, status, state or code, in characters."""
TEXT_MAX: Final = 2048
"""The longest reason or error text, in characters."""
TICKET_MAX: Final = 16_384
"""The longest ticket, in bytes."""
NUMBER_MAX: Final = 2**63 - 1
"""The largest request or update number."""
LIFE: Final = 2**24
"""A server that goes on from a copy of its store numbers updates from another multiple of this one on."""
UNKNOWN: Final = -1
"""The last update of a client that goes on from a copy of its store: any is the next."""
LIST_MAX: Final = 12_000
"""The most units, or victims, in one message."""
PARTS_MAX: Final = 500
"""The most parts of one plan."""
OFFERS_MAX: Final = 1000
"""The most delegations in one quote."""
STEPS_MAX: Final = 200
"""The most steps of one of them."""
BATCH_MAX: Final = 1024
"""The most messages in one batch."""


class Check:
    """Beside the type of a field: what the type can't say. ``refuses`` raises ``ValueError`` with what was found and
    what is allowed; the codec asks it once the message is decoded.
    """

    def __init__(self, refuses: Callable[[Any], object]) -> None:
        self.refuses = refuses


def _check_classes(value: tuple[Mapping[str, str], ...]) -> None:
    check_bytes({f"{number} {key}": text for number, one in enumerate(value) for key, text in one.items()})


def _check_steps(value: tuple[int, ...]) -> None:
    if len(value) % 2:
        raise ValueError(f"found an array of {len(value)}, allowed are pairs of instant and units")
    last = -1
    for at, free in zip(value[::2], value[1::2], strict=True):
        if at <= last:
            raise ValueError(f"found {at} after {last}, instants must grow")
        if free > UNITS_MAX:
            raise ValueError(f"found {free} units, allowed are at most {UNITS_MAX}")
        last = at


Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
IdOrNone: TypeAlias = Annotated[str, Meta(max_length=ID_MAX)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
NameOrNone: TypeAlias = Annotated[str, Meta(max_length=NAME_MAX)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=WORD_MAX)]
WordOrNone: TypeAlias = Annotated[str, Meta(max_length=WORD_MAX)]
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_MAX)]
Cause: TypeAlias = Annotated[Reason, Check(check_depth)]
"""Why it is so."""
Why: TypeAlias = Annotated[Reason | None, Check(check_depth)]
"""Why it is so, if it is."""
Ticket: TypeAlias = Annotated[bytes, Meta(max_length=TICKET_MAX)]
Statement: TypeAlias = Annotated[bytes, Meta(max_length=STATEMENT_MAX)]
Request: TypeAlias = Annotated[bytes, Meta(max_length=REQUEST_BYTES_MAX)]
Digest: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST_BYTES), Check(check_digest)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Units: TypeAlias = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
UnitsOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=UNITS_MAX)]
UnitsOrUnknown: TypeAlias = Annotated[int, Meta(ge=-1, le=UNITS_MAX)]
At: TypeAlias = Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
Lasts: TypeAlias = At
AtOrUnknown: TypeAlias = Annotated[int, Meta(ge=-1, le=INSTANT_MAX)]
WireTerm: TypeAlias = Annotated[Term, Check(check_term)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=LIST_MAX)]
Steps: TypeAlias = Annotated[tuple[At, ...], Meta(max_length=2 * STEPS_MAX), Check(_check_steps)]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY_MAX)]
Value: TypeAlias = Annotated[str, Meta(max_length=VALUE_MAX)]
Pairs: TypeAlias = Annotated[Mapping[Key, Value], Meta(max_length=PROPERTIES_MAX), Check(check_bytes)]
ClassId: TypeAlias = Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
UnitsByClass: TypeAlias = Annotated[tuple[tuple[ClassId, Units], ...], Meta(max_length=CLASSES_MAX)]
Classes: TypeAlias = Annotated[tuple[Pairs, ...], Meta(max_length=CLASSES_MAX), Check(_check_classes)]


NEW = "new"
EXTEND = "extend"
MODIFY = "modify"
REPLACE = "replace"
"""Another ticket in the place of one that was not redeemed, whatever its term."""
UNDO = "undo"


class WireStruct(Struct, frozen=True, array_like=True):
    """What travels as an array of its fields, each of which holds what its type allows (above)."""


SUBJECTS: Final = ("lease", "delegation", "peer", "claim", "command", "query", "plan")
"""The fields that say what a message is about."""


class MessageBase(WireStruct, frozen=True, tag_field="kind"):
    """What can travel by itself: its ``tag`` comes before its fields."""

    @property
    def subject(self) -> str:
        """What it is about; empty if it does not say so."""
        return next((getattr(self, field) for field in SUBJECTS if hasattr(self, field)), "")


class AboutLease(MessageBase, frozen=True):
    """About a lease: a request has a ``number`` that grows, which answers name (0: none)."""

    lease: Id
    number: Number


class AboutDelegation(MessageBase, frozen=True):
    """About a delegation; an answer names the ``number``."""

    delegation: Id
    number: Number


class AboutQuery(MessageBase, frozen=True):
    """A question under a name of its sender's, and its answer."""

    query: Id
    number: Number


class AboutPlan(MessageBase, frozen=True):
    """About what is held for a plan."""

    plan: Id
    number: Number


class RequestTicket(AboutLease, frozen=True, tag=1):
    """Ask for a ticket. ``op`` is ``new``, ``extend`` (``term`` starts where the lease ends) or ``modify`` (from
    ``term.start`` on).

    ``site`` pins a new request to one site's name (empty: any that the mapper chooses). ``properties`` are the
    request properties: elastic, deferrable, groups, attributes, priority. ``claim`` is the digest of the claim that
    is extended or modified.
    """

    op: Word
    slice: Name
    type: Name
    units: Units
    term: WireTerm
    site: NameOrNone
    properties: Pairs
    claim: Digest


class Withdraw(AboutLease, frozen=True, tag=2):
    """Give up the unanswered request ``request``. Too late if it was granted: the ticket is then returned."""

    request: Number


class ReturnTicket(AboutLease, frozen=True, tag=3):
    """The site confirms that a claim is void from an instant on: ``receipt`` is its statement; the rest is the
    broker's again.
    """

    receipt: Statement


class TicketUpdate(MessageBase, frozen=True, tag=4):
    """What became of request ``number`` (0: of none, the broker acts by itself).

    ``status`` is ``granted`` (``ticket`` holds the chain, ``site`` the name of the site, ``properties`` its resource
    properties, ``truncation`` the end of the old claim when the term was modified), ``refused`` (the lease stays as
    it was), ``closed``, ``terminating`` (``truncation`` says when the claim will end), ``short`` (the
    maintenance window that ``reason`` names leaves too few units for a ticket that is not redeemed yet) or ``spared``
    (no more).
    ``earliest`` is when a refused request would fit (-1: not known). ``endorsement`` makes the site known to a guest
    that may not know it.
    ``classes`` is what each class of its units has beside ``properties``, where there are several.
    ``continuations`` are the tickets that go on from ``ticket``, one after the other, where the term goes beyond the
    end of a delegation (:func:`~leasekit.core.claims.claim.join_tickets`).
    """

    lease: Id
    update: Number
    number: Number
    status: Word
    ticket: Ticket
    site: NameOrNone
    properties: Pairs
    truncation: Statement
    reason: Why
    earliest: AtOrUnknown
    endorsement: Statement = b""
    continuations: Ticket = b""
    classes: Classes = ()


class Redeem(AboutLease, frozen=True, tag=5):
    """Turn a ticket into a lease (``new``), continue one (``extend``), change one now (``modify``), or take back an
    extend by this ``ticket`` that has not begun (``undo``).

    ``properties`` are the configuration properties. ``victims`` names the units that a shrinking lease gives up
    (those not named are the authority's choice). ``truncation`` is the broker's end of the old claim when the ticket
    replaces it. A modify of configuration alone has an empty ``ticket``.
    """

    op: Word
    slice: Name
    ticket: Ticket
    resource: Pairs
    properties: Pairs
    victims: Names
    truncation: Statement


class CloseLease(AboutLease, frozen=True, tag=6):
    """End the lease now. ``relinquishment`` gives the rest of its claim back (empty when nothing is left). ``save``: it
    is being suspended, so that its units are saved.
    """

    relinquishment: Statement
    save: bool = False


class Relinquish(AboutLease, frozen=True, tag=7):
    """Give back a ticket that was not redeemed; works the same however often it comes."""

    ticket: Ticket
    relinquishment: Statement


class Relinquished(AboutLease, frozen=True, tag=8):
    """The site's answer to :class:`Relinquish`: its ``receipt``, or empty with the ``reason`` why the claim can't be
    given back.
    """

    receipt: Statement
    reason: Why


class UnitState(WireStruct, frozen=True):
    """One unit of a lease as its guest sees it: its name, its state (``active`` or ``failed``), its properties, why
    it failed, and the class that it counts as.
    """

    unit: Name
    state: Word
    properties: Pairs
    reason: Why
    unit_class: ClassId = b""


UnitStates: TypeAlias = Annotated[tuple[UnitState, ...], Meta(max_length=LIST_MAX)]


class LeaseUpdate(MessageBase, frozen=True, tag=9):
    """How the lease stands at the site. ``number`` is the latest request that this settles (0: none).

    ``state`` is ``active``, ``refused`` (the request is; the lease stays as it was), ``undone`` (it does not go on by
    the ticket of the undo; if it does already, the answer to an undo is ``active``), ``terminating`` (it will end at
    ``term.end``), ``waiting`` (nothing has changed: its site can't set up units for now), ``told`` (nothing has
    changed: the reason says what concerns it, or that no more does), ``closed`` or ``failed``. ``units`` are all that
    it has now. ``contract`` is the site's signed
    lease, ``receipt`` confirms what a closed lease gave back. ``saved`` is how many of its units were saved, of a lease
    that is suspended, or will be (-1: it isn't).
    """

    lease: Id
    update: Number
    number: Number
    state: Word
    term: WireTerm
    units: UnitStates
    reason: Why
    contract: Statement
    receipt: Statement
    saved: UnitsOrUnknown = -1


class Truncated(AboutLease, frozen=True, tag=10):
    """An issuer ends a claim early (preemption, a delegation taken back): its signed ``truncation``, with the chain
    that ends (empty if the site has seen it). ``saving``: the lease is suspended, and in so many last milliseconds
    its units are saved (0: it is ended). ``reason`` is why, for the guest.
    """

    ticket: Ticket
    truncation: Statement
    saving: Lasts = 0
    reason: Why = None


class Accepted(AboutLease, frozen=True, tag=11):
    """Request ``number`` of this lease has arrived and will be answered. ``receipt``: the site's, for a truncation."""

    receipt: Statement = b""


class Ack(MessageBase, frozen=True, tag=12):
    """Update ``update`` of this lease has arrived and is stored.

    ``signed`` says which: the SHA-256 of the ticket or contract that came with it.
    A server that has forgotten a lease may make it anew and count its updates from 1 again; what acknowledges one of
    before must not settle the new one.
    """

    lease: Id
    update: Number
    signed: Digest = b""


class Offer(AboutDelegation, frozen=True, tag=13):
    """A site (or broker) delegates: a ticket for ``delegation``, and the resource properties of all its units; where
    these are of several classes, what each of the ``classes`` has beside that.

    ``site`` is what the issuer calls the site whose units they are (empty: itself). ``renewal_of`` is the delegation
    that this one goes on from (empty: none, it is new).
    """

    ticket: Ticket
    properties: Pairs
    site: NameOrNone = ""
    renewal_of: IdOrNone = ""
    classes: Classes = ()


class HeldClaim(WireStruct, frozen=True):
    """What a holder holds: its name, the ticket, and how it stands, ``state``, since ``at`` (-1: from its start)."""

    delegation: Id
    ticket: Ticket
    state: Word
    at: AtOrUnknown


HeldClaims: TypeAlias = Annotated[tuple[HeldClaim, ...], Meta(max_length=HELD_MAX)]


class OfferAnswer(AboutDelegation, frozen=True, tag=14):
    """The offer was taken (without ``reason``) or not; or a reclaim was heard. What was granted before, of what is
    taken back or replaced, ends at ``until`` (0: there is nothing).

    ``held`` is what stands in the way of an offer that begins a chain: its issuer may have forgotten that. Until
    ``beyond`` more of the chain is in use than what was taken has (0: not so).
    """

    reason: Why
    until: At = 0
    held: HeldClaims = ()
    beyond: At = 0


class LetGo(AboutDelegation, frozen=True, tag=31):
    """A holder's operator has let go of ``delegation``, the claim in ``ticket``: nothing more is granted of it, and
    what was goes on ``until`` then (0: there is nothing).
    """

    ticket: Ticket
    until: At


HOLDINGS_MAX: Final = 1000
"""How many delegations of one issuer a broker holds at once."""


class Holdings(MessageBase, frozen=True, tag=32):
    """A broker whose store is a copy, or new, says which claims of an issuer it holds: the digests of all of them. What
    else its issuer has given it is not known to it any more.
    """

    claims: Annotated[tuple[Digest, ...], Meta(max_length=HOLDINGS_MAX)]


class Reclaim(AboutDelegation, frozen=True, tag=16):
    """An issuer takes a delegation back: ``statement`` says from when on nothing new may be granted from ``ticket``,
    and by when leases that exist are over.
    """

    ticket: Ticket
    statement: Statement


OUT: Final = "out"
"""The window of what is out of service, nobody knows until when: its share counts before that of any other."""


class Withhold(AboutDelegation, frozen=True, tag=21):
    """An issuer asks its holder to grant nothing of ``units`` of a delegation over ``term``, for maintenance, or as
    they are out of service (0: no more). Whoever does all the same finds the units missing at the site. ``by_class``
    are those of each class of the delegation's claim, in its order (empty: it has one class).
    """

    window: Id
    units: UnitsOrNone
    term: WireTerm
    reason: Text
    by_class: Annotated[tuple[UnitsOrNone, ...], Meta(max_length=CLASSES_MAX)] = ()


class LargestPiece(WireStruct, frozen=True):
    """No host of a class has more than ``most`` of a ``resource`` left for a unit at any instant before ``until``."""

    class_: ClassId
    resource: Key
    most: At
    until: At


class Largest(AboutDelegation, frozen=True, tag=33):
    """A site says of the hosts of a delegation what none of them has left, where that is less than a host has: all of
    it, so that what it does not name any more is so no more. Whoever grants more all the same finds it refused.
    """

    pieces: Annotated[tuple[LargestPiece, ...], Meta(max_length=CLASSES_MAX * RESOURCES_MAX)]


class Introduce(MessageBase, frozen=True, tag=17):
    """A broker makes ``peer`` known: its signed ``endorsement`` says its name, role, key and address. ``until`` is when
    the lease ends that ``peer`` got.
    """

    peer: Id
    number: Number
    endorsement: Statement
    until: At = 0


class ClaimReport(MessageBase, frozen=True, tag=18):
    """A site tells a broker what became of a claim that it issued (``claim``: its digest in hex): the code of
    ``reason`` is ``oversubscribed`` (refused for want of units, without blame), ``overdelegated`` (the site holds
    evidence), or ``replaced`` (a modify was taken: ``receipt`` is the site's, for the old claim).
    """

    claim: Id
    number: Number
    reason: Cause
    receipt: Statement = b""


class ErrorReply(MessageBase, frozen=True, tag=15):
    """A message could not be obeyed, for ``reason``. Never answered."""

    lease: IdOrNone
    number: Number
    reason: Cause


class Administer(MessageBase, frozen=True, tag=19):
    """Have the receiver carry out an operator's ``command``; ``arguments`` is a JSON object. Sent once."""

    command: Word
    number: Number
    arguments: Text


class Administered(MessageBase, frozen=True, tag=20):
    """What became of it: the ``result`` as JSON, or the ``error`` in words."""

    command: Word
    number: Number
    result: Text
    error: Text


class DryRun(AboutLease, frozen=True, tag=22):
    """Ask what a request would be answered if it came now: nothing is booked, or kept. Sent once.

    ``lease`` is what the sender calls the question, no lease has that id; the others are as in :class:`RequestTicket`.
    ``of`` is the lease that would be extended or modified, empty where ``op`` is ``new``.
    """

    type: Name
    units: Units
    term: WireTerm
    site: NameOrNone
    properties: Pairs
    op: Word = NEW
    of: IdOrNone = ""


class DryRunAnswer(AboutLease, frozen=True, tag=23):
    """``status`` is ``granted`` (``units`` of ``site`` over ``term``, so many of each class), ``waits`` (in line;
    ``reason`` says for what) or ``refused``: ``reason``, and when it would fit, ``earliest`` (-1: not known).
    """

    status: Word
    site: NameOrNone
    units: UnitsOrNone
    term: WireTerm
    reason: Why
    earliest: AtOrUnknown
    classes: UnitsByClass = ()


class PlanPart(WireStruct, frozen=True):
    """What is to be leased for one ``member`` of a planned topology: all of it for a site, one link of a path for a
    link (``path`` is 0, or 1 for the backup). ``part`` names it within the plan.

    ``broker`` gives the ticket, for ``units`` of ``type`` at ``site``; ``source`` is what it calls its delegation.
    """

    part: Id
    member: Id
    path: Number
    broker: Name
    source: IdOrNone
    site: Name
    type: Name
    units: Units


PlanParts: TypeAlias = Annotated[tuple[PlanPart, ...], Meta(max_length=PARTS_MAX)]


class Plan(AboutQuery, frozen=True, tag=24):
    """Ask for a plan for a topology, ``topology`` (:mod:`leasekit.core.topology`). ``op`` is ``hold``, to have it held
    until its parts are asked for as ordinary leases, or ``try``, to hear what it would be.

    ``query`` is what the sender calls the question: a repeat gets the same answer while that is held.
    """

    op: Word
    topology: Request


class Planned(AboutQuery, frozen=True, tag=25):
    """``status`` is ``held`` (under the name ``plan`` until ``expires``), ``planned`` (nothing is held) or ``refused``:
    ``reason``, and when it would fit, ``earliest`` (-1: not known).

    ``objective`` is the value of the plan and ``gap`` what it may be above the least one, both as decimal numbers.
    """

    status: Word
    plan: IdOrNone
    term: WireTerm
    parts: PlanParts
    objective: WordOrNone
    gap: WordOrNone
    expires: AtOrUnknown
    reason: Why
    earliest: AtOrUnknown


class Quote(AboutQuery, frozen=True, tag=26):
    """Ask another broker what it has free over ``term``: units of ``types``, and all its links."""

    term: WireTerm
    types: Names


class QuotedOffer(WireStruct, frozen=True):
    """What is free of one delegation over the term of a :class:`Quote`, or what is shown of it: ``steps`` are pairs of
    an instant and the units free from then on.
    """

    source: Id
    site: Name
    type: Name
    units: UnitsOrNone
    term: WireTerm
    properties: Pairs
    steps: Steps


QuotedOffers: TypeAlias = Annotated[tuple[QuotedOffer, ...], Meta(max_length=OFFERS_MAX)]


class Quoted(AboutQuery, frozen=True, tag=27):
    """The answer to a :class:`Quote`. Nothing is held."""

    offers: QuotedOffers


class HoldParts(AboutPlan, frozen=True, tag=28):
    """Have ``parts`` of ``plan`` held over ``term`` until ``expires``, for the guest with key ``holder``."""

    holder: Digest
    term: WireTerm
    parts: PlanParts
    expires: At


class PartsHeld(AboutPlan, frozen=True, tag=29):
    """All parts are held (without ``reason``), or none, and why."""

    reason: Why


class ReleaseParts(AboutPlan, frozen=True, tag=30):
    """What is held under ``plan`` is not wanted any more."""


Message: TypeAlias = (
    RequestTicket | Withdraw | ReturnTicket | TicketUpdate | Redeem | CloseLease | Relinquish | Relinquished |
    LeaseUpdate | Truncated | Accepted | Ack | Offer | OfferAnswer | ErrorReply | Reclaim | Introduce |
    ClaimReport | Administer | Administered | Withhold | DryRun | DryRunAnswer |
    Plan | Planned | Quote | Quoted | HoldParts | PartsHeld | ReleaseParts | LetGo | Holdings |
    Largest
)  # fmt: skip
