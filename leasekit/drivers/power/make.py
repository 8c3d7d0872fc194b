"""From settings to power control, and what `leasekit site doctor` asks of machines' controllers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.power.base import Controller, PowerControl, PowerLimits
from leasekit.drivers.power.commands import ScriptController
from leasekit.drivers.power.ipmi import IpmiController
from leasekit.drivers.power.settings import ControllerSettings, Ipmi, Redfish

AT_ONCE = 16
"""How many controllers are asked at the same time."""
ADVICE = "look whether its address, user and password file are right, and whether this host reaches its network"


def make_power(settings: ControllerSettings) -> PowerControl:
    """The power of the machine whose controller the settings name. Raises ``SettingsError`` where httpx is missing."""
    return PowerControl(
        _controller(settings), PowerLimits(order=settings.order_timeout, soft_off=settings.soft_timeout)
    )


def _controller(settings: ControllerSettings) -> Controller:
    if isinstance(settings, Ipmi):
        return IpmiController(settings)
    if isinstance(settings, Redfish):
        try:
            from leasekit.drivers.power.redfish import RedfishController
        except ImportError as error:
            text = f"Redfish needs httpx ({error}): pip install 'leasekit[redfish]'"
            raise SettingsError([text]) from error
        return RedfishController(settings)
    return ScriptController(settings)


async def examine_controllers(controllers: Mapping[str, ControllerSettings]) -> list[Finding]:
    """For each node whether its controller says how its power is, and what it draws; nothing is switched."""
    found: dict[str, Finding] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def ask(node: str, settings: ControllerSettings) -> None:
        async with limiter:
            found[node] = await _finding(node, settings)

    async with trio.open_nursery() as nursery:
        for node, settings in controllers.items():
            nursery.start_soon(partial(ask, node, settings))
    return [found[node] for node in controllers]


async def _finding(node: str, settings: ControllerSettings) -> Finding:
    what = f"node {node}: power"
    try:
        power = make_power(settings)
        state = await power.status()
    except (DriverError, SettingsError) as error:
        return Finding(what, "missing", str(error), ADVICE)
    try:
        draws = f"{await power.watts():g} W"
    except DriverError as error:
        draws = str(error)
    return Finding(what, "ok", f"its controller answers: the power is {state}; {draws}")
