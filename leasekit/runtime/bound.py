"""What the shell is told about a driver. How an actor is run is :class:`leasekit.config.shell.ShellSettings`."""

from __future__ import annotations

from typing import Protocol

import attrs

from leasekit.core.drivers import Driver
from leasekit.core.time import HOUR, MINUTE, Duration


class BoundDriver(Protocol):
    """A driver and the limits under which its actions run, as a deploy file sets them."""

    @property
    def name(self) -> str:
        """What the deploy file calls it."""
        ...

    @property
    def driver(self) -> Driver: ...

    @property
    def timeout(self) -> Duration:
        """How long one try of an action may take, in milliseconds."""
        ...

    @property
    def retries(self) -> int:
        """How often a failed action is tried again."""
        ...

    @property
    def teardown_for(self) -> Duration:
        """For how long a failed teardown is tried again at least, in milliseconds; 0: as often as any other action."""
        ...

    @property
    def concurrency(self) -> int:
        """How many actions run at once."""
        ...

    @property
    def probe_every(self) -> Duration:
        """How often units that are up are looked at, in milliseconds; 0: never."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class LimitedDriver:
    """The plain :class:`BoundDriver`."""

    driver: Driver
    name: str = "driver"
    timeout: Duration = 10 * MINUTE
    retries: int = 3
    teardown_for: Duration = 1 * HOUR
    concurrency: int = 16
    probe_every: Duration = 0
