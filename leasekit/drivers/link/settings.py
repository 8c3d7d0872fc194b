"""What a network authority says of its links: where their ends are, how much they carry, which subnets leases get."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from leasekit.core.settings import DurationSetting, expecting
from leasekit.core.time import MINUTE, SECOND, Duration
from leasekit.drivers.names import INTERFACE, PLAIN_NAME, Network, plain_or_none

KBIT_MAX: Final = 1_000_000_000
"""The most bandwidth of a link: 1 Tbit/s."""
SLOTS_MAX: Final = 4096
"""The most leases at once on a link."""

_QUEUE_MAX: Final[Duration] = 10 * SECOND


_check_interface: Final = expecting(
    "1 to 15 letters, digits, dots, dashes and underscores, a letter or digit first", INTERFACE
)


_check_capacity: Final = expecting(
    f"Mbit/s, 0.001 to {KBIT_MAX // 1000}", lambda value: 0.001 <= value <= KBIT_MAX / 1000
)


_check_queue: Final = expecting(f"1 ms to {_QUEUE_MAX // SECOND}s", lambda value: 1 <= value <= _QUEUE_MAX)


_check_delay: Final = expecting("at most 1m", lambda value: 0 <= value <= MINUTE)


@attrs.frozen(kw_only=True)
class End:
    """One end of a link: an interface that is there, in the named ``namespace``, or (empty) in that of the daemon."""

    interface: str = attrs.field(validator=_check_interface)
    namespace: str = attrs.field(default="", validator=plain_or_none)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.interface}" if self.namespace else self.interface


@attrs.frozen(kw_only=True)
class LinkTable:
    """One link. ``capacity_mbps`` is what its leases have together at most, in each direction.

    A lease has the next free subnet of ``prefix`` bits (0: the smallest with two hosts) of ``subnets``; end a has its
    first address, end b its second. ``rest`` is what traffic of no lease gets: what leases leave (``share``), or
    nothing (``none``; ARP passes always). ``delay`` is added in each direction, which needs netem in the kernel.
    """

    a: End
    b: End
    capacity_mbps: float = attrs.field(validator=_check_capacity)
    subnets: str
    prefix: int = 0
    rest: Literal["share", "none"] = "share"
    delay: DurationSetting = attrs.field(default=0, validator=_check_delay)

    def __attrs_post_init__(self) -> None:
        pool = self.pool
        if not pool.prefixlen <= self.bits <= pool.max_prefixlen - 2:
            raise ValueError(f"prefix: found {self.prefix}, expected {pool.prefixlen} to {pool.max_prefixlen - 2}")
        if self.a == self.b:
            raise ValueError(f"b: found {self.b} again, expected another interface than a")

    @property
    def pool(self) -> Network:
        """All subnets together. Raises ``ValueError``."""
        try:
            return ipaddress.ip_network(self.subnets)
        except ValueError as error:
            raise ValueError(f"subnets: found {self.subnets[:60]!r}, expected a network: {error}") from None

    @property
    def bits(self) -> int:
        """The prefix length of a lease's subnet."""
        return self.prefix or self.pool.max_prefixlen - 2

    @property
    def slots(self) -> int:
        """How many leases can be there at once."""
        return min(SLOTS_MAX, int(2 ** (self.bits - self.pool.prefixlen)))

    def subnet(self, slot: int) -> Network:
        """The subnet of a slot, counted from 1."""
        pool = self.pool
        first = int(pool.network_address) + (slot - 1 << pool.max_prefixlen - self.bits)
        return ipaddress.ip_network((first, self.bits))

    def address(self, slot: int, end: int) -> str:
        """What end 0 (a) or 1 (b) has in a slot's subnet, with prefix length."""
        return f"{self.subnet(slot)[end + 1]}/{self.bits}"

    def gave(self, address: str, end: int) -> bool:
        """Whether an end's address can only be one of :meth:`address`."""
        found = ipaddress.ip_interface(address)
        network = found.network
        return (
            network.version == self.pool.version
            and network.prefixlen == self.bits
            and network.subnet_of(self.pool)  # type: ignore[arg-type]
            and int(found.ip) - int(network.network_address) == end + 1
        )

    @property
    def capacity(self) -> int:
        """In kbit/s."""
        return int(self.capacity_mbps * 1000)


@attrs.frozen(kw_only=True)
class LinkSettings:
    """Links by resource type. ``directory`` has a file for each link that has leases.

    ``queue`` is what stands below a class: fq_codel where the kernel has it, else a plain queue of bytes, which is to
    be ``queue_time`` long at most. ``tc`` and ``ip`` are the programs of iproute2.
    """

    directory: Path
    links: Mapping[str, LinkTable] = attrs.field(validator=attrs.validators.min_len(1))
    queue: Literal["auto", "fq_codel", "bfifo"] = "auto"
    queue_time: DurationSetting = attrs.field(default=50, validator=_check_queue)
    tc: str = "tc"
    ip: str = "ip"

    def __attrs_post_init__(self) -> None:
        owners: dict[End, str] = {}
        pools: dict[str, Network] = {}
        for name, link in self.links.items():
            if PLAIN_NAME.fullmatch(name) is None:
                raise ValueError(f"links: found {name[:60]!r}, expected letters, digits, dots, dashes and _")
            for end in (link.a, link.b):
                if end in owners:
                    raise ValueError(f"links.{name}: found {end}, which link {owners[end]} has")
                owners[end] = name
            for other, pool in pools.items():
                if pool.version == link.pool.version and pool.overlaps(link.pool):
                    raise ValueError(f"links.{name}.subnets: found {link.subnets}, which overlaps that of link {other}")
            pools[name] = link.pool

    @property
    def namespaces(self) -> bool:
        """Whether any end is in a namespace of its own."""
        return any(end.namespace for link in self.links.values() for end in (link.a, link.b))
