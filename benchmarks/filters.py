"""For how long a site's loop is held by one guest's filter, and what a filter costs in all.

    python benchmarks/filters.py [--json] [--quick]

A site of 10,000 units with 100 different sets of attributes, and with 10,000 (every unit has its own). A guest redeems
a ticket with the dearest filter that is allowed: of 128 comparisons, or of a large set. A hold is what passes
between two points at which a daemon's loop looks at other things: a slice of reading and asking the filter, or the
mapper's turn. Times are the processor's. The floor is a bare loop of as many comparisons of numbers. ``--quick`` has
1,000 units.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from _bench_world import tune_gc
from _report import Result, emit, result

from leasekit.actors.settings import AuthoritySettings, DelegationSpec, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.claim import decode_ticket, delegate
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity, key_tag
from leasekit.core.filters import WORDS_MAX, parse_filter
from leasekit.core.protocol.messages import NEW, Offer, OfferAnswer, Redeem
from leasekit.core.reasons import words
from leasekit.core.steps import Received, Tick
from leasekit.core.time import Term
from leasekit.policies.authority.first_fit import FirstFit

SITE, BROKER, GUEST = UnsignedIdentity("site"), UnsignedIdentity("broker"), UnsignedIdentity("guest")
HOLD_MS = 10.0
ROUNDS = 5
WIDE = " or ".join(f"a{number % 128} < -{number}.5" for number in range(1, WORDS_MAX // 4 + 1))
SET = f"a0 in {{{','.join(str(-number) for number in range(1, WORDS_MAX // 2 - 4))}}}"
FILTERS = {"128 comparisons": WIDE, "a set": SET}


def site(units: int, sets: int) -> tuple[Authority, Offer]:
    """A site that has delegated all its units to a broker, and the offer by which it did."""
    names = [f"u-{number}" for number in range(units)]
    inventory = tuple(
        UnitGroup(type="vm", names=tuple(names[kind::sets]), own={f"a{n}": str(kind + n) for n in range(128)})
        for kind in range(sets)
    )
    peers = [Peer(name=name, key=key.public, role=name) for name, key in (("broker", BROKER), ("guest", GUEST))]
    settings = AuthoritySettings(
        inventory=inventory, delegations=(DelegationSpec(broker="broker", type="vm", units=units),)
    )
    made = Authority("site", SITE, UNSIGNED, peers, FirstFit(), settings)
    made.step(Tick(0))
    ready = made.ready()
    assert ready is not None, "it delegates"
    (offer,) = [one.message for one in ready.messages if isinstance(one.message, Offer)]
    made.step(Received("broker", OfferAnswer(offer.delegation, offer.number, None)))
    return made, offer


def holds(made: Authority, offer: Offer, text: str, number: int) -> list[float]:
    """What each turn took, in seconds, until the lease that wants such units was refused."""
    ticket = delegate(
        decode_ticket(offer.ticket), BROKER, holder=GUEST.public, units=1, term=Term(0, 10**6), serial=number
    )
    redeem = Redeem(f"{key_tag(GUEST.public)}-{number}", 1, NEW, "s", ticket.encode(), {}, {"filter": text}, (), b"")
    made.step(Received("guest", redeem))
    made.step(Tick(0))
    found = []
    while True:
        begin = time.thread_time()
        turn = made.turn()
        if turn is None:
            break
        made.step(turn.run())
        made.ready()
        found.append(time.thread_time() - begin)
    reason = words(made.leases[redeem.lease].reason)
    if not reason.startswith("no free unit"):
        raise RuntimeError(f"not refused: {reason!r:.200}")
    return found


def bare(comparisons: int) -> float:
    """Seconds of as many comparisons of numbers in a plain loop."""
    values = [float(number) for number in range(128)]
    begin = time.thread_time()
    for number in range(comparisons):
        if values[number % 128] < -1.0:
            raise RuntimeError("none is")
    return time.thread_time() - begin


def figures(units: int, sets: int) -> Iterator[Result]:
    """The longest hold and all of them: the best of some rounds, each with a filter that has not been seen."""
    made, offer = site(units, sets)
    number = 0
    for name, text in FILTERS.items():
        longest = total = float("inf")
        for _ in range(ROUNDS):
            number += 1
            found = holds(made, offer, text + " " * number, number)
            longest, total = min(longest, max(found)), min(total, sum(found))
        where = f"{name}, {units} units, {sets} sets"
        floor = bare(sets * parse_filter(text).cost) * 1000
        yield result(f"longest hold, {where}", longest * 1000, "ms", HOLD_MS)
        yield result(f"in all, {where}", total * 1000, "ms", None, floor)


def main() -> int:
    """Measure with few and with many different sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 units")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tune_gc()
    units = 1_000 if options.quick else 10_000
    found = [*figures(units, 100), *figures(units, units)]
    return 0 if emit("filters", "in one process", found, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
