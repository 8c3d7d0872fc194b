"""How what an issuer lacks over a maintenance window is shared among those who hold its delegations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.leases.records import Delegation
from leasekit.core.properties import Counts, count_of
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


def units_of_class(holders: Iterable[Delegation], class_: bytes) -> list[tuple[Delegation, int]]:
    """How many units of a class each of these delegations has."""
    return [(one, count_of(decode_ticket(one.ticket).leaf.classes, class_)) for one in holders]


def in_order(claim: Claim, of: Counts) -> tuple[int, ...]:
    """Numbers of units of each class of a claim, in the claim's order: as :class:`Withhold` has them."""
    return tuple([count_of(of, class_) for class_, _ in claim.classes])


def withheld_shares(
    units: int, window: Term, spare: Callable[[Term], int], holders: Sequence[tuple[Delegation, int]]
) -> dict[str, int]:
    """How many of ``units``, which are of one class, each holder's delegation is to withhold over ``window``, by its
    name. ``holders`` have so many of that class.

    ``spare`` says how many units the issuer has promised to nobody over a term. Where the holders change within the
    window each part of it is shared by itself, and the most of any part counts.
    """
    terms = [
        (one.id, one.term if one.is_replaced else Term(one.term.start, one.grants_until), held)
        for one, held in holders
        if held
    ]
    there = [one for one in terms if one[1].overlaps(window)]
    bounds = {bound for _, term, _ in there for bound in term if window.start < bound < window.end}
    edges = sorted({window.start, window.end, *bounds})
    most = {id_: 0 for id_, _, _ in there}
    for start, end in pairwise(edges):
        part = Term(start, end)
        weights = {id_: held for id_, term, held in there if term.overlaps(part)}
        lacking = units - max(0, spare(part))
        if lacking > 0 and weights:
            for name, share in shares(lacking, weights).items():
                most[name] = max(most[name], share)
    return most
