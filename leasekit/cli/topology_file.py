"""Topology files: what a person writes of a request for sites and the bandwidth between them, as TOML or JSON.

The keys are those of :mod:`leasekit.core.topology`; instants may be written as everywhere on the command line.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from leasekit.actors.settings import GuestSettings
from leasekit.cli.times import parse_when
from leasekit.config.instants import parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.settings import SettingsError
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit.core.topology import TopologyRequest, read_topology

SOON: Final[Duration] = GuestSettings().request_timeout
"""How late a request may begin that names no start, or ``now``: as late as an answer is of use."""
FILE_MAX: Final = 1024 * 1024
"""The longest file that is read, in bytes."""

INSTANTS: Final = ("start", "est", "lst")


class TopologyFileError(LeasekitError):
    """What is wrong with a topology file, a line for each fault that names file and key."""

    def __init__(self, file: str, faults: list[str]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))


def read_topology_file(file: Path, now: Instant) -> TopologyRequest:
    """The request in a file (``-``: standard input, as JSON or TOML). Raises :class:`TopologyFileError`."""
    name = "standard input" if str(file) == "-" else str(file)
    content = _content(file, name)
    faults: list[str] = []
    found = dict(content)
    for key in INSTANTS:
        if key in found and not (key == "start" and found[key] == "now"):
            found[key] = _instant(found[key], key, now, faults)
    if found.get("start", "now") == "now" and not found.keys() & {"est", "lst"}:
        found.pop("start", None)
        found |= {"est": now, "lst": now + SOON}
    if "est" in found and "lst" not in found:
        found["lst"] = found["est"]
    # What was found wrong here is made right below, so that the rest is checked all the same.
    bad = {fault.partition(":")[0] for fault in faults}
    found |= {key: now for key in bad if key in INSTANTS}
    try:
        request = read_topology(found)
    except SettingsError as error:
        faults += [line for line in error.errors if line.partition(":")[0] not in bad]
    if faults:
        raise TopologyFileError(name, faults)
    return request


def _content(file: Path, name: str) -> Mapping[str, Any]:
    try:
        data = sys.stdin.buffer.read(FILE_MAX + 1) if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise TopologyFileError(name, [f"can't be read: {error.strerror}"]) from None
    if len(data) > FILE_MAX:
        raise TopologyFileError(name, [f"found {len(data)} bytes, at most {FILE_MAX} are allowed"])
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise TopologyFileError(name, ["found bytes that are not UTF-8, expected TOML or JSON"]) from None
    is_json = file.suffix == ".json" or (file.suffix != ".toml" and text.lstrip().startswith("{"))
    try:
        content = read_json(text) if is_json else tomllib.loads(text)
    except JsonError as error:
        raise TopologyFileError(name, [str(error)]) from None
    except tomllib.TOMLDecodeError as error:
        raise TopologyFileError(name, [f"found no TOML: {error}"]) from None
    except RecursionError:
        raise TopologyFileError(name, ["found tables in tables without end"]) from None
    if not isinstance(content, dict):
        raise TopologyFileError(name, [f"found {type(content).__name__}, expected a table with sites and links"])
    return content


def _instant(value: Any, key: str, now: Instant, faults: list[str]) -> Instant:
    """An instant of a file in milliseconds; a fault is noted where it is none."""
    try:
        if isinstance(value, str):
            return parse_when(value, now)
        if isinstance(value, datetime) or type(value) is int:
            instant = parse_instant(value)
            if 0 <= instant <= INSTANT_MAX:
                return instant
    except ValueError:
        pass
    faults.append(f"{key}: found {str(value)[:60]!r}, expected now, +2h, or ISO 8601 such as 2027-03-01T12:00Z")
    return now
