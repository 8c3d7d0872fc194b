"""What the world is told of a unit, checked: its properties come from drivers and, in part, from guests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import attrs

from leasekit.core.drivers import UnitContext
from leasekit.drivers.names import check_unit_id, refused_property

_HOSTNAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_-]{0,30}")


@attrs.frozen(kw_only=True)
class DirectoryEntry:
    """A unit's names, its addresses, and whose it is: ``holder`` and ``slice`` are text of any kind."""

    unit: str
    hostname: str
    addresses: tuple[str, ...]
    holder: str
    slice: str

    @property
    def names(self) -> tuple[str, ...]:
        """The whole name, and its first label if that is another."""
        label = self.hostname.partition(".")[0]
        return (self.hostname,) if label == self.hostname else (self.hostname, label)


def make_entry(unit: UnitContext, told: Mapping[str, str]) -> DirectoryEntry | None:
    """The entry of a unit whose driver ``told`` these properties; none for one without an address. Raises
    ``DriverError`` for a name or an address that is none.
    """
    name = check_unit_id(unit.unit)
    texts = told.get("addresses", "").split() or told.get("host", "").split()
    if not texts:
        return None
    hostname = told.get("hostname") or re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if _HOSTNAME.fullmatch(hostname) is None:
        raise refused_property("hostname", hostname, "expected a host name of small letters, digits, dashes and dots")
    addresses = []
    for text in texts:
        try:
            addresses.append(str(ipaddress.ip_address(text)))
        except ValueError:
            raise refused_property("addresses", text, "expected IP addresses") from None
        if "%" in text:
            raise refused_property("addresses", text, "expected IP addresses")
    holder, slice_ = unit.properties.get("lease.holder", ""), unit.properties.get("slice.name", "")
    return DirectoryEntry(unit=name, hostname=hostname, addresses=tuple(addresses), holder=holder, slice=slice_)


def plain_name(text: str) -> str:
    """``text`` as the name of a user or group: itself where it is one, else what tells it from any other."""
    if _PLAIN.fullmatch(text) and not text.startswith("x-"):
        return text
    kept = re.sub(r"[^a-z0-9_-]", "", text.lower())[:16]
    return f"x-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}-{kept}".rstrip("-")
