"""The records of planned topologies: what a broker holds for a plan, and what a guest makes of one.

As in :mod:`.records`, a row's ``body`` holds what its columns don't.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from leasekit.core.leases.machine import NONE, Machine, StateIn
from leasekit.core.leases.records import KeptRecord, SentRecord, volatile
from leasekit.core.protocol.messages import PlanPart
from leasekit.core.reasons import Reason
from leasekit.core.time import Instant, Term

HOLD: Final = "hold"
"""The request property that names what a broker holds for a request: ``PLAN/PART``."""

HOLDING: Final = "promising"
"""Other brokers are asked to hold their parts."""
HELD: Final = "promised"
USED: Final = "used"
"""Its parts were granted: nothing is held any more, only the answer is kept for repeats."""
GONE: Final = "gone"

ASKING: Final = "asking"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
FAILED: Final = "failed"
CLOSED: Final = "closed"

HOLD_TABLE: Final = {
    (HOLDING, NONE): {"promise": (HELD, NONE), "let_go": (GONE, NONE)},
    (HELD, NONE): {"use": (USED, NONE), "let_go": (GONE, NONE)},
    (USED, NONE): {},
    (GONE, NONE): {},
}
HOLD_MACHINE: Final = Machine("hold", HOLD_TABLE)

TOPOLOGY_TABLE: Final = {
    (ASKING, NONE): {
        "decide": (COMMITTING, NONE),
        "refuse": (FAILED, NONE),
        "give_up": (CLOSED, NONE),
    },
    (COMMITTING, NONE): {
        "commit": (COMMITTED, NONE),
        "plan_again": (ASKING, NONE),
        "abandon": (FAILED, NONE),
        "give_up": (CLOSED, NONE),
    },
    (COMMITTED, NONE): {"over": (CLOSED, NONE)},
    (FAILED, NONE): {},
    (CLOSED, NONE): {},
}
TOPOLOGY_MACHINE: Final = Machine("topology", TOPOLOGY_TABLE)


@attrs.define(slots=True, eq=False)
class PlanHold(KeptRecord):
    """What a broker holds until ``expires`` for requests of the guest whose key is ``holder``.

    ``peer`` asked for it, under the name ``query`` (empty: a broker, by the plan's). ``parts`` are those that are held
    here; ``answer`` is the encoded answer, the same for each repeat; ``others`` are brokers that hold parts as well.
    """

    id: str
    peer: str
    query: str
    holder: bytes
    term: Term
    parts: tuple[PlanPart, ...]
    expires: Instant
    state: str = HELD
    answer: bytes = b""
    others: tuple[str, ...] = ()
    pending: str = volatile(NONE)

    machine = HOLD_MACHINE
    table: ClassVar[str] = "plans"
    awaits_others = StateIn(HOLDING)
    is_held = StateIn(HELD)
    is_used = StateIn(USED)


@attrs.define(slots=True, eq=False)
class Topology(SentRecord):
    """A guest's request for a topology. Its ``state`` is

    - ``asking``: the broker plans, under the query ``query``, until ``deadline``;
    - ``committing``: it was decided to lease ``parts`` of ``plan``, one lease each (``leases``, by part); none of them
      is redeemed before all have their tickets;
    - ``committed``: all have; from now on the leases are like any other;
    - ``failed``, ``closed``: ``reason`` says why, ``earliest`` when it would fit (-1: not known).

    ``left`` is how many more plans are tried when one comes to nothing.
    """

    id: str
    broker: str
    request: bytes
    left: int
    state: str = ASKING
    query: str = ""
    number: int = 0
    plan: str = ""
    term: Term | None = None
    parts: tuple[PlanPart, ...] = ()
    leases: dict[str, str] = attrs.Factory(dict)
    objective: str = ""
    gap: str = ""
    expires: Instant = -1
    deadline: Instant = 0
    reason: Reason | None = None
    earliest: Instant = -1
    ended: Instant = -1

    machine = TOPOLOGY_MACHINE
    table: ClassVar[str] = "plans"
    awaits_plan = StateIn(ASKING)
    awaits_tickets = StateIn(COMMITTING)
    is_leased = StateIn(COMMITTED)
    is_under_way = StateIn(ASKING, COMMITTING)
    has_leases = StateIn(COMMITTING, COMMITTED)
    is_over = StateIn(FAILED, CLOSED)
    columns: ClassVar = {"peer": "broker"}
