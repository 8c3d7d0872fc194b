"""What keeps a site from setting up units for a lease: its directory is down, its image server, its pool is full.

Theory of operation. A setup that fails by the site's fault is held against no unit: from then on none is set up for
that lease (*stopped*), and it waits with the units that it was given. After a while one of these is set up, to see
whether that is mended (*trying*). If it fails in the same way, the next try is later; if it fails by a fault of its
own, or its lease gives it up, that is unclear, and another one is tried at once. One that comes up ends it
(*over*), and all that wait are set up; other leases with units of the type try at once. It is over as well when its
lease has ended, or wants none of those units any more.

Leases don't stop each other, since it may be but one's choice (one image of several) that is broken.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from leasekit.core.leases.machine import NONE, Machine, StateIn
from leasekit.core.leases.records import KeptRecord, SiteUnit, volatile
from leasekit.core.reasons import Reason
from leasekit.core.time import Instant

STOPPED: Final = "stopped"
TRYING: Final = "trying"
OVER: Final = "over"

TABLE: Final = {
    (STOPPED, NONE): {"try": (TRYING, NONE), "gone": (OVER, NONE)},
    (TRYING, NONE): {"failed": (STOPPED, NONE), "unclear": (STOPPED, NONE), "mended": (OVER, NONE)},
    (OVER, NONE): {},
}

MACHINE: Final = Machine("outage", TABLE)


@attrs.define(slots=True, eq=False)
class Outage(KeptRecord):
    """Units of a type can't be set up for a lease (its ``id`` is ``TYPE/LEASE``) for ``reason``, which began at
    ``since``; ``again`` is when it is tried next, ``tries`` how often it was, and ``unit`` the one by which it is
    tried, or was last. ``waiting`` are units that were held up (some may be free again), the longest first; it is not
    kept.
    """

    id: str
    reason: Reason
    since: Instant
    again: Instant
    tries: int = 0
    unit: str = ""
    state: str = STOPPED
    pending: str = volatile(NONE)
    waiting: dict[str, SiteUnit] = volatile(factory=dict)

    machine = MACHINE
    table: ClassVar[str] = "outages"
    is_stopped = StateIn(STOPPED)
    is_tried = StateIn(TRYING)

    @property
    def type(self) -> str:
        """The type of the units."""
        return self.id.rpartition("/")[0]

    @property
    def lease(self) -> str:
        """The lease that waits for them."""
        return self.id.rpartition("/")[2]

    def holds_up(self, unit: SiteUnit) -> bool:
        """Whether a unit waits for its setup. One that is being switched off meanwhile is to come on all the same."""
        return unit.promised == self.lease and unit.is_free
