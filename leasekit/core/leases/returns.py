"""Giving back what is left of a ticket: a small machine of the guest's, one record for each claim that goes back.

Theory of operation. Units go back to the issuer only with the site's receipt, so that nobody can give them away
twice: the holder's relinquishment goes to the site (*relinquishing*), which marks the claim void and countersigns;
the receipt goes to the broker (*returning*), which acknowledges. A lease that was closed at its site brings the
receipt along and starts at *returning*. A return that is still unanswered when the claim's term ends is pointless and
ends by itself.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

RELINQUISHING: Final = "relinquishing"
RETURNING: Final = "returning"
DONE: Final = "done"

TABLE: Final = {
    (RELINQUISHING, NONE): {"receipt": (RETURNING, NONE), "refused": (DONE, NONE), "end": (DONE, NONE)},
    (RETURNING, NONE): {"accepted": (DONE, NONE), "refused": (DONE, NONE), "end": (DONE, NONE)},
    (DONE, NONE): {},
}

MACHINE: Final = Machine("return", TABLE)
