"""What power control is, and how an order is made sure of: it is given, and then read back until it is true.

Controllers (BMCs) say yes to what they never do, answer late or not at all, and forget: so no answer to an order is
believed, only what is read afterwards. All waits end at a deadline, with a reason.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND, Duration, format_duration

PowerState: TypeAlias = Literal["on", "off"]
Reading: TypeAlias = Literal["on", "off", "going on", "going off"]
"""What a controller reads; some say of a machine that it is on its way."""
BootDevice: TypeAlias = Literal["network", "disk"]
Order: TypeAlias = Literal["on", "off", "soft_off"]

PAUSES: Final = (0.1, 0.2, 0.5, 1.0)
"""Seconds between looks at what an order brought about; the last one repeats."""
REPEAT_AFTER: Final = 10.0
"""Seconds after which an order that shows no effect is given once more."""


class NoMeter(DriverError):
    """A controller can't say what its machine draws, and won't another time; the text says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: it has no meter: {why}", retry=False)


class Controller(Protocol):
    """One machine's controller as its protocol has it: orders are sent, nothing is made sure of.

    All methods raise ``DriverError``, which names the controller; it is retryable unless another try can't help.
    """

    name: str
    """What errors call it."""

    async def status(self) -> Reading:
        """Whether the power is on."""
        ...

    async def order(self, order: Order) -> None:
        """Switches on, off at once, or asks the operating system to switch itself off."""
        ...

    async def set_boot(self, device: BootDevice) -> None:
        """Says what the next start is to be from."""
        ...

    async def boot_device(self) -> BootDevice | None:
        """What the next start is to be from, if anything was said."""
        ...

    async def watts(self) -> float:
        """What the machine draws now, in watts, more than 0. Raises :class:`NoMeter` where that is not measured."""
        ...


@attrs.frozen(kw_only=True)
class PowerLimits:
    """How long things may take, in milliseconds: until an order has its effect, and until an operating system that was
    asked to switch itself off has done so.
    """

    order: Duration = 60 * SECOND
    soft_off: Duration = 120 * SECOND


@attrs.frozen
class PowerControl:
    """One machine's power. What a method was asked for is true when it returns; else it raises ``DriverError``."""

    controller: Controller
    limits: PowerLimits = PowerLimits()

    async def status(self) -> PowerState:
        """Whether the power is on, as far as the controller says so within its own time. A machine that is on its way
        has not arrived.
        """
        return "on" if await self.controller.status() in ("on", "going off") else "off"

    async def watts(self) -> float:
        """What the machine draws now, in watts. Raises :class:`NoMeter` where its controller has none."""
        return await self.controller.watts()

    async def on(self) -> None:
        """Switches on, a machine that is going off when it is; no more than a look if it is on."""
        await self._until("on", "on", self.limits.order)

    async def off(self) -> None:
        """Cuts the power; no more than a look if it is off."""
        await self._until("off", "off", self.limits.order)

    async def soft_off(self) -> None:
        """Has the operating system switch itself off; one that does not is left on, and the error says so."""
        await self._until("off", "soft_off", self.limits.soft_off)

    async def cycle(self) -> None:
        """Off, and then on. Controllers' own cycles are not used: nobody sees whether they came to pass."""
        await self.off()
        await self.on()

    async def boot_once(self, device: BootDevice) -> None:
        """The next start is from ``device``; some controllers keep to it until they are told otherwise."""
        problem = ""
        with trio.move_on_after(self.limits.order / SECOND):
            for attempt in range(1_000_000):
                try:
                    await self.controller.set_boot(device)
                    found = await self.controller.boot_device()
                    if found == device:
                        return
                    problem = f"it reads {found or 'nothing'}"
                except DriverError as error:
                    if not error.retry:
                        raise
                    problem = str(error)
                await trio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        raise self._late(f"the next start was not set to be from {device}", self.limits.order, problem)

    async def _until(self, state: PowerState, order: Order, limit: Duration) -> None:
        problem, repeat = "", trio.current_time()
        with trio.move_on_after(limit / SECOND):
            for attempt in range(1_000_000):
                try:
                    found = await self.controller.status()
                    if found == state:
                        return
                    problem = problem or f"it is still {found}"
                    # What is going off takes no order to switch on, or forgets it on the way.
                    if trio.current_time() >= repeat and (state, found) != ("on", "going off"):
                        await self.controller.order(order)
                        repeat = trio.current_time() + REPEAT_AFTER
                        problem = f"it took the order, and is still {found}"
                except DriverError as error:
                    if not error.retry:
                        raise
                    problem = str(error)
                await trio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        raise self._late(f"the power was not {state}", limit, problem)

    def _late(self, what: str, limit: Duration, problem: str) -> DriverError:
        said = problem.removeprefix(f"{self.controller.name}: ") or "it did not answer"
        return DriverError(f"{self.controller.name}: {what} within {format_duration(limit)}: {said}")
