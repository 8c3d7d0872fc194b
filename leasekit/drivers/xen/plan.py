"""What a unit is to be, worked out from the site's settings and the properties of its lease before anything is touched.

The rules are the libvirt driver's: names of hosts, addresses and files are never taken from properties.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import attrs

from leasekit.core.drivers import UnitContext
from leasekit.drivers.libvirt.plan import UnitPlan, plan_of
from leasekit.drivers.libvirt.settings import Choices, Size
from leasekit.drivers.names import check_printable
from leasekit.drivers.xen.settings import XenSettings

_NAMESPACE: Final = UUID("3c9a2a52-0a5d-4a86-a1b1-5f0d3b7e6d44")


def make_plan(unit: UnitContext, settings: XenSettings) -> UnitPlan:
    """The plan for a unit. Raises ``DriverError``."""
    check_printable(unit.lease, unit.type)
    # In the range of Xen's own.
    return plan_of(unit, settings, lambda size: _most(size, settings.choices), namespace=_NAMESPACE, vendor="00:16:3e:")


def _most(size: Size, choices: Choices) -> Size:
    allowed = {key: getattr(choices, key) or (0, 0) for key in ("vcpus", "memory_mb")}
    return attrs.evolve(size, **{key: max(getattr(size, key), most) for key, (_, most) in allowed.items()})
