"""What brokers and sites answer a guest, and what happens when they don't: each update is taken once, in order, and
acknowledged.

:class:`BrokerUpdates` and :class:`SiteUpdates` find out what a message settles, and whether it can be believed;
:class:`BrokerAnswers` and :class:`SiteAnswers` do what follows for the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from leasekit.actors.guest.leases import CLOSE, GuestOperations, Leases, Limits
from leasekit.actors.guest.lifecycle import Endings, Membership, Redeems, Transitions
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel, earliest, keeps, takes
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.served import acknowledge, comes_early
from leasekit.actors.settings import ENDORSE, Peer
from leasekit.core.claims.claim import Claim, begin_of, decode_ticket, split_tickets
from leasekit.core.claims.signed import CONTRACT, check_statement, decode_statement
from leasekit.core.errors import CommandError, RemoteError, TicketError
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import Asked, GuestLease, Held, HeldTickets
from leasekit.core.properties import check_named
from leasekit.core.protocol.messages import (
    EXTEND,
    LIST_MAX,
    MODIFY,
    NEW,
    REPLACE,
    UNDO,
    ErrorReply,
    LeaseUpdate,
    TicketUpdate,
)
from leasekit.core.reasons import Code, Reason, counted, mark, said
from leasekit.core.requests import TRUE, parse_options
from leasekit.core.time import Instant


@keeps(derived="_by_key")
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
        victims = lease.change.victims if asked.op == EXTEND else ()
        extends = message.number if asked.op == EXTEND else running.extends if running is not None else 0
        held = Held(message.ticket, leaf.digest, leaf.units, leaf.term, extends, victims)
        rest = tuple(one._replace(extends=extends) for one in self._continuations_of(lease.broker, message, held))
        last = (held, *rest)[-1].term.end
        _check_asked(asked, leaf, last, site)
        self._returning.check_new(lease, (held, *rest))
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
        held = lease.following[0] if lease.has_next_ticket else lease.approved
        if held is None or not lease.continuations or not message.truncation:
            return False
        at = decode_statement(message.truncation).at
        if at < held.term.end:
            return False
        self._returning.give_back_all(lease, [one for one in lease.continuations if one.term.end > at], lease.site)
        kept = tuple(one for one in lease.continuations if one.term.end <= at)
        lease.tickets = lease.tickets._replace(continuations=kept)
        return True

    def check_returned(self, lease: GuestLease) -> None:
        """A broker grants nothing from a lease's end on while that is granted already. Raises ``CommandError``."""
        if any(one.lease == lease.id and one.held.term.start >= lease.end for one in self._returning):
            raise CommandError(
                f"the extension of lease {lease.id} that was taken back is still on its way to {lease.broker}: try "
                "again when it has arrived"
            )

    def check_contract(self, lease: GuestLease, message: LeaseUpdate) -> None:
        """The site's signed lease must name one of the tickets in hand, and have no more units than that gives."""
        contract = check_statement(
            self._keyring.scheme, message.contract, CONTRACT, signer=self._keyring.said_by(lease.site, message.contract)
        )
        tickets = (lease.approved, lease.renewal, *lease.continuations)
        known = {held.digest: held.units for held in tickets if held is not None}
        known.setdefault(lease.tickets.before, LIST_MAX)
        if contract.subject not in known or not contract.detail.startswith(f"{lease.id} "):
            raise TicketError(Code.WRONG_CONTRACT, "the site's contract is for another claim or lease")
        given, most = len({unit.unit for unit in message.units}), known[contract.subject]
        if given > most:
            raise TicketError(Code.WRONG_CONTRACT, f"the site gives {given} units, the ticket is for {most}")


def _check_asked(asked: Asked, leaf: Claim, end: Instant, site: str) -> None:
    """What is granted, up to ``end``, is what was asked for: as many units, no other time, and firm if that was asked.
    Raises ``TicketError``.
    """
    options = parse_options(asked.properties, asked.term)
    least = min(options.min_units, asked.units) if options.elastic else asked.units
    if not least <= leaf.units <= asked.units or asked.site not in ("", site) or site in options.exclude_sites:
        raise TicketError(Code.WRONG_TERMS, f"{leaf.units} units at {site} were not asked for")
    begin = leaf.term.start if asked.op == EXTEND else begin_of(leaf)
    if begin < asked.term.start or (asked.op in (REPLACE, EXTEND) and begin > asked.term.start):
        raise TicketError(Code.WRONG_TERMS, f"its term starts at {mark(begin)}, not at {mark(asked.term.start)}")
    moves = asked.op == NEW and (options.deferrable or bool(options.group))
    latest = begin + asked.term.length if moves else asked.term.end
    if end > latest:
        raise TicketError(Code.WRONG_TERMS, f"its term ends at {mark(end)}, not at {mark(latest)}")
    if asked.op == NEW and leaf.constraints.get("preemptible") == TRUE and not options.preemptible:
        raise TicketError(Code.WRONG_TERMS, "its broker may end it early, which was not asked for")


@attrs.define(eq=False)
class BrokerAnswers:
    """What follows from a broker's answers."""

    _kernel: Kernel
    _returns: Returns
    _endings: Endings
    _redeems: Redeems
    _transitions: Transitions
    ticketed: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease that has its first ticket."""

    def granted(
        self, lease: GuestLease, message: TicketUpdate, held: Held, continuations: tuple[Held, ...], site: str
    ) -> None:
        """The broker grants what was asked: ``held``, and those that go on from it."""
        before, op = (lease.state, lease.pending), lease.asked.op
        self._returns.own(lease, (held, *continuations))
        self._kernel.fire(lease, "ticket", said(f"{counted(held.units)} at {site}"))
        if before == (sm.NASCENT, sm.CLOSE_WAIT):
            lease.site = site
            self._returns.give_back_all(lease, (held, *continuations), site)
            self._endings.end(lease)
        elif before[1] == sm.WITHDRAWING:
            self._returns.give_back_all(lease, (held, *continuations), site)
        elif op == NEW:
            lease.site, lease.tickets = site, HeldTickets(held, continuations, dict(message.properties))
            lease.origin = lease.origin._replace(number=message.number, ticket=held.digest)
            for tell in self.ticketed:
                tell(lease)
        elif op == REPLACE:
            self._redeems.replace_by(lease, HeldTickets(held, continuations, dict(message.properties)))
        elif op == EXTEND:
            lease.tickets = lease.tickets._replace(continuations=(*lease.continuations, held, *continuations))
            lease.change, lease.reason = lease.change._replace(victims=()), None
        else:
            lease.tickets = lease.tickets._replace(continuations=(*continuations, *lease.continuations))
            self._redeems.modify_by(lease, held, message.truncation)
        self._transitions.advance(lease)

    def terminating(self, lease: GuestLease, reason: Reason | None) -> None:
        """A ticket that was not redeemed yet is worth nothing any more; of a lease the site itself speaks."""
        if lease.has_ticket or lease.is_replaced:
            self._endings.expire(lease, reason)
        elif lease.has_next_ticket and lease.is_idle:
            lease.reason = reason

    def refused(self, lease: GuestLease, reason: Reason | None, fits: Instant = -1) -> None:
        """The broker does not grant what was asked."""
        if not lease.can("ticket_refused"):
            return
        lease.reason = lease.ending.reason if lease.ending.closing else reason
        lease.change = lease.change._replace(configuration=None, victims=())
        self._kernel.fire(lease, "ticket_refused", lease.reason)
        if lease.is_over:
            self._endings.end(lease)
        self._transitions.advance(lease)

    def nothing_came(self, lease: GuestLease, reason: Reason | None) -> None:
        """What the broker was asked never arrived there."""
        self._kernel.fire(lease, "closed", reason)
        self._endings.end(lease)


@attrs.define(eq=False)
class BrokerUpdates:
    """What brokers say of a guest's leases."""

    _kernel: Kernel
    _records: Leases
    _tickets: Tickets
    _operations: GuestOperations
    _answers: BrokerAnswers

    @takes(TicketUpdate)
    def _on_update(self, peer: str, message: TicketUpdate) -> None:
        lease = self._records.by_id.get(message.lease)
        if lease is None or lease.broker != peer:
            self._kernel.send(peer, acknowledge(message))
            if lease is None:
                self._tickets.give_back_strays(peer, message)
            return
        if comes_early(message.update, lease.heard.broker):
            return  # an earlier one is on its way and due until it arrives
        self._kernel.send(peer, acknowledge(message))
        if message.update <= lease.heard.broker:
            if lease.ended >= 0 or _is_made_anew(lease, message):
                self._tickets.give_back_strays(peer, message)
            return
        lease.heard = lease.heard._replace(broker=message.update)
        self._kernel.touch(lease)
        self._tickets.know_site(peer, message)
        settles = message.number != 0 and message.number == lease.ask.number
        if settles:
            lease.ask = lease.ask._replace(accepted=False)
            self._operations.end_ask(lease)
        if message.status == "granted":
            self._on_ticket(lease, message, settles)
        elif message.status == "terminating":
            if self._tickets.drop_continuations(lease, message):
                lease.reason = message.reason
            else:
                self._answers.terminating(lease, _why(peer, message))
        elif message.status in ("refused", "closed") and settles:
            self._answers.refused(lease, _why(peer, message))
        elif message.status == "short" and lease.has_ticket:
            lease.reason = message.reason
        elif message.status == "spared" and lease.has_ticket and _is_of_one_window(lease.reason, message.reason):
            lease.reason = None

    def _on_ticket(self, lease: GuestLease, message: TicketUpdate, wanted: bool) -> None:
        if not wanted or not lease.can("ticket"):
            self._tickets.give_back_unwanted(lease.broker, message)
            return
        try:
            held, continuations, site = self._tickets.check(lease, message)
        except TicketError as error:
            self._answers.refused(lease, Reason(Code.TICKET_UNUSABLE).because(error.reason))
            self._tickets.give_back_unwanted(lease.broker, message)
            return
        self._answers.granted(lease, message, held, continuations, site)

    def unheard(self, lease: GuestLease) -> None:
        """The broker has not answered in time, which is all that a lease with tickets in hand can wait."""
        late = Reason(Code.NO_TICKET_TO_GO_ON, lease.broker)
        self._operations.end_ask(lease)
        self._answers.refused(lease, late if not lease.takes_extend_back else None)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error is a broker's, which refuses to take a message at all: that settles what it asked for."""
        lease = self._records.by_id.get(message.lease)
        if lease is None or message.number == 0:
            return False
        reason = Reason(Code.SAYS, peer).because(message.reason)
        if lease.is_withdrawn:
            # Only a withdrawal of what never arrived is settled by this: if it still comes, its ticket goes back.
            if message.number == lease.number and peer == lease.broker and message.reason.code == Code.UNKNOWN_LEASE:
                self._answers.nothing_came(lease, reason)
            return True
        asked = message.number == lease.ask.number or (lease.takes_extend_back and message.number == lease.number)
        if peer != lease.broker or not asked:
            return False
        lease.ask = lease.ask._replace(number=0)
        self._answers.refused(lease, reason)
        return True


def _why(peer: str, message: TicketUpdate | LeaseUpdate) -> Reason:
    """Why a broker or site refuses or ends something: a lease says that much, even if they don't."""
    return message.reason or Reason(Code.SAYS, peer).because(said("no reason given"))


def _is_of_one_window(one: Reason | None, other: Reason | None) -> bool:
    return one is not None and other is not None and (one.code, one.who) == (other.code, other.who)


def _is_made_anew(lease: GuestLease, message: TicketUpdate) -> bool:
    """Whether the broker has forgotten the lease, and then granted its first request, which came late, as if it were
    another's: the ticket is not the one that the lease began with.
    """
    if message.status != "granted" or message.number != lease.origin.number:
        return False
    return decode_ticket(message.ticket).leaf.digest != lease.origin.ticket


@attrs.define(eq=False)
class SiteAnswers:
    """What follows from what a site says."""

    _kernel: Kernel
    _redeems: Redeems
    _endings: Endings
    _membership: Membership
    _transitions: Transitions
    confirmed: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease that is active as it was asked for."""

    def answered(self, lease: GuestLease, message: LeaseUpdate) -> None:
        """The site goes by what it was asked last, refuses it, or has taken it back."""
        if message.state == "refused":
            self.refused(lease, _why(lease.site, message))
        elif message.state == "undone":
            self._redeems.undone(lease, message.reason)
        elif lease.can("lease"):
            self._redeems.confirmed(lease, message)
            self._membership.take(lease, message.units)
            self._transitions.join(lease)
            for tell in self.confirmed:
                tell(lease)

    def changed(self, lease: GuestLease, message: LeaseUpdate) -> None:
        """The site has changed a lease by itself."""
        if lease.can("changed"):
            self._membership.take(lease, message.units)
            lease.reason = message.reason or lease.reason
            self._kernel.fire(lease, "changed", message.reason)
            self._transitions.join(lease)

    def refused(self, lease: GuestLease, reason: Reason | None) -> None:
        """The site does not do what it was asked."""
        if lease.can("lease_refused"):
            self._redeems.refused(lease, reason)
            if lease.is_over:
                self._endings.end_unused(lease)

    def over(self, lease: GuestLease, message: LeaseUpdate, settles: bool) -> None:
        """The site's last word on the lease: closed as asked, or lost."""
        lease.ending = lease.ending._replace(suspends=message.saved >= 0 and message.state == "closed")
        if settles and lease.operation.op == CLOSE and lease.can("closed"):
            event = "closed"
        elif settles and lease.can("lease_refused") and not lease.is_running:
            self.refused(lease, _why(lease.site, message))
            return
        elif lease.can("lost"):
            event = "lost"
        else:
            return
        ended = lease.ending.reason or _notice_of(message) or (lease.reason if lease.ending.at >= 0 else None)
        why = ended if event == "closed" and ended else _why(lease.site, message)
        self._endings.over(lease, event, why, message.receipt)

    def not_taken(self, lease: GuestLease, code: str, reason: Reason | None) -> None:
        """The site does not take the request at all."""
        if lease.operation.op == CLOSE and lease.can("closed"):
            self._endings.over(lease, "closed", reason)
        elif lease.operation.op in (EXTEND, MODIFY, UNDO) and code == Code.UNKNOWN_LEASE and lease.can("lost"):
            # It was over for so long that the site has forgotten it, and what it said then never came.
            self._endings.over(lease, "lost", reason)
        else:
            self.refused(lease, reason)
            self._transitions.advance(lease)


def _notice_of(message: LeaseUpdate) -> Reason | None:
    """Why a site was to end a lease early that it has closed before that."""
    reason = message.reason
    return next(iter(reason.causes), None) if reason and reason.code == Code.CLOSED_BEFORE_NOTICE else None


@attrs.define(eq=False)
class SiteUpdates:
    """What sites say of a guest's leases. ``advance`` does what a lease's state allows then."""

    _kernel: Kernel
    _records: Leases
    _tickets: Tickets
    _answers: SiteAnswers
    _advance: Callable[[GuestLease], None]

    @takes(LeaseUpdate)
    def _on_update(self, peer: str, message: LeaseUpdate) -> None:
        lease = self._records.by_id.get(message.lease)
        if lease is None:
            self._kernel.send(peer, acknowledge(message))
            return
        if lease.site != peer:
            raise RemoteError(Code.WRONG_SITE, f"lease {lease.id} is at {lease.site or 'no site yet'}, not at {peer}")
        if comes_early(message.update, lease.heard.site):
            return
        if message.update > lease.heard.site:
            self._take(lease, message)
        elif lease.operation.op == CLOSE and message.state == "closed" and message.number == lease.operation.number:
            # The site has forgotten the lease, which was over, and counts its updates anew.
            self._answers.over(lease, message, settles=True)
            self._advance(lease)
        self._kernel.send(peer, acknowledge(message))

    def _take(self, lease: GuestLease, message: LeaseUpdate) -> None:
        settles = lease.operation.number != 0 and message.number >= lease.operation.number
        # One that is closed goes on by nothing: its site may have gone on to a ticket that is given back by now.
        if message.state == "active" and lease.ended < 0 and not lease.is_closing:
            self._tickets.check_contract(lease, message)
        lease.heard = lease.heard._replace(site=message.update)
        self._kernel.touch(lease)
        if settles:
            self._kernel.owe_no_more(lease, lease.site)
        if message.state in ("closed", "failed"):
            self._answers.over(lease, message, settles)
        elif lease.ended >= 0:
            return  # why it ended stands
        elif message.state == "terminating":
            suspends = lease.ending.suspends if lease.operation.op == CLOSE else message.saved >= 0
            lease.ending = lease.ending._replace(at=message.term.end, suspends=suspends)
            lease.reason = message.reason
        elif message.state in ("waiting", "told"):
            lease.reason = message.reason
            self._kernel.note(lease.id, message.state, "", "", message.reason)
        elif settles:
            self._answers.answered(lease, message)
        elif message.state not in ("refused", "undone"):
            self._answers.changed(lease, message)
        self._advance(lease)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error is a site's, which refuses to take a message at all: that settles what it asked for."""
        lease = self._records.by_id.get(message.lease)
        if lease is None or message.number == 0:
            return False
        if message.number == lease.operation.number and peer == lease.site:
            self._answers.not_taken(lease, message.reason.code, Reason(Code.SAYS, peer).because(message.reason))
        return True


@attrs.define(eq=False)
class LeaseTimeouts:
    """The timeouts of a guest's leases."""

    _limits: Limits
    _endings: Endings
    _redeems: Redeems
    _membership: Membership
    _broker: BrokerUpdates

    def due_at(self, lease: GuestLease) -> Instant | None:
        """When that is next."""
        return self._limits.of(lease)

    def check(self, lease: GuestLease) -> None:
        """Do what the lease's state makes happen now by itself."""
        if not self._limits.is_past(lease):
            return
        expire = self._endings.expire
        match lease.phase:
            case sm.FIRST_TICKET:
                expire(lease, Reason(Code.NO_TICKET, lease.broker))
            case sm.LAST_WORD:
                expire(lease, Reason(Code.NO_CLOSE, lease.site))
            case sm.FIRST_LEASE:
                expire(lease, Reason(Code.NO_LEASE, lease.site))
            case sm.FIRST_REDEEM:
                if self._limits.is_over(lease):
                    expire(lease, Reason(Code.TERM_UNUSED))
            case sm.FIRST_CHANGE:
                self._broker.unheard(lease)
            case sm.GOES_ON:
                victims = self._limits.leaving_victims(lease) if lease.is_promised else []
                if victims:
                    self._membership.leave_early(lease, victims)
                else:
                    late = Reason(Code.NO_EXTEND, lease.site)
                    expire(lease, late if lease.ending.at < 0 else lease.reason)
            case sm.ASKS_FURTHER:
                self._redeems.go_on(lease)
            case sm.IN_HAND | sm.WITHDRAWS_FURTHER | sm.CHANGES_IN_HAND | sm.TAKES_BACK if lease.ask.number:
                self._broker.unheard(lease)
            case sm.TAKES_BACK:
                expire(lease, Reason(Code.NO_UNDO, lease.site))
            case sm.CHANGES_IN_HAND:
                if not self._redeems.go_on_from_modify(lease):
                    expire(lease, Reason(Code.NO_MODIFY, lease.site))
            case sm.LEAVES:
                self._endings.leave_at_once(lease)
            case sm.RUNS | sm.CHANGES:
                expire(lease, Reason(Code.TERM_OVER) if lease.ending.at < 0 else lease.reason)


@attrs.define(eq=False)
class LeaseTimers:
    """When time next concerns a guest's lease, and what happens then, in order."""

    _kernel: Kernel
    _records: Leases
    _operations: GuestOperations
    _timeouts: LeaseTimeouts
    _transitions: Transitions

    def due_at(self, lease: GuestLease) -> Instant | None:
        """When its time comes: to send something again, for its state, for its mapper, or to be forgotten."""
        if lease.is_over:
            return lease.ended + self._kernel.settings.retention
        held = lease.waits.hold_until if lease.join == mb.BLOCKED_JOIN else 0
        held_until = held if held > self._kernel.now else None
        return earliest(self._operations.due_at(lease), self._timeouts.due_at(lease), held_until)

    def due(self, lease: GuestLease) -> None:
        """Its time has come."""
        if lease.is_over:
            if lease.ended + self._kernel.settings.retention <= self._kernel.now:
                self._records.drop(lease)
            return
        self._operations.due(lease)
        self._timeouts.check(lease)
        self._transitions.advance(lease)
