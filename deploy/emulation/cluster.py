"""A guest's mapper in a file of its own: Shirako's section 5.1, one virtual cluster as a lease group.

It asks once for a lease of workers and one of a coordinator, which joins when all workers have joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import attrs

from leasekit.core.mappers import GuestCycle, GuestDecision, RequestLease
from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, Term


@attrs.frozen(kw_only=True)
class ClusterSettings:
    """What ``[actor.NAME.mapper]`` may hold beside the mapper's name."""

    type: str
    workers: int = attrs.field(validator=attrs.validators.ge(1))
    term: DurationSetting = attrs.field(validator=attrs.validators.ge(1))
    lead: DurationSetting = attrs.field(default=1 * MINUTE, validator=attrs.validators.ge(1))
    """How long before the term it asks."""


class Cluster:
    """Asks for workers, and for a coordinator that joins after them."""

    Settings: ClassVar[type] = ClusterSettings
    inline = True

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._asked = False

    def plan(self, cycle: GuestCycle) -> Iterable[GuestDecision]:
        """Both requests, once."""
        if self._asked:
            return
        self._asked = True
        settings = self._settings
        start = cycle.now + settings.lead
        term = Term(start, start + settings.term)
        yield RequestLease(settings.type, settings.workers, term, name="workers")
        yield RequestLease(settings.type, 1, term, name="coordinator", join_predecessor="workers")
