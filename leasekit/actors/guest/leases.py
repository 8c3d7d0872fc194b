"""A guest's leases and slices: which there are, how operators and mappers name and see them.

This part knows nothing of the protocol: others move leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.dispatch import query
from leasekit.actors.kernel import Kernel
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import GuestLease, Held, Slice
from leasekit.core.mappers import GuestUnitView, LeaseView
from leasekit.core.schema import Change, Row
from leasekit.core.time import Instant, Term
from leasekit.core.words import view, words

OPEN = (sm.NASCENT, sm.TICKETED, sm.ACTIVE, sm.ACTIVE_TICKETED)


class Leases:
    """Leases by id, and slices by name. With ``keep_closed`` the row of a lease that is forgotten stays as history."""

    def __init__(self, kernel: Kernel, keep_closed: bool) -> None:
        self._kernel = kernel
        self._keep_closed = keep_closed
        self.by_id: dict[str, GuestLease] = {}
        self.open: dict[str, GuestLease] = {}
        """Leases that are neither closed nor failed, in order of request."""
        self.slices: dict[str, Slice] = {}
        self.named: dict[tuple[str, str], str] = {}
        """The id of the last lease of a name, by slice and name."""
        self._successors: dict[str, dict[str, GuestLease]] = {}
        kernel.register(Slice)

    def restore(self, slices: Iterable[Row], leases: Iterable[Row]) -> None:
        """Take up what a store kept: all that is due is due at once."""
        for record in map(Slice.from_row, slices):
            self.slices[record.id] = record
        for row in sorted(leases, key=lambda row: _order(row[0])):
            lease = GuestLease.from_row(row)
            self.adopt(lease)
            self._kernel.schedule(lease, self._kernel.now)

    def adopt(self, lease: GuestLease) -> None:
        """A new lease, or one that was kept."""
        self.by_id[lease.id] = lease
        if lease.name:
            self.named[lease.slice, lease.name] = lease.id
        for predecessor in _predecessors(lease):
            self._successors.setdefault(predecessor, {})[lease.id] = lease
        if lease.state in OPEN:
            self.open[lease.id] = lease

    def drop(self, lease: GuestLease) -> None:
        """Forget a lease that has been over for long enough; its row stays as history, or goes if none is wanted."""
        del self.by_id[lease.id]
        for predecessor in _predecessors(lease):
            others = self._successors[predecessor]
            del others[lease.id]
            if not others:
                del self._successors[predecessor]
        if self.named.get((lease.slice, lease.name)) == lease.id:
            del self.named[lease.slice, lease.name]
        for peer in (lease.broker, lease.site):
            self._kernel.owe_no_more(lease, peer)
        self._kernel.forget(lease)
        row = lease.row() if self._keep_closed else None
        self._kernel.changes.append(Change("leases", lease.id, row))
        self._kernel.changes.extend(Change("units", unit.id, None) for unit in lease.units.values())

    def dependents(self, lease: GuestLease) -> list[GuestLease]:
        """The leases that have ``lease`` as a predecessor."""
        return list(self._successors.get(lease.id, {}).values())

    def of_slice(self, name: str) -> list[GuestLease]:
        """The leases of a slice, those that are over included."""
        return [lease for lease in self.by_id.values() if lease.slice == name]

    def find(self, name: str) -> GuestLease:
        """The lease with this id, or this ``SLICE/NAME``, or this name where only one slice has it.

        A bare name means an open lease before one that is over. Raises ``CommandError``.
        """
        lease = self.by_id.get(name)
        if lease is not None:
            return lease
        if "/" in name:
            slice_, _, short = name.partition("/")
            found = self.named.get((slice_, short))
            matches = [found] if found else []
        else:
            named = [id_ for (_, short), id_ in self.named.items() if short == name]
            matches = [id_ for id_ in named if id_ in self.open] or named
        if len(matches) == 1:
            return self.by_id[matches[0]]
        if matches:
            raise CommandError(f"lease name {name!r} is used in {len(matches)} slices: write SLICE/{name}, or the id")
        raise CommandError(f"no lease {name!r} here; `leasekit lease list` shows those there are")

    # -- views -------------------------------------------------------------------------------------------------

    def view(self, lease: GuestLease, *, snapshot: bool = False) -> LeaseView:
        """The lease as mappers see it; with ``snapshot`` its members are looked up now, else when asked for."""

        def members() -> Sequence[GuestUnitView]:
            return [GuestUnitView(u.name, u.state, u.properties, words(u.reason)) for u in lease.units.values()]

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
            reason=words(lease.reason),
            properties=lease.asked.properties,
            members=members if fixed is None else lambda: fixed,
        )

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
            **view(lease.reason),
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
                {"unit": u.name, "state": u.state, **view(u.reason), "properties": dict(u.properties)}
                for u in lease.units.values()
            ],
            "redeem_predecessor": lease.after.redeem,
            "join_predecessor": lease.after.join,
            "suspends": lease.suspends,
            "resumes": None if lease.resumes is None else {"lease": lease.resumes.lease, "suspended": lease.resumes.at},
        }

    @query("leases")
    def _query_leases(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted = arguments.get("slice", "")
        every = arguments.get("all", False)
        return [
            _summary(lease)
            for lease in self.by_id.values()
            if (not wanted or lease.slice == wanted) and (every or lease.state in OPEN)
        ]

    @query("lease")
    def _query_lease(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.describe(self.find(str(arguments.get("lease", ""))))

    @query("slices")
    def _query_slices(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for record in self.slices.values():
            members = self.of_slice(record.id)
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
        **view(lease.reason),
    }


def _predecessors(lease: GuestLease) -> set[str]:
    return {lease.after.redeem, lease.after.join} - {""}


def _order(identifier: str) -> tuple[int, str]:
    """Ids end in a counter: order by it, so that the order of request survives a restart."""
    tail = identifier.rpartition("-")[2]
    return (int(tail) if tail.isdigit() else 0, identifier)
