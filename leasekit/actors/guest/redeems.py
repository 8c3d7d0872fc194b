"""How a guest's lease goes on by its tickets: the first is redeemed, those in hand that go on from it follow, one by
one, and a modify puts another in the place of the one it runs on.

A lease runs on one ticket (``approved``). Those that go on from it (``further``) were granted with it, where its term
lies in several delegations, or by extends. Each extend is taken back as a whole, the last one first, as long as nothing
of it has begun.
"""

from __future__ import annotations

from collections.abc import Callable

from leasekit.actors.guest.decisions import joint
from leasekit.actors.guest.operations import GuestOperations
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import Asked, GuestLease, Held
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, UNDO, LeaseUpdate
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.time import Instant
from leasekit.core.words import counted

TAKEN_BACK = Reason(Code.EXTEND_TAKEN_BACK)


class Redeems:
    """What a guest's leases redeem. ``advance`` does what a lease's state allows then."""

    def __init__(
        self, kernel: Kernel, operations: GuestOperations, returns: Returns, advance: Callable[[GuestLease], None]
    ) -> None:
        self._kernel = kernel
        self._operations = operations
        self._returns = returns
        self._advance = advance

    # -- going on ----------------------------------------------------------------------------------------------

    def begin(self, lease: GuestLease) -> None:
        """Redeem a lease's first ticket."""
        self._kernel.fire(sm.MACHINE, lease, "redeem")
        self._operations.begin(lease, NEW)

    def in_hand(self, lease: GuestLease) -> bool:
        """An active lease goes on by the tickets in hand, if there are any; whether there are."""
        if not sm.MACHINE.allows((lease.state, lease.pending), "in_hand") or not lease.further:
            return False
        self._kernel.fire(sm.MACHINE, lease, "in_hand", _span(lease.further[:1]))
        return True

    def extend(self, lease: GuestLease, asked: Asked, victims: tuple[str, ...], deadline: Instant) -> None:
        """Ask the broker for what is to go on from a lease, and wait for the answer until ``deadline``."""
        lease.asked, lease.victims = asked, victims
        self._operations.ask(lease, "extend", deadline)

    def go_on(self, lease: GuestLease) -> None:
        """Ask the site to go on by the first of the tickets in hand."""
        lease.renewal, lease.further = lease.further[0], lease.further[1:]
        self._kernel.fire(sm.MACHINE, lease, "redeem")
        self._operations.begin(lease, EXTEND)

    def confirmed(self, lease: GuestLease, update: LeaseUpdate) -> None:
        """The site goes by what it was asked last."""
        late = Reason(Code.UNDO_LATE) if lease.operation.op == UNDO else None
        self._go_over(lease)
        self._operations.end(lease)
        lease.granted, lease.contract, lease.reason = update.term, update.contract, update.reason or late
        self._kernel.fire(sm.MACHINE, lease, "lease", said(f"{counted(len(update.units))} to {mark(update.term.end)}"))

    @staticmethod
    def _go_over(lease: GuestLease) -> None:
        if lease.renewal is not None:
            lease.approved, lease.renewal, lease.truncation = lease.renewal, None, b""
        if lease.next_configuration is not None:
            lease.configuration, lease.next_configuration = lease.next_configuration, None
        lease.victims = lease.victims if lease.ask else ()

    def refused(self, lease: GuestLease, reason: Reason | None) -> None:
        """The site does not do what it was asked."""
        renewal = lease.renewal
        # What was granted to go on from the running term, which a modify has not moved, stands.
        stands = lease.operation.op == MODIFY and (renewal is None or lease.asked.term.end == lease.end)
        self._operations.end(lease)
        lease.renewal, lease.truncation, lease.next_configuration, lease.victims = None, b"", None, ()
        lease.reason = reason
        self._kernel.fire(sm.MACHINE, lease, "lease_refused", reason)
        if renewal is not None:
            self._returns.give_back(lease, renewal, lease.site)
        if not stands:
            self._returns.give_back_all(lease, lease.further, lease.site)
            lease.further = ()
        if lease.pending == sm.WITHDRAWING:
            self._operations.withdraw(lease)  # what was to go on from it

    # -- changing ----------------------------------------------------------------------------------------------

    def modify(self, lease: GuestLease, asked: Asked, deadline: Instant) -> None:
        """Ask the broker for a ticket in the place of the one that a lease runs on."""
        lease.asked = asked
        self._operations.ask(lease, "modify", deadline)

    def modify_by(self, lease: GuestLease, held: Held, truncation: bytes) -> None:
        """Redeem that ticket."""
        lease.renewal, lease.truncation, lease.reason = held, truncation, None
        self._operations.begin(lease, MODIFY)

    def reconfigure(self, lease: GuestLease, why: Reason | None) -> None:
        """Have the site give a lease's units another configuration."""
        self._kernel.fire(sm.MACHINE, lease, "modify", why)
        self._operations.begin(lease, MODIFY)

    @staticmethod
    def change(lease: GuestLease, configuration: Properties | None, victims: tuple[str, ...]) -> None:
        """What the modify of a lease that is to come says beside its ticket."""
        lease.next_configuration, lease.victims = configuration, victims

    def take_in_hand(self, lease: GuestLease) -> None:
        """The ticket that the site was asked to go on by, and has accepted, is in hand while a modify comes between."""
        if lease.pending == sm.EXTENDING_LEASE and lease.renewal is not None:
            self._kernel.owe_no_more(lease, lease.site)
            lease.further = (lease.renewal._replace(promised=True), *lease.further)
            self._operations.end(lease)
            lease.renewal = None

    def go_on_from_modify(self, lease: GuestLease) -> bool:
        """A lease must go on although nobody knows what came of a modify; whether it can."""
        if lease.op_accepted:  # its site goes by it: what comes of it is told in time
            lease.before = lease.approved.digest if lease.approved is not None else b""
            self._go_over(lease)
        elif lease.is_promised:
            # The site may have taken the modify. Its ticket ends when the lease goes on.
            lease.before = lease.renewal.digest if lease.renewal is not None else lease.before
            lease.renewal, lease.next_configuration, lease.victims, lease.truncation = None, None, (), b""
            lease.reason = Reason(Code.NO_MODIFY, lease.site)
            self._kernel.fire(sm.MACHINE, lease, "lease_refused", lease.reason)
        else:
            return False
        self.go_on(lease)
        return True

    # -- taking it back ----------------------------------------------------------------------------------------

    def undo_extend(self, lease: GuestLease) -> None:
        """Take the last extension of a lease back, which has not begun. Raises ``CommandError``."""
        events = sm.TABLE[lease.state, lease.pending]
        if ("undo" not in events and "let_go" not in events) or lease.closing:
            meanwhile = "undo its extension when that is settled" if lease.following and not lease.closing else ""
            which = f"lease {lease.id} is {joint(lease)}"
            raise CommandError(f"{which}: {meanwhile or 'it has no extension that could be undone now'}")
        if lease.pending == sm.EXTENDING_TICKET:
            self._kernel.fire(sm.MACHINE, lease, "undo", TAKEN_BACK)
            self._operations.withdraw(lease)
        elif lease.pending == sm.EXTENDING_FURTHER:
            self._kernel.fire(sm.MACHINE, lease, "let_go", TAKEN_BACK)
            lease.victims = ()
            self._operations.forsake(lease)
        else:
            self._take_back(lease, _last_extension(lease))

    def _take_back(self, lease: GuestLease, tickets: tuple[Held, ...]) -> None:
        why = _span(tickets)
        if tickets[0] is lease.renewal:
            self._kernel.fire(sm.MACHINE, lease, "undo", why)
            self._operations.begin(lease, UNDO)
            return
        self._kernel.fire(sm.MACHINE, lease, "undo" if lease.pending == NONE else "let_go", why)
        lease.further = lease.further[: -len(tickets)]
        self._returns.give_back_all(lease, tickets, lease.site)
        self._advance(lease)

    def undone(self, lease: GuestLease, reason: Reason | None) -> None:
        """The site does not go on by the extension: all of it goes back."""
        if not sm.MACHINE.allows((lease.state, lease.pending), "undone"):
            return
        tickets = _last_extension(lease)
        self._operations.end(lease)
        lease.renewal, lease.further, lease.victims, lease.reason = None, (), (), reason
        self._kernel.fire(sm.MACHINE, lease, "undone", _span(tickets))
        self._returns.give_back_all(lease, tickets, lease.site)


def _last_extension(lease: GuestLease) -> tuple[Held, ...]:
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


def _span(tickets: tuple[Held, ...]) -> Reason:
    first, last = tickets[0].term, tickets[-1].term
    return said(f"{counted(tickets[0].units)} from {mark(first.start)} to {mark(last.end)}")
