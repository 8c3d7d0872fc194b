"""Delegations as their giver keeps them: a site's to brokers, a broker's to other brokers.

What the settings name is cut and offered as soon as it can be, sent until the taker answers, and may be taken back by
the operator. The roles say where the units come from, and what taking back does to what was granted of them.

One that is renewed becomes a line of delegations that go on from each other: each stretch is offered, taken, and ended
by itself, and named after the first (``NAME``, ``NAME#2``, ...). An offer that was refused, or that the taker could
not even answer, is not sent again before something has changed: this actor was restarted, or its peer was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

from leasekit.actors.base import earliest, instant_of
from leasekit.actors.reports import Reports
from leasekit.actors.served import ServedLease
from leasekit.actors.settings import DelegationSpec
from leasekit.core.claims.statements import reclaim
from leasekit.core.claims.ticket import Ticket, decode_ticket
from leasekit.core.errors import CommandError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import Properties
from leasekit.core.protocol.codec import ID_MAX
from leasekit.core.protocol.messages import ErrorReply, Offer, OfferAnswer, Reclaim
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Connected, Outgoing
from leasekit.core.time import Instant

L = TypeVar("L", bound=ServedLease)

RETRIES_MAX: Final = 10
"""How often an offer that was refused is made again when its taker connects: each claim that nobody takes is one that a
site must remember."""
_LIVE: Final = frozenset({deleg.OFFERING, deleg.HELD, deleg.RECLAIMING, deleg.RECLAIMED})
_OVER: Final = frozenset({deleg.REFUSED, deleg.ENDED})


def _order(record: Delegation) -> tuple[Instant, int]:
    return record.term.end, record.number


def taken_back(giver: str, taker: str) -> str:
    """Why what comes of a delegation ends early."""
    return f"{giver} takes back what it gave to {taker}"


class Giver(Reports[L], Generic[L]):
    """A server that delegates."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: dict[str, Delegation] = {}
        self._specs: dict[str, DelegationSpec] = {}
        self._retried: dict[str, int] = {}
        self._handlers[OfferAnswer] = self._on_offer_answer
        self._commands["delegation.reclaim"] = self._reclaim
        self._queries["delegations"] = self._query_delegations

    # -- for the roles to fill in ------------------------------------------------------------------------------

    def _delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None) -> bool:
        """Cut the claim that ``spec`` asks for and :meth:`_offer` it as ``id_``; it goes on from ``last``, or begins
        now. False if that can't be done yet.
        """
        raise NotImplementedError

    def _taken(self, record: Delegation) -> None:
        """The taker has ``record``: tell it what it had better know of it."""

    def _refused(self, record: Delegation) -> None:
        """The taker does not take ``record``: nobody is to use it, and its units may be given to others."""

    def _took_back(self, record: Delegation) -> None:
        """The operator has taken ``record`` back: stop what depends on it."""

    def _let_go(self, record: Delegation, until: Instant) -> None:
        """The taker has heard of it; what it granted before ends at ``until``."""

    # -- giving ------------------------------------------------------------------------------------------------

    def give(self, specs: Sequence[DelegationSpec], *, again: bool = False) -> None:
        """Offer what the settings say and is not held yet, and go on with what is to be renewed by now; ``again``: what
        was refused as well.
        """
        for spec in specs:
            line = self._line_name(spec)
            self._specs[line] = spec
            while spec.broker in self.peers:
                stretches = [record for record in self.given.values() if record.base == line]
                last = max((one for one in stretches if one.state in _LIVE), key=_order, default=None)
                if not self._is_wanted(spec, last, stretches, again):
                    break
                if not self._delegate(self._next_name(line, stretches), spec, last):
                    break
            for record in self.given.values():
                if record.base == line:
                    self._schedule(record, self._due_at(record))  # the settings say when it is renewed

    def _is_wanted(
        self, spec: DelegationSpec, last: Delegation | None, stretches: Sequence[Delegation], again: bool
    ) -> bool:
        begin = -1 if last is None else last.term.end
        if not again and any(one.state == deleg.REFUSED and one.term.end > max(begin, self.now) for one in stretches):
            return False
        if last is not None:
            due = spec.renew and last.term.end - spec.renew <= self.now < last.term.end
            return last.state == deleg.HELD and bool(due)
        return max(stretches, key=_order).reclaimed < 0 if stretches else True

    def _line_name(self, spec: DelegationSpec) -> str:
        line = f"{self.name}/{spec.type}@{spec.broker}" + (f"/{spec.site}" if spec.site else "")
        if len(line) > ID_MAX:  # no message could say it
            line = f"{self.name}/{sha256(line.encode()).hexdigest()[:12]}"
        return line

    def _next_name(self, line: str, stretches: Sequence[Delegation]) -> str:
        """The first stretch has the line's name, also if it begins anew when all is over; the others are numbered."""
        if all(one.id == line and one.state == deleg.ENDED for one in stretches):
            return line
        number = max(1 if one.id == line else int(one.id.rpartition("#")[2]) for one in stretches) + 1
        name = f"{line}#{number}"
        return name if len(name) <= ID_MAX else f"{self.name}/{sha256(line.encode()).hexdigest()[:12]}#{number}"

    def _renew(self, record: Delegation) -> None:
        """Go on with the line of ``record`` if it is to be renewed."""
        spec = self._specs.get(record.base)
        if spec is not None and spec.renew:
            self.give([spec])

    def _offer(
        self,
        id_: str,
        peer: str,
        ticket: Ticket,
        properties: Properties,
        *,
        line: str,
        site: str = "",
        source: str = "",
    ) -> None:
        leaf = ticket.leaf
        record = Delegation(
            id_, peer, leaf.type, leaf.units, leaf.term, ticket.encode(), properties, self._next("serial"),
            site or self.name, leaf.digest, given=True, source=source, line="" if id_ == line else line,
        )  # fmt: skip
        self._forget_stretches(record)
        self.given[id_] = record
        self._note(id_, "delegate", "", deleg.OFFERING, f"{leaf.units} {leaf.type} to {peer} until {leaf.term.end}")
        self._touch(record)
        self._send_given(record)

    def _forget_stretches(self, fresh: Delegation) -> None:
        """Those before a new one that are over, so that they don't add up; what was taken back stays to be seen."""
        for record in [one for one in self.given.values() if one.base == fresh.base]:
            free = record.state == deleg.ENDED or (record.state == deleg.REFUSED and record.freed >= 0)
            if free and record.reclaimed < 0:
                del self.given[record.id]
                self._dirty.pop(id(record), None)
                record.timer = None
                if record.id != fresh.id:
                    self._changes.append(Change(record.table, record.id, None))

    def _send_given(self, record: Delegation) -> None:
        if record.state == deleg.OFFERING:
            site = "" if record.site == self.name else record.site
            message: Offer | Reclaim = Offer(
                record.id, record.number, record.ticket, record.properties, site, record.line
            )
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
        if record.state == deleg.OFFERING and message.reason:
            self._not_taken(record, message.reason)
        elif record.state == deleg.OFFERING:
            self._fire(deleg.MACHINE, record, "taken")
            self._taken(record)
            self._renew(record)
        elif record.state == deleg.RECLAIMING:
            self._fire(deleg.MACHINE, record, "let_go")
            self._let_go(record, message.until if record.deadline < 0 else min(message.until, record.deadline))
        self._forget_owed(record, peer)

    def _not_taken(self, record: Delegation, reason: str) -> None:
        record.reason = reason
        self._fire(deleg.MACHINE, record, "refused", reason)
        self._complain(f"{record.peer} refuses {record.id}: {reason}; it is offered again when something has changed")
        self._refused(record)

    def _on_error(self, peer: str, message: ErrorReply) -> None:
        """A taker that can't take an offer has refused it; one that can't hear of a reclaim has heard of it: what it
        gave before runs out, or ends by the deadline.
        """
        record = self.given.get(message.lease)
        if record is None or (record.peer, record.number) != (peer, message.number) or not message.number:
            super()._on_error(peer, message)
        elif record.state == deleg.OFFERING:
            self._not_taken(record, message.text or message.code)
            self._forget_owed(record, peer)
        elif record.state == deleg.RECLAIMING:
            self._fire(deleg.MACHINE, record, "let_go", f"{peer} does not hear of it: {message.text}")
            self._let_go(record, record.term.end if record.deadline < 0 else record.deadline)
            self._forget_owed(record, peer)

    def _peer_changed(self, name: str) -> None:
        """What a peer refused it may take now that it is known otherwise."""
        super()._peer_changed(name)
        if name in self.peers:
            theirs = [spec for spec in self._specs.values() if spec.broker == name]
            for spec in theirs:
                self._retried.pop(self._line_name(spec), None)
            self.give(theirs, again=True)

    def _connected(self, connected: Connected) -> None:
        """As the base's; a peer that was away may have been set right meanwhile."""
        super()._connected(connected)
        for line, spec in self._specs.items():
            refused = any(one.base == line and one.state == deleg.REFUSED for one in self.given.values())
            if spec.broker == connected.peer and refused and self._retried.get(line, 0) < RETRIES_MAX:
                self._retried[line] = self._retried.get(line, 0) + 1
                self.give([spec], again=True)

    # -- taking back -------------------------------------------------------------------------------------------

    def _reclaim(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name = str(arguments.get("delegation", ""))
        live = sorted((one for one in self.given.values() if one.base == name and one.state in _LIVE), key=_order)
        record = self.given.get(name)
        if live and (record is None or record.state in _OVER):  # the name of a line stands for what is left of it
            record = live[0]
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
        """Nothing new goes on under ``record`` from ``at`` on; leases that exist are over by ``deadline`` (-1: they
        run out).
        """
        record.reclaimed, record.deadline, record.reason = at, deadline, why
        signer = self.signer_of(decode_ticket(record.ticket).leaf.issuer)
        record.statement = reclaim(signer, record.digest, at, deadline if deadline >= 0 else None).encode()
        record.number, record.tries = self._next("serial"), 0
        self._fire(deleg.MACHINE, record, "reclaim", why)
        self._send_given(record)
        self._took_back(record)
        for later in list(self.given.values()):  # what goes on from it as well
            goes_on = later.base == record.base and later.term.start >= record.term.end
            if goes_on and deleg.MACHINE.allows((later.state, later.pending), "reclaim"):
                self.take_back(later, at, deadline, why)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, record: Any) -> Instant | None:
        if not isinstance(record, Delegation):
            return super()._due_at(record)
        if record.state in _OVER:
            return None
        sending = record.send_at if record.state in (deleg.OFFERING, deleg.RECLAIMING) else None
        spec = self._specs.get(record.base) if record.state == deleg.HELD and record.given else None
        begin = record.term.end - spec.renew if spec is not None and spec.renew else 0
        if not record.given:
            begin = record.grants_until
        return earliest(sending, record.term.end, begin if begin > self.now else None)

    def _on_due(self, record: Any) -> None:
        if not isinstance(record, Delegation):
            super()._on_due(record)
        elif record.term.end <= self.now:
            self._fire(deleg.MACHINE, record, "end", "its term is over")
            self._renew(record)
        elif record.state in (deleg.OFFERING, deleg.RECLAIMING):
            self._send_given(record)
        else:
            self._renew(record)

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
                "line": d.base,
                "type": d.type,
                "units": d.units,
                "term": list(d.term),
                "state": d.state,
                "reclaimed": d.reclaimed,
                "deadline": d.deadline,
                "freed": d.freed,
                "reason": d.reason,
            }
            for d in self.given.values()
        ]
