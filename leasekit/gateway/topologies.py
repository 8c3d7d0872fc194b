"""Topologies over HTTP: planned, and leased all or nothing."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any, Final

from leasekit.client.shapes import Close, WantedTopology, WantedTopologyPlan
from leasekit.config.instants import parse_instant
from leasekit.core.answers import PlannedTopology, TopologyDetails
from leasekit.core.settings import SettingsError
from leasekit.core.topology import read_topology
from leasekit.gateway.callers import USER
from leasekit.gateway.instants import converted
from leasekit.gateway.leases import OfProject
from leasekit.gateway.policies import TOPOLOGY, TOPOLOGY_PLAN, admit
from leasekit.gateway.routing import Call, route, unprocessable

INSTANTS: Final = ("start", "est", "lst")


@route("POST", "/topologies", status=HTTPStatus.CREATED)
async def request_topology(call: Call, params: OfProject, body: WantedTopology) -> TopologyDetails:
    """Lease a topology: sites and the bandwidth between them, all or nothing. Its state says what comes of it."""
    actor = call.door.project(call.caller, params.project, USER)
    arguments = {**_arguments(body), "tries": body.tries}
    await admit(call, actor, TOPOLOGY, arguments)
    return converted(await actor.command(TOPOLOGY, arguments, **call.signed), TopologyDetails)


@route("POST", "/topologies/dry-run")
async def plan_topology(call: Call, params: OfProject, body: WantedTopologyPlan) -> PlannedTopology:
    """Say what a broker would plan for a topology. Nothing is asked for."""
    actor = call.door.project(call.caller, params.project, USER)
    await admit(call, actor, TOPOLOGY_PLAN, arguments := _arguments(body))
    planned = await call.door.unless_away(partial(actor.command, TOPOLOGY_PLAN, arguments))
    return converted(planned, PlannedTopology)


@route("POST", "/topologies/{topology}/close")
async def close_topology(call: Call, topology: str, params: OfProject, body: Close) -> TopologyDetails:
    """End all leases of a topology early, or give it up while it is planned."""
    actor = call.door.project(call.caller, params.project, USER)
    asked = {"topology": topology, "reason": body.reason}
    return converted(await actor.command("topology.close", asked, **call.signed), TopologyDetails)


def _arguments(body: WantedTopologyPlan) -> dict[str, Any]:
    """What the guest is asked: the same whenever the same is asked, as keys have it. Raises :class:`ProblemError`."""
    found = dict(body.request)
    for name in INSTANTS:
        if isinstance(found.get(name), str):
            try:
                found[name] = parse_instant(found[name])
            except (ValueError, OverflowError):
                raise unprocessable(f"request.{name}: found {found[name]!r:.60}, expected an instant") from None
    if "est" in found and "lst" not in found:
        found["lst"] = found["est"]
    return {"request": checked_topology(found, "request."), "broker": body.broker}


def checked_topology(request: dict[str, Any], where: str = "") -> dict[str, Any]:
    """The request, which is one. Raises :class:`ProblemError` with what is wrong, ``where`` before each path."""
    try:
        read_topology(request)
    except SettingsError as error:
        raise unprocessable("; ".join(f"{where}{line.lstrip('.')}" for line in error.errors)) from None
    return request
