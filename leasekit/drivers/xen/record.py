"""Whose a unit's folder in a control domain is: all that the driver remembers of a unit, as a line of JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from leasekit.core.drivers import DriverError
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import MachineRecord, made_of

RECORD: Final = "record.json"


@attrs.frozen(kw_only=True)
class XenRecord(MachineRecord):
    """``hosts`` are the names of those that may have something of the unit's, first the one that runs it or ran it
    last.
    """

    hosts: tuple[str, ...]

    def line(self) -> bytes:
        """The record as it is kept."""
        return (json.dumps(attrs.asdict(self), sort_keys=True) + "\n").encode("ascii")


def make_record(plan: UnitPlan, host: str, host_key: str) -> XenRecord:
    """The record of a unit that is about to be made on ``host``."""
    return XenRecord(**made_of(plan, host_key), hosts=(host,))


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
