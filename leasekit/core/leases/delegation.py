"""A delegation from site to broker or from broker to broker, on both sides.

Theory of operation. The giver cuts a claim from what it has (a site: a root claim) and offers it (*offering*); the
taker answers that it has taken it (*held*) or why not (*refused*). It ends with its term. The giver may take it back
from an instant on (*reclaiming* until the taker has heard of it, then *reclaimed*): what is granted from then on ends
by that instant, leases that exist run out or end by a deadline. The same table serves both: the taker's record begins
*held*, and goes straight to *reclaimed*.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

OFFERING: Final = "offering"
HELD: Final = "held"
REFUSED: Final = "refused"
RECLAIMING: Final = "reclaiming"
RECLAIMED: Final = "reclaimed"
ENDED: Final = "ended"

TABLE: Final = {
    (OFFERING, NONE): {
        "taken": (HELD, NONE),
        "refused": (REFUSED, NONE),
        "reclaim": (RECLAIMING, NONE),
        "end": (ENDED, NONE),
    },
    (HELD, NONE): {"reclaim": (RECLAIMING, NONE), "let_go": (RECLAIMED, NONE), "end": (ENDED, NONE)},
    (REFUSED, NONE): {},
    (RECLAIMING, NONE): {"let_go": (RECLAIMED, NONE), "end": (ENDED, NONE)},
    (RECLAIMED, NONE): {"end": (ENDED, NONE)},
    (ENDED, NONE): {},
}

MACHINE: Final = Machine("delegation", TABLE)
