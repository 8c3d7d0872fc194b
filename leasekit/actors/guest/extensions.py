"""How a guest's lease goes on beyond its term: by tickets in hand, which are redeemed one by one, or taken back.

A lease runs on one ticket (``approved``). Those that go on from it (``further``) were granted with it, where its term
lies in several delegations, or by extends. Each extend is taken back as a whole, the last one first, as long as nothing
of it has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasekit.actors.dispatch import command
from leasekit.actors.guest.desk import joint
from leasekit.actors.guest.suspension import GuestSuspension
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease, Held
from leasekit.core.protocol.messages import EXTEND, UNDO, Withdraw
from leasekit.core.time import SECOND
from leasekit.core.words import counted

TAKEN_BACK = "its guest takes the extend back"


class GuestExtensions(GuestSuspension):
    """What goes on from the terms of leases."""

    @command("lease.undo_extend")
    def _undo(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.records.describe(self.undo_extend(str(arguments.get("lease", ""))))

    def _send_ask(self, lease: GuestLease) -> None:
        raise NotImplementedError

    # -- going on ----------------------------------------------------------------------------------------------

    def in_hand(self, lease: GuestLease) -> bool:
        """An active lease goes on by the tickets in hand, if there are any; whether there are."""
        if not sm.MACHINE.allows((lease.state, lease.pending), "in_hand") or not lease.further:
            return False
        self.kernel.fire(sm.MACHINE, lease, "in_hand", _span(lease.further[:1]))
        return True

    @staticmethod
    def go_over(lease: GuestLease) -> None:
        """The site goes by what it was asked last."""
        if lease.renewal is not None:
            lease.approved, lease.renewal, lease.truncation = lease.renewal, None, b""
        if lease.next_configuration is not None:
            lease.configuration, lease.next_configuration = lease.next_configuration, None
        lease.victims = lease.victims if lease.ask else ()

    def _go_on(self, lease: GuestLease) -> None:
        """Ask the site to go on by the first of the tickets in hand."""
        lease.renewal, lease.further = lease.further[0], lease.further[1:]
        self.kernel.fire(sm.MACHINE, lease, "redeem")
        self._redeem(lease, EXTEND)

    def _must_allow(self, lease: GuestLease, event: str) -> None:
        super()._must_allow(lease, event)
        if event != "modify" or lease.pending != sm.EXTENDING_LEASE:
            return
        which = f"lease {lease.id} is about to go on by its extension, at {lease.end}"
        if not lease.is_promised:
            raise CommandError(f"{which}, which site {lease.site} has yet to confirm: modify it when that has come")
        left, least = (
            self.limits.redeem_by(lease) - self.kernel.now,
            self.kernel.settings.clock_skew + self.kernel.settings.retry_first,
        )
        if left < least:
            raise CommandError(
                f"{which}: too late to modify it before, which may take {least / SECOND:g} s; modify it from then on"
            )

    def take_in_hand(self, lease: GuestLease) -> None:
        """The ticket that the site was asked to go on by, and has accepted, is in hand while a modify comes between."""
        if lease.pending == sm.EXTENDING_LEASE and lease.renewal is not None:
            self.kernel.owe_no_more(lease, lease.site)
            lease.further = (lease.renewal._replace(promised=True), *lease.further)
            lease.op, lease.op_number, lease.renewal = "", 0, None

    def _go_on_unmodified(self, lease: GuestLease) -> None:
        """The site has not said what came of a modify: it may have taken it. Its ticket ends when the lease goes on."""
        lease.before = lease.renewal.digest if lease.renewal is not None else lease.before
        lease.renewal, lease.next_configuration, lease.victims, lease.truncation = None, None, (), b""
        lease.reason = f"site {lease.site} did not modify the lease in time"
        self.kernel.fire(sm.MACHINE, lease, "lease_refused", lease.reason)
        self._go_on(lease)

    # -- taking it back ----------------------------------------------------------------------------------------

    def undo_extend(self, name: str) -> GuestLease:
        """Take the last extension of a lease back, which has not begun. Raises ``CommandError``."""
        lease = self.records.find(name)
        events = sm.TABLE[lease.state, lease.pending]
        if ("undo" not in events and "let_go" not in events) or lease.closing:
            meanwhile = "undo its extension when that is settled" if lease.following and not lease.closing else ""
            which = f"lease {lease.id} is {joint(lease)}"
            raise CommandError(f"{which}: {meanwhile or 'it has no extension that could be undone now'}")
        if lease.pending == sm.EXTENDING_TICKET:
            self.kernel.fire(sm.MACHINE, lease, "undo", TAKEN_BACK)
            self.withdraw(lease)
            return lease
        if lease.pending == sm.EXTENDING_FURTHER:
            self._forsake(lease)
            return lease
        tickets = self.last_extension(lease)
        why = _span(tickets)
        if tickets[0] is lease.renewal:
            self.kernel.fire(sm.MACHINE, lease, "undo", why)
            self._redeem(lease, UNDO)
            return lease
        self.kernel.fire(sm.MACHINE, lease, "undo" if lease.pending == NONE else "let_go", why)
        lease.further = lease.further[: -len(tickets)]
        self.returns.give_back_all(lease, tickets, lease.site)
        self.advance(lease)
        return lease

    def last_extension(self, lease: GuestLease) -> tuple[Held, ...]:
        """The tickets that the last extend of a lease brought. Raises ``CommandError`` if there is none, or if it has
        begun.
        """
        following = lease.following
        extends = following[-1].extends if following else 0
        if not extends:
            raise CommandError(f"lease {lease.id} has no extension that could be undone: it was granted as it is")
        if lease.approved is not None and lease.approved.extends == extends:
            raise CommandError(f"the last extension of lease {lease.id} has begun: it can't be undone")
        return tuple(one for one in following if one.extends == extends)

    def withdraw(self, lease: GuestLease) -> None:
        """Take back what the broker was asked: it is told until it says what became of the request."""
        lease.number += 1
        lease.ask_tries = 0
        self._send_ask(lease)

    def _forsake(self, lease: GuestLease) -> None:
        """The broker is told once that its answer is not wanted: if a ticket comes all the same, it goes back."""
        self.kernel.fire(sm.MACHINE, lease, "let_go", TAKEN_BACK)
        lease.number += 1
        self.kernel.send(lease.broker, Withdraw(lease.id, lease.number, lease.ask))
        self.kernel.owe_no_more(lease, lease.broker)
        lease.ask, lease.victims = 0, ()
        self.kernel.touch(lease)

    def _on_undone(self, lease: GuestLease, reason: str) -> None:
        """The site does not go on by the extension: all of it goes back."""
        if not sm.MACHINE.allows((lease.state, lease.pending), "undone"):
            return
        tickets = self.last_extension(lease)
        lease.op, lease.op_number, lease.renewal, lease.further, lease.victims = "", 0, None, (), ()
        lease.reason = reason
        self.kernel.fire(sm.MACHINE, lease, "undone", _span(tickets))
        self.returns.give_back_all(lease, tickets, lease.site)


def _span(tickets: tuple[Held, ...]) -> str:
    return f"{counted(tickets[0].units)} from {tickets[0].term.start} to {tickets[-1].term.end}"
