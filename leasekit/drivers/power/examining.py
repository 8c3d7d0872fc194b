"""What `leasekit site doctor` asks of machines' controllers: whether they answer, with the password that is there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.power.make import make_power
from leasekit.drivers.power.settings import ControllerSettings

AT_ONCE = 16
"""How many controllers are asked at the same time."""
ADVICE = "look whether its address, user and password file are right, and whether this host reaches its network"


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
