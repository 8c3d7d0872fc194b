"""What a broker keeps: its leases, its book of delegations, the requests that wait; and views of them for operators.

This layer knows nothing of the protocol. It restores records, forgets those that are over, and shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.broker_book import Book
from leasekit.actors.served import Server
from leasekit.actors.settings import BrokerSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.ticket import decode_ticket
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import BrokerLease, Delegation
from leasekit.core.protocol.messages import NEW
from leasekit.core.requests import Options, parse_options
from leasekit.core.schema import Row


class BrokerState(Server[BrokerLease]):
    """The records of a broker."""

    role = "broker"

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: BrokerSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self.book = Book()
        self._pending: dict[str, BrokerLease] = {}
        self._options: dict[str, Options] = {}
        self._wanted = False
        self._queries.update(sources=self._query_sources, status=self._query_status)

    def _is_settled(self, lease: Any, number: int) -> bool:
        return bool(lease.request != number)

    def _live_records(self) -> int:
        return len(self.leases) + 64

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        for row in tables.get("delegations", ()):
            source = Delegation.from_row(row)
            if source.state == deleg.HELD:
                self.book.add(source, decode_ticket(source.ticket))
                self._schedule(source, source.term.end)
        for row in tables.get("leases", ()):
            lease = BrokerLease.from_row(row)
            self.leases[lease.id] = lease
            for claim in lease.claims:
                self.book.reserve_again(claim)
            if lease.unacked:
                self._owe(lease, lease.holder)
            self._schedule(lease, self.now if lease.unacked else self._due_at(lease))
        for lease in sorted((x for x in self.leases.values() if x.request), key=lambda x: (x.arrived, x.id)):
            options = parse_options(lease.asked.properties, lease.asked.term)
            self._options[lease.id] = options
            self._pending[lease.id] = lease
            if lease.group and lease.asked.op == NEW:
                self.book.join_group(lease.holder, lease.group, lease.id, options.lease_count)
            self._wanted = True

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
                {"claim": c.digest.hex(), "source": c.source, "units": c.units, "term": [c.term.start, c.until]}
                for c in lease.claims
            ],
            "reason": lease.defer_reason or lease.reason,
        }

    def _query_sources(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self.book.describe(self.now)

    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._status(self.leases.values()), "waiting": len(self._pending), "sources": len(self.book)}
