"""Which tickets a guest's lease can run on and go on by, and those that it gives back unused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from leasekit.actors.kernel import Kernel, query, takes
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.settings import ENDORSE, Peer
from leasekit.core.claims.claim import decode_ticket, split_tickets
from leasekit.core.claims.statements import CONTRACT, RELINQUISHMENT, check_statement, decode_statement, state
from leasekit.core.classes import check_named
from leasekit.core.errors import CommandError, RemoteError, TicketError
from leasekit.core.leases import returns
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, Held, Return
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    Accepted,
    ErrorReply,
    LeaseUpdate,
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

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Return, due_at=self._due_at, on_due=self._due, awaits=self.awaits, send=self._send_now)

    def __iter__(self) -> Iterator[Return]:
        return iter(self._returns.values())

    def __len__(self) -> int:
        return len(self._returns)

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
        if giving.state == returns.RELINQUISHING:
            signer = self._keyring.signer_of(decode_ticket(giving.held.ticket).leaf.holder)
            note = state(signer, RELINQUISHMENT, giving.held.digest, giving.at, giving.lease).encode()
            message: Message = Relinquish(giving.lease, giving.number, giving.held.ticket, note)
            peer = giving.site
        else:
            message, peer = ReturnTicket(giving.lease, giving.number, giving.receipt), giving.broker
        self._kernel.send(peer, message)
        self._kernel.owe(giving, peer)
        giving.send_at = self._kernel.now + self._kernel.backoff(giving.tries)
        giving.tries += 1

    @takes(Relinquished)
    def _on_relinquished(self, peer: str, message: Relinquished) -> None:
        giving = self._numbered(message.lease, message.number)
        if giving is None or giving.site != peer or giving.state != returns.RELINQUISHING:
            return
        if message.receipt:
            self._returning(giving, message.receipt)
        else:
            self._end(giving, "refused", message.reason)

    def _returning(self, giving: Return, receipt: bytes) -> None:
        self._kernel.owe_no_more(giving, giving.site)
        giving.receipt, giving.tries = receipt, 0
        self._kernel.fire(returns.MACHINE, giving, "receipt")
        self._send(giving)

    def _end(self, giving: Return, event: str, why: Reason | None = None) -> None:
        self._kernel.fire(returns.MACHINE, giving, event, why)
        self._kernel.owe_no_more(giving, giving.site)
        self._kernel.owe_no_more(giving, giving.broker)
        del self._returns[giving.id]
        self._kernel.erase(giving)

    def accepted(self, peer: str, message: Accepted) -> bool:
        """Whether a server has accepted a return, and not another request: the broker has the claim back."""
        giving = self._numbered(message.lease, message.number)
        if giving is not None and giving.state == returns.RETURNING and giving.broker == peer:
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

    def _send_now(self, giving: Return, peer: str) -> None:
        giving.tries = 0
        self._send(giving)

    def awaits(self, giving: Return, peer: str) -> bool:
        """Whether ``peer`` is asked to take it."""
        to = giving.site if giving.state == returns.RELINQUISHING else giving.broker
        return giving.id in self._returns and peer == to

    @query("returns")
    def _query_returns(self) -> list[dict[str, Any]]:
        return [
            {
                "claim": r.id,
                "lease": r.lease,
                "stage": r.state,
                "units": r.held.units,
                "from": r.at,
                "end": r.held.term.end,
            }
            for r in self
        ]

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: it is sent at once."""
        for giving in map(Return.from_row, rows):
            self._returns[giving.id] = giving
            self._kernel.schedule(giving, self._kernel.now)


class Sites:
    """The sites that a guest knows, by the keys that chains begin with: those that they had before as well."""

    def __init__(self, kernel: Kernel, keyring: Keyring, peering: Peering) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._peering = peering
        self._by_key = _by_key(keyring.peers.values())

    def changed(self, peer: str) -> None:
        """A peer has come, gone or changed its key."""
        self._by_key = _by_key(self._keyring.peers.values())

    def name_of(self, key: bytes) -> str:
        """The site of a key; empty if no site has it."""
        return self._by_key.get(key, "")

    def know(self, broker: str, endorsement: bytes) -> None:
        """The broker makes the ticket's site known. If it can't be believed, neither can the ticket: it says why."""
        try:
            self._keyring.check_may(broker, ENDORSE)
            self._peering.take_endorsement(broker, endorsement)
        except RemoteError as error:
            self._kernel.complain(f"{broker}'s endorsement of a site", because=error.reason)


def _by_key(peers: Iterable[Peer]) -> dict[bytes, str]:
    sites = [peer for peer in peers if peer.role == "authority"]
    former = {key: peer.name for peer in sites for key, _ in peer.former}
    return {**former, **{peer.key: peer.name for peer in sites}}


class Tickets:
    """What leases run on."""

    def __init__(self, keyring: Keyring, sites: Sites, returns: Returns) -> None:
        self._keyring = keyring
        self._sites = sites
        self._returning = returns

    def check(self, lease: GuestLease, message: TicketUpdate) -> tuple[Held, tuple[Held, ...], str]:
        """The ticket that was asked for, those that go on from it, and their site. Raises ``TicketError``."""
        ticket = decode_ticket(message.ticket)
        site = self._sites.name_of(ticket.root.issuer)
        if not site:
            raise TicketError(
                Code.UNKNOWN_SITE, f"its root is no site known here (the broker calls it {message.site!r})"
            )
        leaf = self._keyring.verify(ticket, issuer=self._keyring.key_among(lease.broker, ticket.leaf.issuer))
        asked, running = lease.asked, lease.approved
        if leaf.type != lease.type:
            raise TicketError(Code.WRONG_TYPE, f"it is for {leaf.type!r}, not {lease.type!r}")
        check_named(leaf.classes, message.properties, message.classes)
        if asked.op != NEW and running is not None and (leaf.units > asked.units or site != lease.site):
            raise TicketError(Code.WRONG_TERMS, f"{leaf.units} units at {site} were not asked for")
        if asked.op == EXTEND and leaf.term.start != asked.term.start:
            raise TicketError(
                Code.WRONG_TERMS, f"its term starts at {mark(leaf.term.start)}, not at {mark(asked.term.start)}"
            )
        victims = lease.victims if asked.op == EXTEND else ()
        extends = message.number if asked.op == EXTEND else running.extends if running is not None else 0
        held = Held(message.ticket, leaf.digest, leaf.units, leaf.term, extends, victims)
        rest = tuple(one._replace(extends=extends) for one in self._continuations_of(lease.broker, message, held))
        last = (held, *rest)[-1].term.end
        if asked.op == MODIFY and lease.continuations and last != lease.continuations[0].term.start:
            raise TicketError(
                Code.WRONG_TERMS,
                f"it ends at {mark(last)}, the lease goes on from {mark(lease.continuations[0].term.start)}",
            )
        return held, rest, site

    def _continuations_of(self, broker: str, message: TicketUpdate, held: Held) -> tuple[Held, ...]:
        """The tickets that go on from ``held``: for as many units of the same, at the same site. Raises
        ``TicketError``.
        """
        first = decode_ticket(message.ticket)
        found: list[Held] = []
        for data in split_tickets(message.continuations):
            ticket = decode_ticket(data)
            leaf = self._keyring.verify(ticket, issuer=self._keyring.key_among(broker, ticket.leaf.issuer))
            if self._sites.name_of(ticket.root.issuer) != self._sites.name_of(first.root.issuer):
                raise TicketError(Code.WRONG_SITE, "the tickets are of different sites")
            end = found[-1].term.end if found else held.term.end
            same = (leaf.type, leaf.classes) == (first.leaf.type, first.leaf.classes)
            if not same or leaf.term.start != end:
                raise TicketError(
                    Code.WRONG_TERMS,
                    f"{leaf.units} {leaf.type!r} from {mark(leaf.term.start)} on don't go on from {held.units} "
                    f"until {mark(end)}",
                )  # fmt: skip
            found.append(Held(data, leaf.digest, leaf.units, leaf.term))
        return tuple(found)

    def know_site(self, broker: str, message: TicketUpdate) -> None:
        """Without its site, a ticket could neither be redeemed nor go back."""
        if message.endorsement:
            self._sites.know(broker, message.endorsement)

    def give_back_strays(self, broker: str, message: TicketUpdate) -> None:
        """Tickets for a lease that is over here, or unknown, go back. Raises ``TicketError`` for one that is none."""
        self.know_site(broker, message)
        self._returning.give_back_unknown(broker, message)

    def give_back_unwanted(self, broker: str, message: TicketUpdate) -> None:
        """Tickets that were not asked for, or can't be believed, go back, each that is good."""
        self._returning.give_back_those_good(broker, message)

    def drop_continuations(self, lease: GuestLease, message: TicketUpdate) -> bool:
        """The broker ends what goes on from a lease's ticket: whether it is that and no more."""
        held = lease.following[0] if lease.state == sm.ACTIVE_TICKETED else lease.approved
        if held is None or not lease.continuations or not message.truncation:
            return False
        at = decode_statement(message.truncation).at
        if at < held.term.end:
            return False
        self._returning.give_back_all(lease, [one for one in lease.continuations if one.term.end > at], lease.site)
        lease.continuations = tuple(one for one in lease.continuations if one.term.end <= at)
        return True

    def check_returned(self, lease: GuestLease) -> None:
        """A broker grants nothing from a lease's end on while that is granted already. Raises ``CommandError``."""
        if any(one.lease == lease.id and one.held.term.start >= lease.end for one in self._returning):
            raise CommandError(
                f"the extension of lease {lease.id} that was taken back is still on its way to {lease.broker}: try "
                "again when it has arrived"
            )

    def check_contract(self, lease: GuestLease, message: LeaseUpdate) -> None:
        """The site's signed lease must name one of the tickets in hand."""
        contract = check_statement(
            self._keyring.scheme, message.contract, CONTRACT, signer=self._keyring.said_by(lease.site, message.contract)
        )
        tickets = (lease.approved, lease.renewal, *lease.continuations)
        known = {lease.before, *(held.digest for held in tickets if held is not None)}
        if contract.subject not in known or not contract.detail.startswith(f"{lease.id} "):
            raise TicketError(Code.WRONG_CONTRACT, "the site's contract is for another claim or lease")
