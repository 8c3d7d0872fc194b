"""Which tickets a site takes: what is checked of a ticket by itself, and what is known of its claims."""

from __future__ import annotations

from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import AuthoritySettings
from leasekit.actors.site.claims import REDEEMED, VOID, SiteClaims
from leasekit.actors.site.incidents import Incidents
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.limits import DelegationLimits
from leasekit.core.claims.claim import Claim
from leasekit.core.claims.ticket import REPLACES, Ticket, decode_ticket
from leasekit.core.errors import TicketError
from leasekit.core.properties import Properties, digest_properties
from leasekit.core.protocol.fields import LIST_MAX
from leasekit.core.reasons import Code, mark


class ClaimHistory:
    """What has happened to a ticket's claims already."""

    def __init__(self, claims: SiteClaims, incidents: Incidents, limits: DelegationLimits) -> None:
        self._claims = claims
        self._incidents = incidents
        self._limits = limits

    def check(self, ticket: Ticket) -> None:
        """Raises ``TicketError`` if the ticket can't be redeemed any more."""
        known = self._claims.get(ticket.leaf.digest)
        if known is not None and known.state == VOID:
            raise TicketError(Code.RETURNED, f"the claim was given back as of {mark(known.at)}")
        if known is not None and known.state == REDEEMED:
            raise TicketError(Code.REDEEMED, f"the claim was redeemed for lease {known.lease}")
        self._incidents.check_issuers(ticket)
        self._limits.check_reclaimed(ticket)


class TicketChecks:
    """The checks that a ticket passes before it is counted."""

    def __init__(
        self,
        kernel: Kernel,
        keyring: Keyring,
        inventory: Inventory,
        settings: AuthoritySettings,
        history: ClaimHistory,
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._inventory = inventory
        self._settings = settings
        self._history = history

    def check(self, peer: str, data: bytes, resource: Properties) -> tuple[Ticket, Claim]:
        """The ticket and its leaf, if ``peer`` may redeem it now. Raises ``TicketError`` with the first check that
        failed.
        """
        ticket = decode_ticket(data)
        holder = self._keyring.key_among(peer, ticket.leaf.holder)
        leaf = self._keyring.verify(ticket, root=self._keyring.own_among(ticket.root.issuer), holder=holder)
        if leaf.units > LIST_MAX:
            raise TicketError(Code.TOO_LARGE, f"{leaf.units} units don't fit in one lease: at most {LIST_MAX} do")
        if leaf.term.end <= self._kernel.now:
            raise TicketError(
                Code.EXPIRED,
                f"claim ended at {mark(leaf.term.end)}, it is {mark(self._kernel.now)} at {self._keyring.name}",
                who=self._keyring.name,
                at=leaf.term.end,
                now=self._kernel.now,
            )
        if leaf.properties != digest_properties(resource):
            raise TicketError(Code.WRONG_PROPERTIES, "the resource properties are not those that the claims name")
        if leaf.type not in self._inventory.types:
            raise TicketError(
                Code.UNKNOWN_TYPE,
                f"type: found {leaf.type!r}, {self._keyring.name} has {', '.join(self._inventory.types)}",
            )
        if leaf.term.start > self._kernel.now + self._settings.redeem_ahead_max:
            raise TicketError(
                Code.FUTURE, f"the term starts at {mark(leaf.term.start)}, too far ahead of {mark(self._kernel.now)}"
            )
        self._history.check(ticket)
        return ticket, leaf

    def check_first(self, peer: str, data: bytes, resource: Properties) -> tuple[Ticket, Claim]:
        """The ticket of a new term. One that a modify was granted is none: counted beside the claim that it replaces,
        it would make its honest issuer look guilty. Raises ``TicketError``.
        """
        ticket, leaf = self.check(peer, data, resource)
        if REPLACES in leaf.constraints:
            old = leaf.constraints[REPLACES][:16]
            raise TicketError(
                Code.REPLACES, f"claim {leaf.id[:16]} replaces claim {old}: it is for a modify of its lease"
            )
        return ticket, leaf
