"""The site authority: holds the units, honours tickets (:mod:`leasekit.core.leases.authority`).

This layer speaks the protocol: redeems, closes, returns, delegations. What a lease's units go through is in
:mod:`.leases`; units themselves are in :mod:`.units`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.dispatch import command, takes
from leasekit.actors.issued import taken_back
from leasekit.actors.served import FRESH, OLD
from leasekit.actors.settings import DELEGATE, REDEEM, AuthoritySettings, Peer
from leasekit.actors.site.claims import HEARD, REDEEMED, VOID
from leasekit.actors.site.maintenance import SiteMaintenance
from leasekit.core.claims.claim import Claim, decode_claim
from leasekit.core.claims.keys import Scheme, Signer, fingerprint
from leasekit.core.claims.statements import (
    RECEIPT,
    RELINQUISHMENT,
    TRUNCATION,
    Statement,
    check_statement,
    decode_statement,
    state,
)
from leasekit.core.claims.ticket import REPLACES, Ticket, decode_ticket, saving_of
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import AcceptedChange as Later
from leasekit.core.leases.records import SiteClaim, SiteLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.properties import check_plain, is_plain
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    UNDO,
    Accepted,
    CloseLease,
    Redeem,
    Relinquish,
    Relinquished,
    Truncated,
)
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term
from leasekit.core.words import counted, view

GIVEN_BACK = Reason(Code.EXTEND_TAKEN_BACK)
STRAYS_MAX = 1000
"""How many closes of leases that were never redeemed are remembered at once."""


class Authority(SiteMaintenance):
    """A site's actor."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: AuthorityMapper,
        settings: AuthoritySettings | None = None,
    ) -> None:
        super().__init__(name, signer, scheme, peers, mapper, settings or AuthoritySettings())
        self.issued.taken.append(self._tell_of_windows)
        self.delegations.reclaimed.append(self.taken_back)
        self._strays: list[str] = []

    # -- redeeming ---------------------------------------------------------------------------------------------

    @takes(Redeem, REDEEM)
    def _on_redeem(self, peer: str, message: Redeem) -> None:
        lease = self.leases.get(message.lease)
        if not self.served.is_news(lease, peer, message.number):
            return
        if message.op not in (NEW, EXTEND, MODIFY, UNDO):
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {NEW}, {EXTEND}, {MODIFY}, {UNDO}")
        if message.op == NEW:
            lease = self._redeem_new(lease, peer, message)
        elif lease is None:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self.name} has no lease {message.lease}")
        else:
            try:
                self._continue(lease, peer, message)
            except RemoteError as error:
                # Written down, unlike other refusals: a repeat that comes late must not be obeyed after all.
                lease.number = message.number
                self.updates.publish(lease, "refused", message.number, error.reason)
                return
        self.served.accept(lease, message.number)
        self.kernel.touch(lease)
        self.demands.look_again()

    def _continue(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        _check_words(message)
        if message.op == UNDO:
            self._undo_extend(lease, message)
            return
        if message.op == EXTEND and self._is_taken(lease, message):
            return
        if lease.next is not None and (message.op, lease.next.op) != (MODIFY, EXTEND):
            raise RemoteError(Code.WAITING, who=lease.id)
        au.MACHINE.next((lease.state, lease.pending), message.op)  # raises before anything is reserved
        if message.op == EXTEND:
            self._redeem_extend(lease, peer, message)
        else:
            self._redeem_modify(lease, peer, message)

    def _redeem_new(self, lease: SiteLease | None, peer: str, message: Redeem) -> SiteLease:
        if lease is not None:
            return self._redeem_again(lease, message)
        self.served.check_id(message.lease, peer)
        _check_words(message)
        ticket, leaf = self.checks.check_first(peer, message.ticket, message.resource)
        until = self.admission.admit(ticket)
        lease = SiteLease(
            message.lease, peer, message.slice, leaf.type, au.TICKETED, au.REDEEMING, leaf.digest, leaf.term,
            leaf.units, message.number, message.resource, message.properties, settles=message.number,
            root=leaf.issuer, preemptible=leaf.constraints.get("preemptible") == "true", origin=ticket.root.digest,
            key=self.keyring.key_of(peer),
        )  # fmt: skip
        self.leases[lease.id] = lease
        self.claims.remember(leaf, lease.id, REDEEMED, self.kernel.now)
        self.kernel.note(
            lease.id, "redeem", "", f"{au.TICKETED}/{au.REDEEMING}", said(f"{peer}: {leaf.units} {leaf.type}")
        )
        self._end_with(lease, leaf, until)
        if lease.term.start <= self.kernel.now and lease.ended < 0:
            self.start_lease(lease)
        return lease

    def _redeem_again(self, lease: SiteLease, message: Redeem) -> SiteLease:
        """The same holder redeems the same claim under another number: a repeat, which gets the same answer."""
        known = self.claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is None or known.lease != lease.id or lease.ended >= 0 or lease.pending == au.CLOSING:
            raise RemoteError(Code.EXISTS, f"lease {lease.id} is {lease.state} already")
        lease.number = lease.settles = message.number
        if lease.state == au.ACTIVE:
            self.updates.publish(lease, "active", message.number)
        return lease

    def _redeem_extend(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        known = self.claims.get(decode_ticket(message.ticket).leaf.digest)
        if known is not None and known.lease == lease.id and lease.notice:
            raise TicketError(Code.NOT_GOING_ON, who=lease.id, what=self.name, because=lease.notice)
        ticket, leaf = self.checks.check_first(peer, message.ticket, message.resource)
        if lease.noticed >= 0:
            raise TicketError(Code.NOTICED, who=lease.id, at=lease.noticed, because=lease.notice)
        if leaf.type != lease.type or leaf.term.start != lease.term.end:
            raise TicketError(
                Code.WRONG_TERM,
                f"lease {lease.id} ends at {mark(lease.term.end)}, the claim starts at {mark(leaf.term.start)}",
            )
        until = self.admission.admit(ticket)
        self._take_next(lease, message, leaf, until)

    def _is_taken(self, lease: SiteLease, message: Redeem) -> bool:
        """Whether the lease goes on by that ticket already, or will: its guest, which has had it modified since, asks
        for it anew.
        """
        digest, later = decode_ticket(message.ticket).leaf.digest, lease.extension
        if later is not None and later.claim == digest:
            anew = later._replace(number=message.number, victims=message.victims, properties=message.properties)
            lease.next, lease.after = (anew, None) if lease.after is None else (lease.next, anew)
            lease.number = message.number
            return True
        return self._goes_by(lease, digest, message.number)

    def _goes_by(self, lease: SiteLease, digest: bytes, number: int) -> bool:
        """Whether the lease goes by that ticket already: then the answer to ``number`` is how it stands."""
        if lease.claim != digest or lease.ended >= 0 or lease.pending == au.CLOSING:
            return False
        lease.number = lease.settles = number
        if lease.pending != au.PRIMING:
            self.updates.publish(lease, "active", number)
        return True

    def _undo_extend(self, lease: SiteLease, message: Redeem) -> None:
        """Too late if the lease goes on by that ticket already. One that has not come yet is out of date when it
        comes.
        """
        digest = decode_ticket(message.ticket).leaf.digest
        lease.number = message.number
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return  # its last word is the answer
        if self._goes_by(lease, digest, message.number):
            return
        if lease.extension is not None and lease.extension.claim == digest:
            self.withdraw_next(lease, GIVEN_BACK)
            self.claims.disuse(digest)
        self.updates.publish(lease, "undone", message.number)

    def _take_next(self, lease: SiteLease, message: Redeem, leaf: Claim, until: Instant) -> None:
        """The extend or modify of ``message`` is good, up to ``until``: it is applied when its term begins."""
        self.kernel.fire(au.MACHINE, lease, message.op, said(f"{counted(leaf.units)} to {mark(leaf.term.end)}"))
        lease.number = message.number
        later = Later(
            message.op, message.number, leaf.digest, leaf.units, leaf.term, message.victims, message.properties
        )
        lease.next, lease.after = later, lease.next
        self.claims.remember(leaf, lease.id, REDEEMED, self.kernel.now)
        self._end_with(lease, leaf, until)
        if leaf.term.start <= self.kernel.now:
            self.apply_next(lease)

    def _end_with(self, lease: SiteLease, leaf: Claim, until: Instant) -> None:
        if until < leaf.term.end:
            self.notice_lease(lease, until, Reason(Code.ENDED_ABOVE))
        elif saving := saving_of(leaf):
            self.suspend_lease(lease, leaf.term.end, saving, "its broker")

    def _redeem_modify(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        if not message.ticket:
            self.kernel.fire(au.MACHINE, lease, "modify", said("configuration"))
            lease.number = message.number
            term = Term(self.kernel.now, lease.term.end) if lease.term.end > self.kernel.now else lease.term
            later = Later(MODIFY, message.number, lease.claim, lease.wanted, term, (), message.properties)
            lease.next, lease.after = later, lease.next
            self.apply_next(lease)
            return
        known = self.claims.get(lease.claim)
        if known is not None and decode_ticket(message.ticket).leaf.term.end <= known.term.start:
            raise TicketError(
                Code.TOO_LATE, f"lease {lease.id} has gone on to its extension, at {mark(known.term.start)}"
            )
        ticket, leaf = self.checks.check(peer, message.ticket, message.resource)
        if leaf.type != lease.type:
            raise TicketError(
                Code.TYPE_CHANGED, f"lease {lease.id} is of type {lease.type!r}, the claim of {leaf.type!r}"
            )
        if leaf.constraints.get(REPLACES) != lease.claim.hex():
            raise TicketError(
                Code.REPLACES, f"claim {leaf.id[:16]} does not say that it replaces that of lease {lease.id}"
            )
        extension = lease.extension
        # Its issuer is that of the first one, or has another key by now.
        issuer = bytes.fromhex(known.issuer) if known is not None else lease.root
        cut = check_statement(self.keyring.scheme, message.truncation, TRUNCATION, signer=issuer, subject=lease.claim)
        if cut.at != leaf.term.start or cut.at >= lease.term.end:
            raise TicketError(
                Code.WRONG_TERM, f"lease {lease.id} is cut off at {mark(cut.at)}, the claim starts at "
                f"{mark(leaf.term.start)}; its "
                f"term ends at {mark(lease.term.end)}"
            )  # fmt: skip
        if extension is not None and leaf.term.end != extension.term.start:
            raise TicketError(
                Code.WRONG_TERM,
                f"lease {lease.id} goes on from {mark(extension.term.start)}: the claim ends at {mark(leaf.term.end)}",
            )
        self._take_next(lease, message, leaf, self.admission.replace(lease, ticket))

    # -- closing and giving back -------------------------------------------------------------------------------

    @takes(CloseLease)
    def _on_close(self, peer: str, message: CloseLease) -> None:
        lease = self.leases.get(message.lease)
        fresh = self.served.freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        if lease is None:
            self._close_unknown(peer, message)
            return
        if fresh != FRESH:
            self.served.repeat(lease, message.number)
            return
        receipt = self._receipt_for(lease, peer, message.relinquishment) if message.relinquishment else b""
        lease.number = message.number
        self.kernel.touch(lease)
        if lease.ended >= 0:
            self.served.repeat(lease, message.number)
            return
        if receipt:
            lease.receipt = receipt
        lease.settles, lease.saves = message.number, lease.saves and message.save
        self.close_lease(lease, "close", self._why_closed(lease))
        self.served.accept(lease, message.number)

    @staticmethod
    def _why_closed(lease: SiteLease) -> Reason | None:
        if lease.saves:
            return lease.notice
        if lease.noticed < 0:
            return Reason(Code.CLOSED_BY_GUEST)
        return Reason(Code.CLOSED_BEFORE_NOTICE, at=lease.noticed).because(lease.notice)

    def _close_unknown(self, peer: str, message: CloseLease) -> None:
        """A close that overtook its redeem: remembered, so that the redeem finds the lease closed when it comes.

        Only so many, or a guest could fill the memory with them. Or one that is long forgotten: its claim is not.
        """
        self.served.check_id(message.lease, peer)
        receipt = self._late_receipt(peer, message) if message.relinquishment else b""
        now = self.kernel.now
        lease = SiteLease(
            message.lease, peer, "", "", au.CLOSED, NONE, b"", Term(now, now + 1), 0, message.number,
            reason=Reason(Code.CLOSED_UNREDEEMED), receipt=receipt, key=self.keyring.key_of(peer),
        )  # fmt: skip
        lease.ended = self.kernel.now
        self.leases[lease.id] = lease
        self.updates.publish(lease, "closed", message.number)
        self._strays = [stray for stray in self._strays if stray in self.leases]
        if len(self._strays) >= STRAYS_MAX:  # who has most of them has one less
            ((most, _),) = Counter(self.leases[stray].holder for stray in self._strays).most_common(1)
            oldest = next(stray for stray in self._strays if self.leases[stray].holder == most)
            self._strays.remove(oldest)
            self.served.drop(self.leases[oldest])
        self._strays.append(lease.id)

    def _late_receipt(self, peer: str, message: CloseLease) -> bytes:
        """The receipt for a claim whose lease was over for so long that only the claim is remembered."""
        signer = self.keyring.said_by(peer, message.relinquishment)
        note = check_statement(self.keyring.scheme, message.relinquishment, RELINQUISHMENT, signer=signer)
        known = self.claims.get(note.subject)
        if known is None or known.lease != message.lease:
            return b""
        at = max(self.kernel.now, note.at)
        return self.claims.receipt(note.subject, self.claims.end_claim(note.subject, at), message.lease)

    def _receipt_for(self, lease: SiteLease, peer: str, data: bytes) -> bytes:
        """The receipt for what is left of the lease's claim; none for an older one, which is used up."""
        note = check_statement(self.keyring.scheme, data, RELINQUISHMENT, signer=self.keyring.said_by(peer, data))
        if note.subject != lease.claim:
            return b""
        at = max(self.kernel.now, note.at)
        return self.claims.receipt(lease.claim, self.claims.end_claim(lease.claim, at), lease.id)

    @takes(Relinquish)
    def _on_relinquish(self, peer: str, message: Relinquish) -> None:
        """Works the same however often it comes: the claim is void from the first time on.

        The holder's word may also come from the issuer to whom the holder gave it: if the claim was redeemed all the
        same, that settles it against the holder.
        """
        ticket = decode_ticket(message.ticket)
        digest = ticket.leaf.digest
        known = self.claims.get(digest)
        if known is None or known.state != VOID:
            keys = self.keyring.keys_of(peer)
            by_issuer = ticket.leaf.issuer in keys
            holder = ticket.leaf.holder if by_issuer or ticket.leaf.holder in keys else keys[0]
            leaf = self.keyring.verify(ticket, root=self.keyring.own_among(ticket.root.issuer), holder=holder)
            said_by = decode_statement(message.relinquishment).signer
            signer = said_by if said_by in keys and leaf.holder in keys else leaf.holder
            note = check_statement(
                self.keyring.scheme, message.relinquishment, RELINQUISHMENT, signer=signer, subject=digest
            )
            if by_issuer and known is not None:
                self._settle_against_holder(ticket, known, note)
            known, reason = self._void(leaf, known, message.number)
            if reason:
                self.kernel.send(peer, Relinquished(message.lease, message.number, b"", reason))
                return
        receipt = state(self.keyring.signer_of(ticket.root.issuer), RECEIPT, digest, known.at, known.lease).encode()
        self.kernel.send(peer, Relinquished(message.lease, message.number, receipt, None))

    def _settle_against_holder(self, ticket: Ticket, known: SiteClaim, note: Statement) -> None:
        """A claim that its holder had given back was redeemed: keep evidence, and end the lease."""
        lease = self.leases.get(known.lease)
        if lease is None or lease.ended >= 0 or lease.claim != ticket.leaf.digest or lease.pending == au.CLOSING:
            return
        self.accusations.returned(ticket, known, note, self.updates.contract(lease, known.at or self.kernel.now))
        self.close_lease(lease, "close", Reason(Code.GIVEN_BACK_BEFORE))

    def _void(self, leaf: Claim, known: SiteClaim | None, number: int) -> tuple[SiteClaim, Reason | None]:
        if known is None or known.state == HEARD:  # nothing was ever used of it: from its start on it was never given
            record = self.claims.remember_unused(leaf, VOID, leaf.term.start)
            record.at = self.claims.end_claim(leaf.digest, leaf.term.start)
            return record, None
        at = max(self.kernel.now, leaf.term.start)
        lease = self.leases.get(known.lease)
        if lease is not None and lease.ended < 0:
            later = lease.extension
            if later is not None and later.claim == leaf.digest:
                self.withdraw_next(lease, GIVEN_BACK)
                self.claims.disuse(leaf.digest)
            elif lease.claim == leaf.digest and lease.pending != au.CLOSING and lease.number < number:
                # Its guest was told no, and gives the claim back; then a late repeat of its redeem made the lease.
                self.close_lease(lease, "close", Reason(Code.GIVEN_BACK))
            elif leaf.digest in (lease.claim, *(one.claim for one in lease.accepted)) and lease.pending != au.CLOSING:
                return known, Reason(Code.CLAIM_IN_USE, lease.id)
        known.state, known.at = VOID, self.claims.end_claim(leaf.digest, at)
        return known, None

    # -- what ends early ---------------------------------------------------------------------------------------

    def taken_back(self, record: Delegation) -> None:
        """A delegation is taken back: leases that came from it and have not begun by then are off; the others are over
        by the deadline.
        """
        why = taken_back(self.name, record.peer)
        for lease in list(self.leases.values()):
            if lease.ended >= 0:
                continue
            if lease.origin == record.digest and lease.term.start >= record.reclaimed:
                self.notice_lease(lease, lease.term.start, why)
            elif record.deadline >= 0 and (at := self.claims.end_under(lease, record.digest, record.deadline)) >= 0:
                self.notice_lease(lease, at, why)

    @takes(Truncated, DELEGATE)
    def _on_truncated(self, peer: str, message: Truncated) -> None:
        """An issuer ends a claim of its own early: a lease that it was redeemed for ends with it."""
        statement = decode_statement(message.truncation)
        key = self.keyring.key_among(peer, statement.signer)
        known = self.claims.get(statement.subject)
        if message.ticket:
            ticket = decode_ticket(message.ticket)
            root = self.keyring.own_among(ticket.root.issuer)
            self.keyring.verify(ticket, root=root, holder=ticket.leaf.holder, issuer=key)
            claim = ticket.leaf
        elif known is not None and known.issuer == key.hex():
            claim = decode_claim(known.body, known.signature)
        else:
            raise TicketError(Code.UNKNOWN_CLAIM, f"{self.name} has seen no claim of {peer} that this is about")
        check_statement(self.keyring.scheme, message.truncation, TRUNCATION, signer=key, subject=claim.digest)
        self._check_firm(claim, known)
        if known is None:
            self.claims.remember_unused(claim, HEARD)
        ended = self.claims.end_claim(claim.digest, statement.at)
        taker = self.keyring.name_of(claim.holder) or fingerprint(claim.holder)
        for lease in self.claims.leases_of(claim.digest):
            own = claim.digest in (lease.claim, *(one.claim for one in lease.accepted))
            at = self.claims.end_under(lease, claim.digest, max(ended, self.kernel.now))
            if at >= 0 and message.saving > 0:
                self.suspend_lease(lease, at, message.saving, peer)
            elif at >= 0:
                self.notice_lease(lease, at, Reason(Code.ENDED_BY, peer) if own else taken_back(peer, taker))
        receipt = self.claims.receipt(claim.digest, ended, message.lease)
        self.kernel.send(peer, Accepted(message.lease, message.number, receipt))

    def _check_firm(self, claim: Claim, known: SiteClaim | None) -> None:
        """A guest's claim ends early by its issuer's word only if it says so itself; a delegation may be taken back.

        Raises ``TicketError``.
        """
        if claim.constraints.get("preemptible") == "true":
            return
        guests = (peer for peer in self.keyring.peers.values() if peer.role == "guest")
        of_guest = any(claim.holder == peer.key or claim.holder in dict(peer.former) for peer in guests)
        if of_guest or (known is not None and known.state == REDEEMED):
            raise TicketError(
                Code.NOT_PREEMPTIBLE, f"claim {claim.id[:16]} does not say that its issuer may end it early"
            )

    # -- time and state ----------------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        self.issued.restore(tables.get("delegations", ()), tables.get("wishes", ()))
        self.restore_leases(tables)
        self._strays = [lease.id for lease in self.leases.values() if not lease.type]
        self._restore_windows(tables.get("maintenance", ()))

    # -- commands and queries ----------------------------------------------------------------------------------

    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._query_status(arguments), "delegations": self.issued.differences()}

    @command("unit.disable")
    def _disable_unit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        text = arguments.get("reason")
        reason = said(text) if text else Reason(Code.OUT_OF_SERVICE)
        unit = self.units.retire(str(arguments.get("unit", "")), reason)
        self.calendars.count(unit.type)
        return {"unit": unit.id, "state": unit.state, **view(unit.retire)}

    @command("unit.enable")
    def _enable_unit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        unit = self.units.bring_back(str(arguments.get("unit", "")))
        self.calendars.count(unit.type)
        self.demands.look_again()
        return {"unit": unit.id, "state": unit.state, **view(None)}


def _check_words(message: Redeem) -> None:
    """What a guest says goes to drivers, logs and files: raises ``RemoteError`` for control characters in it."""
    if not is_plain(message.slice):
        raise RemoteError(Code.BAD_NAME, f"slice: found {message.slice!r:.80}, names have no control characters")
    try:
        check_plain(message.resource, "resource")
        check_plain(message.properties, "properties")
    except ValueError as error:
        raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error
