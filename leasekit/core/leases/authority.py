"""The site's side of a lease: where units are.

Theory of operation. A redeem with a valid ticket makes the record (*ticketed*/*redeeming*), answered ``accepted`` at
once; its units are counted in the site's calendar from then on. When its term starts the mapper assigns units, each is
set up (*priming*; a unit that is still being torn down for its last holder is waited for), those that fail are replaced
from what is free, so many in a term, and when every unit has settled the lease is *active*. What fails by the lease's
own fault fails the lease; while the site is at fault (:mod:`.outage`) it waits with the units that it has. An extend is
accepted at once and applied at the old end: units that go are torn down, those that stay are not touched, new ones are
set up. A modify is applied at its instant in the same way. A unit that fails while the lease is active is replaced as
if it had failed in its setup. An extend or modify has its own time: it is accepted, and applied, while units are set up
too, and answered when all have settled. A modify is also accepted between an extend and the old end: the extend stands,
and begins with what the modify has made of the lease. The term's end, or a close, tears everything down; the last
update says so.

A unit is held from the start of its setup to the end of its teardown; the lease ends when the teardown *begins* for
those who count time (teardown is charged to the successor), and is ``closed`` when it has ended.

Within one cycle: ends, then shrinking extends, then growing ones, then new redeems.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

TICKETED: Final = "ticketed"
ACTIVE: Final = "active"
CLOSED: Final = "closed"
FAILED: Final = "failed"

REDEEMING: Final = "redeeming"
PRIMING: Final = "priming"
EXTENDING: Final = "extending"
MODIFYING: Final = "modifying"
CLOSING: Final = "closing"

TABLE: Final = {
    (TICKETED, REDEEMING): {
        "assign": (TICKETED, PRIMING),
        "refuse": (FAILED, NONE),
        "close": (CLOSED, NONE),
        "end": (CLOSED, NONE),
    },
    (TICKETED, PRIMING): {
        "primed": (ACTIVE, NONE),
        "fail": (FAILED, NONE),
        "close": (TICKETED, CLOSING),
        "end": (TICKETED, CLOSING),
    },
    (TICKETED, CLOSING): {
        "down": (CLOSED, NONE),
        "close": (TICKETED, CLOSING),
    },
    (ACTIVE, NONE): {
        "extend": (ACTIVE, EXTENDING),
        "modify": (ACTIVE, MODIFYING),
        "replace": (ACTIVE, PRIMING),
        "close": (ACTIVE, CLOSING),
        "end": (ACTIVE, CLOSING),
    },
    (ACTIVE, EXTENDING): {
        "modify": (ACTIVE, MODIFYING),
        "apply": (ACTIVE, PRIMING),
        "replace": (ACTIVE, PRIMING),
        "withdraw": (ACTIVE, NONE),
        "close": (ACTIVE, CLOSING),
        "end": (ACTIVE, CLOSING),
    },
    (ACTIVE, MODIFYING): {
        "apply": (ACTIVE, PRIMING),
        "replace": (ACTIVE, PRIMING),
        "close": (ACTIVE, CLOSING),
        "end": (ACTIVE, CLOSING),
    },
    (ACTIVE, PRIMING): {
        "extend": (ACTIVE, PRIMING),
        "modify": (ACTIVE, PRIMING),
        "apply": (ACTIVE, PRIMING),
        "primed": (ACTIVE, NONE),
        "close": (ACTIVE, CLOSING),
        "end": (ACTIVE, CLOSING),
    },
    (ACTIVE, CLOSING): {
        "down": (CLOSED, NONE),
        "close": (ACTIVE, CLOSING),
    },
    (CLOSED, NONE): {},
    (FAILED, NONE): {},
}

MACHINE: Final = Machine("authority", TABLE)

# -- units: a small machine of their own ---------------------------------------------------------------------------

FREE: Final = "free"
SETUP: Final = "setup"
UP: Final = "active"
CHANGE: Final = "modify"
TEARDOWN: Final = "teardown"
OUT: Final = "out"

UNIT_TABLE: Final = {
    (FREE, NONE): {"setup": (SETUP, NONE), "out": (OUT, NONE)},
    (SETUP, NONE): {"up": (UP, NONE), "failed": (TEARDOWN, NONE), "teardown": (TEARDOWN, NONE)},
    (UP, NONE): {"modify": (CHANGE, NONE), "failed": (TEARDOWN, NONE), "teardown": (TEARDOWN, NONE)},
    (CHANGE, NONE): {"up": (UP, NONE), "teardown": (TEARDOWN, NONE)},
    (TEARDOWN, NONE): {"down": (FREE, NONE), "setup": (SETUP, NONE), "out": (OUT, NONE)},
    (OUT, NONE): {"back": (FREE, NONE), "teardown": (TEARDOWN, NONE)},
}

UNIT_MACHINE: Final = Machine("unit", UNIT_TABLE)
OPERATION: Final = {SETUP: "setup", CHANGE: "modify", TEARDOWN: "teardown"}
"""What a driver does in each state in which something is under way."""
IN_USE: Final = (SETUP, UP, CHANGE)
"""States of a unit that its lease has, or is about to have."""
USABLE: Final = (UP, CHANGE)
"""States of a unit that its lease has."""
SETTLING: Final = (SETUP, CHANGE)
"""States of a unit that is to be up."""

# -- claims: no machine, as it is others who make and use them ------------------------------------------------------

REDEEMED: Final = "redeemed"
VOID: Final = "void"
SEEN: Final = "seen"
HEARD: Final = "heard"
