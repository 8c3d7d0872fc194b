"""Which units of a link a lease has: the driver's memory, one file for each link, written before the kernel is told.

What the kernel should have follows from it, so setup and teardown may come in any order, twice, and after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from leasekit.drivers.files import damaged, read_table, write_whole
from leasekit.drivers.link.settings import KBIT_MAX, SLOTS_MAX


@attrs.frozen
class Holding:
    """What a lease has of a link: its slot, which makes its class and its subnet, and its units with kbit/s of each."""

    slot: int
    units: Mapping[str, int]

    @property
    def rate(self) -> int:
        """In kbit/s."""
        return sum(self.units.values())


@attrs.frozen
class LinkRecord:
    """All leases of a link."""

    leases: Mapping[str, Holding] = attrs.Factory(dict)

    @property
    def rate(self) -> int:
        """Of all leases together, in kbit/s."""
        return sum(holding.rate for holding in self.leases.values())

    def lease_of(self, unit: str) -> str | None:
        """Which lease has a unit."""
        return next((lease for lease, holding in self.leases.items() if unit in holding.units), None)

    def without(self, unit: str) -> LinkRecord:
        """The same without a unit; a lease that has none left is gone."""
        lease = self.lease_of(unit)
        if lease is None:
            return self
        holding = self.leases[lease]
        units = {name: kbit for name, kbit in holding.units.items() if name != unit}
        others = {name: other for name, other in self.leases.items() if name != lease}
        return LinkRecord({**others, lease: Holding(holding.slot, units)} if units else others)

    def with_unit(self, unit: str, lease: str, kbit: int, slots: int) -> LinkRecord | None:
        """The same where the unit is the lease's, of whoever it was before; a new lease has the lowest slot that is
        free, and where none of ``slots`` is, there is no such record.
        """
        rest = self.without(unit)
        holding = rest.leases.get(lease)
        if holding is None:
            before = self.leases.get(lease)
            taken = {other.slot for other in rest.leases.values()}
            free = (slot for slot in range(1, slots + 1) if slot not in taken)
            slot = before.slot if before is not None else next(free, None)
            if slot is None:
                return None
            holding = Holding(slot, {})
        return LinkRecord({**rest.leases, lease: Holding(holding.slot, {**holding.units, unit: kbit})})


def read_record(path: Path) -> LinkRecord:
    """The record in a file; an empty one where there is none. Raises ``DriverError``."""
    content = read_table(path)
    if content is None:
        return LinkRecord()
    leases = content.get("leases")
    if not isinstance(leases, dict):
        raise damaged(path, "no table of leases")
    record = LinkRecord({lease: _holding(path, lease, entry) for lease, entry in leases.items()})
    slots = [holding.slot for holding in record.leases.values()]
    units = [unit for holding in record.leases.values() for unit in holding.units]
    if len(set(slots)) < len(slots) or len(set(units)) < len(units):
        raise damaged(path, "a slot or a unit twice")
    return record


def _holding(path: Path, lease: str, entry: Any) -> Holding:
    slot = entry.get("slot") if isinstance(entry, dict) else None
    units = entry.get("units") if isinstance(entry, dict) else None
    if not _within(slot, SLOTS_MAX) or not isinstance(units, dict) or not units:
        raise damaged(path, f"no slot and units of lease {lease[:60]!a}")
    if not all(_within(kbit, KBIT_MAX) for kbit in units.values()):
        raise damaged(path, f"a unit without kbit/s of lease {lease[:60]!a}")
    return Holding(int(slot or 0), units)


def _within(number: Any, most: int) -> bool:
    return type(number) is int and 1 <= number <= most


def write_record(path: Path, record: LinkRecord) -> None:
    """Has the record in the file, durably; no file for an empty one. Blocks. Raises ``DriverError``."""
    if not record.leases:
        path.unlink(missing_ok=True)
        return
    leases = {name: {"slot": held.slot, "units": dict(held.units)} for name, held in record.leases.items()}
    write_whole(path, {"leases": leases})
