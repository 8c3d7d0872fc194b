"""Whose a domain is, as its metadata say: all that the driver remembers of a unit."""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree

import attrs

from leasekit.core.properties import Properties
from leasekit.drivers.libvirt.plan import UnitPlan, keys_digest
from leasekit.drivers.names import bare, check_printable

RESUMED_MEMORY: Final = "memory"
RESUMED_DISK: Final = "disk"

URN: Final = "urn:leasekit:libvirt:1"
KEY: Final = "leasekit"
"""The prefix under which the namespace is written."""


@attrs.frozen(kw_only=True)
class MachineRecord:
    """What is remembered of a unit, whatever runs it. ``number`` is that of the setup that made the unit; ``ready``
    whether that setup came to its end. ``keys`` is the digest of the login keys that the guest was given last,
    ``host_key`` its ssh server's public key.
    """

    unit: str
    lease: str
    type: str
    number: int
    ready: bool
    image: str
    addresses: tuple[str, ...]
    hostname: str
    host_key: str
    keys: str

    def properties(self, host: str, domain: str) -> Properties:
        """The unit properties: what a guest is told of its unit. ``host`` is the hypervisor's name in the settings."""
        addresses = [bare(text) for text in self.addresses]
        found = {
            "name": self.unit,
            "hostname": self.hostname,
            "console": f"{host}/{domain}",
            "image": self.image,
        }
        if addresses:
            found |= {"host": addresses[0], "port": "22", "addresses": " ".join(addresses)}
        return found | ({"host_key": self.host_key} if self.host_key else {})


def made_of(plan: UnitPlan, host_key: str) -> dict[str, Any]:
    """The fields of the record of a unit that is about to be made."""
    return {
        "unit": plan.unit, "lease": plan.lease, "type": plan.type, "number": plan.number, "ready": False,
        "image": plan.image_name, "addresses": plan.addresses, "hostname": plan.hostname, "host_key": host_key,
        "keys": keys_digest(plan.keys),
    }  # fmt: skip


@attrs.frozen(kw_only=True)
class LibvirtRecord(MachineRecord):
    """``resumed`` is what of a saved unit it went on with, if it did: ``memory`` or ``disk``; ``lost`` is why it could
    not.
    """

    resumed: str = ""
    lost: str = ""

    def element(self) -> ElementTree.Element:
        """The record as metadata of a domain."""
        texts = {
            field.name: getattr(self, field.name)
            for field in attrs.fields(LibvirtRecord)
            if field.name not in ("number", "ready", "addresses")
        }
        made = ElementTree.Element(f"{{{URN}}}unit", texts)
        made.set("number", str(self.number))
        made.set("ready", "yes" if self.ready else "no")
        made.set("addresses", " ".join(self.addresses))
        return made

    def bare_text(self) -> str:
        """The element without its namespace, which libvirt adds."""
        element = self.element()
        element.tag = "unit"
        return ElementTree.tostring(element, encoding="unicode")

    def properties(self, host: str, domain: str) -> Properties:
        """As those of any machine, and what it went on with."""
        found = super().properties(host, domain)
        return {**found, "resumed": self.resumed} if self.resumed else found


def make_record(plan: UnitPlan, host_key: str, *, resumed: str = "", lost: str = "") -> LibvirtRecord:
    """The record of a unit that is about to be made. Raises ``DriverError`` for text that XML can't hold."""
    check_printable(plan.lease, plan.type)
    return LibvirtRecord(**made_of(plan, host_key), resumed=resumed, lost=lost)


def read_record(text: str) -> LibvirtRecord | None:
    """The record in metadata, or none where it is not one of this driver's."""
    try:
        return _record(ElementTree.fromstring(text))
    except (ElementTree.ParseError, KeyError, ValueError):
        return None


def find_record(xml: str) -> LibvirtRecord | None:
    """The record in the description of a domain, or none."""
    try:
        element = ElementTree.fromstring(xml).find(f"metadata/{{{URN}}}unit")
        return None if element is None else _record(element)
    except (ElementTree.ParseError, KeyError, ValueError):
        return None


def _record(element: ElementTree.Element) -> LibvirtRecord:
    texts = {field.name: element.attrib[field.name] for field in attrs.fields(MachineRecord)}
    read: dict[str, Any] = {
        "number": int(texts["number"]),
        "ready": texts["ready"] == "yes",
        "addresses": tuple(texts["addresses"].split()),
    }
    return LibvirtRecord(**{**texts, **read}, resumed=element.get("resumed", ""), lost=element.get("lost", ""))
