"""Units that fail while a lease has them: in their setup, or when they are up, as a probe finds or the operator says.

A unit that fails is torn down like any other, and its lease gets another in its place (deficit correction): so many in
each term. With no more, or if its property ``deficit`` says so, it goes on with fewer. Where it was up its guest hears
at once that it has one unit less, and again when the place is filled.

What can't be set up by the lease's fault can't be set up on any unit: nothing is replaced, and no unit is held to have
failed. A lease that was never active fails then; another one keeps what it has. What is the site's fault stops the
lease's setups (:mod:`.outages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasekit.actors.dispatch import command, query
from leasekit.actors.site.outages import SiteOutages
from leasekit.actors.site.waiting import REPLACE
from leasekit.core.drivers import LEASE, SITE, Blame
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.properties import EMPTY
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.words import view


class SiteFailures(SiteOutages):
    """A site's units that fail."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    @command("unit.fail")
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
        text = arguments.get("reason")
        reason = said(text) if text else Reason(Code.DOWN)
        self.units.lose(unit, reason)
        if unit.retire:
            self.calendars.count(unit.type)
        self._go_on_without(self.leases[lease], unit)
        return {"unit": name, "state": unit.state, **view(unit.reason)}

    def _go_on_without(self, lease: SiteLease, unit: SiteUnit) -> None:
        lease.units.remove(unit.id)
        lease.reason = Reason(Code.UNIT, unit.id).because(unit.reason)
        self.kernel.touch(lease)
        settled = lease.pending != au.PRIMING
        if settled:
            lease.settles = 0  # nobody asked for what comes of it
            self.kernel.fire(au.MACHINE, lease, "replace", lease.reason)
        if not self._seek_another(lease):
            self._check_primed(lease)
        elif settled and lease.state == au.ACTIVE:
            # Else there may be units that are not up yet, and its guest hears when all of them are.
            self.updates.publish(lease, "active", 0, lease.reason)

    def _unit_failed(self, lease: SiteLease, unit: SiteUnit, blame: Blame) -> None:
        reason = Reason(Code.UNIT, unit.id).because(unit.reason)
        if blame == SITE:
            self.stop_setups(lease, unit, reason)
            return
        lease.reason = reason
        if unit.retire:
            self.calendars.count(unit.type)
        if unit.id not in lease.units:
            return
        if blame == LEASE:
            self._give_up(lease, unit)
        else:
            self._replace(lease, unit, count=True)

    def _replace(self, lease: SiteLease, unit: SiteUnit, *, count: bool = False) -> None:
        """Another unit in place of one that the lease never had up."""
        if self._without(lease, unit) and not self._seek_another(lease, count=count):
            self._check_primed(lease)

    def _give_up(self, lease: SiteLease, unit: SiteUnit) -> None:
        """What the lease's guest has asked for can't be had: on this unit, and on any other."""
        if not self._without(lease, unit):
            return
        if lease.state == au.TICKETED:
            for name in list(lease.units):
                self._take(lease, self.units[name])
        if len(lease.units) <= lease.wanted:
            self.demands.remove(lease)
        self._check_primed(lease)

    def _without(self, lease: SiteLease, unit: SiteUnit) -> bool:
        """Take a unit that was to come from a lease. Returns whether it still wants one."""
        lease.units.remove(unit.id)
        lease.waiting -= 1
        self.kernel.touch(lease)
        return lease.pending == au.PRIMING

    def _seek_another(self, lease: SiteLease, *, count: bool = True) -> bool:
        """Have the mapper find another unit for a lease that has lost one. Returns False if it is to get none."""
        more = lease.wanted - len(lease.units)
        if more == 0:
            self.demands.remove(lease)  # it was to give up a unit
        if more <= 0 or lease.properties.get("deficit", "correct") == "accept":
            return False
        most = self.settings.replacements_max + lease.wanted * self.settings.replacements_share // 1000
        if count and lease.replaced >= most:
            lease.reason = Reason(Code.REPLACED_ENOUGH, units=most).because(lease.reason)
            return False
        lease.replaced += count
        if lease.id not in self.demands.ops:
            self.demands.put(lease, REPLACE)
        self.demands.look_again()
        return True

    @query("watched")
    def _query_watched(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The units that are up, for whoever probes them: whose, from which setup, and what their driver may know."""
        return [
            {
                "unit": unit.id,
                "type": unit.type,
                "lease": unit.lease,
                "setup": unit.setup,
                "properties": self.operations.context(unit, lease),
                "configuration": lease.properties if lease is not None else EMPTY,
            }
            for unit in self.units
            if unit.state == au.UP
            for lease in (self.leases.get(unit.lease),)
        ]
