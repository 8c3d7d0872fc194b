"""The service manager: a guest's actor. What it does in each state is told in
:mod:`leasekit.core.leases.service_manager`.

This layer speaks the protocol and keeps time; commands and mapper decisions come in through :mod:`.desk`.
"""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.actors.dispatch import takes
from leasekit.actors.guest.extensions import GuestExtensions
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.membership import Membership
from leasekit.actors.kernel import earliest
from leasekit.actors.settings import ENDORSE, GuestSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.ticket import decode_ticket
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import membership as mb
from leasekit.core.leases import returns
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import GuestMapper
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    UNDO,
    Accepted,
    CloseLease,
    ErrorReply,
    LeaseUpdate,
    Message,
    Redeem,
    RequestTicket,
    TicketUpdate,
    Withdraw,
    acknowledge,
)
from leasekit.core.steps import ActionDone
from leasekit.core.time import Instant
from leasekit.core.words import counted

CLOSE = "close"


class ServiceManager(GuestExtensions):
    """A guest's actor."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: GuestMapper,
        settings: GuestSettings | None = None,
    ) -> None:
        super().__init__(name, signer, scheme, peers, mapper, settings or GuestSettings())
        self.limits = Limits(self.kernel, self.settings, self.records.slices, self.is_undecided)
        self.membership = Membership(self.kernel, self.leases, self._all_joined, self._all_left)
        self.refused.append(self._request_refused)
        self.kernel.register(
            GuestLease,
            due_at=self._lease_due_at,
            on_due=self._lease_due,
            owes=self._lease_owes,
            send=self._lease_send,
        )

    # -- asking the broker -------------------------------------------------------------------------------------

    def ask(self, lease: GuestLease, event: str, deadline: Instant) -> None:
        """Send what ``lease.asked`` says to the broker; ``event`` is ``ask``, ``extend`` or ``modify``."""
        self.kernel.fire(sm.MACHINE, lease, event)
        lease.number += 1
        lease.ask, lease.ask_accepted, lease.ask_deadline, lease.ask_tries = lease.number, False, deadline, 0
        self._send_ask(lease)

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
        self.kernel.send(lease.broker, message)
        lease.ask_at = self.kernel.now + (
            self.kernel.settings.retry_max if lease.ask_accepted else self.kernel.backoff(lease.ask_tries)
        )
        lease.ask_tries += 1
        self.kernel.owe(lease, lease.broker)
        self.kernel.touch(lease)

    @takes(TicketUpdate)
    def _on_ticket_update(self, peer: str, message: TicketUpdate) -> None:
        lease = self.leases.get(message.lease)
        if lease is None or lease.broker != peer:
            self.kernel.send(peer, acknowledge(message))
            if lease is None:
                self._give_back_stray_tickets(peer, message)
            return
        if message.update > lease.broker_seen + 1:
            return  # an earlier one is on its way and due until it arrives
        self.kernel.send(peer, acknowledge(message))
        if message.update <= lease.broker_seen:
            if lease.ended >= 0 or self._is_made_anew(lease, message):
                self._give_back_stray_tickets(peer, message)
            return
        lease.broker_seen = message.update
        self.kernel.touch(lease)
        if message.endorsement:
            self._know_site(peer, message.endorsement)
        settles = message.number != 0 and message.number == lease.ask
        if settles:
            lease.ask, lease.ask_accepted = 0, False
            self.kernel.owe_no_more(lease, peer)
        if message.status == "granted":
            self._on_ticket(lease, message, settles)
        elif message.status == "noticed":
            self._on_ticket_noticed(lease, message)
        elif message.status in ("refused", "closed") and settles:
            self._on_no_ticket(lease, message.reason or "the broker gave no reason", message.earliest)

    @staticmethod
    def _is_made_anew(lease: GuestLease, message: TicketUpdate) -> bool:
        """Whether the broker has forgotten the lease, and then granted its first request, which came late, as if it
        were another's: the ticket is not the one that the lease began with.
        """
        number, digest = lease.began
        if message.status != "granted" or message.number != number:
            return False
        return decode_ticket(message.ticket).leaf.digest != digest

    def _give_back_stray_tickets(self, peer: str, message: TicketUpdate) -> None:
        if message.endorsement:  # else they could not go back by way of their site
            self._know_site(peer, message.endorsement)
        self.returns.give_back_unknown(peer, message)

    def _know_site(self, broker: str, endorsement: bytes) -> None:
        """The broker makes the ticket's site known. If it can't be believed, neither can the ticket: it says why."""
        try:
            self.keyring.check_may(broker, ENDORSE)
            self.peering.take_endorsement(broker, endorsement)
        except RemoteError as error:
            self.kernel.complain(f"{broker}'s endorsement of a site: {error.text}")

    def _on_ticket(self, lease: GuestLease, message: TicketUpdate, wanted: bool) -> None:
        if not wanted or not sm.MACHINE.allows((lease.state, lease.pending), "ticket"):
            self.returns.give_back_those_good(lease.broker, message)
            return
        try:
            held, further, site = self.tickets.check(lease, message)
        except TicketError as error:
            self._on_no_ticket(lease, f"the broker's ticket can't be believed: {error.text}", -1)
            self.returns.give_back_those_good(lease.broker, message)
            return
        before, op = (lease.state, lease.pending), lease.asked.op
        self.kernel.fire(sm.MACHINE, lease, "ticket", f"{counted(held.units)} at {site}")
        if before == (sm.NASCENT, sm.CLOSE_WAIT):
            lease.site = site
            self.returns.give_back_all(lease, (held, *further), site)
            self._end(lease)
        elif before[1] == sm.WITHDRAWING:
            self.returns.give_back_all(lease, (held, *further), site)
        elif op == NEW:
            lease.site, lease.approved, lease.resource = site, held, dict(message.properties)
            lease.began = (message.number, held.digest)
            lease.further = further
            self._settle_hold(lease)
        elif op == EXTEND:
            lease.further, lease.victims, lease.reason = (*lease.further, held, *further), (), ""
        else:
            lease.further = (*further, *lease.further)
            lease.renewal, lease.truncation, lease.reason = held, message.truncation, ""
            self._redeem(lease, MODIFY)
        self.advance(lease)

    def _on_ticket_noticed(self, lease: GuestLease, message: TicketUpdate) -> None:
        """A ticket that was not redeemed yet is worth nothing any more; of a lease the site itself speaks."""
        reason = message.reason
        if self.tickets.drop_further(lease, message):
            lease.reason = reason
        elif (lease.state, lease.pending) == (sm.TICKETED, NONE):
            self._expire(lease, reason)
        elif lease.state == sm.ACTIVE_TICKETED and lease.pending == NONE:
            lease.reason = reason

    def _on_no_ticket(self, lease: GuestLease, reason: str, fits: Instant) -> None:
        if not sm.MACHINE.allows((lease.state, lease.pending), "ticket_refused"):
            return
        if lease.closing:
            lease.reason = lease.close_reason
        else:
            lease.reason = reason if fits < 0 or str(fits) in reason else f"{reason}; it would fit at {fits}"
        lease.next_configuration, lease.victims = None, ()
        self.kernel.fire(sm.MACHINE, lease, "ticket_refused", lease.reason)
        if lease.state in (sm.FAILED, sm.CLOSED):
            self._end(lease)
        self.advance(lease)

    # -- redeeming at the site ---------------------------------------------------------------------------------

    def _redeem(self, lease: GuestLease, op: str) -> None:
        lease.number += 1
        lease.op, lease.op_number, lease.op_accepted, lease.op_tries = op, lease.number, False, 0
        next_ = lease.next_configuration
        lease.op_configuration, lease.op_since = lease.configuration if next_ is None else next_, self.kernel.now
        self._send_op(lease)

    def _send_op(self, lease: GuestLease) -> None:
        self.kernel.send(lease.site, self._op_message(lease))
        lease.op_at = self.kernel.now + (
            self.kernel.settings.retry_max if lease.op_accepted else self.kernel.backoff(lease.op_tries)
        )
        lease.op_tries += 1
        self.kernel.owe(lease, lease.site)
        self.kernel.touch(lease)

    def _op_message(self, lease: GuestLease) -> Message:
        if lease.op == CLOSE:
            save = lease.suspends and not lease.close_reason
            return CloseLease(lease.id, lease.op_number, self.returns.relinquish_rest(lease), save)
        held = lease.approved if lease.op == NEW else lease.renewal
        configuration = lease.configuration if lease.op_configuration is None else lease.op_configuration
        return Redeem(
            lease.id, lease.op_number, lease.op, lease.slice, held.ticket if held is not None else b"", lease.resource,
            configuration, lease.leaving, lease.truncation,
        )  # fmt: skip

    @takes(LeaseUpdate)
    def _on_lease_update(self, peer: str, message: LeaseUpdate) -> None:
        lease = self.leases.get(message.lease)
        if lease is None:
            self.kernel.send(peer, acknowledge(message))
            return
        if lease.site != peer:
            raise RemoteError("wrong_site", f"lease {lease.id} is at {lease.site or 'no site yet'}, not at {peer}")
        if message.update > lease.site_seen + 1:
            return
        if message.update > lease.site_seen:
            self._take_update(lease, message)
        elif lease.op == CLOSE and message.state == "closed" and message.number == lease.op_number:
            # The site has forgotten the lease, which was over, and counts its updates anew.
            self._on_over(lease, message, settles=True)
            self.advance(lease)
        self.kernel.send(peer, acknowledge(message))

    def _take_update(self, lease: GuestLease, message: LeaseUpdate) -> None:
        settles = lease.op_number != 0 and message.number >= lease.op_number
        # One that is closed goes on by nothing: its site may have gone on to a ticket that is given back by now.
        if message.state == "active" and lease.ended < 0 and lease.pending not in (sm.CLOSING, sm.CLOSE_WAIT):
            self.tickets.check_contract(lease, message)
        lease.site_seen = message.update
        self.kernel.touch(lease)
        if settles:
            self.kernel.owe_no_more(lease, lease.site)
        if message.state in ("closed", "failed"):
            self._on_over(lease, message, settles)
        elif message.state == "refused":
            if settles:
                self._on_op_refused(lease, message.reason)
        elif message.state == "undone":
            if settles:
                self._on_undone(lease, message.reason)
        elif message.state == "noticed":
            lease.noticed, lease.reason = message.term.end, message.reason
            lease.suspends = lease.suspends if lease.op == CLOSE else message.saved >= 0
        elif message.state == "waiting":
            lease.reason = message.reason
            self.kernel.note(lease.id, "waiting", "", "", message.reason)
        elif settles:
            self._on_lease(lease, message)
        elif sm.MACHINE.allows((lease.state, lease.pending), "changed"):
            self.membership.take(lease, message.units)
            lease.reason = message.reason or lease.reason
            self.kernel.fire(sm.MACHINE, lease, "changed", message.reason)
            self._join(lease)
        self.advance(lease)

    def _on_lease(self, lease: GuestLease, message: LeaseUpdate) -> None:
        if not sm.MACHINE.allows((lease.state, lease.pending), "lease"):
            return
        late = "the extension had begun, and was not undone" if lease.op == UNDO else ""
        self.go_over(lease)
        lease.op, lease.op_number = "", 0
        lease.granted, lease.contract, lease.reason = message.term, message.contract, message.reason or late
        self.kernel.fire(sm.MACHINE, lease, "lease", f"{counted(len(message.units))} to {message.term.end}")
        self.membership.take(lease, message.units)
        self._join(lease)
        self._wake_dependents(lease)

    def _on_op_refused(self, lease: GuestLease, reason: str) -> None:
        if not sm.MACHINE.allows((lease.state, lease.pending), "lease_refused"):
            return
        renewal = lease.renewal
        # What was granted to go on from the running term, which a modify has not moved, stands.
        stands = lease.op == MODIFY and (renewal is None or lease.asked.term.end == lease.end)
        lease.op, lease.op_number, lease.renewal, lease.truncation = "", 0, None, b""
        lease.next_configuration, lease.victims, lease.reason = None, (), reason
        self.kernel.fire(sm.MACHINE, lease, "lease_refused", reason)
        if renewal is not None:
            self.returns.give_back(lease, renewal, lease.site)
        if not stands:
            self.returns.give_back_all(lease, lease.further, lease.site)
            lease.further = ()
        if lease.pending == sm.WITHDRAWING:
            self.withdraw(lease)  # what was to go on from it
        if lease.state == sm.FAILED:
            if lease.approved is not None:
                self.returns.give_back(lease, lease.approved, lease.site)
            self._end(lease)

    def _on_over(self, lease: GuestLease, message: LeaseUpdate, settles: bool) -> None:
        """The site's last word on the lease: closed as asked, or lost."""
        joint = (lease.state, lease.pending)
        lease.suspends = message.saved >= 0 and message.state == "closed"
        if settles and lease.op == CLOSE and sm.MACHINE.allows(joint, "closed"):
            event = "closed"
        elif settles and sm.MACHINE.allows(joint, "lease_refused") and lease.state == sm.TICKETED:
            self._on_op_refused(lease, message.reason)
            return
        elif sm.MACHINE.allows(joint, "lost"):
            event = "lost"
        else:
            return
        ended = lease.close_reason or (lease.reason if lease.noticed >= 0 else "")
        self._over(lease, event, ended if event == "closed" and ended else message.reason, message.receipt)

    def _over(self, lease: GuestLease, event: str, reason: str, receipt: bytes = b"") -> None:
        lease.reason = reason
        self.kernel.fire(sm.MACHINE, lease, event, reason)
        held = lease.approved
        # A site that ends a lease by itself gives no receipt: what is left of the claim is the broker's all the same.
        if held is not None and (receipt or held.term.end > self.kernel.now + self.kernel.settings.clock_skew):
            self.returns.give_back(lease, held, lease.site, receipt)
        self._end(lease)

    @takes(Accepted)
    def _on_accepted(self, peer: str, message: Accepted) -> None:
        giving = self.returns.numbered(message.lease, message.number)
        lease = self.leases.get(message.lease)
        if giving is not None:
            if giving.state == returns.RETURNING and giving.broker == peer:
                self.returns.end(giving, "accepted")
        elif lease is None:
            return
        elif message.number == lease.ask and peer == lease.broker and not lease.ask_accepted:
            # Nothing to write down: after a restart the request is sent again, and accepted again.
            lease.ask_accepted, lease.ask_at = True, self.kernel.now + self.kernel.settings.retry_max
            self.kernel.schedule(lease, self.kernel.due_at(lease))
        elif message.number == lease.op_number and peer == lease.site and not lease.op_accepted:
            lease.op_accepted, lease.op_at = True, self.kernel.now + self.kernel.settings.retry_max
            if lease.op == NEW:
                self.kernel.schedule(lease, self.kernel.due_at(lease))  # as above
            else:
                self.kernel.touch(lease)

    def _request_refused(self, peer: str, message: ErrorReply) -> bool:
        """A server refused to take a message at all: that settles what the message asked for."""
        reason = f"{peer}: {message.text}"
        giving = self.returns.numbered(message.lease, message.number)
        lease = self.leases.get(message.lease)
        if giving is not None:
            if self.returns.owes(giving, peer):
                self.returns.end(giving, "refused", reason)
        elif lease is None or message.number == 0:
            return False
        elif (lease.state, lease.pending) == (sm.NASCENT, sm.CLOSE_WAIT):
            # Only a withdrawal of what never arrived is settled by this: if it still comes, its ticket goes back.
            if message.number == lease.number and peer == lease.broker and message.code == "unknown_lease":
                self.kernel.fire(sm.MACHINE, lease, "closed", reason)
                self._end(lease)
        elif peer == lease.broker and (
            message.number == lease.ask or (lease.pending == sm.WITHDRAWING and message.number == lease.number)
        ):
            lease.ask = 0
            self._on_no_ticket(lease, reason, -1)
        elif message.number == lease.op_number and peer == lease.site:
            joint = (lease.state, lease.pending)
            if lease.op == CLOSE and sm.MACHINE.allows(joint, "closed"):
                self._over(lease, "closed", reason)
            elif (
                lease.op in (EXTEND, MODIFY, UNDO)
                and message.code == "unknown_lease"
                and sm.MACHINE.allows(joint, "lost")
            ):
                # It was over for so long that the site has forgotten it, and what it said then never came.
                self._over(lease, "lost", reason)
            else:
                self._on_op_refused(lease, reason)
                self.advance(lease)
        return True

    # -- joining, leaving, closing -----------------------------------------------------------------------------

    def _join(self, lease: GuestLease) -> None:
        if lease.state not in (sm.ACTIVE, sm.ACTIVE_TICKETED) or lease.pending in (sm.CLOSING, sm.CLOSE_WAIT):
            return
        if mb.MACHINE.allows((lease.join, NONE), "block_join"):
            predecessor = self._predecessor(lease, lease.join_predecessor, lambda p: p.join == mb.JOINED)
            if predecessor == "failed":
                self.close(lease, f"its join predecessor {self._what_became_of(lease.join_predecessor)}")
                return
            if predecessor == "wait":
                self.membership.move(lease, "block_join")
                return
        self.membership.join(lease)

    def _action_done(self, done: ActionDone) -> None:
        self.membership.done(done)

    def _all_joined(self, lease: GuestLease) -> None:
        self.kernel.note(lease.id, "joined", lease.state, lease.state, lease.reason)
        self._wake_dependents(lease)

    def _all_left(self, lease: GuestLease) -> None:
        if lease.pending == sm.CLOSING:
            self.kernel.fire(sm.MACHINE, lease, "left")
            self.membership.move(lease, "over")
            self._redeem(lease, CLOSE)

    def close(self, lease: GuestLease, reason: str) -> None:
        """End the lease before its time."""
        if lease.closing:
            return
        before = (lease.state, lease.pending)
        self.kernel.fire(sm.MACHINE, lease, "close", reason)
        lease.closing, lease.close_reason, lease.reason = True, reason, reason
        self._after_close(lease, before)

    def _expire(self, lease: GuestLease, reason: str) -> None:
        before = (lease.state, lease.pending)
        self.kernel.fire(sm.MACHINE, lease, "expire", reason)
        lease.reason = lease.reason if lease.closing and lease.reason else reason
        self._after_close(lease, before)

    def _after_close(self, lease: GuestLease, before: tuple[str, str]) -> None:
        if lease.pending == sm.CLOSING:
            if lease.ask:
                self.kernel.owe_no_more(lease, lease.broker)
                lease.ask = 0
            self.returns.give_back_all(lease, lease.further, lease.site)
            lease.further = ()  # a ticket that was redeemed already goes back when the site has closed the lease
            lease.op, lease.op_number = "", 0
            self.membership.move(lease, "leave")
            self.membership.leave(lease, list(lease.units))
            self.membership.check_left(lease)
        elif lease.pending == sm.CLOSE_WAIT and before == (sm.NASCENT, sm.TICKETING):
            self.withdraw(lease)
        elif lease.pending == sm.CLOSE_WAIT:
            self.returns.give_back_all(lease, lease.further, lease.site)
            lease.further = ()
            self._redeem(lease, CLOSE)
        elif lease.state in (sm.CLOSED, sm.FAILED):
            if lease.approved is not None:  # of a lease that was ended early, or not redeemed, its claim may go on
                self.returns.give_back(lease, lease.approved, lease.site)
            self._end(lease)

    def _end(self, lease: GuestLease) -> None:
        """The lease is over: nothing is owed for it any more, and those that waited for it are told."""
        lease.ended = self.kernel.now
        lease.ask = lease.op_number = 0
        if lease.renewal is not None:
            self.returns.give_back(lease, lease.renewal, lease.site)
            lease.renewal = None
        self.returns.give_back_all(lease, lease.further, lease.site)
        lease.further = ()
        self.membership.move(lease, "over")
        self.membership.clear(lease)
        self.records.open.pop(lease.id, None)
        self.kernel.owe_no_more(lease, lease.broker)
        self.kernel.owe_no_more(lease, lease.site)
        self.kernel.touch(lease)
        self._settle_hold(lease)
        self._wake_dependents(lease)
        if lease.suspends:
            self.ask_for_rest(lease)

    # -- time --------------------------------------------------------------------------------------------------

    def _lease_due_at(self, lease: GuestLease) -> Instant | None:
        if lease.state in (sm.CLOSED, sm.FAILED):
            return lease.ended + self.settings.retention
        sending = earliest(lease.ask_at if lease.ask else None, lease.op_at if lease.op_number else None)
        held = lease.hold_until if lease.join == mb.BLOCKED_JOIN and lease.hold_until > self.kernel.now else None
        return earliest(sending, self.limits.of(lease), held)

    def _lease_due(self, lease: GuestLease) -> None:
        if lease.state in (sm.CLOSED, sm.FAILED):
            if lease.ended + self.settings.retention <= self.kernel.now:
                self.records.drop(lease)
            return
        self._resend(lease)
        self._check_limit(lease)
        self.advance(lease)

    def _resend(self, lease: GuestLease) -> None:
        if lease.ask and lease.ask_at <= self.kernel.now < lease.ask_deadline:
            self._send_ask(lease)
        if lease.op_number and lease.op_at <= self.kernel.now:
            self._send_op(lease)

    def _check_limit(self, lease: GuestLease) -> None:
        if not self.limits.is_past(lease):
            return
        match (lease.state, lease.pending):
            case (sm.NASCENT, _):
                self._expire(lease, f"no answer from broker {lease.broker} in time")
            case (_, sm.CLOSE_WAIT):
                self._expire(lease, f"site {lease.site} never confirmed the close")
            case (sm.TICKETED, sm.REDEEMING):
                self._expire(lease, f"site {lease.site} did not make the lease before its term ended")
            case (sm.TICKETED, _):
                if lease.end <= self.kernel.now:
                    self._expire(lease, "its term ended before it could be redeemed")
            case (sm.ACTIVE_TICKETED, sm.EXTENDING_LEASE | sm.EXTENDING_FURTHER):
                if lease.is_promised and self.limits.leaving_victims(lease):
                    self.membership.leave(lease, self.limits.leaving_victims(lease))
                    self.kernel.touch(lease)
                else:
                    late = f"site {lease.site} did not extend the lease in time"
                    self._expire(lease, late if lease.noticed < 0 else lease.reason)
            case (sm.ACTIVE_TICKETED, sm.EXTENDING_TICKET):
                self._go_on(lease)
            case (sm.ACTIVE_TICKETED, _) if lease.ask:
                late = f"no answer from broker {lease.broker} before the lease is to go on"
                lease.ask = 0
                self.kernel.owe_no_more(lease, lease.broker)
                self._on_no_ticket(lease, late if lease.pending != sm.WITHDRAWING else "", -1)
            case (sm.ACTIVE_TICKETED, sm.UNDOING):
                self._expire(lease, f"its extension was taken back, which site {lease.site} has not confirmed in time")
            case (sm.ACTIVE_TICKETED, sm.MODIFYING):
                if lease.op_accepted:  # its site goes by it: what comes of it is told in time
                    lease.before = lease.approved.digest if lease.approved is not None else b""
                    self.go_over(lease)
                    self._go_on(lease)
                elif lease.is_promised:
                    self._go_on_unmodified(lease)
                else:
                    self._expire(lease, f"site {lease.site} did not modify the lease in time")
            case (sm.ACTIVE, sm.CLOSING):
                for unit in lease.units.values():
                    unit.action = 0
                lease.busy = 0
                self._all_left(lease)
            case (sm.ACTIVE, _):
                self._expire(lease, "its term ended" if lease.noticed < 0 else lease.reason)

    def advance(self, lease: GuestLease) -> None:
        """Do what the lease's state allows now: join, or redeem."""
        if lease.join == mb.BLOCKED_JOIN and lease.hold_until <= self.kernel.now:
            self._join(lease)
        if lease.state == sm.ACTIVE and lease.pending in (NONE, sm.EXTENDING_TICKET):
            self.roll_key(lease)
            if self.in_hand(lease):
                self.advance(lease)
        elif (lease.state, lease.pending) == (sm.TICKETED, NONE):
            self._advance_ticketed(lease)
        elif (lease.state, lease.pending) == (sm.ACTIVE_TICKETED, NONE):
            if self.limits.is_past(lease):
                self._go_on(lease)
            else:
                self.roll_key(lease)

    def _advance_ticketed(self, lease: GuestLease) -> None:
        record = self.records.slices.get(lease.slice)
        if (record is not None and not record.released) or self.is_undecided(lease):
            return
        due = self.limits.redeem_at(lease) <= self.kernel.now
        predecessor = self._predecessor(
            lease, lease.redeem_predecessor, lambda p: p.state in (sm.ACTIVE, sm.ACTIVE_TICKETED), ask=due
        )
        if predecessor == "failed":
            self._expire(lease, f"its redeem predecessor {self._what_became_of(lease.redeem_predecessor)}")
        elif predecessor == "wait":
            if lease.join != mb.BLOCKED_REDEEM:
                self.membership.move(lease, "block_redeem")
                self.kernel.note(lease.id, "blocked_redeem", "", "", f"waits for {lease.redeem_predecessor}")
            self.kernel.touch(lease)
        else:
            self.membership.move(lease, "unblock")
            self.kernel.touch(lease)
            if due:
                self.roll_key(lease)
                self.kernel.fire(sm.MACHINE, lease, "redeem")
                self._redeem(lease, NEW)

    def _lease_owes(self, lease: GuestLease, peer: str) -> bool:
        return bool((lease.ask and lease.broker == peer) or (lease.op_number and lease.site == peer))

    def _lease_send(self, lease: GuestLease, peer: str) -> None:
        if lease.ask and lease.broker == peer:
            lease.ask_tries = 0
            self._send_ask(lease)
        if lease.op_number and lease.site == peer:
            lease.op_tries = 0
            self._send_op(lease)
