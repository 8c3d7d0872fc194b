"""What hosts say of units, read: `xl`'s table and JSON of domains, and its facts of the host; and whose a unit's folder
in a control domain is, all that the driver remembers of it, as a line of JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import attrs

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import MachineRecord, made_of

RECORD: Final = "record.json"


@attrs.frozen(kw_only=True)
class XenRecord(MachineRecord):
    """``hosts`` are the names of those that may have something of the unit's, first the one that runs it or ran it
    last.
    """

    hosts: tuple[str, ...] = attrs.field(validator=attrs.validators.min_len(1))

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
        return structure(XenRecord, json.loads(line), RECORD)
    except (ValueError, SettingsError) as error:
        text = f"{where}: found no record of a unit in {RECORD}; setup or teardown of the unit removes what is there"
        raise DamagedRecordError(text, retry=False) from error


_ROW: Final = re.compile(r"(\S+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([a-z-]{6})\s+(\d+(?:\.\d+)?)")
_FACT: Final = re.compile(r"(\w+)\s*:\s*(.*)")


@attrs.frozen(kw_only=True)
class ListedDomain:
    """A domain in the table of `xl list`: memory in MiB, ``cpu`` in seconds since it was started or restored."""

    name: str
    id: int
    memory_mb: int
    vcpus: int
    flags: str
    cpu: float


@attrs.frozen(kw_only=True)
class ListedState:
    """What there is of a unit on a host. ``saved``: its memory is in a file, to go on where it was."""

    record: XenRecord | None
    row: ListedDomain | None
    saved: bool

    @property
    def nothing(self) -> bool:
        """Whether there is neither a record nor a domain of the unit's."""
        return self.record is None and self.row is None

    @property
    def running(self) -> bool:
        """Whether its domain is there and has not ended."""
        return self.row is not None and not set("scd") & set(self.row.flags)

    @property
    def alive(self) -> bool:
        """Whether it runs, or would go on if it were resumed."""
        return self.running or (self.saved and self.row is None)

    @property
    def why(self) -> str:
        """How its domain is, in words."""
        if self.row is None:
            return "suspended, its memory is on disk" if self.saved else "gone: its guest ended it, or somebody else"
        words = {"c": "crashed", "d": "being destroyed", "s": "shut down", "p": "paused"}
        return next((word for flag, word in words.items() if flag in self.row.flags), "running")


def read_table(text: str) -> dict[str, ListedDomain]:
    """The domains of `xl list`, by name. Those that are being taken apart have lost theirs. Raises ``DriverError``."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Name"):
        raise DriverError(f"xl list: found {text[:80]!a}, expected a table that begins with Name")
    found = {}
    for line in lines[1:]:
        match = _ROW.match(line)
        if match is not None:
            name, number, memory, vcpus, flags, cpu = match.groups()
            found[name] = ListedDomain(
                name=name, id=int(number), memory_mb=int(memory), vcpus=int(vcpus), flags=flags, cpu=float(cpu)
            )
    return found


def read_names(text: str) -> list[str]:
    """The names of the domains in the JSON of `xl list -l`. Raises ``DriverError``."""
    try:
        content: Any = json.loads(text)
        return [str(domain["config"]["c_info"].get("name", "")) for domain in content]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"xl list -l: found {text[:80]!a}, expected a list of domains as JSON"
        raise DriverError(text) from error


def read_facts(text: str) -> dict[str, str]:
    """The lines of `xl info`."""
    return {match[1]: match[2].strip() for line in text.splitlines() if (match := _FACT.fullmatch(line.strip()))}
