"""How what a mapper grants is checked, reserved, and cut into tickets. Nothing that a mapper says can overbook."""

from __future__ import annotations

from collections.abc import Sequence

from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.book import Book
from leasekit.actors.broker.claims import GrantedClaims, concerned, place_of
from leasekit.actors.broker.cycle import Cycles
from leasekit.actors.broker.dependents import SourceDependents
from leasekit.actors.broker.holds import Holds
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.broker.statements import Statements
from leasekit.actors.broker.suspension import ends_suspended, is_part, note_suspend
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.core.claims.ticket import JOINED_MAX, Ticket, join_tickets
from leasekit.core.errors import CommandError
from leasekit.core.leases import broker as br
from leasekit.core.leases.plans import HOLD, PlanHold
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.leases.relations import Delegation
from leasekit.core.mappers import BrokerCycle, Grant
from leasekit.core.protocol.fields import TICKET_MAX
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW
from leasekit.core.reasons import mark, marked, said
from leasekit.core.requests import Options
from leasekit.core.timetable import Shortfall
from leasekit.core.words import counted

CLAIM_MAX = 512
"""More bytes than a claim that a broker cuts for a guest has."""


class GrantChecks:
    """Whether a grant is what was asked for, of what there is."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, book: Book, cycles: Cycles, dependents: SourceDependents
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._cycles = cycles
        self._dependents = dependents

    def check(self, lease: BrokerLease, options: Options, grant: Grant) -> None:
        """Raises ``CommandError`` if ``grant`` can't be carried out, units apart."""
        view = self._cycles.view(lease)
        source = next((one for one in self._book.line(grant.source) if one.grants_until > self._kernel.now), None)
        if lease.holder not in self._keyring.peers:
            raise CommandError(f"lease {lease.id}: its holder {lease.holder!r} is no peer any more")
        if source is None or source.type != lease.type:
            raise CommandError(f"source {grant.source!r} has no {lease.type!r} to grant")
        if not view.min_units <= grant.units <= view.units:
            raise CommandError(f"{grant.units} units were granted, {view.min_units} to {view.units} were asked for")
        asked = lease.asked.term
        moves = lease.asked.op == NEW and options.deferrable
        part = is_part(lease, grant, options, source.properties)
        fits = part or (grant.term.length == asked.length if moves else grant.term.end == asked.end)
        # A mapper in a thread decides by the time that it was shown.
        begin = asked.start if lease.asked.op == EXTEND else max(asked.start, self._cycles.at)
        if not fits or not begin <= grant.term.start <= view.latest_start:
            raise CommandError(
                f"term {marked(grant.term)} is not what was asked for: {marked(view.term)}, latest "
                f"{mark(view.latest_start)}"
            )
        if lease.asked.op != NEW and grant.source != view.source:
            raise CommandError(f"lease {lease.id} continues from {view.source!r}, not {grant.source!r}")
        if (view.site and source.site != view.site) or source.site in view.exclude_sites:
            raise CommandError(f"lease {lease.id} can't be at {source.site!r}")
        if grant.prepare and (lease.asked.op != NEW or grant.booked.start < self._kernel.now):
            raise CommandError(
                f"units can't be prepared from {mark(grant.booked.start)} on: it is {mark(self._kernel.now)}, "
                f"{lease.asked.op}"
            )
        self._check_covered(source, grant)

    def _check_covered(self, source: Delegation, grant: Grant) -> None:
        """What is granted lies in one delegation, or in some that go on from each other. Raises ``CommandError``."""
        parts = self._book.cover(grant.source, grant.booked)
        if not parts:
            end = max(one.grants_until for one in self._book.line(grant.source))
            raise CommandError(f"the delegation covers {marked((source.term.start, end))}, not {marked(grant.booked)}")
        if parts[0][1].end <= self._kernel.now:
            raise CommandError(f"{parts[0][0].id}, in which it begins, was replaced meanwhile")
        self._dependents.check_own(parts, grant)
        if grant.prepare and parts[0][1].end <= grant.term.start:
            raise CommandError(f"units can't be prepared in {parts[0][0].id}, which ends before the term begins")
        if len(parts) > JOINED_MAX + 1 or sum(len(one.ticket) + CLAIM_MAX for one, _ in parts) > TICKET_MAX:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")


class TicketCutter:
    """Tickets for what is granted."""

    def __init__(
        self, kernel: Kernel, book: Book, granted: GrantedClaims, statements: Statements, answers: Answers
    ) -> None:
        self._kernel = kernel
        self._book = book
        self._granted = granted
        self._statements = statements
        self._answers = answers

    def new_key(self, lease: BrokerLease) -> str:
        """Under which something is booked for ``lease``."""
        # Not by the request's number: one whose record is long forgotten may come again.
        return f"{lease.id}#{self._kernel.next('serial')}"

    def reserve(self, lease: BrokerLease, grant: Grant) -> str:
        """Book the grant, that of a modify in place of the rest of the claim it replaces. Raises ``Shortfall`` with
        nothing changed.
        """
        table = self._book.table_of(grant.source)
        key = self.new_key(lease)
        if lease.asked.op == MODIFY:
            table.replace(concerned(lease).key, key, grant.units, grant.booked)
        else:
            table.reserve(key, grant.units, grant.booked)
        return key

    def cut(self, lease: BrokerLease, grant: Grant, options: Options, key: str) -> None:
        """Cut the tickets of a grant, which is reserved under ``key``, and answer with them."""
        note_suspend(lease, grant, options)
        parts = self._cut_claims(lease, grant, options, key)
        first, further = parts[0][0], join_tickets([ticket.encode() for ticket, _ in parts[1:]])
        cut_at = grant.booked.start if lease.asked.op == MODIFY else -1
        place = place_of(lease, lease.asked.op, lease.asked.term)
        truncation = self._granted.add(lease, place, [granted for _, granted in parts], cut_at)
        lease.suspended = bool(lease.claims[-1].saving)
        lease.reason = None
        start, end = grant.booked
        source = self._book.get(parts[-1][1].source)
        assert source is not None, "checked before"
        self._kernel.fire(
            br.MACHINE,
            lease,
            "grant",
            said(f"{counted(grant.units)} of {source.site} over [{mark(start)}, {mark(end)})"),
        )
        self._answers.settle(
            lease, "granted", None, ticket=first.encode(), source=source, truncation=truncation, further=further
        )

    def _cut_claims(self, lease: BrokerLease, grant: Grant, options: Options, key: str) -> list[tuple[Ticket, Granted]]:
        """The claims of a grant, which is reserved under ``key``: one for each delegation that its term lies in."""
        parts = self._book.cover(grant.source, grant.booked)
        table = self._book.table_of(grant.source)
        if len(parts) > 1:
            table.release(key)
        made: list[tuple[Ticket, Granted]] = []
        for number, (source, term) in enumerate(parts):
            prepare = grant.prepare if number == 0 else 0
            saving = ends_suspended(lease, grant, options, source.properties) if number == len(parts) - 1 else 0
            part_key, serial = f"{key}.{number}" if number else key, self._kernel.next("serial")
            replaces = concerned(lease).digest.hex() if lease.asked.op == MODIFY and number == 0 else ""
            if len(parts) > 1:
                table.reserve(part_key, grant.units, term, force=True)
            claim = Granted(
                b"", source.id, part_key, grant.units, term, term.end, False, serial, grant.preemptible, prepare,
                saving, replaces,
            )  # fmt: skip
            ticket = self._statements.cut_for(claim, lease.holder)
            made.append((ticket, claim._replace(digest=ticket.leaf.digest)))
        return made


class Grants:
    """What is granted of the requests that wait. It is the ``Decider`` of questions."""

    def __init__(
        self, queue: RequestQueue, book: Book, cycles: Cycles, checks: GrantChecks, cutter: TicketCutter
    ) -> None:
        self._queue = queue
        self._book = book
        self._cycles = cycles
        self._checks = checks
        self._cutter = cutter

    def grant(self, grants: Sequence[Grant]) -> None:
        """Reserve for all, or for none; then cut the tickets."""
        leases = [self._queue.waiting(grant.lease) for grant in grants]
        self._check_group(leases, grants)
        for lease, grant in zip(leases, grants, strict=True):
            self._checks.check(lease, self._queue.options[lease.id], grant)
        reserved: list[tuple[BrokerLease, Grant, str]] = []
        try:
            for lease, grant in zip(leases, grants, strict=True):
                reserved.append((lease, grant, self._cutter.reserve(lease, grant)))
        except Shortfall as short:
            for _, grant, key in reserved:
                self._book.table_of(grant.source).release(key)
            raise CommandError(f"it would overbook: {short.free} units are free over {marked(short.term)}") from short
        for lease, grant, key in reserved:
            self._cutter.cut(lease, grant, self._queue.options[lease.id], key)

    def _check_group(self, leases: Sequence[BrokerLease], grants: Sequence[Grant]) -> None:
        group = {lease.group for lease in leases if lease.asked.op == NEW}
        if group == {""} or not group:
            if len(leases) != 1:
                raise CommandError("only the members of a request group are granted together")
            return
        whole = self._book.group_of(leases[0].id)
        if sorted(lease.id for lease in leases) != sorted(whole) or len({grant.term for grant in grants}) != 1:
            raise CommandError(f"request group {leases[0].group!r} is granted whole and over one term, or not at all")

    def show(self, lease: BrokerLease) -> BrokerCycle:
        """See :class:`.dry_runs.Decider`."""
        return self._cycles.show((lease,))

    def try_grant(self, lease: BrokerLease, grant: Grant) -> Delegation:
        """See :class:`.dry_runs.Decider`."""
        self._checks.check(lease, self._queue.options[lease.id], grant)
        table = self._book.table_of(grant.source)
        if lease.asked.op == MODIFY:  # it gives up the rest of what it holds
            table = table.overlay()
            table.end(concerned(lease).key, grant.booked.start)
        free = table.available(grant.booked)
        if free < grant.units:
            raise CommandError(f"it would overbook: {free} units are free over {marked(grant.booked)}")
        return self._book.cover(grant.source, grant.booked)[0][0]


class HeldParts:
    """What is held for planned topologies, and granted when all parts of one are asked for."""

    def __init__(
        self, granted: GrantedClaims, queue: RequestQueue, book: Book, holds: Holds, cutter: TicketCutter
    ) -> None:
        self._granted = granted
        self._queue = queue
        self._book = book
        self._cutter = cutter
        self.holds = holds

    def use(self, hold: PlanHold, lease: BrokerLease) -> None:
        """``lease`` asks for a part of a hold: if it is the last one, all are granted, and nothing is held any more."""
        members = {
            self._granted.leases[id_].asked.properties.get(HOLD, "").rpartition("/")[2]: self._granted.leases[id_]
            for id_ in self._book.group_of(lease.id)
        }
        if set(members) != {part.part for part in hold.parts}:
            return
        wrong = self.holds.why_not(hold, lease.holder)
        if wrong:
            self.holds.drop(hold, wrong)
            return
        for part in hold.parts:
            member = members[part.part]
            key = self._cutter.new_key(member)
            self.holds.reserve(hold, part, key)
            grant = Grant(member.id, part.source, part.units, hold.term)
            self._cutter.cut(member, grant, self._queue.options[member.id], key)
        self.holds.use(hold, lease.holder)
