"""What a site keeps of the units of a suspended lease.

Theory of operation. When a suspended lease ends, each of its units that is up is saved by its teardown (*saving*). What
its driver has kept is *saved*, apart from the unit, and waits for the lease that resumes the suspended one: a setup of
that lease has *claimed* it while it goes on from it, and once that is up nothing is left to be kept (*gone*). A setup
that failed, or was stopped, gives it back; after so many that failed it is not worth another. What nobody has claimed
by its time, or what is worth nothing any more, is *dropping* until the driver has thrown it away.

*saving*, *claimed* and *dropping* each stand for an action of a driver, so that a restart does the same again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar, Final

import attrs

from leasekit.core.leases.machine import NONE, Machine, StateIn
from leasekit.core.leases.records import KeptRecord, volatile
from leasekit.core.reasons import Reason
from leasekit.core.time import Instant

RESUMES: Final = "resume"
"""The configuration property that names the suspended lease from whose units a lease goes on."""

SAVING: Final = "saving"
SAVED: Final = "saved"
CLAIMED: Final = "claimed"
DROPPING: Final = "dropping"
GONE: Final = "gone"

TABLE: Final = {
    (SAVING, NONE): {"saved": (SAVED, NONE), "failed": (GONE, NONE)},
    (SAVED, NONE): {"claim": (CLAIMED, NONE), "expire": (DROPPING, NONE)},
    (CLAIMED, NONE): {"used": (GONE, NONE), "release": (SAVED, NONE), "spoilt": (DROPPING, NONE)},
    (DROPPING, NONE): {"dropped": (GONE, NONE), "failed": (SAVED, NONE)},
    (GONE, NONE): {},
}

MACHINE: Final = Machine("saved", TABLE)


@attrs.define(slots=True, eq=False)
class SavedUnit(KeptRecord):
    """What is kept of one ``unit`` of ``lease``, for its ``holder``, who had the key ``holder_key``, until ``until``.

    ``by`` is the unit that goes on from it now, or last tried to; ``tries`` is how many such setups failed;
    ``action`` is the number of the action that throws it away.
    """

    id: str
    lease: str
    unit: str
    holder: str
    type: str
    until: Instant
    state: str = SAVING
    pending: str = volatile(NONE)
    by: str = ""
    tries: int = 0
    action: int = 0
    holder_key: bytes = b""
    reason: Reason | None = volatile()

    machine = MACHINE
    table: ClassVar[str] = "saved"
    is_being_saved = StateIn(SAVING)
    is_saved = StateIn(SAVED)
    is_claimed = StateIn(CLAIMED)
    is_dropped = StateIn(DROPPING)
    is_busy = StateIn(SAVING, CLAIMED)


def saved_key(lease: str, unit: str) -> str:
    """The key under which a driver keeps a unit of a lease: fit to be the name of a file or a domain."""
    return f"saved-{blake2b(f'{lease}/{unit}'.encode(), digest_size=16).hexdigest()}"
