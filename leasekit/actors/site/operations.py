"""What drivers are told to do with a site's units, and of whom."""

from __future__ import annotations

from collections.abc import Mapping

from leasekit.actors.kernel import Kernel
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.saved import SiteSaved
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import RESUMES
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.steps import Action


class Operations:
    """The actions on units of the site called ``name``."""

    def __init__(
        self, kernel: Kernel, name: str, leases: Mapping[str, SiteLease], inventory: Inventory, saved: SiteSaved
    ) -> None:
        self._kernel = kernel
        self._name = name
        self._leases = leases
        self._inventory = inventory
        self._saved = saved

    def begin(self, unit: SiteUnit, op: str, number: int) -> None:
        """Have ``op`` done to a unit, under a number of its own; or again, under the number that it has."""
        lease = self._leases.get(unit.lease)
        if op == "setup" and not number and lease is not None and lease.properties.get(RESUMES):
            self._saved.claim(lease, unit)
        unit.action = number or self._kernel.next("action")
        # What a guest has said keeps nothing from being torn down: no driver hears of it then.
        said = EMPTY if lease is None or op == "teardown" else lease.properties
        self._kernel.actions.append(
            Action(unit.action, op, unit.id, unit.type, unit.lease, self.context(unit, lease), said)
        )
        self._kernel.touch(unit)

    def context(self, unit: SiteUnit, lease: SiteLease | None) -> Properties:
        """What the site says of a unit: nothing of it is a guest's, which has a place of its own."""
        properties = self._inventory.properties_of(unit.id, unit.type)
        context = {**properties, **unit.given, "unit.name": unit.id, "site.name": self._name}
        if lease is not None:
            context["lease.id"] = lease.id
            context["lease.holder"] = lease.holder
            context["lease.end"] = str(lease.term.end)
            context["slice.name"] = lease.slice
        return self._saved.tell(unit, context)
