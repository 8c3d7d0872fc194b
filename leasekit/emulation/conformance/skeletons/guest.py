"""A guest's mapper: keeps one lease of so many units, and renews it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, RequestLease, Wake
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, MINUTE, Term

SLICE = "skeleton"


@attrs.frozen(kw_only=True)
class SkeletonSettings:
    """What a deploy file may say in the mapper's table, beside its name."""

    type: str = "vm"
    """The resource type of the units."""
    units: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """How many units."""
    term: DurationSetting = 2 * HOUR
    """How long the lease is, and each renewal."""
    ahead: DurationSetting = 10 * MINUTE
    """How long before its end it is renewed."""
    retry: DurationSetting = 5 * MINUTE
    """When to ask again after a refusal."""


class Skeleton:
    """Called at first, and whenever it asked to be with a Wake; keeps nothing from turn to turn."""

    Settings: ClassVar[type[SkeletonSettings]] = SkeletonSettings
    inline: ClassVar[bool] = True  # it is quick: an emulation need not copy what it shows it

    def __init__(self, settings: SkeletonSettings | None = None) -> None:
        self.settings = settings or SkeletonSettings()

    def plan(self, cycle: GuestCycle) -> Iterator[GuestDecision]:
        """Ask if there is no lease, renew it in time, and look again."""
        settings, now = self.settings, cycle.now
        mine = [lease for lease in cycle.leases if lease.slice == SLICE and not lease.closing]
        if not mine:
            yield RequestLease(settings.type, settings.units, Term(now, now + settings.term), slice=SLICE)
        for lease in mine:
            if lease.state == "active" and lease.pending == "-" and lease.term.end - settings.ahead <= now:
                yield ExtendLease(lease.id, lease.term.end + settings.term)
        yield Wake(now + settings.retry)
