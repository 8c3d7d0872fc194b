"""Names of all that a campaign of runs must have met: each row of each table, each fault, each kind of message.

A simulation that never loses a frame proves nothing about lost frames: so what was met is counted by name, and a
campaign that is long enough fails if a name was never met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from leasekit.core.leases import authority, power
from leasekit.core.protocol.codec import KINDS
from leasekit_simulation.faults.checkers import StateChecker
from leasekit_simulation.faults.liars import ANY, LIES
from leasekit_simulation.faults.run import transition

ENOUGH: Final = 300
"""From how many seeds on every mark but the rare ones must have been met."""
ENOUGH_FOR_RARE: Final = 5000
"""From how many seeds on the rare ones must have been met as well."""

FAULTS: Final[Sequence[str]] = (
    "network: lose", "network: repeat", "network: late", "network: reorder", "lost in a cut", "slowed down",
    "operation: cut_pair", "operation: cut_side",
    "crash before commit", "crash before send", "crash before action", "crash at rest", "restart at once",
    "restart later",
    "store: commit refused", "store: went on when there was room", "store: actor stopped",
    "sqlite: killed in a commit", "sqlite: restored from its file",
    "driver: slow", "driver: fails for good", "driver: never returns", "driver: completes after its timeout",
    "driver: setup fails", "driver: teardown fails", "driver: modify fails", "driver: join fails",
    "driver: leave fails", "driver: power_on fails", "driver: power_off fails", "driver: suspend fails",
    "mapper switches units", "driver: setup hangs", "driver: teardown hangs",
    "driver: setup fails by the lease's fault", "driver: setup fails by the site's fault",
    "driver: setup fails by the unit's fault",
    "malice: ticket redeemed twice", "malice: ticket redeemed at another site", "malice: ticket of another guest",
    "malice: ticket redeemed after it was given back", "malice: altered claim", "malice: forged signature",
    "malice: claim of its own making", "malice: others' leases", "malice: nonsense", "malice: garbage bytes",
    "malice: changed bytes", "malice: replayed frame", "mapper grants too much", "mapper raises", "mapper is slow",
    "mapper takes its time",
    "not heard: not known yet", "mapper preempts", "mapper suspends",
    "mapper has others make room", "maintenance announced", "maintenance called off",
    "operation: step_within", "clock leaps ahead", "clock at half its pace", "machine sleeps",
    "machine is suspended by its host", "clock beyond the skew", "clock too far off: not obeyed", "connection broken",
    "channel: bad_signature",
    "slice key", "extended as it is", "malice: claim beyond its parent", "evidence verified",
    "command refused", "operation: operate", "unit found down", "delegation taken back", "malice: over-delegation",
    "delegation changed", "inventory changed", "reload", "reload waits", "inventory grows", "inventory shrinks",
    "file gives another number", "delegation handed over", "odd words", "malice: odd words",
    "ticketed lease modified", "unit added", "unit removed", "host changed", "unit as the file says again",
    "key changed", "peer forgotten", "not said: forgotten", "operation: ahead",
    "units planned", "lease gets what was planned",
    "delegation renewed", "tickets that go on from each other",
    *(f"lie: {what}" for what in dict.fromkeys(chain(ANY, *LIES.values()))),
)  # fmt: skip
"""The vocabulary of faults."""

UNREACHABLE: Final[Mapping[str, str]] = {
    "guest: nascent/- close": "nothing stays nascent with nothing pending: a request is sent as it is made",
    "guest: ticketed/- lost": "a broker does not take back a ticket by itself",
    "guest: ticketed/modifying lost": "as above",
    "guest: ticketed/redeeming lost": "a redeem that comes to nothing is refused, or expires",
    "message Administer": "no actor commands another here",
    "message Administered": "as above",
    "message Holdings": "no store is a copy of another here: tests/actors/test_copied_stores.py has what comes of that",
}
"""Rows that no run can meet, and why."""

MAYBE: Final = frozenset({
    "guest: returning/- refused",
    "broker: offering/- refused",
    "broker: offering/- reclaim",
    "broker: offering/- end",
    "broker: reclaiming/- end",
    "authority: offering/- refused",
    "authority: offering/- reclaim",
    "authority: offering/- end",
    "authority: reclaiming/- end",
})  # fmt: skip
"""Rows that a run may meet (a delegation that ends in an outage), and that no campaign need wait for."""

RARE: Final = frozenset({
    *(f"lie: {what}" for what in ("quotes", "held", "planned", "introduces")),
    "guest: committing/- abandon",
    "guest: committing/- plan_again",
    "broker: promising/- let_go",
    "broker: reclaimed/- end",
    "broker: reclaimed/- replace",
    "broker: replaced/- reclaim",
    "broker: replaced/- let_go",
    "authority: reclaimed/- end",
    "authority: reclaimed/- replace",
    "authority: replaced/- reclaim",
    "authority: replaced/- let_go",
    "guest: active/extending_ticket lost",
    "guest: active/withdrawing changed",
    "guest: active/withdrawing lost",
    "guest: active/modifying lost",
    "guest: active_ticketed/- lost",
    "guest: active_ticketed/extending_lease lost",
    "guest: active_ticketed/extending_lease expire",
    "guest: active/extending_ticket in_hand",
    "guest: active_ticketed/extending_further changed",
    "guest: active_ticketed/extending_further expire",
    "guest: active_ticketed/extending_further lease",
    "guest: active_ticketed/extending_further lease_refused",
    "guest: active_ticketed/extending_further lost",
    "guest: active_ticketed/extending_ticket changed",
    "guest: active_ticketed/extending_ticket redeem",
    "guest: active_ticketed/extending_ticket lost",
    "guest: active_ticketed/withdrawing changed",
    "guest: active_ticketed/withdrawing lost",
    "guest: active_ticketed/modifying changed",
    "guest: active_ticketed/modifying expire",
    "guest: active_ticketed/modifying redeem",
    "guest: active_ticketed/modifying lost",
    "guest: active_ticketed/undoing changed",
    "guest: active_ticketed/undoing lease",
    "guest: active_ticketed/undoing lost",
    "guest: relinquishing/- refused",
    "broker: ticketed/extending_ticket return",
    "broker: ticketed/extending_ticket withdraw",
    "broker: ticketed/extending_ticket returned",
    "broker: ticketed/extending_ticket end",
    "broker: ticketed/extending_ticket expire",
    "broker: ticketed/modifying return",
    "broker: ticketed/modifying returned",
    "broker: ticketed/modifying end",
    "broker: ticketed/noticed modify",
    "broker: ticketed/noticed grant",
    "broker: ticketed/noticed refuse",
    "broker: ticketed/noticed withdraw",
    "broker: ticketed/noticed expire",
    "authority: active/extending end",
    "authority: active/extending withdraw",
    "authority: active/modifying end",
    "authority: active/modifying close",
    "authority: active/modifying replace",
    "authority: active/priming apply",
    "authority: active/priming extend",
    "authority: active/priming modify",
    "authority: ticketed/redeeming close",
    "authority: ticketed/redeeming refuse",
    "authority: ticketed/priming close",
    "authority: ticketed/closing close",
    "authority: saving/- saved",
    "authority: saving/- failed",
    "authority: saved/- claim",
    "authority: saved/- expire",
    "authority: claimed/- used",
    "authority: claimed/- release",
    "authority: claimed/- spoilt",
    "authority: dropping/- dropped",
    "authority: dropping/- failed",
})  # fmt: skip
"""Rows that take more luck than a few hundred seeds have."""


def rows() -> Iterator[str]:
    """The mark of each row of each table."""
    for role, tables in StateChecker.TABLES.items():
        for table in tables:
            for (state, pending), events in table.items():
                for event in events:
                    yield transition(role, f"{state}/{pending}", event)
    for what, table in (("unit", authority.UNIT_TABLE), ("power", power.TABLE)):
        for (state, _), events in table.items():
            for event in events:
                yield transition(what, state, event)


def messages() -> Iterator[str]:
    """The mark of each kind of message."""
    return (f"message {kind.__name__}" for kind in KINDS.values())


def declared() -> list[str]:
    """Every mark there is."""
    return [*FAULTS, *messages(), *dict.fromkeys(rows())]


def never_met(met: Mapping[str, int], seeds: int) -> list[str]:
    """Marks that a campaign of so many seeds should have met, and has not."""
    if seeds < ENOUGH:
        return []
    excused = set(UNREACHABLE) | MAYBE | (RARE if seeds < ENOUGH_FOR_RARE else frozenset())
    return [mark for mark in declared() if not met.get(mark) and mark not in excused]


def unexpected(met: Mapping[str, int]) -> list[str]:
    """Marks that were met although they are said to be out of reach."""
    return [mark for mark in UNREACHABLE if met.get(mark)]
