"""The power of a site's units, beside what leases do with them.

Theory of operation. A unit that a driver can switch is *on* until the site's mapper decides otherwise. Only a unit that
is free, and promised to nobody, is switched off (*stopping*, then *off*) or suspended (*suspending*, then *suspended*).
One that a lease gets while it is not on is promised to the lease and switched on first (*starting*, or *resuming* if it
was suspended); its setup begins when it is on. What was under way towards off is then countermanded. A unit that can't
be switched off is *unknown*, as it may be off all the same; one that can't be switched on goes out of service,
*unknown* too, and its lease gets another. From *unknown* a unit is switched on before anything is set up on it.

Each state in which something is under way stands for one operation of a driver, so that a restart does the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leasekit.core.leases.machine import NONE, Machine

ON: Final = "on"
OFF: Final = "off"
SUSPENDED: Final = "suspended"
STARTING: Final = "starting"
RESUMING: Final = "resuming"
STOPPING: Final = "stopping"
SUSPENDING: Final = "suspending"
UNKNOWN: Final = "unknown"

TABLE: Final = {
    (ON, NONE): {"off": (STOPPING, NONE), "suspend": (SUSPENDING, NONE)},
    (STOPPING, NONE): {"done": (OFF, NONE), "failed": (UNKNOWN, NONE), "on": (STARTING, NONE)},
    (SUSPENDING, NONE): {"done": (SUSPENDED, NONE), "failed": (UNKNOWN, NONE), "on": (STARTING, NONE)},
    (OFF, NONE): {"on": (STARTING, NONE)},
    (SUSPENDED, NONE): {"on": (RESUMING, NONE), "off": (STOPPING, NONE)},
    (STARTING, NONE): {"done": (ON, NONE), "failed": (UNKNOWN, NONE)},
    (RESUMING, NONE): {"done": (ON, NONE), "failed": (UNKNOWN, NONE)},
    (UNKNOWN, NONE): {"on": (STARTING, NONE), "off": (STOPPING, NONE)},
}

MACHINE: Final = Machine("power", TABLE)

POWER_ON: Final = "power_on"
POWER_OFF: Final = "power_off"
SUSPEND: Final = "suspend"
RESUME: Final = "resume"

OPERATION: Final[Mapping[str, str]] = {
    STARTING: POWER_ON,
    RESUMING: RESUME,
    STOPPING: POWER_OFF,
    SUSPENDING: SUSPEND,
}
"""What a driver does in each state in which something is under way."""

OPERATIONS: Final = frozenset(OPERATION.values())

ORDER: Final[Mapping[str, int]] = {
    ON: 0, STARTING: 1, RESUMING: 1, SUSPENDED: 2, SUSPENDING: 3, OFF: 4, STOPPING: 5, UNKNOWN: 6
}  # fmt: skip
"""Which units are best given out, by their power: those that are on first, then those that are on soonest."""


def power_driver(type_: str) -> str:
    """Under which name the driver is known that switches the units of a type: no type can have it."""
    return f"{type_}\0power"
