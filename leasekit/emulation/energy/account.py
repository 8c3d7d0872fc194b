"""What power management of an emulated site came to, from the rows that its authority commits.

A unit counts as off, or suspended, from when its site has heard that it is to when it begins to be switched on; on the
way there it counts as on. Where its meter was read before it was put off (``idle_watts``), that is what it saves. A
lease was delayed if one of its units was not on when it got it: by as long as the last of them took to come on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasekit.core.efficiency import IDLE_WATTS, positive
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.records import SiteUnit
from leasekit.core.schema import Change
from leasekit.core.time import HOUR, Duration, Instant, Term
from leasekit.emulation.energy.metrics import Delayed, delay_req, e_savings, res_idle
from leasekit.emulation.metrics import Series


class EnergyAccount:
    """One site's account; :meth:`observe` takes in its commits."""

    def __init__(self) -> None:
        self.off = Series()
        self.suspended = Series()
        self.used = Series()
        self.spared = Series()
        """What units that are off or suspended would draw, idle, in watts: as far as that was metered."""
        self.switched = 0
        self._power: dict[str, str] = {}
        self._used: set[str] = set()
        self._waits: dict[str, tuple[str, Instant]] = {}
        self._boots: dict[str, int] = {}
        self._leases: dict[str, tuple[int, Term]] = {}
        self._spared: dict[str, float] = {}
        self._metered: set[str] = set()

    def observe(self, now: Instant, changes: Sequence[Change]) -> None:
        """Take in one commit."""
        for table, key, row in changes:
            if row is None:
                continue
            if table == "units":
                self._unit(now, SiteUnit.from_row(row))
            elif table == "leases" and key in self._boots:
                self._leases[key] = row[7], Term(row[8], row[9])

    def _unit(self, now: Instant, unit: SiteUnit) -> None:
        before, after = self._power.get(unit.id, pw.ON), unit.power
        if before != after:
            self._power[unit.id] = after
            self.switched += after in pw.OPERATION
            for series, power in ((self.off, pw.OFF), (self.suspended, pw.SUSPENDED)):
                if (before == power) != (after == power):
                    series.add(now, 1 if after == power else -1)
            self._meter(now, unit)
        used = unit.state not in (au.FREE, au.OUT) or bool(unit.promised)
        if used != (unit.id in self._used):
            (self._used.add if used else self._used.discard)(unit.id)
            self.used.add(now, 1 if used else -1)
        waits = self._waits.get(unit.id)
        if unit.promised and unit.state == au.FREE:
            if waits is None:
                self._waits[unit.id] = unit.promised, now
                self._boots.setdefault(unit.promised, 0)
        elif waits is not None:
            lease, since = self._waits.pop(unit.id)
            if unit.lease == lease:
                self._boots[lease] = max(self._boots[lease], now - since)

    def _meter(self, now: Instant, unit: SiteUnit) -> None:
        spares = positive(unit.metered.get(IDLE_WATTS)) if unit.power in (pw.OFF, pw.SUSPENDED) else 0.0
        if spares:
            self._metered.add(unit.id)
        before = self._spared.pop(unit.id, 0.0)
        if spares:
            self._spared[unit.id] = spares
        if spares != before:
            self.spared.add(now, spares - before)

    def waits(self) -> dict[str, Duration]:
        """For how long each lease that had to wait for a unit to come on did so."""
        return {lease: boot for lease, boot in self._boots.items() if boot}

    def delayed(self) -> list[Delayed]:
        """The leases that had to wait for a unit to come on."""
        known = [(self._leases.get(lease), boot) for lease, boot in self.waits().items()]
        return [Delayed(lease[0], boot, lease[1].length) for lease, boot in known if lease is not None]

    def summary(self, capacity: int, window: Term) -> Mapping[str, Any] | None:
        """The figures over a window, in unit-seconds; None where nothing was ever switched. ``saved_wh`` is what the
        ``metered`` units saved, in watt-hours; only there if any was.
        """
        if not self.switched:
            return None
        delayed = self.delayed()
        metered = {
            "metered": len(self._metered),
            "saved_wh": round(self.spared.integral(window) / HOUR, 1),
        }
        return {
            **(metered if self._metered else {}),
            "res_idle": res_idle(capacity, self.used, window),
            "e_savings": e_savings(self.off, window),
            "suspended": e_savings(self.suspended, window),
            "delay_req": round(delay_req(delayed), 6),
            "delayed": len(delayed),
            "switched": self.switched,
        }
