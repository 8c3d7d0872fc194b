"""What a service manager keeps: its leases, their units, its slices and the tickets on their way back; and views of
them.

This layer knows nothing of the protocol. It restores records, finds them, and shows them to mappers and operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from leasekit.actors.base import Actor
from leasekit.actors.dispatch import query
from leasekit.actors.guest.membership import Membership
from leasekit.actors.guest.returns import Returns
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, Held, Slice
from leasekit.core.mappers import GuestUnitView, LeaseView
from leasekit.core.schema import Change, Row
from leasekit.core.time import Instant, Term

OPEN = (sm.NASCENT, sm.TICKETED, sm.ACTIVE, sm.ACTIVE_TICKETED)


class GuestState(Actor):
    """The records of a service manager."""

    role = "guest"
    endorsable = "authority"
    membership: Membership

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: GuestSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self.leases: dict[str, GuestLease] = {}
        self.slices: dict[str, Slice] = {}
        self.sites_by_key = _sites_by_key(self.keyring.peers.values())
        self.returns = Returns(self.kernel, self.keyring, self.leases, lambda key: self.sites_by_key.get(key, ""))
        self.dispatch.add(self.returns)
        self._open: dict[str, GuestLease] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._dependents: dict[str, list[str]] = {}
        self.peering.changed.append(self._know_sites)
        self.kernel.register(Slice)

    # -- records -----------------------------------------------------------------------------------------------

    def _know_sites(self, name: str) -> None:
        self.sites_by_key = _sites_by_key(self.keyring.peers.values())

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("slices", ()):
            record = Slice.from_row(row)
            self.slices[record.id] = record
        for row in sorted(tables.get("leases", ()), key=lambda row: _order(row[0])):
            restored = GuestLease.from_row(row)
            self._adopt(restored)
            self.kernel.schedule(restored, self.kernel.now)
        self.membership.restore(tables.get("units", ()))
        self.returns.restore(tables.get("returns", ()))
        self.membership.resume(self._open.values())

    def _adopt(self, lease: GuestLease) -> None:
        self.leases[lease.id] = lease
        if lease.name:
            self._names[lease.slice, lease.name] = lease.id
        for predecessor in {lease.redeem_predecessor, lease.join_predecessor} - {""}:
            self._dependents.setdefault(predecessor, []).append(lease.id)
        if lease.state in OPEN:
            self._open[lease.id] = lease

    def _drop(self, lease: GuestLease) -> None:
        """Forget a lease that has been over for long enough; its row stays as history, or goes if none is wanted."""
        del self.leases[lease.id]
        self._dependents.pop(lease.id, None)
        if self._names.get((lease.slice, lease.name)) == lease.id:
            del self._names[lease.slice, lease.name]
        for peer in (lease.broker, lease.site):
            self.kernel.owe_no_more(lease, peer)
        self.kernel.forget(lease)
        row = lease.row() if self.settings.keep_closed else None
        self.kernel.changes.append(Change("leases", lease.id, row))
        self.kernel.changes.extend(Change("units", unit.id, None) for unit in lease.units.values())

    def _deals_with(self, peer: str) -> bool:
        return any(lease.site == peer and lease.ended < 0 for lease in self.leases.values()) or any(
            giving.site == peer for giving in self.returns
        )

    def find(self, name: str) -> GuestLease:
        """The lease with this id, or this ``SLICE/NAME``, or this name where only one slice has it.

        A bare name means an open lease before one that is over. Raises ``CommandError``.
        """
        lease = self.leases.get(name)
        if lease is not None:
            return lease
        if "/" in name:
            slice_, _, short = name.partition("/")
            found = self._names.get((slice_, short))
            matches = [found] if found else []
        else:
            named = [id_ for (_, short), id_ in self._names.items() if short == name]
            matches = [id_ for id_ in named if id_ in self._open] or named
        if len(matches) == 1:
            return self.leases[matches[0]]
        if matches:
            raise CommandError(f"lease name {name!r} is used in {len(matches)} slices: write SLICE/{name}, or the id")
        raise CommandError(f"no lease {name!r} here; `leasekit lease list` shows those there are")

    # -- views -------------------------------------------------------------------------------------------------

    def view(self, lease: GuestLease, *, snapshot: bool = False) -> LeaseView:
        """The lease as mappers see it; with ``snapshot`` its members are looked up now, else when asked for."""

        def members() -> Sequence[GuestUnitView]:
            return [GuestUnitView(u.name, u.state, u.properties, u.reason) for u in lease.units.values()]

        fixed = members() if snapshot else None
        held = lease.approved
        following = lease.following
        return LeaseView(
            id=lease.id,
            name=lease.name,
            slice=lease.slice,
            type=lease.type,
            site=lease.site,
            state=lease.state,
            pending=lease.pending,
            join=lease.join,
            requested=lease.asked.units,
            units=held.units if held is not None else 0,
            term=lease.granted or (held.term if held is not None else lease.asked.term),
            next_term=Term(following[0].term.start, following[-1].term.end) if following else None,
            next_units=following[0].units if following else 0,
            closing=lease.closing,
            reason=lease.reason,
            properties=lease.asked.properties,
            members=members if fixed is None else lambda: fixed,
        )

    def open_leases(self) -> Iterator[GuestLease]:
        """Leases that are neither closed nor failed, in order of request."""
        return iter(self._open.values())

    def describe(self, lease: GuestLease) -> dict[str, Any]:
        """The lease as plain data for an operator."""
        held, asked = lease.approved, lease.asked
        following = [
            {"units": one.units, "term": list(one.term), "undo": _may_undo(lease, one)} for one in lease.following
        ]
        return {
            "id": lease.id,
            "name": lease.name,
            "slice": lease.slice,
            "type": lease.type,
            "broker": lease.broker,
            "site": lease.site,
            "state": lease.state,
            "pending": lease.pending,
            "join": lease.join,
            "reason": lease.reason,
            "closing": lease.closing,
            "requested": {
                "op": asked.op,
                "units": asked.units,
                "term": list(asked.term),
                "properties": asked.properties,
            },
            "approved": None
            if held is None
            else {"units": held.units, "term": list(held.term), "claim": held.digest.hex()},
            "renewal": following[0] if following else None,
            "further": following[1:],
            "granted": None if lease.granted is None else {"term": list(lease.granted), "units": len(lease.units)},
            "end": _end(lease),
            "configuration": dict(lease.configuration),
            "resource": dict(lease.resource),
            "units": [
                {"unit": u.name, "state": u.state, "reason": u.reason, "properties": dict(u.properties)}
                for u in lease.units.values()
            ],
            "redeem_predecessor": lease.redeem_predecessor,
            "join_predecessor": lease.join_predecessor,
            "suspends": lease.suspends,
            "resumes": None if not lease.resumes else {"lease": lease.resumes, "suspended": lease.resumes_from},
        }

    @query("leases")
    def _query_leases(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted = arguments.get("slice", "")
        every = arguments.get("all", False)
        return [
            _summary(lease)
            for lease in self.leases.values()
            if (not wanted or lease.slice == wanted) and (every or lease.state in OPEN)
        ]

    @query("lease")
    def _query_lease(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.describe(self.find(str(arguments.get("lease", ""))))

    @query("slices")
    def _query_slices(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for record in self.slices.values():
            members = [lease for lease in self.leases.values() if lease.slice == record.id]
            rows.append(
                {
                    "slice": record.id,
                    "leases": len(members),
                    "open": sum(lease.state in OPEN for lease in members),
                    "units": sum(len(lease.units) for lease in members if lease.state in OPEN),
                    "hold": record.hold,
                    "released": record.released,
                    "refused": record.refused,
                }
            )
        return rows

    @query("status")
    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        units = sum(len(lease.units) for lease in self._open.values())
        return {**self._status(self.leases.values()), "units": units, "returns": len(self.returns)}


def _may_undo(lease: GuestLease, held: Held) -> bool:
    """Whether a ticket goes back when the last extension of its lease is undone."""
    running = lease.approved.extends if lease.approved is not None else 0
    return lease.following[-1].extends == held.extends not in (0, running)


def _end(lease: GuestLease) -> Instant:
    """When it ends, or did."""
    end = lease.end if lease.noticed < 0 else min(lease.end, lease.noticed)
    return end if lease.ended < 0 else min(end, lease.ended)


def _summary(lease: GuestLease) -> dict[str, Any]:
    held = lease.approved
    return {
        "id": lease.id,
        "name": lease.name,
        "slice": lease.slice,
        "type": lease.type,
        "site": lease.site,
        "state": lease.state,
        "pending": lease.pending,
        "join": lease.join,
        "units": len(lease.units) or (held.units if held is not None else lease.asked.units),
        "end": _end(lease),
        "reason": lease.reason,
    }


def _sites_by_key(peers: Iterable[Peer]) -> dict[bytes, str]:
    """The sites by the keys that chains may begin with: those that they had before as well."""
    sites = [peer for peer in peers if peer.role == "authority"]
    former = {key: peer.name for peer in sites for key, _ in peer.former}
    return {**former, **{peer.key: peer.name for peer in sites}}


def _order(identifier: str) -> tuple[int, str]:
    """Ids end in a counter: order by it, so that the order of request survives a restart."""
    tail = identifier.rpartition("-")[2]
    return (int(tail) if tail.isdigit() else 0, identifier)
