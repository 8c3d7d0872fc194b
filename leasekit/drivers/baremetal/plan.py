"""What a node is to be for a lease, worked out before anything is touched, and what its guest is told.

Guests choose among the site's images and bring login keys; nothing else of what they say is used.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from uuid import UUID, uuid5

import attrs

from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.settings import expect_one_of
from leasekit.drivers.baremetal.records import NodeRecord
from leasekit.drivers.baremetal.settings import BareMetalSettings, BareNode, BootArtifact, DiskImage, Image
from leasekit.drivers.libvirt import plan as guests
from leasekit.drivers.libvirt.seed import HostKey, initramfs_seed, make_iso, nocloud_files
from leasekit.drivers.libvirt.settings import Image as GuestImage
from leasekit.drivers.libvirt.settings import ImageArtifact as GuestArtifact
from leasekit.drivers.libvirt.settings import NetworkSettings, Size
from leasekit.drivers.names import check_unit_id

MARKER: Final = "leasekit ready"
_NAMESPACE: Final = UUID("7d0f7a5a-6c43-4d2b-9a53-7f1f8d2f2a10")


@attrs.frozen(kw_only=True)
class NodePlan:
    """One node as it is to be."""

    name: str
    node: BareNode
    image_name: str
    image: Image
    hostname: str
    keys: tuple[str, ...]

    @property
    def artifacts(self) -> tuple[BootArtifact, ...]:
        """The files that it takes."""
        image = self.image
        return (image.disk,) if isinstance(image, DiskImage) else (image.kernel, image.initrd)


def node_of(unit: str, settings: BareMetalSettings) -> BareNode:
    """The node that is the unit. Raises ``DriverError``."""
    if check_unit_id(unit) not in settings.nodes:
        raise DriverError(f"unit {unit}: there is no such node, {expect_one_of(unit, settings.nodes)}", retry=False)
    return settings.nodes[unit]


def make_plan(unit: UnitContext, settings: BareMetalSettings) -> NodePlan:
    """The plan for a unit. Raises ``DriverError``."""
    node = node_of(unit.unit, settings)
    image_name = unit.chosen.get("image", settings.default_image)
    if image_name not in settings.images:
        raise guests.refused("image", image_name, expect_one_of(image_name[:80], settings.images), unit.blame("image"))
    return NodePlan(
        name=unit.unit,
        node=node,
        image_name=image_name,
        image=settings.images[image_name],
        hostname=guests.host_name(unit.unit, settings.network.domain),
        keys=guests.login_keys(unit.chosen.get(guests.LOGIN_KEYS, ""), unit.blame(guests.LOGIN_KEYS)),
    )


def addresses_of(record: NodeRecord, settings: BareMetalSettings) -> tuple[str, ...]:
    """A node's addresses with the lengths of their prefixes: its own, or those of its present lease."""
    fixed = settings.nodes[record.node].addresses
    if fixed:
        networks = settings.network.networks()
        return tuple(f"{address}/{net.prefixlen}" for address, net in zip(fixed, networks, strict=True))
    return settings.network.addresses(record.offset) if record.offset else ()


def bare_addresses(record: NodeRecord, settings: BareMetalSettings) -> tuple[str, ...]:
    """The same without prefixes."""
    return tuple(str(ipaddress.ip_interface(text).ip) for text in addresses_of(record, settings))


async def make_seed(plan: NodePlan, record: NodeRecord, key: HostKey, settings: BareMetalSettings) -> bytes:
    """What the guest is told, as its image wants it: files for cloud-init, or an archive behind the initramfs."""
    network = settings.network
    nameservers = (network.address,) if network.nameservers is None else network.nameservers
    artifact = GuestArtifact(file=plan.artifacts[0].file, sha256=plan.artifacts[0].sha256)
    guest = guests.UnitPlan(
        unit=plan.name,
        lease=record.lease,
        type="",
        number=record.number,
        image_name=plan.image_name,
        image=GuestImage(kernel=artifact, user=plan.image.user, marker=MARKER),
        size=Size(),
        most=Size(),
        hostname=plan.hostname,
        addresses=addresses_of(record, settings),
        keys=plan.keys,
        mac=plan.node.mac.lower(),
        uuid=str(uuid5(_NAMESPACE, f"{plan.name}\n{record.lease}\n{record.number}")),
    )
    told = NetworkSettings(
        bridge=network.interface, subnets=network.subnets, gateways=network.gateways, nameservers=nameservers
    )
    if plan.image.seed == "initramfs":
        return initramfs_seed(guest, key, told)
    return await make_iso(nocloud_files(guest, key, told))
