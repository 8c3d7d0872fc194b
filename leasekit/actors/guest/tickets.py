"""Which tickets a guest's lease can run on, and go on by."""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.peering import Peering
from leasekit.actors.settings import ENDORSE, Peer
from leasekit.core.claims.statements import CONTRACT, check_statement, decode_statement
from leasekit.core.claims.ticket import decode_ticket, split_tickets
from leasekit.core.errors import CommandError, RemoteError, TicketError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, Held
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, LeaseUpdate, TicketUpdate
from leasekit.core.reasons import Code, mark


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
        if leaf.properties != digest_properties(message.properties):
            raise TicketError(Code.WRONG_PROPERTIES, "the resource properties are not those that its claims name")
        if asked.op != NEW and running is not None and (leaf.units > asked.units or site != lease.site):
            raise TicketError(Code.WRONG_TERMS, f"{leaf.units} units at {site} were not asked for")
        if asked.op == EXTEND and leaf.term.start != asked.term.start:
            raise TicketError(
                Code.WRONG_TERMS, f"its term starts at {mark(leaf.term.start)}, not at {mark(asked.term.start)}"
            )
        victims = lease.victims if asked.op == EXTEND else ()
        extends = message.number if asked.op == EXTEND else running.extends if running is not None else 0
        held = Held(message.ticket, leaf.digest, leaf.units, leaf.term, extends, victims)
        rest = tuple(one._replace(extends=extends) for one in self._further_of(lease.broker, message, held))
        last = (held, *rest)[-1].term.end
        if asked.op == MODIFY and lease.further and last != lease.further[0].term.start:
            raise TicketError(
                Code.WRONG_TERMS, f"it ends at {mark(last)}, the lease goes on from {mark(lease.further[0].term.start)}"
            )
        return held, rest, site

    def _further_of(self, broker: str, message: TicketUpdate, held: Held) -> tuple[Held, ...]:
        """The tickets that go on from ``held``: for as many units of the same, at the same site. Raises
        ``TicketError``.
        """
        first = decode_ticket(message.ticket)
        found: list[Held] = []
        for data in split_tickets(message.further):
            ticket = decode_ticket(data)
            leaf = self._keyring.verify(ticket, issuer=self._keyring.key_among(broker, ticket.leaf.issuer))
            if self._sites.name_of(ticket.root.issuer) != self._sites.name_of(first.root.issuer):
                raise TicketError(Code.WRONG_SITE, "the tickets are of different sites")
            end = found[-1].term.end if found else held.term.end
            same = (leaf.type, leaf.properties, leaf.units) == (first.leaf.type, first.leaf.properties, held.units)
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

    def drop_further(self, lease: GuestLease, message: TicketUpdate) -> bool:
        """The broker ends what goes on from a lease's ticket: whether it is that and no more."""
        held = lease.following[0] if lease.state == sm.ACTIVE_TICKETED else lease.approved
        if held is None or not lease.further or not message.truncation:
            return False
        at = decode_statement(message.truncation).at
        if at < held.term.end:
            return False
        self._returning.give_back_all(lease, [one for one in lease.further if one.term.end > at], lease.site)
        lease.further = tuple(one for one in lease.further if one.term.end <= at)
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
        tickets = (lease.approved, lease.renewal, *lease.further)
        known = {lease.before, *(held.digest for held in tickets if held is not None)}
        if contract.subject not in known or not contract.detail.startswith(f"{lease.id} "):
            raise TicketError(Code.WRONG_CONTRACT, "the site's contract is for another claim or lease")
