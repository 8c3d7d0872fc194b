"""The driver ``power``: units are machines that are on while they are leased, and can be put off when they are idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import UNIT_ID, DriverError, Finding, OnlyUnits, ProbeResult, Timeouts, UnitContext
from leasekit.core.properties import Properties, check_properties
from leasekit.core.settings import SettingsError, expect_one_of
from leasekit.core.time import MINUTE, Duration
from leasekit.drivers.names import unknown_operation
from leasekit.drivers.one_sided import SiteOnly
from leasekit.drivers.power.base import PowerControl
from leasekit.drivers.power.make import GRACE, examine_controllers, make_power
from leasekit.drivers.power.settings import ControllerSettings, Ipmi, Redfish, Script

TIMEOUT: Final = 10 * MINUTE
"""What an action has at least where the site says nothing."""
_ANSWERS: Final[Mapping[str, int]] = {Ipmi.kind: 3, Redfish.kind: 7, Script.kind: 3}
"""For how many answers of a controller a suspend waits besides those to its orders: how the power is, what the machine
draws, and how the power is then. Redfish looks for the machine first, and for its meter in up to three resources.
"""


@attrs.frozen(kw_only=True)
class SwitchedMachine:
    """One machine: its controller, and what guests are told of it besides its name."""

    power: ControllerSettings
    properties: Mapping[str, str] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        check_properties(self.properties, "properties")


@attrs.frozen(kw_only=True)
class PowerDriverSettings:
    """The machines by the names of their units. With ``off_when_free`` a unit that is torn down is switched off: first
    its operating system is asked to, and then, when its time is over, the power is cut.
    """

    nodes: Mapping[str, SwitchedMachine] = attrs.field(validator=attrs.validators.min_len(1))
    off_when_free: bool = False

    def __attrs_post_init__(self) -> None:
        for name in self.nodes:
            if UNIT_ID.fullmatch(name) is None:
                raise ValueError(f"nodes: found {name[:60]!r}, expected letters, digits, dots, dashes and _")


class PowerDriver(SiteOnly):
    """A :class:`~leasekit.core.drivers.Driver` of machines that are there anyway. Raises ``SettingsError``."""

    kind = "power"
    Settings: ClassVar[type] = PowerDriverSettings
    capabilities: frozenset[str] = frozenset({"power"})
    operations: frozenset[str] = frozenset(
        {"power_on", "power_off", "soft_off", "suspend", "resume", "cycle", "status", "watts"}
    )

    def __init__(self, settings: PowerDriverSettings) -> None:
        self._settings = settings
        self._powers = {}
        for name, machine in settings.nodes.items():
            try:
                self._powers[name] = make_power(machine.power)
            except SettingsError as error:
                raise error.within(f"nodes.{name}.power") from error
        self._meters = {name: _Meter(power) for name, power in self._powers.items()}
        self._locks: dict[str, trio.Lock] = {name: trio.Lock() for name in self._powers}

    @staticmethod
    async def examine(settings: PowerDriverSettings) -> list[Finding]:
        """What this host has and lacks of what nodes need."""
        return await examine_controllers({name: machine.power for name, machine in settings.nodes.items()})

    @staticmethod
    def timeouts(settings: PowerDriverSettings) -> Timeouts:
        """A suspend that is cut short while it asks the operating system never comes to cutting the power."""
        least, why = max(_longest(name, machine.power) for name, machine in settings.nodes.items())
        return Timeouts(max(TIMEOUT, 2 * least), least, why)

    @staticmethod
    def only_units(settings: PowerDriverSettings) -> OnlyUnits:
        """The machines."""
        return OnlyUnits(settings.nodes.__contains__, "nodes", "node")

    async def setup(self, unit: UnitContext) -> Properties:
        """Switches the machine on. Raises ``DriverError``."""
        power = self._power(unit.unit)
        async with self._locks[unit.unit]:
            await power.on()
        return self._properties(unit.unit)

    async def teardown(self, unit: UnitContext) -> None:
        """Switches the machine off where the settings say so. Raises ``DriverError``."""
        if unit.unit not in self._powers or not self._settings.off_when_free:
            await trio.lowlevel.checkpoint()
            return
        async with self._locks[unit.unit]:
            await _off_gently(self._powers[unit.unit], unit)

    async def modify(self, unit: UnitContext) -> Properties:
        """Nothing of a machine can be changed; makes sure that it is on. Raises ``DriverError``."""
        return await self.setup(unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Up when the power is on, as ``measured`` says as well (``on``: 1 or 0; ``watts``, where there is a meter)."""
        if unit.unit not in self._powers:
            await trio.lowlevel.checkpoint()
            return ProbeResult(state="down", detail="there is no such machine in the settings")
        state = await self._powers[unit.unit].status()
        if state != "on":
            return ProbeResult(state="down", detail=f"its power is {state}", measured={"on": 0.0})
        try:
            watts = await self._meters[unit.unit].at_work()
        except DriverError as error:
            return ProbeResult(state="up", detail=f"its power is on; {error}", measured={"on": 1.0})
        return ProbeResult(state="up", detail=f"its power is on, {watts:g} W", measured={"on": 1.0, "watts": watts})

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """``power_on`` and ``resume``, ``power_off`` (at once), ``soft_off`` (the operating system is asked),
        ``suspend`` (the same, and the power is cut when its time is over), ``cycle``, ``status``. All return ``power``,
        as it reads afterwards, and what is known of what it draws: ``idle_watts``, read last before it was put off, and
        ``watts``, the most that a probe read. ``watts`` reads that, and fails where there is no meter.
        """
        if operation not in self.operations:
            raise unknown_operation("power", operation, self.operations)
        power = self._power(unit.unit)
        meter = self._meters[unit.unit]
        if operation == "watts":
            return {"power": await power.status(), "watts": f"{await power.watts():g}"}
        async with self._locks[unit.unit]:
            if operation in _OFF:
                await meter.idle(unit)
            if operation in ("power_on", "resume"):
                await power.on()
            elif operation == "power_off":
                await power.off()
            elif operation == "cycle":
                await power.cycle()
            elif operation == "soft_off":
                await power.soft_off()
            elif operation == "suspend":
                await _off_gently(power, unit)
            return {"power": await power.status(), **meter.known()}

    def _power(self, unit: str) -> PowerControl:
        if unit not in self._powers:
            text = f"unit {unit[:80]!r}: {expect_one_of(unit[:80], self._powers)}"
            raise DriverError(text, retry=False)
        return self._powers[unit]

    def _properties(self, unit: str) -> Properties:
        return {"name": unit, **self._settings.nodes[unit].properties}


def _longest(node: str, power: ControllerSettings) -> tuple[Duration, str]:
    """How long the longest of a machine's operations may take, and what it waits for."""
    answers = _ANSWERS[power.kind]
    orders, asked = power.soft_timeout + power.order_timeout, answers * power.answer_timeout
    suspend = f"a suspend of {node} waits for soft_timeout, order_timeout and {answers} times answer_timeout"
    cycle = f"a cycle of {node} waits for order_timeout twice, and for answer_timeout"
    longest = max((orders + asked, suspend), (2 * power.order_timeout + power.answer_timeout, cycle))
    if isinstance(power, Script):
        # A command that takes too long is given time to end: those for answers, and the last look after each order.
        return longest[0] + (answers + 2) * GRACE, longest[1]
    return longest


_OFF: Final = ("power_off", "soft_off", "suspend")


class _Meter:
    """What was read of one machine's meter since the driver was made, in watts."""

    def __init__(self, power: PowerControl) -> None:
        self._power = power
        self._most = 0.0
        self._idle = 0.0

    async def at_work(self) -> float:
        """What it draws while a lease has it. Raises ``DriverError``."""
        watts = await self._power.watts()
        self._most = max(self._most, watts)
        return watts

    async def idle(self, unit: UnitContext) -> None:
        """What it draws before it is put off; a meter that is not there, or fails, is no reason to leave it on."""
        try:
            if await self._power.status() == "on":
                self._idle = await self._power.watts()
        except DriverError as error:
            unit.log(f"what it draws is not known: {error}")

    def known(self) -> Properties:
        """As properties of the unit."""
        return {name: f"{read:g}" for name, read in (("idle_watts", self._idle), ("watts", self._most)) if read}


async def _off_gently(power: PowerControl, unit: UnitContext) -> None:
    try:
        await power.soft_off()
    except DriverError as error:
        unit.log(f"{error}; the power is cut")
        await power.off()
