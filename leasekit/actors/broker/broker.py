"""The broker: arbitrates requests over what sites have delegated to it (:mod:`leasekit.core.leases.broker`).

It keeps one timetable for each delegation, asks its mapper what to grant, checks the answer against the timetables
and the requests, and cuts tickets. Nothing that a mapper says can overbook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from leasekit.actors.broker.admission import Admission
from leasekit.actors.broker.claims import BrokerClaims, constraints_of
from leasekit.actors.broker.dry_runs import DryRuns
from leasekit.actors.broker.granted import concerned, place_of
from leasekit.actors.broker.holds import Holds
from leasekit.actors.broker.planner import Planner
from leasekit.actors.broker.quotes import Quotes
from leasekit.actors.broker.suspension import ends_suspended, is_part, note_suspend, with_suspend
from leasekit.actors.broker.usage import UsageBook
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import earliest
from leasekit.actors.served import OLD
from leasekit.actors.settings import REQUEST, BrokerSettings, Peer
from leasekit.actors.turns import is_inline
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.statements import TRUNCATION, state
from leasekit.core.claims.ticket import JOINED_MAX, Ticket, delegate, join_tickets
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.plans import HOLD, PlanHold
from leasekit.core.leases.records import Asked, BrokerLease, Granted
from leasekit.core.leases.relations import Delegation
from leasekit.core.mappers import (
    BrokerCycle,
    BrokerDecision,
    BrokerMapper,
    Defer,
    Grant,
    GrantedLease,
    GrantGroup,
    PendingRequest,
    Preempt,
    Reject,
)
from leasekit.core.protocol.codec import clip
from leasekit.core.protocol.fields import TICKET_MAX
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    RequestTicket,
    Withdraw,
)
from leasekit.core.requests import Options, parse_options
from leasekit.core.schema import Row
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall
from leasekit.core.words import counted

REASON_MAX = 1000
"""The longest reason that is taken from a mapper, in characters: messages hold twice as much."""
CLAIM_MAX = 512
"""More bytes than a claim that a broker cuts for a guest has."""
_OPS = {NEW: br.TICKETING, EXTEND: br.EXTENDING_TICKET, MODIFY: br.MODIFYING}


class Broker(BrokerClaims):
    """A broker's actor. ``fresh`` makes its mapper anew, for questions what it would answer; None: it takes none."""

    decisions = (Grant, GrantGroup, Reject, Defer, Preempt)

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: BrokerMapper,
        settings: BrokerSettings | None = None,
        fresh: Callable[[], BrokerMapper] | None = None,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings or BrokerSettings())
        self.admission = Admission(self.kernel, self.served, self.queue, self.book, self.settings)
        self.dry_runs = DryRuns(self.kernel, self.served, self.admission, self, fresh)
        self.holds = Holds(self.kernel, self.keyring, self.served, self.book, self.settings)
        self.holds.dropped.append(self._hold_dropped)
        quotes = Quotes(self.kernel, self.keyring, self.book, self.settings)
        self.planner = Planner(self.kernel, self.keyring, self.holds, quotes, getattr(mapper, "plan", None))
        for part in (self.dry_runs, self.holds, quotes, self.planner):
            self.dispatch.add(part)
        self.refused.insert(self.refused.index(self.calls.refused), self.planner.refused)
        self._mapper = mapper
        self.inline = is_inline(mapper)
        self._shown: dict[str, PendingRequest] = {}
        self._cycle_at: Instant = 0
        if getattr(mapper, "wants_usage", False):
            self.usage = UsageBook(getattr(mapper, "usage_kept", 0))
        self.kernel.register(
            BrokerLease,
            due_at=self._lease_due_at,
            on_due=self._lease_due,
            owes=self.served.owes,
            send=self.served.send_now,
        )

    # -- requests ----------------------------------------------------------------------------------------------

    @takes(RequestTicket, REQUEST)
    def _on_request(self, peer: str, message: RequestTicket) -> None:
        lease = self.leases.get(message.lease)
        if not self.served.is_news(lease, peer, message.number):
            return
        if message.op not in _OPS:
            raise RemoteError("bad_op", f"op: found {message.op!r}, allowed are {', '.join(_OPS)}")
        try:
            options = parse_options(message.properties, message.term)
        except CommandError as error:
            raise RemoteError("bad_properties", str(error)) from error
        hold = self.holds.for_request(peer, message)
        self.admission.admit(peer, message, options)
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        if message.op == NEW:
            if lease is not None:
                raise RemoteError(
                    "exists", f"lease {lease.id} is {lease.state}: it can be extended, not asked for again"
                )
            lease = self._open(peer, message, asked, options)
        else:
            lease = self._reopen(lease, message, asked)
        self.queue.add(lease, options)
        self.queue.has_news = True
        self.served.accept(lease, message.number)
        self.kernel.touch(lease)
        if hold is not None:
            self._use_hold(hold, lease)

    def _open(self, peer: str, message: RequestTicket, asked: Asked, options: Options) -> BrokerLease:
        self.served.check_id(message.lease, peer)
        self.admission.check_size(message.type, message.units, options)
        lease = BrokerLease(
            message.lease, peer, message.slice, message.type, br.NASCENT, br.TICKETING, asked, message.number,
            message.number, self.place_in_line(peer, message.properties),
            self.admission.deadline(options, asked.term.end, whole=False), group=options.group,
            key=self.keyring.key_of(peer),
        )  # fmt: skip
        self.leases[lease.id] = lease
        self.kernel.note(
            lease.id, "request", "", f"{lease.state}/{lease.pending}", f"{peer}: {asked.units} {lease.type}"
        )
        self.queue.options[lease.id] = options
        if options.group:
            self._join_group(lease, options)
        return lease

    def _join_group(self, lease: BrokerLease, options: Options) -> None:
        self.book.join_group(lease.holder, options.group, lease.id, options.lease_count)
        have, count = self.book.group_size(lease.id)
        if have == count:
            for id_ in self.book.group_of(lease.id):
                member = self.leases[id_]
                member.deadline = self.admission.deadline(self.queue.options[id_], member.asked.term.end, whole=True)
                self.kernel.touch(member)

    def _reopen(self, lease: BrokerLease | None, message: RequestTicket, asked: Asked) -> BrokerLease:
        if lease is None or not lease.claims:
            raise RemoteError("unknown_lease", f"{self.name} has granted no lease {message.lease}")
        claim = lease.claims[place_of(lease, message.op, message.term)]
        if lease.cut < 0 and message.claim != claim.digest:
            last = "last claim" if message.op == EXTEND else f"claim at {message.term.start}"
            raise RemoteError("wrong_claim", f"lease {lease.id}'s {last} is another one than the request names")
        deadline = self.admission.goes_on_until(lease, message.op, message.term)
        if lease.request:  # or it would not ask for something else
            self.kernel.fire(br.MACHINE, lease, "withdraw", "its guest gave the request up")
            self.answers.settle(lease, "closed", "a later request was made")
        self.kernel.fire(br.MACHINE, lease, message.op)
        lease.asked, lease.number, lease.request, lease.arrived = asked, message.number, message.number, self.kernel.now
        lease.deadline = deadline
        return lease

    @takes(Withdraw)
    def _on_withdraw(self, peer: str, message: Withdraw) -> None:
        lease = self.leases.get(message.lease)
        if lease is None:
            raise RemoteError("unknown_lease", f"{self.name} knows no lease {message.lease}")
        fresh = self.served.freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        overtaken, lease.number = message.request > lease.number, message.number
        self.kernel.touch(lease)
        if lease.request != message.request or lease.pending == NONE:
            if overtaken and lease.pending == NONE and lease.ended < 0:
                lease.request = message.request  # when it comes it is dropped
                self.answers.settle(lease, "closed", "the request was withdrawn")
            else:
                self.served.repeat(lease, message.number)
            return
        self.kernel.fire(br.MACHINE, lease, "withdraw", "its guest gave the request up")
        self.answers.settle(lease, "closed", "the request was withdrawn")
        self.answers.refuse_group(lease, "a member of its group was withdrawn")

    # -- the mapper's turns ------------------------------------------------------------------------------------

    def _turn_at(self) -> Instant | None:
        if self.turns.running:
            return None
        return self.kernel.now if self.dry_runs.is_due() or self.planner.is_due() else self._request_turn_at()

    def _request_turn_at(self) -> Instant | None:
        if not self.queue:
            return None
        return self.kernel.now if self.queue.has_news else self.turns.wake

    def turn(self) -> Turn | None:
        """The mapper's turn, if requests wait and something has changed since it saw them; else a question's."""
        if self.turns.running:
            return None
        at = self._request_turn_at()
        if at is not None and at <= self.kernel.now:
            self.queue.has_news, self.turns.wake = False, None
            cycle = self._cycle()
            if cycle.requests or cycle.groups:
                return self.turns.begin(lambda: self._mapper.allocate(cycle))
        call = self.dry_runs.next_call() or self.planner.next_call(snapshot=not self.inline)
        return None if call is None else self.turns.begin(call)

    def _turn_done(self, done: TurnDone) -> None:
        if self.dry_runs.in_turn is not None and done.number == self.turns.running:
            self.turns.end()
            self.dry_runs.turn_done(done)
        elif self.planner.in_turn is not None and done.number == self.turns.running:
            self.turns.end()
            self.planner.turn_done(done)
        else:
            super()._turn_done(done)

    def _cycle(self, more: Iterable[BrokerLease] = ()) -> BrokerCycle:
        """What the mapper is shown: all requests that wait, and ``more``."""
        requests: list[PendingRequest] = []
        views: dict[str, PendingRequest] = {}
        members: dict[str, PendingRequest] = {}
        for lease in chain(self.queue.leases.values(), more):
            if lease.asked.op == NEW and HOLD in lease.asked.properties:
                lease.defer_reason = "its plan's other parts are not asked for yet"
                continue
            if not self.book.of_type(lease.type):
                lease.defer_reason = f"no site offers {lease.type!r} here yet"
                continue
            view = views[lease.id] = self._view(lease)
            if lease.group and lease.asked.op == NEW:
                members[lease.id] = view
            else:
                requests.append(view)
        groups = [
            tuple(members[id_] for id_ in ids) for ids in self.book.complete_groups() if all(i in members for i in ids)
        ]
        self._cycle_at = self.kernel.now
        # A mapper that is called in line sees the requests as they still are when its decisions are carried out.
        self._shown = views if self.inline else {}
        sources = self.book.turn_sources(snapshot=not self.inline)
        return BrokerCycle(self.kernel.now, requests, groups, sources, self._granted, self.usage, self.suspends())

    def show(self, lease: BrokerLease) -> BrokerCycle:
        """See :class:`Decider`."""
        return self._cycle((lease,))

    def try_grant(self, lease: BrokerLease, grant: Grant) -> Delegation:
        """See :class:`Decider`."""
        self._check_grant(lease, grant)
        table = self.book.table_of(grant.source)
        if lease.asked.op == MODIFY:  # it gives up the rest of what it holds
            table = table.overlay()
            table.end(concerned(lease).key, grant.booked.start)
        free = table.available(grant.booked)
        if free < grant.units:
            raise CommandError(f"it would overbook: {free} units are free over {tuple(grant.booked)}")
        return self.book.cover(grant.source, grant.booked)[0][0]

    def _granted(self, type_: str) -> Sequence[GrantedLease]:
        """The leases of a type that are not over. Records are read as they are when the mapper asks."""
        found = []
        for lease in list(self.leases.values()):
            claims = lease.claims
            if lease.type != type_ or lease.state != br.TICKETED or not claims or claims[-1].until <= self.kernel.now:
                continue
            last = claims[-1]
            end = last.until if lease.cut < 0 else min(last.until, max(lease.cut, last.term.start + 1))
            priority = self.settings.priorities.get(lease.holder, 0)
            found.append(
                GrantedLease(
                    lease.id, lease.holder, self.book.base(last.source), type_, last.units, Term(last.term.start, end),
                    last.preemptible, priority, with_suspend(lease), last.until,
                )
            )  # fmt: skip
        return found

    def _view(self, lease: BrokerLease) -> PendingRequest:
        asked, options = lease.asked, self.queue.options[lease.id]
        last = concerned(lease) if lease.claims else None
        # What is past is not given: the book knows nothing of it any more.
        start = max(asked.term.start, self.kernel.now) if asked.op != EXTEND else asked.term.start
        later = options.deferrable and asked.op == NEW
        latest = options.latest_start or (max(lease.deadline, start) if options.deferrable else start)
        return PendingRequest(
            lease=lease.id,
            holder=lease.holder,
            op=asked.op,
            type=lease.type,
            units=asked.units,
            min_units=min(options.min_units or asked.units, asked.units),
            term=Term(start, start + asked.term.length if later else asked.term.end),
            latest_start=latest if asked.op == NEW else start,
            deadline=lease.deadline,
            arrived=lease.arrived,
            site=asked.site,
            exclude_sites=options.exclude_sites,
            source=self.book.base(last.source) if last is not None and asked.op != NEW else "",
            held=last.units if last is not None else 0,
            group=lease.group,
            priority=self.settings.priorities.get(lease.holder, 0) + options.priority,
            preemptible=options.preemptible or self._stays_preemptible(lease),
            properties=asked.properties,
            held_until=last.until if last is not None else 0,
        )

    @staticmethod
    def _stays_preemptible(lease: BrokerLease) -> bool:
        """Whether a request continues what can be ended early, and does not ask for a firm claim by that name."""
        if lease.asked.op == NEW or not lease.claims:
            return False
        return concerned(lease).preemptible and (
            lease.asked.op == MODIFY or "preemptible" not in lease.asked.properties
        )

    def _waits_for_mapper(self) -> Iterable[str]:
        return self.queue.leases

    def _carry_out(self, decision: BrokerDecision) -> None:
        if isinstance(decision, Grant):
            self._grant_all((decision,))
        elif isinstance(decision, GrantGroup):
            self._grant_all(decision.grants)
        elif isinstance(decision, Reject):
            fits = decision.earliest if decision.earliest is None or decision.earliest >= 0 else None
            self.answers.reject(self._waiting(decision.lease), clip(decision.reason, REASON_MAX), fits)
        elif isinstance(decision, Defer):
            self._waiting(decision.lease).defer_reason = clip(decision.reason, REASON_MAX)
        elif isinstance(decision, Preempt):
            self.preempt(decision.lease, decision.at, clip(decision.reason, REASON_MAX), suspend=decision.suspend)

    def _waiting(self, lease: str) -> BrokerLease:
        waiting = self.queue.leases.get(lease)
        if waiting is None:
            raise CommandError(f"no request of lease {lease!r} is waiting (any more)")
        return waiting

    # -- granting ----------------------------------------------------------------------------------------------

    def _grant_all(self, grants: Sequence[Grant]) -> None:
        """Reserve for all, or for none; then cut the tickets."""
        leases = [self._waiting(grant.lease) for grant in grants]
        self._check_group(leases, grants)
        for lease, grant in zip(leases, grants, strict=True):
            self._check_grant(lease, grant)
        reserved: list[tuple[BrokerLease, Grant, str]] = []
        try:
            for lease, grant in zip(leases, grants, strict=True):
                reserved.append((lease, grant, self._reserve(lease, grant)))
        except Shortfall as short:
            for _, grant, key in reserved:
                self.book.table_of(grant.source).release(key)
            raise CommandError(f"it would overbook: {short.free} units are free over {tuple(short.term)}") from short
        for lease, grant, key in reserved:
            self._cut(lease, grant, key)

    def _check_group(self, leases: Sequence[BrokerLease], grants: Sequence[Grant]) -> None:
        group = {lease.group for lease in leases if lease.asked.op == NEW}
        if group == {""} or not group:
            if len(leases) != 1:
                raise CommandError("only the members of a request group are granted together")
            return
        whole = self.book.group_of(leases[0].id)
        if sorted(lease.id for lease in leases) != sorted(whole) or len({grant.term for grant in grants}) != 1:
            raise CommandError(f"request group {leases[0].group!r} is granted whole and over one term, or not at all")

    def _check_grant(self, lease: BrokerLease, grant: Grant) -> None:
        view = self._shown.get(lease.id) or self._view(lease)
        source = next((one for one in self.book.line(grant.source) if one.grants_until > self.kernel.now), None)
        if lease.holder not in self.keyring.peers:
            raise CommandError(f"lease {lease.id}: its holder {lease.holder!r} is no peer any more")
        if source is None or source.type != lease.type:
            raise CommandError(f"source {grant.source!r} has no {lease.type!r} to grant")
        if not view.min_units <= grant.units <= view.units:
            raise CommandError(f"{grant.units} units were granted, {view.min_units} to {view.units} were asked for")
        asked = lease.asked.term
        moves = lease.asked.op == NEW and self.queue.options[lease.id].deferrable
        part = is_part(lease, grant, self.queue.options[lease.id], source.properties)
        fits = part or (grant.term.length == asked.length if moves else grant.term.end == asked.end)
        # A mapper in a thread decides by the time that it was shown.
        begin = asked.start if lease.asked.op == EXTEND else max(asked.start, self._cycle_at)
        if not fits or not begin <= grant.term.start <= view.latest_start:
            raise CommandError(
                f"term {tuple(grant.term)} is not what was asked for: {view.term}, latest {view.latest_start}"
            )
        if lease.asked.op != NEW and grant.source != view.source:
            raise CommandError(f"lease {lease.id} continues from {view.source!r}, not {grant.source!r}")
        if (view.site and source.site != view.site) or source.site in view.exclude_sites:
            raise CommandError(f"lease {lease.id} can't be at {source.site!r}")
        if grant.prepare and (lease.asked.op != NEW or grant.booked.start < self.kernel.now):
            raise CommandError(
                f"units can't be prepared from {grant.booked.start} on: it is {self.kernel.now}, {lease.asked.op}"
            )
        self._check_covered(source, grant)

    def _check_covered(self, source: Delegation, grant: Grant) -> None:
        """What is granted lies in one delegation, or in some that go on from each other. Raises ``CommandError``."""
        parts = self.book.cover(grant.source, grant.booked)
        if not parts:
            end = max(one.grants_until for one in self.book.line(grant.source))
            raise CommandError(f"the delegation covers {(source.term.start, end)}, not {tuple(grant.booked)}")
        if parts[0][1].end <= self.kernel.now:
            raise CommandError(f"{parts[0][0].id}, in which it begins, was replaced meanwhile")
        self.check_own(parts, grant)
        if grant.prepare and parts[0][1].end <= grant.term.start:
            raise CommandError(f"units can't be prepared in {parts[0][0].id}, which ends before the term begins")
        if len(parts) > JOINED_MAX + 1 or sum(len(one.ticket) + CLAIM_MAX for one, _ in parts) > TICKET_MAX:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")

    def _reserve(self, lease: BrokerLease, grant: Grant) -> str:
        """Book the grant, that of a modify in place of the rest of the claim it replaces. Raises ``Shortfall`` with
        nothing changed.
        """
        table = self.book.table_of(grant.source)
        # Not by the request's number: one whose record is long forgotten may come again.
        key = f"{lease.id}#{self.kernel.next('serial')}"
        if lease.asked.op == MODIFY:
            table.replace(concerned(lease).key, key, grant.units, grant.booked)
        else:
            table.reserve(key, grant.units, grant.booked)
        return key

    def _cut(self, lease: BrokerLease, grant: Grant, key: str) -> None:
        note_suspend(lease, grant, self.queue.options[lease.id])
        parts = self._cut_claims(lease, grant, key)
        first, further = parts[0][0], join_tickets([ticket.encode() for ticket, _ in parts[1:]])
        truncation, place = b"", place_of(lease, lease.asked.op, lease.asked.term)
        before, after = lease.claims[: place + 1], lease.claims[place + 1 :]
        if lease.asked.op == MODIFY:
            old = before[-1]._replace(until=grant.booked.start, held=True)
            signer = self.signer_from(old.source)
            truncation = state(signer, TRUNCATION, old.digest, grant.booked.start, lease.id).encode()
            before = (*before[:-1], old)
            self.book.hold_rest(old, parts[0][1])
            self._cut_off[old.digest.hex()] = lease.id
        self.set_claims(lease, (*self._going_on(before), *(granted for _, granted in parts), *after))
        lease.suspended = bool(lease.claims[-1].saving)
        lease.reason = ""
        start, end = grant.booked
        source = self.book.get(parts[-1][1].source)
        assert source is not None, "checked before"
        self.kernel.fire(br.MACHINE, lease, "grant", f"{counted(grant.units)} of {source.site} over [{start}, {end})")
        self.answers.settle(
            lease, "granted", "", ticket=first.encode(), source=source, truncation=truncation, further=further
        )

    def _cut_claims(self, lease: BrokerLease, grant: Grant, key: str) -> list[tuple[Ticket, Granted]]:
        """The claims of a grant, which is reserved under ``key``: one for each delegation that its term lies in."""
        parts, options = self.book.cover(grant.source, grant.booked), self.queue.options[lease.id]
        table = self.book.table_of(grant.source)
        if len(parts) > 1:
            table.release(key)
        made: list[tuple[Ticket, Granted]] = []
        for number, (source, term) in enumerate(parts):
            prepare = grant.prepare if number == 0 else 0
            saving = ends_suspended(lease, grant, options, source.properties) if number == len(parts) - 1 else 0
            part_key, serial = f"{key}.{number}" if number else key, self.kernel.next("serial")
            replaces = concerned(lease).digest.hex() if lease.asked.op == MODIFY and number == 0 else ""
            if len(parts) > 1:
                table.reserve(part_key, grant.units, term, force=True)
            ticket = delegate(
                self.book.ticket(source.id), self.signer_from(source.id), holder=self.keyring.key_of(lease.holder),
                units=grant.units, term=term, serial=serial,
                constraints=constraints_of(grant.preemptible, grant.term.start if prepare else -1, saving, replaces),
            )  # fmt: skip
            granted = Granted(
                ticket.leaf.digest, source.id, part_key, grant.units, term, term.end, False, serial, grant.preemptible,
                prepare, saving, replaces,
            )  # fmt: skip
            made.append((ticket, granted))
        return made

    # -- what is held for plans ----------------------------------------------------------------------------------

    def _use_hold(self, hold: PlanHold, lease: BrokerLease) -> None:
        """``lease`` asks for a part of a hold: if it is the last one, all are granted, and nothing is held any more."""
        members = {
            self.leases[id_].asked.properties.get(HOLD, "").rpartition("/")[2]: self.leases[id_]
            for id_ in self.book.group_of(lease.id)
        }
        if set(members) != {part.part for part in hold.parts}:
            return
        wrong = self.holds.why_not(hold, lease.holder)
        if wrong:
            self.holds.drop(hold, wrong)
            return
        for part in hold.parts:
            member = members[part.part]
            key = f"{member.id}#{self.kernel.next('serial')}"
            self.holds.reserve(hold, part, key)
            self._cut(member, Grant(member.id, part.source, part.units, hold.term), key)
        self.holds.use(hold, lease.holder)

    def _hold_dropped(self, hold: PlanHold, why: str) -> None:
        """Requests that were made for parts of a hold are refused."""
        self.queue.has_news = True
        mine = f"{hold.id}/"
        for lease in list(self.queue.leases.values()):
            if lease.asked.properties.get(HOLD, "").startswith(mine) and lease.id in self.queue:
                self.answers.reject(lease, f"hold expired: {why}")

    # -- time and state ----------------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        self.holds.restore(tables.get("plans", ()))

    def _lease_due_at(self, lease: BrokerLease) -> Instant | None:
        if lease.ended >= 0:
            return earliest(lease.send_at if lease.unacked else None, self.served.drop_at(lease))
        waiting = lease.deadline if lease.request else None
        ends = self._booked_until(lease) if lease.claims else None
        return earliest(lease.send_at if lease.unacked else None, waiting, ends)

    def _lease_due(self, lease: BrokerLease) -> None:
        if lease.ended >= 0 and self.served.drop_at(lease) <= self.kernel.now:
            self._drop(lease)
            return
        if lease.request and lease.deadline <= self.kernel.now:
            self.answers.reject(lease, self._why_expired(lease), event="expire")
        if lease.unacked and lease.send_at <= self.kernel.now:
            self.served.send(lease)
        if lease.ended < 0 and lease.claims and self._booked_until(lease) <= self.kernel.now:
            self.kernel.fire(br.MACHINE, lease, "end", "its term is over")
            self.queue.has_news = True
            self._over(lease, "its term is over")

    def _why_expired(self, lease: BrokerLease) -> str:
        if lease.group and lease.asked.op == NEW:
            have, count = self.book.group_size(lease.id)
            if have < count or not count:
                wanted = count or "an unknown number of"
                return f"only {have} of {wanted} requests of group {lease.group!r} arrived in time"
        return f"not granted in time{': ' + lease.defer_reason if lease.defer_reason else ''}"
