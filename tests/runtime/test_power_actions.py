"""Power operations through the executor: the driver of a type's power does them, and their ends are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from limited_drivers import limited
from polling import PATIENCE

from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.leases.power import power_driver
from leasekit.core.properties import Properties
from leasekit.core.steps import Action, ActionDone
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.executor import Executor
from leasekit.runtime.logs import UnitLogs


class Plain(NullDriver):
    """One that can't resume, as most can't."""

    operations = frozenset({"power_on", "power_off", "suspend", "status"})

    def __init__(self) -> None:
        super().__init__(NullSettings())
        self.asked: list[tuple[str, int]] = []

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """Written down."""
        self.asked.append((operation, unit.number))
        return {**await super().operate(unit, operation, arguments), "watts": "210"}


async def done_by(driver: NullDriver | None, tmp_path: Path, *ops: str) -> list[ActionDone]:
    """The ends of actions on one unit, one after the other."""
    drivers = {"node": limited(NullDriver(NullSettings()))}
    if driver is not None:
        drivers[power_driver("node")] = limited(driver, retries=0)
    ends: list[ActionDone] = []
    ended = trio.Event()

    def heard(done: ActionDone) -> None:
        ends.append(done)
        ended.set()

    executor = Executor(drivers.get, UnitLogs(tmp_path / "units", lambda: 0), heard)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        for number, op in enumerate(ops, 1):
            ended = trio.Event()
            executor.start([Action(number, op, "node-0", "node", "", {})])
            with trio.fail_after(PATIENCE):
                await ended.wait()
        nursery.cancel_scope.cancel()
    return ends


async def test_the_driver_of_the_power_switches(tmp_path: Path) -> None:
    """It is asked under the action's number, and what it returns is told; a resume is a power-on to one that has no
    other.
    """
    driver = Plain()
    ends = await done_by(driver, tmp_path, "power_off", "power_on", "suspend", "resume")
    assert driver.asked == [("power_off", 1), ("power_on", 2), ("suspend", 3), ("power_on", 4)]
    assert [(end.ok, end.properties["power"]) for end in ends] == [
        (True, "off"), (True, "on"), (True, "suspended"), (True, "on")
    ]  # fmt: skip
    assert ends[0].properties["watts"] == "210"


async def test_one_that_can_resume_is_asked_to(tmp_path: Path) -> None:
    """The null driver takes the time that it has for that."""
    driver = NullDriver(NullSettings())
    ends = await done_by(driver, tmp_path, "suspend", "resume")
    assert [end.properties["power"] for end in ends] == ["suspended", "on"]


async def test_a_type_without_a_power_driver(tmp_path: Path) -> None:
    """The action fails with words."""
    (end,) = await done_by(None, tmp_path, "power_off")
    assert not end.ok
    assert end.reason == "no driver is set for the power of type 'node'"


async def test_a_power_operation_fails_as_it_is_set_to(tmp_path: Path) -> None:
    """As any other of a null driver."""
    driver = NullDriver(NullSettings(failure={"power_on": 1.0}))
    (end,) = await done_by(driver, tmp_path, "power_on")
    assert not end.ok
    assert "power_on of node-0 failed" in end.reason


async def test_the_null_driver_knows_its_operations() -> None:
    """Status reads what was switched last; others are refused."""
    driver = NullDriver(NullSettings())
    unit = UnitContext(unit="u", type="node", lease="", op="", number=1, properties={}, log=lambda line: None)
    assert await driver.operate(unit, "status", {}) == {"power": "on"}
    await driver.operate(unit, "power_off", {})
    assert await driver.operate(unit, "status", {}) == {"power": "off"}
    with pytest.raises(DriverError, match="reboot"):
        await driver.operate(unit, "reboot", {})
