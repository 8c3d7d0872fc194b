"""What a service manager is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.base import Actor
from leasekit.actors.dispatch import query
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.tickets import Sites, Tickets
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.schema import Row


class GuestState(Actor):
    """The records of a service manager."""

    role = "guest"
    endorsable = "authority"
    membership: Membership
    limits: Limits

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: GuestSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self.records = Leases(self.kernel, settings.keep_closed)
        self.leases = self.records.by_id
        sites = Sites(self.keyring)
        self.returns = Returns(self.kernel, self.keyring, self.leases, sites.name_of)
        self.tickets = Tickets(self.keyring, sites, self.returns)
        self.dispatch.add(self.returns)
        self.dispatch.add(self.records)
        self.peering.changed.append(sites.changed)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        self.records.restore(tables.get("slices", ()), tables.get("leases", ()))
        self.membership.restore(tables.get("units", ()))
        self.returns.restore(tables.get("returns", ()))
        self.membership.resume(self.records.open.values())

    def _deals_with(self, peer: str) -> bool:
        return any(lease.site == peer and lease.ended < 0 for lease in self.leases.values()) or any(
            giving.site == peer for giving in self.returns
        )

    @query("status")
    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        units = sum(len(lease.units) for lease in self.records.open.values())
        return {**self._status(self.leases.values()), "units": units, "returns": len(self.returns)}
