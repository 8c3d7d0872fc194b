"""Power by commands of the site's own."""

from __future__ import annotations

import os
import re
from typing import Final

import trio

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.commands import Command, Run
from leasekit.drivers.files import find_executable
from leasekit.drivers.names import one_line
from leasekit.drivers.power.base import BootDevice, NoMeter, Order, PowerState
from leasekit.drivers.power.settings import Script

GRACE: Duration = 2 * SECOND
"""Between SIGTERM and SIGKILL for a command that takes too long."""
_WATTS: Final = re.compile(rb"[0-9]{1,7}(\.[0-9]{1,6})?")


class ScriptController:
    """A :class:`~leasekit.drivers.power.base.Controller` of one machine."""

    def __init__(self, settings: Script) -> None:
        self._settings = settings
        self._device: BootDevice | None = None
        self.name = f"the command {one_line(settings.on[0], 60)}"

    async def status(self) -> PowerState:
        """Whether the power is on. Raises ``DriverError``."""
        said = (await self._run("status", self._settings.status)).strip()
        if said not in (b"on", b"off"):
            found = one_line(said.decode("utf-8", "replace"), 60)
            raise DriverError(f"{self._settings.status[0]}: found {found!r}, expected on or off", retry=False)
        return "on" if said == b"on" else "off"

    async def order(self, order: Order) -> None:
        """Runs the command for it. Raises ``DriverError``."""
        command: Command = getattr(self._settings, order)
        if not command:
            raise DriverError(f"{self.name}: there is no command {order} in the settings", retry=False)
        await self._run(order, command)

    async def set_boot(self, device: BootDevice) -> None:
        """Runs the command ``boot``, if there is one. Raises ``DriverError``."""
        if self._settings.boot:
            await self._run("boot", (*self._settings.boot, device))
        self._device = device

    async def boot_device(self) -> BootDevice | None:
        """What was said last: commands have no way to be asked for it."""
        await trio.lowlevel.checkpoint()
        return self._device

    async def watts(self) -> float:
        """What the command ``meter`` prints, if there is one. Raises ``DriverError``."""
        if not self._settings.meter:
            await trio.lowlevel.checkpoint()
            raise NoMeter(self.name, "there is no command meter in the settings")
        said = (await self._run("meter", self._settings.meter)).strip()
        if _WATTS.fullmatch(said) is None or not float(said):
            found = one_line(said.decode("utf-8", "replace"), 60)
            raise DriverError(f"{self._settings.meter[0]}: found {found!r}, expected watts, more than 0", retry=False)
        return float(said)

    async def _run(self, what: str, command: Command) -> bytes:
        settings = self._settings
        search = os.environ.get("PATH", os.defpath)
        try:
            program = find_executable(command[0], settings.directory, search)
        except ValueError as error:
            raise SiteFaultError(f"{what}: {error}", retry=False) from error
        run = Run(
            command=(str(program), *command[1:]),
            directory=settings.directory,
            environment={"PATH": search},
            given=b"",
            grace=GRACE,
            log=_nowhere,
            what=f"{what}: {command[0]}",
        )
        with trio.move_on_after(settings.answer_timeout / SECOND):
            return await run.output()
        raise DriverError(f"{what}: {command[0]} took longer than {format_duration(settings.answer_timeout)}")


def _nowhere(_: str) -> None:
    """The last line is in the error, where there is one."""
