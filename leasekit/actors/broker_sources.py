"""A broker's delegations: those that it takes from sites and brokers, and those that it gives to other brokers.

What it gives is reserved in the timetable of the source that it was cut from, like a lease. One that is taken back
gives its units free when the site has accepted that the claim ends early: until then the site would count both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leasekit.actors.broker_state import BrokerState, delegation_key
from leasekit.actors.settings import DELEGATE, BrokerSettings, DelegationSpec, Peer
from leasekit.core.claims.claim import DEGREE_ONE
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.statements import (
    RECLAIM,
    TRUNCATION,
    check_statement,
    decode_statement,
    reclaim_deadline,
    state,
)
from leasekit.core.claims.ticket import Ticket, decode_ticket, delegate
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import broker as br
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, Notice, Withheld
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.messages import (
    Accepted,
    Introduce,
    Offer,
    OfferAnswer,
    Reclaim,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.steps import Outgoing, Tick
from leasekit.core.time import Instant, Term

TRUNCATE = "truncate:"
WINDOWS_MAX = 100
"""How many maintenance windows of one delegation are heeded at once."""
TAKEN_MAX = 1000
"""How many delegations of one giver are held at once."""


class BrokerSources(BrokerState):
    """The delegations of a broker, on both sides."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: BrokerSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self._gave = False
        self._introduced: set[tuple[str, str]] = set()
        self._endorsements: dict[str, bytes] = {}
        self._handlers.update({Offer: self._on_offer, Reclaim: self._on_reclaim, Withhold: self._on_withhold})
        self._needs.update({Offer: DELEGATE, Reclaim: DELEGATE, Withhold: DELEGATE})

    # -- taking ------------------------------------------------------------------------------------------------

    def _on_offer(self, peer: str, message: Offer) -> None:
        known = self._known(peer, message.delegation)
        if known is not None and known.ticket == message.ticket:
            self._messages.append(Outgoing(peer, OfferAnswer(message.delegation, message.number, "")))
            return
        reason = ""
        try:
            if known is not None:
                raise TicketError("exists", f"{self.name} holds another claim under this name until {known.term.end}")
            self._take(self._check_offer(peer, message))
        except TicketError as error:
            reason = error.text
        self._messages.append(Outgoing(peer, OfferAnswer(message.delegation, message.number, reason)))

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
        )  # fmt: skip
        return source, ticket

    def _check_given(self, peer: str, data: bytes) -> Ticket:
        """The ticket in ``data``, which ``peer`` has cut for this broker. Raises ``TicketError``."""
        ticket = decode_ticket(data)
        key = self._peer_key(peer)
        self.verifier.check(
            ticket, root=key if self.peers[peer].role == "authority" else None, holder=self.signer.public,
            now=self.now, skew=self._base.clock_skew, issuer=key,
        )  # fmt: skip
        return ticket

    def _site_of(self, peer: str, ticket: Ticket, called: str) -> str:
        """The name of the site that a chain begins at: the one that its key has here, else what the giver calls it."""
        root = ticket.root.issuer
        for known in self.peers.values():
            if known.key == root:
                if known.role != "authority":
                    raise TicketError(
                        "unknown_site", f"the chain begins at {known.name}, which is no site but a {known.role}"
                    )
                return known.name
        if not called or called in self.peers:
            raise TicketError("unknown_site", f"the chain begins at a site that {peer} calls {called!r}")
        return called

    def _take(self, taken: tuple[Delegation, Ticket]) -> None:
        source, ticket = taken
        self._check_room(source.peer)
        self.book.add(source, ticket)
        self._note(
            source.id, "taken", "", deleg.HELD, f"{source.units} {source.type} of {source.site} to {source.term.end}"
        )
        self._touch(source)
        self._wanted = True
        self.give(self.settings.delegations)

    def _check_room(self, peer: str) -> None:
        count = self.book.count_of(peer)
        if count >= TAKEN_MAX:
            raise TicketError("busy", f"{self.name} holds {count} delegations of {peer}, its limit")

    def _on_withhold(self, peer: str, message: Withhold) -> None:
        """The giver's units are in maintenance then: nothing new is granted of them."""
        source = self.book.get(message.delegation)
        if source is None or source.peer != peer:
            raise RemoteError("unknown_delegation", f"{self.name} holds no delegation {message.delegation} of {peer}")
        known = next((one for one in source.withheld if one.window == message.window), None)
        if known is None or message.number > known.number:  # else it is a repeat, or was overtaken
            self._withhold(source, known, message)
        self._messages.append(Outgoing(peer, Accepted(message.delegation, message.number)))

    def _withhold(self, source: Delegation, known: Withheld | None, message: Withhold) -> None:
        kept = [one for one in source.withheld if one is not known and one.term.end > self.now]
        heeded = sum(one.units > 0 for one in kept)
        if message.units and heeded >= WINDOWS_MAX:
            raise RemoteError("busy", f"{self.name} heeds {heeded} maintenance windows of {source.id}, its limit")
        if len(kept) - heeded >= WINDOWS_MAX:  # those that were taken back are remembered for the order of messages
            kept.remove(next(one for one in kept if not one.units))
        window = Withheld(message.window, message.units, message.term, message.reason, message.number)
        if known is not None:
            self.book.withhold(source, known, -1)
        self.book.withhold(source, window, 1)
        source.withheld = (*kept, window)
        for record in self.given.values():
            if record.source == source.id and record.state == deleg.HELD:
                number = self._next("serial")
                passed = message._replace(delegation=record.id, number=number, units=min(message.units, record.units))
                until = message.term.end
                self.notify(f"{message.window}@{record.id}", record.peer, record.id, number, passed, until)
        self._wanted = True
        self._touch(source)

    # -- what the giver takes back -----------------------------------------------------------------------------

    def _on_reclaim(self, peer: str, message: Reclaim) -> None:
        source = self._known(peer, message.delegation)
        ticket = self._check_given(peer, message.ticket)
        note = check_statement(
            self.scheme, message.statement, RECLAIM, signer=self._peer_key(peer), subject=ticket.leaf.digest
        )
        deadline = reclaim_deadline(note)
        if source is None:
            # It overtook its offer, which must not be taken when it comes.
            self._check_room(peer)
            leaf = ticket.leaf
            source = Delegation(
                message.delegation, peer, leaf.type, leaf.units, leaf.term, message.ticket, {}, message.number,
                self.peers[peer].name, leaf.digest, deleg.HELD,
            )  # fmt: skip
            self.book.add(source, ticket)
        if source.state == deleg.HELD:
            source.reclaimed = note.at
            source.deadline = -1 if deadline is None else deadline
            source.statement = message.statement
            self._fire(deleg.MACHINE, source, "let_go", f"{peer} takes it back as of {note.at}")
            self.book.close(source.id)
            self._stop_granting(source)
        until = self._busy_until(source)
        self._messages.append(Outgoing(peer, OfferAnswer(message.delegation, message.number, "", until)))

    def _stop_granting(self, source: Delegation) -> None:
        """What was cut from ``source`` and has not begun by then is off; its own takers are told."""
        for record in list(self.given.values()):
            if record.source == source.id and deleg.MACHINE.allows((record.state, record.pending), "reclaim"):
                self.take_back(record, source.reclaimed, source.deadline, f"{source.peer} took {source.id} back")
        for lease in list(self.leases.values()):
            claim = lease.claims[-1] if lease.claims else None
            if lease.state != br.TICKETED or claim is None or claim.source != source.id:
                continue
            if claim.term.start >= source.reclaimed:
                self._notice_guest(lease.id, claim.term.start, f"site {source.site} takes its units back")

    def _notice_guest(self, lease_id: str, at: Instant, reason: str) -> None:
        """Tell a guest that its claim ends at ``at``."""
        lease = self.leases[lease_id]
        statement = state(self.signer, TRUNCATION, lease.claims[-1].digest, at, lease.id).encode()
        self._publish(lease, TicketUpdate(lease.id, lease.update + 1, 0, "noticed", b"", "", {}, statement, reason, -1))

    def _busy_until(self, source: Delegation) -> Instant:
        """When the last thing cut from ``source`` that may go on ends: 0 if there is nothing."""
        claims = [c for lease in self.leases.values() for c in lease.claims if c.source == source.id]
        ends = [c.until for c in claims if c.term.start < source.reclaimed]
        ends += [d.term.end for d in self.given.values() if d.source == source.id and d.state != deleg.ENDED]
        last = max((end for end in ends if end > self.now), default=0)
        return min(last, source.deadline) if source.deadline >= 0 else last

    # -- introductions -----------------------------------------------------------------------------------------

    def introduce(self, guest: str, site: str, until: Instant) -> bytes:
        """If the settings say so, make a guest known at a site; returns the endorsement of the site for the guest."""
        holder, place = self.peers.get(guest), self.peers.get(site)
        if not self.settings.endorse or holder is None or place is None:
            return b""
        if (guest, site) not in self._introduced:
            self._introduced.add((guest, site))
            number = self._next("serial")
            message = Introduce(guest, number, self.endorsement(holder))
            self.notify(f"introduce:{guest}@{site}", site, guest, number, message, until)
        if site not in self._endorsements:
            self._endorsements[site] = self.endorsement(place)
        return self._endorsements[site]

    def _peer_changed(self, name: str) -> None:
        """What was said of a peer may not hold any more: it is said anew."""
        super()._peer_changed(name)
        self._introduced = {pair for pair in self._introduced if name not in pair}
        self._endorsements.pop(name, None)

    # -- giving ------------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
        if not self._gave:
            self._gave = True
            self.give(self.settings.delegations)

    def _delegate(self, id_: str, spec: DelegationSpec) -> bool:
        for source in self.book.of_type(spec.type):
            if spec.site and source.site != spec.site:
                continue
            start = max(self.now, source.term.start)
            term = Term(start, min(start + spec.length, source.term.end))
            promised = spec.units * spec.degree // DEGREE_ONE
            if term.end <= start or self.book.table(source.id).available(term) < promised:
                continue
            ticket = delegate(
                self.book.ticket(source.id), self.signer, holder=self._peer_key(spec.broker), units=spec.units,
                term=term, serial=self._next("serial"), degree=spec.degree,
            )  # fmt: skip
            self.book.table(source.id).reserve(delegation_key(id_), ticket.leaf.capacity, term)
            self._offer(id_, spec.broker, ticket, source.properties, site=source.site, source=source.id)
            return True
        return False

    def _on_offer_answer(self, peer: str, message: OfferAnswer) -> None:
        super()._on_offer_answer(peer, message)
        record = self.given.get(message.delegation)
        if record is not None and record.state == deleg.REFUSED:
            self._free(record, self.now)

    def _let_go(self, record: Delegation, until: Instant) -> None:
        at = max(record.reclaimed, min(until, record.term.end))
        if at >= record.term.end:
            return
        if record.site not in self.peers:
            self._complain(f"{record.id} stays reserved: its site {record.site!r} is no peer that could be told")
            return
        number = self._next("serial")
        statement = state(self.signer, TRUNCATION, record.digest, at, record.id).encode()
        message = Truncated(record.id, number, record.ticket, statement)
        self.notify(f"{TRUNCATE}{record.id}", record.site, record.id, number, message, record.term.end)

    def _accepted_notice(self, notice: Notice) -> None:
        record, message = self.given.get(notice.subject), notice.content()
        if isinstance(message, Truncated) and record is not None:
            self._free(record, decode_statement(message.truncation).at)

    def _free(self, record: Delegation, at: Instant) -> None:
        record.freed = at
        self._touch(record)
        table = self.book.table_or_none(record.source)
        if table is not None:
            table.end(delegation_key(record.id), at)
            self._wanted = True

    # -- time and state ----------------------------------------------------------------------------------------

    def _on_due(self, record: Any) -> None:
        super()._on_due(record)
        if isinstance(record, Delegation) and not record.given and record.state == deleg.ENDED:
            self.book.remove(record.id)
