"""Who of several takers goes without, when a giver has less than it gave for a while.

The rule: what the giver has not promised to anybody goes first. What is lacking beyond that is shared among those
takers whose delegations lie in that time, in proportion to their units, and each is told its own share. So at no
instant can the giver and its takers together grant more than there is, and nobody goes without what another one already
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from leasekit.core.leases.relations import Delegation
from leasekit.core.time import Term


def shares(lacking: int, weights: Mapping[str, int]) -> dict[str, int]:
    """``lacking`` in proportion to ``weights``, none more than its weight: largest remainders first, then by name."""
    total = sum(weights.values())
    if lacking >= total:
        return dict(weights)
    made = {name: lacking * weight // total for name, weight in weights.items()}
    order = sorted(weights, key=lambda name: (-(lacking * weights[name] % total), name))
    for name in order[: lacking - sum(made.values())]:
        made[name] += 1
    return made


def withheld_shares(
    units: int, window: Term, spare: Callable[[Term], int], takers: Sequence[Delegation]
) -> dict[str, int]:
    """How many of ``units`` each taker's delegation is to withhold over ``window``, by its name.

    ``spare`` says how many units the giver has promised to nobody over a term. Where the takers change within the
    window each part of it is shared by itself, and the most of any part counts.
    """
    there = [one for one in takers if one.term.overlaps(window)]
    bounds = {bound for one in there for bound in one.term if window.start < bound < window.end}
    edges = sorted({window.start, window.end, *bounds})
    most = {one.id: 0 for one in there}
    for start, end in pairwise(edges):
        part = Term(start, end)
        weights = {one.id: one.units for one in there if one.term.overlaps(part)}
        lacking = units - max(0, spare(part))
        if lacking > 0 and weights:
            for name, share in shares(lacking, weights).items():
                most[name] = max(most[name], share)
    return most
