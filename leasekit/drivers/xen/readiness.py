"""Waiting until a guest is up: by its console or its ssh server; or knowing early that it won't be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.readiness import console_lines, ssh_missing
from leasekit.drivers.names import bare
from leasekit.drivers.xen.place import XenPlace
from leasekit.drivers.xen.record import XenRecord
from leasekit.drivers.xen.remote import XenHostLostError

PAUSE: Final = 0.3
"""Seconds between looks: `xl` has no events that come through ssh."""
LOOK: Final = 3.0
"""Seconds between looks at the domain, where the guest itself is looked at too."""
CONSOLE_MAX: Final = 128 * 1024
"""How much of a console's end is read, in bytes."""


@attrs.frozen(kw_only=True)
class XenWaiting:
    """One wait for one unit's guest."""

    place: XenPlace
    plan: UnitPlan
    record: XenRecord
    timeout: Duration
    log: Callable[[str], None]

    async def until_ready(self) -> None:
        """Returns when the guest is up. Raises ``DriverError`` if it ends before that, or takes too long."""
        if self.plan.image.ready == "running":
            await self._look()
            return
        check = {"console": self._on_console, "ssh": self._by_ssh}[self.plan.image.ready]
        missing, looked = "nothing was heard of it", trio.current_time()
        with trio.move_on_after(self.timeout / SECOND):
            while True:
                try:
                    missing = await check()
                    if not missing:
                        break
                    if trio.current_time() >= looked + LOOK:
                        looked = trio.current_time()
                        await self._look()
                except XenHostLostError as error:
                    # The guest goes on without its control domain's ssh server, which will be back or time runs out.
                    missing = str(error)
                await trio.sleep(PAUSE)
        said = await self._log_console()
        if missing:
            text = f"the guest was not up within {format_duration(self.timeout)}: {missing}"
            raise DriverError(text + said)

    async def _look(self) -> None:
        """Raises ``DriverError`` when the domain runs no more."""
        state = await self.place.find(self.plan.unit)
        if not state.running:
            said = await self._log_console()
            raise DriverError(f"the guest was not up when its domain was {state.why}{said}")

    async def _log_console(self) -> str:
        """The guest's last line, in words, if there is one; all go to the unit's log."""
        with trio.CancelScope(shield=True):
            try:
                lines = console_lines(await self.place.console(self.plan.unit, CONSOLE_MAX))
            except DriverError as error:
                self.log(f"its console can't be read: {error}")
                return ""
        for line in lines:
            self.log(f"console: {line}")
        return f"; the last line on its console: {lines[-1]}" if lines else ""

    # Each of these says what is missing yet, and nothing when the guest is up.

    async def _on_console(self) -> str:
        found = self.plan.image.marker.encode() in await self.place.console(self.plan.unit, CONSOLE_MAX)
        return "" if found else f"{self.plan.image.marker!r} is not on its console"

    async def _by_ssh(self) -> str:
        if not self.record.addresses:
            raise DriverError("the unit has no address to reach its ssh server at", retry=False)
        return await ssh_missing(bare(self.record.addresses[0]), self.record.host_key)
