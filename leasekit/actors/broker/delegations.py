"""What a broker holds of others, and what it delegates to other brokers of that.

What it gives is reserved in the timetable of the source that it was cut from, like a lease. One that is taken back
gives its units free when the site has accepted that the claim ends early: until then the site would count both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

import attrs
from msgspec.structs import replace

from leasekit.actors.broker.book import Book, rest_of
from leasekit.actors.broker.claims import TRUNCATE, GrantedClaims, keep_receipt
from leasekit.actors.issued import Issued, Issuer, replaced_by, taken_back
from leasekit.actors.kernel import Kernel, command, earliest, keeps, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Notices, Served
from leasekit.actors.settings import DELEGATE, BrokerSettings, DelegationSpec
from leasekit.actors.withheld import in_order, units_of_class, withheld_shares
from leasekit.core.answers import ReleasedDelegations
from leasekit.core.claims.claim import DEGREE_ONE, UNITS_MAX, Ticket, decode_ticket, delegate
from leasekit.core.claims.signed import RECLAIM, TRUNCATION, check_statement, reclaim_deadline, state
from leasekit.core.commands import ReleaseSource
from leasekit.core.errors import ArgumentError, CommandError, RemoteError, TicketError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import BrokerLease, Delegation, Notice, TakenBack, Withheld, out_for
from leasekit.core.mappers import Grant
from leasekit.core.profile import Profile
from leasekit.core.properties import NO_UNITS, Counts, check_named, chosen, count_of, counts
from leasekit.core.protocol.messages import (
    HELD_MAX,
    HOLDINGS_MAX,
    OUT,
    Accepted,
    HeldClaim,
    Holdings,
    Largest,
    LetGo,
    Offer,
    OfferAnswer,
    Reclaim,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.reasons import Code, Reason, mark, marked, said, with_article
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term


def _key(id_: str) -> str:
    """Under which a delegation that was given is reserved in the timetable of its source."""
    return f"given {id_}"


@attrs.define(eq=False, slots=False)
class Subdelegation(Issuer):
    """What the settings say is given of what is in ``book``: the issuer of :attr:`issued`. Whether there is as much as
    is to be given shows when its sites have delegated. What it forgot it can't tell from what others made up.
    """

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _notices: Notices
    _settings: BrokerSettings
    freed: list[Callable[[str], None]] = attrs.field(factory=list, init=False)
    """Told of what source something that was given ends early."""

    def __attrs_post_init__(self) -> None:
        self.issued = Issued(self._kernel, self._keyring, self)
        self.issued.taken.append(self._offer_taken)

    def begin(self) -> None:
        """It is known what time it is: what the settings say is given, for the first time or again."""
        self.issued.give(again=True)

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""
        return self._settings.delegations

    def most_of(self, spec: DelegationSpec) -> int:
        """As many as are asked for."""
        return UNITS_MAX  # whether it ever has that much shows when its sites have delegated

    def check_override(self, chain: str, type_: str, units: int) -> None:
        """How many are given must be said."""
        if not units and chain not in self.issued.specs:
            raise ArgumentError(f"units: found none, and the settings don't say how many {type_!r} are given: say it")

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """See :class:`Issuer`."""
        for source in self._book.of_type(spec.type):
            if (spec.site and source.site != spec.site) or not source.is_held:
                continue
            if last is None and next(one for one in self._book.chain(source.base) if one.is_held) is not source:
                continue  # what comes later is for renewals
            if last is not None and self._book.base(last.source) != source.base:
                continue
            begin, wanted = self.issued.period(spec, last, instead=instead)
            start, end = max(begin, source.term.start) if last is None else begin, min(wanted, source.term.end)
            if not source.term.start <= start < end:
                continue
            term, before = Term(start, end), decode_ticket(last.ticket).leaf if last is not None else None
            same = instead and before is not None and (end, spec.units, spec.degree) == (
                before.term.end, before.units, before.degree
            )  # fmt: skip
            units = self._units_for(source, spec, term, before.classes if before is not None else NO_UNITS)
            if same or not units:
                continue  # the site, and who gave this, count the old claim until nothing of it is in use
            whole = self._book.ticket(source.id)
            ticket = delegate(
                whole, self._keyring.signer_of(whole.leaf.holder), holder=self._keyring.key_of(spec.broker),
                units=units, term=term, serial=self._kernel.next("serial"), degree=spec.degree,
            )  # fmt: skip
            table, key = self._book.table(source.id), _key(id_)
            if key in table:  # a chain that begins anew, under the name of what is over
                table.release(key)
            # Over a maintenance window it may be more than there is: the holder hears of that when it has it.
            table.reserve(key, ticket.leaf.capacities, term, force=True)
            self.issued.offer(
                id_, spec.broker, ticket, *self._book.attributes_of(units), chain=self.issued.chain_name(spec),
                site=source.site, source=source.id,
            )  # fmt: skip
            return True
        return False

    def _units_for(self, source: Delegation, spec: DelegationSpec, term: Term, first: Counts) -> Counts:
        """The units that can be given of a delegation over ``term``, of those that it had ``first``; none if there are
        not so many, if all of it were in service.
        """
        for window in source.withheld:
            self._book.withhold(source, window, -1)
        free = [(class_, table.available(term)) for class_, table in self._book.asked(source.base).tables.items()]
        for window in source.withheld:
            self._book.withhold(source, window, 1)
        # What is given counts with its degree, rounded down.
        most = {class_: (units * DEGREE_ONE + DEGREE_ONE - 1) // spec.degree for class_, units in free if units > 0}
        return chosen(spec.units, most, first)

    def _offer_taken(self, record: Delegation) -> None:
        """It may have been cut out of what a maintenance window takes: the holder is to leave that alone."""
        source = self._book.get(record.source)
        for window in source.withheld if source is not None else ():
            begin, end = (
                max(window.term.start, record.term.start, self._kernel.now),
                min(window.term.end, record.term.end),
            )
            lacking = self._book.asked(source.base).lacking(Term(begin, end)) if source and begin < end else NO_UNITS
            claim = decode_ticket(record.ticket).leaf
            each = tuple(min(count_of(lacking, class_), units) for class_, units in claim.classes)
            if window.units:
                self._notices.withhold(record, window._replace(units=sum(each), by_class=each))

    def offer_refused(self, record: Delegation) -> None:
        """The holder has the claim all the same: its units are free when the site knows that it is not to be used."""
        self._end_claim(record, record.term.start)

    def let_go(self, record: Delegation, until: Instant) -> None:
        """What the holder granted before may go on until then."""
        self._end_claim(record, max(record.taken_back.at, record.replaced, min(until, record.term.end)))

    def _end_claim(self, record: Delegation, at: Instant) -> None:
        if at >= record.term.end:
            return
        if record.site not in self._keyring.peers:
            self._kernel.complain(f"{record.id} stays reserved: its site {record.site!r} is no peer that could be told")
            return
        signer = self._keyring.signer_of(decode_ticket(record.ticket).leaf.issuer)
        statement = state(signer, TRUNCATION, record.digest, at, record.id).encode()
        message = Truncated(record.id, self._kernel.next("serial"), record.ticket, statement)
        self._notices.owe(f"{TRUNCATE}{record.id}", record.site, message, record.term.end)

    def truncated(self, notice: Notice, receipt: bytes) -> None:
        """A site knows of the early end of a claim, and has given ``receipt``."""
        record, message = self.issued.given.get(notice.subject), notice.content()
        if isinstance(message, Truncated) and record is not None:
            ticket = decode_ticket(record.ticket)
            leaf = ticket.leaf
            about = (record.id, leaf.issuer.hex(), leaf.holder.hex(), leaf.type, leaf.units, *leaf.term)
            self._free(record, keep_receipt(self._kernel, self._keyring, ticket, leaf.digest, about, receipt).at)

    def _free(self, record: Delegation, at: Instant) -> None:
        record.freed = at
        self._kernel.touch(record)
        table = self._book.table_or_none(record.source)
        if table is not None:
            table.end(_key(record.id), at)
            self._book.note_news()
            self.issued.give_waiting()
        for told in self.freed:
            told(record.source)

    def restore(self, rows: Collection[Row], overrides: Collection[Row]) -> None:
        """Take up what a store kept, and reserve it in what was taken up of the book."""
        self.issued.restore(rows, overrides)
        for given in self.issued.given.values():
            table = self._book.table_or_none(given.source)
            if table is not None and not given.has_ended:  # one that was refused until its site knows: freed
                table.reserve(_key(given.id), decode_ticket(given.ticket).leaf.capacities, given.term, force=True)
                if given.freed >= 0:
                    table.end(_key(given.id), given.freed)


@attrs.define(eq=False)
class SourceDependents:
    """The claims and delegations that depend on a delegation in ``book``."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _granted: GrantedClaims
    _issued: Issued

    def check_own(self, source: Delegation, term: Term, class_: bytes, grant: Grant, units: Counts) -> None:
        """Where a chain has less of a class than is in use, a modify that takes nothing more fits in; but of each claim
        no more can be cut than it has. Raises ``CommandError``.
        """
        used = Profile()
        for cut, start, end in self._cut_from(source, but=grant.lease):
            if start < end:
                used.add(start, end, count_of(cut, class_))
        most = count_of(self._book.ticket(source.id).leaf.capacities, class_) - count_of(units, class_)
        if used.first_at_least(term.start, most + 1) < term.end:
            raise CommandError(f"{source.id} has {source.units} units, and more are in use of what was there before")

    def _cut_from(self, source: Delegation, *, but: str) -> Iterator[tuple[Counts, Instant, Instant]]:
        """What is cut from a delegation, but for the lease ``but``: units, from when, until when they are booked."""
        for lease in self._granted.leases.values():
            claims = lease.claims if lease.id != but else ()
            for one in claims:
                if one.source == source.id:
                    yield one.weights, one.term.start, one.until
            for old, new in pairwise(claims):
                if old.held and old.source == source.id:
                    yield from ((units, *term) for _, units, term in rest_of(old, new))
        for given in self._issued.given.values():
            if given.source == source.id:
                units = decode_ticket(given.ticket).leaf.weights
                yield units, given.term.start, given.term.end if given.freed < 0 else given.freed

    def busy_until(self, source: Delegation) -> Instant:
        """When the last thing ends that was cut from ``source`` and may go on, or may be cut yet: 0 if nothing is."""
        claims = [c for lease in self._granted.leases.values() for c in lease.claims if c.source == source.id]
        ends = [c.booked_until for c in claims if source.taken_back.at < 0 or c.term.start < source.taken_back.at]
        given = [one for one in self._issued.given.values() if one.source == source.id and not one.has_ended]
        ends += [one.term.end if one.freed < 0 else one.freed for one in given]
        last = max((end for end in (*ends, source.grants_until) if end > self._kernel.now), default=0)
        deadline = source.taken_back.deadline
        return min(last, deadline) if deadline >= 0 else last

    def let_go(self, source: Delegation, at: Instant, deadline: Instant, why: Reason) -> None:
        """Nothing new goes on under ``source`` from ``at`` on; what was cut from it is over by ``deadline`` (-1: it
        runs out).
        """
        with self._book.changing(source, self._kernel.now):
            source.taken_back = TakenBack(at, deadline)
        self._kernel.fire(source, "let_go", why)
        self._stop_granting(source)

    def _stop_granting(self, source: Delegation) -> None:
        """What was cut from ``source`` and has not begun by then is off; its own holders are told."""
        for record in list(self._issued.given.values()):
            if record.source == source.id and record.can("reclaim"):
                self._issued.give_again(record)
                at, deadline, _ = source.taken_back
                self._issued.take_back(record, at, deadline, Reason(Code.TOOK_BACK, source.peer, source.id))
        for lease in list(self._granted.leases.values()):
            for claim in lease.claims if lease.is_ticketed else ():
                if claim.source == source.id and claim.term.start >= source.taken_back.at:
                    self._granted.notice(lease, claim, claim.term.start, taken_back(source.peer, self._keyring.name))
                    break


REFUSED_MAX = 1000
"""How many refused offers are remembered at once."""


@keeps(volatile="refused_offers")
@attrs.define(eq=False, slots=False)
class TakenDelegations:
    """The delegations that are held: they are those in ``book``."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _issued: Issued
    _dependents: SourceDependents
    refused_offers: dict[tuple[str, bytes], Reason] = attrs.field(factory=dict, init=False)
    """Why tickets, by their issuer and their bytes, were not taken."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            Delegation,
            due_at=lambda one: self._issued.due_at(one) if one.given else self._due_at(one),
            on_due=lambda one: self._issued.due(one) if one.given else self._due(one),
            awaits=self._issued.awaits,
            send=self._issued.send_now,
        )

    def connected(self, peer: str) -> None:
        """Where the store is not the one that this broker had, its issuers hear what it holds of them."""
        known = self._keyring.peers.get(peer)
        if self._kernel.copied and known is not None and known.role != "guest":
            self._kernel.send(peer, Holdings(tuple(one.digest for one in self._book.taken_of(peer))))

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
        held = self._held_of(message) if reason and not message.renewal_of else ()
        answer = OfferAnswer(message.delegation, message.number, reason, 0, held)
        self._kernel.send(peer, answer if taken is None else self._taken_answer(taken, message.number))

    def _held_of(self, offer: Offer) -> tuple[HeldClaim, ...]:
        """What is held of the chain that ``offer`` begins: its issuer may have lost its store."""
        return tuple(
            HeldClaim(one.id, one.ticket, one.state, one.replaced if one.is_replaced else one.taken_back.at)
            for one in self._book.chain(offer.delegation)[-HELD_MAX:]
        )

    def _taken_answer(self, source: Delegation, number: int) -> OfferAnswer:
        """It is held; and until when what it stands in the place of is in use, or more of it than there is now."""
        before = [one for one in self._book.chain(source.base) if one.is_replaced]
        others = len(self._book.chain(source.base)) > 1
        until = max((one.freed for one in before), default=0)
        short = self._book.table(source.id).overcommitted() if others else []
        beyond = short[-1].end if short and short[-1].end > self._kernel.now else 0
        return OfferAnswer(source.id, number, None, max(until, 0), (), beyond)

    def _remember_refused(self, peer: str, ticket: bytes, reason: Reason) -> None:
        """A repeat of the offer is refused as well, even if it could be taken by then: its issuer may have heard the
        first answer, and counts on its units.
        """
        self.refused_offers[peer, ticket] = reason
        if len(self.refused_offers) > REFUSED_MAX:
            del self.refused_offers[next(iter(self.refused_offers))]

    def _known(self, peer: str, id_: str) -> Delegation | None:
        """An issuer's delegation, if it is held. Raises ``RemoteError`` if it can't be that issuer's: names of
        delegations begin with their issuer's, so that none is in the way of another's, or of what this broker gives
        itself.
        """
        if not id_.startswith(f"{peer}/"):
            raise RemoteError(Code.NOT_YOURS, f"delegation: found {id_!r}, names of {peer}'s begin with {peer}/")
        return self._book.get(id_)

    def _check_offer(self, peer: str, message: Offer) -> tuple[Delegation, Ticket]:
        ticket = self._check_given(peer, message.ticket)
        leaf = ticket.leaf
        check_named(leaf.classes, message.properties, message.classes)
        source = Delegation(
            message.delegation, peer, leaf.type, leaf.units, leaf.term, message.ticket, message.properties,
            message.number, self._site_of(peer, ticket, message.site), leaf.digest, deleg.HELD,
            renewal_of="" if message.renewal_of == message.delegation else message.renewal_of, classes=message.classes,
        )  # fmt: skip
        self._check_chain(peer, source, ticket)
        return source, ticket

    def _check_chain(self, peer: str, source: Delegation, ticket: Ticket) -> None:
        """A delegation that goes on from others, or takes the place of the rest of one, is of the same type of units,
        at the same site. Raises ``TicketError``.
        """
        if source.renewal_of:
            self._known(peer, source.renewal_of)
        for other in self._book.chain(source.base):
            root = self._book.ticket(other.id).root.issuer
            known = source.site == other.site and source.site in self._keyring.peers  # by more than one key, maybe
            if source.type != other.type or not (known or root == ticket.root.issuer):
                raise TicketError(
                    Code.WRONG_CHAIN, f"{other.id} is {other.type!r} of {other.site}: it can't go on from it"
                )
            if other.number > source.number:  # it was let go of, as another had taken its place
                raise TicketError(Code.WRONG_CHAIN, f"{other.id} was offered after it")
            overlaps = source.term.start < other.grants_until and other.term.start < source.term.end
            if overlaps and (not source.renewal_of or source.term.start < other.term.start):
                raise TicketError(Code.WRONG_CHAIN, f"{other.id} covers {marked(other.term)}, which it overlaps")

    def _check_given(self, peer: str, data: bytes) -> Ticket:
        """The ticket in ``data``, which ``peer`` has cut for this broker. Raises ``TicketError``."""
        ticket = decode_ticket(data)
        key = self._keyring.key_among(peer, ticket.leaf.issuer)
        root = key if self._keyring.peers[peer].role == "authority" else None
        self._keyring.verify(ticket, root=root, issuer=key)
        return ticket

    def _site_of(self, peer: str, ticket: Ticket, called: str) -> str:
        """The name of the site that a chain begins at: the one that its key has here, else what the issuer calls it."""
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
        for other in replaced_by(source, list(self._book.chain(source.base))):
            with self._book.changing(other, self._kernel.now):
                other.replaced = source.term.start
            self._kernel.fire(other, "replace", Reason(Code.IN_ITS_PLACE, source.id, units=source.units))
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
        count = len(self._book.taken_of(peer))
        if count >= HOLDINGS_MAX:
            raise TicketError(Code.BUSY, f"{self._keyring.name} holds {count} delegations of {peer}, its limit")

    # -- what the issuer takes back -----------------------------------------------------------------------------

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
        if source.can("let_go"):
            self._dependents.let_go(
                source, at, -1 if deadline is None else deadline, Reason(Code.TAKES_BACK_AS_OF, peer, at=note.at)
            )
            source.taken_back = source.taken_back._replace(statement=message.statement)
        until = self._dependents.busy_until(source)
        self._kernel.send(peer, OfferAnswer(message.delegation, message.number, None, until))

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, source: Delegation) -> Instant | None:
        if source.is_over:
            return None
        freed = source.freed if source.is_replaced and source.freed >= 0 else None
        return earliest(source.term.end, freed, source.grants_until if source.grants_until > self._kernel.now else None)

    def _due(self, source: Delegation) -> None:
        if source.is_replaced:
            source.freed = self._dependents.busy_until(source)  # a modify that came back unused goes on for longer
        if self._issued.ended(source):
            self._book.remove(source.id)
        elif source.grants_until <= self._kernel.now:
            self._book.close(source.id)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        for source in map(Delegation.from_row, rows):
            if not source.given and not source.is_over:
                self._book.add(source, decode_ticket(source.ticket))
                self._kernel.schedule(source, self._kernel.due_at(source))
                if source.grants_until <= self._kernel.now:
                    self._book.close(source.id)


WINDOWS_MAX = 100
"""How many maintenance windows of one delegation are heeded at once."""


@attrs.define(eq=False)
class Withholding:
    """The maintenance windows of what a broker has: nothing new is granted then, and its holders hear of them."""

    _kernel: Kernel
    _keyring: Keyring
    _book: Book
    _notices: Notices
    _issued: Issued
    heeded: list[Callable[[Delegation, Withheld, bool], None]] = attrs.field(factory=list, init=False)
    """What happens, in order, when a window holds, changes (``True``) or is taken back."""

    @takes(Withhold, DELEGATE)
    def _on_withhold(self, peer: str, message: Withhold) -> None:
        """The issuer's units are in maintenance then: nothing new is granted of them."""
        source = self._book.get(message.delegation)
        if source is None or source.peer != peer:
            raise RemoteError(
                Code.UNKNOWN_DELEGATION, f"{self._keyring.name} holds no delegation {message.delegation} of {peer}"
            )
        heard = [one for other in self._chain_of(source) for one in other.withheld if one.window == message.window]
        if all(message.number > one.number for one in heard):  # else it is a repeat, or was overtaken
            self._withhold(source, message)
        self._kernel.send(peer, Accepted(message.delegation, message.number))

    def _chain_of(self, source: Delegation) -> list[Delegation]:
        """``source``, those in whose place it stands, as what was cut from them goes on, and that which stands in its
        own.
        """
        chain = self._book.chain(source.base)
        return [
            one
            for one in chain
            if one is source or ((one.is_replaced or source.is_replaced) and one.term.overlaps(source.term))
        ]

    def _withhold(self, source: Delegation, message: Withhold) -> None:
        known = next((one for one in source.withheld if one.window == message.window), None)
        chain = self._chain_of(source)
        kept = [one for one in source.withheld if one is not known and one.term.end > self._kernel.now]
        heeded = sum(one.units > 0 for one in kept)
        if message.units and heeded >= WINDOWS_MAX:
            raise RemoteError(
                Code.BUSY, f"{self._keyring.name} heeds {heeded} maintenance windows of {source.id}, its limit"
            )
        if len(kept) - heeded >= WINDOWS_MAX:  # those that were taken back are remembered for the order of messages
            kept.remove(next(one for one in kept if not one.units))
        window = Withheld(message.window, message.units, message.term, message.reason, message.number, message.by_class)
        later = kept if window.window == OUT else []
        for one in (*later, *([] if known is None else [known])):
            self._book.withhold(source, one, -1)
        sources = {one.id for one in chain}
        holders = [one for one in self._issued.heeding() if one.source in sources]
        rest = Term(max(message.term.start, min(self._kernel.now, message.term.end - 1)), message.term.end)
        told: dict[str, list[tuple[bytes, int]]] = {}
        for class_, units in window.of(self._book.ticket(source.id).leaf):
            spare = self._book.asked(source.base).open(class_).available
            for name, part in withheld_shares(units, rest, spare, units_of_class(holders, class_)).items():
                told.setdefault(name, []).append((class_, part))
        for one in (*later, window):
            self._book.withhold(source, one, 1)
        source.withheld = (*kept, window)
        for tell in self.heeded:
            tell(source, window, known is not None)
        for record in holders:
            share = in_order(decode_ticket(record.ticket).leaf, counts(told.get(record.id, ())))
            passed = Withheld(message.window, sum(share), message.term, message.reason, by_class=share)
            self._notices.withhold(record, passed)
        self._book.note_news()
        self._kernel.touch(source)


@attrs.define(eq=False)
class Shortages:
    """Whoever has a ticket for later hears of a maintenance window that leaves too few units for it, and when it no
    longer does. Who has redeemed it hears of that from the site.
    """

    _kernel: Kernel
    _book: Book
    _served: Served[BrokerLease]

    def withheld(self, source: Delegation, window: Withheld, again: bool) -> None:
        """A window of ``source`` is heeded, or (``again``) is another than it was."""
        table, now = self._book.table(source.id), self._kernel.now
        reason = out_for(window.window, window.term.end, window.reason)
        for lease in self._served.leases.values():
            booked = [
                (Term(max(claim.term.start, window.term.start), min(claim.until, window.term.end)), claim.classes)
                for claim in lease.claims
                if lease.ended < 0
                and now < claim.term.start < window.term.end
                and claim.until > max(claim.term.start, window.term.start)
                and self._book.base(claim.source) == source.base
            ]
            lacks = any(
                {class_ for class_, _ in table.lacking(term)} & dict(classes).keys() for term, classes in booked
            )
            if lacks or (booked and again):
                status = "short" if lacks else "spared"
                update = TicketUpdate(lease.id, lease.update + 1, 0, status, b"", "", {}, b"", reason, -1)
                self._served.publish(lease, update)


@attrs.define(eq=False)
class LargestPieces:
    """What sites say that none of their hosts has left: nothing is granted that needs more, and holders hear of it. A
    broker that was restarted hears it when it is otherwise; what it grants until then may be refused.
    """

    _kernel: Kernel
    _book: Book
    _issued: Issued

    @takes(Largest, DELEGATE)
    def _on_largest(self, peer: str, message: Largest) -> None:
        source = self._book.get(message.delegation)
        is_own = source is not None and source.peer == peer
        if (
            source is None
            or not is_own
            or not self._book.limit(source.base, message.number, message.pieces, self._kernel.now)
        ):
            return
        self._book.note_news()
        for record in self._issued.given.values():
            if self._book.base(record.source) == source.base and record.can_grant(self._kernel.now):
                passed = replace(message, delegation=record.id, number=self._kernel.next("serial"))
                self._kernel.send(record.peer, passed)


@attrs.define(eq=False)
class ReleasedSources:
    """The delegations of which an issuer hears until when they go on: as the operator lets go of them, or as what was
    given of them ends earlier than the issuer was told when it took them back.
    """

    _kernel: Kernel
    _book: Book
    _notices: Notices
    _dependents: SourceDependents

    @command("source.release")
    def _release(self, asked: ReleaseSource) -> ReleasedDelegations:
        """Let go of what is held, as if its issuer had taken it back: for one that is gone."""
        name = asked.source
        found = [one for one in (self._book.get(name), *self._book.chain(name)) if one is not None]
        sources = [one for one in dict.fromkeys(found) if one.can("let_go")]
        if not found:
            known = ", ".join(sorted(one.source for one in self._book.describe(self._kernel.now))) or "(none)"
            raise ArgumentError(f"source: found {name!r}, held are {known}")
        if not sources:
            raise CommandError(f"source {name} is {found[0].state}: there is nothing to let go of")
        for source in sources:
            self._dependents.let_go(source, self._kernel.now, -1, Reason(Code.OPERATOR_LETS_GO))
            self._tell(source)
        return ReleasedDelegations([one.id for one in sources])

    def freed(self, name: str) -> None:
        """Something that was given of a source ends early."""
        source = self._book.get(name)
        if source is not None and source.taken_back.at >= 0:
            self._tell(source)

    def _tell(self, source: Delegation) -> None:
        message = LetGo(source.id, self._kernel.next("serial"), source.ticket, self._dependents.busy_until(source))
        self._notices.owe(f"let_go:{source.id}", source.peer, message, source.term.end)
