"""Hosts: units of a site, by their numbers there; their capacity, attributes and allocations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from leasekit.core.properties import CPU, MEMORY, read_amount
from leasekit.core.time import Instant
from leasekit.gateway.actors import ActorConnection
from leasekit.gateway.blazar.leases import LEASE_ID, hosts_of
from leasekit.gateway.blazar.wire import bad, conflict, count, told_date, unknown
from leasekit.gateway.callers import AUDITOR, OPERATOR
from leasekit.gateway.deployment import need_office
from leasekit.gateway.door import SITE
from leasekit.gateway.routing import Call

DISK: Final = "disk"
CAPACITY: Final = {"vcpus": CPU, "memory_mb": MEMORY, "local_gb": DISK}
"""What of a host is counted: as Blazar calls it, and the resource of the unit."""
FIELDS: Final = (
    "id", "hypervisor_hostname", "hypervisor_type", "hypervisor_version", "service_name", "status", "cpu_info",
    "availability_zone", "trust_id", "reservable", "disabled", "created_at", "updated_at", *CAPACITY,
)  # fmt: skip
"""What Blazar tells of every host; other attributes are extra capabilities."""
MAY_BE_ATTRIBUTES: Final = ("hypervisor_hostname", *CAPACITY)
"""Fields that are attributes as well where a filter is to know them: of a new host, if others have them."""
OUT: Final = ("out", "failed")
"""States of units that nobody gets."""


async def list_hosts(call: Call) -> list[dict[str, Any]]:
    """All hosts, by id."""
    need_office(call, AUDITOR)
    return [_host(one) for one in await _inventory(call)]


async def show_host(call: Call, id_: str) -> dict[str, Any]:
    """One host. Raises :class:`ProblemError`."""
    need_office(call, AUDITOR)
    return _host(await _entry(call, id_))


async def create_host(call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
    """Have a new host. Raises ``LeasekitError``."""
    need_office(call, OPERATOR)
    asked = _texts(body)
    name = asked.pop("name", None) or asked.pop("id", None)
    if not name:
        raise bad("Missing parameter name")
    known = await _inventory(call)
    if any(one["unit"] == name for one in known):
        raise conflict(f"Can't add host {name}: there is one of this name")
    for field in ("vcpus", "memory_mb"):
        if not asked.get(field):
            raise bad(f"Missing parameter {field}: no hypervisor is asked, say it as an extra capability ({field}=16)")
    shared = {field for field in MAY_BE_ATTRIBUTES if any(field in one["attributes"] for one in known)}
    own = {"hypervisor_hostname": name, **asked}
    attributes = {
        field: value
        for field, value in own.items()
        if value is not None and (field not in MAY_BE_ATTRIBUTES or field in shared)
    }
    return await _set(call, name, attributes, _capacity(asked, {}), "unit.add")


async def update_host(call: Call, id_: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Change capacity and attributes of a host; an attribute that is None goes. Raises ``LeasekitError``."""
    need_office(call, OPERATOR)
    asked = _texts(body)
    if not asked:
        raise bad("No data to update")
    entry = await _entry(call, id_)
    for field in FIELDS:
        if field in asked and field not in CAPACITY:
            raise bad(f"{field}: it can't be changed")
    attributes = dict(entry["attributes"])
    for field, value in asked.items():
        if field not in CAPACITY or field in attributes:
            attributes[field] = value
    kept = {field: value for field, value in attributes.items() if value is not None}
    return await _set(call, entry["unit"], kept, _capacity(asked, _sizes(entry)))


async def delete_host(call: Call, id_: str) -> None:
    """Have a host no more. Raises ``LeasekitError``, for one that is reserved too."""
    need_office(call, OPERATOR)
    entry = await _entry(call, id_)
    if entry["leases"] or entry["lease"]:
        raise conflict(f"Can't delete host {id_}. The host is reserved.")
    await _site(call).command("unit.remove", {"unit": entry["unit"]}, **call.signed)


async def list_allocations(call: Call, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is reserved of each host, now and later."""
    need_office(call, AUDITOR)
    leases = await _leases(call)
    return [_allocation(one, leases, query) for one in await _inventory(call)]


async def show_allocation(call: Call, id_: str, query: Mapping[str, str]) -> dict[str, Any]:
    """What is reserved of a host, now and later. Raises :class:`ProblemError`."""
    need_office(call, AUDITOR)
    return _allocation(await _entry(call, id_), await _leases(call), query)


async def list_properties(call: Call, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """What resource properties can be asked for; in ``detail`` with the values that hosts have."""
    values: dict[str, set[str]] = {}
    for entry in await _inventory(call):
        for name, value in entry["attributes"].items():
            values.setdefault(name, set()).add(value)
    if query.get("detail", "").lower() not in ("true", "1"):
        return [{"property": name} for name in sorted(values)]
    return [{"property": name, "private": False, "values": sorted(values[name])} for name in sorted(values)]


async def set_property(call: Call, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Properties are public, and stay so. Raises :class:`ProblemError`."""
    need_office(call, OPERATOR)
    if not any(name in one["attributes"] for one in await _inventory(call)):
        raise unknown(property_name=name)
    if body.get("private") is not False:
        raise bad("private: found another value, only false is served: every attribute of a host can be asked for")
    return {"resource_type": "physical:host", "property_name": name, "private": False}


def _site(call: Call) -> ActorConnection:
    return call.door.actor(hosts_of(call).site, SITE)


async def _inventory(call: Call) -> list[dict[str, Any]]:
    type_ = hosts_of(call).type
    entries = await _site(call).query("inventory")
    found = [one for one in entries if one["type"] == type_ and one["differs"] != "removed"]
    return sorted(found, key=lambda one: int(one["number"]))


async def _entry(call: Call, id_: str) -> dict[str, Any]:
    found = [one for one in await _inventory(call) if str(one["number"]) == id_]
    if not found:
        raise unknown(host_id=id_)
    return found[0]


async def _leases(call: Call) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in await _site(call).query("leases")}


async def _set(
    call: Call, unit: str, attributes: Mapping[str, str], capacity: Mapping[str, str], command: str = "unit.set"
) -> dict[str, Any]:
    asked = {"unit": unit, "type": hosts_of(call).type, "attributes": attributes, "capacity": capacity}
    return _host(await _site(call).command(command, asked, **call.signed))


def _texts(body: Mapping[str, Any]) -> dict[str, str | None]:
    """The values of a body as attributes have them. Raises :class:`ProblemError`."""
    found: dict[str, str | None] = {}
    for name, value in body.items():
        if not isinstance(value, (str, int, float, type(None))):
            raise bad(f"{name!s:.60}: found {value!r:.60}, expected text, a number, true or false")
        if len(name) > 64:
            raise bad("Extra capability key too long: at most 64 characters are allowed")
        found[name] = None if value is None else str(value)
    return found


def _capacity(asked: Mapping[str, str | None], before: Mapping[str, str]) -> dict[str, str]:
    found = dict(before)
    for field, resource in CAPACITY.items():
        if (value := asked.get(field)) is not None:
            found[resource] = str(count(value, field, 0 if resource == DISK else 1))
    return {resource: much for resource, much in found.items() if much != "0"}


def _sizes(entry: Mapping[str, Any]) -> dict[str, str]:
    """The capacity of a unit, by resource, as people write it."""
    pairs = (part.partition("=") for part in re.split(r",\s*", entry["capacity"]) if part)
    return {resource: much for resource, _, much in pairs}


def _much(sizes: Mapping[str, str], resource: str) -> int:
    return read_amount(resource, sizes[resource]) if resource in sizes else 0


def _host(entry: Mapping[str, Any]) -> dict[str, Any]:
    sizes, attributes = _sizes(entry), entry["attributes"]
    extra = {name: value for name, value in attributes.items() if name not in FIELDS}
    version = attributes.get("hypervisor_version", "0")
    return {
        **extra, "id": str(entry["number"]), "hypervisor_hostname": entry["unit"], "service_name": entry["unit"],
        "hypervisor_type": attributes.get("hypervisor_type", "leasekit"),
        "hypervisor_version": int(version) if version.isdecimal() else 0, "cpu_info": attributes.get("cpu_info", ""),
        "vcpus": _much(sizes, CPU) // 1000,
        "memory_mb": _much(sizes, MEMORY),
        "local_gb": _much(sizes, DISK), "status": None, "trust_id": None, "disabled": False,
        "availability_zone": attributes.get("availability_zone", ""), "reservable": entry["state"] not in OUT,
        "created_at": None, "updated_at": None,
    }  # fmt: skip


def _allocation(
    entry: Mapping[str, Any], leases: Mapping[str, Mapping[str, Any]], query: Mapping[str, str]
) -> dict[str, Any]:
    found = []
    for id_ in dict.fromkeys([*entry["leases"], *filter(None, [entry["lease"]])]):
        lease = leases.get(id_)
        if lease is None:
            continue
        whose = lease["slice"] if LEASE_ID.fullmatch(lease["slice"]) else id_
        start, end = _term(lease)
        if query.get("lease_id", whose) == whose and query.get("reservation_id", id_) == id_:
            found.append({"id": id_, "lease_id": whose, "start_date": start, "end_date": end})
    return {"resource_id": str(entry["number"]), "reservations": sorted(found, key=lambda one: one["start_date"])}


def _term(lease: Mapping[str, Any]) -> tuple[str, str]:
    start: Instant = lease["term"][0]
    return told_date(start), told_date(lease["end"])
