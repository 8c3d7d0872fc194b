"""What drivers that are for guests alone say to a site, and those for sites alone to a guest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import trio

from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.properties import Properties
from leasekit.drivers.names import unknown_operation


class GuestOnly:
    """The half of a :class:`~leasekit.core.drivers.Driver` without use for a guest; ``kind`` is the driver's name."""

    kind: ClassVar[str]
    capabilities: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()

    async def setup(self, unit: UnitContext) -> Properties:
        """Refuses: this is a driver for guests."""
        raise await self._refusal("setup")

    async def teardown(self, unit: UnitContext) -> None:
        """Refuses: this is a driver for guests."""
        raise await self._refusal("teardown")

    async def modify(self, unit: UnitContext) -> Properties:
        """Refuses: this is a driver for guests."""
        raise await self._refusal("modify")

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """Refuses: there are none."""
        await trio.lowlevel.checkpoint()
        raise unknown_operation(self.kind, operation, self.operations)

    async def _refusal(self, operation: str) -> DriverError:
        await trio.lowlevel.checkpoint()
        return DriverError(f"the {self.kind} driver is for guests: it can't {operation} units at a site", retry=False)


class SiteOnly:
    """The half of a :class:`~leasekit.core.drivers.Driver` without use for a site; ``kind`` is the driver's name."""

    kind: ClassVar[str]

    async def join(self, unit: UnitContext) -> Properties:
        """Refuses: this is a driver for sites."""
        raise await self._no_guest("join")

    async def leave(self, unit: UnitContext) -> None:
        """Refuses: this is a driver for sites."""
        raise await self._no_guest("leave")

    async def _no_guest(self, operation: str) -> DriverError:
        await trio.lowlevel.checkpoint()
        text = (
            f"the {self.kind} driver is for sites: it can't {operation} units at a guest, where process or script can"
        )
        return DriverError(text, retry=False)
