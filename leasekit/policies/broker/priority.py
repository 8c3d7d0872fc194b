"""Class before all: deferrable requests wait in line by class, and within a class in the order of a setting.

Who waits can be overtaken by a higher class until it starts. ``aging`` keeps lower classes from starving: with each
such time that a request has waited it counts as one class higher.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import attrs

from leasekit.core.mappers import PendingRequest
from leasekit.core.settings import DurationSetting
from leasekit.policies.broker.backfill import WaitingMapper, WaitingSettings
from leasekit.policies.broker.line import Key
from leasekit.policies.broker.waiting import ByArrival

Within = Literal["arrival", "shortest", "smallest", "largest"]


@attrs.frozen(kw_only=True)
class PrioritySettings(WaitingSettings):
    """Settings of :class:`Priority`."""

    order: Within = attrs.field(default="arrival", validator=attrs.validators.in_(get_args(Within)))
    """The order within a class: first come, the shortest term, the fewest units, or the most units first."""
    aging: DurationSetting = 0
    """After how long a wait a request counts as one class higher, and as one more after that again; 0: never. Goes with
    ``order = "arrival"``."""

    def __attrs_post_init__(self) -> None:
        if self.aging and self.order != "arrival":
            raise ValueError(f"aging: goes with order = 'arrival', not {self.order!r}")


class Priority(WaitingMapper):
    """A line in order of class."""

    Settings: ClassVar[type[PrioritySettings]] = PrioritySettings

    def __init__(self, settings: PrioritySettings | None = None) -> None:
        self.settings = settings or PrioritySettings()
        super().__init__(self.settings, _ByClass(self.settings))


class _ByClass(ByArrival):
    """One lane, by class."""

    def __init__(self, settings: PrioritySettings) -> None:
        self._within = settings.order
        self._aging = settings.aging

    def key(self, request: PendingRequest) -> Key:
        """Class, and what goes within it. A class for each ``aging`` waited is as if it had come that much earlier."""
        if self._aging:
            return (request.arrived - request.priority * self._aging, request.arrived)
        first = {
            "arrival": 0,
            "shortest": request.term.length,
            "smallest": request.units,
            "largest": -request.units,
        }[self._within]
        return -request.priority, first, request.arrived
