"""What a guest gives back: tickets, or the rest of their terms, on their way to the broker by way of the site.

See :mod:`leasekit.core.leases.returns` for the machine. A return is a record of its own, because it outlives its lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from leasekit.actors.dispatch import takes
from leasekit.actors.guest.units import GuestUnits
from leasekit.core.claims.statements import RELINQUISHMENT, state
from leasekit.core.claims.ticket import decode_ticket, split_tickets
from leasekit.core.errors import TicketError
from leasekit.core.leases import returns
from leasekit.core.leases.records import GuestLease, Held, Return
from leasekit.core.protocol.messages import Message, Relinquish, Relinquished, ReturnTicket, TicketUpdate
from leasekit.core.time import Instant

STRAYS_FROM: Final = 2**32
"""Returns of tickets whose leases are over here are numbered from here on: no lease has so many requests."""
RETURNS_MAX: Final = 10_000
"""How many tickets for leases that nobody knows are on their way back at once, at most."""


class GuestReturns(GuestUnits):
    """Claims on their way back."""

    def give_back(self, lease: GuestLease, held: Held, site: str, receipt: bytes = b"") -> None:
        """What is left of a ticket goes back to its broker, by way of the site."""
        if held.term.end <= self.kernel.now or held.digest.hex() in self.returns:
            return
        lease.number += 1
        at = max(self.kernel.now, held.term.start)
        giving = Return(held.digest.hex(), lease.id, site, lease.broker, held, lease.number, at)
        self._begin_return(giving)
        self.kernel.touch(lease)
        if receipt:
            self._returning(giving, receipt)
        else:
            self._send_return(giving)

    def _begin_return(self, giving: Return) -> None:
        self.returns[giving.id] = giving
        self.kernel.note(
            giving.lease, "give_back", "", returns.RELINQUISHING, f"claim {giving.id[:16]} from {giving.at}"
        )
        self.kernel.touch(giving)

    def give_back_all(self, lease: GuestLease, tickets: Iterable[Held], site: str) -> None:
        """As :meth:`give_back`, for several."""
        for held in tickets:
            self.give_back(lease, held, site)

    def relinquish_rest(self, lease: GuestLease) -> bytes:
        """What a close says of the rest of the lease's ticket: that it is given up; empty where nothing is left."""
        held = lease.approved
        if held is None or held.term.end <= lease.op_since:
            return b""
        signer = self.keyring.signer_of(decode_ticket(held.ticket).leaf.holder)
        return state(signer, RELINQUISHMENT, held.digest, lease.op_since, lease.id).encode()

    @staticmethod
    def _is_made_anew(lease: GuestLease, message: TicketUpdate) -> bool:
        """Whether the broker has forgotten the lease, and then granted its first request, which came late, as if it
        were another's: the ticket is not the one that the lease began with.
        """
        number, digest = lease.began
        if message.status != "granted" or message.number != number:
            return False
        return decode_ticket(message.ticket).leaf.digest != digest

    def _give_back_unknown(self, peer: str, message: TicketUpdate) -> None:
        """Tickets for a lease that is over here, or that nobody knows any more, are given back all the same. Raises
        ``TicketError`` for one that is none.
        """
        if message.status != "granted":
            return
        for data in (message.ticket, *split_tickets(message.further)):
            self._give_back_stray(peer, message.lease, data)

    def _give_back_those_good(self, peer: str, message: TicketUpdate) -> None:
        """Each by itself: the first may be over when those that go on from it are not."""
        with suppress(TicketError):
            self._give_back_unknown(peer, message)

    def _give_back_stray(self, peer: str, lease_id: str, data: bytes) -> None:
        ticket = decode_ticket(data)
        site = self.sites_by_key.get(ticket.root.issuer)
        digest = ticket.leaf.digest
        lease = self.leases.get(lease_id)
        used = lease is not None and lease.approved is not None and lease.approved.digest == digest
        if site is None or used or digest.hex() in self.returns or ticket.leaf.term.end <= self.kernel.now:
            return
        if len(self.returns) >= RETURNS_MAX:
            return
        leaf = self.keyring.verify(ticket, issuer=self.keyring.key_among(peer, ticket.leaf.issuer))
        held = Held(data, leaf.digest, leaf.units, leaf.term)
        # No number that the lease ever had: a late refusal of what that asked for must not settle this.
        number = STRAYS_FROM + self.kernel.next("serial")
        giving = Return(leaf.digest.hex(), lease_id, site, peer, held, number, max(self.kernel.now, leaf.term.start))
        self._begin_return(giving)
        self._send_return(giving)

    # -- on their way ------------------------------------------------------------------------------------------

    def _send_return(self, giving: Return) -> None:
        if giving.state == returns.RELINQUISHING:
            signer = self.keyring.signer_of(decode_ticket(giving.held.ticket).leaf.holder)
            note = state(signer, RELINQUISHMENT, giving.held.digest, giving.at, giving.lease).encode()
            message: Message = Relinquish(giving.lease, giving.number, giving.held.ticket, note)
            peer = giving.site
        else:
            message, peer = ReturnTicket(giving.lease, giving.number, giving.receipt), giving.broker
        self.kernel.send(peer, message)
        self.kernel.owe(giving, peer)
        giving.send_at = self.kernel.now + self.kernel.backoff(giving.tries)
        giving.tries += 1

    @takes(Relinquished)
    def _on_relinquished(self, peer: str, message: Relinquished) -> None:
        giving = self._return_numbered(message.lease, message.number)
        if giving is None or giving.site != peer or giving.state != returns.RELINQUISHING:
            return
        if message.receipt:
            self._returning(giving, message.receipt)
        else:
            self._end_return(giving, "refused", message.reason)

    def _returning(self, giving: Return, receipt: bytes) -> None:
        self.kernel.owe_no_more(giving, giving.site)
        giving.receipt, giving.tries = receipt, 0
        self.kernel.fire(returns.MACHINE, giving, "receipt")
        self._send_return(giving)

    def _end_return(self, giving: Return, event: str, why: str = "") -> None:
        self.kernel.fire(returns.MACHINE, giving, event, why)
        self.kernel.owe_no_more(giving, giving.site)
        self.kernel.owe_no_more(giving, giving.broker)
        del self.returns[giving.id]
        self.kernel.erase(giving)

    def _return_numbered(self, lease: str, number: int) -> Return | None:
        if not self.returns:
            return None
        return next((r for r in self.returns.values() if r.number == number and r.lease == lease), None)

    def _return_due_at(self, giving: Return) -> Instant:
        return min(giving.send_at, giving.held.term.end)

    def _return_due(self, giving: Return) -> None:
        if giving.held.term.end <= self.kernel.now:
            self._end_return(giving, "end", "the claim's term is over")
        elif giving.send_at <= self.kernel.now:
            self._send_return(giving)

    def _send_return_now(self, giving: Return, peer: str) -> None:
        giving.tries = 0
        self._send_return(giving)

    def _return_owes(self, giving: Return, peer: str) -> bool:
        owed_to = giving.site if giving.state == returns.RELINQUISHING else giving.broker
        return giving.id in self.returns and peer == owed_to
