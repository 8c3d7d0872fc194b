"""What a unit is to be, worked out from the site's settings and the properties of its lease before anything is touched.

The rules are the libvirt driver's: names of hosts, addresses and files are never taken from properties.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from uuid import UUID, uuid5

import attrs

from leasekit.core.drivers import UnitContext
from leasekit.core.settings import expect_one_of
from leasekit.drivers.libvirt import plan as guests
from leasekit.drivers.libvirt.plan import LOGIN_KEYS, UnitPlan
from leasekit.drivers.libvirt.settings import Choices, Size
from leasekit.drivers.names import check_printable, check_unit_id
from leasekit.drivers.xen.settings import XenSettings

_NAMESPACE: Final = UUID("3c9a2a52-0a5d-4a86-a1b1-5f0d3b7e6d44")


def make_plan(unit: UnitContext, settings: XenSettings) -> UnitPlan:
    """The plan for a unit. Raises ``DriverError``."""
    name = check_unit_id(unit.unit)
    image_name = unit.chosen.get("image", settings.default_image)
    if image_name not in settings.images:
        raise guests.refused("image", image_name, expect_one_of(image_name[:80], settings.images), unit.blame("image"))
    check_printable(unit.lease, unit.type)
    size = guests.chosen_size(unit, settings.size, settings.choices)
    whose = f"{settings.prefix}{name}"
    return UnitPlan(
        unit=name,
        lease=unit.lease,
        type=unit.type,
        number=unit.number,
        image_name=image_name,
        image=settings.images[image_name].guest(),
        size=size,
        most=_most(size, settings.choices),
        hostname=guests.host_name(name, settings.domain),
        addresses=guests.unit_addresses(name, settings.network) if settings.network is not None else (),
        keys=guests.login_keys(unit.chosen.get(LOGIN_KEYS, ""), unit.blame(LOGIN_KEYS)),
        # In the range of Xen's own, and the same for a unit whoever leases it: no switch has to learn anew.
        mac="00:16:3e:" + (blake2b(whose.encode(), digest_size=3).digest()).hex(":"),
        uuid=str(uuid5(_NAMESPACE, f"{whose}\n{unit.lease}\n{unit.number}")),
    )


def _most(size: Size, choices: Choices) -> Size:
    allowed = {key: getattr(choices, key) or (0, 0) for key in ("vcpus", "memory_mb")}
    return attrs.evolve(size, **{key: max(getattr(size, key), most) for key, (_, most) in allowed.items()})
