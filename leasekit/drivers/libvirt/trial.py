"""A guest that starts as a unit would, and never runs: what keeps units of a host from starting keeps it as well."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import trio

from leasekit.drivers.libvirt.documents import Paths, domain_xml
from leasekit.drivers.libvirt.place import LibvirtPlace
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import make_record
from leasekit.drivers.libvirt.settings import Image, ImageArtifact, LibvirtSettings, Size

NAME: Final = "~trial"
"""No unit has a tilde in its name."""
MAC: Final = "52:54:00:fe:ed:01"
SIZE: Final = Size(memory_mb=16)


async def start_trial(place: LibvirtPlace, settings: LibvirtSettings) -> None:
    """Starts it with its processors halted, and removes it. Raises ``DriverError``."""
    name = place.name_of(NAME)
    image = Image(disk=ImageArtifact(volume=f"{name}.disk"), seed="none", ready="running")
    network = settings.network
    # Its filter is to have an address; what is never at work needs none of the site's.
    addresses = ("192.0.2.1/32",) if network is not None and network.subnets else ()
    plan = UnitPlan(
        unit=NAME, lease="", type="", number=0, image_name="", image=image, size=SIZE, most=SIZE, hostname="",
        addresses=addresses, keys=(), mac=MAC, uuid=str(uuid4()),
    )  # fmt: skip

    def start(connection: Any) -> None:
        libvirt = place.host.libvirt
        flags = libvirt.VIR_DOMAIN_START_PAUSED | libvirt.VIR_DOMAIN_START_AUTODESTROY
        connection.createXML(xml, flags).destroy()

    await _remove(place)
    try:
        disk = await place.volumes.create(f"{name}.disk", 0, format="qcow2")
        paths = Paths(disk=disk, console=await place.make_console(NAME))
        xml = domain_xml(name, plan, make_record(plan, ""), await place.machine(), paths, network)
        await place.host.call("can't start a guest", start)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(place)


async def _remove(place: LibvirtPlace) -> None:
    await place.domains.remove(place.name_of(NAME))
    await place.remove_volumes(NAME, wipe=False)
