"""A broker's mapper: each request as early as it fits, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from leasekit.core.fitting import fit, fit_group
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Reject
from leasekit.core.settings import DurationSetting
from leasekit.core.time import DAY, format_duration


@attrs.frozen(kw_only=True)
class SkeletonSettings:
    """What a deploy file may say in the mapper's table, beside its name."""

    longest: DurationSetting = 365 * DAY
    """The longest term that is granted."""


class Skeleton:
    """Called whenever something has changed; keeps nothing from turn to turn."""

    Settings: ClassVar[type[SkeletonSettings]] = SkeletonSettings
    inline: ClassVar[bool] = True  # it is quick: an emulation need not copy what it shows it

    def __init__(self, settings: SkeletonSettings | None = None) -> None:
        self.settings = settings or SkeletonSettings()

    def allocate(self, cycle: BrokerCycle) -> Iterator[BrokerDecision]:
        """One decision for each request, and for each group."""
        for request in cycle.requests:
            if request.term.length > self.settings.longest:
                yield Reject(request.lease, f"terms are at most {format_duration(self.settings.longest)} here")
            else:
                yield fit(cycle, request)
        for group in cycle.groups:
            yield fit_group(cycle, group)
