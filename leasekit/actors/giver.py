"""Delegations as their giver keeps them: a site's to brokers, a broker's to other brokers.

What the settings name is cut and offered as soon as it can be, sent until the taker answers, and may be taken back by
the operator. The roles say where the units come from, and what taking back does to what was granted of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, TypeVar

from leasekit.actors.base import earliest, instant_of
from leasekit.actors.notices import Notices
from leasekit.actors.served import ServedLease
from leasekit.actors.settings import DelegationSpec
from leasekit.core.claims.statements import reclaim
from leasekit.core.claims.ticket import Ticket
from leasekit.core.errors import CommandError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import ID_MAX
from leasekit.core.protocol.messages import Offer, OfferAnswer, Reclaim
from leasekit.core.schema import Row
from leasekit.core.steps import Outgoing
from leasekit.core.time import Instant

L = TypeVar("L", bound=ServedLease)


class Giver(Notices[L], Generic[L]):
    """A server that delegates."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: dict[str, Delegation] = {}
        self._handlers[OfferAnswer] = self._on_offer_answer
        self._commands["delegation.reclaim"] = self._reclaim
        self._queries["delegations"] = self._query_delegations

    # -- for the roles to fill in ------------------------------------------------------------------------------

    def _delegate(self, id_: str, spec: DelegationSpec) -> bool:
        """Cut the claim that ``spec`` asks for and :meth:`_offer` it; False if that can't be done yet."""
        raise NotImplementedError

    def _took_back(self, record: Delegation) -> None:
        """The operator has taken ``record`` back: stop what depends on it."""

    def _let_go(self, record: Delegation, until: Instant) -> None:
        """The taker has heard of it; what it granted before ends at ``until``."""

    # -- giving ------------------------------------------------------------------------------------------------

    def give(self, specs: Sequence[DelegationSpec]) -> None:
        """Offer what the settings say and the store doesn't hold yet."""
        for spec in specs:
            id_ = f"{self.name}/{spec.type}@{spec.broker}" + (f"/{spec.site}" if spec.site else "")
            if len(id_) > ID_MAX:  # no message could say it
                id_ = f"{self.name}/{sha256(id_.encode()).hexdigest()[:12]}"
            known = self.given.get(id_)
            if spec.broker in self.peers and (known is None or (known.state == deleg.ENDED and known.reclaimed < 0)):
                self._delegate(id_, spec)

    def _offer(
        self, id_: str, peer: str, ticket: Ticket, properties: Properties, *, site: str = "", source: str = ""
    ) -> None:
        leaf = ticket.leaf
        record = Delegation(
            id_, peer, leaf.type, leaf.units, leaf.term, ticket.encode(), properties, self._next("serial"),
            site or self.name, leaf.digest, given=True, source=source,
        )  # fmt: skip
        self.given[id_] = record
        self._note(id_, "delegate", "", deleg.OFFERING, f"{leaf.units} {leaf.type} to {peer}")
        self._touch(record)
        self._send_given(record)

    def _send_given(self, record: Delegation) -> None:
        if record.state == deleg.OFFERING:
            site = "" if record.site == self.name else record.site
            message: Offer | Reclaim = Offer(record.id, record.number, record.ticket, record.properties, site)
        else:
            message = Reclaim(record.id, record.number, record.ticket, record.statement)
        self._messages.append(Outgoing(record.peer, message))
        self._owe(record, record.peer)
        record.send_at = self.now + self._backoff(record.tries)
        record.tries += 1

    def _on_offer_answer(self, peer: str, message: OfferAnswer) -> None:
        record = self.given.get(message.delegation)
        if record is None or record.peer != peer or record.number != message.number:
            return
        if record.state == deleg.OFFERING:
            record.reason = message.reason
            self._fire(deleg.MACHINE, record, "refused" if message.reason else "taken", message.reason)
        elif record.state == deleg.RECLAIMING:
            self._fire(deleg.MACHINE, record, "let_go")
            self._let_go(record, message.until if record.deadline < 0 else min(message.until, record.deadline))
        self._forget_owed(record, peer)

    # -- taking back -------------------------------------------------------------------------------------------

    def _reclaim(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        record = self.given.get(str(arguments.get("delegation", "")))
        if record is None:
            known = ", ".join(sorted(self.given)) or "(none)"
            raise CommandError(f"delegation: found {arguments.get('delegation')!r}, given are {known}")
        at, deadline = max(instant_of(arguments, "at") or 0, self.now), instant_of(arguments, "deadline")
        if not deleg.MACHINE.allows((record.state, record.pending), "reclaim"):
            raise CommandError(f"delegation {record.id} is {record.state}: it can't be taken back")
        if deadline is not None and deadline < at:
            raise CommandError(f"deadline: found {deadline}, it can't be before {at}, when nothing new may begin")
        self.take_back(record, at, -1 if deadline is None else deadline, "taken back by the operator")
        return {"delegation": record.id, "at": at, "deadline": record.deadline, "state": record.state}

    def take_back(self, record: Delegation, at: Instant, deadline: Instant, why: str) -> None:
        """Nothing new begins under ``record`` from ``at`` on; leases that exist are over by ``deadline`` (-1: they
        run out).
        """
        record.reclaimed, record.deadline, record.reason = at, deadline, why
        record.statement = reclaim(self.signer, record.digest, at, deadline if deadline >= 0 else None).encode()
        record.number, record.tries = self._next("serial"), 0
        self._fire(deleg.MACHINE, record, "reclaim", why)
        self._send_given(record)
        self._took_back(record)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, record: Any) -> Instant | None:
        if not isinstance(record, Delegation):
            return super()._due_at(record)
        if record.state in (deleg.REFUSED, deleg.ENDED):
            return None
        sending = record.send_at if record.state in (deleg.OFFERING, deleg.RECLAIMING) else None
        return earliest(sending, record.term.end)

    def _on_due(self, record: Any) -> None:
        if not isinstance(record, Delegation):
            super()._on_due(record)
        elif record.term.end <= self.now:
            self._fire(deleg.MACHINE, record, "end", "its term is over")
        elif record.state in (deleg.OFFERING, deleg.RECLAIMING):
            self._send_given(record)

    def _owes(self, record: Any, peer: str) -> bool:
        if isinstance(record, Delegation):
            return record.state in (deleg.OFFERING, deleg.RECLAIMING) and record.peer == peer
        return super()._owes(record, peer)

    def _send_owed(self, record: Any, peer: str) -> None:
        if isinstance(record, Delegation):
            record.tries = 0
            self._send_given(record)
        else:
            super()._send_owed(record, peer)

    def _restore_given(self, rows: Sequence[Row]) -> None:
        for row in rows:
            record = Delegation.from_row(row)
            if record.given:
                self.given[record.id] = record
                waiting = record.state in (deleg.OFFERING, deleg.RECLAIMING)
                if waiting:
                    self._owe(record, record.peer)
                self._schedule(record, self.now if waiting else self._due_at(record))

    def _query_delegations(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "delegation": d.id,
                "broker": d.peer,
                "site": d.site,
                "source": d.source,
                "type": d.type,
                "units": d.units,
                "term": list(d.term),
                "state": d.state,
                "reclaimed": d.reclaimed,
                "deadline": d.deadline,
                "reason": d.reason,
            }
            for d in self.given.values()
        ]
