"""A guest's claims on their way back, by way of the site, whose receipt their broker goes by; which lease has each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import attrs

from leasekit.actors.kernel import Kernel, keeps, query, takes
from leasekit.actors.peering import Keyring
from leasekit.core.answers import ReturnDetails
from leasekit.core.claims.claim import decode_ticket, split_tickets
from leasekit.core.claims.signed import RELINQUISHMENT, state
from leasekit.core.errors import TicketError
from leasekit.core.leases import returns
from leasekit.core.leases.records import GuestLease, Held, Return
from leasekit.core.protocol.messages import (
    Accepted,
    ErrorReply,
    Message,
    Relinquish,
    Relinquished,
    ReturnTicket,
    TicketUpdate,
)
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.schema import Row
from leasekit.core.time import Instant

STRAYS_FROM: Final = 2**32
"""Returns of tickets whose leases are over here are numbered from here on: no lease has so many requests."""
RETURNS_MAX: Final = 10_000
"""How many tickets for leases that nobody knows are on their way back at once, at most."""
OWNERS_MIN: Final = 64
"""Up to how many claims are remembered whoever has forgotten their leases."""


@keeps(rows="_returns", derived="_owners")
@attrs.define(eq=False, slots=False)
class Returns:
    """A guest's claims on their way back. ``leases`` are those that it has, by id; ``sites`` names the site whose key a
    chain begins with (empty: none that is known).
    """

    _kernel: Kernel
    _keyring: Keyring
    _leases: Mapping[str, GuestLease]
    _sites: Callable[[bytes], str]
    _returns: dict[str, Return] = attrs.field(factory=dict, init=False)
    _owners: dict[bytes, str] = attrs.field(factory=dict, init=False)
    """The lease that each claim was granted to, by digest; those of leases that are forgotten go from time to time."""
    back: list[Callable[[str], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease whose site has a ticket back, or does not take it."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            Return, due_at=self._due_at, on_due=self._due, awaits=self.awaits, send=lambda giving, _: self._send(giving)
        )

    def __iter__(self) -> Iterator[Return]:
        return iter(self._returns.values())

    def __len__(self) -> int:
        return len(self._returns)

    def own(self, lease: GuestLease, tickets: Iterable[Held]) -> None:
        """A lease was granted these tickets: no other one takes them."""
        for held in tickets:
            self._owners[held.digest] = lease.id
        if len(self._owners) > max(OWNERS_MIN, 4 * len(self._leases)):
            self._owners = {digest: id_ for digest, id_ in self._owners.items() if id_ in self._leases}

    def check_new(self, lease: GuestLease, tickets: Iterable[Held]) -> None:
        """Whether tickets are news: a broker could have a guest give back what another lease of the guest's uses, and
        the guest be blamed for that. Raises ``TicketError``.
        """
        for held in tickets:
            if held.digest.hex() in self._returns:
                raise TicketError(Code.RETURNED, "the claim is on its way back already")
            if (owner := self._owners.get(held.digest, lease.id)) != lease.id:
                raise TicketError(Code.REDEEMED, f"the claim was granted for lease {owner}")

    def give_back(self, lease: GuestLease, held: Held, site: str, receipt: bytes = b"") -> None:
        """What is left of a ticket goes back to its broker, by way of the site."""
        if held.term.end <= self._kernel.now or held.digest.hex() in self._returns:
            return
        lease.number += 1
        at = max(self._kernel.now, held.term.start)
        giving = Return(held.digest.hex(), lease.id, site, lease.broker, held, lease.number, at)
        self._begin(giving)
        self._kernel.touch(lease)
        if receipt:
            self._returning(giving, receipt)
        else:
            self._send(giving)

    def _begin(self, giving: Return) -> None:
        self._returns[giving.id] = giving
        self._kernel.note(
            giving.lease, "give_back", "", returns.RELINQUISHING, said(f"claim {giving.id[:16]} from {mark(giving.at)}")
        )
        self._kernel.touch(giving)

    def give_back_all(self, lease: GuestLease, tickets: Iterable[Held], site: str) -> None:
        """As :meth:`give_back`, for several."""
        for held in tickets:
            self.give_back(lease, held, site)

    def is_giving_back(self, lease: GuestLease) -> bool:
        """Whether a ticket of the lease is on its way to its site: what took its place is not redeemed before."""
        return any(giving.lease == lease.id and giving.is_at_site for giving in self._returns.values())

    def relinquish_rest(self, lease: GuestLease) -> bytes:
        """What a close says of the rest of the lease's ticket: that it is given up; empty where nothing is left."""
        held = lease.approved
        if held is None or held.term.end <= lease.operation.since:
            return b""
        signer = self._keyring.signer_of(decode_ticket(held.ticket).leaf.holder)
        return state(signer, RELINQUISHMENT, held.digest, lease.operation.since, lease.id).encode()

    def give_back_unknown(self, peer: str, message: TicketUpdate) -> None:
        """Tickets for a lease that is over here, or that nobody knows any more, are given back all the same. Raises
        ``TicketError`` for one that is none.
        """
        if message.status != "granted":
            return
        for data in (message.ticket, *split_tickets(message.continuations)):
            self._give_back_stray(peer, message.lease, data)

    def give_back_those_good(self, peer: str, message: TicketUpdate) -> None:
        """Each by itself: the first may be over when those that go on from it are not."""
        with suppress(TicketError):
            self.give_back_unknown(peer, message)

    def _give_back_stray(self, peer: str, lease_id: str, data: bytes) -> None:
        ticket = decode_ticket(data)
        site = self._sites(ticket.root.issuer)
        digest = ticket.leaf.digest
        lease = self._leases.get(lease_id)
        used = lease is not None and lease.approved is not None and lease.approved.digest == digest
        used = used or self._owners.get(digest, lease_id) != lease_id
        if not site or used or digest.hex() in self._returns or ticket.leaf.term.end <= self._kernel.now:
            return
        if len(self._returns) >= RETURNS_MAX:
            return
        leaf = self._keyring.verify(ticket, issuer=self._keyring.key_among(peer, ticket.leaf.issuer))
        held = Held(data, leaf.digest, leaf.units, leaf.term)
        # No number that the lease ever had: a late refusal of what that asked for must not settle this.
        number = STRAYS_FROM + self._kernel.next("serial")
        giving = Return(leaf.digest.hex(), lease_id, site, peer, held, number, max(self._kernel.now, leaf.term.start))
        self._begin(giving)
        self._send(giving)

    # -- on their way ------------------------------------------------------------------------------------------

    def _send(self, giving: Return) -> None:
        if giving.is_at_site:
            signer = self._keyring.signer_of(decode_ticket(giving.held.ticket).leaf.holder)
            note = state(signer, RELINQUISHMENT, giving.held.digest, giving.at, giving.lease).encode()
            message: Message = Relinquish(giving.lease, giving.number, giving.held.ticket, note)
            peer = giving.site
        else:
            message, peer = ReturnTicket(giving.lease, giving.number, giving.receipt), giving.broker
        self._kernel.send_owed(giving, peer, message)

    @takes(Relinquished)
    def _on_relinquished(self, peer: str, message: Relinquished) -> None:
        giving = self._numbered(message.lease, message.number)
        if giving is None or giving.site != peer or not giving.is_at_site:
            return
        if message.receipt:
            self._returning(giving, message.receipt)
        else:
            self._end(giving, "refused", message.reason)

    def _returning(self, giving: Return, receipt: bytes) -> None:
        self._kernel.owe_no_more(giving, giving.site)
        giving.receipt, giving.tries = receipt, 0
        self._kernel.fire(giving, "receipt")
        self._send(giving)
        self._is_back(giving)

    def _is_back(self, giving: Return) -> None:
        for tell in self.back:
            tell(giving.lease)

    def _end(self, giving: Return, event: str, why: Reason | None = None) -> None:
        self._kernel.fire(giving, event, why)
        self._kernel.owe_no_more(giving, giving.site)
        self._kernel.owe_no_more(giving, giving.broker)
        del self._returns[giving.id]
        self._is_back(giving)
        self._kernel.erase(giving)

    def accepted(self, peer: str, message: Accepted) -> bool:
        """Whether a server has accepted a return, and not another request: the broker has the claim back."""
        giving = self._numbered(message.lease, message.number)
        if giving is not None and giving.is_at_broker and giving.broker == peer:
            self._end(giving, "accepted")
        return giving is not None

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error answers a return, which a server refuses to take."""
        giving = self._numbered(message.lease, message.number)
        if giving is not None and self.awaits(giving, peer):
            self._end(giving, "refused", Reason(Code.SAYS, peer).because(message.reason))
        return giving is not None

    def _numbered(self, lease: str, number: int) -> Return | None:
        if not self._returns:
            return None
        return next((r for r in self._returns.values() if r.number == number and r.lease == lease), None)

    def _due_at(self, giving: Return) -> Instant:
        return min(giving.send_at, giving.held.term.end)

    def _due(self, giving: Return) -> None:
        if giving.held.term.end <= self._kernel.now:
            self._end(giving, "end", Reason(Code.TERM_OVER))
        elif giving.send_at <= self._kernel.now:
            self._send(giving)

    def awaits(self, giving: Return, peer: str) -> bool:
        """Whether ``peer`` is asked to take it."""
        to = giving.site if giving.is_at_site else giving.broker
        return giving.id in self._returns and peer == to

    @query("returns")
    def _query_returns(self) -> list[ReturnDetails]:
        return [ReturnDetails(one.id, one.state, one.lease, one.held.units, one.at, one.held.term.end) for one in self]

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: it is sent at once."""
        for giving in map(Return.from_row, rows):
            self._returns[giving.id] = giving
            self._kernel.schedule(giving, self._kernel.now)
        for lease in self._leases.values():
            held = (lease.approved, lease.renewal, *lease.continuations)
            self.own(lease, [one for one in held if one is not None])
