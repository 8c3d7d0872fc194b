"""What a broker keeps: its leases, its book of delegations, the requests that wait; and views of them for operators.

This layer knows nothing of the protocol. It restores records, forgets those that are over, and shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.broker.usage import UsageBook
from leasekit.actors.dispatch import query
from leasekit.actors.issued import Issued
from leasekit.actors.server import Server
from leasekit.actors.settings import BrokerSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.ticket import decode_ticket
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.leases.relations import Delegation
from leasekit.core.protocol.messages import NEW
from leasekit.core.requests import parse_options
from leasekit.core.schema import Row
from leasekit.core.time import Instant


def delegation_key(id_: str) -> str:
    """Under which a delegation that was given is reserved in the timetable of its source."""
    return f"given {id_}"


class BrokerState(Server[BrokerLease]):
    """The records of a broker."""

    role = "broker"
    issued: Issued

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: BrokerSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self.book = Book()
        self.queue = RequestQueue(self.keyring, settings.pending_max)
        self._cut_off: dict[str, str] = {}
        self.usage: UsageBook | None = None

    def set_claims(self, lease: BrokerLease, claims: tuple[Granted, ...]) -> None:
        """The lease's claims are these from now on."""
        if self.usage is not None:
            self.usage.replace(lease.holder, lease.type, lease.claims, claims, self.kernel.now)
            self.kernel.changes += self.usage.take_changes()
        lease.claims = claims

    def _drop(self, lease: BrokerLease) -> None:
        if self.usage is not None:
            self.usage.let_go(lease.holder, lease.type, lease.claims)
            self.kernel.changes += self.usage.take_changes()
        self.served.drop(lease)

    def signer_from(self, source: str) -> Signer:
        """Who cuts claims from a delegation, and speaks of them: the key that it was given to."""
        known = self.book.get(source)
        return self.keyring.signer if known is None else self.keyring.signer_of(self.book.ticket(source).leaf.holder)

    def _is_settled(self, lease: Any, number: int) -> bool:
        return bool(lease.request != number)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("delegations", ()):
            source = Delegation.from_row(row)
            if not source.given and source.state in (deleg.HELD, deleg.REPLACED, deleg.RECLAIMED):
                self.book.add(source, decode_ticket(source.ticket))
                self.kernel.schedule(source, self.kernel.due_at(source))
                if source.grants_until <= self.kernel.now:
                    self.book.close(source.id)
        self.issued.restore(tables.get("delegations", ()), tables.get("wishes", ()))
        for given in self.issued:
            table = self.book.table_or_none(given.source)
            if table is not None and given.state != deleg.ENDED:  # one that was refused until its site knows: freed
                table.reserve(
                    delegation_key(given.id), decode_ticket(given.ticket).leaf.capacity, given.term, force=True
                )
                if given.freed >= 0:
                    table.end(delegation_key(given.id), given.freed)
        if self.usage is not None:
            self.usage.restore(tables.get("usage", ()), self.kernel.now)
            self.kernel.changes += self.usage.take_changes()
        for row in tables.get("leases", ()):
            lease = BrokerLease.from_row(row)
            self.leases[lease.id] = lease
            if self.usage is not None:
                self.usage.replace(lease.holder, lease.type, (), lease.claims, self.kernel.now)
            for claim in lease.claims:
                self.book.reserve_again(claim)
            for old, new in pairwise(lease.claims):
                if old.held:
                    self.book.hold_rest(old, new)
                    self._cut_off[old.digest.hex()] = lease.id
            if lease.unacked:
                self.kernel.owe(lease, lease.holder)
            self.kernel.schedule(lease, self.kernel.now if lease.unacked else self.kernel.due_at(lease))
        for lease in sorted((x for x in self.leases.values() if x.request), key=lambda x: (x.arrived, x.id)):
            options = parse_options(lease.asked.properties, lease.asked.term)
            self.queue.add(lease, options)
            if lease.group and lease.asked.op == NEW:
                self.book.join_group(lease.holder, lease.group, lease.id, options.lease_count)
            self.queue.has_news = True

    # -- queries -----------------------------------------------------------------------------------------------

    def _describe(self, lease: BrokerLease) -> dict[str, Any]:
        return {
            "id": lease.id,
            "holder": lease.holder,
            "slice": lease.slice,
            "type": lease.type,
            "state": lease.state,
            "pending": lease.pending,
            "requested": {"op": lease.asked.op, "units": lease.asked.units, "term": list(lease.asked.term)},
            "claims": [
                {"claim": c.digest.hex(), "source": c.source, "units": c.units, "term": [c.term.start, self._until(c)]}
                for c in lease.claims
            ],
            "reason": lease.defer_reason or lease.reason,
        }

    def _until(self, claim: Granted) -> Instant:
        """When a claim ends: by its giver's deadline at the latest, if that takes back what it was cut from."""
        source = self.book.get(claim.source)
        if source is None or source.deadline < 0:
            return claim.until
        return max(claim.term.start, min(claim.until, source.deadline))

    @query("sources")
    def _query_sources(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self.book.describe(self.kernel.now)

    @query("status")
    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self._status(self.leases.values()),
            "waiting": len(self.queue),
            "sources": len(self.book),
            "reports": self.reports.latest(),
            "delegations": self.issued.differences(),
        }
