"""The messages that actors exchange.

A client's request about a lease carries a ``number`` that grows with each request of that lease; the server answers
it at once with :class:`Accepted`, or with the result if it has it. Results are updates: each carries an ``update``
number that grows per lease and server, and is due until the client acknowledges it with :class:`Ack`. So both ends
repeat what is unanswered, and both know a repeat when they see one.

Messages are named tuples, and travel as an array of their kind and their fields (:mod:`.codec`). New fields
go at the end, with a default: an old peer ignores them, and a new one fills them in.

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
Offer                     giver, broker          OfferAnswer
Reclaim                   giver, broker          OfferAnswer
LetGo                     broker, giver          Accepted
Withhold                  giver, broker          Accepted
Introduce                 broker, any            Accepted
ClaimReport               authority, broker      Accepted
Administer                any, any               Administered
Probe                     guest, broker          ProbeAnswer
Plan                      guest, broker          Planned
Quote                     broker, broker         Quoted
Hold                      broker, broker         Held
Release                   any, broker            nothing: what is held expires
ErrorReply                any                    nothing
========================  =====================  ==================================================
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple, TypeAlias

from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import Duration, Instant, Term

NEW = "new"
EXTEND = "extend"
MODIFY = "modify"
UNDO = "undo"


class RequestTicket(NamedTuple):
    """Ask for a ticket. ``op`` is ``new``, ``extend`` (``term`` starts where the lease ends) or ``modify`` (from
    ``term.start`` on).

    ``site`` pins a new request to one site's name (empty: any that the mapper chooses). ``properties`` are the
    request properties: elastic, deferrable, groups, attributes, priority. ``claim`` is the digest of the claim that
    is extended or modified.
    """

    lease: str
    number: int
    op: str
    slice: str
    type: str
    units: int
    term: Term
    site: str
    properties: Properties
    claim: bytes


class Withdraw(NamedTuple):
    """Give up the unanswered request ``request``. Too late if it was granted: the ticket is then returned."""

    lease: str
    number: int
    request: int


class ReturnTicket(NamedTuple):
    """The site confirms that a claim is void from an instant on: ``receipt`` is its statement; the rest is the
    broker's again.
    """

    lease: str
    number: int
    receipt: bytes


class TicketUpdate(NamedTuple):
    """What became of request ``number`` (0: of none, the broker acts by itself).

    ``status`` is ``granted`` (``ticket`` holds the chain, ``site`` the name of the site, ``properties`` its resource
    properties, ``truncation`` the end of the old claim when the term was modified), ``refused`` (the lease stays as
    it was), ``closed``, ``noticed`` (``truncation`` says when the claim will end). ``earliest`` is when a refused
    request would fit (-1: not known). ``endorsement`` makes the site known to a guest that may not know it.
    ``further`` are the tickets that go on from ``ticket``, one after the other, where the term goes beyond the end of
    a delegation (:func:`~leasekit.core.claims.ticket.join_tickets`).
    """

    lease: str
    update: int
    number: int
    status: str
    ticket: bytes
    site: str
    properties: Properties
    truncation: bytes
    reason: str
    earliest: Instant
    endorsement: bytes = b""
    further: bytes = b""


class Redeem(NamedTuple):
    """Turn a ticket into a lease (``new``), continue one (``extend``), change one now (``modify``), or take back an
    extend by this ``ticket`` that has not begun (``undo``).

    ``properties`` are the configuration properties. ``victims`` names the units that a shrinking lease gives up
    (those not named are the authority's choice). ``truncation`` is the broker's end of the old claim when the ticket
    replaces it. A modify of configuration alone has an empty ``ticket``.
    """

    lease: str
    number: int
    op: str
    slice: str
    ticket: bytes
    resource: Properties
    properties: Properties
    victims: tuple[str, ...]
    truncation: bytes


class CloseLease(NamedTuple):
    """End the lease now. ``relinquishment`` gives the rest of its claim back (empty when nothing is left). ``save``: it
    is being suspended, so that its units are saved.
    """

    lease: str
    number: int
    relinquishment: bytes
    save: bool = False


class Relinquish(NamedTuple):
    """Give back a ticket that was not redeemed; works the same however often it comes."""

    lease: str
    number: int
    ticket: bytes
    relinquishment: bytes


class Relinquished(NamedTuple):
    """The site's answer to :class:`Relinquish`: its ``receipt``, or empty with the ``reason`` why the claim can't be
    given back.
    """

    lease: str
    number: int
    receipt: bytes
    reason: str


class UnitState(NamedTuple):
    """One unit of a lease as its guest sees it: its name, its state (``active`` or ``failed``), its properties, why
    it failed.
    """

    unit: str
    state: str
    properties: Properties
    reason: str


class LeaseUpdate(NamedTuple):
    """How the lease stands at the site. ``number`` is the latest request that this settles (0: none).

    ``state`` is ``active``, ``refused`` (the request is; the lease stays as it was), ``undone`` (it does not go on by
    the ticket of the undo; if it does already, the answer to an undo is ``active``), ``noticed`` (it will end at
    ``term.end``), ``waiting`` (nothing has changed: its site can't set up units for now), ``closed`` or ``failed``.
    ``units`` are all that it has now. ``contract`` is the site's signed
    lease, ``receipt`` confirms what a closed lease gave back. ``saved`` is how many of its units were saved, of a lease
    that is suspended, or will be (-1: it isn't).
    """

    lease: str
    update: int
    number: int
    state: str
    term: Term
    units: tuple[UnitState, ...]
    reason: str
    contract: bytes
    receipt: bytes
    saved: int = -1


class Truncated(NamedTuple):
    """An issuer ends a claim early (preemption, a delegation taken back): its signed ``truncation``, with the chain
    that ends (empty if the site has seen it). ``saving``: the lease is suspended, and in so many last milliseconds
    its units are saved (0: it is ended).
    """

    lease: str
    number: int
    ticket: bytes
    truncation: bytes
    saving: Duration = 0


class Accepted(NamedTuple):
    """Request ``number`` of this lease has arrived and will be answered. ``receipt``: the site's, for a truncation."""

    lease: str
    number: int
    receipt: bytes = b""


class Ack(NamedTuple):
    """Update ``update`` of this lease has arrived and is stored.

    ``signed`` says which: the SHA-256 of the ticket or contract that came with it.
    A server that has forgotten a lease may make it anew and count its updates from 1 again; what acknowledges one of
    before must not settle the new one.
    """

    lease: str
    update: int
    signed: bytes = b""


def acknowledge(update: TicketUpdate | LeaseUpdate) -> Ack:
    """The acknowledgement of an update."""
    signed = update.ticket if isinstance(update, TicketUpdate) else update.contract
    return Ack(update.lease, update.update, sha256(signed).digest())


class Offer(NamedTuple):
    """A site (or broker) delegates: a ticket for ``delegation``, and the resource properties that it names.

    ``site`` is what the giver calls the site whose units they are (empty: itself). ``line`` is the delegation that
    this one goes on from (empty: none, it is new).
    """

    delegation: str
    number: int
    ticket: bytes
    properties: Properties
    site: str = ""
    line: str = ""


class HeldClaim(NamedTuple):
    """What a taker holds: its name, the ticket, and how it stands, ``state``, since ``at`` (-1: from its start)."""

    delegation: str
    ticket: bytes
    state: str
    at: Instant


class OfferAnswer(NamedTuple):
    """The offer was taken (``reason`` empty) or not; or a reclaim was heard. What was granted before, of what is taken
    back or replaced, ends at ``until`` (0: there is nothing).

    ``held`` is what stands in the way of an offer that begins a line: its giver may have forgotten that. Until
    ``beyond`` more of the line is in use than what was taken has (0: not so).
    """

    delegation: str
    number: int
    reason: str
    until: Instant = 0
    held: tuple[HeldClaim, ...] = ()
    beyond: Instant = 0


class LetGo(NamedTuple):
    """A taker's operator has let go of ``delegation``, the claim in ``ticket``: nothing more is granted of it, and what
    was goes on ``until`` then (0: there is nothing).
    """

    delegation: str
    number: int
    ticket: bytes
    until: Instant


class Reclaim(NamedTuple):
    """A giver takes a delegation back: ``statement`` says from when on nothing new may be granted from ``ticket``, and
    by when leases that exist are over.
    """

    delegation: str
    number: int
    ticket: bytes
    statement: bytes


class Withhold(NamedTuple):
    """A giver asks its taker to grant nothing of ``units`` of a delegation over ``term``, for maintenance (0: no more).
    Whoever does all the same finds the units missing at the site.
    """

    delegation: str
    number: int
    window: str
    units: int
    term: Term
    reason: str


class Introduce(NamedTuple):
    """A broker makes ``peer`` known: its signed ``endorsement`` says its name, role, key and address. ``until`` is when
    the lease ends that ``peer`` got.
    """

    peer: str
    number: int
    endorsement: bytes
    until: Instant = 0


class ClaimReport(NamedTuple):
    """A site tells a broker what became of a claim that it issued (``claim``: its digest in hex): ``code`` is
    ``oversubscribed`` (refused for want of units, without blame), ``overdelegated`` (the site holds evidence), or
    ``replaced`` (a modify was taken: ``receipt`` is the site's, for the old claim).
    """

    claim: str
    number: int
    code: str
    reason: str
    receipt: bytes = b""


class ErrorReply(NamedTuple):
    """A message could not be obeyed; ``code`` is stable, ``text`` is for people. Never answered."""

    lease: str
    number: int
    code: str
    text: str


class Administer(NamedTuple):
    """Have the receiver carry out an operator's ``command``; ``arguments`` is a JSON object. Sent once."""

    command: str
    number: int
    arguments: str


class Administered(NamedTuple):
    """What became of it: the ``result`` as JSON, or the ``error`` in words."""

    command: str
    number: int
    result: str
    error: str


class Probe(NamedTuple):
    """Ask what a request would be answered if it came now: nothing is booked, or kept. Sent once.

    ``lease`` is what the sender calls the question, no lease has that id; the others are as in :class:`RequestTicket`.
    ``of`` is the lease that would be extended or modified, empty where ``op`` is ``new``.
    """

    lease: str
    number: int
    type: str
    units: int
    term: Term
    site: str
    properties: Properties
    op: str = NEW
    of: str = ""


class ProbeAnswer(NamedTuple):
    """``status`` is ``granted`` (``units`` of ``site`` over ``term``), ``waits`` (in line; ``reason`` says for what)
    or ``refused``: ``reason``, and when it would fit, ``earliest`` (-1: not known).
    """

    lease: str
    number: int
    status: str
    site: str
    units: int
    term: Term
    reason: str
    earliest: Instant


class PlanPart(NamedTuple):
    """What is to be leased for one ``member`` of a planned topology: all of it for a site, one link of a path for a
    link (``path`` is 0, or 1 for the backup). ``part`` names it within the plan.

    ``broker`` gives the ticket, for ``units`` of ``type`` at ``site``; ``source`` is what it calls its delegation.
    """

    part: str
    member: str
    path: int
    broker: str
    source: str
    site: str
    type: str
    units: int


class Plan(NamedTuple):
    """Ask for a plan for a topology, ``topology`` (:mod:`leasekit.core.topology`). ``op`` is ``hold``, to have it held
    until its parts are asked for as ordinary leases, or ``try``, to hear what it would be.

    ``query`` is what the sender calls the question: a repeat gets the same answer while that is held.
    """

    query: str
    number: int
    op: str
    topology: bytes


class Planned(NamedTuple):
    """``status`` is ``held`` (under the name ``plan`` until ``expires``), ``planned`` (nothing is held) or ``refused``:
    ``reason``, and when it would fit, ``earliest`` (-1: not known).

    ``objective`` is the value of the plan and ``gap`` what it may be above the least one, both as decimal numbers.
    """

    query: str
    number: int
    status: str
    plan: str
    term: Term
    parts: tuple[PlanPart, ...]
    objective: str
    gap: str
    expires: Instant
    reason: str
    earliest: Instant


class Quote(NamedTuple):
    """Ask another broker what it has free over ``term``: units of ``types``, and all its links."""

    query: str
    number: int
    term: Term
    types: tuple[str, ...]


class QuotedOffer(NamedTuple):
    """What is free of one delegation over the term of a :class:`Quote`, or what is shown of it: ``steps`` are pairs of
    an instant and the units free from then on.
    """

    source: str
    site: str
    type: str
    units: int
    term: Term
    properties: Properties
    steps: tuple[int, ...]


class Quoted(NamedTuple):
    """The answer to a :class:`Quote`. Nothing is held."""

    query: str
    number: int
    offers: tuple[QuotedOffer, ...]


class Hold(NamedTuple):
    """Have ``parts`` of ``plan`` held over ``term`` until ``expires``, for the guest with key ``holder``."""

    plan: str
    number: int
    holder: bytes
    term: Term
    parts: tuple[PlanPart, ...]
    expires: Instant


class Held(NamedTuple):
    """All parts are held (``reason`` empty), or none, and why."""

    plan: str
    number: int
    reason: str


class Release(NamedTuple):
    """What is held under ``plan`` is not wanted any more."""

    plan: str
    number: int


Message: TypeAlias = (
    RequestTicket | Withdraw | ReturnTicket | TicketUpdate | Redeem | CloseLease | Relinquish | Relinquished |
    LeaseUpdate | Truncated | Accepted | Ack | Offer | OfferAnswer | ErrorReply | Reclaim | Introduce |
    ClaimReport | Administer | Administered | Withhold | Probe | ProbeAnswer |
    Plan | Planned | Quote | Quoted | Hold | Held | Release | LetGo
)  # fmt: skip

__all__ = [
    "EMPTY", "EXTEND", "MODIFY", "NEW", "UNDO", "Accepted", "Ack", "Administer", "Administered", "ClaimReport",
    "CloseLease", "ErrorReply", "Held", "HeldClaim", "Hold", "Introduce", "LeaseUpdate", "LetGo", "Message",
    "Offer", "OfferAnswer", "Plan", "PlanPart", "Planned", "Probe", "ProbeAnswer", "Quote", "Quoted", "QuotedOffer",
    "Reclaim", "Redeem", "Release", "Relinquish", "Relinquished", "RequestTicket", "ReturnTicket", "TicketUpdate",
    "Truncated", "UnitState", "Withdraw", "Withhold", "acknowledge",
]  # fmt: skip
