"""How the units of a guest's lease become members of its application, and leave it.

Theory of operation. A lease may have to wait for another one before its ticket is redeemed (*blocked_redeem*), or
before its units join (*blocked_join*). Then its units join (*joining*), each by an action of the guest's driver, until
all have ended, well or not (*joined*); units that the site adds later join likewise. Before the lease is closed all
units leave (*leaving*).

A unit waits (*waiting*) until its lease joins. A join that fails leaves the unit in the lease, marked (*failed*). A
unit that left may be given anew; one that the site has spared while it was leaving joins again (*spared*).
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

NOT_JOINED: Final = "-"
BLOCKED_REDEEM: Final = "blocked_redeem"
BLOCKED_JOIN: Final = "blocked_join"
JOINING: Final = "joining"
JOINED: Final = "joined"
LEAVING: Final = "leaving"

TABLE: Final = {
    (NOT_JOINED, NONE): {
        "block_redeem": (BLOCKED_REDEEM, NONE),
        "unblock": (NOT_JOINED, NONE),
        "block_join": (BLOCKED_JOIN, NONE),
        "join": (JOINING, NONE),
        "leave": (LEAVING, NONE),
        "over": (NOT_JOINED, NONE),
    },
    (BLOCKED_REDEEM, NONE): {
        "unblock": (NOT_JOINED, NONE),
        "over": (NOT_JOINED, NONE),
    },
    (BLOCKED_JOIN, NONE): {
        "block_join": (BLOCKED_JOIN, NONE),
        "join": (JOINING, NONE),
        "leave": (LEAVING, NONE),
        "over": (NOT_JOINED, NONE),
    },
    (JOINING, NONE): {
        "join": (JOINING, NONE),
        "joined": (JOINED, NONE),
        "leave": (LEAVING, NONE),
        "over": (NOT_JOINED, NONE),
    },
    (JOINED, NONE): {
        "join": (JOINING, NONE),
        "leave": (LEAVING, NONE),
        "over": (NOT_JOINED, NONE),
    },
    (LEAVING, NONE): {
        "over": (NOT_JOINED, NONE),
    },
}
MACHINE: Final = Machine("membership of a lease", TABLE)

WAITING: Final = "waiting"
LEFT: Final = "left"
FAILED: Final = "failed"

UNIT_TABLE: Final = {
    (WAITING, NONE): {"join": (JOINING, NONE), "leave": (LEFT, NONE)},
    (JOINING, NONE): {"joined": (JOINED, NONE), "failed": (FAILED, NONE), "leave": (LEAVING, NONE)},
    (JOINED, NONE): {"leave": (LEAVING, NONE)},
    (FAILED, NONE): {"leave": (LEAVING, NONE)},
    (LEAVING, NONE): {"left": (LEFT, NONE), "spared": (WAITING, NONE)},
    (LEFT, NONE): {"given": (WAITING, NONE)},
}
UNIT_MACHINE: Final = Machine("membership of a unit", UNIT_TABLE)
BUSY: Final = (JOINING, LEAVING)
"""States of a unit in which its driver is at work."""
GOING: Final = (LEAVING, LEFT)
"""States of a unit that its lease is rid of, or is to be."""
