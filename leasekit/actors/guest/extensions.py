"""How a guest's lease goes on beyond its term: by tickets in hand, which are redeemed one by one, or taken back.

A lease runs on one ticket (``approved``). Those that go on from it (``further``) were granted with it, where its term
lies in several delegations, or by extends. Each extend is taken back as a whole, the last one first, as long as nothing
of it has begun.
"""

from __future__ import annotations

from typing import Any

from leasekit.actors.guest.desk import joint
from leasekit.actors.guest.suspension import GuestSuspension
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease, Held
from leasekit.core.protocol.messages import EXTEND, UNDO
from leasekit.core.words import counted


class GuestExtensions(GuestSuspension):
    """What goes on from the terms of leases."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._commands["lease.undo_extend"] = lambda a: self._named(self.undo_extend(str(a.get("lease", ""))))

    def _send_ask(self, lease: GuestLease) -> None:
        raise NotImplementedError

    # -- going on ----------------------------------------------------------------------------------------------

    def in_hand(self, lease: GuestLease) -> bool:
        """An active lease goes on by the tickets in hand, if there are any; whether there are."""
        if (lease.state, lease.pending) != (sm.ACTIVE, NONE) or not lease.further:
            return False
        self._fire(sm.MACHINE, lease, "in_hand", _span(lease.further[:1]))
        return True

    @staticmethod
    def go_over(lease: GuestLease) -> None:
        """The site goes by what it was asked last."""
        if lease.renewal is not None:
            lease.approved, lease.renewal, lease.truncation = lease.renewal, None, b""
        if lease.next_configuration is not None:
            lease.configuration, lease.next_configuration = lease.next_configuration, None
        lease.victims = ()

    def _go_on(self, lease: GuestLease) -> None:
        """Ask the site to go on by the first of the tickets in hand."""
        lease.renewal, lease.further = lease.further[0], lease.further[1:]
        lease.victims = lease.renewal.victims
        self._fire(sm.MACHINE, lease, "redeem")
        self._redeem(lease, EXTEND)

    # -- taking it back ----------------------------------------------------------------------------------------

    def undo_extend(self, name: str) -> GuestLease:
        """Take the last extension of a lease back, which has not begun. Raises ``CommandError``."""
        lease = self.find(name)
        if not sm.MACHINE.allows((lease.state, lease.pending), "undo") or lease.closing:
            raise CommandError(f"lease {lease.id} is {joint(lease)}: it has no extension that could be undone now")
        if lease.pending == sm.EXTENDING_TICKET:
            self._withdraw(lease, "its guest takes the extend back")
            return lease
        tickets = self.last_extension(lease)
        why = _span(tickets)
        if tickets[0] is lease.renewal:
            self._fire(sm.MACHINE, lease, "undo", why)
            self._redeem(lease, UNDO)
            return lease
        self._fire(sm.MACHINE, lease, "undo" if lease.pending == NONE else "let_go", why)
        lease.further = lease.further[: -len(tickets)]
        self.give_back_all(lease, tickets, lease.site)
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

    def _withdraw(self, lease: GuestLease, why: str) -> None:
        """Take back what the broker was asked: it is told until it says what became of the request."""
        self._fire(sm.MACHINE, lease, "undo", why)
        lease.number += 1
        lease.ask_tries = 0
        self._send_ask(lease)

    def _on_undone(self, lease: GuestLease, reason: str) -> None:
        """The site does not go on by the extension: all of it goes back."""
        if not sm.MACHINE.allows((lease.state, lease.pending), "undone"):
            return
        tickets = self.last_extension(lease)
        lease.op, lease.op_number, lease.renewal, lease.further, lease.victims = "", 0, None, (), ()
        lease.reason = reason
        self._fire(sm.MACHINE, lease, "undone", _span(tickets))
        self.give_back_all(lease, tickets, lease.site)


def _span(tickets: tuple[Held, ...]) -> str:
    return f"{counted(tickets[0].units)} from {tickets[0].term.start} to {tickets[-1].term.end}"
