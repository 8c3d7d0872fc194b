"""No mapper at all: a guest whose operator asks for every lease with the CLI."""

from __future__ import annotations

from typing import ClassVar

import attrs

from leasekit.core.mappers import GuestCycle, GuestDecision


@attrs.frozen(kw_only=True)
class ManualSettings:
    """Settings of :class:`Manual`: there are none."""


class Manual:
    """Decides nothing, and never wants to be called again."""

    Settings: ClassVar[type[ManualSettings]] = ManualSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: ManualSettings | None = None) -> None:
        self.settings = settings or ManualSettings()

    def plan(self, cycle: GuestCycle) -> tuple[GuestDecision, ...]:
        """Nothing."""
        return ()
