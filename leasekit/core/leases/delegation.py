"""A delegation from site to broker, on both sides.

Theory of operation. The site signs a root claim for part of its inventory and offers it (*offering*); the broker
answers that it has taken it (*held*) or why not (*refused*). It ends with its term. The same table serves the giver
and the taker: the taker's record begins *held*.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

OFFERING: Final = "offering"
HELD: Final = "held"
REFUSED: Final = "refused"
ENDED: Final = "ended"

TABLE: Final = {
    (OFFERING, NONE): {"taken": (HELD, NONE), "refused": (REFUSED, NONE), "end": (ENDED, NONE)},
    (HELD, NONE): {"end": (ENDED, NONE)},
    (REFUSED, NONE): {},
    (ENDED, NONE): {},
}

MACHINE: Final = Machine("delegation", TABLE)
