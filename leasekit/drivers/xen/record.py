"""Whose a unit's folder in a control domain is: all that the driver remembers of a unit, as a line of JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from leasekit.core.drivers import DriverError
from leasekit.core.properties import Properties
from leasekit.drivers.libvirt.plan import UnitPlan, keys_digest
from leasekit.drivers.names import bare

RECORD: Final = "record.json"


@attrs.frozen(kw_only=True)
class XenRecord:
    """``number`` is that of the setup that made the unit; ``ready`` whether that setup came to its end.

    ``hosts`` are the names of those that may have something of the unit's, first the one that runs it or ran it last.
    ``keys`` is the digest of the login keys that the guest was given, ``host_key`` its ssh server's public key.
    """

    unit: str
    lease: str
    type: str
    number: int
    ready: bool
    image: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    hostname: str
    host_key: str
    keys: str

    def line(self) -> bytes:
        """The record as it is kept."""
        return (json.dumps(attrs.asdict(self), sort_keys=True) + "\n").encode("ascii")

    def properties(self, host: str, domain: str) -> Properties:
        """The unit properties: what a guest is told of its unit. ``host`` is the Xen host's name in the settings."""
        found = {
            "name": self.unit,
            "hostname": self.hostname,
            "console": f"{host}/{domain}",
            "image": self.image,
        }
        addresses = [bare(text) for text in self.addresses]
        if addresses:
            found |= {"host": addresses[0], "port": "22", "addresses": " ".join(addresses)}
        return found | ({"host_key": self.host_key} if self.host_key else {})


def make_record(plan: UnitPlan, host: str, host_key: str) -> XenRecord:
    """The record of a unit that is about to be made on ``host``."""
    return XenRecord(
        unit=plan.unit,
        lease=plan.lease,
        type=plan.type,
        number=plan.number,
        ready=False,
        image=plan.image_name,
        hosts=(host,),
        addresses=plan.addresses,
        hostname=plan.hostname,
        host_key=host_key,
        keys=keys_digest(plan.keys),
    )


class DamagedRecordError(DriverError):
    """There is a record, and it says nothing."""


def read_record(line: str, where: str) -> XenRecord | None:
    """The record in a line, or none in an empty one. Raises :class:`DamagedRecordError` that names ``where`` for
    anything else.
    """
    if not line.strip():
        return None
    try:
        content: dict[str, Any] = json.loads(line)
        several = {key: tuple(map(str, content[key])) for key in ("hosts", "addresses")}
        found = {field.name: content[field.name] for field in attrs.fields(XenRecord)}
        if not several["hosts"]:
            raise ValueError("no host")
        return XenRecord(**{**found, **several, "number": int(found["number"]), "ready": found["ready"] is True})
    except (ValueError, KeyError, TypeError) as error:
        text = f"{where}: found no record of a unit in {RECORD}; setup or teardown of the unit removes what is there"
        raise DamagedRecordError(text, retry=False) from error
