"""What a workload runs on: how many units, and how long it takes to suspend one."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from leasekit.core.time import SECOND, Duration


@attrs.frozen(kw_only=True)
class Saving:
    """What it takes to suspend work, and to resume it: the memory of a unit (MB) over the rate (MB/s) at which it is
    written and read. All units of a lease are saved at the same time.
    """

    memory: float = attrs.field(default=1024.0, validator=attrs.validators.gt(0))
    rate: float = attrs.field(default=32.0, validator=attrs.validators.gt(0))

    @property
    def time(self) -> Duration:
        """Milliseconds, at least 1."""
        return max(1, round(self.memory / self.rate * SECOND))


class Pool(NamedTuple):
    """What a workload runs on: how many units, and how long it takes to suspend one."""

    units: int
    saving: Saving = Saving()
