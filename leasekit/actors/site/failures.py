"""Units that fail while a lease has them: what a probe finds, or the operator says.

A unit that was up and is down is torn down like any other, and its lease gets another in its place (deficit correction)
or goes on with fewer, as its property ``deficit`` says. Its guest hears at once that it has one unit less, and again
when the place is filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasekit.actors.site.claims import SiteClaims
from leasekit.actors.site.turns import REPLACE
from leasekit.actors.site.units import REASON_MAX
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.protocol.codec import clip


class SiteFailures(SiteClaims):
    """A site's units that fail when they are up."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._commands["unit.fail"] = self._fail_unit
        self._queries["watched"] = self._query_watched

    def _fail_unit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """``unit`` is down, for ``reason``. With ``lease`` and ``setup``, as ``watched`` told them, only if it is
        still that one's, from that setup.
        """
        name = str(arguments.get("unit", ""))
        if name not in self.units:
            raise CommandError(f"no unit {name!r} here; `leasekit site units` shows those there are")
        unit = self.units[name]
        lease = str(arguments.get("lease", unit.lease))
        if unit.state != au.UP:
            raise CommandError(f"unit {name} is {unit.state}: only one that is {au.UP} can be said to have failed")
        if unit.lease != lease or arguments.get("setup", unit.setup) != unit.setup:
            raise CommandError(f"unit {name} has another lease by now, or was set up anew")
        reason = clip(str(arguments.get("reason") or "it is down, says the operator"), REASON_MAX)
        self.units.lose(unit, reason)
        if unit.retire:
            self.count_units(unit.type)
        self._go_on_without(self.leases[lease], unit)
        return {"unit": name, "state": unit.state, "reason": unit.reason}

    def _go_on_without(self, lease: SiteLease, unit: SiteUnit) -> None:
        lease.units.remove(unit.id)
        lease.reason = f"unit {unit.id}: {unit.reason}"
        self._touch(lease)
        settled = lease.pending != au.PRIMING
        if settled:
            lease.settles = 0  # nobody asked for what comes of it
            self._fire(au.MACHINE, lease, "replace", lease.reason)
        more = lease.wanted - len(lease.units)
        if more == 0:
            self._queue.pop(lease.id, None)  # it was to give up a unit
        if more <= 0 or lease.properties.get("deficit", "correct") == "accept":
            self._check_primed(lease)
            return
        if settled and lease.state == au.ACTIVE:
            # Else there may be units that are not up yet, and its guest hears when all of them are.
            self.publish(lease, "active", 0, lease.reason)
        self._queue.setdefault(lease.id, REPLACE)
        self.look_again()

    def _query_watched(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The units that are up, for whoever probes them: whose, from which setup, and what their driver may know."""
        return [
            {
                "unit": unit.id,
                "type": unit.type,
                "lease": unit.lease,
                "setup": unit.setup,
                "properties": self._context(unit, self.leases.get(unit.lease)),
            }
            for unit in self.units
            if unit.state == au.UP
        ]
