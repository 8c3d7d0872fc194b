"""What a site says of its machines, their boot network and their images."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from leasekit.core.properties import check_properties
from leasekit.core.settings import DurationSetting, expecting
from leasekit.core.time import MINUTE, SECOND
from leasekit.drivers.images import ImagesSettings
from leasekit.drivers.names import DIGEST, INTERFACE, USER, Network, check_names, printable_line
from leasekit.drivers.power.settings import ControllerSettings

_MAC: Final = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_DISK_ID: Final = re.compile(r"(serial|wwid):[A-Za-z0-9._:+-]{1,128}")
_DISK: Final = re.compile(rf"(/[A-Za-z0-9._:-]+)+|{_DISK_ID.pattern}")
_MODULE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DOMAIN: Final = re.compile(r"(([a-z0-9]([a-z0-9-]*[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?")
_PLAIN_PATH: Final = re.compile(r"[^\x00-\x20\"'#,\\\x7f]+")

MODULES: Final = (
    "virtio_pci", "virtio_net", "virtio_blk", "virtio_scsi", "e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice",
    "tg3", "bnx2", "bnx2x", "bnxt_en", "mlx4_en", "mlx5_core", "r8169", "ahci", "ata_piix", "sd_mod", "nvme",
    "megaraid_sas", "mpt3sas", "hpsa", "smartpqi",
)  # fmt: skip
"""Usual network cards and disks: what the imaging environment loads of these, where its kernel has them, unless it is
told what nodes need.
"""


plain_path: Final = expecting(
    "a path without spaces, quotes, commas, #, backslashes and control characters",
    lambda value: value is None or _PLAIN_PATH.fullmatch(str(value)),
)
"""A path that dnsmasq's configuration can hold."""


_PORT: Final = attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(65_535))


@attrs.frozen(kw_only=True)
class BareNode:
    """One machine, which is the unit of that name.

    ``mac`` is of the card that it boots from; ``disk`` the disk that guests get, as Linux calls it, or better
    ``serial:`` or ``wwid:`` and what it says of itself. ``keep_disks`` are all its other disks, by serial or wwid: they
    are not touched. ``addresses`` are its own for ever, one of each subnet, where it is not to have another with each
    lease. ``properties`` are told to its guests.
    """

    mac: str = attrs.field(validator=attrs.validators.matches_re(_MAC))
    power: ControllerSettings
    disk: str = attrs.field(default="/dev/sda", validator=attrs.validators.matches_re(_DISK))
    keep_disks: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    properties: Mapping[str, str] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        check_properties(self.properties, "properties")
        for disk in self.keep_disks:
            if _DISK_ID.fullmatch(disk) is None:
                raise ValueError(f"keep_disks: found {disk[:60]!r}, expected serial:... or wwid:...")


@attrs.frozen(kw_only=True)
class BootArtifact:
    """A file on this machine, and its SHA-256."""

    file: Path
    sha256: str = attrs.field(validator=expecting("64 hexadecimal digits as sha256sum prints", DIGEST))


@attrs.frozen(kw_only=True)
class DiskImage:
    """A raw image of a whole disk, with a boot loader. It is written to the node's disk, which then starts from it.

    With ``nocloud`` a partition behind the last one gets cloud-init's files: name, addresses, login keys of ``user``
    and the host key. With ``none`` the guest is told nothing, and is up when any ssh server answers at its address.
    """

    kind: ClassVar[str] = "disk"
    disk: BootArtifact
    seed: Literal["nocloud", "none"] = "nocloud"
    user: str = attrs.field(default="root", validator=attrs.validators.matches_re(USER))


@attrs.frozen(kw_only=True)
class NetbootImage:
    """A kernel and an initramfs that are fetched at each start; the disk is left to the guest, and is erased.

    With ``initramfs`` the guest finds name, addresses, keys and so on in files under ``/leasekit``.
    """

    kind: ClassVar[str] = "netboot"
    kernel: BootArtifact
    initrd: BootArtifact
    command_line: str = attrs.field(default="", validator=printable_line)
    seed: Literal["initramfs", "none"] = "initramfs"
    user: str = attrs.field(default="root", validator=attrs.validators.matches_re(USER))


Image: TypeAlias = DiskImage | NetbootImage


@attrs.frozen(kw_only=True)
class Owned:
    """A dnsmasq of the driver's own: it starts it, watches it, and finds it again after a restart of the daemon.

    It answers the nodes of this driver and nobody else, and serves their names; other names it asks of ``forward``.
    ``firmware`` is a folder with ``undionly.kpxe`` and ``ipxe.efi`` for machines whose cards don't bring iPXE along.
    """

    kind: ClassVar[str] = "owned"
    lease_time: DurationSetting = attrs.field(default=10 * MINUTE, validator=attrs.validators.ge(2 * MINUTE))
    names: bool = True
    forward: tuple[str, ...] = ()
    firmware: Path | None = attrs.field(default=None, validator=plain_path)

    def __attrs_post_init__(self) -> None:
        for address in self.forward:
            ipaddress.ip_address(address)


@attrs.frozen(kw_only=True)
class External:
    """A dnsmasq that runs anyway, and reads ``hosts`` (dhcp-hostsdir) and ``names`` (hostsdir); ``pid_file`` is of the
    process that is told (SIGHUP) when something is gone. With ``leases`` (dhcp-leasefile) it is told of DHCP leases
    that are over too. docs/baremetal.md has the other lines that it needs.
    """

    kind: ClassVar[str] = "external"
    hosts: Path
    names: Path | None = None
    leases: Path | None = None
    pid_file: Path


@attrs.frozen(kw_only=True)
class BootNetwork:
    """The network that nodes start from: on ``interface``, where this machine has ``address``.

    ``subnets`` are one of IPv4 and, if wanted, one of IPv6 (64 bits long). A lease of a node gets the addresses with
    the next free number from ``first`` to ``last``, counted from the subnet's own, in turn: so a guest's address is
    not that of the guest before it. ``port`` is that of the driver's HTTP server.
    """

    interface: str = attrs.field(validator=attrs.validators.matches_re(INTERFACE))
    address: str
    subnets: tuple[str, ...] = attrs.field(validator=attrs.validators.min_len(1))
    first: int = attrs.field(default=10, validator=attrs.validators.ge(1))
    last: int = attrs.field(default=250, validator=attrs.validators.ge(1))
    gateways: tuple[str, ...] = ()
    nameservers: tuple[str, ...] | None = None
    domain: str = attrs.field(default="", validator=attrs.validators.matches_re(_DOMAIN))
    port: int = attrs.field(default=8069, validator=_PORT)
    dnsmasq: Owned | External = attrs.Factory(Owned)

    def __attrs_post_init__(self) -> None:
        networks = self.networks()
        versions = [network.version for network in networks]
        if versions not in ([4], [4, 6]):
            raise ValueError("subnets: expected one of IPv4, and then at most one of IPv6")
        if ipaddress.ip_address(self.address) not in networks[0]:
            raise ValueError(f"address: found {self.address}, which is not in {networks[0]}")
        if not self.first <= self.last <= networks[0].num_addresses - 2:
            most = networks[0].num_addresses - 2
            raise ValueError(f"last: found {self.last}, expected a number from first, {self.first}, to {most}")
        own = int(ipaddress.ip_address(self.address)) - int(networks[0].network_address)
        if self.first <= own <= self.last:
            raise ValueError(f"address: found {self.address}, which is one of those for nodes (first, last)")
        for text in (*self.gateways, *(self.nameservers or ())):
            ipaddress.ip_address(text)

    def networks(self) -> list[Network]:
        """The subnets."""
        return [ipaddress.ip_network(text) for text in self.subnets]

    def addresses(self, offset: int) -> tuple[str, ...]:
        """The addresses with that number, with the lengths of their prefixes."""
        return tuple(f"{network.network_address + offset}/{network.prefixlen}" for network in self.networks())

    @property
    def url(self) -> str:
        """Where nodes find the driver's HTTP server."""
        return f"http://{self.address}:{self.port}"


@attrs.frozen(kw_only=True)
class Environment:
    """What a node runs while its disk is erased and written: a ``kernel``, a busybox and the driver's own script, which
    the driver puts together itself.

    ``modules`` are what the kernel must have for the nodes' network cards and disks. Where none is named it is that in
    /boot which has the most of these, or else of :data:`MODULES`.
    """

    kernel: Path | None = None
    modules: tuple[str, ...] = attrs.field(
        default=(),
        validator=expecting("names of kernel modules", lambda names: all(map(_MODULE.fullmatch, names))),
    )
    command_line: str = attrs.field(default="console=tty0 console=ttyS0 quiet", validator=printable_line)

    @property
    def loaded(self) -> tuple[str, ...]:
        """The modules that are loaded, where they are not built in."""
        return self.modules or MODULES


@attrs.frozen(kw_only=True)
class BareMetalSettings(ImagesSettings):
    """Nodes, boot network and images. ``directory`` is where the driver keeps what it must remember.

    ``discard`` has disks erased by their own discard command where what is read afterwards is zeros; elsewhere, and by
    default, zeros are written. ``boot_timeout`` is from power-on until the imaging environment speaks, ``silence``
    between its words, ``start_timeout`` from power-on until the guest is up.
    """

    directory: Path = attrs.field(validator=plain_path)
    nodes: Mapping[str, BareNode] = attrs.field(validator=attrs.validators.min_len(1))
    network: BootNetwork
    images: Mapping[str, Image] = attrs.field(validator=attrs.validators.min_len(1))
    environment: Environment = Environment()
    discard: bool = False
    boot_timeout: DurationSetting = 10 * MINUTE
    silence: DurationSetting = 60 * SECOND
    start_timeout: DurationSetting = 10 * MINUTE

    def __attrs_post_init__(self) -> None:
        check_names("nodes", self.nodes)
        super().__attrs_post_init__()
        self._check_unique()

    def _check_unique(self) -> None:
        macs: dict[str, str] = {}
        networks = self.network.networks()
        given: dict[str, str] = {}
        for name, node in self.nodes.items():
            other = macs.setdefault(node.mac.lower(), name)
            if other != name:
                raise ValueError(f"nodes.{name}.mac: found {node.mac}, which is that of node {other}")
            if node.addresses and len(node.addresses) != len(networks):
                raise ValueError(f"nodes.{name}.addresses: expected one for each of {len(networks)} subnets")
            for text, network in zip(node.addresses, networks, strict=False):
                address = ipaddress.ip_address(text)
                if address not in network:
                    raise ValueError(f"nodes.{name}.addresses: found {text}, which is not in {network}")
                if self.network.first <= int(address) - int(network.network_address) <= self.network.last:
                    raise ValueError(f"nodes.{name}.addresses: found {text}, one of those that are given in turn")
                if given.setdefault(str(address), name) != name:
                    raise ValueError(f"nodes.{name}.addresses: found {text}, that of node {given[str(address)]}")
        free = self.network.last - self.network.first + 1
        if sum(not node.addresses for node in self.nodes.values()) > free:
            raise ValueError(f"network: {free} addresses (first, last) are too few for {len(self.nodes)} nodes")
