"""What a resource driver is. Drivers touch the world; the core only says what it wants done.

All methods are idempotent (the same action number may come twice, after a restart), cancellable, and free
to take hours. The runtime gives each a timeout, retries with backoff, a bound on how many run at once and a log per
unit; what a driver raises becomes the unit's reason. An authority uses ``setup``, ``teardown`` and ``modify``,
a guest ``join`` and ``leave``; ``probe`` serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.properties import Properties


class DriverError(LeasekitError):
    """An action failed; the text is the unit's reason.

    ``retry`` says whether doing it again may help: a wrong image checksum does not get better, a timeout may.
    """

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


@attrs.frozen(kw_only=True)
class UnitContext:
    """What a driver is told. ``properties`` holds unit, resource and configuration properties, ``lease.*`` and
    ``slice.*``.

    ``number`` is the action's, the same when an action is done again after a restart; ``log`` writes a line to the
    unit's log.
    """

    unit: str
    type: str
    lease: str
    op: str
    number: int
    properties: Properties
    log: Callable[[str], None]


@attrs.frozen(kw_only=True)
class ProbeResult:
    """``state`` is ``up``, ``down`` or ``unknown``; ``detail`` says more in words; ``measured`` what was measured."""

    state: str
    detail: str = ""
    measured: Mapping[str, float] = attrs.Factory(dict)


class Driver(Protocol):
    """One instance serves all units of a resource type at one actor."""

    capabilities: frozenset[str]
    """Of ``cap``, ``resize``, ``migrate``, ``suspend``, ``power``, ``image``: what :meth:`operate` and ``modify`` can
    do.
    """

    operations: frozenset[str]
    """What :meth:`operate` can be asked for: ``restart``, ``reboot``, ``console``, ..."""

    async def setup(self, unit: UnitContext) -> Properties:
        """Make the unit usable; returns its properties (name, addresses, ports). Raises ``DriverError``."""
        ...

    async def teardown(self, unit: UnitContext) -> None:
        """Take the unit away, and all that setup made. A unit that is not there is done. Raises ``DriverError``."""
        ...

    async def modify(self, unit: UnitContext) -> Properties:
        """Bring a running unit to the properties given; returns unit properties as they are now. Raises
        ``DriverError``.
        """
        ...

    async def join(self, unit: UnitContext) -> Properties:
        """Guest side: take the unit into the guest's application. Raises ``DriverError``."""
        ...

    async def leave(self, unit: UnitContext) -> None:
        """Guest side: take the unit out again. Raises ``DriverError``."""
        ...

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """How the unit is. Raises ``DriverError`` only when that can't be found out."""
        ...

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """An operator's action on a live unit (``reboot``, ``console``); the driver's ``operations`` say which.
        Raises ``DriverError``.
        """
        ...
