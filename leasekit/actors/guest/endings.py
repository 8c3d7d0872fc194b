"""How a guest's lease ends: closed by its guest, over with its term, or lost at its site.

Units leave first, then the site is told, and what is left of the lease's tickets goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leasekit.actors.dispatch import command
from leasekit.actors.guest.decisions import structure
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.operations import CLOSE, GuestOperations
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import CloseLeaseEarly
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.words import words


class Endings:
    """The ends of a guest's leases."""

    def __init__(
        self, kernel: Kernel, records: Leases, operations: GuestOperations, returns: Returns, membership: Membership
    ) -> None:
        self._kernel = kernel
        self._records = records
        self._operations = operations
        self._returns = returns
        self._membership = membership
        self.ended: list[Callable[[GuestLease], None]] = []
        """Who is told, in order, of a lease that is over."""

    @command("lease.close")
    def _close(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._records.describe(self.close_early(structure(CloseLeaseEarly, arguments)))

    def close_early(self, wish: CloseLeaseEarly) -> GuestLease:
        """End a lease early. Closing one that is over, or closing already, is an error that says so."""
        lease = self._records.find(wish.lease)
        if lease.state in (sm.CLOSED, sm.FAILED):
            raise CommandError(
                f"lease {lease.id} is {lease.state} already: {words(lease.reason) or 'no reason recorded'}"
            )
        if lease.closing or lease.pending in (sm.CLOSING, sm.CLOSE_WAIT):
            raise CommandError(f"lease {lease.id} is being closed already")
        self.close(lease, said(wish.reason) if wish.reason else Reason(Code.CLOSED_BY_GUEST))
        return lease

    def close(self, lease: GuestLease, reason: Reason | None) -> None:
        """End the lease before its time."""
        if lease.closing:
            return
        before = (lease.state, lease.pending)
        self._kernel.fire(sm.MACHINE, lease, "close", reason)
        lease.closing, lease.close_reason, lease.reason = True, reason, reason
        self._after_close(lease, before)

    def close_if_open(self, lease: GuestLease | None, reason: Reason | None) -> None:
        """As :meth:`close`, for one of several that end together, which may be over already."""
        if lease is not None and sm.MACHINE.allows((lease.state, lease.pending), "close"):
            self.close(lease, reason)

    def expire(self, lease: GuestLease, reason: Reason | None) -> None:
        """The lease's time is up, or nobody answers for it any more."""
        before = (lease.state, lease.pending)
        self._kernel.fire(sm.MACHINE, lease, "expire", reason)
        lease.reason = lease.reason if lease.closing and lease.reason else reason
        self._after_close(lease, before)

    def _after_close(self, lease: GuestLease, before: tuple[str, str]) -> None:
        if lease.pending == sm.CLOSING:
            if lease.ask:
                self._operations.end_ask(lease)
            self._give_back_further(lease)  # a ticket that was redeemed already goes back when the site has closed it
            self._operations.end(lease)
            self._membership.move(lease, "leave")
            self._membership.leave(lease, list(lease.units))
            self._membership.check_left(lease)
        elif lease.pending == sm.CLOSE_WAIT and before == (sm.NASCENT, sm.TICKETING):
            self._operations.withdraw(lease)
        elif lease.pending == sm.CLOSE_WAIT:
            self._give_back_further(lease)
            self._operations.begin(lease, CLOSE)
        elif lease.state in (sm.CLOSED, sm.FAILED):
            self.end_unused(lease)

    def _give_back_further(self, lease: GuestLease) -> None:
        self._returns.give_back_all(lease, lease.further, lease.site)
        lease.further = ()

    def leave_at_once(self, lease: GuestLease) -> None:
        """Units that have not left in time are not waited for."""
        for unit in lease.units.values():
            unit.action = 0
        lease.busy = 0
        self.all_left(lease)

    def all_left(self, lease: GuestLease) -> None:
        """All units have left: the site is told."""
        if lease.pending == sm.CLOSING:
            self._kernel.fire(sm.MACHINE, lease, "left")
            self._membership.move(lease, "over")
            self._operations.begin(lease, CLOSE)

    def over(self, lease: GuestLease, event: str, reason: Reason | None, receipt: bytes = b"") -> None:
        """The site has said its last word on the lease: ``event`` is ``closed`` or ``lost``."""
        lease.reason = reason
        self._kernel.fire(sm.MACHINE, lease, event, reason)
        held = lease.approved
        # A site that ends a lease by itself gives no receipt: what is left of the claim is the broker's all the same.
        if held is not None and (receipt or held.term.end > self._kernel.now + self._kernel.settings.clock_skew):
            self._returns.give_back(lease, held, lease.site, receipt)
        self.end(lease)

    def end_unused(self, lease: GuestLease) -> None:
        """The lease is over, and its site does not have it: of one that was not redeemed, its claim may go on."""
        if lease.approved is not None:
            self._returns.give_back(lease, lease.approved, lease.site)
        self.end(lease)

    def end(self, lease: GuestLease) -> None:
        """The lease is over: nothing is owed for it any more, and those that waited for it are told."""
        lease.ended = self._kernel.now
        lease.ask, lease.operation = 0, lease.operation._replace(number=0)
        if lease.renewal is not None:
            self._returns.give_back(lease, lease.renewal, lease.site)
            lease.renewal = None
        self._give_back_further(lease)
        self._membership.move(lease, "over")
        self._membership.clear(lease)
        self._records.open.pop(lease.id, None)
        self._kernel.owe_no_more(lease, lease.broker)
        self._kernel.owe_no_more(lease, lease.site)
        self._kernel.touch(lease)
        for tell in self.ended:
            tell(lease)
