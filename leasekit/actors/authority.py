"""The site authority: holds the units, honours tickets (:mod:`leasekit.core.leases.authority`).

This layer speaks the protocol: redeems, closes, returns, delegations. What a lease's units go through is in
:mod:`.site_leases`; units themselves are in :mod:`.site_units`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.served import FRESH, OLD
from leasekit.actors.settings import AuthoritySettings, Peer
from leasekit.actors.site_leases import SiteLeases
from leasekit.core.claims.claim import Claim
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.statements import RECEIPT, RELINQUISHMENT, TRUNCATION, check_statement, state
from leasekit.core.claims.ticket import Ticket, decode_ticket, delegate_root
from leasekit.core.errors import RemoteError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import Change as Later
from leasekit.core.leases.records import Delegation, SiteClaim, SiteLease
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.properties import digest_properties
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    CloseLease,
    Offer,
    OfferAnswer,
    Redeem,
    Relinquish,
    Relinquished,
)
from leasekit.core.schema import Row
from leasekit.core.steps import Outgoing, Tick
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall

REDEEMED, VOID = "redeemed", "void"
STRAYS_MAX = 1000
"""How many closes of leases that were never redeemed are remembered at once."""


class Authority(SiteLeases):
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
        self.delegations: dict[str, Delegation] = {}
        self.claims: dict[bytes, SiteClaim] = {}
        self._delegated = False
        self._strays: list[str] = []
        self._handlers.update(
            {
                Redeem: self._on_redeem,
                CloseLease: self._on_close,
                Relinquish: self._on_relinquish,
                OfferAnswer: self._on_offer_answer,
            }
        )
        self._commands.update({"unit.disable": self._disable_unit, "unit.enable": self._enable_unit})
        self._queries["delegations"] = self._query_delegations

    # -- redeeming ---------------------------------------------------------------------------------------------

    def _on_redeem(self, peer: str, message: Redeem) -> None:
        lease = self.leases.get(message.lease)
        fresh = self._freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        if fresh != FRESH:
            assert lease is not None, "a repeat has a record"
            self._repeat(lease, message.number)
            return
        if message.op not in (NEW, EXTEND, MODIFY):
            raise RemoteError("bad_op", f"op: found {message.op!r}, allowed are {NEW}, {EXTEND}, {MODIFY}")
        if message.op == NEW:
            lease = self._redeem_new(lease, peer, message)
        elif lease is None:
            raise RemoteError("unknown_lease", f"{self.name} has no lease {message.lease}")
        else:
            try:
                self._continue(lease, peer, message)
            except RemoteError as error:
                # Written down, unlike other refusals: a repeat that comes late must not be obeyed after all.
                lease.number = message.number
                self.publish(lease, "refused", message.number, error.text)
                return
        self._accept(lease, message.number)
        self._touch(lease)

    def _continue(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        if lease.next is not None:
            raise RemoteError("out_of_turn", f"lease {lease.id} has an extend or modify waiting already")
        au.MACHINE.next((lease.state, lease.pending), message.op)  # raises before anything is reserved
        if message.op == EXTEND:
            self._redeem_extend(lease, peer, message)
        else:
            self._redeem_modify(lease, peer, message)

    def _check_ticket(self, peer: str, message: Redeem) -> tuple[Ticket, Claim]:
        ticket = decode_ticket(message.ticket)
        leaf = self.verifier.check(
            ticket, root=self.signer.public, holder=self._peer_key(peer), now=self.now, skew=self._base.clock_skew
        )
        if leaf.term.end <= self.now:
            raise TicketError("expired", f"claim ended at {leaf.term.end}, it is {self.now} at {self.name}")
        if leaf.properties != digest_properties(message.resource):
            raise TicketError("wrong_properties", "the resource properties are not those that the claims name")
        if not self.units.has_type(leaf.type):
            raise TicketError(
                "unknown_type", f"type: found {leaf.type!r}, {self.name} has {', '.join(self.units.types())}"
            )
        if leaf.term.start > self.now + self.settings.redeem_ahead_max:
            raise TicketError("future", f"the term starts at {leaf.term.start}, too far ahead of {self.now}")
        known = self.claims.get(leaf.digest)
        if known is not None:
            if known.state == VOID:
                raise TicketError("returned", f"the claim was given back as of {known.at}")
            raise TicketError("redeemed", f"the claim was redeemed for lease {known.lease}")
        return ticket, leaf

    def _reserve(self, leaf: Claim, term: Term) -> None:
        try:
            self.calendar(leaf.type).reserve(leaf.digest, leaf.units, term)
        except Shortfall as short:
            raise TicketError(
                "insufficient",
                f"{leaf.units} units of {leaf.type!r} were wanted, {max(short.free, 0)} are free at {self.name} "
                f"over {tuple(short.term)}",
            ) from short

    def _redeem_new(self, lease: SiteLease | None, peer: str, message: Redeem) -> SiteLease:
        if lease is not None:
            raise RemoteError("exists", f"lease {lease.id} is {lease.state} already")
        self._check_id(message.lease, peer)
        _, leaf = self._check_ticket(peer, message)
        self._reserve(leaf, leaf.term)
        lease = SiteLease(
            message.lease, peer, message.slice, leaf.type, au.TICKETED, au.REDEEMING, leaf.digest, leaf.term,
            leaf.units, message.number, message.resource, message.properties, settles=message.number,
            root=leaf.issuer, preemptible=leaf.constraints.get("preemptible") == "true",
        )  # fmt: skip
        self.leases[lease.id] = lease
        self._remember(leaf, lease.id, REDEEMED)
        self._note(lease.id, "redeem", "", f"{au.TICKETED}/{au.REDEEMING}", f"{peer}: {leaf.units} {leaf.type}")
        if lease.term.start <= self.now:
            self.start_lease(lease)
        return lease

    def _redeem_extend(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        _, leaf = self._check_ticket(peer, message)
        if leaf.type != lease.type or leaf.term.start != lease.term.end:
            raise TicketError(
                "wrong_term", f"lease {lease.id} ends at {lease.term.end}, the claim starts at {leaf.term.start}"
            )
        self._reserve(leaf, leaf.term)
        self._fire(au.MACHINE, lease, "extend", f"{leaf.units} units to {leaf.term.end}")
        lease.number = message.number
        lease.next = Later(
            EXTEND, message.number, leaf.digest, leaf.units, leaf.term, message.victims, message.properties
        )
        self._remember(leaf, lease.id, REDEEMED)
        if leaf.term.start <= self.now:
            self.apply_next(lease)

    def _redeem_modify(self, lease: SiteLease, peer: str, message: Redeem) -> None:
        if not message.ticket:
            self._fire(au.MACHINE, lease, "modify", "configuration")
            lease.number = message.number
            term = Term(self.now, lease.term.end) if lease.term.end > self.now else lease.term
            lease.next = Later(MODIFY, message.number, lease.claim, lease.wanted, term, (), message.properties)
            self.apply_next(lease)
            return
        _, leaf = self._check_ticket(peer, message)
        if leaf.type != lease.type:
            raise TicketError("type_changed", f"lease {lease.id} is of type {lease.type!r}, the claim of {leaf.type!r}")
        cut = check_statement(self.scheme, message.truncation, TRUNCATION, signer=lease.root, subject=lease.claim)
        if cut.at != leaf.term.start or cut.at >= lease.term.end:
            raise TicketError(
                "wrong_term", f"lease {lease.id} is cut off at {cut.at}, the claim starts at {leaf.term.start}; its "
                f"term ends at {lease.term.end}"
            )  # fmt: skip
        self._replace_reservation(lease, leaf)
        self._fire(au.MACHINE, lease, "modify", f"{leaf.units} units to {leaf.term.end}")
        lease.number = message.number
        lease.next = Later(
            MODIFY, message.number, leaf.digest, leaf.units, leaf.term, message.victims, message.properties
        )
        self._remember(leaf, lease.id, REDEEMED)
        if leaf.term.start <= self.now:
            self.apply_next(lease)

    def _replace_reservation(self, lease: SiteLease, leaf: Claim) -> None:
        """End the old claim's reservation where the new one starts, and book the new one; all or nothing."""
        table = self.calendar(lease.type)
        self.end_reservation(lease, leaf.term.start)
        try:
            self._reserve(leaf, leaf.term)
        except TicketError:
            if lease.claim in table:
                table.change(lease.claim, term=lease.term, force=True)
            else:
                table.reserve(lease.claim, lease.wanted, lease.term, force=True)
            raise

    def _remember(self, leaf: Claim, lease: str, state_: str, at: Instant = 0) -> SiteClaim:
        record = SiteClaim(
            leaf.digest.hex(), lease, leaf.parent.hex(), leaf.issuer.hex(), leaf.holder.hex(), leaf.type, leaf.units,
            leaf.term, state_, at, leaf.body, leaf.signature,
        )  # fmt: skip
        self.claims[leaf.digest] = record
        self._touch(record)
        return record

    # -- closing and giving back -------------------------------------------------------------------------------

    def _on_close(self, peer: str, message: CloseLease) -> None:
        lease = self.leases.get(message.lease)
        fresh = self._freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        if lease is None:
            self._close_unknown(peer, message)
            return
        if fresh != FRESH:
            self._repeat(lease, message.number)
            return
        receipt = self._receipt_for(lease, peer, message.relinquishment) if message.relinquishment else b""
        lease.number = message.number
        self._touch(lease)
        if lease.ended >= 0:
            self._repeat(lease, message.number)
            return
        if receipt:
            lease.receipt = receipt
        lease.settles = message.number
        self.close_lease(lease, "close", "closed by its guest")
        self._accept(lease, message.number)

    def _close_unknown(self, peer: str, message: CloseLease) -> None:
        """A close that overtook its redeem: remembered, so that the redeem finds the lease closed when it comes.

        Only so many, or a guest could fill the memory with them.
        """
        self._check_id(message.lease, peer)
        lease = SiteLease(
            message.lease, peer, "", "", au.CLOSED, NONE, b"", Term(self.now, self.now + 1), 0, message.number,
            reason="closed before it was redeemed",
        )  # fmt: skip
        lease.ended = self.now
        self.leases[lease.id] = lease
        self.publish(lease, "closed", message.number)
        self._strays = [stray for stray in self._strays if stray in self.leases]
        if len(self._strays) >= STRAYS_MAX:
            self._drop(self.leases[self._strays.pop(0)])
        self._strays.append(lease.id)

    def _receipt_for(self, lease: SiteLease, peer: str, data: bytes) -> bytes:
        """The receipt for what is left of the lease's claim; none for an older one, which is used up."""
        note = check_statement(self.scheme, data, RELINQUISHMENT, signer=self._peer_key(peer))
        if note.subject != lease.claim:
            return b""
        return state(self.signer, RECEIPT, lease.claim, max(self.now, note.at), lease.id).encode()

    def _on_relinquish(self, peer: str, message: Relinquish) -> None:
        """Works the same however often it comes: the claim is void from the first time on."""
        ticket = decode_ticket(message.ticket)
        digest = ticket.leaf.digest
        known = self.claims.get(digest)
        if known is None or known.state != VOID:
            leaf = self.verifier.check(
                ticket, root=self.signer.public, holder=self._peer_key(peer), now=self.now, skew=self._base.clock_skew
            )
            check_statement(self.scheme, message.relinquishment, RELINQUISHMENT, signer=leaf.holder, subject=digest)
            known, reason = self._void(leaf, known, message.number)
            if reason:
                self._messages.append(Outgoing(peer, Relinquished(message.lease, message.number, b"", reason)))
                return
        receipt = state(self.signer, RECEIPT, digest, known.at, known.lease).encode()
        self._messages.append(Outgoing(peer, Relinquished(message.lease, message.number, receipt, "")))

    def _void(self, leaf: Claim, known: SiteClaim | None, number: int) -> tuple[SiteClaim, str]:
        if known is None:  # nothing was ever used of it, so that it may count from its start on as never given
            return self._remember(leaf, "", VOID, leaf.term.start), ""
        at = max(self.now, leaf.term.start)
        lease = self.leases.get(known.lease)
        if lease is not None and lease.ended < 0:
            later = lease.next
            if later is not None and later.claim == leaf.digest and later.op == EXTEND:
                self.withdraw_next(lease)
            elif lease.claim == leaf.digest and lease.pending != au.CLOSING and lease.number < number:
                # Its guest was told no, and gives the claim back; then a late repeat of its redeem made the lease.
                self.close_lease(lease, "close", "its claim was given back")
            elif (
                leaf.digest in (lease.claim, later.claim if later is not None else b"") and lease.pending != au.CLOSING
            ):
                return known, f"lease {lease.id} is using the claim: close the lease instead"
        known.state, known.at = VOID, at
        self._touch(known)
        return known, ""

    # -- delegations -------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
        if not self._delegated:
            self._delegated = True
            self._delegate()

    def _delegate(self) -> None:
        """Offer what the settings say and the store doesn't hold yet."""
        for spec in self.settings.delegations:
            id_ = f"{self.name}/{spec.type}@{spec.broker}"
            known = self.delegations.get(id_)
            if known is not None and known.state != deleg.ENDED:
                continue
            properties = self.units.properties(spec.type)
            ticket = delegate_root(
                self.signer,
                holder=self._peer_key(spec.broker),
                type=spec.type,
                units=spec.units,
                term=Term(self.now, self.now + spec.length),
                serial=self._next("serial"),
                degree=spec.degree,
                properties=digest_properties(properties),
            )
            record = Delegation(
                id_,
                spec.broker,
                spec.type,
                spec.units,
                ticket.leaf.term,
                ticket.encode(),
                properties,
                self._next("serial"),
            )
            self.delegations[id_] = record
            self._note(id_, "delegate", "", deleg.OFFERING, f"{spec.units} {spec.type} to {spec.broker}")
            self._touch(record)
            self._send_owed(record, spec.broker)

    def _on_offer_answer(self, peer: str, message: OfferAnswer) -> None:
        record = self.delegations.get(message.delegation)
        if record is None or record.peer != peer or record.number != message.number or record.state != deleg.OFFERING:
            return
        record.reason = message.reason
        self._fire(deleg.MACHINE, record, "refused" if message.reason else "taken", message.reason)
        self._forget_owed(record, peer)

    # -- time and state ----------------------------------------------------------------------------------------

    def _live_records(self) -> int:
        return len(self.leases) + len(self.claims) + 64

    def _due_at(self, record: Any) -> Instant | None:
        if isinstance(record, SiteLease):
            return self.lease_due_at(record)
        if isinstance(record, SiteClaim):
            return record.term.end + self._base.clock_skew if record.live else None
        if isinstance(record, Delegation):
            if record.state == deleg.OFFERING:
                return min(record.send_at, record.term.end)
            return record.term.end if record.state == deleg.HELD else None
        return None

    def _on_due(self, record: Any) -> None:
        if isinstance(record, SiteLease):
            self.lease_due(record)
        elif isinstance(record, SiteClaim):
            record.live = False
            self.claims.pop(bytes.fromhex(record.id), None)
        elif isinstance(record, Delegation):
            if record.term.end <= self.now:
                self._fire(deleg.MACHINE, record, "end", "its term is over")
            else:
                self._send_owed(record, record.peer)

    def _owes(self, record: Any, peer: str) -> bool:
        if isinstance(record, Delegation):
            return record.state == deleg.OFFERING and record.peer == peer
        return super()._owes(record, peer)

    def _send_owed(self, record: Any, peer: str) -> None:
        if not isinstance(record, Delegation):
            super()._send_owed(record, peer)
            return
        self._messages.append(Outgoing(peer, Offer(record.id, record.number, record.ticket, record.properties)))
        self._owe(record, peer)
        record.send_at = self.now + self._backoff(record.tries)
        record.tries += 1

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        for row in tables.get("claims", ()):
            claim = SiteClaim.from_row(row)
            self.claims[bytes.fromhex(claim.id)] = claim
            self._schedule(claim, claim.term.end + self._base.clock_skew)
        for row in tables.get("delegations", ()):
            record = Delegation.from_row(row)
            self.delegations[record.id] = record
            self._schedule(record, self.now if record.state == deleg.OFFERING else record.term.end)
        self.restore_leases(tables)

    # -- commands and queries ----------------------------------------------------------------------------------

    def _disable_unit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        reason = str(arguments.get("reason") or "taken out of service by the operator")
        unit = self.units.retire(str(arguments.get("unit", "")), reason)
        self.count_units(unit.type)
        return {"unit": unit.id, "state": unit.state, "reason": unit.retire}

    def _enable_unit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        unit = self.units.bring_back(str(arguments.get("unit", "")))
        self.count_units(unit.type)
        self.look_again()
        return {"unit": unit.id, "state": unit.state, "reason": ""}

    def _query_delegations(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "delegation": d.id,
                "broker": d.peer,
                "type": d.type,
                "units": d.units,
                "term": list(d.term),
                "state": d.state,
                "reason": d.reason,
            }
            for d in self.delegations.values()
        ]
