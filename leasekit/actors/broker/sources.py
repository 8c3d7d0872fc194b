"""A broker's delegations: those that it takes from sites and brokers, and those that it gives to other brokers.

What it gives is reserved in the timetable of the source that it was cut from, like a lease. One that is taken back
gives its units free when the site has accepted that the claim ends early: until then the site would count both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from leasekit.actors.broker.book import rest_of
from leasekit.actors.broker.introductions import Introductions
from leasekit.actors.broker.state import BrokerState, delegation_key
from leasekit.actors.dispatch import command, takes
from leasekit.actors.issued import replaced_by, taken_back
from leasekit.actors.kernel import earliest
from leasekit.actors.settings import DELEGATE, BrokerSettings, DelegationSpec, Peer
from leasekit.actors.shares import withheld_shares
from leasekit.core.claims.claim import DEGREE_ONE, UNITS_MAX
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.statements import (
    RECEIPT,
    RECLAIM,
    TRUNCATION,
    Statement,
    check_statement,
    reclaim_deadline,
    state,
)
from leasekit.core.claims.ticket import Ticket, decode_ticket, delegate
from leasekit.core.errors import CommandError, RemoteError, TicketError
from leasekit.core.leases import broker as br
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import Granted
from leasekit.core.leases.relations import Delegation, Notice, Withheld
from leasekit.core.leases.rows import pack_body
from leasekit.core.mappers import Grant
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.fields import HELD_MAX
from leasekit.core.protocol.messages import (
    Accepted,
    HeldClaim,
    LetGo,
    Offer,
    OfferAnswer,
    Reclaim,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.schema import Change
from leasekit.core.steps import Tick
from leasekit.core.time import Instant, Term
from leasekit.core.timetable.profile import Profile
from leasekit.core.words import with_article

TRUNCATE = "truncate:"
RETURNED = "returned"
"""The state of a claim, in history, for which the site has given a receipt."""
WINDOWS_MAX = 100
"""How many maintenance windows of one delegation are heeded at once."""
TAKEN_MAX = 1000
"""How many delegations of one giver are held at once."""

REFUSED_MAX = 1000
"""How many refused offers are remembered at once."""


class BrokerSources(BrokerState):
    """The delegations of a broker, on both sides."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: BrokerSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.issued = self._issue(self)
        self.kernel.register(
            Delegation,
            due_at=lambda one: self.issued.due_at(one) if one.given else self._taken_due_at(one),
            on_due=lambda one: self.issued.due(one) if one.given else self._taken_due(one),
            owes=self.issued.owes,
            send=self.issued.send_now,
        )
        self._gave = False
        self.introductions = Introductions(self.kernel, self.keyring, self.peering, self.notices, settings.endorse)
        self._refused_offers: dict[tuple[str, bytes], str] = {}
        self.peering.changed.append(self.introductions.unsay)

    # -- taking ------------------------------------------------------------------------------------------------

    @takes(Offer, DELEGATE)
    def _on_offer(self, peer: str, message: Offer) -> None:
        known = self._known(peer, message.delegation)
        if known is not None and known.ticket == message.ticket:
            self.kernel.send(peer, self._taken_answer(known, message.number))
            return
        reason = self._refused_offers.get((peer, message.ticket), "")
        try:
            if known is not None:
                raise TicketError("exists", f"{self.name} holds another claim under this name until {known.term.end}")
            if not reason:
                self._take(self._check_offer(peer, message))
        except TicketError as error:
            reason = error.text
            self._remember_refused(peer, message.ticket, reason)
        taken = self.book.get(message.delegation) if not reason else None
        held = self._held_of(message) if reason and not message.line else ()
        answer = OfferAnswer(message.delegation, message.number, reason, 0, held)
        self.kernel.send(peer, answer if taken is None else self._taken_answer(taken, message.number))

    def _held_of(self, offer: Offer) -> tuple[HeldClaim, ...]:
        """What is held of the line that ``offer`` begins: its giver may have lost its store."""
        return tuple(
            HeldClaim(one.id, one.ticket, one.state, one.replaced if one.state == deleg.REPLACED else one.reclaimed)
            for one in self.book.line(offer.delegation)[-HELD_MAX:]
        )

    def _taken_answer(self, source: Delegation, number: int) -> OfferAnswer:
        """It is held; and until when what it stands in the place of is in use, or more of it than there is now."""
        before = [one for one in self.book.line(source.base) if one.state == deleg.REPLACED]
        others = len(self.book.line(source.base)) > 1
        until = max((one.freed for one in before), default=0)
        short = self.book.table(source.id).overcommitted() if others else []
        beyond = short[-1].end if short and short[-1].end > self.kernel.now else 0
        return OfferAnswer(source.id, number, "", max(until, 0), (), beyond)

    def _remember_refused(self, peer: str, ticket: bytes, reason: str) -> None:
        """A repeat of the offer is refused as well, even if it could be taken by then: its giver may have heard the
        first answer, and counts on its units.
        """
        self._refused_offers[peer, ticket] = reason
        if len(self._refused_offers) > REFUSED_MAX:
            del self._refused_offers[next(iter(self._refused_offers))]

    def _known(self, peer: str, id_: str) -> Delegation | None:
        """A giver's delegation, if it is held. Raises ``RemoteError`` if it can't be that giver's: names of delegations
        begin with their giver's, so that none is in the way of another's, or of what this broker gives itself.
        """
        if not id_.startswith(f"{peer}/"):
            raise RemoteError("not_yours", f"delegation: found {id_!r}, names of {peer}'s begin with {peer}/")
        return self.book.get(id_)

    def _check_offer(self, peer: str, message: Offer) -> tuple[Delegation, Ticket]:
        ticket = self._check_given(peer, message.ticket)
        leaf = ticket.leaf
        if leaf.properties != digest_properties(message.properties):
            raise TicketError("wrong_properties", "the resource properties are not those that the claim names")
        source = Delegation(
            message.delegation, peer, leaf.type, leaf.units, leaf.term, message.ticket, message.properties,
            message.number, self._site_of(peer, ticket, message.site), leaf.digest, deleg.HELD,
            line="" if message.line == message.delegation else message.line,
        )  # fmt: skip
        self._check_line(peer, source, ticket)
        return source, ticket

    def _check_line(self, peer: str, source: Delegation, ticket: Ticket) -> None:
        """A delegation that goes on from others, or takes the place of the rest of one, is of the same kind of units.
        Raises ``TicketError``.
        """
        if source.line:
            self._known(peer, source.line)
        for other in self.book.line(source.base):
            root = self.book.ticket(other.id).root.issuer
            same = root == ticket.root.issuer or source.site in self.keyring.peers  # whose keys are known, then
            if (source.type, source.site) != (other.type, other.site) or not same:
                raise TicketError("wrong_line", f"{other.id} is {other.type!r} of {other.site}: it can't go on from it")
            if source.properties != other.properties:
                raise TicketError("wrong_line", f"{other.id} has other resource properties, it can't go on from it")
            overlaps = source.term.start < other.grants_until and other.term.start < source.term.end
            if overlaps and (not source.line or source.term.start < other.term.start):
                raise TicketError("wrong_line", f"{other.id} covers {tuple(other.term)}, which it overlaps")

    def _check_given(self, peer: str, data: bytes) -> Ticket:
        """The ticket in ``data``, which ``peer`` has cut for this broker. Raises ``TicketError``."""
        ticket = decode_ticket(data)
        key = self.keyring.key_among(peer, ticket.leaf.issuer)
        root = key if self.keyring.peers[peer].role == "authority" else None
        self.keyring.verify(ticket, root=root, issuer=key)
        return ticket

    def _site_of(self, peer: str, ticket: Ticket, called: str) -> str:
        """The name of the site that a chain begins at: the one that its key has here, else what the giver calls it."""
        root = ticket.root.issuer
        for known in self.keyring.peers.values():
            if root in self.keyring.keys_of(known.name):
                if known.role != "authority":
                    raise TicketError(
                        "unknown_site",
                        f"the chain begins at {known.name}, which is no site but {with_article(known.role)}",
                    )
                return known.name
        if not called or called in self.keyring.peers:
            raise TicketError("unknown_site", f"the chain begins at a site that {peer} calls {called!r}")
        return called

    def _take(self, taken: tuple[Delegation, Ticket]) -> None:
        source, ticket = taken
        self._check_room(source.peer)
        self.book.add(source, ticket)
        for other in replaced_by(source, list(self.book.line(source.base))):
            with self.book.changing(other, self.kernel.now):
                other.replaced = source.term.start
            self.kernel.fire(deleg.MACHINE, other, "replace", f"{source.id} is in its place, with {source.units}")
            other.freed = self._busy_until(other)
        self.kernel.note(
            source.id, "taken", "", deleg.HELD, f"{source.units} {source.type} of {source.site} to {source.term.end}"
        )
        self.kernel.touch(source)
        self.queue.has_news = True
        self.issued.give()

    def _check_room(self, peer: str) -> None:
        count = self.book.count_of(peer)
        if count >= TAKEN_MAX:
            raise TicketError("busy", f"{self.name} holds {count} delegations of {peer}, its limit")

    @takes(Withhold, DELEGATE)
    def _on_withhold(self, peer: str, message: Withhold) -> None:
        """The giver's units are in maintenance then: nothing new is granted of them."""
        source = self.book.get(message.delegation)
        if source is None or source.peer != peer:
            raise RemoteError("unknown_delegation", f"{self.name} holds no delegation {message.delegation} of {peer}")
        known = next((one for one in source.withheld if one.window == message.window), None)
        if known is None or message.number > known.number:  # else it is a repeat, or was overtaken
            self._withhold(source, known, message)
        self.kernel.send(peer, Accepted(message.delegation, message.number))

    def _withhold(self, source: Delegation, known: Withheld | None, message: Withhold) -> None:
        kept = [one for one in source.withheld if one is not known and one.term.end > self.kernel.now]
        heeded = sum(one.units > 0 for one in kept)
        if message.units and heeded >= WINDOWS_MAX:
            raise RemoteError("busy", f"{self.name} heeds {heeded} maintenance windows of {source.id}, its limit")
        if len(kept) - heeded >= WINDOWS_MAX:  # those that were taken back are remembered for the order of messages
            kept.remove(next(one for one in kept if not one.units))
        window = Withheld(message.window, message.units, message.term, message.reason, message.number)
        if known is not None:
            self.book.withhold(source, known, -1)
        takers = [d for d in self.issued if d.source == source.id and d.state in (deleg.OFFERING, deleg.HELD)]
        rest = Term(max(message.term.start, min(self.kernel.now, message.term.end - 1)), message.term.end)
        told = withheld_shares(message.units, rest, self.book.table(source.id).available, takers)
        self.book.withhold(source, window, 1)
        source.withheld = (*kept, window)
        for record in takers:
            if record.id in told and (told[record.id] or known is not None):
                number = self.kernel.next("serial")
                passed = replace(message, delegation=record.id, number=number, units=told[record.id])
                until = message.term.end
                self.notices.owe(f"{message.window}@{record.id}", record.peer, record.id, number, passed, until)
        self.queue.has_news = True
        self.kernel.touch(source)

    # -- what the giver takes back -----------------------------------------------------------------------------

    @takes(Reclaim, DELEGATE)
    def _on_reclaim(self, peer: str, message: Reclaim) -> None:
        source = self._known(peer, message.delegation)
        ticket = self._check_given(peer, message.ticket)
        note = check_statement(
            self.keyring.scheme, message.statement, RECLAIM, signer=ticket.leaf.issuer, subject=ticket.leaf.digest
        )
        deadline, at = reclaim_deadline(note), note.at
        if source is None:
            # It overtook its offer, which must not be taken when it comes.
            self._check_room(peer)
            leaf = ticket.leaf
            source = Delegation(
                message.delegation, peer, leaf.type, leaf.units, leaf.term, message.ticket, {}, message.number,
                self.keyring.peers[peer].name, leaf.digest, deleg.HELD,
            )  # fmt: skip
            # By itself: what it goes on from, if it does, it does not say.
            self.book.add(source, ticket)
            at = leaf.term.start  # nothing can come of it: its properties are not known
            self.kernel.note(source.id, "taken", "", deleg.HELD, "it is taken back before it was offered")
        if deleg.MACHINE.allows((source.state, source.pending), "let_go"):
            self._source_off(source, at, -1 if deadline is None else deadline, f"{peer} takes it back as of {note.at}")
            source.statement = message.statement
        until = self._busy_until(source)
        self.kernel.send(peer, OfferAnswer(message.delegation, message.number, "", until))

    def check_own(self, parts: Sequence[tuple[Delegation, Term]], grant: Grant) -> None:
        """Where a line has less than is in use, a modify that takes nothing more fits in; but of each claim no more can
        be cut than it has. Raises ``CommandError``.
        """
        for source, term in parts:
            if self.book.table(source.id).available(term) >= 0:
                continue
            used = Profile()
            for units, start, end in self._cut_from(source, but=grant.lease):
                if start < end:
                    used.add(start, end, units)
            most = self.book.ticket(source.id).leaf.capacity - grant.units
            if used.first_at_least(term.start, most + 1) < term.end:
                raise CommandError(
                    f"{source.id} has {source.units} units, and more are in use of what was there before"
                )

    def _cut_from(self, source: Delegation, *, but: str) -> Iterator[tuple[int, Instant, Instant]]:
        """What is cut from a delegation, but for the lease ``but``: units, from when, until when they are booked."""
        for lease in self.leases.values():
            claims = lease.claims if lease.id != but else ()
            yield from ((one.units, one.term.start, one.until) for one in claims if one.source == source.id)
            for old, new in pairwise(claims):
                if old.held and old.source == source.id:
                    yield from ((units, *term) for _, units, term in rest_of(old, new))
        for one in self.issued:
            if one.source == source.id:
                yield one.units, one.term.start, one.term.end if one.freed < 0 else one.freed

    @command("source.release")
    def _release(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Let go of what is held, as if its giver had taken it back: for one that is gone."""
        name = str(arguments.get("source", ""))
        found = [one for one in (self.book.get(name), *self.book.line(name)) if one is not None]
        sources = [one for one in dict.fromkeys(found) if deleg.MACHINE.allows((one.state, one.pending), "let_go")]
        if not found:
            known = ", ".join(sorted(one["source"] for one in self.book.describe(self.kernel.now))) or "(none)"
            raise CommandError(f"source: found {name!r}, held are {known}")
        if not sources:
            raise CommandError(f"source {name} is {found[0].state}: there is nothing to let go of")
        for source in sources:
            self._source_off(source, self.kernel.now, -1, "let go of by the operator")
            number, until = self.kernel.next("serial"), self._busy_until(source)
            message = LetGo(source.id, number, source.ticket, until)
            self.notices.owe(f"let_go:{source.id}", source.peer, source.id, number, message, source.term.end)
        return {"sources": [one.id for one in sources]}

    def _source_off(self, source: Delegation, at: Instant, deadline: Instant, why: str) -> None:
        with self.book.changing(source, self.kernel.now):
            source.reclaimed = at
        source.deadline = deadline
        self.kernel.fire(deleg.MACHINE, source, "let_go", why)
        self._stop_granting(source)

    def _stop_granting(self, source: Delegation) -> None:
        """What was cut from ``source`` and has not begun by then is off; its own takers are told."""
        for record in list(self.issued):
            if record.source == source.id and deleg.MACHINE.allows((record.state, record.pending), "reclaim"):
                self.issued.give_again(record)
                self.issued.take_back(record, source.reclaimed, source.deadline, f"{source.peer} took {source.id} back")
        for lease in list(self.leases.values()):
            for claim in lease.claims if lease.state == br.TICKETED else ():
                if claim.source == source.id and claim.term.start >= source.reclaimed:
                    self._notice_guest(lease.id, claim, claim.term.start, taken_back(source.peer, self.name))
                    break

    def _notice_guest(self, lease_id: str, claim: Granted, at: Instant, reason: str) -> None:
        """Tell a guest that a claim of its lease, and what goes on from it, ends at ``at``."""
        lease = self.leases[lease_id]
        statement = state(self.signer_from(claim.source), TRUNCATION, claim.digest, at, lease.id).encode()
        update = TicketUpdate(lease.id, lease.update + 1, 0, "noticed", b"", "", {}, statement, reason, -1)
        self.served.publish(lease, update)

    def _busy_until(self, source: Delegation) -> Instant:
        """When the last thing ends that was cut from ``source`` and may go on, or may be cut yet: 0 if nothing is."""
        claims = [c for lease in self.leases.values() for c in lease.claims if c.source == source.id]
        ends = [c.booked_until for c in claims if source.reclaimed < 0 or c.term.start < source.reclaimed]
        ends += [d.term.end for d in self.issued if d.source == source.id and d.state != deleg.ENDED]
        last = max((end for end in (*ends, source.grants_until) if end > self.kernel.now), default=0)
        return min(last, source.deadline) if source.deadline >= 0 else last

    # -- giving ------------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
        if not self._gave:
            self._gave = True
            self.issued.give(again=True)

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""
        return self.settings.delegations

    def most_of(self, spec: DelegationSpec) -> int:
        """As many as are asked for."""
        return UNITS_MAX  # whether it ever has that much shows when its sites have delegated

    def check_wish(self, line: str, type_: str, units: int) -> None:
        """How many are given must be said."""
        if not units and line not in self.issued.specs:
            raise CommandError(f"units: found none, and the settings don't say how many {type_!r} are given: say it")

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """See :class:`Issuer`."""
        for source in self.book.of_type(spec.type):
            if (spec.site and source.site != spec.site) or source.state != deleg.HELD:
                continue
            if (
                last is None
                and next(one for one in self.book.line(source.base) if one.state == deleg.HELD) is not source
            ):
                continue  # what comes later is for renewals
            if last is not None and self.book.base(last.source) != source.base:
                continue
            begin, wanted = self.issued.stretch(spec, last, instead=instead)
            start, end = max(begin, source.term.start) if last is None else begin, min(wanted, source.term.end)
            if not source.term.start <= start < end:
                continue
            term, promised = Term(start, end), spec.units * spec.degree // DEGREE_ONE
            same = (
                instead
                and last is not None
                and (end, promised) == (last.term.end, decode_ticket(last.ticket).leaf.capacity)
            )
            if same or self._free_but_for_windows(source, term) < promised:
                continue  # the site, and who gave this, count the old claim until nothing of it is in use
            ticket = delegate(
                self.book.ticket(source.id), self.signer_from(source.id), holder=self.keyring.key_of(spec.broker),
                units=spec.units, term=term, serial=self.kernel.next("serial"), degree=spec.degree,
            )  # fmt: skip
            table, key = self.book.table(source.id), delegation_key(id_)
            if key in table:  # a line that begins anew, under the name of what is over
                table.release(key)
            # Over a maintenance window it may be more than there is: the taker hears of that when it has it.
            table.reserve(key, ticket.leaf.capacity, term, force=True)
            self.issued.offer(
                id_, spec.broker, ticket, source.properties, line=self.issued.line_name(spec), site=source.site,
                source=source.id,
            )  # fmt: skip
            return True
        return False

    def _free_but_for_windows(self, source: Delegation, term: Term) -> int:
        """What could be granted of a delegation over ``term`` if all of it were in service."""
        for window in source.withheld:
            self.book.withhold(source, window, -1)
        free = self.book.table(source.id).available(term)
        for window in source.withheld:
            self.book.withhold(source, window, 1)
        return free

    def offer_taken(self, record: Delegation) -> None:
        """It may have been cut out of what a maintenance window takes: the taker is to leave that alone."""
        source = self.book.get(record.source)
        for window in source.withheld if source is not None else ():
            begin, end = (
                max(window.term.start, record.term.start, self.kernel.now),
                min(window.term.end, record.term.end),
            )
            lacking = -self.book.table(record.source).available(Term(begin, end)) if begin < end else 0
            if lacking > 0 and window.units:
                number, units = self.kernel.next("serial"), min(lacking, record.units)
                message = Withhold(record.id, number, window.window, units, window.term, window.reason)
                self.notices.owe(
                    f"{window.window}@{record.id}", record.peer, record.id, number, message, window.term.end
                )

    def offer_refused(self, record: Delegation) -> None:
        """The taker has the claim all the same: its units are free when the site knows that it is not to be used."""
        self._end_claim(record, record.term.start)

    def taken_back(self, record: Delegation) -> None:
        """Its taker stops what depends on it."""

    def is_own_claim(self, peer: str, ticket: Ticket, offered: Delegation) -> bool:
        """What this broker forgot it can't tell from what others made up."""
        return False

    def check_given_in_all(self, type_: str) -> None:
        """Whether there is as much shows when its sites have delegated."""

    def let_go(self, record: Delegation, until: Instant) -> None:
        """What the taker granted before may go on until then."""
        self._end_claim(record, max(record.reclaimed, record.replaced, min(until, record.term.end)))

    def _end_claim(self, record: Delegation, at: Instant) -> None:
        if at >= record.term.end:
            return
        if record.site not in self.keyring.peers:
            self.kernel.complain(f"{record.id} stays reserved: its site {record.site!r} is no peer that could be told")
            return
        number = self.kernel.next("serial")
        signer = self.keyring.signer_of(decode_ticket(record.ticket).leaf.issuer)
        statement = state(signer, TRUNCATION, record.digest, at, record.id).encode()
        message = Truncated(record.id, number, record.ticket, statement)
        self.notices.owe(f"{TRUNCATE}{record.id}", record.site, record.id, number, message, record.term.end)

    def _accepted_notice(self, notice: Notice, receipt: bytes) -> None:
        super()._accepted_notice(notice, receipt)
        record, message = self.issued.given.get(notice.subject), notice.content()
        if isinstance(message, Truncated) and record is not None:
            ticket = decode_ticket(record.ticket)
            leaf = ticket.leaf
            about = (record.id, leaf.issuer.hex(), leaf.holder.hex(), leaf.type, leaf.units, *leaf.term)
            self._free(record, self.keep_receipt(ticket, leaf.digest, about, receipt).at)

    def keep_receipt(self, ticket: Ticket, claim: bytes, about: tuple[str | int, ...], data: bytes) -> Statement:
        """Check the receipt in ``data`` for a ``claim`` that was cut in, or from, ``ticket``, and keep it as history:
        should anyone say that the units were given away twice, the receipt refutes it. ``about`` are the lease or
        delegation, issuer, holder, type, units and term. Raises ``TicketError``.
        """
        receipt = check_statement(self.keyring.scheme, data, RECEIPT, signer=ticket.root.issuer, subject=claim)
        if self.kernel.settings.keep_closed:
            id_, parent = claim.hex(), ticket.leaf.parent if ticket.leaf.digest == claim else ticket.leaf.digest
            row = (id_, 0, parent.hex(), *about, RETURNED, pack_body((data,)))
            self.kernel.changes.append(Change("claims", id_, row))
        return receipt

    def _free(self, record: Delegation, at: Instant) -> None:
        record.freed = at
        self.kernel.touch(record)
        table = self.book.table_or_none(record.source)
        if table is not None:
            table.end(delegation_key(record.id), at)
            self.queue.has_news = True
            self.issued.give_waiting()

    # -- time and state ----------------------------------------------------------------------------------------

    def _taken_due_at(self, source: Delegation) -> Instant | None:
        if source.state in (deleg.REFUSED, deleg.ENDED):
            return None
        freed = source.freed if source.state == deleg.REPLACED and source.freed >= 0 else None
        return earliest(source.term.end, freed, source.grants_until if source.grants_until > self.kernel.now else None)

    def _taken_due(self, source: Delegation) -> None:
        if source.state == deleg.REPLACED:
            source.freed = self._busy_until(source)  # a modify that came back unused goes on for longer
        if self.issued.ended(source):
            self.book.remove(source.id)
        elif source.grants_until <= self.kernel.now:
            self.book.close(source.id)
