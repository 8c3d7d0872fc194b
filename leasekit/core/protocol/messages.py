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
Offer                     authority, broker      OfferAnswer
ErrorReply                any                    nothing
========================  =====================  ==================================================
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import Instant, Term

NEW = "new"
EXTEND = "extend"
MODIFY = "modify"


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
    request would fit (-1: not known).
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


class Redeem(NamedTuple):
    """Turn a ticket into a lease (``new``), continue one (``extend``), or change one now (``modify``).

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
    """End the lease now. ``relinquishment`` gives the rest of its claim back (empty when nothing is left)."""

    lease: str
    number: int
    relinquishment: bytes


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

    ``state`` is ``active``, ``refused`` (the request is; the lease stays as it was), ``noticed`` (it will end at
    ``term.end``), ``closed`` or ``failed``. ``units`` are all that it has now. ``contract`` is the site's signed
    lease, ``receipt`` confirms what a closed lease gave back.
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


class Truncated(NamedTuple):
    """A broker ends a claim early (modify, preemption): its signed ``truncation``, with the chain it ends."""

    lease: str
    number: int
    ticket: bytes
    truncation: bytes


class Accepted(NamedTuple):
    """Request ``number`` of this lease has arrived and will be answered."""

    lease: str
    number: int


class Ack(NamedTuple):
    """Update ``update`` of this lease has arrived and is stored."""

    lease: str
    update: int


class Offer(NamedTuple):
    """A site (or broker) delegates: a ticket for ``delegation``, and the resource properties that it names."""

    delegation: str
    number: int
    ticket: bytes
    properties: Properties


class OfferAnswer(NamedTuple):
    """The offer was taken (``reason`` empty) or not."""

    delegation: str
    number: int
    reason: str


class ErrorReply(NamedTuple):
    """A message could not be obeyed; ``code`` is stable, ``text`` is for people. Never answered."""

    lease: str
    number: int
    code: str
    text: str


Message: TypeAlias = (
    RequestTicket | Withdraw | ReturnTicket | TicketUpdate | Redeem | CloseLease | Relinquish | Relinquished |
    LeaseUpdate | Truncated | Accepted | Ack | Offer | OfferAnswer | ErrorReply
)  # fmt: skip

__all__ = [
    "EMPTY", "EXTEND", "MODIFY", "NEW", "Accepted", "Ack", "CloseLease", "ErrorReply", "LeaseUpdate", "Message",
    "Offer", "OfferAnswer", "Redeem", "Relinquish", "Relinquished", "RequestTicket", "ReturnTicket", "TicketUpdate",
    "Truncated", "UnitState", "Withdraw",
]  # fmt: skip
