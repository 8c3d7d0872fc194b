"""What a site says of its hypervisors, images, networks and sizes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from leasekit.core.settings import DurationSetting, expecting
from leasekit.core.time import SECOND
from leasekit.drivers.directory.addresses import DirectoryAddresses
from leasekit.drivers.images import ImagesSettings
from leasekit.drivers.names import (
    DIGEST,
    PLAIN_NAME,
    USER,
    Network,
    check_names,
    one_line,
    plain_or_none,
    printable_line,
)

Acceleration: TypeAlias = Literal["probe", "kvm", "tcg"]
Readiness: TypeAlias = Literal["console", "ssh", "agent", "running"]
SeedKind: TypeAlias = Literal["nocloud", "initramfs", "none"]

_LEASED_URI: Final = re.compile(r"[a-z]+\+ssh:///[A-Za-z0-9/_-]*(\?[A-Za-z0-9_=&%./-]+)?")
_DOMAIN: Final = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


_filled_line: Final = expecting("one line of printable text", lambda value: value and value.isprintable())


FOR_XEN: Final = "for Xen there is the driver of kind 'xen', by xl"


def _not_xen(_: object, __: attrs.Attribute[str], value: str) -> None:
    if value.startswith(("xen:", "xen+")):
        raise ValueError(f"found {value[:60]!r}, expected a uri of QEMU's, as qemu:///system; {FOR_XEN}")


_POSITIVE: Final = attrs.validators.ge(1)
MEMORY_LEAST: Final = 16
"""The least memory of a unit, in MiB."""


@attrs.frozen(kw_only=True)
class LibvirtHost:
    """One hypervisor, by the URI that libvirt opens. Without a ``uri`` it is whatever machine is leased for it
    (:class:`LeasedHosts`).

    ``pool`` is the storage pool for disks; with ``pool_path``, a folder on that host, it is made if it is missing.
    ``acceleration`` may be left to a probe that boots a tiny guest, for a KVM that is there need not run guests.
    ``migration`` is the URI at which other hosts hand over running units, where it is not the host's own name.
    """

    uri: str = attrs.field(default="", validator=[printable_line, _not_xen])
    pool: str = attrs.field(default="default", validator=attrs.validators.matches_re(PLAIN_NAME))
    pool_path: str = attrs.field(default="", validator=printable_line)
    acceleration: Acceleration = "probe"
    migration: str = attrs.field(default="", validator=printable_line)


@attrs.frozen(kw_only=True)
class LeasedHosts:
    """Hosts that are leased machines: the file ``book`` says which is which, as ``leasekit site hypervisor`` writes it.

    ``key`` is the file with the private key that they let in; ``uri`` what is there, to which the machine's user,
    address and port are added.
    """

    book: Path
    key: Path
    uri: str = attrs.field(default="qemu+ssh:///system", validator=[_filled_line, _not_xen])

    def __attrs_post_init__(self) -> None:
        if _LEASED_URI.fullmatch(self.uri) is None:
            raise ValueError(f"uri: found {self.uri[:60]!r}, expected one by ssh without a host, as qemu+ssh:///system")


@attrs.frozen(kw_only=True)
class ImageArtifact:
    """A file that guests start from: ``file`` here, ``url`` (http, https), or ``volume`` in each host's pool.

    ``sha256`` is needed for what is uploaded; a volume that is there already is taken as it is.
    """

    file: Path | None = None
    url: str = attrs.field(default="", validator=printable_line)
    volume: str = attrs.field(default="", validator=printable_line)
    sha256: str = ""

    def __attrs_post_init__(self) -> None:
        if (self.file is not None) + bool(self.url) + bool(self.volume) != 1:
            raise ValueError("expected one of file, url and volume")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"found url {self.url[:60]!r}, expected it to begin with http:// or https://")
        if "/" in self.volume:
            raise ValueError(f"found volume {self.volume[:60]!r}, expected the name of a volume, without slashes")
        if not self.volume and DIGEST.fullmatch(self.sha256) is None:
            raise ValueError(f"found sha256 {self.sha256[:80]!r}, expected 64 hexadecimal digits as sha256sum prints")

    @property
    def source(self) -> str:
        """Where it comes from, for errors."""
        return one_line(str(self.file)) if self.file is not None else self.url or f"volume {self.volume}"


@attrs.frozen(kw_only=True)
class Image:
    """What a guest boots: a root ``disk``, or a ``kernel`` with or without disk.

    A unit has an overlay of the disk, grown to ``disk_mb`` where that is more. ``seed`` says how a guest is told its
    name, addresses and keys: on a disk for cloud-init (``nocloud``), by files in its initramfs under ``/leasekit``, or
    not at all.
    ``ready`` says how it shows that it is up: ``marker`` on its console, its ssh server with the host key that it was
    given, the QEMU guest agent, or by running at all. Keys are for the login of ``user``; with ``agent`` they can be
    changed while the guest runs.
    """

    disk: ImageArtifact | None = None
    format: Literal["qcow2", "raw"] = "qcow2"
    disk_mb: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    kernel: ImageArtifact | None = None
    initrd: ImageArtifact | None = None
    command_line: str = attrs.field(default="", validator=printable_line)
    seed: SeedKind = "nocloud"
    ready: Readiness = "ssh"
    marker: str = attrs.field(default="leasekit ready", validator=_filled_line)
    user: str = attrs.field(default="root", validator=attrs.validators.matches_re(USER))
    agent: bool = False

    def __attrs_post_init__(self) -> None:
        if self.disk is None and self.kernel is None:
            raise ValueError("expected a disk, a kernel or both")
        if self.initrd is not None and self.kernel is None:
            raise ValueError("found an initrd without a kernel")
        if self.seed == "initramfs" and (self.initrd is None or self.initrd.volume):
            raise ValueError('seed = "initramfs" needs an initrd with a file or url, to which the seed is added')
        if self.ready == "agent" and not self.agent:
            raise ValueError('ready = "agent" needs agent = true')


@attrs.frozen(kw_only=True)
class NetworkSettings:
    """The network card of each unit: on a ``bridge`` of the host, or on a ``network`` of libvirt's.

    A unit has one address of each of ``subnets``: those that ``addresses`` names, or else the address ``first`` plus
    the number at the end of the unit's name, counted from the subnet's own. ``filter`` is a filter of libvirt's, such
    as ``clean-traffic``, that keeps a guest to its addresses.

    With ``block`` addresses are not by name: each slice of each holder has blocks of so many in every subnet, from
    ``first`` on, and the file ``book`` says who has what.
    """

    bridge: str = attrs.field(default="", validator=plain_or_none)
    network: str = attrs.field(default="", validator=plain_or_none)
    subnets: tuple[str, ...] = ()
    first: int = attrs.field(default=10, validator=_POSITIVE)
    addresses: Mapping[str, tuple[str, ...]] = attrs.Factory(dict)
    gateways: tuple[str, ...] = ()
    nameservers: tuple[str, ...] = ()
    filter: str = attrs.field(default="", validator=plain_or_none)
    block: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    book: Path | None = None

    def __attrs_post_init__(self) -> None:
        if bool(self.bridge) == bool(self.network):
            raise ValueError("expected a bridge or a network, one of the two")
        if bool(self.block) != (self.book is not None):
            raise ValueError("block and book: expected both or none: how many addresses, and the file that says whose")
        if self.block and self.addresses:
            raise ValueError("addresses: found units, expected none where slices have blocks")
        try:
            networks = self.networks()
            for text in (*self.gateways, *self.nameservers):
                ipaddress.ip_address(text)
            self.address_book()
            owners: dict[str, str] = {}
            for unit, several in self.addresses.items():
                _check_addresses(unit, several, networks)
                for address in map(str, map(ipaddress.ip_address, several)):
                    if owners.setdefault(address, unit) != unit:
                        raise ValueError(f"addresses.{unit}: found {address}, the address of unit {owners[address]}")
        except ValueError as error:
            raise ValueError(str(error)) from None

    def address_book(self) -> DirectoryAddresses | None:
        """Who gives addresses, where slices have blocks of them."""
        return DirectoryAddresses(self.book, self.networks(), self.block, self.first) if self.book is not None else None

    def networks(self) -> list[Network]:
        """The subnets."""
        return [ipaddress.ip_network(text) for text in self.subnets]


def _check_addresses(unit: str, addresses: tuple[str, ...], networks: list[Network]) -> None:
    if len(addresses) != len(networks):
        raise ValueError(f"addresses.{unit}: found {len(addresses)}, expected one for each of {len(networks)} subnets")
    for text, network in zip(addresses, networks, strict=True):
        if ipaddress.ip_address(text) not in network:
            raise ValueError(f"addresses.{unit}: found {text}, which is not in {network}")


@attrs.frozen(kw_only=True)
class Size:
    """What a unit has unless its lease chooses: ``cap`` in percent of one of the host's CPUs for the whole unit (0:
    none), ``shares`` its weight against others (0: the hypervisor's default).
    """

    vcpus: int = attrs.field(default=1, validator=_POSITIVE)
    memory_mb: int = attrs.field(default=512, validator=attrs.validators.ge(MEMORY_LEAST))
    cap: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    shares: int = attrs.field(default=0, validator=attrs.validators.ge(0))


Range: TypeAlias = tuple[int, int] | None


_check_range: Final = expecting("the least and the most", lambda value: value is None or 0 <= value[0] <= value[1])


@attrs.frozen(kw_only=True)
class Choices:
    """What a lease may choose by the properties of these names, and change while units run: the least and the most.

    What is not named here is as the site says, whatever the properties are.
    """

    vcpus: Range = attrs.field(default=None, validator=_check_range)
    memory_mb: Range = attrs.field(default=None, validator=_check_range)
    cap: Range = attrs.field(default=None, validator=_check_range)
    shares: Range = attrs.field(default=None, validator=_check_range)


@attrs.frozen(kw_only=True)
class MachineSettings(ImagesSettings):
    """What a site says of its virtual machines, whatever runs them: hosts, images, network and sizes.

    ``prefix`` begins the names of all domains, and must differ between drivers that share a host. ``image`` is what a
    unit has whose lease does not name one of ``images``. ``wipe`` overwrites a unit's disk before it is removed; what
    holds keys is always overwritten.
    """

    hosts: Mapping[str, Any]
    network: NetworkSettings | None = None
    size: Size = Size()
    choices: Choices = Choices()
    domain: str = attrs.field(default="", validator=attrs.validators.matches_re(f"({_DOMAIN.pattern})?"))
    prefix: str = attrs.field(default="leasekit-", validator=attrs.validators.matches_re(r"[A-Za-z0-9][\w.-]{0,30}"))
    wipe: bool = True

    def __attrs_post_init__(self) -> None:
        check_names("hosts", self.hosts)
        super().__attrs_post_init__()
        for name, image in self.images.items():
            if image.ready == "ssh" and (self.network is None or not self.network.subnets):
                raise ValueError(f'images.{name}: ready = "ssh" needs a network with subnets')
        for key, value in attrs.asdict(self.size).items():
            choice = getattr(self.choices, key)
            if choice is not None and not choice[0] <= value <= choice[1]:
                raise ValueError(f"size.{key}: found {value}, which choices.{key} does not allow")


@attrs.frozen(kw_only=True)
class LibvirtSettings(MachineSettings):
    """The settings of machines by libvirt.

    With ``shared_pool`` all hosts see the same files, so that migration copies none. ``save_memory`` keeps what is in
    the memory of units of a suspended lease; without it, or where that can't be, a guest is asked to shut down, its
    power is cut after ``grace``, and only its disk is kept. ``threads`` bounds the calls under way at one host; a host
    that does not answer for ``keepalive`` is taken as gone, and so is one of whose calls, other than those that may
    take long, one has no end within ``call_timeout``. With ``memory_grows`` a running guest can be given more memory
    than it started with, up to what ``choices`` allow; and one that does not heed its balloon can take all of that.
    """

    hosts: Mapping[str, LibvirtHost] = attrs.field(validator=attrs.validators.min_len(1))
    images: Mapping[str, Image] = attrs.field(validator=attrs.validators.min_len(1))
    leased: LeasedHosts | None = None
    save_memory: bool = True
    shared_pool: bool = False
    memory_grows: bool = False
    threads: int = attrs.field(default=8, validator=_POSITIVE)
    keepalive: DurationSetting = 15 * SECOND
    call_timeout: DurationSetting = 60 * SECOND
    start_timeout: DurationSetting = 120 * SECOND
    probe_timeout: DurationSetting = 20 * SECOND
    grace: DurationSetting = 30 * SECOND

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.leased is None and self.slots:
            raise ValueError(f"hosts.{self.slots[0]}: found no uri, expected one, or a table leased")
        if self.leased is not None and not self.slots:
            raise ValueError("leased: found a table, but each of the hosts has a uri")

    @property
    def slots(self) -> tuple[str, ...]:
        """The hosts that are leased machines, when there are any for them."""
        return tuple(name for name, host in self.hosts.items() if not host.uri)

    @property
    def home(self) -> str:
        """Where units are set up of which the site does not say on which host they are: the first host that is no
        leased machine; nothing if all are.
        """
        return next((name for name, host in self.hosts.items() if host.uri), "")
