"""Tickets: the chain of claims from a site's root to the holder.

A ticket covers one term. What a guest holds after an extend is two tickets that touch in time, and the lease
names both; each is checked by itself. So is a term that goes beyond the end of a delegation which was renewed: the
tickets of such a grant travel together. Depth counts the root: site to broker is 1, site to broker to guest is 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import msgpack

from leasekit.core.claims.claim import BODY_MAX, DEGREE_ONE, Claim, decode_claim, issue, pack
from leasekit.core.claims.keys import Signer
from leasekit.core.errors import TicketError
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.reasons import Code
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term

DEPTH_MAX: Final = 32
"""More than any setting may allow: what a decoder accepts before it looks at settings."""

READY_AT, SAVING = "ready_at", "saving"
"""Constraints of a claim: by when its units are to be up, and how long before its end they are saved, both in ms."""
REPLACES = "replaces"
"""A constraint of a claim: the digest, in hex, of the claim of the same lease that ends where it begins."""
JOINED_MAX: Final = 8
"""The most tickets of one grant: a term that begins and ends within so many stretches of a delegation."""


@attrs.frozen(slots=True, eq=False)
class Ticket:
    """``chain`` runs from the root claim to the holder's own (the leaf)."""

    chain: tuple[Claim, ...]

    @property
    def leaf(self) -> Claim:
        """The holder's own claim."""
        return self.chain[-1]

    @property
    def root(self) -> Claim:
        """The site's claim; its issuer is the site's key."""
        return self.chain[0]

    def encode(self) -> bytes:
        """The ticket as it travels and is stored: bodies as they were signed."""
        return pack([(claim.body, claim.signature) for claim in self.chain])


def saving_of(claim: Claim) -> Duration:
    """How long before the end of a claim its units are saved, because the lease is suspended then; 0: it isn't."""
    return _number(claim, SAVING, 0)


def begin_of(claim: Claim) -> Instant:
    """When the term begins that was asked for: a claim may begin earlier, for its units to be prepared."""
    return _number(claim, READY_AT, claim.term.start)


def replaced_by(claim: Claim, others: Iterable[Claim]) -> bool:
    """Whether one of ``others`` says that it replaces ``claim``, and is the same holder's."""
    return any(other.constraints.get(REPLACES) == claim.id and other.holder == claim.holder for other in others)


def _number(claim: Claim, name: str, otherwise: int) -> int:
    text = claim.constraints.get(name, "")
    return min(int(text), INSTANT_MAX) if text.isdecimal() and text.isascii() and len(text) < 20 else otherwise


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``; signatures are not checked. Raises ``TicketError`` (code ``malformed``)."""
    try:
        links = msgpack.unpackb(
            data, use_list=False, max_array_len=DEPTH_MAX, max_bin_len=BODY_MAX, max_map_len=0, max_ext_len=0,
            max_str_len=0
        )  # fmt: skip
    except msgpack.exceptions.ExtraData as error:
        raise TicketError(Code.MALFORMED, "ticket is not msgpack: it goes on after its end") from error
    except (ValueError, RecursionError) as error:
        raise TicketError(Code.MALFORMED, f"ticket is not msgpack: {error}") from error
    if type(links) is not tuple or not links:
        raise _no_ticket()
    chain = []
    for link in links:
        if type(link) is not tuple or len(link) != 2 or type(link[0]) is not bytes or type(link[1]) is not bytes:
            raise _no_ticket()
        chain.append(decode_claim(link[0], link[1]))
    return Ticket(tuple(chain))


def join_tickets(tickets: Sequence[bytes]) -> bytes:
    """Encoded tickets that go on from each other, as they travel together; empty for none."""
    return pack(list(tickets)) if tickets else b""


def split_tickets(data: bytes) -> tuple[bytes, ...]:
    """The tickets in ``data``, still encoded, at most :data:`JOINED_MAX`. Raises ``TicketError`` (``malformed``)."""
    if not data:
        return ()
    try:
        found = msgpack.unpackb(
            data, use_list=False, max_array_len=JOINED_MAX, max_map_len=0, max_ext_len=0, max_str_len=0
        )
    except (ValueError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError(Code.MALFORMED, f"tickets are not msgpack: {error}") from error
    if type(found) is not tuple or not all(type(one) is bytes for one in found):
        raise TicketError(Code.MALFORMED, f"tickets: expected an array of at most {JOINED_MAX} tickets")
    return found


def _no_ticket() -> TicketError:
    return TicketError(Code.MALFORMED, "ticket: expected an array of pairs of claim body and signature")


def delegate(
    ticket: Ticket,
    signer: Signer,
    *,
    holder: bytes,
    units: int,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    constraints: Properties = EMPTY,
) -> Ticket:
    """A child of ``ticket``, signed by its holder: the same type and properties, fewer units, a term inside.

    The caller keeps the book of what else it has given from ``ticket``, in which a child counts with its capacity
    (units times ``degree``). Raises ``TicketError`` when the child could not be valid whatever the book says.
    """
    parent = ticket.leaf
    if signer.public != parent.holder:
        raise TicketError(Code.NOT_HOLDER, "only the holder of a claim can delegate it")
    if not parent.term.contains(term) or units * max(degree, DEGREE_ONE) // DEGREE_ONE > parent.capacity:
        raise TicketError(
            Code.EXCEEDS_PARENT,
            f"{units} units at degree {degree / DEGREE_ONE:g} over {term} do not fit in {parent.units} over "
            f"{parent.term}, of which {parent.capacity} can be given away",
        )
    child = issue(
        signer, holder=holder, type=parent.type, units=units, term=term, serial=serial, degree=degree,
        properties=parent.properties, parent=parent.digest, constraints=constraints,
    )  # fmt: skip
    return Ticket((*ticket.chain, child))


def delegate_root(
    signer: Signer,
    *,
    holder: bytes,
    type: str,
    units: int,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    properties: bytes = b"",
) -> Ticket:
    """A new chain of depth 1: a site gives part of what it has to a broker (or straight to a guest)."""
    claim = issue(
        signer, holder=holder, type=type, units=units, term=term, serial=serial, degree=degree, properties=properties
    )  # fmt: skip
    return Ticket((claim,))
