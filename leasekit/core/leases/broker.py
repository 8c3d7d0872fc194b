"""The broker's side of a lease.

Theory of operation. A request makes the record (*nascent*/*ticketing*), which waits for the mapper until it is
granted, refused, withdrawn or too late. A granted lease (*ticketed*) holds one claim for each term that it was given;
the time that each takes is in the timetable of the delegation it was cut from. Extend and modify requests wait in the
same way, and their refusal changes nothing. The record closes when its last claim's term ends, or when the holder has
given back all of it, which counts only with the site's receipt. A ticket that was not redeemed may be replaced by
another, over another term: what it had beside that stays booked until the site has it back. A lease that was preempted
is under notice (*ticketed*/*noticed*) until it ends early: it goes on by nothing, and what it holds is over at the
notice's end, or as soon as its holder gives it back. It may give units back one by one, by a modify.

The broker settles each request with one numbered update, which is due until the guest acknowledges it; a repeat of a
request is answered from the record, an older one is dropped.
"""

from __future__ import annotations

from typing import Final

from leasekit.core.leases.machine import NONE, Machine

NASCENT: Final = "nascent"
TICKETED: Final = "ticketed"
CLOSED: Final = "closed"
FAILED: Final = "failed"

TICKETING: Final = "ticketing"
EXTENDING_TICKET: Final = "extending_ticket"
MODIFYING: Final = "modifying"
NOTICED: Final = "noticed"

TABLE: Final = {
    (NASCENT, TICKETING): {
        "grant": (TICKETED, NONE),
        "refuse": (FAILED, NONE),
        "withdraw": (CLOSED, NONE),
        "expire": (FAILED, NONE),
    },
    (TICKETED, NONE): {
        "extend": (TICKETED, EXTENDING_TICKET),
        "modify": (TICKETED, MODIFYING),
        "replace": (TICKETED, MODIFYING),
        "preempt": (TICKETED, NOTICED),
        "return": (TICKETED, NONE),
        "returned": (CLOSED, NONE),
        "end": (CLOSED, NONE),
    },
    **{
        (TICKETED, pending): {
            "grant": (TICKETED, NONE),
            "refuse": (TICKETED, NONE),
            "withdraw": (TICKETED, NONE),
            "expire": (TICKETED, NONE),
            "return": (TICKETED, pending),
            "returned": (CLOSED, NONE),
            "end": (CLOSED, NONE),
        }
        for pending in (EXTENDING_TICKET, MODIFYING)
    },
    (TICKETED, NOTICED): {
        **dict.fromkeys(("modify", "grant", "refuse", "withdraw", "expire", "return"), (TICKETED, NOTICED)),
        "returned": (CLOSED, NONE),
        "end": (CLOSED, NONE),
    },
    (CLOSED, NONE): {},
    (FAILED, NONE): {},
}

MACHINE: Final = Machine("broker", TABLE)
OVER: Final = (CLOSED, FAILED)
"""States in which nothing can happen any more."""
