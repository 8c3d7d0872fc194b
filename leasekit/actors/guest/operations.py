"""What a guest's lease has under way: one request at its broker, and one operation at its site, at a time.

Each has a number of the lease's, and is sent again until it is answered, or of no use. What the answers mean, and what
is to be asked, others know.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.dispatch import takes
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel, earliest
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import NO_OPERATION, GuestLease, Operation
from leasekit.core.protocol.messages import EXTEND, NEW, Accepted, CloseLease, Message, Redeem, RequestTicket, Withdraw
from leasekit.core.time import Instant

CLOSE: Final = "close"
"""The operation that is no redeem."""


class GuestOperations:
    """The requests and operations of a guest's leases. ``returns`` words what a close gives up."""

    def __init__(self, kernel: Kernel, records: Leases, returns: Returns) -> None:
        self._kernel = kernel
        self._records = records
        self._returns = returns

    # -- at the broker -----------------------------------------------------------------------------------------

    def ask(self, lease: GuestLease, event: str, deadline: Instant) -> None:
        """Have the broker asked for ``lease.asked``; ``event`` is ``ask``, ``extend`` or ``modify``."""
        self._kernel.fire(sm.MACHINE, lease, event)
        lease.number += 1
        lease.ask, lease.ask_accepted, lease.ask_deadline, lease.ask_tries = lease.number, False, deadline, 0
        self._send_ask(lease)

    def withdraw(self, lease: GuestLease) -> None:
        """Take back what the broker was asked: it is told until it says what became of the request."""
        lease.number += 1
        lease.ask_tries = 0
        self._send_ask(lease)

    def forsake(self, lease: GuestLease) -> None:
        """The broker is told once that its answer is not wanted: if a ticket comes all the same, it goes back."""
        lease.number += 1
        self._kernel.send(lease.broker, Withdraw(lease.id, lease.number, lease.ask))
        self.end_ask(lease)
        self._kernel.touch(lease)

    def end_ask(self, lease: GuestLease) -> None:
        """The broker's answer is there, or not waited for any more."""
        lease.ask = 0
        self._kernel.owe_no_more(lease, lease.broker)

    def _send_ask(self, lease: GuestLease) -> None:
        asked = lease.asked
        message: Message
        if lease.pending == sm.WITHDRAWING or (lease.state, lease.pending) == (sm.NASCENT, sm.CLOSE_WAIT):
            message = Withdraw(lease.id, lease.number, lease.ask)
        else:
            held = lease.following[-1] if asked.op == EXTEND and lease.following else lease.approved
            claim = held.digest if asked.op != NEW and held is not None else b""
            message = RequestTicket(
                lease.id, lease.ask, asked.op, lease.slice, lease.type, asked.units, asked.term, asked.site,
                asked.properties, claim,
            )  # fmt: skip
        self._kernel.send(lease.broker, message)
        settings = self._kernel.settings
        wait = settings.retry_max if lease.ask_accepted else self._kernel.backoff(lease.ask_tries)
        lease.ask_at = self._kernel.now + wait
        lease.ask_tries += 1
        self._kernel.owe(lease, lease.broker)
        self._kernel.touch(lease)

    # -- at the site -------------------------------------------------------------------------------------------

    def begin(self, lease: GuestLease, op: str) -> None:
        """Have the site do ``op``: a redeem's kind, or :data:`CLOSE`."""
        lease.number += 1
        next_ = lease.next_configuration
        configuration = lease.configuration if next_ is None else next_
        lease.operation = Operation(op, lease.number, configuration, self._kernel.now)
        lease.op_accepted, lease.op_tries = False, 0
        self._send_op(lease)

    @staticmethod
    def end(lease: GuestLease) -> None:
        """The site's answer is there, or not waited for any more."""
        lease.operation = NO_OPERATION

    def _send_op(self, lease: GuestLease) -> None:
        self._kernel.send(lease.site, self._op_message(lease))
        settings = self._kernel.settings
        wait = settings.retry_max if lease.op_accepted else self._kernel.backoff(lease.op_tries)
        lease.op_at = self._kernel.now + wait
        lease.op_tries += 1
        self._kernel.owe(lease, lease.site)
        self._kernel.touch(lease)

    def _op_message(self, lease: GuestLease) -> Message:
        op, number, configuration, _ = lease.operation
        if op == CLOSE:
            save = lease.suspends and not lease.close_reason
            return CloseLease(lease.id, number, self._returns.relinquish_rest(lease), save)
        held = lease.approved if op == NEW else lease.renewal
        return Redeem(
            lease.id, number, op, lease.slice, held.ticket if held is not None else b"", lease.resource,
            configuration, lease.leaving, lease.truncation,
        )  # fmt: skip

    # -- until they are answered -------------------------------------------------------------------------------

    @takes(Accepted)
    def _on_accepted(self, peer: str, message: Accepted) -> None:
        """A server has a request, and will answer it in time."""
        if self._returns.accepted(peer, message):
            return
        lease, later = self._records.by_id.get(message.lease), self._kernel.now + self._kernel.settings.retry_max
        if lease is None:
            return
        if message.number == lease.ask and peer == lease.broker and not lease.ask_accepted:
            # Nothing to write down: after a restart the request is sent again, and accepted again.
            lease.ask_accepted, lease.ask_at = True, later
            self._kernel.schedule(lease, self._kernel.due_at(lease))
        elif message.number == lease.operation.number and peer == lease.site and not lease.op_accepted:
            lease.op_accepted, lease.op_at = True, later
            if lease.operation.op == NEW:
                self._kernel.schedule(lease, self._kernel.due_at(lease))  # as above
            else:
                self._kernel.touch(lease)

    @staticmethod
    def due_at(lease: GuestLease) -> Instant | None:
        """When something of the lease is to be sent again."""
        return earliest(lease.ask_at if lease.ask else None, lease.op_at if lease.operation.number else None)

    def due(self, lease: GuestLease) -> None:
        """Send again what is due."""
        if lease.ask and lease.ask_at <= self._kernel.now < lease.ask_deadline:
            self._send_ask(lease)
        if lease.operation.number and lease.op_at <= self._kernel.now:
            self._send_op(lease)

    @staticmethod
    def owes(lease: GuestLease, peer: str) -> bool:
        """Whether something that was sent to ``peer`` is not answered."""
        return bool((lease.ask and lease.broker == peer) or (lease.operation.number and lease.site == peer))

    def send_now(self, lease: GuestLease, peer: str) -> None:
        """A connection to ``peer`` has come up: what is not answered is sent again at once."""
        if lease.ask and lease.broker == peer:
            lease.ask_tries = 0
            self._send_ask(lease)
        if lease.operation.number and lease.site == peer:
            lease.op_tries = 0
            self._send_op(lease)
