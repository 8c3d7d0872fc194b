"""A delegation from site to broker or from broker to broker, on both sides.

Theory of operation. The issuer cuts a claim from what it has (a site: a root claim) and offers it (*offering*); the
holder answers that it has taken it (*held*) or why not (*refused*). It ends with its term. The issuer may take it back
from an instant on (*reclaiming* until the holder has heard of it, then *reclaimed*): what is granted from then on ends
by that instant, leases that exist run out or end by a deadline. The same table serves both: the holder's record begins
*held*, and goes straight to *reclaimed*.

What is held may grow and shrink: the issuer offers another claim over the time of the first. As soon as that is taken
the first is *replaced*: nothing more is granted of it, what was granted goes on, and counts in what the new one has to
give. It ends when the last of that does.

An issuer that lost its store offers anew what its holder holds already. The holder shows what it holds in its answer,
and the issuer takes that up again, as its own signature is on it. A holder's operator may let go of what is held, where
the issuer is gone for good: it is *reclaimed* then, without the issuer's word, and offered anew when the issuer is
back.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

OFFERING: Final = "offering"
HELD: Final = "held"
REPLACED: Final = "replaced"
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
    (HELD, NONE): {
        "replace": (REPLACED, NONE),
        "reclaim": (RECLAIMING, NONE),
        "let_go": (RECLAIMED, NONE),
        "end": (ENDED, NONE),
    },
    (REPLACED, NONE): {"reclaim": (RECLAIMING, NONE), "let_go": (RECLAIMED, NONE), "end": (ENDED, NONE)},
    (REFUSED, NONE): {},
    (RECLAIMING, NONE): {"let_go": (RECLAIMED, NONE), "end": (ENDED, NONE)},
    (RECLAIMED, NONE): {"replace": (RECLAIMED, NONE), "end": (ENDED, NONE)},
    (ENDED, NONE): {},
}

MACHINE: Final = Machine("delegation", TABLE)
CURRENT: Final = frozenset({OFFERING, HELD})
"""States of what its holder has, or is to have."""
TAKEN_BACK: Final = frozenset({RECLAIMING, RECLAIMED})
"""States of what its issuer has taken back, from some instant on."""
UNANSWERED: Final = frozenset({OFFERING, RECLAIMING})
"""States in which its holder has to answer."""
USED: Final = frozenset({OFFERING, HELD, RECLAIMING})
"""States of what counts as given."""
OVER: Final = frozenset({REFUSED, ENDED})
"""States of what its holder has not, and will not have."""
