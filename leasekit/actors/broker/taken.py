"""The delegations that a broker takes from sites and other brokers, and their end."""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.dependents import SourceDependents
from leasekit.actors.dispatch import takes
from leasekit.actors.issued import Issued, replaced_by
from leasekit.actors.kernel import Kernel, earliest
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import DELEGATE
from leasekit.core.claims.statements import RECLAIM, check_statement, reclaim_deadline
from leasekit.core.claims.ticket import Ticket, decode_ticket
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.fields import HELD_MAX
from leasekit.core.protocol.messages import HeldClaim, Offer, OfferAnswer, Reclaim
from leasekit.core.reasons import Code, Reason, mark, marked, said
from leasekit.core.schema import Row
from leasekit.core.time import Instant
from leasekit.core.words import with_article

TAKEN_MAX = 1000
"""How many delegations of one giver are held at once."""
REFUSED_MAX = 1000
"""How many refused offers are remembered at once."""


class TakenDelegations:
    """The delegations that are held: they are those in ``book``."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, book: Book, issued: Issued, dependents: SourceDependents
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._issued = issued
        self._dependents = dependents
        self.refused_offers: dict[tuple[str, bytes], Reason] = {}
        """Why tickets, by their giver and their bytes, were not taken."""
        kernel.register(
            Delegation,
            due_at=lambda one: issued.due_at(one) if one.given else self._due_at(one),
            on_due=lambda one: issued.due(one) if one.given else self._due(one),
            owes=issued.owes,
            send=issued.send_now,
        )

    @takes(Offer, DELEGATE)
    def _on_offer(self, peer: str, message: Offer) -> None:
        known = self._known(peer, message.delegation)
        if known is not None and known.ticket == message.ticket:
            self._kernel.send(peer, self._taken_answer(known, message.number))
            return
        reason = self.refused_offers.get((peer, message.ticket))
        try:
            if known is not None:
                raise TicketError(
                    Code.EXISTS,
                    f"{self._keyring.name} holds another claim under this name until {mark(known.term.end)}",
                )
            if not reason:
                self._take(self._check_offer(peer, message))
        except TicketError as error:
            reason = error.reason
            self._remember_refused(peer, message.ticket, error.reason)
        taken = self._book.get(message.delegation) if not reason else None
        held = self._held_of(message) if reason and not message.line else ()
        answer = OfferAnswer(message.delegation, message.number, reason, 0, held)
        self._kernel.send(peer, answer if taken is None else self._taken_answer(taken, message.number))

    def _held_of(self, offer: Offer) -> tuple[HeldClaim, ...]:
        """What is held of the line that ``offer`` begins: its giver may have lost its store."""
        return tuple(
            HeldClaim(one.id, one.ticket, one.state, one.replaced if one.state == deleg.REPLACED else one.reclaimed)
            for one in self._book.line(offer.delegation)[-HELD_MAX:]
        )

    def _taken_answer(self, source: Delegation, number: int) -> OfferAnswer:
        """It is held; and until when what it stands in the place of is in use, or more of it than there is now."""
        before = [one for one in self._book.line(source.base) if one.state == deleg.REPLACED]
        others = len(self._book.line(source.base)) > 1
        until = max((one.freed for one in before), default=0)
        short = self._book.table(source.id).overcommitted() if others else []
        beyond = short[-1].end if short and short[-1].end > self._kernel.now else 0
        return OfferAnswer(source.id, number, None, max(until, 0), (), beyond)

    def _remember_refused(self, peer: str, ticket: bytes, reason: Reason) -> None:
        """A repeat of the offer is refused as well, even if it could be taken by then: its giver may have heard the
        first answer, and counts on its units.
        """
        self.refused_offers[peer, ticket] = reason
        if len(self.refused_offers) > REFUSED_MAX:
            del self.refused_offers[next(iter(self.refused_offers))]

    def _known(self, peer: str, id_: str) -> Delegation | None:
        """A giver's delegation, if it is held. Raises ``RemoteError`` if it can't be that giver's: names of delegations
        begin with their giver's, so that none is in the way of another's, or of what this broker gives itself.
        """
        if not id_.startswith(f"{peer}/"):
            raise RemoteError(Code.NOT_YOURS, f"delegation: found {id_!r}, names of {peer}'s begin with {peer}/")
        return self._book.get(id_)

    def _check_offer(self, peer: str, message: Offer) -> tuple[Delegation, Ticket]:
        ticket = self._check_given(peer, message.ticket)
        leaf = ticket.leaf
        if leaf.properties != digest_properties(message.properties):
            raise TicketError(Code.WRONG_PROPERTIES, "the resource properties are not those that the claim names")
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
        for other in self._book.line(source.base):
            root = self._book.ticket(other.id).root.issuer
            same = root == ticket.root.issuer or source.site in self._keyring.peers  # whose keys are known, then
            if (source.type, source.site) != (other.type, other.site) or not same:
                raise TicketError(
                    Code.WRONG_LINE, f"{other.id} is {other.type!r} of {other.site}: it can't go on from it"
                )
            if source.properties != other.properties:
                raise TicketError(Code.WRONG_LINE, f"{other.id} has other resource properties, it can't go on from it")
            overlaps = source.term.start < other.grants_until and other.term.start < source.term.end
            if overlaps and (not source.line or source.term.start < other.term.start):
                raise TicketError(Code.WRONG_LINE, f"{other.id} covers {marked(other.term)}, which it overlaps")

    def _check_given(self, peer: str, data: bytes) -> Ticket:
        """The ticket in ``data``, which ``peer`` has cut for this broker. Raises ``TicketError``."""
        ticket = decode_ticket(data)
        key = self._keyring.key_among(peer, ticket.leaf.issuer)
        root = key if self._keyring.peers[peer].role == "authority" else None
        self._keyring.verify(ticket, root=root, issuer=key)
        return ticket

    def _site_of(self, peer: str, ticket: Ticket, called: str) -> str:
        """The name of the site that a chain begins at: the one that its key has here, else what the giver calls it."""
        root = ticket.root.issuer
        for known in self._keyring.peers.values():
            if root in self._keyring.keys_of(known.name):
                if known.role != "authority":
                    raise TicketError(
                        Code.UNKNOWN_SITE,
                        f"the chain begins at {known.name}, which is no site but {with_article(known.role)}",
                    )
                return known.name
        if not called or called in self._keyring.peers:
            raise TicketError(Code.UNKNOWN_SITE, f"the chain begins at a site that {peer} calls {called!r}")
        return called

    def _take(self, taken: tuple[Delegation, Ticket]) -> None:
        source, ticket = taken
        self._check_room(source.peer)
        self._book.add(source, ticket)
        for other in replaced_by(source, list(self._book.line(source.base))):
            with self._book.changing(other, self._kernel.now):
                other.replaced = source.term.start
            self._kernel.fire(deleg.MACHINE, other, "replace", Reason(Code.IN_ITS_PLACE, source.id, units=source.units))
            other.freed = self._dependents.busy_until(other)
        self._kernel.note(
            source.id,
            "taken",
            "",
            deleg.HELD,
            said(f"{source.units} {source.type} of {source.site} to {mark(source.term.end)}"),
        )
        self._kernel.touch(source)
        self._book.note_news()
        self._issued.give()

    def _check_room(self, peer: str) -> None:
        count = self._book.count_of(peer)
        if count >= TAKEN_MAX:
            raise TicketError(Code.BUSY, f"{self._keyring.name} holds {count} delegations of {peer}, its limit")

    # -- what the giver takes back -----------------------------------------------------------------------------

    @takes(Reclaim, DELEGATE)
    def _on_reclaim(self, peer: str, message: Reclaim) -> None:
        source = self._known(peer, message.delegation)
        ticket = self._check_given(peer, message.ticket)
        note = check_statement(
            self._keyring.scheme, message.statement, RECLAIM, signer=ticket.leaf.issuer, subject=ticket.leaf.digest
        )
        deadline, at = reclaim_deadline(note), note.at
        if source is None:
            # It overtook its offer, which must not be taken when it comes.
            self._check_room(peer)
            leaf = ticket.leaf
            source = Delegation(
                message.delegation, peer, leaf.type, leaf.units, leaf.term, message.ticket, {}, message.number,
                self._keyring.peers[peer].name, leaf.digest, deleg.HELD,
            )  # fmt: skip
            # By itself: what it goes on from, if it does, it does not say.
            self._book.add(source, ticket)
            at = leaf.term.start  # nothing can come of it: its properties are not known
            self._kernel.note(source.id, "taken", "", deleg.HELD, Reason(Code.TAKEN_BACK_UNOFFERED))
        if deleg.MACHINE.allows((source.state, source.pending), "let_go"):
            self._dependents.let_go(
                source, at, -1 if deadline is None else deadline, Reason(Code.TAKES_BACK_AS_OF, peer, at=note.at)
            )
            source.statement = message.statement
        until = self._dependents.busy_until(source)
        self._kernel.send(peer, OfferAnswer(message.delegation, message.number, None, until))

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, source: Delegation) -> Instant | None:
        if source.state in (deleg.REFUSED, deleg.ENDED):
            return None
        freed = source.freed if source.state == deleg.REPLACED and source.freed >= 0 else None
        return earliest(source.term.end, freed, source.grants_until if source.grants_until > self._kernel.now else None)

    def _due(self, source: Delegation) -> None:
        if source.state == deleg.REPLACED:
            source.freed = self._dependents.busy_until(source)  # a modify that came back unused goes on for longer
        if self._issued.ended(source):
            self._book.remove(source.id)
        elif source.grants_until <= self._kernel.now:
            self._book.close(source.id)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        for source in map(Delegation.from_row, rows):
            if not source.given and source.state in (deleg.HELD, deleg.REPLACED, deleg.RECLAIMED):
                self._book.add(source, decode_ticket(source.ticket))
                self._kernel.schedule(source, self._kernel.due_at(source))
                if source.grants_until <= self._kernel.now:
                    self._book.close(source.id)
