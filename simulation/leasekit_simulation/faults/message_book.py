"""The book of messages: numbers grow, repeats repeat, nobody acknowledges what it has not got, and nobody acts on what
was not meant for it. And of what comes after what: leases that follow others, and slices whose leases are redeemed
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs

from leasekit.core.claims.claim import decode_ticket, split_tickets
from leasekit.core.claims.signed import decode_statement
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    Accepted,
    Ack,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    LeaseUpdate,
    LetGo,
    Redeem,
    Relinquish,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withdraw,
    Withhold,
)
from leasekit.core.reasons import Code
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.scenario import HOSTILE

UPDATES = (TicketUpdate, LeaseUpdate)
NUMBERED = (RequestTicket, Withdraw, Redeem, CloseLease)
REQUESTS = (*NUMBERED, ReturnTicket, Relinquish)
OVER = ("closed/-", "failed/-")
NOTICES = (Truncated, ClaimReport, Introduce, Withhold, LetGo)


@attrs.define
class Stream:
    """The updates of one server about one lease."""

    last: int = 0
    kept: dict[int, Any] = attrs.Factory(dict)
    answered: dict[int, int] = attrs.Factory(dict)
    over_at: Instant = -1
    until: Instant = 0
    got: int = 0


class MessageChecker(Listening):
    """Updates of a server about a lease are numbered without gaps, a repeat is the same update, and each request is
    answered once. A client's requests carry numbers that grow, and one number is one request. An acknowledgement is of
    what came, with nothing missing before it. A guest redeems the ticket that answers its latest request.
    """

    kind = "messages"

    def __init__(
        self,
        announced: Callable[[str, str, TicketUpdate | LeaseUpdate], None],
        clock: Callable[[str], Instant],
        retention: Instant,
        hostile_tag: str = "-",
    ) -> None:
        """``announced`` hears of each update when it is new; ``hostile_tag`` begins the ids of leases that
        the hostile guest may speak of.
        """
        super().__init__()
        self._tag = hostile_tag
        self.sends = {
            **dict.fromkeys(UPDATES, self._update_sent),
            **dict.fromkeys(NUMBERED, self._request_sent),
            Ack: self._ack_sent,
            Accepted: self._accepted_sent,
            Truncated: self._truncated_sent,
            Relinquish: self._relinquish_sent,
        }
        self.receives = {
            **dict.fromkeys(UPDATES, self._update_received),
            **dict.fromkeys(REQUESTS, self._request_received),
            **dict.fromkeys(NOTICES, self._notice_received),
        }
        self._announced, self._clock, self._retention = announced, clock, retention
        self._restarts: dict[str, Instant] = {}
        self._over: dict[tuple[str, str], Instant] = {}
        self._streams: dict[tuple[str, str], Stream] = {}
        self._requests: dict[tuple[str, str], dict[int, Any]] = {}
        self._arrived: dict[tuple[str, str], set[int]] = {}
        self._asked: dict[str, int] = {}
        self._tickets: dict[bytes, int] = {}
        self._continuations: set[bytes] = set()
        self._back: set[bytes] = set()
        self._extended: dict[str, int] = {}
        self.answers = 0

    # -- updates -----------------------------------------------------------------------------------------------

    def _update_sent(self, at: Instant, sender: str, receiver: str, message: TicketUpdate | LeaseUpdate) -> None:
        stream = self._streams.get((sender, message.lease))
        if stream is None:
            stream = self._streams[sender, message.lease] = Stream()
        number = message.update
        kept = stream.kept.get(number)
        if kept == message:
            return
        if number == 1 and stream.last and self._has_forgotten(stream, sender, message.lease, at):
            # A request that was long on its way made the lease anew.
            stream = self._streams[sender, message.lease] = Stream()
            kept = None
        must(kept is None, f"{sender}: update {number} of {message.lease} was {kept!r:.200}, now {message!r:.200}")
        must(
            number == stream.last + 1,
            f"{sender}: update {number} of {message.lease} came after update {stream.last}: {message!r:.100}",
        )
        stream.last, stream.kept[number] = number, message
        self._announced(sender, receiver, message)
        if isinstance(message, TicketUpdate):
            self._ticket_update(stream, sender, message)
            over = message.status == "closed" or (message.status == "refused" and number == 1)
        else:
            self._lease_update(stream, sender, message)
            over = message.state in ("closed", "failed")
            if message.state == "active":
                stream.over_at = -1
        if over:
            stream.over_at = at

    def _has_forgotten(self, stream: Stream, server: str, lease: str, at: Instant) -> bool:
        """Whether the server may know nothing more of a lease: it is over, and that was long ago, or before a
        restart. A broker's lease also ends with its last term, or when it comes back, and nothing says so.
        """
        over_at = stream.over_at if stream.over_at >= 0 else stream.until
        if stream.over_at >= 0:  # it may have been over for long when the word could be sent
            over_at = min(over_at, self._over.get((server, lease), over_at))
        is_over = stream.over_at >= 0 or (0 < stream.until <= self._clock(server))
        since = max(at, self._clock(server)) - over_at
        return is_over and (since >= self._retention or self._restarts.get(server, -1) >= over_at)

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """Leases that are over are not loaded again."""
        for key in self._over:
            if key[0] == actor:
                self._over[key] = -self._retention
        self._restarts[actor] = max(at, self._clock(actor))

    def _ticket_update(self, stream: Stream, sender: str, message: TicketUpdate) -> None:
        first = stream.answered.setdefault(message.number, message.update)
        must(
            message.number == 0 or first == message.update,
            f"{sender} answers request {message.number} of {message.lease} again, as update {message.update}",
        )
        arrived = self._arrived.get((sender, message.lease), ())
        must(
            message.number == 0 or message.number in arrived,
            f"{sender} answers request {message.number} of {message.lease}, which has not come",
        )
        if message.ticket:
            continuations = split_tickets(message.continuations)
            self._tickets[message.ticket] = message.number
            self._continuations.update(continuations)
            last = continuations[-1] if continuations else message.ticket
            end = decode_ticket(last).leaf.term.end
            # A modify that was granted may shorten the lease: nothing says that it is over, then or before.
            stream.until = end if message.truncation else max(stream.until, end)

    def _lease_update(self, stream: Stream, sender: str, message: LeaseUpdate) -> None:
        if message.state in ("active", "refused", "undone") and message.number:
            first = stream.answered.setdefault(message.number, message.update)
            must(
                first == message.update,
                f"{sender} answers request {message.number} of {message.lease} again, as update {message.update}",
            )

    def _update_received(self, at: Instant, sender: str, receiver: str, message: TicketUpdate | LeaseUpdate) -> None:
        stream = self._streams.get((sender, message.lease))
        if stream is not None and message.update == stream.got + 1:
            stream.got = message.update

    def _truncated_sent(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        """A broker ends a claim early: its lease may be over then."""
        stream = self._streams.get((sender, message.lease))
        if stream is not None:
            stream.until = min(stream.until, decode_statement(message.truncation).at)

    def _ack_sent(self, at: Instant, sender: str, receiver: str, message: Ack) -> None:
        stream = self._streams.get((receiver, message.lease))
        got = stream.got if stream is not None else 0
        # Of a lease that it does not know, or that is over (it may be made anew), a guest acknowledges whatever comes.
        known = (sender, message.lease) in self._requests and (sender, message.lease) not in self._over
        must(
            not known or message.update <= got or stream is None or stream.last < message.update,
            f"{sender} acknowledges update {message.update} of {message.lease}, it has got {got}",
        )

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Leases that are over, and since when: their actor may have waited for long until it could write that down."""
        for since, subject, _, _, after, _ in rows:
            if after in OVER:
                self._over.setdefault((actor, subject), since)

    # -- requests ----------------------------------------------------------------------------------------------

    def _request_sent(self, at: Instant, sender: str, receiver: str, message: Any) -> None:
        if sender == HOSTILE:
            return
        known = self._requests.get((sender, message.lease))
        if known is None:
            known = self._requests[sender, message.lease] = {}
        before = known.get(message.number)
        if before is None:
            latest = max(known, default=0)
            must(
                message.number > latest,
                f"{sender}: {type(message).__name__} of {message.lease} has number {message.number}, {latest} was used",
            )
            known[message.number] = message
            self._new_request(sender, message)
        else:
            must(
                before == message,
                f"{sender}: request {message.number} of {message.lease} was {before!r:.200}, now {message!r:.200}",
            )

    def _new_request(self, sender: str, message: Any) -> None:
        if isinstance(message, RequestTicket):
            self._asked[message.lease] = message.number
        elif isinstance(message, Redeem) and message.ticket and message.op in (EXTEND, MODIFY):
            must(message.ticket not in self._back, f"{sender} redeems for {message.lease} a ticket that it gave back")
            if message.ticket in self._continuations:
                return  # it came with the one before it, maybe long ago
            answers, asked = self._tickets.get(message.ticket), self._asked.get(message.lease)
            if message.op == EXTEND and answers is not None:  # it may have been in hand for long
                asked = max(answers, self._extended.get(message.lease, 0))
                self._extended[message.lease] = answers
            must(
                answers == asked,
                f"{sender} redeems for {message.lease} a ticket that answers request {answers}, its last is {asked}",
            )

    def _relinquish_sent(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        self._back.add(message.ticket)

    def _request_received(self, at: Instant, sender: str, receiver: str, message: Any) -> None:
        if sender != HOSTILE or message.lease.startswith(self._tag):
            arrived = self._arrived.setdefault((receiver, message.lease), set())
            arrived.add(message.number)
            if isinstance(message, Withdraw):  # it says which request is not wanted, should that never come
                arrived.add(message.request)
        if isinstance(message, ReturnTicket) and (receiver, message.lease) in self._streams:
            stream = self._streams[receiver, message.lease]
            stream.until = min(stream.until, self._clock(receiver))

    def _notice_received(self, at: Instant, sender: str, receiver: str, message: Any) -> None:
        subject = getattr(message, message.__struct_fields__[0])
        self._arrived.setdefault((receiver, subject), set()).add(message.number)

    def _accepted_sent(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        arrived = self._arrived.get((sender, message.lease), ())
        must(message.number in arrived, f"{sender} accepts request {message.number} of {message.lease}: it has none")


class GuestChecker(Listening):
    """A guest joins only units that a site has called active, and lets them leave before it closes the lease; and it
    closes a lease early (one of those that are ``watched``) only if somebody asked for that.
    """

    kind = "messages"

    def __init__(self, guests: frozenset[str], clock: Callable[[str], Instant], leave_time: Instant) -> None:
        super().__init__()
        self._guests, self._clock, self._leave = guests, clock, leave_time
        self.sends = {CloseLease: self._close, Redeem: self._redeem, Ack: self._ack, Relinquish: self._relinquish}
        self.receives = {LeaseUpdate: self._lease_update, ErrorReply: self._error}
        self._changing: dict[str, tuple[str, int]] = {}
        self._active: dict[str, tuple[int, bytes]] = {}
        self._acknowledged: dict[tuple[str, str], int] = {}
        self._given_back: set[bytes] = set()
        self._given: dict[str, set[str]] = {}
        self._has: dict[str, set[str]] = {}
        self._seen: dict[str, int] = {}
        self._joined: dict[str, dict[str, int]] = {}
        self._gone: set[tuple[str, str]] = set()
        self._ends: dict[str, Instant] = {}
        self._wanted_ends: dict[str, Instant] = {}
        self._unsure: dict[str, dict[int, tuple[str, Instant]]] = {}
        self.watched: set[str] = set()
        self.joins: dict[str, Instant] = {}
        self.free_to_close: set[str] = set()
        self._closed: set[tuple[str, int]] = set()

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        # A guest takes updates in order: one that is early counts when it comes again.
        if sender == HOSTILE or message.update != self._seen.get(message.lease, 0) + 1:
            return
        self._seen[message.lease] = message.update
        self._active.pop(message.lease, None)
        if message.state == "active":
            self._active[message.lease] = message.update, decode_statement(message.contract).subject
            units = {unit.unit for unit in message.units}
            self._given.setdefault(message.lease, set()).update(units)
            self._has[message.lease] = units
            joined = self._joined.get(message.lease, {})
            # Gone: if it comes back it is to be joined anew; or again, if its guest had no time to write that down.
            self._gone.update((message.lease, name) for name in joined.keys() - units)
            before = self._ends.get(message.lease, message.term.end)
            if self._clock(receiver) >= before - self._leave:
                self.free_to_close.add(message.lease)  # an extend, and its guest may have given that up
            self._unsure.setdefault(message.lease, {})[message.update] = sender, before
            self._ends[message.lease] = message.term.end
            self._wanted_ends.pop(message.lease, None)
        elif message.state == "terminating":
            self.free_to_close.add(message.lease)

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        """A guest that has its lease shortened may leave by the end that it asked for, heard of or not."""
        self._changing[message.lease] = receiver, message.number
        if message.op == MODIFY and message.ticket:
            self._wanted_ends[message.lease] = decode_ticket(message.ticket).leaf.term.end

    def _error(self, at: Instant, sender: str, receiver: str, message: ErrorReply) -> None:
        """A site that knows nothing of a lease that is to be changed has ended it, and said so when nobody heard it."""
        if message.reason.code == Code.UNKNOWN_LEASE and self._changing.get(message.lease) == (sender, message.number):
            self._active.pop(message.lease, None)

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        """A guest gives back what it has no use for: no claim by which, as it has acknowledged, a lease is active."""
        given = decode_ticket(message.ticket).leaf.digest
        update, claim = self._active.get(message.lease, (0, b""))
        if given in self._given_back:
            return  # it goes on asking, whatever the site has said meanwhile
        self._given_back.add(given)
        if update and update <= self._acknowledged.get((message.lease, receiver), 0):
            must(given != claim, f"{sender} gives back claim {given.hex()[:8]}, by which {message.lease} is active")

    def _ack(self, at: Instant, sender: str, receiver: str, message: Ack) -> None:
        """What a guest acknowledges it has written down; of what came before a crash it may know nothing."""
        self._acknowledged[message.lease, receiver] = message.update
        unsure = self._unsure.get(message.lease)
        if unsure:
            for update in [n for n, (site, _) in unsure.items() if site == receiver and n <= message.update]:
                del unsure[update]

    def _end(self, lease: str) -> Instant:
        """When a lease ends, as its guest may see it: the earliest of what it may go by."""
        ends = [before for _, before in self._unsure.get(lease, {}).values()]
        return min([self._ends.get(lease, 0), *ends])

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check an action of a guest."""
        if actor not in self._guests:
            return
        name = action.unit.rpartition("/")[2]
        what = f"{actor}: {action.op} of {action.unit}, action {action.number}"
        must(name in self._given.get(action.lease, ()), f"{what}: no site has said that the lease has it")
        joined = self._joined.setdefault(action.lease, {})
        last = joined.get(name, 0)
        if action.op == "join":
            self.joins[action.lease] = at
            self._gone.discard((action.lease, name))
            must(action.number >= abs(last) and action.number != -last, f"{what}: action {last} was later")
            joined[name] = action.number
        else:
            joined[name] = -action.number
            if self._clock(actor) >= self._end(action.lease) - self._leave:
                # It began to close in time, whatever a modify that was under way says of the end meanwhile.
                self.free_to_close.add(action.lease)

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease) -> None:
        if (message.lease, message.number) in self._closed or sender not in self._guests:
            return
        self._closed.add((message.lease, message.number))
        self._active.pop(message.lease, None)
        now, end = self._clock(sender), self._end(message.lease)
        end = min(end, self._wanted_ends.get(message.lease, end))
        asked = message.lease in self.free_to_close or message.lease not in self.watched or now >= end - self._leave
        must(asked, f"{sender} closes {message.lease} at {now}, it runs to {end} and nobody asked for that")
        has = self._has.get(message.lease, ())
        joined = {name for name, number in self._joined.get(message.lease, {}).items() if number > 0 and name in has}
        inside = sorted(name for name in joined if (message.lease, name) not in self._gone)
        must(not inside or now >= end, f"{sender} closes {message.lease} before {inside} were told to leave")


class After(NamedTuple):
    """What a lease waits for: the lease after which it is redeemed, and that after which it joins, if any; whether it
    goes on if that is over.
    """

    redeem: str
    join: str
    proceeds: bool


@attrs.define
class Slice:
    """A slice that waits until so many of its leases have tickets."""

    hold: int
    members: set[str] = attrs.Factory(set)


class OrderChecker(Listening):
    """A lease that follows another is redeemed only after that one was said to be active, and joins only after it has
    joined; if that one is over, it goes on only if it was asked for like that. The leases of a slice that holds are
    redeemed only when there are tickets for all.
    """

    kind = "order"

    def __init__(self, guests: frozenset[str]) -> None:
        super().__init__()
        self.sends = {RequestTicket: self._request, Redeem: self._redeem}
        self.receives = {LeaseUpdate: self._lease_update, TicketUpdate: self._ticket_update}
        self._guests = guests
        self._after: dict[str, After] = {}
        self._slices: dict[tuple[str, str], Slice] = {}
        self._active: set[str] = set()
        self._tickets: set[str] = set()
        self._over: set[str] = set()
        self._joined: set[str] = set()
        self._joining: dict[str, dict[str, int]] = {}
        self._seen: dict[str, int] = {}
        self._has: dict[str, set[str]] = {}
        self._redeemed: set[str] = set()
        self._began: set[str] = set()

    # -- what was asked for ------------------------------------------------------------------------------------

    def follows(self, lease: str, *, redeem: str, join: str, proceeds: bool) -> None:
        """A request was acknowledged for a lease that follows others."""
        self._after[lease] = After(redeem, join, proceeds)

    def holds(self, guest: str, name: str, hold: int) -> None:
        """A slice was acknowledged that waits for so many."""
        self._slices[guest, name] = Slice(hold)

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        held = self._slices.get((sender, message.slice))
        if held is not None:
            held.members.add(message.lease)

    # -- what has happened -------------------------------------------------------------------------------------

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if sender == HOSTILE:
            return
        if message.state == "active":
            self._active.add(message.lease)
        if message.update != self._seen.get(message.lease, 0) + 1:
            return  # a guest takes updates in order: one that is early counts when it comes again
        self._seen[message.lease] = message.update
        if message.state == "active":
            has = self._has[message.lease] = {f"{message.lease}/{unit.unit}" for unit in message.units}
            joining = self._joining.get(message.lease, {})
            for name in joining.keys() - has:
                del joining[name]  # the lease has lost it

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        if sender != HOSTILE and message.ticket:
            self._tickets.add(message.lease)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A guest says that a lease has joined, or is over."""
        if actor not in self._guests:
            return
        for _, lease, event, _, after, _ in rows:
            if event == "joined":
                self._joined.add(lease)
                left = sorted(self._joining.get(lease, ()))
                must(not left, f"{actor} says that {lease} has joined: {left} are still at it")
            elif after in OVER:
                self._over.add(lease)
            elif event == "redeem" and after == "ticketed/redeeming" and lease not in self._redeemed:
                follows = self._after.get(lease)
                gone = follows is not None and not follows.proceeds and follows.redeem in self._over
                must(not gone, f"{actor} redeems {lease}, though {follows and follows.redeem} is over")

    # -- what may happen now -----------------------------------------------------------------------------------

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if sender not in self._guests or message.op != NEW or message.lease in self._redeemed:
            return
        self._redeemed.add(message.lease)
        follows = self._after.get(message.lease)
        if follows is not None and follows.redeem:
            ready = follows.redeem in self._active or (follows.proceeds and follows.redeem in self._over)
            must(ready, f"{sender} redeems {message.lease} before {follows.redeem} is active, which it follows")
        held = self._slices.get((sender, message.slice))
        if held is not None:
            count = len(held.members & self._tickets)
            must(
                count >= held.hold,
                f"{sender} redeems {message.lease} of {message.slice}, which has {count} of {held.hold} tickets",
            )

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """A guest's unit joins or leaves."""
        if actor not in self._guests:
            return
        joining = self._joining.setdefault(action.lease, {})
        if action.op != "join":
            joining.pop(action.unit, None)
            return
        if action.unit in self._has.get(action.lease, ()):  # else it was lost in the same step
            joining[action.unit] = action.number
        follows = self._after.get(action.lease)
        if follows is not None and follows.join and action.lease not in self._began:
            ready = follows.join in self._joined or (follows.proceeds and follows.join in self._over)
            must(ready, f"{actor} lets {action.lease} join before {follows.join} has, which it follows")
        self._began.add(action.lease)

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A join has ended, one way or the other."""
        if actor in self._guests:
            joining = self._joining.get(done.unit.partition("/")[0], {})
            if joining.get(done.unit) == done.number:
                del joining[done.unit]
