"""How Blazar writes things: dates, refusals, and what is asked for in a body."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from leasekit.config.instants import dated
from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.time import MINUTE, Instant
from leasekit.gateway.instants import moment
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.routing import explained

PHYSICAL: Final = "physical:host"
INSTANCE: Final = "virtual:instance"
ASKED: Final = "%Y-%m-%d %H:%M"
"""How dates are given."""
TOLD: Final = "%Y-%m-%dT%H:%M:%S.%f"
"""How they are told."""
BEFORE_END: Final = ("", "snapshot", "default")
COUNT_MAX: Final = 2**31 - 1
S = TypeVar("S", bound=Struct)
Name = Annotated[str, Meta(min_length=1, max_length=80)]
Count = int | str | None
Reservations = Annotated[list[dict[str, Any]], Meta(max_length=100)]


class LeaseBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A lease that is asked for."""

    name: Name
    start_date: str
    end_date: str
    before_end_date: str | None = None
    reservations: Reservations = []
    events: list[dict[str, Any]] = []


class LeaseChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a lease is to be otherwise."""

    name: Name | None = None
    start_date: str | None = None
    end_date: str | None = None
    before_end_date: str | None = None
    reservations: Reservations = []


class HostReservation(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whole hosts: at least ``min``, at most ``max`` of those that both filters take."""

    resource_type: str = PHYSICAL
    min: Count
    max: Count
    hypervisor_properties: str | list[Any] | None = ""
    resource_properties: str | list[Any] | None = ""
    before_end: str | None = "default"

    def wanted(self) -> dict[str, Any]:
        """What leasekit is asked for. Raises :class:`ProblemError`."""
        least, most = count(self.min, "min"), count(self.max, "max")
        if most < least:
            raise bad("Invalid values for min/max of hosts. Max must be equal to or larger than min.")
        if (self.before_end or "") not in BEFORE_END:
            raise bad(f"Malformed parameter before_end: found {self.before_end!r:.40}, expected snapshot or default")
        needed = requirements(self.hypervisor_properties, self.resource_properties)
        return {"units": most, "elastic": least if least < most else None, "filter": needed}

    def told(self) -> dict[str, Any]:
        """What is told of it."""
        return {
            "min": count(self.min, "min"), "max": count(self.max, "max"), "before_end": self.before_end,
            "hypervisor_properties": text_of(self.hypervisor_properties),
            "resource_properties": text_of(self.resource_properties),
        }  # fmt: skip


class InstanceReservation(Struct, kw_only=True, forbid_unknown_fields=True):
    """``amount`` machines on hosts, each of which needs so much."""

    resource_type: str = INSTANCE
    vcpus: Count
    memory_mb: Count
    disk_gb: Count = 0
    amount: Count
    affinity: bool | str | None = None
    resource_properties: str | list[Any] | None = ""

    def wanted(self) -> dict[str, Any]:
        """What leasekit is asked for. Raises :class:`ProblemError`."""
        if str(self.affinity).lower() not in ("none", ""):
            raise bad(f"affinity: found {self.affinity!r:.40}, only None is served: the site chooses the hosts")
        needs = {"cpu": count(self.vcpus, "vcpus") * 1000, "memory": count(self.memory_mb, "memory_mb")}
        disk = count(self.disk_gb, "disk_gb", 0)
        return {
            "units": count(self.amount, "amount"), "filter": requirements(self.resource_properties),
            "needs": tuple(sorted((needs | ({"disk": disk} if disk else {})).items())),
        }  # fmt: skip

    def told(self) -> dict[str, Any]:
        """What is told of it."""
        return {
            "vcpus": count(self.vcpus, "vcpus"), "memory_mb": count(self.memory_mb, "memory_mb"),
            "disk_gb": count(self.disk_gb, "disk_gb", 0), "amount": count(self.amount, "amount"), "affinity": None,
            "resource_properties": text_of(self.resource_properties), "flavor_id": None, "aggregate_id": None,
            "server_group_id": None,
        }  # fmt: skip


def read_reservation(given: dict[str, Any], where: str) -> HostReservation | InstanceReservation:
    """What is to be reserved. Raises :class:`ProblemError`."""
    kind = given.get("resource_type")
    if kind is None:
        raise bad(f"Missing parameter resource_type: {where} has none")
    if kind == PHYSICAL:
        return read(given, HostReservation, where)
    if kind == INSTANCE:
        return read(given, InstanceReservation, where)
    raise bad(f"The {kind!s:.60} resource type is not supported: {PHYSICAL} and {INSTANCE} are")


def read(given: Any, kind: type[S], where: str = "body") -> S:
    """An instance of ``kind``. Raises :class:`ProblemError`."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise bad(explained(where, str(error), given, kind)) from None


def count(value: Count, field: str, least: int = 1) -> int:
    """A whole number, which may be text. Raises :class:`ProblemError`."""
    if value is None or value == "":
        raise bad(f"Missing parameter {field}")
    if not re.fullmatch(r"\d{1,10}", str(value)) or not least <= int(value) <= COUNT_MAX:
        raise bad(f"Malformed parameter {field}: found {value!r:.40}, expected a whole number of at least {least}")
    return int(value)


def text_of(requirement: str | list[Any] | None) -> str:
    """A filter as it is told."""
    return requirement if isinstance(requirement, str) else json.dumps(requirement) if requirement else ""


def requirements(*given: str | list[Any] | None) -> str | None:
    """The filter that units must pass for all of these requirements. Raises :class:`ProblemError`."""
    found = []
    for one in map(text_of, given):
        try:
            needed = json.loads(one or "[]")
            if needed:
                parse_filter(json.dumps(needed))
        except (ValueError, RecursionError, FilterError) as error:
            raise bad(f"Malformed requirements {one!r:.200}: {error}") from None
        if not isinstance(needed, list):
            raise bad(f'Malformed requirements {one!r:.200}: expected a list such as ["==", "$gpu", "True"]')
        found += [needed] if needed else []
    return json.dumps(found[0] if len(found) == 1 else ["and", *found]) if found else None


def read_date(text: str, now: Instant) -> Instant:
    """An instant that is given in Blazar's form; ``now``: this minute. Raises :class:`ProblemError`."""
    if text == "now":
        return now - now % MINUTE
    try:
        found = datetime.strptime(text, ASKED).replace(tzinfo=UTC)
    except ValueError:
        raise bad(f"{text:.60} is an invalid date. Required format: {ASKED}") from None
    return max(0, round(found.timestamp() * 1000))


def told_date(at: Instant) -> str:
    """An instant as Blazar tells dates."""
    return moment(at).strftime(TOLD)


def told_stamp(at: Instant) -> str:
    """An instant as Blazar tells when something was made."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S")


def bad(text: str) -> ProblemError:
    """Something that was given is not what is allowed there."""
    return ProblemError(HTTPStatus.BAD_REQUEST, text, code="bad_argument")


def conflict(text: str) -> ProblemError:
    """It can't be, as things are."""
    return ProblemError(HTTPStatus.CONFLICT, text, code="conflict")


def refusal(reason: str) -> ProblemError:
    """A broker or a site has refused it."""
    return conflict(f"Not enough hosts available: {dated(reason)}")


def unknown(**what: str) -> ProblemError:
    """There is no such thing, in Blazar's words."""
    return ProblemError(HTTPStatus.NOT_FOUND, f"Object with {what!s:.120} not found", code="not_found")
